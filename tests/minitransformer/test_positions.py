"""Fourier features of positions, and the grids that they stand on."""

import math
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from minitransformer import Tensor, gradcheck, nn
from tests.refusals import refusals

from .models import normal

BANDS = st.sampled_from(["log", "linear"])


def frequency(k: int, num_bands: int, resolution: float, bands: str) -> float:
    """f_k from its definition: from 1 to μ / 2 in equal ratios or in equal steps."""
    share = k / (num_bands - 1) if num_bands > 1 else 0.0
    top = resolution / 2
    return float(top**share) if bands == "log" else 1 + share * (top - 1)


@given(
    st.lists(st.floats(2, 300), min_size=1, max_size=3),
    st.integers(1, 6),
    BANDS,
    st.booleans(),
    st.data(),
)
def test_every_feature_has_its_closed_form(
    resolution: list[float], num_bands: int, bands: str, raw: bool, data: Any
) -> None:
    dims = len(resolution)
    point = [data.draw(st.floats(-1, 1)) for _ in range(dims)]
    phases = [
        math.pi * frequency(k, num_bands, resolution[d], bands) * point[d]
        for d in range(dims)
        for k in range(num_bands)
    ]
    expected = [*(point if raw else []), *map(math.sin, phases), *map(math.cos, phases)]
    features = nn.fourier_features(point, num_bands, resolution, bands, include_positions=raw)
    assert len(expected) == dims * (2 * num_bands + raw)
    np.testing.assert_allclose(features, expected, rtol=1e-9, atol=1e-11)


@given(st.integers(1, 6), BANDS)
def test_one_resolution_serves_every_dimension(num_bands: int, bands: str) -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (4, 5, 3))
    one = nn.fourier_features(points, num_bands, 9, bands)
    assert one.shape == (4, 5, 3 * (2 * num_bands + 1))
    np.testing.assert_array_equal(one, nn.fourier_features(points, num_bands, [9, 9, 9], bands))
    alone = nn.fourier_features(points[2, 3], num_bands, 9, bands)
    np.testing.assert_array_equal(one[2, 3], alone)
    assert nn.fourier_features(points[:, :0], num_bands, 9, bands).shape == one[:, :0].shape


def test_log_bands_crowd_where_waves_are_slow() -> None:
    """How many bands there are is free of how high they reach: 1 and μ / 2 are always there."""
    slope = 1e-7  # sin(π f p) / π p is f for a small p
    for num_bands in (2, 5):
        log, linear = (
            nn.fourier_features([slope], num_bands, 64, bands)[1 : num_bands + 1] / (np.pi * slope)
            for bands in ("log", "linear")
        )
        for found in (log, linear):
            np.testing.assert_allclose(found[[0, -1]], [1, 32])
        np.testing.assert_allclose(log[1:] / log[:-1], 32 ** (1 / (num_bands - 1)))
        np.testing.assert_allclose(np.diff(linear), 31 / (num_bands - 1))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
@example([2, 3])
def test_a_grid_is_even_and_its_last_dimension_runs_fastest(shape: list[int]) -> None:
    grid = nn.grid_positions(shape)
    assert grid.shape == (math.prod(shape), len(shape))
    for index, position in zip(np.ndindex(*shape), grid, strict=True):
        expected = [
            -1 + 2 * i / (n - 1) if n > 1 else 0.0 for i, n in zip(index, shape, strict=True)
        ]
        np.testing.assert_allclose(position, expected, atol=1e-15)


@given(st.lists(st.integers(2, 8), min_size=1, max_size=3), BANDS)
def test_no_two_places_look_alike(shape: list[int], bands: str) -> None:
    features = nn.fourier_features(nn.grid_positions(shape), 3, shape, bands)
    distance = np.linalg.norm(features[:, None] - features, axis=-1)
    assert (distance + 10 * np.eye(len(features))).min() > 0.1


def test_the_coordinates_tell_the_ends_of_a_line_apart() -> None:
    """Waves that turn a whole number of times do not: here 1, 2 and 4."""
    waves, both = (
        nn.fourier_features([[-1], [1]], 3, 8, include_positions=raw) for raw in (False, True)
    )
    np.testing.assert_allclose(waves[0], waves[1], atol=1e-14)
    assert both[0, 0] == -1 and both[1, 0] == 1


def test_positions_are_appended_to_what_stands_there(device: str) -> None:
    positions = nn.FourierPositions((2, 3), num_bands=2, bands="linear")
    features = nn.fourier_features(nn.grid_positions((2, 3)), 2, (2, 3), "linear")
    assert positions.num_features == features.shape[1] == 2 * (2 * 2 + 1)
    for dtype in (np.float32, np.float64):
        x = normal(4, 2, 3, 5).astype(dtype)
        output = positions(Tensor(x, device=device))
        assert output.dtype == dtype and output.shape == (4, 6, 15) and output.device == device
        np.testing.assert_array_equal(output.numpy()[..., :5], x.reshape(4, 6, 5))
        for item in output.numpy():
            np.testing.assert_array_equal(item[:, 5:], features.astype(dtype))


def test_a_resolution_may_be_chosen() -> None:
    positions = nn.FourierPositions((4,), num_bands=3, max_resolution=100)
    expected = nn.fourier_features(nn.grid_positions((4,)), 3, 100)
    np.testing.assert_array_equal(positions.features, expected)


def test_gradients_of_what_stands_there() -> None:
    positions = nn.FourierPositions((2, 3), num_bands=2)
    assert gradcheck(positions, [normal(2, 2, 3, 1)])


test_refusals = refusals(
    (lambda: nn.fourier_features([[0.5]], 2, 8, "octaves"),
     "fourier_features: bands must be 'log' or 'linear', got 'octaves'"),
    (lambda: nn.fourier_features([[0.5]], 0, 8),
     "fourier_features: num_bands must be a whole number above 0, got 0"),
    (lambda: nn.fourier_features([[0.5, 0.5]], 2, [8, 0]),
     "fourier_features: max_resolution must be a number above 0, or one for each of the 2 "
     "dimensions, got [8.0, 0.0]"),
    (lambda: nn.fourier_features([[0.5, 0.5]], 2, [8, 8, 8]),
     "fourier_features: max_resolution must be a number above 0, or one for each of the 2 "
     "dimensions, got [8.0, 8.0, 8.0]"),
    (lambda: nn.fourier_features(0.5, 2, 8),
     "fourier_features: positions must be (..., D), got a number; grid_positions makes them"),
    (lambda: nn.FourierPositions((8, 8), 2)(Tensor(normal(1, 64, 1))),
     "FourierPositions: x must be (B, 8, 8, C), got (1, 64, 1); build it for the shape that "
     "the data has"),
)  # fmt: skip

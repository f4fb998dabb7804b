"""Layer normalisation's kernels against its definition, whose gradient is a complex step."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import DataRace, checked
from minitransformer_kernels.layers import layer_norm
from tests.properties import array_library, to_numpy

from ..mutants import Mutant, bugs, hunt, without_barriers

Array = np.ndarray
EPS = 1e-3
SHAPES = [(1, 1), (9, 3), (300, 37), (17, 130)]
versions = pytest.mark.parametrize("version", ["fast", "plain"])


def naive(x: Array, weight: Array, bias: Array) -> Array:
    less = x - x.mean(axis=1, keepdims=True)
    return np.asarray(
        less / np.sqrt((less * less).mean(axis=1, keepdims=True) + EPS) * weight + bias
    )


def assert_right(
    shape: tuple[int, int],
    dtype: str = "float64",
    device: str = "cpu",
    shift: float = 0.0,
    module: Any = layer_norm,
    version: str = "fast",
) -> None:
    """Compare output and gradients, each along a random direction, for rows back to front."""
    rng = np.random.default_rng(0)
    g, along, *others = (rng.normal(size=shape) for _ in range(3))
    weight, bias, *directions = rng.normal(size=(4, shape[1]))
    x = (others[0] + shift).astype(dtype)[:, ::-1]
    given = {"x": x, "weight": weight.astype(dtype), "bias": bias.astype(dtype)}
    xp = array_library(device)
    on_device = {name: xp.asarray(array) for name, array in given.items()}
    grad = xp.asarray(g.astype(dtype))
    y, mean, scale = module.forward(*on_device.values(), eps=EPS, version=version)
    x, made = on_device["x"], (mean, scale)
    dx = module.backward(grad, x, on_device["weight"], *made, version=version)
    dweight, dbias = module.parameters_backward(grad, x, *made, version=version)
    found = to_numpy({"y": y, "x": dx, "weight": dweight, "bias": dbias})
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}

    unit = np.finfo(dtype).eps  # the mean is off by about a unit of its last digit
    near: Any = dict.fromkeys(("rtol", "atol"), (1e3 + 2 * shift) * unit)
    exact = {name: array.astype(np.float64) for name, array in given.items()}
    np.testing.assert_allclose(found["y"], naive(*exact.values()), **near)
    for name, direction in zip(given, (along, *directions), strict=True):
        moved = exact | {name: exact[name] + 1e-30j * direction}
        slope = np.sum(g * naive(*moved.values()).imag) / 1e-30
        size = np.linalg.norm(g) * np.linalg.norm(direction)
        got = np.sum(found[name].astype(np.float64) * direction)
        assert abs(got - slope) <= near["rtol"] * size, name


@versions
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_output_and_gradients(
    dtype: str, shape: tuple[int, int], version: str, device: str
) -> None:
    assert_right(shape, dtype, device, version=version)


@versions
def test_a_large_mean_costs_no_digits(version: str, device: str) -> None:
    """The variance as a difference of means of squares would be lost: 1e4^2 has 8 digits."""
    assert_right((9, 130), "float32", device, shift=1e4, version=version)


def test_weight_and_bias_can_be_left_out() -> None:
    x, g = np.random.default_rng(0).normal(size=(2, 5, 7))
    ones, zeros = np.ones(7), np.zeros(7)
    plain, full = (
        layer_norm.forward(x, *given, eps=EPS) for given in ((None, None), (ones, zeros))
    )
    np.testing.assert_array_equal(plain[0], full[0])
    without, with_ones = (layer_norm.backward(g, x, w, *full[1:]) for w in (None, ones))
    np.testing.assert_array_equal(without, with_ones)


@versions
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_normalise(shape: tuple[int, int], version: str) -> None:
    x = np.zeros(shape)
    y, mean, scale = layer_norm.forward(x, None, None, eps=EPS, version=version)
    dx = layer_norm.backward(y, x, None, mean, scale, version=version)
    assert y.shape == dx.shape == shape
    for gradient in layer_norm.parameters_backward(y, x, mean, scale, version=version):
        np.testing.assert_array_equal(gradient, np.zeros(shape[1]))


def test_sums_repeat_bit_by_bit(device: str) -> None:
    xp = array_library(device)
    x, g = xp.asarray(np.random.default_rng(0).normal(size=(2, 300, 37)))
    results = []
    for _ in range(2):
        y, mean, scale = layer_norm.forward(x, None, None, eps=EPS)
        dweight, dbias = layer_norm.parameters_backward(g, x, mean, scale)
        results.append(to_numpy({"y": y, "weight": dweight, "bias": dbias}))
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name])


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="x must be float32 or float64, got float16; convert it"):
        layer_norm.forward(np.ones((2, 3), np.float16), None, None, eps=EPS)


@versions
def test_kernels_are_clean(version: str) -> None:
    with checked():
        assert_right((9, 37), version=version)


def module_of(package: str) -> Any:
    return import_module(f"{package}.layers.layer_norm")


def by(version: str) -> Callable[[str], Any]:
    """The check that a copy of the package with a bug must fail."""
    given: Any = {"shape": (300, 37), "shift": 3.0, "version": version}
    return lambda package: lambda: assert_right(**given, module=module_of(package))


# For each bug a piece of text, and what takes its place.
MUTANTS = [
    *bugs(by("fast"), "layers/layer_norm/fast.py",
        scale_is_a_constant=(" - n * product)", ")"),
        mean_not_taken_off=("(x[i, d] - m) * (x[i, d] - m)", "x[i, d] * x[i, d]"),
        eps_forgotten=("/ real(D) + eps)", "/ real(D))"),
        mean_is_a_constant=(" - total - n", " - n"),
        rows_end_early=("if i < R and d < D", "if i < R - 1 and d < D"),
    ),
    *bugs(by("fast"), "tiles.py",
        half_a_warp=("for step in range(5)", "for step in range(4)"),
    ),
    *bugs(by("plain"), "layers/layer_norm/plain.py",
        plain_scale_is_a_constant=(" - n * hn_mean)", ")"),
        plain_rows_are_not_scaled=("(x[i, d] - mean[i]) * scale[i]", "(x[i, d] - mean[i])"),
        plain_bias_is_scaled=("* r + bias[d]", "* (r + bias[d])"),
    ),
]  # fmt: skip


test_mutant_is_killed = hunt(MUTANTS, "file")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mutant", list(without_barriers("layers/layer_norm/fast.py", module_of)), ids=str
)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module, checked(), pytest.raises(DataRace):
        assert_right((9, 37), module=module)

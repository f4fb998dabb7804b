"""Layer normalisation's kernels against its definition, whose gradient is a complex step."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import DataRace, checked, layer_norm
from tests.properties import array_library, to_numpy

from .mutants import Mutant, without_barriers

Array = np.ndarray
EPS = 1e-3
SHAPES = [(1, 1), (9, 3), (300, 37), (17, 130)]


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
    y, mean, scale = module.forward(*on_device.values(), eps=EPS)
    dx = module.backward(grad, on_device["x"], on_device["weight"], mean, scale)
    dweight, dbias = module.parameters_backward(grad, on_device["x"], mean, scale)
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_output_and_gradients(dtype: str, shape: tuple[int, int], device: str) -> None:
    assert_right(shape, dtype, device)


def test_a_large_mean_costs_no_digits(device: str) -> None:
    """The variance as a difference of means of squares would be lost: 1e4^2 has 8 digits."""
    assert_right((9, 130), "float32", device, shift=1e4)


def test_weight_and_bias_can_be_left_out() -> None:
    x, g = np.random.default_rng(0).normal(size=(2, 5, 7))
    ones, zeros = np.ones(7), np.zeros(7)
    plain, full = (
        layer_norm.forward(x, *given, eps=EPS) for given in ((None, None), (ones, zeros))
    )
    np.testing.assert_array_equal(plain[0], full[0])
    without, with_ones = (layer_norm.backward(g, x, w, *full[1:]) for w in (None, ones))
    np.testing.assert_array_equal(without, with_ones)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_normalise(shape: tuple[int, int]) -> None:
    x = np.zeros(shape)
    y, mean, scale = layer_norm.forward(x, None, None, eps=EPS)
    assert y.shape == layer_norm.backward(y, x, None, mean, scale).shape == shape
    for gradient in layer_norm.parameters_backward(y, x, mean, scale):
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
    with pytest.raises(TypeError, match="kernels take float32 or float64 arrays, got float16"):
        layer_norm.forward(np.ones((2, 3), np.float16), None, None, eps=EPS)


def test_kernels_are_clean() -> None:
    with checked():
        assert_right((9, 37))


def module_of(package: str) -> Any:
    return import_module(f"{package}.layer_norm")


# For each bug a piece of text, and what takes its place.
MUTANTS = {
    "mean_not_taken_off": ("(x[i, d] - m) * (x[i, d] - m)", "x[i, d] * x[i, d]"),
    "eps_forgotten": ("/ real(D) + eps)", "/ real(D))"),
    "half_a_warp": ("for step in range(5)", "for step in range(4)"),
    "scale_is_a_constant": (" - n * product)", ")"),
    "mean_is_a_constant": (" - total - n", " - n"),
    "rows_end_early": ("if i < R and d < D", "if i < R - 1 and d < D"),
}


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=[] if bug == "scale_is_a_constant" else pytest.mark.nightly)
        for bug in MUTANTS
    ],
)
def test_mutant_is_killed(bug: str, tmp_path: Path) -> None:
    mutant = Mutant(bug, module_of, "layer_norm.py", *MUTANTS[bug])
    with mutant.imported(tmp_path) as module, pytest.raises(AssertionError):
        assert_right((300, 37), shift=3.0, module=module)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", list(without_barriers("layer_norm.py", module_of)), ids=str)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module, checked(), pytest.raises(DataRace):
        assert_right((9, 37), module=module)

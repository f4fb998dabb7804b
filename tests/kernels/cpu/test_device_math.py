"""`exp` for kernels: as exact as promised, everywhere, and right at the edges."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.cuda import cuda

WIDER = {np.float32: np.float64, np.float64: np.longdouble}
EDGES = {
    np.float32: (-87.33654, -87.4, -103.27, -103.97, -104.0, 88.72283, 88.72284, 1e-40),
    np.float64: (-708.4, -744.4, -745.13, -745.14, 709.782712893384, 709.7827128933841, 5e-324),
}


@cache
def exp_kernel(fastmath: bool) -> Any:
    @cuda.jit(fastmath=fastmath)
    def exponentials(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = math.exp(x[i])

    return exponentials


def exp(x: np.ndarray, fastmath: bool) -> np.ndarray:
    """e^x of an array, computed by a kernel."""
    out = np.zeros_like(x)
    exp_kernel(fastmath)[-(-x.size // 64), 64](x, out)
    return out


@pytest.mark.parametrize("fastmath", [False, True])
@pytest.mark.parametrize("dtype", WIDER)
def test_error_is_below_two_units_in_the_last_place(dtype: Any, fastmath: bool) -> None:
    rng = np.random.default_rng(0)
    lowest, highest = np.log(np.finfo(dtype).smallest_subnormal), np.log(np.finfo(dtype).max)
    x = np.concatenate(
        [
            rng.uniform(lowest, highest, 300_000),
            rng.uniform(-1, 1, 100_000),
            np.log(2) * (rng.integers(-140, 120, 50_000) + 0.5) + rng.normal(0, 1e-6, 50_000),
        ]
    ).astype(dtype)
    truth = np.exp(x.astype(WIDER[dtype]))
    with np.errstate(over="ignore"):
        rounded = truth.astype(dtype)
    x, truth, rounded = (a[np.isfinite(rounded)] for a in (x, truth, rounded))
    units = np.abs(exp(x, fastmath).astype(WIDER[dtype]) - truth) / np.spacing(rounded)
    assert units.max() < 2


@pytest.mark.parametrize("fastmath", [False, True])
@pytest.mark.parametrize("dtype", WIDER)
def test_edges(dtype: Any, fastmath: bool) -> None:
    x = np.array(EDGES[dtype], dtype)
    with np.errstate(over="ignore"):
        truth = np.exp(x)
    np.testing.assert_array_max_ulp(exp(x, fastmath), truth, 1)
    found = exp(np.array([np.inf, 1e5, -np.inf, -1e5, 0, -0.0, 1e-300, np.nan], dtype), fastmath)
    np.testing.assert_array_equal(found, [np.inf, np.inf, 0, 0, 1, 1, 1, np.nan])
    least = np.log(np.finfo(dtype).smallest_subnormal)
    assert not exp(np.linspace(3 * least, 1.01 * least, 10_000, dtype=dtype), fastmath).any()


def test_integers_and_booleans_are_computed_in_float64() -> None:
    @cuda.jit
    def of_whole_numbers(x, out):
        i = cuda.grid(1)
        out[i] = math.exp(x[i]) + math.exp(x[i] > 1)

    out = np.zeros(4)
    of_whole_numbers[1, 4](np.arange(4, dtype=np.int32), out)
    np.testing.assert_allclose(out, np.exp(np.arange(4)) + np.exp([0, 0, 1, 1]), rtol=1e-15)


def test_float32_stays_float32() -> None:
    @cuda.jit
    def in_float32(x, out):
        i = cuda.grid(1)
        out[i] = math.exp(x[i])

    x, out = np.linspace(-3, 3, 8, dtype=np.float32), np.zeros(8)
    in_float32[1, 8](x, out)
    np.testing.assert_array_equal(out, out.astype(np.float32))
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)


@cuda.jit
def divides(x, y, rest, part, whole, nearest):
    """The divisions of `math` that leave a rest."""
    i = cuda.grid(1)
    if i < x.size:
        rest[i] = math.fmod(x[i], y[i])
        part[i], whole[i] = math.modf(x[i])
        nearest[i] = math.remainder(x[i], y[i])


@pytest.mark.parametrize("types", ["ii", "if", "fi", "di", "df", "BB"])
def test_rests_of_whole_numbers_are_real(types: str) -> None:
    """Of those that CUDA has, float32 and float64, the type is the one that fits both best."""
    x, y = (np.array([7, 1, 8, 5], kind) for kind in types)
    y[:] = 3, 4, 3, 2
    found = [np.zeros(4) for _ in range(4)]
    divides[1, 4](x, y, *found)
    wanted = [1, 1, 2, 1], [0] * 4, x, [1, 1, -1, 1]
    np.testing.assert_array_equal(found, np.array(wanted, np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rests_are_exact(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    ties = [[1.5, 2.5, -3.5, 7, 0.5, 1.5, 4, 6, -0.0, 5], [1, 1, 1, 2, 1, 3, 8, 4, 1, -2]]
    x, y = np.hstack([rng.standard_normal((2, 1000)) * [[100], [1]], ties]).astype(dtype)
    found = [np.zeros_like(x) for _ in range(4)]
    divides[8, 128](x, y, *found)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    wanted = [
        [math.fmod(a, b) for a, b in pairs],
        [math.modf(a)[0] for a, _ in pairs],
        [math.modf(a)[1] for a, _ in pairs],
        [math.remainder(a, b) for a, b in pairs],
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, np.array(theirs, dtype))

"""Numbers are those of a GPU, or the checked mode says that they may not be.

What a GPU gives is read from Numba's lowering for CUDA, and from PTX: `max.f32` of a number and a
NaN is the number; `cvt.rzi` takes the nearest number there is; `round` with digits scales in
float64 and passes through int64.
"""

import math
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import float32, float64, int32, int64, uint8

from minitransformer_kernels.cpu import DiffersOnGpu, KernelError, checked
from minitransformer_kernels.cpu.lowering import CHECKED
from minitransformer_kernels.cuda import cuda

from .launches import defined

NAMES = {
    "cuda": cuda, "float32": float32, "float64": float64, "int32": int32, "int64": int64,
    "math": math, "np": np, "uint8": uint8,
}  # fmt: skip
NAN, INF = math.nan, math.inf

ALIKE = {  # a number, digits, and what a GPU gives
    "float64": [
        (2.675, 2, 2.68), (1.005, 2, 1.0), (2.5, 0, 2.0), (3.5, 0, 4.0), (15.0, -1, 20.0),
        (25.0, -1, 20.0), (123456789.123, 5, 123456789.123), (INF, 2, INF),
        (NAN, 2, NAN), (1e300, 2, 2.0**63 / 100), (1e308, 22, 1e308), (0.1, 25, 2.0**63 / 1e25),
    ],
    "float32": [
        (2.675, 2, 2.67), (0.125, 2, 0.12), (0.375, 2, 0.38), (1234.5, -1, 1230.0), (-INF, 1, -INF),
        (16777216.0, 3, 16777216.0),
    ],
}  # fmt: skip


@cuda.jit
def rounded(x, digits, out):
    i = cuda.grid(1)
    out[i] = round(x[i], digits[i])


@pytest.mark.parametrize("dtype", ALIKE)
def test_round_with_digits(dtype: str) -> None:
    x, digits, wanted = (np.array(column) for column in zip(*ALIKE[dtype], strict=True))
    out = np.zeros(x.size, dtype)
    with checked():
        rounded[1, x.size](x.astype(dtype), digits, out)
    np.testing.assert_allclose(out, wanted.astype(dtype), rtol=4 * np.finfo(dtype).eps)


DIVIDED = [
    (1.0, 0.1), (1e6, 0.1), (1.5, -0.3), (-1.5, 0.3), (-7.0, 2.0), (7.0, -2.0), (0.0, -3.0),
    (-0.0, 3.0), (5.0, 1e-30), (NAN, 2.0), (2.0, NAN), (INF, 2.0), (2.0, -0.0), (0.3, 0.1),
]  # fmt: skip


@cuda.jit
def divided(x, y, out):
    i = cuda.grid(1)
    out[i, 0], out[i, 1] = x[i] // y[i], x[i] % y[i]
    out[i, 2], out[i, 3] = divmod(x[i], y[i])


def as_on_gpu(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What NVVM and Numba make of `//` and `%`: the remainder is that of the rounded quotient."""
    rest = abs(x) - np.floor(abs(x) / abs(y)) * abs(y)
    rest = np.where(x < 0, -rest, rest)
    crosses = (rest != 0) & ((y < 0) != (rest < 0))
    quotient = np.rint((x - rest) / y) - crosses
    return np.where(y == 0, x / y, quotient), np.where(crosses, rest + y, rest)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_are_divided_as_on_a_gpu(dtype: str) -> None:
    few = np.array(DIVIDED, dtype).T
    many = np.random.default_rng(0).uniform(-3, 3, (2, 500)).astype(dtype)
    tenths = np.arange(-200, 200).astype(dtype) * np.array([[1], [0]], dtype)
    tenths[1] = 0.1
    x, y = np.concatenate([few, many, tenths], axis=1)
    out = np.zeros((x.size, 4), dtype)
    divided[1, x.size](x, y, out)
    with np.errstate(all="ignore"):
        quotient, rest = as_on_gpu(x, y)
    np.testing.assert_array_equal(out.T, np.array([quotient, rest, quotient, rest], dtype))
    assert out[1].tolist() == [1e7, 0, 1e7, 0]  # of 1e6 and 0.1


@cuda.jit
def to_powers(x, power, out):
    i = cuda.grid(1)
    out[i, 0], out[i, 1], out[i, 2] = x[i] ** -1, x[i] ** -2, x[i] ** power


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_to_a_negative_power_is_infinite(dtype: str) -> None:
    x = np.array([0.0, 2.0, -0.0], dtype)
    out = np.zeros((3, 3), dtype)
    for looked_at in checked(), nullcontext():
        with looked_at:
            to_powers[1, 3](x, -3, out)
        assert out.tolist() == [[INF, INF, INF], [1 / 2, 1 / 4, 1 / 8], [-INF, INF, -INF]]


@cuda.jit
def quotients(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] / y[i]


def test_a_complex_zero_to_divide_by_is_told_with_the_kernel() -> None:
    one, zero = np.ones(1, complex), np.zeros(1, complex)
    with pytest.raises(KernelError, match=r"'quotients': complex division by zero: .*: test the"):
        quotients[1, 1](one, zero, one.copy())
    quotients[1, 1](one, 2 * one, zero)
    assert zero.tolist() == [0.5]


def test_round_has_no_negative_zero() -> None:
    out = np.ones(1)
    rounded[1, 1](np.array([-0.2]), np.array([0]), out)
    assert out[0] == 0
    assert not np.signbit(out[0])


# A line of a kernel of float64 `x` and float32 `y`; numbers that are the same everywhere, and
# others that are not; what the warning says.
TOLD = {
    "max": ("out[i] = max(x[i], x[1 - i])", (1.0, 2.0), (NAN, 1.0), "`max(x[i], x[1 - i])` met a"),
    "min": ("out[i] = min(y[i], float32(3))", (1.0, INF), (1.0, NAN), "float32(3))` met a NaN"),
    "int32": ("k[i] = int32(x[i])", (-(2.0**31), 2.0**31 - 0.5), (0.0, 3e9), "nearest int32;"),
    "int32_of_float32": ("k[i] = int32(y[i])", (-7.9, 1e9), (0.0, 2.0**31), "no int32 holds"),
    "int32_of_nan": ("k[i] = np.int32(x[i])", (1.0, 2.0), (1.0, NAN), "no int32 holds"),
    "int": ("k[i] = int(x[i])", (3e9, -(2.0**63)), (2.0**63, 0.0), "nearest int64;"),
    "uint8": ("k[i] = uint8(x[i])", (0.0, 255.9), (-1.0, 0.0), "nearest uint16, cut to 8 bits"),
    "stored": ("k[i] = x[i] * 2.0", (1e9, -0.5), (1e9, 1e19), "`k[i] = x[i] * 2.0` got a number"),
    "added": ("k[i] += y[i]", (1e9, -0.5), (1e9, 1e19), "`k[i] = k[i] + y[i]` got"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_told(name: str, tmp_path: Path) -> None:
    line, alike, other, message = TOLD[name]
    text = f"@cuda.jit\ndef told(x, y, out, k):\n    i = cuda.grid(1)\n    {line}\n"
    kernel = defined(tmp_path / f"{name}.py", text, NAMES)["told"]

    def launch(numbers: tuple[float, ...]) -> None:
        x = np.array(numbers)
        kernel[1, 2](x, x.astype(np.float32), np.zeros(2), np.zeros(2, np.int64))

    with warnings.catch_warnings(), checked():
        warnings.simplefilter("error")
        launch(alike)
    with pytest.warns(DiffersOnGpu, match=re.escape(message)) as caught, checked():
        launch(other)
    assert caught[0].filename == str(tmp_path / f"{name}.py")
    assert caught[0].lineno == 4


@pytest.mark.parametrize("line", ["k[i] = max(k[i], 3)", "k[i] = int32(k[i] + i)", "k[i] += 1"])
def test_whole_numbers_are_not_asked(line: str, tmp_path: Path) -> None:
    text = f"@cuda.jit\ndef whole(k):\n    i = cuda.grid(1)\n    {line}\n"
    kernel: Any = defined(tmp_path / "whole.py", text, NAMES)["whole"]
    checks = kernel.on_cpu.compiled((2, 1, 1), (np.zeros(2, np.int64),), 0, CHECKED)
    assert "run__differs, " not in str(checks.variant.written().text)

"""Float64 in a kernel on float32 arrays is told from the types, with its lines."""

import inspect
import math
import re
from typing import Any

import numpy as np
from numba import float32

from minitransformer_kernels import microscope
from minitransformer_kernels.cpu.doubles import doubles
from minitransformer_kernels.cuda import cuda

X = np.ones(32, np.float32)


@cuda.jit(device=True)
def half(v):
    """A device function whose result is float64."""
    return v * 0.5


@cuda.jit
def strays(x, out, alpha):
    """A line for each way in which float64 comes in, marked, and lines without."""
    tile = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    total, single = 0.0, float32(0)
    for j in range(4):
        total += x[j]  # double
        single += x[j] * x[i]
    tile[cuda.threadIdx.x] = x[i] * 2  # double
    cuda.syncthreads()
    out[i] = single + tile[31 - cuda.threadIdx.x]
    out[i] = total
    out[i] = half(x[i])  # double
    out[i] = i / 2  # double
    out[i] = float32(2) * (x[i] + float32(0.5)) / math.exp(x[i])
    out[i] = alpha * x[i]  # if alpha is a float


def marked(mark: str) -> set[int]:
    """The lines of the kernel that have a comment."""
    lines, first = inspect.getsourcelines(strays.function)
    return {first + n for n, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")}


def found(*arguments: Any) -> set[int]:
    """The lines that compute in float64."""
    counted = doubles(strays.on_cpu, (32, 1, 1), arguments)
    assert all(file == __file__ and count >= 1 for (file, _), count in counted.items())
    return {line for _, line in counted}


def test_lines_that_compute_in_float64() -> None:
    assert len(marked("double")) == 4
    assert found(X, X.copy(), np.float32(2)) == marked("double")
    assert found(X, X.copy(), 2.0) == marked("double") | marked("if alpha is a float")


def test_float64_that_is_meant() -> None:
    assert found(X, X.astype(np.float64), 2.0) == set()
    assert found(X.astype(np.complex128), X.copy(), 2.0) == set()
    assert found(X.astype(np.int32), X.astype(np.int32), 2.0) == set()


def test_the_microscope_says_so_without_a_compiler_for_gpus() -> None:
    shown = str(microscope.inspect(strays[1, 32], X, X.copy(), np.float32(2), compiled=False))
    lines = re.findall(r"line (\d+) \(test_doubles.py\) computes in float64, 1 operation", shown)
    assert set(map(int, lines)) == marked("double")

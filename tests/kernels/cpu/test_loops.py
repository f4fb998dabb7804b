"""Which of two loops is the inner one: that over the threads, or the kernel's own."""

from __future__ import annotations

import numpy as np
from numba import float32

from minitransformer_kernels.cuda import cuda


@cuda.jit
def sums_of_rows(x, out):
    i, total = cuda.grid(1), float32(0)
    if i < x.shape[0]:
        for e in range(x.shape[1]):
            total += x[i, e]
        out[i] = total


@cuda.jit
def sums_of_columns(x, out):
    i, total = cuda.grid(1), float32(0)
    if i < x.shape[1]:
        for e in range(x.shape[0]):
            total += x[e, i]
        out[i] = total


def test_neighbours_in_memory_are_visited_one_after_the_other() -> None:
    x = np.arange(40 * 24, dtype=np.float32).reshape(40, 24)
    for kernel, axis, inner in ((sums_of_rows, 1, "for e"), (sums_of_columns, 0, "for thread_x")):
        out = np.zeros(x.shape[1 - axis], np.float32)
        kernel[2, 32](x, out)
        assert np.array_equal(out, x.sum(axis))  # whole numbers, so no rounding
        *_, last = (line for line in kernel.cpu_source().splitlines() if " for " in line)
        assert last.strip().startswith(inner)

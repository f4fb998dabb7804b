"""The textbook's kernel: a block owns a tile of the product, and shares what its threads read.

What it adds to `plain`: two tiles in shared memory. A number of A is brought there once for 16
columns of the product, and one of B for 16 rows. Two barriers keep the tiles together: nobody reads
one before it is full, nobody fills it again before all have read it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...arrays import Array, ceil_div, kernel_dtype
from ...cuda import Kernel, cuda

TILE = 16


@cache
def matmul_kernel(real: Any) -> Kernel:
    """The kernel for numbers of Numba's type `real`."""

    @cuda.jit(fastmath=True)
    def matmul(a, b, c):  # type: ignore[no-untyped-def]
        """Make c (n, m) the product of a (n, k) and b (k, m)."""
        a_tile = cuda.shared.array((TILE, TILE), real)
        b_tile = cuda.shared.array((TILE, TILE), real)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        j, i = cuda.grid(2)
        total = real(0)
        for start in range(0, a.shape[1], TILE):
            a_tile[y, x] = real(0)
            b_tile[y, x] = real(0)
            if i < a.shape[0] and start + x < a.shape[1]:
                a_tile[y, x] = a[i, start + x]
            if start + y < b.shape[0] and j < b.shape[1]:
                b_tile[y, x] = b[start + y, j]
            cuda.syncthreads()
            for k in range(TILE):
                total += a_tile[y, k] * b_tile[k, x]  # (1)
            cuda.syncthreads()
        if i < c.shape[0] and j < c.shape[1]:
            c[i, j] = total

    return matmul


def multiply(a: Array, b: Array, c: Array, precise: bool) -> None:
    """Equation (1), of which every product is precise."""
    if c.size:
        blocks = ceil_div(c.shape[1], TILE), ceil_div(c.shape[0], TILE)
        matmul_kernel(kernel_dtype(a))[blocks, (TILE, TILE)](a, b, c)

"""Three transpositions to look at: `minitransformer inspect kernels/microscope/transpose.py`."""

from __future__ import annotations

import numpy as np
from numba import float32

from minitransformer_kernels.cuda import cuda

TILE = 32
PITCH = TILE + 1


@cuda.jit
def naive(x, out):  # type: ignore[no-untyped-def]
    """Neighbouring threads read neighbours of a row, and write neighbours of a column."""
    column, row = cuda.grid(2)
    value = x[row, column]
    out[column, row] = value


@cuda.jit
def tiled(x, out):  # type: ignore[no-untyped-def]
    """A tile in shared memory turns the corner: rows are read, and rows are written."""
    tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    tile[ty, tx] = x[row, column]
    cuda.syncthreads()
    out[cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx] = tile[tx, ty]


@cuda.jit
def padded(x, out):  # type: ignore[no-untyped-def]
    """One column to spare, and the tile's columns lie in different banks."""
    tile = cuda.shared.array((TILE, PITCH), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    tile[ty, tx] = x[row, column]
    cuda.syncthreads()
    out[cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx] = tile[tx, ty]


def example() -> None:
    """Transpose a small matrix with each."""
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for kernel in naive, tiled, padded:
        out = np.zeros_like(x)
        kernel[(2, 2), (TILE, TILE)](x, out)
        np.testing.assert_array_equal(out, x.T)

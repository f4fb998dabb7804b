"""Kernels as textbooks write them, none of them tuned for a CPU, for `lowering.py` to measure.

| kernel         | what it shows                                                              |
|----------------|----------------------------------------------------------------------------|
| matmul         | tiles in shared memory, two barriers a tile, an accumulator in a register  |
| reduce_strided | a loop over the grid, warp shuffles, a device function, one atomic a block |
| reduce_once    | the same with one element a thread: a block has little to do               |
| histogram      | atomics in shared memory, then global ones                                 |
| blur           | a stencil of five points with its halo in shared memory                    |
| smooth         | a stencil of nine points, each asked whether it is there                   |
"""

from typing import Any

import numpy as np
from numba import float32, int32

from minitransformer_kernels.cuda import Launch, cuda
from minitransformer_kernels.layers.matmul.tiled import TILE, matmul_kernel

THREADS = 256
WARP = 32
WARPS = THREADS // WARP
EVERYONE = 0xFFFFFFFF
BINS = 256
FRAMED = TILE + 2  # a tile with a frame of one on each side
BLOCKS = 64  # of a launch whose threads loop over the grid

matmul = matmul_kernel(float32)


@cuda.jit(device=True)
def warp_sum(value):  # type: ignore[no-untyped-def]
    """The sum over a warp, for its first lane."""
    offset = WARP // 2
    while offset > 0:
        value += cuda.shfl_down_sync(EVERYONE, value, offset)
        offset //= 2
    return value


@cuda.jit(device=True)
def block_sum(value):  # type: ignore[no-untyped-def]
    """The sum over a block, for its first thread."""
    sums = cuda.shared.array(WARPS, float32)
    warp, lane = cuda.threadIdx.x // WARP, cuda.laneid
    value = warp_sum(value)
    if lane == 0:
        sums[warp] = value
    cuda.syncthreads()
    value = sums[lane] if lane < WARPS else float32(0)
    if warp == 0:
        value = warp_sum(value)
    return value


@cuda.jit(fastmath=True)
def reduce_strided(x, out):  # type: ignore[no-untyped-def]
    """Add the sum of x to out[0]; any number of blocks will do."""
    total = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i]
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


@cuda.jit(fastmath=True)
def reduce_once(x, out):  # type: ignore[no-untyped-def]
    """Add the sum of x to out[0]; each thread takes one element."""
    i = cuda.grid(1)
    total = block_sum(x[i] if i < x.size else float32(0))
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


@cuda.jit
def histogram(x, counts):  # type: ignore[no-untyped-def]
    """Add to counts[b] how often b is in x (uint8)."""
    own = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    own[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(own, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(counts, t, own[t])


@cuda.jit(fastmath=True)
def blur(x, out):  # type: ignore[no-untyped-def]
    """Make each inner point of out the mean of that point of x and its four neighbours."""
    tile = cuda.shared.array((FRAMED, FRAMED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    for i in range(ty, TILE + 2, TILE):
        for j in range(tx, TILE + 2, TILE):
            from_row, from_column = row - ty + i, column - tx + j
            tile[i, j] = float32(0)
            if from_row < x.shape[0] and from_column < x.shape[1]:
                tile[i, j] = x[from_row, from_column]
    cuda.syncthreads()
    if row + 2 < x.shape[0] and column + 2 < x.shape[1]:
        total = tile[ty, tx + 1] + tile[ty + 1, tx] + tile[ty + 1, tx + 1]
        total += tile[ty + 1, tx + 2] + tile[ty + 2, tx + 1]
        out[row + 1, column + 1] = total / float32(5)


@cuda.jit(fastmath=True)
def smooth(x, out):  # type: ignore[no-untyped-def]
    """Make each point of out the sum of that point of x and its neighbours, as far as they are."""
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        total = float32(0)
        for down in range(-1, 2):
            for right in range(-1, 2):
                i, j = row + down, column + right
                if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
                    total += x[i, j]
        out[row, column] = total


def launches(size: int) -> dict[str, tuple[Launch, tuple[Any, ...]]]:
    """Return a launch of each kernel and its arguments, by the kernel's name.

    Args:
        size: Rows and columns of the matrices; the others get size² numbers.
    """
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((size, size), np.float32) for _ in range(2))
    many = generator.integers(0, BINS, size * size, np.uint8)
    tiles, blocks = -(-size // TILE), -(-a.size // THREADS)
    square, row = ((tiles, tiles), (TILE, TILE)), (blocks, THREADS)
    return {
        "matmul": (matmul[square], (a, b, np.zeros_like(a))),
        "reduce_strided": (reduce_strided[BLOCKS, THREADS], (a.ravel(), np.zeros(1, np.float32))),
        "reduce_once": (reduce_once[row], (a.ravel(), np.zeros(1, np.float32))),
        "histogram": (histogram[BLOCKS, THREADS], (many, np.zeros(BINS, np.int32))),
        "blur": (blur[square], (a, np.zeros_like(a))),
        "smooth": (smooth[square], (a, np.zeros_like(a))),
    }

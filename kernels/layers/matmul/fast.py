r"""A matrix product on tensor cores: what `mma` needs around it to be fast.

What it adds to `tiled`: a warp computes 64 x 64 numbers, 4 x 8 of the matrices of `mma`, and a
block of 2 x 2 warps 128 x 128:

    for each slice of 32 columns of A and rows of B
        the block copies 128 x 32 numbers of A and 32 x 128 of B to shared memory
        for each 8 columns of the slice
            a warp reads 4 fragments of A and 8 of B, and multiplies each with each

A lane reads 4 * 4 + 8 * 2 = 32 numbers for 32 `mma`, which are 1,024 multiplications for each lane:
the tiled kernel reads 2,048 numbers for as many. A multiprocessor of an H100 reads 32 numbers a
cycle from shared memory, and multiplies 1,024 times a cycle in TF32, so here both take 32 cycles.
A block makes 64 multiplications for every number that comes from the L2 cache, which is 32 FLOPs a
byte: at 5 TB/s 160 TFLOP/s, more than the 67 of float32 arithmetic and less than the 490 of TF32.

Which banks do the lanes of a warp read? There are 32, and neighbours in memory are in neighbours of
them. A fragment of A takes the numbers (g, t) of a tile, g < 8, t < 4; with rows 32 + 4 apart they
are in banks 4 g + t, all different. One of B takes (t, g); with rows 128 + 8 apart: 8 t + g.

The sums of equation (2) of `tensor_cores` are float32; products are TF32 or, with `precise`, nearly
float32 (its equation 3).
"""

from __future__ import annotations

from functools import cache

from numba import float32

from ...arrays import Array, ceil_div
from ...cuda import Kernel, cuda
from ..tensor_cores import (
    COLUMNS,
    GROUP,
    GROUPS,
    INNER,
    OLDEST,
    ROWS,
    WARP,
    a_fragment,
    b_fragment,
    mma,
    mma_3x,
    require,
    to_tf32,
)

__all__ = ["OLDEST", "multiply"]

DOWN, ACROSS = 4, 8  # matrices of a warp, and 2 x 2 warps of a block
TILE_ROWS, TILE_COLUMNS = 2 * DOWN * ROWS, 2 * ACROSS * COLUMNS
SLICE = 32
A_STRIDE, B_STRIDE = SLICE + 4, TILE_COLUMNS + 8  # of the rows of tiles in shared memory
THREADS = 4 * WARP


@cuda.jit(device=True)
def _as_it_is(x):  # type: ignore[no-untyped-def]
    return x


@cache
def matmul_kernel(precise: bool) -> Kernel:
    """The kernel of TF32 products, or of three for each one."""
    multiply, rounded = (mma_3x, _as_it_is) if precise else (mma, to_tf32)

    @cuda.jit(fastmath=True)
    def matmul(a, b, c):  # type: ignore[no-untyped-def]
        """Make c (n, m) the product of a (n, k) and b (k, m), all float32."""
        a_tile = cuda.shared.array((TILE_ROWS, A_STRIDE), float32)
        b_tile = cuda.shared.array((SLICE, B_STRIDE), float32)
        a_own = cuda.local.array((DOWN, 4), float32)
        c_own = cuda.local.array((DOWN, ACROSS, 4), float32)

        thread = cuda.threadIdx.x
        warp = thread // WARP
        row = warp // 2 * (DOWN * ROWS)
        column = warp % 2 * (ACROSS * COLUMNS)
        first_row, first_column = cuda.blockIdx.y * TILE_ROWS, cuda.blockIdx.x * TILE_COLUMNS
        for i in range(DOWN):
            for j in range(ACROSS):
                for part in range(4):
                    c_own[i, j, part] = float32(0)

        for start in range(0, a.shape[1], SLICE):
            cuda.syncthreads()
            for place in range(thread, TILE_ROWS * SLICE, THREADS):
                i, k = place // SLICE, place % SLICE
                a_tile[i, k] = float32(0)
                if first_row + i < a.shape[0] and start + k < a.shape[1]:
                    a_tile[i, k] = rounded(a[first_row + i, start + k])
            for place in range(thread, SLICE * TILE_COLUMNS, THREADS):
                k, j = place // TILE_COLUMNS, place % TILE_COLUMNS
                b_tile[k, j] = float32(0)
                if start + k < b.shape[0] and first_column + j < b.shape[1]:
                    b_tile[k, j] = rounded(b[start + k, first_column + j])
            cuda.syncthreads()
            for k in range(0, SLICE, INNER):
                for i in range(DOWN):
                    a_own[i, 0], a_own[i, 1], a_own[i, 2], a_own[i, 3] = a_fragment(
                        a_tile, row + i * ROWS, k
                    )
                for j in range(ACROSS):
                    b0, b1 = b_fragment(b_tile, k, column + j * COLUMNS)
                    for i in range(DOWN):
                        c0, c1, c2, c3 = multiply(
                            a_own[i, 0], a_own[i, 1], a_own[i, 2], a_own[i, 3], b0, b1,
                            c_own[i, j, 0], c_own[i, j, 1], c_own[i, j, 2], c_own[i, j, 3],
                        )  # fmt: skip
                        c_own[i, j, 0], c_own[i, j, 1] = c0, c1
                        c_own[i, j, 2], c_own[i, j, 3] = c2, c3

        g, t = cuda.laneid // GROUP, cuda.laneid % GROUP
        for i in range(DOWN):
            for j in range(ACROSS):
                for part in range(4):
                    at_row = first_row + row + i * ROWS + part // 2 * GROUPS + g
                    at_column = first_column + column + j * COLUMNS + 2 * t + part % 2
                    if at_row < c.shape[0] and at_column < c.shape[1]:
                        c[at_row, at_column] = c_own[i, j, part]

    return matmul


def multiply(a: Array, b: Array, c: Array, precise: bool) -> None:
    """Equation (1) of the room, on tensor cores."""
    require(a)
    if c.size:
        blocks = ceil_div(c.shape[1], TILE_COLUMNS), ceil_div(c.shape[0], TILE_ROWS)
        matmul_kernel(precise)[blocks, THREADS](a, b, c)

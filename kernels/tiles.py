"""Tiles of 32 x 32 numbers in shared memory: their sizes, and how they are filled.

A block that multiplies matrices copies a tile of each to shared memory, waits for all its threads,
and adds up products. A warp works on a row of a tile: threadIdx.x = x is a column, threadIdx.y = y
a group of OWN rows. Where a thread makes sums of several columns, tiles lie side by side in one
that is `width` tiles wide.

    load(tile, rows, n, h, first, last, column)               rows of an array (N, H, L, D)
    load_transposed(tile, rows, n, h, first, last, column)    the same, each as a column of the tile

Both begin at row `first` and at a column. Numbers that do not exist, from row `last` or beyond D,
are zeros. `loader` makes a `load` that maps each number, or one for other blocks of threads. What
the threads of a warp have of a sum, `warp_sum` adds up in registers.

Products stay in the kernels: as functions they took up to three times the registers. So do loads
that fill two tiles in one walk, or choose between arrays; and plain ones in `linear`'s sums and the
gradients of its naive form, where `load` takes up to 22 registers more, for which a block fewer
finds room on Hopper at head dim 128. `python -m minitransformer_kernels.gpu.needs` tells.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .arrays import ceil_div, round_up
from .cuda import DeviceFunction, cuda

TILE = 32  # rows and columns of a tile; the threads of a warp
PITCH = TILE + 1  # of a transposed tile: writing down its columns meets no bank twice
OWN = 4  # rows of a tile that a thread owns
GROUPS = TILE // OWN
THREADS = TILE, GROUPS
EVERYONE = 0xFFFFFFFF  # in a warp
WIDE = 2048  # numbers of tiles side by side that are used at a time: compilers unroll that much


def wide_tile(width: int) -> tuple[int, int]:
    """Rows and columns of what is used at a time of `width` tiles side by side."""
    columns = width * TILE
    return min(TILE, WIDE // columns), columns


def block_count(rows: int) -> int:
    """How many blocks share out so many rows, a tile to each."""
    return ceil_div(rows, TILE)


def tile_count(size: int, what: str = "head dim") -> int:
    """The tiles side by side of which a kernel keeps the sums."""
    return ceil_div(round_up(size, what), TILE)


@cuda.jit(device=True)
def warp_sum(value):  # type: ignore[no-untyped-def]
    """The sum of the numbers of a warp's threads, in each of them: 2, 4, 8, 16, then 32 numbers."""
    for step in range(5):
        value += cuda.shfl_xor_sync(EVERYONE, value, 1 << step)
    return value


@cuda.jit(device=True)
def _as_it_is(x):  # type: ignore[no-untyped-def]
    return x


@cache
def loader(phi: DeviceFunction = _as_it_is, threads: tuple[int, int] = THREADS) -> Any:
    """A `load` for blocks of a shape (columns, rows), which maps each number by phi."""
    across, down = threads

    def load(tile, rows, n, h, first, last, column):  # type: ignore[no-untyped-def]
        """Rows `first` to `last` - 1 of an array (N, H, L, D), from a column on; zeros beyond."""
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        for r in range(tile.shape[0] // down):
            t = r * down + y
            for c in range(x, tile.shape[1], across):
                tile[t, c] = 0
                if first + t < last and column + c < rows.shape[3]:
                    tile[t, c] = phi(rows[n, h, first + t, column + c])

    load.__name__ = f"load_{phi.function.__name__}"  # by which tables tell kernels apart
    return cuda.jit(device=True)(load)


load = loader()


@cuda.jit(device=True)
def load_transposed(tile, rows, n, h, first, last, column):  # type: ignore[no-untyped-def]
    """As `load`; a row becomes a column of the tile, whose own rows have PITCH numbers."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    for t in range(y, TILE, GROUPS):
        tile[x, t] = 0
        if first + t < last and column + x < rows.shape[3]:
            tile[x, t] = rows[n, h, first + t, column + x]

"""85 mistakes that people make in kernels, each beside the kernel as it should be.

A kernel of `FINE` is right, and the checked mode has nothing to say about it. Each kernel of
`PLANTED` is a copy of one with a single mistake. A comment `# here` marks the line that the error
has to name. A data race is between two accesses, so there one or two lines are marked, and the
error names them in either order: which thread came first is what nobody knows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import float32, int32, int64

from minitransformer_kernels import DataRace, DivergentBarrier, OutOfBounds, UninitializedRead
from minitransformer_kernels.cuda import DeviceFunction, cuda

from .launches import Case, Cases, counts, floats, integers, ints, zeros

MARK = "# here"
ALL = 0xFFFFFFFF  # the lanes of a whole warp
Place3 = tuple[int, int, int]


class Planted(NamedTuple):
    """A launch of a kernel with a mistake, and what is to be said about it; None: anything."""

    case: Case
    error: type[Exception]
    arrays: tuple[str, ...]  # the array is one of these; none: the mistake concerns no array
    index: tuple[int, ...] | None
    at: Place3 | None  # the block
    threads: tuple[Place3, ...] | None
    inside: DeviceFunction | None  # where the mark is, if not in the kernel

    def lines(self) -> set[int]:
        """The marked lines."""
        function = (self.inside or self.case.kernel).function
        lines, first = inspect.getsourcelines(function)
        return {number for number, line in enumerate(lines, first) if MARK in line}


FINE = Cases()
PLANTED: dict[str, Planted] = {}


def planted(
    fine: Any,
    error: type[Exception],
    *arrays: str,
    index: tuple[int, ...] | None = None,
    at: Place3 | None = None,
    threads: tuple[Place3, ...] | None = None,
    inside: DeviceFunction | None = None,
    **launch: Any,
) -> Callable[[Any], Any]:
    """Record the decorated kernel: launched as `fine` is, but for the fields in `launch`."""

    def record(kernel: Any) -> Any:
        like = next(case for case in FINE.values() if case.kernel is fine)
        case = like._replace(kernel=kernel, **launch)
        PLANTED[kernel.__name__] = Planted(case, error, arrays, index, at, threads, inside)
        return kernel

    return record


# One thread, one element: the guard ---------------------------------------------------------------


@FINE.launched(2, 64, floats(100), zeros(100))
@cuda.jit
def scaled(x, out):
    """Twice each number."""
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(2) * x[i]


@planted(scaled, OutOfBounds, "x", index=(100,), at=(1, 0, 0), threads=((36, 0, 0),))
@cuda.jit
def scaled_without_guard(x, out):
    i = cuda.grid(1)
    out[i] = float32(2) * x[i]  # here


@planted(scaled, OutOfBounds, "x", index=(100,), at=(1, 0, 0), threads=((36, 0, 0),))
@cuda.jit
def scaled_with_one_too_many(x, out):
    i = cuda.grid(1)
    if i <= x.size:
        out[i] = float32(2) * x[i]  # here


@planted(scaled, OutOfBounds, "x", index=(100,), at=(1, 0, 0), threads=((36, 0, 0),))
@cuda.jit
def scaled_by_a_stride_with_one_too_many(x, out):
    for i in range(cuda.grid(1), x.size + 1, cuda.gridsize(1)):
        out[i] = float32(2) * x[i]  # here


@planted(scaled, OutOfBounds, "x", index=(100,), at=(1, 0, 0), threads=((36, 0, 0),))
@cuda.jit(fastmath=True)
def scaled_without_guard_in_fast_mode(x, out):
    i = cuda.grid(1)
    out[i] = float32(2) * x[i]  # here


@planted(
    scaled, OutOfBounds, "x", index=(50,), at=(0, 0, 0), threads=((50, 0, 0),),
    makers=(lambda rng: rng.standard_normal(100)[::2], zeros(100)),
)  # fmt: skip
@cuda.jit
def scaled_beyond_every_other_element(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = float32(2) * x[i]  # here


@planted(
    scaled, OutOfBounds, "x", index=(0,), at=(0, 0, 0), threads=((0, 0, 0),),
    makers=(floats(0), zeros(100)),
)  # fmt: skip
@cuda.jit
def scaled_without_any_numbers(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = float32(2) * x[i]  # here


@planted(scaled, OutOfBounds, "out", index=(100,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def scaled_from_the_end(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x.size - i] = float32(2) * x[i]  # here


@planted(scaled, OutOfBounds, "x", index=(-1,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def scaled_by_the_last_as_in_python(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[-1] * x[i]  # here


# Two dimensions -----------------------------------------------------------------------------------


@FINE.launched((2, 3), (8, 4), floats(11, 14), zeros(14, 11))
@cuda.jit
def transposed(a, out):
    """Rows become columns."""
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column, row] = a[row, column]


@planted(transposed, OutOfBounds, "out", index=(0, 11), at=(1, 0, 0), threads=((3, 0, 0),))
@cuda.jit
def transposed_with_indices_swapped(a, out):
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[row, column] = a[row, column]  # here


@planted(transposed, OutOfBounds, "a", index=(11, 0), at=(0, 2, 0), threads=((0, 3, 0),))
@cuda.jit
def transposed_with_guards_swapped(a, out):
    column, row = cuda.grid(2)
    if row < a.shape[1] and column < a.shape[0]:
        out[column, row] = a[row, column]  # here


@FINE.launched((2, 3), (8, 4), floats(11, 14), zeros(154))
@cuda.jit
def flattened(a, out):
    """Rows one after the other."""
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[row * a.shape[1] + column] = a[row, column]


@planted(flattened, OutOfBounds, "out", index=(154,), at=(1, 0, 0), threads=((3, 0, 0),))
@cuda.jit
def flattened_with_the_wrong_pitch(a, out):
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column * a.shape[1] + row] = a[row, column]  # here


@planted(flattened, DataRace, "out")
@cuda.jit
def flattened_with_the_number_of_rows(a, out):
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[row * a.shape[0] + column] = a[row, column]  # here


@FINE.launched((2, 2, 2), (4, 2, 2), floats(4, 4, 8), zeros(4, 4, 8))
@cuda.jit
def negated(a, out):
    """Minus each number of a volume."""
    x, y, z = cuda.grid(3)
    out[z, y, x] = -a[z, y, x]


@planted(negated, DataRace, "out", index=(0, 0, 0), at=(0, 0, 1))
@cuda.jit
def negated_with_layers_of_blocks_on_each_other(a, out):
    x, y, z = cuda.grid(3)
    out[cuda.threadIdx.z, y, x] = -a[z, y, x]  # here


@FINE.launched(2, (8, 4), floats(8, 8), zeros(8, 8))
@cuda.jit
def rolled(a, out):
    """Each row moved by one, by way of shared memory."""
    line = cuda.shared.array((4, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * 4 + y
    line[y, x] = a[row, x]
    cuda.syncthreads()
    out[row, x] = line[y, (x + 1) % 8]


@planted(rolled, DataRace, "line")
@cuda.jit
def rolled_with_one_line_for_all_rows(a, out):
    line = cuda.shared.array(8, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * 4 + y
    line[x] = a[row, x]  # here
    cuda.syncthreads()
    out[row, x] = line[(x + 1) % 8]


@planted(rolled, OutOfBounds, "line", index=(1, 0), at=(0, 0, 0), threads=((0, 1, 0),))
@cuda.jit
def rolled_with_room_for_the_first_row(a, out):
    line = cuda.shared.array((1, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * 4 + y
    line[y, x] = a[row, x]  # here
    cuda.syncthreads()
    out[row, x] = line[y, (x + 1) % 8]


# Views and slices ---------------------------------------------------------------------------------


@FINE.launched(3, 8, floats(24, 5), zeros(24))
@cuda.jit
def row_sums(a, out):
    """The sum of each row."""
    row = a[cuda.grid(1)]
    total = float32(0)
    for k in range(row.size):
        total += row[k]
    out[cuda.grid(1)] = total


@planted(row_sums, OutOfBounds, "row", "a", at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def row_sums_with_one_too_many(a, out):
    row = a[cuda.grid(1)]
    total = float32(0)
    for k in range(row.size + 1):
        total += row[k]  # here
    out[cuda.grid(1)] = total


@planted(row_sums, OutOfBounds, "a", index=(24,), at=(3, 0, 0), threads=((0, 0, 0),), grid=4)
@cuda.jit
def row_sums_below_the_last_row(a, out):
    row = a[cuda.grid(1)]  # here
    total = float32(0)
    for k in range(row.size):
        total += row[k]
    if cuda.grid(1) < out.size:
        out[cuda.grid(1)] = total


@FINE.launched(2, 16, floats(32, 3), zeros(32, 3))
@cuda.jit
def squared(a, out):
    """Each number times itself, row by row."""
    given, wanted = a[cuda.grid(1)], out[cuda.grid(1)]
    for k in range(3):
        wanted[k] = given[k] * given[k]


@planted(squared, DataRace, "wanted", "out")
@cuda.jit
def squared_into_half_of_the_rows(a, out):
    given, wanted = a[cuda.grid(1)], out[cuda.grid(1) // 2]
    for k in range(3):
        wanted[k] = given[k] * given[k]  # here


# Tiles in shared memory ---------------------------------------------------------------------------


@FINE.launched(3, 64, floats(192), zeros(192))
@cuda.jit
def mirrored(x, out):
    """Each block's numbers from back to front."""
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - t]


@planted(mirrored, DataRace, "tile")
@cuda.jit
def mirrored_without_barrier(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]  # here
    out[cuda.grid(1)] = tile[63 - t]  # here


@planted(mirrored, DataRace, "tile")
@cuda.jit
def mirrored_with_a_barrier_for_warps_only(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]  # here
    cuda.syncwarp()
    out[cuda.grid(1)] = tile[63 - t]  # here


@planted(mirrored, OutOfBounds, "tile", index=(32,), at=(0, 0, 0), threads=((32, 0, 0),))
@cuda.jit
def mirrored_in_too_small_a_tile(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]  # here
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - t]


@planted(mirrored, OutOfBounds, "tile", index=(64,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def mirrored_from_one_too_far(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[64 - t]  # here


@FINE.launched((2, 2), (8, 8), floats(16, 16), zeros(16, 16))
@cuda.jit
def transposed_by_tiles(a, out):
    """Rows become columns; the tile is padded, so that its columns lie in different banks."""
    tile = cuda.shared.array((8, 9), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = a[cuda.blockIdx.y * 8 + y, cuda.blockIdx.x * 8 + x]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 8 + y, cuda.blockIdx.y * 8 + x] = tile[x, y]


@planted(transposed_by_tiles, UninitializedRead, "tile", index=(0, 8), threads=((0, 7, 0),))
@cuda.jit
def transposed_from_the_padding(a, out):
    tile = cuda.shared.array((8, 9), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = a[cuda.blockIdx.y * 8 + y, cuda.blockIdx.x * 8 + x]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 8 + y, cuda.blockIdx.y * 8 + x] = tile[x, y + 1]  # here


@planted(transposed_by_tiles, DataRace, "out")
@cuda.jit
def transposed_within_the_first_column_of_blocks(a, out):
    tile = cuda.shared.array((8, 9), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = a[cuda.blockIdx.y * 8 + y, cuda.blockIdx.x * 8 + x]
    cuda.syncthreads()
    out[y, cuda.blockIdx.y * 8 + x] = tile[x, y]  # here


@FINE.launched(3, 32, floats(83), zeros(83))
@cuda.jit
def distances(x, out):
    """The sum of each point's distances to all others, which come tile by tile."""
    tile = cuda.shared.array(32, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    own, total = x[min(i, last)], float32(0)
    for start in range(0, x.size, 32):
        tile[t] = x[min(start + t, last)]
        cuda.syncthreads()
        for j in range(min(32, x.size - start)):
            total += abs(own - tile[j])
        cuda.syncthreads()
    if i < x.size:
        out[i] = total


@planted(distances, DataRace, "tile")
@cuda.jit
def distances_to_a_tile_not_yet_there(x, out):
    tile = cuda.shared.array(32, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    own, total = x[min(i, last)], float32(0)
    for start in range(0, x.size, 32):
        tile[t] = x[min(start + t, last)]  # here
        for j in range(min(32, x.size - start)):
            total += abs(own - tile[j])  # here
        cuda.syncthreads()
    if i < x.size:
        out[i] = total


@planted(distances, DataRace, "tile")
@cuda.jit
def distances_to_a_tile_no_longer_there(x, out):
    tile = cuda.shared.array(32, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    own, total = x[min(i, last)], float32(0)
    for start in range(0, x.size, 32):
        tile[t] = x[min(start + t, last)]  # here
        cuda.syncthreads()
        for j in range(min(32, x.size - start)):
            total += abs(own - tile[j])  # here
    if i < x.size:
        out[i] = total


@planted(distances, OutOfBounds, "x", index=(83,), at=(0, 0, 0), threads=((19, 0, 0),))
@cuda.jit
def distances_beyond_the_last_tile(x, out):
    tile = cuda.shared.array(32, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    own, total = x[min(i, last)], float32(0)
    for start in range(0, x.size, 32):
        tile[t] = x[start + t]  # here
        cuda.syncthreads()
        for j in range(min(32, x.size - start)):
            total += abs(own - tile[j])
        cuda.syncthreads()
    if i < x.size:
        out[i] = total


@cuda.jit(device=True)
def element(matrix, row, column):
    """An element of a matrix, and zero around it."""
    if row < matrix.shape[0] and column < matrix.shape[1]:
        return matrix[row, column]
    return float32(0)


@cuda.jit(device=True)
def element_of_enough_rows(matrix, row, column):
    if row < matrix.shape[0]:
        return matrix[row, column]  # here
    return float32(0)


@FINE.launched((2, 3), (8, 8), floats(22, 13), floats(13, 15), zeros(22, 15))
@cuda.jit
def product(a, b, out):
    """The product of two matrices, by tiles, the last of which are ragged."""
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = element(a, row, start + x)
        b_tile[y, x] = element(b, start + y, column)
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


@planted(
    product, OutOfBounds, "a", "matrix", index=(0, 13), at=(0, 0, 0), threads=((5, 0, 0),),
    inside=element_of_enough_rows,
)  # fmt: skip
@cuda.jit
def product_beyond_the_last_tile(a, b, out):
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = element_of_enough_rows(a, row, start + x)
        b_tile[y, x] = element(b, start + y, column)
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


@planted(product, UninitializedRead, "b_tile", index=(7, 0), at=(0, 0, 0))
@cuda.jit
def product_with_a_row_of_a_tile_missing(a, b, out):
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = element(a, row, start + x)
        if y < 7:
            b_tile[y, x] = element(b, start + y, column)
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]  # here
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


# Stencils -----------------------------------------------------------------------------------------


@FINE.launched(3, 32, floats(90), zeros(90))
@cuda.jit
def smoothed(x, out):
    """The mean of each number and its two neighbours; at the ends a number is its own neighbour."""
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
    if t == 31:
        tile[33] = x[min(i + 1, last)]
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)


@planted(smoothed, OutOfBounds, "tile", index=(33,), at=(0, 0, 0), threads=((31, 0, 0),))
@cuda.jit
def smoothed_with_half_a_halo(x, out):
    tile = cuda.shared.array(33, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
    if t == 31:
        tile[33] = x[min(i + 1, last)]  # here
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)


@planted(smoothed, OutOfBounds, "x", index=(-1,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def smoothed_beyond_the_left_edge(x, out):
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 0:
        tile[0] = x[i - 1]  # here
    if t == 31:
        tile[33] = x[min(i + 1, last)]
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)


@planted(smoothed, OutOfBounds, "x", index=(96,), at=(2, 0, 0), threads=((31, 0, 0),))
@cuda.jit
def smoothed_beyond_the_right_edge(x, out):
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
    if t == 31:
        tile[33] = x[i + 1]  # here
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)


@planted(smoothed, UninitializedRead, "tile", index=(0,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def smoothed_without_the_left_halo(x, out):
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 31:
        tile[33] = x[min(i + 1, last)]
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)  # here


@planted(smoothed, UninitializedRead, "tile", index=(27,), at=(2, 0, 0), threads=((25, 0, 0),))
@cuda.jit
def smoothed_with_a_gap_in_the_last_block(x, out):
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    if i < x.size:
        tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
    if t == 31:
        tile[33] = x[min(i + 1, last)]
    cuda.syncthreads()
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)  # here


@planted(smoothed, DataRace, "tile")
@cuda.jit
def smoothed_with_the_halo_after_the_barrier(x, out):
    tile = cuda.shared.array(34, float32)
    i, t, last = cuda.grid(1), cuda.threadIdx.x, x.size - 1
    tile[t + 1] = x[min(i, last)]
    if t == 31:
        tile[33] = x[min(i + 1, last)]
    cuda.syncthreads()
    if t == 1:
        tile[0] = x[max(i - 2, 0)]  # here
    if i < x.size:
        out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / float32(3)  # here


@FINE.launched(5, 16, floats(5, 16), zeros(5, 16))
@cuda.jit
def summed_with_the_row_above(a, out):
    """Each row plus the one above it; a block for each row."""
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if row > 0:
        out[row, t] = a[row, t] + a[row - 1, t]


@planted(summed_with_the_row_above, DataRace, "a")
@cuda.jit
def summed_with_the_row_above_in_place(a, out):
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if row > 0:
        a[row, t] = a[row, t] + a[row - 1, t]  # here


# Sums of a block ----------------------------------------------------------------------------------


@FINE.launched(3, 64, floats(150), zeros(3))
@cuda.jit
def sums(x, out):
    """The sum of each block's numbers: half of the threads add the other half, again and again."""
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, DivergentBarrier)
@cuda.jit
def sums_with_the_barrier_in_the_if(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]
            cuda.syncthreads()  # here
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, DivergentBarrier, at=(2, 0, 0))
@cuda.jit
def sums_after_an_early_return(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i >= x.size:
        return
    tile[t] = x[i]
    cuda.syncthreads()  # here
    stride = 32
    while stride > 0:
        if t < stride and i + stride < x.size:
            tile[t] += tile[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, DataRace, "tile")
@cuda.jit
def sums_without_barriers_between_the_halves(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]  # here
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, DataRace, "tile")
@cuda.jit
def sums_by_threads_that_need_not_stop(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t + stride < 64:
            tile[t] += tile[t + stride]  # here
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, UninitializedRead, "tile", index=(32,), at=(2, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def sums_beyond_what_is_there(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]  # here
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, OutOfBounds, "tile", index=(64,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def sums_from_too_large_a_stride(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 64
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]  # here
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, OutOfBounds, "tile", index=(48,), threads=((16, 0, 0),), grid=4, block=48)
@cuda.jit
def sums_of_blocks_that_do_not_halve(x, out):
    tile = cuda.shared.array(48, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]  # here
        cuda.syncthreads()
        stride //= 2
    if t == 0 and cuda.blockIdx.x < out.size:
        out[cuda.blockIdx.x] = tile[0]


@planted(sums, DataRace, "out", index=(0,), at=(1, 0, 0))
@cuda.jit
def sums_of_all_blocks_in_one_place(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[0] = tile[0]  # here


@planted(sums, DataRace, "tile", at=(0, 0, 0))
@cuda.jit
def sums_that_the_wrong_thread_hands_over(x, out):
    tile = cuda.shared.array(64, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        cuda.syncthreads()
        if t < stride:
            tile[t] += tile[t + stride]  # here
        stride //= 2
    if t == 63:
        out[cuda.blockIdx.x] = tile[0]  # here


@FINE.launched(2, 32, floats(64), zeros(2))
@cuda.jit
def totals(x, out):
    """The sum of each block's numbers, by atomics."""
    total = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total[0]


@planted(totals, UninitializedRead, "total", index=(0,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def totals_from_anything(x, out):
    total = cuda.shared.array(1, float32)
    cuda.atomic.add(total, 0, x[cuda.grid(1)])  # here
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total[0]


@planted(totals, DataRace, "total", index=(0,))
@cuda.jit
def totals_with_plain_additions(x, out):
    total = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    total[0] += x[cuda.grid(1)]  # here
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total[0]


@FINE.launched((2, 3), (8, 4), floats(12, 16), floats(16), zeros(12))
@cuda.jit
def matrix_times_vector(a, x, out):
    """A thread for each product."""
    column, row = cuda.grid(2)
    cuda.atomic.add(out, row, a[row, column] * x[column])


@planted(matrix_times_vector, DataRace, "out")
@cuda.jit
def matrix_times_vector_with_plain_additions(a, x, out):
    column, row = cuda.grid(2)
    out[row] += a[row, column] * x[column]  # here


# Warps --------------------------------------------------------------------------------------------


@FINE.launched(2, 64, floats(128), zeros(2))
@cuda.jit
def sums_by_one_warp(x, out):
    """The sum of each block's numbers; the first warp alone does the last steps."""
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        stride = 32
        while stride > 0:
            pair = tile[t] + tile[t + stride]
            cuda.syncwarp()
            tile[t] = pair
            cuda.syncwarp()
            stride //= 2
        if t == 0:
            out[cuda.blockIdx.x] = tile[0]


@planted(sums_by_one_warp, DataRace, "tile")
@cuda.jit
def sums_by_a_warp_that_is_taken_to_be_in_step(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        stride = 32
        while stride > 0:
            tile[t] += tile[t + stride]  # here
            stride //= 2
        if t == 0:
            out[cuda.blockIdx.x] = tile[0]


@planted(sums_by_one_warp, DataRace, "tile")
@cuda.jit
def sums_by_a_warp_that_waits_after_writing_only(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        stride = 32
        while stride > 0:
            tile[t] += tile[t + stride]  # here
            cuda.syncwarp()
            stride //= 2
        if t == 0:
            out[cuda.blockIdx.x] = tile[0]


@FINE.launched(2, 96, floats(192), zeros(2))
@cuda.jit
def sums_of_warps(x, out):
    """The sum of each block's numbers: shuffles within a warp, shared memory between them."""
    partial = cuda.shared.array(3, float32)
    t, total = cuda.threadIdx.x, x[cuda.grid(1)]
    stride = 16
    while stride > 0:
        total += cuda.shfl_down_sync(ALL, total, stride)
        stride //= 2
    if t % 32 == 0:
        partial[t // 32] = total
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = partial[0] + partial[1] + partial[2]


@planted(sums_of_warps, DataRace, "partial", index=(1,))
@cuda.jit
def sums_of_warps_that_do_not_wait(x, out):
    partial = cuda.shared.array(3, float32)
    t, total = cuda.threadIdx.x, x[cuda.grid(1)]
    stride = 16
    while stride > 0:
        total += cuda.shfl_down_sync(ALL, total, stride)
        stride //= 2
    if t % 32 == 0:
        partial[t // 32] = total  # here
    if t == 0:
        out[cuda.blockIdx.x] = partial[0] + partial[1] + partial[2]  # here


@planted(sums_of_warps, DataRace, "partial", index=(1,))
@cuda.jit
def sums_of_warps_that_wait_for_themselves(x, out):
    partial = cuda.shared.array(3, float32)
    t, total = cuda.threadIdx.x, x[cuda.grid(1)]
    stride = 16
    while stride > 0:
        total += cuda.shfl_down_sync(ALL, total, stride)
        stride //= 2
    if t % 32 == 0:
        partial[t // 32] = total  # here
    cuda.syncwarp()
    if t == 0:
        out[cuda.blockIdx.x] = partial[0] + partial[1] + partial[2]  # here


@FINE.launched(2, 48, integers(5, 96), counts(96))
@cuda.jit
def votes(x, out):
    """How many lanes of the warp hold the same number as this one, and one more where any is 0."""
    i = cuda.grid(1)
    number = int32(x[i])
    same = cuda.match_any_sync(cuda.activemask(), number)
    zero = cuda.ballot_sync(cuda.activemask(), number == 0)
    out[i] = cuda.popc(same) + (1 if zero != 0 else 0)


# Counting -----------------------------------------------------------------------------------------


@FINE.launched(3, 32, integers(8, 96), ints(8))
@cuda.jit
def histogram(x, counts):
    """How often each number from 0 to 7 occurs."""
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])


@planted(histogram, DataRace, "bins")
@cuda.jit
def histogram_with_plain_additions(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    bins[x[cuda.grid(1)]] += 1  # here
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])


@planted(histogram, DataRace, "bins")
@cuda.jit
def histogram_handed_over_too_early(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)  # here
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])  # here


@planted(histogram, DataRace, "bins")
@cuda.jit
def histogram_begun_too_early(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t >= 24:
        bins[t - 24] = 0  # here
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)  # here
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])


@planted(histogram, UninitializedRead, "bins")
@cuda.jit
def histogram_not_begun_at_all(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)  # here
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])


@planted(histogram, OutOfBounds, "bins", index=(8,), makers=(integers(9, 96), ints(8)))
@cuda.jit
def histogram_of_one_number_more(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)  # here
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, bins[t])


@planted(histogram, DataRace, "counts", at=(1, 0, 0))
@cuda.jit
def histogram_summed_up_by_plain_additions(x, counts):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < 8:
        counts[t] += bins[t]  # here


@FINE.launched(2, 32, floats(64), ints(1))
@cuda.jit
def counted(x, count):
    """How many numbers are positive."""
    if x[cuda.grid(1)] > 0:
        cuda.atomic.add(count, 0, 1)


@planted(counted, DataRace, "count", index=(0,))
@cuda.jit
def counted_with_plain_additions(x, count):
    if x[cuda.grid(1)] > 0:
        count[0] += 1  # here


@planted(counted, DataRace, "count", index=(0,), makers=(floats(64), lambda rng: np.full(1, 9)))
@cuda.jit
def counted_from_a_zero_that_may_come_late(x, count):
    if cuda.grid(1) == 0:
        count[0] = 0  # here
    if x[cuda.grid(1)] > 0:
        cuda.atomic.add(count, 0, 1)  # here


@planted(counted, DataRace, "count", index=(0,))
@cuda.jit
def counted_up_to_a_limit_that_is_not_kept(x, count):
    if x[cuda.grid(1)] > 0 and count[0] < 10:  # here
        cuda.atomic.add(count, 0, 1)  # here


@FINE.launched(2, 32, floats(64), ints(1))
@cuda.jit
def any_positive(x, found):
    """Whether a number is positive: all who write write the same, and so nobody loses."""
    if x[cuda.grid(1)] > 0:
        found[0] = 1


@planted(any_positive, DataRace, "found", index=(0,))
@cuda.jit
def any_positive_by_number(x, found):
    if x[cuda.grid(1)] > 0:
        found[0] = cuda.grid(1)  # here


# Running sums -------------------------------------------------------------------------------------


@FINE.launched(2, 48, floats(96), zeros(96))
@cuda.jit
def running_sums(x, out):
    """Hillis and Steele's: each adds what is 1, 2, 4, ... to its left, from one row to another."""
    rows = cuda.shared.array((2, 48), float32)
    t, now, step = cuda.threadIdx.x, 0, 1
    rows[0, t] = x[cuda.grid(1)]
    cuda.syncthreads()
    while step < 48:
        total = rows[now, t]
        if t >= step:
            total += rows[now, t - step]
        now = 1 - now
        rows[now, t] = total
        step *= 2
        cuda.syncthreads()
    out[cuda.grid(1)] = rows[now, t]


@planted(running_sums, DataRace, "row")
@cuda.jit
def running_sums_in_place(x, out):
    row = cuda.shared.array(48, float32)
    t, step = cuda.threadIdx.x, 1
    row[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    while step < 48:
        if t >= step:
            row[t] += row[t - step]  # here
        step *= 2
        cuda.syncthreads()
    out[cuda.grid(1)] = row[t]


@planted(running_sums, DataRace, "rows")
@cuda.jit
def running_sums_in_the_same_row(x, out):
    rows = cuda.shared.array((2, 48), float32)
    t, now, step = cuda.threadIdx.x, 0, 1
    rows[0, t] = x[cuda.grid(1)]
    cuda.syncthreads()
    while step < 48:
        total = rows[now, t]
        if t >= step:
            total += rows[now, t - step]  # here
        rows[now, t] = total  # here
        step *= 2
        cuda.syncthreads()
    out[cuda.grid(1)] = rows[now, t]


@planted(running_sums, UninitializedRead, "rows", index=(1, 0), at=(0, 0, 0))
@cuda.jit
def running_sums_from_the_other_row(x, out):
    rows = cuda.shared.array((2, 48), float32)
    t, now, step = cuda.threadIdx.x, 0, 1
    rows[0, t] = x[cuda.grid(1)]
    cuda.syncthreads()
    while step < 48:
        total = rows[1 - now, t]  # here
        if t >= step:
            total += rows[now, t - step]
        now = 1 - now
        rows[now, t] = total
        step *= 2
        cuda.syncthreads()
    out[cuda.grid(1)] = rows[now, t]


# Shared memory that is used again -----------------------------------------------------------------


@cuda.jit(device=True)
def total_of(value, tile):
    """The sum of the threads' values; `tile` has room for one of each."""
    tile[cuda.threadIdx.x] = value
    cuda.syncthreads()
    total = float32(0)
    for j in range(cuda.blockDim.x):
        total += tile[j]
    cuda.syncthreads()  # from here on the tile may be used for something else
    return total


@cuda.jit(device=True)
def total_of_a_hurry(value, tile):
    tile[cuda.threadIdx.x] = value  # here
    cuda.syncthreads()
    total = float32(0)
    for j in range(cuda.blockDim.x):
        total += tile[j]  # here
    return total


@FINE.launched(2, 32, floats(64), zeros(64))
@cuda.jit
def standardised(x, out):
    """Each block's numbers, with mean 0 and variance 1."""
    tile = cuda.shared.array(32, float32)
    value = x[cuda.grid(1)]
    value -= total_of(value, tile) / float32(32)
    out[cuda.grid(1)] = value / math.sqrt(total_of(value * value, tile) / float32(32))


@planted(standardised, DataRace, "tile", inside=total_of_a_hurry)
@cuda.jit
def standardised_in_a_hurry(x, out):
    tile = cuda.shared.array(32, float32)
    value = x[cuda.grid(1)]
    value -= total_of_a_hurry(value, tile) / float32(32)
    out[cuda.grid(1)] = value / math.sqrt(total_of_a_hurry(value * value, tile) / float32(32))


@FINE.launched(3, 24, floats(3, 24), zeros(3, 24))
@cuda.jit
def normalised(a, out):
    """Each row minus its first number, over its last."""
    told = cuda.shared.array(1, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        told[0] = a[row, 0]
    cuda.syncthreads()
    value = a[row, t] - told[0]
    cuda.syncthreads()
    if t == 23:
        told[0] = a[row, 23]
    cuda.syncthreads()
    out[row, t] = value / told[0]


@planted(normalised, DataRace, "told", index=(0,))
@cuda.jit
def normalised_by_a_word_still_in_use(a, out):
    told = cuda.shared.array(1, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        told[0] = a[row, 0]
    cuda.syncthreads()
    value = a[row, t] - told[0]  # here
    if t == 23:
        told[0] = a[row, 23]  # here
    cuda.syncthreads()
    out[row, t] = value / told[0]


@FINE.launched(2, 32, integers(9, 64), counts(64))
@cuda.jit
def waited(x, out):
    """How many rounds a block makes until the last of its threads has counted down to 0."""
    busy = cuda.shared.array(1, int32)
    t, left, rounds = cuda.threadIdx.x, x[cuda.grid(1)], 0
    if t == 0:
        busy[0] = 1
    cuda.syncthreads()
    while busy[0] == 1:
        cuda.syncthreads()  # all have read the flag, so it may change
        if t == 0:
            busy[0] = 0
        cuda.syncthreads()
        if left > 0:
            busy[0] = 1
        left -= 1
        rounds += 1
        cuda.syncthreads()
    out[cuda.grid(1)] = rounds


@planted(waited, DataRace, "busy", index=(0,))
@cuda.jit
def waited_for_a_flag_that_falls_too_early(x, out):
    busy = cuda.shared.array(1, int32)
    t, left, rounds = cuda.threadIdx.x, x[cuda.grid(1)], 0
    if t == 0:
        busy[0] = 1
    cuda.syncthreads()
    while busy[0] == 1:  # here
        if t == 0:
            busy[0] = 0  # here
        cuda.syncthreads()
        if left > 0:
            busy[0] = 1
        left -= 1
        rounds += 1
        cuda.syncthreads()
    out[cuda.grid(1)] = rounds


@FINE.launched(2, 32, floats(64), integers(99, 64, dtype=np.int32), zeros(64), shared_bytes=256)
@cuda.jit
def exchanged(x, keys, out):
    """Two arrays in one piece of dynamic shared memory."""
    numbers = cuda.shared.array(0, float32)[:32]
    factors = cuda.shared.array(0, int32)[32:]
    i, t = cuda.grid(1), cuda.threadIdx.x
    numbers[t] = x[i]
    factors[t] = keys[i]
    cuda.syncthreads()
    out[i] = numbers[31 - t] * float32(factors[31 - t])


@planted(
    exchanged, OutOfBounds, "factors", index=(16,), at=(0, 0, 0), threads=((16, 0, 0),),
    shared_bytes=192,
)  # fmt: skip
@cuda.jit
def exchanged_with_too_few_bytes(x, keys, out):
    numbers = cuda.shared.array(0, float32)[:32]
    factors = cuda.shared.array(0, int32)[32:]
    i, t = cuda.grid(1), cuda.threadIdx.x
    numbers[t] = x[i]
    factors[t] = keys[i]  # here
    cuda.syncthreads()
    out[i] = numbers[31 - t] * float32(factors[31 - t])


@planted(exchanged, DataRace, "numbers", "factors")
@cuda.jit
def exchanged_over_each_other(x, keys, out):
    numbers = cuda.shared.array(0, float32)[:32]
    factors = cuda.shared.array(0, int32)[16:]
    i, t = cuda.grid(1), cuda.threadIdx.x
    numbers[t] = x[i]  # here
    factors[t] = keys[i]  # here
    cuda.syncthreads()
    out[i] = numbers[31 - t] * float32(factors[31 - t])


# Local and constant arrays, records ---------------------------------------------------------------


@FINE.launched(2, 32, floats(64, 4), zeros(64))
@cuda.jit
def powers(a, out):
    """a[0] + a[1] / 2 + a[2] / 4 + a[3] / 8 for each row."""
    own = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        own[k] = a[i, k]
    total = float32(0)
    for k in range(4):
        total = total / float32(2) + own[3 - k]
    out[i] = total


@planted(powers, UninitializedRead, "own", index=(3,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def powers_of_three_of_four(a, out):
    own = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(3):
        own[k] = a[i, k]
    total = float32(0)
    for k in range(4):
        total = total / float32(2) + own[3 - k]  # here
    out[i] = total


@planted(powers, OutOfBounds, "own", index=(4,), at=(0, 0, 0), threads=((0, 0, 0),))
@cuda.jit
def powers_from_one_too_far(a, out):
    own = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        own[k] = a[i, k]
    total = float32(0)
    for k in range(4):
        total = total / float32(2) + own[4 - k]  # here
    out[i] = total


@planted(powers, UninitializedRead, "own", index=(0,), at=(1, 0, 0), threads=((31, 0, 0),))
@cuda.jit
def powers_that_the_last_thread_lacks(a, out):
    own = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        if 4 * i + k + 4 < a.size:
            own[k] = a[i, k]
    total = float32(0)
    for k in range(4):
        total = total / float32(2) + own[k]  # here
    out[i] = total


WEIGHTS = np.array([1, 2, 1], np.float32) / 4


@FINE.launched(2, 32, floats(66), zeros(64))
@cuda.jit
def filtered(x, out):
    """The mean of three neighbours, the middle one counted twice."""
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    total = float32(0)
    for k in range(3):
        total += weights[k] * x[i + k]
    out[i] = total


@planted(filtered, OutOfBounds, "weights", "WEIGHTS", index=(3,), threads=((0, 0, 0),))
@cuda.jit
def filtered_with_a_fourth_weight(x, out):
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    total = float32(0)
    for k in range(4):
        total += weights[k] * x[i + k]  # here
    out[i] = total


def particles(count: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Records with a mass and a speed."""

    def make(rng: np.random.Generator) -> np.ndarray:
        made = np.zeros(count, [("mass", np.float32), ("speed", np.float32)])
        made["mass"], made["speed"] = rng.standard_normal((2, count))
        return made

    return make


@FINE.launched(2, 32, particles(50), zeros(50))
@cuda.jit
def momenta(bodies, out):
    """Mass times speed."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = bodies[i].mass * bodies[i].speed


@planted(momenta, OutOfBounds, "bodies", index=(50,), at=(1, 0, 0), threads=((18, 0, 0),))
@cuda.jit
def momenta_without_guard(bodies, out):
    i = cuda.grid(1)
    out[i] = bodies[i].mass * bodies[i].speed  # here


@FINE.launched(2, 32, particles(50), zeros(50))
@cuda.jit
def energies(bodies, out):
    """Mass times the square of speed."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = bodies[i]["mass"] * bodies[i]["speed"] ** 2


@planted(energies, OutOfBounds, "bodies", index=(50,), at=(1, 0, 0), threads=((18, 0, 0),))
@cuda.jit
def energies_without_guard(bodies, out):
    i = cuda.grid(1)
    out[i] = bodies[i]["mass"] * bodies[i]["speed"] ** 2  # here


@FINE.launched(2, 32, particles(64), floats(64))
@cuda.jit
def accelerated(bodies, forces):
    """Every body gains speed."""
    i = cuda.grid(1)
    bodies[i].speed += forces[i]


@planted(accelerated, DataRace, "bodies")
@cuda.jit
def accelerated_in_pairs(bodies, forces):
    i = cuda.grid(1)
    bodies[i // 2].speed += forces[i]  # here


# Barriers that not all threads reach --------------------------------------------------------------


@FINE.launched(2, 32, lambda rng: rng.permutation(64) + 1, counts(64))
@cuda.jit
def halvings(x, out):
    """How often each number can be halved; a block goes on until its last thread is done."""
    left, count = x[cuda.grid(1)], 0
    while cuda.syncthreads_or(left > 1):
        if left > 1:
            left //= 2
            count += 1
    out[cuda.grid(1)] = count


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_that_end_at_different_times(x, out):
    left, count = x[cuda.grid(1)], 0
    while left > 1:
        left //= 2
        count += 1
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = count


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_that_break_off(x, out):
    left, count = x[cuda.grid(1)], 0
    while True:
        if left <= 1:
            break
        left //= 2
        count += 1
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = count


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_that_return_early(x, out):
    left = x[cuda.grid(1)]
    for count in range(7):
        if left <= 1:
            out[cuda.grid(1)] = count
            return
        left //= 2
        cuda.syncthreads()  # here


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_with_a_wait_for_each_unit(x, out):
    for _ in range(x[cuda.grid(1)]):
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = 0


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_with_a_barrier_for_each_branch(x, out):
    left, count = x[cuda.grid(1)], 0
    if left > 1:
        count = 1
        cuda.syncthreads()  # here
    else:
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = count


@planted(halvings, DivergentBarrier)
@cuda.jit
def halvings_with_a_vote_of_the_large(x, out):
    left, count = x[cuda.grid(1)], 0
    if left > 8:
        count = cuda.syncthreads_count(left > 16)  # here
    out[cuda.grid(1)] = count


@planted(halvings, DivergentBarrier, at=(1, 0, 0), makers=(
    lambda rng: np.r_[np.full(32, 9), rng.permutation(32)], counts(64)
))  # fmt: skip
@cuda.jit
def halvings_that_differ_in_the_second_block(x, out):
    left, count = x[cuda.grid(1)], 0
    while left > 1:
        left //= 2
        count += 1
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = count


# Rows of shared arrays ----------------------------------------------------------------------------


@FINE.launched(2, 8, integers(3, 16), integers(8, 16), counts(2, 8))
@cuda.jit
def counted_in_rows(x, y, out):
    """Counts of pairs, and their sums: each thread takes a row of the table."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    table = cuda.shared.array((3, 8), int64)
    for k in range(3):
        row = table[k]
        row[t] = 0
    cuda.syncthreads()
    own = table[x[i]]
    cuda.atomic.add(own, y[i], 1)
    cuda.syncthreads()
    last = table[2]
    out[cuda.blockIdx.x, t] = table[0, t] + 10 * table[1, t] + 100 * last[t]


@planted(counted_in_rows, DataRace, "own", "last")
@cuda.jit
def counted_in_rows_without_the_second_barrier(x, y, out):
    i, t = cuda.grid(1), cuda.threadIdx.x
    table = cuda.shared.array((3, 8), int64)
    for k in range(3):
        row = table[k]
        row[t] = 0
    cuda.syncthreads()
    own = table[x[i]]
    cuda.atomic.add(own, y[i], 1)  # here
    last = table[2]
    out[cuda.blockIdx.x, t] = last[t]  # here

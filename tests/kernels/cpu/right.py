"""Kernels as they should be: the checked mode has nothing to say about them.

`planted.py` makes mistakes in them.
"""

import math
from collections.abc import Callable

import numpy as np
from numba import float32, int32, int64

from minitransformer_kernels.cuda import cuda

from .launches import Cases, counts, floats, integers, ints, zeros

ALL = 0xFFFFFFFF  # the lanes of a whole warp
LAST = -1
CASES = Cases()
launched = CASES.launched


# One thread, one element: the guard ---------------------------------------------------------------


@launched(2, 64, floats(100), zeros(100))
def scaled(x, out):
    """Twice each number."""
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(2) * x[i]


# Two dimensions -----------------------------------------------------------------------------------


@launched((2, 3), (8, 4), floats(11, 14), zeros(14, 11))
def transposed(a, out):
    """Rows become columns."""
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column, row] = a[row, column]


@launched((2, 3), (8, 4), floats(11, 14), zeros(154))
def flattened(a, out):
    """Rows one after the other."""
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[row * a.shape[1] + column] = a[row, column]


@launched((2, 2, 2), (4, 2, 2), floats(4, 4, 8), zeros(4, 4, 8))
def negated(a, out):
    """Minus each number of a volume."""
    x, y, z = cuda.grid(3)
    out[z, y, x] = -a[z, y, x]


@launched(2, (8, 4), floats(8, 8), zeros(8, 8))
def rolled(a, out):
    """Each row moved by one, by way of shared memory."""
    line = cuda.shared.array((4, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * 4 + y
    line[y, x] = a[row, x]
    cuda.syncthreads()
    out[row, x] = line[y, (x + 1) % 8]


# Views and slices ---------------------------------------------------------------------------------


@launched(3, 8, floats(24, 5), zeros(24))
def row_sums(a, out):
    """The sum of each row."""
    row = a[cuda.grid(1)]
    total = float32(0)
    for k in range(row.size):
        total += row[k]
    out[cuda.grid(1)] = total


@launched(2, 16, floats(20, 3), floats(3))
def moved(a, step):
    """Every other row moves by a step."""
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        if row.size > 2 and i % 2 == 0:
            for k in range(a.shape[1]):
                row[k] += step[k]


@launched(2, 16, floats(32, 3), zeros(32))
def ends(a, out):
    """Twice the last number of each row, and the last of all: written so, -1 is the last."""
    i = cuda.grid(1)
    out[i] = float32(2) * a[i][-1] + a[-1, LAST]


@launched(2, 16, floats(32, 3))
def zeroed(a):
    """Each row becomes zeros, at once, and then ends in a one."""
    i = cuda.grid(1)
    a[i] = 0
    a[i, 2:] = 1


# Tiles in shared memory ---------------------------------------------------------------------------


@launched(3, 64, floats(192), zeros(192))
def mirrored(x, out):
    """Each block's numbers from back to front."""
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - t]


@launched((2, 2), (8, 8), floats(16, 16), zeros(16, 16))
def transposed_by_tiles(a, out):
    """Rows become columns; the tile is padded, so that its columns lie in different banks."""
    tile = cuda.shared.array((8, 9), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = a[cuda.blockIdx.y * 8 + y, cuda.blockIdx.x * 8 + x]
    cuda.syncthreads()
    out[cuda.blockIdx.x * 8 + y, cuda.blockIdx.y * 8 + x] = tile[x, y]


@launched(3, 32, floats(83), zeros(83))
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


@cuda.jit(device=True)
def element(matrix, row, column):
    """An element of a matrix, and zero around it."""
    if row < matrix.shape[0] and column < matrix.shape[1]:
        return matrix[row, column]
    return float32(0)


@launched((2, 3), (8, 8), floats(22, 13), floats(13, 15), zeros(22, 15))
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


# Stencils -----------------------------------------------------------------------------------------


@launched(3, 32, floats(90), zeros(90))
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


@launched(5, 16, floats(5, 16), zeros(5, 16))
def summed_with_the_row_above(a, out):
    """Each row plus the one above it; a block for each row."""
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if row > 0:
        out[row, t] = a[row, t] + a[row - 1, t]


# Sums of a block ----------------------------------------------------------------------------------


@launched(3, 64, floats(150), zeros(3))
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


@launched(2, 32, floats(64), zeros(2))
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


@launched(3, 32, floats(96), zeros(3), zeros(3))
def means(x, total, out):
    """The mean of each block's numbers, whose sum it begins, and reads, where all can see it."""
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        total[block] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, block, x[cuda.grid(1)])
    cuda.syncthreads()
    if t == 0:
        out[block] = total[block] / float32(32)


# Warps --------------------------------------------------------------------------------------------


@launched(2, 64, floats(128), zeros(2))
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


@launched(2, 96, floats(192), zeros(2))
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


@launched(2, 48, integers(5, 96), counts(96))
def votes(x, out):
    """How many lanes of the warp hold the same number as this one, and one more where any is 0."""
    i = cuda.grid(1)
    number = int32(x[i])
    same = cuda.match_any_sync(cuda.activemask(), number)
    zero = cuda.ballot_sync(cuda.activemask(), number == 0)
    out[i] = cuda.popc(same) + (1 if zero != 0 else 0)


# Counting -----------------------------------------------------------------------------------------


@launched(3, 32, integers(8, 96), ints(8))
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


@launched(2, 32, floats(64), ints(1))
def counted(x, count):
    """How many numbers are positive."""
    if x[cuda.grid(1)] > 0:
        cuda.atomic.add(count, 0, 1)


@launched(2, 32, floats(64), ints(1))
def any_positive(x, found):
    """Whether a number is positive: all who write write the same, and so nobody loses."""
    if x[cuda.grid(1)] > 0:
        found[0] = 1


# Running sums -------------------------------------------------------------------------------------


@launched(2, 48, floats(96), zeros(96))
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


@launched(2, 32, floats(64), zeros(64))
def standardised(x, out):
    """Each block's numbers, with mean 0 and variance 1."""
    tile = cuda.shared.array(32, float32)
    value = x[cuda.grid(1)]
    value -= total_of(value, tile) / float32(32)
    out[cuda.grid(1)] = value / math.sqrt(total_of(value * value, tile) / float32(32))


@launched(2, 32, integers(9, 64), counts(64))
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


@launched(2, 32, floats(64), integers(99, 64, dtype=np.int32), zeros(64), shared_bytes=256)
def exchanged(x, keys, out):
    """Two arrays in one piece of dynamic shared memory."""
    numbers = cuda.shared.array(0, float32)[:32]
    factors = cuda.shared.array(0, int32)[32:]
    i, t = cuda.grid(1), cuda.threadIdx.x
    numbers[t] = x[i]
    factors[t] = keys[i]
    cuda.syncthreads()
    out[i] = numbers[31 - t] * float32(factors[31 - t])


# Local and constant arrays, records ---------------------------------------------------------------


@launched(2, 32, floats(64, 4), zeros(64))
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


WEIGHTS = np.array([1, 2, 1], np.float32) / 4


@launched(2, 32, floats(66), zeros(64))
def filtered(x, out):
    """The mean of three neighbours, the middle one counted twice."""
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    total = float32(0)
    for k in range(3):
        total += weights[k] * x[i + k]
    out[i] = total


def particles(count: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Records with a mass and a speed."""

    def make(rng: np.random.Generator) -> np.ndarray:
        made = np.zeros(count, [("mass", np.float32), ("speed", np.float32)])
        made["mass"], made["speed"] = rng.standard_normal((2, count))
        return made

    return make


@launched(2, 32, particles(50), zeros(50))
def momenta(bodies, out):
    """Mass times speed."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = bodies[i].mass * bodies[i].speed


@launched(2, 32, particles(32), floats(64))
def exchanged_by_fields(bodies, numbers):
    """Two threads for each body: one writes its mass, the other its speed."""
    i = cuda.grid(1)
    if i % 2 == 0:
        bodies[i // 2]["mass"] = numbers[i]
    else:
        bodies["speed"][i // 2] = numbers[i]


@launched(2, 32, particles(50), zeros(50))
def slowed(bodies, rounds):
    """Each body that is there slows down, until it is slow; it is known by a name of its own."""
    i = cuda.grid(1)
    if i < bodies.size:
        body = bodies[i]
        while abs(body.speed) > 0.125:
            body.speed *= float32(0.5)
            rounds[i] += 1
        bodies[i].mass = body.speed


def days(count: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Days, one after the other."""
    return lambda rng: np.arange(count).astype("M8[D]")


@launched(2, 16, days(32), lambda rng: np.arange(32).astype("m8[D]"))
def put_off(dates, by):
    """Each date, later by so many days."""
    i = cuda.grid(1)
    dates[i] = dates[i] + by[i]


# Barriers that not all threads reach --------------------------------------------------------------


@launched(2, 32, lambda rng: rng.permutation(64) + 1, counts(64))
def halvings(x, out):
    """How often each number can be halved; a block goes on until its last thread is done."""
    left, count = x[cuda.grid(1)], 0
    while cuda.syncthreads_or(1 if left > 1 else 0):
        if left > 1:
            left //= 2
            count += 1
    out[cuda.grid(1)] = count


# Rows of shared arrays ----------------------------------------------------------------------------


@launched(2, 8, integers(3, 16), integers(8, 16), counts(2, 8))
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

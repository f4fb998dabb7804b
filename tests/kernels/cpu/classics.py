"""More kernels of the corpus: the ones that every course has, and every feature that they use.

Dynamic shared memory, constant tables, records, strided inputs, atomics of all kinds, tuples, bits.
"""

import math
from typing import Any

import numpy as np
from numba import float32, float64, int8, int32, int64, uint8, uint32, uint64

from minitransformer_kernels.cuda import cuda

from .launches import (
    Cases,
    Maker,
    counts,
    doubles,
    floats,
    integers,
    ints,
    read_only,
    transposed,
    unsigned,
    with_steps,
    zeros,
)

CASES = Cases()
launched = CASES.launched

# Matrices and pictures ----------------------------------------------------------------------------


@launched((2, 3), (8, 6), floats(14, 15), zeros(14, 15))
@launched((3, 5), (5, 3), floats(14, 15), zeros(14, 15))
def five_point_stencil(x, out):
    """A tile with a halo that the threads load together, walking it as one long row."""
    tile = cuda.shared.array((10, 12), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    width, height = cuda.blockDim.x + 2, cuda.blockDim.y + 2
    left, top = cuda.blockIdx.x * cuda.blockDim.x - 1, cuda.blockIdx.y * cuda.blockDim.y - 1
    for k in range(ty * cuda.blockDim.x + tx, width * height, cuda.blockDim.x * cuda.blockDim.y):
        row, column = top + k // width, left + k % width
        inside = 0 <= row < x.shape[0] and 0 <= column < x.shape[1]
        tile[k // width, k % width] = x[row, column] if inside else float32(0)
    cuda.syncthreads()
    j, i = cuda.grid(2)
    if i >= x.shape[0] or j >= x.shape[1]:
        return
    around = tile[ty, tx + 1] + tile[ty + 2, tx + 1] + tile[ty + 1, tx] + tile[ty + 1, tx + 2]
    out[i, j] = around - float32(4) * tile[ty + 1, tx + 1]


@launched((3, 2), (7, 5), counts(9, 16), 50)
def mandelbrot(out, limit):
    """Each pixel has a loop of its own length."""
    for i in range(cuda.grid(2)[1], out.shape[0], cuda.gridsize(2)[1]):
        for j in range(cuda.grid(2)[0], out.shape[1], cuda.gridsize(2)[0]):
            cx, cy = -2.0 + 3.0 * j / out.shape[1], -1.0 + 2.0 * i / out.shape[0]
            x = y = 0.0
            for turn in range(limit):
                x, y = x * x - y * y + cx, 2.0 * x * y + cy
                if x * x + y * y > 4.0:
                    out[i, j] = turn
                    break
            else:
                out[i, j] = -1


# Reductions, scans, sorting -----------------------------------------------------------------------


@launched(1, 8, integers(50, 16), counts(16))
@launched(3, 16, integers(50, 96), counts(96))
def blelloch_scan(x, out):
    """Exclusive scan of twice as many numbers as threads: up the tree, and down again."""
    tree = cuda.shared.array(32, int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    start = 2 * threads * cuda.blockIdx.x
    tree[2 * t] = x[start + 2 * t]
    tree[2 * t + 1] = x[start + 2 * t + 1]
    offset, active = 1, threads
    while active > 0:
        cuda.syncthreads()
        if t < active:
            left, right = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
            tree[right] += tree[left]
        offset *= 2
        active //= 2
    if t == 0:
        tree[2 * threads - 1] = 0
    active = 1
    while active <= threads:
        offset >>= 1
        cuda.syncthreads()
        if t < active:
            left, right = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
            tree[left], tree[right] = tree[right], tree[left] + tree[right]
        active *= 2
    cuda.syncthreads()
    out[start + 2 * t] = tree[2 * t]
    out[start + 2 * t + 1] = tree[2 * t + 1]


@launched(2, 128, floats(256), zeros(2))
@launched(3, 64, floats(192), zeros(3))
def sums_by_halves(x, out):
    """A step is left out where the block has no threads for it: as the slides on reductions do."""
    tile = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if cuda.blockDim.x >= 128:
        if t < 64:
            tile[t] += tile[t + 64]
        cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            tile[t] += tile[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


@launched(2, 16, integers(100, 32), counts(32))
@launched(1, 64, integers(100, 64), counts(64))
def bitonic_sort(x, out):
    """A barrier in a `while` in a `while`; partners swap through a tuple."""
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    size = 2
    while size <= cuda.blockDim.x:
        stride = size >> 1
        while stride > 0:
            other = t ^ stride
            if other > t:
                ascending = (t & size) == 0
                if (tile[t] > tile[other]) == ascending:
                    tile[t], tile[other] = tile[other], tile[t]
            cuda.syncthreads()
            stride >>= 1
        size <<= 1
    out[cuda.grid(1)] = tile[t]


@launched(3, 20, integers(100, 50), counts(3, 3))
def counted_at_barriers(x, out):
    """Barriers that count, and that ask whether all or any agree."""
    i = cuda.grid(1)
    value = x[i] if i < x.size else 0
    large = cuda.syncthreads_count(1 if value > 50 else 0)
    every = cuda.syncthreads_and(value + 1)
    some = cuda.syncthreads_or(1 if value == 7 else 0)
    if large > 8:
        large += 100 * cuda.syncthreads_count(value & 1)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0], out[cuda.blockIdx.x, 1] = large, every
        out[cuda.blockIdx.x, 2] = some


@launched(2, 33, floats(16), doubles(66), counts(66))
def binary_search(sorted_values, wanted, found):
    """A `while` with bounds of each thread's own, left by `return`."""
    values = cuda.local.array(16, float32)
    for k in range(16):
        values[k] = sorted_values[k] + 4 * k
    low, high = 0, 15
    i = cuda.grid(1)
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == float32(wanted[i] * 20):
            found[i] = middle
            return
        if values[middle] < wanted[i] * 20:
            low = middle + 1
        else:
            high = middle - 1
    found[i] = -low - 1


# Physics and data ---------------------------------------------------------------------------------


@cuda.jit(device=True)
def attraction(at: Any, other: Any, softening: Any = 0.25) -> Any:
    """The force of one body on another: a tuple."""
    dx, dy = other[0] - at[0], other[1] - at[1]
    squared = dx * dx + dy * dy + softening
    scale = other[2] / (squared * math.sqrt(squared))
    return dx * scale, dy * scale


@launched(3, 8, doubles(20, 3), doubles(20, 2))
def n_body(bodies, forces):
    """All pairs, through tiles; the last tile is not full, and views are passed on."""
    tile = cuda.shared.array((8, 3), float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    here = min(i, bodies.shape[0] - 1)
    fx = fy = 0.0
    for start in range(0, bodies.shape[0], cuda.blockDim.x):
        if start + t < bodies.shape[0]:
            for axis in range(3):
                tile[t, axis] = bodies[start + t, axis]
        cuda.syncthreads()
        for k in range(min(cuda.blockDim.x, bodies.shape[0] - start)):
            ax, ay = attraction(bodies[here], tile[k])
            fx, fy = fx + ax, fy + ay
        cuda.syncthreads()
    if i < bodies.shape[0]:
        forces[i, 0], forces[i, 1] = fx, fy


@launched(2, 7, lambda rng: np.array([0, 3, 3, 9, 10, 24, 24, 31]), integers(12, 31), doubles(31),
          doubles(12), doubles(7))  # fmt: skip
def sparse_matrix_with_a_thread_per_row(starts, columns, data, x, y):
    """CSR: rows of any length, some empty."""
    row = cuda.grid(1)
    if row < y.size:
        total = 0.0
        for k in range(starts[row], starts[row + 1]):
            total += data[k] * x[columns[k]]
        y[row] = total


# Records, strides, dynamic shared memory ----------------------------------------------------------

PARTICLE = np.dtype(
    [("place", np.float64, 2), ("speed", np.float32), ("alive", np.bool_), ("hits", np.int16)],
    align=True,
)


def particles(count: int) -> Maker:
    """Particles of which some live."""

    def make(rng: np.random.Generator) -> Any:
        made = np.zeros(count, PARTICLE)
        made["place"], made["speed"] = rng.standard_normal((count, 2)), rng.standard_normal(count)
        made["alive"], made["hits"] = rng.random(count) < 0.7, rng.integers(0, 9, count)
        return made

    return make


@launched(3, 7, particles(20), doubles(20), 0.5)
def moving_particles(particles, energy, step):
    """Fields of records, by attribute and by name, read and written."""
    i = cuda.grid(1)
    if i >= particles.size or not particles[i].alive:
        return
    particles[i].speed *= float32(0.5)
    particles[i]["hits"] += 1
    particle = particles[i]
    for axis in range(2):
        particle.place[axis] += step * particle.speed
    energy[i] = particles[i].place[0] + particles[i]["speed"] ** 2 + 100 * particle.hits


@launched(2, 9, with_steps(2, floats(40)), with_steps(-1, floats(20)), with_steps(2, zeros(40)))
@launched(2, 9, read_only(floats(20)), read_only(with_steps(3, floats(60))), zeros(20))
def strided_and_read_only(x, y, out):
    """Views with steps, backwards ones, and arrays that nobody may write to."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[-1 - i] + len(y)


@launched((2, 1), (4, 5), transposed(floats(6, 8)), read_only(transposed(floats(5, 6))),
          transposed(zeros(5, 8)))  # fmt: skip
def product_of_transposed(a, b, c):
    """Matrices in Fortran order, and slices of them."""
    i, j = cuda.grid(2)
    row, column = a[i], b[:, j]
    total = float32(0)
    for k in range(row.shape[0]):
        total += row[k] * column[k]
    c[i, j] = total + a[i, 1:4][2] + b[2::2, j].size


@launched(3, 10, doubles(30), integers(7, 30), doubles(30), shared_bytes=120)
@launched(5, 6, doubles(30), integers(7, 30), doubles(30), shared_bytes=200)
def two_views_of_dynamic_shared_memory(x, keys, out):
    """Floats in front, and int32 behind them, in the bytes that the launch asks for."""
    values = cuda.shared.array(0, float64)
    own_keys = cuda.shared.array(0, int32)[2 * cuda.blockDim.x :]
    t, n, i = cuda.threadIdx.x, cuda.blockDim.x, cuda.grid(1)
    values[t], own_keys[t] = x[i], keys[i]
    cuda.syncthreads()
    out[i] = values[n - 1 - t] * own_keys[(t + 1) % n] + values.size


# Atomics and bits ---------------------------------------------------------------------------------


@launched(3, 11, unsigned(50, 33), unsigned(1 << 31, 7), ints(4), floats(4), doubles(2, 2))
def every_atomic(x, words, numbers, reals, table):
    """Each atomic whose result does not depend on the order, on memory of every dtype."""
    shared = cuda.shared.array(2, uint32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 2:
        shared[t] = 3
    cuda.syncthreads()
    cuda.atomic.and_(words, 0, ~(uint32(1) << (x[i] % 32)))
    cuda.atomic.or_(words, 1, uint32(1) << (x[i] % 32))
    cuda.atomic.xor(words, 2, x[i] * x[i])
    cuda.atomic.inc(words, 3, 6)
    cuda.atomic.dec(words, 4, 20)
    cuda.atomic.add(words, 5, uint32(4000000000))
    cuda.atomic.max(words, 6, x[i] + 4000000000)
    cuda.atomic.sub(numbers, 0, int32(x[i]))
    cuda.atomic.min(numbers, 1, -int32(x[i]))
    cuda.atomic.cas(numbers, 2, 0, 9)
    cuda.atomic.compare_and_swap(numbers[3:], 0, 5)
    cuda.atomic.max(reals, 0, float32(x[i]) / float32(7))
    cuda.atomic.min(reals, 1, -float32(x[i]))
    cuda.atomic.nanmax(reals, 2, math.nan if x[i] % 2 else float32(x[i]))
    cuda.atomic.nanmin(reals, 3, math.nan if x[i] > 25 else float32(x[i]))
    cuda.atomic.max(table, (1, t % 2), x[i] / 3)
    cuda.atomic.sub(table, (0, 1), float64(x[i]))
    cuda.atomic.inc(shared, 0, 1000)
    cuda.atomic.exch(shared, 1, 8)
    cuda.threadfence_block()
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(table, (0, 0), float64(shared[0] + shared[1]))


@launched(4, 8, integers(9, 32), counts(1), counts(32))
def tickets(x, counter, order):
    """Threads draw numbers; who gets which is not told, but that each is given once."""
    ticket = cuda.atomic.add(counter, 0, 1)
    order[ticket] = 1


@launched(2, 9, unsigned(1 << 31, 18), integers(1 << 40, 18), counts(18, 9), doubles(18),
          zeros(18))  # fmt: skip
def bits_of_every_width(words, longs, out, reals, narrow):
    """Counting, reversing and finding bits depends on how wide a number is."""
    i = cuda.grid(1)
    word, long = words[i], longs[i]
    out[i, 0] = cuda.popc(word) + 100 * cuda.popc(long) + 10000 * cuda.popc(int8(-i))
    out[i, 1] = cuda.clz(word) + 100 * cuda.clz(long) + 10000 * cuda.clz(int32(i))
    out[i, 2] = cuda.ffs(word) + 100 * cuda.ffs(long << 3) + 10000 * cuda.ffs(int32(i))
    out[i, 3] = cuda.brev(word)
    out[i, 4] = int64(cuda.brev(uint64(long)) >> 1)
    out[i, 5] = cuda.selp(word % 2 == 0, i, long)
    out[i, 6] = int8(word) + 1000 * uint8(word) + int32(word >> 3)
    out[i, 7] = uint32(word * 3 + 1) ^ uint32(long)
    out[i, 8] = (long >> 5) + (word << 4) - (~word & 0xFF) - -word
    reals[i] = cuda.cbrt(float64(long)) + cuda.fma(float64(i), 0.1, 0.2)
    narrow[i] = cuda.cbrt(float32(i)) + cuda.fma(float32(i), float32(0.1), float32(0.2))


# Functions, tuples, jumps -------------------------------------------------------------------------


@cuda.jit(device=True)
def ordered(a: Any, b: Any) -> Any:
    """Two numbers in order; returns from two places."""
    if a <= b:
        return a, b
    return b, a


@cuda.jit(device=True)
def reversed_in_block(tile: Any, t: Any, n: Any, value: Any, sign: Any = 1) -> Any:
    """A device function with two barriers: the value of the block's mirrored thread."""
    tile[t] = value
    cuda.syncthreads()
    other = tile[n - 1 - t] * sign
    cuda.syncthreads()
    return other


@cuda.jit(device=True)
def total_of(values: Any, start: Any = 0) -> Any:
    """The sum of any array."""
    total = 0
    for k in range(start, len(values)):
        total += values[k]
    return total


@launched(2, 13, integers(50, 26), counts(26, 3))
def functions_with_barriers(x, out):
    """Called in loops and expressions, by position and by name."""
    tile = cuda.shared.array(13, int64)
    local = cuda.local.array(4, int64)
    t, n, i = cuda.threadIdx.x, cuda.blockDim.x, cuda.grid(1)
    low, high = ordered(x[i], reversed_in_block(tile, t, n, x[i]))
    out[i, 0] = low + 1000 * high
    value = x[i]
    for k in range(3):
        value = value + reversed_in_block(tile, t, n, value + k, sign=-1)
        local[k] = value
    local[3] = ordered(b=value, a=0)[1]
    out[i, 1] = total_of(local) + 10 * total_of(local, start=2) + total_of(x[i:], 20)
    out[i, 2] = reversed_in_block(n=n, t=t, tile=tile, value=local.shape[0] + t)


@launched(2, 10, integers(30, 20), counts(20), 12)
def jumps(x, out, n):
    """`return` from loops, `else` of loops, chained assignments, tuples of tuples."""
    i = cuda.grid(1)
    a = b = x[i]
    (c, d), e = (a % 3, b % 5), a // 4
    while c < d:
        c, d = d, c + 1
        if e == 2:
            out[i] = -1
            return
    for k in range(n):
        for m in range(k, n):
            if k * m == a:
                out[i] = 1000 * k + m
                return
            if m > d + 9:
                break
        else:
            e += 1
            continue
        e += 100
        if e > 450:
            break
    else:
        out[i] += 1
    out[i] += a + 10 * c + 100 * d + 1000 * e


@launched(2, 8, doubles(16), counts(1))
def barrier_under_run_time_conditions(x, chosen):
    """All threads decide alike, which only running shows: by shared memory, and by a table."""
    tile = cuda.shared.array(8, float64)
    pivot = cuda.shared.array(1, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    if t == 3:
        pivot[0] = x[i]
    cuda.syncthreads()
    rounds = 0
    while pivot[0] > -1 and rounds < 5:
        other = tile[7 - t]
        cuda.syncthreads()
        tile[t] += other
        if t == 0:
            pivot[0] -= 0.75
        rounds += 1
        cuda.syncthreads()
    if tile[0] + tile[1] > 0:
        cuda.syncthreads()
        x[i] = tile[(t + 1) % 8]
        if t == 0:
            cuda.atomic.add(chosen, 0, 1 + rounds)
    else:
        x[i] = rounds

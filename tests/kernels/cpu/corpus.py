"""Kernels as people write them, each with the launches that its lowering is checked at.

Barriers, shared memory and masks stand where textbooks put them; the sizes are the awkward ones.
"""

import math
from typing import Any

import numpy as np
from numba import boolean, float32, float64, int32, int64

from minitransformer_kernels.cuda import cuda

from .launches import Cases, counts, doubles, floats, integers, zeros

CASES = Cases()
launched = CASES.launched

# Elementwise kernels ------------------------------------------------------------------------------


@launched(3, 8, floats(100), floats(100), zeros(100), np.float32(1.5))
@launched(1, (1, 1), floats(9), floats(9), zeros(9), np.float32(1.5))
@cuda.jit(fastmath=True)
def saxpy_with_grid_stride(x, y, out, a):
    """A loop over the grid: any launch covers any length."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = a * x[i] + y[i]


@launched((2, 2, 3), (3, 2, 2), counts(5, 4, 6))
@launched((1, 2, 2), (33, 2, 2), counts(40, 3, 3))
def places_3d(out):
    """Every index of a three-dimensional launch."""
    x, y, z = cuda.grid(3)
    a, b, c = out.shape
    if x >= a or y >= b or z >= c:
        return
    thread = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.threadIdx.z
    block = cuda.blockIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.blockIdx.z
    sizes = cuda.blockDim.x * cuda.gridDim.x + cuda.blockDim.y * cuda.gridDim.y * cuda.gridDim.z
    out[x, y, z] = thread + 1000 * block + 1000000 * sizes


@launched(2, 16, counts(32), 2147483647)
def int32_wraps(out, large):
    """A cast to int32 keeps the lowest 32 bits, also across a barrier."""
    t = cuda.threadIdx.x
    hashed = int32(large)
    for _ in range(3):
        hashed = int32(hashed * 31 + t)
        cuda.syncthreads()
    out[cuda.grid(1)] = hashed


@launched(2, 8, floats(16), zeros(16), np.float32(1e8))
def float32_stays_float32(x, out, large):
    """Adding and taking away a large number loses digits in float32, and would not in float64."""
    i = cuda.grid(1)
    kept = x[i] * float32(3)
    cuda.syncthreads()
    kept = kept + large
    cuda.syncthreads()
    out[i] = (kept - large) * np.float32(0.5)


@launched(2, 5, floats(10), doubles(10), integers(9, 10, dtype=np.int32), doubles(10))
def mixed_dtypes(x, y, n, out):
    """Conditional expressions, comparisons in a chain, `not`, and dtypes that meet."""
    i = cuda.grid(1)
    small = -1 < x[i] <= 0.5
    big = not small and (n[i] > 3 or y[i] < 0)
    value = x[i] if big else y[i]
    value += n[i] // 2 + n[i] % 3 - (n[i] << 1) + abs(x[i]) * 2.0
    out[i] = min(value, 10.0) + max(n[i], 2) + int(small) + float(n[i])


@launched(2, 6, floats(12), floats(12))
def annotated_assignments(x: Any, out: Any) -> None:
    """Annotations and docstrings mean nothing."""
    i: int = cuda.grid(1)
    total: Any
    total = float32(0)
    """A string on its own."""
    for k in range(3):
        total += x[(i + k) % x.size]
    out[i] = total


@launched(1, 8, doubles(8), doubles(8))
def mathematics(x, out):
    """Functions of `math`."""
    i = cuda.grid(1)
    y = abs(x[i]) + math.pi
    value = math.sin(y) * math.cos(y) + math.tanh(y) - math.log(y) / math.sqrt(y)
    if math.isnan(value) or math.isinf(value):
        value = math.inf
    out[i] = (
        value + math.exp(-y) + math.pow(y, 1.5) + math.floor(y) + math.erf(y) + cuda.fma(y, y, 1)
    )


# Matrices -----------------------------------------------------------------------------------------


def tiled_matmul(tile: int, real: Any) -> Any:
    """Matrix product through shared memory."""

    @cuda.jit(fastmath=True)
    def tiled(a, b, c):
        a_tile = cuda.shared.array((tile, tile), real)
        b_tile = cuda.shared.array(shape=(tile, tile), dtype=real)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row = cuda.blockIdx.y * tile + ty
        column = cuda.blockIdx.x * tile + tx
        total = real(0)
        for start in range(0, a.shape[1], tile):
            if row < a.shape[0] and start + tx < a.shape[1]:
                a_tile[ty, tx] = a[row, start + tx]
            else:
                a_tile[ty, tx] = real(0)
            b_tile[ty, tx] = real(0)
            if start + ty < b.shape[0] and column < b.shape[1]:
                b_tile[ty, tx] = b[start + ty, column]
            cuda.syncthreads()
            for k in range(tile):
                total += a_tile[ty, k] * b_tile[k, tx]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    return tiled


launched((2, 3), (4, 4), floats(11, 9), floats(9, 7), zeros(11, 7))(tiled_matmul(4, float32))
launched((3, 4), (3, 3), doubles(11, 9), doubles(9, 7), doubles(11, 7))(tiled_matmul(3, float64))


# Reductions and scans -----------------------------------------------------------------------------


@launched(4, 8, floats(4, 21), zeros(4, 21))
@launched(4, (8, 2), floats(4, 3), zeros(4, 3))
def softmax_rows(x, out):
    """One block a row: two reductions with work shared out by a stride."""
    shared = cuda.shared.array(8, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    largest = float32(-1e30)
    for j in range(t, x.shape[1], cuda.blockDim.x):
        largest = max(largest, x[row, j])
    shared[t] = largest
    cuda.syncthreads()
    for j in range(cuda.blockDim.x):
        largest = max(largest, shared[j])
    cuda.syncthreads()
    total = float32(0)
    for j in range(t, x.shape[1], cuda.blockDim.x):
        total += math.exp(x[row, j] - largest)
    shared[t] = total
    cuda.syncthreads()
    total = float32(0)
    for j in range(cuda.blockDim.x):
        total += shared[j]
    for j in range(t, x.shape[1], cuda.blockDim.x):
        out[row, j] = math.exp(x[row, j] - largest) / total


# Device functions, closures, local arrays ---------------------------------------------------------


def polynomial(real: Any, coefficients: tuple[float, ...], start: int) -> Any:
    """Constants of every kind in a closure."""
    degree = len(coefficients)
    half = real(0.5) if real is np.float64 else np.float32(0.5)
    negate = bool(start)

    @cuda.jit
    def evaluated(x, out):
        powers = cuda.local.array(degree, real)
        i = cuda.grid(1)
        powers[0] = real(1)
        for k in range(1, degree):
            powers[k] = powers[k - 1] * x[i]
        total = real(start)
        for k in range(degree):
            total += powers[k] * real(coefficients[k])
        out[i] = -total * half if negate else total

    return evaluated


launched(2, 5, floats(10), zeros(10))(polynomial(np.float32, (1.0, -2.0, 0.5), 0))
launched(2, 6, doubles(12), doubles(12))(polynomial(np.float64, (0.5, 0.25), 3))


@launched(3, 7, integers(5, 21), counts(21))
def insertion_sort(keys, out):
    """A local array with varying indices."""
    i = cuda.grid(1)
    window = cuda.local.array(4, int64)
    for k in range(4):
        key = keys[(i + k) % keys.size]
        at = k
        while at > 0 and window[at - 1] > key:
            window[at] = window[at - 1]
            at -= 1
        window[at] = key
    out[i] = window[0] + 10 * window[1] + 100 * window[2] + 1000 * window[3]


@launched(2, (3, 2), counts(12), 3)
def local_across_barriers(out, n):
    """A local array, a flag and a count that live across barriers."""
    tile = cuda.shared.array(6, boolean)
    mine = cuda.local.array((2, 3), int32)
    t = cuda.threadIdx.x + 3 * cuda.threadIdx.y
    for a in range(2):
        for b in range(3):
            mine[a, b] = t * a + b
    flag = t % 2 == 0
    tile[t] = flag
    cuda.syncthreads()
    flag = flag or tile[5 - t]
    for k in range(n):
        cuda.syncthreads()
        mine[k % 2, k] += t + k
    total = 0
    for a in range(2):
        for b in range(3):
            total += mine[a, b] * (a + 2 * b)
    out[t + 6 * cuda.blockIdx.x] = total + 1000 * int(flag)


# Control flow -------------------------------------------------------------------------------------


@launched(3, 8, doubles(24), 0)
@launched(2, 8, doubles(16), 5)
def barrier_in_uniform_if(x, n):
    """All threads take the same branch, so it may hold a barrier."""
    tile = cuda.shared.array(8, float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    if n > 2 and cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
        x[i] = tile[7 - t]
    elif n > 0:
        x[i] = -1
    else:
        cuda.syncthreads()
        x[i] = tile[(t + 1) % 8] + n
    x[i] *= 2


@launched(2, 8, doubles(16), 7)
def barriers_in_nested_loops(x, n):
    """Uniform `while` around uniform `for` around barriers; values carried through all of them."""
    tile = cuda.shared.array(8, float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    mine, rounds = x[i], 0
    while n > 1:
        for shift in range(n % 3 + 1):
            tile[t] = mine
            cuda.syncthreads()
            mine = 0.5 * mine + 0.25 * tile[(t + shift) % 8]
            cuda.syncthreads()
            rounds += 1
        n //= 2
    x[i] = mine + rounds + n


@launched(2, 8, integers(20, 16), counts(16), 6)
def breaks_and_continues(x, out, n):
    """Leaving loops, all threads alike and each on its own."""
    i = cuda.grid(1)
    total = 0
    for k in range(10):
        if k == n:
            break
        if k % 2 == 1:
            continue
        total += x[i] * k
    for k in range(20):
        if k == x[i]:
            break
        if (k + x[i]) % 3 == 0:
            continue
        total += 1000 * k
    while True:
        total += 1
        if total % 7 == 0:
            break
    out[i] = total


@launched(2, 8, doubles(16), doubles(16), 3)
def masked_loops(x, out, n):
    """Uniform loops under varying conditions, with `else`, nested twice, and changed conditions."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    total, level = 0.0, t
    if level > 2:
        for k in range(n):
            total += x[i] * k
            level -= 3
            if t % 2 == 0:
                for m in range(k, n + 1):
                    total += m
                    level += 1
            else:
                total -= 1
                for m in range(n):
                    total -= m * k
        total += 100
    elif level == 1:
        for k in range(2 * n, 0, -2):
            total += k
    else:
        total = -1.0
    out[i] = total + 10000 * level


@launched(2, (4, 3), doubles(10, 14), doubles(2, 3))
def nested_trips(x, out):
    """Work shared out along two axes, inside a uniform loop, into a register."""
    sums = cuda.shared.array((3, 4), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for half in range(2):
        for row in range(ty + 5 * half, 5 * half + 5, cuda.blockDim.y):
            for column in range(tx, x.shape[1], cuda.blockDim.x):
                total += x[row, column] * (half + 1)
                if column % 2 == 0:
                    for _ in range(3):
                        total -= 0.125
    sums[ty, tx] = total
    cuda.syncthreads()
    if tx == 0:
        for k in range(1, 4):
            total += sums[ty, k]
        out[cuda.blockIdx.x, ty] = total


@launched(2, 8, counts(16), 2, 5)
def ranges_of_every_kind(out, low, high):
    """Empty, backwards, with a step that is known only at run time, or that differs by thread."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    total = 0
    for k in range(high, low):
        total += 1000000 + k
    for k in range(high, low, -1):
        total += k
    for k in range(0, 20, high):
        total += 10 * k
    for k in range(20, t, -low):
        total += 100 * k
    for k in range(t, 40, t + 1):
        total += 1000 * k
    for k in range(t - 3, high * 2, cuda.blockDim.x):
        total += 10000 * k
    for k in range(2 * t + low, 50, 16):
        total += k
    for k in range(0):
        total = k
    out[i] = total


@launched(2, 8, doubles(16), doubles(16))
def one_name_many_uses(x, out):
    """Names that start again: in loops, across barriers, with another dtype."""
    tile = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    k = t
    tile[k] = x[cuda.grid(1)]
    cuda.syncthreads()
    total = 0
    for k in range(8):
        total += tile[k] * k
    k = 7 - t
    v = tile[k]
    cuda.syncthreads()
    tile[t] = v + k
    for k in range(2):
        v = v + k
    cuda.syncthreads()
    for k in range(t, 8, 3):
        total += tile[k]
    v = t
    cuda.syncthreads()
    out[cuda.grid(1)] = total + v * k


@launched(3, 8, doubles(24), 3, np.float64(0.5))
def arguments_assigned(x, n, scale):
    """Arguments are variables like others, and new in each block."""
    i = cuda.grid(1)
    n = n + 1
    n *= 2
    cuda.syncthreads()
    scale = scale + cuda.threadIdx.x
    cuda.syncthreads()
    for _ in range(n):
        x[i] += scale
        scale *= -1


@launched(200, 4, counts(800), 3)
def arguments_assigned_in_many_blocks(out, n):
    """No block sees what another made of an argument."""
    n += cuda.blockIdx.x
    out[cuda.grid(1)] = n


@launched(2, 6, doubles(12), doubles(12), 2)
def definitions_that_go_stale(x, out, n):
    """Indices defined from variables that change before the index is used again."""
    t = cuda.threadIdx.x
    base = 6 * cuda.blockIdx.x
    at = base + t
    base += 1
    total = 0.0
    for step in range(3):
        mirrored = base + step - t + 4
        for k in range(n):
            total += x[at] * (k + 1)
            base += 0
        cuda.syncthreads()
        total += x[mirrored % 12]
        cuda.syncthreads()
        base = base + 1
    start = base + t
    base = 100
    for k in range(start, 30, cuda.blockDim.x):
        total += k
    out[at] = total + base


@launched(2, 4, doubles(2, 4), doubles(8))
def views_of_rows(x, out):
    """Part of an index gives a view."""
    row = x[cuda.blockIdx.x]
    t = cuda.threadIdx.x
    cuda.syncthreads()
    out[cuda.grid(1)] = row[t] + x[cuda.blockIdx.x][3 - t]

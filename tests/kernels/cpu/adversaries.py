"""Kernels written against the lowering: each breaks a rule that a hasty compiler would assume.

Many of them did. They share the form of the corpus, and its test.
"""

import enum
import math
from typing import Any

import numpy as np
from numba import float64, int64

from minitransformer_kernels.cuda import cuda

from .launches import Cases, counts, doubles, integers, zeros

CASES = Cases()
launched = CASES.launched


def complex_numbers(*shape: int) -> Any:
    """Complex normal numbers."""
    return lambda rng: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


# Names that emitted code uses too -----------------------------------------------------------------


@launched(3, 4, doubles(12), doubles(12), 7, 2)
def names_of_the_emitted_code(u, stack, block, grid_x):
    """Arguments and variables with names that the compiler would like for itself."""
    kernel = cuda.shared.array(4, float64)
    thread_x = cuda.threadIdx.x + 1
    first_block, u_, block_, numba = u[cuda.grid(1)], 10.0, 100.0, 1000.0
    kernel[thread_x - 1] = first_block
    cuda.syncthreads()
    device = kernel[4 - thread_x] + u_ * grid_x
    cuda.syncthreads()
    stack[cuda.grid(1)] = device + block_ * block + numba * thread_x


@launched(2, 4, doubles(8), doubles(8), 3)
def names_of_slots_and_masks(x, out, n):
    """Variables named as the compiler names threads, masks, slots and second definitions."""
    t = cuda.threadIdx.x
    thread_value = x[t]
    twice = thread_value + thread_value
    v, v_of, active_1, has_j, j_2, j_first = x[t], x[t] + 1, t * 1.5, t * 2.5, t + 0.5, t + 7
    cuda.syncthreads()
    total = 0.0
    if t > 1:
        for j in range(n):
            total += x[j]
    for j in range(t, 8, cuda.blockDim.x):
        total += j
    for j in range(3):
        total += x[j] * j
    total += v + 10 * v_of + 100 * active_1 + has_j + j_2 * 3 + j_first
    out[cuda.grid(1)] = total + 1000 * twice


def constants_with_such_names() -> Any:
    """Closure constants of every kind, under names that are taken."""
    BLOCK_X, kernel, u, block_, stack = 5, 3, np.float64(0.5), np.float32(-np.inf), (2, 3)
    warp_size = kernel + 2

    @cuda.jit
    def constants(out):
        tile = cuda.shared.array((stack[0], warp_size), float64)
        tile[1, kernel + 1] = 1.0
        i = cuda.grid(1)
        out[i] = BLOCK_X * cuda.blockDim.x + kernel * u + stack[1]
        if out[i] < block_:
            out[i] = 0

    return constants


launched(2, 3, doubles(6))(constants_with_such_names())


class Choice(enum.IntEnum):
    """An integer whose text is not a number."""

    LEFT = 3


def constants_of_odd_types() -> Any:
    """Constants whose `repr` is not Python text that means the same."""
    left, yes, no, huge = Choice.LEFT, np.bool_(True), False, float("inf")
    small = np.int8(-3)

    @cuda.jit
    def odd_constants(out):
        out[cuda.grid(1)] = left + (1 if yes and not no else 0) + small if huge > 1 else 9

    return odd_constants


launched(2, 3, doubles(6))(constants_of_odd_types())


@launched(1, 4, doubles(4), doubles(4))
def stack(x, out):
    """A kernel that has the name of a function of the runtime."""
    tile = cuda.shared.array(4, float64)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = tile[3 - cuda.threadIdx.x]


def scaling(scale: float) -> Any:
    """Device functions of one name whose constants, of one name, differ."""

    @cuda.jit(device=True)
    def inner(block):
        return block * scale

    @cuda.jit(device=True)
    def outer(x, u):
        return inner(x) + u * scale

    return outer


def device_functions_with_equal_names() -> Any:
    """Two of them, and a constant of that name in the kernel."""
    f, g, scale = scaling(2.0), scaling(3.0), 5.0

    @cuda.jit
    def scaled(out):
        i = cuda.grid(1)
        out[i] = f(1.0, i) + 100 * g(1.0, i) + 10000 * scale

    return scaled


launched(2, 3, doubles(6))(device_functions_with_equal_names())


# Uniform or varying? ------------------------------------------------------------------------------


@launched(2, 4, doubles(4), doubles(8))
def loop_variable_with_a_varying_life(x, out):
    """The variable of a uniform loop differs between threads elsewhere."""
    i = cuda.grid(1)
    out[i] = i
    total = 0.0
    for i in range(3):
        total += x[i]
    out[cuda.grid(1)] += total
    for k in range(3):
        k = k + cuda.threadIdx.x
        total += k
    i = cuda.grid(1)
    for i in range(i, i + 1):  # noqa: B020
        out[i] += total
    out[i] += i


@launched(1, 4, doubles(20), 9)
def loop_variable_after_its_loop(out, n):
    """Threads that share out a loop keep the last index that was theirs."""
    t = cuda.threadIdx.x
    for j in range(t, n, cuda.blockDim.x):
        out[j] = 1
    out[n + t] = j
    k = -1
    for k in range(t, n, cuda.blockDim.x):
        out[k] += k
    out[n + 4 + t] = k


@launched(1, 4, doubles(20), 12)
def bounds_that_change(out, n):
    """The bounds of a loop are what they were when it began."""
    base = 0
    start = base + cuda.threadIdx.x
    base += 6
    for j in range(start, n, cuda.blockDim.x):
        n = 0
        out[j] = base
    stop = 3
    for k in range(stop):
        stop = k
        out[15 + cuda.threadIdx.x] += stop + n


@launched(2, 3, complex_numbers(6), doubles(6))
def parts_of_complex_numbers(z, out):
    """An attribute of an element differs as the element does."""
    i = cuda.grid(1)
    v = z[i].real
    w = z[i]
    cuda.syncthreads()
    out[i] = v + w.imag


@launched(2, 4, doubles(2, 3), doubles(2), doubles(2))
def written_through_a_view(out, found, other):
    """What was stored through a view is read by the array's name. Every thread stores the same."""
    b = cuda.blockIdx.x
    row = out[b]
    row[0] = 5.0
    v = out[b, 0]
    found[b] = v
    chosen = other if b >= 0 else found
    chosen[b] = 6.0
    w = other[b]
    cuda.syncthreads()
    found[b] = v + w


@cuda.jit(device=True)
def put(array: Any, i: Any, value: Any) -> None:
    """Store a value."""
    array[i] = value


@cuda.jit(device=True)
def get(array: Any, i: Any) -> Any:
    """Load a value."""
    return array[i]


@launched(3, 2, doubles(3), doubles(3, 2), doubles(6), doubles(3))
@launched(3, 1, doubles(3), doubles(3, 2), doubles(3), doubles(3))
def memory_in_device_functions(x, y, out, z):
    """Device functions read and write arrays. Every thread stores the same."""
    tile = cuda.shared.array(2, float64)
    b = cuda.blockIdx.x
    put(x, b, 5.0 + b)
    v = x[b]
    put(y[b], 1, 7.0)
    w = y[b, 1]
    put(z, b, 9.0)
    q = z[b]
    tile[0] = v + w
    s = get(tile, 0)
    cuda.syncthreads()
    x[b] = s + q
    r = get(x, b)
    out[cuda.grid(1)] = v + 10 * w + 100 * q + 1000 * s + 10000 * r


@launched(1, 4, integers(3, 4, dtype=np.int8), doubles(9), doubles(4), integers(3, 4))
def tests_with_side_effects(x, y, out, count):
    """A condition is evaluated once, even with two loops under it, and with nothing under it."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    if cuda.atomic.add(count, t, 1) < 1:
        for k in range(3):
            out[i] += y[k]
    else:
        for k in range(4):
            out[i] -= y[k]
    if x[t]:
        for k in range(2):
            out[i] += 100 * y[k]
    if y[t] - 1:
        for k in range(2):
            out[i] += 1000 + k
    if t & 2:
        pass
    else:
        out[i] += 0.5
    cuda.syncthreads()
    if cuda.atomic.add(count, 3 - t, 10) == 3:
        return


@launched(2, 4, doubles(5), doubles(8), integers(4, 2))
def uniform_jumps_under_a_mask(x, out, lengths):
    """A loop that all threads leave alike, under a condition that they decide differently."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 3:
        for k in range(5):
            if x[k] > 0.3:
                break
            out[i] += x[k]
        for k in range(5):
            if x[k] > 0:
                continue
            out[i] += 10 * x[k]
        for k in range(4):
            if k == 2:
                break
            if t == 1:
                for m in range(3):
                    if m == k:
                        continue
                    out[i] += 100
            else:
                out[i] += 1000
        if lengths[cuda.blockIdx.x] > 1:
            for _ in range(2):
                out[i] += 10000
        else:
            out[i] -= 10000


@launched(3, 4, integers(4, 2), doubles(12))
def guarded_bounds(lengths, out):
    """No bound is read where no thread would read it: there are more blocks than lengths."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b < lengths.size and t < 3:
        for k in range(lengths[b]):
            out[4 * b + t] += k + 1
        if lengths[b] > 1:
            for _ in range(2):
                out[4 * b + t] += 10
        k = 3
        while k > lengths[b]:
            k -= 1
            out[4 * b + t] += 100


@launched(1, 4, doubles(4, 4), doubles(4))
def count_along_a_row(x, out):
    """Threads walk rows of their own, and count alike: the count may decide about a barrier."""
    tile = cuda.shared.array(4, float64)
    t, steps, total = cuda.threadIdx.x, 0, 0.0
    for e in range(x.shape[1]):
        total += x[t, e]
        steps += 1
    tile[t] = total
    if steps > 2:
        cuda.syncthreads()
        out[t] = tile[3 - t]


@launched(2, 4, doubles(8), doubles(8), 4)
def index_of_an_earlier_turn(x, out, n):
    """An index keeps the value that it got in one turn of the loop, though all threads see it."""
    t, total = cuda.threadIdx.x, 0.0
    for k in range(n):
        if k == 0:
            at = k + t
        cuda.syncthreads()
        total += x[at] * k
        cuda.syncthreads()
    out[cuda.grid(1)] = total + x[at]


# Indices ------------------------------------------------------------------------------------------


@launched(1, 4, doubles(4), doubles(4), -2)
def indices_from_the_end(x, out, shift):
    """Numba takes a negative index from the end, on CUDA as in Python."""
    tile = cuda.shared.array((2, 4), float64)
    own = cuda.local.array((2, 3), float64)
    i = cuda.threadIdx.x
    before = i - 1
    tile[0, i] = x[i]
    tile[1, i] = -x[i]
    own[0, 2] = 1.0
    own[1, 2] = own[-2, -1] + i
    for k in range(-2, 2):
        out[i] += x[k] * (k + 3)
    for k in range(3, -3, -1):
        out[i] += 10 * x[k]
    cuda.syncthreads()
    out[i] += x[-1] + x[before] + x[i + shift] + x[(i - 5) % 4] + x[(i - 5) // 2] + x[i * -1]
    out[i] += 100 * (tile[-1, -1 - i] + own[-1, -1])
    cuda.syncthreads()
    cuda.atomic.add(out, -1, 1.0)
    cuda.atomic.add(tile, (-2, i - 4), 1.0)
    cuda.syncthreads()
    out[i] += 1000 * tile[0, i]


@launched(
    1, 4, integers(200, 4, dtype=np.uint8), integers(3, 4, dtype=np.int8), doubles(300), doubles(4)
)
@cuda.jit
def narrow_indices(large, small, x, out):
    """Indices of one byte, with and without a sign."""
    t = cuda.threadIdx.x
    out[t] = x[large[t]] + 1000 * x[-small[t]]


# Arguments ----------------------------------------------------------------------------------------


@launched(2, 4, doubles(2, 4), doubles(8), True)
def arguments_that_change(x, out, flag):
    """An argument that differs between threads after a while, and one that has a view."""
    row = x[cuda.blockIdx.x]
    t = cuda.threadIdx.x
    if t > 1:
        flag = not flag
    cuda.syncthreads()
    out[cuda.grid(1)] = row[t] if flag else -row[3 - t]


@launched(1, (4, 3), doubles(4), zeros(3, 4), 4)
def counts_in_rows(x, out, n):
    """Uniform values updated in loops that rows of threads walk one after the other."""
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total, count = 0.0, 0
    for a in range(n):
        count += a
        for b in range(count):
            total += x[a] * (tx + 1) + ty + b
        twice = count * 2
        while count > 4:
            count -= 3
            total += 1
    for _ in range(twice):
        total += 1
    out[ty, tx] = total + 1000 * count


@launched(2, 3, counts(6), 2**40)
def a_name_of_two_dtypes(out, large):
    """A name holds a float for a while, and then a large integer, exactly."""
    t = cuda.threadIdx.x
    v = 0.5 * t
    cuda.syncthreads()
    out[cuda.grid(1)] += int64(2 * v)
    v = large + t
    cuda.syncthreads()
    out[cuda.grid(1)] += v * 4096 + t


@cuda.jit(device=True)
def put_in_row(array: Any, i: Any, value: Any) -> None:
    """Store through a view."""
    row = array[i]
    row[0] = value


@launched(2, 2, doubles(2, 3), doubles(2), doubles(2), doubles(4))
def views_in_device_functions(x, y, z, out):
    """A device function writes through a view, and to an array chosen by a condition."""
    b = cuda.blockIdx.x
    put_in_row(x, b, 5.0)
    v = x[b, 0]
    put(y if out.size > 1 else z, b, 6.0)
    w = y[b]
    out[cuda.grid(1)] = v + 10 * w


@launched(1, 4, doubles(24), 9)
def starts_from_another_turn(out, n):
    """The start of a shared-out loop is older than the variables that it was made from."""
    t = cuda.threadIdx.x
    for k in range(3):
        doubled = 4 * k
        if k == 0:
            start = k + t
            other = doubled + t
        for j in range(other, n, cuda.blockDim.x):
            out[j] += 1
    for j in range(start, n, cuda.blockDim.x):
        out[12 + j] += 1


@launched(1, 4, doubles(4), 7)
def bounds_from_the_shape_of_an_output(out, n):
    """The shape of an array is uniform, though the kernel writes to the array."""
    tile = cuda.shared.array((4, 2), float64)
    t = cuda.threadIdx.x
    for k in range(min(n, out.shape[0]) + len(out) + tile.shape[1]):
        tile[t, k % 2] = k + t
        cuda.syncthreads()
        out[t] += tile[3 - t, k % 2]
        cuda.syncthreads()


@launched(1, 4, doubles(40), integers(20, 16), doubles(4, 5), doubles(4), 16)
def tiles_through_a_table(x, table, y, out, n):
    """Tiles whose elements are found by way of other memory, a register, or a view."""
    tile = cuda.shared.array(4, float64)
    t = cuda.threadIdx.x
    for start in range(0, n, 4):
        tile[t] = x[table[start + t]]
        cuda.syncthreads()
        out[t] += tile[3 - t]
        cuda.syncthreads()
        place = table[start + t] // 2
        tile[t] = x[start + place + t]
        cuda.syncthreads()
        out[t] += 10 * tile[3 - t]
        cuda.syncthreads()
        for k in range(t, t + 1):
            tile[k] = x[start + k + t] + y[t][start // 4] + x[16 // (start + 4) + t]
        cuda.syncthreads()
        out[t] += 100 * tile[3 - t]
        cuda.syncthreads()


# Masks, and warp operations under them ------------------------------------------------------------


@launched(3, 6, doubles(18), doubles(18), 11)
def masks_within_masks(x, out, n):
    """The mask of a branch, made from that of the threads that are left."""
    i = cuda.grid(1)
    if i >= n:
        return
    value = x[i]
    if cuda.laneid >= 2:
        value = x[i] + 1
    else:
        value += cuda.popc(cuda.activemask())
    for _ in range(1):
        value += cuda.popc(cuda.activemask())
    out[i] = value


@launched(3, 4, doubles(12), counts(12), 9)
def trips_of_those_that_are_left(out, lanes, n):
    """Shared-out work after a return, and a warp operation behind it."""
    i = cuda.grid(1)
    if i >= 7:
        return
    for j in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        out[i] += j
    lanes[i] = cuda.popc(cuda.activemask())


@launched(1, 6, counts(6))
def tuples_in_tuples(out):
    """A name in a tuple in a tuple is assigned, and by some threads only."""
    t = cuda.threadIdx.x
    a, b, c = t, 3, 0.5
    if t % 2 == 1:
        (b, a), c = (11, b), 1.5
    cuda.syncthreads()
    out[t] = b + 100 * a + int64(10000 * c)


@launched(1, (4, 3), counts(12), 1)
@launched(2, (4, 3), counts(24), 0)
def rows_of_a_warp(out, skip):
    """The rows of a block are one warp: none leaves the turn before all have been counted."""
    t = cuda.threadIdx.x + 4 * cuda.threadIdx.y
    i = t + 12 * cuda.blockIdx.x
    turns = t % 2 + 1
    while turns > 0:
        turns -= 1
        out[i] = cuda.popc(cuda.activemask())
        if skip > 0:
            continue
        out[i] += 100 * cuda.popc(cuda.activemask())


def loops_over_items() -> Any:
    """Loops over constants, arrays, shapes and tuples, in step or not, some left early."""
    weights, table = (0.25, 0.5, 0.25), np.array([1.0, 2.0, 3.0])

    @cuda.jit
    def items(x, out):
        t = cuda.grid(1)
        total = 0.0
        for weight in weights:
            total += weight * x[t]
            cuda.syncthreads()
        for i, value in enumerate(x, 1):
            if i > t:
                break
            total += value
        else:
            total += 1000
        for a, b in zip(x, table):  # noqa: B905
            total += a * b
        for number in (t, 1, 2):
            total += number
        for size in x.shape:
            total += size
        out[t] = total

    return items


launched(2, 4, doubles(8), doubles(8))(loops_over_items())


@launched(2, 4, doubles(8), counts(8), 3)
def loops_over_items_in_step(x, out, first):
    """A barrier in a loop over iterators of iterators, and a loop over nothing."""
    t = cuda.grid(1)
    total = 0
    for i, (a, b) in enumerate(zip(x, range(first, 40, 5))):  # noqa: B905
        total += int64(a * 8) * b + i
        cuda.syncthreads()
    for _, pair in enumerate(zip(range(5, 2), x)):  # noqa: B905
        total += pair[0]
    out[t] = total + first


def code_that_nothing_runs() -> Any:
    """Warp operations and barriers under a condition that is known to be false."""
    debug, level = False, 3

    @cuda.jit
    def switched_off(out):
        t = cuda.threadIdx.x
        out[t] = t
        if debug:
            value = t + 0.5
            out[t] = cuda.shfl_sync(-1, value, 0)
            cuda.syncthreads()
            out[t] += value
        if level > 5 and t < 3:
            other = cuda.shfl_down_sync(-1, 2 * t, 1)
            cuda.syncwarp()
            out[t] += other

    return switched_off


launched(1, 12, counts(12))(code_that_nothing_runs())


# The order of evaluation --------------------------------------------------------------------------


@cuda.jit(device=True)
def ticket(counts_of: Any, i: Any, more: Any = 1) -> Any:
    """What a count was before it grew."""
    return cuda.atomic.add(counts_of, i, more)


@launched(2, 5, counts(10), counts(40), counts(10))
def what_comes_first(tickets, out, order):
    """Effects in indices, targets, operands and chains of comparisons, from left to right."""
    i = cuda.grid(1)
    out[ticket(tickets, i) + 4 * i] = tickets[i] + 5
    out[ticket(tickets, i) + 4 * i] += 7
    out[ticket(tickets, i) + 4 * i] += ticket(tickets, i)
    tickets[i] = 0
    order[i] = get(tickets, i) * 10 + ticket(tickets, i)
    order[i] += 100 * (cuda.atomic.add(tickets, i, 1) * 10 + ticket(tickets, i))
    if 4 < ticket(tickets, i) + i < ticket(tickets, i, 10) + 2 < ticket(tickets, i, 1000):
        order[i] += 100000
    out[4 * i] += tickets[i]


@launched(2, 5, counts(10))
def breaks_in_an_else(out):
    """A `break` in the `else` of an inner loop ends the outer one, and skips its `else`."""
    i = cuda.grid(1)
    for a in range(4):
        for b in range(3):
            if b == i % 5:
                break
        else:
            break
        out[i] += a
    else:
        out[i] += 100


# Threads that are not there -----------------------------------------------------------------------


@launched(2, 4, counts(8))
def what_the_others_did_meanwhile(out):
    """Threads take turns at a condition, and keep what they had from one turn to the next."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    for turn in range(4):
        if (t + turn) % 2 == 0:
            if turn < 2:
                value = 10
            value += 1
            for last in range(turn + 1):
                out[i] += value * last
        cuda.syncthreads()
    out[i] += 1000 * last


@launched(2, 4, integers(9, 2), counts(8), 7)
def asks_memory_under_a_mask(limits, out, n):
    """Each thread that is there asks for itself, and adds to a number that all have, once."""
    i, b = cuda.grid(1), cuda.blockIdx.x
    if i < n:
        value = 3
        for k in range(3):
            out[i] += k
        if limits[b] < 20:
            value += n
            out[i] += i
        out[i] += 100 * value


@launched(2, 4, counts(8), 5)
@launched(2, 4, counts(8), 0)
def a_loop_without_end_for_nobody(out, n):
    """All who come to this loop leave it; if nobody comes, nobody would."""
    i = cuda.grid(1)
    if cuda.threadIdx.x < n:
        steps = n
        while steps != 1:
            steps //= 2
            out[i] += 1


@launched(2, 70, counts(140), counts(1), 40.5)
def guards_that_are_no_end(out, count, limit):
    """A fraction is no number of threads, and an effect happens for each of them."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < limit:
        out[i] += 1
    if t < 30 and cuda.atomic.add(count, 0, 1) < 1000:
        out[i] += 10


@launched(2, 37, counts(74))
def matches_by_bits(out):
    """NaN matches itself, and 0.0 does not match -0.0."""
    t = cuda.threadIdx.x
    value = 0.0
    if t % 4 == 1:
        value = math.nan
    elif t % 4 == 2:
        value = -0.0
    out[cuda.grid(1)] = cuda.match_any_sync(0xFFFFFFFF, value)


# Views --------------------------------------------------------------------------------------------


@launched(2, 4, counts(2, 4), counts(8))
def views_in_calls(out, found):
    """What a device function reads from a view may change. Every thread stores the same."""
    b = cuda.blockIdx.x
    tile = cuda.shared.array((2, 4), int64)
    row, line = out[b], tile[1]
    out[b, 0] = tile[1, 2] = 7
    found[cuda.grid(1)] = get(row, 0) + 10 * get(line, 2)
    cuda.syncthreads()
    out[b, 0] = tile[1, 2] = 8
    found[cuda.grid(1)] += 100 * get(row, 0) + 1000 * get(line, 2)

"""Kernels of the corpus in which the lanes of a warp talk to each other.

Blocks are not whole warps, and rows not whole blocks: masks say who takes part.
"""

import math

import numpy as np
from numba import float32, float64, int32, int64

from minitransformer_kernels.cuda import cuda

from .launches import Cases, counts, doubles, floats, integers, ints, zeros

CASES = Cases()
launched = CASES.launched
FULL = 0xFFFFFFFF

# Reductions and scans -----------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(value):
    """The sum of a warp's values, in lane 0."""
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    return value


@cuda.jit(device=True)
def warp_max(value):
    """The largest of a warp's values, in all lanes."""
    for level in range(5):
        value = max(value, cuda.shfl_xor_sync(FULL, value, 16 >> level))
    return value


@cuda.jit(device=True)
def block_sum(value):
    """The sum of a block's values, in thread 0: the warps' sums, and then the sum of those."""
    sums = cuda.shared.array(32, float64)
    warp, lane = cuda.threadIdx.x // 32, cuda.laneid
    value = warp_sum(value)
    if lane == 0:
        sums[warp] = value
    cuda.syncthreads()
    value = sums[lane] if cuda.threadIdx.x < (cuda.blockDim.x + 31) // 32 else 0.0
    if warp == 0:
        value = warp_sum(value)
    cuda.syncthreads()
    return value


@launched(3, 96, doubles(1000), doubles(1))
@launched(2, 64, doubles(77), doubles(1))
@launched(5, 32, doubles(31), doubles(1))
def two_level_sum(x, out):
    """Grid stride, warps, block, atomic."""
    total = 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i]
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


@launched(2, 64, doubles(128), doubles(128), doubles(2, 2))
def dot_and_norm(x, y, out):
    """A device function with barriers, called twice."""
    i = cuda.grid(1)
    dot = block_sum(x[i] * y[i])
    norm = block_sum(x[i] * x[i])
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0] = dot
        out[cuda.blockIdx.x, 1] = math.sqrt(norm)


@launched(2, 64, floats(5, 70), zeros(5, 70))
@launched(3, (32, 3), floats(8, 33), zeros(8, 33))
def softmax_with_a_warp_per_row(x, out):
    """Rows are shared out among the warps of all blocks."""
    thread = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    warps = cuda.blockDim.x * cuda.blockDim.y // 32
    lane = cuda.laneid
    row = cuda.blockIdx.x * warps + thread // 32
    while row < x.shape[0]:
        largest = float32(-math.inf)
        for j in range(lane, x.shape[1], cuda.warpsize):
            largest = max(largest, x[row, j])
        largest = warp_max(largest)
        total = float32(0)
        for j in range(lane, x.shape[1], cuda.warpsize):
            total += math.exp(x[row, j] - largest)
        for level in range(5):
            total += cuda.shfl_xor_sync(FULL, total, 1 << level)
        for j in range(lane, x.shape[1], cuda.warpsize):
            out[row, j] = math.exp(x[row, j] - largest) / total
        row += cuda.gridDim.x * warps


@launched(2, 48, integers(100, 96), counts(96))
@launched(3, 33, integers(100, 99), counts(99))
@launched(2, (8, 6), integers(100, 96), counts(96))
def warp_scan(x, out):
    """Inclusive scan of each warp, the last of which is not whole."""
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    i = cuda.blockIdx.x * cuda.blockDim.x * cuda.blockDim.y + t
    lane = cuda.laneid
    value = x[i]
    for level in range(5):
        below = cuda.shfl_up_sync(FULL, value, 1 << level)
        if lane >= 1 << level:
            value += below
    out[i] = value


@launched(2, 128, integers(9, 256), counts(256), counts(2))
def block_scan(x, out, totals):
    """Exclusive scan of a block: of the warps, of their sums, and both together."""
    sums = cuda.shared.array(4, int64)
    t, lane, warp = cuda.threadIdx.x, cuda.laneid, cuda.threadIdx.x // 32
    value = x[cuda.grid(1)]
    scanned = value
    offset = 1
    while offset < 32:
        below = cuda.shfl_up_sync(FULL, scanned, offset)
        if lane >= offset:
            scanned += below
        offset *= 2
    if lane == 31:
        sums[warp] = scanned
    cuda.syncthreads()
    if warp == 0:
        partial = sums[lane] if lane < 4 else 0
        mask = cuda.ballot_sync(FULL, lane < 4)
        if lane < 4:
            for k in range(2):
                below = cuda.shfl_up_sync(mask, partial, 1 << k)
                if lane >= 1 << k:
                    partial += below
            sums[lane] = partial
    cuda.syncthreads()
    before = sums[warp - 1] if warp > 0 else 0
    out[cuda.grid(1)] = before + scanned - value
    if t == 127:
        totals[cuda.blockIdx.x] = before + scanned


# Votes, masks and matches -------------------------------------------------------------------------


@launched(2, 48, integers(5, 90), counts(1), counts(90))
@launched(3, 33, integers(5, 99), counts(1), counts(99))
def warp_aggregated_increment(x, counter, marked):
    """The lanes that found something add up first: one atomic a warp."""
    i = cuda.grid(1)
    if i < x.size and x[i] == 3:
        mask = cuda.activemask()
        leader = cuda.ffs(mask) - 1
        rank = cuda.popc(mask & cuda.lanemask_lt())
        if rank == 0:
            cuda.atomic.add(counter, 0, int64(cuda.popc(mask)))
        marked[i] = 1 + leader * 100 + rank


@launched(1, 96, integers(9, 90), counts(90), counts(1))
@launched(1, 40, integers(9, 40), counts(40), counts(1))
def stream_compaction(x, out, kept):
    """Keep the odd numbers, in order: a ballot finds each one's place."""
    starts = cuda.shared.array(4, int32)
    t, lane, warp = cuda.threadIdx.x, cuda.laneid, cuda.threadIdx.x // 32
    keep = t < x.size and x[t] % 2 == 1
    votes = cuda.ballot_sync(FULL, keep)
    if lane == 0:
        starts[warp] = cuda.popc(votes)
    cuda.syncthreads()
    if t == 0:
        total = 0
        for w in range((cuda.blockDim.x + 31) // 32):
            count = starts[w]
            starts[w] = total
            total += count
        kept[0] = total
    cuda.syncthreads()
    if keep:
        out[starts[warp] + cuda.popc(votes & int32(cuda.lanemask_lt()))] = x[t]


@launched(2, 33, integers(3, 66), counts(66, 6))
@launched(1, (4, 3, 4), integers(3, 48), counts(48, 6))
def votes_and_matches(x, out):
    """Every vote and match, of whole warps and of halves."""
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    i = cuda.blockIdx.x * cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z + t
    half = 0xFFFF if cuda.laneid < 16 else 0xFFFF0000
    if cuda.any_sync(FULL, x[i] > 1):
        out[i, 0] += 1
    if cuda.all_sync(half, x[i] < 2):
        out[i, 0] += 2
    if cuda.eq_sync(half, x[i] == 1):
        out[i, 0] += 4
    out[i, 1] = cuda.ballot_sync(FULL, x[i])
    out[i, 2] = cuda.match_any_sync(FULL, x[i])
    out[i, 3] = cuda.match_any_sync(half, float32(x[i]) * float32(0.5))
    same, equal = cuda.match_all_sync(half, x[i] // 3)
    out[i, 4] = same + (1 if equal else 0)
    same, equal = cuda.match_all_sync(FULL, x[i])
    out[i, 5] = same + (10 if equal else 0)


@launched(2, 40, integers(6, 80), counts(6), counts(80))
def histogram_of_matches(keys, counts_of, ranks):
    """Lanes with one key elect a leader, who adds for all of them."""
    i = cuda.grid(1)
    peers = cuda.match_any_sync(cuda.activemask(), keys[i])
    rank = cuda.popc(peers & int32(cuda.lanemask_lt()))
    if rank == 0:
        cuda.atomic.add(counts_of, keys[i], int64(cuda.popc(peers)))
    ranks[i] = rank


@launched(2, 70, integers(40, 140), counts(140, 4))
def lanes_under_conditions(x, out):
    """Warp operations in branches and loops that lanes decide differently, with their masks."""
    i = cuda.grid(1)
    key = x[i]
    odd = cuda.ballot_sync(FULL, key % 2 == 1)
    if key % 2 == 1:
        out[i, 0] = cuda.shfl_sync(odd, key, cuda.ffs(odd) - 1)
        inner = cuda.ballot_sync(odd, key > 20)
        if key > 20:
            out[i, 1] = cuda.shfl_xor_sync(inner, key, 0) + cuda.popc(inner)
        else:
            out[i, 1] = -cuda.popc(cuda.activemask())
    else:
        out[i, 0] = cuda.popc(cuda.activemask()) - cuda.popc(~odd)
    left = key % 7
    while left > 0:
        out[i, 2] += cuda.popc(cuda.activemask())
        left -= 1
        if left == 3:
            continue
        out[i, 2] += 100 * cuda.popc(cuda.activemask())
        if key > 35 and left == 1:
            break
    for k in range(key % 3, 5):
        mask = cuda.activemask()
        out[i, 3] += k * cuda.popc(mask) + (1 if cuda.all_sync(mask, k > 3) else 0)
    cuda.syncwarp()
    if key % 5 == 0:
        return
    out[i, 3] += 1000 * cuda.popc(cuda.activemask())


@launched(2, 50, integers(100, 100), counts(100, 4), doubles(100), floats(100), ints(100))
def shuffles_of_every_kind(x, out, wide, narrow, small):
    """Sources past the warp's edge and the block's end, and values of all four dtypes."""
    i, lane = cuda.grid(1), cuda.laneid
    first = cuda.shfl_sync(FULL, x[i], 0)
    past = cuda.shfl_sync(FULL, x[i], lane + 33)
    upward = cuda.shfl_up_sync(FULL, x[i], 3)
    downward = cuda.shfl_down_sync(FULL, x[i], 7)
    swapped = cuda.shfl_xor_sync(-1, x[i], 21)
    out[i, 0] = first + 1000 * past
    out[i, 1] = upward + 1000 * downward
    out[i, 2] = swapped
    out[i, 3] = cuda.shfl_sync(FULL, lane, (lane * 7 + 3) % 18)
    wide[i] = cuda.shfl_down_sync(FULL, wide[i] + x[i] / 3, 1)
    narrow[i] = cuda.shfl_up_sync(FULL, narrow[i] * float32(x[i]), 1)
    small[i] = cuda.shfl_xor_sync(FULL, int32(x[i]), 1)


@launched(2, 50, integers(100, 100), counts(100, 6))
@launched(1, (7, 11), integers(100, 77), counts(77, 6))
def several_in_a_row(x, out):
    """Those that send what they had before can meet once; some send what another took."""
    tile = cuda.shared.array((2, 100), int64)
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    i = cuda.blockIdx.x * cuda.blockDim.x * cuda.blockDim.y + t
    value = x[i]
    above = cuda.shfl_down_sync(FULL, value, 1)
    below = cuda.shfl_up_sync(FULL, 3 * value, 2)
    both = cuda.shfl_xor_sync(FULL, above + below, 5)
    out[i, 0], out[i, 1], out[i, 2] = above, below, both
    value = cuda.shfl_xor_sync(FULL, value, 1)
    out[i, 3] = cuda.shfl_xor_sync(FULL, value, 1)
    for k in range(2):
        tile[k, t] = value + k
        cuda.syncwarp()
        beside = cuda.shfl_xor_sync(FULL, value, 1)
        written = cuda.shfl_xor_sync(FULL, tile[k, t - t % 32], 3)
        out[i, 4 + k] = beside + 1000 * written


@launched(1, 40, floats(40), ints(40))
def bits_of_what_others_sent(x, out):
    """A method of the value of a device function with warp operations in it."""
    out[cuda.threadIdx.x] = np.float32(warp_max(x[cuda.threadIdx.x])).view(np.int32)


# Matrices, sorting, random numbers ----------------------------------------------------------------


@launched(4, (32, 2), floats(7, 45), floats(45), zeros(7))
def matrix_times_vector(a, x, y):
    """A warp a row, the rows along y."""
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row >= y.size:
        return
    total = float32(0)
    for j in range(cuda.threadIdx.x, x.size, 32):
        total += a[row, j] * x[j]
    total = warp_sum(total)
    if cuda.threadIdx.x == 0:
        y[row] = total


@launched(1, 64, integers(16, 64), counts(64))
@launched(1, 96, integers(16, 96), counts(96))
def radix_sort(keys, out):
    """Four passes over a bit each: zeros go to the front, ones behind them, in order."""
    current = cuda.shared.array(96, int64)
    zeros_before = cuda.shared.array(3, int32)
    t, lane, warp = cuda.threadIdx.x, cuda.laneid, cuda.threadIdx.x // 32
    current[t] = keys[t]
    cuda.syncthreads()
    for bit in range(4):
        key = current[t]
        one = (key >> bit) & 1
        ones = cuda.ballot_sync(FULL, one)
        all_zeros = cuda.syncthreads_count(1 - one)
        if lane == 0:
            zeros_before[warp] = 32 - cuda.popc(ones)
        cuda.syncthreads()
        front = 0
        for w in range(warp):
            front += zeros_before[w]
        below = int32(cuda.lanemask_lt())
        front += cuda.popc(~ones & below)
        place = all_zeros + t - front if one else front
        current[place] = key
        cuda.syncthreads()
    out[t] = current[t]


@launched(2, 40, integers(50, 80), counts(80))
def lanes_that_left(x, out):
    """Some threads leave at the top, and the rest of the warp goes on."""
    i = cuda.grid(1)
    if x[i] < 20:
        return
    mask = cuda.activemask()
    total = x[i]
    for level in range(5):
        other = cuda.shfl_xor_sync(mask, total, 1 << level)
        if mask >> (cuda.laneid ^ (1 << level)) & 1:  # else nobody sent it
            total = max(total, other)
    out[i] = total + 1000 * cuda.popc(mask)


@cuda.jit(device=True)
def broadcast_if(value, wanted, mask):
    """A device function that waits in a branch, and returns from two places."""
    if wanted:
        return cuda.shfl_sync(mask, value, cuda.ffs(mask) - 1)
    return -value


@launched(2, 44, integers(9, 88), counts(88, 2))
def device_functions_under_conditions(x, out):
    """Calls with warp operations in them stand in branches, loops and conditions."""
    i = cuda.grid(1)
    value = x[i]
    wanted = value > 4
    mask = cuda.ballot_sync(FULL, wanted)
    out[i, 0] = broadcast_if(value, wanted, mask)
    for k in range(2):
        if broadcast_if(value, wanted, mask) > k:
            out[i, 1] += broadcast_if(value + k, wanted=wanted, mask=mask)

r"""Linear attention with relative positions (S0; Shaw et al. 2018), in linear time.

Query i stands at position p_i = i + query_offset, key j at position j. A learned embedding e_r
belongs to each distance r from -k to k, and what is farther counts as being at the end:

    r(i, j) = clip(j - p_i, -k, k)                                                             (1)
    F_ir = f(u_i . e_r)                        s_ij = w_ij F_i,r(i,j)                          (2)
    o_i  = (n_i + n'_i) / guard(d_i + d'_i)    n'_i = sum_j s_ij v_j     d'_i = sum_j s_ij     (3)

where n_i and d_i are the sums of linear attention (`kernelized`), w_ij = 1 where query i sees key
j, else 0, and u_i is phi(Q_i), or Q_i itself. (S0 prints clip(i - j) and Q_i; its code has j - i,
as Shaw has, and phi(Q_i).) The map f makes weights of scores. Both positive ones keep the
denominator off zero; with the literal "identity" of S0 it can have any sign and needs the signed
guard. Each has a slope that its value tells, so that F is all that backward has to keep:

    softplus    f(b) = log(1 + exp(b))         f' = 1 - exp(-f)                                (4)
    exp         f(b) = exp(min(b, 60))         f' = f, and 0 from exp(60) on                   (5)
    identity    f(b) = b                       f' = 1                                          (6)

The cap in (5) keeps all sums and gradients finite in float32, which ends at exp(88).

**Linear time.** The matrix s has Lq x Lk numbers, but row i only 2k + 1 different ones: it is
enough to know the *sums* of the values at both ends. (So f may be any map. It need not split into
features of the query and of the key, as the scores of linear attention do.) Take a tile of queries
at the positions p to p'. All of its queries see the keys j <= p - k at distance -k, and the keys
j >= p' + k at distance k. Between lie the near keys, 2k + 32 or so for any length:

    n'_i = F_i,-k A + sum_{near j} s_ij v_j + F_i,k C                                          (7)
    A = sum of v_j before the near keys        C = sum of v_j after them                       (8)

d'_i is the same with 1 for v_j: A and C become counts. A and C are kept where tiles of keys begin,
(L / 32) x M numbers; F takes L (2k + 1), and only the distances that occur. A causal query sees no
key after itself, so C is missing and r <= 0. With k = 0 all keys are at one distance, and (7) still
counts each once: before, near or after.

**Backward.** With gn_i and gd_i, the gradients of numerator and denominator (`guards`), linear
attention's own gradients come from `kernelized`. For the rest, each weight gets

    ds_ij = w_ij (gn_i . v_j + gd_i)           dF_ir = sum_{r(i,j) = r} ds_ij                  (9)
    dF_i,-k gets gn_i . A + gd_i |A|           dF_i,k gets gn_i . C + gd_i |C|                (10)
    dB_ir = dF_ir f'                           (|A|: the number of keys in the sum A)         (11)
    du_i = sum_r dB_ir e_r                     de_r = sum_i dB_ir u_i                         (12)
    dv_j = sum_{near i} s_ij gn_i + sum_{i after} F_i,-k gn_i + sum_{i before} F_i,k gn_i     (13)

(13) is (7) with queries and keys exchanged: its far sums run over queries.

**Decoding.** A causal sequence goes on from S and Z of linear attention and a window: the last k
values, and the sum of those that have fallen out of it, which are at distance -k for ever. That is
E M + E + (k + 1) M numbers for a head, however long the past was:

    tail' = tail + the value that falls out    recent' = the last k values                    (14)

A sequence that starts from such a state has keys at positions -k to -1, too, and A starts with the
tail. Nothing else changes; all of it has gradients but `length`, which tells how many keys there
were: no more of `recent` is real, and all beyond k are in the tail.

The kernels in this file:

    _score_kernel               (1), (2): F, a row for each query
    _tile_sum_kernel            the sum of the values of each tile
    _running_sum_kernel         (8), from those: where each tile begins
    _forward_kernel             (7), (3); a block owns a tile of queries, walks the near keys
    _score_gradient_kernel      (9)-(11); the same walk, and the sums of F gn that (13) needs
    _query_gradient_kernel      (12), du, added to the other gradient of the query
    _embedding_gradient_kernel  (12), de; a block owns a tile of distances, walks the queries
    _value_gradient_kernel      (13); a block owns a tile of keys, walks the near queries
    _state_kernel               (14) for a whole sequence
    _step_kernel                everything for one token

"Naive" is the same with every key near: the quadratic form, tile by tile. Threads work as in
`linear`: on tiles of 32 x 32 numbers, threadIdx.x = x a column and threadIdx.y = y a group of OWN
rows. Every sum has one owner and a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from . import kernelized
from .arrays import (
    HEAD_DIMS,
    Array,
    array_module,
    ceil_div,
    contiguous,
    enough_blocks,
    kernel_dtype,
    round_up,
    spans,
)
from .cuda import DeviceFunction, Kernel, cuda
from .feature_maps import feature_map as get_feature_map
from .guards import eps_or_default, normaliser_gradients
from .guards import guard as get_guard
from .linear import (
    ENOUGH_BLOCKS,
    FEWEST_ROWS,
    GROUPS,
    OWN,
    PITCH,
    THREADS,
    TILE,
    block_count,
    elementwise_features,
    tile_count,
    wide_tile,
)
from .recurrent import LinearState

FAR = 1 << 40  # farther than any key
CAP = 60.0  # of the scores that exp maps: in float32 e^60 leaves room for sums, and for 1 / e^60
MAX_COLUMNS = 64  # of the values, per block of a step


class RelativeState(NamedTuple):
    """What a causal sequence leaves behind; for the table of an attention with distances up to k.

    S `(N, H, E, M)` and Z `(N, H, E)` are those of `LinearState`; `tail` `(N, H, M)` is the sum of
    all values but the last k, `recent` `(N, H, k, M)` the last k values, the newest at the end,
    zeros where there were fewer; `length` `(N,)` int64 counts the keys.
    """

    S: Array
    Z: Array
    tail: Array
    recent: Array
    length: Array


class ScoreMap(NamedTuple):
    """What makes a weight of a score, and its slope as a function of that weight."""

    value: DeviceFunction
    slope: DeviceFunction


def _softplus(real: Any) -> ScoreMap:
    @cuda.jit(device=True)
    def softplus(b):  # type: ignore[no-untyped-def]
        return max(b, real(0)) + math.log1p(math.exp(-abs(b)))  # (4), without overflow

    @cuda.jit(device=True)
    def softplus_slope(f):  # type: ignore[no-untyped-def]
        return -math.expm1(-f)  # (4)

    return ScoreMap(softplus, softplus_slope)


def _exp(real: Any) -> ScoreMap:
    highest = real(math.exp(CAP))

    @cuda.jit(device=True)
    def exp(b):  # type: ignore[no-untyped-def]
        return math.exp(b) if b < real(CAP) else highest  # (5)

    @cuda.jit(device=True)
    def exp_slope(f):  # type: ignore[no-untyped-def]
        return f if f < highest else real(0)  # (5)

    return ScoreMap(exp, exp_slope)


def _identity(real: Any) -> ScoreMap:
    @cuda.jit(device=True)
    def identity(b):  # type: ignore[no-untyped-def]
        return b

    @cuda.jit(device=True)
    def one(f):  # type: ignore[no-untyped-def]
        return real(1)  # (6)

    return ScoreMap(identity, one)


SCORE_MAPS: dict[str, Callable[[Any], ScoreMap]] = {
    "softplus": _softplus,
    "exp": _exp,
    "identity": _identity,
}


@cache
def score_map(name: str, real: Any) -> ScoreMap:
    """The score map of a name, for numbers of Numba's type `real` (float32 or float64).

    Raises:
        ValueError: there is no such score map.
    """
    if name not in SCORE_MAPS:
        raise ValueError(f"score_map must be one of {sorted(SCORE_MAPS)}, got {name!r}")
    return SCORE_MAPS[name](real)


@cuda.jit(device=True)
def _between(x, low, high):  # type: ignore[no-untyped-def]
    return min(max(x, low), high)


@cuda.jit(device=True)
def _first_tile(row, first, end):  # type: ignore[no-untyped-def]
    """The tile that a row is in, for tiles that begin at row `first`; `end` is after the last."""
    return _between(row - first, 0, end - first) // TILE


@cuda.jit(device=True)
def _end_tile(row, first, end):  # type: ignore[no-untyped-def]
    """The first tile that has no row before this one."""
    return (_between(row - first, 0, end - first) + TILE - 1) // TILE


@cache
def _score_kernel(real: Any, map_name: str) -> Kernel:
    f = score_map(map_name, real).value

    @cuda.jit(fastmath=True)
    def scores(u, embedding, queries, F):  # type: ignore[no-untyped-def]
        """Rows u (N, H, Lq, E), embedding (H, R, E); F (N, H, Lq, R) is written to."""
        u_tile = cuda.shared.array((TILE, TILE), real)
        e_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        b_own = cuda.local.array(OWN, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last, room = queries[n, 0], queries[n, 1], queries[n, 2], queries[n, 3]
        first = cuda.blockIdx.x * TILE
        R, E = embedding.shape[1], embedding.shape[2]

        for c in range(0, R, TILE):
            for r in range(OWN):
                b_own[r] = real(0)
            for e in range(0, E, TILE):
                for t in range(y, TILE, GROUPS):
                    u_tile[t, x] = real(0)
                    if first + t < last and e + x < E:
                        u_tile[t, x] = u[b, h, row + first + t, e + x]
                    e_value = real(0)
                    if c + t < R and e + x < E:
                        e_value = embedding[h, c + t, e + x]
                    e_tile[x, t] = e_value
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        b_own[r] += u_tile[y * OWN + r, s] * e_tile[s, x]  # (2)
                cuda.syncthreads()
            for r in range(OWN):
                i = first + y * OWN + r
                if i < room and c + x < R:
                    F[b, h, row + i, c + x] = f(b_own[r]) if i < last else real(0)  # (2)

    return scores


@cache
def _tile_sum_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def tile_sums(value, recent, past, keys, sums):  # type: ignore[no-untyped-def]
        """Sums (N, H, tiles, M) is written to; the tiles begin with the window of the state."""
        shares = cuda.shared.array((GROUPS, TILE), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = keys[n, 0], keys[n, 1], keys[n, 2]
        start = cuda.blockIdx.x * TILE - recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        M = value.shape[3]

        for first_m in range(0, M, TILE):
            m = first_m + x
            total = real(0)
            for r in range(OWN):
                j = start + y * OWN + r
                if 0 <= j < last and m < M:
                    total += value[b, h, row + j, m]
                elif oldest <= j < 0 and m < M:
                    total += recent[n, h, recent.shape[2] + j, m]
            shares[y, x] = total
            cuda.syncthreads()
            if y == 0 and m < M:
                total = real(0)
                for group in range(GROUPS):
                    total += shares[group, x]
                sums[n, h, cuda.blockIdx.x, m] = total
            cuda.syncthreads()

    return tile_sums


@cache
def _running_sum_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def running_sums(sums, start, way, result):  # type: ignore[no-untyped-def]
        """Where each tile begins, `start` (N, H, M) and the sums of all tiles before.

        With `way` = -1, of all tiles from there on. Result (N, H, tiles + 1, M) is written to.
        """
        m = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        tiles = sums.shape[2]
        if m < sums.shape[3]:
            total = start[n, h, m]
            for t in range(tiles):
                place = t if way > 0 else tiles - t
                result[n, h, place, m] = total
                total += sums[n, h, t if way > 0 else tiles - 1 - t, m]
            result[n, h, tiles if way > 0 else 0, m] = total

    return running_sums


@cache
def _forward_kernel(width: int, real: Any, guard_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        numerator, others, F, value, recent, past, before, after, queries, keys, low, below, above,
        offset, causal, eps, output, denominator,
    ):  # fmt: skip
        """Numerator (N, H, Lq, M) and others (N, H, Lq) are n and d of linear attention.

        F is (N, H, Lq, R), value (N, H, Lk, M); before and after (N, H, tiles + 1, M) are A and C
        where tiles of keys begin. The last two are written to.
        """
        f_tile = cuda.shared.array((TILE, TILE), real)
        v_tile = cuda.shared.array((rows, columns), real)
        d_own = cuda.local.array(OWN, real)  # of the keys that this thread has met
        n_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last, room = queries[n, 0], queries[n, 1], queries[n, 2], queries[n, 3]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE
        R, M = F.shape[3], value.shape[3]
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        begin = _first_tile(first + offset + below, start_of_tiles, last_key)
        p_end = min(first + TILE, last) - 1 + offset + above
        end = _end_tile(p_end, start_of_tiles, last_key)

        for r in range(OWN):
            d_own[r] = real(0)
            for m in range(width):
                n_own[m, r] = real(0)

        for tile in range(begin, end):
            start = start_of_tiles + tile * TILE
            for r in range(OWN):
                i, j = first + y * OWN + r, start + x
                distance = j - i - offset
                weight = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    weight = F[b, h, row + i, _between(distance - low, 0, R - 1)]  # (2)
                f_tile[y * OWN + r, x] = weight
                d_own[r] += weight  # (3)
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    j = start + s + t
                    for m in range(x, columns, TILE):
                        v_tile[t, m] = real(0)
                        if 0 <= j < last_key and m < M:
                            v_tile[t, m] = value[b_key, h, key_row + j, m]
                        elif oldest <= j < 0 and m < M:
                            v_tile[t, m] = recent[n, h, recent.shape[2] + j, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            weight = f_tile[y * OWN + r, s + t]
                            n_own[m, r] += weight * v_tile[t, m * TILE + x]  # (7)
                cuda.syncthreads()

        for r in range(OWN):
            f_tile[y * OWN + r, x] = d_own[r]
        cuda.syncthreads()

        # How many keys are in A and C: all those that the state counts are before.
        count_before = past[n] + _between(start_of_tiles + begin * TILE, oldest, last_key)
        count_after = last_key - _between(start_of_tiles + end * TILE, oldest, last_key)
        for r in range(OWN):
            i = first + y * OWN + r
            if i < room:
                at_low, at_high = real(0), real(0)
                if i < last:
                    at_low = F[b, h, row + i, 0]
                    at_high = real(0) if causal else F[b, h, row + i, R - 1]
                d = others[b, h, row + i]
                for t in range(TILE):
                    d += f_tile[y * OWN + r, t]  # (3)
                d += at_low * real(count_before) + at_high * real(count_after)  # (7)
                for m in range(width):
                    c = m * TILE + x
                    if c < M:
                        far = at_low * before[n, h, begin, c] + at_high * after[n, h, end, c]
                        total = numerator[b, h, row + i, c] + n_own[m, r] + far  # (7)
                        output[b, h, row + i, c] = total / guard(d, eps)  # (3)
                if x == 0:
                    denominator[b, h, row + i] = d

    return forward


@cache
def _score_gradient_kernel(real: Any, map_name: str) -> Kernel:
    slope = score_map(map_name, real).slope

    @cuda.jit(fastmath=True)
    def score_gradient(  # type: ignore[no-untyped-def]
        gn, gd, F, value, recent, past, before, after, queries, keys, low, below, above, offset,
        causal, dB, low_sums, high_sums,
    ):  # fmt: skip
        """Writes dB (N, H, Lq, R), zeros so far, where distances occur.

        It also writes the sums of F_i,-k gn_i and of F_i,k gn_i over each tile of queries, (N, H,
        tiles, M) both.
        """
        g_tile = cuda.shared.array((TILE, TILE), real)
        v_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        s_own = cuda.local.array(OWN, real)
        low_own = cuda.local.array(OWN, real)  # dF_i,-k of the keys that this thread has met
        high_own = cuda.local.array(OWN, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE
        R, M = F.shape[3], value.shape[3]
        high = low + R - 1
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        begin = _first_tile(first + offset + below, start_of_tiles, last_key)
        p_end = min(first + TILE, last) - 1 + offset + above
        end = _end_tile(p_end, start_of_tiles, last_key)

        for r in range(OWN):
            low_own[r] = real(0)
            high_own[r] = real(0)

        for tile in range(begin, end):
            start = start_of_tiles + tile * TILE
            for r in range(OWN):
                s_own[r] = real(0)
            for m in range(0, M, TILE):
                for t in range(y, TILE, GROUPS):
                    j = start + t
                    g_tile[t, x] = real(0)
                    if first + t < last and m + x < M:
                        g_tile[t, x] = gn[b, h, row + first + t, m + x]
                    v = real(0)
                    if 0 <= j < last_key and m + x < M:
                        v = value[b_key, h, key_row + j, m + x]
                    elif oldest <= j < 0 and m + x < M:
                        v = recent[n, h, recent.shape[2] + j, m + x]
                    v_tile[x, t] = v
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        s_own[r] += g_tile[y * OWN + r, s] * v_tile[s, x]  # (9)
                cuda.syncthreads()
            for r in range(OWN):
                i, j = first + y * OWN + r, start + x
                distance = j - i - offset
                ds = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    ds = s_own[r] + gd[b, h, row + i]  # (9)
                low_own[r] += ds if distance <= low else real(0)
                high_own[r] += ds if distance > low and distance >= high else real(0)
                if i < last and low < distance < high:
                    weight = F[b, h, row + i, distance - low]
                    dB[b, h, row + i, distance - low] = ds * slope(weight)  # (11)

        for m in range(0, M, TILE):
            low_total, high_total = real(0), real(0)
            for r in range(OWN):
                i = first + y * OWN + r
                if i < last and m + x < M:
                    g = gn[b, h, row + i, m + x]
                    low_own[r] += g * before[n, h, begin, m + x]  # (10)
                    low_total += F[b, h, row + i, 0] * g
                    if not causal:
                        high_own[r] += g * after[n, h, end, m + x]  # (10)
                        high_total += F[b, h, row + i, R - 1] * g
            g_tile[y, x] = low_total
            v_tile[y, x] = high_total
            cuda.syncthreads()
            if y == 0 and m + x < M:
                low_total, high_total = real(0), real(0)
                for group in range(GROUPS):
                    low_total += g_tile[group, x]
                    high_total += v_tile[group, x]
                low_sums[n, h, cuda.blockIdx.x, m + x] = low_total
                high_sums[n, h, cuda.blockIdx.x, m + x] = high_total
            cuda.syncthreads()

        for r in range(OWN):
            g_tile[y * OWN + r, x] = low_own[r]
            v_tile[y * OWN + r, x] = high_own[r]
        cuda.syncthreads()

        count_before = past[n] + _between(start_of_tiles + begin * TILE, oldest, last_key)
        count_after = last_key - _between(start_of_tiles + end * TILE, oldest, last_key)
        i = first + x
        if y == 0 and i < last:
            at_low = gd[b, h, row + i] * real(count_before)  # (10)
            at_high = real(0) if causal else gd[b, h, row + i] * real(count_after)  # (10)
            for t in range(TILE):
                at_low += g_tile[x, t]
                at_high += v_tile[x, t]
            if R == 1:
                at_low += at_high
            else:
                dB[b, h, row + i, R - 1] = at_high * slope(F[b, h, row + i, R - 1])  # (11)
            dB[b, h, row + i, 0] = at_low * slope(F[b, h, row + i, 0])  # (11)

    return score_gradient


@cache
def _query_gradient_kernel(width: int, real: Any, feature_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    slope = get_feature_map(feature_name, real).derivative

    @cuda.jit(fastmath=True)
    def query_gradient(dB, embedding, query, queries, dq):  # type: ignore[no-untyped-def]
        """To dq (N, H, Lq, E) is added; dB is (N, H, Lq, R), embedding (H, R, E)."""
        b_tile = cuda.shared.array((TILE, TILE), real)
        e_tile = cuda.shared.array((rows, columns), real)
        u_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        first = cuda.blockIdx.x * TILE
        R, E = embedding.shape[1], embedding.shape[2]

        for m in range(width):
            for r in range(OWN):
                u_own[m, r] = real(0)

        for c in range(0, R, TILE):
            for t in range(y, TILE, GROUPS):
                b_tile[t, x] = real(0)
                if first + t < last and c + x < R:
                    b_tile[t, x] = dB[b, h, row + first + t, c + x]
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        e_tile[t, m] = real(0)
                        if c + s + t < R and m < E:
                            e_tile[t, m] = embedding[h, c + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(min(rows, R - c - s)):
                        for r in range(OWN):
                            B_rt = b_tile[y * OWN + r, s + t]
                            u_own[m, r] += B_rt * e_tile[t, m * TILE + x]  # (12)
                cuda.syncthreads()

        for m in range(width):
            e = m * TILE + x
            for r in range(OWN):
                i = row + first + y * OWN + r
                if first + y * OWN + r < last and e < E:
                    dq[b, h, i, e] += u_own[m, r] * slope(query[b, h, i, e])

    return query_gradient


@cache
def _embedding_gradient_kernel(width: int, real: Any) -> Kernel:
    rows, columns = wide_tile(width)

    @cuda.jit(fastmath=True)
    def embedding_gradient(dB, u, queries, span, de):  # type: ignore[no-untyped-def]
        """Writes de (parts, N, H, R, E), a share for each part of each sequence."""
        b_tile = cuda.shared.array((TILE, TILE), real)
        u_tile = cuda.shared.array((rows, columns), real)
        e_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        R, E = de.shape[3], de.shape[4]
        tiles = (R + TILE - 1) // TILE
        part = cuda.blockIdx.x // tiles
        first_r = cuda.blockIdx.x % tiles * TILE
        end = min((part + 1) * span, last)

        for m in range(width):
            for r in range(OWN):
                e_own[m, r] = real(0)

        for start in range(part * span, end, TILE):
            for t in range(y, TILE, GROUPS):
                b_tile[t, x] = real(0)
                if start + t < end and first_r + x < R:
                    b_tile[t, x] = dB[b, h, row + start + t, first_r + x]
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        u_tile[t, m] = real(0)
                        if start + s + t < end and m < E:
                            u_tile[t, m] = u[b, h, row + start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            B_tr = b_tile[s + t, y * OWN + r]
                            e_own[m, r] += B_tr * u_tile[t, m * TILE + x]  # (12)
                cuda.syncthreads()

        for r in range(OWN):
            distance = first_r + y * OWN + r
            for m in range(width):
                if distance < R and m * TILE + x < E:
                    de[part, n, h, distance, m * TILE + x] = e_own[m, r]

    return embedding_gradient


@cache
def _value_gradient_kernel(width: int, real: Any) -> Kernel:
    rows, columns = wide_tile(width)

    @cuda.jit(fastmath=True)
    def value_gradient(  # type: ignore[no-untyped-def]
        F, gn, past, low_after, high_before, grad_tail, grad_recent, queries, keys, low, below,
        above, offset, causal, dv, d_recent,
    ):  # fmt: skip
        """Adds to dv (N, H, Lk, M), and writes d_recent, of the window of an initial state.

        low_after and high_before (N, H, tiles + 1, M) are the far sums of (13) where tiles of
        queries begin.
        """
        f_tile = cuda.shared.array((TILE, TILE), real)
        g_tile = cuda.shared.array((rows, columns), real)
        v_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE - d_recent.shape[2]
        oldest = -min(past[n], d_recent.shape[2])
        R, M = F.shape[3], gn.shape[3]
        # Key j is near to the queries from p = j - above + 1 to j - below.
        begin = _first_tile(first - above + 1 - offset, 0, last)
        end_of_rows = min(first + TILE, last_key) - below - offset
        end = _end_tile(end_of_rows, 0, last)

        for m in range(width):
            for r in range(OWN):
                v_own[m, r] = real(0)

        for tile in range(begin, end):
            start = tile * TILE
            for t in range(y, TILE, GROUPS):
                i, j = start + t, first + x
                distance = j - i - offset
                weight = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    weight = F[b, h, row + i, _between(distance - low, 0, R - 1)]  # (2)
                f_tile[t, x] = weight
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        g_tile[t, m] = real(0)
                        if start + s + t < last and m < M:
                            g_tile[t, m] = gn[b, h, row + start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            weight = f_tile[s + t, y * OWN + r]
                            v_own[m, r] += weight * g_tile[t, m * TILE + x]  # (13)
                cuda.syncthreads()

        window = grad_recent.shape[2]
        for m in range(width):
            c = m * TILE + x
            for r in range(OWN):
                j = first + y * OWN + r
                if oldest <= j < last_key and c < M:
                    total = v_own[m, r] + low_after[n, h, end, c]  # (13)
                    if not causal:
                        total += high_before[n, h, begin, c]  # (13)
                    if j < last_key - window:
                        total += grad_tail[n, h, c]  # (14)
                    else:
                        total += grad_recent[n, h, j - last_key + window, c]  # (14)
                    if j < 0:
                        d_recent[n, h, j + d_recent.shape[2], c] = total
                    else:
                        dv[b_key, h, key_row + j, c] += total

    return value_gradient


@cache
def _state_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def window(value, recent, past, before, keys, tail_next, recent_next):  # type: ignore[no-untyped-def]
        """The last two are written to, equation (14)."""
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * TILE + x
        b, row, last = keys[n, 0], keys[n, 1], keys[n, 2]
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        fallen = last - recent_next.shape[2]  # the values before this one are in the tail
        tile = _first_tile(fallen, start_of_tiles, last)

        if m < value.shape[3]:
            for w in range(y, recent_next.shape[2], GROUPS):
                j = fallen + w
                newer = real(0)
                if j >= 0:
                    newer = value[b, h, row + j, m]
                elif j >= oldest:
                    newer = recent[n, h, recent.shape[2] + j, m]
                recent_next[n, h, w, m] = newer
            if y == 0:
                total = before[n, h, tile, m]
                for j in range(max(start_of_tiles + tile * TILE, oldest), fallen):
                    if j >= 0:
                        total += value[b, h, row + j, m]
                    else:
                        total += recent[n, h, recent.shape[2] + j, m]
                tail_next[n, h, m] = total

    return window


@cache
def _step_kernel(
    columns: int, real: Any, feature_name: str, query_map: str, map_name: str, guard_name: str
) -> Kernel:
    phi = get_feature_map(feature_name, real).value
    u_map = get_feature_map(query_map, real).value
    f = score_map(map_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def step(  # type: ignore[no-untyped-def]
        query, key, value, embedding, eps, S, Z, tail, recent, past, out, S_next, Z_next, tail_next,
        recent_next,
    ):  # fmt: skip
        """Query and key (N, H, E), value (N, H, M); a thread owns column m of the state."""
        u = cuda.shared.array(HEAD_DIMS[-1], real)
        weights = cuda.shared.array(columns, real)

        x = cuda.threadIdx.x
        m = cuda.blockIdx.x * columns + x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E, M, k = query.shape[2], value.shape[2], recent.shape[2]
        count = past[n] + 1
        total, d, v, fallen = real(0), real(0), real(0), real(0)
        if m < M:
            v = value[n, h, m]
            fallen = tail[n, h, m]
            if k == 0:
                fallen += v  # (14)
            elif count > k:
                fallen += recent[n, h, 0, m]  # (14)
            tail_next[n, h, m] = fallen

        for e in range(E):
            k_e = phi(key[n, h, e])
            q_e = phi(query[n, h, e])
            z = Z[n, h, e] + k_e
            d += q_e * z
            if m == 0:
                Z_next[n, h, e] = z
            if m < M:
                s = S[n, h, e, m] + k_e * v
                S_next[n, h, e, m] = s
                total += q_e * s

        for e in range(x, E, columns):
            u[e] = u_map(query[n, h, e])
        cuda.syncthreads()
        for first in range(0, k + 1, columns):
            b = real(0)
            if first + x <= k:
                for e in range(E):
                    b += u[e] * embedding[h, k - first - x, e]
            weights[x] = f(b)  # (2)
            cuda.syncthreads()
            for t in range(min(columns, k + 1 - first)):
                ago = first + t
                if ago == k:
                    total += weights[t] * fallen  # (7)
                    d += weights[t] * real(max(count - k, 0))
                elif ago < count:
                    seen = v
                    if ago > 0 and m < M:
                        seen = recent[n, h, k - ago, m]
                    total += weights[t] * seen  # (7)
                    d += weights[t]
                    if m < M:
                        recent_next[n, h, k - 1 - ago, m] = seen  # (14)
                elif m < M:
                    recent_next[n, h, k - 1 - ago, m] = real(0)
            cuda.syncthreads()
        if m < M:
            out[n, h, m] = total / guard(d, eps)  # (3)

    return step


class _Setting(NamedTuple):
    """Where queries and keys stand to one another; the same for forward and backward."""

    queries: Array  # spans
    keys: Array
    embedding: Array  # (H, R, E): the distances that occur, from `low` on
    low: int
    below: int  # keys from p + below to before p + above are near to position p
    above: int
    offset: int
    causal: bool
    state: RelativeState  # with an empty window where there is none

    @property
    def walk(self) -> tuple[int, int, int, int, bool]:
        """What kernels need to find the near keys of a query, and the near queries of a key."""
        return self.low, self.below, self.above, self.offset, self.causal


def _setting(
    query: Array,
    key: Array,
    value: Array,
    embedding: Array,
    *,
    algorithm: str,
    causal: bool,
    query_offset: int,
    query_lengths: Array | None,
    key_lengths: Array | None,
    cu_seqlens: Array | None,
    initial_state: RelativeState | None,
) -> _Setting:
    """Check the arguments that belong together, and find the distances that occur."""
    _check(embedding, algorithm, causal, query_offset, initial_state)
    k = embedding.shape[1] // 2
    Lq, Lk = query.shape[2], key.shape[2]
    high = max(-k, min(k, Lk - 1 - query_offset, 0 if causal else FAR))
    low = min(high, max(-k, -(query_offset + Lq - 1))) if initial_state is None else -k
    naive = algorithm == "naive"
    queries, keys = spans(query, query_lengths, cu_seqlens), spans(key, key_lengths, cu_seqlens)
    (occurring,) = contiguous(embedding[:, k + low : k + high + 1])
    state = initial_state or empty_state(len(queries), key, value, 0)
    return _Setting(
        queries=queries,
        keys=keys,
        embedding=occurring,
        low=low,
        below=-FAR if naive else low + 1,
        above=1 if causal else FAR if naive else high,
        offset=query_offset,
        causal=causal,
        state=RelativeState._make(contiguous(*state)),
    )


def _check(
    embedding: Array,
    algorithm: str,
    causal: bool,
    query_offset: int,
    initial_state: RelativeState | None,
) -> None:
    """Refuse what has no meaning.

    Raises:
        ValueError: arguments contradict one another.
    """
    rows = embedding.shape[1]
    if rows % 2 == 0:
        raise ValueError(
            "relative_embedding must have 2k + 1 rows, one for each distance from -k to k; "
            f"got {rows}"
        )
    directions = {"naive": (False, True), "linear": (False,)}.get(algorithm, (True,))
    if causal not in directions:
        raise ValueError(
            f"algorithm {algorithm!r} needs causal={directions[0]}, got causal={causal}; "
            'causal attention has "recurrent", "chunked" and "naive", bidirectional "linear" and '
            '"naive"'
        )
    if initial_state is None:
        return
    if algorithm in ("naive", "linear"):
        raise ValueError(
            f"algorithm {algorithm!r} takes no initial_state; take a causal one, such as "
            '"recurrent"'
        )
    if query_offset < 0:
        raise ValueError(
            "query_offset must be 0 or more with an initial_state, whose keys come before every "
            f"query; got {query_offset}"
        )
    if initial_state.recent.shape[2] != rows // 2:
        raise ValueError(
            f"initial_state keeps {initial_state.recent.shape[2]} recent values, but a "
            f"relative_embedding of {rows} rows needs {rows // 2}"
        )


def empty_state(count: int, key: Array, value: Array, window: int) -> RelativeState:
    """The state of `count` sequences that have not begun.

    Args:
        count: N.
        key: an array with H along its second axis and E along its last.
        value: an array with M along its last axis.
        window: k, of the embeddings of distances -k to k.
    """
    xp = array_module(key)
    H, E, M = key.shape[1], key.shape[-1], value.shape[-1]

    def zeros(*shape: int) -> Array:
        return xp.zeros((count, H, *shape), key.dtype)

    return RelativeState(
        zeros(E, M), zeros(E), zeros(M), zeros(window, M), xp.zeros(count, xp.int64)
    )


def _longest(sequences: Array, packed: bool, length: int) -> int:
    """The rows of the longest sequence: the launches need blocks for so many."""
    return int(sequences[:, 3].max()) if packed else length


def _running_sums(sums: Array, start: Array, way: int) -> Array:
    """Sums of the tiles before (way 1) or from (-1) the beginning of each."""
    N, H, tiles, M = sums.shape
    result = array_module(sums).empty((N, H, tiles + 1, M), sums.dtype)
    kernel = _running_sum_kernel(kernel_dtype(sums))
    kernel[(block_count(M), H, N), TILE](sums, start, way, result)
    return result


def _far_sums(value: Array, setting: _Setting, packed: bool) -> tuple[Array, Array]:
    """A and C of equation (8), where each tile of keys begins."""
    xp = array_module(value)
    H, M = value.shape[1], value.shape[3]
    N = len(setting.keys)
    tail, recent, past = setting.state[2:]
    tiles = block_count(_longest(setting.keys, packed, value.shape[2]) + recent.shape[2])
    sums = xp.empty((N, H, tiles, M), value.dtype)
    kernel = _tile_sum_kernel(kernel_dtype(value))
    kernel[(tiles, H, N), THREADS](value, recent, past, setting.keys, sums)
    before = _running_sums(sums, tail, 1)
    return before, before if setting.causal else _running_sums(sums, xp.zeros_like(tail), -1)


def _linear_state(state: RelativeState | None) -> LinearState | None:
    return None if state is None else LinearState(state.S, state.Z)


def forward(
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    *,
    algorithm: str,
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array, Array, RelativeState | None]:
    """Linear attention with relative positions, equations (1) to (8) and (14).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        relative_embedding: (H, 2k + 1, E), row r + k for the distance r = clip(j - (i +
            query_offset), -k, k).
        algorithm: "naive", "linear" (not causal), "recurrent" or "chunked" (both causal), of both
            terms: "naive" takes the time of Lq Lk, the others that of (Lq + Lk) (2k + 1).
        feature_map: a name of `feature_maps`, of queries and keys.
        score_map: "softplus", "exp" or "identity", of the scores of the relative term.
        relative_query: "feature", phi(Q), or "raw", Q: what the embeddings are multiplied by.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows of the output are zero. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        cu_seqlens: (N + 1,) integers, for packed sequences, see `recurrent.forward`.
        initial_state: what causal sequences continue from.
        guard: "clamp", "add", or "signed", which "identity" scores need.
        eps: the guard's size; None for its default.

    Returns:
        The output (N, H, Lq, M), the denominators (N, H, Lq), the weights F of equation (2) (N, H,
        Lq, R) of the R <= 2k + 1 distances that occur, which backward needs, and the state after
        the last key, None where the algorithm has none.

    Raises:
        ValueError: arguments contradict one another.

    Source: Shaw et al. 2018, equations 3 and 4; S0.
    """
    query, key, value = contiguous(query, key, value)
    visible: dict[str, Any] = {
        "causal": causal, "query_offset": query_offset, "query_lengths": query_lengths,
        "key_lengths": key_lengths, "cu_seqlens": cu_seqlens,
    }  # fmt: skip
    setting = _setting(
        query, key, value, relative_embedding,
        algorithm=algorithm, initial_state=initial_state, **visible,
    )  # fmt: skip
    numerator, others, linear_state = kernelized.forward(
        query, key, value, algorithm=algorithm, feature_map=feature_map, guard="none",
        initial_state=_linear_state(initial_state), **visible,
    )  # fmt: skip
    xp, real = array_module(query), kernel_dtype(query)
    packed, (_, H, Lq, _), N = cu_seqlens is not None, query.shape, len(setting.queries)
    grid = block_count(_longest(setting.queries, packed, Lq)), H, N

    F = xp.empty((*query.shape[:3], setting.embedding.shape[1]), query.dtype)
    u = _relative_query(query, _query_map(relative_query, feature_map))
    _score_kernel(real, score_map)[grid, THREADS](u, setting.embedding, setting.queries, F)

    before, after = _far_sums(value, setting, packed)
    output, denominator = xp.empty_like(numerator), xp.empty_like(others)
    recent, past = setting.state.recent, setting.state.length
    _forward_kernel(tile_count(value.shape[3]), real, guard)[grid, THREADS](
        numerator, others, F, value, recent, past, before, after, setting.queries, setting.keys,
        *setting.walk, eps_or_default(guard, eps, query), output, denominator,
    )  # fmt: skip
    if linear_state is None:
        return output, denominator, F, None
    last = empty_state(N, key, value, relative_embedding.shape[1] // 2)
    _state_kernel(real)[(block_count(value.shape[3]), H, N), THREADS](
        value, recent, past, before, setting.keys, last.tail, last.recent
    )
    length = past + setting.keys[:, 2]
    return output, denominator, F, RelativeState(*linear_state, last.tail, last.recent, length)


def _query_map(relative_query: str, feature_map: str) -> str:
    """The map that makes u_i of equation (2).

    Raises:
        ValueError: there is no such choice.
    """
    maps = {"feature": feature_map, "raw": "identity"}
    if relative_query not in maps:
        raise ValueError(f"relative_query must be one of {sorted(maps)}, got {relative_query!r}")
    return maps[relative_query]


def _relative_query(query: Array, query_map: str) -> Array:
    """All u_i of equation (2)."""
    return query if query_map == "identity" else elementwise_features(query, query_map)


def backward(
    grad_output: Array,
    grad_state: RelativeState | None,
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    output: Array,
    denominator: Array,
    weights: Array,
    *,
    algorithm: str,
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array, Array, Array, RelativeState | None]:
    """The gradients of `forward`, equations (9) to (13).

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        grad_state: the gradient of the final state, whose length counts for nothing; or None.
        query: this and all the rest as `forward` took and returned it.
        key: as there.
        value: as there.
        relative_embedding: as there.
        output: as there.
        denominator: as there.
        weights: as there.
        algorithm: as there.
        feature_map: as there.
        score_map: as there.
        relative_query: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        cu_seqlens: as there.
        initial_state: as there.
        guard: as there.
        eps: as there.

    Returns:
        The gradients of query, key, value and relative_embedding, and of the initial state, whose
        length has none and comes back as zeros; None where the algorithm has no state.
    """
    query, key, value, F = contiguous(query, key, value, weights)
    visible: dict[str, Any] = {
        "causal": causal, "query_offset": query_offset, "query_lengths": query_lengths,
        "key_lengths": key_lengths, "cu_seqlens": cu_seqlens,
    }  # fmt: skip
    setting = _setting(
        query, key, value, relative_embedding,
        algorithm=algorithm, initial_state=initial_state, **visible,
    )  # fmt: skip
    first = _linear_state(initial_state)
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key.shape[2],
        initial_state=first, guard=guard, eps=eps, **visible,
    )  # fmt: skip
    dq, dk, dv, linear_state = kernelized.gradients(
        gn, gd, _linear_state(grad_state), query, key, value,
        algorithm=algorithm, feature_map=feature_map, initial_state=first, **visible,
    )  # fmt: skip

    xp, real = array_module(query), kernel_dtype(query)
    (_, H, Lq, E), M, N = query.shape, value.shape[3], len(setting.queries)
    packed = cu_seqlens is not None
    query_map = _query_map(relative_query, feature_map)
    longest = _longest(setting.queries, packed, Lq)
    grid = block_count(longest), H, N
    tail, recent, past = setting.state[2:]

    before, after = _far_sums(value, setting, packed)
    dB = xp.zeros_like(F)
    low_sums, high_sums = (xp.empty((N, H, grid[0], M), F.dtype) for _ in range(2))
    _score_gradient_kernel(real, score_map)[grid, THREADS](
        gn, gd, F, value, recent, past, before, after, setting.queries, setting.keys,
        *setting.walk, dB, low_sums, high_sums,
    )  # fmt: skip
    _query_gradient_kernel(tile_count(E), real, query_map)[grid, THREADS](
        dB, setting.embedding, query, setting.queries, dq
    )
    u = _relative_query(query, query_map)
    de = _embedding_gradient(dB, u, relative_embedding, setting, longest)

    last = grad_state
    if last is None:
        last = empty_state(N, key, value, relative_embedding.shape[1] // 2)
    grad_tail, grad_recent = contiguous(last.tail, last.recent)
    zeros = xp.zeros_like(tail)
    low_after = _running_sums(low_sums, zeros, -1)
    high_before = low_after if causal else _running_sums(high_sums, zeros, 1)
    d_recent = xp.zeros_like(recent)
    blocks = block_count(_longest(setting.keys, packed, key.shape[2]) + recent.shape[2])
    _value_gradient_kernel(tile_count(M), real)[(blocks, H, N), THREADS](
        F, gn, past, low_after, high_before, grad_tail, grad_recent, setting.queries, setting.keys,
        *setting.walk, dv, d_recent,
    )  # fmt: skip
    if linear_state is None:
        return dq, dk, dv, de, None
    d_tail = grad_tail + low_after[:, :, 0]
    return dq, dk, dv, de, RelativeState(*linear_state, d_tail, d_recent, xp.zeros_like(past))


def _embedding_gradient(
    dB: Array, u: Array, relative_embedding: Array, setting: _Setting, longest: int
) -> Array:
    """The gradient of all embeddings, equation (12): zeros for distances that do not occur."""
    xp = array_module(dB)
    N, (H, R, E) = len(setting.queries), setting.embedding.shape
    tiles = block_count(R)
    enough = enough_blocks(dB, ENOUGH_BLOCKS) // (N * H * tiles)
    parts = max(1, min(enough, longest // FEWEST_ROWS))
    span = ceil_div(ceil_div(longest, parts), TILE) * TILE
    shares = xp.empty((parts, N, H, R, E), dB.dtype)
    kernel = _embedding_gradient_kernel(tile_count(E), kernel_dtype(dB))
    kernel[(parts * tiles, H, N), THREADS](dB, u, setting.queries, span, shares)
    de = xp.zeros_like(relative_embedding)
    begin = relative_embedding.shape[1] // 2 + setting.low
    de[:, begin : begin + R] = shares.sum(axis=(0, 1))
    return de


def step(
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    state: RelativeState | None,
    *,
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, RelativeState]:
    """One token of `forward`: constant time and memory, however long the past.

    Args:
        query: (N, H, E).
        key: (N, H, E).
        value: (N, H, M).
        relative_embedding: (H, 2k + 1, E).
        state: the state before this token; an empty one where None. It is not modified.
        feature_map: as in `forward`.
        score_map: as in `forward`.
        relative_query: as in `forward`.
        guard: as in `forward`.
        eps: as in `forward`.

    Returns:
        The output (N, H, M) and the next state.
    """
    query, key, value, embedding = contiguous(query, key, value, relative_embedding)
    N, H, M = value.shape
    window = embedding.shape[1] // 2
    _check(embedding, "recurrent", True, 0, state)
    after = empty_state(N, key, value, window)
    before = contiguous(*(state or empty_state(N, key, value, window)))
    out = array_module(value).empty_like(value)
    columns = min(MAX_COLUMNS, round_up(M))
    kernel = _step_kernel(
        columns, kernel_dtype(query), feature_map, _query_map(relative_query, feature_map),
        score_map, guard,
    )  # fmt: skip
    kernel[(ceil_div(M, columns), H, N), columns](
        query, key, value, embedding, eps_or_default(guard, eps, query), *before, out, *after[:4]
    )
    return out, after._replace(length=before[4] + 1)

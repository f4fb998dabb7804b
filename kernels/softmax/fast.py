"""The kernels of softmax attention that run: a block owns a tile of rows and walks past the others.

    forward          (1)-(5); a block owns a tile of queries and walks the keys
    query_gradient   (7)-(9), dq; the same walk. It also leaves delta for the next
    key_gradient     (6), (7), (9), dk and dv; a block owns keys and walks the queries

A pair of tiles takes two products of matrices forward, and backward seven: both gradients need the
scores and g . v. On a CPU with heads enough for its cores, key_gradient is given a whole head
(`alone`), walks all its keys too, is the only one to write its dq, and five do.

Each is also made with relative scores (`biased`) or dropout (`dropping`), or both. These are
constants of the compiler: without them, the kernel is what it would be if they did not exist.

What they add to `plain`; results/ladder says what it brings:

    tiles in shared memory      TILE queries, and `step` keys: what is read from memory once serves
                                all rows of the other tile
    the keys walked once        by (3) and (4), tile after tile: each score is made once, not twice
    parts that share a row      threadIdx.x = x is a row that the block owns, threadIdx.y = y a part
                                of the work on it: the scores with some of the rows that are walked
                                past, then some columns of the result, in registers
    several sums a thread       WIDTH or more: with four, five reads feed four multiplications,
                                where two fed one
    transposed, with a pitch    what is owned, so that neighbouring threads read neighbouring
                                numbers; what is walked past is read by all of a warp at the same
                                address, a broadcast. The output is turned back in such a tile
    few rows for few            a short sequence does not fill TILE rows: it gets SHORT of them
    lists of rows               with a pattern, a block walks only what one of its rows sees
    on lanes                    a CPU runs threadIdx.x as lanes of its vectors, and the parts one
                                after the other: there, all parts are one, tiles have no pitch, as
                                many sums are made at once as half of the vector registers hold (a
                                turn), narrow heads are filled up to a vector, wide ones to whole
                                turns, and steps are as long as shared memory has room for, the last
                                one only as long as there are rows. forward reads keys and values
                                where they lie: a read brings one number to all lanes, and waits for
                                a further cache beside multiplications, where a copy waits alone.
                                Relative scores of keys that are too far from all rows to tell apart
                                are read once a tile; on a GPU that took up to half more registers

They are not compiled with `fastmath`, which may add up a score in another order in each of them:
then the maximum that the forward saved is not the score that the backward finds, (2) is off by as
much as the scores are, and for scores near 50,000 that is 0.4 %.

A weight of 0 takes nothing of its value, whatever that is: zero times NaN is NaN, and the keys of a
tile that a row does not see may hold it. On lanes a weight is asked only if it matters (`careful`):
forward walks a second time where a sum was not finite, key_gradient asks once a row that is not
finite was met. On a GPU the question costs no register, and two loops would. A key that is not
finite reaches dq by its ds, which is NaN. Every sum has one owner and one order: results repeat bit
by bit, without atomics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import int32, int64

from ..arrays import SHARED_BYTES, Array, array_module, ceil_div, round_up
from ..cpu.compiler import VECTOR_REGISTERS
from ..cuda import DeviceFunction, Kernel, cuda
from ..layers.dropout import random_word
from .plain import at_one_end, column, kind, pattern_arguments

TILE = 64  # queries of a block, where the shared memory allows
SHORT = 16  # rows, if a sequence has no more
WIDTH = 4  # sums that a thread makes at once, at least
TURNS = 4  # over a thread's columns, at most: compilers unroll that much, and use registers
# Bytes of the sums that a CPU makes at once. Two multiply-adds begin in a cycle and end four later:
# eight vectors keep it busy. With more than half of the registers, LLVM has left a sum in memory,
# where it waits for itself: at 12 of 16 the product with the values took twice as long.
SUMS = VECTOR_REGISTERS[1] * VECTOR_REGISTERS[0] // 2
ENOUGH_HEADS = 8  # blocks that keep a CPU busy
LONG = 2 * TILE  # queries that are as much as another head
FAR = 2**60  # beyond every position
PLACE = 24  # bytes in which a list tells of a row where it is and who sees it
NOWHERE = 2 * FAR  # beyond even that: no range reaches it


class Walk(NamedTuple):
    """Which rows a block walks past, where it is not one after the other: device functions.

    A list of rows exists nowhere in memory: four numbers say where it ends, and what is in it. A
    key is seen from a range of positions and a query asks from one; the key is seen where the two
    meet. What does not exist has the place NOWHERE, and an empty range. The last two arguments of
    all functions are `causal` and `pattern`, the five arguments of a kernel that only a walk reads.
    """

    keys_of: DeviceFunction  # of the queries at positions begin .. end - 1: a list of keys
    key_at: DeviceFunction  # the key at a place of that list, and from where it is seen
    asks_from: DeviceFunction  # from where query i asks
    own_key: DeviceFunction  # the key that a row of all blocks owns, and from where it is seen
    queries_of: DeviceFunction  # of the rows of a block: a list of queries
    query_at: DeviceFunction  # the query at a place of that list, and from where it asks


NO_WALK: Any = (None,) * len(Walk._fields)


class Shape(NamedTuple):
    """How a block works."""

    rows: int  # threadIdx.x: rows that it owns
    parts: int  # threadIdx.y
    step: int  # rows of the other sequence that it takes in at a time
    on_lanes: bool = False  # of a CPU, whose memory has no banks, and which runs one part at a time

    @property
    def threads(self) -> tuple[int, int]:
        """The block's shape."""
        return self.rows, self.parts

    @property
    def pitch(self) -> int:
        """From row to row of a transposed tile: in banks, neighbours of a column lie apart."""
        return self.rows if self.on_lanes else self.rows + 1

    def width(self, real: Any) -> int:
        """How many sums a lane makes at once, WIDTH or more: those of all lanes fill SUMS."""
        lanes, sums = self.rows, SUMS * 8 // real.bitwidth
        while WIDTH * lanes > sums:
            lanes //= 2
        return sums // lanes

    def filled(self, real: Any, columns: int) -> int:
        """Columns of a result; on lanes, if steps are whole turns, filled up to turns by zeros."""
        width = self.width(real) if self.on_lanes else 1
        more = -columns % width
        return columns + more if self.step % width == 0 and 16 * more <= columns else columns

    def at_once(self, real: Any, others: int, *columns: int) -> tuple[int, ...]:
        """Scores with `others`, and sums over each of `columns`, that a thread makes at once."""
        if self.on_lanes:
            widths = range(self.width(real), 0, -1)
            return tuple(next(w for w in widths if n % w == 0) for n in (others, *columns))
        return min(WIDTH, others), *(max(WIDTH, min(n, TILE // 2) // TURNS) for n in columns)

    def for_lanes(
        self, length: int, real: Any, listed: bool, kept: Callable[[Shape], tuple[int, int]]
    ) -> Shape:
        """All parts in one row of threads; half the rows, where they are enough.

        Where there are more rows to own than a step has, steps are of as many whole turns as shared
        memory has room for, up to TILE rows, or to a thread for each, where they are listed. `kept`
        tells how many numbers a shape keeps there of each row that it owns, and walks past.
        """
        rows = self.rows // 2 if SHORT < 2 * length <= self.rows else self.rows
        shape = self._replace(rows=rows, parts=1, on_lanes=True)
        turn = shape.width(real)
        own, past = kept(shape._replace(step=turn))
        room = (SHARED_BYTES * 8 // real.bitwidth - rows * own) // past
        whole = min(room, rows if listed else TILE) // turn * turn
        return shape._replace(step=whole) if whole and length > shape.step else shape


def forward_shape(
    length: int, head_dim: int, value_dim: int, real: Any, on_lanes: bool, listed: bool
) -> Shape:
    """How a block of the forward kernel works, for so many queries and rounded dims."""
    size = real.bitwidth // 8
    rows = min(TILE, 16384 // (max(head_dim, value_dim) * size))
    step = min(rows // 2, 8192 // (rows * size))
    shape = _for(length, Shape(rows, min(256 // rows, 8, step, value_dim // WIDTH), step))

    def kept(shape: Shape) -> tuple[int, int]:
        columns, places = shape.filled(real, value_dim), PLACE // size if listed else 0
        return max(head_dim, columns) + 1, shape.rows + places

    return shape.for_lanes(length, real, listed, kept) if on_lanes else shape


def backward_shape(
    length: int, head_dim: int, value_dim: int, real: Any, on_lanes: bool, listed: bool
) -> Shape:
    """How a block of the two gradient kernels works, for so many rows to own."""
    size = real.bitwidth // 8
    rows = min(TILE // 2, 8192 // (max(head_dim, value_dim) * size))
    step = min(rows, 4096 // (rows * size))
    parts = min(8, step, head_dim // WIDTH, value_dim // WIDTH)
    shape = _for(length, Shape(rows, parts, step))

    def kept(shape: Shape) -> tuple[int, int]:
        columns = shape.filled(real, head_dim) + shape.filled(real, value_dim)
        return 2 * head_dim + value_dim, columns + 2 * shape.rows  # lists have finite_k's room

    return shape.for_lanes(length, real, listed, kept) if on_lanes else shape


def _for(length: int, shape: Shape) -> Shape:
    """The shape, but for a short sequence with few rows."""
    rows, parts, step, _ = shape
    return Shape(min(rows, SHORT), parts, min(step, SHORT)) if length <= SHORT else shape


@cache
def _forward_kernel(
    shape: Shape, head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool,
    walk: Walk | None,
) -> Kernel:  # fmt: skip
    rows, parts, step, _ = shape
    columns = shape.filled(real, value_dim)
    own_keys, own_columns = step // parts, columns // parts
    on_lanes, pitch = shape.on_lanes, shape.pitch
    at_once, width = shape.at_once(real, own_keys, own_columns)
    most = max(at_once, width)
    widest = max(head_dim, columns)
    listed, (keys_of, key_at, asks_from, *_) = walk is not None, walk or NO_WALK
    by_tiles = biased and shape.on_lanes and walk is None  # (10) at once for far tiles

    @cuda.jit
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, relative_scores, window, global_queries, gathered, landmarks, below,
        query_lengths, key_lengths, causal, offset, scale, seed, dropped, survivor, output, highest,
        inverse,
    ):  # fmt: skip
        """Arrays (N, H, L, E) or (N, H, L, M), relative_scores (N, H, Lq, 2k + 1).

        Of random words below `dropped` a weight is dropped, else multiplied by `survivor`. Writes
        the last three: h and 1 / d of (5) are (N, H, Lq).
        """
        q = cuda.shared.array((widest, pitch), real)  # transposed; at the end o
        if not on_lanes:
            k = cuda.shared.array((step, head_dim), real)
            v = cuda.shared.array((step, columns), real)
        s = cuda.shared.array((step, rows), real)  # scores, then their exponentials; transposed
        share = cuda.shared.array((parts, rows), real)  # of each part in a row's maximum, then sum
        if listed:
            place = cuda.shared.array(step, int64)  # j of the keys in k and v
            since = cuda.shared.array(step, int64)  # the first position that sees them
            until = cuda.shared.array(step, int64)  # and the last
        n_own = cuda.local.array(own_columns, real)  # n of (4), this thread's columns
        sums = cuda.local.array(most, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        end = min(last_key, first_row + rows + offset) if causal else last_key
        seen = min(last_key, i + offset + 1) if causal else last_key
        if listed:
            pattern = window, global_queries, gathered, landmarks, below
            end, low, high, before = keys_of(
                first_row + offset, min(first_row + rows, last_query) + offset, last_key, causal,
                pattern,
            )  # fmt: skip
            first, last = asks_from(i, last_query, offset, causal, pattern)
        if first_row >= last_query:
            end = 0
        if i >= last_query:
            seen = 0
        near, furthest = min(i, query.shape[2] - 1), relative_scores.shape[3] // 2

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                q[e, r] = real(0)
                if first_row + r < last_query and e < E:
                    q[e, r] = scale * query[n, h, first_row + r, e]
        if on_lanes:
            cuda.syncthreads()  # for q; elsewhere that of the first keys serves it, too
        careful = int32(not on_lanes)
        while True:
            for t in range(own_columns):
                n_own[t] = real(0)
            h_i, d_i = real(-1e30), real(0)
            for start in range(0, end, step):
                here = min(step, end - start) if on_lanes else step
                if listed and y == 0 and x < step:
                    u = start + x
                    place[x], since[x], until[x] = key_at(
                        u, end, low, high, before, causal, pattern
                    )
                if listed:
                    cuda.syncthreads()
                if not on_lanes:
                    for r in range(y, step, parts):
                        j = place[r] if listed else start + r
                        for e in range(x, head_dim, rows):
                            k[r, e] = real(0)
                            if j < last_key and e < E:
                                k[r, e] = key[n, h, j, e]
                        for m in range(x, value_dim, rows):
                            v[r, m] = real(0)
                            if j < last_key and m < M:
                                v[r, m] = value[n, h, j, m]
                    cuda.syncthreads()

                if by_tiles:
                    apart = start - first_row - offset
                    far, end_column = at_one_end(apart - rows + 1, apart + step - 1, furthest)
                    end_i = relative_scores[n, h, near, end_column]
                own_highest, left = h_i, int32(min(max(seen - start, 0), step))
                for t in range(0, here // parts, at_once):
                    r = y * own_keys + t
                    for c in range(at_once):
                        sums[c] = real(0)
                    if on_lanes:
                        for e in range(E):
                            for c in range(at_once):
                                j = min(place[r + c] if listed else start + r + c, last_key - 1)
                                sums[c] += q[e, x] * key[n, h, j, e]
                    else:
                        for e in range(head_dim):
                            for c in range(at_once):
                                sums[c] += q[e, x] * k[r + c, e]
                    for c in range(at_once):
                        j = place[r + c] if listed else start + r + c
                        if biased:
                            if by_tiles and far:
                                sums[c] += scale * end_i  # (10)
                            else:
                                r_ij = column(j - i - offset, furthest)
                                sums[c] += scale * relative_scores[n, h, near, r_ij]  # (10)
                        sees = int32(r + c) < left
                        if listed:
                            sees = (since[r + c] <= last) & (first <= until[r + c])
                        score = sums[c] if sees else real(-2e30)
                        s[r + c, x] = score
                        own_highest = max(own_highest, score)
                share[y, x] = own_highest
                cuda.syncthreads()

                new_highest = h_i
                for part in range(parts):
                    new_highest = max(new_highest, share[part, x])
                shrink = math.exp(h_i - new_highest)  # (3)
                h_i = new_highest
                d_i *= shrink
                for t in range(here // parts):
                    r = y * own_keys + t
                    p = math.exp(s[r, x] - h_i)
                    d_i += p  # (4)
                    kept = real(1)
                    if dropping:
                        j = place[r] if listed else start + r
                        word = random_word(seed, n, h, i, j)
                        kept = survivor if word >= dropped else real(0)
                    s[r, x] = kept * p  # (12)
                cuda.syncthreads()

                for t in range(0, own_columns, width):
                    m = y * own_columns + t
                    for c in range(width):
                        sums[c] = shrink * n_own[t + c]
                    if not careful:
                        for r in range(here):
                            for c in range(width):  # a j from above it would be an array of lanes
                                j = min(place[r], last_key - 1) if listed else start + r
                                sums[c] += s[r, x] * value[n, h, j, min(m + c, M - 1)]  # (4)
                    else:
                        for r in range(here):
                            for c in range(width):
                                j = min(place[r] if listed else start + r, last_key - 1)
                                v_j = value[n, h, j, min(m + c, M - 1)] if on_lanes else v[r, m + c]
                                more = sums[c] + s[r, x] * v_j  # (4)
                                sums[c] = cuda.selp(s[r, x] != real(0), more, sums[c])
                    for c in range(width):
                        n_own[t + c] = sums[c]
                cuda.syncthreads()

            if careful:
                break
            odd = real(0)  # NaN, once a sum is not finite
            for t in range(own_columns):
                odd += real(0) * n_own[t]
            careful = cuda.syncthreads_or(int32(odd != real(0)))
            if not careful:
                break

        share[y, x] = d_i
        cuda.syncthreads()
        d = real(0)
        for part in range(parts):
            d += share[part, x]
        inverse_i = real(0)
        if d > real(0):
            inverse_i = real(1) / d
        if y == 0 and i < output.shape[2]:
            highest[n, h, i], inverse[n, h, i] = h_i, inverse_i
        for t in range(own_columns):
            q[y * own_columns + t, x] = n_own[t] * inverse_i  # (5)
        cuda.syncthreads()
        for r in range(y, rows, parts):
            for m in range(x, value_dim, rows):
                if first_row + r < output.shape[2] and m < M:
                    output[n, h, first_row + r, m] = q[m, r]

    return forward


@cache
def _query_gradient_kernel(
    shape: Shape, head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool,
    walk: Walk | None,
) -> Kernel:  # fmt: skip
    rows, parts, step, _ = shape
    columns, pitch, on_lanes = shape.filled(real, head_dim), shape.pitch, shape.on_lanes
    own_keys, own_columns = step // parts, columns // parts
    at_once, width = shape.at_once(real, own_keys, own_columns)
    most = max(at_once, width)
    listed, (keys_of, key_at, asks_from, *_) = walk is not None, walk or NO_WALK
    by_tiles = biased and shape.on_lanes and walk is None  # (10) at once for far tiles

    @cuda.jit
    def query_gradient(  # type: ignore[no-untyped-def]
        grad_output, output, highest, inverse, query, key, value, relative_scores, window,
        global_queries, gathered, landmarks, below, query_lengths, key_lengths, causal, offset,
        scale, seed, dropped, survivor, dq, delta, drelative,
    ):  # fmt: skip
        """Writes dq, delta (N, H, Lq), and drelative where it is not zero."""
        q = cuda.shared.array((head_dim, pitch), real)
        g = cuda.shared.array((value_dim, pitch), real)
        k = cuda.shared.array((step, columns), real)
        v = cuda.shared.array((step, value_dim), real)
        ds = cuda.shared.array((step, rows), real)
        if listed:
            place = cuda.shared.array(step, int64)
            since = cuda.shared.array(step, int64)
            until = cuda.shared.array(step, int64)
        dq_own = cuda.local.array(own_columns, real)
        sums = cuda.local.array(most, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        end = min(last_key, first_row + rows + offset) if causal else last_key
        seen = min(last_key, i + offset + 1) if causal else last_key
        if listed:
            pattern = window, global_queries, gathered, landmarks, below
            end, low, high, before = keys_of(
                first_row + offset, min(first_row + rows, last_query) + offset, last_key, causal,
                pattern,
            )  # fmt: skip
            first, last = asks_from(i, last_query, offset, causal, pattern)
        if first_row >= last_query:
            end = 0
        if i >= last_query:
            seen = 0

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                q[e, r] = real(0)
                if first_row + r < last_query and e < E:
                    q[e, r] = scale * query[n, h, first_row + r, e]
            for m in range(x, value_dim, rows):
                g[m, r] = real(0)
                if first_row + r < last_query and m < M:
                    g[m, r] = grad_output[n, h, first_row + r, m]
        if columns > head_dim:
            for r in range(y, step, parts):
                for e in range(head_dim + x, columns, rows):
                    k[r, e] = real(0)
        for t in range(own_columns):
            dq_own[t] = real(0)
        cuda.syncthreads()

        near, furthest = min(i, query.shape[2] - 1), relative_scores.shape[3] // 2
        first_end, last_end = real(0), real(0)  # (11) of the keys that this thread meets
        h_i, inverse_i = highest[n, h, near], inverse[n, h, near]
        delta_i = real(0)
        for m in range(M):
            delta_i += g[m, x] * output[n, h, near, m]  # (8)

        for start in range(0, end, step):
            here = step  # rows to take in; on lanes only as many turns as are left
            if on_lanes:
                here = min(step, (end - start + at_once - 1) // at_once * at_once)
            if listed and y == 0 and x < step:
                u = start + x
                place[x], since[x], until[x] = key_at(u, end, low, high, before, causal, pattern)
            if listed:
                cuda.syncthreads()
            for r in range(y, here, parts):
                j = place[r] if listed else start + r
                for e in range(x, head_dim, rows):
                    k[r, e] = real(0)
                    if j < last_key and e < E:
                        k[r, e] = key[n, h, j, e]
                for m in range(x, value_dim, rows):
                    v[r, m] = real(0)
                    if j < last_key and m < M:
                        v[r, m] = value[n, h, j, m]
            cuda.syncthreads()

            if by_tiles:
                apart = start - first_row - offset
                far, end_column = at_one_end(apart - rows + 1, apart + step - 1, furthest)
                end_i = relative_scores[n, h, near, end_column]
            left = int32(min(max(seen - start, 0), step))
            for t in range(0, here // parts, at_once):
                r = y * own_keys + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += q[e, x] * k[r + c, e]
                for c in range(at_once):
                    j = place[r + c] if listed else start + r + c
                    if biased:
                        if by_tiles and far:
                            sums[c] += scale * end_i  # (10)
                        else:
                            r_ij = column(j - i - offset, furthest)
                            sums[c] += scale * relative_scores[n, h, near, r_ij]  # (10)
                    sees = int32(r + c) < left
                    if listed:
                        sees = (since[r + c] <= last) & (first <= until[r + c])
                    ds[r + c, x] = math.exp(sums[c] - h_i) * inverse_i if sees else real(0)  # (2)
                    sums[c] = real(0)
                for m in range(value_dim):
                    for c in range(at_once):
                        sums[c] += g[m, x] * v[r + c, m]
                for c in range(at_once):
                    j = place[r + c] if listed else start + r + c
                    kept = real(1)
                    if dropping:
                        word = random_word(seed, n, h, i, j)
                        kept = survivor if word >= dropped else real(0)
                    slope = ds[r + c, x] * (kept * sums[c] - delta_i)  # (7), (13)
                    ds[r + c, x] = cuda.selp(ds[r + c, x] != real(0), slope, real(0))
                    if by_tiles and far:
                        first_end += ds[r + c, x] if end_column == 0 else real(0)
                        last_end += real(0) if end_column == 0 else ds[r + c, x]
                    elif biased and i < query.shape[2]:
                        distance = j - i - offset
                        if distance <= -furthest or furthest == 0:
                            first_end += ds[r + c, x]
                        elif distance >= furthest:
                            last_end += ds[r + c, x]
                        else:
                            drelative[n, h, i, distance + furthest] = scale * ds[r + c, x]  # (11)
            cuda.syncthreads()

            for t in range(0, own_columns, width):
                e = y * own_columns + t
                for c in range(width):
                    sums[c] = dq_own[t + c]
                for r in range(here):
                    for c in range(width):
                        more = sums[c] + ds[r, x] * k[r, e + c]  # (9)
                        sums[c] = cuda.selp(ds[r, x] != real(0), more, sums[c])
                for c in range(width):
                    dq_own[t + c] = sums[c]
            cuda.syncthreads()

        if i < query.shape[2]:
            for t in range(own_columns):
                if y * own_columns + t < E:
                    dq[n, h, i, y * own_columns + t] = scale * dq_own[t]
            if y == 0:
                delta[n, h, i] = delta_i

        if biased:
            for way in range(2):  # the first end last: with k = 0 both are one, and it has all
                ds[y, x] = first_end if way == 1 else last_end
                cuda.syncthreads()
                of_end = real(0)
                for part in range(parts):
                    of_end += ds[part, x]
                if y == 0 and i < query.shape[2]:
                    drelative[n, h, i, (1 - way) * 2 * furthest] = scale * of_end  # (11)
                cuda.syncthreads()

    return query_gradient


@cache
def _key_gradient_kernel(
    shape: Shape, head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool,
    walk: Walk | None, alone: bool,
) -> Kernel:  # fmt: skip
    rows, parts, step, _ = shape
    columns_k, columns_v = shape.filled(real, head_dim), shape.filled(real, value_dim)
    own_queries, own_k, own_v = step // parts, columns_k // parts, columns_v // parts
    on_lanes, pitch = shape.on_lanes, shape.pitch
    at_once, width_k, width_v = shape.at_once(real, own_queries, own_k, own_v)
    most = max(at_once, width_k, width_v)
    listed, (*_, own_key, queries_of, query_at) = walk is not None, walk or NO_WALK
    by_tiles = biased and shape.on_lanes and walk is None  # (10) at once for far tiles

    @cuda.jit
    def key_gradient(  # type: ignore[no-untyped-def]
        grad_output, highest, inverse, delta, query, key, value, relative_scores, window,
        global_queries, gathered, landmarks, below, query_lengths, key_lengths, causal, offset,
        scale, seed, dropped, survivor, output, dq, dk, dv,
    ):  # fmt: skip
        """Writes dk and dv; where a block is alone with a head, delta, and adds to dq."""
        k = cuda.shared.array((head_dim, pitch), real)
        v = cuda.shared.array((value_dim, pitch), real)
        q = cuda.shared.array((step, columns_k), real)
        g = cuda.shared.array((step, columns_v), real)
        p = cuda.shared.array((step, rows), real)
        ds = cuda.shared.array((step, rows), real)
        if alone:
            finite_k = cuda.shared.array((rows, head_dim), real)
        if listed:
            place = cuda.shared.array(step, int64)  # i of the queries in q and g
            since = cuda.shared.array(step, int64)  # the first position that they ask from
            until = cuda.shared.array(step, int64)
        dk_own = cuda.local.array(own_k, real)
        dv_own = cuda.local.array(own_v, real)
        sums = cuda.local.array(most, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        if alone:
            for i in range(y * rows + x, last_query, parts * rows):
                delta_i = real(0)
                for m in range(M):
                    delta_i += grad_output[n, h, i, m] * output[n, h, i, m]  # (8)
                delta[n, h, i] = delta_i

        if columns_k > head_dim or columns_v > value_dim:
            for r in range(y, step, parts):
                for e in range(head_dim + x, columns_k, rows):
                    q[r, e] = real(0)
                for m in range(value_dim + x, columns_v, rows):
                    g[r, m] = real(0)

        first_row = cuda.blockIdx.x * rows
        while True:
            j = first_row + x
            begin, end = max(0, first_row - offset) if causal else 0, last_query
            seen_from = j - offset if causal else 0
            if first_row >= last_key:
                begin = end
            if j >= last_key:
                seen_from = last_query
            if listed:
                pattern = window, global_queries, gathered, landmarks, below
                begin = 0
                end, low, high, before = queries_of(
                    first_row, rows, last_query, last_key, offset, causal, pattern
                )
                j, first, last = own_key(j, last_key, causal, pattern)
            furthest = relative_scores.shape[3] // 2

            for r in range(y, rows, parts):
                at = first_row + r
                if listed:
                    at, _, _ = own_key(at, last_key, causal, pattern)
                for e in range(x, head_dim, rows):
                    k[e, r] = real(0)
                    if at < last_key and e < E:
                        k[e, r] = key[n, h, at, e]
                    if alone:
                        finite_k[r, e] = cuda.selp(k[e, r] - k[e, r] == real(0), k[e, r], real(0))
                for m in range(x, value_dim, rows):
                    v[m, r] = real(0)
                    if at < last_key and m < M:
                        v[m, r] = value[n, h, at, m]
            odd, careful = real(0), int32(1)  # NaN, once this thread has met what is not finite
            for t in range(own_k):
                dk_own[t] = real(0)
            for t in range(own_v):
                dv_own[t] = real(0)

            for start in range(begin, end, step):
                here = step  # rows to take in; on lanes only as many turns as are left
                if on_lanes:
                    here = min(step, (end - start + at_once - 1) // at_once * at_once)
                if listed and y == 0 and x < step:
                    place[x], since[x], until[x] = query_at(
                        start + x, end, low, high, before, last_query, offset, causal, pattern
                    )
                if listed:
                    cuda.syncthreads()
                for r in range(y, here, parts):
                    i = place[r] if listed else start + r
                    for e in range(x, head_dim, rows):
                        q[r, e] = real(0)
                        if i < last_query and e < E:
                            q[r, e] = scale * query[n, h, i, e]
                        if on_lanes:
                            odd += real(0) * q[r, e]
                    for m in range(x, value_dim, rows):
                        g[r, m] = real(0)
                        if i < last_query and m < M:
                            g[r, m] = grad_output[n, h, i, m]
                        if on_lanes:
                            odd += real(0) * g[r, m]
                if on_lanes:
                    careful = cuda.syncthreads_or(int32(odd != real(0)))
                else:
                    cuda.syncthreads()

                if by_tiles:
                    apart = first_row - start - offset
                    far, end_column = at_one_end(apart - step + 1, apart + rows - 1, furthest)
                hidden = int32(min(max(seen_from - start, 0), step))
                for t in range(0, here // parts, at_once):
                    r = y * own_queries + t
                    for c in range(at_once):
                        sums[c] = real(0)
                    for e in range(head_dim):
                        for c in range(at_once):
                            sums[c] += k[e, x] * q[r + c, e]
                    for c in range(at_once):
                        i = place[r + c] if listed else start + r + c
                        if biased:
                            near = min(i, query.shape[2] - 1)
                            if by_tiles and far:
                                end_i = relative_scores[n, h, near, end_column]
                                sums[c] += scale * end_i  # (10)
                            else:
                                r_ij = column(j - i - offset, furthest)
                                sums[c] += scale * relative_scores[n, h, near, r_ij]  # (10)
                        sees = (hidden <= int32(r + c)) & (i < last_query)
                        if listed:
                            sees = (first <= until[r + c]) & (since[r + c] <= last)
                        i = min(i, last_query - 1)
                        h_i, inverse_i = highest[n, h, i], inverse[n, h, i]
                        p[r + c, x] = (
                            math.exp(sums[c] - h_i) * inverse_i if sees else real(0)
                        )  # (2)
                        sums[c] = real(0)
                    for m in range(value_dim):
                        for c in range(at_once):
                            sums[c] += v[m, x] * g[r + c, m]
                    for c in range(at_once):
                        i = min(place[r + c] if listed else start + r + c, last_query - 1)
                        kept = real(1)
                        if dropping:
                            word = random_word(seed, n, h, i, j)
                            kept = survivor if word >= dropped else real(0)
                        slope = p[r + c, x] * (kept * sums[c] - delta[n, h, i])  # (7), (13)
                        ds[r + c, x] = cuda.selp(p[r + c, x] != real(0), slope, real(0))
                        p[r + c, x] *= kept  # (12)
                cuda.syncthreads()

                for t in range(0, own_v, width_v):
                    m = y * own_v + t
                    for c in range(width_v):
                        sums[c] = dv_own[t + c]
                    if not careful:
                        for r in range(here):
                            for c in range(width_v):
                                sums[c] += p[r, x] * g[r, m + c]  # (6)
                    else:
                        for r in range(here):
                            for c in range(width_v):
                                more = sums[c] + p[r, x] * g[r, m + c]  # (6)
                                sums[c] = cuda.selp(p[r, x] != real(0), more, sums[c])
                    for c in range(width_v):
                        dv_own[t + c] = sums[c]
                for t in range(0, own_k, width_k):
                    e = y * own_k + t
                    for c in range(width_k):
                        sums[c] = dk_own[t + c]
                    if not careful:
                        for r in range(here):
                            for c in range(width_k):
                                sums[c] += ds[r, x] * q[r, e + c]  # (9)
                    else:
                        for r in range(here):
                            for c in range(width_k):
                                more = sums[c] + ds[r, x] * q[r, e + c]  # (9)
                                sums[c] = cuda.selp(ds[r, x] != real(0), more, sums[c])
                    for c in range(width_k):
                        dk_own[t + c] = sums[c]
                if alone:
                    for t in range(0, here // parts, at_once):
                        r = y * own_queries + t
                        for e in range(x, head_dim, rows):
                            for c in range(at_once):
                                sums[c] = real(0)
                            for u in range(rows):
                                for c in range(at_once):
                                    sums[c] += ds[r + c, u] * finite_k[u, e]  # (9)
                            for c in range(at_once):
                                if start + r + c < last_query and e < E:
                                    dq[n, h, start + r + c, e] += scale * sums[c]
                cuda.syncthreads()

            if j < key.shape[2]:
                for t in range(own_k):
                    if y * own_k + t < E:
                        dk[n, h, j, y * own_k + t] = dk_own[t]
                for t in range(own_v):
                    if y * own_v + t < M:
                        dv[n, h, j, y * own_v + t] = dv_own[t]
            first_row += rows
            if not alone or first_row >= last_key:
                break

    return key_gradient


def forward(
    inputs: tuple[Array, ...], options: Any, pattern: Any, results: tuple[Array, ...]
) -> None:
    """Launch (1) to (5) for the inputs and options of `softmax`; results are o, h, 1 / d."""
    query, key, *_ = inputs
    length, wanted = query.shape[2], _wanted(inputs, options, pattern)
    kernel, shape = _made(_forward_kernel, forward_shape, length, *wanted)
    launch = kernel[_blocks(inputs, length, shape), shape.threads]
    launch(*inputs, *pattern_arguments(pattern, key, shape.rows), *options, *results)


def backward(
    inputs: tuple[Array, ...],
    saved: tuple[Array, ...],
    options: Any,
    pattern: Any,
    dq: Array,
    dk: Array,
    dv: Array,
    drelative: Array,
) -> None:
    """Launch (6) to (9) for g, o, h and 1 / d in `saved`; the last four are written to."""
    g, output, *sums = saved
    query, key, *_ = inputs
    wanted = _wanted(inputs, options, pattern)
    batch, heads, *_ = query.shape
    many = _on_lanes(query) and batch * heads >= ENOUGH_HEADS
    alone = many and pattern is None and not drelative.size
    of_keys, shape = _made(_key_gradient_kernel, backward_shape, key.shape[2], *wanted, alone)
    numbers = pattern_arguments(pattern, key, shape.rows)
    arguments = *inputs, *numbers, *options
    delta, of_head = array_module(g).empty_like(sums[0]), (output, dq)
    blocks = _blocks(inputs, shape.rows if alone else numbers[2] + key.shape[2], shape)
    launch = of_keys[blocks, shape.threads]
    if not alone:
        of_head = (array_module(g).empty((0, 0, 0, 0), g.dtype),) * 2  # which none reads
        length = query.shape[2]
        of_queries, shape = _made(_query_gradient_kernel, backward_shape, length, *wanted)
        of_queries[_blocks(inputs, length, shape), shape.threads](
            g, output, *sums, *arguments, dq, delta, drelative
        )
    launch(g, *sums, delta, *arguments, *of_head, dk, dv)


def _on_lanes(query: Array) -> bool:
    """Whether to make blocks for a CPU: if there is enough to do for its cores.

    A small launch gets the blocks of a GPU here too, as whoever looks into one expects.
    """
    batch, heads, length, _ = query.shape
    return array_module(query) is np and batch * heads * max(1, length // LONG) >= ENOUGH_HEADS


def _wanted(inputs: tuple[Array, ...], options: Any, pattern: Any) -> tuple[Any, ...]:
    """What a kernel is made for, beside the number of rows."""
    query, _, value, _ = inputs
    walk = None if pattern is None else pattern.walk
    return query.shape[3], value.shape[3], _on_lanes(query), *kind(inputs, options), walk


@lru_cache(maxsize=1024)
def _made(
    make: Callable[..., Kernel], shape_of: Callable[..., Shape], length: int, E: int, M: int,
    on_lanes: bool, real: Any, biased: bool, dropping: bool, walk: Walk | None, *alone: bool,
) -> tuple[Kernel, Shape]:  # fmt: skip
    """The kernel for so many rows, and how its blocks work."""
    head_dim, value_dim = round_up(E), round_up(M, "value dim")
    if on_lanes:  # a row of lanes that is half empty is kept in memory, not in registers
        head_dim, value_dim = max(head_dim, SHORT), max(value_dim, SHORT)
    shape = shape_of(length, head_dim, value_dim, real, on_lanes, walk is not None)
    return make(shape, head_dim, value_dim, real, biased, dropping, walk, *alone), shape


def _blocks(inputs: tuple[Array, ...], rows: int, shape: Shape) -> tuple[int, int, int]:
    batch, heads, *_ = inputs[0].shape
    return ceil_div(rows, shape.rows), heads, batch

"""The kernels that run: products of matrices in a chunk, and a state that stays with its block.

    forward   (3)-(6)
    scan      (8)-(10), for dq, dk and dv

What they add to `plain`; results/ladder says what it brings:

    a state that stays     in shared memory: a block handles a head and up to 64 columns of its
                           state, and walks along, so that no chunk's state is ever in memory
    tiles of 16 tokens     a number of q, k or S, once read, serves 16 tokens
    several sums a thread  of OWN rows: what is read of a column serves all of them
    Q lies transposed      in (3) it is on the right, in (4) on the left of a product; rows on the
                           left are read by all threads of a row at the same address, a broadcast
    slices of features     wide rows come in parts of 256 bytes, so that tiles fit beside the state
    segments               where heads are too few to keep all processors busy, a sequence is shared
                           out among several blocks, in two walks: the first only adds up (5), from
                           zero; a segment starts from the sums of those before it; the second walk
                           answers. That is about 1.5 times the work, and memory for a state of each

A chunk is a tile (or part of one, or several). threadIdx.x = x is a column of a product,
threadIdx.y = y a group of OWN rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, NamedTuple

from ..arrays import (
    SHARED_BYTES,
    Array,
    array_module,
    ceil_div,
    enough_blocks,
    kernel_dtype,
    round_up,
)
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import guard as get_guard

TILE = 16  # tokens
LANES = TILE  # threadIdx.x
GROUPS = 4  # threadIdx.y
THREADS = LANES, GROUPS
OWN = TILE // GROUPS  # rows of a tile that a thread owns
COLUMNS = (64, 32, 16)  # of the state, per block; the first that fits in shared memory
SLICE_BYTES = 256  # of a row of features, that a tile holds at a time
ENOUGH_BLOCKS = 4  # to keep all cores of a CPU busy
FEWEST_TOKENS = 512  # that are worth a segment


class _Shape(NamedTuple):
    """How a state of `inner` rows is spread over blocks and tiles."""

    inner: int  # rows of the state, rounded up
    slice: int  # of these, that a tile holds at a time
    columns: int  # of the state, per block

    @property
    def width(self) -> int:
        """The columns of a thread."""
        return self.columns // LANES

    @property
    def group(self) -> int:
        """The rows of a slice of the state that a thread owns."""
        return self.slice // GROUPS

    @property
    def at_once(self) -> int:
        """Of these, the rows whose sums it makes at once."""
        return min(OWN, self.group)


def _shape(inner: int, outer: int, real: Any) -> _Shape:
    """The shape for a state of `inner x outer` numbers; its tiles fit in shared memory."""
    size = real.bitwidth // 8
    most = SLICE_BYTES // size
    rows = round_up(inner)
    if rows > most:
        rows = ceil_div(inner, most) * most
    width = min(rows, most)
    fixed = 2 * TILE * width + TILE * TILE + rows + 2 * GROUPS * TILE
    columns = next(c for c in COLUMNS if size * (fixed + (rows + TILE + 1) * c) <= SHARED_BYTES)
    return _Shape(rows, width, min(columns, max(LANES, round_up(outer))))


@cache
def _forward_kernel(shape: _Shape, real: Any, feature_name: str, guard_name: str) -> Kernel:
    inner, slice_, columns = shape
    width, group, at_once = shape.width, shape.group, shape.at_once
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, queries, keys, offset, chunk, span, answers, eps,
        out, denominator, S0, Z0, S1, Z1,
    ):  # fmt: skip
        """Query (N, H, Lq, E), key (N, H, Lk, E), value (N, H, Lk, M), and the spans of both.

        States are (segments, N, H, E, M) and (segments, N, H, E). Without `answers` only the last
        two are written to.
        """
        q = cuda.shared.array((slice_, TILE), real)  # transposed
        k = cuda.shared.array((TILE, slice_), real)
        v = cuda.shared.array((TILE, columns), real)
        a = cuda.shared.array((TILE, TILE), real)  # transposed
        d_part = cuda.shared.array((GROUPS, TILE), real)  # each group's share of d
        S = cuda.shared.array((inner, columns), real)
        Z = cuda.shared.array(inner, real)
        a_own = cuda.local.array(OWN, real)
        n_own = cuda.local.array((width, OWN), real)
        sums = cuda.local.array((width, at_once), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E, M = query.shape[3], value.shape[3]
        segment = cuda.blockIdx.x % S0.shape[0]
        first_m = cuda.blockIdx.x // S0.shape[0] * columns
        batch, first_query = queries[n, 0], queries[n, 1]
        last_query, query_room = queries[n, 2], queries[n, 3]
        first_key, last_key = keys[n, 1], keys[n, 2]
        begin = min(0, offset) + segment * span
        end = min(begin + span, max(last_key, query_room + offset))

        for e in range(y, inner, GROUPS):
            for w in range(width):
                m = first_m + w * LANES + x
                S[e, w * LANES + x] = real(0)
                if e < E and m < M:
                    S[e, w * LANES + x] = S0[segment, n, h, e, m]
        for e in range(y * LANES + x, inner, GROUPS * LANES):
            Z[e] = Z0[segment, n, h, e] if e < E else real(0)

        step = min(chunk, TILE)
        for start in range(begin, end, chunk):
            stop = min(start + chunk, end)
            for tile in range(start, stop, step):  # of queries
                d_own = real(0)
                for w in range(width):
                    for r in range(OWN):
                        n_own[w, r] = real(0)

                for past in range(start, tile + 1, step):  # tiles of keys
                    for r in range(OWN):
                        a_own[r] = real(0)
                    for s in range(0, inner, slice_):
                        cuda.syncthreads()
                        for t in range(y, TILE, GROUPS):
                            j, i = past + t, tile + t - offset
                            is_key = 0 <= j < last_key and j < stop
                            is_query = 0 <= i < last_query and tile + t < stop
                            for e in range(x, slice_, LANES):
                                k[t, e] = real(0)
                                if is_key and s + e < E:
                                    k[t, e] = phi(key[batch, h, first_key + j, s + e])
                                q[e, t] = (
                                    phi(query[batch, h, first_query + i, s + e])
                                    if is_query and s + e < E
                                    else real(0)
                                )
                            if s == 0:
                                for w in range(width):
                                    m = first_m + w * LANES + x
                                    v[t, w * LANES + x] = real(0)
                                    if is_key and m < M:
                                        v[t, w * LANES + x] = value[batch, h, first_key + j, m]
                        cuda.syncthreads()

                        if answers:
                            for e in range(slice_):
                                for r in range(OWN):
                                    a_own[r] += k[y * OWN + r, e] * q[e, x]  # (3)
                        if answers and past == start:
                            for e in range(slice_):
                                for w in range(width):
                                    for r in range(OWN):
                                        n_own[w, r] += (
                                            q[e, y * OWN + r] * S[s + e, w * LANES + x]
                                        )  # (4)
                            for e in range(y, slice_, GROUPS):
                                d_own += q[e, x] * Z[s + e]  # (4)
                        if answers and s + slice_ == inner:
                            for r in range(OWN):
                                j = y * OWN + r
                                if past + j > tile + x:
                                    a_own[r] = real(0)
                                a[j, x] = a_own[r]
                                d_own += a_own[r]  # (4)
                            d_part[y, x] = d_own
                        cuda.syncthreads()

                        if tile + step >= stop:
                            for first in range(0, group, at_once):
                                e = y * group + first
                                for w in range(width):
                                    for r in range(at_once):
                                        sums[w, r] = real(0)
                                for t in range(TILE):
                                    for w in range(width):
                                        for r in range(at_once):
                                            sums[w, r] += k[t, e + r] * v[t, w * LANES + x]
                                for w in range(width):
                                    for r in range(at_once):
                                        S[s + e + r, w * LANES + x] += sums[w, r]  # (5)
                            for e in range(y * LANES + x, slice_, GROUPS * LANES):
                                z = Z[s + e]
                                for t in range(TILE):
                                    z += k[t, e]  # (5)
                                Z[s + e] = z

                    if answers:
                        for t in range(TILE):
                            for w in range(width):
                                for r in range(OWN):
                                    row = y * OWN + r
                                    more = n_own[w, r] + a[t, row] * v[t, w * LANES + x]  # (4)
                                    n_own[w, r] = more if past + t <= tile + row else n_own[w, r]

                if answers:
                    for r in range(OWN):
                        t = y * OWN + r
                        i = tile + t - offset
                        d = real(0)
                        for part in range(GROUPS):
                            d += d_part[part, t]
                        over_D = real(1) / guard(d, eps)
                        if 0 <= i < query_room and tile + t < stop:
                            for w in range(width):
                                m = first_m + w * LANES + x
                                if m < M:
                                    out[batch, h, first_query + i, m] = n_own[w, r] * over_D  # (6)
                            if x == 0 and first_m == 0:
                                denominator[batch, h, first_query + i] = d

        cuda.syncthreads()
        for e in range(y, E, GROUPS):
            for w in range(width):
                m = first_m + w * LANES + x
                if m < M:
                    S1[segment, n, h, e, m] = S[e, w * LANES + x]
        for e in range(y * LANES + x, E, GROUPS * LANES):
            if first_m == 0:
                Z1[segment, n, h, e] = Z[e]

    return forward


@cache
def _scan_kernel(shape: _Shape, real: Any, rows_map: str, result_map: str) -> Kernel:
    """Equation (7): `rows_map` is for A and B, `result_map` for C, and its slope for y."""
    inner, slice_, columns = shape
    width, group, at_once = shape.width, shape.group, shape.at_once
    map_ab = get_feature_map(rows_map, real).value
    map_c, slope = get_feature_map(result_map, real)

    @cuda.jit(fastmath=True)
    def scan(  # type: ignore[no-untyped-def]
        A, B, C, a, b, spans_a, spans_b, offset, way, chunk, span, answers,
        raw, y_out, X0, x0, X1, x1,
    ):  # fmt: skip
        """Equation (7) for A (N, H, La, inner), B (N, H, Lb, inner) and C (N, H, Lb, outer).

        a is (N, H, La), b (N, H, Lb); the spans of both follow. `way` is 1, or -1 to read both
        sequences from their ends; `raw` are the inputs that y is multiplied by phi' of. States are
        (segments, N, H, inner, outer) and (segments, N, H, outer). Without `answers` only the last
        two are written to.
        """
        a_tile = cuda.shared.array((slice_, TILE), real)  # transposed
        b_tile = cuda.shared.array((TILE, slice_), real)
        c_tile = cuda.shared.array((TILE, columns), real)
        w_tile = cuda.shared.array((TILE, TILE), real)  # transposed
        a_extra = cuda.shared.array(TILE, real)
        b_extra = cuda.shared.array(TILE, real)
        X = cuda.shared.array((inner, columns), real)
        x_extra = cuda.shared.array(columns, real)
        w_own = cuda.local.array(OWN, real)
        y_own = cuda.local.array((width, OWN), real)
        sums = cuda.local.array((width, at_once), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        D, M = A.shape[3], C.shape[3]
        segment = cuda.blockIdx.x % X0.shape[0]
        first_c = cuda.blockIdx.x // X0.shape[0] * columns
        batch, first_a, last_a, La = spans_a[n, 0], spans_a[n, 1], spans_a[n, 2], spans_a[n, 3]
        first_b, last_b, Lb = spans_b[n, 1], spans_b[n, 2], spans_b[n, 3]
        begin_a = 0 if way > 0 else La - 1
        begin_b = 0 if way > 0 else Lb - 1
        begin = min(0, offset) + segment * span
        end = min(begin + span, max(Lb, La + offset))

        for d in range(y, inner, GROUPS):
            for w in range(width):
                c = first_c + w * LANES + x
                X[d, w * LANES + x] = real(0)
                if d < D and c < M:
                    X[d, w * LANES + x] = X0[segment, n, h, d, c]
        for c in range(y * LANES + x, columns, GROUPS * LANES):
            x_extra[c] = x0[segment, n, h, first_c + c] if first_c + c < M else real(0)

        step = min(chunk, TILE)
        for start in range(begin, end, chunk):
            stop = min(start + chunk, end)
            for tile in range(start, stop, step):  # of rows A
                for w in range(width):
                    for r in range(OWN):
                        y_own[w, r] = real(0)

                for past in range(start, tile + 1, step):  # tiles of rows B and C
                    for r in range(OWN):
                        w_own[r] = real(0)
                    for s in range(0, inner, slice_):
                        cuda.syncthreads()
                        for t in range(y, TILE, GROUPS):
                            j, i = begin_b + way * (past + t), begin_a + way * (tile + t - offset)
                            is_b = 0 <= j < last_b and past + t < stop
                            is_a = 0 <= i < last_a and tile + t < stop
                            for d in range(x, slice_, LANES):
                                b_tile[t, d] = real(0)
                                if is_b and s + d < D:
                                    b_tile[t, d] = map_ab(B[batch, h, first_b + j, s + d])
                                a_tile[d, t] = (
                                    map_ab(A[batch, h, first_a + i, s + d])
                                    if is_a and s + d < D
                                    else real(0)
                                )
                            if s == 0:
                                for w in range(width):
                                    m = w * LANES + x
                                    c_tile[t, m] = real(0)
                                    if is_b and first_c + m < M:
                                        c_tile[t, m] = map_c(C[batch, h, first_b + j, first_c + m])
                            if x == 0:
                                b_extra[t] = b[batch, h, first_b + j] if is_b else real(0)
                                a_extra[t] = a[batch, h, first_a + i] if is_a else real(0)
                        cuda.syncthreads()

                        if answers:
                            for d in range(slice_):
                                for r in range(OWN):
                                    w_own[r] += b_tile[y * OWN + r, d] * a_tile[d, x]  # (8)
                        if answers and past == start:
                            for d in range(slice_):
                                for w in range(width):
                                    for r in range(OWN):
                                        y_own[w, r] += (
                                            a_tile[d, y * OWN + r] * X[s + d, w * LANES + x]
                                        )  # (9)
                        if answers and s + slice_ == inner:
                            for r in range(OWN):
                                j = y * OWN + r
                                w_tile[j, x] = w_own[r] + b_extra[j] * a_extra[x]  # (8)
                                if past == start:
                                    for w in range(width):
                                        y_own[w, r] += a_extra[j] * x_extra[w * LANES + x]  # (9)
                        cuda.syncthreads()

                        if tile + step >= stop:
                            for first in range(0, group, at_once):
                                d = y * group + first
                                for w in range(width):
                                    for r in range(at_once):
                                        sums[w, r] = real(0)
                                for t in range(TILE):
                                    for w in range(width):
                                        for r in range(at_once):
                                            sums[w, r] += (
                                                b_tile[t, d + r] * c_tile[t, w * LANES + x]
                                            )
                                for w in range(width):
                                    for r in range(at_once):
                                        X[s + d + r, w * LANES + x] += sums[w, r]  # (10)

                    if tile + step >= stop:
                        for c in range(y * LANES + x, columns, GROUPS * LANES):
                            total = x_extra[c]
                            for t in range(TILE):
                                total += b_extra[t] * c_tile[t, c]  # (10)
                            x_extra[c] = total
                    if answers:
                        for t in range(TILE):
                            for w in range(width):
                                for r in range(OWN):
                                    row = y * OWN + r
                                    more = w_tile[t, row] * c_tile[t, w * LANES + x] + y_own[w, r]
                                    y_own[w, r] = more if past + t <= tile + row else y_own[w, r]

                if answers:
                    for r in range(OWN):
                        t = y * OWN + r
                        i = begin_a + way * (tile + t - offset)
                        if 0 <= i < La and tile + t < stop:
                            for w in range(width):
                                c = first_c + w * LANES + x
                                if c < M:
                                    y_out[batch, h, first_a + i, c] = y_own[w, r] * slope(
                                        raw[batch, h, first_a + i, c]
                                    )

        cuda.syncthreads()
        for d in range(y, D, GROUPS):
            for w in range(width):
                c = first_c + w * LANES + x
                if c < M:
                    X1[segment, n, h, d, c] = X[d, w * LANES + x]
        for c in range(y * LANES + x, columns, GROUPS * LANES):
            if first_c + c < M:
                x1[segment, n, h, first_c + c] = x_extra[c]

    return scan


Pair = tuple[Array, Array]  # a state: S and Z, or X and x


def _segments(
    Lq: int, Lk: int, offset: int, chunk: int, blocks: tuple[int, ...], like: Array
) -> tuple[int, int]:
    """How many segments a sequence is cut into, where each takes so many blocks; their span."""
    positions = max(Lk, Lq + offset) - min(0, offset)
    enough = enough_blocks(like, ENOUGH_BLOCKS) // max(1, prod(blocks))
    segments = max(1, min(enough, positions // FEWEST_TOKENS))
    span = max(1, ceil_div(ceil_div(positions, segments), chunk)) * chunk  # whole chunks
    return max(1, ceil_div(positions, span)), span


def _in_segments(launch: Callable[[bool, Pair, Pair], None], segments: int, state: Pair) -> Pair:
    """Launch a kernel, for its sums and its answers; return the state after the last segment.

    `launch` takes whether to answer, the states to start from, and those to write to.
    """
    xp = array_module(state[0])
    starts, ends = (tuple(xp.zeros((segments, *x.shape), x.dtype) for x in state) for _ in range(2))
    if segments > 1:
        launch(False, starts, ends)
    for start, end, x in zip(starts, ends, state, strict=True):
        start[0] = x
        for i in range(1, segments):
            start[i] = start[i - 1] + end[i - 1]
    launch(True, starts, ends)
    S, Z = (end[-1] for end in ends)
    return S, Z


def forward(
    chunk: int, query: Array, key: Array, value: Array, queries: Array, keys: Array, offset: int,
    eps: Any, feature_map: str, guard: str, S0: Array, Z0: Array, output: Array, denominator: Array,
) -> Pair:  # fmt: skip
    """Equations (3) to (6): the last two are written to, and the next state is returned."""
    (_, H, Lq, E), (Lk, M) = query.shape, value.shape[2:]
    shape, real = _shape(E, M, kernel_dtype(query)), kernel_dtype(query)
    blocks = ceil_div(M, shape.columns), H, len(queries)
    segments, span = _segments(Lq, Lk, offset, chunk, blocks, query)
    kernel = _forward_kernel(shape, real, feature_map, guard)

    def launch(answers: bool, starts: Pair, ends: Pair) -> None:
        kernel[(segments * blocks[0], *blocks[1:]), THREADS](
            query, key, value, queries, keys, offset, chunk, span, answers, eps,
            output, denominator, *starts, *ends,
        )  # fmt: skip

    return _in_segments(launch, segments, (S0, Z0))


def scan(
    chunk: int, A: Array, B: Array, C: Array, a: Array, b: Array, spans_a: Array, spans_b: Array,
    offset: int, way: int, X0: Array, x0: Array, raw: Array, rows_map: str, result_map: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Equation (7) for one row of its table: y, X_L and x_L."""
    (_, H, La, inner), (Lb, outer) = A.shape, C.shape[2:]
    shape, real = _shape(inner, outer, kernel_dtype(A)), kernel_dtype(A)
    y = array_module(A).empty_like(raw)
    blocks = ceil_div(outer, shape.columns), H, len(spans_a)
    segments, span = _segments(La, Lb, offset, chunk, blocks, A)
    kernel = _scan_kernel(shape, real, rows_map, result_map)

    def launch(answers: bool, starts: Pair, ends: Pair) -> None:
        kernel[(segments * blocks[0], *blocks[1:]), THREADS](
            A, B, C, a, b, spans_a, spans_b, offset, way, chunk, span, answers, raw, y,
            *starts, *ends,
        )  # fmt: skip

    X1, x1 = _in_segments(launch, segments, (X0, x0))
    return y, X1, x1

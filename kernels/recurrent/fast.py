"""The kernels that run: a block takes a head and up to 64 columns of its state.

    forward   (1)-(4); a thread owns a column of S in registers
    scan      (10), for dq, dk and dv

What they add to `plain`; results/ladder says what it brings:

    the state in registers    a column is read and written once a sequence, not once a token; its
                              rows are shared out among `parts` threads, so that there is room
    tiles in shared memory    of up to 32 tokens: a feature is read from memory, and goes through
                              phi, once for all columns of a block
    TOGETHER tokens at once   a number of the state is read and written once for four of them
    Z shared out              a thread keeps one number of it; the products with q wait in shared
                              memory for the threads that add up d, each a row: with a pitch, so
                              that neighbouring rows begin in different banks

The step is plain as it is: one token has nothing to share.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..arrays import SHARED_BYTES, Array, array_module, ceil_div, kernel_dtype, round_up
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import guard as get_guard

MAX_COLUMNS = 64  # of the state, per block
MAX_ROWS = 32  # of the state, per thread: they live in registers
MAX_THREADS = 256  # per block: a multiprocessor has registers for no more of these
TILES = (32, 16, 8, 4)  # tokens; the first that fits in shared memory
TOGETHER = 4  # of these, that a number of the state takes in at a time: it is read and written once
TILE = TILES[0]


class Shape(NamedTuple):
    """How a state of rounded size `inner x outer` is spread over blocks and threads."""

    columns: int  # threadIdx.x: a column of the state
    parts: int  # threadIdx.y: a range of its rows
    rows: int  # rows per thread
    tile: int  # tokens per tile

    @property
    def threads(self) -> tuple[int, int]:
        """The block's shape."""
        return self.columns, self.parts


def _shape(inner: int, outer: int, real: Any) -> Shape:
    """The shape for a state of rounded size `inner x outer`; its tiles fit in shared memory."""
    parts = max(1, inner // MAX_ROWS)
    rows = inner // parts
    columns = min(MAX_COLUMNS, MAX_THREADS // parts, max(rows, outer))
    bytes_per_token = (3 * inner + (1 + parts) * columns + 2) * real.bitwidth // 8
    tile = next(t for t in TILES if t * bytes_per_token <= SHARED_BYTES)
    return Shape(columns, parts, rows, tile)


@cache
def _forward_kernel(
    head_dim: int, value_dim: int, real: Any, feature_name: str, guard_name: str
) -> Kernel:
    columns, parts, rows, tile = _shape(head_dim, value_dim, real)
    pitch = head_dim + 1
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, queries, keys, offset, eps, S0, Z0, out, denominator, S1, Z1
    ):
        """Query (N, H, Lq, E), key (N, H, Lk, E), value (N, H, Lk, M), and the spans of both.

        The last four are written to.
        """
        q_tile = cuda.shared.array((tile, head_dim), real)
        k_tile = cuda.shared.array((tile, head_dim), real)
        v_tile = cuda.shared.array((tile, columns), real)
        n_part = cuda.shared.array((parts, tile, columns), real)  # each part's share of n
        qz = cuda.shared.array((tile, pitch), real)  # q_i * Z_i, before the sum
        D_tile = cuda.shared.array(tile, real)
        totals = cuda.local.array(TOGETHER, real)
        S = cuda.local.array(rows, real)  # this thread's part of column m of S

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * columns + x
        own_row = y * rows + x  # the row of Z that this thread keeps
        first_row = y * rows
        E, M = query.shape[3], value.shape[3]
        b, first_query, last_query, query_room = (
            queries[n, 0],
            queries[n, 1],
            queries[n, 2],
            queries[n, 3],
        )
        first_key, last_key = keys[n, 1], keys[n, 2]

        for r in range(rows):
            S[r] = real(0)
            if first_row + r < E and m < M:
                S[r] = S0[n, h, first_row + r, m]
        z = real(0)
        if x < rows and own_row < E:
            z = Z0[n, h, own_row]

        for start in range(min(0, offset), max(last_key, query_room + offset), tile):
            for t in range(y, tile, parts):
                p = start + t
                i = p - offset
                is_key, is_query = 0 <= p < last_key, 0 <= i < last_query
                v_tile[t, x] = value[b, h, first_key + p, m] if is_key and m < M else real(0)
                for e in range(x, head_dim, columns):
                    k_tile[t, e] = phi(key[b, h, first_key + p, e]) if is_key and e < E else real(0)
                    q_tile[t, e] = (
                        phi(query[b, h, first_query + i, e]) if is_query and e < E else real(0)
                    )
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for u in range(TOGETHER):
                    totals[u] = real(0)
                for r in range(rows):
                    s = S[r]
                    for u in range(TOGETHER):
                        s += k_tile[t + u, first_row + r] * v_tile[t + u, x]  # (1)
                        totals[u] += s * q_tile[t + u, first_row + r]  # (3)
                    S[r] = s
                for u in range(TOGETHER):
                    n_part[y, t + u, x] = totals[u]
            if x < rows:
                for t in range(tile):
                    z += k_tile[t, own_row]  # (2)
                    qz[t, own_row] = z * q_tile[t, own_row]
            cuda.syncthreads()

            if y == 0:
                for t in range(x, tile, columns):
                    d = real(0)
                    for e in range(head_dim):
                        d += qz[t, e]  # (3)
                    D_tile[t] = guard(d, eps)
                    i = start + t - offset
                    if 0 <= i < query_room and cuda.blockIdx.x == 0:
                        denominator[b, h, first_query + i] = d
            cuda.syncthreads()

            for t in range(y, tile, parts):
                total = real(0)
                for part in range(parts):
                    total += n_part[part, t, x]
                o = total / D_tile[t]  # (4)
                i = start + t - offset
                if 0 <= i < query_room and m < M:
                    out[b, h, first_query + i, m] = o

        for r in range(rows):
            if first_row + r < E and m < M:
                S1[n, h, first_row + r, m] = S[r]
        if x < rows and own_row < E and cuda.blockIdx.x == 0:
            Z1[n, h, own_row] = z

    return forward


def forward(
    query: Array, key: Array, value: Array, queries: Array, keys: Array, offset: int, eps: Any,
    feature_map: str, guard: str, S0: Array, Z0: Array, output: Array, denominator: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Equations (1) to (4): the last two are written to, and the next state is returned."""
    (_, H, _, E), M = query.shape, value.shape[3]
    S1, Z1 = (array_module(x).empty_like(x) for x in (S0, Z0))
    dims, real = (round_up(E), round_up(M, "value dim")), kernel_dtype(query)
    shape = _shape(*dims, real)
    kernel = _forward_kernel(*dims, real, feature_map, guard)
    kernel[(ceil_div(M, shape.columns), H, len(queries)), shape.threads](
        query, key, value, queries, keys, offset, eps, S0, Z0, output, denominator, S1, Z1
    )
    return S1, Z1


@cache
def _scan_kernel(inner: int, outer: int, real: Any, rows_map: str, result_map: str) -> Kernel:
    """Equation (10): `rows_map` is for A and B, `result_map` for C, and its slope for y."""
    columns, parts, rows, tile = _shape(inner, outer, real)
    map_ab = get_feature_map(rows_map, real).value
    map_c, slope = get_feature_map(result_map, real)

    @cuda.jit(fastmath=True)
    def scan(A, B, C, a, b, spans_a, spans_b, offset, way, X0, x0, raw, y_out, X1, x1):  # type: ignore[no-untyped-def]
        """Equation (10) for A (N, H, La, inner), B (N, H, Lb, inner) and C (N, H, Lb, outer).

        a is (N, H, La), b (N, H, Lb); the spans of both follow. `way` is 1, or -1 to read both
        sequences from their ends; `raw` are the inputs that y is multiplied by phi' of.
        """
        a_tile = cuda.shared.array((tile, inner), real)
        b_tile = cuda.shared.array((tile, inner), real)
        c_tile = cuda.shared.array((tile, columns), real)
        y_part = cuda.shared.array((parts, tile, columns), real)
        a_extra = cuda.shared.array(tile, real)
        b_extra = cuda.shared.array(tile, real)
        totals = cuda.local.array(TOGETHER, real)
        X = cuda.local.array(rows, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        c = cuda.blockIdx.x * columns + x
        first_row = y * rows
        width, height = A.shape[3], C.shape[3]
        batch, first_a, last_a, La = spans_a[n, 0], spans_a[n, 1], spans_a[n, 2], spans_a[n, 3]
        first_b, last_b, Lb = spans_b[n, 1], spans_b[n, 2], spans_b[n, 3]
        begin_a = 0 if way > 0 else La - 1
        begin_b = 0 if way > 0 else Lb - 1

        for r in range(rows):
            X[r] = real(0)
            if first_row + r < width and c < height:
                X[r] = X0[n, h, first_row + r, c]
        extra = real(0)
        if y == 0 and c < height:
            extra = x0[n, h, c]

        for start in range(min(0, offset), max(Lb, La + offset), tile):
            for t in range(y, tile, parts):
                j = begin_b + way * (start + t)
                i = begin_a + way * (start + t - offset)
                is_b, is_a = 0 <= j < last_b, 0 <= i < last_a
                c_tile[t, x] = (
                    map_c(C[batch, h, first_b + j, c]) if is_b and c < height else real(0)
                )
                for d in range(x, inner, columns):
                    b_tile[t, d] = (
                        map_ab(B[batch, h, first_b + j, d]) if is_b and d < width else real(0)
                    )
                    a_tile[t, d] = (
                        map_ab(A[batch, h, first_a + i, d]) if is_a and d < width else real(0)
                    )
            if y == 0:
                for t in range(x, tile, columns):
                    j = begin_b + way * (start + t)
                    i = begin_a + way * (start + t - offset)
                    b_extra[t] = b[batch, h, first_b + j] if 0 <= j < last_b else real(0)
                    a_extra[t] = a[batch, h, first_a + i] if 0 <= i < last_a else real(0)
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for u in range(TOGETHER):
                    totals[u] = real(0)
                    if y == 0:
                        extra += b_extra[t + u] * c_tile[t + u, x]
                        totals[u] = extra * a_extra[t + u]
                for r in range(rows):
                    s = X[r]
                    for u in range(TOGETHER):
                        s += b_tile[t + u, first_row + r] * c_tile[t + u, x]
                        totals[u] += s * a_tile[t + u, first_row + r]
                    X[r] = s
                for u in range(TOGETHER):
                    y_part[y, t + u, x] = totals[u]
            cuda.syncthreads()

            for t in range(y, tile, parts):
                total = real(0)
                for part in range(parts):
                    total += y_part[part, t, x]
                i = begin_a + way * (start + t - offset)
                if 0 <= i < La and c < height:
                    y_out[batch, h, first_a + i, c] = total * slope(raw[batch, h, first_a + i, c])

        for r in range(rows):
            if first_row + r < width and c < height:
                X1[n, h, first_row + r, c] = X[r]
        if y == 0 and c < height:
            x1[n, h, c] = extra

    return scan


def scan(
    A: Array, B: Array, C: Array, a: Array, b: Array, spans_a: Array, spans_b: Array, offset: int,
    way: int, X0: Array, x0: Array, raw: Array, rows_map: str, result_map: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Equation (10) for one row of its table: y, X_L and x_L."""
    _, H, _, inner = A.shape
    outer = C.shape[3]
    xp = array_module(A)
    y, X1, x1 = xp.empty_like(raw), xp.empty_like(X0), xp.empty_like(x0)
    dims = round_up(inner), round_up(outer)
    real = kernel_dtype(A)
    shape = _shape(*dims, real)
    kernel = _scan_kernel(*dims, real, rows_map, result_map)
    kernel[(ceil_div(outer, shape.columns), H, len(X0)), shape.threads](
        A, B, C, a, b, spans_a, spans_b, offset, way, X0, x0, raw, y, X1, x1
    )
    return y, X1, x1

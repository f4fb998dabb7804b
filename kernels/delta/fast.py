r"""The kernels that run.

What they add to `plain`; results/ladder says what it brings:

    a tile of tokens at once    all products with W before a tile, (7): TOGETHER tokens share each
                                read and write of W; only `writes` of a tile is done one by one
    W in registers              a thread owns some rows of a column for the whole sequence, so that
                                W never goes to memory
    tiles in shared memory      each key is read from memory once for all columns of a block;
                                transposed, so that TOGETHER tokens are read by one instruction.
                                With a pitch of so many more, neighbours in a column lie in 8
                                banks. With one more they would lie in all 32, but then each number
                                is an instruction, and for each that is written 64 are read
    rows shared out             among `parts` threads for wide keys, whose sums are then added up
    one walk for r and o        a number of W, while it is at hand for (3), gives its share of (4):
                                there is no second walk, with the same keys and a state of its own
    three walks back            (14) and (15) in place of six sums, (8) to (12): two of those have
                                the state W, and four have G
    one addition a token        what a token adds to a number of G is made of its products first, so
                                that for the token before waits one addition, not all products

The step is plain as it is: one token has nothing to share.

Columns of W do not know of each other: residual m needs only column m. A block handles one head and
up to 64 columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import SHARED_BYTES, Array, array_module, ceil_div, kernel_dtype, round_up
from ..cuda import Kernel, cuda
from ..recurrent.fast import MAX_COLUMNS, MAX_ROWS, MAX_THREADS, TOGETHER, Shape

TILE = 16  # tokens
# Of a tile and of what is added for its pitch, the first that fit in shared memory.
TILES = (TILE, TOGETHER), (8, TOGETHER), (4, TOGETHER), (4, 0)


def _shape(
    inner: int, outer: int, real: Any, rows: int, columns: int, squares: int = 0
) -> tuple[Shape, int]:
    """The shape for a state of a rounded size, so that a tile of tokens fits in shared memory.

    After it comes the pitch of what is transposed there: see above.

    A token has there so many rows of the state's, transposed, so many of its columns, one more for
    each part, and so many numbers for each token of the tile.
    """
    parts = max(1, inner // MAX_ROWS)
    own = inner // parts
    wide = min(MAX_COLUMNS, MAX_THREADS // parts, max(own, outer))

    for tile, more in TILES:
        rest = (columns + parts) * wide + squares * tile + 1
        numbers = rows * inner * (tile + more) + tile * rest
        if numbers * real.bitwidth // 8 <= SHARED_BYTES:
            break
    return Shape(wide, parts, own, tile), tile + more


def _residual_shape(head_dim: int, value_dim: int, real: Any, task: str) -> tuple[Shape, int]:
    """The shape of `residual_kernel`: a row of keys, one of queries, columns of r, and of g."""
    asking, back = task != "writes", task == "gradients"
    return _shape(head_dim, value_dim, real, 1 + asking, 1 + back, 1 + back)


@cache
def residual_kernel(head_dim: int, value_dim: int, real: Any, task: str) -> Kernel:
    """Equation (7); a thread owns a column of W in registers.

    The task is "writes" alone, (10) in reverse; or "answers", (4), too; or "gradients", for which
    it goes from the end through (14) and (15), with -G for W.
    """
    (columns, parts, rows, tile), pitch = _residual_shape(head_dim, value_dim, real, task)
    answering, back = task == "answers", task == "gradients"
    asking = answering or back

    @cuda.jit(fastmath=True)
    def residual(  # type: ignore[no-untyped-def]
        query, key, value, beta, queries, places, offset, way, W0, out, r_out, u_out, W1
    ):
        """Key (N, H, L, E), value (N, H, L, M), beta (N, H, L), and the spans of all three.

        `way` is 1, or -1 to read from the end. Queries (N, H, Lq, E) and their spans are read to
        answer and for gradients. Answers go to `out`, and u is not written to. For gradients,
        `value` is the gradient of the output (N, H, Lq, M), r is du and u is dr. Both are zero in
        the padding.
        """
        k_tile = cuda.shared.array((head_dim, pitch), real)  # transposed
        r_tile = cuda.shared.array((tile, columns), real)  # v, then r
        part = cuda.shared.array((parts, tile, columns), real)  # of each part in W^T k, or W^T q
        writes = cuda.shared.array((tile, tile), real)  # beta_s k_t . k_s
        beta_tile = cuda.shared.array(tile, real)
        if asking:
            q_tile = cuda.shared.array((head_dim, pitch), real)
        if answering:
            answers = cuda.local.array(TOGETHER, real)
        if back:
            g_tile = cuda.shared.array((tile, columns), real)
            asks = cuda.shared.array((tile, tile), real)  # k_t . q_s
            g_own = cuda.local.array(TOGETHER, real)
        totals = cuda.local.array(TOGETHER, real)
        W = cuda.local.array(rows, real)  # this thread's part of column m of W

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * columns + x
        first_row = y * rows
        E, M = key.shape[3], value.shape[3]
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        low, high = 0, room
        if asking:
            first_query, last_query, query_room = queries[n, 1], queries[n, 2], queries[n, 3]
            low, high = min(0, offset), max(query_room + offset, room)
        begin = low if way > 0 else high - 1

        for e in range(rows):
            W[e] = real(0)
            if first_row + e < E and m < M:
                W[e] = W0[n, h, first_row + e, m]

        for start in range(0, high - low, tile):
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                is_token = 0 <= j < last
                if not back:
                    r_tile[t, x] = value[b, h, first + j, m] if is_token and m < M else real(0)
                for e in range(x, head_dim, columns):
                    k_tile[e, t] = key[b, h, first + j, e] if is_token and e < E else real(0)
                if asking:
                    i = j - offset
                    is_query = 0 <= i < last_query
                    if back:
                        g_tile[t, x] = (
                            value[b, h, first_query + i, m] if is_query and m < M else real(0)
                        )
                    for e in range(x, head_dim, columns):
                        q_tile[e, t] = (
                            query[b, h, first_query + i, e] if is_query and e < E else real(0)
                        )
            if y == 0:
                for t in range(x, tile, columns):
                    j = begin + way * (start + t)
                    beta_tile[t] = beta[b, h, first + j] if 0 <= j < last else real(0)
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    totals[i] = real(0)
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        totals[i] += w * k_tile[first_row + e, t + i]
                for i in range(TOGETHER):
                    part[y, t + i, x] = totals[i]
            for t in range(y, tile, parts):
                for s in range(x, tile, columns):
                    product, asked = real(0), real(0)
                    for e in range(head_dim):
                        product += k_tile[e, t] * k_tile[e, s]
                        if back:
                            asked += k_tile[e, t] * q_tile[e, s]
                    writes[t, s] = product * beta_tile[s]
                    if back:
                        asks[t, s] = asked
            cuda.syncthreads()

            if y == 0:
                for t in range(tile):
                    r = real(0)
                    if not back:
                        r = r_tile[t, x]
                    for p in range(parts):
                        r -= part[p, t, x]
                    if back:
                        for s in range(t + 1):
                            r += asks[t, s] * g_tile[s, x]  # (14), then (15)
                    for s in range(t):
                        r -= writes[t, s] * r_tile[s, x]  # (7)
                    r_tile[t, x] = r
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    totals[i] = beta_tile[t + i] * r_tile[t + i, x]
                    if answering:
                        answers[i] = real(0)
                    if back:
                        g_own[i] = g_tile[t + i, x]
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        write = k_tile[first_row + e, t + i] * totals[i]
                        if back:
                            write -= q_tile[first_row + e, t + i] * g_own[i]  # (14)
                        w += write  # (3)
                        if answering:
                            answers[i] += w * q_tile[first_row + e, t + i]  # (4)
                    W[e] = w
                if answering:
                    for i in range(TOGETHER):
                        part[y, t + i, x] = answers[i]
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                if 0 <= j < room and m < M:
                    r_out[b, h, first + j, m] = r_tile[t, x]
                    if not answering:
                        u_out[b, h, first + j, m] = beta_tile[t] * r_tile[t, x]  # (2)
            cuda.syncthreads()

            if answering:
                for t in range(y, tile, parts):
                    o = real(0)
                    for p in range(parts):
                        o += part[p, t, x]
                    i = begin + way * (start + t) - offset
                    if 0 <= i < query_room and m < M:
                        out[b, h, first_query + i, m] = o  # (4)

        for e in range(rows):
            if first_row + e < E and m < M:
                W1[n, h, first_row + e, m] = W[e]

    return residual


def _rows_shape(value_dim: int, head_dim: int, real: Any, back: bool) -> tuple[Shape, int]:
    """The shape of `rows_kernel`: rows of g, u and dr; columns of k, of q or of parts of dq."""
    parts = max(1, value_dim // MAX_ROWS)
    return _shape(value_dim, head_dim, real, 3, 2 if back else 1 + parts)


@cache
def rows_kernel(value_dim: int, head_dim: int, real: Any, back: bool) -> Kernel:
    """Equation (15) for dq and dk; a thread owns a row of W in registers, or of G.

    One walk reads from W what dr and g find there, and writes u; the other, `back` from the end,
    writes g and dr to G, and reads what u finds there.
    """
    (columns, parts, rows, tile), pitch = _rows_shape(value_dim, head_dim, real, back)

    @cuda.jit(fastmath=True)
    def rows_of_state(  # type: ignore[no-untyped-def]
        grad, query, key, beta, r, dr, queries, places, offset, W0, dq, dk
    ):
        """Grad (N, H, Lq, M), query (N, H, Lq, E), key (N, H, L, E), beta (N, H, L).

        r and dr are (N, H, L, M); the spans of queries and of keys follow, and W0, or D, of
        (N, H, E, M). dq and dk are written to; `back`, dk is added to.
        """
        g_tile = cuda.shared.array((value_dim, pitch), real)
        u_tile = cuda.shared.array((value_dim, pitch), real)
        d_tile = cuda.shared.array((value_dim, pitch), real)  # dr
        k_tile = cuda.shared.array((tile, columns), real)
        k_part = cuda.shared.array((parts, tile, columns), real)  # of each part in dk
        if back:
            q_tile = cuda.shared.array((tile, columns), real)
            q_own = cuda.local.array(TOGETHER, real)
        else:
            q_part = cuda.shared.array((parts, tile, columns), real)  # of each part in dq
            of_query = cuda.local.array(TOGETHER, real)
        of_key = cuda.local.array(TOGETHER, real)
        k_own = cuda.local.array(TOGETHER, real)
        W = cuda.local.array(rows, real)  # this thread's part of row e of W, or of G

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        e = cuda.blockIdx.x * columns + x
        first_row = y * rows
        E, M = key.shape[3], grad.shape[3]
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        first_query, last_query, query_room = queries[n, 1], queries[n, 2], queries[n, 3]
        low, high = min(0, offset), max(query_room + offset, room)
        begin, way = low, 1
        if back:
            begin, way = high - 1, -1

        for m in range(rows):
            W[m] = real(0)
            if first_row + m < M and e < E:
                W[m] = W0[n, h, e, first_row + m]

        for start in range(0, high - low, tile):
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                i = j - offset
                is_token, is_query = 0 <= j < last, 0 <= i < last_query
                k_tile[t, x] = key[b, h, first + j, e] if is_token and e < E else real(0)
                if back:
                    q_tile[t, x] = (
                        query[b, h, first_query + i, e] if is_query and e < E else real(0)
                    )
                for m in range(x, value_dim, columns):
                    g_tile[m, t] = grad[b, h, first_query + i, m] if is_query and m < M else real(0)
                for m in range(x, value_dim, columns):
                    u_tile[m, t] = (
                        beta[b, h, first + j] * r[b, h, first + j, m]
                        if is_token and m < M
                        else real(0)
                    )  # (2)
                    d_tile[m, t] = dr[b, h, first + j, m] if is_token and m < M else real(0)
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    of_key[i] = real(0)
                    k_own[i] = k_tile[t + i, x]
                    if back:
                        q_own[i] = q_tile[t + i, x]
                    else:
                        of_query[i] = real(0)
                for m in range(rows):
                    w, lost = W[m], real(0)
                    for i in range(TOGETHER):
                        if back:
                            w += q_own[i] * g_tile[first_row + m, t + i] - lost  # (14)
                            of_key[i] += w * u_tile[first_row + m, t + i]  # (15)
                            lost = k_own[i] * d_tile[first_row + m, t + i]  # (14)
                        else:
                            of_key[i] -= w * d_tile[first_row + m, t + i]  # (15)
                            w += k_own[i] * u_tile[first_row + m, t + i]  # (3)
                            of_query[i] += w * g_tile[first_row + m, t + i]  # (15)
                    W[m] = w - lost
                for i in range(TOGETHER):
                    k_part[y, t + i, x] = of_key[i]
                    if not back:
                        q_part[y, t + i, x] = of_query[i]
            cuda.syncthreads()

            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                total = real(0)
                for p in range(parts):
                    total += k_part[p, t, x]
                if 0 <= j < room and e < E:
                    if back:
                        total += dk[b, h, first + j, e]
                    dk[b, h, first + j, e] = total
                if not back:
                    i = j - offset
                    total = real(0)
                    for p in range(parts):
                        total += q_part[p, t, x]
                    if 0 <= i < query_room and e < E:
                        dq[b, h, first_query + i, e] = total

    return rows_of_state


@cache
def step_kernel(columns: int, real: Any) -> Kernel:
    """Equations (1) to (4) for one token."""

    @cuda.jit(fastmath=True)
    def step(query, key, value, beta, W, out, W_next):  # type: ignore[no-untyped-def]
        """Query and key (N, H, E), value (N, H, M), beta (N, H); a thread owns column m of W."""
        m = cuda.blockIdx.x * columns + cuda.threadIdx.x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if m < value.shape[2]:
            r = value[n, h, m]
            for e in range(query.shape[2]):
                r -= W[n, h, e, m] * key[n, h, e]  # (1)
            u = beta[n, h] * r  # (2)
            total = real(0)
            for e in range(query.shape[2]):
                w = W[n, h, e, m] + key[n, h, e] * u  # (3)
                W_next[n, h, e, m] = w
                total += w * query[n, h, e]  # (4)
            out[n, h, m] = total

    return step


def forward(
    query: Array, key: Array, value: Array, beta: Array, queries: Array, keys: Array, offset: int,
    W0: Array, out: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Equations (7), (3) and (4) in one walk; out is written to. Returns r and the state."""
    r, W1 = (array_module(value).empty_like(x) for x in (value, W0))
    _walk("answers", query, key, value, beta, queries, keys, offset, 1, W0, out, r, r, W1)
    return r, W1


def residuals(
    key: Array, value: Array, beta: Array, places: Array, way: int, W0: Array
) -> tuple[Array, Array, Array]:
    """Return r and u of `delta`'s equations (7) and (2), and the state; with way = -1, (10)."""
    r, u, W1 = (array_module(value).empty_like(x) for x in (value, value, W0))
    _walk("writes", key, key, value, beta, places, places, 0, way, W0, r, r, u, W1)
    return r, u, W1


def backward(
    grad: Array, query: Array, key: Array, beta: Array, r: Array, queries: Array, keys: Array,
    offset: int, W0: Array, D: Array,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """Equations (14) and (15) in three walks: dq, dk, du, dr and the gradient of W0.

    One for du, with G from the end; one for the rows of W; and one for those of G, as du and dk are
    sums along a column of it, and along a row.
    """
    xp, (_, H, _, E), M = array_module(key), key.shape, r.shape[3]
    dq, dk, du, dr, dW = (xp.empty_like(x) for x in (query, key, r, r, W0))
    _walk("gradients", query, key, grad, beta, queries, keys, offset, -1, -D, du, du, dr, dW)
    dims, real = (round_up(M, "value dim"), round_up(E)), kernel_dtype(key)
    for back, state in (False, W0), (True, D):
        shape, _ = _rows_shape(*dims, real, back)
        rows_kernel(*dims, real, back)[(ceil_div(E, shape.columns), H, len(keys)), shape.threads](
            grad, query, key, beta, r, dr, queries, keys, offset, state, dq, dk
        )
    return dq, dk, du, dr, -dW


def _walk(
    task: str, query: Array, key: Array, value: Array, beta: Array, queries: Array, *rest: Any
) -> None:
    """Launch the kernel for a task."""
    (_, H, _, E), M = key.shape, value.shape[3]
    dims, real = (round_up(E), round_up(M, "value dim")), kernel_dtype(key)
    (shape, _), N = _residual_shape(*dims, real, task), len(queries)
    kernel = residual_kernel(*dims, real, task)
    kernel[(ceil_div(M, shape.columns), H, N), shape.threads](
        query, key, value, beta, queries, *rest
    )

r"""Causal linear attention as a recurrence: transformers are RNNs (Katharopoulos et al. 2020; S1).

With features q_i = phi(Q_i) and k_j = phi(K_j) the causal sums over j <= i need not be started
again for each i. They are states, updated once a token:

    S_i = S_{i-1} + k_i v_i^T        (E x M)                                  (1)
    Z_i = Z_{i-1} + k_i              (E)                                      (2)
    n_i = S_i^T q_i                  d_i = q_i . Z_i                          (3)
    o_i = n_i / guard(d_i)                                                    (4)

Backward, given g_i = dLoss/do_i. The normaliser first: with D_i = guard(d_i),

    gn_i = g_i / D_i                 gd_i = -(g_i . o_i) / D_i guard'(d_i)    (5)

Then a forward scan, with the states computed again, and a reverse scan over R and U:

    dq_i = S_i gn_i + gd_i Z_i                                                (6)
    R_i  = R_{i+1} + q_i gn_i^T      U_i = U_{i+1} + gd_i q_i                 (7)
    dk_i = R_i v_i + U_i             dv_i = R_i^T k_i                         (8)
    dS_0 = R_1                       dZ_0 = U_1                               (9)

starting from R_{L+1} = dS_L and U_{L+1} = dZ_L. The inputs' own gradients are dQ = dq phi'(Q), dK =
dk phi'(K). S is computed again, never stored (nothing of size L x E x M exists) and never run
backwards by subtraction, which would leave a residue of rounding errors.

Equations (6) and (8) are one loop with different actors. For rows A, B, C define

    y_i = sum_{j <= i} (A_i . B_j) C_j + a_i sum_{j <= i} b_j C_j            (10)

kept as a state X_i = X_{i-1} + B_i C_i^T with y_i = X_i^T A_i, and likewise the extra vector x_i =
x_{i-1} + b_i C_i:

               A    B    C    a    b    order      X_0     x_0     X_L      x_L
        dq     gn   v    k    gd   1    forward    S_0^T   Z_0
        dk     v    gn   q    1    gd   reverse    dS_L^T  dZ_L            dZ_0
        dv     k    q    gn   0    0    reverse    dS_L            dS_0

Positions. Query i sees keys up to i + query_offset, so the scan walks positions p: it takes in key
p, then answers query p - query_offset; rows that do not exist are zeros. In reverse both sequences
are read from their ends.

The kernels in this file:

    _forward_kernel   (1)-(4); a thread owns a column of S in registers
    _scan_kernel      (10), for dq, dk and dv
    _step_kernel      (1)-(4) for one token, for generation

A block handles one head and up to 64 columns of the state; the rows of a column are shared out
among `parts` threads, so that they fit in registers. Tokens are taken in tiles through shared
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .arrays import (
    SHARED_BYTES,
    Array,
    array_module,
    ceil_div,
    contiguous,
    kernel_dtype,
    round_up,
    spans,
)
from .cuda import Kernel, cuda
from .feature_maps import feature_map as get_feature_map
from .guards import eps_or_default, normaliser_gradients
from .guards import guard as get_guard

MAX_COLUMNS = 64  # of the state, per block
MAX_ROWS = 32  # of the state, per thread: they live in registers
MAX_THREADS = 256  # per block: a multiprocessor has registers for no more of these
TILES = (32, 16, 8, 4)  # tokens; the first that fits in shared memory
TOGETHER = 4  # of these, that a number of the state takes in at a time: it is read and written once
TILE = TILES[0]


class LinearState(NamedTuple):
    """The state of causal linear attention: S `(N, H, E, M)` and Z `(N, H, E)`."""

    S: Array
    Z: Array


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
        qz = cuda.shared.array((tile, head_dim), real)  # q_i * Z_i, before the sum
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


@cache
def _scan_kernel(inner: int, outer: int, real: Any, feature_name: str, features: str) -> Kernel:
    """Equation (10); `features` says whether phi maps the rows "inner" (A, B) or "outer" (C, y)."""
    columns, parts, rows, tile = _shape(inner, outer, real)
    phi, phi_derivative = get_feature_map(feature_name, real)
    identity, one = get_feature_map("identity", real)
    map_ab, map_c, slope = (
        (phi, identity, one) if features == "inner" else (identity, phi, phi_derivative)
    )

    @cuda.jit(fastmath=True)
    def scan(A, B, C, a, b, spans_a, spans_b, offset, step, X0, x0, raw, y_out, X1, x1):  # type: ignore[no-untyped-def]
        """Equation (10) for A (N, H, La, inner), B (N, H, Lb, inner) and C (N, H, Lb, outer).

        a is (N, H, La), b (N, H, Lb); the spans of both follow. `step` is 1, or -1 to read both
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
        begin_a = 0 if step > 0 else La - 1
        begin_b = 0 if step > 0 else Lb - 1

        for r in range(rows):
            X[r] = real(0)
            if first_row + r < width and c < height:
                X[r] = X0[n, h, first_row + r, c]
        extra = real(0)
        if y == 0 and c < height:
            extra = x0[n, h, c]

        for start in range(min(0, offset), max(Lb, La + offset), tile):
            for t in range(y, tile, parts):
                j = begin_b + step * (start + t)
                i = begin_a + step * (start + t - offset)
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
                    j = begin_b + step * (start + t)
                    i = begin_a + step * (start + t - offset)
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
                i = begin_a + step * (start + t - offset)
                if 0 <= i < La and c < height:
                    i += first_a
                    y_out[batch, h, i, c] = total * slope(raw[batch, h, i, c])

        for r in range(rows):
            if first_row + r < width and c < height:
                X1[n, h, first_row + r, c] = X[r]
        if y == 0 and c < height:
            x1[n, h, c] = extra

    return scan


@cache
def _step_kernel(columns: int, real: Any, feature_name: str, guard_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def step(query, key, value, eps, S, Z, out, S_next, Z_next):  # type: ignore[no-untyped-def]
        """Query and key (N, H, E), value (N, H, M); a thread owns column m of the state."""
        m = cuda.blockIdx.x * columns + cuda.threadIdx.x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        M = value.shape[2]
        v = real(0)
        if m < M:
            v = value[n, h, m]
        total = real(0)
        d = real(0)
        for e in range(query.shape[2]):
            q = phi(query[n, h, e])
            k = phi(key[n, h, e])
            z = Z[n, h, e] + k  # (2)
            d += q * z  # (3)
            if m == 0:
                Z_next[n, h, e] = z
            if m < M:
                s = S[n, h, e, m] + k * v  # (1)
                S_next[n, h, e, m] = s
                total += q * s  # (3)
        if m < M:
            out[n, h, m] = total / guard(d, eps)  # (4)

    return step


def _zeros(like: Array, *shape: int) -> Array:
    return array_module(like).zeros(shape, dtype=like.dtype)


def state_or_zeros(state: LinearState | None, count: int, key: Array, value: Array) -> LinearState:
    """The state of `count` sequences, in C order; zeros where there is none."""
    if state is None:
        return LinearState(*(_zeros(key, *shape) for shape in _state_shapes(count, key, value)))
    return LinearState(*contiguous(*state))


def _empty_state(count: int, key: Array, value: Array) -> LinearState:
    """Memory for a state of `count` sequences, every number of which a kernel writes."""
    xp = array_module(key)
    return LinearState(*(xp.empty(s, key.dtype) for s in _state_shapes(count, key, value)))


def _state_shapes(count: int, key: Array, value: Array) -> tuple[tuple[int, ...], ...]:
    H, E, M = key.shape[1], key.shape[-1], value.shape[-1]
    return (count, H, E, M), (count, H, E)


def _transposed(matrix: Array) -> Array:
    """Each head's `(E, M)` as `(M, E)`."""
    (result,) = contiguous(matrix.swapaxes(-1, -2))
    return result


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: LinearState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array, LinearState]:
    """Causal linear attention, equations (1)-(4): time O(L E M), no memory but the state's.

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        feature_map: a name of `feature_maps`; "identity" where query and key are features.
        query_offset: query i sees keys j <= i + query_offset.
        query_lengths: `(N,)` integers; output rows from there on are zero.
        key_lengths: `(N,)` integers; keys from there on are not seen.
        cu_seqlens: `(N + 1,)` integers; the arrays are then `(1, H, T, E)`, N sequences one after
            the other, each from its entry to the next. None: padded arrays.
        initial_state: the state that tokens before these left behind; zeros where None.
        guard: what keeps the denominator from zero: "clamp", "add", "signed", or "none".
        eps: the guard's size; None takes the guard's default for the dtype.

    Returns:
        The output `(N, H, Lq, M)`, the denominator d of equation (3) `(N, H, Lq)` for `backward`,
        and the state after all keys, of each of the N sequences.
    """
    query, key, value = contiguous(query, key, value)
    (batch, H, Lq, E), M = query.shape, value.shape[3]
    xp, real = array_module(query), kernel_dtype(query)
    queries, keys = spans(query, query_lengths, cu_seqlens), spans(key, key_lengths, cu_seqlens)
    N = len(queries)
    start, end = state_or_zeros(initial_state, N, key, value), _empty_state(N, key, value)
    out = xp.empty((batch, H, Lq, M), query.dtype)
    denominator = xp.empty((batch, H, Lq), query.dtype)
    dims = round_up(E), round_up(M)
    shape = _shape(*dims, real)
    kernel = _forward_kernel(*dims, real, feature_map, guard)
    kernel[(ceil_div(M, shape.columns), H, N), shape.threads](
        query, key, value, queries, keys, query_offset, eps_or_default(guard, eps, query),
        *start, out, denominator, *end,
    )  # fmt: skip
    return out, denominator, end


def backward(
    grad_output: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    denominator: Array,
    *,
    guard: str = "clamp",
    eps: float | None = None,
    **options: Any,
) -> tuple[Array, Array, Array, LinearState]:
    """The gradients of `forward`, equations (5)-(9): one scan forward and two in reverse.

    Args:
        grad_output: `(N, H, Lq, M)`, the gradient of the output.
        grad_state: the gradient of the final state; None for zeros.
        query: as `forward` took it, and so all that follow.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        output: `(N, H, Lq, M)`, which `forward` returned.
        denominator: `(N, H, Lq)`, which `forward` returned.
        guard: as in `forward`.
        eps: as in `forward`.
        options: all other keywords of `forward`, see `gradients`.

    Returns:
        The gradients of query, key and value, and of the initial state.
    """
    visible = {name: x for name, x in options.items() if name != "feature_map"}
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key.shape[2],
        causal=True, guard=guard, eps=eps, **visible,
    )  # fmt: skip
    return gradients(gn, gd, grad_state, query, key, value, **options)


def gradients(
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: LinearState | None = None,
) -> tuple[Array, Array, Array, LinearState]:
    """The gradients of the numerators and denominators, equations (6)-(9).

    Args:
        gn: `(N, H, Lq, M)`, the gradient of n; zero where no key or state is seen.
        gd: `(N, H, Lq)`, the gradient of d, likewise.
        grad_state: the gradient of the final state; None for zeros.
        query: as `forward` took it, and so all that follow.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        feature_map: as in `forward`.
        query_offset: as in `forward`.
        query_lengths: as in `forward`.
        key_lengths: as in `forward`.
        cu_seqlens: as in `forward`.
        initial_state: as in `forward`.

    Returns:
        The gradients of query, key and value, and of the initial state.
    """
    return scans(
        _scan, gn, gd, grad_state, query, key, value, feature_map, query_offset,
        spans(query, query_lengths, cu_seqlens), spans(key, key_lengths, cu_seqlens),
        initial_state,
    )  # fmt: skip


def scans(
    scan: Callable[..., tuple[Array, Array, Array]],
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    feature_map: str,
    query_offset: int,
    queries: Array,
    keys: Array,
    initial_state: LinearState | None,
) -> tuple[Array, Array, Array, LinearState]:
    """The rows of the table of equation (10), by any function that does such a sum.

    `scan` is called as `_scan` is; `queries` and `keys` are spans; the rest is as in `gradients`.
    """
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    batch, H, Lq, _ = query.shape
    Lk = key.shape[2]
    ones_k = array_module(query).ones((batch, H, Lk), query.dtype)
    none_q, none_k = _zeros(query, batch, H, Lq), _zeros(query, batch, H, Lk)
    first, last = (
        state_or_zeros(state, len(queries), key, value) for state in (initial_state, grad_state)
    )
    none_z = _zeros(query, len(queries), H, value.shape[3])
    # In reverse both walks start at the ends, and packed sequences end together.
    reverse = Lq - Lk + query_offset

    dq, _, _ = scan(
        gn, value, key, gd, ones_k, queries, keys, query_offset, 1,
        _transposed(first.S), first.Z, query, feature_map, "outer",
    )  # (6)  # fmt: skip
    dk, _, dZ = scan(
        value, gn, query, ones_k, gd, keys, queries, reverse, -1,
        _transposed(last.S), last.Z, key, feature_map, "outer",
    )  # (7), (8)  # fmt: skip
    dv, dS, _ = scan(
        key, query, gn, none_k, none_q, keys, queries, reverse, -1,
        last.S, none_z, value, feature_map, "inner",
    )  # (7), (8)  # fmt: skip
    return dq, dk, dv, LinearState(dS, dZ)  # (9)


def _scan(
    A: Array, B: Array, C: Array, a: Array, b: Array, spans_a: Array, spans_b: Array, offset: int,
    step: int, X0: Array, x0: Array, raw: Array, feature_name: str, features: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Equation (10) for one row of its table: y, X_L and x_L."""
    _, H, _, inner = A.shape
    outer = C.shape[3]
    xp = array_module(A)
    y, X1, x1 = xp.empty_like(raw), xp.empty_like(X0), xp.empty_like(x0)
    dims = round_up(inner), round_up(outer)
    real = kernel_dtype(A)
    shape = _shape(*dims, real)
    mapped = "inner" if feature_name == "identity" else features  # the same: one kernel less
    kernel = _scan_kernel(*dims, real, feature_name, mapped)
    kernel[(ceil_div(outer, shape.columns), H, len(X0)), shape.threads](
        A, B, C, a, b, spans_a, spans_b, offset, step, X0, x0, raw, y, X1, x1
    )
    return y, X1, x1


def step(
    query: Array,
    key: Array,
    value: Array,
    state: LinearState | None,
    *,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, LinearState]:
    """One token of `forward`: constant time and memory, however long the past.

    Args:
        query: `(N, H, E)`.
        key: `(N, H, E)`.
        value: `(N, H, M)`.
        state: the state before this token; zeros where None. It is not modified.
        feature_map: as in `forward`.
        guard: as in `forward`.
        eps: as in `forward`.

    Returns:
        The output `(N, H, M)` and the next state.
    """
    query, key, value = contiguous(query, key, value)
    N, H, M = value.shape
    before, after = state_or_zeros(state, N, key, value), _empty_state(N, key, value)
    out = array_module(value).empty_like(value)
    columns = min(MAX_COLUMNS, round_up(M))
    kernel = _step_kernel(columns, kernel_dtype(query), feature_map, guard)
    kernel[(ceil_div(M, columns), H, N), columns](
        query, key, value, eps_or_default(guard, eps, query), *before, out, *after
    )
    return out, after

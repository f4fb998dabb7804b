r"""The delta rule: linear attention that corrects what it remembers (Schlag et al. 2021).

Linear attention only ever adds to its state: W_t = W_{t-1} + k_t v_t^T. A key that comes a second
time then gives back the sum of both its values. The delta rule looks first. It reads what the state
holds under the key, and writes only what is missing, as much of it as beta_t says:

    r_t = v_t - W_{t-1}^T k_t                    the residual: what the state got wrong         (1)
    u_t = beta_t r_t                                                                            (2)
    W_t = W_{t-1} + k_t u_t^T                    (E x M)                                        (3)
    o_t = W_t^T q_t                                                                             (4)

After the write, W_t^T k_t = v_t + (beta_t |k_t|^2 - 1) r_t: a key of length 1 with beta = 1 gives
back its value exactly, and beta = 0 leaves the state alone. (Widrow and Hoff, 1960: (3) is a step
of gradient descent on |v_t - W^T k_t|^2 / 2, with beta_t as its rate. So it diverges where
beta_t |k_t|^2 is above 2: keys are normalised, see `normalised`.) There is no denominator.

Two sums. W_t is the initial state and all writes so far, and with that (1) and (4) become

    o_i = W_0^T q_i + sum_{s <= i} (q_i . k_s) u_s                                              (5)
    r_t = v_t - W_0^T k_t - sum_{s < t} (k_t . k_s) u_s                                         (6)

(5) is causal linear attention over the values u. So is the sum in (6), with keys for queries that
do not see themselves, query_offset = -1; but here the values are the result. As no term looks
ahead, they come one after the other, as the unknowns of a triangular system do: this, and no
more, is new. `_residual_kernel` does it; all else is the linear attention of `kernelized`.

In chunks. With W the state before a tile of tokens, only the tile's own writes are missing in it:

    r_t = (v_t - W^T k_t) - sum_{s < t, in the tile} (k_t . k_s) u_s                            (7)

so all products with W are made at once, W is read once and written once, and what remains to be
done one by one is small (Yang et al. 2024, "Parallelizing linear transformers with the delta rule
over sequence length"). No matrix is inverted.

Backward, given g_i = dLoss/do_i and D = dLoss/dW_L. (5) is linear attention, and its backward gives

    dq_i = W_0 g_i + sum_{s <= i} (u_s . g_i) k_s                                               (8)
    c_t  = D^T k_t + sum_{i >= t} (k_t . q_i) g_i            dLoss/du_t by way of (5) and W_L   (9)

and a part of dk. But u_t also lowers all later residuals, by (6). With dr_s = beta_s du_s,

    du_t = c_t - sum_{s > t} (k_t . k_s) dr_s                                                  (10)

which is (6) again, read from the end, with c for v and no initial state: the backward of the delta
rule is the delta rule backwards. The rest follows from (2) and (6):

    dv_t = dr_t                              dbeta_t = r_t . du_t                              (11)
    dk_t = (by (5)) - W_0 dr_t - sum_{s < t} (dr_t . u_s) k_s - sum_{s > t} (u_t . dr_s) k_s   (12)
    dW_0 = (by (5)) - sum_t k_t dr_t^T                                                         (13)

The sums of (12) are gradients of the linear attention in (6), of its queries and of its keys. What
is kept for them is r, as large as the output. No W_t is: there are L of them.

The kernels in this file:

    _residual_kernel   (7), and (10) in reverse; a thread owns a column of W in registers
    _step_kernel       (1)-(4) for one token, for generation

Columns of W do not know of each other: residual m needs only column m. A block handles one head and
up to 64 columns; the rows of a column are shared out among `parts` threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from . import kernelized
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
from .recurrent import MAX_COLUMNS, MAX_ROWS, MAX_THREADS, TOGETHER, LinearState, Shape

TILES = (16, 8, 4)  # tokens; the first that fits in shared memory
TILE = TILES[0]


class DeltaState(NamedTuple):
    """The state of the delta rule, its fast weights: W `(N, H, E, M)`."""

    W: Array


def _shape(head_dim: int, value_dim: int, real: Any) -> Shape:
    """The shape for a state of a rounded size; its tiles fit in shared memory."""
    parts = max(1, head_dim // MAX_ROWS)
    rows = head_dim // parts
    columns = min(MAX_COLUMNS, MAX_THREADS // parts, max(rows, value_dim))
    size = real.bitwidth // 8

    def numbers(tile: int) -> int:
        return head_dim * (tile + 1) + tile * ((1 + parts) * columns + tile + 1)

    tile = next(t for t in TILES if numbers(t) * size <= SHARED_BYTES)
    return Shape(columns, parts, rows, tile)


@cache
def _residual_kernel(head_dim: int, value_dim: int, real: Any) -> Kernel:
    columns, parts, rows, tile = _shape(head_dim, value_dim, real)
    pitch = tile + 1  # of the transposed keys: neighbours in a column lie in different banks

    @cuda.jit(fastmath=True)
    def residual(key, value, beta, places, way, W0, r_out, u_out):  # type: ignore[no-untyped-def]
        """Key (N, H, L, E), value (N, H, L, M), beta (N, H, L), and the spans of all three.

        `way` is 1, or -1 to read from the end. The last two are written to; they are zero in the
        padding.
        """
        k_tile = cuda.shared.array((head_dim, pitch), real)  # transposed
        r_tile = cuda.shared.array((tile, columns), real)  # v, then r
        part = cuda.shared.array((parts, tile, columns), real)  # of each part in W^T k
        writes = cuda.shared.array((tile, tile), real)  # beta_s k_t . k_s
        beta_tile = cuda.shared.array(tile, real)
        totals = cuda.local.array(TOGETHER, real)
        W = cuda.local.array(rows, real)  # this thread's part of column m of W

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * columns + x
        first_row = y * rows
        E, M = key.shape[3], value.shape[3]
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        begin = 0 if way > 0 else room - 1

        for e in range(rows):
            W[e] = real(0)
            if first_row + e < E and m < M:
                W[e] = W0[n, h, first_row + e, m]

        for start in range(0, room, tile):
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                is_token = 0 <= j < last
                r_tile[t, x] = value[b, h, first + j, m] if is_token and m < M else real(0)
                for e in range(x, head_dim, columns):
                    k_tile[e, t] = key[b, h, first + j, e] if is_token and e < E else real(0)
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
                    product = real(0)
                    for e in range(head_dim):
                        product += k_tile[e, t] * k_tile[e, s]
                    writes[t, s] = product * beta_tile[s]
            cuda.syncthreads()

            if y == 0:
                for t in range(tile):
                    r = r_tile[t, x]
                    for p in range(parts):
                        r -= part[p, t, x]
                    for s in range(t):
                        r -= writes[t, s] * r_tile[s, x]  # (7)
                    r_tile[t, x] = r
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    totals[i] = beta_tile[t + i] * r_tile[t + i, x]
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        w += k_tile[first_row + e, t + i] * totals[i]  # (3)
                    W[e] = w
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                if 0 <= j < room and m < M:
                    r_out[b, h, first + j, m] = r_tile[t, x]
                    u_out[b, h, first + j, m] = beta_tile[t] * r_tile[t, x]  # (2)
            cuda.syncthreads()

    return residual


def _residuals(
    key: Array, value: Array, beta: Array, places: Array, way: int, state: Array | None
) -> tuple[Array, Array]:
    """Equations (6) and (2): what each token finds missing, and what it writes.

    With way = -1, equation (10) and dr.
    """
    _, H, _, E = key.shape
    M, N = value.shape[3], len(places)
    xp, real = array_module(key), kernel_dtype(key)
    dims = round_up(E), round_up(M, "value dim")
    shape = _shape(*dims, real)
    W0 = xp.zeros((N, H, E, M), key.dtype) if state is None else state
    r, u = (xp.empty(value.shape, value.dtype) for _ in range(2))
    _residual_kernel(*dims, real)[(ceil_div(M, shape.columns), H, N), shape.threads](
        *contiguous(key, value, beta), places, way, *contiguous(W0), r, u
    )
    return r, u


@cache
def _step_kernel(columns: int, real: Any) -> Kernel:
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
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    *,
    algorithm: str = "recurrent",
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: DeltaState | None = None,
    **visible: Any,
) -> tuple[Array, Array, DeltaState]:
    """The delta rule, equations (5) and (6): time O(L E M).

    Args:
        query: `(N, H, Lq, E)`, float32 or float64; query and key are features, normalised.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        beta: `(N, H, Lk)`, how much of a residual is written, mostly from 0 to 1.
        algorithm: of the linear attention in (5), "recurrent" or "chunked".
        key_lengths: `(N,)` integers; keys from there on write nothing. None: all count.
        cu_seqlens: `(N + 1,)` integers, for packed sequences, see `recurrent.forward`.
        initial_state: the state that tokens before these left behind; zeros where None.
        visible: `query_offset` and `query_lengths`, as `recurrent.forward` takes them.

    Returns:
        The output `(N, H, Lq, M)`, the residuals `(N, H, Lk, M)` for `backward`, and the state
        after all keys, of each of the N sequences.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256.

    Source: Schlag et al. 2021, section 4.2.

    Example: the second value of a key takes the place of the first.
        >>> import numpy as np
        >>> key = np.ones((1, 1, 2, 1))
        >>> output, _, _ = forward(key, key, np.array([[[[3.0], [5.0]]]]), np.ones((1, 1, 2)))
        >>> output.tolist()
        [[[[3.0], [5.0]]]]
    """
    state = None if initial_state is None else initial_state.W
    r, u = _residuals(key, value, beta, spans(key, key_lengths, cu_seqlens), 1, state)
    end: Any
    output, _, end = kernelized.forward(
        query, key, u, algorithm=algorithm, feature_map="identity", guard="none",
        key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=_without_normaliser(initial_state), **visible,
    )  # (5)  # fmt: skip
    return output, r, DeltaState(end.S)


def backward(
    grad_output: Array,
    grad_state: DeltaState | None,
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    output: Array,
    residual: Array,
    *,
    algorithm: str = "recurrent",
    key_lengths: Array | None = None,
    cu_seqlens: Array | None = None,
    initial_state: DeltaState | None = None,
    **visible: Any,
) -> tuple[Array, Array, Array, Array, DeltaState]:
    """The gradients of `forward`, equations (8)-(13).

    Args:
        grad_output: `(N, H, Lq, M)`, the gradient of the output.
        grad_state: the gradient of the final state; None for zeros.
        query: as `forward` took it, and so all that follow.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        beta: `(N, H, Lk)`.
        output: not looked at: nothing is divided by it. All attentions with states are given it.
        residual: `(N, H, Lk, M)`, which `forward` returned.
        algorithm: as in `forward`.
        key_lengths: as in `forward`.
        cu_seqlens: as in `forward`.
        initial_state: as in `forward`.
        visible: as in `forward`.

    Returns:
        The gradients of query, key, value and beta, and of the initial state.
    """
    u = beta[..., None] * residual  # (2)
    keys: dict[str, Any] = {
        "algorithm": algorithm, "feature_map": "identity", "key_lengths": key_lengths,
        "cu_seqlens": cu_seqlens, "initial_state": _without_normaliser(initial_state),
    }  # fmt: skip
    by_output: Any
    by_residuals: Any
    dq, dk, c, by_output = kernelized.gradients(
        grad_output, _zeros(query), _without_normaliser(grad_state), query, key, u,
        **keys, **visible,
    )  # (8), (9)  # fmt: skip
    du, dr = _residuals(key, c, beta, spans(key, key_lengths, cu_seqlens), -1, None)  # (10)
    of_query, of_key, _, by_residuals = kernelized.gradients(
        dr, _zeros(key), None, key, key, u, query_lengths=key_lengths, query_offset=-1, **keys
    )
    dk -= of_query  # (12)
    dk -= of_key
    dbeta = array_module(du).einsum("nhlm,nhlm->nhl", residual, du)  # (11)
    return dq, dk, dr, dbeta, DeltaState(by_output.S - by_residuals.S)  # (13)


def step(
    query: Array, key: Array, value: Array, beta: Array, state: DeltaState | None
) -> tuple[Array, DeltaState]:
    """One token of `forward`: constant time and memory, however long the past.

    Args:
        query: `(N, H, E)`.
        key: `(N, H, E)`.
        value: `(N, H, M)`.
        beta: `(N, H)`.
        state: the state before this token; zeros where None. It is not modified.

    Returns:
        The output `(N, H, M)` and the next state.
    """
    query, key, value, beta = contiguous(query, key, value, beta)
    (N, H, E), M = query.shape, value.shape[2]
    xp = array_module(value)
    before = xp.zeros((N, H, E, M), value.dtype) if state is None else state.W
    out, after = xp.empty_like(value), xp.empty((N, H, E, M), value.dtype)
    columns = min(MAX_COLUMNS, round_up(M, "value dim"))
    _step_kernel(columns, kernel_dtype(query))[(ceil_div(M, columns), H, N), columns](
        query, key, value, beta, *contiguous(before), out, after
    )
    return out, DeltaState(after)


def _zeros(rows: Array) -> Array:
    """The gradients of denominators that there are not: a zero for each row."""
    return array_module(rows).zeros(rows.shape[:3], rows.dtype)


def _without_normaliser(state: DeltaState | None) -> LinearState | None:
    """The state as one of linear attention, whose sum of keys nothing is divided by."""
    if state is None:
        return None
    return LinearState(state.W, array_module(state.W).zeros(state.W.shape[:3], state.W.dtype))

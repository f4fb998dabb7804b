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
more, is new. `residual` does it; all else is the linear attention of `algorithms`.

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

In three walks. Each of these six sums has a state of its own, but all of them are W_t or parts of
its gradient

    G_t = D + sum_{i >= t} q_i g_i^T - sum_{s > t} k_s dr_s^T                                  (14)

with which the gradients are, query t and key t at one place,

    dq_t = W_t g_t           du_t = G_t^T k_t           dk_t = G_t u_t - W_{t-1} dr_t          (15)

One walk from the end makes G and du. The others are sums along rows, which a thread that owns a
column has not got: a second walk has the rows of W, and a third those of G.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import algorithms
from ..arrays import (
    Array,
    array_module,
    ceil_div,
    contiguous,
    kernel_dtype,
    outputs_of,
    per_row,
    round_up,
    version_of,
)
from ..checks import QKV, host, one_of, trusted
from ..recurrent import LinearState, causal_spans
from ..recurrent.fast import MAX_COLUMNS
from ..visible import CAUSAL, Visible, blank
from . import fast, plain


class DeltaState(NamedTuple):
    """The state of the delta rule, its fast weights: W `(N, H, E, M)`."""

    W: Array


STATE = {"W": "B H E M"}


@host(**QKV, beta="N H Lk", initial_state=STATE)
def forward(
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    visible: Visible = CAUSAL,
    *,
    algorithm: str = "recurrent",
    initial_state: DeltaState | None = None,
    version: str = "fast",
) -> tuple[Array, Array, DeltaState]:
    """The delta rule, equations (5) and (6): time O(L E M).

    Args:
        query: `(N, H, Lq, E)`, float32 or float64; query and key are features, normalised.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        beta: `(N, H, Lk)`, how much of a residual is written, mostly from 0 to 1.
        visible: who sees whom; causal it must be. Keys that are padding write nothing.
        algorithm: of the linear attention in (5), "recurrent" or "chunked".
        initial_state: the state that tokens before these left behind; zeros where None.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output `(N, H, Lq, M)`, the residuals `(N, H, Lk, M)` for `backward`, and the state
        after all keys, of each of the N sequences.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256, visible is not causal, or there is no such algorithm or
            version.

    Source: Schlag et al. 2021, section 4.2.

    Example: the second value of a key takes the place of the first.
        >>> import numpy as np
        >>> key = np.ones((1, 1, 2, 1))
        >>> output, _, _ = forward(key, key, np.array([[[[3.0], [5.0]]]]), np.ones((1, 1, 2)))
        >>> output.tolist()
        [[[[3.0], [5.0]]]]
    """
    if (algorithm, version) == ("recurrent", "fast"):
        return _in_one_walk(query, key, value, beta, visible, initial_state)
    one_of("delta", "algorithm", algorithm, ("recurrent", "chunked"))
    r, u, _ = _residuals(key, value, beta, visible, initial_state, version)  # (6), (2)
    blank(visible.key_lengths, r)
    end: Any
    output, _, end = algorithms.forward(
        query, key, u, visible, algorithm=algorithm, feature_map="identity", guard="none",
        initial_state=_without_normaliser(initial_state), version=version,
    )  # (5)  # fmt: skip
    return output, r, DeltaState(end.S)


@host(
    **QKV, beta="N H Lk", grad_output="N H Lq M", output="N H Lq M", residual="N H Lk M",
    initial_state=STATE, grad_state=STATE,
)  # fmt: skip
def backward(
    grad_output: Array,
    grad_state: DeltaState | None,
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    output: Array,
    residual: Array,
    visible: Visible = CAUSAL,
    *,
    algorithm: str = "recurrent",
    initial_state: DeltaState | None = None,
    version: str = "fast",
) -> tuple[Array, Array, Array, Array, DeltaState]:
    """The gradients of `forward`, equations (8)-(13), or (14) and (15).

    Args:
        grad_output: `(N, H, Lq, M)`, the gradient of the output.
        grad_state: the gradient of the final state; None for zeros.
        query: this and all the rest as `forward` took and returned it.
        value, output: not looked at: the residuals say what values did, and nothing is divided by
            the output. All attentions with states are given them.

    Returns:
        The gradients of query, key, value and beta, and of the initial state.
    """
    visible = visible.of_seen_keys(query, key, grad_state)
    known = grad_output, grad_state, query, key, beta, residual, visible, initial_state
    if (algorithm, version) == ("recurrent", "fast"):
        dq, dk, du, dr, dW = _in_three_walks(*known)
    else:
        dq, dk, du, dr, dW = _by_sums(*known, algorithm, version)
    xp = array_module(du)
    dbeta = xp.einsum("nhlm,nhlm->nhl", residual, du)  # (11)
    if not xp.isfinite(dbeta).all():  # a gradient of 0 takes nothing, even of NaN
        dbeta = xp.einsum("nhlm,nhlm->nhl", xp.where(du == 0, du, residual), du)
    return dq, dk, dr, dbeta, DeltaState(dW)


@host(query="N H E", key="N H E", value="N H M", beta="N H", state=STATE)
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
    N, H, M = value.shape
    before = _state_or_zeros(state, N, key, value)
    out, after = (array_module(x).empty_like(x) for x in (value, before))
    columns = min(MAX_COLUMNS, round_up(M, "value dim"))
    fast.step_kernel(columns, kernel_dtype(query))[(ceil_div(M, columns), H, N), columns](
        query, key, value, beta, before, out, after
    )
    return out, DeltaState(after)


def _in_one_walk(
    query: Array, key: Array, value: Array, beta: Array, visible: Visible, state: DeltaState | None
) -> tuple[Array, Array, DeltaState]:
    """What `forward` returns, by (1) to (4): the walk that finds r has W, and so answers, too."""
    visible, query = visible.sighted(query, key, state=state)
    query, key, value, beta = contiguous(query, key, value, beta)
    queries, keys = causal_spans(visible, query, key)
    W0 = _state_or_zeros(state, len(keys), key, value)
    output, _ = outputs_of(query, value)
    offset = visible.near(query, key)
    r, W = fast.forward(query, key, value, beta, queries, keys, offset, W0, output)
    blank(visible.query_lengths, output)
    blank(visible.key_lengths, r)
    return output, r, DeltaState(W)


def _in_three_walks(
    grad_output: Array, grad_state: DeltaState | None, query: Array, key: Array, beta: Array,
    residual: Array, visible: Visible, initial_state: DeltaState | None,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """dq, dk, du, dr and dW_0, by W and by the gradient of W: (14) and (15)."""
    visible, query, grad = visible.sighted(query, key, grad_output, state=initial_state)
    query, key, beta, residual, grad = contiguous(query, key, beta, residual, grad)
    queries, keys = causal_spans(visible, query, key)
    W, D = (_state_or_zeros(x, len(keys), key, residual) for x in (initial_state, grad_state))
    offset = visible.near(query, key)
    dq, dk, du, dr, dW = fast.backward(
        grad, query, key, beta, residual, queries, keys, offset, W, D
    )
    blank(visible.query_lengths, dq)
    blank(visible.key_lengths, dk, du, dr)
    return dq, dk, du, dr, dW


def _by_sums(
    grad_output: Array, grad_state: DeltaState | None, query: Array, key: Array, beta: Array,
    residual: Array, visible: Visible, initial_state: DeltaState | None, algorithm: str,
    version: str,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """The same by (8) to (13), sums that linear attention makes by any algorithm."""
    u = beta[..., None] * residual  # (2)
    options: dict[str, Any] = {
        "algorithm": algorithm, "feature_map": "identity", "version": version,
        "initial_state": _without_normaliser(initial_state),
    }  # fmt: skip
    by_output: Any
    dq, dk, c, by_output = algorithms.gradients(
        grad_output, per_row(query, 0), _without_normaliser(grad_state), query, key, u, visible,
        **options,
    )  # (8), (9)  # fmt: skip
    du, dr, by_residuals = _residuals(key, c, beta, visible, None, version, way=-1)  # (10)
    # The checks, which refuse packed sequences that are shifted, were made by `backward`.
    before = visible._replace(query_lengths=visible.key_lengths, query_offset=-1)
    if initial_state is None:  # the first token, which sees none before it, reads zeros
        sequences = len(visible.spans(key, key)[1])
        nothing = DeltaState(_state_or_zeros(None, sequences, key, residual))
        options["initial_state"] = _without_normaliser(nothing)
    gradients = trusted(algorithms.ALGORITHMS[options.pop("algorithm")].gradients)
    of_query, of_key, *_ = gradients(
        dr, per_row(key, 0), None, key, key, u, before, of_value=False, **options
    )
    dk -= of_query  # (12)
    dk -= of_key
    return dq, dk, du, dr, by_output.S - by_residuals  # (13)


def _residuals(
    key: Array,
    value: Array,
    beta: Array,
    visible: Visible,
    state: DeltaState | None,
    version: str,
    way: int = 1,
) -> tuple[Array, Array, Array]:
    """What each token finds missing, equation (6), what it writes, and the state after all.

    With way = -1 it is (10), and the state, from zero, the sum in (13).
    """
    key, value, beta = contiguous(key, value, beta)
    _, places = visible.spans(key, key)
    W0 = _state_or_zeros(state, len(places), key, value)
    return version_of(version, fast=fast, plain=plain).residuals(key, value, beta, places, way, W0)


def _state_or_zeros(state: DeltaState | None, count: int, key: Array, value: Array) -> Array:
    """The state of `count` sequences, in C order; zeros where there is none."""
    if state is not None:
        return contiguous(state.W)[0]
    shape = count, key.shape[1], key.shape[-1], value.shape[-1]
    return array_module(key).zeros(shape, key.dtype)


def _without_normaliser(state: DeltaState | None) -> LinearState | None:
    """The state as one of linear attention, whose sum of keys nothing is divided by."""
    if state is None:
        return None
    return LinearState(state.W, per_row(state.W, 0))

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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..arrays import Array, array_module, contiguous, outputs_of, per_row, version_of
from ..checks import QKV, host
from ..guards import eps_or_default
from ..visible import CAUSAL, Visible, blank
from . import fast, plain


class LinearState(NamedTuple):
    """The state of causal linear attention: S `(N, H, E, M)` and Z `(N, H, E)`."""

    S: Array
    Z: Array


STATE = {"S": "B H E M", "Z": "B H E"}


@host(**QKV, initial_state=STATE)
def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = CAUSAL,
    *,
    feature_map: str = "elu",
    initial_state: LinearState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array, LinearState]:
    """Causal linear attention, equations (1)-(4): time O(L E M), no memory but the state's.

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        visible: who sees whom; causal it must be, and sequences may be packed.
        feature_map: a name of `feature_maps`; "identity" where query and key are features.
        initial_state: the state that tokens before these left behind; zeros where None.
        guard: what keeps the denominator from zero: "clamp", "add", "signed", or "none".
        eps: the guard's size; None takes the guard's default for the dtype.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output `(N, H, Lq, M)`, the denominator d of equation (3) `(N, H, Lq)` for
        `normaliser_gradients`, and the state after all keys, of each of the N sequences.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256, the sequences are not causal, or there is no such version.

    Source: Katharopoulos et al. 2020, equations 16 to 20; S1.

    Example: keys that are alike weigh alike, so that each output is the mean of the values so far.
        >>> import numpy as np
        >>> keys, values = np.ones((1, 1, 3, 1)), np.array([3.0, 6.0, 9.0]).reshape(1, 1, 3, 1)
        >>> output, denominator, state = forward(keys, keys, values)
        >>> output.ravel().tolist(), state.Z.item()
        ([3.0, 4.5, 6.0], 6.0)
    """
    walk = version_of(version, fast=fast, plain=plain).forward
    return walked(walk, query, key, value, visible, feature_map, initial_state, guard, eps)


@host(**QKV, gn="N H Lq M", gd="N H Lq", initial_state=STATE, grad_state=STATE)
def gradients(
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = CAUSAL,
    *,
    feature_map: str = "elu",
    initial_state: LinearState | None = None,
    of_value: bool = True,
    version: str = "fast",
) -> tuple[Array, Array, Array | None, LinearState | None]:
    """The gradients of the numerators and denominators, equations (6)-(9).

    Args:
        gn: `(N, H, Lq, M)`, the gradient of n; zero where no key or state is seen.
        gd: `(N, H, Lq)`, the gradient of d, likewise.
        grad_state: the gradient of the final state; None for zeros.
        query: this and all the rest as `forward` took it.
        of_value: whether that of value is wanted; if not, it and that of the initial state are
            None, and a scan less is made.

    Returns:
        The gradients of query, key and value, and of the initial state.
    """
    scan, states = version_of(version, fast=fast, plain=plain).scan, (initial_state, grad_state)
    return scans(scan, gn, gd, query, key, value, visible, feature_map, *states, of_value)


@host(query="N H E", key="N H E", value="N H M", state=STATE)
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
        feature_map: this and the rest as in `forward`.

    Returns:
        The output `(N, H, M)` and the next state.
    """
    query, key, value = contiguous(query, key, value)
    before = state_or_zeros(state, len(value), key, value)
    eps = eps_or_default(guard, eps, query)
    output, *after = plain.step(query, key, value, eps, feature_map, guard, *before)
    return output, LinearState(*after)


def walked(
    walk: Callable[..., tuple[Array, Array]],
    query: Array,
    key: Array,
    value: Array,
    visible: Visible,
    feature_map: str,
    initial_state: LinearState | None,
    guard: str,
    eps: float | None,
) -> tuple[Array, Array, LinearState]:
    """What `forward` returns, by any function that walks along a sequence.

    `walk` is called as `fast.forward` is; the rest is as in `forward`.
    """
    visible, query = visible.sighted(query, key, state=initial_state)
    query, key, value = contiguous(query, key, value)
    queries, keys = causal_spans(visible, query, key)
    start = state_or_zeros(initial_state, len(queries), key, value)
    output, denominator = outputs_of(query, value)
    eps = eps_or_default(guard, eps, query)
    end = walk(
        query, key, value, queries, keys, visible.near(query, key), eps, feature_map, guard, *start,
        output, denominator,
    )  # fmt: skip
    blank(visible.query_lengths, output, denominator)
    return output, denominator, LinearState(*end)


def scans(
    scan: Callable[..., tuple[Array, Array, Array]],
    gn: Array,
    gd: Array,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible,
    feature_map: str,
    initial_state: LinearState | None,
    grad_state: LinearState | None,
    of_value: bool,
) -> tuple[Array, Array, Array | None, LinearState | None]:
    """The rows of the table of equation (10), by any function that does such a sum.

    `scan` is called as `fast.scan` is; the rest is as in `gradients`.
    """
    visible, query, gn, gd = visible.of_seen_keys(query, key, grad_state).sighted(
        query, key, gn, gd, state=initial_state
    )
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    (queries, keys), offset = causal_spans(visible, query, key), visible.near(query, key)
    (S, Z), (dS, dZ) = (
        state_or_zeros(state, len(queries), key, value) for state in (initial_state, grad_state)
    )
    ones_k, none_q, none_k = per_row(key, 1), per_row(query, 0), per_row(key, 0)
    # In reverse both walks start at the ends, and packed sequences end together.
    reverse = query.shape[2] - key.shape[2] + offset

    dq, _, _ = scan(
        gn, value, key, gd, ones_k, queries, keys, offset, 1,
        _transposed(S), Z, query, "identity", feature_map,
    )  # (6)  # fmt: skip
    dk, _, dZ_0 = scan(
        value, gn, query, ones_k, gd, keys, queries, reverse, -1,
        _transposed(dS), dZ, key, "identity", feature_map,
    )  # (7), (8)  # fmt: skip
    blank(visible.query_lengths, dq)
    blank(visible.key_lengths, dk)
    if not of_value:
        return dq, dk, None, None
    dv, dS_0, _ = scan(
        key, query, gn, none_k, none_q, keys, queries, reverse, -1,
        dS, array_module(key).zeros_like(dS[:, :, 0]), value, feature_map, "identity",
    )  # (7), (8)  # fmt: skip
    blank(visible.key_lengths, dv)
    return dq, dk, dv, LinearState(dS_0, dZ_0)  # (9)


def _transposed(matrix: Array) -> Array:
    """Each head's `(E, M)` as `(M, E)`."""
    return contiguous(matrix.swapaxes(-1, -2))[0]


def causal_spans(visible: Visible, query: Array, key: Array) -> tuple[Array, Array]:
    """Where sequences of queries and keys lie, see `arrays.spans`.

    Raises:
        ValueError: queries see keys after them.
    """
    if not visible.causal:
        raise ValueError(
            "a recurrence goes from left to right and needs causal=True; for both directions there "
            "are 'linear' and 'naive'"
        )
    return visible.spans(query, key)


def state_or_zeros(state: LinearState | None, count: int, key: Array, value: Array) -> LinearState:
    """The state of `count` sequences, in C order; zeros where there is none."""
    if state is not None:
        return LinearState(*contiguous(*state))
    xp, shape = array_module(key), (count, key.shape[1], key.shape[-1])
    S, Z = xp.zeros((*shape, value.shape[-1]), key.dtype), xp.zeros(shape, key.dtype)
    return LinearState(S, Z)

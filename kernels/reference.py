"""The naive truth of every attention variant: quadratic, plain NumPy, no cleverness.

Every kernel of this package is judged against this file, so it is written from the definitions:
the whole matrix of scores, one line for each equation, nothing saved and nothing reused. With
`dtype=numpy.float64` it is the truth; with `dtype=numpy.float32` it is the yardstick, the error
that anyone's first implementation makes. (With `dtype=numpy.complex128` it differentiates itself:
the tests prove each backward below by the complex step.)

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M). The equations are
those of one head: q_i, k_j are rows of E numbers, v_j and o_i rows of M numbers, g_i = dLoss/do_i.

    w_ij = 1 if i < query_length and j < key_length and (causal: j <= i + query_offset) else 0  (1)

Softmax attention
    s_ij = scale q_i . k_j                                                                      (2)
    l_i  = log sum_j w_ij exp(s_ij)                                                             (3)
    p_ij = w_ij exp(s_ij - l_i)                                                                 (4)
    o_i  = sum_j p_ij v_j                                                                       (5)
its gradient
    dv_j  = sum_i p_ij g_i                                                                      (6)
    dp_ij = g_i . v_j                                                                           (7)
    ds_ij = p_ij (dp_ij - sum_t p_it dp_it)                                                     (8)
    dq_i  = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i                     (9)

Linear attention, which replaces exp(q . k) by phi(q) . phi(k)                    (S1; S0 section 6)
    a_ij = w_ij phi(q_i) . phi(k_j)                                                            (10)
    n_i  = S_0^T phi(q_i) + sum_j a_ij v_j                                                     (11)
    d_i  = Z_0 . phi(q_i) + sum_j a_ij                                                         (12)
    o_i  = n_i / D_i                           D_i = guard(d_i)                                (13)
its gradient
    dn_i  = g_i / D_i                          dd_i = -(dn_i . o_i) guard'(d_i)                (14)
    da_ij = w_ij (dn_i . v_j + dd_i)                                                           (15)
    dq_i  = phi'(q_i) (S_0 dn_i + dd_i Z_0 + sum_j da_ij phi(k_j))                             (16)
    dk_j  = phi'(k_j) sum_i da_ij phi(q_i)     dv_j = sum_i a_ij dn_i                          (17)
    dS_0  = sum_i phi(q_i) dn_i^T              dZ_0 = sum_i dd_i phi(q_i)                      (18)

The final state of linear attention, from which a sequence goes on
    S = S_0 + sum_j phi(k_j) v_j^T             Z = Z_0 + sum_j phi(k_j)     (j < key_length)   (19)
and its gradient, given G = dLoss/dS and h = dLoss/dZ
    dk_j = phi'(k_j) (G v_j + h)               dv_j = G^T phi(k_j)          (j < key_length)
    dS_0 = G                                   dZ_0 = h                                        (20)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]
State = tuple[Array, Array]


def visible(
    query: Array,
    key: Array,
    causal: bool,
    query_offset: int,
    query_lengths: ArrayLike | None,
    key_lengths: ArrayLike | None,
) -> Array:
    """Returns w_ij of equation (1), which query sees which key: bool, (N, 1, Lq, Lk)."""
    i = np.arange(query.shape[2])[:, None]
    j = np.arange(key.shape[2])
    w: Array = inside(query, query_lengths)[..., None] & inside(key, key_lengths)[..., None, :]
    return w & (j <= i + query_offset) if causal else w  # (1)


def inside(sequence: Array, lengths: ArrayLike | None) -> Array:
    """Returns which positions of (N, H, L, E) are no padding: bool, (N, 1, L)."""
    batch, _, count, _ = sequence.shape
    ends = np.full(batch, count) if lengths is None else np.asarray(lengths)
    valid: Array = np.arange(count) < ends[:, None, None]
    return valid


def softmax_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Softmax attention, equations (1) to (5).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores, 1 / sqrt(E) by default.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: Vaswani et al. 2017, equation 1; S3.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    weights, _ = softmax_weights(query, key, seen, scale)
    output: Array = weights @ value  # (5)
    return output


def softmax_weights(
    query: Array, key: Array, seen: Array, scale: float | None
) -> tuple[Array, Array]:
    """Returns p_ij (N, H, Lq, Lk) and l_i (N, H, Lq), equations (2) to (4).

    A query that sees nothing has weights of zero, and l_i = -inf.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    s = np.where(seen, scale * (query @ key.swapaxes(-1, -2)), -np.inf)  # (2)
    highest = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    highest = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        log_sum = highest + np.log(np.sum(np.exp(s - highest), axis=-1, keepdims=True))  # (3)
    finite_log_sum = np.where(np.isfinite(log_sum), log_sum, 0)
    return np.exp(s - finite_log_sum), log_sum[..., 0]  # (4)


def softmax_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `softmax_attention`, equations (6) to (9).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `softmax_attention`.
        key: as there.
        value: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.
        dtype: as there.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M).
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(q, k, causal, query_offset, query_lengths, key_lengths)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    p, _ = softmax_weights(q, k, seen, scale)
    dv = p.swapaxes(-1, -2) @ g  # (6)
    dp = g @ v.swapaxes(-1, -2)  # (7)
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # (8)
    return scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (9)


def phi(x: Array, feature_map: str) -> Array:
    """Returns the features of x, number by number; none of the formulas overflows or cancels.

    "elu" is elu(x) + 1, "softplus" log(1 + exp(x)).
    """
    if feature_map == "identity":
        return x
    if feature_map == "exp":
        return np.exp(x)
    if feature_map == "relu":
        return np.where(x > 0, x, 0)
    if feature_map == "softplus":
        return np.where(x > 0, x, 0) + np.log1p(np.exp(np.where(x > 0, -x, x)))
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def phi_slope(x: Array, feature_map: str) -> Array:
    """Returns phi'(x)."""
    if feature_map == "identity":
        return np.ones_like(x)
    if feature_map == "exp":
        return np.exp(x)
    if feature_map == "relu":
        return np.where(x > 0, np.ones_like(x), 0)
    if feature_map == "softplus":
        e = np.exp(np.where(x > 0, -x, x))
        return np.where(x > 0, 1, e) / (1 + e)
    return np.where(x > 0, 1, np.exp(np.minimum(x, 0)))


def guarded(d: Array, guard: str, eps: float | None) -> tuple[Array, Array]:
    """Returns guard(d) and guard'(d).

    "clamp" is max(d, eps), "add" is d + eps, "signed" is sign(d) max(|d|, eps) with sign(0) = 1.
    """
    if eps is None:
        eps = 1e-6 if guard == "add" else 1e-30 if d.dtype == np.float32 else 1e-300
    floor = d.dtype.type(eps)
    if guard == "add":
        return d + floor, np.ones_like(d)
    if guard == "signed":
        open_gate = np.abs(d) > eps
        return np.where(open_gate, d, np.where(d < 0, -floor, floor)), open_gate.astype(d.dtype)
    return np.where(d > eps, d, floor), (d > eps).astype(d.dtype)


def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention in its quadratic form, equations (10) to (13).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        feature_map: "elu", or "identity" where query and key are features already.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E), seen by every query; None: zeros.
        guard: "clamp", "add" or "signed", see `guarded`.
        eps: the guard's constant.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S1; Katharopoulos et al. 2020, equation 4.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = linear_sums(query, key, value, feature_map, seen, alive, initial_state)
    return n / guarded(d, guard, eps)[0][..., None]  # (13)


def linear_sums(
    query: Array,
    key: Array,
    value: Array,
    feature_map: str,
    seen: Array,
    alive: Array,
    initial_state: State | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), equations (10) to (12)."""
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    q = alive[..., None] * phi(query, feature_map)
    a = seen * (q @ phi(key, feature_map).swapaxes(-1, -2))  # (10)
    n = q @ S + a @ value  # (11)
    d = (q @ Z[..., None])[..., 0] + np.sum(a, axis=-1)  # (12)
    return n, d


def linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, State]:
    """The gradient of `linear_attention`, equations (14) to (18).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `linear_attention`.
        key: as there.
        value: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: as there.
        guard: as there.
        eps: as there.
        dtype: as there.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M), and of the initial state
        dS_0 (N, H, E, M) and dZ_0 (N, H, E), as they are at zero where it is None.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)[..., None]
    S, Z = zero_state(key, v) if initial_state is None else as_state(initial_state, key.dtype)
    q, k = phi(query, feature_map), phi(key, feature_map)
    n, d = linear_sums(query, key, v, feature_map, seen, alive[..., 0], initial_state)
    D, slope = guarded(d, guard, eps)

    dn = alive * g / D[..., None]  # (14)
    o = n / D[..., None]  # (13)
    dd = -np.sum(dn * o, axis=-1, keepdims=True) * slope[..., None]  # (14)
    a = seen * (q @ k.swapaxes(-1, -2))  # (10)
    da = seen * (dn @ v.swapaxes(-1, -2) + dd)  # (15)
    dq = dn @ S.swapaxes(-1, -2) + dd * Z[..., None, :] + da @ k  # (16)
    dk = da.swapaxes(-1, -2) @ q  # (17)
    dv = a.swapaxes(-1, -2) @ dn  # (17)
    dS, dZ = q.swapaxes(-1, -2) @ dn, np.sum(dd * q, axis=-2)  # (18)
    return phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk, dv, (dS, dZ)


def final_state(
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    dtype: DTypeLike = np.float64,
) -> State:
    """The state of linear attention after every valid key, equation (19).

    Args:
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        feature_map: "elu" or "identity".
        key_lengths: (N,) integers; later keys do not count. None: all count.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E); None: zeros.
        dtype: the dtype of all arithmetic.

    Returns:
        S (N, H, E, M) and Z (N, H, E).
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    k = inside(key, key_lengths)[..., None] * phi(key, feature_map)
    return S + k.swapaxes(-1, -2) @ value, Z + np.sum(k, axis=-2)  # (19)


def final_state_backward(
    grad_state: State,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, State]:
    """The gradient of `final_state`, equation (20).

    Args:
        grad_state: dLoss/dS (N, H, E, M) and dLoss/dZ (N, H, E).
        key: this and all the rest as in `final_state`.
        value: as there.
        feature_map: as there.
        key_lengths: as there.
        dtype: as there.

    Returns:
        dk (N, H, Lk, E), dv (N, H, Lk, M), and dS_0, dZ_0.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    G, h = as_state(grad_state, key.dtype)
    valid = inside(key, key_lengths)[..., None]
    dk = phi_slope(key, feature_map) * (value @ G.swapaxes(-1, -2) + h[..., None, :])  # (20)
    return valid * dk, valid * (phi(key, feature_map) @ G), (G, h)  # (20)


def zero_state(key: Array, value: Array) -> State:
    """Returns the state of an empty sequence."""
    batch, heads, _, features = key.shape
    shape = (batch, heads, features)
    return np.zeros((*shape, value.shape[-1]), key.dtype), np.zeros(shape, key.dtype)


def as_state(state: State, dtype: DTypeLike) -> State:
    """Returns S and Z as arrays of `dtype`."""
    return np.asarray(state[0], dtype), np.asarray(state[1], dtype)

"""The naive truth of linear attention: the whole matrix of scores, one line for each equation.

Equations (1) to (6) are those of `linear`, and gn_i and gd_i those of `guards`. A sequence that
goes on from a state S_0, Z_0 has more in its sums,

    n_i += S_0^T q_i                           d_i += Z_0 . q_i                                (12)
    dq_i += S_0 gn_i + gd_i Z_0                                                               (13)
    dS_0 = sum_i q_i gn_i^T                    dZ_0 = sum_i gd_i q_i                           (14)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array
from ..visible import EVERYTHING, Visible, inside

State = tuple[Array, Array]


def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention in its quadratic form, equations (1) to (3) and (12).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        visible: who sees whom.
        feature_map: a name of `feature_maps`.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E), seen by every query; None: zeros.
        guard: "clamp", "add" or "signed".
        eps: the guard's constant.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S1; Katharopoulos et al. 2020, equation 4.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    n, d = linear_sums(query, key, value, feature_map, seen, alive, initial_state)
    return n / guarded(d, guard, eps)[0][..., None]  # (3)


def linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, State]:
    """The gradient of `linear_attention`, equations (4) to (6), (13) and (14).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `linear_attention`.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M), and of the initial state
        dS_0 (N, H, E, M) and dZ_0 (N, H, E), as they are at zero where it is None.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    n, d = linear_sums(query, key, v, feature_map, seen, alive, initial_state)
    gn, gd = quotient_backward(alive[..., None] * g, n, d, guard, eps)
    q, k = phi(query, feature_map), phi(key, feature_map)
    dq, dk, dv, dstate = linear_sums_backward(gn, gd, q, k, v, seen, initial_state)
    return phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk, dv, dstate


def linear_sums(
    query: Array,
    key: Array,
    value: Array,
    feature_map: str,
    seen: Array,
    alive: Array,
    initial_state: State | None,
) -> State:
    """n_i (N, H, Lq, M) and d_i (N, H, Lq), equations (1), (2) and (12)."""
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    q = alive[..., None] * phi(query, feature_map)
    a = seen * (q @ phi(key, feature_map).swapaxes(-1, -2))  # (1)
    n = q @ S + a @ value  # (12), (2)
    d = (q @ Z[..., None])[..., 0] + np.sum(a, axis=-1)  # (12), (2)
    return n, d


def linear_sums_backward(
    gn: Array, gd: Array, q: Array, k: Array, v: Array, seen: Array, initial_state: State | None
) -> tuple[Array, Array, Array, State]:
    """The gradients of features q and k, of v, S_0 and Z_0: (4) to (6), (13), (14)."""
    S, Z = zero_state(k, v) if initial_state is None else as_state(initial_state, k.dtype)
    a = seen * (q @ k.swapaxes(-1, -2))  # (1)
    da = seen * (gn @ v.swapaxes(-1, -2) + gd)  # (4)
    dq = gn @ S.swapaxes(-1, -2) + gd * Z[..., None, :] + da @ k  # (13), (5)
    dk = da.swapaxes(-1, -2) @ q  # (5)
    dv = a.swapaxes(-1, -2) @ gn  # (6)
    return dq, dk, dv, (q.swapaxes(-1, -2) @ gn, np.sum(gd * q, axis=-2))  # (14)


def quotient_backward(
    g: Array, n: Array, d: Array, guard: str, eps: float | None
) -> tuple[Array, Array]:
    """gn_i (N, H, Lq, M) and gd_i (N, H, Lq, 1), equations (5) and (6) of `guards`."""
    D, slope = guarded(d, guard, eps)
    blind = (d == 0) & np.all(n == 0, axis=-1)  # no gradient, where the guard's constant divides
    gn = np.where(blind[..., None], 0, g) / D[..., None]  # (5)
    o = n / D[..., None]  # (3)
    return gn, -np.sum(gn * o, axis=-1, keepdims=True) * slope[..., None]  # (6)


def phi(x: Array, feature_map: str) -> Array:
    """The features of x, number by number, as `feature_maps` defines them."""
    if feature_map == "identity":
        return x
    if feature_map == "exp":
        return np.exp(x)
    if feature_map == "relu":
        return np.where(np.real(x) > 0, x, 0)
    if feature_map == "softplus":
        return np.where(x > 0, x, 0) + np.log1p(np.exp(np.where(x > 0, -x, x)))
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def phi_slope(x: Array, feature_map: str) -> Array:
    """The derivative of `phi`."""
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
    """The guarded denominator, and the guard's derivative, as `guards` defines them."""
    if eps is None:
        eps = 1e-6 if guard == "add" else 1e-30 if d.dtype == np.float32 else 1e-300
    floor = d.dtype.type(eps)
    if guard == "none":
        return np.ones_like(d), np.zeros_like(d)
    if guard == "add":
        return d + floor, np.ones_like(d)
    if guard == "signed":
        open_gate = np.abs(d) > eps
        return np.where(open_gate, d, np.where(d < 0, -floor, floor)), open_gate.astype(d.dtype)
    return np.where(d > eps, d, floor), (d > eps).astype(d.dtype)


def zero_state(key: Array, value: Array) -> State:
    """The state of an empty sequence."""
    batch, heads, _, features = key.shape
    shape = (batch, heads, features)
    return np.zeros((*shape, value.shape[-1]), key.dtype), np.zeros(shape, key.dtype)


def as_state(state: State, dtype: DTypeLike) -> State:
    """S and Z as arrays of `dtype`."""
    return np.asarray(state[0], dtype), np.asarray(state[1], dtype)

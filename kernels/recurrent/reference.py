"""The naive truth of states, and the recurrence in NumPy; the numbers are those of `recurrent`.

What a query reads from a state is in `linear.reference`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array
from ..linear.reference import State, as_state, phi, phi_slope, zero_state
from ..visible import inside


def linear_recurrence(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, Array]:
    """Causal linear attention and its gradients, (1) to (8), where a matrix would be too large.

    Args:
        grad_output: (N, H, L, M), dLoss/do.
        query: (N, H, L, E) floats.
        key: (N, H, L, E) floats.
        value: (N, H, L, M) floats.
        feature_map: a name of `feature_maps`; denominators must not be zero.
        dtype: the dtype of all arithmetic.

    Returns:
        The output (N, H, L, M), and dq, dk, dv.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    q, k = phi(query, feature_map), phi(key, feature_map)
    o, gn, gd = np.empty_like(v), np.empty_like(v), np.empty_like(v[..., 0])
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    S, Z = zero_state(k, v)
    for i in range(q.shape[2]):
        q_i, k_i, v_i, g_i = (x[:, :, i] for x in (q, k, v, g))
        S += k_i[..., :, None] * v_i[..., None, :]  # (1)
        Z += k_i  # (2)
        D = np.sum(q_i * Z, axis=-1, keepdims=True)  # (3)
        o[:, :, i] = np.sum(S * q_i[..., :, None], axis=-2) / D  # (3), (4)
        gn[:, :, i] = g_i / D  # (5)
        gd[:, :, i] = -np.sum(gn[:, :, i] * o[:, :, i], axis=-1)  # (5)
        dq[:, :, i] = np.sum(S * gn[:, :, i, None], axis=-1) + gd[:, :, i, None] * Z  # (6)
    R, U = zero_state(k, v)
    for j in reversed(range(k.shape[2])):
        R += q[:, :, j, :, None] * gn[:, :, j, None, :]  # (7)
        U += gd[:, :, j, None] * q[:, :, j]  # (7)
        dk[:, :, j] = np.sum(R * v[:, :, j, None], axis=-1) + U  # (8)
        dv[:, :, j] = np.sum(R * k[:, :, j, :, None], axis=-2)  # (8)
    return o, phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk, dv


def final_state(
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    dtype: DTypeLike = np.float64,
) -> State:
    """The state of linear attention after every valid key, equations (1) and (2) for all of them.

    Args:
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        feature_map: a name of `feature_maps`.
        key_lengths: (N,) integers; later keys do not count. None: all count.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E); None: zeros.
        dtype: the dtype of all arithmetic.

    Returns:
        S (N, H, E, M) and Z (N, H, E).
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    k = inside(key, key_lengths)[..., None] * phi(key, feature_map)
    return S + k.swapaxes(-1, -2) @ value, Z + np.sum(k, axis=-2)  # (1), (2)


def final_state_backward(
    grad_state: State,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, State]:
    """The gradient of `final_state`: (8) and (9) without queries, where R is G and U is h.

    Args:
        grad_state: G = dLoss/dS (N, H, E, M) and h = dLoss/dZ (N, H, E).
        key: this and all the rest as in `final_state`.

    Returns:
        dk (N, H, Lk, E), dv (N, H, Lk, M), and dS_0, dZ_0.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    G, h = as_state(grad_state, key.dtype)
    valid = inside(key, key_lengths)[..., None]
    dk = phi_slope(key, feature_map) * (value @ G.swapaxes(-1, -2) + h[..., None, :])  # (8)
    return valid * dk, valid * (phi(key, feature_map) @ G), (G, h)  # (8), (9)

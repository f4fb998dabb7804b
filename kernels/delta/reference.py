"""The naive truth of the delta rule, token by token: equations (1) to (4) of `delta`.

Its gradient goes from the last token to the first, with that of the state: (14), (15) and (11).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array
from ..visible import CAUSAL, Visible, inside


def delta_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    beta: ArrayLike,
    visible: Visible = CAUSAL,
    *,
    initial_state: Array | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The delta rule, token by token, equations (1) to (4).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        beta: (N, H, Lk) floats.
        visible: who sees whom: query i reads the state after key i + query_offset.
        initial_state: W_0 (N, H, E, M); None: zeros.
        dtype: the dtype of all arithmetic.

    Returns:
        The output (N, H, Lq, M), the residuals (N, H, Lk, M), and the state after every key.

    Source: Schlag et al. 2021, section 4.2.
    """
    query, key, value, beta = (np.asarray(x, dtype) for x in (query, key, value, beta))
    W, r = delta_states(key, value, beta, visible.key_lengths, initial_state)
    read = np.clip(np.arange(query.shape[2]) + visible.query_offset + 1, 0, key.shape[2])
    q = inside(query, visible.query_lengths)[..., None] * query
    output = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
    for i, t in enumerate(read):
        output[:, :, i] = _times(W[t].swapaxes(-1, -2), q[:, :, i])  # (4)
    return output, r, W[-1]


def delta_states(
    key: Array,
    value: Array,
    beta: Array,
    key_lengths: ArrayLike | None,
    initial_state: Array | None,
) -> tuple[list[Array], Array]:
    """Returns W_0, W_1, ... after each key, and the residuals: equations (1) to (3)."""
    valid = inside(key, key_lengths)[..., None]
    shape = (*key.shape[:2], key.shape[3], value.shape[3])
    W = [np.zeros(shape, key.dtype) if initial_state is None else initial_state.astype(key.dtype)]
    r = np.zeros_like(value)
    for t in range(key.shape[2]):
        k, v, b = key[:, :, t], value[:, :, t], beta[:, :, t, None]
        r[:, :, t] = valid[:, :, t] * (v - _times(W[t].swapaxes(-1, -2), k))  # (1)
        W.append(W[t] + k[..., :, None] * (b * r[:, :, t])[..., None, :])  # (2), (3)
    return W, r


def delta_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    beta: ArrayLike,
    visible: Visible = CAUSAL,
    *,
    grad_state: ArrayLike | None = None,
    initial_state: Array | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, Array, Array]:
    """The gradient of the delta rule, from the last token to the first, (14), (15) and (11).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and the rest as in `delta_attention`.
        grad_state: (N, H, E, M), dLoss/dW of the last state; None: zeros.

    Returns:
        dq, dk, dv, dbeta and dW_0.
    """
    g, query, key, value, beta = (
        np.asarray(x, dtype) for x in (grad_output, query, key, value, beta)
    )
    W, r = delta_states(key, value, beta, visible.key_lengths, initial_state)
    read = np.clip(np.arange(query.shape[2]) + visible.query_offset + 1, 0, key.shape[2])
    alive = inside(query, visible.query_lengths)[..., None]
    valid = inside(key, visible.key_lengths)[..., None]
    G = np.zeros_like(W[0]) if grad_state is None else np.asarray(grad_state, dtype)
    dq, dk, dv, dbeta = (np.zeros_like(x) for x in (query, key, value, beta))
    for t in reversed(range(len(W))):
        for i in np.flatnonzero(read == t):
            q_i, g_i = alive[:, :, i] * query[:, :, i], alive[:, :, i] * g[:, :, i]
            dq[:, :, i] = _times(W[t], g_i)  # (15)
            G = G + q_i[..., :, None] * g_i[..., None, :]  # (14)
        if t == 0:
            break
        k, b, r_t, real = (x[:, :, t - 1] for x in (key, beta[..., None], r, valid))
        du = real * _times(G.swapaxes(-1, -2), k)  # (15)
        dbeta[:, :, t - 1] = np.sum(r_t * du, axis=-1)  # (11)
        dv[:, :, t - 1] = b * du  # (11)
        dk[:, :, t - 1] = real * (_times(G, b * r_t) - _times(W[t - 1], b * du))  # (15)
        G = G - k[..., :, None] * (b * du)[..., None, :]  # (14)
    return dq, dk, dv, dbeta, G


def _times(matrix: Array, vector: Array) -> Array:
    """Returns each head's matrix times its vector."""
    product: Array = (matrix @ vector[..., None])[..., 0]
    return product

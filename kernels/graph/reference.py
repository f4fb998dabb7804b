"""The naive truth of graph attention: a dense matrix of pairs of nodes.

With w_ij, the number of edges from query node i to key node j, equation (3) of the derivation in
`graph` is p_ij = w_ij exp(s_ij) / sum_t w_it exp(s_it).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array


def edge_counts(row_offsets: ArrayLike, columns: ArrayLike, num_keys: int) -> Array:
    """Returns w_ij, how many edges lead from query node i to key node j: (Tq, Tk).

    Args:
        row_offsets: (Tq + 1,) integers; the edges of node i are those from row_offsets[i] on.
        columns: (edges,) integers, the key node of each edge.
        num_keys: Tk.
    """
    offsets = np.asarray(row_offsets)
    counts = np.zeros((len(offsets) - 1, num_keys), int)
    rows = np.repeat(np.arange(len(counts)), np.diff(offsets))
    np.add.at(counts, (rows, np.asarray(columns, int)), 1)
    return counts


def graph_weights(scores: Array, counts: Array) -> Array:
    """Returns p_ij of equation (3), (H, Tq, Tk); zeros for a node without edges."""
    s = np.where(counts, scores, -np.inf)
    highest = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    terms = counts * np.exp(s - np.where(np.isfinite(highest), highest, 0))
    total = np.sum(terms, axis=-1, keepdims=True)
    return terms / np.where(total == 0, 1, total)  # (3)


def leaky_relu(z: Array, slope: float) -> Array:
    """LeakyReLU, of complex numbers by their real part."""
    return np.where(z.real > 0, z, slope * z)


def graph_attention(
    query_scores: ArrayLike,
    key_scores: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Graph attention with additive scores, equations (1), (3) and (4).

    Args:
        query_scores: a (H, Tq).
        key_scores: b (H, Tk).
        value: (H, Tk, M).
        row_offsets, columns: as in `edge_counts`.
        negative_slope: the slope of LeakyReLU where its argument is below 0.
        dtype: the dtype of all arithmetic.

    Returns:
        (H, Tq, M) of `dtype`.

    Source: Veličković et al. 2018, equations 1 to 4; S3.
    """
    a, b, v = (np.asarray(x, dtype) for x in (query_scores, key_scores, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    s = leaky_relu(a[..., None] + b[:, None], negative_slope)  # (1)
    return graph_weights(s, counts) @ v  # (4)


def graph_attention_backward(
    grad_output: ArrayLike,
    query_scores: ArrayLike,
    key_scores: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `graph_attention`, equations (5) to (8).

    Args:
        grad_output: (H, Tq, M), dLoss/do; the rest as `graph_attention` takes it.

    Returns:
        da (H, Tq), db (H, Tk), dv (H, Tk, M).
    """
    g, a, b, v = (np.asarray(x, dtype) for x in (grad_output, query_scores, key_scores, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    z = a[..., None] + b[:, None]
    ds, dv = _graph_backward(g, graph_weights(leaky_relu(z, negative_slope), counts), v)
    dz = np.where(z > 0, ds, negative_slope * ds)  # (7)
    return dz.sum(axis=2), dz.sum(axis=1), dv  # (8)


def graph_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Graph attention with products for scores, equations (2) to (4).

    Args:
        query: (H, Tq, E).
        key: (H, Tk, E).
        value: (H, Tk, M).
        row_offsets, columns: as in `edge_counts`.
        scale: factor of the scores, 1 / sqrt(E) by default.
        dtype: the dtype of all arithmetic.

    Returns:
        (H, Tq, M) of `dtype`.

    Source: S3.
    """
    q, k, v = (np.asarray(x, dtype) for x in (query, key, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return graph_weights(scale * (q @ k.swapaxes(-1, -2)), counts) @ v  # (2), (4)


def graph_dot_product_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `graph_dot_product_attention`, equations (5), (6) and (9).

    Args:
        grad_output: (H, Tq, M), dLoss/do; the rest as `graph_dot_product_attention` takes it.

    Returns:
        dq (H, Tq, E), dk (H, Tk, E), dv (H, Tk, M).
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    ds, dv = _graph_backward(g, graph_weights(scale * (q @ k.swapaxes(-1, -2)), counts), v)
    return scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (9)


def _graph_backward(g: Array, p: Array, v: Array) -> tuple[Array, Array]:
    """Returns ds (H, Tq, Tk), which is zero where there is no edge, and dv."""
    delta = np.sum(g * (p @ v), axis=-1, keepdims=True)  # (6), with (4)
    ds = p * (g @ v.swapaxes(-1, -2) - delta)  # (6)
    return ds, p.swapaxes(-1, -2) @ g  # (5)

"""The naive truth of softmax attention: the whole matrix of weights, one line for each equation.

The numbers of equations are those of the derivation in `softmax`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array
from ..relative.reference import at_distances
from ..visible import EVERYTHING, Visible


def softmax_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    scale: float | None = None,
    relative_scores: ArrayLike | None = None,
    kept: ArrayLike = 1.0,
    near: ArrayLike = True,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Softmax attention, equations (1), (2), (10) and (12).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        visible: who sees whom.
        scale: factor of the scores, 1 / sqrt(E) by default.
        relative_scores: b, (N, H, Lq, 2k + 1), or None.
        kept: m, (N, H, Lq, Lk), as `dropout_factors` makes it.
        near: (Lq, Lk) booleans that w_ij is multiplied by.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: Vaswani et al. 2017, equation 1; Shaw et al. 2018, equation 2; S3.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    b = bias(relative_scores, key, visible.query_offset)
    p, _ = softmax_weights(query, key, visible.mask(query, key) & near, scale, b)
    return (np.asarray(kept, dtype) * p) @ value  # (12)


def softmax_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    scale: float | None = None,
    relative_scores: ArrayLike | None = None,
    kept: ArrayLike = 1.0,
    near: ArrayLike = True,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, ...]:
    """The gradient of `softmax_attention`, equations (7), (9) and (11) to (13).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do; the rest as `softmax_attention` takes it.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M); with relative scores db, too.
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    b = bias(relative_scores, k, visible.query_offset)
    p, _ = softmax_weights(q, k, visible.mask(q, k) & near, scale, b)
    m = np.asarray(kept, dtype)
    dv = (m * p).swapaxes(-1, -2) @ g  # (12)
    delta = np.sum(g * ((m * p) @ v), axis=-1, keepdims=True)  # (8)
    ds = p * (m * (g @ v.swapaxes(-1, -2)) - delta)  # (7), (13)
    gradients = scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (9)
    if relative_scores is None:
        return gradients
    db = np.zeros(np.shape(relative_scores), ds.dtype)
    _, column = at_distances(db, np.arange(k.shape[2]), visible.query_offset)
    for r in range(db.shape[3]):
        db[..., r] = scale * np.sum(ds, axis=-1, where=column == r)  # (11)
    return *gradients, db


def softmax_weights(
    query: Array, key: Array, seen: Array, scale: float | None = None, b: ArrayLike = 0.0
) -> tuple[Array, Array]:
    """Returns p_ij (N, H, Lq, Lk) of (1), (2) and (10), and h_i + log d_i (N, H, Lq).

    A query that sees nothing has weights of zero, and for the logarithm of its sum -inf.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    s = np.where(seen, scale * (query @ key.swapaxes(-1, -2) + b), -np.inf)  # (10)
    h = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    h = np.where(np.isfinite(h), h, 0)
    terms = np.exp(s - h)
    d = np.sum(terms, axis=-1, keepdims=True)  # (1)
    with np.errstate(divide="ignore"):
        log_sum = h + np.log(d)
    return terms / np.where(d == 0, 1, d), log_sum[..., 0]  # (2)


def bias(relative_scores: ArrayLike | None, key: Array, query_offset: int) -> ArrayLike:
    """Returns b_i,r(i,j) (N, H, Lq, Lk) of (10); 0 where there are no relative scores."""
    if relative_scores is None:
        return 0.0
    of_each = np.asarray(relative_scores, key.dtype)
    return at_distances(of_each, np.arange(key.shape[2]), query_offset)[0]


def dropout_factors(shape: tuple[int, ...], dropout: float, seed: int) -> Array:
    """Returns m (N, H, Lq, Lk), the factors of dropout that the kernels make as they go.

    Word j mod 4 of Philox 4x32-7 for the counter (j // 4, i, h, n) decides.

    Source: Salmon et al. 2011, section 3.3.
    """
    n, h, i, j = np.indices(shape, np.uint64)
    word = np.choose((j % 4).astype(int), philox((j // 4, i, h, n), (seed % 2**32, seed >> 32)))
    return np.where(word < round(dropout * 2**32), 0, 1 / (1 - dropout))


def philox(counter: tuple[Array, ...], key: tuple[int, int], rounds: int = 7) -> tuple[Array, ...]:
    """Returns four random words of 32 bits, as uint64, for each counter of four."""
    word, half = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = (np.asarray(x, np.uint64) for x in counter)
    for turn in range(rounds):
        k, l = (  # noqa: E741
            np.uint64((x + turn * weyl) % 2**32)
            for x, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        )
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (right >> half) ^ b ^ k, right & word, (left >> half) ^ d ^ l, left & word
    return a, b, c, d

"""Fused softmax attention: the matrix of weights never exists in memory (S3).

Query i sees the keys j with w_ij = 1; lengths and causality decide. With s_ij = scale q_i . k_j

    h_i = max_{j: w_ij = 1} s_ij              d_i = sum_j w_ij exp(s_ij - h_i)             (1)
    p_ij = w_ij exp(s_ij - h_i) / d_i         o_i = sum_j p_ij v_j                         (2)

As three array operations this moves the L x L matrix through memory half a dozen times; inputs
and output are L x E. But a sum of exponentials can be extended as new terms come (Milakov and
Gimelshein 2018; Rabe and Staats 2021). Keep the largest score so far, h, the sum of exponentials
relative to it, d, and the values mixed by them, n. A tile of new keys, T those that i sees, gives

    h' = max(h, max_{j in T} s_ij)            c = exp(h - h')                              (3)
    d' = c d + sum_{j in T} exp(s_ij - h')    n' = c n + sum_{j in T} exp(s_ij - h') v_j   (4)

and after the last tile

    o_i = n / d                               h_i = h                d_i = d               (5)

No exponent is ever positive, so nothing overflows. A query that sees nothing has d = 0: it gives
o_i = 0, and 1 / d counts as 0.

Backward, given g_i = dLoss/do_i. The weights are computed again from h_i and 1 / d_i, by (2), when
they are needed: that is cheaper than reading them from memory, and these two numbers are all that
the forward has to keep. Their one sum h_i + log d_i would do, but it is rounded to digits of h_i:
for scores near 50,000, in float32, by 0.002, and all weights of a row would be off by as much.

    dv_j = sum_i p_ij g_i                                                                  (6)
    ds_ij = p_ij (g_i . v_j - sum_t p_it g_i . v_t) = p_ij (g_i . v_j - delta_i)           (7)
    delta_i = g_i . o_i                                                                    (8)
    dq_i = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i                 (9)

(8) holds because sum_t p_it v_t is o_i: a sum over all keys has become one over M columns.

**Relative scores** (Shaw et al. 2018). A number b_ir for each query and distance r from -k to k is
added to the product; what is farther counts as being at the end. With query i at i + offset,

    s_ij = scale (q_i . k_j + b_i,r(i,j))     r(i, j) = clip(j - i - offset, -k, k)           (10)
    db_ir = scale sum_{j: r(i,j) = r} ds_ij                                                   (11)

Shaw's b_ir = q_i . e_r is a product of matrices, made before. In (11) a distance between the ends
has one key: its gradient is written as it comes. Only both ends are sums.

**Dropout.** Each weight is multiplied by m_ij, which is 0 with probability `dropout`, and else
1 / (1 - dropout), by random bits that depend on nothing but a seed and on n, h, i and j: the same
in all kernels, and stored by none (`dropout`). With more than 65,535 sequences n begins again in
each part (`checks`).

    o_i = sum_j m_ij p_ij v_j                 dv_j = sum_i m_ij p_ij g_i                      (12)
    ds_ij = p_ij (m_ij g_i . v_j - delta_i)                                                   (13)

The sum d of (4) is that of all weights, and (8) still holds: sum_t p_it m_it v_t is o_i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Array, array_module, contiguous, outputs_of, version_of
from ..checks import QKV, finite, host
from ..layers.dropout import arguments as dropout_arguments
from ..visible import EVERYTHING, Visible
from . import fast, few, plain

if TYPE_CHECKING:
    from ..local import Pattern


@host(**QKV, relative_scores="N H Lq 2k+1")
def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    scale: float | None = None,
    relative_scores: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    pattern: Pattern | None = None,
    version: str = "fast",
) -> tuple[Array, Array, Array]:
    """Softmax attention without its matrix of weights: (1) to (5), (10), (12).

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        visible: who sees whom.
        scale: the factor of the scores; None is 1 / sqrt(E).
        relative_scores: `(N, H, Lq, 2k + 1)`: column r + k is added to the product of query i with
            the key at distance r = clip(j - i - query_offset, -k, k). None: nothing is.
        dropout: the probability, in [0, 1), that a weight is dropped.
        seed: a whole number in [0, 2^63): the same one drops the same weights.
        pattern: which of the keys a query sees, as `local` says it; None: all.
        version: "fast", or "plain" for the kernels of `plain`. "few", for up to three queries
            without pattern and dropout, shares the keys out among blocks; no backward follows.

    Returns:
        The output `(N, H, Lq, M)`, and for `backward` h and 1 / d of equation (5) `(N, H, Lq)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64, or pattern is not one.
        ValueError: E or M is above 256, dropout or seed are out of their range, or there is no such
            version, or "few" does not do what is asked.

    Source: Vaswani et al. 2017, equation 1; Shaw et al. 2018, equation 2; S3.

    Example:
        >>> import numpy as np
        >>> query, key = np.zeros((1, 1, 1, 8)), np.zeros((1, 1, 2, 8))
        >>> output, *_ = forward(query, key, np.array([[[[1.0], [3.0]]]]))
        >>> output.item()
        2.0
    """
    kernels = version_of(version, fast=fast, plain=plain, few=few)
    output, highest = outputs_of(query, value)
    inverse = array_module(query).empty_like(highest)
    how = visible, relative_scores, pattern, scale, dropout, seed
    inputs, options = _arguments(query, key, value, *how)
    if output.size:
        kernels.forward(inputs, options, pattern, (output, highest, inverse))
    return output, highest, inverse


@host(
    **QKV, relative_scores="N H Lq 2k+1", grad_output="N H Lq M", output="N H Lq M",
    highest="N H Lq", inverse="N H Lq",
)  # fmt: skip
def backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    highest: Array,
    inverse: Array,
    visible: Visible = EVERYTHING,
    *,
    scale: float | None = None,
    relative_scores: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    pattern: Pattern | None = None,
    version: str = "fast",
) -> tuple[Array, ...]:
    """The gradient of softmax attention: (6) to (9), (11) to (13).

    Args:
        grad_output: `(N, H, Lq, M)`, dLoss/doutput; the rest as `forward` took and returned it.

    Returns:
        dq `(N, H, Lq, E)`, dk `(N, H, Lk, E)`, dv `(N, H, Lk, M)`; where relative scores were given
        their gradient, too.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256, dropout or seed are out of their range, or there is no such
            version.

    Source: Dao et al. 2022, appendix B.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    how = visible, relative_scores, pattern, scale, dropout, seed
    inputs, options = _arguments(query, key, value, *how)
    gradients = tuple(array_module(query).zeros(x.shape, query.dtype) for x in inputs)
    if all(x.size for x in gradients[:3]):
        saved = contiguous(grad_output, output, highest, inverse)
        kernels.backward(inputs, saved, options, pattern, *gradients)
    return gradients[: 3 if relative_scores is None else 4]


class Options(NamedTuple):
    """What every kernel takes after its inputs, in the types that it takes."""

    query_lengths: Array
    key_lengths: Array
    causal: bool
    offset: int
    scale: Any
    seed: int
    dropped: int
    survivor: Any


def _arguments(
    query: Array, key: Array, value: Array, visible: Visible, relative_scores: Array | None,
    pattern: Pattern | None, scale: float | None, dropout: float, seed: int,
) -> tuple[tuple[Array, ...], Options]:  # fmt: skip
    """What every kernel takes; without relative scores, an array in their place that none reads."""
    number, reach = query.dtype.type, _reach(relative_scores, pattern)
    if scale is None:
        scale = query.shape[3] ** -0.5
    elif abs(finite("softmax", "scale", scale)) > float(np.finfo(query.dtype).max):
        raise ValueError(f"softmax: scale must be a number of {query.dtype}, got {scale}")
    options = Options(
        *visible.lengths(query, key),
        visible.causal,
        visible.near(query, key, reach),
        number(scale),
        *dropout_arguments(dropout, seed, number),
    )
    if relative_scores is None:
        relative_scores = array_module(query).empty((0, 0, 0, 1), query.dtype)
    return contiguous(query, key, value, relative_scores), options


def _reach(relative_scores: Array | None, pattern: Pattern | None) -> int:
    """From where on distances make no difference: keys that far away are all alike."""
    k = 0 if relative_scores is None else relative_scores.shape[3] // 2
    if pattern is None:
        return k
    if not hasattr(pattern, "walk"):
        raise TypeError(f"softmax: pattern must be a Pattern, got {type(pattern).__name__}")
    return max(k, pattern.reach)

"""Softmax attention: the public function."""

import math

from ..functions.attention import SoftmaxAttention
from ..tensor import Tensor
from .checks import Lengths, check_sequences, lengths_of, whole


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    scale: float | None = None,
) -> Tensor:
    """Average the values, each weighted by the softmax of its key's product with the query.

        o_i = sum_j p_ij v_j        p_ij = exp(scale q_i . k_j) / sum_t exp(scale q_i . k_t)

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores; 1 / sqrt(E) by default.

    Returns:
        (N, H, Lq, M).

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Vaswani et al. 2017, equation (1); S3.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> softmax_attention(same_keys, same_keys, value).tolist()
    [[[[6.0], [6.0], [6.0]]]]
    >>> softmax_attention(same_keys, same_keys, value, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    """
    name = "softmax_attention"
    check_sequences(name, query, key, value)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{name}: scale must be a finite number, got {scale}; None is 1 / sqrt(E)")
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        causal=causal,
        query_offset=whole(name, "query_offset", query_offset),
        query_lengths=lengths_of(name, "query_lengths", query_lengths, query),
        key_lengths=lengths_of(name, "key_lengths", key_lengths, key),
        scale=scale,
    )
    return output

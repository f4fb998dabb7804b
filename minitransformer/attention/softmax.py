"""Softmax attention: the public function."""

import math

from .. import random
from ..functions.attention import SoftmaxAttention
from ..tensor import Tensor
from .checks import Lengths, check_embedding, check_sequences, lengths_of, whole


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
    relative_embedding: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Average the values, each weighted by the softmax of its key's product with the query.

        o_i = sum_j p_ij v_j        p_ij = exp(scale q_i . k_j) / sum_t exp(scale q_i . k_t)

    With a relative embedding, q_i . (k_j + e_r) takes the place of q_i . k_j, where the distance r
    is clip(j - (i + query_offset), -k, k). With dropout, each p_ij is then set to zero with that
    probability, and divided by 1 - dropout where it is not.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores; 1 / sqrt(E) by default.
        relative_embedding: (H, 2k + 1, E); row r + k is e_r. None: no relative positions. Their
            scores take (N, H, Lq, 2k + 1) numbers in memory.
        dropout: the probability, in [0, 1), that a weight is dropped.
        seed: what decides which weights are, a whole number from 0 to 2^63 - 1: the same one drops
            the same weights, on every device. None: drawn from `minitransformer.random`.

    Returns:
        (N, H, Lq, M).

    Raises:
        TypeError: an input is not floating, or lengths, offset or seed are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Vaswani et al. 2017, equation (1); S3. Relative positions: Shaw et al. 2018, equation
    (4). Dropout: Srivastava et al. 2014.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> softmax_attention(same_keys, same_keys, value).tolist()
    [[[[6.0], [6.0], [6.0]]]]
    >>> softmax_attention(same_keys, same_keys, value, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    >>> only_the_next = Tensor([[[0.0, 0.0], [0.0, 0.0], [99.0, 99.0]]])
    >>> softmax_attention(same_keys, same_keys, value, relative_embedding=only_the_next).tolist()
    [[[[7.5], [9.0], [6.0]]]]
    """
    name = "softmax_attention"
    check_sequences(name, query, key, value)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{name}: scale must be a finite number, got {scale}; None is 1 / sqrt(E)")
    relative_scores = None
    if relative_embedding is not None:
        check_embedding(name, query, relative_embedding)
        relative_scores = query @ relative_embedding.transpose(1, 2)  # (N, H, Lq, 2k + 1)
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        relative_scores,
        causal=causal,
        query_offset=whole(name, "query_offset", query_offset),
        query_lengths=lengths_of(name, "query_lengths", query_lengths, query),
        key_lengths=lengths_of(name, "key_lengths", key_lengths, key),
        scale=scale,
        dropout=_probability(name, dropout),
        seed=_seed(name, seed, dropout),
    )
    return output


def _probability(function: str, dropout: float) -> float:
    """Return the probability of dropout, having checked that it leaves something."""
    if not 0 <= dropout < 1:
        raise ValueError(
            f"{function}: dropout must be a probability with 0 <= dropout < 1, got {dropout}"
        )
    return dropout


def _seed(function: str, seed: int | None, dropout: float) -> int:
    """Return the seed, having checked or drawn it; nothing is drawn where nothing is dropped."""
    if seed is None:
        return random.seed() if dropout else 0
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"{function}: seed must be a whole number, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"{function}: seed must be from 0 to 2^63 - 1, got {seed}")
    return seed

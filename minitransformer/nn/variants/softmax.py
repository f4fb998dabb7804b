"""Softmax attention as a variant."""

from typing import Any

from ...attention import softmax_attention
from ...tensor import Tensor
from ..variant import AttentionVariant, register_attention


@register_attention("softmax")
class SoftmaxAttention(AttentionVariant):
    """The softmax of all scores; quadratic cost, and a cache that grows with every token.

    Args:
        scale: factor of the scores; 1 / sqrt(E) by default.
        max_distance: k, for Shaw's relative positions: the product of a query with an embedding of
            the distance, learned for each from -k to k, is added to that with the key. None: none.

    Source: Vaswani et al. 2017, equation (1); Shaw et al. 2018, equation (4); S3.
    """

    has_dropout = True

    def __init__(self, scale: float | None = None, max_distance: int | None = None) -> None:
        self.scale, self.max_distance = scale, max_distance

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`; `dropout` is the fraction of weights to drop."""
        options = {"scale": self.scale, "relative_embedding": self.embedding, **keywords}
        return softmax_attention(query, key, value, **options)

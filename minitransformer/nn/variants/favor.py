"""Linear attention that estimates softmax attention, as a variant."""

from typing import Any

from ..feature_maps import Favor
from ..variant import register_attention
from .linear import LinearAttention


@register_attention("favor")
class FavorAttention(LinearAttention):
    """Linear attention by positive random features, an estimate of softmax attention.

    Args:
        num_features: R; see `Favor`.
        options: see `LinearAttention`.

    Source: Choromanski et al. 2021.
    """

    def __init__(self, num_features: int | None = None, **options: Any) -> None:
        super().__init__(None, **options)
        self.num_features = num_features

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Draw the projection."""
        if self.feature_map is None:
            self.feature_map = Favor(head_dim, self.num_features)

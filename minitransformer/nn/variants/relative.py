"""Linear attention with learned relative positions, as a variant."""

from typing import Any

from ...attention import relative_linear_attention, relative_linear_attention_step
from ...tensor import Tensor
from ..stateful import StatefulAttention
from ..variant import register_attention


@register_attention("relative")
class RelativeLinearAttention(StatefulAttention):
    """Linear attention that also weighs by distance: an embedding for each, learned.

    Across to another sequence it needs all values, as any distance may come near: it keeps them.

    Args:
        max_distance: k; what is farther away than that counts as being there.
        options: score_map, relative_query, feature_map, guard, eps and algorithm, see
            `relative_linear_attention`.

    Source: Shaw et al. 2018; S0.
    """

    sequence = staticmethod(relative_linear_attention)
    token = staticmethod(relative_linear_attention_step)
    axes = (None,)

    def __init__(self, max_distance: int = 16, **options: Any) -> None:
        super().__init__(**options)
        self.max_distance = max_distance

    def inputs(self, query: Tensor, key: Tensor, first_query: int, first_key: int) -> Any:
        """Return the embeddings; distances do not depend on where the sequence begins."""
        return (self.embedding,)

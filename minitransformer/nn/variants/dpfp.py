"""Linear attention by products of neighbours, as a variant."""

from typing import Any

from ..feature_maps import DPFP
from ..variant import register_attention
from .linear import LinearAttention


@register_attention("dpfp")
class DPFPAttention(LinearAttention):
    """Linear attention by products of neighbouring numbers.

    Args:
        nu: see `DPFP`; with 1, a query has now and then no feature that is not tiny, and float32
            rounds it badly.
        options: see `LinearAttention`.

    Source: Schlag et al. 2021.
    """

    def __init__(self, nu: int = 2, **options: Any) -> None:
        super().__init__(DPFP(nu), **options)

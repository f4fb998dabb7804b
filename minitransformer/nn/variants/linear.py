"""Linear attention as a variant."""

from ...attention import linear_attention, linear_attention_step
from ..stateful import TotalsAttention
from ..variant import register_attention


@register_attention("linear")
class LinearAttention(TotalsAttention):
    """Scores that are products of features.

    Args:
        feature_map: φ, see `linear_attention`; a `FeatureMap` with parameters is part of the model.
        options: guard, eps and algorithm, see there.

    Source: Katharopoulos et al. 2020; S1.
    """

    sequence = staticmethod(linear_attention)
    token = staticmethod(linear_attention_step)

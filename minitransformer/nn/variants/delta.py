"""The delta rule as a variant."""

from typing import Any

import numpy as np

from ...attention import delta_attention, delta_attention_step
from ...functions import sigmoid
from ...tensor import Tensor
from ..module import Parameter
from ..stateful import TotalsAttention
from ..variant import normal, register_attention


@register_attention("delta")
class DeltaAttention(TotalsAttention):
    """Fast weights by the delta rule: a key replaces what the state held under it.

    How much it replaces, the network says: beta = σ(w_h . k + b_h), a number for each head and
    token, learned, and 1/2 at first. (Its source takes beta = σ(W_beta x) from the layer's input x,
    which a variant does not see. As k = W_K x, what is here is that with W_beta = w_h W_K.)

    Where not causal, as across to another sequence, all keys are written before any query reads.

    Args:
        feature_map: φ, see `delta_attention`.
        options: normalize and algorithm, see there.

    Source: Schlag et al. 2021.
    """

    sequence = staticmethod(delta_attention)
    token = staticmethod(delta_attention_step)
    axes = (2,)

    beta_weight: Parameter
    beta_bias: Parameter

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make w (H, E, 1), small, and b (H, 1), zeros."""
        weight, bias = (num_heads, head_dim, 1), (num_heads, 1)
        self.learn("beta_weight", weight, lambda: normal(weight, head_dim**-0.5))
        self.learn("beta_bias", bias, lambda: np.zeros(bias, np.float32))

    def inputs(self, query: Tensor, key: Tensor, first_query: int, first_key: int) -> Any:
        """Return the rates; states know no positions."""
        return (self.beta(key),)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend; where not causal, from behind the last key."""
        if not keywords.pop("causal", False):
            keywords["query_offset"] = key.shape[2]
        return super().attend(query, key, value, first_key, **keywords)

    def beta(self, key: Tensor) -> Tensor:
        """Return the rates (N, H, L) of keys (N, H, L, E)."""
        return sigmoid((key @ self.beta_weight)[..., 0] + self.beta_bias)

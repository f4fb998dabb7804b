"""How one array reads another, of another length and width: a Perceiver's step, in two forms.

| module                   | what it returns                                               |
|--------------------------|---------------------------------------------------------------|
| `PreNormCrossAttention`  | s + mlp(norm(s)), with s = x + attention(norm(x), norm(y))    |
| `PostNormCrossAttention` | s + dense(s), with s = norm(x + attention(norm(x), norm(y)))  |
"""

from typing import Any

from ..tensor import Tensor
from .attention import MultiHeadAttention
from .layers import Dropout, LayerNorm, Linear
from .module import Module
from .transformer import FeedForward
from .variant import AttentionVariant


class PreNormCrossAttention(Module):
    """x + attention(norm(x), norm(y)), then x + mlp(norm(x)): what x was is never normalised.

    Args:
        dim: P, the width of x.
        context_dim: C, the width of y.
        num_heads: H; P must be a multiple of it.
        attention: a variant's name or an `AttentionVariant`.
        dim_feedforward: the width inside the mlp.
        dropout: the fraction dropped of what is added to x.
        activation: "relu" or "gelu".

    Source: Jaegle et al. 2021, section 3.1.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        num_heads: int,
        *,
        attention: str | AttentionVariant,
        dim_feedforward: int,
        dropout: float,
        activation: str,
    ) -> None:
        self.norm = LayerNorm(dim)
        self.context_norm = LayerNorm(context_dim)
        self.attention = MultiHeadAttention(
            dim, num_heads, attention=attention, key_dim=context_dim, value_dim=context_dim
        )
        self.dropout = Dropout(dropout)
        self.feed_forward = FeedForward(dim, dim_feedforward, dropout, activation, norm_first=True)

    def forward(self, x: Tensor, context: Tensor, lengths: Any = None) -> Tensor:
        """Read context (B, M, C), of which the first lengths (B,) count, into x (B, N, P)."""
        update = self.attention(self.norm(x), self.context_norm(context), key_lengths=lengths)
        return self.feed_forward(x + self.dropout(update))


class PostNormCrossAttention(Module):
    """s = norm(x + attention(norm(x), norm(y))), then s + dense(s): S4's module, literally.

    The attention is three projections and no fourth that joins the heads; the feed-forward network
    is one dense layer; and the second sum starts from what has been *normalised*, so no sum runs
    through all repeats untouched.

    The arguments are those of `PreNormCrossAttention`, without dim_feedforward and activation.

    Source: S4.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        num_heads: int,
        *,
        attention: str | AttentionVariant,
        dropout: float,
    ) -> None:
        self.norm = LayerNorm(dim)
        self.context_norm = LayerNorm(context_dim)
        self.attention = MultiHeadAttention(
            dim,
            num_heads,
            attention=attention,
            key_dim=context_dim,
            value_dim=context_dim,
            joined=False,
        )
        self.sum_norm = LayerNorm(dim)
        self.dense = Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor, lengths: Any = None) -> Tensor:
        """Read context (B, M, C), of which the first lengths (B,) count, into x (B, N, P)."""
        update = self.attention(self.norm(x), self.context_norm(context), key_lengths=lengths)
        x = self.sum_norm(x + self.dropout(update))
        return x + self.dropout(self.dense(x))

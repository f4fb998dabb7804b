"""How one array reads another, of another length and width: a Perceiver's step, in two forms.

| module                   | what it returns                                               |
|--------------------------|---------------------------------------------------------------|
| `PreNormCrossAttention`  | s + mlp(norm(s)), with s = x + attention(norm(x), norm(y))    |
| `PostNormCrossAttention` | s + dense(s), with s = norm(x + attention(norm(x), norm(y)))  |
"""

from collections.abc import Callable
from typing import Any

from ..tensor import Tensor
from .attention import MultiHeadAttention
from .layers import Dropout, LayerNorm, Linear
from .module import Module
from .transformer import FeedForward
from .variants import AttentionVariant, attention_variant


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

    Args:
        dim: P, the width of x.
        context_dim: C, the width of y.
        num_heads: H; P must be a multiple of it.
        attention: a variant's name or an `AttentionVariant`.
        dropout: the fraction dropped of what is added.

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
        self.attention = ThreeProjections(dim, context_dim, num_heads, attention)
        self.sum_norm = LayerNorm(dim)
        self.dense = Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor, lengths: Any = None) -> Tensor:
        """Read context (B, M, C), of which the first lengths (B,) count, into x (B, N, P)."""
        update = self.attention(self.norm(x), self.context_norm(context), key_lengths=lengths)
        x = self.sum_norm(x + self.dropout(update))
        return x + self.dropout(self.dense(x))


class ThreeProjections(Module):
    """Attention with W_Q, W_K and W_V alone: the heads' outputs, side by side, are the output.

    Args:
        dim: P, the width of the queries' input and of the output.
        context_dim: C, the width of the keys' and values' input.
        num_heads: H; P must be a multiple of it.
        attention: a variant's name or an `AttentionVariant`.

    Raises:
        ValueError: P is not a multiple of H.
    """

    on_weights: Callable[[Tensor], None] | None = None  # who wants the weights of every forward

    def __init__(
        self, dim: int, context_dim: int, num_heads: int, attention: str | AttentionVariant
    ) -> None:
        if dim % num_heads:
            raise ValueError(
                f"ThreeProjections: dim must be a multiple of num_heads, got {dim} and {num_heads}"
            )
        self.num_heads = num_heads
        self.query_projection = Linear(dim, dim)
        self.key_projection = Linear(context_dim, dim)
        self.value_projection = Linear(context_dim, dim)
        self.attention = attention_variant(attention, num_heads, dim // num_heads)

    def forward(self, x: Tensor, context: Tensor, key_lengths: Any = None) -> Tensor:
        """Map x (B, N, P) and context (B, M, C) to (B, N, P)."""
        query = self._split(self.query_projection(x))
        key, value = (
            self._split(project(context))
            for project in (self.key_projection, self.value_projection)
        )
        heads = self.attention(query, key, value, key_lengths=key_lengths)  # (B, H, N, E)
        if self.on_weights:
            self.on_weights(self.attention.weights(query, key, value, key_lengths=key_lengths))
        return heads.transpose(1, 2).reshape(x.shape)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = x.reshape(batch, length, self.num_heads, width // self.num_heads)
        return heads.transpose(1, 2)  # (B, H, length, E)

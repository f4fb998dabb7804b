"""The Perceiver: a few latents read a large array, as often as they like, and think in between.

Self-attention over M elements weighs M^2 pairs. Here N latents, N small and free to choose, ask the
questions, and the M elements (bytes, whatever they are: pixels, samples, letters) only answer:

    Q = latents W_Q,  K = bytes W_K,  V = bytes W_V                                        (1)
    latents <- latents + softmax(Q K^T / sqrt(E)) V            cross-attention, M N pairs  (2)
    latents <- transformer(latents)                            L layers, L N^2 pairs       (3)

The result has the latents' own shape, so (2) and (3) can be repeated. Repeats that share their
weights make it a recurrent network that rereads its input; `depth` of them weigh
depth (M N + L N^2) pairs. The bytes are a set: where they stand, `FourierPositions` tells.

Letters are S4's: B batch, M bytes of C channels, N latents of P channels.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..tensor import Tensor
from .attention import MultiHeadAttention
from .layers import Dropout, LayerNorm, Linear, check_positive
from .module import Module, ModuleList, Parameter, Sequential
from .transformer import FeedForward, TransformerEncoderLayer
from .variants import AttentionVariant, attention_variant, normal


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

    Source: Jaegle et al. 2021, appendix E.
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
    is one dense layer; and the second sum starts from what has been *normalised*, so nothing but
    its direction is left of what x was.

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
    """

    def __init__(
        self, dim: int, context_dim: int, num_heads: int, attention: str | AttentionVariant
    ) -> None:
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
        return heads.transpose(1, 2).reshape(x.shape)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = x.reshape(batch, length, self.num_heads, width // self.num_heads)
        return heads.transpose(1, 2)  # (B, H, length, E)


class Block(Module):
    """One repeat: the latents read the bytes, then attend to one another.

    Args:
        cross: the module that reads.
        layers: those of the latent transformer.
    """

    def __init__(self, cross: Module, layers: Iterable[Module]) -> None:
        self.cross = cross
        self.layers = ModuleList(layers)

    def forward(self, latents: Tensor, inputs: Tensor, lengths: Any = None) -> Tensor:
        """Map latents (B, N, P), given the bytes (B, M, C), to (B, N, P)."""
        latents = self.cross(latents, inputs, lengths)
        for layer in self.layers:
            latents = layer(latents)
        return latents


class MeanHead(Module):
    """Logits for the whole array: the latents' mean, normalised and projected.

    Args:
        latent_dim: P.
        num_classes: the width of the output.

    Source: Jaegle et al. 2021, section 3.1.
    """

    def __init__(self, latent_dim: int, num_classes: int) -> None:
        self.norm = LayerNorm(latent_dim)
        self.projection = Linear(latent_dim, num_classes)

    def forward(self, latents: Tensor) -> Tensor:
        """Map (B, N, P) to (B, num_classes)."""
        return self.projection(self.norm(latents.mean(1)))


class QueryHead(Module):
    """An output for every query: the queries read the latents, as the latents read the bytes.

    Args:
        cross: the module by which queries (B, O, query_dim) read the latents.
        query_dim: the width of a query.
        num_classes: the width of an output.

    Source: Jaegle et al. 2022, "Perceiver IO", section 3.1.
    """

    def __init__(self, cross: Module, query_dim: int, num_classes: int) -> None:
        self.cross = cross
        self.norm = LayerNorm(query_dim)
        self.projection = Linear(query_dim, num_classes)

    def forward(self, latents: Tensor, queries: Tensor) -> Tensor:
        """Map latents (B, N, P) and queries (B, O, query_dim) to (B, O, num_classes)."""
        return self.projection(self.norm(self.cross(queries, latents)))


class Perceiver(Module):
    """Latents that read an array of any length at a cost linear in it.

    Args:
        input_dim: C, the channels of a byte.
        num_latents: N.
        latent_dim: P, the channels of a latent.
        num_classes: the width of the output; None returns the latents themselves.
        query_dim: the width of output queries, each of which then gets an output of its own; None
            gives one output for the whole array.
        depth: how often the latents read the bytes.
        layers: L, how many layers of self-attention follow each reading.
        num_heads: of the self-attention.
        cross_heads: of the cross-attention.
        attention: the self-attention's variant, a name or an `AttentionVariant`.
        cross_attention: the cross-attention's: "softmax" or "linear", which count no distances.
        share: which repeats share their weights: "all", "all_but_first" or "none".
        norm: "pre", residual sums as usual, or "post", S4's module literally.
        dim_feedforward: the width inside the feed-forward networks; 4 P by default.
        dropout: the fraction dropped of each sublayer's output.
        activation: "relu" or "gelu".

    Raises:
        ValueError: a size is below 1, or P is not a multiple of the heads, or an option is unknown.

    Source: Jaegle et al. 2021; the output queries, Jaegle et al. 2022; S4.

    >>> from minitransformer import Tensor, nn
    >>> positions = nn.FourierPositions((8, 8), num_bands=4)
    >>> model = nn.Perceiver(
    ...     1 + positions.num_features, num_latents=16, latent_dim=32, num_classes=10, depth=2
    ... )
    >>> images = Tensor([[[[0.5]] * 8] * 8])  # (B, 8, 8, 1)
    >>> model(positions(images)).shape
    (1, 10)
    """

    def __init__(
        self,
        input_dim: int,
        *,
        num_latents: int,
        latent_dim: int,
        num_classes: int | None = None,
        query_dim: int | None = None,
        depth: int = 1,
        layers: int = 1,
        num_heads: int = 8,
        cross_heads: int = 1,
        attention: str | AttentionVariant = "softmax",
        cross_attention: str | AttentionVariant = "softmax",
        share: str = "all",
        norm: str = "pre",
        dim_feedforward: int | None = None,
        dropout: float = 0.0,
        activation: str = "gelu",
    ) -> None:
        check_positive(self, input_dim=input_dim, num_latents=num_latents, latent_dim=latent_dim)
        check_positive(self, depth=depth, layers=layers, cross_heads=cross_heads)
        _check_options(input_dim, num_classes, query_dim, share, norm)
        dim_feedforward = 4 * latent_dim if dim_feedforward is None else dim_feedforward
        cross: Callable[..., Module] = PostNormCrossAttention
        if norm == "pre":
            cross = partial(
                PreNormCrossAttention, dim_feedforward=dim_feedforward, activation=activation
            )
        cross = partial(cross, num_heads=cross_heads, attention=cross_attention, dropout=dropout)
        layer = partial(
            TransformerEncoderLayer,
            latent_dim,
            num_heads,
            attention=attention,
            dim_feedforward=dim_feedforward,
            dropout=dropout,
            activation=activation,
            norm_first=norm == "pre",
        )
        self.input_dim, self.query_dim, self.depth = input_dim, query_dim, depth
        self.latents = Parameter(normal((num_latents, latent_dim), 0.02))  # (N, P)
        self.blocks = ModuleList(
            Block(cross(latent_dim, input_dim), (layer() for _ in range(layers)))
            for _ in range(min(depth, BLOCKS[share](depth)))
        )
        if num_classes is None:
            self.head: Module = Sequential()
        elif query_dim is None:
            self.head = MeanHead(latent_dim, num_classes)
        else:
            self.head = QueryHead(cross(query_dim, latent_dim), query_dim, num_classes)

    def forward(self, inputs: Tensor, queries: Tensor | None = None, lengths: Any = None) -> Tensor:
        """Read the bytes, and answer.

        Args:
            inputs: (B, M, C), the bytes.
            queries: (B, O, query_dim), for a model with a query_dim and for no other.
            lengths: (B,) integers, how many bytes of each array count. None: all.

        Returns:
            (B, num_classes), with queries (B, O, num_classes); the latents (B, N, P) of a model
            without num_classes.

        Raises:
            ValueError: an array's shape is not the model's, or queries are missing or unexpected.
        """
        if self.query_dim is None and queries is None:
            return self.head(self.encode(inputs, lengths))
        self._check_queries(queries)
        return self.head(self.encode(inputs, lengths), queries)

    def encode(self, inputs: Tensor, lengths: Any = None) -> Tensor:
        """Map bytes (B, M, C), of which the first lengths (B,) count, to latents (B, N, P)."""
        if inputs.ndim != 3 or inputs.shape[-1] != self.input_dim:
            raise ValueError(
                f"Perceiver: inputs must be (B, M, {self.input_dim}), got {inputs.shape}; flatten "
                "what has dimensions, as FourierPositions does"
            )
        latents = self.latents.expand(inputs.shape[0], *self.latents.shape)  # (B, N, P)
        for repeat in range(self.depth):
            latents = self.block(repeat)(latents, inputs, lengths)
        return latents

    def block(self, repeat: int) -> Block:
        """Return the block of a repeat; the last one serves all that have none of their own."""
        block: Block = self.blocks[min(repeat, len(self.blocks) - 1)]
        return block

    def _check_queries(self, queries: Tensor | None) -> None:
        if self.query_dim is None:
            raise ValueError(
                "Perceiver: expected no queries, as the model has no query_dim; build it with "
                "query_dim and num_classes to get an output for each query"
            )
        if queries is None or queries.ndim != 3 or queries.shape[-1] != self.query_dim:
            found = None if queries is None else queries.shape
            raise ValueError(
                f"Perceiver: queries must be (B, O, {self.query_dim}), got {found}; `encode` "
                "returns the latents, which need none"
            )


BLOCKS: dict[str, Callable[[int], int]] = {
    "all": lambda depth: 1,
    "all_but_first": lambda depth: 2,
    "none": lambda depth: depth,
}
"""How many blocks have weights of their own, by `share`; never more than there are repeats."""


def _check_options(
    input_dim: int, num_classes: int | None, query_dim: int | None, share: str, norm: str
) -> None:
    if input_dim == 1:
        raise ValueError(
            "Perceiver: input_dim must be at least 2, got 1: one number, normalised, is 0; give "
            "the bytes their positions as further channels, see FourierPositions"
        )
    if num_classes is None and query_dim is not None:
        raise ValueError(
            "Perceiver: query_dim needs num_classes, the width of each query's output, got None"
        )
    for name, value, options in (("share", share, tuple(BLOCKS)), ("norm", norm, ("pre", "post"))):
        if value not in options:
            raise ValueError(
                f"Perceiver: {name} must be one of {', '.join(map(repr, options))}, got {value!r}"
            )

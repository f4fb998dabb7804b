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

from minitransformer_kernels.checks import one_of

from ..tensor import Tensor
from .cross_attention import PostNormCrossAttention, PreNormCrossAttention
from .dimensions import dimensions
from .layers import LayerNorm, Linear, check_positive
from .module import Module, ModuleList, Parameter, Sequential
from .transformer import TransformerEncoderLayer
from .variant import AttentionVariant, normal


class Block(Module):
    """One repeat: the latents read the bytes by `cross`, then attend to one another by `layers`."""

    def __init__(self, cross: Module, layers: Iterable[Module]) -> None:
        self.cross = cross
        self.layers = ModuleList(layers)

    def forward(self, latents: Tensor, inputs: Tensor, lengths: Any = None) -> Tensor:
        """Map latents (B, N, P), given the bytes (B, M, C), to (B, N, P)."""
        latents = self.cross(latents, inputs, lengths)  # (1), (2)
        for layer in self.layers:
            latents = layer(latents)  # (3)
        return latents


class MeanHead(Module):
    """Logits for the whole array: the latents' mean, normalised and projected.

    Source: Jaegle et al. 2021, section 3.1.
    """

    def __init__(self, latent_dim: int, num_classes: int) -> None:
        self.norm = LayerNorm(latent_dim)
        self.projection = Linear(latent_dim, num_classes)

    def forward(self, latents: Tensor) -> Tensor:
        """Map (B, N, P) to (B, num_classes)."""
        return self.projection(self.norm(latents.mean(1)))


class QueryHead(Module):
    """An output for every query: by `cross` the queries read the latents, as those read the bytes.

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
        one_of("Perceiver", "share", share, BLOCKS)
        one_of("Perceiver", "norm", norm, ("pre", "post"))
        _check_widths(input_dim, num_classes, query_dim)
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
            self.head: Any = Sequential()
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
        asked = () if self.query_dim is None and queries is None else (self._checked(queries),)
        answer: Tensor = self.head(self.encode(inputs, lengths), *asked)
        return answer

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

    def dimensions(self, num_bytes: int, batch: int = 1, num_queries: int = 1) -> str:
        """Return S4's table of dimensions: every array, its formula and its shape, in text.

        Shapes are read off a forward pass over zeros, so the table says what the model does. Where
        repeats share their weights, they share their lines. Biases are left out.

        Args:
            num_bytes: M.
            batch: B.
            num_queries: O, for a model with a query_dim.

        >>> from minitransformer import nn
        >>> model = nn.Perceiver(3, num_latents=2, latent_dim=4, num_heads=2)
        >>> print(model.dimensions(num_bytes=100).partition("repeat 1: layer")[0].rstrip())
        array    formula                        letters        shape            weights (in × out)
        bytes    the input                      B × M × C      1 × 100 × 3
        latents  learned, the same for all      B × N × P      1 × 2 × 4
        <BLANKLINE>
        repeat 1: latents read bytes
        Q        norm(latents) W_Q              B × H × N × E  1 × 1 × 2 × 4    4 × 4
        K        norm(bytes) W_K                B × H × M × E  1 × 1 × 100 × 4  3 × 4
        V        norm(bytes) W_V                B × H × M × E  1 × 1 × 100 × 4  3 × 4
        S        Q K^T / sqrt(E), never stored  B × H × N × M  1 × 1 × 2 × 100
        A        softmax(S) V                   B × H × N × E  1 × 1 × 2 × 4
        latents  latents + A W_O                B × N × P      1 × 2 × 4        4 × 4
        latents  latents + mlp(norm(latents))   B × N × P      1 × 2 × 4        4 × 16, 16 × 4
        """
        return dimensions(self, num_bytes, batch, num_queries)

    def extra_repr(self) -> str:
        """Return the size of the latents, and how often they read."""
        num_latents, latent_dim = self.latents.shape
        return f"num_latents={num_latents}, latent_dim={latent_dim}, depth={self.depth}"

    def _checked(self, queries: Tensor | None) -> Tensor:
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
        return queries


BLOCKS: dict[str, Callable[[int], int]] = {
    "all": lambda depth: 1,
    "all_but_first": lambda depth: 2,
    "none": lambda depth: depth,
}
"""How many blocks have weights of their own, by `share`; never more than there are repeats."""


def _check_widths(input_dim: int, num_classes: int | None, query_dim: int | None) -> None:
    if input_dim == 1:
        raise ValueError(
            "Perceiver: input_dim must be at least 2, got 1: one number, normalised, is 0; give "
            "the bytes their positions as further channels, see FourierPositions"
        )
    if num_classes is None and query_dim is not None:
        raise ValueError(
            "Perceiver: query_dim needs num_classes, the width of each query's output, got None"
        )

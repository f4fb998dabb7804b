"""Transformers: layers, stacks of layers, and models from tokens to logits.

Everything that a decoder does to a whole sequence in `forward`, it does to the next tokens in
`step`: a state goes in, the state after those tokens comes out, and the outputs are the same.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

from ..tensor import Tensor
from .attention import MultiHeadAttention
from .layers import GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, check_positive
from .module import Module, ModuleList, Sequential
from .positions import position_encoding
from .variants import AttentionVariant

ACTIVATIONS: dict[str, type[Module]] = {"relu": ReLU, "gelu": GELU}


class LayerOptions(TypedDict, total=False):
    """What a stack or a model passes on to each of its layers, see `TransformerEncoderLayer`."""

    attention: str | AttentionVariant
    head_dim: int | None
    value_head_dim: int | None
    dim_feedforward: int
    dropout: float
    activation: str
    norm_first: bool


class DecoderState(NamedTuple):
    """Where decoding stands: how many tokens have been seen, and each layer's state."""

    position: int
    layers: tuple[Any, ...]


class DecoderLayerState(NamedTuple):
    """A decoder layer's state of its own tokens, and what it remembers of the encoder's output.

    Attributes:
        tokens: of causal self-attention.
        memory: of attention to the encoder's output.
        position: of the next token.
    """

    tokens: Any
    memory: Any
    position: int


class Residual(Module):
    """The frame around a sublayer: x + f(norm(x)), or norm(x + f(x)), in two halves.

    Args:
        d_model: D, the model's width.
        norm_first: normalize what enters (pre-norm), not what leaves (post-norm).

    Source: Xiong et al. 2020, "On layer normalization in the transformer architecture", figure 1.
    """

    def __init__(self, d_model: int, norm_first: bool) -> None:
        self.norm_first = norm_first
        self.norm = LayerNorm(d_model)

    def enter(self, x: Tensor) -> Tensor:
        """Return what the sublayer gets."""
        return self.norm(x) if self.norm_first else x

    def leave(self, x: Tensor, update: Tensor) -> Tensor:
        """Return x with the sublayer's output added."""
        return x + update if self.norm_first else self.norm(x + update)


class FeedForward(Module):
    """Two linear maps around a bend, at every position, inside a residual frame.

    Args:
        d_model: D, the model's width.
        dim_feedforward: the width in between.
        dropout: the fraction dropped after either map.
        activation: "relu" or "gelu".
        norm_first: see `Residual`.
    """

    def __init__(
        self, d_model: int, dim_feedforward: int, dropout: float, activation: str, norm_first: bool
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {activation!r}"
            )
        self.residual = Residual(d_model, norm_first)
        self.layers = Sequential(
            Linear(d_model, dim_feedforward),
            ACTIVATIONS[activation](),
            Dropout(dropout),
            Linear(dim_feedforward, d_model),
            Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, L, D) to (N, L, D)."""
        return self.residual.leave(x, self.layers(self.residual.enter(x)))


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward network; causal, it is a decoder-only model's layer.

    Args:
        d_model: D, the model's width.
        nhead: H, the number of heads.
        attention: a variant's name or an `AttentionVariant`, see `MultiHeadAttention`.
        head_dim: E, width of a head's queries and keys; D / H by default.
        value_head_dim: M, width of a head's values; E by default.
        dim_feedforward: width of the feed-forward network.
        dropout: the fraction dropped of each sublayer's output.
        activation: "relu" or "gelu".
        norm_first: pre-norm; False is post-norm, as first published.

    Source: Vaswani et al. 2017, section 3.1; S1.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        *,
        attention: str | AttentionVariant = "softmax",
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = True,
    ) -> None:
        self.residual = Residual(d_model, norm_first)
        self.self_attention = MultiHeadAttention(
            d_model,
            nhead,
            attention=attention,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            out_dropout=dropout,
        )
        self.feed_forward = FeedForward(d_model, dim_feedforward, dropout, activation, norm_first)

    def forward(self, x: Tensor, *, causal: bool = False, lengths: Any = None) -> Tensor:
        """Map x (N, L, D) to (N, L, D).

        Args:
            x: (N, L, D).
            causal: whether a position sees only itself and those before.
            lengths: (N,) integers; what lies beyond is not seen. None: all counts.
        """
        update = self.self_attention(
            self.residual.enter(x), causal=causal, query_lengths=lengths, key_lengths=lengths
        )
        return self.feed_forward(self.residual.leave(x, update))

    def init_state(self) -> Any:
        """Return the state before the first token."""
        return self.self_attention.init_state()

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Map the next tokens x (N, L, D) causally; return the output and the next state."""
        update, state = self.self_attention.step(self.residual.enter(x), state)
        return self.feed_forward(self.residual.leave(x, update)), state


class TransformerDecoderLayer(Module):
    """Causal self-attention, attention to the encoder's output, and a feed-forward network.

    Args:
        d_model: D, the model's width.
        nhead: H, the number of heads.
        attention: a variant's name or an `AttentionVariant`, for both attentions.
        head_dim: E, width of a head's queries and keys; D / H by default.
        value_head_dim: M, width of a head's values; E by default.
        dim_feedforward: width of the feed-forward network.
        dropout: the fraction dropped of each sublayer's output.
        activation: "relu" or "gelu".
        norm_first: pre-norm; False is post-norm, as first published.

    Source: Vaswani et al. 2017, section 3.1; S1.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        *,
        attention: str | AttentionVariant = "softmax",
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = True,
    ) -> None:
        def attend() -> MultiHeadAttention:
            return MultiHeadAttention(
                d_model,
                nhead,
                attention=attention,
                head_dim=head_dim,
                value_head_dim=value_head_dim,
                out_dropout=dropout,
            )

        self.self_residual = Residual(d_model, norm_first)
        self.self_attention = attend()
        self.cross_residual = Residual(d_model, norm_first)
        self.cross_attention = attend()
        self.feed_forward = FeedForward(d_model, dim_feedforward, dropout, activation, norm_first)

    def forward(
        self, x: Tensor, memory: Tensor, *, lengths: Any = None, memory_lengths: Any = None
    ) -> Tensor:
        """Map x (N, L, D) to (N, L, D).

        Args:
            x: (N, L, D), of which a position sees only itself and those before.
            memory: (N, Lm, D), the encoder's output.
            lengths: (N,) integers; what lies beyond is not seen. None: all counts.
            memory_lengths: (N,) integers, likewise.
        """
        update = self.self_attention(
            self.self_residual.enter(x), causal=True, query_lengths=lengths, key_lengths=lengths
        )
        x = self.self_residual.leave(x, update)
        update = self.cross_attention(
            self.cross_residual.enter(x),
            memory,
            query_lengths=lengths,
            key_lengths=memory_lengths,
        )
        return self.feed_forward(self.cross_residual.leave(x, update))

    def init_state(self, memory: Tensor, memory_lengths: Any = None) -> DecoderLayerState:
        """Return the state before the first token, given the encoder's output (N, Lm, D)."""
        remembered = self.cross_attention.remember(memory, key_lengths=memory_lengths)
        return DecoderLayerState(self.self_attention.init_state(), remembered, 0)

    def step(self, x: Tensor, state: DecoderLayerState) -> tuple[Tensor, DecoderLayerState]:
        """Map the next tokens x (N, L, D); return the output and the next state."""
        update, tokens = self.self_attention.step(self.self_residual.enter(x), state.tokens)
        x = self.self_residual.leave(x, update)
        update = self.cross_attention.recall(
            self.cross_residual.enter(x), state.memory, state.position
        )
        output = self.feed_forward(self.cross_residual.leave(x, update))
        return output, state._replace(tokens=tokens, position=state.position + x.shape[1])


class _Stack(Module):
    """Layers one above another; pre-norm layers leave the last normalization to the stack."""

    def __init__(
        self,
        layer: Callable[..., Module],
        num_layers: int,
        d_model: int,
        nhead: int,
        options: LayerOptions,
    ) -> None:
        check_positive(self, num_layers=num_layers)
        self.layers = ModuleList(layer(d_model, nhead, **options) for _ in range(num_layers))
        self.norm = LayerNorm(d_model) if options.get("norm_first", True) else Sequential()

    def step(self, x: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Map the next tokens x (N, L, D); return the output and the layers' next states."""
        after = []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer.step(x, state)
            after.append(state)
        return self.norm(x), tuple(after)


class TransformerEncoder(_Stack):
    """A stack of encoder layers; causal, the stack of a decoder-only model.

    Args:
        num_layers: how many layers.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        options: see `TransformerEncoderLayer`.
    """

    def __init__(
        self, num_layers: int, d_model: int, nhead: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(TransformerEncoderLayer, num_layers, d_model, nhead, options)

    def forward(self, x: Tensor, *, causal: bool = False, lengths: Any = None) -> Tensor:
        """Map x (N, L, D) to (N, L, D), see `TransformerEncoderLayer.forward`."""
        for layer in self.layers:
            x = layer(x, causal=causal, lengths=lengths)
        return self.norm(x)

    def init_state(self) -> tuple[Any, ...]:
        """Return the layers' states before the first token."""
        return tuple(layer.init_state() for layer in self.layers)


class TransformerDecoder(_Stack):
    """A stack of decoder layers.

    Args:
        num_layers: how many layers.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        options: see `TransformerDecoderLayer`.
    """

    def __init__(
        self, num_layers: int, d_model: int, nhead: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(TransformerDecoderLayer, num_layers, d_model, nhead, options)

    def forward(
        self, x: Tensor, memory: Tensor, *, lengths: Any = None, memory_lengths: Any = None
    ) -> Tensor:
        """Map x (N, L, D) to (N, L, D), see `TransformerDecoderLayer.forward`."""
        for layer in self.layers:
            x = layer(x, memory, lengths=lengths, memory_lengths=memory_lengths)
        return self.norm(x)

    def init_state(self, memory: Tensor, memory_lengths: Any = None) -> tuple[Any, ...]:
        """Return the layers' states before the first token, given the encoder's output."""
        return tuple(layer.init_state(memory, memory_lengths) for layer in self.layers)


class TokenEmbedding(Module):
    """Vectors for tokens at their positions.

    Args:
        num_tokens: V, the size of the vocabulary.
        d_model: D, the model's width.
        positions: "sinusoidal", "learned", None, or a module called with x (N, L, D) and an offset.
        max_length: how many positions "learned" learns.
        dropout: the fraction dropped.
    """

    def __init__(
        self,
        num_tokens: int,
        d_model: int,
        positions: str | Module | None,
        max_length: int | None,
        dropout: float,
    ) -> None:
        self.tokens = Embedding(num_tokens, d_model)
        self.positions = position_encoding(positions, d_model, max_length)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Any, offset: int = 0) -> Tensor:
        """Map integers (N, L), the first of which stands at position `offset`, to (N, L, D)."""
        return self.dropout(self.positions(self.tokens(tokens), offset))


class TransformerLM(Module):
    """A decoder-only transformer: from tokens to the logits of each next token.

    Args:
        num_tokens: V, the size of the vocabulary.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        num_layers: how many layers.
        positions: "sinusoidal", "learned", None, or a module called with x (N, L, D) and an offset.
        max_length: how many positions "learned" learns.
        options: see `TransformerEncoderLayer`.

    Source: Radford et al. 2018; S1.

    >>> from minitransformer import nn
    >>> model = nn.TransformerLM(10, d_model=16, nhead=2, num_layers=2, attention="linear")
    >>> model([[3, 1, 4, 1]]).shape
    (1, 4, 10)
    """

    def __init__(
        self,
        num_tokens: int,
        d_model: int = 512,
        nhead: int = 8,
        num_layers: int = 6,
        *,
        positions: str | Module | None = "sinusoidal",
        max_length: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        dropout = options.get("dropout", 0.1)
        self.embedding = TokenEmbedding(num_tokens, d_model, positions, max_length, dropout)
        self.decoder = TransformerEncoder(num_layers, d_model, nhead, **options)
        self.head = Linear(d_model, num_tokens)

    def forward(self, tokens: Any, lengths: Any = None) -> Tensor:
        """Map tokens to logits; position i sees the tokens up to i.

        Args:
            tokens: (N, L) integers.
            lengths: (N,) integers; what lies beyond is padding. None: all counts.

        Returns:
            (N, L, V).
        """
        decoded = self.decoder(self.embedding(tokens), causal=True, lengths=lengths)
        return self.head(decoded)

    def init_state(self) -> DecoderState:
        """Return the state before the first token."""
        return DecoderState(0, self.decoder.init_state())

    def step(self, tokens: Any, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map the next tokens (N, L) to logits (N, L, V); return them and the next state."""
        x = self.embedding(tokens, state.position)
        decoded, layers = self.decoder.step(x, state.layers)
        return self.head(decoded), DecoderState(state.position + x.shape[1], layers)


class Transformer(Module):
    """An encoder-decoder transformer: from source and target tokens to each next target's logits.

    Args:
        num_source_tokens: size of the source's vocabulary.
        num_target_tokens: V, size of the target's vocabulary.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        num_encoder_layers: how many encoder layers.
        num_decoder_layers: how many decoder layers.
        positions: "sinusoidal", "learned", None, or a module called with x (N, L, D) and an offset.
        max_length: how many positions "learned" learns.
        options: see `TransformerEncoderLayer`.

    Source: Vaswani et al. 2017, figure 1; S1.

    >>> from minitransformer import nn
    >>> model = nn.Transformer(10, 10, 16, 2, 1, 1, attention="linear")
    >>> model([[3, 1, 4]], [[0, 3, 1, 4]]).shape
    (1, 4, 10)
    """

    def __init__(
        self,
        num_source_tokens: int,
        num_target_tokens: int,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        *,
        positions: str | Module | None = "sinusoidal",
        max_length: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        embedding = d_model, positions, max_length, options.get("dropout", 0.1)
        self.source_embedding = TokenEmbedding(num_source_tokens, *embedding)
        self.encoder = TransformerEncoder(num_encoder_layers, d_model, nhead, **options)
        self.target_embedding = TokenEmbedding(num_target_tokens, *embedding)
        self.decoder = TransformerDecoder(num_decoder_layers, d_model, nhead, **options)
        self.head = Linear(d_model, num_target_tokens)

    def forward(
        self, source: Any, target: Any, source_lengths: Any = None, target_lengths: Any = None
    ) -> Tensor:
        """Map tokens to logits; target position i sees the targets up to i and the whole source.

        Args:
            source: (N, Ls) integers.
            target: (N, Lt) integers, a start token first.
            source_lengths: (N,) integers; what lies beyond is padding. None: all counts.
            target_lengths: (N,) integers, likewise.

        Returns:
            (N, Lt, V).
        """
        memory = self.encode(source, source_lengths)
        decoded = self.decoder(
            self.target_embedding(target),
            memory,
            lengths=target_lengths,
            memory_lengths=source_lengths,
        )
        return self.head(decoded)

    def encode(self, source: Any, source_lengths: Any = None) -> Tensor:
        """Map source tokens (N, Ls) to the decoder's memory (N, Ls, D)."""
        return self.encoder(self.source_embedding(source), lengths=source_lengths)

    def init_state(self, source: Any, source_lengths: Any = None) -> DecoderState:
        """Return the state before the first target token: encode, and remember the memory."""
        memory = self.encode(source, source_lengths)
        return DecoderState(0, self.decoder.init_state(memory, source_lengths))

    def step(self, tokens: Any, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map the next target tokens (N, L) to logits (N, L, V); return them and the next state."""
        x = self.target_embedding(tokens, state.position)
        decoded, layers = self.decoder.step(x, state.layers)
        return self.head(decoded), DecoderState(state.position + x.shape[1], layers)

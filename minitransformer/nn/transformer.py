"""Transformers: layers, stacks of layers, and models from tokens to logits.

Everything that a decoder does to a whole sequence in `forward`, it does to the next tokens in
`step`: a state goes in, the state after those tokens comes out, and the outputs are the same.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

from minitransformer_kernels.checks import one_of

from ..tensor import Tensor
from .attention import MultiHeadAttention
from .layers import GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, check_positive
from .module import Module, ModuleList, Sequential
from .positions import position_encoding
from .variant import AttentionVariant, check_state

ACTIVATIONS: dict[str, type[Module]] = {"relu": ReLU, "gelu": GELU}


class LayerOptions(TypedDict, total=False):
    """What a stack or a model passes on to each of its layers.

    Attributes:
        attention: a variant's name or an `AttentionVariant`, "softmax" by default.
        head_dim: E, width of a head's queries and keys; D / H by default.
        value_head_dim: M, width of a head's values; E by default.
        dim_feedforward: width of the feed-forward network; 2048 by default.
        dropout: the fraction dropped of each sublayer's output; 0.1 by default.
        activation: "relu", the default, or "gelu".
        norm_first: pre-norm, the default; False is post-norm, as first published.
    """

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
    """A decoder layer's state of its own tokens, and what it remembers of the encoder's output."""

    tokens: Any
    memory: Any
    position: int  # of the next token


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
        one_of("FeedForward", "activation", activation, ACTIVATIONS)
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


def sublayers(
    module: Module,
    attentions: int,
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
    **unknown: Any,
) -> tuple[Any, ...]:
    """Return a module's attentions, so many, each after its frame, and a feed-forward network.

    Raises:
        TypeError: an option is none of `LayerOptions`.
    """
    if unknown:
        raise TypeError(
            f"{type(module).__name__}: expected options among "
            f"{', '.join(LayerOptions.__annotations__)}, got {', '.join(unknown)}"
        )

    def attend() -> MultiHeadAttention:
        sizes: Any = {"head_dim": head_dim, "value_head_dim": value_head_dim}
        return MultiHeadAttention(d_model, nhead, attention=attention, out_dropout=dropout, **sizes)

    pairs = [(Residual(d_model, norm_first), attend()) for _ in range(attentions)]
    return *pairs, FeedForward(d_model, dim_feedforward, dropout, activation, norm_first)


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward network; causal, it is a decoder-only model's layer.

    Args:
        d_model: D, the model's width.
        nhead: H, the number of heads.
        options: see `LayerOptions`.

    Source: Vaswani et al. 2017, section 3.1; S1.
    """

    def __init__(self, d_model: int, nhead: int, **options: Unpack[LayerOptions]) -> None:
        parts = sublayers(self, 1, d_model, nhead, **options)
        (self.residual, self.self_attention), self.feed_forward = parts

    def forward(self, x: Tensor, *, causal: bool = False, lengths: Any = None) -> Tensor:
        """Map x (N, L, D), of which the first lengths (N,) count, to (N, L, D)."""
        update = self.self_attention(
            self.residual.enter(x), causal=causal, query_lengths=lengths, key_lengths=lengths
        )
        output: Tensor = self.feed_forward(self.residual.leave(x, update))
        return output

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
        options: see `LayerOptions`; both attentions are of one variant.

    Source: Vaswani et al. 2017, section 3.1; S1.
    """

    def __init__(self, d_model: int, nhead: int, **options: Unpack[LayerOptions]) -> None:
        own, cross, feed_forward = sublayers(self, 2, d_model, nhead, **options)
        self.self_residual, self.self_attention = own
        self.cross_residual, self.cross_attention = cross
        self.feed_forward = feed_forward

    def forward(
        self, x: Tensor, memory: Tensor, *, lengths: Any = None, memory_lengths: Any = None
    ) -> Tensor:
        """Map x (N, L, D), given the encoder's output (N, Lm, D), to (N, L, D), causally.

        Of both sequences the first lengths (N,) count, of each all where None.
        """
        update = self.self_attention(
            self.self_residual.enter(x), causal=True, query_lengths=lengths, key_lengths=lengths
        )
        x = self.self_residual.leave(x, update)
        across = {"query_lengths": lengths, "key_lengths": memory_lengths}
        update = self.cross_attention(self.cross_residual.enter(x), memory, **across)
        output: Tensor = self.feed_forward(self.cross_residual.leave(x, update))
        return output

    def init_state(self, memory: Tensor, memory_lengths: Any = None) -> DecoderLayerState:
        """Return the state before the first token, given the encoder's output (N, Lm, D)."""
        remembered = self.cross_attention.remember(memory, key_lengths=memory_lengths)
        return DecoderLayerState(self.self_attention.init_state(), remembered, 0)

    def step(self, x: Tensor, state: DecoderLayerState) -> tuple[Tensor, DecoderLayerState]:
        """Map the next tokens x (N, L, D); return the output and the next state."""
        update, tokens = self.self_attention.step(self.self_residual.enter(x), state.tokens)
        x = self.self_residual.leave(x, update)
        x_in = self.cross_residual.enter(x)
        update = self.cross_attention.recall(x_in, state.memory, state.position)
        output = self.feed_forward(self.cross_residual.leave(x, update))
        return output, state._replace(tokens=tokens, position=state.position + x.shape[1])


class _Stack(Module):
    """Layers one above another; pre-norm layers leave the last normalization to the stack.

    Args:
        num_layers: how many layers.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        options: see `LayerOptions`.
    """

    layer: ClassVar[Callable[..., Module]]

    def __init__(
        self, num_layers: int, d_model: int, nhead: int, **options: Unpack[LayerOptions]
    ) -> None:
        check_positive(self, num_layers=num_layers)
        self.layers = ModuleList(self.layer(d_model, nhead, **options) for _ in range(num_layers))
        self.norm = LayerNorm(d_model) if options.get("norm_first", True) else Sequential()

    def forward(self, x: Tensor, *memory: Tensor, **visible: Any) -> Tensor:
        """Map x (N, L, D) to (N, L, D); the arguments are those of the layer's `forward`."""
        for layer in self.layers:
            x = layer(x, *memory, **visible)
        return self.norm(x)

    def init_state(self, *memory: Any) -> tuple[Any, ...]:
        """Return the layers' states before the first token, see the layer's `init_state`."""
        return tuple(layer.init_state(*memory) for layer in self.layers)

    def step(self, x: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Map the next tokens x (N, L, D); return the output and the layers' next states."""
        if len(states) != len(self.layers):
            raise ValueError(
                f"{type(self).__name__}.step: expected the states of {len(self.layers)} layers, "
                f"got {len(states)}"
            )
        after = []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer.step(x, state)
            after.append(state)
        return self.norm(x), tuple(after)


class TransformerEncoder(_Stack):
    """A stack of encoder layers; causal, the stack of a decoder-only model."""

    layer = TransformerEncoderLayer


class TransformerDecoder(_Stack):
    """A stack of decoder layers."""

    layer = TransformerDecoderLayer


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
        """Map integers (N, L), the first of which stands at position `offset`, to (N, L, D).

        Raises:
            ValueError: the integers have another number of axes.
        """
        vectors = self.tokens(tokens)
        if vectors.ndim != 3:
            raise ValueError(
                f"TokenEmbedding: tokens must have the shape (N, L), got {vectors.shape[:-1]}"
            )
        return self.dropout(self.positions(vectors, offset))


class TransformerLM(Module):
    """A decoder-only transformer: from tokens to the logits of each next token.

    Args:
        num_tokens: V, the size of the vocabulary.
        d_model: D, the model's width.
        nhead: H, the number of heads.
        num_layers: how many layers.
        positions: "sinusoidal", "learned", None, or a module called with x (N, L, D) and an offset.
        max_length: how many positions "learned" learns.
        options: see `LayerOptions`.

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
        """Map tokens (N, L) to logits (N, L, V); position i sees the tokens up to i.

        Beyond its length, (N,) integers, a sequence is padding. None: all counts.
        """
        decoded = self.decoder(self.embedding(tokens), causal=True, lengths=lengths)
        return self.head(decoded)

    def init_state(self) -> DecoderState:
        """Return the state before the first token."""
        return DecoderState(0, self.decoder.init_state())

    def step(self, tokens: Any, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map the next tokens (N, L) to logits (N, L, V); return them and the next state.

        The state given may be used up: to go on from it twice, copy it before (`copy.deepcopy`).
        """
        check_state(self, state, DecoderState)
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
        options: see `LayerOptions`.

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
        """Map source (N, Ls) and target (N, Lt), a start token first, to logits (N, Lt, V).

        Position i sees the targets up to i and the whole source. Beyond its length, (N,) integers,
        a sequence is padding. None: all counts.
        """
        memory, x = self.encode(source, source_lengths), self.target_embedding(target)
        lengths = {"lengths": target_lengths, "memory_lengths": source_lengths}
        return self.head(self.decoder(x, memory, **lengths))

    def encode(self, source: Any, source_lengths: Any = None) -> Tensor:
        """Map source tokens (N, Ls) to the decoder's memory (N, Ls, D)."""
        return self.encoder(self.source_embedding(source), lengths=source_lengths)

    def init_state(self, source: Any, source_lengths: Any = None) -> DecoderState:
        """Return the state before the first target token: encode, and remember the memory."""
        memory = self.encode(source, source_lengths)
        return DecoderState(0, self.decoder.init_state(memory, source_lengths))

    def step(self, tokens: Any, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map the next target tokens (N, L) to logits (N, L, V); return them and the next state.

        The state given may be used up: to go on from it twice, copy it before (`copy.deepcopy`).
        """
        check_state(self, state, DecoderState)
        x = self.target_embedding(tokens, state.position)
        decoded, layers = self.decoder.step(x, state.layers)
        return self.head(decoded), DecoderState(state.position + x.shape[1], layers)

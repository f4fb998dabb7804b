"""Multi-head attention: projections around any attention variant."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from .. import functions as F
from .. import random
from ..function import no_grad
from ..functions.multi_head import MultiHeadAttention as MultiHeadFunction
from ..tensor import Tensor
from .layers import Dropout, Linear, check_positive
from .module import Module
from .variants import AttentionVariant, SoftmaxAttention, attention_variant


class MultiHeadAttention(Module):
    """H attentions side by side, each between projections of its own, joined by one projection.

    Every width can be chosen (S3's d_q, d_k, d_v and the projections' sizes); by default all follow
    from `embed_dim`. Softmax attention and its projections are one differentiable function with
    three passes, `minitransformer.multi_head`; other variants have one each.

    Args:
        embed_dim: D, the model's width.
        num_heads: H.
        attention: a variant's name, "softmax" or "linear" among others, or an `AttentionVariant`.
        query_dim: width of the queries' input; D by default.
        key_dim: width of the keys' input; D by default.
        value_dim: width of the values' input; D by default.
        head_dim: E, what a head's queries and keys are projected to; D / H by default.
        value_head_dim: M, what a head's values are projected to; E by default.
        out_dim: width of the output; D by default.
        bias: whether the projections add biases.
        dropout: the fraction of the attention weights that is dropped in training; for variants
            that have such weights.
        out_dropout: the fraction of the output that is dropped in training.

    Raises:
        ValueError: a size is below 1, D is not a multiple of H where E follows from it, there is no
            such variant, it has no weights to drop, or a fraction is not in [0, 1).

    Source: Vaswani et al. 2017, section 3.2.2; S3.

    >>> from minitransformer import Tensor, nn
    >>> attention = nn.MultiHeadAttention(8, num_heads=2, attention="linear")
    >>> tokens = Tensor([[[0.5] * 8] * 5])  # (N, L, D)
    >>> attention(tokens, causal=True).shape
    (1, 5, 8)
    """

    on_weights: Callable[[Tensor], None] | None = None  # who wants the weights of every forward

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        attention: str | AttentionVariant = "softmax",
        query_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        out_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        out_dropout: float = 0.0,
    ) -> None:
        check_positive(self, embed_dim=embed_dim, num_heads=num_heads)
        self.num_heads = num_heads
        self.head_dim = _head_dim(embed_dim, num_heads) if head_dim is None else head_dim
        value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        check_positive(self, head_dim=self.head_dim, value_head_dim=value_head_dim)

        query_width, value_width = num_heads * self.head_dim, num_heads * value_head_dim
        query_dim, key_dim, value_dim, out_dim = (
            embed_dim if width is None else width
            for width in (query_dim, key_dim, value_dim, out_dim)
        )
        self.query_projection = Linear(query_dim, query_width, bias)
        self.key_projection = Linear(key_dim, query_width, bias)
        self.value_projection = Linear(value_dim, value_width, bias)
        self.attention = attention_variant(attention, num_heads, self.head_dim)
        self.out_projection = Linear(value_width, out_dim, bias)
        self.dropout = _dropout(dropout, self.attention)
        self.out_dropout = Dropout(out_dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        causal: bool = False,
        query_offset: int = 0,
        query_lengths: Any = None,
        key_lengths: Any = None,
        need_weights: bool = False,
    ) -> Any:
        """Attend: to the queries' own sequence, or across to another one.

        Args:
            query: (N, Lq, query_dim). Alone, it may be all three side by side,
                (N, L, query_dim + key_dim + value_dim).
            key: (N, Lk, key_dim); the query itself by default.
            value: (N, Lk, value_dim); the key itself by default.
            causal: whether query i sees only the keys j <= i + query_offset.
            query_offset: the position of the first query among the keys.
            query_lengths: (N,) integers; None: all queries count.
            key_lengths: (N,) integers; None: all keys count.
            need_weights: whether to return the attention weights too. They are computed aside,
                once more and without dropout, and no gradient flows through them.

        Returns:
            (N, Lq, out_dim); with `need_weights` that and the weights (N, H, Lq, Lk).
        """
        visible = {
            "causal": causal,
            "query_offset": query_offset,
            "query_lengths": query_lengths,
            "key_lengths": key_lengths,
        }
        inputs = query, key, value
        variant = self.attention
        # A subclass may do something else, and the three passes know no relative positions.
        if type(variant) is SoftmaxAttention and variant.max_distance is None:
            output = self._in_three_passes(*inputs, scale=variant.scale, **visible)
        else:
            output = self._by_the_variant(*inputs, **visible)
        output = self.out_dropout(output)
        if not (need_weights or self.on_weights):
            return output
        with no_grad():
            weights = self.attention.weights(*self._attention_inputs(*inputs), **visible)
        if self.on_weights:
            self.on_weights(weights)
        return (output, weights) if need_weights else output

    def init_state(self) -> Any:
        """Return the state of causal self-attention before its first token."""
        return self.attention.init_state()

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend causally with the next tokens to themselves and all before them.

        Args:
            x: (N, L, D), often L = 1.
            state: what the last step or `init_state` returned; it may be used up.

        Returns:
            The output (N, L, out_dim) and the next state.
        """
        query, key, value = self._attention_inputs(x)
        output, state = self.attention.step(query, key, value, state)
        return self.out_dropout(self._join(output)), state

    def remember(self, key: Tensor, value: Tensor | None = None, key_lengths: Any = None) -> Any:
        """Project a sequence that later queries attend to, once for all of them.

        Args:
            key: (N, Lk, key_dim).
            value: (N, Lk, value_dim); the key itself by default.
            key_lengths: (N,) integers or None.

        Returns:
            What `recall` needs.
        """
        inputs = key, key if value is None else value
        key, value = _project(inputs, (self.key_projection, self.value_projection))
        return self.attention.remember(self._split(key), self._split(value), key_lengths)

    def recall(self, query: Tensor, memory: Any, query_offset: int = 0) -> Tensor:
        """Attend across to what was remembered.

        Args:
            query: (N, L, query_dim).
            memory: what `remember` returned.
            query_offset: the position of the first query.

        Returns:
            (N, L, out_dim).
        """
        heads = self._split(self.query_projection(query))
        return self.out_dropout(self._join(self.attention.recall(heads, memory, query_offset)))

    def extra_repr(self) -> str:
        """Return the heads."""
        dropped = f", dropout={self.dropout}" if self.dropout else ""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}{dropped}"

    def _in_three_passes(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        scale: float | None,
        **visible: Any,
    ) -> Tensor:
        """Attend by `multi_head`, which projects equal inputs together where only one is given."""
        if value is (query if key is None else key):
            value = None
        if key is query:
            key = None
        options = {"num_heads": self.num_heads, "alpha": _alpha(scale), **visible}
        if self.training and self.dropout:
            options |= {"dropout": self.dropout, "seed": random.seed()}
        layers = *self._input_projections(), self.out_projection
        weights = *(layer.weight for layer in layers), *(layer.bias for layer in layers)
        output: Tensor = MultiHeadFunction.apply(query, key, value, *weights, **options)
        return output

    def _by_the_variant(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, **visible: Any
    ) -> Tensor:
        """Attend by the variant, between projections that are functions of their own."""
        if self.training and self.dropout:
            visible["dropout"] = self.dropout
        return self._join(self.attention(*self._attention_inputs(query, key, value), **visible))

    def _input_projections(self) -> tuple[Linear, Linear, Linear]:
        return self.query_projection, self.key_projection, self.value_projection

    def _attention_inputs(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> list[Tensor]:
        layers = self._input_projections()
        widths = [layer.in_features for layer in layers]
        if key is None and value is None and query.shape[-1] == sum(widths):
            inputs = F.split(query, widths, dim=-1)
        else:
            key = query if key is None else key
            inputs = query, key, key if value is None else value
        return [self._split(x) for x in _project(inputs, layers)]

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape  # (N, L, H E)
        heads = x.reshape(batch, length, self.num_heads, width // self.num_heads)  # (N, L, H, E)
        return heads.transpose(1, 2)  # (N, H, L, E)

    def _join(self, output: Tensor) -> Tensor:
        batch, heads, length, width = output.shape  # (N, H, L, M)
        joined = output.transpose(1, 2).reshape(batch, length, heads * width)  # (N, L, H M)
        return self.out_projection(joined)  # (N, L, D)


def _project(inputs: Sequence[Tensor], projections: Sequence[Linear]) -> list[Tensor]:
    """Project each input; neighbours that project the same one share a single product."""
    outputs: list[Tensor] = []
    pairs = zip(inputs, projections, strict=True)
    for _, group in groupby(pairs, key=lambda pair: id(pair[0])):
        (x, *_), layers = zip(*group, strict=True)
        outputs += _project_jointly(x, layers)
    return outputs


def _project_jointly(x: Tensor, layers: Sequence[Linear]) -> Sequence[Tensor]:
    """One large product keeps the machine busier than several; copying the weights is cheap."""
    if len(layers) == 1:
        return [layers[0](x)]
    weight = F.cat([layer.weight for layer in layers])  # (H E + H E + H M, D)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    joint = F.linear(x, weight, F.cat(biases) if biases else None)
    return F.split(joint, [layer.out_features for layer in layers], dim=-1)


def _dropout(fraction: float, variant: AttentionVariant) -> float:
    if not 0 <= fraction < 1:
        raise ValueError(
            f"MultiHeadAttention: dropout must be a fraction in [0, 1), got {fraction}"
        )
    if fraction and not variant.has_dropout:
        raise ValueError(
            f"MultiHeadAttention: dropout={fraction} drops attention weights, which "
            f"{type(variant).__name__} never has at hand; drop numbers of the output by "
            f"out_dropout={fraction}, or use attention='softmax'"
        )
    return fraction


def _alpha(scale: float | None) -> float | None:
    """Return the divisor of scores for their factor."""
    return None if scale is None else 1 / scale if scale else math.inf


def _head_dim(embed_dim: int, num_heads: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(
            f"MultiHeadAttention: embed_dim must be a multiple of num_heads, got {embed_dim} and "
            f"{num_heads}; or choose head_dim"
        )
    return embed_dim // num_heads

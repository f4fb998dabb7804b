"""Multi-head attention: projections around any attention variant."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from .. import functions as F
from ..attention.checks import check_inputs
from ..attention.multi_head import JoinedHeads, ProjectedHeads
from ..device import array_module, as_array
from ..tensor import Tensor
from .layers import Dropout, Linear, check_positive
from .module import Module
from .variant import AttentionVariant, attention_variant


class MultiHeadAttention(Module):
    """H attentions side by side, each between projections of its own, joined by one projection.

    Every width can be chosen (S3's d_q, d_k, d_v and the projections' sizes); by default all follow
    from `embed_dim`. The equations are in `minitransformer.multi_head`.

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
        joined: whether a projection joins the heads; else the output is theirs, side by side.
        dropout: the fraction of the attention weights that is dropped in training; for variants
            that have such weights.
        out_dropout: the fraction of the output that is dropped in training.

    Raises:
        ValueError: a size is below 1, D is not a multiple of H where E follows from it, there is no
            such variant, it has no weights to drop, a fraction is not in [0, 1), or `out_dim` is
            given for heads that are not joined.

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
        joined: bool = True,
        dropout: float = 0.0,
        out_dropout: float = 0.0,
    ) -> None:
        check_positive(self, embed_dim=embed_dim, num_heads=num_heads)
        self.num_heads = num_heads
        self.head_dim = _head_dim(embed_dim, num_heads) if head_dim is None else head_dim
        value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        check_positive(self, head_dim=self.head_dim, value_head_dim=value_head_dim)

        if not joined and out_dim is not None:
            raise ValueError(
                "MultiHeadAttention: out_dim is the width of the projection that joins the heads, "
                f"got {out_dim} with joined=False; leave it out"
            )

        query_width, value_width = num_heads * self.head_dim, num_heads * value_head_dim
        query_dim, key_dim, value_dim, out_dim = (
            embed_dim if width is None else width
            for width in (query_dim, key_dim, value_dim, out_dim)
        )
        self.query_projection = Linear(query_dim, query_width, bias)
        self.key_projection = Linear(key_dim, query_width, bias)
        self.value_projection = Linear(value_dim, value_width, bias)
        self.attention = attention_variant(attention, num_heads, self.head_dim)
        self.out_projection = Linear(value_width, out_dim, bias) if joined else None
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

        Instead of N there may be several dimensions, such as (beam, batch) in S3's layout (beam,
        batch, time, vector). Keys, values and lengths may lack the first of them, or have size 1
        there: all beams then look at the same.

        Returns:
            (N, Lq, out_dim); with `need_weights` that and the weights (N, H, Lq, Lk).
        """
        visible: dict[str, Any] = {
            "causal": causal,
            "query_offset": query_offset,
            "query_lengths": query_lengths,
            "key_lengths": key_lengths,
        }
        if isinstance(query, Tensor) and query.ndim > 3:
            leading = query.shape[:-2]
            inputs = {"query": query, "key": key, "value": value}
            given = {name: _folded(name, x, 2, leading) for name, x in inputs.items()}
            for name in ("query_lengths", "key_lengths"):
                visible[name] = _folded(name, visible[name], 0, leading)
            found = self.forward(**given, **visible, need_weights=need_weights)
            if need_weights:
                return tuple(_unfolded(x, leading) for x in found)
            return _unfolded(found, leading)
        heads = self._heads(**self._inputs(query, key, value))
        dropped = {"dropout": self.dropout} if self.training and self.dropout else {}
        output = self._join(self.attention(*heads, **visible, **dropped))
        if not (need_weights or self.on_weights):
            return output
        weights = self.attention.weights(*heads, **visible)
        if self.on_weights:
            self.on_weights(weights)
        return (output, weights) if need_weights else output

    def init_state(self) -> Any:
        """Return the state of causal self-attention before its first token."""
        return self.attention.init_state()

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend causally with the next tokens x (N, L, D) to themselves and all before them.

        Returns:
            The output (N, L, out_dim) and the next state; the state given may be used up.
        """
        query, key, value = self._heads(query=x, key=x, value=x)
        output, state = self.attention.step(query, key, value, state)
        return self._join(output), state

    def remember(self, key: Tensor, value: Tensor | None = None, key_lengths: Any = None) -> Any:
        """Project keys (N, Lk, key_dim) and values, by default the same, once for many queries.

        Returns:
            What `recall` needs.
        """
        key, value = self._heads(key=key, value=key if value is None else value)
        return self.attention.remember(key, value, key_lengths)

    def recall(self, query: Tensor, memory: Any, query_offset: int = 0) -> Tensor:
        """Attend across, with queries (N, L, query_dim) from position `query_offset` on."""
        (heads,) = self._heads(query=query)
        return self._join(self.attention.recall(heads, memory, query_offset))

    def extra_repr(self) -> str:
        """Return the heads."""
        dropped = f", dropout={self.dropout}" if self.dropout else ""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}{dropped}"

    def _inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> dict[str, Tensor]:
        """Return what is projected; one array may be all three, or stand for those left out."""
        projections = self.query_projection, self.key_projection, self.value_projection
        widths = [layer.in_features for layer in projections]
        if key is None and value is None and query.shape[-1] == sum(widths):
            query, key, value = F.split(query, widths, dim=-1)
        key = query if key is None else key
        return {"query": query, "key": key, "value": key if value is None else value}

    def _heads(self, **inputs: Tensor) -> Any:
        """Return inputs projected to heads (N, H, L, E or M), equal ones by one product."""
        letters = {"query": "N Lq D_q", "key": "N Lk D_k", "value": "N Lk D_v"}
        layers = {name: getattr(self, f"{name}_projection") for name in inputs}
        sizes = {f"D_{name[0]}": layer.in_features for name, layer in layers.items()}
        model = "the layer", next(iter(layers.values())).weight
        layout = {name: (x, letters[name]) for name, x in inputs.items()}
        check_inputs("MultiHeadAttention", layout, model, sizes)
        tensors = list(inputs.values())
        before = None, *tensors
        distinct = [None if x is y else x for x, y in zip(tensors, before, strict=False)]
        weights, biases = zip(
            *((layer.weight, layer.bias) for layer in layers.values()), strict=True
        )
        return ProjectedHeads.apply(*distinct, *weights, *biases, num_heads=self.num_heads)

    def _join(self, heads: Tensor) -> Tensor:
        """Return heads (N, H, L, M) as the layer's output (N, L, out_dim)."""
        if self.out_projection is None:
            batch, count, length, width = heads.shape
            side_by_side = heads.transpose(1, 2).reshape(batch, length, count * width)
            return self.out_dropout(side_by_side)
        projection = self.out_projection
        return self.out_dropout(JoinedHeads.apply(heads, projection.weight, projection.bias))


@contextmanager
def recorded_weights(model: Module) -> Iterator[dict[str, np.ndarray]]:
    """Record the weights of every attention layer of a model that runs inside the `with`.

    Yields:
        A dictionary that fills as the model runs: weights (N, H, Lq, Lk) by the layer's path.

    >>> from minitransformer import nn
    >>> layer = nn.MultiHeadAttention(8, num_heads=2, attention="linear")
    >>> with recorded_weights(layer) as weights:
    ...     _ = layer(Tensor(np.ones((1, 2, 8), np.float32)), causal=True)
    >>> weights[""][0, 0].round(6).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    layers: dict[str, Any] = {
        path: module for path, module in model.named_modules() if hasattr(module, "on_weights")
    }
    before = [(layer, layer.on_weights) for layer in layers.values()]
    weights: dict[str, np.ndarray] = {}
    try:
        for path, layer in layers.items():
            layer.on_weights = lambda found, path=path: weights.update({path: found.numpy()})
        yield weights
    finally:
        for layer, on_weights in before:
            layer.on_weights = on_weights


def _folded(name: str, x: Any, own: int, leading: tuple[int, ...]) -> Any:
    """Return an argument with all dimensions but its `own` last ones, as `leading`, as one."""
    if x is None:
        return None
    x = x if isinstance(x, Tensor) else as_array(x)
    rest = x.shape[x.ndim - own :]
    expand = F.expand if isinstance(x, Tensor) else array_module(x).broadcast_to
    try:
        whole = expand(x, (*leading, *rest))
    except ValueError:
        raise ValueError(
            f"MultiHeadAttention: {name} must have the dimensions {leading} of the queries before "
            f"its {own} last, or 1 where they share it, got {x.shape}"
        ) from None
    return whole.reshape(prod(leading), *rest)


def _unfolded(x: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Return x (N, ...) with N as the dimensions it was folded from."""
    return x.reshape(*leading, *x.shape[1:])


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


def _head_dim(embed_dim: int, num_heads: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(
            f"MultiHeadAttention: embed_dim must be a multiple of num_heads, got {embed_dim} and "
            f"{num_heads}; or choose head_dim"
        )
    return embed_dim // num_heads

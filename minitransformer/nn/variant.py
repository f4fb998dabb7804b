"""How queries attend to keys: the one place where a new kind of attention plugs in.

A variant answers `forward`: given every query, key and value, what is the output? That is enough to
train with it, and to decode with it from a cache of all keys and values. A variant that can forget
them overrides the four decoding methods as well; one with parameters of its own makes them in
`prepare`, where it learns its sizes, and one that knows distances says its `max_distance`. After

    @register_attention("mine")
    class MyAttention(AttentionVariant):
        ...

every layer and model accepts `attention="mine"`. Those in `variants/` need no import: a file there
has the name of the variant that it registers.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import random
from ..device import Array, array_module
from ..function import no_grad
from ..tensor import Tensor
from . import variants
from .module import Module, Parameter


class KeyValueCache:
    """The keys and values of all tokens so far, in arrays that double when they are full.

    Doubling makes a token's copying constant on average. No gradient flows through a cache.
    """

    def __init__(self) -> None:
        self.length = 0
        self.keys: Any = None
        self.values: Any = None

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add the keys (N, H, L, E) and values (N, H, L, M) of the next tokens.

        Raises:
            ValueError: they are of more or fewer sequences than those before.
        """
        if self.length and len(key) != len(self.keys):
            raise ValueError(
                f"KeyValueCache: expected the next tokens of N={len(self.keys)} sequences, as "
                f"before, got N={len(key)}; begin others with init_state()"
            )
        self.keys = _extended(self.keys, self.length, key.data)
        self.values = _extended(self.values, self.length, value.data)
        self.length += key.shape[2]

    def forget(self, first: int, last: int) -> None:
        """Keep no more than so many first and so many last tokens."""
        if self.length > first + last:
            for buffer in (self.keys, self.values):
                recent = buffer[:, :, self.length - last : self.length].copy()
                buffer[:, :, first : first + last] = recent
            self.length = first + last


class Memory(NamedTuple):
    """What a decoder attends to at every step."""

    key: Tensor
    value: Tensor
    lengths: Any


class AttentionVariant(Module):
    """The hook: override `forward`, and the rest to decode from less than all keys and values.

    Attributes:
        has_dropout: whether `forward` takes `dropout`, the fraction of its weights to drop.
        max_distance: k, or None for a variant that has no embeddings of distances.
        embedding: those embeddings, (H, 2k + 1, E).
    """

    has_dropout = False
    max_distance: int | None = None
    embedding: Parameter | None = None

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make the parameters, if there are any; called by every layer that uses the variant."""
        if self.max_distance is not None:
            self.learn_distances(num_heads, self.max_distance, head_dim)

    def learn(self, name: str, shape: tuple[int, ...], start: Callable[[], Array]) -> None:
        """Make a parameter, unless another layer that shares the variant has done so.

        Raises:
            ValueError: the other layer needed another shape.
        """
        if name not in vars(self):
            setattr(self, name, Parameter(start()))
        elif (found := getattr(self, name).shape) != shape:
            raise ValueError(
                f"{type(self).__name__}: one instance serves layers of one number of heads and one "
                f"head dim; its {name} has the shape {found}, this layer needs {shape}; give the "
                "layer an instance of its own"
            )

    def learn_distances(self, num_heads: int, max_distance: int, head_dim: int) -> None:
        """Make the embeddings (H, 2k + 1, E), small, so that all distances begin alike."""
        shape = num_heads, 2 * max_distance + 1, head_dim
        self.learn("embedding", shape, lambda: normal(shape, head_dim**-0.5))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        query_offset: int = 0,
        query_lengths: Any = None,
        key_lengths: Any = None,
    ) -> Tensor:
        """Attend with queries (N, H, Lq, E) to keys (N, H, Lk, E) and values (N, H, Lk, M).

        The keywords say who sees whom, as those of `softmax_attention` do.

        Returns:
            (N, H, Lq, M).
        """
        raise NotImplementedError(f"{type(self).__name__} does not override forward")

    def weights(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Return the weights with which `forward` would add up the values.

        Attention is linear in the values: o_i = sum_j a_ij v_j. With the rows of the identity for
        values, v_j = e_j, the output *is* the weights: o_i = (a_i1, ..., a_iL). For linear
        attention that reads off a_ij = φ(q_i)·φ(k_j) / sum_t φ(q_i)·φ(k_t), which its fast
        algorithms never compute. M columns of the identity go in at a time: for values of that
        width there is a kernel already.

        Returns:
            (N, H, Lq, Lk), through which no gradient flows.
        """
        xp = array_module(key.data)
        (*batch, length, _), width = key.shape, value.shape[-1]
        blocks = []
        with no_grad():
            for start in range(0, max(length, 1), width):
                columns = xp.eye(length, width, -start, key.dtype)
                values = Tensor(xp.broadcast_to(columns, (*batch, length, width)))
                blocks.append(self(query, key, values, **visible).data)
        return Tensor(xp.concatenate(blocks, axis=-1)[..., :length])

    def init_state(self) -> Any:
        """Return the state of causal attention before its first token."""
        return KeyValueCache()

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend with the next tokens, often one, to themselves and all before them.

        Returns:
            The output (N, H, L, M) and the next state; the state given may be used up.
        """
        check_state(self, state, KeyValueCache)
        offset = state.length
        state.append(key, value)
        keys, values = Tensor(state.keys), Tensor(state.values)
        # Causality hides the unused end of the cache too.
        return self(query, keys, values, causal=True, query_offset=offset), state

    def remember(self, key: Tensor, value: Tensor, key_lengths: Any = None) -> Any:
        """Return what `recall` needs of keys and values that every later query sees."""
        return Memory(key, value, key_lengths)

    def recall(self, query: Tensor, memory: Any, query_offset: int = 0) -> Tensor:
        """Attend to what was remembered; the first query stands at position `query_offset`."""
        visible = {"query_offset": query_offset, "key_lengths": memory.lengths}
        return self(query, memory.key, memory.value, **visible)


def check_state(module: Module, state: Any, expected: type) -> None:
    """Refuse what no `init_state` or `step` of a like module returned, by a TypeError."""
    if not isinstance(state, expected):
        name = type(module).__name__
        raise TypeError(
            f"{name}.step: expected the {expected.__name__} that {name}.init_state() or an earlier "
            f"step returned, got {type(state).__name__}"
        )


Variant = TypeVar("Variant", bound=Callable[[], AttentionVariant])
_variants: dict[str, Callable[[], AttentionVariant]] = {}


def register_attention(name: str) -> Callable[[Variant], Variant]:
    """Give a class, or what makes a variant, the name by which layers and models can ask for it."""

    def register(variant: Variant) -> Variant:
        _variants[name] = variant
        return variant

    return register


def attention_names() -> tuple[str, ...]:
    """Return the names that layers and models accept."""
    files = (module.name for module in iter_modules(variants.__path__))
    return tuple(dict.fromkeys((*files, *_variants)))


def attention_variant(
    attention: str | AttentionVariant, num_heads: int, head_dim: int
) -> AttentionVariant:
    """Return the variant of a name, prepared for its sizes; who is given an instance shares it.

    Raises:
        ValueError: nothing has been registered under the name.
    """
    if isinstance(attention, AttentionVariant):
        variant = attention
    elif attention in (names := attention_names()):
        if attention not in _variants:
            import_module(f"{variants.__name__}.{attention}")
        variant = _variants[attention]()
    else:
        raise ValueError(
            f"attention must be one of {', '.join(map(repr, names))} or an AttentionVariant, "
            f"got {attention!r}; add others with register_attention"
        )
    variant.prepare(num_heads, head_dim)
    return variant


def normal(shape: tuple[int, ...], deviation: float) -> Array:
    """Return random numbers, float32, around 0."""
    return deviation * random.generator().standard_normal(shape, np.float32)


def _extended(buffer: Array | None, length: int, new: Array) -> Array:
    """Return the buffer, or a larger one, with new tokens after the first `length`."""
    batch, heads, count, width = new.shape
    if buffer is None or length + count > buffer.shape[2]:
        capacity = max(16, 2 * (length + count))
        # Zeros: unseen values weigh nothing, but nothing times NaN would be NaN.
        roomy = array_module(new).zeros((batch, heads, capacity, width), new.dtype)
        if buffer is not None:
            roomy[:, :, :length] = buffer[:, :, :length]
        buffer = roomy
    buffer[:, :, length : length + count] = new
    return buffer

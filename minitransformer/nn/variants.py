"""How queries attend to keys: the one place where a new kind of attention plugs in.

A variant answers `forward`: given every query, key and value, what is the output? That is enough to
train with it, and to decode with it from a cache of all keys and values. A variant that can forget
them overrides the four decoding methods as well. After

    @register_attention("mine")
    class MyAttention(AttentionVariant):
        ...

every layer and model accepts `attention="mine"`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..attention import (
    LinearState,
    linear_attention,
    linear_attention_step,
    softmax_attention,
)
from ..device import array_module
from ..tensor import Tensor
from .module import Module

Array = Any


class KeyValueCache:
    """The keys and values of all tokens so far, in arrays that double when they are full.

    Doubling makes a token's copying constant on average. No gradient flows through a cache.
    """

    def __init__(self) -> None:
        self.length = 0
        self.keys: Array = None
        self.values: Array = None

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add tokens.

        Args:
            key: (N, H, L, E).
            value: (N, H, L, M).
        """
        self.keys = _extended(self.keys, self.length, key.data)
        self.values = _extended(self.values, self.length, value.data)
        self.length += key.shape[2]


class Memory(NamedTuple):
    """What a decoder attends to at every step."""

    key: Tensor
    value: Tensor
    lengths: Any


class AttentionVariant(Module):
    """The hook: override `forward`, and the rest to decode from less than all keys and values."""

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
        """Attend with every query to every key that it sees.

        Args:
            query: (N, H, Lq, E).
            key: (N, H, Lk, E).
            value: (N, H, Lk, M).
            causal: whether query i sees only the keys j <= i + query_offset.
            query_offset: the position of the first query among the keys.
            query_lengths: (N,) integers or None.
            key_lengths: (N,) integers or None.

        Returns:
            (N, H, Lq, M).
        """
        raise NotImplementedError(f"{type(self).__name__} does not override forward")

    def init_state(self) -> Any:
        """Return the state of causal attention before its first token."""
        return KeyValueCache()

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend with the next tokens to themselves and all before them.

        Args:
            query: (N, H, L, E), often L = 1.
            key: (N, H, L, E).
            value: (N, H, L, M).
            state: what the last step or `init_state` returned; it may be used up.

        Returns:
            The output (N, H, L, M) and the next state.
        """
        offset = state.length
        state.append(key, value)
        keys, values = Tensor(state.keys), Tensor(state.values)
        # Causality hides the unused end of the cache too.
        return self(query, keys, values, causal=True, query_offset=offset), state

    def remember(self, key: Tensor, value: Tensor, key_lengths: Any = None) -> Any:
        """Return what `recall` needs of keys and values that every later query sees.

        Args:
            key: (N, H, Lk, E).
            value: (N, H, Lk, M).
            key_lengths: (N,) integers or None.
        """
        return Memory(key, value, key_lengths)

    def recall(self, query: Tensor, memory: Any) -> Tensor:
        """Attend to what was remembered.

        Args:
            query: (N, H, L, E).
            memory: what `remember` returned.

        Returns:
            (N, H, L, M).
        """
        return self(query, memory.key, memory.value, key_lengths=memory.lengths)


Variant = TypeVar("Variant", bound=Callable[[], AttentionVariant])
_variants: dict[str, Callable[[], AttentionVariant]] = {}


def register_attention(name: str) -> Callable[[Variant], Variant]:
    """Give a variant the name by which layers and models can ask for it.

    Args:
        name: the name.

    Returns:
        A decorator for a class, or a function without arguments, that makes the variant.
    """

    def register(variant: Variant) -> Variant:
        _variants[name] = variant
        return variant

    return register


def attention_variant(attention: str | AttentionVariant) -> AttentionVariant:
    """Return the variant of a name; an instance stands for itself.

    Args:
        attention: a registered name, or an instance, which all who are given it share.

    Raises:
        ValueError: nothing has been registered under the name.
    """
    if isinstance(attention, AttentionVariant):
        return attention
    if attention not in _variants:
        raise ValueError(
            f"attention must be one of {', '.join(map(repr, _variants))} or an AttentionVariant, "
            f"got {attention!r}; add others with register_attention"
        )
    return _variants[attention]()


@register_attention("softmax")
class SoftmaxAttention(AttentionVariant):
    """The softmax of all scores; quadratic cost, and a cache that grows with every token.

    Args:
        scale: factor of the scores; 1 / sqrt(E) by default.

    Source: Vaswani et al. 2017, equation (1); S3.
    """

    def __init__(self, scale: float | None = None) -> None:
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        return softmax_attention(query, key, value, scale=self.scale, **visible)


@register_attention("linear")
class LinearAttention(AttentionVariant):
    """Scores that are products of features; linear cost, and a state of constant size.

    Args:
        feature_map: φ, see `linear_attention`.
        guard: what keeps the denominator from zero, see there.
        eps: the guard's constant, see there.
        algorithm: how it is computed while training, see there.

    Source: Katharopoulos et al. 2020; S1.
    """

    def __init__(
        self,
        feature_map: str = "elu",
        guard: str = "clamp",
        eps: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        self.algorithm = algorithm
        self.options: dict[str, Any] = {"feature_map": feature_map, "guard": guard, "eps": eps}

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        output: Tensor = linear_attention(
            query, key, value, algorithm=self.algorithm, **self.options, **visible
        )
        return output

    def extra_repr(self) -> str:
        """Return the feature map and the algorithm."""
        return f"feature_map={self.options['feature_map']!r}, algorithm={self.algorithm!r}"

    def init_state(self) -> LinearState | None:
        """Return None: sums over no keys."""
        return None

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Add the tokens' keys to the sums and read them, see `AttentionVariant.step`."""
        if query.shape[2] > 1:
            return self._scan(query, key, value, initial_state=state)
        token = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # (N, H, E), ..., (N, H, M)
        output, state = linear_attention_step(*token, state, **self.options)
        return output[:, :, None], state  # (N, H, 1, M)

    def remember(self, key: Tensor, value: Tensor, key_lengths: Any = None) -> LinearState:
        """Return S and Z, the sums over all keys: all that any later query asks of them."""
        _, totals = self._scan(key[:, :, :1], key, value, key_lengths=key_lengths)
        return totals

    def recall(self, query: Tensor, memory: LinearState) -> Tensor:
        """Read the sums with queries that bring no keys."""
        no_key, no_value = query[:, :, :0], memory.S[:, :, :0]  # (N, H, 0, E), (N, H, 0, M)
        output, _ = self._scan(query, no_key, no_value, initial_state=memory)
        return output

    def _scan(
        self, query: Tensor, key: Tensor, value: Tensor, **more: Any
    ) -> tuple[Tensor, LinearState]:
        output, state = linear_attention(
            query, key, value, causal=True, return_state=True, **self.options, **more
        )
        return output, state


def _extended(buffer: Array, length: int, new: Array) -> Array:
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

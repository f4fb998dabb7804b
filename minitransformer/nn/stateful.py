"""What the variants with a state share: linear cost, and a state that no length adds to."""

from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar, NamedTuple

from ..tensor import Tensor
from .module import Module
from .variant import AttentionVariant, check_state


class Decoding(NamedTuple):
    """A state of constant size, and the position of the next token."""

    state: Any
    position: int


class StatefulAttention(AttentionVariant):
    """Linear attention or a relative: two functions, and what they take beside query, key, value.

    Args:
        feature_map: φ, see `linear_attention`; a `FeatureMap` with parameters is part of the model.
        options: the other keywords that are the function's own, such as `guard` and `algorithm`.

    Attributes:
        sequence: the function of sequences.
        token: that of one token.
        axes: of each of `inputs`, the axis of its tokens, or None.

    Raises:
        TypeError: the function has no such option.
    """

    sequence: ClassVar[Callable[..., Any]]
    token: ClassVar[Callable[..., Any]]
    axes: ClassVar[tuple[int | None, ...]] = ()

    def __init__(self, feature_map: Any = "elu", **options: Any) -> None:
        allowed = [
            p.name for p in signature(self.token).parameters.values() if p.kind is p.KEYWORD_ONLY
        ]
        for name in options.keys() - {*allowed, "algorithm"}:
            raise TypeError(
                f"{type(self).__name__}: options are {', '.join(allowed)} and algorithm, got {name}"
            )
        self.feature_map, self.options = feature_map, options

    def inputs(self, query: Tensor, key: Tensor, first_query: int, first_key: int) -> Any:
        """Return what the functions take after the value, for tokens from these positions on."""
        return ()

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend with the keywords of `linear_attention`; key 0 stands at position `first_key`."""
        first_query = first_key + keywords.get("query_offset", 0)
        own = self.inputs(query, key, first_query, first_key)
        options = {"feature_map": self.feature_map, **self.options, **keywords}
        return self.sequence(query, key, value, *own, **options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        output: Tensor = self.attend(query, key, value, **visible)
        return output

    def init_state(self) -> Decoding:
        """Return the state of no keys."""
        return Decoding(None, 0)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Add the tokens to the state and read it, see `AttentionVariant.step`."""
        check_state(self, state, Decoding)
        past, position = state
        count = query.shape[2]
        if count == 1:
            output, past = self._step(query, key, value, past, position)
        else:
            output, past = self.attend(
                query, key, value, position, causal=True, initial_state=past, return_state=True
            )
        return output, Decoding(past, position + count)

    def _step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        own = self.inputs(query, key, position, position)
        rows = zip((query, key, value, *own), (2, 2, 2, *self.axes), strict=True)
        token = [x if axis is None else x[(slice(None),) * axis + (0,)] for x, axis in rows]
        options = {"feature_map": self.feature_map, **self.options}
        options.pop("algorithm", None)
        output, state = self.token(*token, state, **options)
        return output[:, :, None], state  # (N, H, 1, M)

    def extra_repr(self) -> str:
        """Return the options that were chosen; a map that is a module has its own line."""
        known = {} if isinstance(self.feature_map, Module) else {"feature_map": self.feature_map}
        return ", ".join(f"{name}={x!r}" for name, x in {**known, **self.options}.items())


class TotalsAttention(StatefulAttention):
    """A stateful attention whose bidirectional form, too, needs no more of the keys than sums."""

    def remember(self, key: Tensor, value: Tensor, key_lengths: Any = None) -> Any:
        """Return the sums over all keys: all that any later query asks of them."""
        _, totals = self.attend(
            key[:, :, :1], key, value, key_lengths=key_lengths, causal=True, return_state=True
        )
        return totals

    def recall(self, query: Tensor, memory: Any, query_offset: int = 0) -> Tensor:
        """Read the sums with queries that bring no keys."""
        no_key, no_value = query[:, :, :0], memory[0][:, :, :0]  # (N, H, 0, E), (N, H, 0, M)
        output: Tensor = self.attend(
            query, no_key, no_value, query_offset, causal=True, initial_state=memory
        )
        return output

"""How queries attend to keys: the one place where a new kind of attention plugs in.

A variant answers `forward`: given every query, key and value, what is the output? That is enough to
train with it, and to decode with it from a cache of all keys and values. A variant that can forget
them overrides the four decoding methods as well; one with parameters of its own makes them in
`prepare`, where it learns its sizes. After

    @register_attention("mine")
    class MyAttention(AttentionVariant):
        ...

every layer and model accepts `attention="mine"`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minitransformer_kernels.arrays import constant
from minitransformer_kernels.fourier import cosformer

from .. import features, random
from ..attention import (
    delta_attention,
    delta_attention_step,
    fourier_linear_attention,
    fourier_linear_attention_step,
    linear_attention,
    linear_attention_step,
    local_attention,
    relative_linear_attention,
    relative_linear_attention_step,
    softmax_attention,
)
from ..device import array_module
from ..function import no_grad
from ..functions import sigmoid, tanh
from ..tensor import Tensor
from .module import Module, Parameter

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


class Decoding(NamedTuple):
    """A state of constant size, and the position of the next token."""

    state: Any
    position: int


class AttentionVariant(Module):
    """The hook: override `forward`, and the rest to decode from less than all keys and values.

    Attributes:
        has_dropout: whether `forward` takes `dropout`, the fraction of its weights to drop.
    """

    has_dropout = False

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make parameters, if the variant has any.

        Every layer that uses the variant calls this, with the same sizes where they share it.

        Args:
            num_heads: H.
            head_dim: E.
        """

    def learn(self, name: str, shape: tuple[int, ...], start: Callable[[], Array]) -> None:
        """Make a parameter, unless another layer that shares the variant has done so.

        Args:
            name: the attribute.
            shape: the parameter's shape.
            start: makes its first value.

        Raises:
            ValueError: the other layer needed another shape.
        """
        if not hasattr(self, name):
            setattr(self, name, Parameter(start()))
        elif (found := getattr(self, name).shape) != shape:
            raise ValueError(
                f"{type(self).__name__}: one instance serves layers of one number of heads and one "
                f"head dim; its {name} has the shape {found}, this layer needs {shape}; give the "
                "layer an instance of its own"
            )

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

    def weights(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Return the weights with which `forward` would add up the values.

        Attention is linear in the values: o_i = sum_j a_ij v_j. With the rows of the identity for
        values, v_j = e_j, the output *is* the weights: o_i = (a_i1, ..., a_iL). For linear
        attention that reads off a_ij = φ(q_i)·φ(k_j) / sum_t φ(q_i)·φ(k_t), which its fast
        algorithms never compute.

        Args:
            query: (N, H, Lq, E).
            key: (N, H, Lk, E).
            value: (N, H, Lk, M); as many columns of the identity go in at a time, the size that the
                kernels are compiled for.
            visible: the keywords of `forward`.

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

    def recall(self, query: Tensor, memory: Any, query_offset: int = 0) -> Tensor:
        """Attend to what was remembered.

        Args:
            query: (N, H, L, E).
            memory: what `remember` returned.
            query_offset: the position of the first query; relative positions count from it.

        Returns:
            (N, H, L, M).
        """
        visible = {"query_offset": query_offset, "key_lengths": memory.lengths}
        return self(query, memory.key, memory.value, **visible)


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


def attention_names() -> tuple[str, ...]:
    """Return the names that layers and models accept."""
    return tuple(_variants)


def attention_variant(
    attention: str | AttentionVariant, num_heads: int, head_dim: int
) -> AttentionVariant:
    """Return the variant of a name, made for its sizes; an instance stands for itself.

    Args:
        attention: a registered name, or an instance, which all who are given it share.
        num_heads: H.
        head_dim: E.

    Raises:
        ValueError: nothing has been registered under the name.
    """
    variant = attention if isinstance(attention, AttentionVariant) else _by_name(attention)
    variant.prepare(num_heads, head_dim)
    return variant


def _by_name(attention: str) -> AttentionVariant:
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
        max_distance: k, for Shaw's relative positions: the product of a query with an embedding of
            the distance, learned for each from -k to k, is added to that with the key. None: none.

    Source: Vaswani et al. 2017, equation (1); Shaw et al. 2018, equation (4); S3.
    """

    has_dropout = True
    embedding: Parameter

    def __init__(self, scale: float | None = None, max_distance: int | None = None) -> None:
        self.scale, self.max_distance = scale, max_distance

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make the embeddings (H, 2k + 1, E), small, so that all distances begin alike."""
        if self.max_distance is not None:
            shape = num_heads, 2 * self.max_distance + 1, head_dim
            self.learn("embedding", shape, lambda: normal(shape, head_dim**-0.5))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float = 0.0, **visible: Any
    ) -> Tensor:
        """Attend, see `AttentionVariant.forward`.

        Args:
            query: as there.
            key: as there.
            value: as there.
            dropout: the fraction of the weights that is dropped.
            visible: the other keywords, as there.
        """
        embedding = None if self.max_distance is None else self.embedding
        options = {"scale": self.scale, "relative_embedding": embedding, **visible}
        return softmax_attention(query, key, value, dropout=dropout, **options)


class StatefulAttention(AttentionVariant):
    """Linear attention and its relatives: linear cost, and a state that no length adds to.

    A relative says how it attends to a sequence, and how a token is decoded.
    """

    options: dict[str, Any]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend with the keywords of `linear_attention`; key 0 stands at position `first_key`."""
        raise NotImplementedError(f"{type(self).__name__} does not override attend")

    def attend_token(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        """Decode the token (N, H, E) at a position; return its output and the next state."""
        raise NotImplementedError(f"{type(self).__name__} does not override attend_token")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        output: Tensor = self.attend(query, key, value, **visible)
        return output

    def extra_repr(self) -> str:
        """Return the options."""
        chosen = {name: x for name, x in self.options.items() if x is not None}
        return ", ".join(f"{name}={x!r}" for name, x in chosen.items())

    def init_state(self) -> Decoding:
        """Return the state of no keys."""
        return Decoding(None, 0)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Add the tokens to the state and read it, see `AttentionVariant.step`."""
        past, position = state
        count = query.shape[2]
        if count == 1:
            token = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # (N, H, E), ..., (N, H, M)
            output, past = self.attend_token(*token, past, position)
            output = output[:, :, None]  # (N, H, 1, M)
        else:
            output, past = self.attend(
                query, key, value, position, causal=True, initial_state=past, return_state=True
            )
        return output, Decoding(past, position + count)


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


@register_attention("linear")
class LinearAttention(TotalsAttention):
    """Scores that are products of features.

    Args:
        feature_map: φ, see `linear_attention`; a `FeatureMap` with parameters is part of the model.
        guard: what keeps the denominator from zero, see there.
        eps: the guard's constant, see there.
        algorithm: how it is computed while training, see there.

    Source: Katharopoulos et al. 2020; S1.
    """

    def __init__(
        self,
        feature_map: Any = "elu",
        guard: str = "clamp",
        eps: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        self.feature_map, self.algorithm = feature_map, algorithm
        self.options = {"guard": guard, "eps": eps}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend; sums know no positions."""
        options = {"feature_map": self.feature_map, **self.options, **keywords}
        return linear_attention(query, key, value, algorithm=self.algorithm, **options)

    def attend_token(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        """Add the key to the sums, and read them."""
        options = {"feature_map": self.feature_map, **self.options}
        return linear_attention_step(query, key, value, state, **options)

    def extra_repr(self) -> str:
        """Return the feature map and the algorithm."""
        return f"feature_map={self.feature_map!r}, algorithm={self.algorithm!r}"


@register_attention("favor")
class FavorAttention(LinearAttention):
    """Linear attention by positive random features, an estimate of softmax attention.

    Args:
        num_features: R; see `Favor`.
        guard: see `LinearAttention`.
        eps: see there.
        algorithm: see there.

    Source: Choromanski et al. 2021.
    """

    def __init__(
        self,
        num_features: int | None = None,
        guard: str = "clamp",
        eps: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(None, guard, eps, algorithm)
        self.num_features = num_features

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Draw the projection."""
        if self.feature_map is None:
            self.feature_map = features.Favor(head_dim, self.num_features)


@register_attention("dpfp")
class DPFPAttention(LinearAttention):
    """Linear attention by products of neighbouring numbers.

    Args:
        nu: see `DPFP`; with 1, a query has now and then no feature that is not tiny, and float32
            rounds it badly.
        options: see `LinearAttention`.

    Source: Schlag et al. 2021.
    """

    def __init__(self, nu: int = 2, **options: Any) -> None:
        super().__init__(features.DPFP(nu), **options)


@register_attention("relative")
class RelativeLinearAttention(StatefulAttention):
    """Linear attention that also weighs by distance: an embedding for each, learned.

    Across to another sequence it needs all values, as any distance may come near: it keeps them.

    Args:
        max_distance: k; what is farther away than that counts as being there.
        score_map: see `relative_linear_attention`.
        relative_query: see there.
        feature_map: see there.
        guard: see there.
        eps: see there.
        algorithm: see there.

    Source: Shaw et al. 2018; S0.
    """

    embedding: Parameter

    def __init__(
        self,
        max_distance: int = 16,
        score_map: str = "softplus",
        relative_query: str = "feature",
        feature_map: str = "elu",
        guard: str | None = None,
        eps: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        self.max_distance, self.algorithm = max_distance, algorithm
        self.options = {
            "score_map": score_map,
            "relative_query": relative_query,
            "feature_map": feature_map,
            "guard": guard,
            "eps": eps,
        }

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make the embeddings (H, 2k + 1, E), small, so that all distances begin alike."""
        shape = num_heads, 2 * self.max_distance + 1, head_dim
        self.learn("embedding", shape, lambda: normal(shape, head_dim**-0.5))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend; distances do not depend on where the sequence begins."""
        options = {"algorithm": self.algorithm, **self.options, **keywords}
        return relative_linear_attention(query, key, value, self.embedding, **options)

    def attend_token(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        """Add the token to the sums and to the window of the last values, and read them."""
        return relative_linear_attention_step(
            query, key, value, self.embedding, state, **self.options
        )


@register_attention("fourier")
class FourierLinearAttention(TotalsAttention):
    """Linear attention whose features turn with the position: learned harmonics of the distance.

    Token i stands at position i. Frequencies start as the sinusoids of Vaswani et al. 2017 have
    them, from 1 down to 1 / 10,000 radians a token; amplitudes are c = tanh of what is learned.

    Args:
        form: see `fourier_linear_attention`.
        denominator: see there.
        feature_map: see there.
        guard: see there.
        eps: see there.
        algorithm: see there.

    Source: S2.
    """

    frequency: Tensor
    phase: Tensor
    unbounded_amplitude: Tensor

    def __init__(
        self,
        form: str = "one_plus_cos",
        denominator: str = "rotated",
        feature_map: str = "elu",
        guard: str | None = None,
        eps: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        self.algorithm = algorithm
        self.options = {
            "form": form,
            "denominator": denominator,
            "feature_map": feature_map,
            "guard": guard,
            "eps": eps,
        }

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make frequencies (H, E, 1), phases and amplitudes (H, E)."""
        share = np.arange(head_dim, dtype=np.float32) / head_dim
        frequency = np.tile(10_000**-share, (num_heads, 1))[..., None]
        flat = num_heads, head_dim
        self.learn("frequency", (*flat, 1), lambda: frequency)
        self.learn("phase", flat, lambda: np.zeros(flat, np.float32))
        self.learn("unbounded_amplitude", flat, lambda: np.full(flat, 1.5, np.float32))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend from and to the positions that follow `first_key`."""
        first_query = first_key + keywords.get("query_offset", 0)
        places = _places(query, first_query), _places(key, first_key)
        options = {"algorithm": self.algorithm, **self.options, **keywords}
        return fourier_linear_attention(query, key, value, *places, *self.wave(query), **options)

    def attend_token(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        """Turn the token to its position, add it to the sums, and read them."""
        place = constant(np.array([[float(position)]]), query.data)  # (1, P)
        return fourier_linear_attention_step(
            query, key, value, place, place, *self.wave(query), state, **self.options
        )

    def wave(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frequency (H, E, 1), phase (H, E) and amplitude (H, E), for a query."""
        return self.frequency, self.phase, tanh(self.unbounded_amplitude)


@register_attention("cosformer")
class CosFormerAttention(FourierLinearAttention):
    """relu features, re-weighted by cos(pi (i - j) / 2T): a Fourier attention that learns nothing.

    Args:
        longest: T, at least the length of the longest sequence: beyond it weights are negative.
        algorithm: see `fourier_linear_attention`.

    Source: Qin et al. 2022, equation 10.
    """

    def __init__(self, longest: int = 1024, algorithm: str = "auto") -> None:
        super().__init__("cos", "rotated", "relu", algorithm=algorithm)
        self.longest = longest

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make the frequencies, phases and amplitudes, which are no parameters."""
        self.fixed = cosformer(self.longest, num_heads, head_dim)

    def wave(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frequency pi / 2T, phase 0 and amplitude 1, for a query."""
        frequency, phase, amplitude = (
            Tensor(constant(x.astype(query.dtype), query.data)) for x in self.fixed
        )
        return frequency, phase, amplitude


@register_attention("delta")
class DeltaAttention(TotalsAttention):
    """Fast weights by the delta rule: a key replaces what the state held under it.

    How much it replaces, the network says: beta = σ(w_h . k + b_h), a number for each head and
    token, learned, and 1/2 at first. (Its source takes beta = σ(W_beta x) from the layer's input x,
    which a variant does not see. As k = W_K x, what is here is that with W_beta = w_h W_K.)

    Where not causal, as across to another sequence, all keys are written before any query reads.

    Args:
        feature_map: φ, see `delta_attention`.
        normalize: see there.
        algorithm: see there.

    Source: Schlag et al. 2021.
    """

    beta_weight: Parameter
    beta_bias: Parameter

    def __init__(
        self, feature_map: Any = "elu", normalize: str = "sum", algorithm: str = "auto"
    ) -> None:
        self.feature_map, self.algorithm = feature_map, algorithm
        self.options = {"normalize": normalize}

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make w (H, E, 1), small, and b (H, 1), zeros."""
        weight, bias = (num_heads, head_dim, 1), (num_heads, 1)
        self.learn("beta_weight", weight, lambda: normal(weight, head_dim**-0.5))
        self.learn("beta_bias", bias, lambda: np.zeros(bias, np.float32))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, first_key: int = 0, **keywords: Any
    ) -> Any:
        """Attend; states know no positions."""
        options = {"feature_map": self.feature_map, **self.options, **keywords}
        if not options.pop("causal", False):
            options["query_offset"] = key.shape[2]
        return delta_attention(
            query, key, value, self.beta(key), algorithm=self.algorithm, **options
        )

    def attend_token(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, position: int
    ) -> tuple[Tensor, Any]:
        """Correct the state by the token, and read it."""
        beta = self.beta(key[:, :, None])[:, :, 0]  # (N, H)
        options = {"feature_map": self.feature_map, **self.options}
        return delta_attention_step(query, key, value, beta, state, **options)

    def beta(self, key: Tensor) -> Tensor:
        """Return the rates (N, H, L) of keys (N, H, L, E)."""
        return sigmoid((key @ self.beta_weight)[..., 0] + self.beta_bias)

    def extra_repr(self) -> str:
        """Return the feature map, how it is normalized, and the algorithm."""
        chosen = {"feature_map": self.feature_map, **self.options, "algorithm": self.algorithm}
        return ", ".join(f"{name}={x!r}" for name, x in chosen.items())


@register_attention("local")
class LocalAttention(AttentionVariant):
    """The softmax of the scores near by: cost and, without a stride, state do not grow with length.

    Across to another sequence, query i looks around place i of that sequence. That fits two
    sequences that run in step, as in copying; a larger window, or global keys, do for others.

    Args:
        window: how many keys a query sees on either side of its place; layers pass on more.
        stride: see `local_attention`.
        num_global: see there.
        global_queries: see there.
        scale: factor of the scores; 1 / sqrt(E) by default.

    Source: Child et al. 2019; Beltagy et al. 2020.
    """

    def __init__(
        self,
        window: int = 16,
        stride: int | None = None,
        num_global: int = 0,
        global_queries: int = 0,
        scale: float | None = None,
    ) -> None:
        self.options: dict[str, Any] = {
            "window": window,
            "stride": stride,
            "num_global": num_global,
            "global_queries": global_queries,
            "scale": scale,
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        return local_attention(query, key, value, **self.options, **visible)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend, see `AttentionVariant.step`; then forget what no later query sees."""
        output, state = super().step(query, key, value, state)
        if self.options["stride"] is None and not self.options["global_queries"]:
            state.forget(self.options["num_global"], self.options["window"])
        return output, state

    def extra_repr(self) -> str:
        """Return the window, and the options that are not their defaults."""
        chosen = {name: x for name, x in self.options.items() if x or name == "window"}
        return ", ".join(f"{name}={x!r}" for name, x in chosen.items())


def _places(x: Tensor, first: int) -> Array:
    """Return the positions (1, L, 1) of the tokens of (N, H, L, E)."""
    places = np.arange(first, first + x.shape[2], dtype=np.float64)
    return constant(places[None, :, None], x.data)


def normal(shape: tuple[int, ...], deviation: float) -> Array:
    """Return random numbers, float32, around 0."""
    return deviation * random.generator().standard_normal(shape, np.float32)


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

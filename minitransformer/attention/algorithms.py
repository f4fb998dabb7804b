"""What linear attention and its relatives share: passes, features, the choice of an algorithm."""

from collections.abc import Mapping
from typing import Any

from minitransformer_kernels import algorithms
from minitransformer_kernels.arrays import processors
from minitransformer_kernels.checks import one_of
from minitransformer_kernels.planner import Sizes, choose
from minitransformer_kernels.visible import CAUSAL, EVERYTHING, Visible

from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .checks import (
    check_algorithm,
    check_sequences,
    check_state,
    guard_options,
    without_padding,
)
from .features import FeatureMap, is_elementwise, row_features

ALGORITHMS = "auto", *algorithms.ALGORITHMS

Gradients = tuple[Array | None, ...]
Algorithm = str | Mapping[str, str]  # one for all terms, or one for each


class KernelizedAttention(Function):
    """Attention with states, by a module of host functions.

    `forward` takes the inputs of that module's `forward`, then the arrays of an initial state, or
    None for each. It returns the output and, where the algorithm has any, the final state's arrays.

    Attributes:
        kernels: the module.
        axes: of each input, where its tokens lie, or None.
        state: the NamedTuple that holds the arrays of a state.
        letters: of their shapes.
    """

    kernels: Any
    axes: tuple[int | None, ...]
    state: Any
    letters: tuple[str, ...]

    @classmethod
    def forward(cls, ctx: Context, *arrays: Array | None, **options: Any) -> Any:
        """Return the output (N, H, Lq, M); where there are states, the last one's arrays too."""
        count = len(cls.state._fields)
        inputs, initial = arrays[:-count], arrays[-count:]
        options["initial_state"] = None if initial[0] is None else cls.state(*initial)
        output, *kept, end = cls.kernels.forward(*inputs, **options)
        # The denominators d_i are kept, and n_i = D_i o_i: both halves of the fraction. No S_i is:
        # there are L of them, each E x M, and a second scan makes them again.
        ctx.save(*inputs, output, *kept, options)
        return output if end is None else (output, *end)

    @classmethod
    def backward(
        cls, ctx: Context, grad_output: Array | None, *grad_state: Array | None
    ) -> Gradients:
        """Return the gradients of the inputs and of the initial state."""
        *saved, options = ctx.saved
        used = any(gradient is not None for gradient in grad_state)
        grad_output, *filled = ctx.filled(grad_output, *grad_state)
        end = cls.state(*filled) if used else None
        *gradients, start = cls.kernels.backward(grad_output, end, *saved, **options)
        return *gradients, *(start or (None,) * len(cls.state._fields))

    @classmethod
    def check(cls, name: str, state: Any, count: int, *inputs: Tensor, **options: Any) -> None:
        """Check the state of so many sequences; inputs and options are those of `forward`."""
        letters = dict(zip(cls.state._fields, cls.letters, strict=True))
        check_state(name, state, letters, *inputs[1:3], N=count)


class TokenStep(Function):
    """One token of an attention, by the kernel made for it."""

    @staticmethod
    def forward(
        ctx: Context,
        *arrays: Array | None,
        attention: type[KernelizedAttention],
        **options: Any,
    ) -> Any:
        """Return the output (N, H, M) and the next state's arrays."""
        count = len(attention.axes)
        inputs, initial = arrays[:count], arrays[count:]
        state = None if initial[0] is None else attention.state(*initial)
        # Inputs only: the output and the denominator of one token are quicker made again than kept.
        ctx.save(attention, inputs, state, options)
        output, after = attention.kernels.step(*inputs, state, **options)
        return output, *after

    @staticmethod
    def backward(ctx: Context, grad_output: Array | None, *grad_state: Array | None) -> Gradients:
        """Return the gradients by a sequence of length 1."""
        attention, inputs, state, options = ctx.saved
        grad_output, *filled = ctx.filled(grad_output, *grad_state)
        xp, kernels = array_module(grad_output), attention.kernels
        options = {**options, "visible": CAUSAL, "algorithm": "recurrent", "initial_state": state}
        axes = list(zip(inputs, attention.axes, strict=True))
        rows = [x if axis is None else xp.expand_dims(x, axis) for x, axis in axes]
        output, *kept, _ = kernels.forward(*rows, **options)
        *gradients, start = kernels.backward(
            grad_output[:, :, None], attention.state(*filled), *rows, output, *kept, **options
        )
        of_token = [
            g if axis is None else g.squeeze(axis)
            for g, axis in zip(gradients, attention.axes, strict=True)
        ]
        return *of_token, *(start if state else (None,) * len(filled))


def prepared(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap,
    algorithm: Algorithm,
    guard: str,
    eps: float | None,
    carries: str,
    terms: tuple[str, ...] = ("kernelized",),
    fraction: bool = True,
    **visible: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Check the inputs; return query and key, or their features, and the options of the kernels.

    `terms`: what is summed. `fraction`: whether the sum is divided by that of the weights; in a
    fraction of one term alone the size of a query's features cancels.
    """
    check_sequences(name, query, key, value)
    seen = Visible(**visible).settled(name, query.data, key.data)
    by_term = algorithm_by_term(name, algorithm, terms)
    options = {"visible": seen, **guard_options(name, guard, eps)}
    options["algorithm"] = by_term if len(by_term) > 1 else by_term["kernelized"]
    packed = seen.cu_seqlens is not None
    carries = " and ".join([*([carries] if carries else []), *(["cu_seqlens"] if packed else [])])
    check_algorithm(name, by_term["kernelized"], ALGORITHMS, seen.causal, carries)
    scalable = fraction and len(terms) == 1 and guard != "add"
    query, key, in_kernel = features_of(name, feature_map, query, key, scalable, seen)
    return query, key, {**options, "feature_map": in_kernel}


def algorithm_by_term(name: str, algorithm: Algorithm, terms: tuple[str, ...]) -> dict[str, str]:
    """Return the algorithm of each term; of the kernelized one alone, where it is one for all."""
    if not isinstance(algorithm, Mapping):
        return {"kernelized": algorithm}
    if set(algorithm) != {*terms}:
        raise ValueError(
            f"{name}: algorithm must have an entry for each of {', '.join(map(repr, terms))}, got "
            f"{', '.join(map(repr, algorithm))}"
        )
    for term in terms[1:]:
        one_of(name, f"algorithm[{term!r}]", algorithm[term], ("naive", "linear"))
    return dict(algorithm)


def attend(
    name: str,
    attention: type[KernelizedAttention],
    inputs: tuple[Tensor, ...],
    initial_state: Any,
    return_state: bool,
    options: dict[str, Any],
    **positions: Any,
) -> Any:
    """Apply an attention to its inputs, query, key and value first, having checked the state.

    The algorithm "auto" is chosen by the planner; `positions` are what it has to know of them, see
    `Sizes`.

    Returns:
        (N, H, Lq, M); with `return_state` that and the state.
    """
    if initial_state is not None:
        count = sequences(inputs[1], options["visible"].cu_seqlens)
        attention.check(name, initial_state, count, *inputs, **options)
    options["algorithm"] = _algorithm(
        options, return_state or initial_state is not None, *inputs[:3], **positions
    )
    no_state = (None,) * len(attention.state._fields)
    result = attention.apply(*inputs, *(initial_state or no_state), **options)
    output, *arrays = result if isinstance(result, tuple) else (result,)
    return (output, _state_of(attention, arrays)) if return_state else output


def attend_token(
    name: str,
    attention: type[KernelizedAttention],
    inputs: tuple[Tensor, ...],
    state: Any,
    options: dict[str, Any],
) -> tuple[Tensor, Any]:
    """Apply it to a token and a state, or None; return the output (N, H, M) and the next state."""
    if state is not None:
        attention.check(name, state, inputs[1].shape[0], *inputs, **options)
    before = state or (None,) * len(attention.state._fields)
    output, *after = TokenStep.apply(*inputs, *before, attention=attention, **options)
    return output, _state_of(attention, after)


def _state_of(attention: type[KernelizedAttention], arrays: list[Tensor]) -> Any:
    """Return the state of these arrays; whole numbers among them are no part of the tape."""
    return attention.state(*(Tensor(x.data) if x.dtype.kind in "iu" else x for x in arrays))


def _algorithm(
    options: dict[str, Any],
    stateful: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **positions: Any,
) -> Algorithm:
    """Return the algorithm that was asked for, or let the planner choose."""
    algorithm: Algorithm = options["algorithm"]
    if not isinstance(algorithm, str):
        first = {**options, "algorithm": algorithm["kernelized"]}
        chosen = _algorithm(first, stateful, query, key, value, **positions)
        return {**algorithm, "kernelized": str(chosen)}
    if algorithm not in ("auto", "linear"):
        return algorithm
    visible: Visible = options["visible"]
    count, packed = sequences(key, visible.cu_seqlens), visible.cu_seqlens is not None
    share = count if packed else 1
    sizes = Sizes(
        queries=query.shape[2] // share,
        keys=key.shape[2] // share,
        head_dim=key.shape[3],
        value_dim=value.shape[3],
        causal=visible.causal,
        query_offset=visible.query_offset,
        batch=count,
        heads=key.shape[1],
        itemsize=key.dtype.itemsize,
        **positions,
    )
    no_naive = stateful or packed or algorithm == "linear"
    return choose(sizes, processors(query.data), stateful=no_naive)


def sequences(key: Tensor, cu_seqlens: Any) -> int:
    """Return N, which packed sequences do not show in their shape."""
    return key.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1


def features_of(
    name: str,
    feature_map: FeatureMap,
    query: Tensor,
    key: Tensor,
    scalable: bool,
    visible: Visible = EVERYTHING,
) -> tuple[Tensor, Tensor, str]:
    """Return the features of query and key, or leave them to the kernel; and the kernel's map.

    `scalable`: whether the size of a query's features changes nothing. `visible`: whose padding
    is not read.
    """
    if is_elementwise(feature_map):
        return query, key, str(feature_map)
    query = without_padding(query, visible.query_lengths)
    key = without_padding(key, visible.key_lengths)
    query = row_features(name, feature_map, query, scaled=scalable)
    return query, row_features(name, feature_map, key), "identity"


def token_features(
    name: str, feature_map: FeatureMap, query: Tensor, key: Tensor, scalable: bool
) -> tuple[Tensor, Tensor, str]:
    """Return the same of one token (N, H, E)."""
    if is_elementwise(feature_map):
        return query, key, str(feature_map)
    rows = query[:, :, None], key[:, :, None]
    q, k, in_kernel = features_of(name, feature_map, *rows, scalable)
    return q[:, :, 0], k[:, :, 0], in_kernel

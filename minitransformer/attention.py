"""Attention: what every query reads from the keys that it sees.

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M). Query i sees key j
if j is below its sequence's key length and, when causal, j <= i + query_offset. A query that sees
nothing gives zeros, and passes no gradient.

| function                | cost of a sequence | state of a decoder       |
|-------------------------|--------------------|--------------------------|
| `softmax_attention`     | Lq Lk (E + M)      | all keys and values      |
| `linear_attention`      | (Lq + Lk) E M      | S (E x M) and Z (E)      |
| `linear_attention_step` | E M, one token     | S and Z, in and out      |
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.guards import GUARDS
from minitransformer_kernels.recurrent import LinearState

from .device import Array, as_array
from .functions.attention import (
    LinearAttention,
    LinearAttentionStep,
    NaiveLinearAttention,
    RecurrentLinearAttention,
    SoftmaxAttention,
)
from .tensor import Tensor

__all__ = ["LinearState", "linear_attention", "linear_attention_step", "softmax_attention"]

ALGORITHMS = ("auto", "naive", "recurrent", "linear")

Lengths = Any
Layout = Mapping[str, tuple[Tensor, str]]


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    scale: float | None = None,
) -> Tensor:
    """Average the values, each weighted by the softmax of its key's product with the query.

        o_i = sum_j p_ij v_j        p_ij = exp(scale q_i . k_j) / sum_t exp(scale q_i . k_t)

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores; 1 / sqrt(E) by default.

    Returns:
        (N, H, Lq, M).

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Vaswani et al. 2017, equation (1); S3.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> softmax_attention(same_keys, same_keys, value).tolist()
    [[[[6.0], [6.0], [6.0]]]]
    >>> softmax_attention(same_keys, same_keys, value, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    """
    name = "softmax_attention"
    _check_sequences(name, query, key, value)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{name}: scale must be a finite number, got {scale}; None is 1 / sqrt(E)")
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        causal=causal,
        query_offset=_whole(name, "query_offset", query_offset),
        query_lengths=_lengths(name, "query_lengths", query_lengths, query),
        key_lengths=_lengths(name, "key_lengths", key_lengths, key),
        scale=scale,
    )
    return output


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    algorithm: str = "auto",
    initial_state: LinearState | None = None,
    return_state: bool = False,
    guard: str = "clamp",
    eps: float | None = None,
) -> Any:
    """Average the values, each weighted by the product of its key's features with the query's.

        o_i = S^T φ(q_i) / guard(φ(q_i) . Z)      S = sum_j φ(k_j) v_j^T      Z = sum_j φ(k_j)

    over the keys j that query i sees.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        feature_map: φ: "elu" is x + 1 where x > 0 and exp(x) elsewhere; "identity" takes query and
            key for features.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        algorithm: "linear" sums S and Z, "recurrent" is its causal form, "naive" makes the whole
            matrix of scores, "auto" chooses.
        initial_state: where the sequence continues from; needs `causal`. None: zeros.
        return_state: whether to return the state after the last key too; needs `causal`.
        guard: what keeps the denominator d from zero: "clamp" is max(d, eps), "add" is d + eps,
            "signed" is d or, nearer to zero than eps, eps with the sign of d.
        eps: the guard's constant; by default 1e-6 for "add", else 1e-30 or, in float64, 1e-300.

    Returns:
        (N, H, Lq, M); with `return_state` that and a LinearState, S (N, H, E, M) and Z (N, H, E),
        through which gradients flow.

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, a choice is unknown, or needs `causal`.

    Source: Katharopoulos et al. 2020, equations (4) and (8) to (12); S1.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> output, state = linear_attention(
    ...     same_keys, same_keys, value, causal=True, return_state=True
    ... )
    >>> output.tolist()
    [[[[3.0], [4.5], [6.0]]]]
    >>> state.Z.tolist()
    [[[6.0, 6.0]]]
    """
    name = "linear_attention"
    _check_sequences(name, query, key, value, initial_state)
    _check_choice(name, "algorithm", algorithm, ALGORITHMS)
    options = {
        **_feature_options(name, feature_map, guard, eps),
        "query_lengths": _lengths(name, "query_lengths", query_lengths, query),
        "key_lengths": _lengths(name, "key_lengths", key_lengths, key),
    }
    offset = _whole(name, "query_offset", query_offset)
    stateful = return_state or initial_state is not None
    _check_algorithm(name, algorithm, causal, stateful)

    if algorithm == "naive":
        return NaiveLinearAttention.apply(
            query, key, value, causal=causal, query_offset=offset, **options
        )
    if not causal:
        return LinearAttention.apply(query, key, value, **options)
    S, Z = initial_state or (None, None)
    output, *state = RecurrentLinearAttention.apply(
        query, key, value, S, Z, query_offset=offset, **options
    )
    return (output, LinearState(*state)) if return_state else output


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Tensor, LinearState]:
    """Decode one token: add it to the sums, and read them, at a cost that no past token adds to.

        S' = S + φ(k) v^T        Z' = Z + φ(k)        o = S'^T φ(q) / guard(φ(q) . Z')

    Args:
        query: (N, H, E), float32 or float64.
        key: (N, H, E).
        value: (N, H, M).
        state: S (N, H, E, M) and Z (N, H, E), which are not changed; None: zeros.
        feature_map: φ, as in `linear_attention`.
        guard: as in `linear_attention`.
        eps: as in `linear_attention`.

    Returns:
        The output (N, H, M) and the next state.

    Raises:
        TypeError: an input is not floating.
        ValueError: shapes, dtypes or devices do not fit, or a choice is unknown.

    Source: Katharopoulos et al. 2020, equations (16) to (20); S1.

    >>> token = Tensor([[[1.0, 1.0]]])
    >>> output, state = linear_attention_step(token, token, Tensor([[[3.0]]]), None)
    >>> output, state = linear_attention_step(token, token, Tensor([[[6.0]]]), state)
    >>> output.tolist()
    [[[4.5]]]
    """
    name = "linear_attention_step"
    layout = {"query": (query, "N H E"), "key": (key, "N H E"), "value": (value, "N H M")}
    _check_inputs(name, {**layout, **_state_layout(state)})
    S, Z = state or (None, None)
    options = _feature_options(name, feature_map, guard, eps)
    output, *state_after = LinearAttentionStep.apply(query, key, value, S, Z, **options)
    return output, LinearState(*state_after)


# -- What the functions promise their kernels ------------------------------------------------------


def _check_sequences(
    function: str, query: Tensor, key: Tensor, value: Tensor, state: LinearState | None = None
) -> None:
    layout = {"query": (query, "N H Lq E"), "key": (key, "N H Lk E"), "value": (value, "N H Lk M")}
    _check_inputs(function, {**layout, **_state_layout(state)})


def _state_layout(state: LinearState | None) -> Layout:
    return {} if state is None else {"S": (state[0], "N H E M"), "Z": (state[1], "N H E")}


def _check_inputs(function: str, layout: Layout) -> None:
    """Check types, dtypes, devices, and shapes given by letters: equal letters, equal sizes."""
    for name, (tensor, _) in layout.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{function}: {name} must be a Tensor, got {type(tensor).__name__}; "
                f"wrap it: Tensor({name})"
            )
    for name, (tensor, _) in layout.items():
        _check_dtype_and_device(function, name, tensor, *next(iter(layout.items())))
    sizes: dict[str, int] = {}
    for name, (tensor, letters) in layout.items():
        _check_shape(function, name, tensor, letters.split(), sizes)


def _check_dtype_and_device(
    function: str, name: str, tensor: Tensor, first: str, example: tuple[Tensor, str]
) -> None:
    model = example[0]
    if tensor.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"{function}: {name} must be float32 or float64, got {tensor.dtype}; "
            f"convert it: {name}.to(dtype=numpy.float32)"
        )
    if tensor.dtype != model.dtype:
        raise ValueError(
            f"{function}: {name} is {tensor.dtype}, but {first} is {model.dtype}; "
            f"convert it: {name}.to(dtype={first}.dtype)"
        )
    if tensor.device != model.device:
        raise ValueError(
            f"{function}: {name} is on {tensor.device}, but {first} is on {model.device}; "
            f"move it: {name}.to({first}.device)"
        )


def _check_shape(
    function: str, name: str, tensor: Tensor, letters: list[str], sizes: dict[str, int]
) -> None:
    """Check a shape against the sizes that its letters have already, and note those of new ones."""
    expected = ", ".join(f"{x}={sizes[x]}" if x in sizes else x for x in letters)
    got = f"{function}: {name} must have the shape ({expected}), got {tensor.shape}"
    if tensor.ndim != len(letters):
        raise ValueError(
            f"{got}; split the heads: (N, L, H * E) becomes x.reshape(N, L, H, E).transpose(1, 2)"
        )
    for letter, size in zip(letters, tensor.shape, strict=True):
        if sizes.setdefault(letter, size) != size or (size == 0 and letter in "NHEM"):
            raise ValueError(
                f"{got}; N, H, E and M are above 0, and a letter means one size in all arguments"
            )


def _lengths(function: str, name: str, lengths: Lengths, sequence: Tensor) -> Array | None:
    """Return lengths as int32 on the sequences' device, having checked that they fit."""
    if lengths is None:
        return None
    batch, _, longest, _ = sequence.shape
    array = as_array(lengths.data if isinstance(lengths, Tensor) else lengths)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function}: {name} must be integers, got {array.dtype}; a mask becomes lengths by "
            "mask.sum(dim=-1)"
        )
    if array.shape != (batch,):
        raise ValueError(
            f"{function}: {name} must have the shape (N={batch},), one length a sequence, got "
            f"{array.shape}; None means full lengths"
        )
    if bool(((array < 0) | (array > longest)).any()):
        raise ValueError(
            f"{function}: {name} must lie between 0 and {longest}, the length of the padded "
            f"sequences, got {array.tolist()}"
        )
    return as_array(array, sequence.device, np.int32)


def _whole(function: str, name: str, number: int) -> int:
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
        raise TypeError(
            f"{function}: {name} must be a whole number, got {number!r}; it counts keys"
        )
    return int(number)


def _feature_options(
    function: str, feature_map: str, guard: str, eps: float | None
) -> dict[str, Any]:
    _check_choice(function, "feature_map", feature_map, FEATURE_MAPS)
    _check_choice(function, "guard", guard, GUARDS)
    if eps is not None and not (eps > 0 and math.isfinite(eps)):
        raise ValueError(
            f"{function}: eps must be a finite number above 0, got {eps}; None chooses one"
        )
    return {"feature_map": feature_map, "guard": guard, "eps": eps}


def _check_choice(function: str, name: str, choice: str, choices: Iterable[str]) -> None:
    if choice not in choices:
        raise ValueError(
            f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {choice!r}"
        )


def _check_algorithm(function: str, algorithm: str, causal: bool, stateful: bool) -> None:
    if algorithm == "recurrent" and not causal:
        raise ValueError(
            f"{function}: algorithm 'recurrent' goes from left to right and needs causal=True; "
            "for both directions use 'linear'"
        )
    if stateful and not causal:
        raise ValueError(
            f"{function}: initial_state and return_state belong to a sequence that goes on, and "
            "need causal=True"
        )
    if stateful and algorithm == "naive":
        raise ValueError(
            f"{function}: algorithm 'naive' has no state; for initial_state and return_state use "
            "'recurrent' or 'auto'"
        )

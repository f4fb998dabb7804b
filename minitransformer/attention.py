"""Attention: what every query reads from the keys that it sees.

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M). Query i sees key j
if j is below its sequence's key length and, when causal, j <= i + query_offset. A query that sees
nothing gives zeros, and passes no gradient.

| function                | cost of a sequence | state of a decoder       |
|-------------------------|--------------------|--------------------------|
| `softmax_attention`     | Lq Lk (E + M)      | all keys and values      |
| `linear_attention`      | (Lq + Lk) E M      | S (E x M) and Z (E)      |
| `relative_linear_...`   | the same, + 2k + 1 | S, Z, the last k values  |
| `fourier_linear_...`    | the same, times 3  | S (3E x M) and Z (3E)    |
| `..._step`              | E M, one token     | the state, in and out    |
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.fourier import DENOMINATORS, PARTS, FourierState
from minitransformer_kernels.planner import Sizes, choose
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.relative import SCORE_MAPS, RelativeState

from .attention_checks import (
    Lengths,
    check_algorithm,
    check_choice,
    check_inputs,
    check_sequences,
    check_state,
    guard_options,
    lengths_of,
    visible_options,
    whole,
)
from .device import Array, as_array, to_numpy
from .functions.attention import (
    FourierLinearAttention,
    FourierLinearAttentionStep,
    LinearAttention,
    LinearAttentionStep,
    RelativeLinearAttention,
    RelativeLinearAttentionStep,
    SoftmaxAttention,
)
from .tensor import Tensor

__all__ = [
    "FourierState",
    "LinearState",
    "RelativeState",
    "fourier_linear_attention",
    "fourier_linear_attention_step",
    "linear_attention",
    "linear_attention_step",
    "relative_linear_attention",
    "relative_linear_attention_step",
    "softmax_attention",
]

ALGORITHMS = ("auto", "naive", "linear", "recurrent", "chunked")
LINEAR_STATE = {"S": "N H E M", "Z": "N H E"}
RELATIVE_STATE = {**LINEAR_STATE, "tail": "N H M", "recent": "N H k M"}

FeatureMap = str | Callable[[Tensor], Tensor]


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
    check_sequences(name, query, key, value)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{name}: scale must be a finite number, got {scale}; None is 1 / sqrt(E)")
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        causal=causal,
        query_offset=whole(name, "query_offset", query_offset),
        query_lengths=lengths_of(name, "query_lengths", query_lengths, query),
        key_lengths=lengths_of(name, "key_lengths", key_lengths, key),
        scale=scale,
    )
    return output


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    cu_seqlens: Any = None,
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
        feature_map: φ: "elu" is x + 1 where x > 0 and exp(x) elsewhere; "relu", "softplus", "exp";
            "identity" takes query and key for features; "favor", "dpfp", "cosformer", or an object
            of `minitransformer.features`; or a function of your own, from a Tensor (N, H, L, E) to
            a Tensor (N, H, L, D).
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        cu_seqlens: (N + 1,) integers; query, key and value are then (1, H, T, ...), N sequences
            packed one after the other, each from its entry to the next; needs `causal`. No work is
            done on padding. None: padded sequences.
        algorithm: "naive" makes all scores, tile by tile; "linear" takes linear time. Causal, that
            is "recurrent", token after token, or "chunked", many tokens at a time. "auto" lets the
            planner choose by the shapes: `minitransformer plan` shows how.
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
    query, key, options = _prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, guard=guard, eps=eps,
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    if initial_state is not None:
        count = _sequences(key, cu_seqlens)
        check_state(name, initial_state, LINEAR_STATE, key, value, N=count)
    stateful = return_state or initial_state is not None
    options["algorithm"] = _algorithm(options, stateful, query, key, value)
    result = LinearAttention.apply(query, key, value, *(initial_state or (None, None)), **options)
    output, *state = result if isinstance(result, tuple) else (result,)
    return (output, LinearState(*state)) if return_state else output


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: FeatureMap = "elu",
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
    check_inputs(name, layout)
    query, key, feature_map = _token_features(name, feature_map, query, key, guard)
    if state is not None:
        check_state(name, state, LINEAR_STATE, key, value)
    options = {"feature_map": feature_map, **guard_options(name, guard, eps)}
    output, *after = LinearAttentionStep.apply(
        query, key, value, *(state or (None, None)), **options
    )
    return output, LinearState(*after)


def relative_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative_embedding: Tensor,
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: FeatureMap = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    cu_seqlens: Any = None,
    algorithm: str = "auto",
    initial_state: RelativeState | None = None,
    return_state: bool = False,
    guard: str | None = None,
    eps: float | None = None,
) -> Any:
    """Linear attention whose weights also know how far a key is from the query, in linear cost.

        o_i = sum_j (φ(q_i).φ(k_j) + f(u_i . e_r)) v_j / guard(sum_j (φ(q_i).φ(k_j) + f(u_i . e_r)))

    with r = clip(j - (i + query_offset), -k, k), over the keys j that query i sees; u_i is φ(q_i)
    or q_i.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        relative_embedding: (H, 2k + 1, E); row r + k is e_r.
        score_map: f: "softplus" or "exp", which are positive, or "identity", S0's literal formula,
            whose denominator can vanish.
        relative_query: "feature" for u_i = φ(q_i) (S0's code), "raw" for q_i (S0's text; Shaw).
        feature_map: φ, as in `linear_attention`.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        cu_seqlens: (N + 1,) integers for packed sequences, as in `linear_attention`.
        algorithm: as in `linear_attention`, for both terms.
        initial_state: where the sequence continues from; needs `causal`. None: no keys yet.
        return_state: whether to return the state after the last key too; needs `causal`.
        guard: as in `linear_attention`; by default "signed" for "identity" scores, else "clamp".
        eps: the guard's constant.

    Returns:
        (N, H, Lq, M); with `return_state` that and a RelativeState, whose size no length adds to:
        S and Z, the last k values, the sum of those before, and how many there were.

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, a choice is unknown, or needs `causal`.

    Source: Shaw et al. 2018, equations (3) and (4); S0.

    >>> same = Tensor([[[[0.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> itself = Tensor([[[-30.0], [30.0], [-30.0]]])  # weights of about 0, 30 and 0
    >>> output = relative_linear_attention(same, same, value, itself)
    >>> [round(o, 2) for o in output.numpy().ravel().tolist()]
    [3.27, 6.0, 8.73]
    """
    name = "relative_linear_attention"
    query, key, options = _prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, eps=eps,
        guard=guard or _relative_guard(score_map), sums_alone=False,
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    options |= _relative_options(
        name, query, relative_embedding, score_map, relative_query, feature_map
    )
    if initial_state is not None:
        _check_relative_state(name, initial_state, key, value, relative_embedding, cu_seqlens)
    stateful = return_state or initial_state is not None
    furthest = relative_embedding.shape[1] // 2
    options["algorithm"] = _algorithm(options, stateful, query, key, value, max_distance=furthest)
    result = RelativeLinearAttention.apply(
        query, key, value, relative_embedding, *(initial_state or (None,) * 5), **options
    )
    output, *state = result if isinstance(result, tuple) else (result,)
    return (output, _relative_state(state)) if return_state else output


def relative_linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative_embedding: Tensor,
    state: RelativeState | None = None,
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: FeatureMap = "elu",
    guard: str | None = None,
    eps: float | None = None,
) -> tuple[Tensor, RelativeState]:
    """Decode one token with relative positions, from a state whose size no past token adds to.

    Args:
        query: (N, H, E), float32 or float64.
        key: (N, H, E).
        value: (N, H, M).
        relative_embedding: (H, 2k + 1, E).
        state: what the token before left behind, which is not changed; None: no keys yet.
        score_map: as in `relative_linear_attention`.
        relative_query: as there.
        feature_map: as there.
        guard: as there.
        eps: as there.

    Returns:
        The output (N, H, M) and the next state.

    Raises:
        TypeError: an input is not floating.
        ValueError: shapes, dtypes or devices do not fit, or a choice is unknown.
    """
    name = "relative_linear_attention_step"
    layout = {"query": (query, "N H E"), "key": (key, "N H E"), "value": (value, "N H M")}
    check_inputs(name, layout)
    guard = guard or _relative_guard(score_map)
    query, key, features = _token_features(name, feature_map, query, key, guard, sums_alone=False)
    options = {
        **_relative_options(
            name, query, relative_embedding, score_map, relative_query, feature_map
        ),
        **guard_options(name, guard, eps),
        "feature_map": features,
    }
    if state is not None:
        _check_relative_state(name, state, key, value, relative_embedding)
    output, *after = RelativeLinearAttentionStep.apply(
        query, key, value, relative_embedding, *(state or (None,) * 5), **options
    )
    return output, _relative_state(after)


def fourier_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Any,
    key_positions: Any,
    frequency: Tensor,
    phase: Tensor,
    amplitude: Tensor,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: FeatureMap = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    cu_seqlens: Any = None,
    algorithm: str = "auto",
    initial_state: FourierState | None = None,
    return_state: bool = False,
    guard: str | None = None,
    eps: float | None = None,
) -> Any:
    """Linear attention in which each feature weighs by a harmonic of the distance, in linear cost.

        o_i = sum_j a_ij v_j / guard(sum_j a_ij)
        a_ij = sum_e φ(q_i)_e φ(k_j)_e (1 + c_e cos(b_e + a_e . (p_i - r_j)))

    over the keys j that query i sees; without the 1 in the form "cos".

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs but positions.
        value: (N, H, Lk, M).
        query_positions: p, a Tensor or array (N, Lq, P), or (1, Lq, P) for the whole batch; taken
            as float64. Times, or places in a space of P dimensions, in any unit.
        key_positions: r, (N, Lk, P) or (1, Lk, P).
        frequency: a, (H, E, P), in radians per unit of position.
        phase: b, (H, E), in radians.
        amplitude: c, (H, E); up to 1 in size, the weights of "one_plus_cos" are positive.
        form: "one_plus_cos", or "cos", S2's literal one, whose denominator can vanish.
        denominator: "rotated" for the sum above, "plain" for sum_j φ(q_i).φ(k_j) (Su et al. 2021).
        feature_map: φ, as in `linear_attention`; with features of your own, E is their number.
        causal: whether query i sees only the keys j <= i + query_offset, wherever they stand.
        query_offset: the index of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        cu_seqlens: (N + 1,) integers for packed sequences, as in `linear_attention`; positions are
            then (1, T, P).
        algorithm: as in `linear_attention`.
        initial_state: where the sequence continues from; needs `causal`. None: no keys yet.
        return_state: whether to return the state after the last key too; needs `causal`.
        guard: as in `linear_attention`; by default "signed" for a "rotated" denominator of the form
            "cos", else "clamp".
        eps: the guard's constant.

    Returns:
        (N, H, Lq, M); with `return_state` that and a FourierState, S (N, H, D, M) and Z, with
        D = 3E, or 2E for "cos".

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, a choice is unknown, or needs `causal`.

    Source: S2; with a = pi / (2 T), b = 0, c = 1, form "cos" and "relu" it is cosFormer (Qin et al.
    2022).

    >>> same = Tensor([[[[0.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> places = [[[0.0], [1.0], [2.0]]]
    >>> wave = Tensor([[[3.14159265]]]), Tensor([[0.0]]), Tensor([[1.0]])  # 1 + cos(pi (i - j))
    >>> output = fourier_linear_attention(same, same, value, places, places, *wave)
    >>> [round(o, 4) for o in output.numpy().ravel().tolist()]
    [6.0, 6.0, 6.0]
    >>> output = fourier_linear_attention(same, same, value, places, places, *wave, causal=True)
    >>> [round(o, 4) for o in output.numpy().ravel().tolist()]
    [3.0, 6.0, 6.0]
    """
    name = "fourier_linear_attention"
    query, key, options = _prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, eps=eps,
        guard=guard or _fourier_guard(form, denominator),
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    places = [
        _positions(name, "query_positions", query_positions, query.shape[0], query.shape[2], query),
        _positions(name, "key_positions", key_positions, key.shape[0], key.shape[2], query),
    ]
    wave = frequency, phase, amplitude
    options |= _fourier_options(name, query, places, wave, form, denominator)
    if initial_state is not None:
        count = _sequences(key, cu_seqlens)
        _check_fourier_state(name, initial_state, key, value, form, denominator, count)
    stateful = return_state or initial_state is not None
    options["algorithm"] = _algorithm(options, stateful, query, key, value, fourier=form)
    result = FourierLinearAttention.apply(
        query, key, value, *places, *wave, *(initial_state or (None, None)), **options
    )
    output, *state = result if isinstance(result, tuple) else (result,)
    return (output, FourierState(*state)) if return_state else output


def fourier_linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_position: Any,
    key_position: Any,
    frequency: Tensor,
    phase: Tensor,
    amplitude: Tensor,
    state: FourierState | None = None,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: FeatureMap = "elu",
    guard: str | None = None,
    eps: float | None = None,
) -> tuple[Tensor, FourierState]:
    """Decode one token with Fourier positions, from a state that no past token adds to.

    Args:
        query: (N, H, E), float32 or float64.
        key: (N, H, E).
        value: (N, H, M).
        query_position: (N, P), or (1, P) for the whole batch.
        key_position: (N, P) or (1, P).
        frequency: (H, E, P).
        phase: (H, E).
        amplitude: (H, E).
        state: what the token before left behind, which is not changed; None: no keys yet.
        form: as in `fourier_linear_attention`.
        denominator: as there.
        feature_map: as there.
        guard: as there.
        eps: as there.

    Returns:
        The output (N, H, M) and the next state.

    Raises:
        TypeError: an input is not floating.
        ValueError: shapes, dtypes or devices do not fit, or a choice is unknown.
    """
    name = "fourier_linear_attention_step"
    layout = {"query": (query, "N H E"), "key": (key, "N H E"), "value": (value, "N H M")}
    check_inputs(name, layout)
    guard = guard or _fourier_guard(form, denominator)
    query, key, features = _token_features(name, feature_map, query, key, guard)
    places = [
        _positions(name, "query_position", query_position, query.shape[0], None, query),
        _positions(name, "key_position", key_position, key.shape[0], None, query),
    ]
    wave = frequency, phase, amplitude
    options = {
        **_fourier_options(name, query, places, wave, form, denominator),
        **guard_options(name, guard, eps),
        "feature_map": features,
    }
    if state is not None:
        _check_fourier_state(name, state, key, value, form, denominator, key.shape[0])
    output, *after = FourierLinearAttentionStep.apply(
        query, key, value, *places, *wave, *(state or (None, None)), **options
    )
    return output, FourierState(*after)


# -- Fourier positions -----------------------------------------------------------------------------


def _fourier_guard(form: str, denominator: str) -> str:
    """Return the guard that suits denominators of one sign, or of both."""
    return "signed" if (form, denominator) == ("cos", "rotated") else "clamp"


def _positions(
    name: str, argument: str, positions: Any, batch: int, length: int | None, query: Tensor
) -> Tensor:
    """Return positions as a float64 Tensor, (N or 1, L, P), or (N or 1, P) of a token."""
    places: Tensor = positions
    if not isinstance(positions, Tensor):
        places = Tensor(as_array(positions, query.device, np.float64))
    rows = () if length is None else (length,)
    shape = places.shape
    if len(shape) != 2 + len(rows) or shape[0] not in (1, batch) or shape[1:-1] != rows:
        expected = ", ".join([f"{batch} or 1", *map(str, rows), "P"])
        raise ValueError(
            f"{name}: {argument} must have the shape ({expected}), P numbers for each place, got "
            f"{shape}; places on a line are numpy.arange(L)[None, :, None]"
        )
    if places.dtype != np.float64:
        raise ValueError(
            f"{name}: {argument} must be float64, got {places.dtype}: an angle of float32 is "
            f"wrong where positions are large; convert it: {argument}.to(dtype=numpy.float64)"
        )
    return places


def _fourier_options(
    name: str,
    query: Tensor,
    places: list[Tensor],
    wave: tuple[Tensor, Tensor, Tensor],
    form: str,
    denominator: str,
) -> dict[str, Any]:
    """Check what only Fourier attention has; return its options."""
    check_choice(name, "form", form, PARTS)
    check_choice(name, "denominator", denominator, DENOMINATORS)
    sizes = {"H": query.shape[1], "E": query.shape[-1], "P": places[0].shape[-1]}
    letters = {"frequency": "H E P", "phase": "H E", "amplitude": "H E"}
    layout = {n: (x, text) for (n, text), x in zip(letters.items(), wave, strict=True)}
    check_inputs(name, layout, ("query", query), sizes)
    if places[1].shape[-1] != sizes["P"]:
        raise ValueError(
            f"{name}: positions of queries and keys must have as many dimensions, got "
            f"{places[0].shape} and {places[1].shape}"
        )
    return {"form": form, "denominator": denominator}


def _check_fourier_state(
    name: str,
    state: FourierState,
    key: Tensor,
    value: Tensor,
    form: str,
    denominator: str,
    count: int,
) -> None:
    sizes = {"N": count, "D": PARTS[form] * key.shape[-1]}
    letters = {"S": "N H D M", "Z": "N H E" if denominator == "plain" else "N H D"}
    check_state(name, state, letters, key, value, **sizes)


# -- Relative positions ----------------------------------------------------------------------------


def _relative_guard(score_map: str) -> str:
    """Return the guard that suits scores of one sign, or of both."""
    return "signed" if score_map == "identity" else "clamp"


def _relative_options(
    name: str,
    query: Tensor,
    relative_embedding: Tensor,
    score_map: str,
    relative_query: str,
    feature_map: FeatureMap,
) -> dict[str, Any]:
    """Check what only relative attention has; return its options."""
    check_choice(name, "score_map", score_map, SCORE_MAPS)
    check_choice(name, "relative_query", relative_query, ("feature", "raw"))
    if relative_query == "raw" and not _is_elementwise(feature_map):
        raise ValueError(
            f"{name}: relative_query 'raw' needs a feature_map that kernels apply, one of "
            f"{', '.join(map(repr, FEATURE_MAPS))}; use relative_query='feature'"
        )
    sizes = {"H": query.shape[1], "E": query.shape[-1]}
    layout = {"relative_embedding": (relative_embedding, "H 2k+1 E")}
    check_inputs(name, layout, ("query", query), sizes)
    if relative_embedding.shape[1] % 2 == 0:
        raise ValueError(
            f"{name}: relative_embedding must have an odd number of rows, 2k + 1 for the distances "
            f"-k to k, got {relative_embedding.shape}"
        )
    return {"score_map": score_map, "relative_query": relative_query}


def _check_relative_state(
    name: str,
    state: RelativeState,
    key: Tensor,
    value: Tensor,
    relative_embedding: Tensor,
    cu_seqlens: Any = None,
) -> None:
    sizes = {"N": _sequences(key, cu_seqlens), "k": relative_embedding.shape[1] // 2}
    check_state(name, state, RELATIVE_STATE, key, value, **sizes)
    if state.length.shape != (sizes["N"],) or state.length.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: length must be integers of the shape (N={sizes['N']},), got "
            f"{state.length.dtype} {state.length.shape}"
        )


def _relative_state(arrays: list[Tensor]) -> RelativeState:
    """Return the state; its length, whole numbers, is no part of the tape."""
    return RelativeState(*arrays)._replace(length=Tensor(arrays[-1].data))


# -- What linear attention and its relatives share -------------------------------------------------


def _prepared(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap,
    algorithm: str,
    guard: str,
    eps: float | None,
    carries: str,
    sums_alone: bool = True,
    **visible: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Check the inputs; return query and key, or their features, and the options of the kernels.

    `sums_alone`: whether the output is a fraction that the size of a query's features cancels in.
    """
    check_sequences(name, query, key, value)
    options = visible_options(name, query, key, **visible) | guard_options(name, guard, eps)
    packed = visible["cu_seqlens"] is not None
    carries = " and ".join([*([carries] if carries else []), *(["cu_seqlens"] if packed else [])])
    check_algorithm(name, algorithm, ALGORITHMS, visible["causal"], carries)
    features: Any = feature_map
    if not _is_elementwise(feature_map):
        query, key = _row_features(name, feature_map, query, key, options, carries, sums_alone)
        features = "identity"
    return query, key, {**options, "algorithm": algorithm, "feature_map": features}


def _algorithm(
    options: dict[str, Any],
    stateful: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **positions: Any,
) -> str:
    """Return the algorithm that was asked for, or let the planner choose."""
    algorithm: str = options["algorithm"]
    if algorithm not in ("auto", "linear"):
        return algorithm
    boundaries = options.get("cu_seqlens")
    count = query.shape[0] if boundaries is None else len(boundaries) - 1
    packed = 1 if boundaries is None else count
    sizes = Sizes(
        queries=query.shape[2] // packed,
        keys=key.shape[2] // packed,
        head_dim=key.shape[3],
        value_dim=value.shape[3],
        causal=options["causal"],
        query_offset=options["query_offset"],
        batch=count,
        heads=key.shape[1],
        itemsize=key.dtype.itemsize,
        **positions,
    )
    no_naive = stateful or boundaries is not None or algorithm == "linear"
    return choose(sizes, stateful=no_naive)


def _sequences(key: Tensor, cu_seqlens: Any) -> int:
    """Return N, which packed sequences do not show in their shape."""
    return key.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1


def _is_elementwise(feature_map: FeatureMap) -> bool:
    """Return whether kernels apply the map to each number as they read it."""
    return isinstance(feature_map, str) and feature_map in FEATURE_MAPS


def _row_features(
    name: str,
    feature_map: FeatureMap,
    query: Tensor,
    key: Tensor,
    options: dict[str, Any],
    carries: str,
    sums_alone: bool,
) -> tuple[Tensor, Tensor]:
    """Return the features of query and key by a map of whole rows."""
    # Feature maps may be modules, and modules attend: at the top this import would be a circle.
    from .features import apply_feature_map, has_positions

    if "state" in carries and has_positions(feature_map):
        raise ValueError(
            f"{name}: the features of {feature_map!r} depend on positions, which a state does not "
            "know; use fourier_linear_attention, which is told them"
        )
    first_query: Any = options["query_offset"]
    first_key: Any = 0
    if (starts := options.get("cu_seqlens")) is not None:
        first_query = first_key = _positions_in_sequences(starts)
    scalable = sums_alone and options["guard"] != "add"
    return (
        apply_feature_map(name, feature_map, query, first_query, query=scalable),
        apply_feature_map(name, feature_map, key, first_key),
    )


def _positions_in_sequences(starts: Array) -> Array:
    """Return (T,) integers, the place of each packed row in its sequence."""
    starts = to_numpy(starts)
    places: Array = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    return places


def _token_features(
    name: str,
    feature_map: FeatureMap,
    query: Tensor,
    key: Tensor,
    guard: str,
    sums_alone: bool = True,
) -> tuple[Tensor, Tensor, str]:
    """Return the features of one token (N, H, E), or leave them to the kernel."""
    if _is_elementwise(feature_map):
        return query, key, str(feature_map)
    rows = query[:, :, None], key[:, :, None]
    options = {"query_offset": 0, "guard": guard}
    q, k = _row_features(name, feature_map, *rows, options, "a state", sums_alone)
    return q[:, :, 0], k[:, :, 0], "identity"

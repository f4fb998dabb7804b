"""Kernelized linear attention and its step."""

from typing import Any

from minitransformer_kernels import algorithms
from minitransformer_kernels.recurrent import LinearState

from ..tensor import Tensor
from .algorithms import (
    Algorithm,
    KernelizedAttention,
    attend,
    attend_token,
    prepared,
    token_features,
)
from .checks import Lengths, check_token, guard_options
from .features import FeatureMap


class LinearAttention(KernelizedAttention):
    """φ(Q) (φ(K)^T V) / (φ(Q) φ(K)^T 1), by any algorithm."""

    kernels = algorithms
    axes = 2, 2, 2
    state = LinearState
    letters = "N H E M", "N H E"


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
    algorithm: Algorithm = "auto",
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
            "identity" takes query and key for features; "favor", "dpfp", or `nn.Favor`,
            `nn.DPFP`; or a function of your own, from a Tensor (N, H, L, E) to
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
            planner choose by the shapes and the device: `minitransformer plan` shows how. Or what
            a plan says of the kernelized term, {"kernelized": one of these}.
        initial_state: where the sequence continues from; needs `causal`. None: zeros.
        return_state: whether to return the state after the last key too; needs `causal`.
        guard: what keeps the denominator d from zero: "clamp" is max(d, eps) and "add" d + eps, for
            features that are nowhere negative; "signed", for features of any sign such as
            "identity" may be, is d or, nearer to zero than eps, eps with the sign of d.
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
    query, key, options = prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, guard=guard, eps=eps,
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    inputs = query, key, value
    return attend(name, LinearAttention, inputs, initial_state, return_state, options)


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
        feature_map, guard, eps: as in `linear_attention`.

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
    check_token(name, query, key, value)
    query, key, feature_map = token_features(name, feature_map, query, key, guard != "add")
    options = {"feature_map": feature_map, **guard_options(name, guard, eps)}
    return attend_token(name, LinearAttention, (query, key, value), state, options)

"""Linear attention with Shaw's relative positions."""

from typing import Any

from minitransformer_kernels import relative
from minitransformer_kernels.checks import one_of
from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.relative import SCORE_MAPS, RelativeState

from ..tensor import Tensor
from .algorithms import (
    Algorithm,
    KernelizedAttention,
    attend,
    attend_token,
    prepared,
    token_features,
)
from .checks import Lengths, check_embedding, check_state, check_token, guard_options
from .features import FeatureMap, is_elementwise


class RelativeLinearAttention(KernelizedAttention):
    """Linear attention with Shaw's relative positions: (A + S_rel) V over the row sums."""

    kernels = relative
    axes = 2, 2, 2, None
    state = RelativeState

    @classmethod
    def check(cls, name: str, state: Any, count: int, *inputs: Tensor, **options: Any) -> None:
        """Check the state."""
        letters = {"S": "N H E M", "Z": "N H E", "tail": "N H M", "recent": "N H k M"}
        check_state(name, state, letters, *inputs[1:3], N=count, k=inputs[3].shape[1] // 2)
        if state.length.shape != (count,) or state.length.dtype.kind not in "iu":
            raise ValueError(
                f"{name}: length must be integers of the shape (N={count},), got "
                f"{state.length.dtype} {state.length.shape}"
            )


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
    algorithm: Algorithm = "auto",
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
        feature_map: φ; this and all to cu_seqlens as in `linear_attention`.
        algorithm: as there, for both terms; or one for each, as S0's plan has it:
            {"kernelized": one of those, "relative": "naive" or "linear"}.
        initial_state, return_state, eps: as there.
        guard: as there; by default "signed" for "identity" scores, else "clamp".

    Returns:
        (N, H, Lq, M); with `return_state` that and a RelativeState, whose size no length adds to:
        S and Z, the last k values, the sum of those before, and how many there were.

    Raises what `linear_attention` does.

    Source: Shaw et al. 2018, equations (3) and (4); S0.

    >>> same = Tensor([[[[0.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> itself = Tensor([[[-30.0], [30.0], [-30.0]]])  # weights of about 0, 30 and 0
    >>> output = relative_linear_attention(same, same, value, itself)
    >>> [round(o, 2) for o in output.numpy().ravel().tolist()]
    [3.27, 6.0, 8.73]
    """
    name = "relative_linear_attention"
    query, key, options = prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, eps=eps,
        guard=guard or relative_guard(score_map), terms=("kernelized", "relative"),
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    options |= relative_options(
        name, query, relative_embedding, score_map, relative_query, feature_map
    )
    inputs, furthest = (query, key, value, relative_embedding), relative_embedding.shape[1] // 2
    how = initial_state, return_state, options
    return attend(name, RelativeLinearAttention, inputs, *how, max_distance=furthest)


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
        score_map: this and the rest as in `relative_linear_attention`.

    Returns and raises what `linear_attention_step` does.
    """
    name = "relative_linear_attention_step"
    check_token(name, query, key, value)
    guard = guard or relative_guard(score_map)
    query, key, features = token_features(name, feature_map, query, key, scalable=False)
    options = {
        **relative_options(name, query, relative_embedding, score_map, relative_query, feature_map),
        **guard_options(name, guard, eps),
        "feature_map": features,
    }
    inputs = query, key, value, relative_embedding
    return attend_token(name, RelativeLinearAttention, inputs, state, options)


def relative_guard(score_map: str) -> str:
    """Return the guard that suits scores of one sign, or of both."""
    return "signed" if score_map == "identity" else "clamp"


def relative_options(
    name: str,
    query: Tensor,
    relative_embedding: Tensor,
    score_map: str,
    relative_query: str,
    feature_map: FeatureMap,
) -> dict[str, Any]:
    """Check what only relative attention has; return its options."""
    one_of(name, "score_map", score_map, SCORE_MAPS)
    one_of(name, "relative_query", relative_query, ("feature", "raw"))
    if relative_query == "raw" and not is_elementwise(feature_map):
        raise ValueError(
            f"{name}: relative_query 'raw' needs a feature_map that kernels apply, one of "
            f"{', '.join(map(repr, FEATURE_MAPS))}; use relative_query='feature'"
        )
    check_embedding(name, query, relative_embedding)
    return {"score_map": score_map, "relative_query": relative_query}

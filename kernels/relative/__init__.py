r"""Linear attention with relative positions (S0; Shaw et al. 2018), in linear time.

Query i stands at position p_i = i + query_offset, key j at position j. A learned embedding e_r
belongs to each distance r from -k to k, and what is farther counts as being at the end:

    r(i, j) = clip(j - p_i, -k, k)                                                             (1)
    F_ir = f(u_i . e_r)                        s_ij = w_ij F_i,r(i,j)                          (2)
    o_i  = (n_i + n'_i) / guard(d_i + d'_i)    n'_i = sum_j s_ij v_j     d'_i = sum_j s_ij     (3)

where n_i and d_i are the sums of linear attention (`algorithms`), w_ij = 1 where query i sees key
j, else 0, and u_i is phi(Q_i), or Q_i itself. (S0 prints clip(i - j) and Q_i; its code has j - i,
as Shaw has, and phi(Q_i).) The map f makes weights of scores. Both positive ones keep the
denominator off zero; with the literal "identity" of S0 it can have any sign and needs the signed
guard. Each has a slope that its value tells, so that F is all that backward has to keep:

    softplus    f(b) = log(1 + exp(b))         f' = 1 - exp(-f)                                (4)
    exp         f(b) = exp(min(b, 60))         f' = f, and 0 from exp(60) on                   (5)
    identity    f(b) = b                       f' = 1                                          (6)

The cap in (5) keeps all sums and gradients finite in float32, which ends at exp(88).

**Linear time.** The matrix s has Lq x Lk numbers, but row i only 2k + 1 different ones: it is
enough to know the *sums* of the values at both ends. (So f may be any map. It need not split into
features of the query and of the key, as the scores of linear attention do.) Take a tile of queries
at the positions p to p'. All of its queries see the keys j <= p - k at distance -k, and the keys
j >= p' + k at distance k. Between lie the near keys, 2k + 32 or so for any length:

    n'_i = F_i,-k A + sum_{near j} s_ij v_j + F_i,k C                                          (7)
    A = sum of v_j before the near keys        C = sum of v_j after them                       (8)

d'_i is the same with 1 for v_j: A and C become counts. A and C are kept where tiles of keys begin,
(L / 32) x M numbers; F takes L (2k + 1), and only the distances that occur. A causal query sees no
key after itself, so C is missing and r <= 0. With k = 0 all keys are at one distance, and (7) still
counts each once: before, near or after.

**Backward.** With gn_i and gd_i, the gradients of numerator and denominator (`guards`), linear
attention's own gradients come from `algorithms`. For the rest, each weight gets

    ds_ij = w_ij (gn_i . v_j + gd_i)           dF_ir = sum_{r(i,j) = r} ds_ij                  (9)
    dF_i,-k gets gn_i . A + gd_i |A|           dF_i,k gets gn_i . C + gd_i |C|                (10)
    dB_ir = dF_ir f'                           (|A|: the number of keys in the sum A)         (11)
    du_i = sum_r dB_ir e_r                     de_r = sum_i dB_ir u_i                         (12)
    dv_j = sum_{near i} s_ij gn_i + sum_{i after} F_i,-k gn_i + sum_{i before} F_i,k gn_i     (13)

(13) is (7) with queries and keys exchanged: its far sums run over queries.

**Decoding.** A causal sequence goes on from S and Z of linear attention and a window: the last k
values, and the sum of those that have fallen out of it, which are at distance -k for ever. That is
E M + E + (k + 1) M numbers for a head, however long the past was:

    tail' = tail + the value that falls out    recent' = the last k values                    (14)

A sequence that starts from such a state has keys at positions -k to -1, too, and A starts with the
tail. Nothing else changes; all of it has gradients but `length`, which tells how many keys there
were: no more of `recent` is real, and all beyond k are in the tail.

"Naive" is the same with every key near: the quadratic form, tile by tile.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import algorithms, linear
from ..arrays import (
    Array,
    array_module,
    ceil_div,
    chosen,
    contiguous,
    kernel_dtype,
    lengths_or_full,
    round_up,
    version_of,
)
from ..checks import QKV, host
from ..feature_maps import elementwise_features
from ..guards import eps_or_default, normaliser_gradients
from ..recurrent import LinearState
from ..visible import EVERYTHING, Visible, blank
from . import fast, plain
from .score_maps import SCORE_MAPS
from .setting import STATE, RelativeState, empty_state, in_one_piece, setting_of

__all__ = ["SCORE_MAPS", "RelativeState", "backward", "empty_state", "forward", "step"]


def _linear_state(state: RelativeState | None) -> LinearState | None:
    return None if state is None else LinearState(state.S, state.Z)


@host(**QKV, relative_embedding="H 2k+1 E", initial_state=STATE)
def forward(
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str | Mapping[str, str],
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array, Array, RelativeState | None]:
    """Linear attention with relative positions, equations (1) to (8) and (14).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        relative_embedding: (H, 2k + 1, E), row r + k for the distance r = clip(j - (i +
            query_offset), -k, k).
        visible: who sees whom.
        algorithm: "naive", "linear" (not causal), "recurrent" or "chunked" (both causal), of both
            terms: "naive" takes the time of Lq Lk, the others that of (Lq + Lk) (2k + 1). Or one
            for each, {"kernelized": any of these, "relative": "naive" or "linear"}.
        feature_map: a name of `feature_maps`, of queries and keys.
        score_map: "softplus", "exp" or "identity", of the scores of the relative term.
        relative_query: "feature", phi(Q), or "raw", Q: what the embeddings are multiplied by.
        initial_state: what causal sequences continue from.
        guard: "clamp", "add", or "signed", which "identity" scores need.
        eps: the guard's size; None for its default.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output (N, H, Lq, M), the denominators (N, H, Lq), the weights F of equation (2) (N, H,
        Lq, R) of the R <= 2k + 1 distances that occur, which backward needs, and the state after
        the last key, None where the algorithm has none.

    Raises:
        ValueError: arguments contradict one another, or E or M is above 256.

    Source: Shaw et al. 2018, equations 3 and 4; S0.
    """
    round_up(query.shape[3])  # `step`, and the gradients, hold no more
    visible, query = visible.sighted(query, key, state=initial_state)
    query, key, value = contiguous(query, key, value)
    setting = setting_of(query, key, value, relative_embedding, visible, algorithm, initial_state)
    numerator, others, linear_state = algorithms.forward(
        query, key, value, visible,
        algorithm=setting.algorithm, feature_map=feature_map, guard="none", version=version,
        initial_state=_linear_state(initial_state),
    )  # fmt: skip
    kernels = version_of(version, fast=fast, plain=plain)
    u = _relative_query(query, _query_map(relative_query, feature_map))
    F, values = kernels.weights(u, setting, score_map), kernels.values(value, setting)
    output, d = kernels.forward(numerator, others, F, values, setting, guard, eps)
    blank(visible.query_lengths, output, d)
    if linear_state is None:
        return output, d, F, None
    k = relative_embedding.shape[1] // 2
    *_, tail, recent, length = empty_state(len(setting.keys), key, value, k)
    kernels.window(values, setting, tail, recent)
    length += setting.state.length + setting.keys[:, 2]
    return output, d, F, RelativeState(*linear_state, tail, recent, length)


def _query_map(relative_query: str, feature_map: str) -> str:
    """The map that makes u_i of equation (2)."""
    return chosen("relative_query", relative_query, {"feature": feature_map, "raw": "identity"})


def _relative_query(query: Array, query_map: str) -> Array:
    """All u_i of equation (2)."""
    return query if query_map == "identity" else elementwise_features(query, query_map)


@host(
    **QKV, relative_embedding="H 2k+1 E", grad_output="N H Lq M", output="N H Lq M",
    denominator="N H Lq", weights="N H Lq R", initial_state=STATE, grad_state=STATE,
)  # fmt: skip
def backward(
    grad_output: Array,
    grad_state: RelativeState | None,
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    output: Array,
    denominator: Array,
    weights: Array,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str | Mapping[str, str],
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array, Array, Array, RelativeState | None]:
    """The gradients of `forward`, equations (9) to (13).

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        grad_state: the gradient of the final state, whose length counts for nothing; or None.
        query: this and all the rest as `forward` took and returned it.

    Returns:
        The gradients of query, key, value and relative_embedding, and of the initial state, whose
        length has none and comes back as zeros; None where the algorithm has no state.

    Raises:
        ValueError: arguments contradict one another, or E or M is above 256.
    """
    visible, query = visible.of_seen_keys(query, key, grad_state).sighted(
        query, key, state=initial_state
    )
    query, key, value, F = contiguous(query, key, value, weights)
    setting = setting_of(query, key, value, relative_embedding, visible, algorithm, initial_state)
    first = _linear_state(initial_state)
    if F.shape[3] != setting.embedding.shape[1]:
        raise ValueError(
            f"relative.backward: weights must have a column for each of the "
            f"{setting.embedding.shape[1]} distances that occur, got {F.shape}"
        )
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key, visible,
        initial_state=first, guard=guard, eps=eps,
    )  # fmt: skip
    dq, dk, dv, linear_state = algorithms.gradients(
        gn, gd, _linear_state(grad_state), query, key, value, visible,
        algorithm=setting.algorithm, feature_map=feature_map, initial_state=first, version=version,
    )  # fmt: skip

    kernels, k = version_of(version, fast=fast, plain=plain), relative_embedding.shape[1] // 2
    query_map, values = _query_map(relative_query, feature_map), kernels.values(value, setting)
    dB, far = kernels.score_gradient(gn, gd, F, values, setting, score_map)
    counts = lengths_or_full(visible.query_lengths, len(query), query.shape[2], query)
    how = {"lengths": counts, "version": version}
    dq += linear.transformed(dB, setting.embedding, raw=query, feature_map=query_map, **how)  # (12)
    de, begin = array_module(F).zeros_like(relative_embedding), k + setting.low
    u = _relative_query(query, query_map)
    de[:, begin : begin + F.shape[3]] = linear.summed_products(dB, u, **how)  # (12)
    last = grad_state or empty_state(len(setting.keys), key, value, k)
    of_state = contiguous(last.tail, last.recent)
    d_tail, d_recent = kernels.value_gradient(F, gn, far, values, setting, of_state, dv)
    if linear_state is None:
        return dq, dk, dv, de, None
    none = array_module(F).zeros_like(setting.state.length)
    return dq, dk, dv, de, RelativeState(*linear_state, d_tail, d_recent, none)


@host(query="N H E", key="N H E", value="N H M", relative_embedding="H 2k+1 E", state=STATE)
def step(
    query: Array,
    key: Array,
    value: Array,
    relative_embedding: Array,
    state: RelativeState | None,
    *,
    feature_map: str = "elu",
    score_map: str = "softplus",
    relative_query: str = "feature",
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, RelativeState]:
    """One token of `forward`: constant time and memory, however long the past.

    Args:
        query: (N, H, E).
        key: (N, H, E).
        value: (N, H, M).
        relative_embedding: (H, 2k + 1, E); the rest as in `forward`.
        state: the state before this token; an empty one where None. It is not modified.

    Returns:
        The output (N, H, M) and the next state.

    Raises:
        ValueError: E or M is above 256.
    """
    round_up(query.shape[2])  # the kernel has room for no more
    query, key, value, embedding = contiguous(query, key, value, relative_embedding)
    N, H, M = value.shape
    window = embedding.shape[1] // 2
    after = empty_state(N, key, value, window)
    before = in_one_piece(state or empty_state(N, key, value, window))
    out = array_module(value).empty_like(value)
    columns = min(fast.MAX_COLUMNS, round_up(M, "value dim"))
    kernel = fast.step_kernel(
        columns, kernel_dtype(query), feature_map, _query_map(relative_query, feature_map),
        score_map, guard,
    )  # fmt: skip
    kernel[(ceil_div(M, columns), H, N), columns](
        query, key, value, embedding, eps_or_default(guard, eps, query), *before, out, *after[:4]
    )
    return out, after._replace(length=before.length + 1)

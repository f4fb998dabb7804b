"""Linear attention with Shaw's positions on slices, where queries look both ways.

Its numerators and denominators are sums over keys, so they are sums over ranks. With a column of
ones beside the values, w_j = [v_j, 1], one sum is both: s_i = [n_i, d_i], o_i = n_i / guard(d_i).
With the letters of `kernels.relative`, for queries from place a to place b - 1,

    s_i = φ(q_i)^T S + sum_{a-k <= j < b+k} F_i,r(i,j) w_j + F_i,-k A + F_i,k C                (1)
    S = sum_j φ(k_j) w_j^T        A = sum_{j < a-k} w_j        C = sum_{j >= b+k} w_j          (2)

S comes by a sum over all ranks, the near values from those that hold them, and A and C by a sum to
each rank: what lies before and behind is for each somewhere else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minitransformer_kernels.guards import eps_or_default
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.relative.score_maps import CAP
from minitransformer_kernels.visible import CAUSAL, Visible

from .. import functions as F
from ..attention import linear_attention
from ..attention.algorithms import ALGORITHMS, Algorithm, algorithm_by_term, features_of
from ..attention.checks import check_algorithm, check_sequences, guard_options, without_padding
from ..attention.features import FeatureMap
from ..attention.linear import LinearAttention
from ..attention.relative import RelativeLinearAttention, relative_guard, relative_options
from ..device import array_module, as_array
from ..tensor import Tensor
from .collectives import SumToEach, rows, total
from .slices import NONE, Spans, around, own_part, some
from .world import World

FEATURES: dict[str, Any] = {
    "elu": lambda x: F.where(x.data > 0, x + 1, F.exp(F.where(x.data > 0, 0.0, x))),
    "relu": F.relu,
    "softplus": F.softplus,
    "exp": F.exp,
    "identity": lambda x: x,
}
SCORES: dict[str, Any] = {
    "softplus": F.softplus,
    "exp": lambda b: F.exp(F.where(b.data < CAP, b, CAP)),
    "identity": lambda b: b,
}


def both_directions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative_embedding: Tensor,
    visible: Visible,
    world: World,
    queries: Spans,
    keys: Spans,
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: FeatureMap = "elu",
    guard: str | None = None,
    eps: float | None = None,
    algorithm: Algorithm = "auto",
) -> Tensor:
    """Return the output (N, H, Lq, M) of the own queries, for keys of all ranks.

    Inputs and options are those of `relative_linear_attention`, but for these.

    Args:
        visible: who sees whom in the whole sequences.
        queries: where the slices of queries lie.
        keys: where those of keys and values lie.
        algorithm: checked, and no more: there is one.
    """
    name, guard = "relative_linear_attention", guard or relative_guard(score_map)
    check_sequences(name, query, key, value)
    chosen = algorithm_by_term(name, algorithm, ("kernelized", "relative"))
    check_algorithm(name, chosen["kernelized"], ALGORITHMS, causal=False, carries="")
    guard_options(name, guard, eps)
    options = relative_options(
        name, query, relative_embedding, score_map, relative_query, feature_map
    )
    k = relative_embedding.shape[1] // 2
    query_lengths = own_part(visible.query_lengths, queries[world.rank])
    key_lengths = own_part(visible.key_lengths, keys[world.rank])
    query, key = without_padding(query, query_lengths), without_padding(key, key_lengths)
    xp = array_module(value.data)
    w = F.cat([value, Tensor(xp.ones((*value.shape[:3], 1), value.dtype))], dim=-1)
    w = without_padding(w, key_lengths)

    phi_q, phi_k, in_kernel = features_of(name, feature_map, query, key, scalable=False)
    s = _kernelized(phi_q, phi_k, w, key_lengths, in_kernel, world)
    u = query if relative_query == "raw" else FEATURES[in_kernel](phi_q)
    wanted = around(queries, keys, k, k)
    near = rows(w, world, keys, wanted)
    no_key = Tensor(xp.zeros((*near.shape[:3], u.shape[3]), u.dtype))
    seen = Visible(query_offset=queries[world.rank][0] - wanted[world.rank][0])
    s = s + RelativeLinearAttention.apply(
        u, no_key, near, relative_embedding, *[None] * 5, visible=seen, algorithm="linear",
        feature_map="identity", guard="none", eps=None, **options | {"relative_query": "feature"},
    )  # (1)  # fmt: skip
    for far, e in zip(_far(w, keys[world.rank], wanted, world), (0, 2 * k), strict=True):
        score = u @ relative_embedding[:, e : e + 1].transpose(1, 2)  # (N, H, Lq, 1)
        s = s + SCORES[score_map](score) * far  # (1)
    output = s[..., :-1] / _guarded(s[..., -1:], guard, eps)
    return without_padding(output, query_lengths)


def _kernelized(
    query: Tensor, key: Tensor, w: Tensor, lengths: Any, feature_map: str, world: World
) -> Tensor:
    """Return φ(q_i)^T S of equation (1)."""
    none = some(query, NONE), some(key, NONE), some(w, NONE)
    _, own = linear_attention(
        none[0], key, w, feature_map=feature_map, causal=True, key_lengths=lengths,
        return_state=True,
    )  # fmt: skip
    sums: LinearState = total(own, world)  # (2)
    s: Tensor = LinearAttention.apply(
        query, *none[1:], *sums, visible=CAUSAL, algorithm="recurrent", feature_map=feature_map,
        guard="none", eps=None,
    )[0]  # fmt: skip
    return s


def _far(w: Tensor, held: tuple[int, int], wanted: Spans, world: World) -> Tensor:
    """Return A and C of equation (2): (2, N, H, 1, M + 1)."""
    places = np.arange(*held)
    masks = [mask for i, j in wanted for mask in (places < i, places >= j)]  # (2P, Lk)
    parts = Tensor(as_array(np.array(masks), w.device, w.dtype)) @ w  # (N, H, 2P, M + 1)
    N, H, _, M = parts.shape
    to_each = parts.permute(2, 0, 1, 3).reshape(world.size, 2, N, H, 1, M)
    far: Tensor = SumToEach.apply(to_each, world)
    return far


def _guarded(d: Tensor, guard: str, eps: float | None) -> Tensor:
    """Return guard(d), equations (1) to (3) of `kernels.guards`."""
    least = eps_or_default(guard, eps, d.data)
    if guard == "add":
        return F.add(d, least)
    size, sign = (d.data, 1.0) if guard == "clamp" else (abs(d.data), (d.data >= 0) * 2.0 - 1)
    return F.where(size > least, d, Tensor(as_array(least * sign, d.device, d.dtype)))

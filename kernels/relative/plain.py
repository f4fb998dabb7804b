"""The kernels that a learner writes first: the second term by its definition, (1) to (3).

A value has a 1 at its end, V = [v, 1], so that d' is one more column of n', and gd of G = [gn, gd].
The keys of an initial state are keys as well: those of its window stand from -k on, and its tail is
one key before them, whose 1 is the number of keys that it is the sum of.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..arrays import Array, a_thread_each, array_module, kernel_dtype, spans
from ..cuda import Kernel, cuda
from ..guards import divided
from .score_maps import score_map as get_score_map
from .setting import Setting


class Keys(NamedTuple):
    """Keys that stand one after the other, from position `first` on."""

    V: Array  # (N, H, J, M + 1)
    spans: Array
    first: int


def values(value: Array, setting: Setting) -> tuple[Keys, Keys]:
    """The keys of the state, and those that are given."""
    xp = array_module(value)
    _, _, tail, recent, past = setting.state
    k = recent.shape[2]
    real = _real(setting)
    older = xp.concatenate((tail[:, :, None], xp.where(real, recent, 0)), axis=2)
    beyond = xp.maximum(past - k, 0).reshape(-1, 1, 1, 1)
    counts = xp.concatenate((beyond, real), axis=2).astype(value.dtype)
    counts = xp.broadcast_to(counts, (*older.shape[:3], 1))
    ones = xp.ones((*value.shape[:3], 1), value.dtype)
    return (
        Keys(xp.concatenate((older, counts), axis=3), spans(older), min(setting.low, 0) - 1),
        Keys(xp.concatenate((value, ones), axis=3), setting.keys, 0),
    )


def _real(setting: Setting) -> Array:
    """Which values of the state's window there have been: (N, 1, k, 1)."""
    _, _, _, recent, past = setting.state
    ago = array_module(recent).arange(recent.shape[2], 0, -1)
    return (past[:, None] >= ago)[:, None, :, None]


@cuda.jit(device=True)
def _row(distance, low, rows):  # type: ignore[no-untyped-def]
    """The row of the table for a distance, equation (1)."""
    return min(max(distance - low, 0), rows - 1)


@cache
def _weight_kernel(real: Any, map_name: str) -> Kernel:
    f = get_score_map(map_name, real).value

    @cuda.jit
    def weights(u, embedding, queries, F):  # type: ignore[no-untyped-def]
        """Rows u (N, H, Lq, E), embedding (H, R, E); F (N, H, Lq, R) is written to."""
        R, E = embedding.shape[1], embedding.shape[2]
        i, r = cuda.grid(1) // R, cuda.grid(1) % R
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row = queries[n, 0], queries[n, 1] + i
        if i < queries[n, 3]:
            F[b, h, row, r] = real(0)
        if i < queries[n, 2]:
            score = real(0)
            for e in range(E):
                score += u[b, h, row, e] * embedding[h, r, e]
            F[b, h, row, r] = f(score)  # (2)

    return weights


def weights(u: Array, setting: Setting, score_map: str) -> Array:
    """F of equation (2); a thread owns a number."""
    H, R, _ = setting.embedding.shape
    F = array_module(u).empty((*u.shape[:3], R), u.dtype)
    kernel = _weight_kernel(kernel_dtype(u), score_map)
    launch = a_thread_each(kernel, setting.longest[0] * R, H, len(setting.queries))
    launch(u, setting.embedding, setting.queries, F)
    return F


@cuda.jit
def add_terms(F, V, keys, first, queries, low, offset, causal, sums):  # type: ignore[no-untyped-def]
    """F (N, H, Lq, R), V (N, H, J, M + 1); to sums (N, H, Lq, M + 1) is added."""
    i = cuda.grid(1)
    h, n = cuda.blockIdx.y, cuda.blockIdx.z
    b, row = queries[n, 0], queries[n, 1] + i
    if i < queries[n, 2]:
        for t in range(keys[n, 2]):
            distance = first + t - i - offset
            if distance <= 0 or not causal:
                s = F[b, h, row, _row(distance, low, F.shape[3])]  # (2)
                for m in range(V.shape[3]):
                    sums[b, h, row, m] += s * V[keys[n, 0], h, keys[n, 1] + t, m]  # (3)


def forward(
    numerator: Array,
    others: Array,
    F: Array,
    values: tuple[Keys, Keys],
    setting: Setting,
    guard: str,
    eps: float | None,
) -> tuple[Array, Array]:
    """Equation (3); a thread owns a query, and walks its keys."""
    sums = array_module(F).concatenate((numerator, others[..., None]), axis=3)
    for keys in values:
        launch = _each_query(add_terms, setting)
        launch(F, *keys, setting.queries, *_walk(setting), sums)
    n, d = sums[..., :-1], array_module(F).ascontiguousarray(sums[..., -1])
    return divided(n, d, guard=guard, eps=eps), d


def _each_query(kernel: Kernel, setting: Setting) -> Any:
    """A launch with a thread for each query."""
    H, N = len(setting.embedding), len(setting.queries)
    return a_thread_each(kernel, setting.longest[0], H, N)


def _walk(setting: Setting) -> tuple[int, int, bool]:
    """Which distances there are."""
    return setting.low, setting.offset, setting.causal


@cache
def _score_gradient_kernel(real: Any, map_name: str) -> Kernel:
    slope = get_score_map(map_name, real).slope

    @cuda.jit
    def score_gradient(G, F, V, keys, first, queries, low, offset, causal, dB):  # type: ignore[no-untyped-def]
        """G (N, H, Lq, M + 1), F (N, H, Lq, R), V (N, H, J, M + 1); to dB, as F, is added."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row = queries[n, 0], queries[n, 1] + i
        if i < queries[n, 2]:
            for t in range(keys[n, 2]):
                distance = first + t - i - offset
                if distance <= 0 or not causal:
                    ds = real(0)
                    for m in range(V.shape[3]):
                        ds += G[b, h, row, m] * V[keys[n, 0], h, keys[n, 1] + t, m]  # (9)
                    r = _row(distance, low, F.shape[3])
                    dB[b, h, row, r] += ds * slope(F[b, h, row, r])  # (9), (11)

    return score_gradient


def score_gradient(
    gn: Array, gd: Array, F: Array, values: tuple[Keys, Keys], setting: Setting, score_map: str
) -> tuple[Array, None]:
    """The dB of (9) and (11); a thread owns a query, and walks its keys."""
    xp = array_module(F)
    G, dB = xp.concatenate((gn, gd[..., None]), axis=3), xp.zeros_like(F)
    for keys in values:
        launch = _each_query(_score_gradient_kernel(kernel_dtype(F), score_map), setting)
        launch(G, F, *keys, setting.queries, *_walk(setting), dB)
    return dB, None


@cuda.jit
def add_value_gradients(  # type: ignore[no-untyped-def]
    F, gn, keys, first, queries, low, offset, causal, ends, d_tail, d_recent, dv
):
    """F (N, H, Lq, R), gn (N, H, Lq, M); to dv (N, H, J, M) is added."""
    t = cuda.grid(1)
    h, n = cuda.blockIdx.y, cuda.blockIdx.z
    if t < keys[n, 2]:
        place = first + t - (ends[n, 2] - d_recent.shape[2])
        for m in range(dv.shape[3]):
            total = d_recent[n, h, place, m] if place >= 0 else d_tail[n, h, m]  # (14)
            for i in range(queries[n, 2]):
                distance = first + t - i - offset
                if distance <= 0 or not causal:
                    b, row = queries[n, 0], queries[n, 1] + i
                    s = F[b, h, row, _row(distance, low, F.shape[3])]  # (2)
                    total += s * gn[b, h, row, m]  # (13)
            dv[keys[n, 0], h, keys[n, 1] + t, m] += total


def value_gradient(
    F: Array,
    gn: Array,
    far: None,
    values: tuple[Keys, Keys],
    setting: Setting,
    grad_state: tuple[Array, Array],
    dv: Array,
) -> tuple[Array, Array]:
    """Adds (13) and (14) to the other gradient of the values; a thread owns a key.

    It walks all queries; `far` is for `fast` alone. Returns the gradients of the tail and the
    window of a first state.
    """
    xp = array_module(F)
    older, _ = values
    of_older = xp.zeros(older.V[..., :-1].shape, dv.dtype)
    H, N = len(setting.embedding), len(setting.queries)
    for (_, *keys), result in zip(values, (of_older, dv), strict=True):
        most = max(setting.longest[1], of_older.shape[2])
        launch = a_thread_each(add_value_gradients, most, H, N)
        launch(F, gn, *keys, setting.queries, *_walk(setting), setting.keys, *grad_state, result)
    return of_older[:, :, 0], xp.where(_real(setting), of_older[:, :, 1:], 0)


@cuda.jit
def keep_window(V, keys, first, ends, tail, recent):  # type: ignore[no-untyped-def]
    """V (N, H, J, M + 1); to tail (N, H, M) is added, recent (N, H, k, M) is written to."""
    m = cuda.grid(1)
    h, n = cuda.blockIdx.y, cuda.blockIdx.z
    if m < tail.shape[2]:
        for t in range(keys[n, 2]):
            v = V[keys[n, 0], h, keys[n, 1] + t, m]
            place = first + t - (ends[n, 2] - recent.shape[2])
            if place < 0:
                tail[n, h, m] += v  # (14)
            else:
                recent[n, h, place, m] = v  # (14)


def window(values: tuple[Keys, Keys], setting: Setting, tail: Array, recent: Array) -> None:
    """Tail and window of the last state, equation (14); a thread owns a column."""
    N, H, M = tail.shape
    for keys in values:
        launch = a_thread_each(keep_window, M, H, N)
        launch(*keys, setting.keys, tail, recent)

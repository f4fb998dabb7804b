"""The naive truth of relative attention: the score of every pair, with the equations of `relative`.

From a state come keys at j = -k to -1, as many as there were; all before them are at distance -k,
and of those only the number and the sum of the values are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..arrays import Array
from ..linear.reference import (
    State,
    as_state,
    guarded,
    linear_sums,
    linear_sums_backward,
    phi,
    phi_slope,
    quotient_backward,
    zero_state,
)
from ..recurrent.reference import final_state, final_state_backward
from ..visible import EVERYTHING, Visible, inside
from .setting import RelativeState


class Past(NamedTuple):
    """The values that queries see, the state's first: the tail as one, then the recent."""

    value: Array  # (N, H, J, M)
    position: Array  # (J,)
    counts: Array  # (N, 1, 1, J), how many keys a value is the sum of
    seen: Array  # (N, 1, Lq, J)


def relative_linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    relative_embedding: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: str = "elu",
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention with Shaw's relative positions, equations (1) to (6).

    Args:
        query: this and what is not named here as `linear_attention` takes it.
        relative_embedding: (H, 2k + 1, E) floats, row r + k for the distance r.
        score_map: "softplus", "exp" or "identity", see (4) to (6).
        relative_query: "feature" or "raw", see (2).
        initial_state: what a causal sequence continues from; None: nothing.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S0; Shaw et al. 2018, equations 3 and 4.
    """
    query, key, value, e = (np.asarray(x, dtype) for x in (query, key, value, relative_embedding))
    n, d = relative_sums(
        query, key, value, e, visible, score_map, relative_query, feature_map, initial_state
    )
    return n / guarded(d, guard, eps)[0][..., None]  # (3)


def relative_sums(
    query: Array,
    key: Array,
    value: Array,
    embedding: Array,
    visible: Visible,
    score_map: str,
    relative_query: str,
    feature_map: str,
    initial_state: RelativeState | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), both terms of both."""
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    state = None if initial_state is None else as_state(initial_state[:2], key.dtype)
    n, d = linear_sums(query, key, value, feature_map, seen, alive, state)
    past = with_the_past(value, seen, alive, initial_state)
    u = query if relative_query == "raw" else phi(query, feature_map)
    of_each = u @ embedding.swapaxes(-1, -2)  # (2)
    b, _ = at_distances(of_each, past.position, visible.query_offset)
    s = past.seen * score_weights(b, score_map)  # (2)
    return n + s @ past.value, d + np.sum(s * past.counts, axis=-1)  # (3)


def score_weights(b: Array, score_map: str) -> Array:
    """Returns f(b) of equations (4) to (6)."""
    return np.exp(np.where(b < 60, b, 60)) if score_map == "exp" else phi(b, score_map)


def score_slope(b: Array, score_map: str) -> Array:
    """Returns f'(b)."""
    return (b < 60) * score_weights(b, "exp") if score_map == "exp" else phi_slope(b, score_map)


def with_the_past(value: Array, seen: Array, alive: Array, state: RelativeState | None) -> Past:
    """Returns what there is to see: the keys of a state come before position 0."""
    N, _, Lk, _ = value.shape
    position, counts = np.arange(Lk), np.ones((N, 1, 1, Lk), value.dtype)
    if state is None:
        return Past(value, position, counts, seen)
    tail, recent = (np.asarray(x, value.dtype) for x in (state.tail, state.recent))
    k = recent.shape[2]
    window = np.arange(-k, 0)
    beyond = np.maximum(0, state.length - k).astype(value.dtype).reshape(N, 1, 1, 1)
    exists = window >= -np.reshape(state.length, (N, 1, 1, 1))  # (N, 1, 1, k)
    return Past(
        np.concatenate([tail[:, :, None], recent, value], axis=2),
        np.concatenate([[-np.iinfo(np.int32).max], window, position]),
        np.concatenate([beyond, np.ones((N, 1, 1, k), value.dtype), counts], axis=3),
        np.concatenate([alive[..., None], alive[..., None] & exists, seen], axis=3),
    )


def relative_linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    relative_embedding: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: str = "elu",
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[tuple[Array, Array, Array, Array], tuple[Array, Array, Array, Array] | None]:
    """The gradient of `relative_linear_attention`, equations (9) and (11) to (13).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and the rest as in `relative_linear_attention`.

    Returns:
        The gradients of query, key, value and relative_embedding; and those of S, Z, tail and
        recent, or None where there is no initial state.
    """
    g, query, key, v, e = (
        np.asarray(x, dtype) for x in (grad_output, query, key, value, relative_embedding)
    )
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    n, d = relative_sums(
        query, key, v, e, visible, score_map, relative_query, feature_map, initial_state
    )
    dn, dd = quotient_backward(alive[..., None] * g, n, d, guard, eps)

    q, k = phi(query, feature_map), phi(key, feature_map)
    state = None if initial_state is None else as_state(initial_state[:2], dtype)
    dq, dk, dv, (dS, dZ) = linear_sums_backward(dn, dd, q, k, v, seen, state)
    dq, dk = phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk

    past = with_the_past(v, seen, alive, initial_state)
    u, slope = (query, 1) if relative_query == "raw" else (q, phi_slope(query, feature_map))
    b, row = at_distances(u @ e.swapaxes(-1, -2), past.position, visible.query_offset)  # (2)
    s = past.seen * score_weights(b, score_map)  # (2)
    ds = past.seen * (dn @ past.value.swapaxes(-1, -2) + dd * past.counts)  # (9)
    db = ds * score_slope(b, score_map)  # (11)
    of_each_distance = [np.sum(db * (row == r), axis=-1) for r in range(e.shape[1])]
    dB = np.stack(of_each_distance, axis=-1)  # (N, H, Lq, 2k + 1)
    du = dB @ e  # (12)
    de = np.sum(dB.swapaxes(-1, -2) @ u, axis=0)  # (12)
    of_past = s.swapaxes(-1, -2) @ dn  # (13)
    before = of_past.shape[2] - v.shape[2]
    gradients = dq + slope * du, dk, dv + of_past[:, :, before:], de
    if initial_state is None:
        return gradients, None
    return gradients, (dS, dZ, of_past[:, :, 0], of_past[:, :, 1:before])


def relative_final_state(
    key: ArrayLike,
    value: ArrayLike,
    window: int,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: RelativeState | None = None,
    dtype: DTypeLike = np.float64,
) -> RelativeState:
    """The state after every valid key, equation (14) and those of `recurrent`.

    Args:
        key: this and what is not named here as `recurrent`'s `final_state` takes it.
        window: k, of relative embeddings of distances -k to k.
        initial_state: as in `relative_linear_attention`.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    start = initial_state or relative_zero_state(key, value, window)
    S, Z = final_state(
        key, value, feature_map=feature_map, key_lengths=key_lengths, initial_state=start[:2],
        dtype=dtype,
    )  # fmt: skip
    tail, recent = (np.asarray(x, dtype) for x in (start.tail, start.recent))
    parts = moved(start, value, key_lengths) @ np.concatenate([tail[:, :, None], recent, value], 2)
    length = start.length + inside(value, key_lengths).sum(axis=(1, 2))
    return RelativeState(S, Z, parts[:, :, 0], parts[:, :, 1:], length)


def moved(start: RelativeState, value: Array, key_lengths: ArrayLike | None) -> Array:
    """Returns which of all values, the state's first, each part of the next state adds up, (14).

    (N, 1, 1 + k, 1 + k + Lk) of 0 or 1: the tail and the window, of the tail, the window and the
    new values.
    """
    k = start.recent.shape[2]
    position = np.arange(-k - 1, value.shape[2])  # the tail's is -k - 1
    counts = inside(value, key_lengths).sum(axis=-1)[..., None, None]  # (N, 1, 1, 1)
    real = (position >= -np.reshape(start.length, counts.shape)) | (position < -k)
    part = np.maximum(0, position - counts + k + 1)
    return real & (position < counts) & (part == np.arange(1 + k)[:, None])


def relative_final_state_backward(
    grad_state: tuple[Array, Array, Array, Array],
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: RelativeState | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, tuple[Array, Array, Array, Array]]:
    """The gradient of `relative_final_state`.

    Args:
        grad_state: the gradients of S, Z, tail and recent.
        key: this and the rest as in `relative_final_state`.

    Returns:
        dk (N, H, Lk, E), dv (N, H, Lk, M), and the gradients of S, Z, tail and recent.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    of_tail, of_recent = (np.asarray(x, dtype) for x in grad_state[2:])
    window = of_recent.shape[2]
    dk, dv, (dS, dZ) = final_state_backward(
        grad_state[:2], key, value, feature_map=feature_map, key_lengths=key_lengths, dtype=dtype
    )
    start = initial_state or relative_zero_state(key, value, window)
    of_parts = np.concatenate([of_tail[:, :, None], of_recent], axis=2)
    shares = moved(start, value, key_lengths).swapaxes(-1, -2) @ of_parts  # (14)
    d_tail, d_recent, dv_of_parts = np.split(shares, [1, 1 + window], axis=2)
    return dk, dv + dv_of_parts, (dS, dZ, d_tail[:, :, 0], d_recent)


def relative_zero_state(key: Array, value: Array, window: int) -> RelativeState:
    """Returns the state of an empty sequence."""
    N, H, _, M = value.shape
    tail, recent = np.zeros((N, H, M), value.dtype), np.zeros((N, H, window, M), value.dtype)
    return RelativeState(*zero_state(key, value), tail, recent, np.zeros(N, np.int64))


def at_distances(of_each: Array, position: Array, query_offset: int) -> tuple[Array, Array]:
    """Returns what (N, H, Lq, 2k + 1) has for keys at positions (J,), and r_ij + k (Lq, J)."""
    k = of_each.shape[3] // 2
    i = np.arange(of_each.shape[2])[:, None]
    row = k + np.clip(position - i - query_offset, -k, k)  # (1)
    where = np.broadcast_to(row, (*of_each.shape[:2], *row.shape))
    return np.take_along_axis(of_each, where, -1), row

"""The naive truth of Fourier attention: the angle of every pair, with the equations of `fourier`.

A state cannot hold the harmonics of pairs; it holds sums over features of (5) and (7), and so

    n_i += S_0^T Q_i                           d_i += Z_0 . Q_i  (plain: Z_0 . q_i)           (15)
    S = S_0 + sum_j K_j v_j^T                  Z = Z_0 + sum_j K_j  (plain: of k_j)           (16)
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
    phi,
    phi_slope,
    quotient_backward,
)
from ..recurrent.reference import final_state_backward
from ..visible import EVERYTHING, Visible, inside


class Fourier(NamedTuple):
    """Where queries and keys stand, and the harmonics of the distance between them.

    `query_positions` p is (N, Lq, P) and `key_positions` r (N, Lk, P), or (1, Lq, P) and (1, Lk, P)
    for the whole batch; `frequency` a is (H, E, P), `phase` b and `amplitude` c are (H, E).
    """

    query_positions: Array
    key_positions: Array
    frequency: Array
    phase: Array
    amplitude: Array


Side = tuple[Array, Array, Array, Array]  # positions, frequency, phase, amplitude


def fourier_linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    fourier: Fourier,
    visible: Visible = EVERYTHING,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention with Fourier relative positions, equations (1), (2), (7) to (9) and (14).

    Args:
        query: this and what is not named here as `linear_attention` takes it.
        fourier: positions, frequencies, phases and amplitudes.
        form: "one_plus_cos" or "cos", see (7).
        denominator: "rotated" or "plain", see (9), or "none", see (14).
        initial_state: S_0 (N, H, D, M), and Z_0 (N, H, D), or (N, H, E) if `denominator` is
            "plain"; D is 3E, or 2E if `form` is "cos". None: zeros.
        dtype: the dtype of all arithmetic but that of angles, which is float64 at least.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S2.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    n, d = fourier_sums(
        query, key, value, fourier, visible, form, denominator, feature_map, initial_state
    )
    return n / guarded(d, _guard(denominator, guard), eps)[0][..., None]  # (8), (14)


def fourier_sums(
    query: Array,
    key: Array,
    value: Array,
    fourier: Fourier,
    visible: Visible,
    form: str,
    denominator: str,
    feature_map: str,
    initial_state: State | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), equations (1), (2) and (7) to (9)."""
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    q, k = alive[..., None] * phi(query, feature_map), phi(key, feature_map)
    p, r, a, b, c = (np.asarray(x, np.result_type(q.dtype, np.float64)) for x in fourier)
    difference = p[:, :, None] - r[:, None]  # (N, Lq, Lk, P)
    angle = b[:, None, None] + np.einsum("hep,nijp->nhije", a, difference)
    dP = (c[:, None, None] * np.cos(angle)).astype(q.dtype)  # (1)
    f = 1 + dP if form == "one_plus_cos" else dP  # (7)
    rotated = seen * np.einsum("nhie,nhje,nhije->nhij", q, k, f)  # (2)
    d_terms = seen * (q @ k.swapaxes(-1, -2)) if denominator == "plain" else rotated
    n, d = rotated @ value, np.sum(d_terms, axis=-1)  # (8), (9)
    if initial_state is None:
        return n, d
    S, Z = as_state(initial_state, q.dtype)
    Q = fourier_features(q, p, a, b, c, form)  # (5), (7)
    return n + Q @ S, d + ((q if denominator == "plain" else Q) @ Z[..., None])[..., 0]  # (15)


def fourier_features(
    x: Array, positions: Array, frequency: Array, phase: Array, amplitude: Array, form: str
) -> Array:
    """Returns the features that states hold, equations (5) and (7): (N, H, L, D), D = 3E or 2E.

    Those of keys have a phase of 0 and an amplitude of 1.
    """
    cos, sin = _circle(x, positions, frequency, phase)
    c = amplitude[:, None].astype(x.dtype)
    parts = [c * x * cos, c * x * sin, x]
    return np.concatenate(parts if form == "one_plus_cos" else parts[:2], axis=-1)  # (5), (7)


def fourier_features_backward(
    grad: Array, x: Array, positions: Array, frequency: Array, phase: Array, amplitude: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """The gradient of `fourier_features`, in the order of its arguments; (10) to (13)."""
    E = x.shape[-1]
    cos, sin = _circle(x, positions, frequency, phase)
    c = amplitude[:, None].astype(x.dtype)
    of_cos, of_sin = grad[..., :E], grad[..., E : 2 * E]
    rest = grad[..., 2 * E :] if grad.shape[-1] > 2 * E else 0
    h = of_cos * cos + of_sin * sin  # (10)
    dangle = c * x * (of_sin * cos - of_cos * sin)  # (10)
    dpositions = np.einsum("nhie,hep->nip", dangle, frequency)  # (12)
    if len(positions) == 1:
        dpositions = np.sum(dpositions, axis=0, keepdims=True)
    places = np.broadcast_to(positions, (len(x), *positions.shape[1:]))
    dfrequency = np.einsum("nhie,nip->hep", dangle, places)  # (13)
    dphase, damplitude = dangle.sum((0, 2)), (x * h).sum((0, 2))  # (12), (11)
    return c * h + rest, dpositions, dfrequency, dphase, damplitude  # (11)


def _circle(x: Array, positions: Array, frequency: Array, phase: Array) -> tuple[Array, Array]:
    """Cosine and sine, in the dtype of x, of angles in float64 at least: (N or 1, H, L, E)."""
    angle = phase[:, None] + np.einsum("hep,nip->nhie", frequency, positions)
    return np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)


def fourier_linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    fourier: Fourier,
    visible: Visible = EVERYTHING,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    initial_state: State | None = None,
    grad_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[tuple[Array, Array, Array], Fourier, State]:
    """The gradient of `fourier_linear_attention` and of `fourier_final_state`.

    It goes by way of the features (5), which is short; what proves it are the complex steps of the
    tests, for which (1), (2) and (7) to (9) are enough.

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and the rest as in `fourier_linear_attention`.
        grad_state: the gradient of the final state; None: zeros.

    Returns:
        The gradients of query, key and value; those of everything in `fourier`; and of the initial
        state, as they are at zero where it is None.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen, alive = visible.mask(query, key), inside(query, visible.query_lengths)
    n, d = fourier_sums(
        query, key, v, fourier, visible, form, denominator, feature_map, initial_state
    )
    dn, dd = quotient_backward(alive[..., None] * g, n, d, _guard(denominator, guard), eps)

    q, k = phi(query, feature_map), phi(key, feature_map)
    of_query, of_key = fourier_sides(fourier, dtype)
    Q, K = fourier_features(q, *of_query, form), fourier_features(k, *of_key, form)  # (5), (7)
    zero, ends = fourier_zero_state(k, v, form, denominator), (initial_state, grad_state)
    (S, Z), (G, h) = (zero if state is None else as_state(state, dtype) for state in ends)

    def back(
        gn: Array, gd: Array, q: Array, k: Array, v: Array, start: State, end: State
    ) -> tuple[Array, Array, Array, State]:
        """The gradient of linear attention's sums and of its final state, for features q and k."""
        dq, dk, dv, (dS, dZ) = sums_backward(gn, gd, q, k, v, seen, start)
        dk_of_state, dv_of_state, (G, h) = final_state_backward(
            end, k, v, feature_map="identity", key_lengths=visible.key_lengths, dtype=dtype
        )
        return dq, dk + dk_of_state, dv + dv_of_state, (dS + G, dZ + h)

    if denominator != "plain":
        dQ, dK, dv, (dS, dZ) = back(dn, dd, Q, K, v, (S, Z), (G, h))
        dq, dk = 0 * q, 0 * k
    else:  # the denominators are the numerators of plain attention to a value of 1
        none, one, no_Z = 0 * dd, np.ones_like(v[..., :1]), 0 * S[..., 0]
        dQ, dK, dv, (dS, _) = back(dn, none, Q, K, v, (S, no_Z), (G, no_Z))
        dq, dk, _, (dZ, _) = back(dd, none, q, k, one, (Z[..., None], 0 * Z), (h[..., None], 0 * Z))
        dZ = dZ[..., 0]
    dq_rotated, dp, da, db, dc = fourier_features_backward(dQ, q, *of_query)
    dk_rotated, dr, da_of_keys, _, _ = fourier_features_backward(dK, k, *of_key)
    dq = phi_slope(query, feature_map) * (dq + dq_rotated)
    dk = phi_slope(key, feature_map) * (dk + dk_rotated)
    return (dq, dk, dv), Fourier(dp, dr, da + da_of_keys, db, dc), (dS, dZ)


def sums_backward(
    gn: Array, gd: Array, q: Array, k: Array, v: Array, seen: Array, start: State
) -> tuple[Array, Array, Array, State]:
    """As `linear_sums_backward`, by way of S_i and Z_i: each feature has a sum of its own.

    An angle's gradient is a difference of those of two features. By a pair's weight, which both
    would have as a factor, it would be exact where the kernels' is a difference of roundings, and
    the reference could not tell how large these are.
    """
    each = np.einsum("nhjd,nhjm->nhjdm", k, v)
    S = start[0][:, :, None] + np.einsum("nhij,nhjdm->nhidm", seen, each)  # (16), of each query
    Z = start[1][:, :, None] + seen @ k  # (16)
    each = np.einsum("nhid,nhim->nhidm", q, gn)
    R, r = np.einsum("nhij,nhidm->nhjdm", seen, each), seen.swapaxes(-1, -2) @ (q * gd)
    dq = np.einsum("nhidm,nhim->nhid", S, gn) + Z * gd
    dk, dv = np.einsum("nhjdm,nhjm->nhjd", R, v) + r, np.einsum("nhjdm,nhjd->nhjm", R, k)
    return dq, dk, dv, (np.sum(each, axis=2), np.sum(q * gd, axis=2))


def fourier_final_state(
    key: ArrayLike,
    value: ArrayLike,
    fourier: Fourier,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    dtype: DTypeLike = np.float64,
) -> State:
    """The state after every valid key, equation (16).

    Args:
        key: this and the rest as `fourier_linear_attention` and `final_state` take it.

    Returns:
        S and Z, of the shapes of `initial_state`.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    k = phi(key, feature_map)
    K = fourier_features(k, *fourier_sides(fourier, dtype)[1], form)
    zero = fourier_zero_state(k, value, form, denominator)
    S, Z = zero if initial_state is None else as_state(initial_state, dtype)
    valid = inside(key, key_lengths)[..., None]
    S = S + (valid * K).swapaxes(-1, -2) @ value  # (16)
    return S, Z + np.sum(valid * (k if denominator == "plain" else K), axis=-2)  # (16)


def _guard(denominator: str, guard: str) -> str:
    return "none" if denominator == "none" else guard  # (14)


def fourier_sides(fourier: Fourier, dtype: DTypeLike) -> tuple[Side, Side]:
    """Positions, frequency, phase and amplitude of the queries, and those of the keys."""
    p, r, a, b, c = (np.asarray(x, np.result_type(dtype, np.float64)) for x in fourier)
    return (p, a, b, c), (r, a, 0 * b, 1 + 0 * c)


def fourier_zero_state(k: Array, v: Array, form: str, denominator: str) -> State:
    """Returns the state of an empty sequence."""
    N, H, _, E = k.shape
    D = 3 * E if form == "one_plus_cos" else 2 * E
    Z = np.zeros((N, H, E if denominator == "plain" else D), k.dtype)
    return np.zeros((N, H, D, v.shape[-1]), k.dtype), Z


def cosformer(x: ArrayLike, positions: ArrayLike, longest: int) -> Array:
    """Features of cosFormer for rows x (..., L, E) at positions (L,): relu(x) cos, relu(x) sin.

    The angles are pi p / (2 longest).

    Source: Qin et al. 2022, equations 8 to 10.
    """
    x = np.asarray(x)
    theta = (np.pi / (2 * longest) * np.asarray(positions, np.float64)[:, None]).astype(x.dtype)
    return np.concatenate([phi(x, "relu") * np.cos(theta), phi(x, "relu") * np.sin(theta)], axis=-1)

r"""Linear attention with Fourier relative positions, in linear cost (S2).

Query i stands at p_i, key j at r_j: vectors of P numbers, such as a time, or a place in an image.
How much feature e of key j weighs for query i depends on the distance, by one harmonic for each e:

    dP_ije = c_e cos(b_e + a_e . (p_i - r_j))                                           (1)
    s_ij   = w_ij sum_e q_ie k_je dP_ije              q = phi(query), k = phi(key)      (2)

with a frequency a_e, a phase b_e and an amplitude c_e, all learned; w_ij is 1 where query i sees
key j, else 0. For P = 1 the weight is a Fourier series of the time difference: with enough
harmonics it comes close to any function of it (`minitransformer experiment expressivity` draws how
close).

The array dP, of size Lq x Lk x E, is never built. The angle of a pair is one of the query less one
of the key, and the cosine of a difference splits:

    t_ie = b_e + a_e . p_i                            u_je = a_e . r_j                  (3)
    cos(t - u) = cos t cos u + sin t sin u                                              (4)

so s_ij is an inner product of features that a query and a key have each on its own,

    Q_i = [c q_i cos t_i, c q_i sin t_i]              K_j = [k_j cos u_j, k_j sin u_j]  (5)
    s_ij = w_ij Q_i . K_j                                                               (6)

of 2E numbers (products are number by number). That is linear attention of other features: every
algorithm of it applies, and so do its states, of size 2E x M, for decoding.

The weights (1) have either sign, and with them the denominator, which may come near zero. With
|c_e| <= 1 and positive features

    form "one_plus_cos":    1 + dP_ije in the place of dP_ije                           (7)

has no such trouble. As 1 = 1 * 1, a third part does it: q_i in Q_i, k_j in K_j, 3E numbers in all.
Its price: such weights have no sharp peaks, however many harmonics there are.

    o_i = n_i / guard(d_i)                            n_i = sum_j s_ij v_j              (8)
    d_i = sum_j s_ij   ("rotated")        or          sum_j w_ij q_i . k_j  ("plain")   (9)

The plain denominator, that of Su et al. (2021), is positive under both forms, but then the weights
of a row do not add up to 1. It is the numerator of an attention without positions to values of 1.

Backward, given dQ_i = [x_i, y_i, z_i] from the attention (z_i only for "one_plus_cos"):

    h_i  = x_i cos t_i + y_i sin t_i                  dt_i = c q_i (y_i cos t_i - x_i sin t_i)  (10)
    dq_i = c h_i + z_i                                dc   = sum_i q_i h_i                      (11)
    db   = sum_i dt_i                                 dp_i = sum_e dt_ie a_e                    (12)
    da_e = sum_i dt_ie p_i + sum_j du_je r_j                                                    (13)

and for keys the same with b = 0 and c = 1. Moving all positions by as much changes nothing, so the
gradients of all positions add up to zero; and so do, for each e, all dt_ie and du_je. (13) may then
measure positions from anywhere, and does so from the first key: far from zero, large terms would
cancel. Only where there is a state, which remembers angles, it measures from zero.

An angle a . p of float32 is wrong by 6e-8 of itself: by 0.06 where p is 1e6. Angles are computed in
float64 therefore, brought near zero by whole turns, and only their sines and cosines have the dtype
of the rest. They take time: they are computed once, and kept for the backward.

The formula as S2 prints it has no denominator, so that no gradient comes back through one:

    o_i = n_i          denominator "none"                                               (14)

It is a sum over the keys where (8) is a mean of them: with one q and one k for all tokens, the
convolution of the values with the filter (1). What it gives grows with the number of keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import algorithms, recurrent
from ..arrays import Array, array_module, chosen, lengths_or_full, version_of
from ..checks import QKV, host, one_of, whole
from ..guards import GUARDS, divided, normaliser_gradients
from ..recurrent import LinearState
from ..visible import EVERYTHING, Visible, own_lengths
from . import fast, plain

PARTS = {"one_plus_cos": 3, "cos": 2}  # of E features each
WAVES: dict[str, Any] = {"frequency": "H E P any", "phase": "H E any", "amplitude": "H E any"}
DENOMINATORS = "rotated", "plain", "none"


class FourierState(NamedTuple):
    """The state of causal Fourier attention, after some keys.

    S is `(N, H, D, M)` with D = 3E, or 2E for form "cos". Z is `(N, H, D)`, or `(N, H, E)` for the
    plain denominator.
    """

    S: Array
    Z: Array


class Features(NamedTuple):
    """Q or K of equation (5) `(N, H, L, D)`, and of its angles `(N or 1, H, L, E)` cos and sin."""

    rows: Array
    cos: Array
    sin: Array


class Saved(NamedTuple):
    """What `forward` leaves for `backward`."""

    query: Features
    key: Features


class FourierGradients(NamedTuple):
    """The gradients of `forward`, of the shapes of its inputs; those of positions are float64."""

    query: Array
    key: Array
    value: Array
    query_positions: Array
    key_positions: Array
    frequency: Array
    phase: Array
    amplitude: Array
    state: FourierState | None


@host(positions="N L P any", frequency="H E P any", phase="H E any")
def circle(
    positions: Array, frequency: Array, phase: Array, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Cosines and sines of the angles (3) `(N, H, L, E)`, numbers of a dtype.

    Args:
        positions: `(N, L, P)`; this and the rest are taken as float64.
        frequency: `(H, E, P)`.
        phase: `(H, E)`.
        dtype: of the results.
    """
    (N, L, _), (H, E), xp = positions.shape, phase.shape, array_module(positions)
    cos, sin = (xp.empty((N, H, L, E), dtype) for _ in range(2))
    p, a, b = (xp.asarray(x, xp.float64) for x in (positions, frequency, phase))
    fast.circle(p, a, b, cos, sin)
    return cos, sin


@host(x="N H L E", cos="N? H L E", sin="N? H L E", amplitude="H E")
def turned(
    x: Array, cos: Array, sin: Array, amplitude: Array, *, form: str, feature_map: str
) -> Array:
    """Q of equations (5) and (7) `(N, H, L, D)`, of cosines and sines `(N or 1, H, L, E)`."""
    rows = array_module(x).empty((*x.shape[:3], PARTS[form] * x.shape[3]), x.dtype)
    fast.features(x, cos, sin, amplitude, feature_map, rows)
    return rows


@host(
    parts=False, x="N H L E", positions="N? L P any", frequency="H E P any", phase="H E any",
    amplitude="H E any",
)  # fmt: skip
def features(
    x: Array,
    positions: Array,
    frequency: Array,
    phase: Array | None = None,
    amplitude: Array | None = None,
    *,
    form: str = "one_plus_cos",
    feature_map: str = "elu",
) -> Features:
    """Q of equations (5) and (7), or K, which has neither phase nor amplitude.

    Args:
        x: `(N, H, L, E)`, queries or keys, float32 or float64.
        positions: `(N, L, P)`, or `(1, L, P)` for the whole batch; taken as float64.
        frequency: `(H, E, P)`, in radians for each unit of the positions.
        phase: `(H, E)`, in radians; None is 0.
        amplitude: `(H, E)`; None is 1.
        form: "one_plus_cos" for 3E features, "cos" for 2E.
        feature_map: phi, a name of `feature_maps`.

    Returns:
        The features `(N, H, L, D)`, and what `features_backward` needs.

    Raises:
        ValueError: there is no such form, or shapes do not fit.
    """
    (_, H, _, E), xp = x.shape, array_module(x)
    chosen("form", form, PARTS)
    phase = xp.zeros((H, E)) if phase is None else phase
    c = xp.ones((H, E), x.dtype) if amplitude is None else xp.asarray(amplitude, x.dtype)
    cos, sin = circle(positions, frequency, phase, x.dtype)
    return Features(turned(x, cos, sin, c, form=form, feature_map=feature_map), cos, sin)


@host(
    x="N H L E", positions="N? L P any", frequency="H E P any", amplitude="H E any",
    grad="N H L D", saved={"rows": "N H L D", "cos": "N? H L E", "sin": "N? H L E"},
    lengths="N int", origin="N? P any",
)  # fmt: skip
def features_backward(
    grad: Array,
    x: Array,
    positions: Array,
    frequency: Array,
    amplitude: Array | None,
    saved: Features,
    *,
    lengths: Array | None = None,
    origin: Array | None = None,
    feature_map: str = "elu",
    version: str = "fast",
) -> tuple[Array, ...]:
    """The gradients of `features`, equations (10) to (13).

    Args:
        grad: `(N, H, L, D)`, the gradient of the features.
        x: this and the rest as `features` took it.
        saved: what `features` returned.
        lengths: `(N,)` integers, the rows that count; None: all.
        origin: `(N, P)` or `(1, P)`, from where (13) measures positions; None: from zero.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The gradients of x; and in float64 those of positions, frequency, phase and amplitude: the
        last is None where the amplitude is.
    """
    N, H, L, E = x.shape
    xp, kernels = array_module(x), version_of(version, fast=fast, plain=plain)
    if grad.shape[3] not in (2 * E, 3 * E):
        raise ValueError(
            f"fourier.features_backward: grad must have 2E = {2 * E} or 3E = {3 * E} columns, got "
            f"{grad.shape}"
        )
    if lengths is not None and array_module(lengths) is np:  # to look at a GPU's would take a wait
        lengths = own_lengths("fourier.features_backward", "lengths", lengths, x)
    counts = lengths_or_full(lengths, N, L, x)
    c = xp.ones((H, E), x.dtype) if amplitude is None else xp.asarray(amplitude, x.dtype)
    dx, dangle, damplitude = kernels.feature_gradient(
        grad, x, saved.cos, saved.sin, c, counts, feature_map
    )
    # A phase is the frequency of one more coordinate, which is 1 everywhere.
    places = xp.asarray(positions, xp.float64)
    if origin is not None:
        places = places - origin[:, None]
    ones = xp.ones((*places.shape[:2], 1))
    slopes = kernels.moments(dangle, xp.concatenate((places, ones), axis=2), counts)  # (12), (13)
    dfrequency, dphase = slopes[:, :-1].swapaxes(1, 2), slopes[:, -1]
    dc = None if amplitude is None else kernels.moments(damplitude, ones, counts)[:, 0]  # (11)
    by_coordinate = xp.asarray(frequency, x.dtype).transpose(2, 0, 1)
    dpositions = kernels.position_gradient(dangle, by_coordinate, counts)
    if len(positions) == 1:
        dpositions = dpositions.sum(axis=0, keepdims=True)
    return dx, dpositions.astype(xp.float64), dfrequency, dphase, dc


def cosformer(longest: int, heads: int, head_dim: int) -> tuple[Array, Array, Array]:
    """Frequency, phase and amplitude with which Fourier attention is cosFormer.

    cosFormer weighs relu(q_i) . relu(k_j) with cos(pi/2 (i - j) / T), where T is at least the
    length of any sequence: that is form "cos", feature map "relu", and the same harmonic for all e.

    Args:
        longest: T.
        heads: H.
        head_dim: E.

    Returns:
        a = pi / (2T) `(H, E, 1)`, b = 0 and c = 1 `(H, E)`, NumPy float64.

    Source: Qin et al. 2022, equation 10.
    """
    whole("fourier.cosformer", "longest", longest, 1)
    ones = np.ones((heads, head_dim))
    return math.pi / (2 * longest) * ones[..., None], 0 * ones, ones


@host(parts=False, **QKV, query_positions="N? Lq P any", key_positions="N? Lk P any", **WAVES)
def forward(
    query: Array,
    key: Array,
    value: Array,
    query_positions: Array,
    key_positions: Array,
    frequency: Array,
    phase: Array,
    amplitude: Array,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    initial_state: FourierState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array, Saved, FourierState | None]:
    """Linear attention with Fourier relative positions, equations (1) to (9).

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        query_positions: p `(N, Lq, P)`, or `(1, Lq, P)` for the whole batch; taken as float64.
        key_positions: r `(N, Lk, P)` or `(1, Lk, P)`.
        frequency: a `(H, E, P)`, in radians for each unit of the positions.
        phase: b `(H, E)`, in radians.
        amplitude: c `(H, E)`.
        visible: who sees whom. Packed sequences have positions `(1, T, P)`.
        algorithm: "naive", "linear" (not causal), "recurrent" or "chunked" (both causal).
        form: "one_plus_cos", or "cos", whose denominators may have either sign (guard "signed").
        denominator: "rotated" or "plain", see (9), or "none", see (14).
        feature_map: phi, a name of `feature_maps`.
        initial_state: what causal sequences continue from; zeros where None.
        guard: what keeps the denominator, if any, off zero: "clamp", "add" or "signed".
        eps: the guard's size; None for its default.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output `(N, H, Lq, M)`, the sums d of (9) `(N, H, Lq)`, what `backward` needs beside
        these, and the state after the last key, None where the algorithm has none.

    Raises:
        ValueError: there is no such form or denominator, or shapes do not fit.

    Source: S2.
    """
    one_of("fourier", "denominator", denominator, DENOMINATORS)
    rotated = {"form": form, "feature_map": feature_map}
    q = features(query, query_positions, frequency, phase, amplitude, **rotated)
    k = features(key, key_positions, frequency, **rotated)
    past, plain_past = _linear_states(initial_state, denominator)
    sums: dict[str, Any] = {
        "visible": visible, "algorithm": algorithm, "guard": "none", "version": version,
    }  # fmt: skip
    n, d, state = algorithms.forward(
        q.rows, k.rows, value, feature_map="identity", initial_state=past, **sums
    )
    plain_state = None
    if denominator == "plain":
        n_of_ones, _, plain_state = algorithms.forward(
            query, key, _ones(value), feature_map=feature_map, initial_state=plain_past, **sums
        )
        d = n_of_ones[..., 0]  # (9)
    output = divided(n, d, guard=_guard(denominator, guard), eps=eps)  # (8), (14)
    return output, d, Saved(q, k), _fourier_state(state, plain_state)


@host(
    parts=False, **QKV, query_positions="N? Lq P any", key_positions="N? Lk P any", **WAVES,
    grad_output="N H Lq M", output="N H Lq M", d="N H Lq",
)  # fmt: skip
def backward(
    grad_output: Array,
    grad_state: FourierState | None,
    query: Array,
    key: Array,
    value: Array,
    query_positions: Array,
    key_positions: Array,
    frequency: Array,
    phase: Array,
    amplitude: Array,
    output: Array,
    d: Array,
    saved: Saved,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    initial_state: FourierState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> FourierGradients:
    """The gradients of `forward`, equations (10) to (13).

    Args:
        grad_output: `(N, H, Lq, M)`, the gradient of the output.
        grad_state: the gradient of the final state, or None.
        query: this and all the rest as `forward` took and returned it; d are the denominators, and
            form is not looked at: the width of the saved features tells it.

    Returns:
        The gradients of all inputs, and of the initial state or None. Those of positions are
        float64, and summed over the batch where it shares its positions.
    """
    one_of("fourier", "denominator", denominator, DENOMINATORS)
    gn, gd = normaliser_gradients(
        grad_output, output, d, key, visible, initial_state=initial_state,
        guard=_guard(denominator, guard), eps=eps,
    )  # fmt: skip
    visible, query = visible.of_seen_keys(query, key, grad_state).sighted(
        query, key, state=initial_state
    )
    none = array_module(gd).zeros_like(gd)
    past, plain_past = _linear_states(initial_state, denominator)
    end, plain_end = _linear_states(grad_state, denominator)
    sums: dict[str, Any] = {"visible": visible, "algorithm": algorithm, "version": version}
    alone = initial_state is None and grad_state is None and key.shape[2] > 0
    origin = array_module(gd).nan_to_num(key_positions[:, 0]) if alone else None
    chosen: dict[str, Any] = {"origin": origin, "feature_map": feature_map, "version": version}
    dQ, dK, dvalue, dstate = algorithms.gradients(
        gn, none if denominator == "plain" else gd, end, saved.query.rows, saved.key.rows, value,
        feature_map="identity", initial_state=past, **sums,
    )  # fmt: skip
    dquery, dp, da_of_queries, db, dc = features_backward(
        dQ, query, query_positions, frequency, amplitude, saved.query,
        lengths=visible.query_lengths, **chosen,
    )  # fmt: skip
    dkey, dr, da_of_keys, _, _ = features_backward(
        dK, key, key_positions, frequency, None, saved.key,
        lengths=visible.key_lengths, **chosen,
    )  # fmt: skip
    plain_dstate = None
    if denominator == "plain":
        more_dquery, more_dkey, _, plain_dstate = algorithms.gradients(
            gd[..., None], none, plain_end, query, key, _ones(value),
            feature_map=feature_map, initial_state=plain_past, **sums,
        )  # fmt: skip
        dquery, dkey = dquery + more_dquery, dkey + more_dkey
    waves = (da_of_queries + da_of_keys, frequency), (db, phase), (dc, amplitude)  # (13)
    da, db, dc = (dx.astype(x.dtype if x.dtype.kind == "f" else np.float64) for dx, x in waves)
    grad_initial = _fourier_state(dstate, plain_dstate)
    return FourierGradients(dquery, dkey, dvalue, dp, dr, da, db, dc, grad_initial)


@host(
    query="N H E", key="N H E", value="N H M", query_position="N? P any", key_position="N? P any",
    **WAVES, state={"S": "N H D M", "Z": "N H F"},
)  # fmt: skip
def step(
    query: Array,
    key: Array,
    value: Array,
    query_position: Array,
    key_position: Array,
    frequency: Array,
    phase: Array,
    amplitude: Array,
    state: FourierState | None,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, FourierState]:
    """One token of `forward`: constant time and memory, however long the past.

    Args:
        query: `(N, H, E)`.
        key: `(N, H, E)`.
        value: `(N, H, M)`.
        query_position: `(N, P)`, or `(1, P)` for the whole batch; taken as float64.
        key_position: `(N, P)` or `(1, P)`.
        frequency: this and the rest as in `forward`.
        state: the state before this token; zeros where None. It is not modified.

    Returns:
        The output `(N, H, M)` and the next state.
    """
    one_of("fourier", "denominator", denominator, DENOMINATORS)
    q, k = (
        features(
            x[:, :, None], place[:, None], frequency, *rest, form=form, feature_map=feature_map
        ).rows[:, :, 0]
        for x, place, *rest in ((query, query_position, phase, amplitude), (key, key_position))
    )
    past, plain_past = _linear_states(state, denominator)
    guard = _guard(denominator, guard)
    if denominator != "plain":
        output, after = recurrent.step(
            q, k, value, past, feature_map="identity", guard=guard, eps=eps
        )  # (8), (14)
        return output, FourierState(*after)
    n, after = recurrent.step(q, k, value, past, feature_map="identity", guard="none")
    d, plain_after = recurrent.step(
        query, key, _ones(value), plain_past, feature_map=feature_map, guard="none"
    )  # (9)
    output = divided(n[:, :, None], d, guard=guard, eps=eps)[:, :, 0]  # (8)
    return output, FourierState(after.S, plain_after.S[..., 0])


def _guard(denominator: str, guard: str) -> str:
    """The guard of the quotient (8); that of (14) divides by 1."""
    chosen("guard", guard, GUARDS)
    return "none" if denominator == "none" else guard


def _ones(value: Array) -> Array:
    """A 1 for each value: the numerator of an attention to these is the plain denominator."""
    return array_module(value).ones((*value.shape[:-1], 1), value.dtype)


def _linear_states(
    state: FourierState | None, denominator: str
) -> tuple[LinearState | None, LinearState | None]:
    """The states of the rotated attention, and of that which is the plain denominator."""
    if state is None:
        return None, None
    S, Z = state
    if denominator != "plain":
        return LinearState(S, Z), None
    xp = array_module(S)
    return LinearState(S, xp.zeros_like(S[..., 0])), LinearState(Z[..., None], xp.zeros_like(Z))


def _fourier_state(rotated: LinearState | None, plain: LinearState | None) -> FourierState | None:
    """The inverse of `_linear_states`."""
    if rotated is None:
        return None
    return FourierState(rotated.S, rotated.Z if plain is None else plain.S[..., 0])

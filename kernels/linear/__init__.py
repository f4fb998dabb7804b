r"""Bidirectional linear attention in linear time, and the quadratic form of both directions.

Linear attention puts the product of two features in the place of exp(q_i . k_j) (Katharopoulos et
al. 2020; S1). With q_i = phi(Q_i), k_j = phi(K_j), and w_ij = 1 where query i sees key j, else 0,

    a_ij = w_ij q_i . k_j                                                                      (1)
    n_i  = sum_j a_ij v_j                      d_i = sum_j a_ij                                (2)
    o_i  = n_i / guard(d_i)                                                                    (3)

Backward, given g_i = dLoss/do_i. `normaliser_gradients` takes it through (3), to gn_i = dLoss/dn_i
and gd_i = dLoss/dd_i. Both sums of (2) are linear in a_ij:

    da_ij = w_ij (gn_i . v_j + gd_i)                                                           (4)
    dq_i  = sum_j da_ij k_j                    dk_j = sum_i da_ij q_i                          (5)
    dv_j  = sum_i a_ij gn_i                                                                    (6)

and dQ = dq phi'(Q), dK = dk phi'(K). All three are one sum with different actors,

    y_i = sum_j w_ij (A_i . B_j + a_i b_j) C_j                                                 (7)

               A    B    C    a    b
        dq     gn   v    k    gd   1
        dk     v    gn   q    1    gd
        dv     k    q    gn   0    0

The naive kernels compute (7) as it stands, tile by tile, so that no Lq x Lk matrix is in memory;
the time grows with Lq x Lk all the same.

Where every query sees every key, w_ij only says which rows exist, and the brackets can be moved:

    X = sum_j C_j B_j^T                        z = sum_j b_j C_j                               (8)
    y_i = X A_i + a_i z                                                                        (9)

in the time of Lq + Lk. Forward, the sums are S = sum_j k_j v_j^T and Z = sum_j k_j, and

    n_i = S^T q_i                              d_i = q_i . Z                                  (10)

Backward needs them again, and R = sum_i q_i gn_i^T and U = sum_i gd_i q_i:

    dq_i = S gn_i + gd_i Z           dk_j = R v_j + U           dv_j = R^T k_j                (11)
"""

from __future__ import annotations

from ..arrays import Array, array_module, contiguous, outputs_of, per_row, version_of
from ..checks import QKV, host
from ..feature_maps import elementwise_features
from ..guards import eps_or_default
from ..visible import EVERYTHING, Visible, blank
from . import fast, plain


@host(**QKV)
def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array]:
    """Bidirectional linear attention, equations (8), (10) and (3), in time O((Lq + Lk) E M).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        visible: how many queries and keys count; causal it cannot be.
        feature_map: a name of `feature_maps`; "identity" where query and key are features.
        guard: what keeps the denominator off zero: "clamp", "add", "signed", or "none".
        eps: the guard's size; None for its default.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output (N, H, Lq, M), and d of equation (2) (N, H, Lq), which the backward needs.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: M is above 256, the sequences are causal or packed, or there is no such
            version.

    Source: Katharopoulos et al. 2020, equations 4 and 5; S1.

    Example: the second key has twice the features of the first, phi(0) = 1 and phi(1) = 2.
        >>> import numpy as np
        >>> query, key = np.zeros((1, 1, 1, 1)), np.array([[[[0.0], [1.0]]]])
        >>> forward(query, key, np.array([[[[3.0], [6.0]]]]))[0].item()
        5.0
    """
    kernels = version_of(version, fast=fast, plain=plain)
    visible, query = visible.sighted(query, key)
    query, key, value = contiguous(query, key, value)
    queries, keys = _lengths(visible, query, key)
    S, _, Z = kernels.sums(key, value, per_row(key, 1), keys, feature_map)
    output, denominator = outputs_of(query, value)
    eps = eps_or_default(guard, eps, query)
    kernels.forward(query, S, Z, queries, eps, feature_map, guard, output, denominator)
    blank(visible.query_lengths, output, denominator)
    return output, denominator


def _lengths(visible: Visible, query: Array, key: Array) -> tuple[Array, Array]:
    """The lengths of queries and keys that see all of each other."""
    if visible.causal:
        raise ValueError(
            "linear attention in both directions is not causal; causal are 'recurrent', 'chunked' "
            "and 'naive'"
        )
    return visible.lengths(query, key)


@host(**QKV, gn="N H Lq M", gd="N H Lq")
def gradients(
    gn: Array,
    gd: Array,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    version: str = "fast",
) -> tuple[Array, Array, Array]:
    """The gradients of the numerators and denominators of `forward`, equations (8) and (11).

    Args:
        gn: (N, H, Lq, M), the gradient of n; zero in rows that are padding or see nothing.
        gd: (N, H, Lq), the gradient of d, likewise.
        query: this and all the rest as in `forward`.

    Returns:
        The gradients of query, key and value.

    Raises:
        ValueError: E or M is above 256, the sequences are causal or packed, or there is no such
            version.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    visible, query, gn, gd = visible.of_seen_keys(query, key).sighted(query, key, gn, gd)
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    queries, keys = _lengths(visible, query, key)
    ones, zeros = per_row(key, 1), per_row(key, 0)
    _, S_transposed, Z = kernels.sums(key, value, ones, keys, feature_map)
    R, R_transposed, U = kernels.sums(query, gn, gd, queries, feature_map)
    dq = kernels.gradient(gn, S_transposed, gd, Z, queries, query, "identity", feature_map)
    dk = kernels.gradient(value, R_transposed, ones, U, keys, key, "identity", feature_map)
    dv = kernels.gradient(key, R, zeros, R[:, :, 0], keys, value, feature_map, "identity")
    return dq, dk, dv


@host(**QKV)
def naive_forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array]:
    """Linear attention by its quadratic form, equations (1) to (3), in time O(Lq Lk (E + M)).

    Args and returns are those of `forward`, but for `visible`: who sees whom, in both directions.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    visible, query = visible.sighted(query, key)
    query, key, value = contiguous(query, key, value)
    queries, keys = visible.lengths(query, key)
    q, k = elementwise_features(query, feature_map), elementwise_features(key, feature_map)
    reach = visible.near(query, key) if visible.causal else key.shape[2]
    output, denominator = outputs_of(query, value)
    eps = eps_or_default(guard, eps, query)
    kernels.naive_forward(q, k, value, queries, keys, reach, eps, guard, output, denominator)
    blank(visible.query_lengths, output, denominator)
    return output, denominator


@host(**QKV, gn="N H Lq M", gd="N H Lq")
def naive_gradients(
    gn: Array,
    gd: Array,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    feature_map: str = "elu",
    version: str = "fast",
) -> tuple[Array, Array, Array]:
    """The gradients of the numerators and denominators of `naive_forward`, equation (7).

    Args and returns are those of `gradients`.
    """
    sums = version_of(version, fast=fast, plain=plain).naive_gradient
    visible, query, gn, gd = visible.of_seen_keys(query, key).sighted(query, key, gn, gd)
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    queries, keys = visible.lengths(query, key)
    q, k = elementwise_features(query, feature_map), elementwise_features(key, feature_map)
    reach = visible.near(query, key) if visible.causal else max(query.shape[2], key.shape[2])
    ones, none_q, none_k = per_row(key, 1), per_row(query, 0), per_row(key, 0)
    dq = sums(gn, value, k, gd, ones, queries, keys, 1, reach, query, feature_map)
    dk = sums(value, gn, q, ones, gd, keys, queries, -1, reach, key, feature_map)
    dv = sums(k, q, gn, none_k, none_q, keys, queries, -1, reach, value, "identity")
    return dq, dk, dv


def transformed(
    A: Array, matrix: Array, raw: Array, *, lengths: Array, feature_map: str, version: str
) -> Array:
    """Equation (9) for a matrix of each head alone, times phi' of raw.

    Args:
        A: (N, H, L, D), rows, of which as many count as `lengths` (N,) says.
        matrix: (H, D, E).
        raw: (N, H, L, E).
        feature_map: whose derivative at raw each number is multiplied by.

    Returns:
        (N, H, L, E).
    """
    xp, N = array_module(A), len(A)
    X, z = xp.broadcast_to(matrix, (N, *matrix.shape)), xp.zeros((N, *matrix.shape[::2]), A.dtype)
    kernels = version_of(version, fast=fast, plain=plain)
    return kernels.gradient(
        A, *contiguous(X), per_row(A, 0), z, lengths, raw, "identity", feature_map
    )


def summed_products(C: Array, B: Array, *, lengths: Array, version: str) -> Array:
    """The X of (8), of all sequences together: (H, M, D).

    Args:
        C: (N, H, L, M), rows, of which as many count as `lengths` (N,) says.
        B: (N, H, L, D).
    """
    kernels = version_of(version, fast=fast, plain=plain)
    X = kernels.sums(C, B, per_row(C, 0), lengths, "identity")[0]
    return X.sum(axis=0)[:, : C.shape[3], : B.shape[3]]

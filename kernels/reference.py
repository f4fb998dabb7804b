"""The naive truth of every attention variant: quadratic, plain NumPy, no cleverness.

Every kernel of this package is judged against this file, so it is written from the definitions:
the whole matrix of scores, one line for each equation, nothing saved and nothing reused. With
`dtype=numpy.float64` it is the truth; with `dtype=numpy.float32` it is the yardstick, the error
that anyone's first implementation makes. (With `dtype=numpy.complex128` it differentiates itself:
the tests prove each backward below by the complex step.)

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M). The equations are
those of one head: q_i, k_j are rows of E numbers, v_j and o_i rows of M numbers, g_i = dLoss/do_i.

    w_ij = 1 if i < query_length and j < key_length and (causal: j <= i + query_offset) else 0  (1)

Softmax attention; with relative scores b_ir of the distances (R1) below, and factors m_ij of
dropout, 0 or 1 / (1 - dropout). Where there are none, b = 0 and m = 1
    s_ij = scale (q_i . k_j + b_i,r_ij)                                                         (2)
    l_i  = log sum_j w_ij exp(s_ij)                                                             (3)
    p_ij = w_ij exp(s_ij - l_i)                                                                 (4)
    o_i  = sum_j m_ij p_ij v_j                                                                  (5)
its gradient
    dv_j  = sum_i m_ij p_ij g_i                                                                 (6)
    dp_ij = m_ij g_i . v_j                                                                      (7)
    ds_ij = p_ij (dp_ij - sum_t p_it dp_it)                                                     (8)
    dq_i  = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i
    db_ir = scale sum_{j: r_ij = r} ds_ij                                                       (9)

Local attention, which is softmax attention to fewer keys; query i stands at p_i = i + query_offset
    near_ij = 1 if |p_i - j| <= window or j < num_global or (j + 1) mod stride = 0
              or 0 <= p_i < global_queries else 0                                             (W1)
    w_ij of (1) times near_ij                                                                 (W2)

Linear attention, which replaces exp(q . k) by phi(q) . phi(k)                    (S1; S0 section 6)
    a_ij = w_ij phi(q_i) . phi(k_j)                                                            (10)
    n_i  = S_0^T phi(q_i) + sum_j a_ij v_j                                                     (11)
    d_i  = Z_0 . phi(q_i) + sum_j a_ij                                                         (12)
    o_i  = n_i / D_i                           D_i = guard(d_i)                                (13)
its gradient
    dn_i  = g_i / D_i                          dd_i = -(dn_i . o_i) guard'(d_i)                (14)
    da_ij = w_ij (dn_i . v_j + dd_i)                                                           (15)
    dq_i  = phi'(q_i) (S_0 dn_i + dd_i Z_0 + sum_j da_ij phi(k_j))                             (16)
    dk_j  = phi'(k_j) sum_i da_ij phi(q_i)     dv_j = sum_i a_ij dn_i                          (17)
    dS_0  = sum_i phi(q_i) dn_i^T              dZ_0 = sum_i dd_i phi(q_i)                      (18)

The final state of linear attention, from which a sequence goes on
    S = S_0 + sum_j phi(k_j) v_j^T             Z = Z_0 + sum_j phi(k_j)     (j < key_length)   (19)
and its gradient, given G = dLoss/dS and h = dLoss/dZ
    dk_j = phi'(k_j) (G v_j + h)               dv_j = G^T phi(k_j)          (j < key_length)
    dS_0 = G                                   dZ_0 = h                                        (20)

Fourier relative positions: query i stands at p_i, key j at r_j, both vectors of P numbers    (S2)
    dP_ije = c_e cos(b_e + a_e . (p_i - r_j))                                                 (F1)
    f_ije  = 1 + dP_ije  (one_plus_cos)        dP_ije  (cos)                                  (F2)
    a_ij   = w_ij sum_e q_ie k_je f_ije        q = phi(query), k = phi(key)                   (F3)
    n_i    = sum_j a_ij v_j                    d_i = sum_j a_ij  (rotated)
                                                     sum_j w_ij q_i . k_j  (plain)            (F4)
and o_i by (13). A state cannot hold dP; it holds sums over features that have dP as their product:
with angles t_ie = b_e + a_e . p_i of queries and u_je = a_e . r_j of keys, and (.) number by number
    Q_i = [c (.) q_i (.) cos t_i, c (.) q_i (.) sin t_i, q_i]
    K_j = [k_j (.) cos u_j, k_j (.) sin u_j, k_j]               (cos: without the last)       (F5)
    n_i += S_0^T Q_i                           d_i += Z_0 . Q_i  (plain: Z_0 . q_i)           (F6)
the gradient of such features, given dQ_i = [x_i, y_i, z_i]
    h_i  = x_i (.) cos t_i + y_i (.) sin t_i
    dt_i = c (.) q_i (.) (y_i (.) cos t_i - x_i (.) sin t_i)                                  (F7)
    dq_i = c (.) h_i + z_i                     dc = sum_i q_i (.) h_i
    db   = sum_i dt_i         da_e = sum_i dt_ie p_i         dp_i = sum_e dt_ie a_e           (F8)

Shaw's relative positions: a second term, with an embedding e_r for each distance r            (S0)
    r_ij = clip(j - i - query_offset, -k, k)                                                  (R1)
    b_ij = u_i . e_r_ij       u_i = phi(query_i)  (feature)    query_i  (raw)                 (R2)
    s_ij = w_ij f(b_ij)       f: softplus, exp (of at most 60), or identity                   (R3)
    n_i += sum_j s_ij v_j     d_i += sum_j s_ij                                               (R4)
and o_i by (13). From a state come keys at j = -k to -1, as many as there were; all before them are
at distance -k, and of those only the number and the sum of the values are known.
the gradient of the second term
    ds_ij = w_ij (dn_i . v_j + dd_i)           db_ij = ds_ij f'(b_ij)                         (R5)
    du_i  = sum_j db_ij e_r_ij                 de_r  = sum_{i, j: r_ij = r} db_ij u_i         (R6)
    dv_j += sum_i s_ij dn_i                                                                   (R7)

The delta rule: a state that is corrected, not only added to           (Schlag et al. 2021; S3)
    r_t = v_t - W_{t-1}^T k_t                                                                 (D1)
    W_t = W_{t-1} + beta_t k_t r_t^T           (unchanged where t >= key_length)              (D2)
    o_i = W_t^T q_i                            t: key i + query_offset has been written       (D3)
its gradient, with G_t = dLoss/dW_t, from the last token to the first
    dq_i  = W_t g_i                            G_t += q_i g_i^T                               (D4)
    du_t  = G_t^T k_t                          u_t = beta_t r_t                               (D5)
    dv_t  = beta_t du_t                        dbeta_t = r_t . du_t                           (D6)
    dk_t  = G_t u_t - W_{t-1} dv_t             G_{t-1} = G_t - k_t dv_t^T                     (D7)

Graph attention: node i sees key j as often as there are edges from i to j; w_ij is that number (S3)
    s_ij = LeakyReLU(a_i + b_j)  (additive)    scale q_i . k_j  (dot)                         (G1)
    p_ij = w_ij exp(s_ij) / sum_t w_it exp(s_it)                                              (G2)
    o_i  = sum_j p_ij v_j                      dv_j = sum_i p_ij g_i                          (G3)
its gradient is (8), and with LeakyReLU(z) = z above 0 and slope z elsewhere
    dz_ij = ds_ij LeakyReLU'(a_i + b_j)        da_i = sum_j dz_ij      db_j = sum_i dz_ij     (G4)
    dq_i  = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i                   (G5)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]
State = tuple[Array, Array]


def visible(
    query: Array,
    key: Array,
    causal: bool,
    query_offset: int,
    query_lengths: ArrayLike | None,
    key_lengths: ArrayLike | None,
) -> Array:
    """Returns w_ij of equation (1), which query sees which key: bool, (N, 1, Lq, Lk)."""
    i = np.arange(query.shape[2])[:, None]
    j = np.arange(key.shape[2])
    w: Array = inside(query, query_lengths)[..., None] & inside(key, key_lengths)[..., None, :]
    return w & (j <= i + query_offset) if causal else w  # (1)


def inside(sequence: Array, lengths: ArrayLike | None) -> Array:
    """Returns which positions of (N, H, L, E) are no padding: bool, (N, 1, L)."""
    batch, _, count, _ = sequence.shape
    ends = np.full(batch, count) if lengths is None else np.asarray(lengths)
    valid: Array = np.arange(count) < ends[:, None, None]
    return valid


def softmax_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    relative_scores: ArrayLike | None = None,
    kept: ArrayLike = 1.0,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Softmax attention, equations (1) to (5).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores, 1 / sqrt(E) by default.
        relative_scores: b, (N, H, Lq, 2k + 1), or None.
        kept: m, (N, H, Lq, Lk), as `dropout_factors` makes it.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: Vaswani et al. 2017, equation 1; Shaw et al. 2018, equation 2; S3.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    b = bias(relative_scores, key, query_offset)
    weights, _ = softmax_weights(query, key, seen, scale, b)
    output: Array = (np.asarray(kept, dtype) * weights) @ value  # (5)
    return output


def at_distances(of_each: Array, position: Array, query_offset: int) -> tuple[Array, Array]:
    """Returns what (N, H, Lq, 2k + 1) has for keys at positions (J,), and r_ij + k (Lq, J)."""
    k = of_each.shape[3] // 2
    i = np.arange(of_each.shape[2])[:, None]
    row = k + np.clip(position - i - query_offset, -k, k)  # (R1)
    where = np.broadcast_to(row, (*of_each.shape[:2], *row.shape))
    return np.take_along_axis(of_each, where, -1), row


def bias(relative_scores: ArrayLike | None, key: Array, query_offset: int) -> Array | float:
    """Returns b_i,r_ij (N, H, Lq, Lk) of equation (2); 0 where there are no relative scores."""
    if relative_scores is None:
        return 0.0
    of_each = np.asarray(relative_scores, key.dtype)
    return at_distances(of_each, np.arange(key.shape[2]), query_offset)[0]


def softmax_weights(
    query: Array, key: Array, seen: Array, scale: float | None, b: Array | float = 0.0
) -> tuple[Array, Array]:
    """Returns p_ij (N, H, Lq, Lk) and l_i (N, H, Lq), equations (2) to (4).

    A query that sees nothing has weights of zero, and l_i = -inf.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    s = np.where(seen, scale * (query @ key.swapaxes(-1, -2) + b), -np.inf)  # (2)
    highest = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    highest = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        log_sum = highest + np.log(np.sum(np.exp(s - highest), axis=-1, keepdims=True))  # (3)
    finite_log_sum = np.where(np.isfinite(log_sum), log_sum, 0)
    return np.exp(s - finite_log_sum), log_sum[..., 0]  # (4)


def softmax_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    relative_scores: ArrayLike | None = None,
    kept: ArrayLike = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, ...]:
    """The gradient of `softmax_attention`, equations (6) to (9).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `softmax_attention`.
        key: as there.
        value: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.
        relative_scores: as there.
        kept: as there.
        dtype: as there.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M); with relative scores db, too.
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(q, k, causal, query_offset, query_lengths, key_lengths)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    b = bias(relative_scores, k, query_offset)
    p, _ = softmax_weights(q, k, seen, scale, b)
    m = np.asarray(kept, dtype)
    dv = (m * p).swapaxes(-1, -2) @ g  # (6)
    dp = m * (g @ v.swapaxes(-1, -2))  # (7)
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # (8)
    gradients = scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (9)
    if relative_scores is None:
        return gradients
    db = np.zeros(np.shape(relative_scores), ds.dtype)
    _, row = at_distances(db, np.arange(k.shape[2]), query_offset)
    for r in range(db.shape[3]):
        db[..., r] = scale * np.sum(ds, axis=-1, where=row == r)  # (9)
    return *gradients, db


def dropout_factors(shape: tuple[int, ...], dropout: float, seed: int) -> Array:
    """Returns m (N, H, Lq, Lk), the factors of dropout that the kernels make as they go.

    Word j mod 4 of Philox 4x32-7 for the counter (j // 4, i, h, n) decides.

    Source: Salmon et al. 2011, section 3.3.
    """
    n, h, i, j = np.indices(shape, np.uint64)
    word = np.choose((j % 4).astype(int), philox((j // 4, i, h, n), (seed % 2**32, seed >> 32)))
    return np.where(word < round(dropout * 2**32), 0, 1 / (1 - dropout))


def philox(counter: tuple[Array, ...], key: tuple[int, int], rounds: int = 7) -> tuple[Array, ...]:
    """Returns four random words of 32 bits, as uint64, for each counter of four."""
    word, half = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = (np.asarray(x, np.uint64) for x in counter)
    for turn in range(rounds):
        k, l = (  # noqa: E741
            np.uint64((x + turn * weyl) % 2**32)
            for x, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        )
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (right >> half) ^ b ^ k, right & word, (left >> half) ^ d ^ l, left & word
    return a, b, c, d


def near(
    query: Array,
    key: Array,
    query_offset: int,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
) -> Array:
    """Returns which key is near enough to which query, or seen from everywhere: bool, (Lq, Lk)."""
    p = np.arange(query.shape[2])[:, None] + query_offset
    j = np.arange(key.shape[2])
    landmark = (j < num_global) | ((j + 1) % stride == 0 if stride else False)
    found: Array = (np.abs(p - j) <= window) | landmark | ((p >= 0) & (p < global_queries))  # (W1)
    return found


def local_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Local attention, equations (1) to (5) with w_ij of (W2).

    Args:
        query: this, key, value, and what is not here as in `softmax_attention`.
        key: as there.
        value: as there.
        window: how many keys a query sees on either side of its own place.
        stride: the last of every so many keys is seen from everywhere. None: no such keys.
        num_global: so many first keys are seen from everywhere.
        global_queries: the queries at so many first positions see every key.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.
        dtype: as there.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: Child et al. 2019, section 4.3; Beltagy et al. 2020, section 3.1.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    seen = seen & near(query, key, query_offset, window, stride, num_global, global_queries)  # (W2)
    weights, _ = softmax_weights(query, key, seen, scale)
    output: Array = weights @ value  # (5)
    return output


def local_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `local_attention`, equations (6) to (9) with w_ij of (W2).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `local_attention`.
        key: as there.
        value: as there.
        window: as there.
        stride: as there.
        num_global: as there.
        global_queries: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.
        dtype: as there.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M).
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(q, k, causal, query_offset, query_lengths, key_lengths)
    seen = seen & near(q, k, query_offset, window, stride, num_global, global_queries)  # (W2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    p, _ = softmax_weights(q, k, seen, scale)
    dv = p.swapaxes(-1, -2) @ g  # (6)
    dp = g @ v.swapaxes(-1, -2)  # (7)
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # (8)
    return scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (9)


def phi(x: Array, feature_map: str) -> Array:
    """Returns the features of x, number by number; none of the formulas overflows or cancels.

    "elu" is elu(x) + 1, "softplus" log(1 + exp(x)).
    """
    if feature_map == "identity":
        return x
    if feature_map == "exp":
        return np.exp(x)
    if feature_map == "relu":
        return np.where(np.real(x) > 0, x, 0)
    if feature_map == "softplus":
        return np.where(x > 0, x, 0) + np.log1p(np.exp(np.where(x > 0, -x, x)))
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def phi_slope(x: Array, feature_map: str) -> Array:
    """Returns phi'(x)."""
    if feature_map == "identity":
        return np.ones_like(x)
    if feature_map == "exp":
        return np.exp(x)
    if feature_map == "relu":
        return np.where(x > 0, np.ones_like(x), 0)
    if feature_map == "softplus":
        e = np.exp(np.where(x > 0, -x, x))
        return np.where(x > 0, 1, e) / (1 + e)
    return np.where(x > 0, 1, np.exp(np.minimum(x, 0)))


def favor(x: ArrayLike, projection: ArrayLike, *, normalised: bool = False) -> Array:
    """FAVOR+ features of rows x (..., E) for a projection w (R, E): (..., R).

    With s = E^(-1/4) they are exp(s w_r.x - s^2 |x|^2 / 2) / sqrt(R), or with `normalised`
    exp(s w_r.x) divided by its sum over r.

    Source: Choromanski et al. 2021, lemma 1.
    """
    x, projection = np.asarray(x), np.asarray(projection)
    scaled = x.dtype.type(x.shape[-1] ** -0.25) * x
    z = scaled @ projection.T
    if normalised:
        e = np.exp(z - np.max(z.real, axis=-1, keepdims=True))
        return e / np.sum(e, axis=-1, keepdims=True)
    half_square = np.sum(scaled * scaled, axis=-1, keepdims=True) / 2
    return np.exp(z - half_square) / x.dtype.type(len(projection) ** 0.5)


def dpfp(x: ArrayLike, nu: int) -> Array:
    """DPFP-nu features of rows x (..., E): r_a r_(a+m) for m = 1 .. nu, (..., 2 E nu).

    Here r = [relu(x), relu(-x)], and a + m comes round at 2 E.

    Source: Schlag et al. 2021, section 5.3.
    """
    x = np.asarray(x)
    r = np.concatenate([phi(x, "relu"), phi(-x, "relu")], axis=-1)
    return np.concatenate([r * np.roll(r, -m, axis=-1) for m in range(1, nu + 1)], axis=-1)


def cosformer(x: ArrayLike, positions: ArrayLike, longest: int) -> Array:
    """Features of cosFormer for rows x (..., L, E) at positions (L,): relu(x) cos, relu(x) sin.

    The angles are pi p / (2 longest).

    Source: Qin et al. 2022, equations 8 to 10.
    """
    x = np.asarray(x)
    theta = (np.pi / (2 * longest) * np.asarray(positions, np.float64)[:, None]).astype(x.dtype)
    return np.concatenate([phi(x, "relu") * np.cos(theta), phi(x, "relu") * np.sin(theta)], axis=-1)


def guarded(d: Array, guard: str, eps: float | None) -> tuple[Array, Array]:
    """Returns guard(d) and guard'(d).

    "clamp" is max(d, eps), "add" is d + eps, "signed" is sign(d) max(|d|, eps) with sign(0) = 1.
    """
    if eps is None:
        eps = 1e-6 if guard == "add" else 1e-30 if d.dtype == np.float32 else 1e-300
    floor = d.dtype.type(eps)
    if guard == "add":
        return d + floor, np.ones_like(d)
    if guard == "signed":
        open_gate = np.abs(d) > eps
        return np.where(open_gate, d, np.where(d < 0, -floor, floor)), open_gate.astype(d.dtype)
    return np.where(d > eps, d, floor), (d > eps).astype(d.dtype)


def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention in its quadratic form, equations (10) to (13).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        feature_map: "elu", or "identity" where query and key are features already.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E), seen by every query; None: zeros.
        guard: "clamp", "add" or "signed", see `guarded`.
        eps: the guard's constant.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S1; Katharopoulos et al. 2020, equation 4.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = linear_sums(query, key, value, feature_map, seen, alive, initial_state)
    return n / guarded(d, guard, eps)[0][..., None]  # (13)


def linear_sums(
    query: Array,
    key: Array,
    value: Array,
    feature_map: str,
    seen: Array,
    alive: Array,
    initial_state: State | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), equations (10) to (12)."""
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    q = alive[..., None] * phi(query, feature_map)
    a = seen * (q @ phi(key, feature_map).swapaxes(-1, -2))  # (10)
    n = q @ S + a @ value  # (11)
    d = (q @ Z[..., None])[..., 0] + np.sum(a, axis=-1)  # (12)
    return n, d


def linear_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, State]:
    """The gradient of `linear_attention`, equations (14) to (18).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `linear_attention`.
        key: as there.
        value: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: as there.
        guard: as there.
        eps: as there.
        dtype: as there.

    Returns:
        dq (N, H, Lq, E), dk (N, H, Lk, E), dv (N, H, Lk, M), and of the initial state
        dS_0 (N, H, E, M) and dZ_0 (N, H, E), as they are at zero where it is None.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = linear_sums(query, key, v, feature_map, seen, alive, initial_state)
    dn, dd = quotient_backward(alive[..., None] * g, n, d, guard, eps)
    q, k = phi(query, feature_map), phi(key, feature_map)
    dq, dk, dv, dstate = linear_sums_backward(dn, dd, q, k, v, seen, initial_state)
    return phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk, dv, dstate


def quotient_backward(
    g: Array, n: Array, d: Array, guard: str, eps: float | None
) -> tuple[Array, Array]:
    """Returns dn_i (N, H, Lq, M) and dd_i (N, H, Lq, 1), equation (14)."""
    D, slope = guarded(d, guard, eps)
    dn = g / D[..., None]  # (14)
    o = n / D[..., None]  # (13)
    return dn, -np.sum(dn * o, axis=-1, keepdims=True) * slope[..., None]  # (14)


def linear_sums_backward(
    dn: Array, dd: Array, q: Array, k: Array, v: Array, seen: Array, initial_state: State | None
) -> tuple[Array, Array, Array, State]:
    """Returns the gradients of features q and k, of v, S_0 and Z_0, equations (15) to (18)."""
    S, Z = zero_state(k, v) if initial_state is None else as_state(initial_state, k.dtype)
    a = seen * (q @ k.swapaxes(-1, -2))  # (10)
    da = seen * (dn @ v.swapaxes(-1, -2) + dd)  # (15)
    dq = dn @ S.swapaxes(-1, -2) + dd * Z[..., None, :] + da @ k  # (16)
    dk = da.swapaxes(-1, -2) @ q  # (17)
    dv = a.swapaxes(-1, -2) @ dn  # (17)
    return dq, dk, dv, (q.swapaxes(-1, -2) @ dn, np.sum(dd * q, axis=-2))  # (18)


def linear_recurrence(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, Array]:
    """Causal linear attention and its gradients token by token, where a matrix would be too large.

    The sums of equations (11), (12), (16) and (17) over j <= i are states S and Z; those over
    i >= j, which run backwards, R and U.

    Args:
        grad_output: (N, H, L, M), dLoss/do.
        query: (N, H, L, E) floats.
        key: (N, H, L, E) floats.
        value: (N, H, L, M) floats.
        feature_map: a name of `feature_maps`; denominators must not be zero.
        dtype: the dtype of all arithmetic.

    Returns:
        The output (N, H, L, M), and dq, dk, dv.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    q, k = phi(query, feature_map), phi(key, feature_map)
    o, dn, dd = np.empty_like(v), np.empty_like(v), np.empty_like(v[..., 0])
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    S, Z = zero_state(k, v)
    for i in range(q.shape[2]):
        q_i, k_i, v_i, g_i = (x[:, :, i] for x in (q, k, v, g))
        S += k_i[..., :, None] * v_i[..., None, :]
        Z += k_i
        D = np.sum(q_i * Z, axis=-1, keepdims=True)
        o[:, :, i] = np.sum(S * q_i[..., :, None], axis=-2) / D  # (13)
        dn[:, :, i] = g_i / D  # (14)
        dd[:, :, i] = -np.sum(dn[:, :, i] * o[:, :, i], axis=-1)  # (14)
        dq[:, :, i] = np.sum(S * dn[:, :, i, None], axis=-1) + dd[:, :, i, None] * Z  # (16)
    R, U = zero_state(k, v)
    for j in reversed(range(k.shape[2])):
        R += q[:, :, j, :, None] * dn[:, :, j, None, :]
        U += dd[:, :, j, None] * q[:, :, j]
        dk[:, :, j] = np.sum(R * v[:, :, j, None], axis=-1) + U  # (17)
        dv[:, :, j] = np.sum(R * k[:, :, j, :, None], axis=-2)  # (17)
    return o, phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk, dv


def final_state(
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    dtype: DTypeLike = np.float64,
) -> State:
    """The state of linear attention after every valid key, equation (19).

    Args:
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        feature_map: "elu" or "identity".
        key_lengths: (N,) integers; later keys do not count. None: all count.
        initial_state: S_0 (N, H, E, M) and Z_0 (N, H, E); None: zeros.
        dtype: the dtype of all arithmetic.

    Returns:
        S (N, H, E, M) and Z (N, H, E).
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    S, Z = zero_state(key, value) if initial_state is None else as_state(initial_state, key.dtype)
    k = inside(key, key_lengths)[..., None] * phi(key, feature_map)
    return S + k.swapaxes(-1, -2) @ value, Z + np.sum(k, axis=-2)  # (19)


def final_state_backward(
    grad_state: State,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: str = "elu",
    key_lengths: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, State]:
    """The gradient of `final_state`, equation (20).

    Args:
        grad_state: dLoss/dS (N, H, E, M) and dLoss/dZ (N, H, E).
        key: this and all the rest as in `final_state`.
        value: as there.
        feature_map: as there.
        key_lengths: as there.
        dtype: as there.

    Returns:
        dk (N, H, Lk, E), dv (N, H, Lk, M), and dS_0, dZ_0.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    G, h = as_state(grad_state, key.dtype)
    valid = inside(key, key_lengths)[..., None]
    dk = phi_slope(key, feature_map) * (value @ G.swapaxes(-1, -2) + h[..., None, :])  # (20)
    return valid * dk, valid * (phi(key, feature_map) @ G), (G, h)  # (20)


def zero_state(key: Array, value: Array) -> State:
    """Returns the state of an empty sequence."""
    batch, heads, _, features = key.shape
    shape = (batch, heads, features)
    return np.zeros((*shape, value.shape[-1]), key.dtype), np.zeros(shape, key.dtype)


def as_state(state: State, dtype: DTypeLike) -> State:
    """Returns S and Z as arrays of `dtype`."""
    return np.asarray(state[0], dtype), np.asarray(state[1], dtype)


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
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention with Fourier relative positions, equations (F1) to (F4).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        fourier: positions, frequencies, phases and amplitudes.
        form: "one_plus_cos" or "cos", see (F2).
        denominator: "rotated" or "plain", see (F4).
        feature_map: as in `linear_attention`.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: S_0 (N, H, D, M), and Z_0 (N, H, D), or (N, H, E) if `denominator` is
            "plain"; D is 3E, or 2E if `form` is "cos". None: zeros.
        guard: as there.
        eps: as there.
        dtype: the dtype of all arithmetic but that of angles, which is float64 at least.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S2.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = fourier_sums(
        query, key, value, fourier, form, denominator, feature_map, seen, alive, initial_state
    )
    return n / guarded(d, guard, eps)[0][..., None]  # (13)


def fourier_sums(
    query: Array,
    key: Array,
    value: Array,
    fourier: Fourier,
    form: str,
    denominator: str,
    feature_map: str,
    seen: Array,
    alive: Array,
    initial_state: State | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), equations (F1) to (F4)."""
    q, k = alive[..., None] * phi(query, feature_map), phi(key, feature_map)
    p, r, a, b, c = (np.asarray(x, np.result_type(q.dtype, np.float64)) for x in fourier)
    difference = p[:, :, None] - r[:, None]  # (N, Lq, Lk, P)
    angle = b[:, None, None] + np.einsum("hep,nijp->nhije", a, difference)
    dP = (c[:, None, None] * np.cos(angle)).astype(q.dtype)  # (F1)
    f = 1 + dP if form == "one_plus_cos" else dP  # (F2)
    rotated = seen * np.einsum("nhie,nhje,nhije->nhij", q, k, f)  # (F3)
    d_terms = rotated if denominator == "rotated" else seen * (q @ k.swapaxes(-1, -2))
    n, d = rotated @ value, np.sum(d_terms, axis=-1)  # (F4)
    if initial_state is None:
        return n, d
    S, Z = as_state(initial_state, q.dtype)
    Q = fourier_features(q, p, a, b, c, form)  # (F5)
    return n + Q @ S, d + ((Q if denominator == "rotated" else q) @ Z[..., None])[..., 0]  # (F6)


def fourier_features(
    x: Array, positions: Array, frequency: Array, phase: Array, amplitude: Array, form: str
) -> Array:
    """Returns the features that states hold, equation (F5): (N, H, L, D), D = 3E or 2E.

    Those of keys have a phase of 0 and an amplitude of 1.
    """
    cos, sin = _circle(x, positions, frequency, phase)
    c = amplitude[:, None].astype(x.dtype)
    parts = [c * x * cos, c * x * sin, x]
    return np.concatenate(parts if form == "one_plus_cos" else parts[:2], axis=-1)  # (F5)


def fourier_features_backward(
    grad: Array, x: Array, positions: Array, frequency: Array, phase: Array, amplitude: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """The gradient of `fourier_features`, in the order of its arguments; equations (F7), (F8)."""
    E = x.shape[-1]
    cos, sin = _circle(x, positions, frequency, phase)
    c = amplitude[:, None].astype(x.dtype)
    of_cos, of_sin = grad[..., :E], grad[..., E : 2 * E]
    rest = grad[..., 2 * E :] if grad.shape[-1] > 2 * E else 0
    h = of_cos * cos + of_sin * sin  # (F7)
    dangle = c * x * (of_sin * cos - of_cos * sin)  # (F7)
    dpositions = np.einsum("nhie,hep->nip", dangle, frequency)  # (F8)
    if len(positions) == 1:
        dpositions = np.sum(dpositions, axis=0, keepdims=True)
    places = np.broadcast_to(positions, (len(x), *positions.shape[1:]))
    dfrequency = np.einsum("nhie,nip->hep", dangle, places)  # (F8)
    return c * h + rest, dpositions, dfrequency, dangle.sum((0, 2)), (x * h).sum((0, 2))  # (F8)


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
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[tuple[Array, Array, Array], Fourier, State]:
    """The gradient of `fourier_linear_attention` and of `fourier_final_state`.

    It goes by way of the features (F5), which is short; what proves it are the complex steps of the
    tests, for which (F1) to (F4) are enough.

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `fourier_linear_attention`.
        key: as there.
        value: as there.
        fourier: as there.
        form: as there.
        denominator: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: as there.
        grad_state: the gradient of the final state; None: zeros.
        guard: as there.
        eps: as there.
        dtype: as there.

    Returns:
        The gradients of query, key and value; those of everything in `fourier`; and of the initial
        state, as they are at zero where it is None.
    """
    g, query, key, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = fourier_sums(
        query, key, v, fourier, form, denominator, feature_map, seen, alive, initial_state
    )
    dn, dd = quotient_backward(alive[..., None] * g, n, d, guard, eps)  # (14)

    q, k = phi(query, feature_map), phi(key, feature_map)
    of_query, of_key = fourier_sides(fourier, dtype)
    Q, K = fourier_features(q, *of_query, form), fourier_features(k, *of_key, form)  # (F5)
    zero, ends = fourier_zero_state(k, v, form, denominator), (initial_state, grad_state)
    (S, Z), (G, h) = (zero if state is None else as_state(state, dtype) for state in ends)
    if denominator == "rotated":
        dQ, dK, dv, (dS, dZ) = _sums_and_state_backward(
            dn, dd, Q, K, v, seen, key_lengths, (S, Z), (G, h)
        )
        dq, dk = 0 * q, 0 * k
    else:  # the denominators are the numerators of plain attention to a value of 1
        none, one = 0 * dd, np.ones_like(v[..., :1])
        dQ, dK, dv, (dS, _) = _sums_and_state_backward(
            dn, none, Q, K, v, seen, key_lengths, (S, 0 * S[..., 0]), (G, 0 * S[..., 0])
        )
        dq, dk, _, (dZ, _) = _sums_and_state_backward(
            dd, none, q, k, one, seen, key_lengths, (Z[..., None], 0 * Z), (h[..., None], 0 * Z)
        )
        dZ = dZ[..., 0]
    dq_rotated, dp, da, db, dc = fourier_features_backward(dQ, q, *of_query)
    dk_rotated, dr, da_of_keys, _, _ = fourier_features_backward(dK, k, *of_key)
    dq = phi_slope(query, feature_map) * (dq + dq_rotated)
    dk = phi_slope(key, feature_map) * (dk + dk_rotated)
    return (dq, dk, dv), Fourier(dp, dr, da + da_of_keys, db, dc), (dS, dZ)


def _sums_and_state_backward(
    dn: Array,
    dd: Array,
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    key_lengths: ArrayLike | None,
    initial_state: State,
    grad_state: State,
) -> tuple[Array, Array, Array, State]:
    """The gradient of linear attention's sums and of its final state, for features q and k."""
    dq, dk, dv, (dS, dZ) = linear_sums_backward(dn, dd, q, k, v, seen, initial_state)
    dk_of_state, dv_of_state, (G, h) = final_state_backward(
        grad_state, k, v, feature_map="identity", key_lengths=key_lengths, dtype=k.dtype
    )
    return dq, dk + dk_of_state, dv + dv_of_state, (dS + G, dZ + h)


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
    """The state after every valid key, equation (19) of the features (F5).

    Args:
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        fourier: as in `fourier_linear_attention`.
        form: as there.
        denominator: as there.
        feature_map: as there.
        key_lengths: as there.
        initial_state: as there.
        dtype: as there.

    Returns:
        S and Z, of the shapes of `initial_state`.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    k = phi(key, feature_map)
    K = fourier_features(k, *fourier_sides(fourier, dtype)[1], form)
    zero = fourier_zero_state(k, value, form, denominator)
    S, Z = zero if initial_state is None else as_state(initial_state, dtype)
    valid = inside(key, key_lengths)[..., None]
    S = S + (valid * K).swapaxes(-1, -2) @ value  # (19)
    return S, Z + np.sum(valid * (K if denominator == "rotated" else k), axis=-2)  # (19)


def fourier_sides(fourier: Fourier, dtype: DTypeLike) -> tuple[Side, Side]:
    """Positions, frequency, phase and amplitude of the queries, and those of the keys."""
    p, r, a, b, c = (np.asarray(x, np.result_type(dtype, np.float64)) for x in fourier)
    return (p, a, b, c), (r, a, 0 * b, 1 + 0 * c)


def fourier_zero_state(k: Array, v: Array, form: str, denominator: str) -> State:
    """Returns the state of an empty sequence."""
    N, H, _, E = k.shape
    D = 3 * E if form == "one_plus_cos" else 2 * E
    Z = np.zeros((N, H, D if denominator == "rotated" else E), k.dtype)
    return np.zeros((N, H, D, v.shape[-1]), k.dtype), Z


class RelativeState(NamedTuple):
    """What a causal sequence leaves behind.

    `S` (N, H, E, M) and `Z` (N, H, E) are those of linear attention, `tail` (N, H, M) is the sum of
    all values but the last k, `recent` (N, H, k, M) are these, `length` (N,) counts the keys.
    """

    S: Array
    Z: Array
    tail: Array
    recent: Array
    length: Array


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
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Linear attention with Shaw's relative positions, equations (R1) to (R4).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        relative_embedding: (H, 2k + 1, E) floats, row r + k for the distance r.
        score_map: "softplus", "exp" or "identity", see (R3).
        relative_query: "feature" or "raw", see (R2).
        feature_map: as in `linear_attention`.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: what a causal sequence continues from; None: nothing.
        guard: as there.
        eps: as there.
        dtype: the dtype of all arithmetic.

    Returns:
        (N, H, Lq, M) of `dtype`; a query that sees nothing gives zeros.

    Source: S0; Shaw et al. 2018, equations 3 and 4.
    """
    query, key, value, e = (np.asarray(x, dtype) for x in (query, key, value, relative_embedding))
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = relative_sums(
        query, key, value, e, score_map, relative_query, feature_map, query_offset, seen, alive,
        initial_state,
    )  # fmt: skip
    return n / guarded(d, guard, eps)[0][..., None]  # (13)


def relative_sums(
    query: Array,
    key: Array,
    value: Array,
    embedding: Array,
    score_map: str,
    relative_query: str,
    feature_map: str,
    query_offset: int,
    seen: Array,
    alive: Array,
    initial_state: RelativeState | None,
) -> State:
    """Returns n_i (N, H, Lq, M) and d_i (N, H, Lq), both terms of both."""
    state = None if initial_state is None else as_state(initial_state[:2], key.dtype)
    n, d = linear_sums(query, key, value, feature_map, seen, alive, state)
    past = with_the_past(value, seen, alive, initial_state)
    b, _ = relative_scores(
        query, embedding, past.position, relative_query, feature_map, query_offset
    )
    s = past.seen * score_weights(b, score_map)  # (R3)
    return n + s @ past.value, d + np.sum(s * past.counts, axis=-1)  # (R4)


def relative_scores(
    query: Array,
    embedding: Array,
    position: Array,
    relative_query: str,
    feature_map: str,
    query_offset: int,
) -> tuple[Array, Array]:
    """Returns b_ij (N, H, Lq, J) and r_ij + k (Lq, J), equations (R1) and (R2)."""
    u = query if relative_query == "raw" else phi(query, feature_map)
    return at_distances(u @ embedding.swapaxes(-1, -2), position, query_offset)  # (R2)


def score_weights(b: Array, score_map: str) -> Array:
    """Returns f(b) of equation (R3)."""
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
    *,
    score_map: str = "softplus",
    relative_query: str = "feature",
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: RelativeState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[tuple[Array, Array, Array, Array], tuple[Array, Array, Array, Array] | None]:
    """The gradient of `relative_linear_attention`, equations (R5) to (R7) and (14) to (18).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `relative_linear_attention`.
        key: as there.
        value: as there.
        relative_embedding: as there.
        score_map: as there.
        relative_query: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: as there.
        guard: as there.
        eps: as there.
        dtype: as there.

    Returns:
        The gradients of query, key, value and relative_embedding; and those of S, Z, tail and
        recent, or None where there is no initial state.
    """
    g, query, key, v, e = (
        np.asarray(x, dtype) for x in (grad_output, query, key, value, relative_embedding)
    )
    seen = visible(query, key, causal, query_offset, query_lengths, key_lengths)
    alive = inside(query, query_lengths)
    n, d = relative_sums(
        query, key, v, e, score_map, relative_query, feature_map, query_offset, seen, alive,
        initial_state,
    )  # fmt: skip
    dn, dd = quotient_backward(alive[..., None] * g, n, d, guard, eps)  # (14)

    q, k = phi(query, feature_map), phi(key, feature_map)
    state = None if initial_state is None else as_state(initial_state[:2], dtype)
    dq, dk, dv, (dS, dZ) = linear_sums_backward(dn, dd, q, k, v, seen, state)
    dq, dk = phi_slope(query, feature_map) * dq, phi_slope(key, feature_map) * dk

    past = with_the_past(v, seen, alive, initial_state)
    b, row = relative_scores(query, e, past.position, relative_query, feature_map, query_offset)
    s = past.seen * score_weights(b, score_map)  # (R3)
    ds = past.seen * (dn @ past.value.swapaxes(-1, -2) + dd * past.counts)  # (R5)
    db = ds * score_slope(b, score_map)  # (R5)
    of_each_distance = [np.sum(db * (row == r), axis=-1) for r in range(e.shape[1])]
    dB = np.stack(of_each_distance, axis=-1)  # (N, H, Lq, 2k + 1)
    du = dB @ e  # (R6)
    u, slope = (query, 1) if relative_query == "raw" else (q, phi_slope(query, feature_map))
    de = np.sum(dB.swapaxes(-1, -2) @ u, axis=0)  # (R6)
    of_past = s.swapaxes(-1, -2) @ dn  # (R7)
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
    """The state after every valid key, equation (19) and the last values.

    Args:
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        window: k, of relative embeddings of distances -k to k.
        feature_map: as in `linear_attention`.
        key_lengths: as there.
        initial_state: as in `relative_linear_attention`.
        dtype: the dtype of all arithmetic.
    """
    key, value = np.asarray(key, dtype), np.asarray(value, dtype)
    N, H, Lk, M = value.shape
    start = initial_state or relative_zero_state(key, value, window)
    S, Z = final_state(
        key, value, feature_map=feature_map, key_lengths=key_lengths, initial_state=start[:2],
        dtype=dtype,
    )  # fmt: skip
    tail, recent = np.array(start.tail, dtype), np.zeros((N, H, window, M), dtype)
    counts = np.full(N, Lk) if key_lengths is None else np.asarray(key_lengths)
    for n, (count, known) in enumerate(zip(counts, start.length, strict=True)):
        fresh = max(0, window - known)  # rows that never held a value
        old = np.asarray(start.recent[n, :, fresh:], dtype)
        values = np.concatenate([old, value[n, :, :count]], axis=1)
        fallen = max(0, values.shape[1] - window)
        tail[n] += np.sum(values[:, :fallen], axis=1)
        recent[n, :, window - (values.shape[1] - fallen) :] = values[:, fallen:]
    return RelativeState(S, Z, tail, recent, start.length + counts)


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
        key: this and all the rest as in `relative_final_state`.
        value: as there.
        feature_map: as there.
        key_lengths: as there.
        initial_state: as there.
        dtype: as there.

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
    N, _, Lk, _ = value.shape
    counts = np.full(N, Lk) if key_lengths is None else np.asarray(key_lengths)
    drecent = np.zeros_like(of_recent)
    for n, (count, known) in enumerate(zip(counts, start.length, strict=True)):
        real = min(window, known)
        moved = real + count  # the values that were in the window or came to it
        shares = np.concatenate(
            [
                np.repeat(of_tail[n, :, None], max(0, moved - window), axis=1),
                of_recent[n, :, max(0, window - moved) :],
            ],
            axis=1,
        )
        drecent[n, :, window - real :] = shares[:, :real]
        dv[n, :, :count] += shares[:, real:]
    return dk, dv, (dS, dZ, of_tail, drecent)


def relative_zero_state(key: Array, value: Array, window: int) -> RelativeState:
    """Returns the state of an empty sequence."""
    N, H, _, M = value.shape
    tail, recent = np.zeros((N, H, M), value.dtype), np.zeros((N, H, window, M), value.dtype)
    return RelativeState(*zero_state(key, value), tail, recent, np.zeros(N, np.int64))


def delta_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    beta: ArrayLike,
    *,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: Array | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The delta rule, token by token, equations (D1) to (D3).

    Args:
        query: (N, H, Lq, E) floats.
        key: (N, H, Lk, E) floats.
        value: (N, H, Lk, M) floats.
        beta: (N, H, Lk) floats.
        query_offset: query i reads the state after key i + query_offset.
        query_lengths: (N,) integers; later rows give zeros. None: all count.
        key_lengths: (N,) integers; later keys write nothing. None: all count.
        initial_state: W_0 (N, H, E, M); None: zeros.
        dtype: the dtype of all arithmetic.

    Returns:
        The output (N, H, Lq, M), the residuals (N, H, Lk, M), and the state after every key.

    Source: Schlag et al. 2021, section 4.2.
    """
    query, key, value, beta = (np.asarray(x, dtype) for x in (query, key, value, beta))
    W, r = delta_states(key, value, beta, key_lengths, initial_state)
    read = np.clip(np.arange(query.shape[2]) + query_offset + 1, 0, key.shape[2])
    q = inside(query, query_lengths)[..., None] * query
    output = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
    for i, t in enumerate(read):
        output[:, :, i] = _times(W[t].swapaxes(-1, -2), q[:, :, i])  # (D3)
    return output, r, W[-1]


def delta_states(
    key: Array,
    value: Array,
    beta: Array,
    key_lengths: ArrayLike | None,
    initial_state: Array | None,
) -> tuple[list[Array], Array]:
    """Returns W_0, W_1, ... after each key, and the residuals: equations (D1) and (D2)."""
    valid = inside(key, key_lengths)[..., None]
    shape = (*key.shape[:2], key.shape[3], value.shape[3])
    W = [np.zeros(shape, key.dtype) if initial_state is None else initial_state.astype(key.dtype)]
    r = np.zeros_like(value)
    for t in range(key.shape[2]):
        k, v, b = key[:, :, t], value[:, :, t], beta[:, :, t, None]
        r[:, :, t] = valid[:, :, t] * (v - _times(W[t].swapaxes(-1, -2), k))  # (D1)
        W.append(W[t] + k[..., :, None] * (b * r[:, :, t])[..., None, :])  # (D2)
    return W, r


def delta_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    beta: ArrayLike,
    *,
    grad_state: ArrayLike | None = None,
    query_offset: int = 0,
    query_lengths: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    initial_state: Array | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array, Array, Array]:
    """The gradient of the delta rule, from the last token to the first, (D4) to (D7).

    Args:
        grad_output: (N, H, Lq, M), dLoss/do.
        query: this and all the rest as in `delta_attention`.
        key: as there.
        value: as there.
        beta: as there.
        grad_state: (N, H, E, M), dLoss/dW of the last state; None: zeros.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        initial_state: as there.
        dtype: as there.

    Returns:
        dq, dk, dv, dbeta and dW_0.
    """
    g, query, key, value, beta = (
        np.asarray(x, dtype) for x in (grad_output, query, key, value, beta)
    )
    W, r = delta_states(key, value, beta, key_lengths, initial_state)
    read = np.clip(np.arange(query.shape[2]) + query_offset + 1, 0, key.shape[2])
    alive = inside(query, query_lengths)[..., None]
    valid = inside(key, key_lengths)[..., None]
    G = np.zeros_like(W[0]) if grad_state is None else np.asarray(grad_state, dtype)
    dq, dk, dv, dbeta = (np.zeros_like(x) for x in (query, key, value, beta))
    for t in reversed(range(len(W))):
        for i in np.flatnonzero(read == t):
            q_i, g_i = alive[:, :, i] * query[:, :, i], alive[:, :, i] * g[:, :, i]
            dq[:, :, i] = _times(W[t], g_i)  # (D4)
            G = G + q_i[..., :, None] * g_i[..., None, :]  # (D4)
        if t == 0:
            break
        k, b, r_t, real = (x[:, :, t - 1] for x in (key, beta[..., None], r, valid))
        du = real * _times(G.swapaxes(-1, -2), k)  # (D5)
        dbeta[:, :, t - 1] = np.sum(r_t * du, axis=-1)  # (D6)
        dv[:, :, t - 1] = b * du  # (D6)
        dk[:, :, t - 1] = real * (_times(G, b * r_t) - _times(W[t - 1], b * du))  # (D7)
        G = G - k[..., :, None] * (b * du)[..., None, :]  # (D7)
    return dq, dk, dv, dbeta, G


def _times(matrix: Array, vector: Array) -> Array:
    """Returns each head's matrix times its vector."""
    product: Array = (matrix @ vector[..., None])[..., 0]
    return product


# Graph attention ----------------------------------------------------------------------------------


def edge_counts(row_offsets: ArrayLike, columns: ArrayLike, num_keys: int) -> Array:
    """Returns w_ij, how many edges lead from query node i to key node j: (Tq, Tk).

    Args:
        row_offsets: (Tq + 1,) integers; the edges of node i are those from row_offsets[i] on.
        columns: (edges,) integers, the key node of each edge.
        num_keys: Tk.
    """
    offsets = np.asarray(row_offsets)
    counts = np.zeros((len(offsets) - 1, num_keys), int)
    rows = np.repeat(np.arange(len(counts)), np.diff(offsets))
    np.add.at(counts, (rows, np.asarray(columns, int)), 1)
    return counts


def graph_weights(scores: Array, counts: Array) -> Array:
    """Returns p_ij of equation (G2), (H, Tq, Tk); zeros for a node without edges."""
    s = np.where(counts, scores, -np.inf)
    highest = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    terms = counts * np.exp(s - np.where(np.isfinite(highest), highest, 0))
    total = np.sum(terms, axis=-1, keepdims=True)
    p: Array = terms / np.where(total == 0, 1, total)  # (G2)
    return p


def leaky_relu(z: Array, slope: float) -> Array:
    """LeakyReLU, of complex numbers by their real part."""
    kept: Array = np.where(z.real > 0, z, slope * z)
    return kept


def graph_attention(
    query_scores: ArrayLike,
    key_scores: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Graph attention with additive scores, equations (G1) to (G3).

    Args:
        query_scores: a (H, Tq).
        key_scores: b (H, Tk).
        value: (H, Tk, M).
        row_offsets: as in `edge_counts`.
        columns: as there.
        negative_slope: of LeakyReLU, below 0.
        dtype: the dtype of all arithmetic.

    Returns:
        (H, Tq, M) of `dtype`.

    Source: Veličković et al. 2018, equations 1 to 4; S3.
    """
    a, b, v = (np.asarray(x, dtype) for x in (query_scores, key_scores, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    s = leaky_relu(a[..., None] + b[:, None], negative_slope)  # (G1)
    output: Array = graph_weights(s, counts) @ v  # (G3)
    return output


def graph_attention_backward(
    grad_output: ArrayLike,
    query_scores: ArrayLike,
    key_scores: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `graph_attention`, equations (G3), (8) and (G4).

    Args:
        grad_output: (H, Tq, M), dLoss/do.
        query_scores: this and all the rest as in `graph_attention`.
        key_scores: as there.
        value: as there.
        row_offsets: as there.
        columns: as there.
        negative_slope: as there.
        dtype: as there.

    Returns:
        da (H, Tq), db (H, Tk), dv (H, Tk, M).
    """
    g, a, b, v = (np.asarray(x, dtype) for x in (grad_output, query_scores, key_scores, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    z = a[..., None] + b[:, None]
    ds, dv = _graph_backward(g, graph_weights(leaky_relu(z, negative_slope), counts), v)
    dz = np.where(z > 0, ds, negative_slope * ds)  # (G4)
    return dz.sum(axis=2), dz.sum(axis=1), dv


def graph_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Array:
    """Graph attention with products for scores, equations (G1) to (G3).

    Args:
        query: (H, Tq, E).
        key: (H, Tk, E).
        value: (H, Tk, M).
        row_offsets: as in `edge_counts`.
        columns: as there.
        scale: factor of the scores, 1 / sqrt(E) by default.
        dtype: the dtype of all arithmetic.

    Returns:
        (H, Tq, M) of `dtype`.

    Source: S3.
    """
    q, k, v = (np.asarray(x, dtype) for x in (query, key, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    output: Array = graph_weights(scale * (q @ k.swapaxes(-1, -2)), counts) @ v  # (G1), (G3)
    return output


def graph_dot_product_attention_backward(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    row_offsets: ArrayLike,
    columns: ArrayLike,
    *,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """The gradient of `graph_dot_product_attention`, equations (G3), (8) and (G5).

    Args:
        grad_output: (H, Tq, M), dLoss/do.
        query: this and all the rest as in `graph_dot_product_attention`.
        key: as there.
        value: as there.
        row_offsets: as there.
        columns: as there.
        scale: as there.
        dtype: as there.

    Returns:
        dq (H, Tq, E), dk (H, Tk, E), dv (H, Tk, M).
    """
    g, q, k, v = (np.asarray(x, dtype) for x in (grad_output, query, key, value))
    counts = edge_counts(row_offsets, columns, v.shape[1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    ds, dv = _graph_backward(g, graph_weights(scale * (q @ k.swapaxes(-1, -2)), counts), v)
    return scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), dv  # (G5)


def _graph_backward(g: Array, p: Array, v: Array) -> tuple[Array, Array]:
    """Returns ds (H, Tq, Tk), which is zero where there is no edge, and dv."""
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # (8)
    return ds, p.swapaxes(-1, -2) @ g  # (G3)

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

    X = sum_j B_j C_j^T                        z = sum_j b_j C_j                               (8)
    y_i = X^T A_i + a_i z                                                                      (9)

in the time of Lq + Lk. Forward, the sums are S = sum_j k_j v_j^T and Z = sum_j k_j, and

    n_i = S^T q_i                              d_i = q_i . Z                                  (10)

Backward needs them again, and R = sum_i q_i gn_i^T and U = sum_i gd_i q_i:

    dq_i = S gn_i + gd_i Z           dk_j = R v_j + U           dv_j = R^T k_j                (11)

The kernels in this file:

    _feature_kernel          phi of every number, once, for the naive kernels
    _naive_forward_kernel    (1)-(3); a block owns a tile of queries and walks the keys
    _naive_gradient_kernel   (7); a block owns a tile of rows i and walks the rows j
    _sum_kernel              (8); a block owns a tile of rows of the sum and walks the sequence
    _forward_kernel          (10), (3); a block owns a tile of queries
    _gradient_kernel         (9); a block owns a tile of rows i

All but the first work on tiles of 32 x 32 numbers, with a warp to a row: threadIdx.x = x is a
column of a tile, and threadIdx.y = y a group of OWN rows, whose sums a thread keeps in registers,
for all `width` tiles side by side: what it reads of a row on the left serves all of them. Every sum
has one owner and a fixed order: results repeat bit by bit, without atomics.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from .arrays import (
    Array,
    array_module,
    ceil_div,
    contiguous,
    enough_blocks,
    kernel_dtype,
    lengths_or_full,
    round_up,
)
from .cuda import Kernel, cuda
from .feature_maps import feature_map as get_feature_map
from .guards import eps_or_default, normaliser_gradients
from .guards import guard as get_guard

TILE = 32  # rows and columns of a tile; the threads of a warp
PITCH = TILE + 1  # of a transposed tile: writing down its columns meets no bank twice
OWN = 4  # rows of a tile that a thread owns
GROUPS = TILE // OWN
THREADS = TILE, GROUPS
MAP_THREADS = 256
ENOUGH_BLOCKS = 128  # to keep all cores of a CPU busy, with some to spare
FEWEST_ROWS = 512  # of a sequence, that are worth a block of their own in (8)
WIDE = 2048  # numbers of tiles side by side that are used at a time: compilers unroll that much


def wide_tile(width: int) -> tuple[int, int]:
    """Rows and columns of what is used at a time of `width` tiles side by side."""
    columns = width * TILE
    return min(TILE, WIDE // columns), columns


@cache
def _feature_kernel(real: Any, feature_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value

    @cuda.jit(fastmath=True)
    def features(x, result):  # type: ignore[no-untyped-def]
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < x.size:
            result[i] = phi(x[i])

    return features


@cache
def _naive_forward_kernel(width: int, real: Any, guard_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def naive_forward(q, k, v, query_lengths, key_lengths, reach, eps, output, denominator):  # type: ignore[no-untyped-def]
        """Features q (N, H, Lq, E), k (N, H, Lk, E), v (N, H, Lk, M); the last two are written."""
        q_tile = cuda.shared.array((TILE, TILE), real)
        k_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        v_tile = cuda.shared.array((rows, columns), real)
        a_tile = cuda.shared.array((TILE, TILE), real)
        a_own = cuda.local.array(OWN, real)
        d_own = cuda.local.array(OWN, real)  # of the keys that this thread has met
        n_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first = cuda.blockIdx.x * TILE
        E, M = q.shape[3], v.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        walk = min(last_key, first + TILE + reach) if first < last_query else 0

        for r in range(OWN):
            d_own[r] = real(0)
            for m in range(width):
                n_own[m, r] = real(0)

        for start in range(0, walk, TILE):
            for r in range(OWN):
                a_own[r] = real(0)
            for e in range(0, E, TILE):
                for t in range(y, TILE, GROUPS):
                    q_tile[t, x] = real(0)
                    if first + t < last_query and e + x < E:
                        q_tile[t, x] = q[n, h, first + t, e + x]
                    k_tile[x, t] = real(0)
                    if start + t < last_key and e + x < E:
                        k_tile[x, t] = k[n, h, start + t, e + x]
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        a_own[r] += q_tile[y * OWN + r, s] * k_tile[s, x]  # (1)
                cuda.syncthreads()
            hidden = start + x - (first + y * OWN + reach)  # so many rows do not see the key
            for r in range(OWN):
                if r < hidden:
                    a_own[r] = real(0)
                a_tile[y * OWN + r, x] = a_own[r]
                d_own[r] += a_own[r]  # (2)
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        v_tile[t, m] = real(0)
                        if start + s + t < last_key and m < M:
                            v_tile[t, m] = v[n, h, start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            a = a_tile[y * OWN + r, s + t]
                            n_own[m, r] += a * v_tile[t, m * TILE + x]  # (2)
                cuda.syncthreads()

        for r in range(OWN):
            a_tile[y * OWN + r, x] = d_own[r]
        cuda.syncthreads()
        half = TILE // 2
        while half > 0:
            for t in range(y, TILE, GROUPS):
                if x < half:
                    a_tile[t, x] += a_tile[t, x + half]
            cuda.syncthreads()
            half //= 2

        for r in range(OWN):
            i = first + y * OWN + r
            if i < output.shape[2]:
                d = a_tile[y * OWN + r, 0]
                for m in range(width):
                    if m * TILE + x < M:
                        output[n, h, i, m * TILE + x] = n_own[m, r] / guard(d, eps)  # (3)
                if x == 0:
                    denominator[n, h, i] = d

    return naive_forward


@cache
def _naive_gradient_kernel(width: int, real: Any, result_map: str) -> Kernel:
    rows, columns = wide_tile(width)
    slope = get_feature_map(result_map, real).derivative

    @cuda.jit(fastmath=True)
    def naive_gradient(A, B, C, a, b, a_lengths, b_lengths, way, reach, raw, result):  # type: ignore[no-untyped-def]
        """Equation (7); row i sees row j where way * (j - i) <= reach. phi' of raw goes to y.

        A (N, H, La, D), B (N, H, Lb, D), C (N, H, Lb, M), a (N, H, La), b (N, H, Lb).
        """
        a_tile = cuda.shared.array((TILE, TILE), real)
        b_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        c_tile = cuda.shared.array((rows, columns), real)
        w_tile = cuda.shared.array((TILE, TILE), real)
        w_own = cuda.local.array(OWN, real)
        y_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first = cuda.blockIdx.x * TILE
        D, M = A.shape[3], C.shape[3]
        last_a, last_b = a_lengths[n], b_lengths[n]
        begin = 0 if way > 0 else max(0, first - reach)
        end = min(last_b, first + TILE + reach) if way > 0 else last_b
        if first >= last_a:
            end = begin

        for m in range(width):
            for r in range(OWN):
                y_own[m, r] = real(0)

        for start in range(begin, end, TILE):
            for r in range(OWN):
                w_own[r] = real(0)
            for d in range(0, D, TILE):
                for t in range(y, TILE, GROUPS):
                    a_tile[t, x] = real(0)
                    if first + t < last_a and d + x < D:
                        a_tile[t, x] = A[n, h, first + t, d + x]
                    b_tile[x, t] = real(0)
                    if start + t < last_b and d + x < D:
                        b_tile[x, t] = B[n, h, start + t, d + x]
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        w_own[r] += a_tile[y * OWN + r, s] * b_tile[s, x]  # (7)
                cuda.syncthreads()
            for r in range(OWN):
                i, j = first + y * OWN + r, start + x
                w_tile[y * OWN + r, x] = real(0)
                if i < last_a and j < last_b and way * (j - i) <= reach:
                    w_tile[y * OWN + r, x] = w_own[r] + a[n, h, i] * b[n, h, j]  # (7)
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        c_tile[t, m] = real(0)
                        if start + s + t < last_b and m < M:
                            c_tile[t, m] = C[n, h, start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            w = w_tile[y * OWN + r, s + t]
                            y_own[m, r] += w * c_tile[t, m * TILE + x]  # (7)
                cuda.syncthreads()

        for r in range(OWN):
            i = first + y * OWN + r
            for m in range(width):
                c = m * TILE + x
                if i < result.shape[2] and c < M:
                    result[n, h, i, c] = real(0)
                    if i < last_a:
                        result[n, h, i, c] = y_own[m, r] * slope(raw[n, h, i, c])

    return naive_gradient


@cache
def _sum_kernel(width: int, real: Any, feature_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    phi = get_feature_map(feature_name, real).value

    @cuda.jit(fastmath=True)
    def sums(B, C, b, lengths, span, X, X_transposed, z):  # type: ignore[no-untyped-def]
        """B (N, H, L, D) before phi, C (N, H, L, M), b (N, H, L); the rest is written to."""
        b_tile = cuda.shared.array((TILE, TILE), real)
        c_tile = cuda.shared.array((rows, columns), real)
        X_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        tiles = z.shape[3] // TILE
        part = cuda.blockIdx.x // tiles
        first_d = cuda.blockIdx.x % tiles * TILE
        begin = part * span
        end = min(begin + span, lengths[n])

        for m in range(width):
            for r in range(OWN):
                X_own[m, r] = real(0)
        z_own = real(0)  # of the rows that this thread has loaded

        for start in range(begin, end, TILE):
            for t in range(y, TILE, GROUPS):
                b_tile[t, x] = real(0)
                if start + t < end and first_d + x < B.shape[3]:
                    b_tile[t, x] = phi(B[n, h, start + t, first_d + x])
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        c_tile[t, m] = real(0)
                        if start + s + t < end and m < C.shape[3]:
                            c_tile[t, m] = C[n, h, start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            B_tr = b_tile[s + t, y * OWN + r]
                            X_own[m, r] += B_tr * c_tile[t, m * TILE + x]  # (8)
                cuda.syncthreads()
            for r in range(OWN):
                t = r * GROUPS + y
                z_own += b[n, h, min(start + t, end - 1)] * b_tile[t, x]  # (8)

        c_tile[y, x] = z_own
        cuda.syncthreads()
        if y == 0:
            total = real(0)
            for group in range(GROUPS):
                total += c_tile[group, x]
            z[part, n, h, first_d + x] = total
        for m in range(width):
            for r in range(OWN):
                d = first_d + y * OWN + r
                X[part, n, h, d, m * TILE + x] = X_own[m, r]
                X_transposed[part, n, h, m * TILE + x, d] = X_own[m, r]

    return sums


@cache
def _forward_kernel(width: int, real: Any, feature_name: str, guard_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def forward(query, S, Z, query_lengths, eps, output, denominator):  # type: ignore[no-untyped-def]
        """`query` (N, H, L, E), S and Z of whole tiles; the last two are written to."""
        q_tile = cuda.shared.array((TILE, TILE), real)
        s_tile = cuda.shared.array((rows, columns), real)
        d_tile = cuda.shared.array((TILE, TILE), real)  # in each row, the terms of d
        n_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first = cuda.blockIdx.x * TILE
        end = query_lengths[n]

        for m in range(width):
            for r in range(OWN):
                n_own[m, r] = real(0)
        for t in range(y, TILE, GROUPS):
            d_tile[t, x] = real(0)

        for e in range(0, query.shape[3], TILE):
            for t in range(y, TILE, GROUPS):
                q_tile[t, x] = real(0)
                if first + t < end and e + x < query.shape[3]:
                    q_tile[t, x] = phi(query[n, h, first + t, e + x])
                d_tile[t, x] += q_tile[t, x] * Z[n, h, e + x]  # (10)
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        s_tile[t, m] = S[n, h, e + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            q = q_tile[y * OWN + r, s + t]
                            n_own[m, r] += q * s_tile[t, m * TILE + x]  # (10)
                cuda.syncthreads()

        half = TILE // 2
        while half > 0:
            for t in range(y, TILE, GROUPS):
                if x < half:
                    d_tile[t, x] += d_tile[t, x + half]
            cuda.syncthreads()
            half //= 2

        for r in range(OWN):
            i = first + y * OWN + r
            if i < output.shape[2]:
                for m in range(width):
                    if m * TILE + x < output.shape[3]:
                        D = guard(d_tile[y * OWN + r, 0], eps)
                        output[n, h, i, m * TILE + x] = n_own[m, r] / D  # (3)
                if x == 0:
                    denominator[n, h, i] = d_tile[y * OWN + r, 0]

    return forward


@cache
def _gradient_kernel(width: int, real: Any, rows_map: str, result_map: str) -> Kernel:
    """Equation (9): phi of `rows_map` goes to the rows A, phi' of `result_map` to the result y."""
    rows, columns = wide_tile(width)
    phi = get_feature_map(rows_map, real).value
    slope = get_feature_map(result_map, real).derivative

    @cuda.jit(fastmath=True)
    def gradient(A, X, a, z, lengths, raw, result):  # type: ignore[no-untyped-def]
        """A (N, H, L, D), X and z of whole tiles, a (N, H, L); phi' of raw goes to the result."""
        a_tile = cuda.shared.array((TILE, TILE), real)
        x_tile = cuda.shared.array((rows, columns), real)
        y_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first = cuda.blockIdx.x * TILE
        end = lengths[n]

        for m in range(width):
            for r in range(OWN):
                y_own[m, r] = real(0)

        for d in range(0, A.shape[3], TILE):
            for t in range(y, TILE, GROUPS):
                a_tile[t, x] = real(0)
                if first + t < end and d + x < A.shape[3]:
                    a_tile[t, x] = phi(A[n, h, first + t, d + x])
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        x_tile[t, m] = X[n, h, d + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            A_rt = a_tile[y * OWN + r, s + t]
                            y_own[m, r] += A_rt * x_tile[t, m * TILE + x]  # (9)
                cuda.syncthreads()

        for m in range(width):
            c = m * TILE + x
            for r in range(OWN):
                i = first + y * OWN + r
                if i < result.shape[2] and c < result.shape[3]:
                    result[n, h, i, c] = real(0)
                    if i < end:
                        total = y_own[m, r] + a[n, h, i] * z[n, h, c]  # (9)
                        result[n, h, i, c] = total * slope(raw[n, h, i, c])

    return gradient


class _Sums(NamedTuple):
    """X and z of equation (8), padded with zeros to whole tiles, and X the other way round."""

    X: Array
    X_transposed: Array
    z: Array


def _sums(B: Array, C: Array, b: Array, lengths: Array, feature_map: str) -> _Sums:
    """Equation (8), for rows B that are yet to go through the feature map."""
    N, H, L, D = B.shape
    xp = array_module(B)
    rows, width = tile_count(D), tile_count(C.shape[3])
    enough = enough_blocks(B, ENOUGH_BLOCKS) // (N * H * rows)
    parts = max(1, min(enough, L // FEWEST_ROWS))
    span = ceil_div(ceil_div(L, parts), TILE) * TILE
    X = xp.empty((parts, N, H, rows * TILE, width * TILE), B.dtype)
    X_transposed = xp.empty((parts, N, H, width * TILE, rows * TILE), B.dtype)
    z = xp.empty((parts, N, H, rows * TILE), B.dtype)
    kernel = _sum_kernel(width, kernel_dtype(B), feature_map)
    kernel[(parts * rows, H, N), THREADS](B, C, b, lengths, span, X, X_transposed, z)
    return _Sums(*(share[0] if parts == 1 else share.sum(axis=0) for share in (X, X_transposed, z)))


def block_count(count: int, size: int = TILE) -> int:
    """How many blocks share out `count` things; one even for none, as a launch needs a block."""
    return max(1, ceil_div(count, size))


def tile_count(size: int) -> int:
    """The tiles side by side of which a kernel keeps the sums."""
    return ceil_div(round_up(size), TILE)


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array]:
    """Bidirectional linear attention, equations (8), (10) and (3), in time O((Lq + Lk) E M).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        feature_map: "elu" for phi(x) = elu(x) + 1, or "identity" where they are features.
        query_lengths: (N,) integers; later rows of the output are zero. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        guard: what keeps the denominator off zero: "clamp", "add" or "signed".
        eps: the guard's size; None for its default.

    Returns:
        The output (N, H, Lq, M), and d of equation (2) (N, H, Lq), which the backward needs.

    Source: Katharopoulos et al. 2020, equations 4 and 5; S1.
    """
    query, key, value = contiguous(query, key, value)
    N, H, L, _ = query.shape
    xp, real = array_module(query), kernel_dtype(query)
    queries = lengths_or_full(query_lengths, N, L, query)
    keys = lengths_or_full(key_lengths, N, key.shape[2], query)
    sums = _sums(key, value, xp.ones(key.shape[:3], key.dtype), keys, feature_map)
    output = xp.empty((N, H, L, value.shape[3]), query.dtype)
    denominator = xp.empty((N, H, L), query.dtype)
    kernel = _forward_kernel(tile_count(value.shape[3]), real, feature_map, guard)
    kernel[(block_count(L), H, N), THREADS](
        query, sums.X, sums.z, queries, eps_or_default(guard, eps, query), output, denominator
    )
    return output, denominator


def backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    denominator: Array,
    *,
    feature_map: str = "elu",
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of `forward`, equations (8) and (11).

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        query: this and all the rest as `forward` took and returned it.
        key: as there.
        value: as there.
        output: as there.
        denominator: as there.
        feature_map: as there.
        query_lengths: as there.
        key_lengths: as there.
        guard: as there.
        eps: as there.

    Returns:
        The gradients of query, key and value.
    """
    options: dict[str, Any] = {"query_lengths": query_lengths, "key_lengths": key_lengths}
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key.shape[2], guard=guard, eps=eps, **options
    )
    return gradients(gn, gd, query, key, value, feature_map=feature_map, **options)


def gradients(
    gn: Array,
    gd: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of the numerators and denominators of `forward`, equations (8) and (11).

    Args:
        gn: (N, H, Lq, M), the gradient of n; zero in rows that are padding or see nothing.
        gd: (N, H, Lq), the gradient of d, likewise.
        query: this and all the rest as in `forward`.
        key: as there.
        value: as there.
        feature_map: as there.
        query_lengths: as there.
        key_lengths: as there.

    Returns:
        The gradients of query, key and value.
    """
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    N, xp = len(query), array_module(query)
    queries = lengths_or_full(query_lengths, N, query.shape[2], query)
    keys = lengths_or_full(key_lengths, N, key.shape[2], query)
    ones, zeros = (make(key.shape[:3], key.dtype) for make in (xp.ones, xp.zeros))
    S, R = _sums(key, value, ones, keys, feature_map), _sums(query, gn, gd, queries, feature_map)
    dq = _gradient(gn, S.X_transposed, gd, S.z, queries, query, "identity", feature_map)
    dk = _gradient(value, R.X_transposed, ones, R.z, keys, key, "identity", feature_map)
    dv = _gradient(key, R.X, zeros, R.X[:, :, 0], keys, value, feature_map, "identity")
    return dq, dk, dv


def _gradient(
    A: Array,
    X: Array,
    a: Array,
    z: Array,
    lengths: Array,
    raw: Array,
    rows_map: str,
    result_map: str,
) -> Array:
    """Equation (9)."""
    N, H, L, width = raw.shape
    result = array_module(A).empty_like(raw)
    kernel = _gradient_kernel(tile_count(width), kernel_dtype(A), rows_map, result_map)
    kernel[(block_count(L), H, N), THREADS](A, X, a, *contiguous(z), lengths, raw, result)
    return result


def naive_forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array]:
    """Linear attention by its quadratic form, equations (1) to (3), in time O(Lq Lk (E + M)).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        feature_map: "elu" for phi(x) = elu(x) + 1, or "identity" where they are features.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later rows of the output are zero. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        guard: what keeps the denominator off zero: "clamp", "add" or "signed".
        eps: the guard's size; None for its default.

    Returns:
        The output (N, H, Lq, M), and d of equation (2) (N, H, Lq), which the backward needs.

    Source: Katharopoulos et al. 2020, equations 4 and 5; S1.
    """
    query, key, value = contiguous(query, key, value)
    (N, H, L, _), (Lk, M) = query.shape, value.shape[2:]
    xp = array_module(query)
    output, denominator = xp.empty((N, H, L, M), query.dtype), xp.empty((N, H, L), query.dtype)
    kernel = _naive_forward_kernel(tile_count(M), kernel_dtype(query), guard)
    kernel[(block_count(L), H, N), THREADS](
        elementwise_features(query, feature_map),
        elementwise_features(key, feature_map),
        value,
        lengths_or_full(query_lengths, N, L, query),
        lengths_or_full(key_lengths, N, Lk, query),
        query_offset if causal else Lk,
        eps_or_default(guard, eps, query),
        output,
        denominator,
    )
    return output, denominator


def elementwise_features(x: Array, feature_map: str) -> Array:
    """Phi of every number of a contiguous array."""
    result = array_module(x).empty_like(x)
    kernel = _feature_kernel(kernel_dtype(x), feature_map)
    kernel[block_count(x.size, MAP_THREADS), MAP_THREADS](x.reshape(-1), result.reshape(-1))
    return result


def naive_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    denominator: Array,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of `naive_forward`, three times equation (7).

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        query: this and all the rest as `naive_forward` took and returned it.
        key: as there.
        value: as there.
        output: as there.
        denominator: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        guard: as there.
        eps: as there.

    Returns:
        The gradients of query, key and value.
    """
    options: dict[str, Any] = {
        "causal": causal,
        "query_offset": query_offset,
        "query_lengths": query_lengths,
        "key_lengths": key_lengths,
    }
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key.shape[2], guard=guard, eps=eps, **options
    )
    return naive_gradients(gn, gd, query, key, value, feature_map=feature_map, **options)


def naive_gradients(
    gn: Array,
    gd: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: str = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of the numerators and denominators of `naive_forward`, equation (7).

    Args:
        gn: (N, H, Lq, M), the gradient of n; zero in rows that are padding or see nothing.
        gd: (N, H, Lq), the gradient of d, likewise.
        query: this and all the rest as in `naive_forward`.
        key: as there.
        value: as there.
        feature_map: as there.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.

    Returns:
        The gradients of query, key and value.
    """
    query, key, value, gn, gd = contiguous(query, key, value, gn, gd)
    (N, H, Lq, _), Lk = query.shape, key.shape[2]
    xp = array_module(query)
    queries = lengths_or_full(query_lengths, N, Lq, query)
    keys = lengths_or_full(key_lengths, N, Lk, query)
    q, k = elementwise_features(query, feature_map), elementwise_features(key, feature_map)
    reach = query_offset if causal else max(Lq, Lk)
    ones, none_q, none_k = (
        xp.ones((N, H, Lk), q.dtype),
        xp.zeros((N, H, Lq), q.dtype),
        xp.zeros((N, H, Lk), q.dtype),
    )
    dq = _naive_gradient(gn, value, k, gd, ones, queries, keys, 1, reach, query, feature_map)
    dk = _naive_gradient(value, gn, q, ones, gd, keys, queries, -1, reach, key, feature_map)
    dv = _naive_gradient(k, q, gn, none_k, none_q, keys, queries, -1, reach, value, "identity")
    return dq, dk, dv


def _naive_gradient(
    A: Array, B: Array, C: Array, a: Array, b: Array, a_lengths: Array, b_lengths: Array,
    way: int, reach: int, raw: Array, result_map: str,
) -> Array:  # fmt: skip
    """Equation (7)."""
    N, H, L, width = raw.shape
    result = array_module(raw).empty_like(raw)
    kernel = _naive_gradient_kernel(tile_count(width), kernel_dtype(raw), result_map)
    kernel[(block_count(L), H, N), THREADS](
        A, B, C, a, b, a_lengths, b_lengths, way, reach, raw, result
    )
    return result

"""The kernels that run: products of matrices, tile by tile.

    naive_forward    (1)-(3); a block owns a tile of queries and walks the keys
    naive_gradient   (7); a block owns a tile of rows i and walks the rows j
    sums             (8); a block owns a tile of rows of the sum and walks the sequence
    forward          (10), (3); a block owns a tile of queries
    gradient         (9); a block owns a tile of rows i

What they add to `plain`; results/ladder says what it brings:

    tiles in shared memory     of 32 x 32 numbers: what is read from memory once serves 32 rows
    several sums a thread      of OWN rows, and of all `width` tiles side by side, in registers:
                               what is read of a row on the left serves all of them
    transposed, with a pitch   neighbouring threads read neighbouring numbers of a tile; as rows
                               have 33 of them, what neighbours write lies in different banks, too
    d as a tree                a warp adds the terms of d up by halves; in (10) in registers
    a sequence in parts        in (8), where heads are too few to keep all processors busy; the
                               shares are added up afterwards

A warp works on a row of a tile: threadIdx.x = x is a column, and threadIdx.y = y a group of OWN
rows. Every sum has one owner and a fixed order: results repeat bit by bit, without atomics.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import Array, array_module, ceil_div, contiguous, enough_blocks, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import guard as get_guard
from ..tiles import (
    GROUPS,
    OWN,
    PITCH,
    THREADS,
    TILE,
    block_count,
    load,
    load_transposed,
    loader,
    tile_count,
    warp_sum,
    wide_tile,
)

ENOUGH_BLOCKS = 128  # to keep all cores of a CPU busy, with some to spare
FEWEST_ROWS = 512  # of a sequence, that are worth a block of their own in (8)


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
                load(q_tile, q, n, h, first, last_query, e)
                load_transposed(k_tile, k, n, h, start, last_key, e)
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
                load(v_tile, v, n, h, start + s, last_key, 0)
                cuda.syncthreads()
                for t in range(rows):
                    for m in range(width):
                        for r in range(OWN):
                            a = a_tile[y * OWN + r, s + t]
                            more = n_own[m, r] + a * v_tile[t, m * TILE + x]  # (2)
                            n_own[m, r] = cuda.selp(a != real(0), more, n_own[m, r])
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


def naive_forward(
    q: Array, k: Array, v: Array, query_lengths: Array, key_lengths: Array, reach: int, eps: Any,
    guard: str, output: Array, denominator: Array,
) -> None:  # fmt: skip
    """Equations (1) to (3), of features; the last two are written to."""
    N, H, L, M = output.shape
    kernel = _naive_forward_kernel(tile_count(M, "value dim"), kernel_dtype(q), guard)
    kernel[(block_count(L), H, N), THREADS](
        q, k, v, query_lengths, key_lengths, reach, eps, output, denominator
    )


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
                for t in range(rows):
                    for m in range(width):
                        for r in range(OWN):
                            w = w_tile[y * OWN + r, s + t]
                            more = y_own[m, r] + w * c_tile[t, m * TILE + x]  # (7)
                            y_own[m, r] = cuda.selp(w != real(0), more, y_own[m, r])
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


def naive_gradient(
    A: Array, B: Array, C: Array, a: Array, b: Array, a_lengths: Array, b_lengths: Array,
    way: int, reach: int, raw: Array, result_map: str,
) -> Array:  # fmt: skip
    """Equation (7), times phi' of raw."""
    N, H, L, width = raw.shape
    result = array_module(raw).empty_like(raw)
    kernel = _naive_gradient_kernel(tile_count(width), kernel_dtype(raw), result_map)
    kernel[(block_count(L), H, N), THREADS](
        A, B, C, a, b, a_lengths, b_lengths, way, reach, raw, result
    )
    return result


@cache
def _sum_kernel(width: int, real: Any, feature_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    phi = get_feature_map(feature_name, real).value

    @cuda.jit(fastmath=True)
    def sums(C, B, b, lengths, span, X, X_transposed, z):  # type: ignore[no-untyped-def]
        """C (N, H, L, M) before phi, B (N, H, L, D), b (N, H, L); the last three are written to."""
        c_tile = cuda.shared.array((TILE, TILE), real)
        b_tile = cuda.shared.array((rows, columns), real)
        X_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        tiles = z.shape[3] // TILE
        part = cuda.blockIdx.x // tiles
        first_c = cuda.blockIdx.x % tiles * TILE
        begin = part * span
        end = min(begin + span, lengths[n])

        for m in range(width):
            for r in range(OWN):
                X_own[m, r] = real(0)
        z_own = real(0)  # of the rows that this thread has loaded

        for start in range(begin, end, TILE):
            for t in range(y, TILE, GROUPS):
                c_tile[t, x] = real(0)
                if start + t < end and first_c + x < C.shape[3]:
                    c_tile[t, x] = phi(C[n, h, start + t, first_c + x])
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    for m in range(x, columns, TILE):
                        b_tile[t, m] = real(0)
                        if start + s + t < end and m < B.shape[3]:
                            b_tile[t, m] = B[n, h, start + s + t, m]
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            C_tr = c_tile[s + t, y * OWN + r]
                            X_own[m, r] += C_tr * b_tile[t, m * TILE + x]  # (8)
                cuda.syncthreads()
            for r in range(OWN):
                t = r * GROUPS + y
                z_own += b[n, h, min(start + t, end - 1)] * c_tile[t, x]  # (8)

        b_tile[y, x] = z_own
        cuda.syncthreads()
        if y == 0:
            total = real(0)
            for group in range(GROUPS):
                total += b_tile[group, x]
            z[part, n, h, first_c + x] = total
        for m in range(width):
            for r in range(OWN):
                c = first_c + y * OWN + r
                X[part, n, h, c, m * TILE + x] = X_own[m, r]
                X_transposed[part, n, h, m * TILE + x, c] = X_own[m, r]

    return sums


def sums(C: Array, B: Array, b: Array, lengths: Array, feature_map: str) -> tuple[Array, ...]:
    """X, X^T and z of equation (8), for rows C before phi: padded with zeros to whole tiles."""
    N, H, L, M = C.shape
    xp = array_module(C)
    rows, width = block_count(M), tile_count(B.shape[3], "value dim")
    enough = enough_blocks(C, ENOUGH_BLOCKS) // max(1, N * H * rows)
    parts = max(1, min(enough, L // FEWEST_ROWS))
    span = ceil_div(ceil_div(L, parts), TILE) * TILE
    X = xp.empty((parts, N, H, rows * TILE, width * TILE), C.dtype)
    X_transposed = xp.empty((parts, N, H, width * TILE, rows * TILE), C.dtype)
    z = xp.empty((parts, N, H, rows * TILE), C.dtype)
    kernel = _sum_kernel(width, kernel_dtype(C), feature_map)
    kernel[(parts * rows, H, N), THREADS](C, B, b, lengths, span, X, X_transposed, z)
    return tuple(share[0] if parts == 1 else share.sum(axis=0) for share in (X, X_transposed, z))


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

        for r in range(OWN):
            i = first + y * OWN + r
            d = warp_sum(d_tile[y * OWN + r, x])
            if i < output.shape[2]:
                for m in range(width):
                    if m * TILE + x < output.shape[3]:
                        output[n, h, i, m * TILE + x] = n_own[m, r] / guard(d, eps)  # (3)
                if x == 0:
                    denominator[n, h, i] = d

    return forward


def forward(
    query: Array, S: Array, Z: Array, query_lengths: Array, eps: Any, feature_map: str, guard: str,
    output: Array, denominator: Array,
) -> None:  # fmt: skip
    """Equations (10) and (3); the last two are written to."""
    N, H, L, M = output.shape
    kernel = _forward_kernel(tile_count(M, "value dim"), kernel_dtype(query), feature_map, guard)
    kernel[(block_count(L), H, N), THREADS](query, S, Z, query_lengths, eps, output, denominator)


@cache
def _gradient_kernel(width: int, real: Any, rows_map: str, result_map: str) -> Kernel:
    """Equation (9): phi of `rows_map` goes to the rows A, phi' of `result_map` to the result y."""
    rows, columns = wide_tile(width)
    load_features = loader(get_feature_map(rows_map, real).value)
    slope = get_feature_map(result_map, real).derivative

    @cuda.jit(fastmath=True)
    def gradient(A, X, a, z, lengths, raw, result):  # type: ignore[no-untyped-def]
        """A (N, H, L, D), X^T (N, H, D, M) in X, a (N, H, L), z (N, H, M), or with more columns."""
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
            load_features(a_tile, A, n, h, first, end, d)
            for s in range(0, TILE, rows):
                load(x_tile, X, n, h, d + s, X.shape[2], 0)
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


def gradient(
    A: Array, X: Array, a: Array, z: Array, lengths: Array, raw: Array, rows_map: str,
    result_map: str,
) -> Array:  # fmt: skip
    """Equation (9), times phi' of raw."""
    N, H, L, width = raw.shape
    result = array_module(A).empty_like(raw)
    kernel = _gradient_kernel(tile_count(width), kernel_dtype(A), rows_map, result_map)
    kernel[(block_count(L), H, N), THREADS](A, X, a, *contiguous(z), lengths, raw, result)
    return result

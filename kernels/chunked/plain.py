"""The kernels that a learner writes first: states where chunks begin, and then each row by itself.

All states come first, in memory: a thread owns a number of them, and walks the tokens. From then on
rows know nothing of each other: a thread owns one, reads the state before its chunk, and adds the
tokens of the chunk. Rows are counted from where the walk begins: from the end, where `way` is -1.
A span is where a sequence lies: its batch, its first row, how many rows count, and how many there
are (`arrays.spans`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, ceil_div, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import guard as get_guard


@cache
def _state_kernel(real: Any, rows_map: str, result_map: str) -> Kernel:
    """The map of `rows_map` is for B, that of `result_map` for C."""
    map_b, map_c = (get_feature_map(name, real).value for name in (rows_map, result_map))

    @cuda.jit
    def states(B, C, b, spans_b, begin, way, chunk, X, x):  # type: ignore[no-untyped-def]
        """B (N, H, Lb, D), C (N, H, Lb, M), b (N, H, Lb).

        X (chunks + 1, N, H, D, M) and x (chunks + 1, N, H, M) are those before each chunk; the
        first is given, the others are written. `way` is 1, or -1 to read from the end.
        """
        D, M = B.shape[3], C.shape[3]
        d, c = cuda.grid(1) // M, cuda.grid(1) % M
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        batch, first, last, Lb = spans_b[n, 0], spans_b[n, 1], spans_b[n, 2], spans_b[n, 3]
        if d < D:
            X_dc, x_c = X[0, n, h, d, c], x[0, n, h, c]
            for number in range(1, X.shape[0]):
                stop = begin + number * chunk
                for p in range(stop - chunk, stop):
                    j = p if way > 0 else Lb - 1 - p
                    if 0 <= j < last:
                        C_jc = map_c(C[batch, h, first + j, c])
                        X_dc += map_b(B[batch, h, first + j, d]) * C_jc  # (10)
                        x_c += b[batch, h, first + j] * C_jc  # (10)
                X[number, n, h, d, c] = X_dc
                if d == 0:
                    x[number, n, h, c] = x_c

    return states


def _states(
    B: Array, C: Array, b: Array, spans_b: Array, begin: int, end: int, way: int, chunk: int,
    X0: Array, x0: Array, rows_map: str, result_map: str,
) -> tuple[Array, Array]:  # fmt: skip
    """X and x before each chunk of the positions from `begin` to `end`, and after the last."""
    (N, H, D, M), xp = X0.shape, array_module(B)
    X, x = (xp.empty((ceil_div(end - begin, chunk) + 1, *s.shape), s.dtype) for s in (X0, x0))
    X[0], x[0] = X0, x0
    kernel = a_thread_each(_state_kernel(kernel_dtype(B), rows_map, result_map), D * M, H, N)
    kernel(B, C, b, spans_b, begin, way, chunk, X, x)
    return X, x


@cache
def _forward_kernel(real: Any, feature_name: str, guard_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, queries, keys, offset, chunk, eps, S, Z, output, denominator
    ):
        """Query (N, H, Lq, E), key (N, H, Lk, E), value (N, H, Lk, M), and the spans of both.

        S^T (chunks + 1, N, H, M, E) and Z (chunks + 1, N, H, E) are those before each chunk.
        """
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        batch, first_query, last_query = queries[n, 0], queries[n, 1], queries[n, 2]
        first_key, last_key = keys[n, 1], keys[n, 2]
        if i < queries[n, 3]:
            E = query.shape[3] if i < last_query else 0  # padding has no features
            begin, row = min(0, offset), first_query + i
            number = (i + offset - begin) // chunk
            d = real(0)
            for e in range(E):
                d += phi(query[batch, h, row, e]) * Z[number, n, h, e]  # (4)
            for m in range(value.shape[3]):
                total = real(0)
                for e in range(E):
                    total += phi(query[batch, h, row, e]) * S[number, n, h, m, e]  # (4)
                output[batch, h, row, m] = total
            for j in range(max(0, begin + number * chunk), min(i + offset + 1, last_key)):
                a = real(0)
                for e in range(E):
                    a += phi(query[batch, h, row, e]) * phi(key[batch, h, first_key + j, e])  # (3)
                d += a  # (4)
                for m in range(value.shape[3]):
                    output[batch, h, row, m] += a * value[batch, h, first_key + j, m]  # (4)
            for m in range(value.shape[3]):
                output[batch, h, row, m] /= guard(d, eps)  # (6)
            denominator[batch, h, row] = d

    return forward


def forward(
    chunk: int, query: Array, key: Array, value: Array, queries: Array, keys: Array, offset: int,
    eps: Any, feature_map: str, guard: str, S0: Array, Z0: Array, output: Array, denominator: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Equations (3) to (6): the last two are written to, and the next state is returned.

    S^T = V^T K and Z = K^T 1 are a X and a x of (10).
    """
    (_, H, Lq, _), Lk = query.shape, key.shape[2]
    begin, end = min(0, offset), max(Lk, Lq + offset)
    ones = array_module(key).ones(key.shape[:3], key.dtype)
    S, Z = _states(
        value, key, ones, keys, begin, end, 1, chunk, S0.swapaxes(-1, -2), Z0,
        "identity", feature_map,
    )  # fmt: skip
    kernel = _forward_kernel(kernel_dtype(query), feature_map, guard)
    a_thread_each(kernel, Lq, H, len(queries))(
        query, key, value, queries, keys, offset, chunk, eps, S, Z, output, denominator
    )
    return S[-1].swapaxes(-1, -2), Z[-1]


@cache
def _scan_kernel(real: Any, rows_map: str, result_map: str) -> Kernel:
    """The map of `rows_map` is for A and B, that of `result_map` for C, and its slope for y."""
    map_ab = get_feature_map(rows_map, real).value
    map_c, slope = get_feature_map(result_map, real)

    @cuda.jit
    def scan(A, B, C, a, b, spans_a, spans_b, offset, way, chunk, X, x, raw, y):  # type: ignore[no-untyped-def]
        """A (N, H, La, D), B (N, H, Lb, D), C (N, H, Lb, M), a (N, H, La), b (N, H, Lb).

        X and x are those before each chunk; phi' of raw goes to y.
        """
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        batch, first_a, last_a, La = spans_a[n, 0], spans_a[n, 1], spans_a[n, 2], spans_a[n, 3]
        first_b, last_b, Lb = spans_b[n, 1], spans_b[n, 2], spans_b[n, 3]
        D, M, begin = A.shape[3], C.shape[3], min(0, offset)
        u = cuda.grid(1)
        if u < La:
            i = u if way > 0 else La - 1 - u
            row, number = first_a + i, (u + offset - begin) // chunk
            for c in range(M):
                total = real(0)
                if i < last_a:
                    total = a[batch, h, row] * x[number, n, h, c]
                    for d in range(D):
                        total += map_ab(A[batch, h, row, d]) * X[number, n, h, d, c]  # (9)
                y[batch, h, row, c] = total
            for turn in range(max(0, begin + number * chunk), min(u + offset + 1, Lb)):
                j = turn if way > 0 else Lb - 1 - turn
                if i < last_a and j < last_b:
                    w = a[batch, h, row] * b[batch, h, first_b + j]
                    for d in range(D):
                        A_id = map_ab(A[batch, h, row, d])
                        w += A_id * map_ab(B[batch, h, first_b + j, d])  # (8)
                    for c in range(M):
                        y[batch, h, row, c] += w * map_c(C[batch, h, first_b + j, c])  # (9)
            for c in range(M):
                if i < last_a:
                    y[batch, h, row, c] *= slope(raw[batch, h, row, c])

    return scan


def scan(
    chunk: int, A: Array, B: Array, C: Array, a: Array, b: Array, spans_a: Array, spans_b: Array,
    offset: int, way: int, X0: Array, x0: Array, raw: Array, rows_map: str, result_map: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Equations (8) to (10) for one row of the table of (7): y, X_L and x_L."""
    (_, H, La, _), Lb = A.shape, B.shape[2]
    begin, end = min(0, offset), max(Lb, La + offset)
    X, x = _states(B, C, b, spans_b, begin, end, way, chunk, X0, x0, rows_map, result_map)
    y = array_module(raw).empty_like(raw)
    kernel = _scan_kernel(kernel_dtype(A), rows_map, result_map)
    a_thread_each(kernel, La, H, len(spans_a))(
        A, B, C, a, b, spans_a, spans_b, offset, way, chunk, X, x, raw, y
    )
    return y, X[-1], x[-1]

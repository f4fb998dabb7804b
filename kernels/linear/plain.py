"""The kernels that a learner writes first: a thread owns a row, or a number of a sum.

A query or a key that is padding counts as one without features, and its sums as empty.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import guard as get_guard


@cache
def _naive_forward_kernel(real: Any, guard_name: str) -> Kernel:
    guard = get_guard(guard_name, real).value

    @cuda.jit
    def naive_forward(q, k, v, query_lengths, key_lengths, reach, eps, output, denominator):  # type: ignore[no-untyped-def]
        """Features q (N, H, Lq, E), k (N, H, Lk, E), v (N, H, Lk, M); the last two are written."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if i < output.shape[2]:
            seen = min(key_lengths[n], i + reach + 1) if i < query_lengths[n] else 0
            d = real(0)
            for m in range(v.shape[3]):
                output[n, h, i, m] = real(0)
            for j in range(seen):
                a = real(0)
                for e in range(q.shape[3]):
                    a += q[n, h, i, e] * k[n, h, j, e]  # (1)
                d += a  # (2)
                for m in range(v.shape[3]):
                    output[n, h, i, m] += a * v[n, h, j, m]  # (2)
            for m in range(v.shape[3]):
                output[n, h, i, m] /= guard(d, eps)  # (3)
            denominator[n, h, i] = d

    return naive_forward


def naive_forward(
    q: Array, k: Array, v: Array, query_lengths: Array, key_lengths: Array, reach: int, eps: Any,
    guard: str, output: Array, denominator: Array,
) -> None:  # fmt: skip
    """Equations (1) to (3), of features; a thread owns a query."""
    N, H, L, _ = output.shape
    kernel = a_thread_each(_naive_forward_kernel(kernel_dtype(q), guard), L, H, N)
    kernel(q, k, v, query_lengths, key_lengths, reach, eps, output, denominator)


@cache
def _naive_gradient_kernel(real: Any, result_map: str) -> Kernel:
    slope = get_feature_map(result_map, real).derivative

    @cuda.jit
    def naive_gradient(A, B, C, a, b, a_lengths, b_lengths, way, reach, raw, y):  # type: ignore[no-untyped-def]
        """Row i sees row j where way * (j - i) <= reach. phi' of raw goes to y.

        A (N, H, La, D), B (N, H, Lb, D), C (N, H, Lb, M), a (N, H, La), b (N, H, Lb).
        """
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if i < y.shape[2]:
            for c in range(C.shape[3]):
                y[n, h, i, c] = real(0)
            for j in range(b_lengths[n]):
                if i < a_lengths[n] and way * (j - i) <= reach:
                    w = a[n, h, i] * b[n, h, j]
                    for d in range(A.shape[3]):
                        w += A[n, h, i, d] * B[n, h, j, d]  # (7)
                    for c in range(C.shape[3]):
                        y[n, h, i, c] += w * C[n, h, j, c] * slope(raw[n, h, i, c])  # (7)

    return naive_gradient


def naive_gradient(
    A: Array, B: Array, C: Array, a: Array, b: Array, a_lengths: Array, b_lengths: Array,
    way: int, reach: int, raw: Array, result_map: str,
) -> Array:  # fmt: skip
    """Equation (7), times phi' of raw; a thread owns row i."""
    N, H, L, _ = raw.shape
    y = array_module(raw).empty_like(raw)
    kernel = a_thread_each(_naive_gradient_kernel(kernel_dtype(raw), result_map), L, H, N)
    kernel(A, B, C, a, b, a_lengths, b_lengths, way, reach, raw, y)
    return y


@cache
def _sum_kernel(real: Any, feature_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value

    @cuda.jit
    def sums(C, B, b, lengths, X, X_transposed, z):  # type: ignore[no-untyped-def]
        """C (N, H, L, M) before phi, B (N, H, L, D), b (N, H, L); the last three are written to."""
        M, D = C.shape[3], B.shape[3]
        c, d = cuda.grid(1) // D, cuda.grid(1) % D
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if c < M:
            X_cd, z_c = real(0), real(0)
            for j in range(lengths[n]):
                C_jc = phi(C[n, h, j, c])
                X_cd += C_jc * B[n, h, j, d]  # (8)
                z_c += b[n, h, j] * C_jc  # (8)
            X[n, h, c, d] = X_transposed[n, h, d, c] = X_cd
            if d == 0:
                z[n, h, c] = z_c

    return sums


def sums(C: Array, B: Array, b: Array, lengths: Array, feature_map: str) -> tuple[Array, ...]:
    """X, X^T and z of equation (8), for rows C before phi; a thread owns a number of X."""
    (N, H, _, M), D = C.shape, B.shape[3]
    xp = array_module(C)
    X, X_transposed, z = (xp.empty((N, H, *shape), C.dtype) for shape in ((M, D), (D, M), (M,)))
    kernel = a_thread_each(_sum_kernel(kernel_dtype(C), feature_map), M * D, H, N)
    kernel(C, B, b, lengths, X, X_transposed, z)
    return X, X_transposed, z


@cache
def _forward_kernel(real: Any, feature_name: str, guard_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit
    def forward(query, S, Z, query_lengths, eps, output, denominator):  # type: ignore[no-untyped-def]
        """`query` (N, H, L, E), S (N, H, E, M), Z (N, H, E); the last two are written to."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if i < output.shape[2]:
            E = query.shape[3] if i < query_lengths[n] else 0
            d = real(0)
            for e in range(E):
                d += phi(query[n, h, i, e]) * Z[n, h, e]  # (10)
            for m in range(output.shape[3]):
                total = real(0)
                for e in range(E):
                    total += phi(query[n, h, i, e]) * S[n, h, e, m]  # (10)
                output[n, h, i, m] = total / guard(d, eps)  # (3)
            denominator[n, h, i] = d

    return forward


def forward(
    query: Array, S: Array, Z: Array, query_lengths: Array, eps: Any, feature_map: str, guard: str,
    output: Array, denominator: Array,
) -> None:  # fmt: skip
    """Equations (10) and (3); a thread owns a query."""
    N, H, L, _ = output.shape
    kernel = a_thread_each(_forward_kernel(kernel_dtype(query), feature_map, guard), L, H, N)
    kernel(query, S, Z, query_lengths, eps, output, denominator)


@cache
def _gradient_kernel(real: Any, rows_map: str, result_map: str) -> Kernel:
    phi = get_feature_map(rows_map, real).value
    slope = get_feature_map(result_map, real).derivative

    @cuda.jit
    def gradient(A, X_transposed, a, z, lengths, raw, y):  # type: ignore[no-untyped-def]
        """A (N, H, L, D), X^T (N, H, D, M), a (N, H, L), z (N, H, M). phi' of raw goes to y."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if i < y.shape[2]:
            for c in range(y.shape[3]):
                y[n, h, i, c] = real(0)
                if i < lengths[n]:
                    total = a[n, h, i] * z[n, h, c]
                    for d in range(A.shape[3]):
                        total += phi(A[n, h, i, d]) * X_transposed[n, h, d, c]  # (9)
                    y[n, h, i, c] = total * slope(raw[n, h, i, c])

    return gradient


def gradient(
    A: Array, X_transposed: Array, a: Array, z: Array, lengths: Array, raw: Array, rows_map: str,
    result_map: str,
) -> Array:  # fmt: skip
    """Equation (9), times phi' of raw; a thread owns row i."""
    N, H, L, _ = raw.shape
    y = array_module(raw).empty_like(raw)
    kernel = a_thread_each(_gradient_kernel(kernel_dtype(A), rows_map, result_map), L, H, N)
    kernel(A, X_transposed, a, z, lengths, raw, y)
    return y

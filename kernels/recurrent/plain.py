"""The kernels that a learner writes first: a thread owns a column of the state, along all tokens.

A query that is padding has no features, and gives zeros. A span is where a sequence lies: its
batch, its first row, how many rows count, and how many there are (`arrays.spans`). `step` is also
the kernel that runs: one token has nothing to share.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, ceil_div, kernel_dtype, per_row, round_up
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import divided
from ..guards import guard as get_guard

STEP_THREADS = 64  # of a block, where there are as many columns


@cache
def _forward_kernel(real: Any, feature_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value

    @cuda.jit
    def forward(query, key, value, queries, keys, offset, S, n_out):  # type: ignore[no-untyped-def]
        """Query (N, H, Lq, E), key (N, H, Lk, E), value (N, H, Lk, M), and the spans of both.

        S (N, H, E, M) and the numerators (N, H, Lq, M) are written to.
        """
        m = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E = query.shape[3]
        b, first_query, last_query = queries[n, 0], queries[n, 1], queries[n, 2]
        room, first_key, last_key = queries[n, 3], keys[n, 1], keys[n, 2]
        if m < value.shape[3]:
            for p in range(min(0, offset), max(last_key, room + offset)):
                i, j = first_query + p - offset, first_key + p
                if 0 <= p < last_key:
                    for e in range(E):
                        S[n, h, e, m] += phi(key[b, h, j, e]) * value[b, h, j, m]  # (1)
                if 0 <= p - offset < room:
                    total = real(0)
                    for e in range(E if p - offset < last_query else 0):
                        total += S[n, h, e, m] * phi(query[b, h, i, e])  # (3)
                    n_out[b, h, i, m] = total

    return forward


def forward(
    query: Array, key: Array, value: Array, queries: Array, keys: Array, offset: int, eps: Any,
    feature_map: str, guard: str, S0: Array, Z0: Array, output: Array, denominator: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Equations (1) to (4): the last two are written to, and the next state is returned.

    Z and d are the S and n of values that are all 1: a column more, for one more thread.
    """
    N, H, *_ = S0.shape
    S, Z, d = S0.copy(), Z0[..., None].copy(), denominator[..., None]
    kernel = _forward_kernel(kernel_dtype(query), feature_map)
    for values, state, numerators in ((value, S, output), (per_row(key, 1)[..., None], Z, d)):
        launch = a_thread_each(kernel, values.shape[3], H, N)
        launch(query, key, values, queries, keys, offset, state, numerators)
    output[:] = divided(output, denominator, guard=guard, eps=eps)  # (4)
    return S, Z[..., 0]


@cache
def _scan_kernel(real: Any, rows_map: str, result_map: str) -> Kernel:
    """The map of `rows_map` is for A and B, that of `result_map` for C, and its slope for y."""
    map_ab = get_feature_map(rows_map, real).value
    map_c, slope = get_feature_map(result_map, real)

    @cuda.jit
    def scan(A, B, C, a, b, spans_a, spans_b, offset, way, raw, y, X, x):  # type: ignore[no-untyped-def]
        """A (N, H, La, D), B (N, H, Lb, D), C (N, H, Lb, M), a (N, H, La), b (N, H, Lb).

        `way` is 1, or -1 to read both sequences from their ends; phi' of raw goes to y. X (N, H,
        D, M) and x (N, H, M) are written to as well.
        """
        c = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        batch, first_a, last_a, La = spans_a[n, 0], spans_a[n, 1], spans_a[n, 2], spans_a[n, 3]
        first_b, last_b, Lb = spans_b[n, 1], spans_b[n, 2], spans_b[n, 3]
        if c < C.shape[3]:
            for p in range(min(0, offset), max(Lb, La + offset)):
                i = p - offset if way > 0 else La - 1 - (p - offset)
                j = p if way > 0 else Lb - 1 - p
                if 0 <= j < last_b:
                    C_jc = map_c(C[batch, h, first_b + j, c])
                    x[n, h, c] += b[batch, h, first_b + j] * C_jc
                    for d in range(A.shape[3]):
                        X[n, h, d, c] += map_ab(B[batch, h, first_b + j, d]) * C_jc
                if 0 <= i < La:
                    total = real(0)
                    if i < last_a:
                        total = a[batch, h, first_a + i] * x[n, h, c]
                        for d in range(A.shape[3]):
                            total += map_ab(A[batch, h, first_a + i, d]) * X[n, h, d, c]  # (10)
                        total *= slope(raw[batch, h, first_a + i, c])
                    y[batch, h, first_a + i, c] = total

    return scan


def scan(
    A: Array, B: Array, C: Array, a: Array, b: Array, spans_a: Array, spans_b: Array, offset: int,
    way: int, X0: Array, x0: Array, raw: Array, rows_map: str, result_map: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Equation (10) for one row of its table: y, X_L and x_L."""
    N, H, _, M = X0.shape
    y, X, x = array_module(raw).empty_like(raw), X0.copy(), x0.copy()
    kernel = a_thread_each(_scan_kernel(kernel_dtype(A), rows_map, result_map), M, H, N)
    kernel(A, B, C, a, b, spans_a, spans_b, offset, way, raw, y, X, x)
    return y, X, x


@cache
def _step_kernel(columns: int, real: Any, feature_name: str, guard_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def step(query, key, value, eps, S, Z, out, S_next, Z_next):  # type: ignore[no-untyped-def]
        """Query and key (N, H, E), value (N, H, M); a thread owns column m of the state."""
        m = cuda.blockIdx.x * columns + cuda.threadIdx.x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        M = value.shape[2]
        v = real(0)
        if m < M:
            v = value[n, h, m]
        total = real(0)
        d = real(0)
        for e in range(query.shape[2]):
            q = phi(query[n, h, e])
            k = phi(key[n, h, e])
            z = Z[n, h, e] + k  # (2)
            d += q * z  # (3)
            if m == 0:
                Z_next[n, h, e] = z
            if m < M:
                s = S[n, h, e, m] + k * v  # (1)
                S_next[n, h, e, m] = s
                total += q * s  # (3)
        if m < M:
            out[n, h, m] = total / guard(d, eps)  # (4)

    return step


def step(
    query: Array, key: Array, value: Array, eps: Any, feature_map: str, guard: str, S: Array,
    Z: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The output of a token, and the next state."""
    N, H, M = value.shape
    output, S_next, Z_next = (array_module(x).empty_like(x) for x in (value, S, Z))
    columns = min(STEP_THREADS, round_up(M, "value dim"))
    kernel = _step_kernel(columns, kernel_dtype(query), feature_map, guard)
    kernel[(ceil_div(M, columns), H, N), columns](
        query, key, value, eps, S, Z, output, S_next, Z_next
    )
    return output, S_next, Z_next

"""The kernel that a learner writes first: a thread owns a column of W, and walks the tokens.

All else are sums of linear attention, whose plain kernels make them. Equations (1) to (4) together,
for one token, are the kernel of `step`, which is plain as it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, kernel_dtype
from ..cuda import Kernel, cuda


@cache
def _residual_kernel(real: Any) -> Kernel:
    @cuda.jit
    def residual(key, value, beta, places, way, W, r, u):  # type: ignore[no-untyped-def]
        """Key (N, H, L, E), value (N, H, L, M), beta (N, H, L), and the spans of all three.

        `way` is 1, or -1 to read from the end. W (N, H, E, M), r and u are written to.
        """
        m = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        if m < value.shape[3]:
            for turn in range(room):
                j = turn if way > 0 else room - 1 - turn
                t = first + j
                r[b, h, t, m] = u[b, h, t, m] = real(0)
                if j < last:
                    r_t = value[b, h, t, m]
                    for e in range(key.shape[3]):
                        r_t -= W[n, h, e, m] * key[b, h, t, e]  # (1), or (10)
                    u_t = beta[b, h, t] * r_t  # (2)
                    for e in range(key.shape[3]):
                        W[n, h, e, m] += key[b, h, t, e] * u_t  # (3)
                    r[b, h, t, m], u[b, h, t, m] = r_t, u_t

    return residual


def residuals(
    key: Array, value: Array, beta: Array, places: Array, way: int, W0: Array
) -> tuple[Array, Array, Array]:
    """Equations (1) to (3), token after token: r, u and the state; with way = -1, (10)."""
    N, H, _, M = W0.shape
    r, u = (array_module(value).empty_like(value) for _ in range(2))
    W = W0.copy()
    kernel = a_thread_each(_residual_kernel(kernel_dtype(key)), M, H, N)
    kernel(key, value, beta, places, way, W, r, u)
    return r, u, W

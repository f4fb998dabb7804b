r"""The kernels that run. The features are those of `plain`: a number has nothing to share.

What the sums add to `plain`; results/ladder says what it brings:

    sums by blocks          rows are shared out, OWN to a thread; shares meet in shared memory
    sums by halves          a warp takes a row for dp, and its 32 shares are added up in 5 steps
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba

from ..arrays import Array, array_module, ceil_div, contiguous, kernel_dtype
from ..cuda import Kernel, cuda
from ..tiles import warp_sum
from .plain import COLUMNS, ROWS, THREADS, circle, feature_gradient, features

__all__ = ["circle", "feature_gradient", "features", "moments", "position_gradient"]

OWN = 4  # rows that a thread of `moment_sums` adds up


@cuda.jit(fastmath=True)
def moment_sums(x, places, lengths, result):  # type: ignore[no-untyped-def]
    """Sums of x (N, H, L, E) times float64 places (N or 1, L, P) over the rows of each block.

    Writes float64 (blocks, N, H, P, E).
    """
    shares = cuda.shared.array((ROWS, COLUMNS), numba.float64)
    column, y = cuda.threadIdx.x, cuda.threadIdx.y
    h, n = cuda.blockIdx.y, cuda.blockIdx.z
    first = (cuda.blockIdx.x * ROWS + y) * OWN
    E, end = x.shape[3], lengths[n]
    at = n % places.shape[0]
    for p in range(places.shape[2]):
        for start in range(0, E, COLUMNS):
            e = start + column
            total = 0.0
            for r in range(OWN):
                if first + r < end and e < E:
                    total += x[n, h, first + r, e] * places[at, first + r, p]
            shares[y, column] = total
            cuda.syncthreads()
            if y == 0 and e < E:
                for other in range(1, ROWS):
                    total += shares[other, column]
                result[cuda.blockIdx.x, n, h, p, e] = total
            cuda.syncthreads()


def moments(x: Array, places: Array, lengths: Array) -> Array:
    """Sums over all rows, float64 (H, P, E), for (11) to (13); a block takes ROWS * OWN rows."""
    N, H, L, E = x.shape
    blocks = ceil_div(L, ROWS * OWN)
    shares = array_module(x).empty((blocks, N, H, places.shape[2], E))
    moment_sums[(blocks, H, N), THREADS](x, places, lengths, shares)
    return shares.sum(axis=(0, 1))


@cache
def _position_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def position_gradient(dangle, frequency, lengths, result):  # type: ignore[no-untyped-def]
        """Angles' gradients (N, H, L, E), frequency (P, H, E); writes result (N, L, P)."""
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        p, n = cuda.blockIdx.y, cuda.blockIdx.z
        i = cuda.blockIdx.x * ROWS + y
        total = real(0)
        if i < lengths[n]:
            for h in range(dangle.shape[1]):
                for e in range(x, dangle.shape[3], COLUMNS):
                    total += dangle[n, h, i, e] * frequency[p, h, e]  # (12)
        total = warp_sum(total)
        if x == 0 and i < dangle.shape[2]:
            result[n, i, p] = total

    return position_gradient


def position_gradient(dangle: Array, frequency: Array, lengths: Array) -> Array:
    """The dp of (12) (N, L, P), for frequency (P, H, E); a warp takes a row."""
    (N, _, L, _), P = dangle.shape, len(frequency)
    result = array_module(dangle).empty((N, L, P), dangle.dtype)
    kernel = _position_gradient_kernel(kernel_dtype(dangle))
    kernel[(ceil_div(L, ROWS), P, N), THREADS](dangle, *contiguous(frequency), lengths, result)
    return result

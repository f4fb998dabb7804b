"""The kernels that a learner writes first: a warp takes a row, and a thread its numbers one by one.

The sums of rows by features are linear attention's, and have its plain kernels. Here are the
features, which `fast` has from here, and the sums that only their gradients need: a thread owns one
number of a result, and walks all that it is the sum of.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, ceil_div, contiguous, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map

COLUMNS = 32  # the threads of a warp
ROWS = 8  # warps of a block
THREADS = COLUMNS, ROWS
TURN = 2 * math.pi


@cache
def _circle_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def circle(positions, frequency, phase, cos, sin):  # type: ignore[no-untyped-def]
        """Float64 positions (N, L, P), frequency (H, E, P), phase (H, E); writes (N, H, L, E)."""
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        if i < cos.shape[2]:
            for e in range(cuda.threadIdx.x, cos.shape[3], COLUMNS):
                angle = phase[h, e]
                for p in range(positions.shape[2]):
                    angle += frequency[h, e, p] * positions[n, i, p]  # (3)
                angle -= TURN * math.floor(angle / TURN + 0.5)
                cos[n, h, i, e] = math.cos(real(angle))
                sin[n, h, i, e] = math.sin(real(angle))

    return circle


def circle(positions: Array, frequency: Array, phase: Array, cos: Array, sin: Array) -> None:
    """Cosines and sines of (3): the only float64 of the forward."""
    kernel = _circle_kernel(kernel_dtype(cos))[_grid(cos), THREADS]
    kernel(*contiguous(positions, frequency, phase), cos, sin)


def _grid(rows: Array) -> tuple[int, int, int]:
    """Blocks for the rows (N, H, L, E)."""
    N, H, L, _ = rows.shape
    return ceil_div(L, ROWS), H, N


@cache
def _feature_kernel(real: Any, feature_name: str) -> Kernel:
    phi = get_feature_map(feature_name, real).value

    @cuda.jit(fastmath=True)
    def features(x, cos, sin, amplitude, result):  # type: ignore[no-untyped-def]
        """Arrays x (N, H, L, E), cos and sin (N or 1, H, L, E); writes result (N, H, L, D)."""
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        E, D = x.shape[3], result.shape[3]
        at = n % cos.shape[0]
        if i < x.shape[2]:
            for e in range(cuda.threadIdx.x, E, COLUMNS):
                q = phi(x[n, h, i, e])
                result[n, h, i, e] = amplitude[h, e] * q * cos[at, h, i, e]  # (5)
                result[n, h, i, E + e] = amplitude[h, e] * q * sin[at, h, i, e]  # (5)
                if D > 2 * E:
                    result[n, h, i, 2 * E + e] = q  # (7)

    return features


def features(
    x: Array, cos: Array, sin: Array, amplitude: Array, feature_map: str, result: Array
) -> None:
    """Equations (5) and (7)."""
    kernel = _feature_kernel(kernel_dtype(x), feature_map)[_grid(x), THREADS]
    kernel(*contiguous(x), cos, sin, *contiguous(amplitude), result)


@cache
def _feature_gradient_kernel(real: Any, feature_name: str) -> Kernel:
    phi, slope = get_feature_map(feature_name, real)

    @cuda.jit(fastmath=True)
    def feature_gradient(grad, x, cos, sin, amplitude, lengths, dx, dangle, damplitude):  # type: ignore[no-untyped-def]
        """Gradient (N, H, L, D) of the features of x; writes the last three, (N, H, L, E)."""
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        E, D = x.shape[3], grad.shape[3]
        at = n % cos.shape[0]
        if i < lengths[n]:
            for e in range(cuda.threadIdx.x, E, COLUMNS):
                c, q = amplitude[h, e], phi(x[n, h, i, e])
                of_cos, of_sin = grad[n, h, i, e], grad[n, h, i, E + e]
                along = of_cos * cos[at, h, i, e] + of_sin * sin[at, h, i, e]  # (10), h
                across = of_sin * cos[at, h, i, e] - of_cos * sin[at, h, i, e]
                dq = c * along  # (11)
                if D > 2 * E:
                    dq += grad[n, h, i, 2 * E + e]  # (11)
                dx[n, h, i, e] = dq * slope(x[n, h, i, e])
                dangle[n, h, i, e] = c * q * across  # (10)
                damplitude[n, h, i, e] = q * along  # (11)

    return feature_gradient


def feature_gradient(
    grad: Array, x: Array, cos: Array, sin: Array, amplitude: Array, lengths: Array,
    feature_map: str,
) -> list[Array]:  # fmt: skip
    """The gradients of x, and of each row's angles and amplitudes: (10), (11) without sums."""
    results = [array_module(x).zeros(x.shape, x.dtype) for _ in range(3)]
    kernel = _feature_gradient_kernel(kernel_dtype(x), feature_map)[_grid(x), THREADS]
    kernel(*contiguous(grad, x), cos, sin, *contiguous(amplitude), lengths, *results)
    return results


@cuda.jit
def moment_sums(x, places, lengths, result):  # type: ignore[no-untyped-def]
    """Rows x (N, H, L, E), float64 places (N or 1, L, P); writes float64 (H, P, E)."""
    E, h = x.shape[3], cuda.blockIdx.y
    p, e = cuda.grid(1) // E, cuda.grid(1) % E
    if p < places.shape[2]:
        total = 0.0
        for n in range(x.shape[0]):
            for i in range(lengths[n]):
                total += x[n, h, i, e] * places[n % places.shape[0], i, p]
        result[h, p, e] = total


def moments(x: Array, places: Array, lengths: Array) -> Array:
    """Sums over all rows, float64 (H, P, E), for (11) to (13); a thread owns a number."""
    H, E, P = x.shape[1], x.shape[3], places.shape[2]
    result = array_module(x).empty((H, P, E))
    a_thread_each(moment_sums, P * E, H, 1)(x, places, lengths, result)
    return result


@cache
def _position_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit
    def position_gradient(dangle, frequency, lengths, result):  # type: ignore[no-untyped-def]
        """Angles' gradients (N, H, L, E), frequency (P, H, E); writes result (N, L, P)."""
        P, n = result.shape[2], cuda.blockIdx.y
        i, p = cuda.grid(1) // P, cuda.grid(1) % P
        if i < result.shape[1]:
            total = real(0)
            if i < lengths[n]:
                for h in range(dangle.shape[1]):
                    for e in range(dangle.shape[3]):
                        total += dangle[n, h, i, e] * frequency[p, h, e]  # (12)
            result[n, i, p] = total

    return position_gradient


def position_gradient(dangle: Array, frequency: Array, lengths: Array) -> Array:
    """The dp of (12) (N, L, P), for frequency (P, H, E); a thread owns a number."""
    (N, _, L, _), P = dangle.shape, len(frequency)
    result = array_module(dangle).empty((N, L, P), dangle.dtype)
    kernel = a_thread_each(_position_gradient_kernel(kernel_dtype(dangle)), L * P, N, 1)
    kernel(dangle, *contiguous(frequency), lengths, result)
    return result

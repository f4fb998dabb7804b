"""The kernels that a learner writes first: a thread owns a row, or a number of the result."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, kernel_dtype
from ..cuda import DeviceFunction, Kernel, cuda


@cache
def _favor_kernel(real: Any) -> Kernel:
    @cuda.jit
    def favor(x, projection, scale, normalised, phi):  # type: ignore[no-untyped-def]
        """Rows x (rows, E) and projection (R, E); phi (rows, R) is written to."""
        i = cuda.grid(1)
        R, E = projection.shape
        if i < x.shape[0]:
            highest = real(-math.inf)
            for r in range(R):
                z = real(0)
                for e in range(E):
                    z += scale * projection[r, e] * x[i, e]  # (1)
                phi[i, r] = z
                highest = max(highest, z)
            total = real(0)
            if normalised:
                for r in range(R):
                    total += math.exp(phi[i, r] - highest)
                l_i = highest + math.log(total)  # (3)
            else:
                for e in range(E):
                    total += scale * scale * x[i, e] * x[i, e]
                l_i = (total + math.log(real(R))) / real(2)  # (2)
            for r in range(R):
                phi[i, r] = math.exp(phi[i, r] - l_i)  # (1)

    return favor


def favor(x: Array, projection: Array, scale: Any, normalised: bool, phi: Array) -> None:
    """Equations (1) to (3); a thread owns a row."""
    kernel = a_thread_each(_favor_kernel(kernel_dtype(x)), len(x))
    kernel(x, projection, scale, normalised, phi)


@cache
def _favor_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit
    def favor_gradient(g, x, projection, phi, scale, normalised, dx):  # type: ignore[no-untyped-def]
        """Arrays g and phi (rows, R), x and dx (rows, E), projection (R, E); writes dx."""
        i = cuda.grid(1)
        R, E = projection.shape
        if i < x.shape[0]:
            G_i = real(0)
            for r in range(R):
                G_i += g[i, r] * phi[i, r]
            less = G_i if normalised else real(0)
            pull = real(0) if normalised else scale * G_i
            for e in range(E):
                total = -pull * x[i, e]
                for r in range(R):
                    dz = (g[i, r] - less) * phi[i, r]  # (4)
                    total += dz * projection[r, e]
                dx[i, e] = scale * total  # (5)

    return favor_gradient


def favor_gradient(
    g: Array, x: Array, projection: Array, phi: Array, scale: Any, normalised: bool, dx: Array
) -> None:
    """Equations (4) and (5), dx; a thread owns a row."""
    kernel = a_thread_each(_favor_gradient_kernel(kernel_dtype(x)), len(x))
    kernel(g, x, projection, phi, scale, normalised, dx)


@cache
def _rectified(real: Any) -> DeviceFunction:
    @cuda.jit(device=True)
    def rectified(x, i, a):  # type: ignore[no-untyped-def]
        """The r_a of (7), of row i; a comes round at 2 E."""
        E = x.shape[1]
        sign = real(1) if a % (2 * E) < E else real(-1)
        return max(sign * x[i, a % E], real(0))

    return rectified


@cache
def _dpfp_kernel(real: Any) -> Kernel:
    r = _rectified(real)

    @cuda.jit
    def dpfp(x, nu, phi):  # type: ignore[no-untyped-def]
        """Rows x (rows, E); phi (rows, 2 E nu) is written to."""
        D = phi.shape[1]
        i, a = cuda.grid(1) // D, cuda.grid(1) % D
        if i < x.shape[0]:
            m = a * nu // D + 1
            phi[i, a] = r(x, i, a) * r(x, i, a + m)  # (7)

    return dpfp


def dpfp(x: Array, nu: int, phi: Array) -> None:
    """Equation (7); a thread owns a number."""
    a_thread_each(_dpfp_kernel(kernel_dtype(x)), phi.size)(x, nu, phi)


@cache
def _dpfp_gradient_kernel(real: Any) -> Kernel:
    r = _rectified(real)

    @cuda.jit
    def dpfp_gradient(g, x, nu, dx):  # type: ignore[no-untyped-def]
        """Arrays g (rows, 2 E nu), x (rows, E); dx is written to."""
        E = x.shape[1]
        i, e = cuda.grid(1) // E, cuda.grid(1) % E
        if i < x.shape[0]:
            a = e if x[i, e] > real(0) else E + e
            dr = real(0)
            for m in range(1, nu + 1):
                first = 2 * E * (m - 1)
                dr += g[i, first + a] * r(x, i, a + m)  # (8)
                dr += g[i, first + (a - m) % (2 * E)] * r(x, i, a - m)  # (8)
            falls = dr if x[i, e] < real(0) else real(0)
            dx[i, e] = dr if x[i, e] > real(0) else -falls  # (9)

    return dpfp_gradient


def dpfp_gradient(g: Array, x: Array, nu: int, dx: Array) -> None:
    """Equations (8) and (9); a thread owns a number."""
    a_thread_each(_dpfp_gradient_kernel(kernel_dtype(x)), dx.size)(g, x, nu, dx)

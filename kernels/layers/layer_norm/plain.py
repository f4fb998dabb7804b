"""The kernels that a learner writes first: a thread owns a row, or a column of the parameters."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ...arrays import Array, a_thread_each, array_module, kernel_dtype
from ...cuda import Kernel, cuda


@cache
def _normalise_kernel(real: Any) -> Kernel:
    @cuda.jit
    def normalise(x, weight, bias, eps, y, mean, scale):  # type: ignore[no-untyped-def]
        """Rows x (R, D), weight and bias (D,); y (R, D), m and r (R,) are written to."""
        i = cuda.grid(1)
        R, D = x.shape
        if i < R:
            m, squares = real(0), real(0)
            for _ in range(2):  # the second time, what the first one's rounding left
                total = real(0)
                for d in range(D):
                    total += x[i, d] - m
                m += total / real(D)
            for d in range(D):
                squares += (x[i, d] - m) * (x[i, d] - m)
            r = real(1) / math.sqrt(squares / real(D) + eps)  # (1)
            for d in range(D):
                y[i, d] = weight[d] * (x[i, d] - m) * r + bias[d]  # (2)
            mean[i], scale[i] = m, r

    return normalise


@cache
def _gradient_kernel(real: Any) -> Kernel:
    @cuda.jit
    def gradient(g, x, weight, mean, scale, dx):  # type: ignore[no-untyped-def]
        """As above, and g (R, D); dx (R, D) is written to."""
        i = cuda.grid(1)
        R, D = x.shape
        if i < R:
            m, r = mean[i], scale[i]
            h_mean, hn_mean = real(0), real(0)
            for d in range(D):
                h = g[i, d] * weight[d]
                h_mean += h / real(D)
                hn_mean += h * (x[i, d] - m) * r / real(D)
            for d in range(D):
                n = (x[i, d] - m) * r
                dx[i, d] = r * (g[i, d] * weight[d] - h_mean - n * hn_mean)  # (3)

    return gradient


@cache
def _parameter_kernel(real: Any) -> Kernel:
    @cuda.jit
    def parameters(g, x, mean, scale, dweight, dbias):  # type: ignore[no-untyped-def]
        """As above; dw and db (D,) are written to."""
        d = cuda.grid(1)
        R, D = x.shape
        if d < D:
            dw, db = real(0), real(0)
            for i in range(R):
                dw += g[i, d] * (x[i, d] - mean[i]) * scale[i]  # (4)
                db += g[i, d]
            dweight[d], dbias[d] = dw, db

    return parameters


def normalise(
    x: Array, weight: Array, bias: Array, eps: Any, y: Array, mean: Array, scale: Array
) -> None:
    """Equations (1) and (2); a thread owns a row."""
    kernel = _normalise_kernel(kernel_dtype(x))
    a_thread_each(kernel, len(x))(x, weight, bias, eps, y, mean, scale)


def gradient(g: Array, x: Array, weight: Array, mean: Array, scale: Array, dx: Array) -> None:
    """Equation (3); a thread owns a row."""
    kernel = _gradient_kernel(kernel_dtype(x))
    a_thread_each(kernel, len(x))(g, x, weight, mean, scale, dx)


def parameters(g: Array, x: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Equation (4); a thread owns a column."""
    D = x.shape[1]
    dweight, dbias = (array_module(x).empty(D, x.dtype) for _ in range(2))
    kernel = _parameter_kernel(kernel_dtype(x))
    a_thread_each(kernel, D)(g, x, mean, scale, dweight, dbias)
    return dweight, dbias

"""The kernels that run. (1) to (3) sum along rows, (4) along columns: two ways to share the work.

    normalise, gradient    a warp for each row. Each thread adds up some of its columns, and the
                           warp adds up its threads' sums
    parameters             a thread for a column of some rows, one after the other; a block adds up
                           four of these, and all blocks' sums follow

What each step over `plain` adds; results/ladder says what it brings:

    a warp for a row       neighbouring threads read neighbouring numbers: a sector of memory is
                           read once and used whole, where a thread that walks a row of its own
                           shares it with nobody
    shuffles               a warp's sum passes through registers, without shared memory or barriers
    parts                  few columns are few threads: rows are cut into up to 1,024 parts

Every sum has one owner and a fixed order, so results repeat bit by bit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ...arrays import Array, array_module, ceil_div, kernel_dtype
from ...cuda import Kernel, cuda
from ...tiles import warp_sum

THREADS = 32, 8  # columns, rows
PARAMETER_THREADS = 128, 4
EACH, PARTS = 32, 1024  # rows of a thread at least, and parts at most


@cache
def _normalise_kernel(real: Any) -> Kernel:
    columns, rows = THREADS

    @cuda.jit(fastmath=True)
    def normalise(x, weight, bias, eps, y, mean, scale):  # type: ignore[no-untyped-def]
        """Rows x (R, D), weight and bias (D,); y (R, D), m and r (R,) are written to."""
        tx, i = cuda.threadIdx.x, cuda.blockIdx.x * rows + cuda.threadIdx.y
        R, D = x.shape

        total = real(0)
        if i < R:
            for d in range(tx, D, columns):
                total += x[i, d]
        m = warp_sum(total) / real(D)

        squares = real(0)
        if i < R:
            for d in range(tx, D, columns):
                squares += (x[i, d] - m) * (x[i, d] - m)
        r = real(1) / math.sqrt(warp_sum(squares) / real(D) + eps)  # (1)

        if i < R:
            for d in range(tx, D, columns):
                y[i, d] = weight[d] * ((x[i, d] - m) * r) + bias[d]  # (2)
            if tx == 0:
                mean[i] = m
                scale[i] = r

    return normalise


@cache
def _gradient_kernel(real: Any) -> Kernel:
    columns, rows = THREADS

    @cuda.jit(fastmath=True)
    def gradient(g, x, weight, mean, scale, dx):  # type: ignore[no-untyped-def]
        """As above, and g (R, D); dx (R, D) is written to."""
        tx, i = cuda.threadIdx.x, cuda.blockIdx.x * rows + cuda.threadIdx.y
        R, D = x.shape

        m, r, total, product = real(0), real(0), real(0), real(0)
        if i < R:
            m, r = mean[i], scale[i]
            for d in range(tx, D, columns):
                h = g[i, d] * weight[d]
                total += h
                product += h * ((x[i, d] - m) * r)
        total = warp_sum(total) / real(D)
        product = warp_sum(product) / real(D)

        if i < R:
            for d in range(tx, D, columns):
                n = (x[i, d] - m) * r
                dx[i, d] = r * (g[i, d] * weight[d] - total - n * product)  # (3)

    return gradient


@cache
def _parameter_kernel(real: Any) -> Kernel:
    columns, rows = PARAMETER_THREADS

    @cuda.jit(fastmath=True)
    def parameters(g, x, mean, scale, each, dweight, dbias):  # type: ignore[no-untyped-def]
        """As above; a thread adds up `each` rows; sums of parts (parts, D) are written to."""
        products = cuda.shared.array((rows, columns), real)  # of a thread
        sums = cuda.shared.array((rows, columns), real)
        tx, ty, p = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.y
        d = cuda.blockIdx.x * columns + tx
        R, D = x.shape

        product, total = real(0), real(0)
        for t in range(each):
            i = (p * rows + ty) * each + t
            if i < R and d < D:
                product += g[i, d] * ((x[i, d] - mean[i]) * scale[i])
                total += g[i, d]
        products[ty, tx] = product
        sums[ty, tx] = total
        cuda.syncthreads()

        if ty == 0 and d < D:
            product, total = real(0), real(0)
            for row in range(rows):
                product += products[row, tx]
                total += sums[row, tx]
            dweight[p, d] = product  # (4)
            dbias[p, d] = total

    return parameters


def normalise(
    x: Array, weight: Array, bias: Array, eps: Any, y: Array, mean: Array, scale: Array
) -> None:
    """Equations (1) and (2)."""
    kernel = _normalise_kernel(kernel_dtype(x))
    kernel[ceil_div(len(x), THREADS[1]), THREADS](x, weight, bias, eps, y, mean, scale)


def gradient(g: Array, x: Array, weight: Array, mean: Array, scale: Array, dx: Array) -> None:
    """Equation (3)."""
    kernel = _gradient_kernel(kernel_dtype(x))
    kernel[ceil_div(len(x), THREADS[1]), THREADS](g, x, weight, mean, scale, dx)


def parameters(g: Array, x: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Equation (4): the sums of parts of the rows, and then of these."""
    R, D = x.shape
    columns, rows = PARAMETER_THREADS
    each = max(EACH, ceil_div(R, PARTS * rows))
    parts = max(1, ceil_div(R, each * rows))
    sums = array_module(x).empty((2, parts, D), x.dtype)
    kernel = _parameter_kernel(kernel_dtype(x))
    kernel[(ceil_div(D, columns), parts), PARAMETER_THREADS](g, x, mean, scale, each, *sums)
    dweight, dbias = sums.sum(axis=1) if parts > 1 else sums[:, 0]
    return dweight, dbias

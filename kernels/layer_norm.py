r"""Layer normalisation: every row is brought to mean 0 and variance 1, then scaled and shifted.

For a row x of D numbers, with a weight w and a bias b for each column,

    m = mean_d x_d            r = 1 / sqrt(mean_d (x_d - m)^2 + eps)                       (1)
    n_d = (x_d - m) r         y_d = w_d n_d + b_d                                          (2)

As array operations that is ten passes over memory, each with a launch of its own on a GPU. Fused,
x is read, y is written, and all between stays with the threads that work on a row.

Backward, given g = dLoss/dy. Both m and r depend on every x_d, so with h_d = g_d w_d

    dx_d = r (h_d - mean_e h_e - n_d mean_e h_e n_e)                                       (3)
    dw_d = sum over rows of g_d n_d           db_d = sum over rows of g_d                  (4)

Forward keeps m and r, two numbers a row; n is made again from x.

(1) to (3) sum along rows, (4) along columns, so there are two ways to share the work out:

    _forward_kernel, _gradient_kernel    a warp for each row. Each thread adds up some of its
                                         columns and leaves its sum; each then adds up all of those
    _parameter_kernel                    a thread for a column of some rows, one after the other; a
                                         block adds up four of these, and all blocks' sums follow

Every sum has one owner and a fixed order, so results repeat bit by bit. The mean is taken off
before anything is squared: mean x^2 - m^2 would lose the digits that a large m has before the dot.

Source: Ba, Kiros and Hinton 2016, "Layer normalization", equation 4.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from .arrays import Array, array_module, ceil_div, contiguous, kernel_dtype
from .cuda import Kernel, cuda

EVERYONE = 0xFFFFFFFF  # in a warp
THREADS = 32, 8  # columns, rows
PARAMETER_THREADS = 128, 4
EACH, PARTS = 32, 1024  # rows of a thread at least, and parts at most


@cuda.jit(device=True)
def warp_sum(value):  # type: ignore[no-untyped-def]
    """The sum of the numbers of a warp's threads, in each of them: 2, 4, 8, 16, then 32 numbers."""
    for step in range(5):
        value += cuda.shfl_xor_sync(EVERYONE, value, 1 << step)
    return value


@cache
def _forward_kernel(real: Any) -> Kernel:
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


def forward(
    x: Array, weight: Array | None, bias: Array | None, *, eps: float
) -> tuple[Array, Array, Array]:
    """Rows of mean 0 and variance 1, scaled and shifted: equations (1) and (2).

    Args:
        x: `(R, D)`, float32 or float64.
        weight: `(D,)`, as x; None is ones.
        bias: `(D,)`, as x; None is zeros.
        eps: added to the variance.

    Returns:
        y `(R, D)`, and for `backward` m and r `(R,)`.

    Raises:
        TypeError: the array holds something else than float32 or float64.

    Example:
        >>> import numpy as np
        >>> forward(np.array([[1.0, 3.0]]), None, None, eps=0.0)[0].tolist()
        [[-1.0, 1.0]]
    """
    xp, real, (R, D) = array_module(x), kernel_dtype(x), x.shape
    (x,) = contiguous(x)
    bias = xp.zeros(D, x.dtype) if bias is None else bias
    y, mean, scale = (xp.empty(shape, x.dtype) for shape in ((R, D), R, R))
    _forward_kernel(real)[_blocks(R), THREADS](
        x, *contiguous(_ones(weight, x), bias), x.dtype.type(eps), y, mean, scale
    )
    return y, mean, scale


def backward(grad: Array, x: Array, weight: Array | None, mean: Array, scale: Array) -> Array:
    """The gradient of x, equation (3).

    Args:
        grad: `(R, D)`, the gradient of y.
        x: as `forward` took it.
        weight: as `forward` took it.
        mean: what `forward` returned.
        scale: what `forward` returned.

    Returns:
        dx `(R, D)`.
    """
    grad, x, weight = contiguous(grad, x, _ones(weight, x))
    dx = array_module(x).empty(x.shape, x.dtype)
    _gradient_kernel(kernel_dtype(x))[_blocks(len(x)), THREADS](grad, x, weight, mean, scale, dx)
    return dx


def parameters_backward(grad: Array, x: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """The gradients of the weight and the bias, equation (4).

    Args:
        grad: `(R, D)`, the gradient of y.
        x: as `forward` took it.
        mean: what `forward` returned.
        scale: what `forward` returned.

    Returns:
        dw and db `(D,)`.
    """
    grad, x = contiguous(grad, x)
    R, D = x.shape
    columns, rows = PARAMETER_THREADS
    each = max(EACH, ceil_div(R, PARTS * rows))
    parts = max(1, ceil_div(R, each * rows))
    sums = array_module(x).empty((2, parts, D), x.dtype)
    _parameter_kernel(kernel_dtype(x))[(max(1, ceil_div(D, columns)), parts), PARAMETER_THREADS](
        grad, x, mean, scale, each, *sums
    )
    dweight, dbias = sums.sum(axis=1) if parts > 1 else sums[:, 0]
    return dweight, dbias


def _ones(weight: Array | None, x: Array) -> Array:
    return array_module(x).ones(x.shape[1], x.dtype) if weight is None else weight


def _blocks(rows: int) -> int:
    return max(1, ceil_div(rows, THREADS[1]))

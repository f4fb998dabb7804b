r"""Layer normalisation: every row is brought to mean 0 and variance 1, then scaled and shifted.

For a row x of D numbers, with a weight w and a bias b for each column,

    m = mean_d x_d            r = 1 / sqrt(mean_d (x_d - m)^2 + eps)                       (1)
    n_d = (x_d - m) r         y_d = w_d n_d + b_d                                          (2)

As array operations that is ten passes over memory, each with a launch of its own on a GPU. Fused,
x is read, y is written, and all between stays with the threads that work on a row.

Backward, given g = dLoss/dy. Both m and r depend on every x_d, so with h_d = g_d w_d

    dx_d = r (h_d - mean_e h_e - n_d mean_e h_e n_e)                                       (3)
    dw_d = sum over rows of g_d n_d           db_d = sum over rows of g_d                  (4)

Forward keeps m and r, two numbers a row; n is made again from x. The mean is taken off before
anything is squared: mean x^2 - m^2 would lose the digits that a large m has before the dot.

Source: Ba, Kiros and Hinton 2016, "Layer normalization", equation 4.
"""

from __future__ import annotations

from ...arrays import Array, array_module, contiguous, version_of
from ...checks import finite, host
from . import fast, plain


@host(x="R D", weight="D", bias="D")
def forward(
    x: Array, weight: Array | None, bias: Array | None, *, eps: float, version: str = "fast"
) -> tuple[Array, Array, Array]:
    """Rows of mean 0 and variance 1, scaled and shifted: equations (1) and (2).

    Args:
        x: `(R, D)`, float32 or float64.
        weight: `(D,)`, as x; None is ones.
        bias: `(D,)`, as x; None is zeros.
        eps: added to the variance.
        version: "fast" or "plain".

    Returns:
        y `(R, D)`, and for `backward` m and r `(R,)`.

    Raises:
        TypeError: the array holds something else than float32 or float64.
        ValueError: there is no such version.

    Example:
        >>> import numpy as np
        >>> forward(np.array([[1.0, 3.0]]), None, None, eps=0.0)[0].tolist()
        [[-1.0, 1.0]]
    """
    finite("layer_norm", "eps", eps)
    xp, (R, D) = array_module(x), x.shape
    (x,) = contiguous(x)
    bias = xp.zeros(D, x.dtype) if bias is None else bias
    y, mean, scale = (xp.empty(shape, x.dtype) for shape in ((R, D), R, R))
    kernels = version_of(version, fast=fast, plain=plain)
    kernels.normalise(x, *contiguous(_ones(weight, x), bias), x.dtype.type(eps), y, mean, scale)
    return y, mean, scale


@host(x="R D", grad="R D", weight="D", mean="R", scale="R")
def backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    scale: Array,
    *,
    version: str = "fast",
) -> Array:
    """The gradient of x, equation (3).

    Args:
        grad: `(R, D)`, the gradient of y; the rest as `forward` took and returned it.

    Returns:
        dx `(R, D)`.
    """
    grad, x, weight = contiguous(grad, x, _ones(weight, x))
    dx = array_module(x).empty(x.shape, x.dtype)
    version_of(version, fast=fast, plain=plain).gradient(grad, x, weight, mean, scale, dx)
    return dx


@host(x="R D", grad="R D", mean="R", scale="R")
def parameters_backward(
    grad: Array, x: Array, mean: Array, scale: Array, *, version: str = "fast"
) -> tuple[Array, Array]:
    """The gradients of the weight and the bias, equation (4).

    Args:
        grad: `(R, D)`, the gradient of y; the rest as `forward` took and returned it.

    Returns:
        dw and db `(D,)`.
    """
    grad, x = contiguous(grad, x)
    return version_of(version, fast=fast, plain=plain).parameters(grad, x, mean, scale)


def _ones(weight: Array | None, x: Array) -> Array:
    return array_module(x).ones(x.shape[1], x.dtype) if weight is None else weight

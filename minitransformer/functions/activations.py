"""Element-wise functions and their slopes.

A backward prefers the slope that can be told from the output (``exp' = exp``): then the input may
be freed.
"""

from __future__ import annotations

import math

from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .checks import floating, number

_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715  # of the approximate GELU


class _Exp(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).exp(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved
        return gradient * y


class _Log(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)
        return array_module(x).log(x)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (x,) = ctx.saved
        return gradient / x


class _Sqrt(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).sqrt(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved
        return gradient / (y + y)


class _Tanh(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).tanh(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved
        return gradient * (1 - y * y)


class _Sigmoid(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        xp = array_module(x)
        decay = xp.exp(-abs(x))  # never overflows
        y = xp.maximum(decay, (x >= 0).astype(x.dtype)) / (1 + decay)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved
        return gradient * (y - y * y)


class _Softplus(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        xp = array_module(x)
        y = xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved  # sigmoid(x) = 1 - exp(-softplus(x))
        return gradient * -array_module(y).expm1(-y)


class _Relu(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).maximum(x, 0)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        (y,) = ctx.saved
        return gradient * (y != 0)  # NaN, which is neither, is passed on


class _Elu(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, alpha: float) -> Array:
        xp = array_module(x)
        scale = x.dtype.type(alpha)  # which may be NumPy's, and wider
        y = xp.maximum(x, 0) + scale * xp.expm1(xp.minimum(x, 0))
        ctx.save(x > 0, y, scale)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        positive, y, scale = ctx.saved
        return gradient * array_module(y).where(positive, y.dtype.type(1), y + scale), None


class _Gelu(Function):
    """``x Phi(x)``, with Phi the normal distribution's cumulative function."""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        from .special import erf  # imports Numba, which whoever never comes here need not wait for

        phi = (1 + erf(x * math.sqrt(0.5))) / 2
        ctx.save(x, phi)
        return x * phi

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        x, phi = ctx.saved  # d/dx = Phi(x) + x exp(-x²/2) / sqrt(2 pi)
        slope = array_module(x).exp(x * x * -0.5)
        slope *= 1 / math.sqrt(2 * math.pi)
        slope *= x
        slope += phi
        slope *= gradient
        return slope


class _GeluTanh(Function):
    """The approximation ``x (1 + tanh u) / 2`` with ``u = sqrt(2/pi) (x + 0.044715 x³)``.

    From |x| = 20 on, tanh u is 1 or -1 in any precision: there the cube does not grow.
    """

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        xp = array_module(x)
        near = xp.clip(x, -20, 20)
        phi = 0.5 * (1 + xp.tanh(_ROOT * near * (1 + _CUBIC * near * near)))
        ctx.save(near, phi)
        return x * phi

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        near, phi = ctx.saved  # phi = (1 + tanh u) / 2, so phi' = 2 phi (1 - phi) u'
        rise = _ROOT * (1 + 3 * _CUBIC * near * near)
        return gradient * (phi + 2 * near * phi * (1 - phi) * rise)


def exp(x: Tensor) -> Tensor:
    """Return ``e ** x``."""
    return _Exp.apply(floating("exp", x))


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm."""
    return _Log.apply(floating("log", x))


def sqrt(x: Tensor) -> Tensor:
    """Return the square root."""
    return _Sqrt.apply(floating("sqrt", x))


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return _Tanh.apply(floating("tanh", x))


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))``, without overflow."""
    return _Sigmoid.apply(floating("sigmoid", x))


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))``, without overflow."""
    return _Softplus.apply(floating("softplus", x))


def relu(x: Tensor) -> Tensor:
    """Return ``max(x, 0)``; the slope at 0 is 0."""
    return _Relu.apply(floating("relu", x))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is positive, else ``alpha (exp(x) - 1)``.

    For the feature map elu(x) + 1 of linear attention use the kernels' own: adding 1 here rounds
    away every value below float32's resolution near 1.
    """
    return _Elu.apply(floating("elu", x), number("elu", "a number alpha", alpha))


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return ``x Phi(x)``, Phi being the cumulative function of the normal distribution.

    Args:
        x: Any shape, floating.
        approximate: ``"none"`` for Phi itself, ``"tanh"`` for the approximation of the paper.

    Raises:
        ValueError: Another ``approximate``.

    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units".

    >>> gelu(Tensor([0.0, 1.0]), approximate="tanh")
    Tensor([0.      , 0.841192], dtype=float32)
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: expected approximate 'none' or 'tanh', got {approximate!r}")
    function = _Gelu if approximate == "none" else _GeluTanh
    return function.apply(floating("gelu", x))

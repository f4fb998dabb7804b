"""Softmax, its logarithm, and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..device import Array, array_module, device_of
from ..function import Context, Function
from ..tensor import Tensor
from .checks import floating, in_range


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: int) -> Array:
        y: Array = array_module(x).exp(x - x.max(axis=dim, keepdims=True))
        y /= y.sum(axis=dim, keepdims=True)
        ctx.save(y, dim)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        y, dim = ctx.saved  # dx = y (g - sum(g y))
        dx = gradient * y
        dx -= y * dx.sum(axis=dim, keepdims=True)
        return dx, None


class _LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: int) -> Array:
        xp = array_module(x)
        y = x - x.max(axis=dim, keepdims=True)
        y -= xp.log(xp.exp(y).sum(axis=dim, keepdims=True))
        ctx.save(y, dim)
        return y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        y, dim = ctx.saved  # dx = g - softmax sum(g)
        dx = array_module(y).exp(y)
        dx *= -gradient.sum(axis=dim, keepdims=True)
        dx += gradient
        return dx, None


class _LayerNorm(Function):
    """Normalises the rows of a matrix.

    With ``n = (x - mean) r`` and ``r = 1 / sqrt(var + eps)`` the output is ``y = n w + b``. Saved
    are ``n`` and ``r``: with them the backward needs neither ``x`` nor its mean.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Array, weight: Array | None, bias: Array | None, eps: float
    ) -> Array:
        xp = array_module(x)
        normal = x - x.mean(axis=1, keepdims=True)
        variance = _sum_of_products(normal, normal, axis=1)[:, None] / x.shape[1]
        scale = 1 / xp.sqrt(variance + eps)
        normal *= scale
        ctx.save(normal, scale, weight)
        y = normal * weight if weight is not None else normal.copy()
        if bias is not None:
            y += bias
        return y

    @staticmethod
    def backward(
        ctx: Context, gradient: Array
    ) -> tuple[Array | None, Array | None, Array | None, None]:
        normal, scale, weight = ctx.saved
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        dx = None
        if for_x:  # dx = r (h - mean(h) - n mean(h n)),  h = g w
            h = gradient * weight if weight is not None else gradient
            along = _sum_of_products(h, normal, axis=1)[:, None] / normal.shape[1]
            dx = h - h.mean(axis=1, keepdims=True)
            dx -= normal * along
            dx *= scale
        dweight = _sum_of_products(gradient, normal, axis=0) if for_weight else None
        dbias = gradient.sum(axis=0) if for_bias else None
        return dx, dweight, dbias, None


def _sum_of_products(x: Array, y: Array, axis: int) -> Array:
    """Return the sum of ``x * y`` over an axis of matrices.

    NumPy's einsum needs no array for the products; CuPy's makes a matrix product of each row.
    """
    if device_of(x) != "cpu":
        return (x * y).sum(axis=axis)
    return np.einsum("rd,rd->r" if axis else "rd,rd->d", x, y)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` over ``dim``, without overflow.

    Args:
        x: Any shape, floating. A row of nothing but -inf gives NaN, as in PyTorch.
        dim: The dimension that sums to one.

    Returns:
        A tensor like ``x``.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: ``dim`` is out of range.

    Example:
        >>> softmax(Tensor([0.0, 0.0])).tolist()
        [0.5, 0.5]
    """
    in_range("softmax", dim, x.shape)
    return _Softmax.apply(floating("softmax", x), dim)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the logarithm of :func:`softmax`, exact where the softmax itself would round to 0."""
    in_range("log_softmax", dim, x.shape)
    return _LogSoftmax.apply(floating("log_softmax", x), dim)


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``x`` shifted and scaled to mean 0 and variance 1 over its last dimensions.

    Args:
        x: ``(..., *normalized_shape)``, floating.
        normalized_shape: The sizes of the dimensions to normalise over.
        weight: Multiplies the result; of ``normalized_shape``, or None for 1.
        bias: Added to the result; of ``normalized_shape``, or None for 0.
        eps: Added to the (biased) variance.

    Returns:
        A tensor like ``x``.

    Raises:
        ValueError: The shapes do not fit.

    Source:
        Ba, Kiros and Hinton 2016, "Layer normalization", equation 4.

    Example:
        >>> layer_norm(Tensor([[1.0, 3.0]]), 2, eps=0.0).tolist()
        [[-1.0, 1.0]]
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"layer_norm: expected x (..., *{shape}), got {x.shape}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.shape != shape:
            raise ValueError(f"layer_norm: expected {name} of shape {shape}, got {parameter.shape}")
    flat = [None if p is None else p.reshape(-1) for p in (weight, bias)]
    y = _LayerNorm.apply(floating("layer_norm", x).reshape(-1, math.prod(shape)), *flat, eps)
    return y.reshape(x.shape)

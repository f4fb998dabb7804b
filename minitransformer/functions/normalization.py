"""Softmax, its logarithm, and layer normalisation."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .checks import WHOLE, floating, in_range, number, shape_of, widened


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: int) -> Array:
        y: Array = array_module(x).exp(x - x.max(axis=dim, keepdims=True))
        y /= widened(y).sum(axis=dim, keepdims=True)
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
    """Normalises the rows of a matrix."""

    @staticmethod
    def forward(
        ctx: Context, x: Array, weight: Array | None, bias: Array | None, eps: float
    ) -> Array:
        y, mean, scale = _kernels().forward(x, weight, bias, eps=eps)
        ctx.save(x, weight, mean, scale)
        return y

    @staticmethod
    def backward(
        ctx: Context, gradient: Array
    ) -> tuple[Array | None, Array | None, Array | None, None]:
        x, weight, mean, scale = ctx.saved
        for_x, *for_parameters, _ = ctx.needs_input_grad
        dx = dweight = dbias = None
        if for_x:
            dx = _kernels().backward(gradient, x, weight, mean, scale)
        if any(for_parameters):
            dweight, dbias = _kernels().parameters_backward(gradient, x, mean, scale)
        return dx, dweight, dbias, None


def _kernels() -> Any:
    """Return the module of the kernels, imported when they are first needed."""
    return importlib.import_module("minitransformer_kernels.layers.layer_norm")


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` over ``dim``, without overflow.

    A row of nothing but -inf gives NaN, as in PyTorch.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: ``dim`` is out of range.

    >>> softmax(Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    in_range("softmax", dim, shape_of("softmax", x))
    return _Softmax.apply(floating("softmax", x), dim) if x.size else x


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the logarithm of :func:`softmax`, exact where the softmax itself would round to 0."""
    in_range("log_softmax", dim, shape_of("log_softmax", x))
    return _LogSoftmax.apply(floating("log_softmax", x), dim) if x.size else x


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``x`` shifted and scaled to mean 0 and variance 1 over its last dimensions.

    Args:
        x: ``(..., *normalized_shape)``, float32 or float64.
        normalized_shape: The sizes of the dimensions to normalise over.
        weight: Multiplies the result; of ``normalized_shape``, or None for 1.
        bias: Added to the result; of ``normalized_shape``, or None for 0.
        eps: Added to the (biased) variance.

    Raises:
        TypeError: ``x`` is neither float32 nor float64.
        ValueError: The shapes do not fit, or eps is below 0.

    Source: Ba, Kiros and Hinton 2016, "Layer normalization", equation 4.

    >>> layer_norm(Tensor([[1.0, 3.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    several = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    shape = tuple(several)
    if not all(isinstance(size, WHOLE) and size > 0 for size in shape):
        raise TypeError(
            "layer_norm: normalized_shape must be a whole number above 0 or several, "
            f"got {normalized_shape!r}"
        )
    if not number("layer_norm", "a number eps", eps) >= 0:
        raise ValueError(f"layer_norm: eps must be 0 or above, got {eps}")
    if not shape or shape_of("layer_norm", x)[-len(shape) :] != shape:
        raise ValueError(f"layer_norm: expected x (..., *{shape}), got {x.shape}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and shape_of("layer_norm", parameter) != shape:
            raise ValueError(f"layer_norm: expected {name} of shape {shape}, got {parameter.shape}")
    rows = floating("layer_norm", x).reshape(-1, math.prod(shape))
    given = [rows, *(None if p is None else p.reshape(-1) for p in (weight, bias))]
    dtype = np.result_type(*(p.dtype for p in given if p is not None))
    y = _LayerNorm.apply(*(None if p is None else p.to(dtype=dtype) for p in given), eps)
    return y.reshape(x.shape)

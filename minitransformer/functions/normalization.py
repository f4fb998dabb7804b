"""Softmax, its logarithm, and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..device import Array, array_module
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


BLOCK = 2**15  # elements: a block of rows and what is made of it stay in a core's cache


def in_blocks(work: Callable[[slice], None], x: Array) -> None:
    """Call `work` for blocks that cover the rows of a matrix, by all threads on the CPU."""
    if type(x) is not np.ndarray or x.size < 2 * BLOCK:
        return work(slice(None))
    from minitransformer_kernels.cpu import pool  # brings Numba, which small tensors do not need

    size = max(1, BLOCK // x.shape[1])

    def blocks(first: int, last: int) -> None:
        for start in range(first * size, last * size, size):
            work(slice(start, start + size))

    pool.run(blocks, -(-len(x) // size))


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
        normal, y = xp.empty_like(x), xp.empty_like(x)
        scale = xp.empty((len(x), 1), x.dtype)

        def normalise(rows: slice) -> None:
            n, r = normal[rows], scale[rows]
            xp.subtract(x[rows], x[rows].mean(axis=1, keepdims=True), out=n)
            variance = xp.einsum("rd,rd->r", n, n)[:, None] / x.shape[1]
            r[...] = 1 / xp.sqrt(variance + eps)
            n *= r
            y[rows] = n if weight is None else n * weight
            if bias is not None:
                y[rows] += bias

        in_blocks(normalise, x)
        ctx.save(normal, scale, weight)
        return y

    @staticmethod
    def backward(
        ctx: Context, gradient: Array
    ) -> tuple[Array | None, Array | None, Array | None, None]:
        normal, scale, weight = ctx.saved
        xp = array_module(gradient)
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        out = xp.empty_like(gradient) if for_x else gradient

        def for_rows(rows: slice) -> None:  # dx = r (h - mean(h) - n mean(h n)),  h = g w
            h = gradient[rows] if weight is None else gradient[rows] * weight
            along = xp.einsum("rd,rd->r", h, normal[rows])[:, None] / normal.shape[1]
            dx = xp.subtract(h, h.mean(axis=1, keepdims=True), out=out[rows])
            dx -= normal[rows] * along
            dx *= scale[rows]

        if for_x:
            in_blocks(for_rows, gradient)
        dweight = xp.einsum("rd,rd->d", gradient, normal) if for_weight else None
        dbias = gradient.sum(axis=0) if for_bias else None
        return out if for_x else None, dweight, dbias, None


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

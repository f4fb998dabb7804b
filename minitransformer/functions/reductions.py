"""Reductions along dimensions."""

from __future__ import annotations

import math

from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Dim, Tensor
from .checks import dims, floating, in_range, number, shape_of, widened


def _spread(gradient: Array, shape: tuple[int, ...], dim: Dim, keepdim: bool) -> Array:
    """Return a reduction's gradient as a view in the shape of what was reduced."""
    xp = array_module(gradient)
    if dim is not None and not keepdim:
        gradient = xp.expand_dims(gradient, dim)
    return xp.broadcast_to(gradient, shape)


def _count(shape: tuple[int, ...], dim: Dim) -> int:
    """Return how many elements a reduction puts together."""
    return math.prod(shape[d] for d in dims(dim, len(shape)))


class _Sum(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: Dim, keepdim: bool) -> Array:
        ctx.save(x.shape, dim, keepdim)
        return x.sum(axis=dim, keepdims=keepdim)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None]:
        return _spread(gradient, *ctx.saved), None, None


class _Mean(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: Dim, keepdim: bool) -> Array:
        ctx.save(x.shape, dim, keepdim)
        return x.mean(axis=dim, keepdims=keepdim)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None]:
        shape, dim, keepdim = ctx.saved
        share = widened(gradient) / _count(shape, dim)
        return _spread(share, shape, dim, keepdim), None, None


class _Var(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: Dim, correction: float, keepdim: bool) -> Array:
        wide = widened(x)
        centred = wide - wide.mean(axis=dim, keepdims=True)
        divisor = wide.dtype.type(max(_count(x.shape, dim) - correction, 0))
        ctx.save(centred, dim, divisor, keepdim)
        variance = (centred * centred).sum(axis=dim, keepdims=keepdim) / divisor
        return variance.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None, None]:
        centred, dim, divisor, keepdim = ctx.saved
        # The mean depends on x too, but the centred values sum to zero, so its path vanishes.
        slope = _spread(gradient * (2 / divisor), centred.shape, dim, keepdim)
        return slope * centred, None, None, None


class _Amax(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dim: Dim, keepdim: bool) -> Array:
        largest: Array = x.max(axis=dim, keepdims=True)
        ctx.save(x, largest, dim, keepdim)
        return largest if keepdim else largest.squeeze(axis=dim)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None]:
        x, largest, dim, keepdim = ctx.saved
        winners = x == largest
        share = winners / winners.sum(axis=dim, keepdims=True)
        return _spread(gradient, x.shape, dim, keepdim) * share, None, None


def _some(name: str, x: Tensor, dim: Dim) -> None:
    """Refuse to look for the largest of no elements."""
    if not all(x.shape[d] for d in dims(dim, x.ndim)):
        raise ValueError(f"{name}: dim {dim} of {x.shape} has no elements, and so no largest one")


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the sum over ``dim``.

    Args:
        x: Any shape.
        dim: The dimension or dimensions that disappear; None for all.
        keepdim: Whether they stay, with size 1.

    Raises:
        ValueError: ``dim`` is out of range.

    >>> sum(Tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0).tolist()
    [4.0, 6.0]
    """
    in_range("sum", dim, shape_of("sum", x))
    return _Sum.apply(x, dim, keepdim)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the mean over ``dim``; arguments as for :func:`sum`, floating only.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: ``dim`` is out of range.
    """
    in_range("mean", dim, shape_of("mean", x))
    return _Mean.apply(floating("mean", x), dim, keepdim)


def var(x: Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the variance over ``dim``, computed in two passes; arguments as for :func:`mean`.

    The count less ``correction`` is the divisor: 1 is Bessel's, 0 gives the biased variance.

    Raises:
        TypeError: ``x`` is not floating, or ``correction`` is no number.
        ValueError: ``dim`` is out of range.
    """
    in_range("var", dim, shape_of("var", x))
    number("var", "a number correction", correction)
    return _Var.apply(floating("var", x), dim, correction, keepdim)


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the largest element over ``dim``; equal ones share the gradient, as in PyTorch.

    Args and errors as for :func:`sum`.
    """
    in_range("amax", dim, shape_of("amax", x))
    _some("amax", x, dim)
    return _Amax.apply(x, dim, keepdim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the first largest element along ``dim`` (None: of the flattened tensor).

    Integers have no gradient. Errors as for :func:`sum`.
    """
    in_range("argmax", dim, shape_of("argmax", x))
    if isinstance(dim, tuple):
        raise TypeError(f"argmax: dim must be one whole number or None, got {dim}")
    _some("argmax", x, dim)
    return Tensor.wrap(array_module(x.data).argmax(x.data, axis=dim, keepdims=keepdim))

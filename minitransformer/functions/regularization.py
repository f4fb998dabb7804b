"""Dropout."""

from __future__ import annotations

from .. import random
from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .checks import floating, number


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, p: float) -> Array:
        xp = array_module(x)
        keep = random.uniform(x.shape, xp.float32, xp) >= p
        scale = x.dtype.type(1 / (1 - p))
        ctx.save(keep, scale)  # one byte an element, where the scaled mask would be four
        return x * keep * scale

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        keep, scale = ctx.saved
        return gradient * keep * scale, None


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return ``x`` with each element set to zero with probability ``p``, the rest scaled to match.

    Args:
        x: Any shape, floating.
        p: The probability, in ``[0, 1)``; drawn from :mod:`minitransformer.random`.
        training: Whether to drop anything at all.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: ``p`` is out of range.

    Source: Srivastava et al. 2014, "Dropout", in the inverted form that leaves evaluation as it is.

    >>> dropout(Tensor([1.0, 2.0]), p=0.9, training=False).tolist()
    [1.0, 2.0]
    """
    if not 0 <= number("dropout", "a probability p with 0 <= p < 1", p) < 1:
        raise ValueError(f"dropout: expected a probability p with 0 <= p < 1, got {p}")
    floating("dropout", x)
    return _Dropout.apply(x, p) if training and p else x

"""Losses: how far a prediction is from its target."""

from __future__ import annotations

import math
from typing import Any

from ..device import Array, array_module, as_array
from ..function import Context, Function
from ..tensor import Tensor
from .checks import floating, indices_below, shape_of, widened


class _CrossEntropy(Function):
    """The loss of each row of ``(R, C)`` logits, zero where it is not ``counted``."""

    @staticmethod
    def forward(ctx: Context, logits: Array, targets: Array, counted: Array) -> Array:
        xp = array_module(logits)
        row = xp.arange(len(targets))
        probability = logits - logits.max(axis=1, keepdims=True)
        # Whatever was there: times 0, inf would be NaN. A GPU need not count the rows for this.
        xp.copyto(probability, 0, where=~counted[:, None])
        chosen = probability[row, targets]
        xp.exp(probability, out=probability)
        total = probability.sum(axis=1)
        probability /= total[:, None]
        ctx.save(probability, row, targets, counted)
        return (xp.log(total) - chosen) * counted

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None]:
        probability, row, targets, counted = ctx.saved  # dlogits = g (p - onehot(target))
        gradient = array_module(gradient).where(counted, gradient, gradient.dtype.type(0))
        dlogits = probability * gradient[:, None]
        dlogits[row, targets] -= gradient
        return dlogits, None, None


class _MeanSquaredError(Function):
    """The mean of ``(x - y)²``, or its sum, as ``scale`` says."""

    @staticmethod
    def forward(ctx: Context, x: Array, y: Array, scale: float) -> Array:
        difference = x - y
        wide = widened(difference)
        ctx.save(wide, scale)
        flat = wide.reshape(-1)
        loss = flat.dot(flat) * flat.dtype.type(scale)
        return loss if wide is difference else loss.astype(difference.dtype)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, Array | None, None]:
        difference, scale = ctx.saved
        dx = difference * (gradient * difference.dtype.type(2 * scale))
        return dx, -dx if ctx.needs_input_grad[1] else None, None


def cross_entropy(
    logits: Tensor, targets: Any, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return ``-log softmax(logits)[target]``, for every target or put together.

    Args:
        logits: ``(N, C)``, ``(N, C, ...)`` or ``(C,)``: C classes, in dimension 1 as in PyTorch.
        targets: ``(N,)``, ``(N, ...)`` or ``()`` integers: the right class of each.
        ignore_index: Targets of this value count for nothing.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.

    Returns:
        A tensor without dimensions, or in the shape of ``targets``. The mean over nothing is NaN,
        as in PyTorch.

    Raises:
        TypeError: The targets are not integers, or the logits not floating.
        ValueError: The shapes do not fit, or the reduction is unknown.
        IndexError: A target is not a class.

    >>> round(cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item(), 6)
    0.693147
    """
    _check_reduction("cross_entropy", reduction)
    shape_of("cross_entropy", logits)
    if logits.dtype.kind != "f":
        raise TypeError(f"cross_entropy: logits must be floating, got {logits.dtype}")
    classes = Tensor(targets).data
    if logits.ndim == 0 or classes.shape != logits.shape[:1] * (logits.ndim > 1) + logits.shape[2:]:
        raise ValueError(
            "cross_entropy: expected logits (N, C, ...) and targets (N, ...), "
            f"got {logits.shape} and {classes.shape}"
        )
    last = logits if logits.ndim <= 2 else logits.permute(0, *range(2, logits.ndim), 1)
    matrix = last.reshape(-1, last.shape[-1])
    flat = classes.reshape(-1)
    counted = flat != ignore_index
    flat = flat * counted
    indices_below("cross_entropy", "targets", flat, matrix.shape[1])
    flat, counted = (as_array(array, logits.device) for array in (flat, counted))
    losses = _CrossEntropy.apply(matrix, flat, counted)
    if reduction == "none":
        return losses.reshape(classes.shape)
    return losses.sum() / (counted.sum().astype(matrix.dtype) if reduction == "mean" else 1)


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared error of tensors of one shape.

    Args:
        x: Any shape, floating.
        target: The same shape, floating.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, which keeps the shape. The mean over nothing
            is NaN, as in PyTorch.

    Raises:
        TypeError: One of them is not floating.
        ValueError: The shapes differ, or the reduction is unknown.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 0.0])).item()
    2.0
    """
    _check_reduction("mse_loss", reduction)
    if floating("mse_loss", x).shape != floating("mse_loss", target).shape:
        raise ValueError(
            f"mse_loss: expected x and target of one shape, got {x.shape} and {target.shape}"
        )
    if reduction == "none":
        return (x - target) ** 2
    mean = 1 / x.size if x.size else math.nan
    return _MeanSquaredError.apply(x, target, mean if reduction == "mean" else 1.0)


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: expected reduction 'mean', 'sum' or 'none', got {reduction!r}")

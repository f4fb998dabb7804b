"""Choosing elements: by condition, by mask, by index."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ..device import Array, array_module, as_array, device_of
from ..function import Context, Function
from ..tensor import Operand, Tensor
from .arithmetic import match, sum_to
from .checks import indices_below, shape_of


class _Where(Function):
    @staticmethod
    def forward(ctx: Context, condition: Array, x: Array, y: Array) -> Array:
        ctx.save(condition, x.shape, y.shape)
        return array_module(condition).where(condition, x, y)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[None, Array | None, Array | None]:
        condition, x_shape, y_shape = ctx.saved
        xp = array_module(gradient)
        zero = gradient.dtype.type(0)
        _, for_x, for_y = ctx.needs_input_grad
        dx = sum_to(xp.where(condition, gradient, zero), x_shape) if for_x else None
        dy = sum_to(xp.where(condition, zero, gradient), y_shape) if for_y else None
        return None, dx, dy


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Context, indices: Array, weight: Array) -> Array:
        ctx.save(indices, weight.shape)
        return weight[indices]

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[None, Array]:
        indices, (rows, width) = ctx.saved
        gradients = gradient.reshape(-1, width)
        return None, sum_by_owner(gradients, indices.reshape(-1), rows)


def sum_by_owner(rows: Array, owners: Array, count: int) -> Array:
    """Return the sum of the rows (T, D) of each of ``count`` owners: (count, D).

    They are added in order: where rows are added by atomic operations, as in CuPy's ``add.at``, no
    two runs give the same digits.
    """
    wide = rows.shape[1] >= 32 and rows.size > 2**14 and rows.dtype in (np.float32, np.float64)
    few = count <= 2 * len(rows)  # of 11 owners 512 rows of 512 take a fourteenth of NumPy's time
    if (wide and few) or device_of(rows) != "cpu":
        kernels: Any = importlib.import_module("minitransformer_kernels.graph")
        return kernels.sum_by_owner(rows, owners, count)
    sums = np.zeros((count, rows.shape[1]), rows.dtype)
    # NumPy adds single numbers in a tenth of the time of rows that hold one each.
    at = np.s_[:, 0] if rows.shape[1] == 1 else np.s_[:]
    np.add.at(sums[at], owners, rows[at])
    return sums


def where(condition: Any, x: Operand, y: Operand) -> Tensor:
    """Return ``x`` where the condition holds and ``y`` elsewhere, all three broadcast.

    What was not chosen gets a zero gradient, even where it is infinite.

    >>> where([True, False], Tensor([1.0, 2.0]), 0.0).tolist()
    [1.0, 0.0]
    """
    left, right = match("where", x, y)
    device = next((v.device for v in (left, right) if isinstance(v, Tensor)), None)
    return _Where.apply(_mask("where", condition, device), left, right)


def masked_fill(x: Tensor, mask: Any, value: float) -> Tensor:
    """Return ``x`` with ``value`` where the mask, booleans that broadcast to ``x``, is true.

    Raises:
        TypeError: The mask is not boolean, or the value no number.
        ValueError: The mask does not broadcast to ``x``, or the dtype of ``x`` has no such value.
    """
    shape, own = shape_of("masked_fill", x), _mask("masked_fill", mask, x.device)
    sizes = zip(reversed(own.shape), reversed(shape), strict=False)
    if own.ndim > x.ndim or any(m not in (1, n) for m, n in sizes):
        raise ValueError(f"masked_fill: a mask of shape {own.shape} does not broadcast to {shape}")
    if not isinstance(value, int | float | np.number | np.bool_):
        raise TypeError(
            f"masked_fill: expected a number for value, got {type(value).__name__}; to choose "
            "between tensors use functions.where"
        )
    try:
        filling = x.dtype.type(value)
    except (OverflowError, ValueError):  # what integers have not
        filling = None
    if filling is None or (x.dtype.kind != "f" and filling != value):
        raise ValueError(
            f"masked_fill: expected a value that {x.dtype} has, got {value}; convert x with "
            ".to(dtype=...)"
        )
    return _Where.apply(own, filling, x)


def _mask(name: str, mask: Any, device: str | None) -> Array:
    """Return a mask as an array of one's own on the device of what it chooses from."""
    array = Tensor(mask, device=device).data
    if array.dtype.kind != "b":
        raise TypeError(f"{name}: expected a boolean mask, got {array.dtype}")
    return array.copy()


def embedding(indices: Any, weight: Tensor) -> Tensor:
    """Return the rows of ``weight`` that ``indices`` name.

    Args:
        indices: Integers of any shape, a tensor or an array.
        weight: ``(num_embeddings, embedding_dim)``.

    Returns:
        ``(*indices.shape, embedding_dim)``. A row that is named twice gets both gradients.

    Raises:
        TypeError: The indices are not integers.
        ValueError: The weight is no matrix.
        IndexError: An index has no row.

    >>> embedding(Tensor([1, 0]), Tensor([[1.0], [2.0]])).tolist()
    [[2.0], [1.0]]
    """
    array = Tensor(indices).data
    if len(shape_of("embedding", weight)) != 2:
        raise ValueError(
            f"embedding: expected weight (num_embeddings, embedding_dim), got shape {weight.shape}"
        )
    indices_below("embedding", "indices", array, weight.shape[0])
    own = array.copy()  # a backward adds to the rows that were read, whatever is written since
    return _Embedding.apply(as_array(own, weight.device), weight)

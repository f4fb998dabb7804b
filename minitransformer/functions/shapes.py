"""Reshaping, slicing, gathering, joining: what moves numbers without changing them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .arithmetic import alike, sum_to
from .checks import WHOLE, in_range, shape_of
from .selection import sum_by_owner


def _sizes(sizes: Sequence[int | tuple[int, ...]]) -> tuple[int, ...]:
    """Return ``f(x, 2, 3)`` and ``f(x, (2, 3))`` alike as ``(2, 3)``."""
    several = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    for size in several:
        if not isinstance(size, WHOLE):
            raise TypeError(f"sizes and dimensions must be whole numbers, got {size!r}")
    return tuple(several)  # type: ignore[arg-type]


def _place(name: str, dim: int, shape: tuple[int, ...]) -> int:
    """Return a dimension counted from the front."""
    if not isinstance(dim, WHOLE):
        raise TypeError(f"{name}: dim must be one whole number, got {dim!r}")
    in_range(name, dim, shape)
    return dim % len(shape)


class _Reshape(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, shape: tuple[int, ...]) -> Array:
        ctx.save(x.shape)
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        return gradient.reshape(ctx.saved[0]), None


class _Permute(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, dims: tuple[int, ...]) -> Array:
        ctx.save(dims)
        return x.transpose(dims)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        (dims,) = ctx.saved
        return gradient.transpose(sorted(range(len(dims)), key=dims.__getitem__)), None


class _Expand(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, shape: tuple[int, ...]) -> Array:
        ctx.save(x.shape)
        return array_module(x).broadcast_to(x, shape)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        return sum_to(gradient, ctx.saved[0]), None


class _GetItem(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, index: Any) -> Array:
        ctx.save(x.shape, index)
        return x[index]

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        shape, index = ctx.saved
        xp = array_module(gradient)
        if _may_repeat(index):
            owners = xp.arange(math.prod(shape)).reshape(shape)[index]
            sums = sum_by_owner(gradient.reshape(-1, 1), owners.reshape(-1), math.prod(shape))
            return sums.reshape(shape), None
        dx: Array = xp.zeros(shape, gradient.dtype)
        dx[index] = gradient
        return dx, None


def _may_repeat(index: Any) -> bool:
    """Return whether an index can name an element twice: only arrays of integers can."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(getattr(part, "ndim", 0) > 0 and part.dtype.kind in "iu" for part in parts)


class _Cat(Function):
    @staticmethod
    def forward(ctx: Context, *arrays: Array, dim: int) -> Array:
        ctx.save(dim, [array.shape[dim] for array in arrays])
        return array_module(arrays[0]).concatenate(alike(*arrays), axis=dim)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, ...]:
        dim, sizes = ctx.saved
        return tuple(_pieces(gradient, sizes, dim))


class _Split(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, sizes: list[int], dim: int) -> tuple[Array, ...]:
        ctx.save(dim)
        return tuple(_pieces(x, sizes, dim))

    @staticmethod
    def backward(ctx: Context, *gradients: Array | None) -> tuple[Array, None, None]:
        (dim,) = ctx.saved
        pieces = ctx.filled(*gradients)
        return array_module(pieces[0]).concatenate(pieces, axis=dim), None, None


def _pieces(array: Array, sizes: Sequence[int], dim: int) -> list[Array]:
    """Return views of consecutive pieces of ``array`` along a non-negative ``dim``."""
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return [array[(slice(None),) * dim + (slice(start, stop),)] for start, stop in bounds]


def reshape(x: Tensor, *shape: int | tuple[int, ...]) -> Tensor:
    """Return the same elements in another shape, as a view where the layout allows it.

    Args:
        x: Any shape.
        *shape: The new sizes, or one tuple of them; one may be -1 and is inferred.

    Raises:
        ValueError: The number of elements differs.

    >>> reshape(Tensor([1.0, 2.0, 3.0, 4.0]), 2, -1).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    sizes = _sizes(shape)
    known = math.prod(n for n in sizes if n != -1)
    fits = known == x.size if -1 not in sizes else known and x.size % known == 0
    if not fits or sizes.count(-1) > 1 or min(sizes, default=0) < -1:
        raise ValueError(f"reshape: {x.shape} has {x.size} elements and cannot become {sizes}")
    return _Reshape.apply(x, sizes)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return ``x`` with the dimensions from ``start_dim`` to ``end_dim`` made into one."""
    first, last = (_place("flatten", dim, shape_of("flatten", x)) for dim in (start_dim, end_dim))
    return reshape(
        x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    )


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` with a new dimension of size 1 at ``dim``."""
    at = _place("unsqueeze", dim, (*shape_of("unsqueeze", x), 1))
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` without its dimension ``dim``, which must have size 1.

    PyTorch would leave a larger dimension as it is; here that is an error.
    """
    at = _place("squeeze", dim, shape_of("squeeze", x))
    if x.shape[at] != 1:
        raise ValueError(f"squeeze: dim {dim} of {x.shape} has size {x.shape[at]}, expected 1")
    return reshape(x, x.shape[:at] + x.shape[at + 1 :])


def permute(x: Tensor, *dims: int | tuple[int, ...]) -> Tensor:
    """Return a view with the dimensions in another order.

    Args:
        x: Any shape.
        *dims: For each dimension of the result, the one of ``x`` that goes there.

    Raises:
        ValueError: ``dims`` does not name every dimension once.

    >>> permute(Tensor([[1.0, 2.0]]), 1, 0).shape
    (2, 1)
    """
    order = tuple(dim % x.ndim if -x.ndim <= dim < x.ndim else dim for dim in _sizes(dims))
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(
            f"permute: expected each of the {x.ndim} dimensions of {x.shape} once, got {dims}"
        )
    return _Permute.apply(x, order)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return a view with two dimensions swapped."""
    first, second = (_place("transpose", dim, x.shape) for dim in (dim0, dim1))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return _Permute.apply(x, tuple(order))


def expand(x: Tensor, *shape: int | tuple[int, ...]) -> Tensor:
    """Return a view in which dimensions of size 1, and new leading ones, are repeated.

    Args:
        x: Any shape.
        *shape: The new sizes; -1 keeps a size.

    Raises:
        ValueError: A size other than 1 would have to change.
    """
    wanted = _sizes(shape)
    added = len(wanted) - x.ndim
    old = (1,) * added + x.shape
    sizes = tuple(m if n == -1 else n for m, n in zip(old, wanted, strict=False))
    if added < 0 or any(m not in (1, n) for m, n in zip(old, sizes, strict=True)):
        raise ValueError(f"expand: {x.shape} cannot be expanded to {wanted}")
    return _Expand.apply(x, sizes)


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return ``x[index]`` with NumPy's meaning, slices and integer and boolean arrays alike.

    An element that is selected twice gets both gradients.

    Raises:
        IndexError: The index does not fit.
    """
    shape_of("getitem", x)
    parts = index if isinstance(index, tuple) else (index,)
    plain = tuple([_plain_index(part, x) for part in parts])
    return _GetItem.apply(x, plain)


def _plain_index(part: Any, x: Tensor) -> Any:
    """Return a list, an array or a tensor as an array of one's own beside ``x``; else the part."""
    if not hasattr(part, "__len__"):
        return part
    array = Tensor(part, device=x.device).data
    return array.copy() if array.size or hasattr(part, "dtype") else array.astype(int)  # []


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors joined along an existing dimension; their shapes agree elsewhere.

    Raises:
        ValueError: There are none, or their shapes differ elsewhere.

    >>> cat([Tensor([1.0]), Tensor([2.0, 3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    _check_tensors("cat", tensors)
    at = _place("cat", dim, tensors[0].shape)
    rest = {t.shape[:at] + t.shape[at + 1 :] for t in tensors}
    if len(rest) > 1 or any(t.ndim != tensors[0].ndim for t in tensors):
        raise ValueError(
            f"cat: shapes must agree but for dim {dim}, got {[t.shape for t in tensors]}"
        )
    return _Cat.apply(*tensors, dim=at)


concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors of equal shape joined along a new dimension ``dim``.

    Raises:
        ValueError: There are none, or their shapes differ.
    """
    _check_tensors("stack", tensors)
    if len({t.shape for t in tensors}) > 1:
        raise ValueError(f"stack: expected equal shapes, got {[t.shape for t in tensors]}")
    return cat([unsqueeze(t, dim) for t in tensors], _place("stack", dim, (*tensors[0].shape, 1)))


def _check_tensors(name: str, tensors: Sequence[Tensor]) -> None:
    """Refuse anything but a list of one tensor or more."""
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"{name}: expected a list of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ValueError(f"{name}: expected at least one tensor, got none")
    for tensor in tensors:
        shape_of(name, tensor)


def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return consecutive pieces along ``dim``, as views.

    Args:
        x: Any shape.
        size: The size of every piece (the last may be smaller), or a list of sizes.
        dim: The dimension to cut.

    Raises:
        TypeError: A size is no whole number.
        ValueError: The sizes do not add up.

    >>> [piece.tolist() for piece in split(Tensor([1.0, 2.0, 3.0]), 2)]
    [[1.0, 2.0], [3.0]]
    """
    at = _place("split", dim, shape_of("split", x))
    length = x.shape[at]
    if isinstance(size, WHOLE):
        starts = range(0, length or 1, size) if size > 0 else ()  # of nothing, one empty piece
        sizes = [min(size, length - start) for start in starts]
    else:
        sizes = list(size) if np.iterable(size) else [size]
    if not all(isinstance(part, WHOLE) for part in sizes):
        raise TypeError(f"split: size must be a whole number or a list of them, got {size!r}")
    if math.fsum(sizes) != length or min(sizes, default=-1) < 0:
        raise ValueError(f"split: {size} does not cut dim {dim} of {x.shape}, which is {length}")
    return _Split.apply(x, sizes, at)

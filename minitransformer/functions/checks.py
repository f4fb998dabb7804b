"""What functions ask of their arguments, and what they say when they do not get it."""

from __future__ import annotations

import numpy as np

from ..device import Array
from ..tensor import Dim, Tensor

WHOLE = int, np.integer


def floating(name: str, x: Tensor) -> Tensor:
    """Return ``x``, having refused integers, booleans and what is no tensor by a TypeError."""
    shape_of(name, x)
    if x.dtype.kind != "f":
        raise TypeError(
            f"{name}: expected a floating tensor, got {x.dtype}; convert with .to(dtype=...)"
        )
    return x


def shape_of(name: str, x: Tensor) -> tuple[int, ...]:
    """Return the shape of ``x``, having refused what is no tensor by a TypeError."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(x).__name__}; wrap it: Tensor(...)")
    return x.shape


def widened(x: Array) -> Array:
    """Return an array in which sums and squares fit: float32 for float16, which ends at 65,504."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def number(name: str, expected: str, value: float) -> float:
    """Return a number, having refused anything else by a TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}: expected {expected}, got {value!r}")
    return value


def dims(dim: Dim, ndim: int) -> tuple[int, ...]:
    """Return the dimensions that ``dim`` names, as given."""
    return tuple(range(ndim)) if dim is None else dim if isinstance(dim, tuple) else (dim,)


def in_range(name: str, dim: Dim, shape: tuple[int, ...]) -> None:
    """Refuse dimensions, one or several or None for all, that a shape does not have."""
    for d in dims(dim, len(shape)):
        if not isinstance(d, WHOLE):
            raise TypeError(
                f"{name}: dim must be a whole number, a tuple of them or None, got {dim!r}"
            )
        if not -len(shape) <= d < len(shape):
            raise ValueError(f"{name}: dim {d} is out of range for a tensor of shape {shape}")


def indices_below(name: str, argument: str, indices: Array, size: int) -> None:
    """Refuse indices outside ``0..size-1``, which NumPy would count from the end or CuPy wrap.

    Look before they are moved to a GPU: there, looking makes the CPU wait.

    Raises:
        TypeError: They are not integers.
        IndexError: One is out of range.
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integer {argument}, got {indices.dtype}")
    if indices.size and bool(((indices < 0) | (indices >= size)).any()):
        raise IndexError(
            f"{name}: {argument} must be 0..{size - 1}, "
            f"got {int(indices.min())}..{int(indices.max())}"
        )

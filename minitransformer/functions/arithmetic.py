"""Arithmetic with broadcasting, matrix products and moves between devices and dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..device import Array, array_module, as_array, device_of, resolve_device, to_device
from ..function import Context, Function
from ..tensor import Operand, Tensor
from .checks import shape_of


def sum_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Return ``gradient`` summed over the dimensions that broadcasting added to ``shape``."""
    if gradient.shape == shape:
        return gradient
    added = gradient.ndim - len(shape)
    stretched = tuple(
        added + dim for dim, n in enumerate(shape) if n == 1 and gradient.shape[added + dim] != 1
    )
    return gradient.sum(axis=(*range(added), *stretched)).reshape(shape)


def match(name: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Return two operands, numbers and integers converted to the dtype of the floating one.

    Tensors stay tensors; all else becomes arrays.

    Raises:
        OverflowError: A number does not fit in the other operand's dtype.
        ValueError: The shapes do not broadcast.
    """
    x, y = (value.data if isinstance(value, Tensor) else value for value in (left, right))
    if not hasattr(x, "dtype") or isinstance(x, float):
        x = left = _beside(name, x, y)
    if not hasattr(y, "dtype") or isinstance(y, float):
        y = right = _beside(name, y, x)
    if x.dtype.kind != y.dtype.kind:
        if x.dtype.kind == "f":
            right = _cast(right, x.dtype)
        elif y.dtype.kind == "f":
            left = _cast(left, y.dtype)
    if x.shape != y.shape:
        _check_broadcast(name, x.shape, y.shape)
    return left, right


def alike(*arrays: Array) -> Sequence[Array]:
    """Return arrays, integers among floating ones converted to their dtype."""
    floating = [x.dtype for x in arrays if x.dtype.kind == "f"]
    if len(floating) in (0, len(arrays)):
        return arrays
    dtype = np.result_type(*floating)
    return [x if x.dtype.kind == "f" else x.astype(dtype) for x in arrays]


def _beside(name: str, value: Any, other: Any) -> Any:
    """Return a Python number as a scalar that will not widen ``other``, or a sequence as an array.

    They take a floating dtype; Python floats beside anything else are float32.
    """
    dtype = getattr(other, "dtype", np.dtype(object))
    if not isinstance(value, int | float):
        return as_array(value, device_of(other), dtype if dtype.kind == "f" else None)
    if dtype.kind != "f" and isinstance(value, float):
        return np.float32(value)
    if dtype.kind not in "fiu":
        dtype = np.dtype(type(value))
    try:
        return dtype.type(value)
    except OverflowError:
        raise OverflowError(
            f"{name}: expected a number that {dtype} has, got {value}; convert the tensor with "
            ".to(dtype=...)"
        ) from None


def _cast(value: Any, dtype: Any) -> Any:
    return to(value, dtype=dtype) if isinstance(value, Tensor) else as_array(value, dtype=dtype)


def _check_broadcast(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for m, n in zip(reversed(left), reversed(right), strict=False):
        if m != n and m != 1 and n != 1:
            raise ValueError(
                f"{name}: shapes {left} and {right} do not broadcast: from the right, sizes must "
                f"be equal or one of them 1, got {m} and {n}"
            )


class _Add(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        ctx.save(x.shape, y.shape)
        return x + y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, Array]:
        x_shape, y_shape = ctx.saved
        return sum_to(gradient, x_shape), sum_to(gradient, y_shape)


class _Subtract(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        ctx.save(x.shape, y.shape)
        return x - y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, Array | None]:
        x_shape, y_shape = ctx.saved
        dy = -sum_to(gradient, y_shape) if ctx.needs_input_grad[1] else None
        return sum_to(gradient, x_shape), dy


class _Multiply(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        ctx.save(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, Array | None]:
        x, y = ctx.saved
        for_x, for_y = ctx.needs_input_grad
        dx = sum_to(gradient * y, x.shape) if for_x else None
        dy = sum_to(gradient * x, y.shape) if for_y else None
        return dx, dy


class _Divide(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        quotient = x / y
        ctx.save(x.shape, y, quotient)
        return quotient

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, Array | None]:
        x_shape, y, quotient = ctx.saved
        dx = gradient / y
        dy = -sum_to(dx * quotient, y.shape) if ctx.needs_input_grad[1] else None
        return sum_to(dx, x_shape), dy


class _Power(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        try:
            result = x**y
        except ValueError:
            raise ValueError("power: integers have no negative powers; make x floating") from None
        ctx.save(x, y, result)
        return result

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, Array | None]:
        x, y, result = ctx.saved
        xp = array_module(result)
        dx = dy = None
        if ctx.needs_input_grad[0]:  # y x^(y-1), and 0 where y = 0, even at x = 0
            dx = sum_to(gradient * y * x ** (y - (y != 0)), x.shape)
        if ctx.needs_input_grad[1]:  # x^y log x, and its limit 0 at x = 0 where y is not negative
            dy = sum_to(gradient * result * xp.log(x + ((x == 0) & (y >= 0))), y.shape)
        return dx, dy


class _Negative(Function):
    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        return -x

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        return -gradient


class _Matmul(Function):
    """``x @ y`` for at least two dimensions each."""

    @staticmethod
    def forward(ctx: Context, x: Array, y: Array) -> Array:
        if x.dtype is not y.dtype:
            x, y = alike(x, y)
        ctx.save(x, y)
        return product(x, y)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, Array | None]:
        x, y = ctx.saved
        for_x, for_y = ctx.needs_input_grad
        dx = sum_to(product(gradient, y.swapaxes(-1, -2)), x.shape) if for_x else None
        if not for_y:
            return dx, None
        if y.ndim == 2:  # the batch is one long matrix: its sum happens inside the product
            return dx, product(rows(x).T, rows(gradient))
        return dx, sum_to(product(x.swapaxes(-1, -2), gradient), y.shape)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, weight: Array, bias: Array | None) -> Array:
        if x.dtype is not weight.dtype:
            x, weight = alike(x, weight)
        ctx.save(x, weight)
        return product(x, weight.T, bias)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, Array | None, Array | None]:
        x, weight = ctx.saved
        for_x, for_weight, for_bias = ctx.needs_input_grad
        by_rows = rows(gradient)
        factors = [(by_rows, weight)] * for_x + [(by_rows.T, rows(x))] * for_weight
        found = iter(products(*factors))
        dx = next(found).reshape(x.shape) if for_x else None
        dweight = next(found) if for_weight else None
        return dx, dweight, column_sums(by_rows) if for_bias else None


class _To(Function):
    @staticmethod
    def forward(ctx: Context, x: Array, device: str, dtype: Any) -> Array:
        ctx.save(device_of(x))
        return as_array(x, device, dtype)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None, None]:
        (device,) = ctx.saved
        return to_device(gradient, device), None, None  # the tape restores the dtype


def rows(array: Array) -> Array:
    """Return ``(..., D)`` as the matrix ``(rows, D)``."""
    if array.ndim == 2:
        return array
    *many, width = array.shape
    return array.reshape(-1 if width else math.prod(many), width)


def column_sums(matrix: Array) -> Array:
    """Return the sum of all rows; of few on the CPU by BLAS, in a third of NumPy's time or less."""
    if type(matrix) is np.ndarray and matrix.size <= 2**13:  # beyond it OpenBLAS wakes threads
        return _ones(len(matrix), matrix.dtype).dot(matrix)
    return matrix.sum(axis=0)


@lru_cache
def _ones(length: int, dtype: Any) -> Array:
    """Return a vector of ones, the same each time: nobody writes to it."""
    return np.ones(length, dtype)


def product(x: Array, y: Array, bias: Array | None = None) -> Array:
    """Return ``x @ y``; with a matrix ``y`` all of ``x``'s rows go through one matrix product.

    NumPy would call one small product for each leading index. A bias is added to each row. Large
    products on the CPU are shared out among threads.
    """
    if x.ndim > 2 and y.ndim == 2:
        return product(rows(x), y, bias).reshape(*x.shape[:-1], y.shape[1])
    return products((x, y) if bias is None else (x, y, bias))[0]


def products(*terms: tuple[Array, ...]) -> list[Array]:
    """Return ``x @ y`` of each ``(x, y)``, and ``x @ y + bias`` of each ``(x, y, bias)``.

    Large ones are shared out among threads together.
    """
    if _are_large(terms):
        from .products import shared_products  # brings Numba along, small tensors do not need it

        return shared_products(*terms)
    results = []
    for x, y, *bias in terms:
        result = x.dot(y) if x.ndim == y.ndim == 2 else x @ y  # NumPy begins `dot` in half the time
        for row in bias:
            result += row
        results.append(result)
    return results


def _are_large(terms: Sequence[tuple[Array, ...]]) -> bool:
    """Return whether BLAS would start threads of its own for each; OpenBLAS does beyond this."""
    for x, y, *_ in terms:  # a loop: most products are small, and ask here first
        if x.size * y.shape[-1] <= 2**18 or x.shape[-2] * y.size <= 2**18:
            return False
        if type(x) is not np.ndarray or type(y) is not np.ndarray:
            return False
    return bool(terms)


def add(x: Operand, y: Operand) -> Tensor:
    """Return ``x + y`` with broadcasting; a Python number takes the tensor's dtype."""
    return _Add.apply(*match("add", x, y))


def subtract(x: Operand, y: Operand) -> Tensor:
    """Return ``x - y`` with broadcasting."""
    return _Subtract.apply(*match("subtract", x, y))


def multiply(x: Operand, y: Operand) -> Tensor:
    """Return ``x * y`` with broadcasting."""
    return _Multiply.apply(*match("multiply", x, y))


def divide(x: Operand, y: Operand) -> Tensor:
    """Return ``x / y`` with broadcasting; integers are divided as float32."""
    left, right = match("divide", *(float(v) if isinstance(v, int) else v for v in (x, y)))
    if left.dtype.kind != "f":
        left, right = _cast(left, np.float32), _cast(right, np.float32)
    return _Divide.apply(left, right)


def power(x: Operand, y: Operand) -> Tensor:
    """Return ``x ** y`` with broadcasting, differentiable in both where ``x`` is positive.

    Raises:
        ValueError: Integers are raised to negative powers.
    """
    return _Power.apply(*match("power", x, y))


def negative(x: Tensor) -> Tensor:
    """Return ``-x``."""
    shape_of("negative", x)
    return _Negative.apply(x)


def compare(name: str, x: Any, y: Any) -> Tensor:
    """Return NumPy's comparison of a name, such as ``"less"``: booleans, without a gradient."""
    pair = match(name, _or_infinity(x, y), _or_infinity(y, x))
    left, right = (v.data if isinstance(v, Tensor) else v for v in pair)
    return Tensor.wrap(getattr(array_module(left), name)(left, right))


def _or_infinity(value: Any, other: Any) -> Any:
    """Return an int that the integers of ``other`` do not reach as an infinity: it compares alike.

    All else is returned as it is.
    """
    dtype = getattr(other, "dtype", None)
    if not isinstance(value, int) or dtype is None or dtype.kind not in "iu":
        return value
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        return value
    return math.inf if value > 0 else -math.inf


def matmul(x: Tensor | Array, y: Tensor | Array) -> Tensor:
    """Return the matrix product over the last two dimensions, batched over those before.

    Args:
        x: ``(..., L, K)``, or a vector ``(K,)``.
        y: ``(..., K, M)``, or a vector ``(K,)``.

    Returns:
        ``(..., L, M)``, without the dimension of a vector.

    Raises:
        TypeError: A factor is not numeric.
        ValueError: The shapes do not fit.

    >>> (Tensor([[1.0, 2.0]]) @ Tensor([3.0, 4.0])).tolist()
    [11.0]
    """
    x, y = (factor if isinstance(factor, Tensor) else as_array(factor) for factor in (x, y))
    if x.ndim == 0 or y.ndim == 0:
        raise ValueError(f"matmul: expected matrices or vectors, got {x.shape} and {y.shape}")
    if x.ndim == 1:
        return matmul(x.reshape(1, -1), y).squeeze(-1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        return matmul(x, y.reshape(-1, 1)).squeeze(-1)
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"matmul: x is {x.shape} and y is {y.shape}: the last dimension of x, {x.shape[-1]}, "
            f"must be y's last but one, {y.shape[-2]}"
        )
    _check_broadcast("matmul", x.shape[:-2], y.shape[:-2])
    return _Matmul.apply(x, y)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, as one matrix product over all leading dimensions.

    Args:
        x: ``(..., in_features)``.
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or None.

    Returns:
        ``(..., out_features)``.

    Raises:
        ValueError: The shapes do not fit.

    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]]), Tensor([0.5])).tolist()
    [[11.5]]
    """
    for given in (x, weight) if bias is None else (x, weight, bias):
        shape_of("linear", given)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            "linear: expected x (..., in_features) and weight (out_features, in_features), "
            f"got {x.shape} and {weight.shape}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear: expected bias of shape {weight.shape[:1]}, got {bias.shape}")
    if x.ndim == 1:
        return linear(x.reshape(1, -1), weight, bias).squeeze(0)
    return _Linear.apply(x, weight, bias)


def to(x: Tensor, device: str | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return ``x`` on another device or in another dtype; see :meth:`Tensor.to`."""
    target = x.device if device is None else resolve_device(device)
    kind = x.dtype if dtype is None else np.dtype(dtype)
    if kind.kind not in "fiub":
        raise TypeError(f"to: expected a dtype of numbers that are real or booleans, got {kind}")
    if target == x.device and kind == x.dtype:
        return x
    return _To.apply(x, target, kind)

"""Numbers, arrays and functions as a CUDA kernel sees them: NumPy's, with Numba's rules for dtypes.

A literal `1` is int64 and `1.5` float64. Integers are 64 bits wide once they are computed with, and
keep their own width until then; float32 with float32 stays float32.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

BITWISE = (operator.and_, operator.or_, operator.xor)
SHIFTS = (operator.lshift, operator.rshift)


class Memory:
    """An array as a kernel sees it: its indices are checked, and parts of it are views."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.dtype = Cast(data.dtype)
        self.shape = tuple(map(np.int64, data.shape))
        self.strides = tuple(map(np.int64, data.strides))
        self.size, self.ndim = np.int64(data.size), np.int64(data.ndim)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        return seen(self.data[index if isinstance(index, str) else self.checked(index)])

    def __getattr__(self, field: str) -> Any:
        return self[field]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.data[self.checked(index)] = stored(value, self.data.dtype)

    def checked(self, index: Any) -> tuple[Any, ...]:
        """The index as a tuple; Python would not catch one past the end of a slice's axis."""
        indices = tuple(
            i if isinstance(i, (slice, str)) else int(i)
            for i in (index if isinstance(index, tuple) else (index,))
        )
        for i, size in zip(indices, self.data.shape, strict=False):
            if isinstance(i, int) and not -size <= i < size:
                raise IndexError(f"{indices} in an array of shape {self.data.shape}")
        return indices


class Record:
    """An element of an array of records: a view, so that `x[i].mass = 1` changes the array."""

    data: np.void

    def __init__(self, data: np.void) -> None:
        object.__setattr__(self, "data", data)

    def __getitem__(self, field: Any) -> Any:
        return seen(self.data[field])

    def __setitem__(self, field: Any, value: Any) -> None:
        self.data[field] = stored(value, self.data.dtype[field])

    __getattr__ = __getitem__
    __setattr__ = __setitem__


class Cast:
    """A dtype that converts when called, as Numba's types do in a kernel: `float32(x)`."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, value: Any) -> Any:
        return stored(value, self.dtype)[()]


def seen(value: Any) -> Any:
    """What lies in an array, or comes from outside the kernel, as the kernel sees it."""
    if isinstance(value, np.ndarray):
        return Memory(value)
    if isinstance(value, np.void):
        return Record(value)
    if isinstance(value, tuple):
        return tuple(map(seen, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return np.int64(value) if value < 2**63 else np.uint64(value)
    return np.float64(value) if type(value) is float else value


def stored(value: Any, dtype: np.dtype) -> Any:
    """A value as NumPy keeps it in an array of a dtype."""
    plain = value.data if isinstance(value, (Memory, Record)) else value
    return np.asarray(plain).astype(dtype)


def poisoned(shape: Any, dtype: Cast) -> Memory:
    """Memory that nobody wrote: what is read from it spoils every result, or is out of bounds."""
    data = np.empty(shape, dtype.dtype)
    if data.dtype.kind == "V":
        data.view(np.uint8).fill(0xFF)
    else:
        data.fill(np.nan if data.dtype.kind in "fc" else True if data.dtype.kind == "b" else 77)
    return Memory(data)


# Operators ----------------------------------------------------------------------------------------


def is_integer(*values: Any) -> bool:
    """Whether all values are integers or booleans."""
    return all(isinstance(value, (bool, int, np.bool_, np.integer)) for value in values)


def widened(*values: Any) -> list[Any]:
    """Integers as Numba computes with them: in 64 bits, signed if any of them is."""
    kind = np.int64 if any(np.asarray(v).dtype.kind != "u" for v in values) else np.uint64
    return [np.asarray(value).astype(kind)[()] for value in values]


def binary(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left operation right`."""
    if operation is operator.pow and isinstance(left, np.float32) and is_integer(right):
        return np.float32(np.float64(left) ** right)
    if not is_integer(left, right):
        return operation(left, right)
    if operation in BITWISE and isinstance(left, (bool, np.bool_)) and type(left) is type(right):
        return operation(left, right)
    if operation in SHIFTS:
        (left,) = widened(left)
        return operation(left, type(left)(right))
    return operation(*widened(left, right))


def unary(operation: Callable[[Any], Any], value: Any) -> Any:
    """`-value`, `+value`, `~value`: the width grows afterwards, which unsigned integers show."""
    if isinstance(value, (bool, np.bool_)):
        return np.bool_(not value) if operation is operator.invert else operation(np.int64(value))
    return widened(operation(value))[0] if is_integer(value) else operation(value)


# Bits, and arithmetic that CUDA names -------------------------------------------------------------


def bits_of(value: Any) -> tuple[int, int]:
    """An integer's bits as a natural number, and how many there are."""
    width = 8 * np.asarray(value).itemsize
    return int(value) & (1 << width) - 1, width


def popc(value: Any) -> Any:
    """How many bits are set."""
    return type(value)(bits_of(value)[0].bit_count())


def clz(value: Any) -> Any:
    """How many zeros lead."""
    bits, width = bits_of(value)
    return type(value)(width - bits.bit_length())


def ffs(value: Any) -> Any:
    """The place of the lowest set bit, from 1 up; 0 if there is none."""
    bits, _ = bits_of(value)
    return np.uint32((bits & -bits).bit_length())


def brev(value: Any) -> Any:
    """The bits in the opposite order."""
    bits, width = bits_of(value)
    return np.dtype(f"u{width // 8}").type(int(f"{bits:0{width}b}"[::-1], 2))


def fma(*values: Any) -> Any:
    """`a * b + c`, rounded once."""
    kind = np.float32 if all(isinstance(value, np.float32) for value in values) else np.float64
    a, b, c = np.array(values, kind)
    if not np.isfinite([a, b, c]).all():
        return kind(a * b + c)
    return kind(float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))))


def cbrt(value: Any) -> Any:
    """The cube root."""
    return np.cbrt(value if isinstance(value, np.float32) else np.float64(value))


def selp(test: Any, left: Any, right: Any) -> Any:
    """`left if test else right`."""
    return left if test else right


def atomic(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`cuda.atomic.operation(array, index, *values)`: answers with what was there before."""

    def update(array: Memory, index: Any, *values: Any) -> Any:
        old = array[index]
        array[index] = operation(old, *(array.dtype(value) for value in values))
        return old

    return update


def swapped_first(array: Memory, wanted: Any, new: Any) -> Any:
    """`cuda.atomic.compare_and_swap`: `cas` on the first element."""
    return ATOMICS["cas"](array, 0, wanted, new)


ATOMICS: dict[str, Callable[..., Any]] = {
    "add": atomic(operator.add),
    "sub": atomic(operator.sub),
    "and_": atomic(operator.and_),
    "or_": atomic(operator.or_),
    "xor": atomic(operator.xor),
    "inc": atomic(lambda old, top: 0 if old >= top else old + 1),
    "dec": atomic(lambda old, top: top if old == 0 or old > top else old - 1),
    "max": atomic(max),
    "min": atomic(min),
    "nanmax": atomic(lambda old, new: new if math.isnan(old) else max(old, new)),
    "nanmin": atomic(lambda old, new: new if math.isnan(old) else min(old, new)),
    "exch": atomic(lambda old, new: new),
    "cas": atomic(lambda old, wanted, new: new if old == wanted else old),
    "compare_and_swap": swapped_first,
}


# Modules and builtins -----------------------------------------------------------------------------


class Math:
    """`math` that computes in float64 and answers float32 with float32."""

    def __getattr__(self, name: str) -> Any:
        known = getattr(math, name)
        if not callable(known):
            return np.float64(known)

        def function(*values: Any) -> Any:
            narrow = all(isinstance(value, np.float32) for value in values)
            wide = map(np.float64, values)
            result = getattr(np, name, known)(*wide)
            if isinstance(result, (bool, np.bool_)):
                return result
            if name in ("floor", "ceil", "trunc"):
                return np.int64(result)
            return (np.float32 if narrow else np.float64)(result)

        return function


class Numpy:
    """`numpy` whose scalar types are casts."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return Cast(found) if isinstance(found, type) else seen(found)


def alike(*values: Any) -> list[Any]:
    """Values in the dtype that holds them all."""
    kind = np.result_type(*values)
    return [kind.type(value) for value in values]


def counted(values: Any, start: int = 0) -> Iterator[Any]:
    """`enumerate`."""
    return ((np.int64(i), value) for i, value in enumerate(values, start))


BUILTINS: dict[str, Any] = {
    "range": lambda *bounds: map(np.int64, range(*map(int, bounds))),
    "min": lambda *values: min(alike(*values)),
    "max": lambda *values: max(alike(*values)),
    "len": lambda array: np.int64(builtins.len(array)),
    "int": lambda value: value if isinstance(value, np.integer) else np.int64(int(value)),
    "float": lambda value: value if isinstance(value, np.floating) else np.float64(value),
    "bool": np.bool_,
    "enumerate": counted,
}

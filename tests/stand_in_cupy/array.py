"""The array of the stand-in: a NumPy array that behaves as CuPy's does where the two differ.

Where CuPy's documentation leaves a result open, because GPU threads race, the stand-in raises or
takes another order each time, so that no test passes by luck.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from . import names

HAS = names.read()
MODULE: Any = ModuleType("cupy")
COUNTS: Counter[str] = Counter()
"""Copies that the host waits for ("device to host"), and others ("host to device")."""
_SCALARS = (int, float, bool, complex)
_SCATTERED_BY = {"add": "iufc", "maximum": "iuf", "minimum": "iuf", "subtract": "iu"}
_WAITS = ("nonzero", "flatnonzero", "argwhere", "unique", "bincount", "choose", "compress")
_races = np.random.default_rng(0)
_may_wait = [True]


class Undefined(AssertionError):
    """What a GPU would give here depends on which thread comes first."""


class DeviceSynchronized(RuntimeError):
    """The host waits for the device where that is not allowed."""


@contextlib.contextmanager
def allow_synchronize(allow: bool) -> Iterator[None]:
    """`cupyx.allow_synchronize`: whether the host may wait for the device meanwhile."""
    before, _may_wait[0] = _may_wait[0], allow
    try:
        yield
    finally:
        _may_wait[0] = before


def wait() -> None:
    """Counts a copy that the host waits for."""
    if not _may_wait[0]:
        raise DeviceSynchronized("Device synchronization was detected while disallowed.")
    COUNTS["device to host"] += 1


class ndarray:
    """`cupy.ndarray`."""

    __module__ = "cupy"
    __slots__ = ("_host",)
    __hash__ = None
    __array_priority__ = 100
    _host: Any

    def __init__(self, shape: Any, dtype: Any = float, order: Any = "C") -> None:
        self._host = np.empty(shape, supported(dtype), order)

    # -- What it is --------------------------------------------------------------------------

    shape = property(lambda x: x._host.shape, lambda x, shape: setattr(x._host, "shape", shape))
    dtype = property(lambda x: x._host.dtype)
    ndim = property(lambda x: x._host.ndim)
    size = property(lambda x: x._host.size)
    itemsize = property(lambda x: x._host.itemsize)
    nbytes = property(lambda x: x._host.nbytes)
    strides = property(lambda x: x._host.strides)
    T = property(lambda x: wrapped(x._host.T))
    base = property(lambda x: None if x._host.base is None else wrapped(x._host.base))
    device = property(lambda x: MODULE.cuda.Device(0))

    @property
    def flags(self) -> Any:
        """Those of NumPy's that CuPy has; every array can be written to."""
        known = "c_contiguous", "f_contiguous", "owndata", "fnc", "forc"
        return SimpleNamespace(**{name: getattr(self._host.flags, name) for name in known})

    @property
    def data(self) -> Any:
        """Where its memory is."""
        return SimpleNamespace(ptr=self._host.ctypes.data, device=self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
            "stream": 1,
            "version": 3,
        }

    # -- The way to the host, always by name -------------------------------------------------

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def get(
        self, stream: Any = None, order: Any = "C", out: Any = None, blocking: bool = True
    ) -> Any:
        """A copy on the host."""
        wait()
        if out is None:
            return np.array(self._host, order=order)
        if out.dtype != self.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        out[...] = self._host
        return out

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = None, subok: Any = None, copy: Any = True
    ) -> Any:
        """The array in another dtype."""
        if casting is not None or subok is not None:
            raise TypeError("casting is not supported yet")
        host = self._host.astype(supported(dtype), order, copy=bool(copy))
        return self if host is self._host else wrapped(host)

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self.get().tolist()

    def tobytes(self, order: Any = "C") -> Any:
        """The memory of the array."""
        return self.get().tobytes(order)

    def __bool__(self) -> bool:
        if self.size == 0:
            warnings.warn("The truth value of an empty array is ambiguous", stacklevel=2)
            return False
        if self.size > 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous")
        return bool(self.get())

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec)

    def __reduce__(self) -> Any:
        return MODULE.array, (self.get(order="A"),)

    def __copy__(self) -> Any:
        return wrapped(self._host.copy())

    def __deepcopy__(self, memo: Any) -> Any:
        return wrapped(self._host.copy())

    # -- Elements ----------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[ndarray]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: Any) -> Any:
        return wrapped(self._host[host_index(index, self.shape)])

    def __setitem__(self, index: Any, value: Any) -> None:
        place = host_index(index, self.shape)
        advanced = any(isinstance(item, np.ndarray) for item in place)  # elements, not slices
        if isinstance(value, (np.ndarray, list, tuple)):
            if not advanced and np.ndim(value):
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            COUNTS["host to device"] += 1
        elif not isinstance(value, ndarray):
            check_scalar(value)
        value = value._host if isinstance(value, ndarray) else np.asarray(value, self.dtype)
        if advanced:
            refuse_race(self._host, place, value)
        self._host[place] = value

    def scatter_add(self, slices: Any, value: Any) -> None:
        """`cupy.add.at`, as it was called before."""
        scatter("add", self, slices, value)

    # -- What NumPy asks it to do ------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        try:
            function = getattr(MODULE, ufunc.__name__, None)
            function = function or getattr(MODULE._special, ufunc.__name__)
            function = function if method == "__call__" else getattr(function, method)
        except AttributeError:
            return NotImplemented
        return function(*inputs, **keywords)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            module = reduce(getattr, func.__module__.split(".")[1:], MODULE)
            function = getattr(module, func.__name__)
        except AttributeError:
            return NotImplemented
        if not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        return function(*args, **kwargs)


# --------------------------------------------------------------------------- in and out of arrays


def supported(dtype: Any) -> Any:
    """A dtype that CuPy has."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def wrapped(result: Any) -> Any:
    """A result of NumPy's as CuPy gives it: arrays only, where NumPy gives scalars, too."""
    if isinstance(result, (np.ndarray, np.generic)):
        array: Any = ndarray.__new__(ndarray)
        array._host = np.asarray(result)
        supported(array.dtype)
        return array
    if isinstance(result, (tuple, list)):
        return type(result)(map(wrapped, result))
    return result


def check_scalar(x: Any) -> None:
    """Refuses what is neither an array of the device nor a number."""
    if type(x) not in _SCALARS and not isinstance(x, np.generic):
        raise TypeError(f"Unsupported type {type(x)}")


def unwrapped(argument: Any) -> Any:
    """An argument as NumPy takes it; an array of NumPy's is refused."""
    if isinstance(argument, ndarray):
        return argument._host
    if isinstance(argument, np.ndarray):
        raise TypeError(f"Unsupported type {type(argument)}")
    if isinstance(argument, (tuple, list)):
        return type(argument)(map(unwrapped, argument))
    return argument


# --------------------------------------------------------------------------------------- indexing


def host_index(index: Any, shape: tuple[int, ...]) -> Any:
    """An index as NumPy takes it; whole numbers in arrays wrap around, and need not be within."""
    items = [host_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    axes = sum(x.ndim if is_mask(x) else x is not None and x is not Ellipsis for x in items)
    axis = 0
    for at, item in enumerate(items):
        if item is Ellipsis:
            axis += len(shape) - axes
        elif is_mask(item):
            wait()  # for how many are true
            axis += item.ndim
        elif item is not None:
            if isinstance(item, np.ndarray) and axis < len(shape) and shape[axis]:
                items[at] = item % shape[axis]
            axis += 1
    return tuple(items)


def host_item(item: Any) -> Any:
    """One item of an index; lists and arrays of the host are copied to the device."""
    if isinstance(item, ndarray):
        return item._host
    if isinstance(item, (list, tuple, np.ndarray, bool, np.bool_)):
        COUNTS["host to device"] += 1
        array = np.asarray(item)
        return array if array.size or isinstance(item, np.ndarray) else array.astype(np.int32)
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    return int(item) if isinstance(item, np.generic) else operator.index(item)


def is_mask(item: Any) -> bool:
    """Whether an item of an index is an array of booleans."""
    return isinstance(item, np.ndarray) and item.dtype == bool


def refuse_race(array: np.ndarray, place: Any, value: np.ndarray) -> None:
    """Refuses to store different values in one place, where the last thread would win."""
    places = np.arange(array.size).reshape(array.shape)[place]
    values = np.broadcast_to(value, places.shape).astype(array.dtype)
    _, first, back = np.unique(places, return_index=True, return_inverse=True)
    if not np.array_equal(values.ravel()[first][back.ravel()], values.ravel(), equal_nan=True):
        raise Undefined("an assignment stores different values in one place")


def scatter(name: str, array: ndarray, index: Any, value: Any) -> None:
    """`ufunc.at`: by atomic operations, whose order is another each time."""
    if array.dtype.kind not in _SCATTERED_BY.get(name, "") or array.dtype.itemsize < 4:
        raise TypeError(f"cupy.{name}.at does not support {array.dtype}")
    place = host_index(index, array.shape)
    places = np.arange(array.size).reshape(array.shape)[place]
    values = np.broadcast_to(unwrapped(value), places.shape).astype(array.dtype).ravel()
    order = _races.permutation(places.size)
    flat = np.ascontiguousarray(array._host).reshape(-1)
    getattr(np, name).at(flat, places.ravel()[order], values[order])
    array._host[...] = flat.reshape(array.shape)


# --------------------------------------------------------------------------- functions and methods


class Ufunc:
    """`cupy.ufunc`: gives arrays in C order, and has no `where`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.nin, self.nout = map(int, HAS["ufunc"][name].split())
        self.of_numpy: Any = getattr(np, name)

    def __repr__(self) -> str:
        return f"<ufunc 'cupy_{self.__name__}'>"

    def __call__(
        self, *args: Any, out: Any = None, dtype: Any = None, casting: Any = "same_kind"
    ) -> Any:
        """Applies it."""
        if not self.nin <= len(args) <= self.nin + self.nout:
            raise TypeError(f"Wrong number of arguments for {self!r}")
        for x in args:
            if not isinstance(x, ndarray):
                check_scalar(x)
        host = [unwrapped(x) for x in args]
        if out is not None:
            if not isinstance(out, ndarray):
                raise TypeError(f"out must be an array of the device, got {type(out)}")
            host.append(out._host)
        result = self.of_numpy(*host, dtype=dtype, casting=casting, order="C")
        return out if out is not None else args[-1] if len(args) > self.nin else wrapped(result)

    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        """Applies it in place to the elements that `indices` names."""
        scatter(self.__name__, a, indices, b)


def checked(name: str, signature: str, of_numpy: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function or method, for arrays of the device and CuPy's arguments only."""
    bind = inspect.signature(eval(f"lambda {signature[1:-1]}: None")).bind
    first = signature[1:].split(",")[0].rstrip(")")
    takes_array = first in ("a", "x", "m", "v", "ary", "arr", "array", "prototype", "condition")

    def call(*args: Any, **keywords: Any) -> Any:
        bind(*args, **keywords)
        if takes_array and args and not isinstance(args[0], ndarray):
            raise TypeError(f"{name}: expected cupy.ndarray, got {type(args[0])}")
        if first == "tup" and not all(isinstance(x, ndarray) for x in args[0]):
            raise TypeError("Only cupy arrays can be concatenated")
        if keywords.get("kind", "stable") not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if name in _WAITS:
            wait()
        given = {k: unwrapped(x) for k, x in keywords.items()}
        result = of_numpy(*map(unwrapped, args), **given)
        if name in ("array_equal", "array_equiv", "allclose", "count_nonzero"):
            result = np.asarray(result)  # NumPy gives Python's bool or int
        out = keywords.get("out")
        return out if out is not None else wrapped(result)

    call.__name__ = call.__qualname__ = name
    return call


def method(name: str, signature: str) -> Callable[..., Any]:
    """A method of the array."""
    inner = checked(name, signature, lambda *args, **keywords: None)

    @wraps(inner)
    def call(self: ndarray, *args: Any, **keywords: Any) -> Any:
        inner(*args, **keywords)
        given = {k: unwrapped(x) for k, x in keywords.items()}
        result = getattr(self._host, name)(*map(unwrapped, args), **given)
        out = keywords.get("out")
        return out if out is not None else wrapped(result)

    return call


def must_leave_to(y: Any) -> bool:
    """Whether the other operand's operator comes first, as NumPy's protocol has it."""
    return getattr(y, "__array_ufunc__", ...) is None


def operators(name: str, ufunc: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The operator of a ufunc: from the left, from the right and in place."""

    def left(x: ndarray, y: Any) -> Any:
        return NotImplemented if must_leave_to(y) else getattr(MODULE, ufunc)(x, y)

    def right(x: ndarray, y: Any) -> Any:
        return NotImplemented if must_leave_to(y) else getattr(MODULE, ufunc)(y, x)

    def in_place(x: ndarray, y: Any) -> Any:
        return getattr(MODULE, ufunc)(x, y, x)

    yield f"__{name}__", left
    yield f"__r{name}__", right
    yield f"__i{name}__", in_place


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "lshift": "left_shift",
    "rshift": "right_shift", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert", "pos": "positive"}

for _name, _ufunc in _OPERATORS.items():
    for _dunder, _function in operators(_name, _ufunc):
        setattr(ndarray, _dunder, _function)
for _name, _ufunc in _COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", next(operators(_name, _ufunc))[1])
for _name, _ufunc in _UNARY.items():
    setattr(ndarray, f"__{_name}__", lambda x, ufunc=_ufunc: getattr(MODULE, ufunc)(x))
for _kind in (int, float, complex, repr, str):
    setattr(ndarray, f"__{_kind.__name__}__", lambda x, kind=_kind: kind(x.get()))
setattr(ndarray, "__matmul__", lambda x, y: MODULE.matmul(x, y))  # noqa: B010
for _name, _signature in HAS["method"].items():
    if _name not in vars(ndarray) and hasattr(np.ndarray, _name):
        setattr(ndarray, _name, method(_name, _signature))

"""The device's memory: arrays that kernels work on, and that the program copies to and fro.

A device array is an array of its own. `to_device` copies into it, a kernel writes to it, and nobody
sees that before `copy_to_host`: a program that forgets to copy fails here as on a GPU. What nobody
has written yet is NaN, or -1: on a GPU it is whatever was there before.

Names, arguments and what is refused are Numba's:
https://nvidia.github.io/numba-cuda/user/memory.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

import numpy as np

from .devices import external_stream

Shape = int | tuple[int, ...]
NOT_CONTIGUOUS = "{} must lie in one piece, in C or in Fortran order; pass numpy.ascontiguousarray"
COPYING = "{} of this array needs a copy, which a device array does not make; write a kernel, or {}"
FROM_HOST = "copy_to_host() gives a NumPy array, which can"


class DeviceArrayBase:
    """What all arrays have that kernels write to and the host copies from."""

    __cuda_memory__ = __cuda_ndarray__ = True
    memory: np.ndarray  # the numbers themselves
    dtype: Any
    stream: Any = 0

    @property
    def argument(self) -> Any:
        """What a kernel gets."""
        return self.memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = self.memory.__array_interface__
        return {key: interface[key] for key in ("shape", "strides", "typestr")} | {
            "data": (self.device_ctypes_pointer.value or 0, False), "version": 3,
            "stream": int(self.stream) or None,
        }  # fmt: skip

    @property
    def alloc_size(self) -> int:
        """How many bytes the array takes."""
        return self.memory.nbytes

    @property
    def device_ctypes_pointer(self) -> c_void_p:
        """Where the numbers are, or none where there are no numbers."""
        return c_void_p(self.memory.ctypes.data if self.memory.size else 0)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """The numbers, in a new NumPy array or in `ary`, which is returned.

        Raises:
            NotImplementedError: the array is a view that runs backwards.
            TypeError: `ary` has another dtype.
            ValueError: it has another shape, or lies in memory otherwise.
        """
        if min(self.memory.strides, default=0) < 0:
            raise NotImplementedError(
                "a view that runs backwards is not copied; copy what it views"
            )
        if ary is None:
            return self.memory.copy(order="K")
        _check_alike(self.memory, ary)
        np.copyto(ary, self.memory.reshape(ary.shape))
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy the numbers of a host or device array into this one.

        Raises:
            TypeError: `ary` has another dtype.
            ValueError: it has another shape, or this array does not lie in one piece.
        """
        if ary.size == 0:
            return
        _check_contiguous(self.memory, "the array that is copied to")
        on_device = isinstance(ary, DeviceArrayBase)
        given = ary.memory if isinstance(ary, DeviceArrayBase) else np.asarray(ary)
        if on_device:
            _check_contiguous(given, "the array that is copied")
        _check_alike(self.memory, given, strides=on_device)
        np.copyto(self.memory, given.reshape(self.memory.shape))

    def bind(self, stream: Any = 0) -> DeviceNDArray:
        """The same memory, used on a stream."""
        return DeviceNDArray(self.memory, stream)

    def is_c_contiguous(self) -> bool:
        """Whether the array lies in C order."""
        return self.memory.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Whether the array lies in Fortran order."""
        return self.memory.flags.f_contiguous


class DeviceNDArray(DeviceArrayBase):
    """An array in the device's memory. Indices and slices give views; it does no arithmetic."""

    def __init__(self, memory: np.ndarray, stream: Any = 0) -> None:
        self.memory, self.stream = memory, stream

    shape = property(lambda self: self.memory.shape)
    strides = property(lambda self: self.memory.strides)
    dtype = property(lambda self: self.memory.dtype)
    ndim = property(lambda self: self.memory.ndim)
    size = property(lambda self: self.memory.size)
    nbytes = property(lambda self: self.memory.nbytes)
    flags = property(lambda self: self.memory.flags)
    gpu_data = device_pointer = property(lambda self: self.memory.ctypes.data)
    T = property(lambda self: self.transpose())

    def __repr__(self) -> str:
        return f"<device array {self.dtype}{list(self.shape)}>"

    def __len__(self) -> int:
        return len(self.memory)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a device array is on no host without a copy; leave out copy=False")
        return self.copy_to_host() if dtype is None else self.copy_to_host().astype(dtype)

    def __getattr__(self, name: str) -> Any:
        way_out = f": {FROM_HOST}" * hasattr(np.ndarray, name)
        raise AttributeError(f"a device array has no {name!r}{way_out}", name=name, obj=self)

    def __getitem__(self, item: Any) -> Any:
        return self.getitem(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """An element, copied to the host; or a view of several.

        Raises:
            TypeError: an index is neither a whole number nor a slice.
        """
        _check_indices(item)
        found = self.memory[item]
        if isinstance(found, np.void):
            indices = item if isinstance(item, tuple) else (item,)
            return DeviceRecord(self.memory[*indices, ...], stream or self.stream)
        return self._viewed(found, stream) if isinstance(found, np.ndarray) else found

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Write numbers, or those of another array, to an element or to several.

        Raises:
            TypeError: an index is neither a whole number nor a slice.
            ValueError: the numbers do not fit.
        """
        _check_indices(key)
        self.memory[key] = value.memory if isinstance(value, DeviceArrayBase) else value

    def reshape(self, *newshape: Any, order: Any = "C") -> DeviceNDArray:
        """A view with another shape.

        Raises:
            NotImplementedError: there is none without a copy.
        """
        shape = newshape[0] if len(newshape) == 1 else newshape
        return self._viewed(self.memory.reshape(shape, order=order), needed="a reshape")

    def ravel(self, order: Any = "C", stream: Any = 0) -> DeviceNDArray:
        """A view with one axis.

        Raises:
            NotImplementedError: there is none without a copy.
        """
        return self._viewed(self.memory.ravel(order=order), stream, needed="ravel")

    def transpose(self, axes: tuple[int, ...] | None = None) -> DeviceNDArray:
        """The transposed matrix, copied.

        Raises:
            NotImplementedError: the array has not two axes.
            ValueError: these are no axes of it.
        """
        if axes is not None and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError(
                f"a device array is transposed where it has 2 axes; this one has {self.ndim}"
            )
        return DeviceNDArray(np.ascontiguousarray(self.memory.transpose(axes)), self.stream)

    def view(self, dtype: Any) -> DeviceNDArray:
        """The same bytes, read as another dtype.

        Raises:
            ValueError: the bytes of a row do not divide.
        """
        return self._viewed(self.memory.view(np.dtype(dtype)))

    def squeeze(self, axis: Any = None, stream: Any = 0) -> DeviceNDArray:
        """A view without axes of length 1.

        Raises:
            ValueError: the chosen axis is longer.
        """
        return self._viewed(self.memory.squeeze(axis), stream)

    def split(self, section: int, stream: Any = 0) -> Iterator[DeviceNDArray]:
        """Views of `section` elements each; the last may be shorter.

        Raises:
            ValueError: the array has not one axis, or its elements are not neighbours.
        """
        if self.ndim != 1 or not self.is_c_contiguous():
            raise ValueError(f"split takes an array of one axis, in one piece; got {self!r}")
        for begin in range(0, self.size, section):
            yield self._viewed(self.memory[begin : begin + section], stream)

    def get_ipc_handle(self) -> Any:
        """Refuse what would share the array with another process."""
        raise NotImplementedError("without a GPU, processes do not share device arrays; copy them")

    def _viewed(self, found: np.ndarray, stream: Any = 0, needed: str = "") -> DeviceNDArray:
        if needed and found.size and not np.may_share_memory(found, self.memory):
            way_out = "copy_to_host() and to_device() one that lies in one piece"
            raise NotImplementedError(COPYING.format(needed, way_out))
        return DeviceNDArray(found, stream or self.stream)


def _refuse(symbol: str) -> Callable[..., Any]:
    def operation(self: DeviceNDArray, *others: Any) -> Any:
        raise TypeError(
            f"a device array does no arithmetic, such as `{symbol}`: {FROM_HOST}; or write a kernel"
        )

    return operation


OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
OTHERS = {"neg": "-", "abs": "abs", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _name, _symbol in [
    *((f"{kind}{name}", symbol) for name, symbol in OPERATORS.items() for kind in ("", "r", "i")),
    *OTHERS.items(),
]:
    setattr(DeviceNDArray, f"__{_name}__", _refuse(_symbol))


class DeviceRecord(DeviceArrayBase):
    """A record in the device's memory: its fields are read and written by name."""

    shape, strides, ndim, size = (), (), 0, 1

    def __init__(self, memory: np.ndarray, stream: Any = 0) -> None:
        self.memory, self.stream = memory, stream  # an array without axes

    dtype = property(lambda self: self.memory.dtype)

    @property
    def argument(self) -> Any:
        """The record, as a kernel takes it."""
        return self.memory[()]

    def __getitem__(self, item: str) -> Any:
        return self.getitem(item)

    def __setitem__(self, key: str, value: Any) -> None:
        self.setitem(key, value)

    def getitem(self, item: str, stream: Any = 0) -> Any:
        """A field: a number, copied to the host, or a view."""
        field, stream = self.memory[item], stream or self.stream
        if field.ndim == 0:
            return field[()] if field.dtype.names is None else DeviceRecord(field, stream)
        return DeviceNDArray(field, stream)

    def setitem(self, key: str, value: Any, stream: Any = 0) -> None:
        """Write a field."""
        self.memory[key] = value


class MappedNDArray(DeviceArrayBase, np.ndarray):
    """A NumPy array that kernels and the host share: mapped into the device's memory."""

    memory = property(np.asarray)  # as a plain array


class ManagedNDArray(MappedNDArray):
    """A NumPy array that kernels and the host share: it moves to whoever asks."""


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    """An array in the device's memory with the numbers of `obj`, or `to` filled with them.

    What is on the device already is returned as it is. `copy=False` only makes room.

    Raises:
        ValueError: the array does not lie in one piece.
    """
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream)
        return to
    if isinstance(obj, DeviceArrayBase):
        return obj
    if isinstance(obj, np.void):
        return DeviceRecord(np.array(obj), stream)
    array = np.asarray(obj)
    _check_contiguous(array, "an array for to_device")
    return DeviceNDArray(np.array(array, order="A") if copy else _empty_like(array), stream)


def device_array(
    shape: Shape, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0
) -> DeviceNDArray:
    """An array in the device's memory, with nothing written to it yet."""
    return DeviceNDArray(_empty(shape, dtype, strides, order), stream)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceNDArray:
    """An array in the device's memory of the shape, dtype and order of another."""
    return DeviceNDArray(_empty_like(_memory_of(ary)), stream)


def pinned_array(
    shape: Shape, dtype: Any = np.float64, strides: Any = None, order: Any = "C"
) -> np.ndarray:
    """A NumPy array in page-locked memory; here, any memory."""
    return _empty(shape, dtype, strides, order)


def pinned_array_like(ary: Any) -> np.ndarray:
    """A `pinned_array` of the shape, dtype and order of another."""
    return _empty_like(_memory_of(ary))


def mapped_array(
    shape: Shape, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0,
    portable: bool = False, wc: bool = False,
) -> MappedNDArray:  # fmt: skip
    """A NumPy array that kernels take as it is, without copies."""
    return _shared(MappedNDArray, _empty(shape, dtype, strides, order), stream)


def mapped_array_like(
    ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False
) -> MappedNDArray:
    """A `mapped_array` of the shape, dtype and order of another."""
    return _shared(MappedNDArray, _empty_like(_memory_of(ary)), stream)


def managed_array(
    shape: Shape, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0,
    attach_global: bool = True,
) -> ManagedNDArray:  # fmt: skip
    """A NumPy array that moves to whoever asks for it, the host or a kernel."""
    return _shared(ManagedNDArray, _empty(shape, dtype, strides, order), stream)


@contextmanager
def pinned(*arylist: np.ndarray) -> Iterator[None]:
    """Keep these arrays in page-locked memory within; here, they stay where they are."""
    yield


@contextmanager
def mapped(*arylist: np.ndarray, stream: Any = 0) -> Iterator[Any]:
    """These arrays as the device sees them within: a device array for one, a list for several."""
    shared = [DeviceNDArray(ary, stream) for ary in arylist]
    yield shared[0] if len(shared) == 1 else shared


def is_cuda_array(obj: Any) -> bool:
    """Whether something has the CUDA array interface, as device arrays do."""
    return hasattr(obj, "__cuda_array_interface__")


def is_cuda_ndarray(obj: Any) -> bool:
    """Whether something is a device array."""
    return bool(getattr(obj, "__cuda_ndarray__", False))


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceNDArray:
    """A device array over the memory of what has the CUDA array interface.

    Raises:
        TypeError: it has none.
    """
    if isinstance(obj, DeviceNDArray):
        return obj
    if not is_cuda_array(obj):
        raise TypeError(
            f"as_cuda_array takes what has the CUDA array interface, got a {type(obj).__name__}; "
            "copy it with to_device"
        )
    return from_cuda_array_interface(obj.__cuda_array_interface__, obj, sync)


def from_cuda_array_interface(
    desc: dict[str, Any], owner: Any = None, sync: bool = True
) -> DeviceNDArray:
    """A device array over memory that is described; `owner` lives as long as it.

    Raises:
        NotImplementedError: some of the elements are masked.
    """
    if desc.get("mask") is not None:
        raise NotImplementedError("arrays with a mask have no place in the device's memory")
    made_on = desc.get("stream")
    stream: Any = 0 if made_on is None else external_stream(made_on)
    if stream and sync:
        stream.synchronize()
    interface = {key: desc.get(key) for key in ("shape", "strides", "data", "typestr")}
    memory = SimpleNamespace(__array_interface__=interface | {"version": 3}, owner=owner)
    return DeviceNDArray(np.asarray(memory), stream)


class In:
    """A launch's argument that a kernel reads: what it writes there, the host does not see."""

    __cuda_ndarray__ = True

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def argument(self) -> Any:
        """What the kernel gets."""
        value = self.value
        return value.argument if isinstance(value, DeviceArrayBase) else np.array(value, order="K")


class Out(In):
    """A launch's argument that a kernel writes to."""

    @property
    def argument(self) -> Any:
        """What the kernel gets."""
        return self.value.argument if isinstance(self.value, DeviceArrayBase) else self.value


class InOut(Out):
    """A launch's argument that a kernel reads and writes to."""


def _shared(kind: Any, array: np.ndarray, stream: Any) -> Any:
    shared = array.view(kind)
    shared.stream = stream
    return shared


def _memory_of(ary: Any) -> np.ndarray:
    return ary.memory if isinstance(ary, DeviceArrayBase) else np.asarray(ary)


def _empty(shape: Any, dtype: Any, strides: Any, order: Any) -> np.ndarray:
    """Memory that nobody has written to."""
    if not strides:
        return _unwritten(np.empty(shape, dtype, order))
    strides = (strides,) if isinstance(strides, int) else tuple(strides)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    span = np.dtype(dtype).itemsize
    span += sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return np.ndarray(sizes, dtype, np.full(span, 255, np.uint8), strides=strides)


def _empty_like(array: np.ndarray) -> np.ndarray:
    return _unwritten(np.empty_like(array, subok=False))


def _unwritten(array: np.ndarray) -> np.ndarray:
    """The array, filled with what cannot be taken for a result: NaN, or -1."""
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    elif array.dtype.kind in "iu":
        array.fill(np.array(-1).astype(array.dtype))
    return array


def _check_indices(index: Any) -> None:
    for item in index if isinstance(index, tuple) else (index,):
        if not isinstance(item, (int, np.integer, slice, type(...), str)):
            raise TypeError(
                f"a device array takes whole numbers and slices as indices, got {item!r}; "
                f"for others, {FROM_HOST}"
            )


def _check_contiguous(array: np.ndarray, what: str) -> None:
    if not (array.flags.c_contiguous or array.flags.f_contiguous) and 0 not in array.strides:
        raise ValueError(NOT_CONTIGUOUS.format(what))


def _check_alike(mine: np.ndarray, other: Any, *, strides: bool = True) -> None:
    one, two = mine.squeeze(), other.squeeze()
    if mine.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {mine.dtype} on the device, {other.dtype} given")
    if one.shape != two.shape:
        raise ValueError(f"incompatible shape: {mine.shape} on the device, {other.shape} given")
    if strides and mine.size and one.strides != two.strides:
        raise ValueError(
            f"incompatible strides: {mine.strides} on the device, {other.strides} given; "
            "copy to an array of the same order, or to a new one"
        )

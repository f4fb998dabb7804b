"""What emitted code imports: stack arrays, atomics, and the two decorators that compile it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numba
import numpy
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from . import device_math
from . import warps
from .pipeline import KernelCompiler
from .warps import *  # noqa: F403

__all__ = [
    "atomic_add", "atomic_cas", "atomic_exch", "atomic_max", "atomic_min", "atomic_sub", "device",
    "device_math", "kernel", "numba", "numpy", "prefetch", "reinterpret", "stack", "u",
    *warps.__all__,
]  # fmt: skip

# An index that is known not to be negative. Numba takes a negative one from the end of the array,
# on CUDA as in Python; an unsigned one spares it the question, and LLVM sees that neighbours are
# neighbours.
u = numba.uintp

CACHE_LINE = 64

# CUDA contracts a * b + c into one operation by default. Its fast mode allows more, but keeps
# infinities and NaN, which LLVM's full "fast" does not.
CONTRACT = {"contract"}
FAST = {"contract", "reassoc", "nsz", "afn"}


def _decorate(function: Callable[..., Any], **options: Any) -> Any:
    return numba.njit(nogil=True, error_model="numpy", cache=True, **options)(function)


def kernel(*, fastmath: bool) -> Callable[..., Any]:
    """Compile a block function, with its lane loops marked as free of dependences."""
    flags = FAST if fastmath else CONTRACT
    return partial(_decorate, fastmath=flags, pipeline_class=KernelCompiler)


def device(*, fastmath: bool) -> Callable[..., Any]:
    """Compile a device function; a call left in a lane loop would keep it from being SIMD."""
    return partial(_decorate, fastmath=FAST if fastmath else CONTRACT, forceinline=True)


@intrinsic(prefer_literal=True)
def stack(typing_context, shape, dtype):  # type: ignore[no-untyped-def]
    """An uninitialised array in the function's stack frame.

    LLVM sees where such an array begins and ends, so it knows that nothing else points to it, and
    keeps small ones in registers.
    """
    dims = shape.types if isinstance(shape, types.BaseTuple) else (shape,)
    dims = tuple(dim.literal_value for dim in dims)
    array_type = types.Array(dtype.dtype, len(dims), "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element = context.get_data_type(array_type.dtype)
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(element, prod(dims)))
            memory.align = CACHE_LINE
        size = context.get_abi_sizeof(element)
        strides = [size * prod(dims[axis + 1 :]) for axis in range(len(dims))]
        constant = partial(context.get_constant, types.intp)
        array = make_array(array_type)(context, builder)
        populate_array(
            array,
            data=builder.bitcast(memory, element.as_pointer()),
            shape=[constant(dim) for dim in dims],
            strides=[constant(stride) for stride in strides],
            itemsize=constant(size),
            meminfo=None,
        )
        return array._getvalue()

    return array_type(shape, dtype), generate


@intrinsic
def reinterpret(typing_context, memory, dtype):  # type: ignore[no-untyped-def]
    """The bytes of a stack array as a one-dimensional array of another dtype."""
    array_type = types.Array(dtype.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element = context.get_data_type(array_type.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(element))
        array = make_array(array_type)(context, builder)
        given = make_array(signature.args[0])(context, builder, arguments[0])
        length = builder.udiv(cgutils.unpack_tuple(builder, given.shape)[0], size)
        populate_array(
            array,
            data=builder.bitcast(given.data, element.as_pointer()),
            shape=[length],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(memory, dtype), generate


@intrinsic
def prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an element, and do not wait for it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = _element(context, builder, signature, arguments)
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(ask, [builder.bitcast(address, byte), read, keep, data])
        return context.get_dummy_value()

    return types.none(array, index), generate


def _element(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of the element that an atomic works on."""
    array_type, index_type = signature.args[:2]
    array = make_array(array_type)(context, builder, arguments[0])
    indices = cgutils.unpack_tuple(builder, arguments[1], len(index_type))
    indices = [
        context.cast(builder, index, kind, types.intp)
        for index, kind in zip(indices, index_type, strict=True)
    ]
    return cgutils.get_item_pointer(context, builder, array_type, array, indices, wraparound=True)


def _read_modify_write(operations: dict[str, str]) -> Callable[..., Any]:
    """An atomic that LLVM has as one instruction, by kind of number; it returns the old value."""

    @intrinsic
    def atomic(typing_context, array, index, value):  # type: ignore[no-untyped-def]
        kind = array.dtype
        name = operations["float" if isinstance(kind, types.Float) else
                          "signed" if kind.signed else "unsigned"]  # fmt: skip

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            address = _element(context, builder, signature, arguments)
            operand = context.cast(builder, arguments[2], signature.args[2], kind)
            return builder.atomic_rmw(name, address, operand, "seq_cst")

        return kind(array, index, value), generate

    return atomic


_add = _read_modify_write({"float": "fadd", "signed": "add", "unsigned": "add"})
_sub = _read_modify_write({"float": "fsub", "signed": "sub", "unsigned": "sub"})
_max = _read_modify_write({"float": "fmax", "signed": "max", "unsigned": "umax"})
_min = _read_modify_write({"float": "fmin", "signed": "min", "unsigned": "umin"})
_exch = _read_modify_write({"float": "xchg", "signed": "xchg", "unsigned": "xchg"})


@intrinsic
def _cas(typing_context, array, index, expected, value):  # type: ignore[no-untyped-def]
    kind = array.dtype

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = _element(context, builder, signature, arguments)
        old, new = (
            context.cast(builder, argument, given, kind)
            for argument, given in zip(arguments[2:], signature.args[2:], strict=True)
        )
        result = builder.cmpxchg(address, old, new, "seq_cst", "seq_cst")
        return builder.extract_value(result, 0)

    return kind(array, index, expected, value), generate


def _as_tuple(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Let an atomic take an integer or a tuple as its index, as CUDA's do."""

    @intrinsic
    def tuple_of(typing_context, index):  # type: ignore[no-untyped-def]
        result = index if isinstance(index, types.BaseTuple) else types.UniTuple(index, 1)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            if isinstance(index, types.BaseTuple):
                return arguments[0]
            return context.make_tuple(builder, result, arguments)

        return result(index), generate

    @numba.njit
    def atomic(array, index, *values):  # type: ignore[no-untyped-def]
        return operation(array, tuple_of(index), *values)

    return atomic


atomic_add, atomic_sub, atomic_max, atomic_min, atomic_exch, atomic_cas = map(
    _as_tuple, (_add, _sub, _max, _min, _exch, _cas)
)

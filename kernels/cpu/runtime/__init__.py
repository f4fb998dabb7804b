"""What emitted code imports: stack arrays, CUDA's operations, the two decorators that compile."""

from __future__ import annotations

import cmath
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

from ..cache import KernelCache
from ..compiler import DeviceCompiler, KernelCompiler
from . import atomics, bits, device_math, rounding, warps
from . import halves as halves  # which Numba does not know on a CPU
from .atomics import *  # noqa: F403
from .atomics import element_address
from .bits import *  # noqa: F403
from .rounding import *  # noqa: F403
from .warps import *  # noqa: F403

__all__ = [
    "always", "cmath", "device", "device_math", "kernel", "never", "numba", "numpy", "prefetch",
    "reinterpret", "stack", "u",
    *atomics.__all__, *bits.__all__, *rounding.__all__, *warps.__all__,
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
    # Kernels allocate nothing, as on a GPU, so nobody need count who refers to an array. Nor can a
    # debugger show a kernel's own lines: NUMBA_DEBUGINFO, which changes its code, is not for them.
    return numba.njit(
        nogil=True, error_model="numpy", debug=False, _nrt=False, no_cfunc_wrapper=True, **options
    )(function)


def kernel(*, fastmath: bool) -> Callable[..., Any]:
    """Compile a block function, with its lane loops marked as free of dependences.

    What is kept in the cache has all that it calls built in.
    """
    flags = FAST if fastmath else CONTRACT

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = _decorate(function, fastmath=flags, pipeline_class=KernelCompiler)
        compiled._cache = KernelCache(function)
        return compiled

    return decorate


def device(*, fastmath: bool) -> Callable[..., Any]:
    """Compile a device function; a call left in a lane loop would keep it from being SIMD."""
    flags = FAST if fastmath else CONTRACT
    return partial(
        _decorate,
        fastmath=flags,
        forceinline=True,
        no_cpython_wrapper=True,
        pipeline_class=DeviceCompiler,
    )


@intrinsic(prefer_literal=True)
def stack(typing_context, shape, dtype):  # type: ignore[no-untyped-def]
    """An uninitialised array in the function's stack frame.

    LLVM sees where such an array begins and ends, so it knows that nothing else points to it, and
    keeps small ones in registers.
    """
    dims = shape.types if isinstance(shape, types.BaseTuple) else (shape,)
    dims = tuple(dim.literal_value for dim in dims)
    kind = dtype.instance_type if isinstance(dtype, types.TypeRef) else dtype.dtype  # or a record
    array_type = types.Array(kind, len(dims), "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return on_stack(context, builder, array_type, dims)._getvalue()

    return array_type(shape, dtype), generate


def on_stack(context: Any, builder: Any, array_type: types.Array, dims: tuple[int, ...]) -> Any:
    """A contiguous array in the stack frame of the function that is being built."""
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
    return array


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
def always(typing_context, condition):  # type: ignore[no-untyped-def]
    """A condition that holds for all threads of the loop that it stands in: LLVM need not ask."""
    return types.boolean(condition), lambda *given: cgutils.true_bit


@intrinsic
def never(typing_context, condition):  # type: ignore[no-untyped-def]
    """A condition that holds for no thread of the loop that it stands in."""
    return types.boolean(condition), lambda *given: cgutils.false_bit


@intrinsic
def prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an element, and do not wait for it.

    It comes to the second cache: the first is full of the tiles that are worked on.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = element_address(context, builder, signature, arguments)
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, second, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(ask, [builder.bitcast(address, byte), read, second, data])
        return context.get_dummy_value()

    return types.none(array, index), generate

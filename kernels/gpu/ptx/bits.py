"""What a register holds: 64 bits, and how numbers of all types are read from them and written.

A register is a `uint64`. One of fewer bits uses the low ones, and the others are zero. These
functions are for compiled code; LLVM makes one instruction or none of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.lowering import Lower
from numba.extending import intrinsic

from ...cpu import cache
from ...cpu.cache import KernelCache
from ...cpu.compiler import Passes, in_haste, passes_with, with_room

ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
POISON = ALL  # what nobody has written: not a number, in float32 and in float64


class _Cache(KernelCache):
    """The machine's own code, among that of the kernels."""

    def __init__(self, function: Any) -> None:
        self._function = function
        ours, kernels = map(cache.version, (Path(__file__).parent, Path(cache.__file__).parent))
        self._path = cache.folder() / f"ptx_machine_{ours}_{kernels}"


class _Compiler(Passes):
    """As for kernels, but exactly what is written: no lanes, nothing contracted."""

    passes = passes_with(Lower, "machine_native_lowering")

    def compile_extra(self, function: Any) -> Any:
        """Numba's hook: compile a function."""
        with in_haste():
            return with_room(super().compile_extra, function)


def compiled(function: Any, inline: bool = False) -> Any:
    """Compile a function of the machine; `inline` puts it into those that call it."""
    made = numba.njit(
        nogil=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True,
        pipeline_class=_Compiler, forceinline=inline,
    )(function)  # fmt: skip
    made._cache = _Cache(function)
    return made


def _bitcast(kind: types.Type, llvm: ir.Type) -> tuple[Any, Any]:
    """How bits become a float of some type, and back."""
    width = {types.float32: 32, types.float64: 64}[kind]
    word, register = ir.IntType(width), ir.IntType(64)

    @intrinsic
    def read(typing_context, bits):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            low = builder.trunc(arguments[0], word) if width < 64 else arguments[0]
            return builder.bitcast(low, llvm)

        return kind(types.uint64), generate

    @intrinsic
    def write(typing_context, number):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            bits = builder.bitcast(arguments[0], word)
            return builder.zext(bits, register) if width < 64 else bits

        return types.uint64(kind), generate

    return read, write


float32_of, bits_of_float32 = _bitcast(types.float32, ir.FloatType())
float64_of, bits_of_float64 = _bitcast(types.float64, ir.DoubleType())


@intrinsic
def fused(typing_context, x, y, z):  # type: ignore[no-untyped-def]
    """X * y + z, rounded once."""
    return x(x, x, x), lambda context, builder, signature, arguments: builder.fma(*arguments)


def _high(extend: str, shift: str) -> Any:
    @intrinsic
    def high(typing_context, x, y):  # type: ignore[no-untyped-def]
        """The high 64 bits of a product of 128."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            wide = ir.IntType(128)
            x, y = (getattr(builder, extend)(argument, wide) for argument in arguments)
            product = getattr(builder, shift)(builder.mul(x, y), ir.Constant(wide, 64))
            return builder.trunc(product, ir.IntType(64))

        return types.uint64(types.uint64, types.uint64), generate

    return high


high_unsigned, high_signed = _high("zext", "lshr"), _high("sext", "ashr")


def _memory(width: int) -> tuple[Any, Any]:
    """How a number of some bits is read at an address, and written there."""
    word, register = ir.IntType(width), ir.IntType(64)

    @intrinsic
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            bits = builder.load(builder.inttoptr(arguments[0], word.as_pointer()), align=1)
            return builder.zext(bits, register) if width < 64 else bits

        return types.uint64(types.uint64), generate

    @intrinsic
    def store(typing_context, address, bits):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            address, bits = arguments
            low = builder.trunc(bits, word) if width < 64 else bits
            builder.store(low, builder.inttoptr(address, word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), generate

    return load, store


_load8, _store8 = _memory(8)
_load16, _store16 = _memory(16)
_load32, _store32 = _memory(32)
_load64, _store64 = _memory(64)


@compiled
def read_memory(address, size):  # type: ignore[no-untyped-def]
    """The bits at an address."""
    if size == 4:
        return _load32(address)
    if size == 8:
        return _load64(address)
    return _load16(address) if size == 2 else _load8(address)


@compiled
def write_memory(address, size, bits):  # type: ignore[no-untyped-def]
    """Write bits to an address."""
    if size == 4:
        _store32(address, bits)
    elif size == 8:
        _store64(address, bits)
    elif size == 2:
        _store16(address, bits)
    else:
        _store8(address, bits)


@compiled
def low(width):  # type: ignore[no-untyped-def]
    """A mask of the low bits."""
    return ALL if width >= 64 else (np.uint64(1) << np.uint64(width)) - np.uint64(1)


@compiled
def signed(bits, width):  # type: ignore[no-untyped-def]
    """The number that the low bits are in two's complement."""
    away = np.uint64(64 - width)
    return np.int64(bits << away) >> np.int64(away)


@compiled
def flushed(x, flush):  # type: ignore[no-untyped-def]
    """A float32; zero with its sign where it is subnormal and that is wanted (`.ftz`)."""
    if flush and abs(x) < np.float32(2**-126):
        return np.float32(np.copysign(np.float32(0), x))
    return x

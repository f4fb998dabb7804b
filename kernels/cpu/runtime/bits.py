"""CUDA's operations on the bits of numbers, and three of its arithmetic ones.

    popc(x)        how many bits are 1            ffs(x)   place of the lowest 1, from 1; of 0: 0
    clz(x)         how many 0 precede the first 1 brev(x)  the bits from back to front
    fma(a, b, c)   a * b + c, rounded once        cbrt(x)  the cube root
    selp(c, a, b)  a if c else b, without a branch
    x.bit_count()  popc(x): of a negative number too, unlike Python's

Each is an LLVM instruction or a few, and none hinders SIMD code. What they take and give back is
Numba CUDA's typing to the letter: Numba's own rules choose among the same cases. So `brev` of an
int64 is a uint32, as on the GPU; `brev(uint64(x))` turns all 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, overload, overload_method, register_jitable

__all__ = ["brev", "cbrt", "clz", "ffs", "fma", "popc", "selp"]

UNSIGNED = (types.uint8, types.uint16, types.uint32, types.uint64)
INTEGERS = (types.int8, types.int16, types.int32, types.int64, *UNSIGNED)
FLOATS = (types.float32, types.float64)
SELECTED = (*FLOATS, *INTEGERS[1:4], *UNSIGNED[1:])


def _choose(typing_context: Any, name: str, cases: list[Any], arguments: Any) -> Any:
    """The case that Numba CUDA would choose, or a TypingError."""
    takes = types.Integer if name != "fma" else types.Number
    if not all(isinstance(argument, (takes, types.Boolean)) for argument in arguments):
        chosen = None
    else:
        chosen = typing_context.resolve_overload(name, cases, arguments, {})
    if chosen is None:
        wanted = "real" if takes is types.Number else "whole"
        given = ", ".join(map(str, arguments))
        raise TypingError(f"cuda.{name} takes {wanted} numbers, got {given}")
    return chosen


def _of_bits(name: str, cases: list[Any], emit: Callable[[Any, Any], Any]) -> Any:
    """The function `name` of one whole number."""

    def of_bits(typing_context, x):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return emit(builder, arguments[0])

        return _choose(typing_context, name, cases, (x,)), generate

    of_bits.__name__ = name
    return intrinsic(of_bits)


def _lowest(builder: Any, x: Any) -> Any:
    after = builder.add(builder.cttz(x, ir.IntType(1)(0)), x.type(1))
    place = builder.select(builder.icmp_unsigned("==", x, x.type(0)), x.type(0), after)
    width, result = x.type.width, ir.IntType(32)
    return builder.trunc(place, result) if width > 32 else builder.zext(place, result)


_same = [signature(kind, kind) for kind in INTEGERS]
_place = [signature(types.uint32, kind) for kind in INTEGERS]
_wide = [signature(kind, kind) for kind in (types.uint32, types.uint64)]

popc = _of_bits("popc", _same, lambda builder, x: builder.ctpop(x))
clz = _of_bits("clz", _same, lambda builder, x: builder.ctlz(x, ir.IntType(1)(0)))
ffs = _of_bits("ffs", _place, _lowest)
brev = _of_bits("brev", _wide, lambda builder, x: builder.bitreverse(x))


@overload_method(types.Integer, "bit_count", jit_options={"forceinline": True})
def _bit_count(x):  # type: ignore[no-untyped-def]
    return lambda x: popc(x)


@intrinsic
def fma(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    """`a * b + c` with one rounding, in float32 if all are, else in float64."""
    cases = [signature(kind, kind, kind, kind) for kind in FLOATS]

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return _choose(typing_context, "fma", cases, (a, b, c)), generate


@intrinsic
def selp(typing_context, condition, a, b):  # type: ignore[no-untyped-def]
    """`a` where the condition holds, else `b`; both are computed, and of one type."""
    if a != b or a not in SELECTED:
        raise TypingError(
            f"cuda.selp takes two numbers of one type, of 16 bits or more, got {a} and {b}"
        )

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.select(*arguments)

    return a(types.boolean, a, a), generate


# The cube root is FreeBSD's (s_cbrt.c and s_cbrtf.c; Kahan and Ng): a third of the exponent bits is
# a guess good to 5 bits, and a step or two of Newton's method, or of Halley's, make the rest of it.
# Its error is below 0.67 units in the last place. Numbers too small for an exponent are scaled.

AS_WRITTEN = {"forceinline": True, "fastmath": {"contract"}, "error_model": "numpy"}


@register_jitable(**AS_WRITTEN)
def _cbrt32(x):  # type: ignore[no-untyped-def]
    small = abs(x) < np.float32(1.17549435e-38)
    scaled = np.float32(abs(x) * np.float32(16777216.0 if small else 1.0))  # by 2^24
    guess = scaled.view(np.uint32) // np.uint32(3) + np.uint32(642849266 if small else 709958130)
    wide, root = np.float64(abs(x)), np.float64(np.uint32(guess).view(np.float32))
    for _ in range(2):
        cube = root * root * root
        root = root * (wide + wide + cube) / (wide + cube + cube)
    return np.copysign(np.float32(root), x) if 0 < abs(x) < np.inf else x


@register_jitable(**AS_WRITTEN)
def _cbrt64(x):  # type: ignore[no-untyped-def]
    small = abs(x) < 2.2250738585072014e-308
    scaled = np.float64(abs(x) * (18014398509481984.0 if small else 1.0))  # by 2^54
    third = np.uint32(scaled.view(np.uint64) >> np.uint64(32)) // np.uint32(3)
    guess = np.uint64(third + np.uint32(696219795 if small else 715094163)) << np.uint64(32)
    root = np.uint64(guess).view(np.float64)
    r = (root * root) * (root / abs(x))
    root *= (
        (1.87595182427177009643 + r * (-1.88497979543377169875 + r * 1.621429720105354466140))
        + ((r * r) * r) * (-0.758397934778766047437 + r * 0.145996192886612446982)
    )  # fmt: skip
    bits = np.float64(root).view(np.uint64) + np.uint64(0x80000000)
    root = np.uint64(bits & np.uint64(0xFFFFFFFFC0000000)).view(np.float64)  # root² is now exact
    r = abs(x) / (root * root)
    root += root * ((r - root) / (root + root + r))
    return np.copysign(root, x) if 0 < abs(x) < np.inf else x


def cbrt(x):  # type: ignore[no-untyped-def]
    """The cube root of a real number, in the type of `x` if that is a float."""
    return np.cbrt(x)


@overload(cbrt, jit_options=AS_WRITTEN)
def _cbrt(x):  # type: ignore[no-untyped-def]
    if x in (types.float32, types.boolean, types.int8, types.uint8, types.int16):
        return lambda x: _cbrt32(np.float32(x))
    if x == types.float64 or isinstance(x, types.Integer):
        return lambda x: _cbrt64(np.float64(x))
    raise TypingError(f"cuda.cbrt takes a real number, got {x}")

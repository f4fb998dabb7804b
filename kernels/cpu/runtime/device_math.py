"""Python's `math`, with the functions that kernels lean on written so that LLVM can vectorise them.

A call of the C library's `exp` stops SIMD code; a polynomial does not. float32 arguments stay
float32, as on CUDA. Everything not listed here goes to Python's `math`.

Method for exp: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, times 2^n. `ln 2` is
split in two parts so that r is exact (Cody and Waite 1980). The error is below 2 units in the last
place over the whole range; tests/kernels/cpu/test_device_math.py measures it.

2^n is made without a conversion. A sum with 1.5 * 2^23 has no place for a fraction (float64: 2^52):
it is rounded, and its last bits are a whole number. Shifted to the exponent, where 127 stands for
0, they are a power of two. There are two, of half of n and of the rest, since 2^n itself may be too
small or too large for a normal number.

The score of a masked pair lies far below all numbers with an e^x. It is clipped to _LOWEST, where
both powers have the exponent 0, which stands for the number 0: their product costs as much as any
other. Clipped to where e^x ends, it would be the least denormal number, for which a processor may
stop for a hundred cycles: attention to a window of keys took twice as long.
"""

from __future__ import annotations

import math
from math import *  # noqa: F403
from typing import Any

import numpy as np
from numba import types
from numba.core.registry import cpu_target
from numba.extending import overload, register_jitable

LOG2_E = 1.4426950408889634


def _polynomial(count: int) -> tuple[float, ...]:
    return tuple(1.0 / math.factorial(power) for power in range(count))


# Taylor's coefficients: on so short an interval a few more terms do what better ones would.
_EXP32 = tuple(np.float32(c) for c in _polynomial(8))
_EXP64 = _polynomial(14)
_LN2_HIGH32, _LN2_LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LN2_HIGH64, _LN2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOWEST32, _LOWEST64 = np.float32(-176), -1418.0  # -254 ln 2 and -2046 ln 2, nearly
_ROUND32, _BIAS32 = np.float32(1.5 * 2**23), np.float32(127)
_ROUND64, _BIAS64 = 1.5 * 2**52, 1023.0
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = _EXP32
(_D0, _D1, _D2, _D3, _D4, _D5, _D6, _D7, _D8, _D9, _D10, _D11, _D12, _D13) = _EXP64


@register_jitable(forceinline=True, fastmath={"contract"})
def _exp32(x):  # type: ignore[no-untyped-def]
    """e^x in float32."""
    clipped = min(max(x, _LOWEST32), np.float32(89.0))
    whole = np.float32(clipped * np.float32(LOG2_E) + (_ROUND32 + _BIAS32 + _BIAS32))
    half = np.float32(clipped * np.float32(LOG2_E / 2) + (_ROUND32 + _BIAS32))
    n = whole - (_ROUND32 + _BIAS32 + _BIAS32)
    r = clipped - n * _LN2_HIGH32 - n * _LN2_LOW32
    p = _C6 + r * _C7
    p = _C5 + r * p
    p = _C4 + r * p
    p = _C3 + r * p
    p = _C2 + r * p
    p = _C1 + r * p
    p = _C0 + r * p
    first = np.int32(half.view(np.int32) << np.int32(23))
    second = np.int32(np.int32(whole.view(np.int32) - half.view(np.int32)) << np.int32(23))
    return p * first.view(np.float32) * second.view(np.float32)


@register_jitable(forceinline=True, fastmath={"contract"})
def _exp64(x):  # type: ignore[no-untyped-def]
    """e^x in float64."""
    clipped = min(max(x, _LOWEST64), 710.0)
    whole = np.float64(clipped * LOG2_E + (_ROUND64 + _BIAS64 + _BIAS64))
    half = np.float64(clipped * (LOG2_E / 2) + (_ROUND64 + _BIAS64))
    n = whole - (_ROUND64 + _BIAS64 + _BIAS64)
    r = clipped - n * _LN2_HIGH64 - n * _LN2_LOW64
    p = _D12 + r * _D13
    p = _D11 + r * p
    p = _D10 + r * p
    p = _D9 + r * p
    p = _D8 + r * p
    p = _D7 + r * p
    p = _D6 + r * p
    p = _D5 + r * p
    p = _D4 + r * p
    p = _D3 + r * p
    p = _D2 + r * p
    p = _D1 + r * p
    p = _D0 + r * p
    first = np.int64(half.view(np.int64) << 52)
    second = np.int64((whole.view(np.int64) - half.view(np.int64)) << 52)
    return p * first.view(np.float64) * second.view(np.float64)


def exp(x):  # type: ignore[no-untyped-def, no-redef]
    """e^x, for kernels: vectorisable."""
    return math.exp(x)


@overload(exp, inline="never", jit_options={"fastmath": {"contract"}, "forceinline": True})
def _exp_overload(x):  # type: ignore[no-untyped-def]
    if x == types.float32:
        return lambda x: _exp32(x)
    if x == types.float16:
        return lambda x: types.float16(_exp32(types.float32(x)))
    if x == types.float64:
        return lambda x: _exp64(x)
    if isinstance(x, (types.Integer, types.Boolean)):
        return lambda x: _exp64(np.float64(x))
    return None


def fmod(x, y):  # type: ignore[no-untyped-def, no-redef]
    """The rest of x / y rounded towards zero; CUDA has it, Numba's CPU target does not."""
    return math.fmod(x, y)


def modf(x):  # type: ignore[no-untyped-def, no-redef]
    """The fractional part of x and its whole part, both with the sign of x."""
    return math.modf(x)


def remainder(x, y):  # type: ignore[no-untyped-def, no-redef]
    """The rest of x / y rounded to the nearest whole number."""
    return math.remainder(x, y)


_CASES = [types.float32(types.float32, types.float32), types.float64(types.float64, types.float64)]


def _computed_in(name: str, *arguments: types.Type) -> Any:
    """The type that CUDA computes in: of its two, the one that the arguments fit best, or None."""
    chosen = cpu_target.typing_context.resolve_overload(name, _CASES, arguments, {})
    return None if chosen is None else chosen.return_type


@overload(fmod)
def _fmod_overload(x, y):  # type: ignore[no-untyped-def]
    kind = _computed_in("fmod", x, y)
    return (lambda x, y: np.fmod(kind(x), kind(y))) if kind else None


@overload(modf)
def _modf_overload(x):  # type: ignore[no-untyped-def]
    def parts(x):  # type: ignore[no-untyped-def]
        whole = np.trunc(x)
        rest = type(x)(0) if np.isinf(x) else x - whole
        return np.copysign(rest, x), whole

    if isinstance(x, (types.Integer, types.Boolean)):
        return lambda x: (0.0, np.float64(x))
    return parts if isinstance(x, types.Float) else None


@overload(remainder)
def _remainder_overload(x, y):  # type: ignore[no-untyped-def]
    kind = _computed_in("remainder", x, y)

    def nearest(x, y):  # type: ignore[no-untyped-def]
        value, size = kind(x), abs(kind(y))
        rest = np.fmod(abs(value), size + size) if size + size < np.inf else abs(value)
        # rest / size is below 2: nearest to 0, 1 or 2, and a tie goes to the even one.
        if rest + rest > size:
            rest -= size
            if rest + rest >= size:
                rest -= size
        return np.copysign(kind(1), value) * rest

    return nearest if kind else None


__all__ = [name for name in dir(math) if not name.startswith("_")]  # `exp` is ours

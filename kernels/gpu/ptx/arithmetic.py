"""The instructions of PTX that make a number of others: what each computes.

`INSTRUCTIONS` has an expression for each, of up to four registers, a to d, and of `how`, the `ROW`
of the instruction, which holds its modifiers. Its name there is that of the instruction and the
kind of its type, as `add.int` or `min.signed`. All are written from NVIDIA's manual, "Parallel
Thread Execution ISA", whose chapter on each has the same name. Where it leaves a value open, within
an error that it states, the machine computes the exact value rounded once; `jitter`, from -1 to 1,
moves it within that error.
"""

from __future__ import annotations

from math import copysign, frexp, isfinite, isnan, ldexp
from typing import Any

import numpy as np

from ...cpu.runtime.bits import brev, clz, popc  # noqa: F401 - for the table
from .bits import (
    bits_of_float32,
    bits_of_float64,
    compiled,
    float32_of,
    float64_of,  # noqa: F401 - for the table
    flushed,
    fused,
    high_signed,
    high_unsigned,
    low,
    signed,
)  # fmt: skip

ROW = np.dtype(
    [
        (name, np.int64)
        for name in (
            "code",  # its place in INSTRUCTIONS, or of what the machine does itself
            "guard",  # the register that says whether it runs; -1: it always does
            "negated",  # whether it runs where that is false
            "out",  # the register that it writes
            "a", "b", "c", "d",  # and those that it reads
            "bits",  # of its type
            "given_bits",  # of the type that it converts
            "rounding",
            "flush",  # .ftz
            "saturate",  # .sat
            "approximate",
            "which",  # one of several ways: a comparison, an atomic operation, a kind of shuffle
            "combine",  # what a comparison's result is combined with
            "space",  # of memory
            "size",  # bytes of an element
            "signed",  # whether what is loaded has a sign
            "count",  # registers of a vector
            "place",  # an offset in memory, or where to go on
            "jitter",
        )
    ]
)  # fmt: skip
"""An instruction in the form that the machine reads."""

NEAREST, ZERO, DOWN, UP = range(4)  # ways of rounding
ROUNDINGS = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}
TO_WHOLE = 4  # added to the way of rounding where a float becomes a whole one
COMPARISONS = (
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
)  # fmt: skip
OPPOSITES = (7, 6, 11, 10, 9, 8, 1, 0, 5, 4, 3, 2, 13, 12)  # which holds where another does not
OTHER_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
ONE_STEP = 1 << 20  # of the jitter, an integer in a row

# Integers -----------------------------------------------------------------------------------------


@compiled
def _mul_hi_unsigned(a, b, how):  # type: ignore[no-untyped-def]
    if how.bits == 64:
        return high_unsigned(a, b)
    return (a * b) >> np.uint64(how.bits)


@compiled
def _mul_hi_signed(a, b, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    if bits == 64:
        return high_signed(a, b)
    return np.uint64((signed(a, bits) * signed(b, bits)) >> np.int64(bits)) & low(bits)


@compiled
def _mul_wide_signed(a, b, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    return np.uint64(signed(a, bits) * signed(b, bits)) & low(2 * bits)


@compiled
def _div_signed(a, b, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    x, y = signed(a, bits), signed(b, bits)
    if y == 0:
        return low(bits)
    size = _size(x) // _size(y)
    return (np.uint64(0) - size if (x < 0) != (y < 0) else size) & low(bits)


@compiled
def _rem_signed(a, b, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    x, y = signed(a, bits), signed(b, bits)
    if y == 0:
        return a
    size = _size(x) % _size(y)
    return (np.uint64(0) - size if x < 0 else size) & low(bits)


@compiled
def _size(x):  # type: ignore[no-untyped-def]
    """|x|, also of the least number."""
    return np.uint64(0) - np.uint64(x) if x < 0 else np.uint64(x)


@compiled
def _bfe_unsigned(a, b, c):  # type: ignore[no-untyped-def]
    place, length = b & np.uint64(0xFF), c & np.uint64(0xFF)
    moved = a >> place if place < 64 else np.uint64(0)
    return moved & low(int(length))


@compiled
def _bfe_signed(a, b, c, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    place, length = int(b & np.uint64(0xFF)), int(c & np.uint64(0xFF))
    if length == 0:
        return np.uint64(0)
    moved = signed(a, bits) >> np.int64(min(place, 63))
    top = min(place + length, bits) - place
    return np.uint64(signed(np.uint64(moved), max(top, 1)) if top > 0 else moved) & low(bits)


@compiled
def _bfi(a, b, c, d, how):  # type: ignore[no-untyped-def]
    place, length = int(c & np.uint64(0xFF)), int(d & np.uint64(0xFF))
    if place >= how.bits:
        return b
    field = (low(length) << np.uint64(place)) & low(how.bits)
    return (b & ~field) | ((a << np.uint64(place)) & field)


@compiled
def _lop3(a, b, c, d):  # type: ignore[no-untyped-def]
    found = np.uint64(0)
    for row in range(8):  # of the truth table d
        if (d >> np.uint64(row)) & np.uint64(1):
            x = a if row & 4 else ~a
            y = b if row & 2 else ~b
            z = c if row & 1 else ~c
            found |= x & y & z
    return found & low(32)


@compiled
def _shr_signed(a, b, how):  # type: ignore[no-untyped-def]
    away = min(b, np.uint64(how.bits - 1))
    return np.uint64(signed(a, how.bits) >> np.int64(away)) & low(how.bits)


@compiled
def _both(high, low):  # type: ignore[no-untyped-def]
    """Two registers of 32 bits as one of 64."""
    return (high << np.uint64(32)) | low


@compiled
def _prmt(both, c):  # type: ignore[no-untyped-def]
    found = np.uint64(0)
    for place in range(4):
        choice = (c >> np.uint64(4 * place)) & np.uint64(15)
        byte = (both >> (np.uint64(8) * (choice & np.uint64(7)))) & np.uint64(0xFF)
        if choice & np.uint64(8):  # the sign of that byte, eight times
            byte = np.uint64(0xFF) if byte >> np.uint64(7) else np.uint64(0)
        found |= byte << np.uint64(8 * place)
    return found


# Comparisons --------------------------------------------------------------------------------------


@compiled
def _holds(which, less, equal, nan):  # type: ignore[no-untyped-def]
    """Whether a comparison holds; from the seventh on they hold for NaN as well."""
    if which == 12:
        return not nan
    if which == 13:
        return nan
    if nan:
        return which >= 6
    which %= 6
    if which < 2:
        return equal == (which == 0)
    if which < 4:
        return less or (equal and which == 3)
    return not less and (not equal or which == 5)


@compiled
def _compared(x, y, c, how):  # type: ignore[no-untyped-def]
    """A comparison and another predicate: 0 none, 1 and, 2 or, 3 exclusive or; +4: its opposite."""
    holds = _holds(how.which, x < y, x == y, x != x or y != y)
    other, combine = c != 0, how.combine
    if combine >= 4:
        other, combine = not other, combine - 4
    if combine == 1:
        return np.uint64(holds and other)
    if combine == 2:
        return np.uint64(holds or other)
    return np.uint64(holds != (other and combine == 3))


@compiled
def _testp(x, least, how):  # type: ignore[no-untyped-def]
    """Of what sort a number is; `least` is the smallest that is normal."""
    which = how.which
    if which == 0:
        return np.uint64(isfinite(x))
    if which == 1:
        return np.uint64(abs(x) == np.inf)
    if which == 2:
        return np.uint64(not isnan(x))
    if which == 3:
        return np.uint64(isnan(x))
    normal = isfinite(x) and abs(x) >= least
    return np.uint64(normal if which == 4 else isfinite(x) and not normal and x != 0)


TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@compiled
def _smaller(x, y):  # type: ignore[no-untyped-def]
    """Of two floats; of a number and NaN it is the number, and -0 is smaller than 0."""
    if isnan(x) or isnan(y):
        return y if isnan(x) else x
    return x if x < y or (x == y and copysign(1.0, x) < 0) else y


@compiled
def _larger(x, y):  # type: ignore[no-untyped-def]
    return -_smaller(-x, -y)


# float32 ------------------------------------------------------------------------------------------


@compiled
def _given(bits, how):  # type: ignore[no-untyped-def]
    """A float32 in a register, as the modifiers want it."""
    return flushed(float32_of(bits), how.flush)


@compiled
def _wide(bits, how):  # type: ignore[no-untyped-def]
    """The same as a float64, which has more than twice the bits: rounding twice is no harm."""
    return np.float64(_given(bits, how))


@compiled
def _nearby(wide, rest, way):  # type: ignore[no-untyped-def]
    """The float32 of wide + rest, of which rest is tiny, rounded in some way."""
    near = np.float32(wide)
    if way == NEAREST or isnan(wide) or abs(wide) == np.inf:
        return near
    above = (wide - np.float64(near)) + rest  # of the exact number over the rounded
    if above < 0 and (way == DOWN or (way == ZERO and near > 0)):
        return np.nextafter(near, np.float32(-np.inf))
    if above > 0 and (way == UP or (way == ZERO and near < 0)):
        return np.nextafter(near, np.float32(np.inf))
    return near


@compiled
def _sum(x, y, way):  # type: ignore[no-untyped-def]
    """The sum of two float64 as a float32; what it loses is Knuth's two-sum."""
    total = x + y
    part = total - x
    rest = (x - (total - part)) + (y - part)
    return _nearby(total, rest, way)


@compiled
def _finished(x, how):  # type: ignore[no-untyped-def]
    """A float32 result as the modifiers want it, in a register."""
    x = flushed(x, how.flush)
    if how.saturate:
        x = min(max(x, np.float32(0)), np.float32(1)) if x == x else np.float32(0)
    return bits_of_float32(x)


@compiled
def _about(exact, error, how):  # type: ignore[no-untyped-def]
    """A number that is allowed a relative error, moved by a part of it."""
    return exact * (1 + error * how.jitter / ONE_STEP) if how.approximate else exact


@compiled
def _fma32(x, y, z, how):  # type: ignore[no-untyped-def]
    if how.rounding == NEAREST:
        return _finished(fused(x, y, z), how)
    return _finished(_sum(np.float64(x) * np.float64(y), np.float64(z), how.rounding), how)


@compiled
def _div32(x, y, how):  # type: ignore[no-untyped-def]
    if how.approximate == 2 and abs(y) > np.float32(2.0**126) and abs(y) < np.inf:
        return _finished(np.float32(np.nan) if abs(x) == np.inf else np.float32(0) * x, how)
    quotient = np.float64(x) / np.float64(y)
    if how.rounding == NEAREST:
        return _finished(np.float32(_about(quotient, 2.0**-22, how)), how)
    rest = -fused(quotient, np.float64(y), -np.float64(x)) / np.float64(y)
    return _finished(_nearby(quotient, rest, how.rounding), how)


@compiled
def _rooted(exact, how):  # type: ignore[no-untyped-def]
    """A result that float64 has exactly but for its own rounding."""
    if how.approximate or how.rounding == NEAREST:
        return _finished(np.float32(_about(exact, 2.0**-22, how)), how)
    return _finished(_nearby(exact, 0.0, how.rounding), how)


@compiled
def _turned(exact, how):  # type: ignore[no-untyped-def]
    """A sine or a cosine, which is allowed an absolute error."""
    moved = exact + 2.0**-21 * how.jitter / ONE_STEP if how.jitter else exact
    return _finished(np.float32(moved), how)


# float64 ------------------------------------------------------------------------------------------
# Rounded to nearest; another way is refused when the text is read.


@compiled
def _coarse(x, how):  # type: ignore[no-untyped-def]
    """What `.approx.ftz.f64` keeps: the upper half of the bits."""
    bits = bits_of_float64(x)
    return bits & ~low(32) if how.approximate else bits


# Conversions --------------------------------------------------------------------------------------


@compiled
def _whole(x, way):  # type: ignore[no-untyped-def]
    if way == NEAREST:
        return np.rint(x)
    if way == ZERO:
        return np.trunc(x)
    return np.floor(x) if way == DOWN else np.ceil(x)


@compiled
def _to_integer(x, how, with_sign):  # type: ignore[no-untyped-def]
    """A float as an integer; beyond the type's ends it is the nearer of them."""
    bits, rounded = how.bits, _whole(x, how.rounding % TO_WHOLE)
    if isnan(x):
        return np.uint64(0) if bits <= 32 else np.uint64(1) << np.uint64(63)
    if with_sign:
        end = 2.0 ** (bits - 1)
        if rounded >= end:
            return low(bits - 1)
        return np.uint64(np.int64(rounded) if rounded > -end else -(1 << 63) >> (64 - bits)) & low(
            bits
        )
    if rounded <= 0:
        return np.uint64(0)
    if rounded >= 2.0**bits:
        return low(bits)
    half = 2.0**63
    if rounded >= half:
        return np.uint64(np.int64(rounded - half)) | (np.uint64(1) << np.uint64(63))
    return np.uint64(np.int64(rounded))


@compiled
def _cvt_float32_signed(x, how):  # type: ignore[no-untyped-def]
    near = np.float32(x)
    if how.rounding == NEAREST:
        return bits_of_float32(near)
    high = np.float64(x >> np.int64(32)) * 2.0**32
    return bits_of_float32(_sum(high, np.float64(x & np.int64(0xFFFF_FFFF)), how.rounding))


@compiled
def _cvt_float32_unsigned(x, how):  # type: ignore[no-untyped-def]
    if how.rounding == NEAREST:
        return bits_of_float32(np.float32(x))
    high = np.float64(x >> np.uint64(32)) * 2.0**32
    return bits_of_float32(_sum(high, np.float64(x & low(32)), how.rounding))


@compiled
def _whole_if_wanted(x, how):  # type: ignore[no-untyped-def]
    return _whole(x, how.rounding - TO_WHOLE) if how.rounding >= TO_WHOLE else x


@compiled
def _cvt_tf32_float32(a):  # type: ignore[no-untyped-def]
    """Rounded to 10 bits of fraction, ties away from zero."""
    x = float32_of(a)
    return (a + np.uint64(0x1000)) & np.uint64(0xFFFF_E000) if isfinite(x) else a


# float16, which is only converted ----------------------------------------------------------------


@compiled
def _half(bits):  # type: ignore[no-untyped-def]
    """A float16 in a register, as a float64."""
    exponent, fraction = int(bits >> np.uint64(10)) & 31, np.float64(bits & low(10))
    if exponent == 31:
        size = np.inf if fraction == 0 else np.nan
    else:
        size = ldexp(fraction + 1024 * (exponent > 0), max(exponent, 1) - 25)
    return -size if bits & np.uint64(0x8000) else size


@compiled
def _bits_of_half(x):  # type: ignore[no-untyped-def]
    """The float16 nearest to a float64."""
    if isnan(x):
        return np.uint64(0x7FFF)
    size, sign = abs(x), np.uint64(0x8000 if copysign(1.0, x) < 0 else 0)
    if size >= 65520:  # halfway from the greatest to the next, which would be 2^16
        return sign | np.uint64(0x7C00)
    exponent = frexp(max(size, 2.0**-14))[1] + 14  # below, that of the least normal number
    fraction = np.rint(ldexp(size, 25 - exponent))
    # From 1024 on it reaches into the exponent; a 2048 that it was rounded to is the next exponent.
    return sign | np.uint64(((exponent - 1) << 10) + np.int64(fraction))


# All of them --------------------------------------------------------------------------------------

INSTRUCTIONS = {
    "add.int": "(a + b) & low(how.bits)",
    "sub.int": "(a - b) & low(how.bits)",
    "mul.lo": "(a * b) & low(how.bits)",
    "mul.hi.unsigned": "_mul_hi_unsigned(a, b, how)",
    "mul.hi.signed": "_mul_hi_signed(a, b, how)",
    "mul.wide.unsigned": "a * b",
    "mul.wide.signed": "_mul_wide_signed(a, b, how)",
    "mad.lo": "(a * b + c) & low(how.bits)",
    "mad.hi.unsigned": "(_mul_hi_unsigned(a, b, how) + c) & low(how.bits)",
    "mad.hi.signed": "(_mul_hi_signed(a, b, how) + c) & low(how.bits)",
    "mad.wide.unsigned": "(a * b + c) & low(2 * how.bits)",
    "mad.wide.signed": "(_mul_wide_signed(a, b, how) + c) & low(2 * how.bits)",
    # Division by zero gives whatever; this is what GPUs give.
    "div.unsigned": "a // b if b != 0 else low(how.bits)",
    "rem.unsigned": "a % b if b != 0 else a",
    "div.signed": "_div_signed(a, b, how)",
    "rem.signed": "_rem_signed(a, b, how)",
    "abs.signed": "_size(signed(a, how.bits)) & low(how.bits)",
    "neg.int": "(np.uint64(0) - a) & low(how.bits)",
    "min.unsigned": "min(a, b)",
    "max.unsigned": "max(a, b)",
    "min.signed": "a if signed(a, how.bits) < signed(b, how.bits) else b",
    "max.signed": "b if signed(a, how.bits) < signed(b, how.bits) else a",
    "popc.int": "popc(a)",
    "clz.int": "clz(a) - np.uint64(64 - how.bits)",
    "brev.int": "brev(a) >> np.uint64(64 - how.bits)",
    "bfind.unsigned": "np.uint64(63) - clz(a) if a != 0 else low(32)",
    # How far to the left its first one goes to come to the front.
    "bfind.shiftamt.unsigned": "clz(a) - np.uint64(64 - how.bits) if a != 0 else low(32)",
    "bfe.unsigned": "_bfe_unsigned(a, b, c)",
    "bfe.signed": "_bfe_signed(a, b, c, how)",
    "bfi.int": "_bfi(a, b, c, d, how)",
    "and.int": "a & b",
    "and.pred": "a & b",
    "or.int": "a | b",
    "or.pred": "a | b",
    "xor.int": "a ^ b",
    "xor.pred": "a ^ b",
    "not.int": "~a & low(how.bits)",
    "not.pred": "~a & low(how.bits)",
    "cnot.int": "np.uint64(a == 0)",
    "lop3.int": "_lop3(a, b, c, d)",
    "shl.int": "(a << b) & low(how.bits) if b < np.uint64(how.bits) else np.uint64(0)",
    "shr.unsigned": "a >> b if b < np.uint64(how.bits) else np.uint64(0)",
    "shr.signed": "_shr_signed(a, b, how)",
    "shf.l.wrap": "(_both(b, a) << (c & np.uint64(31))) >> np.uint64(32)",
    "shf.r.wrap": "(_both(b, a) >> (c & np.uint64(31))) & low(32)",
    "prmt.int": "_prmt(_both(b, a), c)",
    "selp.int": "a if c != 0 else b",
    "selp.float32": "a if c != 0 else b",
    "selp.float64": "a if c != 0 else b",
    "mov.int": "a",
    "mov.pred": "a",
    "cvta.int": "a",
    "setp.signed": "_compared(signed(a, how.bits), signed(b, how.bits), c, how)",
    "setp.unsigned": "_compared(a, b, c, how)",
    "setp.float32": "_compared(_given(a, how), _given(b, how), c, how)",
    "setp.float64": "_compared(float64_of(a), float64_of(b), c, how)",
    "testp.float32": "_testp(np.float64(float32_of(a)), 2.0**-126, how)",
    "testp.float64": "_testp(float64_of(a), 2.0**-1022, how)",
    "add.float32": "_finished(_sum(_wide(a, how), _wide(b, how), how.rounding), how)",
    "sub.float32": "_finished(_sum(_wide(a, how), -_wide(b, how), how.rounding), how)",
    "mul.float32": "_finished(_nearby(_wide(a, how) * _wide(b, how), 0.0, how.rounding), how)",
    "fma.float32": "_fma32(_given(a, how), _given(b, how), _given(c, how), how)",
    "mad.float32": "_fma32(_given(a, how), _given(b, how), _given(c, how), how)",
    "div.float32": "_div32(_given(a, how), _given(b, how), how)",
    "min.float32": "bits_of_float32(_smaller(_given(a, how), _given(b, how)))",
    "max.float32": "bits_of_float32(_larger(_given(a, how), _given(b, how)))",
    "neg.float32": "bits_of_float32(-_given(a, how))",
    "abs.float32": "bits_of_float32(abs(_given(a, how)))",
    "copysign.float32": "(b & low(31)) | (a & np.uint64(0x8000_0000))",
    "sqrt.float32": "_rooted(np.sqrt(_wide(a, how)), how)",
    "rsqrt.float32": "_rooted(1 / np.sqrt(_wide(a, how)), how)",
    "rcp.float32": "_rooted(1 / _wide(a, how), how)",
    "ex2.float32": "_rooted(np.exp2(_wide(a, how)), how)",
    "lg2.float32": "_rooted(np.log2(_wide(a, how)), how)",
    "tanh.float32": "_finished(np.float32(_about(np.tanh(_wide(a, how)), 2.0**-11, how)), how)",
    "sin.float32": "_turned(np.sin(_wide(a, how)), how)",
    "cos.float32": "_turned(np.cos(_wide(a, how)), how)",
    "add.float64": "bits_of_float64(float64_of(a) + float64_of(b))",
    "sub.float64": "bits_of_float64(float64_of(a) - float64_of(b))",
    "mul.float64": "bits_of_float64(float64_of(a) * float64_of(b))",
    "fma.float64": "bits_of_float64(fused(float64_of(a), float64_of(b), float64_of(c)))",
    "mad.float64": "bits_of_float64(fused(float64_of(a), float64_of(b), float64_of(c)))",
    "div.float64": "bits_of_float64(float64_of(a) / float64_of(b))",
    "min.float64": "bits_of_float64(_smaller(float64_of(a), float64_of(b)))",
    "max.float64": "bits_of_float64(_larger(float64_of(a), float64_of(b)))",
    "neg.float64": "bits_of_float64(-float64_of(a))",
    "abs.float64": "bits_of_float64(abs(float64_of(a)))",
    "copysign.float64": "(b & low(63)) | (a & ~low(63))",
    "sqrt.float64": "bits_of_float64(np.sqrt(float64_of(a)))",
    "rsqrt.float64": "_coarse(1 / np.sqrt(float64_of(a)), how)",
    "rcp.float64": "_coarse(1 / float64_of(a), how)",
    "cvt.signed.signed": "np.uint64(signed(a, how.given_bits)) & low(how.bits)",
    "cvt.unsigned.signed": "np.uint64(signed(a, how.given_bits)) & low(how.bits)",
    "cvt.signed.unsigned": "a & low(how.given_bits) & low(how.bits)",
    "cvt.unsigned.unsigned": "a & low(how.given_bits) & low(how.bits)",
    "cvt.float32.signed": "_cvt_float32_signed(signed(a, how.given_bits), how)",
    "cvt.float32.unsigned": "_cvt_float32_unsigned(a & low(how.given_bits), how)",
    "cvt.float64.signed": "bits_of_float64(np.float64(signed(a, how.given_bits)))",
    "cvt.float64.unsigned": "bits_of_float64(np.float64(a & low(how.given_bits)))",
    "cvt.signed.float32": "_to_integer(_wide(a, how), how, True)",
    "cvt.unsigned.float32": "_to_integer(_wide(a, how), how, False)",
    "cvt.signed.float64": "_to_integer(float64_of(a), how, True)",
    "cvt.unsigned.float64": "_to_integer(float64_of(a), how, False)",
    "cvt.float32.float32": "_finished(_whole_if_wanted(_given(a, how), how), how)",
    "cvt.float64.float64": "bits_of_float64(_whole_if_wanted(float64_of(a), how))",
    "cvt.float64.float32": "bits_of_float64(_wide(a, how))",
    "cvt.float32.float64": "_finished(_nearby(float64_of(a), 0.0, how.rounding), how)",
    "cvt.float32.float16": "bits_of_float32(np.float32(_half(a)))",
    "cvt.float64.float16": "bits_of_float64(_half(a))",
    "cvt.signed.float16": "_to_integer(_half(a), how, True)",
    "cvt.unsigned.float16": "_to_integer(_half(a), how, False)",
    "cvt.float16.float32": "_bits_of_half(_wide(a, how))",
    "cvt.float16.float64": "_bits_of_half(float64_of(a))",
    "cvt.float16.signed": "_bits_of_half(np.float64(signed(a, how.given_bits)))",
    "cvt.float16.unsigned": "_bits_of_half(np.float64(a & low(how.given_bits)))",
    "cvt.tf32.float32": "_cvt_tf32_float32(a)",
}


def _choice() -> Any:
    """A function that computes the one with a number: LLVM makes a table of jumps of it."""
    lines = ["def compute(code, a, b, c, d, how):"]
    for number, (name, expression) in enumerate(INSTRUCTIONS.items()):
        lines.append(f"    if code == {number}:  # {name}")
        lines.append(f"        return {expression}")
    lines.append("    return a")
    known = dict(globals())
    exec("\n".join(lines), known)
    return compiled(known["compute"])


compute = _choice()
CODES = {name: number for number, name in enumerate(INSTRUCTIONS)}

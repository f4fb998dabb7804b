"""The instructions of PTX that make a number of others: what each computes.

Each is a function of up to four registers and of `how`, the `ROW` of the instruction, which holds
its modifiers. Its name in `INSTRUCTIONS` is that of the instruction and the kind of its type, as
`add.int` or `min.signed`. All are written from NVIDIA's manual, "Parallel Thread Execution ISA",
whose chapter on each has the same name. Where it leaves a value open, within an error that it
states, the machine computes the exact value rounded once; `jitter`, from -1 to 1, moves it within
that error.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, isfinite, isnan
from typing import Any

import numpy as np

from .bits import (
    bits_of_float32,
    bits_of_float64,
    compiled,
    float32_of,
    float64_of,
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
            "code",  # the place of its function in INSTRUCTIONS, or of what the machine does itself
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

INSTRUCTIONS: dict[str, Callable[..., Any]] = {}


def instruction(*names: str) -> Callable[[Any], Any]:
    """Compile a function and list it under its names."""

    def listed(function: Any) -> Any:
        made = compiled(function)
        INSTRUCTIONS.update(dict.fromkeys(names, made))
        return made

    return listed


# Integers -----------------------------------------------------------------------------------------


@instruction("add.int")
def _add(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a + b) & low(how.bits)


@instruction("sub.int")
def _sub(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a - b) & low(how.bits)


@instruction("mul.lo")
def _mul_lo(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a * b) & low(how.bits)


@instruction("mul.hi.unsigned")
def _mul_hi_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    if how.bits == 64:
        return high_unsigned(a, b)
    return (a * b) >> np.uint64(how.bits)


@instruction("mul.hi.signed")
def _mul_hi_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    if bits == 64:
        return high_signed(a, b)
    return np.uint64((signed(a, bits) * signed(b, bits)) >> np.int64(bits)) & low(bits)


@instruction("mul.wide.unsigned")
def _mul_wide_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a * b


@instruction("mul.wide.signed")
def _mul_wide_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    return np.uint64(signed(a, bits) * signed(b, bits)) & low(2 * bits)


@instruction("mad.lo")
def _mad_lo(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a * b + c) & low(how.bits)


@instruction("mad.hi.unsigned")
def _mad_hi_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (_mul_hi_unsigned(a, b, c, d, how) + c) & low(how.bits)


@instruction("mad.hi.signed")
def _mad_hi_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (_mul_hi_signed(a, b, c, d, how) + c) & low(how.bits)


@instruction("mad.wide.unsigned")
def _mad_wide_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a * b + c) & low(2 * how.bits)


@instruction("mad.wide.signed")
def _mad_wide_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (_mul_wide_signed(a, b, c, d, how) + c) & low(2 * how.bits)


@instruction("div.unsigned")
def _div_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a // b if b != 0 else low(how.bits)  # by zero: whatever; this is what GPUs give


@instruction("rem.unsigned")
def _rem_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a % b if b != 0 else a


@instruction("div.signed")
def _div_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    x, y = signed(a, bits), signed(b, bits)
    if y == 0:
        return low(bits)
    size = low(64) if y == 0 else _size(x) // _size(y)
    return (np.uint64(0) - size if (x < 0) != (y < 0) else size) & low(bits)


@instruction("rem.signed")
def _rem_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
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


@instruction("abs.signed")
def _abs_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _size(signed(a, how.bits)) & low(how.bits)


@instruction("neg.int")
def _neg(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (np.uint64(0) - a) & low(how.bits)


@instruction("min.unsigned")
def _min_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return min(a, b)


@instruction("max.unsigned")
def _max_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return max(a, b)


@instruction("min.signed")
def _min_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a if signed(a, how.bits) < signed(b, how.bits) else b


@instruction("max.signed")
def _max_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return b if signed(a, how.bits) < signed(b, how.bits) else a


@instruction("popc.int")
def _popc(a, b, c, d, how):  # type: ignore[no-untyped-def]
    count = np.uint64(0)
    while a != 0:
        a &= a - np.uint64(1)
        count += np.uint64(1)
    return count


@instruction("clz.int")
def _clz(a, b, c, d, how):  # type: ignore[no-untyped-def]
    count = np.uint64(how.bits)
    while a != 0:
        a >>= np.uint64(1)
        count -= np.uint64(1)
    return count


@instruction("brev.int")
def _brev(a, b, c, d, how):  # type: ignore[no-untyped-def]
    found = np.uint64(0)
    for _ in range(how.bits):
        found = (found << np.uint64(1)) | (a & np.uint64(1))
        a >>= np.uint64(1)
    return found


@instruction("bfind.unsigned")
def _bfind(a, b, c, d, how):  # type: ignore[no-untyped-def]
    found = np.uint64(0xFFFF_FFFF)
    while a != 0:
        found = (found + np.uint64(1)) & low(32)
        a >>= np.uint64(1)
    return found


@instruction("bfind.shiftamt.unsigned")
def _bfind_shiftamt(a, b, c, d, how):  # type: ignore[no-untyped-def]
    """How far to the left its first one goes to come to the front."""
    return _clz(a, b, c, d, how) if a != 0 else np.uint64(0xFFFF_FFFF)


@instruction("bfe.unsigned")
def _bfe_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    place, length = b & np.uint64(0xFF), c & np.uint64(0xFF)
    moved = a >> place if place < 64 else np.uint64(0)
    return moved & low(int(length))


@instruction("bfe.signed")
def _bfe_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    bits = how.bits
    place, length = int(b & np.uint64(0xFF)), int(c & np.uint64(0xFF))
    if length == 0:
        return np.uint64(0)
    moved = signed(a, bits) >> np.int64(min(place, 63))
    top = min(place + length, bits) - place
    return np.uint64(signed(np.uint64(moved), max(top, 1)) if top > 0 else moved) & low(bits)


@instruction("bfi.int")
def _bfi(a, b, c, d, how):  # type: ignore[no-untyped-def]
    place, length = int(c & np.uint64(0xFF)), int(d & np.uint64(0xFF))
    if place >= how.bits:
        return b
    field = (low(length) << np.uint64(place)) & low(how.bits)
    return (b & ~field) | ((a << np.uint64(place)) & field)


@instruction("and.int", "and.pred")
def _and(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a & b


@instruction("or.int", "or.pred")
def _or(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a | b


@instruction("xor.int", "xor.pred")
def _xor(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a ^ b


@instruction("not.int", "not.pred")
def _not(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return ~a & low(how.bits)


@instruction("cnot.int")
def _cnot(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return np.uint64(a == 0)


@instruction("lop3.int")
def _lop3(a, b, c, d, how):  # type: ignore[no-untyped-def]
    found = np.uint64(0)
    for row in range(8):  # of the truth table d
        if (d >> np.uint64(row)) & np.uint64(1):
            x = a if row & 4 else ~a
            y = b if row & 2 else ~b
            z = c if row & 1 else ~c
            found |= x & y & z
    return found & low(32)


@instruction("shl.int")
def _shl(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (a << b) & low(how.bits) if b < np.uint64(how.bits) else np.uint64(0)


@instruction("shr.unsigned")
def _shr_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a >> b if b < np.uint64(how.bits) else np.uint64(0)


@instruction("shr.signed")
def _shr_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    away = min(b, np.uint64(how.bits - 1))
    return np.uint64(signed(a, how.bits) >> np.int64(away)) & low(how.bits)


@instruction("shf.l.wrap")
def _shf_l_wrap(a, b, c, d, how):  # type: ignore[no-untyped-def]
    both = (b << np.uint64(32)) | a
    return ((both << (c & np.uint64(31))) >> np.uint64(32)) & low(32)


@instruction("shf.r.wrap")
def _shf_r_wrap(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (((b << np.uint64(32)) | a) >> (c & np.uint64(31))) & low(32)


@instruction("prmt.int")
def _prmt(a, b, c, d, how):  # type: ignore[no-untyped-def]
    both, found = (b << np.uint64(32)) | a, np.uint64(0)
    for place in range(4):
        choice = (c >> np.uint64(4 * place)) & np.uint64(15)
        byte = (both >> (np.uint64(8) * (choice & np.uint64(7)))) & np.uint64(0xFF)
        if choice & np.uint64(8):  # the sign of that byte, eight times
            byte = np.uint64(0xFF) if byte >> np.uint64(7) else np.uint64(0)
        found |= byte << np.uint64(8 * place)
    return found


@instruction("selp.int", "selp.float32", "selp.float64")
def _selp(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a if c != 0 else b


@instruction("mov.int", "mov.pred", "cvta.int")
def _mov(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a


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
def _combined(holds, other, how):  # type: ignore[no-untyped-def]
    """With another predicate: 0 as it is, 1 and, 2 or, 3 exclusive or; the other's opposite: +4."""
    combine = how.combine
    if combine >= 4:
        other, combine = not other, combine - 4
    if combine == 1:
        return np.uint64(holds and other)
    if combine == 2:
        return np.uint64(holds or other)
    return np.uint64(holds != (other and combine == 3))


@instruction("setp.signed")
def _setp_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = signed(a, how.bits), signed(b, how.bits)
    return _combined(_holds(how.which, x < y, x == y, False), c != 0, how)


@instruction("setp.unsigned")
def _setp_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _combined(_holds(how.which, a < b, a == b, False), c != 0, how)


@instruction("setp.float32")
def _setp_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    return _combined(_holds(how.which, x < y, x == y, isnan(x) or isnan(y)), c != 0, how)


@instruction("setp.float64")
def _setp_float64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = float64_of(a), float64_of(b)
    return _combined(_holds(how.which, x < y, x == y, isnan(x) or isnan(y)), c != 0, how)


@instruction("testp.float32", "testp.float64")
def _testp(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x = float64_of(a) if how.bits == 64 else np.float64(float32_of(a))
    least = 2.0**-1022 if how.bits == 64 else 2.0**-126
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


# float32 ------------------------------------------------------------------------------------------


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
    """The sum of two float64 as a float32, not to nearest; what it loses is Knuth's two-sum."""
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


@instruction("add.float32")
def _add32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    if how.rounding == NEAREST:
        return _finished(x + y, how)
    return _finished(_sum(np.float64(x), np.float64(y), how.rounding), how)


@instruction("sub.float32")
def _sub32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _add32(a, bits_of_float32(-float32_of(b)), c, d, how)


@instruction("mul.float32")
def _mul32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    if how.rounding == NEAREST:
        return _finished(x * y, how)
    return _finished(_nearby(np.float64(x) * np.float64(y), 0.0, how.rounding), how)


@instruction("fma.float32", "mad.float32")
def _fma32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    z = flushed(float32_of(c), how.flush)
    if how.rounding == NEAREST:
        return _finished(fused(x, y, z), how)
    return _finished(_sum(np.float64(x) * np.float64(y), np.float64(z), how.rounding), how)


@instruction("div.float32")
def _div32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    if how.approximate == 2 and abs(y) > np.float32(2.0**126) and abs(y) < np.inf:
        return _finished(np.float32(np.nan) if abs(x) == np.inf else np.float32(0) * x, how)
    quotient = np.float64(x) / np.float64(y)
    if how.rounding == NEAREST:  # float64 has more than twice the bits: rounding twice is no harm
        return _finished(np.float32(_about(quotient, 2.0**-22, how)), how)
    rest = -fused(quotient, np.float64(y), -np.float64(x)) / np.float64(y)
    return _finished(_nearby(quotient, rest, how.rounding), how)


@instruction("min.float32")
def _min32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    if isnan(x) or isnan(y):
        return bits_of_float32(y if isnan(x) else x)
    return bits_of_float32(x if x < y or (x == y and copysign(1.0, x) < 0) else y)


@instruction("max.float32")
def _max32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = flushed(float32_of(a), how.flush), flushed(float32_of(b), how.flush)
    if isnan(x) or isnan(y):
        return bits_of_float32(y if isnan(x) else x)
    return bits_of_float32(x if x > y or (x == y and copysign(1.0, x) > 0) else y)


@instruction("neg.float32")
def _neg32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float32(flushed(-float32_of(a), how.flush))


@instruction("abs.float32")
def _abs32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float32(flushed(abs(float32_of(a)), how.flush))


@instruction("copysign.float32")
def _copysign32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return (b & np.uint64(0x7FFF_FFFF)) | (a & np.uint64(0x8000_0000))


@compiled
def _rooted(exact, how):  # type: ignore[no-untyped-def]
    """A result that float64 has exactly but for its own rounding."""
    if how.approximate or how.rounding == NEAREST:
        return _finished(np.float32(_about(exact, 2.0**-22, how)), how)
    return _finished(_nearby(exact, 0.0, how.rounding), how)


@instruction("sqrt.float32")
def _sqrt32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _rooted(np.sqrt(np.float64(flushed(float32_of(a), how.flush))), how)


@instruction("rsqrt.float32")
def _rsqrt32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _rooted(1 / np.sqrt(np.float64(flushed(float32_of(a), how.flush))), how)


@instruction("rcp.float32")
def _rcp32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _rooted(1 / np.float64(flushed(float32_of(a), how.flush)), how)


@instruction("ex2.float32")
def _ex2(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _rooted(np.exp2(np.float64(flushed(float32_of(a), how.flush))), how)


@instruction("lg2.float32")
def _lg2(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _rooted(np.log2(np.float64(flushed(float32_of(a), how.flush))), how)


@instruction("tanh.float32")
def _tanh32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    exact = np.tanh(np.float64(flushed(float32_of(a), how.flush)))
    return _finished(np.float32(_about(exact, 2.0**-11, how)), how)


@instruction("sin.float32")
def _sin32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    exact = np.sin(np.float64(flushed(float32_of(a), how.flush)))
    moved = exact + 2.0**-21 * how.jitter / ONE_STEP if how.jitter else exact
    return _finished(np.float32(moved), how)


@instruction("cos.float32")
def _cos32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    exact = np.cos(np.float64(flushed(float32_of(a), how.flush)))
    moved = exact + 2.0**-21 * how.jitter / ONE_STEP if how.jitter else exact
    return _finished(np.float32(moved), how)


# float64 ------------------------------------------------------------------------------------------
# Rounded to nearest; another way is refused when the text is read.


@instruction("add.float64")
def _add64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(float64_of(a) + float64_of(b))


@instruction("sub.float64")
def _sub64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(float64_of(a) - float64_of(b))


@instruction("mul.float64")
def _mul64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(float64_of(a) * float64_of(b))


@instruction("fma.float64", "mad.float64")
def _fma64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(fused(float64_of(a), float64_of(b), float64_of(c)))


@instruction("div.float64")
def _div64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(float64_of(a) / float64_of(b))


@instruction("min.float64")
def _min64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = float64_of(a), float64_of(b)
    if isnan(x) or isnan(y):
        return b if isnan(x) else a
    return a if x < y or (x == y and copysign(1.0, x) < 0) else b


@instruction("max.float64")
def _max64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x, y = float64_of(a), float64_of(b)
    if isnan(x) or isnan(y):
        return b if isnan(x) else a
    return a if x > y or (x == y and copysign(1.0, x) > 0) else b


@instruction("neg.float64")
def _neg64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(-float64_of(a))


@instruction("abs.float64")
def _abs64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(abs(float64_of(a)))


@instruction("copysign.float64")
def _copysign64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    sign = np.uint64(1) << np.uint64(63)
    return (b & ~sign) | (a & sign)


@instruction("sqrt.float64")
def _sqrt64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(np.sqrt(float64_of(a)))


@compiled
def _coarse(x, how):  # type: ignore[no-untyped-def]
    """What `.approx.ftz.f64` keeps: the upper half of the bits."""
    bits = bits_of_float64(x)
    return bits & ~low(32) if how.approximate else bits


@instruction("rsqrt.float64")
def _rsqrt64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _coarse(1 / np.sqrt(float64_of(a)), how)


@instruction("rcp.float64")
def _rcp64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _coarse(1 / float64_of(a), how)


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


@instruction("cvt.signed.signed", "cvt.unsigned.signed")
def _cvt_of_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return np.uint64(signed(a, how.given_bits)) & low(how.bits)


@instruction("cvt.signed.unsigned", "cvt.unsigned.unsigned")
def _cvt_of_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return a & low(how.given_bits) & low(how.bits)


@instruction("cvt.float32.signed")
def _cvt_float32_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x = signed(a, how.given_bits)
    near = np.float32(x)
    if how.rounding == NEAREST:
        return bits_of_float32(near)
    high = np.float64(x >> np.int64(32)) * 2.0**32
    return bits_of_float32(_sum(high, np.float64(x & np.int64(0xFFFF_FFFF)), how.rounding))


@instruction("cvt.float32.unsigned")
def _cvt_float32_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x = a & low(how.given_bits)
    if how.rounding == NEAREST:
        return bits_of_float32(np.float32(x))
    high = np.float64(x >> np.uint64(32)) * 2.0**32
    return bits_of_float32(_sum(high, np.float64(x & low(32)), how.rounding))


@instruction("cvt.float64.signed")
def _cvt_float64_signed(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(np.float64(signed(a, how.given_bits)))


@instruction("cvt.float64.unsigned")
def _cvt_float64_unsigned(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(np.float64(a & low(how.given_bits)))


@instruction("cvt.signed.float32")
def _cvt_signed_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _to_integer(np.float64(flushed(float32_of(a), how.flush)), how, True)


@instruction("cvt.unsigned.float32")
def _cvt_unsigned_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _to_integer(np.float64(flushed(float32_of(a), how.flush)), how, False)


@instruction("cvt.signed.float64")
def _cvt_signed_float64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _to_integer(float64_of(a), how, True)


@instruction("cvt.unsigned.float64")
def _cvt_unsigned_float64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _to_integer(float64_of(a), how, False)


@instruction("cvt.float32.float32")
def _cvt_float32_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x = flushed(float32_of(a), how.flush)
    if how.rounding >= TO_WHOLE:
        x = np.float32(_whole(np.float64(x), how.rounding - TO_WHOLE))
    return _finished(x, how)


@instruction("cvt.float64.float64")
def _cvt_float64_float64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    x = float64_of(a)
    return bits_of_float64(_whole(x, how.rounding - TO_WHOLE) if how.rounding >= TO_WHOLE else x)


@instruction("cvt.float64.float32")
def _cvt_float64_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return bits_of_float64(np.float64(flushed(float32_of(a), how.flush)))


@instruction("cvt.float32.float64")
def _cvt_float32_float64(a, b, c, d, how):  # type: ignore[no-untyped-def]
    return _finished(_nearby(float64_of(a), 0.0, how.rounding), how)


@instruction("cvt.tf32.float32")
def _cvt_tf32_float32(a, b, c, d, how):  # type: ignore[no-untyped-def]
    """Rounded to 10 bits of fraction, ties away from zero."""
    x = float32_of(a)
    return (a + np.uint64(0x1000)) & np.uint64(0xFFFF_E000) if isfinite(x) else a


# Which of them ------------------------------------------------------------------------------------


def _choice() -> Any:
    """A function that calls the one with a number: LLVM makes a table of jumps of it."""
    lines = ["def compute(code, a, b, c, d, how):"]
    for number, name in enumerate(INSTRUCTIONS):
        lines.append(f"    if code == {number}:  # {name}")
        lines.append(f"        return function_{number}(a, b, c, d, how)")
    lines.append("    return a")
    known: dict[str, Any] = {
        f"function_{i}": function for i, function in enumerate(INSTRUCTIONS.values())
    }
    known["__name__"] = __name__
    exec("\n".join(lines), known)
    return compiled(known["compute"])


compute = _choice()
CODES = {name: number for number, name in enumerate(INSTRUCTIONS)}

"""Each instruction that computes, on many numbers, against exact arithmetic or NumPy.

What is expected is written from NVIDIA's manual, "Parallel Thread Execution ISA", with Python's
whole numbers and fractions: nothing of the machine is used for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.cpu import cache
from minitransformer_kernels.gpu.ptx import Program, PtxError, launch
from minitransformer_kernels.gpu.ptx.arithmetic import CODES
from minitransformer_kernels.gpu.ptx.bits import _Cache

WORDS = [0, 1, 2, 3, 5, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000,
         0xFFFFFFFF, 0xFFFFFFFE, 0x12345678, 0x7FFFFFFFFFFFFFFF, 1 << 63, (1 << 64) - 1,
         0x0123456789ABCDEF]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 1e-3, 0.1, -0.7, 1e30, -1e30, 3e38, 1e-38,
          1e-40, -1e-45, 2.0**24, 2.0**24 + 1, 1.9e9, -1.9e9, 2147483648.0, -2147483648.0,
          4294967295.0, 8e18, -8e18, 9.3e18, -9.3e18, 1.8e19,
          math.inf, -math.inf, math.nan]  # fmt: skip
NEAREST, ZERO, DOWN, UP = "rn", "rz", "rm", "rp"


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def mask(bits: int) -> int:
    return (1 << bits) - 1


def float_of(x: int, bits: int) -> float:
    return float(np.array(x, f"u{bits // 8}").view(f"f{bits // 8}"))


def bits_of(x: float, bits: int) -> int:
    with np.errstate(over="ignore"):
        return int(np.array(x, f"f{bits // 8}").view(f"u{bits // 8}"))


def rounded(exact: Fraction, way: str) -> float:
    """The float32 next to a number, in some way; by comparing with the neighbours alone."""
    near = np.float32(float(exact)) if abs(exact) < Fraction(2) ** 128 else None
    if near is None or not np.isfinite(near):
        most = np.float32(np.finfo(np.float32).max)
        away = (way == UP and exact > 0) or (way == DOWN and exact < 0) or way == NEAREST
        return float(np.copysign(np.inf if away else most, float(exact > 0) - 0.5))
    candidates = {float(np.nextafter(near, np.float32(s))) for s in (-np.inf, np.inf)} | {
        float(near)
    }
    finite = [x for x in candidates if math.isfinite(x)]
    below = max((x for x in finite if Fraction(x) <= exact), default=-math.inf)
    above = min((x for x in finite if Fraction(x) >= exact), default=math.inf)
    if way == DOWN or (way == ZERO and exact > 0):
        return below
    if way in (UP, ZERO):
        return above
    if not (math.isfinite(below) and math.isfinite(above)):
        return float(near)
    gaps = exact - Fraction(below), Fraction(above) - exact
    if gaps[0] == gaps[1]:
        return below if bits_of(below, 32) % 2 == 0 else above
    return below if gaps[0] < gaps[1] else above


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def of_floats(function: Callable[..., Any], bits: int, ftz: bool = False) -> Callable[..., int]:
    """A function of numbers as one of bits."""

    def run(*words: int) -> int:
        numbers = [float_of(word & mask(bits), bits) for word in words]
        with np.errstate(all="ignore"):
            result = function(*map(flushed, numbers) if ftz else numbers)
            result = float(np.array(result, f"f{bits // 8}"))
        return bits_of(flushed(result) if ftz else result, bits)

    return run


def exactly(function: Callable[..., Fraction], way: str, otherwise: Any) -> Callable[..., float]:
    """A function of finite numbers by fractions; where one is not finite, NumPy's."""

    def run(*numbers: float) -> float:
        if not all(map(math.isfinite, numbers)):
            return float(otherwise(*map(np.float32, numbers)))
        try:
            exact = function(*map(Fraction, numbers))
        except ZeroDivisionError:
            return float(otherwise(*map(np.float32, numbers)))
        if exact == 0:
            return float(otherwise(*map(np.float32, numbers)))
        return rounded(exact, way)

    return run


def shift(x: int, by: int, bits: int, left: bool, sign: bool = False) -> int:
    if left:
        return (x << by) & mask(bits) if by < bits else 0
    return (signed(x, bits) if sign else x) >> min(by, 200) & mask(bits)


def divided(x: int, y: int, bits: int, rest: bool) -> int:
    x, y = signed(x, bits), signed(y, bits)
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return (x - quotient * y if rest else quotient) & mask(bits)


def field(x: int, place: int, length: int, bits: int, sign: bool) -> int:
    """bfe, as its loop in the manual: bit by bit."""
    place, length = place & 0xFF, length & 0xFF
    top = min(place + length - 1, bits - 1)
    fill = (x >> top) & 1 if sign and length else 0
    found = 0
    for i in range(bits):
        bit = (x >> (place + i)) & 1 if i < length and place + i < bits else fill
        found |= bit << i
    return found


def inserted(x: int, y: int, place: int, length: int, bits: int) -> int:
    """bfi, bit by bit."""
    for i in range(length & 0xFF):
        at = (place & 0xFF) + i
        if at < bits:
            y = (y & ~(1 << at)) | (((x >> i) & 1) << at)
    return y


def to_integer(x: float, bits: int, sign: bool, whole: Callable[[float], float]) -> int:
    if math.isnan(x):
        return 0 if bits <= 32 else 1 << 63
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, mask(bits))
    if math.isinf(x):
        return (high if x > 0 else low) & mask(bits)
    return min(max(int(whole(x)), low), high) & mask(bits)


def permuted(x: int, y: int, choice: int) -> int:
    pool = [*x.to_bytes(4, "little"), *y.to_bytes(4, "little")]
    chosen = [(choice >> (4 * i)) & 15 for i in range(4)]
    made = [(0xFF * (pool[c & 7] >> 7)) if c & 8 else pool[c & 7] for c in chosen]
    return int.from_bytes(bytes(made), "little")


def less(x: float, y: float, least: bool) -> float:
    """min or max: a NaN gives way, and -0 is less than 0."""
    if math.isnan(x) or math.isnan(y):
        return y if math.isnan(x) else x
    key = lambda z: (z, math.copysign(1, z))  # noqa: E731
    return min(x, y, key=key) if least else max(x, y, key=key)


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}  # fmt: skip
Expected = Callable[..., int]


def cases() -> Iterator[tuple[str, str, str, Expected]]:
    """Yield the text of an instruction, the types of its operands and its result, and the truth."""
    for bits in (16, 32, 64):
        u, s, b, m = f"u{bits}", f"s{bits}", f"b{bits}", mask(bits)
        yield f"add.{u}", f"{u} {u}", u, lambda x, y, m=m: (x + y) & m
        yield f"sub.{s}", f"{u} {u}", u, lambda x, y, m=m: (x - y) & m
        yield f"mul.lo.{s}", f"{u} {u}", u, lambda x, y, m=m: x * y & m
        yield f"mul.hi.{u}", f"{u} {u}", u, lambda x, y, n=bits: x * y >> n
        yield (f"mul.hi.{s}", f"{u} {u}", u,
               lambda x, y, n=bits, m=m: signed(x, n) * signed(y, n) >> n & m)  # fmt: skip
        yield f"mad.lo.{u}", f"{u} {u} {u}", u, lambda x, y, z, m=m: (x * y + z) & m
        yield f"div.{u}", f"{u} +{u}", u, lambda x, y: x // y
        yield f"rem.{u}", f"{u} +{u}", u, lambda x, y: x % y
        for name, rest in (("div", False), ("rem", True)):
            yield f"{name}.{s}", f"{u} +{u}", u, lambda x, y, n=bits, r=rest: divided(x, y, n, r)
        yield f"neg.{s}", u, u, lambda x, m=m: -x & m
        yield f"abs.{s}", u, u, lambda x, n=bits, m=m: abs(signed(x, n)) & m
        for name, one in (("min", min), ("max", max)):
            yield f"{name}.{u}", f"{u} {u}", u, one
            by_sign = lambda x, y, n=bits, g=one: g(signed(x, n), signed(y, n)) & mask(n)  # noqa: E731
            yield f"{name}.{s}", f"{u} {u}", u, by_sign
        yield f"and.{b}", f"{u} {u}", u, lambda x, y: x & y
        yield f"or.{b}", f"{u} {u}", u, lambda x, y: x | y
        yield f"xor.{b}", f"{u} {u}", u, lambda x, y: x ^ y
        yield f"not.{b}", u, u, lambda x, m=m: ~x & m
        yield f"cnot.{b}", u, u, lambda x: int(x == 0)
        yield f"shl.{b}", f"{u} u32", u, lambda x, k, n=bits: shift(x, k, n, True)
        yield f"shr.{u}", f"{u} u32", u, lambda x, k, n=bits: shift(x, k, n, False)
        yield f"shr.{s}", f"{u} u32", u, lambda x, k, n=bits: shift(x, k, n, False, True)
        yield f"mov.{b}", u, u, lambda x: x
        yield f"selp.{b}", f"{u} {u} pred", u, lambda x, y, p: x if p else y
        for name, holds in COMPARED.items():
            yield f"setp.{name}.{u}", f"{u} {u}", "pred", lambda x, y, h=holds: int(h(x, y))
            yield (f"setp.{name}.{s}", f"{u} {u}", "pred",
                   lambda x, y, n=bits, h=holds: int(h(signed(x, n), signed(y, n))))  # fmt: skip
    for bits in (16, 32):
        u, s, w, m = f"u{bits}", f"s{bits}", f"u{2 * bits}", mask(2 * bits)
        yield f"mul.wide.{u}", f"{u} {u}", w, lambda x, y: x * y
        yield (f"mul.wide.{s}", f"{u} {u}", w,
               lambda x, y, n=bits, m=m: signed(x, n) * signed(y, n) & m)  # fmt: skip
        yield f"mad.wide.{u}", f"{u} {u} {w}", w, lambda x, y, z, m=m: (x * y + z) & m
        yield (f"mad.wide.{s}", f"{u} {u} {w}", w,
               lambda x, y, z, n=bits, m=m: (signed(x, n) * signed(y, n) + z) & m)  # fmt: skip
    for bits in (32, 64):
        u, s, b = f"u{bits}", f"s{bits}", f"b{bits}"
        m = mask(bits)
        yield f"mad.hi.{u}", f"{u} {u} {u}", u, lambda x, y, z, n=bits, m=m: (x * y >> n) + z & m
        yield (f"mad.hi.{s}", f"{u} {u} {u}", u,
               lambda x, y, z, n=bits, m=m: (signed(x, n) * signed(y, n) >> n) + z & m)  # fmt: skip
        yield f"popc.{b}", u, "u32", lambda x: x.bit_count()
        yield f"clz.{b}", u, "u32", lambda x, n=bits: n - x.bit_length()
        yield f"brev.{b}", u, u, lambda x, n=bits: int(f"{x:0{n}b}"[::-1], 2)
        yield f"bfind.{u}", u, "u32", lambda x: x.bit_length() - 1 & mask(32)
        yield (f"bfind.shiftamt.{u}", u, "u32",
               lambda x, n=bits: n - x.bit_length() if x else mask(32))  # fmt: skip
        yield f"bfe.{u}", f"{u} u32 u32", u, lambda x, p, k, n=bits: field(x, p, k, n, False)
        yield f"bfe.{s}", f"{u} u32 u32", u, lambda x, p, k, n=bits: field(x, p, k, n, True)
        yield f"bfi.{b}", f"{u} {u} u32 u32", u, lambda x, y, p, k, n=bits: inserted(x, y, p, k, n)
    yield "lop3.b32", "u32 u32 u32 #0x96", "u32", lambda x, y, z: x ^ y ^ z
    yield "lop3.b32", "u32 u32 u32 #0xE8", "u32", lambda x, y, z: x & y | y & z | x & z
    both = lambda x, y: y << 32 | x  # noqa: E731
    yield ("shf.l.wrap.b32", "u32 u32 u32", "u32",
           lambda x, y, k: both(x, y) << (k & 31) >> 32 & mask(32))  # fmt: skip
    yield "shf.r.wrap.b32", "u32 u32 u32", "u32", lambda x, y, k: both(x, y) >> (k & 31) & mask(32)
    yield "prmt.b32", "u32 u32 u32", "u32", permuted
    yield "cvta.to.global.u64", "u64", "u64", lambda x: x
    yield "and.pred", "pred pred", "pred", lambda x, y: x & y
    yield "or.pred", "pred pred", "pred", lambda x, y: x | y
    yield "xor.pred", "pred pred", "pred", lambda x, y: x ^ y
    yield "not.pred", "pred", "pred", lambda x: 1 - x
    yield "mov.pred", "pred", "pred", lambda x: x
    yield ("setp.lt.and.s32", "u32 u32 pred", "pred",
           lambda x, y, p: int(signed(x, 32) < signed(y, 32) and p))  # fmt: skip
    yield "setp.ge.or.u32", "u32 u32 pred", "pred", lambda x, y, p: int(x >= y or p)
    yield "setp.eq.xor.u32", "u32 u32 !pred", "pred", lambda x, y, p: int((x == y) != (not p))
    yield from _floating()
    yield from _conversions()


def _floating() -> Iterator[tuple[str, str, str, Expected]]:
    exact = {
        "add": (lambda x, y: x + y, np.add, 2), "sub": (lambda x, y: x - y, np.subtract, 2),
        "mul": (lambda x, y: x * y, np.multiply, 2), "div": (lambda x, y: x / y, np.divide, 2),
        "fma": (lambda x, y, z: x * y + z, lambda x, y, z: np.float64(x) * y + z, 3),
        "mad": (lambda x, y, z: x * y + z, lambda x, y, z: np.float64(x) * y + z, 3),
        "rcp": (lambda x: 1 / x, lambda x: np.float32(1) / x, 1),
    }  # fmt: skip
    for way, ftz in product((NEAREST, ZERO, DOWN, UP), (False, True)):
        for name, (function, otherwise, count) in exact.items():
            text = f"{name}.{way}{'.ftz' * ftz}.f32"
            truth = of_floats(exactly(function, way, otherwise), 32, ftz)
            # A sum that is exactly zero is -0 where it is rounded down: left to the next test.
            yield text, " ".join(["f32"] * count), "f32" if way != DOWN else "f32 zero", truth
    yield ("add.sat.f32", "f32 f32", "f32",
           of_floats(lambda x, y: _saturated(np.float32(x) + np.float32(y)), 32))  # fmt: skip
    for bits in (32, 64):
        f, real = f"f{bits}", np.float32 if bits == 32 else np.float64
        yield f"neg.{f}", f, f, of_floats(lambda x: -x, bits)
        yield f"abs.{f}", f, f, of_floats(abs, bits)
        yield f"copysign.{f}", f"{f} {f}", f, of_floats(lambda x, y: math.copysign(y, x), bits)
        yield f"min.{f}", f"{f} {f}", f, of_floats(lambda x, y: less(x, y, True), bits)
        yield f"max.{f}", f"{f} {f}", f, of_floats(lambda x, y: less(x, y, False), bits)
        yield f"sqrt.rn.{f}", f, f, of_floats(lambda x, real=real: np.sqrt(real(x)), bits)
        yield f"selp.{f}", f"{f} {f} pred", f, lambda x, y, p: x if p else y
        yield f"mov.{f}", f, f, lambda x: x
        for name, holds in COMPARED.items():
            pair = f"{f} {f}"
            for unordered in (False, True):

                def found(x: int, y: int, n=bits, h=holds, u=unordered) -> int:
                    p, q = float_of(x, n), float_of(y, n)
                    nan = math.isnan(p) or math.isnan(q)
                    return int(u if nan else h(p, q))

                yield f"setp.{name}{'u' * unordered}.{f}", pair, "pred", found
        nan = lambda x, n=bits: math.isnan(float_of(x, n))  # noqa: E731
        yield f"setp.num.{f}", f"{f} {f}", "pred", lambda x, y, nan=nan: int(not (nan(x) or nan(y)))
        yield f"setp.nan.{f}", f"{f} {f}", "pred", lambda x, y, nan=nan: int(nan(x) or nan(y))
        least = float(np.finfo(real).tiny)
        tests: dict[str, Callable[[float], bool]] = {
            "finite": math.isfinite, "infinite": math.isinf, "notanumber": math.isnan,
            "number": lambda x: not math.isnan(x),
            "normal": lambda x, t=least: math.isfinite(x) and abs(x) >= t,
            "subnormal": lambda x, t=least: 0 < abs(x) < t,
        }  # fmt: skip
        for name, test in tests.items():
            yield f"testp.{name}.{f}", f, "pred", lambda x, n=bits, t=test: int(t(float_of(x, n)))
    for name, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply),
                           ("div", np.divide)):  # fmt: skip
        yield (f"{name}.rn.f64", "f64 f64", "f64",
               of_floats(lambda x, y, g=function: g(np.float64(x), np.float64(y)), 64))  # fmt: skip
    for name in ("fma", "mad"):
        yield f"{name}.rn.f64", "f64 f64 f64", "f64", of_floats(_fused64, 64)
    approximate: dict[str, Callable[[Any], Any]] = {
        "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "ex2": np.exp2, "lg2": np.log2,
        "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    }  # fmt: skip
    for name, function in approximate.items():
        wide = of_floats(lambda x, g=function: np.float32(g(np.float64(x))), 32)
        yield f"{name}.approx.f32", "~f32", "f32", wide
    for name in ("rsqrt", "rcp"):
        half = of_floats(lambda x, g=approximate[name]: g(np.float64(x)), 64)
        yield f"{name}.approx.ftz.f64", "f64", "f64", lambda x, h=half: h(x) & ~mask(32)


def _saturated(x: Any) -> Any:
    return 0.0 if np.isnan(x) else min(max(float(x), 0.0), 1.0)


def _fused64(x: float, y: float, z: float) -> float:
    if not all(map(math.isfinite, (x, y, z))):
        return float(np.float64(x) * y + z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return float(np.float64(x) * y + z)
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


def _conversions() -> Iterator[tuple[str, str, str, Expected]]:
    whole: dict[str, Callable[[float], float]] = {
        "rni": lambda x: float(np.rint(x)), "rzi": math.trunc, "rmi": math.floor,
        "rpi": math.ceil,
    }  # fmt: skip
    for out, given in product((8, 16, 32, 64), repeat=2):
        o = max(out, 16)
        g = f"u{max(given, 16)}"
        m = mask(out)
        yield f"cvt.u{out}.s{given}", g, f"u{o}", lambda x, n=given, m=m: signed(x, n) & m
        # Where the register is wider than the type, the sign of a signed one goes on to its end.
        ends = lambda x, n=out, o=o: signed(x, n) & mask(o)  # noqa: E731
        yield f"cvt.s{out}.u{given}", g, f"u{o}", lambda x, n=given, e=ends: e(x & mask(n))
        yield f"cvt.u{out}.u{given}", g, f"u{o}", lambda x, n=given, m=m: x & mask(n) & m
        yield f"cvt.s{out}.s{given}", g, f"u{o}", lambda x, n=given, e=ends: e(signed(x, n))
    for way, given in product((NEAREST, ZERO, DOWN, UP), (32, 64)):
        u = f"u{given}"
        yield (f"cvt.{way}.f32.s{given}", u, "f32",
               lambda x, n=given, w=way: bits_of(_of_int(signed(x, n), w), 32))  # fmt: skip
        yield f"cvt.{way}.f32.u{given}", u, "f32", lambda x, w=way: bits_of(_of_int(x, w), 32)
    for given in (32, 64):
        u = f"u{given}"
        yield f"cvt.rn.f64.s{given}", u, "f64", lambda x, n=given: bits_of(float(signed(x, n)), 64)
        yield f"cvt.rn.f64.u{given}", u, "f64", lambda x: bits_of(float(x), 64)
    for (name, way), bits, given in product(whole.items(), (32, 64), (32, 64)):
        for sign in (True, False):
            kind = f"{'s' if sign else 'u'}{bits}"
            to = lambda x, n=given, b=bits, s=sign, w=way: to_integer(float_of(x, n), b, s, w)  # noqa: E731
            yield f"cvt.{name}.{kind}.f{given}", f"f{given}", f"u{bits}", to
    for name, way in whole.items():
        for bits in (32, 64):
            kept = lambda x, w=way: x if not math.isfinite(x) else math.copysign(w(x), x)  # noqa: E731
            yield f"cvt.{name}.f{bits}.f{bits}", f"f{bits}", f"f{bits}", of_floats(kept, bits)
    yield "cvt.f64.f32", "f32", "f64", lambda x: bits_of(float_of(x, 32), 64)
    for way in (NEAREST, ZERO, DOWN, UP):

        def narrowed(x: int, w=way) -> int:
            number = float_of(x, 64)
            if not math.isfinite(number) or number == 0:
                return bits_of(number, 32)
            found = rounded(Fraction(number), w)
            return bits_of(math.copysign(found, number), 32)

        yield f"cvt.{way}.f32.f64", "f64", "f32", narrowed
    for bits in (32, 64):
        f = f"f{bits}"
        yield f"cvt.{f}.f16", "u16", f, lambda x, n=bits: bits_of(float_of(x & mask(16), 16), n)
        yield f"cvt.rn.f16.{f}", f, "u16", lambda x, n=bits: _half_of(float_of(x, n))
        for (name, way), kind in product(whole.items(), "su"):
            yield (f"cvt.{name}.{kind}{bits}.f16", "u16", f"u{bits}",
                   lambda x, b=bits, s=kind == "s", w=way:
                       to_integer(float_of(x & mask(16), 16), b, s, w))  # fmt: skip
        yield f"cvt.rn.f16.s{bits}", f"u{bits}", "u16", lambda x, n=bits: _half_of(signed(x, n))
        yield f"cvt.rn.f16.u{bits}", f"u{bits}", "u16", _half_of
    yield "cvt.sat.f32.f32", "f32", "f32", of_floats(_saturated, 32)
    yield "cvt.rna.tf32.f32", "f32", "f32", _tf32


def _of_int(x: int, way: str) -> float:
    return rounded(Fraction(x), way) if x else 0.0


def _half_of(x: float) -> int:
    """The bits of the float16 nearest to a number."""
    with np.errstate(over="ignore"):
        return 0x7FFF if math.isnan(x) else int(np.float64(x).astype(np.float16).view(np.uint16))


def _tf32(x: int) -> int:
    """To 10 bits of fraction; a tie goes away from zero."""
    if not math.isfinite(float_of(x, 32)):
        return x
    rest = x & 0x1FFF
    return x - rest + (0x2000 if rest >= 0x1000 else 0)


CASES = list(cases())
LOADED = {"u16": "u16", "u32": "u32", "u64": "u64", "f32": "f32", "f64": "f64", "pred": "u32"}
BANK = {"u16": "rs", "u32": "r", "u64": "rd", "f32": "f", "f64": "fd", "pred": "p"}


def program(text: str, given: list[str], out: str) -> Program:
    """A kernel whose thread t reads its operands, makes one instruction, and keeps the result."""
    lines = ["mov.u32 %t, %tid.x;", "cvt.u64.u32 %o, %t;", "shl.b64 %o, %o, 3;"]
    operands = []
    for number, kind in enumerate(given):
        if kind.startswith("#"):
            operands.append(kind[1:])
            continue
        plain = kind.strip("+~!")
        lines.append(
            f"ld.param.u64 %b{number}, [given_{number}]; add.s64 %b{number}, %b{number}, %o;"
        )
        lines.append(f"ld.global.{LOADED[plain]} %{BANK[plain]}{number}, [%b{number}];")
        if plain == "pred":
            lines[-1] = lines[-1].replace(f"%p{number}", f"%i{number}")
            lines.append(f"setp.ne.u32 %p{number}, %i{number}, 0;")
        operands.append(f"{'!' * kind.startswith('!')}%{BANK[plain]}{number}")
    kind = out.split()[0]
    target = f"%{BANK[kind]}out"
    lines.append(f"{text} {', '.join([target, *operands])};")
    if kind == "pred":
        lines.append("selp.u32 %rout, 1, 0, %pout;")
        kind, target = "u32", "%rout"
    lines.append("ld.param.u64 %b9, [out]; add.s64 %b9, %b9, %o;")
    lines.append(f"st.global.{LOADED[kind]} [%b9], {target};")
    names = [f"given_{n}" for n, kind in enumerate(given) if not kind.startswith("#")]
    head = ", ".join(f".param .u64 {name}" for name in [*names, "out"])
    return Program(f".visible .entry one({head}) {{\n" + "\n".join(lines) + "\nret;\n}\n")


def the_one(made: Program, text: str) -> int:
    """The row of the instruction that a program was made for: the last such."""
    return [i for i, line in enumerate(made.lines) if line.text.startswith(f"{text} ")][-1]


def run(made: Program, given: list[list[int]], count: int, **options: Any) -> list[int]:
    """What the threads of a block keep: as many bytes of eight as were written."""
    arrays = [np.array(column, np.uint64) for column in given]
    out = np.zeros(count, np.uint64)
    ends = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in (*arrays, out)]
    parameters = [np.uint64(begin).tobytes() for begin, _ in ends]
    launch(made, (1, 1, 1), (count, 1, 1), parameters, ends, **options)
    return [int(x) for x in out]


def values(kind: str, rng: np.random.Generator, count: int) -> list[int]:
    """Numbers of a type, the odd ones among them, as bits; `+`: none is zero, `~`: none is huge."""
    plain = kind.strip("+~!")
    if plain == "pred":
        return [int(x) for x in rng.integers(0, 2, count)]
    bits = int(plain[1:])
    if plain[0] == "u":
        pool = [x & mask(bits) for x in WORDS] + [int(x) for x in rng.integers(0, 1 << 62, 8)]
        pool = [x & mask(bits) for x in pool if not kind.startswith("+") or x & mask(bits)]
    else:
        odd = [x for x in FLOATS if not kind.startswith("~") or abs(x) < 50]
        pool = [bits_of(x, bits) for x in (*odd, *rng.normal(size=8))]
    return [pool[i] for i in rng.integers(0, len(pool), count)]


def wrong(got: int, truth: int, out: str) -> bool:
    """Whether a result is not the right one: of NaN any will do, and of zero where it says so."""
    kind, *rest = out.split()
    if kind[0] == "f":
        bits = int(kind[1:])
        x, y = float_of(got & mask(bits), bits), float_of(truth, bits)
        if math.isnan(y):
            return not math.isnan(x)
        if rest and y == 0:
            return x != 0
    return got != truth


def failures(made: Program, given: list[str], out: str, truth: Expected) -> list[str]:
    """The first operands for which the result is wrong."""
    rng = np.random.default_rng(1)
    count = 256
    drawn = [values(kind, rng, count) for kind in given if not kind.startswith("#")]
    with np.errstate(all="ignore"):
        expected = [truth(*operands) for operands in zip(*drawn, strict=True)]
    got = run(made, drawn, count)
    return [
        f"{[hex(x) for x in operands]}: {x:#x}, expected {y:#x}"
        for *operands, x, y in zip(*drawn, got, expected, strict=True)
        if wrong(x, y, out)
    ][:3]


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_instruction(number: int) -> None:
    """It computes what the manual says; and with another in its place the test would fail."""
    text, given, out, truth = CASES[number]
    made = program(text, given.split(), out)
    assert not failures(made, given.split(), out, truth)
    row = the_one(made, text)
    made.rows[row]["code"] = CODES["brev.int" if text.startswith("not") else "not.int"]
    assert failures(made, given.split(), out, truth)


def test_each_is_tested() -> None:
    """One function has several names; what counts is the name by which the text is read."""
    tested = set()
    for text, given, out, _ in CASES:
        made = program(text, given.split(), out)
        tested.add(int(made.rows[the_one(made, text)]["code"]))
    assert not {name for name, code in CODES.items() if code not in tested}


@pytest.mark.parametrize(
    "text", ["prmt.b32.f4e", "min.NaN.f32", "add.sat.s32.relu", "cvt.rn.bf16.f32"]
)
def test_what_else_a_name_may_say_is_refused(text: str) -> None:
    with pytest.raises(PtxError, match="is not known"):
        program(text, ["u32", "u32", "u32"][: 1 if "cvt" in text else 3], "u32")


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("add.rz.f64", "f64 f64"),
        ("fma.rm.f64", "f64 f64 f64"),
        ("cvt.rp.f64.s64", "u64"),
        ("cvt.rz.f16.f32", "f32"),
    ],
)
def test_what_is_rounded_to_nearest_alone(text: str, given: str) -> None:
    with pytest.raises(PtxError, match=r"rounds float\d\d in a way that is not"):
        program(text, given.split(), "f64")


def test_the_machines_code_is_filed_under_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "version", lambda folder: folder.name)
    assert _Cache(program)._path.name == "ptx_machine_ptx_cpu"


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(
        PtxError, match=r"line 11 of the PTX of one: `dp4a.u32.u32 .*` is not known"
    ):
        program("dp4a.u32.u32", ["u32", "u32", "u32"], "u32")


@pytest.mark.parametrize(
    ("first", "second", "truth"),
    [
        ("mad.lo.cc.u32", "madc.hi.u32",
         lambda x, y, z: (x * y >> 32) + z + ((x * y & mask(32)) + z >> 32)),
        ("mad.hi.cc.u32", "madc.lo.u32",
         lambda x, y, z: (x * y & mask(32)) + z + ((x * y >> 32) + z >> 32)),
    ],
)  # fmt: skip
def test_a_carry_goes_into_the_next_sum(first: str, second: str, truth: Expected) -> None:
    made = program(f"{first} %r8, %r0, %r1, %r2; {second}", ["u32"] * 3, "u32")
    carried = lambda x, y, z: truth(x, y, z) & mask(32)  # noqa: E731
    assert not failures(made, ["u32"] * 3, "u32", carried)
    at = the_one(made, second)
    (carries,) = (i for i in range(at) if int(made.rows[i]["code"]) == CODES["shr.unsigned"])
    made.rows[carries]["code"] = CODES["brev.int"]
    assert failures(made, ["u32"] * 3, "u32", carried)


def test_carries_of_a_chain() -> None:
    """x + y carries into x + x, and that into x + y again."""
    text = "add.cc.u32 %r8, %r0, %r1; addc.cc.u32 %r9, %r0, %r0; addc.u32"
    made = program(text, ["u32"] * 2, "u32")
    carried = lambda x, y: (x + y + (2 * x + (x + y >> 32) >> 32)) & mask(32)  # noqa: E731
    assert not failures(made, ["u32"] * 2, "u32", carried)
    with pytest.raises(PtxError, match=r"addc\.u64.*is not known"):
        program("addc.u64", ["u64"] * 2, "u64")


def test_borrows_of_a_chain() -> None:
    """x - y borrows from y - x, and that from x - y again."""
    text = "sub.cc.u32 %r8, %r0, %r1; subc.cc.u32 %r9, %r1, %r0; subc.u32"
    made = program(text, ["u32"] * 2, "u32")
    borrowed = lambda x, y: (x - y - (y - x - (x < y) < 0)) & mask(32)  # noqa: E731
    assert not failures(made, ["u32"] * 2, "u32", borrowed)
    for row in np.flatnonzero(made.rows["code"] == CODES["shr.unsigned"])[1:]:
        made.rows[row]["code"] = CODES["brev.int"]
        assert failures(made, ["u32"] * 2, "u32", borrowed)


@pytest.mark.parametrize(
    "text, error",
    [
        *((f"{name}.approx.f32", 2.0**-22) for name in ("rsqrt", "ex2", "lg2", "rcp", "sqrt")),
        ("tanh.approx.f32", 2.0**-11), ("sin.approx.f32", 2.0**-21), ("cos.approx.f32", 2.0**-21),
        ("sqrt.rn.f32", 0),
    ],
)  # fmt: skip
def test_jitter_moves_what_is_approximate(text: str, error: float) -> None:
    """By the error that is allowed, up or down; that of a sine and a cosine is absolute."""
    numbers = np.linspace(1.1, 1.5, 64, dtype=np.float32)
    given, made = [numbers.view(np.uint32).tolist()], program(text, ["f32"], "f32")
    less, plain, more = (
        np.array(run(made, given, 64, jitter=jitter), np.uint32).view(np.float32).astype(float)
        for jitter in (-1, 0, 1)
    )
    size = 1 if text.startswith(("sin", "cos")) else plain
    assert np.mean((more - plain) / size) == pytest.approx(error, rel=0.1)
    assert np.mean((plain - less) / size) == pytest.approx(error, rel=0.1)

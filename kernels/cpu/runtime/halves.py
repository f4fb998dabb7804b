"""float16 on the CPU: each operation in float32, its result rounded to 16 bits.

That gives what a GPU's own operations on float16 give: float32 has more than twice the digits, so
that a result which is rounded twice is what it would be rounded once (Figueroa 1995). Processors
convert between the two in one instruction, vectors of them too.

Numba computes with float16 on GPUs alone. The rules are the same here: of two float16 the sum, the
difference, the product and the quotient is float16, and so are `-x`, `abs(x)`, `min`, `max` and
what `FUNCTIONS` and `TO_WHOLE` make of one; all else takes them for float32, and with a number of
Python's they become float64.
"""

from __future__ import annotations

import math
import operator
from platform import machine
from typing import Any

from llvmlite import ir
from numba.core import boxing, pythonapi, types
from numba.core.datamodel import models
from numba.core.errors import NumbaTypeError
from numba.core.imputils import Registry
from numba.core.registry import cpu_target
from numba.core.typing import signature

HALF = types.float16
_lowered = Registry("float16 on the CPU")  # GPUs have their own
UNARY = operator.neg, operator.pos, abs
BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv,
    operator.iadd, operator.isub, operator.imul, operator.itruediv,
)  # fmt: skip
FUNCTIONS = (
    math.cos, math.exp, math.fabs, math.log, math.log10, math.log2, math.sin, math.sqrt, math.tanh,
)  # fmt: skip
TO_WHOLE = {math.ceil: "llvm.ceil", math.floor: "llvm.floor", math.trunc: "llvm.trunc"}


def are_converted(processor: str, features: str) -> bool:
    """Whether a processor converts between 16 and 32 bits; on x86 not those before 2012.

    >>> are_converted("x86_64", "+avx,+f16c"), are_converted("x86_64", "+avx,-f16c")
    (True, False)
    """
    return not processor.lower().startswith(("x86", "amd64", "i")) or "+f16c" in features.split(",")


CONVERTED = are_converted(machine(), cpu_target.target_context.codegen()._tm_features)


@models.register_default(types.Float)
class _FloatModel(models.FloatModel):
    """Numba's, which has no 16 bits."""

    def __init__(self, manager: Any, kind: types.Float) -> None:
        if kind == HALF:
            models.PrimitiveModel.__init__(self, manager, kind, ir.HalfType())
        else:
            super().__init__(manager, kind)


def _to_half(builder: Any, value: Any) -> Any:
    """A float64 rounded once: what float32 cannot hold leaves a 1 in its last bit: no tie."""
    bits32 = ir.IntType(32)
    near = builder.fptrunc(value, ir.FloatType())
    back = builder.fpext(near, ir.DoubleType())
    fabs = builder.module.declare_intrinsic("llvm.fabs", [ir.DoubleType()])
    too_far = builder.fcmp_ordered(">", builder.call(fabs, [back]), builder.call(fabs, [value]))
    inexact = builder.fcmp_ordered("!=", back, value)
    bits = builder.sub(builder.bitcast(near, bits32), builder.zext(too_far, bits32))
    bits = builder.or_(bits, builder.zext(inexact, bits32))
    return builder.fptrunc(builder.bitcast(bits, ir.FloatType()), ir.HalfType())


_cast = cpu_target.target_context.cast


def _cast_half(builder: Any, value: Any, kind: types.Type, wanted: types.Type) -> Any:
    """Numba's `cast`, but for float16: whoever imports `numba.cuda` adds a GPU's ways to it."""
    if kind != wanted and HALF in (kind, wanted):
        if (kind, wanted) == (types.float32, HALF):
            return builder.fptrunc(value, ir.HalfType())
        if (kind, wanted) == (HALF, types.float32):
            return builder.fpext(value, ir.FloatType())
        if wanted == HALF and isinstance(types.unliteral(kind), types.Number | types.Boolean):
            return _to_half(builder, _cast(builder, value, kind, types.float64))
        if kind == HALF and isinstance(wanted, types.Number | types.Boolean):
            wide = builder.fpext(value, ir.DoubleType())
            return _cast(builder, wide, types.float64, wanted)
    return _cast(builder, value, kind, wanted)


cpu_target.target_context.cast = _cast_half


def _boxed(kind: types.Float, value: Any, c: Any) -> Any:
    """Numba's, for 16 bits as well: to a float of Python's."""
    wide = kind if kind != HALF else types.float32
    return boxing.box_float(wide, c.context.cast(c.builder, value, kind, wide), c)


def _unboxed(kind: types.Float, value: Any, c: Any) -> Any:
    """Numba's, for 16 bits as well."""
    wide = kind if kind != HALF else types.float64
    found = boxing.unbox_float(wide, value, c)
    number = c.context.cast(c.builder, found.value, wide, kind)
    return pythonapi.NativeValue(number, is_error=found.is_error)


pythonapi._boxers.functions[types.Float] = _boxed  # `@box` takes a type once
pythonapi._unboxers.functions[types.Float] = _unboxed


def _take(function: Any, count: int) -> None:
    """Add to what Numba knows of a function that of so many float16 it makes one."""
    context = cpu_target.typing_context
    context.refresh()
    for template in context.resolve_value_type(function).templates:
        if hasattr(template, "cases"):
            template.cases = [*template.cases, signature(*[HALF] * (1 + count))]
            break


def _compute_in_float32(function: Any, count: int) -> None:
    """Lower a function of so many float16 to that of float32."""

    def rounded(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        compute = context.get_function(function, signature(*[types.float32] * (1 + count)))
        wide = [context.cast(builder, x, HALF, types.float32) for x in arguments]
        return context.cast(builder, compute(builder, wide), types.float32, HALF)

    _lowered.lower(function, *[HALF] * count)(rounded)


def _round_to_whole(function: Any, name: str) -> None:
    """Lower a rounding to a whole number, which is a float16 as on a GPU, to LLVM's."""

    def rounded(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        intrinsic = builder.module.declare_intrinsic(name, [ir.HalfType()])
        return builder.call(intrinsic, arguments)

    _lowered.lower(function, HALF)(rounded)


def _truth(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    """Numba for GPUs makes code of it that no compiler takes."""
    raise NumbaTypeError("a float16 is no condition: write x != 0")


_lowered.lower(bool, HALF)(_truth)
types.real_domain |= {HALF}  # these two decide what `float(x)` takes
types.number_domain |= {HALF}
for _function in (*UNARY, *FUNCTIONS, *TO_WHOLE):
    _take(_function, 1)
for _function in BINARY:
    _take(_function, 2)
for _function in FUNCTIONS:
    _compute_in_float32(_function, 1)
for _function in (operator.truediv, operator.itruediv):  # Numba's asks whether the divisor is zero
    _compute_in_float32(_function, 2)
for _function, _name in TO_WHOLE.items():
    _round_to_whole(_function, _name)
cpu_target.target_context.install_registry(_lowered)

"""CUDA's atomic operations on NumPy arrays: `cuda.atomic.add` is `atomic_add`, and so on.

Each is `atomic_<name>(array, index, value)`: one indivisible read, change and write of an element,
which returns what was there before. The threads of the CPU that share out a grid's blocks see each
other's, as a GPU's multiprocessors do. What CUDA refuses is refused here, when the kernel is
compiled: an atomic takes int32, uint32, int64 or uint64, some also float32 and float64.

    add sub                  any of them
    max min nanmax nanmin    any; NaN: max and min then change nothing, the other two ignore it
    and_ or_ xor exch        integers
    inc dec                  unsigned: count up (down) and start again beyond `value`
    cas compare_and_swap     integers: write `value` where there was `expected`

Where LLVM has an instruction (`atomicrmw`) it is used. Elsewhere a loop computes the new number
from the old, and writes it unless another thread came first (`cmpxchg`), as CUDA C does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, register_jitable

from ..lean import address_of, fields_of, kinds_of

__all__ = [
    "atomic_add", "atomic_and_", "atomic_cas", "atomic_compare_and_swap", "atomic_dec",
    "atomic_exch", "atomic_inc", "atomic_max", "atomic_min", "atomic_nanmax", "atomic_nanmin",
    "atomic_or_", "atomic_sub", "atomic_xor",
]  # fmt: skip

ORDER = "seq_cst"
UNSIGNED = (types.uint32, types.uint64)
SIGNED = (types.int32, types.int64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*INTEGERS, types.float32, types.float64)

# How an element changes: an instruction, or the new value from a builder, operand and old value.
Change = str | Callable[[Any, Any, Any], Any]


def element_address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of `array[index]`, for a function of an array and an integer or tuple index."""
    of, kind = signature.args[:2]
    array, index = arguments[:2]
    return address_of(context, builder, of, fields_of(context, builder, of, array), kind, index)


def _signature(context: Any, name: str, takes: Any, array: Any, index: Any, *values: Any) -> Any:
    """The types of a call of `cuda.atomic.<name>`; values become what the array holds.

    Raises:
        TypingError: CUDA does not take these types.
    """
    call = f"cuda.atomic.{name}"
    if not isinstance(array, types.Array):
        raise TypingError(f"{call} works on an element of an array, got {array}")
    if array.dtype not in takes:
        allowed = ", ".join(map(str, takes))
        raise TypingError(f"{call} on {array.dtype} elements: CUDA has it for {allowed}")
    if not array.mutable:
        raise TypingError(f"{call} on a read-only array: pass one that can be written to")
    indices = kinds_of(index)
    if len(indices) != array.ndim or not all(isinstance(i, types.Integer) for i in indices):
        raise TypingError(f"{call} takes {array.ndim} whole numbers as index here, got {index}")
    for value in values:
        if context.can_convert(value, array.dtype) is None:
            raise TypingError(f"{call} cannot turn a {value} into a {array.dtype}")
    return array.dtype(array, index, *[array.dtype] * len(values))


def _loop(builder: Any, address: Any, operand: Any, change: Any) -> Any:
    """Change an element, again and again until no other thread did between read and write."""
    number = operand.type
    bits = ir.IntType(32 if number in (ir.FloatType(), ir.IntType(32)) else 64)
    address = builder.bitcast(address, bits.as_pointer())
    seen = cgutils.alloca_once_value(builder, builder.load_atomic(address, ORDER, bits.width // 8))
    attempt, done = (builder.append_basic_block(name) for name in ("attempt", "done"))
    builder.branch(attempt)
    builder.position_at_end(attempt)
    old = builder.load(seen)
    new = builder.bitcast(change(builder, operand, builder.bitcast(old, number)), bits)
    found = builder.cmpxchg(address, old, new, ORDER, ORDER)
    builder.store(builder.extract_value(found, 0), seen)
    builder.cbranch(builder.extract_value(found, 1), done, attempt)
    builder.position_at_end(done)
    return builder.bitcast(builder.load(seen), number)


def _atomic(
    name: str,
    takes: tuple[Any, ...],
    change: Change,
    *,
    unsigned: Change | None = None,
    floating: Change | None = None,
) -> Any:
    """The function `atomic_<name>(array, index, value)`; `change` where no other is given."""

    def atomic(typing_context, array, index, value):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            address, operand = element_address(context, builder, signature, arguments), arguments[2]
            special = unsigned if array.dtype in UNSIGNED else floating
            how = change if array.dtype in SIGNED else special or change
            if isinstance(how, str):
                return builder.atomic_rmw(how, address, operand, ORDER)
            return _loop(builder, address, operand, how)

        return _signature(typing_context, name, takes, array, index, value), generate

    atomic.__name__ = f"atomic_{name}"
    return intrinsic(atomic)


def _where(compare: str) -> Change:
    """The operand where `old <compare> operand`, which NaN never is."""

    def change(builder: Any, operand: Any, old: Any) -> Any:
        return builder.select(builder.fcmp_ordered(compare, old, operand), operand, old)

    return change


def _unless(compare: str) -> Change:
    """The operand unless `old <compare> operand`, which NaN never is; and never a NaN."""

    def change(builder: Any, operand: Any, old: Any) -> Any:
        kept = builder.fcmp_ordered(compare, old, operand)
        nan = builder.fcmp_unordered("uno", operand, operand)
        return builder.select(builder.or_(kept, nan), old, operand)

    return change


def _up(builder: Any, limit: Any, old: Any) -> Any:
    """`old + 1`, and 0 from `limit` on."""
    more = builder.add(old, old.type(1))
    return builder.select(builder.icmp_unsigned("<", old, limit), more, old.type(0))


def _down(builder: Any, limit: Any, old: Any) -> Any:
    """`old - 1`, and `limit` after 0 and from above it."""
    less = builder.sub(old, old.type(1))  # of 0 it is the largest number
    return builder.select(builder.icmp_unsigned("<", less, limit), less, limit)


atomic_add = _atomic("add", NUMBERS, "add", floating="fadd")
atomic_sub = _atomic("sub", NUMBERS, "sub", floating="fsub")
atomic_max = _atomic("max", NUMBERS, "max", unsigned="umax", floating=_where("<"))
atomic_min = _atomic("min", NUMBERS, "min", unsigned="umin", floating=_where(">"))
atomic_nanmax = _atomic("nanmax", NUMBERS, "max", unsigned="umax", floating=_unless(">="))
atomic_nanmin = _atomic("nanmin", NUMBERS, "min", unsigned="umin", floating=_unless("<="))
atomic_and_ = _atomic("and_", INTEGERS, "and")
atomic_or_ = _atomic("or_", INTEGERS, "or")
atomic_xor = _atomic("xor", INTEGERS, "xor")
atomic_exch = _atomic("exch", INTEGERS, "xchg")
atomic_inc = _atomic("inc", UNSIGNED, _up)
atomic_dec = _atomic("dec", UNSIGNED, _down)


@intrinsic
def atomic_cas(typing_context, array, index, expected, value):  # type: ignore[no-untyped-def]
    """Write `value` to `array[index]` if `expected` is there; returns what was there."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = element_address(context, builder, signature, arguments)
        return builder.extract_value(builder.cmpxchg(address, *arguments[2:], ORDER, ORDER), 0)

    signature = _signature(typing_context, "cas", INTEGERS, array, index, expected, value)
    return signature, generate


@register_jitable(forceinline=True)
def atomic_compare_and_swap(array, expected, value):  # type: ignore[no-untyped-def]
    """`atomic_cas` on the first element of a one-dimensional array."""
    return atomic_cas(array, 0, expected, value)

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

Where LLVM has an instruction (`atomicrmw`) it is used. Elsewhere a loop computes the new number from
the old, and writes it unless another thread came first (`cmpxchg`), as CUDA C does it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

__all__ = [
    "atomic_add", "atomic_and_", "atomic_cas", "atomic_compare_and_swap", "atomic_dec",
    "atomic_exch", "atomic_inc", "atomic_max", "atomic_min", "atomic_nanmax", "atomic_nanmin",
    "atomic_or_", "atomic_sub", "atomic_xor", "element_address",
]  # fmt: skip

ORDER = "seq_cst"
UNSIGNED = (types.uint32, types.uint64)
INTEGERS = (types.int32, types.int64, *UNSIGNED)
NUMBERS = (*INTEGERS, types.float32, types.float64)

# From builder, operand and old value to the new value; all have the element's type.
Change = Callable[[Any, Any, Any], Any]
# From context, builder, element type, address and operands to the old value.
Emit = Callable[..., Any]


def element_address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of `array[index]`, for a function of an array and an integer or tuple index."""
    array_type, index_type = signature.args[:2]
    array = make_array(array_type)(context, builder, arguments[0])
    one = isinstance(index_type, types.Integer)
    kinds = (index_type,) if one else tuple(index_type)
    indices = [arguments[1]] if one else cgutils.unpack_tuple(builder, arguments[1], len(kinds))
    indices = [
        context.cast(builder, index, kind, types.intp)
        for index, kind in zip(indices, kinds, strict=True)
    ]
    return cgutils.get_item_pointer(context, builder, array_type, array, indices, wraparound=True)


def _check(typing_context: Any, name: str, takes: Any, array: Any, index: Any, values: Any) -> None:
    """Raise a TypingError for what `cuda.atomic.<name>` does not take."""
    call = f"cuda.atomic.{name}"
    if not isinstance(array, types.Array):
        raise TypingError(f"{call} works on an element of an array, got {array}")
    if array.dtype not in takes:
        allowed = ", ".join(map(str, takes))
        raise TypingError(f"{call} on a {array.dtype} array; CUDA has it for {allowed}")
    if not array.mutable:
        raise TypingError(f"{call} on an array that is read-only; pass one that can be written to")
    indices = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(indices) != array.ndim or not all(isinstance(i, types.Integer) for i in indices):
        raise TypingError(f"{call} needs {array.ndim} whole numbers as its index, got {index}")
    for value in values:
        if typing_context.can_convert(value, array.dtype) is None:
            raise TypingError(f"{call} cannot make a {array.dtype} of {value}")


def _instruction(signed: str, unsigned: str = "", floating: str = "") -> Emit:
    """One LLVM instruction, by kind of number."""

    def emit(context: Any, builder: Any, kind: Any, address: Any, operand: Any) -> Any:
        floats = isinstance(kind, types.Float)
        name = floating if floats else signed if kind.signed else unsigned or signed
        return builder.atomic_rmw(name, address, operand, ORDER)

    return emit


def _loop(change: Change) -> Emit:
    """Change the element until no other thread did so between the look and the write."""

    def emit(context: Any, builder: Any, kind: Any, address: Any, operand: Any) -> Any:
        number = context.get_value_type(kind)
        bits = ir.IntType(kind.bitwidth)
        address = builder.bitcast(address, bits.as_pointer())
        seen = cgutils.alloca_once(builder, bits)
        first = builder.load_atomic(address, "monotonic", kind.bitwidth // 8)
        builder.store(first, seen)
        again, done = (builder.append_basic_block(name) for name in ("atomic", "atomic.done"))
        builder.branch(again)
        builder.position_at_end(again)
        expected = builder.load(seen)
        new = change(builder, operand, builder.bitcast(expected, number))
        result = builder.cmpxchg(address, expected, builder.bitcast(new, bits), ORDER, ORDER)
        builder.store(builder.extract_value(result, 0), seen)
        builder.cbranch(builder.extract_value(result, 1), done, again)
        builder.position_at_end(done)
        return builder.bitcast(builder.load(seen), number)

    return emit


def _by_kind(integers: Emit, floats: Emit) -> Emit:
    def emit(context: Any, builder: Any, kind: Any, *rest: Any) -> Any:
        return (floats if isinstance(kind, types.Float) else integers)(context, builder, kind, *rest)

    return emit


def _where(comparison: str, *, ordered: bool) -> Change:
    """The operand where `old <comparison> operand`; NaN compares false if ordered, else true."""

    def change(builder: Any, operand: Any, old: Any) -> Any:
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        takes = compare(comparison, old, operand)
        if not ordered:  # a NaN in memory gives way, a NaN that comes does not enter
            takes = builder.and_(takes, builder.fcmp_ordered("ord", operand, operand))
        return builder.select(takes, operand, old)

    return change


def _up(builder: Any, limit: Any, old: Any) -> Any:
    """`old + 1`, and 0 after `limit`."""
    below = builder.icmp_unsigned("<", old, limit)
    return builder.select(below, builder.add(old, old.type(1)), old.type(0))


def _down(builder: Any, limit: Any, old: Any) -> Any:
    """`old - 1`, and `limit` after 0 or from above `limit`."""
    less = builder.sub(old, old.type(1))  # 0 becomes the largest number there is
    return builder.select(builder.icmp_unsigned("<", less, limit), less, limit)


def _compare_and_swap(
    context: Any, builder: Any, kind: Any, address: Any, expected: Any, value: Any
) -> Any:
    return builder.extract_value(builder.cmpxchg(address, expected, value, ORDER, ORDER), 0)


def _signature(
    typing_context: Any, name: str, takes: Any, array: Any, index: Any, *values: Any
) -> Any:
    """What Numba is to convert the arguments to: values to the element's type."""
    _check(typing_context, name, takes, array, index, values)
    return array.dtype(array, index, *[array.dtype] * len(values))


def _generator(emit: Emit) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = element_address(context, builder, signature, arguments)
        kind = signature.args[0].dtype
        return emit(context, builder, kind, address, *arguments[2:])

    return generate


def _atomic(name: str, takes: tuple[Any, ...], emit: Emit) -> Any:
    """The function `atomic_<name>(array, index, value)`."""

    def atomic(typing_context, array, index, value):  # type: ignore[no-untyped-def]
        return _signature(typing_context, name, takes, array, index, value), _generator(emit)

    atomic.__name__ = f"atomic_{name}"
    return intrinsic(atomic)


_maximum = _instruction("max", "umax")
_minimum = _instruction("min", "umin")
_where_less, _where_more = (_loop(_where(sign, ordered=True)) for sign in "<>")
_unless_more, _unless_less = (_loop(_where(sign, ordered=False)) for sign in "<>")

atomic_add = _atomic("add", NUMBERS, _instruction("add", floating="fadd"))
atomic_sub = _atomic("sub", NUMBERS, _instruction("sub", floating="fsub"))
atomic_max = _atomic("max", NUMBERS, _by_kind(_maximum, _where_less))
atomic_min = _atomic("min", NUMBERS, _by_kind(_minimum, _where_more))
atomic_nanmax = _atomic("nanmax", NUMBERS, _by_kind(_maximum, _unless_more))
atomic_nanmin = _atomic("nanmin", NUMBERS, _by_kind(_minimum, _unless_less))
atomic_and_ = _atomic("and_", INTEGERS, _instruction("and"))
atomic_or_ = _atomic("or_", INTEGERS, _instruction("or"))
atomic_xor = _atomic("xor", INTEGERS, _instruction("xor"))
atomic_exch = _atomic("exch", INTEGERS, _instruction("xchg"))
atomic_inc = _atomic("inc", UNSIGNED, _loop(_up))
atomic_dec = _atomic("dec", UNSIGNED, _loop(_down))


@intrinsic
def atomic_cas(typing_context, array, index, expected, value):  # type: ignore[no-untyped-def]
    """Write `value` to `array[index]` if `expected` is there; returns what was there."""
    signature = _signature(typing_context, "cas", INTEGERS, array, index, expected, value)
    return signature, _generator(_compare_and_swap)


@intrinsic
def atomic_compare_and_swap(typing_context, array, expected, value):  # type: ignore[no-untyped-def]
    """`atomic_cas` on the first element of an array of one dimension."""
    _check(typing_context, "compare_and_swap", INTEGERS, array, types.intp, (expected, value))
    kind = array.dtype

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = element_address(
            context, builder, kind(array, types.intp), [arguments[0], context.get_constant(types.intp, 0)]
        )
        return _compare_and_swap(context, builder, kind, address, *arguments[1:])

    return kind(array, kind, kind), generate

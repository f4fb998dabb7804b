"""Step 9, in fewer words: elements of arrays and loops over ranges, in a third of the instructions.

A kernel is made of these two. Numba writes each of them by the book: for `a[i, j] += b[i]` it
copies both arrays' descriptions (address, shape, strides), takes them apart, and puts the indices
into a tuple first; a `range` becomes a structure, its iterator another, each of its numbers a pair.
LLVM takes all that out again, but somebody has to write it, and LLVM to read it. What stands here
is what is left in the end: an address and a load; a number, and how many are to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import pointer_add
from numba.core.ir import Expr, Var
from numba.core.lowering import Lower
from numba.cpython.slicing import fix_index
from numba.np.arrayobj import load_item, store_item

Field = Callable[..., Any]  # a part of an array's description, by its name and axis


class _Loop(NamedTuple):
    """Where a loop keeps its next number, and how many are left; and its step."""

    number: Any
    left: Any
    step: Any


class LeanLower(Lower):
    """Numba's lowering, but for elements, loops over a `range`, and what variables refer to.

    Numba lets go of what a variable refers to when it is assigned anew or has been read for the
    last time. In a kernel nothing is referred to, so neither writes anything but the value.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loops: dict[str, _Loop] = {}  # by the names of their iterators, which have no value

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Numba's hook: write a variable."""
        if argidx is not None:
            super().storevar(value, name, argidx)
        elif name not in self._loops:
            self._alloca_var(name, self.typeof(name))
            if name in self._singly_assigned_vars:
                self._blk_local_varmap[name] = value
            else:
                self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        """Numba's hook: a variable is not read from here on."""
        if name not in self._loops:
            self._alloca_var(name, self.typeof(name))  # before a loop may stand what it assigns
            if name not in self._blk_local_varmap:
                self._singly_assigned_vars.discard(name)

    def lower_assign(self, kind: Any, statement: Any) -> Any:
        """Numba's hook: the value of `target = value`."""
        value, loop = statement.value, None
        if isinstance(value, Var):
            loop = self._loops.get(value.name)
        elif isinstance(value, Expr) and value.op == "getiter":
            loop = self._begun(value.value.name)
        if loop is None:
            return super().lower_assign(kind, statement)
        self._loops[statement.target.name] = loop
        return None

    def lower_expr(self, kind: Any, expression: Any) -> Any:
        """Numba's hook: the value of an expression."""
        op, builder = expression.op, self.builder
        if op == "call" and _is_range(self.typeof(expression.func.name)):
            wanted = self.fndesc.calltypes[expression].args
            given = [self._cast_var(*each) for each in zip(expression.args, wanted, strict=True)]
            return self._tuple(kind, _range_of(*given))
        if op == "iternext" and expression.value.name in self._loops:
            return self._tuple(kind, self._next(self._loops[expression.value.name]))
        if op in ("pair_first", "pair_second"):
            return items_of(builder, self.loadvar(expression.value.name), 2)[op == "pair_second"]
        return super().lower_expr(kind, expression)

    def _begun(self, iterated: str) -> _Loop | None:
        """A loop over a range whose step is known; None over anything else."""
        if not isinstance(self.typeof(iterated), types.RangeType):
            return None
        builder = self.builder
        start, stop, step = items_of(builder, self.loadvar(iterated), 3)
        if not isinstance(step, ir.Constant) or not step.constant:
            return None
        count = builder.sub(stop, start)
        if step.constant != 1:
            rest = step.type(step.constant - (1 if step.constant > 0 else -1))
            count = builder.sdiv(builder.add(count, rest), step)
        places = self._room(step.type), self._room(step.type)
        for value, place in zip((start, count), places, strict=True):
            builder.store(value, place)
        return _Loop(*places, step)

    def _next(self, loop: _Loop) -> tuple[Any, Any]:
        """A loop's next number, and whether there is one.

        It is branched as Numba does it. With no branch, LLVM made lanes of fewer loops: the delta
        rule took four to eleven times as long.
        """
        builder, place = self.builder, self._room(loop.step.type)
        left = builder.load(loop.left)
        more = builder.icmp_signed(">", left, left.type(0))
        with builder.if_then(more):
            number = builder.load(loop.number)
            builder.store(number, place)
            builder.store(builder.sub(left, left.type(1), flags=["nsw"]), loop.left)
            builder.store(builder.add(number, loop.step), loop.number)
        return builder.load(place), more

    def _room(self, kind: Any) -> Any:
        with self.builder.goto_entry_block():
            return self.builder.alloca(kind)

    def _tuple(self, kind: Any, items: Iterable[Any]) -> Any:
        value = ir.Constant(self.context.get_value_type(kind), ir.Undefined)
        for place, item in enumerate(items):
            value = self.builder.insert_value(value, item, place)
        return value

    def lower_getitem(self, kind: Any, expression: Any, array: Any, index: Any, call: Any) -> Any:
        """Numba's hook: the value of `array[index]`."""
        address = self._address(array.name, index.name)
        if address is None:
            return super().lower_getitem(kind, expression, array, index, call)
        of = self.typeof(array.name)
        value = load_item(self.context, self.builder, of, address)
        return self.context.cast(self.builder, value, of.dtype, kind)

    def lower_setitem(self, array: Any, index: Any, value: Any, call: Any) -> Any:
        """Numba's hook: `array[index] = value`."""
        address = self._address(array.name, index.name)
        if address is None:
            return super().lower_setitem(array, index, value, call)
        of, kind = self.typeof(array.name), self.typeof(value.name)
        number = self.context.cast(self.builder, self.loadvar(value.name), kind, of.dtype)
        return store_item(self.context, self.builder, of, number, address)

    def _address(self, array: str, index: str) -> Any:
        """The address of a single number in an array; None where something else is meant."""
        of, kind = self.typeof(array), self.typeof(index)
        kinds = kinds_of(kind)
        numbers = all(isinstance(each, types.Integer) for each in kinds)
        if type(of) is not types.Array or not numbers or not 0 < len(kinds) == of.ndim:
            return None
        if not isinstance(of.dtype, types.Number | types.Boolean):
            return None
        if array in self._blk_local_varmap:
            field = fields_of(self.context, self.builder, of, self._blk_local_varmap[array])
        else:
            field = self._fields_in_memory(of, self.getvar(array))
        return address_of(self.context, self.builder, of, field, kind, self.loadvar(index))

    def _fields_in_memory(self, of: types.Array, place: Any) -> Field:
        """The parts of a description, each read alone."""
        model, builder = self.context.data_model_manager[of], self.builder

        def field(name: str, *axis: int) -> Any:
            path = 0, model.get_field_position(name), *axis
            steps = [ir.Constant(ir.IntType(32), step) for step in path]
            return builder.load(builder.gep(place, steps, inbounds=True))

        return field


def fields_of(context: Any, builder: Any, of: types.Array, array: Any) -> Field:
    """The parts of an array's description."""
    model = context.data_model_manager[of]
    return lambda name, *axis: builder.extract_value(array, (model.get_field_position(name), *axis))


def address_of(
    context: Any, builder: Any, of: types.Array, field: Field, kind: Any, index: Any
) -> Any:
    """The address of `array[index]`, for an index of one whole number for each axis.

    Args:
        context: Numba's.
        builder: LLVM's.
        of: the array's type.
        field: the array's address, `field("data")`, or `field("shape", axis)`, or of its strides.
        kind: the type of the index: an integer's, or a tuple's of integers.
        index: the index; counted from the end where it is negative.
    """
    kinds = kinds_of(kind)
    many = isinstance(kind, types.BaseTuple)
    values = items_of(builder, index, len(kinds)) if many else [index]
    shape = [field("shape", axis) for axis in range(of.ndim)]
    places = []
    for value, own, size in zip(values, kinds, shape, strict=True):
        place = context.cast(builder, value, own, types.intp if own.signed else types.uintp)
        places.append(fix_index(builder, place, size) if own.signed else place)
    if of.layout != "C":
        steps = [field("strides", axis) for axis in range(of.ndim)]
        bytes_on = reduce(builder.add, map(builder.mul, steps, places))
        return pointer_add(builder, field("data"), bytes_on)
    terms = [
        builder.mul(place, reduce(builder.mul, shape[axis:]))
        for axis, place in enumerate(places[:-1], start=1)
    ]
    return builder.gep(field("data"), [reduce(builder.add, [*terms, places[-1]])])


def kinds_of(index: Any) -> Sequence[Any]:
    """The types of an index's parts."""
    return tuple(index) if isinstance(index, types.BaseTuple) else (index,)


def items_of(builder: Any, value: Any, count: int) -> list[Any]:
    """The items of a tuple: as they were put in, where that can be seen."""
    items: dict[int, Any] = {}
    while isinstance(value, ir.InsertValue):
        items.setdefault(value.indices[0], value.value)
        value = value.aggregate
    return [
        items[place] if place in items else builder.extract_value(value, place)
        for place in range(count)
    ]


def _is_range(kind: Any) -> bool:
    return isinstance(kind, types.Function) and kind.typing_key is range


def _range_of(*given: Any) -> tuple[Any, ...]:
    """Start, stop and step of `range(*given)`."""
    zero, one = given[0].type(0), given[0].type(1)
    start = () if len(given) > 1 else (zero,)
    step = () if len(given) > 2 else (one,)
    return *start, *given, *step

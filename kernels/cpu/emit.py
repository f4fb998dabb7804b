"""Step 8: write the regions down as a Python module that Numba compiles.

The module holds the constants, the device functions, and one function over a range of blocks, in
which every lane region is a loop over the block's threads. It is meant to be read:
`kernel.cpu_source()` prints it.
"""

from __future__ import annotations

import ast
import copy
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from math import gcd, lcm, prod
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from . import ahead
from .canonical import AXES, WARP, Array, Shape3, Whole, is_barrier
from .compiler import LANES, VECTOR_REGISTERS
from .paths import indices_of
from .regions import (
    Barrier,
    Branch,
    Lanes,
    Loop,
    Meeting,
    Node,
    Regions,
    Scalar,
    Strip,
    all_lanes,
    is_cheap,
    needs,
    statements,
)
from .source import dtype_text
from .text import Text, begun, function_name, signature
from .trees import Names, call, name, named, names_in, negated, parse, stores, walk
from .uniformity import (
    THREADS,
    base_name,
    exposed,
    is_shape,
    reads,
    sum_of,
    written_in,
)

LONG_ROW = VECTOR_REGISTERS[1]  # threads: a shorter row is best as a loop of constant length
ABREAST = 8  # rows of threads at most, that take the turns of a loop together
FAR_APART = 16  # threads: nearer ones run together, as lanes under a mask


def lane_axes(block: Shape3) -> str:
    """The axes that the threads of a block spread over, outermost first."""
    return "".join(axis for axis in "zyx" if block[AXES.index(axis)] > 1) or "x"


class Few(NamedTuple):
    """A condition that neighbours in a row pass, or the first and one of so many: no others."""

    conditions: list[ast.expr]  # that all of the row must pass besides
    starts: list[ast.expr]  # no thread before the largest passes
    ends: list[ast.expr]  # nor from the smallest on
    steps: list[int]  # each divides the places of the threads that pass
    parts: list[ast.expr]  # all of it

    @property
    def step(self) -> int:
        """From one thread that passes to the next."""
        return lcm(*self.steps)


ALL = Few([], [], [], [], [])  # no condition


class Body:
    """Writes the regions of a kernel as the body of a function."""

    parameters: tuple[str, ...] = ()  # besides the kernel's own

    def __init__(self, regions: Regions, slots: Mapping[str, types.Type]) -> None:
        """`slots` gives each slot's Numba type."""
        self.text = Text()
        self.regions, self.types = regions, slots
        self.form, self.uniformity = regions.form, regions.uniformity
        self.threads = prod(self.form.block)
        *self.outer_axes, self.row_axis = list(lane_axes(self.form.block))
        self.row_length = self.form.block[AXES.index(self.row_axis)]
        axes = [*self.outer_axes, self.row_axis]
        self.lane = ", ".join(f"thread_{axis}" for axis in axes)
        self.lane_shape = ", ".join(f"BLOCK_{axis.upper()}" for axis in axes)
        self.abreast: str | None = None  # the loop over rows that take each turn together
        self.span = "0", f"BLOCK_{self.row_axis.upper()}"  # of a row: those that run together
        self.loops: list[ast.For] = []
        self.names = Names(regions.names)
        self.slot_names = {slot: self.names.fresh(f"{slot}_of") for slot in sorted(regions.slots)}
        self.asked: frozenset[str] = frozenset()  # indices that a condition says not to be negative
        self.rewriter = Rewriter(self)

    def module(self, runtime: str, fastmath: bool) -> str:
        """Write the module to compile."""
        self.text = begun(self.form, runtime, f"@device(fastmath={fastmath})")
        self.text.line(f"\n\n@kernel(fastmath={fastmath})")
        given = ["first_block", "last_block", *signature(self.form), *self.parameters]
        with self.text.block(f"def {function_name(self.form.source)}({', '.join(given)}):"):
            self.write()
        return str(self.text)

    @staticmethod
    def extra_types(
        kinds: tuple[types.Type, ...], shadowed: Mapping[int, bool]
    ) -> tuple[types.Type, ...]:
        """The types of the function's arguments besides the kernel's own."""
        return ()

    def write(self) -> None:
        """Write the function's body."""
        for array in self.form.arrays.values():
            self.declare(array)
        for slot, array_name in self.slot_names.items():
            kind = dtype_text(self.types[slot])
            shape, part = self.slot_shape(slot), ""
            if slot in self.regions.shown:  # with a warp to spare on either side
                shape, part = str(self.threads + 2 * WARP), f"[{WARP}:{self.threads + WARP}]"
            self.text.line(f"{array_name} = stack({shape}, {kind}){part}")
        with self.text.block("for block in range(first_block, last_block):"):
            self.text.line("block_x = block % grid_x")
            self.text.line("block_y = block // grid_x % grid_y")
            self.text.line("block_z = block // (grid_x * grid_y)")
            self.start()
            self.nodes(self.regions.nodes)
        self.text.line("return 0")

    def start(self) -> None:
        """What a block begins with."""

    def slot_shape(self, slot: str) -> str:
        """The shape of the array that keeps a slot."""
        if slot in self.regions.row_slots:
            return f"BLOCK_{self.row_axis.upper()}"
        return f"({self.lane_shape},)"

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        if array.is_dynamic:
            if not any(line.lstrip().startswith("dynamic_bytes =") for line in self.text.lines):
                shape = f"({self.form.shared_bytes},)"
                self.text.line(f"dynamic_bytes = stack({shape}, numba.uint8)  # shared")
            self.text.line(f"{array.name} = reinterpret(dynamic_bytes, {array.dtype})")
            return
        sizes = [*map(str, array.shape), *([self.lane_shape] if array.space == "local" else [])]
        self.text.line(
            f"{array.name} = stack(({', '.join(sizes)},), {array.dtype})  # {array.space}"
        )

    def nodes(self, nodes: list[Node]) -> None:
        """Write a tree down; at its end, ask what was noted."""
        for node in nodes:
            match node:
                case Scalar(statement):
                    self.scalar(statement)
                case Loop(ast.For(target=target, iter=iterator) as loop, body):
                    header = f"for {ast.unparse(target)} in {self.source(iterator)}:"
                    self.loops.append(loop)
                    self.compound(header, body)
                    self.loops.pop()
                case Loop(ast.While(test=test), body):
                    with self.text.block(f"while {self.source(test)}:"):
                        self.compound_body(body)
                        self.turn()
                case Branch(test, body, orelse):
                    self.compound(f"if {self.source(test)}:", body)
                    if orelse:
                        self.compound("else:", orelse)
                case Barrier():
                    self.barrier(node)
                case Meeting(mask, orders_memory=True):
                    self.meeting(mask)
                case Strip(body):
                    self.strip()
                    depth = self.text.depth
                    for header in self.rows_of(body):
                        self.text.line(header)
                        self.text.depth += 1
                    self.whole_or_not(body)
                    self.text.depth, self.abreast = depth, None
                case Lanes() if self.abreast:
                    with self.text.block(self.abreast):
                        self.lanes(node)
                case Lanes():
                    self.lanes(node)

    def strip(self) -> None:
        """All rows of threads run a stretch, one after the other."""

    def rows_of(self, body: list[Node]) -> Iterator[str]:
        """The loops over the rows of threads that run a strip, outermost first.

        The innermost goes by as many rows as are abreast in each turn of the strip's loop.
        """
        *axes, axis = self.outer_axes or [""]
        yield from (f"for thread_{axis} in range(BLOCK_{axis.upper()}):" for axis in axes)
        rows = self.rows_abreast(body)
        if rows > 1:
            first = self.names.fresh("row")
            yield f"for {first} in range(0, BLOCK_{axis.upper()}, {rows}):"
            self.abreast = f"for thread_{axis} in range({first}, {first} + {rows}):"
        elif axis:
            yield f"for thread_{axis} in range(BLOCK_{axis.upper()}):"

    def rows_abreast(self, body: list[Node]) -> int:
        """How many rows of threads take each turn of a loop that adds up, one after the other.

        A sum waits for itself from turn to turn, and not for those of other rows; and what is
        loaded for one row may serve all: `total += a[y, k] * b[k, x]` has one b for them. As many
        as have their sums in registers.
        """
        match body:
            case [Loop(ast.For(), inside) as loop] if self.outer_axes and self.adds_up(loop):
                sums = stores(statements(inside)).keys() & self.regions.slots
            case _:
                return 1
        count, bytes_of_one = VECTOR_REGISTERS
        widths = (as_dtype(self.types[slot]).itemsize for slot in sums)
        vectors = sum(-(-self.row_length * width // bytes_of_one) for width in widths)
        rows = 1
        while 2 * rows <= ABREAST and 2 * rows * vectors <= count * 3 // 4:
            rows *= 2
        return gcd(rows, self.form.block[AXES.index(self.outer_axes[-1])])

    def adds_up(self, loop: Loop) -> bool:
        """Whether all threads only do arithmetic in a loop, for slots that each row has for itself.

        What more there is LLVM might leave as a loop over the rows, with the sums in memory.
        """
        body, slots = statements(loop.body), self.regions.slots
        used = named(body).keys()
        local = {array.name for array in self.form.arrays.values() if array.space == "local"}
        own = slots - self.regions.row_slots - self.regions.shown
        return (
            all(isinstance(node, Lanes) for node in loop.body)
            and all(is_arithmetic(statement) for statement in body)
            and bool(stores(body).keys() & slots) and used & slots <= own and not used & local
            and self.running(loop) == self.row_length
        )  # fmt: skip

    def whole_or_not(self, body: list[Node]) -> None:
        """A strip for a row of threads: under its mask, and before, if it is short, without.

        The latter is for rows of which all threads pass the guard, as most do.
        """
        mask, few = self.guard_of_all(body)
        if mask:
            test = self.all_pass(few, *self.span)
            with self.text.block(f"if {test}:"), self.where(few.parts, statements(body)):
                self.stretches(without(body, mask))
            with self.text.block("else:"):
                self.stretches(body)
        else:
            self.stretches(body)

    def guard_of_all(self, body: list[Node]) -> tuple[str | None, Few]:
        """The mask of all that a short row does, if it tells which threads pass, and what it is."""
        masks = {x.mask for x in all_lanes(body) if self.without_dead_definitions(x.body)}
        mask = masks.pop() if len(masks) == 1 else None
        few = self.few(name(mask)) if mask and self.is_short and not self.abreast else None
        if not few or few.steps or any(self.most(end) < self.row_length for end in few.ends):
            return None, ALL
        asked = set[str]().union(*map(names_in, [*few.conditions, *few.starts, *few.ends]))
        return (None, ALL) if asked & stores(statements(body)).keys() else (mask, few)

    def all_pass(self, few: Few, first: str, last: str) -> str:
        """Whether all threads of a part of a row pass a condition."""
        starts = (ast.Compare(start, [ast.LtE()], [parse(first)]) for start in few.starts)
        ends = (ast.Compare(parse(last), [ast.LtE()], [end]) for end in few.ends)
        return self.source(ast.BoolOp(ast.And(), [*few.conditions, *starts, *ends]))

    def stretches(self, body: list[Node]) -> None:
        """A strip, cut where another number of threads goes on; what none runs stays along."""
        counts = [self.running(node) for node in body]
        first = next(filter(None, counts), self.row_length)
        known = itertools.accumulate(counts, lambda before, own: own or before, initial=first)
        pairs = zip(itertools.islice(known, 1, None), body, strict=True)
        for count, part in itertools.groupby(pairs, itemgetter(0)):
            self.in_pieces([node for _, node in part], count)

    def in_pieces(self, body: list[Node], count: int) -> None:
        """A stretch that so many threads of a row run, for as many at a time as fit registers."""
        piece = self.piece(body, count)
        if piece == count:
            self.compound_body(body)
            return
        row, first = self.span, self.names.fresh("piece")
        self.span = first, f"{first} + {piece}"
        end = row[1] if count == self.row_length else count
        with self.text.block(f"for {first} in range(0, {end}, {piece}):"):
            self.compound_body(body)
        self.span = row

    def piece(self, body: list[Node], row: int) -> int:
        """How many of the threads of a row that run a stretch do so at a time.

        So many that what their loops hold of small local arrays fits the processor's registers: a
        vector of each element, at least. Long arrays are in memory in any case.
        """
        piece, (count, bytes_of_one) = row, VECTOR_REGISTERS
        room = count * 3 // 4  # the rest is for what is added up
        loops = statements([node for node in body if isinstance(node, Loop)])
        held = self.held(loops, room)
        widths = {a: as_dtype(self.form.kinds[a].dtype).itemsize for a in held}
        needed = sum(held[a] * width for a, width in widths.items())
        vector = max(1, bytes_of_one // min(widths.values(), default=bytes_of_one))
        while piece * needed > room * bytes_of_one and piece > vector:
            piece //= 2
        return piece if row % piece == 0 else row

    def held(self, loops: list[ast.stmt], room: int) -> dict[str, int]:
        """How many elements of each local array loops hold, where there is room for so many.

        Those that a loop adds up; where none does, the whole array.
        """
        added: defaultdict[tuple[str, ast.stmt | None], dict[str, int]] = defaultdict(dict)
        for array, access, around in self.accesses(loops):
            loop, elements = self.met(access, around)
            added[array, loop][ast.unparse(access)] = elements
        most: dict[str, int] = {}
        for (array, loop), elements_of in added.items():
            count = min(sum(elements_of.values()), prod(self.form.arrays[array].shape))
            most[array] = max(most.get(array, 0), count if loop and count <= room else 0)
        found = {a: count or prod(self.form.arrays[a].shape) for a, count in most.items()}
        return {array: count for array, count in found.items() if count <= room}

    def accesses(
        self, body: list[ast.stmt], around: tuple[ast.stmt, ...] = ()
    ) -> Iterator[tuple[str, ast.Subscript, tuple[ast.stmt, ...]]]:
        """Each element of a local array that statements name, and the loops around it."""
        for statement in body:
            match statement:
                case ast.For(iter=head, body=inside) | ast.While(test=head, body=inside):
                    yield from self.accesses(inside, (*around, statement))
                case ast.If(head, then, otherwise):
                    yield from self.accesses([*then, *otherwise], around)
                case head:
                    pass
            for node in ast.walk(head):
                array = self.form.arrays.get(base_name(node) or "")
                if isinstance(node, ast.Subscript) and array and array.space == "local":
                    yield array.name, node, around

    def met(self, access: ast.Subscript, around: Sequence[ast.stmt]) -> tuple[ast.stmt | None, int]:
        """The innermost loop that meets the same elements in each turn, and how many it meets.

        That is the one that adds up: its turn is in no index. None, where each is met once.
        """
        used = names_in(ahead.expanded(access.slice, self.regions.recomputed))
        elements, most = 1, sys.maxsize
        for loop in reversed(around):
            match loop:
                case ast.For(ast.Name(turn), ast.Call(args=bounds)) if turn in used:
                    known = [n for bound in bounds if (n := self.known(bound)) is not None]
                    elements *= len(range(*known)) if len(known) == len(bounds) else most
                    used.remove(turn)
                case ast.For(body=body) | ast.While(body=body) if used & stores(body).keys():
                    elements = most  # of an index that is made in there, who knows
                case _:
                    return loop, elements
        return None, elements

    def turn(self) -> None:
        """A turn of a `while` at block level ends."""

    def scalar(self, statement: ast.stmt) -> None:
        """A statement on uniform values."""
        self.text.statements(self.rewrite(statement))

    def barrier(self, node: Barrier) -> None:
        """Under a mask, go on only if all threads are at this barrier, or none."""
        if node.mask:
            all_barriers = list(filter(is_barrier, walk(self.form.body)))
            reached, number = self.slot_names[node.mask], all_barriers.index(node.statement)
            with self.text.block(f"if block_parts({reached}):"):
                self.text.line(f"return divergence(block, {number}, {reached})")

    def meeting(self, mask: str | None) -> None:
        """The threads of a warp meet: when all have run the region before, they have."""

    def compound(self, header: str, body: list[Node]) -> None:
        """A compound statement at block level."""
        with self.text.block(header):
            self.compound_body(body)

    def compound_body(self, body: list[Node]) -> None:
        """The body of a compound statement."""
        before = len(self.text.lines)
        self.nodes(body)
        if len(self.text.lines) == before:
            self.text.line("pass")

    def of(self, slot: str) -> str:
        """Where a thread's slot is."""
        thread = f"thread_{self.row_axis}" if slot in self.regions.row_slots else self.lane
        if slot in self.regions.shown:
            thread = ast.unparse(self.form.linear)
        return f"{self.slot_names[slot]}[{thread}]"

    def lanes(self, region: Lanes) -> None:
        """Loops over the threads: first those few who make what nobody else needs, then all."""
        body = self.stored_once(region.body)
        alone, few = self.for_few(body, region.mask)
        rest = body[len(alone) :]
        first, last = self.span
        few = few if first == "0" else f"min({last}, {few})"
        for part, end in (alone, few), (rest, last):
            if body := self.without_dead_definitions(part):
                self.read_ahead(body)
                self.loop(region, body, end)

    def stored_once(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """`tile[i] = 0; if test: tile[i] = x[j]` as `tile[i] = x[j] if test else 0`.

        A store under a mask takes some processors twenty times as long as one of a whole vector.
        What stands between may be the same of another tile.
        """
        new: list[ast.stmt] = []
        for statement in body:
            match statement:
                case ast.If(test, [ast.Assign([ast.Subscript() as to], value)], []):
                    first = self.stored_before(new, to, test, value)
                    if first is not None:
                        new.remove(first)
                        pair = self.as_stored(to, value), self.as_stored(to, first.value)
                        choice = ast.copy_location(ast.IfExp(test, *pair), value)
                        statement = ast.copy_location(ast.Assign([to], choice), statement)
            new.append(statement)
        return new

    def stored_before(
        self, body: list[ast.stmt], to: ast.Subscript, *others: ast.expr
    ) -> ast.Assign | None:
        """The last store to the same element of an array of the kernel, if it may as well be later.

        Nothing reads the array until then, and nothing changes what the store is made of.
        """
        array = base_name(to) or ""
        if array not in self.form.arrays:
            return None
        passed: list[ast.stmt] = []
        for statement in reversed(body):
            match statement:
                case ast.Assign([ast.Subscript() as same], value) if ast.dump(to) == ast.dump(same):
                    made_of = names_in(to) | names_in(value)
                    changed = stores(passed).keys() & made_of
                    read = passed and (made_of - {array}) & self.form.ndims.keys()
                    written = written_in(ast.walk(statement), self.form.source) - {array}
                    alone = self.leaves_alone(array, *indices_of(to), value, *others)
                    return statement if alone and not (changed or read or written) else None
            if not self.leaves_alone(array, statement):
                return None
            passed.append(statement)
        return None

    def leaves_alone(self, array: str, *nodes: ast.AST) -> bool:
        """Whether these surely leave alone an array of the kernel, which holds numbers."""
        arrays, kinds, plain = self.form.arrays, self.form.kinds, (types.Number, types.Boolean)
        one = {n for n in arrays if n == array or arrays[n].is_dynamic & arrays[array].is_dynamic}
        named = set[str]().union(*map(names_in, nodes))
        views = named - arrays.keys() - set(self.form.parameters)
        numbers = all(isinstance(kinds.get(each, types.int64), plain) for each in views)
        return isinstance(kinds[array].dtype, plain) and numbers and named.isdisjoint(one)

    def as_stored(self, to: ast.Subscript, value: ast.expr) -> ast.expr:
        """What a store makes of a value, if another beside it could make it a float before."""
        kind = self.form.kinds[base_name(to) or ""].dtype
        if isinstance(kind, types.Float | types.Complex):
            return value
        return ast.Call(parse(dtype_text(kind)), [value], [])

    def loop(self, region: Lanes, body: list[ast.stmt], last: str) -> None:
        """The loop over the threads; or two, of those that pass a guard and of the others.

        A short row has one of both, of constant length: for all threads of a row that pass, or as
        the text is. So has a longer one, if not the first threads pass, but some in between.
        """
        depth, first = self.text.depth, self.span[0]
        body, mask, few = self.guarded(body, region.mask)
        for condition in few.conditions:
            self.text.line(f"if {self.source(condition)}:")
            self.text.depth += 1
        if few.starts:
            first = f"max({', '.join([first, *map(self.source, few.starts)])})"
        if few.ends:
            last = f"min({', '.join([last, *map(self.source, few.ends)])})"
        guard = None if mask or few.step > 1 else self.guard(body)
        with self.where(few.parts, body):
            if guard:
                self.both(region, body, first, last, *guard)
            else:
                self.turns(region, body, mask, first, last, few.step)
        self.text.depth = depth

    def both(
        self, region: Lanes, body: list[ast.stmt], first: str, last: str, test: str, few: Few
    ) -> None:
        """Two loops: of threads that pass a guard, and of others."""
        always, never = decided(body, test, "always"), decided(body, test, "never")
        if self.is_short or few.starts:
            with self.text.block(f"if {self.all_pass(few, first, last)}:"):
                self.turns(region, always, None, first, last)
            with self.text.block("else:"):
                self.turns(region, body, None, first, last)
        else:
            (ends,) = few.ends
            if few.conditions:
                ends = ast.IfExp(ast.BoolOp(ast.And(), few.conditions), ends, ast.Constant(0))
            end = self.source(ends)
            self.turns(region, always, None, first, f"min({last}, {end})")
            self.turns(region, never, None, f"max({first}, {end})", last)

    @contextmanager
    def where(self, tests: list[ast.expr], body: Iterable[ast.AST]) -> Iterator[None]:
        """Conditions hold in what is written, whose statements are the body."""
        before, changed = self.asked, stores(body).keys()
        parts = [part for test in tests for part in self.conjuncts(test)]
        numbers = filter(None, map(self.not_negative, parts))
        steady = (n for n in numbers if is_cheap(n) and not names_in(n) & changed)
        self.asked |= set(map(ast.unparse, steady))
        yield
        self.asked = before

    def not_negative(self, test: ast.expr) -> ast.expr | None:
        """The number of which a comparison says that it is not negative."""
        match test:
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Lt() | ast.LtE()], [right])):
                more, less = left, right
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Gt() | ast.GtE()], [right])):
                more, less = right, left
            case ast.Compare(left, [ast.Gt() | ast.GtE()], [right]):
                more, less = left, right
            case ast.Compare(left, [ast.Lt() | ast.LtE()], [right]):
                more, less = right, left
            case _:
                return None
        return more if self.uniformity.is_nonnegative(less) else None

    def cannot_wrap(self, index: ast.expr) -> bool:
        """Whether an index is surely not negative."""
        whole = ahead.expanded(index, self.regions.recomputed)
        return self.uniformity.is_nonnegative(index) or ast.unparse(whole) in self.asked

    def turns(
        self, region: Lanes, body: list[ast.stmt], mask: str | None, first: str, last: str,
        step: int = 1,
    ) -> None:  # fmt: skip
        """One loop over the threads: recompute, load the slots, run, store the slots."""
        depth, header = self.text.depth, len(self.text.lines)
        threads = [first, last, str(step)] if step > 1 else [first, last][first == "0" :]
        self.text.line(f"for thread_{self.row_axis} in range({', '.join(threads)}):  {LANES}")
        self.text.depth += 1
        self.enter(body, mask)
        written = set(stores(body))
        defined: set[str] = set()
        loaded = (exposed(body, defined) | (written - defined)) & self.regions.slots
        for slot in sorted(loaded):
            self.text.line(f"{slot} = {self.of(slot)}")
        with self.where([name(mask)] if mask else [], body):
            for statement in body:
                self.text.statements(self.rewrite(statement))
        for slot in sorted(written & self.regions.slots):
            self.text.line(f"{self.of(slot)} = {slot}")
        self.text.depth = depth
        self.ran(region, header)

    def guarded(
        self, body: list[ast.stmt], mask: str | None
    ) -> tuple[list[ast.stmt], str | None, Few]:
        """What is left of a region's statements and mask where its loop skips threads instead."""
        left = body, mask, ALL
        tests: list[ast.expr] = [name(mask)] if mask else []
        while True:
            few = self.few(ast.BoolOp(ast.And(), [*tests])) if tests else None
            if few and not (self.is_short and (few.starts or few.ends or few.steps)):
                left = body, None, few
            *definitions, last = body
            if not isinstance(last, ast.If) or last.orelse or not self.only_define(definitions):
                return left
            tests.append(last.test)
            body = [*definitions, *last.body]

    def guard(self, body: list[ast.stmt]) -> tuple[str, Few] | None:
        """The condition of `x[i] if i < n else 0`, if neighbouring threads pass it; and which do.

        None for a short row of which never all do.

        Under a mask some processors load slowly from far memory. What holds a loop is long enough
        to be written once.
        """
        if any(isinstance(node, ast.For | ast.While) for node in walk(body)):
            return None
        for statement in body:
            choice = getattr(statement, "value", statement)
            if isinstance(choice, ast.If | ast.IfExp) and any(map(is_load, ast.walk(choice))):
                few = self.few(choice.test)
                if not few or few.steps or len(few.starts) > 1 or len(few.ends) > 1:
                    continue
                never = any(self.most(end) < self.row_length for end in few.ends)
                if few.starts or few.ends:
                    return None if never and self.is_short else (ast.unparse(choice.test), few)
        return None

    def for_few(self, body: list[ast.stmt], mask: str | None) -> tuple[list[ast.stmt], str]:
        """The first statements of a region, if only the first threads need them, and how many.

        So it is where the last warp adds up what all warps have left (`if warp == 0`).
        """

        def few(statement: ast.stmt) -> bool:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)]):
                    written = written_in(ast.walk(statement), self.form.source)
                    needed = 0 if target in self.regions.recomputed else self.needed.get(target)
                    return needed is not None and needed < self.row_length and not written
            return False

        alone = [] if mask else list(itertools.takewhile(few, body))
        kept = stores(alone).keys() & self.needed.keys()
        return alone if kept else [], str(max((self.needed[slot] for slot in kept), default=0))

    @cached_property
    def needed(self) -> dict[str, int]:
        """How many threads of a row, the first ones, need a slot at most."""
        needed = dict.fromkeys(self.regions.slots - self.regions.shown, 0)
        for region in all_lanes(self.regions.nodes):
            count = self.running(region) or self.row_length
            read = needs(region).union(*map(reads, region.body))
            needed |= {slot: max(needed[slot], count) for slot in read & needed.keys()}
        return needed

    def running(self, node: Node) -> int:
        """How many threads of a row, the first ones, run a node at most; 0 if it has none."""
        counts = [0]
        for region in all_lanes([node]):
            if not region.body:
                counts.append(self.row_length)
            elif self.without_dead_definitions(region.body):
                few = self.guarded(region.body, region.mask)[2]
                counts.append(min([self.row_length, *map(self.most, few.ends)]))
        return max(counts)

    def most(self, end: ast.expr) -> int:
        """The largest that an end of a loop over the threads can be, as far as the text says."""
        match end:
            case ast.BinOp(left, ast.Sub(), right) if self.uniformity.is_nonnegative(right):
                return self.most(left)
        number = self.known(end)
        return self.row_length if number is None else number

    def known(self, number: ast.expr) -> int | None:
        """A whole number, if the text says which one."""
        match number:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=known) if isinstance(self.form.source.values.get(known), int):
                return int(self.form.source.values[known])
        return None

    def enter(self, body: list[ast.stmt], mask: str | None) -> None:
        """Make again what a region needs, and ask whether a thread takes part in it."""
        self.recompute(needs(Lanes(body, mask)))
        self.ask(mask)

    def ask(self, mask: str | None) -> None:
        """What follows is for those whose mask is set."""
        if mask in self.regions.slots:
            self.text.line(f"{mask} = {self.of(mask)}")
        if mask:
            self.text.line(f"if {mask}:")
            self.text.depth += 1

    def only_define(self, statements: list[ast.stmt]) -> bool:
        """Whether statements do nothing but name values that no other region needs."""
        made = [s for s in statements if isinstance(s, ast.Assign) and is_cheap(s.value)]
        names = [target.id for s in made if isinstance(target := s.targets[0], ast.Name)]
        return len(names) == len(statements) and self.regions.slots.isdisjoint(names)

    @property
    def is_short(self) -> bool:
        """Whether loops over a row of threads are best of constant length."""
        return self.row_length < LONG_ROW

    def few(self, test: ast.expr) -> Few | None:
        """The condition of a region as the ends and steps of its loop, if it can be told by them.

        What all threads of a row decide alike is asked before the loop. Ends tell textbook guards
        (`i < n`, where i grows with the thread), starts those of what has a rim (`i > 0`), steps
        what the first lane of each warp does (`threadIdx.x % 32 == 0`): the loop has no mask.
        """
        found = Few([], [], [], [], self.conjuncts(test))
        for part in found.parts:
            if isinstance(part, ast.Constant) or not (is_cheap(part) and self.is_integral(part)):
                return None
            if self.is_fixed(part):
                found.conditions.append(part)
                continue
            if step := self.step_of(part):
                found.steps.append(step)
            elif end := self.end_of(part):
                found.ends.append(end)
            elif start := self.start_of(part):
                found.starts.append(start)
            else:
                return None
        return found if found.parts and not (found.starts and found.steps) else None

    def conjuncts(self, test: ast.expr) -> list[ast.expr]:
        """What has to be true for a condition to be true, in terms of what never changes."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return [part for value in values for part in self.conjuncts(value)]
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=values)):
                return [part for value in values for part in self.conjuncts(negated(value))]
            case ast.Compare(left, ops, [*rights]) if len(ops) > 1:
                pairs = zip([left, *rights], ops, rights, strict=False)
                each = [ast.Compare(a, [op], [b]) for a, op, b in pairs]
                return self.conjuncts(ast.BoolOp(ast.And(), [*each]))
            case ast.Call(ast.Name("always"), [holds]):
                return self.conjuncts(holds)
            case ast.Name(id=known) if known in self.regions.conditions:
                return self.conjuncts(self.regions.conditions[known])
        return [ahead.expanded(test, self.regions.recomputed)]

    def end_of(self, test: ast.expr) -> ast.expr | None:
        """How many threads of a row pass a comparison, if they are the first ones."""
        match test:
            case ast.Compare(first, [ast.Eq()], [ast.Constant(value=0)]):
                return self.first_of(first)
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Gt() | ast.GtE() as op], [right])):
                number, end, more = left, right, int(isinstance(op, ast.Gt))
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Lt() | ast.LtE() as op], [right])):
                number, end, more = right, left, int(isinstance(op, ast.Lt))
            case ast.Compare(left, [ast.Lt() | ast.LtE() as op], [right]):
                number, end, more = left, right, int(isinstance(op, ast.LtE))
            case ast.Compare(left, [ast.Gt() | ast.GtE() as op], [right]):
                number, end, more = right, left, int(isinstance(op, ast.GtE))
            case _:
                return None
        if not (self.runs_along(number) and self.is_fixed(end)):
            return None
        more_than, less_than = self.beside_thread(number)
        made = [] if isinstance(end, ast.Name) else [end]
        if any(map(self.has_no_sign, [*made, *more_than, *less_than])):
            return None
        end = ast.BinOp(end, ast.Sub(), sum_of(more_than)) if more_than else end
        end = ast.BinOp(end, ast.Add(), sum_of(less_than)) if less_than else end
        return ast.BinOp(end, ast.Add(), ast.Constant(more)) if more else end

    def start_of(self, test: ast.expr) -> ast.expr | None:
        """How many threads of a row fail a comparison, if they are the first ones.

        Not of `i > n` for any n, as the largest has no n + 1.
        """
        match test:
            case (
                ast.Compare(_, [ast.Gt()], [end])
                | ast.Compare(end, [ast.Lt()], [_])
                | ast.UnaryOp(ast.Not(), ast.Compare(_, [ast.LtE()], [end]))
                | ast.UnaryOp(ast.Not(), ast.Compare(end, [ast.GtE()], [_]))
            ) if self.known(end) is None:
                return None
        return self.end_of(opposite(test))

    def has_no_sign(self, term: ast.expr) -> bool:
        """Whether what a term is taken from may become huge, where it should be below zero."""
        kinds, values = self.form.kinds, self.form.source.values
        of_names = [kinds.get(each) or values.get(each) for each in names_in(term)]
        types_of = [str(getattr(kind, "dtype", kind)) for kind in of_names]
        return not is_shape(term) and any(kind.startswith("uint") for kind in types_of)

    def step_of(self, test: ast.expr) -> int | None:
        """How many threads of a row lie from one that passes a comparison to the next."""
        match test:
            case ast.Compare(
                ast.BinOp(ast.Name(id=thread), ast.Mod() | ast.BitAnd() as op, number),
                [ast.Eq()],
                [ast.Constant(value=0)],
            ) if thread == f"thread_{self.row_axis}":
                step = (self.known(number) or 0) + isinstance(op, ast.BitAnd)
                is_size = isinstance(op, ast.Mod) or step & (step - 1) == 0
                fits = self.span[0] == "0"  # all of the row run together
                return step if is_size and fits and step >= FAR_APART else None
        return None

    def first_of(self, number: ast.expr) -> ast.expr | None:
        """How many threads of a row have the number 0: one, or as many as a warp has."""
        row = f"thread_{self.row_axis}"
        match number:
            case ast.Name(id=thread) if thread == row:
                return ast.Constant(1)
            case ast.BinOp(ast.Name(id=thread), ast.FloorDiv(), size) if thread == row:
                fixed = self.is_fixed(size) and self.uniformity.is_nonnegative(size)
                return size if fixed else None
        return None

    def runs_along(self, index: ast.expr) -> bool:
        """Whether an index grows by one from thread to thread of a row."""
        match ahead.expanded(index, self.regions.recomputed):
            case ast.Name(id=variable):
                return variable == f"thread_{self.row_axis}"
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return (self.runs_along(left) and self.is_fixed(right)) or (
                    self.is_fixed(left) and self.runs_along(right)
                )
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self.runs_along(left) and self.is_fixed(right)
        return False

    def beside_thread(self, index: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
        """What an index that runs along is more than the thread, and what less."""
        match ahead.expanded(index, self.regions.recomputed):
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                along, rest = (left, right) if self.runs_along(left) else (right, left)
                more, less = self.beside_thread(along)
                return ([*more, rest], less) if isinstance(op, ast.Add) else (more, [*less, rest])
        return [], []

    def is_integral(self, value: ast.expr) -> bool:
        """Whether an expression is made of whole numbers alone."""
        reals = types.Float | types.Complex
        for node in ast.walk(value):
            number = node.value if isinstance(node, ast.Constant) else 0
            if isinstance(node, ast.Name):
                number = self.form.source.values.get(node.id, 0)
                if isinstance(self.form.kinds.get(node.id), reals):
                    return False
            if not isinstance(number, int | np.integer | np.bool_):
                return False
        return True

    def is_fixed(self, value: ast.expr) -> bool:
        """Whether an expression is known before a row runs, and the same for all its threads."""
        others = THREADS - {f"thread_{self.row_axis}"}
        return names_in(value).isdisjoint((self.uniformity.varying | self.made_by_lanes) - others)

    @cached_property
    def made_by_lanes(self) -> set[str]:
        """The names that have a value only where the threads that make it have run."""
        return {made for region in all_lanes(self.regions.nodes) for made in stores(region.body)}

    def ran(self, region: Lanes, header: int) -> None:
        """All threads have run a region, whose loop begins at a line of the text."""

    def read_ahead(self, body: list[ast.stmt]) -> None:
        """Ask for what the loop around will need one turn later."""
        asks = ahead.next_turn(body, self.loops, self.regions)
        if asks:
            first, last = self.span
            with self.text.block(f"for thread_x in range({first}, {last}, {ahead.LINE}):"):
                for ask in asks:
                    self.text.line(ask)

    def without_dead_definitions(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a region without definitions that only other regions use."""
        kept: list[ast.stmt] = []
        used: set[str] = set()
        for statement in reversed(body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)]) if (
                    target in self.regions.recomputed and target not in used
                ):
                    continue
            used |= reads(statement)
            kept.insert(0, statement)
        return kept

    def recompute(self, wanted: set[str], made: Set[str] = frozenset()) -> set[str]:
        """Make the wanted values again, and what they are made of; what is `made` is there yet."""
        done = set(made)

        def visit(target: str) -> None:
            if target in done or target not in self.regions.recomputed:
                return
            done.add(target)
            value = self.regions.recomputed[target]
            for operand in sorted(reads(value)):
                visit(operand)
            self.define(target, value)

        for target in sorted(wanted):
            visit(target)
        return done

    def define(self, target: str, value: ast.expr) -> None:
        """A value that is made again where it is needed."""
        self.text.line(f"{target} = {self.source(value)}")

    def rewrite(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement as it is written down."""
        new = self.rewriter.visit(copy.deepcopy(node))
        return new if isinstance(new, list) else [new]

    def source(self, node: ast.expr) -> str:
        """An expression as it is written down."""
        new = self.rewriter.visit(copy.deepcopy(node))
        return ast.unparse(ast.fix_missing_locations(new))


def without(nodes: list[Node], mask: str | None) -> list[Node]:
    """A tree of regions, of which those under a mask are for all threads."""
    new: list[Node] = []
    for node in nodes:
        match node:
            case Lanes(body, own) if own == mask:
                new.append(Lanes(body))
            case Loop(header, body):
                new.append(Loop(header, without(body, mask)))
            case Branch(test, body, orelse):
                new.append(Branch(test, without(body, mask), without(orelse, mask)))
            case _:
                new.append(node)
    return new


def opposite(test: ast.expr) -> ast.expr:
    """What is true where a condition is not."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return operand
    return negated(test)


def is_arithmetic(statement: ast.stmt) -> bool:
    """Whether a statement gives a variable a value that calls and chooses nothing."""
    match statement:
        case ast.Assign([ast.Name()]) | ast.AugAssign(ast.Name()):
            return not any(isinstance(n, ast.Call | ast.IfExp) for n in ast.walk(statement))
    return False


def is_load(node: ast.AST) -> bool:
    """Whether a node is an element that is read."""
    load = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return load and not is_shape(node)


def decided(body: list[ast.stmt], test: str, holds: str) -> list[ast.stmt]:
    """Statements in which a condition `always` or `never` holds.

    What no thread does is still written: the types of variables depend on it.
    """
    body = copy.deepcopy(body)
    for node in list(walk(body)):
        if isinstance(node, ast.If | ast.IfExp) and ast.unparse(node.test) == test:
            node.test = call(holds, node.test)
    return body


class Rewriter(ast.NodeTransformer):
    """Brings statements into the form in which they are written down.

    It adds the thread to the indices of local arrays, marks indices that cannot wrap, and hands
    whole slots to those who look at other threads.
    """

    def __init__(self, body: Body) -> None:
        self.body, self.form = body, body.form
        self.lane = list(map(name, body.lane.split(", ")))

    def visit_Whole(self, node: Whole) -> ast.AST:
        """The slot of what all threads keep."""
        return name(self.body.slot_names[node.id])

    def visit_If(self, node: ast.If) -> ast.AST:
        """What is asked is known where it holds."""
        then = ast.Module(node.body, [])
        with self.body.where([node.test], node.body):
            self.generic_visit(then)
        node.body = []
        self.generic_visit(node)
        node.body = then.body
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """The same of a choice."""
        with self.body.where([node.test], [node.body]):
            node.body = self.visit(node.body)
        node.test, node.orelse = self.visit(node.test), self.visit(node.orelse)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element that is read."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute) or base_name(node) is None:
            return node
        indices = list(map(self.unsigned, indices_of(node)))
        array = self.form.arrays.get(base_name(node) or "")
        if array and array.space == "local":
            indices += self.lane
        node.slice = indices[0] if len(indices) == 1 else ast.Tuple(indices, ast.Load())
        return node

    def unsigned(self, index: ast.expr) -> ast.expr:
        """Mark an index that cannot be negative: Numba need not ask whether to wrap it."""
        plain = isinstance(index, ast.Constant) or (
            isinstance(index, ast.Name) and index.id in THREADS
        )
        if plain or not self.body.cannot_wrap(index):
            return index
        return call("u", index)

"""Step 7: write the regions down as a Python module that Numba compiles.

The module holds the constants, the device functions, and one function over a range of blocks, in
which every lane region is a loop over the block's threads. It is meant to be read:
`kernel.cpu_source()` prints it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from . import ahead
from .canonical import AXES, WARP, Array, Canonical, Shape3, is_barrier, is_meeting, is_whole, name
from .pipeline import LANES
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
    is_cheap,
    needs,
)
from .source import Source, dtype_text
from .uniformity import THREADS, Uniformity, base_name, exposed, reads, sum_of, writes

INDENT = "    "
LONG_ROW = 64  # threads: a shorter row is best as a loop of constant length


class Text:
    """Lines under construction, with the current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = "") -> None:
        """Append one line, or several."""
        self.lines += [INDENT * self.depth + part if part else "" for part in text.split("\n")]

    @contextmanager
    def block(self, header: str) -> Any:
        """A compound statement."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def block_constants(block: Shape3) -> dict[str, int]:
    """BLOCK_X, BLOCK_Y, BLOCK_Z."""
    return {f"BLOCK_{axis.upper()}": size for axis, size in zip(AXES, block, strict=True)}


def function_name(source: Source) -> str:
    """The name of the function that runs a range of blocks."""
    return f"{source.name}_blocks"


def lane_axes(block: Shape3) -> str:
    """The axes that the threads of a block spread over, outermost first."""
    return "".join(axis for axis in "zyx" if block[AXES.index(axis)] > 1) or "x"


def _header(text: Text, source: Source, block: Shape3, runtime: str) -> None:
    shape = " x ".join(str(size) for size in block)
    text.line(f'"""Kernel {source.name!r} for the CPU, in blocks of {shape} threads.')
    text.line(f"\nMade by {runtime.rpartition('.')[0]}; read it, but do not edit it.\n" + '"""')
    text.line(f"\nfrom {runtime} import *\n")
    for constant, value in block_constants(block).items():
        text.line(f"{constant} = {value}")
    _constants(text, source)


def _constants(text: Text, source: Source, prefix: str = "") -> None:
    for constant, value in source.constants.items():
        text.line(f"{prefix}{constant} = {value}")


def _device_functions(text: Text, source: Source, fastmath: bool, prefix: str = "") -> None:
    """The device functions, innermost first, each with its constants just before it.

    What a device function refers to gets its name as a prefix: another may use the same name for
    something else.
    """
    for alias, inner in source.device_functions.items():
        alias = prefix + alias
        own = f"{alias}__"
        _device_functions(text, inner, fastmath, own)
        _constants(text, inner, own)
        tree = copy.deepcopy(inner.tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in {
                *inner.constants,
                *inner.device_functions,
            }:
                node.id = own + node.id
        tree.decorator_list, tree.name, tree.returns = [], alias, None
        if ast.get_docstring(tree):
            tree.body = tree.body[1:]
        for argument in tree.args.args:
            argument.annotation = None
        text.line(f"\n\n@device(fastmath={fastmath})\n{ast.unparse(tree)}")


def typing_module(form: Canonical, runtime: str, fastmath: bool) -> str:
    """The kernel as one thread sees it, for type inference only."""
    text = Text()
    _header(text, form.source, form.block, runtime)
    _device_functions(text, form.source, fastmath)
    indices = ", ".join(f"{index}_{axis}" for index in ("thread", "block") for axis in AXES)
    with text.block(f"def {function_name(form.source)}({indices}, {_signature(form)}):"):
        for array in form.arrays.values():
            shape = (1,) if array.is_dynamic else array.shape
            text.line(f"{array.name} = stack({shape}, {array.dtype})")
        write_statements(text, [s for s in map(_drop_barriers, copy.deepcopy(form.body)) if s])
        text.line("return")
    return str(text)


def _drop_barriers(statement: ast.stmt) -> ast.stmt | None:
    class Drop(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            return ast.Pass() if is_meeting(node) else node

    return Drop().visit(statement)


def _signature(form: Canonical) -> str:
    return ", ".join(["grid_x, grid_y, grid_z", *form.parameters])


def write_statements(text: Text, body: Iterable[ast.stmt]) -> None:
    """Append statements."""
    for statement in body:
        text.line(ast.unparse(ast.fix_missing_locations(statement)))


def write_module(body: Body, runtime: str, fastmath: bool) -> None:
    """Write the module to compile to the body's text."""
    form, text = body.form, body.text
    _header(text, form.source, form.block, runtime)
    _device_functions(text, form.source, fastmath)
    text.line(f"\n\n@kernel(fastmath={fastmath})")
    name = function_name(form.source)
    parameters = ", ".join([_signature(form), *body.parameters])
    with text.block(f"def {name}(first_block, last_block, {parameters}):"):
        body.write()


class Prefix(NamedTuple):
    """A condition that the first threads of a row pass, and no others."""

    conditions: list[ast.expr]  # that all of the row must pass besides
    ends: list[ast.expr]  # the smallest is the number of threads


class Body:
    """Writes the regions of a kernel as the body of a function."""

    parameters: tuple[str, ...] = ()  # besides the kernel's own

    def __init__(
        self,
        form: Canonical,
        uniformity: Uniformity,
        regions: Regions,
        slots: Mapping[str, types.Type],
    ) -> None:
        """`slots` gives each slot's Numba type."""
        self.text = Text()
        self.form, self.regions, self.types = form, regions, slots
        self.kinds: Mapping[str, types.Type] = {}  # of all variables
        self.statements: list[ast.stmt] = []  # those that are marked
        *self.outer_axes, self.row_axis = list(lane_axes(form.block))
        axes = [*self.outer_axes, self.row_axis]
        self.lane = ", ".join(f"thread_{axis}" for axis in axes)
        self.lane_shape = ", ".join(f"BLOCK_{axis.upper()}" for axis in axes)
        self.uniformity = uniformity
        self.loops: list[ast.For] = []
        self.slot_names = {slot: form.fresh(f"{slot}_of") for slot in sorted(regions.slots)}
        self.rewriter = Rewriter(form, self.lane, uniformity, self.slot_names)

    def write(self) -> None:
        """Write the function's body."""
        for array in self.form.arrays.values():
            self.declare(array)
        for slot, array_name in self.slot_names.items():
            kind = dtype_text(self.types[slot])
            count = prod(self.form.block)
            shape, part = self.slot_shape(slot), ""
            if slot in self.form.sent:  # with a warp to spare on either side
                shape, part = str(count + 2 * WARP), f"[{WARP}:{count + WARP}]"
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
                case Meeting(mask, in_text=True):
                    self.meeting(mask)
                case Strip(body):
                    self.strip()
                    depth = self.text.depth
                    for axis in self.outer_axes:
                        self.text.line(f"for thread_{axis} in range(BLOCK_{axis.upper()}):")
                        self.text.depth += 1
                    self.compound_body(body)
                    self.text.depth = depth
                case Lanes():
                    self.lanes(node)

    def strip(self) -> None:
        """All rows of threads run a stretch, one after the other."""

    def turn(self) -> None:
        """A turn of a `while` at block level ends."""

    def scalar(self, statement: ast.stmt) -> None:
        """A statement on uniform values."""
        write_statements(self.text, self.rewrite(statement))

    def barrier(self, node: Barrier) -> None:
        """Under a mask, go on only if all threads are at this barrier, or none."""
        if node.mask:
            all_barriers = [n for s in self.form.body for n in ast.walk(s) if is_barrier(n)]
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
        if slot in self.form.sent:
            thread = ast.unparse(self.form.linear)
        return f"{self.slot_names[slot]}[{thread}]"

    def lanes(self, region: Lanes) -> None:
        """One loop over the threads: recompute, load the slots, run, store the slots."""
        body, mask = self.without_dead_definitions(region), region.mask
        if not body:
            return
        depth = self.text.depth
        row, size = f"thread_{self.row_axis}", f"BLOCK_{self.row_axis.upper()}"
        self.read_ahead(body)
        *definitions, guarded = body
        if mask:
            prefix = self.prefix(name(mask))
            mask = None if prefix else mask
        elif isinstance(guarded, ast.If) and not guarded.orelse and self.only_define(definitions):
            prefix = self.prefix(guarded.test)
            body = [*definitions, *guarded.body] if prefix else body
        else:
            prefix = None
        if prefix:
            for condition in prefix.conditions:
                self.text.line(f"if {self.source(condition)}:")
                self.text.depth += 1
            size = f"min({', '.join([size, *map(self.source, prefix.ends)])})"
        header = len(self.text.lines)
        self.text.line(f"for {row} in range({size}):  {LANES}")
        self.text.depth += 1
        self.recompute(needs(Lanes(body, mask)))
        if mask in self.regions.slots:
            self.text.line(f"{mask} = {self.of(mask)}")
        if mask:
            self.text.line(f"if {mask}:")
            self.text.depth += 1
        written = writes(body)
        defined: set[str] = set()
        loaded = (exposed(body, defined) | (written - defined)) & self.regions.slots
        for slot in sorted(loaded):
            self.text.line(f"{slot} = {self.of(slot)}")
        for statement in body:
            write_statements(self.text, self.rewrite(statement))
        for slot in sorted(written & self.regions.slots):
            self.text.line(f"{self.of(slot)} = {slot}")
        self.text.depth = depth
        self.ran(region, header)

    def only_define(self, statements: list[ast.stmt]) -> bool:
        """Whether statements do nothing but name values that are made again where needed."""
        targets = [s.targets[0] for s in statements if isinstance(s, ast.Assign)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        return len(names) == len(statements) and set(names) <= self.regions.recomputed.keys()

    def prefix(self, test: ast.expr) -> Prefix | None:
        """The condition of a region as an end of its loop, if the first threads of a row pass it.

        So do textbook guards (`i < n`, where i grows with the thread): the loop then has no mask.
        """
        if self.form.block[AXES.index(self.row_axis)] < LONG_ROW:
            return None
        found = Prefix([], [])
        for part in self.conjuncts(test):
            if isinstance(part, ast.Constant) or not (is_cheap(part) and self.is_integral(part)):
                return None
            if self.is_fixed(part):
                found.conditions.append(part)
                continue
            end = self.end_of(part)
            if end is None:
                return None
            found.ends.append(end)
        return found if found.ends else None

    def conjuncts(self, test: ast.expr) -> list[ast.expr]:
        """What has to be true for a condition to be true, in terms of what never changes."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return [part for value in values for part in self.conjuncts(value)]
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=values)):
                return [p for v in values for p in self.conjuncts(ast.UnaryOp(ast.Not(), v))]
            case ast.Name(id=known) if known in self.regions.recomputed:
                return self.conjuncts(self.regions.recomputed[known])
        return [ahead.expanded(test, self.regions.recomputed)]

    def end_of(self, test: ast.expr) -> ast.expr | None:
        """How many threads of a row pass a comparison, if they are the first ones."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left, [ast.GtE()], [right])):
                number, end, more = left, right, 0
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left, [ast.Gt()], [right])):
                number, end, more = left, right, 1
            case ast.Compare(left, [ast.Lt() | ast.LtE() as op], [right]):
                number, end, more = left, right, int(isinstance(op, ast.LtE))
            case ast.Compare(left, [ast.Gt() | ast.GtE() as op], [right]):
                number, end, more = right, left, int(isinstance(op, ast.GtE))
            case _:
                return None
        if not (self.runs_along(number) and self.is_fixed(end)):
            return None
        terms = [term for side in self.uniformity.parts(number) or () for term in side]
        rest = [term for term in terms if not self.runs_along(term)]
        if len(rest) != len(terms) - 1:
            return None
        end = ast.BinOp(end, ast.Sub(), sum_of(rest)) if rest else end
        return ast.BinOp(end, ast.Add(), ast.Constant(more)) if more else end

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

    def is_integral(self, value: ast.expr) -> bool:
        """Whether an expression is made of whole numbers alone."""
        reals = types.Float | types.Complex
        for node in ast.walk(value):
            number = node.value if isinstance(node, ast.Constant) else 0
            if isinstance(node, ast.Name):
                number = self.form.source.values.get(node.id, 0)
                if isinstance(self.kinds.get(node.id), reals):
                    return False
            if not isinstance(number, int | np.integer | np.bool_):
                return False
        return True

    def is_fixed(self, value: ast.expr) -> bool:
        """Whether an expression is the same for all threads of a row."""
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        others = THREADS - {f"thread_{self.row_axis}"}
        return names.isdisjoint(self.uniformity.varying - others)

    def ran(self, region: Lanes, header: int) -> None:
        """All threads have run a region, whose loop begins at a line of the text."""

    def read_ahead(self, body: list[ast.stmt]) -> None:
        """Watched code does not ask for memory ahead."""
        asks = ahead.next_turn(body, self.loops, self.form, self.uniformity, self.regions)
        if asks:
            with self.text.block(f"for thread_x in range(0, BLOCK_X, {ahead.LINE}):"):
                for ask in asks:
                    self.text.line(ask)

    def without_dead_definitions(self, region: Lanes) -> list[ast.stmt]:
        """The statements of a region without definitions that only other regions use."""
        kept: list[ast.stmt] = []
        used: set[str] = set()
        for statement in reversed(region.body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)]) if (
                    target in self.regions.recomputed and target not in used
                ):
                    continue
            used |= reads(statement)
            kept.insert(0, statement)
        return kept

    def recompute(self, wanted: set[str]) -> None:
        """Make the wanted values again, and what they are made of."""
        done: set[str] = set()

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


class Rewriter(ast.NodeTransformer):
    """Brings statements into the form in which they are written down.

    It adds the thread to the indices of local arrays, marks indices that cannot wrap, and hands
    whole slots to those who look at other threads.
    """

    def __init__(
        self, form: Canonical, lane: str, uniformity: Uniformity, slots: Mapping[str, str]
    ) -> None:
        self.form = form
        self.uniformity = uniformity
        self.lane = [ast.Name(part, ast.Load()) for part in lane.split(", ")]
        self.slots = slots

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """An atomic, or any other call."""
        for argument in node.args:
            if isinstance(argument, ast.Name) and is_whole(argument):
                argument.id = self.slots[argument.id]
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element that is read."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute) or base_name(node) is None:
            return node
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [self.unsigned(index) for index in indices]
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
        if plain or not self.uniformity.is_nonnegative(index):
            return index
        return ast.Call(ast.Name("u", ast.Load()), [index], [])

"""Emitted code that is watched: each access to an array goes through a call.

`tile[i, j]` is read as `tile[read(tile, ..., (i, j))]`, and `tile[i, j] = v` becomes `write(tile,
..., (i, j), v)`. What the calls do is up to the module that the emitted code imports: `shadow`
looks for mistakes, `notes` writes everything down. Each access in the text has a number, its
*place*.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from ..canonical import Array, Canonical, is_atomic
from ..compiler import LANES
from ..emit import Body
from ..errors import KernelError
from ..paths import indices_of, is_field, is_part, owners
from ..regions import Barrier, Branch, Lanes, Loop, Node, Regions, Strip, all_lanes, all_scalars
from ..rewriter import Rewriter
from ..source import place as place_in_file
from ..trees import assign, call, located, name, parse, walk
from ..uniformity import exposed, is_shape
from .elements import Arrays, Element, is_choice, is_record, numbers_in, own_reads
from .shadow import CLOCK, PLACES, shadow_type


@dataclass(frozen=True)
class Place:
    """An access in a kernel's text."""

    filename: str
    line: int
    array: str
    fields: tuple[str, ...]  # of a record that is the array's element
    space: str  # "global", "shared" or "local"
    kind: str  # "read", "write", "atomic" or, of a row or a slice, "part"
    itemsize: int  # bytes of the number
    indices: int
    packed: int  # how many numbers say which element: for local arrays the thread's too


@dataclass(frozen=True)
class Difference:
    """Where a GPU may compute otherwise than a CPU."""

    filename: str
    line: int
    text: str
    what: str  # "nan", or the type that a number becomes


@dataclass(frozen=True)
class Spot:
    """A place in memory, in the text that is being written."""

    node: ast.expr  # what stands for it in the kernel's text
    element: Element
    array: str  # the name that it is told by
    view: ast.expr
    index: str


# Which regions lie between the same barriers ------------------------------------------------------


class Intervals:
    """The stretches between barriers, and which arrays are written and read in each."""

    def __init__(self, regions: Regions, arrays: Arrays) -> None:
        self.arrays = arrays
        self.parent: list[int] = []
        self.of: dict[Lanes, int] = {}
        self.walk(regions.nodes, self.new())
        self.written: dict[int, set[str]] = {}
        self.read: dict[int, set[str]] = {}
        for region in all_lanes(regions.nodes):
            interval = self.find(self.of[region])
            reads, writes = self.arrays.uses(region.body)
            self.read.setdefault(interval, set()).update(reads)
            self.written.setdefault(interval, set()).update(writes)

    def new(self) -> int:
        """A new interval."""
        self.parent.append(len(self.parent))
        return self.parent[-1]

    def find(self, interval: int) -> int:
        """The interval that stands for all that are one with this."""
        while self.parent[interval] != interval:
            interval = self.parent[interval]
        return interval

    def join(self, a: int, b: int) -> int:
        """Make two intervals one."""
        self.parent[self.find(a)] = self.find(b)
        return self.find(b)

    def walk(self, nodes: list[Node], now: int) -> int:
        """Number the regions of a tree that is entered in an interval; return where it ends."""
        for node in nodes:
            match node:
                case Lanes():
                    self.of[node] = now
                case Barrier():
                    now = self.new()
                case Strip(body):
                    now = self.walk(body, now)
                case Branch(_, body, orelse):
                    now = self.join(self.walk(body, now), self.walk(orelse, now))
                case Loop(_, body):
                    first = len(self.parent)
                    end = self.walk(body, now)
                    jumps = ast.Break | ast.Continue
                    if any(isinstance(node, jumps) for node in walk(all_scalars(body))):
                        for interval in range(first, len(self.parent)):
                            end = self.join(interval, end)
                    now = self.join(end, now)
        return now

    def is_written(self, region: Lanes, node: ast.AST) -> bool:
        """Whether anybody may write to an array in the interval of a region."""
        written = self.written.get(self.find(self.of[region]), set())
        return bool(written & self.arrays.memory_of(node))

    def meets_readers(self, node: ast.AST) -> bool:
        """Whether somebody may read an array while somebody else writes to it."""
        return self.meet(self.arrays.memory_of(node), self.arrays.space(node))

    def meet(self, roots: set[str], space: str) -> bool:
        """Whether somebody may read one of these arrays while somebody else writes to it."""
        if space == "global":  # there is no barrier between blocks
            return any(read & roots for read in self.read.values())
        return any(self.read.get(i, set()) & roots & self.written[i] for i in self.written)

    def keeps_readers(self, name: str) -> bool:
        """Whether the shadow for readers has an array's shape: that of a view is a view of it."""
        space = self.arrays.space(ast.Name(name))
        return any(self.meet(roots, space) for roots in self.arrays.views if name in roots)


# The text -----------------------------------------------------------------------------------------


class Watched(Body):
    """Writes code whose accesses are calls: what `read`, `put` and `atomic` of its kinds say."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.arrays = Arrays(self.uniformity)
        self.places: list[Place] = []
        self.region: Lanes | None = None
        self.unwatched = self.rewriter
        self.rewriter = Watcher(self)

    def place(self, spot: Spot, kind: str) -> str:
        """Number an access to an array; return its number as text."""
        filename, line = place_in_file(spot.node)
        if len(self.places) == PLACES:
            raise KernelError(f"kernel {self.form.source.name!r} has too many accesses to watch")
        indices = len(spot.element.indices)
        space = self.arrays.space(spot.view)
        packed = indices + (len(self.rewriter.lane) if space == "local" else 0)
        itemsize = as_dtype(spot.element.kind.dtype).itemsize
        self.places.append(
            Place(filename, line, spot.array, spot.element.fields, space,
                  kind, itemsize, indices, packed)
        )  # fmt: skip
        return str(len(self.places) - 1)

    def thread(self) -> str:
        """The number of the thread that runs the code being written."""
        return ast.unparse(self.form.linear) if self.region else self.nobody

    nobody = "0"  # who runs what is run once for the block

    def lanes(self, region: Lanes) -> None:
        """One loop over the threads, whose accesses are known to be in this region."""
        self.region = region
        super().lanes(region)
        self.region = None

    def enter(self, body: list[ast.stmt], mask: str | None) -> None:
        """Make views again for those who take part only: the others' indices may be anything."""
        views = self.regions.recomputed.keys() & self.form.ndims.keys()
        if not (mask and views):
            return super().enter(body, mask)
        watcher, self.rewriter = self.rewriter, self.unwatched
        made = self.recompute({mask})
        self.rewriter = watcher
        self.ask(mask)
        self.recompute(exposed(body, set()), made - views)

    def part(self, spot: Spot) -> str:
        """The call that stands for the index of a row, of which nothing is read yet."""
        return spot.index

    def along(self, spot: Spot, axis: int) -> str:
        """The call that stands for one index among slices."""
        return f"{spot.index}[0]"

    def extreme(self, node: ast.Call, text: ast.Call) -> ast.expr:
        """The `max` or `min` of two numbers, as it is written down; `text` is the kernel's."""
        return node

    def converted(self, node: ast.expr, kind: types.Integer, text: ast.AST) -> ast.expr:
        """A number that becomes a whole one of some type; `text` is the kernel's."""
        return node

    def own_loop(self, loop: ast.For | ast.While) -> Any:
        """A loop that each thread runs for itself."""
        return self.rewriter.generic_visit(loop)

    def executed(self, mark: ast.Expr) -> Any:
        """A mark of a statement."""
        return mark

    def view(self, name: str, value: ast.expr) -> list[ast.stmt]:
        """What goes with the assignment of a view."""
        return []

    def define(self, target: str, value: ast.expr) -> None:
        """A value that is made again; with a view goes what belongs to it."""
        new = self.rewriter.visit(copy.deepcopy(value))
        made = [assign(target, new)]
        views = self.view(target, new) if target in self.form.ndims else []
        self.text.statements([*made, *views])


class Watcher(Rewriter):
    """Turns accesses into calls."""

    body: Any

    def __init__(self, body: Any) -> None:
        super().__init__(body.row, body.slot_names)
        self.body = body
        self.arrays: Arrays = body.arrays
        self.own: list[ast.expr] = []  # reads of what the statement writes to

    # What is read

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element that is read, a row, or a slice."""
        if is_shape(node) or (found := self.arrays.element(node)) is None:
            return self.generic_visit(node)
        if found.is_number and not self.arrays.is_array(node):
            return self.read(node, found)
        if is_field(node) or is_choice(node):
            return self.generic_visit(node)
        if is_part(node):
            return self.slice(node)
        kind = self.arrays.kind(node.value)
        row = self.spot(node, Element(node.value, kind, self.arrays.indices(node)))
        return _at(row, self.body.part(row), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A field that is read."""
        found = None if self.arrays.is_array(node) else self.arrays.element(node)
        return self.read(node, found) if found and found.is_number else self.generic_visit(node)

    def read(self, node: ast.expr, element: Element) -> ast.expr:
        """The same element, with a call for its index."""
        spot = self.spot(node, element)
        return _at(spot, self.body.read(spot, any(node is read for read in self.own)), node)

    def slice(self, node: ast.Subscript) -> ast.AST:
        """A slice, of which the indices that are none are asked about one by one."""
        kind, view, whole = self.arrays.kind(node.value), self.visit(node.value), []
        assert isinstance(kind, types.Array)
        for axis, index in zip(_axes(indices_of(node), kind.ndim), indices_of(node), strict=True):
            if is_part(ast.Subscript(node.value, index)):
                whole.append(self.visit(index))
            else:
                spot = self.spot(node, Element(node.value, kind, [index]), axis)
                whole.append(parse(self.body.along(spot, axis)))
        several = isinstance(node.slice, ast.Tuple)
        index = ast.Tuple(whole, ast.Load()) if several else whole[0]
        return ast.Subscript(view, index, ast.Load())

    def spot(self, node: ast.expr, element: Element, first: int = 0) -> Spot:
        """A place in memory, in the text to be written; the first index is about some axis."""
        view = ast.fix_missing_locations(self.visit(copy.deepcopy(element.view)))
        array = min(owners(element.view) & self.arrays.roots.keys(), default="")
        axes = enumerate(element.indices, first)
        indices = [self.index(view, axis, index) for axis, index in axes]
        declared = self.form.arrays.get(array)
        if declared and declared.space == "local":
            indices += self.lane
        whole = ast.fix_missing_locations(ast.Tuple(indices, ast.Load()))
        return Spot(node, element, array, view, ast.unparse(whole))

    def index(self, view: ast.expr, axis: int, index: ast.expr) -> ast.expr:
        """An index; one that is written with a minus counts from the end."""
        back = self.constant(index)
        if back is None or back >= 0:
            return self.visit(index)
        return parse(f"{ast.unparse(view)}.shape[{axis}] - {-back}")

    def constant(self, index: ast.expr) -> int | None:
        """The value of an index that is written as a number, or as the name of one."""
        match index:
            case ast.UnaryOp(ast.USub(), ast.Constant(value=int(number))):
                return -number
            case ast.Name(id=name):
                value = self.form.source.values.get(name)
                return int(value) if isinstance(value, int | np.integer) else None
        return None

    # What a GPU may compute otherwise

    def whole(self, function: ast.expr) -> types.Integer | None:
        """The type of whole numbers that a call makes: of int32(x), numpy.int32(x) or int(x)."""
        python = isinstance(function, ast.Name) and function.id == "int"
        kind = types.int64 if python else self.arrays.dtype(function)
        return kind if isinstance(kind, types.Integer) else None

    def keeps_the_kind(self, function: ast.expr) -> bool:
        """Whether what a function gives is a whole number if its arguments are."""
        known = isinstance(function, ast.Name) and function.id in ("max", "min", "abs", "len")
        return known or self.whole(function) is not None

    def may_be_real(self, node: ast.AST) -> bool:
        """Whether an expression may be a floating-point number."""
        return any(
            isinstance(inner, ast.Div)
            or (isinstance(inner, ast.Call) and not self.keeps_the_kind(inner.func))
            or (isinstance(inner, ast.Constant) and isinstance(inner.value, float))
            or (isinstance(inner, ast.expr) and _is_real(self.arrays.kind(inner)))
            or (isinstance(inner, ast.Name)
                and isinstance(self.form.source.values.get(inner.id), float | np.floating))
            for inner in ast.walk(node)
        )  # fmt: skip

    # What is written

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """An element that is read and written."""
        if isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        old = copy.deepcopy(node.target)
        old.ctx = ast.Load()
        new = ast.Assign([node.target], ast.BinOp(old, node.op, node.value))
        return self.visit(ast.copy_location(new, node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        """An element, a row, a record or a view that is assigned."""
        target = node.targets[0]
        if isinstance(target, ast.Name):
            views = target.id in self.form.ndims
            new = self.generic_visit(node)
            return [new, *self.body.view(target.id, node.value)] if views else new
        if self.arrays.is_copied(target):
            if is_record(self.arrays.kind(target)):
                return self.field_by_field(node, target)
            return self.row_by_row(node, target)
        found = self.arrays.element(target)
        if found is None or not found.is_number:
            return self.generic_visit(node)
        self.own = own_reads([node])
        text, value = copy.deepcopy(node), self.visit(node.value)
        if isinstance(found.kind.dtype, types.Integer) and self.may_be_real(text.value):
            value = self.body.converted(value, found.kind.dtype, text)
        value = ast.unparse(ast.fix_missing_locations(value))
        return self.body.put(self.spot(target, found), value)

    def field_by_field(self, node: ast.Assign, target: ast.expr) -> list[ast.stmt]:
        """The assignment of a record, number by number."""
        return [
            new
            for way in numbers_in(self.arrays.kind(target))
            for new in self.body.rewrite(
                _located(ast.Assign([_part(target, *way)], _part(node.value, *way)), node)
            )
        ]

    def row_by_row(self, node: ast.Assign, target: ast.expr) -> list[ast.stmt]:
        """The assignment to a whole array, row by row: each is an assignment again."""
        number = self.body.names.fresh("run__number")
        to, of = self.arrays.kind(target), self.arrays.kind(node.value)
        rows = isinstance(to, types.Array) and isinstance(of, types.Array) and to.ndim == of.ndim
        value = _part(node.value, name(number)) if rows else node.value
        row = ast.Assign([_part(target, name(number))], value)
        turns = call("range", call("len", _part(target)))
        loop = ast.For(ast.Name(number, ast.Store()), turns, [row], [])
        return self.body.rewrite(_located(loop, node))

    def visit_While(self, node: ast.While) -> Any:
        """A loop that each thread runs for itself."""
        return self.body.own_loop(node)

    def visit_For(self, node: ast.For) -> Any:
        """A loop that each thread runs for itself."""
        return self.body.own_loop(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A mark, or a call for its effect."""
        match node.value:
            case ast.Call(func=ast.Name(id=called)) if called == MARK:
                return self.body.executed(node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """An atomic, or any other call; those that a GPU may compute otherwise are watched."""
        if not is_atomic(node):
            text = copy.deepcopy(node)
            self.generic_visit(node)
            match node:
                case ast.Call(ast.Name(id="max" | "min"), [_, _]) if any(
                    map(self.may_be_real, text.args)
                ):
                    return self.body.extreme(node, text)
                case ast.Call(func=function, args=[number], keywords=[]):
                    kind = self.whole(function)
                    if kind is not None and self.may_be_real(text.args[0]):
                        node.args = [self.body.converted(number, kind, text)]
            return node
        array, *others = node.args
        whole = isinstance(node.func, ast.Name) and node.func.id == "atomic_compare_and_swap"
        index = ast.Constant(0) if whole else others.pop(0)
        access = ast.copy_location(ast.Subscript(array, index, ast.Load()), node)
        found = self.arrays.element(access)
        if found is None or not found.is_number:
            return self.generic_visit(node)
        others = [self.visit(other) for other in others]
        spot = self.spot(access, found)
        node.args = [spot.view, parse(self.body.atomic(spot)), *others]
        if whole:
            node.func = name("atomic_cas")
        return node


def _axes(indices: list[ast.expr], ndim: int) -> list[int]:
    """The axis that each index of a subscript is about, if it is about one."""
    axes, axis = [], 0
    for number, index in enumerate(indices):
        axes.append(axis)
        axis += not _is_none(index)
        if isinstance(index, ast.Constant) and index.value is ...:
            axis = ndim - sum(not _is_none(later) for later in indices[number + 1 :])
    return axes


def _is_none(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value is None


def _is_real(kind: Any) -> bool:
    return isinstance(kind.dtype if isinstance(kind, types.Array) else kind, types.Float)


def _at(spot: Spot, index: str, node: ast.expr) -> ast.expr:
    """The element at an index."""
    return ast.copy_location(ast.Subscript(spot.view, parse(index), ast.Load()), node)


def _part(node: ast.expr, *way: str | int | ast.Name) -> Any:
    """A part of a row or of a record: a field's name, a number or a variable lead to it."""
    part = copy.deepcopy(node)
    if isinstance(part, ast.Subscript | ast.Attribute):
        part.ctx = ast.Load()
    for step in way:
        index = step if isinstance(step, ast.Name) else ast.Constant(step)
        part = ast.Subscript(part, index, ast.Load())
    return part


def _located(statement: Any, like: ast.AST) -> Any:
    """A new statement, at the place of another, that assigns to what it names as its targets."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign):
            node.targets[0].ctx = ast.Store()  # type: ignore[attr-defined]
    return located(statement, like)


class Checked(Watched):
    """Writes code that asks whether there are mistakes: see `shadow`."""

    fault = "({},), numba.int32"
    readers = "reads"  # what is known of the readers of an element: see `shadow.LEAVES`

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.intervals = Intervals(self.regions, self.arrays)
        self.shadowed = [p for p in self.form.parameters if self.is_shadowed(p)]
        shadows = [f"{p}__{what}" for p in self.shadowed for what in ("writes", "reads")]
        self.parameters = ("run__found", *shadows)
        self.in_order = False  # does the region being written depend on the order of its threads?
        self.differences: list[Difference] = []

    def module(self, runtime: str, fastmath: bool) -> str:
        """Write the module; it also says which arguments have shadow memory.

        These are their places, and whether what is known of readers has an element's size.
        """
        super().module(runtime, fastmath)
        places = {name: place for place, name in enumerate(self.form.parameters)}
        shadowed = {places[name]: self.intervals.keeps_readers(name) for name in self.shadowed}
        self.text.line(f"\n\nSHADOWED = {shadowed}")
        return str(self.text)

    @classmethod
    def extra_types(
        cls, kinds: tuple[types.Type, ...], shadowed: Mapping[int, bool]
    ) -> tuple[types.Type, ...]:
        """The types of what a mistake is told in, and of shadow memory."""
        leaves = "writes", cls.readers
        shadows = [shadow_type(kinds[place], leaf) for place in shadowed for leaf in leaves]
        return (types.Array(types.int64, 1, "C"), *shadows)

    def is_shadowed(self, name: str) -> bool:
        """Whether an argument has shadow memory."""
        return name in self.form.ndims and self.arrays.is_written(ast.Name(name))

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        super().declare(array)
        sizes = ", ".join(map(str, array.shape))
        if array.is_dynamic:
            if not any("dynamic_bytes__writes" in line for line in self.text.lines):
                bytes_ = str(self.form.shared_bytes)
                self.shadow("dynamic_bytes", "writes", bytes_, "writes")
                self.shadow("dynamic_bytes", "reads", bytes_, self.readers)
            for what in ("writes", "reads"):
                shadow = f"dynamic_bytes__{what}[::{array.name}.itemsize]"
                self.text.line(f"{array.name}__{what} = {shadow}")
        elif array.space == "local":
            self.shadow(array.name, "writes", f"{sizes}, {self.lane_shape}", "own")
        else:
            ones = ", ".join("1" for _ in array.shape)
            keeps = self.intervals.keeps_readers(array.name)
            self.shadow(array.name, "writes", sizes, "writes")
            self.shadow(array.name, "reads", sizes if keeps else ones, self.readers)

    def shadow(self, name: str, what: str, sizes: str, leaf: str) -> None:
        """Shadow memory on the stack, cleared."""
        self.text.line(f"{name}__{what} = run__checks.shadow({name}, ({sizes},), {leaf!r})")

    def write(self) -> None:
        """Write the function's body."""
        self.text.line(f"run__clock = stack(({CLOCK},), numba.int64)")
        self.text.line(f"run__fault = stack({self.fault.format(self.threads)})")
        self.text.line("run__fault[:] = 0")
        self.text.line(f"run__differs = stack(({self.threads},), numba.int32)")
        self.text.line("run__differs[:] = 0")
        super().write()

    def numbered(self, node: ast.AST, what: str) -> str:
        """Number a place where a GPU may compute otherwise; what a call says of it."""
        filename, line = place_in_file(node)
        self.differences.append(Difference(filename, line, ast.unparse(node), what))
        return f"run__differs, {len(self.differences)}, {self.thread()}"

    def start(self) -> None:
        """A block begins: set its clock."""
        self.text.line("run__checks.block_starts(run__clock, block)")

    def ran(self, region: Lanes, header: int) -> None:
        """Take the note from a loop whose turns depend on each other."""
        if self.in_order:
            self.text.lines[header] = self.text.lines[header].replace(f"  {LANES}", "")
        self.in_order = False

    def nodes(self, nodes: list[Node]) -> None:
        """Write a tree down; at its end, ask what was noted."""
        super().nodes(nodes)
        if nodes is self.regions.nodes:
            if self.differences:
                self.text.line("run__checks.tell(run__differs, run__found)")
            self.stop()

    def turn(self) -> None:
        """End a loop that a mistake keeps going."""
        self.stop()

    def own_loop(self, loop: ast.For | ast.While) -> Any:
        """A loop that each thread runs for itself, while all is well."""
        super().own_loop(loop)
        if isinstance(loop, ast.While):  # a mistake may keep it going
            fine = parse(f"run__checks.is_fine(run__fault, {self.thread()})")
            loop.test = ast.BoolOp(ast.And(), [fine, loop.test])
        return loop

    def stop(self) -> None:
        """End the block if a thread has noted something."""
        with self.text.block("if run__checks.faulty(run__fault, run__found, block):"):
            self.text.line("return -1")

    def barrier(self, node: Barrier) -> None:
        """Move the clock on for all threads."""
        super().barrier(node)
        self.stop()
        self.text.line("run__checks.all_met(run__clock)")

    def meeting(self, mask: str | None) -> None:
        """Move the clock on for the warps that meet."""
        here = f", {self.slot_names[mask]}" if mask else ""
        self.text.line(f"run__checks.some_met(run__clock, {self.threads}{here})")

    # Accesses

    def part(self, spot: Spot) -> str:
        """Check the index of a row, of which nothing is read yet."""
        return self.within("within", "part", spot)

    def along(self, spot: Spot, axis: int) -> str:
        """Check one index among slices."""
        return self.within("along", "part", spot, str(axis))

    def within(self, function: str, kind: str, spot: Spot, *given: str) -> str:
        """A call that looks at no shadow."""
        rest = ", ".join(["run__fault", self.place(spot, kind), self.thread(), *given, spot.index])
        return f"run__checks.{function}({ast.unparse(spot.view)}, {rest})"

    def read(self, spot: Spot, own: bool) -> str:
        """The call that stands for the index of an element that is read.

        An `own` read is that of an element that the same statement writes to.
        """
        space = self.arrays.space(spot.view)
        if not self.arrays.is_written(spot.view) or (own and space == "global"):
            return self.within("within", "read", spot)
        if space == "local":
            return self.call("read_own", spot, "read", "writes", spot.index)
        quiet = not self.intervals.meets_readers(spot.view) or (
            self.region is not None and not self.intervals.is_written(self.region, spot.view)
        )
        if space == "shared" and (quiet or own):
            return self.call("read_alone", spot, "read", "writes", spot.index)
        return self.among_others("read", spot, "read", spot.index)

    def put(self, spot: Spot, value: str) -> list[ast.stmt]:
        """The statement that stands for an assignment to an element."""
        if self.arrays.space(spot.view) == "local":
            call = self.call("write_own", spot, "write", "writes", spot.index, value)
        else:
            call = self.among_others("write", spot, "write", spot.index, value)
        return ast.parse(call).body

    def atomic(self, spot: Spot) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        return self.among_others("change", spot, "atomic", spot.index)

    def extreme(self, node: ast.Call, text: ast.Call) -> ast.expr:
        """The `max` or `min` of two numbers, which may be NaN."""
        assert isinstance(node.func, ast.Name)
        function = {"max": "largest", "min": "smallest"}[node.func.id]
        number = self.numbered(text, "nan")
        given = ", ".join(ast.unparse(ast.fix_missing_locations(a)) for a in node.args)
        return parse(f"run__checks.{function}({given}, {number})")

    def converted(self, node: ast.expr, kind: types.Integer, text: ast.AST) -> ast.expr:
        """A number that may not fit the type of whole numbers that it becomes."""
        number, given = self.numbered(text, str(kind)), ast.unparse(ast.fix_missing_locations(node))
        low, high = float(kind.minval), float(kind.maxval + 1)
        return parse(f"run__checks.fits({given}, {low}, {high}, {number})")

    def among_others(self, function: str, spot: Spot, kind: str, *given: str) -> str:
        """A call that needs to know who writes, and who reads if anybody does meanwhile."""
        self.in_order |= not self.is_apart(spot)
        is_global = str(self.arrays.space(spot.view) == "global")
        if self.intervals.meets_readers(spot.view):
            return self.call(function, spot, kind, "writes reads", is_global, *given)
        return self.call(f"{function}_alone", spot, kind, "writes", is_global, *given)

    def call(self, function: str, spot: Spot, kind: str, shadows: str, *given: str) -> str:
        """A call of `shadow`."""
        memory = [spot.view, *(_shadow_of(spot.view, what) for what in shadows.split())]
        known = ["run__clock", "run__fault", self.place(spot, kind), self.thread()]
        return f"run__checks.{function}({', '.join([*map(ast.unparse, memory), *known, *given])})"

    def view(self, name: str, value: ast.expr) -> list[ast.stmt]:
        """The shadow of a view is the same view of the shadow."""
        if not self.arrays.is_written(ast.Name(name)):
            return []
        return [assign(f"{name}__{what}", _shadow_of(value, what)) for what in ("writes", "reads")]

    def is_apart(self, spot: Spot) -> bool:
        """Whether the threads of a row surely access different elements."""
        return any(self.row.runs_along(index) for index in spot.element.indices)


def _shadow_of(view: ast.expr, what: str) -> ast.expr:
    """The same view of the shadow of an array."""
    match view:
        case ast.Name(id=array):
            return name(f"{array}__{what}")
        case ast.Subscript(value=array, slice=index):
            return ast.Subscript(_shadow_of(array, what), index, ast.Load())
        case ast.Attribute(value=array, attr=attribute):
            return ast.Attribute(_shadow_of(array, what), attribute, ast.Load())
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, _shadow_of(body, what), _shadow_of(orelse, what))
        case ast.Tuple(elts=views):
            return ast.Tuple([_shadow_of(each, what) for each in views], ast.Load())
        case ast.Call(func=ast.Name() as function, args=[record, *others]):
            return ast.Call(function, [_shadow_of(record, what), *others], [])
        case ast.Call(func=ast.Attribute(value=array, attr="view")):
            return _shadow_of(array, what)
        case ast.Call(func=ast.Attribute() as method, args=others):
            return ast.Call(_shadow_of(method, what), others, [])
    return view


class Diagnosed(Checked):
    """Writes code that tells what the first mistake is."""

    fault = "(3, {}), numba.int64"
    readers = "readers"


class Traced(Watched):
    """Writes code that writes down what it does: see `notes`.

    `step` tells dynamic instances apart: it grows with each region, and a loop that threads run for
    themselves mixes the number of its turn into it.
    """

    parameters = ("run__log", "run__marks", "run__counts", "run__bases")
    nobody = "-1"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps = ["run__step"]

    @staticmethod
    def extra_types(
        kinds: tuple[types.Type, ...], shadowed: Mapping[int, bool]
    ) -> tuple[types.Type, ...]:
        """The types of the tables, and of how many rows they have."""
        table, row = (types.Array(types.int64, n, "C") for n in (2, 1))
        return table, table, row, row

    def write(self) -> None:
        """Write the function's body."""
        self.text.line("run__step = 0")
        super().write()

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        super().declare(array)
        if array.space == "shared":
            number = list(self.form.arrays).index(array.name)
            origin = ", ".join("0" for _ in array.shape)
            self.text.line(
                f"run__bases[{number}] = run__trace.address_of({array.name}, ({origin},))"
            )

    def strip(self, body: list[Node]) -> None:
        """A step begins."""
        self.text.line("run__step += 1")
        super().strip(body)

    def ran(self, region: Lanes, header: int) -> None:
        """Take the note from a loop whose turns depend on each other."""
        self.text.lines[header] = self.text.lines[header].replace(f"  {LANES}", "")

    def here(self) -> str:
        """Block, thread and step, as arguments of a call."""
        return f"block, {self.thread()}, {self.steps[-1]}"

    def call(self, function: str, spot: Spot, kind: str, *given: str) -> str:
        """A call of `notes`."""
        known = [ast.unparse(spot.view), "run__log", "run__counts", self.place(spot, kind)]
        return f"run__trace.{function}({', '.join([*known, self.here(), spot.index, *given])})"

    def read(self, spot: Spot, own: bool) -> str:
        """The call that stands for the index of an element that is read."""
        return self.call("trace", spot, "read")

    def put(self, spot: Spot, value: str) -> list[ast.stmt]:
        """The statement that stands for an assignment to an element."""
        return ast.parse(self.call("trace_write", spot, "write", value)).body

    def atomic(self, spot: Spot) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        return self.call("trace", spot, "atomic")

    def executed(self, mark: ast.Expr) -> ast.Expr:
        """The call that stands for the mark of a statement."""
        assert isinstance(mark.value, ast.Call)
        number = ast.unparse(mark.value.args[0])
        call = f"run__trace.execute(run__marks, run__counts, {number}, {self.here()})"
        return ast.Expr(parse(call))

    def own_loop(self, loop: ast.For | ast.While) -> list[ast.stmt]:
        """A loop that each thread runs for itself, with a step for each turn."""
        step = self.names.fresh("run__step_")
        before = ast.parse(f"{step} = {self.steps[-1]} * 1000003").body
        self.steps.append(step)
        self.rewriter.generic_visit(loop)
        self.steps.pop()
        loop.body = [*ast.parse(f"{step} += 1").body, *loop.body]
        return [*before, loop]


MARK = "executed"


def marked(form: Canonical) -> Canonical:
    """A kernel with a mark before each statement, and at the start of each turn of a loop.

    A mark holds the number of its statement in `Canonical.marked`.
    """
    found: list[ast.stmt] = []
    return replace(form, body=_marked(form.body, found), marked=found)


def _marked(body: list[ast.stmt], found: list[ast.stmt]) -> list[ast.stmt]:
    new: list[ast.stmt] = []
    for statement in body:
        mark = ast.parse(f"{MARK}({len(found)})").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        found.append(statement)
        own = copy.copy(statement)
        if isinstance(own, ast.For | ast.While):
            own.body = [mark, *_marked(own.body, found)]
            new.append(own)
            continue
        if isinstance(own, ast.If):
            own.body, own.orelse = (_marked(part, found) for part in (own.body, own.orelse))
        new += [mark, own]
    return new

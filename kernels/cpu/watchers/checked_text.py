"""The text of the checked mode: each access asks `shadow` whether it is a mistake."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numba.core import types

from ..compiler import LANES
from ..form import WARP, Array, orders_a_warp
from ..regions import Barrier, Lanes, Loop, Meeting, Node
from ..source import place as place_in_file
from ..trees import assign, name, parse, walk
from .instrument import Spot, Watched
from .intervals import Intervals
from .shadow import ALL, MOST_COMMON_TURNS, NOTES, ROWS, shadow_type


@dataclass(frozen=True)
class Difference:
    """Where a GPU may compute otherwise than a CPU."""

    filename: str
    line: int
    text: str
    what: str  # "nan", or the type that a number becomes


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
        self.counters: list[str] = []  # of the turns of a thread's loops, outermost first
        self.common = 0  # how many `while` at block level are around

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
        rows = WARP * self.threads if any(map(orders_a_warp, walk(self.form.body))) else 0
        self.text.line(f"run__clock = stack(({ROWS + rows},), numba.int64)")
        self.text.line("run__clock[:] = 0")
        self.text.line(f"run__fault = stack({self.fault.format(self.threads)})")
        self.text.line("run__fault[:] = 0")
        self.text.line(f"run__differs = stack(({self.threads},), numba.int32)")
        self.text.line("run__differs[:] = 0")
        self.text.line("run__turns = stack((2,), numba.int64)")
        self.text.line("run__turns[:] = 0")
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

    def walked(self, loop: Loop) -> None:
        """A `while` at block level, until a mistake, or too many turns, end it.

        Counted are the turns of all threads, with those of the loops inside.
        """
        assert isinstance(loop.header, ast.While)
        before = self.names.fresh("run__before")
        self.text.line(f"{before} = run__turns[{ALL}]")
        self.common += not loop.is_counted
        with self.text.block(f"while {self.source(loop.header.test)}:"):
            self.text.line(f"run__turns[{ALL}] += {self.threads}")
            if not loop.is_counted:
                place = self.place_of_loop(loop.header, "block")
                taken = f"run__turns[{ALL}] - {before}"
                given = f"{place}, 0, {taken}, {MOST_COMMON_TURNS}"
                self.text.line(f"run__checks.turned(run__turns, run__fault, {given})")
            self.stop()
            self.compound_body(loop.body)
        self.common -= not loop.is_counted

    def counted(self, loop: ast.For, body: list[Node]) -> None:
        """A `for` at block level, whose turns count for a `while` around it."""
        with self.text.block(self.head(loop)):
            if self.common:
                self.text.line(f"run__turns[{ALL}] += {self.threads}")
            self.compound_body(body)

    def own_loop(self, loop: ast.For | ast.While) -> Any:
        """A loop that each thread runs for itself, while all is well and it may end.

        The turns of a `while` are counted, with those of the loops inside.
        """
        around = self.counters[-1:] or [f"run__turns[{ALL}]"] * bool(self.common)
        if isinstance(loop, ast.For) and not around:
            return self.rewriter.generic_visit(loop)
        self.in_order = True
        place = self.place_of_loop(loop, "thread") if isinstance(loop, ast.While) else ""
        turns = self.names.fresh("run__own_turns")
        self.counters.append(turns)
        self.rewriter.generic_visit(loop)
        self.counters.pop()
        if isinstance(loop, ast.While):
            given = f"run__turns, run__fault, {place}, {self.thread()}, {turns}"
            loop.test = ast.BoolOp(ast.And(), [parse(f"run__checks.goes_on({given})"), loop.test])
        loop.body = [*_more([turns], "1"), *loop.body]
        return [assign(turns, ast.Constant(0)), loop, *_more(around, turns)]

    def failed(self, statement: ast.Assert) -> ast.stmt:
        """An `assert` that does not hold."""
        assert isinstance(statement.msg, ast.Constant)
        place = self.numbered_place(statement, str(statement.msg.value), (), "", "assert", 0, 0)
        return ast.Expr(parse(f"run__checks.failed(run__fault, {place}, {self.thread()})"))

    def place_of_loop(self, loop: ast.While, of: str) -> str:
        """Number a loop of a thread or of the block; return its number as text."""
        return self.numbered_place(loop, "", (), of, "turn", 0, 0)

    def stop(self) -> None:
        """End the block if a thread has noted something."""
        with self.text.block("if run__checks.faulty(run__fault, run__found, block):"):
            self.text.line("return -1")

    def barrier(self, node: Barrier) -> None:
        """Move the clock on for all threads; who has noted something need not come here."""
        self.stop()
        super().barrier(node)
        self.text.line("run__checks.all_met(run__clock)")

    def meeting(self, node: Meeting) -> None:
        """Move the clock on for the lanes that meet."""
        assert node.syncwarp is not None
        masks = self.source(node.syncwarp.args[0])
        here = f", {self.slot_names[node.mask]}" if node.mask else ""
        self.text.line(f"run__checks.some_met(run__clock, {self.threads}, {masks}{here})")

    def arrives(self, node: ast.Call) -> ast.stmt:
        """Ask whether those are here whom a lane names in its mask."""
        operation, *given = node.args
        place = self.place_of_meeting(node, operation)
        known = ["run__fault", place, str(self.threads), *map(ast.unparse, given)]
        return ast.Expr(parse(f"run__checks.arrives({', '.join(known)})"))

    def origin(self, node: ast.Call) -> ast.expr:
        """Where what a shuffle takes comes from."""
        operation, *given = node.args
        known = [self.place_of_meeting(node, operation), *map(ast.unparse, given)]
        return parse(f"run__checks.origin_of_{ast.literal_eval(operation)}({', '.join(known)})")

    def seen(self, node: ast.Call) -> ast.expr:
        """Ask where a value comes from that somebody sees."""
        place = self.place_of_meeting(node, ast.Constant(""))
        known = [*map(ast.unparse, node.args), "run__fault", place, self.thread()]
        return parse(f"run__checks.seen({', '.join(known)})")

    def place_of_meeting(self, node: ast.Call, operation: ast.expr) -> str:
        """Number a place where lanes of a warp wait for others; return its number as text."""
        return self.numbered_place(node, ast.literal_eval(operation), (), "", "meeting", 0, 1)

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

    def atomic(self, spot: Spot, swaps: bool) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        meets = self.intervals.meets_readers(spot.view)
        return self.among_others(
            "swap" if swaps and meets else "change", spot, "atomic", spot.index
        )

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


def _more(counters: list[str], turns: str) -> list[ast.stmt]:
    """Add turns to a counter, if there is one."""
    return [statement for own in counters for statement in ast.parse(f"{own} += {turns}").body]


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

    fault = f"({NOTES}, {{}}), numba.int64"
    readers = "readers"

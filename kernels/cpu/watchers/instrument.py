"""Emitted code that is watched: each access to an array goes through a call.

`tile[i, j]` is read as `tile[read(tile, ..., (i, j))]`, and `tile[i, j] = v` becomes `write(tile,
..., (i, j), v)`. What the calls do is up to the module that the emitted code imports: `shadow`
looks for mistakes, `notes` writes everything down. Each access in the text has a number, its
*place*.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field, replace
from typing import Any

from numba.core import types

from .. import emit
from ..canonical import Array, Canonical, is_atomic
from ..compiler import LANES
from ..regions import Barrier, Branch, Lanes, Loop, Node, Regions, Scalar, Strip, all_lanes
from ..source import place as place_in_file
from ..uniformity import Uniformity, base_name, exposed, is_shape
from .shadow import CLOCK

WRITES = ("writes",)


@dataclass(frozen=True)
class Place:
    """An access in a kernel's text."""

    filename: str
    line: int
    column: int
    array: str
    space: str  # "global", "shared" or "local"
    kind: str  # "read", "write" or "atomic"
    indices: int
    packed: int  # how many numbers say which element: for local arrays the thread's too


@dataclass
class Arrays:
    """What is known of a kernel's arrays and of the views of them."""

    uniformity: Uniformity
    roots: dict[str, set[str]] = field(default_factory=dict)  # view -> what it may be a view of

    @property
    def form(self) -> Canonical:
        """The kernel."""
        return self.uniformity.form

    def __post_init__(self) -> None:
        form = self.form
        own = {*form.parameters, *form.arrays}
        views = set(form.ndims) - own
        self.roots = {name: {name} for name in own}
        found: dict[str, set[str]] = {view: set() for view in views}
        for node in (inner for statement in form.body for inner in ast.walk(statement)):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target in views:
                    found[target] |= {
                        n.id for n in ast.walk(value)
                        if isinstance(n, ast.Name) and n.id in form.ndims.keys() | own
                    }  # fmt: skip
        while True:
            larger = {v: set().union(*(found.get(n, {n}) for n in names)) | names
                      for v, names in found.items()}  # fmt: skip
            if larger == found:
                break
            found = larger
        self.roots |= {view: names - views for view, names in found.items()}
        outputs = self.uniformity.written & set(form.parameters)
        self.roots |= {name: {name} | outputs for name in self.uniformity.aliased & own}

    def space(self, name: str) -> str:
        """Where an array or a view lies."""
        spaces = {self.form.arrays[r].space if r in self.form.arrays else "global"
                  for r in self.roots[name]}  # fmt: skip
        return spaces.pop() if len(spaces) == 1 else "global"

    def ndim(self, name: str) -> int:
        """How many indices lead to an element."""
        array = self.form.arrays.get(name)
        return len(array.shape) if array else self.form.ndims.get(name, 0)

    def is_written(self, name: str) -> bool:
        """Whether the kernel writes to an array, or to what shares a view with it."""
        written = self.uniformity.written | set(self.form.arrays)
        shared_views = [roots for roots in self.roots.values() if roots & self.roots[name]]
        return any(roots & written for roots in shared_views)

    def of(self, node: ast.Subscript) -> str | None:
        """The array or view that a subscript takes an element or a row of."""
        value = node.value
        if isinstance(value, ast.Subscript) and _is_field(value):
            value = value.value
        name = value.id if isinstance(value, ast.Name) else None
        return name if name in self.roots else None


def _is_field(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


def indices_of(node: ast.Subscript) -> list[ast.expr]:
    """The indices of a subscript."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


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
            reads, writes = self.uses(region.body)
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
                    if any(isinstance(n, ast.Break | ast.Continue) for n in _statements(body)):
                        for interval in range(first, len(self.parent)):
                            end = self.join(interval, end)
                    now = self.join(end, now)
        return now

    def uses(self, body: list[ast.stmt]) -> tuple[set[str], set[str]]:
        """The arrays that statements read, and those that they write, by their roots."""
        reads: set[str] = set()
        writes: set[str] = set()
        own = {id(node) for node in own_reads(body)}
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if isinstance(node, ast.Subscript) and not is_shape(node):
                name = self.arrays.of(node)
                if name and id(node) not in own:
                    stored = isinstance(node.ctx, ast.Store)
                    (writes if stored else reads).update(self.arrays.roots[name])
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                writes |= self.arrays.roots.get(base_name(node) or "", set())
            elif is_atomic(node):
                assert isinstance(node, ast.Call)
                writes |= self.arrays.roots.get(base_name(node.args[0]) or "", set())
        return reads, writes

    def is_written(self, region: Lanes, name: str) -> bool:
        """Whether anybody may write to an array in the interval of a region."""
        written = self.written.get(self.find(self.of[region]), set())
        return bool(written & self.arrays.roots[name])

    def meets_readers(self, name: str) -> bool:
        """Whether somebody may read an array while somebody else writes to it."""
        roots = self.arrays.roots[name]
        if self.arrays.space(name) == "global":  # there is no barrier between blocks
            return any(read & roots for read in self.read.values())
        return any(self.read.get(i, set()) & roots & self.written[i] for i in self.written)

    def keeps_readers(self, name: str) -> bool:
        """Whether the shadow for readers has an array's shape: that of a view is a view of it."""
        views = (roots for view, roots in self.arrays.roots.items() if view not in roots)
        return self.meets_readers(name) or any(name in roots for roots in views)


def own_reads(body: list[ast.stmt]) -> list[ast.Subscript]:
    """The reads of an element that the same statement writes to.

    They clash with nothing that the write would not clash with.
    """
    return [
        node
        for statement in body for assignment in ast.walk(statement)
        if isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Subscript)
        for node in ast.walk(assignment.value)
        if isinstance(node, ast.Subscript)
        and ast.unparse(node) == ast.unparse(assignment.targets[0])
    ]  # fmt: skip


def _statements(nodes: list[Node]) -> list[ast.AST]:
    """Everything at block level in a tree."""
    found: list[ast.AST] = []
    for node in nodes:
        match node:
            case Scalar(statement):
                found += ast.walk(statement)
            case Loop(_, body) | Strip(body):
                found += _statements(body)
            case Branch(_, body, orelse):
                found += _statements(body) + _statements(orelse)
    return found


# The text -----------------------------------------------------------------------------------------


class Watched(emit.Body):
    """Writes code whose accesses are calls."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.arrays = Arrays(self.uniformity)
        self.places: list[Place] = []
        self.region: Lanes | None = None
        self.unwatched = self.rewriter
        self.rewriter = Watcher(self, self.lane, self.slot_names)

    def access(self, node: ast.Subscript, name: str, kind: str) -> str:
        """Number an access to an array; return its number as text."""
        filename, line = place_in_file(node)
        indices = len(indices_of(node))
        space = self.arrays.space(name)
        packed = indices + (len(self.rewriter.lane) if space == "local" else 0)
        self.places.append(
            Place(filename, line, node.col_offset, name, space, kind, indices, packed)
        )
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

    def read_ahead(self, body: list[ast.stmt]) -> None:
        """Watched code does not ask for memory ahead."""

    def read(self, node: ast.Subscript, name: str, index: str, own: bool) -> str:
        """The call that stands for the index of an element that is read.

        An `own` read is that of an element that the same statement writes to.
        """
        raise NotImplementedError

    def row(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of a row, of which nothing is read yet."""
        return index

    def put(self, node: ast.Subscript, name: str, index: str, value: str) -> list[ast.stmt]:
        """The statements that stand for an assignment to an element."""
        raise NotImplementedError

    def claim(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of a record of which a field is written."""
        raise NotImplementedError

    def atomic(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        raise NotImplementedError

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
        made = [ast.Assign([ast.Name(target, ast.Store())], new)]
        views = self.view(target, new) if target in self.form.ndims else []
        self.text.statements([*made, *views])


class Watcher(emit.Rewriter):
    """Turns accesses into calls."""

    def __init__(self, body: Any, *others: Any) -> None:
        super().__init__(body.uniformity, *others)
        self.body = body
        self.own: list[ast.Subscript] = []  # reads of what the statement writes to

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element that is read."""
        if isinstance(node.value, ast.Subscript) and not (_is_field(node.value) or _is_field(node)):
            inner, outer = indices_of(node.value), indices_of(node)
            if not any(isinstance(i, ast.Slice) for i in inner + outer):  # a[i][j] as a[i, j]
                joined = ast.Tuple([*inner, *outer], ast.Load())
                merged = ast.Subscript(node.value.value, joined, node.ctx)
                return self.visit(ast.copy_location(merged, node))
        name = self.element_of(node)
        if name is None or _is_field(node) or isinstance(node.ctx, ast.Store):
            return self.generic_visit(node)
        place, index = copy.copy(node), self.index(node)
        if len(indices_of(node)) < self.body.arrays.ndim(name):
            call = self.body.row(place, name, index)
        else:
            own = any(node is read for read in self.own)
            call = self.body.read(place, name, index, own)
        node.slice = ast.parse(call, mode="eval").body
        return node

    def element_of(self, node: ast.Subscript) -> str | None:
        """The array or view that a subscript takes one element or row of, not a slice."""
        sliced = any(isinstance(index, ast.Slice) for index in indices_of(node))
        name: str | None = self.body.arrays.of(node)
        return None if sliced else name

    def index(self, node: ast.Subscript) -> str:
        """The indices of an element, as the text of a tuple."""
        indices = [self.visit(index) for index in indices_of(node)]
        array = self.form.arrays.get(self.body.arrays.of(node) or "")
        if array and array.space == "local":
            indices += self.lane
        return ast.unparse(ast.fix_missing_locations(ast.Tuple(indices, ast.Load())))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """An element that is read and written."""
        if isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        old = copy.deepcopy(node.target)
        old.ctx = ast.Load()
        new = ast.Assign([node.target], ast.BinOp(old, node.op, node.value))
        return self.visit(ast.copy_location(new, node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        """An element, a field or a view that is assigned."""
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and (name := self.element_of(target)):
            self.own = own_reads([node])
            value = ast.unparse(ast.fix_missing_locations(self.visit(node.value)))
            return self.body.put(target, name, self.index(target), value)
        record = target.value if isinstance(target, ast.Attribute) else None
        if isinstance(record, ast.Subscript) and (name := self.element_of(record)):
            node.value = self.visit(node.value)
            call = self.body.claim(record, name, self.index(record))
            record.slice = ast.parse(call, mode="eval").body
            return node
        if isinstance(target, ast.Name) and target.id in self.form.ndims:
            return [self.generic_visit(node), *self.body.view(target.id, node.value)]
        return self.generic_visit(node)

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
        """An atomic, or any other call."""
        if not is_atomic(node):
            return self.generic_visit(node)
        array, *others = node.args
        whole = isinstance(node.func, ast.Name) and node.func.id == "atomic_compare_and_swap"
        index = ast.Constant(0) if whole else others[0]
        access = ast.copy_location(ast.Subscript(array, index, ast.Load()), node)
        name = self.body.arrays.of(access)
        others = [self.visit(other) for other in (others if whole else others[1:])]
        if name is None:
            return node
        call = self.body.atomic(access, name, self.index(access))
        at = ast.parse(call, mode="eval").body
        node.args = [array, *others] if whole else [array, at, *others]
        if whole:
            node.func = ast.Name("atomic_cas", ast.Load())
            node.args.insert(1, at)
        return node


class Checked(Watched):
    """Writes code that asks whether there are mistakes: see `shadow`."""

    fault = "({},), numba.int32"
    readers: tuple[str, ...] = ()  # how many readers of an element are known

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.intervals = Intervals(self.regions, self.arrays)
        self.shadowed = [p for p in self.form.parameters if self.is_shadowed(p)]
        shadows = [f"{p}__{what}" for p in self.shadowed for what in ("writes", "reads")]
        self.parameters = ("run__found", *shadows)
        self.in_order = False  # does the region being written depend on the order of its threads?

    def extra_types(self) -> tuple[types.Type, ...]:
        """The types of the arguments besides the kernel's own."""
        found = [types.Array(types.int64, 1, "C")]
        for name in self.shadowed:
            ndim = self.form.ndims[name]
            reads = ndim + len(self.readers)
            found += [types.Array(types.int64, n, "C") for n in (ndim, reads)]
        return tuple(found)

    def is_shadowed(self, name: str) -> bool:
        """Whether an argument has shadow memory."""
        return name in self.form.ndims and self.arrays.is_written(name)

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        super().declare(array)
        lane = [self.lane_shape] if array.space == "local" else []
        if array.is_dynamic:
            writes, reads = "dynamic_bytes__writes", "dynamic_bytes__reads"
            if not any(writes in line for line in self.text.lines):
                self.shadow("dynamic_bytes", [str(self.form.shared_bytes)], with_reads=True)
            step = f"{array.name}.itemsize"
            self.text.line(f"{array.name}__writes = {writes}[::{step}]")
            self.text.line(f"{array.name}__reads = {reads}[::{step}]")
            return
        sizes = [*map(str, array.shape), *lane]
        if array.space == "local":
            name = f"{array.name}__writes"
            self.text.line(f"{name} = stack(({', '.join(sizes)},), numba.int32)\n{name}[...] = 0")
            return
        self.shadow(array.name, sizes, with_reads=self.intervals.keeps_readers(array.name))

    def shadow(self, name: str, sizes: list[str], *, with_reads: bool) -> None:
        """Shadow memory on the stack, cleared."""
        rank = len(", ".join(sizes).split(","))
        reads = [*(sizes if with_reads else ["1"] * rank), *self.readers]
        for what, shape in ("writes", sizes), ("reads", reads):
            self.text.line(f"{name}__{what} = stack(({', '.join(shape)},), numba.int64)")
            self.text.line(f"{name}__{what}[...] = 0")

    def write(self) -> None:
        """Write the function's body."""
        self.text.line(f"run__clock = stack(({CLOCK},), numba.int64)")
        self.text.line(f"run__fault = stack({self.fault.format(self.threads)})")
        self.text.line("run__fault[:] = 0")
        super().write()

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        x, y, z = self.form.block
        return x * y * z

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
            self.stop()

    def turn(self) -> None:
        """End a loop that a mistake keeps going."""
        self.stop()  # a mistake may keep the loop going

    def own_loop(self, loop: ast.For | ast.While) -> Any:
        """A loop that each thread runs for itself, while all is well."""
        super().own_loop(loop)
        if isinstance(loop, ast.While):  # a mistake may keep it going
            fine = ast.parse(f"run__checks.is_fine(run__fault, {self.thread()})", mode="eval").body
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

    def row(self, node: ast.Subscript, name: str, index: str) -> str:
        """Check the index of a row, of which nothing is read yet."""
        place, thread = self.access(node, name, "read"), self.thread()
        return f"run__checks.within({name}, run__fault, {place}, {thread}, {index})"

    def read(self, node: ast.Subscript, name: str, index: str, own: bool) -> str:
        """The call that stands for the index of an element that is read."""
        space = self.arrays.space(name)
        if not self.arrays.is_written(name) or (own and space == "global"):
            return self.row(node, name, index)
        place = self.access(node, name, "read")
        if space == "local":
            return self.call("read_own", name, WRITES, place, index)
        quiet = self.region is not None and not self.intervals.is_written(self.region, name)
        if space == "shared" and (quiet or own):
            return self.call("read_alone", name, WRITES, place, index)
        return self.among_others("read", node, name, place, index)

    def put(self, node: ast.Subscript, name: str, index: str, value: str) -> list[ast.stmt]:
        """The statement that stands for an assignment to an element."""
        place, space = self.access(node, name, "write"), self.arrays.space(name)
        if space == "local":
            call = self.call("write_own", name, WRITES, place, index, value)
        elif not self.intervals.meets_readers(name):
            self.in_order |= not self.is_apart(node, name)
            is_global = str(space == "global")
            call = self.call("write_alone", name, WRITES, place, is_global, index, value)
        else:
            call = self.among_others("write", node, name, place, index, value)
        return ast.parse(call).body

    def claim(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of a record of which a field is written."""
        place = self.access(node, name, "write")
        return self.among_others("change", node, name, place, "0", index)

    def atomic(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        place = self.access(node, name, "atomic")
        return self.among_others("change", node, name, place, "run__checks.ATOMIC", index)

    def among_others(self, function: str, node: ast.Subscript, name: str, *rest: str) -> str:
        """A call that needs to know both who writes and who reads."""
        self.in_order |= not self.is_apart(node, name)
        place, *given = rest
        is_global = str(self.arrays.space(name) == "global")
        return self.call(function, name, ("writes", "reads"), place, is_global, *given)

    def call(self, function: str, name: str, shadows: tuple[str, ...], *rest: str) -> str:
        """A call of `shadow`."""
        place, *given = rest
        words = ", ".join(f"{name}__{what}" for what in shadows)
        known = f"run__clock, run__fault, {place}, {self.thread()}, {', '.join(given)}"
        return f"run__checks.{function}({name}, {words}, {known})"

    def view(self, name: str, value: ast.expr) -> list[ast.stmt]:
        """The shadow of a view is the same view of the shadow."""
        if not self.arrays.is_written(name):
            return []
        return [
            ast.Assign([ast.Name(f"{name}__{what}", ast.Store())], _shadow_of(value, what))
            for what in ("writes", "reads")
        ]

    def is_apart(self, node: ast.Subscript, name: str) -> bool:
        """Whether the threads of a row surely access different elements."""
        if self.arrays.space(name) == "local":
            return True
        return any(self.runs_along(index) for index in indices_of(node))


def _shadow_of(view: ast.expr, what: str) -> ast.expr:
    """The same view of the shadow of an array."""
    match view:
        case ast.Name(id=array):
            return ast.Name(f"{array}__{what}", ast.Load())
        case ast.Subscript(value=array, slice=index):
            return ast.Subscript(_shadow_of(array, what), index, ast.Load())
        case ast.Attribute(value=array, attr=attribute):
            return ast.Attribute(_shadow_of(array, what), attribute, ast.Load())
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, _shadow_of(body, what), _shadow_of(orelse, what))
    return view


class Diagnosed(Checked):
    """Writes code that tells what the first mistake is."""

    fault = "(3, {}), numba.int64"
    readers = ("4",)


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

    def extra_types(self) -> tuple[types.Type, ...]:
        """The types of the arguments besides the kernel's own."""
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

    def strip(self) -> None:
        """A step begins."""
        self.text.line("run__step += 1")

    def ran(self, region: Lanes, header: int) -> None:
        """Take the note from a loop whose turns depend on each other."""
        self.text.lines[header] = self.text.lines[header].replace(f"  {LANES}", "")

    def here(self) -> str:
        """Block, thread and step, as arguments of a call."""
        return f"block, {self.thread()}, {self.steps[-1]}"

    def read(self, node: ast.Subscript, name: str, index: str, own: bool) -> str:
        """The call that stands for the index of an element that is read."""
        place = self.access(node, name, "read")
        return f"run__trace.trace({name}, run__log, run__counts, {place}, {self.here()}, {index})"

    def put(self, node: ast.Subscript, name: str, index: str, value: str) -> list[ast.stmt]:
        """The statement that stands for an assignment to an element."""
        place = self.access(node, name, "write")
        given = f"{name}, run__log, run__counts, {place}, {self.here()}, {index}, {value}"
        return ast.parse(f"run__trace.trace_write({given})").body

    def claim(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of a record of which a field is written."""
        place = self.access(node, name, "write")
        return f"run__trace.trace({name}, run__log, run__counts, {place}, {self.here()}, {index})"

    def atomic(self, node: ast.Subscript, name: str, index: str) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        place = self.access(node, name, "atomic")
        return f"run__trace.trace({name}, run__log, run__counts, {place}, {self.here()}, {index})"

    def executed(self, mark: ast.Expr) -> ast.Expr:
        """The call that stands for the mark of a statement."""
        assert isinstance(mark.value, ast.Call)
        number = ast.unparse(mark.value.args[0])
        call = f"run__trace.execute(run__marks, run__counts, {number}, {self.here()})"
        return ast.Expr(ast.parse(call, mode="eval").body)

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

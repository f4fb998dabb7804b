"""Emitted code that is watched: each access to an array goes through a call.

`tile[i, j]` is read as `tile[read(tile, ..., (i, j))]`, and `tile[i, j] = v` becomes `write(tile,
..., (i, j), v)`. What the calls do is up to the module that the emitted code imports: `shadow`
looks for mistakes, `notes` writes everything down. Each access in the text has a number, its
*place*.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from ..emit import Body
from ..errors import KernelError
from ..form import called_name, is_atomic
from ..paths import indices_of, is_field, is_part, owners
from ..regions import Lanes
from ..rewriter import Rewriter
from ..source import place as place_in_file
from ..trees import assign, call, copied, located, name, nodes, parse
from ..uniformity import exposed, is_shape
from .elements import Arrays, Element, is_choice, is_record, numbers_in, own_reads
from .shadow import PLACES

MARK = "executed"  # the call that marks a statement


@dataclass(frozen=True)
class Place:
    """An access in a kernel's text, or a loop; or an `assert`, whose text stands for `array`."""

    filename: str
    line: int
    array: str
    fields: tuple[str, ...]  # of a record that is the array's element
    space: str  # "global", "shared" or "local"; of a loop who walks it, a "thread" or the "block"
    kind: str  # "read", "write", "atomic", of a row or a slice "part"; else "turn" or "assert"
    itemsize: int  # bytes of the number
    indices: int


@dataclass(frozen=True)
class Spot:
    """A place in memory, in the text that is being written."""

    node: ast.expr  # what stands for it in the kernel's text
    element: Element
    array: str  # the name that it is told by
    view: ast.expr
    index: str


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
        element = spot.element
        itemsize = as_dtype(element.kind.dtype).itemsize
        known = element.fields, self.arrays.space(spot.view), kind, itemsize, len(element.indices)
        return self.numbered_place(spot.node, spot.array, *known)

    def numbered_place(self, node: ast.AST, *known: Any) -> str:
        """Number a place in the kernel's text, of which so much is known; the number as text."""
        if len(self.places) == PLACES:
            raise KernelError(f"kernel {self.form.source.name!r} has too many accesses to watch")
        self.places.append(Place(*place_in_file(node), *known))
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

    def failed(self, statement: ast.Assert) -> ast.stmt:
        """An `assert` that does not hold."""
        return ast.Pass()

    def arrives(self, node: ast.Call) -> ast.stmt:
        """A thread comes to `cuda.syncwarp()`, or takes what others sent."""
        return ast.Pass()

    def origin(self, node: ast.Call) -> ast.expr:
        """The origin of what a shuffle takes: see `origins`."""
        raise NotImplementedError

    def seen(self, node: ast.Call) -> ast.expr:
        """A value that somebody sees, with its origin."""
        raise NotImplementedError

    def view(self, name: str, value: ast.expr) -> list[ast.stmt]:
        """What goes with the assignment of a view."""
        return []

    def define(self, target: str, value: ast.expr) -> None:
        """A value that is made again; with a view goes what belongs to it."""
        new = self.rewriter.visit(copied(value))
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
        view = ast.fix_missing_locations(self.visit(copied(element.view)))
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
            for inner in nodes(node)
        )  # fmt: skip

    # What is written

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """An element that is read and written."""
        if isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        old = copied(node.target)
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
        text, value = copied(node), self.visit(node.value)
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

    def visit_Assert(self, node: ast.Assert) -> Any:
        """What a thread meets where an `assert` does not hold."""
        return self.body.failed(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A mark, or a call for its effect."""
        match node.value:
            case ast.Call(func=ast.Name(id=called)) if called == MARK:
                return self.body.executed(node)
            case ast.Call(func=ast.Name(id="warp_arrives")) as call:
                return self.body.arrives(self.generic_visit(call))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """An atomic, or any other call; those that a GPU may compute otherwise are watched."""
        if not is_atomic(node):
            text = copied(node)
            self.generic_visit(node)
            match node:
                case ast.Call(ast.Name(id="warp_origin")):
                    return self.body.origin(node)
                case ast.Call(ast.Name(id="warp_seen")):
                    return self.body.seen(node)
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
        whole = called_name(node) == "atomic_compare_and_swap"
        swaps = whole or called_name(node) == "atomic_cas"
        index = ast.Constant(0) if whole else others.pop(0)
        access = ast.copy_location(ast.Subscript(array, index, ast.Load()), node)
        found = self.arrays.element(access)
        if found is None or not found.is_number:
            return self.generic_visit(node)
        others = [self.visit(other) for other in others]
        spot = self.spot(access, found)
        node.args = [spot.view, parse(self.body.atomic(spot, swaps)), *others]
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
    part = copied(node)
    if isinstance(part, ast.Subscript | ast.Attribute):
        part.ctx = ast.Load()
    for step in way:
        index = step if isinstance(step, ast.Name) else ast.Constant(step)
        part = ast.Subscript(part, index, ast.Load())
    return part


def _located(statement: Any, like: ast.AST) -> Any:
    """A new statement, at the place of another, that assigns to what it names as its targets."""
    for node in nodes(statement):
        if isinstance(node, ast.Assign):
            node.targets[0].ctx = ast.Store()  # type: ignore[attr-defined]
    return located(statement, like)

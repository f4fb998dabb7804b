"""Step 5: which values are the same for every thread of a block, and which loops all threads share.

A value is *uniform* when it is built only from arguments, shapes, constants, block indices and
other uniform values, under uniform control flow; it is *varying* otherwise, and when in doubt. A
loop with uniform bounds is walked by all threads in step, so it can stand outside the loop over the
threads: it runs *at block level*. So can a loop whose threads start at different points but share
the stop and the step, the usual way to share work out (`for i in range(threadIdx.x, n,
blockDim.x)`): all threads make the same number of *trips*, some with nothing to do in the last.

A loop in which threads wait for others, though each leaves it when it likes, is walked by all of
them until the last has left, under a *mask* of those that are still in it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .form import Canonical, Whole, is_atomic, is_meeting, is_vote
from .paths import indices_of, owners
from .source import Source
from .trees import named, names_in, nodes, stores, walk

BLOCKS = {"block_x", "block_y", "block_z"}
THREADS = {"thread_x", "thread_y", "thread_z"}
UNIFORM_ATTRIBUTES = {"shape", "size", "ndim"}
POSITIVE = {"BLOCK_X", "BLOCK_Y", "BLOCK_Z", "grid_x", "grid_y", "grid_z"}
Loop = ast.For | ast.While


def base_name(node: ast.AST) -> str | None:
    """The array's name in `array[i]`, `array[i][j]` or `array.T[i]`; None for anything else."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_shape(node: ast.AST) -> bool:
    """Whether a node is `array.shape`, `array.shape[i]` or the like."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr in UNIFORM_ATTRIBUTES


def has_meeting(node: ast.AST) -> bool:
    """Whether threads wait for others somewhere in a statement."""
    return any(map(is_meeting, nodes(node)))


def range_arguments(loop: ast.For) -> tuple[ast.expr, ast.expr, ast.expr]:
    """Start, stop and step of a `for ... in range(...)`."""
    zero, one = ast.Constant(0), ast.Constant(1)
    match loop.iter:
        case ast.Call(func=ast.Name(id="range"), args=[stop]):
            return zero, stop, one
        case ast.Call(func=ast.Name(id="range"), args=[start, stop]):
            return start, stop, one
        case ast.Call(func=ast.Name(id="range"), args=[start, stop, step]):
            return start, stop, step
    raise ValueError(ast.unparse(loop))


@dataclass(frozen=True)
class Uniformity:
    """The varying names of a kernel, and the loops that run at block level."""

    form: Canonical
    aliased: frozenset[str]  # arguments that share memory with one that is written to
    written: frozenset[str]  # arrays that may change
    assignments: Mapping[str, int]  # how many there are to a name; 0 of those not here
    definitions: Mapping[str, ast.expr]  # of names with one assignment
    loops: Mapping[str, ast.For]  # of names that only a loop assigns
    varying: Set[str]
    block_loops: Set[ast.AST] = frozenset()
    trip_loops: Set[ast.AST] = frozenset()
    masked_loops: Set[ast.AST] = frozenset()

    def with_varying(self, *names: str) -> Uniformity:
        """The same with more varying names, which change."""
        assignments = {**self.assignments, **dict.fromkeys(names, 2)}
        return replace(self, varying=self.varying | {*names}, assignments=assignments)

    def with_definition(self, name: str, value: ast.expr) -> Uniformity:
        """The same with one more varying name, which always has this value."""
        return replace(
            self,
            varying=self.varying | {name},
            assignments={**self.assignments, name: 1},
            definitions={**self.definitions, name: value},
        )

    def with_loop(self, loop: ast.For) -> Uniformity:
        """The same with one more loop, which alone assigns its variable."""
        return replace(self, loops={**self.loops, ast.unparse(loop.target): loop})

    def changes(self, name: str) -> bool:
        """Whether there is more than one assignment to a name."""
        return self.assignments.get(name, 0) > 1

    @cached_property
    def local_arrays(self) -> set[str]:
        """The names of local arrays."""
        return {array.name for array in self.form.arrays.values() if array.space == "local"}

    def is_varying(self, node: ast.AST) -> bool:
        """Whether an expression can differ between the threads of a block."""
        if isinstance(node, ast.Name):
            return node.id in self.varying
        if self._reads_a_field(node):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.value.id in self.varying
        if is_vote(node):
            return False
        element = isinstance(node, ast.Subscript) and not is_shape(node) and not self.is_view(node)
        if element and not self._stays_as_it_is(base_name(node)):
            return True
        if is_atomic(node) or self._reads_written_array(node):
            return True
        return any(self.is_varying(child) for child in ast.iter_child_nodes(node))

    def _reads_a_field(self, node: ast.AST) -> bool:
        """Whether an expression is a field of a record that may change: `row.x`, `r[i].x`."""
        if not isinstance(node, ast.Attribute) or is_shape(node):
            return False
        if isinstance(node.value, ast.Name):
            return self.form.ndims.get(node.value.id) == 0 and bool(self.written)
        base = base_name(node)
        return base in self.form.records and not self._stays_as_it_is(base)

    def is_view(self, node: ast.AST) -> bool:
        """Whether an expression is a part of an array, as a slice or a row is, not an element."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            return isinstance(node, ast.Name) and node.id in self.form.ndims
        indices = indices_of(node)
        sliced = any(isinstance(index, ast.Slice) for index in indices)
        record = node.value.id in self.form.records
        return sliced or len(indices) < self.form.ndims.get(node.value.id, 0) + record

    def _reads_written_array(self, node: ast.AST) -> bool:
        """Whether a call gets an array that may change, or a view."""
        if not isinstance(node, ast.Call):
            return False
        given = {base_name(argument) for argument in node.args if not is_shape(argument)}
        measures = isinstance(node.func, ast.Name) and node.func.id == "len"
        arrays = given & (self.form.ndims.keys() | self.form.arrays.keys())
        return not measures and not all(map(self._stays_as_it_is, arrays))

    def _stays_as_it_is(self, array: str | None) -> bool:
        """Whether nobody writes to an array, or to what a call made; not known of a view."""
        made = isinstance(self.definitions.get(array or ""), ast.Call)
        known = made or array in self.form.parameters or array in self.form.source.constants
        return known and array not in self.written

    def is_positive(self, node: ast.AST) -> bool:
        """Whether an expression is surely greater than zero (the step of a loop)."""
        match node:
            case ast.Constant(value=int(number)):
                return number > 0
            case ast.Name(id=name):
                value = self.form.source.values.get(name)
                constant = isinstance(value, (int, np.integer)) and bool(value > 0)
                defined = name in self.definitions and self.is_positive(self.definitions[name])
                return name in POSITIVE or constant or defined
            case ast.BinOp(left=left, op=ast.Mult() | ast.Add(), right=right):
                return self.is_positive(left) and self.is_positive(right)
        return False

    def is_nonnegative(self, node: ast.AST) -> bool:
        """Whether an integer expression is surely zero or more (an index that cannot wrap)."""
        match node:
            case ast.Constant(value=int(number)):
                return number >= 0
            case ast.Name(id=name):
                value = self.form.source.values.get(name)
                if isinstance(value, (int, np.integer)):
                    return bool(value >= 0)
                if name in self.loops:
                    start, _, step = range_arguments(self.loops[name])
                    return self.is_nonnegative(start) and self.is_positive(step)
                defined = name in self.definitions and self.is_nonnegative(self.definitions[name])
                return name in POSITIVE | THREADS | BLOCKS or defined
            case ast.Subscript(value=ast.Attribute(attr="shape")) | ast.Attribute(attr="size"):
                return True
            case ast.BinOp(
                left=left, op=ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=right
            ):
                return self.is_nonnegative(left) and self.is_nonnegative(right)
            case ast.Call(func=ast.Name(id="min" | "max"), args=arguments):
                return all(map(self.is_nonnegative, arguments))
        return False

    def _never_changes(self, name: str) -> bool:
        """Whether a name has one value in all of a block's run, wherever it is looked at."""
        if name in self.definitions:
            return all(map(self._never_changes, names_in(self.definitions[name])))
        own = name in self.form.parameters or name in self.form.source.constants
        return name in THREADS | BLOCKS | POSITIVE or (own and not self.changes(name))

    def parts(self, node: ast.expr) -> tuple[list[ast.expr], list[ast.expr]] | None:
        """An expression as a sum: the uniform terms, and those that are zero for the first thread.

        The sum of the first is the smallest value over the block's threads. Known for sums of a
        uniform value and non-negative multiples of the thread indices; None for anything else.
        """
        if not self.is_varying(node):
            return [node], []
        match node:
            case ast.Name(id=name) if name in THREADS:
                return [], [node]
            case ast.Name(id=name) if name in self.definitions:
                return self.parts(self.definitions[name]) if self._never_changes(name) else None
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = self.parts(left), self.parts(right)
                if both[0] is not None and both[1] is not None:
                    return both[0][0] + both[1][0], both[0][1] + both[1][1]
            case ast.BinOp(left=left, op=ast.Mult() as op, right=right):
                for factor, other in ((left, right), (right, left)):
                    found = self.parts(factor)
                    if found is not None and self.is_positive(other):
                        low, high = found
                        return ([ast.BinOp(each, op, other) for each in low],
                                [ast.BinOp(each, op, other) for each in high])  # fmt: skip
        return None


def uniformity(
    form: Canonical, aliased: frozenset[str] = frozenset(), *, exact: bool = False
) -> Uniformity:
    """Find what varies between the threads of a block, and which loops they share.

    `aliased` arguments share memory with one that is written to; `exact` lets no thread take part
    in what it would not do on a GPU.
    """
    finder = _Finder(form, aliased, exact)
    before = -1
    while before != len(finder.varying):
        before = len(finder.varying)
        finder.walk()
    return finder.found()


class _Where(NamedTuple):
    """Where statements stand.

    Attributes:
        under_varying: Whether only some threads may come here.
        lane_level: Whether in a loop that each thread runs for itself.
        known_to: What the threads that come here run, if all of them run it whole: a variable that
            is used nowhere else may be uniform, though not all threads assign it.
    """

    under_varying: bool = False
    lane_level: bool = False
    known_to: list[ast.stmt] | None = None


class _Finder:
    """Walks through a kernel and marks what varies, until there is nothing more to mark."""

    def __init__(self, form: Canonical, aliased: frozenset[str], exact: bool) -> None:
        self.form, self.exact = form, exact
        self.named = named(form.body)
        self.varying: set[str] = THREADS | form.sent
        self.block_loops: set[ast.AST] = set()
        self.trip_loops: set[ast.AST] = set()
        self.masked_loops: set[ast.AST] = set()
        self.inside: dict[int, tuple[set[str], Counter[str]]] = {}
        counts = _count_assignments(form)
        self.known = Uniformity(
            form, aliased, written_arrays(form) | aliased, counts,
            _single_definitions(form, counts), _own_loops(form, counts), self.varying,
        )  # fmt: skip
        self.is_varying = self.known.is_varying

    def found(self) -> Uniformity:
        """What is known at the end."""
        return replace(
            self.known, varying=frozenset(self.varying), block_loops=frozenset(self.block_loops),
            trip_loops=frozenset(self.trip_loops), masked_loops=frozenset(self.masked_loops),
        )  # fmt: skip

    def walk(self) -> None:
        """Mark what varies, as far as is known now."""
        for loops in self.block_loops, self.trip_loops, self.masked_loops:
            loops.clear()
        self._visit(self.form.body, _Where())

    def _visit(self, body: list[ast.stmt], where: _Where) -> None:
        """Mark what varies in a list of statements."""
        under_varying, lane_level, known_to = where
        for statement in body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AugAssign(target=ast.Name(id=target), value=value)
                ):
                    under = under_varying and not self._stays_in(known_to, target, value)
                    self._mark(target, under or self.is_varying(value))
                case ast.If(test=test, body=then, orelse=otherwise):
                    # Under a mask each thread asks for itself: memory may end before others.
                    varying = self.is_varying(test) or (under_varying and reads_memory(test))
                    for part in then, otherwise:
                        whole = varying and not lane_level and not own_jumps(part)
                        known = part if whole else None if varying else known_to
                        self._visit(part, _Where(under_varying or varying, lane_level, known))
                case ast.For():
                    self._visit_for(statement, where)
                case ast.While():
                    self._visit_while(statement, where)

    def _stays_in(self, body: list[ast.stmt] | None, target: str, value: ast.expr) -> bool:
        """Whether a variable lives in these statements only, and its value reads no memory."""
        if body is None or self.exact or reads_memory(value):
            return False
        if id(body) not in self.inside:  # the same are asked for each of their variables
            self.inside[id(body)] = exposed(body, set()), named(body)
        needs, counts = self.inside[id(body)]
        return target not in needs and counts[target] == self.named[target]

    def _visit_while(self, loop: ast.While, where: _Where) -> None:
        early = self.is_varying(loop.test) or self._leaves_early(loop, loop.test, where)
        if not early:
            self.block_loops.add(loop)
            return self._visit(loop.body, where)
        self._visit_own(loop)

    def _visit_own(self, loop: Loop) -> None:
        """A loop that each thread leaves when it likes."""
        masked = has_meeting(loop)
        if masked:
            self.masked_loops.add(loop)
        self._visit(loop.body, _Where(under_varying=True, lane_level=not masked))

    def _visit_for(self, loop: ast.For, where: _Where) -> None:
        assert isinstance(loop.target, ast.Name)
        start, stop, step = range_arguments(loop)
        shared = not (self.is_varying(stop) or self.is_varying(step))
        early = self._leaves_early(loop, loop.iter, where)
        only_inside = named(loop.body)[loop.target.id] + 1 == self.named[loop.target.id]
        is_its_own = only_inside and not self.known.changes(loop.target.id)
        walks_rows = not self.is_varying(start) and self._walks_rows(loop)
        together = shared and not early and not walks_rows
        self._mark(loop.target.id, where.under_varying and not is_its_own)
        if together and not self.is_varying(start) and loop.target.id not in self.varying:
            self.block_loops.add(loop)
            return self._visit(loop.body, where)
        in_step = self.known.is_positive(step) and self.known.parts(start) is not None
        self._mark(loop.target.id, True)
        if not (together and is_its_own and in_step) or _jumps(loop):
            return self._visit_own(loop)
        self.trip_loops.add(loop)
        self._visit(loop.body, _Where(under_varying=True))

    def _walks_rows(self, loop: ast.For) -> bool:
        """Whether each thread walks along a row of its own: `for e in ...: total += a[thread, e]`.

        With the threads innermost, neighbouring lanes would touch memory a row apart. Such a loop
        is better left inside the loop over the threads, if nothing in it needs to be outside.
        """
        if any(map(is_meeting, walk(loop.body))) or not self.varying.issuperset(stores(loop.body)):
            return False
        assert isinstance(loop.target, ast.Name)
        rows = columns = 0
        elements = {ast.unparse(n): n for n in nodes(loop) if isinstance(n, ast.Subscript)}
        for node in elements.values():
            if base_name(node) not in self.known.local_arrays:
                *outer, last = indices_of(node)
                follows = loop.target.id in names_in(last) and any(map(self.is_varying, outer))
                rows += follows and not self._differs_besides(last, loop.target.id)
                columns += self._differs_besides(last, loop.target.id)
        return rows > columns

    def _differs_besides(self, node: ast.expr, target: str) -> bool:
        """Whether an index differs between threads, the loop's own variable left aside."""
        return not self.varying.isdisjoint(names_in(node) - {target})

    def _mark(self, name: str, varying: bool) -> None:
        if varying:
            self.varying.add(name)

    def _leaves_early(self, loop: Loop, head: ast.expr, where: _Where) -> bool:
        """Whether some threads may leave the loop, or skip a turn, before others.

        Under a mask a condition that reads memory is not for all threads to evaluate.
        """
        tests = [test for jump in _jumps(loop) for test in jump]
        reads = where.under_varying and any(map(reads_memory, [head, *tests]))
        return where.lane_level or reads or any(map(self.is_varying, tests))


def sum_of(terms: list[ast.expr]) -> ast.expr:
    """The sum of terms; 0 of none."""
    if not terms:
        return ast.Constant(0)
    total, *others = terms
    for term in others:
        total = ast.BinOp(total, ast.Add(), term)
    return total


def own_jumps(body: list[ast.stmt]) -> bool:
    """Whether statements hold a `break` or `continue` of the loop that they stand in."""
    return any(
        isinstance(statement, ast.Break | ast.Continue)
        or (isinstance(statement, ast.If) and own_jumps([*statement.body, *statement.orelse]))
        for statement in body
    )


def _jumps(loop: Loop) -> list[list[ast.expr]]:
    """For each `break` and `continue` of this loop, the conditions that lead to it."""
    found: list[list[ast.expr]] = []

    def walk(body: list[ast.stmt], tests: list[ast.expr]) -> None:
        for statement in body:
            if isinstance(statement, (ast.Break, ast.Continue)):
                found.append(tests)
            elif isinstance(statement, ast.If):
                walk(statement.body, [*tests, statement.test])
                walk(statement.orelse, [*tests, statement.test])

    walk(loop.body, [])
    return found


def reads_memory(node: ast.AST) -> bool:
    """Whether an expression reads an element of an array, or a field of a record."""
    return any(
        (isinstance(inner, ast.Subscript) and not is_shape(inner))
        or (isinstance(inner, ast.Attribute) and inner.attr not in UNIFORM_ATTRIBUTES)
        for inner in nodes(node)
    )


def reads(node: ast.AST) -> set[str]:
    """The names that an expression or a statement reads, but for what is handed over whole."""
    return {
        n.id for n in nodes(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        and not isinstance(n, Whole)
    }  # fmt: skip


def exposed(body: list[ast.stmt], defined: set[str]) -> set[str]:
    """The names that statements read before they surely defined them; `defined` grows."""
    found: set[str] = set()
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                found |= reads(value) - defined
                defined.add(target)
            case ast.AugAssign(target=ast.Name(id=target), value=value):
                found |= ({target} | reads(value)) - defined
                defined.add(target)
            case ast.If(test=test, body=then, orelse=otherwise):
                found |= reads(test) - defined
                after = [set(defined), set(defined)]
                found |= exposed(then, after[0]) | exposed(otherwise, after[1])
                defined |= after[0] & after[1]
            case ast.For(target=ast.Name(id=target), iter=iterator, body=inner):
                found |= reads(iterator) - defined
                found |= exposed(inner, defined | {target})
            case ast.While(test=test, body=inner):
                found |= reads(test) - defined
                found |= exposed(inner, set(defined))
            case _:
                found |= reads(statement) - defined
    return found


def written_arrays(form: Canonical) -> frozenset[str]:
    """The arrays that a kernel writes to: by name, through a view, by an atomic or in a call."""
    return frozenset(written_in(walk(form.body), form.source))


def written_parameters(function: Source) -> list[int]:
    """The positions of the arguments that a device function writes to."""
    written = written_in(nodes(function.tree), function)
    return [i for i, name in enumerate(function.parameters) if name in written]


def written_in(nodes: Iterable[ast.AST], source: Source) -> set[str]:
    """The arrays that parts of a kernel write to."""
    written: set[str] = set()
    views: dict[str, set[str]] = {}  # name -> what it may be a view of
    for node in nodes:
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            written |= owners(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            device = source.device_functions.get(node.func.id)
            positions = [0] if is_atomic(node) else written_parameters(device) if device else []
            arguments = [node.args[i] for i in positions if i < len(node.args)]
            arguments += [k.value for k in node.keywords if device and k.arg in device.parameters]
            written = written.union(*map(owners, arguments))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            views.setdefault(node.targets[0].id, set()).update(owners(node.value))
    while more := {base for name in written for base in views.get(name, ())} - written:
        written |= more
    return written


def _count_assignments(form: Canonical) -> Counter[str]:
    counts = stores(form.body)
    counts.update(form.parameters)  # an argument that is assigned has two definitions
    return counts


def _single_definitions(form: Canonical, assignments: Counter[str]) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in walk(form.body)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and assignments[node.targets[0].id] == 1
        and node.targets[0].id not in names_in(node.value)
    }


def _own_loops(form: Canonical, counts: Counter[str]) -> dict[str, ast.For]:
    """The loop of each name that only one loop, and nothing else, assigns."""
    return {
        node.target.id: node
        for node in walk(form.body)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name)
        and counts[node.target.id] == 1
    }  # fmt: skip

"""Which numbers in memory an expression stands for.

However an element is written, it is one *view* with an index for each of its dimensions: a field of
an array of records is an array of numbers, so fields can be taken first, and indices last.

    a[i, j]                                         a, (i, j)
    r[t]["x"], r["x"][t], r[t].x                    r["x"], (t)
    r[t].place[k]                                   r["place"], (t, k)
    row = r[t]; row.x                               row's "x" as an array without dimensions, ()
    a[2:][i], a.T[i, j]                             the slice, the transposed; and the index
    (a if c else b)[i], (a, b)[c][i]                either; and the index

A shadow of an array has a word where the array has a number. What leads to a view leads to its
shadow as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype, from_dtype

from ..form import Canonical, is_atomic
from ..paths import indices_of, is_part, owners
from ..trees import call, nodes, walk
from ..uniformity import Uniformity, is_shape

FIELD = "run__field"  # what emitted code calls for a field


@dataclass(frozen=True)
class Element:
    """A number in memory; or a row or a record, where indices are left out."""

    view: ast.expr
    kind: types.Array | types.Record  # of the view
    indices: list[ast.expr]
    fields: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether there is an index for each dimension of an array of numbers."""
        numbers = isinstance(self.kind, types.Array) and not is_record(self.kind.dtype)
        return numbers and len(self.indices) == self.kind.ndim


def is_record(kind: Any) -> bool:
    """Whether a type is that of records."""
    return isinstance(kind, types.Record)


def is_choice(node: ast.AST) -> bool:
    """Whether an expression is one of several: `a if c else b`, or `(a, b)[i]`."""
    of_these = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Tuple)
    return of_these or isinstance(node, ast.IfExp)


def of_field(kind: types.Type, name: str) -> types.Type:
    """The type of a field of a record, or of an array of records: there it is an array."""
    record = kind if isinstance(kind, types.Record) else kind.dtype
    found = record.typeof(name)
    if record is kind:
        return found
    nested = found if isinstance(found, types.NestedArray) else types.Array(found, 0, "A")
    return kind.copy(dtype=nested.dtype, ndim=kind.ndim + nested.ndim, layout="A")


@dataclass
class Arrays:
    """What is known of a kernel's arrays and of the views of them."""

    uniformity: Uniformity
    roots: dict[str, set[str]] = field(default_factory=dict)  # view -> what it may be a view of
    views: list[set[str]] = field(default_factory=list)  # the same of views without a name, too

    @property
    def form(self) -> Canonical:
        """The kernel."""
        return self.uniformity.form

    def __post_init__(self) -> None:
        form = self.form
        own = form.ndims.keys() & {*form.parameters, *form.arrays}
        views = set(form.ndims) - own
        self.roots = {name: {name} for name in own}
        found: dict[str, set[str]] = {view: set() for view in views}
        for node in walk(form.body):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target in views:
                    found[target] |= owners(value) & form.ndims.keys()
        while True:
            larger = {v: set().union(*(found.get(n, {n}) for n in names)) | names
                      for v, names in found.items()}  # fmt: skip
            if larger == found:
                break
            found = larger
        self.roots |= {view: names - views for view, names in found.items()}
        outputs = self.uniformity.written & set(form.parameters)
        self.roots |= {name: {name} | outputs for name in self.uniformity.aliased & own}
        chosen = filter(is_choice, walk(form.body))
        self.views = [*self.roots.values(), *map(self.memory_of, filter(self.is_memory, chosen))]

    # Memory

    def memory_of(self, node: ast.AST) -> set[str]:
        """The arrays that an expression may be a part of."""
        return set[str]().union(*(self.roots.get(name, set()) for name in owners(node)))

    def space(self, node: ast.AST) -> str:
        """Where an array or a view lies."""
        spaces = {self.form.arrays[r].space if r in self.form.arrays else "global"
                  for r in self.memory_of(node)}  # fmt: skip
        return spaces.pop() if len(spaces) == 1 else "global"

    def is_written(self, node: ast.AST) -> bool:
        """Whether the kernel writes to an array, or to what shares a view with it."""
        written, roots = self.uniformity.written | set(self.form.arrays), self.memory_of(node)
        return any(others & written for others in (*self.views, roots) if others & roots)

    # Elements

    def kind(self, node: ast.AST) -> types.Type | None:
        """The type of an array, of a part of one or of an element; None where it is not known."""
        match node:
            case ast.Name(id=name):
                return self.form.kinds.get(name)
            case ast.IfExp(body=body):
                return self.kind(body)
            case ast.Subscript(value=ast.Tuple(elts=[choice, *_])):
                return self.kind(choice)
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
                return self.field_kind(value, name)
            case ast.Subscript(value=value):
                return self.part_kind(self.kind(value), self.indices(node))
            case ast.Attribute(value=value, attr="T") if self.is_array(value):
                return self.kind(value)
            case ast.Attribute(value=value, attr=name):
                return self.field_kind(value, name)
            case ast.Call(ast.Attribute(value=value, attr="reshape"), args):
                sizes = args[0].elts if isinstance(args[0], ast.Tuple) else args
                kind = self.kind(value)
                return kind.copy(ndim=len(sizes)) if isinstance(kind, types.Array) else None
            case ast.Call(ast.Attribute(value=value, attr="view"), [dtype]):
                return self.same_bits(self.kind(value), self.dtype(dtype))
        return None

    def same_bits(self, kind: types.Type | None, dtype: types.Type | None) -> types.Type | None:
        """The type of an array whose numbers are taken for others, as wide as they are."""
        if not isinstance(kind, types.Array) or not isinstance(dtype, types.Number):
            return None
        alike = as_dtype(kind.dtype).itemsize == as_dtype(dtype).itemsize
        return kind.copy(dtype=dtype) if alike else None

    def dtype(self, node: ast.AST) -> types.Type | None:
        """The type of numbers that a name stands for: float32, or numpy.float32."""
        match node:
            case ast.Name(id=name):
                kind = self.form.source.values.get(name)
            case ast.Attribute(value=ast.Name(), attr=name):
                kind = getattr(np, name, None)
            case _:
                return None
        number = isinstance(kind, type) and issubclass(kind, np.number)
        return from_dtype(np.dtype(kind)) if number else kind

    def is_array(self, node: ast.AST) -> bool:
        """Whether an expression is an array, or a part of one."""
        return isinstance(self.kind(node), types.Array)

    def is_memory(self, node: ast.AST) -> bool:
        """Whether an expression is an array, a part of one, or a record."""
        return isinstance(self.kind(node), types.Array | types.Record)

    def field_kind(self, value: ast.AST, name: str) -> types.Type | None:
        """The type of a field; None if there is none of this name."""
        kind = self.kind(value)
        record = kind.dtype if isinstance(kind, types.Array) else kind
        known = isinstance(record, types.Record) and name in record.fields
        return of_field(kind, name) if known else None

    def part_kind(self, kind: types.Type | None, indices: list[ast.expr]) -> types.Type | None:
        """The type of an array at some indices."""
        if not isinstance(kind, types.Array):
            return None
        left = kind.ndim
        for index in indices:
            constant = index.value if isinstance(index, ast.Constant) else 0
            sliced = isinstance(index, ast.Slice) or constant is ...
            left += (constant is None) - (constant is not None and not sliced)
        return kind.dtype if left == 0 else kind.copy(ndim=left, layout="A")

    def indices(self, node: ast.Subscript) -> list[ast.expr]:
        """The indices of a subscript, also those that a variable or an array holds."""
        found: list[ast.expr] = []
        for index in indices_of(node):
            kind = self.kind(index) if isinstance(index, ast.Name) else None
            if isinstance(kind, types.BaseTuple):
                parts = map(ast.Constant, range(len(kind)))
                found += [ast.Subscript(index, part, ast.Load()) for part in parts]
            elif isinstance(kind, types.Array) and kind.ndim == 0:  # the number that it holds
                number = ast.Subscript(index, ast.Tuple([], ast.Load()), ast.Load())
                found.append(ast.fix_missing_locations(ast.copy_location(number, index)))
            else:
                found.append(index)
        return found

    def element(self, node: ast.expr) -> Element | None:
        """What a part of an array is, as a view and indices; None of what is no part of one."""
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
                return self.field_of(value, name)
            case ast.Attribute(value=value, attr=name) if self.field_kind(value, name) is not None:
                return self.field_of(value, name)
            case ast.Subscript(value=value) if self.is_array(value) and not is_part(node):
                found = self.element(value)
                if found is not None:
                    indices = [*found.indices, *self.indices(node)]
                    return Element(found.view, found.kind, indices, found.fields)
        kind = self.kind(node)
        return Element(node, kind, []) if isinstance(kind, types.Array | types.Record) else None

    def field_of(self, value: ast.expr, name: str) -> Element | None:
        """A field of what an expression stands for; None if that is no part of an array."""
        found = self.element(value)
        if found is None:
            return None
        kind = of_field(found.kind, name)
        view: ast.expr = ast.Subscript(found.view, ast.Constant(name), ast.Load())
        if is_record(found.kind) and not isinstance(kind, types.Array | types.Record):
            kind = types.Array(kind, 0, "A")
            view = call(FIELD, found.view, ast.Constant(name))
        ast.fix_missing_locations(ast.copy_location(view, value))
        return Element(view, kind, found.indices, (*found.fields, name))

    def uses(self, body: list[ast.stmt]) -> tuple[set[str], set[str]]:
        """The arrays that statements read, and those that they write."""
        reads: set[str] = set()
        writes: set[str] = set()
        own = {id(node) for node in own_reads(body)}
        for node in walk(body):
            match node:
                case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                    writes |= self.memory_of(node)
                case ast.Subscript() | ast.Attribute() if id(node) not in own:
                    found = None if is_shape(node) else self.element(node)
                    reads |= self.memory_of(node) if found and found.is_number else set()
                case ast.Assign(targets=[target], value=value) if self.is_copied(target):
                    reads |= self.memory_of(value)
                case ast.Call() if is_atomic(node):
                    writes |= self.memory_of(node.args[0])
        return reads, writes

    def is_copied(self, target: ast.AST) -> bool:
        """Whether an assignment to this copies many numbers: a row, or a record."""
        return isinstance(target, ast.Subscript | ast.Attribute) and self.is_memory(target)


def own_reads(body: list[ast.stmt]) -> list[ast.expr]:
    """The reads of an element that the same statement writes to.

    They clash with nothing that the write would not clash with.
    """
    memory = ast.Subscript | ast.Attribute
    return [
        node
        for assignment in walk(body)
        if isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], memory)
        for node in nodes(assignment.value)
        if isinstance(node, memory) and ast.unparse(node) == ast.unparse(assignment.targets[0])
    ]  # fmt: skip


def numbers_in(kind: types.Type) -> Iterator[tuple[str | int, ...]]:
    """The way to each number of a record: fields, and indices of the arrays that are fields."""
    if isinstance(kind, types.Record):
        for name in kind.fields:
            yield from ((name, *rest) for rest in numbers_in(kind.typeof(name)))
    elif isinstance(kind, types.NestedArray):
        for at in np.ndindex(kind.shape):
            yield from ((*at, *rest) for rest in numbers_in(kind.dtype))
    else:
        yield ()

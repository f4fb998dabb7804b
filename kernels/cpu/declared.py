"""Part of step 3: rows, sizes and uses of the arrays that a kernel declares."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import prod
from typing import Any

from .form import Array
from .paths import indices_of, is_part, joined
from .source import Source
from .trees import Names, Transformer, assign, copied, name, parse, stores, tuple_of, walk

NONE = Array("", (), "", "")  # what is no declared array


def ndims(arrays: Mapping[str, Array]) -> dict[str, int]:
    """How many indices lead to an element of each declared array."""
    return {array.name: len(array.shape) for array in arrays.values()}


def without_rows(names: Names, arrays: Mapping[str, Array], body: list[ast.stmt]) -> list[ast.stmt]:
    """A name for a local array, or for a row of one, is the array, with indices that are kept."""
    once = {name for name, count in stores(body).items() if count == 1}
    rows = _Rows(names, arrays, once)
    return [new for statement in body for new in rows.statements(statement)]


class _Rows(Transformer):
    """Names for rows of local arrays."""

    def __init__(self, names: Names, arrays: Mapping[str, Array], once: set[str]) -> None:
        self.names, self.arrays, self.ndims = names, arrays, ndims(arrays)
        self.once = once  # names that are assigned to once
        self.rows: dict[str, ast.expr] = {}

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        match joined([node], self.ndims)[0]:
            case ast.Assign([ast.Name(id=row)], ast.Name(id=array) as whole):
                indices: list[ast.expr] = []
            case ast.Assign([ast.Name(id=row)], ast.Subscript(ast.Name(id=array)) as whole):
                indices = indices_of(whole)
            case _:
                return node
        declared = self.arrays.get(array, NONE)
        is_row = len(indices) < len(declared.shape) and not is_part(whole)
        if declared.space != "local" or row not in self.once or not is_row:
            return node
        kept = [self.names.fresh(f"{row}_row") for _ in indices]
        if isinstance(whole, ast.Subscript):
            whole.slice = tuple_of(map(name, kept))
        self.rows[row] = whole
        return list(map(assign, kept, indices))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        row = self.rows.get(node.id)
        return node if row is None else copied(row)


def with_sizes(arrays: Mapping[str, Array], body: list[ast.stmt]) -> list[ast.stmt]:
    """The sizes of declared arrays, and of their rows, are constants."""
    sizes = _Sizes(arrays)
    return [sizes.visit(statement) for statement in body]


class _Sizes(ast.NodeTransformer):
    """The sizes of declared arrays, and of their rows, are constants."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = {n: a for n, a in arrays.items() if not a.is_dynamic}

    def shape(self, node: ast.AST) -> tuple[int, ...]:
        """The shape of an array or a row of one; () of all else."""
        match node:
            case ast.Name(id=name) if name in self.arrays:
                return self.arrays[name].shape
            case ast.Subscript(value=ast.Name()) if not is_part(node):
                return self.shape(node.value)[len(indices_of(node)) :]
        return ()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        shape = self.shape(node.value)
        if not shape or node.attr not in ("shape", "size", "ndim"):
            return self.generic_visit(node)
        sizes = {"shape": shape, "size": prod(shape), "ndim": len(shape)}
        return ast.copy_location(parse(repr(sizes[node.attr])), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        of_a_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        self.generic_visit(node)
        match node:
            case ast.Subscript(ast.Tuple(sizes), ast.Constant(int(axis))) if of_a_shape:
                return sizes[axis] if axis < len(sizes) else node
            case ast.Subscript(ast.Tuple(sizes), ast.UnaryOp(ast.USub(), ast.Constant(int(back)))):
                return sizes[-back] if of_a_shape and back <= len(sizes) else node
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[array]) if shape := self.shape(array):
                return ast.copy_location(ast.Constant(shape[0]), node)
        return self.generic_visit(node)


def check_local(source: Source, arrays: Mapping[str, Array], body: list[ast.stmt]) -> None:
    """Local arrays have the threads as more dimensions: use them element by element only."""
    whole = list(walk(body))
    local = {array.name for array in arrays.values() if array.space == "local"}
    elements = {id(node.value) for node in whole if isinstance(node, ast.Subscript)}
    for node in whole:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            array = arrays.get(node.value.id)
            indices = indices_of(node)
            if array is None or array.space != "local":
                continue
            if any(isinstance(index, ast.Slice) for index in indices):
                raise source.refuse(node, f"`{ast.unparse(node)}` is a slice of a local array",
                            "Write a loop over its elements")  # fmt: skip
            if len(indices) != len(array.shape):
                raise source.refuse(
                    node, f"local array {array.name!r} has {len(array.shape)} dimensions, "
                    f"`{ast.unparse(node)}` gives {len(indices)}", "Give one index for each",
                )  # fmt: skip
        elif isinstance(node, ast.Name) and node.id in local and isinstance(node.ctx, ast.Store):
            raise source.refuse(
                node, f"the name of local array {node.id!r} is used for something else",
                "Use two names, or write to its elements",
            )  # fmt: skip
        elif isinstance(node, ast.Name) and node.id in local and id(node) not in elements:
            raise source.refuse(
                node,
                f"local array {node.id!r} is used as a whole",
                "Pass its elements, or the array itself to a device function",
            )

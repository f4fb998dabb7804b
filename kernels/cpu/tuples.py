"""Part of step 3: a variable that holds a tuple becomes several, one for each item."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from .trees import Names, Transformer, assign, name, named, tuple_of, walk


def without_tuples(names: Names, body: list[ast.stmt]) -> list[ast.stmt]:
    """Keep each item of a variable that is always a tuple in a variable of its own."""
    assigned: dict[str, list[ast.expr | None]] = {}
    for node in walk(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.For | ast.AugAssign) and isinstance(node.target, ast.Name):
            assigned.setdefault(node.target.id, []).append(None)
    items: dict[str, list[str]] = {}
    for variable, values in assigned.items():
        counts = {len(v.elts) if isinstance(v, ast.Tuple) else -1 for v in values}
        if len(counts) == 1 and counts != {-1}:
            items[variable] = [names.fresh(f"{variable}_{i}") for i in range(counts.pop())]
    if not items:
        return body
    vectors = {variable for variable in items if all(map(_is_vector, assigned[variable]))}
    parts = _Items(names, items, vectors)
    return [new for statement in body for new in parts.statements(statement)]


def _is_vector(value: ast.AST | None) -> bool:
    """Whether a tuple is what `cuda.float4(...)` and the like have become."""
    match value:
        case ast.Tuple([ast.Call(ast.Attribute(ast.Name("numba"))), *_]):
            return True
    return False


class _Items(Transformer):
    """Variables that hold tuples, item by item."""

    def __init__(self, names: Names, items: dict[str, list[str]], vectors: set[str]) -> None:
        self.names = names
        self.items = items
        self.vectors = vectors  # those of them that have `.x`

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Tuple(elts=values)) if (
                target in self.items
            ):
                values = [self.visit(value) for value in values]
                targets = [ast.Name(item, ast.Store()) for item in self.items[target]]
                return at_once(self.names, targets, values)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=int(i))) if (
                variable in self.items
                and -len(self.items[variable]) <= i < len(self.items[variable])
            ):
                return name(self.items[variable][i])
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """A part of a vector: `v.x`."""
        match node:
            case ast.Attribute(ast.Name(id=vector), "x" | "y" | "z" | "w" as part) if (
                vector in self.vectors and "xyzw".index(part) < len(self.items[vector])
            ):
                return name(self.items[vector]["xyzw".index(part)])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.items:
            return node
        return tuple_of(map(name, self.items[node.id]))


def at_once(
    names: Names, targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> list[ast.Assign]:
    """Several assignments of which none sees what another did: `a, b = b, a`."""
    assigned = [target.id for target in targets if isinstance(target, ast.Name)]
    before: list[ast.Assign] = []
    if len(assigned) != len(targets) or named(values).keys() & set(assigned):
        kept = [names.fresh("item") for _ in values]
        before = list(map(assign, kept, values))
        values = list(map(name, kept))
    return before + [ast.Assign([t], v) for t, v in zip(targets, values, strict=True)]

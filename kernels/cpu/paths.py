"""How an element is written, brought into one form: all its indices at once.

    a[i][j]                     a[i, j]
    atomic_add(a[i], j, v)      atomic_add(a, (i, j), v)

So a row that is taken only to reach an element of it is no step of its own: whoever asks where the
threads of a block go sees the whole way.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping


def indices_of(node: ast.Subscript) -> list[ast.expr]:
    """The indices of a subscript."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def is_field(node: ast.AST) -> bool:
    """Whether a node is `record["name"]`."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def is_part(node: ast.AST) -> bool:
    """Whether a subscript takes what no indices alone lead to: a slice, or a field."""
    return isinstance(node, ast.Subscript) and any(
        isinstance(index, ast.Slice)
        or (isinstance(index, ast.Constant) and not isinstance(index.value, int))
        for index in indices_of(node)
    )


def owners(node: ast.AST) -> set[str]:
    """The names whose memory an expression may be a part of: of `a[i][j]` only a."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            return owners(value)
        case ast.IfExp(body=body, orelse=orelse):
            return owners(body) | owners(orelse)
        case ast.Tuple(elts=parts):
            return set[str]().union(*map(owners, parts))
        case ast.Call(func=function, args=arguments):
            of_a_method = owners(function) if isinstance(function, ast.Attribute) else set()
            return of_a_method.union(*map(owners, arguments))
    return set()


def joined(body: list[ast.stmt], ndims: Mapping[str, int]) -> list[ast.stmt]:
    """Statements in which elements of arrays have all their indices; the dimensions are given."""
    join = _Join(ndims)
    return [join.visit(statement) for statement in body]


class _Join(ast.NodeTransformer):
    def __init__(self, ndims: Mapping[str, int]) -> None:
        self.ndims = ndims

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        indices = self.through_a_row(node.value, indices_of(node))
        if indices is None or is_part(node):
            return node
        assert isinstance(node.value, ast.Subscript)
        whole = ast.Subscript(node.value.value, ast.Tuple(indices, ast.Load()), node.ctx)
        return ast.fix_missing_locations(ast.copy_location(whole, node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """An atomic on a row."""
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name(id=called), [ast.Subscript() as row, index, *values]) if (
                called.startswith("atomic_") and called != "atomic_compare_and_swap"
            ):
                own = index.elts if isinstance(index, ast.Tuple) else [index]
                indices = self.through_a_row(row, own)
                if indices is not None:
                    node.args = [row.value, ast.Tuple(indices, ast.Load()), *values]
        return ast.fix_missing_locations(node)

    def through_a_row(self, row: ast.expr, own: list[ast.expr]) -> list[ast.expr] | None:
        """All indices of an element of a row of an array; None if it is none."""
        if not isinstance(row, ast.Subscript) or not isinstance(row.value, ast.Name):
            return None
        indices = [*indices_of(row), *own]
        fits = len(indices) <= self.ndims.get(row.value.id, 0)
        return indices if fits and not is_part(row) else None

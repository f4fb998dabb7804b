"""Part of step 3: a variable that is used for several things becomes several."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .trees import Names


def name_each(names: Names, body: list[ast.stmt]) -> None:
    """Rename a variable that is used for several things, so that each has one definition.

    An assignment in a list of statements starts a new life of its variable, which ends with the
    list or the next such assignment; a loop variable lives in the loop's body. Where every use of a
    variable falls into one of these lives, they are independent.
    """
    uses = _Uses(body)
    by_variable: dict[str, list[list[ast.Name]]] = {}
    for variable, nodes in uses.lives(body):
        by_variable.setdefault(variable, []).append(nodes)
    for variable, lives in by_variable.items():
        outer = [nodes for nodes in lives if not any(_inside(nodes, other) for other in lives)]
        covered = {id(node) for nodes in outer for node in nodes}
        if len(outer) > 1 and all(id(node) in covered for node in uses.of(body, variable)):
            for number, nodes in enumerate(outer[1:], 2):
                new = names.fresh(f"{variable}_{number}")
                for node in nodes:
                    node.id = new


class _Uses:
    """Where each statement uses each name; every statement is walked once."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self.table: dict[ast.AST, dict[str, list[ast.Name]]] = {}
        for statement in body:
            self.enter(statement)

    def enter(self, node: ast.AST) -> dict[str, list[ast.Name]]:
        """Fill the table for a node and all that is in it."""
        found: dict[str, list[ast.Name]] = {}
        if isinstance(node, ast.Name):
            found[node.id] = [node]
        for child in ast.iter_child_nodes(node):
            for identifier, nodes in self.enter(child).items():
                found.setdefault(identifier, []).extend(nodes)
        self.table[node] = found
        return found

    def of(self, nodes: list[ast.stmt] | list[ast.expr], identifier: str) -> list[ast.Name]:
        """The uses of a name in statements or expressions."""
        return [use for node in nodes for use in self.table[node].get(identifier, ())]

    def lives(self, body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.Name]]]:
        """Each life of a variable, as the names that belong to it."""
        for index, statement in enumerate(body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable) as target]):
                    if self.begins(statement, variable):
                        later = body[index + 1 :]
                        ends = (i for i, s in enumerate(later) if self.begins(s, variable))
                        yield variable, [target, *self.of(later[: next(ends, None)], variable)]
                case ast.For(target=ast.Name(id=variable) as target, body=inner):
                    yield variable, [target, *self.of(inner, variable)]
            for inner in (getattr(statement, part, []) for part in ("body", "orelse")):
                yield from self.lives(inner)

    def begins(self, statement: ast.stmt, variable: str) -> bool:
        """Whether a statement is `variable = ...`, without a look at the old value."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                return target == variable and not self.of([value], variable)
        return False


def _inside(nodes: list[ast.Name], other: list[ast.Name]) -> bool:
    return nodes is not other and {id(n) for n in nodes} <= {id(n) for n in other}

"""What all steps say of syntax trees: their nodes and names, and new nodes in short."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, TypeVar

T = TypeVar("T")


class Names(set[str]):
    """The names that are taken."""

    def fresh(self, identifier: str) -> str:
        """A name that nothing has yet; it is taken from now on."""
        while identifier in self:
            identifier += "_"
        self.add(identifier)
        return identifier


TOKENS = {"ctx", "id", "attr", "arg", "kind", "type_comment"}


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that may hold others, but for its context."""
    return tuple(name for name in kind._fields if name not in TOKENS)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement or an expression, but for contexts.

    They come in the order of `ast.walk`, in less than half its time: each step walks a kernel.
    """
    found = [tree]
    for node in found:  # which grows
        kind: Any = type(node)
        for name in _fields(kind):
            part = getattr(node, name, None)
            if isinstance(part, list):
                found += [inner for inner in part if isinstance(inner, ast.AST)]
            elif isinstance(part, ast.AST):
                found.append(part)
        yield node


def walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of statements or expressions, but for contexts."""
    return chain.from_iterable(map(nodes, body))


def copied(node: T) -> T:
    """A copy of a node or of a list of them, all that is in it included.

    Nobody changes a context or an operator, so those stay the same objects.
    """
    if isinstance(node, list):
        return [copied(inner) for inner in node]  # type: ignore[return-value]
    if not isinstance(node, ast.AST) or isinstance(node, ast.expr_context | ast.operator):
        return node
    kind: Any = type(node)
    new = kind.__new__(kind)
    vars(new).update(vars(node))
    for name in _fields(kind):
        part = getattr(node, name, None)
        if isinstance(part, ast.AST | list):
            setattr(new, name, copied(part))
    return new


def named(body: Iterable[ast.AST]) -> Counter[str]:
    """How often statements or expressions name each name."""
    return Counter(node.id for node in walk(body) if isinstance(node, ast.Name))


def names_in(node: ast.AST) -> set[str]:
    """The names that a statement or an expression names."""
    return {*named([node])}


def stores(body: Iterable[ast.AST]) -> Counter[str]:
    """How often statements assign each name."""
    names = (node for node in walk(body) if isinstance(node, ast.Name))
    return Counter(node.id for node in names if isinstance(node.ctx, ast.Store))


def name(identifier: str) -> ast.Name:
    """A name being read."""
    return ast.Name(identifier, ast.Load())


def target(identifier: str) -> ast.Name:
    """A name being assigned to."""
    return ast.Name(identifier, ast.Store())


def assign(identifier: str, value: ast.expr) -> ast.Assign:
    """The assignment of a value to a name."""
    return ast.Assign([target(identifier)], value)


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """The call of a function."""
    return ast.Call(name(function), list(arguments), [])


def tuple_of(items: Iterable[ast.expr]) -> ast.Tuple:
    """A tuple being read."""
    return ast.Tuple(list(items), ast.Load())


def negated(test: ast.expr) -> ast.UnaryOp:
    """The opposite of a condition."""
    return ast.UnaryOp(ast.Not(), test)


def parse(text: str) -> ast.expr:
    """A small expression from its text."""
    return ast.parse(text, mode="eval").body


def located(node: Any, like: ast.AST) -> Any:
    """Give a new node, and the new nodes in it, the place of another."""
    for inner in nodes(node):
        if isinstance(inner, ast.stmt | ast.expr) and not hasattr(inner, "lineno"):
            ast.copy_location(inner, like)
    return node


class Substitute(ast.NodeTransformer):
    """Names by expressions: each time by a new one, where the name stood."""

    def __init__(self, new: Mapping[str, ast.expr]) -> None:
        self.new = new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name, or what stands for it."""
        if node.id not in self.new:
            return node
        new = copied(self.new[node.id])
        if isinstance(new, ast.Name):
            new.ctx = node.ctx
        return ast.copy_location(new, node)


class Transformer(ast.NodeTransformer):
    """New nodes stand where the old ones stood; a statement may become several."""

    def statements(self, statement: ast.stmt) -> list[ast.stmt]:
        """What stands for a statement."""
        new = self.visit(statement)
        return new if isinstance(new, list) else [new] if isinstance(new, ast.stmt) else []

    def visit(self, node: ast.AST) -> Any:
        """What stands for a node, where that stood."""
        new = super().visit(node)
        for item in new if isinstance(new, list) else [new]:
            if item is not node and isinstance(item, ast.AST) and hasattr(node, "lineno"):
                located(item, node)
        return new


def flag_breaks(body: list[ast.stmt], flag: str) -> None:
    """Put `flag = False` before each `break` of the loop that this is the body of."""
    for index in reversed(range(len(body))):
        statement = body[index]
        if isinstance(statement, ast.Break):
            body.insert(index, located(assign(flag, ast.Constant(False)), statement))
        elif isinstance(statement, ast.If):
            flag_breaks(statement.body, flag)
            flag_breaks(statement.orelse, flag)
        elif isinstance(statement, ast.For | ast.While):  # whose `else` is not part of it
            flag_breaks(statement.orelse, flag)

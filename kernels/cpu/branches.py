"""Part of step 1: branches that constants decide on are taken here, and the others not compiled.

A factory makes several kernels of one text, `if biased:` here and there. Made without biases, a
kernel is then what it would be if nobody had thought of them: their code cuts no region, and their
device functions need not compile.
"""

from __future__ import annotations

import ast
import types
from contextlib import suppress
from typing import Any


def decided(tree: ast.FunctionDef, function: types.FunctionType) -> ast.FunctionDef:
    """A kernel's tree, which it changes, without the branches that its constants exclude."""
    choices = {
        name: value
        for name, value in around(function).items()
        if isinstance(value, bool) and name not in function.__code__.co_varnames
    }
    _Decide(choices).visit(tree)
    for node in ast.walk(tree):
        if getattr(node, "body", None) == []:
            node.body = [ast.copy_location(ast.Pass(), node)]  # type: ignore[attr-defined]
    return tree


def around(function: types.FunctionType) -> dict[str, Any]:
    """What the names mean that a function takes from outside, those that have no value left out."""
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            known[name] = cell.cell_contents
    return known


class _Decide(ast.NodeTransformer):
    def __init__(self, choices: dict[str, bool]) -> None:
        self.choices = choices

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        truth = self.truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        truth = self.truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    def truth(self, test: ast.expr) -> bool | None:
        """Whether a condition holds, if constants alone decide it."""
        match test:
            case ast.Name(id=name):
                return self.choices.get(name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand)
                return None if truth is None else not truth
            case ast.BoolOp(op=op, values=[first, *_]):
                decides = isinstance(op, ast.Or)  # what makes the others not count
                return decides if self.truth(first) is decides else None
        return None

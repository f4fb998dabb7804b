"""The text of a module: lines, and what a kernel's module begins with."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .form import AXES, Canonical
from .source import Source, citation
from .trees import copied, nodes

INDENT = "    "


class Text:
    """Lines under construction, with the current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = "") -> None:
        """Append one line, or several."""
        self.lines += [INDENT * self.depth + part if part else "" for part in text.split("\n")]

    @contextmanager
    def block(self, *headers: str) -> Iterator[None]:
        """A compound statement, or several, each the body of the one before."""
        for header in headers:
            self.line(header)
            self.depth += 1
        yield
        self.depth -= len(headers)

    def statements(self, body: Iterable[ast.stmt]) -> None:
        """Append statements."""
        for statement in body:
            self.lines += [INDENT * self.depth + line for line in written(statement)]

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def written(statement: ast.stmt) -> list[str]:
    """The lines of a statement, each with the equations that its line in the kernel cites."""
    ast.fix_missing_locations(statement)
    if not isinstance(statement, ast.If | ast.For | ast.While):
        *lines, last = ast.unparse(statement).split("\n")
        return [*lines, last + citation(statement)]
    head = copy.copy(statement)
    head.body, head.orelse = [], []
    lines = [ast.unparse(head) + citation(statement), *_indented(statement.body)]
    match statement.orelse:
        case [ast.If() as other]:
            first, *rest = written(other)
            lines += ["el" + first, *rest]
        case [_, *_]:
            lines += ["else:", *_indented(statement.orelse)]
    return lines


def _indented(body: Iterable[ast.stmt]) -> list[str]:
    return [INDENT + line for statement in body for line in written(statement)]


def function_name(source: Source) -> str:
    """The name of the function that runs a range of blocks."""
    return f"{source.name}_blocks"


def signature(form: Canonical) -> list[str]:
    """The names of the grid's size and of the kernel's arguments."""
    return ["grid_x", "grid_y", "grid_z", *form.parameters]


def begun(form: Canonical, runtime: str, decorator: str) -> Text:
    """A module up to the kernel: its constants, and its device functions, each decorated."""
    text, source = Text(), form.source
    shape = " x ".join(str(size) for size in form.block)
    text.line(f'"""Kernel {source.name!r} for the CPU, in blocks of {shape} threads.')
    text.line(f"\nMade by {runtime.rpartition('.')[0]}; read it, but do not edit it.\n" + '"""')
    text.line(f"\nfrom {runtime} import *\n")
    for axis, size in zip(AXES, form.block, strict=True):
        text.line(f"BLOCK_{axis.upper()} = {size}")
    _constants(text, source)
    _device_functions(text, source, decorator)
    return text


class _Unheard(ast.NodeTransformer):
    """Says nothing where an `assert` does not hold; what is checked has the function spliced in."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()


def _constants(text: Text, source: Source, prefix: str = "") -> None:
    for constant, value in source.constants.items():
        text.line(f"{prefix}{constant} = {value}")


def _device_functions(text: Text, source: Source, decorator: str, prefix: str = "") -> None:
    """The device functions, innermost first, each with its constants just before it.

    What a device function refers to gets its name as a prefix: another may use the same name for
    something else.
    """
    for alias, inner in source.device_functions.items():
        alias = prefix + alias
        own = f"{alias}__"
        _device_functions(text, inner, decorator, own)
        _constants(text, inner, own)
        tree = _Unheard().visit(copied(inner.tree))
        outside = inner.constants.keys() | inner.device_functions.keys()
        for node in nodes(tree):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", "")
                callee = inner if called in inner.itself else inner.device_functions.get(called)
                new = {callee.original(each): each for each in callee.parameters} if callee else {}
                for keyword in node.keywords:
                    keyword.arg = new.get(keyword.arg or "", keyword.arg)
            elif isinstance(node, ast.Name) and node.id in outside:
                node.id = own + node.id
            elif isinstance(node, ast.Name) and node.id in inner.itself:
                node.id = alias
        if ast.get_docstring(tree):
            tree.body = tree.body[1:]
        for argument in tree.args.args:
            argument.annotation = None
        text.line(f"\n\n{decorator}")
        text.line(f"def {alias}({ast.unparse(tree.args)}):")
        text.lines += _indented(tree.body)

"""Quotes real source: the lines that implement given equations, and what encloses them.

What is quoted is cut from the file by the equation numbers in its own comments. So it cannot drift,
and a citation that is gone is an error where the lesson is built.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

REST = "..."
WIDTH = 79  # of a signature that is quoted whole
_FOR_TOOLS = re.compile(r"  # (type: ignore|fmt: |noqa).*")


class Quotation(str):
    """Source text, which a notebook shows in colours."""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self}\n```"


def quote(
    what: Any, *equations: str, also: Sequence[str] = (), docstring: bool = False
) -> Quotation:
    """Quote a kernel or a function: whole, or only the lines that cite equations.

    What is cut has a short signature: one that takes more than a line becomes `(...)`.

    Args:
        what: A kernel, device function, function or class.
        equations: As its comments cite them, like "(3)"; none for the whole text.
        also: Texts of more lines to keep: a barrier, an array.
        docstring: Whether the docstring is kept.

    Returns:
        The text; `...` stands where lines were left out.

    Raises:
        LookupError: No line cites one of the equations, or has one of the texts.
    """
    text = textwrap.dedent(inspect.getsource(getattr(what, "function", what)))
    return _cut(text, equations, also, docstring)


def quote_loop(kernel: Any, *equations: str, also: Sequence[str] = ()) -> Quotation:
    """Quote the loop that a kernel became on the CPU, as `quote` quotes the kernel.

    Args:
        kernel: A kernel that was launched on NumPy arrays.
        equations: As the kernel's comments cite them; none for the whole function.
        also: Texts of more lines to keep.

    Raises:
        LookupError: As in `quote`.
    """
    text = kernel.cpu_source()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    lines = text.splitlines()[functions[-1].lineno - 1 :]
    return _cut("\n".join(lines), equations, also, docstring=False)


def _cut(text: str, equations: Sequence[str], also: Sequence[str], docstring: bool) -> Quotation:
    text = _FOR_TOOLS.sub("", text)
    lines = text.splitlines()
    tree: Any = ast.parse(text).body[0]
    for equation in equations:
        if not any(equation in _comment(line) for line in lines):
            raise LookupError(f"quote: no line of {tree.name} cites {equation}")
    for words in also:
        if not any(words in line for line in lines):
            raise LookupError(f"quote: no line of {tree.name} has {words!r}")

    def wanted(line: str) -> bool:
        return any(e in _comment(line) for e in equations) or any(words in line for words in also)

    body = tree.body if docstring or ast.get_docstring(tree) is None else tree.body[1:]
    if not equations and not also:
        kept = lines[: tree.body[0].lineno - 1] + lines[body[0].lineno - 1 :] if body else lines
        return Quotation("\n".join(kept))
    head = _head(tree, lines)
    return Quotation("\n".join([*head, *_kept(body, lines, wanted)]))


def _head(tree: Any, lines: list[str]) -> list[str]:
    """Decorators and signature; a long signature without its arguments."""
    start, end = tree.lineno - 1, tree.body[0].lineno - 1
    if lines[start].endswith(":") and len(lines[start]) <= WIDTH:
        return lines[:end]
    return [*lines[:start], f"{lines[start].partition('(')[0]}({REST}):"]


def _comment(line: str) -> str:
    return line.partition("#")[2]


def _kept(body: list[ast.stmt], lines: list[str], wanted: Callable[[str], bool]) -> list[str]:
    """The lines of a block that are wanted, inside the statements that enclose them."""
    kept: list[str] = []
    for node in body:
        if not any(map(wanted, lines[node.lineno - 1 : node.end_lineno])):
            if not kept or kept[-1].strip() != REST:
                kept.append(" " * node.col_offset + REST)
            continue
        inner: list[list[ast.stmt]] = [
            block for name in ("body", "orelse") if (block := getattr(node, name, None))
        ]
        if not inner:
            kept += lines[node.lineno - 1 : node.end_lineno]
            continue
        kept += lines[node.lineno - 1 : inner[0][0].lineno - 1]
        kept += _kept(inner[0], lines, wanted)
        for block in inner[1:]:
            if any(map(wanted, lines[block[0].lineno - 1 : block[-1].end_lineno])):
                kept += [" " * node.col_offset + "else:", *_kept(block, lines, wanted)]
    return kept

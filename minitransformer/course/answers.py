"""An answer in a student's file: the statement that defines it, and those that it needs.

A lesson is not run to try an answer. Of the file's top-level statements only the answer's own is
kept, and those that bind the names which it uses, and so on: imports, constants, helpers. What they
print, draw and measure besides is left out.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError

_MAGIC = re.compile(r"^(\s*)([%!].*)$", re.MULTILINE)


class Piece(NamedTuple):
    """A part of a file that parses by itself, and where a reader finds it.

    `first` is the line of the whole text on which it begins.
    """

    text: str
    first: int
    cell: int | None  # its number in a notebook


class File:
    """A student's lesson: a script in the percent format, or a notebook."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            UserError: It cannot be read, or is no lesson.
        """
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
            self.pieces = list(_cells(text) if path.suffix == ".ipynb" else _script(text))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: this is not a notebook ({error})") from error
        self.statements: list[ast.stmt] = []
        self.broken: dict[int, SyntaxError] = {}  # by the piece's first line
        for piece in self.pieces:
            try:
                tree = ast.parse(piece.text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                problem = error if isinstance(error, SyntaxError) else SyntaxError(str(error))
                self.broken[piece.first] = problem
                continue
            ast.increment_lineno(tree, piece.first - 1)
            self.statements += tree.body

    def where(self, line: int) -> str:
        """Return where a line of the whole text stands, as a reader of the file sees it."""
        piece = max((p for p in self.pieces if p.first <= line), key=lambda p: p.first)
        if piece.cell is None:
            return f"{self.path.name}:{line}"
        return f"{self.path.name}, cell {piece.cell}, line {line - piece.first + 1}"

    def defines(self, symbol: str) -> bool:
        """Whether there is an answer of that name, be it one that does not parse."""
        text = re.compile(
            rf"^(async )?def {symbol}\b|^{symbol}\s*=|^class {symbol}\b", re.MULTILINE
        )
        return any(text.search(piece.text) for piece in self.pieces)

    def needed(self, symbol: str) -> str:
        """Return the text that defines an answer, each statement on the line where it stands.

        Raises:
            SyntaxError: The answer does not parse; its line is that of the whole text.
        """
        chosen = {index for index, s in enumerate(self.statements) if symbol in _binds(s)}
        if not chosen:
            self._raise_if_broken(symbol)
        chosen = {max(chosen)} if chosen else set()
        todo = list(chosen)
        while todo:
            at = todo.pop()
            for name in _reads(self.statements[at]):
                binding = [i for i, s in enumerate(self.statements) if name in _binds(s)]
                before = [i for i in binding if i < at] or binding
                if before and before[-1] not in chosen:
                    chosen.add(before[-1])
                    todo.append(before[-1])
        kept = [""] * (max((_span(self.statements[at])[1] for at in chosen), default=0) + 1)
        lines = self._lines()
        for at in chosen:
            first, last = _span(self.statements[at])
            kept[first - 1 : last] = (lines[number] for number in range(first, last + 1))
        return "\n".join(kept)

    def _lines(self) -> dict[int, str]:
        return {
            number: line
            for piece in self.pieces
            for number, line in enumerate(piece.text.split("\n"), piece.first)
        }

    def _raise_if_broken(self, symbol: str) -> None:
        for piece in self.pieces:
            if piece.first in self.broken and re.search(rf"\b{symbol}\b", piece.text):
                error = self.broken[piece.first]
                error.lineno = (error.lineno or 1) + piece.first - 1
                raise error


def _script(text: str) -> Iterator[Piece]:
    """The cells of a script: a mistake in one leaves the others."""
    starts = [0, *(m.start() for m in re.finditer(r"^# %%", text, re.MULTILINE)), len(text)]
    for start, end in itertools.pairwise(starts):
        if text[start:end].strip():
            yield Piece(text[start:end], text.count("\n", 0, start) + 1, None)


def _cells(text: str) -> Iterator[Piece]:
    """The code cells of a notebook, with magics as comments."""
    line = 1
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "code":
            source = _MAGIC.sub(r"\1pass  # \2", "".join(cell["source"])) + "\n"
            yield Piece(source, line, number)
            line += source.count("\n") + 1


def _span(statement: ast.stmt) -> tuple[int, int]:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(d.lineno for d in decorators)])
    return first, statement.end_lineno or statement.lineno


def _binds(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement gives a value to."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _reads(statement: ast.stmt) -> set[str]:
    """The names that a statement may need from outside: not those that are a function's own."""
    added_to = {
        node.target.id
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    outermost = symtable.symtable(ast.unparse(statement), "answer", "exec")
    tables, names = [outermost], added_to & set(_binds(statement))
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is outermost or symbol.is_global())
        }
    return names

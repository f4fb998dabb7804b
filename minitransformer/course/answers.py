"""An answer in a student's file: the statement that defines it, and those that it needs.

A lesson is not run to try an answer. Of the file's top-level statements only the answer's own is
kept, and those that bind the names which it uses, and so on: imports, constants, helpers. What they
print, draw and measure besides is left out.
"""

from __future__ import annotations

import ast
import builtins
import dis
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple, TypeGuard

from ..errors import UserError
from .exercise import NotYet
from .lesson import is_untouched

LARGEST = 64 << 20  # bytes: a notebook with all its pictures has less

_READS = "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"
_BINDS = "STORE_NAME", "STORE_GLOBAL"
# What Jupyter understands and Python does not: %magic, !command, ?help, x = !command, help?
_MAGIC = re.compile(r"^(\s*)([%!?].*|\w+ *= *[%!].*|[\w.]+\?\??)$")
_WHOLE = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
_HEADING = re.compile(r"^#+ +(.+)", re.MULTILINE)
_NAMED = re.compile(r"""(?:\bcheck\(|\bexercise"?[=:])\s*\\?["']([\w-]+)""")


class Piece(NamedTuple):
    """A part of a file that parses by itself: a cell.

    Attributes:
        place: What its reader calls it: the file; in a notebook also the exercise whose cell it is,
            or the heading below which it stands.
        before: How many lines of the place stand before it.
        text: What stands there.
    """

    place: str
    before: int
    text: str


class Statement(NamedTuple):
    """What stands on the lines `first` to `last` of a place; mostly one statement.

    Attributes:
        binds: The names of the file that get a value.
        reads: The names of the file, or of Python, that it may need.
        is_blank: Whether it is a function that does nothing.
    """

    place: str
    first: int
    last: int
    binds: set[str]
    reads: set[str]
    is_blank: bool


class File:
    """A student's lesson: a script, in cells or not, or a notebook."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        """Read it. A cell that does not parse leaves the others.

        Args:
            path: Where it is.
            text: What stands in it, if that is known.

        Raises:
            UserError: It cannot be read, or is no notebook.
        """
        self.path = path
        self.text = _read(path) if text is None else text
        cells = _notebook if path.suffix == ".ipynb" else _script
        self._lines: dict[str, list[str]] = {}  # by place
        self._statements: list[Statement] = []
        self._broken: list[tuple[Piece, SyntaxError]] = []
        whole = set[str]()  # names that no later statement is part of
        for piece in cells(path, self.text):
            lines = piece.text.split("\n")
            try:
                tree = _parsed(lines)
                self._statements += _statements(piece, tree, whole)
            except SyntaxError as error:
                self._broken.append((piece, error))
            self._lines.setdefault(piece.place, []).extend(lines)

    def names(self) -> set[str]:
        """Return the names of the exercises that it checks, or has a cell for."""
        return set(_NAMED.findall(self.text))

    def defines(self, symbol: str) -> bool:
        """Whether there is an answer of that name, be it one that does not parse."""
        is_there = any(symbol in statement.binds for statement in self._statements)
        return is_there or self._breaks(symbol) is not None

    def is_blank(self, symbol: str) -> bool:
        """Whether the answer is still as it was handed out, or nothing but its docstring."""
        found = [s for s in self._statements if symbol in s.binds]
        if not found:
            return False
        place, first, last, _, _, is_blank = found[-1]
        return is_blank or is_untouched("\n".join(self._lines[place][first - 1 : last]))

    def needed(self, symbol: str) -> list[tuple[str, str]]:
        """Return the places that define an answer, and of each the text that does so.

        Every statement stands on the line on which it stands in its place; the others are empty.

        Raises:
            NotYet: There is no such answer, it does not parse, or it needs one that is not written.
        """
        found = [at for at, s in enumerate(self._statements) if symbol in s.binds]
        if not found:
            raise NotYet(self._breaks(symbol) or f"there is no {symbol} here: was it renamed?")
        chosen = set[int]()
        todo = found[-1:]
        while todo:
            at = todo.pop()
            if at not in chosen:
                chosen.add(at)
                bindings = (self._binding(name, at) for name in self._statements[at].reads)
                todo += [binding for binding in bindings if binding is not None]
        for at in sorted(chosen - set(found)):
            place, first, last, binds, _, is_blank = self._statements[at]
            if is_blank and is_untouched("\n".join(self._lines[place][first - 1 : last])):
                raise NotYet(f"{min(binds)}: nothing is written yet: it is your turn")
        return self._kept(chosen)

    def _binding(self, name: str, at: int) -> int | None:
        """The statement that gives a name its value for another: the last before it, or one after.

        Raises:
            NotYet: That statement does not parse.
        """
        own = self._statements[at]
        binding = [i for i, s in enumerate(self._statements) if name in s.binds and s is not own]
        before = [i for i in binding if i < at]
        if before or name in own.binds:
            return before[-1] if before else None
        if not binding and (problem := self._breaks(name)):
            raise NotYet(problem)
        if not binding and name != "*" and not hasattr(builtins, name):
            return self._binding("*", at)  # from a module, perhaps
        return binding[0] if binding else None

    def _kept(self, chosen: set[int]) -> list[tuple[str, str]]:
        kept: dict[str, set[int]] = {}
        for at in sorted(chosen):
            place, first, last, *_ = self._statements[at]
            kept.setdefault(place, set()).update(range(first, last + 1))
        texts = []
        for place, numbers in kept.items():
            lines = enumerate(self._lines[place], 1)
            texts.append((place, "\n".join(x if number in numbers else "" for number, x in lines)))
        return texts

    def _breaks(self, name: str) -> str | None:
        """What is wrong with the cell that would bind a name; None if there is none."""
        name = re.escape(name)
        binding = re.compile(
            rf"^(async +def|def|class) +{name}\b|^{name}\b.*=|^(import|from)\b.*\b{name}\b", re.M
        )
        for piece, error in self._broken:
            if binding.search(piece.text):
                line = piece.before + (error.lineno or 1)
                return f"{piece.place}:{line}: {type(error).__name__}: {error.msg}"
        return None


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: too large for a lesson, more than {LARGEST >> 20} MiB")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read: this is not UTF-8 text") from error


def _script(path: Path, text: str) -> Iterator[Piece]:
    """The cells of a script; one without marks is one cell."""
    before = 0
    for cell in filter(None, re.split(r"^(?=# %%)", text, flags=re.MULTILINE)):
        yield Piece(path.name, before, cell.removesuffix("\n"))
        before += cell.count("\n")


def _notebook(path: Path, text: str) -> Iterator[Piece]:
    """The cells of code of a notebook."""
    heading, places = "at the top", Counter[str]()
    try:
        for cell in json.loads(text)["cells"]:
            is_code = cell["cell_type"] == "code"
            source = "".join(cell["source"] if is_code else cell.get("source", ""))
            if is_code:
                exercise = cell.get("metadata", {}).get("exercise")
                below = f"exercise {_plain(str(exercise))}" if exercise else heading
                place = f"{path.name}, {below}"
                places[place] += 1
                again = f", cell {places[place]}" if places[place] > 1 else ""
                yield Piece(place + again, 0, re.sub(r"\r\n?", "\n", source))
            elif found := _HEADING.findall(source):
                heading = f"below '{_plain(found[-1])}'"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: this is not a notebook") from error


def _plain(heading: str) -> str:
    """A heading without what stands for something else in a message or a file's name."""
    return " ".join(re.sub(r"[^\w\s,.()'-]", " ", heading)[:80].split())


def _parsed(lines: list[str]) -> ast.Module:
    """The tree of a cell. Lines that only Jupyter understands become comments.

    Raises:
        SyntaxError: It does not parse.
    """
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse("\n".join(lines))
                _code(tree.body)  # which finds more than the parser does
            return tree
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deep for Python") from error
        except SyntaxError as error:
            line = (error.lineno or 0) - 1
            if not 0 <= line < len(lines) or not _MAGIC.match(lines[line]):
                raise
            lines[line] = _MAGIC.sub(r"\1pass  # \2", lines[line])


def _code(statements: list[ast.stmt]) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as Jupyter does
    code: CodeType = compile(ast.Module(statements, []), "answer", "exec", flags)
    return code


def _statements(piece: Piece, tree: ast.Module, whole: set[str]) -> Iterator[Statement]:
    """The statements of a cell; those that share a line are one.

    Adds to the names that stand for something whole: functions, classes and what is imported.
    """
    groups: list[tuple[int, int, list[ast.stmt]]] = []
    for statement in tree.body:
        decorators = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in (statement, *decorators))
        last = statement.end_lineno or first
        if groups and first <= groups[-1][1]:
            start, _, together = groups.pop()
            groups.append((start, last, [*together, statement]))
        else:
            groups.append((first, last, [statement]))
    for first, last, together in groups:
        binds, reads = _names(_code(together))
        if any(isinstance(statement, _WHOLE) for statement in together):
            whole |= binds
        for node in (n for statement in together for n in _outside_functions(statement)):
            if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
                binds |= _root(node)  # table["x"] = 1 is part of what `table` is
            elif isinstance(node, ast.Expr) and _is_method(node.value):
                binds |= _root(node.value.func) - whole  # and so is table.update(x=1)
            elif isinstance(node, ast.alias) and node.name == "*":
                binds, reads = binds | {"*"}, reads | {"*"}
        blank = len(together) == 1 and _is_blank(together[0])
        yield Statement(piece.place, piece.before + first, piece.before + last, binds, reads, blank)


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The names of the file that code binds, and those that it or a function in it reads."""
    instructions = list(dis.get_instructions(code))
    binds = {i.argval for i in instructions if i.opname in _BINDS}
    reads = {i.argval for i in instructions if i.opname in _READS}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            reads |= _names(inner)[1]
    return binds, reads


def _outside_functions(statement: ast.stmt) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
            todo += ast.iter_child_nodes(node)


def _is_method(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _is_blank(statement: ast.stmt) -> bool:
    """Whether this is a function of which nothing but its docstring is written."""
    return isinstance(statement, ast.FunctionDef) and all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in statement.body
    )

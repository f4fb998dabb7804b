"""The derivations in the kernels' docstrings, and which lines implement their equations.

An equation is an indented line of a docstring that ends in its number; a line of code cites it in
its comment, `# (3)`. Both are plain text, and stay so: they are read as they are beside the code.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

NUMBERED = re.compile(r"^ {4,}(?P<text>\S.*?)\s+\((?P<number>\d+)\)$")
_CITED = re.compile(r"\((\d+)\)(?: to \((\d+)\)|-\((\d+)\))?")
_HEADERS = re.compile(
    r"^(Args|Arguments|Attributes|Example|Examples|Raises|Returns|Yields|Source|Note):"
)
_BLOCK = re.compile(r"^( {4,}|>>>)")


class Citation(NamedTuple):
    """A line of code that cites an equation: its file, its number, and its text."""

    file: str
    line: int
    code: str


@dataclass
class Room:
    """A module, or a folder of them, that numbers equations.

    Attributes:
        module: Its name, as "minitransformer_kernels.softmax".
        title: The first line of its docstring.
        equations: The texts by number.
        home: The module whose docstring has the number.
        citations: The lines that cite a number.
    """

    module: str
    title: str
    equations: dict[int, str] = field(default_factory=dict)
    home: dict[int, str] = field(default_factory=dict)
    citations: dict[int, list[Citation]] = field(default_factory=dict)


def rooms(package: str = "minitransformer_kernels") -> list[Room]:
    """Return what numbers equations in a package, by name."""
    found = [_room(module, files) for module, files in _units(package)]
    return sorted((room for room in found if room.equations), key=lambda room: room.module)


def anchor(module: str, number: int) -> str:
    """Return the id of an equation in its page."""
    return f"{module.rpartition('.')[2]}-{number}".replace("_", "-")


def page(module: str) -> str:
    """Return the path of a module's page in the site, without its ending."""
    return f"api/{module}"


def _units(package: str) -> Iterator[tuple[str, list[Path]]]:
    """Each folder with all its files, and each module that stands alone."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    root = Path(spec.origin).parent
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] != "__init__":
            if not _numbers(_docstring(file.with_name("__init__.py"))):
                yield ".".join((package, *parts)), [file]
        elif len(parts) > 1:
            yield ".".join((package, *parts[:-1])), [file, *sorted(file.parent.glob("[!_]*.py"))]


def _room(module: str, files: list[Path]) -> Room:
    room = Room(module, (_docstring(files[0]).splitlines() or [""])[0].rstrip("."))
    if len(files) > 1 and not _numbers(_docstring(files[0])):
        return room  # a folder of strangers: each stands alone
    for file in files:
        for number, text in _numbers(_docstring(file)).items():
            if room.equations.setdefault(number, text) is text:
                own = module if file == files[0] else f"{module}.{file.stem}"
                room.home[number] = own
    for file in files:
        for number, citation in _citations(file):
            room.citations.setdefault(number, []).append(citation)
    return room


def _docstring(file: Path) -> str:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return ast.get_docstring(ast.parse(text)) or ""


def _numbers(docstring: str) -> dict[int, str]:
    found = filter(None, map(NUMBERED.match, docstring.splitlines()))
    return {int(match["number"]): match["text"] for match in found}


def _citations(file: Path) -> Iterator[tuple[int, Citation]]:
    text = file.read_text(encoding="utf-8")
    statement: list[str] = []  # its lines so far
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL) and token.line.strip():
            code = token.line.partition("#")[0].strip()
            statement = [*statement, code] if token.type == tokenize.NL and code else []
        if token.type != tokenize.COMMENT:
            continue
        code = token.line[: token.start[1]].strip()
        if not re.search(r"\w", code):  # the end of a call
            code = " ".join([*statement, code]).replace("( ", "(").replace(", )", ")")
        for first, *last in _CITED.findall(token.string) if code else ():
            for number in range(int(first), int("".join(last) or first) + 1):
                yield number, Citation(file.name, token.start[0], code)


def as_rst(module: str, lines: list[str]) -> list[str]:
    """Return a docstring as reStructuredText: its prose escaped, its formulas as they stand.

    Args:
        module: Where it stands, by which its equations get their anchors.
        lines: The docstring's.
    """
    made: list[str] = []
    groups = itertools.groupby(lines, key=lambda line: not line.strip())
    is_free = True  # before "Args:" and the like, whose indentation means something else
    for is_blank, group in groups:
        block = list(group)
        is_free &= is_blank or not _HEADERS.match(block[0])
        if is_free and not is_blank and all(_BLOCK.match(x) for x in block if x.strip()):
            if block[0].lstrip().startswith(">>>"):
                made += block
            else:
                made += _preformatted(module, block)
        else:
            made += map(_escaped, block) if not is_blank else block
    return made


def _preformatted(module: str, block: list[str]) -> list[str]:
    """Formulas, each with an anchor of its own."""
    indent = min(len(line) - len(line.lstrip()) for line in block)
    html = []
    for line in block:
        match, text = NUMBERED.match(line), escape(line[indent:])
        name = anchor(module, int(match["number"])) if match else ""
        html.append(f'<span class="equation" id="{name}">{text}</span>' if name else text)
    return ["", ".. raw:: html", "", "   <pre class=\"equations\">" + html[0],
            *(f"   {line}" for line in html[1:]), "   </pre>", ""]  # fmt: skip


def _escaped(line: str) -> str:
    """A line of prose, in which only `code` and **bold** mean anything."""
    if line.lstrip().startswith(">>>"):
        return line
    line = re.sub(r"^( *)\((?=\d+\))", r"\1\\(", line)  # an equation's number begins no list
    parts = re.split(r"(``.+?``|`[^`]+`|\*\*\w[^*]*\*\*)", line)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(\\(?!\()|[*|]|_(?!\w))", r"\\\1", parts[at])
    for at in range(1, len(parts), 2):  # markup may touch a letter: `x`s
        after = r"\ " if re.match(r"\w", parts[at + 1]) else ""
        parts[at] += after
    return "".join(parts)

"""A lesson's one source: a Python file in cells, of which everything else is made.

The percent format: `# %%` begins a cell of code, `# %% [markdown]` one of text in comments, and
what follows on that line is the cell's metadata, `key="value"`. Of it the course knows

    # %% [markdown] question="..." minutes=60 after=[1]   a lesson's first cell; what it builds on
    # %% [markdown] exercise="name"                       an exercise's text and hints
    # %% exercise="name"                                  the blank to be filled, with its solution
    # %% check="name"                                     the check of the answer
    # %% tags=["hide-input"]                              code that a page folds away
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError

BLANK = "pass  # your turn"
HEADER = """\
# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""

_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
_METADATA = re.compile(r'([\w-]+)=("(?:[^"\\]|\\.)*"|\[[^\]]*\]|[\w.]+)')
_MARKER = re.compile(r"^ *# (BEGIN|END) SOLUTION$", re.MULTILINE)
_SOLUTION = re.compile(r"^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$", re.MULTILINE | re.DOTALL)
_GUESS = re.compile(r'^(guess\("([^"]+)", ).*\)$', re.MULTILINE)


class Cell(NamedTuple):
    """A cell: whether it is text, its metadata, its text without comment signs, and its line."""

    is_text: bool
    metadata: dict[str, Any]
    source: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson, or what a student has made of one.

    Attributes:
        path: The file.
    """

    path: Path

    @property
    def name(self) -> str:
        """As `07_transformers_are_rnns`."""
        return self.path.stem

    @property
    def number(self) -> int:
        """Its place in the course."""
        return int(self.name.partition("_")[0])

    @cached_property
    def text(self) -> str:
        """The file's text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def cells(self) -> list[Cell]:
        """Its cells, in order."""
        return cells(self.text)

    @property
    def title(self) -> str:
        """The first heading."""
        return next(c.source for c in self.cells if c.is_text).partition("\n")[0].removeprefix("# ")

    @property
    def question(self) -> str:
        """What the lesson answers."""
        return str(self.cells[0].metadata["question"])

    @property
    def minutes(self) -> int:
        """How long it takes."""
        return int(self.cells[0].metadata["minutes"])

    @property
    def after(self) -> list[int]:
        """The numbers of the lessons that it builds on."""
        return [int(number) for number in self.cells[0].metadata["after"]]

    @property
    def exercises(self) -> list[str]:
        """The names of its exercises, in order."""
        return [
            c.metadata["exercise"]
            for c in self.cells
            if not c.is_text and c.metadata.get("exercise")
        ]

    def solution(self, exercise: str) -> Cell:
        """Return the cell that an exercise's answer stands in."""
        return next(
            c for c in self.cells if not c.is_text and c.metadata.get("exercise") == exercise
        )


def cells(text: str) -> list[Cell]:
    """Return the cells of a text in the percent format."""
    found = []
    marks = list(_CELL.finditer(text))
    for mark, end in zip(marks, [*(m.start() for m in marks[1:]), len(text)], strict=True):
        metadata = {key: json.loads(value) for key, value in _METADATA.findall(mark[1])}
        source, is_text = text[mark.end() : end].strip("\n"), "[markdown]" in mark[1]
        if is_text:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        found.append(Cell(is_text, metadata, source, text.count("\n", 0, mark.end()) + 1))
    return found


def folder() -> Path:
    """Return the folder of the lessons: `tutorials/` of a checkout, or what was installed of it."""
    spec = importlib.util.find_spec("minitransformer_lessons")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the lessons are not installed; install minitransformer again")
    return Path(next(iter(spec.submodule_search_locations)))


def lessons() -> list[Lesson]:
    """Return the lessons of the course, in order."""
    return [Lesson(path) for path in sorted(folder().glob("[0-9][0-9]_*.py"))]


def chosen(which: str) -> Lesson:
    """Return the lesson of that number, name or title.

    Raises:
        UserError: There is none.
    """
    known = lessons()
    for lesson in known:
        names = lesson.name, lesson.name[3:], str(lesson.number), f"{lesson.number:02}"
        if which.lower() in (*names, lesson.title.lower()):
            return lesson
    listed = ", ".join(lesson.name for lesson in known)
    raise UserError(f"there is no lesson {which!r}; there are {listed}")


def blanked(text: str) -> str:
    r"""Return a lesson's text as a student gets it: without its solutions and guesses.

    Raises:
        ValueError: A solution begins or ends without the other.

    >>> print(blanked("def f():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION"))
    def f():
        pass  # your turn
    >>> print(blanked('guess("factor", 8)'))
    guess("factor", ...)
    """
    markers = _MARKER.findall(text)
    if markers != ["BEGIN", "END"] * (len(markers) // 2):
        raise ValueError(
            "blanked: expected pairs of '# BEGIN SOLUTION' and '# END SOLUTION', each on a line of "
            f"its own, got {markers}"
        )
    return unguessed(_SOLUTION.sub(rf"\1{BLANK}", text))


def unguessed(text: str) -> str:
    """Return a text with dots in the place of its guesses."""
    return _GUESS.sub(r"\1...)", text)


def guessed(text: str) -> list[str]:
    """Return the names of what is guessed in a text."""
    return [name for _, name in _GUESS.findall(text)]


def solved(text: str) -> str:
    """Return a lesson's text without the marks around its solutions."""
    return re.sub(r"^ *# (BEGIN|END) SOLUTION\n", "", text, flags=re.MULTILINE)


def is_untouched(answer: str) -> bool:
    """Whether the text of an answer is the very one that was handed out, blank and all."""
    if BLANK not in answer:
        return False
    return any(
        answer.strip() in blanked(lesson.solution(name).source)
        for lesson in lessons()
        for name in lesson.exercises
    )

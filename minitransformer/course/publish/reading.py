"""A lesson as it is read: no guess is made, and a solution unfolds below each blank."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import jupytext
from nbformat.v4 import new_code_cell

from ..lesson import Lesson, blanked, guessed, solved, unguessed

SOLUTION, FOLDED = "solution", "hide-input"  # tags of cells
FOLDED_SOLUTION, FOLDED_CODE = "A solution", "Code that sets up"
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"(?<!!)\[(?P<words>(?:`[^`\n]*`|[^]`[])+)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<part>#[^)\s]*)?\)"
    f"|{_CODE.pattern}",
    re.MULTILINE | re.DOTALL,
)


def unexecuted(lesson: Lesson) -> Any:
    """Return a lesson's notebook, solved, before it runs."""
    notebook = jupytext.reads(solved(lesson.text), fmt="py:percent")
    notebook.metadata.pop("jupytext", None)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same from run to run
    return notebook


def as_read(notebook: Any, lesson: Lesson) -> Any:
    """Return an executed notebook as somebody reads it who has answered nothing yet.

    The blank of each exercise stands before its solution. Guesses are dots, as in a student's
    notebook, and what was printed of them is left out.

    Args:
        notebook: What `executed` returned for the lesson; it is left alone.
        lesson: The lesson.
    """
    made = copy.deepcopy(notebook)
    made.cells = []
    for number, cell in enumerate(notebook.cells):
        cell = copy.deepcopy(cell)
        if cell.cell_type == "code" and cell.metadata.get("exercise"):
            text = blanked(lesson.cells[number].source)
            made.cells.append(new_code_cell(text, id=f"blank-{number}"))
            cell.metadata["tags"] = [SOLUTION, FOLDED]
        elif cell.cell_type == "code":
            cell.source = unguessed(cell.source)
            cell.outputs = list(_unguessed(cell.outputs, guessed(lesson.text)))
        made.cells.append(cell)
    return made


def _unguessed(outputs: Any, names: list[str]) -> Iterator[Any]:
    """Outputs without the guesses of these names that `guess` and `reveal` print."""
    name = f"^({'|'.join(map(re.escape, names))}): you"
    for output in outputs:
        if names and output.output_type == "stream":
            text = re.sub(rf"{name} say .*\n", "", output.text, flags=re.MULTILINE)
            output.text = re.sub(rf"{name} said .*; (?=it is )", r"\1: ", text, flags=re.MULTILINE)
            if not output.text:
                continue
        yield output


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with all changed but what is code in it."""
    parts = _CODE.split(text)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def pointing(text: str, to: Callable[[str], str | None]) -> str:
    """Return Markdown with its links to other files made to fit where it will lie.

    Args:
        text: Its links are relative to the folder of the lessons.
        to: Of a path there, the path that takes its place; None: the words stay, without a link.
    """

    def pointed(found: re.Match[str]) -> str:
        if not found["path"]:
            return found[0]
        path = to(found["path"])
        return (
            found["words"] if path is None else f"[{found['words']}]({path}{found['part'] or ''})"
        )

    return _LINK.sub(pointed, text)

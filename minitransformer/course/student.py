"""A student's folder: the lessons that are handed out, and which stay the student's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from posixpath import normpath
from typing import Any, NamedTuple

from ..errors import UserError
from .lesson import blanked, chosen, lessons
from .lesson import folder as of_lessons

KINDS = ".ipynb", ".py"
BESIDE = "glossary.md", "sources.md", "first_kernel.md", "first_kernel.py"  # what lessons link to
_VERSION = re.compile(r'"?handed_out"?: "?([0-9a-f]{12})')  # in a script's head, or a notebook's
# To a file, so that launches in the code, kernel[4, 32](x, out), are none.
_LINK = re.compile(r"\[([^][]+)\]\(([\w./-]+\.(?:md|py))(?:#[^)]*)?\)")

_KERNEL = "#   kernelspec:\n"  # of a lesson's head

_COLAB = """\
# On Colab this installs what the lesson needs. Anywhere else it changes nothing.
import sys

if "google.colab" in sys.modules:
    %pip install --quiet minitransformer
from minitransformer.device import resolve_device

print("arrays of models live on:", resolve_device("auto"))"""


def notebook(text: str) -> Any:
    """Return the notebook of a lesson's text, with a cell that sets up Colab below its title.

    Raises:
        UserError: jupytext is not installed.
    """
    try:
        import jupytext
        from nbformat.v4 import new_code_cell
    except ImportError:
        raise UserError(
            'notebooks need jupytext: pip install "minitransformer[course]", or take --scripts'
        ) from None
    made = jupytext.reads(text, fmt="py:percent")
    made.cells.insert(1, new_code_cell(_COLAB, metadata={"tags": ["setup", "hide-cell"]}))
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same from build to build
    made.metadata.pop("jupytext", None)
    return made


def write(text: str, path: Path) -> None:
    """Write the notebook of a lesson's text; make its folder if need be.

    Raises:
        UserError: jupytext is not installed.
    """
    made = notebook(text)
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


class Handed(NamedTuple):
    """A lesson in a student's folder.

    Attributes:
        path: The file.
        is_new: Whether it has been put there just now.
        is_outdated: Whether the lesson has changed since it was.
    """

    path: Path
    is_new: bool
    is_outdated: bool


def hand_out(folder: Path, which: str | None = None, *, scripts: bool = False) -> list[Handed]:
    """Put lessons into a student's folder, without solutions, and what they link to.

    What a student has written is kept: notebooks and programs. The pages beside them are renewed. A
    link to what is not handed out becomes its text, and where that stands in the repository.

    Args:
        folder: Made if need be.
        which: A lesson's number or name; all by default.
        scripts: Whether as Python files in cells, which need no Jupyter.

    Raises:
        UserError: There is no such lesson, or jupytext is not installed.
    """
    handed = []
    for lesson in [chosen(which)] if which else lessons():
        path = folder / f"{lesson.name}{'.py' if scripts else '.ipynb'}"
        text = _linked(blanked(lesson.text))
        version = sha256(text.encode()).hexdigest()[:12]
        if path.exists():
            theirs = _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))
            handed.append(Handed(path, False, theirs is not None and theirs[1] != version))
            continue
        text = text.replace(_KERNEL, f'#   handed_out: "{version}"\n{_KERNEL}', 1)
        if scripts:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            write(text, path)
        handed.append(Handed(path, True, False))
    for name in BESIDE:
        path, text = folder / name, (of_lessons() / name).read_text(encoding="utf-8")
        if path.suffix == ".md":
            path.write_text(_linked(text), encoding="utf-8")
        elif not path.exists():
            path.write_text(text, encoding="utf-8")
    return handed


def _linked(text: str) -> str:
    """A text whose links lead to what a student has; of others it says where that stands."""

    def linked(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if target in BESIDE:
            return link[0]
        place = normpath(f"tutorials/{target}")
        return words if place in words else f"{words} ({place})"

    return _LINK.sub(linked, text)


def files(folder: Path) -> list[Path]:
    """Return a folder's notebooks and scripts of lessons, and those of the folders in it."""
    found = [*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")]
    found = [path for path in found if path.suffix in KINDS and path.name not in BESIDE]
    return sorted(path for path in found if path.is_file())


def can_open() -> bool:
    """Whether JupyterLab is installed."""
    return importlib.util.find_spec("jupyterlab") is not None


def open_notebooks(first: Path) -> int:
    """Run JupyterLab in a notebook's folder until it is ended; return its exit code."""
    return subprocess.run([sys.executable, "-m", "jupyterlab", str(first)], check=False).returncode

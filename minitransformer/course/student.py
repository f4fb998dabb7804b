"""A student's folder: the notebooks that are handed out, and which stay the student's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..errors import UserError
from .lesson import blanked, chosen, lessons

_COLAB = """\
# On Colab, install what the lesson needs; anywhere else this does nothing.
import sys

if "google.colab" in sys.modules:
    %pip install -q minitransformer
from minitransformer.device import resolve_device

print("kernels run on:", resolve_device("auto"))"""


def notebook(text: str) -> Any:
    """Return the notebook of a lesson's text, with a cell before it that sets up Colab.

    Raises:
        UserError: jupytext is not installed.
    """
    try:
        import jupytext
        from nbformat.v4 import new_code_cell
    except ImportError:
        raise UserError("notebooks need jupytext: pip install 'minitransformer[course]'") from None
    made = jupytext.reads(text, fmt="py:percent")
    setup = new_code_cell(_COLAB, metadata={"tags": ["setup", "hide-cell"]}, id="setup")
    made.cells.insert(1, setup)
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same from build to build
    made.metadata.pop("jupytext", None)
    return made


def write(text: str, path: Path) -> None:
    """Write the notebook of a lesson's text."""
    import nbformat

    made = notebook(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


def hand_out(folder: Path, which: str | None = None) -> list[tuple[Path, bool]]:
    """Put lessons into a student's folder, without solutions; what is there is kept.

    Args:
        folder: Made if need be.
        which: A lesson's number or name; all by default.

    Returns:
        The notebooks, and for each whether it is new.

    Raises:
        UserError: There is no such lesson, or jupytext is not installed.
    """
    handed = []
    for lesson in [chosen(which)] if which else lessons():
        path = folder / f"{lesson.name}.ipynb"
        handed.append((path, not path.exists()))
        if not path.exists():
            write(blanked(lesson.text), path)
    return handed


def notebooks(folder: Path) -> list[Path]:
    """Return the lessons in a student's folder, in order."""
    names = [lesson.name for lesson in lessons()]
    files = (folder / f"{name}{end}" for name in names for end in (".ipynb", ".py"))
    return [file for file in files if file.exists()]


def open_notebooks(folder: Path, first: Path) -> int:
    """Open JupyterLab in a folder, at a notebook; return its exit code."""
    command = shutil.which("jupyter-lab")
    if command is None:
        raise UserError(
            f"JupyterLab is not installed: pip install 'minitransformer[course]'. The notebooks in "
            f"{folder} open in any other program, too"
        )
    return subprocess.run([command, str(first)], check=False).returncode

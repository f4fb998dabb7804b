"""Makes what learners get from the lessons: notebooks, and exercises without their solutions.

    python tutorials/build.py                    every lesson, into this folder
    python tutorials/build.py LESSON.py ...      these lessons
    python tutorials/build.py --out FOLDER       into another folder, with all that they need

Of each lesson it makes `<lesson>.ipynb`, and `<lesson>_exercises.py` and `.ipynb`, where what
stands between `# BEGIN SOLUTION` and `# END SOLUTION` has become a blank. Notebooks need the extra
`docs`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
HELPERS = ("classroom.py", "counting.py", "drawings.py")
BLANK = "pass  # your turn"

_MARKER = re.compile(r"^ *# (BEGIN|END) SOLUTION$", re.MULTILINE)
_SOLUTION = re.compile(r"^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$", re.MULTILINE | re.DOTALL)


def lessons() -> list[Path]:
    """Return the lessons of this folder: the files in the percent format."""
    files = sorted(HERE.glob("*.py"))
    return [f for f in files if "\n# %%" in f.read_text() and not f.stem.endswith("_exercises")]


def blanked(text: str) -> str:
    r"""Return a lesson's text with a blank in place of each solution.

    Raises:
        ValueError: a solution begins or ends without the other, or there is none.

    >>> print(blanked("def f():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION"))
    def f():
        pass  # your turn
    """
    markers = _MARKER.findall(text)
    if not markers or markers != ["BEGIN", "END"] * (len(markers) // 2):
        raise ValueError(
            "blanked: expected pairs of '# BEGIN SOLUTION' and '# END SOLUTION', each on a line of "
            f"its own, got {markers}"
        )
    return _SOLUTION.sub(rf"\1{BLANK}", text)


def notebook(text: str) -> str:
    """Return the notebook of a lesson's text, as JSON.

    Raises:
        ModuleNotFoundError: jupytext is not installed.
    """
    import jupytext

    return str(jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="ipynb"))


def build(lesson: Path, out: Path) -> list[Path]:
    """Write what is made of a lesson.

    Args:
        lesson: The file, in the percent format.
        out: The folder to write to, which exists.

    Returns:
        The files written.
    """
    text = lesson.read_text()
    exercises = f"{lesson.stem}_exercises"
    made = {
        f"{exercises}.py": blanked(text),
        f"{lesson.stem}.ipynb": notebook(text),
        f"{exercises}.ipynb": notebook(blanked(text)),
    }
    for name, content in made.items():
        (out / name).write_text(content)
    return [out / name for name in made]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", type=Path, help="files; all lessons by default")
    parser.add_argument("--out", type=Path, default=HERE, help="folder; this one by default")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        for lesson in chosen.lessons or lessons():
            print(*build(lesson, chosen.out), sep="\n")
    except ModuleNotFoundError:
        sys.exit("build: notebooks need jupytext: pip install 'minitransformer[docs]'")
    if chosen.out.resolve() != HERE.resolve():
        for helper in HELPERS:
            shutil.copy(HERE / helper, chosen.out)


if __name__ == "__main__":
    main()

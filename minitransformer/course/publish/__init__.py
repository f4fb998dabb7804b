"""Makes of the lessons what readers, students and instructors open: notebooks, pages, a site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import UserError
from ..lesson import Lesson, chosen, folder, lessons
from ..student import BESIDE, hand_out

BEGIN, END = "<!-- lessons -->\n", "\n<!-- end of lessons -->"


def build(which: Sequence[str], out: Path, *, fast: bool = False) -> Iterator[Path]:
    """Write the site, with its notebooks: `notebooks/` as they ran, `students/` to fill in.

    Args:
        which: Numbers or names of lessons; all where empty.
        out: The folder of the site, which opens without a network: `index.html`.
        fast: Small sizes, whose timings say little.

    Yields:
        What was written.

    Raises:
        UserError: A cell fails, a page has a mistake, a library is missing, or the folder holds
            other files.
    """
    try:
        import nbformat

        from .execute import executed
        from .site import NOTEBOOKS, STUDENTS, build_site
    except ImportError as error:
        raise _missing(error) from None
    made = {}
    if out.exists() and any(out.iterdir()) and not (out / NOTEBOOKS).exists():
        raise UserError(f"{out}: holds files that are no site of the course; choose another --out")
    (out / NOTEBOOKS).mkdir(parents=True, exist_ok=True)
    for lesson in _lessons(which):
        made[lesson] = executed(lesson, fast=fast)
        path = out / NOTEBOOKS / f"{lesson.name}.ipynb"
        nbformat.write(made[lesson], path)
        yield path
        for name in (path.name, *BESIDE):
            (out / STUDENTS / name).unlink(missing_ok=True)
        yield from (one.path for one in hand_out(out / STUDENTS, lesson.name))
    build_site(made, out)
    yield out / "index.html"


def pages(which: Sequence[str], *, fast: bool = False) -> Iterator[Path]:
    """Write lessons as Markdown with their figures, into the lessons' own folder; and the table.

    Args:
        which: Numbers or names of lessons; all where empty.
        fast: As in `build`.

    Yields:
        What was written.

    Raises:
        UserError: As in `build`.
    """
    try:
        from .execute import executed
        from .markdown import write
    except ImportError as error:
        raise _missing(error) from None
    for lesson in _lessons(which):
        yield from write(executed(lesson, fast=fast), lesson, folder() / "pages")
    readme = folder() / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
    yield readme


def with_table(text: str) -> str:
    """Return the text of the lessons' README with its table as it should be."""
    from .table import table

    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(lessons(), '.md', 'pages/')}{END}{after}"


def _lessons(which: Sequence[str]) -> list[Lesson]:
    return [chosen(name) for name in which] or lessons()


def _missing(error: ImportError) -> UserError:
    return UserError(
        f'this needs {error.name}, which comes with: pip install "minitransformer[docs]"'
    )

"""What a lesson shows: figures, tables and quoted source, in a notebook and as a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150


def show(what: Any, name: str = "", *, alt: str = "") -> None:
    """Show a figure or something quoted: in a notebook on the page, as a script printed.

    A script's figures become files in the folder `LESSON_OUT`, by default `out/<lesson>` where it
    runs.

    Args:
        what: A figure, or anything that can be printed.
        name: A figure's name, of which its file is made.
        alt: What a figure shows, in a sentence, for who cannot see it; a figure needs it.

    Raises:
        ValueError: A figure without name or alt.
    """
    display = _display()
    if not hasattr(what, "savefig"):
        (display or print)(what)
        return
    if not name or not alt:
        raise ValueError("show: a figure needs name= and alt=")
    if display:
        display(_Picture(what, name, alt))
        return
    path = _folder() / f"{name}.png"
    what.savefig(path, dpi=DPI)
    print(f"[figure: {path}]")


def _display() -> Callable[[Any], object] | None:
    """What shows something on the page, in a notebook."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return None
    show_there: Callable[[Any], object] = ipython.display.display
    return show_there


class _Picture:
    """A figure as a notebook displays it: an image with a width, and with its alt text."""

    def __init__(self, figure: Figure, name: str, alt: str) -> None:
        self.figure, self.name, self.alt = figure, name, alt

    def __repr__(self) -> str:
        return f"[figure: {self.name}: {self.alt}]"

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        import io

        data = io.BytesIO()
        self.figure.savefig(data, dpi=DPI, format="png")
        width = round(96 * self.figure.get_figwidth())
        return data.getvalue(), {"width": width, "alt": self.alt, "name": self.name}


def _folder() -> Path:
    main = getattr(sys.modules["__main__"], "__file__", None)
    chosen = os.environ.get("LESSON_OUT")
    folder = Path(chosen) if chosen else Path("out") / (Path(main).stem if main else "lesson")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a head; numbers stand to the right.

    >>> table(("name", "bytes"), [("scores", 4096), ("state", 80)])
    name    bytes
    ------  -----
    scores   4096
    state      80
    """
    lines = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (list(head), ["-" * width for width in widths], *lines):
        padded = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        print(line[0].ljust(widths[0]), *padded[1:], sep="  ")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

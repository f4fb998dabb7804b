"""A lesson as one Markdown page with its figures: what a code host can show.

Code hosts render formulas between dollars, but read them as Markdown first, which takes backslashes
before punctuation and pairs of underscores for its own. So a formula of its own line becomes a
block of the language `math`, and one in a sentence is fenced where it must be.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from ..lesson import BLANK, Lesson
from .reading import FOLDED, FOLDED_CODE, FOLDED_SOLUTION, SOLUTION, as_read, outside_code, pointing

MADE = (
    "<!-- Made of ../{lesson}.py by `minitransformer course pages`: edit that file, not this. -->"
)
COLOURS = 128  # of a figure's palette: lines, text and a few colour scales
_DISPLAY = re.compile(r"^( *)\$\$(.+?)\$\$ *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<![\\$\w])\$([^$\n]+(?:\n[^$\n]+)*)\$(?!\$)")
_RISKY = re.compile(r"\\[^A-Za-z\s]|[*<>|~`]|[^\w\s]_|_[^\w\s{]")


def write(notebook: Any, lesson: Lesson, folder: Path) -> Iterator[Path]:
    """Write a lesson's page, `NN_name.md`, and its figures, `NN_name/*.png`.

    Args:
        notebook: What `executed` returned for the lesson.
        lesson: The lesson.
        folder: Where to; what an earlier page left there goes.

    Yields:
        The files.
    """
    figures = folder / lesson.name
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(parents=True)
    parts = [MADE.format(lesson=lesson.name)]
    for cell in as_read(notebook, lesson).cells:
        parts.append(shown(cell))
        parts += (_output(output, figures) for output in cell.get("outputs", ()))
    page = folder / f"{lesson.name}.md"
    page.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    yield page
    yield from sorted(figures.iterdir())


def shown(cell: Any) -> str:
    """Return a cell of `as_read` as Markdown, without its outputs."""
    if cell.cell_type == "markdown":
        return prose(cell.source)
    code, tags = _fenced(cell.source, "python"), cell.metadata.get("tags", ())
    if SOLUTION in tags:
        return _folded(FOLDED_SOLUTION, code)
    if FOLDED in tags:
        return _folded(FOLDED_CODE, code)
    return f"**Your turn.**\n\n{code}" if BLANK in cell.source else code


def prose(text: str) -> str:
    r"""Return a text cell as a code host reads it.

    >>> print(prose(r"Take $x_i$ and $\{y\}$:\n\n$$a \tag{1}$$".replace(r"\n", "\n")))
    Take $x_i$ and $`\{y\}`$:
    <BLANKLINE>
    ```math
    a \tag{1}
    ```
    """
    text = pointing(text, _beside)
    text = outside_code(text, lambda prose: _DISPLAY.sub(_display, prose))
    return outside_code(text, lambda prose: _INLINE.sub(_inline, prose))


def _beside(path: str) -> str:
    """Where a page finds a file that the lesson, a folder above, has at this path."""
    lesson = re.fullmatch(r"(\d\d_\w+)\.py", path)
    return f"{lesson[1]}.md" if lesson else f"../{path}"


def _display(formula: re.Match[str]) -> str:
    indent, text = formula[1], textwrap.dedent(formula[2].strip("\n"))
    return textwrap.indent(f"```math\n{text.strip()}\n```", indent)


def _inline(formula: re.Match[str]) -> str:
    text = " ".join(formula[1].split())
    return f"$`{text}`$" if _RISKY.search(text) else f"${text}$"


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _output(output: Any, figures: Path) -> str:
    if output.output_type == "stream":
        return _fenced(output.text.rstrip("\n"), "text") if output.text.strip() else ""
    data = output.data
    if "image/png" in data:
        return _figure(data["image/png"], output.metadata["image/png"], figures)
    if "text/markdown" in data:
        return str(data["text/markdown"])
    return _fenced(data["text/plain"], "text")


def _figure(data: str, metadata: Any, figures: Path) -> str:
    path = figures / f"{metadata['name']}.png"
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    alt = metadata["alt"].replace("[", "(").replace("]", ")")
    return f"![{alt}]({figures.name}/{path.name})"


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"^`{3,}", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

"""A kernel's regions in colours, beside the loops that they become, and over time: as SVG.

    compiled = smooth.on_cpu.compiled((64, 1, 1), arguments, 0)
    Path("regions.svg").write_text(drawing(compiled.variant))

A drawing is text and rectangles, so it is the same on every machine and needs no library.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import Any

from . import emit
from .lowering import PLAIN, Variant
from .regions import Barrier, Branch, Lanes, Loop, Node, Strip
from .source import place

# Okabe and Ito (2008): colours that stay apart for colour-blind eyes; as tints, to write on.
TINTS = ("#c3e3f6", "#fadfa6", "#a8dccb", "#eecadf", "#f9f4a8", "#f0bf9f")
INK = "#333333"
LINE, LETTER = 17, 7.3  # of the text, in pixels
MARGIN, GAP, TITLE = 16, 40, 26
THREADS, TOGETHER = 16, 4  # that are drawn; that one SIMD instruction runs
STEP, ROW = 14, 5  # of the diagrams, in pixels

Coloured = list[tuple[str, str | None]]  # lines of text, and their colours
Box = tuple[int, int, str | None]  # first thread, threads, colour; a barrier has none


class _Body(emit.Body):
    """Writes what is always written, and remembers which lines a region became."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.found: list[tuple[Lanes, range]] = []

    def ran(self, region: Lanes, header: int) -> None:
        self.found.append((region, range(header, len(self.text.lines))))


def drawing(variant: Variant, turns: int = 2) -> str:
    """Draw how a kernel is lowered.

    Args:
        variant: The kernel, for the arguments and the block that it was compiled for.
        turns: How often the diagrams go through each loop at block level.

    Returns:
        An SVG.
    """
    body = replace(variant, mode=replace(PLAIN, body=_Body)).written()
    tints = {id(region): TINTS[i % len(TINTS)] for i, (region, _) in enumerate(body.found)}
    kernel, loops = _kernel(variant, body, tints), _loops(variant, body, tints)
    steps = list(_steps(body.regions.nodes, tints, turns))
    wait = sum(map(_width, _in_turns(steps)))
    column = MARGIN + max(wait, _longest(kernel)) + GAP
    parts = [
        *_listing("The kernel: what one thread does", kernel, MARGIN, MARGIN),
        *_listing("What one core does for all threads of a block", loops, column, MARGIN),
    ]
    y = MARGIN + TITLE + LINE * len(kernel) + GAP / 2
    for title, boxes in (
        ("On a GPU: all threads at once", _at_once(steps)),
        (f"On a core: {TOGETHER} threads an instruction", _in_turns(steps)),
    ):
        parts += _diagram(title, boxes, MARGIN, y)
        y += TITLE + THREADS * ROW + GAP / 2
    parts.append(_text("threads downwards, time to the right; a line is a barrier", MARGIN, y - 10))
    height = max(y + GAP / 2, MARGIN + TITLE + LINE * len(loops)) + MARGIN
    return _page(column + _longest(loops) + MARGIN, height, parts)


def _kernel(variant: Variant, body: _Body, tints: dict[int, str]) -> Coloured:
    """The kernel's text; a line has the colour of the first region with a statement on it."""
    colours: dict[int, str] = {}
    for region, _ in body.found:
        for statement in body.without_dead_definitions(region):
            colours.setdefault(place(statement)[1], tints[id(region)])
    first = variant.source.first_line
    lines = inspect.getblock(linecache.getlines(variant.source.filename)[first - 1 :])
    return [(line.rstrip(), colours.get(first + i)) for i, line in enumerate(lines)]


def _loops(variant: Variant, body: _Body, tints: dict[int, str]) -> Coloured:
    """The text of the function over a range of blocks."""
    colours = {line: tints[id(region)] for region, lines in body.found for line in lines}
    first = body.text.lines.index(f"@kernel(fastmath={variant.fastmath})") + 1
    return [(line, colours.get(first + i)) for i, line in enumerate(body.text.lines[first:])]


def _steps(nodes: Iterable[Node], tints: dict[int, str], turns: int) -> Iterator[str | None]:
    """What a block goes through: the colour of each region, and None for each barrier."""
    for node in nodes:
        match node:
            case Lanes() if id(node) in tints:
                yield tints[id(node)]
            case Barrier():
                yield None
            case Loop(_, inner):
                for _ in range(turns):
                    yield from _steps(inner, tints, turns)
            case Branch(_, inner, _) | Strip(inner):
                yield from _steps(inner, tints, turns)


def _at_once(steps: list[str | None]) -> Iterator[Box]:
    """All threads run a region at once."""
    for colour in steps:
        yield 0, THREADS, colour


def _in_turns(steps: list[str | None]) -> Iterator[Box]:
    """A few threads after a few run a region."""
    for colour in steps:
        count = TOGETHER if colour else THREADS
        for first in range(0, THREADS, count):
            yield first, count, colour


def _width(box: Box) -> float:
    return STEP if box[2] else STEP / 2


def _diagram(title: str, boxes: Iterable[Box], x: float, y: float) -> Iterator[str]:
    """Threads downwards, time to the right."""
    yield _text(title, x, y, "bold")
    y += TITLE
    for box in boxes:
        first, count, colour = box
        for thread in range(first, first + count):
            if colour:
                yield _box(x, y + thread * ROW, STEP - 1, ROW - 1, colour)
        if not colour:
            yield _box(x + STEP / 4 - 1, y, 1.5, count * ROW, INK)
        x += _width(box)


def _longest(lines: Coloured) -> float:
    return LETTER * max(len(text) for text, _ in lines)


def _listing(title: str, lines: Coloured, x: float, y: float) -> Iterator[str]:
    """Lines of text; neighbours of one colour on one box each, as wide as the longest of them."""
    yield _text(title, x, y, "bold")
    y += TITLE
    for colour, group in groupby(lines, key=lambda line: line[1]):
        texts = [text for text, _ in group]
        indent = min(len(text) - len(text.lstrip()) for text in texts) * LETTER
        if colour:
            width = max(map(len, texts)) * LETTER - indent + 6
            yield _box(x + indent - 3, y + 1, width, LINE * len(texts) - 2, colour)
        for text in texts:
            yield _text(text, x, y, "code")
            y += LINE


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{colour}"/>')  # fmt: skip


def _text(text: str, x: float, y: float, kind: str = "note") -> str:
    return (f'<text class="{kind}" x="{x:.1f}" y="{y + 12.5:.1f}" xml:space="preserve">'
            f"{escape(text, quote=False)}</text>")  # fmt: skip


def _page(width: float, height: float, parts: Iterable[str]) -> str:
    style = (
        f"text {{ font: 12px sans-serif; fill: {INK} }} .bold {{ font-weight: bold }} "
        ".code { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace }"
    )
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}">')  # fmt: skip
    back = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<style>{style}</style>", back, *parts, "</svg>"]) + "\n"

"""Your first kernel: threads and what they own, what a block shares, how it adds up."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PALE, SKY, box, canvas, panels


def threads(size: int, width: int) -> Figure:
    """Draw blocks of `width` threads over a row of numbers; who has none is grey."""
    blocks = -(-size // width)
    figure, (sheet,) = panels(1, 10, 0.3 + 0.53 * blocks)
    canvas(sheet, f"{size} numbers, {blocks} blocks of {width} threads")
    for block in range(blocks):
        y = 2.0 * block
        sheet.text(-0.4, y + 0.5, f"block {block}", ha="right", va="center")
        for thread in range(width):
            number = block * width + thread
            works = number < size
            box(sheet, thread, y, 1, 1, SKY if works else GREY)
            sheet.text(thread + 0.5, y + 0.5, str(number), ha="center", va="center",
                       fontsize=7.5, color=INK if works else GREY)  # fmt: skip
    sheet.set_xlim(-3.5, width + 0.2)
    sheet.set_ylim(2.0 * blocks - 0.8, -0.2)
    return figure


def sharing() -> Figure:
    """Draw how a block's threads meet in shared memory: fill, wait, take the neighbour's."""
    figure, (sheet,) = panels(1, 9, 4.2)
    canvas(sheet, "What a block of four threads shares")
    for block, color in enumerate((SKY, AMBER)):
        left = 7.0 * block
        sheet.text(left + 3, -0.3, f"block {block}", ha="center", color=INK)
        for t in range(4):
            own, i = left + 1 + t, 4 * block + t
            box(sheet, own, 0, 1, 1, color, f"x[{i}]")
            box(sheet, own, 2.2, 1, 1, color)
            box(sheet, own, 5.4, 1, 1, color, f"out[{i}]")
            _arrow(sheet, own + 0.5, 1, own + 0.5, 2.2, GREY)
            _arrow(sheet, own + 0.6, 3.2, own + 0.6, 5.4, GREY)
            _arrow(sheet, own - 0.5, 3.2, own + 0.35, 5.4, BLUE)
        box(sheet, left, 2.2, 1, 1, PALE if block == 0 else SKY, "0" if block == 0 else "")
        sheet.plot((left - 0.2, left + 5.2), (4, 4), color=ORANGE, linewidth=2.5)
    _arrow(sheet, 4.8, 1, 7.4, 2.2, ORANGE)
    for y, text in (
        (0.5, "global memory"),
        (2.7, "tile, in shared memory"),
        (4.0, "barrier: all have written"),
        (5.9, "global memory"),
    ):
        sheet.text(12.7, y, text, va="center", color=ORANGE if y == 4.0 else INK)
    sheet.text(5.35, 1.85, "fetched\ntwice", ha="center", va="center", fontsize=9, color=ORANGE)
    sheet.set_xlim(-0.4, 17)
    sheet.set_ylim(6.6, -0.8)
    return figure


def halving(numbers: Sequence[int]) -> Figure:
    """Draw a sum by halves: the tile after each turn, and who works in it."""
    figure, (sheet,) = panels(1, 7, 4.4)
    canvas(sheet, "A sum by halves")
    tile, half, y = list(numbers), len(numbers) // 2, 0.0
    _tile(sheet, y, tile, len(tile))
    sheet.text(len(tile) + 0.5, y + 0.5, "every thread fills its element", va="center")
    while half:
        sheet.plot((-0.2, len(tile) + 0.2), (y + 1.25,) * 2, color=ORANGE, linewidth=2.5)
        for t in range(half):
            _arrow(sheet, t + 0.5, y + 1, t + 0.5, y + 2.2, GREY)
            _arrow(sheet, t + half + 0.5, y + 1, t + 0.62, y + 2.2, BLUE)
            tile[t] += tile[t + half]
        y += 2.2
        _tile(sheet, y, tile, half)
        works = "1 thread adds" if half == 1 else f"{half} threads add"
        sheet.text(len(tile) + 0.5, y + 0.5, f"half = {half}: {works}", va="center")
        half //= 2
    sheet.text(len(tile) + 0.5, 1.25, "barrier", va="center", color=ORANGE)
    sheet.set_xlim(-0.4, len(tile) + 6)
    sheet.set_ylim(y + 1.2, -0.3)
    return figure


def _tile(sheet: Axes, y: float, tile: Sequence[int], working: int) -> None:
    for t, number in enumerate(tile):
        box(sheet, t, y, 1, 1, GREEN if t < working else GREY, str(number))


def _arrow(sheet: Axes, x: float, y: float, to_x: float, to_y: float, color: str) -> None:
    sheet.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "-|>", "color": color})

"""Chunks: a triangle cut into blocks, and what a chunk size costs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from ..measuring import Seconds
from . import BLUE, GREY, INK, ORANGE, SKY, canvas, panels


def triangle(length: int, size: int) -> Figure:
    """Draw who looks at whom: pairs inside a chunk, and pairs that a state stands for.

    Args:
        length: L.
        size: C, which divides it.
    """
    figure, (axis,) = panels(1, 9, 4.6)
    canvas(axis, f"Queries × keys, cut into chunks of {size}")
    for first in range(0, length, size):
        axis.add_patch(
            Rectangle((0, first), first, size, facecolor=SKY, alpha=0.4, edgecolor="none")
        )
        axis.add_patch(Rectangle((0, first), first, size, fill=False, edgecolor=BLUE, lw=1.2))
        if first:
            axis.text(first / 2, first + size / 2, "through S", ha="center", va="center")
        for i in range(first, first + size):
            axis.add_patch(
                Rectangle((first, i), i + 1 - first, 1, facecolor=ORANGE, alpha=0.45, lw=0)
            )
        steps = [(first, first)]
        for i in range(first, first + size):
            steps += [(i + 1, i), (i + 1, i + 1)]
        axis.add_patch(Polygon([*steps, (first, first + size)], fill=False, edgecolor=ORANGE))
    axis.add_patch(Rectangle((0, 0), length, length, fill=False, edgecolor=INK, lw=0.8))
    axis.text(length / 2, -0.4, "keys  →", ha="center", va="bottom")
    axis.text(-0.4, length / 2, "queries", ha="right", va="center", rotation=90)
    right = length + 1
    for y, color, text in (
        (0.1, ORANGE, f"inside a chunk: scores,\n{size} × {size} at a time, masked"),
        (0.35, BLUE, "before it: one product with S,\nhowever many keys there are"),
        (0.6, GREY, "after it: never computed"),
    ):
        axis.text(right, y * length, text, color=color, va="top", fontsize=11)
    axis.set_xlim(-1.5, 1.75 * length)
    axis.set_ylim(length + 0.3, -1.5)
    return figure


def costs(
    sizes: Sequence[int], work: Sequence[float], times: Sequence[Seconds], recurrence: Seconds
) -> Figure:
    """Draw multiplications a token and measured times against the chunk size.

    Args:
        sizes: C.
        work: Multiplications a token, for each.
        times: Of a forward, for each.
        recurrence: The time of the recurrent kernel.
    """
    figure, (left, right) = panels(2, 9.5, 3.6)
    left.plot(sizes, work, color=ORANGE, marker="s", markersize=5)
    left.axhline(work[0], color=GREY, linewidth=1, linestyle=":")
    left.set(title="Multiplications a token", ylim=(min(work) / 2, max(work) * 2))
    right.plot(sizes, [t.median for t in times], color=BLUE, marker="o", markersize=5)
    right.fill_between(
        sizes, [t.lower for t in times], [t.upper for t in times], color=BLUE, alpha=0.2
    )
    right.axhline(recurrence.median, color=ORANGE, linewidth=1.5, linestyle="--")
    right.text(sizes[-1], recurrence.median, "recurrence", color=ORANGE, ha="right", va="bottom")
    right.set(title="Seconds of a forward, measured")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="chunk size C")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.xaxis.minorticks_off()
        axis.grid(True)
    return figure

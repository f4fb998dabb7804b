"""Figures of lesson 3: a tape in fifty lines."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from . import AMBER, GREY, ORANGE, SKY, box, canvas, numbers, panels

WIDTH, HEIGHT, ACROSS, DOWN = 1.5, 0.9, 3.0, 1.7


def graph(root: Any, names: dict[Any, str]) -> Figure:
    """Draw a tape of numbers after its backward: values, gradients, and what each edge brought.

    Args:
        root: Where backward began.
        names: Of the values behind it; those that were made first come first.
    """
    depths: dict[Any, int] = {}
    columns = defaultdict(list)
    for value in names:
        depths[value] = 1 + max((depths[x] for x, _ in value.edges), default=-1)
        columns[depths[value]].append(value)
    places = {
        value: (ACROSS * depth, DOWN * (at - (len(column) - 1) / 2))
        for depth, column in columns.items()
        for at, value in enumerate(column)
    }
    figure, (axis,) = panels(1, 10, 3.2)
    canvas(axis, "Values go right; gradients come back left, and add up where edges meet")
    for value, (x, y) in places.items():
        box(axis, x, y, WIDTH, HEIGHT, AMBER if value is root else SKY)
        axis.text(x + WIDTH / 2, y + 0.3, f"{names[value]} = {value.data:.3g}",
                  ha="center", va="center")  # fmt: skip
        axis.text(x + WIDTH / 2, y + 0.65, f"gradient {value.grad:.3g}", ha="center", va="center",
                  color=ORANGE, fontsize=9)  # fmt: skip
        for operand, pull in value.edges:
            left, top = places[operand]
            begin = np.array([left + WIDTH, top + HEIGHT / 2])
            end = np.array([x, y + HEIGHT / 2])
            axis.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=13,
                                           color=GREY, shrinkA=1, shrinkB=1))  # fmt: skip
            along = begin + 0.4 * (end - begin)
            white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axis.text(*along, f"{pull(value.grad):.3g}", ha="center", va="center", color=ORANGE,
                      fontsize=9, bbox=white)  # fmt: skip
    right = max(x for x, _ in places.values())
    heights = [y for _, y in places.values()]
    axis.set_xlim(-0.1, right + WIDTH + 0.1)
    axis.set_ylim(max(heights) + HEIGHT + 0.1, min(heights) - 0.1)
    return figure


def stretched(g: Any) -> Figure:
    """Draw the gradient of a result, and that of the row which broadcasting stretched to it."""
    figure, (left, right) = panels(2, 8, 3)
    largest = float(abs(g).max())
    numbers(left, g, "Gradient of the result", largest)
    numbers(right, g.sum(axis=0, keepdims=True), "Of the row: sums of columns", largest)
    right.set_ylim(left.get_ylim())
    for axis in (left, right):
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure

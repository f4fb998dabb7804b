"""Yours: what a query sees of each token through gates, and the gates along a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from . import BLUE, GREY, ORANGE, numbers, panels


def sights(gates: Mapping[str, Any]) -> Figure:
    """Draw, for each memory, how much of token j is left when query i reads: row i, column j.

    Args:
        gates: Names, and the gates of the tokens, (L,).
    """
    figure, axes = panels(len(gates), 12, 3.6)
    for axis, (name, g) in zip(axes, gates.items(), strict=True):
        left = np.full((len(g), len(g)), np.nan)
        for i in range(len(g)):
            for j in range(i + 1):
                left[i, j] = np.prod(g[j + 1 : i + 1])
        numbers(axis, left, name, 1.0, digits=2)
        axis.set_xticks(range(len(g)), [f"{j + 1}" for j in range(len(g))])
        axis.set_yticks(range(len(g)), [f"{j + 1}" for j in range(len(g))])
        axis.set(xlabel="token", ylabel="query" if axis is axes[0] else "")
    return figure


def read(gates: Any, mark: int) -> Figure:
    """Draw the gates along a text, and what is left of each token in the end.

    Args:
        gates: `(L,)`.
        mark: Which token turns the page.
    """
    figure, (above, below) = panels(2, 11, 3.6)
    place = np.arange(len(gates))
    colors = [ORANGE if i == mark else BLUE if i > mark else GREY for i in place]
    left = [np.prod(gates[i + 1 :]) for i in place]
    for axis, heights, title in (
        (above, gates, "Its gate: what a token leaves of the past"),
        (below, left, "What is left of each token in the end"),
    ):
        axis.bar(place + 1, heights, color=colors)
        for name, color, begin, end in (
            ("before it", GREY, 0, mark), ("after it", BLUE, mark + 1, len(gates)),
        ):  # fmt: skip
            axis.text((begin + end + 1) / 2, 1.12, name, ha="center", color=color)
        axis.set(title=title, xlabel="token", ylim=(0, 1.25), yticks=np.linspace(0, 1, 6))
        axis.annotate(
            "the mark", (mark + 1, heights[mark]), (mark + 1, 1.12), ha="center", color=ORANGE,
            arrowprops={"arrowstyle": "->", "color": ORANGE},
        )  # fmt: skip
    return figure

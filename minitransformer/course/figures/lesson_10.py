"""Distances: the clipped matrix in three colours, and which distances a head has learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import AMBER, BLUE, GREEN, GREY, INK, ORANGE, SKY, canvas, panels


def clipped(length: int, k: int) -> Figure:
    """Draw the distances of all pairs: a band that has each once, and two tails that are all alike.

    Args:
        length: L.
        k: The distance from which on all are alike; less than L.
    """
    figure, (axis,) = panels(1, 9, 5)
    canvas(axis, f"clip(j - i, -{k}, {k}): all pairs of {length} tokens")
    for i in range(length):
        for j in range(length):
            r = j - i
            color = BLUE if r <= -k else GREEN if r >= k else AMBER
            axis.add_patch(
                Rectangle((j, i), 1, 1, facecolor=color, alpha=0.35, edgecolor="white", lw=1)
            )
            axis.text(
                j + 0.5, i + 0.5, f"{min(max(r, -k), k)}", ha="center", va="center", fontsize=8
            )
    axis.add_patch(Rectangle((0, 0), length, length, fill=False, edgecolor=INK, lw=0.8))
    axis.text(length / 2, -0.3, "keys j  →", ha="center", va="bottom")
    axis.text(-0.3, length / 2, "queries i", ha="right", va="center", rotation=90)
    for y, color, text in (
        (0.05, ORANGE, f"the band: {2 * k - 1} distances, each with\na weight of its own in a row"),
        (0.38, BLUE, f"left tail: all at -{k}, one weight\nfor a row, and A sums up the values"),
        (0.71, GREEN, f"right tail: all at {k}, one weight\nfor a row, and C sums up the values"),
    ):
        axis.text(length + 0.8, y * length, text, color=color, va="top", fontsize=11)
    axis.set_xlim(-1.2, 1.75 * length)
    axis.set_ylim(length + 0.3, -1.2)
    return figure


def learned(distances: Sequence[int], weights: Any, wanted: int) -> Figure:
    """Draw the weight of each distance: the median of the queries, and how far they differ.

    Args:
        distances: r, in order.
        weights: `(queries, distances)`.
        wanted: The distance that the task asks for.
    """
    figure, (axis,) = panels(1, 7, 3.2)
    lower, middle, upper = np.quantile(weights, (0.1, 0.5, 0.9), axis=0)
    colors = [ORANGE if r == wanted else SKY for r in distances]
    axis.vlines(distances, lower, upper, color=GREY, linewidth=1.2)
    axis.scatter(distances, middle, color=colors, zorder=2)
    axis.set(
        title="Learned weight of each distance", xlabel="distance r", ylabel="weight F",
        yscale="log",
    )  # fmt: skip
    first, *others = distances
    axis.set_xticks(distances, [f"to {first}", *map(str, others)])  # it is clipped
    return figure

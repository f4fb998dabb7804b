"""Waves: hands that turn together, functions made of waves, and what two heads have learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Circle

from . import AMBER, BLUE, GREEN, GREY, INK, ORANGE, SKY, panels


def hands(t: float, u: float, turn: float) -> Figure:
    """Draw two hands at the angles t and u on a clock, and beside it both turned by `turn`."""
    figure, axes = panels(2, 6.6, 3.3)
    _clock(axes[0], t, u, "t", "u", "a query's hand and a key's")
    _clock(axes[1], t + turn, u + turn, "t′", "u′", "both turned by the same angle")
    return figure


def _clock(axis: Axes, t: float, u: float, query: str, key: str, caption: str) -> None:
    axis.set_aspect("equal")
    axis.set_axis_off()
    axis.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.3))
    axis.add_patch(Circle((0, 0), 1, fill=False, edgecolor="#cccccc"))
    axis.plot([0, 1.1], [0, 0], color="#cccccc", linewidth=1)
    for angle, color, name in ((t, BLUE, query), (u, ORANGE, key)):
        tip = np.array([np.cos(angle), np.sin(angle)])
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", tip, (0, 0), arrowprops=arrow)
        axis.text(*1.18 * tip, name, color=color, ha="center", va="center", fontsize=13)
    ends = {"theta1": np.degrees(u), "theta2": np.degrees(t)}
    axis.add_patch(Arc((0, 0), 0.7, 0.7, **ends, color=GREEN, linewidth=2))
    x, y = 0.56 * np.cos((t + u) / 2), 0.56 * np.sin((t + u) / 2)
    axis.text(x, y, f"{query} − {key}", color=GREEN, ha="center", va="center", fontsize=11)
    axis.text(0, -1.35, caption, ha="center", va="center", fontsize=11)


def fits(
    distances: Any, wanted: Any, drawn: Mapping[str, Mapping[int, Any]], limit: float
) -> Figure:
    """Draw a function of distance, and what sums of waves make of it.

    Args:
        distances: Where the functions are known.
        wanted: The function there.
        drawn: For each form of the weight, what comes out by the number of waves.
        limit: Of the last form.
    """
    figure, axes = panels(len(drawn), 9, 3.3)
    for axis, (name, curves) in zip(axes, drawn.items(), strict=True):
        axis.plot(distances, wanted, color="#c4c4c4", linewidth=6, label="wanted")
        lines = zip(curves.items(), (AMBER, BLUE, ORANGE), (3.4, 2.2, 1), strict=True)
        for (E, curve), color, width in lines:  # they may coincide
            axis.plot(distances, curve, color=color, linewidth=width, label=f"{E} waves")
        axis.set(title=name, xlabel="distance", ylim=(-0.22, 1.1))
        axis.axhline(0, color=INK, linewidth=0.6)
    axes[0].set_ylabel("weight")
    axes[-1].axhline(limit, color=GREY, linestyle="--", linewidth=1.2, label="twice the mean")
    axes[-1].legend(loc="upper left")
    return figure


def learned(distances: Sequence[int], heads: Mapping[str, Any], wanted: int) -> Figure:
    """Draw the weight of each distance: the median of pairs, and how far they differ.

    Args:
        distances: From query to key, in order.
        heads: For each head's name the size of its weights, `(pairs, distances)`.
        wanted: The distance that the task asks for.
    """
    figure, axes = panels(len(heads), 9, 3.2)
    colors = [ORANGE if r == wanted else SKY for r in distances]
    for axis, (name, weights) in zip(axes, heads.items(), strict=True):
        lower, middle, upper = np.quantile(weights, (0.1, 0.5, 0.9), axis=0)
        axis.bar(distances, middle, color=colors, width=0.7)
        axis.vlines(distances, lower, upper, color=GREY, linewidth=1.2)
        axis.set(title=name, xlabel="distance", ylim=(0, 2.1))
        axis.set_xticks(distances)
    axes[0].set_ylabel("size of the weight / q · k")
    return figure

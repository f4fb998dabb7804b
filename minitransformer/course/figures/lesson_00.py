"""Six tokens: who looks at whom, what the scale is for, how heads are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from . import AMBER, BLUE, GREEN, GREY, INK, ORANGE, SKY, box, canvas, panels


def looking(weights: Any) -> Figure:
    """Draw weights (L, L) as a table, and as arrows from each token to those it listens to."""
    figure, (left, right) = panels(2, 9, 3.7, [1, 1.5])
    length = len(weights)
    left.imshow(weights, cmap="Blues", vmin=0, vmax=1.3)
    for i, row in enumerate(weights):
        for j, p in enumerate(row):
            if p:
                left.text(j, i, f"{p:.2f}".lstrip("0"), ha="center", va="center", fontsize=8,
                          color="white" if p > 0.7 else INK)  # fmt: skip
    left.set(title="As an array", xlabel="key j", ylabel="query i")
    left.set(xticks=range(length), yticks=range(length))
    left.tick_params(length=0)

    canvas(right, "As arrows, wide where the weight is large")
    for i in range(length):
        for y, color, word in ((0, SKY, "q"), (4.2, AMBER, "k")):
            box(right, 1.5 * i, y, 0.9, 0.7, color, f"{word}{i}")
        for j, p in enumerate(weights[i]):
            if p > 0.005:
                right.add_patch(FancyArrowPatch(
                    (1.5 * i + 0.45, 0.7), (1.5 * j + 0.45, 4.2), arrowstyle="-|>", alpha=0.75,
                    mutation_scale=9, color=BLUE, linewidth=0.4 + 4 * p, shrinkA=0, shrinkB=1,
                ))  # fmt: skip
    right.text(1.5 * length - 0.3, 0.35, "queries", va="center")
    right.text(1.5 * length - 0.3, 4.55, "keys", va="center")
    right.set_xlim(-0.3, 1.5 * length + 1.6)
    right.set_ylim(5.2, -0.3)
    return figure


def largest(widths: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the largest weight against the head's width, a curve for each name."""
    figure, (axis,) = panels(1, 6.5, 3.2)
    for (name, values), color in zip(curves.items(), (BLUE, ORANGE), strict=True):
        axis.plot(widths, values, color=color, marker="o")
        axis.annotate(name, (widths[-1], values[-1]), (9, 0), textcoords="offset points",
                      va="center", color=color)  # fmt: skip
    axis.set(xscale="log", xlabel="head dim E", ylim=(0, 1), xlim=(3.3, 900))
    axis.set_title("The largest of 64 weights")
    axis.set_xticks(widths, map(str, widths))
    axis.minorticks_off()
    axis.grid(True)
    return figure


def heads(length: int = 4, count: int = 3, width: int = 2) -> Figure:
    """Draw how rows of H E numbers become H matrices."""
    figure, (sheet,) = panels(1, 9, 2.4)
    canvas(sheet, "Three heads of two columns each")
    colors = SKY, AMBER, GREEN
    for h in range(count):
        for token in range(length):
            for e in range(width):
                number = f"{token},{h * width + e}"
                box(sheet, h * width + e, token, 1, 1, colors[h])
                box(sheet, 10 + 3 * h + e, token, 1, 1, colors[h])
                for x in (h * width + e, 10 + 3 * h + e):
                    sheet.text(x + 0.5, token + 0.5, number, ha="center", va="center", fontsize=7)
        sheet.text(11 + 3 * h, length + 0.5, f"head {h}", ha="center", va="center")
    sheet.annotate("", (9.4, length / 2), (6.6, length / 2), arrowprops={
        "arrowstyle": "-|>", "color": GREY})  # fmt: skip
    sheet.text(3, length + 0.5, "(L, H E)", ha="center", va="center", color=INK)
    sheet.text(19.2, length / 2, "(H, L, E)", va="center", color=INK)
    sheet.text(-0.2, length / 2, "tokens", ha="right", va="center", rotation=90)
    sheet.set_xlim(-1, 21.6)
    sheet.set_ylim(length + 1, -0.2)
    return figure

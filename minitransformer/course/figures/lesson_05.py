"""Figures of lesson 5: a whole layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from . import AMBER, BLUE, GREEN, INK, ORANGE, PINK, SKY, box, canvas, panels

WIDTH, HEIGHT = 1.6, 0.8
COLUMNS = 0.0, 2.9, 5.8, 8.7  # left edges: inputs, projections, attention, output


def pipeline() -> Figure:
    """Draw the layer, and its three passes in three colours."""
    figure, (axis,) = panels(1, 10.5, 4.6)
    canvas(axis)
    rows = (0.0, 1.6, 3.2)
    for row, name in zip(rows, "qkv", strict=True):
        box(axis, COLUMNS[0], row, WIDTH, HEIGHT, SKY, f"$X_{name}$")
        box(axis, COLUMNS[1], row, WIDTH, HEIGHT, SKY, name.upper())
        _both(axis, COLUMNS[0] + WIDTH, row, COLUMNS[1], row, f"W_{name}")
        _both(axis, COLUMNS[1] + WIDTH, row, COLUMNS[2], 1.6)
    box(axis, COLUMNS[2], 1.6, WIDTH, HEIGHT, AMBER, "P, O\neach head")
    box(axis, COLUMNS[3], 1.6, WIDTH, HEIGHT, SKY, "Y")
    _both(axis, COLUMNS[2] + WIDTH, 1.6, COLUMNS[3], 1.6, "W_o")
    for at, (color, text) in enumerate(
        ((BLUE, "forward: (1) to (4)"), (ORANGE, "backward for data: (5) to (10)"),
         (GREEN, "backward for weights: (11), (12)"))
    ):  # fmt: skip
        axis.text(7.1, 3.35 + 0.4 * at, text, color=color, va="center", fontsize=11)
    axis.set_xlim(-0.1, COLUMNS[3] + WIDTH + 0.1)
    axis.set_ylim(4.75, -0.2)
    return figure


def _both(axis: Axes, x: float, y: float, to_x: float, to_y: float, weights: str = "") -> None:
    """An arrow there and one back; through weights, one down to their gradient as well."""
    for shift, color, ends in ((0.25, BLUE, 1), (0.55, ORANGE, -1)):
        places = [(x + 0.05, y + shift), (to_x - 0.05, to_y + shift)][::ends]
        axis.add_patch(FancyArrowPatch(*places, arrowstyle="-|>", mutation_scale=13, color=color))
    if weights:
        middle = (x + to_x) / 2
        axis.text(middle, y + 0.12, f"${weights}$", ha="center", color=INK)
        down = FancyArrowPatch((middle, y + 0.6), (middle, y + 1.05), arrowstyle="-|>",
                               mutation_scale=13, color=GREEN)  # fmt: skip
        axis.add_patch(down)
        axis.text(middle, y + 1.2, f"$d{weights}$", ha="center", va="center", color=GREEN)


def losses(runs: Mapping[str, Sequence[float]]) -> Figure:
    """Draw losses by name, each from its first step on."""
    figure, (axis,) = panels(1, 8, 4)
    styles = (BLUE, "-"), (ORANGE, "-"), (PINK, (0, (5, 1.5))), (GREEN, (0, (2, 1)))
    for (name, values), (color, style) in zip(runs.items(), styles, strict=True):
        axis.plot(range(1, len(values) + 1), values, color=color, linestyle=style, label=name)
    best = min(map(min, runs.values()))
    axis.set(
        title="Predict zero: one of them leaves the picture",
        xlabel="step",
        ylabel="mean squared output",
        yscale="log",
        ylim=(best / 3, 1e6),
    )
    axis.legend(loc="lower left")
    axis.grid(True)
    return figure

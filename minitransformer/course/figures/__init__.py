"""What the lessons draw: a file for each, a function for each figure; here what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Okabe and Ito (2008): eight colours that stay apart for colour-blind eyes.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, YELLOW = "#56B4E9", "#E69F00", "#F0E442"
INK, GREY, PALE = "#333333", "#8c8c8c", "#ececec"

_LOOK: Any = {  # Any: the type that matplotlib gives its settings lists every one of them
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6e6e6",
    "lines.linewidth": 2,
    "legend.frameon": False,
}
matplotlib.rcParams.update(_LOOK)


def panels(
    columns: int = 1, width: float = 9, height: float = 3.6, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Start a figure with axes side by side; `width` and `height` are inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)
    return figure, list(axes[0])


def canvas(axis: Axes, title: str = "") -> Axes:
    """Turn axes into a sheet to draw on: no ticks, no frame, equal units, y downwards."""
    axis.set_axis_off()
    axis.set_aspect("equal", anchor="NW")
    axis.invert_yaxis()
    axis.set_title(title)
    return axis


def box(
    axis: Axes, x: float, y: float, width: float, height: float, color: str, text: str = ""
) -> None:
    """Draw a rectangle with a text in its middle: an array, to scale."""
    axis.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=0.35))
    axis.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=0.8))
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", linespacing=1.4)


def numbers(axis: Axes, array: Any, title: str, largest: float, digits: int = 1) -> None:
    """Draw a small matrix with its numbers: blue above zero, orange below, white where zero.

    Args:
        axis: Where to.
        array: `(rows, columns)`; NaN leaves its field empty.
        title: Stands above.
        largest: The absolute value that gets the full colour.
        digits: How many decimals are written.
    """
    colors = matplotlib.colors.LinearSegmentedColormap.from_list("", [ORANGE, "white", BLUE])
    colors.set_bad(PALE)
    axis.imshow(array, cmap=colors, vmin=-1.6 * largest, vmax=1.6 * largest)
    for i, row in enumerate(array):
        for j, value in enumerate(row):
            if value == value:
                axis.text(j, i, f"{value:z.{digits}f}", ha="center", va="center", fontsize=8)
    axis.set(title=title, xticks=[], yticks=[])


def lengths_axis(axis: Axes, lengths: Sequence[int]) -> None:
    """Make both axes logarithmic, with the lengths along the lower one."""
    axis.set(xscale="log", yscale="log", xlabel="length L")
    axis.margins(y=0.1)
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.xaxis.minorticks_off()
    axis.grid(True)

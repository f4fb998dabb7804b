"""Numbers that lie: errors of four sums, what a window keeps, and which input catches whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from . import BLUE, GREEN, GREY, INK, ORANGE, PALE, PINK, lengths_axis, panels


def lengths(
    sizes: Sequence[int], errors: Mapping[str, Sequence[float]], bounds: Sequence[float]
) -> Figure:
    """Draw the relative error of sums against their length.

    Args:
        sizes: How many numbers are added up.
        errors: For each way to do so its error at each length, nan where there is none; four ways,
            of which the second one gets a line of slope 1/2 beside it.
        bounds: What (B) says of each length.
    """
    figure, (axis,) = panels(1, 8, 3.6)
    axis.plot(sizes, bounds, color=GREY, linestyle="-.", linewidth=1.2, label="bound (B), float32")
    styles = zip(errors.items(), (PINK, ORANGE, BLUE, GREEN), "D^so", strict=True)
    for (name, values), color, marker in styles:
        axis.plot(sizes, values, color=color, marker=marker, markersize=5, label=name)
    start = list(errors.values())[1][0]
    guide = [2 * start * (size / sizes[0]) ** 0.5 for size in sizes]
    axis.plot(sizes, guide, color=INK, linestyle=":", linewidth=1.2, label="slope 1/2")
    lengths_axis(axis, sizes)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.axhline(2.0**-24, color=GREY, linestyle="--", linewidth=1.2, label=r"$2^{-24}$")
    axis.set(title="Error of a sum of L numbers", ylabel="largest relative error")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def window(loud: int, length: int, errors: Mapping[str, Any]) -> Figure:
    """Draw how far off the sum of a window is, token by token.

    Args:
        loud: Where the loud token stands.
        length: How many tokens the window holds.
        errors: For each way to sum it up its error at each token; two ways.
    """
    figure, (axis,) = panels(1, 8, 3)
    for (name, values), color in zip(errors.items(), (ORANGE, BLUE), strict=True):
        axis.plot(values, color=color, linewidth=1.6, label=name)
    axis.axvspan(loud, loud + length, color=PALE, zorder=0)
    axis.set(title=f"The sum of the last {length} numbers", xlabel="token", ylabel="error")
    low, high = axis.get_ylim()
    top = high + 0.3 * (high - low)
    axis.set_ylim(low, top)
    axis.text(loud + length / 2, top, "loud token\ninside", ha="center", va="top", fontsize=9)
    axis.legend(loc="lower left")
    return figure


def caught(inputs: Sequence[str], errors: Any, limit: float) -> Figure:
    """Draw which input shows of which kernel that it is wrong.

    Args:
        inputs: Their names.
        errors: `(kernels, inputs)`, infinite where an answer is no number; None where nobody knows.
        limit: From which error on a kernel is caught.
    """
    figure, (axis,) = panels(1, 8, 4)
    errors = np.asarray(errors, np.float64)
    colors = matplotlib.colors.ListedColormap(["white", ORANGE])
    axis.imshow(errors >= limit, cmap=colors, alpha=0.55, aspect="auto", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(errors):
        text = "?" if np.isnan(value) else f"{value:.0e}"
        axis.text(column, row, text, ha="center", va="center", fontsize=9, color=INK)
    axis.set_xticks(range(len(inputs)), inputs)
    axis.set_yticks(range(len(errors)), [f"kernel {n}" for n in range(1, len(errors) + 1)])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xticks(np.arange(0.5, len(inputs) - 1), minor=True)
    axis.set_yticks(np.arange(0.5, len(errors) - 1), minor=True)
    axis.grid(True, which="minor")
    axis.tick_params(which="minor", length=0)
    axis.set_title("Errors of the worst row; coloured: caught")
    return figure

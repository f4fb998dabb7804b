"""Perceiver: waves of equal ratios and of equal distances, and where latents look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ...plots import draw_image, draw_shares, hide_ticks
from . import BLUE, GREY, ORANGE, panels


def waves(places: Any, sines: Mapping[str, Any], apart: Any, alike: Mapping[str, Any]) -> Figure:
    """Draw the waves of two ways to spread frequencies, and how alike two places are by each.

    Args:
        places: Coordinates where the waves are known.
        sines: For each way's frequencies, `(places, bands)`.
        apart: Distances in pixels.
        alike: For each way's name, a number for each distance: 1 is the same place.
    """
    figure, axes = panels(3, 10, 3.6, [1, 1, 1.5])
    for axis, (title, each), color in zip(axes, sines.items(), (BLUE, ORANGE), strict=False):
        for band, wave in enumerate(each.T):
            axis.plot(places, 0.4 * wave + band, color=color, linewidth=1)
        axis.set_title(title.replace(": ", "\n"))
        axis.set(xlabel="coordinate p", xticks=(-1, 0, 1), yticks=range(each.shape[1]))
    axes[0].set_ylabel("band b")
    last = axes[2]
    for (name, curve), color in zip(alike.items(), (BLUE, ORANGE), strict=True):
        last.plot(apart, curve, color=color, label=name, linewidth=1.2, marker=".")
    last.axhline(0, color=GREY, linewidth=0.8)
    last.set(title="How alike two places are", xlabel="pixels apart", ylim=(-1.05, 1.35))
    last.legend(loc="upper center", ncols=2)
    return figure


def looks(seen: Sequence[Any]) -> Figure:
    """Draw where latents look, a row for each image and a column for each latent.

    Args:
        seen: For each image itself and the weights of all latents, `(latents, 8, 8)`.
    """
    latents = len(seen[0].weights)
    largest = max(float(look.weights.max()) for look in seen)
    figure = Figure(figsize=(0.95 * (1 + latents), 0.9 * len(seen) + 0.5), layout="constrained")
    grid = figure.subplots(len(seen), 1 + latents, squeeze=False)
    for row, look in zip(grid, seen, strict=True):
        draw_image(row[0], look.image)
        for axis, weights in zip(row[1:], look.weights, strict=True):
            shown = draw_shares(axis, weights, largest)
            hide_ticks(axis)
        for axis in row:
            axis.spines[:].set(visible=True, color="#cccccc")
    for number, axis in enumerate(grid[0]):
        title = f"latent {number}" if number else "image"
        axis.set_title(title, loc="center", fontsize=9, fontweight="normal", pad=4)
    bar = figure.colorbar(shown, ax=grid, shrink=0.8, aspect=30, pad=0.01)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    bar.set_label("share of a latent's attention", fontsize=9)
    bar.outline.set_visible(False)
    return figure

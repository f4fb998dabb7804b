"""Perceiver: waves of equal ratios and of equal distances, and where latents look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ...plots import draw_image, draw_shares, hide_ticks
from . import BLUE, GREY, INK, ORANGE

ECHO = 0.7  # places that are so alike, though apart, are marked


def waves(bands: Mapping[str, Any], alike: Mapping[str, Any]) -> Figure:
    """Draw the waves of two ways to spread frequencies, and how alike two places are by each.

    Args:
        bands: For each way's name, the frequencies in turns between -1 and 1.
        alike: For each way's name, a number for each distance in pixels: 1 is the same place.
    """
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    grid = figure.subplots(len(bands), 2, width_ratios=[1, 1.5])
    places = np.linspace(-1, 1, 500)
    for (left, right), (name, frequencies), color in zip(
        grid, bands.items(), (BLUE, ORANGE), strict=True
    ):
        for band, frequency in enumerate(frequencies):
            wave = np.sin(np.pi * frequency * places)
            left.plot(places, 0.4 * wave + band, color=color, linewidth=1)
        turns = ", ".join(f"{frequency:.3g}" for frequency in frequencies)
        left.set_title(f"equal {name}: {turns}", fontsize=10)
        left.set(ylabel="band b", xticks=(-1, 0, 1), yticks=range(len(frequencies)))
        right.axhline(0, color=GREY, linewidth=0.8)
        right.plot(alike[name], color=color, linewidth=1.2, marker=".")
        for apart, share in enumerate(alike[name]):
            if apart and share > ECHO:
                right.annotate(
                    str(apart), (apart, share), (0, 6), textcoords="offset points",
                    ha="center", color=INK,
                )  # fmt: skip
        right.set(ylim=(-1.05, 1.35), ylabel="how alike", yticks=(-1, 0, 1))
        right.set_title(f"two places, by equal {name}", fontsize=10)
    grid[-1][0].set_xlabel("coordinate p")
    grid[-1][1].set_xlabel("pixels apart")
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
    bar.set_label("share of attention, on a root scale", fontsize=9)
    bar.outline.set_visible(False)
    return figure

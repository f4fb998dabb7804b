"""Where the latents look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import PercentFormatter

from ...plots import draw_image, draw_shares, hide_ticks, picture
from . import Look

_PITCH = 0.8  # inches from one image to the next


def plot_looks(path: Path, looks: Sequence[Look], title: str = "") -> None:
    """Draw where the latents look, a row for each image and a column for each latent.

    Raises:
        CheckpointError: The file cannot be written.
    """
    latents = len(looks[0].weights)
    largest = max(float(look.weights.max()) for look in looks)
    size = (1 + latents) * _PITCH + 1.2, len(looks) * _PITCH + 0.9
    with picture(path, size, title, framed=True) as figure:
        grid = figure.subplots(len(looks), 1 + latents, squeeze=False)
        for row, look in zip(grid, looks, strict=True):
            draw_image(row[0], look.image)
            for axis, weights in zip(row[1:], look.weights, strict=True):
                shown = draw_shares(axis, weights, largest)
                hide_ticks(axis)
        for number, axis in enumerate(grid[0]):
            axis.set_title(f"latent {number}" if number else "image", fontsize=8, pad=4)
        bar = figure.colorbar(shown, ax=grid, shrink=0.8, aspect=30, pad=0.01)
        bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        bar.set_label("share of a latent's attention (root scale)", fontsize=8)
        bar.outline.set_visible(False)

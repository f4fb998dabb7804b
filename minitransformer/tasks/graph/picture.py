"""Whom an image looks at, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ...plots import BLUE, ORANGE, draw_image, picture
from . import Neighbourhood

_PITCH = 0.8  # inches from one image to the next
_BARS = BLUE, ORANGE


def plot_neighbours(path: Path, neighbourhoods: Sequence[Neighbourhood], title: str = "") -> None:
    """Draw images beside their neighbours, and below each how much it is looked at.

    Raises:
        CheckpointError: The file cannot be written.
    """
    rows, columns = len(neighbourhoods), len(neighbourhoods[0].images)
    layers = tuple(neighbourhoods[0].weights)
    largest = max(float(w.max()) for found in neighbourhoods for w in found.weights.values())
    size = max(columns * _PITCH, 5.0) + 0.6, rows * 1.9 * _PITCH + 0.8
    with picture(path, size, title) as figure:
        heights = {"height_ratios": [1, 0.75] * rows}
        grid = figure.subplots(2 * rows, columns, squeeze=False, gridspec_kw=heights)
        for over, under, found in zip(grid[::2], grid[1::2], neighbourhoods, strict=True):
            for place, (image, caption) in enumerate(zip(over, found.captions, strict=True)):
                draw_image(image, found.images[place])
                image.set_title(caption, fontsize=8, pad=3)
                shares = [found.weights[layer][place] for layer in layers]
                bars = under[place].bar(layers, shares, color=list(_BARS[: len(layers)]))
                _finish_shares(under[place], largest, labelled=place == 0)
        figure.legend(bars, layers, loc="outside lower left", ncols=len(layers))


def _finish_shares(axis: Axes, largest: float, labelled: bool) -> None:
    axis.set_ylim(0, 1.05 * largest)
    axis.set_xticks([])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.tick_params(length=2, labelsize=7, labelleft=labelled)
    axis.set_axisbelow(True)

"""Where the heads look while a model copies, as heat maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plots import TITLE, draw_shares, picture
from . import AttentionMap

_PITCH = 1.5  # inches from one heat map to the next


def plot_attention(path: Path, maps: Sequence[AttentionMap], title: str = "") -> None:
    """Draw attention weights as heat maps, a row for each layer and a column for each head.

    Raises:
        CheckpointError: The file cannot be written.
    """
    heads = len(maps[0].weights)
    width, height = heads * 0.93 * _PITCH + 1.6, len(maps) * _PITCH + 1.1
    with picture(path, (width, height), framed=True, layout=None) as figure:
        figure.suptitle(title, y=1 - 0.12 / height, va="top", **TITLE)
        place = {
            "left": 0.75 / width,
            "right": 1 - 0.85 / width,
            "bottom": 0.55 / height,
            "top": 1 - 0.65 / height,
            "wspace": 0.1,
            "hspace": 0.18,
        }
        grid = figure.subplots(len(maps), heads, squeeze=False, gridspec_kw=place)
        for layer, axes in zip(maps, grid, strict=True):
            _draw_layer(axes, layer)
        for head, axis in enumerate(grid[0]):
            axis.set_title(f"head {head + 1}", fontsize=8, pad=4)
        _add_colorbar(figure, grid[0, 0], _meaning(maps))
        figure.supxlabel("key: the token looked at", y=0.12 / height, va="bottom", fontsize=9)
        figure.supylabel(
            "query: the token just read, or (cross) to be written",
            fontsize=9,
            x=0.12 / width,
            ha="left",
        )


def _meaning(maps: Sequence[AttentionMap]) -> str:
    """Return what the colours say; weights of the delta rule are no shares."""
    if all(
        (layer.weights >= 0).all() and np.allclose(layer.weights.sum(axis=-1), 1, atol=1e-3)
        for layer in maps
    ):
        return "share of a query's attention (root scale)"
    return "weight of a value (root scale; below 0 as 0)"


def _draw_layer(axes: Iterable[Axes], layer: AttentionMap) -> None:
    for head, axis in enumerate(axes):
        draw_shares(axis, layer.weights[head])
        _label_tokens(axis, layer, rows=head == 0)
        if head == 0:
            axis.set_ylabel(layer.title, fontsize=8, labelpad=3)


def _label_tokens(axis: Axes, layer: AttentionMap, rows: bool) -> None:
    """Write the tokens along a heat map, as small as they have to be, or not at all."""
    size = min(7.0, 58 * _PITCH / max(len(layer.queries), len(layer.keys)))
    axis.tick_params(length=0, labelsize=size, pad=1.5)
    keys, queries = (layer.keys, layer.queries) if size >= 3 else ((), ())
    axis.set_xticks(range(len(keys)), keys)
    axis.set_yticks(range(len(queries) if rows else 0), queries if rows else ())


def _add_colorbar(figure: Figure, example: Axes, label: str) -> None:
    """Put the colour scale, three heat maps high at most, to the right of the middle."""
    width, height = figure.get_size_inches()
    tall = min(3 * _PITCH, height - 1.2)
    place = figure.add_axes(
        (1 - 0.68 / width, 0.5 - tall / 2 / height, 0.13 / width, tall / height)
    )
    bar = figure.colorbar(example.images[0], cax=place, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "5%", "20%", "50%", "100%"], fontsize=7)
    bar.ax.tick_params(length=2)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)

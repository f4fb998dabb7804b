"""Only some keys: masks, the list that a tile walks, and a graph of digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import AMBER, BLUE, GREY, PALE, canvas, panels


def patterns(masks: Mapping[str, Any]) -> Figure:
    """Draw masks `(L, L)` by their names: a square where a query sees a key."""
    figure, axes = panels(len(masks), 3.5 * len(masks), 3.9)
    for axis, (name, mask) in zip(axes, masks.items(), strict=True):
        length = len(mask)
        canvas(axis, name)
        for i, j in np.argwhere(mask):
            color = AMBER if i == j else BLUE
            axis.add_patch(Rectangle((j, i), 1, 1, facecolor=color, edgecolor="white", lw=1))
        axis.add_patch(Rectangle((0, 0), length, length, fill=False, edgecolor=GREY, lw=1))
        for place in range(length):
            axis.text(place + 0.5, length + 0.3, str(place), ha="center", va="top", fontsize=7)
            axis.text(-0.3, place + 0.5, str(place), ha="right", va="center", fontsize=7)
        axis.text(length / 2, length + 1.3, "key", ha="center", va="top")
        axis.text(-1.6, length / 2, "query", ha="right", va="center", rotation=90)
        axis.set_xlim(-3, length + 0.2)
        axis.set_ylim(length + 2.7, -0.2)
    return figure


def listed(mask: Any, positions: Any, keys: Sequence[int]) -> Figure:
    """Draw whom a tile of queries sees among all keys, and in its list.

    Args:
        mask: `(queries, L)`.
        positions: Of the queries.
        keys: The list.
    """
    figure, (axis,) = panels(1, 9, 4.9)
    canvas(axis)
    length = mask.shape[1]
    _rows(axis, mask, positions, range(length), 0, "all keys", hollow=False)
    _rows(axis, mask[:, keys], positions, keys, len(mask) + 2.4, "the tile's list", hollow=True)
    axis.set_xlim(-3.4, length + 0.2)
    axis.set_ylim(2 * len(mask) + 2.6, -1.9)
    return figure


def _rows(
    axis: Axes, mask: Any, positions: Any, keys: Sequence[int], y: float, title: str, hollow: bool
) -> None:
    axis.text(-3.4, y - 1.2, title, fontweight="bold", va="center")
    for x, j in enumerate(keys):
        axis.text(x + 0.5, y - 0.4, str(j), ha="center", va="center", fontsize=9)
        for i, (row, p) in enumerate(zip(mask, positions, strict=True)):
            face = BLUE if row[x] else ("white" if hollow else PALE)
            edge = BLUE if row[x] or hollow else PALE
            axis.add_patch(Rectangle((x + 0.08, y + i + 0.08), 0.84, 0.84, fc=face, ec=edge, lw=1))
            if x == 0:
                axis.text(-0.3, y + i + 0.5, f"query {p}", ha="right", va="center", fontsize=9)


def digits(images: Any, labels: Any, seen: Any, weights: Any, read: Any, nodes: Any) -> Figure:
    """Draw a row for each of some pictures: itself, then the pictures that it sees.

    Args:
        images: `(T, 64)`; of each the lower half is drawn pale.
        labels: `(T,)`.
        seen: `(T, neighbours)`: whom each sees, itself first.
        weights: As `seen`: how much.
        read: `(T,)`: as what each is read.
        nodes: The pictures.
    """
    height = 1.5  # of a row, in pictures
    figure, (axis,) = panels(1, 9, 1.6 * len(nodes) + 0.5)
    axis.set_axis_off()
    largest = weights[nodes].max()
    for row, node in enumerate(nodes):
        y = height * row
        axis.text(-0.75, y, f"is a {labels[node]},\nread as: {read[node]}", ha="right", va="center")
        for place, (other, share) in enumerate(zip(seen[node], weights[node], strict=True)):
            x = 1.4 * place + (0.6 if place else 0)
            _thumbnail(axis, images[other], labels[other], x, y, share, largest)
    for x, text in ((0, "itself"), (2, "the four that it sees, most alike first")):
        axis.text(x - 0.48, -0.7, text, va="bottom", fontweight="bold")
    axis.set_xlim(-2.6, 7)
    axis.set_ylim(height * (len(nodes) - 1) + 0.95, -1.1)
    axis.set_aspect("equal")
    return figure


def _thumbnail(
    axis: Axes, image: Any, label: int, x: float, y: float, share: float, largest: float
) -> None:
    """A picture in a frame as blue as it is looked at."""
    ink = image.reshape(8, 8).copy()
    ink[4:] *= 0.25  # what the layer is not told
    sides = x - 0.45, x + 0.45, y + 0.45, y - 0.45
    axis.imshow(ink, cmap="gray_r", vmin=0, vmax=1, extent=sides)
    frame = Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, edgecolor=BLUE)
    frame.set(alpha=0.25 + 0.75 * float(share / largest), linewidth=0.8 + 4 * share / largest)
    axis.add_patch(frame)
    axis.text(x, y + 0.54, f"{label}: {share:.0%}", ha="center", va="top", fontsize=9)

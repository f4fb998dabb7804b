"""Only some keys: masks, the list that a tile walks, and a graph of digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from . import AMBER, BLUE, GREY, PALE, canvas, panels


def patterns(masks: Mapping[str, Any]) -> Figure:
    """Draw masks `(L, L)` by their names: a square where a query sees a key."""
    figure, axes = panels(len(masks), 3.4 * len(masks), 3.6)
    for axis, (name, mask) in zip(axes, masks.items(), strict=True):
        length = len(mask)
        canvas(axis, name)
        for i, j in np.argwhere(mask):
            color = AMBER if i == j else BLUE
            axis.add_patch(Rectangle((j, i), 1, 1, facecolor=color, edgecolor="white", lw=1))
        axis.add_patch(Rectangle((0, 0), length, length, fill=False, edgecolor=GREY, lw=1))
        axis.text(length / 2, length + 0.4, "keys", ha="center", va="top")
        axis.text(-0.5, length / 2, "queries", ha="right", va="center", rotation=90)
        axis.set_xlim(-2, length + 0.2)
        axis.set_ylim(length + 2, -0.2)
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


def digits(images: Any, labels: Any, seen: Any, weights: Any, node: int) -> Figure:
    """Draw a picture, the pictures that it sees, and beside each of these those that it sees.

    Args:
        images: `(T, 64)`; of each the lower half is drawn pale.
        labels: `(T,)`.
        seen: `(T, neighbours)`: whom each sees, itself first.
        weights: As `seen`: how much.
        node: The picture.
    """
    figure, (axis,) = panels(1, 9, 5.4)
    axis.set_axis_off()
    friends, largest = seen[node][1:], weights[[node, *seen[node][1:]]].max()
    middle = 1.4 * (len(friends) - 1) / 2
    for row, (friend, p) in enumerate(zip(friends, weights[node][1:], strict=True)):
        y = 1.4 * row
        axis.add_patch(FancyArrowPatch(
            (0.5, middle), (2.45, y), arrowstyle="-|>", mutation_scale=14, color=BLUE,
            alpha=_alpha(p, largest), linewidth=6 * p / largest,
        ))  # fmt: skip
        axis.annotate("", (4.5, y), (3.6, y), arrowprops={"arrowstyle": "-", "color": GREY})
        _thumbnail(axis, images[friend], labels[friend], 3, y, p, largest)
        for place, (other, share) in enumerate(zip(seen[friend], weights[friend], strict=True)):
            x = 5 + 1.15 * place
            _thumbnail(axis, images[other], labels[other], x, y, share, largest)
    _thumbnail(axis, images[node], labels[node], 0, middle, weights[node][0], largest)
    for x, text in ((0, "a picture\n(and itself)"), (3, "sees"), (5, "which sees itself, and")):
        axis.text(x - 0.45, -0.75, text, va="bottom", fontweight="bold")
    axis.set_xlim(-0.7, 10.3)
    axis.set_ylim(2 * middle + 0.95, -1.3)
    axis.set_aspect("equal")
    return figure


def _alpha(share: float, largest: float) -> float:
    return 0.25 + 0.75 * float(share / largest)


def _thumbnail(
    axis: Axes, image: Any, label: int, x: float, y: float, share: float, largest: float
) -> None:
    """A picture in a frame as blue as it is looked at."""
    ink = image.reshape(8, 8).copy()
    ink[4:] *= 0.25  # what the layer is not told
    sides = x - 0.45, x + 0.45, y + 0.45, y - 0.45
    axis.imshow(ink, cmap="gray_r", vmin=0, vmax=1, extent=sides)
    frame = Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, edgecolor=BLUE)
    frame.set(alpha=_alpha(share, largest), linewidth=0.8 + 4 * share / largest)
    axis.add_patch(frame)
    axis.text(x, y + 0.54, f"{label}: {share:.0%}", ha="center", va="top", fontsize=9)

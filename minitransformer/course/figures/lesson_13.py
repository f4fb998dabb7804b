"""Only some keys: masks, the list that a tile walks, and a graph of digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from . import AMBER, BLUE, GREY, INK, PALE, canvas, panels

TURN = 0.35  # where the first neighbour stands, in steps to the next


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
    """Draw a picture, the pictures that it sees, and those that these see.

    Args:
        images: `(T, 64)`; of each the lower half is drawn pale.
        labels: `(T,)`.
        seen: `(T, neighbours)`: whom each sees, itself first.
        weights: As `seen`: how much.
        node: The picture in the middle.
    """
    node %= len(images)
    figure, (axis,) = panels(1, 9, 7.2)
    axis.set_axis_off()
    axis.set_aspect("equal")
    places: dict[int, Any] = {node: np.zeros(2)}
    ring = list(map(int, seen[node][1:]))
    for number, friend in enumerate(ring):
        places[friend] = _around((number + TURN) / len(ring), 2.7, 2.2)
    for number, friend in enumerate(ring):
        new = [int(other) for other in seen[friend][1:] if int(other) not in places]
        for at, other in enumerate(new):
            turn = number + TURN + 0.24 * (at - (len(new) - 1) / 2)
            places[other] = _around(turn / len(ring), 5.3, 4.2)
    largest = weights[[node, *ring]].max()
    for source in (node, *ring):
        for other, p in zip(seen[source][1:], weights[source][1:], strict=True):
            share = float(p / largest)
            axis.add_patch(FancyArrowPatch(
                places[source], places[int(other)], arrowstyle="-|>", mutation_scale=12,
                connectionstyle="arc3,rad=0.12", shrinkA=24, shrinkB=30, color=BLUE,
                alpha=0.25 + 0.75 * share, linewidth=0.6 + 4 * share,
            ))  # fmt: skip
    for other, (x, y) in places.items():
        _thumbnail(axis, images[other].reshape(8, 8), x, y, other == node)
        itself = f", itself {weights[other][0]:.0%}" if other in (node, *ring) else ""
        axis.text(
            x, y - 0.6, f"a {labels[other]}{itself}", ha="center", va="center", fontsize=9,
            zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axis.set_xlim(-6.1, 6.1)
    axis.set_ylim(-5.0, 4.8)
    return figure


def _around(turn: float, wide: float, high: float) -> Any:
    return np.array([wide * np.cos(2 * np.pi * turn), high * np.sin(2 * np.pi * turn)])


def _thumbnail(axis: Axes, image: Any, x: float, y: float, chosen: bool) -> None:
    ink = image.copy()
    ink[4:] *= 0.25  # what the layer is not told
    axis.imshow(ink, cmap="gray_r", vmin=0, vmax=1, zorder=3,
                extent=(x - 0.42, x + 0.42, y - 0.42, y + 0.42))  # fmt: skip
    axis.add_patch(Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, zorder=4,
                             ec=AMBER if chosen else INK, lw=2.5 if chosen else 0.8))  # fmt: skip

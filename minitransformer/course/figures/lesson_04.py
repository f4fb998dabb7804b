"""Figures of lesson 4: softmax attention, fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from ..looking import Launched
from . import AMBER, INK, PALE, SKY, box, canvas, numbers, panels


def walk(q: Any, k: Any, v: Any, row: int, tile: int) -> Figure:
    """Draw how the answer of one query comes together, tile after tile.

    Args:
        q: `(L, E)`.
        k: `(L, E)`.
        v: `(L, M)`.
        row: The query.
        tile: Keys of a tile.
    """
    scores = q @ k.T / np.sqrt(q.shape[1])
    figure, (left, right) = panels(2, 10, 3.6, [1, 1.25])
    numbers(left, scores, "Scores: what a query asks, tile after tile", float(abs(scores).max()))
    for start in range(0, len(k), tile):
        mine = Rectangle((start - 0.45, row - 0.45), tile - 0.1, 0.9, fill=False, ec=INK, lw=2)
        left.add_patch(mine)
    left.set_xlabel("key j")
    left.set_ylabel("query i")
    left.set_yticks([row], [f"i = {row}"])
    starts = range(0, len(k), tile)
    left.set_xticks([s + (tile - 1) / 2 for s in starts], [f"tile {s // tile + 1}" for s in starts])

    states = []
    for start in starts:
        s, values = scores[row, : start + tile], v[: start + tile]
        h = s.max()
        weights = np.exp(s - h)
        states.append([h, weights.sum(), *(weights @ values), *(weights @ values / weights.sum())])
    M = v.shape[1]
    table = np.array(states)
    shown = np.where(np.arange(table.shape[1]) < 2 + M, table, np.nan)
    shown[-1] = table[-1]
    numbers(right, shown, "What it keeps meanwhile, and its output in the end",
            float(abs(table).max()), 2)  # fmt: skip
    names = ["h", "d", *(f"n[{m}]" for m in range(M)), *(f"o[{m}]" for m in range(M))]
    right.set_xticks(range(len(names)), names)
    right.set_yticks(range(len(states)), [f"after tile {t + 1}" for t in range(len(states))])
    for axis in (left, right):
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def owners(launches: Sequence[Launched], length: int) -> Figure:
    """Draw what a block of each of the three kernels owns, and what it walks past.

    Args:
        launches: Of forward, query_gradient and key_gradient.
        length: L.
    """
    figure, axes = panels(3, 11, 4.4)
    titles = "forward", "query_gradient", "key_gradient"
    texts = "h, d, n\nof its queries", "dq\nof its queries", "dk, dv\nof its keys"
    for axis, title, text, launch in zip(axes, titles, texts, launches, strict=True):
        rows, step = (launch.constants[name] for name in ("rows", "step"))
        _square(canvas(axis, title), length, rows, step, text, by_keys=title == "key_gradient")
    return figure


def _square(axis: Axes, L: int, rows: int, step: int, text: str, by_keys: bool) -> None:
    """The scores, from which a block takes a band: across, or down where it owns keys."""

    def placed(x: float, y: float, width: float, height: float, color: str) -> None:
        box(axis, *((y, x, height, width) if by_keys else (x, y, width, height)), color)

    axis.add_patch(Rectangle((0, 0), L, L, facecolor=PALE, edgecolor=INK, linewidth=0.8))
    for start in range(0, L, step):
        placed(start, 0, step, rows, AMBER if start == 0 else SKY)
    middle = rows / 2
    begin, end = (step / 2, middle), (L - step / 4, middle)
    if by_keys:
        begin, end = begin[::-1], end[::-1]
    axis.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=16, color=INK))
    axis.text(L / 2, -0.03 * L, "keys j", ha="center")
    axis.text(-0.03 * L, L / 2, "queries i", rotation=90, ha="right", va="center")
    x, y = (rows + (L - rows) / 2, L / 2) if by_keys else (L / 2, rows + (L - rows) / 2)
    axis.text(x, y, f"keeps {text}", ha="center", va="center")
    owned = "keys" if by_keys else "queries"
    other = "queries" if by_keys else "keys"
    told = f"a block owns {rows} {owned}, and walks\npast {step} {other} at a time (amber)"
    axis.text(0, 1.04 * L, told, va="top")
    axis.set_xlim(-0.12 * L, 1.02 * L)
    axis.set_ylim(1.25 * L, -0.12 * L)

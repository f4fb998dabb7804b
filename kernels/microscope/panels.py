"""A warp's threads over the elements of an array: which sectors they move, which banks they use.

A cell is an element, with the number of the lane that accesses it, or as "32×" how many lanes do.
Global memory: whatever is tinted is moved, whether it is used or not. Shared memory: the colour is
the bank, so many lanes in one colour make a conflict.
"""

from __future__ import annotations

import colorsys
from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ..gpu.gpus import BANKS, SECTOR, WORD
from .paper import CELL, COLD, FAINT, canvas
from .units import plural
from .warps import Requests

_WINDOW = 34  # elements along each side, at most


class Panel:
    """The request of a site that costs most, over the elements of its array."""

    width = 6.0  # inches

    def __init__(self, made: Requests) -> None:
        self.site = made.site
        self.made = made.worst()
        self.pitch = _pitch(made)
        element = self.made.address // self.site.itemsize
        self.row, self.column = np.divmod(element, self.pitch)
        last_row = max(int(np.prod(self.site.shape)) // self.pitch, int(self.row.max()) + 1)
        self.top, self.rows = _window(self.row, 8, last_row)
        self.left, self.columns = _window(self.column, 32, self.pitch)

    @property
    def _shared(self) -> bool:
        return self.site.space == "shared"

    @property
    def height(self) -> float:
        """In inches."""
        return 0.6 + self.rows * CELL + (0.75 if self._shared else 0.0)

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draw it, with its upper left corner at a place in inches."""
        axes = canvas(figure, x, y, self.width, self.height)
        axes.text(0, 0.1, self._headline(), fontweight="bold", va="center")
        axes.text(0, 0.3, self._explanation(), color=FAINT, fontsize=8, va="center")
        origin = 0.45, 0.6
        self._labels(axes, *origin)
        self._draw_cells(axes, *origin)
        if self._shared:
            self._draw_banks(axes, origin[0], origin[1] + self.rows * CELL + 0.62)

    def _headline(self) -> str:
        site, shape = self.site, " × ".join(map(str, self.site.shape))
        return f"line {site.line}: {site.kind} of {site.array}, {site.space}, {shape}"

    def _explanation(self) -> str:
        cost = self.made.traffic
        if self._shared:
            conflict = (
                "no bank conflict" if cost.worst == 1 else f"a {cost.worst}-way bank conflict"
            )
            return f"the worst warp that comes here, cells coloured by their bank: {conflict}"
        moved = plural(cost.transactions, "sector")
        return f"the worst warp that comes here moves {moved}; {cost.fewest} would do"

    def _labels(self, axes: Any, x: float, y: float) -> None:
        ink = {"fontsize": 6, "color": FAINT, "va": "center"}
        for row in {0, self.rows - 1}:
            axes.text(x - 0.06, y + (row + 0.5) * CELL, self.top + row, ha="right", **ink)
        for column in {0, self.columns - 1}:
            place = x + (column + 0.5) * CELL, y - 0.07
            axes.text(*place, self.left + column, ha="center", **ink)

    def _draw_cells(self, axes: Any, x: float, y: float) -> None:
        lanes = defaultdict(list)
        for row, column, lane in zip(self.row, self.column, self.made.lane, strict=True):
            lanes[row, column].append(lane)
        moved = set(self.made.address // SECTOR)
        for row in range(self.top, self.top + self.rows):
            for column in range(self.left, self.left + self.columns):
                here = lanes[row, column]
                color = self._color(row * self.pitch + column, bool(here), moved)
                left, upper = x + (column - self.left) * CELL, y + (row - self.top) * CELL
                look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.5}
                axes.add_patch(Rectangle((left, upper), CELL, CELL, **look))
                text = f"{len(here)}×" if len(here) > 1 else "".join(map(str, here))
                middle = left + CELL / 2, upper + CELL / 2
                axes.text(*middle, text, fontsize=5.2, ha="center", va="center", color="white")

    def _color(self, element: int, taken: bool, moved: set[int]) -> Any:
        address = element * self.site.itemsize
        if self._shared:
            return _bank_color(address // WORD % BANKS, taken)
        if taken:
            return COLD
        return "#f9c27b" if address // SECTOR in moved else "#eeeeee"

    def _draw_banks(self, axes: Any, x: float, y: float) -> None:
        """Draw how many words each bank has to serve."""
        wanted = np.bincount(np.unique(self.made.address // WORD) % BANKS, minlength=BANKS)
        ink = {"fontsize": 5.2, "ha": "center", "va": "center"}
        for bank, count in enumerate(wanted):
            left, middle = x + bank * CELL, x + (bank + 0.5) * CELL
            height = 0.4 * count / wanted.max()
            color = _bank_color(bank, taken=True)
            axes.add_patch(Rectangle((left, y - height), CELL - 0.02, height, facecolor=color))
            axes.text(middle, y + 0.07, bank, color=FAINT, **ink)
            axes.text(middle, y - height - 0.06, count or "", **ink)
        axes.text(x - 0.06, y - 0.2, "words", fontsize=6, ha="right", va="center", color=FAINT)
        axes.text(x - 0.06, y + 0.07, "bank", fontsize=6, ha="right", va="center", color=FAINT)


def _pitch(made: Requests) -> int:
    """Return how many elements to draw in a row: the array's, or a row of banks."""
    site = made.site
    if len(site.shape) > 1 and site.shape[-1] > 1:
        return site.shape[-1]
    return max(1, BANKS * WORD // site.itemsize)


def _window(touched: NDArray[np.int64], least: int, length: int) -> tuple[int, int]:
    """Return the first and the number of rows, or columns, to draw."""
    first = int(touched.min())
    count = min(_WINDOW, max(least, int(touched.max()) + 1 - first))
    if length <= _WINDOW and first >= 0:
        return 0, length
    return max(0, min(first, length - count)), count


def _bank_color(bank: int, taken: bool) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(bank / BANKS, 0.45 if taken else 0.9, 0.6)

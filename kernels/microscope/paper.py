"""What the parts of a picture share: inks, and axes whose unit is an inch."""

from __future__ import annotations

from typing import Any, Protocol

from matplotlib.figure import Figure

INK, FAINT = "#333333", "#888888"
HOT, COLD = "#d7402b", "#0072B2"
CELL = 0.158  # inches of an element of an array


class Part(Protocol):
    """A part of a picture; its size is in inches."""

    @property
    def width(self) -> float:
        """Of the space that it takes."""

    @property
    def height(self) -> float:
        """Likewise."""

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draw it with its upper left corner there, in inches from that of the figure."""


def axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Any:
    """Add axes in inches from the upper left corner of the figure."""
    w, h = figure.get_size_inches()
    return figure.add_axes((x / w, 1 - (y + height) / h, width / w, height / h))


def canvas(figure: Figure, x: float, y: float, width: float, height: float) -> Any:
    """Add axes without a frame, with an inch as their unit, and y downwards."""
    axes = axes_at(figure, x, y, width, height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return axes

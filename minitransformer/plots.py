"""What the pictures share: colours, marks, and how a figure becomes a file.

Drawn with `matplotlib.figure.Figure` and no `pyplot`: no window, no global state, no display.
The colours are Okabe and Ito's (2008), which stay apart for colour-blind eyes, and each curve has
a line style of its own for print. Loading `matplotlib` takes a while: import this module to draw.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from .training.checkpoint import write_atomically

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY = "#56B4E9"
INK = "#333333"
TITLE: dict[str, Any] = {"fontsize": 11, "fontweight": "bold"}
_COLORS = BLUE, VERMILION, GREEN, ORANGE, "#CC79A7", SKY, INK
_DASHES = "-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5))


def line(number: int) -> dict[str, Any]:
    """Return how a curve looks: no two alike among the first 28, as 7 and 4 have no divisor."""
    return {"color": _COLORS[number % 7], "linestyle": _DASHES[number % 4]}


LINES = line(0), line(1), line(2)
# White, where nobody looks, to the darkest blue; in between as far apart in print as on a screen.
_SHARES = LinearSegmentedColormap.from_list(
    "shares", ["#ffffff", "#d6e6f4", "#6aaed6", BLUE, "#08306b"]
)
_LARGEST_SIDE = 12_000  # pixels
_LOOK: Any = {  # Any: the type that matplotlib gives its settings lists every one of them
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}


@contextmanager
def picture(
    path: Path,
    size: tuple[float, float],
    title: str = "",
    *,
    framed: bool = False,
    layout: Any = "constrained",
) -> Iterator[Figure]:
    """Lend a figure to draw on, and write it as a PNG file.

    Args:
        path: The file.
        size: Width and height in inches.
        title: Stands above the picture.
        framed: Whether axes have all four sides, as around a map, and no grid.
        layout: matplotlib's, or None to arrange everything by hand.

    Raises:
        CheckpointError: The file cannot be written.
    """
    sides = {f"axes.spines.{side}": framed for side in ("top", "right")}
    with rc_context({**_LOOK, **sides, "axes.grid": not framed}):
        figure = Figure(figsize=size, layout=layout)
        if title:
            figure.suptitle(title, x=0.01, ha="left", **TITLE)
        yield figure
        _break_titles(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=min(160.0, _LARGEST_SIDE / max(size)))
    write_atomically(path, buffer.getvalue())


def _break_titles(figure: Figure) -> None:
    """Break what stands above or below the axes where it is wider than the figure."""
    for text in figure.texts:
        share = text.get_window_extent().width / figure.bbox.width
        if share > 0.98:
            text.set_text(fill(text.get_text(), int(0.95 * len(text.get_text()) / share)))


def draw_shares(axis: Axes, weights: np.ndarray, largest: float = 1.0) -> Any:
    """Draw weights from 0 to `largest` on a root scale, as dark as they are large."""
    return axis.imshow(weights, cmap=_SHARES, norm=PowerNorm(0.5, 0, largest))


def draw_image(axis: Axes, image: np.ndarray) -> None:
    """Draw an image from 0, paper, to 1, ink."""
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    hide_ticks(axis)


def band(axis: Axes, x: Any, runs: Any, middle: Any = np.mean, **line: Any) -> None:
    """Draw the mean of several runs (R, len(x)), or another middle, and how far apart they lie.

    `line` is the middle's, and should have its `color`.
    """
    runs = np.asarray(runs, np.float64)
    axis.plot(x, middle(runs, axis=0), **line)
    ends = runs.min(axis=0), runs.max(axis=0)
    axis.fill_between(x, *ends, color=line["color"], alpha=0.15, linewidth=0)


def legend(axis: Axes, columns: int, **more: Any) -> None:
    """Say above the whole figure what the curves of one of its axes are."""
    curves = axis.get_legend_handles_labels()
    axis.figure.legend(*curves, loc="outside upper left", ncols=columns, **more)


def hide_ticks(axis: Axes) -> None:
    """Leave the numbers along an image out."""
    axis.set_xticks([])
    axis.set_yticks([])

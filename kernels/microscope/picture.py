"""The report as a picture: the source with its heat, and a warp's threads over the memory.

Left, each line of the kernel with what it costs, as times of what it would have to: sectors moved
against the fewest, wavefronts against one, lanes that wait against lanes that work. One scale of
heat serves all three, and the hottest colours the line.

Right, what a warp does at the place that wastes most global memory, and at the place with
the worst bank conflict. Below, in whichever column is shorter, the roofline and the advice.

Drawn with `matplotlib.figure.Figure` and no `pyplot`: no window, no global state, no display.
"""

from __future__ import annotations

import io
import os
from math import log2
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from .panels import Panel
from .paper import COLD, FAINT, HOT, INK, Part, axes_at, canvas
from .roofline import Roofline
from .table import roofline_text
from .units import rate_text, shape_text
from .warps import Requests

if TYPE_CHECKING:
    from .report import Line, Report

_LOOK: Any = {"font.size": 9, "text.color": INK, "font.family": "sans-serif"}
_HEAT = LinearSegmentedColormap.from_list("heat", ["#ffffff", "#ffe9a8", "#f9a65a", HOT])
_HOTTEST = 32
_COLUMNS = ("sectors", "wavefronts", "lanes")
# Inches:
_TOP, _MARGIN, _GAP = 0.65, 0.25, 0.45
_ROW, _LETTER, _COLUMN = 0.19, 0.0685, 0.72  # of the source
_CHART, _NOTE = 2.9, 0.2  # the roofline's height, and that of a line of text
_LONGEST = 100  # letters of a line of source that are shown


def draw(report: Report, array: str | None = None) -> bytes:
    """Return the picture as a PNG.

    Args:
        report: What to draw.
        array: The array to draw the warp over; the worst one of each kind by default.

    Raises:
        ValueError: no access to an array of that name was made.
    """
    panels: list[Part] = [Panel(made) for made in _shown(report, array)]
    columns: list[list[Part]] = [[_Source(report)], *([panels] if panels else [])]
    shorter = min(columns, key=_height)
    shorter.append(_Summary(report, max(part.width for part in shorter)))
    lefts = np.cumsum([_MARGIN, *(max(part.width for part in c) + _MARGIN for c in columns)])
    with rc_context(_LOOK):
        figure = Figure(figsize=(lefts[-1], _TOP + max(map(_height, columns))))
        _title(figure, report)
        for left, column in zip(lefts, columns, strict=False):
            top = _TOP
            for part in column:
                part.draw(figure, left, top)
                top += part.height + _GAP
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _height(column: list[Part]) -> float:
    return sum(part.height + _GAP for part in column)


def _shown(report: Report, array: str | None) -> list[Requests]:
    """Choose the accesses to draw: two of an array, or the worst of global and shared memory."""
    worst = sorted(
        (at for at in report.traffic if at.site.space != "local"),
        key=lambda at: (-at.traffic.waste, at.stride == 0, -at.traffic.transactions),
    )
    if array is not None:
        chosen = [at for at in worst if at.site.array == array][:2]
        if not chosen:
            names = ", ".join(sorted({at.site.array for at in worst}))
            raise ValueError(f"no access to an array {array!r} was made; expected one of {names}")
    else:
        spaces = ([at for at in worst if at.site.space == s] for s in ("global", "shared"))
        chosen = [sites[0] for sites in spaces if sites]
    return chosen


def _title(figure: Figure, report: Report) -> None:
    trace = report.trace
    axes = canvas(figure, _MARGIN, 0.1, figure.get_size_inches()[0] - 2 * _MARGIN, 0.5)
    axes.text(0, 0.2, trace.kernel, fontsize=13, fontweight="bold", va="center")
    grid, block = shape_text(trace.grid), shape_text(trace.block)
    where = f"{os.path.basename(trace.filename)}:{trace.first_line}"
    axes.text(0, 0.43, f"{where}   grid {grid}, block {block}", color=FAINT, va="center")


class _Source:
    """The lines of the kernel with their heat, and what the heat means."""

    def __init__(self, report: Report) -> None:
        own = report.trace.filename
        self.lines = [line for line in report.lines if line.reached or line.filename == own]
        self.texts = [_shortened(line, own) for line in self.lines]
        letters = max(map(len, self.texts))
        self.width = max(6.3, 0.5 + letters * _LETTER + len(_COLUMNS) * _COLUMN)
        self.height = len(self.lines) * _ROW + 0.65

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draw it, with its upper left corner at a place in inches."""
        axes = canvas(figure, x, y, self.width, self.height)
        cells = self.width - len(_COLUMNS) * _COLUMN
        for i, name in enumerate(_COLUMNS):
            middle = cells + (i + 0.5) * _COLUMN, 0.1
            axes.text(*middle, name, ha="center", va="center", fontsize=7.5)
        for i, (line, text) in enumerate(zip(self.lines, self.texts, strict=True)):
            _draw_line(axes, 0.25 + i * _ROW, line, text, cells)
        _draw_scale(figure, x + 0.4, y + self.height - 0.25)


def _shortened(line: Line, own: str) -> str:
    text = line.text
    if line.filename != own:
        text = f"{os.path.basename(line.filename)}: {text.strip()}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _draw_line(axes: Any, y: float, line: Line, text: str, cells: float) -> None:
    """Draw a line of the source, and its cells from an x on."""
    shown = _cells(line)
    worst = max((waste for _, waste in shown.values()), default=1.0)
    _box(axes, 0.38, y, cells - 0.42, _heat(worst, faint=True))
    code = {"fontsize": 7.8, "family": "monospace", "va": "center"}
    axes.text(0.32, y + _ROW / 2, line.number, ha="right", color=FAINT, **code)
    axes.text(0.41, y + _ROW / 2, text, color=INK if line.reached else FAINT, **code)
    for name, (cell, waste) in shown.items():
        x = cells + _COLUMNS.index(name) * _COLUMN
        _box(axes, x + 0.02, y, _COLUMN - 0.04, _heat(waste))
        ink = {"fontsize": 7.5, "color": "white" if waste > 12 else INK}
        axes.text(x + _COLUMN / 2, y + _ROW / 2, cell, ha="center", va="center", **ink)


def _cells(line: Line) -> dict[str, tuple[str, float]]:
    """Return what to write in each column, and how much of it is too much."""
    found = {}
    for name, space in (("sectors", "global"), ("wavefronts", "shared")):
        traffic = line.memory(space)
        if traffic.requests:
            each = (n / traffic.requests for n in (traffic.transactions, traffic.fewest))
            found[name] = "{:.3g} / {:.3g}".format(*each), traffic.waste
    if line.lanes:
        found["lanes"] = f"{line.share:.0%}", 1 / line.share
    return found


def _box(axes: Any, x: float, y: float, width: float, color: Any) -> None:
    axes.add_patch(Rectangle((x, y + 0.01), width, _ROW - 0.02, color=color, linewidth=0))


def _heat(waste: float, faint: bool = False) -> Any:
    red, green, blue, _ = _HEAT(min(1.0, log2(max(1.0, waste)) / log2(_HOTTEST)))
    return (red, green, blue, 0.55 if faint else 1.0)


def _draw_scale(figure: Figure, x: float, y: float) -> None:
    """Say what the heat means."""
    place = axes_at(figure, x, y, 2.2, 0.1)
    heat = ScalarMappable(LogNorm(1, _HOTTEST), _HEAT)
    bar = figure.colorbar(heat, cax=place, orientation="horizontal")
    ticks = [2**i for i in range(6)]
    bar.set_ticks(ticks, labels=[f"{tick}×" for tick in ticks], fontsize=7)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=2)
    bar.outline.set_edgecolor("#cccccc")
    text = "of what it has to be: sectors moved, wavefronts taken, lanes occupied"
    place.text(1.05, 0.5, text, transform=place.transAxes, fontsize=7.5, va="center")


class _Summary:
    """The roofline, and what to look at."""

    def __init__(self, report: Report, width: float) -> None:
        self.roofline, self.width = report.roofline, width
        roof, *bounds = (" ".join(text.split()) for text in roofline_text(report.roofline))
        paragraphs = [roof, *bounds, "", *(f"• {text}" for text in report.advice)]
        self.lines = [
            line
            for paragraph in paragraphs
            for line in wrap(paragraph, int(width / 0.068), subsequent_indent="   ") or [""]
        ]
        drawn = report.roofline.flops and report.roofline.moved
        self.chart = _CHART if drawn else 0.0
        self.height = self.chart + len(self.lines) * _NOTE

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draw it, with its upper left corner at a place in inches."""
        if self.chart:
            _draw_roofline(axes_at(figure, x + 0.8, y + 0.1, 4.2, _CHART - 0.8), self.roofline)
        axes = canvas(figure, x + 0.4, y + self.chart, self.width - 0.4, self.height - self.chart)
        for i, line in enumerate(self.lines):
            axes.text(0, (i + 0.5) * _NOTE, line, fontsize=8.3, va="center")


def _draw_roofline(axes: Any, roof: Roofline) -> None:
    """Draw the roof, and under it the kernel by the bytes moved and by the bytes needed."""
    points = {"as moved": (HOT, roof.moved), "each element once": (COLD, roof.needed)}
    found = [roof.intensity(moved) for _, moved in points.values()]
    ends = np.array([min(*found, roof.ridge / 8) / 2, max(*found, roof.ridge) * 4])
    floor = ends[0] / roof.ridge * roof.peak / 4
    bend = np.sort([*ends, roof.ridge])
    roofs = np.minimum(roof.peak, bend / roof.ridge * roof.peak)
    axes.loglog(bend, roofs, color=INK, linewidth=1.5)
    for name, (color, moved) in points.items():
        place = roof.intensity(moved), roof.bound(moved)
        axes.plot(*place, "o", color=color, markersize=6, label=name, zorder=3)
        axes.vlines(place[0], floor, place[1], color=color, linewidth=0.8, linestyle=":")
    axes.set(xlim=ends, ylim=(floor, roof.peak * 3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value, "FLOP/s")))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.tick_params(labelsize=7, length=2, color="#999999")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.set_xlabel(f"FLOP a byte (ridge of the {roof.gpu.name}: {roof.ridge:.3g})", fontsize=7.5)
    axes.legend(frameon=False, fontsize=7.5, loc="lower right")

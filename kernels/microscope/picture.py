"""The report as a picture: the source with its heat, and a warp's threads over the memory.

Left, each line of the kernel with what it costs, as times of what it would have to: sectors moved
against the fewest, wavefronts against one, lanes that wait against lanes that work. One scale of
heat serves all three, and the hottest colours the line.

Right, what the first warp does at the place that wastes most global memory, and at the place with
the worst bank conflict. A cell is an element, with the number of the lane that accesses it, or as
"32×" how many lanes do. Global memory: whatever is tinted is moved, whether it is used or not.
Shared memory: the colour is the bank, so many lanes in one colour make a conflict.

Drawn with `matplotlib.figure.Figure` and no `pyplot`: no window, no global state, no display.
"""

from __future__ import annotations

import colorsys
import io
import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
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
from numpy.typing import NDArray

from .roofline import Roofline
from .table import roofline_text
from .units import rate_text, shape_text
from .warps import BANKS, SECTOR, WORD, Requests, requests

if TYPE_CHECKING:
    from .report import Line, Report

_INK, _FAINT = "#333333", "#888888"
_LOOK: Any = {"font.size": 9, "text.color": _INK, "font.family": "sans-serif"}
_HEAT = LinearSegmentedColormap.from_list("heat", ["#ffffff", "#ffe9a8", "#f9a65a", "#d7402b"])
_HOTTEST = 32
_ROW = 0.19  # inches of a line of source
_LETTER = 0.0685  # inches of a letter of source
_LONGEST = 100  # letters of a line that are shown
_COLUMNS = ("sectors", "wavefronts", "lanes")
_COLUMN = 0.72  # inches
_CELL = 0.158  # inches of an element
_WINDOW = 34  # elements along each side, at most
_PANEL = 6.4  # inches
_GAP = 0.45  # inches between panels
_NARROWEST = 6.5  # inches for the source and the notes
_CHART = 2.9  # inches of the roofline
_NOTE = 0.2  # inches of a line of the notes


def draw(report: Report, array: str | None = None) -> bytes:
    """Return the picture as a PNG.

    Args:
        report: What to draw.
        array: The array to draw the warp over; the worst one of each kind by default.

    Raises:
        ValueError: no access to an array of that name was made.
    """
    panels = [_Panel(made) for made in _shown(report, array)]
    lines = [
        line for line in report.lines if line.reached or line.filename == report.trace.filename
    ]
    letters = min(_LONGEST, max(len(line.text) for line in lines))
    left = max(_NARROWEST, 0.75 + letters * _LETTER + len(_COLUMNS) * _COLUMN)
    notes = _notes(report, left)
    source, chart = len(lines) * _ROW + 0.25, _CHART if report.roofline.flops else 0.0
    tops = list(accumulate((0.65, source + 0.15, 0.5, chart, len(notes) * _NOTE)))
    right = sum(panel.height for panel in panels) + _GAP * len(panels)
    size = left + (_PANEL if panels else 0) + 0.3, max(tops[-1], right + 0.65) + 0.1
    with rc_context(_LOOK):
        figure = Figure(figsize=size)
        _title(figure, report)
        _draw_source(_axes(figure, 0.15, tops[0], left - 0.2, source), lines)
        _scale(figure, tops[1])
        if chart:
            _draw_roofline(figure, tops[2], report.roofline)
        _write(_axes(figure, 0.57, tops[3], left - 0.6, len(notes) * _NOTE), notes)
        top = 0.65
        for panel in panels:
            panel.draw(figure, left + 0.35, top)
            top += panel.height + _GAP
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _shown(report: Report, array: str | None) -> list[Requests]:
    """Choose the accesses to draw: two of an array, or the worst of global and shared memory."""
    found = {made.site: made for made in requests(report.trace) if made.site.space != "local"}
    worst = sorted(
        report.traffic,
        key=lambda at: (-at.traffic.waste, at.stride == 0, -at.traffic.transactions),
    )
    worst = [at for at in worst if at.site in found]
    if array is not None:
        chosen = [at for at in worst if at.site.array == array][:2]
        if not chosen:
            names = ", ".join(sorted({at.site.array for at in worst}))
            raise ValueError(f"no access to an array {array!r} was made; expected one of {names}")
    else:
        spaces = ([at for at in worst if at.site.space == s] for s in ("global", "shared"))
        chosen = [sites[0] for sites in spaces if sites]
    return [found[at.site] for at in chosen]


def _axes(figure: Figure, x: float, y: float, width: float, height: float) -> Any:
    """Add axes at a place in inches from the upper left, with an inch as unit and y downwards."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((x / w, 1 - (y + height) / h, width / w, height / h))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return axes


def _title(figure: Figure, report: Report) -> None:
    trace = report.trace
    axes = _axes(figure, 0.15, 0.1, figure.get_size_inches()[0] - 0.3, 0.5)
    axes.text(0, 0.2, trace.kernel, fontsize=13, fontweight="bold", va="center")
    grid, block = shape_text(trace.grid), shape_text(trace.block)
    where = f"{os.path.basename(trace.filename)}:{trace.first_line}"
    axes.text(0, 0.43, f"{where}   grid {grid}, block {block}", color=_FAINT, va="center")


# -- The source ------------------------------------------------------------------------------------


def _draw_source(axes: Any, lines: Sequence[Line]) -> None:
    width = axes.get_xlim()[1]
    cells = width - len(_COLUMNS) * _COLUMN
    for i, name in enumerate(_COLUMNS):
        axes.text(cells + (i + 0.5) * _COLUMN, 0.1, name, ha="center", va="center", fontsize=7.5)
    for i, line in enumerate(lines):
        y = 0.25 + i * _ROW
        shown = _cells(line)
        worst = max((waste for _, waste in shown.values()), default=1.0)
        _box(axes, 0.42, y, cells - 0.5, _heat(worst, faint=True))
        code = {"fontsize": 7.8, "family": "monospace", "va": "center"}
        axes.text(0.36, y + _ROW / 2, line.number, ha="right", color=_FAINT, **code)
        text = line.text if len(line.text) <= _LONGEST else line.text[: _LONGEST - 1] + "…"
        axes.text(0.45, y + _ROW / 2, text, color=_INK if line.reached else _FAINT, **code)
        for name, (text, waste) in shown.items():
            x = cells + _COLUMNS.index(name) * _COLUMN
            _box(axes, x + 0.02, y, _COLUMN - 0.04, _heat(waste))
            ink = {"fontsize": 7.5, "color": "white" if waste > 12 else _INK}
            axes.text(x + _COLUMN / 2, y + _ROW / 2, text, ha="center", va="center", **ink)


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


def _scale(figure: Figure, y: float) -> None:
    """Say what the heat means."""
    w, h = figure.get_size_inches()
    place = figure.add_axes((0.57 / w, 1 - (y + 0.1) / h, 2.2 / w, 0.1 / h))
    bar = figure.colorbar(
        ScalarMappable(LogNorm(1, _HOTTEST), _HEAT), cax=place, orientation="horizontal"
    )
    ticks = [2**i for i in range(6)]
    bar.set_ticks(ticks, labels=[f"{tick}×" for tick in ticks], fontsize=7)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=2)
    bar.outline.set_edgecolor("#cccccc")
    text = "of what it has to be: sectors moved, wavefronts taken, lanes occupied"
    place.text(1.05, 0.5, text, transform=place.transAxes, fontsize=7.5, va="center")


# -- The roofline, and what to look at -------------------------------------------------------------


def _draw_roofline(figure: Figure, y: float, roof: Roofline) -> None:
    """Draw the roof, and under it the kernel by the bytes moved and by the bytes needed."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((1.0 / w, 1 - (y + _CHART - 0.6) / h, 4.2 / w, (_CHART - 0.8) / h))
    points = {"as moved": ("#d7402b", roof.moved), "each element once": ("#0072B2", roof.needed)}
    found = [roof.intensity(moved) for _, moved in points.values()]
    ends = np.array([min(*found, roof.ridge / 8) / 2, max(*found, roof.ridge) * 4])
    floor = ends[0] / roof.ridge * roof.peak / 4
    bend = np.sort([*ends, roof.ridge])
    roofs = np.minimum(roof.peak, bend / roof.ridge * roof.peak)
    axes.loglog(bend, roofs, color=_INK, linewidth=1.5)
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


def _notes(report: Report, width: float) -> list[str]:
    """Return the sentences, broken into lines."""
    letters = int((width - 0.9) / 0.066)
    roof, *bounds = (" ".join(text.split()) for text in roofline_text(report.roofline))
    paragraphs = [roof, *bounds, "", *(f"• {text}" for text in report.advice)]
    return [
        line
        for paragraph in paragraphs
        for line in wrap(paragraph, letters, subsequent_indent="   ") or [""]
    ]


def _write(axes: Any, lines: Sequence[str]) -> None:
    for i, line in enumerate(lines):
        axes.text(0, (i + 0.5) * _NOTE, line, fontsize=8.3, va="center")


# -- The memory ------------------------------------------------------------------------------------


class _Panel:
    """The first request of a site, over the elements of its array."""

    def __init__(self, made: Requests) -> None:
        first = made.request == 0
        self.made, self.site = made, made.site
        self.lane, address = made.lane[first], made.address[first]
        self.pitch = _pitch(made)
        self.row, self.column = np.divmod(address // self.site.itemsize, self.pitch)
        self.top, self.rows = _window(self.row, 8, self._last_row())
        self.left, self.columns = _window(self.column, 32, self.pitch)

    @property
    def shared(self) -> bool:
        return self.site.space == "shared"

    @property
    def height(self) -> float:
        """In inches."""
        return 0.6 + self.rows * _CELL + (0.75 if self.shared else 0.0)

    def draw(self, figure: Figure, x: float, y: float) -> None:
        """Draw it, with its upper left corner at a place in inches."""
        axes = _axes(figure, x, y, _PANEL - 0.4, self.height)
        axes.text(0, 0.1, self._headline(), fontweight="bold", va="center")
        axes.text(0, 0.3, self._explanation(), color=_FAINT, fontsize=8, va="center")
        origin = 0.45, 0.6
        self._labels(axes, *origin)
        self._draw_cells(axes, *origin)
        if self.shared:
            self._draw_banks(axes, origin[0], origin[1] + self.rows * _CELL + 0.62)

    def _headline(self) -> str:
        site, shape = self.site, " × ".join(map(str, self.site.shape))
        return f"line {site.line}: {site.kind} of {site.array}, {site.space}, {shape}"

    def _explanation(self) -> str:
        one = Requests(self.site, np.zeros_like(self.lane), self.lane, self._address())
        if self.shared:
            ways = one.wavefronts().worst
            conflict = "no bank conflict" if ways == 1 else f"a {ways}-way bank conflict"
            return f"the first warp, cells coloured by their bank: {conflict}"
        cost = one.sectors()
        return f"the first warp moves {cost.transactions} sectors; {cost.fewest} would do"

    def _address(self) -> NDArray[np.int64]:
        return self.made.address[self.made.request == 0]

    def _last_row(self) -> int:
        return max(int(np.prod(self.site.shape)) // self.pitch, int(self.row.max()) + 1)

    def _labels(self, axes: Any, x: float, y: float) -> None:
        ink = {"fontsize": 6, "color": _FAINT, "va": "center"}
        for row in {0, self.rows - 1}:
            axes.text(x - 0.06, y + (row + 0.5) * _CELL, self.top + row, ha="right", **ink)
        for column in {0, self.columns - 1}:
            place = x + (column + 0.5) * _CELL, y - 0.07
            axes.text(*place, self.left + column, ha="center", **ink)

    def _draw_cells(self, axes: Any, x: float, y: float) -> None:
        lanes = defaultdict(list)
        for row, column, lane in zip(self.row, self.column, self.lane, strict=True):
            lanes[row, column].append(lane)
        moved = set(self._address() // SECTOR)
        for row in range(self.top, self.top + self.rows):
            for column in range(self.left, self.left + self.columns):
                here = lanes[row, column]
                color = self._color(row * self.pitch + column, bool(here), moved)
                left, upper = x + (column - self.left) * _CELL, y + (row - self.top) * _CELL
                look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.5}
                axes.add_patch(Rectangle((left, upper), _CELL, _CELL, **look))
                text = f"{len(here)}×" if len(here) > 1 else "".join(map(str, here))
                middle = left + _CELL / 2, upper + _CELL / 2
                axes.text(*middle, text, fontsize=5.2, ha="center", va="center", color="white")

    def _color(self, element: int, taken: bool, moved: set[int]) -> Any:
        address = element * self.site.itemsize
        if self.shared:
            return _bank_color(address // WORD % BANKS, taken)
        if taken:
            return "#0072B2"
        return "#f9c27b" if address // SECTOR in moved else "#eeeeee"

    def _draw_banks(self, axes: Any, x: float, y: float) -> None:
        """Draw how many words each bank has to serve."""
        wanted = np.bincount(np.unique(self._address() // WORD) % BANKS, minlength=BANKS)
        ink = {"fontsize": 5.2, "ha": "center", "va": "center"}
        for bank, count in enumerate(wanted):
            left, middle = x + bank * _CELL, x + (bank + 0.5) * _CELL
            height = 0.4 * count / wanted.max()
            color = _bank_color(bank, taken=True)
            axes.add_patch(Rectangle((left, y - height), _CELL - 0.02, height, facecolor=color))
            axes.text(middle, y + 0.07, bank, color=_FAINT, **ink)
            axes.text(middle, y - height - 0.06, count or "", **ink)
        axes.text(x - 0.06, y - 0.2, "words", fontsize=6, ha="right", va="center", color=_FAINT)
        axes.text(x - 0.06, y + 0.07, "bank", fontsize=6, ha="right", va="center", color=_FAINT)


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

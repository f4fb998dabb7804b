"""What every lesson shares: drawing, tables, clocks, checks, and a look at what is launched.

A lesson runs as a script and as a notebook. Figures go to a folder (`LESSON_OUT`, or
`out/<lesson>/` beside this file) and, in a notebook, on the page too. `LESSON_FAST=1` asks for
small sizes.
"""

from __future__ import annotations

import inspect
import os
import re
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from minitransformer_kernels.cuda import Kernel, Launch

FAST = os.environ.get("LESSON_FAST", "") not in ("", "0")
TIMING = 0.02 if FAST else 0.2  # seconds to spend on timing one thing

# Okabe and Ito (2008): eight colours that stay apart for colour-blind eyes.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, YELLOW = "#56B4E9", "#E69F00", "#F0E442"
INK, GREY, PALE = "#333333", "#8c8c8c", "#ececec"

_LOOK: Any = {  # Any: the type that matplotlib gives its settings lists every one of them
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6e6e6",
    "lines.linewidth": 2,
    "legend.frameon": False,
}
matplotlib.rcParams.update(_LOOK)


# -- Pictures and tables ---------------------------------------------------------------------------


def panels(
    columns: int = 1, width: float = 9, height: float = 3.6, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Start a figure with axes side by side.

    Args:
        columns: How many axes.
        width: Of the figure, in inches.
        height: Of the figure, in inches.
        ratios: The axes' widths, relative to each other.

    Returns:
        The figure and its axes, from left to right.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)
    return figure, list(axes[0])


def canvas(axis: Axes, title: str = "") -> Axes:
    """Turn axes into a sheet to draw on: no ticks, no frame, equal units."""
    axis.set_axis_off()
    axis.set_aspect("equal", anchor="NW")
    axis.set_title(title)
    return axis


def dots(
    axis: Axes, title: str, unit: str, values: Mapping[str, float], names: bool = True
) -> None:
    """Draw named quantities as dots on a logarithmic scale, from top to bottom.

    Args:
        axis: Where to draw.
        title: Stands above.
        unit: Of the values, as in `quantity`.
        values: The quantities by name; a NaN leaves its row empty.
        names: Whether to write the names.
    """
    known = [value for value in values.values() if value == value]
    for row, value in enumerate(values.values()):
        axis.axhline(row, color=PALE, linewidth=1, zorder=0)
        axis.plot(value, row, "o", color=BLUE, markersize=9)
        if value == value:
            axis.annotate(
                quantity(value, unit),
                (value, row),
                (11, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
            )
    axis.set_yticks(range(len(values)), list(values) if names else [])
    axis.set(title=title, xscale="log", xlim=(min(known) / 2, max(known) * 20))
    axis.set_ylim(len(values) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


def lengths_axis(axis: Axes, lengths: Sequence[int]) -> None:
    """Make both axes logarithmic, with the lengths along the lower one."""
    axis.set(xscale="log", yscale="log", xlabel="length L")
    axis.margins(y=0.1)
    axis.set_xticks(lengths[::2], [str(length) for length in lengths[::2]])
    axis.minorticks_off()
    axis.grid(True)


def show(figure: Figure, name: str) -> None:
    """Write a figure to the lesson's folder and, in a notebook, show it.

    Args:
        figure: What to show.
        name: Of the file, without `.png`.
    """
    path = out_folder() / f"{name}.png"
    figure.savefig(path, dpi=150)
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        print(f"[figure: {path}]")
    else:
        picture = ipython.display.Image(filename=path, width=int(96 * figure.get_figwidth()))
        ipython.display.display(picture)


def out_folder() -> Path:
    """Return the folder that figures go to, made if need be."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    lesson = Path(main).stem if main else "notebook"
    chosen = os.environ.get("LESSON_OUT")
    folder = Path(chosen) if chosen else Path(__file__).parent / "out" / lesson
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a head; numbers stand to the right."""
    lines = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (list(head), ["-" * width for width in widths], *lines):
        padded = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        print(line[0].ljust(widths[0]), *padded[1:], sep="  ")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def quantity(number: float, unit: str) -> str:
    """Write a number with three digits and the prefix that its unit wants.

    >>> quantity(0.00123, "s")
    '1.23 ms'
    """
    for exponent, prefix in ((9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m")):
        if abs(number) >= 10**exponent:
            return f"{number / 10**exponent:.3g} {prefix}{unit}"
    return f"{number * 1e6:.3g} µ{unit}"


# -- Measuring -------------------------------------------------------------------------------------


def seconds(run: Callable[..., object], *arguments: Any) -> float:
    """Return the shortest time of many runs: what a machine did besides can only make one longer.

    Args:
        run: What to time. It runs once more before, to warm up.
        arguments: What to call it with.
    """
    run(*arguments)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < TIMING and len(times) < 100):
        start = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def peak_bytes(run: Callable[..., object], *arguments: Any) -> int:
    """Return how much memory a run takes at most, beside what was there before.

    NumPy tells `tracemalloc` of every array, so this is a count, not a guess.

    Args:
        run: What to look at. It runs once more before: compiling takes memory too.
        arguments: What to call it with.
    """
    run(*arguments)
    tracemalloc.start()
    try:
        run(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent p of the power law, values ~ sizes^p, that fits best."""
    return statistics.linear_regression(
        [float(x) for x in np.log(sizes)], [float(y) for y in np.log(values)]
    ).slope


def error(got: ArrayLike, truth: ArrayLike) -> float:
    """Return the largest difference, relative to the truth's largest number."""
    got, truth = np.asarray(got, np.float64), np.asarray(truth, np.float64)
    return float(abs(got - truth).max() / abs(truth).max())


def check(what: str, got: Any, truth: ArrayLike, allowed: float) -> None:
    """Say that a result is right, or raise with what is wrong.

    Args:
        what: The result's name.
        got: The result.
        truth: What it should be.
        allowed: The largest `error`.

    Raises:
        AssertionError: It is missing, has another shape, or is off by more than is allowed.
    """
    truth = np.asarray(truth)
    if got is None:
        raise AssertionError(f"{what}: nothing yet; it is your turn")
    if np.shape(got) != truth.shape:
        raise AssertionError(f"{what}: expected the shape {truth.shape}, got {np.shape(got)}")
    off = error(got, truth)
    if not off <= allowed:
        raise AssertionError(f"{what}: off by {off:.2g}, allowed {allowed:.2g}")
    print(f"{what}: right (off by {off:.1e}, allowed {allowed:.0e})")


# -- Looking at kernels ----------------------------------------------------------------------------


class Seen(NamedTuple):
    """A launch: the kernel, its blocks, the threads of each, and the arguments."""

    kernel: Kernel
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[Any, ...]

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernel was compiled for: the sizes in the function around it."""
        return dict(inspect.getclosurevars(self.kernel.function).nonlocals)


@contextmanager
def watch() -> Iterator[list[Seen]]:
    """Note every kernel launch while it happens."""
    seen: list[Seen] = []
    launch = Launch.__call__

    def noting(self: Launch, *arguments: Any) -> None:
        seen.append(Seen(self.kernel, self.grid, self.block, arguments))
        launch(self, *arguments)

    with patch.object(Launch, "__call__", noting):
        yield seen


def source(kernel: Kernel) -> str:
    """Return the text of a kernel, as it stands in its file."""
    return inspect.getsource(kernel.function)


def excerpt(text: str, pattern: str, before: int, after: int) -> str:
    """Return the lines of a text around the first that a pattern is found in.

    Raises:
        LookupError: No line has it.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.search(pattern, line):
            return "\n".join(lines[max(0, number - before) : number + after + 1])
    raise LookupError(f"excerpt: no line matches {pattern!r}")

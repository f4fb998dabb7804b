"""How a block becomes a loop: in which order, and which lines of a kernel go where."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer_kernels.cpu.regions import all_lanes
from minitransformer_kernels.cpu.source import place
from minitransformer_kernels.cuda import Kernel

from ..quoting import quote_loop
from . import AMBER, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW, box, canvas, panels

COLORS = SKY, AMBER, GREEN, PINK, YELLOW, ORANGE
LEADING = 1.4  # from line to line, in font sizes
LETTER = 0.69 / LEADING  # the width of one, in lines, as it comes out at this size


def order(threads: int = 4) -> Figure:
    """Draw when four threads run two regions: on a GPU, on a core, and in a loop that is wrong."""
    figure, (sheet,) = panels(1, 6.5, 4.6)
    canvas(sheet)
    sheet.text(0, -0.4, "A GPU: side by side", weight="bold")
    for t in range(threads):
        sheet.text(-0.3, t + 0.5, f"thread {t}", ha="right", va="center")
        for region in range(2):
            box(sheet, 1.5 * region, t, 1, 1, COLORS[region], str(t))
    sheet.plot((1.25, 1.25), (-0.15, threads + 0.15), color=ORANGE, linewidth=2.5)
    sheet.text(3, 0.5, "region 1", va="center", bbox=_on(SKY))
    sheet.text(3, 1.7, "region 2", va="center", bbox=_on(AMBER))
    sheet.text(3, 2.9, "barrier", va="center", color=ORANGE)
    loops = (
        ("One core: a loop over the threads for each region", 5.7,
         [(region, t) for region in range(2) for t in range(threads)]),
        ("One loop over the threads: region 2 begins before region 1 is over", 8.4,
         [(region, t) for t in range(threads) for region in range(2)]),
    )  # fmt: skip
    for title, y, turns in loops:
        sheet.text(0, y - 0.4, title, weight="bold")
        for at, (region, t) in enumerate(turns):
            box(sheet, at + 0.5 * (y < 8 and region), y, 1, 1, COLORS[region], str(t))
    sheet.plot((threads + 0.25,) * 2, (5.55, 6.85), color=ORANGE, linewidth=2.5)
    sheet.annotate("time", (3.2, 10.1), (0, 10.1), va="center", color=GREY, arrowprops={
        "arrowstyle": "-|>", "color": GREY})  # fmt: skip
    sheet.set_xlim(-2.2, 14.5)
    sheet.set_ylim(10.9, -1)
    return figure


def _on(color: str) -> dict[str, object]:
    return {"facecolor": color, "alpha": 0.35, "edgecolor": "none", "pad": 3}


def regions(kernel: Kernel) -> Figure:
    """Draw a kernel that was launched, and the loops that it became, each region in its colour."""
    text, first = inspect.getsourcelines(kernel.function)
    source = textwrap.dedent("".join(text)).splitlines()
    tree = ast.parse("\n".join(source)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    of_line = {}
    for number, lanes in enumerate(all_lanes(kernel.on_cpu.regions().nodes)):
        for statement in lanes.body:
            at = place(statement)[1] - first
            of_line.update({line: number for line in _lines(tree, at)})
    loop = str(quote_loop(kernel))
    left, right = max(map(len, source)), max(map(len, loop.splitlines()))
    gap = left * LETTER + 3
    width = gap + right * LETTER
    height = max(len(source), loop.count("\n") + 1) + 2.0
    figure, (sheet,) = panels(1, 10, 10 * height / width + 0.2)
    canvas(sheet)
    size = 0.98 * 10 * 72 / (width + 1) / LEADING
    _write(sheet, 0, "The kernel: what one thread does", source, of_line, size)
    _write(sheet, gap, "What one core does for all threads", loop.splitlines(), _loops(loop), size)
    sheet.set_xlim(-0.5, width + 0.5)
    sheet.set_ylim(height, -0.5)
    return figure


def _lines(tree: ast.FunctionDef, at: int) -> range:
    """All lines of the statement that begins on one."""
    ends = [n.end_lineno or 0 for n in ast.walk(tree) if isinstance(n, ast.stmt)
            and n.lineno == at + 1]  # fmt: skip
    return range(at, max(ends, default=at + 1))


def _loops(text: str) -> dict[int, int]:
    """The region of each line that stands in a loop over the threads."""
    lanes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.For) and ast.unparse(node.iter) == "range(BLOCK_X)"
    ]
    lanes.sort(key=lambda node: node.lineno)
    return {
        line: number
        for number, node in enumerate(lanes)
        for line in range(node.lineno - 1, node.end_lineno or node.lineno)
    }


def _write(
    sheet: Axes, x: float, title: str, lines: Sequence[str], regions: Mapping[int, int], size: float
) -> None:
    sheet.text(x, 0.4, title, weight="bold", va="center")
    width = max(map(len, lines)) * LETTER + 0.8
    for at, line in enumerate(lines):
        y = at + 2.0
        if at in regions:
            color = COLORS[regions[at] % len(COLORS)]
            sheet.add_patch(Rectangle((x - 0.4, y - 0.5), width, 1, facecolor=color, alpha=0.35))
        sheet.text(x, y, line, family="monospace", fontsize=size, va="center", color=INK)

"""The lessons' schematic drawings: everything in them is to scale, or taken from a real launch."""

from __future__ import annotations

import inspect
from typing import Any

from classroom import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PALE, SKY, Seen, canvas, panels
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle


def moving_the_sum(length: int, head_dim: int) -> Figure:
    """Draw both orders of the product as matrices, each number as the same area.

    Args:
        length: L, the rows of all three matrices.
        head_dim: E = M, their columns.
    """
    figure, (left, right) = panels(2, 10, 4.1)
    L, E, gap = length, head_dim, 0.12 * length
    near, far = E + gap, E + L + 3 * gap

    canvas(left, "(φ(Q) φ(K)ᵀ) V: every query meets every key")
    _matrix(left, 0, near, E, L, "φ(Q)\nL × E", SKY)
    _matrix(left, near, 0, L, E, "φ(K)ᵀ   E × L", SKY)
    _matrix(left, near, near, L, L, f"scores   L × L\n{L * L:,} numbers", ORANGE)
    _matrix(left, far, near, E, L, "V\nL × M", AMBER)
    left.text(far - gap, near + L / 2, "×", ha="center", va="center", fontsize=16)

    canvas(right, "φ(Q) (φ(K)ᵀ V): keys and values meet first")
    _matrix(right, 0, near, E, L, "φ(Q)\nL × E", SKY)
    right.text(E + gap, L + gap + E / 2, "×", ha="center", va="center", fontsize=16)
    _matrix(right, E + 2 * gap, L + gap, L, E, "φ(K)ᵀ   E × L", SKY)
    _matrix(right, far, 0, E, L, "V\nL × M", AMBER)
    _matrix(right, far, L + gap, E, E, "S\nE × M", GREEN)
    right.text(far + E / 2, L + gap + E + 0.8, f"{E * E} numbers", ha="center", va="top")
    for axis in (left, right):
        axis.set_xlim(-1, far + E + 2 * gap)
        axis.set_ylim(E + L + gap + 3.5, -1)
    return figure


def _matrix(
    axis: Axes, x: float, y: float, width: float, height: float, text: str, color: str
) -> None:
    axis.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=0.35))
    axis.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=0.8))
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", linespacing=1.4)


def tiling(launch: Seen) -> Figure:
    """Draw who does what in a launch of the recurrent kernel.

    Args:
        launch: As seen by `classroom.watch`.
    """
    names = inspect.signature(launch.kernel.function).parameters
    shapes: dict[str, Any] = {
        k: getattr(v, "shape", ()) for k, v in zip(names, launch.arguments, strict=True)
    }
    (N, H, L, E), M = shapes["query"], shapes["value"][3]
    sizes = launch.constants
    figure, (grid, block, walk) = panels(3, 13, 5, [1, 1.5, 1.35])
    _grid(canvas(grid, f"The grid: {'×'.join(map(str, launch.blocks))} blocks"), N, H)
    _state(canvas(block, "One block: S, spread over its threads"), E, M, sizes)
    _walk(canvas(walk, "Its walk: tile after tile through shared memory"), L, E, sizes)
    return figure


def _grid(axis: Axes, batch: int, heads: int) -> None:
    for n in range(batch):
        for h in range(heads):
            mine = (n, h) == (0, 0)
            color = BLUE if mine else PALE
            axis.add_patch(Rectangle((h, n), 0.88, 0.88, facecolor=color, edgecolor=INK, lw=0.8))
            label = f"n={n}\nh={h}"
            axis.text(
                h + 0.44, n + 0.44, label, ha="center", va="center", color="white" if mine else INK
            )
    axis.text(0, batch + 0.2, "a block works on one head (h) of one\nsequence (n), alone", va="top")
    axis.set_xlim(-0.1, heads)
    axis.set_ylim(batch + 1.1, -0.25)


def _state(axis: Axes, E: int, M: int, sizes: dict[str, Any]) -> None:
    rows, columns, parts = sizes["rows"], sizes["columns"], sizes["parts"]
    x = columns // 3
    for y in range(parts):
        color = (SKY, AMBER)[y % 2]
        axis.add_patch(Rectangle((0, y * rows), M, rows, facecolor=color, alpha=0.35))
        axis.add_patch(Rectangle((x, y * rows), 1, rows, facecolor=(BLUE, ORANGE)[y % 2]))
        axis.text(
            x + 3,
            (y + 0.5) * rows,
            f"thread ({x}, {y})\nkeeps S[{y * rows}:{(y + 1) * rows}, {x}]\nin {rows} registers",
            va="center",
        )
        axis.text(
            -1.5, (y + 0.5) * rows, f"threadIdx.y = {y}", rotation=90, ha="right", va="center"
        )
    for m in range(0, M + 1, 8):
        axis.plot([m, m], [0, E], color="white", linewidth=0.6)
    axis.add_patch(Rectangle((0, 0), M, E, fill=False, edgecolor=INK, lw=0.8))
    axis.text(0, -1.5, f"threadIdx.x = 0 … {columns - 1}: a column m of S each  →", va="bottom")
    axis.text(
        0, E + 2, f"{columns} × {parts} = {columns * parts} threads, {E} × {M} numbers", va="top"
    )
    axis.set_xlim(-7, M + 1)
    axis.set_ylim(E + 9, -7)


def _walk(axis: Axes, L: int, E: int, sizes: dict[str, Any]) -> None:
    tile, columns = sizes["tile"], sizes["columns"]
    unit = 2.2 / (L + -L % tile)  # so that the walk is drawn 2.2 high, however long it is
    strip, left, scale = 0.7, 1.6, 0.7 * unit
    for start in range(0, L, tile):
        top, bottom = start * unit, min(start + tile, L) * unit
        mine = start == tile
        _matrix(axis, 0, top, strip, bottom - top, "", BLUE if mine else GREY)
        axis.text(
            strip + 0.08, (top + bottom) / 2, f"{start}–{min(start + tile, L) - 1}", va="center"
        )
    missing = -L % tile * unit
    axis.add_patch(Rectangle((0, L * unit), strip, missing, fill=False, ec=GREY, ls=":"))
    if missing:
        axis.text(
            strip + 0.08,
            L * unit + missing / 2,
            f"{-L % tile} rows of zeros",
            color=GREY,
            va="center",
        )
    axis.text(0, -0.06, f"L = {L} tokens", va="bottom")

    widths = {"q_tile": E, "k_tile": E, "v_tile": columns}
    for number, (name, width) in enumerate(widths.items()):
        color = AMBER if name == "v_tile" else SKY
        top = number * (tile * scale + 0.3)
        _matrix(axis, left, top, width * scale, tile * scale, f"{name}   {tile} × {width}", color)
        arrow = FancyArrowPatch(
            (strip + 0.42, 1.5 * tile * unit),
            (left - 0.03, top + tile * scale / 2),
            arrowstyle="-|>",
            mutation_scale=12,
            color=INK,
        )
        axis.add_patch(arrow)
    axis.text(left, -0.06, "in shared memory", va="bottom")
    axis.set_xlim(-0.1, left + max(widths.values()) * scale + 0.15)
    axis.set_ylim(L * unit + missing + 0.1, -0.3)

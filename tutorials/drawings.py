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
    figure, (left, right) = panels(2, 10, 4.2)
    L, E, gap = length, head_dim, 0.22 * length
    canvas(left, "Scores first: an L × L matrix in the middle")
    _matrix(left, 0, 0, E, L, "φ(Q)", SKY)
    _matrix(left, E + gap, 0, L, E, "φ(K)ᵀ", SKY)
    _matrix(left, E + L + 2 * gap, 0, E, L, "V", AMBER)
    _matrix(left, E + gap, E + gap, L, L, f"scores\n{L} × {L}", ORANGE)
    canvas(right, "Keys and values first: an E × M matrix")
    _matrix(right, 0, 0, E, L, "φ(Q)", SKY)
    _matrix(right, E + gap, 0, L, E, "φ(K)ᵀ", SKY)
    _matrix(right, E + L + 2 * gap, 0, E, L, "V", AMBER)
    _matrix(right, E + L + 2 * gap, L + gap / 2, E, E, f"S\n{E} × {E}", GREEN)
    for axis in (left, right):
        axis.set_xlim(-1, 2 * E + L + 2 * gap + 1)
        axis.set_ylim(E + L + gap + 1, -1)
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
    shapes = {k: getattr(v, "shape", ()) for k, v in zip(names, launch.arguments, strict=True)}
    (N, H, L, E), M = shapes["query"], shapes["value"][3]
    sizes = launch.constants
    figure, (grid, block, walk) = panels(3, 13, 5, [1, 1.55, 1.55])
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
        axis.text(-1.5, (y + 0.5) * rows, f"threadIdx.y = {y}", rotation=90, ha="right", va="center")
    for m in range(0, M + 1, 8):
        axis.plot([m, m], [0, E], color="white", linewidth=0.6)
    axis.add_patch(Rectangle((0, 0), M, E, fill=False, edgecolor=INK, lw=0.8))
    axis.text(0, -1.5, f"threadIdx.x = 0 … {columns - 1}: a column m of S each  →", va="bottom")
    axis.text(0, E + 2, f"{columns} × {parts} = {columns * parts} threads, {E} × {M} numbers", va="top")
    axis.set_xlim(-7, M + 1)
    axis.set_ylim(E + 9, -7)


def _walk(axis: Axes, L: int, E: int, sizes: dict[str, Any]) -> None:
    tile, columns = sizes["tile"], sizes["columns"]
    strip, now = 8.0, tile  # how wide the strip of tokens is drawn; the tile in hand
    for start in range(0, L, tile):
        stop = min(start + tile, L)
        color = BLUE if start == now else PALE
        axis.add_patch(Rectangle((0, start), strip, stop - start, facecolor=color, edgecolor=INK, lw=0.8))
        axis.text(
            strip / 2,
            (start + stop) / 2,
            f"{start}–{stop - 1}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if start == now else INK,
        )
    missing = -L % tile
    axis.add_patch(Rectangle((0, L), strip, missing, fill=False, edgecolor=GREY, linestyle=":"))
    if missing:
        axis.text(strip + 1.5, L + missing / 2, f"{missing} rows of zeros", color=GREY, va="center")
    axis.text(strip / 2, -1.5, f"L = {L} tokens", va="bottom", ha="center")
    scale, left = 0.42, strip + 12
    height = tile * scale
    for number, (name, width, color) in enumerate(
        (("q_tile", E, SKY), ("k_tile", E, SKY), ("v_tile", columns, AMBER))
    ):
        top = number * (height + 8)
        axis.add_patch(Rectangle((left, top), width * scale, height, facecolor=color, alpha=0.35))
        axis.add_patch(Rectangle((left, top), width * scale, height, fill=False, edgecolor=INK, lw=0.8))
        axis.text(
            left + width * scale / 2,
            top + height / 2,
            f"{name}\n{tile} × {width}",
            ha="center",
            va="center",
        )
    middle = (now + min(now + tile, L)) / 2
    axis.add_patch(
        FancyArrowPatch((strip, middle), (left - 1, middle), arrowstyle="-|>", mutation_scale=14, color=INK)
    )
    axis.set_xlim(-2, left + max(E, columns) * scale + 2)
    axis.set_ylim(max(L + missing, 3 * (height + 8)) + 3, -7)

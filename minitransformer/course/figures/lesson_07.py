"""Transformers are RNNs: a state that fills up, and the launch that keeps it in registers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..looking import Launched
from . import AMBER, BLUE, GREY, INK, ORANGE, SKY, box, canvas, numbers, panels


def filling(S: Any, R: Any) -> Figure:
    """Draw the states after each token, and the gradients that come back to them.

    Args:
        S: `(L, E, M)`, S_1 to S_L.
        R: `(L, E, M)`, R_1 to R_L.
    """
    L = len(S)
    figure = Figure(figsize=(1.6 * L, 5), layout="constrained")
    for row, (name, states) in enumerate((("S", S), ("R", R))):
        largest = float(np.abs(states).max())
        for i, state in enumerate(states):
            axis = figure.add_subplot(2, L, row * L + i + 1)
            numbers(axis, state, f"${name}_{i + 1}$", largest, digits=1 + row)
    figure.suptitle("Forward, each token adds $k_i v_i^T$  →", fontsize=11)
    figure.supxlabel("←  Backward, each token adds $q_i\\, gn_i^T$", fontsize=11)
    return figure


def tiling(launch: Launched) -> Figure:
    """Draw what a block of the recurrent kernel owns, and how it walks along the tokens."""
    names = inspect.signature(launch.kernel.function).parameters
    shapes: dict[str, Any] = {
        k: getattr(v, "shape", ()) for k, v in zip(names, launch.arguments, strict=True)
    }
    (_, _, L, E), M = shapes["query"], shapes["value"][3]
    sizes = launch.constants
    figure, (block, walk) = panels(2, 11, 5, [1.1, 1])
    _state(canvas(block, "One block: S, spread over its threads"), E, M, sizes)
    _walk(canvas(walk, "Its walk: tile after tile through shared memory"), L, E, sizes)
    return figure


def _state(axis: Axes, E: int, M: int, sizes: dict[str, Any]) -> None:
    rows, columns, parts = sizes["rows"], sizes["columns"], sizes["parts"]
    x = columns // 3
    for y in range(parts):
        top = y * rows
        axis.add_patch(Rectangle((0, top), M, rows, facecolor=(SKY, AMBER)[y % 2], alpha=0.35))
        axis.add_patch(Rectangle((x, top), 1, rows, facecolor=(BLUE, ORANGE)[y % 2]))
        keeps = f"thread ({x}, {y})\nkeeps S[{top}:{top + rows}, {x}]\nin {rows} registers"
        axis.text(x + 3, top + rows / 2, keeps, va="center")
        axis.text(-1.5, top + rows / 2, f"threadIdx.y = {y}", rotation=90, ha="right", va="center")
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
        end = min(start + tile, L)
        mine = start == tile
        box(axis, 0, start * unit, strip, (end - start) * unit, BLUE if mine else GREY)
        axis.text(strip + 0.08, (start + end) / 2 * unit, f"{start}–{end - 1}", va="center")
    missing = -L % tile
    if missing:
        axis.add_patch(Rectangle((0, L * unit), strip, missing * unit, fill=False, ec=GREY, ls=":"))
        axis.text(
            strip + 0.08, (L + missing / 2) * unit, f"{missing} rows of zeros", color=GREY,
            va="center",
        )  # fmt: skip
    axis.text(0, -0.06, f"L = {L} tokens", va="bottom")
    axis.text(left, -0.06, "in shared memory", va="bottom")
    widths = {"q_tile": E, "k_tile": E, "v_tile": columns}
    for number, (name, width) in enumerate(widths.items()):
        color, top = AMBER if name == "v_tile" else SKY, number * (tile * scale + 0.3)
        text = f"{name}\n{tile} × {width}"
        box(axis, left, top, width * scale, tile * scale, color, text)
    axis.set_xlim(-0.1, left + max(widths.values()) * scale + 0.15)
    axis.set_ylim((L + missing) * unit + 0.1, -0.3)

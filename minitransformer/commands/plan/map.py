"""Where which algorithm is taken, as a map: length against head dim, and against a second size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import StrMethodFormatter

from minitransformer_kernels.planner import Sizes

from ...plots import INK, picture
from .table import Question, formula

_LENGTHS = np.geomspace(8, 2**17, 400).round().astype(int)
_HEAD_DIMS = np.geomspace(4, 256, 80).round().astype(int)
_DISTANCES = np.geomspace(1, 1024, 80).round().astype(int)
_HEADS = np.geomspace(1, 1024, 80).round().astype(int)
_DISTANCE = 32  # where the crossovers of the map are marked, where none is given
_REGIONS = {
    "naive": "#f6d9a8",
    "linear": "#a9cfe8",
    "recurrent": "#b5dfcd",
    "chunked": "#e6c7da",
}
Grid = np.ndarray[Any, np.dtype[np.int_]]


class ChoiceMap(NamedTuple):
    """Which algorithm is taken for each length and one more size, ready to be drawn."""

    title: str  # what is chosen
    label: str  # what the other size is
    lengths: np.ndarray  # (X,), increasing
    sizes: np.ndarray  # (Y,), increasing
    choices: np.ndarray  # (Y, X), names of algorithms
    crossovers: tuple[int, Mapping[int, str]]  # at one size: that size, and texts by length


def draw_map(path: Path, asked: Question) -> None:
    """Draw which algorithm is taken where: length against head dim, and against a second size.

    That is the max distance in the seed's model, and the number of heads in the kernels'.

    Raises:
        CheckpointError: the file cannot be written.
    """

    def choice_map(
        title: str, label: str, term: str, grid: Grid, size: int, at: Callable[[int], Sizes]
    ) -> ChoiceMap:
        choices = [_along(asked.crossovers(at(y))[term], _LENGTHS) for y in grid.tolist()]
        equal = formula(at(size), term) if seed else ""
        starts = asked.crossovers(at(size))[term][1:]
        texts = {start - 1: f"L = {start - 1:,}{equal}" for start, _ in starts}
        return ChoiceMap(title, label, _LENGTHS, grid, np.array(choices), (size, texts))

    sizes, seed = asked.sizes, asked.cost_model == "seed"
    first = choice_map(
        "the kernelized term" if seed else f"N H = {sizes.all_heads}",
        "head dim, d = E = M",
        "kernelized",
        _HEAD_DIMS,
        sizes.head_dim,
        lambda d: sizes._replace(head_dim=d, value_dim=d, max_distance=None),
    )
    by_distance = (
        "the relative term",
        "maximum distance, k",
        "relative",
        _DISTANCES,
        sizes.max_distance or _DISTANCE,
        lambda k: sizes._replace(max_distance=k),
    )
    by_heads = (
        f"E = {sizes.head_dim}, M = {sizes.value_dim}",
        "heads, N H",
        "kernelized",
        _HEADS,
        sizes.all_heads,
        lambda heads: sizes._replace(batch=1, heads=heads),
    )
    second = choice_map(*(by_distance if seed else by_heads))
    kind = "Causal" if sizes.causal else "Bidirectional"
    grounds = "the seed's memory" if seed else f"the kernels' effort on {asked.device}"
    plot_choices(path, [first, second], f"{kind} linear attention: what to take, by {grounds}")


def _along(starts: list[tuple[int, str]], lengths: Grid) -> list[str]:
    """The choice at each length, given where stretches of one choice begin."""
    firsts, names = zip(*starts, strict=True)
    return [names[i - 1] for i in np.searchsorted(firsts, lengths, side="right")]


def plot_choices(path: Path, maps: Sequence[ChoiceMap], title: str = "") -> None:
    """Draw maps side by side."""
    with picture(path, (5.2 * len(maps), 4.6), title) as figure:
        for axis, shown in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True):
            _draw_choices(axis, shown)


def _draw_choices(axis: Axes, shown: ChoiceMap) -> None:
    names = list(_REGIONS)
    index = np.vectorize(names.index)(shown.choices)
    axis.pcolormesh(
        shown.lengths, shown.sizes, index, cmap=ListedColormap(list(_REGIONS.values())),
        vmin=0, vmax=len(names) - 1, shading="nearest", rasterized=True,
    )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_title(shown.title, loc="left", fontsize=9)
    axis.set_xlabel("length, Lq = Lk")
    axis.set_ylabel(shown.label)
    axis.grid(False)
    for name in np.unique(shown.choices):
        _name_region(axis, shown, str(name))
    axis.set_xlim(shown.lengths[0], shown.lengths[-1])
    axis.set_ylim(shown.sizes[0], shown.sizes[-1])
    size, texts = shown.crossovers
    for length, text in texts.items():
        _mark_crossover(axis, length, size, text)


def _name_region(axis: Axes, shown: ChoiceMap, name: str) -> None:
    """Write the name in the middle of its region: in its middle row, half way along it."""
    rows, columns = np.nonzero(shown.choices == name)
    row = rows[len(rows) // 2]
    column = int(np.median(columns[rows == row]))
    axis.text(
        shown.lengths[column], shown.sizes[row], name, ha="center", va="center", fontsize=11
    )  # fmt: skip


def _mark_crossover(axis: Axes, length: int, size: int, text: str) -> None:
    """Put a dot, and a text on that side of it where there is more room; nothing off the map."""
    left, right = axis.get_xlim()
    side, align = (1, "left") if length**2 < left * right else (-1, "right")
    axis.plot(length, size, "o", color=INK, markersize=4)
    axis.annotate(
        text, (length, size), xytext=(6 * side, -3), textcoords="offset points", ha=align,
        va="top", annotation_clip=True,
    )  # fmt: skip

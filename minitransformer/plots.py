"""The pictures: how a run learned, where it looks, the map of a plan, and what harmonics can draw.

Drawn with `matplotlib.figure.Figure` and no `pyplot`: no window, no global state, no display.
The colours are Okabe and Ito's (2008), which stay apart for colour-blind eyes, and each curve has
a line style of its own for print. Loading `matplotlib` takes a while: import this module to draw.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from .checkpoint import write_atomically
from .tasks import AttentionMap

if TYPE_CHECKING:
    from .expressivity import Fit
    from .tasks.graph import Neighbourhood
    from .tasks.perceiver import Look

Row = Mapping[str, Any]

_SOLID, _DASHED = ("#0072B2", "-"), ("#D55E00", (0, (5, 1.5)))
_STYLES = {"linear": _SOLID, "softmax": _DASHED, "additive": _SOLID, "dot": _DASHED}
_OTHERS = ("#009E73", (0, (1, 1)))
_MEANS: dict[str, Any] = {
    "series": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "learned": {"color": "#009E73", "linestyle": (0, (1, 1)), "marker": "s"},
    "positive": {"color": "#D55E00", "linestyle": (0, (5, 1.5)), "marker": "^"},
}
_REGIONS = {
    "naive": "#f6d9a8",
    "linear": "#a9cfe8",
    "recurrent": "#b5dfcd",
    "chunked": "#e6c7da",
}
_INK = "#333333"
# White, where nobody looks, to the darkest blue; in between as far apart in print as on a screen.
_SHARES = LinearSegmentedColormap.from_list(
    "shares", ["#ffffff", "#d6e6f4", "#6aaed6", "#0072B2", "#08306b"]
)
_PITCH = 1.5  # inches from one heat map to the next
_IMAGE_PITCH = 0.8  # and from one small image to the next
_BARS = ("#0072B2", "#E69F00")
_LARGEST_SIDE = 12_000  # pixels
_LOOK: Any = {  # Any: the type that matplotlib gives its settings lists every one of them
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": "#e6e6e6",
}


def plot_training(path: Path, rows: Iterable[Row], title: str = "", answer: str = "token") -> None:
    """Draw loss and accuracy against the steps, one curve for each attention.

    The measured values are drawn faintly, and over them their running mean.

    Args:
        path: The PNG file to write.
        rows: The rows of `metrics.jsonl`: `attention`, `step`, `loss` and `accuracy` are read.
        title: Stands above the picture.
        answer: What the loss is a mean of.

    Raises:
        CheckpointError: The file cannot be written.
    """
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(str(row["attention"]), []).append(row)
    with rc_context(_LOOK):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for attention, measured in curves.items():
            _curve(upper, attention, measured, "loss")
            _curve(lower, attention, measured, "accuracy")
        _finish_loss(upper, answer)
        _finish_accuracy(lower, answer)
        _write(figure, path)


def plot_attention(path: Path, maps: Sequence[AttentionMap], title: str = "") -> None:
    """Draw attention weights as heat maps, a row for each layer and a column for each head.

    Args:
        path: The PNG file to write.
        maps: One entry for each attention layer, from input to output, all with as many heads.
        title: Stands above the picture.

    Raises:
        CheckpointError: The file cannot be written.
    """
    heads = len(maps[0].weights)
    with rc_context({**_LOOK, "axes.spines.top": True, "axes.spines.right": True}):
        width, height = heads * 0.93 * _PITCH + 1.6, len(maps) * _PITCH + 1.1
        figure = Figure(figsize=(width, height))
        grid = figure.subplots(
            len(maps),
            heads,
            squeeze=False,
            gridspec_kw={
                "left": 0.75 / width,
                "right": 1 - 0.85 / width,
                "bottom": 0.55 / height,
                "top": 1 - 0.65 / height,
                "wspace": 0.1,
                "hspace": 0.18,
            },
        )
        for layer, axes in zip(maps, grid, strict=True):
            _draw_layer(axes, layer)
        for head, axis in enumerate(grid[0]):
            axis.set_title(f"head {head + 1}", fontsize=8, pad=4)
        _add_colorbar(figure, grid[0, 0], _meaning(maps))
        figure.suptitle(title, y=1 - 0.12 / height, va="top", fontsize=11, fontweight="bold")
        figure.supxlabel("key: the token looked at", y=0.12 / height, va="bottom", fontsize=9)
        figure.supylabel(
            "query: the token just read, or (cross) to be written",
            fontsize=9,
            x=0.12 / width,
            ha="left",
        )
        _write(figure, path)


def plot_looks(path: Path, looks: Sequence[Look], title: str = "") -> None:
    """Draw where the latents look, a row for each image and a column for each latent.

    Args:
        path: The PNG file to write.
        looks: One entry for each image, all with as many latents.
        title: Stands above the picture.

    Raises:
        CheckpointError: The file cannot be written.
    """
    latents = len(looks[0].weights)
    largest = max(float(look.weights.max()) for look in looks)
    with rc_context({**_LOOK, "axes.spines.top": True, "axes.spines.right": True}):
        width = (1 + latents) * _IMAGE_PITCH + 1.2
        figure = Figure(figsize=(width, len(looks) * _IMAGE_PITCH + 0.9), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        grid = figure.subplots(len(looks), 1 + latents, squeeze=False)
        for row, look in zip(grid, looks, strict=True):
            _draw_image(row[0], look.image)
            for axis, weights in zip(row[1:], look.weights, strict=True):
                shown = axis.imshow(weights, cmap=_SHARES, norm=PowerNorm(0.5, 0, largest))
                _draw_image_frame(axis)
        for number, axis in enumerate(grid[0]):
            axis.set_title(f"latent {number}" if number else "image", fontsize=8, pad=4)
        bar = figure.colorbar(shown, ax=grid, shrink=0.8, aspect=30, pad=0.01)
        bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        bar.set_label("share of a latent's attention (root scale)", fontsize=8)
        bar.outline.set_visible(False)
        _write(figure, path)


def plot_neighbours(path: Path, neighbourhoods: Sequence[Neighbourhood], title: str = "") -> None:
    """Draw images beside their neighbours, and below each how much it is looked at.

    Args:
        path: The PNG file to write.
        neighbourhoods: A row for each; all with as many neighbours and the same layers.
        title: Stands above the picture.

    Raises:
        CheckpointError: The file cannot be written.
    """
    columns = len(neighbourhoods[0].images)
    layers = tuple(neighbourhoods[0].weights)
    largest = max(float(w.max()) for found in neighbourhoods for w in found.weights.values())
    with rc_context(_LOOK):
        size = (
            max(columns * _IMAGE_PITCH, 5.0) + 0.6,
            len(neighbourhoods) * 1.9 * _IMAGE_PITCH + 0.8,
        )
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        heights = [1, 0.75] * len(neighbourhoods)
        grid = figure.subplots(
            len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for over, under, found in zip(grid[::2], grid[1::2], neighbourhoods, strict=True):
            for place, (image, caption) in enumerate(zip(over, found.captions, strict=True)):
                _draw_image(image, found.images[place])
                image.set_title(caption, fontsize=8, pad=3)
                shares = [found.weights[layer][place] for layer in layers]
                bars = under[place].bar(layers, shares, color=_BARS[: len(layers)])
                _finish_shares(under[place], largest, labelled=place == 0)
        figure.legend(bars, layers, loc="outside lower left", ncols=len(layers), frameon=False)
        _write(figure, path)


class ChoiceMap(NamedTuple):
    """Which algorithm is taken for each length and one more size, ready to be drawn.

    Attributes:
        title: What is chosen.
        label: What the other size is.
        lengths: (X,), increasing.
        sizes: (Y,), increasing.
        choices: (Y, X), names of algorithms.
        crossovers: Where the algorithm changes, at one size: that size, and texts by length.
    """

    title: str
    label: str
    lengths: np.ndarray
    sizes: np.ndarray
    choices: np.ndarray
    crossovers: tuple[int, Mapping[int, str]]


def plot_choices(path: Path, maps: Sequence[ChoiceMap], title: str = "") -> None:
    """Draw side by side which algorithm is taken where.

    Args:
        path: The PNG file to write.
        maps: What to draw.
        title: Stands above the picture.

    Raises:
        CheckpointError: The file cannot be written.
    """
    with rc_context(_LOOK):
        figure = Figure(figsize=(5.2 * len(maps), 4.6), layout="constrained")
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
        for axis, shown in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True):
            _draw_choices(axis, shown)
        _write(figure, path)


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
    axis.plot(length, size, "o", color=_INK, markersize=4)
    axis.annotate(
        text, (length, size), xytext=(6 * side, -3), textcoords="offset points", ha=align,
        va="top", annotation_clip=True,
    )  # fmt: skip


def plot_expressivity(
    path: Path, distances: np.ndarray, targets: Mapping[str, np.ndarray], fits: Sequence[Fit]
) -> None:
    """Draw functions of the distance, what harmonics make of them, and how far off they are.

    Args:
        path: The PNG file to write.
        distances: (L,), where the functions are known.
        targets: The functions, (L,) each; a column of the picture for each.
        fits: Of every target, by all means, with several numbers of harmonics.

    Raises:
        CheckpointError: The file cannot be written.
    """
    widths = sorted({fit.harmonics for fit in fits})
    shown = widths[len(widths) // 2]
    with rc_context(_LOOK):
        figure = Figure(figsize=(2.4 * len(targets), 4.8), layout="constrained")
        upper, lower = figure.subplots(2, len(targets), sharex="row", sharey="row", squeeze=False)
        for over, under, (name, wanted) in zip(upper, lower, targets.items(), strict=True):
            of_target = [fit for fit in fits if fit.target == name]
            over.set_title(name, loc="left", fontsize=10)
            over.plot(distances, wanted, color="#bbbbbb", linewidth=3.5, label="target")
            for means, look in _MEANS.items():
                found = [fit for fit in of_target if fit.means == means]
                line = {**look, "linewidth": 1.4}
                under.plot(widths, [fit.error for fit in found], **line, markersize=3.5)
                (fit,) = (fit for fit in found if fit.harmonics == shown)
                label = f"{means}, E = {shown}"
                over.plot(distances, fit.curve, **{**line, "marker": None}, label=label)
            under.set_xscale("log", base=2)
            under.set_yscale("log")
            under.set_xticks(widths, map(str, widths))
            under.set_xlabel("harmonics (head dim E)")
            over.set_xticks([0, 0.5, 1])
            over.set_xlabel("distance")
            under.grid(True)
        upper[0].set_ylabel("weight")
        lower[0].set_ylabel("error (root mean square)")
        handles, labels = upper[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
        _write(figure, path)


def _curve(axis: Axes, attention: str, rows: Sequence[Row], key: str) -> None:
    color, style = _STYLES.get(attention, _OTHERS)
    steps = np.array([row["step"] for row in rows])
    values = np.array([row[key] for row in rows], dtype=float)
    axis.plot(steps, values, color=color, alpha=0.22, linewidth=0.8)
    axis.plot(
        steps, _running_mean(values), color=color, linestyle=style, linewidth=1.8, label=attention
    )


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Average over a window around each step: a fortieth of the run, cut off at the run's ends."""
    half = max(1, len(values) // 80)
    sums = np.concatenate(([0.0], np.cumsum(values)))
    steps = np.arange(len(values))
    first, last = np.maximum(steps - half, 0), np.minimum(steps + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _finish_loss(axis: Axes, answer: str) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_ylabel(f"cross entropy (nats per {answer})")
    axis.grid(True)
    axis.legend(frameon=False, title="attention", title_fontsize=9)


def _finish_accuracy(axis: Axes, answer: str) -> None:
    axis.set_ylim(0, 1.03)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel(f"{answer}s right")
    axis.set_xlabel("step")
    axis.grid(True)


def _meaning(maps: Sequence[AttentionMap]) -> str:
    """Return what the colours say; weights of the delta rule are no shares."""
    if all(
        (layer.weights >= 0).all() and np.allclose(layer.weights.sum(axis=-1), 1, atol=1e-3)
        for layer in maps
    ):
        return "share of a query's attention (root scale)"
    return "weight of a value (root scale; below 0 as 0)"


def _draw_layer(axes: Iterable[Axes], layer: AttentionMap) -> None:
    for head, axis in enumerate(axes):
        axis.imshow(layer.weights[head], cmap=_SHARES, norm=PowerNorm(0.5, 0, 1))
        _label_tokens(axis, layer, rows=head == 0)
        if head == 0:
            axis.set_ylabel(layer.title, fontsize=8, labelpad=3)


def _label_tokens(axis: Axes, layer: AttentionMap, rows: bool) -> None:
    """Write the tokens along a heat map, as small as they have to be, or not at all."""
    size = min(7.0, 58 * _PITCH / max(len(layer.queries), len(layer.keys)))
    axis.tick_params(length=0, labelsize=size, pad=1.5)
    keys, queries = (layer.keys, layer.queries) if size >= 3 else ((), ())
    axis.set_xticks(range(len(keys)), keys)
    axis.set_yticks(range(len(queries) if rows else 0), queries if rows else ())


def _draw_image(axis: Axes, image: np.ndarray) -> None:
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    _draw_image_frame(axis)


def _draw_image_frame(axis: Axes) -> None:
    axis.set_xticks([])
    axis.set_yticks([])


def _finish_shares(axis: Axes, largest: float, labelled: bool) -> None:
    axis.set_ylim(0, 1.05 * largest)
    axis.set_xticks([])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.tick_params(length=2, labelsize=7, labelleft=labelled)
    axis.grid(True, axis="y")
    axis.set_axisbelow(True)


def _add_colorbar(figure: Figure, example: Axes, label: str) -> None:
    """Put the colour scale, three heat maps high at most, to the right of the middle."""
    width, height = figure.get_size_inches()
    tall = min(3 * _PITCH, height - 1.2)
    place = figure.add_axes(
        (1 - 0.68 / width, 0.5 - tall / 2 / height, 0.13 / width, tall / height)
    )
    bar = figure.colorbar(example.images[0], cax=place, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "5%", "20%", "50%", "100%"], fontsize=7)
    bar.ax.tick_params(length=2)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)


def _write(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    dpi = min(160.0, _LARGEST_SIDE / max(figure.get_size_inches()))
    figure.savefig(buffer, format="png", dpi=dpi)
    write_atomically(path, buffer.getvalue())

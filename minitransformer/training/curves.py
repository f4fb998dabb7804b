"""How a run learned: loss and accuracy against the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from ..plots import INK, line, picture
from .runs import Row

_DOTS: dict[str, Any] = {
    "linewidth": 1, "marker": "o", "markersize": 3.5, "markerfacecolor": "white"
}  # fmt: skip
_DOTTED: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (1, 2))}
_LEGEND_WIDTH = 100  # characters


def plot_training(
    path: Path,
    rows: Iterable[Row],
    title: str = "",
    answer: str = "token",
    baseline: Mapping[str, float] = MappingProxyType({}),
    *,
    legend: str = "attention",
) -> None:
    """Draw loss and accuracy against the steps, one curve for each attention.

    The measured values are drawn faintly, and over them their running mean; as dots, what was
    measured on data held out.

    Args:
        path: The PNG file to write.
        rows: Those of `metrics.jsonl`, of one run or of several.
        title: Stands above the picture.
        answer: What the loss is a mean of.
        baseline: The accuracies to beat, by whose they are.
        legend: What the rows call "attention".

    Raises:
        CheckpointError: The file cannot be written.
    """
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(row["attention"], []).append(row)
    with picture(path, (7.2, 5.4), title) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for number, (name, measured) in enumerate(curves.items()):
            _draw_curve(upper, measured, "loss", {**line(number), "label": name})
            _draw_curve(lower, measured, "accuracy", line(number))
        columns = [_column(measured, "held_out_accuracy") for measured in curves.values()]
        held_out = [shares[-1] for _, shares in columns if len(shares)]
        if held_out:
            lower.plot([], [], color=INK, **_DOTS, label="on data held out")
        for whose, share in baseline.items():
            lower.axhline(share, **_DOTTED, label=f"{whose}, {share:.1%}")
        _finish_loss(upper, answer)
        _finish_accuracy(lower, answer, [*held_out, *baseline.values()] if held_out else [])
        _add_legend(figure, legend)


def _draw_curve(axis: Axes, measured: Sequence[Row], key: str, look: Mapping[str, Any]) -> None:
    steps, values = _column(measured, key)
    axis.plot(steps, values, color=look["color"], alpha=0.22, linewidth=0.8)
    alone = {"marker": "o"} if len(values) == 1 else {}
    axis.plot(steps, _running_mean(values), **look, **alone, linewidth=1.8)
    axis.plot(*_column(measured, f"held_out_{key}"), color=look["color"], **_DOTS)


def _column(rows: Sequence[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps whose rows have a column, and what it says."""
    found = [(row["step"], row[key]) for row in rows if key in row]
    steps, values = np.array(found, float).reshape(-1, 2).T
    return steps, values


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Average over a window around each step: a fortieth of the run, cut off at the run's ends."""
    half = max(1, len(values) // 80)
    sums = np.concatenate(([0.0], np.cumsum(values)))
    steps = np.arange(len(values))
    first, last = np.maximum(steps - half, 0), np.minimum(steps + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _finish_loss(axis: Axes, answer: str) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(f"cross entropy (nats per {answer})")


def _finish_accuracy(axis: Axes, answer: str, told_apart: Sequence[float]) -> None:
    """Label the axis, which begins where shares near 1 that are to be told apart stand apart."""
    lowest = max(0.0, 1 - 4 * (1 - min(told_apart, default=0.0)))
    axis.set_ylim(lowest, 1 + 0.03 * (1 - lowest))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel(f"{answer}s right")
    axis.set_xlabel("step")


def _add_legend(figure: Figure, title: str) -> None:
    """Say below the picture what the curves are, in as many columns as have room."""
    labels = [label for axis in figure.axes for label in axis.get_legend_handles_labels()[1]]
    if not labels:
        return
    columns = _LEGEND_WIDTH // (8 + max(map(len, labels), default=0))
    place = {"loc": "outside lower left", "ncols": max(1, min(columns, len(labels)))}
    figure.legend(title=title, title_fontsize=9, alignment="left", **place)

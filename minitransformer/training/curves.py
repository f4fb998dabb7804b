"""How a run learned: loss and accuracy against the steps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from ..plots import LINES, picture
from .runs import Row


def plot_training(path: Path, rows: Iterable[Row], title: str = "", answer: str = "token") -> None:
    """Draw loss and accuracy against the steps, one curve for each attention.

    The measured values are drawn faintly, and over them their running mean.

    Args:
        path: The PNG file to write.
        rows: Those of `metrics.jsonl`.
        title: Stands above the picture.
        answer: What the loss is a mean of.

    Raises:
        CheckpointError: The file cannot be written.
    """
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(row["attention"], []).append(row)
    with picture(path, (7.2, 5.4), title) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for (attention, measured), line in zip(curves.items(), cycle(LINES), strict=False):
            for axis, key in ((upper, "loss"), (lower, "accuracy")):
                steps, values = (np.array([row[x] for row in measured]) for x in ("step", key))
                axis.plot(steps, values, color=line["color"], alpha=0.22, linewidth=0.8)
                axis.plot(steps, _running_mean(values), **line, linewidth=1.8, label=attention)
        _finish_loss(upper, answer)
        _finish_accuracy(lower, answer)


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

"""Train it, and be honest: losses of several seeds, where two times cross, and the scoreboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from . import BLUE, GREEN, GREY, INK, ORANGE, lengths_axis, panels

COLORS = {"softmax": ORANGE, "linear": BLUE}


def bands(losses: Mapping[str, Any], every: int, learned: float) -> Figure:
    """Draw the loss of each seed, and the band between the lowest and the highest.

    Args:
        losses: Of each attention, means over windows of steps: (seeds, windows).
        every: The steps of a window.
        learned: The loss from which on the task counts as learned.
    """
    figure, (axis,) = panels(1, 9, 4)
    for name, curves in losses.items():
        curves = np.asarray(curves)
        steps = every * np.arange(1, curves.shape[1] + 1)
        color = COLORS[name]
        axis.fill_between(steps, curves.min(0), curves.max(0), color=color, alpha=0.25, linewidth=0)
        axis.plot(steps, curves.T, color=color, linewidth=0.8, alpha=0.7)
        median = np.median(curves, axis=0)
        axis.plot(steps, median, color=color, linewidth=2.5, label=f"{name}, the median")
        axis.plot([], [], color=color, linewidth=0.8, alpha=0.7, label=f"{name}, each seed")
    axis.axhline(learned, color=GREY, linestyle=":", label="learned")
    axis.axhline(np.log(10), color=INK, linestyle="--", linewidth=1, label="a guess")
    axis.set(
        title=f"The loss of {len(curves)} seeds each, from the least to the largest", yscale="log",
        xlabel="steps", ylabel=f"loss a digit, mean of {every} steps",
    )  # fmt: skip
    axis.grid(True)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def crossing(
    printed: Mapping[str, Mapping[int, float]],
    fits: Mapping[str, Any],
    by_regression: tuple[float, float, float],
    measured: Mapping[str, Mapping[int, float]],
    crossed: tuple[float, float, float],
) -> Figure:
    """Draw printed times with the curves through them, and measured times.

    Args:
        printed: Seconds of 3,000 steps by attention and length, on a Quadro P4000.
        fits: Of each attention, a function of the length through these.
        by_regression: Where these cross; the least and the most if a length is left out.
        measured: Seconds of 3,000 steps on a processor.
        crossed: Where these cross; the least and the most, where those of a single repeat do.
    """
    figure, axes = panels(2, 10.5, 4.6)
    names = "S1's four lengths, and (F)", "Measured, this package on two cores"
    for axis, title, times, cross in zip(
        axes, names, (printed, measured), (by_regression, crossed), strict=True
    ):
        lengths = sorted({n for own in times.values() for n in own})
        for name, own in times.items():
            axis.plot(*zip(*own.items(), strict=True), "o", color=COLORS[name], label=name)
            if times is printed:
                reach = np.geomspace(lengths[0], 8192)
                axis.plot(reach, fits[name](reach), color=COLORS[name], linewidth=1)
            else:
                axis.plot(*zip(*own.items(), strict=True), color=COLORS[name], linewidth=1)
        told = "... if a length is left out" if times is printed else "... by single repeats"
        axis.axvline(cross[0], color=GREEN, label=f"the lines cross at {cross[0]:,.0f}")
        axis.axvspan(*cross[1:], color=GREEN, alpha=0.2, linewidth=0, label=told)
        lengths_axis(axis, [8, 64, 512, 4096] if times is printed else lengths)
        axis.set(title=title, ylabel="seconds of 3,000 steps")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def board(rows: Sequence[tuple[Any, ...]], front: Sequence[str], more: tuple[int, float]) -> Figure:
    """Draw what each row of the scoreboard recalls, against what it keeps.

    Args:
        rows: Lesson, name, numbers kept, work, share recalled, and more.
        front: Names that no other beats in both.
        more: Numbers kept and share of a softmax with a narrow head.
    """
    figure, (axis,) = panels(1, 9, 4.4)
    groups: dict[float, list[list[tuple[int, str]]]] = {}  # of neighbours, by the share
    for _, name, kept, _, share, *_ in sorted(rows, key=lambda row: row[2]):
        color = BLUE if name in front else GREY
        axis.plot(kept, share, "o", color=color, markersize=8)
        own = groups.setdefault(share, [])
        if own and kept <= 1.15 * own[-1][-1][0]:
            own[-1].append((kept, name))
        else:
            own.append([(kept, name)])
    for share, own in groups.items():
        for number, group in enumerate(own):
            alone, left = len(own) == 1, group[0][0] > 2000
            rise = 0 if alone else 9 if number % 2 == 0 else -9
            axis.annotate(
                "; ".join(name for _, name in group), (group[-1 if alone else 0][0], share),
                (-9 if left else 9, rise), textcoords="offset points",
                ha="right" if left else "left", va="center", fontsize=8.5,
            )  # fmt: skip
    axis.plot(*more, "D", color=ORANGE, markersize=7, label="trained longer, not in the table")
    axis.plot([], [], "o", color=BLUE, markersize=8, label="no other row of the table beats it")
    axis.plot([], [], "o", color=GREY, markersize=8, label="a row beats it (dots may coincide)")
    axis.legend(loc="lower right")
    axis.annotate(
        "softmax, E = 4", more, (9, 0), textcoords="offset points", va="center", fontsize=8.5
    )
    axis.set(
        title="Recall of 32 pairs against the numbers kept", xscale="log",
        xlabel="numbers kept", ylabel="recalled", ylim=(0, 1.08), xlim=(200, 6000),
    )  # fmt: skip
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.set_xticks([256, 512, 1024, 2048, 4096], ["256", "512", "1,024", "2,048", "4,096"])
    axis.xaxis.minorticks_off()
    axis.grid(True)
    return figure

"""A memory that corrects: what six writes leave, and a pair that comes again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from . import BLUE, GREEN, GREY, ORANGE, PINK, numbers, panels


def writes(keys: Sequence[int], asked: Sequence[int], weights: Mapping[str, Any]) -> Figure:
    """Draw how much of each value an answer has, when all writes are done.

    Args:
        keys: Under which key each value was written.
        asked: The keys that are asked for.
        weights: `(len(asked), len(keys))`, by the memory's name.
    """
    figure, axes = panels(len(weights), 3.9 * len(weights), 2.6)
    for axis, (name, array) in zip(axes, weights.items(), strict=True):
        numbers(axis, array, name, largest=1.0, digits=2)
        axis.set_xticks(range(len(keys)), [str(key) for key in keys])
        axis.set_yticks(range(len(asked)), [str(key) for key in asked])
        axis.set_xlabel("written under key, first to last  →")
    axes[0].set_ylabel("asked for key")
    return figure


def repeated(held: Mapping[float, Any]) -> Figure:
    """Draw what a memory holds under a key while one pair is written to it again and again.

    Args:
        held: After 0, 1, 2 ... writes, by the length of the key; the value is 1.
    """
    figure, (axis,) = panels(1, 8, 3.4)
    writes = range(9)
    axis.axhline(1, color=GREY, linewidth=1)
    for (length, values), color, marker in zip(
        held.items(), (GREEN, BLUE, PINK, ORANGE), "o^sD", strict=True
    ):
        axis.plot(
            writes, values[: len(writes)], color=color, marker=marker, markersize=5, linewidth=1.4,
            label=f"|k| = {length:g}",
        )  # fmt: skip
    axis.set(
        title="One pair, written again and again with rate 1", xlabel="writes",
        ylabel="held under the key (the value is 1)", ylim=(-1.7, 3.4),
    )  # fmt: skip
    axis.set_xticks(writes)
    axis.grid(True)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure

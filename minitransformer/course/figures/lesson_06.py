"""Move the sum: two feature maps, the two orders of a product, and time against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from ..measuring import Seconds, slope
from . import AMBER, BLUE, GREEN, GREY, ORANGE, SKY, box, canvas, lengths_axis, panels


def feature_map() -> Figure:
    """Draw elu(x) + 1 and relu(x), and their slopes."""
    figure, (left, right) = panels(2, height=3.2)
    x = np.linspace(-4, 3, 281)
    below = np.exp(np.minimum(x, 0))
    for axis, elu, relu, title in (
        (left, np.where(x > 0, x + 1, below), np.maximum(x, 0), "Feature"),
        (
            right,
            np.where(x > 0, 1, below),
            (x > 0) * 1.0,
            "Slope: what gradients are multiplied by",
        ),
    ):
        axis.axvline(0, color=GREY, linewidth=0.7)
        axis.plot(x, elu, color=BLUE)
        axis.plot(x, relu, color=ORANGE, linestyle=(0, (5, 1.5)))
        axis.set(title=title, xlabel="x", ylim=(-0.2, None))
        axis.grid(True)
    left.text(-0.25, 1.2, "elu(x) + 1", color=BLUE, ha="right")
    left.text(2.1, 1.4, "relu(x)", color=ORANGE)
    right.text(-0.95, 0.5, "elu + 1: never zero", color=BLUE, ha="right")
    right.text(-3.9, -0.12, "relu: zero, nothing is learned", color=ORANGE)
    return figure


def moving_the_sum(length: int, width: int) -> Figure:
    """Draw both orders of the product as matrices, each number as the same area.

    Args:
        length: L, the rows of all three matrices.
        width: E = M, their columns.
    """
    figure, (left, right) = panels(2, 10, 4.1)
    L, E, gap = length, width, 0.12 * length
    near, far = E + gap, E + L + 3 * gap

    canvas(left, "(φ(Q) φ(K)ᵀ) V: every query meets every key")
    box(left, 0, near, E, L, SKY, "φ(Q)\nL × E")
    box(left, near, 0, L, E, SKY, "φ(K)ᵀ   E × L")
    box(left, near, near, L, L, ORANGE, f"scores   L × L\n{L * L:,} numbers")
    box(left, far, near, E, L, AMBER, "V\nL × M")
    left.text(far - gap, near + L / 2, "×", ha="center", va="center", fontsize=16)

    canvas(right, "φ(Q) (φ(K)ᵀ V): keys and values meet first")
    box(right, 0, near, E, L, SKY, "φ(Q)\nL × E")
    right.text(E + gap, L + gap + E / 2, "×", ha="center", va="center", fontsize=16)
    box(right, E + 2 * gap, L + gap, L, E, SKY, "φ(K)ᵀ   E × L")
    box(right, far, 0, E, L, AMBER, "V\nL × M")
    box(right, far, L + gap, E, E, GREEN, "S\nE × M")
    right.text(far + E / 2, L + gap + E + 0.8, f"{E * E} numbers", ha="center", va="top")
    for axis in (left, right):
        axis.set_xlim(-1, far + E + 2 * gap)
        axis.set_ylim(E + L + gap + 3.5, -1)
    return figure


def lengths(lengths: Sequence[int], times: Mapping[str, Sequence[Seconds]]) -> Figure:
    """Draw the time of some attentions against length, with the slope of the last three points."""
    figure, (axis,) = panels(1, 7, 4)
    for (name, taken), color, marker in zip(times.items(), (ORANGE, BLUE), "so", strict=True):
        medians = [time.median for time in taken]
        axis.plot(lengths, medians, color=color, marker=marker, markersize=5)
        axis.fill_between(
            lengths, [t.lower for t in taken], [t.upper for t in taken], color=color, alpha=0.2
        )
        p = slope(lengths[-3:], medians[-3:])
        axis.annotate(
            f"{name}: slope {p:.2f}", (lengths[-1], medians[-1]), (-8, 8),
            textcoords="offset points", ha="right", color=color,
        )  # fmt: skip
    lengths_axis(axis, lengths)
    axis.set(title="Time of a forward, both directions", ylabel="seconds")
    return figure

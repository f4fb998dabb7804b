"""Better features: a bell that moves, how errors fall, and weights beside their estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from . import BLUE, GREY, ORANGE, numbers, panels


def bells(u: float) -> Figure:
    """Draw a bell curve, an exponential, and their product, which is a bell again."""
    figure, (axis,) = panels(1, 8, 3.2)
    t = np.linspace(-3.2, 5.4, 400)
    bell = np.exp(-t * t / 2)
    height = np.exp(u * u / 2)
    axis.plot(t, bell, color=BLUE)
    axis.plot(t, np.exp(u * t), color=GREY, linestyle=(0, (5, 1.5)))
    axis.plot(t, np.exp(u * t) * bell, color=ORANGE)
    axis.vlines([0, u], 0, [1, height], color=[BLUE, ORANGE], linewidth=1, linestyle=":")
    axis.text(-0.9, 0.8, "$e^{-t^2/2}$", color=BLUE, ha="right", fontsize=12)
    axis.text(u + 1.3, 0.72 * height, "their product: the same bell,", color=ORANGE)
    axis.text(u + 1.3, 0.6 * height, "moved by u, taller by $e^{u^2/2}$", color=ORANGE)
    axis.text(0.35, 1.75, f"$e^{{ut}}$, u = {u:g}", color=GREY, ha="right", fontsize=11)
    axis.set(xlabel="t", ylim=(0, 1.15 * height), title="A bell times an exponential")
    axis.grid(True)
    return figure


def errors(
    sizes: Sequence[int], predicted: Sequence[float], measured: Mapping[str, Sequence[float]]
) -> Figure:
    """Draw the typical relative error of an estimate against the number of features.

    Args:
        sizes: R.
        predicted: What equation (D) says of independent rows, for each.
        measured: By the kind of rows.
    """
    figure, (axis,) = panels(1, 7, 3.6)
    axis.plot(sizes, predicted, color=GREY, linewidth=1.5, linestyle="--", label="what (D) says")
    for (name, found), color, marker in zip(measured.items(), (ORANGE, BLUE), "so", strict=True):
        axis.plot(sizes, found, color=color, marker=marker, markersize=5, linewidth=1.2, label=name)
    axis.set(xscale="log", yscale="log", xlabel="features R", title="Typical relative error")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    ticks = [0.8 / 2**n for n in range(6)]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(True)
    axis.legend()
    return figure


def estimates(truth: Any, estimated: Mapping[int, Any]) -> Figure:
    """Draw softmax's weights and their estimates side by side.

    Args:
        truth: `(L, L)`, each row sums to 1.
        estimated: The same, by the number of features.
    """
    figure, axes = panels(1 + len(estimated), 2.3 * (1 + len(estimated)), 2.9)
    largest = float(truth.max())
    numbers(axes[0], truth, "softmax", largest, digits=2)
    for axis, (R, found) in zip(axes[1:], estimated.items(), strict=True):
        off = np.abs(found - truth).max()
        numbers(axis, found, f"R = {R}: off by {off:.2f}", largest, digits=2)
    axes[0].set_ylabel("queries")
    for axis in axes:
        axis.set_xlabel("keys")
    return figure

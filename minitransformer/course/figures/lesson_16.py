"""Under the microscope: banks, a ladder under its roof, and what it took in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer_kernels.gpu.gpus import BANKS, GPU

from ..measuring import Seconds
from . import BLUE, GREEN, GREY, INK, ORANGE, lengths_axis, panels


def banks(turns: Mapping[int, int], column: int = 5) -> Figure:
    """Draw a tile of 32 rows by its banks, for each length of a row.

    Args:
        turns: That a column takes, by the words of a row.
        column: The one that is marked.
    """
    figure, axes = panels(len(turns), 9, 4.2)
    for axis, (pitch, ways) in zip(axes, turns.items(), strict=True):
        bank = np.arange(BANKS * pitch).reshape(BANKS, pitch) % BANKS
        look = {"cmap": "viridis", "vmin": 0, "vmax": BANKS - 1, "aspect": "auto"}
        picture = axis.imshow(bank, **look)
        outline = Rectangle((column - 0.5, -0.5), 1, BANKS, fill=False, edgecolor=ORANGE, lw=2.5)
        axis.add_patch(outline)
        words = "1 turn" if ways == 1 else f"{ways} turns"
        axis.set(title=f"{pitch} words a row: {words} a column", yticks=[0, BANKS - 1])
        axis.set_xticks([0, column, pitch - 1])
        axis.set_xlabel("column")
    axes[0].set_ylabel("row")
    figure.colorbar(picture, ax=axes, label="bank", ticks=[0, 8, 16, 24, 31])
    return figure


def roofline(gpu: GPU, rungs: Mapping[str, float], share: float) -> Figure:
    """Draw the roof of a GPU, and kernels right below it.

    Args:
        gpu: The GPU.
        rungs: The intensity of each kernel, by its name.
        share: Of the GPU's peak, that their mixture of instructions allows.
    """
    figure, (axis,) = panels(1, 9, 4.6)
    peak, bandwidth = gpu.peak(4), gpu.bandwidth * 1e9
    ends = np.array([min(rungs.values()) / 2, 200.0])
    bend = np.sort([*ends, peak / bandwidth])
    axis.loglog(bend, np.minimum(peak, bend * bandwidth), color=INK)
    own = np.array([share * peak / bandwidth, ends[1]])
    axis.plot(own, [share * peak] * 2, color=GREY, linestyle=":")
    axis.text(ends[1], share * peak / 1.15, f"(A): {share * peak / 1e12:.3g}", ha="right", va="top")
    for number, (name, i) in enumerate(rungs.items(), 1):
        speed = min(share * peak, i * bandwidth)
        axis.plot(i, speed, "o", color=BLUE, markersize=7)
        side = {"ha": "right", "va": "bottom"} if number % 2 == 0 else {"va": "top"}
        away = (-8, 2) if number % 2 == 0 else (8, -6)
        axis.annotate(f"{number}  {name}", (i, speed), away, textcoords="offset points", **side)
    axis.text(ends[1], peak * 1.15, f"P = {peak / 1e12:g} TFLOP/s", ha="right", va="bottom")
    axis.annotate(
        f"B = {bandwidth / 1e12:g} TB/s", (1, bandwidth), (-8, 8), textcoords="offset points",
        ha="right",
    )  # fmt: skip
    axis.set(
        title=f"The roof of an {gpu.name}, float32", xlim=ends, ylim=(1e11, 3e14),
        xlabel="operations a byte, i", ylabel="operations a second, if no cache helps",
    )  # fmt: skip
    axis.grid(True)
    return figure


def ladder(counted: Mapping[str, float], taken: Mapping[str, Seconds], gpu: str) -> Figure:
    """Draw how long each rung takes by its counts, on a GPU, and how long it took on this CPU.

    Args:
        counted: Seconds by the counts, if no cache helps.
        taken: Seconds measured.
        gpu: Its name.
    """
    figure, (left, right) = panels(2, 9.5, 3.2)
    rows = np.arange(len(counted))[::-1]
    left.plot([1e6 * time for time in counted.values()], rows, "o", color=BLUE)
    left.set(title=f"By counts: on an {gpu}", xlabel="µs, if no cache helps")
    left.set_yticks(rows, [f"{number}  {name}" for number, name in enumerate(counted, 1)])
    medians = np.array([1e3 * time.median for time in taken.values()])
    ends = np.array([(1e3 * time.lower, 1e3 * time.upper) for time in taken.values()]).T
    reach = abs(ends - medians)
    right.errorbar(medians, rows, xerr=reach, fmt="o", color=GREEN, capsize=3, linewidth=1)
    right.set(title="By the clock: on this CPU", xlabel="ms, with quartiles")
    right.set_yticks(rows, [str(number) for number in range(1, len(counted) + 1)])
    for axis in (left, right):
        axis.set(xscale="log", ylim=(-0.6, len(counted) - 0.4))
        axis.grid(True)
    return figure


def waiting(
    lengths: Sequence[int], heads: Sequence[int], times: Mapping[str, Sequence[float]], least: float
) -> Figure:
    """Draw recorded times of the same work, in fewer and longer texts.

    Args:
        lengths: L.
        heads: How many there are, at each length.
        times: Milliseconds, by the algorithm.
        least: Milliseconds by (1), of all of them.
    """
    figure, (axis,) = panels(1, 8.5, 3.8)
    looks = zip((ORANGE, BLUE), "os", strict=True)
    for (name, values), (color, marker) in zip(times.items(), looks, strict=True):
        axis.plot(lengths, values, color=color, marker=marker, markersize=5, label=name)
    axis.axhline(least, color=GREY, linestyle=":", label="the bound by (1)")
    lengths_axis(axis, lengths)
    axis.set_xticks(lengths, [f"{L:,}\n{n:,}" for L, n in zip(lengths, heads, strict=True)])
    axis.set(
        title="Shaw's relative positions on an H100, recorded",
        xlabel="length L, and how many heads there are", ylabel="ms",
    )  # fmt: skip
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure

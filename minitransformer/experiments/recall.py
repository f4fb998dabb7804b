"""One scoreboard for all: 32 pairs are written to a memory, then each is asked for.

The task is multi-query associative recall (Arora et al. 2023, "Zoology"), on which every attention
of this house stands side by side: with as many numbers kept of the 32 pairs, and as many seconds to
learn. `course.recall` has the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn, no_grad
from ..course.recall import PAIRS, VALUES, recall
from ..nn.variant import attention_names, attention_variant
from ..plots import BLUE, GREEN, INK, ORANGE, SKY, VERMILION, band, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, table

WIDTHS = (4, 8, 16, 32, 64)
BUDGETS = (320, 1200, 4500)  # numbers of a state
SEEDS = 3
SECONDS = {"smoke": 0.2, "default": 6, "full": 60}
_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY, "#CC79A7", INK, "#8c8c8c", "#F0E442")


def kept(attention: str, width: int) -> int:
    """Return how many numbers an attention keeps of 32 pairs, of one head of that width."""
    variant = attention_variant(attention, 1, width)
    pairs = Tensor(np.zeros((1, 1, PAIRS, width), np.float32))
    with no_grad():
        return sum(math.prod(x.shape) for x in _arrays(variant.remember(pairs, pairs)))


def _arrays(state: Any) -> Iterator[Any]:
    if isinstance(state, tuple):
        for part in state:
            yield from _arrays(part)
    elif hasattr(state, "shape"):
        yield state


@cache
def widest(attention: str, budget: int) -> int | None:
    """Return the widest head whose state is within a budget; None where there is none."""
    return max((w for w in WIDTHS if kept(attention, w) <= budget), default=None)


def cases(scale: str) -> list[Case]:
    """Return each attention with each budget that it can keep to, several times."""
    names: Sequence[str] = attention_names()
    budgets: Sequence[int] = BUDGETS
    seeds = SEEDS
    if scale == "smoke":
        names, budgets, seeds = ("delta", "linear", "softmax"), BUDGETS[:1], 1
    return [
        {"attention": name, "budget": budget, "seed": seed, "seconds": SECONDS[scale]}
        for name in names
        for budget in budgets
        if widest(name, budget) is not None
        for seed in range(seeds)
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield which share of the pairs a memory recalls after so many seconds of learning."""
    name, width = case["attention"], widest(case["attention"], case["budget"])
    assert width is not None
    asked = Asked(attention_variant(name, 1, width))
    share = recall(asked, width, math.inf, case["seed"], case["seconds"])
    yield {"width": width, "kept": kept(name, width), "recalled": share}


class Asked(nn.Module):
    """An attention whose queries come after all pairs."""

    def __init__(self, variant: Any) -> None:
        self.variant = variant

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        """Return what is found, (N, 1, 32, E)."""
        return self.variant(query, key, value, query_offset=PAIRS)


def report(rows: list[Row]) -> Report:
    """Return the scoreboard, and the picture of it."""
    budgets = sorted({row["budget"] for row in rows})
    names = list(dict.fromkeys(row["attention"] for row in rows))

    def cell(name: str, budget: int) -> str:
        found = [r for r in rows if r["attention"] == name and r["budget"] == budget]
        if not found:
            return "-"
        shares = [row["recalled"] for row in found]
        return f"{np.mean(shares):.0%} ({found[0]['kept']:,} numbers, E = {found[0]['width']})"

    def last(name: str) -> float:
        found = [r for r in rows if (r["attention"], r["budget"]) == (name, budgets[-1])]
        return float(np.mean([row["recalled"] for row in found]))

    order = sorted(names, key=last, reverse=True)
    seeds = len({row["seed"] for row in rows})
    return Report(
        f"""
Which share of 32 pairs an attention recalls that may keep so many numbers of them, after
{rows[0]["seconds"]:g} seconds of learning; the mean of {seeds} seeds. A guess is right once in
{VALUES}. In brackets: the numbers that it does keep, and the width of its head.

{
            table(
                ["attention", *(f"up to {budget:,} numbers" for budget in budgets)],
                [[name, *(cell(name, budget) for budget in budgets)] for name in order],
            )
        }

With {budgets[-1]:,} numbers `{order[0]}` recalls most, {last(order[0]):.0%}, and `{order[-1]}`
least, {last(order[-1]):.0%}.

![the share recalled against the numbers kept](recall.png)
""",
        {"recall.png": partial(plot, rows=rows)},
    )


def plot(path: Path, rows: list[Row]) -> None:
    """Draw the share recalled against the numbers kept, a line for each attention."""
    with picture(path, (7.6, 4.2)) as figure:
        axis = figure.subplots()
        names = list(dict.fromkeys(row["attention"] for row in rows))
        for name, colour in zip(names, _COLOURS, strict=False):
            found: dict[int, list[float]] = {}
            for row in rows:
                if row["attention"] == name:
                    found.setdefault(row["kept"], []).append(row["recalled"])
            runs = np.transpose([*found.values()])
            band(axis, list(found), runs, color=colour, label=name, marker="o", markersize=4)
        axis.axhline(1 / VALUES, color="#999999", linestyle=":", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="numbers kept of 32 pairs", ylabel="share recalled", ylim=(0, 1.03))
        figure.legend(loc="outside right upper")


EXPERIMENT = Experiment(
    "recall",
    "Recall: every attention's memory on one scoreboard",
    'Multi-query associative recall, the task of Arora et al. 2023, "Zoology".',
    cases,
    run,
    report,
)

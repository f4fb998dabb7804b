"""What must tell a copying model where a symbol stands: nothing, a wave, a table, or a distance?

S0's model has no absolute positions at all: its attention knows distances, by Shaw's embeddings,
and Shaw et al. found that absolute ones add nothing to these. On the copy task each attention is
trained with each of the positions. Every model then copies fresh sequences: of the length that it
was trained on, and twice as long, where no table has an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..device import keep_freed_memory, resolve_device
from ..plots import BLUE, GREEN, INK, band, picture
from ..settings import Recipe
from ..tasks.copy import CopyTask, copy_sequences, fresh_sequences
from ..training import Trainer
from .experiment import Case, Experiment, Report, Row, supported, table

ATTENTIONS, POSITIONS = ("linear", "relative"), ("none", "sinusoidal", "learned")
SEEDS = {"smoke": 1, "default": 2, "full": 5}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"length": 6, "layers": 1, "heads": 2, "head_dim": 16, "steps": 4},
    "default": {"length": 16, "layers": 2, "heads": 4, "head_dim": 16, "steps": 600},
    "full": {"length": 64, "layers": 4, "heads": 8, "head_dim": 64, "steps": 3000},
}
FRESH = {"smoke": 4, "default": 256, "full": 256}
LEARNED = 0.99  # of the symbols: a model that copies


def cases(scale: str) -> list[Case]:
    """Return each attention with each of the positions and each seed."""
    return [
        {"attention": attention, "positions": positions, "seed": seed, **SIZES[scale],
         "fresh": FRESH[scale]}
        for seed in range(SEEDS[scale])
        for attention in ATTENTIONS
        for positions in POSITIONS
    ]  # fmt: skip


def run(case: Case) -> Iterator[Row]:
    """Yield how the loss fell, and which share of the symbols is copied right in the end."""
    keep_freed_memory()
    size = {name: case[name] for name in ("length", "layers", "heads", "head_dim", "positions")}
    task, steps = CopyTask(**size, seed=case["seed"]), case["steps"]
    recipe = Recipe(steps=steps, seed=case["seed"])
    trainer = Trainer(task, recipe, case["attention"], resolve_device("auto"))
    rows = [trainer.advance() for _ in tqdm(range(steps), label(case), unit="step", disable=None)]
    losses = np.array([row["loss"] for row in rows])
    parts = np.array_split(losses, min(50, steps))

    def right(length: int) -> float:
        fresh = fresh_sequences(length, case["seed"], case["fresh"])
        return copy_sequences(trainer.model, fresh).tokens_right

    longer = None if case["positions"] == "learned" else right(2 * task.length)
    curve = [round(float(part.mean()), 5) for part in parts]
    yield {"right": right(task.length), "longer": longer, "curve": curve}


def label(row: Row) -> str:
    """Return a model's attention and positions."""
    return f"{row['attention']}, {row['positions']}"


def report(rows: list[Row]) -> Report:
    """Return how well each copies, the claim, and how each learned."""
    one = rows[0]
    seeds = len({row["seed"] for row in rows})
    lines = list(dict.fromkeys((row["attention"], row["positions"]) for row in rows))

    def cell(attention: str, positions: str, key: str) -> str:
        shares = found(rows, attention, positions, key)
        if None in shares:
            return "-"
        ends = f" ({min(shares):.1%} to {max(shares):.1%})" if seeds > 1 else ""
        return f"{np.mean(shares):.1%}{ends}"

    length = one["length"]
    results = table(
        ["attention", "positions", f"length {length}", f"length {2 * length}"],
        [[*line, cell(*line, "right"), cell(*line, "longer")] for line in lines],
    )
    return Report(
        f"""
{one["layers"]} + {one["layers"]} layers, {one["heads"]} heads of {one["head_dim"]}, sequences of up
to {length} symbols, {one["steps"]:,} steps; as `minitransformer train copy` has them. Shown is the
share of the symbols of {one["fresh"]} fresh sequences that is copied right, the mean of {seeds}
seeds and in brackets the worst and the best. A guess is right once in ten.

{results}

{_claim(rows)}

![the loss of each attention with each of the positions](loss.png)
""",
        {"loss.png": partial(plot_losses, rows=rows)},
    )


def found(rows: list[Row], attention: str, positions: str, key: str) -> list[Any]:
    """Return a number of each seed."""
    wanted = attention, positions
    return [row[key] for row in rows if (row["attention"], row["positions"]) == wanted]


def _claim(rows: list[Row]) -> str:
    alone, added, neither = (
        float(np.mean(found(rows, *model, "right")))
        for model in (("relative", "none"), ("relative", "learned"), ("linear", "none"))
    )
    longer = float(np.mean(found(rows, "relative", "none", "longer")))
    return f"""*S0: with relative positions no absolute ones are needed.*
{supported(alone >= min(LEARNED, added))}. With distances alone {alone:.1%} of the symbols are
right, with learned positions beside them {added:.1%}; linear attention that has neither copies
{neither:.1%}. `minitransformer train copy --attention relative --positions none` is S0's model. It
goes on where it was not trained: twice as long, {longer:.1%} are right."""


_COLOURS = {"none": INK, "sinusoidal": GREEN, "learned": BLUE}


def plot_losses(path: Path, rows: list[Row]) -> None:
    """Draw the loss against steps, a panel for each attention; bands hold all seeds."""
    attentions = list(dict.fromkeys(row["attention"] for row in rows))
    with picture(path, (2.7 * len(attentions), 3.0)) as figure:
        axes = figure.subplots(1, len(attentions), sharey=True, squeeze=False)[0]
        for axis, attention in zip(axes, attentions, strict=True):
            axis.set_title(attention, loc="left", fontsize=10)
            for positions, colour in _COLOURS.items():
                curves = np.array(found(rows, attention, positions, "curve"))
                steps = np.linspace(0, rows[0]["steps"], curves.shape[1] + 1)[1:]
                name = positions if axis is axes[0] else None
                band(axis, steps, curves, color=colour, linewidth=1.4, label=name)
            axis.set_yscale("log")
            axis.set_xlabel("step")
        axes[0].set_ylabel("nats a symbol")
        figure.legend(loc="outside upper left", ncols=3, title="positions added")


EXPERIMENT = Experiment(
    "copy_positions",
    "Copying: what must tell where a symbol stands",
    "S0, after Shaw et al. 2018: no absolute positions are needed beside relative ones.",
    cases,
    run,
    report,
)

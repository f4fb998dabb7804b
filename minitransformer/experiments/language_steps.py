"""How long a training step of each model of `language` takes, and a character that it writes.

A step reads as many characters whatever the context is, so that what grows with it is attention's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..device import keep_freed_memory, resolve_device
from ..plots import picture
from ..settings import Recipe
from ..training import Trainer
from .experiment import Case, Experiment, Report, Row, table
from .language import MODELS, SIZES, Model, label, line_of, make_task, written

CONTEXTS = {"smoke": (16, 24), "default": (128, 512, 2048), "full": (512, 2048, 8192)}
STEPS = {"smoke": 2, "default": 7, "full": 30}


def cases(scale: str) -> list[Case]:
    """Return every model at every context, with as many characters in a step."""
    contexts = CONTEXTS[scale]
    return [
        {"attention": attention, "positions": positions, **SIZES[scale],
         "context": context, "batch": contexts[-1] // context, "steps": STEPS[scale]}
        for attention, positions in (MODELS[:4] if scale == "smoke" else MODELS)
        for context in contexts
    ]  # fmt: skip


def run(case: Case) -> Iterator[Row]:
    """Yield the median seconds of a step, the quickest and slowest, and those of a character."""
    keep_freed_memory()
    context, steps = case["context"], case["steps"]
    recipe = Recipe(case["batch"], steps + 1)
    trainer = Trainer(make_task(case), recipe, case["attention"], resolve_device("auto"))
    trainer.advance()  # compiles
    written(trainer.model, 8)
    taken = [timed(trainer.advance) for _ in range(steps)]
    character = timed(lambda: written(trainer.model, context)) / context
    yield {
        "step": float(np.median(taken)),
        "ends": [min(taken), max(taken)],
        "character": character,
    }


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report(rows: list[Row]) -> Report:
    """Return the times of all models, by context."""
    contexts = sorted({row["context"] for row in rows})
    models = {(row["attention"], row["positions"]): row for row in rows}
    times = {(row["attention"], row["positions"], row["context"]): row for row in rows}
    read = contexts[-1]

    def milliseconds(model: Model, key: str) -> list[str]:
        return [f"{1e3 * times[*model, context][key]:.3g}" for context in contexts]

    lines = [
        [label(row), *milliseconds(model, "step"), *milliseconds(model, "character")]
        for model, row in models.items()
    ]
    heads = [f"{what}, ms: {context:,}" for what in ("step", "character") for context in contexts]
    return Report(
        f"""
A step reads {read:,} characters: {read // contexts[0]} windows of {contexts[0]}, or one of
{read:,}. Its times are medians of {rows[0]["steps"]}; a character's is the mean of a whole window.

{table(["attention, positions", *heads], lines)}

{_claim(times, contexts)}

![milliseconds of a step and of a character, against the context](steps.png)
""",
        {"steps.png": partial(plot_steps, rows=rows)},
    )


def _claim(times: dict[tuple[str, str, int], Row], contexts: list[int]) -> str:
    if ("softmax", "none", contexts[0]) not in times:
        return ""

    def ratio(key: str, context: int) -> float:
        linear, softmax = (times[name, "none", context][key] for name in ("linear", "softmax"))
        return float(softmax / linear)

    said = [
        f"{ratio('step', context):.2f} times that of linear attention at {context:,} characters "
        f"({ratio('character', context):.2f} times for a character written)"
        for context in contexts
    ]
    faster = [context for context in contexts if ratio("step", context) > 1]
    verdict = f"supported from {faster[0]:,} characters on" if faster else "not supported here"
    return (
        f"*S1: linear attention is faster.* As a whole model, {verdict}. A step with softmax takes "
        f"{', '.join(said)}."
    )


def plot_steps(path: Path, rows: list[Row]) -> None:
    """Draw the time of a step, and of a character, against the context."""
    contexts = sorted({row["context"] for row in rows})
    with picture(path, (8.0, 3.6)) as figure:
        axes = figure.subplots(1, 2)
        for first in (row for row in rows if row["context"] == contexts[0]):
            same = [row for row in rows if label(row) == label(first)]
            for axis, key in zip(axes, ("step", "character"), strict=True):
                name = label(first) if key == "step" else None
                times = [1e3 * row[key] for row in same]
                axis.plot(contexts, times, **line_of(first), marker="o", markersize=3, label=name)
        for axis, what in zip(axes, ("a step", "a character"), strict=True):
            axis.set_xscale("log", base=2)
            axis.set_xticks(contexts, [f"{context:,}" for context in contexts])
            axis.set(xlabel="characters in a window", ylabel=f"ms for {what}")
            axis.set_ylim(bottom=0)
        figure.legend(loc="outside right upper")


EXPERIMENT = Experiment(
    "language_steps",
    "Language: how long a step of each model takes",
    "S1: linear attention scales linearly and is faster. Here whole models of `language`.",
    cases,
    run,
    report,
)

"""Models that learn to read handwritten digits, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...plots import band
from ...tasks.digits import DigitsTask
from ...training import Trainer
from ..experiment import Row

LOOKS = 20
COLUMNS = ["parameters", "images right", "from", "to", "loss"]


def learned(task: Any, attention: str, steps: int, seed: int) -> Row:
    """Train a model, and return how well it reads the images held out, on its way and at the end.

    Returns:
        `parameters`, how many; `curve`, of each look its step, the mean loss in training since the
        look before, and the share of images held out that are `right`; and the last two.
    """
    trainer = Trainer(task, replace(task.recipe, steps=steps, seed=seed), attention)
    looks, curve = min(LOOKS, steps), []
    for number in range(1, looks + 1):
        until = steps * number // looks
        losses = [trainer.advance()["loss"] for _ in range(trainer.step, until)]
        right = held_out_right(task, trainer.model.eval())
        trainer.model.train()
        curve.append((until, float(f"{np.mean(losses):.4g}"), round(right, 5)))
    _, loss, right = curve[-1]
    return {
        "parameters": trainer.model.num_parameters(), "right": right, "loss": loss, "curve": curve
    }  # fmt: skip


def held_out_right(task: DigitsTask, model: Any) -> float:
    """Return the share of the images held out that a model reads right."""
    images, labels = task.digits.held_out
    return float(np.mean(task.read(model, images).argmax(axis=-1) == labels))


def cells(rows: list[Row]) -> list[Any]:
    """Return what models that differ in their seeds give for `COLUMNS`."""
    right = [row["right"] for row in rows]
    shares = [f"{x:.2%}" for x in (np.mean(right), min(right), max(right))]
    loss = float(np.mean([row["loss"] for row in rows]))
    return [f"{rows[0]['parameters']:,}", *shares, loss]


def plot_learning(upper: Axes, lower: Axes, rows: list[Row], **line: Any) -> None:
    """Draw loss and images read wrong of models that differ in their seeds."""
    curves = np.array([row["curve"] for row in rows])  # (seeds, looks, 3)
    steps, losses, right = np.moveaxis(curves, 2, 0)
    band(upper, steps[0], losses, **line)
    band(lower, steps[0], 1 - right, **line)
    upper.set_ylabel("loss in training")
    lower.set_ylabel("held out, read wrong")
    for axis in (upper, lower):
        axis.set_yscale("log")
        axis.set_xlabel("step")

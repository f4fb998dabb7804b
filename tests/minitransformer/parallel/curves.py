"""Ranks that train every kind of task, on all groups of ranks that there are; rank 0 writes rows.

mpiexec -n 4 python -m tests.minitransformer.parallel.curves FILE KIND ...
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer import nn
from minitransformer.parallel import Grid, World
from minitransformer.parallel.ranks import ALONE, Alone, Together
from minitransformer.settings import Recipe
from minitransformer.tasks.copy import CopyTask
from minitransformer.tasks.digits import Digits, Split
from minitransformer.tasks.graph import GraphTask
from minitransformer.tasks.perceiver import PerceiverTask
from minitransformer.training import Trainer
from tests.minitransformer.line_task import LineTask, without_clock

from .running import run

Rows = list[dict[str, Any]]
RECIPE = Recipe(batch_size=10, steps=3, lr=1e-2, optimizer="adam", seed=3)


@dataclass(frozen=True)
class DroppingCopy(CopyTask):
    """The copy task with dropout."""

    def build(self, attention: Any) -> nn.Transformer:
        model = super().build(attention)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.2
        return model


def in_float64(task: Any) -> Any:
    """Give a digits task images in float64."""
    train, held_out = (Digits(x.images.astype(np.float64), x.labels) for x in task.digits)
    object.__setattr__(task, "digits", Split(train, held_out))
    return task


def graph() -> GraphTask:
    return in_float64(GraphTask(neighbours=2, heads=2, head_dim=4))


def perceiver() -> PerceiverTask:
    return in_float64(PerceiverTask(latents=3, heads=2, head_dim=4, dropout=0.2))


SMALL = {"length": 5, "layers": 1, "heads": 2, "head_dim": 4}
# By name: the task, which attention, and what is special about the recipe.
KINDS: dict[str, Any] = {
    "line": (LineTask, "linear", {}),
    "fewer examples than ranks": (LineTask, "linear", {"batch_size": 2}),
    "copy": (lambda: DroppingCopy(**SMALL), "linear", {}),
    "copy, softmax": (lambda: CopyTask(**SMALL), "softmax", {"optimizer": "sgd"}),
    "copy, few": (lambda: CopyTask(**SMALL), "linear", {"batch_size": 3}),
    "graph": (graph, "additive", {}),
    "graph, dot": (graph, "dot", {"batch_size": 7}),
    "graph, multi_head": (graph, "multi_head", {"batch_size": 7}),
    "perceiver": (perceiver, "softmax", {}),
    "perceiver, linear": (perceiver, "linear", {"batch_size": 5}),
}


def curve(kind: str, ranks: Alone) -> Rows:
    """Train from the start; return the rows without the clock's, and the sum of all parameters."""
    make, attention, special = KINDS[kind]
    task = make()
    trainer = Trainer(task, replace(RECIPE, **special), attention, ranks=ranks)
    for parameter in trainer.model.parameters():
        parameter.data = parameter.data.astype(np.float64)
    held_out = getattr(task, "held_out", lambda model: {})
    rows = []
    for _ in range(trainer.recipe.steps):
        rows.append(trainer.advance())
        rows[-1].update(held_out(trainer.model.eval()))
        trainer.model.train()
    state = {"all": float(sum(np.abs(x).sum() for x in trainer.model.state_dict().values()))}
    numbers = ({k: x for k, x in row.items() if isinstance(x, float)} for row in rows)
    return [*without_clock(numbers), state]


def by_one_group(kind: str, grid: Grid) -> Rows:
    rows = curve(kind, Together(grid))
    texts = grid.world.comm.allgather(json.dumps(rows))
    assert len(set(texts)) == 1, "each rank has another model"
    return rows


def by_all_groups(kind: str, everyone: World) -> dict[str, Rows]:
    """Return the curves of 1, 2, ... ranks, by how many; and that of one process, on rank 0."""
    found = {}
    for size in range(1, everyone.size + 1):
        world = everyone.split(int(everyone.rank >= size))
        if everyone.rank < size:
            rows = found[str(size)] = by_one_group(kind, Grid.of(world, size))
    assert curve(kind, Together(Grid.of(everyone, everyone.size))) == rows, "not the same bits"
    for shares in range(1, everyone.size):
        slices, rest = divmod(everyone.size, shares)
        if not (rest or kind.startswith(("line", "fewer", "graph"))):
            rows = by_one_group(kind, Grid.of(everyone, shares, slices))
            found[f"{shares}x{slices}"] = rows
    return found if everyone.rank else {**found, "alone": curve(kind, ALONE)}


def main(file: str, *kinds: str) -> None:
    everyone = World()
    found = {kind: by_all_groups(kind, everyone) for kind in kinds}
    if everyone.rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    run(main, *sys.argv[1:])

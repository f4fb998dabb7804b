"""What the ranks of a test run: models of tasks on a grid of ranks, held against one process.

    mpiexec -n 4 python -m tests.minitransformer.parallel.models 2 2 copy:linear perceiver:softmax

Rank 0 prints, for each model, how far loss, accuracy and gradients are from those of one process,
and how many bytes it sent.
"""

import json
import sys
from typing import Any

import numpy as np

import minitransformer as mt
from minitransformer import parallel, random
from minitransformer.tasks import share
from minitransformer.tasks.copy import CopyTask
from minitransformer.tasks.perceiver import PerceiverTask

from .curves import DroppingCopy
from .running import run

BATCH = 5
TASKS = {
    "copy": CopyTask(length=7, layers=1, heads=2, head_dim=4),
    "short": CopyTask(length=2, layers=1, heads=2, head_dim=4, positions="sinusoidal"),
    "dropping": DroppingCopy(length=7, layers=1, heads=2, head_dim=4),
    "perceiver": PerceiverTask(latents=3, heads=2, head_dim=4, dropout=0.2),
}


def model_of(name: str, attention: str) -> Any:
    """A small model in float64."""
    mt.manual_seed(0)
    model = TASKS[name].build(attention)
    for parameter in model.parameters():
        parameter.data = parameter.data.astype(np.float64)
    return model


def compared(grid: parallel.Grid, name: str, attention: str) -> dict[str, Any]:
    """How far the results on the grid are from those of one process."""
    task, model = TASKS[name], model_of(name, attention)
    batch = task.draw(np.random.default_rng(0), BATCH)
    if hasattr(batch, "images"):
        batch = batch._replace(images=batch.images.astype(np.float64))
    mt.manual_seed(1)
    loss, right = task.loss(model, batch)
    loss.backward()
    expected = {x: p.grad.data for x, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    mt.manual_seed(1)
    part = share(BATCH, grid.data.rank, grid.data.size)
    mine = task.cut(task.take(batch, part), grid.sequence.rank, grid.sequence.size)
    grid.sequence.forget()
    with random.part_of((part, BATCH)), parallel.along_sequence(model, grid.sequence):
        own_loss, own_right = task.loss(model, mine)
        own_loss.backward()
    told = grid.world.sum(np.array([own_loss.item(), own_right]))
    largest = max(abs(gradient).max() for gradient in expected.values())
    gradients = {
        x: grid.world.sum(np.zeros(p.shape) if p.grad is None else p.grad.data)
        for x, p in model.named_parameters()
        if x in expected
    }
    off = max(abs(gradients[x] - expected[x]).max() / largest for x in expected)
    told -= [loss.item(), right]
    restored = all("forward" not in vars(module) for module in model.modules())
    return {"off": float(max(off, *abs(told))), "bytes": grid.sequence.bytes, "restored": restored}


def main() -> None:
    """Compare what the command line names."""
    data, sequence, *names = sys.argv[1:]
    grid = parallel.Grid.of(parallel.World(), int(data), int(sequence))
    found = {name: compared(grid, *name.split(":")) for name in names}
    if grid.world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    run(main)

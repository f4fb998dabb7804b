"""Ranks of which one comes to an end, or all.

mpiexec -n 3 python -m tests.minitransformer.parallel.ending FOLDER HOW
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.errors import UserError
from minitransformer.parallel import World
from minitransformer.parallel.ranks import Together, together, watched
from minitransformer.settings import Recipe
from minitransformer.training import Interruption, Run, Trainer, train
from tests.minitransformer.line_task import LineTask

RECIPE = Recipe(batch_size=8, steps=20, lr=0.05)
STEP = 7


def fail() -> None:
    raise ValueError("no such thing")


def refuse() -> None:
    raise UserError("nothing to learn from")


def one(number: int) -> Any:
    return lambda: os.kill(os.getpid(), number)


# What happens on which rank; None: on all.
HOW: dict[str, tuple[int | None, Any]] = {
    "raises": (1, fail),
    "refuses": (2, refuse),
    "all refuse": (None, refuse),
    "all raise": (None, fail),
    "is killed": (1, one(signal.SIGKILL)),
    "the first is killed": (0, one(signal.SIGKILL)),
    "leaves": (2, lambda: os._exit(3)),
    "leaves as if done": (1, lambda: os._exit(0)),
    "is asked to stop": (2, one(signal.SIGTERM)),
    "goes on": (0, lambda: None),
}


class Ending(LineTask):
    """At a step, one rank ends."""

    def __init__(self, ranks: Together, how: str) -> None:
        super().__init__()
        self.who, self.end = HOW[how]
        self.rank = ranks.rank

    def draw(self, generator: np.random.Generator, count: int) -> Any:
        if self.drawn + 1 == STEP and self.who in (None, self.rank):
            self.end()
        return super().draw(generator, count)


def patch_sum() -> None:
    """Let this rank find a sum that is another in its last digit."""
    whole = World.start_sum

    def start_sum(world: World, array: Any) -> Any:
        wait = whole(world, array)
        return lambda: np.nextafter(wait(), np.float32(np.inf), dtype=np.float32)

    World.start_sum = start_sum


def main(folder: str, how: str) -> int:
    run = Run(Path(folder))
    with watched() as tell, together(World(), tell) as ranks:
        if how == "adds otherwise" and ranks.rank == 1:
            patch_sum()
        with Interruption(ranks) as interruption:
            trainer = Trainer(Ending(ranks, how), RECIPE, "linear", ranks=ranks)
            ranks.agree(lambda: {"--lr": str(0.1 + (how == "differs") * ranks.rank)}, "be equal")
            train(trainer, run, interruption, quiet=True)
            stopped = interruption.agreed()
        end = f"rank {ranks.rank} is at step {trainer.step}, signal {stopped}\n"
        os.write(1, end.encode())  # in one piece
    return 0


if __name__ == "__main__":
    HOW["differs"] = HOW["adds otherwise"] = HOW["goes on"]
    try:
        code = main(*sys.argv[1:])
    except UserError as error:
        code = print(f"error: {error}", file=sys.stderr) or error.exit_code
    sys.exit(code)

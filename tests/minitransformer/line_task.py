"""A task for tests of the loop itself: a straight line, learned without any attention kernel."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from minitransformer import Tensor, nn
from minitransformer import functions as F
from minitransformer.training import Run

Batch = tuple[Tensor, Tensor]


class LineTask:
    """Find y = 3 x - 1 from noisy points; dropout makes each step depend on the engine's generator.

    Args:
        spoilt: The first step whose data are not numbers.
    """

    examples: ClassVar[str] = "sequences"

    def __init__(self, spoilt: int = 10**9) -> None:
        self.drawn, self.spoilt = 0, spoilt

    def build(self, attention: str) -> Any:
        return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def draw(self, generator: np.random.Generator, count: int) -> Batch:
        self.drawn += 1
        x = generator.standard_normal((count, 2), np.float32)
        y = (
            3 * x.sum(1, keepdims=True)
            - 1
            + 0.1 * generator.standard_normal((count, 1), np.float32)
        )
        return Tensor(x), Tensor(y if self.drawn < self.spoilt else y * np.nan)

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, float]:
        x, y, *whole = batch
        (answers,) = whole or (y.size,)
        found = model(x)
        right = np.abs(found.numpy() - y.numpy()) < 1
        return F.mse_loss(found, y, reduction="sum") / answers, float(right.sum() / answers)

    def take(self, batch: Batch, part: slice) -> Any:
        x, y = batch
        return x[part], y[part], y.size


def run_in(folder: Path) -> Run:
    """A new run in a folder."""
    run = Run(folder)
    run.create({})
    return run


def without_clock(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that the clock decides."""
    return [{key: x for key, x in row.items() if "second" not in key} for row in rows]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows of the run in a folder, without those columns."""
    return without_clock(Run(folder).rows())

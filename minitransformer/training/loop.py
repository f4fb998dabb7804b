"""Training: a loop that can be killed at any moment and continued as if nothing had happened.

`Trainer` holds everything that a step depends on: the model, the optimizer, where the generators
of the data and of the engine stand, and how many steps were taken. All of it goes into a
checkpoint, so that on the CPU a resumed run repeats the interrupted one bit for bit. `train` is the
loop around it, with a progress bar and a checkpoint at step 0, every few seconds, on the first
Ctrl-C, and at the end.

Where several ranks share the batches, each has such a trainer and goes through the same loop; what
they exchange is in `minitransformer.parallel`. Rank 0 alone writes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from .. import optim
from .. import random as engine_random
from ..device import keep_freed_memory, to_numpy
from ..errors import UserError
from ..parallel.ranks import ALONE, Alone
from ..settings import OPTIMIZERS, Recipe
from ..tasks import Task
from .checkpoint import Checkpoint, CheckpointError, check_same_tensors, load, save
from .runs import Row, Run

_SECONDS_BETWEEN_CHECKPOINTS = 15.0
_LARGEST_GRADIENT_NORM = 1.0
_EXAMINATIONS = 20  # in a run
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REMEDY = "the last checkpoint is kept; start again in another folder, with a smaller --lr"
Examine = Callable[[Any], Mapping[str, float]]
"""What to measure of a model: numbers by the names of their columns."""


class TrainingError(UserError):
    """Training cannot go on; the text says why and what to do."""


class Trainer:
    """One model on its way through a task.

    Args:
        task: What to learn.
        recipe: How to train.
        attention: Which of the task's attentions, such as "linear" or "softmax".
        device: "cpu" or "cuda".
        ranks: Who shares the batches.

    Attributes:
        model: The model in its present state.
        step: How many steps were taken.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        attention: str,
        device: str = "cpu",
        ranks: Alone = ALONE,
    ) -> None:
        self.task, self.recipe, self.attention, self.ranks = task, recipe, attention, ranks
        engine_random.manual_seed(recipe.seed)
        self.generator = np.random.default_rng(recipe.seed)
        self.model = task.build(attention).to(device)
        self.optimizer = make_optimizer(recipe, self.model)
        self.step = 0

    def advance(self) -> Row:
        """Take one step, and return its row of metrics.

        Raises:
            TrainingError: The loss or a gradient is not finite.
        """
        start = time.perf_counter()
        count = self.recipe.batch_size
        batch = self.task.draw(self.generator, count)
        lr = self.optimizer.learning_rate
        self.optimizer.zero_grad()
        loss, accuracy = self.ranks.differentiate(self.task, self.model, batch, count)
        norm = optim.clip_grad_norm_(self.model.parameters(), _LARGEST_GRADIENT_NORM)
        self._require_finite(loss, norm)
        self.optimizer.step()
        self.step += 1
        seconds = time.perf_counter() - start
        return {
            "attention": self.attention,
            "step": self.step,
            "loss": loss,
            "accuracy": accuracy,
            "lr": lr,
            "grad_norm": norm,
            "seconds": round(seconds, 6),
            f"{self.task.examples}_per_second": round(count / seconds, 3),
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """Return a copy of the arrays of the trainer's state, on the CPU."""
        return {
            **{f"model.{name}": array for name, array in self.model.state_dict().items()},
            **{f"optimizer.{name}": array for name, array in self.optimizer.state_dict().items()},
        }

    def save(self, path: Path) -> None:
        """Save the whole state.

        Raises:
            CheckpointError: It cannot be written; what `path` held before is intact.
            TrainingError: It is not finite; nothing is written.
        """
        tensors = self.tensors()
        if spoilt := _not_finite(tensors):
            raise TrainingError(f"step {self.step}: {spoilt} is no longer finite; {_REMEDY}")
        metadata = {
            "step": self.step,
            "parameters": self.model.num_parameters(),
            "data_generator": self.generator.bit_generator.state,
            "engine_generator": engine_random.get_state(),
        }
        save(path, tensors, metadata)

    def restore(self, path: Path) -> None:
        """Continue from where `save` was called.

        Raises:
            CheckpointError: The file is missing or damaged, or belongs to another model.
        """
        checkpoint = load(path)
        check_same_tensors(path, self.tensors(), checkpoint.tensors)
        step = self._checked_step(path, checkpoint)
        self.model.load_state_dict(checkpoint.part("model"))
        self.optimizer.load_state_dict(checkpoint.part("optimizer"))
        try:
            self.generator.bit_generator.state = checkpoint.metadata["data_generator"]
            engine_random.set_state(checkpoint.metadata["engine_generator"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: no state of the generators ({error})") from error
        self.step = step

    def _checked_step(self, path: Path, checkpoint: Checkpoint) -> int:
        """Return a checkpoint's step, if a run like this one can have written it.

        Raises:
            CheckpointError: It cannot.
        """
        step = checkpoint.metadata.get("step")
        if type(step) is not int or not 0 <= step <= self.recipe.steps:
            raise CheckpointError(
                f"{path}: was saved at step {step!r}, expected one from 0 to the "
                f"{self.recipe.steps} of this run; restore the file, or train again"
            )
        if spoilt := _not_finite(checkpoint.tensors):
            raise CheckpointError(
                f"{path}: {spoilt} holds numbers that are not finite; restore the file, or "
                "train again"
            )
        return step

    def _require_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        gradients = {
            name: to_numpy(parameter.grad.data)
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        spoilt = _not_finite(gradients)
        where = (
            f"{spoilt} is the first parameter whose gradient is not finite"
            if spoilt
            else "each gradient is finite"
        )
        raise TrainingError(f"step {self.step + 1}: the loss is {loss}, and {where}; {_REMEDY}")


def _not_finite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the first array that holds NaN or infinity."""
    return next((name for name, array in arrays.items() if not np.isfinite(array).all()), None)


def make_optimizer(recipe: Recipe, model: Any) -> optim.Optimizer:
    """Return the optimizer of a recipe, whose rate warms up and falls along a cosine."""
    made: Callable[..., optim.Optimizer] = getattr(optim, OPTIMIZERS[recipe.optimizer])
    schedule = optim.warmup(recipe.steps // 10, optim.cosine(recipe.lr, recipe.steps))
    return made(model.parameters(), lr=schedule)


class Interruption:
    """Turns the first Ctrl-C or SIGTERM inside a `with` into a request; a second one acts at once.

    A step that is cut in the middle leaves a model that is neither here nor there, so the loop
    takes the step to its end, saves, and then obeys.

    Args:
        ranks: Who has to stop at the same step; rank 0 talks.

    Attributes:
        signal: The signal that came to this process, or None.
    """

    def __init__(self, ranks: Alone = ALONE) -> None:
        self.signal: int | None = None
        self._ranks = ranks
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def agreed(self) -> int | None:
        """Return the signal that has come to any rank, or None; all ranks ask at once."""
        return self._ranks.highest(self.signal or 0) or None

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.__exit__()
        if self._ranks.rank == 0:
            # Not print: the signal may have come while stderr was being written to.
            os.write(2, b"\nfinishing this step, then saving; once more stops at once\n")


def train(
    trainer: Trainer,
    run: Run,
    interruption: Interruption,
    *,
    examine: Examine = lambda model: {},
    quiet: bool = False,
) -> None:
    """Train from where the run stands to the last step, or until interrupted.

    Args:
        trainer: What to train.
        run: Where its files are.
        interruption: When to stop early.
        examine: What to measure of the model, in evaluation, some twenty times in the run.
        quiet: Whether to show no progress.

    Raises:
        CheckpointError: Nothing can be written, another process trains this run, or what is there
            cannot be continued; the last checkpoint is intact.
        TrainingError: The loss, a gradient or a parameter is not finite; the last checkpoint is
            intact.
    """
    keep_freed_memory()
    quietly = np.errstate(over="ignore", invalid="ignore")  # what explodes is found, and told
    with ExitStack() as held, quietly:
        trainer.ranks.first(lambda: held.enter_context(run.held()))
        _train(trainer, run, interruption, examine, quiet)


def _train(
    trainer: Trainer, run: Run, interruption: Interruption, examine: Examine, quiet: bool
) -> None:
    resume(trainer, run)
    trainer.ranks.first(lambda: run.extend(trainer.recipe.steps))
    steps = _steps(trainer, interruption, examine)
    if trainer.ranks.rank:
        for _ in steps:
            pass  # rank 0 writes, here as everywhere
        return
    path = run.checkpoint_path(trainer.attention)
    if trainer.step == 0:
        trainer.save(path)
    with run.metrics() as metrics, _progress_bar(trainer, quiet) as bar:
        saved = time.monotonic()
        for row in steps:
            metrics.append(row)
            _show(bar, row, trainer.task.examples)
            if time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                metrics.sync()
                trainer.save(path)
                saved = time.monotonic()
        metrics.sync()
    trainer.save(path)


def _steps(trainer: Trainer, interruption: Interruption, examine: Examine) -> Iterator[Row]:
    """Take the steps that are left, and yield the row of each."""
    while trainer.step < trainer.recipe.steps and not interruption.agreed():
        yield {**trainer.advance(), **_examined(trainer, examine)}


def resume(trainer: Trainer, run: Run) -> None:
    """Bring a new trainer, and the rows of its run, to the state of the last checkpoint.

    Rows that were written after the checkpoint are dropped: the trainer will write them again. A
    run that was killed before its first row starts from the beginning.

    Raises:
        CheckpointError: The checkpoint is missing, damaged or of another model, or rows are
            missing.
        UserError: The ranks do not see the same files.
    """
    trainer.ranks.agree(
        lambda: run.digests(trainer.attention), "the run's folder must be one that all of them see"
    )
    rows = run.rows()
    taken = sum(row["attention"] == trainer.attention for row in rows)
    path = run.checkpoint_path(trainer.attention)
    if taken or path.exists():
        trainer.restore(path)
    if taken < trainer.step:
        raise CheckpointError(
            f"{run.metrics_path}: holds {taken} steps of {trainer.attention} attention, expected "
            f"the {trainer.step} of its checkpoint; restore the file, or train again"
        )
    kept = (
        row for row in rows if row["attention"] != trainer.attention or row["step"] <= trainer.step
    )
    trainer.ranks.first(lambda: run.replace_rows(kept))


def _examined(trainer: Trainer, examine: Examine) -> Mapping[str, float]:
    """Return what there is to measure after this step: at most of them nothing."""
    steps = trainer.recipe.steps
    if trainer.step % max(1, steps // _EXAMINATIONS) and trainer.step < steps:
        return {}
    found = examine(trainer.model.eval())
    trainer.model.train()
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _progress_bar(trainer: Trainer, quiet: bool) -> tqdm[Any]:
    bar = tqdm(
        desc=f"{trainer.attention:7}",
        total=trainer.recipe.steps,
        initial=trainer.step,
        unit="step",
        dynamic_ncols=True,
        disable=quiet,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
    )
    bar.set_postfix_str("the first step compiles the kernels")
    return bar


def _show(bar: tqdm[Any], row: Row, examples: str) -> None:
    if bar.disable:
        return
    if bar.n == bar.initial:
        bar.unpause()  # the time that compiling took says nothing about the time left
    bar.set_postfix_str(
        f"loss {row['loss']:.4f}, accuracy {row['accuracy']:.1%}, "
        f"{row[f'{examples}_per_second']:.0f} {examples}/s",
        refresh=False,
    )
    bar.update()

"""What a model can be taught here; each task is a folder, and draws its own data.

A task says how to build a model, how to draw a batch, and how wrong the model is on it. With that,
`minitransformer.training` can train it. To be a command, it also says what there is to see when the
model is trained, and lets it answer a user. The settings of `minitransformer train` that are the
task's own are fields of its class.

Help asks every task, so a task's `__init__` is quick to import: `mt.nn` is loaded when it is first
named, and pictures where they are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..settings import DEVICE, Option, Recipe, integer, options_of, several
from ..tensor import Tensor

Models = Mapping[str, Any]
"""Trained models, in evaluation, by their attention, as `build` knows it."""


class Compared(NamedTuple):
    """The setting that says which models are trained, one after the other, to compare them."""

    setting: str  # its name
    names: Iterable[str]  # what can be trained
    pair: tuple[str, str]  # what "both" stands for
    default: str  # what is trained by default
    help: str  # what the setting decides


class Page(NamedTuple):
    """What the command line says of a task."""

    summary: str  # what is learned, in a line
    description: str  # what the training does
    usage: str  # command lines, the last ones of the help
    command: str  # the command that lets a trained model answer a user
    invitation: str  # to do that, in words


class Task(Protocol):
    """What the training loop asks of a task."""

    examples: ClassVar[str]  # what a batch is made of, such as "sequences"

    def build(self, attention: str) -> Any:
        """Return a new `nn.Module`, its start drawn from the engine's generator.

        Args:
            attention: Which attention its layers use, such as "linear" or "softmax".
        """

    def draw(self, generator: np.random.Generator, count: int) -> Any:
        """Return a batch of `count` examples that `loss` understands, drawn from the generator."""

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, float]:
        """Return the differentiable loss, and the share of answers that are right, from 0 to 1.

        Both are means over the answers of the batch.
        """


class Divisible(Task, Protocol):
    """What is asked of a task whose batches several processes share."""

    def take(self, batch: Any, part: slice) -> Any:
        """Return some of a batch's examples; `loss` gives their summand of the batch's means."""

    def cut(self, batch: Any, rank: int, size: int) -> Any:
        """Return what one of some ranks gets, all of which work on each sequence of the batch.

        `loss`, within `parallel.along_sequence`, gives its summand of the batch's means.
        """


def share(count: int, rank: int, size: int) -> slice:
    """Return which of so many are a rank's: as many as others', or one more on the first ranks.

    >>> [share(10, rank, 4) for rank in range(4)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    each, more = divmod(count, size)
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))


class Command(Divisible, Protocol):
    """What `minitransformer train` asks of a task beside.

    Attributes:
        answer: What the loss is a mean of, such as "token".
        most_examples: In a batch.
        compared: Which models can be trained.
        recipe: How, by default.
        page: What the help says.
    """

    answer: ClassVar[str]
    most_examples: ClassVar[float]
    compared: ClassVar[Compared]
    recipe: ClassVar[Recipe]
    page: ClassVar[Page]

    @property
    def title(self) -> str:
        """What was learned, by a model of which size: the title of the curves."""

    @property
    def baseline(self) -> Mapping[str, float]:
        """The shares of right answers that a model has to beat, by whose they are."""

    def held_out(self, model: Any) -> Mapping[str, float]:
        """Return how good a model is on data that it never learns from, for a curve of that.

        That is "held_out_loss" and "held_out_accuracy"; or nothing, where every batch is new.
        """

    @property
    def sample(self) -> str:
        """A text that `parse` understands."""

    def report(self, models: Models, seconds: Mapping[str, float]) -> list[str]:
        """Return how good the models are on data that they never saw, in lines for a terminal.

        Args:
            models: The trained models.
            seconds: How long each was trained.
        """

    def draw_attention(self, path: Path, attention: str, model: Any) -> None:
        """Draw where a trained model looks, to a PNG file.

        Raises:
            CheckpointError: The file cannot be written.
        """

    def parse(self, text: str) -> Any:
        """Return the question that a user typed.

        Raises:
            ValueError: It is not one; the text says what was expected.
        """

    def respond(self, models: Models, question: Any) -> list[str]:
        """Return what the models answer to a question of `parse`, in lines for a terminal."""


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks: those of the folders here."""
    return tuple(module.name for module in iter_modules(__path__) if module.ispkg)


def task_class(name: str) -> Any:
    """Return the class of a task, such as `CopyTask` of "copy"."""
    return getattr(import_module(f".{name}", __name__), f"{name.capitalize()}Task")


def make_task(name: str, settings: Mapping[str, Any]) -> Command:
    """Return a task.

    Args:
        name: Of its folder.
        settings: By name; those that are not fields of the task do not matter.
    """
    made = task_class(name)
    own = [field.name for field in fields(made) if field.init]
    task: Command = made(**{field: settings[field] for field in own})
    return task


def task_options(task: type[Command]) -> dict[str, Option]:
    """Return all settings of a training by name, with the defaults of this task."""
    compared, recipe = task.compared, options_of(Recipe)
    recipe["batch_size"] = Option(0, integer(1, task.most_examples), f"{task.examples} in a step")
    return {
        compared.setting: Option(
            compared.default,
            several(compared.names, both=compared.pair),
            f"{compared.help}, one or more of {', '.join(compared.names)}; "
            f"both is {' '.join(compared.pair)}",
        ),
        **options_of(task),
        **{name: x._replace(default=getattr(task.recipe, name)) for name, x in recipe.items()},
        "device": DEVICE,
    }

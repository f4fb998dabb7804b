"""What a model can be taught here; each task is a module that draws its own data.

A task says how to build a model, how to draw a batch, and how wrong the model is on it. With that,
`minitransformer.training` can train it. To be a command, it also says what there is to see when the
model is trained, and lets it answer a user. The settings of `minitransformer train` that are the
task's own are the fields of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..tensor import Tensor

Models = Mapping[str, Any]
"""Trained models, in evaluation, by their attention, as `build` knows it."""


class Task(Protocol):
    """What the training loop asks of a task.

    Attributes:
        examples: What a batch is made of, such as "sequences".
    """

    examples: ClassVar[str]

    def build(self, attention: str) -> Any:
        """Return a new `nn.Module`, its start drawn from the engine's generator.

        Args:
            attention: Which attention its layers use, such as "linear" or "softmax".
        """

    def draw(self, generator: np.random.Generator, count: int) -> Any:
        """Return a batch that `loss` understands.

        Args:
            generator: Where all randomness comes from.
            count: How many examples.
        """

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, float]:
        """Return the differentiable loss, and the share of answers that are right, from 0 to 1.

        Args:
            model: What `build` returned.
            batch: What `draw` returned.
        """


class Command(Task, Protocol):
    """What `minitransformer train` asks of a task beside.

    Attributes:
        answer: What the loss is a mean of, such as "token".
    """

    answer: ClassVar[str]

    @property
    def title(self) -> str:
        """What was learned, by a model of which size: the title of the curves."""

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
        """Draw where a trained model looks.

        Args:
            path: The PNG file to write.
            attention: The model's.
            model: What `build` returned, trained.

        Raises:
            CheckpointError: The file cannot be written.
        """

    def parse(self, text: str) -> Any:
        """Return the question that a user typed.

        Raises:
            ValueError: It is not one; the text says what was expected.
        """

    def respond(self, models: Models, question: Any) -> list[str]:
        """Return what the models answer, in lines for a terminal.

        Args:
            models: The trained models.
            question: What `parse` returned.
        """


def make_task(name: str, settings: Mapping[str, Any]) -> Command:
    """Return a task; its module is imported only now.

    Args:
        name: Of the module.
        settings: By name; those that are not fields of the task do not matter.
    """
    made = getattr(import_module(f".{name}", __name__), f"{name.capitalize()}Task")
    own = [field.name for field in fields(made) if field.init]
    task: Command = made(**{field: settings[field] for field in own})
    return task


class AttentionMap(NamedTuple):
    """The weights of one attention layer on one sequence, ready to be drawn.

    Attributes:
        title: What the layer is, such as "decoder 1, cross".
        weights: (H, Lq, Lk), of each value in the output; mostly shares, rows that sum to 1.
        queries: The Lq labels of the rows.
        keys: The Lk labels of the columns.
    """

    title: str
    weights: np.ndarray
    queries: tuple[str, ...]
    keys: tuple[str, ...]

"""What a model can be taught here; each task is a module that draws its own data.

A task says how to build a model, how to draw a batch, and how wrong the model is on it. With that,
`minitransformer.training` can train it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..tensor import Tensor


class Task(Protocol):
    """What the training loop asks of a task."""

    def build(self, attention: str) -> Any:
        """Return a new `nn.Module`, its start drawn from the engine's generator.

        Args:
            attention: Which attention its layers use: "linear" or "softmax".
        """

    def draw(self, generator: np.random.Generator, count: int) -> Any:
        """Return a batch that `loss` understands.

        Args:
            generator: Where all randomness comes from.
            count: How many sequences.
        """

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, float]:
        """Return the differentiable loss, and the share of tokens that are right, from 0 to 1.

        Args:
            model: What `build` returned.
            batch: What `draw` returned.
        """


class AttentionMap(NamedTuple):
    """The weights of one attention layer on one sequence, ready to be drawn.

    Attributes:
        title: What the layer is, such as "decoder 1, cross".
        weights: (H, Lq, Lk), from 0 to 1, each row with sum 1.
        queries: The Lq labels of the rows.
        keys: The Lk labels of the columns.
    """

    title: str
    weights: np.ndarray
    queries: tuple[str, ...]
    keys: tuple[str, ...]

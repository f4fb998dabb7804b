"""Graph attention reads handwritten digits: each image looks at those that resemble it.

The nodes of the graph are images. Each sees itself and the training images nearest to it, pixel by
pixel, whose pixels it sees and whose labels it does not. After two layers an image has heard of the
neighbours of its neighbours. A new image joins the graph without a new training, as it sees
training images and none of them sees it (inductive learning).

A batch is a few images. The layers need no more of the graph than can be heard of by them:

    third  = second and what it sees           pixels
    second = first and what it sees            after the first layer
    first  = the batch                         after the second layer: logits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

import minitransformer as mt

from ...settings import HEAD_DIM, Recipe, fraction, integer, setting
from ...tensor import Tensor
from .. import Compared, Models, Page
from ..digits import CLASSES, SIDE, DigitsTask, Question, digits_page

if TYPE_CHECKING:
    from .network import ImageNetwork

_DRAWN = 5


@dataclass(frozen=True)
class GraphTask(DigitsTask):
    """The task and the size of the network that learns it.

    Source: S3; Velickovic et al. 2018.
    """

    neighbours: int = setting(
        4, integer(1, 1024), "nearest training images that each image sees beside itself"
    )
    heads: int = setting(4, integer(1), "attention heads of each layer")
    head_dim: int = setting(16, HEAD_DIM, "width of a head of the first layer")
    dropout: float = setting(0.4, fraction("P"), "fraction of the edges dropped in training")

    compared: ClassVar[Compared] = Compared(
        "score",
        ("additive", "dot", "multi_head"),
        ("additive", "dot"),
        default="additive",
        help="how much an image looks at a neighbour",
    )
    recipe: ClassVar[Recipe] = Recipe(batch_size=64, steps=600, lr=1e-2)
    page: ClassVar[Page] = digits_page(
        "read handwritten digits with graph attention",
        "Train two layers of graph attention to read scikit-learn's handwritten digits,\n"
        "each image beside its nearest training images",
        "  minitransformer train graph\n"
        "  minitransformer train graph --score both --out runs/neighbours\n"
        "  minitransformer train graph --resume runs/neighbours",
    )

    def build(self, attention: str) -> ImageNetwork:
        """Return a new network, whose score is "additive", "dot" or "multi_head"."""
        from .network import ImageNetwork

        return ImageNetwork(self.heads, self.head_dim, attention, self.dropout)

    def logits(self, model: ImageNetwork, images: np.ndarray, chosen: np.ndarray) -> Tensor:
        """Return the logits (N, 10), see `DigitsTask.logits`."""
        return model(*self._inputs(model, images, chosen))

    def seen(self, images: np.ndarray) -> np.ndarray:
        """Return whom each image (T, 64) sees: itself, then its nearest training images.

        The training images come first, new ones behind them.
        """
        new = images[len(self._known) :]
        nearest = self._nearest(squared_distances(new, self._known))
        return np.column_stack(
            (np.arange(len(images)), np.concatenate((self._nearest_of_known, nearest)))
        )

    @property
    def title(self) -> str:
        """The task and the size of the model."""
        return (
            f"Reading digits beside their {self.neighbours} neighbours, 2 layers, "
            f"{self.heads} heads of {self.head_dim}"
        )

    def draw_attention(self, path: Path, attention: str, model: ImageNetwork) -> None:
        """Draw whom those images held out look at whose neighbours show the most digits."""
        from .picture import plot_neighbours

        images = self.digits.held_out.images
        pool, new = self._new(images)
        labels = self.digits.train.labels[self.seen(pool)[new, 1:]]
        digits = (labels[..., None] == np.arange(CLASSES)).any(axis=1).sum(axis=1)
        doubtful = np.argsort(-digits, kind="stable")[:_DRAWN]
        title = f"Whom an image looks at ({attention} attention, mean of its heads)"
        plot_neighbours(path, self.looks(model, doubtful), title)

    def looks(self, model: ImageNetwork, numbers: np.ndarray) -> list[Neighbourhood]:
        """Return how much images held out, of these numbers (N,), look at whom."""
        images, shown = (part[numbers] for part in self.digits.held_out)
        pool, chosen = self._new(images)
        pixels, far, near = self._inputs(model, pool, chosen)
        features = model.features(pixels, far)
        layers = {
            "first layer": model.first.attention_weights(pixels, far, pixels[: far.num_queries]),
            "second layer": model.second.attention_weights(
                features, near, features[: near.num_queries]
            ),
        }
        weights = {
            name: found.numpy().mean(axis=0).reshape(-1, 1 + self.neighbours)[: len(images)]
            for name, found in layers.items()
        }
        seen = self.seen(pool)[chosen]
        labels = self.digits.train.labels
        return [
            Neighbourhood(
                pool[row].reshape(-1, SIDE, SIDE),
                (
                    f"image {numbers[place]}\na {shown[place]}",
                    *(f"a {labels[node]}" for node in row[1:]),
                ),
                {name: found[place] for name, found in weights.items()},
            )
            for place, row in enumerate(seen)
        ]

    def respond(self, models: Models, question: Question) -> list[str]:
        """Return the image, for each model its likeliest digits, and what the neighbours show."""
        pool, new = self._new(question.image[None])
        labels = self.digits.train.labels[self.seen(pool)[new[0], 1:]]
        return [
            *super().respond(models, question),
            "",
            f"  It sees images of {' '.join(map(str, labels))}.",
        ]

    def _inputs(
        self, model: ImageNetwork, images: np.ndarray, chosen: np.ndarray
    ) -> tuple[Tensor, mt.nn.Graph, mt.nn.Graph]:
        """Return the pixels and the graphs that the network needs to read the chosen images."""
        seen = self.seen(images)
        second, near = neighbourhood(chosen, seen)
        third, far = neighbourhood(second, seen)
        pixels = Tensor(images[third], device=model.device)
        return pixels, far.to(model.device), near.to(model.device)

    @property
    def _known(self) -> np.ndarray:
        return self.digits.train.images

    @cached_property
    def _nearest_of_known(self) -> np.ndarray:
        """The training images nearest to each training image but itself."""
        distances = squared_distances(self._known, self._known)
        np.fill_diagonal(distances, np.inf)
        return self._nearest(distances)

    def _nearest(self, distances: np.ndarray) -> np.ndarray:
        return np.argsort(distances, axis=1, kind="stable")[:, : self.neighbours]


class Neighbourhood(NamedTuple):
    """How much an image looks at itself and its neighbours, ready to be drawn."""

    images: np.ndarray  # (1 + neighbours, 8, 8), from 0 to 1
    captions: tuple[str, ...]  # what they show
    weights: Mapping[str, np.ndarray]  # (1 + neighbours,) with sum 1, by the name of the layer


def neighbourhood(nodes: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, mt.nn.Graph]:
    """Return some nodes (N,) and then all others that they see, and who sees whom of these.

    `seen` (T, k) is whom each of all nodes sees. An edge has the same number in every batch, so
    that dropout drops it for all or for none of the images whose reading it takes part in.

    >>> seen = np.array([[0, 2], [1, 0], [2, 1], [3, 0]])
    >>> around, graph = neighbourhood(np.array([3, 0]), seen)
    >>> around.tolist(), graph.columns.tolist()
    ([3, 0, 2], [0, 1, 1, 2])
    """
    columns = seen[nodes]
    numbers = np.arange(seen.size).reshape(seen.shape)[nodes]  # of the edges among all nodes
    around = np.concatenate((nodes, np.setdiff1d(columns, nodes)))
    place = np.empty(len(seen), np.int64)
    place[around] = np.arange(len(around))
    offsets = np.arange(len(nodes) + 1) * seen.shape[1]
    return around, mt.nn.Graph(offsets, place[columns].ravel(), len(around), numbers.ravel())


def squared_distances(images: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return |x - y|^2 (T, S) of images (T, 64) and (S, 64), exactly: pixels are sixteenths."""
    own, other = (np.square(x).sum(axis=1) for x in (images, others))
    distances: np.ndarray = own[:, None] + other - 2 * images @ others.T
    return distances

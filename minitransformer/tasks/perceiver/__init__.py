"""A Perceiver reads handwritten digits: a few latents look at 64 pixels.

A byte of the array is a pixel's intensity and where it stands, as Fourier features; the latents
read the bytes, think, and read again; their mean says which digit it is. Nothing in the model knows
that an image is a square: all it has of that are the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

import minitransformer as mt

from ...function import no_grad
from ...settings import ATTENTIONS, HEAD_DIM, Recipe, choice, fraction, integer, setting
from ...tensor import Tensor
from .. import Compared, Page
from ..digits import CLASSES, SIDE, Batch, DigitsTask, digits_page

_DRAWN = 5


@dataclass(frozen=True)
class PerceiverTask(DigitsTask):
    """The task and the size of the Perceiver that learns it.

    Source: S4; Jaegle et al. 2021.
    """

    latents: int = setting(16, integer(1), "latents, which read the 64 pixels")
    heads: int = setting(4, integer(1), "attention heads among the latents; they read with one")
    head_dim: int = setting(16, HEAD_DIM, "width of a head; a latent is HEADS * HEAD_DIM")
    depth: int = setting(2, integer(1), "how often the latents read the image")
    layers: int = setting(1, integer(1), "layers among the latents after each reading")
    share: str = setting(
        "all", choice(("all", "all_but_first", "none")), "which readings share their weights"
    )
    norm: str = setting(
        "pre", choice(("pre", "post")), "where sums are normalised; post is S4's module, literally"
    )
    num_bands: int = setting(4, integer(1), "Fourier features of each dimension")
    bands: str = setting("log", choice(("log", "linear")), "how their frequencies are spread")
    dropout: float = setting(0.05, fraction("P"), "fraction dropped of each layer's output")
    distortion: float = setting(
        0.2, fraction("D"), "how far pixels of training images wander, in pixels"
    )

    compared: ClassVar[Compared] = Compared(
        "attention",
        ATTENTIONS,
        ("linear", "softmax"),
        default="softmax",
        help="how latents attend to one another",
    )
    recipe: ClassVar[Recipe] = Recipe(batch_size=32, steps=2000, lr=1.5e-3)
    page: ClassVar[Page] = digits_page(
        "read handwritten digits with a Perceiver, S4's model",
        "Train a Perceiver to read scikit-learn's handwritten digits",
        "  minitransformer train perceiver\n"
        "  minitransformer train perceiver --attention both --out runs/digits\n"
        "  minitransformer train perceiver --depth 4 --share none --norm post\n"
        "  minitransformer train perceiver --resume runs/digits",
    )

    def build(self, attention: str) -> mt.nn.Module:
        """Return a new Perceiver, behind the positions of its pixels."""
        positions = mt.nn.FourierPositions((SIDE, SIDE), self.num_bands, bands=self.bands)
        perceiver = mt.nn.Perceiver(
            1 + positions.num_features,
            num_latents=self.latents,
            latent_dim=self.heads * self.head_dim,
            num_classes=CLASSES,
            depth=self.depth,
            layers=self.layers,
            num_heads=self.heads,
            attention=attention,
            share=self.share,
            norm=self.norm,
            dropout=self.dropout,
        )
        return mt.nn.Sequential(positions, perceiver)

    def draw(self, generator: np.random.Generator, count: int) -> Batch:
        """Return `count` different training images, each distorted a little."""
        batch = super().draw(generator, count)
        distorted = distort(batch.images[batch.chosen], generator, self.distortion)
        return Batch(distorted, np.arange(len(distorted)), batch.labels)

    def logits(self, model: mt.nn.Module, images: np.ndarray, chosen: np.ndarray) -> Tensor:
        """Return the logits (N, 10), see `DigitsTask.logits`; the other images do not matter."""
        grid = images[chosen].reshape(-1, SIDE, SIDE, 1)
        return model(Tensor(grid, device=model.device))

    @property
    def title(self) -> str:
        """The task and the size of the model."""
        return (
            f"Reading digits, {self.latents} latents, {self.heads} heads of {self.head_dim}, "
            f"depth {self.depth}, layers {self.layers}"
        )

    def draw_attention(self, path: Path, attention: str, model: mt.nn.Module) -> None:
        """Draw where each latent looks as it reads for the last time: a 0, a 1, ... held out."""
        from .picture import plot_looks

        images, labels = self.digits.held_out
        first = np.unique(labels, return_index=True)[1]
        title = f"Where the latents look ({attention} attention among them)"
        plot_looks(path, looks(model, images[first[:_DRAWN]]), title)


class Look(NamedTuple):
    """Where the latents look in an image, ready to be drawn."""

    image: np.ndarray  # (8, 8), from 0 to 1
    weights: np.ndarray  # (latents, 8, 8), of each latent with sum 1


def looks(model: mt.nn.Module, images: np.ndarray) -> Sequence[Look]:
    """Return where the latents look as they read images (N, 64) for the last time."""
    with mt.nn.recorded_weights(model) as recorded, no_grad():
        model(Tensor(images.reshape(-1, SIDE, SIDE, 1), device=model.device))
    last = [weights for path, weights in recorded.items() if ".cross." in path][-1]
    squares = last[:, 0].reshape(len(images), -1, SIDE, SIDE)  # of the only head
    return [Look(*pair) for pair in zip(images.reshape(-1, SIDE, SIDE), squares, strict=True)]


def distort(images: np.ndarray, generator: np.random.Generator, strength: float) -> np.ndarray:
    """Shift, turn, stretch and shear images (N, 64), each in a way of its own, as hands do.

    Pixel p becomes what stands at A p + b, seen from the middle, with A near the identity; between
    pixels the image is interpolated linearly, and beyond its edge is paper. The standard deviation
    of b is `strength`, in pixels; that of A is a fifth of it.
    """
    middle = (SIDE - 1) / 2
    matrix = np.eye(2) + generator.normal(0, strength / 5, (len(images), 2, 2))
    shift = generator.normal(0, strength, (len(images), 2, 1))
    pixels = np.indices((SIDE, SIDE)).reshape(2, -1) - middle  # (2, 64)
    places = matrix @ pixels + shift + middle  # (N, 2, 64)
    shares = np.maximum(0, 1 - np.abs(places[..., None] - np.arange(SIDE)))  # (N, 2, 64, 8)
    rows = shares[:, 0] @ images.reshape(-1, SIDE, SIDE)  # (N, 64, 8)
    distorted: np.ndarray = (rows * shares[:, 1]).sum(axis=-1).astype(np.float32)
    return distorted

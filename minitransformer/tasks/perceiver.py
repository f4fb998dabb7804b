"""A Perceiver reads handwritten digits: a few latents look at 64 pixels.

A byte of the array is a pixel's intensity and where it stands, as Fourier features; the latents
read the bytes, think, and read again; their mean says which digit it is. Nothing in the model knows
that an image is a square: all it has of that are the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import nn
from ..attention_weights import recorded_weights
from ..function import no_grad
from ..tensor import Tensor
from .digits import CLASSES, SIDE, Batch, DigitsTask

_DRAWN = 5


@dataclass(frozen=True)
class PerceiverTask(DigitsTask):
    """The task and the size of the Perceiver that learns it.

    Attributes:
        latents: How many latents there are.
        heads: Attention heads among the latents; they read with one.
        head_dim: Width of a head; a latent is `heads * head_dim` wide.
        depth: How often the latents read the image.
        layers: Layers of the latent transformer after each reading.
        share: Which readings share their weights: "all", "all_but_first" or "none".
        norm: "pre", or "post", S4's module literally.
        num_bands: Fourier features for each dimension of the image.
        bands: How their frequencies are spread: "log" or "linear".
        dropout: The fraction dropped of each layer's output in training.
        distortion: How far the pixels of training images wander, see `distort`.

    Source: S4; Jaegle et al. 2021.
    """

    latents: int = 16
    heads: int = 4
    head_dim: int = 16
    depth: int = 2
    layers: int = 1
    share: str = "all"
    norm: str = "pre"
    num_bands: int = 4
    bands: str = "log"
    dropout: float = 0.05
    distortion: float = 0.2

    def build(self, attention: str) -> nn.Module:
        """Return a new Perceiver, behind the positions of its pixels."""
        positions = nn.FourierPositions((SIDE, SIDE), self.num_bands, bands=self.bands)
        perceiver = nn.Perceiver(
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
        return nn.Sequential(positions, perceiver)

    def draw(self, generator: np.random.Generator, count: int) -> Batch:
        """Return `count` different training images, each distorted a little."""
        images, chosen, labels = super().draw(generator, count)
        distorted = distort(images[chosen], generator, self.distortion)
        return Batch(distorted, np.arange(len(chosen)), labels)

    def logits(self, model: nn.Module, images: np.ndarray, chosen: np.ndarray) -> Tensor:
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

    def draw_attention(self, path: Path, attention: str, model: nn.Module) -> None:
        """Draw where each latent looks as it reads for the last time: a 0, a 1, ... held out."""
        from ..plots import plot_looks

        images, labels = self.digits.held_out
        first = np.unique(labels, return_index=True)[1]
        title = f"Where the latents look ({attention} attention among them)"
        plot_looks(path, looks(model, images[first[:_DRAWN]]), title)


class Look(NamedTuple):
    """Where the latents look in an image, ready to be drawn.

    Attributes:
        image: (8, 8), from 0 to 1.
        weights: (latents, 8, 8), of each latent with sum 1.
    """

    image: np.ndarray
    weights: np.ndarray


def looks(model: nn.Module, images: np.ndarray) -> Sequence[Look]:
    """Return where the latents look as they read images for the last time.

    Args:
        model: What `PerceiverTask.build` returned, trained.
        images: (N, 64) float32.
    """
    with recorded_weights(model) as recorded, no_grad():
        model(Tensor(images.reshape(-1, SIDE, SIDE, 1), device=model.device))
    last = [weights for path, weights in recorded.items() if ".cross." in path][-1]
    squares = last[:, 0].reshape(len(images), -1, SIDE, SIDE)  # of the only head
    return [Look(*pair) for pair in zip(images.reshape(-1, SIDE, SIDE), squares, strict=True)]


def distort(images: np.ndarray, generator: np.random.Generator, strength: float) -> np.ndarray:
    """Shift, turn, stretch and shear images, each in a way of its own, as hands do.

    Pixel p becomes what stands at A p + b, seen from the middle, with A near the identity; between
    pixels the image is interpolated linearly, and beyond its edge is paper.

    Args:
        images: (N, 64) float32.
        generator: Where A and b come from.
        strength: The standard deviation of b, in pixels; that of A is a fifth of it. At 0, images
            stay as they are.

    Returns:
        (N, 64) float32.
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

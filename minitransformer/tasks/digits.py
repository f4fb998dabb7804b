"""Handwritten digits, and what every task that reads them shares.

scikit-learn brings 1,797 images of 8 x 8 pixels. A fifth of them is held out: no training sees it,
and it is the same fifth, with as many of each digit, whatever the seed of the training. On the rest
logistic regression learns too, so that a model has something to beat.

Source: Alpaydin and Kaynak 1998, of which scikit-learn ships the test part, written by 13 people.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar, NamedTuple

import numpy as np

import minitransformer as mt

from .. import functions as F
from ..errors import UserError
from ..function import no_grad
from ..tensor import Tensor
from . import Models, Page

CLASSES = 10
SIDE = 8
PIXELS = SIDE * SIDE
_INK = 16  # the darkest pixel of a file
_HELD_OUT = 360
_SHADES = " .:-=+*#%@"
_SHOWN = 3
_LISTED = 20


class Digits(NamedTuple):
    """Images and what they show."""

    images: np.ndarray  # (T, 64) float32, row by row, from 0, paper, to 1, ink
    labels: np.ndarray  # (T,) integers from 0 to 9


class Split(NamedTuple):
    """All images: those that are learned from, and the others."""

    train: Digits  # 1,437 images
    held_out: Digits  # 360 images


class Baseline(NamedTuple):
    """What logistic regression makes of the same images."""

    predictions: np.ndarray  # (360,) integers, of the images held out
    parameters: int  # how many numbers it learned
    text: str  # which, and after how many iterations
    seconds: float  # how long it learned


class Batch(NamedTuple):
    """What a step learns from."""

    images: np.ndarray  # (T, 64) float32
    chosen: np.ndarray  # (N,) integers below T: which images to read, each of them once
    labels: np.ndarray  # (N,) integers, what these show
    whole: int | None = None  # the images to read in the batch that this is a share of; or None

    @property
    def answers(self) -> int:
        """How many images a mean is over: those of the whole batch."""
        return len(self.labels) if self.whole is None else self.whole


class Question(NamedTuple):
    """An image to read."""

    image: np.ndarray  # (64,) float32
    text: str  # what it is


@cache
def load_split() -> Split:
    """Return scikit-learn's digits, always split alike.

    Raises:
        UserError: scikit-learn cannot be imported.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise UserError(
            f"the handwritten digits are scikit-learn's, which cannot be imported ({error}); "
            "pip install scikit-learn"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / _INK).astype(np.float32)
    options = {"test_size": _HELD_OUT, "stratify": labels, "random_state": 0}
    train, held_out, train_labels, held_out_labels = train_test_split(images, labels, **options)
    return Split(Digits(train, train_labels), Digits(held_out, held_out_labels))


def logistic_regression(split: Split) -> Baseline:
    """Let scikit-learn's logistic regression learn the training images and read the others."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    start = time.perf_counter()
    with threadpool_limits(1):  # so small a problem waits longer for its threads than it takes
        regression = LogisticRegression(C=1.0, max_iter=1000)
        regression.fit(split.train.images.astype(np.float64), split.train.labels)
    seconds = time.perf_counter() - start
    text = (
        f"scikit-learn's on the same {len(split.train.images):,} images, C = {regression.C:g}, "
        f"{regression.n_iter_.max()} iterations"
    )
    images = split.held_out.images.astype(np.float64)
    parameters = regression.coef_.size + regression.intercept_.size
    return Baseline(regression.predict(images), parameters, text, seconds)


def digits_page(summary: str, description: str, usage: str) -> Page:
    """Return what the command line says of a task whose models read digits."""
    description += ".\nThe same fifth of the images is held out whatever the seed"
    invitation = "To let it read a held-out image, by its number, or one of your own, from a file"
    return Page(summary, description, usage, "read", invitation)


@dataclass(frozen=True)
class DigitsTask(ABC):
    """Say which digit an image shows; how, is up to the subclass."""

    digits: Split = field(init=False, default_factory=load_split, repr=False, compare=False)

    examples: ClassVar[str] = "images"
    answer: ClassVar[str] = "image"
    most_examples: ClassVar[float] = 1024

    @abstractmethod
    def build(self, attention: str) -> mt.nn.Module:
        """Return a new model, see `Task.build`."""

    @abstractmethod
    def logits(self, model: Any, images: np.ndarray, chosen: np.ndarray) -> Tensor:
        """Return the logits (N, 10) of some of the images.

        Args:
            model: What `build` returned.
            images: (T, 64): the training images, and any new ones behind them.
            chosen: (N,) integers below T: which images to read, each of them once.
        """

    def draw(self, generator: np.random.Generator, count: int) -> Batch:
        """Return `count` different training images among all of them."""
        images, labels = self.digits.train
        chosen = generator.permutation(len(images))[:count]
        return Batch(images, chosen, labels[chosen])

    def loss(self, model: mt.nn.Module, batch: Batch) -> tuple[Tensor, float]:
        """Return the mean cross entropy of the images, and the share of them that is right."""
        logits = self.logits(model, batch.images, batch.chosen)
        right = logits.numpy().argmax(axis=-1) == batch.labels
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        return loss / batch.answers, float(right.sum() / batch.answers)

    def take(self, batch: Batch, part: slice) -> Batch:
        """Return some of the images to read, see `Divisible.take`."""
        return Batch(batch.images, batch.chosen[part], batch.labels[part], batch.answers)

    def cut(self, batch: Batch, rank: int, size: int) -> Batch:
        """Return the same images, of which each rank reads a part, see `Divisible.cut`.

        What comes of all parts every rank has in the end, so each answer counts 1 / size.
        """
        return batch._replace(whole=batch.answers * size)

    def read(self, model: mt.nn.Module, images: np.ndarray) -> np.ndarray:
        """Return how likely new images (N, 64) show each digit: (N, 10)."""
        with no_grad():
            return F.softmax(self.logits(model, *self._new(images)), dim=-1).numpy()

    def held_out(self, model: mt.nn.Module) -> Mapping[str, float]:
        """Return the loss and the accuracy on the images held out; nothing is learned from it."""
        images, labels = self.digits.held_out
        with no_grad():
            loss, accuracy = self.loss(model, Batch(*self._new(images), labels))
        return {"held_out_loss": loss.item(), "held_out_accuracy": accuracy}

    def _new(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all images, new ones (N, 64) behind the training images, and which are new."""
        known = self.digits.train.images
        new = np.arange(len(known), len(known) + len(images))
        return np.concatenate((known, images)), new

    @property
    def baseline(self) -> Mapping[str, float]:
        """The share of the images held out that logistic regression reads right."""
        right = self._regression.predictions == self.digits.held_out.labels
        return {"logistic regression": float(right.mean())}

    @cached_property
    def _regression(self) -> Baseline:
        return logistic_regression(self.digits)

    def report(self, models: Models, seconds: Mapping[str, float]) -> list[str]:
        """Return how many of the images held out are read right, and those read wrong."""
        images, labels = self.digits.held_out
        beaten = self._regression
        read = {name: self.read(model, images).argmax(axis=-1) for name, model in models.items()}
        rows = [
            *(
                (f"{name} attention", found, models[name].num_parameters(), seconds[name])
                for name, found in read.items()
            ),
            ("logistic regression", beaten.predictions, beaten.parameters, beaten.seconds),
        ]
        return [
            f"{len(labels)} held-out images of handwritten digits, which no training saw:",
            "",
            "                         images right   wrong   parameters   trained in",
            *(
                f"  {name:20} {np.mean(found == labels):14.2%}   {np.sum(found != labels):5}"
                f"   {parameters:10,}   {taken:8.1f} s"
                for name, found, parameters, taken in rows
            ),
            "",
            f"Logistic regression: {beaten.text}.",
            *(line for name, found in read.items() for line in self._mistakes(name, found)),
        ]

    def _mistakes(self, attention: str, found: np.ndarray) -> list[str]:
        """Return which images held out were read wrong, and draw the first of them."""
        images, labels = self.digits.held_out
        wrong = np.flatnonzero(found != labels)
        # The spaces inside are no-break ones until the text is wrapped.
        texts = [f"{index}\xa0({labels[index]}\xa0as\xa0{found[index]})" for index in wrong]
        listed = ", ".join(texts[:_LISTED]) or "none"
        end = ", ..." if len(texts) > _LISTED else "."
        text = f"Read wrong with {attention} attention: {listed}{end}"
        pictures = zip(*(picture(images[index]) for index in wrong[:_SHOWN]), strict=True)
        return [
            "",
            *(line.replace("\xa0", " ") for line in wrap(text, 80)),
            "",
            *("  " + "   ".join(parts).rstrip() for parts in pictures),
        ]

    @property
    def sample(self) -> str:
        """The number of an image held out."""
        return "0"

    def parse(self, text: str) -> Question:
        """Return the image held out of that number, or the one in that file, see `read_image`.

        Raises:
            ValueError: There is no such image.
            UserError: There is no such file, or something else in it.
        """
        images, labels = self.digits.held_out
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            return Question(read_image(Path(text)), text)
        number = int(text)
        if not 0 <= number < len(images):
            raise ValueError(
                f"expected a held-out image from 0 to {len(images) - 1}, or a file, got {text!r}"
            )
        return Question(images[number], f"held-out image {number}, a {labels[number]}")

    def respond(self, models: Models, question: Question) -> list[str]:
        """Return the image, and for each model its likeliest digits."""
        shares = {name: self.read(model, question.image[None])[0] for name, model in models.items()}
        return [
            f"{question.text}:",
            "",
            *(f"  {row}".rstrip() for row in picture(question.image)),
            "",
            *(f"  {name:9} {_likeliest(found)}" for name, found in shares.items()),
        ]


def read_image(path: Path) -> np.ndarray:
    """Return the image (64,) in a file of 8 x 8 numbers from 0, paper, to 16, ink.

    Raises:
        UserError: The file cannot be read, or holds something else.
    """
    expected = f"expected {SIDE} x {SIDE} numbers from 0, paper, to {_INK}, ink"
    try:
        words = path.read_text().replace(",", " ").split()
        pixels = np.array([float(word) for word in words])
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {expected} in it") from error
    except ValueError as error:
        raise UserError(f"{path}: {expected}, got something else ({error})") from error
    if len(pixels) != PIXELS:
        raise UserError(f"{path}: {expected}, got {len(pixels)} of them")
    if not ((pixels >= 0) & (pixels <= _INK)).all():
        raise UserError(f"{path}: {expected}, got some from {pixels.min():g} to {pixels.max():g}")
    return (pixels / _INK).astype(np.float32)


def picture(image: np.ndarray) -> list[str]:
    """Return an image as 8 lines of 16 characters, dark ones where ink is.

    >>> picture(np.linspace(0, 1, 64))[4]
    '++++++++++++++**'
    """
    shades = np.rint(image * (len(_SHADES) - 1)).astype(int).reshape(SIDE, SIDE)
    return ["".join(2 * _SHADES[shade] for shade in row) for row in shades]


def _likeliest(shares: np.ndarray) -> str:
    best: Iterable[int] = np.argsort(-shares, kind="stable")[:_SHOWN]
    return ", ".join(f"{digit} ({shares[digit]:.1%})" for digit in best)

"""Digits drawn pixel by pixel, from a state that does not grow.

A decoder-only transformer with linear attention is a recurrent network: what it keeps of all pixels
so far is (S, Z) of each layer. It reads scikit-learn's digits, row by row, as sequences of 64 grey
levels, and learns which level is next. Then it draws: it is given the first token alone, or the
upper half of a digit besides, and each level that it chooses is its next input.

The first token is the digit that is to be drawn, or, for half of the images, a token that does not
tell. One model thus draws what is asked for, completes what it was not told, and says by the
difference in bits what it is worth to be told. The same difference guides it: a drawing can go
farther where the token leads than the model itself would go.

A drawing is judged by logistic regression, which has learned to read from the same images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .. import functions as F
from .. import generation, nn, no_grad
from ..plots import INK, LINES, band, draw_image, picture
from ..settings import Recipe
from ..tasks.digits import CLASSES, PIXELS, SIDE, Digits, Split, load_split, logistic_regression
from ..tensor import Tensor
from ..training.loop import Trainer
from .experiment import Case, Experiment, Report, Row, supported, table

LEVELS = 17
NOT_TOLD = LEVELS + CLASSES  # the first token of an image whose digit is not told
TOKENS = NOT_TOLD + 1
ATTENTIONS = ("linear", "softmax")
HISTOGRAM = "histogram"
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"width": 32, "heads": 2, "layers": 1, "steps": 8},
    "default": {"width": 64, "heads": 4, "layers": 3, "steps": 2400},
    "full": {"width": 256, "heads": 8, "layers": 8, "steps": 20_000},
}
SEEDS = {"smoke": 1, "default": 2, "full": 3}
BATCH, RATE, DROPOUT = 32, 0.256, 0.1  # the learning rate is RATE over the model's width
POINTS = 20  # of a learning curve
GUIDANCES = (0.0, 1.0)
DRAWN, SHOWN = 50, 8  # of each digit: judged, and kept for the sheet
WAYS = 5  # to complete the upper half of an image held out
# Printed: bits a pixel with softmax and with linear attention.
PRINTED = {"MNIST": (0.621, 0.644), "CIFAR-10": (3.47, 3.40)}
_SPELLED = "0123456789abcdefg"

Array = NDArray[Any]
Found = Mapping[str, list[Row]]
"""The rows of each model."""


def spelled(pixels: Array) -> str:
    """Return the levels of an image (64,) as a text, a character each.

    >>> spelled(np.array([0, 16, 10]))
    '0ga'
    """
    return "".join(_SPELLED[level] for level in pixels)


def shades(text: str) -> Array:
    """Return a spelled image (8, 8), from 0, paper, to 1, ink."""
    return np.array([_SPELLED.index(c) for c in text]).reshape(SIDE, SIDE) / (LEVELS - 1)


def levels(digits: Digits) -> Array:
    """Return images as integers (N, 64) below 17."""
    whole: Array = np.rint(digits.images * (LEVELS - 1)).astype(int)
    return whole


@dataclass(frozen=True)
class DrawingTask:
    """Say the next pixel of a digit; what `Trainer` asks of a task.

    Attributes:
        width: D, the model's width.
        heads: H.
        layers: How many layers.
        digits: What is learned from, and what is held out.
    """

    width: int
    heads: int
    layers: int
    digits: Split = field(default_factory=load_split, repr=False, compare=False)

    examples: ClassVar[str] = "images"

    def build(self, attention: str) -> nn.TransformerLM:
        """Return a new model, with a learned vector for each place of the image."""
        return nn.TransformerLM(
            TOKENS, self.width, self.heads, self.layers, attention=attention, positions="learned",
            max_length=PIXELS, dim_feedforward=4 * self.width, dropout=DROPOUT,
        )  # fmt: skip

    def draw(self, generator: np.random.Generator, count: int) -> Array:
        """Return `count` different training images, each behind its first token: (N, 65)."""
        images, labels = levels(self.digits.train), self.digits.train.labels
        chosen = generator.permutation(len(images))[:count]
        told = generator.random(len(chosen)) < 0.5
        return behind(np.where(told, LEVELS + labels[chosen], NOT_TOLD), images[chosen])

    def loss(self, model: Any, batch: Array) -> tuple[Tensor, float]:
        """Return the mean cross entropy of the pixels, and the share of levels that is right."""
        logits, targets = next_levels(model, batch), batch[:, 1:].ravel()
        right = logits.numpy().argmax(axis=-1) == targets
        return F.cross_entropy(logits, targets), float(right.mean())


def behind(first: Any, pixels: Array) -> Array:
    """Return pixels (N, L) behind a first token, of all or (N,) of each: (N, 1 + L)."""
    tokens = np.broadcast_to(first, len(pixels))
    return np.concatenate((tokens[:, None], pixels), axis=1)


def next_levels(model: Any, tokens: Array) -> Tensor:
    """Return the logits (64 N, 17) of the pixels of (N, 65): no token but a level may follow."""
    logits: Tensor = model(tokens[:, :-1])[..., :LEVELS]
    return logits.reshape(-1, LEVELS)


def bits(model: Any, tokens: Array) -> Array:
    """Return how many bits a model needs for a pixel of each image, (N,)."""
    with no_grad():
        losses = F.cross_entropy(
            next_levels(model, tokens), tokens[:, 1:].ravel(), reduction="none"
        )
    means: Array = losses.numpy().reshape(len(tokens), -1).mean(axis=1) / np.log(2)
    return means


def histogram_bits(learned: Array, images: Array) -> Array:
    """Return the bits of a pixel of each image (N, 64) by how often each level stood at its place.

    Levels are counted in the images learned from, (T, 64), and once more each, so that none is
    impossible.
    """
    counts = 1 + (learned[:, :, None] == np.arange(LEVELS)).sum(axis=0)  # (64, 17)
    shares = counts / counts.sum(axis=1, keepdims=True)
    means: Array = -np.log2(shares[np.arange(PIXELS), images]).mean(axis=1)
    return means


def sampled(model: Any, prompt: Array, seed: int, guidance: float = 0.0) -> Array:
    """Return whole images (N, 64), of which the prompt (N, 1 + P) has the first P pixels.

    With guidance g, a level is chosen by the logits told + g (told - untold): what the first token
    makes likelier becomes likelier still. So each image is drawn with its token and without it.

    Source: Ho and Salimans 2022, "Classifier-free diffusion guidance", equation 6, of logits.
    """
    sampler = generation.Sampler(seed=seed)

    def choose(logits: Array) -> Array:
        told, untold = np.split(logits[:, :LEVELS], 2)
        return np.tile(sampler(told + guidance * (told - untold)), 2)

    both = np.concatenate((prompt, behind(NOT_TOLD, prompt[:, 1:])))
    drawn = generation.generate(model, both, 1 + PIXELS - prompt.shape[1], choose=choose)
    return np.concatenate((prompt[:, 1:], drawn[: len(prompt)]), axis=1)


def nearest(images: Array, known: Array) -> Array:
    """Return how far each image (N, 64) is from the nearest of (T, 64): levels a pixel, (N,)."""
    squares = (images**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2 * images @ known.T
    distances: Array = np.sqrt(squares.min(axis=1) / images.shape[1])
    return distances


def cases(scale: str) -> list[Case]:
    """Return the histogram, then each attention with each seed."""
    trained = [
        {"model": attention, "seed": seed, **SCALES[scale]}
        for seed in range(SEEDS[scale])
        for attention in ATTENTIONS
    ]
    return [{"model": HISTOGRAM}, *trained]


def run(case: Case) -> Iterator[Row]:
    """Yield what a model needs for a pixel held out, how it learned, and what it draws."""
    split = load_split()
    images, labels = levels(split.held_out), split.held_out.labels
    if case["model"] == HISTOGRAM:
        yield by_histogram(split)
        return
    task = DrawingTask(case["width"], case["heads"], case["layers"])
    recipe = Recipe(
        batch_size=BATCH, steps=case["steps"], lr=RATE / case["width"], seed=case["seed"]
    )
    trainer = Trainer(task, recipe, case["model"])
    curve = list(learn(trainer, behind(NOT_TOLD, images)))
    model: Any = trainer.model.eval()
    told = np.stack([bits(model, behind(LEVELS + digit, images)) for digit in range(CLASSES)])
    asked = np.repeat(np.arange(CLASSES), DRAWN)
    upper = behind(NOT_TOLD, halves(split)[:, : PIXELS // 2])
    completed = sampled(model, np.repeat(upper, WAYS, axis=0), case["seed"])
    yield {
        "parameters": model.num_parameters(),
        "curve": curve,
        "bits": float(bits(model, behind(NOT_TOLD, images)).mean()),
        "bits_told": float(told[labels, np.arange(len(labels))].mean()),
        "reads": float(np.mean(told.argmin(axis=0) == labels)),
        "completed": [spelled(image) for image in completed],
    }
    for guidance in GUIDANCES:
        drawn = sampled(model, LEVELS + asked[:, None], case["seed"], guidance)
        yield {"guidance": guidance, **judged(split, drawn, asked)}


def by_histogram(split: Split) -> Row:
    """Return the bits of a histogram for each pixel, and what the images held out are."""
    learned, images = levels(split.train), levels(split.held_out)
    labels = split.held_out.labels
    told = [
        histogram_bits(learned[split.train.labels == digit], images[labels == digit])
        for digit in range(CLASSES)
    ]
    return {
        "bits": float(histogram_bits(learned, images).mean()),
        "bits_told": float(np.concatenate(told).mean()),
        **judged(split, images, labels),
        "completed": [spelled(image) for image in halves(split)],
    }


def learn(trainer: Trainer, held_out: Array) -> Iterator[tuple[int, float, float]]:
    """Take all steps; yield at some the bits of the batches since the last, and of images held out.

    `held_out` are tokens (N, 65).
    """
    steps = trainer.recipe.steps
    losses = []
    for _ in tqdm(range(steps), desc=trainer.attention, unit="step", mininterval=10.0):
        losses.append(trainer.advance()["loss"])
        if trainer.step % max(1, steps // POINTS) == 0:
            found = float(bits(trainer.model.eval(), held_out).mean())
            trainer.model.train()
            yield trainer.step, float(np.mean(losses) / np.log(2)), found
            losses.clear()


def judged(split: Split, images: Array, asked: Array) -> Row:
    """Return how many images (N, 64) are read as what was asked for, how new, and some of them."""
    as_digits = Digits((images / (LEVELS - 1)).astype(np.float32), asked)
    found = logistic_regression(split._replace(held_out=as_digits)).predictions
    distances = nearest(images, levels(split.train))
    return {
        "right": float(np.mean(found == asked)),
        "nearest": float(np.median(distances)),
        "copies": int((distances == 0).sum()),
        "drawn": [spelled(image) for image in first_of_each(images, asked, SHOWN)],
    }


def first_of_each(images: Array, labels: Array, count: int) -> Array:
    """Return the first so many images of each digit."""
    return np.concatenate([images[labels == digit][:count] for digit in range(CLASSES)])


def halves(split: Split) -> Array:
    """Return the images held out whose lower halves are drawn anew, one of each digit."""
    return first_of_each(levels(split.held_out), split.held_out.labels, 1)


def report(rows: list[Row]) -> Report:
    """Return the bits, what a reader makes of the drawings, and the drawings."""
    found = {name: [r for r in rows if r["model"] == name] for name in (HISTOGRAM, *ATTENTIONS)}
    trained = found["linear"][0]
    layers, heads, width = (trained[key] for key in ("layers", "heads", "width"))
    seeds = len({row["seed"] for row in found["linear"]})
    saved = {
        name: PIXELS * (mean(found[name], "bits") - mean(found[name], "bits_told"))
        for name in ATTENTIONS
    }
    return Report(
        f"""
Models of {layers} layers, {heads} heads and {trained["parameters"]:,} parameters learn
{trained["steps"]:,} batches of {BATCH} from 1,437 images, {seeds} of each attention; for
half of the images they are told the digit. Between two pixels linear attention keeps
{layers * width * (width // heads + 1):,} numbers, wherever they are; softmax attention keeps
{2 * layers * width * PIXELS:,} in the end. A pixel is one of {LEVELS} levels,
{np.log2(LEVELS):.2f} bits if nothing is known. Bits are of the 360 images held out.

{table(["", "bits a pixel", "the digit told", "digits read by its bits"], _likely(found))}

The last column is Bayes' rule: of the ten digits, which makes the image likeliest? Logistic
regression reads {found[HISTOGRAM][0]["right"]:.1%} of the same images. To be told the digit saves
{" and ".join(f"{worth:.1f} bits an image with {name} attention" for name, worth in saved.items())};
a digit's name is worth {np.log2(CLASSES):.1f}.

{_claim(found)}

## What is drawn

Asked for by the first token, {DRAWN} of each digit, every pixel drawn at random: with the model's
own probabilities, guidance 0, or by logits that go as far again in the direction in which the token
moves them, guidance 1. *New* is the distance of an image from the nearest one learned from, in
levels a pixel (root mean square, the median of the images).

{table(["", "read as the digit asked for", "new", "copies"], _good(found))}

{_looks(found)}

![digits held out, and digits that were drawn](samples.png)

![digits held out, their upper halves, and how these were completed](completions.png)

![bits a pixel against steps](learning.png)
""",
        {
            "samples.png": partial(plot_samples, found=found),
            "completions.png": partial(plot_completions, found=found),
            "learning.png": partial(plot_learning, found=found),
        },
    )


def numbers(rows: Sequence[Row], key: str) -> list[Any]:
    """Return what every row that has it says."""
    return [row[key] for row in rows if key in row]


def mean(rows: Sequence[Row], key: str) -> float:
    """Return the mean of a number over seeds."""
    return float(np.mean(numbers(rows, key)))


def spread(rows: Sequence[Row], key: str, form: str) -> str:
    """Return the mean over seeds, and where there are several the least and the largest.

    >>> spread([{"x": 1.0}, {"x": 2.0}], "x", "{:.1f}")
    '1.5 (1.0 to 2.0)'
    """
    found = numbers(rows, key)
    low, high = (form.format(end(found)) for end in (min, max))
    return form.format(np.mean(found)) + (f" ({low} to {high})" if len(found) > 1 else "")


def drawn_by(found: Found) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of judged images: those held out, then by attention and guidance."""
    yield "held out", found[HISTOGRAM]
    for name in ATTENTIONS:
        for guidance in GUIDANCES:
            own = [row for row in found[name] if row.get("guidance") == guidance]
            yield f"{name}, guidance {guidance:g}", own


def _likely(found: Found) -> Iterator[list[Any]]:
    (histogram,) = found[HISTOGRAM]
    told = (f"{histogram[key]:.3f}" for key in ("bits", "bits_told"))
    yield ["a histogram of each pixel", *told, "-"]
    for name in ATTENTIONS:
        needed = (spread(found[name], key, "{:.3f}") for key in ("bits", "bits_told"))
        yield [f"{name} attention", *needed, spread(found[name], "reads", "{:.1%}")]


def _good(found: Found) -> Iterator[list[Any]]:
    for title, rows in drawn_by(found):
        right, new = spread(rows, "right", "{:.1%}"), spread(rows, "nearest", "{:.2f}")
        yield [title, right, new, sum(row["copies"] for row in rows)]


def _claim(found: Found) -> str:
    linear, softmax = (mean(found[name], "bits") for name in ATTENTIONS)
    worst = max(theirs / softer for softer, theirs in PRINTED.values())
    printed = ", ".join(
        f"{theirs} against {softer} on {name}" for name, (softer, theirs) in PRINTED.items()
    )
    return (
        f"The source's claim: with linear attention the bits are about those of softmax "
        f"({printed}, at most {worst - 1:.1%} more). {supported(linear / softmax <= worst)}: "
        f"{linear:.3f} against {softmax:.3f}, {abs(linear / softmax - 1):.1%} "
        f"{'more' if linear > softmax else 'fewer'}."
    )


def _looks(found: Found) -> str:
    written, plain, guided, *_ = (mean(rows, "right") for _, rows in drawn_by(found))
    verdict = "do" if guided >= 0.9 * written else "do not yet"
    return (
        f"Digits drawn with linear attention, guided, {verdict} look like digits to logistic "
        f"regression: it recognises {guided / written:.0%} as many of them as of those that people "
        f"wrote, and {plain / written:.0%} of those drawn without guidance."
    )


def sheet(images: Sequence[Array], columns: int) -> Array:
    """Return images (8, 8) side by side and below each other, a light line between them."""
    rows = -(-len(images) // columns)
    whole = np.full((rows * (SIDE + 1) - 1, columns * (SIDE + 1) - 1), 0.15)
    for number, image in enumerate(images):
        row, column = (SIDE + 1) * (number // columns), (SIDE + 1) * (number % columns)
        whole[row : row + SIDE, column : column + SIDE] = image
    return whole


def plot_samples(path: Path, found: Found) -> None:
    """Draw digits that people wrote, and those of the first seed of linear attention."""
    shown = [(title, rows[0]["drawn"]) for title, rows in drawn_by(found)][: 1 + len(GUIDANCES)]
    with picture(path, (2.6 * len(shown), 3.6)) as figure:
        for axis, (title, texts) in zip(figure.subplots(1, len(shown)), shown, strict=True):
            draw_image(axis, sheet([shades(text) for text in texts], SHOWN))
            axis.set_title(title, loc="left", fontsize=10)


def plot_completions(path: Path, found: Found) -> None:
    """Draw digits held out, their upper halves, and the ways in which these were completed."""
    wholes = [shades(text) for text in found[HISTOGRAM][0]["completed"]]
    given = [np.where(np.arange(SIDE)[:, None] < SIDE // 2, image, 0.15) for image in wholes]
    shown = {name: found[name][0]["completed"] for name in ATTENTIONS}
    with picture(path, (3.4 * len(shown), 4.6)) as figure:
        for axis, (name, texts) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
            ways = np.array([shades(text) for text in texts]).reshape(len(wholes), WAYS, SIDE, SIDE)
            rows = (
                image
                for whole, half, drawn in zip(wholes, given, ways, strict=True)
                for image in (whole, half, *drawn)
            )
            draw_image(axis, sheet(list(rows), 2 + WAYS))
            axis.set_title(f"whole, given, completed: {name}", loc="left", fontsize=10)


def plot_learning(path: Path, found: Found) -> None:
    """Draw the bits of images held out, a band over the seeds, and those of the batches."""
    with picture(path, (7.2, 3.2)) as figure:
        axis = figure.subplots()
        for name, line in zip(ATTENTIONS, LINES, strict=False):
            curves = np.array(numbers(found[name], "curve"))  # (seeds, points, 3)
            steps, learned, held_out = np.moveaxis(curves, 2, 0)
            band(axis, steps[0], held_out, **line, label=f"{name}, held out")
            axis.plot(steps[0], learned.mean(axis=0), color=line["color"], alpha=0.5,
                      linewidth=0.8, label=f"{name}, learned from")  # fmt: skip
        axis.axhline(found[HISTOGRAM][0]["bits"], color=INK, linestyle=":", linewidth=1,
                     label="a histogram of each pixel")  # fmt: skip
        axis.set(xlabel="step", ylabel="bits a pixel")
        figure.legend(loc="outside right upper")


EXPERIMENT = Experiment(
    "drawn_digits",
    "Drawn digits: a transformer that draws from a constant state",
    "Katharopoulos et al. 2020, section 4.2: images drawn pixel by pixel, how likely, how good.",
    cases,
    run,
    report,
)

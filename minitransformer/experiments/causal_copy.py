"""The copy task of linear attention's authors: does it learn what softmax attention learns?

A decoder reads `0 w 0 w`, where w is a random sequence of ten symbols and 0 separates, and is asked
for each next token of the second half. No two sequences have the same w, nor need they have the
same length of it: the answer is always so many places back as w is long, and one.

The authors train 4 layers of 8 heads with batches of 64 by RAdam, at a rate of 1e-3, and of 1e-4
after 3,000 steps; sequences have up to 128 tokens. Their claim: linear attention converges
smoothly, and to the same loss as softmax.

Source: Katharopoulos et al. 2020, section 4.1.1 and figure 2; S1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from tqdm import tqdm

from .. import functions as F
from .. import nn
from ..device import keep_freed_memory, resolve_device
from ..plots import LINES, band, picture
from ..settings import Recipe
from ..tensor import Tensor
from ..training import Trainer
from .experiment import Case, Experiment, Report, Row, supported, table

SYMBOLS, SEPARATOR = 10, 0
ATTENTIONS = ("linear", "softmax")
RATE, REDUCED_AT = 1e-3, 3000
GUESS = math.log(SYMBOLS)  # the loss of one who knows nothing, in nats
POINTS = 100  # of a curve
LEARNED = 0.99  # of the symbols are right
_IGNORED = -100


class Sequences(NamedTuple):
    """What is read, and what is to be said."""

    tokens: np.ndarray  # (N, L) integers
    targets: np.ndarray  # (N, L) integers, below 0 where nothing is asked


@dataclass(frozen=True)
class CausalCopy:
    """The task, and the size of the decoder that learns it.

    Attributes:
        length: L, of the longest sequence `0 w 0 w`.
        layers: How many.
        heads: Of each layer.
        head_dim: Width of a head.
    """

    length: int
    layers: int
    heads: int
    head_dim: int

    examples: ClassVar[str] = "sequences"

    def build(self, attention: str) -> nn.TransformerLM:
        """Return a new decoder, with sinusoids for positions."""
        width = self.heads * self.head_dim
        return nn.TransformerLM(
            SYMBOLS + 1, width, self.heads, self.layers, attention=attention,
            dim_feedforward=4 * width, dropout=0.0,
        )  # fmt: skip

    def draw(self, generator: np.random.Generator, count: int) -> Sequences:
        """Return random sequences; w takes from a quarter to a half of the longest."""
        most = self.length // 2 - 1
        w = generator.integers(1, SYMBOLS, (count, most), endpoint=True)
        period = generator.integers(self.length // 4, most, (count, 1), endpoint=True) + 1
        at = np.arange(self.length)
        place = at % period
        symbols = np.take_along_axis(w, np.maximum(place, 1) - 1, axis=1)
        tokens = np.where((place > 0) & (at < 2 * period), symbols, SEPARATOR)
        asked = (period <= at) & (at < 2 * period - 1)
        return Sequences(tokens, np.where(asked, np.roll(tokens, -1, axis=1), _IGNORED))

    def loss(self, model: nn.Module, batch: Sequences) -> tuple[Tensor, float]:
        """Return the mean cross entropy of the second w, and the share of it that is right."""
        logits = model(batch.tokens)
        loss = F.cross_entropy(logits.reshape(-1, SYMBOLS + 1), batch.targets.reshape(-1))
        right = logits.numpy().argmax(axis=-1) == batch.targets
        return loss, float(right[batch.targets != _IGNORED].mean())


class Scale(NamedTuple):
    """How large everything is."""

    task: CausalCopy
    batch: int
    steps: int
    seeds: int
    timed: int  # steps whose time is taken


SCALES = {
    "smoke": Scale(CausalCopy(12, 1, 2, 16), batch=4, steps=6, seeds=2, timed=2),
    "default": Scale(CausalCopy(16, 2, 4, 16), batch=64, steps=2000, seeds=3, timed=100),
    "full": Scale(CausalCopy(128, 4, 8, 32), batch=64, steps=10_000, seeds=3, timed=100),
}


def cases(scale: str) -> list[Case]:
    """Return each attention with each seed, to be trained; then each, to be timed."""
    task, batch, steps, seeds, timed = SCALES[scale]
    size = {**asdict(task), "batch": batch}
    return [
        *({"attention": name, "seed": seed, "steps": steps, **size}
          for seed in range(seeds) for name in ATTENTIONS),
        *({"attention": name, "timed": timed, **size} for name in ATTENTIONS),
    ]  # fmt: skip


def rate(step: int) -> float:
    """Return the learning rate after so many steps."""
    return RATE if step < REDUCED_AT else RATE / 10


def run(case: Case) -> Iterator[Row]:
    """Yield the curve of a training, or the time of a step."""
    keep_freed_memory()
    timed, steps = "timed" in case, case.get("steps", 0)
    task = CausalCopy(*(case[name] for name in ("length", "layers", "heads", "head_dim")))
    recipe = Recipe(case["batch"], max(1, steps), RATE, "radam", case.get("seed", 0))
    trainer = Trainer(task, recipe, case["attention"], resolve_device("auto"))
    trainer.optimizer.lr = rate
    if timed:
        trainer.advance()  # compiles
        yield {"seconds": float(np.median([trainer.advance()["seconds"]
                                           for _ in range(case["timed"])]))}  # fmt: skip
        return
    bar = tqdm(range(steps), desc=case["attention"], mininterval=10.0, leave=False)
    taken = [trainer.advance() for _ in bar]
    parts = np.array_split([(row["step"], row["loss"], row["accuracy"]) for row in taken],
                           min(POINTS, steps))  # fmt: skip
    yield {"curve": [[int(part[-1, 0]), *_digits(part[:, 1:].mean(axis=0))] for part in parts]}


def _digits(numbers: Sequence[float]) -> list[float]:
    return [float(f"{x:.4g}") for x in numbers]


class Learned(NamedTuple):
    """What came of an attention's trainings: an entry for each seed."""

    steps: np.ndarray  # (T,)
    losses: np.ndarray  # (S, T), means of the steps since the point before
    right: np.ndarray  # (S, T)

    @property
    def when(self) -> list[int | None]:
        """After how many steps nearly all symbols were right; None: never."""
        return [
            int(self.steps[np.argmax(row >= LEARNED)]) if (row >= LEARNED).any() else None
            for row in self.right
        ]

    @property
    def rise(self) -> float:
        """How far a loss was above the lowest that it had been, at most."""
        return float((self.losses - np.minimum.accumulate(self.losses, axis=1)).max())


def learned(rows: list[Row]) -> dict[str, Learned]:
    """Return the curves of each attention."""
    found = {}
    for name in ATTENTIONS:
        curves = np.array([r["curve"] for r in rows if r["attention"] == name and "curve" in r])
        found[name] = Learned(curves[0, :, 0], curves[:, :, 1], curves[:, :, 2])
    return found


def report(rows: list[Row]) -> Report:
    """Return how both attentions learned, and what that says of the claim."""
    by, times = learned(rows), {r["attention"]: r["seconds"] for r in rows if "seconds" in r}
    size = next(row for row in rows if "curve" in row)
    linear, softmax = (by[name] for name in ATTENTIONS)
    return Report(
        f"""
Sequences of up to {size["length"]} tokens, {size["layers"]} layers of {size["heads"]} heads of
{size["head_dim"]}, batches of {size["batch"]}, {size["steps"]:,} steps of RAdam at
{_rates(size["steps"])}, {len(linear.losses)} seeds; gradients are clipped to a norm of 1, and
nothing is dropped. The source has 128 tokens and 4 layers of 8 heads, as `--scale full` does. No
sequence comes twice: the training's loss is that on new data. A guess has a loss of {GUESS:.3f}
nats, and is right once in {SYMBOLS}.

{
            table(
                ["attention", "loss at the end", "symbols right", f"steps to {LEARNED:.0%} right",
                 "largest rise of a loss", "ms a step", "seconds to the end"],
                [_row(name, found, times[name]) for name, found in by.items()],
            )
        }

{_sentences(linear, softmax)}

{_learning(linear, softmax)}a step takes linear attention {times["linear"] / times["softmax"]:.2f}
times as long as softmax.

![the loss against steps, and against seconds](causal_copy.png)
""",
        {"causal_copy.png": partial(plot, found=by, times=times)},
    )  # fmt: skip


def _rates(steps: int) -> str:
    later = f", and {RATE / 10:g} after {REDUCED_AT:,}" if steps > REDUCED_AT else ""
    return f"a rate of {RATE:g}{later}"


def _row(name: str, found: Learned, seconds: float) -> list[object]:
    when = [f"{steps:,}" if steps else "never" for steps in found.when]
    return [
        name, _between(found.losses[:, -1], ".4f"), _between(found.right[:, -1], ".1%"),
        ", ".join(when), f"{found.rise:.3f}", 1e3 * seconds, seconds * float(found.steps[-1]),
    ]  # fmt: skip


def _between(numbers: np.ndarray, form: str) -> str:
    """The mean of the seeds, and the least and the largest."""
    return f"{numbers.mean():{form}} ({numbers.min():{form}} to {numbers.max():{form}})"


def _sentences(linear: Learned, softmax: Learned) -> str:
    ends = [found.losses[:, -1].mean() for found in (linear, softmax)]
    same, smooth = ends[0] - ends[1] < 0.01 * GUESS, linear.rise < 0.1 * GUESS
    return f"""The source's claim: linear attention reaches the same loss as softmax.
{supported(same)}: it ends at {ends[0]:.4f} nats and softmax at {ends[1]:.4f}, where a hundredth of
a guess's loss counts as the same. And: it converges smoothly. {supported(smooth)}: no mean of
{linear.steps[0]:.0f} steps was more than {linear.rise:.3f} nats above an earlier one (softmax:
{softmax.rise:.3f}), where a tenth of a guess's loss counts as a setback."""


def _learning(linear: Learned, softmax: Learned) -> str:
    steps = [[n for n in found.when if n] for found in (linear, softmax)]
    if any(len(found) < len(linear.when) for found in steps):
        return "Not every seed came so far; "
    times = np.mean(steps[0]) / np.mean(steps[1])
    return f"Until {LEARNED:.0%} are right linear attention takes {times:.1f} times the steps; "


def plot(path: Path, found: dict[str, Learned], times: dict[str, float]) -> None:
    """Draw the losses against steps and against seconds: the mean of all seeds, and their band."""
    with picture(path, (7.6, 3.2)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for line, (name, curves) in zip(LINES, found.items(), strict=False):
            band(left, curves.steps, curves.losses, **line, label=name)
            band(right, curves.steps * times[name], curves.losses, **line)
        for axis, label in ((left, "step"), (right, "seconds")):
            axis.axhline(GUESS, color="#999999", linestyle=":", linewidth=1)
            axis.set_yscale("log")
            axis.set_xlabel(label)
        left.set_ylabel("cross entropy (nats per symbol)")
        figure.legend(loc="outside upper left", ncols=2)


EXPERIMENT = Experiment(
    "causal_copy",
    "The causal copy of linear attention's authors",
    "Katharopoulos et al. 2020, figure 2: `0 w 0 w`, and the loss is that on the second half.",
    cases,
    run,
    report,
)

"""Language from real text: what positions and which attention are worth, in bits a character.

The text is Python's own, `pydoc_data.topics`. Its topics quote one another, so that what is held
out would have been read in training: a paragraph stands in the text only where it comes first. The
last tenth is held out. A model that gives the character x_t the probability p(x_t) after those
before it in its window needs

    bits = -1/T sum_t log2 p(x_t)                                                             (1)

a character. All models have the same width and depth, and see the same windows in the same order;
they differ by their attention, and by what tells them where a character stands.
"""

from __future__ import annotations

import lzma
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .. import functions as F
from .. import generation, nn
from ..device import keep_freed_memory, resolve_device
from ..function import no_grad
from ..plots import BLUE, GREEN, INK, ORANGE, VERMILION, band, picture
from ..settings import Recipe
from ..tensor import Tensor
from ..training import Trainer
from .experiment import Case, Experiment, Report, Row, supported, table

Model = tuple[str, str]  # attention, and the positions that are added to characters

MODELS: tuple[Model, ...] = (
    ("linear", "none"),
    ("linear", "learned"),
    ("relative", "none"),
    ("relative", "learned"),
    ("fourier", "none"),
    ("delta", "none"),
    ("softmax", "none"),
    ("softmax", "learned"),
)
REPEATED = MODELS[:4]  # with several seeds: those that S0's claim is about
SEEDS = {"smoke": 1, "default": 2, "full": 3}
# With one seed each:
ONCE: dict[str, tuple[Model, ...]] = {"smoke": (), "default": MODELS[4:], "full": MODELS[4:]}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 24, "width": 32, "heads": 2, "layers": 1, "batch": 2, "steps": 4},
    "default": {"context": 128, "width": 96, "heads": 3, "layers": 2, "batch": 8, "steps": 1500},
    "full": {"context": 512, "width": 512, "heads": 8, "layers": 6, "batch": 32, "steps": 10_000},
}
RATE, LOOKS, READ = 3e-3, 15, 64  # how often the held-out text is read, windows at a time
PROMPT, SAMPLES, TEMPERATURE = "The ", 3, 0.8


class Text(NamedTuple):
    """What is learned from, and what is held out."""

    train: str
    held_out: str

    @property
    def alphabet(self) -> str:
        """Every character of both, in order."""
        return "".join(sorted(set(self.train + self.held_out)))

    def tokens(self, characters: str) -> NDArray[np.int64]:
        """Return their places in the alphabet."""
        places = {character: place for place, character in enumerate(self.alphabet)}
        return np.array([places[character] for character in characters])


def topics() -> list[str]:
    """Return what Python's `help` knows beside the docstrings."""
    from pydoc_data.topics import topics

    return list(topics.values())


def once(texts: Sequence[str]) -> str:
    r"""Join texts, without the paragraphs that have been there before.

    >>> once(["One.\n\nTwo\nlines.", "Two lines.\n\nThree."]).split("\n\n")
    ['One.', 'Two\nlines.', 'Three.']
    """
    first: dict[str, str] = {}
    for paragraph in (part for text in texts for part in text.split("\n\n")):
        first.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(first.values())


def split(characters: str) -> Text:
    """Hold the last tenth out."""
    end = len(characters) * 9 // 10
    return Text(characters[:end], characters[end:])


@cache
def text() -> Text:
    """Return Python's topics, each paragraph once, and split."""
    return split(once(topics()))


def known(parts: Text, span: int = 60) -> float:
    """Return which share of the spans of the held-out text stand in the training text, too."""
    train, held_out = (
        [part[start : start + span] for start in range(len(part) - span + 1)] for part in parts
    )
    seen = set(train)
    return sum(piece in seen for piece in held_out) / len(held_out)


def ngram_bits(parts: Text, n: int) -> float:
    """Return the bits a character of the held-out text, by counts of up to n characters.

    Where a context h was seen N(h) times, T(h) different characters behind it,

        p_k(x | h) = (N(h x) + T(h) p_{k-1}(x | h')) / (N(h) + T(h))

    and h' is h without its first character. p_0 is that of a guess.

    Source: Witten and Bell 1991; Chen and Goodman 1999, section 2.5.
    """
    train, held_out = parts
    share = np.full(len(held_out), 1 / len(parts.alphabet))
    for before in range(n):
        pairs = Counter(train[end - before : end + 1] for end in range(before, len(train)))
        seen: Counter[str] = Counter()
        for pair, count in pairs.items():
            seen[pair[:-1]] += count
        kinds = Counter(pair[:-1] for pair in pairs)
        for end in range(before, len(held_out)):
            pair = held_out[end - before : end + 1]
            if number := seen[context := pair[:-1]]:
                guess = kinds[context] * share[end]
                share[end] = (pairs[pair] + guess) / (number + kinds[context])
    return float(-np.log2(share).mean())


def compressed_bits(parts: Text, compress: Callable[[bytes], bytes]) -> float:
    """Return how many bits a character the held-out text adds to the compressed training text."""
    alone, both = (len(compress(part.encode())) for part in (parts.train, "".join(parts)))
    return 8 * (both - alone) / len(parts.held_out)


BASELINES: dict[str, Callable[[Text], float]] = {
    "unigrams": partial(ngram_bits, n=1),
    "bigrams": partial(ngram_bits, n=2),
    "6-grams": partial(ngram_bits, n=6),
    "gzip": partial(compressed_bits, compress=partial(zlib.compress, level=9)),
    "xz": partial(compressed_bits, compress=lzma.compress),
}


@dataclass(frozen=True)
class LanguageTask:
    """Each next character of windows of the training text, for a model of some size."""

    positions: str
    context: int
    width: int
    heads: int
    layers: int

    examples: ClassVar[str] = "windows"

    def build(self, attention: str) -> nn.TransformerLM:
        """Return a new model."""
        return nn.TransformerLM(
            len(text().alphabet),
            self.width,
            self.heads,
            self.layers,
            positions=None if self.positions == "none" else self.positions,
            max_length=self.context,
            attention=attention,
            dim_feedforward=4 * self.width,
            dropout=0.0,
        )

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Return windows from anywhere, (N, context + 1): each has one character more to tell."""
        train = _train_tokens()
        starts = generator.integers(0, len(train) - self.context, count)
        windows: NDArray[np.int64] = train[starts[:, None] + np.arange(self.context + 1)]
        return windows

    def loss(self, model: Any, batch: NDArray[np.int64]) -> tuple[Tensor, float]:
        """Return the mean cross entropy, and the share of characters guessed right."""
        logits, targets = model(batch[:, :-1]), batch[:, 1:].reshape(-1)
        flat = logits.reshape(len(targets), -1)
        right = flat.numpy().argmax(axis=-1) == targets
        return F.cross_entropy(flat, targets), float(right.mean())

    def held_out_bits(self, model: Any, tokens: NDArray[np.int64], batch: int = READ) -> float:
        """Return (1) for tokens, in windows one behind the other."""
        count = (len(tokens) - 1) // self.context
        starts = self.context * np.arange(count)
        windows = tokens[starts[:, None] + np.arange(self.context + 1)]
        with no_grad():
            parts = [windows[first : first + batch] for first in range(0, count, batch)]
            nats = sum(self.loss(model, part)[0].item() * len(part) for part in parts)
        return nats / count / math.log(2)


@cache
def _train_tokens() -> NDArray[np.int64]:
    return text().tokens(text().train)


def cases(scale: str) -> list[Case]:
    """Return the text, what needs no model, and every model with its seeds."""
    models = [(model, seed) for seed in range(SEEDS[scale]) for model in REPEATED]
    models += [(model, 0) for model in ONCE[scale]]
    trained = [
        {"attention": attention, "positions": positions, "seed": seed, **SIZES[scale]}
        for (attention, positions), seed in models
    ]
    return [{"about": "text"}, *({"baseline": name} for name in BASELINES), *trained]


def run(case: Case) -> Iterator[Row]:
    """Yield what the text is, what a baseline needs, or how a model learned."""
    if "about" in case:
        raw = "\n\n".join(topics())
        parts = text()
        yield {
            "raw": len(raw),
            "train": len(parts.train),
            "held_out": len(parts.held_out),
            "alphabet": len(parts.alphabet),
            "known_raw": known(split(raw)),
            "known": known(parts),
        }
    elif "baseline" in case:
        yield {"bits": BASELINES[case["baseline"]](text())}
    else:
        yield learned(case)


def make_task(case: Case) -> LanguageTask:
    """Return the task of a case."""
    return LanguageTask(**{field.name: case[field.name] for field in fields(LanguageTask)})


def learned(case: Case) -> Row:
    """Train a model; return its bits as it learned, and what it writes in the end."""
    keep_freed_memory()
    task, steps = make_task(case), case["steps"]
    recipe = Recipe(case["batch"], steps, RATE, seed=case["seed"])
    trainer = Trainer(task, recipe, case["attention"], resolve_device("auto"))
    held_out = text().tokens(text().held_out)
    curve: list[tuple[int, float, float]] = []
    seconds = 0.0
    for step in tqdm(range(1, steps + 1), label(case), unit="step", disable=None):
        began = time.process_time()
        trainer.advance()
        seconds += time.process_time() - began
        if step * LOOKS // steps > (step - 1) * LOOKS // steps:
            bits = task.held_out_bits(trainer.model, held_out)
            curve.append((step * case["batch"] * task.context, round(bits, 4), round(seconds, 2)))
    return {
        "parameters": trainer.model.num_parameters(),
        "curve": curve,
        "samples": written(trainer.model, task.context, SAMPLES),
    }


def written(model: nn.TransformerLM, length: int, samples: int = 1) -> list[str]:
    """Let a model write texts, from its state, a character at a time."""
    prompt = np.tile(text().tokens(PROMPT), (samples, 1))
    choose = generation.Sampler(TEMPERATURE, seed=0)
    tokens = generation.generate(model, prompt, length - len(PROMPT), choose=choose)
    alphabet = text().alphabet
    return [PROMPT + "".join(alphabet[token] for token in line) for line in tokens]


def label(row: Row) -> str:
    """Return a model's attention, and what tells it where a character stands.

    >>> label({"attention": "relative", "positions": "learned"})
    "linear, Shaw's and learned"
    """
    own = {"relative": "Shaw's", "fourier": "Fourier"}.get(row["attention"])
    added = None if row["positions"] == "none" else row["positions"]
    places = " and ".join(filter(None, (own, added))) or "none"
    return f"{'linear' if own else row['attention']}, {places}"


class Learned(NamedTuple):
    """What all seeds of a model made of the text."""

    rows: list[Row]

    @property
    def bits(self) -> list[float]:
        """In the end, of each seed."""
        return [row["curve"][-1][1] for row in self.rows]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.bits))

    @property
    def spread(self) -> float:
        """How far apart they are."""
        return max(self.bits) - min(self.bits)


def by_model(rows: list[Row]) -> dict[Model, Learned]:
    """Return the rows of each model that was trained."""
    found: dict[Model, Learned] = {}
    for row in rows:
        if "attention" in row:
            found.setdefault((row["attention"], row["positions"]), Learned([])).rows.append(row)
    return found


def report(rows: list[Row]) -> Report:
    """Return the bits of all, S0's claim and S1's, the curves, and what was written."""
    (about,) = (row for row in rows if "about" in row)
    baselines = [row for row in rows if "baseline" in row]
    models = by_model(rows)
    one = next(iter(models.values())).rows[0]
    best = sorted(models.values(), key=lambda found: found.mean)
    results = table(
        ["attention, positions", "parameters", "bits a character", "of seeds", "processor, s"],
        map(_line, best),
    )
    without = table(
        ["without a model", "bits a character"],
        [[row["baseline"], f"{row['bits']:.3f}"] for row in baselines],
    )
    return Report(
        f"""
Of the {about["raw"]:,} characters of `pydoc_data.topics`, {about["train"] + about["held_out"]:,}
are left when each paragraph stands there once. The last {about["held_out"]:,} are held out. Of
their spans of 60 characters {about["known"]:.1%} stand in the training text, too; with the repeated
paragraphs it would be {about["known_raw"]:.1%}.

Each model has {one["layers"]} layers of width {one["width"]} and {one["heads"]} heads, and learns
from {one["steps"]:,} times {one["batch"]} windows of {one["context"]} characters, with a highest
rate of {RATE:g}. Parameters differ by what the positions have. The bits are those of the held-out
text, read in windows of the same length. What is claimed below rests on the number of characters
read, not on time: the seconds are those of the processor, on a machine that did other work beside.

{results}

{without}

{_best(best, baselines)}

{_absolute(models)}

{_quality(models)}

![bits a character against characters read, and against time](bits.png)

## What they write

From "{PROMPT}", out of the state, with the same draws at temperature {TEMPERATURE}.

{"".join(map(_sample, best))}
""",
        {"bits.png": partial(plot_bits, models=models, baselines=baselines)},
    )


def _line(found: Learned) -> list[str]:
    row = found.rows[0]
    seeds = ", ".join(f"{bits:.3f}" for bits in found.bits) if len(found.bits) > 1 else ""
    seconds = np.median([row["curve"][-1][2] for row in found.rows])
    return [label(row), f"{row['parameters']:,}", f"{found.mean:.3f}", seeds, f"{seconds:.0f}"]


def _best(best: list[Learned], baselines: list[Row]) -> str:
    first, last = best[0], best[-1]
    beaten = [row["baseline"] for row in baselines if row["bits"] > first.mean]
    return (
        f"The fewest bits, {first.mean:.3f}, has {label(first.rows[0])}; the most, "
        f"{last.mean:.3f}, {label(last.rows[0])}. The first beats "
        f"{', '.join(beaten) if beaten else 'nothing that needs no model'}."
    )


def gain(models: dict[Model, Learned], attention: str) -> float:
    """Return how many bits a character learned positions save an attention, seed by seed."""
    without, added = models[attention, "none"].bits, models[attention, "learned"].bits
    return float(np.mean([a - b for a, b in zip(without, added, strict=True)]))


def _absolute(models: dict[Model, Learned]) -> str:
    pair = [models["relative", positions] for positions in ("none", "learned")]
    spread = max(found.spread for found in pair)
    saved = gain(models, "relative")
    return f"""*S0: absolute positions add nothing to relative ones.* {supported(saved <= spread)}.
Learned positions save linear attention without any others {gain(models, "linear"):.3f} bits a
character. Beside Shaw's they {"save" if saved > 0 else "cost"} {abs(saved):.3f}, where two seeds
of one model differ by up to {spread:.3f}."""


def _quality(models: dict[Model, Learned]) -> str:
    if ("softmax", "learned") not in models:
        return ""
    linear, softmax = (models[name, "learned"] for name in ("linear", "softmax"))
    lost = linear.mean - softmax.mean
    verdict = supported(lost <= linear.spread)
    return f"""*S1: linear attention comes to the quality of softmax.* {verdict}.
With learned positions both, linear attention needs {abs(lost):.3f} bits a character
{"more" if lost > 0 else "less"} than softmax, where its seeds differ by up to
{linear.spread:.3f}."""


def _sample(found: Learned) -> str:
    row = found.rows[0]
    samples = "\n---\n".join(row["samples"])
    return f"{label(row)}, {found.bits[0]:.3f} bits:\n\n~~~text\n{samples}\n~~~\n\n"


_COLOURS = {
    "linear": BLUE,
    "relative": GREEN,
    "fourier": ORANGE,
    "delta": VERMILION,
    "softmax": INK,
}


def line_of(row: Row) -> dict[str, Any]:
    """Return how a model is drawn: its colour is its attention's, dashed with learned positions."""
    dashes = "-" if row["positions"] == "none" else (0, (4, 1.5))
    return {"color": _COLOURS[row["attention"]], "linestyle": dashes, "linewidth": 1.4}


def plot_bits(path: Path, models: dict[Model, Learned], baselines: list[Row]) -> None:
    """Draw the bits of all models as they learned; bands hold all seeds."""
    with picture(path, (8.0, 3.8)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for found in models.values():
            line = line_of(found.rows[0])
            curves = np.array([row["curve"] for row in found.rows])  # (seeds, looks, 3)
            read, bits, seconds = curves.mean(axis=0).T
            band(left, read / 1e6, curves[:, :, 1], **line, label=label(found.rows[0]))
            right.plot(seconds, bits, **line)
        for axis, unit in ((left, "million characters read"), (right, "seconds of processor")):
            low, high = axis.get_ylim()
            for row in baselines:
                if low < row["bits"] < high:
                    axis.axhline(row["bits"], color="#999999", linestyle=":", linewidth=1)
                    axis.annotate(row["baseline"], (1, row["bits"]), (0, 2), fontsize=8, ha="right",
                                  xycoords=("axes fraction", "data"),
                                  textcoords="offset points")  # fmt: skip
            axis.set_xlabel(unit)
        left.set_ylabel("bits a held-out character")
        figure.legend(loc="outside right upper")


EXPERIMENT = Experiment(
    "language",
    "Language: what positions and which attention are worth",
    "S0: relative positions need no absolute ones beside them. S1: linear attention comes to the "
    "quality of softmax. Here on the characters of Python's own `pydoc_data.topics`.",
    cases,
    run,
    report,
)

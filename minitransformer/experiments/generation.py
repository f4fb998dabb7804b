"""What the next pixel costs: from a state, from a cache, from nothing.

A transformer draws an image pixel by pixel, each from all before it. What it keeps of them decides
what a pixel costs, at place i:

    recurrent   linear attention keeps (S, Z): the same time and memory at every place
    cached      softmax attention keeps all keys and values: time and memory grow as i
    uncached    softmax attention keeps nothing, and is passed all pixels again: i of them, whose
                scores are i^2

The source printed the throughput of all three on a GPU, as many images at once as its memory held,
and the time of one image alone on a processor. Its models are measured here on a processor, alone
and in batches. A pixel is timed at seven places, from the second to the last; the time of an image
is the sum over all places, by straight lines between those. Weights are random: time does not
depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import generation, nn, no_grad, random
from ..course.measuring import peak_bytes
from ..nn.variant import KeyValueCache
from ..plots import LINES, picture
from ..tensor import Tensor
from .drawn_digits import LEVELS
from .experiment import Case, Experiment, Report, Row, supported, table

PLACES = 7
REPEATS, SECONDS = (2, 20), 1.0  # of a pixel: at least, at most, and no further one after so long
METHODS = {"recurrent": "linear", "cached": "softmax", "uncached": "softmax"}


class Model(NamedTuple):
    """A transformer's sizes."""

    layers: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """The model's width D; the feed-forward network has four times as much."""
        return self.heads * self.head_dim


MODELS = {  # by pixels: the one that draws digits, and the source's two
    64: Model(3, 4, 16),
    784: Model(8, 8, 32),
    3072: Model(16, 8, 32),
}
STATES = {"smoke": 2**20, "default": 2**30, "full": 2**36}  # bytes
IMAGES = {"smoke": 4, "default": 256, "full": 4**7}  # in a batch
TOKENS = {"smoke": 64, "default": 4096, "full": 2**16}  # passed at once
WHOLE = {"smoke": 100, "default": 10_000, "full": 4_000_000}  # tokens times layers


class Printed(NamedTuple):
    """What the source printed of a method."""

    seconds: float  # of an image alone, on a processor
    throughput: float  # images a second, as many at once as a GPU held


PRINTED = {
    784: {
        "recurrent": Printed(5.5, 142.8),
        "cached": Printed(7.4, 7.56),
        "uncached": Printed(72.6, 0.45),
    },
    3072: {
        "recurrent": Printed(45.1, 17.85),
        "cached": Printed(71.9, 0.32),
        "uncached": Printed(8651.4, 0.004),
    },
}


class Uncached(nn.TransformerLM):
    """A model that keeps the tokens and nothing else."""

    def init_state(self) -> Any:
        """Return no tokens."""
        return None

    def step(self, tokens: Any, state: Any) -> tuple[Tensor, Any]:
        """Pass all tokens so far."""
        seen = tokens if state is None else np.concatenate((state, tokens), axis=1)
        return self(seen), seen


def model_of(case: Case) -> Model:
    """Return the sizes of a case's model."""
    return Model(case["layers"], case["heads"], case["head_dim"])


def made(method: str, model: Model) -> nn.TransformerLM:
    """Return a model that continues sequences by a method."""
    random.manual_seed(0)
    kind = Uncached if method == "uncached" else nn.TransformerLM
    return kind(
        LEVELS, model.width, model.heads, model.layers, attention=METHODS[method],
        dim_feedforward=4 * model.width, dropout=0.0,
    ).eval()  # fmt: skip


def kept(method: str, pixels: int, model: Model) -> int:
    """Return how many bytes a method keeps of an image, before the last pixel."""
    numbers = {"recurrent": model.head_dim + 1, "cached": 2 * pixels, "uncached": 0}
    return 4 * model.layers * model.width * numbers[method]


def products(method: str, pixels: int, model: Model) -> int:
    """Return how many products of two numbers an image takes.

    A layer maps a token by 12 D^2 of them. Attention takes 2 D for each key that a query sees, or
    2 D E for a state.
    """
    places = np.arange(1, pixels + 1, dtype=object)
    mapped = 12 * model.width**2
    of_pixel = {
        "recurrent": mapped + 2 * model.width * model.head_dim + 0 * places,
        "cached": mapped + 2 * model.width * places,
        "uncached": mapped * places + model.width * places * (places + 1),
    }
    return int(model.layers * of_pixel[method].sum())


def largest_batch(method: str, pixels: int, model: Model, scale: str) -> int:
    """Return how many images are drawn at once: a power of 4, within what is kept and passed."""

    def fits(batch: int) -> bool:
        passed = batch * (pixels if method == "uncached" else 1)
        held = batch * kept(method, pixels, model)
        return batch <= IMAGES[scale] and passed <= TOKENS[scale] and held <= STATES[scale]

    batch = 1
    while fits(4 * batch):
        batch *= 4
    return batch


def cases(scale: str) -> list[Case]:
    """Return each method for each size of image, alone and in its largest batch."""
    models = {32: Model(1, 2, 16)} if scale == "smoke" else MODELS
    return [
        {
            "pixels": pixels,
            **model._asdict(),
            "method": method,
            "batch": batch,
            "whole": passed * model.layers <= WHOLE[scale] and batch == 1,
        }
        for pixels, model in models.items()
        for method in METHODS
        for passed in (pixels * (pixels + 1) // 2 if method == "uncached" else pixels,)
        for batch in sorted({1, largest_batch(method, pixels, model, scale)})
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield the seconds and the bytes of a pixel at some places, then the seconds of an image."""
    pixels, batch = case["pixels"], case["batch"]
    model = made(case["method"], model_of(case))
    with no_grad():
        model.step(np.zeros((batch, 1), int), model.init_state())  # compiles
        for place in np.linspace(2, pixels, PLACES).round().astype(int).tolist():
            before = seen(model, place - 1)
            yield {
                "place": place,
                "seconds": seconds(model, before, batch),
                "bytes": size(model, before, batch),
            }
    if case["whole"]:
        began = time.perf_counter()
        generation.generate(model, np.zeros((1, 1), int), pixels)
        yield {"whole_seconds": time.perf_counter() - began}


def seen(model: Any, count: int) -> Any:
    """Return the state of a model after so many pixels of one image, at least one."""
    return model.step(np.zeros((1, count), int), model.init_state())[1]


def copied(state: Any, batch: int) -> Any:
    """Return a state of one image as that of many."""
    if isinstance(state, KeyValueCache):
        used = (x[:, :, : state.length] for x in (state.keys, state.values))
        cache = KeyValueCache()
        cache.append(*(Tensor(np.repeat(x, batch, axis=0)) for x in used))
        return cache
    if isinstance(state, tuple):
        parts = (copied(part, batch) for part in state)
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if isinstance(state, Tensor):
        return Tensor(np.repeat(state.data, batch, axis=0))
    return np.repeat(state, batch, axis=0) if isinstance(state, np.ndarray) else state


def seconds(model: Any, before: Any, batch: int) -> float:
    """Return how long the next pixel takes, the median of some repeats."""
    tokens, (least, most) = np.zeros((batch, 1), int), REPEATS
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < least or (len(taken) < most and time.perf_counter() < end):
        state = copied(before, batch)
        began = time.perf_counter()
        logits, _ = model.step(tokens, state)
        generation.greedy(logits.numpy()[:, -1])
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def size(model: Any, before: Any, batch: int) -> int:
    """Return how many bytes of arrays the next pixel needs: what was kept, and what is computed."""
    return peak_bytes(lambda: model.step(np.zeros((batch, 1), int), copied(before, batch)))


class Image(NamedTuple):
    """What an image costs by a method: the rows of a case."""

    batch: int
    places: list[int]
    seconds: list[float]  # of a pixel of every image of the batch
    bytes: list[int]
    whole: float | None  # seconds, measured

    @property
    def summed(self) -> float:
        """The seconds of a batch, summed over all places."""
        places = np.arange(1, self.places[-1] + 1)
        return float(np.interp(places, self.places, self.seconds).sum())

    @property
    def throughput(self) -> float:
        """Images a second."""
        return self.batch / self.summed


_GAINS = "gain", "printed gain"
Images = Mapping[tuple[int, str], list[Image]]
"""Alone, then in the largest batch: by pixels and method."""


def images_of(rows: list[Row]) -> Images:
    """Return what the rows say."""
    found: dict[tuple[int, str], list[Image]] = {}
    cases = list(dict.fromkeys((row["pixels"], row["method"], row["batch"]) for row in rows))
    for pixels, method, batch in cases:
        own = [r for r in rows if (r["pixels"], r["method"], r["batch"]) == (pixels, method, batch)]
        timed = [row for row in own if "place" in row]
        whole = next((row["whole_seconds"] for row in own if "whole_seconds" in row), None)
        places, times, sizes = ([r[key] for r in timed] for key in ("place", "seconds", "bytes"))
        image = Image(batch, places, times, sizes, whole)
        found.setdefault((pixels, method), []).append(image)
    return found


def report(rows: list[Row]) -> Report:
    """Return the times of images, the source's beside them, and what a pixel costs by its place."""
    images = images_of(rows)
    sizes = sorted({pixels for pixels, _ in images})
    models = {row["pixels"]: model_of(row) for row in rows}
    longest = sizes[-1]
    off = [abs(x.summed / x.whole - 1) for own in images.values() for x in own if x.whole]
    return Report(
        f"""
*Gain* is how many times as fast as without a cache; printed are the source's figures. By products
is what the gain would be if a product of two numbers took the same time everywhere.

## One image alone

On a processor, here and in the source.

{table(["pixels", "", "seconds", "printed", *_GAINS, "gain by products"], _alone(images, models))}

The sum over places is within {max(off):.0%} of the {len(off)} images that were also drawn whole.

## As many images at once as fit

Here a processor draws a power of 4, up to a limit of what is kept of them and of how many pixels
are passed at once; in the source a GPU drew up to 10,000.

{table(["pixels", "", "at once", "images a second", "printed", *_GAINS], _together(images))}

784 pixels without a cache keep a GPU busy, one pixel from a state does not, unless many are drawn
at once. The models of 784 and 3,072 pixels have the source's layers, heads and widths, but choose
one of {LEVELS} levels, where those of the source end in a mixture of logistic distributions. That
of 64 pixels is the one that draws digits.

{_claims(images)}

## A pixel by its place

Of {longest:,} pixels, one image alone. Memory is what is kept of the pixels before and what
computing the next one needs, without the weights.

{table(["", *2 * ["second pixel", "last pixel", "growth"]], _growth(images, longest))}

{_constant(images, longest)}

![seconds and memory of a pixel against its place](places.png)
""",
        {"places.png": partial(plot_places, images={m: images[longest, m][0] for m in METHODS})},
    )


def gains(images: Images, pixels: int, method: str, over: str = "uncached") -> tuple[float, float]:
    """Return how many times as fast a method is as another: alone, and in the largest batches."""
    own, other = images[pixels, method], images[pixels, over]
    return other[0].summed / own[0].summed, own[-1].throughput / other[-1].throughput


def printed_gains(pixels: int, method: str, over: str = "uncached") -> tuple[float, float]:
    """Return the same of the source's figures."""
    own, other = PRINTED[pixels][method], PRINTED[pixels][over]
    return other.seconds / own.seconds, own.throughput / other.throughput


def _alone(images: Images, models: Mapping[int, Model]) -> Iterator[list[Any]]:
    for (pixels, method), (own, *_) in images.items():
        most, fewer = (products(x, pixels, models[pixels]) for x in ("uncached", method))
        printed = [PRINTED[pixels][method].seconds] if pixels in PRINTED else ["-"]
        yield [
            f"{pixels:,}",
            method,
            own.summed,
            *printed,
            *_gains(images, pixels, method, 0),
            _times(most / fewer),
        ]


def _together(images: Images) -> Iterator[list[Any]]:
    for (pixels, method), (*_, own) in images.items():
        printed = [PRINTED[pixels][method].throughput] if pixels in PRINTED else ["-"]
        yield [
            f"{pixels:,}",
            method,
            own.batch,
            own.throughput,
            *printed,
            *_gains(images, pixels, method, 1),
        ]


def _gains(images: Images, pixels: int, method: str, where: int) -> Iterator[str]:
    yield _times(gains(images, pixels, method)[where])
    yield _times(printed_gains(pixels, method)[where]) if pixels in PRINTED else "-"


def _times(gain: float) -> str:
    return f"{gain:,.0f}x" if gain >= 10 else f"{gain:.1f}x"


def _claims(images: Images) -> str:
    said = []
    for pixels in sorted(PRINTED.keys() & {size for size, _ in images}):
        for over, words in (("uncached", "without a cache"), ("cached", "with a cache")):
            ours = gains(images, pixels, "recurrent", over)
            theirs = printed_gains(pixels, "recurrent", over)
            found = [
                f"{where} {_times(printed)}, here {_times(measured)}, "
                f"*{'supported' if measured >= printed else 'not reached'}*"
                for where, measured, printed in zip(
                    ("alone", "in batches"), ours, theirs, strict=True
                )
            ]
            said.append(f"- {pixels:,} pixels, gain over softmax {words}: {'; '.join(found)}.")
    return "\n".join(said)


def _growth(images: Images, pixels: int) -> Iterator[list[str]]:
    for method in METHODS:
        own = images[pixels, method][0]
        times, sizes = own.seconds, own.bytes
        yield [
            method,
            *(f"{1000 * x:.3g} ms" for x in (times[0], times[-1])), _times(times[-1] / times[0]),
            *(f"{x / 2**20:.3g} MiB" for x in (sizes[0], sizes[-1])), _times(sizes[-1] / sizes[0]),
        ]  # fmt: skip


def _constant(images: Images, pixels: int) -> str:
    own = images[pixels, "recurrent"][0]
    grown = max(max(x) / min(x) for x in (own.seconds, own.bytes))
    return (
        "The source's claim: the time and the memory of a pixel do not depend on how many came "
        f"before. {supported(grown < 1.5)}: over the whole image neither is more than "
        f"{_times(grown)} its least."
    )


def plot_places(path: Path, images: Mapping[str, Image]) -> None:
    """Draw the seconds and the memory of a pixel against its place, a line for each method."""
    with picture(path, (7.6, 3.2)) as figure:
        left, right = figure.subplots(1, 2)
        for line, (method, own) in zip(LINES, images.items(), strict=True):
            left.plot(
                own.places,
                1000 * np.array(own.seconds),
                **line,
                marker="o",
                markersize=3,
                label=method,
            )
            right.plot(own.places, np.array(own.bytes) / 2**20, **line, marker="o", markersize=3)
        left.set_ylabel("ms of a pixel")
        right.set_ylabel("MiB kept and needed")
        for axis in (left, right):
            axis.set_yscale("log")
            axis.set_xlabel("place of the pixel")
        figure.legend(loc="outside upper left", ncols=3)


EXPERIMENT = Experiment(
    "generation",
    "Generation: what the next pixel costs",
    "Katharopoulos et al. 2020, tables 1, 2, 4 and 5: images a second and seconds an image.",
    cases,
    run,
    report,
)

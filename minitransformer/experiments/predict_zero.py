"""Predict zero, the test of S3: how low the loss gets, how fast, and what makes it explode.

Queries, keys and values are U[-1, 1], the targets zero; a layer of multi-head attention learns by
gradient descent. The source reports its best losses and times for inputs of four sizes, three
learning rates and three batch sizes, beside those of PyTorch and TensorFlow, and gradients that
became NaN in long runs. The loss that it prints has no square: the mean of the output itself, whose
gradient is the same wherever the output is. Nothing stops it on its way down.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from .. import functions as F
from .. import nn, optim, random
from ..plots import LINES, legend, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, supported, table

HEADS, EPOCH = 2, 100  # batches of an epoch
SIZES, RATES, BATCHES = (4, 8, 16, 32), (1e-3, 1e-4, 1e-5), (1, 4, 8)
EPOCHS = {"smoke": 2, "default": 30, "full": 1000}
EXPLOSIVE_STEPS = {"smoke": 30, "default": 3000, "full": 100_000}
CURES = ("none", "clipping", "normalisation")
PEER = "PyTorch"
PRINTED_BY = "printed: source", "printed: PyTorch", "printed: TensorFlow"
# Printed: the best loss in units of 1e-4, and seconds for 1,000 epochs of 100 batches of 8.
PRINTED = {  # by these three
    4: ((2.634, 0.467, 0.341), (448.6, 854.4, 845.4)),
    8: ((0.554, 1.956, 0.697), (583.0, 854.5, 841.6)),
    16: ((0.0565, 5.523, 3.638), (937.5, 858.2, 850.9)),
    32: ((0.0555, 11.03, 3.595), (1550.5, 865.5, 862.6)),
}


class Losses(NamedTuple):
    """The mean loss of each epoch, and how long they took."""

    means: list[float]
    seconds: float


def cases(scale: str) -> list[Case]:
    """Return every size, rate and batch size; then the explosion, and what is tried against it."""
    sizes, rates, batches = ((4,), (1e-3,), (1, 8)) if scale == "smoke" else (SIZES, RATES, BATCHES)
    learned = [
        {"size": size, "rate": rate, "batch": batch, "epochs": EPOCHS[scale]}
        for size in sizes
        for rate in rates
        for batch in batches
    ]
    steps = EXPLOSIVE_STEPS[scale]
    return learned + [{"cure": cure, "rate": 0.1, "steps": steps} for cure in CURES]


def run(case: Case) -> Iterator[Row]:
    """Yield the losses of our layer and of PyTorch's; or those without the square."""
    if "cure" in case:
        yield exploded(case["cure"], case["rate"], case["steps"])
        return
    size, rate, batch = case["size"], case["rate"], case["batch"]
    for name, train in (("ours", ours), (PEER, theirs)):
        if name == PEER and importlib.util.find_spec("torch") is None:
            continue
        with patch.dict(os.environ, MINITRANSFORMER_NUM_THREADS="1"):  # not enough to do for more
            losses = train(size, rate, draw(size, batch, case["epochs"]))
        yield {
            "layer": name,
            "best": min(losses.means),
            "first": losses.means[0],
            "last": losses.means[-1],
            "seconds": losses.seconds,
            "curve": [float(f"{x:.3g}") for x in losses.means],
        }


def draw(size: int, batch: int, epochs: int) -> Iterator[Any]:
    """Yield epochs of inputs, `(100, 3, batch, size, size)`."""
    rng = np.random.default_rng(size)
    for _ in range(epochs):
        yield rng.uniform(-1, 1, (EPOCH, 3, batch, size, size)).astype(np.float32)


def made(size: int) -> nn.MultiHeadAttention:
    """Return a layer that is always the same."""
    random.manual_seed(size)
    return nn.MultiHeadAttention(size, HEADS)


def ours(size: int, rate: float, epochs: Iterable[Any]) -> Losses:
    """Train our layer by gradient descent on the mean squared output."""
    layer = made(size)
    optimizer = optim.SGD(layer.parameters(), lr=rate)

    def step(inputs: Any) -> float:
        output = layer(*map(Tensor, inputs))
        loss = F.mse_loss(output, Tensor(np.zeros(output.shape, np.float32)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return trained(step, epochs)


def theirs(size: int, rate: float, epochs: Iterable[Any]) -> Losses:
    """Train PyTorch's layer on the same batches, from the same weights."""
    import torch

    torch.set_num_threads(1)
    layer = same_layer(made(size), size)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)

    def step(inputs: Any) -> float:
        output, _ = layer(*map(torch.from_numpy, inputs), need_weights=False)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return trained(step, epochs)


def same_layer(ours: nn.MultiHeadAttention, size: int) -> Any:
    """Return PyTorch's layer with our weights; it keeps those of the three inputs in one array."""
    import torch

    state = {name: torch.from_numpy(x) for name, x in ours.state_dict().items()}
    weights = {}
    for kind in ("weight", "bias"):
        joint = [state[f"{name}_projection.{kind}"] for name in ("query", "key", "value")]
        weights[f"in_proj_{kind}"] = torch.cat(joint)
        weights[f"out_proj.{kind}"] = state[f"out_projection.{kind}"]
    layer = torch.nn.MultiheadAttention(size, HEADS, batch_first=True)
    layer.load_state_dict(weights)
    return layer


def trained(step: Callable[[Any], float], epochs: Iterable[Any]) -> Losses:
    """Take a step for each batch of each epoch; drawing them does not count as time."""
    means, seconds = [], 0.0
    for batches in epochs:
        began = time.perf_counter()
        losses = [step(inputs) for inputs in batches]
        seconds += time.perf_counter() - began
        means.append(float(np.mean(losses)))
    return Losses(means, seconds)


def exploded(cure: str, rate: float, steps: int, size: int = 8) -> Row:
    """Train on the loss as printed, without the square; stop where it is not finite any more."""
    layer = made(size)
    norm = nn.LayerNorm(size)
    parameters = [*layer.parameters(), *(norm.parameters() if cure == "normalisation" else ())]
    optimizer = optim.SGD(parameters, lr=rate)
    curve: list[tuple[int, float, float]] = []
    every = max(1, steps // 200)
    for number, inputs in enumerate(stream(size, steps)):
        output = layer(*map(Tensor, inputs))
        loss = (norm(output) if cure == "normalisation" else output).mean()
        optimizer.zero_grad()
        with np.errstate(all="ignore"):
            loss.backward()
            gradient = optim.clip_grad_norm_(parameters, 1.0 if cure == "clipping" else 1e300)
            if not (math.isfinite(loss.item()) and math.isfinite(gradient)):
                return {"curve": curve, "ended": number, "largest": _largest(layer)}
            optimizer.step()
        if number % every == 0:
            curve.append((number, loss.item(), gradient))
    return {"curve": curve, "ended": None, "largest": _largest(layer)}


def stream(size: int, steps: int) -> Iterator[Any]:
    """Yield as many batches of 8."""
    epochs = draw(size, 8, -(-steps // EPOCH))
    yield from itertools.islice(itertools.chain.from_iterable(epochs), steps)


def _largest(layer: nn.Module) -> str:
    """The name of the parameter whose gradient is largest, or the first that is not finite."""
    gradients: dict[str, Any] = {name: p.grad for name, p in layer.named_parameters()}
    sizes = {name: float(np.abs(grad.numpy()).max()) for name, grad in gradients.items()}
    broken = [name for name, size in sizes.items() if not math.isfinite(size)]
    return broken[0] if broken else max(sizes, key=lambda name: sizes[name])


def report(rows: list[Row]) -> Report:
    """Return S3's tables beside ours, and its figures."""
    learned = [row for row in rows if "layer" in row]
    burst = {row["cure"]: row for row in rows if "cure" in row}
    return Report(
        f"""
## The best loss

At the source's batch of 8, over its three rates, in units of 1e-4. Printed are its figures after
1,000 epochs; ours and PyTorch's were measured here, after {learned[0]["epochs"]}, by gradient
descent without momentum.

{table(["input", "rate", "ours", "PyTorch", *PRINTED_BY], _losses(learned))}

{_comparison(learned)}

![the loss of each size, rate and batch size](losses.png)

![the loss of both layers from the same weights](race.png)

## The time

Seconds for an epoch of 100 batches of 8, by one thread; printed are a thousandth of 1,000 epochs.

{table(["input", "ours", "PyTorch", *PRINTED_BY], _times(learned))}

{_race(learned)}

![seconds for an epoch against the size of the input](times.png)

## The explosion

{_explosion(burst)}

![the loss without a square, and its cures](explosion.png)
""",
        {
            "losses.png": partial(plot_losses, rows=learned),
            "race.png": partial(plot_race, rows=learned),
            "times.png": partial(plot_times, rows=learned),
            "explosion.png": partial(plot_explosion, rows=burst),
        },
    )


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["size"] for row in rows})


def _found(rows: list[Row], key: str, **wanted: Any) -> Any:
    found = [row[key] for row in rows if all(row[k] == value for k, value in wanted.items())]
    return found[0] if found else "-"


def _losses(rows: list[Row]) -> Iterator[list[Any]]:
    for size in _sizes(rows):
        for rate in sorted({row["rate"] for row in rows}, reverse=True):
            best = (_found(rows, "best", size=size, rate=rate, batch=8, layer=x)
                    for x in ("ours", PEER))  # fmt: skip
            shown = [x if isinstance(x, str) else 1e4 * x for x in best]
            printed = PRINTED[size][0] if rate == max(RATES) else ("", "", "")
            yield [f"3x{size}x{size}", f"{rate:g}", *shown, *printed]


def _seconds(rows: list[Row], layer: str, size: int) -> Any:
    found = [r["seconds"] / r["epochs"] for r in rows
             if r["layer"] == layer and r["size"] == size and r["batch"] == 8]  # fmt: skip
    return float(np.median(found)) if found else "-"


def _times(rows: list[Row]) -> Iterator[list[Any]]:
    for size in _sizes(rows):
        here = (_seconds(rows, layer, size) for layer in ("ours", PEER))
        yield [f"3x{size}x{size}", *here, *(x / 1000 for x in PRINTED[size][1])]


def _comparison(rows: list[Row]) -> str:
    """Say whether two layers with the same weights learn the same."""
    ours, theirs = ([row["best"] for row in rows if row["layer"] == x] for x in ("ours", PEER))
    if not theirs:
        return f"{PEER} was not there to compare with."
    apart = max(abs(x / y - 1) for x, y in zip(ours, theirs, strict=True))
    more = [size for size, (losses, _) in PRINTED.items() if losses[0] < losses[1]]
    return (
        f"The source's layer comes lower than {PEER}'s at {_list(more)}, and less low at the other "
        f"sizes. {supported(apart > 0.01)} as a difference between layers: from the same weights, "
        f"on the same batches, the best losses of ours and of {PEER}'s differ by at most one part "
        f"in {float(f'{1 / max(apart, 1e-12):.1g}'):,.0f}, in {len(ours)} settings. What the "
        "source saw comes of something else than the layer, such as its start or its optimizer."
    )


def _race(rows: list[Row]) -> str:
    """Say whose time grows, and who is ahead."""
    source = [times[0] for _, times in PRINTED.values()]
    sizes = _sizes(rows)
    ours, theirs = ([_seconds(rows, x, size) for size in sizes] for x in ("ours", PEER))
    said = (
        f"The source's time grows {_growth(source)} times from the smallest input to the largest, "
        f"and falls behind {PEER}'s from 16x16 on. Ours grows {_growth(ours)} times"
    )
    if "-" in theirs:
        return said + "."
    ratios = [x / y for x, y in zip(ours, theirs, strict=True)]
    ahead = [size for size, ratio in zip(sizes, ratios, strict=True) if ratio < 1]
    return (
        f"{said}. Ahead of {PEER}'s, measured here: {_list(ahead) if ahead else 'at no size'}; it "
        f"takes {min(ratios):.2g} to {max(ratios):.2g} times as long. So small a layer computes "
        "little: what takes time is the way to each operation, in Python here, compiled there."
    )


def _list(sizes: list[int]) -> str:
    return ", ".join(f"{size}x{size}" for size in sizes)


def _growth(times: list[float]) -> str:
    return f"{times[-1] / times[0]:.2g}"


def _explosion(burst: dict[str, Row]) -> str:
    said = []
    for cure, row in burst.items():
        name = {"none": "As printed", "clipping": "With gradients clipped to norm 1"}.get(
            cure, "With the output normalised"
        )
        if row["ended"] is not None:
            said.append(
                f"{name}: not finite at step {row['ended']:,}, first in `{row['largest']}`."
            )
        else:
            _, loss, gradient = row["curve"][-1]
            said.append(
                f"{name}: finite after {row['steps']:,} steps (loss {loss:.3g}, gradient "
                f"{gradient:.3g})."
            )
    return (
        "The formula that the source prints lacks the square: the loss is the mean of the output. "
        "Its gradient is constant, so the output sinks, the weights that multiply each other grow, "
        "and with them their gradients. " + " ".join(said)
    )


def plot_losses(path: Path, rows: list[Row]) -> None:
    """Draw the loss of every epoch, a panel for each size."""
    sizes = _sizes(rows)
    with picture(path, (2.6 * len(sizes), 2.8)) as figure:
        axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axis, size in zip(axes, sizes, strict=True):
            axis.set_title(f"3x{size}x{size}", loc="left", fontsize=10)
            for row in rows:
                if row["size"] == size and row["layer"] == "ours":
                    rates = sorted({r["rate"] for r in rows}, reverse=True)
                    line = LINES[rates.index(row["rate"])]
                    epochs = np.arange(1, len(row["curve"]) + 1)
                    label = f"rate {row['rate']:g}" if row["batch"] == 8 else None
                    axis.plot(epochs, row["curve"], **line, alpha=0.35 + row["batch"] / 13,
                              label=label)  # fmt: skip
            axis.set_yscale("log")
            axis.set_xlabel("epoch")
        axes[0].set_ylabel("mean squared output")
        legend(axes[0], 3)


def plot_race(path: Path, rows: list[Row]) -> None:
    """Draw the loss of our layer over PyTorch's, a panel for each size."""
    sizes, rate = _sizes(rows), max(row["rate"] for row in rows)
    looks = {PEER: {"color": "#bbbbbb", "linewidth": 4}, "ours": LINES[0]}
    with picture(path, (2.6 * len(sizes), 2.8)) as figure:
        axes = figure.subplots(1, len(sizes), squeeze=False)[0]
        for axis, size in zip(axes, sizes, strict=True):
            axis.set_title(f"3x{size}x{size}", loc="left", fontsize=10)
            for layer, look in looks.items():
                wanted = {"size": size, "rate": rate, "batch": 8, "layer": layer}
                curve = _found(rows, "curve", **wanted)
                if curve != "-":
                    axis.plot(np.arange(1, len(curve) + 1), curve, **look, label=layer)
            axis.set_xlabel("epoch")
        axes[0].set_ylabel("mean squared output")
        legend(axes[0], 2, title=f"batches of 8, rate {rate:g}", alignment="left")


def plot_times(path: Path, rows: list[Row]) -> None:
    """Draw the time of an epoch against the size of the input, measured and printed."""
    sizes = _sizes(rows)
    with picture(path, (6.4, 3.2)) as figure:
        axis = figure.subplots()
        for line, layer in zip(LINES, ("ours", PEER), strict=False):
            seconds = [_seconds(rows, layer, size) for size in sizes]
            if "-" not in seconds:
                axis.plot(sizes, seconds, **line, marker="o", label=f"{layer}, measured")
        for place, (line, name) in enumerate(zip(LINES, PRINTED_BY, strict=True)):
            seconds = [PRINTED[size][1][place] / 1000 for size in PRINTED]
            axis.plot(list(PRINTED), seconds, **line, alpha=0.4, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(list(PRINTED), [f"3x{size}x{size}" for size in PRINTED])
        axis.set_ylabel("seconds for 100 batches of 8")
        figure.legend(loc="outside right upper")


def plot_explosion(path: Path, rows: dict[str, Row]) -> None:
    """Draw how far the loss without a square sinks, and its gradient."""
    with picture(path, (7.6, 3.0)) as figure:
        left, right = figure.subplots(1, 2)
        for line, (cure, row) in zip(LINES, rows.items(), strict=True):
            steps, losses, gradients = np.array(row["curve"], np.float64).T
            left.plot(steps, np.abs(losses), **line, label=cure)
            right.plot(steps, gradients, **line)
        left.set_ylabel("size of the loss")
        right.set_ylabel("norm of the gradient")
        for axis in (left, right):
            axis.set_yscale("log")
            axis.set_xlabel("step")
        figure.legend(loc="outside upper left", ncols=3)


EXPERIMENT = Experiment(
    "predict_zero",
    "Predict zero: losses, times, and an explosion",
    "S3, tables 2 and 3, figures 4 to 8: multi-head attention that learns to say zero.",
    cases,
    run,
    report,
)

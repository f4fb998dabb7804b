"""What layers cost against length and width: table 1 of S3, and what a Perceiver saves (S4).

                        operations    sequential    longest path
    self-attention      O(n^2 d)      O(1)          O(1)
    convolution         O(k n d^2)    O(1)          O(log_k n)
    recurrence          O(n d^2)      O(n)          O(n)
    latents that read   O(M N d)

for n tokens of d numbers, k taps, and N latents that read M bytes. An exponent is the slope of a
line through times on logarithmic axes: the processor's, which others on the machine do not count
in. What is timed, a forward by one thread:

    attention      softmax(X X^T / sqrt(d)) X by this package's kernel, which keeps no scores
    scores kept    the same by array operations, with the n x n scores in memory, as S3's layer
    convolution    y_i = sum_j W_j x_(i - j) over k = 3 taps, side by side for one product
    tanh           h_i = tanh(W x_i + U h_(i-1)), a loop over the tokens
    state          linear attention from token to token, a state of d x d numbers, by a kernel
    latents        the kernel of the first; queries are N latents, keys and values M bytes

Sequential operations are the longest chain on the tape of one layer. The path is found by
gradients: how many layers, or steps of a recurrence, until the last output depends on the first
input. A convolution's taps are neighbours, or lie k^l apart in layer l (dilated), for which alone
the printed logarithm holds.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from threadpoolctl import threadpool_limits

from .. import functions as F
from ..attention import linear_attention, softmax_attention
from ..course.measuring import peak_bytes
from ..function import Context, no_grad
from ..plots import BLUE, GREEN, INK, ORANGE, SKY, VERMILION, legend, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, supported, table

TAPS = 3
SECONDS = {"smoke": 0.005, "default": 0.4, "full": 2}  # at least, for each time
REPEATS = 5  # at least
LENGTHS = {"smoke": (9, 27), "default": (9, 27, 81, 243), "full": (9, 27, 81, 243, 729)}
CLOSE = 0.15  # what an exponent may differ by and be called the same
Layer = Callable[[], Tensor]


def doubled(first: int, last: int) -> tuple[int, ...]:
    """Return powers of two, from one exponent to another."""
    return tuple(2**x for x in range(first, last + 1))


class Sweep(NamedTuple):
    """The sizes at which a layer is timed, and the exponent that is printed."""

    layer: str
    along: str
    sizes: tuple[int, ...]
    others: dict[str, int]
    printed: int


SWEEPS = (
    Sweep("attention", "n", doubled(9, 13), {"d": 64}, 2),
    Sweep("attention", "d", doubled(5, 8), {"n": 2048}, 1),
    Sweep("scores kept", "n", doubled(8, 12), {"d": 64}, 2),
    Sweep("scores kept", "d", doubled(8, 13), {"n": 512}, 1),
    Sweep("convolution", "n", doubled(9, 13), {"d": 256}, 1),
    Sweep("convolution", "d", doubled(7, 11), {"n": 512}, 2),
    Sweep("tanh", "n", doubled(7, 11), {"d": 256}, 1),
    Sweep("tanh", "d", doubled(8, 12), {"n": 32}, 2),
    Sweep("state", "n", doubled(9, 13), {"d": 64}, 1),
    Sweep("state", "d", doubled(5, 8), {"n": 1024}, 2),
    Sweep("latents", "M", doubled(10, 14), {"N": 128, "d": 64}, 1),
    Sweep("latents", "N", doubled(6, 10), {"M": 2048, "d": 64}, 1),
)
LAYERS = tuple(dict.fromkeys(sweep.layer for sweep in SWEEPS))
PATHS = {  # what is printed: sequential operations, and the path
    "attention": ("O(1)", "O(1)"),
    "convolution": ("O(1)", "O(log_k n)"),
    "convolution, dilated": ("O(1)", "O(log_k n)"),
    "tanh": ("O(n)", "O(n)"),
}
_COLOURS = dict(zip(LAYERS, (BLUE, SKY, GREEN, VERMILION, ORANGE, INK), strict=True))


def cases(scale: str) -> list[Case]:
    """Return every layer at every size; then the lengths at which steps are counted."""
    timed = []
    for layer, along, sizes, others, _ in SWEEPS:
        if scale == "smoke":
            sizes, others = doubled(3, 5), dict.fromkeys(others, 16)
        elif scale == "full" and along != "d":  # a head has at most 256 columns
            sizes = (*sizes, 2 * sizes[-1], 4 * sizes[-1])
        timed += [
            {"layer": layer, "along": along, **others, along: size, "seconds": SECONDS[scale]}
            for size in sizes
        ]
    return timed + [{"steps_of": name, "n": n} for name in PATHS for n in LENGTHS[scale]]


def run(case: Case) -> Iterator[Row]:
    """Yield the times and the memory of a layer; or how many steps it takes."""
    if "steps_of" in case:
        name, n = case["steps_of"], case["n"]
        yield {"sequential": chain(name, n), "path": reach(name, n)}
        return
    sizes = {key: case[key] for key in ("n", "d", "M", "N") if key in case}
    one_thread = patch.dict(os.environ, MINITRANSFORMER_NUM_THREADS="1")
    with one_thread, threadpool_limits(1), no_grad():
        layer = made(case["layer"], **sizes)
        yield {"bytes": peak_bytes(layer), **timed(layer, case["seconds"])}


# The layers ---------------------------------------------------------------------------------------


def made(layer: str, d: int, n: int = 0, M: int = 0, N: int = 0) -> Layer:
    """Return a forward of a layer, on numbers that are always the same."""
    x = drawn(n or M, d)
    one = x.reshape(1, 1, *x.shape)
    match layer:
        case "attention":
            return partial(softmax_attention, one, one, one)
        case "scores kept":
            return partial(scores_kept, x)
        case "convolution":
            return partial(convolution, x, drawn(TAPS * d, d))
        case "tanh":
            w, u = drawn(d, d), drawn(d, d)
            return lambda: F.cat(list(recurrence(x, w, u)))
        case "state":
            return partial(linear_attention, one, one, one, causal=True, algorithm="recurrent")
        case _:
            return partial(softmax_attention, drawn(1, 1, N, d), one, one)


def drawn(*shape: int, dtype: Any = np.float32) -> Tensor:
    """Return normal numbers; products with a matrix of them keep their size."""
    x = np.random.default_rng(shape[0]).standard_normal(shape) / math.sqrt(shape[-1])
    return Tensor(x.astype(dtype))


def scores_kept(x: Tensor) -> Tensor:
    """Return softmax(X X^T / sqrt(d)) X for tokens (n, d)."""
    return F.softmax(x @ x.T / math.sqrt(x.shape[1]), dim=-1) @ x


def convolution(x: Tensor, weight: Tensor, apart: int = 1) -> Tensor:
    """Return y_i = sum_j W_j x_(i - j apart) for tokens (n, d) and weights (k d, d)."""
    n, d = x.shape
    before = Tensor(np.zeros(((TAPS - 1) * apart, d), x.dtype))
    padded = F.cat([before, x])
    taps = [padded[j * apart : j * apart + n] for j in range(TAPS)]
    return F.cat(taps, dim=1) @ weight


def recurrence(x: Tensor, w: Tensor, u: Tensor) -> Iterator[Tensor]:
    """Yield states (1, d), each tanh(x_i W + h U) of the one before, for tokens (n, d)."""
    inputs, state = x @ w, Tensor(np.zeros((1, x.shape[1]), x.dtype))
    for i in range(len(x)):
        state = F.tanh(inputs[i : i + 1] + state @ u)
        yield state


# What is measured ---------------------------------------------------------------------------------


def timed(layer: Layer, seconds: float) -> Row:
    """Return the least and the median time of the processor, and of how many."""
    took: list[float] = []
    while len(took) < REPEATS or sum(took) < seconds:
        began = time.process_time()
        layer()
        took.append(time.process_time() - began)
    return {"fastest": min(took), "median": float(np.median(took)), "repeats": len(took)}


def grown(name: str, n: int) -> tuple[Tensor, Iterator[Tensor | None]]:
    """Return the first input, and all outputs after a layer, two, ...; None: not there yet."""
    rng, d = np.random.default_rng(n), 4
    x = [Tensor(row, requires_grad=True) for row in rng.standard_normal((n, 1, d))]
    weight, other = (Tensor(rng.standard_normal((rows, d))) for rows in (TAPS * d, d))

    def layers() -> Iterator[Tensor | None]:
        y = F.cat(x)
        if name == "tanh":
            *others, last = recurrence(y, other, other)
            yield from (None for _ in others)
            yield last
        for number in itertools.count():
            if name == "attention":
                y = scores_kept(y)
            else:
                y = convolution(y, weight, TAPS**number if "dilated" in name else 1)
            yield y

    return x[0], layers()


def reach(name: str, n: int) -> int:
    """Return after how many layers, or steps, the last output depends on the first input."""
    first, outputs = grown(name, n)

    def depends(y: Tensor) -> bool:
        y[-1].sum().backward()  # adds to the gradient, which was zero so far
        return first.grad is not None and bool(first.grad.numpy().any())

    numbered = enumerate(outputs, start=1)
    return next(number for number, y in numbered if y is not None and depends(y))


def chain(name: str, n: int) -> int:
    """Return the longest chain of operations on the tape of one layer."""
    _, outputs = grown(name, n)
    y = next(y for y in outputs if y is not None)
    nodes = list(behind(y))
    depth: dict[Context | None, int] = {None: 0}
    for node in sorted(nodes, key=lambda node: node.order):  # inputs come first
        depth[node] = 1 + max(depth[maker] for maker in makers(node))
    return depth[nodes[0]]


def behind(y: Tensor) -> Iterator[Context]:
    """Yield the nodes of the tape that a tensor comes from, its own first."""
    assert y.edge is not None
    waiting = [y.edge[0]]
    found = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        more = {maker for maker in makers(node) if maker is not None} - found
        found |= more
        waiting += more


def makers(node: Context) -> list[Context | None]:
    """Return the nodes that made the inputs of a node; None for a leaf."""
    return [edge[0] if isinstance(edge, tuple) else None for edge in node.edges]


# The report ---------------------------------------------------------------------------------------


class Slope(NamedTuple):
    """An exponent, and twice its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.error:.2f}"

    def agrees(self, printed: int) -> bool:
        """Return whether it is the printed one."""
        return abs(self.mean - printed) <= max(self.error, CLOSE)


def slope(x: Any, y: Any) -> Slope:
    """Fit log y = slope log x + constant, by least squares."""
    x, y = np.log(x), np.log(y)
    x -= x.mean()
    found = (x @ y) / (x @ x)
    left = y - y.mean() - found * x
    return Slope(found, 2 * math.sqrt(left @ left / (len(x) - 2) / (x @ x)))


def report(rows: list[Row]) -> Report:
    """Return S3's table 1 as measured, and its figure."""
    swept = {(sweep.layer, sweep.along): _swept(rows, *sweep[:2]) for sweep in SWEEPS}
    times = {key: slope(sizes, fastest) for key, (sizes, fastest, _) in swept.items()}
    memory = {key: slope(sizes, taken) for key, (sizes, _, taken) in swept.items()}
    lines, verdicts = [], []
    for layer in LAYERS:
        sweeps = [sweep for sweep in SWEEPS if sweep.layer == layer]
        cells = [
            (f"{along}: {times[layer, along]}", printed, str(memory[layer, along]))
            for _, along, _, _, printed in sweeps
        ]
        lines.append([f"`{layer}`", *itertools.chain(*cells)])
        others = [
            f"{along} to the {times[layer, along]} in place of {printed}"
            for _, along, _, _, printed in sweeps
            if not times[layer, along].agrees(printed)
        ]
        verdicts.append(f"- `{layer}`: {supported(not others)}{'; '.join(['', *others])}.")

    said = "\n".join(verdicts)
    whole, read = (
        dict(zip(*swept[key][:2], strict=True)) for key in (("attention", "n"), ("latents", "M"))
    )
    size = max(whole.keys() & read.keys())
    latents = next(row["N"] for row in rows if row.get("along") == "M")

    counted = {(row["steps_of"], row["n"]): row for row in rows if "steps_of" in row}
    lengths = sorted({n for _, n in counted})

    def counts(name: str, what: str) -> str:
        return ", ".join(str(counted[name, n][what]) for n in lengths)

    steps = [
        [name, counts(name, "sequential"), sequential, counts(name, "path"), path]
        for name, (sequential, path) in PATHS.items()
    ]
    return Report(
        f"""
## Time and memory

Exponents of the processor's time and of memory, measured by one thread at sizes a power of two
apart, ± two standard errors, beside those that are printed for the operations.

{table(["layer", *(2 * ["time", "printed", "memory"])], lines)}

The exponents of time are those printed, within their error or {CLOSE}:

{said}

Where a slope is flatter, something else still counts at these sizes, such as the exponentials of
scores beside short products, or the start of an operation; where it is steeper, what is worked on
has left a cache.

The source's layer keeps its scores, and its memory grows as n to the
{memory["scores kept", "n"]}; that of the kernel, which keeps none, as n to the
{memory["attention", "n"]}.

A Perceiver of {latents} latents that reads {size:,.0f} bytes is {whole[size] / read[size]:.3g}
times faster than full self-attention of them; its operations are {size / latents:.3g} times fewer
(S4).

## Sequential operations and paths

Counted at n = {", ".join(map(str, lengths))}: the longest chain of operations in a layer, and how
many layers (of the recurrence: steps) until the last output depends on the first input.

{table(["layer", "chain", "printed", "path", "printed"], steps)}

{supported(_as_printed(counted))}: attention needs one layer at any length, a recurrence n steps,
and a convolution of {TAPS} taps log_{TAPS} n layers if its taps spread; taps that stay neighbours
need (n - 1) / {TAPS - 1} layers, which no logarithm says.

![time against length and width, and paths](slopes.png)
""",
        {"slopes.png": partial(plot, rows=rows)},
    )


def _swept(rows: list[Row], layer: str, along: str) -> list[Any]:
    """Return the sizes of a sweep, the least times, and the bytes."""
    chosen = [row for row in rows if row.get("layer") == layer and row["along"] == along]
    return [np.array([row[key] for row in chosen], float) for key in (along, "fastest", "bytes")]


def _as_printed(counted: dict[tuple[str, int], Row]) -> bool:
    """Return whether all paths are as long as they should be."""
    wanted: dict[str, Callable[[int], int]] = {
        "attention": lambda n: 1,
        "convolution": lambda n: math.ceil((n - 1) / (TAPS - 1)),
        "convolution, dilated": lambda n: round(math.log(n, TAPS)),
        "tanh": lambda n: n,
    }
    return all(row["path"] == wanted[name](n) for (name, n), row in counted.items())


def plot(path: Path, rows: list[Row]) -> None:
    """Draw times against length and against width, and paths against length."""
    with picture(path, (7.6, 3.4)) as figure:
        *timed, steps = figure.subplots(1, 3)
        for axis, alongs in zip(timed, (("n", "M"), ("d",)), strict=True):
            for layer, along, *_ in SWEEPS:
                if along in alongs:
                    sizes, fastest, _ = _swept(rows, layer, along)
                    label = f"{layer} (of M)" if along == "M" else layer
                    axis.plot(sizes, 1e3 * fastest, "o-", color=_COLOURS[layer], markersize=3,
                              linewidth=1.4, label=label)  # fmt: skip
        timed[0].set(xlabel="tokens n, or bytes M", ylabel="milliseconds of the processor")
        timed[1].set_xlabel("width d")
        _plot_paths(steps, [row for row in rows if "steps_of" in row])
        for axis in (*timed, steps):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
        legend(timed[0], 6)


def _plot_paths(axis: Axes, rows: list[Row]) -> None:
    for name in PATHS:
        lengths, steps = zip(
            *((row["n"], row["path"]) for row in rows if row["steps_of"] == name), strict=True
        )
        layer, _, dilated = name.partition(", ")
        axis.plot(lengths, steps, "o--" if dilated else "o-", color=_COLOURS[layer], markersize=3,
                  linewidth=1.4)  # fmt: skip
        axis.annotate(dilated, (lengths[-1], steps[-1]), (-2, 5), textcoords="offset points",
                      ha="right")  # fmt: skip
    axis.set(xlabel="tokens n", ylabel="layers or steps to the farthest")


EXPERIMENT = Experiment(
    "slopes",
    "What layers cost against length and width",
    "S3, table 1: self-attention, convolution and recurrence; S4: latents that read an array.",
    cases,
    run,
    report,
)

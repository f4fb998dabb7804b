"""Naive or linear by memory: S0's count of numbers, beside the bytes that programs take.

S0 counts, of each of its two terms and by either algorithm, the largest array, and takes the
algorithm whose array is smaller. `minitransformer_kernels.planner` has its formulas, (1) to (4).
Here stand the array programs that they count, in NumPy, and the most that each holds at a time is
measured. The kernels of this house keep neither scores nor states; what they hold is measured, too,
and stands beside what the planner says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from minitransformer_kernels import planner
from minitransformer_kernels.planner import Sizes

from ..attention import (
    fourier_linear_attention,
    linear_attention,
    relative_linear_attention,
    softmax_attention,
)
from ..course.measuring import peak_bytes
from ..function import no_grad
from ..plots import BLUE, GREEN, INK, LINES, ORANGE, VERMILION, legend, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, supported, table

Array = NDArray[Any]

HEADS = 8
WIDTHS = {"smoke": (4, 8), "default": (4, 8, 16, 32), "full": (4, 8, 16, 32, 64)}
DISTANCES = {
    "smoke": (4, 8),
    "default": (4, 8, 16, 32, 64, 128),
    "full": (4, 8, 16, 32, 64, 128, 256),
}
COLUMNS = (1, 16)  # M of the values whose relative term is summed
LENGTHS = {
    "smoke": (32,),
    "default": (8, 32, 128, 512, 2048),
    "full": (8, 32, 128, 512, 2048, 8192),
}
E = 16  # and M, of the kernels
POSITIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "Shaw, k = 32": {"max_distance": 32},
    "Fourier, 1 + cos": {"fourier": "one_plus_cos"},
    "Fourier, cos": {"fourier": "cos"},
}
WITH_POSITIONS = 512  # the length
_REGIONS = {"naive": "#f6d9a8", "linear": "#a9cfe8"}
_COLOURS = {"naive": ORANGE, "linear": BLUE, "recurrent": GREEN, "chunked": VERMILION,
            "softmax": INK}  # fmt: skip


# -- S0's programs ---------------------------------------------------------------------------------


def kernelized_naive(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Return phi(Q) phi(K)^T V by the scores, (H, L, L); q and k (H, L, E), v (H, L, M)."""
    scores = q @ k.swapaxes(1, 2)
    return _unseen(scores, causal) @ v


def kernelized_linear(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Return the same by sums of k v^T: one of (H, E, M), or causal one for each token."""
    if not causal:
        return np.asarray(q @ (k.swapaxes(1, 2) @ v))
    states = k[..., None] @ v[..., None, :]  # (H, L, E, M)
    np.cumsum(states, axis=1, out=states)
    return np.asarray((q[:, :, None] @ states)[:, :, 0])


def relative_naive(q: Array, embedding: Array, v: Array, causal: bool) -> Array:
    """Return S_rel V by S_rel, (H, L, L): q_i . e_r for r = clip(j - i), with e (2k + 1, E)."""
    length, k = q.shape[1], len(embedding) // 2
    scores = np.empty((len(q), length, length), q.dtype)
    for i in range(length):
        distance = np.clip(np.arange(length) - i, -k, k)
        scores[:, i] = (q[:, i] @ embedding.T)[:, distance + k]
    return _unseen(scores, causal) @ v


def relative_linear(q: Array, embedding: Array, v: Array, causal: bool) -> Array:
    """Return the same by B = q . e_r, (H, L, 2k + 1): each far end weighs a sum of values."""
    (heads, length, columns), k = v.shape, len(embedding) // 2
    B = q @ embedding.T
    before = np.zeros((heads, length + 1, columns), v.dtype)
    np.cumsum(v, axis=1, out=before[:, 1:])
    i = np.arange(length)
    result = before[:, np.clip(i - k + 1, 0, length)]
    result *= B[..., :1]
    for r in range(1 - k, 1 if causal else k):
        first, last = max(0, -r), min(length, length - r)
        if first < last:
            result[:, first:last] += B[:, first:last, r + k, None] * v[:, first + r : last + r]
    if not causal:
        behind = before[:, -1:] - before[:, np.clip(i + k, 0, length)]
        behind *= B[..., -1:]
        result += behind
    return np.asarray(result)


def _unseen(scores: Array, causal: bool) -> Array:
    """Zero the scores of the future, in place."""
    for i in range(scores.shape[1] if causal else 0):
        scores[:, i, i + 1 :] = 0
    return scores


PROGRAMS: dict[str, dict[str, Callable[..., Array]]] = {
    "kernelized": {"naive": kernelized_naive, "linear": kernelized_linear},
    "relative": {"naive": relative_naive, "linear": relative_linear},
}


def program_bytes(term: str, form: str, causal: bool, length: int, size: int, columns: int) -> int:
    """Return the most bytes that a program holds beside its inputs.

    `size` is E of the kernelized term, and k of the relative one, whose E does not matter.
    """
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return rng.random(shape, np.float32)

    q = draw(HEADS, length, size if term == "kernelized" else E)
    other = draw(*q.shape) if term == "kernelized" else draw(2 * size + 1, E)
    return peak_bytes(partial(PROGRAMS[term][form], q, other, draw(HEADS, length, columns), causal))


def last_naive(smaller: Callable[[int], bool]) -> int:
    """Return the largest length for which the naive form is not the larger one.

    `smaller` says of a length whether the linear form is smaller; once it is, it stays so.
    """
    high = 1
    while not smaller(high):
        high *= 2
    low = high // 2  # where it is not; 0 has no arrays
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if smaller(middle) else (middle, high)
    return low


def crossover(term: str, causal: bool, size: int, columns: int) -> Row:
    """Return up to which length S0 prints naive, and up to which it takes no more bytes."""
    one, other = (E, size) if term == "relative" else (size, None)
    sizes = Sizes(1, 1, one, columns, causal, max_distance=other)
    _, (start, _) = planner.crossovers(sizes, cost_model="seed")[term]

    def smaller(length: int) -> bool:
        naive, linear = (
            program_bytes(term, form, causal, length, size, columns) for form in PROGRAMS[term]
        )
        return linear < naive

    return {"printed": start - 1, "measured": last_naive(smaller)}


# -- The kernels -----------------------------------------------------------------------------------


def kernel_bytes(sizes: Sizes, algorithm: str, backward: bool) -> int:
    """Return the most bytes that an attention holds beside its inputs."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Tensor:
        return Tensor(rng.standard_normal(shape, np.float32), requires_grad=backward)

    H, L, dim = sizes.heads, sizes.queries, sizes.head_dim
    inputs: list[Any] = [draw(1, H, L, dim) for _ in range(3)]
    gradient = rng.standard_normal((1, H, L, dim), np.float32)
    function: Callable[..., Any] = linear_attention
    options: dict[str, Any] = {"causal": sizes.causal, "algorithm": algorithm}
    if algorithm == "softmax":
        function = softmax_attention
        del options["algorithm"]
    if sizes.max_distance is not None:
        function = relative_linear_attention
        inputs.append(draw(H, 2 * sizes.max_distance + 1, dim))
    if sizes.fourier is not None:
        function = fourier_linear_attention
        places = np.arange(L, dtype=np.float64)[None, :, None]
        inputs += [places, places, draw(H, dim, 1), draw(H, dim), draw(H, dim)]
        options["form"] = sizes.fourier

    def run() -> object:
        if not backward:
            with no_grad():
                return function(*inputs, **options)
        for x in inputs:
            if isinstance(x, Tensor):
                x.grad = None
        output = function(*inputs, **options)
        output.backward(gradient)
        return output

    with patch.dict(os.environ, MINITRANSFORMER_NUM_THREADS="1"):
        return peak_bytes(run)


def cases(scale: str) -> list[Case]:
    """Return S0's terms, both ways; then the kernels, by length and with positions."""
    ways = (True, False)
    kernelized = [
        {"term": "kernelized", "causal": causal, "size": width, "columns": width}
        for causal in ways for width in WIDTHS[scale]
    ]  # fmt: skip
    relative = [
        {"term": "relative", "causal": causal, "size": k, "columns": columns}
        for causal in ways for columns in COLUMNS for k in DISTANCES[scale]
    ]  # fmt: skip
    lengths = [{"length": n, "causal": way, "positions": "none"} for way in ways
               for n in LENGTHS[scale]]  # fmt: skip
    others = [{"length": WITH_POSITIONS, "causal": way, "positions": name} for way in ways
              for name in POSITIONS if name != "none" and scale != "smoke"]  # fmt: skip
    return [*kernelized, *relative, *lengths, *others]


def run(case: Case) -> Iterator[Row]:
    """Yield a crossover; or what is held at a length, as S0's programs and as the kernels do it."""
    if "term" in case:
        yield crossover(**case)
        return
    length, causal = case["length"], case["causal"]
    sizes = Sizes(length, length, E, E, causal, heads=HEADS, **POSITIONS[case["positions"]])
    plain = case["positions"] == "none"
    if plain:
        for form, numbers in planner.seed_numbers(sizes)["kernelized"].items():
            yield {
                "by": "programs",
                "algorithm": form,
                "backward": False,
                "predicted": sizes.all_heads * sizes.itemsize * numbers,
                "measured": program_bytes("kernelized", form, causal, length, E, E),
            }
    for algorithm in (*planner.algorithms(sizes), *(["softmax"] if plain else [])):
        for backward in (False, True):
            yield {
                "by": "kernels",
                "algorithm": algorithm,
                "backward": backward,
                "predicted": planner.memory(sizes, algorithm, backward),
                "measured": kernel_bytes(sizes, algorithm, backward),
            }


# -- What it says ----------------------------------------------------------------------------------

PRINTED = {
    ("kernelized", True): "L > d²",
    ("kernelized", False): "L > d",
    ("relative", True): "L > 2k + 5",
    ("relative", False): "L > 2k + 5",
}


def report(rows: list[Row]) -> Report:
    """Return S0's crossovers beside the measured ones, and what the kernels hold."""
    crossed = [row for row in rows if "term" in row]
    held = [row for row in rows if "by" in row]
    kernels = [row for row in held if row["by"] == "kernels"]
    verdicts = "\n".join(f"- {sentence}" for sentence in _verdicts(crossed))
    return Report(
        f"""
## Naive or linear, by S0's count

Up to which length the naive form is taken: as S0 prints it, and as long as its program takes no
more bytes than the linear one's, beside the inputs. Programs in NumPy, float32, {HEADS} heads,
Lq = Lk = L; d is the width of keys and of values, k the largest distance, M the number of columns
of values.

{table(["term", "printed", "of", "up to L, printed", "measured", "measured / printed"],
       map(_crossing, crossed))}

{verdicts}

Supported is what is met within a tenth, or within four tokens. What the count of the relative term
leaves out are the arrays of values: sums of them and the result, of M columns each. Its four
numbers a query beside the 2k + 1 are those of one column.

![where naive and where linear is taken, printed and measured](choices.png)

## What the kernels hold

The kernels keep neither scores nor a state for each token. The most that they hold beside their
inputs, of {HEADS} heads of {E}, in KiB, as the planner says and as measured:

{table(["positions", "direction", "L", "algorithm", "forward: planner", "measured",
        "with backward: planner", "measured"], _held(kernels))}

{_planner(kernels)}

![memory against length, of S0's programs and of the kernels](memory.png)
""",
        {
            "choices.png": partial(plot_choices, rows=crossed),
            "memory.png": partial(plot_memory, rows=held),
        },
    )  # fmt: skip


def _way(causal: bool) -> str:
    return "masked" if causal else "bidirectional"


def _crossing(row: Row) -> list[object]:
    of = f"d = {row['size']}"
    if row["term"] == "relative":
        of = f"k = {row['size']}, M = {row['columns']}"
    return [
        f"{row['term']}, {_way(row['causal'])}", PRINTED[row["term"], row["causal"]], of,
        f"{row['printed']:,}", f"{row['measured']:,}", row["measured"] / row["printed"],
    ]  # fmt: skip


def _verdicts(rows: list[Row]) -> Iterator[str]:
    """Yield a sentence for each claim: met where no crossover is off by more than a tenth, or 4."""
    for term, causal, columns in dict.fromkeys(
        (r["term"], r["causal"], r["columns"] if r["term"] == "relative" else None) for r in rows
    ):
        found = [r for r in rows if (r["term"], r["causal"]) == (term, causal)
                 and columns in (None, r["columns"])]  # fmt: skip
        off = [abs(r["measured"] - r["printed"]) for r in found]
        met = all(x <= max(4, r["printed"] / 10) for x, r in zip(off, found, strict=True))
        ratios = [r["measured"] / r["printed"] for r in found]
        of = "" if columns is None else f", values of {columns} column{'s'[: columns > 1]}"
        yield (
            f"{supported(met)}: {PRINTED[term, causal]} for the {term} term, {_way(causal)}{of}; "
            f"measured at {min(ratios):.2f} to {max(ratios):.2f} times it."
        )


def _held(rows: list[Row]) -> Iterator[list[object]]:
    shown = [r for r in rows if r["positions"] != "none" or r["length"] in _corners(rows)]
    for key in dict.fromkeys(_kind(r) for r in shown):
        both = {r["backward"]: r for r in shown if _kind(r) == key}
        numbers = [f"{both[way][what] / 1024:,.0f}" for way in (False, True)
                   for what in ("predicted", "measured")]  # fmt: skip
        positions, causal, length, algorithm = key
        yield [positions, _way(causal), f"{length:,}", algorithm, *numbers]


def _kind(row: Row) -> tuple[str, bool, int, str]:
    return row["positions"], row["causal"], row["length"], row["algorithm"]


def _corners(rows: list[Row]) -> list[int]:
    """The length that all kinds have, and the longest."""
    lengths = [row["length"] for row in rows]
    return [WITH_POSITIONS, max(lengths)]


def _planner(rows: list[Row]) -> str:
    large = [row for row in rows if row["measured"] >= 2**16]  # Python itself takes some kilobytes
    ratios = [row["predicted"] / row["measured"] for row in large]
    return (
        f"Where at least 64 KiB are held, {len(large)} cases, the planner says {min(ratios):.2f} "
        f"to {max(ratios):.2f} times what is measured. By every algorithm it grows no faster than "
        f"L; in the forward, {'; '.join(_naive_at(rows, causal) for causal in (True, False))}. "
        "Which one is taken is a question of time."
    )


def _naive_at(rows: list[Row], causal: bool) -> str:
    """Up to where the naive kernels hold least of ours, and how much more in the end."""
    held: dict[int, dict[str, int]] = {}
    for row in rows:
        ours = row["positions"] == "none" and row["algorithm"] != "softmax"
        if ours and row["causal"] is causal and not row["backward"]:
            held.setdefault(row["length"], {})[row["algorithm"]] = row["measured"]
    least = [length for length, found in held.items() if found["naive"] == min(found.values())]
    last = held[max(held)]
    upto = f"least up to L = {max(least):,}, and " if least else ""
    return (
        f"{_way(causal)}, naive holds {upto}{last['naive'] / min(last.values()):.2g} times the "
        f"least at L = {max(held):,}"
    )


def plot_choices(path: Path, rows: Sequence[Row]) -> None:
    """Draw what S0 takes for each term, and where the programs' memory says otherwise."""
    with picture(path, (9.6, 3.3)) as figure:
        for axis, (term, causal) in zip(figure.subplots(1, 4), PRINTED, strict=True):
            found = [r for r in rows if (r["term"], r["causal"]) == (term, causal)]
            _draw_choices(axis, found)
            axis.set_title(f"{term}, {_way(causal)}", loc="left", fontsize=9)
            axis.set_ylabel("width, d" if term == "kernelized" else "largest distance, k")
        legend(axis, 4)


def _draw_choices(axis: Axes, rows: Sequence[Row]) -> None:
    """One panel: regions as printed, and a mark at each measured crossover."""
    sizes, printed = np.unique([(r["size"], r["printed"]) for r in rows], axis=0).T
    least, most = 1, 2 * max(max(r["printed"], r["measured"]) for r in rows)
    axis.fill_betweenx(sizes, least, printed, color=_REGIONS["naive"], linewidth=0,
                       label="printed: naive")  # fmt: skip
    axis.fill_betweenx(sizes, printed, most, color=_REGIONS["linear"], linewidth=0,
                       label="printed: linear")  # fmt: skip
    relative = rows[0]["term"] == "relative"
    for marker, columns in zip("os", COLUMNS if relative else (None,), strict=False):
        shown = [r for r in rows if columns in (None, r["columns"])]
        axis.plot([r["measured"] for r in shown], [r["size"] for r in shown], marker, color=INK,
                  markersize=5, markerfacecolor=INK if marker == "o" else "white", clip_on=False,
                  zorder=3, label=f"measured (relative: M = {columns})")  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlim(least, most)
    axis.set_ylim(sizes[0], sizes[-1])
    axis.set_yticks(sizes, [f"{size}" for size in sizes])
    axis.set_xlabel("length, Lq = Lk")
    axis.grid(False)


def plot_memory(path: Path, rows: Sequence[Row]) -> None:
    """Draw what a forward holds against length: S0's programs, and the kernels."""
    with picture(path, (8.2, 3.6)) as figure:
        for axis, causal in zip(figure.subplots(1, 2, sharey=True), (True, False), strict=True):
            shown = [r for r in rows if r["causal"] is causal and r["positions"] == "none"
                     and not r["backward"]]  # fmt: skip
            for by, line in (("programs", LINES[1]), ("kernels", LINES[0])):
                for algorithm in dict.fromkeys(r["algorithm"] for r in shown if r["by"] == by):
                    found = [r for r in shown if (r["by"], r["algorithm"]) == (by, algorithm)]
                    x = [r["length"] for r in found]
                    colour = {"color": _COLOURS[algorithm]}
                    axis.plot(x, [r["predicted"] / 1024 for r in found],
                              linestyle=line["linestyle"], linewidth=1.2, **colour)  # fmt: skip
                    axis.plot(x, [r["measured"] / 1024 for r in found],
                              "o" if by == "kernels" else "x", markersize=4.5, **colour,
                              label=f"{algorithm}, {by}")  # fmt: skip
            axis.set_title(_way(causal), loc="left", fontsize=10)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel("length, Lq = Lk")
            axis.legend(fontsize=7.5)
        figure.axes[0].set_ylabel("KiB beside the inputs")


EXPERIMENT = Experiment(
    "memory",
    "Naive or linear: predicted and measured memory, and the map of choices",
    "S0: for each term that algorithm which occupies least memory, masked and bidirectional.",
    cases,
    run,
    report,
)

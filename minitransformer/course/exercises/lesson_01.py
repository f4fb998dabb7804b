"""Your first kernel: what one thread owns, what a block shares, and who has to wait."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import Any

import numpy as np

from minitransformer_kernels import microscope
from minitransformer_kernels.arrays import ceil_div

from ..exercise import Array, Case, Exercise, Random, Wrong, launched

THREADS = 32
ACROSS, DOWN = 8, 4  # threads of a block with two axes
FEWEST = 2 * 5 + 1  # reads of the tile by thread 0: two a turn, and the sum
OUTPUTS = "out", "the count of reads", "the count of reads by the busiest thread"
IN_BLOCKS = "out", "the count of atomic additions", "the count of reads of the tile by thread 0"


def _launched(
    answer: Any, grid: Any, block: Any, *inputs: Any, out: tuple[int, ...], begin: float = np.nan
) -> tuple[Array, Any]:
    """What a kernel writes, and the report on how."""
    output = launched(answer, grid, block, *inputs, out=out, begin=begin)
    again = np.full(out, begin, output.dtype)
    return output, microscope.inspect(answer[grid, block], *inputs, again, compiled=False)


def _reading(report: Any, space: str) -> Array:
    """The accesses that read memory of that space, but for `out`."""
    trace = report.trace
    kinds = [
        site.kind == "read" and site.space == space and site.array != "out" for site in trace.sites
    ]
    return trace.accesses[np.isin(trace.accesses["site"], np.flatnonzero(kinds))]


def _reads(launch: tuple[Array, Any]) -> tuple[Array, int, int]:
    """What was written; the numbers read from arguments, in all and by the busiest thread."""
    output, report = launch
    made = _reading(report, "global")
    _, counts = np.unique(made[["block", "thread"]], return_counts=True)
    return output, len(made), counts.max(initial=0)


def _row(random: Random, size: int) -> Array:
    return random.uniform(1, 2, size).astype(np.float32)  # nothing cancels, no number is 0


def _enough(size: int) -> int:
    """Blocks for so many numbers; one for none, so that a guard has something to keep out."""
    return max(1, ceil_div(size, THREADS))


def _scale_cases(random: Random) -> Iterator[Case]:
    for name, size, hint in (
        ("six numbers", 6, "six threads write a number each, times the factor; 26 have none"),
        ("two blocks", int(random.integers(40, 60)), "thread 0 of the second block has number 32"),
        ("no numbers", 0, "nobody has anything to do"),
    ):
        factor = np.float32(random.uniform(0.2, 0.8))
        yield Case(name, {"x": _row(random, size), "factor": factor}, hint)


def _scale(answer: Any, x: Array, factor: Any) -> tuple[Array, int, int]:
    return _reads(_launched(answer, _enough(x.size), THREADS, x, factor, out=x.shape))


def _scaled(x: Array, factor: Any) -> tuple[Array, int, int]:
    return np.float64(factor) * x, x.size, min(x.size, 1)


def _sums_cases(random: Random) -> Iterator[Case]:
    for name, rows, columns, hint in (
        ("three rows", 3, 5, "thread r reads row r, a number at a time: where do they stand?"),
        ("one column", int(random.integers(33, 60)), 1, "is the row's number that of (1)?"),
        ("rows of nothing", 4, 0, "the sum of no numbers is 0, and it has to be written"),
    ):
        x = _row(random, rows * columns).reshape(rows, columns)
        yield Case(name, {"x": x}, hint)


def _sums(answer: Any, x: Array) -> tuple[Array, int, int]:
    return _reads(_launched(answer, _enough(len(x)), THREADS, x, out=x.shape[:1]))


def _of_rows(x: Array) -> tuple[Array, int, int]:
    return np.asarray(x, np.float64).sum(axis=1), x.size, x.shape[1]


def _transpose_cases(random: Random) -> Iterator[Case]:
    for name, rows, columns, hint in (
        ("2 x 3", 2, 3, "x runs along a row: it is the column of `x`, and the row of `out`"),
        ("a column", int(random.integers(9, 20)), 1,
         "the number along x is a column: seven threads of eight have none"),
        ("wide", 5, int(random.integers(17, 30)), "the last blocks stick out on both sides"),
    ):  # fmt: skip
        x = _row(random, rows * columns).reshape(rows, columns)
        yield Case(name, {"x": x}, hint)


def _transpose(answer: Any, x: Array) -> tuple[Array, int, int]:
    rows, columns = x.shape
    grid = ceil_div(columns, ACROSS), ceil_div(rows, DOWN)
    return _reads(_launched(answer, grid, (ACROSS, DOWN), x, out=(columns, rows)))


def _transposed(x: Array) -> tuple[Array, int, int]:
    return np.asarray(x, np.float64).T, x.size, 1


def _difference_cases(random: Random) -> Iterator[Case]:
    for name, size, hint in (
        ("one number", 1, "left of the first number there is a 0: who puts it into the tile?"),
        ("half a block", int(random.integers(9, 25)), "does every thread come to the barrier? Is "
         "each number read from `x` by its own thread alone?"),
        ("three blocks", int(random.integers(70, 90)), "the left neighbour of number 32 lies in "
         "another block, whose tile you cannot see"),
        ("no numbers", 0, "is there an x[i] to fetch?"),
    ):  # fmt: skip
        yield Case(name, {"x": _row(random, size)}, hint)


def _on_row(answer: Any, x: Array) -> tuple[Array, int]:
    return _reads(_launched(answer, _enough(x.size), THREADS, x, out=x.shape))[:2]


def _left_to_right(x: Array) -> tuple[Array, int]:
    """And each number is read once, but the last of a block by the next block, too."""
    return np.diff(np.asarray(x, np.float64), prepend=0.0), x.size + _enough(x.size) - 1


def _total_cases(random: Random) -> Iterator[Case]:
    for name, size, hint in (
        (
            "one block",
            32,
            "after the first turn the first 16 hold what is left "
            "to add; is the adding shared, and done in the tile?",
        ),
        ("six numbers", 6, "26 threads have no number, but they take part in the halving"),
        (
            "many blocks",
            int(random.integers(100, 200)),
            "do all blocks add to out[0] as one step, each once?",
        ),
        ("no numbers", 0, "the sum of no numbers is 0"),
    ):
        yield Case(name, {"x": _row(random, size)}, hint)


def _total(answer: Any, x: Array) -> tuple[Array, int, int]:
    output, report = _launched(answer, _enough(x.size), THREADS, x, out=(1,), begin=0)
    made = _reading(report, "shared")
    reads = ((made["block"] == 0) & (made["thread"] == 0)).sum()
    additions = report.total("global").atomics
    return output, max(additions, _enough(x.size)), max(reads, FEWEST)  # fewer are no fault here


def _by_halves(x: Array) -> tuple[Array, int, int]:
    return np.asarray(x, np.float64).sum(keepdims=True), _enough(x.size), FEWEST


def _smooth_cases(random: Random) -> Iterator[Case]:
    for name, blocks, rounds, hint in (
        ("one round", 2, 1, "the average of yourself and your right neighbour"),
        ("two rounds", 1, 2, "who may still read what the next round overwrites?"),
        ("many rounds", 3, int(random.integers(4, 9)), "as two rounds, and again"),
        ("no rounds", 2, 0, "nothing happens to the numbers"),
    ):
        yield Case(name, {"x": _row(random, blocks * THREADS), "rounds": rounds}, hint)


def _smooth(answer: Any, x: Array, rounds: int) -> Array:
    return launched(answer, len(x) // THREADS, THREADS, x, rounds, out=x.shape)


def binomials(x: Array, rounds: int, threads: int = THREADS) -> Array:
    """After n rounds neighbour k counts (n over k) / 2^n."""
    ring = np.asarray(x, np.float64).reshape(-1, threads)
    shares = [comb(rounds, k) / 2**rounds * np.roll(ring, -k, axis=1) for k in range(rounds + 1)]
    return np.sum(shares, axis=0).reshape(-1)


_SECOND = "        cuda.syncthreads()\n"  # a barrier in a loop

EXERCISES = (
    Exercise(
        "scale", "scale", 1, _scale_cases, _scaled, OUTPUTS, 1e-6, _scale,
        wrong=(
            Wrong("no guard", {"if i < x.size:": "if True:"}, "six numbers"),
            Wrong("the guard lets one too many in", {"i < x.size": "i <= x.size"}, "six numbers"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "two blocks"),
            Wrong("the guard asks for the thread's number in its block",
                  {"i < x.size": "cuda.threadIdx.x < x.size"},
                  "two blocks"),
            Wrong("one thread does it all", {"if i < x.size:\n        out[i] = factor * x[i]":
                  "if i == 0:\n        for j in range(x.size):\n"
                  "            out[j] = factor * x[j]"}, "six numbers"),
        ),
    ),
    Exercise(
        "row-sums", "row_sums", 1, _sums_cases, _of_rows, OUTPUTS, 1e-6, _sums,
        wrong=(
            Wrong("the guard asks for columns", {"r < x.shape[0]": "r < x.shape[1]"}, "three rows"),
            Wrong("the first number of a row is forgotten",
                  {"range(x.shape[1])": "range(1, x.shape[1])"},
                  "three rows"),
            Wrong("added to what is not set", {"out[r] = total": "out[r] += total"}, "three rows"),
            Wrong("the sum begins with the first number, not with 0", {"float32(0)": "x[r, 0]",
                  "range(x.shape[1])": "range(1, x.shape[1])"}, "rows of nothing"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "one column"),
            Wrong("the sum is left to NumPy", {"out[r] = total": "out[r] = x[r].sum()",
                  "total += x[r, c]": "pass"}, "three rows"),
        ),
    ),
    Exercise(
        "transpose", "transpose", 2, _transpose_cases, _transposed, OUTPUTS, 1e-6, _transpose,
        wrong=(
            Wrong("no guard for columns", {" and c < x.shape[1]": ""}, "2 x 3"),
            Wrong("no guard for rows", {"r < x.shape[0] and ": ""}, "2 x 3"),
            Wrong("not transposed", {"out[c, r]": "out[r, c]"}, "2 x 3"),
            Wrong("x is taken for the row", {"c, r = ": "r, c = "}, "a column"),
            Wrong("one thread does it all", {"if r < x.shape[0] and c < x.shape[1]:\n        "
                  "out[c, r] = x[r, c]": "if r == 0 and c == 0:\n        "
                  "for a in range(x.shape[0]):\n            for b in range(x.shape[1]):\n"
                  "                out[b, a] = x[a, b]"}, "2 x 3"),
        ),
    ),
    Exercise(
        "difference", "difference", 3, _difference_cases, _left_to_right, OUTPUTS[:2], 1e-6,
        _on_row,
        wrong=(
            Wrong("no barrier", {"    cuda.syncthreads()\n": ""}, "half a block"),
            Wrong("its own number is taken from the neighbour's",
                  {"tile[t + 1] - tile[t]": "tile[t] - tile[t + 1]"}, "one number"),
            Wrong("barrier under the guard", {"    cuda.syncthreads()\n    if i < x.size:\n":
                  "    if i < x.size:\n        cuda.syncthreads()\n"}, "one number"),
            Wrong("no guard", {"    if i < x.size:\n        out": "    if True:\n        out"},
                  "one number"),
            Wrong("the first thread of a block has 0 on its left", {"x[i - 1] if i > 0 else ": ""},
                  "three blocks"),
            Wrong("the first number has a neighbour on its left", {" if i > 0 else float32(0)": ""},
                  "one number"),
            Wrong("the neighbour's number is fetched, too", {"tile[t + 1] - tile[t]":
                  "x[i] - (x[i - 1] if i > 0 else float32(0))"}, "one number"),
        ),
    ),
    Exercise(
        "total", "total", 3, _total_cases,
        _by_halves, IN_BLOCKS, 1e-6, _total,
        wrong=(
            Wrong("no barrier after filling", {"float32(0)\n    cuda.syncthreads()": "float32(0)"},
                  "one block"),
            Wrong("no barrier in the loop", {_SECOND + "        half": "        half"},
                  "one block"),
            Wrong("no guard", {"x[i] if i < x.size else float32(0)": "x[i]"}, "six numbers"),
            Wrong("the idle fill nothing", {
                  "tile[t] = x[i] if i < x.size else float32(0)":
                  "if i < x.size:\n        tile[t] = x[i]"}, "six numbers"),
            Wrong("no atomic", {"cuda.atomic.add(out, 0, tile[0])": "out[0] += tile[0]"},
                  "many blocks"),
            Wrong("the halving begins with a quarter",
                  {"THREADS // 2": "THREADS // 4"}, "one block"),
            Wrong("every thread adds to `out` itself",
                  {"    if t == 0:\n        cuda.atomic.add(out, 0, "
                  "tile[0])": "    if i < x.size:\n        cuda.atomic.add(out, 0, x[i])"},
                  "one block"),
            Wrong("thread 0 adds up the tile", {"        cuda.atomic.add(out, 0, tile[0])":
                  "        sum = float32(0)\n        for k in range(THREADS):\n"
                  "            sum += tile[k]\n        cuda.atomic.add(out, 0, sum)",
                  "half = THREADS // 2": "half = 0"}, "one block"),
        ),
    ),
    Exercise(
        "mended", "mended", 2, _smooth_cases, binomials, ("out",), 1e-6, _smooth,
        wrong=(
            Wrong("no second barrier", {"float32(2)\n" + _SECOND: "float32(2)\n"}, "two rounds"),
            Wrong("no first barrier", {"= value\n" + _SECOND: "= value\n"}, "one round"),
            Wrong("second barrier after the loop", {"float32(2)\n" + _SECOND:
                  "float32(2)\n    cuda.syncthreads()\n"}, "two rounds"),
            Wrong("the left neighbour in place of the right one", {"t + 1": "t - 1"}, "one round"),
        ),
    ),
)  # fmt: skip

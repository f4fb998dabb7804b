"""How a block becomes a loop: regions, slots, and what lanes hand each other."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numba import float32

from minitransformer_kernels.cpu.regions import all_lanes
from minitransformer_kernels.cpu.source import place
from minitransformer_kernels.cuda import cuda

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong, left_alone
from ..measuring import Lines
from .lesson_01 import binomials

THREADS = 32


@cuda.jit
def bend(x, factor, out):  # type: ignore[no-untyped-def]
    """How much a curve bends: its lines are marked by the reader."""
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x  # (0)
    first = cuda.blockIdx.x * THREADS  # (1)
    own = x[first + t]  # (2)
    tile[t] = own  # (3)
    cuda.syncthreads()
    left = tile[(t + THREADS - 1) % THREADS]  # (4)
    cuda.syncthreads()
    tile[t] = own - left  # (5)
    half = factor / float32(2)  # (6)
    cuda.syncthreads()
    right = tile[(t + 1) % THREADS]  # (7)
    out[first + t] = half * (right - tile[t])  # (8)


VARIABLES = "t", "first", "own", "left", "half", "right"


def _plan() -> tuple[Array, ...]:
    """What the compiler found: varying variables, the region of each line, slots."""
    x = np.zeros(THREADS, np.float32)
    bend[1, THREADS](x, np.float32(1), x.copy())
    regions = bend.on_cpu.regions()
    varying = [name in regions.uniformity.varying for name in VARIABLES]
    slots = [name in regions.slots for name in VARIABLES]
    region = {
        place(statement)[1]: number
        for number, lanes in enumerate(all_lanes(regions.nodes), 1)
        for statement in lanes.body
    }
    text, first = inspect.getsourcelines(bend.function)
    lines = [at for at, line in enumerate(text, first) if "  # (" in line]
    of_lines = [region.get(line, 0) for line in lines]
    return tuple(np.array(answer, int) for answer in (varying, of_lines, slots))


class _Marked(Exercise):
    """Lists of marks: it tells how many are off, for where would be the answer."""

    def problem(self, case: Case, got: Iterable[Any]) -> str:
        marks = list(zip(self.outputs, got, self.expected(case), strict=True))
        for name, given, truth in marks:
            if given.shape != truth.shape:
                return f"{name} should have {truth.size} entries, got {given.size}"
        off = [(name, int((given != truth).sum()), truth.size) for name, given, truth in marks]
        if not any(number for _, number, _ in off):
            return ""
        return "these are off: " + ", ".join(
            f"{number} of {n} in {name}" for name, number, n in off
        )


def _asked(random: Random) -> Iterator[Case]:
    yield Case("bend", {}, "what is made without t and without reading an array is uniform; a "
               "region is one more than the barriers above; a slot is for what is set in one "
               "region and used in another")  # fmt: skip


def _looped(least: int, answer: Any, *inputs: Any) -> Any:
    """Try a function that must play each thread by itself: so many lines run at least."""
    with Lines() as lines:
        result = left_alone(answer, *inputs)
    if result is not None and lines.count < least:
        raise NotYet(
            f"it runs {lines.count} lines of Python, for {least} turns of threads: write the loops "
            "over the threads, and cut them where threads wait"
        )
    return result


def _smooth(answer: Any, x: Array, rounds: int, threads: int) -> Array:
    return _looped(len(x) * rounds, answer, x, rounds, threads)


def _smooth_cases(random: Random) -> Iterator[Case]:
    for name, blocks, threads, rounds, hint in (
        ("one round", 1, 4, 1, "all threads write before any of them reads"),
        ("two rounds", 1, int(random.integers(5, 9)), 2, "does a round begin with the values of "
         "the last one?"),
        ("three blocks", 3, int(random.integers(3, 7)), 3, "each block has a ring of its own"),
        ("one thread", 2, 1, 2, "a thread that is alone is its own neighbour"),
        ("no rounds", 2, 3, 0, "nothing happens to the numbers"),
        ("twenty rounds", 1, 16, 20, "as two rounds, and again"),
    ):  # fmt: skip
        x = random.uniform(1, 2, blocks * threads)
        yield Case(name, {"x": x, "rounds": rounds, "threads": threads}, hint)


def _warps(random: Random) -> Iterator[Case]:
    for name, lanes, hint in (
        ("two lanes", 2, "lane 1 takes from lane 0; lane 0 takes nothing"),
        ("a warp", 32, "does a lane get what its neighbour had before this step?"),
        ("lanes that are no power of two", int(random.integers(17, 31)),
         "the last step has an offset of 16"),
        ("one lane", 1, "there is nobody to take from"),
    ):  # fmt: skip
        yield Case(name, {"x": random.uniform(1, 2, lanes)}, hint)
    swallows = np.array([2.0**53, *np.ones(int(random.integers(9, 31)))])
    yield Case("a first number of 2**53", {"x": swallows}, "it swallows a 1 that is added to it, "
               "but not a 2: here it shows in which steps you add, and `scan` doubles")  # fmt: skip


def _steps(answer: Any, x: Array) -> tuple[Array, Array] | None:
    steps = (len(x) - 1).bit_length()
    sums = _looped(len(x) * steps, answer, x)
    return None if sums is None else (sums, sums - x[0])


def _doubling(x: Array) -> tuple[Array, Array]:
    """Sums of up to 2, 4, 8, ... numbers, each of two sums of half as many."""

    def last(width: int) -> Array:
        if width == 1:
            return x
        half = last(width // 2)
        return half + np.pad(half, (width // 2, 0))[: len(x)]

    sums = last(1 << (len(x) - 1).bit_length())
    return sums, sums - x[0]


EXERCISES = (
    Exercise(
        "smooth-loops", "smooth_loops", 3, _smooth_cases, binomials, tolerance=1e-12, run=_smooth,
        wrong=(
            Wrong("one loop over the threads", {
                  " = value[t]\n            for t in range(threads):\n": " = value[t]\n"},
                  "one round"),
            Wrong("all threads share one value",
                  {"value[t] = x[first + t]": "value[:] = x[first + t]"},
                  "one round"),
            Wrong("the last thread has no right neighbour",
                  {"(t + 1) % threads": "min(t + 1, threads - 1)"}, "one round"),
            Wrong("the left neighbour in place of the right one",
                  {"(t + 1) % threads": "(t - 1) % threads"}, "one round"),
            Wrong("not divided by 2", {" / 2": ""}, "one round"),
            Wrong("there is one round at most",
                  {"range(rounds)": "range(min(rounds, 1))"}, "two rounds"),
            Wrong("x is overwritten", {"            out[first + t] = value[t]":
                  "            out[first + t] = x[first + t] = value[t]"}, "one round"),
            Wrong("there is one block only", {"range(0, len(x), threads)": "[0]"}, "three blocks"),
            Wrong("all threads at once", {"            for t in range(threads):\n"
                  "                tile[t] = value[t]\n            for t in range(threads):\n"
                  "                value[t] = (value[t] + tile[(t + 1) % threads]) / 2":
                  "            value = (value + np.roll(value, -1)) / 2"}, "twenty rounds"),
        ),
    ),
    _Marked(
        "plan", "plan", 3, _asked, _plan, ("varying", "regions", "slots"),
        wrong=(
            Wrong("t needs a slot", {"slots = [0,": "slots = [1,"}, "bend"),
            Wrong("a slot for a variable that stays in its region",
                  {"1, 1, 0, 0]": "1, 1, 0, 1]"}, "bend"),
            Wrong("the block's number varies", {"varying = [1, 0,": "varying = [1, 1,"}, "bend"),
            Wrong("`half` is taken for varying", {"3, 0, 4, 4]": "3, 3, 4, 4]"}, "bend"),
            Wrong("a barrier overlooked", {"3, 0, 4, 4]": "3, 0, 3, 3]"}, "bend"),
        ),
    ),
    Exercise(
        "running-sums", "running_sums", 2, _warps, _doubling,
        ("sums", "(sums - x[0])"), 1e-12, _steps,
        wrong=(
            Wrong("a lane takes what its neighbour has after the step",
                  {"+= sent[": "+= value["}, "a warp"),
            Wrong("all lanes take, those below the offset too",
                  {"if lane >= offset:": "if True:"}, "two lanes"),
            Wrong("x is sent at each step",
                  {"sent[lane] = value[lane]": "sent[lane] = x[lane]"}, "a warp"),
            Wrong("there is a step too few", {"offset < len(x)": "2 * offset < len(x)"},
                  "two lanes"),
            Wrong("added one after the other, not in doubling steps", {"    offset = 1\n":
                  "    for lane in lanes:\n        value[lane] = x[0]\n"
                  "        for below in range(1, lane + 1):\n"
                  "            value[lane] += x[below]\n    return value\n    offset = 1\n"},
                  "a first number of 2**53"),
            Wrong("all lanes at once", {"        for lane in lanes:\n"
                  "            sent[lane] = value[lane]\n        for lane in lanes:\n"
                  "            if lane >= offset:\n"
                  "                value[lane] += sent[lane - offset]":
                  "        value[offset:] += value[:-offset].copy()"}, "a warp"),
            Wrong("only half as long as the lanes allow",
                  {"offset < len(x)": "offset <= len(x) // 2"},
                  "lanes that are no power of two"),
        ),
    ),
)  # fmt: skip

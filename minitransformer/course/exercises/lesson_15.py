"""Numbers that lie: a sum that carries on, an honest error, a fair race, and who is a liar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong, launched
from ..suspects import SUSPECTS, suspect

COLUMNS = 32  # threads of a block
FULL = 2.0**24  # from here on float32 has even numbers only
ROUNDS = 21  # of a race on a machine that is not quiet
LOWEST, LARGEST = -20, 1e6  # for which queries and keys a kernel promises anything


def _columns(random: Random) -> Iterator[Case]:
    for name, length, columns, hint in (
        ("one number", 1, 3, "nothing is lost yet: the total is x"),
        ("numbers after 2**24", int(random.integers(4000, 5000)), 2, "each loses digits: "
         "they must be in the next `due`"),
        ("many numbers", int(random.integers(3000, 4000)), 4, "compare with (C), line by line"),
        ("50 columns", int(random.integers(20, 40)), 50, "there are two blocks: which is yours?"),
    ):  # fmt: skip
        x = random.random((length, columns), np.float32)
        if name == "numbers after 2**24":
            x[:] = random.uniform(0.6, 2.9, x.shape)
            x[0] = FULL
        yield Case(name, {"x": x}, hint)


def _launch(answer: Any, x: Array) -> Array:
    length, columns = x.shape
    out: Array = launched(
        answer, -(-columns // COLUMNS), COLUMNS, x, out=(columns,), dtype=np.float64, share=1,
        reads=2 * length,
    )  # fmt: skip
    if not np.array_equal(out, out.astype(np.float32), equal_nan=True):
        raise NotYet("the sum has more digits than float32: 0.0 is a float64, float32(0) is none")
    return out


def _sums(x: Array) -> Array:
    return x.sum(axis=0, dtype=np.float64)


def _results(random: Random) -> Iterator[Case]:
    truth = random.uniform(0.5, 1, (4, 5)) * np.array([[8.0], [4], [2], [1]])
    truth[:, 0] /= 1000
    near = truth + 1e-6 * random.uniform(0.5, 1, truth.shape)
    small = truth * np.array([[1e6], [1], [1e3], [1]])
    lost = small.copy()
    lost[1] *= 1.1
    below = -truth
    below[2, 3] -= 3
    absent = near.copy()
    absent[1, 4] = np.nan
    endless = near.copy()
    endless[3, 0] = np.inf
    none = truth.copy()
    none[2] = 0
    some = none.copy()
    some[2, 1] = 1e-9
    alike = np.ones((4, 1)) * truth[0]
    batch = random.standard_normal((2, 3, 4, 5))
    later = batch.copy()
    later[1, 2, 3, 4] += 0.5
    for name, got, wanted, hint in (
        ("nearly right", near, truth, "a row's largest difference over the row's largest number"),
        ("a number too small", below, -truth, "neither differences nor scales have a sign"),
        ("a small row beside large ones", lost, small, "each row has a scale of its own"),
        ("a number that is nan", absent, truth, "what does a comparison with nan give?"),
        ("a number that is infinite", endless, truth, "nothing can be more wrong"),
        ("a row of zeros that is right", none, none, "0 / 0 is nan; here the error is 0"),
        ("a row of zeros that is not", some, none, "any number is infinitely many times 0"),
        ("one row for all", truth[:1], alike, "NumPy stretches a row: compare shapes first"),
        ("heads and batches", later, batch, "a row is the last axis; all others count rows"),
    ):
        yield Case(name, {"got": got, "truth": wanted}, hint)


def _worst(got: Array, truth: Array) -> float:
    """Row by row."""
    if got.shape != truth.shape or not np.isfinite(got).all():
        return np.inf
    rows = []
    for index in np.ndindex(truth.shape[:-1]):
        off, scale = max(abs(got[index] - truth[index])), max(abs(truth[index]))
        rows.append(0.0 if off == 0 else off / scale if scale else np.inf)
    return max(rows)


class _Machine:
    """Time that passes only while something runs, as long as is said."""

    def __init__(self, seconds: tuple[float, float], first: float, factors: Array) -> None:
        self.now, self.seconds, self.first = 1000.0, seconds, first
        self.factors, self.count, self.known = factors, 0, set[int]()

    def clock(self) -> float:
        return self.now

    def run(self, which: int) -> None:
        if self.count == len(self.factors):
            raise NotYet("f and g run more often than once to warm up, and once a round")
        self.now += self.seconds[which] * self.factors[self.count]
        self.now += 0 if which in self.known else self.first
        self.count += 1
        self.known.add(which)


def _races(random: Random) -> Iterator[Case]:
    for name, rounds, first, hint in (
        ("a quiet machine", 3, 0.0, "the seconds of g over those of f"),
        ("functions that compile", 1, 7.0, "the first run of each does not count"),
        ("a machine that gets busy", ROUNDS, 0.0, "f and g take turns"),
        ("interruptions", ROUNDS, 0.0, "a few rounds may be far off: which number is not moved?"),
        ("interruptions while it slows down", ROUNDS, 0.0, "divide within each round"),
    ):
        factors = np.ones(2 * (rounds + 1))
        if name == "a machine that gets busy":
            factors[ROUNDS * 2 // 3 :] = 3
        if name == "interruptions":
            hit = 2 + 2 * random.permutation(ROUNDS)[:5]
            factors[hit + np.array([0, 0, 1, 1, 1])] = random.uniform(20, 50, 5)  # f, f, g, g, g
        if name == "interruptions while it slows down":
            factors *= 1 + np.arange(factors.size) // 2 / 10  # f and g of a round alike
            factors[2 + 2 * random.permutation(ROUNDS // 2)[:5]] *= 30  # f, in early rounds
        f = float(random.uniform(0.01, 0.02))
        inputs = {"seconds of f": f, "seconds of g": f * float(random.uniform(1.3, 2)),
                  "more for a first run": first, "how slow each run finds the machine": factors,
                  "rounds": rounds}  # fmt: skip
        yield Case(name, inputs, hint)


def _raced(answer: Any, f: float, g: float, first: float, factors: Array, rounds: int) -> Any:
    machine = _Machine((f, g), first, factors)
    ratio = answer(partial(machine.run, 0), partial(machine.run, 1), machine.clock, rounds)
    if ratio is not None and machine.count < 2 * rounds:
        raise NotYet(f"f and g run {machine.count} times in all, in {rounds} rounds")
    return ratio


def _ratio(f: float, g: float, first: float, factors: Array, rounds: int) -> float:
    return g / f


def _claims(random: Random) -> Iterator[Case]:
    hints = (
        "it is right: is it held to more digits than float32 has?",
        "where is a denominator small? Only far below zero",
        "are there two heads?",
        "a large number may come out as nan",
        "it is right, and rounds otherwise: allow 1e-4",
        "what does a loud token leave behind for those before it?",
        "is there a length that no tile fits?",
        "what does float32 make of exp(-18) - 1?",
        "is one head quiet beside a loud one, and does each row have a scale of its own?",
    )
    for number, hint in enumerate(hints, 1):
        yield Case(f"kernel {number}", {"number": number}, hint)


def _accused(answer: Callable[..., Any], number: int) -> Any:
    attend = suspect(int(number))

    def promised(query: Array, key: Array, value: Array) -> Array:
        for name, x, lowest in (
            ("query", query, LOWEST), ("key", key, LOWEST), ("value", value, -LARGEST)
        ):  # fmt: skip
            beyond = np.asarray(x)[~((x >= lowest) & (x <= LARGEST))]  # a nan is, too
            if beyond.size:
                raise NotYet(
                    f"you drew {beyond[0]:.3g} for `{name}`: nothing is promised beyond "
                    f"{lowest:,.0f} to {LARGEST:,.0f}"
                )
        return attend(query, key, value)

    return answer(promised)


def _lies(number: int) -> bool:
    return bool(SUSPECTS[int(number) - 1].lie)


class _Judged(Exercise):
    """A verdict on a kernel."""

    def difference(self, got: Iterable[Any], expected: Iterable[Any]) -> str:
        (said,), (truth,) = got, expected
        if said.shape or said.dtype.kind != "b":
            return "a verdict is True or False"
        if bool(said) == bool(truth):
            return ""
        return "it lies, and is believed" if truth else "it is right, and called a liar"


EXERCISES = (
    Exercise(
        "carried", "carried", 3, _columns, _sums, ("out",), 2e-7, _launch,
        wrong=(
            Wrong("no guard", {"if m < x.shape[1]:": "if True:"}, "one number"),
            Wrong("nothing is carried on: a plain sum", {"x[t, m] + lost": "x[t, m]"},
                  "numbers after 2**24"),
            Wrong("what is lost has the wrong sign",
                  {"due - (new - total)": "(new - total) - due"}, "numbers after 2**24"),
            Wrong("what is lost is taken away, not added",
                  {"x[t, m] + lost": "x[t, m] - lost"}, "numbers after 2**24"),
            Wrong("the total is renewed too early: nothing is ever lost", {
                  "            lost = due - (new - total)  # (C)\n            total = new":
                  "            total = new\n            lost = due - (new - total)"},
                  "numbers after 2**24"),
            Wrong("x is held against what arrived, not what was due",
                  {"due - (new - total)": "x[t, m] - (new - total)"}, "numbers after 2**24"),
            Wrong("the brackets are gone",
                  {"due - (new - total)": "due - new - total"}, "numbers after 2**24"),
            Wrong("what is lost piles up, though `due` has it already",
                  {"lost = due -": "lost += due -"}, "numbers after 2**24"),
            Wrong("what is lost is forgotten at every other token", {
                  "x[t, m] + lost": "x[t, m] + lost * float32(t % 2)"}, "numbers after 2**24"),
            Wrong("the total lacks what was lost",
                  {"new = total + due": "new = total + x[t, m]"}, "numbers after 2**24"),
            Wrong("the sum is float64", {"total = lost = float32(0)": "total = lost = 0.0"},
                  "numbers after 2**24"),
            Wrong("the block's number is forgotten", {"cuda.grid(1)": "cuda.threadIdx.x"},
                  "50 columns"),
            Wrong("nothing is set to 0 for the first token",
                  {"range(x.shape[0])": "range(1, x.shape[0])"}, "one number"),
        ),
    ),
    Exercise(
        "worst", "worst", 3, _results, _worst, ("the error",), 1e-5,
        wrong=(
            Wrong("one scale for all rows", {"abs(truth).max(axis=-1)": "abs(truth).max()"},
                  "nearly right"),
            Wrong("a mean over rows hides the worst",
                  {"rows.max()": "rows.mean()"}, "nearly right"),
            Wrong("the largest difference has its sign",
                  {"abs(got - truth).max": "(got - truth).max"}, "a number too small"),
            Wrong("the scale is the largest number with its sign",
                  {"abs(truth).max": "truth.max"}, "a number too small"),
            Wrong("the scale is the answer's", {"abs(truth).max": "abs(got).max"},
                  "a number too small"),
            Wrong("each number over its own truth", {
                  "abs(got - truth).max(axis=-1)": "abs((got - truth) / truth).max(axis=-1)",
                  "off / scale": "off"}, "nearly right"),
            Wrong("a mean along a row", {"abs(got - truth).max": "abs(got - truth).mean"},
                  "nearly right"),
            Wrong("the scale is the sum of a row", {"abs(truth).max": "abs(truth).sum"},
                  "nearly right"),
            Wrong("columns, not rows", {"abs(got - truth).max(axis=-1)":
                  "abs(got - truth).max(axis=0)", "abs(truth).max(axis=-1)":
                  "abs(truth).max(axis=0)"}, "nearly right"),
            Wrong("nan is handed on: nan < 1e-4 and nan > 1e-4 are both False", {
                  "np.inf if np.isnan(rows).any() else rows.max()": "rows.max()"},
                  "a number that is nan"),
            Wrong("nan is left out", {
                  "np.inf if np.isnan(rows).any() else rows.max()": "np.nanmax(rows)"},
                  "a number that is nan"),
            Wrong("a row of zeros is 0 / 0", {"np.where(off == 0, 0, off / scale)": "off / scale"},
                  "a row of zeros that is right"),
            Wrong("whatever stands in a row of zeros is fine",
                  {"off == 0, 0": "scale == 0, 0"}, "a row of zeros that is not"),
            Wrong("a row is stretched, and fits",
                  {"if got.shape != truth.shape:": "if False:"}, "one row for all"),
        ),
    ),
    Exercise(
        "times-as-long", "times_as_long", 3, _races, _ratio, ("the ratio",), 1e-6, _raced,
        wrong=(
            Wrong("upside down: f over g", {"times[1] / times[0]": "times[0] / times[1]"},
                  "a quiet machine"),
            Wrong("a difference, not a ratio", {"times[1] / times[0]": "times[1] - times[0]"},
                  "a quiet machine"),
            Wrong("the seconds of f are in those of g, too", {
                  "            start = clock()\n": "", "        times = []\n":
                  "        times, start = [], clock()\n"}, "a quiet machine"),
            Wrong("the clock is read after the run, twice", {
                  "            start = clock()\n            function()\n":
                  "            function()\n            start = clock()\n"}, "a quiet machine"),
            Wrong("the time of day, not what has passed",
                  {"clock() - start": "clock()"}, "a quiet machine"),
            Wrong("no run to warm up", {"    f(), g()\n": ""}, "functions that compile"),
            Wrong("only f is warmed up", {"    f(), g()\n": "    f()\n"},
                  "functions that compile"),
            Wrong("only g is warmed up", {"    f(), g()\n": "    g()\n"},
                  "functions that compile"),
            Wrong("first all runs of f, then all of g", {"    ratios = []\n": """\
    medians = []
    for function in (f, g):
        times = []
        for _ in range(rounds):
            start = clock()
            function()
            times.append(clock() - start)
        medians.append(np.median(times))
    return medians[1] / medians[0]
    ratios = []
"""}, "a machine that gets busy"),
            Wrong("first all runs of f, then all of g, and their sums", {"    ratios = []\n": """\
    sums = []
    for function in (f, g):
        start = clock()
        for _ in range(rounds):
            function()
        sums.append(clock() - start)
    return sums[1] / sums[0]
    ratios = []
"""}, "a machine that gets busy"),
            Wrong("the ratio of two medians, which may be of different rounds", {
                  "times[1] / times[0]": "times",
                  "np.median(ratios)": "np.divide(*np.median(ratios, axis=0)[::-1])"},
                  "interruptions while it slows down"),
            Wrong("a mean, which one interruption moves",
                  {"np.median(ratios)": "np.mean(ratios)"}, "interruptions"),
            Wrong("the largest ratio", {"np.median(ratios)": "max(ratios)"}, "interruptions"),
            Wrong("the smallest ratio", {"np.median(ratios)": "min(ratios)"}, "interruptions"),
            Wrong("a round too many", {"range(rounds)": "range(rounds + 1)"}, "a quiet machine"),
        ),
    ),
    _Judged(
        "lies", "lies", 5, _claims, _lies, ("the verdict",), run=_accused,
        wrong=(
            Wrong("more digits are asked for than float32 has", {"< 1e-4": "< 1e-8"}, "kernel 1"),
            Wrong("a float32 is held against a float64 by ==", {
                  "not worst(attend(q, k, v), by_pairs(q, k, v)) < 1e-4":
                  "(attend(q, k, v) != by_pairs(q, k, v)).any()"}, "kernel 1"),
            Wrong("True and False are exchanged", {"return True": "return 0 > 1",
                  "    return False": "    return 0 < 1"}, "kernel 1"),
            Wrong("the tolerance is far too large", {"< 1e-4": "< 0.5", "(-19, -18, 0)":
                  "(-7, -6, 0)"}, "kernel 2"),
            Wrong("no token is far below zero", {"(-19, -18, 0), ": ""}, "kernel 2"),
            Wrong("there is only one head", {"(2, 2, 37, 4)": "(2, 1, 37, 4)",
                  "(2, 37, 3)": "(1, 37, 3)"}, "kernel 3"),
            Wrong("only the first head is looked at", {
                  "worst(attend(q, k, v), by_pairs(q, k, v))":
                  "worst(attend(q, k, v)[:1], by_pairs(q, k, v)[:1])"}, "kernel 3"),
            Wrong("nan is not above a tolerance", {
                  "not worst(attend(q, k, v), by_pairs(q, k, v)) < 1e-4":
                  "error(attend(q, k, v), by_pairs(q, k, v)) > 1e-4"}, "kernel 4"),
            Wrong("no token is loud", {", (-2, 2, 1e5)": ""}, "kernel 4"),
            Wrong("the tolerance knows one order of additions only", {"< 1e-4": "< 4.5e-7"},
                  "kernel 5"),
            Wrong("all tokens are loud: none is quiet before",
                  {"(-2, 2, 1e5)": "(80, 120, 0)"}, "kernel 6"),
            Wrong("the loud token comes first", {"k[:, 30:] += late": "k[:, :1] += late"},
                  "kernel 6"),
            Wrong("the tolerance is far larger than 1e-4", {"< 1e-4": "< 0.5"}, "kernel 6"),
            Wrong("every length is a multiple of four", {"(2, 2, 37, 4)": "(2, 2, 36, 4)",
                  "(2, 37, 3)": "(2, 36, 3)"}, "kernel 7"),
            Wrong("only the first token is looked at", {
                  "worst(attend(q, k, v), by_pairs(q, k, v))":
                  "worst(attend(q, k, v)[:, :1], by_pairs(q, k, v)[:, :1])"}, "kernel 4"),
            Wrong("-8 is not far enough below zero", {"(-19, -18, 0)": "(-9, -7, 0)"}, "kernel 8"),
            Wrong("all heads are equally loud", {"v[0] *= 1e5": "v[0] *= 1"}, "kernel 9"),
            Wrong("the loud head is hardly louder", {"v[0] *= 1e5": "v[0] *= 10"}, "kernel 9"),
            Wrong("`error` has one scale for all heads: a quiet one needs `worst`",
                  {"not worst(": "not error("}, "kernel 9"),
        ),
    ),
)  # fmt: skip

"""What an exercise asks for: cases drawn from a seed, the truth, and how an answer is tried.

A lesson's check and the judge do the same with it: for each case in turn, the answer gets the
inputs, and what it returns is held against the truth. The first case that fails is told in words.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels import microscope
from minitransformer_kernels.cuda import Kernel
from minitransformer_kernels.microscope.units import plural

from ..errors import UserError
from .measuring import Lines, TooManyLines, numbers_passed, peak_bytes

Array = Any
Arrays = dict[str, Any]
Random = np.random.Generator

# Whether `launched` counts what a thread reads and writes, which takes another compilation.
COUNTS = ContextVar("COUNTS", default=True)


class NotYet(AssertionError):
    """An answer is missing or wrong; the message says in which case, where, and gives a hint."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message. The frames above it are the course's own."""
        return [f"{type(self).__name__}: {self}"]


class Case(NamedTuple):
    """Inputs of one trial.

    Attributes:
        name: Says what is special about it, as "one token".
        inputs: The arguments of the answer by name, in order: arrays and numbers.
        hint: What to think of when it fails, and the mistake is none that is known.
    """

    name: str
    inputs: Arrays
    hint: str


class Wrong(NamedTuple):
    """A known mistake: an edit of the solution, which must be caught.

    Attributes:
        name: Of the mistake, as "not divided by the sum": whoever makes it is told so.
        edits: Texts of the solution, each of which stands there once, and what takes its place.
        case: The name of the case that catches it.
    """

    name: str
    edits: dict[str, str]
    case: str


def in_words(error: BaseException) -> str:
    """Return what an error says, headed by its kind."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return re.sub(r"^[\w.]+\.(?=\w+: )", "", text)


def returned(answer: Callable[..., Any], *inputs: Any) -> Any:
    """Return what a function makes of the inputs: how most answers are tried."""
    return answer(*inputs)


def left_alone(answer: Callable[..., Any], *inputs: Any) -> Any:
    """Try a function that must not write to its inputs.

    Raises:
        NotYet: It did.
    """
    before = [np.array(x) for x in inputs]
    result = answer(*inputs)
    if not all(map(np.array_equal, before, inputs)):
        raise NotYet("it writes to an array that it was given: work on one of your own")
    return result


def in_lines(most: int, otherwise: str, answer: Callable[..., Any], *inputs: Any) -> Any:
    """Try a function that must do its work in arrays: few lines of Python may run.

    Args:
        most: How many.
        otherwise: What to say if there are more.
        answer: The function.
        inputs: Its arguments.

    Raises:
        NotYet: There are more.
    """
    try:
        with Lines(most):
            return answer(*inputs)
    except TooManyLines:
        raise NotYet(f"it runs more than {most:,} lines of Python: {otherwise}") from None


def without_loops(answer: Callable[..., Any], *inputs: Any) -> Any:
    """Try a function that must have no loop, and must not write to its inputs.

    Raises:
        NotYet: It has, or does.
    """
    return left_alone(partial(in_lines, 60, "is there a loop? Arrays need none", answer), *inputs)


def in_bytes(most: int, otherwise: str, answer: Callable[..., Any], *inputs: Any) -> Any:
    """Try a function whose arrays may not take much memory.

    Args:
        most: How many bytes may be taken at once.
        otherwise: What to say if there are more.
        answer: The function.
        inputs: Its arguments.

    Raises:
        NotYet: There are more.
    """
    if (taken := peak_bytes(lambda: answer(*inputs))) >= most:
        raise NotYet(f"its arrays take {taken:,} bytes: {otherwise}")
    return answer(*inputs)


def without_scores(answer: Callable[..., Any], *inputs: Any) -> Any:
    """Try a function of sequences `(..., L, E)` that must not go through all pairs of tokens.

    Raises:
        NotYet: Where sequences are long, its arrays take as much memory as the scores would, or it
            goes through all pairs in a loop, or one against all.
    """
    pairs = max(np.shape(x)[-2] for x in inputs if np.ndim(x) > 1) ** 2
    if pairs < 1 << 18:
        return answer(*inputs)
    looped = partial(in_lines, pairs // 4, "does it loop over all pairs of tokens?", answer)
    told = f"the scores of all pairs alone would take {8 * pairs:,}"
    result = in_bytes(8 * pairs, told, looped, *inputs)
    if (passed := numbers_passed(answer, *inputs)) > 2 * pairs:
        raise NotYet(f"NumPy goes through {passed:,} numbers, where all pairs are {pairs:,}: does "
                     "each token meet all others?")  # fmt: skip
    return result


def launched(
    kernel: Any, grid: Any, block: Any, *inputs: Any, out: tuple[int, ...],
    dtype: Any = np.float32, begin: float = np.nan, share: int | None = None,
    reads: int | None = None,
) -> Any:  # fmt: skip
    """Launch a kernel whose last argument is written to; return that.

    Args:
        kernel: The answer.
        grid: Its blocks.
        block: The threads of each.
        inputs: All arguments but the last.
        out: The shape of the last.
        dtype: Its dtype.
        begin: What it is full of before: NaN shows what nobody writes.
        share: How many of its numbers a thread owns: it may write no others.
        reads: How many numbers of the arguments a thread may read, one that it reads twice for two.

    Raises:
        NotYet: The answer is no kernel, or a thread writes or reads more than that.
    """
    if not isinstance(kernel, Kernel):
        raise NotYet("this is no kernel: it needs @cuda.jit")
    output = np.full(out, begin, dtype)
    kernel[grid, block](*inputs, output)
    if COUNTS.get() and (share is not None or reads is not None):
        again = np.full(out, begin, dtype)
        report = microscope.inspect(kernel[grid, block], *inputs, again, compiled=False)
        written, read = _busiest(report.trace)
        if share is not None and written > share:
            raise NotYet(
                f"a thread writes {written} numbers; it owns {share}: does one do the work of "
                "others?"
            )
        if reads is not None and read > reads:
            raise NotYet(
                f"a thread reads {read:,} numbers, and {reads:,} would be many: does it come back "
                "to the same ones?"
            )
    return output


def _busiest(trace: Any) -> tuple[int, int]:
    """How many numbers of a launch's arguments a thread writes, and how often it reads, at most."""
    numbers = []
    for is_read in (False, True):
        sites = [s.space == "global" and (s.kind == "read") == is_read for s in trace.sites]
        made = trace.accesses[np.isin(trace.accesses["site"], np.flatnonzero(sites))]
        if not is_read:
            made = np.unique(made[["block", "thread", "address"]])
        counts = np.unique(made[["block", "thread"]], return_counts=True)[1]
        numbers.append(int(counts.max(initial=0)))
    return numbers[0], numbers[1]


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lesson.

    Attributes:
        name: As the lesson's cells have it, `exercise="name"`.
        symbol: What the answer defines.
        points: What it counts.
        cases: Draws the cases; the hidden ones of the judge come from a seed that nobody knows.
        truth: Of the inputs: what should come out, an array or a tuple of them. It never calls the
            lesson's solution, and the process that runs an answer never calls it.
        outputs: The names of what comes out.
        tolerance: How far off an element may be, relative to the largest of its array.
        run: Tries an answer on the inputs; `launched` does so with a kernel.
        wrong: Mistakes that must be caught.
        hints: What to think of where an output of that name is off, in place of the case's hint.
        at_most: Outputs that `run` and `truth` give as the most that is allowed, or as what is
            more: a message says so.
    """

    name: str
    symbol: str
    points: int
    cases: Callable[[Random], Iterable[Case]]
    truth: Callable[..., Any]
    outputs: tuple[str, ...] = ("the result",)
    tolerance: float = 1e-5
    run: Callable[..., Any] = returned
    wrong: tuple[Wrong, ...] = field(default=())
    hints: dict[str, str] = field(default_factory=dict)
    at_most: tuple[str, ...] = ()

    def drawn(self, seed: int) -> list[Case]:
        """Return the cases of a seed."""
        return list(self.cases(np.random.default_rng(seed)))

    def expected(self, case: Case) -> tuple[Any, ...]:
        """Return the truth of a case: an array for each output."""
        return self._outputs(self.truth(*case.inputs.values()))

    def tried(self, answer: Any, case: Case) -> tuple[Any, ...]:
        """Return what an answer makes of a case: an array for each output.

        The answer gets copies: what it does to its inputs does not change the truth.

        Raises:
            NotYet: It returns nothing, or another number of results.
        """
        inputs = (x.copy() if isinstance(x, np.ndarray) else x for x in case.inputs.values())
        got = self._outputs(self.run(answer, *inputs))
        if all(x is None for x in got):
            raise NotYet("nothing is returned yet: it is your turn")
        if len(got) != len(self.outputs):
            wanted = ", ".join(self.outputs)
            told = f"{plural(len(got), 'result')} {'is' if len(got) == 1 else 'are'} returned"
            raise NotYet(f"{told}, expected {len(self.outputs)}: {wanted}")
        return tuple(map(np.asarray, got))

    def problem(self, case: Case, got: Iterable[Any]) -> str:
        """Say which output has another shape than the truth, was not written, or is off, and where.

        Nothing where all are right.
        """
        return self.difference(got, self.expected(case))

    def difference(self, got: Iterable[Any], expected: Iterable[Any]) -> str:
        """Say how outputs differ from others; nothing where they do not."""
        triples = zip(self.outputs, got, expected, strict=True)
        told = (self._told(n, x, np.asarray(y)) for n, x, y in triples)
        return next(filter(None, told), "")

    def hint(self, case: Case, got: Iterable[Any]) -> str:
        """Return what to think of where outputs are off."""
        triples = zip(self.outputs, got, self.expected(case), strict=True)
        off = (name for name, x, y in triples if self._told(name, x, np.asarray(y)))
        return self.hints.get(next(off, ""), case.hint)

    def advice(self, case: Case, got: Iterable[Any]) -> str:
        """Return what to say of outputs that are off; nothing to look among known mistakes.

        An exercise whose truth hangs on what was invented knows no edits that make it.
        """
        return ""

    def _told(self, name: str, got: Array, truth: Array) -> str:
        wanted = "should be at most" if name in self.at_most else "should be"
        return _difference(name, got, truth, self.tolerance, wanted)

    def _outputs(self, result: Any) -> tuple[Any, ...]:
        several = len(self.outputs) > 1 and isinstance(result, (tuple, list))
        return tuple(result) if several else (result,)

    def where(self, case: Case) -> str:
        """Return the case in words: its name, and the sizes of its inputs."""
        inputs = ", ".join(f"{name} {_size(x)}" for name, x in case.inputs.items())
        return f"case {case.name!r} ({inputs})" if inputs else f"case {case.name!r}"


def _size(value: Any) -> str:
    shape = np.shape(value)
    if shape or isinstance(value, np.ndarray):
        return str(shape)
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _difference(name: str, got: Any, truth: Any, tolerance: float, wanted: str) -> str:
    """Say how an output differs from the truth; nothing where it does not."""
    if got.shape != truth.shape:
        return f"{name} should have the shape {truth.shape}, got {got.shape}"
    if not truth.size:
        return ""
    if got.dtype.kind not in "fiub" or (truth.dtype.kind in "b" and got.dtype.kind != "b"):
        return f"{name} should hold numbers like {truth.dtype}, got {got.dtype}"
    got, truth = got.astype(np.float64), truth.astype(np.float64)
    if np.isnan(got).all() and not np.isnan(truth).any():
        return f"{name} is nan everywhere (not written? added to what was not set? 0 / 0?)"
    scale = max(float(abs(truth).max(where=np.isfinite(truth), initial=0)), 1e-30)
    with np.errstate(invalid="ignore"):
        right = (abs(got - truth) <= tolerance * scale) | (got == truth)
    right |= np.isnan(got) & np.isnan(truth)
    if right.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    index = f"[{', '.join(map(str, at))}]" if at else ""
    off = int((~right).sum())
    count = f" ({off} of {right.size} numbers are off)" if right.size > 1 else ""
    digits = next((n for n in (6, 9, 12) if f"{got[at]:.{n}g}" != f"{truth[at]:.{n}g}"), 17)
    return f"{name}{index} is {got[at]:.{digits}g}, {wanted} {truth[at]:.{digits}g}{count}"


def by_lesson() -> dict[int, tuple[Exercise, ...]]:
    """Return the exercises of each lesson, by its number."""
    from . import exercises as folder

    return {
        int(module.name.removeprefix("lesson_")): importlib.import_module(
            f"{folder.__name__}.{module.name}"
        ).EXERCISES
        for module in pkgutil.iter_modules(folder.__path__)
    }


def exercises() -> Iterator[Exercise]:
    """Return all exercises of the course, lesson by lesson."""
    for own in by_lesson().values():
        yield from own


def find(name: str) -> Exercise:
    """Return the exercise of that name.

    Raises:
        UserError: There is none.
    """
    known = {exercise.name: exercise for exercise in exercises()}
    if name not in known:
        raise UserError(f"there is no exercise {name!r}; there are {', '.join(sorted(known))}")
    return known[name]

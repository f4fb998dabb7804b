"""Known mistakes: an answer that comes out as one of them does is told which it is.

Each is an edit of the lesson's solution, `Wrong`. It runs where the truth is known, which is never
where the judge runs an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer_kernels import checked

from .answers import File
from .exercise import COUNTS, Case, Exercise, NotYet, Wrong, find
from .lesson import Lesson, lessons
from .worker import defined

_one_at_a_time = threading.Lock()  # for what counts bytes, lines and launches counts those of all


def compare(exercise: Exercise, case: Case, got: Iterable[Any]) -> None:
    """Hold what came out against the truth.

    Args:
        exercise: What was asked for.
        case: With which inputs.
        got: What came out.

    Raises:
        NotYet: It is off: where, and which mistake that is, or a hint.
    """
    got = list(got)
    if problem := exercise.problem(case, got):
        raise NotYet(f"{problem}. {_advice(exercise, case, got)}")


def edited(lesson: Lesson, exercise: str, edits: dict[str, str]) -> str:
    """Return a lesson's text with a mistake in a solution."""
    cell = mistaken = lesson.solution(exercise).source
    for right, wrong in edits.items():
        mistaken = mistaken.replace(right, wrong)
    return lesson.text.replace(cell, mistaken)


def _advice(exercise: Exercise, case: Case, got: list[Any]) -> str:
    if told := exercise.advice(case, got):
        return told
    known = (wrong for wrong in exercise.wrong if wrong.case == case.name)
    names = [wrong.name for wrong in known if _comes_out(exercise, wrong, case, got)]
    if names:
        return f"It looks like this mistake: {', or '.join(names)}"
    return f"Hint: {exercise.hint(case, got)}"


def _comes_out(exercise: Exercise, wrong: Wrong, case: Case, got: list[Any]) -> bool:
    """Whether a mistake makes of a case what came out."""
    with _one_at_a_time, checked(tested=False), np.errstate(all="ignore"):
        counted = COUNTS.set(False)  # only what comes out is compared
        try:
            mistaken = _mistaken(exercise.name, wrong.name, tuple(wrong.edits.items()))
            made = exercise.tried(mistaken, case)
        except Exception:  # a mistake that does not come so far
            return False
        finally:
            COUNTS.reset(counted)
    return not exercise.difference(got, made)


@cache
def _mistaken(exercise: str, name: str, edits: tuple[tuple[str, str], ...]) -> Callable[..., Any]:
    """The solution with a mistake; made once, as most attempts come out as none of them."""
    lesson = next(lesson for lesson in lessons() if exercise in lesson.exercises)
    found = find(exercise)
    file = File(Path(f"{exercise}, {name}.py"), edited(lesson, exercise, dict(edits)))
    answer: Callable[..., Any] = defined(file.needed(found.symbol), found.symbol)
    return answer

"""Known mistakes: an answer that comes out as one of them does is told which it is.

Each is an edit of the lesson's solution, `Wrong`. It runs where the truth is known, which is never
where the judge runs an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer_kernels import checked

from .answers import File
from .exercise import Case, Exercise, NotYet, Wrong
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
        try:
            made = exercise.tried(_mistaken(exercise, wrong), case)
        except Exception:  # a mistake that does not come so far
            return False
    return not exercise.difference(got, made)


def _mistaken(exercise: Exercise, wrong: Wrong) -> Callable[..., Any]:
    """The solution with a mistake."""
    lesson = next(lesson for lesson in lessons() if exercise.name in lesson.exercises)
    text = edited(lesson, exercise.name, wrong.edits)
    file = File(Path(f"{exercise.name}, {wrong.name}.py"), text)
    answer: Callable[..., Any] = defined(file.needed(exercise.symbol), exercise.symbol)
    return answer

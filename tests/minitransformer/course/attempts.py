"""Answers tried in this process: a lesson's own solution, its blank, and planted mistakes."""

from pathlib import Path

import pytest

from minitransformer.course.answers import File
from minitransformer.course.exercise import NotYet, in_words
from minitransformer.course.lesson import blanked, lessons
from minitransformer.course.mistakes import compare
from minitransformer.course.worker import defined
from minitransformer_kernels import checked

LESSONS = {lesson.name: lesson for lesson in lessons()}
every = pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)
SEED = 7

# A right answer to an exercise.
FADING_BACKWARD = """import numpy as np

def fading_backward(g, q, k, v, gamma):
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    S = R = 0
    for i in range(len(q)):
        S = gamma * S + np.outer(k[i], v[i])
        dq[i] = S @ g[i]
    for i in reversed(range(len(q))):
        R = gamma * R + np.outer(q[i], g[i])
        dk[i], dv[i] = R @ v[i], k[i] @ R
    return dq, dk, dv
"""


def first_failure(text, exercise, compared=compare):
    """The name of the first case that the answer in a text fails, and the message; else None."""
    file = File(Path("lesson.py"), text)
    cases = exercise.drawn(SEED)
    try:
        answer = defined(file.needed(exercise.symbol), exercise.symbol)
    except NotYet as problem:  # it needs what is not written
        return cases[0].name, str(problem)
    for case in cases:
        try:
            with checked(tested=False):
                compared(exercise, case, exercise.tried(answer, case))
        except NotYet as problem:
            return case.name, str(problem)
        except Exception as error:
            return case.name, in_words(error)
    return None


def unnamed(exercise, case, got):
    """Compares without a look for the mistake, each of which may have to be compiled."""
    if problem := exercise.problem(case, got):
        raise NotYet(problem)


def blank(lesson, exercise):
    """The lesson with a blank in the place of one solution."""
    cell = lesson.solution(exercise.name).source
    return lesson.text.replace(cell, blanked(cell))

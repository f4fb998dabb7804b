"""What a reader of a lesson does: guess, see, and check an answer."""

from __future__ import annotations

from typing import Any

from minitransformer_kernels import checked

from .exercise import NotYet, find, in_words

SEED = 2020  # of the cases that a lesson checks; the judge draws others

_guesses: dict[str, Any] = {}


def guess(name: str, value: Any) -> None:
    """Note a prediction. A student's lesson has `...` in place of the value; it is never graded.

    Args:
        name: Of what is predicted.
        value: The guess: a number or a text; `...` for none.
    """
    _guesses[name] = value
    if value is ...:
        print(f"{name}: no guess yet. Put one in place of the dots, and run this again.")
    else:
        print(f"{name}: you say {value}")


def reveal(name: str, value: Any) -> None:
    """Print what came out beside what was guessed.

    Args:
        name: As in `guess`.
        value: What was computed, counted or measured.
    """
    said = _guesses.get(name, ...)
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    print(
        f"{name}: you made no guess;" if said is ... else f"{name}: you said {said};",
        f"it is {shown}",
    )


def check(name: str, answer: Any) -> None:
    """Try an answer to an exercise, on cases that are always the same; kernels are checked.

    Args:
        name: Of the exercise.
        answer: The function or kernel that the exercise asks for.

    Raises:
        NotYet: It is missing or wrong: in which case, where, and a hint.
    """
    exercise = find(name)
    cases = exercise.drawn(SEED)
    for case in cases:
        try:
            with checked(tested=False):
                got = exercise.tried(answer, case)
            exercise.compare(case, got)
        except NotYet as problem:
            raise NotYet(f"{exercise.where(case)}: {problem}") from None
        except Exception as error:
            raise NotYet(f"{exercise.where(case)}: {in_words(error)}") from error
    print(f"{name}: right, in {len(cases)} cases")

"""What a reader of a lesson does: guess, see, and check an answer."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minitransformer_kernels import checked
from minitransformer_kernels.microscope.units import plural

from .exercise import NotYet, find, in_words
from .lesson import is_untouched
from .mistakes import compare

SEED = 2020  # of the cases that a lesson checks; the judge draws others
PATIENCE = 30  # seconds

_guesses: dict[str, Any] = {}


def guess(name: str, value: Any) -> None:
    """Note a prediction. A student's lesson has `...` in place of the value; it is never graded.

    Args:
        name: Of what is predicted.
        value: The guess: a number or a text; `...` for none.
    """
    _guesses[name] = value
    if value is ...:
        print(f"{name}: no guess yet. Put one in place of the dots, words in quotes, and run "
              "this again.")  # fmt: skip
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
    for symbol, needed in {**_called(answer), exercise.symbol: answer}.items():
        if _is_blank(needed):
            raise NotYet(f"{symbol}: nothing is written yet: it is your turn")
    cases = exercise.drawn(SEED)
    with _patience():
        for case in cases:
            where = f"{exercise.symbol}, {exercise.where(case)}"
            try:
                with checked(tested=False):
                    got = exercise.tried(answer, case)
                compare(exercise, case, got)
            except NotYet as problem:
                raise NotYet(f"{where}: {problem}") from None
            except Exception as error:
                raise NotYet(f"{where}: {in_words(error)}") from error
    print(f"{name}: right, in {plural(len(cases), 'case')}")


def _called(answer: Any) -> dict[str, Any]:
    """What an answer finds by name outside itself, as the answers of earlier exercises.

    Of answers that belong together, `yours = gate, kernel`, each by its own name.
    """
    if isinstance(answer, tuple):
        return {getattr(part, "__name__", "it"): part for part in answer}
    function = getattr(answer, "function", answer)
    if not inspect.isfunction(function):
        return {}
    known = function.__globals__
    return {name: known[name] for name in function.__code__.co_names if name in known}


def _is_blank(answer: Any) -> bool:
    try:
        return is_untouched(inspect.getsource(getattr(answer, "function", answer)))
    except (OSError, TypeError):
        return False


@contextmanager
def _patience() -> Iterator[None]:
    """Say something to who waits long: no clock can stop compiled code from within."""
    words = (
        f"This has run for {PATIENCE} seconds: a loop without an end? Stop it by the square above, "
        "or Ctrl-C; where that does not help, restart."
    )
    timer = threading.Timer(PATIENCE, print, [words], {"flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

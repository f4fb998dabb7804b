"""Clocks and counts of a lesson, and how numbers are written."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

FAST = os.environ.get("LESSON_FAST", "") not in ("", "0")
"""Whether small sizes are asked for (`LESSON_FAST=1`): quick, but timings say little."""

SPENT = 0.03 if FAST else 0.3  # seconds to spend on each function
ROUNDS = 5  # at least
LIBRARIES = "numpy", "minitransformer"  # whose lines do not count


class Seconds(NamedTuple):
    """How long a function takes: the quartiles of its runs."""

    lower: float
    median: float
    upper: float

    def __str__(self) -> str:
        lower, median, upper = (quantity(value, "s") for value in self)
        return f"{median} ({lower} to {upper})"


def seconds(*functions: Callable[[], object]) -> list[Seconds]:
    """Time functions beside each other: in turns, so that what disturbs one disturbs all.

    Libraries of linear algebra get one thread meanwhile: two threads on a busy machine measure who
    else is working.

    Args:
        functions: What to time, without arguments. Each runs once before, to warm up.

    Returns:
        For each the quartiles of its runs.
    """
    times: list[list[float]] = [[] for _ in functions]
    with threadpool_limits(1):
        for function in functions:
            function()
        while len(times[0]) < ROUNDS or (
            sum(map(sum, times)) < SPENT * len(functions) and len(times[0]) < 1000
        ):
            for function, taken in zip(functions, times, strict=True):
                start = time.perf_counter()
                function()
                taken.append(time.perf_counter() - start)
    return [Seconds(*statistics.quantiles(taken)) for taken in times]


def peak_bytes(function: Callable[[], object]) -> int:
    """Return how much memory a run takes at most, beside what was there before.

    NumPy tells `tracemalloc` of every array, so this is a count, not a guess.

    Args:
        function: What to look at. It runs once more before: compiling takes memory too.
    """
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def numbers_passed(function: Callable[..., object], *arrays: Any) -> int:
    """Return how many numbers NumPy reads and writes while a function works on arrays.

    It counts what its functions and operators are given and return, where an array is among it that
    was made of these; views and single numbers are free.

    >>> numbers_passed(lambda x: x + 1, np.zeros(10))
    20
    """
    passed = 0

    def note(*values: Any) -> None:
        nonlocal passed
        passed += sum(x.size for x in values if isinstance(x, np.ndarray))

    def plain(value: Any) -> Any:
        return value.view(np.ndarray) if isinstance(value, Noted) else value

    class Noted(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
            if "out" in keywords:
                keywords["out"] = tuple(map(plain, keywords["out"]))
            result = getattr(ufunc, method)(*map(plain, inputs), **keywords)
            note(*inputs, result)
            return result.view(Noted) if isinstance(result, np.ndarray) else result

        def __array_function__(self, called: Any, *rest: Any) -> Any:
            result = super().__array_function__(called, *rest)
            note(*rest[1], result)
            return result

    function(*(x.view(Noted) if isinstance(x, np.ndarray) else x for x in arrays))
    return passed


class TooManyLines(Exception):
    """More lines of Python have run than may."""


class Lines:
    """Counts the lines of Python that run in its context, a turn of a loop for one at least.

    Counted is what is called there, but not what NumPy and this package do in Python.

    Args:
        most: How many may run.

    Attributes:
        count: How many have run.

    Raises:
        TooManyLines: One more begins.
    """

    def __init__(self, most: float = math.inf) -> None:
        self.most, self.count = most, 0

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _note(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
            return None
        self.count += event == "line"
        if self.count > self.most:
            raise TooManyLines
        return self._note


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent p of the power law, values ~ sizes^p, that fits best.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    logs: list[list[float]] = [np.log(np.asarray(x, np.float64)).tolist() for x in (sizes, values)]
    return statistics.linear_regression(*logs).slope


def quantity(number: float, unit: str) -> str:
    """Write a number with three digits and the prefix that its unit wants.

    >>> quantity(0.00123, "s")
    '1.23 ms'
    """
    for exponent, prefix in ((9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m")):
        if abs(number) >= 10**exponent:
            return f"{number / 10**exponent:.3g} {prefix}{unit}"
    return f"{number * 1e6:.3g} µ{unit}"


def error(got: Any, truth: Any) -> float:
    """Return the largest difference, relative to the truth's largest number."""
    got, truth = np.asarray(got, np.float64), np.asarray(truth, np.float64)
    return float(abs(got - truth).max() / abs(truth).max())


def finite_differences(loss: Callable[[], Any], array: Any, step: float = 1e-5) -> Any:
    """Return the gradient of a loss by an array: each number is nudged up and down.

    Args:
        loss: A number, made of the array anew at each call.
        array: float64; it is as before in the end.
        step: How far a number is nudged.

    Returns:
        `(loss(x + step) - loss(x - step)) / (2 step)` for each number x, of the array's shape.

    >>> x = np.array([1.0, 2.0])
    >>> finite_differences(lambda: (x**2).sum(), x).round(6)
    array([2., 4.])
    """
    slopes = np.empty_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        ahead = loss()
        array[index] = kept - step
        slopes[index] = (ahead - loss()) / (2 * step)
        array[index] = kept
    return slopes

"""How far rounding alone takes each row of a result.

A row's natural size is how far it moves, in units of one relative rounding, when every operand and
every result in the reference's computation is rounded at random. So a sum has the size of its
terms, however they cancel: under a softmax that sees one key, dq = p (g.v - g.o) k is zero, and its
terms are not. And a weight exp(s) has |s| times its own size, as that is how far a rounded s takes
it. Nothing here knows the formulas: the noise goes in underneath NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pytest import MonkeyPatch

Array = NDArray[Any]
Arrays = dict[str, Array]
# Takes what makes the arrays to compute with out of those given, and computes in float64.
Compute = Callable[[Callable[[Array], Array]], Arrays]
Additions = int | Arrays  # of all rows, or of each

STEP = 1e-9  # far above the roundings of float64, and so small that what it moves is linear in it
RUNS = 8  # of which the largest counts: in all of only four, some row in 100,000 hardly moves
# A row may be off by so many roundings of its size. In hundreds of random problems kernels were off
# by 2 to 17; plain ones by 31 in sums over 1,234 keys, one after the other.
ROUNDINGS = 32
_random = np.random.default_rng(0)
NOISE = 1 + STEP * _random.choice([-1, 1], 2**18) * _random.uniform(0.5, 1.5, 2**18)
STARTS = 4093  # places in it that a run draws at once: one by one takes as long as the rounding
ONE_EACH = ("denominator", "log_sum_exp", "beta")  # a number of each token: each is a row


def starts(run: int) -> Iterator[int]:
    """Where the errors of what is computed begin in `NOISE`, one place after the other."""
    random = np.random.default_rng(run)
    return cycle(random.integers(len(NOISE) // 2, size=STARTS).tolist())


class Shaken(np.ndarray[Any, Any]):
    """Numbers of which all that is computed is off by a random relative error of about `STEP`."""

    starts = starts(0)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        """Rounds the operands and the result."""
        result = rounded(getattr(ufunc, method)(*map(rounded, inputs), **options))
        if out is None:
            return shaken(result)
        out[0].view(np.ndarray)[...] = result
        return out[0]

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Keeps what is taken together or apart shaken; of such functions only einsum computes."""
        if function is np.einsum:
            inputs = tuple(map(rounded, inputs))
        return shaken(super().__array_function__(function, types, inputs, options))


def shaken(x: Any) -> Any:
    """The same numbers, with which no computation is exact; what is not wide floats stays."""
    return x.view(Shaken) if isinstance(x, np.ndarray) and x.dtype.char in "dD" else x


def rounded(x: Any) -> Any:
    """The numbers as a plain array, each with a random error; what is not wide floats stays."""
    if not isinstance(x, np.ndarray) or x.dtype.char not in "dD":
        return x
    if x.dtype.kind == "c":
        return rounded(x.real) + 1j * rounded(x.imag)
    if x.size > len(NOISE) // 2:
        return x.view(np.ndarray) * np.resize(NOISE, x.shape)
    first = next(Shaken.starts)
    return x.view(np.ndarray) * NOISE[first : first + x.size].reshape(x.shape)


def natural_sizes(compute: Compute, truth: Arrays, runs: int = RUNS) -> Arrays:
    """How far one rounding everywhere takes each row; no less than its largest number."""
    sizes = {name: largest_of_rows(name, x) for name, x in truth.items()}
    for run in range(runs):
        Shaken.starts = starts(run)
        with MonkeyPatch.context() as patch:
            patch.setattr(np, "asarray", np.asanyarray)  # which lets `Shaken` pass
            moved = compute(lambda x: shaken(x.astype(np.float64) if x.dtype.kind == "f" else x))
        for name, x in truth.items():
            way = largest_of_rows(name, difference(moved[name].view(np.ndarray), x)) / STEP
            sizes[name] = np.maximum(sizes[name], way)
    return sizes


def allowed_rows(
    compute: Compute, dtype: DTypeLike, additions: Additions = 0, runs: int = RUNS
) -> Arrays:
    """What each row of a result in `dtype` may be off by.

    `ROUNDINGS` of its natural size, and what is zero beside the other rows: weights below the
    smallest number of a dtype underflow. Where a kernel adds up numbers that are alike, one after
    the other, all these `additions` may be rounded to the same side (Higham 2002, section 4.2).
    Fewer `runs` never allow more; none allow what a row's largest number does.
    """
    truth = compute(lambda x: x)
    sizes = natural_sizes(compute, truth, runs)
    smallest, rounding = 1000 * np.finfo(dtype).tiny, np.finfo(dtype).eps / 2
    many = additions if isinstance(additions, dict) else dict.fromkeys(truth, additions)
    return {
        name: (ROUNDINGS + many[name]) * rounding * sizes[name] + smallest * max(1.0, largest(x))
        for name, x in truth.items()
    }


def largest(x: Array) -> float:
    """The largest finite absolute value."""
    return float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))


def largest_of_rows(name: str, x: Array) -> Array:
    """The largest finite absolute value of each row, along the last axis: (..., 1)."""
    sizes = np.where(np.isfinite(x), np.abs(x), 0.0)
    if name.removeprefix("grad_") in ONE_EACH:
        return sizes
    return np.max(sizes, axis=-1, keepdims=True, initial=0.0)


def difference(actual: Array, truth: Array) -> Array:
    """Absolute differences; infinite where only one is, or one is not a number."""
    with np.errstate(invalid="ignore"):
        error = np.where(actual == truth, 0.0, np.abs(actual - truth))
    return np.where(np.isnan(error), np.inf, error)

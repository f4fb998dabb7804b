"""Counts what a kernel does, by running its own source on numbers that count themselves.

Each thread runs by itself, in plain Python, and what it computes is thrown away: how often a
kernel loads, stores and multiplies depends on the sizes and, in a feature map, on the inputs, which
are the real ones. A small launch will do; the counts of a large one follow from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import numba
import numpy as np
from classroom import Seen

from minitransformer_kernels.cuda import DeviceFunction

Index3 = tuple[int, ...]


def count(launch: Seen) -> Counter[str]:
    """Count the work of a launch.

    Args:
        launch: What `classroom.watch` has seen. Keep it small: this is Python, thread by thread.

    Returns:
        Bytes of floats, as "global load", "global store" and the same for "shared" and "register"
        arrays; operations, as "flop" (+, -, × and /) and "exp".
    """
    counts: Counter[str] = Counter()
    (real,) = (t for t in launch.constants.values() if isinstance(t, numba.types.Float))
    number = _number(counts, real.bitwidth)
    arguments = [_argument(value, counts, number) for value in launch.arguments]
    for block in np.ndindex(launch.blocks):
        for thread in np.ndindex(launch.threads):
            cuda = _thread(counts, number, block, thread, launch.threads)
            _rebuilt(launch.kernel.function, cuda, counts, number)(*arguments)
    return counts


def _number(counts: Counter[str], bits: int) -> Any:
    """Return a kind of float that counts its arithmetic; like Numba's types it knows its width."""

    def counted(operation: Callable[[float, float], float]) -> Any:
        def apply(self: float, other: float) -> Any:
            counts["flop"] += 1
            return Number(operation(self, other))

        return apply

    class Number(float):
        bitwidth = bits
        __add__, __radd__ = counted(float.__add__), counted(float.__radd__)
        __sub__, __rsub__ = counted(float.__sub__), counted(float.__rsub__)
        __mul__, __rmul__ = counted(float.__mul__), counted(float.__rmul__)
        __truediv__ = counted(lambda a, b: float.__truediv__(a, b) if b else 0.0)

    return Number


class _Array:
    """An array that counts the bytes loaded from it and stored to it."""

    def __init__(self, data: Any, memory: str, counts: Counter[str], number: Any) -> None:
        self.data, self.shape = data, data.shape
        self.load, self.store = f"{memory} load", f"{memory} store"
        self.counts, self.number = counts, number

    def __getitem__(self, index: Any) -> Any:
        self.counts[self.load] += self.number.bitwidth // 8
        return self.number(self.data[index])

    def __setitem__(self, index: Any, value: float) -> None:
        self.counts[self.store] += self.number.bitwidth // 8
        self.data[index] = value


def _argument(value: Any, counts: Counter[str], number: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return _Array(value.astype(np.float64), "global", counts, number)
    return number(value) if isinstance(value, np.floating) else value


def _thread(
    counts: Counter[str], number: Any, block: Index3, thread: Index3, threads: Index3
) -> SimpleNamespace:
    """Return what a kernel calls `cuda`, as one thread sees it."""

    def arrays(memory: str) -> SimpleNamespace:
        def array(shape: Any, dtype: Any) -> _Array:
            return _Array(np.zeros(shape), memory, counts, number)

        return SimpleNamespace(array=array)

    def index(x: int, y: int, z: int) -> SimpleNamespace:
        return SimpleNamespace(x=x, y=y, z=z)

    return SimpleNamespace(
        blockIdx=index(*block),
        threadIdx=index(*thread),
        blockDim=index(*threads),
        shared=arrays("shared"),
        local=arrays("register"),
        syncthreads=lambda: None,
    )


def _rebuilt(function: Any, cuda: Any, counts: Counter[str], number: Any) -> FunctionType:
    """Return a kernel or device function whose names mean what counts."""

    def exp(x: float) -> Any:
        counts["exp"] += 1
        return number(math.exp(x))

    def swap(value: Any) -> Any:
        if isinstance(value, DeviceFunction):
            return _rebuilt(value.function, cuda, counts, number)
        return number if isinstance(value, numba.types.Float) else value

    outside = {**function.__globals__, "cuda": cuda, "math": SimpleNamespace(exp=exp)}
    cells = tuple(CellType(swap(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(function.__code__, outside, function.__name__, None, cells)

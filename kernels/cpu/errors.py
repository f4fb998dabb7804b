"""What can be wrong with a kernel, said in one sentence with the file and the line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Place3 = tuple[int, int, int]


def line_of(filename: str, line: int) -> str:
    """`file:line`; of a notebook's cell its number and the line, which are what the reader sees."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})  # by execution count
    return f"In [{cells[filename]}], line {line}" if filename in cells else f"{filename}:{line}"


class KernelError(Exception):
    """A kernel, or the way it was launched, is wrong."""


def to_the_point(function: Callable[P, R]) -> Callable[P, R]:
    """Let the traceback of a KernelError end in the line that called a function.

    What is inside is nothing that the caller could mend. Nor is what Numba said, if that is where
    the error comes from: it stays behind the error as `__context__`, which is not shown.
    """

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except KernelError as error:
            if error.__cause__:
                error.__cause__ = None
            error.__traceback__ = None
            raise  # such a `raise` alone does not write this frame down again

    return call


class UnsupportedKernel(KernelError):
    """The kernel uses something that has no meaning on the CPU yet, or none at all."""


@dataclass
class Mistake(KernelError):
    """A mistake that showed when the kernel ran.

    Attributes:
        message: One sentence of explanation and the way out.
        kernel: The kernel's name.
        file: The file of the line.
        line: Where it happened.
        block: The block (x, y, z).
        threads: The threads (x, y, z) that had part in it.
        array: The array's name, or None.
        index: The element's index, or None.
        other_line: In a data race, the line of the other access.
    """

    message: str
    kernel: str
    file: str
    line: int
    block: Place3
    threads: tuple[Place3, ...]
    array: str | None = None
    index: tuple[int, ...] | None = None
    other_line: int | None = None

    def __str__(self) -> str:
        return f"{line_of(self.file, self.line)}: kernel {self.kernel!r}: {self.message}"

    __hash__ = KernelError.__hash__


class DivergentBarrier(Mistake):
    """A barrier that not all of the block reach, or not all that a warp operation's mask names."""


class OutOfBounds(Mistake):
    """An index not below the array's size, or one that was computed and came out below zero."""


class UninitializedRead(Mistake):
    """A read of memory that nobody has written, or a use of what no lane has sent."""


class EndlessLoop(Mistake):
    """A `while` that hundreds of millions of turns did not bring to its end."""


class FailedAssertion(Mistake):
    """An `assert` that does not hold, or a `raise`."""


class DataRace(Mistake):
    """Two threads access an element, one of them writes, and nothing orders the two."""

"""What can be wrong with a kernel, said in one sentence with the file and the line."""

from __future__ import annotations

from dataclasses import dataclass

Place3 = tuple[int, int, int]


class KernelError(Exception):
    """A kernel, or the way it was launched, is wrong."""


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
        return f"{self.file}:{self.line}: kernel {self.kernel!r}: {self.message}"

    __hash__ = KernelError.__hash__


class DivergentBarrier(Mistake):
    """A barrier that not every thread of the block reaches."""


class OutOfBounds(Mistake):
    """An index that is negative, or not below the array's size."""


class UninitializedRead(Mistake):
    """A read of shared or local memory that nobody has written."""


class DataRace(Mistake):
    """Two threads access an element, one of them writes, and nothing orders the two."""

"""What an instrumented launch writes down: a trace, of which the microscope makes its counts.

A trace tells of every access that every thread made to an array, and of every statement that every
thread executed, in the order of the steps that the lanes of a warp make together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ACCESS = np.dtype(
    [("site", "i4"), ("block", "i4"), ("thread", "i4"), ("step", "i8"), ("address", "i8")]
)
EXECUTION = np.dtype([("statement", "i4"), ("block", "i4"), ("thread", "i4"), ("step", "i8")])


@dataclass(frozen=True)
class Site:
    """A place in a kernel's text that accesses an array.

    Attributes:
        line: Line of the file, from 1.
        filename: The file of the kernel, or of the device function that holds the access.
        array: The array's name in the kernel.
        space: "global", "shared" or "local".
        kind: "read", "write" or "atomic".
        itemsize: Bytes of an element.
        shape: The array's shape, in elements.
    """

    line: int
    filename: str
    array: str
    space: str
    kind: str
    itemsize: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Statement:
    """A statement of a kernel's text, or of a device function's.

    Attributes:
        line: Line of the file, from 1.
        filename: The file that holds it.
        flops: Floating-point operations of one thread that executes it once; an fma is two.
    """

    line: int
    filename: str
    flops: int


@dataclass(frozen=True)
class Trace:
    """What the threads of a launch did.

    Attributes:
        kernel: The kernel's name.
        filename: Its file.
        first_line: The line of the file on which `source` starts.
        source: The kernel's text.
        grid: Blocks along x, y and z.
        block: Threads of a block along x, y and z.
        sites: Where arrays are accessed.
        statements: What is executed.
        accesses: One row of dtype `ACCESS` for each access of each thread. `site` counts in
            `sites`; `block` and `thread` are linear, x fastest; `address` is in bytes from the
            array's first element, of which each array's is aligned to 256 (global) or 128 (shared).
        executions: One row of dtype `EXECUTION` for each statement that a thread executes.
            `statement` counts in `statements`.

    The lanes of a warp that make an access together, in one instruction, have equal (site, block,
    step); those that execute a statement together have equal (statement, block, step).
    """

    kernel: str
    filename: str
    first_line: int
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sites: tuple[Site, ...]
    statements: tuple[Statement, ...]
    accesses: NDArray[np.void]
    executions: NDArray[np.void]

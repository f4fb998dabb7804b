"""In a GPU's place: a kernel on NumPy arrays, by way of its PTX.

The kernel is compiled for a GPU and its arguments are laid out as for a launch
there. So what runs is what a GPU would run: the text that its compiler made, and the very bytes
that it would be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from .. import assembler, compilers
from .. import launch as packing
from .machine import Run, launch
from .parser import Program, PtxError
from .profile import profile

if TYPE_CHECKING:
    from ...cuda import Kernel, Launch

_SHAPE = re.compile(r"%(?=[a-z])[a-z]+\d+|_cudapy_\w+|\$L__\w+")  # what has another name each time
_programs: dict[Any, Program] = {}


def program(
    kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int], lines: bool = False
) -> Program:
    """Return a kernel's PTX, compiled now or by an earlier process, and read.

    Args:
        kernel: What to compile.
        types: Numba's types of its arguments.
        architecture: A compute capability, such as (8, 0).
        lines: Whether its rows say which line of the source they come from. The compiler then
            moves instructions less freely, so the lines are lent from another compilation.
    """
    key = kernel, types, architecture, compilers.asked()
    if key not in _programs:
        try:
            made = _programs[key] = Program(assembler.kept_ptx(kernel, types, architecture))
        except PtxError:  # with the lines of its source it says where
            Program(assembler.kept_ptx(kernel, types, architecture, True))
            raise

        @cache
        def find_sources() -> None:
            lend_lines(Program(assembler.kept_ptx(kernel, types, architecture, True)), made)

        made.find_sources = find_sources
    if lines:
        _programs[key].find_sources()
    return _programs[key]


def lend_lines(lender: Program, borrower: Program) -> None:
    """Tell a program the lines of its source, from one that differs in few instructions."""
    ours, theirs = ([_SHAPE.sub("%", line.text) for line in each.lines]
                    for each in (borrower, lender))  # fmt: skip
    same = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    for begin, other, length in same:
        for i in range(length):
            known = lender.lines[other + i]
            old = borrower.lines[begin + i]
            borrower.lines[begin + i] = old._replace(source=known.source, file=known.file)


def run(
    launched: Launch, arguments: tuple[Any, ...], architecture: tuple[int, int] = (8, 0),
    counted: bool = False, **options: Any,
) -> Run:  # fmt: skip
    """Run a launch such as `kernel[blocks, threads]` on NumPy arrays and numbers.

    Args:
        launched: The kernel with its configuration.
        arguments: The kernel's.
        architecture: A compute capability, such as (8, 0).
        counted: Run warps in lockstep, and return a `Profile`.
        options: `seed`, `jitter` and `races` of `machine.launch`; where it is counted, `blocks` of
            `profile.profile`.

    Raises:
        PtxError: The kernel did something that a GPU does not allow, or leaves open.
    """
    made, laid_out, regions = prepared(launched, arguments, architecture, lines=counted)
    given = made, launched.grid, launched.block, laid_out, regions, launched.shared
    if counted:
        origins = [_origin(array) for array in arrays(arguments) if array.size]
        return profile(*given, origins=origins, **options)
    return launch(*given, **options)


def prepared(
    launched: Launch, arguments: tuple[Any, ...], architecture: tuple[int, int], lines: bool = False
) -> tuple[Program, list[bytes], list[tuple[int, int]]]:
    """Return what a launch runs, its arguments as they are laid out, and where its arrays lie."""
    as_on_gpu = tuple(_as_on_gpu(argument) for argument in arguments)
    made = program(launched.kernel, packing.types_of(as_on_gpu), architecture, lines)
    layout = packing.Layout(as_on_gpu)
    laid_out = bytearray(layout.size)
    layout.pack_into(laid_out, as_on_gpu)
    slots = [bytes(laid_out[i : i + packing.SLOT]) for i in range(0, layout.size, packing.SLOT)]
    regions = [np.lib.array_utils.byte_bounds(array) for array in arrays(arguments) if array.size]
    return made, slots, regions


@dataclass
class Machine:
    """What ran while it was in a GPU's place."""

    architecture: tuple[int, int]
    runs: list[Run] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """How many were executed."""
        return sum(run.instructions for run in self.runs)


@contextmanager
def ptx_machine(architecture: str = "8.0", **options: Any) -> Iterator[Machine]:
    """Run every launch on NumPy arrays within this context on the PTX machine.

    Args:
        architecture: A compute capability.
        options: `counted`, and the other options of `run`.
    """
    from ... import host
    from ...cuda import Launch

    machine = Machine(assembler.architecture(architecture), options=options)

    def call(self: Launch, *arguments: Any) -> None:
        if 0 not in self.grid:
            given = self.kernel.completed(host.opened(arguments))
            machine.runs.append(run(self, given, machine.architecture, **machine.options))

    with patch.object(Launch, "__call__", call):
        yield machine


def _as_on_gpu(argument: Any) -> Any:
    """An argument as the code that lays arguments out expects it: with CuPy's `data.ptr`."""
    if isinstance(argument, tuple):
        items = map(_as_on_gpu, argument)
        return argument._make(items) if hasattr(argument, "_make") else tuple(items)
    if isinstance(argument, (*packing.NUMBERS, np.number, np.bool_)):
        return argument
    if not isinstance(argument, np.ndarray):
        raise PtxError(
            "the PTX machine takes NumPy arrays, numbers and tuples of these, "
            f"got a {type(argument).__name__}"
        )
    names = "dtype", "ndim", "flags", "size", "itemsize", "shape", "strides"
    known: dict[str, Any] = {name: getattr(argument, name) for name in names}
    return SimpleNamespace(data=SimpleNamespace(ptr=argument.ctypes.data), **known)


def _origin(array: np.ndarray) -> int:
    """Where the memory begins that an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return np.lib.array_utils.byte_bounds(array)[0]


def arrays(arguments: tuple[Any, ...]) -> Iterator[np.ndarray]:
    """Yield the arrays among a launch's arguments, also those in tuples."""
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield argument
        elif isinstance(argument, tuple):
            yield from arrays(argument)

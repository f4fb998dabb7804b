"""A kernel's first launches are checked, and those that have something new; the others run fast.

Fast code believes what it is told: a thread without a guard writes past the end of an array, over
whatever Python keeps there. So a launch runs in the checked mode if none before it had the same
block, types, grid, shapes and whole numbers. That goes on until the checks of a block shape and its
types have taken `SECONDS`: a kernel that gets the number of a step each time is not held up. One
with `cuda.threadfence` is left alone: what its blocks tell each other would be taken for a race.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from . import last_words
from .errors import DataRace, line_of
from .form import Shape3
from .launch import CpuKernel, kind_of
from .lowering import CHECKED
from .watchers import checked_mode

SECONDS = 1.0  # as much as nobody minds once: 30,000 checks of a small launch
# The first launch is checked whole, in 1 to 25 times the time that it takes unchecked. But a check
# needs up to 24 bytes for each element of the arrays that are written to: not for more than these.
ELEMENTS = 1 << 26


class Launches:
    """The launches of a kernel on NumPy arrays.

    `checked` says whether all are checked, or none, where neither `checked()` nor
    `MINITRANSFORMER_CHECK` says so; with None it is those that have something new, or with `debug`
    all that can be: a GPU, too, tells of a failed `assert` then. `tested` is a kernel that its own
    tests have checked.
    """

    def __init__(
        self,
        kernel: CpuKernel,
        checked: bool | None = None,
        tested: bool = False,
        debug: bool = False,
    ) -> None:
        self.kernel = kernel
        self.checked = checked
        self.tested = tested
        self.debug = debug
        self._seen: set[Any] = set()
        self._seconds: dict[Any, float] = {}  # that checks have taken, by block shape and types

    def launch(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int = 0
    ) -> None:
        """Run every block of a grid.

        Raises:
            Mistake: a check found one.
            KernelError: as `CpuKernel.launch` does.
        """
        kernel, checked = self.kernel, checked_mode.is_on(self.tested)
        if checked is None:
            checked = self.checked
        if checked is None and self._check_if_new(grid, block, arguments, shared_bytes):
            return
        if checked:
            return checked_mode.launch(kernel, grid, block, arguments, shared_bytes)
        last_words.last().value = self._last_words
        kernel.launch(grid, block, arguments, shared_bytes)

    def _check_if_new(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int
    ) -> bool:
        """Run a launch checked, if it has something new; return whether it has run."""
        looks = (grid, block, shared_bytes, *map(_look, arguments))
        if looks in self._seen and not self.debug:
            return False
        kinds = (block, shared_bytes, *map(kind_of, arguments))
        taken = self._seconds.get(kinds, 0.0)
        if self.kernel.source.has_fences or self._written_elements(arguments) > ELEMENTS:
            return False
        if taken >= SECONDS and not self.debug:
            return False
        if not self._compiles_for_checks(block, arguments, shared_bytes):
            return False
        began = perf_counter()
        try:
            checked_mode.launch(self.kernel, grid, block, arguments, shared_bytes)
        except DataRace as race:
            race.add_note("If it does no harm, @cuda.jit(checked=False) leaves this check out")
            raise
        self._seconds[kinds] = taken + perf_counter() - began
        self._seen.add(looks)
        return True

    def _compiles_for_checks(
        self, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int
    ) -> bool:
        """Whether the kernel can be checked. What cannot even run fast is refused."""
        try:
            self.kernel.compiled(block, arguments, shared_bytes, CHECKED)
            return True
        except Exception as error:
            reason = f"kernel {self.kernel.function.__name__!r} runs unchecked: {error}"
        self.kernel.compiled(block, arguments, shared_bytes)
        warnings.warn(reason, RuntimeWarning, stacklevel=6)  # of the line with the launch
        self.checked = False
        return False

    def _written_elements(self, arguments: tuple[Any, ...]) -> int:
        written = (arguments[i] for i in self.kernel.written if i < len(arguments))
        return sum(a.size for a in written if isinstance(a, np.ndarray))

    @cached_property
    def _last_words(self) -> int:
        code = self.kernel.function.__code__
        return last_words.of(code.co_name, line_of(code.co_filename, code.co_firstlineno))


def _look(argument: Any) -> Any:
    """What of an argument an index may depend on, but for what is in its elements."""
    if isinstance(argument, np.ndarray):
        return kind_of(argument), argument.shape
    if isinstance(argument, (int, np.integer)):
        return type(argument), argument
    return type(argument)

"""Wrong kernels, each beside what a learner is to read about it.

`wrong(message)` records a kernel. Its line with the comment `# here` is the one that the message
has to name; by default the kernel is launched on one array of eight float32 ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from minitransformer_kernels.cpu import KernelError

MARK = "# here"
LONGEST = 450  # letters: more is a wall


class Wrong(NamedTuple):
    """A wrong kernel, its arguments, and where the mark is if not in the kernel."""

    kernel: Any
    message: str
    arguments: tuple[Any, ...]
    inside: Any

    def text(self) -> str:
        """What the launch says after the place, which is checked here."""
        with pytest.raises(KernelError) as refusal:
            self.kernel[1, 8](*self.arguments)
        place, text = marked_line(self.inside or self.kernel), str(refusal.value)
        assert text.startswith(f"{place}: "), text
        who, _, said = text.removeprefix(f"{place}: ").partition(": ")
        names = [f"kernel {self.kernel.__name__!r}"]
        if self.inside:
            names.append(f"device function {self.inside.function.__name__!r}")
        assert who in names
        return said


def marked_line(kernel: Any) -> str:
    """`file:line` of the marked line in a kernel's or a device function's source."""
    lines, first = inspect.getsourcelines(kernel.function)
    number = next(n for n, line in enumerate(lines) if MARK in line)
    return f"{inspect.getsourcefile(kernel.function)}:{first + number}"


def catalogue() -> tuple[Callable[..., Any], list[Any]]:
    """The decorator that records wrong kernels, and the list that it records them in."""
    recorded: list[Any] = []

    def wrong(message: str, *arguments: Any, inside: Any = None) -> Any:
        given = arguments or (np.ones(8, np.float32),)

        def record(kernel: Any) -> Any:
            case = Wrong(kernel, message, given, inside)
            recorded.append(pytest.param(case, id=kernel.__name__))
            return kernel

        return record

    return wrong, recorded


def assert_readable(text: str) -> None:
    """One or two sentences without the insides of the compiler."""
    assert "\n" not in text
    assert len(text) <= LONGEST
    for inside in ("Literal[", "Function(", "Failed in", "nopython", "<types of", "unicode_type"):
        assert inside not in text

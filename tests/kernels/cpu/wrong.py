"""Wrong kernels, each beside what a learner is to read about it.

`wrong(message)` records a kernel. Its line with the comment `# here` is the one that the message
has to name; by default the kernel is launched on one array of eight float32 ones. Most are a line
or two, which `lines(name=(text, message))` records: of a kernel of `x`, and the first of them is
wrong where none has the comment.
"""

import inspect
import math
import random
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.cuda import cuda

from .launches import defined

MARK = "# here"
LONGEST = 450  # letters: more is a wall
LEAKS = re.compile(  # the insides of compilers, and of ours
    r"Literal\[|Function\(|Failed in|nopython|<types of|unicode_type|NRT|npy_|_of\b|run__|"
    r"typeinfer|CPUDispatcher|object at 0x|numba\.core|Traceback|lowering"
)
# What the lines know.
NAMES = {
    "comb": math.comb, "cuda": cuda, "float32": numba.float32, "math": math, "np": np,
    "numba": numba, "random": random,
}  # fmt: skip


class Wrong(NamedTuple):
    """A wrong kernel, for which there is a folder; and where the mark is if not in the kernel."""

    kernel_in: Callable[[Path], Any]
    message: str
    arguments: tuple[Any, ...]
    inside: Any = None

    def assert_explained(self, folder: Path) -> None:
        """The launch names the line and the kernel, and says the message, readably."""
        kernel = self.kernel_in(folder)
        with pytest.raises(KernelError) as refusal:
            kernel[1, 8](*self.arguments)
        place, text = marked_line(self.inside or kernel), str(refusal.value)
        assert text.startswith(f"{place}: "), text
        who, _, said = text.removeprefix(f"{place}: ").partition(": ")
        names = [f"kernel {kernel.__name__!r}"]
        if self.inside:
            names.append(f"device function {self.inside.function.__name__!r}")
        assert who in names
        assert said.startswith(self.message), said
        assert_readable(said)
        assert_nothing_of_ours_is_shown(refusal.value, __file__)


def marked_line(kernel: Any) -> str:
    """`file:line` of the marked line in a kernel's or a device function's source."""
    lines, first = inspect.getsourcelines(kernel.function)
    number = next(n for n, line in enumerate(lines) if MARK in line)
    return f"{inspect.getsourcefile(kernel.function)}:{first + number}"


def kernel_of(name: str, text: str, names: dict[str, Any], folder: Path) -> Any:
    """The kernel of `x` that a text is, in a file of `folder`."""
    if MARK not in text:
        first, *rest = text.split("\n")
        text = "\n".join([f"{first}  {MARK}", *rest])
    whole = f"@cuda.jit\ndef {name}(x):\n{indent(text, '    ')}\n"
    return defined(folder / f"{name}.py", whole, NAMES | names)[name]


def catalogue(**names: Any) -> tuple[Callable[..., Any], Callable[..., None], list[Any]]:
    """What records kernels and lines, which know `names`; and the list that they record in."""
    recorded: list[Any] = []

    def add(name: str, kernel_in: Any, message: str, *arguments: Any, inside: Any = None) -> None:
        given = arguments or (np.ones(8, np.float32),)
        recorded.append(pytest.param(Wrong(kernel_in, message, given, inside), id=name))

    def wrong(message: str, **how: Any) -> Any:
        def record(kernel: Any) -> Any:
            add(kernel.__name__, lambda folder: kernel, message, **how)
            return kernel

        return record

    def lines(**kernels: tuple[Any, ...]) -> None:
        for name, (text, *said) in kernels.items():
            add(name, partial(kernel_of, name, text, names), *said)

    return wrong, lines, recorded


def assert_readable(text: str) -> None:
    """One or two sentences without the insides of the compiler."""
    assert "\n" not in text
    assert len(text) <= LONGEST
    assert not LEAKS.search(text), text


def assert_nothing_of_ours_is_shown(error: KernelError, file: str) -> None:
    """No frame but the caller's, in its file, stands above the sentence, and no second error."""
    frames = traceback.extract_tb(error.__traceback__)
    assert {frame.filename for frame in frames} == {file}
    assert len(traceback.format_exception(error)) == len(frames) + 2

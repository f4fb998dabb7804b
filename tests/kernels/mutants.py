"""Bugs planted in the kernels, by name: each must be found by the checks that the kernels pass.

A mutant is a copy of the package of kernels in which one piece of text is replaced. It is imported
next to the original, under its own name, and examined by the very same checks. Both share the
compiler, so that the kernels without a bug come from its cache.
"""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from pytest import MonkeyPatch

import minitransformer_kernels
from minitransformer_kernels import cpu, cuda

from ..properties import Operation, derive, examine

KERNELS = Path(str(minitransformer_kernels.__file__)).parent


def room(file: str) -> str:
    """The room that a file of kernels is in."""
    return file.removeprefix("layers/").partition("/")[0].removesuffix(".py")


@dataclass(frozen=True)
class Mutant:
    """A bug: in `file` the text `old`, which occurs once, becomes `new`; `operation` suffers."""

    name: str
    operation: Callable[[str], Operation]
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return self.name

    @property
    def package(self) -> str:
        """The import name of the mutated copy."""
        return f"mutant_{self.name}"

    @property
    def room(self) -> str:
        """The room whose kernels have the bug."""
        return room(self.file)

    @property
    def original(self) -> str:
        """The text of `file`."""
        return (KERNELS / self.file).read_text()

    def source(self) -> str:
        """The same with the bug in it."""
        text = self.original
        found = text.count(self.old)
        if found != 1:
            raise LookupError(
                f"mutant {self.name}: the text to replace must occur once in {self.file}, "
                f"but occurs {found} times: {self.old!r}"
            )
        return text.replace(self.old, self.new)

    @contextmanager
    def imported(self, folder: Path) -> Iterator[Operation]:
        """The operation with the bug in it, from a copy of the package in `folder`."""
        source = self.source()
        without_compiler = shutil.ignore_patterns("__pycache__", "cpu", "cuda.py")
        copy = shutil.copytree(KERNELS, folder / self.package, ignore=without_compiler)
        (copy / self.file).write_text(source)
        with MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.setitem(sys.modules, f"{self.package}.cpu", cpu)
            patch.setitem(sys.modules, f"{self.package}.cuda", cuda)
            try:
                yield self.operation(self.package)
            finally:  # another mutant may have the same name
                for module in [m for m in sys.modules if m.split(".")[0] == self.package]:
                    del sys.modules[module]


def bugs(operation: Callable[[str], Any], file: str, **edits: tuple[str, str]) -> Iterator[Mutant]:
    """Bugs of one file that one operation suffers from: name=(old, new)."""
    for name, edit in edits.items():
        yield Mutant(name, operation, file, *edit)


def hunts(mutants: Iterable[Mutant], *same: str) -> list[Any]:
    """The parameters of a test: a bug each, and whether only nightly runs hunt it.

    A bug in a kernel is a kernel to compile: by default the first of those whose attributes `same`
    are the same stands for all.
    """
    mutants, kind = list(mutants), attrgetter(*same)
    first = {kind(mutant): mutant for mutant in reversed(mutants)}
    return [
        pytest.param(x, marks=[] if always else pytest.mark.nightly)
        for x in mutants
        for always in [x is first[kind(x)] or "@cuda.jit" not in x.original]
    ]


def hunt(mutants: Iterable[Mutant], *same: str) -> Callable[..., None]:
    """A test that each bug, as `hunts` has them, fails the check that is its operation."""

    @pytest.mark.parametrize("mutant", hunts(mutants, *same), ids=str)
    def test(mutant: Any, tmp_path: Path) -> None:
        with mutant.imported(tmp_path) as check, pytest.raises(AssertionError):
            check()

    return test


def misfits(tests: Iterable[Any]) -> Iterator[str]:
    """What is wrong with the bugs that tests hunt: texts that their files do not have once."""
    parameters = (x.callspec.params.values() for x in tests if hasattr(x, "callspec"))
    for mutant in dict.fromkeys(x for each in parameters for x in each if isinstance(x, Mutant)):
        try:
            mutant.source()
        except LookupError as error:
            yield str(error)


def without_barriers(
    file: str, operation: Callable[[str], Operation], kernels: str = ".*"
) -> Iterator[Mutant]:
    """For each barrier of a file's kernels, a mutant that lacks it: `softmax_forward_1` and so on.

    `kernels` is a regular expression for the names of kernels. The text that is replaced goes on to
    the end of the file, so that it occurs once.
    """
    text = (KERNELS / file).read_text()
    count: Counter[str] = Counter()
    for barrier in re.finditer(r"cuda\.syncthreads\(\)", text):
        *_, kernel = re.findall(r"def (\w+)\(", text[: barrier.start()])
        count[kernel] += 1
        if re.fullmatch(kernels, kernel):
            name = f"{room(file)}_{kernel}_{count[kernel]}"
            rest = text[barrier.end() :]
            yield Mutant(name, operation, file, barrier[0] + rest, "pass" + rest)


def killer(operation: Operation, examples: int) -> str | None:
    """The name of a check that an operation fails, or None where it passes them all.

    All checks try a few examples first: the last of them may be quick where the first is long.
    """
    for tried in (4, examples):
        effort = settings(
            derandomize=True, max_examples=tried, phases=[Phase.generate], database=None
        )
        for check in derive(operation):
            try:
                examine(operation, check, effort)
            except AssertionError:
                return str(check)
    return None

"""Every kernel that the package launches on a GPU, found without one and without a launch.

A kernel's source is compiled once for each set of constants that its factory closes over, and for
each set of argument types: a *specialisation*. To find them, the host functions run on arrays of a
head dim and a dtype, with their launches noted down instead of made.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numba
import numpy as np

from .. import softmax
from ..cuda import DeviceFunction, Kernel, Launch, cuda
from ..examples import HOSTS, MORE
from . import assembler, codegen
from .compilers import numba_cuda
from .launch import types_of

USUAL = 64  # the head dim of most models
INSTRUCTION = "ptx", "results", "operands"  # what `tensor_cores.Instruction` is made of


class Specialisation(NamedTuple):
    """A kernel, Numba's types of its arguments, and the threads of its block."""

    kernel: Kernel
    types: tuple[Any, ...]
    threads: int

    @property
    def name(self) -> str:
        """The module and the kernel, as `softmax.forward`."""
        return f"{assembler.room(self.kernel)}.{self.kernel.__name__}"

    @property
    def oldest(self) -> tuple[int, int]:
        """The oldest architecture that runs it: its module's `OLDEST`, such as (8, 0), if any."""
        return getattr(sys.modules[self.kernel.function.__module__], "OLDEST", (0, 0))

    @property
    def constants(self) -> dict[str, str]:
        """What the kernel's factory bound but for the type of its numbers: names, and values."""
        values = inspect.getclosurevars(self.kernel.function).nonlocals
        return {
            name: value.function.__name__ if isinstance(value, DeviceFunction) else str(value)
            for name, value in values.items()
            if not isinstance(value, numba.types.Type)
        }

    @property
    def fingerprint(self) -> str:
        """Twelve digits that change where what is compiled may: not with comments or docstrings."""
        text = _ingredients(self.kernel), [str(each) for each in self.types], self.threads
        return hashlib.sha256(repr(text).encode()).hexdigest()[:12]


def specialisations(head_dim: int, dtype: Any = np.float32) -> Iterable[Specialisation]:
    """Return what `HOSTS`, and for one head dim `MORE`, launch for inputs of a dtype."""
    inputs = [np.zeros((2, 2, 100, head_dim), dtype)] * 3
    with noted() as found:
        for host in (HOSTS | MORE if head_dim == USUAL else HOSTS).values():
            host(*inputs)
    return found


@contextmanager
def noted() -> Iterator[Iterable[Specialisation]]:
    """Launch nothing, and note down what would have been launched, each once."""
    found: dict[Specialisation, None] = {}

    def note(launch: Launch, *arguments: Any) -> None:
        found[Specialisation(launch.kernel, types_of(arguments), math.prod(launch.block))] = None

    # Nothing is computed, so what comes after a launch may see any numbers.
    with as_on_a_gpu(), patch.object(Launch, "__call__", note), np.errstate(all="ignore"):
        yield found


def as_on_a_gpu() -> Any:
    """A context in which arrays of the CPU are given the kernels that those of a GPU get."""
    return patch.object(softmax.fast, "ENOUGH_HEADS", math.inf)


@cache
def pipeline() -> str:
    """Return eight digits that change where the way in which all kernels are compiled may."""
    parts = codegen, numba_cuda, assembler.ptx, assembler.assemble
    text = "\n".join(ast.unparse(parsed(inspect.getsource(part))) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _ingredients(made: Kernel | DeviceFunction) -> Any:
    """Return all that decides what a kernel or a device function is compiled to."""
    text, names = _text(made.function.__code__)
    outside = inspect.getclosurevars(made.function)
    values = {**outside.globals, **outside.nonlocals}
    used = [(name, _value(values[name])) for name in names if name in values]
    instruction = [vars(made)[name] for name in INSTRUCTION if name in vars(made)]
    return text, sorted(made.options.items()), used, *instruction


@cache
def _text(code: CodeType) -> tuple[str, list[str]]:
    """Return a function's statements without comments and docstrings, and the names they read."""
    tree = parsed(inspect.getsource(code))
    function = next(x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef))
    function.decorator_list = []  # its options are looked at as they are
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return ast.unparse(function), sorted(names - {*code.co_varnames})


def parsed(source: str) -> ast.Module:
    """Return the tree of a function's or a module's source, without docstrings."""
    in_a_factory = source[0].isspace()
    tree = ast.parse(f"if True:\n{source}" if in_a_factory else source)
    documented = ast.Module, ast.FunctionDef, ast.ClassDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return tree


def _value(value: Any) -> Any:
    """Return a constant in a form whose text is the same in every process."""
    if value is cuda:
        return "cuda"
    if isinstance(value, (Kernel, DeviceFunction)):
        return _ingredients(value)
    if isinstance(value, tuple):
        return tuple(map(_value, value))
    if isinstance(value, np.generic):
        return str(value.dtype), value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numba.types.Type):
        return str(value)
    if isinstance(value, ModuleType) or callable(value):
        return value.__name__
    raise TypeError(f"no rule says what of {value!r}, a {type(value).__name__}, decides the code")

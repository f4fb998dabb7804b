"""Which kernel, and which launch of it, a command line means.

softmax                     the kernels of an attention of this package, on a small example
softmax.forward             one of them
file.py, file.py:kernel     the kernels that `example()` in that file launches, or one of them
file.py:kernel              with a grid, a block and arguments: that kernel, so launched
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..cpu import KernelError
from ..cuda import Kernel
from ..examples import HOSTS
from . import inspect, watch

SHAPE = 1, 1, 40, 16  # (N, H, L, E) of the examples of this package
SMALL = 1, 1, 8, 16  # where each instruction is shown
_KINDS = "biuf"


def reports(
    target: str, seed: int = 0, shape: tuple[int, ...] = SHAPE, **options: Any
) -> dict[str, Any]:
    """Put the kernels of a target's example under the microscope.

    Args:
        target: See the top of this module.
        seed: Decides the numbers in the arrays of this package's own examples.
        shape: (N, H, L, E) of these.
        options: `look` of `microscope.watch`, and its options.

    Returns:
        The reports, by the names of the kernels.

    Raises:
        ValueError: there is no such target, or nothing in it is launched.
        KernelError: a kernel or its launch is wrong.
    """
    if (found := _file(target)) is not None:
        path, name = found
        module = _load(path)
        if not callable(getattr(module, "example", None)):
            raise ValueError(
                f"{path} has no function example() that launches its kernels; write one, or give "
                "a kernel's name, a grid, a block and its arguments"
            )
        try:
            return watch(module.example, name, **options)
        except (KernelError, ValueError):
            raise
        except Exception as error:
            raise ValueError(f"{path}: example() ended in {_described(error)}") from error
    attention, _, kernel = target.partition(".")
    if attention not in HOSTS:
        names = ", ".join(HOSTS)
        raise ValueError(f"no target {target!r}; expected one of {names}, or FILE.py:KERNEL")
    draw = np.random.default_rng(seed).standard_normal
    inputs = [draw(shape, np.float32) for _ in range(3)]
    return watch(lambda: HOSTS[attention](*inputs), kernel or None, **options)


def launched(
    target: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    specs: Sequence[str],
    shared: int = 0,
    seed: int = 0,
    look: Callable[..., Any] = inspect,
    **options: Any,
) -> dict[str, Any]:
    """Put a launch of a kernel in a file under the microscope.

    Args:
        target: "file.py:kernel".
        grid: Blocks.
        block: Threads of a block.
        specs: The arguments, see `arguments`.
        shared: Bytes of dynamic shared memory.
        seed: Decides the numbers in the arrays.
        look: What to look with: `microscope.inspect`, or `inspect_ptx`.
        options: Its own.

    Returns:
        The report, by the name of the kernel.

    Raises:
        ValueError: there is no such kernel, or an argument makes no sense.
        KernelError: the kernel or its launch is wrong.
    """
    path, name = _file(target) or (None, None)
    if path is None or name is None:
        raise ValueError(f"a grid and a block need a kernel FILE.py:KERNEL, got {target!r}")
    module = _load(path)
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel)]
    if name not in kernels:
        names = ", ".join(kernels) or "none"
        raise ValueError(f"{path} has no kernel {name!r}; its kernels: {names}")
    launch = getattr(module, name)[grid, block, 0, shared]
    return {name: look(launch, *arguments(specs, seed), **options)}


def arguments(specs: Iterable[str], seed: int = 0) -> list[Any]:
    """Make a kernel's arguments of their specifications.

    Args:
        specs: Each `float32[64,64]` for an array, `float32(0.5)` for a number of that type, or a
            plain number. Floats are drawn from a normal distribution, integers from 0 up to below
            the shortest length of any of the arrays, so that they are good as indices.
        seed: Decides the numbers.

    Returns:
        NumPy arrays and numbers.

    Raises:
        ValueError: a specification makes no sense.

    >>> matrix, indices, rate, count = arguments(["float32[2,3]", "int64[5]", "float32(0.5)", "7"])
    >>> matrix.shape, indices.max() < 2, rate, count
    ((2, 3), np.True_, np.float32(0.5), 7)
    """
    rng = np.random.default_rng(seed)
    specs = list(specs)
    lengths = [int(n) for spec in specs for n in re.findall(r"\d+", spec.partition("[")[2])]
    return [_argument(spec, rng, min(lengths, default=1)) for spec in specs]


def _argument(spec: str, rng: np.random.Generator, below: int) -> Any:
    if array := re.fullmatch(r"(\w+)\[(\d+(?:,\d+)*)\]", spec.replace(" ", "")):
        shape = tuple(map(int, array[2].split(",")))
        dtype = _dtype(array[1], spec)
        if dtype.kind == "f":
            return rng.standard_normal(shape).astype(dtype)
        return rng.integers(0, 2 if dtype.kind == "b" else max(1, below), shape).astype(dtype)
    number = re.fullmatch(r"(?:(\w+)\()?([-+.\w]+)\)?", spec.strip())
    try:
        if number is None:
            raise ValueError
        value = float(number[2]) if re.search(r"[.en]", number[2]) else int(number[2])
    except ValueError:
        raise ValueError(
            f"argument {spec!r} makes no sense; expected an array like float32[64,64], a number, "
            "or a number of a type like float32(0.5)"
        ) from None
    return _dtype(number[1], spec).type(value) if number[1] else value


def _dtype(name: str, spec: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in _KINDS:
        raise ValueError(
            f"argument {spec!r}: no dtype {name!r} for kernels; expected float32, float64, int32, "
            "int64, uint8 or bool, say"
        )
    return dtype


def _file(target: str) -> tuple[Path, str | None] | None:
    """Split "file.py:kernel" up; return None for anything that is no Python file."""
    if found := re.fullmatch(r"(.*\.py)(?::(\w+))?", target):
        return Path(found[1]), found[2]
    return None


def _load(path: Path) -> ModuleType:
    """Import a file."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be imported: {_described(error)}. If it runs kernels, let it do so "
            'under `if __name__ == "__main__":`, and import the rest'
        ) from error
    return module


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

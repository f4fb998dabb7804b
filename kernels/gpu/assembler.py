"""From a kernel and the types of its arguments to machine code for a GPU, kept on disk.

A compiler (`compilers`) makes PTX of the kernel, the assembly language of all NVIDIA GPUs, and
NVIDIA's linker assembles that to a cubin, the machine code of one architecture. Both take about a
second, so the cubin is kept in the same folder as what `cpu/` compiles, under a name that says what
it was made from: with it, the next process needs neither. No GPU is needed for any of this.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from ..cpu import cache
from . import compilers, halves

if TYPE_CHECKING:
    from ..cuda import Kernel

OPTIONS = {"fastmath", "max_registers", "lineinfo"}  # of @cuda.jit, which this module follows
# What begins the names of the packages that compile, with CUDA 13 and with CUDA 12, whose NVVM
# comes with nvcc.
COMPILERS = "numba", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc"


class NotAssembled(RuntimeError):
    """The assembler refuses a kernel's PTX: what it needs, some architecture does not have."""


def cubin(kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int]) -> bytes:
    """Return a kernel's machine code, assembled now or by an earlier process.

    With `MINITRANSFORMER_LINEINFO=1` it knows the lines of its source, for compute-sanitizer and
    for profilers.

    Args:
        kernel: What to compile; in its machine code it has the name `entry_name(kernel)`.
        types: Numba's types of its arguments.
        architecture: The GPU's compute capability, such as (9, 0).
    """
    lineinfo = bool(kernel.options.get("lineinfo") or os.environ.get("MINITRANSFORMER_LINEINFO"))
    digest = _digest(kernel, types, architecture, lineinfo=lineinfo)
    path = cache.folder() / f"{entry_name(kernel)}_{digest}.cubin"
    code = cache.read(path)
    if code is None:
        text = halves.completed(ptx(kernel, types, architecture, lineinfo))
        code, _ = assemble(text, architecture, kernel.options.get("max_registers"))
        cache.write(path, code)
    return code


def kept_ptx(
    kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int], lineinfo: bool = False
) -> str:
    """Return a kernel's PTX, compiled now or by an earlier process; see `ptx`."""
    digest = _digest(kernel, types, architecture, lineinfo=lineinfo)
    path = cache.folder() / f"{entry_name(kernel)}_{digest}.ptx"
    text = cache.read(path)
    if text is None:
        text = halves.completed(ptx(kernel, types, architecture, lineinfo)).encode()
        cache.write(path, text)
    return text.decode()


def architecture(digits: str) -> tuple[int, int]:
    """Return a compute capability from how it is written: (9, 0) for "9.0", and for CuPy's "90".

    Raises:
        ValueError: It is written otherwise.
    """
    numbers = digits.replace(".", "")
    return int(numbers[:-1]), int(numbers[-1])


def room(kernel: Kernel) -> str:
    """Return where a kernel of this package lives, as `softmax` or `softmax.plain`."""
    package, *path = (kernel.function.__module__ or "exec").split(".")
    if package != __package__.partition(".")[0]:
        return [package, *path][-1]  # a script, or a test
    return ".".join(part for part in path if part not in ("layers", "fast"))


def entry_name(kernel: Kernel) -> str:
    """Return a kernel's name in its machine code, where a profiler shows it."""
    return f"{room(kernel).replace('.', '_')}_{kernel.__name__}"


def ptx(
    kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int], lineinfo: bool = False
) -> str:
    """Compile a kernel to PTX, with the lines of its source in it if they are wanted."""
    options = {"fastmath": bool(kernel.options.get("fastmath")), "lineinfo": lineinfo}
    function, name = kernel.on_gpu.py_func, entry_name(kernel)
    return compilers.compiler().ptx(function, types, architecture, name, **options)


def assemble(
    ptx: str, architecture: tuple[int, int], max_registers: int | None = None
) -> tuple[bytes, str]:
    """Assemble PTX; return the cubin, and the assembler's log, which says what the kernel needs.

    Raises:
        NotAssembled: The architecture cannot run it; the message is the assembler's first.
    """
    from cuda.bindings import nvjitlink

    options = ["-arch=sm_{}{}".format(*architecture), "-O3", "-verbose"]
    if max_registers is not None:
        options.append(f"-maxrregcount={max_registers}")
    if "\n\t.loc\t" in ptx:
        options.append("-lineinfo")
    linker = nvjitlink.create(len(options), options)
    try:
        text = ptx.encode()
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "kernel.ptx")
        nvjitlink.complete(linker)
        code = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, code)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        said = log.decode().rstrip("\n\0 ")
        first = re.search(r"; error\s*: (.*)", said)
        refusal = NotAssembled(first[1] if first else said)
        refusal.add_note(said)
        raise refusal from error
    finally:
        nvjitlink.destroy(linker)
    return bytes(code), log.decode()


def _digest(kernel: Kernel, *others: Any, lineinfo: bool = False) -> str:
    """Return a digest of a kernel and what else decides what the machine code is."""
    digest = hashlib.sha256(_compiler(compilers.name()))
    names = _names(others)
    for part in (*_ingredients(kernel, set(), lineinfo), compilers.asked(), *others, *names):
        digest.update(f"{part!r}\n".encode())
    return digest.hexdigest()[:16]


def _names(part: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names of items of tuples, which stand in no type's text."""
    if isinstance(part, (tuple, numba.types.BaseTuple)):
        yield tuple(getattr(part, "fields", ()))
        for each in part:
            yield from _names(each)


@functools.cache
def _compiler(name: str) -> bytes:
    """Return what compiles: our own modules, Python, which makes the bytecode, and the compiler."""
    here = Path(__file__).parent
    modules = (here / f"{each}.py" for each in ("assembler", "codegen", "halves"))
    files = *modules, *sorted((here / "compilers").glob("*.py"))
    ours = name, *(file.read_text() for file in files)
    found = {(each.name, each.version) for each in metadata.distributions()}
    theirs = sorted(pair for pair in found if pair[0].startswith(COMPILERS))
    return repr((ours, sys.version_info[:2], theirs)).encode()


def _ingredients(kernel: Any, seen: set[Any], lineinfo: bool) -> Iterator[Any]:
    """Yield what a kernel or a device function is made of, down to the last constant."""
    function = getattr(kernel, "function", None) or kernel.py_func
    if function in seen:
        return
    seen.add(function)
    code = function.__code__
    yield code.co_code, code.co_consts, code.co_names, code.co_varnames, function.__defaults__
    if lineinfo:  # then the file and the lines are a part of what is made
        yield code.co_filename, code.co_firstlineno, code.co_linetable
    yield sorted(getattr(kernel, "options", {}).items())
    yield [text for text in vars(kernel).values() if isinstance(text, str)]  # of an instruction
    outside = inspect.getclosurevars(function)
    for name, value in sorted({**outside.globals, **outside.nonlocals}.items()):
        yield name
        if isinstance(getattr(value, "function", getattr(value, "py_func", None)), FunctionType):
            yield from _ingredients(value, seen, lineinfo)
        elif isinstance(value, ModuleType):
            yield [(name, getattr(value, name, None)) for name in code.co_names]
        else:
            yield (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value

"""What the kernels need on GPUs, found without one.

A compiler makes PTX of a kernel, for the types of its arguments, and NVIDIA's linker assembles that
to a cubin and tells its needs:

    registers   of each thread; a multiprocessor shares 65,536 among its threads
    spills      bytes that went to slow memory because there were too few registers
    local       bytes of each thread's stack: arrays that are indexed by more than constants
    shared      bytes of each block, as declared; 48 KiB are there without asking
    float64     instructions on float64, 2 to 64 times slower: often a stray Python number

It needs the extra `cuda13` or `gate`, or one of the same name with `-mlir`, but no GPU and no
driver.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

from ..cuda import Kernel
from . import assembler, compilers, halves

ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))  # Turing, Ampere, Hopper, Blackwell


class Needs(NamedTuple):
    """What a kernel needs on one architecture, in the units of this module's docstring."""

    registers: int
    spills: int
    local: int
    shared: int
    float64: int


def available() -> bool:
    """Return whether the extra that this module needs is installed."""
    try:
        from cuda.bindings import nvjitlink  # noqa: F401
    except ImportError:
        return False
    return compilers.installed(compilers.name())


@cache
def needs(kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int]) -> Needs:
    """Compile a kernel for arguments of Numba's types; return what it needs there."""
    return build(kernel, types, architecture)[1]


def build(
    kernel: Kernel, types: tuple[Any, ...], architecture: tuple[int, int]
) -> tuple[bytes, Needs]:
    """Compile a kernel for arguments of Numba's types; return its cubin, and what it needs."""
    text = halves.completed(assembler.ptx(kernel, types, architecture))
    max_registers = kernel.options.get("max_registers")
    cubin, log = assembler.assemble(text, architecture, max_registers)
    return cubin, Needs(
        registers=max(_numbers(r"sed (\d+) registers", log)),
        spills=sum(_numbers(r"(\d+) bytes spill", log)),
        local=max(_numbers(r"(\d+) bytes (?:stack frame|lmem)", log)),
        shared=sum(_numbers(r"^\.visible \.shared .*\[(\d+)\];", text)),
        float64=float64_lines(text).total(),
    )


def float64_lines(ptx: str) -> Counter[tuple[str, int]]:
    """Count the float64 instructions of each (file, line); without lines all are at ("", 0)."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "(.*?)"', ptx, re.MULTILINE))
    found = Counter[tuple[str, int]]()
    place = ("", 0)
    for text in ptx.splitlines():
        if location := re.match(r"\s*\.loc\s+(\d+) (\d+)", text):
            place = files[location[1]], int(location[2])
        elif re.match(r"\s.*\.f64\b", text) and not re.match(r"\s*\.(reg|param)\b", text):
            found[place] += 1
    return found


def _numbers(pattern: str, log: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, log, re.MULTILINE)]

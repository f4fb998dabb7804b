"""The two compilers that make PTX of kernels, and which of them is asked.

    numba-cuda         NVIDIA's first: Numba's types, LLVM code by llvmlite. The default.
    numba-cuda-mlir    its successor: no Numba and no llvmlite, MLIR in their place.

Both are of NVIDIA, take the same kernels and hand them to the same NVVM. What differs stands in a
module for each, with the functions of `Compiler`. `README.md` tells what differs in what they make.

`MINITRANSFORMER_COMPILER` chooses, where both are installed.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Protocol

from .. import codegen

VARIABLE = "MINITRANSFORMER_COMPILER"
MODULES = {"numba-cuda": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir"}  # the default first


class Compiler(Protocol):
    """What a compiler's module has."""

    WORDS: int  # that an array's argument begins with, before its lengths and strides; 8 bytes each

    def namespace(self) -> Any:
        """Return its `cuda`."""

    def counterpart(self, value: Any) -> Any:
        """Return what stands in a kernel for a value of Numba's, such as the type float32."""

    def instruction(self, meaning: FunctionType, ptx: str, results: str, operands: str) -> Any:
        """Return a function whose call in a kernel becomes one PTX instruction.

        Args:
            meaning: Has its name and its parameters.
            ptx: The instruction, with $0, $1, ... for the results and then the operands.
            results: A letter each, "f" for a float32, "r" for a float32's bits.
            operands: Likewise.
        """

    def ptx(
        self, function: FunctionType, types: tuple[Any, ...], architecture: tuple[int, int],
        name: str, **options: bool,
    ) -> str:  # fmt: skip
        """Compile a kernel.

        Args:
            function: What it runs, with the compiler's own objects behind its names.
            types: Numba's types of its arguments.
            architecture: A compute capability.
            name: What it is called in the PTX.
            options: `fastmath` and `lineinfo`.
        """

    def words(self, array: Any) -> tuple[int, ...]:
        """Return what an array is as an argument: 64-bit integers."""


def installed(name: str) -> bool:
    """Return whether a compiler is installed, by its name."""
    return find_spec(MODULES[name]) is not None


def name() -> str:
    """Return the name of the compiler that is asked.

    Raises:
        ValueError: `MINITRANSFORMER_COMPILER` is not one of their names.
    """
    chosen = os.environ.get(VARIABLE) or next(filter(installed, MODULES), next(iter(MODULES)))
    if chosen not in MODULES:
        raise ValueError(f"{VARIABLE} is {chosen!r}; the compilers are {', '.join(MODULES)}")
    return chosen


def asked() -> tuple[str, tuple[str, ...]]:
    """Return what decides what becomes of a kernel: which compiler, and the hints that it gets."""
    return name(), codegen.told()


def compiler(of: str | None = None) -> Compiler:
    """Return the compiler of a name, or the one that is asked."""
    return import_module(f".{MODULES[of or name()]}", __name__)

"""What the compiled kernel needs on real GPUs, found without one (`cubins` says how)."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from numba.core.errors import NumbaError

from ..cuda import Launch
from ..gpu import cubins
from ..gpu.assembler import NotAssembled, ptx
from ..gpu.gpus import Capability, Occupancy, occupancy
from ..gpu.launch import types_of

MISSING = (
    "registers, spills and occupancy: install the extra gate, `pip install "
    "'minitransformer[gate]'`; no GPU is needed"
)


class Compiled(NamedTuple):
    """A kernel, compiled for the architectures of `cubins.ARCHITECTURES`.

    Attributes:
        needs: For each architecture that runs it, and how many blocks that allows a multiprocessor
            to keep.
        refused: Why it does not run on the others, in the assembler's words.
        float64: How many float64 instructions come from each (file, line).
    """

    needs: dict[Capability, tuple[cubins.Needs, Occupancy]]
    refused: dict[Capability, str]
    float64: Counter[tuple[str, int]]


def compiled(launch: Launch, arguments: tuple[Any, ...]) -> Compiled | str:
    """Compile the kernel of a launch for its arguments; return why not, if that fails."""
    if not cubins.available():
        return MISSING
    try:
        return _compiled(launch, arguments)
    except NumbaError as error:
        reason = "\n".join(f"  {line}" for line in str(error).splitlines() if line.strip())
        return f"Numba cannot compile the kernel for a GPU:\n{reason}"


def _compiled(launch: Launch, arguments: tuple[Any, ...]) -> Compiled:
    kernel = launch.kernel
    types = types_of(arguments)
    found, refused, float64 = {}, {}, Counter[tuple[str, int]]()
    for architecture in cubins.ARCHITECTURES:
        try:
            needs = cubins.needs(kernel, types, architecture)
        except NotAssembled as error:
            refused[architecture] = str(error)
            continue
        shared = needs.shared + launch.shared
        fits = occupancy(architecture, launch.block, needs.registers, shared)
        found[architecture] = needs, fits
        if needs.float64 and not float64:
            float64 = cubins.float64_lines(ptx(kernel, types, architecture, lineinfo=True))
    return Compiled(found, refused, float64)

"""What a GPU refuses of a launch, found without one.

The numbers are those of the CUDA programming guide, "Technical Specifications per Compute
Capability", and the same for every GPU from Turing on, but for one: how much dynamic shared memory
a block may ask for. 48 KiB is what every GPU gives; `MINITRANSFORMER_GPU`, a name in `gpus.GPUS`,
says whose larger limit holds instead.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

from ..arrays import SHARED_BYTES
from ..cpu.errors import KernelError
from ..cpu.form import Shape3
from . import codegen
from .gpus import ARCHITECTURES, PARTS, REGISTERS, THREAD_REGISTERS, find, most_registers

THREADS, BLOCK_Z = codegen.THREADS["x"], codegen.THREADS["z"]  # of a block: in all, along z
GRID_X, GRID_YZ = codegen.BLOCKS["x"], codegen.BLOCKS["y"]
VARIABLE = "MINITRANSFORMER_GPU"


def check_launch(kernel: str, grid: Shape3, block: Shape3, shared: int, options: Any) -> None:
    """Refuse a launch by its configuration.

    Args:
        kernel: Its name.
        grid: How many blocks.
        block: How many threads each.
        shared: Bytes of dynamic shared memory.
        options: Those of `@cuda.jit`.

    Raises:
        KernelError: no GPU runs it, or not the one that `MINITRANSFORMER_GPU` names.
    """
    threads = prod(block)
    if threads > THREADS or block[2] > BLOCK_Z:
        raise KernelError(
            f"kernel {kernel!r}: {_short(block)} threads a block; a GPU allows {THREADS} in all "
            f"and {BLOCK_Z} along z. Use more, smaller blocks"
        )
    if grid[0] > GRID_X or max(grid[1:]) > GRID_YZ:
        most = f"{GRID_X:,} along x" if grid[0] > GRID_X else f"{GRID_YZ} along y and z"
        raise KernelError(
            f"kernel {kernel!r}: {_short(grid)} blocks; a GPU allows {most}. Put the longest axis "
            "first, or let each thread do more"
        )
    if (registers := options.get("max_registers")) is not None:
        _check_registers(kernel, threads, registers)
    check_shared(kernel, 0, shared)


def check_shared(kernel: str, declared: int, dynamic: int) -> None:
    """Refuse a block's shared memory: bytes that the kernel declares, and those of the launch.

    Raises:
        KernelError: it is too much.
    """
    if declared > SHARED_BYTES:
        raise KernelError(
            f"kernel {kernel!r}: its shared arrays come to {declared:,} bytes a block; a kernel "
            f"can declare {SHARED_BYTES:,} for any GPU. Use smaller arrays or a smaller dtype, "
            "float32"
        )
    if declared + dynamic <= SHARED_BYTES:
        return
    name = os.environ.get(VARIABLE, "")
    most, whose = (
        SHARED_BYTES,
        f"every GPU has {SHARED_BYTES:,} ({VARIABLE}=A100, say, names one with more)",
    )
    if name:
        try:
            gpu = find(name)
        except ValueError as error:
            raise KernelError(f"{VARIABLE}: {error}") from None
        has = ARCHITECTURES[gpu.capability]
        most = has.shared - has.reserved
        whose = f"the GPU {gpu.name} has {most:,}"
    if declared + dynamic > most:
        raise KernelError(
            f"kernel {kernel!r}: a block has {declared:,} bytes of declared and {dynamic:,} of "
            f"dynamic shared memory; {whose}. Use smaller tiles"
        )


def _check_registers(kernel: str, threads: int, registers: Any) -> None:
    """Refuse a block whose warps find no room for so many registers."""
    if not isinstance(registers, int) or registers < 1:
        raise KernelError(
            f"kernel {kernel!r}: max_registers is {registers!r}; a thread has 1 to "
            f"{THREAD_REGISTERS} registers"
        )
    fitting = most_registers(threads)
    if min(registers, THREAD_REGISTERS) > fitting:
        raise KernelError(
            f"kernel {kernel!r}: {threads} threads of max_registers={registers}; a GPU has {PARTS} "
            f"parts of {REGISTERS // PARTS:,} registers for a block's warps, {fitting} for each of "
            f"these threads. Use fewer, or max_registers={fitting}"
        )


def _short(shape: Shape3) -> str:
    """A shape as it was probably written."""
    sizes = shape[: 3 if shape[2] > 1 else 2 if shape[1] > 1 else 1]
    return str(sizes if len(sizes) > 1 else sizes[0])

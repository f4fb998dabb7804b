"""What GPUs can do: the peaks of some that have a name, and the limits of their architectures.

Peaks are at the boost clock and without tensor cores, which one kernel here uses. They come from
NVIDIA's data sheets and architecture white papers, named at each line.

The limits of a multiprocessor come from the table "Technical Specifications per Compute
Capability" of the CUDA programming guide, its rates from that guide's table "Throughput of Native
Arithmetic Instructions", and the units in which registers and shared memory are given out from the
occupancy calculator. Shared memory has 32 banks of 4 bytes; that Turing's moves half as much in a
clock, and that a GA10x multiprocessor has 16 units for loads and stores, is in the white paper
GA102; of units, Ampere's of the A100 and Hopper's have 32 by the figures of theirs.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

WARP = 32
BANKS, WORD = 32, 4  # of shared memory: banks, and bytes of a word of one
SECTOR = 32  # bytes, of which global memory is moved
REGISTERS = 65_536  # of a multiprocessor, on all of these
THREAD_REGISTERS = 255  # of a thread, at most
PARTS = 4  # of a multiprocessor; a warp is in one of them
UNIT = 256  # registers, in multiples of which a warp gets them
KIB = 1024

Capability = tuple[int, int]


class GPU(NamedTuple):
    """A GPU.

    Attributes:
        name: As it is sold.
        capability: Its compute capability.
        teraflops: Peak of float32, in 10^12 operations a second; a fused multiply-add is two.
        bandwidth: Peak of its memory, in 10^9 bytes a second.
        multiprocessors: How many it has.
        l2: Bytes that its L2 cache gives in a clock, where NVIDIA says it.
        tensor: Peak of its tensor cores on TF32, dense, in 10^12 operations a second; 0: none.
    """

    name: str
    capability: Capability
    teraflops: float
    bandwidth: float
    multiprocessors: int
    l2: float | None = None
    tensor: float = 0

    @property
    def clock(self) -> float:
        """Its boost clock, in Hz, by which its peak is reckoned."""
        lanes = ARCHITECTURES[self.capability].float32 * self.multiprocessors
        return self.teraflops * 1e12 / (2 * lanes)

    def peak(self, itemsize: int) -> float:
        """Return the peak for float32 (itemsize 4) or float64 (8), in operations a second."""
        rate = ARCHITECTURES[self.capability].float64_rate if itemsize == 8 else 1.0
        return self.teraflops * 1e12 * rate


class Architecture(NamedTuple):
    """What the multiprocessors of a compute capability have.

    Attributes:
        warps: Warps that it keeps at most.
        blocks: Blocks that it keeps at most.
        shared: Bytes of shared memory.
        reserved: Bytes of it that the system takes for each block.
        shared_unit: Bytes in multiples of which a block is given shared memory.
        float64_rate: Float64 operations for each float32 operation.
        float32: Threads whose fused multiply-add it begins in a clock.
        units: Threads whose load or store it begins in a clock.
        moved: Bytes that its shared memory, or L1 cache, moves in a clock.
    """

    warps: int
    blocks: int
    shared: int
    reserved: int
    shared_unit: int
    float64_rate: float
    float32: int
    units: int
    moved: int


class Occupancy(NamedTuple):
    """How many blocks of a kernel a multiprocessor keeps at once.

    Attributes:
        blocks: The blocks.
        share: Their warps, as a share of the warps that the multiprocessor could keep.
        limit: What stands in the way of more: "warps", "blocks", "registers" or "shared memory".
    """

    blocks: int
    share: float
    limit: str


ARCHITECTURES = {
    (7, 5): Architecture(32, 16, 64 * KIB, 0, 256, 1 / 32, 64, 16, 64),  # Turing
    (8, 0): Architecture(64, 32, 164 * KIB, KIB, 128, 1 / 2, 64, 32, 128),  # Ampere
    (8, 6): Architecture(48, 16, 100 * KIB, KIB, 128, 1 / 64, 128, 16, 128),
    (8, 9): Architecture(48, 24, 100 * KIB, KIB, 128, 1 / 64, 128, 16, 128),  # Ada
    (9, 0): Architecture(64, 32, 228 * KIB, KIB, 128, 1 / 2, 128, 32, 128),  # Hopper
    (10, 0): Architecture(64, 32, 228 * KIB, KIB, 128, 1 / 2, 128, 32, 128),  # Blackwell
    (12, 0): Architecture(48, 24, 100 * KIB, KIB, 128, 1 / 64, 128, 16, 128),
}

GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("T4", (7, 5), 8.1, 320, 40),  # data sheet T4
        GPU("A100", (8, 0), 19.5, 2039, 108, 5120, 156),  # data sheet A100, 80 GB, SXM; white paper
        GPU("RTX 3090", (8, 6), 35.6, 936, 82, tensor=35.6),  # white paper GA102
        GPU("L4", (8, 9), 30.3, 300, 58, tensor=60),  # data sheet L4
        GPU("L40S", (8, 9), 91.6, 864, 142, tensor=183),  # data sheet L40S
        GPU("RTX 4090", (8, 9), 82.6, 1008, 128, tensor=82.6),  # white paper Ada
        GPU("H100", (9, 0), 67, 3350, 132, tensor=494),  # data sheet H100, SXM
        GPU("H200", (9, 0), 67, 4800, 132, tensor=494),  # data sheet H200, SXM
        GPU(
            "B200", (10, 0), 75, 7700, 148, tensor=1100
        ),  # data sheet Blackwell, one GPU of an HGX B200
        GPU("RTX 5090", (12, 0), 104.8, 1792, 170, tensor=104.8),  # white paper RTX Blackwell
    )
}


def find(name: str) -> GPU:
    """Return the GPU of that name; case and spaces do not matter.

    Raises:
        ValueError: none of them is called so.
    """

    def plain(text: str) -> str:
        return text.lower().replace(" ", "").replace("-", "").removeprefix("rtx")

    for gpu in GPUS.values():
        if plain(gpu.name) == plain(name):
            return gpu
    raise ValueError(f"no GPU {name!r} is known here; expected one of {', '.join(GPUS)}")


def occupancy(
    capability: Capability, block: tuple[int, ...], registers: int, shared: int
) -> Occupancy:
    """Return how many blocks a multiprocessor keeps at once.

    Args:
        capability: A key of `ARCHITECTURES`.
        block: Threads of a block, along each dimension.
        registers: Of each thread.
        shared: Bytes of shared memory of each block.

    Returns:
        The occupancy; 0 blocks when not even one fits.
    """
    has = ARCHITECTURES[capability]
    warps = _up(prod(block), WARP) // WARP
    by_registers = REGISTERS // PARTS // _up(max(registers, 1) * WARP, UNIT) * PARTS
    fitting = {
        "warps": has.warps // warps,
        "blocks": has.blocks,
        "registers": by_registers // warps,
        "shared memory": has.shared // max(_up(shared + has.reserved, has.shared_unit), 1),
    }
    limit = min(fitting, key=lambda name: fitting[name])
    return Occupancy(fitting[limit], fitting[limit] * warps / has.warps, limit)


def most_registers(threads: int) -> int:
    """Return how many registers each thread of a block has at most, where one block is to fit."""
    in_a_part = _up(_up(threads, WARP) // WARP, PARTS) // PARTS  # warps
    return min(REGISTERS // PARTS // in_a_part // UNIT * UNIT // WARP, THREAD_REGISTERS)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit

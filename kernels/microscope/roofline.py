"""How fast a kernel can be at most: the roofline model (Williams, Waterman and Patterson 2009).

A kernel does f floating-point operations and moves m bytes between the GPU and its memory. With
the arithmetic intensity i = f / m, a peak of P operations and a bandwidth of B bytes a second, it
makes at most

    min(P, i B)                                                                            (1)

operations a second. Below the ridge, i < P / B, memory is what it waits for.

The bytes are counted twice: as moved, each sector of each request, as if there were no cache; and
as needed, each element once, as if caches were perfect. The truth lies in between, and what lies
between the two is what a better access pattern, or a tile in shared memory, can win.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..cpu.watchers.trace import Trace
from ..gpu.gpus import GPU, SECTOR
from .warps import Requests


class Roofline(NamedTuple):
    """A kernel under the roof of a GPU.

    Attributes:
        gpu: The GPU.
        itemsize: 4 for a float32 kernel, 8 for a float64 one.
        flops: Floating-point operations of the launch.
        moved: Bytes that its requests move to and from global memory.
        needed: Bytes that it would move if each element came once and went once.
    """

    gpu: GPU
    itemsize: int
    flops: int
    moved: int
    needed: int

    @property
    def peak(self) -> float:
        """Operations a second of the GPU, P."""
        return self.gpu.peak(self.itemsize)

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit, P / B."""
        return self.peak / (self.gpu.bandwidth * 1e9)

    def intensity(self, moved: int) -> float:
        """Return operations for each of the bytes moved."""
        return self.flops / moved if moved else float("inf")

    def bound(self, moved: int) -> float:
        """Return the most operations a second by (1)."""
        return min(self.peak, self.intensity(moved) * self.gpu.bandwidth * 1e9)

    @property
    def time(self) -> float:
        """The least seconds that it can take: for its arithmetic, or for the bytes as moved."""
        return max(self.flops / self.peak, self.moved / (self.gpu.bandwidth * 1e9))

    def limit(self, moved: int) -> str:
        """Return what the kernel waits for: "memory" or "compute"."""
        return "memory" if self.intensity(moved) < self.ridge else "compute"


def roofline(trace: Trace, traffic: list[Requests], gpu: GPU, itemsize: int) -> Roofline:
    """Put a launch under the roof of a GPU."""
    runs = np.bincount(trace.executions["statement"], minlength=len(trace.statements))
    flops = sum(
        statement.flops * int(n) for statement, n in zip(trace.statements, runs, strict=True)
    )
    sectors = sum(t.traffic.transactions for t in traffic if t.site.space == "global")
    return Roofline(gpu, itemsize, flops, sectors * SECTOR, sum(needed(traffic).values()))


def needed(traffic: Iterable[Requests]) -> dict[str, int]:
    """Return the bytes of each global array that come at least once, and go at least once."""
    touched = defaultdict(list)
    for at in traffic:
        if at.site.space == "global":
            key = at.site.array, at.site.kind == "read", at.site.itemsize
            touched[key].append(at.address)
    sizes: dict[str, int] = defaultdict(int)
    for (array, _, itemsize), addresses in touched.items():
        sizes[array] += len(np.unique(np.concatenate(addresses))) * itemsize
    return sizes

"""The memory of causal linear attention, forward and backward.

The high-water mark above what the process held before, inputs included; N=1, H=8, E=M=64. *Arrays*
is what NumPy allocated (tracemalloc); *resident* is the process as the system sees it (Linux). The
last column is what one array of all states S_i, (H, L, E, M), would take: nothing of that kind is
held. Every row is a process of its own.
"""

import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import harness

N, H, E = 1, 8, 64
LENGTHS = 1024, 4096, 16384
MIB = 2**20


def rows() -> Iterator[harness.Row]:
    """Yield a row for each length and contestant."""
    for length in LENGTHS:
        for contestant in PASSES:
            output = harness.printed("memory", contestant, str(length))
            arrays, resident = map(float, output.split())
            yield {
                "L": length,
                "contestant": contestant,
                "arrays_MiB": arrays if contestant == harness.OURS else None,
                "resident_MiB": resident,
                "all_states_would_be_MiB": 4 * N * H * length * E * E / MIB,
            }


def our_passes(arrays: list[Any]) -> object:
    """Run forward and backward; return what a user then holds."""
    from minitransformer import Tensor
    from minitransformer.attention import linear_attention

    *inputs, grad = arrays
    tensors = [Tensor(array, requires_grad=True) for array in inputs]
    output = linear_attention(*tensors, causal=True)
    output.backward(grad)
    return output, tensors


def their_passes(arrays: list[Any]) -> object:
    """Run forward and backward; return what a user then holds."""
    import torch

    from . import peers

    *inputs, grad = map(torch.from_numpy, arrays)
    output = peers.linear_chunkwise(*(tensor.requires_grad_() for tensor in inputs))
    output.backward(grad)
    return output, inputs


PASSES: dict[str, Callable[[list[Any]], object]] = {
    harness.OURS: our_passes,
    "PyTorch eager, chunkwise": their_passes,
}


def draw(length: int) -> list[Any]:
    """Return query, key, value and the gradient of the output."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal((N, H, length, E), np.float32) for _ in range(4)]


def measure(contestant: str, length: int) -> tuple[float, float]:
    """Return the high-water marks, of arrays and of the process, in MiB above the start."""
    passes = PASSES[contestant]
    passes(draw(128))  # compiles
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the system forgets the high-water mark so far
    tracemalloc.start()
    passes(draw(length))
    return tracemalloc.get_traced_memory()[1] / MIB, (resident("VmHWM") - before) / MIB


def resident(field: str) -> int:
    """Return a field of this process's status, in bytes."""
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*measure(sys.argv[1], int(sys.argv[2])))
    else:
        harness.main("memory", rows)

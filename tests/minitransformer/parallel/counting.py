"""What the ranks of a test send in a forward and a backward: JSON, on rank 0, of every rank.

mpiexec -n 3 python -m tests.minitransformer.parallel.counting 48 96
"""

import json
import sys
from functools import partial

import numpy as np

from minitransformer import Tensor, parallel

from .ranks import function
from .running import run

LENGTHS = 48, 96
N, H, E, M, K, WINDOW = 1, 2, 5, 3, 2, 4


def sent(world: parallel.World, name: str, length: int, causal: bool) -> list[int]:
    """How many bytes each rank sends, for slices of one length."""
    rows, draw = length // world.size, np.random.default_rng(0)
    widths = {"query": E, "key": E, "value": M}
    inputs = {x: draw.standard_normal((N, H, rows, width)) for x, width in widths.items()}
    attend = function(parallel, name)
    if name == "fourier":
        places = np.arange(rows, dtype=float)[None, :, None] + world.rank * rows
        wave = {"frequency": np.ones((H, E, 1)), "phase": np.ones((H, E))}
        inputs |= {"query_positions": places, "key_positions": places} | wave
        inputs["amplitude"] = np.ones((H, E))
    if name == "delta":
        inputs["beta"] = draw.random((N, H, rows))
    if name == "relative":
        inputs["relative_embedding"] = draw.standard_normal((H, 2 * K + 1, E))
    if name == "local":
        attend = partial(attend, window=WINDOW)
    tensors = {x: Tensor(array, requires_grad=True) for x, array in inputs.items()}
    world.forget()
    attend(**tensors, causal=causal, world=world).sum().backward()
    return world.gather(np.array([world.bytes]))[:, 0].tolist()


def main() -> None:
    """Count for the attentions of the command line."""
    world = parallel.World()
    direction, *names = sys.argv[1:]
    counts = {
        name: [sent(world, name, length, direction == "causal") for length in LENGTHS]
        for name in names
    }
    if world.rank == 0:
        print(json.dumps(counts))


if __name__ == "__main__":
    run(main)

"""The fused softmax kernel under Numba's own simulator, which runs a Python thread per CUDA thread.

The same launches, at a size that the simulator can bear: compiled for the CPU, and simulated.
"""

import sys
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np

from minitransformer_kernels import reference, softmax
from minitransformer_kernels.cuda import Launch

from . import harness

N, H, L, E = 1, 1, 64, 16
SIMULATED_TURNS, COMPILED_TURNS = 3, 100


def rows() -> Iterator[harness.Row]:
    """Yield a row for each way to run the kernel."""
    output = harness.printed("simulator", "simulate", NUMBA_ENABLE_CUDASIM="1")
    times = {
        harness.OURS: measure(COMPILED_TURNS),
        "Numba's simulator": [float(word) for word in output.split()],
    }
    for name, seconds in times.items():
        summary = harness.summary(seconds)
        rate = 4 * N * H * L**2 * E / summary["median_ms"] / 1e6
        case = f"forward, N={N} H={H} E={E} L={L}"
        yield {"case": case, "contestant": name, **summary, "GFLOP/s": rate}


def measure(turns: int) -> list[float]:
    """Return the seconds of some forwards, after one that is checked."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((N, H, L, E), np.float32) for _ in range(3))
    harness.error(softmax.forward(q, k, v)[0], reference.softmax_attention(q, k, v))
    return [harness.elapsed(lambda: softmax.forward(q, k, v)) for _ in range(turns)]


def simulate(launch: Launch, *arguments: object) -> None:
    """Launch on what Numba takes for a GPU: its simulator, in a process that asks for it.

    It copies every array back, so that those nobody may write to go there as copies.
    """
    own = [
        a.copy() if isinstance(a, np.ndarray) and not a.flags.writeable else a for a in arguments
    ]
    launch.kernel.on_gpu[launch.grid, launch.block](*own)


if __name__ == "__main__":
    if sys.argv[1:] == ["simulate"]:
        with patch.object(Launch, "__call__", simulate):
            print(*measure(SIMULATED_TURNS))
    else:
        harness.main("simulator", rows)

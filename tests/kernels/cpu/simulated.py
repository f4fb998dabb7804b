"""Run kernels under Numba's own simulator, and save what their arguments became.

NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.cpu.simulated results.npz NAME ...

A name is that of a case of the corpus, or of a JSON file of random programs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel as simulator_of_kernels

from . import adversaries, classics, corpus, right
from .launches import Case
from .programs import GRID, arguments, kernel_of

ROOT = Path(__file__).parents[3]
CASES = corpus.CASES | classics.CASES | adversaries.CASES | right.CASES


def cases(name: str) -> Iterator[tuple[str, Case]]:
    """The cases that a name stands for, with the names of their results."""
    if not name.endswith(".json"):
        yield name, CASES[name]
        return
    for number, (text, block, shared_bytes) in enumerate(json.loads(Path(name).read_text())):
        kernel = kernel_of(text, Path(name).parent)
        makers = arguments(tuple(block), GRID)
        yield str(number), Case(kernel, GRID, tuple(block), makers, shared_bytes)


def run(folder: Path, *names: str) -> Any:
    """The results in a process of its own, which the simulator takes over as a whole."""
    file = folder / "simulated.npz"
    subprocess.run(
        [sys.executable, "-m", __name__, str(file), *names],
        cwd=ROOT,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        check=True,
    )
    return np.load(file)


@contextmanager
def swapped(function: Any, simulator: Any) -> Iterator[None]:
    """Put the simulator behind the name `cuda`, as Numba's `swapped_cuda_module`, and leave it.

    Numba takes it back when a call ends, also from other threads that are in the same device
    function, which now and then find no `gridDim`. numba-cuda counts them.
    """
    known, kind = function.__globals__, type(simulator)
    known |= {name: simulator for name, v in known.items() if v is cuda or isinstance(v, kind)}
    yield


def main(file: str, *names: str) -> None:
    """Save the arguments of each case as `name/position`."""
    simulator_of_kernels.swapped_cuda_module = swapped
    results: dict[str, Any] = {}
    for name, case in (found for given in names for found in cases(given)):
        arguments = case.arguments()
        case.kernel.on_gpu[case.grid, case.block, 0, case.shared_bytes](*arguments)
        results |= {f"{name}/{i}": argument for i, argument in enumerate(arguments)}
    np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

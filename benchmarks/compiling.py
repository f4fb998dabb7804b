"""How long a kernel's first launch takes, with nothing in the cache.

A first launch reads the kernel's source, lowers it, has Numba and LLVM compile it, and runs it: the
time that a user waits, but for the run in checked mode that a kernel from outside the package has
first. *Package* is what the attention functions and the optimizers launch, in
float32 with E=M=64; *textbook* is what `textbook.py` holds; *corpus* is what the lowering's tests
hold. The very first compilation of a process is not counted: Numba starts up in it.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np

from minitransformer_kernels.cuda import Kernel, Launch
from minitransformer_kernels.examples import HOSTS
from minitransformer_kernels.layers import optimizer

from . import harness, textbook

HEAD_DIM = 64


def rows() -> Iterator[harness.Row]:
    """Yield a row for each collection of kernels."""
    for collection in COLLECTIONS:
        with tempfile.TemporaryDirectory() as empty:
            environment = {"MINITRANSFORMER_CACHE_DIR": empty, "MINITRANSFORMER_CHECK": "0"}
            output = harness.printed("compiling", collection, **environment)
        found = [line.split() for line in output.splitlines()]
        seconds, slowest = max((float(seconds), name) for name, seconds in found)
        yield {
            "kernels": collection,
            "how_many": len(found),
            "median_s": statistics.median(float(seconds) for _, seconds in found),
            "worst_s": seconds,
            "worst": slowest,
        }


def first_launches(run: Callable[[], None]) -> dict[Kernel, float]:
    """Run a function that launches kernels; return the seconds of each one's first launch."""
    found: dict[Kernel, float] = {}
    call = Launch.__call__

    def timed(launch: Launch, *arguments: object) -> None:
        seconds = harness.elapsed(lambda: call(launch, *arguments))
        found.setdefault(launch.kernel, seconds)

    with patch.object(Launch, "__call__", timed):
        run()
    return found


def package() -> None:
    """Launch every kernel of the package."""
    inputs = [np.zeros((2, 2, 100, HEAD_DIM), np.float32)] * 3
    for host in HOSTS.values():
        host(*inputs)


def of_textbooks() -> None:
    """Launch every kernel of `textbook.py`."""
    for launch, arguments in textbook.launches(100).values():
        launch(*arguments)


def corpus() -> None:
    """Launch every kernel of the lowering's tests."""
    from tests.kernels.cpu import adversaries, classics, warps
    from tests.kernels.cpu import corpus as everyday

    for module in everyday, classics, warps, adversaries:
        for case in module.CASES.values():
            case.launch(*case.arguments())


COLLECTIONS = {"package": package, "textbook": of_textbooks, "corpus": corpus}

if __name__ == "__main__":
    if sys.argv[1:]:
        optimizer.descend(*np.zeros((2, 1), np.float32), rate=0.1)  # starts Numba up
        for kernel, seconds in first_launches(COLLECTIONS[sys.argv[1]]).items():
            print(kernel.__name__, seconds)
    else:
        harness.main("compiling", rows)

"""Run kernels of the corpus under Numba's own simulator, and save what their arguments became.

NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.cpu.simulated results.npz NAME ...
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import adversaries, classics, corpus

CASES = corpus.CASES | classics.CASES | adversaries.CASES


def main(file: str, *names: str) -> None:
    """Save the arguments of each case as `name/position`."""
    results: dict[str, Any] = {}
    for name in names:
        case = CASES[name]
        arguments = case.arguments()
        case.kernel.on_gpu[case.grid, case.block, 0, case.shared_bytes](*arguments)
        results |= {f"{name}/{i}": argument for i, argument in enumerate(arguments)}
    np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

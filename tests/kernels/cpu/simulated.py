"""Run kernels of the corpus under Numba's own simulator, and save what their arguments became.

NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.cpu.simulated results.npz NAME ...
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .adversaries import CASES as ADVERSARIES
from .corpus import CASES


def main(file: str, *names: str) -> None:
    """Save the arguments of each case as `name/position`."""
    results: dict[str, Any] = {}
    for name in names:
        case = (CASES | ADVERSARIES)[name]
        arguments = case.arguments()
        case.kernel.on_gpu[case.grid, case.block](*arguments)
        results |= {f"{name}/{i}": argument for i, argument in enumerate(arguments)}
    np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

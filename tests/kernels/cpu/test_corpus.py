"""Each kernel of the corpus gives what the plain interpreter gives, and Numba's own simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import adversaries, corpus
from .launches import Case
from .oracle import expected

CASES = corpus.CASES | adversaries.CASES
SIMULATED = (
    "places_3d-(2,2,3)-(3,2,2)",
    "tiled-(2,3)-(4,4)",
    "summed-3-16",
    "hillis_steele_scan-2-16",
    "histogram-5-4",
    "softmax_rows-4-8",
    "masked_loops-2-8",
    "nested_trips-2-(4,3)",
    "barriers_in_nested_loops-2-8",
    "memory_in_device_functions-3-2",
)
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
ROOT = Path(__file__).parents[3]


def assert_same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Floats to the last digits (the compiler may contract a * b + c), all else to the bit."""
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        tolerance = TOLERANCE.get(getattr(ours, "dtype", np.dtype(int)).name, 0)
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance, err_msg=f"argument {number}"
        )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_agrees_with_the_oracle(case: Case) -> None:
    wanted = expected(case.kernel, case.grid, case.block, case.arguments(), case.shared_bytes)
    found = case.arguments()
    case.launch(*found)
    assert_same(found, wanted)


def test_oracle_agrees_with_numbas_simulator(tmp_path: Path) -> None:
    file = tmp_path / "simulated.npz"
    subprocess.run(
        [sys.executable, "-m", "tests.kernels.cpu.simulated", str(file), *SIMULATED],
        cwd=ROOT,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        check=True,
    )
    results = np.load(file)
    for name in SIMULATED:
        wanted = expected(*CASES[name][:3], CASES[name].arguments())
        assert_same(tuple(results[f"{name}/{i}"] for i in range(len(wanted))), wanted)

"""Each kernel of the corpus gives what the plain interpreter gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import adversaries, corpus
from .launches import Case
from .oracle import expected

CASES = corpus.CASES | adversaries.CASES
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}


def assert_same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Floats to the last digits (the compiler may contract a * b + c), all else to the bit."""
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        tolerance = TOLERANCE.get(getattr(ours, "dtype", np.dtype(int)).name, 0)
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance, err_msg=f"argument {number}"
        )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_agrees_with_the_oracle(case: Case) -> None:
    wanted = expected(case.kernel, case.grid, case.block, case.arguments())
    found = case.arguments()
    case.kernel[case.grid, case.block](*found)
    assert_same(found, wanted)

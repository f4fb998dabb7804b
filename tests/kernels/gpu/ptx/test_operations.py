"""The tests of attention on CUDA, with the PTX machine in the GPU's place.

Arrays are those of the stand-in for CuPy, and a launch takes its whole way: the arguments are laid
out in memory, and the kernel's PTX reads them there. By default each operation is held against its
reference, forward and backward; by night it has all its properties.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

from ....cases import Case
from ....properties import Check, Operation, derive, equals_the_reference, examine
from ....stand_in_cupy import on_ptx_machine
from ...operations import NARROW, OPERATIONS, launches, ragged

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")
pytestmark = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="this CuPy's rules are NumPy 2's"
)
FEW = settings(max_examples=5)  # the machine takes a thousand times as long as a loop


@pytest.mark.parametrize(
    ("operation", "case"), list(launches(lambda x, causal: causal == x.domain.causal[-1]))
)
def test_equals_the_reference(operation: Operation, case: Case) -> None:
    with on_ptx_machine() as machine:
        equals_the_reference(operation.on("cuda"), case)
    assert machine.instructions


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("operation", "check"),
    [(operation, check) for operation in OPERATIONS for check in derive(operation)],
    ids=str,
)
def test_property(operation: Operation, check: Check) -> None:
    with on_ptx_machine():
        examine(operation.on("cuda"), check, FEW)


def test_what_came_from_the_machine_stays_there() -> None:
    """A kernel keeps what it loaded for a device; the machine's is no device's number."""
    operation = OPERATIONS[0]
    problem = ragged(operation, operation.domain.variants[NARROW]).problem()
    with on_ptx_machine() as machine:
        operation.on("cuda").run(problem)
    ran = len(machine.runs)
    operation.run(problem)
    with on_ptx_machine("9.0") as another:
        operation.on("cuda").run(problem)
    assert (len(machine.runs), len(another.runs)) == (ran, ran)
    assert {run.program.target for run in another.runs} == {"sm_90"}

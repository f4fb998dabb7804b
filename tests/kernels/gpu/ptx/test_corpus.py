"""The corpus of the lowering for CPUs, and its random programs, as PTX beside the oracle.

The oracle interprets a kernel's Python. That the loop on the CPU gives the same is tested in
`cpu/test_corpus.py`, so here the third of three that have little in common joins them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from ...cpu.launches import Case, sampled
from ...cpu.programs import GRID, Random, arguments, kernel_of, programs
from ...cpu.test_corpus import CASES, assert_same, expected_of
from ...cpu.test_programs import assert_equal, effort
from ...cpu.test_programs import expected_of as expected_of_program

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import ptx_machine

# They ask lanes that are not there. PTX leaves open what comes; on a CPU it is one's own.
NOBODY_THERE = (
    "shuffles_of_every_kind-2-50", "several_in_a_row-1-(7,11)", "several_in_a_row-2-50",
)  # fmt: skip
# `continue` in a loop: where its lanes meet again is the compiler's choice, and they count it.
MEET_ELSEWHERE = ("lanes_under_conditions-2-70",)
# They count the lanes that are there. PTX leaves open which are; in lockstep it is those that can.
IN_LOCKSTEP = (
    "histogram_of_matches-2-40", "lanes_that_left-2-40", "masks_within_masks-3-6",
    "trips_of_those_that_are_left-3-4", "votes-2-48", "warp_aggregated_increment-3-33",
    "warp_aggregated_increment-2-48", "rows_of_a_warp-2-(4,3)", "rows_of_a_warp-1-(4,3)",
)  # fmt: skip
LEFT_OPEN = NOBODY_THERE + MEET_ELSEWHERE
ALIKE = {name: case for name, case in CASES.items() if name not in LEFT_OPEN}
DRAWN = {name: case for name, case in ALIKE.items() if name not in IN_LOCKSTEP}


def ran(case: Case, **options: Any) -> tuple[Any, ...]:
    """What a case's arguments become on the machine."""
    found = case.arguments()
    with ptx_machine(**options):
        case.launch(*found)
    return found


@pytest.mark.parametrize("case", sampled(DRAWN, 24))
def test_in_an_order_that_is_drawn_and_without_races(case: Case) -> None:
    assert_same(ran(case, seed=1, races=True), expected_of(case))


@pytest.mark.parametrize("case", sampled(ALIKE, 24, IN_LOCKSTEP[-1]))
def test_in_lockstep(case: Case) -> None:
    assert_same(ran(case, counted=True), expected_of(case))


@pytest.mark.parametrize("case", sampled({name: CASES[name] for name in LEFT_OPEN}, 9))
def test_what_is_left_open_differs(case: Case) -> None:
    with pytest.raises(AssertionError, match="Not equal"):
        assert_same(ran(case, counted=True), expected_of(case))


@pytest.mark.nightly
@effort(0.25)
@given(programs())
def test_random_program(tmp_path_factory: Any, program: Random) -> None:
    """In lockstep, and where no program asks which lanes are there in an order that is drawn."""
    folder = tmp_path_factory.getbasetemp()
    wanted, kernel = expected_of_program(program, folder), kernel_of(program.text, folder)
    orders: list[dict[str, Any]] = [{"counted": True}]
    if "activemask" not in program.text:
        orders.append({"seed": 1, "races": True})
    for options in orders:
        found = arguments(program.block, GRID)
        with ptx_machine(**options), np.errstate(all="ignore"):
            kernel[GRID, program.block, 0, program.shared_bytes](*found)
        assert_equal(found, wanted)

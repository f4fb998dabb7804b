"""Random kernels give what the plain interpreter gives, to the bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from minitransformer_kernels import checked

from . import simulated
from .oracle import expected
from .programs import GRID, Random, arguments, kernel_of, programs


def effort(share: float, **more: Any) -> settings:
    """So many examples of those that the profile asks for.

    Each step of shrinking compiles a kernel: a failing one is reduced by hand. A program takes many
    choices; those that run out of them are drawn again.
    """
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    health = [HealthCheck.too_slow, HealthCheck.data_too_large]
    count = max(1, int(share * settings().max_examples))
    return settings(max_examples=count, phases=phases, suppress_health_check=health, **more)


def expected_of(program: Random, folder: Path) -> tuple[Any, ...]:
    """What the arguments of a program should become."""
    given_ = arguments(program.block, GRID)
    return expected(
        kernel_of(program.text, folder), GRID, program.block, given_, program.shared_bytes
    )


def assert_equal(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_right(program: Random, folder: Path, *, look: bool) -> None:
    """A launch gives what the oracle gives, and the checked mode, if it looks, finds nothing."""
    wanted = expected_of(program, folder)
    found = arguments(program.block, GRID)
    with checked(look):
        kernel_of(program.text, folder)[GRID, program.block, 0, program.shared_bytes](*found)
    assert_equal(found, wanted)


@effort(1.5)
@given(programs())
def test_random_program(tmp_path_factory: Any, program: Random) -> None:
    assert_right(program, tmp_path_factory.getbasetemp(), look=False)


@effort(0.25)
@given(programs())
def test_nothing_is_found_in_a_random_program(tmp_path_factory: Any, program: Random) -> None:
    assert_right(program, tmp_path_factory.getbasetemp(), look=True)


@pytest.mark.nightly  # by day it does on the kernels of `corpus`
def test_oracle_agrees_with_numbas_simulator(tmp_path: Path) -> None:
    drawn: list[Random] = []

    @effort(1, database=None)
    @given(programs(simulated=True))
    def draw(program: Random) -> None:
        drawn.append(program)

    draw()
    texts = tmp_path / "programs.json"
    texts.write_text(json.dumps(drawn))
    found = simulated.run(tmp_path, str(texts))
    for number, program in enumerate(drawn):
        wanted = expected_of(program, tmp_path)
        assert_equal([found[f"{number}/{i}"] for i in range(len(wanted))], wanted)

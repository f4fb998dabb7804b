"""Attention on slices, on ranks that the test starts, equals that of one process."""

import random

import pytest

from tests.conftest import PROFILE

from .bugs import BUGS, WHERE
from .starting import needs_mpi, ranks

RANKS = "tests.minitransformer.parallel.ranks"
NAMES = "linear", "fourier", "delta", "relative", "softmax", "local"
pytestmark = needs_mpi


def test_slices_equal_one_process() -> None:
    seed = "0" if PROFILE == "ci" else str(random.randrange(10**6))
    run = ranks(3, RANKS, "--seed", seed, "--cases", "2", *NAMES)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}{run.stderr}"


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", NAMES)
def test_any_slices_equal_one_process(name: str, count: int, dtype: str) -> None:
    run = ranks(count, RANKS, "--seed", str(count), "--cases", "60", "--dtype", dtype, name)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    run = ranks(4, RANKS, "--cases", "25", "--bug", bug, WHERE[bug])
    assert run.returncode == 1, run.stdout + run.stderr

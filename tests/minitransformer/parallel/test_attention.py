"""Attention on slices, on ranks that the test starts, equals that of one process."""

import json
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
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_any_slices_equal_one_process(name: str, count: int, dtype: str) -> None:
    run = ranks(count, RANKS, "--seed", str(count), "--cases", "40", "--dtype", dtype, name)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    count = 8 if "products" in bug else 3  # A of two ranks is first needed on the seventh
    run = ranks(count, RANKS, "--cases", "25", "--bug", bug, WHERE[bug])
    assert run.returncode == 1, run.stdout + run.stderr


def test_only_the_ring_sends_more_for_longer_sequences() -> None:
    run = ranks(3, "tests.minitransformer.parallel.counting", "48", "96")
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads(run.stdout)
    for name, (short, long) in counts.items():
        assert (short != long) == name.startswith("softmax"), (name, short, long)
    numbers = {  # that the middle rank sends, forward and backward, of 8 bytes each; see the table
        "linear causal": 2 * 2 * (5 * 3 + 5),
        "delta causal": 2 * 2 * (5 * 5 + 5 * 3),
        "local causal": 2 * 2 * 4 * (5 + 3),
    }
    for name, count in numbers.items():
        assert 8 * count <= counts[name][0][1] <= 8 * count + 64, (name, counts[name])

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
    run = ranks(3, RANKS, "--seed", seed, "--cases", "1", *(set(NAMES) - {"fourier"}))
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
    count = 8 if "products" in bug else 4  # A of two ranks is first needed on the seventh
    run = ranks(count, RANKS, "--cases", "40", "--bug", bug, WHERE[bug])
    assert run.returncode == 1, run.stdout + run.stderr


def counts(count: int, direction: str, *names: str) -> dict[str, list[list[int]]]:
    """How many bytes all ranks send for two lengths, by attention."""
    run = ranks(count, "tests.minitransformer.parallel.counting", direction, *names)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    for name, (short, long) in found.items():
        assert (short != long) == (name == "softmax"), (name, short, long)
    return dict(found)


H, E, M, k, w, rows = 2, 5, 3, 2, 4, 48 // 2  # those of `counting`, and a slice of two ranks
NUMBERS = {  # that rank 0 sends in a forward and a backward
    "linear": 2 * H * (E * M + E),
    "fourier": 2 * H * 3 * (E * M + E),
    "delta": 2 * H * (E * E + E * M),
    "relative": 2 * H * (E * M + E + (k + 1) * M),
    "local": H * w * (E + M),  # and rank 1 in backward
    "softmax": 4 * H * rows * (E + M),  # keys and values twice, and their gradients there and back
}


@pytest.mark.parametrize(
    "names", [("linear", "local", "softmax"), pytest.param(NAMES, marks=pytest.mark.nightly)]
)
def test_only_the_ring_sends_more_for_longer_sequences(names: tuple[str, ...]) -> None:
    few = 64  # bytes, to say where slices begin, and what passes
    for name, found in counts(2, "causal", *names).items():
        assert 0 <= found[0][0] - 8 * NUMBERS[name] <= few, (name, found)


@pytest.mark.nightly
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("direction", ["causal", "both"])
def test_the_same_on_more_ranks_and_in_both_directions(count: int, direction: str) -> None:
    counts(count, direction, *NAMES)

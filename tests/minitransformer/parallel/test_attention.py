"""Attention on slices, on ranks that the test starts, equals that of one process."""

import json
import random
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, attention, parallel
from tests.conftest import PROFILE

from .bugs import BUGS
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
    run = ranks(count, RANKS, "--cases", "40", "--bug", bug, BUGS[bug].attention)
    assert run.returncode == 1, run.stdout + run.stderr


@pytest.mark.parametrize("places", [[[[0.0], [1.0], [2.0]]], np.arange(3)[None, :, None]])
def test_positions_are_any_numbers_as_in_one_process(places: Any) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 3, 4)))
    wave = (Tensor(np.ones(shape)) for shape in ((2, 4, 1), (2, 4), (2, 4)))
    inputs = x, x, x, places, places, *wave
    expected = attention.fourier_linear_attention(*inputs)
    found = parallel.fourier_linear_attention(*inputs, world=parallel.World())
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["fast", "recurrent", {"kernelized": "auto"}])
def test_an_algorithm_is_refused_as_in_one_process(algorithm: Any) -> None:
    x, embedding = Tensor(np.ones((1, 1, 2, 3))), Tensor(np.ones((1, 3, 3)))
    with pytest.raises(ValueError) as expected:
        attention.relative_linear_attention(x, x, x, embedding, algorithm=algorithm)
    with pytest.raises(ValueError) as found:
        parallel.relative_linear_attention(
            x, x, x, embedding, algorithm=algorithm, world=parallel.World()
        )
    assert str(found.value) == str(expected.value)


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

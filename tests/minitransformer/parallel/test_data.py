"""Data parallelism: the curve of any number of ranks is that of one process."""

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, nn
from minitransformer import functions as F
from minitransformer.parallel.data import buckets
from minitransformer.tasks import share

from .curves import KINDS
from .starting import needs_mpi, ranks

ALWAYS = "fewer examples than ranks", "copy"


def curves(folder: Path, count: int, *kinds: str) -> dict[str, dict[str, Any]]:
    file = folder / "curves.json"
    module = "tests.minitransformer.parallel.curves"
    found = ranks(count, module, str(file), *kinds)
    assert found.returncode == 0, found.stderr
    return dict(json.loads(file.read_text()))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return curves(tmp_path_factory.mktemp("few"), 3, *ALWAYS)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return curves(tmp_path_factory.mktemp("more"), 4, *(set(KINDS) - set(ALWAYS)))


@needs_mpi
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ALWAYS else pytest.mark.nightly) for kind in KINDS],
)
def test_ranks_learn_as_one_process_does(kind: str, request: pytest.FixtureRequest) -> None:
    """Losses, accuracies, norms, what is held out, and the parameters in the end."""
    found = request.getfixturevalue("few" if kind in ALWAYS else "more")[kind]
    assert found.keys() >= {"1", "2", "3", "alone"}
    for size, rows in found.items():
        for row, expected in zip(rows, found["alone"], strict=True):
            assert row.keys() == expected.keys()
            for name, value in expected.items():
                assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-12), (size, name)
    assert found["1"] == found["alone"]


@given(count=st.integers(0, 100), size=st.integers(1, 20))
def test_shares_are_all_of_the_batch_and_even(count: int, size: int) -> None:
    parts = [share(count, rank, size) for rank in range(size)]
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    lengths = [part.stop - part.start for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.booleans())), most=st.integers(1, 60))
def test_buckets_are_full_and_no_fuller(sizes: list[tuple[int, bool]], most: int) -> None:
    given = [Tensor(np.zeros(n, np.float64 if wide else np.float32)) for n, wide in sizes]
    found = buckets(given, most)
    assert [id(x) for bucket in found for x in bucket] == [id(x) for x in given]
    for bucket, following in zip_longest(found, found[1:], fillvalue=[]):
        held = sum(x.data.nbytes for x in bucket)
        assert len({x.dtype for x in bucket}) == 1
        assert held <= most or len(bucket) == 1
        assert (
            not following
            or following[0].dtype != bucket[0].dtype
            or (held + following[0].data.nbytes > most)
        )


def test_a_leaf_is_finished_once_and_while_backward_goes_on() -> None:
    """The last layer's gradients are told first, and one that is used twice when it has both."""
    first, last = nn.Linear(2, 3), nn.Linear(3, 3)
    told: list[tuple[Any, ...]] = []

    def finished(leaf: Tensor) -> None:
        told.append((leaf, leaf.grad.numpy().copy(), first.weight.grad is not None))

    hidden = F.relu(first(Tensor(np.ones((1, 2), np.float32))))
    loss = (last(last(hidden)) ** 2).sum()
    loss.backward(finished=finished)
    parameters = [*first.parameters(), *last.parameters()]
    assert {id(leaf) for leaf, *_ in told} == {id(p) for p in parameters}
    assert len(told) == len(parameters)
    for leaf, gradient, _ in told:
        np.testing.assert_array_equal(gradient, leaf.grad.numpy())
    known = {id(leaf): begun for leaf, _, begun in told}
    assert not known[id(last.weight)]

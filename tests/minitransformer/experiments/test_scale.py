"""The predicted times are those of the counted messages, and a refusal of memory is a row."""

import pytest

from minitransformer.experiments.scale import (
    GPUS,
    MODEL_HEADS,
    NETWORKS,
    WAYS,
    Network,
    counted,
    report,
    seconds,
)
from minitransformer.experiments.shared.on_ranks import start
from tests.minitransformer.parallel.starting import needs_mpi

PER_BYTE, PER_MESSAGE = Network(1.0, 0.0, ""), Network(1e30, 1.0, "")


def test_bytes_and_messages_of_the_model():
    state = 2 * 16 * (128 * 128 + 128)
    own = 2 * 16 * 128 * 1024  # of keys, on each of 8 ranks
    expected = {
        "scan of states": (6 * state, 6),
        "gather of states": (14 * state, 6),
        "ring of keys": (22 * 2 * own, 22),
        "all-to-all": (7 * own, 56),
    }
    for way, (size, messages) in expected.items():
        assert seconds(way, 8, PER_BYTE, 8 * 1024) == pytest.approx(size)
        assert seconds(way, 8, PER_MESSAGE, 8 * 1024) == pytest.approx(messages)


@pytest.mark.parametrize("network", NETWORKS)
def test_what_grows_with_ranks_and_length(network):
    for way in WAYS:
        short, long = (seconds(way, 8, NETWORKS[network], n) for n in (2**16, 2**20))
        assert (short == long) == ("states" in way)
    scans = [seconds("scan of states", n, NETWORKS[network]) for n in GPUS]
    assert scans[-1] / scans[0] == pytest.approx(10 / 3)  # the logarithms of 1024 and 8


@needs_mpi
def test_counts_are_those_of_the_equations():
    for name, ranks in (("linear", 2), ("softmax", 3)):
        case = {"what": "counts", "attention": name, "length": 96, "ranks": ranks}
        assert start(case)["bytes"] == pytest.approx(counted(name, ranks, 96), rel=0.01)


@needs_mpi
def test_what_the_system_refuses_does_not_fit():
    case = {"what": "memory", "attention": "linear", "length": 2**15, "ranks": 1}
    assert start({**case, "limit": 4}) == {"fits": False}
    row = start({**case, "limit": 1024})
    assert row["fits"] and 40 < row["MiB"] < 200


def test_the_report_says_what_fits_where():
    held = [
        {"what": "memory", "length": 1024 * n, "ranks": p, "fits": n < 3 * p, "MiB": n / p}
        for n in (1, 4)
        for p in (1, 2)
    ]  # fmt: skip
    sent = [
        {"what": "counts", "attention": name, "length": n, "ranks": 8, "calls": "", "bytes": size}
        for name, n, size in (("linear", 1, 9), ("linear", 2, 9), ("softmax", 1, 9),
                              ("softmax", 2, 18), ("delta", 1, 1), ("delta", 2, 2))
    ]  # fmt: skip
    step = {"what": "step", "parallel": "data", "ranks": 2, "messages": 1, "bytes": 1}
    text = report([*held, *sent, {**step, "parameters": 7}]).text
    assert "| 4,096 | - | 2 |" in text
    assert "4,096 rows, which one process cannot hold within the limit, 2 ranks can" in text
    assert "*Supported*: bytes of linear independent of L" in text
    assert "*Supported*: bytes of softmax growing with L" in text
    assert "*Not supported*: bytes of delta independent of L" in text
    assert text.count("| - |") == 1 + 2 * sum(n > MODEL_HEADS for n in GPUS)

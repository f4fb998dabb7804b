"""The GPU's benchmarks of steps, launches and models, rehearsed on the CPU: their checks are right.

A CUDA graph needs a GPU; here a call takes its place, with all that is around it.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import harness, peers
from benchmarks import model as copying
from benchmarks.on_gpu import clock, decoding, launches, models, steps
from minitransformer import Tensor
from minitransformer.attention import softmax_attention
from minitransformer.device import cuda_problem

SMALL = models.SCALES["rehearsal"]
CPU = clock.on("cpu")
SHAPE = 2, 3, 16
pytestmark = pytest.mark.usefixtures("one_thread_of_torch")


@pytest.fixture
def without_graphs(monkeypatch):
    """A call in the place of its graph, made as often before as a capture does."""

    def called(run):
        for _ in range(decoding.WARM_UP + 1):
            run()
        return run

    for module in steps, models:
        monkeypatch.setattr(module, "graphed", called)


def complaints(rows):
    """The notes of rows whose contestants did not get through."""
    return [(row["contestant"], row["note"]) for row in rows if row["note"]]


def decoder(attention, length=7):
    torch.manual_seed(0)
    return decoding.Decoder(11, length, 8, 2, 2, attention).double().requires_grad_(False)


@pytest.mark.parametrize(
    ("memory", "whole"),
    [
        (decoding.Sums, peers.linear_quadratic),
        (partial(decoding.Cache, length=7), partial(scaled_dot_product_attention, is_causal=True)),
        (
            partial(decoding.MaskedCache, length=7),
            partial(scaled_dot_product_attention, is_causal=True),
        ),
    ],
    ids=["sums", "cache", "masked cache"],
)
def test_peers_that_remember_do_what_they_do_with_whole_sequences(memory, whole):
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 11, (3, 7)))
    expected = decoder(lambda: whole)(tokens)
    model = decoder(partial(memory, 3, 2, 4))
    for _ in range(2):  # the second time after having forgotten
        model.forget()
        found = torch.stack([model.step(token) for token in tokens.T], 1)
        torch.testing.assert_close(found, expected)


def test_steps_are_right_and_who_needs_a_gpu_says_so():
    rows = list(steps.rows(CPU, "rehearsal"))
    assert {name for name, _ in complaints(rows)} == {steps.GRAPH}
    for row in rows:
        assert (row["median_ms"] is None) == bool(row["note"])
        if row["median_ms"]:
            batch = int(row["case"].rpartition(" ")[2])
            assert row["tokens_per_second"] == pytest.approx(1e3 * batch / row["median_ms"])


def test_graphs_of_steps_start_from_the_sums_that_they_should(without_graphs):
    rows = [*steps.linear(CPU, SHAPE), *steps.delta(CPU, SHAPE)]
    assert not complaints(rows)
    assert all(row["error"] < 1e-6 for row in rows)


def test_a_wrong_sum_gets_no_time(monkeypatch):
    monkeypatch.setattr(steps, "our_summed_step", lambda _, tokens, __: lambda call: tokens[0][0])
    wrong, *right = steps.linear(CPU, SHAPE)
    assert wrong["median_ms"] is None and wrong["note"].startswith(
        "ArithmeticError: expected a rel"
    )
    assert right[0]["median_ms"] and right[0]["ours_over_this"] is None


def test_everyone_takes_the_same_training_step(without_graphs):
    rows = list(models.training(CPU, SMALL.task, 3))
    assert [row["contestant"] for row in rows] == [harness.OURS, models.EAGER, models.GRAPH]
    assert not complaints(rows)
    for row in rows:
        assert row["error"] < 1e-5
        assert row["steps_per_second"] == pytest.approx(1e3 / row["median_ms"])


@pytest.mark.nightly
def test_a_step_of_compiled_layers_is_the_same_and_layers_of_a_kind_are_compiled_once():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    task = replace(SMALL.task, layers=3)
    ours, tokens = task.build("linear"), copying.draw(task, 3)
    truth = copying.exact_gradient(ours, task, tokens)
    step = models.compiled_step(copying.same_model(ours, task), tokens, backend)
    assert models.gradient_error(truth, step()) < 1e-5
    assert len(compiled) == 2


def test_everyone_writes_by_the_same_logits(without_graphs):
    rows = list(models.writing(CPU, SMALL, 3))
    assert len(rows) == 6 and not complaints(rows)
    for row in rows:
        assert row["error"] < 1e-5
        assert row["tokens_per_second"] == pytest.approx(3e3 * SMALL.length / row["median_ms"])
        assert row["ms_at_8"] and row["ms_at_24"]
    assert rows[0]["ours_over_this"] == 1


def test_a_decoder_with_other_weights_gets_no_time():
    weights = models.our_decoder(SMALL, "linear").state_dict()
    truth = models.exact_logits(SMALL, weights, peers.linear_quadratic)
    weights["head.bias"][0] += 1
    build = partial(models.our_writer, CPU, SMALL, weights, 1, "linear")
    row = models.written(CPU, SMALL, 1, build, truth)
    assert row["tokens_per_second"] is None and row["note"].startswith("ArithmeticError")


@pytest.fixture
def a_second_a_look(monkeypatch):
    """A clock that is a second further whenever someone looks."""
    monkeypatch.setattr("time.perf_counter", itertools.count(100.0).__next__)


def test_a_token_takes_what_passed_between_two_marks(a_second_a_look):
    pace = models.Pace(CPU, SMALL._replace(length=6, marks=(2, 6), window=2, limit=math.inf))
    logits = np.array([[0.0, 2.0, 1.0]])
    for _ in range(6):
        assert pace(logits).tolist() == [1]
    # One look at each token, and another at each of 2, 4 and 6, where the time is noted.
    assert pace.times == {0: 100, 2: 103, 4: 106, 6: 109}
    row = pace.row(sequences=5)
    assert (row["ms_at_2"], row["ms_at_6"]) == (1500, 1500)
    assert row["median_ms"] == 9000 and row["tokens_per_second"] == 30 / 9 and not row["note"]


def test_who_takes_too_long_stops_and_says_so(a_second_a_look):
    pace = models.Pace(CPU, SMALL._replace(length=6, marks=(2, 6), window=2, limit=3.5))
    with pytest.raises(models.TimeIsUp):
        for _ in range(6):
            pace(np.zeros((1, 3)))
    row = pace.row(sequences=5)
    assert row["note"] == "its time was up after 3 tokens"
    assert row["ms_at_2"] and row["ms_at_6"] is None and row["median_ms"] is None


def test_no_time_left_is_said_and_nothing_built():
    device = clock.on("cpu", seconds=-1)
    row = models.written(device, SMALL, 1, pytest.fail, np.zeros(0))
    assert row["note"] == clock.NOT_RUN and row["tokens_per_second"] is None


def test_launches_are_counted_and_made_again():
    query = Tensor(np.ones((1, 1, 4, 16), np.float32), requires_grad=True)
    made = launches.launches_of(lambda: softmax_attention(query, query, query).backward(query.data))
    names = [launch.kernel.__name__ for launch, _ in made]
    assert names[0] == "forward" and len(made) == 3
    output = made[0][1][-2]
    before = output.copy()
    output[...] = np.nan
    launches.repeat(made)
    np.testing.assert_array_equal(output, before)


def test_ways_to_launch_are_timed_or_say_why_not():
    for name, build in launches.launchers(CPU, 4).items():
        row = launches.launching(CPU, build, 2)
        assert bool(row["us"]) != bool(row["note"])
        ours = name.startswith(harness.OURS)
        assert bool(row["us"]) == ours or (not ours and not cuda_problem())


@pytest.mark.nightly
def test_small_calls_are_timed_with_their_launches():
    rows = [row for row in launches.rows(CPU, "rehearsal") if "call" in row]
    assert not any(row["note"] for row in rows)
    assert all(row["launches"] >= 1 and row["launches_alone_us"] > 0 for row in rows)

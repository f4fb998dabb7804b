"""Learning curves say when a model learned, how steadily, and what that is to the claim."""

import numpy as np
import pytest

from minitransformer.experiments.copy_curves import (
    ATTENTIONS,
    LENGTHS,
    SEEDS,
    S1Copy,
    cases,
    learn,
    learned_at,
    report,
    windows,
    worst_after,
)


def seeds(losses, right):
    row = {"every": 10, "losses": losses, "accuracies": [1 - x / 3 for x in losses]}
    return [{**row, "seed": s, "ended": None, "symbols": right, "sequences": right}
            for s in range(2)]  # fmt: skip


def record(**by_attention):
    settings = {"layers": 2, "heads": 4, "head_dim": 16, "steps": 40}
    return [
        {**settings, "length": length, "attention": attention, **row}
        for attention, lengths in by_attention.items()
        for length, rows in lengths.items()
        for row in rows
    ]


STEADY, SPIKING, SLOW = [2.3, 0.5, 0.05, 0.01], [2.3, 0.05, 0.9, 0.04], [2.3, 2.0, 1.5, 1.0]


def test_sequences_have_one_length_and_are_repeated():
    batch = S1Copy(length=8).draw(np.random.default_rng(3), 500)
    assert set(batch.lengths) == {8}
    assert set(batch.source.ravel()) == set(range(10))
    again = S1Copy(length=8).draw(np.random.default_rng(3), 500)
    np.testing.assert_array_equal(batch.source, again.source)


@pytest.mark.parametrize(
    ("losses", "learned", "worst"), [(STEADY, 30, 0.05), (SPIKING, 20, 0.9), (SLOW, None, np.inf)]
)
def test_a_model_learns_by_the_end_of_a_window_and_may_relapse_after(losses, learned, worst):
    row = {"every": 10, "losses": losses}
    assert (learned_at(row), worst_after(row)) == (learned, worst)


def test_training_falls_and_repeats():
    task = S1Copy(length=4, layers=1, heads=2, head_dim=16)
    row = learn(task, "linear", steps=160, seed=1, rate=3e-3)
    assert len(row["losses"]) == len(row["accuracies"]) == 80
    assert row["every"] == 2 and row["ended"] is None
    assert np.mean(row["losses"][-5:]) < 0.7 * np.mean(row["losses"][:5])
    assert row == learn(task, "linear", steps=160, seed=1, rate=3e-3)


def test_a_training_that_explodes_is_recorded(monkeypatch):
    task = S1Copy(length=4, layers=1, heads=2, head_dim=16)
    loss = S1Copy.loss
    monkeypatch.setattr(S1Copy, "loss", lambda *args: (loss(*args)[0] * 1e300 * 1e300, 0.0))
    row = learn(task, "linear", steps=20, seed=0)
    assert row["ended"] == 1 and row["losses"] == []
    assert 0 <= row["symbols"] <= 1


@pytest.mark.parametrize("scale", ["smoke", "default", "full"])
def test_each_length_attention_and_seed_is_a_case(scale):
    keys = [(case["length"], case["attention"], case["seed"]) for case in cases(scale)]
    assert len(set(keys)) == len(keys)
    assert len(keys) == (2 if scale == "smoke" else len(LENGTHS) * len(ATTENTIONS) * SEEDS)


def test_a_claim_that_holds_is_supported():
    text = report(record(softmax={8: seeds(STEADY, 1.0)}, linear={8: seeds(STEADY, 0.995)})).text
    assert "where softmax learns: *supported*." in text
    assert "*supported*. Of softmax that would be\n  *supported*." in text
    assert "linear attention takes to learn: 1 at 8." in text


def test_each_length_has_its_verdict():
    text = report(
        record(
            softmax={8: seeds(STEADY, 1.0), 16: seeds(STEADY, 1.0)},
            linear={8: seeds(SPIKING, 1.0), 16: seeds(SLOW, 0.3)},
        )
    ).text
    assert "*supported* at 8 symbols, *not supported* at 16. Of the symbols" in text
    assert "30.0% against 100.0% at 16" in text
    assert "exceeds 0.5:\n  *not supported*. Of softmax" in text
    assert "takes to learn: 0.67 at 8." in text
    assert "| 16 | linear | 40 | 0 of 2 | - | 1 | - | 30.0% | 30.0% |" in text


def test_nothing_is_said_where_softmax_has_not_learned():
    text = report(record(softmax={8: seeds(SLOW, 0.3)}, linear={8: seeds(SLOW, 0.3)})).text
    assert "where softmax learns: *undecided*." in text
    assert "takes to learn: unknown." in text


def test_windows_are_means():
    assert windows([1.0, 3.0, 8.0], 2) == [2.0, 8.0]
    assert windows([], 2) == []

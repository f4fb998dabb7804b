"""The authors' copy: what is asked is the second w, and the verdicts follow from the curves."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import Tensor
from minitransformer.experiments import causal_copy
from minitransformer.experiments.causal_copy import (
    GUESS,
    SCALES,
    SEPARATOR,
    CausalCopy,
    cases,
    rate,
    report,
)
from minitransformer.training import Recipe, Trainer

TASK = CausalCopy(length=21, layers=1, heads=2, head_dim=16)


def test_a_sequence_is_0_w_0_w_and_the_second_w_is_asked_for():
    tokens, targets = TASK.draw(np.random.default_rng(0), 200)
    lengths = set()
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        second = row.index(SEPARATOR, 1)
        w = row[1:second]
        assert row == [0, *w, 0, *w] + [0] * (21 - 2 * second)
        assert set(w) <= set(range(1, 11))
        assert wanted == [-100] * second + w + [-100] * (21 - 2 * second + 1)
        lengths.add(len(w))
    assert lengths == set(range(5, 10))


def test_who_copies_has_no_loss_and_who_guesses_that_of_a_guess():
    tokens, targets = batch = TASK.draw(np.random.default_rng(0), 30)
    copied = np.maximum(targets, 0)  # and separators where nothing is asked
    certain = Tensor(100 * np.eye(11, dtype=np.float32)[copied])
    loss, right = TASK.loss(lambda given: certain, batch)
    assert (loss.item(), right) == (pytest.approx(0, abs=1e-6), 1.0)
    guess = Tensor(np.tile(np.float32([-100, *[0] * 10]), (*tokens.shape, 1)))
    loss, right = TASK.loss(lambda given: guess, batch)
    assert loss.item() == pytest.approx(GUESS, rel=1e-5)
    assert right < 0.3


def test_it_can_be_learned():
    task = replace(TASK, length=6)  # w is one symbol or two
    trainer = Trainer(task, Recipe(32, 200, 1e-2, "radam"), "linear")
    losses = [trainer.advance()["loss"] for _ in range(120)]
    assert np.mean(losses[-10:]) < 0.5 * GUESS


def test_the_rate_falls_as_the_source_s_does():
    assert [rate(step) for step in (0, 2999, 3000, 9999)] == [1e-3, 1e-3, 1e-4, 1e-4]


def test_full_is_the_source_s_size():
    assert SCALES["full"][:3] == (CausalCopy(128, 4, 8, 32), 64, 10_000)
    for scale in SCALES:
        timed = [case["attention"] for case in cases(scale) if "timed" in case]
        assert timed == [case["attention"] for case in cases(scale)[-2:]] == ["linear", "softmax"]


def said(linear: list[float], softmax: list[float]) -> str:
    """The report of such curves of losses, of one seed each, with its lines joined."""
    rows = []
    for name, losses in (("linear", linear), ("softmax", softmax)):
        curve = [[10 * i + 10, loss, 0.995 if loss < 0.1 else 0.5] for i, loss in enumerate(losses)]
        size = {"length": 8, "layers": 1, "heads": 2, "head_dim": 16, "batch": 4, "steps": 30}
        rows += [{"attention": name, "seed": 0, **size, "curve": curve},
                 {"attention": name, "timed": 3, "seconds": 0.02}]  # fmt: skip
    return report(rows).text.replace("\n", " ")


def test_verdicts_follow_from_the_curves():
    good = said([2.3, 1.0, 0.02], [2.3, 0.5, 0.01])
    assert "*Supported*: it ends at 0.0200 nats and softmax at 0.0100" in good
    assert "*Supported*: no mean of 10 steps was more than 0.000 nats above an earlier" in good
    assert (
        "| linear | 0.0200 (0.0200 to 0.0200) | 99.5% (99.5% to 99.5%) | 30 | 0.000 | 20 |" in good
    )
    assert "linear attention takes 1.0 times the steps; a step takes linear attention 1.00" in good
    bad = said([2.3, 0.4, 0.9], [2.3, 0.5, 0.01])
    assert "*Not supported*: it ends at 0.9000 nats" in bad
    assert "*Not supported*: no mean of 10 steps was more than 0.500 nats above an earlier" in bad
    assert "50.0%) | never |" in bad
    assert "Not every seed came so far; a step takes" in bad


def test_a_case_has_a_curve_of_means(monkeypatch):
    monkeypatch.setattr(causal_copy, "POINTS", 3)
    case = {**cases("smoke")[0], "steps": 7}
    (row,) = causal_copy.run(case)
    assert [point[0] for point in row["curve"]] == [3, 5, 7]

"""Models that read digits are measured, paired and said to differ, or not."""

import math

import numpy as np
import pytest

from minitransformer.experiments import graph_scores, perceiver_variants
from minitransformer.experiments.experiment import Difference, paired
from minitransformer.experiments.shared.reading import cells, held_out_right, learned
from minitransformer.tasks.graph import GraphTask
from minitransformer.training import Trainer


def test_a_model_is_looked_at_on_its_way():
    task = GraphTask()
    row = learned(task, "dot", steps=30, seed=1)
    steps, losses, right = zip(*row["curve"], strict=True)
    assert len(steps) == 20 and steps[-1] == 30 and sorted(steps) == list(steps)
    assert losses[-1] < 0.7 * losses[0] and right[-1] > 0.5 > right[0]
    assert (row["loss"], row["right"]) == (losses[-1], right[-1])
    trainer = Trainer(task, task.recipe, "dot")
    assert row["parameters"] == trainer.model.num_parameters()
    assert held_out_right(task, trainer.model.eval()) < 0.3


def rows(**right):
    """Accuracies of two choices, by seed."""
    return [
        {"choice": choice, "seed": seed, "right": x}
        for choice, shares in right.items()
        for seed, x in enumerate(shares)
    ]


def test_differences_are_of_pairs():
    """Seeds differ a lot, and both choices alike."""
    right = rows(a=[0.5, 0.7, 0.9], b=[0.4, 0.58, 0.8])
    found = paired(right, "right", "choice", "ab", ["seed"])
    deviation = np.std([0.1, 0.12, 0.1], ddof=1)
    assert found == pytest.approx((0.32 / 3, 4.303 * deviation / math.sqrt(3)), rel=1e-3)
    assert found.verdict == "better"
    other = paired(right, "right", "choice", "ba", ["seed"])
    assert other.verdict == "worse" and other.mean == -found.mean
    alone = paired(rows(a=[0.5], b=[0.4, 0.2]), "right", "choice", "ab", ["seed"])
    assert alone == (pytest.approx(0.1), math.inf)
    assert "no difference" in alone.verdict
    assert str(Difference(0.0123, 0.004)) == "+1.23% ± 0.40%"


def test_seeds_are_one_line():
    found = [{"parameters": 1234, "right": x, "loss": 0.1} for x in (0.5, 0.75)]
    assert cells(found) == ["1,234", "62.50%", "50.00%", "75.00%", pytest.approx(0.1)]


def reading(right, **settings):
    curve = [(1, 1.0, 0.1), (2, 0.5, right)]
    return {**settings, "steps": 2, "parameters": 10, "right": right, "loss": 0.5, "curve": curve}


@pytest.mark.parametrize(("ours", "verdict"), [(0.99, "*Supported*"), (0.9, "*Not supported*")])
def test_a_score_is_better_or_not(ours, verdict):
    shares = {"additive": 0.95, "dot": 0.96, "multi_head": ours}
    text = graph_scores.report(
        [
            reading(x + seed / 1000, score=score, seed=seed)
            for score, x in shares.items()
            for seed in range(3)
        ]
    ).text
    assert f"{verdict} as the better one" in text
    assert f"to `dot` {ours - 0.96:+.2%} ± 0.00% of the images" in text


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [(-0.004, 0.005, "*Supported*"), (0.02, 0.01, "*Supported*"), (-0.02, 0.03, "*Open*"),
     (0.01, 0.03, "*Open*"), (-0.02, 0.01, "*Not supported*"), (0, math.inf, "*Open*")],
)  # fmt: skip
def test_a_claim_may_be_open(mean, error, said):
    assert Difference(mean, error).costs_nothing() == said


@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_weights_are_shared_for_nothing_or_not(lost):
    rows = [
        reading(
            (0.95 if norm == "pre" else 0.94) - lost * (share == "all") + 0.001 * seed,
            norm=norm, share=share, seed=seed, depth=3,
        )
        for norm in perceiver_variants.NORMS
        for share in perceiver_variants.SHARES
        for seed in range(2)
    ]  # fmt: skip
    text = perceiver_variants.report(rows).text
    assert f"{'*Not supported*' if lost else '*Supported*'} that this costs nothing:\n" in text
    assert "*Not supported* that this costs\n  nothing: the difference to pre-norm is" in text
    assert "pre-norm is -1.00% ± 0.00% of the images" in text
    assert f"worst of its\n  models reads {0.94 - lost:.1%}" in text

"""Predict zero: the loss without a square explodes, and both cures hold it."""

import numpy as np
import pytest

from minitransformer.experiments import predict_zero
from minitransformer.experiments.predict_zero import draw, exploded, ours, stream


def test_the_loss_without_a_square_explodes_and_its_cures_hold():
    burst = exploded("none", rate=1.0, steps=300)
    assert burst["ended"] is not None and burst["ended"] < 300
    assert "projection" in burst["largest"]
    sunk = [loss for _, loss, _ in burst["curve"]]
    assert sunk[-1] < -1e6 < sunk[0]
    for cure in ("clipping", "normalisation"):
        held = exploded(cure, rate=1.0, steps=300)
        assert held["ended"] is None
        assert all(np.isfinite([loss, gradient]).all() for _, loss, gradient in held["curve"])


def test_it_learns_to_predict_zero():
    losses = ours(4, 0.1, draw(4, 8, 3))
    assert losses.means[-1] < 0.2 * losses.means[0]
    assert losses.seconds > 0


def test_batches_come_from_a_seed_and_are_enough():
    for first, again in zip(stream(4, 150), stream(4, 150), strict=True):
        np.testing.assert_array_equal(first, again)
    assert sum(1 for _ in stream(4, 250)) >= 250
    assert abs(next(draw(4, 1, 1))).max() <= 1


@pytest.mark.parametrize("scale", ["smoke", "default", "full"])
def test_every_size_rate_and_batch_is_a_case(scale):
    cases = predict_zero.cases(scale)
    learned = [case for case in cases if "size" in case]
    assert len(learned) == (2 if scale == "smoke" else 4 * 3 * 3)
    assert [case["cure"] for case in cases if "cure" in case] == list(predict_zero.CURES)


def learned(size, layer, best, seconds):
    return {"size": size, "rate": 1e-3, "batch": 8, "epochs": 2, "layer": layer, "best": best,
            "seconds": seconds, "curve": [2 * best, best]}  # fmt: skip


@pytest.mark.parametrize(("best", "verdict"), [(0.02, "*Supported*"), (0.01, "*Not supported*")])
def test_layers_are_compared_in_loss_and_time(best, verdict):
    rows = [
        learned(size, layer, loss, seconds * size)
        for size in (4, 8)
        for layer, loss, seconds in (("ours", best, 0.5), (predict_zero.PEER, 0.01, 1))
    ]
    rows += [{"cure": "none", "ended": 7, "largest": "x"}]
    text = predict_zero.report(rows).text
    assert f"{verdict} as a difference between layers" in text
    assert "lower than PyTorch's at 8x8, 16x16, 32x32, and" in text
    assert "Ours grows 2 times. Ahead of PyTorch's, measured here: 4x4, 8x8" in text
    alone = [row for row in rows if row.get("layer") != predict_zero.PEER]
    assert "PyTorch was not there" in predict_zero.report(alone).text

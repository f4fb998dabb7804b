"""Attention draws functions of the distance: the fits are what they are said to be."""

from pathlib import Path

import numpy as np
import pytest

from minitransformer.experiments import expressivity
from minitransformer.experiments.expressivity import (
    FORMS,
    SAMPLES,
    TARGETS,
    distances,
    draw,
    learn,
    plot_fits,
    series,
)

from ..test_plots import BLUE, count

WANTED = expressivity.targets()


def errors(curves: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.mean((curves - WANTED) ** 2, axis=1)))


def test_attention_draws_the_sum_of_harmonics() -> None:
    fitted = series(WANTED, 6)
    frequency, phase, amplitude = (x.numpy()[..., None] for x in fitted[:3])
    waves = amplitude * np.cos(phase + frequency[:, :, 0] * distances())
    np.testing.assert_allclose(draw(fitted, "cos").numpy(), waves.sum(axis=1), atol=1e-12)


def test_more_harmonics_come_closer() -> None:
    few, more, many = (errors(draw(series(WANTED, width), "cos").numpy()) for width in (4, 16, 64))
    assert (more < few).all() and (many < 0.6 * more).all()
    smooth = [name in ("decay", "bump") for name in TARGETS]
    assert (many[smooth] < 1e-8).all()


@pytest.mark.parametrize("form", ["cos", "one_plus_cos"])
def test_learning_comes_closer(form: str) -> None:
    before, after = (errors(draw(learn(WANTED, 4, form, n), form).numpy()) for n in (1, 150))
    assert (after < 0.7 * before).all()


def test_positive_weights_stay_positive() -> None:
    learned = learn(WANTED, 4, "one_plus_cos", 50)
    assert np.abs(learned.amplitude.numpy()).max() <= 1
    assert (draw(learned, "one_plus_cos").numpy() >= 0).all()


def test_the_picture_shows_the_curves(tmp_path: Path) -> None:
    def picture(curve: np.ndarray) -> int:
        path = tmp_path / "fits.png"
        rows = [
            {"harmonics": 4, "target": target, "means": means, "error": 0.1,
             "curve": curve if means == "series" else np.full(SAMPLES, np.nan)}
            for target in TARGETS for means in FORMS
        ]  # fmt: skip
        plot_fits(path, rows)
        return count(path, BLUE)

    assert picture(WANTED[0]) > picture(np.full(SAMPLES, np.nan)) + 300

"""Attention draws functions of the distance: the fits are what they are said to be."""

import json
from pathlib import Path

import numpy as np
import pytest

from minitransformer.experiments import expressivity
from minitransformer.experiments.expressivity import (
    SAMPLES,
    TARGETS,
    Fit,
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


def test_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(expressivity, "WIDTHS", (2, 4))
    expressivity.main(["--out", str(tmp_path / "new"), "--steps", "2"])
    rows = json.loads((tmp_path / "new" / "expressivity.json").read_text())
    assert len(rows) == len(TARGETS) * 3 * 2
    assert capsys.readouterr().out.count("\n") == 1 + len(TARGETS) * 3
    assert (tmp_path / "new" / "expressivity.png").stat().st_size > 10_000


def test_the_picture_shows_the_curves(tmp_path: Path) -> None:
    nothing = np.full(SAMPLES, np.nan)

    def picture(curve: np.ndarray) -> int:
        path = tmp_path / "fits.png"
        curves = {"series": curve, "learned": nothing, "positive": nothing}
        fits = [Fit("step", means, 4, 0.1, drawn) for means, drawn in curves.items()]
        plot_fits(path, distances(), {"step": WANTED[0]}, fits)
        return count(path, BLUE)

    assert picture(WANTED[0]) > picture(nothing) + 300

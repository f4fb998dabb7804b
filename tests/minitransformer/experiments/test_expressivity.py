"""Attention draws functions of the distance: the fits are what they are said to be."""

from pathlib import Path

import numpy as np
import pytest

from minitransformer.experiments import expressivity
from minitransformer.experiments.expressivity import (
    FORMS,
    SAMPLES,
    TARGETS,
    Harmonics,
    at_best_size,
    distances,
    draw,
    filtered,
    learn,
    plot_fits,
    series,
)

from ..test_plots import BLUE, count

WANTED = expressivity.targets(distances())


def drawn(harmonics: Harmonics, form: str = "cos") -> np.ndarray:
    return draw(harmonics, form, distances()).numpy()


def errors(curves: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.mean((curves - WANTED) ** 2, axis=1)))


def test_attention_draws_the_sum_of_harmonics() -> None:
    fitted = series(6)
    frequency, phase, amplitude = (x.numpy()[..., None] for x in fitted[:3])
    waves = amplitude * np.cos(phase + frequency[:, :, 0] * distances())
    np.testing.assert_allclose(drawn(fitted), waves.sum(axis=1), atol=1e-12)


def test_more_harmonics_come_closer() -> None:
    few, more, many = (errors(drawn(series(width))) for width in (4, 16, 64))
    assert (more < few).all() and (many < 0.6 * more).all()
    smooth = [name in ("decay", "bump") for name in TARGETS]
    assert (many[smooth] < 1e-8).all()


def test_without_a_denominator_attention_is_a_filter() -> None:
    fitted, values = series(6), expressivity.impulses()
    frequency, phase, amplitude = (x.numpy()[..., None] for x in fitted[:3])
    later = np.arange(SAMPLES) / SAMPLES
    filters = (amplitude * np.cos(phase + frequency[:, :, 0] * later)).sum(axis=1)
    expected = np.stack([np.convolve(f, values)[:SAMPLES] for f in filters])
    summed = filtered(fitted, values, "none")
    np.testing.assert_allclose(summed, expected, atol=1e-10)
    keys_seen = 6 * np.arange(1, SAMPLES + 1)  # of 6 features, all 1
    np.testing.assert_allclose(filtered(fitted, values, "plain"), summed / keys_seen, atol=1e-10)


def test_a_curve_is_compared_at_its_best_size() -> None:
    wanted = np.array([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
    found = np.array([[-6.0, -8.0], [4.0, -3.0], [0.3, 0.0]])
    best = np.array([[3.0, 4.0], [0.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(at_best_size(found, wanted), best, atol=1e-12)


def test_functions_are_judged_where_they_were_not_fitted() -> None:
    """With as many numbers as there are places, a fit there says nothing of what lies between."""
    judged = distances()
    for parts in (SAMPLES, expressivity.FINE):
        assert not np.isin(judged, expressivity.middles(parts)).any()
    assert 2 * max(expressivity.WIDTHS) <= expressivity.FINE / 2


@pytest.mark.parametrize("form", ["cos", "one_plus_cos"])
def test_learning_comes_closer(form: str) -> None:
    before, after = (errors(drawn(learn(4, form, n), form)) for n in (1, 150))
    assert (after < 0.7 * before).all()


def test_positive_weights_stay_positive() -> None:
    learned = learn(4, "one_plus_cos", 50)
    assert np.abs(learned.amplitude.numpy()).max() <= 1
    assert (drawn(learned, "one_plus_cos") >= 0).all()


def test_the_picture_shows_the_curves(tmp_path: Path) -> None:
    def picture(curve: np.ndarray) -> int:
        path = tmp_path / "fits.png"
        rows = [
            {"harmonics": 4, "target": target, "means": means, "error": 0.1,
             "curve": curve if means == "series" else np.full(SAMPLES - 1, np.nan)}
            for target in TARGETS for means in FORMS
        ]  # fmt: skip
        plot_fits(path, rows)
        return count(path, BLUE)

    assert picture(WANTED[0]) > picture(np.full(SAMPLES - 1, np.nan)) + 300

"""The printed regression, its fragility, crossings and exponents are what they are said to be."""

import json

import numpy as np
import pytest

from minitransformer.experiments import copy_times
from minitransformer.experiments.copy_faults import LOOP, SLOW
from minitransformer.experiments.copy_times import (
    ALL,
    ATTENTION,
    LENGTHS,
    MODEL,
    PRINTED,
    TIMED,
    Measured,
    cases,
    crossing,
    fitted,
    regression,
    report,
    timed,
    without_one,
)

SOFTMAX, LINEAR = PRINTED["softmax"], PRINTED["linear"]


def test_the_printed_regression():
    np.testing.assert_allclose(fitted(SOFTMAX, (0, 2)).coef, [225.90, 0, 0.047136], rtol=1e-4)
    np.testing.assert_allclose(fitted(LINEAR, (0, 1)).coef, [597.57, 148.298, 0], rtol=1e-5)
    assert regression(SOFTMAX, LINEAR) == pytest.approx(3148.70, abs=0.005)


def test_the_printed_regression_hangs_on_each_of_its_rows():
    rest = without_one(SOFTMAX, LINEAR)
    assert (len(rest), round(min(rest)), round(max(rest))) == (4, 2220, 3239)
    assert regression(SOFTMAX, LINEAR, (0, 1, 2)) == pytest.approx(6219, abs=1)


def test_curves_that_never_cross_do_not():
    flat = dict.fromkeys(LENGTHS, 5.0)
    assert np.isnan(regression({n: 9.0 - n**2 / 1e3 for n in LENGTHS}, flat))


def test_a_crossing_lies_between_lengths():
    square, line = {n: n**2 / 1e3 for n in LENGTHS}, {n: n / 50 for n in LENGTHS}
    assert crossing(square, line) == pytest.approx(20)
    assert crossing(square, {n: t / 100 for n, t in line.items()}) == 8
    assert crossing(square, {n: t * 100 for n, t in line.items()}) == np.inf
    late = {8: 1.0, 16: 1.0, 32: 1.0, 64: 1.0}  # ahead, behind, then ahead for good
    assert 32 < crossing(late, {8: 0.5, 16: 0.5, 32: 2.0, 64: 0.5}) < 64


def test_the_parts_of_a_step_are_timed_one_by_one(monkeypatch):
    clock = iter([1.0, 3.0, 8.0])
    monkeypatch.setattr(copy_times.time, "perf_counter", lambda: next(clock))
    assert timed(lambda: iter([None] * 3), "cpu") == [2.0, 5.0]


def rows(softmax, linear, looped):
    size = {"layers": 4, "heads": 8, "head_dim": 64, "repeats": 2}
    found = []
    for what, lengths in ((MODEL, (8, 16, 32, 64, 128)), (ATTENTION, (8, 16, 32, 64, 512, 1024))):
        for n in lengths:
            for name, of in (("softmax", softmax), ("linear", linear), (LOOP, looped)):
                if name == LOOP and n > 64:
                    continue
                parts = {"forward": [of(n), of(n) * 1.1], "backward": [of(n), of(n) * 1.1]}
                parts |= {"step": [0.5, 0.5]} if what == MODEL else {}
                found.append({**size, "what": what, "length": n, "variant": name, **parts})
    return found


def test_what_was_measured_is_added_up():
    model = Measured(rows(lambda n: n**2 / 1e3, lambda n: n / 50, lambda n: n), MODEL)
    assert model.lengths == [8, 16, 32, 64, 128]
    assert model.steps["linear"][16] == pytest.approx(2 * 1.05 * 16 / 50 + 0.5)
    assert model.repeats["linear"][0][16] == pytest.approx(2 * 16 / 50 + 0.5)
    assert [*model.table("softmax")] == [8, 16, 32, 64]
    assert model.crossing() == pytest.approx((20, 20, 20), rel=0.05)


def test_the_report_says_what_was_found():
    text = report(rows(lambda n: n**2 / 1e3, lambda n: n / 50, lambda n: n / 2)).text
    assert "printed times: 3,148.70. It hangs" in text
    assert "2,220 to 3,239" in text
    assert "parabola 6,219." in text
    assert "- Measured, attention alone: linear is ahead from 20 on (20 .. 20" in text
    assert "Which makes linear 7.9 to 24 times slower?" in text
    assert "with *state by state* as without a fault." in text
    assert "costs each attention of the model 4.1\nms of a step" in text
    assert "scales linearly. *Supported*: from 512 to 1,024" in text
    assert "power 1.00 of the length" in text and "softmax's with\n2.00" in text
    assert "- Attention alone: *supported* at 32, 64, 512 and 1,024 symbols, *not supported* at 8 and 16" in text  # fmt: skip  # noqa: E501
    quadratic = report(rows(lambda n: n / 50, lambda n: n**2 / 1e3, lambda n: n / 2)).text
    assert "scales linearly. *Not supported*" in quadratic


@pytest.mark.parametrize("scale", ["smoke", "default", "full"])
def test_lengths_of_the_table_are_measured_with_faults(scale):
    found = cases(scale)
    assert found == json.loads(json.dumps(found))
    table = [case for case in found if case["what"] == MODEL and case["length"] in LENGTHS]
    assert {case["length"] for case in table} == set(LENGTHS[:2] if scale == "smoke" else LENGTHS)
    if scale != "smoke":
        assert LOOP in TIMED and SLOW not in TIMED
        assert all(case["faults"] == [*TIMED, ALL] for case in table)
        assert max(c["length"] for c in found if c["what"] == ATTENTION) >= 2**13

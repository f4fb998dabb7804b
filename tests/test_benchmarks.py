"""The benchmarks' own arithmetic: what is timed, what is refused, and what the report shows."""

import json

import numpy as np
import pytest

from benchmarks import harness, report


def test_contestants_take_turns(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    turns = []
    contestants = {name: lambda name=name: turns.append(name) for name in (harness.OURS, "b", "c")}
    rows = list(harness.race("case", contestants, rounds=3))
    names = list(contestants)
    assert turns == names * 2 + names + names[1:] + names[:1] + names[2:] + names[:2]
    assert [row["contestant"] for row in rows] == names


def test_ratio_is_ours_over_theirs(monkeypatch):
    seconds = {"quick": 1.0, "slow": 4.0}
    monkeypatch.setattr(harness, "elapsed", lambda run: seconds[run()])
    ours, theirs = harness.race("case", {harness.OURS: lambda: "quick", "b": lambda: "slow"}, 5)
    assert (ours["ours_over_this"], theirs["ours_over_this"]) == (1.0, 0.25)
    assert theirs["median_ms"] == 4000
    assert theirs["quartiles_ms"] == [4000, 4000]


def test_a_wrong_output_stops_the_race():
    truth = np.array([1.0, -2.0])
    assert harness.error(truth + 1e-5, truth) == pytest.approx(1e-5 * (2 / 5) ** 0.5)
    for wrong in (truth + 1e-3, truth * np.nan):
        with pytest.raises(ArithmeticError, match="relative error of at most"):
            harness.error(wrong, truth)


def test_readme_shows_what_was_recorded():
    readme = harness.README.read_text()
    assert report.headline(readme, harness.RESULTS) == readme


def test_report_shows_every_row(tmp_path):
    about = {"command": "python -m benchmarks.softmax", "machine": {"cores": 2}}
    rows = [{"case": "a", "ms": [1.0, 250.4], "of": None}, {"part": "b", "share": 0.1234}]
    text = "\n".join(json.dumps(row) for row in (about, *rows))
    (tmp_path / "memory.jsonl").write_text(text)
    report.write(tmp_path)
    page = (tmp_path / "README.md").read_text()
    for line in (
        "## The memory of causal linear attention, forward and backward.",
        "| case | ms | of |",
        "| a | 1 .. 250 |  |",
        "| part | share |",
        "| b | 0.123 |",
        "`python -m benchmarks.softmax` on cores 2.",
    ):
        assert line in page.splitlines()

"""Experiments are recorded case by case, go on after a kill, and are reported from the record."""

import json
from pathlib import Path

import pytest

from minitransformer.commands import main
from minitransformer.errors import UserError
from minitransformer.experiments import experiment
from minitransformer.experiments.experiment import Experiment, Record, Report, table
from minitransformer_kernels.cuda import Launch

from ..parallel.starting import needs_mpi

ROOT = Path(__file__).parents[3]
RECORDED = sorted(path.parent for path in (ROOT / "results").glob("*/record.jsonl"))


def counting(ran: list[int], fails_at: int = -1) -> Experiment:
    def run(case):
        if case["x"] == fails_at:
            raise KeyboardInterrupt
        ran.append(case["x"])
        yield {"square": case["x"] ** 2}

    def report(rows):
        return Report(
            table(["x", "square"], [[row["x"], row["square"]] for row in rows]),
            {"a.txt": lambda path: path.write_text("drawn")},
        )

    cases = lambda scale: [{"x": x} for x in range(2 if scale == "smoke" else 4)]  # noqa: E731
    return Experiment("counting", "Squares", "Euclid", cases, run, report)


def test_what_was_killed_goes_on_where_it_stopped(tmp_path):
    ran = []
    with pytest.raises(KeyboardInterrupt):
        list(experiment.run(counting(ran, fails_at=2), "default", tmp_path))
    with (tmp_path / "record.jsonl").open("ab") as file:
        file.write(b'{"case": {"x"')  # a kill while a line was written
    left = [left for _, left in experiment.run(counting(ran), "default", tmp_path)]
    assert (ran, left) == ([0, 1, 2, 3], [2, 1])
    assert Record(tmp_path).rows() == [{"x": x, "square": x * x} for x in range(4)]


def test_a_report_is_made_of_the_record_alone(tmp_path):
    for _ in experiment.run(counting([]), "smoke", tmp_path):
        pass
    made = experiment.write(counting([], fails_at=0), tmp_path)
    assert [path.name for path in made] == ["README.md", "a.txt"]
    page = made[0].read_text()
    assert page.startswith("# Squares\n\nEuclid\n\n| x | square |\n|---|---|\n| 0 | 0 |\n")
    assert "`minitransformer experiment counting --scale smoke`, on processor " in page


def test_a_record_is_that_of_one_experiment_and_scale(tmp_path):
    list(experiment.run(counting([]), "smoke", tmp_path))
    with pytest.raises(UserError, match="holds counting at scale smoke, not counting at scale"):
        list(experiment.run(counting([]), "default", tmp_path))

    with pytest.raises(UserError, match="holds counting, not expressivity"):
        experiment.write(experiment.find("expressivity"), tmp_path)


def test_a_page_that_is_no_report_is_not_replaced(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("Mine")
    with pytest.raises(UserError, match=r"README\.md: is no report of an experiment, and would be"):
        list(experiment.run(counting([]), "smoke", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    page.unlink()
    list(experiment.run(counting([]), "smoke", tmp_path))
    for _ in range(2):
        experiment.write(counting([]), tmp_path)
    page.write_text("Mine")
    with pytest.raises(UserError, match="choose another folder by --out"):
        experiment.write(counting([]), tmp_path)
    assert page.read_text() == "Mine"


@pytest.mark.parametrize("name", experiment.names())
def test_a_report_of_nothing_says_how_to_go_on(name, tmp_path):
    chosen = experiment.find(name)
    folder = tmp_path / "a b"
    Record(folder).begin(chosen, "smoke")
    with pytest.raises(UserError) as caught:
        experiment.write(chosen, folder)
    assert f"0 of {len(chosen.cases('smoke'))} cases are measured" in str(caught.value)
    assert f"experiment {name} --scale smoke --out '{folder}'" in str(caught.value)


def test_damage_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="there is no record here"):
        Record(tmp_path).read()
    damaged = {
        "": 1, "{}": 1, "nonsense\n": 1, '{"experiment": "a"}\n{"case": 3}\n': 2, "[1]\n[2]\n": 1,
        '{"experiment": "a"}\n{"case": {}, "rows": []}\n[]\n': 3,
    }  # fmt: skip
    for text, line in damaged.items():
        (tmp_path / "record.jsonl").write_text(text)
        with pytest.raises(UserError, match=rf"record\.jsonl: line {line} is damaged; measure"):
            Record(tmp_path).read()


# Seconds each, most of them for kernels that no other test compiles.
BY_NIGHT = (
    "copy_positions", "drawn_digits", "language", "perceiver_variants", "predict_zero", "scale",
    "scale_times",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[needs_mpi] * name.startswith("scale")
            + [pytest.mark.nightly] * (name in BY_NIGHT),
        )
        for name in experiment.names()
    ],
)
def test_each_runs_at_the_smallest_scale(name, tmp_path, capsys):
    assert main(["experiment", name, "--scale", "smoke", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert f"{tmp_path / 'README.md'}\n" in printed.out
    assert " to go: " in printed.err
    page = (tmp_path / "README.md").read_text()
    for figure in tmp_path.glob("*.png"):
        assert f"({figure.name})" in page
        assert figure.stat().st_size > 5_000


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_recorded_results_are_rendered_as_they_stand(folder, monkeypatch):
    """At the default scale or larger, whole; nothing is computed for it, but for arrays' shapes."""
    monkeypatch.setattr(Launch, "__call__", lambda *arguments: None)
    chosen = experiment.find(folder.name)
    head, found = Record(folder).read()
    assert head["scale"] != "smoke"
    assert [case for case, _ in found] == json.loads(json.dumps(chosen.cases(head["scale"])))
    assert (folder / "README.md").read_text() == experiment.render(chosen, folder)


def test_experiments_are_listed_and_found(capsys):
    assert main(["experiment", "list"]) == 0
    listed = capsys.readouterr().out
    for name in experiment.names():
        assert f"{name:18}  {experiment.find(name).title}\n" in listed
    assert main(["experiment", "nothing"]) == 1
    assert "there is no experiment 'nothing'; there are " in capsys.readouterr().err

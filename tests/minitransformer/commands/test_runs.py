"""Runs after their end: extended, listed, drawn together, exported; and one that explodes."""

import contextlib
import io
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from minitransformer import commands as cli
from minitransformer.commands import answer
from minitransformer.commands import train as training
from minitransformer.tasks import make_task
from minitransformer.training import Recipe, Run, Trainer
from minitransformer.training.checkpoint import load, save
from tests.minitransformer.line_task import rows_in

SIZE = ("--length", "4", "--layers", "1", "--heads", "2", "--batch-size", "4", "--device", "cpu")
PNG = b"\x89PNG\r\n\x1a\n"
NUMBERS = {"softmax": 31_147, "delta": 31_249, "linear": 31_147}  # that such models learn


def train(*arguments: str) -> str:
    """Train quietly; return what was printed all the same."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert cli.main(["train", "copy", *arguments, "--quiet"]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three attentions, trained quietly."""
    folder = tmp_path_factory.mktemp("three")
    options = ("--attention", "softmax", "delta", "linear", "--steps", "12")
    assert train(*SIZE, *options, "--out", str(folder / "run")) == ""
    return folder


@pytest.fixture
def copied(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to be changed, below a folder `runs` of the current one."""
    shutil.copytree(three / "run", tmp_path / "runs" / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def steps(run: Path) -> dict[str, int]:
    """Return where each checkpoint was saved."""
    return {
        path.stem.removeprefix("checkpoint-"): load(path).metadata["step"]
        for path in run.glob("checkpoint-*")
    }


# -- Several attentions ----------------------------------------------------------------------------


def test_several_attentions_are_trained_in_the_order_given(three: Path) -> None:
    run = three / "run"
    assert json.loads((run / "config.json").read_text())["attention"] == "softmax delta linear"
    assert steps(run) == {"softmax": 12, "delta": 12, "linear": 12}
    assert [(row["attention"], row["step"]) for row in rows_in(run)] == [
        (name, step) for name in ("softmax", "delta", "linear") for step in range(1, 13)
    ]
    for name in ("loss", "attention", "attention-delta", "attention-linear"):
        assert (run / f"{name}.png").read_bytes().startswith(PNG)


def test_each_learns_as_it_does_alone(three: Path, tmp_path: Path) -> None:
    train(*SIZE, "--attention", "linear", "--steps", "12", "--out", str(tmp_path / "alone"))
    assert rows_in(tmp_path / "alone") == rows_in(three / "run")[24:]


def test_a_run_from_before_several_could_be_named(
    copied: Path, command: Callable[..., str]
) -> None:
    config = json.loads((copied / "runs" / "run" / "config.json").read_text())
    (copied / "runs" / "run" / "config.json").write_text(
        json.dumps({**config, "attention": "both"})
    )
    found = command("copy", "run", "3 1 4")
    trained = found.split("\n\n")[1].splitlines()[1:]
    assert [line.split()[0] for line in trained] == ["linear", "softmax"]


# -- A run that is extended ------------------------------------------------------------------------


def test_a_finished_run_goes_on(copied: Path) -> None:
    run = copied / "runs" / "run"
    before = rows_in(run)
    train("--resume", "run", "--steps", "16")
    assert json.loads((run / "config.json").read_text())["steps"] == 16
    assert steps(run) == {"softmax": 16, "delta": 16, "linear": 16}
    after = rows_in(run)
    assert [row for row in after if row["step"] <= 12] == before
    # As if 16 steps had been wanted from the start: the rate falls to 0 along their cosine.
    (lr,) = {row["lr"] for row in after if row["step"] == 15}
    assert lr == pytest.approx(1e-3 * (1 + math.cos(math.pi * 14 / 16)) / 2)
    train("--resume", "run")  # has those steps from now on, and takes none
    assert rows_in(run) == after


def test_what_a_run_cannot_be_extended_by(copied: Path, complaint: Callable[..., str]) -> None:
    before = (copied / "runs" / "run" / "config.json").read_bytes()
    for options in (("--steps", "11"), ("--steps", "16", "--lr", "0.5")):
        line = complaint(2, "train", "copy", "--resume", "run", *options)
        assert "runs/run was started with" in line
    with Run(copied / "runs" / "run").held():
        line = complaint(1, "train", "copy", "--resume", "run", "--steps", "16")
    assert "is writing to this run" in line
    checkpoint = copied / "runs" / "run" / "checkpoint-softmax.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    line = complaint(1, "train", "copy", "--resume", "run", "--steps", "16")
    assert "checkpoint-softmax.safetensors: damaged" in line
    assert (copied / "runs" / "run" / "config.json").read_bytes() == before


# -- Lists and pictures ----------------------------------------------------------------------------


def test_runs_are_listed(copied: Path, command: Callable[..., str]) -> None:
    lines = command("runs").splitlines()
    assert max(map(len, lines)) < 80
    assert lines[0].split() == ["step", "loss", "right", "held", "out", "parameters"]
    assert lines[1] == "runs/run, copy"
    for name, line in zip(("softmax", "delta", "linear"), lines[2:], strict=True):
        last = [row for row in rows_in(copied / "runs" / "run") if row["attention"] == name][2:]
        loss, right = (sum(row[key] for row in last) / 10 for key in ("loss", "accuracy"))
        assert line.split() == [
            name, "12", "of", "12", f"{loss:.4f}", f"{right:.1%}",
            f"{NUMBERS[name]:,}", "finished",
        ]  # fmt: skip


def test_a_list_says_what_is_not_finished_and_what_is_damaged(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        shutil.copytree(copied / "runs" / "run", copied / "runs" / "more" / str(number))
    one, two, three = sorted((copied / "runs" / "more").iterdir())
    (one / "checkpoint-delta.safetensors").unlink()
    (one / "metrics.jsonl").write_text("")
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps({**config, "steps": 20}))
    path = two / "checkpoint-softmax.safetensors"
    tensors, about = load(path)
    about.pop("parameters")  # as runs of older versions have it
    save(path, tensors, about)
    (three / "config.json").write_text("{")
    assert cli.main(["runs", "runs/more"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "runs/more/0, copy",
        f"  softmax   {'12 of 12':>16}{'31,147':>39}  finished",
        f"  delta     {'0 of 12':>16}{'':39}  unfinished",
    ]
    assert re.fullmatch(r"  softmax {11}12 of 20 +\d\.\d{4} +\d+\.\d% {24}unfinished", lines[6])
    assert lines[-1].startswith("runs/more/2/config.json: damaged (")


def test_where_there_is_no_run(copied: Path, complaint: Callable[..., str]) -> None:
    line = complaint(1, "runs", "run", "else")
    assert "there is no run below else; `minitransformer train copy` makes one" in line
    shutil.rmtree(copied / "runs")
    assert "there is no run below runs; " in complaint(1, "runs")


def test_a_run_that_is_named_twice_is_listed_once(
    copied: Path, command: Callable[..., str]
) -> None:
    assert command("runs", "run", "runs") == command("runs")


def test_a_run_is_drawn_again(copied: Path, command: Callable[..., str]) -> None:
    run = copied / "runs" / "run"
    before = {path.name: path.read_bytes() for path in run.glob("*.png")}
    for name in before:
        (run / name).unlink()
    assert "loss.png" in command("runs", "run", "--redraw")
    assert {path.name: path.read_bytes() for path in run.glob("*.png")} == before


def test_several_runs_in_one_picture(copied: Path, command: Callable[..., str]) -> None:
    shutil.copytree(copied / "runs" / "run", copied / "runs" / "again")
    sizes = []
    for which in (["run"], ["run", "again"], []):
        assert command("runs", *which, "--out", "all.png").endswith("\nall.png\n")
        sizes.append((copied / "all.png").read_bytes())
    assert all(picture.startswith(PNG) for picture in sizes)
    assert sizes[0] != sizes[1]


def test_runs_of_different_tasks_are_not_compared(
    copied: Path, complaint: Callable[..., str]
) -> None:
    graph = copied / "runs" / "graph"
    graph.mkdir()
    settings = {
        name: option.default for name, option in cli.train.task_options(
            cli.train.task_class("graph")
        ).items()
    }  # fmt: skip
    (graph / "config.json").write_text(json.dumps({"task": "graph", **settings}))
    line = complaint(2, "runs", "--out", "all.png")
    assert line.endswith("argument --out: runs of one task are compared, got copy, graph")


def test_a_picture_is_a_png(complaint: Callable[..., str]) -> None:
    for arguments in (["runs", "--out"], ["plan", "--out"], ["inspect", "a.py", "--picture"]):
        line = complaint(2, *arguments, "map.xyz")
        flag = arguments[-1]
        assert line.endswith(
            f"argument {flag}: expected the name of a file that ends in .png, got 'map.xyz'"
        )


# -- What a model says of itself -------------------------------------------------------------------


def test_a_model_that_needs_no_more_training_says_nothing_of_it(
    copied: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_GOOD", 0.0)
    told = command("copy", "run", "3 1").split("\n\n", 1)[1].splitlines()
    assert told[0] == "Trained so far:"
    assert len(told) == 4
    assert all("step 12 of 12, " in line and line.endswith("of tokens right") for line in told[1:])


def test_an_interrupted_run_answers_with_what_there_is(
    copied: Path, command: Callable[..., str], complaint: Callable[..., str]
) -> None:
    run = Run(copied / "runs" / "run")
    run.checkpoint_path("linear").unlink()
    run.replace_rows(row for row in run.rows() if row["attention"] != "linear")
    lines = command("copy", "run", "3 1").splitlines()
    assert not any(line.startswith("  linear    3") for line in lines)
    assert "  linear    step 0 of 12; it needs more training" in lines
    assert lines[-1] == "  minitransformer train copy --resume runs/run"
    for name in ("softmax", "delta"):
        run.checkpoint_path(name).unlink()
    run.replace_rows([])
    line = complaint(1, "copy", "run", "3 1")
    assert line.endswith(
        "runs/run: no model has begun to learn; to go on: minitransformer train copy --resume "
        "runs/run"
    )


# -- Export ----------------------------------------------------------------------------------------


@pytest.fixture
def exported(copied: Path, command: Callable[..., str]) -> tuple[Path, str]:
    """A file of weights, and what was printed."""
    printed = command("export", "run", "--model", "delta", "--out", "delta.safetensors")
    return copied / "delta.safetensors", printed


def test_exported_weights_are_those_of_the_model(exported: tuple[Path, str]) -> None:
    path, printed = exported
    assert "31,249 numbers in 58 arrays, of delta attention after step 12 of 12\n" in printed
    with safe_open(path, framework="numpy") as file:
        about, names = file.metadata(), set(file.keys())
        weights = {name: file.get_tensor(name) for name in names}
    settings = json.loads(about["settings"])
    model = make_task(about["task"], settings).build(about["model"])
    model.load_state_dict(weights)
    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    trained = Trainer(make_task("copy", settings), recipe, "delta")
    trained.restore(path.parent / "runs" / "run" / "checkpoint-delta.safetensors")
    np.testing.assert_equal(model.state_dict(), trained.model.state_dict())
    assert about["step"] == "12"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_printed_example_loads_them(exported: tuple[Path, str], library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}: pip install -e .[bench]")
    path, printed = exported
    example = printed.split("To load it:\n\n")[1].replace(
        "safetensors.numpy", f"safetensors.{library}"
    )
    program = "\n".join(line.removeprefix("  ") for line in example.splitlines())
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=path.parent, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "'decoder.layers.0.cross_attention.key_projection.weight': " in ran.stdout


@pytest.mark.parametrize(
    ("code", "arguments", "expected"),
    [
        (2, "run --out a.safetensors",
         "argument --model: runs/run has softmax and delta and linear, got none of them"),
        (2, "run --model favor --out a.safetensors", "and linear, got favor"),
        (2, "run --model linear --out a.pt", "a file that ends in .safetensors, got 'a.pt'"),
        (2, "run --model linear", "the following arguments are required: --out"),
        (1, "run --model linear --out runs/run/checkpoint-linear.safetensors",
         "runs/run/checkpoint-linear.safetensors: is there already; give the name of a new file"),
        (1, "run --model linear --out no/a.safetensors", "no/a.safetensors: cannot be written: No"),
        (1, "nowhere --out a.safetensors", "nowhere: there is no run here"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported(
    copied: Path, complaint: Callable[..., str], code: int, arguments: str, expected: str
) -> None:
    assert expected in complaint(code, "export", *arguments.split())


# -- A recipe that explodes ------------------------------------------------------------------------


def test_a_recipe_that_explodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = ("--optimizer", "sgd", "--lr", "1e30", "--steps", "12", "--out", "run", "--quiet")
    line = complaint(1, "train", "copy", *SIZE, *recipe)
    assert re.search(r"step \d+: the loss is nan, and \w+\.[\w.]+ is the first parameter who", line)
    assert line.endswith("is kept; start again in another folder, with a smaller --lr")
    assert list(steps(tmp_path / "run").values()) == [0]
    assert cli.main(["copy", "run", "3 1"]) == 0  # with the model of that checkpoint


def test_runs_that_begin_at_once_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(training, "datetime", Stopped)
    found = [training._made_folder({"task": "copy", "attention": "both"}) for _ in range(3)]
    assert [path.name for path in found] == [
        f"copy-both-20260102-030405{more}" for more in ("", "-2", "-3")
    ]
    assert all(path.is_dir() for path in found)

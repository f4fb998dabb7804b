"""The command line as a user meets it: in a process of its own, from a folder of its own."""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import commands as cli
from minitransformer import nn
from minitransformer.commands import plan
from minitransformer.commands.shared import read_settings
from minitransformer.nn.variant import _variants as registered
from minitransformer.settings import ATTENTIONS, Option
from minitransformer.tasks import make_task, task_class, task_names, task_options
from minitransformer.tasks.digits import load_split
from minitransformer.training import Recipe, Run, Trainer
from minitransformer.training.checkpoint import load
from tests.minitransformer.line_task import rows_in

COMMAND = (sys.executable, "-m", "minitransformer")
SIZE = ("--length", "4", "--layers", "1", "--heads", "2", "--batch-size", "4")
SMALL = (*SIZE, "--steps", "12", "--device", "cpu")
PNG = b"\x89PNG\r\n\x1a\n"
TASKS = {name: task_class(name) for name in task_names()}
TABLES = {name: task_options(task) for name, task in TASKS.items()} | {"plan": plan.OPTIONS}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True)


def stop(
    folder: Path, number: int, steps: int, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Start a command and send it a signal once the run has so many rows."""
    command = [*COMMAND, *arguments]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    metrics = folder / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(number)
    _, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, "", errors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def trained(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "train", "copy", *SMALL, "--attention", "both", "--out", "runs/both")


def test_a_run_ends_with_its_summary(trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode == 0, trained.stderr
    for attention in ("linear", "softmax"):
        shares = r"+\d+\.\d\d% +\d+\.\d\d%"
        assert re.search(rf"{attention} {shares} +31,147 +\d+\.\d s", trained.stdout)
        assert len(re.findall(rf"^  {attention} +[\d|]( [\d|]){{3}}$", trained.stdout, re.M)) == 3
    assert "  minitransformer copy runs/both '3 1 4 1'" in trained.stdout
    assert "sequences/s" in trained.stderr
    assert "accuracy" in trained.stderr


def test_a_model_copies_what_is_typed(folder: Path, trained: object) -> None:
    found = run(folder, "copy", "both", "3 1 4")
    assert found.returncode == 0, found.stderr
    answer, standing = found.stdout.split("\n\n", 1)
    source, *copies = answer.splitlines()
    assert source == "  source    3 1 4"
    assert [line.split()[0] for line in copies if "^" not in line] == ["linear", "softmax"]
    for line, below in zip(copies, [*copies[1:], ""], strict=True):
        if "^" not in line:
            wrong = [place for place in (12, 14, 16) if line[place] != source[place]]
            assert [place for place in (12, 14, 16) if below[place:].startswith("^")] == wrong
    poor = r"step 12 of 12, \d+\.\d% of tokens right; it needs more training\n"
    assert re.fullmatch(
        rf"Trained so far:\n  linear    {poor}  softmax   {poor}\nTo train it further:\n"
        r"  minitransformer train copy --resume runs/both --steps 24\n",
        standing,
    )


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[dict[str, Any]]:
    assert run(folder, "train", "copy", *SMALL, "--steps", "80", "--out", "whole").returncode == 0
    return rows_in(folder / "whole")


def test_an_interrupted_run_continues_to_the_same_metrics(
    tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    new = ("train", "copy", *SMALL, "--steps", "80", "--out", "run")
    again = ("train", "copy", "--resume", "run")
    polite = stop(tmp_path, signal.SIGINT, 10, *new)
    assert polite.returncode == 128 + signal.SIGINT
    assert re.search(r"interrupted after step \d+ of 80 of linear attention; ", polite.stderr)
    assert polite.stderr.endswith("  minitransformer train copy --resume run\n")
    step = load(tmp_path / "run" / "checkpoint-linear.safetensors").metadata["step"]
    assert len(rows_in(tmp_path / "run")) == step >= 10

    assert stop(tmp_path, signal.SIGKILL, step + 10, *again).returncode == -signal.SIGKILL
    assert load(tmp_path / "run" / "checkpoint-linear.safetensors").metadata["step"] == step

    polite = stop(tmp_path, signal.SIGTERM, step + 15, *again)
    assert polite.returncode == 128 + signal.SIGTERM
    assert run(tmp_path, *again).returncode == 0
    assert rows_in(tmp_path / "run") == whole


def test_killed_before_the_first_step(tmp_path: Path) -> None:
    """The kill lands while the kernels are being loaded; there is a checkpoint all the same."""
    process = subprocess.Popen(
        [*COMMAND, "train", "copy", *SMALL, "--out", "run"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "run" / "checkpoint-linear.safetensors").exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    found = run(tmp_path, "train", "copy", "--resume", "run")
    assert found.returncode == 0, found.stderr
    assert len(rows_in(tmp_path / "run")) == 12


def test_a_disk_that_refuses_leaves_the_checkpoint(tmp_path: Path) -> None:
    new = ("train", "copy", *SMALL, "--steps", "80", "--out", "run")
    stop(tmp_path, signal.SIGINT, 5, *new)
    checkpoint = tmp_path / "run" / "checkpoint-linear.safetensors"
    before = checkpoint.read_bytes()
    in_the_way = tmp_path / "run" / ".checkpoint-linear.safetensors.part"
    in_the_way.mkdir()
    found = run(tmp_path, "train", "copy", "--resume", "run")
    assert found.returncode == 1, found.stderr
    *progress, line = found.stderr.splitlines()
    assert all("step/s" in part or "s/step" in part for part in progress if part.strip())
    assert line.startswith("minitransformer") and line.endswith(
        "run/checkpoint-linear.safetensors: cannot be written: Is a directory; what it held "
        "before is intact"
    )
    assert checkpoint.read_bytes() == before


# -- Tasks that read digits: in this process, which is faster --------------------------------------

READERS = {
    "perceiver": ("--latents", "4", "--heads", "1", "--depth", "1", "--attention", "both"),
    "graph": ("--neighbours", "3", "--heads", "2", "--score", "both"),
}
FEW = ("--head-dim", "16", "--batch-size", "16", "--steps", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def readers(folder: Path) -> dict[str, str]:
    """Train both tasks, and return what they printed."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for task, options in READERS.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                assert cli.main(["train", task, *options, *FEW, "--out", f"runs/{task}"]) == 0
            found[task] = printed.getvalue()
    return found


@pytest.mark.parametrize("task", READERS)
def test_a_reader_ends_with_its_summary(readers: dict[str, str], task: str) -> None:
    text = readers[task]
    assert "360 held-out images of handwritten digits" in text
    pair = TASKS[task].compared.pair
    for name in (*(f"{name} attention" for name in pair), "logistic regression"):
        assert re.search(rf"^  {name} +\d+\.\d\d% +\d+ +[\d,]+ +\d+\.\d s$", text, re.M)
    assert re.search(r"^  logistic regression .* 650  ", text, re.M)
    for name in pair:
        assert f"checkpoint-{name}.safetensors" in text
        assert f"the trained model, {name} attention\n" in text
    assert text.endswith(f":\n  minitransformer read runs/{task} 0\n")


@pytest.mark.usefixtures("trained", "readers")
@pytest.mark.parametrize(
    ("task", "run", "steps"),
    [("copy", "both", 12), ("perceiver", "perceiver", 8), ("graph", "graph", 8)],
)
def test_a_run_leaves_its_files(folder: Path, task: str, run: str, steps: int) -> None:
    found = folder / "runs" / run
    first, second = TASKS[task].compared.pair
    pictures = {"loss.png", "attention.png", f"attention-{second}.png"}
    checkpoints = {f"checkpoint-{name}.safetensors" for name in (first, second)}
    files = {"config.json", "metrics.jsonl", *pictures, *checkpoints}
    assert {path.name for path in found.iterdir()} == files
    for name in pictures:
        content = (found / name).read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 20_000
    assert [(row["attention"], row["step"]) for row in Run(found).rows()] == [
        (name, step) for name in (first, second) for step in range(1, steps + 1)
    ]
    assert all(row[f"{TASKS[task].examples}_per_second"] > 0 for row in Run(found).rows())
    config = json.loads((found / "config.json").read_text())
    assert (config["task"], config["steps"], config["device"]) == (task, steps, "cpu")
    assert "numpy" in config["versions"]


@pytest.mark.parametrize("task", ["perceiver", pytest.param("graph", marks=pytest.mark.nightly)])
def test_an_interrupted_reader_continues_to_the_same_metrics(
    folder: Path,
    readers: dict[str, str],
    task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    advance = Trainer.advance

    def interrupted(trainer: Trainer) -> dict[str, Any]:
        if trainer.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", interrupted)
        code = cli.main(["train", task, *READERS[task], *FEW, "--out", "run"])
    assert code == 128 + signal.SIGINT
    errors = capsys.readouterr().err
    attention = TASKS[task].compared.pair[0]
    assert f"interrupted after step 5 of 8 of {attention} attention; to continue:\n" in errors
    assert errors.endswith(f"  minitransformer train {task} --resume run\n")
    assert cli.main(["train", task, "--resume", "run"]) == 0
    assert rows_in(tmp_path / "run") == rows_in(folder / "runs" / task)


@pytest.mark.parametrize("task", READERS)
def test_a_reader_reads(
    folder: Path,
    readers: dict[str, str],
    task: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    (folder / "mine.txt").write_text("16 " * 64)
    for image, first in (("17", "held-out image 17, a 3:"), ("mine.txt", "mine.txt:")):
        assert cli.main(["read", task, image]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == first
        for name in TASKS[task].compared.pair:
            assert any(re.match(rf"  {name} +\d \(\d+\.\d%\), \d ", line) for line in lines)
    assert lines[2:10] == [f"  {'@' * 16}"] * 8


# -- Errors: in this process, which is faster, and ends the same way -------------------------------


@pytest.fixture
def complaint(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Callable[..., str]:
    monkeypatch.chdir(folder)
    return complaint


@pytest.fixture
def runs(request: pytest.FixtureRequest, arguments: str) -> None:
    """The runs that a command is about, before anything is printed that a test looks at."""
    request.getfixturevalue("readers" if "graph" in arguments else "trained")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--attention", "Linear",
         f"expected one or more of {', '.join(ATTENTIONS)} or both, each once, got 'Linear'"),
        ("--length", "0", "expected a whole number of at least 1, got '0'"),
        ("--length", "many", "expected a whole number of at least 1, got 'many'"),
        ("--layers", "1.5", "expected a whole number of at least 1, got '1.5'"),
        ("--heads", "-2", "expected a whole number of at least 1, got '-2'"),
        ("--head-dim", "257", "expected a whole number from 1 to 256, got '257'"),
        ("--batch-size", "", "expected a whole number of at least 1, got ''"),
        ("--steps", "1e3", "expected a whole number of at least 1, got '1e3'"),
        ("--lr", "0", "expected a number above 0, got '0'"),
        ("--lr", "nan", "expected a number above 0, got 'nan'"),
        ("--lr", "inf", "expected a number above 0, got 'inf'"),
        ("--lr", "fast", "expected a number above 0, got 'fast'"),
        ("--optimizer", "lion", "expected adam, radam or sgd, got 'lion'"),
        ("--positions", "None", "expected learned, sinusoidal or none, got 'None'"),
        ("--seed", "-1", "expected a whole number of at least 0, got '-1'"),
        ("--device", "tpu", "expected auto, cpu or cuda, got 'tpu'"),
    ],
)  # fmt: skip
def test_a_bad_value(complaint: Callable[..., str], option: str, value: str, expected: str) -> None:
    line = complaint(2, "train", "copy", option, value)
    assert line == f"minitransformer train copy: error: argument {option}: {expected}"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@given(text=st.text())
def test_any_text_is_a_value_or_an_argument_error(table: dict[str, Option], text: str) -> None:
    for option in table.values():
        try:
            parse = option.kind.parse
            assert parse(str(parse(text))) == parse(text)
        except argparse.ArgumentTypeError as error:
            assert repr(text) in str(error)


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_are_allowed(task: str) -> None:
    for option in TABLES[task].values():
        assert option.kind.parse(str(option.default)) == option.default


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_has_an_option(task: str) -> None:
    defaults = {name: option.default for name, option in TABLES[task].items()}
    assert make_task(task, defaults) == TASKS[task]()
    assert defaults.keys() >= {field.name for field in dataclasses.fields(Recipe)}
    compared = TASKS[task].compared
    parse = TABLES[task][compared.setting].kind.parse
    first, second = compared.pair
    for chosen in (first, second, f"{second} {first}", " ".join(compared.names)):
        assert parse(chosen) == chosen
    assert parse("both") == f"{first} {second}"


@pytest.mark.parametrize(
    ("code", "arguments", "expected"),
    [
        (2, "", "minitransformer: error: the following arguments are required: COMMAND"),
        (2, "train", "minitransformer train: error: the following arguments are required: TASK"),
        (2, "train copy --len 4", "minitransformer: error: unrecognized arguments: --len 4"),
        (2, "train copy --out a --resume b", "argument --resume: not allowed with argument --out"),
        (2, "copy", "the following arguments are required: RUN, SEQUENCE"),
        (2, "copy runs/both 3 1 x",
         "argument SEQUENCE: expected 1 to 4 digits from 0 to 9, for which"),
        (2, "copy runs/both 31415",
         "argument SEQUENCE: expected 1 to 4 digits from 0 to 9, for which"),
        (2, "train copy --resume both --lr 0.5",
         "argument --lr: runs/both was started with 0.001, got"),
        (2, "train copy --resume both --steps 11",
         "--steps: runs/both was started with 12, got 11"),
        (2, "train copy --attention linear both", "each once, got 'linear both'"),
        (2, "train copy --attention linear,delta", "both, each once, got 'linear,delta'"),
        # Folders that do not play along
        (1, "copy nowhere 3",
         "nowhere: there is no run here (config.json: No such file or directory)"),
        (1, "train copy --resume nowhere", "nowhere: there is no run here (config.json"),
        (1, "train copy --out runs/both", "runs/both: expected a new or an empty folder, it holds"),
        (1, "train copy --out runs/both/loss.png", "loss.png: cannot be written: it is a file,"),
        (1, "train copy --out runs/both/loss.png/x",
         "loss.png/x: cannot be written: Not a directory"),
        # Readers that are asked something else
        (2, "train graph --score both --neighbours 0", "--neighbours: expected a whole number fro"),
        (2, "train graph --attention linear", "unrecognized arguments: --attention linear"),
        (2, "train perceiver --share some", "expected all, all_but_first or none, got 'some'"),
        (2, "train perceiver --dropout 1", "expected a fraction from 0 to below 1, got '1'"),
        (2, "train perceiver --batch-size 2000", "expected a whole number from 1 to 1024, got"),
        (2, "train copy --resume graph",
         "argument --resume: runs/graph is a run of `minitransformer train graph`; continue it"),
        (2, "train graph --resume graph --neighbours 4", "runs/graph was started with 3, got 4"),
        (2, "read graph 360", "argument IMAGE: expected a held-out image from 0 to 359, or a fi"),
        (2, "copy graph 3",
         "argument RUN: runs/graph is a run of `minitransformer train graph`, whose models answer "
         "`minitransformer read`"),
        (2, "read both 3",
         "is a run of `minitransformer train copy`, whose models answer `minitransformer copy`"),
        (2, "read graph -1", "argument IMAGE: expected a held-out image from 0 to 359, or"),
        (1, "read graph nowhere.txt", "nowhere.txt: cannot be read: No such file or directory"),
        (1, "read graph runs", "runs: cannot be read: Is a directory"),
        (2, "read graph", "the following arguments are required: IMAGE"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("runs")
def test_arguments_that_do_not_fit(
    complaint: Callable[..., str], code: int, arguments: str, expected: str
) -> None:
    assert expected in complaint(code, *arguments.split())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", b"{", "config.json: damaged (Expecting property name"),
        ("config.json", b"null", "damaged (expected an object of settings, got None); restore"),
        ("config.json", b"{}", "config.json: damaged (its task is None, none of copy, "),
        ("config.json", b'{"task": "copy"}', "config.json: damaged ('attention' is missing); res"),
        ("config.json", b'{"task": ["copy"]}', "config.json: damaged (its task is ['copy'], none"),
        ("config.json", None, "damaged: there is no run here (config.json"),
        ("checkpoint-linear.safetensors", None, "linear.safetensors: there is no checkpoint here"),
        ("checkpoint-linear.safetensors", b"1234", "linear.safetensors: damaged (truncated or not"),
    ],
)
def test_files_that_are_damaged_or_gone(
    complaint: Callable[..., str],
    trained: object,
    folder: Path,
    name: str,
    content: bytes | None,
    expected: str,
) -> None:
    damaged = folder / "damaged"
    damaged.mkdir(exist_ok=True)
    for path in (folder / "runs" / "both").iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / name).unlink()
    if content is not None:
        (damaged / name).write_bytes(content)
    assert expected in complaint(1, "copy", "damaged", "3 1")
    assert expected in complaint(1, "train", "copy", "--resume", "damaged")


def test_a_run_that_is_older_than_a_setting_has_its_default(
    trained: object, folder: Path, tmp_path: Path
) -> None:
    config = json.loads((folder / "runs" / "both" / "config.json").read_text())
    del config["positions"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_settings(Run(tmp_path)) == read_settings(Run(folder / "runs" / "both"))


@pytest.mark.parametrize("task", READERS)
def test_digits_without_scikit_learn(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str
) -> None:
    load_split.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    line = complaint(1, "train", task, "--out", str(tmp_path / "run"))
    digits = "the handwritten digits are scikit-learn's, which cannot be imported ("
    assert line.startswith(f"minitransformer train {task}: error: {digits}")
    assert line.endswith("); pip install scikit-learn")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_model(
    complaint: Callable[..., str], trained: object, folder: Path
) -> None:
    config = json.loads((folder / "runs" / "both" / "config.json").read_text())
    other = folder / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**config, "heads": 3}))
    name = "checkpoint-linear.safetensors"
    (other / name).write_bytes((folder / "runs" / "both" / name).read_bytes())
    line = complaint(1, "copy", "other", "3 1")
    assert f"{name}: the checkpoint of another model: model.decoder.layers.0" in line


def test_training_on_a_device(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = [*SIZE, "--steps", "2", "--device", device, "--out", str(run)]
    assert cli.main(["train", "copy", *options]) == 0
    assert json.loads((run / "config.json").read_text())["device"] == device
    assert (run / "attention.png").read_bytes().startswith(PNG)
    assert cli.main(["copy", str(run), "3 1 4 1"]) == 0
    assert "source    3 1 4 1" in capsys.readouterr().out


def test_cuda_where_there_is_none(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitransformer.device.cuda_problem", lambda: "there is no GPU; buy one")
    line = complaint(2, "train", "copy", "--device", "cuda")
    assert line.endswith(
        "argument --device: device 'cuda' is not available: there is no GPU; buy one"
    )


def test_threads_that_are_no_number(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "all")
    line = complaint(2, "train", "copy", "--out", str(tmp_path / "run"))
    assert "MINITRANSFORMER_NUM_THREADS must be a whole number from 1 up, got 'all'" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trouble", "code", "expected"),
    [
        (MemoryError(), 1, "not enough memory; try a smaller model, length, batch or"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(5, "Input/output error"), 1, "Input/output error"),
    ],
)
def test_trouble_from_outside(
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    trouble: BaseException,
    code: int,
    expected: str,
) -> None:
    def fail() -> int:
        raise trouble

    monkeypatch.setattr("minitransformer.commands.doctor.run", fail)
    assert expected in complaint(code, "doctor")


def test_output_that_nobody_reads(folder: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "doctor"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


@pytest.mark.parametrize("task", TASKS)
def test_help_shows_every_option_and_its_default(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", task, "--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for name, option in TABLES[task].items():
        assert f"--{name.replace('_', '-')} {option.kind.metavar} " in text
        assert f"{option.help} (default: {option.default})" in text
    assert "--out FOLDER" in text
    assert "--resume RUN" in text


@pytest.mark.parametrize(
    "arguments",
    ["", "train", *(f"train {task}" for task in TASKS), "copy", "read", "runs", "export", "inspect",
     "run", "plan", "doctor"],
)  # fmt: skip
def test_help_fits_a_terminal(
    arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments.split(), "--help"])
    out = capsys.readouterr().out
    assert "usage: minitransformer" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("inspect softmax --shared 8", "--shared: it needs --grid and --block"),
        ("inspect softmax --arrays 7", "--arrays: it needs --grid and --block"),
        ("step softmax --arrays 7", "--arrays: it needs --grid and --block"),
        ("inspect softmax --architecture 9.0", "--architecture: it needs --ptx"),
        ("inspect softmax --ptx --gpu H200", "--gpu: --ptx does not look at it; leave out"),
        ("inspect softmax --ptx --no-compiled", "--no-compiled: --ptx does not look at it; leave"),
    ],
)
def test_what_nothing_would_look_at_is_refused(
    complaint: Callable[..., str], arguments: str, expected: str
) -> None:
    assert f"error: argument {expected}" in complaint(2, *arguments.split())


def test_doctor(folder: Path) -> None:
    found = run(folder, "doctor")
    assert found.returncode == 0, found.stdout
    assert found.stderr == ""
    assert re.search(r"^ok +kernel on cpu +causal linear attention", found.stdout, re.M)
    assert found.stdout.endswith("Everything that is needed works.\n")


def test_doctor_of_a_machine_whose_numba_is_broken() -> None:
    script = "import sys; sys.modules['numba'] = None; from minitransformer import commands; "
    found = subprocess.run(
        [sys.executable, "-c", f"{script} sys.exit(commands.main(['doctor']))"],
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert re.search(r"^BAD +kernel on cpu +\w+Error: .*numba", found.stdout, re.M)
    assert "to mend: see BAD above" in found.stdout


def test_help_and_errors_load_neither_numba_nor_matplotlib() -> None:
    script = (
        "import sys; from minitransformer.commands import _parser; _parser(); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    ).stdout.split()
    assert "minitransformer.commands" in loaded
    assert not {"numba", "matplotlib", "safetensors", "tqdm", "sklearn"} & set(loaded)


def test_train_offers_every_attention() -> None:
    """Each file among the variants registers the attention of its name, and no other does."""
    assert nn.attention_names() == ATTENTIONS == tuple(sorted(registered))

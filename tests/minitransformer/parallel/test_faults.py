"""What ends one rank ends all: within seconds, in one sentence, with whole files."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitransformer.training.checkpoint import load
from tests.minitransformer.line_task import rows_in, run_in

from .ending import STEP
from .starting import ended, needs_mpi, ranks, started

pytestmark = needs_mpi
MODULE = "tests.minitransformer.parallel.ending"
COMMAND = sys.executable, "-m", "minitransformer"
WHO = r"rank {} of 3 \(process \d+ on \S+\)"
SECONDS = 30  # for three ranks to begin, on a machine with other things to do


def ours(found: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sentences that are not the launcher's, and no traceback's."""
    lines = found.stderr.splitlines()
    return [line for line in lines if re.match("minitransformer|error: ", line)]


@pytest.mark.parametrize(
    ("how", "who", "sentence"),
    [
        ("is killed", 1, "was killed by SIGKILL, as by a system without memory left; that ends"),
        pytest.param("raises", 1, "ValueError: no such thing; that ends the others",
                     marks=pytest.mark.nightly),
        pytest.param("leaves as if done", 1, "ended with code 0, and no word; that ends the others",
                     marks=pytest.mark.nightly),
        pytest.param("the first is killed", 0, "was killed by SIGKILL", marks=pytest.mark.nightly),
        pytest.param("leaves", 2, "ended with code 3, and no word", marks=pytest.mark.nightly),
        pytest.param("refuses", 2, "nothing to learn from", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_rank_that_dies_ends_the_others_and_is_named(
    how: str, who: int, sentence: str, tmp_path: Path
) -> None:
    run = run_in(tmp_path / "run")
    found = ranks(3, MODULE, str(run.folder), how, seconds=SECONDS)
    assert found.returncode != 0
    (line,) = ours(found)
    assert re.match(f"minitransformer: {WHO.format(who)}:? {sentence}", line), found.stderr
    assert "is at step" not in found.stdout
    assert ("Traceback" in found.stderr) == (how == "raises")
    assert load(run.checkpoint_path("linear")).metadata["step"] == 0
    assert len(run.rows()) in (STEP - 2, STEP - 1)  # the last may not be written yet
    if how == "is killed":
        ranks(2, MODULE, str(run.folder), "goes on").check_returncode()
        assert len(run.rows()) == 20


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        pytest.param("all refuse", "error: nothing to learn from", marks=pytest.mark.nightly),
        ("differs", r"error: the ranks disagree: --lr is 0\.1 on rank 0 \(\S+\), and 1\.1 on rank "
         r"1 \(\S+\); be equal"),
        pytest.param(
            "adds otherwise",
            r"error: the ranks disagree: the sum of gradients is \w{12} on rank 0 .*Iallreduce",
            marks=pytest.mark.nightly,
        ),
        pytest.param("all raise", "", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_what_ends_all_is_said_once(how: str, sentence: str, tmp_path: Path) -> None:
    found = ranks(3, MODULE, str(run_in(tmp_path / "run").folder), how, seconds=SECONDS)
    assert found.returncode == 1
    assert "BAD TERMINATION" not in found.stderr and "Abort" not in found.stderr
    if sentence:
        assert re.fullmatch(sentence, found.stderr.strip())
    else:
        assert found.stderr.count("Traceback") == 1


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    found = ranks(3, MODULE, str(run.folder), "is asked to stop", seconds=SECONDS)
    assert found.returncode == 0, found.stderr
    lines = {f"rank {rank} is at step {STEP}, signal 15" for rank in range(3)}
    assert set(found.stdout.splitlines()) == lines
    assert load(run.checkpoint_path("linear")).metadata["step"] == STEP == len(run.rows())


SMALL = ("--length", "3", "--layers", "1", "--heads", "1", "--head-dim", "4", "--batch-size", "5")
TRAIN = ("train", "copy", *SMALL, "--steps", "60", "--device", "cpu")


def test_ctrl_c_stops_all_ranks_once_and_another_number_goes_on(tmp_path: Path) -> None:
    whole = [*COMMAND, *TRAIN, "--quiet", "--out", "whole"]
    subprocess.run(whole, cwd=tmp_path, check=True)
    process = started(2, *COMMAND, *TRAIN, "--out", "run", "--parallel", "data", folder=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    found = ended(process)
    assert found.returncode == 128 + signal.SIGINT
    assert found.stderr.count("finishing this step, then saving; once more stops at once") == 1
    step = len(rows_in(tmp_path / "run"))
    assert found.stderr.count(f"interrupted after step {step} of 60 of linear attention; to") == 1
    going_on = "mpiexec -n 2 minitransformer train copy --resume run --parallel data"
    assert found.stderr.splitlines()[-1] == f"  {going_on}"
    assert 5 <= step < 60

    words = ["train", "copy", "--resume", "run", "--parallel", "data"]
    found = ended(started(3, *COMMAND, *words, folder=tmp_path))
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("fresh sequences of length 3") == 1
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {
        ".json", ".jsonl", ".png", ".safetensors",
    }  # fmt: skip
    for row, expected in zip(rows_in(tmp_path / "run"), rows_in(tmp_path / "whole"), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "minitransformer train copy: error: 2 processes were started to train one run; share "
         "it among them by --parallel data, or start one"),
        pytest.param(("--parallel", "data", "--lenght", "3"),
                     "minitransformer: error: unrecognized arguments: --lenght 3",
                     marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_options_that_no_rank_understands_are_refused_once(
    words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    found = ended(started(2, *COMMAND, *TRAIN, "--out", "run", *words, folder=tmp_path), SECONDS)
    assert found.returncode == 2
    assert found.stderr == f"{sentence}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (1, ("--parallel", "data", "--lenght", "3")),
        pytest.param(0, ("--parallel", "no"), marks=pytest.mark.nightly),
        pytest.param(0, (), marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_cannot_even_begin_leaves_no_other_waiting(
    odd: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    lines = [[*COMMAND, *TRAIN, "--out", "run", "--parallel", "data"] for _ in range(2)]
    lines[odd] = [*COMMAND, *TRAIN, "--out", "run", *words]
    found = ended(started(1, *lines[0], ":", "-n", "1", *lines[1], folder=tmp_path), SECONDS)
    assert found.returncode != 0
    (line,) = ours(found)
    assert re.match(rf"minitransformer: rank {odd} of 2 \(.*\): .*; that ends the others", line)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_cut_is_refused_before_the_first_step(tmp_path: Path) -> None:
    words = "train", "graph", "--parallel", "sequence", "--device", "cpu", "--out", "run"
    found = ended(started(2, *COMMAND, *words, folder=tmp_path), SECONDS)
    about, line = found.stderr.splitlines()
    assert re.match(r"2 ranks by \S+ .*; arrays of a GPU go ", about)
    assert line.startswith("minitransformer train graph: error: a graph cannot be cut")


def test_processes_that_another_mpi_started_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delenv("PMI_SIZE", raising=False)
    words = [*COMMAND, *TRAIN, "--out", "run", "--parallel", "data"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    assert "error: 2 processes were started, but each finds itself alone" in found.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_files_is_refused_once(tmp_path: Path) -> None:
    words = "--out", str(tmp_path), "--parallel", "data"
    (tmp_path / "file").touch()
    found = ended(started(2, *COMMAND, *TRAIN, *words))
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.endswith(f"{tmp_path}: expected a new or an empty folder, it holds files")


def test_without_the_extra(tmp_path: Path) -> None:
    """Python finds no mpi4py where None stands for it."""
    code = (
        "import sys; sys.modules['mpi4py'] = None; from minitransformer.commands import main; "
        f"sys.exit(main({[*TRAIN, '--parallel', 'data', '--out', 'run']}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert re.search(r"parallel needs mpi4py and an MPI .*pip install", line)

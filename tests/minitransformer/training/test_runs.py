"""The folder of a run: created once, and never silently wrong."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from minitransformer.training.checkpoint import CheckpointError
from minitransformer.training.runs import Run

ROW = {"attention": "linear", "step": 1, "loss": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "deep" / "run")
    run.create({"length": 16})
    return run


def test_the_settings_come_back(run: Run) -> None:
    assert run.config() == {"length": 16}


def test_rows_are_appended(run: Run) -> None:
    for _ in range(2):
        with run.metrics() as metrics:
            metrics.append(ROW)
            metrics.sync()
    assert run.rows() == [ROW, ROW]


def test_a_torn_last_row_does_not_count(run: Run) -> None:
    run.metrics_path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW))
    assert run.rows() == [ROW]


DAMAGED = [
    "{", "[1]", '{"attention": "linear"}', "3", '{"attention": 3, "step": 1}',
    '{"attention": "linear", "step": 1, "loss": NaN}', '{"attention": "linear", "step": "x"}',
    '{"attention": "linear", "step": 1, "loss": [1]}', '{"attention": "linear", "step": 1e400}',
]  # fmt: skip


@pytest.mark.parametrize("row", DAMAGED)
def test_a_damaged_row(run: Run, row: str) -> None:
    run.metrics_path.write_text(f"{json.dumps(ROW)}\n{row}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: row 2 is damaged"):
        run.rows()


def test_a_folder_that_is_taken(run: Run) -> None:
    with pytest.raises(CheckpointError, match="run: expected a new or an empty folder, it holds"):
        run.create({})


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file/run: cannot be written: Not a directory"):
        Run(tmp_path / "file" / "run").create({})


def test_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no run here \(config\.json: No such file"):
        Run(tmp_path).config()


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", "\0", ""])
def test_damaged_settings(run: Run, text: str) -> None:
    run.config_path.write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: damaged"):
        run.config()


def test_a_full_disk(run: Run) -> None:
    run.metrics_path.symlink_to("/dev/full")
    with run.metrics() as metrics, pytest.raises(CheckpointError, match="No space left on device"):
        metrics.append(ROW)


def test_a_disk_that_fills_up_within_a_row(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with run.metrics() as metrics, monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(CheckpointError, match=os.strerror(errno.ENOSPC)):
            metrics.append(ROW)
    assert run.rows() == []


def test_metrics_that_cannot_be_opened(run: Run) -> None:
    run.metrics_path.mkdir()
    for use in (run.rows, lambda: run.metrics().__enter__()):
        attempt: Any = use
        with pytest.raises(
            CheckpointError, match=r"metrics\.jsonl: cannot be (read|written): Is a"
        ):
            attempt()

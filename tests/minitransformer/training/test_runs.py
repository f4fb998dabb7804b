"""The folder of a run: created once, and never silently wrong."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from minitransformer.training.checkpoint import CheckpointError, save
from minitransformer.training.runs import Run, Standing

ROW = {"attention": "linear", "step": 1, "loss": 0.5, "accuracy": 0.25, "seconds": 0.1}


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
    *(json.dumps({**ROW, key: value}) for key, value in (
        ("loss", math.nan), ("loss", [1]), ("step", "x"), ("step", 10**400), ("more", math.inf),
    )),
    *(json.dumps({key: ROW[key] for key in ROW if key != missing}) for missing in ROW),
]  # fmt: skip


@pytest.mark.parametrize("row", DAMAGED)
def test_a_damaged_row(run: Run, row: str) -> None:
    run.metrics_path.write_text(f"{json.dumps(ROW)}\n{row}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: row 2 is damaged"):
        run.rows()


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
        with pytest.raises(
            CheckpointError, match=r"metrics\.jsonl: cannot be (read|written): Is a"
        ):
            use()


# -- How far a model is ----------------------------------------------------------------------------


def with_rows(run: Run, steps: int, **more: Any) -> None:
    """Leave a checkpoint at half of the steps, and so many rows."""
    rows = [{**ROW, "step": 1 + i, "loss": 1.0 + i, "accuracy": i / steps} for i in range(steps)]
    rows[steps // 4] |= {"held_out_loss": 3.0, "held_out_accuracy": 0.75}
    run.replace_rows(rows)
    save(run.checkpoint_path("linear"), {}, {"step": steps // 2, **more})


def test_a_standing_is_of_the_last_steps_before_the_checkpoint(run: Run) -> None:
    with_rows(run, 160, parameters=7)  # of 80, the last ten count
    assert run.standing("linear") == pytest.approx((80, 7, 75.5, 74.5 / 160, 0.75))
    assert run.standing("linear").right == 0.75
    with_rows(run, 1600)  # of 800, twenty
    assert run.standing("linear").loss == 790.5


def test_a_standing_of_a_run_without_some_of_it(run: Run) -> None:
    assert run.standing("linear") == Standing(0, None, None, None, None)
    with_rows(run, 8)
    assert run.standing("linear") == Standing(4, None, 2.5, 1.5 / 8, 0.75)
    run.metrics_path.unlink()
    assert run.standing("linear") == Standing(4, None, None, None, None)
    assert run.begun(["softmax", "linear"]) == ["linear"]


def test_a_standing_of_a_run_whose_checkpoint_is_gone_or_forged(run: Run) -> None:
    for forged in ({"step": "4"}, {"parameters": "many"}):
        with_rows(run, 8, **forged)
        with pytest.raises(CheckpointError, match="its metadata make no sense"):
            run.standing("linear")
    run.checkpoint_path("linear").unlink()
    with pytest.raises(CheckpointError, match="there is no checkpoint here"):
        run.standing("linear")


def test_a_run_is_extended(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.create({"length": 16, "steps": 600})
    for steps in (700, 650):
        run.extend(steps)
        assert run.config() == {"length": 16, "steps": 700}

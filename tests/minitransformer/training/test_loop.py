"""The loop: it learns, obeys a signal at the end of a step, and continues bit for bit."""

import math
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer import functions as F
from minitransformer import nn, no_grad, optim
from minitransformer.settings import OPTIMIZERS
from minitransformer.tasks.copy import CopyTask
from minitransformer.training import loop as training
from minitransformer.training.checkpoint import CheckpointError, Tensors, load, save
from minitransformer.training.loop import (
    Interruption,
    Recipe,
    Trainer,
    TrainingError,
    train,
)
from minitransformer.training.runs import Run

from ..line_task import LineTask, run_in, without_clock

RECIPE = Recipe(batch_size=16, steps=30, lr=0.05, optimizer="adam", seed=3)


def trainer(recipe: Recipe = RECIPE, task: LineTask | None = None) -> Trainer:
    return Trainer(task or LineTask(), recipe, "linear")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path / "run")


def train_to_the_end(run: Run, recipe: Recipe = RECIPE) -> Trainer:
    found = trainer(recipe)
    train(found, run, Interruption())
    return found


def train_until(step: int, run: Run, recipe: Recipe = RECIPE) -> Trainer:
    """Train, and ask for an end while the trainer takes this step."""
    interruption = Interruption()

    class Stopping(LineTask):
        def draw(self, generator: np.random.Generator, count: int) -> Any:
            interruption.signal = signal.SIGINT if self.drawn + 1 >= step else None
            return super().draw(generator, count)

    interruption.signal = None if step else signal.SIGINT
    found = trainer(recipe, Stopping())
    train(found, run, interruption)
    return found


# They bring kernels of their own to compile, which other tests try, too.
SLOW = "favor", "dpfp", "cosformer", "fourier", "local"


@pytest.mark.parametrize(
    "attention",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in SLOW else [])
        for name in nn.attention_names()
    ],
)
def test_every_attention_trains_and_comes_back(attention: str, tmp_path: Path) -> None:
    task, recipe = CopyTask(length=4, layers=1, heads=2, head_dim=16), replace(RECIPE, lr=1e-2)
    one, other = (Trainer(task, recipe, attention) for _ in range(2))
    losses = [one.advance()["loss"] for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    one.save(tmp_path / "checkpoint.safetensors")
    other.restore(tmp_path / "checkpoint.safetensors")
    assert other.advance()["loss"] == one.advance()["loss"]


def test_a_row_for_each_step(run: Run) -> None:
    train_to_the_end(run)
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert rows[-1].keys() == {
        "attention", "step", "loss", "accuracy", "lr", "grad_norm", "seconds",
        "sequences_per_second",
    }  # fmt: skip
    assert all(row["attention"] == "linear" for row in rows)
    assert all(row["sequences_per_second"] > 0 for row in rows)
    assert max(row["lr"] for row in rows) <= RECIPE.lr
    assert rows[-1]["loss"] < rows[0]["loss"] / 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(step=st.integers(0, 30), late=st.integers(0, 5))
@settings(max_examples=4)
def test_a_resumed_run_repeats_the_whole_one(
    tmp_path_factory: pytest.TempPathFactory, optimizer: str, step: int, late: int
) -> None:
    recipe = Recipe(batch_size=16, steps=30, lr=0.05, optimizer=optimizer, seed=3)
    whole = run_in(tmp_path_factory.mktemp("runs") / "whole")
    end = train_to_the_end(whole, recipe).tensors()

    run = run_in(tmp_path_factory.mktemp("runs") / "parts")
    first = train_until(step, run, recipe)
    with (
        run.metrics() as metrics
    ):  # what a kill leaves: steps that are in no checkpoint, a torn row
        for _ in range(min(late, 30 - step)):
            metrics.append(first.advance())
        os.write(metrics._descriptor, b'{"attention": "lin')
    np.random.default_rng(0).random(99)
    found = train_to_the_end(run, recipe).tensors()

    assert without_clock(run.rows()) == without_clock(whole.rows())
    np.testing.assert_equal(found, end)


COPY = CopyTask(length=4, layers=1, heads=2)


def taken(steps: int, device: str, path: Path | None = None) -> Trainer:
    """A trainer after some steps, from a checkpoint if there is one."""
    found = Trainer(COPY, replace(RECIPE, batch_size=4), "linear", device)
    if path:
        found.restore(path)
    for _ in range(steps):
        found.advance()
    return found


def test_a_run_goes_on_where_it_began_and_elsewhere(device: str, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    half = taken(2, device)
    half.save(path)
    for steps, expected in ((0, half), (2, taken(4, device))):
        np.testing.assert_equal(taken(steps, device, path).tensors(), expected.tensors())
    np.testing.assert_equal(taken(0, "cpu", path).tensors(), half.tensors())


def test_a_step_never_waits_for_the_gpu(device: str) -> None:
    if device == "cpu":
        pytest.skip("there is no GPU to wait for")
    model = COPY.build("linear").to(device)
    optimizer = optim.Adam(model.parameters())
    batch = COPY.draw(np.random.default_rng(0), 4)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(batch.source, batch.decoder_input, batch.lengths, batch.lengths)
        F.cross_entropy(logits.permute(0, 2, 1), batch.source).backward()
        optimizer.step()
        with no_grad():
            state = model.init_state(batch.source, batch.lengths)
            model.step(batch.source[:, :1], state)

    step()
    with import_module("cupyx").allow_synchronize(False):  # CuPy raises, where it would wait
        step()


def test_a_kill_before_the_first_row_starts_anew(tmp_path: Path) -> None:
    killed, whole = run_in(tmp_path / "killed"), run_in(tmp_path / "whole")
    trainer().save(killed.checkpoint_path("linear"))
    for run in (killed, whole):
        train_to_the_end(run)
    assert without_clock(killed.rows()) == without_clock(whole.rows())


def test_a_checkpoint_every_few_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    with pytest.raises(TrainingError):
        train(trainer(task=LineTask(spoilt=8)), run, Interruption())
    assert load(run.checkpoint_path("linear")).metadata["step"] == 7


def test_a_loss_that_is_no_number(run: Run) -> None:
    expected = r"step 3: the loss is nan, and 0\.weight is the first parameter whose .*smaller --lr"
    with pytest.raises(TrainingError, match=expected):
        train(trainer(task=LineTask(spoilt=3)), run, Interruption())
    assert load(run.checkpoint_path("linear")).metadata["step"] == 0
    assert len(run.rows()) == 2


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({"2.weight": np.nan, "2.bias": np.inf}, "and 2.weight is the first parameter whose"),
        ({"0.bias": np.inf}, "and 0.bias is the first parameter whose gradient is not finite"),
        ({"no parameter": np.inf}, "the loss is inf, and each gradient is finite; the last"),
    ],
)
def test_the_first_gradient_that_is_not_finite(spoil: dict[str, float], expected: str) -> None:
    class Spoiling(LineTask):
        def loss(self, model: Any, batch: Any) -> Any:
            loss, accuracy = super().loss(model, batch)
            for name, parameter in model.named_parameters():
                loss = loss + (parameter * np.float32(spoil.get(name, 0))).sum() * 1
            return loss + spoil.get("no parameter", 0.0), accuracy

    with pytest.raises(TrainingError, match=re.escape(expected)):
        trainer(task=Spoiling()).advance()


def test_parameters_that_explode_never_reach_the_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate beyond float32 each step leaves infinities, and here each one wants to be saved."""
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    recipe = replace(RECIPE, optimizer="sgd", lr=1e41)
    with pytest.raises(TrainingError, match=r"step 1: model\.0\.weight is no longer finite; the l"):
        train(trainer(recipe), run, Interruption())
    trainer(recipe).restore(run.checkpoint_path("linear"))
    assert load(run.checkpoint_path("linear")).metadata["step"] == 0


def test_what_is_examined_is_a_column_twenty_times(run: Run) -> None:
    modes = []

    def examine(model: Any) -> dict[str, float]:
        modes.append(model.training)
        return {"held_out_loss": float(len(modes)), "held_out_accuracy": math.nan}

    trained = trainer(replace(RECIPE, steps=50))
    train(trained, run, Interruption(), examine=examine)
    examined = {row["step"]: row["held_out_loss"] for row in run.rows() if "held_out_loss" in row}
    assert examined == {step: step / 2 for step in range(2, 51, 2)}
    assert modes == [False] * 25
    assert trained.model.training
    assert not any("held_out_accuracy" in row for row in run.rows())  # rows hold numbers only


def test_quiet_is_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(trainer(), run_in(tmp_path / "run"), Interruption(), quiet=True)
    assert capfd.readouterr() == ("", "")
    train(trainer(), run_in(tmp_path / "other"), Interruption())
    assert "30/30" in capfd.readouterr().err


FORGED: dict[str, tuple[Callable[[Tensors, dict[str, Any]], Any], str]] = {
    "weights that are no numbers": (
        lambda tensors, _: tensors["model.0.weight"].fill(np.nan),
        r"model\.0\.weight holds numbers that are not finite; restore the file, or",
    ),
    "a step beyond the end": (
        lambda _, metadata: metadata.update(step=10**30),
        "was saved at step 1000000000000000000000000000000, expected one from 0 to the 30 of",
    ),
    "a step before the start": (lambda _, metadata: metadata.update(step=-1), "at step -1, exp"),
    "a step that is none": (lambda _, metadata: metadata.update(step="3"), "at step '3', expected"),
    "no step": (lambda _, metadata: metadata.pop("step"), "at step None, expected one from 0"),
    "no generators": (
        lambda _, metadata: metadata.pop("data_generator"), "no state of the generators"
    ),
    "another generator": (
        lambda _, metadata: metadata.update(data_generator={"bit_generator": "MT19937"}),
        "no state of the generators",
    ),
    "another shape": (
        lambda tensors, _: tensors.update({"model.0.weight": np.ones((1, 1), np.float32)}),
        r"the checkpoint of another model: model\.0\.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_checkpoint_is_one_sentence(forgery: str, run: Run) -> None:
    train_until(5, run)
    path = run.checkpoint_path("linear")
    tensors, metadata = load(path)
    forge, message = FORGED[forgery]
    forge(tensors, metadata)
    save(path, tensors, metadata)
    with pytest.raises(CheckpointError, match=message):
        train_to_the_end(run)


def test_a_run_has_one_writer(run: Run) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom minitransformer.training import Run\n"
        "with Run(Path(sys.argv[1])).held():\n    print('held', flush=True)\n    time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(run.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        who = f"process {other.pid} on {re.escape(platform.node())} is writing to this run"
        with pytest.raises(CheckpointError, match=who):
            train_to_the_end(run)
        other.kill()
    train_to_the_end(run)  # a kill lets go of it


def test_metrics_that_are_gone(run: Run) -> None:
    train_to_the_end(run)
    run.metrics_path.unlink()
    with pytest.raises(CheckpointError, match=r"holds 0 steps of linear .*expected the 30 of its"):
        train_to_the_end(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_acts(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.signal == number
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before
    assert "once more stops at once" in capfd.readouterr().err

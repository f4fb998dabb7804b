"""A run's folder: what was asked for, what happened at each step, and where the model got to.

    config.json                     the settings; later only the number of steps may change
    metrics.jsonl                   one row a step
    checkpoint-linear.safetensors   the trainer's state, for each attention
    loss.png, attention.png         drawn at the end

`CheckpointError` stands for everything that can be wrong with one of these files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import reason
from .checkpoint import CheckpointError, load_metadata, write_atomically

if sys.platform == "win32":
    import msvcrt

    def lock(file: IO[str]) -> bool:
        """Lock a file until it is closed; return whether nobody else has."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def lock(file: IO[str]) -> bool:
        """Lock a file until it is closed; return whether nobody else has."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
Row = dict[str, Any]
_FILES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"config\.json", "the settings"),
        (r"metrics\.jsonl", "one row a step"),
        (r"checkpoint-(\w+)\.safetensors", r"the trained model, \1 attention"),
        (r"loss\.png", "loss and accuracy against steps"),
        (r"attention\.png", "where the heads look"),
        (r"attention-(\w+)\.png", r"the same with \1 attention"),
    )
)
_MEASURED = "step", "loss", "accuracy", "seconds"


class Standing(NamedTuple):
    """How far a model of a run has come, by its checkpoint and the rows before that.

    Loss and accuracy are means over the last fortieth of its steps, and ten at least. What is not
    known is None.
    """

    step: int  # how many it has taken
    parameters: int | None  # how many numbers it learns
    loss: float | None
    accuracy: float | None
    held_out: float | None  # the accuracy on data that it never learned from, as last measured

    @property
    def right(self) -> float | None:
        """The share of right answers, on data held out if there are any."""
        return self.accuracy if self.held_out is None else self.held_out


class Run:
    """The files of one run.

    Args:
        folder: Where they are, or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_path = folder / "config.json"
        self.metrics_path = folder / "metrics.jsonl"
        self.loss_path = folder / "loss.png"

    def checkpoint_path(self, attention: str) -> Path:
        """Return where the trainer of one attention saves its state."""
        return self.folder / f"checkpoint-{attention}.safetensors"

    def attention_path(self, attention: str, first: bool) -> Path:
        """Return the heat map of one attention; the first that a run trains has the short name."""
        return self.folder / ("attention.png" if first else f"attention-{attention}.png")

    def contents(self) -> list[str]:
        """Return what the folder holds, a line for each file."""
        found = [
            (path.name, pattern.sub(text, path.name))
            for pattern, text in _FILES
            for path in sorted(self.folder.iterdir())
            if pattern.fullmatch(path.name)
        ]
        width = max(30, *(len(name) for name, _ in found))
        return [f"{self.folder}/", *(f"  {name:{width}}  {text}" for name, text in found)]

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the folder and write `config.json` into it.

        Raises:
            CheckpointError: The folder is not empty, or cannot be written.
        """
        with _one_sentence(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            occupied = any(self.folder.iterdir())
        if occupied:
            raise CheckpointError(
                f"{self.folder}: expected a new or an empty folder, it holds files"
            )
        _write_config(self.config_path, config)

    def config(self) -> dict[str, Any]:
        """Read `config.json`.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        try:
            config = json.loads(self.config_path.read_bytes())
            if not isinstance(config, dict):
                raise TypeError(f"expected an object of settings, got {config!r}")
            return config
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: there is no run here ({self.config_path.name}: {error.strerror})"
            ) from error
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{self.config_path}: damaged ({error}); restore the file, or start a new run"
            ) from error

    def extend(self, steps: int) -> None:
        """Make this the number of steps in `config.json`, if it has fewer; for who holds the run.

        Raises:
            CheckpointError: It cannot be read or written.
        """
        config = self.config()
        if steps > config.get("steps", steps):
            _write_config(self.config_path, {**config, "steps": steps})

    def digests(self, attention: str) -> dict[str, str]:
        """Return the start of the SHA-256 of what the training of a model reads, by the file.

        Raises:
            CheckpointError: A file cannot be read.
        """
        paths = self.config_path, self.metrics_path, self.checkpoint_path(attention)
        found = {}
        for path in paths:
            with _one_sentence(path, "read"):
                data = path.read_bytes() if path.exists() else None
            found[str(path)] = "missing" if data is None else hashlib.sha256(data).hexdigest()[:12]
        return found

    def begun(self, attentions: Iterable[str]) -> list[str]:
        """Return those of the models that have left a checkpoint, or lost it.

        Raises:
            CheckpointError: See `rows`.
        """
        seen = {row["attention"] for row in self.rows()}
        return [x for x in attentions if x in seen or self.checkpoint_path(x).exists()]

    def standing(self, attention: str) -> Standing:
        """Return how far a model has come.

        Raises:
            CheckpointError: Its checkpoint is missing or damaged, or see `rows`.
        """
        path = self.checkpoint_path(attention)
        rows = [row for row in self.rows() if row["attention"] == attention]
        if not rows and not path.exists():
            return Standing(0, None, None, None, None)
        about = load_metadata(path)
        step, parameters = about.get("step"), about.get("parameters")
        if type(step) is not int or type(parameters) not in (int, type(None)):
            raise CheckpointError(f"{path}: its metadata make no sense; train again")
        rows = [row for row in rows if row["step"] <= step]
        recent = rows[-max(10, len(rows) // 40) :]
        loss, accuracy = (
            sum(row[key] for row in recent) / len(recent) if recent else None
            for key in ("loss", "accuracy")
        )
        examined = [row["held_out_accuracy"] for row in rows if "held_out_accuracy" in row]
        return Standing(step, parameters, loss, accuracy, examined[-1] if examined else None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one who writes to this run. The system lets go of it when the process ends.

        Raises:
            CheckpointError: Another process is; the text says which, and on which machine.
        """
        path = self.folder / ".writer"
        while True:
            with _one_sentence(path):
                file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600), "r+")
            with file:
                if not lock(file):
                    holder = file.read().strip() or "another process"
                    raise CheckpointError(
                        f"{self.folder}: {holder} is writing to this run; wait for its end, or "
                        "stop it"
                    )
                if not _is(path, file):
                    continue  # who held it has just let go, and taken the name away
                file.truncate(0)  # of what a kill has left
                file.write(f"process {os.getpid()} on {platform.node()}")
                file.flush()
                try:
                    yield
                finally:
                    with suppress(OSError):  # where an open file keeps its name
                        path.unlink()
                return

    def rows(self) -> list[Row]:
        """Read the rows of `metrics.jsonl`; a last one that a kill has torn does not count.

        Raises:
            CheckpointError: The file cannot be read, or one of its rows is damaged.
        """
        if not self.metrics_path.exists():
            return []
        with _one_sentence(self.metrics_path, "read"):
            lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [self._parse(number, line) for number, line in enumerate(lines, start=1)]

    def seconds(self) -> dict[str, float]:
        """Return how long the steps of each attention took.

        Raises:
            CheckpointError: See `rows`.
        """
        seconds: dict[str, float] = {}
        for row in self.rows():
            seconds[row["attention"]] = seconds.get(row["attention"], 0.0) + row["seconds"]
        return seconds

    def replace_rows(self, rows: Iterable[Row]) -> None:
        """Make these the rows of `metrics.jsonl`.

        Raises:
            CheckpointError: The file cannot be written; it is as it was.
        """
        write_atomically(self.metrics_path, b"".join(map(_line, rows)))

    @contextmanager
    def metrics(self) -> Iterator[Metrics]:
        """Open `metrics.jsonl` to append rows to it.

        Raises:
            CheckpointError: The file cannot be opened.
        """
        with _one_sentence(self.metrics_path):
            descriptor = os.open(self.metrics_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            yield Metrics(self.metrics_path, descriptor)
        finally:
            os.close(descriptor)

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            row = dict(json.loads(line))
            numbers = [row[name] for name in _MEASURED]
            numbers += [value for value in row.values() if not isinstance(value, str)]
            if type(row["attention"]) is not str or not all(map(math.isfinite, numbers)):
                raise ValueError("not a finite number")
            return {**row, "step": int(row["step"])}
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise CheckpointError(
                f"{self.metrics_path}: row {number} is damaged; restore the file, or train again"
            ) from error


class Metrics:
    """Rows on their way to `metrics.jsonl`, each handed to the system at once."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def append(self, row: Row) -> None:
        """Write a row.

        Raises:
            CheckpointError: It cannot be written, not or not wholly.
        """
        line = _line(row)
        with _one_sentence(self.path):
            if os.write(self._descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Wait until every row is on the disk: a checkpoint must not outlive the rows before it.

        Raises:
            CheckpointError: They cannot be written.
        """
        with _one_sentence(self.path):
            os.fsync(self._descriptor)


def _is(path: Path, file: IO[str]) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


@contextmanager
def _one_sentence(path: Path, verb: str = "written") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be {verb}: {reason(error)}") from error


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_atomically(path, f"{json.dumps(config, indent=2)}\n".encode())


def _line(row: Row) -> bytes:
    return f"{json.dumps(row)}\n".encode()

"""Judges answers without trusting them: each runs in a process that never sees the truth.

The judge draws the cases from a seed that nobody knows, and sends *inputs* to a worker. The worker
(`worker.py`) runs the answer within limits of time, memory and files, kernels in checked mode, and
writes down what came out. The judge compares. So what an answer prints, patches or ends changes
nothing. This guards against accidents and cheap cheating, not against malice: the disk that the
user may read and write, the answer may, too. Who judges strangers puts a container around it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .answers import File
from .exercise import Case, Exercise, NotYet, exercises

ANSWER = "answer.py"


@dataclass(frozen=True)
class Limits:
    """What an answer may use.

    Attributes:
        wall: Seconds on the clock; then its processes are killed.
        cpu: Seconds of computing.
        memory: Bytes, beside what Python and the libraries take.
        file: Bytes of a file.
    """

    wall: float = 60
    cpu: int = 30
    memory: int = 1 << 30
    file: int = 64 << 20


@dataclass(frozen=True)
class Verdict:
    """What the judge found.

    Attributes:
        exercise: Its name.
        passed: Whether all cases came out right.
        points: What it counts; 0 unless it passed.
        possible: What it could count.
        message: How many cases are right, or the first that is not, in words.
        case: The name of that case; None if there is none.
        seconds: How long it took.
    """

    exercise: str
    passed: bool
    points: int
    possible: int
    message: str
    case: str | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def judge(path: Path, seed: int | None = None, limits: Limits = Limits()) -> Iterator[Verdict]:
    """Judge every exercise that a student's file has an answer to, or a blank for.

    Args:
        path: A script in the percent format, or a notebook.
        seed: Decides the cases; by default nobody knows it.
        limits: What each answer may use.

    Raises:
        UserError: The file cannot be read.
    """
    file = File(path)
    seed = secrets.randbits(32) if seed is None else seed
    for exercise in exercises():
        if file.defines(exercise.symbol):
            yield verdict(file, exercise, seed, limits)


def verdict(file: File, exercise: Exercise, seed: int, limits: Limits = Limits()) -> Verdict:
    """Judge one answer; `judge` says how."""
    began = time.monotonic()
    cases = exercise.drawn(seed)
    failed: Case | None = None
    try:
        answer = file.needed(exercise.symbol)
        for failed, got in _results(file, answer, exercise, cases, limits):
            exercise.compare(failed, got)
        passed, message, failed = True, f"{len(cases)} cases", None
    except SyntaxError as error:
        passed = False
        message = f"{file.where(error.lineno or 1)}: SyntaxError: {error.msg}"
    except _Failed as problem:
        failed = problem.case
        passed, message = False, f"{exercise.where(failed)}: {problem}" if failed else str(problem)
    except NotYet as problem:
        assert failed is not None
        passed, message = False, f"{exercise.where(failed)}: {problem}"
    points = exercise.points if passed else 0
    case = failed.name if failed else None
    took = time.monotonic() - began
    return Verdict(exercise.name, passed, points, exercise.points, message, case, took)


class _Failed(Exception):
    """The answer did not come to an end; in which case, if it was one."""

    def __init__(self, case: Case | None, message: str) -> None:
        super().__init__(message)
        self.case = case


def _results(
    file: File, answer: str, exercise: Exercise, cases: list[Case], limits: Limits
) -> Iterator[tuple[Case, tuple[Any, ...]]]:
    """What the answer makes of each case; raises where it makes nothing."""
    with tempfile.TemporaryDirectory(prefix="answer-", ignore_cleanup_errors=True) as home:
        Path(home, ANSWER).write_text(answer, encoding="utf-8")
        np.savez(Path(home, "cases.npz"), **_packed(cases))
        ended = _run(exercise, Path(home), limits)
        found = _read(Path(home, "results"))
    start = found.pop(-1, None)
    if start is not None:
        raise _Failed(None, _located(file, start["problem"]))
    for number, case in enumerate(cases):
        if number not in found:
            raise _Failed(case, ended)
        if problem := found[number]["problem"]:
            raise _Failed(case, _located(file, problem))
        got = found[number]["arrays"]
        if len(got) != len(exercise.outputs):
            raise _Failed(case, "it did not say what came out")
        yield case, got


def _packed(cases: Iterable[Case]) -> dict[str, Any]:
    """Inputs as the arrays of one file; a number is an array without axes."""
    return {
        f"{number}.{at}.{name}": np.asarray(value)
        for number, case in enumerate(cases)
        for at, (name, value) in enumerate(case.inputs.items())
    } | {"count": np.asarray(len(list(cases)))}


def _run(exercise: Exercise, home: Path, limits: Limits) -> str:
    """Let a worker try the answer in that folder; return what to say if a result is missing."""
    token = secrets.token_hex(16)
    environment = {
        "PATH": os.environ.get("PATH", ""), "HOME": str(home), "LANG": "C.UTF-8",
        "MINITRANSFORMER_CACHE_DIR": str(home / "cache"), "MINITRANSFORMER_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MINITRANSFORMER_ANSWER": token,
        **{k: os.environ[k] for k in ("SYSTEMROOT", "TEMP", "TMP") if k in os.environ},
    }  # fmt: skip
    given = json.dumps({"exercise": exercise.name, **asdict(limits)})
    worker = subprocess.Popen(
        [sys.executable, "-I", "-m", "minitransformer.course.worker", given],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        code = worker.wait(limits.wall)
        return f"the process ended early (exit {code}): too much memory or time, or a crash"
    except subprocess.TimeoutExpired:
        return f"it took longer than {limits.wall:g} s: a loop without an end?"
    finally:
        _end(worker, token)


def _end(worker: subprocess.Popen[bytes], token: str) -> None:
    """Kill the worker and whatever it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    mark = f"MINITRANSFORMER_ANSWER={token}".encode()
    for process in Path("/proc").glob("[0-9]*"):  # those that have left its group
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """What a worker wrote, case by case, up to where it makes no sense any more."""
    found: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, EOFError):
        data = io.BytesIO(path.read_bytes())
        while head := data.readline():
            said = json.loads(head)
            arrays = np.load(io.BytesIO(data.read(said["bytes"])), allow_pickle=False)
            ordered = tuple(arrays[str(at)] for at in range(len(arrays.files)))
            found.setdefault(int(said["case"]), {"problem": said["problem"], "arrays": ordered})
    return found


def _located(file: File, problem: str) -> str:
    """A message with the lines of the student's file in place of those of the copy that ran."""
    return re.sub(
        rf"[^\s'\"]*\b{re.escape(ANSWER)}:(\d+)", lambda m: file.where(int(m[1])), str(problem)
    )

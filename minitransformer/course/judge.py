"""Judges answers without trusting them: each runs in a process that never sees the truth.

The judge draws the cases from a seed that nobody knows, and sends *inputs* to a worker. The worker
(`worker.py`) runs the answer within limits of time, memory, files and processes, the answer's
kernels in checked mode, and writes down what came out. The judge compares. So what an answer
prints, patches or ends changes nothing.

This guards against accidents and cheap cheating, not against malice: the disk that the user may
read and write, the answer may, too. Who judges strangers puts a container around it, and judges as
another user than root, who alone may start further processes. Linux holds all the limits, macOS all
but the one of memory, Windows the clock alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from minitransformer_kernels.cpu import cache, num_threads
from minitransformer_kernels.microscope.units import plural

from .answers import File
from .exercise import Case, Exercise, NotYet, by_lesson
from .mistakes import compare
from .worker import DEFINED, GIVEN, LONGEST, RESULTS

AT_ONCE = 4  # answers, as each may take its share of memory
ERRORS = "errors"
START = "import sys; sys.path[:] = {}; from minitransformer.course.worker import main; main()"
QUIET, PAUSE = 3, 0.01  # looks that find nothing left behind, and seconds between them
SECONDS = 5  # to look, at most
MARK = "MINITRANSFORMER_ANSWER"  # the variable by which processes of a worker are known


@dataclass(frozen=True)
class Limits:
    """What an answer may use; it may start no processes or threads.

    Attributes:
        wall: Seconds on the clock; then its processes are killed.
        cpu: Seconds of computing, beside what it takes to begin.
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
        lesson: The number of the exercise's lesson.
        exercise: Its name.
        passed: Whether all cases came out right.
        points: What it counts; 0 unless it passed.
        possible: What it could count.
        message: How many cases are right, or the first that is not, in words.
        case: The name of that case; None if there is none.
        seconds: How long it took.
    """

    lesson: int
    exercise: str
    passed: bool
    points: int
    possible: int
    message: str
    case: str | None
    seconds: float


def judge(path: Path, seed: int | None = None, limits: Limits = Limits()) -> Iterator[Verdict]:
    """Judge the exercises of a student's file, several at once, and tell them in order.

    They are those that the file checks, `check("name", ...)`, or has a cell for; where there is
    neither, those whose answers it defines.

    Args:
        path: A script, in cells or not, or a notebook.
        seed: Decides the cases; by default nobody knows it.
        limits: What each answer may use.

    Raises:
        UserError: The file cannot be read, or is no notebook.
    """
    file = File(path)
    seed = new_seed() if seed is None else seed
    known = [(lesson, own) for lesson, theirs in by_lesson().items() for own in theirs]
    names = file.names()
    asked = [(lesson, own) for lesson, own in known if own.name in names] or [
        (lesson, own) for lesson, own in known if file.defines(own.symbol)
    ]
    with ThreadPoolExecutor(min(num_threads(), AT_ONCE)) as pool:
        try:
            yield from pool.map(lambda one: verdict(file, one[1], seed, limits, one[0]), asked)
        except BaseException:  # nobody waits any more
            for worker in tuple(_running):
                worker.kill()
            raise


def new_seed() -> int:
    """Return a seed that nobody knows."""
    return secrets.randbits(32)


def verdict(
    file: File, exercise: Exercise, seed: int, limits: Limits = Limits(), lesson: int = 0
) -> Verdict:
    """Judge one answer.

    Args:
        file: Holds it.
        exercise: Which.
        seed: Decides the cases.
        limits: What the answer may use.
        lesson: The exercise's.
    """
    began = time.monotonic()
    cases = exercise.drawn(seed)
    case, problem = _first_problem(file, exercise, cases, limits)
    passed = not problem
    where = f"{exercise.where(case)}: " if case else ""
    return Verdict(
        lesson, exercise.name, passed, exercise.points * passed, exercise.points,
        printable(where + problem) if problem else plural(len(cases), "case"),
        case.name if case else None, round(time.monotonic() - began, 2),
    )  # fmt: skip


def _first_problem(
    file: File, exercise: Exercise, cases: list[Case], limits: Limits
) -> tuple[Case | None, str]:
    """The first case that is not right, and why not; nothing if all are."""
    if file.is_blank(exercise.symbol):
        return None, "nothing is written yet: it is your turn"
    try:
        answer = file.needed(exercise.symbol)
    except NotYet as error:
        return None, str(error)
    given = {
        "exercise": exercise.name, "answer": answer, "limits": asdict(limits),
        "inputs": [case.inputs for case in cases],
    }  # fmt: skip
    found, ending = _run(pickle.dumps(given), limits)
    problem, _ = found.get(DEFINED, (ending, []))
    if problem:
        return None, problem
    for number, case in enumerate(cases):
        problem, got = found.get(number, (ending, []))
        problem = problem or _difference(exercise, case, got)
        if problem:
            return case, problem
    return None, ""


def _difference(exercise: Exercise, case: Case, got: list[np.ndarray]) -> str:
    if len(got) != len(exercise.outputs):
        return "it did not say what came out"
    try:
        with np.errstate(all="ignore"):
            compare(exercise, case, got)
    except NotYet as difference:
        return str(difference)
    return ""


Found = dict[int, tuple[str, list[np.ndarray]]]  # case: its problem, or what came out
_running: set[subprocess.Popen[bytes]] = set()


def _run(given: bytes, limits: Limits) -> tuple[Found, str]:
    """Let a worker try an answer; return what it found, and what to say of cases without a word."""
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="answer-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        (home / GIVEN).write_bytes(given)
        with (home / ERRORS).open("wb") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-I", "-c", START.format([path for path in sys.path if path])],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                cwd=home, env=_environment(home, token), start_new_session=True,
            )  # fmt: skip
        _running.add(worker)
        try:
            ending = _ending(worker.wait(limits.wall), limits)
        except subprocess.TimeoutExpired:
            ending = f"it took longer than {limits.wall:g} s: a loop without an end?"
        finally:
            _running.discard(worker)
            _end(worker, token)
        last_words = _beginning(home / ERRORS, limits).strip().rpartition(b"\n")[2]
        said = last_words.decode(errors="replace")
        return _read(_beginning(home / RESULTS, limits)), f"{ending}: {said}" if said else ending


def _environment(home: Path, token: str) -> dict[str, str]:
    """The variables of a worker: nothing of the user's but what Python needs.

    Answers share a folder of compiled kernels, which is none that the user's own programs run.
    """
    kept = "PATH", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH"
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HOME": str(home), "USERPROFILE": str(home), "LANG": "C.UTF-8", MARK: token,
        "MINITRANSFORMER_CACHE_DIR": str(cache.folder() / "answers"),
        "MINITRANSFORMER_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def _ending(code: int, limits: Limits) -> str:
    """What an exit code says of a process that has not tried all cases."""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
    if name == "SIGXCPU":
        return f"it took more than {limits.cpu} s of computing: a loop without an end?"
    return f"it crashed ({name})" if name else f"it ended Python (exit code {code})"


def _end(worker: subprocess.Popen[bytes], token: str) -> None:
    """Kill the worker and whatever it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    began, quiet = time.monotonic(), 0  # what has left its group may start more meanwhile
    while quiet < QUIET and time.monotonic() < began + SECONDS:
        quiet = 0 if _kill_marked(f"{MARK}={token}".encode()) else quiet + 1
        time.sleep(PAUSE)  # a process that becomes another program has no variables meanwhile


def _kill_marked(mark: bytes) -> bool:
    """Kill the processes that have that among their variables; return whether there were any."""
    found = False
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found = True
                os.kill(int(process.name), signal.SIGKILL)
    return found


def _beginning(path: Path, limits: Limits) -> bytes:
    """What a worker wrote to a file, as far as it may write."""
    if not path.is_file() or path.is_symlink():
        return b""
    with path.open("rb") as file:
        return file.read(limits.file)


def _read(results: bytes) -> Found:
    """The records of a worker, up to where they make no sense any more."""
    found: Found = {}
    file = io.BytesIO(results)
    with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        while line := file.readline():
            said = json.loads(line)
            arrays = [_array(file, *described) for described in said["arrays"]]
            found.setdefault(int(said["case"]), (str(said["problem"]), arrays))
    return found


def _array(file: io.BytesIO, dtype: str, shape: list[int]) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.hasobject:  # addresses, which NumPy would follow
        raise TypeError(dtype)
    return np.ndarray(shape, kind, file.read(math.prod(shape) * kind.itemsize))


def printable(text: str) -> str:
    """A text in a line that does nothing to a terminal, whoever wrote it."""
    words = " ".join(text[:LONGEST].split())
    line = re.sub(r"(\.ipynb, [^:]{1,120}):(\d+)", r"\1, line \2", words)
    return "".join(sign if sign.isprintable() else "?" for sign in line)

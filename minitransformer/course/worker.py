"""Runs one answer, alone, within limits; writes what comes out, and judges nothing.

The judge starts it in an empty folder, with the answer and the inputs of the cases. It never gets
the truth. Each result is a record: a line of JSON, and the elements of the arrays. Who reads that
runs nothing, and needs no more memory than the file has bytes.
"""

from __future__ import annotations

import json
import linecache
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minitransformer_kernels import checked

from .exercise import Case, Exercise, NotYet, find, in_words

GIVEN, RESULTS = "given", "results"  # files
DEFINED = -1  # takes a case's place where the answer's statements have run
LONGEST = 2000  # signs of a message


def main() -> None:
    """Try the answer; never returns: what it has started must not hold up the end."""
    given = pickle.loads(Path(GIVEN).read_bytes())
    results = Path(RESULTS).open("wb", buffering=0)  # noqa: SIM115 - the process ends with it
    _limit(**given["limits"])
    for case, problem, arrays in _tried(find(given["exercise"]), given["answer"], given["inputs"]):
        described = [(array.dtype.str, array.shape) for array in arrays]
        head = {"case": case, "problem": problem, "arrays": described}
        results.write(json.dumps(head).encode() + b"\n" + b"".join(a.tobytes() for a in arrays))
    os._exit(0)


def defined(answer: Iterable[tuple[str, str]], symbol: str) -> Any:
    """Run the statements that define an answer; return it.

    Args:
        answer: Places and texts, as `File.needed` has them. Errors name these places.
        symbol: What is defined.

    Raises:
        NotYet: It is not.
    """
    module = sys.modules["answer"] = ModuleType("answer")
    for place, text in answer:
        lines = text.splitlines(keepends=True)
        linecache.cache[place] = len(text), None, lines, place  # where kernels find their text
        exec(compile(text, place, "exec"), vars(module))  # annotations are text there, as here
    if not hasattr(module, symbol):
        raise NotYet(f"there is no {symbol}")
    return getattr(module, symbol)


def _tried(
    exercise: Exercise, answer: list[tuple[str, str]], inputs: list[dict[str, Any]]
) -> Iterator[tuple[int, str, tuple[np.ndarray, ...]]]:
    """What comes of each case: a problem, after which there are no more, or arrays."""
    case = DEFINED
    try:
        tried = defined(answer, exercise.symbol)
        yield case, "", ()
        for case, given in enumerate(inputs):
            with checked(tested=False):
                got = exercise.tried(tried, Case("", given, ""))
            if any(array.dtype.hasobject for array in got):
                raise NotYet("something other than numbers is returned")
            yield case, "", got
    except BaseException as error:
        yield case, _told(error, {place for place, _ in answer})[:LONGEST], ()


def _limit(wall: float, memory: int, cpu: int, file: int) -> None:
    """Set what the process may use, where the system can."""
    try:
        import resource
    except ImportError:  # Windows: only the clock, which the judge holds
        return
    signal.setitimer(signal.ITIMER_REAL, wall + 1)  # a judge who was killed holds no clock

    def lower(what: int, soft: int, hard: int) -> None:
        most = resource.getrlimit(what)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(what, (soft, hard))

    pages = Path("/proc/self/statm")
    if pages.exists():  # macOS has none, and does not hold a process to this limit either
        memory += int(pages.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        lower(resource.RLIMIT_AS, memory, memory)
    cpu += int(time.process_time()) + 1
    lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    lower(resource.RLIMIT_FSIZE, file, file)
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        lower(what, 0, 0)


def _told(error: BaseException, places: set[str]) -> str:
    """An error in words, with the last line of the answer that it came by."""
    if isinstance(error, NotYet):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}:{f.lineno}: " for f in frames if f.filename in places]
    message = in_words(error)
    is_placed = any(f"{place}:" in message for place in places)
    return message if is_placed or not lines else lines[-1] + message

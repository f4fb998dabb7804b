"""Runs one answer, alone, within limits; writes what comes out, and judges nothing.

The judge starts it in a folder of its own, which holds the answer and the inputs of the cases.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer_kernels import checked

from .exercise import Case, NotYet, find, in_words
from .judge import ANSWER


def main() -> None:
    """Try the answer; never returns."""
    given = json.loads(sys.argv[1])
    exercise = find(given["exercise"])
    cases = _cases(Path("cases.npz"))
    results = Path("results").open("wb", buffering=0)  # noqa: SIM115 - the process ends with it
    _limit(given)

    def say(case: int, problem: str, arrays: tuple[Any, ...] = ()) -> None:
        body = io.BytesIO()
        np.savez(body, **{str(at): array for at, array in enumerate(arrays)})
        head = {"case": case, "problem": problem, "bytes": len(body.getvalue())}
        results.write(json.dumps(head).encode() + b"\n" + body.getvalue())

    try:
        names = {"__name__": "answer"}
        exec(
            compile(Path(ANSWER).read_text(encoding="utf-8"), str(Path(ANSWER).resolve()), "exec"),
            names,
        )
        if exercise.symbol not in names:
            raise NotYet(f"there is no {exercise.symbol}")
        answer = names[exercise.symbol]
    except BaseException as error:
        say(-1, _told(error))
        os._exit(0)
    for number, case in enumerate(cases):
        try:
            with checked():
                got = exercise.tried(answer, case)
            if any(array.dtype.kind == "O" for array in got):
                raise NotYet("something other than numbers is returned")
            say(number, "", got)
        except BaseException as error:
            say(number, _told(error))
            break
    os._exit(0)


def _cases(path: Path) -> list[Case]:
    with np.load(path, allow_pickle=False) as file:
        cases = [Case("", {}, "") for _ in range(int(file["count"]))]
        for key in file.files:
            if key != "count":
                number, _, name = key.split(".", 2)
                value = file[key]
                cases[int(number)].inputs[name] = value if value.shape else value[()]
    return cases


def _limit(given: dict[str, Any]) -> None:
    """Set what the process may use, where the system can."""
    try:
        import resource
    except ImportError:  # Windows: only the clock, which the judge holds
        return
    used = 0
    if (pages := Path("/proc/self/statm")).exists():
        used = int(pages.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + given["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (given["file"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (given["cpu"], given["cpu"] + 1))


def _told(error: BaseException) -> str:
    """An error in words, with the last line of the answer that it came by."""
    if isinstance(error, NotYet):
        return str(error)
    message = in_words(error)
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(ANSWER)
    ]
    if f"{ANSWER}:" in message or not lines:
        return message
    return f"{ANSWER}:{lines[-1]}: {message}"


if __name__ == "__main__":
    main()

"""The time from the command `minitransformer train copy` to the first step.

A first start compiles the kernels; a second one finds them in the cache. Both start in an empty
folder, the first one with an empty cache too. The time ends with the first row of `metrics.jsonl`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import harness

COMMAND = ["-m", "minitransformer", "train", "copy"]
SECOND_STARTS = 5


def rows() -> Iterator[harness.Row]:
    """Yield a row for the first start, and one for those after it."""
    with tempfile.TemporaryDirectory() as cache:
        yield {"start": "first, compiling", "seconds": first_step(cache), "starts": 1}
        seconds = sorted(first_step(cache) for _ in range(SECOND_STARTS))
        middle = seconds[SECOND_STARTS // 2]
        yield {"start": "later, from the cache", "seconds": middle, "starts": SECOND_STARTS}


def first_step(cache: str) -> float:
    """Return the seconds that a start takes to its first step."""
    environment = os.environ | {"MINITRANSFORMER_CACHE_DIR": cache}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *COMMAND], cwd=folder, env=environment, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and not has_row(Path(folder)):
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            process.kill()
    return seconds


def has_row(folder: Path) -> bool:
    """Whether a run below the folder has taken a step."""
    return any(b"\n" in path.read_bytes() for path in folder.glob("runs/*/metrics.jsonl"))


if __name__ == "__main__":
    harness.main("start", rows)

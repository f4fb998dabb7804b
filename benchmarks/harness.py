"""Timing that compares: whoever is compared takes turns in one run, on equally many threads.

Whatever else the machine does then, it does to all of them. What they return is checked against
float64 before any clock starts.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.machine import machine

from . import report

Row = dict[str, Any]
Contestants = Mapping[str, Callable[[], Any]]

ROOT = Path(__file__).parent.parent
README, RESULTS = ROOT / "README.md", ROOT / "results" / "cpu"
OURS = "minitransformer"
PACKAGES = "numpy", "numba", "llvmlite", "torch"
ROUNDS = 9
# Idle threads of a library may spin for a while after its turn; the next one's starts after that.
_PAUSE = 0.02


def race(case: str, contestants: Contestants, rounds: int = ROUNDS) -> Iterator[Row]:
    """Time the contestants in turns, after two turns each of warming up.

    Args:
        case: What they do.
        contestants: What to call, by name; `OURS` is the one that others are measured against.
        rounds: Turns that count.

    Yields:
        A row for each: the median, the quartiles, and our median over its own.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names * 2:
        contestants[name]()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(_PAUSE)
            seconds[name].append(elapsed(contestants[name]))
    ours = statistics.median(seconds[OURS])
    for name in names:
        yield {
            "case": case,
            "contestant": name,
            **summary(seconds[name]),
            "ours_over_this": ours / statistics.median(seconds[name]),
        }


def elapsed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def summary(seconds: list[float]) -> Row:
    """Return the median and the quartiles of repeated times, in milliseconds."""
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive")
    low, middle, high = (1e3 * quartile for quartile in quartiles)
    return {"median_ms": middle, "quartiles_ms": [low, high], "rounds": len(seconds)}


def error(got: Any, truth: Any, allowed: float = 1e-4) -> float:
    """Return the error's Euclidean norm, relative to the truth's; one wrong row is too much.

    Raises:
        ArithmeticError: It is more than is allowed: there is nothing to compare then.
    """
    got, truth = np.asarray(got, np.float64), np.asarray(truth, np.float64)
    relative = float(np.linalg.norm(got - truth) / np.linalg.norm(truth))
    if not relative <= allowed:
        raise ArithmeticError(f"expected a relative error of at most {allowed}, got {relative}")
    return relative


def record(name: str, rows: Iterable[Row]) -> None:
    """Print rows as they come, write them to `results/cpu`, and renew what is made of them.

    Args:
        name: The module in this folder that made them.
        rows: The rows.
    """
    lines: list[Row] = [{"command": f"python -m benchmarks.{name}", "machine": machine(PACKAGES)}]
    for row in rows:
        print(json.dumps(row, default=float), flush=True)
        lines.append(row)
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line, default=float)}\n" for line in lines)
    (RESULTS / f"{name}.jsonl").write_text(text)
    report.write(RESULTS)
    README.write_text(report.headline(README.read_text(), RESULTS))


def main(name: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Run one benchmark as a program."""
    try:
        record(name, rows())
    except ArithmeticError as complaint:
        sys.exit(f"benchmarks.{name}: {complaint}")

"""Timing that compares: whoever is compared takes turns in one run, on equally many threads.

Whatever else the machine does then, it does to all of them. What they return is checked against
float64 before any clock starts.
"""

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from minitransformer.machine import machine, processor

from . import report

Row = dict[str, Any]
Contestants = Mapping[str, Callable[[], Any]]

ROOT = Path(__file__).parent.parent
README, RESULTS = ROOT / "README.md", ROOT / "results" / "cpu"
MEASURED = "kernels", "minitransformer"
OURS = "minitransformer"
PACKAGES = "numpy", "numba", "llvmlite", "torch"
COMPILED = "PyTorch compiled"
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


def checked_race(
    case: str, contestants: Contestants, error: Callable[[Any], float]
) -> Iterator[Row]:
    """Yield the rows of a race, each with the error of what the contestant returns."""
    errors = {name: error(run()) for name, run in contestants.items()}
    for row in race(case, contestants):
        yield row | {"error": errors[row["contestant"]]}


def elapsed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def printed(name: str, *arguments: str, **environment: str) -> str:
    """Return what a benchmark prints that is started with arguments, in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    variables = os.environ | environment
    ran = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return ran.stdout


def summary(seconds: list[float]) -> Row:
    """Return the median and the quartiles of repeated times, in milliseconds."""
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive")
    low, middle, high = (1e3 * quartile for quartile in quartiles)
    return {"median_ms": middle, "quartiles_ms": [low, high], "rounds": len(seconds)}


def first_turns(contestants: Contestants, error: Callable[[Any], float]) -> dict[str, Row]:
    """Return each one's error, and the seconds of its first call where PyTorch compiles in it."""
    found: dict[str, Row] = {}
    for name, run in contestants.items():
        start = time.perf_counter()
        output = run()
        seconds = time.perf_counter() - start
        found[name] = {
            "error": error(output),
            "compile_s": seconds if name.startswith(COMPILED) else None,
        }
    return found


def our_passes(attend: Callable[..., Any], inputs: list[Any], grad: Any) -> list[Any]:
    """Return the output and the gradients, given the output's; as `peers.their_passes`."""
    for tensor in inputs:
        tensor.grad = None
    output = attend(*inputs)
    output.backward(grad)
    return [output.numpy(), *(np.asarray(tensor.grad) for tensor in inputs)]


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
    """Print rows as they come, put them into this processor's file, and renew what is made of it.

    Args:
        name: The module in this folder that made them.
        rows: The rows.
    """
    command = f"python -m benchmarks.{name}"
    lines: list[Row] = [{"command": command, "code": code(), "machine": about()}]
    for row in rows:
        print(json.dumps(row, default=float), flush=True)
        lines.append(row)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = own_file(".jsonl")
    records = (report.records(path) if path.exists() else {}) | {name: lines}
    text = (json.dumps(line, default=float) for name in sorted(records) for line in records[name])
    path.write_text("".join(f"{line}\n" for line in text))
    renew()
    print(untried(name), file=sys.stderr)


def about() -> dict[str, Any]:
    """Return what ran: the machine, and which kernels BLAS takes for its processor."""
    libraries = [x for x in threadpool_info() if x["user_api"] == "blas"]
    chosen = {f"{x['internal_api']} {x.get('architecture', '')}" for x in libraries}
    return machine(PACKAGES) | {"blas": ", ".join(sorted(chosen)) or "unknown"}


def renew() -> None:
    """Write again what is made of the records: the pages beside them, and README's table."""
    report.write(RESULTS)
    README.write_text(report.headline(README.read_text(), RESULTS))


def own_file(suffix: str) -> Path:
    """Return where this processor's results are kept."""
    words = re.findall(r"\w+", re.sub(r"\(\w+\)|\bProcessor\b", "", processor()))
    return RESULTS / f"{'_'.join(words)}{suffix}"


def code() -> str:
    """Return a digest of what is measured: all modules of the kernels and of the engine."""
    digest = hashlib.sha256()
    for path in sorted(path for part in MEASURED for path in (ROOT / part).rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def untried(name: str) -> str:
    """Return a sentence: on which processors the code as it is has not run a benchmark."""
    own = code()
    missing = [
        processor
        for processor, records in report.processors(RESULTS).items()
        if name not in records or records[name][0].get("code") != own
    ]
    where = f"not tried on {', '.join(missing)}" if missing else "tried on every processor met"
    return f"benchmarks.{name}: this code ({own}) was {where}"


def main(name: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Run one benchmark as a program; it takes no arguments, but says what it does."""
    about = sys.modules["__main__"].__doc__
    described = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        f"python -m benchmarks.{name}", description=about, formatter_class=described
    ).parse_args()
    try:
        record(name, rows())
    except ArithmeticError as complaint:
        sys.exit(f"benchmarks.{name}: {complaint}")

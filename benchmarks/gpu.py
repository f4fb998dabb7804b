"""Everything on a GPU, in one command: the machine, every attention, one more token, whole models.

    python -m benchmarks.gpu                       # all sections, in under 8 minutes
    python -m benchmarks.gpu --only linear steps   # some of them
    python -m benchmarks.gpu --rehearse            # small and quick, on a CPU too; records nothing

It needs `pip install "minitransformer[cuda13,bench]"` (or cuda12), a PyTorch with CUDA, Triton, and
to compare with flash-linear-attention `pip install fla-core`; who is missing gets a row that says
so. Rows are written to `results/gpu` as they come, and the page there is made of them.

Each section is a process of its own. All of them first compile what they need, at the same time, on
small arrays; then one after the other is measured, alone on the GPU, the most important first. What
a section leaves of its time is for those after it; what does not fit is recorded as not run, and so
is what a crash or a timeout cuts off.

Compiling is most of it: a kernel of ours takes a second, PyTorch's compiler ten for each shape, and
fla-core tunes its kernels among some fifty versions. One section takes two minutes for that, and so
do all of them on 16 cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from minitransformer.device import cuda_problem

from . import harness, report
from .on_gpu import clock, machine, page

START = time.monotonic()
RESULTS = harness.ROOT / "results" / "gpu"
SECONDS = 450.0
COMPILING = 0.35  # of all the time, in which sections may start to compile something
PATIENCE = 30.0  # seconds that a section may take beyond its share, for the race that it is in
OVERTIME = 15.0  # seconds that all of them may take beyond the time
STARTING = 60.0  # seconds that a process may take to start, in a rehearsal
NOT_READY = "not run: its process ended early, or was still compiling"


class Section(NamedTuple):
    """A part of the record.

    Attributes:
        title: Of its part of the page.
        module: In `on_gpu`, which yields its rows.
        share: Of the time.
        options: Further arguments of `rows`.
    """

    title: str
    module: str
    share: float
    options: Mapping[str, Any] = MappingProxyType({})

    def rows(self, device: clock.Device, size: str) -> Iterator[harness.Row]:
        """Yield its rows."""
        module = import_module(f".on_gpu.{self.module}", __package__)
        return module.rows(device, size, **self.options)


# The variants of attention that are a section together, and their share of the time.
ATTENTION: dict[str, tuple[float, tuple[str, ...]]] = {
    "linear": (40, ("causal linear attention",)),
    "softmax": (40, ("causal softmax attention",)),
    "delta": (15, ("delta rule",)),
    "relative": (15, ("Shaw's relative positions",)),
    "fourier": (15, ("Fourier positions",)),
    "both_ways": (8, ("linear attention",)),
    "local": (10, ("local attention",)),
    "features": (15, ("FAVOR+", "DPFP", "cosFormer")),
}


def sections() -> dict[str, Section]:
    """Return all sections by name, the most important first."""
    first, *rest = (
        {
            name if width == 64 else f"{name}_{width}": Section(
                f"E = {width}: {', '.join(variants)}",
                "attention",
                share,
                {"names": variants, "widths": (width,)},
            )
            for name, (share, variants) in ATTENTION.items()
        }
        for width in (64, 128)
    )
    asked_first = {name: first.pop(name) for name in ("linear", "softmax")}
    return {
        "machine": Section("The GPU", "machine", 8),
        **asked_first,
        "steps": Section("One more token", "steps", 25),
        "models": Section("Whole models", "models", 80),
        **first,
        "launches": Section("Launches", "launches", 8),
        **{name: section for others in rest for name, section in others.items()},
    }


SECTIONS = sections()


class Worker:
    """A section's process, and the line to it.

    Args:
        name: Of the section.
        device: "cuda" or "cpu".
        size: "full" or "rehearsal".
        compiling: Seconds in which it may start to compile, before a full size.
    """

    def __init__(self, name: str, device: str, size: str, compiling: float) -> None:
        context = get_context("spawn")
        self.line, far = context.Pipe()
        asked = name, device, size, compiling, far
        self.process = context.Process(target=work, args=asked, daemon=True)
        self.process.start()
        far.close()

    def about(self, patience: float) -> harness.Row | None:
        """Return what it measures on; None if it does not get ready in so many seconds."""
        with suppress(EOFError):
            if self.line.poll(patience):
                return self.line.recv()
        self.process.kill()
        return None

    def rows(self, seconds: float, patience: float) -> Iterator[harness.Row]:
        """Have it measure; yield its rows, and why it ends early if it does.

        Args:
            seconds: In which it may start races.
            patience: How many seconds later it has to be done.
        """
        try:
            self.line.send(seconds)
            end = time.monotonic() + seconds + patience
            while self.line.poll(max(0, end - time.monotonic())):
                row = self.line.recv()
                if row is None:
                    return
                yield row
            yield stopped(f"its time was up: {seconds:.0f} s, and {patience:.0f} s more")
        except (EOFError, ConnectionError):
            self.process.join(5)
            yield stopped(f"the process ended early, with exit code {self.process.exitcode}")
        finally:
            self.process.kill()


def stopped(why: str) -> harness.Row:
    """Return the row that ends a section before its time."""
    return {"incomplete": why}


def work(name: str, where: str, size: str, compiling: float, line: connection.Connection) -> None:
    """Be a section's process: compile, wait for the turn, and measure."""
    section = SECTIONS[name]
    device = clock.on(where, compiling, hasty=True)
    if size == "full" and section.module != "machine":
        try:
            for _ in section.rows(device, "rehearsal"):
                pass
        except Exception as problem:  # those whom it concerns will meet it again
            print(f"{name}, compiling: {clock.reason(problem)}", file=sys.stderr)
        device.free()
    gc.freeze()  # what is imported by now is not looked through again between two contestants
    line.send(machine.describe(device))
    device = clock.on(where, line.recv(), hasty=size != "full")
    try:
        for row in section.rows(device, size):
            line.send(row)
    except Exception as problem:
        line.send(stopped(clock.reason(problem)))
    line.send(None)


def measure(names: Sequence[str], device: str, size: str, seconds: float, folder: Path) -> None:
    """Run sections, and write what they yield and the page.

    Args:
        names: Of the sections.
        device: "cuda" or "cpu".
        size: "full" or "rehearsal".
        seconds: For all of them, since this program started.
        folder: Where to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # in each of a dozen processes
    compiling = seconds * COMPILING
    begin = partial(Worker, device=device, size=size, compiling=compiling)
    workers = {name: begin(name) for name in names if size == "full"}
    if workers:
        ready(list(workers.values()), START + compiling + PATIENCE)
        print(f"{time.monotonic() - START:5.0f} s  all that could be is compiled", flush=True)
    for place, name in enumerate(names):
        overdue = time.monotonic() - START - seconds
        left = max(0.0, -overdue)
        of_these = sum(SECTIONS[other].share for other in names[place:])
        mine = left * SECTIONS[name].share / of_these
        patience = max(1.0, min(PATIENCE, OVERTIME - overdue - mine))
        worker = workers.get(name) or begin(name)
        about = worker.about(mine + (0 if name in workers else STARTING))
        rows = worker.rows(mine, patience) if about else iter([stopped(NOT_READY)])
        record(name, about or {}, rows, folder)
        page.write(folder, SECTIONS)


def ready(workers: list[Worker], deadline: float) -> None:
    """Wait until all are ready, or have died, or time is up."""
    waiting: list[Any] = [worker.line for worker in workers]
    while waiting and (left := deadline - time.monotonic()) > 0:
        for line in connection.wait(waiting, left):
            waiting.remove(line)


def record(name: str, about: harness.Row, rows: Iterator[harness.Row], folder: Path) -> None:
    """Write rows as they come, below a line on what they are, and print what they say."""
    with (folder / f"{name}.jsonl").open("w") as file:
        first = {"command": "python -m benchmarks.gpu", "machine": about}
        print(json.dumps(first), file=file, flush=True)
        for row in rows:
            print(json.dumps(row, default=float), file=file, flush=True)
            print(f"{time.monotonic() - START:5.0f} s  {name}: {spoken(row)}", flush=True)


def spoken(row: harness.Row) -> str:
    """Return the numbers and words of a row that a reader looks for first, on one line."""
    wanted = "case", "call", "what", "contestant", "precision", "median_ms", "rate", "unit"
    shown = {key: row[key] for key in wanted if row.get(key) is not None}
    ratio = row.get("ours_over_this")
    if ratio is not None and row.get("contestant") != harness.OURS:
        shown["ratio"] = f"ours takes {ratio:.3g} of it"
    why = row.get("note") or row.get("incomplete")
    return ", ".join([*map(report.cell, shown.values()), *([why] if why else [])])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME",
        help=f"sections, of {', '.join(SECTIONS)}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time for all of it (%(default)s)"
    )
    parser.add_argument("--rehearse", action="store_true", help="the same, small, to try it out")
    parser.add_argument("--out", type=Path, help="where to write; results/gpu, if not to rehearse")
    asked = parser.parse_args(arguments)
    names = [name for name in SECTIONS if name in asked.only]
    device = "cpu" if asked.rehearse and cuda_problem() else "cuda"
    try:
        clock.on(device)
    except RuntimeError as problem:
        sys.exit(str(problem))
    folder = asked.out or (Path(tempfile.mkdtemp()) if asked.rehearse else RESULTS)
    measure(names, device, "rehearsal" if asked.rehearse else "full", asked.seconds, folder)
    print(f"{page.headline(folder)}\nWritten to {folder}, with README.md, the page of it all.")


if __name__ == "__main__":
    main()

"""Beyond one machine: the time of a step, and how much of it is spent in MPI.

Ranks of one thread each share the cores of this machine, so that more ranks than cores say nothing.

    strong scaling    the same work on P ranks: it takes 1 / P of the time, at best
    weak scaling      P times the work on P ranks: it takes the same time, at best
"""

from __future__ import annotations

from collections.abc import Iterator

from .experiment import Case, Experiment, Report, Row, table
from .shared.on_ranks import start

RANKS = (1, 2)
LENGTH = {"smoke": 2**8, "default": 2**16}
BATCH = {"smoke": 4, "default": 64}
REPEATS = {"smoke": 3, "default": 15}
STRONG, WEAK = "strong", "weak"


def cases(scale: str) -> list[Case]:
    """Return the time of attention and of a step, both ways, on one rank and on two."""
    at = "smoke" if scale == "smoke" else "default"
    common = {"what": "time", "repeats": REPEATS[at]}
    works = (
        ("linear", "length", LENGTH[at]),
        ("delta", "length", LENGTH[at]),
        ("softmax", "length", LENGTH[at] // 16),
        ("train copy", "batch", BATCH[at]),
    )
    return [
        {**common, "of": of, "way": way, "ranks": n, size: least * (n if way == WEAK else 1)}
        for of, size, least in works[: 1 if scale == "smoke" else None]
        for way in (STRONG, WEAK)
        for n in RANKS
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield what the ranks of a case took."""
    yield start(case)


def report(rows: list[Row]) -> Report:
    """Return times, and what two ranks gain."""
    return Report(
        f"""
Milliseconds, the median of {rows[0]["repeats"]}, of the slowest of the ranks; each has one thread.
Attention is causal, forward and backward, on slices; `train copy` is a step by `--parallel data`.
*Efficiency* is that of {max(RANKS)} ranks: 100% is half of the time of one (strong), or the same
(weak). *In MPI* is the share of that rank's time in which it sent, or waited for others.

{table(["of", "scaling", "size on 1 rank", *(f"ms, P = {n}" for n in RANKS), "efficiency",
        "in MPI"], _lines(rows))}

Where there is a state, a rank runs its keys twice: to the state that they make, and again from the
one that the others made; delta's first run also multiplies matrices. That is work which one rank
does not have, and no waiting. Softmax's causal ring is uneven: of two ranks the last has 3/4 of the
work, so that at best 67% (strong) or, as work grows with the square of the length, 33% (weak) are
left.
""",
        {},
    )  # fmt: skip


def _lines(rows: list[Row]) -> Iterator[list[object]]:
    for of, way in dict.fromkeys((row["of"], row["way"]) for row in rows):
        one, *_, last = (r for r in rows if (r["of"], r["way"]) == (of, way))
        gained = one["seconds"] / last["seconds"] / (last["ranks"] if way == STRONG else 1)
        size = f"L = {one['length']:,}" if "length" in one else f"{one['batch']} sequences"
        times = [f"{1e3 * row['seconds']:,.3g}" for row in (one, last)]
        yield [of, way, size, *times, f"{gained:.0%}", f"{last['in MPI']:.0%}"]


EXPERIMENT = Experiment(
    "scale_times",
    "Beyond one machine: strong and weak scaling, and the share of MPI",
    "Ranks on the cores of one machine, as far as these say anything.",
    cases,
    run,
    report,
)

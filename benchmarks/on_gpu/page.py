"""The page of what was measured on a GPU: what it shows first, the floors, and every table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol

from minitransformer_kernels.gpu import bounds

from .. import harness, report
from . import attention, floors, machine
from .clock import NOT_RUN, Row

HEADER = """# Measured on a GPU

Written by `python -m benchmarks.gpu` from the rows beside this page. Contestants of a case take
turns, after what they return was checked against float64; one that fails, or is missing, has a row
that says so. A time is the median of its turns, between its quartiles, of a call among several, by
the device's own clock; *host ms* is how long Python was busy with a call, and *peak MB* what it
held at most beside its inputs. *Ours over this* below 1: ours is faster. What each kernel takes of
a GPU, such as registers, is in [kernels.tsv](kernels.tsv), which compilers tell.
"""
NOTHING = "Nothing is recorded yet: no run on a GPU has been added.\n"
FLOORS = """
The floor is the larger of two times: the fewest bytes over the bandwidth of a copy, and the
operations of the formulas over the rate of a float32 product, both as measured above. *Distance* is
the measured time over it.
"""
BOUNDS = """
How long the launches of forward and backward take at least on this GPU, all together, by
[bounds.tsv](bounds.tsv): what they execute, over what its data sheet says of its busiest unit.
Latencies are not in it. Of causal softmax attention it is half of what all pairs take.
"""
# Cases whose launches are those of a host in the table of bounds, and the share of its pairs.
HOSTS = {
    ("causal softmax attention", harness.OURS): ("softmax", 0.5),
    ("linear attention", harness.OURS): ("linear", 1.0),
    ("causal linear attention", harness.OURS): ("chunked", 1.0),
    ("causal linear attention", attention.RECURRENT): ("recurrent", 1.0),
    ("delta rule", attention.RECURRENT): ("delta", 1.0),
    ("Shaw's relative positions", attention.RECURRENT): ("relative", 1.0),
}
UNMEASURED = NOT_RUN, attention.TOO_LONG
FARTHEST = 20  # that a terminal shows
# What is asked first: the start of a case, and whom ours is beside.
FIRST = (
    ("causal linear attention, forward and backward, L=8,192, E=64", "fla-core chunk"),
    ("causal softmax attention, forward, L=8,192, E=64", "PyTorch, memory-efficient"),
    ("causal softmax attention, forward and backward, L=8,192, E=64", "PyTorch, memory-efficient"),
    ("delta rule, forward and backward, L=8,192, E=64", "fla-core chunk"),
    ("a token of linear attention", ""),
    ("a token of softmax attention after 3,072", ""),
    ("a training step", ""),
    ("8 layers write", ""),
)


class Section(Protocol):
    """What a page needs to know of a section of the record."""

    @property
    def title(self) -> str:
        """Of its part of the page."""

    @property
    def module(self) -> str:
        """In this folder, whose docstring are the notes."""


def write(folder: Path, sections: Mapping[str, Section]) -> None:
    """Write README.md for the record in a folder.

    Args:
        folder: Where `NAME.jsonl` is, for each section that was recorded.
        sections: All of them by name, in the order of the page.
    """
    records = {name: report.read(folder / f"{name}.jsonl") for name in recorded(folder, sections)}
    parts = [HEADER]
    if not records:
        parts.append(NOTHING)
    if rows := headline_rows(records.values()):
        parts.append(report.section("At a glance", "", rows))
    told: set[str] = set()
    for name, (about, *rows) in records.items():
        section = sections[name]
        shown = [row for row in rows if row.get("note") not in UNMEASURED]
        end = report.ran(about) + unmeasured(rows)
        parts.append(report.section(section.title, notes(section.module, told), shown, end))
        if section.module != "machine":
            continue
        if table := distances(lines(records.values())):
            parts.append(report.section("Distance from the floor", FLOORS, table))
        if table := beside_bounds(lines(records.values()), about["machine"].get("GPU", "")):
            parts.append(report.section("Beside their bounds", BOUNDS, table))
    (folder / "README.md").write_text("\n".join(parts))


def recorded(folder: Path, sections: Mapping[str, Section]) -> list[str]:
    """Return the names of the sections that have rows."""
    files = {name: folder / f"{name}.jsonl" for name in sections}
    return [name for name, path in files.items() if path.exists() and path.stat().st_size]


def lines(records: Iterable[list[Row]]) -> list[Row]:
    """Return all rows but those that say what a record is."""
    return [row for _, *rows in records for row in rows]


def unmeasured(rows: list[Row]) -> str:
    """Return a sentence on the rows that a table leaves out; nothing if there are none."""
    counts = [(why, sum(row.get("note") == why for row in rows)) for why in UNMEASURED]
    said = "; ".join(f"{count} {why}" for why, count in counts if count)
    return f"\n\nRows without a time: {said}." if said else ""


def notes(module: str, told: set[str]) -> str:
    """Return what a module says of its rows, once; `told` is modified by this function."""
    text = "" if module in told else import_module(f".{module}", __package__).__doc__ or ""
    told.add(module)
    return text


def headline_rows(records: Iterable[list[Row]]) -> list[Row]:
    """Return what is asked first, as far as it was measured, and on which GPU."""
    compared = [
        {**row, "on": about["machine"].get("GPU")}
        for about, *rows in records
        for row in report.comparisons(rows)
    ]
    return [
        row
        for case, beside in FIRST
        for row in compared
        if row[""].startswith(case)
        and row["beside"].startswith(beside)
        and row["ours / theirs"] is not None
    ]


def headline(folder: Path) -> str:
    """Return what is farthest from its floor, and what is asked first, of a folder's record."""
    records = [report.read(path) for path in sorted(folder.glob("*.jsonl"))]
    tables = distances(lines(records))[:FARTHEST], headline_rows(records)
    return "\n\n".join("\n".join(report.table(table)) for table in tables if table)


def distances(rows: list[Row]) -> list[Row]:
    """Return how far each of our passes is from its floor, the farthest first."""
    ceilings = machine.ceilings(rows)
    if ceilings is None:
        return []
    ours = [
        distance(row, ceilings)
        for row in rows
        if row.get("contestant", "").startswith(harness.OURS)
        and row.get("GB")
        and row["median_ms"] is not None
    ]
    return sorted(ours, key=lambda row: -row["distance"])


def beside_bounds(rows: list[Row], gpu: str) -> list[Row]:
    """Return our passes at the shape of the table of bounds, beside what they take at least."""
    _, table = bounds.read(bounds.TABLE)
    _, _, length, width = bounds.SHAPE
    suffix = f", forward and backward, L={length:,}, E={width}"
    found = []
    for row in rows:
        name, contestant = row.get("case", "").removesuffix(suffix), row.get("contestant", "")
        if (name, contestant) not in HOSTS or not row.get("median_ms"):
            continue
        host, share = HOSTS[name, contestant]
        least = [x.microseconds for x in table if x.host == host and x.gpu in gpu.split()]
        bound = share * sum(least) / 1000
        if bound:
            found.append({
                "case": row["case"], "contestant": contestant, "ms": row["median_ms"],
                "bound ms": bound, "times": row["median_ms"] / bound,
            })  # fmt: skip
    return sorted(found, key=lambda row: row["times"])


def distance(row: Row, ceilings: floors.Ceilings) -> Row:
    """Return a measured row beside its floor."""
    need = floors.Need(1e9 * row["GB"], 1e9 * row["GFLOP"])
    floor = need.seconds(ceilings)
    by_bytes = need.nbytes / ceilings.bandwidth == floor
    return {
        "case": row["case"],
        "contestant": row["contestant"],
        "ms": row["median_ms"],
        "floor ms": 1e3 * floor,
        "distance": row["median_ms"] / (1e3 * floor),
        "bound by": "bytes" if by_bytes else "operations",
        "TFLOP/s": row["GFLOP"] / row["median_ms"],
    }

"""Turns recorded rows into a page of tables; the page holds nothing that is not in the rows."""

import json
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_HEADER = """# Measured on a CPU

Written by `python -m benchmarks` from the rows beside this page. Contestants of one case took
turns in the same run, on equally many threads, after their outputs were checked against float64; a
time is the median of its rounds, between its quartiles. *Ours over this* below 1: ours is faster.
"""
_OURSELVES = "minitransformer", "our "  # how the names of contestants begin that are our own
_LENGTH = re.compile(r", L=[\d,]+")
HEADLINES = (  # two wins and two losses, of what readers ask first
    ("causal linear attention, forward and backward, L=4096", "PyTorch eager, chunkwise"),
    (
        "softmax attention, forward and backward, L=1024",
        "PyTorch scaled_dot_product_attention",
    ),
    ("predict zero, 3x4x4: an epoch of 100 batches of 8", "torch.nn.MultiheadAttention"),
    ("sum of 10,000,000 numbers by warp shuffles, one element a thread", "numpy.sum"),
)
_HEADLINE = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- end -->)", re.DOTALL)


def write(folder: Path) -> None:
    """Write README.md for all the `.jsonl` files of a folder."""
    paths = sorted(folder.glob("*.jsonl"))
    sections = [_HEADER, summary(paths), *map(_of_module, paths)]
    (folder / "README.md").write_text("\n".join(sections))


def summary(paths: Iterable[Path]) -> str:
    """All comparisons with others. Of cases that differ in length alone the last stands for all."""
    rows = [row for path in paths for row in read(path)[1:]]
    last = {_LENGTH.sub("", row["case"]): row["case"] for row in rows if "case" in row}
    compared = comparisons(row for row in rows if row.get("case") in last.values())
    others = [row for row in compared if not row["beside"].startswith(_OURSELVES)]
    return "\n".join(["## All races with others", "", *table(others), ""])


def headline(page: str, folder: Path) -> str:
    """Return a page with a few of a folder's comparisons between its two headline marks."""
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read(path)[1:]]
    compared = {(row[""], row["beside"]): row for row in comparisons(rows)}
    lines = "".join(f"{line}\n" for line in table([compared[race] for race in HEADLINES]))
    return _HEADLINE.sub(lambda _: lines, page)


def comparisons(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each contestant of a case but the first, who is ours, beside that one."""
    races = groupby((row for row in rows if "ours_over_this" in row), key=lambda row: row["case"])
    return [
        {
            "": case,
            "beside": peer["contestant"],
            "ours ms": ours["median_ms"],
            "theirs ms": peer["median_ms"],
            "ours / theirs": peer["ours_over_this"],
        }
        for case, (ours, *peers) in races
        for peer in peers
    ]


def read(path: Path) -> list[Row]:
    """Return the rows of a record, the one that says what they are first."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _of_module(path: Path) -> str:
    question, _, notes = (import_module(f"benchmarks.{path.stem}").__doc__ or "").partition("\n")
    about, *rows = read(path)
    return section(question, notes, rows, ran(about))


def ran(about: Row) -> str:
    """Return which command ran where."""
    machine = ", ".join(f"{key} {value}" for key, value in about["machine"].items())
    return f"`{about['command']}` on {machine}."


def section(title: str, notes: str, rows: Iterable[Row], end: str = "") -> str:
    """Return a part of a page: rows with the same columns make a table."""
    tables = ("\n".join(table(list(group))) for _, group in groupby(rows, key=list))
    parts = [f"## {title}", notes.strip(), *tables, end]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of a table."""
    if rows:
        yield "| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |"
        yield "|---" * len(rows[0]) + "|"
    for row in rows:
        yield "| " + " | ".join(map(cell, row.values())) + " |"


def cell(value: Any) -> str:
    """Return a value as it is shown."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " .. ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

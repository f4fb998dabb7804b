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
_HEADLINE = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- end -->)", re.DOTALL)


def write(folder: Path) -> None:
    """Write README.md for all the `.jsonl` files of a folder."""
    sections = (_section(path) for path in sorted(folder.glob("*.jsonl")))
    (folder / "README.md").write_text("\n".join([_HEADER, *sections]))


def headline(page: str, folder: Path) -> str:
    """Return a page with a folder's comparisons with others between its two headline marks.

    Of cases that differ in their length alone, the last one stands for all.
    """
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in _rows(path)[1:]]
    last = {_LENGTH.sub("", row["case"]): row["case"] for row in rows if "case" in row}
    comparisons = _comparisons(row for row in rows if row.get("case") in last.values())
    others = [row for row in comparisons if not row["beside"].startswith(_OURSELVES)]
    lines = "".join(f"{line}\n" for line in _table(others))
    return _HEADLINE.sub(lambda _: lines, page)


def _comparisons(rows: Iterable[Row]) -> list[Row]:
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


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _section(path: Path) -> str:
    about, *rows = _rows(path)
    question, _, notes = (import_module(f"benchmarks.{path.stem}").__doc__ or "").partition("\n")
    machine = ", ".join(f"{key} {value}" for key, value in about["machine"].items())
    tables = ("\n".join(_table(list(group))) for _, group in groupby(rows, key=list))
    parts = [f"## {question}", notes.strip(), *tables, f"`{about['command']}` on {machine}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield "| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |"
        yield "|---" * len(rows[0]) + "|"
    for row in rows:
        yield "| " + " | ".join(map(_cell, row.values())) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " .. ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

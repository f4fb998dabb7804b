"""Turns recorded rows into a page of tables; the page holds nothing that is not in the rows."""

import json
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

_HEADER = """# Measured on a CPU

Written by `python -m benchmarks` from the rows beside this page. Contestants of one case took
turns in the same run, on equally many threads, after their outputs were checked against float64; a
time is the median of its rounds, between its quartiles. *Ours over this* below 1: ours is faster.
"""


def write(folder: Path) -> None:
    """Write README.md for all the `.jsonl` files of a folder."""
    sections = (_section(path) for path in sorted(folder.glob("*.jsonl")))
    (folder / "README.md").write_text("\n".join([_HEADER, *sections]))


def _section(path: Path) -> str:
    about, *rows = map(json.loads, path.read_text().splitlines())
    question, _, notes = (import_module(f"benchmarks.{path.stem}").__doc__ or "").partition("\n")
    machine = ", ".join(f"{key} {value}" for key, value in about["machine"].items())
    tables = ("\n".join(_table(list(group))) for _, group in groupby(rows, key=list))
    parts = [f"## {question}", notes.strip(), *tables, f"`{about['command']}` on {machine}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
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

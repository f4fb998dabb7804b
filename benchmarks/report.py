"""Turns recorded rows into a page of tables; the page holds nothing that is not in the rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Race = tuple[str, str]  # a case, and who took part beside us

_HEADER = """# Measured on CPUs

Written by `python -m benchmarks` from the rows beside this page, a file for each processor.
Contestants of one case took turns in the same run, on equally many threads, after their outputs
were checked against float64; a time is the median of its rounds. *Ours / theirs* below 1: ours is
faster.
"""
_WORST = """## All races with others

Each on the processor where it came out worst for us; *elsewhere* is the ratio on others. Of cases
that differ in length alone the longest stands for all.
"""
_PAGE = "README.md"
_OURSELVES = "minitransformer", "our "  # how the names of contestants begin that are our own
_LENGTH = re.compile(r", L=[\d,]+")
HEADLINES = (  # of what readers ask first
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
    """Write a page for each `.jsonl` file of a folder, and README.md for all of them."""
    for path in sorted(folder.glob("*.jsonl")):
        picture = path.with_suffix(".png")
        curves = f" and [curves]({picture.name})" if picture.exists() else ""
        head = f"# Measured on {_name(path)}\n\n[What is compared]({_PAGE}){curves}.\n"
        sections = [head, *map(_of_module, records(path).values())]
        path.with_suffix(".md").write_text("\n".join(sections))
    (folder / _PAGE).write_text("\n".join([_HEADER, *table(met(folder)), "", summary(folder)]))


def met(folder: Path) -> list[Row]:
    """Return a row for each processor: how many races with others it ran, and how many we lost."""
    return [
        {
            "processor": f"[{processor}]({processor.replace(' ', '_')}.md)",
            "races": len(races),
            "lost": sum(row["ours / theirs"] > 1 for row in races.values()),
        }
        for processor, races in _races(folder).items()
    ]


def summary(folder: Path) -> str:
    """All comparisons with others. Of cases that differ in length alone the last stands for all."""
    found = worst(folder)
    last = {_LENGTH.sub("", case): case for case, _ in found}
    return "\n".join(
        [_WORST, *table([row for row in found.values() if row[""] in last.values()]), ""]
    )


def headline(page: str, folder: Path) -> str:
    """Return a page with a few of a folder's comparisons between its two headline marks."""
    found = worst(folder, _span)
    lines = "".join(f"{line}\n" for line in table([found[race] for race in HEADLINES]))
    return _HEADLINE.sub(lambda _: lines, page)


def _each(rows: list[Row]) -> str:
    """The ratio on every processor."""
    return ", ".join(f"{cell(row['ours / theirs'])} on {row['on']}" for row in rows)


def _span(rows: list[Row]) -> str:
    """The least ratio and the largest; the rows are in their order."""
    ratios = dict.fromkeys(cell(row["ours / theirs"]) for row in rows[:1] + rows[-1:])
    return " to ".join(ratios) + f", on {len(rows)} others" * (len(rows) > 1)


def worst(folder: Path, elsewhere: Callable[[list[Row]], str] = _each) -> dict[Race, Row]:
    """Return each race with others as it ran on the processor where it came out worst for us."""
    ran: dict[Race, list[Row]] = {}
    for processor, races in _races(folder).items():
        for race, row in races.items():
            ran.setdefault(race, []).append(row | {"on": processor})
    found = {}
    for race, rows in ran.items():
        *others, last = sorted(rows, key=lambda row: row["ours / theirs"])
        found[race] = last | {"elsewhere": elsewhere(others)}
    return found


def _races(folder: Path) -> dict[str, dict[Race, Row]]:
    return {
        processor: {
            (row[""], row["beside"]): row
            for lines in found.values()
            for row in comparisons(lines)
            if not row["beside"].startswith(_OURSELVES)
        }
        for processor, found in processors(folder).items()
    }


def processors(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """Return the records of each processor that a folder has a file of."""
    return {_name(path): records(path) for path in sorted(folder.glob("*.jsonl"))}


def _name(path: Path) -> str:
    return path.stem.replace("_", " ")


def records(path: Path) -> dict[str, list[Row]]:
    """Return the rows of each benchmark in a file, the one that says what they are first."""
    found: dict[str, list[Row]] = {}
    for row in read(path):
        if "command" in row:
            lines = found.setdefault(row["command"].rpartition(".")[2], [])
        lines.append(row)
    return found


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


def _of_module(lines: list[Row]) -> str:
    about, *rows = lines
    module = import_module(about["command"].removeprefix("python -m "))
    question, _, notes = (module.__doc__ or "").partition("\n")
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

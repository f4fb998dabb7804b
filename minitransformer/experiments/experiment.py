"""An experiment: cases that are run and recorded one by one, and a report made of the record alone.

A record is a JSONL file. Its first line says which experiment, which scale, which machine; each
other line is a case with the rows that came of it. A case is written whole, or not at all, so that
a run that was killed goes on where it stopped.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pkgutil
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..machine import machine
from ..training.checkpoint import write_atomically

Case = dict[str, Any]
Row = dict[str, Any]
Drawing = Callable[[Path], None]

RESULTS = Path("results")
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Standard errors in half of a 95% interval, of 2 values, 3, ..., 11 or more."""
_RECORD, _PAGE = "record.jsonl", "README.md"
_MADE_OF = f"figures are made of [{_RECORD}]({_RECORD}) by `minitransformer report"


@dataclass(frozen=True)
class Report:
    """What is made of a record.

    Attributes:
        text: Tables and sentences, in Markdown: each claim of the source, and what was found.
        figures: What draws each picture, by the name of its file.
    """

    text: str
    figures: dict[str, Drawing]


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of a source, measured again.

    Attributes:
        name: Its module's, and its folder's in `results/`.
        title: What it is about, in one line.
        source: What it replicates.
        cases: The settings of each case at a scale: what JSON can hold.
        run: What comes of a case: rows of numbers and texts.
        report: What the rows of all cases say.
    """

    name: str
    title: str
    source: str
    cases: Callable[[str], list[Case]]
    run: Callable[[Case], Iterable[Row]]
    report: Callable[[list[Row]], Report]


def names() -> list[str]:
    """Return the names of all experiments."""
    folder = importlib.import_module(__package__ or "")
    return [
        found.name
        for found in pkgutil.iter_modules(folder.__path__)
        if not found.ispkg and found.name != "experiment"
    ]


def find(name: str) -> Experiment:
    """Return the experiment of that name.

    Raises:
        UserError: There is none.
    """
    if name not in names():
        raise UserError(f"there is no experiment {name!r}; there are {', '.join(names())}")
    found: Experiment = importlib.import_module(f"{__package__}.{name}").EXPERIMENT
    return found


class Record:
    """What was measured, in a folder.

    Args:
        folder: Where it is, or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / _RECORD

    def read(self) -> tuple[Row, list[tuple[Case, list[Row]]]]:
        """Return what the record is of, and its cases with their rows; a torn last line is none.

        Raises:
            UserError: There is no record, or it is damaged.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1] or [b""]
        except OSError as error:
            raise UserError(f"{self.path}: there is no record here ({error.strerror})") from error
        head: Row = {}
        found: list[tuple[Case, list[Row]]] = []
        try:
            head = dict(json.loads(lines[0]))
            for line in lines[1:]:
                read = json.loads(line)
                found.append((read["case"], read["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            number = len(found) + 2 if head else 1
            raise UserError(
                f"{self.path}: line {number} is damaged; measure again in another folder"
            ) from error
        return head, found

    def rows(self) -> list[Row]:
        """Return all rows, each with the settings of its case.

        Raises:
            UserError: As in `read`.
        """
        return [{**case, **row} for case, rows in self.read()[1] for row in rows]

    def begin(self, experiment: Experiment, scale: str) -> list[Case]:
        """Begin the record, or go on with it; return the cases that are still to be run.

        Raises:
            UserError: It is that of another experiment or scale, or damaged, or the folder has a
                page that is no report's.
        """
        self.check_page()
        about = {"experiment": experiment.name, "scale": scale}
        if not self.path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, _line({**about, "machine": machine()}))
        head, found = self.read()
        was = {key: head.get(key) for key in about}
        if was != about:
            raise UserError(
                f"{self.path}: holds {was['experiment']} at scale {was['scale']}, not "
                f"{experiment.name} at scale {scale}; choose another folder by --out"
            )
        write_atomically(  # without a line that a kill has torn
            self.path, _line(head) + b"".join(_line({"case": c, "rows": r}) for c, r in found)
        )
        done = [case for case, _ in found]
        return [case for case in experiment.cases(scale) if case not in done]

    def check_page(self) -> None:
        """Refuse to replace a page that no report has written.

        Raises:
            UserError: There is one.
        """
        page = self.folder / _PAGE
        if page.exists() and _MADE_OF not in page.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{page}: is no report of an experiment, and would be replaced by one; choose "
                "another folder by --out"
            )

    def add(self, case: Case, rows: list[Row]) -> None:
        """Write a case, and wait until it is on the disk."""
        with self.path.open("ab") as file:
            file.write(_line({"case": case, "rows": rows}))
            file.flush()
            os.fsync(file.fileno())


def run(experiment: Experiment, scale: str, folder: Path) -> Iterator[tuple[Case, int]]:
    """Run the cases that a record lacks; yield each before it runs, and how many are left with it.

    Raises:
        UserError: The record in that folder is another's, or damaged.
    """
    record = Record(folder)
    todo = record.begin(experiment, scale)
    for left, case in zip(range(len(todo), 0, -1), todo, strict=True):
        yield case, left
        record.add(case, list(experiment.run(case)))


def render(experiment: Experiment, folder: Path) -> str:
    """Return the page of a record.

    Raises:
        UserError: There is no record of this experiment in that folder, it is damaged, or says too
            little yet.
    """
    return _page(experiment, *_reported(experiment, Record(folder)))


def _page(experiment: Experiment, head: Row, report: Report) -> str:
    described = ", ".join(f"{key} {value}" for key, value in head["machine"].items())
    scale = "" if head["scale"] == "default" else f" --scale {head['scale']}"
    return (
        f"# {experiment.title}\n\n{experiment.source}\n\n{report.text.strip()}\n\n"
        f"`minitransformer experiment {experiment.name}{scale}`, on {described}. This page and its "
        f"{_MADE_OF} {experiment.name}`.\n"
    )


def _reported(experiment: Experiment, record: Record) -> tuple[Row, Report]:
    """Return what a record is of, and its report."""
    head, found = record.read()
    if head.get("experiment") != experiment.name:
        raise UserError(f"{record.path}: holds {head.get('experiment')}, not {experiment.name}")
    try:
        if not found:
            raise ValueError("nothing is measured")
        return head, experiment.report(record.rows())
    except (ValueError, LookupError, ArithmeticError) as error:
        cases = experiment.cases(head["scale"])
        if len(found) >= len(cases):
            raise
        scale = "" if head["scale"] == "default" else f" --scale {head['scale']}"
        raise UserError(
            f"{record.path}: {len(found)} of {len(cases)} cases are measured, too few for a "
            f"report; go on with: minitransformer experiment {experiment.name}{scale} --out "
            f"{shlex.quote(str(record.folder))}"
        ) from error


def write(experiment: Experiment, folder: Path) -> list[Path]:
    """Write the page of a record and its figures; return their paths.

    Raises:
        UserError: As in `render`, or there is a page that is no report's.
    """
    page, record = folder / _PAGE, Record(folder)
    record.check_page()
    head, report = _reported(experiment, record)
    write_atomically(page, _page(experiment, head, report).encode())
    for name, draw in report.figures.items():
        draw(folder / name)
    return [page, *(folder / name for name in report.figures)]


class Difference(NamedTuple):
    """By how much one choice gives more than another."""

    mean: float
    error: float  # half of its 95% interval

    def __str__(self) -> str:
        return f"{self.mean:+.2%} ± {self.error:.2%}"

    @property
    def verdict(self) -> str:
        """What that says of the first choice."""
        if abs(self.mean) <= self.error:
            return "no difference that stands out of the seeds"
        return "better" if self.mean > 0 else "worse"

    def costs_nothing(self, margin: float = 0.01) -> str:
        """Return what is said of the claim that the first choice loses nothing.

        Supported: the interval rules out a loss of `margin`. Not supported: it does not, and rules
        out that nothing is lost. Else it is open.
        """
        if self.mean - self.error > -margin:
            return supported(True)
        return supported(False) if self.mean + self.error < 0 else "*Open*"


def paired(
    rows: Iterable[Row], value: str, setting: str, choices: tuple[Any, Any], alike: Iterable[str]
) -> Difference:
    """Return by how much a value is larger with the first of two choices than with the second.

    Rows are paired that agree in the settings `alike`, such as the seed.
    """
    found: dict[tuple[Any, ...], dict[Any, float]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in alike), {})[row[setting]] = row[value]
    first, second = choices
    more = [x[first] - x[second] for x in found.values() if first in x and second in x]
    if len(more) < 2:
        return Difference(statistics.mean(more), math.inf)
    times = STUDENT[min(len(more) - 2, len(STUDENT) - 1)]
    return Difference(statistics.mean(more), times * statistics.stdev(more) / math.sqrt(len(more)))


def supported(holds: bool) -> str:
    """Return what is said of a claim.

    >>> supported(1 < 2)
    '*Supported*'
    """
    return "*Supported*" if holds else "*Not supported*"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table.

    >>> print(table(["L", "ms"], [[8, 0.12345]]))
    | L | ms |
    |---|---|
    | 8 | 0.123 |
    """
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(x) for x in row] for row in rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text.replace("| --- |", "|---|").replace(" --- |", "---|")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _line(row: Row) -> bytes:
    return f"{json.dumps(row)}\n".encode()

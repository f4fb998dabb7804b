"""Kernels beside each other: what the second does with less, or with more, than the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .units import aligned, bytes_text, count_text, ratio_text, shape_text, time_text

if TYPE_CHECKING:
    from .report import Report

Row = tuple[str, list[str], Sequence[float]]  # what is compared, as text and as numbers


def compare(reports: Mapping[str, Report]) -> str:
    """Write a table with a column for each kernel, and how the last compares with the first.

    Args:
        reports: By the names that the columns get; of one GPU.

    Returns:
        The table. Of what a kernel does not use there is no row.

    Raises:
        ValueError: there are fewer than two reports, or their GPUs differ.
    """
    gpus = {report.roofline.gpu.name for report in reports.values()}
    if len(reports) < 2 or len(gpus) > 1:
        raise ValueError(f"compare needs two reports or more of one GPU, got {len(reports)} of "
                         f"{', '.join(sorted(gpus)) or 'none'}")  # fmt: skip
    rows = [["", *reports, "last / first"]]
    for name, texts, numbers in _rows([*reports.values()]):
        rows.append([name, *texts, ratio_text(numbers)])
    return "\n".join(aligned(rows))


def _rows(reports: list[Report]) -> Iterator[Row]:
    grids = [f"{shape_text(r.trace.grid)} of {shape_text(r.trace.block)}" for r in reports]
    yield "blocks of threads", grids, []
    yield _row("lanes active", [_share(r) for r in reports], "{:.0%}".format)
    yield _row("flops", [r.roofline.flops for r in reports])
    for space, unit in (("global", "sectors"), ("shared", "wavefronts")):
        found = [r.total(space) for r in reports]
        if any(each.requests for each in found):
            yield _row(f"{space}: requests", [each.requests for each in found])
            yield _row(f"{space}: {unit}", [each.transactions for each in found])
            yield _row(f"{space}: {unit} that would do", [each.fewest for each in found])
    yield _row("bytes, each element once", [r.roofline.needed for r in reports], bytes_text)
    for name, numbers in _compiled(reports):
        yield _row(name, numbers, str)
    times = [r.roofline.time for r in reports]
    yield _row(f"at least, on {reports[0].roofline.gpu.name}", times, time_text)


def _row(name: str, numbers: Sequence[float], text: Callable[[float], str] = count_text) -> Row:
    return name, list(map(text, numbers)), numbers


def _share(report: Report) -> float:
    """The share of lanes that are active, over all statements."""
    active, lanes = (sum(getattr(x, part) for x in report.lines) for part in ("active", "lanes"))
    return active / lanes if lanes else 1.0


def _compiled(reports: list[Report]) -> Iterator[tuple[str, list[int]]]:
    """Registers and spills on each architecture, if all kernels were compiled for it."""
    found = [r.compiled.needs for r in reports if not isinstance(r.compiled, str)]
    if len(found) == len(reports):
        for major, minor in filter(lambda at: all(at in each for each in found), found[0]):
            needs = [each[major, minor][0] for each in found]
            yield f"registers, sm_{major}{minor}", [each.registers for each in needs]
            if any(each.spills for each in needs):
                yield f"bytes spilled, sm_{major}{minor}", [each.spills for each in needs]

"""The report as text, for a terminal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from .compiled import Compiled
from .roofline import Roofline
from .units import aligned, bytes_text, count_text, plural, rate_text, shape_text
from .warps import Traffic

if TYPE_CHECKING:
    from .report import Line, Report

_HEAD = ("line", "lanes", "flops", *("access", "bytes", "sectors"), *("access", "bytes", "waves"))
_LEGEND = """\
lanes: share of the lanes of a warp that are active. access: elements read (r), written (w), updated
by atomics (a). sectors: of 32 bytes, that a request of a warp moves / the fewest that would do.
waves: wavefronts that a request takes / without bank conflicts."""


def table(report: Report) -> str:
    """Write everything that a report knows."""
    parts = [
        [_title(report)],
        [*_lines(report.lines, report.trace.filename), "", _LEGEND],
        roofline_text(report.roofline),
        _local(report),
        _compiled(report.compiled, float32=report.roofline.itemsize == 4),
        _by_types(report) if isinstance(report.compiled, str) else [],
        report.advice,
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _title(report: Report) -> str:
    trace = report.trace
    grid, block = shape_text(trace.grid), shape_text(trace.block)
    where = f"{os.path.relpath(trace.filename)}:{trace.first_line}"
    return f"{trace.kernel}  ({where})  grid {grid}, block {block}"


def _lines(lines: Sequence[Line], filename: str) -> Iterator[str]:
    rows = [(*_HEAD, "source"), *((*_cells(line), line.text) for line in lines)]
    head, *shown = aligned(rows, ">" * len(_HEAD) + "<", "  ")
    yield _groups(rows)
    yield head
    for line, text in zip(lines, shown, strict=True):
        if line.filename != filename:
            filename = line.filename
            yield f"in {os.path.relpath(filename)}:"
        yield text


def _groups(rows: Sequence[Sequence[str]]) -> str:
    """Write "global" and "shared" over their three columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *groups = (sum(widths[i : i + 3]) + 4 for i in (0, 3, 6))
    names = zip(("global", "shared"), groups, strict=True)
    return "  ".join([" " * first, *(f" {name} ".center(width, "-") for name, width in names)])


def _cells(line: Line) -> tuple[str, ...]:
    memory = (_memory(line.memory(space)) for space in ("global", "shared"))
    lanes = f"{line.share:.0%}" if line.lanes else ""
    flops = count_text(line.flops) if line.flops else ""
    return (str(line.number), lanes, flops, *(cell for cells in memory for cell in cells))


def _memory(found: Traffic) -> tuple[str, str, str]:
    if not found.accesses:
        return "", "", ""
    share = (f"{count / found.requests:.3g}" for count in (found.transactions, found.fewest))
    return _access(found), bytes_text(found.bytes), "/".join(share)


def _access(found: Traffic) -> str:
    kinds = {"r": found.reads, "w": found.writes, "a": found.atomics}
    return " ".join(f"{count_text(count)}{kind}" for kind, count in kinds.items() if count)


def roofline_text(found: Roofline) -> list[str]:
    """Write what the roofline says, by the bytes moved and by those needed."""
    gpu, precision = found.gpu, f"float{8 * found.itemsize}"
    head = (
        f"roofline, {gpu.name}: {rate_text(found.peak, 'FLOP/s')} in {precision}, "
        f"{rate_text(gpu.bandwidth * 1e9, 'B/s')}, ridge at {found.ridge:.3g} FLOP/B"
    )
    ways = {"as moved:": found.moved, "each element once:": found.needed}
    return [head, *(f"  {name:<19}{_under(found, moved)}" for name, moved in ways.items())]


def _under(found: Roofline, moved: int) -> str:
    text = f"{bytes_text(moved):>9}"
    if not moved:
        return f"{text}: compute-bound, at most {rate_text(found.peak, 'FLOP/s')}"
    if not found.flops:
        useful = found.gpu.bandwidth * 1e9 * found.needed / moved
        return f"{text}, no arithmetic: memory-bound, at most {rate_text(useful, 'B/s')} of use"
    return (
        f"{text}, {found.intensity(moved):.3g} FLOP/B: {found.limit(moved)}-bound, "
        f"at most {rate_text(found.bound(moved), 'FLOP/s')}"
    )


def _local(report: Report) -> list[str]:
    """List the local arrays: with constant indices they are registers."""
    found: dict[str, list[Traffic]] = {}
    for at in report.traffic:
        if at.site.space == "local":
            size = bytes_text(at.site.itemsize * prod(at.site.shape))
            found.setdefault(f"{at.site.array!r} ({size} a thread)", []).append(at.traffic)
    return [f"local array {name}: {_access(Traffic.total(t))}" for name, t in found.items()]


def _compiled(found: Compiled | str, float32: bool) -> list[str]:
    if isinstance(found, str):
        return [found]
    rows = [["compiled for", "registers", "spills", "local", "shared", "occupancy"]]
    for (major, minor), (needs, fits) in found.needs.items():
        sizes = (bytes_text(size) for size in (needs.spills, needs.local, needs.shared))
        full = f"{fits.share:.0%}, {plural(fits.blocks, 'block')}, limited by {fits.limit}"
        rows.append([f"sm_{major}{minor}", str(needs.registers), *sizes, full])
    wide = _float64(found.float64, "instruction") if float32 else []
    refused = [f"not sm_{x}{y}: {why}" for (x, y), why in found.refused.items()]
    table = aligned(rows, "<", "  ") if found.needs else []
    return [*table, *refused, *wide]


def _by_types(report: Report) -> list[str]:
    return _float64(report.doubles, "operation", " by the types")


def _float64(found: Counter[tuple[str, int]], what: str, how: str = "") -> list[str]:
    """Name the lines that compute in float64, in a kernel whose arrays are float32."""
    return [
        f"line {line} ({os.path.basename(file)}) computes in float64, {plural(count, what)}{how}: "
        "write float32(0.5) in place of 0.5 and float32(2) in place of 2, and pass numpy.float32 "
        "in place of float."
        for (file, line), count in sorted(found.items())
    ]

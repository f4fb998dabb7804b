"""What a learner should look at: the counts in sentences, the most costly of each kind first."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from ..cpu.watchers.trace import Site, Trace
from ..gpu.gpus import SECTOR
from . import causes
from .roofline import needed
from .units import bytes_text
from .warps import Requests, Traffic

if TYPE_CHECKING:
    from .report import Line

_VERBS = {"read": "reading", "write": "writing", "atomic": "updating"}
_FEW = 3  # sentences of a kind
_WASTE = 1.2  # times the fewest transactions that are worth a sentence
_AGAIN = 4.0  # times that an array is moved
_MUCH = 0.1  # share of an array in all that is moved
_DIVERGENT = 0.75  # share of lanes


def advice(trace: Trace, traffic: list[Requests], lines: list[Line]) -> list[str]:
    """Return a sentence for each thing that makes a launch slower than it has to be."""
    return [
        *(_scattered(*found) for found in _wasteful(trace, traffic, "global")),
        *(_conflict(*found) for found in _wasteful(trace, traffic, "shared")),
        *_moved_again(traffic),
        *_divergent(lines, trace.filename),
    ]


def _wasteful(
    trace: Trace, traffic: Iterable[Requests], space: str
) -> list[tuple[str, str, Traffic]]:
    """Return what is done where, why it costs so much, and its traffic, where most need not be.

    What a line does to an array for the same cause, reading and writing say, is one.
    """
    cause = {"global": causes.global_memory, "shared": causes.shared_memory}[space]
    alike: dict[tuple[str, int, str, str], list[Requests]] = defaultdict(list)
    for at in traffic:
        if at.site.space == space and at.traffic.waste >= _WASTE:
            why = cause(at, trace.block[0]) if at.site.kind != "atomic" else ""
            alike[at.site.filename, at.site.line, at.site.array, why].append(at)
    found = []
    for (*_, why), sites in alike.items():
        verbs = " and ".join(dict.fromkeys(_VERBS[at.site.kind] for at in sites))
        what = f"{_place(sites[0].site, trace.filename)}: {verbs} {sites[0].site.array!r}"
        found.append((what, why, Traffic.total(at.traffic for at in sites)))
    found.sort(key=lambda each: each[2].fewest - each[2].transactions)
    return found[:_FEW]


def _scattered(what: str, why: str, traffic: Traffic) -> str:
    return f"{what} moves {traffic.waste:.3g} times the bytes that it has to: {why}"


def _conflict(what: str, why: str, traffic: Traffic) -> str:
    if not why:
        return (
            f"{what} makes lanes take turns: up to {traffic.worst} of a warp meet in one bank. "
            "Let each thread or warp sum up first."
        )
    return f"{what} is a {traffic.worst}-way bank conflict: {why}"


def _moved_again(traffic: list[Requests]) -> Iterator[str]:
    """Name the arrays of which a warp asks for what another, or itself, has had already."""
    moved: dict[str, int] = defaultdict(int)
    for found in traffic:
        if found.site.space == "global":
            moved[found.site.array] += found.traffic.fewest * SECTOR
    once = needed(traffic)
    much = sum(moved.values()) * _MUCH
    for array in sorted(once, key=lambda name: once[name] - moved[name])[:_FEW]:
        if moved[array] >= _AGAIN * max(once[array], SECTOR) and moved[array] >= much:
            yield (
                f"{array!r} is asked for again: {bytes_text(moved[array])}, where each element "
                f"once would be {bytes_text(once[array])}. A tile in shared memory, or a variable, "
                "can hold what is needed again."
            )


def _divergent(lines: Iterable[Line], own: str) -> Iterator[str]:
    """Name the lines at which most lanes wait; neighbours that share a fate are named once."""
    runs = [list(run) for _, run in groupby(lines, lambda line: (line.filename, line.share))]
    runs = [run for run in runs if run[0].share < _DIVERGENT]
    runs.sort(key=lambda run: sum(line.active - line.lanes for line in run))
    for run in runs[:_FEW]:
        where = _place(run[0], own) + (f" to {run[-1].number}" if len(run) > 1 else "")
        yield (
            f"{where}: {run[0].share:.0%} of the lanes are active, the others of their warps "
            "wait. Let whole warps take the same branch."
        )


def _place(at: Site | Line, own: str) -> str:
    """Name a line, with its file if that is not the kernel's own."""
    number = at.line if isinstance(at, Site) else at.number
    return f"line {number}" if at.filename == own else f"{os.path.basename(at.filename)}:{number}"

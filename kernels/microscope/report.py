"""What the microscope shows of a launch, line by line and as a whole."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent

from ..cpu.watchers.trace import Trace
from ..gpu.gpus import GPU
from . import warps
from .advice import advice
from .compiled import Compiled
from .roofline import Roofline, roofline
from .table import table
from .warps import Requests, Traffic


@dataclass(frozen=True)
class Line:
    """A line of the kernel, or of a device function that it calls.

    Attributes:
        filename: Its file.
        number: In that file, from 1.
        text: As it is written, without the indentation of the whole kernel.
        sites: The accesses that are written there.
        flops: Floating-point operations of all threads.
        active: Lanes that executed its statements, over all warps and times.
        lanes: Lanes that these warps have: with divergence, more than were active.
    """

    filename: str
    number: int
    text: str
    sites: tuple[Requests, ...]
    flops: int = 0
    active: int = 0
    lanes: int = 0

    @property
    def share(self) -> float:
        """The share of lanes that are active."""
        return self.active / self.lanes if self.lanes else 1.0

    @property
    def reached(self) -> bool:
        """Whether any thread came here."""
        return bool(self.lanes or self.sites)

    def memory(self, space: str) -> Traffic:
        """Return the traffic of "global", "shared" or "local" memory."""
        return Traffic.total(s.traffic for s in self.sites if s.site.space == space)


class Report:
    """A launch under the microscope: `print` it, draw it, or ask it.

    Attributes:
        trace: What the threads did.
        traffic: The requests of each place that accesses an array, and their traffic.
        roofline: How fast the kernel can be at most, on the GPU that was asked for.
        compiled: What the kernel needs on GPUs, or in one sentence why that is not known.
        doubles: How many operations of each (file, line) are on float64, by their types, in a
            kernel on float32.
    """

    def __init__(
        self,
        trace: Trace,
        gpu: GPU,
        itemsize: int,
        compiled: Compiled | str,
        doubles: Counter[tuple[str, int]] | None = None,
    ) -> None:
        self.trace = trace
        self.traffic = list(warps.requests(trace))
        self.roofline: Roofline = roofline(trace, self.traffic, gpu, itemsize)
        self.compiled = compiled
        self.doubles = doubles or Counter()

    @cached_property
    def lines(self) -> list[Line]:
        """Every line of the kernel, then those of its device functions that were reached."""
        trace = self.trace
        own = {
            (trace.filename, number): text
            for number, text in enumerate(dedent(trace.source).splitlines(), trace.first_line)
        }
        sites = defaultdict(list)
        for found in self.traffic:
            sites[found.site.filename, found.site.line].append(found)
        counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for statement, active, had in zip(trace.statements, *warps.lanes(trace), strict=True):
            if had:
                flops = int(active) * statement.flops
                counted = {"flops": flops, "active": int(active), "lanes": int(had)}
                counts[statement.filename, statement.line].update(counted)
        elsewhere = sorted({*sites, *counts} - {*own})
        others = {key: linecache.getline(*key).rstrip("\n") for key in elsewhere}
        return [
            Line(*key, text, tuple(sites[key]), *map(counts[key].__getitem__, _COUNTED))
            for key, text in {**own, **others}.items()
        ]

    def total(self, space: str) -> Traffic:
        """Return the traffic of "global", "shared" or "local" memory in the whole launch."""
        return Traffic.total(s.traffic for s in self.traffic if s.site.space == space)

    @property
    def advice(self) -> list[str]:
        """What a learner should look at, most costly first; a sentence each."""
        return advice(self.trace, self.traffic, self.lines)

    def __str__(self) -> str:
        return table(self)

    def picture(self, path: str | Path | None = None, array: str | None = None) -> bytes:
        """Draw the source with its heat, and a warp's threads over the memory that it accesses.

        Args:
            path: The PNG file to write, if any.
            array: The array to draw the threads over; by default those where they waste most.

        Returns:
            The PNG.

        Raises:
            ValueError: no access to an array of that name was made.
        """
        from .picture import draw

        png = draw(self, array)
        if path is not None:
            Path(path).write_bytes(png)
        return png

    def _repr_png_(self) -> bytes:
        return self.picture()


_COUNTED = "flops", "active", "lanes"

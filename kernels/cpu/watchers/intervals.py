"""Which regions of a kernel lie between the same barriers."""

from __future__ import annotations

import ast

from ..regions import Barrier, Branch, Lanes, Loop, Node, Regions, Strip, all_lanes, all_scalars
from ..trees import walk
from .elements import Arrays


class Intervals:
    """The stretches between barriers, and which arrays are written and read in each."""

    def __init__(self, regions: Regions, arrays: Arrays) -> None:
        self.arrays = arrays
        self.parent: list[int] = []
        self.of: dict[Lanes, int] = {}
        self.walk(regions.nodes, self.new())
        self.written: dict[int, set[str]] = {}
        self.read: dict[int, set[str]] = {}
        for region in all_lanes(regions.nodes):
            interval = self.find(self.of[region])
            reads, writes = self.arrays.uses(region.body)
            self.read.setdefault(interval, set()).update(reads)
            self.written.setdefault(interval, set()).update(writes)

    def new(self) -> int:
        """A new interval."""
        self.parent.append(len(self.parent))
        return self.parent[-1]

    def find(self, interval: int) -> int:
        """The interval that stands for all that are one with this."""
        while self.parent[interval] != interval:
            interval = self.parent[interval]
        return interval

    def join(self, a: int, b: int) -> int:
        """Make two intervals one."""
        self.parent[self.find(a)] = self.find(b)
        return self.find(b)

    def walk(self, nodes: list[Node], now: int) -> int:
        """Number the regions of a tree that is entered in an interval; return where it ends."""
        for node in nodes:
            match node:
                case Lanes():
                    self.of[node] = now
                case Barrier():
                    now = self.new()
                case Strip(body):
                    now = self.walk(body, now)
                case Branch(_, body, orelse):
                    now = self.join(self.walk(body, now), self.walk(orelse, now))
                case Loop(_, body):
                    first = len(self.parent)
                    end = self.walk(body, now)
                    jumps = ast.Break | ast.Continue
                    if any(isinstance(node, jumps) for node in walk(all_scalars(body))):
                        for interval in range(first, len(self.parent)):
                            end = self.join(interval, end)
                    now = self.join(end, now)
        return now

    def is_written(self, region: Lanes, node: ast.AST) -> bool:
        """Whether anybody may write to an array in the interval of a region."""
        written = self.written.get(self.find(self.of[region]), set())
        return bool(written & self.arrays.memory_of(node))

    def meets_readers(self, node: ast.AST) -> bool:
        """Whether somebody may read an array while somebody else writes to it."""
        return self.meet(self.arrays.memory_of(node), self.arrays.space(node))

    def meet(self, roots: set[str], space: str) -> bool:
        """Whether somebody may read one of these arrays while somebody else writes to it."""
        if space == "global":  # there is no barrier between blocks
            return any(read & roots for read in self.read.values())
        return any(self.read.get(i, set()) & roots & self.written[i] for i in self.written)

    def keeps_readers(self, name: str) -> bool:
        """Whether the shadow for readers has an array's shape: that of a view is a view of it."""
        space = self.arrays.space(ast.Name(name))
        return any(self.meet(roots, space) for roots in self.arrays.views if name in roots)

"""What a warp's accesses cost: sectors of global memory, wavefronts of shared memory.

The 32 threads of a warp make an access together: a *request*. What it costs depends on the
addresses that they ask for.

Global memory is moved in sectors of 32 bytes. A request moves every sector that one of its lanes
touches. Were the bytes that its lanes use packed tightly, it could do with fewer: the fewest
possible are those bytes, divided by 32.

Shared memory has 32 banks. Word w, of 4 bytes, lies in bank w % 32, and in one *wavefront* each
bank serves one word, to as many lanes as want that same word. So a request takes as many wavefronts
as its busiest bank has words to serve: an n-way bank conflict. Items of 8 bytes are served to half
a warp at a time, those of 16 to a quarter, and each part would take one wavefront without
conflicts. The lanes of an atomic take turns at a word, so there each lane counts by itself.

Both are *transactions* below: how many there were, against the fewest that would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..cpu.watchers.trace import Site, Trace
from ..gpu.gpus import BANKS, SECTOR, WARP, WORD

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """Accesses to one kind of memory, counted.

    Attributes:
        reads: By threads, one for each element.
        writes: Likewise.
        atomics: Likewise.
        bytes: Of all these accesses.
        requests: Accesses that a warp makes as one.
        transactions: Sectors that the requests moved (global), or wavefronts they took (shared).
        fewest: Transactions that would do.
        worst: The most transactions of a request (global), or of a part of it that is served at
            once (shared): the ways of its bank conflict.
    """

    reads: int = 0
    writes: int = 0
    atomics: int = 0
    bytes: int = 0
    requests: int = 0
    transactions: int = 0
    fewest: int = 0
    worst: int = 0

    @property
    def accesses(self) -> int:
        """Reads, writes and atomics."""
        return self.reads + self.writes + self.atomics

    @property
    def waste(self) -> float:
        """Transactions for each one that would do: 1 is perfect."""
        return self.transactions / self.fewest if self.fewest else 1.0

    @staticmethod
    def total(parts: Iterable[Traffic]) -> Traffic:
        """Add up traffic; the worst stays the worst."""
        parts = list(parts)
        sums = {f.name: sum(getattr(part, f.name) for part in parts) for f in fields(Traffic)}
        return replace(Traffic(**sums), worst=max((part.worst for part in parts), default=0))


@dataclass(frozen=True)
class Requests:
    """The accesses of one site, sorted by request and lane; arrays (A,) of int64.

    Attributes:
        site: The site.
        request: Which request an access belongs to, from 0.
        lane: The thread's place in its warp.
        address: In bytes.
    """

    site: Site
    request: Integers
    lane: Integers
    address: Integers

    @cached_property
    def traffic(self) -> Traffic:
        """What the requests cost."""
        transactions, fewest, _ = self._costs()
        accesses = len(self.request)
        return Traffic(
            **{f"{self.site.kind}s": accesses},
            bytes=accesses * self.site.itemsize,
            requests=int(self.request[-1]) + 1,
            transactions=int(transactions.sum()),
            fewest=int(fewest.sum()),
            worst=int(transactions.max()),
        )

    def worst(self) -> Requests:
        """Return the one request that costs most beyond what it has to: of equals, the first."""
        transactions, fewest, owner = self._costs()
        chosen = self.request == owner[(transactions - fewest).argmax()]
        lane = self.lane[chosen]
        return Requests(self.site, np.zeros_like(lane), lane, self.address[chosen])

    def _costs(self) -> tuple[Integers, Integers, Integers]:
        """Return transactions, the fewest that would do, and the request, of all that is served.

        In global memory that is a request. In shared memory it may be a part of one. Local arrays
        live in registers, or should: they cost nothing.
        """
        if self.site.space == "global":
            return self._sectors()
        if self.site.space == "shared":
            return self._wavefronts()
        none = np.zeros(1, np.int64)
        return none, none, none

    def _sectors(self) -> tuple[Integers, Integers, Integers]:
        request, _ = _distinct(*self._units(self.request, SECTOR))
        moved = np.bincount(request)
        request, _ = _distinct(self.request, self.address)
        used = np.bincount(request) * self.site.itemsize
        return moved, -(-used // SECTOR), np.arange(len(moved))

    def _wavefronts(self) -> tuple[Integers, Integers, Integers]:
        parts = min(max(1, self.site.itemsize // WORD), WARP)
        own_part = number(self.request, self.lane // (WARP // parts))
        part, word = self._units(own_part, WORD)
        if self.site.kind != "atomic":
            part, word = _distinct(part, word)
        wanted = np.zeros((part.max() + 1, BANKS), np.int64)
        np.add.at(wanted, (part, word % BANKS), 1)
        owner = np.empty(len(wanted), np.int64)
        owner[own_part] = self.request
        return wanted.max(axis=1), np.ones(len(wanted), np.int64), owner

    @cached_property
    def stride(self) -> int | None:
        """Bytes from a lane's address to the next active lane's, if most agree, or None."""
        neighbours = np.diff(self.request) == 0
        return usual(np.diff(self.address)[neighbours])

    def _units(self, owner: Integers, size: int) -> tuple[Integers, Integers]:
        """Return (owner, unit) for every unit of `size` bytes that an access touches."""
        first, last = self.address // size, (self.address + self.site.itemsize - 1) // size
        units = [first + k for k in range(int((last - first).max()) + 1)]
        touched = [unit <= last for unit in units]
        return (
            np.concatenate([owner[mask] for mask in touched]),
            np.concatenate([unit[mask] for unit, mask in zip(units, touched, strict=True)]),
        )


def requests(trace: Trace) -> Iterator[Requests]:
    """Return the requests of every site that was reached, in the order of the sites."""
    accesses = trace.accesses
    order = np.argsort(accesses["site"], kind="stable")
    starts = np.searchsorted(accesses["site"][order], np.arange(len(trace.sites) + 1))
    for site, start, stop in zip(trace.sites, starts[:-1], starts[1:], strict=True):
        if start < stop:
            yield _requests(site, accesses[order[start:stop]])


def _requests(site: Site, accesses: NDArray[np.void]) -> Requests:
    thread = accesses["thread"].astype(np.int64)
    order = np.lexsort((thread, accesses["step"], accesses["block"]))
    rows, thread = accesses[order], thread[order]
    request = number(rows["block"], rows["step"], thread // WARP)
    # Threads of a block stand in order at each step, so requests come out sorted.
    return Requests(site, request, thread % WARP, rows["address"].astype(np.int64))


def lanes(trace: Trace) -> tuple[Integers, Integers]:
    """Return for each statement how many lanes executed it, and how many their warps have.

    A warp counts as often as at least one of its lanes executes the statement.
    """
    threads = int(np.prod(trace.block))
    rows = trace.executions
    statement, warp = rows["statement"].astype(np.int64), rows["thread"].astype(np.int64) // WARP
    active = np.bincount(statement, minlength=len(trace.statements))
    statement, warp, *_ = _distinct(statement, warp, rows["block"], rows["step"])
    present = np.minimum(WARP, threads - warp * WARP)
    had = np.bincount(statement, weights=present, minlength=len(trace.statements))
    return active, had.astype(np.int64)


def usual(numbers: Integers) -> int | None:
    """Return the number that at least half of them are, if there is one."""
    found, counts = np.unique(numbers, return_counts=True)
    if not len(found) or 2 * counts.max() < counts.sum():
        return None
    return int(found[counts.argmax()])


def number(*columns: Integers) -> Integers:
    """Number the distinct rows of a table, in order: the first column decides before the next."""
    order = np.lexsort(columns[::-1])
    changes = np.zeros(len(order), bool)
    for column in columns:
        column = column[order]
        changes[1:] |= column[1:] != column[:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(changes)
    return numbers


def _distinct(*columns: Integers) -> list[Integers]:
    """Return the distinct rows of a table, in order."""
    _, first = np.unique(number(*columns), return_index=True)
    return [column[first] for column in columns]

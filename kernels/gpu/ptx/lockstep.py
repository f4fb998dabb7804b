"""Warps in lockstep: what a GPU issues, and what each access to memory costs.

The machine runs threads in any order, which proves most. What a GPU does is closer to this: the
lanes of a warp that are at the same row make it together, once. Lanes that parted at a branch meet
again as early as the text allows: of those that do not wait, the ones go first that are furthest
behind, in an order in which each row comes before those that it leads to, and a loop before what
follows it. NVIDIA does not say how its GPUs choose; where branches and loops are nested, as in
Python, each sensible way comes to the same counts.

An access of a warp to global memory moves sectors of 32 bytes; one to shared memory takes a
wavefront for each word that its busiest bank serves. `microscope.warps` says the rules. An array
is taken to begin where a GPU's allocator puts it, at a multiple of 256 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ...cpu.runtime import stack
from ..gpus import BANKS, SECTOR, WARP, WORD
from .bits import compiled
from .machine import (
    ACTIVE,
    AT,
    ATOMIC,
    BARRIER,
    CALL,
    END,
    ENDED,
    ENDLESS,
    FAULT,
    GLOBAL,
    JUMP,
    LOAD,
    MOST,
    RETURN,
    SHARED,
    STORE,
    THREAD,
    WRONG,
    Grid,
    meet,
    meets,
    pass_barrier,
    skipped,
    space_of,
    step,
)  # fmt: skip
from .parser import OWN, Program

# What is counted of each row.
COUNTED = "counts", "warps", "requests", "sectors", "wavefronts"
THREADS, WARPS, REQUESTS, SECTORS, WAVEFRONTS = range(len(COUNTED))
HERE, TOGETHER, MADE = range(3)  # of what a warp did last: the row, and masks of lanes


# The order of rows --------------------------------------------------------------------------------


@cache
def order(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each row in the order, and, of a loop's first row, that of its end.

    A lane that comes back to the first row of a loop is at the loop's end until the others are.
    """
    begins, follows = _blocks(program)
    place, end = np.zeros(len(program.rows), np.int64), np.zeros(len(program.rows), np.int64)
    now = 0
    for block, is_end in _nested(list(range(len(begins) - 1)), follows, begins[:-1]):
        if is_end:
            end[begins[block]], now = now, now + 1
        else:
            length = begins[block + 1] - begins[block]
            place[begins[block] : begins[block + 1]] = np.arange(now, now + length)
            now += length
    return place, end


def _blocks(program: Program) -> tuple[list[int], list[set[int]]]:
    """Where the rows begin that run one after the other, and which of these follow which."""
    code, guard = program.rows["code"], program.rows["guard"]
    leaves = np.isin(code, (JUMP, END, RETURN, OWN["trap"]))
    begins = {0, *program.rows["place"][np.isin(code, (JUMP, CALL))].tolist()}
    begins |= {at + 1 for at in np.flatnonzero(leaves).tolist()} | {len(code)}
    starts = sorted(begins)
    number = {start: i for i, start in enumerate(starts)}
    follows: list[set[int]] = []
    for stop in starts[1:]:
        last, found = stop - 1, set()
        if code[last] == JUMP:
            found.add(number[int(program.rows["place"][last])])
        if stop < len(code) and (not leaves[last] or guard[last] >= 0):
            found.add(number[stop])
        follows.append(found)
    return starts, follows


def _nested(
    blocks: list[int], follows: list[set[int]], begins: list[int]
) -> Iterator[tuple[int, bool]]:
    """Yield blocks in order; after a loop its first block again, with True.

    What reaches more comes first. Blocks that reach one another are a loop, which is ordered as if
    nothing led back to its first.
    """
    reach = np.eye(len(blocks), dtype=np.float32)
    within = {block: i for i, block in enumerate(blocks)}
    for block, i in within.items():
        reach[i, [within[each] for each in follows[block] if each in within]] = 1
    for _ in range(len(blocks).bit_length()):
        reach = np.minimum(reach @ reach, 1)
    seen: set[int] = set()
    for i in sorted(range(len(blocks)), key=lambda i: (-reach[i].sum(), begins[blocks[i]])):
        block = blocks[i]
        if block in seen:
            continue
        loop = [blocks[j] for j in np.flatnonzero((reach[i] > 0) & (reach[:, i] > 0))]
        seen |= {*loop}
        if len(loop) == 1 and block not in follows[block]:
            yield block, False
            continue
        outside = {each for other in set(range(len(follows))) - {*loop} for each in follows[other]}
        first = min((b for b in loop if b in outside or begins[b] == 0), key=lambda b: begins[b],
                    default=block)  # fmt: skip
        yield first, False
        yield from _nested([b for b in loop if b != first], follows, begins)
        yield first, True


# What an access costs -----------------------------------------------------------------------------


@compiled
def _sectors(addresses, lanes):  # type: ignore[no-untyped-def]
    """How many sectors of global memory the lanes of a mask touch."""
    found, count = stack(WARP, np.int64), 0
    for i in range(WARP):
        if (lanes >> i) & 1:
            sector, known = addresses[i] // SECTOR, False
            for j in range(count):
                known = known or found[count - 1 - j] == sector
            if not known:
                found[count] = sector
                count += 1
    return count


@compiled
def _wavefronts(addresses, lanes, size, atomic):  # type: ignore[no-untyped-def]
    """How many turns shared memory takes: 8 bytes by half a warp at a time, 16 by a quarter."""
    words, count = stack(WARP, np.int64), 0
    parts, turns = max(1, size // WORD), 0
    for first in range(0, WARP, WARP // parts):
        count = 0
        for i in range(first, first + WARP // parts):
            if (lanes >> i) & 1:
                for k in range(parts):
                    word, known = addresses[i] // WORD + k, False
                    for j in range(count):
                        known = known or (words[j] == word and not atomic)
                    if not known:
                        words[count] = word
                        count += 1
        most = 0
        for i in range(count):
            same = 0
            for j in range(count):
                same += words[j] % BANKS == words[i] % BANKS
            most = max(most, same)
        turns += most
    return turns


@compiled
def _count_access(row, here, own, active, regions, origins, counted):  # type: ignore[no-untyped-def]
    """Count what an access of the lanes of a mask costs."""
    addresses, space = stack(WARP, np.int64), np.int64(GLOBAL)
    for i in range(len(own)):
        if not (active >> i) & 1:
            continue
        address = own[i, row.a] + np.uint64(row.place)
        addresses[i] = np.int64(address)
        space = space_of(np.int64(address))
        if space != GLOBAL:
            continue
        for r in range(len(regions)):
            if regions[r, 0] <= address and address < regions[r, 1]:
                addresses[i] -= origins[r]
                break
    counted[REQUESTS, here] += 1
    size = row.size * max(row.count, 1)
    if space == GLOBAL:
        counted[SECTORS, here] += _sectors(addresses, active)
    elif space == SHARED:
        counted[WAVEFRONTS, here] += _wavefronts(addresses, active, size, row.code == ATOMIC)


# A warp -------------------------------------------------------------------------------------------


@compiled
def _key(place, end, here, after):  # type: ignore[no-untyped-def]
    """Where a lane is in the order that has come from a row to another of its function."""
    back = place[after] <= place[here]
    return end[after] if back and end[after] > 0 else place[after]


@compiled
def run_warp(  # type: ignore[no-untyped-def]
    rows, vectors, place, end, own, at, keys, waits, returns, windows, local, local_bytes, regions,
    origins, counted, did, most, report,
):  # fmt: skip
    """Let a warp's lanes go on, until all wait or have ended; return how many rows they made.

    At most `most`. `did` tells the last: the row, whose lanes came to it, and whose made it.
    """
    lanes, made = len(at), 0
    while made < most:
        ahead = -1
        for i in range(lanes):
            if at[i] == ENDED or waits[i]:
                continue
            deeper = returns[i, 0] - returns[ahead, 0]
            if ahead < 0 or deeper > 0 or (deeper == 0 and keys[i] < keys[ahead]):
                ahead = i
        came, active = np.int64(0), np.int64(0)
        if ahead < 0:  # perhaps lanes are waited for that have ended
            for i in range(lanes):
                if at[i] != ENDED and rows[at[i]].code != BARRIER and active == 0:
                    here = at[i]
                    active = meet(rows, vectors, own, at, i, waits, counted[THREADS], report)
            if active == 0:
                break
            came = active
        else:
            here = at[ahead]
            row = rows[here]
            for i in range(lanes):
                same = keys[i] == keys[ahead] and returns[i, 0] == returns[ahead, 0]
                if at[i] == here and same and not waits[i]:
                    came |= np.int64(1) << i
                    if not skipped(row, own[i]):
                        active |= np.int64(1) << i
        row = rows[here]
        made += 1
        counted[WARPS, here] += 1
        did[HERE], did[TOGETHER], did[MADE] = here, came, active
        if row.code in (LOAD, STORE, ATOMIC) and active:
            _count_access(row, here, own, active, regions, origins, counted)
        for i in range(lanes):
            if not (came >> i) & 1:
                continue
            after = here + 1
            if (active >> i) & 1 and ahead >= 0:
                if meets(row.code):
                    waits[i] = row.code != ACTIVE
                    if row.code == ACTIVE:
                        counted[THREADS, here] += 1
                        own[i, row.out] = np.uint64(active)
                        at[i], keys[i] = after, place[after]
                    continue
                counted[THREADS, here] += 1
                windows[3, 0] = local + np.uint64(i) * local_bytes
                after = step(rows, vectors, own[i], here, returns[i], windows, regions, report)
                if after == WRONG:
                    report[THREAD] = i
                    return made
            at[i] = after
            if after == ENDED:
                continue
            keys[i] = place[after]
            if row.code not in (CALL, RETURN):
                keys[i] = _key(place, end, here, after)
        if meets(row.code) and row.code not in (BARRIER, ACTIVE) and active and ahead >= 0:
            for i in range(lanes):
                if (active >> i) & 1:
                    active = meet(rows, vectors, own, at, i, waits, counted[THREADS], report)
                    did[MADE] = active
                    break
            for i in range(lanes):
                if (active >> i) & 1:
                    keys[i] = _key(place, end, here, here + 1)
            if active == 0:
                counted[WARPS, here] -= 1  # it is counted when it is made
                if report[FAULT]:
                    return made
    return made


class Lockstep(Grid):
    """The blocks of a launch, whose warps go in lockstep.

    Attributes:
        counted: Of each row what `COUNTED` names.
        did: What a warp did last: the row, and masks of the lanes that came to it and that made it.
    """

    def __init__(self, *launched: Any, origins: Sequence[int] = ()) -> None:
        super().__init__(*launched)
        self.place, self.end = order(self.program)
        begins = self.regions[:, 0].astype(np.int64)
        self.origins = begins.copy()
        self.origins[: len(origins)] = origins
        self.counted = np.zeros((len(COUNTED), len(self.rows)), np.int64)
        self.did = np.zeros(3, np.int64)
        self.keys = np.zeros(self.threads, np.int64)

    def begin(self, number: int) -> None:
        """Have a block's threads stand before its first row."""
        super().begin(number)
        self.keys[:] = self.place[0]

    def run_warp(self, first: int, most: int = MOST) -> int:
        """Let the warp go on whose first thread is given, by at most so many rows."""
        warp = slice(first, first + WARP)
        self.windows[3, 1] = self.local_bytes
        made: int = run_warp(
            self.rows, self.program.vectors, self.place, self.end, self.registers[warp],
            self.at[warp], self.keys[warp], self.waits[warp], self.returns[warp], self.windows,
            self.local + np.uint64(first) * self.local_bytes, self.local_bytes, self.regions,
            self.origins, self.counted, self.did, most, self.report,
        )  # fmt: skip
        if made == MOST:
            self.report[FAULT], self.report[AT] = ENDLESS, self.did[HERE]
        if self.report[FAULT]:
            self.report[THREAD] += first
            raise self.error()
        return made

    def pass_barrier(self) -> bool:
        """Let threads of the block pass a barrier, as all wait; False where all have ended."""
        before = self.at.copy()
        passed: bool = pass_barrier(
            self.rows, self.registers, self.at, self.waits, self.standing, self.counted[THREADS],
            self.report,
        )  # fmt: skip
        if self.report[FAULT]:
            raise self.error()
        gone = self.at != before
        self.keys[gone] = self.place[self.at[gone]]
        return passed

    def run(self, blocks: Iterable[int] | None = None) -> None:
        """Run blocks, by default all, one after the other."""
        for number in range(prod(self.shape)) if blocks is None else blocks:
            self.begin(number)
            while True:
                for first in range(0, self.threads, WARP):
                    self.run_warp(first)
                if not self.pass_barrier():
                    break

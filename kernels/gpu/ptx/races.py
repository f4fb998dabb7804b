"""Races: two threads come to one word, one of them to write there, and nothing says who is first.

What puts accesses of a block in order is a barrier, and `bar.warp.sync` for the lanes in its mask;
a shuffle or a vote does not, as the manual says. Blocks have no order at all. For each warp a clock
counts its meetings, and with each access goes the time at which it was made. A thread has met with
an access, and comes after it, where it knows of a later time of that warp: by its lanes for its own
warp, as they may meet one by one, and by warps for the others, as a whole warp comes to a barrier.

Of each word of four bytes the last write is kept, and the last four others that came to it, by as
many warps as there are. A write that leaves what was there needs no order among such writes, and
atomic operations need none among themselves: for a plain write both count as reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..gpus import WARP, WORD
from .bits import compiled, low, read_memory
from .parser import MEETINGS, OWN, PtxError

READERS = 4
STORE = OWN["store"]
ARRIVE = MEETINGS.index("arrive")
# A word of what is kept: when | which row | which thread | which bytes of the word.
TIME, PLACE, THREAD, BYTES = 31, 14, 4, 15
ROWS, THREADS = 1 << TIME - PLACE, 1 << PLACE - THREAD


class Watch(NamedTuple):
    """What is known of accesses.

    Attributes:
        words: Of each word the last write and the last others; without any, nobody watches.
        ranges: Where memory begins and ends, the place of its first word, whether blocks share it.
        begun: When the block began.
        now: The time of each warp.
        lanes: For each warp, of which time of another lane a lane knows.
        warps: Of which time of another warp a warp knows.
        told: Of which times those know who pass a barrier, as warps told that did not wait there.
        was: Where the threads were before they passed one.
    """

    words: np.ndarray
    ranges: np.ndarray
    begun: np.ndarray
    now: np.ndarray
    lanes: np.ndarray
    warps: np.ndarray
    told: np.ndarray
    was: np.ndarray


def watch(
    threads: int, barriers: int, rows: int, regions: Sequence[tuple[int, int]],
    shared: tuple[int, int], wanted: bool,
) -> Watch:  # fmt: skip
    """Return an empty record of a launch, with nothing to watch where that is not wanted."""
    merged: list[list[int]] = []
    for begin, end in sorted(regions) if wanted else ():
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin // WORD * WORD, end])
    if wanted and (rows > ROWS or threads > THREADS):
        raise PtxError(f"no more than {ROWS:,} rows and {THREADS:,} threads are watched")
    ranges, first = [], 0
    for begin, end, is_global in [*((*each, 1) for each in merged), (*shared, 0)]:
        if wanted:
            ranges.append((begin, end, first, is_global))
            first += -(-(end - begin) // WORD) + 1
    warps = -(-threads // WARP)
    return Watch(
        np.zeros((first, 1 + READERS), np.int64), np.array(ranges or [(0, 0, 0, 0)], np.int64),
        np.zeros(1, np.int64), np.zeros(warps, np.int64), np.zeros((warps, WARP, WARP), np.int64),
        np.zeros((warps, warps), np.int64), np.zeros((barriers, warps), np.int64),
        np.zeros(threads, np.int64),
    )  # fmt: skip


@compiled
def block_begins(known):  # type: ignore[no-untyped-def]
    """Begin a time of its own."""
    time = np.int64(0)
    for w in range(len(known.now)):
        time = max(time, known.now[w])
    time += 1
    known.begun[0], known.now[:] = time, time
    known.lanes[:], known.warps[:], known.told[:] = time, time, time


@compiled
def lanes_met(known, warp, together):  # type: ignore[no-untyped-def]
    """Lanes of a warp have met: each knows what any of them knew."""
    lanes = known.lanes[warp]
    known.now[warp] += 1
    for other in range(WARP):
        time = np.int64(0)
        for i in range(WARP):
            if (together >> i) & 1:
                time = max(time, lanes[i, other])
        if (together >> other) & 1:
            time = known.now[warp]
        for i in range(WARP):
            if (together >> i) & 1:
                lanes[i, other] = time


@compiled
def before_a_barrier(known, at):  # type: ignore[no-untyped-def]
    """Keep where the threads are."""
    for t in range(len(at)):
        known.was[t] = at[t]


@compiled
def barrier_passed(known, rows, registers, at):  # type: ignore[no-untyped-def]
    """Warps have gone on, from where they were: those that waited know what all of them knew."""
    warps, number = len(known.now), np.int64(-1)
    for w in range(warps):
        was = known.was[WARP * w]
        if at[WARP * w] == was:
            continue
        its = np.int64(registers[WARP * w, rows[was].a] & low(32))
        known.now[w] += 1
        told = known.told[its]
        for other in range(warps):
            told[other] = max(told[other], known.warps[w, other])
        told[w] = known.now[w]
        if rows[was].which != ARRIVE:
            number = its
    for w in range(warps):
        was = known.was[WARP * w]
        if number >= 0 and at[WARP * w] != was and rows[was].which != ARRIVE:
            for other in range(warps):
                known.warps[w, other] = known.told[number, other]
            known.lanes[w, :, :] = known.now[w]
    if number >= 0:
        known.told[number, :] = known.begun[0]


@compiled
def _unordered(known, record, thread, is_global):  # type: ignore[no-untyped-def]
    """Whether nothing puts what a thread does now behind what is recorded."""
    if record == 0:
        return False
    time, other = record >> TIME, (record >> THREAD) & (THREADS - 1)
    if time < known.begun[0]:
        return is_global != 0  # another block's
    if other // WARP != thread // WARP:
        return time >= known.warps[thread // WARP, other // WARP]
    lanes = known.lanes[thread // WARP]
    return other != thread and time >= lanes[thread % WARP, other % WARP]


@compiled
def _keep(known, word, record, thread, is_global):  # type: ignore[no-untyped-def]
    """Keep that a thread came to a word, in the place of one that it comes after."""
    mine = False
    for k in range(1, 1 + READERS):
        if not _unordered(known, word[k], thread, is_global):
            word[k] = record
            return
        same_block = word[k] >> TIME >= known.begun[0]
        other = (word[k] >> THREAD) & (THREADS - 1)
        mine = mine or (same_block and other // WARP == thread // WARP)
    if not mine:
        word[1] = record


@compiled
def accessed(known, row, at, thread, place, registers, vector):  # type: ignore[no-untyped-def]
    """Keep what a thread does at a place of the host's; return what that clashes with, or 0."""
    where, size = np.int64(place), row.size
    found = -1
    for r in range(known.ranges.shape[0]):
        if known.ranges[r, 0] <= where and where < known.ranges[r, 1]:
            found = r
    if found < 0:
        return np.int64(0)
    begin, first, is_global = known.ranges[found, 0], known.ranges[found, 2], known.ranges[found, 3]
    stamp = known.now[thread // WARP] << TIME | at << PLACE | thread << THREAD
    for i in range(max(row.count, 1)):
        writes = row.code == STORE
        if writes:
            new = registers[vector[i]] & low(8 * size)
            writes = read_memory(np.uint64(where + i * size), size) != new
        for offset in range(i * size, (i + 1) * size, min(size, WORD)):
            byte = where + offset - begin
            word = known.words[first + byte // WORD]
            covers = ((1 << min(size, WORD)) - 1) << byte % WORD & BYTES
            if word[0] & covers and _unordered(known, word[0], thread, is_global):
                if row.code != STORE or writes:
                    return word[0]
                word[0] = stamp | covers  # who comes here next finds what both wrote
            elif not writes:
                _keep(known, word, stamp | covers, thread, is_global)
            if not writes:
                continue
            for k in range(1, 1 + READERS):
                if word[k] & covers and _unordered(known, word[k], thread, is_global):
                    return word[k]
                if covers == BYTES:
                    word[k] = 0
            word[0] = stamp | covers
    return np.int64(0)


@compiled
def of_another_block(known, record):  # type: ignore[no-untyped-def]
    """Whether another block made an access."""
    return record >> TIME < known.begun[0]


@compiled
def place_of(record):  # type: ignore[no-untyped-def]
    """The row of an access."""
    return record >> PLACE & (ROWS - 1)


@compiled
def thread_of(record):  # type: ignore[no-untyped-def]
    """Who made an access."""
    return record >> THREAD & (THREADS - 1)

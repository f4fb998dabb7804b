"""The machine: it runs the rows of a program, thread by thread, and looks at each access.

A thread runs to its end, to a barrier, or to an instruction that a warp makes together; then comes
another, in an order that is drawn. What a GPU leaves open is chosen for the worse: registers and
shared memory begin as NaN, threads and blocks come in any order, shared arrays are aligned no
better than their declaration says. An access is allowed within the arrays of the launch, the
block's shared memory, the thread's own memory and the parameters, and where it is aligned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import string_at
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...cpu.launch import place_of as indices_of
from ...cpu.runtime import stack
from ..gpus import WARP
from .arithmetic import CODES, ONE_STEP, compute
from .bits import (
    ALL,
    POISON,
    bits_of_float32,
    bits_of_float64,
    compiled,
    float32_of,
    float64_of,
    low,
    read_memory,
    signed,
    write_memory,
)  # fmt: skip
from .parser import DEEPEST, MEETINGS, OWN, SPACES, WINDOW, Line, Program, PtxError, space_at
from .races import (
    accessed,
    barrier_passed,
    before_a_barrier,
    block_begins,
    lanes_met,
    of_another_block,
    place_of,
    thread_of,
    watch,
)  # fmt: skip

MOST = 200_000_000  # instructions of a thread between two waits: a loop without an end

COMPUTES = len(CODES)  # rows with a smaller code only compute
LOAD, STORE, JUMP, END, RETURN, CALL = (
    OWN[x] for x in ("load", "store", "jump", "end", "return", "call")
)
BARRIER, WARP_BARRIER, SHUFFLE = OWN["barrier"], OWN["warp_barrier"], OWN["shuffle"]
VOTE, MATCH, MATRIX, ATOMIC = OWN["vote"], OWN["match"], OWN["matrix"], OWN["atomic"]
PACK, UNPACK, NOTHING, ACTIVE = OWN["pack"], OWN["unpack"], OWN["nothing"], OWN["active"]
PRINT, PRINTED = OWN["print"], 7  # of the windows, that of what is printed
PRINTED_BYTES = 1 << 20  # as on a GPU: of more, some is lost
GENERIC, GLOBAL, SHARED, CONST = (SPACES[x] for x in ("generic", "global", "shared", "const"))

ENDED, WRONG = -1, -2  # in place of where a thread is
BARRIERS = 16  # of a block
ARRIVE, COUNT, ALL_HOLD, ANY_HOLDS = (MEETINGS.index(x) for x in ("arrive", "popc", "and", "or"))
# What went wrong, and where: the columns of a report.
FAULT, AT, ADDRESS, BYTES, THREAD, OTHER_AT, OTHER_THREAD, OTHER_BLOCK = range(8)
(OUTSIDE, MISALIGNED, DEADLOCK, MISSING_LANES, TRAPPED, ENDLESS, TOO_DEEP, ELSEWHERE,
 NO_BARRIER, RACE) = range(1, 11)  # fmt: skip
FAULTS = {
    OUTSIDE: "accesses {bytes} bytes at {address}, which no array of the launch has",
    MISALIGNED: "accesses {bytes} bytes at {address}, which is no multiple of that",
    DEADLOCK: "waits at a barrier that others never reach",
    MISSING_LANES: "waits for lanes of its warp that are elsewhere, or not in the mask",
    TRAPPED: "came to a trap",
    ENDLESS: f"ran {MOST:,} instructions without coming to an end",
    TOO_DEEP: f"calls more than {DEEPEST} functions in one another",
    ELSEWHERE: "waits at one barrier, others of its block at another",
    NO_BARRIER: f"waits at a barrier that is none of the {BARRIERS}, or not for whole warps",
    RACE: "accesses {bytes} bytes at {address}, as {other} did, one of them to write, and no "
    "barrier stands between",
}


space_of = compiled(space_at)


@compiled
def _place(address, size, space, windows, regions):  # type: ignore[no-untyped-def]
    """Where the host has what is at an address of the GPU's; 0 if it has nothing there.

    `windows` holds, for each space, where its memory begins and how long it is.
    """
    window = space_of(np.int64(address))
    if window != GLOBAL:
        offset = address % np.uint64(WINDOW)
        if space not in (GENERIC, window) or offset + size > windows[window, 1]:
            return np.uint64(0)
        return windows[window, 0] + offset
    if space not in (GENERIC, GLOBAL, CONST):
        return np.uint64(0)
    for i in range(regions.shape[0]):
        if regions[i, 0] <= address and address + size <= regions[i, 1]:
            return address
    return np.uint64(0)


@compiled
def _found(row, registers, count, windows, regions, report):  # type: ignore[no-untyped-def]
    """Where the host has what a row accesses; 0 after a report."""
    address = registers[row.a] + np.uint64(row.place)
    size = np.uint64(row.size * count)
    place = np.uint64(0)
    if address % size == 0:
        place = _place(address, size, row.space, windows, regions)
    if place == 0:
        report[FAULT] = MISALIGNED if address % size != 0 else OUTSIDE
        report[ADDRESS], report[BYTES] = np.int64(address), np.int64(size)
    return place


@compiled
def _updated(old, value, other, row):  # type: ignore[no-untyped-def]
    """What an atomic operation leaves."""
    which, kind, bits = row.which, row.signed, 8 * row.size
    if which == 0:
        if kind == 2 and bits == 32:
            return bits_of_float32(float32_of(old) + float32_of(value))
        if kind == 2:
            return bits_of_float64(float64_of(old) + float64_of(value))
        return (old + value) & low(bits)
    if which == 1 or which == 2:
        less = signed(old, bits) < signed(value, bits) if kind == 1 else old < value
        return old if less == (which == 1) else value
    if which == 3:
        return value
    if which == 4:
        return other if old == value else old
    if which == 5:
        return old & value
    if which == 6:
        return old | value
    if which == 7:
        return old ^ value
    if which == 8:
        return np.uint64(0) if old >= value else old + np.uint64(1)
    return value if old == 0 or old > value else old - np.uint64(1)


@compiled
def skipped(row, registers):  # type: ignore[no-untyped-def]
    """Whether a row's guard keeps a thread from it."""
    return row.guard >= 0 and (registers[row.guard] != 0) == (row.negated != 0)


@compiled
def meets(code):  # type: ignore[no-untyped-def]
    """Whether an instruction waits for other threads."""
    return BARRIER <= code <= MATRIX or code == ACTIVE


@compiled
def _begin_call(row, vector, registers, after, returns):  # type: ignore[no-untyped-def]
    """Keep where to go back to, and, for a frame of its own, the registers of what is called."""
    place = 1 + returns[0] * (returns.shape[0] // DEEPEST)
    returns[0], returns[place] = returns[0] + 1, after
    if row.size:
        frame, first, end = vector[0], vector[1], vector[2]
        for i in range(first, end):
            returns[place + 1 + i - first] = np.int64(registers[i])
        registers[frame] += np.uint64(row.size)


@compiled
def _end_call(row, vector, registers, returns):  # type: ignore[no-untyped-def]
    """Give the registers back; return where to go on."""
    returns[0] -= 1
    place = 1 + returns[0] * (returns.shape[0] // DEEPEST)
    if row.size:
        frame, first, end = vector[0], vector[1], vector[2]
        for i in range(first, end):
            registers[i] = np.uint64(returns[place + 1 + i - first])
        registers[frame] -= np.uint64(row.size)
    return returns[place]


@compiled
def _keep_print(row, registers, windows, regions, report):  # type: ignore[no-untyped-def]
    """Keep a text's address, and a number for each % in it; return whether all is there.

    Before what is kept stands how many bytes it has. What does not fit is lost.
    """
    begin, room = windows[PRINTED, 0], windows[PRINTED, 1] - np.uint64(8)
    word, one, text, given = np.uint64(8), np.uint64(1), registers[row.a], registers[row.b]
    kept, new, letter = read_memory(begin, 8), text, np.uint64(ord("%"))
    while letter != 0:
        if letter == ord("%"):
            kept += word
            if kept <= room:
                write_memory(begin + kept, 8, new)
        place = _place(text, one, GENERIC, windows, regions)
        if place == 0:
            report[FAULT], report[ADDRESS], report[BYTES] = OUTSIDE, np.int64(text), 1
            return False
        letter = read_memory(place, 1)
        text += one
        if letter == ord("%"):
            place = _place(given, word, GENERIC, windows, regions)
            if place == 0:
                report[FAULT], report[ADDRESS], report[BYTES] = OUTSIDE, np.int64(given), 8
                return False
            new = read_memory(place, 8)
            given += word
    if kept <= room:
        write_memory(begin, 8, kept)
    return True


@partial(compiled, inline=True)
def step(rows, vectors, registers, at, returns, windows, regions, report):  # type: ignore[no-untyped-def]
    """Have a thread make an instruction by itself; return the next row, ENDED or WRONG.

    `returns` is its stack: how deep it is; then, for each call, where to go back to, and registers.
    """
    row = rows[at]
    code = row.code
    if code < COMPUTES:
        registers[row.out] = compute(
            code, registers[row.a], registers[row.b], registers[row.c], registers[row.d], row
        )
    elif code in (LOAD, STORE):
        place = _found(row, registers, row.count, windows, regions, report)
        if place == 0:
            report[AT] = at
            return WRONG
        size = row.size
        for i in range(row.count):
            where = place + np.uint64(i * size)
            if code == STORE:
                write_memory(where, size, registers[vectors[at, i]])
            else:
                bits = read_memory(where, size)
                if row.signed and 8 * size < row.bits:
                    bits = np.uint64(signed(bits, 8 * size)) & low(row.bits)
                registers[vectors[at, i]] = bits
    elif code == JUMP:
        return row.place
    elif code == ATOMIC:
        place = _found(row, registers, 1, windows, regions, report)
        if place == 0:
            report[AT] = at
            return WRONG
        old = read_memory(place, row.size)
        mask = low(8 * row.size)
        new = _updated(old, registers[row.b] & mask, registers[row.c] & mask, row)
        write_memory(place, row.size, new)
        if row.out >= 0:
            registers[row.out] = old
    elif code == PACK:
        word = np.uint64(0)
        for i in range(row.count):
            part = registers[vectors[at, i]] & low(row.bits)
            word |= part << np.uint64(i * row.bits)
        registers[row.out] = word
    elif code == UNPACK:
        word = registers[row.a]
        for i in range(row.count):
            registers[vectors[at, i]] = (word >> np.uint64(i * row.bits)) & low(row.bits)
    elif code == END:
        return ENDED
    elif code == CALL:
        if returns[0] == DEEPEST:
            report[FAULT], report[AT] = TOO_DEEP, at
            return WRONG
        _begin_call(row, vectors[at], registers, at + 1, returns)
        return row.place
    elif code == RETURN:
        return _end_call(row, vectors[at], registers, returns)
    elif code == PRINT:
        if not _keep_print(row, registers, windows, regions, report):
            report[AT] = at
            return WRONG
    elif code != NOTHING:
        report[FAULT], report[AT] = TRAPPED, at
        return WRONG
    return at + 1


@compiled
def _clashes(row, vector, registers, at, thread, windows, regions, known, report):  # type: ignore[no-untyped-def]
    """Whether an access is in a race with an earlier one, after a report."""
    if row.code not in (LOAD, STORE, ATOMIC):
        return False
    address, size = registers[row.a] + np.uint64(row.place), row.size * max(row.count, 1)
    place = _place(address, np.uint64(size), row.space, windows, regions)
    if place == 0:
        return False
    other = accessed(known, row, at, thread, place, registers, vector)
    if other == 0:
        return False
    report[FAULT], report[AT], report[THREAD] = RACE, at, thread
    report[ADDRESS], report[BYTES] = np.int64(address), size
    report[OTHER_AT], report[OTHER_THREAD] = place_of(other), thread_of(other)
    report[OTHER_BLOCK] = of_another_block(known, other)
    return True


@compiled
def _run_thread(  # type: ignore[no-untyped-def]
    rows, vectors, registers, at, thread, returns, windows, regions, known, counts, report
):
    """Run a thread from a row on; return the row where it waits, ENDED or WRONG."""
    made, watched = 0, len(known.words) > 0
    while at >= 0:
        row = rows[at]
        if skipped(row, registers):
            at += 1
            continue
        if meets(row.code):
            break
        counts[at] += 1
        made += 1
        if made > MOST:
            report[FAULT], report[AT] = ENDLESS, at
            return WRONG
        if watched and _clashes(
            row, vectors[at], registers, at, thread, windows, regions, known, report
        ):
            return WRONG
        at = step(rows, vectors, registers, at, returns, windows, regions, report)
    return at


@compiled
def _shuffle(row, registers, lanes, together):  # type: ignore[no-untyped-def]
    values = stack(WARP, np.uint64)
    for i in range(lanes):
        values[i] = registers[i, row.b]
    for i in range(lanes):
        if not (together >> i) & 1:
            continue
        by = np.int64(registers[i, row.c] & np.uint64(31))
        clamp = np.int64(registers[i, row.given_bits])
        segment, end = (clamp >> 8) & 31, clamp & 31
        lowest, highest = i & segment, (i & segment) | (end & ~segment & 31)
        which = row.which
        if which == 0:
            j = i - by
            within = j >= highest
        else:
            if which == 1:
                j = i + by
            elif which == 2:
                j = i ^ by
            else:
                j = lowest | (by & ~segment & 31)
            within = j <= highest
        if not within:
            j = np.int64(i)
        given = j < lanes and (together >> j) & 1
        registers[i, row.out] = values[j] if given else POISON & low(32)
        if row.d >= 0:
            registers[i, row.d] = np.uint64(within)


@compiled
def _vote(row, registers, lanes, together):  # type: ignore[no-untyped-def]
    ballot = np.int64(0)
    for i in range(lanes):
        if (together >> i) & 1 and (registers[i, row.b] != 0) != (row.combine != 0):
            ballot |= np.int64(1) << i
    for i in range(lanes):
        if (together >> i) & 1:
            which, found = row.which, np.uint64(ballot)
            if which == 0:
                found = np.uint64(ballot != 0)
            elif which == 1:
                found = np.uint64(ballot == together)
            elif which == 2:
                found = np.uint64(ballot == together or ballot == 0)
            registers[i, row.out] = found


@compiled
def _match(row, registers, lanes, together):  # type: ignore[no-untyped-def]
    values = stack(WARP, np.uint64)
    for i in range(lanes):
        values[i] = registers[i, row.b]
    for i in range(lanes):
        if not (together >> i) & 1:
            continue
        same = np.int64(0)
        for j in range(lanes):
            if (together >> j) & 1 and values[j] == values[i]:
                same |= np.int64(1) << j
        whole = same == together
        registers[i, row.out] = np.uint64(same if whole or row.which == 0 else 0)
        if row.d >= 0:
            registers[i, row.d] = np.uint64(whole)


@compiled
def _matrix(vector, registers):  # type: ignore[no-untyped-def]
    """mma.m16n8k8 of tf32: which lane holds which elements is in the manual's figures.

    `vector` names the four registers of the result, four of A, two of B and four of C.
    """
    a, b, c = stack((16, 8), np.float64), stack((8, 8), np.float64), stack((16, 8), np.float64)
    cut = np.uint64(0xFFFF_E000)  # the bits that tf32 has
    for lane in range(WARP):
        own, group, t = registers[lane], lane // 4, lane % 4
        for part in range(4):
            of_a = float32_of(own[vector[4 + part]] & cut)
            a[group + 8 * (part % 2), t + 4 * (part // 2)] = of_a
            of_c = float32_of(own[vector[10 + part]])
            c[group + 8 * (part // 2), 2 * t + part % 2] = of_c
        for part in range(2):
            b[t + 4 * part, group] = float32_of(own[vector[8 + part]] & cut)
    for i in range(16):
        for j in range(8):
            for k in range(8):
                c[i, j] += a[i, k] * b[k, j]
    for lane in range(WARP):
        own, group, t = registers[lane], lane // 4, lane % 4
        for part in range(4):
            of_c = c[group + 8 * (part // 2), 2 * t + part % 2]
            own[vector[part]] = bits_of_float32(np.float32(of_c))


@compiled
def meet(rows, vectors, own, at, lane, waits, counts, report):  # type: ignore[no-untyped-def]
    """Let a lane and those it waits for make an instruction of a warp; return their mask.

    `own`, `at` and `waits` are of the warp's lanes. The mask is 0 where some are yet to come, and
    after a report.
    """
    lanes, here = len(at), at[lane]
    row = rows[here]
    together, ready = np.int64(0), True
    if row.code == ACTIVE:  # whoever is there now: this lane, at least
        together = np.int64(1) << lane
        own[lane, row.out] = np.uint64(together)
    else:
        whole = row.code == MATRIX
        mask = low(32) if whole else own[lane, row.a] & low(32)
        if not (mask >> np.uint64(lane)) & np.uint64(1) or (whole and lanes < WARP):
            report[FAULT], report[AT], report[THREAD] = MISSING_LANES, here, lane
            return np.int64(0)
        for j in range(lanes):
            if (mask >> np.uint64(j)) & np.uint64(1) and at[j] != ENDED:
                if at[j] == here and waits[j]:
                    together |= np.int64(1) << j
                else:
                    ready = False
        if not ready:
            return np.int64(0)
        if row.code == SHUFFLE:
            _shuffle(row, own, lanes, together)
        elif row.code == VOTE:
            _vote(row, own, lanes, together)
        elif row.code == MATCH:
            _match(row, own, lanes, together)
        elif whole:
            _matrix(vectors[here], own)
    for j in range(lanes):
        if (together >> j) & 1:
            counts[here] += 1
            at[j], waits[j] = here + 1, False
    return together


@compiled
def _together(rows, vectors, own, at, warp, waits, known, counts, report):  # type: ignore[no-untyped-def]
    """Let the lanes of a warp that have met make an instruction; return whether any did."""
    moved = False
    for i in range(len(at)):
        if at[i] >= 0 and waits[i] and rows[at[i]].code != BARRIER:
            orders = len(known.words) > 0 and rows[at[i]].code == WARP_BARRIER
            together = meet(rows, vectors, own, at, i, waits, counts, report)
            if together != 0:
                moved = True
                if orders:
                    lanes_met(known, warp, together)
            if report[FAULT]:
                return False
    return moved


@compiled
def _barrier_of(rows, registers, at, first):  # type: ignore[no-untyped-def]
    """The number of the barrier at which a whole warp is; -1 where it is elsewhere."""
    here = at[first]
    if here < 0 or rows[here].code != BARRIER:
        return -1
    for i in range(first, min(first + WARP, len(at))):
        if at[i] != here:
            return -1
    return np.int64(registers[first, rows[here].a] & low(32))


@compiled
def _needed(row, registers, thread):  # type: ignore[no-untyped-def]
    """For how many threads a barrier is: those of a warp that is not full count as 32."""
    if row.b >= 0:
        return np.int64(registers[thread, row.b] & low(32))
    return -(-registers.shape[0] // WARP) * WARP


@compiled
def _release(rows, registers, at, waits, number, end, counts):  # type: ignore[no-untyped-def]
    """Let the warps before a thread go on that wait at a barrier."""
    met, holds = 0, 0
    for turn in range(2):  # in the first, what they know is counted; in the second, all hear of it
        for first in range(0, end, WARP):
            if _barrier_of(rows, registers, at, first) != number:
                continue
            here = at[first]
            row = rows[here]
            for t in range(first, min(first + WARP, len(at))):
                if turn == 0:
                    met += 1
                    if row.c >= 0 and (registers[t, row.c] != 0) != (row.combine != 0):
                        holds += 1
                    continue
                if row.which == COUNT:
                    registers[t, row.out] = np.uint64(holds)
                elif row.which == ALL_HOLD:
                    registers[t, row.out] = np.uint64(holds == met)
                elif row.which == ANY_HOLDS:
                    registers[t, row.out] = np.uint64(holds > 0)
                counts[here] += 1
                at[t], waits[t] = here + 1, False


@compiled
def pass_barrier(rows, registers, at, waits, standing, counts, report):  # type: ignore[no-untyped-def]
    """Let those pass a barrier for which enough have come; return whether any did.

    All threads wait, or have ended. `standing` counts, for each barrier, those that came by
    `bar.arrive`, which waits for nobody.
    """
    threads, arrived = len(at), False
    for first in range(0, threads, WARP):
        number = _barrier_of(rows, registers, at, first)
        if number < 0:
            continue
        here = at[first]
        needed = _needed(rows[here], registers, first)
        if number >= BARRIERS or needed <= 0 or needed % WARP:
            report[FAULT], report[AT], report[THREAD] = NO_BARRIER, here, first
            return False
        if rows[here].which == ARRIVE:
            standing[number] = (standing[number] + WARP) % needed
            for t in range(first, min(first + WARP, threads)):
                counts[here] += 1
                at[t], waits[t] = here + 1, False
            arrived = True
    for first in range(0, 0 if arrived else threads, WARP):
        number = _barrier_of(rows, registers, at, first)
        if number < 0:
            continue
        here, come = at[first], standing[number]
        needed = _needed(rows[here], registers, first)
        for other in range(first, threads, WARP):
            if _barrier_of(rows, registers, at, other) != number:
                continue
            its = rows[at[other]]
            if _needed(its, registers, other) != needed or (its.b < 0 and at[other] != here):
                report[FAULT], report[AT], report[THREAD] = ELSEWHERE, at[other], other
                return False
            come += WARP
            if come == needed:
                _release(rows, registers, at, waits, number, other + 1, counts)
                standing[number] = 0
                return True
    if arrived:
        return True
    barrier = -1
    for t in range(threads):  # nobody moves any more
        if at[t] == ENDED:
            continue
        elsewhere = rows[at[t]].code != BARRIER
        if barrier < 0 or elsewhere:
            report[FAULT] = MISSING_LANES if elsewhere else DEADLOCK
            report[AT], report[THREAD] = at[t], t
        elif at[t] != barrier:
            report[FAULT] = ELSEWHERE
        if elsewhere:
            break
        barrier = at[t]
    return False


@compiled
def run_block(  # type: ignore[no-untyped-def]
    rows, vectors, registers, at, waits, returns, order, standing, windows, local, local_bytes,
    regions, known, counts, report,
):  # fmt: skip
    """Run a block's threads to their ends, in turns; return whether all went well.

    `at` is the row where each is, `waits` whether it waits there, `returns` its stack.
    """
    threads, watched = registers.shape[0], len(known.words) > 0
    if watched:
        block_begins(known)
    while True:
        moved = False
        for t in order:
            if at[t] == ENDED or waits[t]:
                continue
            windows[3, 0], windows[3, 1] = local + np.uint64(t) * local_bytes, local_bytes
            at[t] = _run_thread(
                rows, vectors, registers[t], at[t], t, returns[t], windows, regions, known, counts,
                report,
            )  # fmt: skip
            if at[t] == WRONG:
                report[THREAD] = t
                return False
            waits[t] = at[t] != ENDED
            moved = True
        for first in range(0, threads, WARP):
            warp = slice(first, min(first + WARP, threads))
            own = registers[warp]
            if _together(
                rows, vectors, own, at[warp], first // WARP, waits[warp], known, counts, report
            ):
                moved = True
            if report[FAULT]:
                report[THREAD] += first
                return False
        if moved:
            continue
        if watched:
            before_a_barrier(known, at)
        if not pass_barrier(rows, registers, at, waits, standing, counts, report):
            return report[FAULT] == 0
        if watched:
            barrier_passed(known, rows, registers, at)


@dataclass
class Run:
    """What a launch did.

    Attributes:
        program: What was run.
        counts: How often each of its rows was, by all threads.
    """

    program: Program
    counts: np.ndarray

    @property
    def instructions(self) -> int:
        """How many were executed."""
        return int(self.counts[[bool(line.text) for line in self.program.lines]].sum())


def launch(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    parameters: Sequence[bytes],
    regions: Sequence[tuple[int, int]],
    shared_bytes: int = 0,
    *,
    seed: int | None = 0,
    jitter: float = 0.0,
    races: bool = False,
) -> Run:
    """Run every block of a grid.

    Args:
        program: What to run.
        grid: How many blocks, along x, y and z.
        block: How many threads a block has, along x, y and z.
        parameters: The kernel's, each at least as long as it is in the PTX, which takes the first.
        regions: Where the launch's arrays begin and end, as addresses of the host.
        shared_bytes: Of dynamic shared memory.
        seed: Of the order of blocks and threads; None: one after the other.
        jitter: From -1 to 1: by which part of the error that the manual allows approximate
            functions are off.
        races: Whether to look for accesses that nothing puts in order: see `races`.

    Raises:
        PtxError: The kernel did something that a GPU does not allow, or leaves open.
    """
    rng = None if seed is None else np.random.default_rng(seed)
    made = Grid(program, grid, block, parameters, regions, shared_bytes, jitter)
    numbers = np.arange(prod(grid)) if rng is None else rng.permutation(prod(grid))
    counts = np.zeros(len(made.rows), np.int64)
    shared = np.lib.array_utils.byte_bounds(made.shared)
    known = watch(made.threads, BARRIERS, len(made.rows), regions, shared, races)
    with printing(made):
        for number in numbers.tolist():
            made.begin(number)
            order = np.arange(made.threads) if rng is None else rng.permutation(made.threads)
            if not run_block(
                made.rows, program.vectors, made.registers, made.at, made.waits, made.returns,
                order, made.standing, made.windows, made.local, made.local_bytes, made.regions,
                known, counts, made.report,
            ):  # fmt: skip
                raise made.error()
    return Run(program, counts)


class Grid:
    """The blocks of a launch, one at a time: the state of its threads, and its memory.

    Attributes:
        rows: What runs, with its jitter.
        registers: Of each thread.
        at: The row where each thread is.
        waits: Whether it waits there.
        returns: Its stack: how deep it is; then, for each call, where to go back to, and registers.
        standing: For each barrier, how many threads have come that do not wait.
        windows: For each space, where its memory begins and how long it is.
        local: Where the threads' own memory begins.
        local_bytes: Of each thread.
        shared: The block's shared memory.
        regions: Where arrays begin and end.
        report: What went wrong.
        block: The place of the block in the grid.
    """

    def __init__(
        self, program: Program, grid: Sequence[int], block: Sequence[int],
        parameters: Sequence[bytes], regions: Sequence[tuple[int, int]], shared_bytes: int = 0,
        jitter: float = 0.0,
    ) -> None:  # fmt: skip
        if len(parameters) != len(program.parameters):
            raise PtxError(
                f"{program.name} has {len(program.parameters)} parameters, got {len(parameters)}"
            )
        self.program, self.shape, self.threads_shape = program, tuple(grid), tuple(block)
        self.threads = prod(block)
        self.rows = program.rows.copy()
        self.rows["jitter"] = round(jitter * ONE_STEP)
        self._local = np.empty(program.local_bytes * self.threads + 16, np.uint8)
        self.local = np.uint64(-(-self._local.ctypes.data // 16) * 16)
        self.local_bytes = np.uint64(program.local_bytes)
        self._given = np.zeros(program.parameter_bytes + 16, np.uint8)
        for (begin, size), value in zip(program.parameters, parameters, strict=True):
            self._given[begin : begin + size] = np.frombuffer(value[:size], np.uint8)
        self.shared = _shared(program.shared_bytes + shared_bytes * (program.dynamic is not None))
        self.windows = np.zeros((8, 2), np.uint64)
        self.windows[SPACES["shared"]] = self.shared.ctypes.data, self.shared.size
        self.windows[SPACES["param"]] = self._given.ctypes.data, program.parameter_bytes
        self._printed = np.zeros(PRINTED_BYTES // 8, np.uint64)
        self.windows[PRINTED] = self._printed.ctypes.data, self._printed.nbytes
        tables = [np.lib.array_utils.byte_bounds(table) for _, table in program.tables]
        self.regions = np.array([*regions, *tables] or [(1, 1)], np.uint64)
        self._first = _registers(program, grid, block, shared_bytes)
        self.registers = np.empty_like(self._first)
        self.at, self.waits = np.zeros(self.threads, np.int64), np.zeros(self.threads, np.bool_)
        self.returns = np.zeros(
            (self.threads, 1 + DEEPEST * (1 + program.kept_registers)), np.int64
        )
        self.standing = np.zeros(BARRIERS, np.int64)
        self.report = np.zeros(8, np.int64)
        self.block = 0, 0, 0

    def begin(self, number: int) -> None:
        """Have a block's threads stand before its first row."""
        self.block = indices_of(number, self.shape)
        self.shared[:], self._local[:], self.registers[:] = 255, 255, self._first
        for axis, place in zip("xyz", self.block, strict=True):
            if f"ctaid.{axis}" in self.program.specials:
                self.registers[:, self.program.specials[f"ctaid.{axis}"]] = place
        self.at[:], self.waits[:], self.returns[:, 0], self.standing[:] = 0, False, 0, 0

    def error(self) -> PtxError:
        """What went wrong, as the report says."""
        return PtxError(_said(self.program, self.report, self.block, self.threads_shape))

    def printed(self) -> Iterator[str]:
        """Yield what threads printed."""
        words = iter(self._printed[1 : 1 + int(self._printed[0]) // 8])
        for address in words:
            text = string_at(int(address)).decode()
            kinds = re.findall(r"%l*(\w)", text)  # as `%lld`, of which Python knows one l
            values = tuple(_READ[kind](next(words)) for kind in kinds)
            yield re.sub("%l*", "%", text) % values


_READ: dict[str, Callable[[np.uint64], Any]] = {
    "d": lambda word: word.view(np.int64), "u": int, "f": lambda word: word.view(np.float64),
    "s": lambda word: string_at(int(word)).decode(),
}  # fmt: skip


@contextmanager
def printing(made: Grid) -> Iterator[None]:
    """Print at the end what threads have printed, also where something goes wrong."""
    try:
        yield
    finally:
        print(*made.printed(), sep="", end="")


def _shared(size: int) -> np.ndarray:
    """Memory of a block, at the beginning of a page."""
    memory = np.empty(size + 4096, np.uint8)
    begin = -memory.ctypes.data % 4096
    return memory[begin : begin + size]


def _registers(
    program: Program, grid: Sequence[int], block: Sequence[int], shared_bytes: int
) -> np.ndarray:
    """The registers of all threads as a block begins."""
    row = np.full(program.registers, POISON, np.uint64)
    for slot, value in program.constants.items():
        row[slot] = value
    for slot, table in program.tables:
        row[slot] = table.ctypes.data
    threads = np.arange(prod(block))
    found = np.tile(row, (len(threads), 1))
    lane, one = (threads % WARP).astype(np.uint64), np.uint64(1)
    places: dict[str, Any] = {
        "tid.x": threads % block[0],
        "tid.y": threads // block[0] % block[1],
        "tid.z": threads // (block[0] * block[1]),
        "laneid": lane,
        "warpid": threads // WARP,
        "nwarpid": -(-len(threads) // WARP),
        "dynamic_smem_size": shared_bytes,
        "total_smem_size": program.shared_bytes + shared_bytes,
        "lanemask_eq": one << lane,
        "lanemask_lt": (one << lane) - one,
        "lanemask_le": (one << (lane + one)) - one,
        "lanemask_gt": ~((one << (lane + one)) - one) & np.uint64(0xFFFF_FFFF),
        "lanemask_ge": ~((one << lane) - one) & np.uint64(0xFFFF_FFFF),
        "WARP_SZ": WARP,
    }
    for axis, n_blocks, n_threads in zip("xyz", grid, block, strict=True):
        places |= {f"ntid.{axis}": n_threads, f"nctaid.{axis}": n_blocks, f"ctaid.{axis}": 0}
    for name, slot in program.specials.items():
        if name not in places:
            raise PtxError(f"{program.name}: the PTX machine has no register %{name}")
        found[:, slot] = places[name]
    return found


def _said(program: Program, report: np.ndarray, here: Sequence[int], block: Sequence[int]) -> str:
    """What went wrong, as a sentence."""
    program.find_sources()
    fault, address = int(report[FAULT]), int(report[ADDRESS]) & int(ALL)
    space = next(name for name, number in SPACES.items() if number == space_at(address))
    named = f"{space} {address % WINDOW if space != 'global' else address:#x}"

    thread, met = (indices_of(int(report[column]), block) for column in (THREAD, OTHER_THREAD))
    other = f"thread {met}" + " of another block" * bool(report[OTHER_BLOCK])
    what = FAULTS[fault].format(bytes=int(report[BYTES]), address=named, other=other)
    said = f"{program.name}: thread {thread} of block {tuple(here)} {what}: "
    said += _shown(program.lines[int(report[AT])])
    if fault == RACE:
        said += f"; the other: {_shown(program.lines[int(report[OTHER_AT])])}"
    return said


def _shown(line: Line) -> str:
    """An instruction, and where it stands."""
    source = f", line {line.source} of its source" if line.source else ""
    return f"`{line.text}`, line {line.number} of the PTX{source}"

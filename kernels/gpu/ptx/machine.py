"""The machine: it runs the rows of a program, thread by thread, and looks at each access.

A thread runs to its end, to a barrier, or to an instruction that a warp makes together; then comes
another, in an order that is drawn. What a GPU leaves open is chosen for the worse: registers and
shared memory begin as NaN, threads and blocks come in any order, shared arrays are aligned no
better than their declaration says. An access is allowed within the arrays of the launch, the
block's shared memory, the thread's own memory and the parameters, and where it is aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...cpu.runtime import stack
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
from .parser import OWN, SPACES, WINDOW, Program, PtxError

WARP = 32
DEEPEST = 32  # functions that call one another
MOST = 200_000_000  # instructions of a thread between two waits: a loop without an end

COMPUTES = len(CODES)  # rows with a smaller code only compute
LOAD, STORE, JUMP, END, RETURN, CALL = (
    OWN[x] for x in ("load", "store", "jump", "end", "return", "call")
)
BARRIER, WARP_BARRIER, SHUFFLE = OWN["barrier"], OWN["warp_barrier"], OWN["shuffle"]
VOTE, MATCH, MATRIX, ATOMIC = OWN["vote"], OWN["match"], OWN["matrix"], OWN["atomic"]
PACK, UNPACK, NOTHING, ACTIVE = OWN["pack"], OWN["unpack"], OWN["nothing"], OWN["active"]
GENERIC, GLOBAL, SHARED, CONST = (SPACES[x] for x in ("generic", "global", "shared", "const"))

ENDED, WRONG = -1, -2  # in place of where a thread is
# What went wrong, and where: the columns of a report.
FAULT, AT, ADDRESS, BYTES, THREAD = range(5)
(OUTSIDE, MISALIGNED, DEADLOCK, MISSING_LANES, TRAPPED, ENDLESS, TOO_DEEP, ELSEWHERE) = range(1, 9)
FAULTS = {
    OUTSIDE: "accesses {bytes} bytes at {address}, which no array of the launch has",
    MISALIGNED: "accesses {bytes} bytes at {address}, which is no multiple of that",
    DEADLOCK: "waits at a barrier that others never reach",
    MISSING_LANES: "waits for lanes of its warp that are elsewhere, or not in the mask",
    TRAPPED: "came to a trap",
    ENDLESS: f"ran {MOST:,} instructions without coming to an end",
    TOO_DEEP: f"calls more than {DEEPEST} functions in one another",
    ELSEWHERE: "waits at one barrier, others of its block at another",
}


@compiled
def _place(address, size, space, windows, regions):  # type: ignore[no-untyped-def]
    """Where the host has what is at an address of the GPU's; 0 if it has nothing there.

    `windows` holds, for each space, where its memory begins and how long it is.
    """
    if address < np.uint64(8 * WINDOW):
        window = np.int64(address) // WINDOW
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
def _run_thread(rows, vectors, registers, at, returns, windows, regions, counts, report):  # type: ignore[no-untyped-def]
    """Run a thread from a row on; return the row where it waits, ENDED or WRONG.

    `returns` is its stack: how deep it is, then where to go back to.
    """
    made = 0
    while True:
        row = rows[at]
        code = row.code
        if row.guard >= 0 and (registers[row.guard] != 0) == (row.negated != 0):
            at += 1
            continue
        counts[at] += 1
        made += 1
        if made > MOST:
            report[FAULT], report[AT] = ENDLESS, at
            return WRONG
        if code < COMPUTES:
            registers[row.out] = compute(
                code,
                registers[row.a],
                registers[row.b],
                registers[row.c],
                registers[row.d],
                row,
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
                    if row.signed and size < 4:
                        bits = np.uint64(signed(bits, 8 * size)) & low(32)
                    registers[vectors[at, i]] = bits
        elif code == JUMP:
            at = row.place
            continue
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
            if returns[0] + 1 >= returns.shape[0]:
                report[FAULT], report[AT] = TOO_DEEP, at
                return WRONG
            returns[0] += 1
            returns[returns[0]] = at + 1
            at = row.place
            continue
        elif code == RETURN:
            at = returns[returns[0]]
            returns[0] -= 1
            continue
        elif code == NOTHING:
            pass
        elif code in (BARRIER, ACTIVE) or WARP_BARRIER <= code <= MATRIX:
            counts[at] -= 1  # it is counted when it is over
            return at
        else:
            report[FAULT], report[AT] = TRAPPED, at
            return WRONG
        at += 1


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
def _together(rows, vectors, registers, at, first, lanes, waits, counts, report):  # type: ignore[no-untyped-def]
    """Let the lanes of a warp that have met make an instruction; return whether any did."""
    moved = False
    for i in range(lanes):
        here = at[first + i]
        if here < 0 or not waits[first + i] or rows[here].code == BARRIER:
            continue
        row = rows[here]
        if row.code == ACTIVE:  # whoever is there now: this lane, at least
            registers[first + i, row.out] = np.uint64(1) << np.uint64(i)
            counts[here] += 1
            at[first + i], waits[first + i] = here + 1, False
            moved = True
            continue
        whole = row.code == MATRIX
        mask = low(32) if whole else registers[first + i, row.a] & low(32)
        if not (mask >> np.uint64(i)) & np.uint64(1) or (whole and lanes < WARP):
            report[FAULT], report[AT], report[THREAD] = MISSING_LANES, here, first + i
            return False
        together, ready = np.int64(0), True
        for j in range(lanes):
            if (mask >> np.uint64(j)) & np.uint64(1) and at[first + j] != ENDED:
                if at[first + j] == here and waits[first + j]:
                    together |= np.int64(1) << j
                else:
                    ready = False
        if not ready:
            continue
        own = registers[first : first + lanes]
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
                at[first + j], waits[first + j] = here + 1, False
        moved = True
    return moved


@compiled
def run_block(  # type: ignore[no-untyped-def]
    rows, vectors, registers, at, waits, returns, order, windows, local, local_bytes, regions,
    counts, report,
):  # fmt: skip
    """Run a block's threads to their ends, in turns; return whether all went well.

    `at` is the row where each is, `waits` whether it waits there, `returns` its stack.
    """
    threads = registers.shape[0]
    while True:
        moved = False
        for t in order:
            if at[t] == ENDED or waits[t]:
                continue
            windows[3, 0], windows[3, 1] = local + np.uint64(t) * local_bytes, local_bytes
            at[t] = _run_thread(
                rows, vectors, registers[t], at[t], returns[t], windows, regions, counts, report
            )
            if at[t] == WRONG:
                report[THREAD] = t
                return False
            waits[t] = at[t] != ENDED
            moved = True
        for first in range(0, threads, WARP):
            lanes = min(WARP, threads - first)
            if _together(rows, vectors, registers, at, first, lanes, waits, counts, report):
                moved = True
            if report[FAULT]:
                return False
        if moved:
            continue
        barrier, alive = -1, 0
        for t in range(threads):
            if at[t] == ENDED:
                continue
            alive += 1
            if rows[at[t]].code != BARRIER or (barrier >= 0 and barrier != at[t]):
                report[FAULT] = ELSEWHERE
                if rows[at[t]].code != BARRIER:
                    report[FAULT] = MISSING_LANES
                report[AT], report[THREAD] = at[t], t
                return False
            barrier = at[t]
        if alive == 0:
            return True
        if alive < threads:
            for t in range(threads):
                if at[t] != ENDED:
                    report[FAULT], report[AT], report[THREAD] = DEADLOCK, barrier, t
                    return False
        for t in range(threads):
            counts[barrier] += 1
            at[t], waits[t] = barrier + 1, False


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

    Raises:
        PtxError: The kernel did something that a GPU does not allow, or leaves open.
    """
    rng = None if seed is None else np.random.default_rng(seed)
    threads, shared = prod(block), _Shared(program, shared_bytes)
    if len(parameters) != len(program.parameters):
        raise PtxError(
            f"{program.name} has {len(program.parameters)} parameters, got {len(parameters)}"
        )
    rows = program.rows.copy()
    rows["jitter"] = round(jitter * ONE_STEP)
    local = np.empty(program.local_bytes * threads + 16, np.uint8)
    given = np.zeros(program.parameter_bytes + 16, np.uint8)
    for (begin, size), value in zip(program.parameters, parameters, strict=True):
        given[begin : begin + size] = np.frombuffer(value[:size], np.uint8)
    windows = np.zeros((8, 2), np.uint64)
    windows[SPACES["shared"]] = shared.begin, shared.size
    windows[SPACES["param"]] = given.ctypes.data, program.parameter_bytes
    tables = [(table.ctypes.data, table.ctypes.data + table.nbytes) for _, table in program.tables]
    known = np.array([*regions, *tables] or [(1, 1)], np.uint64)
    first = _registers(program, grid, block)
    counts, report = np.zeros(len(rows), np.int64), np.zeros(5, np.int64)
    numbers = np.arange(prod(grid)) if rng is None else rng.permutation(prod(grid))
    registers = np.empty_like(first)
    at, waits = np.zeros(threads, np.int64), np.zeros(threads, np.bool_)
    returns = np.zeros((threads, DEEPEST), np.int64)
    own_memory = np.uint64(-(-local.ctypes.data // 16) * 16)
    for number in numbers.tolist():
        shared.memory[:] = 255
        local[:] = 255
        registers[:] = first
        here = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
        for axis, place in zip("xyz", here, strict=True):
            if f"ctaid.{axis}" in program.specials:
                registers[:, program.specials[f"ctaid.{axis}"]] = place
        order = np.arange(threads) if rng is None else rng.permutation(threads)
        at[:], waits[:], returns[:] = 0, False, 0
        if not run_block(
            rows, program.vectors, registers, at, waits, returns, order, windows, own_memory,
            np.uint64(program.local_bytes), known, counts, report,
        ):  # fmt: skip
            raise PtxError(_said(program, report, here, block))
    return Run(program, counts)


class _Shared:
    """A block's shared memory."""

    def __init__(self, program: Program, dynamic: int) -> None:
        self.size = program.shared_bytes + (dynamic if program.dynamic is not None else 0)
        self.memory = np.empty(self.size + 4096, np.uint8)
        self.begin = -(-self.memory.ctypes.data // 4096) * 4096


def _registers(program: Program, grid: Sequence[int], block: Sequence[int]) -> np.ndarray:
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
    line, t = program.lines[int(report[AT])], int(report[THREAD])
    thread = t % block[0], t // block[0] % block[1], t // (block[0] * block[1])
    address = int(report[ADDRESS]) & int(ALL)
    space = next((name for name, n in SPACES.items() if n == address // WINDOW and n), "global")
    named = f"{space} {address % WINDOW if space != 'global' else address:#x}"
    what = FAULTS[int(report[FAULT])].format(bytes=int(report[BYTES]), address=named)
    source = f", line {line.source} of its source" if line.source else ""
    return (
        f"{program.name}: thread {thread} of block {tuple(here)} {what}: `{line.text}`, line "
        f"{line.number} of the PTX{source}"
    )

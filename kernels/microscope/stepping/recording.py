"""A block of a launch, recorded step by step, so that one can go forward and back in it.

A step is an instruction that a warp makes. Warps go one after the other, each until it waits at a
barrier or ends, lanes in lockstep. Of each step is noted who made it, what it read and wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from textwrap import dedent
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...cpu.source import lines_of
from ...cuda import Launch
from ...gpu.gpus import WARP, WORD
from ..instructions import capability, tried
from ..units import plural
from .names import Names

if TYPE_CHECKING:
    from ...gpu.ptx import Program
    from ...gpu.ptx.lockstep import Lockstep

LIMIT = 20_000  # steps; the page of so many has a few megabytes
UNKNOWN = "?"  # what nobody has written


class TooLong(ValueError):
    """A block makes more steps than are recorded."""


class Step(NamedTuple):
    """An instruction that a warp makes.

    Attributes:
        warp: Its number in the block.
        row: The instruction: its number in `Recording.rows`.
        came: A mask of the lanes that came to it.
        made: And of those that made it; others its guard kept, or they wait for lanes.
        written: What each register holds then, in each lane; one text where all hold the same.
        words: The word of shared memory that each lane accessed, the first of several; -1: none.
        width: How many words each accessed.
        stored: What words of shared memory hold then.
    """

    warp: int
    row: int
    came: int
    made: int
    written: dict[int, tuple[str, ...]]
    words: tuple[int, ...] = ()
    width: int = 1
    stored: Mapping[int, str] = MappingProxyType({})


class Instruction(NamedTuple):
    """A row of the PTX.

    Attributes:
        text: As it stands there.
        line: Of the kernel's source; 0: of no line, or of another file.
        label: Its kind, such as "load shared 16 B".
        read: The registers that it reads.
        written: Those that it writes.
    """

    text: str
    line: int
    label: str
    read: tuple[int, ...]
    written: tuple[int, ...]


class Shared(NamedTuple):
    """An array in shared memory: its name, the word where it begins, and how many it has."""

    name: str
    begin: int
    words: int


@dataclass(frozen=True)
class Recording:
    """What a block did.

    Attributes:
        title: The kernel, its launch and the block.
        first: The number of the first line of the source.
        source: Its lines.
        rows: The instructions in the order of the text.
        registers: How each is called in the PTX.
        names: What it is in the source, for those where that is known.
        warps: How many the block has.
        threads: How many threads.
        shared: The arrays in shared memory.
        steps: What happened.
    """

    title: str
    first: int
    source: list[str]
    rows: list[Instruction]
    registers: list[str]
    names: dict[int, str]
    warps: int
    threads: int
    shared: list[Shared]
    steps: list[Step]

    @cached_property
    def words(self) -> int:
        """Words of shared memory."""
        return max((each.begin + each.words for each in self.shared), default=0)

    def held(self, position: int, warp: int) -> dict[int, tuple[str, ...]]:
        """What the registers of a warp hold after a step; of those that have been written."""
        found: dict[int, tuple[str, ...]] = {}
        for step in self.steps[: position + 1]:
            if step.warp == warp:
                found |= step.written
        return found

    def memory(self, position: int) -> dict[int, str]:
        """What the words of shared memory hold after a step, of those that have been written."""
        found: dict[int, str] = {}
        for step in self.steps[: position + 1]:
            found |= step.stored
        return found


def record(launch: Launch, *arguments: Any, architecture: str = "8.0", block: int = 0) -> Recording:
    """Record what a block of a launch does; those before it run unrecorded.

    Args:
        launch: A kernel with its configuration, `kernel[blocks, threads]`.
        arguments: What the kernel would be called with: NumPy arrays and numbers. They are not
            modified.
        architecture: The compute capability to compile for.
        block: The block's number, those along x first.

    Raises:
        NoCompiler: The extra `gate` is not installed.
        KernelError: The kernel does not compile for GPUs, or did something that they do not allow.
        TooLong: It is more than `LIMIT` steps.
        ValueError: The launch has no such block, or the architecture is none.
    """
    from ...gpu.ptx.driver import prepared
    from ...gpu.ptx.lockstep import Lockstep

    name, blocks = launch.kernel.__name__, prod(launch.grid)
    if not 0 <= block < blocks:
        had = plural(blocks, "block")
        raise ValueError(f"{name} is launched with {had}; there is no block {block}")
    with tried(launch, arguments) as given:
        program, slots, regions = prepared(launch, given, capability(architecture), lines=True)
        made = Lockstep(program, launch.grid, launch.block, slots, regions, launch.shared)
        made.run(range(block))
        names = Names(program, launch.kernel.function, given)
        steps = list(_Recorder(made, names).steps(block))
    source, first = lines_of(launch.kernel.function)
    return Recording(
        _title(launch, made.block, architecture), first, dedent("".join(source)).splitlines(),
        _instructions(program, launch), names.registers, names.known, -(-made.threads // WARP),
        made.threads, _shared(made, names), steps,
    )  # fmt: skip


def _title(launch: Launch, block: Sequence[int], architecture: str) -> str:
    place = ", ".join(map(str, block))
    return f"{launch.kernel.__name__}, block ({place}), sm_{architecture.replace('.', '')}"


def _instructions(program: Program, launch: Launch) -> list[Instruction]:
    from ...gpu.ptx.profile import Row, kinds

    file = launch.kernel.function.__code__.co_filename
    found = []
    for at, (line, kind) in enumerate(zip(program.lines, kinds(program), strict=True)):
        label = Row(line.file, line.source, line.text, *kind, *[0] * 5).label
        number = line.source if line.file == file else 0
        read, written = tuple(program.read[at]), tuple(program.written[at])
        found.append(Instruction(line.text, number, label, read, written))
    return found


def _shared(made: Lockstep, names: Names) -> list[Shared]:
    """The shared arrays; what lies between two belongs to the first."""
    begins = sorted((begin, name) for name, begin in names.shared.items())
    return [
        Shared(name, begin // WORD, -(-(end - begin) // WORD))
        for (begin, name), (end, _) in pairwise([*begins, (made.shared.size, "")])
        if end > begin
    ]


class _Recorder:
    """Runs a block a step at a time, and notes."""

    def __init__(self, made: Lockstep, names: Names) -> None:
        from ...gpu.ptx.parser import OWN, SHARED

        self.made, self.names, self.program = made, names, made.program
        self.accesses = {OWN["load"], OWN["store"], OWN["atomic"]}
        self.writes = {OWN["store"], OWN["atomic"]}
        self.shared = SHARED

    def steps(self, block: int) -> Iterator[Step]:
        """Yield the steps of a block."""
        made, count = self.made, 0
        made.begin(block)
        while True:
            for warp, first in enumerate(range(0, made.threads, WARP)):
                own = made.registers[first : first + WARP]
                before = own.copy()
                while made.run_warp(first, 1):
                    if self.program.lines[made.did[0]].text:
                        yield self._step(warp, before, own)
                        count += 1
                        if count > LIMIT:
                            raise TooLong(
                                f"block {block} of {self.program.name} makes more than {LIMIT:,} "
                                "steps, which is all that is recorded; take smaller arrays or "
                                "fewer threads"
                            )
                    before[:] = own
            if not made.pass_barrier():
                return

    def _step(self, warp: int, before: np.ndarray, own: np.ndarray) -> Step:
        row, came, active = map(int, self.made.did)
        written = {slot: self._texts(slot, own[:, slot]) for slot in self.program.written[row]}
        step = Step(warp, row, came, active, written if active else {})
        columns = self.program.rows[row]
        if columns["code"] not in self.accesses:
            return step
        offsets = (before[:, columns["a"]] + np.uint64(columns["place"])).astype(np.int64)
        offsets -= self.shared
        lanes = [
            bool(active >> lane & 1 and 0 <= offset < self.made.shared.size)
            for lane, offset in enumerate(offsets.tolist())
        ]
        if not any(lanes):
            return step
        words = np.where(lanes, offsets // WORD, -1)
        width = max(1, int(columns["size"] * max(columns["count"], 1)) // WORD)
        step = step._replace(words=tuple(words.tolist()), width=width)
        if columns["code"] in self.writes:
            text = self.program.lines[row].text
            kind = text.split()[text.startswith("@")].rpartition(".")[2]
            step = step._replace(stored=self._stored(words, width, kind))
        return step

    def _stored(self, words: np.ndarray, width: int, kind: str) -> dict[int, str]:
        """What the words hold that lanes wrote, as numbers of a type of PTX."""
        each = max(1, int(kind[1:]) // 32)
        found = {}
        for word in words[words >= 0].tolist():
            for at in range(word, word + width, each):
                memory = self.made.shared[WORD * at : WORD * (at + each)]
                number = memory.view({"f": "f", "s": "i"}.get(kind[0], "u") + str(4 * each))[0]
                found[at] = number_text(number)
                found |= {at + i: "…" for i in range(1, each)}
        return found

    def _texts(self, slot: int, values: np.ndarray) -> tuple[str, ...]:
        texts = tuple(self._text(slot, value) for value in values)
        return texts[:1] if len(set(texts)) == 1 else texts

    def _text(self, slot: int, value: np.uint64) -> str:
        """A register's value, in its type, and as a place where it is an address."""
        if value == np.uint64(2**64 - 1):
            return UNKNOWN
        kind = self.names.registers[slot].lstrip("%").rstrip("0123456789")
        if kind == "p":
            return "yes" if value else "no"
        if kind == "rd":
            return self.names.place(int(value)) or str(value.view(np.int64))
        width = {"rs": 2, "f": 4, "r": 4}.get(kind, 8)
        letter = "f" if kind in ("f", "fd") else "i"
        return number_text(np.array([value]).view(f"{letter}{width}")[0])


def number_text(number: Any) -> str:
    """A number in few letters.

    >>> number_text(np.float32(0.1)), number_text(np.int64(7)), number_text(np.float32(1e-9))
    ('0.1', '7', '1e-09')
    """
    return f"{number:.6g}" if isinstance(number, np.floating) else str(number)

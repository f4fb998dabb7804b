"""What a launch executed, counted row by row: instructions, and what their accesses cost.

Each instruction is of a kind, by what it is for. Which integers are addresses nobody declares; here
they are those from which nothing else comes on the way to an access than addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from .arithmetic import CODES
from .lockstep import COUNTED, Lockstep
from .machine import COMPUTES, Run, printing
from .parser import OWN, SPACES, Program, space_at

NAMES = {number: name for name, number in (CODES | OWN).items()}
ACCESSES = "load", "store", "atomic"
_KINDS = {
    "jump": "branch", "end": "branch", "return": "branch", "call": "branch", "trap": "branch",
    "barrier": "barrier", "warp_barrier": "barrier", "nothing": "barrier",
    "shuffle": "warp", "vote": "warp", "match": "warp", "active": "warp",
    "print": "print", "matrix": "tensor core", "pack": "move", "unpack": "move",
}  # fmt: skip


class Row(NamedTuple):
    """An instruction of the PTX, and what became of it in a launch.

    Attributes:
        file: The Python file that it comes from; "" where the compiler does not say.
        line: The line there; 0 where the compiler does not say.
        text: The instruction.
        kind: What it is for: "arithmetic" on floats, "address", other "integer" arithmetic,
            "compare", "conversion", "move", "load", "store", "atomic", "branch", "barrier",
            "warp" (shuffles and votes), "print" or "tensor core".
        space: Of memory, for accesses: "global", "shared", "local", "param", "const", or "generic"
            where the text leaves it open.
        bytes: That a thread accesses.
        executions: By threads.
        warps: How often a warp issued it, for all its lanes together.
        requests: Accesses of warps.
        sectors: Of 32 bytes of global memory that these moved.
        wavefronts: Turns of shared memory that these took.
    """

    file: str
    line: int
    text: str
    kind: str
    space: str
    bytes: int
    executions: int
    warps: int
    requests: int
    sectors: int
    wavefronts: int

    @property
    def label(self) -> str:
        """The kind; of an access also where, and how wide, as "load shared 16 B"."""
        return f"{self.kind} {self.space} {self.bytes} B" if self.space else self.kind


@dataclass
class Profile(Run):
    """What a launch executed, its warps in lockstep; arrays (rows,) of int64, and `rows`.

    Attributes:
        warps: How often a warp issued each row.
        requests: How often one accessed memory there.
        sectors: Of 32 bytes of global memory that moved.
        wavefronts: Turns of shared memory.
    """

    warps: np.ndarray
    requests: np.ndarray
    sectors: np.ndarray
    wavefronts: np.ndarray

    @cached_property
    def rows(self) -> list[Row]:
        """The instructions in the order of the text."""
        counted = zip(*(getattr(self, name).tolist() for name in COUNTED), strict=True)
        return [
            Row(line.file, line.source, line.text, *kind, *numbers)
            for line, kind, numbers in zip(self.program.lines, kinds(self.program), counted,
                                           strict=True)
            if line.text
        ]  # fmt: skip

    @property
    def issued(self) -> int:
        """Instructions that warps issued."""
        return sum(row.warps for row in self.rows)

    def by(self, key: Callable[[Row], Any], what: str = "executions") -> Counter[Any]:
        """Add up a column of the rows by a key, as `by(lambda row: row.label, "warps")`."""
        found: Counter[Any] = Counter()
        for row in self.rows:
            found[key(row)] += getattr(row, what)
        return found


def profile(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    parameters: Sequence[bytes],
    regions: Sequence[tuple[int, int]],
    shared_bytes: int = 0,
    *,
    origins: Sequence[int] = (),
    blocks: Iterable[int] | None = None,
) -> Profile:
    """Run a launch with its warps in lockstep, and count.

    Args:
        program, grid, block, parameters, regions, shared_bytes: As for `machine.launch`.
        origins: Where the memory begins that each region is a part of; by default where it does.
        blocks: The numbers of the blocks to run, x first; by default all.

    Raises:
        PtxError: The kernel did something that a GPU does not allow, or leaves open.
    """
    made = Lockstep(program, grid, block, parameters, regions, shared_bytes, origins=origins)
    with printing(made):
        made.run(blocks)
    return Profile(program, *made.counted)


@cache
def kinds(program: Program) -> list[tuple[str, str, int]]:
    """Return of each row its kind, the space that it accesses, and its bytes; see `Row`."""
    addresses = _addresses(program)
    spaces = {number: name for name, number in SPACES.items()}
    found = []
    for at, row in enumerate(program.rows):
        name = NAMES[int(row["code"])]
        if name in ACCESSES:
            space = spaces[int(row["space"])]
            if row["a"] in program.constants and space == "generic":
                space = spaces[space_at(program.constants[int(row["a"])])]
            found.append((name, space, int(row["size"] * max(row["count"], 1))))
        else:
            found.append(("address" if at in addresses else _kind(name), "", 0))
    return found


def _kind(name: str) -> str:
    if name in _KINDS:
        return _KINDS[name]
    operation, _, types = name.partition(".")
    if operation == "cvt":
        return "conversion" if "float" in types or "tf32" in types else "integer"
    if operation == "mov":
        return "move"
    if operation in ("setp", "testp") or "pred" in types:
        return "compare"
    return "arithmetic" if "float" in types else "integer"


def _addresses(program: Program) -> set[int]:
    """The rows whose results come into addresses."""
    writers: dict[int, list[int]] = {}
    for at, written in enumerate(program.written):
        for slot in written:
            writers.setdefault(slot, []).append(at)
    accesses = [at for at, row in enumerate(program.rows) if NAMES[int(row["code"])] in ACCESSES]
    left = [int(program.rows[at]["a"]) for at in accesses]
    found: set[int] = set()
    seen = set(left)
    while left:
        for at in writers.get(left.pop(), ()):
            name = NAMES[int(program.rows[at]["code"])]
            computes = program.rows[at]["code"] < COMPUTES and "float" not in name
            if (computes or name in ("pack", "unpack")) and at not in found:
                found.add(at)
                new = [slot for slot in program.read[at] if slot not in seen]
                seen.update(new)
                left += new
    return found

"""What machine code does in its loops, read from NVIDIA's disassembler.

`nvdisasm`, of the PyPI package `nvidia-cuda-nvdisasm`, lists the instructions of a cubin, and where
each jumps to. The instructions that can all come back to each other are a loop. Without the one
where it is entered, what is left of it may hold more loops; if not, the loop is *innermost*, and
nearly all of a kernel's time goes there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "nvidia-cuda-nvdisasm"
BYTES = 16  # of an instruction
LOCAL = "LDL", "STL"  # load from and store to local memory


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        name: Without its modifiers, as `LDL` of `LDL.128`.
        next: Which instructions may follow it, counted from the first of the kernel.
    """

    name: str
    next: tuple[int, ...]


class Loop(NamedTuple):
    """A loop: its instructions, counted from the first, and whether there is no other in it."""

    places: set[int]
    innermost: bool


class Local(NamedTuple):
    """How many instructions read or write local memory, in any loop and in innermost loops."""

    loops: int
    innermost: int


def local_accesses(cubin: bytes) -> Local:
    """Count the instructions in a cubin's loops that read or write local memory."""
    found = [_local_accesses(function) for function in functions(cubin)]
    return Local(*map(sum, zip(*found, strict=True)))


def _local_accesses(code: list[Instruction]) -> Local:
    local = {i for i, instruction in enumerate(code) if instruction.name in LOCAL}
    if not local:
        return Local(0, 0)
    innermost = [loop.places & local for loop in loops(code) if loop.innermost]
    anywhere = [loop.places & local for loop in loops(code)]
    return Local(len(set().union(*anywhere)), len(set().union(*innermost)))


def functions(cubin: bytes) -> list[list[Instruction]]:
    """Disassemble a cubin: its kernel, and what that may call, such as a division of integers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(disassembler()), "-json", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    _, found = json.loads(text)
    return [[*decoded(function["sass-instructions"])] for function in found]


def decoded(found: list[dict[str, Any]]) -> Iterator[Instruction]:
    """Yield instructions, given as `nvdisasm -json` does, each with what may follow it."""
    for i, each in enumerate(found):
        name, operands = each["opcode"].partition(".")[0], each.get("operands", "")
        follows = {i + 1}
        if "control-flow" in each.get("other-attributes", {}):
            target = re.search("(?:^|,)0x([0-9a-f]+)$", operands)
            # The operand of a return is where the kernel begins, not where it goes on.
            follows |= {int(target[1], 16) // BYTES} if target and name != "RET" else set()
            # A jump with a predicate, or with a condition among its operands, may not be taken.
            conditional = "predicate" in each or (name == "BRA" and "," in operands)
            if name in ("BRA", "EXIT", "RET") and not conditional:
                follows.remove(i + 1)
        yield Instruction(name, tuple(j for j in sorted(follows) if j < len(found)))


def loops(code: list[Instruction]) -> Iterator[Loop]:
    """Yield all loops of a function."""
    after = [instruction.next for instruction in code]
    before: list[list[int]] = [[] for _ in code]
    for i, nexts in enumerate(after):
        for j in nexts:
            before[j].append(i)

    def within(places: set[int]) -> Iterator[Loop]:
        seen: set[int] = set()
        for i in sorted(places):
            for j in after[i]:
                # Every loop jumps back somewhere.
                if j <= i and j in places and j not in seen:
                    loop = _reach(j, after, places) & _reach(j, before, places)
                    if i in loop:
                        seen |= loop
                        yield from nest(loop)

    def nest(loop: set[int]) -> Iterator[Loop]:
        entries = [i for i in loop if not loop.issuperset(before[i])]
        inner = list(within(loop - {min(entries or loop)}))
        yield Loop(loop, not inner)
        yield from inner

    return within({*range(len(code))})


def _reach(start: int, edges: Sequence[Sequence[int]], places: set[int]) -> set[int]:
    """Return the places that can be reached from one of them."""
    reached, stack = {start}, [start]
    while stack:
        new = places.intersection(edges[stack.pop()]) - reached
        reached |= new
        stack.extend(new)
    return reached


def available() -> bool:
    """Return whether there is a disassembler."""
    try:
        return bool(disassembler())
    except FileNotFoundError:
        return False


@cache
def disassembler() -> Path:
    """Return where `nvdisasm` is: its package has it, or a CUDA toolkit on the path.

    Raises:
        FileNotFoundError: neither does.
    """
    try:
        for file in metadata.files(PACKAGE) or ():
            if file.stem == "nvdisasm":
                return Path(str(file.locate()))
    except metadata.PackageNotFoundError:
        pass
    if (found := shutil.which("nvdisasm")) is None:
        raise FileNotFoundError(f"there is no nvdisasm; pip install {PACKAGE}")
    return Path(found)

"""What the compiler made of a kernel: the processor's own instructions, and what to look for there.

A kernel runs well on a CPU where its hottest loop works on whole vectors: wide ones, with products
and sums in one instruction, of numbers that lie beside each other and stay in registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from numba import int64
from numba.core.caching import NullCache

from .compiler import in_haste
from .lowering import Variant

_LABEL = re.compile(r"([.\w$@]+):")
_JUMP = re.compile(r"\s+(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*, )?([.\w$@]+)$")
_FIXED_PLACE = re.compile(r"[\s,]-?\d*\(%r[sb]p\)|\[(?:sp|x29)")
_BITS = {"zmm": 512, "ymm": 256, "xmm": 128}  # by the names of registers


class Loop(NamedTuple):
    """A loop without another inside, as the processor runs it: how many instructions of a kind."""

    instructions: int
    width: int  # bits of the widest vectors that it works on; 0: none
    fused: int  # products and sums in one
    gathered: int  # loads of numbers that do not lie beside each other
    spilled: int  # loads and stores of what found no register

    def __str__(self) -> str:
        return (
            f"{self.instructions} instructions, vectors of {self.width} bits, {self.fused} fused "
            f"multiply-adds, {self.gathered} gathers, {self.spilled} numbers without a register"
        )


def assembly(variant: Variant) -> str:
    """The instructions of a variant's function, below what stands in its hottest loop.

    It is compiled again, as the cache keeps no text.
    """
    function, *_ = variant.function()
    function._cache = NullCache()
    with in_haste():
        function.compile((int64,) * 5 + variant.arguments)
    (result,) = function.overloads.values()
    lines = list(_of_function(result))
    about = [f"# {variant.source.name}: {len(lines)} lines"]
    found = list(loops(lines))
    if found:
        about.append(f"# its loop with most arithmetic: {max(found, key=_work)}")
    return "\n".join([*about, *lines, ""])


def _of_function(result: Any) -> Iterator[str]:
    """The lines of the function alone, without what calls it from Python."""
    lines = iter(result.library.get_asm_str().splitlines())
    name = result.fndesc.llvm_func_name
    for line in lines:
        if line.strip().strip('"') in (f"{name}:", f'{name}":'):
            break
    for line in takewhile(lambda line: not line.startswith(".Lfunc_end"), lines):
        if not line.lstrip().startswith((".cfi", ".p2align")):
            yield line


def loops(lines: list[str]) -> Iterator[Loop]:
    """The innermost loops of a function: from a label to the last jump back to it."""
    labels = {m[1]: i for i, line in enumerate(lines) if (m := _LABEL.match(line))}
    ends: dict[int, int] = {}
    for i, line in enumerate(lines):
        jump = _JUMP.match(line.split("#")[0].rstrip())
        if jump and labels.get(jump[1], i) < i:
            ends[labels[jump[1]]] = i
    for first, last in ends.items():
        if not any(first < other and end < last for other, end in ends.items()):
            yield _counted([x for x in lines[first : last + 1] if x.startswith(("\t", " "))])


def _counted(body: list[str]) -> Loop:
    named = [bits for line in body for name, bits in _BITS.items() if f"%{name}" in line]
    return Loop(
        len(body),
        max(named, default=0),
        sum("fmadd" in line or "fmla" in line or "fnmadd" in line for line in body),
        sum("gather" in line for line in body),
        sum(bool(_FIXED_PLACE.search(line)) for line in body),
    )


def _work(loop: Loop) -> tuple[int, int]:
    return loop.fused * max(loop.width, 1), loop.instructions

"""What each compiler makes of each kernel: `python -m minitransformer_kernels.gpu.compare`.

Every launch of the examples runs on the PTX machine as each of `WAYS` compiles it, from the same
arrays. Counted are the instructions that all threads execute, and what the launches write is held
side by side, bit by bit.

The command writes the table of `compilers/README.md`. It needs the extras `gate` and `gate-mlir`,
and some minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tqdm import tqdm

from ..cuda import Launch
from ..examples import HOSTS, MORE
from . import assembler, codegen, compilers, specialisations

EXAMPLES = HOSTS | MORE
SHAPE = 1, 2, 37, 16  # (N, H, L, E), with a tile of 32 tokens and one that is not full
OLD, NEW = compilers.MODULES
WAYS = {  # the compiler, and its hints
    "numba-cuda": (OLD, codegen.HINTS),
    "successor": (NEW, codegen.HINTS),
    "without hints": (NEW, ()),
}
PAGE = Path(compilers.__file__).parent / "README.md"
_TABLE = re.compile(r"(?<=<!-- compared -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass
class Found:
    """What a kernel does, summed over its launches.

    Attributes:
        executed: Instructions, by each of `WAYS`.
        apart: Where they do not write the same bits: by how much at most, as a share of the
            largest number.
    """

    executed: list[int] = field(default_factory=lambda: [0] * len(WAYS))
    apart: list[float] = field(default_factory=list)


def compared(examples: Iterable[str]) -> dict[str, Found]:
    """Run examples' launches by all of `WAYS`; return what was found, by the kernels' names."""
    from .ptx import run
    from .ptx.driver import arrays

    found: dict[str, Found] = {}

    def call(self: Launch, *arguments: Any) -> None:
        if 0 in self.grid:
            return
        given = self.kernel.completed(arguments)
        name = f"{assembler.room(self.kernel)}.{self.kernel.__name__}"
        kernel = found.setdefault(name, Found())
        held = [array for array in arrays(given) if array.flags.writeable]
        before, written = [array.copy() for array in held], []
        for way, (compiler, hints) in enumerate(WAYS.values()):
            for array, numbers in zip(held, before, strict=True):
                array[...] = numbers
            with _asked(compiler, hints):
                kernel.executed[way] += run(self, given).instructions
            written.append([array.copy() for array in held])
        first, *others = written
        pairs = (pair for other in others for pair in zip(first, other, strict=True))
        kernel.apart += [_apart(x, y) for x, y in pairs if x.tobytes() != y.tobytes()]

    with specialisations.as_on_a_gpu(), patch.object(Launch, "__call__", call):
        for example in examples:
            inputs = np.random.default_rng(0).normal(size=(3, *SHAPE)).astype(np.float32)
            EXAMPLES[example](*inputs)
    return found


@contextmanager
def _asked(compiler: str, hints: tuple[str, ...]) -> Iterator[None]:
    """Ask a compiler, with these hints, within this context."""
    with patch.dict(os.environ, {compilers.VARIABLE: compiler}), codegen.hints(*hints):
        yield


def _apart(x: Any, y: Any) -> float:
    return float(np.nanmax(np.abs(x - y)) / np.nanmax(np.abs(x)))


def table(found: Mapping[str, Found]) -> str:
    """Write what was found, and the sum of all."""
    first, *others = WAYS
    columns = ["kernel", first, *(word for way in others for word in (way, "times")), "same bits"]
    lines = [columns, ["---"] * len(columns)]
    total = [
        sum(column) for column in zip(*(each.executed for each in found.values()), strict=True)
    ]
    rows = [(name, found[name].executed, found[name].apart) for name in sorted(found)]
    for name, (count, *counts), apart in (*rows, ("all", total, [])):
        ratios = (cell for other in counts for cell in (f"{other:,}", f"{other / count:.2f}"))
        same = f"{max(apart):.0e}" if apart else "yes" if name in found else ""
        lines.append([name, f"{count:,}", *ratios, same])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the table again."""
    found = compared(tqdm(EXAMPLES, unit="example"))
    PAGE.write_text(_TABLE.sub(lambda _: table(found), PAGE.read_text()))
    print(f"{PAGE} tells of {len(found)} kernels")


if __name__ == "__main__":
    main()

"""PTX as it would be with other hints than `codegen.py`'s: `python -m tests.kernels.gpu.ptx.hints`.

    python -m tests.kernels.gpu.ptx.hints without softmax layer_norm

compiles what these examples launch, and keeps it. In a process of its own, as Numba learns the
hints once and for all.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer_kernels.cpu import cache
from minitransformer_kernels.cuda import Kernel
from minitransformer_kernels.examples import HOSTS
from minitransformer_kernels.gpu import assembler, codegen
from minitransformer_kernels.gpu.ptx import Program
from minitransformer_kernels.gpu.specialisations import noted

from ...cpu.classics import CASES

ROOT = Path(__file__).parents[4]
ARCHITECTURE = (8, 0)
HEAD_DIM = 16


def sums_by_halves(*_: np.ndarray) -> None:
    """A kernel that asks how large its block is: none of the package's does."""
    case = CASES["sums_by_halves-2-128"]
    case.launch(*case.arguments())


EXAMPLES = HOSTS | {"sums_by_halves": sums_by_halves}


def without() -> None:
    """No hint at all."""
    codegen.teach = lambda: None  # type: ignore[assignment]


def limit(register: str, least: int, end: int) -> Callable[[], None]:
    """A wrong range for a special register."""
    return lambda: codegen.LIMITS.update({register: (least, end)})


def moving_on(old: str, new: str) -> Callable[[], None]:
    """Another text of what moves a `range` on."""

    def plant() -> None:
        source = inspect.getsource(codegen._move_on)
        assert source.count(old) == 1
        exec(source.replace(old, new), vars(codegen))

    return plant


WRONG = {  # and the example that shows it
    "threads_below_16": (limit("tid.x", 0, 16), "sums_by_halves"),
    "blocks_of_64": (limit("ntid.x", 64, 65), "sums_by_halves"),
    "one_block": (limit("ctaid.x", 0, 1), "sums_by_halves"),
    "one_head": (limit("ctaid.y", 0, 1), "softmax"),
    "one_turn_too_many": (moving_on('icmp_signed(">"', 'icmp_signed(">="'), "layer_norm"),
    "the_second_twice": (
        moving_on(
            "builder.add(value, iterator.step",
            "builder.add(builder.load(iterator.iter), value.type(0)",
        ),
        "layer_norm",
    ),
    "the_count_never_ends": (
        moving_on("sub(left, left.type(1)", "sub(left, left.type(0)"),
        "layer_norm",
    ),
}
HINTS = {"without": without} | {name: plant for name, (plant, _) in WRONG.items()}


def kept(hints: str, kernel: Kernel, types: tuple[Any, ...]) -> Path:
    """Where the PTX of a kernel with other hints is."""
    source = inspect.getsource(sys.modules[__name__])
    digest = assembler._digest(kernel, types, ARCHITECTURE, hints, source)
    return cache.folder() / f"{assembler.entry_name(kernel)}_{digest}.ptx"


def program(hints: str, example: str, kernel: Kernel, types: tuple[Any, ...]) -> Program:
    """A kernel that an example launches, compiled with other hints, now or by an earlier run."""
    path = kept(hints, kernel, types)
    if (text := cache.read(path)) is None:
        command = [sys.executable, "-m", __name__, hints, example]
        subprocess.run(command, cwd=ROOT, check=True)
        text = cache.read(path)
    assert text is not None
    return Program(text.decode())


def main(hints: str, *examples: str) -> None:
    """Compile what examples launch."""
    HINTS[hints]()
    for example in examples:
        with noted() as found:
            EXAMPLES[example](*[np.zeros((1, 2, 37, HEAD_DIM), np.float32)] * 3)
        for made in found:
            path = kept(hints, made.kernel, made.types)
            if cache.read(path) is None:
                text = assembler.ptx(made.kernel, made.types, ARCHITECTURE)
                cache.write(path, text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

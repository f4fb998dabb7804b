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

ROOT = Path(__file__).parents[4]
ARCHITECTURE = (8, 0)
HEAD_DIM = 16


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


WRONG = {
    "threads_below_16": limit("tid.x", 0, 16),
    "one_block": limit("ctaid.x", 0, 1),
    "one_head": limit("ctaid.y", 0, 1),
    "one_turn_too_many": moving_on('icmp_signed(">"', 'icmp_signed(">="'),
    "the_second_twice": moving_on(
        "builder.add(value, iterator.step", "builder.add(builder.load(iterator.iter), value.type(0)"
    ),
}
HINTS = {"without": without, **WRONG}


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
            HOSTS[example](*[np.zeros((1, 2, 37, HEAD_DIM), np.float32)] * 3)
        for made in found:
            path = kept(hints, made.kernel, made.types)
            if cache.read(path) is None:
                text = assembler.ptx(made.kernel, made.types, ARCHITECTURE)
                cache.write(path, text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Traces written by hand: what each thread of a block accesses, as a function of its index."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels.cpu.watchers.trace import ACCESS, EXECUTION, Site, Statement, Trace

FILE = "by_hand.py"


class Access(NamedTuple):
    """An access that every thread makes, except those for which `index` returns None."""

    index: Callable[[int, int], Any]  # (x, y) of the thread -> index of the element
    shape: tuple[int, ...] = (64, 64)
    space: str = "global"
    kind: str = "read"
    itemsize: int = 4
    array: str = "a"


class Run(NamedTuple):
    """A statement that threads execute for which `active` says so."""

    active: Callable[[int, int], bool]
    flops: int = 0


def by_hand(
    accesses: Sequence[Access] = (), runs: Sequence[Run] = (), block: tuple[int, int] = (32, 1)
) -> Trace:
    """Write the trace of one block; access and statement i stand in line i + 1."""
    threads = [(y * block[0] + x, x, y) for y in range(block[1]) for x in range(block[0])]
    accessed = [
        (i, 0, thread, 7, _flat(index, access.shape) * access.itemsize)
        for i, access in enumerate(accesses)
        for thread, x, y in threads
        if (index := access.index(x, y)) is not None
    ]
    executed = [
        (i, 0, thread, 7)
        for i, run in enumerate(runs)
        for thread, x, y in threads
        if run.active(x, y)
    ]
    count = max(1, len(accesses), len(runs))
    return Trace(
        kernel="kernel",
        filename=FILE,
        first_line=1,
        source="\n".join(f"line {i + 1}" for i in range(count)),
        grid=(1, 1, 1),
        block=(*block, 1),
        sites=tuple(
            Site(i + 1, FILE, a.array, a.space, a.kind, a.itemsize, a.shape)
            for i, a in enumerate(accesses)
        ),
        statements=tuple(Statement(i + 1, FILE, run.flops) for i, run in enumerate(runs)),
        accesses=np.array(accessed, ACCESS),
        executions=np.array(executed, EXECUTION),
    )


def _flat(index: int | tuple[int, ...], shape: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(index if isinstance(index, tuple) else (index,), shape))

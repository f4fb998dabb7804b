"""Step 7: share the blocks of a launch out among threads."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

CHUNKS_PER_THREAD = 8  # blocks differ in work (a causal mask): small chunks even that out


def num_threads() -> int:
    """How many threads run a kernel: `MINITRANSFORMER_NUM_THREADS`, else the cores we may use."""
    chosen = os.environ.get("MINITRANSFORMER_NUM_THREADS")
    if chosen is None:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ValueError(
            f"MINITRANSFORMER_NUM_THREADS must be a whole number from 1 up, got {chosen!r}"
        )
    return int(chosen)


STACK_BYTES = 16 * 2**20
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # a fork copies the pool, but not its threads
    os.register_at_fork(after_in_child=_forget_pool)


def _submit(work: Callable[[], None], helpers: int) -> list[Future[None]]:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, num_threads() - 1), "minitransformer-kernels")
    before = threading.stack_size(STACK_BYTES)  # a new thread's default is small on some systems
    try:
        return [_pool.submit(work) for _ in range(helpers)]
    finally:
        threading.stack_size(before)


def run(function: Callable[[int, int], None], blocks: int) -> None:
    """Call `function(first, last)` on ranges that cover all blocks; the caller works too."""
    threads = min(num_threads(), blocks)
    if threads == 1:
        return function(0, blocks)
    chunk = -(-blocks // (threads * CHUNKS_PER_THREAD))
    starts = itertools.count(0, chunk)  # next() is atomic: it is one C call under the GIL

    def work() -> None:
        while (first := next(starts)) < blocks:
            function(first, min(first + chunk, blocks))

    helpers = _submit(work, threads - 1)
    work()
    for helper in helpers:
        if not helper.cancel():  # one that has not begun has nothing left to do
            helper.result()

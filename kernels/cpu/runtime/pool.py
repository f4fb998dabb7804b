"""Step 10: share the blocks of a launch out among threads."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

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
_work: SimpleQueue[Callable[[], None]] | None = None
_threads: list[threading.Thread] = []
_kept_free = -1  # the core that they keep off
_this_core: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    _this_core = getattr(ctypes.CDLL(None), "sched_getcpu", None)


def _forget_helpers() -> None:
    global _work, _kept_free
    _work, _kept_free = None, -1
    _threads.clear()


if hasattr(os, "register_at_fork"):  # a fork copies the queue, but not the threads behind it
    os.register_at_fork(after_in_child=_forget_helpers)


def _helpers() -> SimpleQueue[Callable[[], None]]:
    """The queue that our threads take work from; started on first use."""
    global _work
    if _work is None:
        _work = SimpleQueue()
        before = threading.stack_size(STACK_BYTES)  # the default is small on some systems
        try:
            for _ in range(num_threads() - 1):
                helper = threading.Thread(target=_help, args=(_work,), daemon=True)
                helper.start()
                _threads.append(helper)
        finally:
            threading.stack_size(before)
    _keep_off()
    return _work


def _keep_off() -> None:
    """Keep our threads off the caller's core.

    Linux likes to wake a thread where it was woken from, even if another core has nothing to do:
    there it waits until the caller has done all the work. Where a system refuses, they stay free.
    """
    global _kept_free
    if _this_core is None or (core := _this_core()) == _kept_free:
        return
    _kept_free = core
    others = os.sched_getaffinity(0) - {core}
    with suppress(OSError):
        for thread in _threads if others else ():
            if thread.native_id:  # 0 would be the caller
                os.sched_setaffinity(thread.native_id, others)


def _help(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()


def run(
    function: Callable[[int, int], None], blocks: int, most: int | None = None, least: int = 1
) -> None:
    """Call `function(first, last)` on ranges that cover all blocks; the caller works too.

    Args:
        function: What runs a range of blocks.
        blocks: How many there are.
        most: Threads to use, at most; `num_threads()` by default.
        least: Blocks of a range, but for the last.

    Raises:
        BaseException: what `function` raised first, after all ranges have been tried.
    """
    threads = min(num_threads() if most is None else most, blocks)
    if threads == 1:
        return function(0, blocks)
    chunk = max(least, -(-blocks // (threads * CHUNKS_PER_THREAD)))
    starts, completed = itertools.count(0, chunk), itertools.count(1)  # next() is atomic
    chunks = -(-blocks // chunk)
    errors: list[BaseException] = []
    finished = threading.Lock()
    finished.acquire()

    def work() -> None:
        while (first := next(starts)) < blocks:
            try:
                function(first, min(first + chunk, blocks))
            except BaseException as error:
                errors.append(error)
            if next(completed) == chunks:
                finished.release()

    helpers = _helpers()
    for _ in range(threads - 1):
        helpers.put(work)  # a helper that comes too late finds nothing to do
    work()
    finished.acquire()
    if errors:
        raise errors[0]

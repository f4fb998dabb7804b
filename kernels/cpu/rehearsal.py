"""Compile what a program is about to launch on another core, while it begins.

A program finds out which kernel it needs when it comes to its launch, and waits there. But which
kernels those are its Python knows, whatever the numbers are. So with `rehearsed`, when a first
kernel is missing from the cache, a copy of the process goes on alone: it plays what is to come with
launches that do nothing, writes down what they would launch, and compiles that into the cache, the
last first. The two meet halfway.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from .runtime import pool

Play = Callable[[], Any]
_to_come: ContextVar[tuple[Play, ...]] = ContextVar("to_come", default=())


@contextmanager
def rehearsed(*plays: Play) -> Iterator[None]:
    """Compile what these functions launch on another core, once a kernel is missing in here.

    Args:
        plays: what is about to happen, in order; it happens in a copy of the process, and leaves no
            trace but compiled kernels. Launches do nothing there: their results are arbitrary.
    """
    token = _to_come.set(plays)
    try:
        yield
    finally:
        _to_come.reset(token)


def begin() -> None:
    """A kernel is missing: start the copy, where a process can be copied and has a second core."""
    plays = _to_come.get()
    _to_come.set(())
    if plays and pool.num_threads() > 1 and sys.platform == "linux":
        copy = multiprocessing.get_context("fork").Process(target=_compile, args=plays, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # our other threads wait for work
            copy.start()


def _compile(*plays: Play) -> None:
    """In the copy: compile what the plays launch."""
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # locks on files are the parent's
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in 1, 2:  # whoever reads the parent's waits for its end, not for this one's
        os.dup2(silence, stream)
    for play in plays:
        for kernel, *launch in reversed(noted(play)):
            with suppress(Exception):  # the parent will meet it, and say so
                kernel.compiled(*launch)


def noted(play: Play) -> list[Any]:
    """Return what a function launches, each once: kernel, block, arguments, shared bytes, mode."""
    from .launch import CpuKernel, kind_of  # which calls `begin`
    from .lowering import CHECKED, PLAIN
    from .watchers import checked_mode

    found: dict[Any, Any] = {}

    def note(
        kernel: Any, grid: Any, block: Any, arguments: Any, shared_bytes: int = 0, mode: Any = PLAIN
    ) -> None:
        kinds = block, shared_bytes, kernel._aliased(arguments), *map(kind_of, arguments)
        launch = kernel, block, arguments, shared_bytes, mode
        found.setdefault((kernel, mode.name, *kinds), launch)

    plain = patch.object(CpuKernel, "launch", note)
    checked = patch.object(checked_mode, "launch", partial(note, mode=CHECKED))
    with plain, checked, np.errstate(all="ignore"), suppress(Exception):
        play()
    return list(found.values())

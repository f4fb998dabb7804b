"""What threads learn from each other: shuffles, votes, and barriers that count.

Each thread has left a value in `sent`, an array with one element for each thread of the block, and
all have met. A lane is a thread's place in its warp of 32. `here` says which threads take part,
where the operation stands under a condition; without it, all do. A lane that asks for what no lane
sent gets its own value back.

A kernel is typed as a single thread sees it, and there `sent` is a number: these functions then
only tell the type of their result, which is that of Numba CUDA.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload, register_jitable

WARP = 32
MAX_THREADS = 1024
MAX_BARRIERS = 4096

__all__ = [
    "block_and", "block_count", "block_or", "block_parts", "divergence", "warp_active", "warp_all",
    "warp_any", "warp_ballot", "warp_down", "warp_eq", "warp_from", "warp_lanes_below",
    "warp_match_all", "warp_match_any", "warp_up", "warp_xor",
]  # fmt: skip


def _for_kernels(single: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that works on what all threads sent; `single` types one thread's call."""

    def decorate(function: Callable[..., Any]) -> Any:
        def choose(sent, *others):  # type: ignore[no-untyped-def]
            return function if isinstance(sent, types.Array) else single

        choose.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        overload(function, jit_options={"forceinline": True})(choose)
        return function

    return decorate


@register_jitable(forceinline=True)
def _takes_part(here, members, thread):  # type: ignore[no-untyped-def]
    """Whether a thread is here, and its lane's bit is set in the mask of members."""
    member = (members >> (thread % WARP)) & 1 == 1
    return member if here is None else member and here[thread]


# Shuffles -----------------------------------------------------------------------------------------


@register_jitable(forceinline=True)
def _take(sent, here, thread, lane):  # type: ignore[no-untyped-def]
    """The value of another lane of the same warp."""
    at = thread - thread % WARP + lane
    given = lane >= 0 and lane < WARP and at < sent.size
    if here is not None:
        given = given and here[at]
    return sent[np.uintp(at if given else thread)]


def _own(sent, members, other, thread, here=None):  # type: ignore[no-untyped-def]
    return sent


@_for_kernels(_own)
def warp_from(sent, members, other, thread, here=None):  # type: ignore[no-untyped-def]
    """`shfl_sync`: the value of a lane."""
    return _take(sent, here, thread, other % WARP)


@_for_kernels(_own)
def warp_up(sent, members, other, thread, here=None):  # type: ignore[no-untyped-def]
    """`shfl_up_sync`: the value of the lane `other` places below."""
    return _take(sent, here, thread, thread % WARP - other % WARP)


@_for_kernels(_own)
def warp_down(sent, members, other, thread, here=None):  # type: ignore[no-untyped-def]
    """`shfl_down_sync`: the value of the lane `other` places above."""
    return _take(sent, here, thread, thread % WARP + other % WARP)


@_for_kernels(_own)
def warp_xor(sent, members, other, thread, here=None):  # type: ignore[no-untyped-def]
    """`shfl_xor_sync`: the value of the lane whose number differs in the bits of `other`."""
    return _take(sent, here, thread, thread % WARP ^ other % WARP)


# Votes --------------------------------------------------------------------------------------------


@register_jitable
def _ballot(sent, members, thread, here):  # type: ignore[no-untyped-def]
    """Which lanes of a thread's warp take part, and which of these sent something true."""
    first = thread - thread % WARP
    part, true = 0, 0
    for other in range(first, min(first + WARP, sent.size)):
        if _takes_part(here, members, other):
            part |= 1 << (other - first)
            if sent[other]:
                true |= 1 << (other - first)
    return part, true


@_for_kernels(lambda sent, members, thread, here=None: True)
def warp_all(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`all_sync`: whether all sent something true."""
    part, true = _ballot(sent, members, thread, here)
    return part == true


@_for_kernels(lambda sent, members, thread, here=None: True)
def warp_any(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`any_sync`: whether any sent something true."""
    return _ballot(sent, members, thread, here)[1] != 0


@_for_kernels(lambda sent, members, thread, here=None: True)
def warp_eq(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`eq_sync`: whether all sent the same truth."""
    part, true = _ballot(sent, members, thread, here)
    return true == 0 or part == true


@_for_kernels(lambda sent, members, thread, here=None: np.int32(0))
def warp_ballot(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`ballot_sync`: a bit for each lane that sent something true."""
    return np.int32(_ballot(sent, members, thread, here)[1])


@register_jitable
def _alike(sent, members, thread, here):  # type: ignore[no-untyped-def]
    """Which lanes take part, and which of these sent what this thread sent."""
    first = thread - thread % WARP
    part, same = 0, 0
    for other in range(first, min(first + WARP, sent.size)):
        if _takes_part(here, members, other):
            part |= 1 << (other - first)
            if sent[other] == sent[thread]:
                same |= 1 << (other - first)
    return part, same


@_for_kernels(lambda sent, members, thread, here=None: np.int32(0))
def warp_match_any(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`match_any_sync`: a bit for each lane that sent the same value."""
    return np.int32(_alike(sent, members, thread, here)[1])


@_for_kernels(lambda sent, members, thread, here=None: (np.int32(0), True))
def warp_match_all(sent, members, thread, here=None):  # type: ignore[no-untyped-def]
    """`match_all_sync`: the members and True if all sent the same value, else 0 and False."""
    part, same = _alike(sent, members, thread, here)
    return np.int32(part if part == same else 0), part == same


@numba.njit(forceinline=True)
def warp_active(thread, threads, here=None):  # type: ignore[no-untyped-def]
    """`activemask`: a bit for each lane that is here."""
    first, lanes = thread - thread % WARP, 0
    for other in range(first, min(first + WARP, threads)):
        if here is None or here[other]:
            lanes |= 1 << (other - first)
    return np.uint32(lanes)


@numba.njit(forceinline=True)
def warp_lanes_below(lane):  # type: ignore[no-untyped-def]
    """`lanemask_lt`: a bit for each lane with a smaller number."""
    return np.uint32((1 << lane) - 1)


# Barriers -----------------------------------------------------------------------------------------


@_for_kernels(lambda sent, here=None: np.int32(0))
def block_count(sent, here=None):  # type: ignore[no-untyped-def]
    """`syncthreads_count`: how many threads sent something true."""
    count = 0
    for thread in range(sent.size):
        if here is None or here[thread]:
            count += sent[thread] != 0
    return np.int32(count)


@_for_kernels(lambda sent, here=None: np.int32(0))
def block_and(sent, here=None):  # type: ignore[no-untyped-def]
    """`syncthreads_and`: 1 if all threads sent something true."""
    for thread in range(sent.size):
        if (here is None or here[thread]) and not sent[thread]:
            return np.int32(0)
    return np.int32(1)


@_for_kernels(lambda sent, here=None: np.int32(0))
def block_or(sent, here=None):  # type: ignore[no-untyped-def]
    """`syncthreads_or`: 1 if any thread sent something true."""
    for thread in range(sent.size):
        if (here is None or here[thread]) and sent[thread]:
            return np.int32(1)
    return np.int32(0)


@numba.njit
def block_parts(here):  # type: ignore[no-untyped-def]
    """Whether some threads are here, and some are not."""
    for thread in range(here.size):  # noqa: SIM110
        if here[thread] != here[0]:
            return True
    return False


@numba.njit
def divergence(block, barrier, here):  # type: ignore[no-untyped-def]
    """One number for: in this block, a thread waits at this barrier that another never reaches."""
    waits, misses = 0, 0
    for thread in range(here.size - 1, -1, -1):
        if here[thread]:
            waits = thread
        else:
            misses = thread
    return ((block * MAX_THREADS + waits) * MAX_THREADS + misses) * MAX_BARRIERS + barrier + 1


def diverged(code: int) -> tuple[int, int, int, int]:
    """Block, barrier, waiting thread and missing thread from the number of `divergence`."""
    code, barrier = divmod(code - 1, MAX_BARRIERS)
    code, misses = divmod(code, MAX_THREADS)
    block, waits = divmod(code, MAX_THREADS)
    return block, barrier, waits, misses

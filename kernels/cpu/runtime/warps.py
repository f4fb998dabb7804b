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
from numba.core.errors import TypingError
from numba.extending import overload, register_jitable

from .bits import selp

WARP = 32
MAX_THREADS = 1024
MAX_BARRIERS = 4096

__all__ = [
    "block_and", "block_count", "block_or", "block_parts", "divergence", "warp_active", "warp_all",
    "warp_any", "warp_ballot", "warp_down", "warp_eq", "warp_from", "warp_lanes_below",
    "warp_match_all", "warp_match_any", "warp_up", "warp_xor",
]  # fmt: skip


# What Numba CUDA takes: for a shuffle numbers of a register or two, for a vote what is true or not,
# for a match what has bits, and for a barrier that counts what C counts.
SHUFFLED = types.int32, types.int64, types.float32, types.float64
COUNTED = tuple(types.integer_domain)
VOTED = *COUNTED, types.boolean
MATCHED = *VOTED, types.float32, types.float64
REGISTERS = types.int32, types.int64, types.uint32, types.uint64
WHOLE = {"members": "mask", "other": "lane"}  # parameters of these, in words
IN_WORDS = {
    SHUFFLED: "an int32, int64, float32 or float64, as `int32(x)` is one",
    COUNTED: "a whole number, as `1 if x > 0 else 0` is one",
    VOTED: "a truth value or a whole number, as `x != 0` is one",
    MATCHED: "a whole number, a truth value, a float32 or a float64",
}


def _for_kernels(
    single: Callable[..., Any], name: str, takes: tuple[types.Type, ...]
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that works on what all threads sent; `single` types one thread's call.

    Raises:
        TypingError: a thread gives what `cuda.` and `name` does not take on a GPU.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        def choose(sent, *others):
            if isinstance(sent, types.Array):
                return function
            if types.unliteral(sent) not in takes:
                raise TypingError(f"cuda.{name} takes {IN_WORDS[takes]}, got {sent}")
            for role, kind in zip(roles, others, strict=False):
                if role in WHOLE and types.unliteral(kind) not in whole:
                    wide = " of 32 or 64 bits" * (whole is REGISTERS)
                    what = f"cuda.{name} takes a whole number{wide} as its {WHOLE[role]}"
                    raise TypingError(f"{what}, got {kind}")
            return single

        choose.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        whole = VOTED if takes is MATCHED else REGISTERS  # a match converts its mask
        roles = [*choose.__signature__.parameters][1:]  # type: ignore[attr-defined]
        overload(function, jit_options={"forceinline": True})(choose)
        return function

    return decorate


@register_jitable(forceinline=True)
def _takes_part(here, members, thread):
    """Whether a thread is here, and its lane's bit is set in the mask of members."""
    member = (members >> (thread % WARP)) & 1 == 1
    return member if here is None else member and here[thread]


# Shuffles -----------------------------------------------------------------------------------------


@register_jitable(forceinline=True)
def _take(sent, here, thread, there, inside):
    """The value of another thread, if it is in the warp.

    Both values are loaded before one is chosen, without a branch, of which LLVM would make a choice
    between two places: what neighbours load then lies in a row. `sent` and `here` have a warp to
    spare on either side. Where all warps are whole, which is known when this is compiled, a lane
    that is in the warp is in the block.
    """
    other, own = sent[np.uintp(there)], sent[np.uintp(thread)]
    given = inside & ((sent.size % WARP == 0) | (there < sent.size))
    if here is not None:
        given &= here[np.uintp(there)]
    return selp(given, other, own)


def _own(sent, members, other, thread, here=None):
    return sent


@_for_kernels(_own, "shfl_sync", SHUFFLED)
def warp_from(sent, members, other, thread, here=None):
    """`shfl_sync`: the value of a lane."""
    return _take(sent, here, thread, thread - thread % WARP + other % WARP, True)


@_for_kernels(_own, "shfl_up_sync", SHUFFLED)
def warp_up(sent, members, other, thread, here=None):
    """`shfl_up_sync`: the value of the lane `other` places below."""
    delta = other % WARP
    return _take(sent, here, thread, thread - delta, delta <= thread % WARP)


@_for_kernels(_own, "shfl_down_sync", SHUFFLED)
def warp_down(sent, members, other, thread, here=None):
    """`shfl_down_sync`: the value of the lane `other` places above."""
    delta = other % WARP
    return _take(sent, here, thread, thread + delta, thread % WARP + delta < WARP)


@_for_kernels(_own, "shfl_xor_sync", SHUFFLED)
def warp_xor(sent, members, other, thread, here=None):
    """`shfl_xor_sync`: the value of the lane whose number differs in the bits of `other`."""
    bits = other % WARP
    if bits & (bits - 1) != 0:
        there = thread - thread % WARP + (thread % WARP ^ bits)
        return _take(sent, here, thread, there, True)
    above = _take(sent, here, thread, thread + bits, True)  # one bit: the neighbour above or below
    below = _take(sent, here, thread, thread - bits, True)
    return below if thread & bits else above


# Votes --------------------------------------------------------------------------------------------


@register_jitable
def _ballot(sent, members, thread, here):
    """Which lanes of a thread's warp take part, and which of these sent something true."""
    first = thread - thread % WARP
    part, true = 0, 0
    for other in range(first, min(first + WARP, sent.size)):
        if _takes_part(here, members, other):
            part |= 1 << (other - first)
            if sent[other]:
                true |= 1 << (other - first)
    return part, true


@_for_kernels(lambda sent, members, thread, here=None: True, "all_sync", VOTED)
def warp_all(sent, members, thread, here=None):
    """`all_sync`: whether all sent something true."""
    part, true = _ballot(sent, members, thread, here)
    return part == true


@_for_kernels(lambda sent, members, thread, here=None: True, "any_sync", VOTED)
def warp_any(sent, members, thread, here=None):
    """`any_sync`: whether any sent something true."""
    return _ballot(sent, members, thread, here)[1] != 0


@_for_kernels(lambda sent, members, thread, here=None: True, "eq_sync", VOTED)
def warp_eq(sent, members, thread, here=None):
    """`eq_sync`: whether all sent the same truth."""
    part, true = _ballot(sent, members, thread, here)
    return true == 0 or part == true


@_for_kernels(lambda sent, members, thread, here=None: np.int32(0), "ballot_sync", VOTED)
def warp_ballot(sent, members, thread, here=None):
    """`ballot_sync`: a bit for each lane that sent something true."""
    return np.int32(_ballot(sent, members, thread, here)[1])


def _bits(value):
    raise NotImplementedError


@overload(_bits)
def _bits_for(value):
    """What goes by bits goes by whole numbers: 0.0 is not -0.0 then, and NaN is itself."""
    if value == types.float32:
        return lambda value: np.float32(value).view(np.int32)
    if value == types.float64:
        return lambda value: np.float64(value).view(np.int64)
    return lambda value: value


@register_jitable
def _alike(sent, members, thread, here):
    """Which lanes take part, and which of these sent what this thread sent."""
    first = thread - thread % WARP
    part, same = 0, 0
    for other in range(first, min(first + WARP, sent.size)):
        if _takes_part(here, members, other):
            part |= 1 << (other - first)
            if _bits(sent[other]) == _bits(sent[thread]):
                same |= 1 << (other - first)
    return part, same


@_for_kernels(lambda sent, members, thread, here=None: np.int32(0), "match_any_sync", MATCHED)
def warp_match_any(sent, members, thread, here=None):
    """`match_any_sync`: a bit for each lane that sent the same value."""
    return np.int32(_alike(sent, members, thread, here)[1])


@_for_kernels(
    lambda sent, members, thread, here=None: (np.int32(0), True), "match_all_sync", MATCHED
)
def warp_match_all(sent, members, thread, here=None):
    """`match_all_sync`: the members and True if all sent the same value, else 0 and False."""
    part, same = _alike(sent, members, thread, here)
    return np.int32(part if part == same else 0), part == same


@numba.njit(forceinline=True)
def warp_active(thread, threads, here=None):
    """`activemask`: a bit for each lane that is here."""
    first, lanes = thread - thread % WARP, 0
    for other in range(first, min(first + WARP, threads)):
        if here is None or here[other]:
            lanes |= 1 << (other - first)
    return np.uint32(lanes)


@numba.njit(forceinline=True)
def warp_lanes_below(lane):
    """`lanemask_lt`: a bit for each lane with a smaller number."""
    return np.uint32((1 << lane) - 1)


# Barriers -----------------------------------------------------------------------------------------


@_for_kernels(lambda sent, here=None: np.int32(0), "syncthreads_count", COUNTED)
def block_count(sent, here=None):
    """`syncthreads_count`: how many threads sent something true."""
    count = 0
    for thread in range(sent.size):
        if here is None or here[thread]:
            count += sent[thread] != 0
    return np.int32(count)


@_for_kernels(lambda sent, here=None: np.int32(0), "syncthreads_and", COUNTED)
def block_and(sent, here=None):
    """`syncthreads_and`: 1 if all threads sent something true."""
    for thread in range(sent.size):
        if (here is None or here[thread]) and not sent[thread]:
            return np.int32(0)
    return np.int32(1)


@_for_kernels(lambda sent, here=None: np.int32(0), "syncthreads_or", COUNTED)
def block_or(sent, here=None):
    """`syncthreads_or`: 1 if any thread sent something true."""
    for thread in range(sent.size):
        if (here is None or here[thread]) and sent[thread]:
            return np.int32(1)
    return np.int32(0)


@numba.njit
def block_parts(here):
    """Whether some threads are here, and some are not."""
    for thread in range(here.size):  # noqa: SIM110
        if here[thread] != here[0]:
            return True
    return False


@numba.njit
def divergence(block, barrier, here):
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

"""What instrumented code calls at each access in the checked mode.

Beside each array that a kernel writes to stands *shadow memory*: for each element one word that
says who wrote it last, and, where threads also read it, one or four words for the last who read it.
A word is

    when << 23 | where << 11 | atomic << 10 | thread

`when` counts: each block has a range of its own (`EPOCHS` numbers), and within a block each barrier
and each meeting of a warp moves it on. So two words tell whether a barrier lies between two
accesses. Zero means never. `where` is the number of the place in the kernel.

What is wrong is noted for the thread in `fault`, and nothing stops: an index out of bounds is moved
to the nearest element, where the access does no harm. A first run only notes whether something is
wrong, in one number for each thread; the functions that run most have no branches, so that a loop
over the threads stays SIMD code. If something was, a second run on the same input notes what.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numba
import numpy as np
from numba.extending import overload, register_jitable

from .. import runtime
from ..runtime import *  # noqa: F403

OUT, UNWRITTEN, WRITTEN, READ = 1, 2, 3, 4  # by whom: nobody wrote; another wrote; another read
KINDS = 8
THREAD_BITS, ATOMIC, PLACE_SHIFT, TIME_SHIFT = 1023, 1024, 11, 23
PLACES = 4096
MANY, FAR = 1 << 11, 1 << 12  # in a reader's word, in place of the place
READERS = 4
EPOCHS = 1 << 18  # barriers and meetings of a block
BLOCKS = 1 << 21
NOW, SINCE, FIRST, WARPS = 0, 1, 2, 3  # places in `clock`
CLOCK = WARPS + 32

run__checks = sys.modules[__name__]  # what emitted code calls us: nobody else uses such a name

__all__ = [*runtime.__all__, "run__checks"]


# Indices ------------------------------------------------------------------------------------------


def _by_dimensions(functions: dict[int, Any]) -> Any:
    """A function of a tuple of indices and a shape, chosen by the number of indices."""

    def function(index, shape):
        raise NotImplementedError

    @overload(function, jit_options={"forceinline": True})
    def _(index, shape):
        return functions[len(index)]

    return function


@register_jitable(forceinline=True)
def _out(i, n):
    return (i < 0) | (i >= n)


@register_jitable(forceinline=True)
def _clip(i, n):
    return np.uintp(min(max(np.int64(i), 0), n - 1))


_outside = _by_dimensions({
    1: lambda index, shape: _out(index[0], shape[0]),
    2: lambda index, shape: _out(index[0], shape[0]) | _out(index[1], shape[1]),
    3: lambda index, shape: (
        _out(index[0], shape[0]) | _out(index[1], shape[1]) | _out(index[2], shape[2])
    ),
    4: lambda index, shape: (
        _out(index[0], shape[0]) | _out(index[1], shape[1])
        | _out(index[2], shape[2]) | _out(index[3], shape[3])
    ),
    5: lambda index, shape: (
        _out(index[0], shape[0]) | _out(index[1], shape[1]) | _out(index[2], shape[2])
        | _out(index[3], shape[3]) | _out(index[4], shape[4])
    ),
})  # fmt: skip
_inside = _by_dimensions({
    1: lambda index, shape: (_clip(index[0], shape[0]),),
    2: lambda index, shape: (_clip(index[0], shape[0]), _clip(index[1], shape[1])),
    3: lambda index, shape: (
        _clip(index[0], shape[0]), _clip(index[1], shape[1]), _clip(index[2], shape[2])
    ),
    4: lambda index, shape: (
        _clip(index[0], shape[0]), _clip(index[1], shape[1]),
        _clip(index[2], shape[2]), _clip(index[3], shape[3]),
    ),
    5: lambda index, shape: (
        _clip(index[0], shape[0]), _clip(index[1], shape[1]), _clip(index[2], shape[2]),
        _clip(index[3], shape[3]), _clip(index[4], shape[4]),
    ),
})  # fmt: skip


@register_jitable(forceinline=True)
def _low(i, bits):
    return np.int64(i) & ((1 << bits) - 1)


_packed = _by_dimensions({
    1: lambda index, shape: np.int64(index[0]),
    2: lambda index, shape: np.int64(index[0]) << 32 | _low(index[1], 32),
    3: lambda index, shape: (
        np.int64(index[0]) << 42 | _low(index[1], 21) << 21 | _low(index[2], 21)
    ),
    4: lambda index, shape: (
        np.int64(index[0]) << 48 | _low(index[1], 16) << 32
        | _low(index[2], 16) << 16 | _low(index[3], 16)
    ),
    5: lambda index, shape: (
        np.int64(index[0]) << 48 | _low(index[1], 12) << 36 | _low(index[2], 12) << 24
        | _low(index[3], 12) << 12 | _low(index[4], 12)
    ),
})  # fmt: skip
BITS = {1: 64, 2: 32, 3: 21, 4: 16, 5: 12}


def unpacked(packed: int, count: int) -> tuple[int, ...]:
    """The indices from one number."""
    bits, found = BITS[count], []
    for _ in range(count - 1):
        low = packed & ((1 << bits) - 1)
        found.append(low - (1 << bits) if low >> (bits - 1) else low)
        packed >>= bits
    return (packed, *found[::-1])


# Time ---------------------------------------------------------------------------------------------


@register_jitable
def block_starts(clock, block):
    """Set the clock to the beginning of a block's range."""
    clock[:] = (block % BLOCKS + 1) * EPOCHS


@register_jitable
def all_met(clock):
    """All threads of the block have met at a barrier."""
    if clock[NOW] < clock[FIRST] + EPOCHS - 2:
        clock[NOW] += 1
        clock[SINCE] = clock[NOW]
        clock[WARPS:] = clock[NOW]
    else:  # no numbers left: nothing counts as unordered from now on
        clock[SINCE] = clock[NOW] + 1
        clock[WARPS:] = clock[NOW] + 1


@numba.njit
def some_met(clock, threads, here=None):
    """The threads of each warp that are here have met."""
    if clock[NOW] < clock[FIRST] + EPOCHS - 2:
        clock[NOW] += 1
        for thread in range(threads):
            if here is None or here[thread]:
                clock[WARPS + thread // 32] = clock[NOW]


# Accesses -----------------------------------------------------------------------------------------


def _note(fault, thread, place, kind, packed, other):
    """Note what is wrong: only that something is, or, in two dimensions, what was first."""
    raise NotImplementedError


@overload(_note, jit_options={"forceinline": True})
def _note_for(fault, thread, place, kind, packed, other):
    def whether(fault, thread, place, kind, packed, other):
        fault[thread] |= kind

    def what(fault, thread, place, kind, packed, other):
        if kind != 0 and fault[0, thread] == 0:
            fault[0, thread] = place * KINDS + kind
            fault[1, thread] = packed
            fault[2, thread] = other

    return whether if fault.ndim == 1 else what


@register_jitable(forceinline=True)
def _word(clock, place, thread, atomic):
    return clock[NOW] << TIME_SHIFT | place << PLACE_SHIFT | atomic | thread


@register_jitable(forceinline=True)
def _is_near(word, clock):
    """Whether an access was made by this block."""
    when = word >> TIME_SHIFT
    return (when >= clock[FIRST]) & (when < clock[FIRST] + EPOCHS)


@register_jitable(forceinline=True)
def _unordered(word, clock, thread, is_global):
    """Whether nothing orders an access after the one that left a word."""
    other, near = word & THREAD_BITS, _is_near(word, clock)
    since = clock[WARPS + thread // 32] if thread // 32 == other // 32 else clock[SINCE]
    mine = other == thread
    return (near & (not mine) & (word >> TIME_SHIFT >= since)) | (
        is_global & (word != 0) & (not near)
    )


@register_jitable(forceinline=True)
def within(array, fault, place, thread, index):
    """Read an array that the kernel never writes: where is the nearest element?"""
    kind = OUT if _outside(index, array.shape) else 0
    _note(fault, thread, place, kind, _packed(index, array.shape), 0)
    return _inside(index, array.shape)


@register_jitable(forceinline=True)
def read_alone(array, writes, clock, fault, place, thread, index):
    """Read shared memory, where nobody writes to it before the next barrier."""
    at = _inside(index, array.shape)
    unwritten = writes[at] >> TIME_SHIFT < clock[FIRST]
    kind = OUT if _outside(index, array.shape) else UNWRITTEN if unwritten else 0
    _note(fault, thread, place, kind, _packed(index, array.shape), 0)
    return at


@register_jitable(forceinline=True)
def read_own(array, writes, clock, fault, place, thread, index):
    """Read local memory, of which `writes` only says in which block it was written."""
    at = _inside(index, array.shape)
    unwritten = writes[at] != np.int32(clock[FIRST] // EPOCHS)
    kind = OUT if _outside(index, array.shape) else UNWRITTEN if unwritten else 0
    _note(fault, thread, place, kind, _packed(index, array.shape), 0)
    return at


@register_jitable(forceinline=True)
def write_own(array, writes, clock, fault, place, thread, index, value):
    """Write to local memory."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    array[at] = array[at] if outside else array.dtype.type(value)
    writes[at] = writes[at] if outside else np.int32(clock[FIRST] // EPOCHS)
    _note(fault, thread, place, OUT if outside else 0, _packed(index, array.shape), 0)


@register_jitable(forceinline=True)
def write_alone(array, writes, clock, fault, place, thread, is_global, index, value):
    """Write to an array where nobody reads it before the next barrier."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, old = writes[at], array[at]
    new = array.dtype.type(value)
    array[at] = old if outside else new
    writes[at] = last if outside else _word(clock, place, thread, 0)
    raced = _unordered(last, clock, thread, is_global) & (new != old)
    kind = OUT if outside else WRITTEN if raced else 0
    _note(fault, thread, place, kind, _packed(index, array.shape), last)


# Where threads read and write in the same stretch, a run that only asks whether something is wrong
# keeps one word for all readers of an element: the last one's, with a mark if there are others that
# nothing orders, and a mark if any is of another block. It may suspect too much, never too little.


@register_jitable(forceinline=True)
def _may_clash(word, clock, thread, is_global):
    """Whether some reader of an element may clash with this access."""
    many = word & MANY != 0
    late = word >> TIME_SHIFT >= clock[SINCE]
    near = _is_near(word, clock)
    return _unordered(word, clock, thread, is_global) | (near & many & late) | (word & FAR != 0)


@register_jitable(forceinline=True)
def _suspect_read(array, writes, reads, clock, fault, place, thread, is_global, index):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, reader = writes[at], reads[at]
    unwritten = (not is_global) & (last >> TIME_SHIFT < clock[FIRST])
    wrong = outside | unwritten | _unordered(last, clock, thread, is_global)
    near = _is_near(reader, clock)
    many = _may_clash(reader, clock, thread, is_global)
    far = is_global & (((reader != 0) & (not near)) | (reader & FAR != 0))
    word = _word(clock, 0, thread, 0) | (MANY if many else 0) | (FAR if far else 0)
    reads[at] = reader if outside else word
    _note(fault, thread, place, OUT if wrong else 0, 0, 0)
    return at


@register_jitable(forceinline=True)
def _suspect_write(array, writes, reads, clock, fault, place, thread, is_global, index, value):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, reader, old = writes[at], reads[at], array[at]
    new = array.dtype.type(value)
    array[at] = old if outside else new
    writes[at] = last if outside else _word(clock, place, thread, 0)
    raced = _unordered(last, clock, thread, is_global) | _may_clash(
        reader, clock, thread, is_global
    )
    _note(fault, thread, place, OUT if outside | (raced & (new != old)) else 0, 0, 0)


@register_jitable(forceinline=True)
def _still_counts(word, clock, is_global):
    """Whether a plain write may yet clash with others, so that an atomic must not hide it."""
    late = is_global | (word >> TIME_SHIFT >= clock[SINCE])
    return (word & ATOMIC == 0) & _is_near(word, clock) & late


@register_jitable(forceinline=True)
def _suspect_change(array, writes, reads, clock, fault, place, thread, is_global, atomic, index):
    """A write that is not compared with what was there: of a record's field, or an atomic."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, reader = writes[at], reads[_inside(index, reads.shape)]
    unwritten = (not is_global) & (atomic != 0) & (last >> TIME_SHIFT < clock[FIRST])
    both = (last & ATOMIC != 0) & (atomic != 0)
    wrong = outside | unwritten | _may_clash(reader, clock, thread, is_global)
    wrong |= _unordered(last, clock, thread, is_global) & (not both)
    kept = outside | ((atomic != 0) & _still_counts(last, clock, is_global))
    writes[at] = last if kept else _word(clock, place, thread, atomic)
    _note(fault, thread, place, OUT if wrong else 0, 0, 0)
    return at


# The run that tells what is wrong keeps four readers of an element.


@register_jitable
def _last_reader(reads, index, clock, thread, is_global):
    """A reader that nothing orders before this access; 0 if there is none."""
    at = _inside(index, reads.shape)
    for i in range(READERS):
        word = reads[(*at, i)]
        if word != 0 and _unordered(word, clock, thread, is_global):
            return word
    return np.int64(0)


@register_jitable
def _remember_reader(reads, at, word):
    """Keep the last reader, and the last ones of another lane, another warp and another block."""
    last = reads[(*at, 0)]
    if (last >> TIME_SHIFT) // EPOCHS != (word >> TIME_SHIFT) // EPOCHS:
        reads[(*at, 3)] = last
    elif (last & THREAD_BITS) // 32 != (word & THREAD_BITS) // 32:
        reads[(*at, 2)] = last
    elif last & THREAD_BITS != word & THREAD_BITS:
        reads[(*at, 1)] = last
    reads[(*at, 0)] = word


@register_jitable
def _tell_read(array, writes, reads, clock, fault, place, thread, is_global, index):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, kind = writes[at], 0
    if outside:
        kind = OUT
    else:
        if not is_global and last >> TIME_SHIFT < clock[FIRST]:
            kind = UNWRITTEN
        elif _unordered(last, clock, thread, is_global):
            kind = WRITTEN
        _remember_reader(reads, at, _word(clock, place, thread, 0))
    _note(fault, thread, place, kind, _packed(index, array.shape), last)
    return at


@register_jitable
def _tell_write(array, writes, reads, clock, fault, place, thread, is_global, index, value):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    kind, last, old = OUT, writes[at], array[at]
    if not outside:
        kind = 0
        array[at] = value
        reader = _last_reader(reads, index, clock, thread, is_global)
        if array[at] != old and _unordered(last, clock, thread, is_global):
            kind = WRITTEN
        elif array[at] != old and reader != 0:
            kind, last = READ, reader
        writes[at] = _word(clock, place, thread, 0)
    _note(fault, thread, place, kind, _packed(index, array.shape), last)


@register_jitable
def _tell_change(array, writes, reads, clock, fault, place, thread, is_global, atomic, index):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, kind = writes[at], 0
    reader = _last_reader(reads, index, clock, thread, is_global)
    both = last & ATOMIC != 0 and atomic != 0
    if outside:
        kind = OUT
    elif atomic != 0 and not is_global and last >> TIME_SHIFT < clock[FIRST]:
        kind = UNWRITTEN
    elif not both and _unordered(last, clock, thread, is_global):
        kind = WRITTEN
    elif reader != 0:
        kind, last = READ, reader
    if not outside and not (atomic != 0 and _still_counts(writes[at], clock, is_global)):
        writes[at] = _word(clock, place, thread, atomic)
    _note(fault, thread, place, kind, _packed(index, array.shape), last)
    return at


def _by_run(function: Any, suspects: Any, tells: Any) -> None:
    """Let a function do one thing in the run that asks, and another in the run that tells."""

    def choose(array, writes, reads, clock, fault, *others):
        chosen = suspects if fault.ndim == 1 else tells
        return chosen

    choose.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    overload(function, jit_options={"forceinline": True})(choose)


def read(array, writes, reads, clock, fault, place, thread, is_global, index):
    """Read an array that others may be writing."""


def write(array, writes, reads, clock, fault, place, thread, is_global, index, value):
    """Write to an array that others may be reading or writing."""


def change(array, writes, reads, clock, fault, place, thread, is_global, atomic, index):
    """Write to a field of a record, or (`atomic` is `ATOMIC`) let an atomic work on an element."""


_by_run(read, _suspect_read, _tell_read)
_by_run(write, _suspect_write, _tell_write)
_by_run(change, _suspect_change, _tell_change)


def is_fine(fault, thread):
    """Whether a thread has noted nothing."""
    raise NotImplementedError


@overload(is_fine, jit_options={"forceinline": True})
def _is_fine_for(fault, thread):
    if fault.ndim == 1:
        return lambda fault, thread: fault[thread] == 0
    return lambda fault, thread: fault[0, thread] == 0


def faulty(fault, found, block):
    """Whether a thread has noted something; the first one's note goes to `found`."""
    raise NotImplementedError


@overload(faulty)
def _faulty_for(fault, found, block):
    def whether(fault, found, block):
        noted = np.int32(0)
        for thread in range(fault.size):
            noted |= fault[thread]
        return noted != 0

    def what(fault, found, block):
        chosen = -1
        for thread in range(fault.shape[1]):
            if fault[0, thread] == 0:
                continue
            # What is read too early is unwritten for some threads, and a race for others.
            if chosen < 0 or (
                fault[0, chosen] % KINDS == UNWRITTEN and fault[0, thread] % KINDS >= WRITTEN
            ):
                chosen = thread
        if chosen >= 0:
            found[0], found[1], found[2] = fault[0, chosen], fault[1, chosen], fault[2, chosen]
            found[3], found[4] = block, chosen
        return chosen >= 0

    return whether if fault.ndim == 1 else what

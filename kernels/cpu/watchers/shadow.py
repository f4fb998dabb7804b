"""What instrumented code calls at each access in the checked mode.

Beside each array that a kernel writes to stands *shadow memory*, of the same shape: where the array
has a number, it has one word that says who wrote it last, and, where threads also read it, one or
fifteen words for the last who read it, or changed it by an atomic. A word is

    when << 23 | where << 11 | atomic << 10 | thread

`when` counts: each block has a range of its own (`EPOCHS` numbers), and within a block each barrier
and each `cuda.syncwarp()` moves it on. So two words tell whether a barrier lies between two
accesses. Zero means never. `where` is the number of the place in the kernel.

`cuda.syncwarp(mask)` orders what the lanes in the mask do, and only those that come to it. So where
a kernel calls it, each thread has a row in the clock, of 32 times: what that lane of its warp did
before that time comes before all that the thread does now. Lanes that meet take over what any of
them knows, of others as well: a *vector clock* (Mattern 1988).

What is wrong is noted for the thread in `fault`, and nothing stops: an index out of bounds is moved
to the nearest element, where the access does no harm. A first run only notes whether something is
wrong, in one number for each thread; the functions that run most have no branches, so that a loop
over the threads stays SIMD code. If something was, a second run on the same input notes what.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload, register_jitable
from numba.np.numpy_support import as_dtype

from .. import runtime
from ..form import EVERYONE, WARP
from ..runtime import *  # noqa: F403
from ..runtime import on_stack
from .fields import run__field

OUT, UNWRITTEN, WRITTEN, READ = 1, 2, 3, 4  # by whom: nobody wrote; another wrote; another read
ENDLESS, FAILED = 5, 6  # of loops and `assert`
ABSENT, UNSENT = 7, 8  # of what the lanes of a warp do together
MOST_TURNS = 1 << 28  # of a thread's loop, those of loops inside included: seconds
MOST_COMMON_TURNS = 1 << 29  # of all threads, in a loop that they walk in step
OVER, ALL = 0, 1  # places in `turns`: whether somebody took too many; all, for common loops
KINDS = 16
THREAD_BITS, ATOMIC, PLACE_SHIFT, TIME_SHIFT = 1023, 1024, 11, 23
PLACES = 4096
# In a word for all who read or changed an element, in place of the place.
MANY, FAR, LOOKED, CHANGED, SWAPPED = (1 << bit for bit in range(11, 16))
READERS = 5  # words for those who read an element, for those who changed it, and who swapped it
EPOCHS = 1 << 18  # barriers and meetings of a block
BLOCKS = 1 << 21
NOW, SINCE, FIRST, ROWS = 0, 1, 2, 3  # places in `clock`
DIFFERS, BLOCK, THREAD, NOTED = 0, 1, 2, 3  # places in `found`

run__checks = sys.modules[__name__]  # what emitted code calls us: nobody else uses such a name

__all__ = [*runtime.__all__, "run__checks", "run__field"]


# Shadows ------------------------------------------------------------------------------------------

LEAVES: dict[str, np.dtype] = {  # what stands for a number
    "writes": np.dtype(np.int64),
    "own": np.dtype(np.int32),  # of local memory: in which block it was written
    "reads": np.dtype(np.int64),
    "readers": np.dtype([(how, np.int64, READERS) for how in ("looked", "changed", "swapped")]),
}


def shadow_dtype(dtype: np.dtype, leaf: str) -> np.dtype:
    """The dtype of a shadow: a leaf for a number, and for a record a record of them."""
    if dtype.subdtype:
        element, shape = dtype.subdtype
        return np.dtype((shadow_dtype(element, leaf), shape))
    if dtype.names:
        return np.dtype([(name, shadow_dtype(dtype[name], leaf)) for name in dtype.names])
    return LEAVES[leaf]


def shadow_type(kind: types.Type, leaf: str) -> types.Type:
    """The type of the shadow of an argument, which is an array."""
    found = numba.from_dtype(shadow_dtype(as_dtype(kind.dtype), leaf))
    return types.Array(found, kind.ndim, "C" if kind.layout == "C" else "A")


@intrinsic(prefer_literal=True)
def shadow(typing_context, array, shape, leaf):
    """Shadow memory of zeros in the function's stack frame."""
    dims = tuple(size.literal_value for size in shape.types)
    found = numba.from_dtype(shadow_dtype(as_dtype(array.dtype), leaf.literal_value))
    kind = types.Array(found, len(dims), "C")

    def generate(context, builder, signature, arguments):
        made = on_stack(context, builder, kind, dims)
        size = builder.mul(made.itemsize, context.get_constant(types.intp, int(np.prod(dims))))
        memory = builder.bitcast(made.data, ir.IntType(8).as_pointer())
        cgutils.memset(builder, memory, size, 0)
        return made._getvalue()

    return kind(array, shape, leaf), generate


@intrinsic
def _as_element(typing_context, array, value):
    """A value as it will be when it is in an array."""
    if typing_context.can_convert(value, array.dtype) is None:
        raise TypingError(f"a {value} cannot be an element of {array}")

    def generate(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], value, array.dtype)

    return array.dtype(array, value), generate


# Indices ------------------------------------------------------------------------------------------


def _by_dimensions(text: Callable[[int], str]) -> Any:
    """A function of a tuple of indices and a shape, whose text depends on how many there are."""
    known = {"_out": _out, "_clip": _clip, "np": np}
    functions = [eval(f"lambda index, shape: {text(count)}", known) for count in range(MOST)]

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
    return np.uintp(max(min(np.int64(i), n - 1), 0))


MOST = 9  # indices, and one more
NOTES = 2 + MOST  # numbers that say what is wrong: place and kind, the other access, indices


def _of_each(call: str, count: int) -> list[str]:
    return [call.format(i=i) for i in range(count)]


_outside = _by_dimensions(
    lambda count: " | ".join(["False", *_of_each("_out(index[{i}], shape[{i}])", count)])
)
_inside = _by_dimensions(
    lambda count: f"({''.join(_of_each('_clip(index[{i}], shape[{i}]), ', count))})"
)
_told = _by_dimensions(  # with one more, so that there is one
    lambda count: f"({''.join(_of_each('np.int64(index[{i}]), ', count))}np.int64(0),)"
)


# Time ---------------------------------------------------------------------------------------------


@register_jitable
def block_starts(clock, block):
    """Set the clock to the beginning of a block's range; what rows hold is earlier than that."""
    clock[NOW] = clock[SINCE] = clock[FIRST] = (block % BLOCKS + 1) * EPOCHS


@register_jitable(forceinline=True)
def _moves_on(clock):
    """Move the clock on; if no numbers are left, nothing counts as unordered from now on."""
    if clock[NOW] < clock[FIRST] + EPOCHS - 2:
        clock[NOW] += 1
        return True
    clock[SINCE] = clock[NOW] + 1
    return False


@register_jitable
def all_met(clock):
    """All threads of the block have met at a barrier."""
    if _moves_on(clock):
        clock[SINCE] = clock[NOW]


@numba.njit
def some_met(clock, threads, masks, here=None):
    """Of each warp the threads that are here have met, each with those who name the same mask."""
    if not _moves_on(clock):
        return
    for thread in range(threads):
        met, first = _met(thread, threads, masks, here), thread - thread % WARP
        if met & -met != 1 << thread - first:
            continue  # it is not the first of those, which learns from all, and then tells all
        for lane in range(WARP):
            known = clock[NOW] if met >> lane & 1 else 0
            for other in range(WARP):
                if met >> other & 1:
                    known = max(known, clock[_row(first + other) + lane])
            for other in range(WARP):
                if met >> other & 1:
                    clock[_row(first + other) + lane] = known


@numba.njit
def _met(thread, threads, masks, here):
    """A bit for each lane that a thread meets, itself included; 0 if it is not here."""
    first, met = thread - thread % WARP, 0
    mask = np.int64(masks[thread]) & EVERYONE
    for other in range(first, min(first + WARP, threads)):
        if (here is None or here[other]) and np.int64(masks[other]) & EVERYONE == mask:
            met |= mask & 1 << other - first
    return met


@register_jitable(forceinline=True)
def _row(thread):
    """Where the row of a thread begins in the clock."""
    return ROWS + thread * WARP


# Accesses -----------------------------------------------------------------------------------------


def _note(fault, thread, place, kind, index, other):
    """Note what is wrong: only that something is, or, in two dimensions, what was first."""
    raise NotImplementedError


@overload(_note, jit_options={"forceinline": True})
def _note_for(fault, thread, place, kind, index, other):
    def whether(fault, thread, place, kind, index, other):
        fault[thread] |= kind

    def what(fault, thread, place, kind, index, other):
        if kind != 0 and fault[0, thread] == 0:
            fault[0, thread] = place * KINDS + kind
            fault[1, thread] = other
            for axis in range(len(index)):
                fault[2 + axis, thread] = index[axis]

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
    since, mine = clock[SINCE], other == thread
    if clock.size > ROWS:  # which is known when this is compiled
        met = clock[_row(thread) + other % WARP]
        since = max(since, met if thread // WARP == other // WARP else since)
    return (near & (not mine) & (word >> TIME_SHIFT >= since)) | (
        is_global & (word != 0) & (not near)
    )


@register_jitable(forceinline=True)
def _differs(new, old):
    """Whether a write changes anything: those who write the same need no order."""
    return (new != old) & ((new == new) | (old == old))  # NaN for NaN


@register_jitable(forceinline=True)
def within(array, fault, place, thread, index):
    """Read an array that the kernel never writes: where is the nearest element?"""
    kind = OUT if _outside(index, array.shape) else 0
    _note(fault, thread, place, kind, _told(index, array.shape), 0)
    return _inside(index, array.shape)


@register_jitable(forceinline=True)
def along(array, fault, place, thread, axis, index):
    """Take an index among slices: where is the nearest?"""
    shape = (array.shape[axis],)
    kind = OUT if _outside(index, shape) else 0
    _note(fault, thread, place, kind, _told(index, shape), 0)
    return _inside(index, shape)[0]


@register_jitable(forceinline=True)
def read_alone(array, writes, clock, fault, place, thread, index):
    """Read shared memory, where nobody writes to it before the next barrier."""
    at = _inside(index, array.shape)
    unwritten = writes[at] >> TIME_SHIFT < clock[FIRST]
    kind = OUT if _outside(index, array.shape) else UNWRITTEN if unwritten else 0
    _note(fault, thread, place, kind, _told(index, array.shape), 0)
    return at


@register_jitable(forceinline=True)
def read_own(array, writes, clock, fault, place, thread, index):
    """Read local memory, of which `writes` only says in which block it was written."""
    at = _inside(index, array.shape)
    unwritten = writes[at] != np.int32(clock[FIRST] // EPOCHS)
    kind = OUT if _outside(index, array.shape) else UNWRITTEN if unwritten else 0
    _note(fault, thread, place, kind, _told(index, array.shape), 0)
    return at


@register_jitable(forceinline=True)
def write_own(array, writes, clock, fault, place, thread, index, value):
    """Write to local memory."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    array[at] = array[at] if outside else _as_element(array, value)
    writes[at] = writes[at] if outside else np.int32(clock[FIRST] // EPOCHS)
    _note(fault, thread, place, OUT if outside else 0, _told(index, array.shape), 0)


@register_jitable(forceinline=True)
def write_alone(array, writes, clock, fault, place, thread, is_global, index, value):
    """Write to an array where nobody reads it before the next barrier."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, old = writes[at], array[at]
    new = _as_element(array, value)
    array[at] = old if outside else new
    writes[at] = last if outside else _word(clock, place, thread, 0)
    raced = _unordered(last, clock, thread, is_global) & _differs(new, old)
    kind = OUT if outside else WRITTEN if raced else 0
    _note(fault, thread, place, kind, _told(index, array.shape), last)


@register_jitable(forceinline=True)
def _still_counts(word, clock, is_global):
    """Whether a plain write may yet clash with others, so that an atomic must not hide it."""
    late = is_global | (word >> TIME_SHIFT >= clock[SINCE])
    return (word & ATOMIC == 0) & _is_near(word, clock) & late


@register_jitable(forceinline=True)
def change_alone(array, writes, clock, fault, place, thread, is_global, index):
    """Let an atomic work on an element that nobody reads before the next barrier."""
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last = writes[at]
    unwritten = (not is_global) & (last >> TIME_SHIFT < clock[FIRST])
    raced = _unordered(last, clock, thread, is_global) & (last & ATOMIC == 0)
    kept = outside | _still_counts(last, clock, is_global)
    writes[at] = last if kept else _word(clock, place, thread, ATOMIC)
    kind = OUT if outside else UNWRITTEN if unwritten else WRITTEN if raced else 0
    _note(fault, thread, place, kind, _told(index, array.shape), last)
    return at


# What a GPU computes otherwise --------------------------------------------------------------------
#
# Each thread keeps the number of the first place, from 1 up, where it met such a thing.


def largest(a, b, differs, number, thread):
    """`max(a, b)`; note a NaN, which a GPU passes over."""


def smallest(a, b, differs, number, thread):
    """`min(a, b)`; note a NaN, which a GPU passes over."""


def _noting_nan(function: Any, plain: Any) -> None:
    """Let a function of two floats note a NaN; of others it is the plain one."""

    def choose(a, b, differs, number, thread):
        def noting(a, b, differs, number, thread):
            met = (differs[thread] == 0) & ((a != a) | (b != b))
            differs[thread] = number if met else differs[thread]
            return plain(a, b)

        both = isinstance(a, types.Float) and isinstance(b, types.Float)
        return noting if both else lambda a, b, differs, number, thread: plain(a, b)

    overload(function, jit_options={"forceinline": True})(choose)


_noting_nan(largest, max)
_noting_nan(smallest, min)


def fits(x, low, high, differs, number, thread):
    """A number that will be a whole one from low to below high; note one that cannot be."""


@overload(fits, jit_options={"forceinline": True})
def _fits_for(x, low, high, differs, number, thread):
    def noting(x, low, high, differs, number, thread):
        whole = np.trunc(x)
        fine = (differs[thread] != 0) | ((whole >= low) & (whole < high))
        differs[thread] = differs[thread] if fine else number
        return x

    def plain(x, low, high, differs, number, thread):
        return x

    return noting if isinstance(x, types.Float) else plain


@register_jitable
def tell(differs, found):
    """Take the number of a place where a GPU computes otherwise to what a run has found."""
    for thread in range(differs.size):
        if differs[thread] != 0 and found[DIFFERS] == 0:
            found[DIFFERS] = differs[thread]


# Where threads read and write in the same stretch, a run that only asks whether something is wrong
# keeps one word for all who read an element or changed it by an atomic: the last one's, with marks
# that say which of the two they did, whether there are several that nothing orders, and whether any
# is of another block. It may suspect too much, never too little.
#
# To compare and swap is a change that minds no plain read, nor does a plain read mind it: a loop
# around it begins with one, and what it compares is whether that was right.


@register_jitable(forceinline=True)
def _may_clash(word, clock, thread, is_global):
    """Whether some of those who read or changed an element may clash with this access."""
    many = word & MANY != 0
    late = word >> TIME_SHIFT >= clock[SINCE]
    near = _is_near(word, clock)
    return _unordered(word, clock, thread, is_global) | (near & many & late) | (word & FAR != 0)


@register_jitable(forceinline=True)
def _with_one_more(word, clock, thread, is_global, mark):
    """The word for all, after one more has read an element or changed it."""
    near = _is_near(word, clock)
    past = near & (word >> TIME_SHIFT < clock[SINCE])  # before a barrier
    many = _may_clash(word, clock, thread, is_global)
    far = is_global & (((word != 0) & (not near)) | (word & FAR != 0))
    before = 0 if past else word & (LOOKED | CHANGED | SWAPPED)
    return _word(clock, 0, thread, 0) | before | mark | (MANY if many else 0) | (FAR if far else 0)


@register_jitable(forceinline=True)
def _suspect_read(array, writes, reads, clock, fault, place, thread, is_global, index):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, others = writes[at], reads[at]
    unwritten = (not is_global) & (last >> TIME_SHIFT < clock[FIRST])
    changed = (others & CHANGED != 0) & _may_clash(others, clock, thread, is_global)
    wrong = outside | unwritten | changed | _unordered(last, clock, thread, is_global)
    reads[at] = others if outside else _with_one_more(others, clock, thread, is_global, LOOKED)
    _note(fault, thread, place, OUT if wrong else 0, (0,), 0)
    return at


@register_jitable(forceinline=True)
def _suspect_write(array, writes, reads, clock, fault, place, thread, is_global, index, value):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, others, old = writes[at], reads[at], array[at]
    new = _as_element(array, value)
    array[at] = old if outside else new
    writes[at] = last if outside else _word(clock, place, thread, 0)
    both = _unordered(last, clock, thread, is_global)  # write; they may write the same
    raced = (both & _differs(new, old)) | (
        (not both) & _may_clash(others, clock, thread, is_global)
    )
    _note(fault, thread, place, OUT if outside | raced else 0, (0,), 0)


def _suspects(swaps: bool) -> Any:
    """An atomic, which may be one that compares and swaps."""
    mark = SWAPPED if swaps else CHANGED

    @register_jitable(forceinline=True)
    def suspect(array, writes, reads, clock, fault, place, thread, is_global, index):
        at, outside = _inside(index, array.shape), _outside(index, array.shape)
        last, others = writes[at], reads[at]
        unwritten = (not is_global) & (last >> TIME_SHIFT < clock[FIRST])
        looked = (not swaps) & (others & LOOKED != 0) & _may_clash(others, clock, thread, is_global)
        wrong = outside | unwritten | looked
        wrong |= _unordered(last, clock, thread, is_global) & (last & ATOMIC == 0)
        kept = swaps | outside | _still_counts(last, clock, is_global)
        writes[at] = last if kept else _word(clock, place, thread, ATOMIC)
        reads[at] = others if outside else _with_one_more(others, clock, thread, is_global, mark)
        _note(fault, thread, place, OUT if wrong else 0, (0,), 0)
        return at

    return suspect


# The run that tells what is wrong keeps five who read an element, five who changed it, and five who
# swapped it.


@register_jitable
def _last_of(words, clock, thread, is_global):
    """One that nothing orders before this access; 0 if there is none."""
    for word in words:
        if word != 0 and _unordered(word, clock, thread, is_global):
            return word
    return np.int64(0)


@register_jitable
def _remember(words, word):
    """Keep the last, and the last ones of another lane, half of a warp, warp and block."""
    last = words[0]
    if (last >> TIME_SHIFT) // EPOCHS != (word >> TIME_SHIFT) // EPOCHS:
        words[3] = last
    elif (last & THREAD_BITS) // 32 != (word & THREAD_BITS) // 32:
        words[2] = last
    elif (last & THREAD_BITS) // 16 != (word & THREAD_BITS) // 16:
        words[4] = last
    elif last & THREAD_BITS != word & THREAD_BITS:
        words[1] = last
    words[0] = word


@register_jitable
def _tell_read(array, writes, reads, clock, fault, place, thread, is_global, index):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    last, kind = writes[at], 0
    if outside:
        kind = OUT
    else:
        changed = _last_of(reads[at].changed, clock, thread, is_global)
        if not is_global and last >> TIME_SHIFT < clock[FIRST]:
            kind = UNWRITTEN
        elif _unordered(last, clock, thread, is_global):
            kind = WRITTEN
        elif changed != 0:
            kind, last = WRITTEN, changed
        _remember(reads[at].looked, _word(clock, place, thread, 0))
    _note(fault, thread, place, kind, _told(index, array.shape), last)
    return at


@register_jitable
def _tell_write(array, writes, reads, clock, fault, place, thread, is_global, index, value):
    at, outside = _inside(index, array.shape), _outside(index, array.shape)
    kind, last, old = OUT, writes[at], array[at]
    if not outside:
        kind = 0
        array[at] = value
        looked = _last_of(reads[at].looked, clock, thread, is_global)
        changed = _last_of(reads[at].changed, clock, thread, is_global)
        swapped = _last_of(reads[at].swapped, clock, thread, is_global)
        before = looked if looked != 0 else changed if changed != 0 else swapped
        if _unordered(last, clock, thread, is_global):
            kind = WRITTEN if _differs(array[at], old) else 0
        elif before != 0:
            kind, last = READ, before
        writes[at] = _word(clock, place, thread, 0)
    _note(fault, thread, place, kind, _told(index, array.shape), last)


def _tells(swaps: bool) -> Any:
    """An atomic, which may be one that compares and swaps."""

    @register_jitable
    def tell(array, writes, reads, clock, fault, place, thread, is_global, index):
        at, outside = _inside(index, array.shape), _outside(index, array.shape)
        last, kind = writes[at], OUT
        if not outside:
            kind, word = 0, _word(clock, place, thread, ATOMIC)
            looked = _last_of(reads[at].looked, clock, thread, is_global)
            if not is_global and last >> TIME_SHIFT < clock[FIRST]:
                kind = UNWRITTEN
            elif last & ATOMIC == 0 and _unordered(last, clock, thread, is_global):
                kind = WRITTEN
            elif looked != 0 and not swaps:
                kind, last = READ, looked
            if swaps:
                _remember(reads[at].swapped, word)
            else:
                if not _still_counts(writes[at], clock, is_global):
                    writes[at] = word
                _remember(reads[at].changed, word)
        _note(fault, thread, place, kind, _told(index, array.shape), last)
        return at

    return tell


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


def change(array, writes, reads, clock, fault, place, thread, is_global, index):
    """Let an atomic work on an element that others may be reading or writing."""


def swap(array, writes, reads, clock, fault, place, thread, is_global, index):
    """Let an atomic compare, and swap, an element that others may be reading or writing."""


_by_run(read, _suspect_read, _tell_read)
_by_run(write, _suspect_write, _tell_write)
_by_run(change, _suspects(swaps=False), _tells(swaps=False))
_by_run(swap, _suspects(swaps=True), _tells(swaps=True))


@register_jitable(forceinline=True)
def turned(turns, fault, place, thread, taken, most):
    """Note that a loop has taken too many turns; then no loop of the block goes on."""
    turns[OVER] |= taken > most
    _note(fault, thread, place, ENDLESS if turns[OVER] != 0 else 0, (np.int64(taken),), 0)


@register_jitable(forceinline=True)
def failed(fault, place, thread):
    """Note an `assert` that does not hold."""
    _note(fault, thread, place, FAILED, (np.int64(0),), 0)


def goes_on(turns, fault, place, thread, taken):
    """Whether a thread may take another turn of a loop: it has noted nothing."""
    raise NotImplementedError


@overload(goes_on, jit_options={"forceinline": True})
def _goes_on_for(turns, fault, place, thread, taken):
    def whether(turns, fault, place, thread, taken):
        turned(turns, fault, place, thread, taken, MOST_TURNS)
        return fault[thread] == 0

    def what(turns, fault, place, thread, taken):
        turned(turns, fault, place, thread, taken, MOST_TURNS)
        return fault[0, thread] == 0

    return whether if fault.ndim == 1 else what


# What the lanes of a warp do together -------------------------------------------------------------


@register_jitable
def arrives(fault, place, threads, members, thread, here=None, running=None):
    """Note that a lane is not in the mask that it names, or that another in it does not come here.

    Those that are no longer `running` need not come.
    """
    mask, first, absent = np.int64(members), thread - thread % WARP, -1
    if mask >> thread - first & 1 == 0:
        absent = thread
    if here is not None:
        for other in range(first, min(first + WARP, threads)):
            waited = mask >> other - first & 1 == 1 and not here[other]
            if running is not None:
                waited = waited and running[other]
            absent = other if waited else absent
    _note(fault, thread, place, ABSENT if absent >= 0 else 0, (np.int64(absent),), 0)


def _origins(source: Callable[[Any, Any], Any]) -> Any:
    """A function for the origin of what a shuffle takes: 0, or one that was sent, or its own."""
    lane_of = register_jitable(forceinline=True)(source)

    @register_jitable(forceinline=True)
    def origin(place, sent, members, other, thread, here=None):
        there = lane_of(thread, other % WARP)
        inside = (there // WARP == thread // WARP) & (there < sent.size)
        there = there if inside else thread  # there is no such lane: it keeps what it has
        takes_part = np.int64(members) >> there % WARP & 1 == 1
        if here is not None:
            takes_part &= here[there]
        own = ((place * (THREAD_BITS + 1) + thread) * WARP + there % WARP) + 1
        return sent[there] if takes_part else own

    return origin


origin_of_warp_from = _origins(lambda thread, lane: thread - thread % WARP + lane)
origin_of_warp_up = _origins(lambda thread, delta: thread - delta)
origin_of_warp_down = _origins(lambda thread, delta: thread + delta)
origin_of_warp_xor = _origins(lambda thread, bits: thread ^ bits)


@register_jitable(forceinline=True)
def seen(value, origin, fault, place, thread):
    """A value that somebody sees; note that no lane sent it."""
    _note(fault, thread, place, UNSENT if origin != 0 else 0, (np.int64(0),), origin)
    return value


@register_jitable
def _explains(kind, other):
    """Whether what one thread noted is likelier the cause than what another did before it."""
    if other in (ENDLESS, FAILED):
        return kind not in (ENDLESS, FAILED)
    # What is read too early is unwritten for some threads, and a race for others.
    return other == UNWRITTEN and kind in (WRITTEN, READ)


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
            if chosen < 0 or _explains(fault[0, thread] % KINDS, fault[0, chosen] % KINDS):
                chosen = thread
        if chosen >= 0:
            found[BLOCK], found[THREAD] = block, chosen
            for note in range(NOTES):
                found[NOTED + note] = fault[note, chosen]
        return chosen >= 0

    return whether if fault.ndim == 1 else what

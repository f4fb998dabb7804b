"""The checked mode: launches that look for the mistakes that a GPU does not report.

`with checked(): kernel[blocks, threads](...)`, or `MINITRANSFORMER_CHECK=1`, runs kernels on NumPy
arrays with shadow memory (see `shadow`). The first mistake is raised:

    OutOfBounds          an index past the end, or below zero unless it is written so: x[-1]
    UninitializedRead    shared or local memory that nobody has written, or what a shuffle takes
                         from a lane that sends nothing, if memory or a branch comes of it
    DataRace             two accesses of two threads, one a write, with no barrier between
    DivergentBarrier     a barrier that not all threads of the block reach, or a warp operation that
                         not all lanes reach that its mask names
    EndlessLoop          a `while` that does not come to its end
    FailedAssertion      an `assert` that does not hold, or a `raise`
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..errors import (
    DataRace,
    DivergentBarrier,
    EndlessLoop,
    FailedAssertion,
    KernelError,
    Mistake,
    OutOfBounds,
    Place3,
    UninitializedRead,
)
from ..flatten import WARP_OPERATIONS
from ..form import WARP, Shape3
from ..launch import RAISED, CpuKernel, place_of
from ..lowering import CHECKED, DIAGNOSED, Mode, Variant
from ..runtime import pool
from . import shadow

SMALL = 1 << 16  # threads of a launch that one CPU thread runs, so that chance has no part in it
DOES = {
    "read": "reads", "write": "writes to", "atomic": "changes", "part": "takes a part of",
}  # fmt: skip
_IN_CUDA = {name: f"cuda.{called}" for called, name in WARP_OPERATIONS.items()}
_IN_CUDA["syncwarp"] = "cuda.syncwarp"
_chosen: ContextVar[tuple[bool, bool] | None] = ContextVar("checked", default=None)


@contextmanager
def checked(on: bool = True, *, tested: bool = True) -> Iterator[None]:
    """Check every launch on NumPy arrays within this context (or, with `on=False`, none).

    With `tested=False` it leaves out the kernels of this package and of `minitransformer`, which
    their tests have checked: what is new around them is checked, and does not wait for them.
    """
    token = _chosen.set((on, on and tested))
    try:
        yield
    finally:
        _chosen.reset(token)


def is_on(tested: bool = False) -> bool | None:
    """Whether launches are checked: by `checked()`, else `MINITRANSFORMER_CHECK`; None: unsaid.

    Args:
        tested: Whether the kernel is one that its own tests have checked.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen[tested]
    value = os.environ.get("MINITRANSFORMER_CHECK", "")
    if value not in ("", "0", "1"):
        raise KernelError(f"MINITRANSFORMER_CHECK must be 0 or 1, got {value!r}")
    return value == "1" if value else None


def launch(
    kernel: CpuKernel,
    grid: Shape3,
    block: Shape3,
    arguments: tuple[Any, ...],
    shared_bytes: int = 0,
) -> None:
    """Run every block of a grid, and raise the first mistake.

    Raises:
        Mistake: see above.
        KernelError: as `CpuKernel.launch` does.
    """
    arguments = kernel.prepared(arguments)
    written = {i: arguments[i] for i in kernel.written if i < len(arguments)}
    outputs = {i: a.copy() for i, a in written.items() if isinstance(a, np.ndarray)}
    with suppress(_SomethingWrong):
        return _run(kernel, grid, block, arguments, shared_bytes, CHECKED)
    for position, before in outputs.items():
        arguments[position][...] = before
    _run(kernel, grid, block, arguments, shared_bytes, DIAGNOSED)


class DiffersOnGpu(UserWarning):
    """A kernel met something that a GPU computes otherwise: see "Where a CPU differs"."""


def _tell(body: Any, number: int) -> None:
    """Warn of a place where a GPU computes otherwise."""
    place = body.differences[number]
    if place.what == "nan":
        said = ("met a NaN. A GPU gives the other number; here it depends on which comes first. "
                "Test for NaN before, with math.isnan")  # fmt: skip
    else:
        wide = place.what.replace("int8", "int16")
        nearest = f"the nearest {wide}" + (", cut to 8 bits" if wide != place.what else "")
        said = (f"got a number that no {place.what} holds. A GPU gives {nearest}; what comes of it "
                "here is any number. Bring it within bounds before")  # fmt: skip
    text = f"kernel {body.form.source.name!r}: `{place.text}` {said}"
    warnings.warn_explicit(text, DiffersOnGpu, place.filename, place.line)


class _SomethingWrong(Exception):
    """A thread has noted a mistake; which, nobody knows yet."""


def _run(
    kernel: CpuKernel,
    grid: Shape3,
    block: Shape3,
    arguments: tuple[Any, ...],
    shared_bytes: int,
    mode: Mode,
) -> None:
    own = arguments[: len(arguments) - len(kernel.constants)]
    run, variant, shadowed = kernel.compiled(block, own, shared_bytes, mode)
    readers = "reads" if mode is CHECKED else "readers"
    memory, shadows = _shadows(shadowed, readers, arguments)
    differences, wrong = set[int](), list[int]()

    def blocks(first: int, last: int) -> None:
        if wrong:  # then what other blocks do makes no difference
            return
        found = np.zeros(shadow.NOTED + shadow.NOTES, np.int64)
        try:
            code = run(first, last, *grid, *arguments, found, *shadows)
        except RAISED as error:
            raise kernel.stopped(error) from None
        if found[shadow.DIFFERS]:
            differences.add(int(found[shadow.DIFFERS]) - 1)
        if code:
            wrong.append(code)
        if code > 0:
            raise kernel.divergent(code, grid, block, shared_bytes, mode)
        if code < 0 and mode is CHECKED:
            raise _SomethingWrong
        if code < 0:
            raise _mistake(variant, arguments, grid, found.tolist())

    count = grid[0] * grid[1] * grid[2]
    try:
        if mode is DIAGNOSED or count * block[0] * block[1] * block[2] <= SMALL:
            blocks(0, count)
        else:
            pool.run(blocks, count)
    finally:
        _spare.append(memory)
    for number in sorted(differences):
        _tell(variant.written(), number)


_spare: list[np.ndarray] = []  # memory of earlier launches: new memory costs more than clearing it


class _Frame(NamedTuple):
    """Memory in which one array lies, or several that overlap."""

    places: list[int]  # of the arrays among the arguments
    low: int  # its address
    unit: int  # bytes for a word: a multiple leads from there to each element; 0: all in order
    words: int


def _shadows(
    shadowed: dict[int, bool], readers: str, arguments: tuple[Any, ...]
) -> tuple[np.ndarray, list[Any]]:
    """Shadow memory for the arrays that the kernel writes to; they overlap as the arrays do."""
    arrays = {place: arguments[place] for place in shadowed}
    wanted: list[tuple[_Frame, str, np.dtype]] = []
    for frame in _frames(arrays):
        dtype = arrays[frame.places[0]].dtype
        for what, leaf in (("writes", "writes"), ("reads", readers)):
            if what == "reads" and not any(shadowed[place] for place in frame.places):
                frame = frame._replace(words=0)
            wanted.append((frame, what, shadow.shadow_dtype(dtype, leaf)))
    sizes = [max(frame.words, 1) * dtype.itemsize // 8 for frame, _, dtype in wanted]
    needed = sum(sizes)
    memory = np.zeros(0, np.int64)
    with suppress(IndexError):  # other threads take from it as well
        memory = _spare.pop()
    if memory.size < needed or memory.size > 4 * needed + SMALL:
        memory = np.zeros(needed, np.int64)
    else:
        memory[:needed] = 0
    parts = np.split(memory[:needed], np.cumsum(sizes))
    made = {
        (place, what): _laid_out_as(arrays[place], frame, part.view(dtype))
        for part, (frame, what, dtype) in zip(parts, wanted, strict=False)
        for place in frame.places
    }
    return memory, [made[place, what] for place in arrays for what in ("writes", "reads")]


def _laid_out_as(array: np.ndarray, frame: _Frame, words: np.ndarray) -> np.ndarray:
    """The words of an array's elements; one for all if the frame has none."""
    if frame.words == 0:
        return words[:1].reshape((1,) * array.ndim)
    if frame.unit == 0:
        return words.reshape(array.shape)
    first = (array.__array_interface__["data"][0] - frame.low) // frame.unit
    strides = [stride // frame.unit * words.itemsize for stride in array.strides]
    return as_strided(words[first:], array.shape, strides)


def _frames(arrays: dict[int, np.ndarray]) -> Iterator[_Frame]:
    """The stretches of memory that the arrays lie in. Records and numbers have other words."""

    def stretch(place: int) -> tuple[str, int, int]:
        word = str(shadow.shadow_dtype(arrays[place].dtype, "writes"))
        return word, *np.lib.array_utils.byte_bounds(arrays[place])

    def frame(places: list[int], low: int, high: int) -> _Frame:
        if len(places) == 1 and not _overlaps_itself(arrays[places[0]]):
            return _Frame(places, low, 0, arrays[places[0]].size)
        unit = gcd(*(
            step
            for place in places
            for step in (arrays[place].itemsize, *arrays[place].strides, stretch(place)[1] - low)
        ))  # fmt: skip
        return _Frame(places, low, unit, (high - low) // unit)

    together: list[int] = []
    kind, low, high = "", 0, 0
    for place in sorted(arrays, key=stretch):
        word, begin, end = stretch(place)
        if together and (word != kind or begin >= high):
            yield frame(together, low, high)
            together = []
        if not together:
            kind, low, high = word, begin, end
        together.append(place)
        high = max(high, end)
    if together:
        yield frame(together, low, high)


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether elements of an array may lie in each other's memory, as those of a window do."""
    reach = array.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1 and stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def _mistake(
    variant: Variant, arguments: tuple[Any, ...], grid: Shape3, found: list[int]
) -> Mistake:
    """The error for what a thread noted."""
    _, number, thread, code, other, *indices = found
    body = variant.written()
    place, kind = body.places[code // shadow.KINDS], code % shadow.KINDS
    index = tuple(indices[: place.indices])
    block, accessing = place_of(number, grid), place_of(thread, variant.block)
    array = body.form.source.originals.get(place.array, place.array)
    given = body.form.source.name, place.filename, place.line, block
    if kind == shadow.ENDLESS:
        threads = (accessing,) if place.space == "thread" else ()
        who = f"thread {accessing} has" if threads else "the threads have"
        turns = f"{indices[0]:,} turns" + " of all together" * (not threads)
        message = (f"in block {block}, {who} not come to the end of this loop after {turns}, "
                   "those of loops inside included. Does each turn change what `while` asks? To "
                   "wait for other threads of the block is what cuda.syncthreads() is for. With "
                   "@cuda.jit(checked=False) a loop may go on")  # fmt: skip
        return EndlessLoop(message, *given, threads)
    if kind == shadow.FAILED:
        message = (f"in block {block}, thread {accessing} fails: `{place.array}`. A GPU tells of "
                   "it where @cuda.jit has debug=True")  # fmt: skip
        return FailedAssertion(message, *given, (accessing,))
    if kind == shadow.ABSENT:
        return _absent(place, given, accessing, place_of(indices[0], variant.block), indices[0])
    if kind == shadow.UNSENT:
        return _unsent(variant, place, given, other - 1)
    where = f"{place.space} array {array!r} at {list(index)}" if index else f"record {array!r}"
    if place.fields:
        where += f", field {'.'.join(place.fields)!r}"
    access = f"thread {accessing} {DOES[place.kind]} {where}"
    if kind == shadow.OUT and min(index) < 0:
        message = (f"in block {block}, {access}, which is below zero: it counts from the end of "
                   "the array, on a GPU too. Guard the access; where the end is meant, write "
                   "x[-1] or x[x.size - i]")  # fmt: skip
        return OutOfBounds(message, *given, (accessing,), array, index)
    if kind == shadow.OUT:
        message = (f"in block {block}, {access}, which is outside{_shape(body, place, arguments)}. "
                   "On a GPU that is another array's memory: guard the access with a condition, "
                   "or make the array larger")  # fmt: skip
        return OutOfBounds(message, *given, (accessing,), array, index)
    if kind == shadow.UNWRITTEN:
        nobody = "no thread of the block has" if place.space == "shared" else "it has not"
        message = (f"in block {block}, {access}, which {nobody} written. What is there on a GPU is "
                   "left over from something else: write to it first")  # fmt: skip
        return UninitializedRead(message, *given, (accessing,), array, index)
    return _race(variant, grid, number, (place, accessing), other, where, array, index)


def _absent(
    place: Any, given: tuple[str, str, int, Place3], accessing: Place3, absent: Place3, number: int
) -> DivergentBarrier:
    """The error for a warp operation whose mask names a lane that does not come, or not its own."""
    what, lane = _IN_CUDA[place.array], f"lane {number % WARP}"
    message = f"in block {given[-1]}, thread {accessing} "
    if absent == accessing:
        message += (f"calls {what} with a mask in which its own {lane} is not: what comes of that "
                    "on a GPU is undefined. Let the mask name all who call it, and no others"
        )  # fmt: skip
    else:
        message += (f"waits at {what} for thread {absent}, {lane}, which the mask names and which "
                    "does not come: a GPU waits for ever, or gives anything. Move the call out of "
                    "the branch or the loop, and guard what comes of it instead; or take the mask "
                    "before the branch, with cuda.ballot_sync(0xffffffff, condition)")  # fmt: skip
    return DivergentBarrier(message, *given, tuple(dict.fromkeys((accessing, absent))))


def _unsent(
    variant: Variant, seen: Any, given: tuple[str, str, int, Place3], origin: int
) -> UninitializedRead:
    """The error for what a shuffle took from a lane that sent nothing, and somebody sees."""
    code, lane = divmod(origin, WARP)
    number, thread = divmod(code, shadow.THREAD_BITS + 1)
    place = variant.written().places[number]
    taker, source = (place_of(t, variant.block) for t in (thread, thread - thread % WARP + lane))
    kernel, _, _, block = given
    message = (f"in block {block}, thread {taker} takes with {_IN_CUDA[place.array]} what thread "
               f"{source}, lane {lane}, sends, but that takes no part: on a GPU the value is "
               f"undefined, and what line {seen.line} does comes of it. Guard what is added, and "
               "not the shuffle, to which all lanes come then; or use the value only where its "
               "lane takes part, as in `if i + offset < n: total += other`")  # fmt: skip
    return UninitializedRead(message, kernel, place.filename, place.line, block, (taker, source))


def _race(
    variant: Variant,
    grid: Shape3,
    number: int,
    here: tuple[Any, Place3],
    other: int,
    where: str,
    array: str,
    index: tuple[int, ...],
) -> DataRace:
    """The error for two accesses: of block `number` the place and thread, and another's word."""
    body, (place, accessing), block = variant.written(), here, place_of(number, grid)
    earlier = body.places[other >> shadow.PLACE_SHIFT & shadow.PLACES - 1]
    partner = place_of(other & shadow.THREAD_BITS, variant.block)
    home = (other >> shadow.TIME_SHIFT) // shadow.EPOCHS - 1
    one, two = (place, accessing, block), (earlier, partner, place_of(home, grid))
    if (place.filename, place.line) < (earlier.filename, earlier.line):
        one, two = two, one  # the later line is the one to look at
    (later, accessing, block), (earlier, partner, home_block) = one, two
    access = f"thread {accessing} {DOES[later.kind]} {where}"
    message = f"in block {block}, {access}, which thread {partner}"
    if home == number % shadow.BLOCKS:
        is_one_line = (earlier.filename, earlier.line) == (later.filename, later.line)
        line = "the same line" if is_one_line else f"line {earlier.line}"
        way_out = "Put cuda.syncthreads() between them"
        if is_one_line:  # which has no between
            way_out = (
                "Let each thread write to an element of its own, or one thread alone"
                if earlier.kind == later.kind
                else "Read into a variable, put cuda.syncthreads() after it, and then write"
            )
        message += (f" {DOES[earlier.kind]} in {line}, and nothing orders the two. {way_out}, or "
                    "use cuda.atomic")  # fmt: skip
    else:
        message += (f" of block {home_block} {DOES[earlier.kind]} in line {earlier.line}, and "
                    "blocks run in any order. Let each block write to elements of its own, use "
                    "cuda.atomic, or launch a second kernel for what comes after")  # fmt: skip
        if variant.source.has_fences:
            message += ". What cuda.threadfence() orders is not known here: this may be no mistake"
    given = body.form.source.name, later.filename, later.line, block
    return DataRace(message, *given, (partner, accessing), array, index, earlier.line)


def _shape(body: Any, place: Any, arguments: tuple[Any, ...]) -> str:
    """The shape of an array, as the end of a clause; of a view, which argument it is one of."""
    array = body.form.arrays.get(place.array)
    if array is not None:
        return (
            f" its shape {array.shape}"
            if not array.is_dynamic
            else (f" the {body.form.shared_bytes} bytes that the launch gives it")
        )
    if place.array in body.form.parameters:
        return f" its shape {arguments[body.form.parameters.index(place.array)].shape}"
    owners = body.arrays.roots.get(place.array, set()) & set(body.form.parameters)
    named = sorted(repr(body.form.source.original(owner)) for owner in owners)
    return f" this view of {' or '.join(named)}" if named else ""

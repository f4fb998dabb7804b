"""From a kernel and the types of its arguments to a compiled function over a range of blocks."""

from __future__ import annotations

import functools
import linecache
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core import types
from numba.np.numpy_support import as_dtype

from . import cache, emit, rehearsal, tuned, typing_errors
from .canonical import canonical
from .compiler import VECTOR_REGISTERS
from .errors import KernelError
from .form import Canonical, Shape3
from .regions import Regions, cut
from .source import Source
from .text import function_name
from .typed import RUNTIME, typed
from .uniformity import uniformity
from .watchers import checked_text, traced_text
from .watchers.origins import with_origins

MAX_FRAME = 4 * 2**20


@dataclass(frozen=True)
class Mode:
    """What emitted code does besides what the kernel does: nothing, as a rule."""

    name: str
    runtime: str  # the module that emitted code imports
    body: type[emit.Body]  # who writes it
    instrumented: bool = False
    each_alone: bool = False  # is each statement marked, and each region run on its own?


PLAIN = Mode("plain", RUNTIME, tuned.Tuned)
SHADOW, NOTES = f"{__package__}.watchers.shadow", f"{__package__}.watchers.notes"
CHECKED = Mode("checked", SHADOW, checked_text.Checked, instrumented=True)
DIAGNOSED = Mode("diagnosed", SHADOW, checked_text.Diagnosed, instrumented=True)
TRACED = Mode("traced", NOTES, traced_text.Traced, instrumented=True, each_alone=True)


@dataclass(frozen=True)
class Variant:
    """A kernel for one block shape, one tuple of argument types and one mode.

    `aliased` names the arguments that share memory with one that the kernel writes to.
    """

    source: Source
    block: Shape3
    arguments: tuple[types.Type, ...]
    fastmath: bool
    aliased: frozenset[str] = frozenset()
    shared_bytes: int = 0
    mode: Mode = PLAIN

    def function(self) -> tuple[Any, str, dict[int, bool]]:
        """Make the function, or load it from the cache.

        Returns:
            Numba's function `(first_block, last_block, grid_x, grid_y, grid_z, *arguments)`, its
            text, and the places of the arguments with shadow memory: see `watchers.checked_text`.
            The text is not made again when the cache has it.
        """
        path = self.path
        kept = cache.read(path)
        text = str(self.written().text) if kept is None else kept.decode()
        if kept is None:
            rehearsal.begin()
            cache.write(path, text.encode())
        made = vars(_load(path, text))
        return made[function_name(self.source)], text, made.get("SHADOWED", {})

    @functools.cached_property
    def path(self) -> Path:
        """Where its text is kept, and beside it the compiled code."""
        return cache.place(
            self.source.name, ".py", self.source.text, self.block, self.arguments, self.fastmath,
            sorted(self.aliased), self.shared_bytes, self.mode.name, VECTOR_REGISTERS,
        )  # fmt: skip

    def written(self) -> Any:
        """The body after it has been written down in a module, which is its `text`."""
        body = self.body()
        body.module(self.mode.runtime, self.fastmath)
        return body

    def body(self) -> Any:
        """What writes the function over a range of blocks."""
        form = canonical(
            self.source, self.block, self.shared_bytes, instrumented=self.mode.instrumented
        )
        form = typed(form, self.arguments)
        if self.mode.each_alone:
            form = traced_text.marked(form)
        elif self.mode.instrumented:
            form = with_origins(form)
        known = uniformity(form, self.aliased, exact=self.mode.each_alone)
        regions = cut(known, each_alone=self.mode.each_alone)
        return self.mode.body(regions, _slot_types(regions))


def _slot_types(regions: Regions) -> dict[str, types.Type]:
    """The type of what a thread keeps in each slot.

    Raises:
        KernelError: one is not a number, or they do not fit the stack of a CPU thread.
    """
    slots = {slot: _slot_type(regions, slot) for slot in regions.slots}
    _check_frame(regions.form, slots)
    return slots


def _slot_type(regions: Regions, slot: str) -> types.Type:
    if slot in regions.masks:
        return types.boolean
    # In none of the types: Numba saw that nothing runs what assigns it (`if DEBUG:`).
    if slot in regions.counters or slot not in regions.form.kinds:
        return types.int64
    kind = regions.form.kinds[slot]
    if not isinstance(kind, types.Number | types.Boolean):
        raise typing_errors.not_a_number(regions.form, slot, kind)
    return kind


def _check_frame(form: Canonical, slots: dict[str, types.Type]) -> None:
    """Refuse what a block keeps if it does not fit the stack of a CPU thread."""
    source, threads = form.source, prod(form.block)
    needed = form.shared_bytes + threads * sum(map(_room, slots.values()))
    for array in form.arrays.values():
        count = prod(array.shape) * (threads if array.space == "local" else 1)
        needed += count * _room(form.kinds[array.name].dtype)
    if needed > MAX_FRAME:
        raise KernelError(
            f"{source.where(source.tree)}: kernel {source.name!r}: its shared and local "
            f"arrays come to as much as {needed:,} bytes a block of {threads} threads; the CPU "
            f"holds {MAX_FRAME:,}. Use smaller arrays or fewer threads"
        )


def _room(kind: types.Type) -> int:
    """Bytes that a number or a record is counted as: of a small one a checked launch keeps more."""
    return max(as_dtype(kind).itemsize, 8)


def _load(path: Path, text: str) -> ModuleType:
    """The module of a text. It runs as it was read: the file may be another by now, or none."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    # Numba's cache finds a function's globals again by the name of an imported module.
    sys.modules[path.stem] = module
    linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)
    exec(compile(text, str(path), "exec"), vars(module))
    return module

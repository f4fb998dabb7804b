"""From a kernel and the types of its arguments to a compiled function over a range of blocks."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import types

from . import emit, typing_errors
from .canonical import Canonical, Shape3, canonical
from .errors import KernelError
from .regions import Regions, cut
from .source import Source
from .text import function_name
from .typed import RUNTIME, typed
from .uniformity import uniformity
from .watchers import instrument

HERE = Path(__file__).parent
MAX_FRAME = 4 * 2**20


def cache_folder() -> Path:
    """Where emitted modules, and Numba's compiled code beside them, are kept.

    `MINITRANSFORMER_CACHE_DIR`, else the user's cache folder, else a temporary one.
    """
    chosen = os.environ.get("MINITRANSFORMER_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in [Path(chosen).expanduser()] if chosen else [base / "minitransformer" / "kernels"]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            continue
    return _temporary_folder()


@cache
def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="minitransformer-kernels-"))


@cache
def _version_of_the_lowering() -> str:
    """A digest of this package's own source: other code, other cache."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(HERE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Mode:
    """What emitted code does besides what the kernel does: nothing, as a rule."""

    name: str
    runtime: str  # the module that emitted code imports
    body: type[emit.Body]  # who writes it
    instrumented: bool = False
    each_alone: bool = False  # is each statement marked, and each region run on its own?


PLAIN = Mode("plain", RUNTIME, emit.Body)
CHECKED = Mode("checked", f"{__package__}.watchers.shadow", instrument.Checked, instrumented=True)
DIAGNOSED = Mode(
    "diagnosed", f"{__package__}.watchers.shadow", instrument.Diagnosed, instrumented=True
)
TRACED = Mode("traced", f"{__package__}.watchers.notes", instrument.Traced, instrumented=True,
              each_alone=True)  # fmt: skip


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

    def function(self) -> tuple[Any, Path, Any]:
        """Make the function, or load it from the cache.

        Returns:
            Numba's function `(first_block, last_block, grid_x, grid_y, grid_z, *arguments)`, the
            file that its text was written to, and what wrote it if the mode is instrumented.
            Neither function nor file is made again when the file exists.
        """
        path = cache_folder() / f"{self.source.name}_{self._digest()}.py"
        is_new = not path.exists()
        body: Any = self.written() if is_new or self.mode.instrumented else None
        if is_new:
            _write(path, str(body.text))
        return getattr(_load(path), function_name(self.source)), path, body

    def _digest(self) -> str:
        parts = [
            self.source.text(), self.block, self.arguments, self.fastmath, sorted(self.aliased),
            self.shared_bytes, self.mode.name, _version_of_the_lowering(),
        ]  # fmt: skip
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]

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
            form = instrument.marked(form)
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
    widest = 8  # bytes of the largest number
    sizes = [prod(a.shape) * (threads if a.space == "local" else 1) for a in form.arrays.values()]
    needed = widest * (sum(sizes) + threads * len(slots)) + form.shared_bytes
    if needed > MAX_FRAME:
        raise KernelError(
            f"{source.filename}:{source.first_line}: kernel {source.name!r}: its shared and local "
            f"arrays come to as much as {needed:,} bytes a block of {threads} threads; the CPU "
            f"holds {MAX_FRAME:,}. Use smaller arrays or fewer threads"
        )


def _write(path: Path, text: str) -> None:
    """Write a file that other processes may be reading or writing too."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Numba's cache finds a function's globals again by the name of an imported module.
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module

"""From a kernel and the types of its arguments to a compiled function over a range of blocks."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import types
from numba.core.errors import NumbaError

from . import emit, pipeline
from .canonical import Canonical, Shape3, canonical
from .errors import KernelError
from .regions import cut
from .source import Source
from .uniformity import Uniformity

HERE = Path(__file__).parent
RUNTIME = f"{__package__}.runtime"
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
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def lower(
    source: Source,
    block: Shape3,
    arguments: tuple[types.Type, ...],
    fastmath: bool,
    aliased: frozenset[str] = frozenset(),
    shared_bytes: int = 0,
) -> tuple[Any, Path]:
    """Compile a kernel for one block shape and one tuple of argument types.

    `aliased` names the arguments that share memory with one that the kernel writes to.

    Returns:
        Numba's function `(first_block, last_block, grid_x, grid_y, grid_z, *arguments)`, and the
        file that its text was written to. Neither is made again when the file exists already.
    """
    parts = [RUNTIME, source.text(), block, arguments, fastmath, sorted(aliased), shared_bytes]
    parts.append(_version_of_the_lowering())
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    path = cache_folder() / f"{source.name}_{digest}.py"
    if not path.exists():
        _write(path, emitted(source, block, arguments, fastmath, aliased, shared_bytes))
    return getattr(_load(path), emit.function_name(source)), path


def emitted(
    source: Source,
    block: Shape3,
    arguments: tuple[types.Type, ...],
    fastmath: bool,
    aliased: frozenset[str] = frozenset(),
    shared_bytes: int = 0,
) -> str:
    """The text of the module that is compiled."""
    form = canonical(source, block, shared_bytes)
    kinds = _variable_types(form, arguments, fastmath)
    form.ndims = {name: _ndim(kind) for name, kind in kinds.items() if _ndim(kind) is not None}
    uniformity = Uniformity(form, aliased)
    regions = cut(form, uniformity)
    slots = {slot: _slot_type(form, slot, kinds) for slot in regions.slots}
    _check_frame(form, slots)
    return emit.module(form, emit.Body(form, uniformity, regions, slots), RUNTIME, fastmath)


def _ndim(kind: types.Type | None) -> int | None:
    """How many indices lead to an element: None for a number, 0 for a record."""
    if isinstance(kind, types.Array):
        return int(kind.ndim)
    return 0 if isinstance(kind, types.Record) else None


def _variable_types(
    form: Canonical, arguments: tuple[types.Type, ...], fastmath: bool
) -> dict[str, types.Type]:
    """The types of a kernel's variables, its arguments and its arrays."""
    source = form.source
    namespace: dict[str, Any] = {
        "_untyped_device": lambda fastmath: numba.njit(error_model="numpy")
    }
    text = emit.typing_module(form, RUNTIME, fastmath).replace("@device(", "@_untyped_device(")
    exec(compile(text, f"<types of {source.name}>", "exec"), namespace)
    indices = (types.int64,) * 9
    try:
        found = pipeline.infer_types(namespace[emit.function_name(source)], indices + arguments)
    except NumbaError as error:
        raise KernelError(
            f"{source.filename}:{source.first_line}: kernel {source.name!r}: Numba cannot type it "
            f"for the arguments ({', '.join(map(str, arguments))}):\n{error}"
        ) from error
    return found | dict(zip(form.parameters, arguments, strict=True))


def _slot_type(form: Canonical, slot: str, kinds: dict[str, types.Type]) -> types.Type:
    """The type of what a thread keeps in a slot.

    Raises:
        KernelError: it is not a number.
    """
    if slot in form.masks:
        return types.boolean
    if slot in form.counters:
        return types.int64
    kind = kinds.get(slot)
    if not isinstance(kind, types.Number | types.Boolean):
        source = form.source
        raise KernelError(
            f"{source.filename}:{source.first_line}: kernel {source.name!r}: the variable "
            f"{slot!r} is not a number of one type, but {kind or 'of several types'}; across a "
            "barrier or a loop a thread can keep numbers only. Index the array itself instead "
            "of keeping a view of it"
        )
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

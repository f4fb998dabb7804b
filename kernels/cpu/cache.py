"""Compiled kernels on disk. What is read there runs, so it is looked at before.

Each file ends in a digest of what is in it: one that is cut short, or altered, is made again. The
folder must be the user's own, and nobody else may write to it or to a file in it, as that would run
with the user's rights. Where no folder will do, or the disk is full, kernels run all the same:
compiled again by each process, in a folder of its own, after one warning. Of processes that want
the same kernel at once, as ranks do, one compiles it, and the others wait for what it keeps.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

try:
    import fcntl
except ImportError:  # Windows, where each process compiles for itself
    fcntl = None  # type: ignore[assignment]

SEAL = b"\n# sha256 "
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
PATIENCE = 60  # seconds to wait for another process, which may have been stopped


class CacheWarning(UserWarning):
    """Compiled kernels are not kept."""


def folder() -> Path:
    """Where compiled kernels are kept.

    `MINITRANSFORMER_CACHE_DIR`, else the user's cache folder, else a temporary one.
    """
    chosen = os.environ.get("MINITRANSFORMER_CACHE_DIR")
    return _checked(chosen, None if chosen else os.environ.get("XDG_CACHE_HOME"))


@cache
def _checked(chosen: str | None, base: str | None) -> Path:
    try:
        if chosen:
            wanted = Path(chosen).expanduser()
        else:
            wanted = Path(base or Path.home() / ".cache") / "minitransformer" / "kernels"
        wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not chosen and not _is_of_another(wanted.stat()):  # ours alone, so it may be closed
            wanted.chmod(stat.S_IMODE(wanted.stat().st_mode) & ~OTHERS_MAY_WRITE)
        refusal = _refusal(wanted)
    except (OSError, RuntimeError) as error:  # no home, or no place in it
        wanted, refusal = Path(chosen or "~/.cache"), str(error)
    if refusal is None:
        return wanted
    temporary = Path(tempfile.mkdtemp(prefix="minitransformer-kernels-"))
    _warn(f"compiled kernels cannot be kept in {wanted} ({refusal}); they go to {temporary}, for "
          "this process. Set MINITRANSFORMER_CACHE_DIR to a folder of your own")  # fmt: skip
    return temporary


def place(name: str, suffix: str, *parts: Any) -> Path:
    """The file of what is made of a kernel's name and these parts, by the code that stands here."""
    text = "\n".join(map(str, (*parts, version(Path(__file__).parent))))
    return folder() / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}{suffix}"


def _refusal(path: Path) -> str | None:
    """Why a folder will not do."""
    found = path.stat()
    if _is_of_another(found):
        return "it belongs to another user"
    if found.st_mode & OTHERS_MAY_WRITE and hasattr(os, "getuid"):
        return "others may write to it"
    return None if os.access(path, os.W_OK) else "it is read-only"


def _is_of_another(found: os.stat_result) -> bool:
    return hasattr(os, "getuid") and found.st_uid != os.getuid()


def read(path: Path) -> bytes | None:
    """Return what was written to a file; None if it is not there, damaged, or not to be trusted."""
    try:
        with open(path, "rb", opener=_without_links) as file:
            found = os.fstat(file.fileno())
            if _is_of_another(found) or not stat.S_ISREG(found.st_mode):
                return None
            if found.st_mode & OTHERS_MAY_WRITE and hasattr(os, "getuid"):
                return None
            content, seal, digest = file.read().rpartition(SEAL)
    except OSError:
        return None
    return content if seal and digest == _digest(content) else None


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def write(path: Path, content: bytes) -> None:
    """Write a file that other processes may be reading or writing too, if the disk lets us."""
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            name = file.name
            file.write(content + SEAL + _digest(content))
        os.replace(name, path)
    except OSError as error:
        if name is not None and os.path.exists(name):
            os.unlink(name)
        _warn_once(f"a compiled kernel cannot be kept in {path.parent} ({error}); it is compiled "
                   "again by the next process")  # fmt: skip


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process makes a file, and have others wait meanwhile.

    All files of a folder share one for locks: each is a byte of it. The system unlocks what a
    process held that ended.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # of a disk that is full, or knows no locks
            if fcntl is not None:
                file = os.open(path.with_name("turns.lock"), os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, file)
                _wait(file, int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "big"))
        yield


def _wait(file: int, byte: int) -> None:
    """Lock a byte of a file, but wait no longer than our patience lasts."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=2)


_warn_once = cache(_warn)


@cache
def version(folder: Path) -> str:
    """A digest of the source in a folder that makes code, and of Numba: other code, other cache."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class KernelCache(_Cache):
    """Numba's compiled code of one function of an emitted module, in a file for each signature."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._path = Path(function.__code__.co_filename)

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(self._path.parent)

    def _file(self, signature: Any, codegen: Any) -> Path:
        what = signature, codegen.magic_tuple(), sys.version_info[:2], self._function.__name__
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
        return self._path.with_name(f"{self._path.stem}_{digest}.code")

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Numba's hook: the compiled function for a signature, or None."""
        target.refresh()
        content = read(self._file(signature, target.codegen()))
        if content is None:
            return None
        return CompileResult._rebuild(target, *pickle.loads(content))

    def save_overload(self, signature: Any, result: Any) -> None:
        """Numba's hook: keep a compiled function, unless it holds addresses of this process."""
        if not result.library.has_dynamic_globals:
            write(self._file(signature, result.codegen), dumps(result._reduce()))

    def enable(self) -> None:
        """Numba's hook."""

    def disable(self) -> None:
        """Numba's hook."""

    def flush(self) -> None:
        """Numba's hook."""

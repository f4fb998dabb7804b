"""Where an array lives: NumPy on the CPU, CuPy on a CUDA device, and the way from one to the other.

CuPy is imported only where an array or a device asks for it, so the base install needs neither
CuPy nor a driver.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array, or a CuPy array, which has the same methods."""

_MALLOC_OPTIONS = ((-1, -1), (-2, 2**26), (-4, 0))  # trim: never, top pad, mmaps at most
_RESERVE = 2**31  # bytes to be lent in huge pages; none is taken before it is used
_HUGE_PAGES = 14  # madvise's MADV_HUGEPAGE
_INSTALL = 'pip install "minitransformer[cuda12]" (or "minitransformer[cuda13]")'


def array_module(array: object) -> Any:
    """Return the module, ``numpy`` or ``cupy``, whose functions take ``array``.

    >>> array_module(np.zeros(3)).__name__
    'numpy'
    """
    return np if device_of(array) == "cpu" else importlib.import_module("cupy")


def cuda_problem() -> str | None:
    """Return in a line why CUDA cannot be used here, and the way to mend it; None where it can."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        reason = "is not installed" if missing else "is installed but cannot be imported"
        return f"CuPy {reason}; {_INSTALL}"
    if not cupy.cuda.is_available():
        return "CuPy is installed but finds no CUDA driver or GPU; see `minitransformer doctor`"
    return None


def resolve_device(device: str) -> str:
    """Return the device that a name means on this machine: ``"cpu"`` or ``"cuda"``.

    Args:
        device: ``"auto"`` (CUDA where it works, else the CPU), ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: The name is none of the three.
        RuntimeError: CUDA is asked for and cannot be used; the message says what to install.

    >>> resolve_device("cpu")
    'cpu'
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device: expected 'auto', 'cpu' or 'cuda', got {device!r}")
    if device == "cpu":
        return "cpu"
    problem = cuda_problem()
    if device == "cuda" and problem is not None:
        raise RuntimeError(f"device 'cuda' is not available: {problem}")
    return "cpu" if problem else "cuda"


def device_of(array: object) -> str:
    """Return ``"cuda"`` for a CuPy array, ``"cpu"`` for anything else."""
    on_cpu = isinstance(array, np.ndarray) or not type(array).__module__.startswith("cupy")
    return "cpu" if on_cpu else "cuda"


def to_device(array: Array, device: str) -> Array:
    """Return ``array`` on ``device``: itself where it lives there already, else a copy.

    Raises:
        ValueError: Unknown device.
        RuntimeError: CUDA cannot be used here.
    """
    target = resolve_device(device)
    if target == device_of(array):
        return array
    cupy: Any = importlib.import_module("cupy")
    moved: Array = cupy.asarray(array) if target == "cuda" else cupy.asnumpy(array)
    return moved


def to_numpy(array: Array) -> Array:
    """Return ``array`` as a NumPy array; itself where it is one."""
    return to_device(array, "cpu")


def as_array(data: Any, device: str | None = None, dtype: DTypeLike | None = None) -> Array:
    """Return ``data`` as an array, without a copy where it is one already.

    Args:
        data: An array, a number, or nested sequences of numbers.
        device: Where the array shall live; None leaves an array where it is.
        dtype: The dtype to convert to; None keeps it, and makes Python floats float32.

    Raises:
        TypeError: ``data`` is not numeric.

    >>> as_array([1.0, 2.0]).dtype, as_array(np.ones(2)).dtype
    (dtype('float32'), dtype('float64'))
    """
    array = data
    if not hasattr(data, "dtype"):
        array = np.asarray(data)
        if array.dtype == np.float64 and dtype is None:
            array = array.astype(np.float32)
    elif isinstance(data, np.ma.MaskedArray):
        raise TypeError(
            "as_array: a masked array has elements without a number; use data.filled(0)"
        )
    elif isinstance(data, np.generic | np.ndarray):
        array = np.asarray(data)  # a matrix would keep its own arithmetic
    if array.dtype.kind not in "fiub":
        raise TypeError(f"as_array: expected numbers, got dtype {array.dtype}")
    if dtype is not None:
        array = array.astype(dtype, copy=False)
    return array if device is None else to_device(array, device)


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, for the next array; return whether it can (glibc).

    A training step makes and drops the same arrays over and over. By default glibc hands large ones
    back to the system, which clears each page before it lends it again; above 32 MB, or the sizes
    of a few thousand tokens, it always does, as long as it may map memory for them alone. The
    settings, of mallopt(3), hold for the whole process. The first arrays are to lie in pages of
    2 MiB, where the system has them (madvise(2)): with pages of 4 KiB, a step that reads hundreds
    of megabytes spends a tenth of its time on finding out where each page is.
    """
    try:
        libc = ctypes.CDLL(None)
        kept = all(libc.mallopt(name, size) for name, size in _MALLOC_OPTIONS)
    except (OSError, TypeError, AttributeError):
        return False
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if reserve := libc.malloc(_RESERVE):
        first_page = -(-reserve // mmap.PAGESIZE) * mmap.PAGESIZE
        libc.madvise(first_page, _RESERVE - mmap.PAGESIZE, _HUGE_PAGES)
        libc.free(reserve)
    return kept

"""Where an array lives: NumPy on the CPU, CuPy on a CUDA device, and the way from one to the other.

CuPy is imported only where an array or a device asks for it, so the base install needs neither
CuPy nor a driver.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array, or a CuPy array, which has the same methods."""

_MALLOC_OPTIONS = ((-1, 2**30), (-2, 2**26), (-3, 2**25))  # trim threshold, top pad, mmap threshold
_INSTALL = 'pip install "minitransformer[cuda12]" (or "minitransformer[cuda13]")'


def array_module(array: object) -> Any:
    """Return the module, ``numpy`` or ``cupy``, whose functions take ``array``.

    Args:
        array: An array of either kind; anything that is not a CuPy array counts as NumPy's.

    Returns:
        The module ``numpy`` or ``cupy``.

    Example:
        >>> array_module(np.zeros(3)).__name__
        'numpy'
    """
    return np if device_of(array) == "cpu" else importlib.import_module("cupy")


def cuda_problem() -> str | None:
    """Return why CUDA cannot be used here, with the way to mend it, or None where it can.

    Returns:
        One line without a full stop, or None.
    """
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
    """Return the device that a name means on this machine.

    Args:
        device: ``"auto"`` (CUDA where it works, else the CPU), ``"cpu"`` or ``"cuda"``.

    Returns:
        ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: The name is none of the three.
        RuntimeError: CUDA is asked for and cannot be used; the message says what to install.

    Example:
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

    Args:
        array: A NumPy or a CuPy array.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        The array on that device.

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
        data: An array, a number, or nested sequences of numbers. Python floats become float32;
            whatever already has a dtype keeps it.
        device: Where the array shall live; None leaves an array where it is.
        dtype: The dtype to convert to; None keeps it.

    Returns:
        The array.

    Raises:
        TypeError: ``data`` is not numeric.

    Example:
        >>> as_array([1.0, 2.0]).dtype, as_array(np.ones(2)).dtype
        (dtype('float32'), dtype('float64'))
    """
    array = data
    if not hasattr(data, "dtype"):
        array = np.asarray(data)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
    elif isinstance(data, np.generic):
        array = np.asarray(data)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"as_array: expected numbers, got dtype {array.dtype}")
    if dtype is not None:
        array = array.astype(dtype, copy=False)
    return array if device is None else to_device(array, device)


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, for the next array, instead of giving it back.

    A training step makes and drops the same arrays over and over. By default glibc hands large ones
    back to the system, which clears each page before it lends it again. The setting holds for the
    whole process.

    Returns:
        Whether there was such a setting: it is glibc's (mallopt(3)), so on Linux as a rule.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return all(mallopt(name, size) for name, size in _MALLOC_OPTIONS)

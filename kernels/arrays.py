"""What every host function does to its arrays before a launch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numba
import numpy as np

Array = Any  # a NumPy or a CuPy array
# Numba's name of each number that kernels compute with, by NumPy's.
KERNEL_DTYPES = {np.dtype(kind.name): kind for kind in (numba.float32, numba.float64)}
HEAD_DIMS = (8, 16, 32, 64, 128, 256)
SHARED_BYTES = 48 * 1024  # what a block may use on every GPU without asking
PLAIN_THREADS = 64  # of a block of a plain kernel
BLOCKS_OF_A_MULTIPROCESSOR = 4  # that keep it busy: while some wait for memory, others compute


def array_module(array: Array) -> ModuleType:
    """`numpy`, or `cupy` for CuPy arrays."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def contiguous(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, all of one library, in C order: copied only where they are not."""
    in_order = array_module(arrays[0]).ascontiguousarray
    return tuple([in_order(array) for array in arrays])


def locked(array: Array) -> Array:
    """The array, to which nobody can write any more; CuPy's know no such lock."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def all_rows(array: Array) -> Array:
    """Every row of every head as one array `(rows, E)`; no copy where the array is contiguous."""
    (array,) = contiguous(array)
    return array.reshape(-1, array.shape[-1])


def round_up(size: int, what: str = "head dim") -> int:
    """The head dim that a kernel is compiled for: few sizes, so that few kernels are compiled.

    Raises:
        ValueError: there is none, because the size is above 256.
    """
    for rounded in HEAD_DIMS:
        if size <= rounded:
            return rounded
    raise ValueError(f"{what} is {size}, but kernels hold at most {HEAD_DIMS[-1]}; use more heads")


def kernel_dtype(array: Array) -> Any:
    """Numba's type for the numbers of an array: float32 or float64.

    Raises:
        TypeError: the array holds something else.
    """
    if array.dtype not in KERNEL_DTYPES:
        raise TypeError(f"kernels take float32 or float64 arrays, got {array.dtype}")
    return KERNEL_DTYPES[array.dtype]


def outputs_of(query: Array, value: Array) -> tuple[Array, Array]:
    """Memory for an output `(N, H, Lq, M)`, and for one number of each of its rows."""
    xp, rows = array_module(query), query.shape[:3]
    return xp.empty((*rows, value.shape[3]), query.dtype), xp.empty(rows, query.dtype)


def per_row(array: Array, number: float) -> Array:
    """The same number for each row of an array `(N, H, L, E)`."""
    return array_module(array).full(array.shape[:3], number, array.dtype)


def lengths_or_full(lengths: Array | None, batch: int, full: int, like: Array) -> Array:
    """Lengths as int64 `(N,)` on the device of `like`; all of them `full` where none are given."""
    if lengths is None:
        return constant(_full(batch, full), like)
    xp = array_module(like)
    return xp.ascontiguousarray(xp.asarray(lengths, dtype=xp.int64))


@lru_cache(maxsize=256)
def _full(batch: int, full: int) -> np.ndarray:
    """Lengths of as many sequences of one length, to which nobody writes."""
    return locked(np.full(batch, full, np.int64))


def constant(array: np.ndarray, like: Array) -> Array:
    """A small array of the CPU's on the device of `like`; nobody may write to it.

    The same numbers go to a GPU once, however many launches ask for them.
    """
    xp = array_module(like)
    if xp is np:
        return array
    return _on_gpu(array.tobytes(), array.dtype, array.shape, xp.cuda.runtime.getDevice())


@lru_cache(maxsize=256)
def _on_gpu(numbers: bytes, dtype: Any, shape: tuple[int, ...], gpu: int) -> Array:
    """An array of these numbers on the current GPU, there for every stream to read."""
    return sys.modules["cupy"].asarray(np.frombuffer(numbers, dtype).reshape(shape), blocking=True)


def spans(array: Array, lengths: Array | None = None, cu_seqlens: Array | None = None) -> Array:
    """Where each sequence of a batch lies: one kernel then serves padded and packed batches.

    Args:
        array: `(N, H, L, E)`, padded sequences; or `(1, H, T, E)`, packed one after the other.
        lengths: `(N,)` integers, how many rows of each padded sequence count; None: all.
        cu_seqlens: `(N + 1,)` integers, where each packed sequence begins, and T. None: padded.

    Returns:
        int64 `(N, 4)` on the array's device: the index along the batch axis, the first row, how
        many rows count, and how many there are, padding included.
    """
    xp = array_module(array)
    batch, _, length, _ = array.shape
    if cu_seqlens is None:
        full = np.array([(n, 0, length, length) for n in range(batch)], np.int64).reshape(-1, 4)
        every = constant(full, array)
        if lengths is None:
            return every
        padded = every.copy()
        padded[:, 2] = lengths_or_full(lengths, batch, length, array)
        return padded
    begins = xp.asarray(cu_seqlens, dtype=xp.int64)
    counts = begins[1:] - begins[:-1]
    return xp.stack([xp.zeros_like(counts), begins[:-1], counts, counts], axis=1)


def enough_blocks(array: Array, on_cpu: int) -> int:
    """How many blocks keep all processors busy: `on_cpu`, or a few for each of a GPU's."""
    if array_module(array) is np:
        return on_cpu
    return BLOCKS_OF_A_MULTIPROCESSOR * processors(array)


def processors(array: Array) -> int:
    """The multiprocessors of an array's GPU; 1 on a CPU, where nothing depends on its cores."""
    xp = array_module(array)
    return 1 if xp is np else _multiprocessors(xp.cuda.runtime.getDevice())


@cache
def _multiprocessors(gpu: int) -> int:
    """How many there are: 40 of a T4, 132 of an H100."""
    runtime = sys.modules["cupy"].cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, gpu))


def version_of(version: str, **kernels: Any) -> Any:
    """The kernels of a version: `version_of(version, fast=fast, plain=plain)`."""
    return chosen("version", version, kernels)


def chosen(what: str, name: str, choices: Mapping[str, Any]) -> Any:
    """What an option's name stands for.

    Raises:
        ValueError: the option has no such name.
    """
    if name not in choices:
        raise ValueError(f"{what} must be one of {sorted(choices)}, got {name!r}")
    return choices[name]


def a_thread_each(kernel: Any, answers: int, *blocks: int) -> Any:
    """The launch of a plain kernel: a thread for each of so many answers, in each of `blocks`."""
    return kernel[(ceil_div(answers, PLAIN_THREADS), *blocks), PLAIN_THREADS]


def ceil_div(count: int, size: int) -> int:
    """How many groups of `size` hold `count` things."""
    return -(-count // size)

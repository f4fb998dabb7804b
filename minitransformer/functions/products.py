"""Large matrix products on the CPU, shared out among the threads that run the kernels.

BLAS has threads of its own, but they wait for each other by spinning: where another program takes a
core now and then, one spins while the other stands still, and a product takes ten times as long.
So each block of a product gets one BLAS thread, and whichever of our threads is free takes the next
block. The blocks depend on shapes and the number of threads alone: results repeat bit by bit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

from minitransformer_kernels.cpu.runtime import pool

from ..device import Array

WORTH_A_THREAD = 2**22  # multiply-adds; they take several times as long as waking a thread
FEWEST_ROWS = 128  # BLAS copies the whole right factor for each block of rows

_blas = ThreadpoolController().select(user_api="blas")


def shared_products(*terms: tuple[Array, ...]) -> list[Array]:
    """Return ``x @ y`` of each term, computed by all threads together: contiguous ``(..., L, M)``.

    ``x`` is ``(..., L, K)`` and ``y`` ``(..., K, M)``, of at least one element. Of two matrices a
    term may have a third, a bias ``(M,)`` that is added to each row: by the thread that has just
    written the row, and still holds it in its cache.
    """
    parts = _parts(tuple(x.size * y.shape[-1] for x, y, *_ in terms), pool.num_threads())
    results, blocks = [], []
    for x, y, *bias in terms:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        result = np.empty((*batch, x.shape[-2], y.shape[-1]), np.result_type(x, y))
        results.append(result)
        cut = _batch_blocks(x, y, result) if batch else _row_blocks(parts, x, y, result, *bias)
        blocks += list(cut)

    def multiply(first: int, last: int) -> None:
        for x, y, out, *bias in blocks[first:last]:
            np.matmul(x, y, out=out)
            for rows in bias:
                out += rows

    with _one_blas_thread():
        pool.run(multiply, len(blocks))
    return results


@lru_cache
def _parts(works: tuple[int, ...], threads: int) -> int:
    """Return into how many blocks to cut each product: as few as keep the threads at work.

    They are, if the last to end has a twentieth more to do than each on average.
    """
    share = 1.05 * sum(works) / threads
    for parts in range(math.ceil(max(works) / share), threads):
        loads = [0.0] * threads
        for work in works:
            for _ in range(parts):
                heapq.heapreplace(loads, loads[0] + work / parts)
        if max(loads) <= share:
            return parts
    return threads


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Do what `_blas.limit(limits=1)` does, in half the time: a small product takes no longer."""
    before = [(library, library.num_threads) for library in _blas.lib_controllers]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in before:
            library.set_num_threads(threads)
            if hasattr(library, "clear_controlling_thread"):
                library.clear_controlling_thread()  # OpenBLAS's obeys one thread, until it lets go


def _row_blocks(
    parts: int, x: Array, y: Array, out: Array, *bias: Array
) -> Iterator[tuple[Array, ...]]:
    """Cut a product, and what is added to it, along the longer side of its result."""
    cut = out, *(np.broadcast_to(row, out.shape) for row in bias)
    if len(x) < y.shape[1]:
        x, y, cut = y.T, x.T, tuple(z.T for z in cut)
    size = max(FEWEST_ROWS, WORTH_A_THREAD // y.size, -(-len(x) // parts))
    for first in range(0, len(x), size):
        span = slice(first, first + size)
        yield x[span], y, *(z[span] for z in cut)


def _batch_blocks(x: Array, y: Array, out: Array) -> Iterator[tuple[Array, ...]]:
    """Cut a batch of products along its first dimension."""
    x, y = (np.broadcast_to(z, (*out.shape[:-2], *z.shape[-2:])) for z in (x, y))
    size = max(1, WORTH_A_THREAD * len(out) // (out.size * x.shape[-1]))
    for first in range(0, len(out), size):
        yield tuple(z[first : first + size] for z in (x, y, out))

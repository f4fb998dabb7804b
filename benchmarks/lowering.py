"""Kernels as textbooks write them, run on the CPU, beside the loops that one would write for a CPU.

The kernels are those of `textbook.py`. The peer of the matrix product is a triple loop, compiled by
Numba with `parallel=True, fastmath=True`: i, j, k with an accumulator, as everybody writes it at
first, and i, k, j, which walks along rows. The peer of the sum is `numpy.sum`, on one thread.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numba
import numpy as np

from minitransformer_kernels.layers.matmul.tiled import TILE

from . import harness, textbook

SIZE = 512
NUMBERS = 10**7

Array = Any


@numba.njit(parallel=True, fastmath=True)
def row_by_column(a, b, c):  # type: ignore[no-untyped-def]
    """Make each element of c = a b at once."""
    for i in numba.prange(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@numba.njit(parallel=True, fastmath=True)
def row_by_row(a, b, c):  # type: ignore[no-untyped-def]
    """Make each row of c = a b as a sum of rows of b."""
    for i in numba.prange(a.shape[0]):
        c[i] = 0
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each case and contestant."""
    generator = np.random.default_rng(0)
    yield from products(*(generator.standard_normal((SIZE, SIZE), np.float32) for _ in range(2)))
    yield from sums(generator.random(NUMBERS, np.float32))


def products(a: Array, b: Array) -> Iterator[harness.Row]:
    """Yield the rows of the matrix product."""
    blocks = -(-SIZE // TILE)
    kernel = textbook.matmul[(blocks, blocks), (TILE, TILE)]
    contestants: harness.Contestants = {
        harness.OURS: partial(filled, kernel, a, b),
        "triple loop, i j k": partial(filled, row_by_column, a, b),
        "triple loop, i k j": partial(filled, row_by_row, a, b),
    }
    truth = a.astype(np.float64) @ b.astype(np.float64)
    case, error = f"tiled matrix product, {SIZE} x {SIZE}", partial(harness.error, truth=truth)
    for row in harness.checked_race(case, contestants, error):
        yield row | {"GFLOP/s": 2 * SIZE**3 / row["median_ms"] / 1e6}


def filled(product: Callable[[Array, Array, Array], object], a: Array, b: Array) -> Array:
    """Return the array that a matrix product writes to."""
    c = np.empty((len(a), b.shape[1]), np.float32)
    product(a, b, c)
    return c


def sums(x: Array) -> Iterator[harness.Row]:
    """Yield the rows of both reductions."""
    whole = -(-x.size // textbook.THREADS)
    for how, kernel, blocks in (
        ("in a loop over the grid", textbook.reduce_strided, textbook.BLOCKS),
        ("one element a thread", textbook.reduce_once, whole),
    ):
        launch = kernel[blocks, textbook.THREADS]
        contestants: harness.Contestants = {
            harness.OURS: partial(total, launch, x),
            "numpy.sum": x.sum,
        }
        case = f"sum of {x.size:,} numbers by warp shuffles, {how}"
        error = partial(harness.error, truth=x.sum(dtype=np.float64))
        for row in harness.checked_race(case, contestants, error):
            yield row | {"GB/s": x.nbytes / row["median_ms"] / 1e6}


def total(launch: Callable[[Array, Array], None], x: Array) -> Array:
    """Return what a reduction adds up."""
    out = np.zeros(1, np.float32)
    launch(x, out)
    return out[0]


if __name__ == "__main__":
    harness.main("lowering", rows)

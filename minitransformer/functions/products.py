"""Large matrix products on the CPU, shared out among the threads that run the kernels.

BLAS has threads of its own, but they wait for each other by spinning: where another program takes a
core now and then, one spins while the other stands still, and a product takes ten times as long.
So each block of a product gets one BLAS thread, and whichever of our threads is free takes the next
block. The blocks depend on shapes and the number of threads alone: results repeat bit by bit.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import ThreadpoolController

from minitransformer_kernels.cpu import pool

from ..device import Array

WORTH_A_THREAD = 2**22  # multiply-adds; they take several times as long as waking a thread
FEWEST_ROWS = 128  # BLAS copies the whole right factor for each block of rows

_blas = ThreadpoolController().select(user_api="blas")


def shared_product(x: Array, y: Array) -> Array:
    """Return ``x @ y``, computed by all threads.

    Args:
        x: ``(..., L, K)``, of at least one element.
        y: ``(..., K, M)``, likewise.

    Returns:
        ``(..., L, M)``, contiguous.
    """
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    result = np.empty((*batch, x.shape[-2], y.shape[-1]), np.result_type(x, y))
    with _blas.limit(limits=1):
        if batch:
            _share_batch(x, y, result)
        elif len(x) >= y.shape[1]:
            _share_rows(x, y, result)
        else:
            _share_rows(y.T, x.T, result.T)
    return result


def _share_rows(x: Array, y: Array, out: Array) -> None:
    size = max(FEWEST_ROWS, WORTH_A_THREAD // y.size)

    def multiply(first: int, last: int) -> None:
        rows = slice(first * size, last * size)
        np.matmul(x[rows], y, out=out[rows])

    pool.run(multiply, -(-len(x) // size))


def _share_batch(x: Array, y: Array, out: Array) -> None:
    x, y = (np.broadcast_to(z, (*out.shape[:-2], *z.shape[-2:])) for z in (x, y))
    size = max(1, WORTH_A_THREAD * len(out) // (out.size * x.shape[-1]))

    def multiply(first: int, last: int) -> None:
        items = slice(first * size, last * size)
        np.matmul(x[items], y[items], out=out[items])

    pool.run(multiply, -(-len(out) // size))

r"""The kernels that run.

What they add to `plain`:

    a tile of tokens at once    all products with W before a tile, (7): W is read and written once
                                for 16 tokens, and only `writes` of a tile is done one by one
    W in registers              a thread owns some rows of a column for the whole sequence, so that
                                W never goes to memory; TOGETHER tokens share a read of a register
    tiles in shared memory      each key is read from memory once for all columns of a block;
                                transposed with a pitch, so that its readers use different banks
    rows shared out             among `parts` threads for wide keys, whose sums are then added up

The step is plain as it is: one token has nothing to share.

Columns of W do not know of each other: residual m needs only column m. A block handles one head and
up to 64 columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..arrays import (
    SHARED_BYTES,
    Array,
    array_module,
    ceil_div,
    kernel_dtype,
    round_up,
)
from ..cuda import Kernel, cuda
from ..recurrent.fast import MAX_COLUMNS, MAX_ROWS, MAX_THREADS, TOGETHER, Shape

TILES = (16, 8, 4)  # tokens; the first that fits in shared memory
TILE = TILES[0]


def _shape(head_dim: int, value_dim: int, real: Any) -> Shape:
    """The shape for a state of a rounded size; its tiles fit in shared memory."""
    parts = max(1, head_dim // MAX_ROWS)
    rows = head_dim // parts
    columns = min(MAX_COLUMNS, MAX_THREADS // parts, max(rows, value_dim))
    size = real.bitwidth // 8

    def numbers(tile: int) -> int:
        return head_dim * (tile + 1) + tile * ((1 + parts) * columns + tile + 1)

    tile = next(t for t in TILES if numbers(t) * size <= SHARED_BYTES)
    return Shape(columns, parts, rows, tile)


@cache
def residual_kernel(head_dim: int, value_dim: int, real: Any) -> Kernel:
    """Equation (7), and (10) in reverse; a thread owns a column of W in registers."""
    columns, parts, rows, tile = _shape(head_dim, value_dim, real)
    pitch = tile + 1  # of the transposed keys: neighbours in a column lie in different banks

    @cuda.jit(fastmath=True)
    def residual(key, value, beta, places, way, W0, r_out, u_out):  # type: ignore[no-untyped-def]
        """Key (N, H, L, E), value (N, H, L, M), beta (N, H, L), and the spans of all three.

        `way` is 1, or -1 to read from the end. The last two are written to; they are zero in the
        padding.
        """
        k_tile = cuda.shared.array((head_dim, pitch), real)  # transposed
        r_tile = cuda.shared.array((tile, columns), real)  # v, then r
        part = cuda.shared.array((parts, tile, columns), real)  # of each part in W^T k
        writes = cuda.shared.array((tile, tile), real)  # beta_s k_t . k_s
        beta_tile = cuda.shared.array(tile, real)
        totals = cuda.local.array(TOGETHER, real)
        W = cuda.local.array(rows, real)  # this thread's part of column m of W

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * columns + x
        first_row = y * rows
        E, M = key.shape[3], value.shape[3]
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        begin = 0 if way > 0 else room - 1

        for e in range(rows):
            W[e] = real(0)
            if first_row + e < E and m < M:
                W[e] = W0[n, h, first_row + e, m]

        for start in range(0, room, tile):
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                is_token = 0 <= j < last
                r_tile[t, x] = value[b, h, first + j, m] if is_token and m < M else real(0)
                for e in range(x, head_dim, columns):
                    k_tile[e, t] = key[b, h, first + j, e] if is_token and e < E else real(0)
            if y == 0:
                for t in range(x, tile, columns):
                    j = begin + way * (start + t)
                    beta_tile[t] = beta[b, h, first + j] if 0 <= j < last else real(0)
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    totals[i] = real(0)
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        totals[i] += w * k_tile[first_row + e, t + i]
                for i in range(TOGETHER):
                    part[y, t + i, x] = totals[i]
            for t in range(y, tile, parts):
                for s in range(x, tile, columns):
                    product = real(0)
                    for e in range(head_dim):
                        product += k_tile[e, t] * k_tile[e, s]
                    writes[t, s] = product * beta_tile[s]
            cuda.syncthreads()

            if y == 0:
                for t in range(tile):
                    r = r_tile[t, x]
                    for p in range(parts):
                        r -= part[p, t, x]
                    for s in range(t):
                        r -= writes[t, s] * r_tile[s, x]  # (7)
                    r_tile[t, x] = r
            cuda.syncthreads()

            for t in range(0, tile, TOGETHER):
                for i in range(TOGETHER):
                    totals[i] = beta_tile[t + i] * r_tile[t + i, x]
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        w += k_tile[first_row + e, t + i] * totals[i]  # (3)
                    W[e] = w
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                if 0 <= j < room and m < M:
                    r_out[b, h, first + j, m] = r_tile[t, x]
                    u_out[b, h, first + j, m] = beta_tile[t] * r_tile[t, x]  # (2)
            cuda.syncthreads()

    return residual


@cache
def step_kernel(columns: int, real: Any) -> Kernel:
    """Equations (1) to (4) for one token; plain as it is, with nothing to share."""

    @cuda.jit(fastmath=True)
    def step(query, key, value, beta, W, out, W_next):  # type: ignore[no-untyped-def]
        """Query and key (N, H, E), value (N, H, M), beta (N, H); a thread owns column m of W."""
        m = cuda.blockIdx.x * columns + cuda.threadIdx.x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        if m < value.shape[2]:
            r = value[n, h, m]
            for e in range(query.shape[2]):
                r -= W[n, h, e, m] * key[n, h, e]  # (1)
            u = beta[n, h] * r  # (2)
            total = real(0)
            for e in range(query.shape[2]):
                w = W[n, h, e, m] + key[n, h, e] * u  # (3)
                W_next[n, h, e, m] = w
                total += w * query[n, h, e]  # (4)
            out[n, h, m] = total

    return step


def residuals(
    key: Array, value: Array, beta: Array, places: Array, way: int, W0: Array
) -> tuple[Array, Array]:
    """Return r and u of `delta`'s equations (7) and (2); with way = -1, (10) and dr."""
    N, H, E, M = W0.shape
    dims, real = (round_up(E), round_up(M, "value dim")), kernel_dtype(key)
    shape = _shape(*dims, real)
    r, u = (array_module(value).empty(value.shape, value.dtype) for _ in range(2))
    residual_kernel(*dims, real)[(ceil_div(M, shape.columns), H, N), shape.threads](
        key, value, beta, places, way, W0, r, u
    )
    return r, u

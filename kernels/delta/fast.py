r"""The kernels that run.

What they add to `plain`:

    a tile of tokens at once    all products with W before a tile, (7): W is read and written once
                                for 16 tokens, and only `writes` of a tile is done one by one
    W in registers              a thread owns some rows of a column for the whole sequence, so that
                                W never goes to memory; TOGETHER tokens share a read of a register
    tiles in shared memory      each key is read from memory once for all columns of a block;
                                transposed, so that TOGETHER tokens are read by one instruction.
                                With a pitch of so many more neighbours in a column lie in 8 banks;
                                in as many as there are they would with one more, but then each
                                number is an instruction: for each that is written 64 are read
    rows shared out             among `parts` threads for wide keys, whose sums are then added up
    one walk for r and o        a number of W, while it is at hand for (3), gives its share of (4):
                                there is no second walk, with the same keys and a state of its own.
                                For (10) the kernel is made without

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


def _shape(head_dim: int, value_dim: int, real: Any, answering: bool) -> Shape:
    """The shape for a state of a rounded size; its tiles fit in shared memory."""
    parts = max(1, head_dim // MAX_ROWS)
    rows = head_dim // parts
    columns = min(MAX_COLUMNS, MAX_THREADS // parts, max(rows, value_dim))
    size = real.bitwidth // 8

    def numbers(tile: int) -> int:
        tiles = (1 + answering) * head_dim * (tile + TOGETHER)  # of keys and of queries
        return tiles + tile * ((1 + parts) * columns + tile + 1)

    tile = next(t for t in TILES if numbers(t) * size <= SHARED_BYTES)
    return Shape(columns, parts, rows, tile)


@cache
def residual_kernel(head_dim: int, value_dim: int, real: Any, answering: bool) -> Kernel:
    """Equation (7), and (10) in reverse; a thread owns a column of W in registers.

    `answering` it makes (4), too.
    """
    columns, parts, rows, tile = _shape(head_dim, value_dim, real, answering)
    pitch = tile + TOGETHER  # of the transposed keys: see above

    @cuda.jit(fastmath=True)
    def residual(  # type: ignore[no-untyped-def]
        query, key, value, beta, queries, places, offset, way, W0, out, r_out, u_out, W1
    ):
        """Key (N, H, L, E), value (N, H, L, M), beta (N, H, L), and the spans of all three.

        `way` is 1, or -1 to read from the end. Queries (N, H, Lq, E) and their spans are looked at
        only to answer: then `out` is written to, and else u. r and u are zero in the padding.
        """
        k_tile = cuda.shared.array((head_dim, pitch), real)  # transposed
        r_tile = cuda.shared.array((tile, columns), real)  # v, then r
        part = cuda.shared.array((parts, tile, columns), real)  # of each part in W^T k, or W^T q
        writes = cuda.shared.array((tile, tile), real)  # beta_s k_t . k_s
        beta_tile = cuda.shared.array(tile, real)
        if answering:
            q_tile = cuda.shared.array((head_dim, pitch), real)
            answers = cuda.local.array(TOGETHER, real)
        totals = cuda.local.array(TOGETHER, real)
        W = cuda.local.array(rows, real)  # this thread's part of column m of W

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * columns + x
        first_row = y * rows
        E, M = key.shape[3], value.shape[3]
        b, first, last, room = places[n, 0], places[n, 1], places[n, 2], places[n, 3]
        begin, end = 0 if way > 0 else room - 1, room
        if answering:
            first_query, last_query, query_room = queries[n, 1], queries[n, 2], queries[n, 3]
            end = max(max(last, query_room + offset), room)

        for e in range(rows):
            W[e] = real(0)
            if first_row + e < E and m < M:
                W[e] = W0[n, h, first_row + e, m]

        for start in range(min(0, offset), end, tile):
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                is_token = 0 <= j < last
                r_tile[t, x] = value[b, h, first + j, m] if is_token and m < M else real(0)
                for e in range(x, head_dim, columns):
                    k_tile[e, t] = key[b, h, first + j, e] if is_token and e < E else real(0)
                if answering:
                    i = start + t - offset
                    is_query = 0 <= i < last_query
                    for e in range(x, head_dim, columns):
                        q_tile[e, t] = (
                            query[b, h, first_query + i, e] if is_query and e < E else real(0)
                        )
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
                    if answering:
                        answers[i] = real(0)
                for e in range(rows):
                    w = W[e]
                    for i in range(TOGETHER):
                        w += k_tile[first_row + e, t + i] * totals[i]  # (3)
                        if answering:
                            answers[i] += w * q_tile[first_row + e, t + i]  # (4)
                    W[e] = w
                if answering:
                    for i in range(TOGETHER):
                        part[y, t + i, x] = answers[i]
            for t in range(y, tile, parts):
                j = begin + way * (start + t)
                if 0 <= j < room and m < M:
                    r_out[b, h, first + j, m] = r_tile[t, x]
                    if not answering:
                        u_out[b, h, first + j, m] = beta_tile[t] * r_tile[t, x]  # (2)
            cuda.syncthreads()

            if answering:
                for t in range(y, tile, parts):
                    o = real(0)
                    for p in range(parts):
                        o += part[p, t, x]
                    i = start + t - offset
                    if 0 <= i < query_room and m < M:
                        out[b, h, first_query + i, m] = o  # (4)

        for e in range(rows):
            if first_row + e < E and m < M:
                W1[n, h, first_row + e, m] = W[e]

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


def forward(
    query: Array, key: Array, value: Array, beta: Array, queries: Array, keys: Array, offset: int,
    W0: Array, out: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Equations (7), (3) and (4) in one walk; out is written to. Returns r and the state."""
    r, W1 = (array_module(value).empty_like(x) for x in (value, W0))
    _walk(True, query, key, value, beta, queries, keys, offset, 1, W0, out, r, r, W1)
    return r, W1


def residuals(
    key: Array, value: Array, beta: Array, places: Array, way: int, W0: Array
) -> tuple[Array, Array, Array]:
    """Return r and u of `delta`'s equations (7) and (2), and the state; with way = -1, (10)."""
    r, u, W1 = (array_module(value).empty_like(x) for x in (value, value, W0))
    _walk(False, key, key, value, beta, places, places, 0, way, W0, r, r, u, W1)
    return r, u, W1


def _walk(
    answering: bool, query: Array, key: Array, value: Array, beta: Array, queries: Array, *rest: Any
) -> None:
    """Launch the kernel that does what `answering` says."""
    (_, H, _, E), M = key.shape, value.shape[3]
    dims, real = (round_up(E), round_up(M, "value dim")), kernel_dtype(key)
    shape, N = _shape(*dims, real, answering), len(queries)
    kernel = residual_kernel(*dims, real, answering)
    kernel[(ceil_div(M, shape.columns), H, N), shape.threads](
        query, key, value, beta, queries, *rest
    )

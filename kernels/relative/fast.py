r"""The kernels that run.

As those of `linear` they work on tiles of 32 x 32 numbers: threadIdx.x = x is a column, threadIdx.y
= y a group of OWN rows. Every sum has one owner and a fixed order.

What they add to `plain`; results/ladder says what it brings:

    far keys as sums           (7) and (8) in the place of (3): the time of a query no longer grows
                               with the keys; "naive", where every key is near, goes without
    tiles in shared memory     a value is read from memory once for 32 queries, a weight once for
                               all columns
    sums in registers          OWN rows of `width` columns; each number read takes part in OWN sums
    transposed, with a pitch   where columns are read, by threads in different banks

(12) is a product of matrices for each sequence, and a sum over all rows: kernels of `linear`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..arrays import HEAD_DIMS, Array, array_module, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import eps_or_default
from ..guards import guard as get_guard
from ..tiles import GROUPS, OWN, PITCH, THREADS, TILE, block_count, load, tile_count, wide_tile
from .score_maps import score_map as get_score_map
from .setting import Setting

MAX_COLUMNS = 64  # of the values, per block of a step


@cuda.jit(device=True)
def _between(x, low, high):  # type: ignore[no-untyped-def]
    return min(max(x, low), high)


@cuda.jit(device=True)
def _first_tile(row, first, end):  # type: ignore[no-untyped-def]
    """The tile that a row is in, for tiles that begin at row `first`; `end` is after the last."""
    return _between(row - first, 0, end - first) // TILE


@cuda.jit(device=True)
def _end_tile(row, first, end):  # type: ignore[no-untyped-def]
    """The first tile that has no row before this one."""
    return (_between(row - first, 0, end - first) + TILE - 1) // TILE


@cuda.jit(device=True)
def _value(value, recent, b, n, h, row, j, m):  # type: ignore[no-untyped-def]
    """Column m of value j, which is in the window before the sequence where j < 0."""
    return value[b, h, row + j, m] if j >= 0 else recent[n, h, recent.shape[2] + j, m]


@cache
def _score_kernel(real: Any, map_name: str) -> Kernel:
    f = get_score_map(map_name, real).value

    @cuda.jit(fastmath=True)
    def scores(u, embedding, queries, F):  # type: ignore[no-untyped-def]
        """Rows u (N, H, Lq, E), embedding (H, R, E); F (N, H, Lq, R) is written to."""
        u_tile = cuda.shared.array((TILE, TILE), real)
        e_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        b_own = cuda.local.array(OWN, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last, room = queries[n, 0], queries[n, 1], queries[n, 2], queries[n, 3]
        first = cuda.blockIdx.x * TILE
        R, E = embedding.shape[1], embedding.shape[2]

        for c in range(0, R, TILE):
            for r in range(OWN):
                b_own[r] = real(0)
            for e in range(0, E, TILE):
                for t in range(y, TILE, GROUPS):
                    u_tile[t, x] = real(0)
                    if first + t < last and e + x < E:
                        u_tile[t, x] = u[b, h, row + first + t, e + x]
                    e_value = real(0)
                    if c + t < R and e + x < E:
                        e_value = embedding[h, c + t, e + x]
                    e_tile[x, t] = e_value
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        b_own[r] += u_tile[y * OWN + r, s] * e_tile[s, x]  # (2)
                cuda.syncthreads()
            for r in range(OWN):
                i = first + y * OWN + r
                if i < room and c + x < R:
                    F[b, h, row + i, c + x] = f(b_own[r]) if i < last else real(0)  # (2)

    return scores


def weights(u: Array, setting: Setting, score_map: str) -> Array:
    """F of equations (1) and (2), a row for each query."""
    F = array_module(u).empty((*u.shape[:3], setting.embedding.shape[1]), u.dtype)
    kernel = _score_kernel(kernel_dtype(u), score_map)[_grid(setting), THREADS]
    kernel(u, setting.embedding, setting.queries, F)
    return F


@cache
def _tile_sum_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def tile_sums(value, recent, past, keys, sums):  # type: ignore[no-untyped-def]
        """Sums (N, H, tiles, M) is written to; the tiles begin with the window of the state."""
        shares = cuda.shared.array((GROUPS, TILE), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = keys[n, 0], keys[n, 1], keys[n, 2]
        start = cuda.blockIdx.x * TILE - recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        M = value.shape[3]

        for first_m in range(0, M, TILE):
            m = first_m + x
            total = real(0)
            for r in range(OWN):
                j = start + y * OWN + r
                if oldest <= j < last and m < M:
                    total += _value(value, recent, b, n, h, row, j, m)
            shares[y, x] = total
            cuda.syncthreads()
            if y == 0 and m < M:
                total = real(0)
                for group in range(GROUPS):
                    total += shares[group, x]
                sums[n, h, cuda.blockIdx.x, m] = total
            cuda.syncthreads()

    return tile_sums


@cuda.jit(fastmath=True)
def running_sums(sums, start, way, result):  # type: ignore[no-untyped-def]
    """Where each tile begins, `start` (N, H, M) and the sums of all tiles before.

    With `way` = -1, of all tiles from there on. Result (N, H, tiles + 1, M) is written to.
    """
    m = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    h, n = cuda.blockIdx.y, cuda.blockIdx.z
    tiles = sums.shape[2]
    if m < sums.shape[3]:
        total = start[n, h, m]
        for t in range(tiles):
            place = t if way > 0 else tiles - t
            result[n, h, place, m] = total
            total += sums[n, h, t if way > 0 else tiles - 1 - t, m]
        result[n, h, tiles if way > 0 else 0, m] = total


class Values(NamedTuple):
    """The values, and their sums A and C of equation (8) where each tile of keys begins."""

    value: Array
    before: Array
    after: Array


def values(value: Array, setting: Setting) -> Values:
    """The values, with their far sums, equation (8)."""
    xp = array_module(value)
    tail, recent, past = setting.state[2:]
    (N, H, M), tiles = tail.shape, block_count(setting.longest[1] + recent.shape[2])
    sums = xp.empty((N, H, tiles, M), value.dtype)
    kernel = _tile_sum_kernel(kernel_dtype(value))
    kernel[(tiles, H, N), THREADS](value, recent, past, setting.keys, sums)
    before = _running_sums(sums, tail, 1)
    after = before if setting.causal else _running_sums(sums, xp.zeros_like(tail), -1)
    return Values(value, before, after)


def _running_sums(sums: Array, start: Array, way: int) -> Array:
    """Sums of the tiles before (way 1) or from (-1) the beginning of each."""
    N, H, tiles, M = sums.shape
    result = array_module(sums).empty((N, H, tiles + 1, M), sums.dtype)
    running_sums[(block_count(M), H, N), TILE](sums, start, way, result)
    return result


@cache
def _forward_kernel(width: int, real: Any, guard_name: str) -> Kernel:
    rows, columns = wide_tile(width)
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        numerator, others, F, value, recent, past, before, after, queries, keys, low, below, above,
        offset, causal, eps, output, denominator,
    ):  # fmt: skip
        """Numerator (N, H, Lq, M) and others (N, H, Lq) are n and d of linear attention.

        F is (N, H, Lq, R), value (N, H, Lk, M); before and after (N, H, tiles + 1, M) are A and C
        where tiles of keys begin. The last two are written to.
        """
        f_tile = cuda.shared.array((TILE, TILE), real)
        v_tile = cuda.shared.array((rows, columns), real)
        d_own = cuda.local.array(OWN, real)  # of the keys that this thread has met
        n_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last, room = queries[n, 0], queries[n, 1], queries[n, 2], queries[n, 3]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE
        R, M = F.shape[3], value.shape[3]
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        begin = _first_tile(first + offset + below, start_of_tiles, last_key)
        p_end = min(first + TILE, last) - 1 + offset + above
        end = _end_tile(p_end, start_of_tiles, last_key)

        for r in range(OWN):
            d_own[r] = real(0)
            for m in range(width):
                n_own[m, r] = real(0)

        for tile in range(begin, end):
            start = start_of_tiles + tile * TILE
            for r in range(OWN):
                i, j = first + y * OWN + r, start + x
                distance = j - i - offset
                weight = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    weight = F[b, h, row + i, _between(distance - low, 0, R - 1)]  # (2)
                f_tile[y * OWN + r, x] = weight
                d_own[r] += weight  # (3)
            for s in range(0, TILE, rows):
                for t in range(y, rows, GROUPS):
                    j = start + s + t
                    for m in range(x, columns, TILE):
                        v_tile[t, m] = real(0)
                        if 0 <= j < last_key and m < M:
                            v_tile[t, m] = value[b_key, h, key_row + j, m]
                        elif oldest <= j < 0 and m < M:
                            v_tile[t, m] = recent[n, h, recent.shape[2] + j, m]
                cuda.syncthreads()
                for t in range(rows):
                    for m in range(width):
                        for r in range(OWN):
                            weight = f_tile[y * OWN + r, s + t]
                            more = n_own[m, r] + weight * v_tile[t, m * TILE + x]  # (7)
                            n_own[m, r] = cuda.selp(weight != real(0), more, n_own[m, r])
                cuda.syncthreads()

        for r in range(OWN):
            f_tile[y * OWN + r, x] = d_own[r]
        cuda.syncthreads()

        # How many keys are in A and C: all those that the state counts are before.
        count_before = past[n] + _between(start_of_tiles + begin * TILE, oldest, last_key)
        count_after = last_key - _between(start_of_tiles + end * TILE, oldest, last_key)
        for r in range(OWN):
            i = first + y * OWN + r
            if i < room:
                at_low, at_high = real(0), real(0)
                if i < last:
                    at_low = F[b, h, row + i, 0]
                    at_high = real(0) if causal else F[b, h, row + i, R - 1]
                d = others[b, h, row + i]
                for t in range(TILE):
                    d += f_tile[y * OWN + r, t]  # (3)
                d += at_low * real(count_before) + at_high * real(count_after)  # (7)
                for m in range(width):
                    c = m * TILE + x
                    if c < M:
                        far = at_low * before[n, h, begin, c]
                        far += at_high * after[n, h, end, c] if not causal else real(0)
                        total = numerator[b, h, row + i, c] + n_own[m, r] + far  # (7)
                        output[b, h, row + i, c] = total / guard(d, eps)  # (3)
                if x == 0:
                    denominator[b, h, row + i] = d

    return forward


def forward(
    numerator: Array,
    others: Array,
    F: Array,
    values: Values,
    setting: Setting,
    guard: str,
    eps: float | None,
) -> tuple[Array, Array]:
    """Equations (7) and (3); a block owns a tile of queries, walks the near keys."""
    xp = array_module(F)
    output, denominator = xp.empty_like(numerator), xp.empty_like(others)
    kernel = _forward_kernel(tile_count(numerator.shape[3], "value dim"), kernel_dtype(F), guard)
    kernel[_grid(setting), THREADS](
        numerator, others, F, *_seen(values, setting), *setting.walk,
        eps_or_default(guard, eps, F), output, denominator,
    )  # fmt: skip
    return output, denominator


def _grid(setting: Setting) -> tuple[int, int, int]:
    """A block for each tile of queries."""
    return block_count(setting.longest[0]), len(setting.embedding), len(setting.queries)


def _seen(values: Values, setting: Setting) -> tuple[Array, ...]:
    """What there is to see, and from where: arguments of the walks past the keys."""
    _, _, _, recent, past = setting.state
    value, before, after = values
    return value, recent, past, before, after, setting.queries, setting.keys


@cache
def _score_gradient_kernel(real: Any, map_name: str) -> Kernel:
    slope = get_score_map(map_name, real).slope

    @cuda.jit(fastmath=True)
    def score_gradient(  # type: ignore[no-untyped-def]
        gn, gd, F, value, recent, past, before, after, queries, keys, low, below, above, offset,
        causal, dB, low_sums, high_sums,
    ):  # fmt: skip
        """Writes dB (N, H, Lq, R), zeros so far, where distances occur.

        It also writes the sums of F_i,-k gn_i and of F_i,k gn_i over each tile of queries, (N, H,
        tiles, M) both.
        """
        g_tile = cuda.shared.array((TILE, TILE), real)
        v_tile = cuda.shared.array((TILE, PITCH), real)  # transposed
        s_own = cuda.local.array(OWN, real)
        low_own = cuda.local.array(OWN, real)  # dF_i,-k of the keys that this thread has met
        high_own = cuda.local.array(OWN, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE
        R, M = F.shape[3], value.shape[3]
        high = low + R - 1
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        begin = _first_tile(first + offset + below, start_of_tiles, last_key)
        p_end = min(first + TILE, last) - 1 + offset + above
        end = _end_tile(p_end, start_of_tiles, last_key)

        for r in range(OWN):
            low_own[r] = real(0)
            high_own[r] = real(0)

        for tile in range(begin, end):
            start = start_of_tiles + tile * TILE
            for r in range(OWN):
                s_own[r] = real(0)
            for m in range(0, M, TILE):
                for t in range(y, TILE, GROUPS):
                    j = start + t
                    g_tile[t, x] = real(0)
                    if first + t < last and m + x < M:
                        g_tile[t, x] = gn[b, h, row + first + t, m + x]
                    v = real(0)
                    if 0 <= j < last_key and m + x < M:
                        v = value[b_key, h, key_row + j, m + x]
                    elif oldest <= j < 0 and m + x < M:
                        v = recent[n, h, recent.shape[2] + j, m + x]
                    v_tile[x, t] = v
                cuda.syncthreads()
                for s in range(TILE):
                    for r in range(OWN):
                        s_own[r] += g_tile[y * OWN + r, s] * v_tile[s, x]  # (9)
                cuda.syncthreads()
            for r in range(OWN):
                i, j = first + y * OWN + r, start + x
                distance = j - i - offset
                ds = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    ds = s_own[r] + gd[b, h, row + i]  # (9)
                low_own[r] += ds if distance <= low else real(0)
                high_own[r] += ds if distance > low and distance >= high else real(0)
                if i < last and low < distance < high:
                    weight = F[b, h, row + i, distance - low]
                    dB[b, h, row + i, distance - low] = ds * slope(weight)  # (11)

        for m in range(0, M, TILE):
            low_total, high_total = real(0), real(0)
            for r in range(OWN):
                i = first + y * OWN + r
                if i < last and m + x < M:
                    g = gn[b, h, row + i, m + x]
                    low_own[r] += g * before[n, h, begin, m + x]  # (10)
                    low_total += F[b, h, row + i, 0] * g
                    if not causal:
                        high_own[r] += g * after[n, h, end, m + x]  # (10)
                        high_total += F[b, h, row + i, R - 1] * g
            g_tile[y, x] = low_total
            v_tile[y, x] = high_total
            cuda.syncthreads()
            if y == 0 and m + x < M:
                low_total, high_total = real(0), real(0)
                for group in range(GROUPS):
                    low_total += g_tile[group, x]
                    high_total += v_tile[group, x]
                low_sums[n, h, cuda.blockIdx.x, m + x] = low_total
                high_sums[n, h, cuda.blockIdx.x, m + x] = high_total
            cuda.syncthreads()

        for r in range(OWN):
            g_tile[y * OWN + r, x] = low_own[r]
            v_tile[y * OWN + r, x] = high_own[r]
        cuda.syncthreads()

        count_before = past[n] + _between(start_of_tiles + begin * TILE, oldest, last_key)
        count_after = last_key - _between(start_of_tiles + end * TILE, oldest, last_key)
        i = first + x
        if y == 0 and i < last:
            at_low = gd[b, h, row + i] * real(count_before)  # (10)
            at_high = real(0) if causal else gd[b, h, row + i] * real(count_after)  # (10)
            for t in range(TILE):
                at_low += g_tile[x, t]
                at_high += v_tile[x, t]
            if R == 1:
                at_low += at_high
            else:
                dB[b, h, row + i, R - 1] = at_high * slope(F[b, h, row + i, R - 1])  # (11)
            dB[b, h, row + i, 0] = at_low * slope(F[b, h, row + i, 0])  # (11)

    return score_gradient


def score_gradient(
    gn: Array, gd: Array, F: Array, values: Values, setting: Setting, score_map: str
) -> tuple[Array, tuple[Array, Array]]:
    """Equations (9) to (11), dB; the same walk, and the sums of F gn that (13) needs."""
    xp, grid = array_module(F), _grid(setting)
    tiles, H, N = grid
    dB = xp.zeros_like(F)
    sums = low_sums, high_sums = [xp.empty((N, H, tiles, gn.shape[3]), F.dtype) for _ in range(2)]
    _score_gradient_kernel(kernel_dtype(F), score_map)[grid, THREADS](
        gn, gd, F, *_seen(values, setting), *setting.walk, dB, *sums
    )
    zeros = xp.zeros_like(setting.state.tail)
    low_after = _running_sums(low_sums, zeros, -1)
    return dB, (low_after, low_after if setting.causal else _running_sums(high_sums, zeros, 1))


@cache
def _value_gradient_kernel(width: int, real: Any) -> Kernel:
    rows, columns = wide_tile(width)

    @cuda.jit(fastmath=True)
    def value_gradient(  # type: ignore[no-untyped-def]
        F, gn, past, low_after, high_before, grad_tail, grad_recent, queries, keys, low, below,
        above, offset, causal, dv, d_recent,
    ):  # fmt: skip
        """Adds to dv (N, H, Lk, M), and writes d_recent, of the window of an initial state.

        low_after and high_before (N, H, tiles + 1, M) are the far sums of (13) where tiles of
        queries begin.
        """
        f_tile = cuda.shared.array((TILE, TILE), real)
        g_tile = cuda.shared.array((rows, columns), real)
        v_own = cuda.local.array((width, OWN), real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        b, row, last = queries[n, 0], queries[n, 1], queries[n, 2]
        b_key, key_row, last_key = keys[n, 0], keys[n, 1], keys[n, 2]
        first = cuda.blockIdx.x * TILE - d_recent.shape[2]
        oldest = -min(past[n], d_recent.shape[2])
        R, M = F.shape[3], gn.shape[3]
        # Key j is near to the queries from p = j - above + 1 to j - below.
        begin = _first_tile(first - above + 1 - offset, 0, last)
        end_of_rows = min(first + TILE, last_key) - below - offset
        end = _end_tile(end_of_rows, 0, last)

        for m in range(width):
            for r in range(OWN):
                v_own[m, r] = real(0)

        for tile in range(begin, end):
            start = tile * TILE
            for t in range(y, TILE, GROUPS):
                i, j = start + t, first + x
                distance = j - i - offset
                weight = real(0)
                if i < last and oldest <= j < last_key and (distance <= 0 or not causal):
                    weight = F[b, h, row + i, _between(distance - low, 0, R - 1)]  # (2)
                f_tile[t, x] = weight
            for s in range(0, TILE, rows):
                load(g_tile, gn, b, h, row + start + s, row + last, 0)
                cuda.syncthreads()
                for m in range(width):
                    for t in range(rows):
                        for r in range(OWN):
                            weight = f_tile[s + t, y * OWN + r]
                            v_own[m, r] += weight * g_tile[t, m * TILE + x]  # (13)
                cuda.syncthreads()

        window = grad_recent.shape[2]
        for m in range(width):
            c = m * TILE + x
            for r in range(OWN):
                j = first + y * OWN + r
                if oldest <= j < last_key and c < M:
                    total = v_own[m, r] + low_after[n, h, end, c]  # (13)
                    if not causal:
                        total += high_before[n, h, begin, c]  # (13)
                    if j < last_key - window:
                        total += grad_tail[n, h, c]  # (14)
                    else:
                        total += grad_recent[n, h, j - last_key + window, c]  # (14)
                    if j < 0:
                        d_recent[n, h, j + d_recent.shape[2], c] = total
                    else:
                        dv[b_key, h, key_row + j, c] += total

    return value_gradient


def value_gradient(
    F: Array,
    gn: Array,
    far: tuple[Array, Array],
    values: Values,
    setting: Setting,
    grad_state: tuple[Array, Array],
    dv: Array,
) -> tuple[Array, Array]:
    """Adds (13) to the other gradient of the values; a block owns a tile of keys.

    It walks the near queries; `values` is for `plain` alone. Returns the gradients of the tail and
    the window of a first state.
    """
    _, _, tail, recent, past = setting.state
    N, H, M = tail.shape
    d_recent = array_module(F).zeros_like(recent)
    blocks = block_count(setting.longest[1] + recent.shape[2])
    _value_gradient_kernel(tile_count(M, "value dim"), kernel_dtype(F))[(blocks, H, N), THREADS](
        F, gn, past, *far, *grad_state, setting.queries, setting.keys, *setting.walk, dv, d_recent
    )
    return grad_state[0] + far[0][:, :, 0], d_recent


@cache
def _state_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def window(value, recent, past, before, keys, tail_next, recent_next):  # type: ignore[no-untyped-def]
        """The last two are written to, equation (14)."""
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        m = cuda.blockIdx.x * TILE + x
        b, row, last = keys[n, 0], keys[n, 1], keys[n, 2]
        start_of_tiles = -recent.shape[2]
        oldest = -min(past[n], recent.shape[2])
        fallen = last - recent_next.shape[2]  # the values before this one are in the tail
        tile = _first_tile(fallen, start_of_tiles, last)

        if m < value.shape[3]:
            for w in range(y, recent_next.shape[2], GROUPS):
                j = fallen + w
                recent_next[n, h, w, m] = real(0)
                if j >= oldest:
                    recent_next[n, h, w, m] = _value(value, recent, b, n, h, row, j, m)
            if y == 0:
                total = before[n, h, tile, m]
                for j in range(max(start_of_tiles + tile * TILE, oldest), fallen):
                    total += _value(value, recent, b, n, h, row, j, m)
                tail_next[n, h, m] = total

    return window


def window(values: Values, setting: Setting, tail: Array, recent: Array) -> None:
    """Writes tail and window of the last state, equation (14)."""
    N, H, M = tail.shape
    _, _, _, known, past = setting.state
    kernel = _state_kernel(kernel_dtype(tail))[(block_count(M), H, N), THREADS]
    kernel(values.value, known, past, values.before, setting.keys, tail, recent)


@cache
def step_kernel(
    columns: int, real: Any, feature_name: str, query_map: str, map_name: str, guard_name: str
) -> Kernel:
    """Everything for one token."""
    phi = get_feature_map(feature_name, real).value
    u_map = get_feature_map(query_map, real).value
    f = get_score_map(map_name, real).value
    guard = get_guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def step(  # type: ignore[no-untyped-def]
        query, key, value, embedding, eps, S, Z, tail, recent, past, out, S_next, Z_next, tail_next,
        recent_next,
    ):  # fmt: skip
        """Query and key (N, H, E), value (N, H, M); a thread owns column m of the state."""
        u = cuda.shared.array(HEAD_DIMS[-1], real)
        weights = cuda.shared.array(columns, real)

        x = cuda.threadIdx.x
        m = cuda.blockIdx.x * columns + x
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E, M, k = query.shape[2], value.shape[2], recent.shape[2]
        count = past[n] + 1
        total, d, v, fallen = real(0), real(0), real(0), real(0)
        if m < M:
            v = value[n, h, m]
            fallen = tail[n, h, m]
            if k == 0:
                fallen += v  # (14)
            elif count > k:
                fallen += recent[n, h, 0, m]  # (14)
            tail_next[n, h, m] = fallen

        for e in range(E):
            k_e = phi(key[n, h, e])
            q_e = phi(query[n, h, e])
            z = Z[n, h, e] + k_e
            d += q_e * z
            if m == 0:
                Z_next[n, h, e] = z
            if m < M:
                s = S[n, h, e, m] + k_e * v
                S_next[n, h, e, m] = s
                total += q_e * s

        for e in range(x, E, columns):
            u[e] = u_map(query[n, h, e])
        cuda.syncthreads()
        for first in range(0, k + 1, columns):
            b = real(0)
            if first + x <= k:
                for e in range(E):
                    b += u[e] * embedding[h, k - first - x, e]
            weights[x] = f(b)  # (2)
            cuda.syncthreads()
            for t in range(min(columns, k + 1 - first)):
                ago = first + t
                if ago == k:
                    total += weights[t] * fallen  # (7)
                    d += weights[t] * real(max(count - k, 0))
                elif ago < count:
                    seen = v
                    if ago > 0 and m < M:
                        seen = recent[n, h, k - ago, m]
                    total += weights[t] * seen  # (7)
                    d += weights[t]
                    if m < M:
                        recent_next[n, h, k - 1 - ago, m] = seen  # (14)
                elif m < M:
                    recent_next[n, h, k - 1 - ago, m] = real(0)
            cuda.syncthreads()
        if m < M:
            out[n, h, m] = total / guard(d, eps)  # (3)

    return step

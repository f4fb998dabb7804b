"""Local attention: a query sees a window of keys around itself, and a few landmarks.

Query i stands at position p_i = i + query_offset, key j at j. With a window of w it sees the keys

    p_i - w <= j <= p_i       (causal)        |p_i - j| <= w       (two-sided)             (1)

So L queries have L w scores, not L^2, and layers pass on what is farther away. Two kinds of key may
be seen from everywhere (causal: from j on), the *landmarks*:

    j < num_global            j mod stride = stride - 1                                    (2)

The first are the global tokens of Longformer (Beltagy et al. 2020), the others the fixed pattern of
Sparse Transformers (Child et al. 2019). Of their two patterns that is the one whose landmarks are
the same for every query: they can be gathered, and a decoder need not keep any other old key. The
queries at 0 <= p_i < global_queries see every key (causal: up to their own place), as Longformer's
global tokens do.

One rule holds all of this. Key j is seen *from* a range of positions, and query i asks *from* one:

                  key j of (1)      landmark       query i    global query
    causal        [j,     j + w]    [j, inf]       [p, p]     [-inf, p]                    (3)
    two-sided     [j - w, j + w]    [-inf, inf]    [p, p]     [-inf, inf]

    w_ij = 1 where the two ranges meet, 0 elsewhere                                        (4)

What follows is softmax attention with these w_ij, by the equations of `softmax.py`:

    l_i = log sum_j w_ij exp(s_ij)            s_ij = scale q_i . k_j                       (5)
    p_ij = w_ij exp(s_ij - l_i)               o_i = sum_j p_ij v_j                         (6)
    dv_j = sum_i p_ij g_i                                                                  (7)
    ds_ij = p_ij (g_i . v_j - delta_i)        delta_i = g_i . o_i                          (8)
    dq_i = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i                 (9)

What is new is the walk. A softmax does not ask for the order of its keys, so a tile of queries can
walk a list that exists nowhere in memory: the landmarks before the windows of the tile, then all
keys from its first window to its last, then the landmarks after them. Each key comes once:

    keys                G . . S . . . S . . . S . . . S . . . S     num_global = 1, stride = 4
    a tile's windows                      [- - - - - -]
    its list            G     S       S   . . S . . . S       S

The gradient of the keys walks the other way: a tile of keys is seen from the queries near by, and
from the global queries. But a landmark is seen from everywhere. So the landmarks form tiles of
their own, gathered as above, which walk all queries; every other key walks a window. Each key has
one owner, and each sum one order.

The kernels in this file have the thread pattern of `softmax.py`, and differ in their walk:

    _forward_kernel         (5), (6); a block owns a tile of queries and walks their keys
    _query_gradient_kernel  (8), (9), dq; the same walk. It also leaves delta for the next
    _key_gradient_kernel    (7)-(9), dk and dv; a block owns keys, near by or gathered

With K landmarks the cost is O(L (w + K)), forward and backward.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import int64

from .arrays import (
    Array,
    array_module,
    ceil_div,
    constant,
    contiguous,
    kernel_dtype,
    lengths_or_full,
    round_up,
)
from .cuda import Kernel, cuda
from .softmax import TURNS, WIDTH, backward_shape, forward_shape

FAR = 2**60  # beyond every position
NOWHERE = 2 * FAR  # beyond even that: no range reaches it


# ----------------------------------------------------------------------------------- who sees whom


@cuda.jit(device=True)
def _seen_from(j, landmark, causal, window):  # type: ignore[no-untyped-def]
    """The first and the last position that sees key j, equation (3)."""
    first = j if causal else (-FAR if landmark else j - window)
    return first, FAR if landmark else j + window


@cuda.jit(device=True)
def _asks_from(p, causal, global_queries):  # type: ignore[no-untyped-def]
    """The first and the last position from which the query at p asks, equation (3)."""
    is_global = 0 <= p < global_queries
    return -FAR if is_global else p, FAR if is_global and not causal else p


@cuda.jit(device=True)
def _meet(first, last, other_first, other_last):  # type: ignore[no-untyped-def]
    """Whether two ranges of positions meet, equation (4); `and` would be a branch."""
    return (first <= other_last) & (other_first <= last)


# -------------------------------------------------------------------------------------- the walks
#
# A walk goes over the landmarks before `low`, as many as `before` says, then from low to high - 1,
# then over landmarks from `high` on. Landmark u is key landmarks[u], and below[j] of them stand
# before key j. In a walk over queries the global ones are the landmarks: 0, 1, 2 and so on.


@cuda.jit(device=True)
def _clip(x, least, most):  # type: ignore[no-untyped-def]
    return max(least, min(x, most))


@cuda.jit(device=True)
def _sees_all(begin, end, global_queries):  # type: ignore[no-untyped-def]
    """Whether one of the queries at begin .. end - 1 sees every key."""
    return max(begin, 0) < min(end, global_queries)


@cuda.jit(device=True)
def _window_begin(begin, end, last_key, window, global_queries):  # type: ignore[no-untyped-def]
    """The first key that queries at begin .. end - 1 see together."""
    return _clip(0 if _sees_all(begin, end, global_queries) else begin - window, 0, last_key)


@cuda.jit(device=True)
def _window_end(begin, end, last_key, causal, window, global_queries):  # type: ignore[no-untyped-def]
    """The key behind the last."""
    reach = end + (0 if causal else window)
    if _sees_all(begin, end, global_queries) and not causal:
        reach = last_key
    return _clip(reach, 0, last_key)


@cuda.jit(device=True)
def _key_at(u, low, high, before, landmarks, below):  # type: ignore[no-untyped-def]
    """The key at place u of a walk."""
    if u < before:
        return landmarks[u]
    if low + u - before < high:
        return low + u - before
    return landmarks[u - before - (high - low) + below[high]]


@cuda.jit(device=True)
def _position_at(u, low, high, before, global_queries):  # type: ignore[no-untyped-def]
    """The position of the query at place u of a walk."""
    if u < before:
        return u
    if low + u - before < high:
        return low + u - before
    return u - before - (high - low) + _clip(high, 0, global_queries)


# ------------------------------------------------------------------------------------- the kernels


@cache
def _forward_kernel(head_dim: int, value_dim: int, real: Any) -> Kernel:
    rows, parts, step = forward_shape(head_dim, value_dim, real)
    own_keys, own_columns = step // parts, value_dim // parts
    at_once, width = min(WIDTH, own_keys), max(WIDTH, own_columns // TURNS)
    pitch = rows + 1  # of a transposed tile: neighbours in a column lie in different banks

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, query_lengths, key_lengths, causal, offset, window, landmarks, below,
        global_queries, scale, output, log_sum_exp,
    ):  # fmt: skip
        """Arrays (N, H, L, E) or (N, H, L, M), the last (N, H, Lq); writes the last two."""
        q = cuda.shared.array((head_dim, pitch), real)  # transposed
        k = cuda.shared.array((step, head_dim), real)
        v = cuda.shared.array((step, value_dim), real)
        s = cuda.shared.array((step, rows), real)  # scores, then their exponentials; transposed
        share = cuda.shared.array((parts, rows), real)  # of each part in a row's maximum, then sum
        place = cuda.shared.array(step, int64)  # j of the keys in k and v, or -1
        seen_first = cuda.shared.array(step, int64)  # and from where they are seen
        seen_last = cuda.shared.array(step, int64)
        n_own = cuda.local.array(own_columns, real)  # this thread's columns of sum_j p_ij v_j
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        begin, end = first_row + offset, min(first_row + rows, last_query) + offset
        low = _window_begin(begin, end, last_key, window, global_queries)
        high = max(low, _window_end(begin, end, last_key, causal, window, global_queries))
        before = below[low]
        walk = before + high - low
        if not causal:
            walk += below[last_key] - below[high]
        if first_row >= last_query:
            walk = 0
        asks_first, asks_last = _asks_from(i + offset, causal, global_queries)
        if i >= last_query:
            asks_first, asks_last = NOWHERE, -NOWHERE

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                q[e, r] = real(0)
                if first_row + r < last_query and e < E:
                    q[e, r] = scale * query[n, h, first_row + r, e]
        for t in range(own_columns):
            n_own[t] = real(0)
        highest, total = real(-1e30), real(0)

        for start in range(0, walk, step):
            if y == 0 and x < step:
                place[x] = -1
                seen_first[x], seen_last[x] = NOWHERE, -NOWHERE
                if start + x < walk:
                    j = _key_at(start + x, low, high, before, landmarks, below)
                    place[x] = j
                    landmark = below[j] < below[j + 1]
                    seen_first[x], seen_last[x] = _seen_from(j, landmark, causal, window)
            cuda.syncthreads()  # the last tile has been used, too
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    k[r, e] = real(0)
                    if place[r] >= 0 and e < E:
                        k[r, e] = key[n, h, place[r], e]
                for m in range(x, value_dim, rows):
                    v[r, m] = real(0)
                    if place[r] >= 0 and m < M:
                        v[r, m] = value[n, h, place[r], m]
            cuda.syncthreads()

            own_highest = highest
            for t in range(0, own_keys, at_once):
                r = y * own_keys + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += q[e, x] * k[r + c, e]
                for c in range(at_once):
                    seen = _meet(seen_first[r + c], seen_last[r + c], asks_first, asks_last)
                    score = sums[c] if seen else real(-2e30)
                    s[r + c, x] = score
                    own_highest = max(own_highest, score)
            share[y, x] = own_highest
            cuda.syncthreads()

            new_highest = highest
            for part in range(parts):
                new_highest = max(new_highest, share[part, x])
            shrink = math.exp(highest - new_highest)
            highest = new_highest
            total *= shrink
            for t in range(own_keys):
                p = math.exp(s[y * own_keys + t, x] - highest)
                s[y * own_keys + t, x] = p
                total += p
            cuda.syncthreads()

            for t in range(0, own_columns, width):
                m = y * own_columns + t
                for c in range(width):
                    sums[c] = shrink * n_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += s[r, x] * v[r, m + c]
                for c in range(width):
                    n_own[t + c] = sums[c]

        share[y, x] = total
        cuda.syncthreads()
        d = real(0)
        for part in range(parts):
            d += share[part, x]
        if i < output.shape[2]:
            inverse = real(0)
            if d > real(0):
                inverse = real(1) / d
            for t in range(own_columns):
                m = y * own_columns + t
                if m < M:
                    output[n, h, i, m] = n_own[t] * inverse  # (6)
            if y == 0:
                log_sum_exp[n, h, i] = (
                    highest + math.log(d) if inverse > real(0) else real(-math.inf)
                )  # (5)

    return forward


@cache
def _query_gradient_kernel(head_dim: int, value_dim: int, real: Any) -> Kernel:
    rows, parts, step = backward_shape(head_dim, value_dim, real)
    own_keys, own_columns = step // parts, head_dim // parts
    at_once, width = min(WIDTH, own_keys), max(WIDTH, own_columns // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def query_gradient(  # type: ignore[no-untyped-def]
        grad_output, query, key, value, output, log_sum_exp, query_lengths, key_lengths, causal,
        offset, window, landmarks, below, global_queries, scale, dq, delta,
    ):  # fmt: skip
        """Writes dq and delta (N, H, Lq)."""
        q = cuda.shared.array((head_dim, pitch), real)
        g = cuda.shared.array((value_dim, pitch), real)
        k = cuda.shared.array((step, head_dim), real)
        v = cuda.shared.array((step, value_dim), real)
        ds = cuda.shared.array((step, rows), real)
        place = cuda.shared.array(step, int64)
        seen_first = cuda.shared.array(step, int64)
        seen_last = cuda.shared.array(step, int64)
        dq_own = cuda.local.array(own_columns, real)
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        begin, end = first_row + offset, min(first_row + rows, last_query) + offset
        low = _window_begin(begin, end, last_key, window, global_queries)
        high = max(low, _window_end(begin, end, last_key, causal, window, global_queries))
        before = below[low]
        walk = before + high - low
        if not causal:
            walk += below[last_key] - below[high]
        if first_row >= last_query:
            walk = 0
        asks_first, asks_last = _asks_from(i + offset, causal, global_queries)
        if i >= last_query:
            asks_first, asks_last = NOWHERE, -NOWHERE

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                q[e, r] = real(0)
                if first_row + r < last_query and e < E:
                    q[e, r] = scale * query[n, h, first_row + r, e]
            for m in range(x, value_dim, rows):
                g[m, r] = real(0)
                if first_row + r < last_query and m < M:
                    g[m, r] = grad_output[n, h, first_row + r, m]
        for t in range(own_columns):
            dq_own[t] = real(0)
        cuda.syncthreads()

        near = min(i, query.shape[2] - 1)
        l_i = log_sum_exp[n, h, near]
        delta_i = real(0)
        for m in range(M):
            delta_i += g[m, x] * output[n, h, near, m]  # (8)

        for start in range(0, walk, step):
            if y == 0 and x < step:
                place[x] = -1
                seen_first[x], seen_last[x] = NOWHERE, -NOWHERE
                if start + x < walk:
                    j = _key_at(start + x, low, high, before, landmarks, below)
                    place[x] = j
                    landmark = below[j] < below[j + 1]
                    seen_first[x], seen_last[x] = _seen_from(j, landmark, causal, window)
            cuda.syncthreads()
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    k[r, e] = real(0)
                    if place[r] >= 0 and e < E:
                        k[r, e] = key[n, h, place[r], e]
                for m in range(x, value_dim, rows):
                    v[r, m] = real(0)
                    if place[r] >= 0 and m < M:
                        v[r, m] = value[n, h, place[r], m]
            cuda.syncthreads()

            for t in range(0, own_keys, at_once):
                r = y * own_keys + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += q[e, x] * k[r + c, e]
                for c in range(at_once):
                    seen = _meet(seen_first[r + c], seen_last[r + c], asks_first, asks_last)
                    ds[r + c, x] = math.exp(sums[c] - l_i) if seen else real(0)  # (6)
                    sums[c] = -delta_i
                for m in range(value_dim):
                    for c in range(at_once):
                        sums[c] += g[m, x] * v[r + c, m]
                for c in range(at_once):
                    ds[r + c, x] *= sums[c]  # (8)
            cuda.syncthreads()

            for t in range(0, own_columns, width):
                e = y * own_columns + t
                for c in range(width):
                    sums[c] = dq_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += ds[r, x] * k[r, e + c]  # (9)
                for c in range(width):
                    dq_own[t + c] = sums[c]

        if i < query.shape[2]:
            for t in range(own_columns):
                if y * own_columns + t < E:
                    dq[n, h, i, y * own_columns + t] = scale * dq_own[t]
            if y == 0:
                delta[n, h, i] = delta_i

    return query_gradient


@cache
def _key_gradient_kernel(head_dim: int, value_dim: int, real: Any) -> Kernel:
    rows, parts, step = backward_shape(head_dim, value_dim, real)
    own_queries, own_k, own_v = step // parts, head_dim // parts, value_dim // parts
    at_once, width = min(WIDTH, own_queries), max(WIDTH, min(own_k, own_v, 32) // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def key_gradient(  # type: ignore[no-untyped-def]
        grad_output, query, key, value, log_sum_exp, delta, query_lengths, key_lengths, causal,
        offset, window, landmarks, below, global_queries, scale, gathered, dk, dv,
    ):  # fmt: skip
        """Writes dk and dv; the first `gathered` blocks own landmarks, the others the rest."""
        k = cuda.shared.array((head_dim, pitch), real)
        v = cuda.shared.array((value_dim, pitch), real)
        q = cuda.shared.array((step, head_dim), real)
        g = cuda.shared.array((step, value_dim), real)
        p = cuda.shared.array((step, rows), real)
        ds = cuda.shared.array((step, rows), real)
        own = cuda.shared.array(rows, int64)  # j of the keys that the block owns, or -1
        place = cuda.shared.array(step, int64)  # i of the queries in q and g, or -1
        asks_first = cuda.shared.array(step, int64)
        asks_last = cuda.shared.array(step, int64)
        l_tile = cuda.shared.array(step, real)
        delta_tile = cuda.shared.array(step, real)
        dk_own = cuda.local.array(own_k, real)
        dv_own = cuda.local.array(own_v, real)
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        begin, end = offset, last_query + offset
        if cuda.blockIdx.x < gathered:
            u = cuda.blockIdx.x * rows
            first_key = landmarks[u]
            first, last = first_key if causal else -FAR, FAR
            j = landmarks[min(u + x, landmarks.shape[0] - 1)]
            mine = u + x < below[last_key]
            seen_first, seen_last = _seen_from(j, True, causal, window)
        else:
            first_key = (cuda.blockIdx.x - gathered) * rows
            first, last = first_key - (0 if causal else window), first_key + rows - 1 + window
            j = first_key + x
            mine = j < last_key and below[j] == below[min(j + 1, last_key)]
            seen_first, seen_last = _seen_from(j, False, causal, window)
        low = _clip(first, begin, end)
        high = _clip(last + 1, low, end)
        before = 0 if causal else _clip(low, 0, global_queries)
        walk = before + high - low + _clip(end, 0, global_queries) - _clip(high, 0, global_queries)
        if first_key >= last_key:
            walk = 0
        if not mine:
            j, seen_first, seen_last = -1, NOWHERE, -NOWHERE
        if y == 0:
            own[x] = j
        cuda.syncthreads()

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                k[e, r] = real(0)
                if own[r] >= 0 and e < E:
                    k[e, r] = key[n, h, own[r], e]
            for m in range(x, value_dim, rows):
                v[m, r] = real(0)
                if own[r] >= 0 and m < M:
                    v[m, r] = value[n, h, own[r], m]
        for t in range(own_k):
            dk_own[t] = real(0)
        for t in range(own_v):
            dv_own[t] = real(0)

        for start in range(0, walk, step):
            if y == 0 and x < step:
                position = _position_at(start + x, low, high, before, global_queries)
                i = position - offset
                place[x] = -1
                asks_first[x], asks_last[x] = NOWHERE, -NOWHERE
                l_tile[x], delta_tile[x] = real(0), real(0)
                if start + x < walk and 0 <= i < last_query:
                    place[x] = i
                    asks_first[x], asks_last[x] = _asks_from(position, causal, global_queries)
                    l_tile[x], delta_tile[x] = log_sum_exp[n, h, i], delta[n, h, i]
            cuda.syncthreads()
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    q[r, e] = real(0)
                    if place[r] >= 0 and e < E:
                        q[r, e] = scale * query[n, h, place[r], e]
                for m in range(x, value_dim, rows):
                    g[r, m] = real(0)
                    if place[r] >= 0 and m < M:
                        g[r, m] = grad_output[n, h, place[r], m]
            cuda.syncthreads()

            for t in range(0, own_queries, at_once):
                r = y * own_queries + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += k[e, x] * q[r + c, e]
                for c in range(at_once):
                    seen = _meet(seen_first, seen_last, asks_first[r + c], asks_last[r + c])
                    p[r + c, x] = math.exp(sums[c] - l_tile[r + c]) if seen else real(0)  # (6)
                    sums[c] = -delta_tile[r + c]
                for m in range(value_dim):
                    for c in range(at_once):
                        sums[c] += v[m, x] * g[r + c, m]
                for c in range(at_once):
                    ds[r + c, x] = p[r + c, x] * sums[c]  # (8)
            cuda.syncthreads()

            for t in range(0, own_v, width):
                m = y * own_v + t
                for c in range(width):
                    sums[c] = dv_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += p[r, x] * g[r, m + c]  # (7)
                for c in range(width):
                    dv_own[t + c] = sums[c]
            for t in range(0, own_k, width):
                e = y * own_k + t
                for c in range(width):
                    sums[c] = dk_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += ds[r, x] * q[r, e + c]  # (9)
                for c in range(width):
                    dk_own[t + c] = sums[c]

        if j >= 0:
            for t in range(own_k):
                if y * own_k + t < E:
                    dk[n, h, j, y * own_k + t] = dk_own[t]
            for t in range(own_v):
                if y * own_v + t < M:
                    dv[n, h, j, y * own_v + t] = dv_own[t]

    return key_gradient


# ------------------------------------------------------------------------------ the host functions


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    window: int,
    causal: bool = False,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Local attention, equations (1) to (6), at a cost that grows with Lq times the window.

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        window: w, how many keys a query sees beside the one at its own place: before it and, where
            not causal, as many after it.
        causal: whether query i sees only the keys j <= i + query_offset.
        stride: the last of every so many keys is seen from everywhere; None: no such keys.
        num_global: so many first keys are seen from everywhere.
        global_queries: the queries at so many first positions see every key.
        query_offset: the position of the first query among the keys.
        query_lengths: `(N,)` integers; output rows from there on are zero.
        key_lengths: `(N,)` integers; keys from there on are not seen.
        scale: the factor of the scores; None is 1 / sqrt(E).

    Returns:
        The output `(N, H, Lq, M)`, and l of equation (5) `(N, H, Lq)` for `backward`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: window or the number of global tokens is below 0, stride below 1, or E or M
            above 256.

    Source: Child et al. 2019, equation 4 and section 4.3; Beltagy et al. 2020, section 3.1.

    Example:
        >>> import numpy as np
        >>> query = key = np.zeros((1, 1, 4, 8))
        >>> output, _ = forward(query, key, np.array([[[[1.0], [3], [5], [7]]]]), window=1)
        >>> output.ravel().tolist()
        [2.0, 3.0, 5.0, 6.0]
    """
    xp, real = array_module(query), kernel_dtype(query)
    batch, heads, length, head_dim = query.shape
    value_dim = value.shape[3]
    pattern = _pattern(window, stride, num_global, global_queries, key)
    output = xp.empty((batch, heads, length, value_dim), query.dtype)
    log_sum_exp = xp.empty((batch, heads, length), query.dtype)
    if not output.size:
        return output, log_sum_exp
    dims = round_up(head_dim), round_up(value_dim, "value dim")
    shape = forward_shape(*dims, real)
    number = query.dtype.type
    _forward_kernel(*dims, real)[(ceil_div(length, shape.rows), heads, batch), shape.threads](
        *contiguous(query, key, value),
        lengths_or_full(query_lengths, batch, length, query),
        lengths_or_full(key_lengths, batch, key.shape[2], query),
        bool(causal),
        int(query_offset),
        *pattern,
        number(head_dim**-0.5 if scale is None else scale),
        output,
        log_sum_exp,
    )
    return output, log_sum_exp


def backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    log_sum_exp: Array,
    *,
    window: int,
    causal: bool = False,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """The gradient of local attention, equations (7) to (9).

    Args:
        grad_output: `(N, H, Lq, M)`, dLoss/doutput.
        query: this, and all the rest, as given to `forward`.
        key: as there.
        value: as there.
        output: what `forward` returned.
        log_sum_exp: what `forward` returned.
        window: as there.
        causal: as there.
        stride: as there.
        num_global: as there.
        global_queries: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.

    Returns:
        dq `(N, H, Lq, E)`, dk `(N, H, Lk, E)` and dv `(N, H, Lk, M)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: as `forward`.
    """
    xp, real = array_module(query), kernel_dtype(query)
    batch, heads, length, head_dim = query.shape
    key_length, value_dim = value.shape[2:]
    pattern = _pattern(window, stride, num_global, global_queries, key)
    dq, dk, dv = (xp.zeros(array.shape, query.dtype) for array in (query, key, value))
    if not (dq.size and dk.size and dv.size):
        return dq, dk, dv
    delta = xp.empty_like(log_sum_exp)
    dims = round_up(head_dim), round_up(value_dim, "value dim")
    shape = backward_shape(*dims, real)
    inputs = contiguous(grad_output, query, key, value)
    masks = (
        lengths_or_full(query_lengths, batch, length, query),
        lengths_or_full(key_lengths, batch, key_length, query),
        bool(causal),
        int(query_offset),
        *pattern,
        query.dtype.type(head_dim**-0.5 if scale is None else scale),
    )
    gathered = ceil_div(pattern.landmarks.size, shape.rows)
    _query_gradient_kernel(*dims, real)[
        (ceil_div(length, shape.rows), heads, batch), shape.threads
    ](*inputs, *contiguous(output, log_sum_exp), *masks, dq, delta)
    _key_gradient_kernel(*dims, real)[
        (gathered + ceil_div(key_length, shape.rows), heads, batch), shape.threads
    ](*inputs, *contiguous(log_sum_exp), delta, *masks, gathered, dk, dv)
    return dq, dk, dv


class _Pattern(NamedTuple):
    """What a kernel takes to know who sees whom."""

    window: int
    landmarks: Array  # (K,), the keys of equation (2)
    below: Array  # (Lk + 1,), how many of them stand before each key
    global_queries: int


def _pattern(
    window: int, stride: int | None, num_global: int, global_queries: int, key: Array
) -> _Pattern:
    """Returns the pattern, having checked its numbers, with the landmarks of equation (2)."""
    counts = {"window": window, "num_global": num_global, "global_queries": global_queries}
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} counts tokens and must be at least 0, got {count}")
    if stride is not None and stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}; None is no stride")
    j = np.arange(key.shape[2])
    landmark = j < num_global
    if stride is not None:
        landmark |= j % stride == stride - 1
    below = np.zeros(len(j) + 1, np.int64)
    np.cumsum(landmark, out=below[1:])
    landmarks, below = (constant(numbers, key) for numbers in (j[landmark], below))
    return _Pattern(min(window, FAR), landmarks, below, global_queries)

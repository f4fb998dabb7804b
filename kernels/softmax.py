"""Fused softmax attention: the matrix of weights never exists in memory (S3).

Query i sees the keys j with w_ij = 1; lengths and causality decide. With s_ij = scale q_i . k_j

    l_i = log sum_j w_ij exp(s_ij)                                                         (1)
    p_ij = w_ij exp(s_ij - l_i)               o_i = sum_j p_ij v_j                         (2)

As three array operations this moves the L x L matrix through memory half a dozen times; inputs
and output are L x E. But a sum of exponentials can be extended as new terms come (Milakov and
Gimelshein 2018; Rabe and Staats 2021). Keep the largest score so far, h, the sum of exponentials
relative to it, d, and the values mixed by them, n. A tile T of new keys gives

    h' = max(h, max_{j in T} s_ij)            c = exp(h - h')                              (3)
    d' = c d + sum_{j in T} exp(s_ij - h')    n' = c n + sum_{j in T} exp(s_ij - h') v_j   (4)

and after the last tile

    o_i = n / d                               l_i = h + log d                              (5)

No exponent is ever positive, so nothing overflows. A query that sees nothing has d = 0: it gives
o_i = 0 and l_i = -inf.

Backward, given g_i = dLoss/do_i. The weights are computed again from l_i, by (2), when they are
needed: that is cheaper than reading them from memory, and l_i is all that the forward has to keep.

    dv_j = sum_i p_ij g_i                                                                  (6)
    ds_ij = p_ij (g_i . v_j - sum_t p_it g_i . v_t) = p_ij (g_i . v_j - delta_i)           (7)
    delta_i = g_i . o_i                                                                    (8)
    dq_i = scale sum_j ds_ij k_j              dk_j = scale sum_i ds_ij q_i                 (9)

(8) holds because sum_t p_it v_t is o_i: a sum over all keys has become one over M columns.

**Relative scores** (Shaw et al. 2018). A number b_ir for each query and distance r from -k to k is
added to the product; what is farther counts as being at the end. With query i at i + offset,

    s_ij = scale (q_i . k_j + b_i,r(i,j))     r(i, j) = clip(j - i - offset, -k, k)           (10)
    db_ir = scale sum_{j: r(i,j) = r} ds_ij                                                   (11)

Shaw's b_ir = q_i . e_r is a product of matrices, made before. In (11) a distance between the ends
has one key: its gradient is written as it comes. Only both ends are sums.

**Dropout.** Each weight is multiplied by m_ij, which is 0 with probability d and else 1 / (1 - d),
by random bits that depend on nothing but a seed and on n, h, i and j (`dropout`): the same in all
kernels, and stored by none.

    o_i = sum_j m_ij p_ij v_j                 dv_j = sum_i m_ij p_ij g_i                      (12)
    ds_ij = p_ij (m_ij g_i . v_j - delta_i)                                                   (13)

The sum d of (4) is that of all weights, and (8) still holds: sum_t p_it m_it v_t is o_i.

The kernels in this file:

    _forward_kernel         (1)-(5); a block owns a tile of queries and walks the keys
    _query_gradient_kernel  (7)-(9), dq; the same walk. It also leaves delta for the next
    _key_gradient_kernel    (6), (7), (9), dk and dv; a block owns keys and walks the queries

Each is also made with relative scores (`biased`) or dropout (`dropping`), or both. These are
constants of the compiler: without them, the kernel is what it would be if they did not exist.

One thread pattern serves all three. threadIdx.x = x is a row of the tile that the block owns, and
threadIdx.y = y a part of the work on that row: first the scores with some of the rows that are
walked past, then some of the columns of the result. What is owned lies transposed, so that
neighbouring threads read neighbouring numbers; what is walked past is read by all threads of a warp
at the same address, a broadcast. A thread makes several sums at once, four or more, because one sum
by itself spends its time on reading: with four, five reads feed four multiplications, where two fed
one. Every sum has one owner and one order: results repeat bit by bit, without atomics.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from .arrays import (
    Array,
    array_module,
    ceil_div,
    contiguous,
    kernel_dtype,
    lengths_or_full,
    round_up,
)
from .cuda import Kernel, cuda
from .dropout import arguments as dropout_arguments
from .dropout import random_word

TILE = 64  # queries of a block, where the shared memory allows
WIDTH = 4  # sums that a thread makes at once, at least
TURNS = 4  # over a thread's columns, at most: compilers unroll that much, and use registers


class Shape(NamedTuple):
    """How a block works."""

    rows: int  # threadIdx.x: rows that it owns
    parts: int  # threadIdx.y
    step: int  # rows of the other sequence that it takes in at a time

    @property
    def threads(self) -> tuple[int, int]:
        """The block's shape."""
        return self.rows, self.parts


def forward_shape(head_dim: int, value_dim: int, real: Any) -> Shape:
    """How a block of the forward kernel works, for rounded dims."""
    size = real.bitwidth // 8
    rows = min(TILE, 16384 // (max(head_dim, value_dim) * size))
    step = min(rows // 2, 8192 // (rows * size))
    return Shape(rows, min(256 // rows, 8, step, value_dim // WIDTH), step)


def backward_shape(head_dim: int, value_dim: int, real: Any) -> Shape:
    """How a block of the two gradient kernels works."""
    size = real.bitwidth // 8
    rows = min(TILE // 2, 8192 // (max(head_dim, value_dim) * size))
    step = min(rows, 4096 // (rows * size))
    return Shape(rows, min(8, step, head_dim // WIDTH, value_dim // WIDTH), step)


@cuda.jit(device=True)
def _column(distance, furthest):  # type: ignore[no-untyped-def]
    """Where the relative scores of a query have that of a distance (10)."""
    return min(max(distance, -furthest), furthest) + furthest


@cache
def _forward_kernel(
    head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool
) -> Kernel:
    rows, parts, step = forward_shape(head_dim, value_dim, real)
    own_keys, own_columns = step // parts, value_dim // parts
    at_once, width = min(WIDTH, own_keys), max(WIDTH, own_columns // TURNS)
    pitch = rows + 1  # of a transposed tile: neighbours in a column lie in different banks

    @cuda.jit(fastmath=True)
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, relative_scores, query_lengths, key_lengths, causal, offset, scale, seed,
        dropped, survivor, output, log_sum_exp,
    ):  # fmt: skip
        """Arrays (N, H, L, E) or (N, H, L, M), relative_scores (N, H, Lq, 2k + 1).

        Of random words below `dropped` a weight is dropped, else multiplied by `survivor`. Writes
        the last two, log_sum_exp (N, H, Lq).
        """
        q = cuda.shared.array((head_dim, pitch), real)  # transposed
        k = cuda.shared.array((step, head_dim), real)
        v = cuda.shared.array((step, value_dim), real)
        s = cuda.shared.array((step, rows), real)  # scores, then their exponentials; transposed
        share = cuda.shared.array((parts, rows), real)  # of each part in a row's maximum, then sum
        n_own = cuda.local.array(own_columns, real)  # n of (4), this thread's columns
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        walk = min(last_key, first_row + rows + offset) if causal else last_key
        if first_row >= last_query:
            walk = 0
        seen = min(last_key, i + offset + 1) if causal else last_key
        if i >= last_query:
            seen = 0
        near, furthest = min(i, query.shape[2] - 1), relative_scores.shape[3] // 2

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                q[e, r] = real(0)
                if first_row + r < last_query and e < E:
                    q[e, r] = scale * query[n, h, first_row + r, e]
        for t in range(own_columns):
            n_own[t] = real(0)
        highest, total = real(-1e30), real(0)

        for start in range(0, walk, step):
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    k[r, e] = real(0)
                    if start + r < last_key and e < E:
                        k[r, e] = key[n, h, start + r, e]
                for m in range(x, value_dim, rows):
                    v[r, m] = real(0)
                    if start + r < last_key and m < M:
                        v[r, m] = value[n, h, start + r, m]
            cuda.syncthreads()

            own_highest = highest
            for t in range(0, own_keys, at_once):
                j = y * own_keys + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += q[e, x] * k[j + c, e]
                for c in range(at_once):
                    if biased:
                        column = _column(start + j + c - i - offset, furthest)
                        sums[c] += scale * relative_scores[n, h, near, column]  # (10)
                    score = sums[c] if start + j + c < seen else real(-2e30)
                    s[j + c, x] = score
                    own_highest = max(own_highest, score)
            share[y, x] = own_highest
            cuda.syncthreads()

            new_highest = highest
            for part in range(parts):
                new_highest = max(new_highest, share[part, x])
            shrink = math.exp(highest - new_highest)  # (3)
            highest = new_highest
            total *= shrink
            for t in range(own_keys):
                j = y * own_keys + t
                p = math.exp(s[j, x] - highest)
                total += p
                kept = real(1)
                if dropping:
                    word = random_word(seed, n, h, i, start + j)
                    kept = survivor if word >= dropped else real(0)
                s[j, x] = kept * p  # (12)
            cuda.syncthreads()

            for t in range(0, own_columns, width):
                m = y * own_columns + t
                for c in range(width):
                    sums[c] = shrink * n_own[t + c]
                for j in range(step):
                    for c in range(width):
                        sums[c] += s[j, x] * v[j, m + c]  # (4)
                for c in range(width):
                    n_own[t + c] = sums[c]
            cuda.syncthreads()

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
                    output[n, h, i, m] = n_own[t] * inverse  # (5)
            if y == 0:
                log_sum_exp[n, h, i] = (
                    highest + math.log(d) if inverse > real(0) else real(-math.inf)
                )

    return forward


@cache
def _query_gradient_kernel(
    head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool
) -> Kernel:
    rows, parts, step = backward_shape(head_dim, value_dim, real)
    own_keys, own_columns = step // parts, head_dim // parts
    at_once, width = min(WIDTH, own_keys), max(WIDTH, own_columns // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def query_gradient(  # type: ignore[no-untyped-def]
        grad_output, query, key, value, relative_scores, output, log_sum_exp, query_lengths,
        key_lengths, causal, offset, scale, seed, dropped, survivor, dq, delta, drelative,
    ):  # fmt: skip
        """Writes dq, delta (N, H, Lq), and drelative where it is not zero."""
        q = cuda.shared.array((head_dim, pitch), real)
        g = cuda.shared.array((value_dim, pitch), real)
        k = cuda.shared.array((step, head_dim), real)
        v = cuda.shared.array((step, value_dim), real)
        ds = cuda.shared.array((step, rows), real)
        dq_own = cuda.local.array(own_columns, real)
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        i = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        walk = min(last_key, first_row + rows + offset) if causal else last_key
        if first_row >= last_query:
            walk = 0
        seen = min(last_key, i + offset + 1) if causal else last_key
        if i >= last_query:
            seen = 0

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

        near, furthest = min(i, query.shape[2] - 1), relative_scores.shape[3] // 2
        before, after = real(0), real(0)  # (11) at both ends, of the keys that this thread meets
        l_i = log_sum_exp[n, h, near]
        delta_i = real(0)
        for m in range(M):
            delta_i += g[m, x] * output[n, h, near, m]  # (8)

        for start in range(0, walk, step):
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    k[r, e] = real(0)
                    if start + r < last_key and e < E:
                        k[r, e] = key[n, h, start + r, e]
                for m in range(x, value_dim, rows):
                    v[r, m] = real(0)
                    if start + r < last_key and m < M:
                        v[r, m] = value[n, h, start + r, m]
            cuda.syncthreads()

            for t in range(0, own_keys, at_once):
                j = y * own_keys + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += q[e, x] * k[j + c, e]
                for c in range(at_once):
                    if biased:
                        column = _column(start + j + c - i - offset, furthest)
                        sums[c] += scale * relative_scores[n, h, near, column]  # (10)
                    ds[j + c, x] = (
                        math.exp(sums[c] - l_i) if start + j + c < seen else real(0)
                    )  # (2)
                    sums[c] = real(0)
                for m in range(value_dim):
                    for c in range(at_once):
                        sums[c] += g[m, x] * v[j + c, m]
                for c in range(at_once):
                    kept = real(1)
                    if dropping:
                        word = random_word(seed, n, h, i, start + j + c)
                        kept = survivor if word >= dropped else real(0)
                    ds[j + c, x] *= kept * sums[c] - delta_i  # (7), (13)
                    if biased and i < query.shape[2]:
                        distance = start + j + c - i - offset
                        if distance <= -furthest or furthest == 0:
                            before += ds[j + c, x]
                        elif distance >= furthest:
                            after += ds[j + c, x]
                        else:
                            drelative[n, h, i, distance + furthest] = scale * ds[j + c, x]  # (11)
            cuda.syncthreads()

            for t in range(0, own_columns, width):
                e = y * own_columns + t
                for c in range(width):
                    sums[c] = dq_own[t + c]
                for j in range(step):
                    for c in range(width):
                        sums[c] += ds[j, x] * k[j, e + c]  # (9)
                for c in range(width):
                    dq_own[t + c] = sums[c]
            cuda.syncthreads()

        if i < query.shape[2]:
            for t in range(own_columns):
                if y * own_columns + t < E:
                    dq[n, h, i, y * own_columns + t] = scale * dq_own[t]
            if y == 0:
                delta[n, h, i] = delta_i

        if biased:
            for end in range(2):  # `before` last: with k = 0, both ends are one, and it has all
                ds[y, x] = before if end == 1 else after
                cuda.syncthreads()
                total = real(0)
                for part in range(parts):
                    total += ds[part, x]
                if y == 0 and i < query.shape[2]:
                    drelative[n, h, i, (1 - end) * 2 * furthest] = scale * total  # (11)
                cuda.syncthreads()

    return query_gradient


@cache
def _key_gradient_kernel(
    head_dim: int, value_dim: int, real: Any, biased: bool, dropping: bool
) -> Kernel:
    rows, parts, step = backward_shape(head_dim, value_dim, real)
    own_queries, own_k, own_v = step // parts, head_dim // parts, value_dim // parts
    at_once, width = min(WIDTH, own_queries), max(WIDTH, min(own_k, own_v, 32) // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def key_gradient(  # type: ignore[no-untyped-def]
        grad_output, query, key, value, relative_scores, log_sum_exp, delta, query_lengths,
        key_lengths, causal, offset, scale, seed, dropped, survivor, dk, dv,
    ):  # fmt: skip
        """Writes dk and dv."""
        k = cuda.shared.array((head_dim, pitch), real)
        v = cuda.shared.array((value_dim, pitch), real)
        q = cuda.shared.array((step, head_dim), real)
        g = cuda.shared.array((step, value_dim), real)
        p = cuda.shared.array((step, rows), real)
        ds = cuda.shared.array((step, rows), real)
        dk_own = cuda.local.array(own_k, real)
        dv_own = cuda.local.array(own_v, real)
        sums = cuda.local.array(width, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first_row = cuda.blockIdx.x * rows
        j = first_row + x
        E, M = query.shape[3], value.shape[3]
        last_query, last_key = query_lengths[n], key_lengths[n]
        walk = max(0, first_row - offset) if causal else 0
        if first_row >= last_key:
            walk = last_query
        seen_from = j - offset if causal else 0
        if j >= last_key:
            seen_from = last_query
        furthest = relative_scores.shape[3] // 2

        for r in range(y, rows, parts):
            for e in range(x, head_dim, rows):
                k[e, r] = real(0)
                if first_row + r < last_key and e < E:
                    k[e, r] = key[n, h, first_row + r, e]
            for m in range(x, value_dim, rows):
                v[m, r] = real(0)
                if first_row + r < last_key and m < M:
                    v[m, r] = value[n, h, first_row + r, m]
        for t in range(own_k):
            dk_own[t] = real(0)
        for t in range(own_v):
            dv_own[t] = real(0)

        for start in range(walk, last_query, step):
            for r in range(y, step, parts):
                for e in range(x, head_dim, rows):
                    q[r, e] = real(0)
                    if start + r < last_query and e < E:
                        q[r, e] = scale * query[n, h, start + r, e]
                for m in range(x, value_dim, rows):
                    g[r, m] = real(0)
                    if start + r < last_query and m < M:
                        g[r, m] = grad_output[n, h, start + r, m]
            cuda.syncthreads()

            for t in range(0, own_queries, at_once):
                r = y * own_queries + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += k[e, x] * q[r + c, e]
                for c in range(at_once):
                    i = start + r + c
                    if biased:
                        near = min(i, query.shape[2] - 1)
                        column = _column(j - i - offset, furthest)
                        sums[c] += scale * relative_scores[n, h, near, column]  # (10)
                    p[r + c, x] = real(0)
                    if seen_from <= i and i < last_query:
                        p[r + c, x] = math.exp(sums[c] - log_sum_exp[n, h, i])  # (2)
                    sums[c] = real(0)
                for m in range(value_dim):
                    for c in range(at_once):
                        sums[c] += v[m, x] * g[r + c, m]
                for c in range(at_once):
                    i = min(start + r + c, last_query - 1)
                    kept = real(1)
                    if dropping:
                        word = random_word(seed, n, h, i, j)
                        kept = survivor if word >= dropped else real(0)
                    ds[r + c, x] = p[r + c, x] * (kept * sums[c] - delta[n, h, i])  # (7), (13)
                    p[r + c, x] *= kept  # (12)
            cuda.syncthreads()

            for t in range(0, own_v, width):
                m = y * own_v + t
                for c in range(width):
                    sums[c] = dv_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += p[r, x] * g[r, m + c]  # (6)
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
            cuda.syncthreads()

        if j < key.shape[2]:
            for t in range(own_k):
                if y * own_k + t < E:
                    dk[n, h, j, y * own_k + t] = dk_own[t]
            for t in range(own_v):
                if y * own_v + t < M:
                    dv[n, h, j, y * own_v + t] = dv_own[t]

    return key_gradient


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    scale: float | None = None,
    relative_scores: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Softmax attention without its matrix of weights: (1) to (5), (10), (12).

    Args:
        query: `(N, H, Lq, E)`, float32 or float64.
        key: `(N, H, Lk, E)`.
        value: `(N, H, Lk, M)`.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: `(N,)` integers; output rows from there on are zero.
        key_lengths: `(N,)` integers; keys from there on are not seen.
        scale: the factor of the scores; None is 1 / sqrt(E).
        relative_scores: `(N, H, Lq, 2k + 1)`: column r + k is added to the product of query i with
            the key at distance r = clip(j - i - query_offset, -k, k). None: nothing is.
        dropout: the probability, in [0, 1), that a weight is dropped.
        seed: a whole number in [0, 2^63): the same one drops the same weights.

    Returns:
        The output `(N, H, Lq, M)`, and l of equation (1) `(N, H, Lq)` for `backward`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256, or dropout or seed are out of their range.

    Source: Vaswani et al. 2017, equation 1; Shaw et al. 2018, equation 2; S3.

    Example:
        >>> import numpy as np
        >>> query, key = np.zeros((1, 1, 1, 8)), np.zeros((1, 1, 2, 8))
        >>> output, _ = forward(query, key, np.array([[[[1.0], [3.0]]]]))
        >>> output.item()
        2.0
    """
    xp, real = array_module(query), kernel_dtype(query)
    batch, heads, length, head_dim = query.shape
    value_dim = value.shape[3]
    output = xp.empty((batch, heads, length, value_dim), query.dtype)
    log_sum_exp = xp.empty((batch, heads, length), query.dtype)
    options = _arguments(
        query, key, causal, query_offset, query_lengths, key_lengths, scale, dropout, seed
    )
    if not output.size:
        return output, log_sum_exp
    dims = round_up(head_dim), round_up(value_dim, "value dim")
    shape = forward_shape(*dims, real)
    kernel = _forward_kernel(*dims, real, relative_scores is not None, dropout > 0)
    kernel[(ceil_div(length, shape.rows), heads, batch), shape.threads](
        *contiguous(query, key, value, _array_of(relative_scores, query)),
        *options,
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
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    scale: float | None = None,
    relative_scores: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Array, ...]:
    """The gradient of softmax attention: (6) to (9), (11) to (13).

    Args:
        grad_output: `(N, H, Lq, M)`, dLoss/doutput.
        query: this, and all the rest, as given to `forward`.
        key: as there.
        value: as there.
        output: what `forward` returned.
        log_sum_exp: what `forward` returned.
        causal: as there.
        query_offset: as there.
        query_lengths: as there.
        key_lengths: as there.
        scale: as there.
        relative_scores: as there.
        dropout: as there.
        seed: as there.

    Returns:
        dq `(N, H, Lq, E)`, dk `(N, H, Lk, E)`, dv `(N, H, Lk, M)`; where relative scores were given
        their gradient, too.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E or M is above 256, or dropout or seed are out of their range.

    Source: Dao et al. 2022, appendix B.
    """
    xp, real = array_module(query), kernel_dtype(query)
    batch, heads, length, head_dim = query.shape
    key_length, value_dim = value.shape[2:]
    biased = relative_scores is not None
    relative_scores = _array_of(relative_scores, query)
    dq, dk, dv, drelative = (
        xp.zeros(array.shape, query.dtype) for array in (query, key, value, relative_scores)
    )
    gradients = (dq, dk, dv, drelative) if biased else (dq, dk, dv)
    if not (dq.size and dk.size and dv.size):
        return gradients
    delta = xp.empty_like(log_sum_exp)
    dims = round_up(head_dim), round_up(value_dim, "value dim")
    shape, kind = backward_shape(*dims, real), (real, biased, dropout > 0)
    inputs = contiguous(grad_output, query, key, value, relative_scores)
    options = _arguments(
        query, key, causal, query_offset, query_lengths, key_lengths, scale, dropout, seed
    )
    _query_gradient_kernel(*dims, *kind)[
        (ceil_div(length, shape.rows), heads, batch), shape.threads
    ](*inputs, *contiguous(output, log_sum_exp), *options, dq, delta, drelative)
    _key_gradient_kernel(*dims, *kind)[
        (ceil_div(key_length, shape.rows), heads, batch), shape.threads
    ](*inputs, *contiguous(log_sum_exp), delta, *options, dk, dv)
    return gradients


def _array_of(relative_scores: Array | None, query: Array) -> Array:
    """The relative scores; without any, an array that no kernel reads."""
    if relative_scores is None:
        return array_module(query).empty((0, 0, 0, 1), query.dtype)
    return relative_scores


def _arguments(
    query: Array,
    key: Array,
    causal: bool,
    query_offset: int,
    query_lengths: Array | None,
    key_lengths: Array | None,
    scale: float | None,
    dropout: float,
    seed: int,
) -> tuple[Any, ...]:
    """What every kernel takes after its inputs, in the types that it takes."""
    number = query.dtype.type
    return (
        lengths_or_full(query_lengths, query.shape[0], query.shape[2], query),
        lengths_or_full(key_lengths, query.shape[0], key.shape[2], query),
        bool(causal),
        int(query_offset),
        number(query.shape[3] ** -0.5 if scale is None else scale),
        *dropout_arguments(dropout, seed, number),
    )

"""Few queries to many keys, as when a token is generated: the keys are shared out among blocks.

A block of `fast` owns a tile of queries. One query fills a row of it, one block walks all keys, and
a GPU's other multiprocessors have nothing to do. Here a block has SPAN keys and all of the queries:

    attend_span    (1), and n, d and h of (4) for the keys of its span alone
    merge_spans    (3)-(5): spans are put together as tiles are

Keys and values are read as they lie in memory, each once, by LANES threads side by side: a row of
threads has OWN keys. What its threads have of a score is added up in shared memory, where thread
after thread then has a score; what the rows have of n likewise. Maximum and sum of the weights are
told by one row of threads. A score's sum has another order than in `fast`, and h other bits: these
kernels are for what is never differentiated.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..arrays import Array, array_module, ceil_div, round_up
from ..cuda import Kernel, cuda
from .plain import column, kind

QUERIES = 3  # at most: so many of head dim 256 in float64 find room in shared memory
SPAN = 256  # keys of a block, and its threads
LANES = 16  # threadIdx.x: threads that share a key
ROWS = SPAN // LANES  # threadIdx.y: as many as LANES
OWN = SPAN // ROWS  # keys of a row of threads


@cache
def _attend_span(queries: int, head_dim: int, value_dim: int, real: Any, biased: bool) -> Kernel:
    across = value_dim // LANES  # columns of a value that a thread owns
    pitch = SPAN + 1  # neighbours in a column lie in different banks
    n_products, n_sums = queries * OWN, queries * across

    @cuda.jit
    def attend_span(  # type: ignore[no-untyped-def]
        query, key, value, relative_scores, query_lengths, key_lengths, causal, offset, scale,
        mixed, highest, total,
    ):  # fmt: skip
        """Writes n, h and d of (4) for each span: (N, H, spans, Lq, M), and (N, H, spans, Lq)."""
        q = cuda.shared.array((queries, head_dim), real)
        part = cuda.shared.array((LANES, pitch), real)  # what threads have of a score, rows of n
        s = cuda.shared.array((queries, SPAN), real)  # scores, then their exponentials
        share = cuda.shared.array(LANES, real)  # of a part of the keys in maximum, then sum
        top = cuda.shared.array(LANES, real)  # the maximum, to each x
        products = cuda.local.array(n_products, real)
        n_own = cuda.local.array(n_sums, real)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        span, h, n = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        r_own, first = y * LANES + x, span * SPAN
        length, E, M = query.shape[2], query.shape[3], value.shape[3]
        last_query = query_lengths[n]
        end = min(SPAN, key_lengths[n] - first)

        for u in range(r_own, queries * head_dim, SPAN):
            i, e = u // head_dim, u % head_dim
            q[i, e] = real(0)
            if i < last_query and e < E:
                q[i, e] = scale * query[n, h, i, e]
        for t in range(n_products):
            products[t] = real(0)
        cuda.syncthreads()

        for t in range(OWN if end > 0 else 0):
            r = first + min(y * OWN + t, end - 1)
            for e_first in range(0, head_dim, LANES):
                e = e_first + x
                k = real(0)
                if e < E:
                    k = key[n, h, r, e]
                for i in range(queries):
                    products[i * OWN + t] += q[i, e] * k

        furthest, j = relative_scores.shape[3] // 2, first + r_own
        for i in range(queries):
            for t in range(OWN):
                part[x, y * OWN + t] = products[i * OWN + t]
            cuda.syncthreads()
            score = real(0)
            for lane in range(LANES):
                score += part[lane, r_own]
            if biased and i < length:
                score += scale * relative_scores[n, h, i, column(j - i - offset, furthest)]  # (10)
            sees = r_own < end and i < last_query and (j <= i + offset or not causal)
            s[i, r_own] = score if sees else real(-2e30)
            cuda.syncthreads()

        for i in range(queries):
            h_i, d_i = real(-1e30), real(0)
            if y == 0:
                for row in range(ROWS):
                    h_i = max(h_i, s[i, row * LANES + x])
                share[x] = h_i
            cuda.syncthreads()
            if y == 0:
                for lane in range(LANES):
                    h_i = max(h_i, share[lane])
                top[x] = h_i
            cuda.syncthreads()
            s[i, r_own] = math.exp(s[i, r_own] - top[x])
            cuda.syncthreads()
            if y == 0:
                for row in range(ROWS):
                    d_i += s[i, row * LANES + x]  # (4)
                share[x] = d_i
            cuda.syncthreads()
            if y == 0:
                d_i = real(0)
                for lane in range(LANES):
                    d_i += share[lane]
                if x == 0 and i < length:
                    highest[n, h, span, i], total[n, h, span, i] = h_i, d_i
            cuda.syncthreads()

        for t in range(n_sums):
            n_own[t] = real(0)
        for t in range(OWN):
            r = y * OWN + t
            for c in range(across):
                m = c * LANES + x
                v = real(0)
                if m < M and end > 0:
                    v = value[n, h, first + min(r, end - 1), m]
                for i in range(queries):
                    u, p = i * across + c, s[i, r]
                    n_own[u] = cuda.selp(p != real(0), n_own[u] + p * v, n_own[u])  # (4)
        for i in range(queries):
            for c in range(across):
                part[y, c * LANES + x] = n_own[i * across + c]
            cuda.syncthreads()
            for c in range(y, across, ROWS):
                m, n_i = c * LANES + x, real(0)
                for row in range(ROWS):
                    n_i += part[row, m]
                if m < M and i < length:
                    mixed[n, h, span, i, m] = n_i
            cuda.syncthreads()

    return attend_span


@cache
def _merge_spans(real: Any) -> Kernel:
    @cuda.jit
    def merge_spans(mixed, highest, total, output, out_highest, inverse):  # type: ignore[no-untyped-def]
        """Writes o, h and 1 / d of (5); a block has a query, a thread a column."""
        m, i, h, n = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        spans, M = highest.shape[2], output.shape[3]
        h_i = real(-1e30)
        for span in range(spans):
            h_i = max(h_i, highest[n, h, span, i])
        d_i, n_i = real(0), real(0)
        for span in range(spans):
            shrink = math.exp(highest[n, h, span, i] - h_i)  # (3)
            d_i += shrink * total[n, h, span, i]  # (4)
            if m < M and shrink != real(0):
                n_i += shrink * mixed[n, h, span, i, m]
        inverse_i = real(0)
        if d_i > real(0):
            inverse_i = real(1) / d_i
        if m < M:
            output[n, h, i, m] = n_i * inverse_i  # (5)
        if m == 0:
            out_highest[n, h, i], inverse[n, h, i] = h_i, inverse_i

    return merge_spans


def serves(query: Array, pattern: Any = None, dropout: float = 0.0, **others: Any) -> bool:
    """Whether these kernels do what `softmax.forward` is asked."""
    return query.shape[2] <= QUERIES and pattern is None and not dropout


def forward(
    inputs: tuple[Array, ...], options: Any, pattern: Any, results: tuple[Array, ...]
) -> None:
    """Launch (1) to (5), as `fast.forward`.

    Raises:
        ValueError: there are more queries, a pattern, or dropout.
    """
    real, biased, dropping = kind(inputs, options)
    if not serves(inputs[0], pattern, dropping):
        raise ValueError(
            f"softmax: version 'few' takes up to {QUERIES} queries, no pattern and no dropout; got "
            f"{inputs[0].shape[2]} queries, {'no' if pattern is None else 'a'} pattern and "
            f"{'some' if dropping else 'no'} dropout: take version 'fast'"
        )
    query, key, value, _ = inputs
    batch, heads, length, _ = query.shape
    spans = max(1, ceil_div(key.shape[2], SPAN))
    head_dim = max(LANES, round_up(query.shape[3]))
    value_dim = max(LANES, round_up(value.shape[3], "value dim"))
    xp, each = array_module(query), (batch, heads, spans, length)
    found = xp.empty((*each, value.shape[3]), query.dtype), *xp.empty((2, *each), query.dtype)
    queries = 1 if length == 1 else QUERIES
    attend = _attend_span(queries, head_dim, value_dim, real, biased)
    attend[(spans, heads, batch), (LANES, ROWS)](*inputs, *options[:5], *found)
    _merge_spans(real)[(length, heads, batch), value_dim](*found, *results)

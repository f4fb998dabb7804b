"""The kernels that a learner writes first: a thread owns a node, in one head, and walks its edges.

Node i's edges are those from offsets[i] on, and columns[e] is the key of edge e. Where a row may be
a key's as well, the order of its edges comes with it: `edges[t]`, and `others[t]` at its other end.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..arrays import Array, a_thread_each, array_module, kernel_dtype
from ..cuda import Kernel, cuda
from ..layers.dropout import random_word
from .edges import Edges, Walk, whole


@cache
def _additive_kernel(real: Any) -> Kernel:
    @cuda.jit
    def additive(a, b, offsets, columns, slope, s):  # type: ignore[no-untyped-def]
        """Scores a (H, Tq) and b (H, Tk); s (H, edges) is written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < a.shape[1]:
            for e in range(offsets[i], offsets[i + 1]):
                z = a[h, i] + b[h, columns[e]]
                s[h, e] = z if z > real(0) else slope * z  # (1)

    return additive


def additive_scores(a: Array, b: Array, edges: Edges, slope: Any) -> Array:
    """Equation (1); a thread owns a query."""
    s = array_module(a).empty((len(a), len(edges.columns)), a.dtype)
    kernel = a_thread_each(_additive_kernel(kernel_dtype(a)), a.shape[1], len(a))
    kernel(a, b, edges.offsets, edges.columns, slope, s)
    return s


@cache
def _additive_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit
    def additive_gradient(a, b, offsets, edges, others, slope, ds, da):  # type: ignore[no-untyped-def]
        """Scores a (H, rows), b (H, others) and ds (H, edges); da (H, rows) is written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < a.shape[1]:
            total = real(0)
            for t in range(offsets[i], offsets[i + 1]):
                e, z = edges[t], a[h, i] + b[h, others[t]]
                total += ds[h, e] if z > real(0) else slope * ds[h, e]  # (7), (8)
            da[h, i] = total

    return additive_gradient


def additive_scores_backward(
    ds: Array, a: Array, b: Array, edges: Edges, slope: Any
) -> tuple[Array, Array]:
    """Equations (7) and (8), for queries and for keys; a thread owns a node."""

    def gradient(a: Array, b: Array, walk: Walk) -> Array:
        da = array_module(a).empty_like(a)
        kernel = a_thread_each(_additive_gradient_kernel(kernel_dtype(a)), a.shape[1], len(a))
        kernel(a, b, *walk, slope, ds, da)
        return da

    return gradient(a, b, whole(edges.by_query)), gradient(b, a, whole(edges.by_key))


@cache
def _dot_kernel(real: Any) -> Kernel:
    @cuda.jit
    def dot(q, k, offsets, columns, scale, s):  # type: ignore[no-untyped-def]
        """Of q (H, Tq, E) and k (H, Tk, E); s (H, edges) is written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < q.shape[1]:
            for e in range(offsets[i], offsets[i + 1]):
                product = real(0)
                for m in range(q.shape[2]):
                    product += q[h, i, m] * k[h, columns[e], m]
                s[h, e] = scale * product  # (2)

    return dot


def dot_scores(q: Array, k: Array, edges: Edges, scale: Any) -> Array:
    """Equation (2); a thread owns a query."""
    s = array_module(q).empty((len(q), len(edges.columns)), q.dtype)
    kernel = a_thread_each(_dot_kernel(kernel_dtype(q)), q.shape[1], len(q))
    kernel(q, k, edges.offsets, edges.columns, scale, s)
    return s


@cache
def _mix_kernel(real: Any) -> Kernel:
    @cuda.jit
    def mix(w, C, offsets, edges, others, scale, result):  # type: ignore[no-untyped-def]
        """Weights w (H, edges), C (H, others, M); the result (H, rows, M) is written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < result.shape[1]:
            for m in range(C.shape[2]):
                total = real(0)
                for t in range(offsets[i], offsets[i + 1]):
                    total += w[h, edges[t]] * C[h, others[t], m]
                result[h, i, m] = scale * total  # (5), (9)

    return mix


def _mixed(w: Array, C: Array, walk: Walk, scale: Any) -> Array:
    """The sums of (5) and (9); a thread owns a row."""
    heads, rows = len(C), len(walk.offsets) - 1
    result = array_module(C).empty((heads, rows, C.shape[2]), C.dtype)
    kernel = a_thread_each(_mix_kernel(kernel_dtype(C)), rows, heads)
    kernel(w, C, *walk, scale, result)
    return result


def dot_scores_backward(
    ds: Array, q: Array, k: Array, edges: Edges, scale: Any
) -> tuple[Array, Array]:
    """Equation (9)."""
    return _mixed(ds, k, whole(edges.by_query), scale), _mixed(ds, q, whole(edges.by_key), scale)


@cache
def _forward_kernel(real: Any) -> Kernel:
    @cuda.jit
    def forward(s, v, offsets, columns, numbers, seed, dropped, survivor, p, output):  # type: ignore[no-untyped-def]
        """Of s (H, edges), v (H, Tk, M); p (H, edges) and the output (H, Tq, M) are written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < output.shape[1]:
            h_i = real(-math.inf)
            for e in range(offsets[i], offsets[i + 1]):
                h_i = max(h_i, s[h, e])
            l_i = real(0)
            for e in range(offsets[i], offsets[i + 1]):
                l_i += math.exp(s[h, e] - h_i)  # (3)
            for m in range(v.shape[2]):
                output[h, i, m] = real(0)
            for e in range(offsets[i], offsets[i + 1]):
                p[h, e] = math.exp(s[h, e] - h_i) / l_i  # (3)
                m_e = survivor if random_word(seed, 0, h, 0, numbers[e]) >= dropped else real(0)
                w_e = m_e * p[h, e]  # (4)
                for m in range(v.shape[2]):
                    output[h, i, m] += w_e * v[h, columns[e], m]  # (4)

    return forward


def forward(
    s: Array, v: Array, edges: Edges, seed: int, dropped: int, survivor: Any
) -> tuple[Array, Array]:
    """Equations (3) and (4); a thread owns a query."""
    xp, queries, heads = array_module(s), edges.num_queries, len(s)
    p, output = xp.empty_like(s), xp.empty((heads, queries, v.shape[2]), s.dtype)
    kernel = a_thread_each(_forward_kernel(kernel_dtype(s)), queries, heads)
    where = edges.offsets, edges.columns, edges.numbers
    kernel(s, v, *where, seed, dropped, survivor, p, output)
    return output, p


@cache
def _score_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit
    def score_gradient(g, v, o, p, offsets, columns, numbers, seed, dropped, survivor, w, ds):  # type: ignore[no-untyped-def]
        """Of g and o (H, Tq, M), v (H, Tk, M), p (H, edges); w and ds (H, edges) are written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < g.shape[1]:
            delta = real(0)
            for m in range(v.shape[2]):
                delta += g[h, i, m] * o[h, i, m]  # (6)
            for e in range(offsets[i], offsets[i + 1]):
                m_e = survivor if random_word(seed, 0, h, 0, numbers[e]) >= dropped else real(0)
                w[h, e] = m_e * p[h, e]  # (4)
                product = real(0)
                for m in range(v.shape[2]):
                    product += g[h, i, m] * v[h, columns[e], m]
                ds[h, e] = w[h, e] * product - p[h, e] * delta  # (6)

    return score_gradient


def backward(
    g: Array, v: Array, edges: Edges, o: Array, p: Array, seed: int, dropped: int, survivor: Any
) -> tuple[Array, Array]:
    """Equations (5) and (6); a thread owns a query, and then a key."""
    w, ds = (array_module(p).empty_like(p) for _ in range(2))
    kernel = a_thread_each(_score_gradient_kernel(kernel_dtype(g)), edges.num_queries, len(g))
    where = edges.offsets, edges.columns, edges.numbers
    kernel(g, v, o, p, *where, seed, dropped, survivor, w, ds)
    return ds, _mixed(w, g, whole(edges.by_key), g.dtype.type(1))

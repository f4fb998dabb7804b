"""The kernels of graph attention that run, and their launches.

Seen as matrices with a place for each pair of nodes, of which only the edges are filled, (2) and
the first half of (6) are products of dense matrices of which few elements are wanted (SDDMM), and
(4), (5) and (9) are products of a sparse matrix and a dense one (SpMM). So there are two kinds of
kernels. One kind has a thread for each edge:

    additive, additive_gradient     (1); (7)
    product                         A_i . B_j: (2), (6), and delta
    weight, drop                    (3); (4), w
    score_gradient                  (6)

The others sum over edges:

    sums           (3), h and l; a thread for each row
    total          (8); a thread for each row
    mix            (4), (5), (9); a thread for each column of a row

What they add to `plain`; results/ladder says what it brings:

    a thread an edge          all do the same work, however many edges a node has; what has no sum
                              over edges waits for no hub
    rows in pieces            of SPAN edges, and a second sum of the pieces: of 10,000 edges to one
                              node, no thread adds up more than SPAN
    neighbours side by side   neighbouring threads own neighbouring columns, so that a warp reads a
                              row of values at once; where a thread owns a row, each of its reads
                              takes a sector of memory of its own
    whole widths              rows of values are padded to a width that kernels are compiled for:
                              no thread asks whether its column exists
    heads side by side        where rows are narrow, a block has several heads, so that warps fill

The sums "to j" need the edges sorted by key: `Edges` sorts them when they are first asked for, for
either version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..arrays import Array, array_module, ceil_div, kernel_dtype, round_up
from ..cuda import Kernel, cuda
from ..layers.dropout import random_word
from .edges import Edges, Walk

THREADS = 128  # of a block: edges or rows
COLUMNS = 256  # of a block of `mix`, over all its heads


@cache
def _additive_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def additive(a, b, rows, columns, slope, s):  # type: ignore[no-untyped-def]
        """Scores a (H, Tq) and b (H, Tk); s (H, edges) is written to."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            s[h, e] = z if z > real(0) else slope * z  # (1)

    return additive


@cache
def _additive_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def additive_gradient(a, b, rows, columns, slope, ds, dz):  # type: ignore[no-untyped-def]
        """Writes dz (H, edges)."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            dz[h, e] = ds[h, e] if z > real(0) else slope * ds[h, e]  # (7)

    return additive_gradient


@cache
def _product_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def product(A, B, rows, columns, scale, s):  # type: ignore[no-untyped-def]
        """A (H, Tq, M), B (H, Tk, M); s (H, edges) is written to."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < rows.size:
            i, j, total = rows[e], columns[e], real(0)
            for m in range(A.shape[2]):
                total += A[h, i, m] * B[h, j, m]
            s[h, e] = scale * total  # (2)

    return product


@cache
def _weight_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def weight(s, highest, total, rows, p):  # type: ignore[no-untyped-def]
        """Scores s (H, edges), h and l (H, Tq); p (H, edges) is written to."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < rows.size:
            p[h, e] = math.exp(s[h, e] - highest[h, rows[e]]) / total[h, rows[e]]  # (3)

    return weight


@cache
def _drop_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def drop(p, numbers, seed, dropped, survivor, w):  # type: ignore[no-untyped-def]
        """Writes w (H, edges). Edge number j takes the random word of key j of query 0."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < p.shape[1]:
            w[h, e] = real(0)
            if random_word(seed, 0, h, 0, numbers[e]) >= dropped:
                w[h, e] = survivor * p[h, e]  # (4)

    return drop


@cache
def _score_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def score_gradient(w, p, dw, delta, rows, ds):  # type: ignore[no-untyped-def]
        """Of dw = g_i . v_j (H, edges) and delta (H, Tq); ds (H, edges) is written to."""
        e, h = cuda.grid(1), cuda.blockIdx.y
        if e < rows.size:
            ds[h, e] = w[h, e] * dw[h, e] - p[h, e] * delta[h, rows[e]]  # (6)

    return score_gradient


@cache
def _sums_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def sums(s, l_of_parts, offsets, highest, total):  # type: ignore[no-untyped-def]
        """The h and l of parts (H, parts), sorted by row; the last two (H, rows) are written to.

        An edge is a part, with its score for h, and 1 for l.
        """
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < highest.shape[1]:
            h_i = real(-math.inf)
            for e in range(offsets[i], offsets[i + 1]):
                h_i = max(h_i, s[h, e])
            l_i = real(0)
            for e in range(offsets[i], offsets[i + 1]):
                l_i += l_of_parts[h, e] * math.exp(s[h, e] - h_i)
            highest[h, i], total[h, i] = h_i, l_i  # (3)

    return sums


@cache
def _total_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def total(x, offsets, edges, result):  # type: ignore[no-untyped-def]
        """Sums x (H, edges) over each row; the result (H, rows) is written to."""
        i, h = cuda.grid(1), cuda.blockIdx.y
        if i < result.shape[1]:
            sum_ = real(0)
            for t in range(offsets[i], offsets[i + 1]):
                sum_ += x[h, edges[t]]  # (8)
            result[h, i] = sum_

    return total


@cache
def _mix_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def mix(w, C, offsets, edges, others, result):  # type: ignore[no-untyped-def]
        """Weights w (H, edges), C (H, T, M); the result (H, rows, M) is written to.

        M is blockDim.x: no thread is idle, and none need ask whether it is.
        """
        i, m = cuda.blockIdx.x, cuda.threadIdx.x
        h = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
        total = real(0)
        for t in range(offsets[i], offsets[i + 1]):
            total += w[h, edges[t]] * C[h, others[t], m]  # (4)
        result[h, i, m] = total

    return mix


# The launches -------------------------------------------------------------------------------------


def additive_scores(a: Array, b: Array, edges: Edges, slope: Any) -> Array:
    """Equation (1)."""
    return _each(_additive_kernel, len(edges.rows), a, b, edges.rows, edges.columns, slope)


def additive_scores_backward(
    ds: Array, a: Array, b: Array, edges: Edges, slope: Any
) -> tuple[Array, Array]:
    """Equations (7) and (8)."""
    ends = edges.rows, edges.columns
    dz = _each(_additive_gradient_kernel, len(edges.rows), a, b, *ends, slope, ds)
    return _totals(dz, edges.by_query), _totals(dz, edges.by_key)


def dot_scores(q: Array, k: Array, edges: Edges, scale: Any) -> Array:
    """Equation (2)."""
    return _each(_product_kernel, len(edges.rows), q, k, edges.rows, edges.columns, scale)


def dot_scores_backward(
    ds: Array, q: Array, k: Array, edges: Edges, scale: Any
) -> tuple[Array, Array]:
    """Equation (9)."""
    scaled = scale * ds
    return mixed(scaled, k, edges.by_query), mixed(scaled, q, edges.by_key)


def weights(s: Array, edges: Edges) -> Array:
    """Equation (3)."""
    xp, kernel = array_module(s), _sums_kernel(kernel_dtype(s))
    sums: Any = s, xp.ones_like(s)
    for walk in edges.by_query:  # h and l of pieces, and then of those
        parts, sums = sums, xp.empty((2, len(s), len(walk.offsets) - 1), s.dtype)
        blocks = ceil_div(sums.shape[2], THREADS), len(s)
        kernel[blocks, THREADS](*parts, walk.offsets, *sums)
    return _each(_weight_kernel, len(edges.rows), s, *sums, edges.rows)


def forward(
    s: Array, v: Array, edges: Edges, seed: int, dropped: int, survivor: Any
) -> tuple[Array, Array]:
    """Equations (3) and (4)."""
    p = weights(s, edges)
    return mixed(_kept(p, edges, seed, dropped, survivor), v, edges.by_query), p


def backward(
    g: Array, v: Array, edges: Edges, o: Array, p: Array, seed: int, dropped: int, survivor: Any
) -> tuple[Array, Array]:
    """Equations (5) and (6)."""
    nodes, one = array_module(g).arange(edges.num_queries), g.dtype.type(1)
    w = _kept(p, edges, seed, dropped, survivor)
    dw = _each(_product_kernel, len(edges.rows), g, v, edges.rows, edges.columns, one)
    delta = _each(_product_kernel, len(nodes), g, o, nodes, nodes, one)
    ds = _each(_score_gradient_kernel, len(edges.rows), w, p, dw, delta, edges.rows)
    return ds, mixed(w, g, edges.by_key)


def _each(make: Callable[[Any], Kernel], count: int, *arguments: Any) -> Array:
    """An array (H, count), of which each thread of a kernel writes a number."""
    like = arguments[0]
    result = array_module(like).empty((len(like), count), like.dtype)
    make(kernel_dtype(like))[(ceil_div(count, THREADS), len(like)), THREADS](*arguments, result)
    return result


def _kept(p: Array, edges: Edges, seed: int, dropped: int, survivor: Any) -> Array:
    """The weights w of equation (4)."""
    if not dropped:
        return p
    return _each(_drop_kernel, p.shape[1], p, edges.numbers, seed, dropped, survivor)


def _totals(x: Array, walks: tuple[Walk, ...]) -> Array:
    """The sum of x (H, edges) over each row: (H, rows)."""
    for walk in walks:
        x = _each(_total_kernel, len(walk.offsets) - 1, x, walk.offsets, walk.edges)
    return x


def mixed(weights: Array, C: Array, walks: tuple[Walk, ...]) -> Array:
    """The sum of w_e C_j over each row: (H, rows, M)."""
    xp, (heads, _, size) = array_module(C), C.shape
    columns = round_up(size, "value dim")
    C = _padded(C, columns)
    together = _heads_of_a_block(heads, columns, xp)
    for walk in walks:
        count = len(walk.offsets) - 1
        result = xp.empty((heads, count, columns), C.dtype)
        blocks, threads = (count, heads // together), (columns, together)
        _mix_kernel(kernel_dtype(C))[blocks, threads](weights, C, *walk, result)
        weights, C = xp.ones((heads, count), C.dtype), result  # pieces are added as they are
    return xp.ascontiguousarray(result[..., :size])


def _heads_of_a_block(heads: int, columns: int, xp: Any) -> int:
    """One on a CPU, so that a head's values stay in its cache; on a GPU enough to fill warps."""
    return 1 if xp is np else math.gcd(heads, COLUMNS // columns)


def _padded(C: Array, columns: int) -> Array:
    """`C` in C order, with zeros for the columns that it lacks."""
    xp = array_module(C)
    if C.shape[2] == columns:
        return xp.ascontiguousarray(C)
    padded = xp.zeros((*C.shape[:2], columns), C.dtype)
    padded[..., : C.shape[2]] = C
    return padded

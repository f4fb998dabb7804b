"""The kernels of graph attention that run, and their launches.

Seen as matrices with a place for each pair of nodes, of which only the edges are filled, (2) and
the first half of (6) are products of dense matrices of which few elements are wanted (SDDMM), and
(4), (5) and (9) are products of a sparse matrix and a dense one (SpMM). So there are two kinds of
kernels. One kind has a thread for each edge:

    additive, additive_gradient     (1); (7)
    product                         A_i . B_j: (2), (6), and delta
    weight, drop                    (3); (4), w
    score_gradient                  (6)

However many edges a node has, all these threads do the same work. The others sum over edges:

    sums           (3), h and l; a thread for each row
    total          (8); a thread for each row
    mix            (4), (5), (9); a thread for each column of a row, neighbours side by side

The sums "to j" need the edges sorted by key: `Edges` sorts them when they are first asked for.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..arrays import Array, array_module, ceil_div, contiguous, kernel_dtype, round_up
from ..cuda import Kernel, cuda
from ..layers.dropout import random_word
from .edges import Walk

THREADS = 128  # of a block: edges or rows
COLUMNS = 256  # of a block of `mix`, over all its heads


@cache
def additive_kernel(real: Any) -> Kernel:
    """Make the kernel of (1)."""

    @cuda.jit(fastmath=True)
    def additive(a, b, rows, columns, slope, s):  # type: ignore[no-untyped-def]
        """Scores a (H, Tq) and b (H, Tk); s (H, edges) is written to."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            s[h, e] = z if z > real(0) else slope * z  # (1)

    return additive


@cache
def additive_gradient_kernel(real: Any) -> Kernel:
    """Make the kernel of (7)."""

    @cuda.jit(fastmath=True)
    def additive_gradient(a, b, rows, columns, slope, ds, dz):  # type: ignore[no-untyped-def]
        """Writes dz (H, edges)."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            dz[h, e] = ds[h, e] if z > real(0) else slope * ds[h, e]  # (7)

    return additive_gradient


@cache
def product_kernel(real: Any) -> Kernel:
    """Make the kernel of products of pairs: (2), and parts of (6)."""

    @cuda.jit(fastmath=True)
    def product(A, B, rows, columns, scale, s):  # type: ignore[no-untyped-def]
        """A (H, Tq, M), B (H, Tk, M); s (H, edges) is written to."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            i, j, total = rows[e], columns[e], real(0)
            for m in range(A.shape[2]):
                total += A[h, i, m] * B[h, j, m]
            s[h, e] = scale * total  # (2)

    return product


@cache
def weight_kernel(real: Any) -> Kernel:
    """Make the kernel of p in (3)."""

    @cuda.jit(fastmath=True)
    def weight(s, highest, total, rows, p):  # type: ignore[no-untyped-def]
        """Scores s (H, edges), h and l (H, Tq); p (H, edges) is written to."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            p[h, e] = math.exp(s[h, e] - highest[h, rows[e]]) / total[h, rows[e]]  # (3)

    return weight


@cache
def drop_kernel(real: Any) -> Kernel:
    """Make the kernel of w in (4)."""

    @cuda.jit(fastmath=True)
    def drop(p, seed, dropped, factor, w):  # type: ignore[no-untyped-def]
        """Writes w (H, edges). Edge e takes the random word of the e-th key of query 0."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < p.shape[1]:
            w[h, e] = real(0)
            if random_word(seed, 0, h, 0, e) >= dropped:
                w[h, e] = factor * p[h, e]  # (4)

    return drop


@cache
def score_gradient_kernel(real: Any) -> Kernel:
    """Make the kernel of (6)."""

    @cuda.jit(fastmath=True)
    def score_gradient(w, p, delta, rows, ds):  # type: ignore[no-untyped-def]
        """Turns g_i . v_j, in ds (H, edges), into the gradient of the score; delta is (H, Tq)."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            ds[h, e] = w[h, e] * ds[h, e] - p[h, e] * delta[h, rows[e]]  # (6)

    return score_gradient


@cache
def sums_kernel(real: Any) -> Kernel:
    """Make the kernel of h and l in (3)."""

    @cuda.jit(fastmath=True)
    def sums(s, l_of_parts, offsets, highest, total):  # type: ignore[no-untyped-def]
        """The h and l of parts (H, parts), sorted by row; the last two (H, rows) are written to.

        An edge is a part, with its score for h, and 1 for l.
        """
        h, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
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
def total_kernel(real: Any) -> Kernel:
    """Make the kernel of the sums of (8)."""

    @cuda.jit(fastmath=True)
    def total(x, offsets, edges, result):  # type: ignore[no-untyped-def]
        """Sums x (H, edges) over each row; the result (H, rows) is written to."""
        h, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < result.shape[1]:
            sum_ = real(0)
            for t in range(offsets[i], offsets[i + 1]):
                sum_ += x[h, edges[t]]  # (8)
            result[h, i] = sum_

    return total


@cache
def mix_kernel(real: Any) -> Kernel:
    """Make the kernel of the sums of (4), (5) and (9)."""

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


def launch(kernel: Kernel, shape: tuple[int, ...], *arguments: Any) -> None:
    """Launch with a thread for each number of an array (H, count), if it has any."""
    heads, count = shape
    if heads and count:
        kernel[(ceil_div(count, THREADS), heads), THREADS](*arguments)


def products(A: Array, B: Array, rows: Array, columns: Array, scale: float = 1.0) -> Array:
    """The products scale A_i . B_j of pairs: (H, pairs)."""
    result = array_module(A).empty((len(A), len(rows)), A.dtype)
    launch(
        product_kernel(kernel_dtype(A)), result.shape, *contiguous(A, B), rows, columns,
        A.dtype.type(scale), result,
    )  # fmt: skip
    return result


def totals(x: Array, walks: tuple[Walk, ...]) -> Array:
    """The sum of x (H, edges) over each row: (H, rows)."""
    kernel = total_kernel(kernel_dtype(x))
    for walk in walks:
        result = array_module(x).empty((len(x), len(walk.offsets) - 1), x.dtype)
        launch(kernel, result.shape, x, walk.offsets, walk.edges, result)
        x = result
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
        if heads and count:
            blocks = count, heads // together
            mix_kernel(kernel_dtype(C))[blocks, (columns, together)](weights, C, *walk, result)
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

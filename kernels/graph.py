"""Graph attention: a query node attends to its neighbours in a graph, and to nobody else (S3).

An edge e = (i, j) lets query node i see key node j. Edges are sorted by their query (compressed
sparse rows): those of node i are offsets[i] <= e < offsets[i + 1], and columns[e] is the key j. An
edge that is there twice counts twice. Its score, in each head, is one of

    s_e = LeakyReLU(a_i + b_j)                 additive                                        (1)
    s_e = scale q_i . k_j                      dot product                                     (2)

where LeakyReLU(z) is z above 0 and `negative_slope` z elsewhere. The additive score is that of
graph attention networks (Veličković et al. 2018), LeakyReLU(c^T [W x_i || W x_j]): the product with
the two halves of c is a sum of two numbers, one of each node, and is made once for each node
instead of once for each edge. The dot product makes multi-head attention of it (S3). What follows
is the same for both:

    l_i = log sum_{e of i} exp(s_e)            p_e = exp(s_e - l_i)                            (3)
    o_i = sum_{e of i} w_e v_j                 w_e = m_e p_e                                   (4)

m_e is 1, or under dropout 0 or 1 / (1 - dropout). A node without edges gives o_i = 0.

Backward, given g_i = dLoss/do_i:

    dv_j = sum_{e to j} w_e g_i                                                                (5)
    ds_e = w_e g_i . v_j - p_e delta_i         delta_i = g_i . o_i                             (6)
    dz_e = ds_e LeakyReLU'(a_i + b_j)                                                          (7)
    da_i = sum_{e of i} dz_e                   db_j = sum_{e to j} dz_e                        (8)
    dq_i = scale sum_{e of i} ds_e k_j         dk_j = scale sum_{e to j} ds_e q_i              (9)

Seen as matrices with a place for each pair of nodes, of which only the edges are filled, (2) and
the first half of (6) are products of dense matrices of which few elements are wanted (SDDMM), and
(4), (5) and (9) are products of a sparse matrix and a dense one (SpMM). So there are two kinds of
kernels. One kind has a thread for each edge:

    _additive_kernel, _additive_gradient_kernel     (1); (7)
    _product_kernel                                 A_i . B_j: (2), (6), and delta
    _weight_kernel, _drop_kernel                    (3); (4), w
    _score_gradient_kernel                          (6)

However many edges a node has, all these threads do the same work. The others sum over edges:

    _log_sum_exp_kernel    (3), l; a thread for each row
    _total_kernel          (8); a thread for each row
    _mix_kernel            (4), (5), (9); a thread for each column of a row, neighbours side by side

A row is a node with its edges, and here numbers of edges do matter: of 10,000 nodes most have ten
neighbours, one may have thousands, and the rest of the GPU would wait for its row. So a row of more
than SPAN edges is cut into pieces, and the same kernel then sums the pieces of each row.

The sums "to j" need the edges sorted by key: `Edges` sorts them when they are first asked for. Then
these sums, too, have one owner and a fixed order: no atomics, and results repeat bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, array_module, ceil_div, contiguous, kernel_dtype, round_up
from .cuda import Kernel, cuda
from .dropout import arguments as dropout_arguments
from .dropout import random_word

THREADS = 128  # of a block: edges or rows
SPAN = 256  # edges of a row that are summed in one go
COLUMNS = 256  # of a block of `_mix_kernel`, over all its heads


class Walk(NamedTuple):
    """Rows to sum over: row r has the edges `edges[t]`, offsets[r] <= t < offsets[r + 1].

    `others[t]` is the node at the other end of that edge. All arrays are int64.
    """

    offsets: Array
    edges: Array
    others: Array


class Edges:
    """Who sees whom, checked; and the order in which sums over edges are taken.

    Args:
        row_offsets: `(Tq + 1,)` integers; the edges of query node i are those from row_offsets[i]
            on, below row_offsets[i + 1].
        columns: `(edges,)` integers, on the same device: the key node of each edge.
        num_keys: Tk.

    Raises:
        TypeError: the arrays do not hold integers.
        ValueError: the offsets do not rise from 0 to the number of edges, or a column is no key.
    """

    def __init__(self, row_offsets: Array, columns: Array, num_keys: int) -> None:
        _check_edges(row_offsets, columns, num_keys)
        self.offsets, self.columns = (
            x.astype(np.int64, copy=False) for x in contiguous(row_offsets, columns)
        )
        self.num_keys = int(num_keys)

    @property
    def num_queries(self) -> int:
        """Tq."""
        return len(self.offsets) - 1

    @cached_property
    def rows(self) -> Array:
        """The query node of each edge."""
        return _rows_of(self.offsets, len(self.columns))

    @cached_property
    def by_query(self) -> tuple[Walk, ...]:
        """How to sum over the edges of each query; in two stages, if a row is long."""
        order = array_module(self.columns).arange(len(self.columns))
        return _in_pieces(Walk(self.offsets, order, self.columns))

    @cached_property
    def by_key(self) -> tuple[Walk, ...]:
        """How to sum over the edges to each key: the transposed matrix."""
        offsets, order = _by_owner(self.columns, self.num_keys)
        return _in_pieces(Walk(offsets, order, self.rows[order]))

    def moved(self, move: Callable[[Array], Array]) -> Edges:
        """The same edges, each array of them moved to another device.

        What was checked here is not checked there, and orders are found here, so that the CPU need
        not wait for a GPU's answers.
        """
        there = copy(self)
        for name in ("offsets", "columns", "rows"):
            setattr(there, name, move(getattr(self, name)))
        for name in ("by_query", "by_key"):
            setattr(there, name, tuple(Walk(*map(move, walk)) for walk in getattr(self, name)))
        return there


def _check_edges(row_offsets: Array, columns: Array, num_keys: int) -> None:
    for name, array in (("row_offsets", row_offsets), ("columns", columns)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(
                f"edges: {name} must be integers in one dimension, got {array.dtype} {array.shape}"
            )
    count = len(columns)
    rises = len(row_offsets) and bool((row_offsets[1:] >= row_offsets[:-1]).all())
    if not rises or int(row_offsets[0]) != 0 or int(row_offsets[-1]) != count:
        ends = f"{int(row_offsets[0])}..{int(row_offsets[-1])}" if len(row_offsets) else "nothing"
        raise ValueError(
            f"edges: row_offsets must rise from 0 to {count}, the number of edges, got {ends}"
            f"{'' if rises else ', not rising'}; they are the running sum of the nodes' numbers "
            "of neighbours, with a 0 before it"
        )
    if count and not (int(columns.min()) >= 0 and int(columns.max()) < num_keys):
        raise ValueError(
            f"edges: columns must be key nodes 0..{num_keys - 1}, got {int(columns.min())}.."
            f"{int(columns.max())}; are there more keys?"
        )


def _rows_of(offsets: Array, count: int) -> Array:
    """The row of each of `count` places, where row r begins at offsets[r]."""
    xp = array_module(offsets)
    return xp.searchsorted(offsets[1:], xp.arange(count), side="right")


def _by_owner(owners: Array, count: int) -> tuple[Array, Array]:
    """The places of owner 0, then of owner 1, ...; and where each one's begin among them."""
    xp = array_module(owners)
    order = xp.argsort(owners, kind="stable")
    return xp.searchsorted(owners[order], xp.arange(count + 1)), order


def _in_pieces(walk: Walk, enough: int | None = None) -> tuple[Walk, ...]:
    """The walk; or one over pieces of at most SPAN edges, and one over the pieces of each row.

    A number of pieces that is `enough` in any case saves counting them, for which the CPU waits
    for a GPU; those too many have no edges.
    """
    xp = array_module(walk.offsets)
    counts = -(-xp.diff(walk.offsets) // SPAN)
    if enough is None and (not counts.size or int(counts.max()) <= 1):
        return (walk,)
    first = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(counts)])  # piece of each row
    pieces = xp.arange(int(first[-1]) if enough is None else enough)
    row = xp.minimum(_rows_of(first, len(pieces)), len(counts) - 1)
    begins = xp.minimum(walk.offsets[row] + SPAN * (pieces - first[row]), walk.offsets[-1])
    offsets = xp.concatenate([begins, walk.offsets[-1:]])
    return Walk(offsets, walk.edges, walk.others), Walk(first, pieces, pieces)


# The kernels --------------------------------------------------------------------------------------


@cache
def _additive_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def additive(a, b, rows, columns, slope, s):  # type: ignore[no-untyped-def]
        """Scores a (H, Tq) and b (H, Tk); s (H, edges) is written to."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            s[h, e] = z if z > real(0) else slope * z  # (1)

    return additive


@cache
def _additive_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def additive_gradient(a, b, rows, columns, slope, ds, dz):  # type: ignore[no-untyped-def]
        """Writes dz (H, edges)."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            z = a[h, rows[e]] + b[h, columns[e]]
            dz[h, e] = ds[h, e] if z > real(0) else slope * ds[h, e]  # (7)

    return additive_gradient


@cache
def _product_kernel(real: Any) -> Kernel:
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
def _weight_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def weight(s, log_sum_exp, rows, p):  # type: ignore[no-untyped-def]
        """Scores s (H, edges) and l (H, Tq); p (H, edges) is written to."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            p[h, e] = math.exp(s[h, e] - log_sum_exp[h, rows[e]])  # (3)

    return weight


@cache
def _drop_kernel(real: Any) -> Kernel:
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
def _score_gradient_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def score_gradient(w, p, delta, rows, ds):  # type: ignore[no-untyped-def]
        """Turns g_i . v_j, in ds (H, edges), into the gradient of the score; delta is (H, Tq)."""
        h, e = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if e < rows.size:
            ds[h, e] = w[h, e] * ds[h, e] - p[h, e] * delta[h, rows[e]]  # (6)

    return score_gradient


@cache
def _log_sum_exp_kernel(real: Any) -> Kernel:
    @cuda.jit(fastmath=True)
    def log_sum_exp(s, offsets, result):  # type: ignore[no-untyped-def]
        """Scores s (H, edges), sorted by row; the result (H, rows) is written to."""
        h, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < result.shape[1]:
            highest = real(-math.inf)
            for e in range(offsets[i], offsets[i + 1]):
                highest = max(highest, s[h, e])
            total = real(0)
            for e in range(offsets[i], offsets[i + 1]):
                total += math.exp(s[h, e] - highest)
            result[h, i] = highest + math.log(total)  # (3)

    return log_sum_exp


@cache
def _total_kernel(real: Any) -> Kernel:
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


# Their launches -----------------------------------------------------------------------------------


def _launch(kernel: Kernel, shape: tuple[int, ...], *arguments: Any) -> None:
    """Launch with a thread for each number of an array (H, count), if it has any."""
    heads, count = shape
    if heads and count:
        kernel[(ceil_div(count, THREADS), heads), THREADS](*arguments)


def _products(A: Array, B: Array, rows: Array, columns: Array, scale: float = 1.0) -> Array:
    """The products scale A_i . B_j of pairs: (H, pairs)."""
    result = array_module(A).empty((len(A), len(rows)), A.dtype)
    _launch(
        _product_kernel(kernel_dtype(A)), result.shape, *contiguous(A, B), rows, columns,
        A.dtype.type(scale), result,
    )  # fmt: skip
    return result


def _totals(x: Array, walks: tuple[Walk, ...]) -> Array:
    """The sum of x (H, edges) over each row: (H, rows)."""
    kernel = _total_kernel(kernel_dtype(x))
    for walk in walks:
        result = array_module(x).empty((len(x), len(walk.offsets) - 1), x.dtype)
        _launch(kernel, result.shape, x, walk.offsets, walk.edges, result)
        x = result
    return x


def _mixed(weights: Array, C: Array, walks: tuple[Walk, ...]) -> Array:
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
            _mix_kernel(kernel_dtype(C))[blocks, (columns, together)](weights, C, *walk, result)
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


# The host functions -------------------------------------------------------------------------------


def additive_scores(
    query_scores: Array, key_scores: Array, edges: Edges, *, negative_slope: float = 0.2
) -> Array:
    """The additive score of each edge, equation (1).

    Args:
        query_scores: a `(H, Tq)`, float32 or float64.
        key_scores: b `(H, Tk)`.
        edges: who sees whom.
        negative_slope: of LeakyReLU, below 0.

    Returns:
        s `(H, edges)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.

    Source: Veličković et al. 2018, equation 3; S3.
    """
    a, b = contiguous(query_scores, key_scores)
    result = array_module(a).empty((len(a), len(edges.columns)), a.dtype)
    _launch(
        _additive_kernel(kernel_dtype(a)), result.shape, a, b, edges.rows, edges.columns,
        a.dtype.type(negative_slope), result,
    )  # fmt: skip
    return result


def additive_scores_backward(
    grad_scores: Array,
    query_scores: Array,
    key_scores: Array,
    edges: Edges,
    *,
    negative_slope: float = 0.2,
) -> tuple[Array, Array]:
    """The gradient of `additive_scores`, equations (7) and (8).

    Args:
        grad_scores: ds `(H, edges)`.
        query_scores: this, and all the rest, as given to `additive_scores`.
        key_scores: as there.
        edges: as there.
        negative_slope: as there.

    Returns:
        da `(H, Tq)` and db `(H, Tk)`.
    """
    ds, a, b = contiguous(grad_scores, query_scores, key_scores)
    dz = array_module(ds).empty_like(ds)
    _launch(
        _additive_gradient_kernel(kernel_dtype(a)), dz.shape, a, b, edges.rows, edges.columns,
        a.dtype.type(negative_slope), ds, dz,
    )  # fmt: skip
    return _totals(dz, edges.by_query), _totals(dz, edges.by_key)


def dot_scores(query: Array, key: Array, edges: Edges, *, scale: float | None = None) -> Array:
    """The product of query and key of each edge, equation (2).

    Args:
        query: `(H, Tq, E)`, float32 or float64.
        key: `(H, Tk, E)`.
        edges: who sees whom.
        scale: the factor of the scores; None is 1 / sqrt(E).

    Returns:
        s `(H, edges)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.

    Source: Vaswani et al. 2017, equation 1; S3.
    """
    return _products(query, key, edges.rows, edges.columns, _scale(scale, query))


def dot_scores_backward(
    grad_scores: Array, query: Array, key: Array, edges: Edges, *, scale: float | None = None
) -> tuple[Array, Array]:
    """The gradient of `dot_scores`, equation (9).

    Args:
        grad_scores: ds `(H, edges)`.
        query: this, and all the rest, as given to `dot_scores`.
        key: as there.
        edges: as there.
        scale: as there.

    Returns:
        dq `(H, Tq, E)` and dk `(H, Tk, E)`.

    Raises:
        ValueError: E is above 256.
    """
    scaled = grad_scores * grad_scores.dtype.type(_scale(scale, query))
    return _mixed(scaled, key, edges.by_query), _mixed(scaled, query, edges.by_key)


def _scale(scale: float | None, query: Array) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def weights(scores: Array, edges: Edges) -> Array:
    """The softmax of scores over the edges of each query, equation (3).

    Args:
        scores: s `(H, edges)`, float32 or float64.
        edges: who sees whom.

    Returns:
        p `(H, edges)`: those of a query add up to 1.

    Raises:
        TypeError: the array holds something else than float32 or float64.

    Example:
        >>> edges = Edges(np.array([0, 2, 3]), np.array([0, 1, 1]), num_keys=2)
        >>> weights(np.log([[1.0, 3.0, 5.0]]), edges).round(6)
        array([[0.25, 0.75, 1.  ]])
    """
    (scores,), xp, real = contiguous(scores), array_module(scores), kernel_dtype(scores)
    log_sum_exp = scores
    for walk in edges.by_query:  # l of pieces, and then l of those
        result = xp.empty((len(scores), len(walk.offsets) - 1), scores.dtype)
        _launch(_log_sum_exp_kernel(real), result.shape, log_sum_exp, walk.offsets, result)
        log_sum_exp = result
    p = xp.empty_like(scores)
    _launch(_weight_kernel(real), p.shape, scores, log_sum_exp, edges.rows, p)
    return p


def forward(
    scores: Array, value: Array, edges: Edges, *, dropout: float = 0.0, seed: int = 0
) -> tuple[Array, Array]:
    """Attention to neighbours, equations (3) and (4).

    Args:
        scores: s `(H, edges)`, float32 or float64.
        value: `(H, Tk, M)`.
        edges: who sees whom.
        dropout: the probability that an edge's weight is dropped, in [0, 1).
        seed: the same seed drops the same edges; a whole number in [0, 2^63).

    Returns:
        The output `(H, Tq, M)`, and p `(H, edges)`, before dropout, for `backward`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: M is above 256, or dropout or seed is out of its range.

    Source: Veličković et al. 2018, equations 3 and 4; S3.

    Example:
        >>> edges = Edges(np.array([0, 2, 2]), np.array([0, 1]), num_keys=2)
        >>> forward(np.zeros((1, 2)), np.array([[[1.0], [3.0]]]), edges)[0].tolist()
        [[[2.0], [0.0]]]
    """
    p = weights(scores, edges)
    return _mixed(_dropped(p, dropout, seed), value, edges.by_query), p


def backward(
    grad_output: Array,
    value: Array,
    edges: Edges,
    output: Array,
    weights: Array,
    *,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The gradient of attention to neighbours, equations (5) and (6).

    Args:
        grad_output: `(H, Tq, M)`, dLoss/doutput.
        value: this, and all the rest, as given to `forward`.
        edges: as there.
        output: what `forward` returned.
        weights: what `forward` returned.
        dropout: as there.
        seed: as there.

    Returns:
        ds `(H, edges)` and dv `(H, Tk, M)`.
    """
    g, value, output = contiguous(grad_output, value, output)
    w = _dropped(weights, dropout, seed)
    nodes = array_module(g).arange(edges.num_queries)
    delta = _products(g, output, nodes, nodes)
    ds = _products(g, value, edges.rows, edges.columns)
    _launch(_score_gradient_kernel(kernel_dtype(g)), ds.shape, w, weights, delta, edges.rows, ds)
    return ds, _mixed(w, g, edges.by_key)


def _dropped(p: Array, dropout: float, seed: int) -> Array:
    """The weights w of equation (4)."""
    if not dropout:
        return p
    w = array_module(p).empty_like(p)
    numbers = dropout_arguments(dropout, seed, p.dtype.type)
    _launch(_drop_kernel(kernel_dtype(p)), p.shape, p, *numbers, w)
    return w


def sum_by_owner(rows: Array, owners: Array, count: int) -> Array:
    """The sum of the rows of each owner: what `x[owners]` sends back to x.

    CuPy's `add.at` adds in another order at each call, with atomic operations, and so gives other
    last digits. Here they are added in the order of the rows.

    Args:
        rows: `(T, D)` float32 or float64.
        owners: `(T,)` int64 in 0 .. count - 1.
        count: V, how many owners there are.

    Returns:
        `(V, D)`.
    """
    xp, (length, width) = array_module(rows), rows.shape
    if not rows.size:
        return xp.zeros((count, width), rows.dtype)
    offsets, order = _by_owner(owners, count)
    walk = Walk(offsets, order, order)
    walks = _in_pieces(walk, count + length // SPAN) if length > SPAN else (walk,)
    ones = xp.ones((1, length), rows.dtype)
    parts = [
        _mixed(ones, rows[None, :, at : at + COLUMNS], walks)[0] for at in range(0, width, COLUMNS)
    ]
    return xp.concatenate(parts, axis=1)

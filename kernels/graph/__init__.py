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

    l_i = sum_{e of i} exp(s_e - h_i)          p_e = exp(s_e - h_i) / l_i                      (3)
    o_i = sum_{e of i} w_e v_j                 w_e = m_e p_e                                   (4)

h_i is the highest score of i. (One number, h_i + log l_i, would do, but rounds where h_i is large.)
m_e is 1, or under dropout 0 or 1 / (1 - dropout). A node without edges gives o_i = 0.

Backward, given g_i = dLoss/do_i:

    dv_j = sum_{e to j} w_e g_i                                                                (5)
    ds_e = w_e g_i . v_j - p_e delta_i         delta_i = g_i . o_i                             (6)
    dz_e = ds_e LeakyReLU'(a_i + b_j)                                                          (7)
    da_i = sum_{e of i} dz_e                   db_j = sum_{e to j} dz_e                        (8)
    dq_i = scale sum_{e of i} ds_e k_j         dk_j = scale sum_{e to j} ds_e q_i              (9)
"""

from __future__ import annotations

from ..arrays import Array, array_module, contiguous, kernel_dtype
from ..layers.dropout import arguments as dropout_arguments
from . import fast
from .edges import SPAN, Edges, Walk, by_owner, in_pieces

__all__ = [
    "SPAN", "Edges", "additive_scores", "additive_scores_backward", "backward", "dot_scores",
    "dot_scores_backward", "forward", "sum_by_owner", "weights",
]  # fmt: skip


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
    fast.launch(
        fast.additive_kernel(kernel_dtype(a)), result.shape, a, b, edges.rows, edges.columns,
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
    fast.launch(
        fast.additive_gradient_kernel(kernel_dtype(a)), dz.shape, a, b, edges.rows, edges.columns,
        a.dtype.type(negative_slope), ds, dz,
    )  # fmt: skip
    return fast.totals(dz, edges.by_query), fast.totals(dz, edges.by_key)


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
    return fast.products(query, key, edges.rows, edges.columns, _scale(scale, query))


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
    return fast.mixed(scaled, key, edges.by_query), fast.mixed(scaled, query, edges.by_key)


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
        >>> import numpy as np
        >>> edges = Edges(np.array([0, 2, 3]), np.array([0, 1, 1]), num_keys=2)
        >>> weights(np.log([[1.0, 3.0, 5.0]]), edges).round(6)
        array([[0.25, 0.75, 1.  ]])
    """
    (scores,), xp, real = contiguous(scores), array_module(scores), kernel_dtype(scores)
    highest, total = scores, xp.ones_like(scores)
    for walk in edges.by_query:  # h and l of pieces, and then of those
        shape = len(scores), len(walk.offsets) - 1
        parts, (highest, total) = (highest, total), xp.empty((2, *shape), scores.dtype)
        fast.launch(fast.sums_kernel(real), shape, *parts, walk.offsets, highest, total)
    p = xp.empty_like(scores)
    fast.launch(fast.weight_kernel(real), p.shape, scores, highest, total, edges.rows, p)
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
        >>> import numpy as np
        >>> edges = Edges(np.array([0, 2, 2]), np.array([0, 1]), num_keys=2)
        >>> forward(np.zeros((1, 2)), np.array([[[1.0], [3.0]]]), edges)[0].tolist()
        [[[2.0], [0.0]]]
    """
    p = weights(scores, edges)
    return fast.mixed(_dropped(p, dropout, seed), value, edges.by_query), p


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
    delta = fast.products(g, output, nodes, nodes)
    ds = fast.products(g, value, edges.rows, edges.columns)
    fast.launch(
        fast.score_gradient_kernel(kernel_dtype(g)), ds.shape, w, weights, delta, edges.rows, ds
    )
    return ds, fast.mixed(w, g, edges.by_key)


def _dropped(p: Array, dropout: float, seed: int) -> Array:
    """The weights w of equation (4)."""
    if not dropout:
        return p
    w = array_module(p).empty_like(p)
    numbers = dropout_arguments(dropout, seed, p.dtype.type)
    fast.launch(fast.drop_kernel(kernel_dtype(p)), p.shape, p, *numbers, w)
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
    offsets, order = by_owner(owners, count)
    walk = Walk(offsets, order, order)
    walks = in_pieces(walk, count + length // SPAN) if length > SPAN else (walk,)
    ones = xp.ones((1, length), rows.dtype)
    parts = [
        fast.mixed(ones, rows[None, :, at : at + fast.COLUMNS], walks)[0]
        for at in range(0, width, fast.COLUMNS)
    ]
    return xp.concatenate(parts, axis=1)

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

from ..arrays import Array, array_module, contiguous, version_of
from ..checks import finite, host, whole
from ..layers.dropout import arguments as dropout_arguments
from . import fast, plain
from .edges import SPAN, Edges, Walk, by_owner, in_pieces

__all__ = [
    "SPAN", "Edges", "additive_scores", "additive_scores_backward", "backward", "dot_scores",
    "dot_scores_backward", "forward", "sum_by_owner", "weights",
]  # fmt: skip


@host(query_scores="H Tq", key_scores="H Tk")
def additive_scores(
    query_scores: Array,
    key_scores: Array,
    edges: Edges,
    *,
    negative_slope: float = 0.2,
    version: str = "fast",
) -> Array:
    """The additive score of each edge, equation (1).

    Args:
        query_scores: a `(H, Tq)`, float32 or float64.
        key_scores: b `(H, Tk)`.
        edges: who sees whom.
        negative_slope: the slope of LeakyReLU where its argument is below 0.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        s `(H, edges)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: there is no such version.

    Source: Veličković et al. 2018, equation 3; S3.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    a, b = contiguous(query_scores, key_scores)
    return kernels.additive_scores(a, b, edges, _slope(negative_slope, a))


@host(query_scores="H Tq", key_scores="H Tk", grad_scores="H edges")
def additive_scores_backward(
    grad_scores: Array,
    query_scores: Array,
    key_scores: Array,
    edges: Edges,
    *,
    negative_slope: float = 0.2,
    version: str = "fast",
) -> tuple[Array, Array]:
    """The gradient of `additive_scores`, equations (7) and (8).

    Args:
        grad_scores: ds `(H, edges)`.
        query_scores: this and all the rest as in `additive_scores`.

    Returns:
        da `(H, Tq)` and db `(H, Tk)`.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    ds, a, b = contiguous(grad_scores, query_scores, key_scores)
    return kernels.additive_scores_backward(ds, a, b, edges, _slope(negative_slope, a))


@host(query="H Tq E", key="H Tk E")
def dot_scores(
    query: Array,
    key: Array,
    edges: Edges,
    *,
    scale: float | None = None,
    version: str = "fast",
) -> Array:
    """The product of query and key of each edge, equation (2).

    Args:
        query: `(H, Tq, E)`, float32 or float64.
        key: `(H, Tk, E)`.
        edges: who sees whom.
        scale: the factor of the scores; None is 1 / sqrt(E).
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        s `(H, edges)`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: there is no such version.

    Source: Vaswani et al. 2017, equation 1; S3.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    query, key = contiguous(query, key)
    return kernels.dot_scores(query, key, edges, _scale(scale, query))


@host(query="H Tq E", key="H Tk E", grad_scores="H edges")
def dot_scores_backward(
    grad_scores: Array,
    query: Array,
    key: Array,
    edges: Edges,
    *,
    scale: float | None = None,
    version: str = "fast",
) -> tuple[Array, Array]:
    """The gradient of `dot_scores`, equation (9).

    Args:
        grad_scores: ds `(H, edges)`.
        query: this and all the rest as in `dot_scores`.

    Returns:
        dq `(H, Tq, E)` and dk `(H, Tk, E)`.

    Raises:
        ValueError: E is above 256.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    ds, query, key = contiguous(grad_scores, query, key)
    return kernels.dot_scores_backward(ds, query, key, edges, _scale(scale, query))


def _slope(negative_slope: float, scores: Array) -> Array:
    """The slope of LeakyReLU below 0, of the dtype of the scores."""
    return scores.dtype.type(finite("graph", "negative_slope", negative_slope))


def _scale(scale: float | None, query: Array) -> Array:
    """The factor of the scores, of their dtype."""
    scale = query.shape[-1] ** -0.5 if scale is None else finite("graph", "scale", scale)
    return query.dtype.type(scale)


@host(scores="H edges")
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
    (scores,) = contiguous(scores)
    return fast.weights(scores, edges)


@host(scores="H edges", value="H Tk M")
def forward(
    scores: Array,
    value: Array,
    edges: Edges,
    *,
    dropout: float = 0.0,
    seed: int = 0,
    version: str = "fast",
) -> tuple[Array, Array]:
    """Attention to neighbours, equations (3) and (4).

    Args:
        scores: s `(H, edges)`, float32 or float64.
        value: `(H, Tk, M)`.
        edges: who sees whom.
        dropout: the probability that an edge's weight is dropped, in [0, 1).
        seed: the same seed drops the same edges; a whole number in [0, 2^63).
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output `(H, Tq, M)`, and p `(H, edges)`, before dropout, for `backward`.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: M is above 256, dropout or seed is out of its range, or there is no such
            version.

    Source: Veličković et al. 2018, equations 3 and 4; S3.

    Example:
        >>> import numpy as np
        >>> edges = Edges(np.array([0, 2, 2]), np.array([0, 1]), num_keys=2)
        >>> forward(np.zeros((1, 2)), np.array([[[1.0], [3.0]]]), edges)[0].tolist()
        [[[2.0], [0.0]]]
    """
    kernels = version_of(version, fast=fast, plain=plain)
    scores, value = contiguous(scores, value)
    numbers = dropout_arguments(dropout, seed, scores.dtype.type)
    return kernels.forward(scores, value, edges, *numbers)


@host(value="H Tk M", grad_output="H Tq M", output="H Tq M", weights="H edges")
def backward(
    grad_output: Array,
    value: Array,
    edges: Edges,
    output: Array,
    weights: Array,
    *,
    dropout: float = 0.0,
    seed: int = 0,
    version: str = "fast",
) -> tuple[Array, Array]:
    """The gradient of attention to neighbours, equations (5) and (6).

    Args:
        grad_output: `(H, Tq, M)`, dLoss/doutput.
        value: this and all the rest as `forward` took and returned it.

    Returns:
        ds `(H, edges)` and dv `(H, Tk, M)`.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    g, value, output, weights = contiguous(grad_output, value, output, weights)
    numbers = dropout_arguments(dropout, seed, g.dtype.type)
    return kernels.backward(g, value, edges, output, weights, *numbers)


@host(rows="T D", owners="T int")
def sum_by_owner(rows: Array, owners: Array, count: int) -> Array:
    """The sum of the rows of each owner: what `x[owners]` sends back to x.

    CuPy's `add.at` adds in another order at each call, with atomic operations, and so gives other
    last digits. Here they are added in the order of the rows.

    Args:
        rows: `(T, D)` float32 or float64.
        owners: `(T,)` integers in 0 .. count - 1, which are not looked at: a GPU would wait.
        count: V, how many owners there are.

    Returns:
        `(V, D)`.
    """
    xp, (length, width) = array_module(rows), rows.shape
    count = whole("graph.sum_by_owner", "count", count, 0)
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

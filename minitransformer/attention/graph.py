"""Attention to neighbours in a graph.

Each call checks the edges, and its backward sorts them by key. `nn.GraphAttention` does so once for
each `nn.Graph`.
"""

from typing import Any

from minitransformer_kernels import graph
from minitransformer_kernels.checks import finite
from minitransformer_kernels.graph import Edges

from ..device import Array, as_array
from ..function import Context, Function
from ..tensor import Tensor
from .checks import check_inputs, dropout_options, finite_scale


class AdditiveScores(Function):
    """LeakyReLU(a_i + b_j) of each edge."""

    @staticmethod
    def forward(ctx: Context, query_scores: Array, key_scores: Array, **options: Any) -> Array:
        """Return s (H, edges)."""
        # A number for each node; the sum for each edge is sooner made again than kept.
        ctx.save(query_scores, key_scores, options)
        return graph.additive_scores(query_scores, key_scores, **options)

    @staticmethod
    def backward(ctx: Context, grad_scores: Array) -> tuple[Array, Array]:
        """Return da, db."""
        *saved, options = ctx.saved
        return graph.additive_scores_backward(grad_scores, *saved, **options)


class DotScores(Function):
    """scale q_i . k_j of each edge."""

    @staticmethod
    def forward(ctx: Context, query: Array, key: Array, **options: Any) -> Array:
        """Return s (H, edges)."""
        ctx.save(query, key, options)
        return graph.dot_scores(query, key, **options)

    @staticmethod
    def backward(ctx: Context, grad_scores: Array) -> tuple[Array, Array]:
        """Return dQ, dK."""
        *saved, options = ctx.saved
        return graph.dot_scores_backward(grad_scores, *saved, **options)


class NeighbourAttention(Function):
    """Values, mixed by the softmax of the scores of a node's edges."""

    @staticmethod
    def forward(ctx: Context, scores: Array, value: Array, edges: Edges, **options: Any) -> Array:
        """Return the output (H, Tq, M)."""
        output, weights = graph.forward(scores, value, edges, **options)
        # One weight an edge is little beside the values, and the scores are needed no more. The
        # output gives delta_i = g_i . o_i. What dropout drops is known from the seed.
        ctx.save(value, edges, output, weights, options)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> tuple[Array, Array, None]:
        """Return ds, dV."""
        *saved, options = ctx.saved
        return *graph.backward(grad_output, *saved, **options), None


def graph_attention(
    query_scores: Tensor,
    key_scores: Tensor,
    value: Tensor,
    row_offsets: Any,
    columns: Any,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Average the values of a node's neighbours, weighted by the softmax of additive scores.

        o_i = sum_e p_e v_j      p_e = exp(s_e) / sum_e' exp(s_e')      s_e = LeakyReLU(a_i + b_j)

    where e = (i, j) and e' run over the edges of query node i. With a_i = c1 . W x_i,
    b_j = c2 . W x_j and v_j = W x_j it is the layer of a graph attention network.

    Args:
        query_scores: a, (H, Tq), float32 or float64.
        key_scores: b, (H, Tk), of the same dtype, as all floating inputs.
        value: (H, Tk, M).
        row_offsets: (Tq + 1,) integers; node i sees columns[row_offsets[i]:row_offsets[i + 1]].
        columns: (edges,) integers: key nodes. One that is there twice counts twice.
        negative_slope: the slope of LeakyReLU where its argument is below 0.
        dropout: the probability that an edge is dropped after the softmax, in [0, 1); the others
            are divided by 1 - dropout.
        seed: the same seed drops the same edges; None draws one.

    Returns:
        (H, Tq, M). A node without neighbours gives zeros.

    Raises:
        TypeError: an input is not floating, or offsets or columns are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Veličković et al. 2018, equations (1) to (4); S3.

    >>> value = Tensor([[[3.0], [6.0], [9.0]]])
    >>> a, b = Tensor([[0.0, 0.0]]), Tensor([[0.0, 0.0, 0.0]])
    >>> graph_attention(a, b, value, row_offsets=[0, 2, 3], columns=[0, 1, 2]).tolist()
    [[[4.5], [9.0]]]
    """
    name = "graph_attention"
    layout = {
        "query_scores": (query_scores, "H Tq"),
        "key_scores": (key_scores, "H Tk"),
        "value": (value, "H Tk M"),
    }
    check_inputs(name, layout)
    finite(name, "negative_slope", negative_slope)
    edges = _edges(name, row_offsets, columns, query_scores, key_scores)
    scores = AdditiveScores.apply(
        query_scores, key_scores, edges=edges, negative_slope=negative_slope
    )
    return neighbour_attention(name, scores, value, edges, dropout, seed)


def graph_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_offsets: Any,
    columns: Any,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Average the values of a node's neighbours, weighted by the softmax of products.

    The same as `graph_attention` with s_e = scale q_i . k_j. If every node sees all, it is softmax
    attention.

    Args:
        query: (H, Tq, E), float32 or float64.
        key: (H, Tk, E), of the same dtype, as all floating inputs.
        value: (H, Tk, M).
        row_offsets, columns, dropout, seed: as in `graph_attention`.
        scale: factor of the scores; 1 / sqrt(E) by default.

    Returns and raises what `graph_attention` does.

    Source: Vaswani et al. 2017, equation (1); S3.

    >>> same_keys, value = Tensor([[[1.0]] * 3]), Tensor([[[3.0], [6.0], [9.0]]])
    >>> graph_dot_product_attention(same_keys, same_keys, value, [0, 2, 3, 3], [0, 1, 2]).tolist()
    [[[4.5], [9.0], [0.0]]]
    """
    name = "graph_dot_product_attention"
    layout = {"query": (query, "H Tq E"), "key": (key, "H Tk E"), "value": (value, "H Tk M")}
    check_inputs(name, layout)
    edges = _edges(name, row_offsets, columns, query, key)
    scores = DotScores.apply(query, key, edges=edges, scale=finite_scale(name, scale))
    return neighbour_attention(name, scores, value, edges, dropout, seed)


def neighbour_attention(
    function: str, scores: Tensor, value: Tensor, edges: Edges, dropout: float, seed: int | None
) -> Tensor:
    """Mix the values (H, Tk, M) by the softmax of scores (H, edges) of any kind: (H, Tq, M)."""
    options = dropout_options(function, dropout, seed, by_place=False)
    output: Tensor = NeighbourAttention.apply(scores, value, edges, **options)
    return output


def _edges(function: str, row_offsets: Any, columns: Any, query: Tensor, key: Tensor) -> Edges:
    """Return the edges, having checked that they fit the nodes."""
    offsets, keys = (
        as_array(x.data if isinstance(x, Tensor) else x, query.device)
        for x in (row_offsets, columns)
    )
    try:
        edges = Edges(offsets, keys, key.shape[1])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}: {error}") from None
    if edges.num_queries != query.shape[1]:
        raise ValueError(
            f"{function}: row_offsets must have the shape (Tq + 1 = {query.shape[1] + 1},), one "
            f"more than there are query nodes, got ({edges.num_queries + 1},)"
        )
    return edges

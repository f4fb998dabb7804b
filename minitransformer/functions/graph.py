"""Attention along the edges of a graph: scores of edges, and what a softmax over them mixes.

The public functions, which check and explain, are in `minitransformer.attention`.
"""

from typing import Any

from minitransformer_kernels import graph
from minitransformer_kernels.graph import Edges

from ..device import Array
from ..function import Context, Function


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

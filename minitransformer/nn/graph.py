"""Graph attention: every node of a graph looks at its neighbours."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Self

import numpy as np

from minitransformer_kernels import graph as kernels
from minitransformer_kernels.checks import one_of, whole
from minitransformer_kernels.graph import Edges

from .. import functions as F
from ..attention.checks import check_inputs
from ..attention.graph import AdditiveScores, DotScores, neighbour_attention
from ..device import Array, array_module, as_array, device_of, to_device
from ..function import no_grad
from ..tensor import Tensor
from .layers import Linear, check_positive, xavier_uniform
from .module import Module, Parameter


class Graph:
    """Who sees whom: the key nodes that each query node attends to.

    Query nodes and key nodes may be the same; in a graph that grows, new nodes may see old ones. An
    edge that is there twice counts twice, and a node sees itself only where an edge says so. The
    order of the sums that a backward takes is found once, and kept with the graph.

    Args:
        row_offsets: (Tq + 1,) integers; node i sees columns[row_offsets[i]:row_offsets[i + 1]].
        columns: (edges,) integers: key nodes.
        num_keys: Tk; None: keys and queries are the same nodes.
        numbers: (edges,) integers, from 0: which edge each is in a larger graph of which this is a
            part. Dropout drops the same ones in every part. None: edge e is number e.

    Raises:
        TypeError: the arrays do not hold integers.
        ValueError: the offsets do not rise from 0 to the number of edges, a column is no key, or
            numbers are not one for each edge, or below 0.

    >>> Graph([0, 2, 3, 3], [1, 2, 0])
    Graph(num_queries=3, num_keys=3, num_edges=3)
    """

    def __init__(
        self, row_offsets: Any, columns: Any, num_keys: int | None = None, numbers: Any = None
    ) -> None:
        offsets = as_array(row_offsets)
        device = device_of(offsets)
        keys = max(0, offsets.size - 1) if num_keys is None else num_keys
        self.numbered = numbers is not None
        numbers = None if numbers is None else as_array(numbers, device)
        self.edges = Edges(offsets, as_array(columns, device), keys, numbers)
        self.row_offsets: Array = self.edges.offsets
        self.columns: Array = self.edges.columns

    @classmethod
    def from_edges(
        cls,
        queries: Any,
        keys: Any,
        *,
        num_queries: int | None = None,
        num_keys: int | None = None,
        self_loops: bool = False,
    ) -> Self:
        """Build a graph of edges in any order: node queries[e] sees node keys[e].

        Args:
            queries: (edges,) integers.
            keys: (edges,) integers.
            num_queries: Tq; None: up to the largest number that occurs.
            num_keys: Tk; None: keys and queries are the same nodes.
            self_loops: whether each node shall see itself; queries and keys must be the same.

        Returns:
            The graph. Of the edges of a node, those given first come first.

        Raises:
            TypeError: the arrays do not hold integers.
            ValueError: the arrays differ in length, an edge leads out of the graph, or nodes that
                are not the same should see themselves.

        >>> Graph.from_edges([1, 0, 1], [0, 2, 2], self_loops=True).columns.tolist()
        [2, 0, 0, 2, 1, 2]
        """
        queries = as_array(queries)
        keys = as_array(keys, device_of(queries))
        _check_ends(queries, keys)
        xp = array_module(queries)
        queries, keys = queries.astype(np.int64), keys.astype(np.int64)
        if num_queries is None:
            ends = (queries, keys) if num_keys is None else (queries,)
            num_queries = 1 + max((int(x.max()) for x in ends if x.size), default=-1)
        num_queries = whole("Graph.from_edges", "num_queries", num_queries, 0)
        if num_keys is None:
            num_keys = num_queries
        if queries.size and not (int(queries.min()) >= 0 and int(queries.max()) < num_queries):
            raise ValueError(
                f"Graph.from_edges: queries must be 0..{num_queries - 1}, got "
                f"{int(queries.min())}..{int(queries.max())}"
            )
        if self_loops:
            queries, keys = _with_self_loops(queries, keys, num_queries, num_keys)
        order = xp.argsort(queries, kind="stable")
        offsets = xp.searchsorted(queries[order], xp.arange(num_queries + 1))
        return cls(offsets, keys[order], num_keys)

    @classmethod
    def union(cls, graphs: Iterable["Graph"]) -> Self:
        """Put graphs side by side: a batch of them is one graph, without edges between its parts.

        Args:
            graphs: at least one, all on one device, none with numbers of its own.

        Returns:
            The graph: nodes and edges of each part, and after them those of the next.

        Raises:
            ValueError: there are no graphs, or one has numbers of its own: parts of different
                graphs may have the same.

        >>> Graph.union([Graph([0, 1, 2], [1, 0]), Graph([0, 1], [0])]).columns.tolist()
        [1, 0, 2]
        """
        graphs = list(graphs)
        if not graphs:
            raise ValueError("Graph.union: expected at least one graph, got none")
        if any(graph.numbered for graph in graphs):
            raise ValueError(
                "Graph.union: expected graphs without numbers of their own, got some with; give "
                "the union its numbers: Graph(..., numbers=...)"
            )
        parts = [graph.edges for graph in graphs]
        xp = array_module(parts[0].columns)
        first_edge = np.cumsum([0, *(len(part.columns) for part in parts)]).tolist()
        first_key = np.cumsum([0, *(part.num_keys for part in parts)]).tolist()
        offsets = [
            part.offsets[:-1] + first for part, first in zip(parts, first_edge, strict=False)
        ]
        columns = [part.columns + first for part, first in zip(parts, first_key, strict=False)]
        offsets.append(xp.asarray(first_edge[-1:]))
        return cls(xp.concatenate(offsets), xp.concatenate(columns), first_key[-1])

    @property
    def rows(self) -> Array:
        """(edges,) int64: the query of each edge."""
        rows: Array = self.edges.rows
        return rows

    @property
    def num_queries(self) -> int:
        """Tq."""
        return self.edges.num_queries

    @property
    def num_keys(self) -> int:
        """Tk."""
        return self.edges.num_keys

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return len(self.columns)

    @property
    def device(self) -> str:
        """Where the arrays are: "cpu" or "cuda"."""
        return device_of(self.columns)

    def to(self, device: str) -> "Graph":
        """Return the graph on a device, "cpu" or "cuda"; itself where it is there already."""
        if device == self.device:
            return self
        there = copy(self)
        there.edges = self.edges.moved(lambda array: to_device(array, device))
        there.row_offsets, there.columns = there.edges.offsets, there.edges.columns
        return there

    def __repr__(self) -> str:
        sizes = "num_queries", "num_keys", "num_edges"
        return f"Graph({', '.join(f'{name}={getattr(self, name)}' for name in sizes)})"


def _check_ends(queries: Array, keys: Array) -> None:
    for name, array in (("queries", queries), ("keys", keys)):
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(
                f"Graph.from_edges: {name} must be integers, the numbers of nodes, got "
                f"{array.dtype}"
            )
    if queries.shape != keys.shape or queries.ndim != 1:
        raise ValueError(
            "Graph.from_edges: queries and keys must have one shape (edges,), got "
            f"{queries.shape} and {keys.shape}; for (2, edges) pass its two rows"
        )


def _with_self_loops(
    queries: Array, keys: Array, num_queries: int, num_keys: int
) -> tuple[Array, Array]:
    """Return the edges, and one from each node to itself where there is none yet."""
    if num_keys != num_queries:
        raise ValueError(
            "Graph.from_edges: self_loops need queries and keys to be the same nodes, got "
            f"{num_queries} and {num_keys} of them"
        )
    xp = array_module(queries)
    lonely = xp.ones(num_queries, bool)
    lonely[queries[queries == keys]] = False
    nodes = xp.flatnonzero(lonely)
    return xp.concatenate([queries, nodes]), xp.concatenate([keys, nodes])


class AdditiveScore(Module):
    """LeakyReLU(c^T [W x_i || W x_j]), the score of graph attention networks.

    c^T W x_i is made as (c^T W) x_i: a product of each node with one vector for each head. W is the
    projection of the values, too.

    Source: Veličković et al. 2018, equation (3); S3.
    """

    def __init__(self, projection: Linear, num_heads: int, negative_slope: float) -> None:
        self.projection = projection
        self.num_heads = num_heads
        self.negative_slope = negative_slope
        width = 2 * projection.out_features // num_heads
        self.vector = Parameter(
            np.concatenate([xavier_uniform(1, width) for _ in range(num_heads)])
        )

    def forward(self, query_x: Tensor, x: Tensor, edges: Edges) -> Tensor:
        """Score each edge between nodes (Tq, in) and (Tk, in): (H, edges)."""
        heads, width = self.vector.shape
        weight = self.projection.weight.reshape(heads, width // 2, -1)  # (H, out, in)
        halves = self.vector.reshape(heads, 2, width // 2) @ weight  # (H, 2, in)
        a, b = halves[:, 0] @ query_x.T, halves[:, 1] @ x.T  # (H, Tq), (H, Tk)
        scores: Tensor = AdditiveScores.apply(a, b, edges=edges, negative_slope=self.negative_slope)
        return scores

    def extra_repr(self) -> str:
        """Return the slope."""
        return f"negative_slope={self.negative_slope}"


class DotScore(Module):
    """scale (W_q x_i) . (W_k x_j), the scores of multi-head attention.

    Source: S3; Vaswani et al. 2017, equation (1).
    """

    def __init__(self, in_features: int, out_features: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.query_projection = Linear(in_features, num_heads * out_features, bias=False)
        self.key_projection = Linear(in_features, num_heads * out_features, bias=False)

    def forward(self, query_x: Tensor, x: Tensor, edges: Edges) -> Tensor:
        """Score each edge between nodes (Tq, in) and (Tk, in): (H, edges)."""
        query = _split(self.query_projection(query_x), self.num_heads)
        key = _split(self.key_projection(x), self.num_heads)
        scores: Tensor = DotScores.apply(query, key, edges=edges)
        return scores


class MultiHeadScore(Module):
    """ELU(W_s [y_i || y_j] + b_s), with (y_i, y_j) multi-head attention of (W x_i, W x_j).

    The two ends of an edge are a sequence of two tokens. As one vector, W x_i || W x_j would be a
    sequence of one: its softmax is 1 whatever it holds, and attention nothing but a projection. W
    is the projection of the values, too. Attention in each such sequence is attention in a graph:
    every end of an edge sees both. So nodes are projected once, however many edges they have.

    Source: S3.
    """

    def __init__(self, projection: Linear, num_heads: int) -> None:
        width = projection.out_features
        self.projection = projection
        self.num_heads = num_heads
        self.query_projection = Linear(width, width)
        self.key_projection = Linear(width, width)
        self.value_projection = Linear(width, width)
        self.out_projection = Linear(2 * width, num_heads)

    def forward(self, query_x: Tensor, x: Tensor, edges: Edges) -> Tensor:
        """Score each edge between nodes (Tq, in) and (Tk, in): (H, edges)."""
        nodes = F.cat([self.projection(query_x), self.projection(x)])  # (Tq + Tk, H M)
        ends, pairs = _pairs(edges)
        asking = F.embedding(ends.ravel(), self.query_projection(nodes))  # (2 edges, H M)
        query = _split(asking, self.num_heads)
        key = _split(self.key_projection(nodes), self.num_heads)
        value = _split(self.value_projection(nodes), self.num_heads)
        scores = DotScores.apply(query, key, edges=pairs)
        heads = neighbour_attention("MultiHeadScore", scores, value, pairs, 0.0, None)
        both = heads.transpose(0, 1).reshape(len(ends), self.out_projection.in_features)
        return F.elu(self.out_projection(both)).T


def _pairs(edges: Edges) -> tuple[Array, Edges]:
    """Return the ends (edges, 2) of each edge, and the graph in which each of them sees both.

    Key nodes are counted on from the query nodes.
    """
    xp, queries = array_module(edges.rows), edges.num_queries
    ends = xp.stack([edges.rows, queries + edges.columns], axis=1)
    offsets = 2 * xp.arange(ends.size + 1)
    return ends, Edges(offsets, ends.repeat(2, axis=0).ravel(), queries + edges.num_keys)


class GraphAttention(Module):
    """A graph attention network's layer: each head mixes the projected values of the neighbours.

    Args:
        in_features: width of a node.
        out_features: M, width of a head's output.
        num_heads: H.
        score: "additive", LeakyReLU(c^T [W x_i || W x_j]); "dot", multi-head attention's product
            of projections; or "multi_head", ELU(multi-head attention of W x_i and W x_j).
        concat: whether the heads' outputs stand side by side, or else are averaged.
        negative_slope: of LeakyReLU, below 0; for additive scores.
        bias: whether a learned vector is added to the output.
        dropout: the probability that an edge is dropped in training, after the softmax.

    Raises:
        ValueError: a size is below 1, dropout is no probability, or there is no such score.

    Source: Veličković et al. 2018; S3.

    >>> from minitransformer import Tensor, nn
    >>> graph = nn.Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> layer = nn.GraphAttention(4, 8, num_heads=2)
    >>> layer(Tensor([[0.5] * 4] * 3), graph).shape
    (3, 16)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_heads: int,
        *,
        score: str = "additive",
        concat: bool = True,
        negative_slope: float = 0.2,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        check_positive(
            self, in_features=in_features, out_features=out_features, num_heads=num_heads
        )
        scores: dict[str, Callable[[], Module]] = {
            "additive": lambda: AdditiveScore(self.value_projection, num_heads, negative_slope),
            "dot": lambda: DotScore(in_features, out_features, num_heads),
            "multi_head": lambda: MultiHeadScore(self.value_projection, num_heads),
        }
        one_of("GraphAttention", "score", score, tuple(scores))
        if not 0 <= dropout < 1:
            raise ValueError(f"GraphAttention: dropout must be in [0, 1), got {dropout}")
        self.in_features, self.num_heads = in_features, num_heads
        self.concat, self.dropout = concat, dropout
        self.value_projection = Linear(in_features, num_heads * out_features, bias=False)
        self.score = scores[score]()
        width = num_heads * out_features if concat else out_features
        self.bias = Parameter(np.zeros(width, np.float32)) if bias else None

    def forward(self, x: Tensor, graph: Graph, query_x: Tensor | None = None) -> Tensor:
        """Let each query node attend to its neighbours.

        Args:
            x: (Tk, in_features), the key nodes.
            graph: of Tq query nodes and Tk key nodes.
            query_x: (Tq, in_features); the key nodes themselves by default.

        Returns:
            (Tq, H * out_features), or with `concat=False` (Tq, out_features).

        Raises:
            TypeError: an input is not floating.
            ValueError: nodes and graph do not fit, or are on different devices.
        """
        scores = self._scores(x, graph, query_x)
        value = _split(self.value_projection(x), self.num_heads)  # (H, Tk, M)
        dropout = self.dropout if self.training else 0.0
        output = neighbour_attention("GraphAttention", scores, value, graph.edges, dropout, None)
        if self.concat:
            heads, nodes, columns = output.shape
            joined = output.transpose(0, 1).reshape(nodes, heads * columns)  # (Tq, H M)
        else:
            joined = F.mean(output, 0)  # (Tq, M)
        return joined if self.bias is None else joined + self.bias

    def attention_weights(self, x: Tensor, graph: Graph, query_x: Tensor | None = None) -> Tensor:
        """Return the weight of each edge, for pictures: (H, edges), without a gradient.

        Edge e leads from graph.rows[e] to graph.columns[e].
        """
        with no_grad():
            return Tensor(kernels.weights(self._scores(x, graph, query_x).data, graph.edges))

    def _scores(self, x: Tensor, graph: Graph, query_x: Tensor | None) -> Tensor:
        if not isinstance(graph, Graph):
            raise TypeError(
                f"GraphAttention: expected a Graph, got {type(graph).__name__}; make one by "
                "nn.Graph.from_edges"
            )
        query_x = x if query_x is None else query_x
        sizes = {"in": self.in_features, "Tk": graph.num_keys, "Tq": graph.num_queries}
        layout = {"x": (x, "Tk in"), "query_x": (query_x, "Tq in")}
        check_inputs("GraphAttention", layout, sizes=sizes)
        if graph.device != x.device:
            raise ValueError(
                f"GraphAttention: the graph is on {graph.device}, but x is on {x.device}; move it: "
                "graph.to(x.device)"
            )
        return self.score(query_x, x, graph.edges)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"num_heads={self.num_heads}, concat={self.concat}, dropout={self.dropout}"


def _split(x: Tensor, num_heads: int) -> Tensor:
    count, width = x.shape  # (T, H M)
    return x.reshape(count, num_heads, width // num_heads).transpose(0, 1)  # (H, T, M)

"""Graphs, attention along their edges through the tape, and the layer around it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from minitransformer import Tensor, gradcheck, manual_seed, nn
from minitransformer import functions as F
from minitransformer.attention import graph_attention, graph_dot_product_attention
from minitransformer.nn import Graph, GraphAttention
from minitransformer.optim import Adam
from minitransformer_kernels import reference
from tests.refusals import refusals

from .models import check_gradients

H, QUERIES, KEYS, E, M = 2, 4, 5, 3, 2
OFFSETS, COLUMNS = [0, 2, 2, 3, 6], [0, 1, 4, 2, 2, 3]  # a node without edges, an edge twice
ATTENTIONS: dict[str, Any] = {
    "additive": (graph_attention, reference.graph_attention, ()),
    "dot": (graph_dot_product_attention, reference.graph_dot_product_attention, (E,)),
}


def drawn(score: str) -> list[np.ndarray]:
    """Inputs of an attention."""
    rng, width = np.random.default_rng(0), ATTENTIONS[score][2]
    return [rng.normal(size=s) for s in ((H, QUERIES, *width), (H, KEYS, *width), (H, KEYS, M))]


@pytest.mark.parametrize("score", ATTENTIONS)
def test_attention_is_that_of_the_reference(score: str) -> None:
    attend, truth, _ = ATTENTIONS[score]
    inputs = drawn(score)
    found = attend(*map(Tensor, inputs), Tensor(np.array(OFFSETS)), COLUMNS).numpy()
    assert_allclose(found, truth(*inputs, OFFSETS, COLUMNS), rtol=1e-12)


@pytest.mark.parametrize("score", ATTENTIONS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients(score: str, dropout: float) -> None:
    attend, _, _ = ATTENTIONS[score]

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = attend(query, key, value, OFFSETS, COLUMNS, dropout=dropout, seed=3)
        return output

    gradcheck(call, drawn(score))


def test_a_seed_is_drawn_where_none_is_given() -> None:
    """From the engine's generator, so that a run repeats; with a seed, none is drawn."""
    query, key, value = (Tensor(x) for x in drawn("dot"))

    def dropped(seed: int | None = None) -> Any:
        attend = graph_dot_product_attention
        return attend(query, key, value, OFFSETS, COLUMNS, dropout=0.5, seed=seed).tolist()

    manual_seed(1)
    first, second = dropped(), dropped()
    manual_seed(1)
    assert dropped(7) == dropped(7)
    assert (dropped(), dropped()) == (first, second)
    assert first != second


def with_arguments(score: str) -> Callable[..., Any]:
    """An attention with arguments that fit, but for those that it is called with."""
    query, key, value = map(Tensor, drawn(score))
    given = {"value": value, "row_offsets": OFFSETS, "columns": COLUMNS}
    return lambda **changed: ATTENTIONS[score][0](query, key, **given | changed)


OF_ANY_SCORE: tuple[tuple[Any, ...], ...] = (
    ({"row_offsets": [0, 2, 6]}, "row_offsets must have the shape (Tq + 1 = 5,), one more than"),
    ({"row_offsets": [0, 1, 2, 3, 4]}, "edges: row_offsets must rise from 0 to 6, the number of"),
    ({"columns": [0, 1, 5, 2, 2, 3]}, "edges: columns must be key nodes 0..4, got 0..5"),
    ({"columns": [0.5] * 6}, TypeError, "edges: columns must be integers"),
    ({"dropout": 1.0}, "dropout must be a probability in [0, 1), got 1.0"),
    ({"value": Tensor(np.ones((H, 3, M)))}, "value must have the shape (H=2, Tk=5, M), got (2, 3"),
    ({"value": Tensor(np.ones((H, KEYS, M), np.float32))}, "value is float32, but query"),
)
test_refusals_by_additive_scores = refusals(
    *OF_ANY_SCORE,
    ({"negative_slope": np.nan}, "negative_slope must be a finite number, got nan"),
    of=with_arguments("additive"), name="graph_attention",
)  # fmt: skip
test_refusals_by_products = refusals(
    *OF_ANY_SCORE,
    ({"scale": np.inf}, "scale must be a finite number, got inf"),
    of=with_arguments("dot"), name="graph_dot_product_attention",
)  # fmt: skip


# -- Graphs ----------------------------------------------------------------------------------------


def test_edges_in_any_order() -> None:
    graph = Graph.from_edges([2, 0, 2, 3], [1, 4, 0, 3], num_queries=4, num_keys=5)
    assert graph.row_offsets.tolist() == [0, 1, 1, 3, 4]
    assert graph.columns.tolist() == [4, 1, 0, 3]
    assert graph.edges.rows.tolist() == graph.rows.tolist() == [0, 2, 2, 3]
    assert (graph.num_queries, graph.num_keys, graph.num_edges) == (4, 5, 4)


@pytest.mark.parametrize("concat", [True, False])
def test_no_nodes(concat: bool) -> None:
    layer = GraphAttention(6, 4, 2, concat=concat)
    x = Tensor(np.ones((0, 6), np.float32), requires_grad=True)
    output = layer(x, Graph.from_edges([], []))
    output.sum().backward()
    assert output.shape == (0, 8 if concat else 4)  # two heads of 4 columns, or their mean
    assert x.grad.shape == (0, 6)


def test_nodes_are_counted_where_nobody_says_how_many() -> None:
    assert repr(Graph.from_edges([0, 1], [3, 0])) == "Graph(num_queries=4, num_keys=4, num_edges=2)"
    assert repr(Graph.from_edges([], [])) == "Graph(num_queries=0, num_keys=0, num_edges=0)"
    two = Graph.from_edges([0, 1], [3, 0], num_keys=6)
    assert repr(two) == "Graph(num_queries=2, num_keys=6, num_edges=2)"
    assert repr(Graph([0, 0, 0], [])) == "Graph(num_queries=2, num_keys=2, num_edges=0)"


def test_a_node_sees_itself_once() -> None:
    """Nodes that see themselves already get no second edge."""
    graph = Graph.from_edges([1, 1, 0], [1, 0, 1], num_queries=3, self_loops=True)
    seen = [graph.columns[graph.rows == node].tolist() for node in range(3)]
    assert seen == [[1, 0], [1, 0], [2]]


test_edges_that_are_none = refusals(
    (lambda: Graph.from_edges([0, 1], [0]),
     "Graph.from_edges: queries and keys must have one shape (edges,), got (2,) and (1,)"),
    (lambda: Graph.from_edges([0.0], [0]), TypeError, "Graph.from_edges: queries must be integers"),
    (lambda: Graph.from_edges([0, 4], [0, 1], num_queries=3),
     "Graph.from_edges: queries must be 0..2, got 0..4"),
    (lambda: Graph.from_edges([0, 1], [0, 4], num_queries=3),
     "edges: columns must be key nodes 0..2, got 0..4"),
    (lambda: Graph.from_edges([4], [4], num_queries=3, num_keys=3, self_loops=True),
     "Graph.from_edges: queries must be 0..2, got 4..4"),
    (lambda: Graph.from_edges([0], [0], num_queries=2, num_keys=3, self_loops=True),
     "Graph.from_edges: self_loops need queries and keys to be the same nodes, got 2 and 3 of "
     "them"),
)  # fmt: skip


def test_a_union_keeps_its_parts_apart() -> None:
    """Attention in a union of graphs gives what it gives in each."""
    rng = np.random.default_rng(0)
    graphs = [
        Graph(OFFSETS, COLUMNS, KEYS),
        Graph([0, 0], [], 2),
        Graph([0, 3, 5], [1, 1, 0, 0, 1]),
    ]
    layer = GraphAttention(3, 4, 2)
    keys, queries = (
        [Tensor(rng.normal(size=(n, 3)).astype(np.float32), requires_grad=True) for n in counts]
        for counts in ((KEYS, 2, 2), (QUERIES, 1, 2))
    )
    union = Graph.union(graphs)
    whole = layer(F.cat(keys), union, F.cat(queries))
    assert (union.num_queries, union.num_keys, union.num_edges) == (7, 9, 11)
    parts = [layer(x, g, q).numpy() for x, g, q in zip(keys, graphs, queries, strict=True)]
    assert_allclose(whole.numpy(), np.concatenate(parts), rtol=1e-6)
    with pytest.raises(TypeError, match="GraphAttention: expected a Graph, got tuple"):
        layer(keys[0], ([0, 1], [0]))
    with pytest.raises(ValueError, match="at least one graph"):
        Graph.union([])
    with pytest.raises(ValueError, match="without numbers of their own"):
        Graph.union([Graph([0, 1], [0]), Graph([0, 1], [0], numbers=[3])])


def test_a_graph_is_on_a_device() -> None:
    graph = Graph(OFFSETS, COLUMNS, KEYS)
    assert graph.device == "cpu"
    assert graph.to("cpu") is graph


# -- The layer -------------------------------------------------------------------------------------


def layer_of(score: str, **options: Any) -> tuple[GraphAttention, Graph, Tensor, Tensor]:
    """A layer in float64, with a graph, its key nodes and its query nodes."""
    manual_seed(0)
    layer = GraphAttention(3, M, H, score=score, **options)
    for parameter in layer.parameters():
        parameter.data = parameter.data.astype(np.float64) + 0.01
    rng = np.random.default_rng(0)
    x, query_x = (Tensor(rng.normal(size=(n, 3))) for n in (KEYS, QUERIES))
    return layer, Graph(OFFSETS, COLUMNS, KEYS), x, query_x


SCORES = *ATTENTIONS, "multi_head"


def pair_score(weights: dict[str, np.ndarray], x_i: np.ndarray, x_j: np.ndarray) -> np.ndarray:
    """The score (H,) of one edge: ELU of multi-head attention of its two ends, projected."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    tokens = np.stack([x_i, x_j]) @ weights["value_projection.weight"].T  # (2, H M)
    query, key, value = (
        linear(f"score.{name}_projection", tokens) for name in ("query", "key", "value")
    )
    heads = []
    for of_head in (slice(M * h, M * h + M) for h in range(H)):
        scores = query[:, of_head] @ key[:, of_head].T / np.sqrt(M)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        heads.append(p @ value[:, of_head])  # (2, M)
    score = linear("score.out_projection", np.concatenate(heads, axis=1).ravel())
    return np.where(score > 0, score, np.expm1(score))


def by_hand(layer: GraphAttention, x: np.ndarray, query_x: np.ndarray) -> np.ndarray:
    """The heads' outputs (H, Tq, M) by the definition: c^T [W x_i || W x_j] for each pair."""
    weights = {name: p.numpy() for name, p in layer.named_parameters()}

    def project(name: str, nodes: np.ndarray) -> np.ndarray:
        rows = nodes @ weights[name].T
        return rows.reshape(len(nodes), H, -1).transpose(1, 0, 2)  # (H, T, M)

    value = project("value_projection.weight", x)
    if isinstance(layer.score, nn.graph.DotScore):
        query = project("score.query_projection.weight", query_x)
        key = project("score.key_projection.weight", x)
        return reference.graph_dot_product_attention(query, key, value, OFFSETS, COLUMNS)
    if isinstance(layer.score, nn.graph.MultiHeadScore):
        heads = np.zeros((H, QUERIES, M))
        for i, (first, last) in enumerate(pairwise(OFFSETS)):
            seen = COLUMNS[first:last]
            if seen:
                s = np.exp([pair_score(weights, query_x[i], x[j]) for j in seen])  # (edges of i, H)
                heads[:, i] = np.einsum("eh,hem->hm", s / s.sum(axis=0), value[:, seen])
        return heads
    mine, theirs = np.split(weights["score.vector"], 2, axis=1)  # (H, M)
    a = np.sum(mine[:, None] * project("value_projection.weight", query_x), axis=-1)
    b = np.sum(theirs[:, None] * value, axis=-1)
    return reference.graph_attention(a, b, value, OFFSETS, COLUMNS)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("score", SCORES)
def test_layer_is_its_definition(score: str, concat: bool) -> None:
    layer, graph, x, query_x = layer_of(score, concat=concat)
    heads = by_hand(layer, x.numpy(), query_x.numpy())
    joined = heads.transpose(1, 0, 2).reshape(QUERIES, H * M) if concat else heads.mean(axis=0)
    wanted = joined + layer.bias.numpy()
    assert_allclose(layer(x, graph, query_x).numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_the_layer(score: str) -> None:
    """Of every parameter, and of both kinds of nodes."""
    layer, graph, x, query_x = layer_of(score, concat=score != "additive")
    check_gradients(layer, lambda layer, *nodes: layer(nodes[0], graph, nodes[1]), x, query_x)


@pytest.mark.parametrize("score", SCORES)
def test_weights_are_those_that_mix(score: str) -> None:
    layer, graph, x, query_x = layer_of(score, bias=False)
    weights = layer.attention_weights(x, graph, query_x)
    assert weights.shape == (H, graph.num_edges) and not weights.requires_grad
    value = layer.value_projection(x).numpy().reshape(KEYS, H, M)
    wanted = np.zeros((QUERIES, H, M))
    np.add.at(wanted, graph.rows, weights.numpy().T[..., None] * value[graph.columns])
    assert_allclose(layer(x, graph, query_x).numpy(), wanted.reshape(QUERIES, -1), rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_a_graph_without_edges_gives_zeros(score: str) -> None:
    layer, _, x, query_x = layer_of(score, bias=False)
    output = layer(x, Graph([0] * (QUERIES + 1), [], KEYS), query_x)
    assert_array_equal(output.numpy(), np.zeros((QUERIES, H * M)))


def test_edges_are_dropped_in_training_only() -> None:
    layer, graph, x, query_x = layer_of("additive", dropout=0.5)
    first, second = (layer(x, graph, query_x).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    layer.eval()
    first, second = (layer(x, graph, query_x).numpy() for _ in range(2))
    assert_array_equal(first, second)


def attended(x: Any) -> Tensor:
    """What a layer makes of its nodes."""
    layer, graph, _, _ = layer_of("additive")
    return layer(x, graph)


test_nodes_that_do_not_fit = refusals(
    (lambda: attended(Tensor(np.ones((4, 3)))),
     "GraphAttention: x must have the shape (Tk=5, in=3), got (4"),
    (lambda: attended(Tensor(np.ones((5, 2)))),
     "GraphAttention: x must have the shape (Tk=5, in=3), got (5"),
    (lambda: attended(Tensor(np.ones((5, 3)))),
     "GraphAttention: query_x must have the shape (Tq=4, in=3)"),
    (lambda: attended(np.ones((5, 3))), TypeError, "GraphAttention: x must be a Tensor"),
)  # fmt: skip


test_layers_that_cannot_be = refusals(
    ({"score": "sum"},
     "GraphAttention: score must be one of 'additive', 'dot', 'multi_head', got 'sum'"),
    ({"dropout": 1}, "GraphAttention: dropout must be in [0, 1), got 1"),
    ({"num_heads": 0}, "GraphAttention: num_heads must be a whole number above 0, got 0"),
    of=lambda **options: GraphAttention(3, 2, **{"num_heads": 2, **options}),
)  # fmt: skip


def asked_of_one_neighbour(seed: int) -> tuple[Graph, Tensor, np.ndarray]:
    """A graph in which node 5 i + 4 has to say the sign that one of the four before it carries.

    That one is marked. Features of a node: the sign, the mark, and 1.
    """
    rng, count = np.random.default_rng(seed), 100
    sign, marked = rng.choice([-1, 1], (count, 4)), rng.integers(0, 4, count)
    x = np.zeros((count, 5, 3), np.float32)
    x[:, :4, 0], x[np.arange(count), marked, 1], x[..., 2] = sign, 1, 1
    keys = np.delete(np.arange(5 * count), slice(4, None, 5))
    graph = Graph.from_edges(keys // 5, keys, num_queries=count, num_keys=5 * count)
    return graph, Tensor(x.reshape(-1, 3)), (sign[np.arange(count), marked] + 1) // 2


@pytest.mark.parametrize("score", SCORES)
def test_a_layer_learns_whom_to_attend_to(score: str) -> None:
    """On a graph that it has never seen; the mean of all neighbours is right in two of three."""
    manual_seed(0)
    layer = GraphAttention(3, 2, 1, score=score)
    optimizer = Adam(layer.parameters(), lr=0.05)

    def logits(graph: Graph, x: Tensor) -> Tensor:
        return layer(x, graph, x[4::5])

    graph, x, target = asked_of_one_neighbour(seed=1)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(logits(graph, x), Tensor(target)).backward()
        optimizer.step()
    graph, x, target = asked_of_one_neighbour(seed=2)
    assert (logits(graph, x).numpy().argmax(axis=1) == target).mean() > 0.95

"""Graph attention: its kernels against a dense matrix of edges, and what only graphs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from minitransformer_kernels import checked, graph, reference
from minitransformer_kernels.graph import SPAN, Edges, fast
from minitransformer_kernels.layers.dropout import random_word

from ..cases import LAYOUTS, Array, Arrays
from ..properties import array_library, assert_all_equal, assert_within, times, to_numpy
from ..rounding import ROUNDINGS, RUNS, allowed_rows
from .mutants import bugs, hunt

# A graph by the degrees of its nodes: few, none at all, and more than one piece of a row holds.
DEGREES = {
    "some": (3, 0, 1, 5, 2),
    "none": (0, 0, 0),
    "one": (1,),
    "hub": (2, 2 * SPAN + 3, 0, SPAN, SPAN + 1),
    "no nodes": (),
}
VERSIONS = pytest.mark.parametrize("version", ["fast", "plain"])


@dataclass(frozen=True)
class Case:
    """A graph of random edges, and how to draw inputs."""

    score: str = "additive"
    degrees: str = "some"
    num_keys: int = 6
    heads: int = 2
    head_dim: int = 3
    value_dim: int = 5
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float64"
    index: str = "int64"
    seed: int = 0
    spread: float = 1.0
    layout: str = "contiguous"
    version: str = "fast"
    level: float = 0.0

    def edges(self) -> tuple[Array, Array]:
        """Draws offsets and columns; that some edges are there twice is likely."""
        rng = np.random.default_rng(self.seed)
        offsets = np.cumsum([0, *DEGREES[self.degrees]]).astype(self.index)
        return offsets, rng.integers(0, self.num_keys, offsets[-1]).astype(self.index)

    def inputs(self) -> Arrays:
        """Draws what is differentiated, and the cotangent g."""
        rng = np.random.default_rng(self.seed + 1)
        queries, width = len(DEGREES[self.degrees]), (self.head_dim,) * (self.score == "dot")
        shapes = {
            "query": (self.heads, queries, *width),
            "key": (self.heads, self.num_keys, *width),
            "value": (self.heads, self.num_keys, self.value_dim),
            "g": (self.heads, queries, self.value_dim),
        }
        drawn = {name: self.spread * rng.normal(size=shape) for name, shape in shapes.items()}
        if self.level:
            drawn |= self.far(drawn["query"], drawn["key"])
        return {name: x.astype(self.dtype) for name, x in drawn.items()}

    def far(self, query: Array, key: Array) -> Arrays:
        """With these, scores are around `level`, and exact in float32, as all is on a grid.

        At 50,000 float32 has steps of 0.004, and so much is a matter of luck in a sum of products.
        """
        size = (abs(self.level) / self.head_dim**0.5) ** 0.5
        if self.score == "additive":
            query = self.level + query
        else:
            query, key = np.copysign(np.round(size), self.level) + 0 * query, size + key / size
        return {"query": np.round(128 * query) / 128, "key": np.round(128 * key) / 128}


Ends = tuple[Array, Array]  # offsets and columns


def passes(case: Case, edges: Ends, inputs: Arrays, module: Any = graph, **dropout: Any) -> Arrays:
    """The output and the gradients by the kernels of a module."""
    query, key, value, g = inputs.values()
    built, options = module.Edges(*edges, key.shape[1]), dict(case.options, version=case.version)
    scores, scores_backward = (
        getattr(module, f"{case.score}_scores{way}") for way in ("", "_backward")
    )
    s = scores(query, key, built, **options)
    dropout["version"] = case.version
    output, weights = module.forward(s, value, built, **dropout)
    ds, dv = module.backward(g, value, built, output, weights, **dropout)
    dq, dk = scores_backward(ds, query, key, built, **options)
    return of_nodes({"output": output, "query": dq, "key": dk, "value": dv})


def of_nodes(arrays: Arrays) -> Arrays:
    """With a row for each node, even where that has one number: (H, T, M)."""
    return {name: x if x.ndim == 3 else x[..., None] for name, x in arrays.items()}


def run(case: Case, edges: Ends, inputs: Arrays, device: str, module: Any = graph) -> Arrays:
    """The same on a device, back in NumPy."""
    xp = array_library(device)
    offsets, columns = map(xp.asarray, edges)
    placed = {name: xp.asarray(x) for name, x in inputs.items()}
    return to_numpy(passes(case, (offsets, columns), placed, module))


def truth(case: Case, edges: Ends, inputs: Arrays, dtype: Any = np.float64) -> Arrays:
    """The same by the dense reference."""
    name = "graph_attention" if case.score == "additive" else "graph_dot_product_attention"
    *x, g = inputs.values()
    options = {"dtype": dtype, **dict(case.options)}
    output = getattr(reference, name)(*x, *edges, **options)
    gradients = getattr(reference, f"{name}_backward")(g, *x, *edges, **options)
    return of_nodes(
        {"output": output} | dict(zip(("query", "key", "value"), gradients, strict=True))
    )


def allowed(case: Case, edges: Ends, inputs: Arrays, runs: int = RUNS) -> Arrays:
    """What each row may be off by."""

    def compute(make: Callable[[Array], Array]) -> Arrays:
        return truth(case, edges, {name: make(x) for name, x in inputs.items()})

    return allowed_rows(compute, case.dtype, additions(case, edges), runs)


def additions(case: Case, edges: Ends) -> Arrays:
    """How many edges are added up one after the other on the way to each row, half of them.

    They are a node's own; or those of a query that sees it, as the sum l_i is in all its weights.
    Sums that grow from nothing are half as large in the mean, and so are their roundings.
    """
    offsets, columns = edges
    most = SPAN if case.version == "fast" else len(columns)
    of_query, of_key = np.diff(offsets), np.bincount(columns, minlength=case.num_keys)
    np.maximum.at(of_key, columns, of_query[rows_of(offsets)])
    of_query, of_key = (np.minimum(n, most)[:, None] / 2 for n in (of_query, of_key))
    return {"output": of_query, "query": of_query, "key": of_key, "value": of_key}


def assert_right(case: Case, device: str = "cpu", module: Any = graph) -> None:
    """The kernels give the truth, in the dtype of their inputs, and leave these alone; twice."""
    xp, edges, inputs = array_library(device), case.edges(), case.inputs()
    placed = {name: LAYOUTS[case.layout](x, xp) for name, x in inputs.items()}
    offsets, columns = map(xp.asarray, edges)
    found, again = (to_numpy(passes(case, (offsets, columns), placed, module)) for _ in range(2))
    assert_all_equal(to_numpy(placed), inputs, "its input")
    assert_all_equal(again, found, "in a second call")
    assert {x.dtype for x in found.values()} == {np.dtype(case.dtype)}
    right = truth(case, edges, inputs)
    assert_within(found, right, partial(allowed, case, edges, inputs))


@st.composite
def cases(
    draw: st.DrawFn,
    version: str,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    head_dims: tuple[int, ...] = (1, 2, 3, 5, 8),
) -> Case:
    """Draws a case that needs no other kernels than the others do."""
    score = draw(st.sampled_from(["additive", "dot"]))
    option = ("negative_slope", (0.2, 0.0, 1.5)) if score == "additive" else ("scale", (None, 0.7))
    return Case(
        score=score,
        degrees=draw(st.sampled_from(sorted(DEGREES))),
        num_keys=draw(st.sampled_from([1, 6, 130])),
        heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from(head_dims)),
        value_dim=draw(st.integers(1, 8)),
        options=((option[0], draw(st.sampled_from(option[1]))),),
        dtype=draw(st.sampled_from(dtypes)),
        index=draw(st.sampled_from(["int64", "int32"])),
        seed=draw(st.integers(0, 2**32 - 2)),
        spread=draw(st.sampled_from([1.0, 0.1, 5.0])),
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
        version=version,
    )


@VERSIONS
def test_kernels_are_right(version: str, device: str) -> None:
    @given(cases(version))
    def are_right(case: Case) -> None:
        assert_right(case, device)

    are_right()


def assert_no_worse_than_naive(case: Case, device: str = "cpu", module: Any = graph) -> None:
    """In float32 the kernels are off by no more than twice what NumPy is, and some roundings.

    Those are of what each row is the sum of, whatever its scores are: weights are made of their
    differences. `allowed_rows` has roundings of the scores, which at 50,000 are a lot.
    """
    edges, inputs = case.edges(), case.inputs()
    found = run(case, edges, inputs, device, module)
    right, naive = truth(case, edges, inputs), truth(case, edges, inputs, np.float32)
    q, k, v, g = (np.max(np.abs(x), initial=0.0) for x in inputs.values())
    to_query, to_key = (k / 2, q / 2) if case.score == "dot" else (1, 1)
    queries, ds = len(edges[0]) - 1, 2 * case.value_dim * g * v  # of all edges of a query
    size = {"output": v, "query": ds * to_query, "key": queries * ds * to_key, "value": queries * g}
    added, rounding = additions(case, edges), np.finfo("float32").eps / 2
    errors = {
        name: 2 * np.max(np.abs(x - right[name]), initial=0.0)
        + (ROUNDINGS + added[name]) * rounding * size[name]
        for name, x in naive.items()
    }
    assert_within(found, right, errors)


@VERSIONS
@pytest.mark.parametrize("score", ["additive", "dot"])
def test_large_scores(score: str, version: str, device: str) -> None:
    """Of one sign or the other; all of them equal, as 0.001 is none on a grid, or far apart."""
    levels = st.sampled_from([-50_000.0, -1_000.0, 1_000.0, 10_000.0, 49_151.0, 50_000.0])

    @given(
        cases(version, ("float32",), head_dims=(4,)), levels, st.sampled_from([0.001, 1.0, 30.0])
    )
    def are_no_worse(case: Case, level: float, spread: float) -> None:
        options = {"negative_slope": 0.25} if score == "additive" else {"scale": 0.5}
        far = replace(case, score=score, level=level, spread=spread, options=(*options.items(),))
        assert_no_worse_than_naive(far, device)

    are_no_worse()


@VERSIONS
def test_three_equal_edges_of_a_large_score(version: str, device: str) -> None:
    """One number for h + log l would be rounded to 0.004: 3.0029 came out, and dq = -0.64."""
    one = np.ones((1, 1, 1), np.float32)
    inputs = {"query": 2137 * one, "key": 23 * one, "value": 3 * one, "g": one}
    case = Case("dot", "one", 1, options=(("scale", 1.0),), dtype="float32", version=version)
    found = run(case, (np.array([0, 3]), np.array([0, 0, 0])), inputs, device)
    for name, wanted, near in [("output", 3, 1e-6), ("query", 0, 1e-4), ("value", 1, 1e-6)]:
        assert_allclose(found[name], wanted, atol=near)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [16, 40, 64, 130, 256])
@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@VERSIONS
def test_wide_heads(version: str, dtype: str, score: str, size: int, device: str) -> None:
    case = Case(
        score, "hub", 200, 4, head_dim=size, value_dim=size - 1, dtype=dtype, version=version
    )  # fmt: skip
    assert_right(case, device)


@pytest.mark.parametrize("score", ["additive", "dot"])
def test_the_reference_is_its_own_derivative(score: str) -> None:
    """Each gradient by the complex step, element by element."""
    case = Case(score, num_keys=3, options=(("scale", 0.7),) if score == "dot" else ())
    edges, inputs = case.edges(), case.inputs()
    right = truth(case, edges, inputs)
    for name in ("query", "key", "value"):
        for index in np.ndindex(*inputs[name].shape):
            nudged = inputs[name].astype(complex)
            nudged[index] += 1e-30j
            moved = {**inputs, name: nudged}
            moved["g"] = inputs["g"].astype(complex)
            output = truth(case, edges, moved, complex)["output"]
            slope = np.sum(inputs["g"] * output.imag) / 1e-30
            assert_allclose(right[name][index], slope, rtol=1e-9, atol=1e-12)


# -- Properties ------------------------------------------------------------------------------------


def assert_near(case: Case, edges: Ends, inputs: Arrays, found: Arrays, wanted: Arrays) -> None:
    """They are equal but for rounding."""
    assert_within(found, wanted, lambda runs: times(2, allowed(case, edges, inputs, runs)))


def rows_of(offsets: Array) -> Array:
    """The query of each edge."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def sorted_edges(rows: Array, columns: Array, count: int) -> Ends:
    """Offsets and columns of edges in any order."""
    order = np.argsort(rows, kind="stable")
    return np.cumsum([0, *np.bincount(rows, minlength=count)]), columns[order]


def does_not_know_names(case: Case, device: str) -> None:
    """Nodes under other numbers give the same, under those numbers."""
    rng, (offsets, columns), inputs = np.random.default_rng(case.seed), case.edges(), case.inputs()
    queries = len(offsets) - 1
    of_query, of_key = rng.permutation(queries), rng.permutation(case.num_keys)
    renamed = sorted_edges(of_query[rows_of(offsets)], of_key[columns], queries)

    def moved(arrays: Arrays) -> Arrays:
        by_query = ("query", "g", "output")
        orders = {name: of_query if name in by_query else of_key for name in arrays}
        return {name: x[:, np.argsort(orders[name])] for name, x in arrays.items()}

    wanted = moved(run(case, (offsets, columns), inputs, device))
    found = run(case, renamed, moved(inputs), device)
    assert_near(case, renamed, moved(inputs), found, wanted)


def does_not_know_an_order(case: Case, device: str) -> None:
    """The edges of a node are a set."""
    rng, (offsets, columns), inputs = np.random.default_rng(case.seed), case.edges(), case.inputs()
    shuffle = rng.permutation(len(columns))
    shuffled = sorted_edges(rows_of(offsets)[shuffle], columns[shuffle], len(offsets) - 1)
    wanted = run(case, (offsets, columns), inputs, device)
    assert_near(case, shuffled, inputs, run(case, shuffled, inputs, device), wanted)


def counts_an_edge_as_often_as_it_is_there(case: Case, device: str) -> None:
    """All edges twice change no weight of a key."""
    (offsets, columns), inputs = case.edges(), case.inputs()
    doubled = 2 * offsets, np.repeat(columns, 2)
    wanted = run(case, (offsets, columns), inputs, device)
    assert_near(case, doubled, inputs, run(case, doubled, inputs, device), wanted)


def is_linear_in_values(case: Case, device: str) -> None:
    """Output and gradient of the values of a sum are sums."""
    edges, one = case.edges(), case.inputs()
    other = {**one, "value": replace(case, seed=case.seed + 1).inputs()["value"]}
    both = {**one, "value": one["value"] - 2 * other["value"]}
    x, y, found = (run(case, edges, inputs, device) for inputs in (one, other, both))
    a, b, c = (allowed(case, edges, inputs) for inputs in (one, other, both))
    names = [name for name in found if name != "value"]  # its gradient is the same for all three
    wanted = {name: x[name] - 2 * y[name] for name in names}
    errors = {name: a[name] + 2 * b[name] + c[name] for name in names}
    assert_within({name: found[name] for name in names}, wanted, errors)
    assert_all_equal({"value": found["value"]}, {"value": x["value"]}, "with other values")


def preserves_a_constant_value(case: Case, device: str) -> None:
    """The mean of equal numbers is that number, whatever the weights: they have no gradient."""
    edges, inputs = case.edges(), case.inputs()
    inputs["value"] = np.full_like(inputs["value"], 3.0)
    found = run(case, edges, inputs, device)
    sees = np.diff(edges[0]) > 0
    assert_allclose(found["output"][:, sees], 3.0, rtol=1e-12)
    assert_array_equal(found["output"][:, ~sees], 0.0)
    nothing = {name: np.zeros_like(found[name]) for name in ("query", "key")}
    errors = allowed(case, edges, inputs)
    assert_within(nothing, {name: found[name] for name in nothing}, errors)


def sees_neighbours_only(case: Case, device: str) -> None:
    """A node without edges has neither output nor gradient; its numbers change no other's bits."""
    (offsets, columns), inputs = case.edges(), case.inputs()
    other = replace(case, seed=case.seed + 1).inputs()
    alone = {
        "query": np.diff(offsets) == 0,
        "key": ~np.isin(np.arange(case.num_keys), columns),
    }
    alone |= {"value": alone["key"], "g": alone["query"], "output": alone["query"]}
    altered = {name: x.copy() for name, x in inputs.items()}
    for name, x in altered.items():
        x[:, alone[name]] = other[name][:, alone[name]]
    found = run(case, (offsets, columns), inputs, device)
    assert_all_equal(run(case, (offsets, columns), altered, device), found, "of other nodes")
    for name, x in found.items():
        assert not x[:, alone[name]].any(), f"{name} of a node without edges"


PROPERTIES = [
    does_not_know_names,
    does_not_know_an_order,
    counts_an_edge_as_often_as_it_is_there,
    is_linear_in_values,
    preserves_a_constant_value,
    sees_neighbours_only,
]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@VERSIONS
def test_property(version: str, holds: Callable[[Case, str], None], device: str) -> None:
    def tried(case: Case) -> None:
        holds(case, device)

    # Hypothesis seeds itself and remembers failures by this name.
    tried.__name__ = tried.__qualname__ = f"graph_{version}_{holds.__name__}_{device}"
    given(cases(version, ("float64",)))(tried)()


@VERSIONS
def test_a_graph_of_all_edges_is_softmax_attention(version: str, device: str) -> None:
    case = Case("dot", version=version)
    inputs = case.inputs()
    query, key, value, g = (x[None] for x in inputs.values())
    queries, keys = query.shape[2], key.shape[2]
    edges = keys * np.arange(queries + 1), np.tile(np.arange(keys), queries)
    found = run(case, edges, inputs, device)
    output = reference.softmax_attention(query, key, value)
    gradients = reference.softmax_attention_backward(g, query, key, value)
    for x, wanted in zip(found.values(), (output, *gradients), strict=True):
        assert_allclose(x, wanted[0], rtol=1e-12, atol=1e-14)


@VERSIONS
def test_weights_of_long_rows(version: str, device: str) -> None:
    """Those of each row add up to 1, and scores far apart do no harm, in one piece or in many."""
    xp = array_library(device)
    offsets, columns = (xp.asarray(x) for x in Case(degrees="hub", num_keys=9).edges())
    scores = 300 * np.random.default_rng(0).normal(size=(2, len(columns))) - 1e4
    edges, value = Edges(offsets, columns, 9), xp.ones((2, 9, 1))
    _, p = graph.forward(xp.asarray(scores), value, edges, version=version)
    p = to_numpy({"p": p})["p"]
    for row in range(len(offsets) - 1):
        s = scores[:, int(offsets[row]) : int(offsets[row + 1])]
        if s.size:
            e = np.exp(s - s.max(axis=1, keepdims=True))
            wanted = e / e.sum(axis=1, keepdims=True)
            assert_allclose(p[:, int(offsets[row]) : int(offsets[row + 1])], wanted, atol=1e-12)


def test_blocks_of_several_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU has them."""
    assert fast._heads_of_a_block(6, 64, "a GPU") == 2
    monkeypatch.setattr(fast, "_heads_of_a_block", lambda heads, columns, xp: 2)
    assert_right(Case("dot", "hub", heads=6))


def test_no_piece_is_longer_than_a_span() -> None:
    """Pieces cover each row in order; of short rows there are none."""
    edges = Edges(*Case(degrees="hub", num_keys=3).edges(), 3)
    pieces, rows = edges.by_query
    assert np.diff(pieces.offsets).tolist() == [2, SPAN, SPAN, 3, SPAN, SPAN, 1]
    assert rows.offsets.tolist() == [0, 1, 4, 4, 5, 7]
    assert len(Edges(*Case().edges(), 6).by_query) == 1


def test_by_key_is_the_transposed_matrix() -> None:
    (offsets, columns), (walk,) = (edges := Case().edges()), Edges(*Case().edges(), 6).by_key
    counts = reference.edge_counts(*edges, 6)
    assert_array_equal(reference.edge_counts(walk.offsets, walk.others, len(offsets) - 1), counts.T)
    assert_array_equal(columns[walk.edges], np.sort(columns))
    assert all(np.diff(walk.edges)[np.diff(columns[walk.edges]) == 0] > 0)  # a fixed order


# -- Dropout ---------------------------------------------------------------------------------------


def test_edges_move_with_their_orders(device: str) -> None:
    move = array_library(device).asarray
    offsets, columns = Case("dot", "hub", num_keys=7).edges()
    moved, made = Edges(offsets, columns, 7).moved(move), Edges(move(offsets), move(columns), 7)
    for name in ("by_query", "by_key"):
        for here, there in zip(getattr(moved, name), getattr(made, name), strict=True):
            assert_all_equal(to_numpy(here._asdict()), to_numpy(there._asdict()), name)
    assert_all_equal(to_numpy({"rows": moved.rows}), to_numpy({"rows": made.rows}), "moved")


@pytest.mark.parametrize(("length", "owners", "width"), [(5, 3, 4), (SPAN + 1, 1, 1), (1000, 7, 9)])
def test_rows_are_summed_by_owner(length: int, owners: int, width: int, device: str) -> None:
    xp, rng = array_library(device), np.random.default_rng(length)
    rows = rng.normal(size=(length, width)).astype(np.float32)
    owner = rng.integers(0, owners, length)
    expected = np.zeros((owners + 2, width))
    np.add.at(expected, owner, rows.astype(np.float64))
    first, second = (
        to_numpy({"sums": graph.sum_by_owner(xp.asarray(rows), xp.asarray(owner), owners + 2)})
        for _ in range(2)
    )
    assert_allclose(first["sums"], expected, atol=1e-6 * length)
    assert_array_equal(first["sums"], second["sums"])


@VERSIONS
@pytest.mark.parametrize("seed", [0, 2**62 + 12345])
def test_dropout_is_a_function_of_seed_head_and_the_edges_number(
    seed: int, version: str, device: str
) -> None:
    """What is kept is that of the plain function; the output is the mean of what is kept."""
    xp, case = array_library(device), Case("dot", "hub", num_keys=7)
    edges, inputs = case.edges(), case.inputs()
    query, key, value, _ = map(xp.asarray, inputs.values())
    numbers = 3 * np.arange(len(edges[1]))[::-1] + 1  # of a part of a larger graph
    built = Edges(*map(xp.asarray, edges), case.num_keys, xp.asarray(numbers))
    s = graph.dot_scores(query, key, built)
    output, p = graph.forward(s, value, built, dropout=0.3, seed=seed, version=version)
    words = [[random_word(seed, 0, h, 0, e) for e in numbers.tolist()] for h in range(len(p))]
    kept = np.array(words) >= round(0.3 * 2**32)
    assert abs(kept.mean() - 0.7) < 4.5 * (0.21 / kept.size) ** 0.5
    terms = (to_numpy({"p": p})["p"] * kept / 0.7)[..., None] * inputs["value"][:, edges[1]]
    wanted = np.zeros_like(inputs["g"])
    for e, i in enumerate(rows_of(edges[0])):
        wanted[:, i] += terms[:, e]
    assert_allclose(to_numpy({"o": output})["o"], wanted, rtol=1e-11, atol=1e-12)


@VERSIONS
def test_dropout_backward_drops_the_same(version: str) -> None:
    """Along a random direction, the gradient is the slope of the output."""
    case = Case("dot", value_dim=4, version=version)
    edges, inputs = case.edges(), case.inputs()
    dropout: dict[str, Any] = {"dropout": 0.4, "seed": 5}
    found = passes(case, edges, inputs, **dropout)
    rng, step = np.random.default_rng(3), 1e-6
    direction = {name: rng.normal(size=inputs[name].shape) for name in ("query", "key", "value")}

    def output(way: float) -> Array:
        moved = {name: x + way * direction.get(name, 0.0) for name, x in inputs.items()}
        return passes(case, edges, moved, **dropout)["output"]

    slope = np.sum(inputs["g"] * (output(step) - output(-step))) / (2 * step)
    assert_allclose(sum(np.sum(found[name] * x) for name, x in direction.items()), slope, rtol=1e-7)


# -- Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "columns", "error", "message"),
    [
        ([0, 1, 3], [0, 1], ValueError, r"row_offsets must rise from 0 to 2.*got 0\.\.3"),
        ([1, 2], [0, 1], ValueError, r"row_offsets must rise from 0 to 2.*got 1\.\.2"),
        ([0, 3, 2], [0, 1], ValueError, r"row_offsets must rise.*not rising"),
        ([], [], ValueError, r"row_offsets must rise from 0 to 0.*got nothing"),
        ([0, 2], [0, 4], ValueError, r"columns must be key nodes 0\.\.3, got 0\.\.4"),
        ([0, 2], [-1, 1], ValueError, r"columns must be key nodes 0\.\.3, got -1\.\.1"),
        ([0, 2], [0.0, 1.0], TypeError, r"columns must be integers.*float64"),
        ([[0, 2]], [0, 1], TypeError, r"row_offsets must be integers in one dim.*\(1, 2\)"),
    ],
)
def test_refusals(offsets: Any, columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Edges(np.array(offsets), np.array(columns), 4)


def test_refusals_of_numbers() -> None:
    for numbers, got in (([1], "1, the least 1"), ([3, -1], "2, the least -1"), ([], "got 0")):
        with pytest.raises(ValueError, match=f"numbers must be 2 integers from 0.*{got}"):
            Edges(np.array([0, 2]), np.array([0, 1]), 2, np.array(numbers, int))


# -- The checked mode, and planted bugs ------------------------------------------------------------

SAMPLE = {
    "additive": Case(),
    "dot": Case("dot"),
    "hub": Case("dot", "hub", num_keys=5),
    "additive hub": Case(degrees="hub", num_keys=5, spread=0.1),
    "far": Case(dtype="float32", level=49_151.0),
}


@pytest.mark.parametrize("name", SAMPLE)
@VERSIONS
def test_kernels_are_clean(version: str, name: str) -> None:
    with checked():
        assert_right(replace(SAMPLE[name], version=version))


@VERSIONS
def test_dropout_is_clean(version: str) -> None:
    case = Case("dot", version=version)
    with checked(False):
        wanted = passes(case, case.edges(), case.inputs(), dropout=0.4)
    with checked():
        found = passes(case, case.edges(), case.inputs(), dropout=0.4)
    assert_near(case, case.edges(), case.inputs(), found, wanted)


def sample(name: str, version: str = "fast") -> Callable[[str], Any]:
    """The check that a copy of the package with a bug must fail."""
    case = replace(SAMPLE[name], version=version)
    check = assert_no_worse_than_naive if case.level else assert_right
    return lambda package: lambda: check(case, module=import_module(f"{package}.graph"))


# For each bug a piece of text, and what takes its place.
MUTANTS = [
    *bugs(sample("additive"), "graph/fast.py",
        gradient_of_the_identity=("else slope * ds[h, e]  # (7)", "else ds[h, e]"),
        score_leaks_nothing=("else slope * z  # (1)", "else real(0)"),
        totals_of_unsorted_edges=("sum_ += x[h, edges[t]]", "sum_ += x[h, t]"),
    ),
    *bugs(sample("hub"), "graph/fast.py",
        highest_not_taken_off=("math.exp(s[h, e] - highest[h, rows[e]])", "math.exp(s[h, e])"),
    ),
    *bugs(sample("dot"), "graph/fast.py",
        delta_dropped=("- p[h, e] * delta[h, rows[e]]", ""),
        query_and_key_exchanged=(
            "total += A[h, i, m] * B[h, j, m]", "total += A[h, j % A.shape[1], m] * B[h, i, m]"),
        scale_forgotten=("s[h, e] = scale * total", "s[h, e] = total"),
        scale_forgotten_in_gradients=("scaled = scale * ds", "scaled = ds"),
        weights_of_unsorted_edges=("w[h, edges[t]] * C", "w[h, t] * C"),
    ),
    *bugs(sample("far"), "graph/fast.py",
        one_number_for_h_and_l=(
            "math.exp(s[h, e] - highest[h, rows[e]]) / total[h, rows[e]]",
            "math.exp(s[h, e] - real(np.float32(highest[h, rows[e]]"
            " + math.log(total[h, rows[e]]))))"),
    ),
    *bugs(sample("dot"), "graph/edges.py",
        last_edge_forgotten=(
            "order = array_module(self.columns).arange(len(self.columns))",
            "order = np.maximum(np.arange(len(self.columns)) - 1, 0)"),
    ),
    *bugs(sample("hub"), "graph/edges.py",
        first_piece_added_again=("Walk(first, pieces, pieces)", "Walk(first, pieces, 0 * pieces)"),
    ),
    *bugs(sample("hub", "plain"), "graph/edges.py",
        plain_pieces_taken_for_rows=("for row in rows:", "for row in rows[:0]:"),
    ),
    *bugs(sample("additive", "plain"), "graph/plain.py",
        plain_gradient_of_the_identity=("else slope * ds[h, e]  # (7)", "else ds[h, e]  # (7)"),
        plain_score_leaks_nothing=("else slope * z  # (1)", "else real(0)"),
        plain_totals_of_unsorted_edges=("e, z = edges[t], a", "e, z = t, a"),
    ),
    *bugs(sample("hub", "plain"), "graph/plain.py",
        plain_highest_not_taken_off=(
            "l_i += math.exp(s[h, e] - h_i)", "l_i += math.exp(s[h, e])"),
    ),
    *bugs(sample("dot", "plain"), "graph/plain.py",
        plain_delta_dropped=("- p[h, e] * delta", ""),
        plain_delta_of_the_last_column=("delta += g[h", "delta = g[h"),
        plain_first_edge_forgotten=(
            "w_e = m_e * p[h, e]", "w_e = m_e * p[h, e] if e > offsets[i] else real(0)"),
        plain_scale_forgotten=("s[h, e] = scale * product", "s[h, e] = product"),
        plain_scale_forgotten_in_gradients=(
            "result[h, i, m] = scale * total", "result[h, i, m] = total"),
        plain_weights_of_unsorted_edges=("w[h, edges[t]] * C", "w[h, t] * C"),
    ),
    *bugs(sample("far", "plain"), "graph/plain.py",
        plain_one_number_for_h_and_l=(
            "math.exp(s[h, e] - h_i) / l_i", "math.exp(s[h, e] - (h_i + math.log(l_i)))"),
    ),
]  # fmt: skip


test_mutant_is_killed = hunt(MUTANTS, "file", "operation")

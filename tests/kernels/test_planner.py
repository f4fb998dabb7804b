"""The planner counts what is there: the seed's numbers, allocated bytes, tiles, and the choice."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.planner import attention
from minitransformer_kernels import cuda, planner, work
from minitransformer_kernels.planner import Sizes, choose, crossovers, plan

ALGORITHMS = ("naive", True), ("naive", False), ("linear", False), ("recurrent", True), (
    "chunked", True
)  # fmt: skip

lengths = st.integers(1, 3000)
dims = st.integers(1, 256)
squares = st.builds(
    lambda length, dim, **rest: Sizes(length, length, dim, dim, **rest),
    lengths, dims, causal=st.booleans(), max_distance=st.none() | st.integers(0, 200),
    heads=st.integers(1, 32), itemsize=st.sampled_from([4, 8]),
)  # fmt: skip
positions: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"max_distance": st.integers(0, 200)}),
    st.fixed_dictionaries({"fourier": st.sampled_from(["one_plus_cos", "cos"])}),
)
rectangles = st.builds(
    lambda kind, *rest: Sizes(*rest)._replace(**kind),
    positions, lengths, lengths, dims, dims, st.booleans(), st.integers(-100, 3000), st.none(),
    st.none(), st.integers(1, 4), st.integers(1, 32), st.sampled_from([4, 8]),
)  # fmt: skip


# -- The seed's model ------------------------------------------------------------------------------


def test_the_seed_s_numbers_as_it_prints_them():
    causal = Sizes(100, 70, 16, 16, causal=True, max_distance=12)
    assert planner.seed_numbers(causal) == {
        "kernelized": {"naive": 100 * 70, "linear": 16**2 * 100},
        "relative": {"naive": 100 * 70, "linear": 100 * (2 * 12 + 1 + 4)},
    }
    assert planner.seed_numbers(causal._replace(causal=False))["kernelized"]["linear"] == 16**2


@given(dim=st.integers(2, 256), k=st.integers(0, 500), causal=st.booleans())
def test_the_seed_s_crossovers(dim, k, causal):
    found = crossovers(Sizes(1, 1, dim, dim, causal, max_distance=k), cost_model="seed")
    above = dim**2 if causal else dim
    assert found == {
        "kernelized": [(1, "naive"), (above + 1, "linear")],
        "relative": [(1, "naive"), (2 * k + 5 + 1, "linear")],
    }


@given(sizes=rectangles)
def test_the_seed_takes_naive_where_it_costs_no_more(sizes):
    found = plan(sizes, cost_model="seed")
    for term, forms in found.terms.items():
        cheaper = forms["naive"].bytes <= forms["linear"].bytes
        assert found.choice[term] == ("naive" if cheaper else "linear")


def test_the_seed_s_bytes_are_those_of_all_heads():
    sizes = Sizes(10, 20, 8, 8, batch=3, heads=4, itemsize=8)
    assert plan(sizes, cost_model="seed").terms["kernelized"]["naive"].bytes == 3 * 4 * 8 * 10 * 20


# -- What the kernels' host functions allocate -----------------------------------------------------

SHAPES = {
    "short": Sizes(7, 7, 24, 20, heads=64),
    "few queries": Sizes(9, 300, 24, 20, query_offset=291, batch=2, heads=32),
    "more queries": Sizes(500, 100, 20, 32, heads=3),
    "more keys, float64": Sizes(33, 145, 32, 17, batch=3, heads=4, itemsize=8),
    "long": Sizes(2100, 2100, 32, 32),
    "wide": Sizes(190, 190, 128, 72, batch=2, heads=2),
}
TERMS: dict[str, dict[str, Any]] = {
    "kernelized": {},
    "near": {"max_distance": 3},
    "far": {"max_distance": 230},
    "one_plus_cos": {"fourier": "one_plus_cos"},
    "cos": {"fourier": "cos"},
}


def peak(run):
    """Return the most bytes that a call holds at a time."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_bytes(sizes, algorithm):
    """Check the model against both peaks: of the forward, and of forward and backward."""
    passes = attention(sizes, algorithm)

    def both():
        saved = passes.forward()
        return saved, passes.backward(saved)

    both()  # what is made once, such as kernels, is made here
    for run, backward in ((passes.forward, False), (both, True)):
        costs = planner.costs(sizes, algorithm, backward)
        modelled = sum(cost.bytes for cost in costs.values())
        assert modelled == pytest.approx(peak(run), rel=0.1)


@pytest.fixture
def no_launches(monkeypatch):
    """Kernels allocate no arrays, and compiling them all would take minutes."""
    monkeypatch.setattr(cuda.Launch, "__call__", lambda launch, *arguments: None)
    with np.errstate(all="ignore"):  # what nobody wrote is added up
        yield


@pytest.mark.usefixtures("no_launches")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize(("algorithm", "causal"), ALGORITHMS)
def test_bytes_are_those_that_are_allocated(algorithm, causal, term, shape):
    check_bytes(SHAPES[shape]._replace(causal=causal, **TERMS[term]), algorithm)


@pytest.mark.usefixtures("no_launches")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [True, False])
def test_bytes_of_softmax_are_those_that_are_allocated(causal, shape):
    check_bytes(SHAPES[shape]._replace(causal=causal), "softmax")


@pytest.fixture
def one_thread(monkeypatch):
    """A thread that comes too late to help keeps a launch's arrays until it has come."""
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "1")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("algorithm", "causal"), ALGORITHMS[2:4])
def test_bytes_with_kernels_launched(algorithm, causal):
    check_bytes(Sizes(300, 200, 16, 16, causal=causal, heads=4), algorithm)


@pytest.mark.nightly
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize(("algorithm", "causal"), ALGORITHMS)
def test_bytes_with_all_kernels_launched(algorithm, causal, term):
    check_bytes(SHAPES["more queries"]._replace(causal=causal, **TERMS[term]), algorithm)


# -- What the kernels compute ----------------------------------------------------------------------


@given(queries=lengths, keys=lengths, offset=st.integers(-200, 3000), causal=st.booleans())
def test_tile_pairs_are_those_with_a_query_that_sees_a_key(queries, keys, offset, causal):
    first, last = np.arange(0, queries, 32)[:, None], np.arange(0, keys, 32)
    seen = (last <= first + 31 + offset) | (not causal)
    sizes = Sizes(queries, keys, 8, 8, causal=causal, query_offset=offset)
    assert work.tile_pairs(sizes) == seen.sum()


@given(queries=st.integers(1, 60), keys=st.integers(1, 60), offset=st.integers(-20, 60),
       k=st.integers(0, 70), causal=st.booleans())  # fmt: skip
def test_occurring_distances_are_those_of_all_pairs(queries, keys, offset, k, causal):
    distances = np.arange(keys) - np.arange(queries)[:, None] - offset
    seen = distances[distances <= (0 if causal else np.inf)]
    assume(seen.size)
    sizes = Sizes(queries, keys, 8, 8, causal=causal, query_offset=offset)
    clipped = np.clip(seen, -k, k)
    assert work.occurring_distances(sizes, k)[1] == clipped.max()
    assert work.occurring_distances(sizes, k)[0] <= clipped.min()


@given(sizes=squares)
def test_no_kernel_computes_less_than_the_formula_says(sizes):
    L, E, M = sizes.queries, sizes.head_dim, sizes.value_dim
    pairs = L * (L + 1) // 2 if sizes.causal else L * L
    least = {"naive": 2 * pairs * (E + M), "recurrent": 4 * L * E * M, "chunked": 4 * L * E * M,
             "linear": 4 * L * E * M}  # fmt: skip
    for algorithm, cost in plan(sizes._replace(max_distance=None)).total.items():
        assert cost.flops >= sizes.heads * least[algorithm]


@given(sizes=rectangles, more=st.sampled_from(["queries", "keys", "head_dim", "value_dim"]),
       by=st.integers(1, 300), backward=st.booleans())  # fmt: skip
def test_more_costs_no_less(sizes, more, by, backward):
    assume(more in ("queries", "keys") or getattr(sizes, more) + by <= 256)
    larger = sizes._replace(**{more: getattr(sizes, more) + by})
    small, large = (plan(each, backward=backward).total for each in (sizes, larger))
    # Embeddings are copied where only some of their distances occur: not where more do.
    rows = 0 if sizes.max_distance is None else 2 * sizes.max_distance + 1
    copied = sizes.itemsize * sizes.heads * rows * sizes.head_dim
    for algorithm in small:
        assert large[algorithm].bytes >= small[algorithm].bytes - copied
        assert large[algorithm].flops >= small[algorithm].flops
        assert large[algorithm].seconds >= small[algorithm].seconds


@given(sizes=rectangles)
def test_terms_add_up_and_the_backward_comes_on_top(sizes):
    forward, both = plan(sizes), plan(sizes, backward=True)
    for algorithm, total in both.total.items():
        parts = [costs[algorithm] for costs in both.terms.values()]
        assert total.bytes == sum(part.bytes for part in parts)
        assert total.seconds == pytest.approx(sum(part.seconds for part in parts))
        assert total.flops >= forward.total[algorithm].flops
        assert total.seconds > forward.total[algorithm].seconds
        assert total.bytes >= forward.total[algorithm].bytes


# -- The choice ------------------------------------------------------------------------------------


@given(sizes=rectangles)
def test_the_choice_is_the_fastest(sizes):
    totals = plan(sizes, backward=True).total
    assert totals[choose(sizes)].seconds == min(cost.seconds for cost in totals.values())


@given(sizes=rectangles)
def test_what_has_a_state_is_never_naive(sizes):
    assume(sizes.causal)
    assert choose(sizes, stateful=True) in ("recurrent", "chunked")


@given(sizes=squares)
def test_crossovers_are_where_the_choice_changes(sizes):
    (starts, *_) = crossovers(sizes).values()
    assert starts[0][0] == 1
    assert starts[-1][0] < 2000
    assert starts[-1][1] != "naive"
    for (_, before), (start, after) in itertools.pairwise(starts):
        at = plan(sizes._replace(queries=start, keys=start))
        assert set(at.choice.values()) == {after} != {before}


def test_features_wider_than_a_kernel_and_no_tokens_at_all():
    assert choose(Sizes(4096, 4096, 3 * 256, 64, causal=True)) in ("recurrent", "chunked")
    assert choose(Sizes(0, 0, 64, 64)) in ("naive", "linear")
    assert choose(Sizes(0, 0, 64, 64, causal=True, max_distance=3)) != "linear"


def test_a_single_query_over_a_long_past_reads_the_keys_once():
    assert choose(Sizes(1, 4096, 64, 64, causal=True, query_offset=4095)) == "naive"


def test_unknown_cost_model():
    with pytest.raises(ValueError, match=r"cost_model must be one of .*'seed', 'kernel'.* 'gpu'"):
        plan(Sizes(1, 1, 1, 1), cost_model="gpu")

"""The planner counts what is there: the seed's numbers, allocated bytes, blocks, and the choice."""

import itertools
import json
import re
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planner import attention
from minitransformer_kernels import cuda, planner
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
    chosen = plan(sizes, cost_model="seed")
    for term, forms in planner.seed_numbers(sizes).items():
        assert chosen[term] == ("naive" if forms["naive"] <= forms["linear"] else "linear")


# -- What the kernels' host functions allocate -----------------------------------------------------

SHAPES = {
    "short": Sizes(7, 7, 24, 20, heads=128),  # Python takes some kilobytes itself
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
    """Return the most bytes that a call holds at a time, without what is made once."""
    found = []
    for _ in range(2):
        tracemalloc.start()
        try:
            run()
            found.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(found)


def check_bytes(sizes, algorithm):
    """Check the model against both peaks: of the forward, and of forward and backward."""
    passes = attention(sizes, algorithm)

    def both():
        saved = passes.forward()
        return saved, passes.backward(saved)

    both()  # what is made once, such as kernels, is made here
    for run, backward in ((passes.forward, False), (both, True)):
        assert planner.memory(sizes, algorithm, backward) == pytest.approx(peak(run), rel=0.1)


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


# -- The choice ------------------------------------------------------------------------------------

RACED = "causal linear attention", "Shaw's relative positions"


def test_of_each_pair_raced_on_a_gpu_it_takes_the_faster():
    folder = Path(__file__).parents[2] / "results" / "gpu"
    processors = json.loads((folder / "machine.jsonl").read_text().splitlines()[0])["machine"]
    raced = {}
    for path in folder.glob("*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            name, *_ = row.get("case", "").split(",")
            if name in RACED and row["contestant"].startswith("minitransformer"):
                algorithm = "recurrent" if "recurrent" in row["contestant"] else "chunked"
                raced.setdefault(row["case"], {})[algorithm] = row["median_ms"]
    pairs = {case: times for case, times in raced.items() if all(times.values())}
    assert len(pairs) > 20
    for case, times in pairs.items():
        length, width = (int(re.search(rf"{x}=([\d,]+)", case)[1].replace(",", "")) for x in "LE")
        sizes = Sizes(length, length, width, width, causal=True, heads=2**19 // length)
        chosen = choose(sizes, processors["multiprocessors"])
        assert chosen == min(times, key=times.get), case


@given(queries=lengths, keys=lengths, offset=st.integers(-200, 3000), causal=st.booleans())
def test_pairs_are_those_of_a_query_that_sees_a_key(queries, keys, offset, causal):
    seen = np.clip(np.arange(queries) + offset + 1, 0, keys) if causal else keys
    sizes = Sizes(queries, keys, 8, 8, causal=causal, query_offset=offset)
    assert sizes.pairs == np.sum(np.broadcast_to(seen, queries))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("algorithm", "causal"), ALGORITHMS)
def test_blocks_are_those_that_are_launched(algorithm, causal, shape, monkeypatch):
    grids = []
    monkeypatch.setattr(cuda.Launch, "__call__", lambda launch, *_: grids.append(prod(launch.grid)))
    sizes = SHAPES[shape]._replace(causal=causal)
    attention(sizes, algorithm).forward()
    assert planner.blocks(sizes, algorithm) == grids[-1]


@given(sizes=rectangles, more=st.sampled_from(["queries", "keys", "head_dim", "value_dim"]),
       by=st.integers(1, 300), algorithm=st.sampled_from(ALGORITHMS))  # fmt: skip
def test_more_takes_no_less_effort(sizes, more, by, algorithm):
    small = sizes._replace(causal=algorithm[1])
    large = small._replace(**{more: getattr(small, more) + by})
    assert planner.effort(large, algorithm[0]) >= planner.effort(small, algorithm[0])


@given(sizes=rectangles, processors=st.integers(1, 200), stateful=st.booleans())
def test_the_choice_is_of_the_least_effort(sizes, processors, stateful):
    efforts = {x: planner.effort(sizes, x, processors) for x in planner.algorithms(sizes)}
    if stateful:
        del efforts["naive"]
    assert efforts[choose(sizes, processors, stateful)] == min(efforts.values())


@given(dim=st.integers(2, 256), heads=st.integers(1, 64))
def test_crossovers_on_a_cpu_are_a_rule_of_thumb(dim, heads):
    """Equation (7), whatever the number of heads."""
    for causal, factor, linear in ((True, 4 / 3, "recurrent"), (False, 2 / 3, "linear")):
        sizes = Sizes(1, 1, dim, dim, causal, heads=heads)
        below, above = int(factor * dim) - 1, int(factor * dim) + 1
        assert choose(sizes._replace(queries=below, keys=below)) == "naive"
        assert choose(sizes._replace(queries=above, keys=above)) == linear


# Multiprocessors: of a T4, an H200.
@pytest.mark.parametrize(
    ("heads", "length", "processors", "chosen"),
    [
        (8, 4096, 1, "recurrent"),
        (8, 4096, 132, "chunked"),
        (8, 512, 132, "naive"),
        (80, 4096, 132, "chunked"),
        (96, 4096, 132, "recurrent"),
        (40, 4096, 40, "recurrent"),
        (512, 64, 132, "naive"),
    ],
)
def test_a_gpu_is_filled(heads, length, processors, chosen):
    sizes = Sizes(length, length, 64, 64, causal=True, heads=heads)
    assert choose(sizes, processors) == chosen


@given(sizes=squares, processors=st.sampled_from([1, 40, 132]))
def test_crossovers_are_where_the_choice_changes(sizes, processors):
    (starts, *_) = crossovers(sizes, processors=processors).values()
    assert starts[0][0] == 1
    assert starts[-1][1] != "naive"
    for (_, before), (start, after) in itertools.pairwise(starts):
        at = plan(sizes._replace(queries=start, keys=start), processors=processors)
        assert at["kernelized"] == after != before


@given(sizes=rectangles)
def test_a_plan_has_an_algorithm_for_each_term(sizes):
    chosen = plan(sizes)
    assert chosen["kernelized"] == choose(sizes)
    if sizes.max_distance is None:
        assert len(chosen) == 1
    else:
        naive = chosen["kernelized"] == "naive"
        assert chosen["relative"] == ("naive" if naive else "linear")


def test_features_wider_than_a_kernel_and_no_tokens_at_all():
    assert choose(Sizes(4096, 4096, 3 * 256, 64, causal=True)) == "recurrent"
    assert choose(Sizes(0, 0, 64, 64), processors=132) == "naive"
    assert choose(Sizes(0, 0, 64, 64, causal=True), stateful=True) == "recurrent"


def test_a_single_query_over_a_long_past_reads_the_keys_once():
    assert choose(Sizes(1, 4096, 64, 64, causal=True, query_offset=4095)) == "naive"


def test_unknown_cost_model():
    with pytest.raises(ValueError, match=r"cost_model must be one of .*'seed', 'kernel'.* 'gpu'"):
        plan(Sizes(1, 1, 1, 1), cost_model="gpu")

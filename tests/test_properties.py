"""The checks themselves: right operations pass all of them, and each check fails a wrong one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from . import references
from .cases import LAYOUTS, Array, Arrays, Domain, Problem, Variant, cases
from .properties import CHECKS, Check, Operation, assert_within, derive, examine
from .references import Result
from .rounding import RUNS, Shaken, allowed_rows, difference, natural_sizes

DTYPES = ("float32", "float64")
PLAIN = tuple(Variant(dtype, 3, 2, {"scale": scale}) for dtype in DTYPES for scale in (None, 0.3))
GUARDED = tuple(
    Variant(dtype, 3, 2, {"feature_map": feature_map, "guard": guard})
    for dtype in DTYPES
    for feature_map in ("elu", "identity")
    for guard in ("clamp", "add", "signed")
)


def step(inputs: Arrays, state: Any, keywords: dict[str, Any]) -> Any:
    """One token of linear attention, as one problem of length one."""
    token = {name: np.array(inputs[name])[:, :, None] for name in ("query", "key", "value")}
    state = dict(zip("SZ", state, strict=True)) if state is not None else {}
    problem = Problem({**token, **state}, {"output": token["value"]}, keywords)
    outputs = references.recurrent(problem, problem.dtype).outputs
    return outputs["output"][:, :, 0], (outputs["S"], outputs["Z"])


SOFTMAX = Operation(
    "softmax",
    Domain(PLAIN, tiles=(4,)),
    lambda problem: references.softmax(problem, problem.dtype),
    references.softmax,
)
LINEAR = Operation(
    "linear",
    Domain(GUARDED, tiles=(4,)),
    lambda problem: references.linear(problem, problem.dtype),
    references.linear,
)


def one_by_one(problem: Problem) -> Result:
    """Packed sequences each by itself, and padded ones all at once."""
    if "cu_seqlens" not in problem.keywords:
        return references.recurrent(problem, problem.dtype)
    keywords = {name: x for name, x in problem.keywords.items() if name != "cu_seqlens"}
    starts = problem.keywords["cu_seqlens"]
    results = []
    for n, (begin, end) in enumerate(pairwise(starts)):

        def of_sequence(arrays: Arrays, n: int = n, rows: slice = slice(begin, end)) -> Arrays:
            return {k: x[n : n + 1] if k in "SZ" else x[:, :, rows] for k, x in arrays.items()}

        one = replace(
            problem,
            inputs=of_sequence(problem.inputs),
            cotangents=of_sequence(problem.cotangents),
            keywords=keywords,
        )
        results.append(references.recurrent(one, problem.dtype))

    def joined(each: list[Arrays]) -> Arrays:
        return {k: np.concatenate([x[k] for x in each], 0 if k in "SZ" else 2) for k in each[0]}

    return Result(joined([r.outputs for r in results]), joined([r.gradients for r in results]))


RECURRENT = Operation(
    "recurrent",
    Domain(GUARDED, tiles=(4,), causal=(True,), stateful=True, packed=True),
    one_by_one,
    references.recurrent,
    step,
)
OF_THE_UNSEEN = "takes_nothing_from_the_unseen", "shows_no_nan_of_the_future"


def careful(operation: Operation) -> Operation:
    """The same with zeros in the place of NaN and infinity, which the references multiply by 0."""

    def finite(arrays: Arrays) -> Arrays:
        return {name: np.where(np.isfinite(x), x, x.dtype.type(0)) for name, x in arrays.items()}

    def apply(problem: Problem) -> Result:
        inputs, cotangents = finite(problem.inputs), finite(problem.cotangents)
        return operation.apply(replace(problem, inputs=inputs, cotangents=cotangents))

    return replace(operation, apply=apply)


PAIRS = [
    (careful(op) if str(check) in OF_THE_UNSEEN else op, check)
    for op in (SOFTMAX, LINEAR, RECURRENT)
    for check in derive(op)
]


@pytest.mark.parametrize(("operation", "check"), PAIRS, ids=str)
def test_a_right_operation_passes(operation: Operation, check: Check) -> None:
    examine(operation, check)


def scaled_gradient(problem: Problem) -> Result:
    """A gradient that is wrong by a thousandth."""
    result = references.softmax(problem, problem.dtype)
    return replace(result, gradients={**result.gradients, "key": result.gradients["key"] * 1.001})


def without_gradients(problem: Problem) -> Result:
    """Outputs only."""
    return replace(references.softmax(problem, problem.dtype), gradients={})


def scaled_small_rows(problem: Problem) -> Result:
    """Rows that are a thousandth of the largest are wrong by a thousandth."""
    result = references.softmax(problem, problem.dtype)

    def scaled(x: Array) -> Array:
        rows = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
        return np.where(rows < 1e-3 * np.max(rows, initial=0.0), x * x.dtype.type(1.001), x)

    return replace(result, gradients={name: scaled(x) for name, x in result.gradients.items()})


def small_cotangents_lost(problem: Problem) -> Result:
    """Beside what is added to them and taken away again."""
    grad = problem.cotangents["output"]
    rounded = (grad + grad.dtype.type(10)) - grad.dtype.type(10)
    return references.softmax(replace(problem, cotangents={"output": rounded}), problem.dtype)


def large_cotangents_overflow(problem: Problem) -> Result:
    """Rows that see no key divide by next to nothing before they multiply by zero."""
    result = references.softmax(problem, problem.dtype)
    blind = ~np.any(result.outputs["output"], axis=-1, keepdims=True)
    least = np.where(blind, np.finfo(problem.dtype).tiny, 1).astype(problem.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        lost = 0 * (problem.cotangents["output"] / least).sum(axis=-1, keepdims=True)
    gradients = {**result.gradients, "query": result.gradients["query"] + lost}
    return replace(result, gradients=gradients)


def ones_without_keys(problem: Problem) -> Result:
    """Where there is no key the output is not zero."""
    result = references.softmax(problem, problem.dtype)
    if problem.inputs["key"].shape[2]:
        return result
    return replace(result, outputs={**result.outputs, "output": 1 + result.outputs["output"]})


def wider_dtype(problem: Problem) -> Result:
    """Always float64."""
    return references.softmax(problem, np.float64)


def overwrites_its_input(problem: Problem) -> Result:
    """Scales the query in place."""
    if problem.inputs["query"].flags.writeable:
        problem.inputs["query"][...] *= 0.5
    return references.softmax(problem, problem.dtype)


def never_the_same(calls: Iterator[int]) -> Callable[[Problem], Result]:
    """Results that change in the last digit from call to call."""

    def apply(problem: Problem) -> Result:
        result = references.softmax(problem, problem.dtype)
        nudge = (1 + next(calls) * np.finfo(problem.dtype).eps).astype(problem.dtype)
        return replace(result, outputs={"output": result.outputs["output"] * nudge})

    return apply


def causal_off_by_one(problem: Problem) -> Result:
    """Sees one key too many."""
    keywords = dict(problem.keywords)
    keywords["query_offset"] = keywords.get("query_offset", 0) + 1
    return references.softmax(replace(problem, keywords=keywords), problem.dtype)


def without(*names: str) -> Callable[[Problem], Result]:
    """Ignores some keywords."""

    def apply(problem: Problem) -> Result:
        keywords = {name: x for name, x in problem.keywords.items() if name not in names}
        return references.softmax(replace(problem, keywords=keywords), problem.dtype)

    return apply


def knows_the_first_key(problem: Problem) -> Result:
    """The first key counts more than the others."""
    key = problem.inputs["key"].copy()
    key[:, :, 0] *= 1.5
    inputs = {**problem.inputs, "key": key}
    return references.softmax(replace(problem, inputs=inputs), problem.dtype)


def squares_its_values(problem: Problem) -> Result:
    """Attention to the squares of the values."""
    inputs = {**problem.inputs, "value": problem.inputs["value"] ** 2}
    return references.softmax(replace(problem, inputs=inputs), problem.dtype)


def without_normaliser(problem: Problem) -> Result:
    """Linear attention by a denominator that is too large."""
    return references.linear(
        replace(problem, keywords={**problem.keywords, "guard": "add", "eps": 0.1}), problem.dtype
    )


def not_a_number_where_blind(problem: Problem) -> Result:
    """Divides 0 by 0."""
    result = references.softmax(problem, problem.dtype)
    output = result.outputs["output"]
    blind = ~np.any(output, axis=-1, keepdims=True)
    return replace(result, outputs={**result.outputs, "output": np.where(blind, np.nan, output)})


def overflows(problem: Problem) -> Result:
    """The exponential of the score itself."""
    result = references.softmax(problem, problem.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(problem.inputs["query"].max() ** 2)
        return replace(result, outputs={"output": result.outputs["output"] * (ratio / ratio)})


def forgets_its_state(problem: Problem) -> Result:
    """The recurrence from zero, whatever it was given."""
    result = references.recurrent(
        replace(problem, inputs={n: x for n, x in problem.inputs.items() if n not in "SZ"}),
        problem.dtype,
    )
    state = {name: np.zeros_like(x) for name, x in problem.inputs.items() if name in "SZ"}
    return replace(result, gradients={**result.gradients, **state})


def stands_still(inputs: Arrays, state: Any, keywords: Any) -> Any:
    """A step that returns the state it was given."""
    output, new = step(inputs, state, keywords)
    return output, new if state is None else state


def moves_a_boundary(problem: Problem) -> Result:
    """The first sequence takes a row of the second."""
    keywords = dict(problem.keywords)
    if "cu_seqlens" in keywords:
        starts = keywords["cu_seqlens"]
        keywords["cu_seqlens"] = np.minimum(starts + (np.arange(len(starts)) == 1), starts[-1])
        keywords["cu_seqlens"].sort()
    return one_by_one(replace(problem, keywords=keywords))


def wrong(operation: Operation, apply: Callable[[Problem], Result]) -> Operation:
    return replace(operation, name=apply.__name__, apply=apply)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (wrong(SOFTMAX, scaled_gradient), "equals_the_reference"),
        (wrong(SOFTMAX, scaled_small_rows), "equals_the_reference"),
        (wrong(SOFTMAX, without_gradients), "equals_the_reference"),
        (wrong(SOFTMAX, small_cotangents_lost), "equals_the_reference"),
        (wrong(SOFTMAX, large_cotangents_overflow), "equals_the_reference"),
        (wrong(SOFTMAX, ones_without_keys), "takes_empty_arrays"),
        (wrong(SOFTMAX, wider_dtype), "equals_the_reference"),
        (wrong(SOFTMAX, overwrites_its_input), "equals_the_reference"),
        (wrong(SOFTMAX, never_the_same(count())), "repeats_bit_by_bit"),
        (wrong(SOFTMAX, causal_off_by_one), "hides_the_future"),
        (wrong(SOFTMAX, without("key_lengths")), "ignores_padding"),
        (wrong(SOFTMAX, without("query_lengths")), "ignores_padding"),
        (wrong(SOFTMAX, knows_the_first_key), "ignores_the_order_of_keys"),
        (wrong(SOFTMAX, squares_its_values), "is_linear_in_the_values"),
        (wrong(LINEAR, without_normaliser), "preserves_a_constant_value"),
        (wrong(SOFTMAX, not_a_number_where_blind), "gives_zeros_to_the_blind"),
        (wrong(SOFTMAX, overflows), "stays_finite"),
        (wrong(RECURRENT, forgets_its_state), "hands_its_state_over"),
        (wrong(RECURRENT, moves_a_boundary), "packs_like_it_pads"),
        (replace(RECURRENT, name="stands_still", step=stands_still), "steps_like_the_whole"),
        *((replace(LINEAR, name="multiplies_by_zero"), name) for name in OF_THE_UNSEEN),
    ],
    ids=str,
)
def test_a_wrong_operation_fails(operation: Operation, name: str) -> None:
    check = next(check for check in CHECKS if str(check) == name)
    effort = settings(phases=[Phase.generate], database=None, max_examples=50)
    with pytest.raises(AssertionError):
        examine(operation, check, effort)


def test_every_check_is_seen_to_fail() -> None:
    (mark,) = test_a_wrong_operation_fails.pytestmark  # type: ignore[attr-defined]
    assert {name for _, name in mark.args[1]} == {str(check) for check in CHECKS}


@given(cases(RECURRENT.domain))
def test_the_same_case_builds_the_same_problem(case: Any) -> None:
    first, second = case.problem(), case.problem()
    for name, x in first.inputs.items():
        np.testing.assert_array_equal(x, second.inputs[name])


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4), (1, 1, 1, 1)])
def test_a_layout_keeps_the_values(layout: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_array_equal(LAYOUTS[layout](x, np), x)


def test_errors_are_infinite_where_something_is_not_a_number() -> None:
    nan, inf = np.nan, np.inf
    np.testing.assert_array_equal(
        difference(np.array([1, nan, -inf, inf, -inf, 1]), np.array([1, 2, -inf, 0, -inf, 1.5])),
        [0, inf, 0, inf, 0, 0.5],
    )


@pytest.mark.parametrize("actual", [{}, {"x": np.zeros(2), "y": np.zeros(2)}], ids=len)
def test_other_arrays_than_expected_are_refused(actual: Arrays) -> None:
    with pytest.raises(AssertionError, match=r"\{'x'\} expected"):
        assert_within(actual, {"x": np.zeros(2)}, {"x": np.ones(2)})


def test_a_row_may_be_off_by_its_own_size_only() -> None:
    truth = {"x": np.array([[1e3, 2.0], [1.0, 2e-3]])}
    allowed = allowed_rows(lambda make: {"x": make(truth["x"]) * 1.0}, np.float32)
    assert_within({"x": truth["x"] + [[1e-3], [1e-6]]}, truth, allowed)
    with pytest.raises(AssertionError, match=r"x\[1, 1\]: 0.002 expected, got 0.0021, off by"):
        assert_within({"x": truth["x"] + [[0, 0], [0, 1e-4]]}, truth, allowed)


def test_runs_are_added_until_a_result_is_within_what_they_allow() -> None:
    """A difference of large numbers may be off by more than 32 roundings of its own size."""
    x = np.array([[1e6, 1.0], [1.0, 1e6]])
    truth, asked = {"x": x - 1}, []

    def allowed(runs: int) -> Arrays:
        asked.append(runs)
        return allowed_rows(lambda make: {"x": make(x + 1e8) - 1e8 - 1}, np.float32, runs=runs)

    least, few, most = (allowed(runs)["x"] for runs in (0, 2, RUNS))
    assert np.all(least < few) and np.all(few <= most)
    for share, runs in ((0.5 * least, [0]), (0.5 * (least + few), [0, 2])):
        asked.clear()
        assert_within({"x": truth["x"] + share}, truth, allowed)
        assert asked == runs
    asked.clear()
    with pytest.raises(AssertionError, match=r"expected, got .*, off by"):
        assert_within({"x": truth["x"] + 1.5 * most}, truth, allowed)
    assert asked == [0, 2, RUNS]


SUMS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "product": lambda x: x @ np.ones((2, 1)),
    "einsum": lambda x: np.einsum("ij,j->i", np.asarray(x, np.float64), np.ones(2))[:, None],
}


@pytest.mark.parametrize("total", SUMS.values(), ids=SUMS)
def test_the_natural_size_of_a_sum_is_that_of_its_terms(total: Callable[[Array], Array]) -> None:
    x = np.array([[1e6, -1e6], [1.0, 0.0]])
    large, small = natural_sizes(lambda make: {"x": total(make(x))}, {"x": total(x)})["x"]
    assert 5e5 < large < 1e7
    assert 0.5 < small < 10


def test_the_natural_size_of_an_exponential_grows_with_its_argument() -> None:
    x = np.array([[1.0], [300.0]])
    sizes = natural_sizes(lambda make: {"x": np.exp(np.where(x > 0, make(x), 0))}, {"x": np.exp(x)})
    small, large = sizes["x"] / np.exp(x)
    assert 1 <= small < 10
    assert 150 < large < 3000


def test_what_is_shaken_computes_the_same() -> None:
    x = np.random.default_rng(0).normal(size=(5, 7))
    shaken = x.view(Shaken)
    total = np.zeros(7).view(Shaken)
    for row in shaken:
        total += row
    for found, wanted in [
        (total, x.sum(axis=0)),
        (np.concatenate([shaken, x])[5:] * 2, 2 * x),
        (np.max(shaken, axis=-1), x.max(axis=-1)),
        (np.add.reduce(shaken, axis=0, where=x > 0), np.add.reduce(x, axis=0, where=x > 0)),
        (shaken > 0, x > 0),
    ]:
        assert isinstance(found, Shaken) == (wanted.dtype != bool)
        np.testing.assert_allclose(found.view(np.ndarray), wanted, rtol=1e-7, atol=1e-7)

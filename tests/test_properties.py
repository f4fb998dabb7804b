"""The checks themselves: right operations pass all of them, and each check fails a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from . import references
from .cases import LAYOUTS, Arrays, Domain, Problem, Variant, cases
from .properties import CHECKS, Check, Operation, derive, examine, largest_error
from .references import Result

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
PAIRS = [(op, check) for op in (SOFTMAX, LINEAR, RECURRENT) for check in derive(op)]


@pytest.mark.parametrize(("operation", "check"), PAIRS, ids=str)
def test_a_right_operation_passes(operation: Operation, check: Check) -> None:
    examine(operation, check)


def scaled_gradient(problem: Problem) -> Result:
    """A gradient that is wrong by a thousandth."""
    result = references.softmax(problem, problem.dtype)
    return replace(result, gradients={**result.gradients, "key": result.gradients["key"] * 1.001})


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
    assert largest_error(np.array([1.0, nan]), np.array([1.0, 2.0])) == inf
    assert largest_error(np.array([-inf, inf]), np.array([-inf, 0.0])) == inf
    assert largest_error(np.array([-inf, 1.0]), np.array([-inf, 1.5])) == 0.5

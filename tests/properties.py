"""Every check of an attention operation, derived from three things.

An `Operation` says how to draw its inputs (a `Domain`), what it computes, and its reference. From
these `derive` picks the checks that apply to it, and `examine` tries one of them on drawn cases:

    @pytest.mark.parametrize("check", derive(OPERATION), ids=str)
    def test_operation(check, device):
        examine(OPERATION.on(device), check)

Where two computations must be the same they are compared bit by bit; where they may round
differently, row by row, by `allowed_errors`. Cotangents are random, and of any size: under a plain
sum the gradient of a softmax is zero, and a backward that returns zeros would pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from numpy.testing import assert_array_equal

from .cases import LAYOUTS, Array, Arrays, Case, Domain, Problem, cases, unpadded
from .references import Result, seen_and_alive
from .rounding import RUNS, allowed_rows, difference


@dataclass(frozen=True)
class Operation:
    """An operation under test.

    `apply` takes a problem to its result, in arrays of one library; `reference` does so in NumPy
    arithmetic of a given dtype. `step`, where the operation has one, takes (inputs, state,
    keywords) of one position to its output and the next state. `values` are the inputs that the
    output is linear in. It adds up at most so many numbers that are alike, `additions`, one after
    the other. It need not pass the checks that it is `exempt` from.
    """

    name: str
    domain: Domain
    apply: Callable[[Problem], Result]
    reference: Callable[[Problem, Any], Result]
    step: Callable[..., tuple[Array, Any]] | None = None
    device: str = "cpu"
    values: tuple[str, ...] = ("value", "S")
    additions: int = 0
    exempt: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def on(self, device: str) -> Operation:
        """The same operation on another device."""
        return replace(self, device=device)

    def run(self, problem: Problem) -> Result:
        """Applies the operation on its device, and sees that it leaves its arguments alone."""
        xp = array_library(self.device)
        arguments = laid_out(problem, xp)
        result = self.apply(arguments)
        assert_all_equal(to_numpy(arguments.inputs), problem.inputs, "its input")
        assert_all_equal(to_numpy(arguments.cotangents), problem.cotangents, "its cotangent")
        gradients = to_numpy(result.gradients)
        shapes = {name: x.shape for name, x in problem.inputs.items() if x.dtype.kind == "f"}
        assert {name: x.shape for name, x in gradients.items()} == shapes, "gradients of its inputs"
        return Result(to_numpy(result.outputs), gradients)


def array_library(device: str) -> Any:
    """NumPy or CuPy."""
    if device == "cpu":
        return np
    import cupy

    return cupy


def laid_out(problem: Problem, xp: Any) -> Problem:
    """The problem in arrays of another library, in the memory layout that it asks for."""

    def place(x: Array, xp: Any) -> Array:
        layout = "contiguous" if x.dtype.kind == "i" else problem.layout
        return LAYOUTS[layout](x, xp)

    return replace(
        problem,
        inputs={name: place(x, xp) for name, x in problem.inputs.items()},
        cotangents={name: place(x, xp) for name, x in problem.cotangents.items()},
        keywords={
            name: xp.asarray(x) if isinstance(x, np.ndarray) else x
            for name, x in problem.keywords.items()
        },
    )


def to_numpy(arrays: Arrays) -> Arrays:
    """Copies of arrays of either library."""
    return {name: np.array(x.get() if hasattr(x, "get") else x) for name, x in arrays.items()}


# ------------------------------------------------------------------------------- how close is equal

Allowed = Callable[[int], Arrays]  # what each row may be off by, found by so many runs
FEW_RUNS = 0, 2


def allowed_errors(operation: Operation, problem: Problem, runs: int = RUNS) -> Arrays:
    """What each row of the result may be off by, see `rounding`."""

    def compute(make: Callable[[Array], Array]) -> Arrays:
        return operation.reference(made(problem, make), np.float64).arrays()

    longest = max(problem.inputs[name].shape[2] for name in ("query", "key"))
    return allowed_rows(compute, problem.dtype, min(operation.additions, longest), runs)


def made(problem: Problem, make: Callable[[Array], Array]) -> Problem:
    """The problem with other arrays, made out of its own."""
    inputs, cotangents = (
        {name: make(x) for name, x in arrays.items()}
        for arrays in (problem.inputs, problem.cotangents)
    )
    return replace(problem, inputs=inputs, cotangents=cotangents)


def assert_within(actual: Arrays, truth: Arrays, allowed: Arrays | Allowed) -> None:
    """Fails where arrays are missing, and on the first with a row off by more than allowed.

    Where that depends on the runs, it is asked first with few: they take most of the time, and what
    is within what few allow is within what more do.
    """
    if not isinstance(allowed, dict):
        for runs in FEW_RUNS:
            with suppress(AssertionError):
                return assert_within(actual, truth, allowed(runs))
        allowed = allowed(RUNS)
    assert actual.keys() == truth.keys(), f"{set(truth)} expected, got {set(actual)}"
    for name, x in actual.items():
        assert x.shape == truth[name].shape, f"{name}: {truth[name].shape} expected, got {x.shape}"
        error = difference(x, truth[name])
        if np.any(too_far := error > allowed[name]):
            at = np.unravel_index(np.argmax(np.where(too_far, error, -1.0)), x.shape)
            limit = np.broadcast_to(allowed[name], x.shape)[at]
            raise AssertionError(
                f"{name}{[int(i) for i in at]}: {truth[name][at]:.6g} expected, got {x[at]:.6g}, "
                f"off by {error[at]:.2e}, allowed {limit:.2e}"
            )


def assert_all_equal(actual: Arrays, expected: Arrays, what: str) -> None:
    """Fails where arrays are missing, and on the first with other bits, but for a zero's sign."""
    assert actual.keys() == expected.keys(), f"{what}: {set(expected)} expected, got {set(actual)}"
    for name, x in actual.items():
        assert_array_equal(x, expected[name], f"{what} {name} changed")


# -------------------------------------------------------------------------------------- the checks


@dataclass(frozen=True)
class Check:
    """A property, and whether an operation should have it."""

    holds: Callable[[Operation, Case], None]
    suits: Callable[[Operation], bool]

    def __str__(self) -> str:
        return self.holds.__name__


CHECKS: list[Check] = []


def check(
    suits: Callable[[Operation], bool] = lambda operation: True,
) -> Callable[[Callable[[Operation, Case], None]], Callable[[Operation, Case], None]]:
    """Makes a function a check of every operation that it suits."""

    def register(holds: Callable[[Operation, Case], None]) -> Callable[[Operation, Case], None]:
        CHECKS.append(Check(holds, suits))
        return holds

    return register


def derive(operation: Operation) -> list[Check]:
    """The checks of an operation."""
    return [c for c in CHECKS if c.suits(operation) and str(c) not in operation.exempt]


def examine(operation: Operation, check: Check, effort: settings | None = None) -> None:
    """Tries a check on cases drawn by hypothesis, as hard as its profile says."""

    def holds(case: Case) -> None:
        check.holds(operation, case)

    # Hypothesis seeds itself and remembers failures by this name.
    holds.__name__ = holds.__qualname__ = f"{operation}_{check}_{operation.device}"
    (effort or settings())(given(cases(operation.domain))(holds))()


def can_be_causal(operation: Operation) -> bool:
    """Whether the operation has a causal form."""
    return True in operation.domain.causal


@check()
def equals_the_reference(operation: Operation, case: Case) -> None:
    """Results and gradients are those of the reference, in the dtype of the inputs."""
    problem = case.problem()
    result = operation.run(problem).arrays()
    truth = operation.reference(problem, np.float64).arrays()
    assert_within(result, truth, partial(allowed_errors, operation, problem))
    for name, x in result.items():
        expected = "float64" if name.endswith("_positions") else case.dtype
        whole_number = truth[name].dtype.kind == "i"
        assert x.dtype == ("int64" if whole_number else expected), f"{name} is {x.dtype}"


@check()
def takes_empty_arrays(operation: Operation, case: Case) -> None:
    """No sequences, no queries or no keys give the reference's results, and their shapes."""
    case = replace(case, query_lengths=None, key_lengths=None)
    for empty in ("batch", "query_length", "key_length"):
        equals_the_reference(operation, replace(case, **{empty: 0}))


@check()
def repeats_bit_by_bit(operation: Operation, case: Case) -> None:
    """A second call gives the very same bits."""
    first, second = (operation.run(case.problem()).arrays() for _ in range(2))
    assert_all_equal(first, second, "in a second call")


@check(suits=can_be_causal)
def hides_the_future(operation: Operation, case: Case) -> None:
    """No key after its position reaches a query's output, nor a gradient the other way."""
    case = replace(case, causal=True, grad_state=False, guard_bites=False)
    problem, other = case.problem(), replace(case, seed=case.seed + 1).problem()
    now = case.seed % (case.query_length + 1)
    frontier = int(np.clip(now + case.query_offset, 0, case.key_length))
    starts = {"query": now, "key": frontier, "value": frontier, "output": now}
    past = {"output": before(problem.cotangents["output"], 0.0, now)}
    altered = {
        name: before(x, other.inputs[name], starts[name]) if name in starts else x
        for name, x in problem.inputs.items()
    }
    result = operation.run(replace(problem, cotangents=past))
    elsewhere = operation.run(replace(problem, cotangents=past, inputs=altered))
    assert_array_equal(
        result.outputs["output"][:, :, :now], elsewhere.outputs["output"][:, :, :now]
    )
    assert_all_equal(result.gradients, elsewhere.gradients, "with another future, the gradient of")
    for name in ("query", "key", "value"):
        assert not result.gradients[name][:, :, starts[name] :].any(), f"{name} moved the past"


@check()
def ignores_padding(operation: Operation, case: Case) -> None:
    """Whatever stands in the padding, results are the same, and gradients there are zero."""
    rng = np.random.default_rng(case.seed)
    query_lengths, key_lengths = (
        tuple(int(n) for n in rng.integers(0, length + 1, case.batch))
        for length in (case.query_length, case.key_length)
    )
    case = replace(case, query_lengths=query_lengths, key_lengths=key_lengths, guard_bites=False)
    problem, other = case.problem(), replace(case, seed=case.seed + 1).problem()
    ends = dict.fromkeys(("query", "output", "relative_scores"), query_lengths)
    ends |= {"key": key_lengths, "value": key_lengths}

    def padded(mine: Arrays, theirs: Arrays) -> Arrays:
        return {
            name: before(x, 10 * theirs[name], ends[name]) if name in ends else x
            for name, x in mine.items()
        }

    result = operation.run(problem)
    altered = operation.run(
        replace(
            problem,
            inputs=padded(problem.inputs, other.inputs),
            cotangents=padded(problem.cotangents, other.cotangents),
        )
    )
    assert_all_equal(altered.arrays(), result.arrays(), "with other padding")
    for name, x in {**result.gradients, "output": result.outputs["output"]}.items():
        if name in ends:
            assert_array_equal(x, before(x, 0.0, ends[name]), f"{name} is not zero in its padding")


@check()
def takes_nothing_from_the_unseen(operation: Operation, case: Case) -> None:
    """NaN and infinity where nobody looks reach nothing: neither an output nor a gradient.

    Rows that see nothing, and keys that nobody sees, have zeros of all kinds.
    """
    case = replace(case, grad_state=False, guard_bites=False)
    problem = case.problem()
    seen, alive = seen_and_alive(problem)
    sees = (seen.any(-1) | (alive & (problem.initial_state is not None)))[..., None]
    is_seen = seen.any(-2)[..., None]
    rows = {name: sees for name in ("query", "output", "relative_scores")}
    rows |= {name: is_seen for name in ("key", "value")}
    poison = (np.nan, np.inf, -np.inf)[case.seed % 3]

    def poisoned(arrays: Arrays) -> Arrays:
        return {
            name: np.where(rows[name], x, np.asarray(poison, x.dtype)) if name in rows else x
            for name, x in arrays.items()
        }

    clean, other = operation.run(problem), replace(problem, inputs=poisoned(problem.inputs))
    found = operation.run(replace(other, cotangents=poisoned(problem.cotangents)))
    assert_array_equal(found.outputs["output"], clean.outputs["output"], "the output changed")
    assert_all_equal(found.gradients, clean.gradients, "with other unseen rows, the gradient of")
    for name, x in {**found.gradients, "output": found.outputs["output"]}.items():
        if name in rows:
            assert not np.where(rows[name], 0, x).any(), f"{name} is not zero in unseen rows"


@check(suits=can_be_causal)
def shows_no_nan_of_the_future(operation: Operation, case: Case) -> None:
    """NaN and infinity in keys, values and queries reach no output before them."""
    case = replace(case, causal=True, guard_bites=False)
    problem = case.problem()
    now = case.seed % (case.query_length + 1)
    frontier = int(np.clip(now + case.query_offset, 0, case.key_length))
    poison = (np.nan, np.inf, -np.inf)[case.seed % 3]
    starts = {"query": now, "key": frontier, "value": frontier}
    future = {
        name: before(x, poison, starts[name]) if name in starts else x
        for name, x in problem.inputs.items()
    }
    clean, found = operation.run(problem), operation.run(replace(problem, inputs=future))
    assert_array_equal(found.outputs["output"][:, :, :now], clean.outputs["output"][:, :, :now])
    dq = (x.gradients["query"][:, :, :now] for x in (found, clean))
    assert_array_equal(*dq, "the gradient of earlier queries")
    if case.query_lengths is not None:  # padding sees nothing, whatever the others see
        output = found.outputs["output"]
        assert not before(np.zeros_like(output), output, case.query_lengths).any()


def before(x: Array, rest: Array | float, ends: int | tuple[int, ...]) -> Array:
    """`x` up to the end of each sequence of the batch, and `rest` after it."""
    inside = np.arange(x.shape[2])[:, None] < np.reshape(ends, (-1, 1, 1, 1))
    return np.where(inside, x, np.asarray(rest, x.dtype))


@check(suits=lambda x: False in x.domain.causal and x.domain.extras is None)
def ignores_the_order_of_keys(operation: Operation, case: Case) -> None:
    """Without causality, keys and values in another order change nothing but their order."""
    case = replace(case, causal=False)
    problem = case.problem()
    order = shuffled_keys(case)

    def reordered(arrays: Arrays) -> Arrays:
        return {
            name: np.take_along_axis(x, order, 2) if name in ("key", "value") else x
            for name, x in arrays.items()
        }

    result = operation.run(problem)
    other = replace(problem, inputs=reordered(problem.inputs))
    shuffled = operation.run(other)
    expected = Result(result.outputs, reordered(result.gradients))
    allowed = partial(allowed_errors, operation, other)
    assert_within(shuffled.arrays(), expected.arrays(), lambda runs: times(2, allowed(runs)))


def shuffled_keys(case: Case) -> Array:
    """An order of the valid keys of every sequence: (N, 1, Lk, 1) indices."""
    rng = np.random.default_rng(case.seed)
    order = np.tile(np.arange(case.key_length), (case.batch, 1))
    for row, count in zip(order, case.key_lengths or [case.key_length] * case.batch, strict=True):
        rng.shuffle(row[:count])
    return order[:, None, :, None]


@check()
def is_linear_in_the_values(operation: Operation, case: Case) -> None:
    """2 V - V' / 2 gives twice the output of V less half of that of V'; S counts as values."""
    case = replace(case, grad_state=False)
    problem, other = case.problem(), replace(case, seed=case.seed + 1).problem()
    values = [name for name in operation.values if name in problem.inputs]

    def with_values(arrays: Arrays) -> Problem:
        return replace(problem, inputs={**problem.inputs, **arrays})

    second = with_values({name: other.inputs[name] for name in values})
    mixed = with_values(
        {name: 2 * problem.inputs[name] - second.inputs[name] / 2 for name in values}
    )
    x, y, z = (operation.run(p).outputs["output"] for p in (problem, second, mixed))

    def allowed(runs: int) -> Arrays:
        a, b, c = (allowed_errors(operation, p, runs)["output"] for p in (problem, second, mixed))
        return {"output": 2 * a + b / 2 + c}

    assert_within({"output": z}, {"output": 2 * x - y / 2}, allowed)


@check()
def preserves_a_constant_value(operation: Operation, case: Case) -> None:
    """Attention is a mean: where all values are the same vector, so is every output."""
    options = {name: "clamp" if name == "guard" else x for name, x in case.options.items()}
    started = case.initial_state and operation.domain.states is None
    case = replace(case, options=options, guard_bites=False, initial_state=started)
    problem = case.problem()
    constant = np.random.default_rng(case.seed).normal(size=case.value_dim).astype(case.dtype)
    inputs = {**problem.inputs, "value": np.broadcast_to(constant, problem.inputs["value"].shape)}
    if case.initial_state:
        inputs["S"] = inputs["Z"][..., None] * constant
    problem = replace(problem, inputs=inputs)
    seen, alive = seen_and_alive(problem)
    sees: Array = np.asarray(alive if case.initial_state else seen.any(axis=-1))[..., None]
    assert_within(
        {"output": operation.run(problem).outputs["output"]},
        {"output": np.where(sees, constant, 0) + np.zeros_like(problem.cotangents["output"])},
        partial(allowed_errors, operation, problem),
    )


@check()
def gives_zeros_to_the_blind(operation: Operation, case: Case) -> None:
    """A query that sees nothing gives zeros and zero gradients: no queries, no keys, no past."""
    case = replace(case, initial_state=False, grad_state=False, guard_bites=False)
    nobody = (0,) * case.batch
    blind = [replace(case, query_lengths=nobody), replace(case, key_lengths=nobody)]
    if can_be_causal(operation):
        blind.append(replace(case, causal=True, query_offset=-case.query_length))
    for each in blind:
        result = operation.run(each.problem())
        for name, x in {"output": result.outputs["output"], **result.gradients}.items():
            assert_array_equal(x, np.zeros_like(x), f"{name} of a query that sees nothing")


@check()
def stays_finite(operation: Operation, case: Case) -> None:
    """Scores far from zero, on either side, give neither infinities nor NaN.

    So do all cotangents but the largest, which float32 cannot divide by the smallest denominator.
    """
    for shift, spread in ((60.0, 10.0), (-60.0, 1.0), (0.0, 30.0)):
        far = replace(case, shift=shift, spread=spread, guard_bites=False, grad=min(case.grad, 1.0))
        result = operation.run(far.problem())
        for name, x in {"output": result.outputs["output"], **result.gradients}.items():
            assert np.isfinite(x).all(), f"{name} is not finite around {shift} ± {spread}"


@check(suits=lambda operation: operation.domain.stateful)
def hands_its_state_over(operation: Operation, case: Case) -> None:
    """Cut anywhere, the second half continues from the state of the first, and so do gradients."""
    length = max(case.key_length, 2)
    whole = unpadded(case, length, initial_state=True, grad_state=True).problem()
    cut = 1 + case.seed % (length - 1)
    first, second = part(whole, slice(0, cut)), part(whole, slice(cut, length))
    outputs = operation.run(first).outputs
    state = {name: outputs[name] for name in whole.state}
    later = operation.run(replace(second, inputs={**second.inputs, **state}))
    grad_state = {name: x for name, x in later.gradients.items() if name in state}
    earlier = operation.run(replace(first, cotangents={**first.cotangents, **grad_state}))
    joined = join(earlier, later, whole.state)
    truth = operation.reference(whole, np.float64).arrays()
    allowed = partial(allowed_errors, operation, whole)
    assert_within(joined.arrays(), truth, lambda runs: times(2, allowed(runs)))


def rows_axis(name: str) -> int | None:
    """Which axis of an input, a gradient or a result is the sequence."""
    name = name.removeprefix("grad_")
    if name in ("query", "key", "value", "beta", "output", "denominator", "residual"):
        return 2
    return 1 if name.endswith("_positions") else None


def part(problem: Problem, positions: slice) -> Problem:
    """The problem of some positions of the sequence."""

    def cut(arrays: Arrays) -> Arrays:
        index = {None: (), 1: (slice(None), positions), 2: (slice(None), slice(None), positions)}
        return {name: x[index[rows_axis(name)]] for name, x in arrays.items()}

    return replace(problem, inputs=cut(problem.inputs), cotangents=cut(problem.cotangents))


def join(earlier: Result, later: Result, state: tuple[str, ...]) -> Result:
    """The result of a sequence from those of its two parts; what both share adds up."""

    def joined(first: Arrays, second: Arrays, of_state: Arrays) -> Arrays:
        return {
            name: of_state[name]
            if name in state
            else x + second[name]
            if (axis := rows_axis(name)) is None
            else np.concatenate([x, second[name]], axis)
            for name, x in first.items()
        }

    outputs = joined(earlier.outputs, later.outputs, later.outputs)
    return Result(outputs, joined(earlier.gradients, later.gradients, earlier.gradients))


@check(suits=lambda operation: operation.domain.packed)
def packs_like_it_pads(operation: Operation, case: Case) -> None:
    """Sequences one after the other give the rows that they give one below the other."""
    rng = np.random.default_rng(case.seed)
    lengths = rng.integers(0, case.key_length + 1, case.batch)
    key_lengths = tuple(int(n) for n in lengths)
    padded = unpadded(case, case.key_length, causal=True, key_lengths=key_lengths).problem()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    keywords = {
        n: x for n, x in padded.keywords.items() if n not in ("key_lengths", "query_offset")
    }
    result = operation.run(
        replace(
            padded,
            inputs=packed(padded.inputs, lengths),
            cotangents=packed(padded.cotangents, lengths),
            keywords={**keywords, "cu_seqlens": starts},
        )
    )
    padded.keywords["query_lengths"] = padded.keywords["key_lengths"]
    truth = operation.reference(padded, np.float64)
    allowed = partial(allowed_errors, operation, padded)
    expected = packed(truth.arrays(), lengths)
    assert_within(result.arrays(), expected, lambda runs: packed(allowed(runs), lengths))


def packed(arrays: Arrays, lengths: Array) -> Arrays:
    """Every sequence's rows, without its padding, after those of the one before."""
    return {
        name: x if (axis := rows_axis(name)) is None else pack(x, lengths, axis)
        for name, x in arrays.items()
    }


def pack(x: Array, lengths: Array, axis: int) -> Array:
    """The rows of (N, ...), which are along `axis`, as (1, ...)."""
    batch = np.broadcast_to(x, (len(lengths), *x.shape[1:]))
    rows = [each[None].take(range(n), axis) for each, n in zip(batch, lengths, strict=True)]
    return np.concatenate(rows, axis)


@check(suits=lambda operation: operation.step is not None)
def steps_like_the_whole(operation: Operation, case: Case) -> None:
    """Position after position, the step gives the rows of the full forward, and its state."""
    assert operation.step is not None
    problem = unpadded(case, case.key_length, causal=True).problem()
    arguments = laid_out(problem, array_library(operation.device))
    state, rows = arguments.initial_state, []
    for i in range(case.key_length):
        at_i = {name: position(x, i, rows_axis(name)) for name, x in arguments.inputs.items()}
        output, state = operation.step(at_i, state, arguments.keywords)
        rows.append(to_numpy({"output": output})["output"])
    assert_all_equal(to_numpy(arguments.inputs), problem.inputs, "its input")
    assert state is not None
    end = dict(zip(problem.state, state, strict=True))
    stepped = {"output": np.stack(rows, axis=2), **to_numpy(end)}
    outputs = operation.reference(problem, np.float64).outputs
    truth = {name: outputs[name] for name in ("output", *problem.state)}
    assert_within(stepped, truth, partial(allowed_errors, operation, problem))


def position(x: Array, i: int, axis: int | None) -> Array:
    """Position i of an array along its sequence, as a view; whole where it has none."""
    return x if axis is None else x[(slice(None),) * axis + (i,)]


def times(factor: float, allowed: Arrays) -> Arrays:
    """Errors allowed to a comparison of two results."""
    return {name: factor * error for name, error in allowed.items()}

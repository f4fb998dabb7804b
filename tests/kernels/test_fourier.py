"""What only Fourier attention has: laws of its positions, its special cases, its precision."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import fourier, reference
from minitransformer_kernels.checks import MOST_BLOCKS
from minitransformer_kernels.visible import Visible

from .. import references
from ..cases import Array, Case, Problem, fourier_inputs, fourier_state
from ..properties import equals_the_reference
from ..references import Result, qkv
from .operations import KERNELS, ONE_PLUS_COS, changed, fourier_apply, fourier_causal, rotation

LENGTH = 19
CASE = Case(
    batch=2, heads=2, query_length=LENGTH, key_length=LENGTH, head_dim=5, value_dim=3, causal=True,
    extras=fourier_inputs, states=fourier_state, **ONE_PLUS_COS,
)  # fmt: skip
COS = rotation("cos", "rotated")
POSITIONS = "query_positions", "key_positions"


def run(problem: Problem, algorithm: str = "recurrent") -> Result:
    result: Result = fourier_apply(KERNELS, algorithm)(problem)
    return result


def assert_same_output(first: Problem, second: Problem) -> None:
    one, other = (run(problem).outputs["output"] for problem in (first, second))
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_only_differences_of_positions_count() -> None:
    problem = CASE.problem()
    moved = {name: problem.inputs[name] + [30.0, -7.0] for name in POSITIONS}
    assert_same_output(problem, changed(problem, **moved))


def test_gradients_of_positions_add_up_to_zero() -> None:
    gradients = run(CASE.problem()).gradients
    of_queries, of_keys = (gradients[name].sum(axis=1) for name in POSITIONS)
    assert np.abs(of_queries).min() > 1e-3
    np.testing.assert_allclose(of_queries, -of_keys, atol=1e-12)


def test_phases_and_amplitudes_turn() -> None:
    problem = CASE.problem()
    phase, amplitude = problem.inputs["phase"], problem.inputs["amplitude"]
    assert_same_output(problem, changed(problem, phase=phase + 2 * np.pi))
    assert_same_output(problem, changed(problem, phase=phase + np.pi, amplitude=-amplitude))


def test_without_frequencies_it_is_plain_linear_attention() -> None:
    problem = replace(CASE, **COS).problem()
    a, b = (0 * problem.inputs[name] for name in ("frequency", "phase"))
    still = changed(problem, frequency=a, phase=b, amplitude=b + 1)
    plain = reference.linear_attention(*qkv(problem), problem.visible)
    np.testing.assert_allclose(run(still).outputs["output"], plain, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "causal"),
    [("naive", True), ("naive", False), pytest.param("chunked", True, marks=pytest.mark.nightly)],
)  # fmt: skip
def test_other_algorithms(algorithm: str, causal: bool) -> None:
    stateful = algorithm == "chunked"
    case = replace(CASE, causal=causal, query_offset=-2, key_lengths=(LENGTH, 7))
    case = replace(case, initial_state=stateful, grad_state=stateful)
    operation = fourier_causal()
    if not stateful:
        operation = replace(operation, reference=references.fourier)
    equals_the_reference(replace(operation, apply=fourier_apply(KERNELS, algorithm)), case)


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [True, False])
def test_more_features_than_a_kernel_holds(causal: bool) -> None:
    case = replace(CASE, causal=causal, head_dim=90, initial_state=causal, grad_state=causal)
    operation = fourier_causal()
    if not causal:
        apply = fourier_apply(KERNELS, "linear")
        operation = replace(operation, apply=apply, reference=references.fourier)
    equals_the_reference(operation, case)


@pytest.mark.parametrize("version", ["fast", "plain"])
def test_features_wider_than_a_warp(version: str) -> None:
    """Of two sequences at the same positions."""
    rng = np.random.default_rng(0)
    x, grad = rng.normal(size=(2, 2, 35, 37)), rng.normal(size=(2, 2, 35, 111))
    p, a, b, c = (rng.normal(size=s) for s in ((1, 35, 3), (2, 37, 3), (2, 37), (2, 37)))
    features = fourier.features(x, p, a, b, c, feature_map="identity")
    expected = reference.fourier_features(x, p, a, b, c, "one_plus_cos")
    np.testing.assert_allclose(features.rows, expected, atol=1e-12)
    options: dict[str, Any] = {"feature_map": "identity", "version": version}
    found = fourier.features_backward(grad, x, p, a, c, features, **options)
    for result, truth in zip(
        found, reference.fourier_features_backward(grad, x, p, a, b, c), strict=True
    ):
        np.testing.assert_allclose(result, truth, atol=1e-10)


@pytest.mark.parametrize("version", ["fast", "plain"])
@pytest.mark.parametrize("shared", [True, False])
def test_more_sequences_than_a_grid_has_blocks(shared: bool, version: str) -> None:
    """They give what halves of the batch give, and what these share gets the sum of gradients."""
    count, rng = MOST_BLOCKS + 3, np.random.default_rng(0)
    q, k, v, cotangent = (rng.normal(size=(count, 1, 2, 1)) for _ in range(4))
    p, r = (rng.normal(size=(1 if shared else count, 2, 1)) for _ in range(2))
    harmonics = [rng.normal(size=size) for size in ((1, 1, 1), (1, 1), (1, 1))]
    lengths = rng.integers(0, 3, (2, count))

    def passes(rows: slice) -> tuple[Array, Array, Any]:
        places = [x if shared else x[rows] for x in (p, r)]
        inputs = *(x[rows] for x in (q, k, v)), *places, *harmonics
        visible = Visible(True, 0, *(x[rows] for x in lengths))
        how = {"algorithm": "recurrent", "version": version}
        output, d, saved, state = fourier.forward(*inputs, visible, **how)
        rest = *inputs, output, d, saved, visible
        tokens = *(x[:, :, 0] for x in inputs[:3]), *(x[:, 0] for x in places)
        after, _ = fourier.step(*tokens, *harmonics, state)
        return output, after, fourier.backward(cotangent[rows], None, *rest, **how)

    whole, *halves = map(passes, (slice(0, count), slice(0, count // 2), slice(count // 2, count)))
    for found, *parts in zip(whole[:2], *(half[:2] for half in halves), strict=True):
        np.testing.assert_array_equal(found, np.concatenate(parts))
    gradients = zip(*(each[2][: len(references.FOURIER)] for each in (whole, *halves)), strict=True)
    for name, (found, *parts) in zip(references.FOURIER, gradients, strict=True):
        of_all = np.concatenate(parts) if len(found) == count else sum(parts)
        np.testing.assert_allclose(found, of_all, rtol=1e-9, atol=1e-9, err_msg=name)


def test_angles_far_from_zero_are_exact_in_float32() -> None:
    """In float32 the angle of a position of 1e6 would be off by 0.06."""
    problem = replace(CASE, dtype="float32").problem()
    far = changed(problem, **{name: problem.inputs[name] + 1e6 for name in POSITIONS})
    truth = references.fourier_causal(far, np.float64).arrays()
    for name, x in run(far).arrays().items():
        expected = truth[name]
        np.testing.assert_allclose(x, expected, atol=3e-6 * np.abs(expected).max(), err_msg=name)


def test_nothing_in_the_padding_reaches_the_parameters() -> None:
    case = replace(CASE, query_lengths=(LENGTH, 7), key_lengths=(3, LENGTH))
    problem = case.problem()
    inputs = {name: x.copy() for name, x in problem.inputs.items()}
    for name in ("query", "query_positions"):
        inputs[name][1, ..., 7:, :] = np.nan
    for name in ("key", "value", "key_positions"):
        inputs[name][0, ..., 3:, :] = np.nan
    wanted, found = run(problem).gradients, run(replace(problem, inputs=inputs)).gradients
    for name in references.FOURIER:
        np.testing.assert_array_equal(found[name], wanted[name], name)


def test_whole_frequencies_have_gradients_that_are_not() -> None:
    problem = CASE.problem()
    whole = {name: problem.inputs[name].round() for name in ("frequency", "phase", "amplitude")}
    wanted = run(changed(problem, **whole)).gradients
    ints = {name: x.astype(np.int64) for name, x in whole.items()}
    found = run(changed(problem, **ints)).gradients
    for name in whole:
        np.testing.assert_array_equal(found[name], wanted[name], name)


def test_a_token_needs_a_guard_as_a_sequence_does() -> None:
    problem = CASE.problem()
    inputs = dict(problem.inputs)
    token = [inputs.pop(name)[:, :, 0] for name in ("query", "key", "value")]
    places = [inputs.pop(name)[:, 0] for name in POSITIONS]
    waves = [inputs[name] for name in ("frequency", "phase", "amplitude")]
    with pytest.raises(ValueError, match="guard must be one of"):
        fourier.step(*token, *places, *waves, None, denominator="plain", guard="none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "sin"}, r"form must be one of \['cos', 'one_plus_cos'\], got 'sin'"),
        ({"denominator": "both"}, r"must be one of 'rotated', 'plain', 'none', got 'both'"),
        ({"frequency": np.zeros((1, 4, 2))}, r"frequency must have the shape \(H=2, E=5, P=2\)"),
        ({"key_positions": np.zeros((2, 18, 2))}, r"must have the shape \(N=2 or 1, Lk=19, P=2\)"),
        ({"key_positions": np.zeros((1, 19, 1))}, r"or 1, Lk=19, P=2\), got \(1, 19, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    problem = CASE.problem()
    arguments = {**problem.inputs, **problem.options, "algorithm": "recurrent", **change}
    with pytest.raises(ValueError, match=message):
        fourier.forward(**arguments, visible=problem.visible)

"""The reference's backward passes against the complex step, which has no cancellation.

Im f(x + i h u) / h is the derivative of f along u to machine precision, for any tiny h. The forward
passes are the definitions; where another formula says the same, they are held against it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer_kernels import reference
from minitransformer_kernels.visible import CAUSAL

from .. import cases, references
from ..cases import Array, Case, Domain, Problem, Variant, unpadded
from ..references import Result

SMALL = Domain(
    tuple(Variant("float64", 3, 2, {"scale": scale}) for scale in (None, 0.7)), tiles=(3,)
)
PATTERN = {"window": 1, "stride": 3, "num_global": 1, "global_queries": 2}
LOCAL = Domain((Variant("float64", 3, 2, PATTERN),), tiles=(3,))
RELATIVE_SOFTMAX = Domain(
    tuple(
        Variant("float64", 3, 2, options, {"k": k})
        for options in ({}, {"dropout": 0.4, "seed": 7})
        for k in (0, 1, 9)
    ),
    tiles=(3,),
    extras=cases.relative_scores,
)
LINEAR = Domain(
    tuple(
        Variant("float64", 3, 2, {"feature_map": feature_map, "guard": guard})
        for feature_map in ("elu", "identity")
        for guard in ("clamp", "add", "signed")
    ),
    tiles=(3,),
    stateful=True,
)
FOURIER = Domain(
    tuple(
        Variant(
            "float64", 2, 2,
            {"feature_map": "elu", "guard": guard, "form": form, "denominator": denominator},
            {"P": P, "shared": shared},
        )
        for form in ("one_plus_cos", "cos")
        for denominator in ("rotated", "plain", "none")
        for guard, P, shared in (("clamp", 2, 0), ("signed", 1, 1))
    ),
    tiles=(3,),
    stateful=True,
    extras=cases.fourier_inputs,
    states=cases.fourier_state,
)  # fmt: skip
RELATIVE = Domain(
    tuple(
        Variant(
            "float64", 3, 2,
            {
                "feature_map": "elu", "guard": guard, "score_map": score_map,
                "relative_query": relative_query,
            },
            {"k": k},
        )
        for score_map, guard, k in (("softplus", "clamp", 1), ("exp", "add", 0),
                                    ("identity", "signed", 4))
        for relative_query in ("feature", "raw")
    ),
    tiles=(3,),
    stateful=True,
    extras=cases.relative_inputs,
    states=cases.relative_state,
    follows=True,
)  # fmt: skip

DELTA = Domain(
    (Variant("float64", 3, 2),), tiles=(3,), causal=(True,), stateful=True,
    extras=cases.delta_inputs, states=cases.delta_state,
)  # fmt: skip

Reference = Callable[[Problem, Any], Result]


def complex_step(compute: Reference, problem: Problem, name: str) -> Array:
    """The gradient of <cotangents, outputs> with respect to one input, element by element."""
    gradient = np.zeros_like(problem.inputs[name])
    for index in np.ndindex(*gradient.shape):
        nudged = problem.inputs[name].astype(complex)
        nudged[index] += 1e-30j
        outputs = compute(
            replace(problem, inputs={**problem.inputs, name: nudged}), np.complex128
        ).outputs
        gradient[index] = sum(
            np.sum(g * outputs[out].imag) / 1e-30 for out, g in problem.cotangents.items()
        )
    return gradient


BACKWARDS = {
    "of softmax": (references.softmax, SMALL),
    "of local": (references.softmax, LOCAL),
    "of softmax with relative scores and dropout": (references.softmax, RELATIVE_SOFTMAX),
    "of linear with states": (references.recurrent, LINEAR),
    "of fourier with states": (references.fourier_causal, FOURIER),
    "of relative with states": (references.relative_causal, RELATIVE),
    "of delta with states": (references.delta, DELTA),
}


@pytest.mark.parametrize(("compute", "domain"), BACKWARDS.values(), ids=BACKWARDS)
@given(data=st.data())
def test_backward(compute: Reference, domain: Domain, data: Any) -> None:
    problem = replace(data.draw(cases.cases(domain)), grad=1.0).problem()
    for name, gradient in compute(problem, np.float64).gradients.items():
        proof = complex_step(compute, problem, name)
        size = max(1.0, np.max(np.abs(proof), initial=0.0))
        np.testing.assert_allclose(gradient, proof, rtol=1e-9, atol=1e-12 * size)


@pytest.mark.parametrize("name", [name for name in BACKWARDS if "fourier" not in name])
@given(data=st.data())
def test_float32_stays_float32(name: str, data: Any) -> None:
    """Neither counts in a state nor caps are float64; Fourier's positions and angles are."""
    compute, domain = BACKWARDS[name]
    case = replace(data.draw(cases.cases(domain)), dtype="float32")
    arrays = compute(case.problem(), np.float32).arrays()
    dtypes = {name: x.dtype for name, x in arrays.items() if x.dtype.kind == "f"}
    assert set(dtypes.values()) == {np.dtype("float32")}, dtypes


@given(cases.cases(SMALL))
def test_softmax_is_the_ratio_of_sums(case: Case) -> None:
    """Equation (5) with (3) and (4) put in: nothing is subtracted before the exponential."""
    problem = replace(case, spread=1.0, shift=0.0).problem()
    query, key, value = references.qkv(problem)
    seen, _ = references.seen_and_alive(problem)
    scale = problem.keywords["scale"] or query.shape[-1] ** -0.5
    e = seen * np.exp(scale * np.einsum("nhie,nhje->nhij", query, key))
    total = e.sum(-1, keepdims=True)
    expected = e @ value / np.where(total > 0, total, 1.0)
    np.testing.assert_allclose(references.softmax(problem, np.float64).outputs["output"], expected)


@given(cases.cases(replace(LINEAR, causal=(True,))))
@settings(max_examples=10)
def test_linear_attention_is_a_recurrence(case: Case) -> None:
    """S_i and Z_i updated token by token give every row, and the final state."""
    problem = unpadded(case, case.key_length).problem()
    query, key, value = references.qkv(problem)
    feature_map, guard = problem.keywords["feature_map"], problem.keywords["guard"]
    S, Z = problem.initial_state or reference.zero_state(key, value)
    result = references.recurrent(problem, np.float64).outputs
    for i in range(case.key_length):
        k, q = (reference.phi(x[:, :, i], feature_map) for x in (key, query))
        S = S + k[..., :, None] * value[:, :, i, None, :]
        Z = Z + k
        d, _ = reference.guarded(np.sum(q * Z, axis=-1, keepdims=True), guard, None)
        o = np.einsum("nhe,nhem->nhm", q, S) / d
        np.testing.assert_allclose(result["output"][:, :, i], o, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result["S"], S, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result["Z"], Z, rtol=1e-9)


@given(cases.cases(DELTA))
def test_the_residuals_of_the_delta_rule_solve_a_triangular_system(case: Case) -> None:
    """(I + tril(K K^T, -1) diag(beta)) R = V - K W_0, and the output is linear attention to U."""
    problem = unpadded(case, case.key_length, spread=1.0).problem()
    query, key, value = references.qkv(problem)
    beta = problem.inputs["beta"]
    (W,) = problem.initial_state or (np.zeros((*key.shape[:2], 3, 2)),)
    strict = np.tril(key @ key.swapaxes(-1, -2), -1) * beta[..., None, :]
    r = np.linalg.solve(np.eye(case.key_length) + strict, value - key @ W)
    u = beta[..., None] * r
    output = query @ W + np.tril(query @ key.swapaxes(-1, -2)) @ u
    result = references.delta(problem, np.float64).outputs
    for name, expected in (
        ("residual", r), ("output", output), ("W", W + key.swapaxes(-1, -2) @ u)
    ):  # fmt: skip
        np.testing.assert_allclose(result[name], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("guard", "d", "expected", "slope"),
    [
        ("clamp", [2.0, 0.5, 0.0, -3.0], [2.0, 1.0, 1.0, 1.0], [1, 0, 0, 0]),
        ("add", [2.0, 0.5, 0.0, -3.0], [3.0, 1.5, 1.0, -2.0], [1, 1, 1, 1]),
        ("signed", [2.0, 0.5, 0.0, -3.0], [2.0, 1.0, 1.0, -3.0], [1, 0, 0, 1]),
        ("signed", [-0.5, -0.0], [-1.0, 1.0], [0, 0]),
    ],
)
def test_guards(guard: str, d: list[float], expected: list[float], slope: list[float]) -> None:
    value, derivative = reference.guarded(np.array(d), guard, 1.0)
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(derivative, slope)


def test_elu_features_do_not_cancel() -> None:
    """elu(x) + 1 is exp(x) below zero: at -40 the sum of the two is long zero in float32."""
    features = reference.phi(np.array([-40.0, 0.0, 2.0], np.float32), "elu")
    np.testing.assert_allclose(features, [np.exp(-40), 1, 3], rtol=1e-6)


@pytest.mark.parametrize("feature_map", ["elu", "softplus"])
def test_the_recurrence_is_the_quadratic_form(feature_map: str) -> None:
    """Token by token as by the matrix: output and gradients."""
    rng = np.random.default_rng(0)
    g, query, key, value = (rng.normal(size=(2, 2, 9, width)) for width in (4, 3, 3, 4))
    keywords: dict[str, Any] = {"feature_map": feature_map}
    found = reference.linear_recurrence(g, query, key, value, **keywords)
    keywords["visible"] = CAUSAL
    *gradients, _ = reference.linear_attention_backward(g, query, key, value, **keywords)
    output = reference.linear_attention(query, key, value, **keywords)
    for x, wanted in zip(found, (output, *gradients), strict=True):
        np.testing.assert_allclose(x, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("feature_map", ["elu", "relu", "softplus", "exp", "identity"])
def test_slopes_of_feature_maps(feature_map: str) -> None:
    """By the complex step, on both sides of zero."""
    x = np.array([-20.0, -3.0, -0.1, 0.1, 3.0, 20.0])
    slope = reference.phi(x + 1e-30j, feature_map).imag / 1e-30
    np.testing.assert_allclose(reference.phi_slope(x, feature_map), slope, rtol=1e-12, atol=0)

"""What only the delta rule has: its memory, and features of size 1."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numba import float32, float64

from minitransformer_kernels import delta as kernels
from minitransformer_kernels import reference
from minitransformer_kernels.arrays import HEAD_DIMS, SHARED_BYTES
from minitransformer_kernels.features import normalised
from minitransformer_kernels.visible import inside

from .. import references
from ..cases import Array, Arrays, Case, Problem, delta_inputs, delta_state
from ..properties import (
    Operation,
    array_library,
    assert_within,
    equals_the_reference,
    made,
    to_numpy,
)
from ..references import Result
from ..rounding import allowed_rows
from .operations import changed, delta, delta_plain

LENGTH = 2 * kernels.fast.TILE + 3
CASE = Case(
    batch=2, heads=2, query_length=LENGTH, key_length=LENGTH, head_dim=5, value_dim=3, causal=True,
    initial_state=True, grad_state=True, extras=delta_inputs, states=delta_state,
)  # fmt: skip


def run(problem: Problem) -> Result:
    result: Result = delta().apply(problem)
    return result


def test_a_rate_of_zero_neither_writes_nor_forgets() -> None:
    problem = CASE.problem()
    W = problem.inputs["W"]
    result = run(changed(problem, beta=0 * problem.inputs["beta"]))
    np.testing.assert_array_equal(result.outputs["W"], W)
    expected = problem.inputs["query"] @ W
    np.testing.assert_allclose(result.outputs["output"], expected, atol=1e-12)
    for name in ("key", "value"):
        np.testing.assert_array_equal(result.gradients[name], 0, name)
    assert result.gradients["beta"].all()


def test_a_rate_of_one_gives_back_what_was_written_last() -> None:
    """Whatever was there before: a query that equals its key reads its value."""
    problem = CASE.problem()
    key, value = problem.inputs["key"], problem.inputs["value"]
    result = run(changed(problem, query=key, beta=np.ones_like(problem.inputs["beta"])))
    np.testing.assert_allclose(result.outputs["output"], value, atol=1e-12)


def test_a_key_that_comes_again_is_overwritten_by_as_much_as_its_rate_says() -> None:
    key = np.zeros((1, 1, 3, 2))
    key[..., 0] = 1
    value, beta = np.array([3.0, 6.0, 9.0]).reshape(1, 1, 3, 1), np.array([[[1.0, 1.0, 0.5]]])
    output, residual, (W,) = kernels.forward(key, key, value, beta)
    np.testing.assert_allclose(output.ravel(), [3.0, 6.0, 7.5])
    np.testing.assert_allclose(residual.ravel(), [3.0, 3.0, 3.0])
    np.testing.assert_allclose(W.ravel(), [7.5, 0.0])


def test_orthonormal_keys_are_linear_attention_without_a_denominator() -> None:
    """Nothing is held under a new key: it is all added."""
    rng = np.random.default_rng(0)
    key = np.linalg.qr(rng.normal(size=(2, 3, 7, 7)))[0]
    query, value = rng.normal(size=(2, 3, 7, 7)), rng.normal(size=(2, 3, 7, 4))
    output, _, (W,) = kernels.forward(query, key, value, np.ones((2, 3, 7)))
    scores = np.tril(query @ key.swapaxes(-1, -2))
    np.testing.assert_allclose(output, scores @ value, atol=1e-12)
    np.testing.assert_allclose(W, key.swapaxes(-1, -2) @ value, atol=1e-12)


def test_queries_after_all_keys_read_the_last_state() -> None:
    """As across to another sequence; padding writes nothing."""
    case = replace(CASE, query_length=9, query_offset=LENGTH, key_lengths=(5, LENGTH))
    problem = case.problem()
    outputs = run(problem).outputs
    expected = problem.inputs["query"] @ outputs["W"]
    np.testing.assert_allclose(outputs["output"], expected, atol=1e-12)
    equals_the_reference(delta(), case)


@pytest.mark.nightly
def test_chunks() -> None:
    equals_the_reference(delta(algorithm="chunked"), replace(CASE, key_lengths=(LENGTH, 7)))


def test_errors_do_not_grow_with_the_length() -> None:
    """A residual is made of the state itself, so what went wrong is put right again."""
    problem = replace(
        CASE, dtype="float32", query_length=1500, key_length=1500, head_dim=40, value_dim=33,
        initial_state=False,
    ).problem()  # fmt: skip
    truth = reference.delta_attention(
        *(problem.inputs[x] for x in ("query", "key", "value", "beta"))
    )
    error = np.abs(run(problem).outputs["output"] - truth[0]).max(axis=(0, 1, 3))
    assert error[-300:].max() < 3 * error[:300].max() < 1e-4


def by_sums(problem: Problem) -> Arrays:
    """The results, their gradients by the sums (9) to (13), as the kernels take them."""
    results, visible = references.delta(problem, np.float64).arrays(), problem.visible
    q, k, beta, W = (problem.inputs[name] for name in ("query", "key", "beta", "W"))
    q, beta = inside(q, visible.query_lengths)[..., None] * q, beta[..., None]
    g, D, r = problem.cotangents["output"], problem.cotangents["W"], results["residual"]
    u, seen, real = beta * r, visible.mask(q, k), inside(k, visible.key_lengths)[..., None]

    c = real * (k @ D + transposed(seen * (q @ transposed(k))) @ g)  # (9)
    products, du, dr = k @ transposed(k), 0 * c, 0 * c
    for t in reversed(range(k.shape[2])):
        later = transposed(products[:, :, t + 1 :, t : t + 1])
        du[:, :, t : t + 1] = c[:, :, t : t + 1] - later @ dr[:, :, t + 1 :]  # (10)
        dr[:, :, t] = beta[:, :, t] * du[:, :, t]
    by_output = u @ transposed(D) + transposed(seen * (g @ transposed(u))) @ q
    earlier = np.tril(dr @ transposed(u), -1)
    dk = by_output - dr @ transposed(W) - earlier @ k - transposed(earlier) @ k  # (12)
    dW = D + transposed(q) @ g - transposed(k) @ dr  # (13)
    gradients = {"key": dk, "value": dr, "beta": np.sum(r * du, axis=-1), "W": dW}  # (11)
    return results | {f"grad_{name}": x for name, x in gradients.items()}


def transposed(rows: Array) -> Array:
    return rows.swapaxes(-1, -2)


@pytest.mark.parametrize("operation", [delta(), delta_plain()], ids=str)
def test_a_long_sequence(operation: Operation, device: str) -> None:
    """Gradients are differences of two sums, of all later tokens: they have the roundings of both.

    The reference walks from token to token, and forgets. A true gradient far from all queries is
    next to nothing, and so is a rounding on that walk.
    """
    case = replace(
        CASE, query_length=277, key_length=308, query_offset=31, query_lengths=(277, 175),
        key_lengths=(225, 308),
    )  # fmt: skip
    problem = case.problem()
    found = operation.on(device).run(problem).arrays()
    truth = operation.reference(problem, np.float64).arrays()
    assert_within(
        found,
        truth,
        lambda runs: allowed_rows(lambda x: by_sums(made(problem, x)), problem.dtype, runs=runs),
    )


def test_too_wide_a_head_is_refused() -> None:
    row = np.zeros((1, 1, 1, 257))
    for query, value, name in ((row, row[..., :2], "head dim"), (row[..., :2], row, "value dim")):
        with pytest.raises(ValueError, match=f"{name} is 257, but kernels hold at most 256; use"):
            kernels.forward(query, query, value, np.zeros((1, 1, 1)))


# Features of size 1 -------------------------------------------------------------------------------

Sizes = dict[str, Callable[[Array], Any]]
SIZES: Sizes = {
    "none": lambda y: 1.0,
    "sum": lambda y: y.sum(axis=-1, keepdims=True),
    "l2": lambda y: np.sqrt((y * y).sum(axis=-1, keepdims=True)),
}


def normalise(x: Array, feature_map: str, normalize: str) -> Array:
    y = reference.phi(x, feature_map)
    return np.asarray(y / SIZES[normalize](y))


@pytest.mark.parametrize("normalize", normalised.NORMALISERS)
@pytest.mark.parametrize("feature_map", ["elu", "identity"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_normalised_features(feature_map: str, normalize: str, dtype: str, device: str) -> None:
    """And their gradient, by the complex step; rows wider than a warp, stored back to front."""
    rng = np.random.default_rng(0)
    x, g, along = rng.normal(size=(3, 2, 3, 35, 37))
    if (feature_map, normalize) == ("identity", "sum"):
        x = abs(x)
    options = {"feature_map": feature_map, "normalize": normalize}
    near: Any = {"rtol": 1e-10 if dtype == "float64" else 1e-4}
    given = x[..., ::-1].astype(dtype)[..., ::-1]
    xp = array_library(device)
    given, grad = xp.asarray(given), xp.asarray(g.astype(dtype))
    features, inverse = normalised.forward(given, **options)
    found = normalised.backward(grad, given, features, inverse, **options)
    phi, dx = to_numpy({"phi": features, "dx": found}).values()
    np.testing.assert_allclose(phi, normalise(x, **options), **near, atol=1e-6)
    slope = normalise(x + 1e-30j * along, **options).imag / 1e-30
    np.testing.assert_allclose(np.sum(dx * along), np.sum(g * slope), **near)
    assert phi.dtype == dx.dtype == dtype


@pytest.mark.parametrize("normalize", normalised.NORMALISERS)
def test_a_row_without_features_is_zero(normalize: str) -> None:
    x = np.array([[-1.0, -2.0], [3.0, 1.0]])
    options: Any = {"feature_map": "relu", "normalize": normalize}
    features, inverse = normalised.forward(x, **options)
    dx = normalised.backward(np.ones_like(x), x, features, inverse, **options)
    np.testing.assert_array_equal(features[0], 0)
    np.testing.assert_array_equal(dx[0], 0)
    assert features[1].all()


def test_no_rows() -> None:
    x = np.zeros((2, 0, 3))
    options: Any = {"feature_map": "elu", "normalize": "sum"}
    features, inverse = normalised.forward(x, **options)
    assert (
        features.shape == normalised.backward(x, x, features, inverse, **options).shape == x.shape
    )


def test_an_unknown_normaliser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"normalize must be one of \('none', 'sum', 'l2'\), got"):
        normalised.forward(np.ones((1, 2)), feature_map="elu", normalize="max")


@pytest.mark.parametrize("real", [float32, float64], ids=str)
def test_every_size_has_a_tile_that_fits(real: Any) -> None:
    fast = kernels.fast
    for value_dim, head_dim, back in itertools.product(HEAD_DIMS, HEAD_DIMS, (False, True)):
        made = [(value_dim, fast._rows_shape(value_dim, head_dim, real, back), 3, 0)]
        for task in ("writes", "answers", "gradients"):
            rows = 1 if task == "writes" else 2
            squares = 1 + (task == "gradients")
            shape = fast._residual_shape(head_dim, value_dim, real, task)
            made.append((head_dim, shape, rows, squares))
        for inner, (shape, pitch), rows, squares in made:
            transposed, tile = rows * inner * pitch, shape.tile
            rest = (squares * tile + (1 + shape.parts) * shape.columns) * tile
            assert pitch >= tile and (transposed + rest) * real.bitwidth // 8 <= SHARED_BYTES


def test_an_unknown_algorithm_is_refused() -> None:
    problem = CASE.problem()
    arrays = (problem.inputs[name] for name in ("query", "key", "value", "beta"))
    with pytest.raises(ValueError, match="algorithm must be one of 'recurrent', 'chunked', got"):
        kernels.forward(*arrays, problem.visible, algorithm="naive")

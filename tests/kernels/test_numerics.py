"""Far from zero, over long sequences and in empty rows, kernels lose no more than they must.

Everything here is float32. Far from zero the yardstick is the naive computation of the same dtype,
as in all properties. Long sequences are too long for that: there it is the recurrence, token by
token, in NumPy; in float64 that is the truth.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import algorithms, reference
from minitransformer_kernels.visible import Visible
from tests.cases import Array, Arrays, Case, Variant
from tests.properties import (
    Operation,
    array_library,
    equals_the_reference,
    to_numpy,
)
from tests.rounding import difference, largest

from .operations import OPERATIONS, distances, launches, linear, ragged, rotation

OF = {str(operation): operation for operation in OPERATIONS}
ELU = Variant("float32", 16, 16, linear("elu", "clamp"))
SOFTPLUS_DISTANCES = Variant("float32", 40, 70, **distances(33, "softplus", "feature"))
POSITIVE_WAVES = Variant("float32", 40, 33, **rotation("one_plus_cos", "rotated", P=2))

# What is added to queries and keys, and what they and the values are multiplied by.
FAR = [
    *[(shift, 1.0) for shift in (-30.0, -16.0, -8.0, 8.0, 30.0)],
    *[(0.0, spread) for spread in (1e-3, 1e-2, 10.0, 100.0, 1000.0)],
]


IN_ONE_VARIANT = [
    replace(OF[name], domain=replace(OF[name].domain, variants=(variant,)))
    for variant, names in (
        (ELU, ("naive", "bidirectional", "recurrent", "chunked")),
        (SOFTPLUS_DISTANCES, ("relative_naive", "relative", "relative_causal")),
        (POSITIVE_WAVES, ("fourier", "fourier_causal")),
    )
    for name in names
]
ALWAYS = ("bidirectional", "recurrent")  # their kernels are compiled for other tests as well
LAUNCHES = list(launches(lambda operation, causal: str(operation) in ALWAYS, IN_ONE_VARIANT))


@pytest.mark.parametrize(("operation", "case"), LAUNCHES)
def test_far_from_zero(operation: Operation, case: Case, device: str) -> None:
    """Outputs, denominators and gradients are finite, and as exact as the naive ones."""
    case = replace(case, initial_state=False, grad_state=False)
    for shift, spread in FAR:
        far = replace(case, shift=shift, spread=spread)
        equals_the_reference(operation.on(device), far)


@pytest.mark.parametrize(("operation", "case"), LAUNCHES)
def test_far_from_zero_with_nothing_to_see(operation: Operation, case: Case, device: str) -> None:
    """A sequence without keys gives zeros beside one that has them, however small all features."""
    case = replace(case, initial_state=False, grad_state=False, key_lengths=(0, case.key_length))
    for shift in (-30.0, -200.0):
        result = operation.on(device).run(replace(case, shift=shift).problem())
        arrays = {**result.gradients, "output": result.outputs["output"]}
        assert all(np.isfinite(x).all() for x in arrays.values())
        assert not any(arrays[name][0].any() for name in ("output", "query", "key", "value"))


# -- Large scores ----------------------------------------------------------------------------------

WINDOW = {"window": 9, "stride": 7, "num_global": 2, "global_queries": 3}
DROPPED = {"dropout": 0.3, "seed": 7}
LARGE_SCORES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "softmax": ({}, {}),
    "softmax_dropped_plain": (DROPPED, {"k": 3}),
    "local_plain": (WINDOW, {}),
    "softmax_dropped": (DROPPED, {"k": 3}),
    "local_dropped": (WINDOW | DROPPED, {"k": 3}),
}
BY_NIGHT = "local_plain", "softmax_dropped", "local_dropped"  # more kernels of the same text


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 90.0), (88.0, 0.02)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.nightly] if x in BY_NIGHT else []) for x in LARGE_SCORES],
)
def test_large_scores(name: str, causal: bool, shift: float, spread: float, device: str) -> None:
    """Up to 50,000, far apart or all alike: errors are no more than twice the naive ones.

    One draw can be lucky: where two scores nearly tie, a row's error outweighs all others. So it is
    the median of several.
    """
    operation, (options, sizes) = OF[name], LARGE_SCORES[name]
    value_dim = 5 if name.endswith("plain") else 64  # a thread for each number: more take longer
    case = ragged(operation, Variant("float32", 40, value_dim, options, sizes), causal)
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for seed in range(9):
        problem = replace(case, shift=shift, spread=spread, seed=seed).problem()
        truth, naive = (operation.reference(problem, x).arrays() for x in (np.float64, np.float32))
        for of, x in operation.on(device).run(problem).arrays().items():
            error, usual = (root_mean_square(difference(y, truth[of])) for y in (x, naive[of]))
            shares[of].append(error / (2 * usual + 1e-6 * root_mean_square(truth[of])))
    medians = {of: np.median(drawn) for of, drawn in shares.items()}
    assert max(medians.values()) <= 1, f"of what is allowed: {medians}"


def root_mean_square(x: Array) -> float:
    """Over all numbers but infinities."""
    return float(np.sqrt(np.mean(np.square(x), where=np.isfinite(x))))


# -- Long sequences --------------------------------------------------------------------------------


def long_problem(length: int) -> Arrays:
    """One head of float32 numbers."""
    rng = np.random.default_rng(0)
    widths = {"query": ELU.head_dim, "key": ELU.head_dim, "value": ELU.value_dim}
    widths["g"] = ELU.value_dim
    return {
        name: rng.standard_normal((1, 1, length, width), np.float32)
        for name, width in widths.items()
    }


def recurrence(arrays: Arrays, dtype: Any) -> Arrays:
    """The output and the gradients of the plain recurrence, by name."""
    *inputs, g = arrays.values()
    results = reference.linear_recurrence(g, *inputs, dtype=dtype)
    return dict(zip(("output", "query", "key", "value"), results, strict=True))


@pytest.mark.parametrize(
    "length", [2048, *(pytest.param(n, marks=pytest.mark.nightly) for n in (16_384, 131_072))]
)
def test_long_sequences(length: int, device: str) -> None:
    """Rounding errors add up no faster than those of the plain recurrence."""
    xp = array_library(device)
    arrays = long_problem(length)
    truth, plain = (recurrence(arrays, dtype) for dtype in (np.float64, np.float32))
    for algorithm in ("recurrent", "chunked"):
        for name, x in long_result(algorithm, arrays, xp).items():
            assert x.dtype == np.float32
            allowed = 2 * largest(plain[name] - truth[name]) + 1e-6 * largest(truth[name])
            error = difference(x, truth[name]).max()
            assert error <= allowed, f"{algorithm}: {name} is off by {error}, allowed {allowed}"


def long_result(algorithm: str, arrays: Arrays, xp: Any = np) -> Arrays:
    """The same arrays as of `recurrence`, by the kernels."""
    *inputs, g = (xp.asarray(x) for x in arrays.values())
    options: dict[str, Any] = {"algorithm": algorithm, "visible": Visible(causal=True)}
    output, d, _ = algorithms.forward(*inputs, **options)
    gradients: tuple[Array, ...] = algorithms.backward(g, None, *inputs, output, d, **options)[:3]
    results = dict(zip(("output", "query", "key", "value"), (output, *gradients), strict=True))
    return to_numpy(results)


@pytest.mark.parametrize("length", [5000, pytest.param(131_072, marks=pytest.mark.nightly)])
def test_long_sequences_without_causality(length: int, device: str) -> None:
    """The totals S and Z are sums over spans of the sequence: the last digits stay."""
    xp = array_library(device)
    arrays = long_problem(length)
    q, k = (reference.phi(arrays[x][0, 0].astype(np.float64), "elu") for x in ("query", "key"))
    S, Z = k.T @ arrays["value"][0, 0], k.sum(axis=0)
    inputs = (xp.asarray(arrays[name]) for name in ("query", "key", "value"))
    output, _, _ = algorithms.forward(*inputs, algorithm="linear")
    wanted = q @ S / (q @ Z)[:, None]
    error = difference(to_numpy({"output": output})["output"][0, 0], wanted)
    assert error.max() <= 3e-6 * largest(wanted)

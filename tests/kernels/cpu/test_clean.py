"""The checked mode finds nothing in right kernels, and changes nothing that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import (
    OutOfBounds,
    checked,
    delta,
    fourier,
    normalised,
    optimizer,
    relative,
)
from minitransformer_kernels.arrays import spans

from ... import cases
from ...properties import Operation, allowed_errors, assert_within, steps_like_the_whole, times
from ..operations import NARROW, OPERATIONS, ragged
from .launches import Case
from .test_corpus import CASES, assert_same

# They count from the end of an array, as Numba allows; CUDA C has no such indices.
NEGATIVE = [
    name for name in CASES if name.startswith(("strided_and_read_only-", "indices_from_the_end-"))
]
RIGHT = [name for name in CASES if name not in NEGATIVE]
SAMPLE = RIGHT[::8]


def sampled(name: str) -> Any:
    """A case, which only the nightly profile runs unless it is in the sample."""
    return pytest.param(CASES[name], id=name, marks=[] if name in SAMPLE else pytest.mark.nightly)


@pytest.mark.parametrize("case", [sampled(name) for name in RIGHT])
def test_corpus(case: Case) -> None:
    wanted, found = case.arguments(), case.arguments()
    with checked(False):
        case.launch(*wanted)
    with checked():
        case.launch(*found)
    assert_same(found, wanted)


@pytest.mark.parametrize("name", NEGATIVE)
def test_indices_from_the_end_are_out_of_bounds(name: str) -> None:
    with pytest.raises(OutOfBounds) as caught, checked():
        CASES[name].launch(*CASES[name].arguments())
    assert caught.value.index is not None and min(caught.value.index) < 0


# The package's own kernels, through their host functions ------------------------------------------


def launches() -> Iterator[Any]:
    """Each operation in each of its variants; all but one of each only in nightly runs."""
    always = {"softmax": NARROW, "bidirectional": NARROW, "recurrent": NARROW}
    for operation in OPERATIONS:
        for number, variant in enumerate(operation.domain.variants):
            for causal in operation.domain.causal:
                yield pytest.param(
                    operation,
                    ragged(operation, variant, causal),
                    id=f"{operation}-{number}-{variant.dtype}-{'causal' if causal else 'all'}",
                    marks=[] if number == always.get(str(operation)) else pytest.mark.nightly,
                )


@pytest.mark.parametrize(("operation", "case"), list(launches()))
def test_attention(operation: Operation, case: cases.Case) -> None:
    problem = case.problem()
    with checked(False):
        wanted = operation.run(problem)
    with checked():
        found = operation.run(problem)
        if operation.step:
            steps_like_the_whole(operation, case)
    allowed = times(2, allowed_errors(operation, problem))
    assert_within(found.arrays(), wanted.arrays(), allowed)


def test_relative_forward() -> None:
    """The forward kernels and the step of relative attention; nightly runs take its backward, too.

    A sequence goes on from the window that another left, by one more tile and then by one token.
    """
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 1, 37, 5))
    embedding = rng.normal(size=(1, 7, 5))
    token = query[:, :, 0], key[:, :, 0], value[:, :, 0]

    def passes() -> tuple[Any, ...]:
        options: dict[str, Any] = {"algorithm": "recurrent", "causal": True}
        *_, state = relative.forward(query, key, value, embedding, **options)
        options |= {"initial_state": state, "key_lengths": np.array([37, 2])}
        *outputs, state = relative.forward(query, key, value, embedding, **options)
        output, state = relative.step(*token, embedding, state)
        return *outputs, output, *state

    with checked(False):
        wanted = passes()
    with checked():
        found = passes()
    assert_same(found, wanted)


def test_fourier_features() -> None:
    """The kernels of Fourier attention beside those that it shares; nightly runs take it whole."""
    dtype = np.float32
    rng = np.random.default_rng(0)
    x, grad = (rng.normal(size=(2, 2, 35, E)).astype(dtype) for E in (37, 111))
    positions, frequency = rng.normal(size=(1, 35, 2)), rng.normal(size=(2, 37, 2)).astype(dtype)
    phase, amplitude = rng.normal(size=(2, 2, 37)).astype(dtype)
    lengths = np.array([35, 20])

    def passes() -> tuple[Any, ...]:
        saved = fourier.features(x, positions, frequency, phase, amplitude)
        return *saved, *fourier.features_backward(
            grad, x, positions, frequency, amplitude, saved, lengths=lengths
        )

    with checked(False):
        wanted = passes()
    with checked():
        found = passes()
    assert_same(found, wanted)


def test_delta() -> None:
    """The kernels of the delta rule beside those that it shares; nightly runs take it whole."""
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 1, 19, 5))
    beta, W = rng.uniform(size=(2, 1, 19)), rng.normal(size=(2, 1, 5, 5))
    places = spans(key, np.array([19, 2]))

    def passes() -> tuple[Any, ...]:
        forwards, backwards = (
            delta._residuals(key / 3, value, beta, places, way, W) for way in (1, -1)
        )
        output, state = delta.step(
            query[:, :, 0], key[:, :, 0], value[:, :, 0], beta[:, :, 0], delta.DeltaState(W)
        )
        return *forwards, *backwards, output, *state

    with checked(False):
        wanted = passes()
    with checked():
        found = passes()
    assert_same(found, wanted)


def test_normalised_features() -> None:
    """The kernels that come before the delta rule; rows wider than a warp, and a ragged block."""
    x, grad = np.random.default_rng(0).normal(size=(2, 11, 37))
    options: Any = {"feature_map": "elu", "normalize": "l2"}

    def passes() -> tuple[Any, ...]:
        saved = normalised.forward(x, **options)
        return *saved, normalised.backward(grad, x, *saved, **options)

    with checked(False):
        wanted = passes()
    with checked():
        found = passes()
    assert_same(found, wanted)


UPDATES: dict[str, tuple[Callable[..., None], int, dict[str, Any]]] = {
    "descend": (optimizer.descend, 2, {"rate": 0.1, "weight_decay": 0.01}),
    "momentum": (optimizer.momentum_descend, 3, {"rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "moments": (
        optimizer.moment_descend,
        4,
        {"rate": 0.1, "betas": (0.9, 0.99), "root_weight": 1.0, "eps": 1e-8},
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UPDATES)
def test_optimizer(name: str, dtype: Any) -> None:
    update, arrays, numbers = UPDATES[name]
    wanted = np.random.default_rng(0).uniform(0.1, 1, (arrays, 7, 101)).astype(dtype)
    found = wanted.copy()
    with checked(False):
        update(*wanted, **numbers)
    with checked():
        update(*found, **numbers)
    assert_same((found,), (wanted,))

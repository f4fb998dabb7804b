"""The checked mode finds nothing in the kernels of the rooms, and changes no result of theirs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import checked
from minitransformer_kernels.cuda import Launch
from minitransformer_kernels.features import normalised
from minitransformer_kernels.layers import optimizer

from ..cases import Case
from ..properties import (
    Operation,
    allowed_errors,
    assert_within,
    steps_like_the_whole,
    takes_empty_arrays,
)
from .cpu.test_corpus import assert_same
from .gpu.test_needs import kernels, place
from .operations import NIGHTLY, launches

# Their kernels are those of others, in another form.
BY_NIGHT = (
    "softmax", "softmax_dropped", "softmax_dropped_on_lanes", "softmax_plain", "local", "fourier",
    "fourier_plain_denominator", "fourier_sum", "relative_naive", "relative", "relative_plain",
)  # fmt: skip


LAUNCHES = list(launches(lambda operation, causal: str(operation) not in BY_NIGHT))


def with_a_shared_map(case: Case) -> Case:
    """A feature map reads no memory: where all are the identity, scans share their kernels."""
    same = {"feature_map": "identity"} if "feature_map" in case.options else {}
    return replace(case, options=case.options | same)


@pytest.mark.parametrize(("operation", "case"), LAUNCHES)
def test_attention(operation: Operation, case: Case) -> None:
    case = case if NIGHTLY else with_a_shared_map(case)
    problem = case.problem()
    with checked():
        found = operation.run(problem)
        takes_empty_arrays(operation, case)
        if operation.step:
            steps_like_the_whole(operation, case)
    truth = operation.reference(problem, np.float64)
    assert_within(found.arrays(), truth.arrays(), partial(allowed_errors, operation, problem))


def test_every_kernel_of_an_attention_is_checked_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every attention; here nothing is computed, launches are only noted."""
    launched = set()
    monkeypatch.setattr(Launch, "__call__", lambda x, *arguments: launched.add(place(x.kernel)))
    for operation, case in (x.values for x in LAUNCHES if not x.marks):
        operation.apply(case.problem())
    rooms = "softmax", "local", "linear", "recurrent", "chunked", "relative", "fourier", "delta"
    missed = {at for at in {*kernels()} - launched if any(f"/kernels/{x}/" in at[0] for x in rooms)}
    assert {name for _, name, _ in missed} == {"step"}


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

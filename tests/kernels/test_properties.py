"""Every kernel has every property of its operation, on every device."""

from __future__ import annotations

import pytest

from ..cases import Case
from ..properties import Check, Operation, derive, equals_the_reference, examine
from .operations import OPERATIONS


@pytest.mark.parametrize(
    ("operation", "check"),
    [(operation, check) for operation in OPERATIONS for check in derive(operation)],
    ids=str,
)
def test_property(operation: Operation, check: Check, device: str) -> None:
    examine(operation.on(device), check)


@pytest.mark.parametrize(
    ("operation", "causal"),
    [(operation, causal) for operation in OPERATIONS for causal in operation.domain.causal],
    ids=str,
)
def test_a_long_sequence(operation: Operation, causal: bool, device: str) -> None:
    """Long enough for a kernel to share a sequence out among several blocks."""
    variant = operation.domain.variants[0]
    case = Case(
        batch=2,
        query_length=1111,
        key_length=1234,
        head_dim=variant.head_dim,
        value_dim=variant.value_dim,
        causal=causal,
        query_offset=123,
        query_lengths=(1111, 700),
        key_lengths=(900, 1234),
        initial_state=operation.domain.stateful,
        grad_state=operation.domain.stateful,
        options=variant.options,
        sizes=variant.sizes,
        extras=operation.domain.extras,
        states=operation.domain.states,
    )
    equals_the_reference(operation.on(device), case)

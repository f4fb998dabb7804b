"""Every kernel has every property of its operation, on every device."""

from __future__ import annotations

import pytest

from ..properties import Check, Operation, derive, examine
from . import operations

OPERATIONS = [
    operations.softmax(),
    operations.bidirectional(),
    operations.naive(),
    operations.recurrent(),
]


@pytest.mark.parametrize(
    ("operation", "check"),
    [(operation, check) for operation in OPERATIONS for check in derive(operation)],
    ids=str,
)
def test_property(operation: Operation, check: Check, device: str) -> None:
    examine(operation.on(device), check)

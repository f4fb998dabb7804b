"""Every kernel has every property of its operation, on every device."""

import pytest

from ..properties import (
    Check,
    Operation,
    derive,
    equals_the_reference,
    examine,
    hands_its_state_over,
    packs_like_it_pads,
)
from .operations import NARROW, OPERATIONS, chunked, ragged


@pytest.mark.parametrize(
    ("operation", "check"),
    [(operation, check) for operation in OPERATIONS for check in derive(operation)],
    ids=str,
)
def test_property(operation: Operation, check: Check, device: str) -> None:
    examine(operation.on(device), check)


# The fewest rows that are worth a block of their own, wherever a kernel shares a sequence out.
FEWEST = "linear.fast.FEWEST_ROWS", "chunked.fast.FEWEST_TOKENS"


@pytest.mark.parametrize(
    ("operation", "causal"),
    [
        (operation, causal)
        for operation in OPERATIONS
        if "a_long_sequence" not in operation.exempt
        for causal in operation.domain.causal
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_long_sequence(
    operation: Operation, causal: bool, scale: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough for a kernel to share a sequence out among several blocks."""
    for name in FEWEST:
        monkeypatch.setattr(f"minitransformer_kernels.{name}", 128 * scale)
    domain = operation.domain
    queries, fewer, keys, fewer_keys = (length * scale for length in (277, 175, 308, 225))
    if domain.queries:
        queries = fewer = max(domain.queries)
    case = domain.case(
        domain.variants[0], batch=2, query_length=queries, key_length=keys, causal=causal,
        query_offset=31, query_lengths=(queries, fewer), key_lengths=(fewer_keys, keys),
        initial_state=domain.stateful, grad_state=domain.stateful,
    )  # fmt: skip
    equals_the_reference(operation.on(device), case)


@pytest.mark.parametrize("chunk_size", [1, 3, 15, 17, 40, 10_000])
def test_any_chunk_size_is_the_recurrence(chunk_size: int, device: str) -> None:
    """From chunks of one token to a single chunk; of less than a tile, more, and ragged ones."""
    operation = chunked(chunk_size=chunk_size).on(device)
    equals_the_reference(operation, ragged(operation, operation.domain.variants[NARROW]))


def test_segments(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence shared out among several blocks gives what one block gives."""
    monkeypatch.setattr("minitransformer_kernels.chunked.fast.FEWEST_TOKENS", 8)
    operation = chunked().on(device)
    for check in derive(operation):
        if check.holds in (equals_the_reference, hands_its_state_over, packs_like_it_pads):
            examine(operation, check)


def test_a_chunk_holds_a_token() -> None:
    operation = chunked(chunk_size=0)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        operation.run(ragged(operation, operation.domain.variants[NARROW]).problem())

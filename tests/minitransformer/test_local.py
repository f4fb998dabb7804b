"""Local attention on the tape: every property of the operation; the variant; refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, nn, no_grad
from minitransformer.attention import local_attention, softmax_attention
from minitransformer.generation import generate
from minitransformer.nn.variant import KeyValueCache
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.softmax.fast import TILE
from tests import references
from tests.cases import Array, Domain, Variant
from tests.properties import Check, Operation, examine
from tests.refusals import refusals

from .models import language_model, normal, some_tokens
from .test_attention import INPUTS, tape_checks, through_the_tape
from .test_generation import greedily

PATTERN = {"window": 9, "stride": 7, "num_global": 2, "global_queries": 3}
OPERATION = Operation(
    "local",
    Domain((Variant("float64", 5, 3, PATTERN),), (TILE,)),
    through_the_tape(local_attention, INPUTS, LinearState),
    references.public(references.softmax),
    exempt=("ignores_the_order_of_keys",),
)


@pytest.mark.parametrize(("op", "check"), tape_checks(OPERATION))
def test_properties(op: Operation, check: Check, device: str) -> None:
    examine(op.on(device), check)


def tokens(length: int) -> list[Array]:
    """Query, key (1, 2, L, 3) and value (1, 2, L, 4)."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 2, length, width)) for width in (3, 3, 4)]


@given(
    st.integers(0, 5),
    st.integers(0, 3),
    st.none() | st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
)
def test_steps_of_any_length_are_the_whole(
    window: int, num_global: int, stride: int | None, global_queries: int, counts: list[int]
) -> None:
    variant = nn.LocalAttention(window, stride, num_global, global_queries)
    arrays = tokens(sum(counts))
    ends = np.cumsum(counts)
    with no_grad():
        whole = variant(*map(Tensor, arrays), causal=True).numpy()
        state, rows = variant.init_state(), []
        for start, end in zip(ends - counts, ends, strict=True):
            query, key, value = (Tensor(x[:, :, start:end]) for x in arrays)
            output, state = variant.step(query, key, value, state)
            rows.append(output.numpy())
    np.testing.assert_allclose(np.concatenate(rows, axis=2), whole, atol=1e-12)


@pytest.mark.parametrize(("num_global", "window"), [(0, 3), (2, 3), (2, 0)])
def test_a_decoder_keeps_what_a_later_query_sees(num_global: int, window: int) -> None:
    variant = nn.LocalAttention(window, num_global=num_global)
    state, arrays = variant.init_state(), tokens(50)
    for i in range(50):
        query, key, value = (Tensor(x[:, :, i : i + 1]) for x in arrays)
        _, state = variant.step(query, key, value, state)
    kept = [*range(num_global), *range(50 - window, 50)]
    assert state.length == len(kept)
    np.testing.assert_array_equal(state.keys[:, :, : len(kept)], arrays[1][:, :, kept])
    np.testing.assert_array_equal(state.values[:, :, : len(kept)], arrays[2][:, :, kept])
    assert state.keys.shape[2] <= 16, "memory does not grow with the length"


def test_a_cache_with_little_in_it_forgets_nothing() -> None:
    cache, (_, key, value) = KeyValueCache(), tokens(5)
    cache.append(Tensor(key), Tensor(value))
    cache.forget(3, 2)
    assert cache.length == 5
    np.testing.assert_array_equal(cache.keys[:, :, :5], key)


def test_generation_through_a_window_equals_whole_forwards() -> None:
    prompt = some_tokens(2, 3)
    for attention in (nn.LocalAttention(2), nn.LocalAttention(2, num_global=1)):
        model = language_model(attention=attention)
        np.testing.assert_array_equal(generate(model, prompt, 30), greedily(model, prompt, 30))


def test_across_a_query_looks_around_its_own_place() -> None:
    """At place i of the other sequence, whether it is asked with all others or alone."""
    variant = nn.LocalAttention(window=1)
    query, key, value = map(Tensor, tokens(6))
    together = variant(query, key, value).numpy()
    memory = variant.remember(key, value)
    for i in range(6):
        alone = variant.recall(query[:, :, i : i + 1], memory, query_offset=i).numpy()
        np.testing.assert_allclose(alone, together[:, :, i : i + 1], atol=1e-14)
        near = slice(max(0, i - 1), i + 2)
        wanted = softmax_attention(query[:, :, i : i + 1], key[:, :, near], value[:, :, near])
        np.testing.assert_allclose(alone, wanted.numpy(), atol=1e-14)


def test_layers_pass_on_what_one_window_does_not_reach() -> None:
    """A change moves what is up to two windows behind it through two layers, and nothing else."""
    model = language_model(attention=nn.LocalAttention(window=2), num_layers=2).eval()
    x = some_tokens(1, 12)
    y = x.copy()
    y[0, 3] = (y[0, 3] + 1) % 3
    with no_grad():
        moved = np.abs(model(x).numpy() - model(y).numpy()).max(axis=-1)[0] > 0
    np.testing.assert_array_equal(np.flatnonzero(moved), np.arange(3, 8))


def test_a_variant_shows_its_options() -> None:
    assert repr(nn.LocalAttention(0, num_global=1)) == "LocalAttention(window=0, num_global=1)"


test_refusals = refusals(
    ({"window": -1}, "local_attention: window must be at least 0, got -1"),
    ({"window": 2.0}, TypeError, "local_attention: window must be a whole number, got 2.0"),
    ({"stride": 0}, "local_attention: stride must be at least 1, got 0"),
    ({"num_global": -1}, "local_attention: num_global must be at least 0, got -1"),
    ({"global_queries": None}, TypeError,
     "local_attention: global_queries must be a whole number, got None"),
    ({"scale": float("inf")}, "local_attention: scale must be a finite number, got inf"),
    ({"key_lengths": [9]}, "local_attention: key_lengths must lie between 0 and 5"),
    of=lambda **change: local_attention(*map(Tensor, tokens(5)), **{"window": 2, **change}),
)  # fmt: skip


def test_query_and_key_must_fit() -> None:
    query, key, value = normal(1, 2, 5, 3), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    with pytest.raises(ValueError, match="local_attention: key must have the shape"):
        local_attention(*map(Tensor, (query, key, value)), window=2)

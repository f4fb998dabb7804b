"""Softmax attention on the tape: relative positions, dropout, and the layer that has them."""

from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, gradcheck, nn, random
from minitransformer.attention import softmax_attention
from minitransformer_kernels import reference
from tests.refusals import refusals

# One kernel for all that can be: compiling takes seconds, so relative positions come with dropout.
SEED = {"dropout": 0.3, "seed": 5}


def drawn(**shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors."""
    rng = np.random.default_rng(0)
    return [Tensor(rng.normal(size=shape)) for shape in shapes.values()]


def inputs(k: int) -> list[Tensor]:
    """Query, key, value and the embeddings of 2k + 1 distances, for two heads."""
    return drawn(query=(2, 2, 17, 3), key=(2, 2, 18, 3), value=(2, 2, 18, 4), e=(2, 2 * k + 1, 3))


@pytest.mark.parametrize(("k", "offset"), [(0, 2), (2, 2), (2, -1), (9, 1)])
def test_relative_positions_by_definition(k: int, offset: int, device: str) -> None:
    """Each pair's score is the product of the query with the key plus the distance's embedding."""
    tensors = [x.to(device) for x in inputs(k)]
    output = softmax_attention(
        *tensors[:3], relative_embedding=tensors[3], query_offset=offset, scale=0.7, **SEED
    )
    query, key, value, e = (x.numpy() for x in tensors)
    scores = np.empty((2, 2, 17, 18))
    for i, j in np.ndindex(17, 18):
        r = min(max(j - (i + offset), -k), k)
        scores[:, :, i, j] = 0.7 * np.sum(query[:, :, i] * (key[:, :, j] + e[:, r + k]), axis=-1)
    weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
    kept = reference.dropout_factors(scores.shape, SEED["dropout"], 5)
    np.testing.assert_allclose(output.numpy(), (kept * weights) @ value, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal: bool) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, e: Tensor) -> Tensor:
        options: dict[str, Any] = {"relative_embedding": e, "causal": causal, "query_offset": 1}
        return softmax_attention(query, key, value, **options, **SEED)

    assert gradcheck(attend, inputs(2))


def test_the_engines_seed_decides_what_is_dropped() -> None:
    query, key, value, e = inputs(2)

    def attend(**options: Any) -> Any:
        return softmax_attention(
            query, key, value, relative_embedding=e, **{"dropout": 0.5, **options}
        ).numpy()

    random.manual_seed(3)
    first, second = attend(), attend()
    random.manual_seed(3)
    np.testing.assert_array_equal(attend(), first)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(attend(seed=5), attend(seed=5))
    before = random.get_state()
    attend(seed=5)
    softmax_attention(query, key, value)
    assert random.get_state() == before, "a seed was drawn that nobody needs"


test_refusals = refusals(
    ({"dropout": 1.0}, "softmax_attention: dropout must be a probability in [0, 1), got"),
    ({"dropout": 0.1, "seed": -1}, "softmax_attention: seed must be from 0 to 2^63 - 1, got -1"),
    ({"dropout": 0.1, "seed": 1.5}, TypeError,
     "softmax_attention: seed must be a whole number, got 1.5"),
    ({"relative_embedding": Tensor(np.zeros((2, 4, 3)))},
     "softmax_attention: relative_embedding must have an odd number of rows, 2k + 1 for the "
     "distances -k to k"),
    ({"relative_embedding": Tensor(np.zeros((1, 5, 3)))},
     "softmax_attention: relative_embedding must have the shape (H=2, 2k+1, E=3), got (1, 5, 3)"),
    ({"relative_embedding": Tensor(np.zeros((2, 5, 3), np.float32))},
     "softmax_attention: relative_embedding is float32, but query is float64; convert it"),
    of=lambda **options: softmax_attention(*inputs(2)[:3], **options),
)  # fmt: skip


def layer() -> nn.MultiHeadAttention:
    """A layer with relative positions, in float64, with dropout in training."""
    variant = nn.SoftmaxAttention(max_distance=2)
    attention = nn.MultiHeadAttention(6, 2, attention=variant, dropout=0.3)
    for parameter in attention.parameters():
        parameter.data = np.random.default_rng(0).normal(size=parameter.shape)
    return attention


def test_the_layer_learns_an_embedding_of_each_distance() -> None:
    attention = layer()
    assert dict(attention.named_parameters())["attention.embedding"].shape == (2, 5, 3)
    x = Tensor(np.random.default_rng(1).normal(size=(2, 17, 6)))
    random.manual_seed(0)
    attention(x, causal=True).sum().backward()
    gradient = attention.attention.embedding.grad.numpy()
    assert gradient[:, :3].any() and not gradient[:, 3:].any()  # no later key was seen
    random.manual_seed(0)
    first, second = attention(x).numpy(), attention(x).numpy()
    assert not np.array_equal(first, second)


@pytest.mark.nightly
def test_decoding_keeps_the_distances() -> None:
    """Token by token from a cache, as all at once."""
    attention = layer().eval()
    x = Tensor(np.random.default_rng(1).normal(size=(2, 5, 6)))
    whole, state = attention(x, causal=True).numpy(), attention.init_state()
    for i in range(5):
        step, state = attention.step(x[:, i : i + 1], state)
        np.testing.assert_allclose(step.numpy(), whole[:, i : i + 1], rtol=1e-10)


@pytest.mark.parametrize("scale", [None, 0.2])
def test_a_token_by_matrix_products_is_that_of_the_kernel(scale: float | None) -> None:
    query, key, value = drawn(query=(2, 2, 9, 3), key=(2, 2, 9, 3), value=(2, 2, 9, 4))
    variant = nn.SoftmaxAttention(scale)
    whole = variant(query, key, value, causal=True).numpy()
    state, found = variant.init_state(), []
    for i in range(9):
        token = (x[:, :, i : i + 1] for x in (query, key, value))
        output, state = variant.step(*token, state)
        found.append(output.numpy())
    np.testing.assert_allclose(np.concatenate(found, axis=2), whole, rtol=1e-12)

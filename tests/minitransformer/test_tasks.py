"""The copy task: its data, its loss, what a model makes of it, and where its heads look."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, nn
from minitransformer.nn import recorded_weights
from minitransformer.tasks.copy import (
    SEPARATOR,
    CopyBatch,
    CopyResult,
    CopyTask,
    attention_maps,
    copy_sequences,
    fresh_sequences,
    parse_sequence,
)

RNG = np.random.default_rng(5)
TASK = CopyTask(length=6, layers=2, heads=3, head_dim=8)


@pytest.fixture(scope="module", params=nn.attention_names())
def model(request: pytest.FixtureRequest) -> nn.Transformer:
    manual_seed(1)
    return TASK.build(request.param)


@given(length=st.integers(1, 40), seed=st.integers(0, 9))
def test_half_of_the_sequences_have_the_full_length(length: int, seed: int) -> None:
    task = CopyTask(length, layers=1, heads=1, head_dim=1)
    batch = task.draw(np.random.default_rng(seed), 2000)
    assert batch.source.shape == (2000, length)
    assert set(np.unique(batch.source)) == set(range(10))
    assert set(np.unique(batch.lengths)) == set(range(1, length + 1))
    assert abs((batch.lengths == length).mean() - 0.5 - 0.5 / length) < 0.06


def test_the_decoder_is_told_only_what_came_before() -> None:
    batch = CopyBatch(np.array([[3, 1, 4], [1, 5, 9]]), np.array([3, 2]))
    assert batch.decoder_input.tolist() == [[SEPARATOR, 3, 1], [SEPARATOR, 1, 5]]
    assert batch.valid.tolist() == [[True, True, True], [True, True, False]]


def test_padding_changes_neither_loss_nor_accuracy(model: nn.Transformer) -> None:
    batch = TASK.draw(RNG, 8)
    other = np.where(batch.valid, batch.source, RNG.integers(0, 10, batch.source.shape))
    loss, accuracy = TASK.loss(model, batch)
    loss_other, accuracy_other = TASK.loss(model, CopyBatch(other, batch.lengths))
    assert loss.numpy() == pytest.approx(loss_other.numpy(), rel=1e-6)
    assert accuracy == accuracy_other


def test_a_logit_for_each_symbol_and_the_separator(model: nn.Transformer) -> None:
    batch = TASK.draw(RNG, 3)
    logits = model(batch.source, batch.decoder_input)
    assert logits.shape == (*batch.source.shape, SEPARATOR + 1)


@pytest.mark.parametrize(
    ("attention", "positions", "ordered"),
    [("linear", "none", False), ("linear", "sinusoidal", True), ("linear", "learned", True),
     ("relative", "none", True)],
)  # fmt: skip
def test_the_order_of_a_source_is_known_by_positions_alone(
    attention: str, positions: str, ordered: bool
) -> None:
    model = replace(TASK, positions=positions).build(attention)
    told = [[SEPARATOR, 3, 1, 4, 1, 5]]
    there, back = (
        model(np.array([w]), told).numpy() for w in ([3, 1, 4, 1, 5, 9], [9, 5, 1, 4, 1, 3])
    )
    assert np.allclose(there, back, atol=1e-5) != ordered


def test_loss_and_accuracy_of_an_answer() -> None:
    batch = CopyBatch(np.array([[3, 1, 4], [1, 5, 9]]), np.array([3, 1]))
    answer = np.zeros((2, 3, 11), np.float32)
    answer[0, 0, 3] = answer[0, 1, 7] = answer[0, 2, 4] = answer[1, 0, 2] = 2.0
    loss, accuracy = TASK.loss(lambda *_: Tensor(answer), batch)
    assert accuracy == 0.5
    sum_of_exponentials = math.exp(2) + 10
    assert loss.item() == pytest.approx(math.log(sum_of_exponentials) - 2 * 0.5, rel=1e-6)


def test_fresh_sequences_are_not_the_training_ones() -> None:
    task = CopyTask(16, layers=1, heads=1, head_dim=1)
    trained = task.draw(np.random.default_rng(4), 500).source
    fresh = fresh_sequences(16, seed=4, count=500).source
    assert not set(map(tuple, trained)) & set(map(tuple, fresh))
    np.testing.assert_array_equal(fresh, fresh_sequences(16, seed=4, count=500).source)


@pytest.mark.parametrize("text", ["3 1 4", "314", "3,1,4", " 3, 1 ,4 ", "31 4"])
def test_a_typed_sequence(text: str) -> None:
    batch = parse_sequence(text, longest=3)
    assert batch.source.tolist() == [[3, 1, 4]]
    assert batch.lengths.tolist() == [3]


@pytest.mark.parametrize("text", ["", " ", "3 1 4 1", "3 x", "-3", "3.1", "٣", "²", "|"])
def test_what_is_no_sequence(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3 digits from 0 to 9, for which it was"):
        parse_sequence(text, longest=3)


def test_accuracy_counts_symbols_and_sequences() -> None:
    batch = CopyBatch(np.array([[3, 1, 4], [1, 5, 9]]), np.array([3, 1]))
    result = CopyResult(batch, np.array([[3, 1, 5], [1, 0, 0]]))
    assert result.tokens_right == 3 / 4
    assert result.sequences_right == 1 / 2
    assert [part.tolist() for part in result.pair(1)] == [[1], [1]]


def test_copies_are_the_models_own_answers(model: nn.Transformer) -> None:
    """Every symbol that was written is the likeliest one after those written before it."""
    batch = TASK.draw(RNG, 5)
    result = copy_sequences(model, batch)
    told = CopyBatch(result.copies, batch.lengths).decoder_input
    logits = model(batch.source, told, batch.lengths, batch.lengths).numpy()
    likeliest = logits.max(axis=-1)
    written = np.take_along_axis(logits, result.copies[..., None], -1)[..., 0]
    np.testing.assert_allclose(written[batch.valid], likeliest[batch.valid], atol=1e-4)


def test_attention_maps_are_shares_of_what_is_visible(model: nn.Transformer) -> None:
    maps = attention_maps(model, fresh_sequences(6, seed=0, count=1))
    # The delta rule divides by nothing, and takes values away again: its weights are no shares.
    corrected = any(isinstance(module, nn.DeltaAttention) for module in model.modules())
    assert [layer.title for layer in maps] == [
        "encoder 1, self", "encoder 2, self", "decoder 1, self", "decoder 1, cross",
        "decoder 2, self", "decoder 2, cross",
    ]  # fmt: skip
    for layer in maps:
        assert layer.weights.shape == (3, 6, 6)
        shares = layer.weights.sum(-1)
        seeing = shares > 0  # DPFP gives now and then a query no feature at all
        assert seeing.mean() > 0.8
        if not corrected:
            assert (layer.weights >= 0).all()
            np.testing.assert_allclose(shares[seeing], 1, rtol=1e-5)
        inner = layer.title in ("decoder 1, self", "decoder 2, self")
        assert (np.triu(layer.weights, 1) == 0).all() == inner
        assert (layer.queries[0] == layer.keys[0] == "|") == inner


def test_recording_ends_with_the_block(model: nn.Transformer) -> None:
    layers = [module for module in model.modules() if hasattr(module, "on_weights")]
    with pytest.raises(RuntimeError), recorded_weights(model):
        assert all(layer.on_weights is not None for layer in layers)
        raise RuntimeError
    assert layers and all(layer.on_weights is None for layer in layers)

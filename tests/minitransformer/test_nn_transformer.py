"""Layers, stacks and models: what they compute, what they must not see, and how they decode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, nn, no_grad
from minitransformer import functions as F
from minitransformer.nn.module import Module
from minitransformer.nn.positions import sinusoids
from minitransformer.nn.transformer import Residual
from tests.cases import Array
from tests.refusals import refusals

from .models import (
    HEAD_DIMS,
    check_gradients,
    float64,
    language_model,
    normal,
    small_options,
    some_tokens,
    translator,
)

LAYERS = pytest.mark.parametrize(
    "options",
    [
        {"attention": attention, "norm_first": norm_first}
        for attention in nn.attention_names()
        for norm_first in (True, False)
        if norm_first or attention in ("softmax", "linear")
    ],
    ids=lambda options: f"{options['attention']}-{'pre' if options['norm_first'] else 'post'}norm",
)


def framed(residual: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """x + f(norm(x)) or norm(x + f(x)), from the definition."""
    if residual.norm_first:
        return x + sublayer(residual.norm(x))
    return residual.norm(x + sublayer(x))


@LAYERS
def test_an_encoder_layer_is_attention_then_feed_forward(options: dict[str, Any]) -> None:
    layer = float64(nn.TransformerEncoderLayer(8, 2, **small_options(**options)))
    x = Tensor(normal(2, 5, 8))
    hidden = framed(layer.residual, x, lambda x: layer.self_attention(x, causal=True))
    hidden = framed(layer.feed_forward.residual, hidden, layer.feed_forward.layers)
    np.testing.assert_allclose(layer(x, causal=True).numpy(), hidden.numpy(), rtol=1e-12)


@LAYERS
def test_a_decoder_layer_attends_to_itself_then_across(options: dict[str, Any]) -> None:
    layer = float64(nn.TransformerDecoderLayer(8, 2, **small_options(**options)))
    x, memory = Tensor(normal(2, 5, 8)), Tensor(normal(2, 3, 8))
    hidden = framed(layer.self_residual, x, lambda x: layer.self_attention(x, causal=True))
    hidden = framed(
        layer.cross_residual, hidden, lambda x: layer.cross_attention(x, memory, key_lengths=[3, 1])
    )
    hidden = framed(layer.feed_forward.residual, hidden, layer.feed_forward.layers)
    actual = layer(x, memory, memory_lengths=[3, 1]).numpy()
    np.testing.assert_allclose(actual, hidden.numpy(), rtol=1e-12)


ENCODER_DROPS = "self_attention.out_dropout", "feed_forward.layers.2", "feed_forward.layers.4"
DECODER_DROPS = "cross_attention.out_dropout", *ENCODER_DROPS


@pytest.mark.parametrize("place", DECODER_DROPS)
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_each_dropout_of_a_layer(kind: Any, place: str) -> None:
    """One place drops, the others do not: the layer is what its parts are, with a mask there."""
    decoder = kind is nn.TransformerDecoderLayer
    layer = float64(kind(8, 2, **small_options(dropout=0.4)))
    drops = {path: x for path, x in layer.named_modules() if isinstance(x, nn.Dropout)}
    places = DECODER_DROPS if decoder else ENCODER_DROPS
    assert {path: x.p for path, x in drops.items()} == dict.fromkeys(places, 0.4)
    for path, module in drops.items():
        module.p = 0.4 * (path == place)
    x, memory = Tensor(normal(2, 5, 8)), Tensor(normal(2, 3, 8))

    manual_seed(0)
    actual = layer(x, memory) if decoder else layer(x, causal=True)
    layer.eval()
    manual_seed(0)

    def drop(at: str, x: Tensor) -> Tensor:
        return F.dropout(x, 0.4) if at == place else x

    def attend(x: Tensor) -> Tensor:
        return drop("self_attention.out_dropout", layer.self_attention(x, causal=True))

    def feed_forward(x: Tensor) -> Tensor:
        first, bend, _, second, _ = layer.feed_forward.layers
        hidden = drop("feed_forward.layers.2", bend(first(x)))
        return drop("feed_forward.layers.4", second(hidden))

    hidden = framed(layer.self_residual if decoder else layer.residual, x, attend)
    if decoder:
        across = "cross_attention.out_dropout"
        hidden = framed(
            layer.cross_residual, hidden, lambda x: drop(across, layer.cross_attention(x, memory))
        )
    expected = framed(layer.feed_forward.residual, hidden, feed_forward)
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-12)


def test_dropout_of_what_enters_a_model() -> None:
    model = float64(language_model(dropout=0.4))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.4 * (module is model.embedding.dropout)
    tokens = some_tokens(2, 5)
    manual_seed(0)
    actual = model(tokens).numpy()
    model.eval()
    manual_seed(0)
    embedded = F.dropout(model.embedding(tokens), 0.4)
    expected = model.head(model.decoder(embedded, causal=True)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_pre_norm_stacks_normalize_what_leaves_them() -> None:
    x = Tensor(normal(2, 5, 8).astype(np.float32))
    output = nn.TransformerEncoder(2, 8, 2, norm_first=True, **HEAD_DIMS)(x).numpy()
    np.testing.assert_allclose(output.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(output.var(-1), 1, atol=1e-3)


def test_the_feed_forward_network_bends_as_asked() -> None:
    bends = {
        name: type(nn.FeedForward(4, 8, 0.0, name, True).layers[1]) for name in ("relu", "gelu")
    }
    assert bends == {"relu": nn.ReLU, "gelu": nn.GELU}


@LAYERS
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", None])
def test_gradients_of_models_from_end_to_end(options: dict[str, Any], positions: Any) -> None:
    tokens = some_tokens(2, 2, 4)
    sizes = {"d_model": 4, "head_dim": 2, "value_head_dim": 3}
    options = {**options, **sizes, "positions": positions, "max_length": 4}
    check_gradients(float64(language_model(**options)), lambda model: model(tokens[0]))
    check_gradients(
        float64(translator(**options)),
        lambda model: model(*tokens, source_lengths=[4, 2], target_lengths=[3, 4]),
    )


@given(st.sampled_from(nn.attention_names()), st.integers(1, 8), st.data())
def test_no_logit_depends_on_a_later_token(attention: str, length: int, data: Any) -> None:
    now = data.draw(st.integers(0, length - 1))
    tokens, other = some_tokens(2, 2, length)
    other[:, : now + 1] = tokens[:, : now + 1]
    for model in (language_model(attention=attention), translator(attention=attention)):
        given = () if isinstance(model, nn.TransformerLM) else (tokens,)
        logits, altered = model(*given, tokens).numpy(), model(*given, other).numpy()
        np.testing.assert_array_equal(altered[:, : now + 1], logits[:, : now + 1])


@given(st.sampled_from(nn.attention_names()), st.tuples(*[st.integers(1, 6)] * 2))
def test_padding_changes_nothing(attention: str, lengths: tuple[int, int]) -> None:
    model = float64(translator(attention=attention))
    source, target, other = some_tokens(3, 2, 6)
    inside = np.arange(6) < np.array(lengths)[:, None]
    options = {"source_lengths": lengths, "target_lengths": lengths}
    logits = model(source, target, **options).numpy()
    padded = (np.where(inside, tokens, other) for tokens in (source, target))
    np.testing.assert_array_equal(model(*padded, **options).numpy()[inside], logits[inside])
    for n, length in enumerate(lengths):  # a sequence alone, without padding
        alone = model(source[n : n + 1, :length], target[n : n + 1, :length]).numpy()
        np.testing.assert_allclose(alone[0], logits[n, :length], atol=1e-10)


CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


def stepped(model: Any, state: Any, tokens: Array, cuts: list[int]) -> Array:
    """The logits of tokens that come in pieces of the given sizes."""
    pieces, start = [], 0
    for size in cuts:
        logits, state = model.step(tokens[:, start : start + size], state)
        pieces.append(logits.numpy())
        start += size
    return np.concatenate(pieces, axis=1)


@LAYERS
@given(cuts=CUTS, positions=st.sampled_from(["sinusoidal", "learned", None]))
def test_stepping_equals_the_whole_at_every_position(
    options: dict[str, Any], cuts: list[int], positions: str | None
) -> None:
    options = {**options, "positions": positions, "max_length": 40}
    source, tokens = some_tokens(2, 2, sum(cuts))
    lengths = np.array([1, sum(cuts)])
    # In float32 an attention with small denominators is off by more than an allowance that tells.
    with no_grad():
        speaker = float64(language_model(**options))
        logits = stepped(speaker, speaker.init_state(), tokens, cuts)
        np.testing.assert_allclose(logits, speaker(tokens).numpy(), atol=1e-10)

        model = float64(translator(**options))
        logits = stepped(model, model.init_state(source, lengths), tokens, cuts)
        np.testing.assert_allclose(logits, model(source, tokens, lengths).numpy(), atol=1e-10)


@pytest.mark.parametrize("attention", nn.attention_names())
def test_stepping_on_a_device(attention: str, device: str) -> None:
    manual_seed(0)
    model = translator(attention=attention).to(device)
    source, tokens = some_tokens(2, 2, 20)
    with no_grad():
        logits = stepped(model, model.init_state(source), tokens, [3] + [1] * 17)
        np.testing.assert_allclose(logits, model(source, tokens).numpy(), atol=1e-5)


def numbers_in(state: Any) -> int:
    """How many numbers a state holds."""
    if isinstance(state, tuple):
        return sum(map(numbers_in, state))
    return state.data.size if isinstance(state, Tensor) else 0


@pytest.mark.parametrize("attention", [name for name in nn.attention_names() if name != "softmax"])
def test_a_state_keeps_its_size(attention: str) -> None:
    for model, source in ((language_model, []), (translator, [[[1, 2, 3]]])):
        decoder = model(attention=attention)
        with no_grad():
            _, state = decoder.step([[4]], decoder.init_state(*source))
            size = numbers_in(state)
            for _ in range(40):
                _, state = decoder.step([[4]], state)
                assert numbers_in(state) == size
        assert state.position == 41
        if attention == "linear":
            # 2 layers, each S (2, 6, 5) and Z (2, 6), of its own tokens and of the encoder's.
            assert size == (1 + len(source)) * 2 * (2 * 6 * 5 + 2 * 6)


CACHING = "softmax", "local"  # whose states grow in place: they are used up


@pytest.mark.parametrize("attention", [x for x in nn.attention_names() if x not in CACHING])
def test_states_are_values_so_decoding_can_branch(attention: str) -> None:
    model = language_model(attention=attention)
    with no_grad():
        _, state = model.step([[1, 2]], model.init_state())
        first, _ = model.step([[3]], state)
        model.step([[4]], state)
        again, _ = model.step([[3]], state)
    np.testing.assert_array_equal(first.numpy(), again.numpy())


def test_sinusoids_turn_under_a_shift() -> None:
    """cos(p w) and sin(p w) at p + t are a rotation by t w of those at p (Vaswani et al., 3.5)."""
    at, shifted = sinusoids(np.arange(7), 6), sinusoids(np.arange(7) + 3, 6)
    angle = 3 * 10_000.0 ** (-np.array([0, 2, 4]) / 6)
    sine, cosine = at[:, ::2], at[:, 1::2]
    np.testing.assert_allclose(shifted[:, ::2], sine * np.cos(angle) + cosine * np.sin(angle))
    np.testing.assert_allclose(shifted[:, 1::2], cosine * np.cos(angle) - sine * np.sin(angle))


def test_positions_may_be_any_module() -> None:
    class Ramp(Module):
        def forward(self, x: Tensor, offset: int = 0) -> Tensor:
            steps = np.arange(offset, offset + x.shape[1], dtype=np.float32)
            return x + Tensor(steps[:, None])

    model = language_model(positions=Ramp())
    with no_grad():
        logits = stepped(model, model.init_state(), np.array([[1, 2, 3]]), [2, 1])
        np.testing.assert_allclose(logits, model([[1, 2, 3]]).numpy(), atol=1e-5)


def test_the_model_of_s1_has_the_size_that_it_should() -> None:
    """4 + 4 layers, 8 heads of 64: attention 4 D^2 + 4 D, feed-forward 8 D^2 + 5 D, norms 2 D."""
    D, V = 512, 11
    attention, feed_forward, norm = 4 * D * D + 4 * D, 8 * D * D + 5 * D, 2 * D
    encoder = 4 * (attention + feed_forward + 2 * norm) + norm
    decoder = 4 * (2 * attention + feed_forward + 3 * norm) + norm
    model = nn.Transformer(V, V, D, 8, 4, 4, attention="linear")
    assert model.num_parameters() == encoder + decoder + 2 * V * D + V * D + V


test_refusals = refusals(
    (lambda: language_model()([[[1, 2]]]),
     "TokenEmbedding: tokens must have the shape (N, L), got (1, 1, 2)"),
    (lambda: language_model()([1, 2]),
     "TokenEmbedding: tokens must have the shape (N, L), got (2,)"),
    (lambda: nn.SinusoidalPositions(8)(Tensor(np.zeros((1, 3, 1)))),
     "SinusoidalPositions: x must have the shape (N, L, 8), got (1, 3, 1)"),
    (lambda: language_model(activation="sine"),
     "FeedForward: activation must be one of 'relu', 'gelu', got 'sine'"),
    (lambda: language_model(positions="learned"),
     "positions must be 'sinusoidal', 'learned' with a max_length, None or a Module, got 'learned' "
     "with max_length=None"),
    (lambda: language_model(positions="absolute"),
     "positions must be 'sinusoidal', 'learned' with a max_length, None or a Module, got "
     "'absolute'"),
    (lambda: language_model(num_layers=0),
     "TransformerEncoder: num_layers must be a whole number above 0, got 0"),
    (lambda: language_model(positions="learned", max_length=3)([[1, 2, 3, 4]]),
     "LearnedPositions: the sequence is 4 long, expected at most 3; build the model with a larger "
     "max_length, or with positions='sinusoidal', which has no end"),
)  # fmt: skip

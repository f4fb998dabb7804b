"""Feature maps of whole rows through the tape, in attention and in a model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, gradcheck, manual_seed, nn
from minitransformer import functions as F
from minitransformer.attention import (
    delta_attention,
    linear_attention,
    linear_attention_step,
    local_attention,
    relative_linear_attention,
    softmax_attention,
)
from minitransformer.attention.features import row_features
from minitransformer.nn import DPFP, Favor, FeatureMap
from minitransformer_kernels import reference
from minitransformer_kernels.visible import Visible
from tests.refusals import refusals

from .models import token_by_token

N, H, L, E, M = 2, 2, 5, 4, 3

MAPS: dict[str, Callable[[], Any]] = {
    "favor": lambda: Favor(E, 6, seed=1),
    "dpfp": lambda: DPFP(nu=1),
    "own": lambda: lambda x: F.relu(x) + 0.1,
}


def drawn(*widths: int) -> list[Tensor]:
    """Sequences (N, H, L, width) of normal numbers."""
    rng = np.random.default_rng(0)
    return [Tensor(rng.normal(size=(N, H, L, width))) for width in widths]


def features(feature_map: Any, x: Tensor) -> np.ndarray:
    """What the map should give, in plain NumPy."""
    if isinstance(feature_map, Favor):
        return reference.favor(x.numpy(), feature_map.projection.numpy())
    if isinstance(feature_map, DPFP):
        return reference.dpfp(x.numpy(), feature_map.nu)
    return np.maximum(x.numpy(), 0) + 0.1


@pytest.mark.parametrize("name", MAPS)
def test_features_are_those_of_the_reference(name: str) -> None:
    (x,) = drawn(E)
    feature_map = MAPS[name]()
    found = row_features("test", feature_map, x)
    np.testing.assert_allclose(found.numpy(), features(feature_map, x), rtol=1e-6)
    if isinstance(feature_map, FeatureMap):
        assert found.shape == (N, H, L, feature_map.dim(E))


@pytest.mark.parametrize("name", MAPS)
def test_gradients(name: str) -> None:
    (x,) = drawn(E)
    feature_map = MAPS[name]()
    gradcheck(lambda x: row_features("test", feature_map, x), [x])


def test_gradients_of_favor_for_queries_and_with_a_learned_projection() -> None:
    (x,) = drawn(E)
    favor = Favor(E, 6, seed=1)
    gradcheck(lambda x: favor.scaled(x), [x])
    favor.projection.requires_grad = True
    cotangent = np.random.default_rng(1).normal(size=(N, H, L, 6))
    favor(x).backward(cotangent)
    w = favor.projection.numpy()
    step = np.zeros(w.shape, complex)
    step[2, 1] = 1e-20j
    slope = np.sum(cotangent * reference.favor(x.numpy(), w + step).imag) * 1e20
    np.testing.assert_allclose(favor.projection.grad.numpy()[2, 1], slope, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_attention_goes_on_with_the_features(name: str, causal: bool) -> None:
    query, key, value = drawn(E, E, M)
    feature_map, offset = MAPS[name](), 2
    output = linear_attention(
        query, key, value, feature_map=feature_map, causal=causal, query_offset=offset
    )
    rows = features(feature_map, query), features(feature_map, key)
    wanted = reference.linear_attention(
        *rows, value.numpy(), Visible(causal, offset), feature_map="identity"
    )
    np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", MAPS)
def test_decoding_gives_the_rows_of_the_whole(name: str) -> None:
    inputs, feature_map = drawn(E, E, M), MAPS[name]()
    rows = token_by_token(linear_attention_step, *inputs, feature_map=feature_map).numpy()
    whole = linear_attention(*inputs, feature_map=feature_map, causal=True).numpy()
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-12)


def test_a_scale_for_each_query_cancels_in_attention() -> None:
    query, key, value = drawn(E, E, M)
    favor = Favor(E, 6, seed=1)
    outputs = [
        linear_attention(rows, favor(key), value, feature_map="identity")
        for rows in (favor(query), favor.scaled(query))
    ]
    np.testing.assert_allclose(outputs[0].numpy(), outputs[1].numpy(), rtol=1e-5)


def test_favor_attention_comes_near_to_softmax_attention() -> None:
    """And the nearer, the more features: 16 times as many, a quarter of the error."""
    query, key, value = (x * 0.6 for x in drawn(E, E, M))
    wanted = softmax_attention(query, key, value).numpy()

    def error(num_features: int) -> float:
        maps = [Favor(E, num_features, seed) for seed in range(20)]
        rows = [(favor(query).numpy(), favor(key).numpy(), value.numpy()) for favor in maps]
        found = [reference.linear_attention(*each, feature_map="identity") for each in rows]
        return float(np.sqrt(np.mean((np.stack(found) - wanted) ** 2)))

    few, many = error(64), error(1024)
    assert many < 0.12 * wanted.std()
    assert 2.4 < few / many < 6.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_names(dtype: Any) -> None:
    """By name, keys and queries share one map, whose defaults never change."""
    inputs = [x.to(dtype=dtype) for x in drawn(E, E, M)]
    for name, feature_map in (("favor", Favor(E, seed=0)), ("dpfp", DPFP())):
        by_name = linear_attention(*inputs, feature_map=name)
        by_hand = linear_attention(*inputs, feature_map=feature_map)
        np.testing.assert_array_equal(by_name.numpy(), by_hand.numpy())


@pytest.mark.parametrize("how", [*MAPS, "delta", "softmax", "local", "relative"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_computed_outside_of_kernels_reads_no_padding(how: str, poison: float) -> None:
    """Neither outputs nor gradients, of shared parameters least of all, know what it holds."""
    rng = np.random.default_rng(0)
    lengths = {"query_lengths": [3, 5], "key_lengths": [4, 0]}
    learned = Tensor(rng.normal(size=(H, 3, E)), requires_grad=True)

    def found(padding: float) -> list[np.ndarray]:
        inputs = [Tensor(x.numpy().copy(), requires_grad=True) for x in drawn(E, E, M)]
        inputs[0].data[0, :, 3:] = inputs[1].data[0, :, 4:] = inputs[1].data[1] = padding
        beta = Tensor(np.full((N, H, L), 0.5))
        learned.grad = None
        output = {
            "delta": partial(delta_attention, beta=beta, normalize="l2"),
            "softmax": partial(softmax_attention, relative_embedding=learned),
            "local": partial(local_attention, window=1, relative_embedding=learned),
            "relative": partial(
                relative_linear_attention,
                feature_map=Favor(E, E, seed=1),
                score_map="softplus",
                relative_embedding=learned,
                relative_query="feature",
            ),
        }.get(how, partial(linear_attention, feature_map=MAPS.get(how, str)()))(*inputs, **lengths)
        output.backward(np.ones(output.shape))
        gradients = [x.grad for x in (*inputs, learned) if x.grad is not None]
        return [x.numpy() for x in (output, *gradients)]

    for clean, spoilt in zip(found(0.0), found(poison), strict=True):
        np.testing.assert_array_equal(spoilt, clean)


def test_enough_features_by_default() -> None:
    assert [Favor(e).dim(e) for e in (1, 8, 16, 32, 64, 256)] == [
        8, 24, 48, 112, 256, 256,
    ]  # fmt: skip


def test_a_projection_is_saved_with_its_model_and_not_learned() -> None:
    def model(seed: int) -> nn.MultiHeadAttention:
        attention = nn.LinearAttention(feature_map=Favor(4, 6, seed))
        return nn.MultiHeadAttention(8, num_heads=2, attention=attention)

    first, second = model(1), model(2)
    second.load_state_dict(first.state_dict())
    saved = second.state_dict()["attention.feature_map.projection"]
    np.testing.assert_array_equal(saved, Favor(4, 6, seed=1).projection.numpy())
    plain = nn.MultiHeadAttention(8, num_heads=2)
    assert first.num_parameters() == plain.num_parameters()


def test_redraw_follows_its_seed_or_the_engine() -> None:
    favor = Favor(4, 6, seed=1)
    before = favor.projection.numpy().copy()
    favor.redraw()
    assert not np.allclose(favor.projection.numpy(), before)
    favor.redraw(seed=1)
    np.testing.assert_array_equal(favor.projection.numpy(), before)
    manual_seed(5)
    first = Favor(4, 6).projection.numpy()
    manual_seed(5)
    np.testing.assert_array_equal(Favor(4, 6).projection.numpy(), first)


X = Tensor(np.zeros((N, H, L, E), np.float32))


test_refusals = refusals(
    (lambda: row_features("asked", "fourier", X),
     "asked: feature_map must be one of 'elu', 'relu', 'softplus', 'exp', 'identity', 'favor', "
     "'dpfp', or a function from a Tensor (N, H, L, E) to one"),
    (lambda: row_features("asked", 3, X), TypeError,
     "asked: feature_map must be a name or a function from a Tensor"),
    (lambda: row_features("asked", lambda x: x.numpy(), X), TypeError,
     "asked: feature_map <lambda> must return a Tensor, got ndarray; compute with"),
    (lambda: row_features("asked", lambda x: x.sum(dim=2), X),
     "asked: feature_map <lambda> must return the shape (2, 2, 5, D), D features for each row of "
     "(2, 2, 5, 4), got (2, 2, 4)"),
    (lambda: row_features("asked", lambda x: x.transpose(1, 2), X),
     "asked: feature_map <lambda> must return the shape (2, 2, 5, D)"),
    (lambda: row_features("asked", lambda x: x.to(dtype=np.float64), X),
     "asked: feature_map <lambda> must return float32 on cpu, as it was given, got float64"),
    (lambda: Favor(8)(X), "Favor: x must have rows of head_dim=8, got (2, 2, 5, 4)"),
    (lambda: Favor(0), "Favor: head_dim must be a whole number above 0, got 0"),
    (lambda: Favor(4, 0), "Favor: num_features must be a whole number above 0"),
    (lambda: DPFP(0), "DPFP: nu must be a whole number above 0, got 0"),
    (lambda: DPFP(8)(X), "DPFP: nu must be below 2 E = 8, where neighbours come"),
    (lambda: DPFP()(X[0]), "DPFP: x must be floating (N, H, L, E), got float32 (2,"),
    (lambda: FeatureMap()(X), NotImplementedError, "FeatureMap does not override forward"),
)  # fmt: skip

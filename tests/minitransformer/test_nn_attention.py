"""Multi-head attention, and the hook for variants of attention."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, nn, no_grad
from minitransformer.nn import MultiHeadAttention, recorded_weights
from minitransformer.nn import variant as hook
from minitransformer.nn.variant import AttentionVariant, KeyValueCache
from minitransformer_kernels import reference
from minitransformer_kernels.visible import Visible
from tests.cases import Array
from tests.refusals import refusals

from .models import HEAD_DIMS, attended, check_gradients, float64, language_model, mapped, normal

VARIANTS = st.sampled_from(["softmax", "linear"])
WIDTHS: Any = {
    "query_dim": 5, "key_dim": 6, "value_dim": 7, "head_dim": 3, "value_head_dim": 4, "out_dim": 9,
}  # fmt: skip


@st.composite
def layers_and_inputs(
    draw: st.DrawFn, count: int
) -> tuple[MultiHeadAttention, list[Array], dict[str, Any]]:
    """Draws a layer, so many inputs that it is called with, and options."""
    widths = draw(st.sampled_from([{}, {"value_head_dim": 3}, *([WIDTHS] if count == 3 else [])]))
    layer = MultiHeadAttention(8, 2, attention=draw(VARIANTS), bias=draw(st.booleans()), **widths)
    batch, queries, keys = (draw(st.integers(1, 3)) for _ in range(3))
    sizes = [
        (batch, queries, widths.get("query_dim", 8)),
        (batch, keys, widths.get("key_dim", 8)),
        (batch, keys, widths.get("value_dim", 8)),
    ]
    options: dict[str, Any] = {"causal": draw(st.booleans())}
    if options["causal"]:
        options["query_offset"] = draw(st.integers(-1, 2))
    if draw(st.booleans()):
        longest = queries if count == 1 else keys
        options["key_lengths"] = draw(st.tuples(*[st.integers(0, longest)] * batch))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return float64(layer), [rng.standard_normal(size) for size in sizes[:count]], options


@pytest.mark.parametrize("count", [1, 2, 3])
@given(data=st.data())
def test_equals_the_definition_head_by_head(count: int, data: st.DataObject) -> None:
    """The last input stands for those that are not given: one product gives what several give."""
    layer, inputs, options = data.draw(layers_and_inputs(count))
    query, key, value = [*inputs, inputs[-1], inputs[-1]][:3]
    expected = mapped(attended(layer, query, key, value, **options), layer.out_projection)
    actual = layer(*map(Tensor, inputs), **options).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", nn.attention_names())
def test_gradients(variant: str) -> None:
    """Of three inputs, each of a width of its own; of equal ones: `test_nn_transformer`."""
    layer = float64(MultiHeadAttention(4, 2, attention=variant, **WIDTHS))
    inputs = normal(2, 3, 5), normal(2, 5, 6), normal(2, 5, 7)
    options = {"causal": True, "query_offset": 1, "key_lengths": [5, 3]}
    check_gradients(layer, lambda layer, *inputs: layer(*inputs, **options), *inputs)


@pytest.mark.parametrize("variant", ["softmax", "linear"])
def test_beams_are_attended_one_by_one(variant: str) -> None:
    """Layout (beam, batch, time, vector); keys and lengths may be the same for all beams."""
    layer = float64(MultiHeadAttention(4, 2, attention=variant, **WIDTHS))
    x, y, z = normal(3, 2, 4, 5), normal(1, 2, 6, 6), normal(2, 6, 7)
    options: Any = {"causal": True, "query_offset": 1, "query_lengths": [4, 3]}
    lengths = np.array([[6, 5], [4, 3], [2, 1]])
    found, weights = layer(
        *map(Tensor, (x, y, z)), **options, key_lengths=lengths, need_weights=True
    )
    assert (found.shape, weights.shape) == ((3, 2, 4, layer.out_projection.out_features),
                                            (3, 2, 2, 4, 6))  # fmt: skip
    for beam in range(3):
        inputs = map(Tensor, (x[beam], y[0], z))
        alone, its = layer(*inputs, **options, key_lengths=lengths[beam], need_weights=True)
        np.testing.assert_allclose(found.numpy()[beam], alone.numpy(), rtol=1e-12)
        np.testing.assert_array_equal(weights.numpy()[beam], its.numpy())
    check_gradients(layer, lambda layer, *inputs: layer(*inputs, **options), x, y, z)


def test_beams_of_self_attention() -> None:
    """Any number of dimensions, side by side or not, and none of them filled."""
    layer = float64(MultiHeadAttention(4, 2))
    x = normal(2, 1, 3, 5, 4)
    found = layer(Tensor(x)).numpy()
    np.testing.assert_allclose(
        found, layer(Tensor(x.reshape(6, 5, 4))).numpy().reshape(x.shape), rtol=1e-12
    )
    together = layer(Tensor(np.concatenate([x, x, x], axis=-1))).numpy()
    np.testing.assert_allclose(together, found, rtol=1e-12)
    assert layer(Tensor(normal(0, 2, 5, 4))).shape == (0, 2, 5, 4)


@pytest.mark.parametrize("variant", ["softmax", "linear", "local", "delta"])
def test_no_tokens(variant: str) -> None:
    layer = MultiHeadAttention(32, 2, attention=variant)
    x = Tensor(np.ones((2, 0, 32), np.float32), requires_grad=True)
    output = layer(x, causal=True)
    output.sum().backward()
    assert output.shape == x.grad.shape == (2, 0, 32)
    assert not layer.query_projection.weight.grad.numpy().any()


def test_out_dropout_is_on_the_output_and_in_training_only() -> None:
    layer = MultiHeadAttention(64, 2, out_dropout=0.5, **HEAD_DIMS)
    x = Tensor(normal(4, 5, 64).astype(np.float32))
    whole = layer.eval()(x).numpy()
    dropped = layer.train()(x).numpy()
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    np.testing.assert_allclose(dropped[kept], 2 * whole[kept], rtol=1e-5)


def test_dropout_is_on_the_weights_and_in_training_only() -> None:
    manual_seed(0)
    layer = float64(MultiHeadAttention(8, 2, dropout=0.5))
    x = Tensor(normal(2, 5, 8))
    whole = layer.eval()(x).numpy()
    np.testing.assert_array_equal(layer(x).numpy(), whole)
    layer.train()
    manual_seed(0)
    first, second = layer(x).numpy(), layer(x).numpy()
    manual_seed(0)
    np.testing.assert_array_equal(layer(x).numpy(), first)
    assert not np.allclose(first, second) and not np.allclose(first, whole)
    samples = np.stack([layer(x).numpy() for _ in range(400)])
    standard_error = samples.std(axis=0) / 20
    assert np.all(abs(samples.mean(axis=0) - whole) < 5 * standard_error)


@pytest.mark.parametrize("variant", ["softmax", "linear"])
def test_weights_on_request(variant: str) -> None:
    """They are the definition's, they change nothing, and dropout spares them."""
    dropout = 0.4 if variant == "softmax" else 0.0
    layer = float64(MultiHeadAttention(8, 2, attention=variant, dropout=dropout, **WIDTHS))
    x, y, z = normal(2, 4, 5), normal(2, 11, 6), normal(2, 11, 7)
    inputs = [Tensor(each) for each in (x, y, z)]
    visible: Any = {"causal": True, "query_offset": 6, "key_lengths": [11, 8]}
    manual_seed(0)
    output = layer(*inputs, **visible).numpy()
    manual_seed(0)
    again, weights = layer(*inputs, **visible, need_weights=True)
    np.testing.assert_array_equal(again.numpy(), output)
    assert not weights.requires_grad

    def heads(array: Array, projection: nn.Linear) -> Array:
        return projection(Tensor(array)).numpy().reshape(2, -1, 2, 3).swapaxes(1, 2)

    q, k = heads(x, layer.query_projection), heads(y, layer.key_projection)
    identity = np.broadcast_to(np.eye(11), (2, 2, 11, 11))
    if variant == "softmax":
        expected = reference.softmax_attention(q, k, identity, Visible(**visible))
    else:
        expected = reference.linear_attention(q, k, identity, Visible(**visible))
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_weights_of_no_keys() -> None:
    layer = float64(MultiHeadAttention(8, 2))
    _, weights = layer(Tensor(normal(2, 3, 8)), Tensor(normal(2, 0, 8)), need_weights=True)
    assert weights.shape == (2, 2, 3, 0)


def test_recordings_nest_and_layers_may_be_shared() -> None:
    layer = float64(MultiHeadAttention(8, 2))
    model = nn.ModuleList([layer, layer])
    x = Tensor(normal(1, 3, 8))
    with recorded_weights(model) as outer:
        with recorded_weights(layer) as inner:
            layer(x)
        assert not outer
        layer(x)
    layer(x * 2)
    _, weights = layer(x, need_weights=True)
    np.testing.assert_array_equal(inner[""], weights.numpy())
    assert list(inner) == [""]
    assert list(outer) == ["1"]
    np.testing.assert_array_equal(outer["1"], inner[""])
    assert layer.on_weights is None


class Sharpened(AttentionVariant):
    """Softmax attention with a temperature that is learned: a variant in nine lines."""

    def __init__(self) -> None:
        self.sharpness = nn.Parameter(np.array([2.0], np.float32))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        softmax = nn.SoftmaxAttention()
        return softmax(query * self.sharpness, key, value, **visible)


def test_a_new_variant_plugs_into_every_model_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_variants", dict(hook._variants))
    nn.register_attention("sharpened")(Sharpened)
    model = language_model(attention="sharpened", head_dim=12)  # rounded, no longer that of values
    sharpnesses = [p for name, p in model.named_parameters() if name.endswith("sharpness")]
    model([[1, 2, 3]]).sum().backward()
    assert len(sharpnesses) == 2
    assert all(p.grad is not None and p.grad.numpy().any() for p in sharpnesses)
    with no_grad():
        whole = model([[1, 2, 3]]).numpy()
        logits, state = model.step([[1, 2]], model.init_state())
        last, _ = model.step([[3]], state)
    stepped = np.concatenate([logits.numpy(), last.numpy()], axis=1)
    np.testing.assert_allclose(stepped, whole, atol=1e-5)


def test_an_instance_is_shared_by_the_layers_that_are_given_it() -> None:
    variant = Sharpened()
    model = nn.TransformerEncoder(3, 8, 2, attention=variant)
    assert sum(name.endswith("sharpness") for name, _ in model.named_parameters()) == 1


def test_a_shared_instance_serves_one_size() -> None:
    variant = nn.RelativeLinearAttention(max_distance=3)
    model = nn.TransformerEncoder(3, 8, 2, attention=variant)
    assert sum(name.endswith("embedding") for name, _ in model.named_parameters()) == 1
    with pytest.raises(
        ValueError, match=r"has the shape \(2, 7, 4\), this layer needs \(4, 7, 2\)"
    ):
        MultiHeadAttention(8, 4, attention=variant)


def test_the_cache_doubles_and_keeps_what_it_holds() -> None:
    cache = KeyValueCache()
    keys, values = normal(1, 2, 200, 3), normal(1, 2, 200, 5)
    capacities, pieces = set(), [1, 0, 39, 1, 79, *[1] * 80]
    for stop, size in zip(np.cumsum(pieces), pieces, strict=True):
        start = stop - size
        cache.append(Tensor(keys[:, :, start:stop]), Tensor(values[:, :, start:stop]))
        np.testing.assert_array_equal(cache.keys[:, :, :stop], keys[:, :, :stop])
        np.testing.assert_array_equal(cache.values[:, :, :stop], values[:, :, :stop])
        capacities.add(cache.keys.shape[2])
    assert cache.length == 200 and len(capacities) <= 4


def beams(*shape: int) -> Tensor:
    """Tokens of four numbers, float32."""
    return Tensor(np.ones((*shape, 4), np.float32))


test_refusals = refusals(
    (lambda: MultiHeadAttention(10, 4),
     "MultiHeadAttention: embed_dim must be a multiple of num_heads, got 10 and 4; or"),
    (lambda: MultiHeadAttention(8, 0),
     "MultiHeadAttention: num_heads must be a whole number above 0, got 0"),
    (lambda: MultiHeadAttention(8, 2, head_dim=-1),
     "MultiHeadAttention: head_dim must be a whole number above 0, got -1"),
    (lambda: MultiHeadAttention(8, 2, attention="quadratic"),
     f"attention must be one of {', '.join(map(repr, nn.attention_names()))} or an "
     "AttentionVariant, got 'quadratic'"),
    (lambda: MultiHeadAttention(8, 2, dropout=1.0),
     "MultiHeadAttention: dropout must be a fraction in [0, 1), got 1.0"),
    (lambda: MultiHeadAttention(8, 2, attention="linear", dropout=0.1),
     "MultiHeadAttention: dropout=0.1 drops attention weights, which LinearAttention never has at "
     "hand; drop numbers of the output by out_dropout=0.1, or use attention='softmax'"),
    (lambda: MultiHeadAttention(8, 2, joined=False, out_dim=3),
     "MultiHeadAttention: out_dim is the width of the projection that joins the heads, got 3 with"),
    (lambda: MultiHeadAttention(4, 2)(beams(3, 2, 5), beams(2, 3, 5)),
     "MultiHeadAttention: key must have the dimensions (3, 2) of the queries before its 2 last, or "
     "1 where they share it, got (2, 3, 5, 4)"),
    (lambda: MultiHeadAttention(4, 2)(beams(3, 2, 5), key_lengths=[1, 2, 3]),
     "MultiHeadAttention: key_lengths must have the dimensions (3, 2) of the queries"),
    (lambda: MultiHeadAttention(4, 2)(beams(3, 2, 5), beams(3, 2, 5).numpy()), TypeError,
     "MultiHeadAttention: key must be a Tensor, got ndarray"),
)  # fmt: skip


def test_a_variant_without_forward_says_so() -> None:
    class Empty(AttentionVariant):
        pass

    with pytest.raises(NotImplementedError, match="Empty does not override forward"):
        Empty()(*[Tensor(np.ones((1, 1, 1, 1)))] * 3)

"""The Perceiver: what it computes, what its repeats share, what it must not see, and its table."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, nn, random
from minitransformer.nn import recorded_weights
from tests.cases import Array
from tests.refusals import refusals

from .models import attended, check_gradients, float64, mapped, normal, normed

C, N, P, K = 5, 3, 8, 4  # channels of a byte, latents and their channels, classes
NORMS = st.sampled_from(["pre", "post"])
SHARES = st.sampled_from(["all", "all_but_first", "none"])


def perceiver(**changed: Any) -> nn.Perceiver:
    """A small model in float64."""
    manual_seed(1)
    sizes = {"num_latents": N, "latent_dim": P, "num_classes": K, "num_heads": 2}
    options = {**sizes, "dim_feedforward": 6, **changed}
    return float64(nn.Perceiver(C, **options))


# The model again, in plain NumPy.


def bent(layers: Any, x: Array) -> Array:
    """The feed-forward network between its two maps: x Φ(x)."""
    hidden = mapped(x, layers[0])
    return mapped(
        hidden * np.vectorize(lambda h: (1 + math.erf(h / 2**0.5)) / 2)(hidden), layers[3]
    )


def read(cross: Any, norm: str, x: Array, y: Array, lengths: list[int] | None = None) -> Array:
    """x reads y, S4's way ("post") or the usual one ("pre")."""
    context = normed(y, cross.context_norm)
    update = attended(cross.attention, normed(x, cross.norm), context, context, key_lengths=lengths)
    if norm == "post":
        x = normed(x + update, cross.sum_norm)
        return x + mapped(x, cross.dense)
    x = x + mapped(update, cross.attention.out_projection)
    feed_forward = cross.feed_forward
    return x + bent(feed_forward.layers, normed(x, feed_forward.residual.norm))


def thought(layer: Any, norm: str, x: Array) -> Array:
    """A layer of the latent transformer."""
    attention, feed_forward = layer.self_attention, layer.feed_forward
    entered = normed(x, layer.residual.norm) if norm == "pre" else x
    x = x + mapped(attended(attention, entered, entered, entered), attention.out_projection)
    if norm == "pre":
        return x + bent(feed_forward.layers, normed(x, feed_forward.residual.norm))
    x = normed(x, layer.residual.norm)
    return normed(x + bent(feed_forward.layers, x), feed_forward.residual.norm)


def expected_latents(model: nn.Perceiver, norm: str, y: Array, lengths: Any = None) -> Array:
    """The latents after all repeats."""
    x = np.tile(model.latents.numpy(), (len(y), 1, 1))
    for repeat in range(model.depth):
        block = model.block(repeat)
        x = read(block.cross, norm, x, y, lengths)
        for layer in block.layers:
            x = thought(layer, norm, x)
    return x


@given(NORMS, SHARES, st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2]), st.data())
def test_equals_plain_numpy(
    norm: str, share: str, depth: int, layers: int, cross_heads: int, data: Any
) -> None:
    sizes = {"depth": depth, "layers": layers, "cross_heads": cross_heads}
    model = perceiver(norm=norm, share=share, **sizes)
    y = normal(2, 6, C)
    lengths = data.draw(st.none() | st.lists(st.integers(1, 6), min_size=2, max_size=2))
    latents = expected_latents(model, norm, y, lengths)
    logits = mapped(normed(latents.mean(1), model.head.norm), model.head.projection)
    np.testing.assert_allclose(model.encode(Tensor(y), lengths).numpy(), latents, rtol=1e-9)
    np.testing.assert_allclose(model(Tensor(y), lengths=lengths).numpy(), logits, rtol=1e-9)


@given(NORMS)
def test_every_query_gets_an_answer_of_its_own(norm: str) -> None:
    model = perceiver(norm=norm, query_dim=6)
    y, queries = normal(2, 7, C), normal(2, 5, 6)
    found = read(model.head.cross, norm, queries, expected_latents(model, norm, y))
    answers = model(Tensor(y), Tensor(queries)).numpy()
    expected = mapped(normed(found, model.head.norm), model.head.projection)
    np.testing.assert_allclose(answers, expected, rtol=1e-9)
    alone = model(Tensor(y), Tensor(queries[:, 3:4])).numpy()
    np.testing.assert_allclose(alone, answers[:, 3:4], rtol=1e-12)


def test_without_classes_the_latents_are_the_output() -> None:
    model = perceiver(num_classes=None)
    y = Tensor(normal(2, 7, C))
    assert model(y).shape == (2, N, P)
    np.testing.assert_array_equal(model(y).numpy(), model.encode(y).numpy())


@given(NORMS, st.permutations(range(8)))
def test_the_order_of_the_bytes_means_nothing(norm: str, order: list[int]) -> None:
    """What says where a byte stands goes with it."""
    positions = nn.FourierPositions((2, 4), num_bands=1)
    y = positions(Tensor(normal(2, 2, 4, 1))).numpy()
    model = float64(nn.Perceiver(7, num_latents=N, latent_dim=P, num_heads=2, norm=norm))
    shuffled = model(Tensor(y[:, order])).numpy()
    np.testing.assert_allclose(shuffled, model(Tensor(y)).numpy(), rtol=1e-10)


@given(NORMS, st.sampled_from(["softmax", "linear"]), st.tuples(*[st.integers(0, 6)] * 2))
def test_bytes_beyond_the_length_change_nothing(
    norm: str, cross_attention: str, lengths: tuple[int, int]
) -> None:
    model = perceiver(norm=norm, cross_attention=cross_attention)
    inside = (np.arange(6) < np.array(lengths)[:, None])[..., None]
    y = Tensor(np.where(inside, normal(2, 6, C), 7.0), requires_grad=True)
    output = model(y, lengths=lengths)
    other = Tensor(np.where(inside, y.numpy(), -3.0))
    np.testing.assert_array_equal(output.numpy(), model(other, lengths=lengths).numpy())
    output.backward(normal(*output.shape))
    assert not np.where(inside, 0, y.grad.numpy()).any()
    for n, length in enumerate(lengths):  # an array alone, without padding
        alone = model(Tensor(y.numpy()[n : n + 1, :length])).numpy()
        np.testing.assert_allclose(alone[0], output.numpy()[n], rtol=1e-10)


def unrolled(model: nn.Perceiver, **options: Any) -> nn.Perceiver:
    """The same model, with a block for every repeat that holds its own copy of the weights."""
    copy = perceiver(share="none", **options)
    source = model.state_dict()
    state = {name: x for name, x in source.items() if not name.startswith("blocks.")}
    last = len(model.blocks) - 1
    for repeat in range(model.depth):
        shared = f"blocks.{min(repeat, last)}."
        for name, x in source.items():
            if name.startswith(shared):
                state[f"blocks.{repeat}.{name.removeprefix(shared)}"] = x
    copy.load_state_dict(state)
    return copy


def gradients(model: nn.Perceiver) -> dict[str, Array]:
    """Every parameter's gradient of a random combination of the logits."""
    model(Tensor(normal(2, 6, C))).backward(normal(2, K))
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


@given(st.sampled_from(["all", "all_but_first"]), NORMS)
def test_a_shared_weight_gathers_the_gradients_of_all_its_repeats(share: str, norm: str) -> None:
    options = {"depth": 3, "norm": norm}
    model = perceiver(share=share, **options)
    copy = unrolled(model, **options)
    y = Tensor(normal(2, 6, C))
    np.testing.assert_array_equal(model(y).numpy(), copy(y).numpy())
    apart = gradients(copy)
    last = len(model.blocks) - 1
    for name, found in gradients(model).items():
        parts = name.split(".", 2)
        repeats = [r for r in range(3) if parts[0] == "blocks" and min(r, last) == int(parts[1])]
        names = [f"blocks.{r}.{parts[2]}" for r in repeats] or [name]
        expected = sum(apart[each] for each in names)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@given(NORMS, SHARES, st.integers(1, 4), st.integers(1, 2))
def test_parameters_by_formula(norm: str, share: str, depth: int, layers: int) -> None:
    F = 6
    feed_forward = (P * F + F) + (F * P + P)
    transformer = layers * (4 * (P * P + P) + feed_forward + 2 * 2 * P)
    three = (P * P + P) + 2 * (C * P + P) + 2 * P + 2 * C  # projections, and norms of both inputs
    cross = {"pre": three + P * P + P + feed_forward + 2 * P, "post": three + 2 * P + P * P + P}
    blocks = {"all": 1, "all_but_first": min(depth, 2), "none": depth}[share]
    model = perceiver(norm=norm, share=share, depth=depth, layers=layers)
    head = 2 * P + P * K + K
    assert model.num_parameters() == N * P + blocks * (cross[norm] + transformer) + head
    assert len(model.blocks) == blocks
    assert repr(model).startswith(f"Perceiver(num_latents={N}, latent_dim={P}, depth={depth}  # ")
    assert sum(x.size for x in model.state_dict().values()) == model.num_parameters()


VARIANTS = pytest.mark.parametrize(
    "attention",
    [
        pytest.param(name, marks=() if name in ("softmax", "linear") else pytest.mark.nightly)
        for name in nn.attention_names()
    ],
)


@VARIANTS
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradients(attention: str, norm: str) -> None:
    cross = attention if attention == "linear" else "softmax"
    model = perceiver(
        attention=attention, cross_attention=cross, norm=norm, depth=2, share="all", num_latents=2
    )
    check_gradients(model, lambda model, y: model(y, lengths=[3, 2]), normal(2, 3, C))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradients_of_answers_to_queries(norm: str) -> None:
    model = perceiver(norm=norm, query_dim=6, cross_heads=2)
    inputs = normal(2, 3, C), normal(2, 2, 6)
    check_gradients(model, lambda model, *inputs: model(*inputs), *inputs)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_drops_in_training_only(norm: str) -> None:
    model, y = perceiver(norm=norm, dropout=0.5), Tensor(normal(2, 6, C))
    whole = perceiver(norm=norm)(y).numpy()
    np.testing.assert_array_equal(model.eval()(y).numpy(), whole)
    assert (model.train()(y).numpy() != model(y).numpy()).any()


@pytest.mark.parametrize("silent", ["attention", "map"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_is_on_both_updates(norm: str, silent: str) -> None:
    """With one of them silenced, the other one still drops."""
    cross = perceiver(norm=norm, dropout=0.5).blocks[0].cross
    attention = cross.attention
    if norm == "pre":
        last = {"attention": attention.out_projection, "map": cross.feed_forward.layers[3]}
    else:
        last = {"attention": attention.value_projection, "map": cross.dense}
    for parameter in last[silent].parameters():
        parameter.data[...] = 0
    x, y = Tensor(normal(2, N, P)), Tensor(normal(2, 6, C))
    drawn = [cross(x, y).numpy() for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()
    np.testing.assert_array_equal(cross.eval()(x, y).numpy(), cross(x, y).numpy())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_perceiver_on_a_device(norm: str, device: str) -> None:
    manual_seed(0)
    model = nn.Perceiver(
        C, num_latents=N, latent_dim=P, num_classes=K, num_heads=2, depth=2, norm=norm
    ).to(device)
    y = normal(2, 40, C).astype(np.float32)
    output = model(Tensor(y, device=device))
    assert output.device == device and output.dtype == np.float32
    for parameter in model.to("cpu").parameters():
        parameter.data = parameter.data.astype(np.float64)
    expected = model(Tensor(y.astype(np.float64))).numpy()
    np.testing.assert_allclose(output.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_where_the_latents_look_can_be_seen(norm: str) -> None:
    model = perceiver(norm=norm, cross_heads=2)
    with recorded_weights(model) as weights:
        model(Tensor(normal(2, 6, C)), lengths=[6, 4])
    looks = weights["blocks.0.cross.attention"]
    assert looks.shape == (2, 2, N, 6)
    np.testing.assert_allclose(looks.sum(-1), 1, rtol=1e-12)
    assert (looks[0] > 0).all() and not looks[1, :, :, 4:].any()


@given(NORMS, SHARES, st.sampled_from(["softmax", "linear"]), st.booleans())
def test_the_table_of_dimensions_holds_letter_by_letter(
    norm: str, share: str, attention: str, asked: bool
) -> None:
    sizes = {"depth": 3, "layers": 2, "cross_heads": 2, "query_dim": 6 if asked else None}
    model = perceiver(norm=norm, share=share, attention=attention, **sizes)
    B, M, O = 2, 7, 9  # noqa: E741
    table = model.dimensions(M, batch=B, num_queries=O)
    heading, seen = "", 0
    for line in table.splitlines():
        heading = heading if " × " in line else line
        if " × " not in line or line.startswith("array"):
            continue
        letters, shape = re.findall(r"  (\w(?: × \w)+|\d+(?: × \d+)+)(?=  |$)", line)[:2]
        width = 6 if heading == "queries read latents" else P
        sizes = {"B": B, "M": M, "C": C, "N": N, "P": P, "O": O, "D": 6, "Y": K, "H": 2}
        sizes["E"] = width // 2
        assert [sizes[x] for x in letters.split(" × ")] == list(map(int, shape.split(" × "))), line
        seen += 1
    blocks = {"all": 1, "all_but_first": 2, "none": 3}[share]
    layer = 7 if attention == "softmax" else 6
    assert seen == 2 + blocks * (7 + 2 * layer) + (9 if asked else 2)
    pairs = 3 * (M * N + 2 * N**2) + O * N * asked
    assert f"Parameters: {model.num_parameters():,}, of which latents {N * P}," in table
    assert f"a head: depth (M N + L N^2){' + O N' * asked} = {pairs}." in table
    quadratic = 3 * (1 + 2) * M**2
    assert f"= {quadratic}, {quadratic / pairs:.3g} times as many." in table


def test_the_table_of_s4s_module() -> None:
    model = nn.Perceiver(
        3, num_latents=4, latent_dim=6, num_heads=3, depth=5, norm="post", attention="linear"
    )
    assert model.dimensions(num_bytes=7, batch=2) == TABLE


TABLE = """\
array    formula                        letters        shape          weights (in × out)
bytes    the input                      B × M × C      2 × 7 × 3
latents  learned, the same for all      B × N × P      2 × 4 × 6

repeats 1 to 5: latents read bytes
Q        norm(latents) W_Q              B × H × N × E  2 × 1 × 4 × 6  6 × 6
K        norm(bytes) W_K                B × H × M × E  2 × 1 × 7 × 6  3 × 6
V        norm(bytes) W_V                B × H × M × E  2 × 1 × 7 × 6  3 × 6
S        Q K^T / sqrt(E), never stored  B × H × N × M  2 × 1 × 4 × 7
A        softmax(S) V                   B × H × N × E  2 × 1 × 4 × 6
latents  norm(latents + A)              B × N × P      2 × 4 × 6
latents  latents + latents W            B × N × P      2 × 4 × 6      6 × 6

repeats 1 to 5: layer 1 of the transformer
Q        latents W_Q                    B × H × N × E  2 × 3 × 4 × 2  6 × 6
K        latents W_K                    B × H × N × E  2 × 3 × 4 × 2  6 × 6
V        latents W_V                    B × H × N × E  2 × 3 × 4 × 2  6 × 6
A        LinearAttention(Q, K, V)       B × H × N × E  2 × 3 × 4 × 2
latents  norm(latents + A W_O)          B × N × P      2 × 4 × 6      6 × 6
latents  norm(latents + mlp(latents))   B × N × P      2 × 4 × 6      6 × 24, 24 × 6

B items, M bytes of C channels, N latents of P channels, H heads of E numbers.
Parameters: 696, of which latents 24, blocks 672 (1 for a depth of 5), head 0.
Pairs of query and key, a head: depth (M N + L N^2) = 220.
With as many layers over the bytes themselves: depth (1 + L) M^2 = 490, 2.23 times as many."""


def test_a_look_at_the_table_changes_nothing() -> None:
    model = perceiver(dropout=0.5)
    before, state = model.state_dict(), random.get_state()
    model.dimensions(7)
    assert random.get_state() == state and model.training
    assert not any("forward" in vars(module) for module in model.modules())
    for name, x in model.state_dict().items():
        np.testing.assert_array_equal(x, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


Y = Tensor(normal(2, 6, C))


test_refusals = refusals(
    (lambda: perceiver(share="some"),
     "Perceiver: share must be one of 'all', 'all_but_first', 'none', got 'some'"),
    (lambda: perceiver(norm="layer"), "Perceiver: norm must be one of 'pre', 'post', got 'layer'"),
    (lambda: perceiver(num_latents=0),
     "Perceiver: num_latents must be a whole number above 0, got 0"),
    (lambda: perceiver(depth=0), "Perceiver: depth must be a whole number above 0, got 0"),
    (lambda: perceiver(layers=0), "Perceiver: layers must be a whole number above 0, got 0"),
    (lambda: nn.Perceiver(1, num_latents=2, latent_dim=4),
     "Perceiver: input_dim must be at least 2, got 1: one number, normalised, is 0; give the bytes "
     "their positions as further channels, see FourierPositions"),
    (lambda: perceiver(num_classes=None, query_dim=6),
     "Perceiver: query_dim needs num_classes, the width of each query's output, got None"),
    (lambda: perceiver(cross_heads=3),
     "MultiHeadAttention: embed_dim must be a multiple of num_heads, got 8 and 3"),
    (lambda: perceiver(cross_heads=3, norm="post"),
     "MultiHeadAttention: embed_dim must be a multiple of num_heads, got 8 and 3"),
    (lambda: perceiver(activation="sine"), "FeedForward: activation must be one of 'relu', 'gelu'"),
    (lambda: perceiver(attention="none"), "attention must be one of 'cosformer', "),
    (lambda: perceiver(cross_attention="none"), "attention must be one of 'cosformer', "),
    (lambda: perceiver()(Tensor(normal(2, 2, 3, C))),
     "Perceiver: inputs must be (B, M, 5), got (2, 2, 3, 5); flatten what has dimensions, as "
     "FourierPositions does"),
    (lambda: perceiver()(Tensor(normal(2, 3, 4))),
     "Perceiver: inputs must be (B, M, 5), got (2, 3, 4);"),
    (lambda: perceiver()(Y, Tensor(normal(2, 3, 6))),
     "Perceiver: expected no queries, as the model has no query_dim; build it with query_dim and "
     "num_classes to get an output for each query"),
    (lambda: perceiver(query_dim=6)(Y),
     "Perceiver: queries must be (B, O, 6), got None; `encode` returns the latents, which need "
     "none"),
    (lambda: perceiver(query_dim=6)(Y, Tensor(normal(2, 3, 5))),
     "Perceiver: queries must be (B, O, 6), got (2, 3, 5);"),
)  # fmt: skip

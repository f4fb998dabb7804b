"""The module tree, its saved state, and the layers that are not attention."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, nn
from minitransformer import functions as F
from minitransformer.nn.module import Module
from tests.refusals import refusals

from .models import check_gradients, float64, mapped, normal, normed


class Pair(Module):
    """Two layers that share a weight, and a parameter that does not learn."""

    def __init__(self) -> None:
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(2, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(np.zeros(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def test_parameters_have_paths_and_shared_ones_count_once() -> None:
    names = [name for name, _ in Pair().named_parameters()]
    assert names == ["frozen", "first.weight", "first.bias", "second.bias"]
    assert Pair().num_parameters() == 6 + 3 + 3  # what is frozen is not learned


def test_a_shared_parameter_gets_both_gradients() -> None:
    pair = Pair()
    pair(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    np.testing.assert_array_equal(pair.first.weight.grad.numpy(), np.full((3, 2), 2.0))


def test_state_survives_a_round_trip_and_is_a_copy() -> None:
    model, other = (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) for _ in range(2))
    state = model.state_dict()
    saved = {name: array.copy() for name, array in state.items()}
    for parameter in model.parameters():
        parameter.data += 1
    other.load_state_dict(state)
    assert list(state) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for name, array in other.state_dict().items():
        np.testing.assert_array_equal(array, saved[name])


def test_loading_lists_everything_that_does_not_fit_and_loads_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    before = model.state_dict()
    state = {**before, "2.weight": np.zeros(1), "0.bias": np.zeros(5), "1.bias": np.ones(4)}
    del state["1.weight"]
    with pytest.raises(ValueError) as caught:
        model.load_state_dict(state)
    assert str(caught.value) == (
        "Sequential.load_state_dict: the state does not fit: missing 1.weight; unexpected "
        "2.weight; 0.bias has shape (5,), expected (4,). Build the module as it was when the state "
        "was saved"
    )
    halves = {**before, "0.weight": before["0.weight"] + 1, "1.bias": np.full(4, 1j)}
    with pytest.raises(ValueError, match=r"1.bias has dtype complex128, expected float32\. Build"):
        model.load_state_dict(halves)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_modes_and_gradients_reach_the_whole_tree() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)))
    model(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.eval().modules())
    assert all(module.training for module in model.train().modules())


def test_moving_keeps_the_parameters_themselves(device: str) -> None:
    model = nn.Linear(3, 2)
    weight = model.weight
    assert model.to(device).weight is weight
    assert model.device == device
    assert model(Tensor(np.ones((1, 3), np.float32), device=device)).device == device


def test_repr_shows_the_tree_with_parameter_counts() -> None:
    model = nn.Sequential(nn.Embedding(1000, 8), nn.ModuleList([nn.Dropout(0.1)]))
    assert repr(model) == (
        "Sequential(  # 8,000 parameters\n"
        "  (0): Embedding(num_embeddings=1000, embedding_dim=8)  # 8,000 parameters\n"
        "  (1): ModuleList(\n"
        "    (0): Dropout(p=0.1)\n"
        "  )\n"
        ")"
    )


def test_a_list_holds_modules_only() -> None:
    layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    assert len(layers) == 2 and isinstance(layers[1], nn.Tanh)
    assert [type(layer) for layer in layers] == [nn.ReLU, nn.Tanh]
    with pytest.raises(TypeError, match="ModuleList: item 1 must be a Module, got function; wrap"):
        nn.ModuleList([nn.ReLU(), lambda x: x])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.LayerNorm(-1), r"normalized_shape\[0\] must be a whole number above 0, got -1"),
        (lambda: nn.LayerNorm(None), r"normalized_shape\[0\] must be a whole number .*, got None"),
        (lambda: nn.LayerNorm(2, eps=-1), "LayerNorm: eps must be 0 or above, got -1"),
        (lambda: nn.LearnedPositions(4, 2)(Tensor(np.ones((1, 1, 2))), offset=-1), "got -1"),
        (lambda: nn.TransformerLM(9, 4, 2, 1, dropuot=0.1),
         "TransformerEncoderLayer: expected options among attention, .*, got dropuot"),
        (lambda: nn.Linear(True, 2), "in_features must be a whole number above 0, got True"),
        (lambda: nn.Dropout("a"), r"expected a fraction p in \[0, 1\), got 'a'"),
    ],
)  # fmt: skip
def test_sizes_and_fractions_are_looked_at(build: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        build()


def test_linear_starts_with_xavier_uniform_weights_and_zero_biases() -> None:
    manual_seed(0)
    layer = nn.Linear(300, 500)
    bound = math.sqrt(6 / 800)
    weight = layer.weight.numpy()
    assert weight.dtype == np.float32 and np.abs(weight).max() <= bound
    assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.01
    assert not layer.bias.numpy().any()


def test_a_seed_decides_how_a_model_starts() -> None:
    def start(seed: int) -> dict[str, np.ndarray]:
        manual_seed(seed)
        return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).state_dict()

    for name, array in start(3).items():
        np.testing.assert_array_equal(array, start(3)[name])
    assert (start(3)["1.weight"] != start(4)["1.weight"]).all()


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans())
def test_linear_is_a_matrix_product_over_any_leading_dimensions(
    leading: tuple[int, int], bias: bool
) -> None:
    layer = float64(nn.Linear(5, 3, bias))
    assert (layer.bias is not None) == bias
    x = normal(*leading, 5)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), mapped(x, layer), rtol=1e-12)


def test_layer_norm_standardizes_then_scales_and_shifts() -> None:
    layer = float64(nn.LayerNorm(6, eps=1e-3))
    assert layer.eps == 1e-3
    x = normal(2, 3, 6)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), normed(x, layer), rtol=1e-10)


def test_dropout_drops_in_training_only_and_keeps_the_mean() -> None:
    manual_seed(0)
    layer = nn.Dropout(0.25)
    x = np.ones((200, 200), np.float32)
    dropped = layer(Tensor(x)).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(dropped.mean() - 1) < 0.02
    np.testing.assert_array_equal(layer.eval()(Tensor(x)).numpy(), x)


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (nn.ReLU(), F.relu),
        (nn.Tanh(), F.tanh),
        (nn.ELU(), lambda x: F.elu(x, 1.0)),
        (nn.GELU(), F.gelu),
        (nn.GELU("tanh"), lambda x: F.gelu(x, "tanh")),
    ],
    ids=lambda value: str(value) if isinstance(value, Module) else None,
)
def test_activations(layer: Module, function: Callable[[Tensor], Tensor]) -> None:
    x = Tensor(3 * normal(50))
    np.testing.assert_array_equal(layer(x).numpy(), function(x).numpy())


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients_of_layers(layer: Module) -> None:
    check_gradients(float64(layer), lambda layer, x: layer(x), normal(2, 3, 4))


def test_gradients_of_an_embedding() -> None:
    indices = np.array([[0, 3, 3], [1, 0, 3]])
    check_gradients(float64(nn.Embedding(4, 3)), lambda layer: layer(indices))


test_refusals = refusals(
    (lambda: nn.Linear(0, 3), "Linear: in_features must be a whole number above 0, got 0"),
    (lambda: nn.Linear(3, 2.5), "Linear: out_features must be a whole number above 0, got 2.5"),
    (lambda: nn.Embedding(-1, 3), "Embedding: num_embeddings must be a whole number above 0"),
    (lambda: nn.Dropout(1.0), "Dropout: p must be a fraction in [0, 1), got 1.0"),
)  # fmt: skip

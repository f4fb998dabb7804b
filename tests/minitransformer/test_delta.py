"""The delta rule on the tape: every property of the operation; features; the variant; refusals."""

from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, gradcheck, nn
from minitransformer import functions as F
from minitransformer.attention import DeltaState, delta_attention, delta_attention_step
from minitransformer_kernels import reference
from minitransformer_kernels.delta.fast import TILE
from tests import references
from tests.cases import Domain, Variant, delta_inputs, delta_state
from tests.kernels.test_delta import normalise
from tests.properties import Check, Operation, examine
from tests.refusals import refusals

from .models import float64, normal, token_by_token
from .test_attention import INPUTS, tape_checks, through_the_step, through_the_tape

NAMES = (*INPUTS, "beta")
GIVEN = {"feature_map": "identity", "normalize": "none"}


def made(problem: Any) -> Any:
    """The reference knows nothing of features: here they are given."""
    keywords = {name: x for name, x in problem.keywords.items() if name not in GIVEN}
    return type(problem)(problem.inputs, problem.cotangents, keywords, state=problem.state)


OPERATION = Operation(
    "delta",
    Domain(
        (Variant("float64", 5, 3, GIVEN),), (TILE,), causal=(True,), stateful=True, packed=True,
        extras=delta_inputs, states=delta_state,
    ),
    through_the_tape(delta_attention, NAMES, DeltaState, return_state=True),
    references.public(lambda problem, dtype: references.delta(made(problem), dtype)),
    through_the_step(delta_attention_step, NAMES, DeltaState),
    values=("value", "W"),
    exempt=("preserves_a_constant_value",),
)  # fmt: skip


@pytest.mark.parametrize(("op", "check"), tape_checks(OPERATION))
def test_properties(op: Operation, check: Check, device: str) -> None:
    examine(op.on(device), check)


def token_inputs() -> list[Tensor]:
    """Query, key and value of two heads and six tokens, and rates between 0 and 1."""
    return [*map(Tensor, normal(3, 1, 2, 6, 3)), Tensor(0.9 / (1 + np.exp(normal(1, 2, 6))))]


@pytest.mark.parametrize(("feature_map", "normalize"), [("elu", "sum"), ("identity", "l2")])
def test_query_and_key_are_normalised_features(feature_map: str, normalize: str) -> None:
    query, key, value, beta = inputs = token_inputs()
    options: Any = {"feature_map": feature_map, "normalize": normalize}
    q, k = (normalise(x.numpy(), **options) for x in (query, key))
    expected, _, _ = reference.delta_attention(q, k, value.numpy(), beta.numpy())
    output = delta_attention(*inputs, **options)
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-9)
    assert gradcheck(lambda *x: delta_attention(*x, **options), inputs)


@pytest.mark.parametrize("feature_map", ["dpfp", "favor", lambda x: F.exp(x)])
def test_maps_of_rows(feature_map: Any) -> None:
    """Features of another width; token by token as all at once."""
    inputs = token_inputs()
    options: Any = {"feature_map": feature_map, "normalize": "sum"}
    whole = delta_attention(*inputs, **options).numpy()
    stepped = token_by_token(delta_attention_step, *inputs, **options).numpy()
    np.testing.assert_allclose(stepped, whole, rtol=1e-9)


def test_default_features_are_those_of_its_source() -> None:
    """elu + 1, divided by their sum (Schlag et al. 2021, section 4.2): W holds shares of values."""
    inputs = token_inputs()
    explicit = delta_attention(*inputs, feature_map="elu", normalize="sum").numpy()
    np.testing.assert_array_equal(delta_attention(*inputs).numpy(), explicit)


@pytest.mark.parametrize("with_state", [False, True])
def test_the_step_is_differentiable_in_token_and_state(with_state: bool) -> None:
    inputs = [x[:, :, 0] for x in token_inputs()]
    if with_state:
        inputs.append(Tensor(normal(1, 2, 3, 3)))

    def step(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *W: Tensor) -> Any:
        return delta_attention_step(query, key, value, beta, DeltaState(*W) if W else None)

    assert gradcheck(step, inputs)


# The variant --------------------------------------------------------------------------------------


def test_rates_begin_around_one_half() -> None:
    variant = nn.DeltaAttention()
    variant.prepare(2, 8)
    rates = variant.beta(Tensor(normal(3, 2, 50, 8).astype(np.float32))).numpy()
    assert rates.shape == (3, 2, 50)
    assert rates.min() > 0 and rates.max() < 1 and abs(rates.mean() - 0.5) < 0.05


def test_rates_are_learned() -> None:
    layer = float64(nn.MultiHeadAttention(16, 2, attention="delta"))
    x = Tensor(normal(2, 50, 16))
    layer(x, causal=True).sum().backward()
    for name in ("beta_weight", "beta_bias"):
        parameter = getattr(layer.attention, name)
        assert parameter.grad.numpy().all(), name


def test_across_to_a_sequence_all_of_it_is_written_before_it_is_read() -> None:
    """Every query reads the same state; padding is not part of it."""
    variant = float64(nn.DeltaAttention())
    variant.prepare(2, 4)
    query, key, value = (Tensor(normal(2, 2, length, 4)) for length in (3, 9, 9))
    across = variant(query, key, value, key_lengths=[9, 5]).numpy()
    for n, count in enumerate((9, 5)):
        part = slice(n, n + 1)
        memory = variant.remember(key[part, :, :count], value[part, :, :count])
        read = variant.recall(query[part], memory)
        np.testing.assert_allclose(read.numpy(), across[part], rtol=1e-9)


test_refusals = refusals(
    ({"causal": False},
     "delta_attention: the delta rule goes from left to right and needs causal=True; for every "
     "query to read what all keys wrote, give query_offset=6, the keys' length; for both "
     "directions at"),
    ({"normalize": "max"},
     "delta_attention: normalize must be one of 'none', 'sum', 'l2', got 'max'"),
    ({"feature_map": "cosine"},
     "delta_attention: feature_map must be one of 'elu', 'relu', 'softplus', 'exp',"),
    ({"algorithm": "naive"},
     "delta_attention: algorithm must be one of 'auto', 'recurrent', 'chunked', got"),
    ({"beta": Tensor(np.ones((1, 2, 5)))},
     "delta_attention: beta must have the shape (N=1, H=2, Lk=6), got (1, 2, 5)"),
    ({"beta": Tensor(np.ones((1, 2, 6), np.float32))},
     "delta_attention: beta is float32, but query is float64; convert it: "
     "beta.to(dtype=query.dtype)"),
    ({"initial_state": DeltaState(Tensor(np.ones((1, 2, 3, 4))))},
     "delta_attention: W must have the shape (N=1, H=2, E=3, M=3), got (1, 2, 3, 4)"),
    of=lambda **changed: delta_attention(**dict(zip(NAMES, token_inputs(), strict=True)) | changed),
)  # fmt: skip


def test_refusal_of_a_sequence_where_a_token_belongs() -> None:
    query, key, value, beta = token_inputs()
    with pytest.raises(ValueError, match=r"delta_attention_step: query must have the shape \(N, H"):
        delta_attention_step(query, key, value, beta)

"""One source of randomness, which can be stopped and continued."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, random
from minitransformer import functions as F


def test_a_seed_gives_the_same_numbers() -> None:
    drawn = []
    for seed in (1, 1, 2):
        manual_seed(seed)
        drawn.append(random.generator().random(4).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_state_continues_through_json() -> None:
    manual_seed(0)
    random.uniform((3,), np.float32)  # leaves half a word in the generator
    state = json.loads(json.dumps(random.get_state()))
    expected = random.uniform((5,), np.float32)
    kept = json.dumps(state)
    random.set_state(state)
    np.testing.assert_array_equal(random.uniform((5,), np.float32), expected)
    assert json.dumps(state) == kept


@pytest.mark.parametrize("state", [{}, {"bit_generator": "MT19937"}, None])
def test_a_foreign_state_is_refused(state: object) -> None:
    with pytest.raises(ValueError, match="set_state: expected what get_state\\(\\) returned"):
        random.set_state(state)


@given(p=st.floats(0.05, 0.95), seed=st.integers(0, 1000))
def test_dropout_keeps_the_mean(p: float, seed: int) -> None:
    manual_seed(seed)
    count = 20_000
    x = Tensor(np.ones(count, np.float32), requires_grad=True)
    y = F.dropout(x, p)
    dropped = float((y.numpy() == 0).mean())
    assert abs(dropped - p) < 6 * np.sqrt(p * (1 - p) / count)
    np.testing.assert_allclose(y.numpy()[y.numpy() != 0], 1 / (1 - p), rtol=1e-6)
    assert y.dtype == np.float32
    y.backward(np.full(count, 2.0))
    np.testing.assert_allclose(x.grad.numpy(), 2 * y.numpy(), rtol=1e-6)


def test_dropout_draws_anew_and_repeats_with_the_seed() -> None:
    x = Tensor(np.ones(100))
    manual_seed(4)
    first, second = F.dropout(x).numpy(), F.dropout(x).numpy()
    manual_seed(4)
    again = F.dropout(x).numpy()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_dropout_leaves_evaluation_alone() -> None:
    x = Tensor([1.0, 2.0])
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x
    for p in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"dropout: expected a probability p .* got {p}"):
            F.dropout(x, p)


def test_uniform_on_a_device(device: str) -> None:
    xp = np if device == "cpu" else pytest.importorskip("cupy")
    manual_seed(9)
    drawn = random.uniform((1000,), xp.float32, xp)
    manual_seed(9)
    assert (random.uniform((1000,), xp.float32, xp) == drawn).all()
    assert drawn.dtype == xp.float32
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1

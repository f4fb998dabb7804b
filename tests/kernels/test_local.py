"""What only local attention has: its window, its landmarks, and that it looks at nothing else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer_kernels import local, reference, softmax
from minitransformer_kernels.softmax.fast import TILE
from minitransformer_kernels.visible import Visible
from tests.refusals import refusals

from ..cases import Array
from .operations import by_name

LENGTH = 2 * TILE + 9
SHAPE = (2, 1, LENGTH)


def inputs(*shape: int, seed: int = 0) -> tuple[Array, ...]:
    """Query, key (N, H, L, 5), value and cotangent (N, H, L, 3)."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(*(shape or SHAPE), width)) for width in (5, 5, 3, 3))


def passes(module: Any, arrays: tuple[Array, ...], **options: Any) -> dict[str, Array]:
    """What a forward and a backward give."""
    *qkv, grad = arrays
    output, highest, inverse = results = module.forward(*qkv, **options)
    gradients = module.backward(grad, *qkv, *results, **options)
    return {"output": output, "highest": highest, "inverse": inverse, **by_name(gradients)}


def weights(query: Array, key: Array, **options: Any) -> Array:
    """p_ij (N, H, Lq, Lk), as the output for values that are the rows of the identity."""
    columns = np.broadcast_to(np.eye(key.shape[2]), (*key.shape[:2], *[key.shape[2]] * 2))
    parts = np.array_split(columns, range(8, key.shape[2], 8), axis=-1)
    outputs = [local.forward(query, key, np.ascontiguousarray(v), **options)[0] for v in parts]
    return np.concatenate(outputs, axis=-1)


@given(
    st.booleans(), st.integers(0, 12), st.none() | st.integers(1, 9), st.integers(0, 4),
    st.integers(0, 4), st.integers(-9, 9),
)  # fmt: skip
def test_a_key_has_weight_exactly_where_the_rule_says(
    causal: bool, window: int, stride: int | None, num_global: int, queries: int, offset: int
) -> None:
    """The rule, key by key, in plain Python."""

    def sees(p: int, j: int) -> bool:
        landmark = j < num_global or (stride is not None and j % stride == stride - 1)
        near = abs(p - j) <= window or landmark or 0 <= p < queries
        return near and (j <= p or not causal)

    query, key, *_ = inputs(1, 1, 19)
    found = weights(
        query, key, visible=Visible(causal, offset), window=window, stride=stride,
        num_global=num_global, global_queries=queries,
    )  # fmt: skip
    expected = [[sees(i + offset, j) for j in range(19)] for i in range(19)]
    np.testing.assert_array_equal(found[0, 0] > 0, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("all_seen", "near"),
    [
        ({"window": LENGTH}, 0),
        ({"window": 2**70}, 0),
        ({"window": 0, "stride": 1}, 1e-12),
        ({"window": 3, "num_global": LENGTH + 1}, 1e-12),
        ({"window": 0, "global_queries": LENGTH}, 1e-12),
    ],
    ids=str,
)
def test_where_all_keys_are_seen_it_is_softmax_attention(
    causal: bool, all_seen: Any, near: float
) -> None:
    """A window over everything gives its bits: the same sums in the same order."""
    visible = Visible(causal, 0, np.array([LENGTH, 70]), np.array([66, LENGTH]))
    found = passes(local, inputs(), visible=visible, **all_seen)
    for name, x in passes(softmax, inputs(), visible=visible).items():
        np.testing.assert_allclose(found[name], x, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_float32(causal: bool) -> None:
    query, key, value = (x.astype(np.float32) for x in inputs()[:3])
    visible, options = Visible(causal), {"window": 20, "stride": 9, "num_global": 3}
    found, *_ = local.forward(query, key, value, visible, **options)
    truth = reference.local_attention(query, key, value, visible, **options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, truth, atol=2e-6)


def test_a_window_of_zero_is_the_value_itself() -> None:
    query, key, value, grad = inputs()
    found = passes(local, (query, key, value, grad), window=0)
    np.testing.assert_allclose(found["output"], value, atol=1e-15)
    np.testing.assert_allclose(found["value"], grad, atol=1e-15)
    for name in ("query", "key"):
        np.testing.assert_allclose(found[name], 0, atol=1e-14)


test_what_makes_no_pattern_is_refused = refusals(
    ({"window": -1}, "local: window must be at least 0, got -1"),
    ({"num_global": -2}, "local: num_global must be at least 0, got -2"),
    ({"global_queries": -3}, "local: global_queries must be at least 0, got -3"),
    ({"stride": 0}, "local: stride must be at least 1, got 0"),
    of=lambda **change: local.forward(*inputs()[:3], **{"window": 3, **change}),
)  # fmt: skip


@pytest.mark.parametrize(
    "enough",
    [
        pytest.param(1000, id="in tiles"),
        pytest.param(0, id="on lanes", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("poisoned", [0, 3], ids=["query", "cotangent"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_query_that_is_not_finite_reaches_only_the_keys_that_it_sees(
    poison: float, poisoned: int, enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels, on lanes and not, take a sum to be over finite numbers until they meet others."""
    monkeypatch.setattr(softmax.fast, "ENOUGH_HEADS", enough)
    arrays, there = inputs(), TILE + 1
    arrays[poisoned][:, :, there] = poison
    with np.errstate(all="ignore"):
        found = passes(local, arrays, window=2, num_global=2)
    own = np.zeros(LENGTH, bool)
    own[there] = True
    sees = own.copy()
    sees[[0, 1, *range(there - 2, there + 3)]] = True
    for name, touched in {"query": own, "key": sees, "value": sees}.items():
        assert np.isfinite(found[name][:, :, ~touched]).all(), name
        assert not np.isfinite(found[name][:, :, there]).all(), name

"""The door to the algorithms: what it lets through, and features in groups."""

from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import algorithms, reference
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.visible import EVERYTHING, Visible

WAYS = [
    ("naive", False),
    ("naive", True),
    ("linear", False),
    ("recurrent", True),
    pytest.param("chunked", True, marks=pytest.mark.nightly),
]


def draw(features: int) -> tuple[Any, ...]:
    """Positive query and key, value, the output's gradient, and a state."""
    rng = np.random.default_rng(0)
    query, key = 0.1 + rng.uniform(size=(2, 2, 1, 20, features))
    value, grad = rng.normal(size=(2, 2, 1, 20, 3))
    S, Z = rng.normal(size=(2, 1, features, 3)), rng.uniform(0.5, 1, (2, 1, features))
    return query, key, value, grad, LinearState(S, Z)


@pytest.mark.parametrize(("algorithm", "causal"), WAYS)
def test_more_features_than_a_kernel_holds_are_taken_in_groups(
    algorithm: str, causal: bool
) -> None:
    query, key, value, grad, state = draw(260)
    options: Any = {"feature_map": "identity", "visible": Visible(causal)}
    if algorithm in ("recurrent", "chunked"):
        options["initial_state"] = state
    keywords = {"algorithm": algorithm, **options}
    output, d, _ = algorithms.forward(query, key, value, **keywords)
    *found, of_state = algorithms.backward(grad, None, query, key, value, output, d, **keywords)
    truth = reference.linear_attention(query, key, value, **options)
    *expected, states = reference.linear_attention_backward(grad, query, key, value, **options)
    np.testing.assert_allclose(output, truth, rtol=1e-10)
    if of_state is not None:
        found, expected = [*found, *of_state], [*expected, *states]
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-8, atol=1e-12)


def test_what_an_algorithm_cannot_do_is_refused() -> None:
    query, key, value, grad, state = draw(4)
    packed, causal = Visible(True, cu_seqlens=[0, 20]), Visible(causal=True)
    for algorithm, visible, start, message in (
        ("naive", EVERYTHING, state, "initial_state needs a causal algorithm, 'recurrent' or"),
        ("naive", packed, None, "cu_seqlens needs a causal algorithm, 'recurrent' or"),
        ("linear", packed, None, "in both directions is not causal"),
        ("linear", causal, None, "in both directions is not causal"),
        ("recurrent", EVERYTHING, None, "from left to right and needs causal=True"),
        ("chunked", EVERYTHING, None, "from left to right and needs causal=True"),
    ):
        options: Any = {"algorithm": algorithm, "initial_state": start}
        if visible is packed:
            query, key, value, grad = (array[:1] for array in (query, key, value, grad))
        with pytest.raises(ValueError, match=message):
            algorithms.forward(query, key, value, visible, **options)
        with pytest.raises(ValueError, match=message):
            algorithms.gradients(grad, grad[..., 0], None, query, key, value, visible, **options)

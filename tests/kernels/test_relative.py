"""What only relative positions have: distances, a window, and embeddings that nobody uses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from minitransformer_kernels import reference, relative
from minitransformer_kernels.relative import RelativeState, empty_state
from minitransformer_kernels.visible import CAUSAL, EVERYTHING, Visible
from tests.refusals import refusals

from ..cases import Array, Arrays
from ..properties import equals_the_reference
from .operations import FEW, KERNELS, ragged, relative_apply, relative_causal, relative_naive

N, H, E, M = 2, 2, 5, 3
RECURRENT: dict[str, Any] = {"algorithm": "recurrent", "visible": CAUSAL}
ALGORITHMS = [
    pytest.param(RECURRENT, id="recurrent"),
    pytest.param({"algorithm": "chunked", "visible": CAUSAL}, id="chunked"),
    pytest.param({"algorithm": "naive", "visible": CAUSAL}, id="naive-causal"),
    pytest.param({"algorithm": "linear"}, id="linear"),
    pytest.param({"algorithm": "naive"}, id="naive"),
]


def drawn(length: int, k: int, seed: int = 0) -> Arrays:
    """Inputs of a sequence."""
    rng = np.random.default_rng(seed)
    shape = N, H, length
    return {
        "query": rng.normal(size=(*shape, E)),
        "key": rng.normal(size=(*shape, E)),
        "value": rng.normal(size=(*shape, M)),
        "relative_embedding": 0.7 * rng.normal(size=(H, 2 * k + 1, E)),
    }


def passes(inputs: Arrays, **options: Any) -> tuple[Array, Arrays]:
    """The output, and the gradient of each input for a random cotangent."""
    output, denominator, weights, _ = relative.forward(**inputs, **options)
    grad = np.random.default_rng(1).normal(size=output.shape).astype(output.dtype)
    *gradients, _ = relative.backward(
        grad, None, *inputs.values(), output, denominator, weights, **options
    )
    return output, dict(zip(inputs, gradients, strict=True))


@pytest.mark.parametrize("options", ALGORITHMS)
@pytest.mark.parametrize(
    ("score_map", "guard"),
    [
        ("softplus", "clamp"),
        pytest.param("exp", "clamp", marks=pytest.mark.nightly),
        pytest.param("identity", "signed", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("relative_query", ["feature", "raw"])
def test_every_choice(
    options: dict[str, Any], score_map: str, guard: str, relative_query: str
) -> None:
    """Under the signed guard even scores of either sign, whatever becomes of denominators."""
    inputs = drawn(70, 4)
    chosen = {"score_map": score_map, "relative_query": relative_query, "guard": guard}
    output, gradients = passes(inputs, **options, **chosen)
    inputs_and_visible = *inputs.values(), options.get("visible", EVERYTHING)
    truth = reference.relative_linear_attention(*inputs_and_visible, **chosen)
    grad = np.random.default_rng(1).normal(size=output.shape)
    expected, _ = reference.relative_linear_attention_backward(grad, *inputs_and_visible, **chosen)
    assert_allclose(output, truth, rtol=1e-7, atol=1e-9 * np.abs(truth).max())
    for found, x in zip(gradients.values(), expected, strict=True):
        assert_allclose(found, x, rtol=1e-7, atol=1e-9 * np.abs(x).max())


@pytest.mark.parametrize("of_scores", ["naive", "linear"])
@pytest.mark.parametrize(
    ("kernelized", "causal"),
    [("naive", True), ("recurrent", True), ("chunked", True), ("naive", False), ("linear", False)],
)
def test_each_term_by_an_algorithm_of_its_own(
    kernelized: str, causal: bool, of_scores: str
) -> None:
    operation = relative_causal() if kernelized in ("recurrent", "chunked") else relative_naive()
    by_term = {"kernelized": kernelized, "relative": of_scores}
    operation = replace(operation, apply=relative_apply(KERNELS, by_term))
    equals_the_reference(operation, ragged(operation, FEW, causal))


test_terms_that_there_are_not_are_refused = refusals(
    ({"kernelized": "naive"},
     "algorithm has an entry for each term, 'kernelized' and 'relative', got ['kernelized']"),
    ({"kernelized": "naive", "relative": "chunked"},
     "the algorithm of the relative term must be 'naive' or 'linear', got 'chunked'"),
    ({"kernelized": "recurrent", "relative": "naive"},
     "a recurrence goes from left to right and needs causal=True"),
    of=lambda **terms: relative.forward(*drawn(3, 1).values(), algorithm=terms),
)  # fmt: skip


@pytest.mark.parametrize("options", ALGORITHMS)
@pytest.mark.parametrize("shift", [1, 31, 32, 40])
def test_only_the_difference_of_positions_counts(options: dict[str, Any], shift: int) -> None:
    """The last queries alone, as far on as they were, give the rows that they gave with all."""
    inputs = drawn(70, 3)
    whole, _ = passes(inputs, **options)
    visible = options.get("visible", EVERYTHING)._replace(query_offset=shift)
    later, _ = passes(
        {**inputs, "query": inputs["query"][:, :, shift:]}, **{**options, "visible": visible}
    )
    assert_allclose(later, whole[:, :, shift:], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("algorithm", ["linear", "naive"])
def test_a_mirror_turns_distances_around(algorithm: str) -> None:
    """Everything from its end, embeddings too, gives the same from its end."""
    inputs = drawn(70, 3)
    mirrored = {**{name: x[:, :, ::-1] for name, x in inputs.items()}}
    mirrored["relative_embedding"] = inputs["relative_embedding"][:, ::-1]
    whole, _ = passes(inputs, algorithm=algorithm)
    turned, _ = passes(mirrored, algorithm=algorithm)
    assert_allclose(turned[:, :, ::-1], whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("options", ALGORITHMS)
def test_an_embedding_that_no_pair_uses_has_no_gradient(options: dict[str, Any]) -> None:
    """A sequence of 4 has distances of at most 3, a causal one none above 0."""
    k = 6
    inputs = drawn(4, k)
    _, gradients = passes(inputs, **options)
    used = np.zeros(2 * k + 1, bool)
    used[k - 3 : k + (1 if "visible" in options else 4)] = True
    de = gradients["relative_embedding"]
    assert_array_equal(de[:, ~used], 0)
    assert de[:, used].all()


@pytest.mark.parametrize("options", ALGORITHMS)
def test_more_distances_than_occur_change_nothing(options: dict[str, Any]) -> None:
    inputs = drawn(35, 40)
    fewer = {**inputs, "relative_embedding": inputs["relative_embedding"][:, 6:-6]}
    output, gradients = passes(inputs, **options)
    same, same_gradients = passes(fewer, **options)
    assert_array_equal(output, same)
    assert_array_equal(
        gradients["relative_embedding"][:, 6:-6], same_gradients["relative_embedding"]
    )


@pytest.mark.parametrize("options", ALGORITHMS)
def test_one_embedding_adds_a_constant_to_every_score(options: dict[str, Any]) -> None:
    """With k = 0 and identity it is one more feature of the query, seen by a key that is 1."""
    inputs = drawn(70, 0)
    inputs["relative_embedding"] = np.abs(inputs["relative_embedding"])
    output, *_ = relative.forward(**inputs, **options, score_map="identity")
    q, k = (reference.phi(inputs[name], "elu") for name in ("query", "key"))
    more = np.sum(q * inputs["relative_embedding"], axis=-1, keepdims=True)
    wider = (np.concatenate(x, axis=-1) for x in ((q, more), (k, np.ones_like(more))))
    visible = options.get("visible", EVERYTHING)
    expected = reference.linear_attention(*wider, inputs["value"], visible, feature_map="identity")
    assert_allclose(output, expected, rtol=1e-10, atol=1e-12)


def test_an_empty_state_is_no_state() -> None:
    inputs = drawn(40, 3)
    start = empty_state(N, inputs["key"], inputs["value"], 3)
    begun = relative.forward(**inputs, **RECURRENT, initial_state=start)
    fresh = relative.forward(**inputs, **RECURRENT)
    for x, y in zip((begun[0], *begun[3]), (fresh[0], *fresh[3]), strict=True):
        assert_allclose(x, y, rtol=1e-12, atol=1e-13)


def test_the_sum_before_all_values_is_far_from_every_query() -> None:
    """A state that was not given has a gradient: that of a key further back than any embedding."""
    inputs = drawn(length=9, k=3)
    output, denominator, weights, _ = relative.forward(**inputs, **RECURRENT)
    grad = np.random.default_rng(1).normal(size=output.shape)
    saved = output, denominator, weights
    states = [
        relative.backward(grad, None, *inputs.values(), *saved, **RECURRENT, version=version)[-1]
        for version in ("fast", "plain")
    ]
    truth = np.einsum("nhi,nhim->nhm", weights[..., 0], grad / denominator[..., None])
    for state in states:
        assert_allclose(state.tail, truth, rtol=1e-12)


@pytest.mark.parametrize("k", [0, 1, 3, 40])
def test_the_window_holds_the_last_values(k: int) -> None:
    inputs = drawn(35, k)
    *_, state = relative.forward(
        **inputs, algorithm="recurrent", visible=CAUSAL._replace(key_lengths=np.array([35, 2]))
    )
    for n, length in enumerate((35, 2)):
        kept = min(k, length)
        value = inputs["value"][n, :, :length]
        assert_allclose(state.tail[n], value[:, : length - kept].sum(axis=1), atol=1e-12)
        assert_array_equal(state.recent[n, :, k - kept :], value[:, length - kept :])
        assert_array_equal(state.recent[n, :, : k - kept], 0)
    assert_array_equal(state.length, [35, 2])


@pytest.mark.parametrize("score", [-200.0, 59.0, 60.0, 200.0])
@pytest.mark.parametrize("score_map", ["exp", pytest.param("softplus", marks=pytest.mark.nightly)])
def test_scores_far_from_zero(score_map: str, score: float) -> None:
    """In float32, exp neither overflows nor has a slope above its cap; no gradient is infinite."""
    ones = np.ones((1, 1, 40, 40), np.float32)
    value = np.random.default_rng(0).normal(size=(1, 1, 40, 70)).astype(np.float32)
    embedding = np.full((1, 3, 40), score / 40, np.float32)
    inputs = {"query": ones, "key": ones, "value": value, "relative_embedding": embedding}
    scores = {"score_map": score_map, "relative_query": "raw"}
    output, gradients = passes(inputs, **RECURRENT, **scores)
    truth = reference.relative_linear_attention(*inputs.values(), CAUSAL, **scores)
    assert_allclose(output, truth, rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(x).all() for x in gradients.values())
    if score_map == "exp" and score > 60:
        assert not gradients["relative_embedding"].any()


def test_one_state_takes_many_steps_unchanged() -> None:
    """A state is never written to: two continuations of one prefix do not disturb each other."""
    inputs = drawn(6, 2)
    *_, state = relative.forward(**inputs, **RECURRENT)
    kept = [x.copy() for x in state]
    token = [inputs[name][:, :, 0] for name in ("query", "key", "value")]
    first = relative.step(*token, inputs["relative_embedding"], state)
    second = relative.step(*token, inputs["relative_embedding"], state)
    for x, y in zip((first[0], *first[1]), (second[0], *second[1]), strict=True):
        assert_array_equal(x, y)
    for x, y in zip(state, kept, strict=True):
        assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["forward", "step"])
def test_more_than_256_features_are_refused(name: str) -> None:
    """The kernel of a token has no room for them."""
    features, embedding = np.ones((1, 1, 4, 300)), np.ones((1, 3, 300))
    token = (features[:, :, 0], None) if name == "step" else (features,)
    more = {} if name == "step" else RECURRENT
    with pytest.raises(ValueError, match="head dim is 300, but kernels hold at most 256"):
        getattr(relative, name)(*token[:1] * 3, embedding, *token[1:], **more)


def state_of(k: int) -> RelativeState:
    """An empty state for distances up to k."""
    inputs = drawn(4, k)
    return empty_state(N, inputs["key"], inputs["value"], k)


test_refusals = refusals(
    ({"relative_embedding": np.ones((H, 4, E))},
     "relative.forward: relative_embedding must have an odd number of rows, 2k + 1 for the"),
    ({"algorithm": "linear"}, "linear attention in both directions is not causal"),
    ({"visible": EVERYTHING}, "a recurrence goes from left to right and needs causal=True"),
    ({"initial_state": state_of(2)},
     "relative.forward: initial_state.recent must have the shape (N=2, H=2, k=3, M="),
    ({"initial_state": state_of(3), "visible": Visible(True, -1)}, "query_offset must be"),
    ({"initial_state": state_of(3), "algorithm": "naive"},
     "initial_state needs a causal algorithm, 'recurrent' or 'chunked'"),
    ({"score_map": "relu"}, "score_map must be one of ['exp', 'identity', 'softplus'], got 'relu'"),
    ({"relative_query": "key"}, "relative_query must be one of ['feature', 'raw'], got 'key'"),
    of=lambda **changes: relative.forward(**{**drawn(4, 3), **RECURRENT, **changes}),
)  # fmt: skip

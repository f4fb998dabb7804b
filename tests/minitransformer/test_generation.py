"""Decoding: it finds what the whole forward finds, chooses as told, and knows when to stop."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import manual_seed, nn, no_grad
from minitransformer.generation import Sampler, generate, greedy
from tests.cases import Array
from tests.refusals import refusals

from .models import language_model, some_tokens, translator

ATTENTIONS = pytest.mark.parametrize("attention", nn.attention_names())


def greedily(model: Any, prompt: Array, count: int, *source: Any) -> Array:
    """The likeliest continuation, by passing the whole sequence anew for every token."""
    tokens = prompt
    with no_grad():
        for _ in range(count):
            logits = model(*source[:1], tokens, *source[1:]).numpy()
            tokens = np.concatenate([tokens, logits[:, -1:].argmax(-1)], axis=1)
    return tokens[:, prompt.shape[1] :]


@ATTENTIONS
def test_greedy_decoding_equals_whole_forwards(attention: str) -> None:
    manual_seed(1)
    prompt, source, lengths = some_tokens(2, 3), some_tokens(2, 5), [5, 2]
    speaker = language_model(attention=attention)
    np.testing.assert_array_equal(generate(speaker, prompt, 30), greedily(speaker, prompt, 30))
    model = translator(attention=attention)
    new = generate(model, prompt, 30, source=source, source_lengths=lengths)
    np.testing.assert_array_equal(new, greedily(model, prompt, 30, source, lengths))


@ATTENTIONS
def test_a_source_in_a_padded_batch_decodes_as_if_alone(attention: str) -> None:
    manual_seed(2)
    model, source = translator(attention=attention), some_tokens(2, 6)
    together = generate(model, [[0], [0]], 12, source=source, source_lengths=[6, 3])
    alone = generate(model, [[0]], 12, source=source[1:, :3])
    np.testing.assert_array_equal(together[1:], alone)


def test_decoding_switches_dropout_off_and_back_on() -> None:
    model = language_model(dropout=0.5)
    assert model.training
    first, second = (generate(model, [[1, 2]], 20) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in model.eval().modules())
    generate(model, [[1]], 1)
    assert not model.training
    frozen = next(child for _, child in model.train().named_children())
    frozen.eval()
    generate(model, [[1]], 1)
    assert model.training and not frozen.training


def test_after_its_end_token_a_sequence_holds_only_end_tokens() -> None:
    script = iter(np.array([[5, 3], [9, 3], [4, 4], [4, 9], [1, 1]]))
    options = {"choose": lambda logits: next(script), "end_token": 9}
    new = generate(language_model(), [[0], [0]], 10, **options)
    np.testing.assert_array_equal(new, [[5, 9, 9, 9], [3, 3, 4, 9]])


def test_no_new_tokens_are_no_tokens() -> None:
    assert generate(language_model(), [[0], [1]], 0).shape == (2, 0)


LOGITS = np.log(np.array([[0.1, 0.4, 0.2, 0.05, 0.25]]))


@pytest.mark.parametrize(
    ("options", "probabilities"),
    [
        ({}, [0.1, 0.4, 0.2, 0.05, 0.25]),
        ({"temperature": 0.5}, np.array([1, 16, 4, 0.25, 6.25]) / 27.5),
        ({"top_k": 2}, [0, 0.4 / 0.65, 0, 0, 0.25 / 0.65]),
        ({"top_k": 99}, [0.1, 0.4, 0.2, 0.05, 0.25]),
        ({"top_p": 0.5}, [0, 0.4 / 0.65, 0, 0, 0.25 / 0.65]),
        ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.9, "top_k": 3}, [0, 0.4 / 0.85, 0.2 / 0.85, 0, 0.25 / 0.85]),
    ],
    ids=str,
)
def test_samples_have_the_probabilities_asked_for(options: Any, probabilities: Any) -> None:
    draws = 20_000
    chosen = Sampler(**options, seed=0)(np.repeat(LOGITS, draws, axis=0))
    measured = np.bincount(chosen, minlength=5) / draws
    np.testing.assert_allclose(measured, probabilities, atol=0.015)
    np.testing.assert_array_equal(measured > 0, np.asarray(probabilities) > 0)


@given(st.integers(1, 6), st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_the_coldest_samples_are_greedy(batch: int, tokens: int, seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((batch, tokens)).astype(np.float32)
    np.testing.assert_array_equal(Sampler(top_k=1, seed=seed)(logits), greedy(logits))
    np.testing.assert_array_equal(Sampler(1e-6, seed=seed)(logits), greedy(logits))


def test_enormous_logits_are_sampled_too() -> None:
    assert Sampler(seed=0)(np.array([[1e30, -1e30, 0.0]], np.float32)).tolist() == [0]
    assert Sampler(top_k=1, seed=0)(np.array([[0, 200]], np.uint8)).tolist() == [1]


def test_a_seed_repeats_the_samples() -> None:
    model = language_model()
    first, second, other = (
        generate(model, [[1]], 20, choose=Sampler(seed=seed)) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_without_a_seed_samples_come_from_the_engines_generator() -> None:
    model = language_model()
    runs = []
    for _ in range(2):
        manual_seed(5)
        runs.append(generate(model, [[1]], 20, choose=Sampler()))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_decoding_on_a_device(device: str) -> None:
    model = translator(attention="linear").to(device)
    source = some_tokens(2, 5)
    new = generate(model, [[0], [0]], 5, source=source, choose=Sampler(seed=0))
    assert isinstance(new, np.ndarray) and new.shape == (2, 5)


test_refusals = refusals(
    (lambda: Sampler(temperature=0.0),
     "Sampler: temperature must be a finite number above 0, got 0.0; for the likeliest"),
    (lambda: Sampler(temperature="a"), TypeError, "Sampler: temperature must be a finite number"),
    (lambda: Sampler(top_k=0), "Sampler: top_k, unless None, must be at least 1, got 0"),
    (lambda: Sampler(top_p=0.0), "Sampler: top_p must be in (0, 1], got 0.0; 1"),
    (lambda: Sampler(seed=-1), "Sampler: seed, unless None, must be at least 0, got -1"),
    (lambda: greedy(np.array([[1.0, np.nan]])), "greedy: 1 of 2 logits are NaN, so that no token"),
    (lambda: Sampler()(np.array([[np.nan, 1.0]])), "Sampler: 1 of 2 logits are NaN"),
    (lambda: Sampler()(np.ones(2)), "Sampler: logits must have the shape (N, V), got (2,)"),
    (lambda: generate(language_model(), [1, 2], 3),
     "generate: prompt must have the shape (N, P) with N and P at least 1, got (2,); sta"),
    (lambda: generate(language_model(), [[]], 3),
     "generate: prompt must have the shape (N, P) with N and P at least 1, got (1, 0); s"),
    (lambda: generate(language_model(), [[1.0]], 3), TypeError,
     "generate: prompt must be integers, got float64"),
    (lambda: generate(language_model(), [[1]], -3),
     "generate: max_new_tokens must be at least 0, got -3"),
    (lambda: generate(language_model(), [[1]], 3, end_token=1.0), TypeError,
     "generate: end_token, unless None, must be a whole number, got 1.0"),
    (lambda: generate(language_model(), [[1]], 3, choose=lambda logits: [1, 2]),
     "generate: choose must return a token for each of 1 sequences, integers (1,), got int64 (2,)"),
    (lambda: generate(language_model(), [[1]], 3, source_lengths=[1]), TypeError,
     "generate: source is for a Transformer"),
    (lambda: generate(translator(), [[1]], 3, source=[[1], [2]]),
     "generate: source must have the shape (N=1, Ls), as many as there are prompts, got (2, 1)"),
    (lambda: generate(nn.Linear(1, 1), [[1]], 3), TypeError,
     "generate: expected a Transformer or a TransformerLM, got Linear"),
    (lambda: language_model().step([[1]], None), TypeError,
     "TransformerLM.step: expected the DecoderState that TransformerLM.init_state() or an earlier"),
    (lambda: language_model(num_layers=2).step([[1]], language_model(num_layers=1).init_state()),
     "TransformerEncoder.step: expected the states of 2 layers, got 1"),
    (lambda: language_model(attention="linear").step([[1]], language_model().init_state()),
     TypeError, "LinearAttention.step: expected the Decoding that LinearAttention.init_state()"),
    (lambda: generate(language_model(), [[1]], 3, source=[[1]]), TypeError,
     "generate: source is for a Transformer, which has an encoder; give a TransformerLM"),
    (lambda: generate(translator(), [[1]], 3), TypeError,
     "generate: a Transformer needs a source (N, Ls) for its encoder, got None"),
)  # fmt: skip

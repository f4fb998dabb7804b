"""Nothing that was read is held out, baselines are what they are called, claims are computed."""

import lzma
import math
from typing import Any

import numpy as np
import pytest

from minitransformer.experiments import language
from minitransformer.experiments.language import (
    BASELINES,
    MODELS,
    LanguageTask,
    Text,
    by_model,
    compressed_bits,
    gain,
    known,
    ngram_bits,
    once,
    report,
    split,
    text,
)

RNG = np.random.default_rng(3)
TASK = LanguageTask("none", context=24, width=32, heads=2, layers=1)


def test_what_is_held_out_was_not_read() -> None:
    parts = text()
    whole = parts.train + parts.held_out
    assert len(whole) > 100_000
    assert abs(len(parts.held_out) / len(whole) - 0.1) < 1e-3
    paragraphs = [" ".join(paragraph.split()) for paragraph in whole.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert known(parts) < 0.1


def test_spans_that_are_known_are_counted() -> None:
    assert known(Text("abcdef", "bcdxyz"), span=3) == 1 / 4
    assert known(split(10 * "abcdefghij"), span=3) == 1.0
    assert once(["a\n\nb", "b\n\na\n\nc"]) == "a\n\nb\n\nc"


def test_unigrams_are_shares_of_characters() -> None:
    """8 characters of 2 kinds: each share is mixed with a guess, as Witten and Bell have it."""
    share = {"a": (6 + 2 / 2) / 10, "b": (2 + 2 / 2) / 10}
    expected = -np.mean([math.log2(share[character]) for character in "aab"])
    assert ngram_bits(Text("aabaaaba", "aab"), 1) == pytest.approx(expected)


def test_bigrams_know_what_comes_before() -> None:
    parts = Text("ab" * 500, "ab" * 50)
    assert ngram_bits(parts, 1) == pytest.approx(1, abs=0.01)
    assert ngram_bits(parts, 2) < 0.05


def test_characters_at_random_need_all_their_bits() -> None:
    drawn = "".join(RNG.choice(list("abcdefgh"), 40_000))
    parts = split(drawn)
    assert ngram_bits(parts, 1) == pytest.approx(3, abs=0.01)
    assert compressed_bits(parts, lzma.compress) > 3
    assert compressed_bits(Text(drawn, drawn[:10_000]), lzma.compress) < 0.1


def test_windows_are_of_the_training_text_alone() -> None:
    generator = np.random.default_rng(0)
    windows = TASK.draw(generator, 500)
    assert windows.shape == (500, 25)
    alphabet = text().alphabet
    for window in windows[:20]:
        assert "".join(alphabet[token] for token in window) in text().train


def test_bits_are_those_of_every_next_character() -> None:
    """A model that knows the character before alone, at any place of any window."""
    logits = RNG.standard_normal((9, 9)).astype(np.float32)
    tokens = RNG.integers(0, 9, 24 * 5 + 1)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log2(shares[tokens[:-1], tokens[1:]]).mean()
    model: Any = lambda read: language.Tensor(logits[read])  # noqa: E731
    for batch in (1, 2, 5, 64):
        assert TASK.held_out_bits(model, tokens, batch) == pytest.approx(expected, rel=1e-5)


def rows(**changed: list[float]) -> list[dict[str, Any]]:
    """Return a record whose bits are 2, but for those of the models that are named."""
    bits = {f"{a}_{p}": [2.0, 2.01, 2.02] if a in ("linear", "relative") else [2.0]
            for a, p in MODELS}  # fmt: skip
    trained = [
        {"attention": a, "positions": p, "seed": seed, **language.SIZES["default"],
         "parameters": 1, "curve": [(9, 4.0, 1.0), (18, value, 2.0)], "samples": ["x"]}
        for a, p in MODELS for seed, value in enumerate({**bits, **changed}[f"{a}_{p}"])
    ]  # fmt: skip
    about = {"about": "text", "raw": 3, "train": 2, "held_out": 1, "known": 0, "known_raw": 0.5}
    return [about, *({"baseline": name, "bits": 1.0} for name in BASELINES), *trained]


def test_gains_are_taken_seed_by_seed() -> None:
    found = by_model(rows(linear_learned=[1.0, 1.51, 1.52]))
    assert gain(found, "linear") == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_the_verdicts_follow_the_rows() -> None:
    nothing = report(rows()).text
    assert "relative ones.* *Supported*." in nothing
    assert "quality of softmax.* *Supported*." in nothing
    assert "beats\nnothing" in nothing or "beats nothing" in nothing
    gained = report(rows(relative_learned=[1.9, 1.91, 1.92], softmax_learned=[1.5])).text
    assert "relative ones.* *Not supported*." in gained
    assert "Beside Shaw's they save 0.100" in gained
    assert "quality of softmax.* *Not supported*." in gained

"""The measure of a memory: its sequences ask for what they gave, and it tells memories apart."""

from itertools import islice

import numpy as np

from minitransformer.attention import linear_attention, softmax_attention
from minitransformer.course.recall import (
    KEYS,
    PAIRS,
    VALUES,
    Row,
    earlier,
    pages,
    recall,
    rewritten,
    scoreboard,
    sequences,
)


def test_every_key_is_given_once_and_asked_for_once():
    pairs = next(sequences(np.random.default_rng(0)))
    assert pairs.keys.max() < KEYS and pairs.values.max() < VALUES
    for keys, values, asked, answers in zip(*pairs, strict=True):
        given = dict(zip(keys.tolist(), values.tolist(), strict=True))
        assert len(given) == PAIRS
        assert given == dict(zip(asked.tolist(), answers.tolist(), strict=True))
        assert (keys != asked).any()


def test_what_stood_earlier_is_asked_for():
    symbols = next(earlier(3, np.random.default_rng(0)))
    assert symbols.asked.shape == symbols.answers.shape == (16, PAIRS)
    for i in range(PAIRS):
        np.testing.assert_array_equal(symbols.keys[:, i + 3], symbols.asked[:, i])
        np.testing.assert_array_equal(symbols.values[:, i], symbols.answers[:, i])


def test_every_key_is_given_twice_and_the_last_value_counts():
    pairs = next(rewritten(np.random.default_rng(0)))
    assert pairs.keys.shape == pairs.values.shape == (16, PAIRS)
    changed = 0
    for keys, values, asked, answers in zip(*pairs, strict=True):
        first, last = np.split(keys, 2)
        assert sorted(first) == sorted(last) == sorted(asked) and len(set(first)) == PAIRS // 2
        given = dict(zip(keys.tolist(), values.tolist(), strict=True))  # a later one replaces
        assert given == dict(zip(asked.tolist(), answers.tolist(), strict=True))
        old = dict(zip(first.tolist(), values.tolist(), strict=False))
        changed += sum(old[key] != given[key] for key in given)
    assert changed / pairs.asked.size > 0.8


def test_what_stands_before_the_mark_is_void():
    batches, lengths = pages(np.random.default_rng(0)), set()
    for page in islice(batches, 40):
        lengths.add(page.keys.shape[1])
        for keys, values, asked, answers in zip(*page, strict=True):
            (mark,) = np.flatnonzero(keys == KEYS - 1)
            now = dict(zip(keys[mark + 1 :].tolist(), values[mark + 1 :].tolist(), strict=True))
            assert len(now) == PAIRS // 2 and set(keys[:mark].tolist()) < set(now)
            assert now == dict(zip(asked.tolist(), answers.tolist(), strict=True))
    assert min(lengths) == 8 + 17 and max(lengths) == 15 + 17


def test_what_looks_at_every_key_recalls_and_a_small_state_forgets():
    exact = recall(softmax_attention, width=8)
    small = recall(linear_attention, width=8)
    assert exact > 0.95
    assert 1 / VALUES < small < 0.8
    assert recall(linear_attention, width=8) == small


def test_who_ignores_the_values_guesses():
    assert recall(lambda query, key, value: query, width=8, steps=20) < 0.15


def test_the_scoreboard_is_a_table(capsys):
    scoreboard(Row("softmax", 1024, 1024, 0.5))
    assert capsys.readouterr().out.splitlines()[-1].split() == ["softmax", "1024", "1024", "50%"]

"""Six tokens: attention as loops and as arrays, and several heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer_kernels import reference

from ..exercise import Array, Case, Exercise, Random, Wrong, left_alone, without_loops


def _inputs(
    random: Random, *lead: int, queries: int, keys: int, loud: float = 1, width: int = 4
) -> dict[str, Any]:
    sizes = {"query": (queries, width), "key": (keys, width), "value": (keys, 3)}
    inputs = {name: random.standard_normal((*lead, *size)) for name, size in sizes.items()}
    inputs["query"] *= loud
    return inputs


def _loops(random: Random) -> Iterator[Case]:
    for name, queries, keys, width, loud, hint in (
        ("one key", 2, 1, 4, 1, "with one key its weight is 1, whatever the score"),
        ("six tokens", 6, 6, 4, 1, "is the score divided by the root of E, the weight by the sum?"),
        ("more keys than queries", 3, int(random.integers(5, 9)), 4, 1,
         "which loops run over queries, and which over keys?"),
        ("wider keys", 4, 6, 5, 1, "E is 5 here: by what is a score divided?"),
        ("large scores", 4, 5, 4, 3000, "take the largest score of the row away before the exp"),
    ):  # fmt: skip
        inputs = _inputs(random, queries=queries, keys=keys, loud=loud, width=width)
        yield Case(name, inputs, hint)


def _one_head(query: Array, key: Array, value: Array) -> Array:
    return reference.softmax_attention(query[None, None], key[None, None], value[None, None])[0, 0]


def _arrays(random: Random) -> Iterator[Case]:
    length = int(random.integers(5, 9))
    causal = np.tril(np.ones((length, length), bool))
    blind = random.random((4, 5)) < 0.6
    blind[:, 0], blind[2] = True, False
    far = np.ones((3, 6), bool)
    for name, lead, seen, loud, hint in (
        ("one token", (1, 1), np.ones((1, 1), bool), 1, "the answer is the value"),
        ("causal", (2, 3), causal, 1, "masked scores are out before the sum, not after"),
        ("a query that sees nothing", (1, 2), blind, 1,
         "row 2 sees no key: its largest score is -inf, and its sum is 0"),
        ("large scores", (1, 2), far, 3000, "each row has a largest score of its own"),
    ):  # fmt: skip
        queries, keys = seen.shape
        inputs = _inputs(random, *lead, queries=queries, keys=keys, loud=loud)
        yield Case(name, inputs | {"seen": seen}, hint)
    inputs = _inputs(random, 1, 1, queries=2, keys=3)
    inputs["query"][..., 0], inputs["key"][..., 2, :] = 1, (2000, 0, 0, 0)  # a score of 1,000
    inputs["seen"] = np.array([[True, True, False]] * 2)
    yield Case("a large score that is masked", inputs, "the largest score of a row is the largest "
               "of those that its query sees")  # fmt: skip
    inputs = _inputs(random, 8, 16, queries=70, keys=80)
    inputs["seen"] = random.random((70, 80)) < 0.5
    yield Case("128 heads", inputs, "does it hold for any number of heads and tokens?")


def _masked(query: Array, key: Array, value: Array, seen: Array) -> Array:
    return reference.softmax_attention(query, key, value, near=seen)


def _splits(random: Random) -> Iterator[Case]:
    for name, batch, length, heads, width, hint in (
        ("one head", 1, 3, 1, 2, "one head gets all columns"),
        ("two heads", 1, 3, 2, 2, "head 0 gets the first half of every token's numbers"),
        ("a batch", 2, 5, 3, int(random.integers(2, 5)), "is the batch still the first axis?"),
        ("as many heads as tokens", 2, 4, 4, 3, "shapes cannot tell H from L here; indices can"),
    ):
        x = random.standard_normal((batch, length, heads * width))
        yield Case(name, {"x": x, "heads": heads}, hint)


def _bands(x: Array, heads: int) -> Array:
    return np.stack(np.split(x, int(heads), axis=2), axis=1)


EXERCISES = (
    Exercise(
        "attend", "attend", 2, _loops, _one_head, tolerance=1e-9, run=left_alone,
        wrong=(
            Wrong("not divided by the sum", {"terms[j] / d": "terms[j]"}, "six tokens"),
            Wrong("scores are not divided by the root of E", {" / E**0.5": ""}, "six tokens"),
            Wrong("divided by 2, whatever E is", {"E**0.5": "2"}, "wider keys"),
            Wrong("written to the query", {"    for i in range(len(query)):\n":
                  "    query /= E**0.5\n    for i in range(len(query)):\n", "key[j] / E**0.5":
                  "key[j]"}, "one key"),
            Wrong("divided by E, not by its root", {"E**0.5": "E"}, "six tokens"),
            Wrong("keys are counted by the queries", {
                  "E**0.5 for j in range(len(key))": "E**0.5 for j in range(len(query))"},
                  "one key"),
            Wrong("the largest score is not taken away", {"s_j - max(s)": "s_j"}, "large scores"),
        ),
    ),
    Exercise(
        "attend-arrays", "attend_arrays", 3, _arrays, _masked, tolerance=1e-9, run=without_loops,
        wrong=(
            Wrong("no mask", {"np.where(seen, s, -np.inf)": "s"}, "causal"),
            Wrong("scores are not divided by the root of E", {" / query.shape[-1] ** 0.5": ""},
                  "causal"),
            Wrong("masked scores are large negative numbers: who sees nothing sees all",
                  {"-np.inf": "-1e9"}, "a query that sees nothing"),
            Wrong("masked scores are set to 0", {"-np.inf": "0"}, "causal"),
            Wrong("masked keys count in the sum d", {"terms.sum(axis=-1, keepdims=True)":
                  "np.exp(query @ key.swapaxes(-1, -2) / 2 - h).sum(axis=-1, keepdims=True)"},
                  "causal"),
            Wrong("minus infinity is taken from itself", {"np.where(np.isfinite(h), h, 0)": "h"},
                  "a query that sees nothing"),
            Wrong("0 is divided by 0",
                  {"np.where(d == 0, 1, d)": "d"}, "a query that sees nothing"),
            Wrong("the largest score of a row may be a masked one", {
                  "h = s.max(axis=-1, keepdims=True)": "",
                  "s = np.where(seen": "h = s.max(axis=-1, keepdims=True)\n"
                  "    s = np.where(seen"}, "a large score that is masked"),
            Wrong("one largest score for all rows", {"s.max(axis=-1, keepdims=True)": "s.max()"},
                  "large scores"),
            Wrong("a loop over heads", {"s = query @ key.swapaxes(-1, -2)":
                  "s = np.array([[q @ k.T for q, k in zip(*x)] for x in zip(query, key)])"},
                  "128 heads"),
            Wrong("a loop over queries", {"terms @ value":
                  "np.stack([terms[..., i, :][..., None, :] @ value for i in range(len(seen))], "
                  "axis=2)[..., 0, :]"}, "128 heads"),
        ),
    ),
    Exercise(
        "split-heads", "split_heads", 2, _splits, _bands, tolerance=1e-12,
        wrong=(
            Wrong("reshaped, but no axes swapped",
                  {"x.reshape(N, L, heads, -1)": "x.reshape(N, heads, L, -1)",
                  "x.transpose(0, 2, 1, 3)": "x"}, "two heads"),
            Wrong("a head gets every other column",
                  {"x.reshape(N, L, heads, -1)": "x.reshape(N, L, -1, heads)",
                  "(0, 2, 1, 3)": "(0, 3, 1, 2)"}, "two heads"),
            Wrong("the batch is not the first axis any more",
                  {"(0, 2, 1, 3)": "(2, 0, 1, 3)"}, "two heads"),
            Wrong("tokens and heads are not swapped", {"x.transpose(0, 2, 1, 3)": "x"}, "one head"),
        ),
    ),
)  # fmt: skip

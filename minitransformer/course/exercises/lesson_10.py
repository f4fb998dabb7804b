"""Distances: far sums, the gradients of embeddings, a step of decoding, and the kernel of a row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ..exercise import (
    Array,
    Case,
    Exercise,
    Random,
    Wrong,
    in_bytes,
    in_lines,
    launched,
    left_alone,
    without_loops,
)

THREADS = 32  # of a block of the rows
LONG = 2000  # tokens of a text whose pairs would be seen in memory


def _distances(length: int) -> Array:
    """All j - i."""
    i = np.arange(length)
    return i - i[:, None]


def _in_memory_of(length: int, numbers: int) -> Any:
    """Hold the arrays of a long text against so many numbers a token."""
    return partial(in_bytes, 8 * length * numbers, "does one of them hold all pairs of tokens?")


def _texts(random: Random) -> Iterator[Case]:
    for name, length, k, hint in (
        ("six tokens", 6, 2, "which key is the last one in A, which the first in C?"),
        ("k = 0", 5, 0, "token i itself belongs to A, not to C"),
        ("k beyond the text", 4, 7, "no key is so far away"),
        ("anything", int(random.integers(20, 30)), int(random.integers(3, 9)), "see the others"),
        ("a long text", LONG, 5, "running sums need no loop, and no pairs"),
    ):
        yield Case(name, {"v": random.standard_normal((length, 3)), "k": k}, hint)


def _from_sums(answer: Any, v: Array, k: int) -> Any:
    looped = partial(without_loops, answer)
    return _in_memory_of(len(v), 120)(looped, v, k) if len(v) == LONG else looped(v, k)


def _far(v: Array, k: int) -> tuple[Array, Array]:
    """By all pairs."""
    r = _distances(len(v))
    return (r <= -k) @ v, ((r >= k) & (r > -k)) @ v


def _scores(random: Random) -> Iterator[Case]:
    for name, length, k, hint in (
        ("six tokens", 6, 2, "compare with (9) to (12), line by line"),
        ("k = 0", 5, 0, "there is one distance: the first column is the last one, too"),
        ("k beyond the text", 4, 6, "some distances have no pair: their part is zero"),
        ("anything", int(random.integers(20, 30)), int(random.integers(3, 7)), "see the others"),
        ("a long text", LONG, 3, "a turn of the loop for a distance, not for a token"),
    ):
        gn, v = random.standard_normal((2, length, 3))
        u, e = random.uniform(0.1, 2, (length, 4)), random.standard_normal((2 * k + 1, 4))
        yield Case(
            name,
            {
                "gn": gn, "gd": random.standard_normal(length),
                "F": random.uniform(0.1, 3, (length, 2 * k + 1)), "u": u, "e": e, "v": v,
            },
            hint,
        )  # fmt: skip


def _by_distance(answer: Any, gn: Array, gd: Array, F: Array, u: Array, e: Array, v: Array) -> Any:
    lines = 100 + 20 * F.shape[1]
    told = f"one loop over {F.shape[1]} distances needs fewer"
    looped = partial(left_alone, partial(in_lines, lines, told, answer))
    tried = _in_memory_of(len(v), 200) if len(v) == LONG else lambda f, *inputs: f(*inputs)
    return tried(looped, gn, gd, F, u, e, v)


def _gradients(gn: Array, gd: Array, F: Array, u: Array, e: Array, v: Array) -> tuple[Array, ...]:
    """By all pairs."""
    k = F.shape[1] // 2
    r = np.clip(_distances(len(v)), -k, k)
    ds = gn @ v.T + gd[:, None]
    dF = np.stack([np.where(r == at, ds, 0).sum(axis=1) for at in range(-k, k + 1)], axis=1)
    dB = dF * (1 - np.exp(-F))
    return dB @ e, dB.T @ u


def _tokens(random: Random) -> Iterator[Case]:
    k = int(random.integers(3, 6))
    for name, window, length, hint in (
        ("the first token", k, 0, "one key has been: this one, at distance 0"),
        ("a window half full", k, 2, "zeros in the window are no keys: they do not count"),
        ("the window gets full", k, k - 1, "nothing falls out yet"),
        ("the first value falls out", k, k, "the oldest value of the window is at -k now"),
        ("a long past", k, int(random.integers(50, 90)), "how many keys are in the tail?"),
        ("k = 0", 0, int(random.integers(3, 9)), "every value falls out at once"),
    ):
        recent = random.standard_normal((window, 4))
        recent[: max(0, window - length)] = 0
        tail = random.standard_normal(4) if length > window else np.zeros(4)
        yield Case(
            name,
            {
                "F": random.uniform(0.1, 2, window + 1), "v": random.standard_normal(4),
                "tail": tail, "recent": recent, "length": length,
            },
            hint,
        )  # fmt: skip


def _stepped(
    F: Array, v: Array, tail: Array, recent: Array, length: int
) -> tuple[Array, float, Array, Array]:
    """Key by key, by its distance before it falls."""
    k, n, d = len(recent), F[0] * tail, F[0] * max(length - len(recent), 0)
    known = [*recent, v]  # at the distances -k to 0
    for r in range(-min(k, length), 1):
        n, d = n + F[r + k] * known[r + k], d + F[r + k]
    after = np.array(known[1:]).reshape(k, len(v))
    return n, d, tail + known[0], after


def _rows(random: Random) -> Iterator[Case]:
    for name, heads, length, k, hint in (
        ("one token", 1, 1, 1, "only thread 0 has a row; its one key is near"),
        ("two heads", 2, 6, 2, "which keys are near to row 3, and what is left and right of them?"),
        ("k beyond the text", 1, 4, 6, "all keys are near: where does the walk end?"),
        ("more than a block", 2, int(random.integers(50, 80)), 3, "rows count on over blocks"),
        ("a long text", 1, 150, 2, "far keys come from P, whatever their number"),
    ):
        F = random.uniform(0.1, 2, (heads, length, 2 * k + 1)).astype(np.float32)
        v = random.standard_normal((heads, length, 3), np.float32)
        P = np.zeros((heads, length + 1, 3), np.float32)
        P[:, 1:] = v.cumsum(axis=1, dtype=np.float64)
        yield Case(name, {"F": F, "v": v, "P": P}, hint)


def _launch(answer: Any, F: Array, v: Array, P: Array) -> Array:
    heads, length, M = v.shape
    grid = -(-length // THREADS), heads
    most = 2 * M * (2 * F.shape[2] + 5) if length > 100 else None
    return launched(answer, grid, THREADS, F, v, P, out=v.shape, share=M, reads=most)


def _numerators(F: Array, v: Array, P: Array) -> Array:
    """By all pairs."""
    k = F.shape[2] // 2
    row = np.clip(_distances(v.shape[1]), -k, k) + k
    s = np.take_along_axis(F.astype(np.float64), np.broadcast_to(row, (len(F), *row.shape)), 2)
    return s @ v.astype(np.float64)


EXERCISES = (
    Exercise(
        "far-sums", "far_sums", 3, _texts, _far, ("A", "C"), 1e-9, _from_sums,
        wrong=(
            Wrong("the key at distance -k is not in A", {"i - k + 1, 0": "i - k, 0"},
                  "six tokens"),
            Wrong("the key at distance k is not in C",
                  {"np.maximum(i + k, i - k + 1)": "i + k + 1"}, "six tokens"),
            Wrong("a near key, at distance 1 - k, is in A, too", {"i - k + 1, 0": "i - k + 2, 0"},
                  "six tokens"),
            Wrong("a near key, at distance k - 1, is in C, too",
                  {"np.maximum(i + k, i - k + 1)": "i + k - 1"}, "six tokens"),
            Wrong("before the first token, an index below zero counts from the end",
                  {"np.maximum(i - k + 1, 0)": "i - k + 1"}, "six tokens"),
            Wrong("C is the sum of what comes before it", {"P[-1] - P[c]": "P[c]"},
                  "six tokens"),
            Wrong("A and C are exchanged", {"P[a], P[-1] - P[c]": "P[-1] - P[c], P[a]"},
                  "six tokens"),
            Wrong("with k = 0 a token is in both", {"np.maximum(i + k, i - k + 1)": "i + k"},
                  "k = 0"),
            Wrong("a loop over tokens", {"    return P[a]":
                  "    P[1:] = [v[:n].sum(axis=0) for n in range(1, len(P))]\n    return P[a]"},
                  "a long text"),
            Wrong("all pairs at once", {"    return P[a]":
                  "    P[1:] = np.tri(len(v)) @ v\n    return P[a]"}, "a long text"),
        ),
    ),
    Exercise(
        "embedding-gradient", "embedding_gradient", 4, _scores, _gradients, ("du", "de"), 1e-9,
        _by_distance,
        wrong=(
            Wrong("the far keys' gd is forgotten", {"(G * A).sum": "(G * A)[:, :-1].sum"},
                  "six tokens"),
            Wrong("gd is left out", {"np.column_stack([gn, gd])": "np.column_stack([gn, 0 * gd])"},
                  "six tokens"),
            Wrong("the ends are in the band, too", {"range(1 - k, k)": "range(-k, k + 1)"},
                  "six tokens"),
            Wrong("queries and keys are exchanged",
                  {"G[i] * V[i + r]": "G[i + r] * V[i]"}, "six tokens"),
            Wrong("the slope of f is forgotten", {"dF * -np.expm1(-F)": "dF"}, "six tokens"),
            Wrong("the slope is of the wrong side, exp(-F)",
                  {"-np.expm1(-F)": "np.exp(-F)"}, "six tokens"),
            Wrong("C is at distance -k, and A at k", {"A, C = far": "C, A = far"}, "six tokens"),
            Wrong("with k = 0 the second end overwrites the first",
                  {"dF[:, -1] += ": "dF[:, -1] = "}, "k = 0"),
            Wrong("all pairs at once", {"    dB = ": "    G @ V.T\n    dB = "}, "a long text"),
        ),
    ),
    Exercise(
        "decode-step", "decode_step", 3, _tokens, _stepped,
        ("n", "d", "the next tail", "the next window"), 1e-9, left_alone,
        wrong=(
            Wrong("this token is not counted", {"length + 1": "length"}, "the first token"),
            Wrong("d counts what the window has not seen yet",
                  {"F[k + 1 - real :]": "F[1:]"}, "the first token"),
            Wrong("distances run the other way",
                  {"F[1:] @ recent": "F[:0:-1] @ recent"}, "the first token"),
            Wrong("the window's weights are one off", {"F[1:] @ recent": "F[:-1] @ recent"},
                  "the first token"),
            Wrong("the tail takes the new value, not the one that falls out",
                  {"tail + window[0]": "tail + window[-1]"}, "the first token"),
            Wrong("nothing falls into the tail", {"tail + window[0]": "tail"},
                  "the first value falls out"),
            Wrong("the tail counts as one key",
                  {"max(count - k, 0)": "min(max(count - k, 0), 1)"}, "a long past"),
            Wrong("the tail that was given is written to", {
                  "tail, recent = tail + window[0], window[1:]":
                  "recent = window[1:]\n    tail += window[0]"}, "the first value falls out"),
        ),
    ),
    Exercise(
        "distance-kernel", "distance_kernel", 4, _rows, _numerators, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if i < L:": "if True:"}, "one token"),
            Wrong("the head is forgotten", {", cuda.blockIdx.y": ", 0"}, "two heads"),
            Wrong("the far keys on the left are forgotten",
                  {"F[h, i, 0] * P": "0 * P"}, "two heads"),
            Wrong("the far keys on the right are forgotten",
                  {"P[h, L, m] - P": "P[h, high, m] - P"}, "two heads"),
            Wrong("the near keys end one early", {"range(low, high)": "range(low, high - 1)"},
                  "one token"),
            Wrong("distances run the other way", {"j - i + k": "i - j + k"}, "two heads"),
            Wrong("the walk goes on after the last key", {"min(i + k, L)": "i + k"}, "two heads"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("every key is met", {
                  "F[h, i, 0] * P": "0 * P", "P[h, L, m] - P": "P[h, high, m] - P",
                  "range(low, high)": "range(L)", "j - i + k": "min(max(j - i, -k), k) + k"},
                  "a long text"),
        ),
    ),
)  # fmt: skip

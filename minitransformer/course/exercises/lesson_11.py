"""Waves: a hand for each feature, cosFormer of them, gradients of frequencies, a row's kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minitransformer_kernels.fourier.reference import cosformer as cosformer_features

from ..exercise import (
    Array,
    Case,
    Exercise,
    Random,
    Wrong,
    launched,
    left_alone,
    without_loops,
    without_scores,
)

THREADS = 32  # of a block of the rows
NOW = 1.7e9  # seconds since 1970, some years ago


def _wave(random: Random, width: int, axes: int) -> dict[str, Array]:
    """Frequencies, phases and amplitudes."""
    return {
        "a": random.uniform(0.3, 2, (width, axes)),
        "b": random.uniform(-3, 3, width),
        "c": random.uniform(0.4, 0.9, width),
    }


def _sides(random: Random) -> Iterator[Case]:
    some, E, P = (int(size) for size in random.integers(3, 9, 3))
    for name, length, width, axes, hint in (
        ("six tokens", 6, 4, 1, "compare with (3) and (5): first all cosines, then all sines"),
        ("two points of a picture", 2, 2, 2, "an angle sums over a place's numbers: a_e . p_i"),
        ("places in a picture", 5, 3, 2, "see the one before"),
        ("anything", some, E, P, "see the others"),
        ("a long text", 300, 4, 1, "one matrix product has all angles"),
    ):
        q = random.uniform(0.1, 2, (length, width))
        p = random.uniform(0, 5, (length, axes))
        yield Case(name, {"q": q, "p": p, **_wave(random, width, axes)}, hint)


def _hands(q: Array, p: Array, a: Array, b: Array, c: Array) -> Array:
    """As complex numbers, a coordinate after the other."""
    hand = c * q * np.exp(1j * b)
    for axis in range(p.shape[1]):
        hand = hand * np.exp(1j * p[:, axis, None] * a[:, axis])
    return np.hstack([hand.real, hand.imag])


def _texts(random: Random) -> Iterator[Case]:
    for name, length, width, hint in (
        ("six tokens", 6, 4, "compare positions (0 to L - 1), a = pi / (2 L), b, c and (5)"),
        ("anything", int(random.integers(7, 20)), int(random.integers(2, 7)), "see the others"),
        ("a long text", 600, 3, "lesson 6: K.T @ value comes first"),
    ):
        query, key = random.standard_normal((2, length, width))
        query[:, 0], key[:, 0] = random.uniform(0.5, 2, (2, length))  # no query is all zeros
        value = random.standard_normal((length, 3))
        yield Case(name, {"query": query, "key": key, "value": value}, hint)


def _in_arrays(answer: Any, query: Array, key: Array, value: Array) -> Any:
    return without_scores(partial(without_loops, answer), query, key, value)


def _by_pairs(query: Array, key: Array, value: Array) -> Array:
    """By all pairs, of the paper's own features."""
    at = np.arange(len(query))
    s = cosformer_features(query, at, len(at)) @ cosformer_features(key, at, len(at)).T
    return s @ value / s.sum(axis=1, keepdims=True)


def _pulls(random: Random) -> Iterator[Case]:
    Lq, Lk, E, P = (int(size) for size in random.integers(3, 9, 4))
    for name, queries, keys, width, axes, start, hint in (
        ("six tokens", 6, 6, 4, 1, 0.0, "compare with (10) to (13), line by line"),
        ("places in a picture", 4, 7, 3, 2, 0.0, "da has a column for each number of a place"),
        ("anything", Lq, Lk, E, P, 0.0, "see the others"),
        ("seconds since 1970", 5, 5, 3, 1, NOW, "measure all positions from the first key"),
    ):
        q, k = (random.uniform(0.1, 2, (length, width)) for length in (queries, keys))
        p, r = (start + random.uniform(0, 5, (length, axes)) for length in (queries, keys))
        a, b, c = _wave(random, width, axes).values()
        t, u = b + p @ a.T, r @ a.T
        Q = np.hstack([c * q * np.cos(t), c * q * np.sin(t), q])
        K = np.hstack([k * np.cos(u), k * np.sin(u), k])
        ds = random.standard_normal((queries, keys))
        given = {"dQ": ds @ K, "dK": ds.T @ Q, "q": q, "k": k, "t": t, "u": u, "c": c}
        yield Case(name, {**given, "p": p, "r": r}, hint)


def _turned(
    dQ: Array, dK: Array, q: Array, k: Array, t: Array, u: Array, c: Array, p: Array, r: Array
) -> tuple[Array, Array, Array]:
    """As complex numbers, seen from the hand: along it, and across; from the middle of all keys."""
    E, middle = len(c), r.mean(axis=0)
    of_query = (dQ[:, :E] + 1j * dQ[:, E : 2 * E]) * np.exp(-1j * t) * q
    of_key = (dK[:, :E] + 1j * dK[:, E : 2 * E]) * np.exp(-1j * u) * k
    dt = c * of_query.imag
    da = np.einsum("ie,ip->ep", dt, p - middle) + np.einsum("je,jp->ep", of_key.imag, r - middle)
    return da, dt.sum(axis=0), of_query.real.sum(axis=0)


def _rows(random: Random) -> Iterator[Case]:
    for name, length, width, axes, start, hint in (
        ("one token", 1, 3, 1, 0.0, "compare with (3) and (5); only thread 0 has a row"),
        ("places in a picture", 5, 4, 2, 0.0, "an angle sums over the numbers of a place"),
        ("more than a block", int(random.integers(40, 70)), 2, 1, 0.0, "rows count on over blocks"),
        ("a million away", 6, 4, 1, 1e6, "whole turns go away in float64, before float32(angle)"),
    ):
        q = random.uniform(0.1, 2, (length, width)).astype(np.float32)
        p = start + random.uniform(0, 5, (length, axes))
        wave = _wave(random, width, axes)
        wave["c"] = wave["c"].astype(np.float32)
        yield Case(name, {"q": q, "p": p, **wave}, hint)


def _launch(answer: Any, q: Array, p: Array, a: Array, b: Array, c: Array) -> Array:
    rows, width = q.shape
    out = rows, 2 * width
    return launched(answer, -(-rows // THREADS), THREADS, q, p, a, b, c, out=out, share=2 * width)


EXERCISES = (
    Exercise(
        "fourier-features", "fourier_features", 3, _sides, _hands, ("Q",), 1e-9, without_loops,
        wrong=(
            Wrong("sines come first", {
                  "[c * q * np.cos(t), c * q * np.sin(t)]":
                  "[c * q * np.sin(t), c * q * np.cos(t)]"}, "six tokens"),
            Wrong("cosines and sines alternate", {"np.concatenate(Q, axis=1)":
                  "np.stack(Q, axis=2).reshape(len(q), -1)"}, "six tokens"),
            Wrong("the phase is forgotten", {"t = b + p": "t = p"}, "six tokens"),
            Wrong("the phase is one more position, and is multiplied by a",
                  {"b + p @ a.T": "b * a.sum(axis=1) + p @ a.T"}, "six tokens"),
            Wrong("the angle runs backwards", {"b + p": "b - p"}, "six tokens"),
            Wrong("a counts whole turns, not radians",
                  {"p @ a.T": "2 * np.pi * p @ a.T"}, "six tokens"),
            Wrong("the amplitude is forgotten", {"[c * q": "[q", ", c * q": ", q"}, "six tokens"),
            Wrong("only the cosine has the amplitude", {", c * q": ", q"}, "six tokens"),
            Wrong("the amplitude is in the angle",
                  {"t = b + p @ a.T": "t, c = c * (b + p @ a.T), 1"}, "six tokens"),
            Wrong("q is forgotten", {"[c * q": "[c", ", c * q": ", c"}, "six tokens"),
            Wrong("q is in the angle",
                  {"t = b + p @ a.T": "t, q = q * (b + p @ a.T), 1"}, "six tokens"),
            Wrong("the third part of (7) is there already",
                  {"c * q * np.sin(t)]": "c * q * np.sin(t), q]"}, "six tokens"),
            Wrong("only the first number of a place counts",
                  {"p @ a.T": "p[:, :1] @ a[:, :1].T"}, "two points of a picture"),
            Wrong("a place's numbers are multiplied by frequencies, and not summed up",
                  {"p @ a.T": "p * a.T"}, "two points of a picture"),
            Wrong("a loop over tokens",
                  {"p @ a.T": "np.array([a @ row for row in p])"}, "a long text"),
        ),
    ),
    Exercise(
        "cosformer", "cosformer", 2, _texts, _by_pairs, ("the output",), 1e-9,
        _in_arrays,
        wrong=(
            Wrong("angles go up to half a turn", {"np.pi / (2 * L)": "np.pi / L"}, "six tokens"),
            Wrong("T is L - 1", {"np.pi / (2 * L)": "np.pi / (2 * (L - 1))"}, "six tokens"),
            Wrong("positions are forgotten: all at zero",
                  {"np.arange(L)[:, None]": "np.zeros((L, 1))"}, "six tokens"),
            Wrong("keys turn the other way", {"phi(key, \"relu\"), *wave":
                  "phi(key, \"relu\"), -p, *wave[1:]"}, "six tokens"),
            Wrong("features are elu + 1", {"phi(query, \"relu\")": "phi(query, \"elu\")",
                  "phi(key, \"relu\")": "phi(key, \"elu\")"}, "six tokens"),
            Wrong("queries and keys are taken without phi", {"phi(query, \"relu\")": "query",
                  "phi(key, \"relu\")": "key"}, "six tokens"),
            Wrong("not divided by d", {" / (Q @ K.sum(axis=0))[:, None]": ""}, "six tokens"),
            Wrong("divided by the plain sums", {"(Q @ K.sum(axis=0))":
                  "(phi(query, \"relu\") @ phi(key, \"relu\").sum(axis=0))"}, "six tokens"),
            Wrong("d is the sum of all weights, of every query",
                  {"(Q @ K.sum(axis=0))[:, None]": "(Q @ K.sum(axis=0)).sum()"}, "six tokens"),
            Wrong("the third part of (7) is there, too", {
                  'fourier_features(phi(query, "relu"), *wave)':
                  'np.hstack([fourier_features(phi(query, "relu"), *wave), phi(query, "relu")])',
                  'fourier_features(phi(key, "relu"), *wave)':
                  'np.hstack([fourier_features(phi(key, "relu"), *wave), phi(key, "relu")])'},
                  "six tokens"),
            Wrong("a query sees no later key", {"Q @ (K.T @ value)": "np.tril(Q @ K.T) @ value",
                  "Q @ K.sum(axis=0)": "np.tril(Q @ K.T).sum(axis=1)"}, "six tokens"),
            Wrong("all pairs at once", {"Q @ (K.T @ value)": "(Q @ K.T) @ value"}, "a long text"),
        ),
    ),
    Exercise(
        "frequency-gradient", "frequency_gradient", 4, _pulls, _turned, ("da", "db", "dc"), 1e-9,
        left_alone,
        wrong=(
            Wrong("the keys' share of da is forgotten",
                  {" + du.T @ (r - r[0])": ""}, "six tokens"),
            Wrong("the queries' share of da is forgotten",
                  {"dt.T @ (p - r[0]) + ": ""}, "six tokens"),
            Wrong("each side measures from its own first token",
                  {"p - r[0]": "p - p[0]"}, "six tokens"),
            Wrong("the keys' share is taken away, not added",
                  {" + du.T": " - du.T"}, "six tokens"),
            Wrong("dt has the wrong sign", {
                  "(y * np.cos(t) - x * np.sin(t))": "(x * np.sin(t) - y * np.cos(t))"},
                  "six tokens"),
            Wrong("du has the wrong sign", {
                  "(y * np.cos(u) - x * np.sin(u))": "(x * np.sin(u) - y * np.cos(u))"},
                  "six tokens"),
            Wrong("dt is the pull along the hand, not across",
                  {"y * np.cos(t) - x * np.sin(t)": "y * np.sin(t) + x * np.cos(t)"},
                  "six tokens"),
            Wrong("h is the pull across the hand, not along",
                  {"x * np.cos(t) + y * np.sin(t)": "y * np.cos(t) - x * np.sin(t)"},
                  "six tokens"),
            Wrong("the two parts of dQ are exchanged", {"x, y, _ = np.split(dQ":
                  "y, x, _ = np.split(dQ"}, "six tokens"),
            Wrong("dt lacks the amplitude", {"dt = c * q": "dt = q"}, "six tokens"),
            Wrong("dt lacks q", {"dt = c * q": "dt = c"}, "six tokens"),
            Wrong("du lacks k", {"du = k * ": "du = "}, "six tokens"),
            Wrong("du has an amplitude", {"du = k": "du = c * k"}, "six tokens"),
            Wrong("db has the keys' share, too",
                  {"dt.sum(axis=0), ": "dt.sum(axis=0) + du.sum(axis=0), "}, "six tokens"),
            Wrong("dc has the keys' share, too", {"(q * h).sum(axis=0)":
                  "(q * h).sum(axis=0) + (k * (x * np.cos(u) + y * np.sin(u))).sum(axis=0)"},
                  "six tokens"),
            Wrong("dc has c in it", {"(q * h).sum": "(c * q * h).sum"}, "six tokens"),
            Wrong("dc lacks q", {"(q * h).sum": "h.sum"}, "six tokens"),
            Wrong("sums go over features, not over tokens",
                  {"dt.sum(axis=0), (q * h).sum(axis=0)": "dt.sum(axis=1), (q * h).sum(axis=1)"},
                  "six tokens"),
            Wrong("db and dc are exchanged", {"return da, dt.sum(axis=0), (q * h).sum(axis=0)":
                  "return da, (q * h).sum(axis=0), dt.sum(axis=0)"}, "six tokens"),
            Wrong("da lies on its side", {"dt.T @ (p - r[0]) + du.T @ (r - r[0])":
                  "(p - r[0]).T @ dt + (r - r[0]).T @ du"}, "six tokens"),
            Wrong("positions are measured from zero", {"p - r[0]": "p", "r - r[0]": "r"},
                  "seconds since 1970"),
        ),
    ),
    Exercise(
        "wave-kernel", "wave_kernel", 4, _rows, _hands, ("Q",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if i < q.shape[0]:": "if True:"}, "one token"),
            Wrong("sines come first", {
                  "Q[i, e] = length * math.cos(float32(angle))  # (5)\n            Q[i, E + e]":
                  "Q[i, E + e] = length * math.cos(float32(angle))\n            Q[i, e]"},
                  "one token"),
            Wrong("cosines and sines alternate", {"Q[i, e] = length * math.cos":
                  "Q[i, 2 * e] = length * math.cos", "Q[i, E + e]": "Q[i, 2 * e + 1]"},
                  "one token"),
            Wrong("the phase is forgotten", {"angle = b[e]": "angle = 0.0"}, "one token"),
            Wrong("the amplitude is forgotten", {"length = c[e] * q": "length = q"}, "one token"),
            Wrong("q is forgotten", {"length = c[e] * q[i, e]": "length = c[e]"}, "one token"),
            Wrong("floor is taken of radians, not of turns",
                  {"math.floor(angle / TURN + 0.5)": "math.floor(angle) / TURN"}, "one token"),
            Wrong("Q is added to, and holds nothing before: set it",
                  {"Q[i, e] =": "Q[i, e] +=", "Q[i, E + e] =": "Q[i, E + e] +="}, "one token"),
            Wrong("cosines are added to Q, which holds nothing before: set it",
                  {"Q[i, e] =": "Q[i, e] +="}, "one token"),
            Wrong("sines are added to Q, which holds nothing before: set it",
                  {"Q[i, E + e] =": "Q[i, E + e] +="}, "one token"),
            Wrong("only the first number of a place counts",
                  {"range(a.shape[1])": "range(1)"}, "places in a picture"),
            Wrong("the angle goes on from feature to feature", {
                  "        for e in range(E):\n            angle = b[e]":
                  "        angle = 0.0\n        for e in range(E):\n            angle += b[e]"},
                  "one token"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("one thread for all rows", {
                  "    i, E = cuda.grid(1), q.shape[1]\n    if i < q.shape[0]:":
                  "    E = q.shape[1]\n    for i in range(0 if cuda.grid(1) else q.shape[0]):"},
                  "places in a picture"),
            Wrong("whole turns stay in the angle that becomes float32",
                  {"            angle -= TURN * math.floor(angle / TURN + 0.5)\n": ""},
                  "a million away"),
            Wrong("the angle is summed up in float32",
                  {"a[e, axis] * p[i, axis]": "float32(a[e, axis]) * float32(p[i, axis])",
                   "angle = b[e]": "angle = float32(b[e])"}, "a million away"),
        ),
    ),
)  # fmt: skip

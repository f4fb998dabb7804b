"""Move the sum: features, both orders of a product, the backward, and the first kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minitransformer_kernels import reference

from ..exercise import (
    Array,
    Case,
    Exercise,
    NotYet,
    Random,
    Wrong,
    launched,
    without_loops,
    without_scores,
)

THREADS = 32  # of a block of the sums


def _numbers(random: Random) -> Iterator[Case]:
    for name, x, hint in (
        (
            "around zero",
            random.uniform(-3, 3, 20).astype(np.float32),
            "there are two branches: which side gets which?",
        ),
        (
            "far below zero",
            random.uniform(-30, -17, (3, 4)).astype(np.float32),
            "1 swallows the digits: do not add it",
        ),
        (
            "large",
            random.uniform(80, 1000, 7).astype(np.float32),
            "np.where computes both branches everywhere",
        ),
        ("float64", random.uniform(-3, 3, (2, 3)), "a feature has the dtype of its x"),
    ):
        yield Case(name, {"x": x}, hint)


def _quietly(answer: Any, x: Array) -> Array:
    with np.errstate(over="raise", invalid="raise"):
        got = answer(x)
    if got is not None and np.asarray(got).dtype != x.dtype:
        raise NotYet(f"the features of a {x.dtype} array are {np.asarray(got).dtype}")
    return got


def _features(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    return np.maximum(x, 0) + np.exp(np.minimum(x, 0))


def _head(random: Random, *sizes: int) -> dict[str, Array]:
    """Features of queries and keys, and values: (N, H, Lq, E), (N, H, Lk, E), (N, H, Lk, M)."""
    N, H, Lq, Lk, E, M = sizes
    q, k = (random.uniform(0.1, 2, (N, H, length, E)) for length in (Lq, Lk))
    return {"q": q, "k": k, "v": random.standard_normal((N, H, Lk, M))}


def _texts(random: Random) -> Iterator[Case]:
    width = int(random.integers(2, 5))
    for name, sizes, hint in (
        ("six tokens", (1, 1, 6, 6, 4, 3), "S is (E, M), Z is (E): what is summed over?"),
        (
            "more keys than queries",
            (2, 3, 5, 9, 4, width),
            "a head and a text have sums of their own",
        ),
        ("a long text", (1, 1, 700, 700, 4, 3), "multiply keys and values first"),
        ("128 heads", (8, 16, 5, 6, 4, 3), "does it hold for any number of heads?"),
    ):
        yield Case(name, _head(random, *sizes), hint)


def _in_arrays(answer: Any, q: Array, k: Array, v: Array) -> Any:
    return without_scores(partial(without_loops, answer), q, k, v)


def _attention(q: Array, k: Array, v: Array) -> Array:
    return reference.linear_attention(q, k, v, feature_map="identity")


def _cotangents(random: Random) -> Iterator[Case]:
    for name, Lq, Lk, hint in (
        ("two tokens", 2, 2, "compare with (11), gradient by gradient"),
        ("more keys than queries", 3, int(random.integers(5, 9)), "R and U sum over queries"),
        ("a long text", 700, 700, "(11) needs S, Z, R and U: no gradient of a single weight"),
    ):
        head = {name: x[0, 0] for name, x in _head(random, 1, 1, Lq, Lk, 4, 3).items()}
        yield Case(name, {"g": random.standard_normal((Lq, 3))} | head, hint)


def _gradients(g: Array, q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    """By the scores."""
    inputs = (x[None, None] for x in (g, q, k, v))
    found = reference.linear_attention_backward(*inputs, feature_map="identity")
    return tuple(x[0, 0] for x in found[:3])


def _sums(random: Random) -> Iterator[Case]:
    for name, H, L, E, M, hint in (
        ("one number", 1, 3, 1, 1, "only thread 0 has a number: what do the other 31 do?"),
        ("two heads", 2, 4, 4, 8, "is the head in every index?"),
        (
            "more than a block",
            2,
            int(random.integers(5, 9)),
            9,
            7,
            "a number counts on over blocks",
        ),
    ):
        k, v = (random.standard_normal((H, L, width), np.float32) for width in (E, M))
        yield Case(name, {"k": k, "v": v}, hint)


def _launch(answer: Any, k: Array, v: Array) -> Array:
    H, E, M = len(k), k.shape[2], v.shape[2]
    grid = -(-E * M // THREADS), H
    return launched(answer, grid, THREADS, k, v, out=(H, E, M), share=1)


def _all_sums(k: Array, v: Array) -> Array:
    return np.einsum("hle,hlm->hem", k.astype(np.float64), v)


EXERCISES = (
    Exercise(
        "phi", "phi", 1, _numbers, _features, ("the features",), run=_quietly,
        wrong=(
            Wrong("the 1 of elu + 1 is added", {"np.exp(": "np.float32(1) + np.expm1("},
                  "far below zero"),
            Wrong("relu in place of elu + 1", {"np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))":
                  "np.maximum(x, 0)"}, "around zero"),
            Wrong("elu without the 1", {"x + 1, np.exp(np.minimum(x, 0))":
                  "x, np.exp(np.minimum(x, 0)) - 1"}, "around zero"),
            Wrong("0 below zero, as relu has it",
                  {"np.exp(np.minimum(x, 0))": "0 * x"}, "around zero"),
            Wrong("the two branches are swapped", {"x > 0": "x < 0"}, "around zero"),
            Wrong("exp overflows where it is not taken", {"np.minimum(x, 0)": "x"}, "large"),
            Wrong("features are always float64", {"np.minimum(x, 0)": "np.minimum(x, np.zeros(1))"},
                  "around zero"),
            Wrong("features are always float32",
                  {"np.minimum(x, 0)))": "np.minimum(x, 0))).astype(np.float32)"},
                  "float64"),
        ),
    ),
    Exercise(
        "values-first", "values_first", 2, _texts, _attention, ("the output",), 1e-9,
        _in_arrays,
        wrong=(
            Wrong("queries meet keys first",
                  {"q @ S": "(q @ k.swapaxes(-1, -2)) @ v"}, "a long text"),
            Wrong("not divided by d", {" / (q @ Z)": ""}, "six tokens"),
            Wrong("Z sums queries", {"Z = k.sum": "Z = q.sum"}, "six tokens"),
            Wrong("all heads share one Z", {"k.sum(axis=-2)": "k.sum(axis=(1, 2))[:, None]"},
                  "more keys than queries"),
            Wrong("a loop over heads", {"k.swapaxes(-1, -2) @ v":
                  "np.array([[a.T @ b for a, b in zip(*x)] for x in zip(k, v)])"}, "128 heads"),
        ),
    ),
    Exercise(
        "both-backward", "both_backward", 3, _cotangents, _gradients, ("dq", "dk", "dv"), 1e-9,
        without_scores,
        wrong=(
            Wrong("all pairs are made", {"v @ R.T + U": "(v @ gn.T + gd) @ q"}, "a long text"),
            Wrong("each query meets all keys", {"gn @ S.T + np.outer(gd, Z)":
                  "np.stack([(v @ n + y) @ k for n, y in zip(gn, gd)])"}, "a long text"),
            Wrong("a loop over pairs", {"v @ R.T + U":
                  "np.stack([sum((x @ n + y) * z for n, y, z in zip(gn, gd, q)) for x in v])"},
                  "a long text"),
            Wrong("dk lacks U", {"v @ R.T + U": "v @ R.T"}, "two tokens"),
            Wrong("dq lacks the term with Z",
                  {"gn @ S.T + np.outer(gd, Z)": "gn @ S.T"}, "two tokens"),
            Wrong("gd lacks its minus sign", {", -(g *": ", (g *"}, "two tokens"),
            Wrong("R is made of g, not of gn", {"q.T @ gn": "q.T @ g"}, "two tokens"),
        ),
    ),
    Exercise(
        "sums-kernel", "sums_kernel", 3, _sums, _all_sums, ("S",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if e < k.shape[2]:": "if True:"}, "one number"),
            Wrong("the head is forgotten", {", cuda.blockIdx.y": ", 0"}, "two heads"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("rows of S are taken to have E numbers",
                  {"t // v.shape[2], t % v": "t // k.shape[2], t % k"},
                  "two heads"),
            Wrong("one thread for all numbers", {
                  "    e, m = t // v.shape[2], t % v.shape[2]\n    if e < k.shape[2]:":
                  "    for n in range(k.shape[2] * v.shape[2] if t == 0 else 0):\n"
                  "        e, m = n // v.shape[2], n % v.shape[2]"}, "two heads"),
            Wrong("the first token is forgotten",
                  {"range(k.shape[1])": "range(1, k.shape[1])"}, "one number"),
        ),
    ),
)  # fmt: skip

"""Perceiver: features of positions, what a reading and shared readings learn from, merged parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...functions import softmax
from ...tensor import Tensor
from ..exercise import Array, Case, Exercise, Random, Wrong, launched, left_alone, without_loops

THREADS = 32  # of a block of the merged numbers
READING = "dY", "dX", "dW_Q", "dW_K", "dW_V"


def _places(random: Random) -> Iterator[Case]:
    D, bands = (int(size) for size in random.integers(3, 6, 2))
    for name, pixels, mu, count, hint in (
        ("a line", 6, [10], 3, "compare with (4) and (5): coordinates, all sines, all cosines"),
        ("a picture", 5, [8, 8], 3, "first all coordinates, then all sines, then all cosines"),
        ("a wide picture", 5, [6, 30], 4, "each axis has its own highest frequency, mu / 2"),
        ("one band", 4, [16, 16], 1, "the only frequency is 1"),
        ("anything", 9, list(random.uniform(4, 40, D)), bands, "see the others"),
        ("many pixels", 400, [20, 20], 2, "all angles are one array"),
    ):
        p = random.uniform(-1, 1, (pixels, len(mu)))
        yield Case(name, {"p": p, "F": count, "mu": np.array(mu, np.float64)}, hint)


def _features(p: Array, F: int, mu: Array) -> Array:
    """As complex numbers, wave by wave."""
    ratio = (mu / 2) ** (1 / max(F - 1, 1))  # from one frequency to the next
    waves = [
        np.exp(1j * np.pi * ratio[axis] ** band * p[:, axis])
        for axis in range(len(mu))
        for band in range(F)
    ]
    z = np.stack(waves, axis=1)
    return np.concatenate([p, z.imag, z.real], axis=1)


def _arrays(random: Random, N: int, P: int, M: int, C: int) -> dict[str, Array]:
    """The gradient of the latents after, the latents before, bytes, and three weights."""
    shapes = {"G": (N, P), "Y": (N, P), "X": (M, C), "WQ": (P, P), "WK": (C, P), "WV": (C, P)}
    return {name: random.standard_normal(shape) for name, shape in shapes.items()}


def _readings(random: Random) -> Iterator[Case]:
    some = [int(size) for size in random.integers(2, 7, 4)]
    for name, sizes, hint in (
        ("six tokens", (2, 3, 6, 4), "compare with (6) to (8), line by line"),
        ("bytes as wide as latents", (2, 3, 5, 3), "all shapes fit, so look at the indices"),
        ("one latent", (1, 4, 6, 2), "see the others"),
        ("anything", some, "see the others"),
    ):
        yield Case(name, _arrays(random, *sizes), hint)


def _repeats(random: Random) -> Iterator[Case]:
    some = [int(size) for size in random.integers(2, 5, 4)]
    for name, sizes, T, hint in (
        ("one reading", (2, 3, 6, 4), 1, "one reading: what `reading_backward` returns"),
        ("two readings", (2, 3, 6, 4), 2, "each reading has latents of its own, and adds a share"),
        ("three readings", (3, 3, 5, 3), 3, "go back from the last reading to the first"),
        ("anything", some, int(random.integers(3, 6)), "see the others"),
    ):
        arrays = _arrays(random, *sizes)
        scaled = {name: 0.6 * x if name[0] == "W" else x for name, x in arrays.items()}
        yield Case(name, {**scaled, "T": T}, hint)


def _by_the_tape(G: Array, *inputs: Any, T: int = 1) -> tuple[Array, ...]:
    """By the package's tape."""
    Y, X, WQ, WK, WV = leaves = [Tensor(x, requires_grad=True) for x in inputs]
    for _ in range(T):
        scores = (Y @ WQ) @ (X @ WK).transpose(0, 1) / np.sqrt(G.shape[1])
        Y = Y + softmax(scores, dim=-1) @ (X @ WV)
    Y.backward(Tensor(G))
    return tuple(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)


def _by_the_tape_again(*inputs: Any) -> tuple[Array, ...]:
    *arrays, T = inputs
    return _by_the_tape(*arrays, T=int(T))


def _parts(random: Random) -> Iterator[Case]:
    N, P, parts = (int(size) for size in random.integers(2, 6, 3))
    for name, sizes, shift, hint in (
        ("one number", (2, 1, 1), 0, "only thread 0 owns a number"),
        ("two parts", (2, 2, 3), 0, "compare with (10): one factor for both sums of a part"),
        ("more than a block", (3, 9, 5), 0, "t counts on over blocks"),
        ("anything", (parts, N, P), 0, "see the others"),
        ("scores of a thousand", (3, 2, 2), 1000, "no exponent may be above 0"),
        ("scores far below zero", (3, 2, 2), -1000, "the largest exponent must be 0"),
    ):
        rows = sizes[0], sizes[1]
        given = {
            "n": random.standard_normal(sizes),
            "h": shift + 2 * random.standard_normal(rows),
            "d": random.uniform(1, 5, rows),
        }
        yield Case(name, {key: x.astype(np.float32) for key, x in given.items()}, hint)


def _launch(answer: Any, n: Array, h: Array, d: Array) -> Array:
    _, N, P = n.shape
    return launched(answer, -(-N * P // THREADS), THREADS, n, h, d, out=(N, P), share=1)


def _merged(n: Array, h: Array, d: Array) -> Array:
    """Each part's own answer, by its share of the whole sum."""
    n, h, d = (x.astype(np.float64) for x in (n, h, d))
    logs = h + np.log(d)
    shares = np.exp(logs - np.logaddexp.reduce(logs))
    return (shares[:, :, None] * n / d[:, :, None]).sum(axis=0)


_STACKED = "(np.pi * p[:, :, None] * f).reshape(len(p), -1)"
_FREQUENCIES = "np.geomspace(1, mu / 2, F, axis=-1)"

EXERCISES = (
    Exercise(
        "fourier-encode", "fourier_encode", 3, _places, _features, ("features",), 1e-9,
        without_loops,
        wrong=(
            Wrong("frequencies have equal distances, not equal ratios",
                  {"np.geomspace": "np.linspace"}, "a line"),
            Wrong("frequencies go up to mu, not to mu / 2", {"mu / 2": "mu"}, "a line"),
            Wrong("frequencies double, whatever mu is", {_FREQUENCIES:
                  "np.broadcast_to(2.0 ** np.arange(F), (len(mu), F))"}, "a line"),
            Wrong("the ratio has F in place of F - 1, so mu / 2 is not reached", {_FREQUENCIES:
                  "(mu / 2)[:, None] ** (np.arange(F) / F)"}, "a line"),
            Wrong("with one band, mu / 2 in place of 1", {_FREQUENCIES:
                  "np.geomspace(1, mu / 2, F, axis=-1) if F > 1 else mu[:, None] / 2"},
                  "one band"),
            Wrong("pi is forgotten", {"np.pi * p": "p"}, "a line"),
            Wrong("2 pi in place of pi", {"np.pi * p": "2 * np.pi * p"}, "a line"),
            Wrong("cosines come first",
                  {"np.sin(t), np.cos(t)": "np.cos(t), np.sin(t)"}, "a line"),
            Wrong("sines and cosines alternate", {"np.sin(t), np.cos(t)":
                  "np.stack([np.sin(t), np.cos(t)], axis=2).reshape(len(p), -1)"}, "a line"),
            Wrong("each coordinate stands before its own waves: first all coordinates, then all "
                  "sines, then all cosines", {"[p, np.sin(t), np.cos(t)]":
                  "[x for a in range(len(mu)) for x in (p[:, a : a + 1], "
                  "np.sin(t)[:, a * F : (a + 1) * F], np.cos(t)[:, a * F : (a + 1) * F])]"},
                  "a picture"),
            Wrong("each coordinate's cosines follow its sines: first all sines, then all cosines",
                  {"[p, np.sin(t), np.cos(t)]":
                  "[p] + [x[:, a * F : (a + 1) * F] for a in range(len(mu)) "
                  "for x in (np.sin(t), np.cos(t))]"}, "a picture"),
            Wrong("the coordinates are missing", {"[p, np.sin(t)": "[np.sin(t)"}, "a line"),
            Wrong("the coordinates come last",
                  {"[p, np.sin(t), np.cos(t)]": "[np.sin(t), np.cos(t), p]"}, "a line"),
            Wrong("only the first coordinate has waves", {_STACKED: "np.pi * p[:, :1] * f[0]"},
                  "a picture"),
            Wrong("bands come first, and in each all coordinates", {_STACKED:
                  "(np.pi * p[:, :, None] * f).swapaxes(1, 2).reshape(len(p), -1)"}, "a picture"),
            Wrong("the coordinates' angles are added up, as in lesson 11",
                  {_STACKED: "np.pi * p @ f"}, "a picture"),
            Wrong("all axes have the first one's frequencies",
                  {"np.geomspace(1, mu / 2,": "np.geomspace(1, mu[:1] / 2,"}, "a wide picture"),
            Wrong("all axes have the largest mu",
                  {"np.geomspace(1, mu / 2,": "np.geomspace(1, mu.max() / 2 + 0 * mu,"},
                  "a wide picture"),
            Wrong("a loop over pixels",
                  {_STACKED: "np.array([(np.pi * row[:, None] * f).ravel() for row in p])"},
                  "many pixels"),
        ),
    ),
    Exercise(
        "reading-backward", "reading_backward", 3, _readings, _by_the_tape, READING, 1e-9,
        left_alone,
        wrong=(
            Wrong("the way around is forgotten: Y is a summand of Y', too",
                  {"G + dQ @": "dQ @"}, "six tokens"),
            Wrong("only the way around is left in dY", {"G + dQ @ WQ.T": "G"}, "six tokens"),
            Wrong("dY crosses W_Q without its transpose", {"dQ @ WQ.T": "dQ @ WQ"}, "six tokens"),
            Wrong("dX lacks what comes by the values", {" + dV @ WV.T": ""}, "six tokens"),
            Wrong("dX lacks what comes by the keys", {"dK @ WK.T + ": ""}, "six tokens"),
            Wrong("keys cross W_V, and values W_K",
                  {"dK @ WK.T + dV @ WV.T": "dK @ WV.T + dV @ WK.T"}, "six tokens"),
            Wrong("gradients of weights are transposed",
                  {"Y.T @ dQ, X.T @ dK, X.T @ dV": "dQ.T @ Y, dK.T @ X, dV.T @ X"},
                  "six tokens"),
            Wrong("dW_Q is transposed", {"Y.T @ dQ": "dQ.T @ Y"}, "six tokens"),
            Wrong("dW_Q takes the queries in place of the latents",
                  {"Y.T @ dQ": "Q.T @ dQ"}, "six tokens"),
            Wrong("dW_K and dW_V are exchanged",
                  {"X.T @ dK, X.T @ dV": "X.T @ dV, X.T @ dK"}, "six tokens"),
            Wrong("dX and dY are exchanged", {"return dY, dX": "return dX, dY"}, "six tokens"),
            Wrong("keys and values are exchanged on the way in", {"attend_backward(G, Q, K, V)":
                  "attend_backward(G, Q, V, K)"}, "six tokens"),
            Wrong("G is written to", {"dY, dX = G + dQ @ WQ.T,": "G += dQ @ WQ.T\n    dY, dX = G,"},
                  "six tokens"),
        ),
    ),
    Exercise(
        "shared-gradient", "shared_gradient", 3, _repeats, _by_the_tape_again, READING, 1e-9,
        left_alone,
        wrong=(
            Wrong("only the first reading's share counts",
                  {"total = [a + b for a, b in zip(total, share, strict=True)]": "total = share"},
                  "two readings"),
            Wrong("only the last reading is gone back through",
                  {"reversed(latents[:-1])": "latents[-2:-1]"}, "two readings"),
            Wrong("the mean of the shares, not their sum", {"return G, *total":
                  "return G, *(x / T for x in total)"}, "two readings"),
            Wrong("weights get the mean of the shares, not their sum", {"return G, *total":
                  "return G, total[0], *(x / T for x in total[1:])"}, "two readings"),
            Wrong("T times the first reading's share, not the sum of all shares",
                  {"return G, *total": "return G, *(T * x for x in share)"}, "two readings"),
            Wrong("T times the last reading's share, not the sum of all shares",
                  {"        total = [a + b for a, b in zip(total, share, strict=True)]":
                   "        if before is latents[-2]:\n            total = [T * x for x in share]"},
                  "two readings"),
            Wrong("dX is that of the first reading alone", {"return G, *total":
                  "return G, share[0], *total[1:]"}, "two readings"),
            Wrong("each reading starts from the last gradient: none is handed on",
                  {"G, *share =": "dY, *share =", "return G,": "return dY,"}, "two readings"),
            Wrong("dY is the sum of the readings' gradients", {
                  "    for before in":
                  "    dY = 0\n    for before in", "    return G, *total": "    return dY, *total",
                  "        total =": "        dY = dY + G\n        total ="}, "two readings"),
            Wrong("dY is the gradient that came in",
                  {"G, *share =": "g, *share =", "(G, before": "(g, before",
                   "    for before": "    g = G\n    for before"}, "one reading"),
            Wrong("it goes from the first reading to the last",
                  {"reversed(latents[:-1])": "latents[:-1]"}, "two readings"),
            Wrong("all readings find the first latents",
                  {"(G, before,": "(G, Y,"}, "two readings"),
            Wrong("a reading's backward takes the latents after it",
                  {"latents[:-1]": "latents[1:]"}, "one reading"),
            Wrong("the latents after the last reading are read, too: one reading too many",
                  {"reversed(latents[:-1])": "reversed(latents)"}, "one reading"),
            Wrong("the first reading is left out",
                  {"reversed(latents[:-1])": "reversed(latents[1:-1])"}, "one reading"),
        ),
    ),
    Exercise(
        "merge-kernel", "merge_kernel", 4, _parts, _merged, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if t < out.size:": "if True:"}, "one number"),
            Wrong("sums are added up as they are", {"c = math.exp(h[a, i] - top)":
                  "c = float32(1)"}, "one number"),
            Wrong("d is not multiplied by the factor",
                  {"total += c * d": "total += d"}, "one number"),
            Wrong("n is not multiplied by the factor",
                  {"mixed += c * n": "mixed += n"}, "one number"),
            Wrong("not divided by d", {"mixed / total": "mixed"}, "one number"),
            Wrong("the mean of the parts' answers", {
                  "mixed += c * n[a, i, m]": "mixed += n[a, i, m] / d[a, i]",
                  "mixed / total": "mixed / n.shape[0]"}, "one number"),
            Wrong("the parts' answers are weighted, not their sums", {
                  "mixed += c * n[a, i, m]": "mixed += c * n[a, i, m] / d[a, i]"}, "one number"),
            Wrong("the factor is upside down",
                  {"h[a, i] - top": "top - h[a, i]"}, "one number"),
            Wrong("the last part is forgotten", {
                  "range(n.shape[0]):\n            c": "range(n.shape[0] - 1):\n            c"},
                  "one number"),
            Wrong("the maximum is that of another latent",
                  {"h[a, i] - top": "h[a, 0] - top"}, "two parts"),
            Wrong("rows are as long as there are latents",
                  {"t // n.shape[2], t % n.shape[2]": "t // n.shape[1], t % n.shape[1]"},
                  "two parts"),
            Wrong("out is added to, and holds nothing before: set it",
                  {"out[i, m] =": "out[i, m] +="}, "one number"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("one thread for all numbers", {
                  "    t = cuda.grid(1)\n    if t < out.size:":
                  "    for t in range(0 if cuda.grid(1) else out.size):"}, "two parts"),
            Wrong("nothing is taken from the scores: e^1000 is too large for float32",
                  {"h[a, i] - top": "h[a, i]"}, "scores of a thousand"),
            Wrong("the maximum begins at 0, above all scores",
                  {"float32(-1e30)": "float32(0)"}, "scores far below zero"),
        ),
    ),
)  # fmt: skip

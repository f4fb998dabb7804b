"""Softmax attention, fused: a softmax in tiles, its backward without the weights, and a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer_kernels import reference

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong, launched
from ..measuring import peak_bytes

THREADS = 32


def _score_cases(random: Random) -> Iterator[Case]:
    steps = np.linspace(-1, 1, 7)
    hidden = random.standard_normal((2, 5))
    hidden[0], hidden[1, :2] = -np.inf, -np.inf
    for name, s, tile, hint in (
        ("one tile", random.standard_normal((2, 3)), 3, "compare with (1) and (2)"),
        (
            "rising scores",
            3 * steps + 0.1 * random.standard_normal((2, 7)),
            2,
            "the maximum rises with each tile: what of the old sums? The last tile has one key",
        ),
        (
            "scores of 1,000",
            -1000 * steps + random.standard_normal((2, 7)),
            2,
            "the first tile has the largest score: no exponent may be above 0",
        ),
        (
            "a late peak",
            random.standard_normal((2, 7)) + 1000 * (np.arange(7) > 2),
            2,
            "the maximum of the first tile does not do for the others",
        ),
        (
            "scores of -2,000",
            random.standard_normal((2, 5)) - 2000,
            2,
            "is h a score that the query has?",
        ),
        (
            "a long row",
            random.standard_normal((1, 2048)),
            32,
            "a tile is used, then it may go: keep h, d and n alone",
        ),
        ("an empty row", hidden, 2, "what is -inf - (-inf)? And 0 / 0?"),
    ):
        values = random.standard_normal((s.shape[1], 3))
        yield Case(name, {"s": s, "v": values, "tile": tile}, hint)


def _streamed(answer: Any, s: Array, v: Array, tile: int) -> Array:
    """Answer each row, whose tiles can be looked at once; long ones must not be kept."""

    def answered(row: Array) -> Any:
        return answer((row[at : at + tile], v[at : at + tile]) for at in range(0, len(v), tile))

    if len(v) > 1000 and (most := peak_bytes(lambda: answered(s[0]))) >= v.nbytes // 4:
        raise NotYet(f"it takes {most:,} bytes: a tile may leave h, d and n, and must go itself")
    rows = [answered(row) for row in s]
    return None if any(row is None for row in rows) else np.stack(rows)


def _at_once(s: Array, v: Array, tile: int) -> Array:
    """By p_j = 1 / sum_t exp(s_t - s_j), which needs no maximum."""
    seen = np.isfinite(s)
    with np.errstate(over="ignore", invalid="ignore"):
        terms = np.exp(s[:, None, :] - np.where(seen, s, 0)[:, :, None])
        return np.where(seen, 1 / np.where(seen, terms.sum(axis=2), 1), 0) @ v


def _backward_cases(random: Random) -> Iterator[Case]:
    more = int(random.integers(5, 9))
    for name, queries, keys, seen, E, shift, hint in (
        ("one key", 2, 1, 1, 4, 0.0, "its weight is 1, whatever the score: what are dv, and ds?"),
        ("six tokens", 6, 6, 6, 4, 0.0, "look at (7) to (9), a factor at a time"),
        ("more keys than queries", 3, more, more, 5, 0.0,
         "whose sum is each axis? And what is the scale for this E?"),
        ("scores of 1,000", 4, 5, 5, 4, 2000.0, "the weights are relative to h, as in (2)"),
        ("a tile of the keys", 4, 9, 3, 4, 0.0,
         "k and v are the first 3 of 9 keys; h, d and o know all: use what was kept"),
    ):  # fmt: skip
        g, q = (random.standard_normal((queries, width)) for width in (3, E))
        k, v = (random.standard_normal((keys, width)) for width in (E, 3))
        if keys == 1:  # whole numbers, so that what is 0 is 0 in whatever order it is summed
            g, q, k, v = (np.rint(3 * x) for x in (g, q, k, v))
        if shift:
            q[:, 0], k[:, 0] = 40, shift / 40
        s = q @ k.T / E**0.5
        h = s.max(axis=1)
        d = np.exp(s - h[:, None]).sum(axis=1)
        o = np.exp(s - h[:, None]) @ v / d[:, None]
        inputs = {"g": g, "q": q, "k": k, "v": v, "o": o, "h": h, "d": d}
        yield Case(name, inputs | {"tile": seen}, hint)


def _in_tiles(answer: Any, g: Array, q: Array, k: Array, v: Array, *kept: Any) -> Any:
    *known, seen = kept
    return answer(g, q, k[:seen], v[:seen], *known)


def _gradients(g: Array, q: Array, k: Array, v: Array, *kept: Any) -> tuple[Array, ...]:
    """By the scores: ds is what comes back to queries that are scores, for keys of ones and 0s."""
    s, seen = q @ k.T / q.shape[1] ** 0.5, kept[-1]
    g, s, ones, v = (x[None, None] for x in (g, s, np.eye(len(k)), v))
    found = reference.softmax_attention_backward(g, s, ones, v, scale=1.0)
    ds, dv = found[0][0, 0], found[2][0, 0]
    ds = ds[:, :seen] / q.shape[1] ** 0.5
    return ds @ k[:seen], ds.T @ q, dv[:seen]


def _kernel_cases(random: Random) -> Iterator[Case]:
    for name, queries, keys, width, columns, score, hint in (
        ("one query", 1, 3, 4, 3, 0, "31 threads of the block have no query: what do they do?"),
        ("one key", 3, 1, 2, 2, 0, "the output is its value: is `out` 0 before the walk?"),
        ("two blocks", int(random.integers(33, 60)), 7, 5, 2, 0, "which query is a thread's?"),
        ("scores of 1,000", 5, 9, 4, 3, 1000, "is every exponent 0 or less, at every key?"),
        ("scores of -2,000", 5, 9, 4, 3, -2000, "is h a score that the query has?"),
    ):
        shapes = (queries, width), (keys, width), (keys, columns)
        query, key, value = (random.standard_normal(shape, np.float32) for shape in shapes)
        if score:  # whole numbers, so that large scores are exact in float32
            query, key = np.rint(query), np.rint(key)
            query[:, 0], key[:, 0] = 20, score / 10
        scale = np.float32(width**-0.5)
        yield Case(name, {"query": query, "key": key, "value": value, "scale": scale}, hint)


def _launch(answer: Any, query: Array, key: Array, value: Array, scale: Any) -> Array:
    out = len(query), value.shape[1]
    blocks = (len(query) + THREADS - 1) // THREADS
    inputs = query, key, value, scale
    return launched(answer, blocks, THREADS, *inputs, out=out, share=value.shape[1])


def _attended(query: Array, key: Array, value: Array, scale: Any) -> Array:
    heads = (x[None, None] for x in (query, key, value))
    return reference.softmax_attention(*heads, scale=float(scale))[0, 0]


EXERCISES = (
    Exercise(
        "online-softmax", "online_softmax", 3, _score_cases, _at_once, tolerance=1e-9,
        run=_streamed,
        wrong=(
            Wrong("n does not shrink when the maximum rises",
                  {"n = c * n +": "n = n +"}, "rising scores"),
            Wrong("not divided by d", {"n / d if d > 0 else n": "n"}, "one tile"),
            Wrong("d does not shrink when the maximum rises",
                  {"d = c * d +": "d = d +"}, "rising scores"),
            Wrong("the maximum is that of the tile alone",
                  {"max(h, s.max())": "s.max()"}, "scores of 1,000"),
            Wrong("the first tile's maximum is kept",
                  {"max(h, s.max())": "h if d > 0 else s.max()"},
                  "a late peak"),
            Wrong("h begins at 0", {"-1e30, 0.0, 0.0": "0.0, 0.0, 0.0"}, "scores of -2,000"),
            Wrong("h begins at -1,000", {"-1e30": "-1e3"}, "scores of -2,000"),
            Wrong("tiles are kept", {"in tiles:": "in list(tiles):"}, "a long row"),
            Wrong("all tiles at once",
                  {"for s, v in tiles:": "for s, v in [[np.concatenate(x) for x in zip(*tiles)]]:"},
                  "a long row"),
            Wrong("h begins at -inf", {"-1e30": "-np.inf"}, "an empty row"),
            Wrong("divided by 0", {"n / d if d > 0 else n": "n / d"}, "an empty row"),
        ),
    ),
    Exercise(
        "softmax-backward", "softmax_backward", 3, _backward_cases, _gradients,
        outputs=("dq", "dk", "dv"), tolerance=1e-9, run=_in_tiles,
        wrong=(
            Wrong("h and d are made again, of the keys of a tile", {"    p = np.exp":
                  "    s = scale * q @ k.T\n    h = s.max(axis=1)\n"
                  "    d = np.exp(s - h[:, None]).sum(axis=1)\n    p = np.exp"},
                  "a tile of the keys"),
            Wrong("delta is summed over the keys of a tile, not made of g and o", {
                  "(g * o).sum(axis=1)": "(p * (g @ v.T)).sum(axis=1)"}, "a tile of the keys"),
            Wrong("delta is not taken away", {" - delta[:, None]": ""}, "one key"),
            Wrong("weights are not divided by d", {" / d[:, None]": ""}, "six tokens"),
            Wrong("the scale is 1/2, whatever E is",
                  {"q.shape[1] ** -0.5": "0.5"}, "more keys than queries"),
            Wrong("the scale is forgotten",
                  {"scale * ds @ k, scale * ds.T @ q": "ds @ k, ds.T @ q"},
                  "six tokens"),
            Wrong("dk lacks the scale", {"scale * ds.T @ q": "ds.T @ q"}, "six tokens"),
            Wrong("dq is summed over queries, not over keys",
                  {"scale * ds @ k,": "scale * ds @ ds.T @ q,"},
                  "six tokens"),
            Wrong("h is not taken from the scores",
                  {"@ k.T - h[:, None]) / d": "@ k.T) / np.exp(h[:, None]) / d"},
                  "scores of 1,000"),
        ),
    ),
    Exercise(
        "attend-kernel", "attend_kernel", 4, _kernel_cases, _attended, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if i < out.shape[0]:": "if True:"}, "one query"),
            Wrong("`out` is not set to 0 before the walk",
                  {"out[i, m] = float32(0)": "pass"}, "one query"),
            Wrong("`out` does not shrink when the maximum rises",
                  {"= c * out[i, m] +": "= out[i, m] +"},
                  "one query"),
            Wrong("not divided by d", {"out[i, m] /= d": "pass"}, "one query"),
            Wrong("the last key is left out", {"range(key.shape[0])": "range(key.shape[0] - 1)"},
                  "one query"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "two blocks"),
            Wrong("one thread for all queries", {"    i = cuda.grid(1)\n    if i < out.shape[0]:":
                  "    for i in range(out.shape[0] if cuda.grid(1) == 0 else 0):"}, "one key"),
            Wrong("h is not taken from the scores",
                  {"new = max(h, s)": "new = float32(0)"}, "scores of 1,000"),
            Wrong("h begins at 0", {"float32(-1e30), float32(0)": "float32(0), float32(0)"},
                  "scores of -2,000"),
            Wrong("h begins at -1,000", {"float32(-1e30)": "float32(-1e3)"}, "scores of -2,000"),
        ),
    ),
)  # fmt: skip

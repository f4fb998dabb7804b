"""Transformers are RNNs: a state that is handed over, and one that fades."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer_kernels import reference
from minitransformer_kernels.visible import Visible

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong, launched, without_scores
from ..looking import watch

WIDTH, COLUMNS = 16, 32  # of the kernel's state, and of a block


def _splits(random: Random) -> Iterator[Case]:
    for name, length, split, hint in (
        ("most of it by the prompt", 6, 5, "one token is left: does the loop start at `split`?"),
        ("one token of prompt", 5, 1, "is the new state kept for the next token?"),
        ("anywhere", 9, int(random.integers(2, 8)), "compare each token with the call for all"),
        ("all by the prompt", 4, 4, "no token is left: what do you join then?"),
    ):
        inputs = (random.standard_normal((1, 2, length, 4)) for _ in range(3))
        yield Case(
            name, dict(zip(("query", "key", "value"), inputs, strict=True)) | {"split": split}, hint
        )


def _continued(answer: Any, query: Array, key: Array, value: Array, split: int) -> Array:
    from minitransformer import Tensor

    with watch() as launches:
        got = answer(*map(Tensor, (query, key, value)), split)
    steps, left = sum(x.kernel.__name__ == "step" for x in launches), query.shape[2] - split
    if got is not None and steps != left:
        raise NotYet(f"linear_attention_step was called {steps} times, for {left} tokens")
    return got.numpy() if isinstance(got, Tensor) else got


def _whole(query: Array, key: Array, value: Array, split: int) -> Array:
    return reference.linear_attention(query, key, value, Visible(causal=True))


def _fading_weights(length: int, gamma: float) -> Array:
    distance = np.arange(length)[:, None] - np.arange(length)
    return np.where(distance >= 0, gamma ** np.maximum(distance, 0.0), 0)


def _fading(query: Array, key: Array, value: Array, gamma: float) -> Array:
    """Every weight at once: what no state is needed for."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    weights = _fading_weights(query.shape[-2], float(gamma))
    return (weights * (query @ key.swapaxes(-1, -2))) @ value


def _fading_gradients(g: Array, q: Array, k: Array, v: Array, gamma: float) -> tuple[Array, ...]:
    weights = _fading_weights(len(q), gamma)
    scores, slopes = weights * (q @ k.T), weights * (g @ v.T)
    return slopes @ k, slopes.T @ q, scores.T @ g


def _fading_cases(random: Random) -> Iterator[Case]:
    for name, length, hint in (
        ("one token", 1, "there is no scan yet: look at the formulas themselves"),
        ("two tokens", 2, "how much of R_2 does R_1 get?"),
        (
            "more tokens",
            int(random.integers(5, 9)),
            "does the reverse scan begin at the last token?",
        ),
        ("a long text", 600, "two scans, each over all tokens once: no pairs"),
    ):
        inputs = {
            "g": random.standard_normal((length, 3)), "q": random.standard_normal((length, 4)),
            "k": random.standard_normal((length, 4)), "v": random.standard_normal((length, 3)),
            "gamma": float(random.uniform(0.3, 0.9)),
        }  # fmt: skip
        yield Case(name, inputs, hint)


def _kernel_cases(random: Random) -> Iterator[Case]:
    for name, heads, length, columns, hint in (
        ("one column", 1, 3, 1, "only thread 0 has a column: what do the other 31 do?"),
        ("two heads", 2, 4, 32, "is the head in every index?"),
        ("50 columns", 2, int(random.integers(9, 30)), 50, "there are two blocks: which is yours?"),
    ):
        widths = WIDTH, WIDTH, columns
        arrays = (random.standard_normal((heads, length, width), np.float32) for width in widths)
        inputs = dict(zip(("query", "key", "value"), arrays, strict=True))
        yield Case(name, inputs | {"gamma": np.float32(random.uniform(0.5, 0.95))}, hint)


def _launch(answer: Any, query: Array, key: Array, value: Array, gamma: Any) -> Array:
    heads, _, columns = value.shape
    grid = (columns + COLUMNS - 1) // COLUMNS, heads
    inputs, share = (query, key, value, gamma), value.shape[1]
    reads = 8 * WIDTH * share  # a state, however it is walked, needs half of that
    return launched(answer, grid, COLUMNS, *inputs, out=value.shape, share=share, reads=reads)


EXERCISES = (
    Exercise(
        "continue-from", "continue_from", 2, _splits, _whole, run=_continued,
        wrong=(
            Wrong("the state is forgotten", {"*now, state)": "*now, None)"},
                  "most of it by the prompt"),
            Wrong("a token is read twice", {"range(split, ": "range(split - 1, "},
                  "most of it by the prompt"),
            Wrong("all tokens in one call",
                  {":split]": ":]", "range(split, query.shape[2])": "range(0)"},
                  "most of it by the prompt"),
            Wrong("the prompt's output is joined to an empty list",
                  {"outputs = [output]": "outputs = []", "F.stack([token], dim=2)": "token",
                   "F.cat(outputs, dim=2)": "F.cat([output, F.stack(outputs, dim=2)], dim=2)"},
                  "all by the prompt"),
            Wrong("the new state is not kept", {"token, state = linear": "token, _ = linear"},
                  "one token of prompt"),
        ),
    ),
    Exercise(
        "fading-backward", "fading_backward", 5, _fading_cases, _fading_gradients,
        outputs=("dq", "dk", "dv"), tolerance=1e-9, run=without_scores,
        wrong=(
            Wrong("all weights at once", {"    S = R = np.zeros": "    L = np.arange(len(q))\n"
                  "    w = np.tril(gamma ** np.maximum(L[:, None] - L, 0.0))\n"
                  "    s, r = w * (q @ k.T), w * (g @ v.T)\n"
                  "    return r @ k, r.T @ q, s.T @ g\n    S = R = np.zeros"}, "a long text"),
            Wrong("each query meets all keys before it", {"dq[i] = S @ g[i]":
                  "dq[i] = (gamma ** np.arange(i, -1, -1.0) * (v[: i + 1] @ g[i])) @ k[: i + 1]"},
                  "a long text"),
            Wrong("a loop over pairs", {"dq[i] = S @ g[i]":
                  "dq[i] = sum(gamma ** (i - j) * (g[i] @ v[j]) * k[j] for j in range(i + 1))"},
                  "a long text"),
            Wrong("dq is made before S has its token", {
                  "        S = gamma * S + np.outer(k[i], v[i])\n        dq[i] = S @ g[i]":
                  "        dq[i] = S @ g[i]\n        S = gamma * S + np.outer(k[i], v[i])"},
                  "one token"),
            Wrong("dk and dv are made before R has its token", {
                  "        R = gamma * R + np.outer(q[i], g[i])\n": "",
                  "        dv[i] = R.T @ k[i]": "        dv[i] = R.T @ k[i]\n"
                  "        R = gamma * R + np.outer(q[i], g[i])"}, "one token"),
            Wrong("R does not fade", {"R = gamma * R +": "R = R +"}, "two tokens"),
            Wrong("S stays 0: there is no forward scan",
                  {"S = gamma * S + np.outer(k[i], v[i])": "pass"}, "one token"),
            Wrong("both scans go forward", {"reversed(range(len(q)))": "range(len(q))"},
                  "two tokens"),
            Wrong("dk has a factor gamma too many",
                  {"dk[i] = R @ v[i]": "dk[i] = gamma * R @ v[i]"}, "one token"),
        ),
    ),
    Exercise(
        "fading-kernel", "fading_kernel", 3, _kernel_cases, _fading, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if m < value.shape[2]:": "if True:"}, "one column"),
            Wrong("the head is forgotten", {"h = cuda.blockIdx.y": "h = 0"}, "two heads"),
            Wrong("the block's number is forgotten",
                  {"cuda.blockIdx.x * COLUMNS + cuda": "cuda"}, "50 columns"),
            Wrong("one thread for all columns", {"    if m < value.shape[2]:\n":
                  "    for m in range(value.shape[2] if m == 0 else 0):\n"
                  "        for e in range(WIDTH):\n            S[e] = float32(0)\n"}, "two heads"),
            Wrong("no state: each token goes through all before it",
                  {"            for e in range(WIDTH):\n                S[e] = gamma * S[e] + "
                  "key[h, i, e] * value[h, i, m]\n                n += S[e] * query[h, i, e]\n":
                  "            fade = float32(1)\n            for ago in range(i + 1):\n"
                  "                for e in range(WIDTH):\n                    n += fade * "
                  "query[h, i, e] * key[h, i - ago, e] * value[h, i - ago, m]\n"
                  "                fade *= gamma\n"}, "50 columns"),
            Wrong("out is made before the state has its token", {
                  "                S[e] = gamma * S[e] + key[h, i, e] * value[h, i, m]\n": "",
                  "                n += S[e] * query[h, i, e]\n":
                  "                n += S[e] * query[h, i, e]\n"
                  "                S[e] = gamma * S[e] + key[h, i, e] * value[h, i, m]\n"},
                  "one column"),
            Wrong("the new token fades, too", {"gamma * S[e] + key[h, i, e] * value[h, i, m]":
                  "gamma * (S[e] + key[h, i, e] * value[h, i, m])"}, "one column"),
            Wrong("the state does not fade", {"S[e] = gamma * S[e]": "S[e] = S[e]"}, "one column"),
            Wrong("the state is not set to 0 before the first token",
                  {"S[e] = float32(0)": "pass"}, "one column"),
        ),
    ),
)  # fmt: skip

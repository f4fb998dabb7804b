"""A memory that corrects: the delta rule, how its errors grow, its backward, and its kernel."""

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
    launched,
    left_alone,
    without_loops,
    without_scores,
)

WIDTH, COLUMNS = 16, 32  # rows of the kernel's state, and threads of a block
LONG = 1200  # tokens of a text whose pairs would be seen in memory
WIDE = 24  # rows of states that would be seen there
MANY = 200  # keys, over which a loop would be seen


def _keys(random: Random, *shape: int) -> Array:
    """Keys of length 1."""
    k = random.standard_normal(shape)
    return k / np.linalg.norm(k, axis=-1, keepdims=True)


def _residuals(k: Array, v: Array, beta: Array) -> Array:
    """All at once, by the triangular system (6)."""
    lower = np.tril(k @ k.swapaxes(-1, -2), -1) * beta[..., None, :]
    return np.linalg.solve(np.eye(lower.shape[-1]) + lower, v)


def _texts(random: Random) -> Iterator[Case]:
    for name, length, least, hint in (
        ("one token", 1, 0.3, "W is zero before it: r is v, and o is (q . k) beta v"),
        ("a key twice", 2, 1.0, "the second residual is v less the first value"),
        ("six tokens", 6, 0.2, "compare with (1) to (4), line by line"),
        ("keys of other lengths", 5, 0.2, "take keys as they are: (1) to (4) divide nothing"),
        ("a long text", LONG, 0.0, "one walk over the tokens: no pairs"),
    ):
        k = _keys(random, length, 4)
        if name == "a key twice":
            k[1] = k[0]
        if name == "keys of other lengths":
            k *= random.uniform(0.5, 1.2, (length, 1))
        yield Case(
            name,
            {
                "q": random.standard_normal((length, 4)), "k": k,
                "v": random.standard_normal((length, 3)), "beta": random.uniform(least, 1, length),
            },
            hint,
        )  # fmt: skip


def _in_one_walk(answer: Any, *inputs: Array) -> Any:
    return without_scores(partial(left_alone, answer), *inputs)


def _remembered(q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, Array, Array]:
    """By sums over all pairs, (5) and (6)."""
    r = _residuals(k, v, beta)
    u = beta[:, None] * r
    return np.tril(q @ k.T) @ u, r, k.T @ u


def _rates(random: Random) -> Iterator[Case]:
    for name, length, least, most, rate, hint in (
        ("one token", 1, 0.3, 0.8, 1, "by (A), what is left of r after a write?"),
        ("several tokens", 5, 0.5, 1.5, 1, "each token has its own length and rate"),
        ("long keys", 4, 2.5, 4.0, 1, "a residual may turn around, and grow"),
        ("a rate of 0", 3, 0.5, 2.0, 0, "nothing is written, so nothing changes or grows"),
        ("many tokens", MANY, 0.5, 2.0, 1, "all rows at once: no loop"),
    ):
        k = random.uniform(least, most, (length, 1)) * _keys(random, length, 4)
        yield Case(name, {"k": k, "beta": rate * random.uniform(0.4, 1, length)}, hint)


def _growth(k: Array, beta: Array) -> tuple[Array, Array]:
    squares = np.einsum("le,le->l", k, k)
    limits = [np.sqrt(2) / np.sqrt(b) if b else np.inf for b in beta]
    return 1 - beta * squares, np.array(limits)


def _walked(random: Random) -> Iterator[Case]:
    for name, length, width, hint in (
        ("one token", 1, 4, "both states are zero, but for this token: look at the formulas"),
        ("two tokens", 2, 4, "what does the second token hand to the first, by G?"),
        ("more tokens", int(random.integers(5, 9)), 4, "in which order is G used and changed?"),
        ("a long text", LONG, 4, "two walks, each over all tokens once: no pairs"),
        ("a wide head", 200, WIDE, "one state in each walk, not a list of them"),
    ):
        q, k = random.standard_normal((length, width)), _keys(random, length, width)
        g, v = random.standard_normal((2, length, width - 1))
        beta = random.uniform(0.2, 1, length)
        r = _residuals(k, v, beta)
        yield Case(name, {"g": g, "q": q, "k": k, "beta": beta, "r": r}, hint)


def _in_two_walks(answer: Any, *inputs: Array) -> Any:
    g, q, *_ = inputs
    if q.shape[1] == WIDE:
        states = 8 * q.size * g.shape[1]
        told = f"the states of all tokens alone would take {states:,}"
        return in_bytes(states, told, answer, *inputs)
    return without_scores(partial(left_alone, answer), *inputs)


def _gradients(g: Array, q: Array, k: Array, beta: Array, r: Array) -> tuple[Array, ...]:
    """By sums over all pairs, (8) to (12)."""
    u, scores, products = beta[:, None] * r, np.tril(q @ k.T), g @ r.T * beta
    du = _residuals(k[::-1], (scores.T @ g)[::-1], beta[::-1])[::-1]
    dr = beta[:, None] * du
    meets = np.tril(dr @ u.T, -1)
    dk = np.tril(products).T @ q - meets @ k - meets.T @ k
    return np.tril(products) @ k, dk, dr, np.einsum("lm,lm->l", r, du)


def _columns(random: Random) -> Iterator[Case]:
    for name, heads, length, columns, hint in (
        ("one column", 1, 3, 1, "compare with (1) to (4), line by line"),
        ("two heads", 2, 4, 32, "is the head in every index, of beta too?"),
        ("50 columns", 2, int(random.integers(9, 30)), 50, "there are two blocks: which is yours?"),
    ):
        q = random.standard_normal((heads, length, WIDTH), np.float32)
        yield Case(
            name,
            {
                "query": q, "key": _keys(random, *q.shape).astype(np.float32),
                "value": random.standard_normal((heads, length, columns), np.float32),
                "beta": random.uniform(0.3, 1, (heads, length)).astype(np.float32),
            },
            hint,
        )  # fmt: skip


def _launch(answer: Any, query: Array, key: Array, value: Array, beta: Array) -> Array:
    heads, length, columns = value.shape
    grid = -(-columns // COLUMNS), heads
    return launched(
        answer, grid, COLUMNS, query, key, value, beta,
        out=value.shape, share=length, reads=6 * WIDTH * length,
    )  # fmt: skip


def _outputs(query: Array, key: Array, value: Array, beta: Array) -> Array:
    q, k, v, b = (x.astype(np.float64) for x in (query, key, value, beta))
    return np.tril(q @ k.swapaxes(-1, -2)) @ (b[..., None] * _residuals(k, v, b))


EXERCISES = (
    Exercise(
        "delta", "delta", 3, _texts, _remembered, ("out", "r", "W"), 1e-9,
        _in_one_walk,
        wrong=(
            Wrong("the answer is read before the write", {
                  "        W = W + np.outer(k[t], beta[t] * r[t])  # (2), (3)\n": "",
                  "        out[t] = W.T @ q[t]  # (4)": "        out[t] = W.T @ q[t]\n"
                  "        W = W + np.outer(k[t], beta[t] * r[t])"}, "one token"),
            Wrong("the rate is forgotten", {"beta[t] * r[t]": "r[t]"}, "one token"),
            Wrong("the rate is on what is looked up, not on what is written", {
                  "W.T @ k[t]": "beta[t] * W.T @ k[t]", "beta[t] * r[t]": "r[t]"}, "one token"),
            Wrong("the rate is on what is looked up, too",
                  {"W.T @ k[t]": "beta[t] * W.T @ k[t]"}, "six tokens"),
            Wrong("W lies on its side: (M, E)", {"return out, r, W": "return out, r, W.T"},
                  "one token"),
            Wrong("r has the rate in it already", {
                  "r[t] = v[t] - W.T @ k[t]": "r[t] = beta[t] * (v[t] - W.T @ k[t])",
                  "beta[t] * r[t]": "r[t]"}, "one token"),
            Wrong("r is asked for by the query, not by the key",
                  {"W.T @ k[t]": "W.T @ q[t]"}, "a key twice"),
            Wrong("the value is written, not the residual",
                  {"beta[t] * r[t]": "beta[t] * v[t]"}, "a key twice"),
            Wrong("nothing is looked up before a write",
                  {"v[t] - W.T @ k[t]": "v[t]"}, "a key twice"),
            Wrong("the residual has the wrong sign",
                  {"v[t] - W.T @ k[t]": "W.T @ k[t] - v[t]"}, "one token"),
            Wrong("a write replaces all that was there",
                  {"W = W + np.outer": "W = np.outer"}, "a key twice"),
            Wrong("it is written under the query, not under the key",
                  {"np.outer(k[t]": "np.outer(q[t]"}, "one token"),
            Wrong("answers are divided, as linear attention's are", {
                  "    return out": "    out /= np.tril(q @ k.T).sum(axis=1, keepdims=True)\n"
                  "    return out"}, "one token"),
            Wrong("one rate for all tokens",
                  {"beta[t] * r[t]": "beta[0] * r[t]"}, "six tokens"),
            Wrong("keys are divided by their length here, too", {"    W = np.zeros(":
                  "    k = k / np.linalg.norm(k, axis=1, keepdims=True)\n    W = np.zeros("},
                  "keys of other lengths"),
            Wrong("all pairs at once", {"    return out": "    T = np.tril(k @ k.T, -1) * beta\n"
                  "    r = np.linalg.solve(np.eye(len(k)) + T, v)\n    return out"},
                  "a long text"),
        ),
    ),
    Exercise(
        "growth", "growth", 2, _rates, _growth, ("factor", "limit"), 1e-9, without_loops,
        wrong=(
            Wrong("the length is not squared", {
                  "squares = (k**2).sum(axis=1)": "squares = np.sqrt((k**2).sum(axis=1))"},
                  "one token"),
            Wrong("the factor has lost its sign",
                  {"1 - beta * squares": "abs(1 - beta * squares)"}, "long keys"),
            Wrong("the factor has the wrong sign",
                  {"1 - beta * squares": "beta * squares - 1"}, "one token"),
            Wrong("the rate is forgotten", {"1 - beta * squares": "1 - squares"}, "one token"),
            Wrong("the limit is where a write is exact, not where errors grow",
                  {"np.sqrt(2 / beta)": "np.sqrt(1 / beta)"}, "one token"),
            Wrong("the limit is that of the square",
                  {"np.sqrt(2 / beta)": "2 / beta"}, "one token"),
            Wrong("the limit is a multiple of the key's own length",
                  {"np.sqrt(2 / beta)": "np.sqrt(2 / beta / squares)"}, "one token"),
            Wrong("the limit knows no rate", {"np.sqrt(2 / beta)": "np.sqrt(2) + 0 * beta"},
                  "one token"),
            Wrong("one sum for all keys", {"sum(axis=1)": "sum()"}, "several tokens"),
            Wrong("a loop over keys", {
                  "squares = (k**2).sum(axis=1)": "squares = np.zeros(len(k))\n"
                  "    for t in range(len(k)):\n        squares[t] = k[t] @ k[t]"}, "many tokens"),
            Wrong("one limit for all keys",
                  {"np.sqrt(2 / beta)": "np.sqrt(2 / beta.max()) + 0 * beta"}, "several tokens"),
        ),
    ),
    Exercise(
        "delta-backward", "delta_backward", 5, _walked, _gradients, ("dq", "dk", "dv", "dbeta"),
        1e-9, _in_two_walks,
        wrong=(
            Wrong("G gets its query after du is made", {
                  "        G = G + np.outer(q[t], g[t])  # (14)\n": "",
                  "        dk[t] = G @ u[t]  # (15)": "        dk[t] = G @ u[t]\n"
                  "        G = G + np.outer(q[t], g[t])"}, "one token"),
            Wrong("dv has no rate: it is du", {"return dq, dk, dr,": "return dq, dk, du,"},
                  "one token"),
            Wrong("dbeta has the rate in it", {"(r * du).sum": "(u * du).sum"}, "one token"),
            Wrong("dk takes the residual for what was written",
                  {"G @ u[t]": "G @ r[t]"}, "one token"),
            Wrong("dk takes G after it has lost this token's write", {
                  "        dk[t] = G @ u[t]  # (15)\n": "",
                  "        G = G - np.outer(k[t], beta[t] * du[t])  # (14)":
                  "        G = G - np.outer(k[t], beta[t] * du[t])\n        dk[t] = G @ u[t]"},
                  "one token"),
            Wrong("dq is made before W has its token", {
                  "        W = W + np.outer(k[t], u[t])  # (3)\n": "",
                  "        dq[t] = W @ g[t]  # (15)": "        dq[t] = W @ g[t]\n"
                  "        W = W + np.outer(k[t], u[t])"}, "one token"),
            Wrong("dk asks W for dr when it has its token already", {
                  "        dk[t] -= W @ dr[t]  # (15)\n": "",
                  "        dq[t] = W @ g[t]  # (15)":
                  "        dq[t] = W @ g[t]\n        dk[t] -= W @ dr[t]"}, "one token"),
            Wrong("a key that looks up is forgotten: dk lacks W dr",
                  {"dk[t] -= W @ dr[t]": "pass"}, "two tokens"),
            Wrong("what looks up lowers r: dk has W dr with the wrong sign",
                  {"dk[t] -= W": "dk[t] += W"}, "two tokens"),
            Wrong("W dr takes du for dr", {"dk[t] -= W @ dr[t]": "dk[t] -= W @ du[t]"},
                  "two tokens"),
            Wrong("G is linear attention's: no write lowers a later residual",
                  {"G = G - np.outer(k[t], beta[t] * du[t])": "pass"}, "two tokens"),
            Wrong("G loses du, not dr: the rate is forgotten",
                  {"beta[t] * du[t])": "du[t])"}, "two tokens"),
            Wrong("G gains where it should lose",
                  {"G = G - np.outer(k[t], beta": "G = G + np.outer(k[t], beta"}, "two tokens"),
            Wrong("W is made of residuals, not of what was written",
                  {"W = W + np.outer(k[t], u[t])": "W = W + np.outer(k[t], r[t])"}, "one token"),
            Wrong("both walks go forward", {"reversed(range(len(k)))": "range(len(k))"},
                  "two tokens"),
            Wrong("all pairs at once", {"    return dq": "    np.tril(q @ k.T)\n    return dq"},
                  "a long text"),
            Wrong("all states are kept", {"    return dq": "    k[:, :, None] * u[:, None]\n"
                  "    return dq"}, "a wide head"),
        ),
    ),
    Exercise(
        "delta-kernel", "delta_kernel", 4, _columns, _outputs, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if m < value.shape[2]:": "if True:"}, "one column"),
            Wrong("the head is forgotten", {", cuda.blockIdx.y": ", 0"}, "two heads"),
            Wrong("the block's number is forgotten", {"cuda.grid(1)": "cuda.threadIdx.x"},
                  "50 columns"),
            Wrong("W is not set to 0 before the first token",
                  {"W[e] = float32(0)": "pass"}, "one column"),
            Wrong("W is written while r is not complete yet", {
                  "                r -= W[e] * key[h, t, e]  # (1)\n":
                  "                r -= W[e] * key[h, t, e]\n"
                  "                W[e] += key[h, t, e] * beta[h, t] * r\n",
                  "                W[e] += key[h, t, e] * u  # (3)\n": ""}, "one column"),
            Wrong("the answer is read before the write", {
                  "                W[e] += key[h, t, e] * u  # (3)\n": "",
                  "                o += W[e] * query[h, t, e]  # (4)\n":
                  "                o += W[e] * query[h, t, e]\n"
                  "                W[e] += key[h, t, e] * u\n"}, "one column"),
            Wrong("the rate is forgotten", {"u = beta[h, t] * r": "u = r"}, "one column"),
            Wrong("the rate is on what is looked up, not on what is written", {
                  "r -= W[e]": "r -= beta[h, t] * W[e]", "u = beta[h, t] * r": "u = r"},
                  "one column"),
            Wrong("one rate for all tokens", {"u = beta[h, t]": "u = beta[h, 0]"}, "one column"),
            Wrong("the value is written, not the residual",
                  {"u = beta[h, t] * r": "u = beta[h, t] * value[h, t, m]"}, "one column"),
            Wrong("a residual is what W holds, not what it lacks",
                  {"r = value[h, t, m]": "r = float32(0)"}, "one column"),
            Wrong("r is asked for by the query, not by the key",
                  {"r -= W[e] * key[h, t, e]": "r -= W[e] * query[h, t, e]"}, "one column"),
            Wrong("o is not set to 0 before each token", {
                  "            o = float32(0)\n": "",
                  "        for t in range": "        o = float32(0)\n        for t in range"},
                  "one column"),
            Wrong("one thread for all columns", {"    if m < value.shape[2]:\n":
                  "    for m in range(value.shape[2] if m == 0 else 0):\n"
                  "        for e in range(WIDTH):\n            W[e] = float32(0)\n"}, "two heads"),
        ),
    ),
)  # fmt: skip

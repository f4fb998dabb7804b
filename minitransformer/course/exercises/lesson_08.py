"""Chunks: a recurrence by chunks, its price, its backward as one sum, and the kernel of a row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minitransformer_kernels import reference
from minitransformer_kernels.visible import CAUSAL

from ..exercise import Array, Case, Exercise, Random, Wrong, in_bytes, in_lines, launched

THREADS = 32  # of a block of the answers


def _in_chunks(answer: Any, *inputs: Any) -> Any:
    """Try a function that must go chunk by chunk, and do each in products of matrices."""
    length, size = len(inputs[0]), int(inputs[-1])
    chunks = -(-length // size)
    told = (
        f"one loop over chunks of {size} has {chunks} turn{'s' * (chunks > 1)}, of matrix products"
    )
    looped = partial(in_lines, 30 * (chunks + 1), told, answer)
    if length < 500 or chunks == 1:
        return looped(*inputs)
    most = 8 * length * (4 * size + 64)
    return in_bytes(most, f"are chunks larger than {size}, or all pairs made?", looped, *inputs)


def _chunkings(random: Random) -> Iterator[Case]:
    for name, length, size, hint in (
        ("chunks of one", 5, 1, "then A is the one number q_i . k_i"),
        ("a ragged tail", 7, 3, "the last chunk has one token"),
        ("one chunk", 4, 9, "there is no state yet: A does it all"),
        ("anything", int(random.integers(20, 30)), int(random.integers(4, 9)), "see the others"),
        ("a long text", 600, 20, "no array may be larger than a chunk's scores"),
        ("a long chunk", 3000, 3000, "there is one chunk: A does it all"),
    ):
        q, k = (random.uniform(0.1, 2, (length, 4)) for _ in range(2))
        yield Case(
            name, {"q": q, "k": k, "v": random.standard_normal((length, 3)), "size": size}, hint
        )


def _causal(q: Array, k: Array, v: Array, size: int) -> Array:
    """By the scores of all pairs."""
    q, k, v = (x[None, None] for x in (q, k, v))
    return reference.linear_attention(q, k, v, CAUSAL, feature_map="identity")[0, 0]


def _prices(random: Random) -> Iterator[Case]:
    any_price = float(random.uniform(40, 400))
    for name, L, E, M, price, hint in (
        ("a state that is free", 40, 8, 8, 0.0, "every token more in a chunk costs E + M"),
        ("a state that is dear", 30, 16, 8, 1e6, "one pass is the fewest"),
        ("in between", 1000, 64, 64, 300.0, "a last chunk that is not full is a pass, too"),
        ("anywhere", int(random.integers(300, 900)), 32, 64, any_price, "which terms grow with C?"),
    ):
        yield Case(name, {"L": L, "E": E, "M": M, "price": price}, hint)


def _best(L: int, E: int, M: int, price: float) -> int:
    """Of all chunk sizes beside each other."""
    sizes = np.arange(1, int(L) + 1)
    passes = np.ceil(L / sizes)
    return int(sizes[np.argmin(L * sizes * (E + M) + passes * price * E * M)])


def _actors(random: Random) -> Iterator[Case]:
    for name, length, size, hint in (
        ("one chunk", 3, 5, "X and x are zero yet: look at W"),
        ("two chunks", 6, 3, "what does the second chunk get from X, what from x?"),
        ("a ragged tail", 8, 3, "does the state grow from chunk to chunk?"),
        ("a long text", 600, int(random.integers(10, 30)), "W has only the pairs of a chunk"),
        ("a long chunk", 3000, 3000, "there is one chunk: W does it all"),
    ):
        A, B, C = (random.standard_normal((length, width)) for width in (3, 3, 4))
        a, b = random.standard_normal((2, length))
        yield Case(name, {"A": A, "B": B, "C": C, "a": a, "b": b, "size": size}, hint)


def _sum(A: Array, B: Array, C: Array, a: Array, b: Array, size: int) -> Array:
    """By all pairs."""
    return np.einsum("ij,jm->im", np.tril(np.einsum("id,jd->ij", A, B) + a[:, None] * b), C)


def _rows(random: Random) -> Iterator[Case]:
    for name, heads, length, size, hint in (
        ("one token", 1, 1, 4, "only thread 0 has a row; and it sees its own key"),
        ("two heads", 2, 6, 4, "where does the chunk of row 5 begin?"),
        ("more than a block", 2, int(random.integers(50, 80)), 16, "rows count on over blocks"),
    ):
        q, k, v = (random.standard_normal((heads, length, w), np.float32) for w in (4, 4, 3))
        S = random.standard_normal((heads, -(-length // size), 4, 3), np.float32)
        yield Case(name, {"q": q, "k": k, "v": v, "S": S, "size": size}, hint)


def _launch(answer: Any, q: Array, k: Array, v: Array, S: Array, size: int) -> Array:
    heads, length, _ = q.shape
    grid = -(-length // THREADS), heads
    return launched(answer, grid, THREADS, q, k, v, S, size, out=v.shape, share=v.shape[2])


def _numerators(q: Array, k: Array, v: Array, S: Array, size: int) -> Array:
    q, k, v, S = (x.astype(np.float64) for x in (q, k, v, S))
    chunk = np.arange(q.shape[1]) // int(size)
    near = np.tril(chunk[:, None] == chunk) * (q @ k.swapaxes(-1, -2))
    return np.einsum("hle,hlem->hlm", q, S[:, chunk]) + near @ v


EXERCISES = (
    Exercise(
        "chunked", "chunked", 3, _chunkings, _causal, ("the output",), 1e-9, _in_chunks,
        wrong=(
            Wrong("a token sees the later ones of its chunk",
                  {"np.tril(Q @ K.T)": "Q @ K.T"}, "a ragged tail"),
            Wrong("a token does not see its own key", {"np.tril(Q @ K.T)": "np.tril(Q @ K.T, -1)"},
                  "chunks of one"),
            Wrong("d lacks A, the chunk", {" + A.sum(axis=1)": ""}, "chunks of one"),
            Wrong("the state is renewed before it is used", {
                  "        S, Z = S + K.T @ V, Z + K.sum(axis=0)  # (5)\n": "",
                  "        A = np.tril": "        S, Z = S + K.T @ V, Z + K.sum(axis=0)\n"
                  "        A = np.tril"}, "chunks of one"),
            Wrong("d lacks Z, the past", {"Q @ Z + A": "A"}, "chunks of one"),
            Wrong("the state is not handed from chunk to chunk",
                  {"S, Z = S + K.T @ V, Z + K": "S, Z = K.T @ V, K"},
                  "chunks of one"),
            Wrong("the last, shorter chunk is forgotten",
                  {"len(q), size)": "len(q) - size + 1, size)"},
                  "a ragged tail"),
            Wrong("all pairs at once", {"    for t in": "    size = len(q)\n    for t in"},
                  "a long text"),
            Wrong("chunks are of another size than asked for",
                  {"    for t in": "    size = 256\n    for t in"},
                  "a long text"),
            Wrong("small chunks, whatever the size", {"    for t in":
                  "    size = min(size, 64)\n    for t in"}, "a long chunk"),
            Wrong("token by token", {"    for t in": "    return chunk_loop(q, k, v, size)[0]\n"
                  "    for t in"}, "one chunk"),
        ),
    ),
    Exercise(
        "best-chunk", "best_chunk", 1, _prices, _best, ("C",), 0,
        wrong=(
            Wrong("a last chunk that is not full is not counted",
                  {"-(-L // C)": "L // C"}, "a state that is dear"),
            Wrong("a pass costs one price, not one for each number of S",
                  {"price * E * M": "price"}, "in between"),
            Wrong("C = L is not tried", {"range(1, L + 1)": "range(1, L)"},
                  "a state that is dear"),
        ),
    ),
    Exercise(
        "in-chunks", "in_chunks", 3, _actors, _sum, ("Y",), 1e-9, _in_chunks,
        wrong=(
            Wrong("a row does not see itself",
                  {"np.outer(a[t], b[t]))": "np.outer(a[t], b[t]), -1)"},
                  "one chunk"),
            Wrong("W has no triangle", {"np.tril(": "("}, "one chunk"),
            Wrong("W lacks a b", {"A[t] @ B[t].T + np.outer(a[t], b[t])": "A[t] @ B[t].T"},
                  "one chunk"),
            Wrong("Y lacks a x", {" + np.outer(a[t], x)": ""}, "two chunks"),
            Wrong("all pairs at once", {"    for start in": "    size = len(A)\n    for start in"},
                  "a long text"),
            Wrong("small chunks, whatever the size", {"    for start in":
                  "    size = min(size, 64)\n    for start in"}, "a long chunk"),
            Wrong("X is not handed from chunk to chunk",
                  {"X, x = X + B": "X, x = B"}, "a ragged tail"),
        ),
    ),
    Exercise(
        "answers-kernel", "answers_kernel", 4, _rows, _numerators, ("out",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if i < q.shape[1]:": "if True:"}, "one token"),
            Wrong("a row does not see its own key", {"i + 1)": "i)"}, "one token"),
            Wrong("S is not used",
                  {"S[h, c, e, m]": "float32(0)", "range(c * size, ": "range(0, "}, "one token"),
            Wrong("the past counted twice", {"range(c * size, ": "range(0, "}, "two heads"),
            Wrong("the head is forgotten", {", cuda.blockIdx.y": ", 0"}, "two heads"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("one thread for all rows", {"i, h = cuda.grid(1), cuda.blockIdx.y":
                  "first, h = cuda.grid(1), cuda.blockIdx.y", "    if i < q.shape[1]:":
                  "    for i in range(q.shape[1] if first == 0 else 0):"}, "two heads"),
        ),
    ),
)  # fmt: skip

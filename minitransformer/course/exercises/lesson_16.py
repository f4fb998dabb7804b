"""Under the microscope: what a warp's addresses cost, a transposition, the roof, and tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer_kernels import microscope
from minitransformer_kernels.arrays import ceil_div
from minitransformer_kernels.gpu.gpus import BANKS, SECTOR, WARP, WORD

from ..exercise import Array, Case, Exercise, Random, Wrong, launched, without_loops

TOKENS, SIDE = 16, 32  # tokens of a tile; rows and columns of one that is transposed
WIDTH = 64  # rows of the state
SPARE = 1.1  # times the fewest sectors that may be moved
SECTORS, WAYS = "the count of sectors", "the ways of the worst bank conflict"
COUNTED = "out", SECTORS, WAYS


def _addresses(random: Random) -> Iterator[Case]:
    for name, words, hint in (
        ("neighbours", np.arange(WARP) + 8 * random.choice([3, 5, 6, 7]), "32 numbers in a row"),
        ("apart", 16 * np.arange(WARP), "how many sectors lie between two lanes, "
         "and how many words does the busiest bank have to give?"),
        ("one word", np.full(WARP, random.integers(9, 99)), "one word serves all lanes that want "
         "it, and one sector has it"),
        ("the middle of a sector", np.arange(WARP) + 8 * random.integers(2, 9) + 3,
         "where do the first and the last sector begin?"),
        ("rows of 33 words", (WARP + 1) * np.arange(WARP), "which word lies in which bank?"),
        ("a few lanes", BANKS * random.permutation(9)[:5], "there need not be 32 addresses, and "
         "they need not be in order"),
        ("anywhere", random.integers(0, 200, WARP), "some lanes want the same word, and some "
         "words the same bank"),
    ):  # fmt: skip
        yield Case(name, {"address": WORD * np.asarray(words)}, hint)


def _cost(address: Array) -> tuple[int, int]:
    """By sets: the sectors that are touched, and the words of the busiest bank."""
    words = {int(a) // WORD for a in address}
    turns = (sum(word % BANKS == bank for word in words) for bank in range(BANKS))
    return len({int(a) // SECTOR for a in address}), max(turns)


def _matrices(random: Random) -> Iterator[Case]:
    for name, rows, columns, hint in (
        ("one tile", 32, 32, "is the tile read by columns, and `out` written by rows?"),
        ("two tiles", 32, 64, "which block of `out` belongs to which block of `x`?"),
        ("a few rows", int(random.integers(3, 9)), 40, "who reads is not who writes: each has a "
         "guard of its own"),
        ("ragged", int(random.integers(33, 60)), int(random.integers(33, 60)),
         "the last blocks stick out on both sides"),
    ):  # fmt: skip
        x = random.uniform(1, 2, (rows, columns)).astype(np.float32)
        yield Case(name, {"x": x}, hint)


def _counted(
    answer: Any, grid: Any, block: Any, *inputs: Any, out: tuple[int, ...], most: int
) -> tuple[Array, int, int]:
    """What a kernel writes, its sectors, or the most where these are fewer, and its conflicts."""
    output = launched(answer, grid, block, *inputs, out=out)
    again = np.full(out, np.nan, output.dtype)
    report = microscope.inspect(answer[grid, block], *inputs, again, compiled=False)
    moved = report.total("global").transactions
    worst = max(report.total("shared").worst, 1)
    return output, max(moved, most), worst


def _pieces(rows: int, columns: int, width: int) -> int:
    """The sectors of a matrix whose rows are read in pieces of so many numbers."""
    moved = 0
    for row in range(rows):
        for first in range(0, columns, width):
            numbers = row * columns + np.arange(first, min(first + width, columns))
            moved += len(np.unique(WORD * numbers // SECTOR))
    return moved


def _both_ways(x: Array) -> int:
    """The most sectors that may be moved."""
    rows, columns = x.shape
    return int(SPARE * (_pieces(rows, columns, SIDE) + _pieces(columns, rows, SIDE)))


def _turn(answer: Any, x: Array) -> tuple[Array, int, int]:
    rows, columns = x.shape
    grid = ceil_div(columns, SIDE), ceil_div(rows, SIDE)
    out = columns, rows
    return _counted(answer, grid, (SIDE, SIDE), x, out=out, most=_both_ways(x))


def _turned(x: Array) -> tuple[Array, int, int]:
    return x.T, _both_ways(x), 1


def _kernels(random: Random) -> Iterator[Case]:
    for name, count, least, most, hint in (
        (
            "one under each roof",
            2,
            0.3,
            4.0,
            "few operations a byte: memory decides; many: arithmetic",
        ),
        ("several", 5, 0.1, 9.0, "each kernel has its own limit"),
        ("many", 200, 0.1, 9.0, "all kernels at once: no loop"),
    ):
        P, B = random.uniform(10, 100) * 1e12, random.uniform(0.3, 8) * 1e12
        m = random.uniform(1e6, 1e9, count)
        over = np.geomspace(least, most, count) * random.uniform(0.8, 1.2, count)
        f = m * P / B * random.permutation(over)  # the intensity is so many times the ridge
        yield Case(name, {"f": f, "m": m, "P": P, "B": B}, hint)
    ridge, B = float(random.integers(8, 64)), float(random.integers(1, 9)) * 2.0**39
    m = random.integers(1000, 9999, 3).astype(float)
    f = m * np.array([ridge / 2, ridge, 2 * ridge])
    yield Case("the ridge itself", {"f": f, "m": m, "P": ridge * B, "B": B},
               "below the ridge memory is the limit: at the ridge it is not")  # fmt: skip


def _roof(f: Array, m: Array, P: float, B: float) -> tuple[Array, Array, Array]:
    """By times: the longer of two."""
    computing, moving = f / P, m / B
    seconds = np.where(computing > moving, computing, moving)
    return f / seconds, seconds, moving > computing


def _texts(random: Random) -> Iterator[Case]:
    for name, heads, length, columns, threads, hint in (
        ("one tile", 1, TOKENS, 64, 64, "compare with (A), line by line"),
        ("half a tile", 1, int(random.integers(5, 9)), 64, 64, "how many tokens are there in the "
         "last tile?"),
        ("two blocks", 1, 4, 64, 32, "a block has fewer threads than keys have numbers"),
        ("three tiles", 2, 2 * TOKENS + int(random.integers(1, 4)), 32, 32, "which token of the "
         "text is row t of the tile? What stays from tile to tile, and who may still read it?"),
        ("24 columns", 1, 5, 24, 64, "40 threads have no column, but the tile needs them"),
    ):  # fmt: skip
        q, k = random.standard_normal((2, heads, length, WIDTH), np.float32) / 8
        yield Case(
            name,
            {
                "query": q, "key": k,
                "value": random.standard_normal((heads, length, columns), np.float32),
                "gamma": np.float32(random.uniform(0.5, 0.9)), "threads": threads,
            },
            hint,
        )  # fmt: skip


def _most(query: Array, value: Array, threads: int) -> int:
    """The most sectors: little more than if each block fetches queries and keys once."""
    numbers: int = 2 * query.size * ceil_div(value.shape[-1], threads) + 2 * value.size
    return int(SPARE * (numbers * WORD // SECTOR))  # rows are whole sectors


def _fade(
    answer: Any, query: Array, key: Array, value: Array, gamma: Any, threads: int
) -> tuple[Array, int, int]:
    grid, most = (ceil_div(value.shape[-1], threads), len(value)), _most(query, value, threads)
    return _counted(answer, grid, threads, query, key, value, gamma, out=value.shape, most=most)


def _faded(
    query: Array, key: Array, value: Array, gamma: Any, threads: int
) -> tuple[Array, int, int]:
    """By all pairs: key j counts gamma^(t - j) for query t."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    t = np.arange(q.shape[1])
    decay = np.tril(np.float64(gamma) ** abs(t[:, None] - t))
    return (q @ k.swapaxes(-1, -2) * decay) @ v, _most(query, value, threads), 1


_LEFT = "min(TOKENS, query.shape[1] - start)"  # tokens of a tile
_FETCH = f"        for t in range({_LEFT}):\n            for e in"
_WORK = f"            for t in range({_LEFT}):\n                v"

EXERCISES = (
    Exercise(
        "costs", "costs", 2, _addresses, _cost, ("sectors", "wavefronts"), 0, without_loops,
        wrong=(
            Wrong("each lane's word counts as a sector: neighbours share one",
                  {"len(np.unique(address // 32))": "len(address)"}, "neighbours"),
            Wrong("the bytes that are asked for, not the sectors where they lie",
                  {"len(np.unique(address // 32))": "-(-4 * len(words) // 32)"}, "apart"),
            Wrong("all sectors from the first to the last", {"len(np.unique(address // 32))":
                  "address.max() // 32 - address.min() // 32 + 1"}, "apart"),
            Wrong("a sector has 32 bytes, not 32 words",
                  {"np.unique(address // 32)": "np.unique(words // 32)"}, "neighbours"),
            Wrong("addresses are bytes, not words: an eighth of a sector",
                  {"np.unique(address // 32)": "np.unique(address // 8)"}, "neighbours"),
            Wrong("sectors begin where the first lane's word does", {"np.unique(address // 32)":
                  "np.unique((address - address.min()) // 32)"}, "the middle of a sector"),
            Wrong("lanes are counted, not different words",
                  {"np.unique(address // 4)": "address // 4"}, "one word"),
            Wrong("the bank of a byte, not of a word", {"words % 32": "address % 32"},
                  "neighbours"),
            Wrong("all that is asked for is counted, not the words of the busiest bank",
                  {"np.bincount(words % 32).max()": "len(np.unique(words % 32))"}, "neighbours"),
            Wrong("neighbouring words share a bank",
                  {"words % 32": "words // 32"}, "neighbours"),
            Wrong("the two counts are swapped",
                  {"return sectors, wavefronts": "return wavefronts, sectors"}, "neighbours"),
        ),
    ),
    Exercise(
        "turned", "turned", 3, _matrices, _turned, COUNTED, 1e-6, _turn,
        wrong=(
            Wrong("rows of the tile have 32 words: its columns lie in one bank",
                  {"(TILE, 33)": "(TILE, TILE)"}, "one tile"),
            Wrong("the tile is no detour: `out` is written by columns", {
                  "    r = cuda.blockIdx.y * TILE + tx\n    c = cuda.blockIdx.x * TILE + ty\n": "",
                  "tile[tx, ty]": "tile[ty, tx]"}, "one tile"),
            Wrong("nothing is turned: the tile is written and read alike",
                  {"tile[tx, ty]": "tile[ty, tx]"}, "one tile"),
            Wrong("no barrier", {"    cuda.syncthreads()\n": ""}, "one tile"),
            Wrong("`x` is read by columns", {
                  "    if r < x.shape[0] and c < x.shape[1]:\n        tile[ty, tx] = x[r, c]\n":
                  "    r, c = cuda.blockIdx.y * TILE + tx, cuda.blockIdx.x * TILE + ty\n"
                  "    if r < x.shape[0] and c < x.shape[1]:\n        tile[tx, ty] = x[r, c]\n"},
                  "one tile"),
            Wrong("blocks stay where they are: only their insides are turned", {
                  "    r = cuda.blockIdx.y * TILE + tx\n    c = cuda.blockIdx.x * TILE + ty\n":
                  "    r = cuda.blockIdx.x * TILE + tx\n    c = cuda.blockIdx.y * TILE + ty\n"},
                  "two tiles"),
            Wrong("one guard for both", {
                  "    c = cuda.blockIdx.x * TILE + ty\n    if r < x.shape[0] and c < x.shape[1]:":
                  "    c = cuda.blockIdx.x * TILE + ty\n"
                  "    if cuda.grid(2)[1] < x.shape[0] and cuda.grid(2)[0] < x.shape[1]:"},
                  "a few rows"),
            Wrong("no guard where `x` is read", {
                  "    if r < x.shape[0] and c < x.shape[1]:\n        tile[ty, tx]":
                  "    if True:\n        tile[ty, tx]"}, "a few rows"),
            Wrong("no guard where `out` is written", {
                  "    if r < x.shape[0] and c < x.shape[1]:\n        out":
                  "    if True:\n        out"}, "a few rows"),
            Wrong("barrier under the guard", {
                  "        tile[ty, tx] = x[r, c]\n    cuda.syncthreads()":
                  "        tile[ty, tx] = x[r, c]\n        cuda.syncthreads()"}, "a few rows"),
        ),
        hints={
            SECTORS: "do neighbouring threads take neighbours of a row, of `x` and of `out`?",
            WAYS: "which words of the tile does a warp ask for at once, and in which banks are "
            "they?",
        },
        at_most=(SECTORS, WAYS),
    ),
    Exercise(
        "roof", "roof", 2, _kernels, _roof, ("speed", "seconds", "memory"), 1e-9, without_loops,
        wrong=(
            Wrong("the roof is the lower of two limits, not the higher",
                  {"np.minimum(": "np.maximum("}, "one under each roof"),
            Wrong("the intensity is upside down", {"i = f / m": "i = m / f"},
                  "one under each roof"),
            Wrong("the roof is arithmetic's alone",
                  {"np.minimum(P, i * B)": "P + 0 * i"}, "one under each roof"),
            Wrong("the roof is memory's alone", {"np.minimum(P, i * B)": "i * B"},
                  "one under each roof"),
            Wrong("both at the same time: the longer, not the sum, decides the speed",
                  {"np.minimum(P, i * B)": "f / (f / P + m / B)"}, "one under each roof"),
            Wrong("both at the same time: the seconds are the longer, not the sum",
                  {"f / speed": "f / P + m / B"}, "one under each roof"),
            Wrong("the seconds are those of memory alone", {"f / speed": "m / B"},
                  "one under each roof"),
            Wrong("the seconds are those of arithmetic alone", {"f / speed": "f / P"},
                  "one under each roof"),
            Wrong("seconds are upside down", {"f / speed": "speed / f"}, "one under each roof"),
            Wrong("memory is the limit below the ridge, not above",
                  {"i < P / B": "i > P / B"}, "one under each roof"),
            Wrong("the ridge is upside down", {"i < P / B": "i < B / P"}, "one under each roof"),
            Wrong("at the ridge memory is no limit any more", {"i < P / B": "i <= P / B"},
                  "the ridge itself"),
            Wrong("one limit for all kernels", {"np.minimum(P, i * B)":
                  "np.minimum(P, i.min() * B) + 0 * i"}, "one under each roof"),
        ),
    ),
    Exercise(
        "fading-tiles", "in_tiles", 5, _texts, _faded, COUNTED, 1e-5, _fade,
        wrong=(
            Wrong("each thread goes to memory for keys, though the tile has them",
                  {"k_tile[t, e] * v": "key[h, start + t, e] * v"}, "one tile"),
            Wrong("each thread goes to memory for queries, though the tile has them",
                  {"q_tile[t, e]  # answer": "query[h, start + t, e]"}, "one tile"),
            Wrong("every thread fetches the whole tile", {
                  "range(x, WIDTH, cuda.blockDim.x)": "range(WIDTH)"}, "one tile"),
            Wrong("keys have no tile: each thread goes to memory for them", {
                  "                k_tile[t, e] = key[h, start + t, e]\n": "",
                  "k_tile[t, e] * v": "key[h, start + t, e] * v"}, "one tile"),
            Wrong("a thread fetches a whole token: neighbouring threads, numbers far apart", {
                  _FETCH + " range(x, WIDTH, cuda.blockDim.x):\n":
                  f"        for t in range(x, {_LEFT}, cuda.blockDim.x):\n"
                  "            for e in range(WIDTH):\n"}, "one tile"),
            Wrong("a value is fetched again for each row", {
                  "k_tile[t, e] * v": "k_tile[t, e] * value[h, start + t, c]"}, "one tile"),
            Wrong("a token is a column of the tile, whose words lie in two banks", {
                  "k_tile = cuda.shared.array((TOKENS, WIDTH)": "k_tile = cuda.shared.array((WIDTH,"
                  " TOKENS)", "k_tile[t, e] = key": "k_tile[e, t] = key",
                  "k_tile[t, e] * v": "k_tile[e, t] * v"}, "one tile"),
            Wrong("S is not set to 0 before the first token",
                  {"S[e] = float32(0)": "pass"}, "one tile"),
            Wrong("the answer is read before the write", {
                  "                    S[e] = gamma * S[e] + k_tile[t, e] * v\n": "",
                  "                    n += S[e] * q_tile[t, e]  # answer\n":
                  "                    n += S[e] * q_tile[t, e]\n"
                  "                    S[e] = gamma * S[e] + k_tile[t, e] * v\n"}, "one tile"),
            Wrong("nothing fades", {"gamma * S[e]": "S[e]"}, "one tile"),
            Wrong("what is written fades, too", {
                  "gamma * S[e] + k_tile[t, e] * v": "gamma * (S[e] + k_tile[t, e] * v)"},
                  "one tile"),
            Wrong("n is not set to 0 before each token", {
                  "                v, n = value[h, start + t, c], float32(0)\n":
                  "                v = value[h, start + t, c]\n",
                  "        if c < value.shape[2]:\n":
                  "        if c < value.shape[2]:\n            n = float32(0)\n"}, "one tile"),
            Wrong("the tile is as long as it can be, not as long as the text",
                  {_FETCH: _FETCH.replace(_LEFT, "TOKENS"), _WORK: _WORK.replace(_LEFT, "TOKENS")},
                  "half a tile"),
            Wrong("no barrier between the fetch and the work", {
                  "        cuda.syncthreads()\n        if c": "        if c"}, "one tile"),
            Wrong("no barrier before the next fetch", {
                  "n\n        cuda.syncthreads()\n": "n\n"}, "three tiles"),
            Wrong("S begins again with each tile", {
                  _FETCH: "        for e in range(WIDTH):\n            S[e] = float32(0)\n"
                  + _FETCH}, "three tiles"),
            Wrong("every tile is the first: start is forgotten",
                  {"q_tile[t, e] = query[h, start + t, e]": "q_tile[t, e] = query[h, t, e]",
                   "k_tile[t, e] = key[h, start + t, e]": "k_tile[t, e] = key[h, t, e]"},
                  "three tiles"),
            Wrong("the value is token t's of the text: start is forgotten",
                  {"v, n = value[h, start + t, c]": "v, n = value[h, t, c]"}, "three tiles"),
            Wrong("the answer goes to token t of the text: start is forgotten",
                  {"out[h, start + t, c] = n": "out[h, t, c] = n"}, "three tiles"),
            Wrong("the head is forgotten where the tile is fetched",
                  {"q_tile[t, e] = query[h,": "q_tile[t, e] = query[0,",
                   "k_tile[t, e] = key[h,": "k_tile[t, e] = key[0,"}, "three tiles"),
            Wrong("the tile gets as many numbers of a key as there are threads", {
                  "            for e in range(x, WIDTH, cuda.blockDim.x):\n":
                  "            for e in range(x, x + 1):\n"}, "two blocks"),
            Wrong("the tile is fetched by a thread's column, not by its place in the block",
                  {"range(x, WIDTH,": "range(c, WIDTH,"}, "two blocks"),
            Wrong("no guard", {"if c < value.shape[2]:": "if True:"}, "24 columns"),
            Wrong("who has no column fetches nothing", {
                  "            for e in range(x, WIDTH, cuda.blockDim.x):\n":
                  "            for e in range(x if c < value.shape[2] else WIDTH, WIDTH,"
                  " cuda.blockDim.x):\n"}, "24 columns"),
            Wrong("barrier under the guard", {
                  "                out[h, start + t, c] = n\n        cuda.syncthreads()\n":
                  "                out[h, start + t, c] = n\n            cuda.syncthreads()\n"},
                  "24 columns"),
        ),
        hints={
            SECTORS: "in one instruction, do neighbouring threads fetch neighbouring numbers? And "
            "does a block fetch any number twice?",
            WAYS: "which words of a tile does a warp ask for at once, and in which banks are they?",
        },
        at_most=(SECTORS, WAYS),
    ),
)  # fmt: skip

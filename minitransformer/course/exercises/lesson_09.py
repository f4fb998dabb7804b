"""Better features: dice, rows at right angles, products of neighbours, and a row's kernel."""

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
    in_lines,
    launched,
    left_alone,
    without_loops,
)

THREADS = 32  # of a block of the features


def _rows(random: Random) -> Iterator[Case]:
    length = int(random.integers(3, 9))
    for name, rows, features, width, scale, hint in (
        ("one feature", 6, 1, 4, 1.0, "log(1) is 0; what is left of l?"),
        ("eight features", 6, 8, 4, 1.0, "l has the root of R in it, and one |x|^2 for each row"),
        ("anything", length, 5, 9, 0.5, "s is E^(-1/4), and R is the number of rows of w"),
        ("far from zero", 4, 6, 3, 1.0, "no exponential but that of z - l"),
    ):
        x = scale * random.standard_normal((rows, width))
        if name == "far from zero":
            x[::2] *= 2000
        yield Case(name, {"x": x, "w": random.standard_normal((features, width))}, hint)


def _random_features(x: Array, w: Array, s: float | None = None) -> Array:
    """By the distance of each row from each w, which never overflows."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    scaled = (x.shape[1] ** -0.25 if s is None else float(s)) * x
    distance = np.square(scaled[:, None] - w).sum(axis=2)
    return np.exp(np.square(w).sum(axis=1) / 2 - distance / 2) / np.sqrt(len(w))


def _quietly(answer: Any, x: Array, w: Array) -> Array:
    with np.errstate(over="raise", invalid="raise"):
        return without_loops(answer, x, w)


def _normal_rows(random: Random) -> Iterator[Case]:
    width = int(random.integers(3, 7))
    for name, rows, columns, hint in (
        ("one group", 4, 4, "row 0 stays; row 1 loses its part along it, and gets its length back"),
        ("fewer rows than E", 2, 5, "they are all in one group, which is not full"),
        ("two groups and a half", 5 * width // 2, width, "row E begins anew"),
    ):
        yield Case(name, {"G": random.standard_normal((rows, columns))}, hint)


def _right_angles(G: Array) -> Array:
    """By the triangle L of B B^T = L L^T: the rows of L^-1 B have length 1, and right angles."""
    blocks = [G[first : first + G.shape[1]] for first in range(0, len(G), G.shape[1])]
    directions = [np.linalg.solve(np.linalg.cholesky(B @ B.T), B) for B in blocks]
    return np.sqrt(np.square(G).sum(axis=1))[:, None] * np.concatenate(directions)


def _neighbours(random: Random) -> Iterator[Case]:
    for name, rows, width, nu, hint in (
        ("one neighbour", 6, 4, 1, "where is r_(a+1), and what does the last one meet?"),
        ("two neighbours", int(random.integers(2, 6)), 5, 2, "all a with m = 1, then all with 2"),
        ("all the way round", 4, 2, 3, "m goes from 1 to nu"),
    ):
        yield Case(name, {"x": random.standard_normal((rows, width)), "nu": nu}, hint)


def _rectified(x: Array) -> Array:
    return np.concatenate([x * (x > 0), -x * (x < 0)], axis=1)


def _products(x: Array, nu: int) -> Array:
    """By indices."""
    r = _rectified(x)
    a = np.arange(r.shape[1])
    m = np.arange(1, int(nu) + 1)[:, None]
    return (r[:, a] * r[:, (a + m) % len(a)].swapaxes(0, 1)).swapaxes(0, 1).reshape(len(x), -1)


def _neighbours_backward(random: Random) -> Iterator[Case]:
    for name, rows, width, nu, hint in (
        ("one neighbour", 6, 4, 1, "each r_a stands in two products"),
        ("two neighbours", int(random.integers(2, 6)), 5, 2, "each m has a g of its own"),
        ("all the way round", 4, 2, 3, "m goes from 1 to nu"),
        ("zeros", 3, 4, 2, "where x is 0, so is its gradient"),
    ):
        x = random.standard_normal((rows, width))
        if name == "zeros":
            x[:, ::2] = 0
        g = random.standard_normal((rows, 2 * width * nu))
        yield Case(name, {"g": g, "x": x, "nu": nu}, hint)


def _products_backward(g: Array, x: Array, nu: int) -> Array:
    """Product by product: each adds to both of its numbers."""
    r = _rectified(x)
    rows, D = r.shape
    dr = np.zeros_like(r)
    for i, m, a in np.ndindex(rows, int(nu), D):
        b, g_a = (a + m + 1) % D, g[i, m * D + a]
        dr[i, a] += g_a * r[i, b]
        dr[i, b] += g_a * r[i, a]
    return np.where(x > 0, dr[:, : D // 2], np.where(x < 0, -dr[:, D // 2 :], 0))


def _in_few_lines(answer: Any, *inputs: Any) -> Any:
    told = "one loop over m is enough: rows and columns are arrays"
    return left_alone(partial(in_lines, 60, told, answer), *inputs)


def _kernel_rows(random: Random) -> Iterator[Case]:
    for name, rows, features, width, hint in (
        ("one row", 1, 1, 4, "compare l with (2): s is squared. Only thread 0 has a row"),
        ("some rows", 5, 6, 3, "compare with (1) and (2), term by term"),
        ("more than a block", int(random.integers(40, 70)), 3, 4, "rows count on over blocks"),
    ):
        x = random.standard_normal((rows, width), np.float32)
        w = random.standard_normal((features, width), np.float32)
        yield Case(name, {"x": x, "w": w, "s": np.float32(width**-0.25)}, hint)


def _launch(answer: Any, x: Array, w: Array, s: Any) -> Array:
    rows, features = len(x), len(w)
    return launched(
        answer, -(-rows // THREADS), THREADS, x, w, s, out=(rows, features), share=features
    )


EXERCISES = (
    Exercise(
        "favor", "favor", 2, _rows, _random_features, ("the features",), 1e-9, _quietly,
        wrong=(
            Wrong("s is 1", {"x.shape[1] ** -0.25": "1"}, "one feature"),
            Wrong("s is E^(-1/2), not its root", {"-0.25": "-0.5"}, "one feature"),
            Wrong("|x|^2 lacks s^2", {"s**2 * (x**2)": "(x**2)"}, "one feature"),
            Wrong("l lacks |x|^2", {"z - squares / 2": "z"}, "one feature"),
            Wrong("all rows share one |x|^2",
                  {"axis=1, keepdims=True": "keepdims=True"}, "one feature"),
            Wrong("not divided by the root of R",
                  {" - np.log(len(w)) / 2": ""}, "eight features"),
            Wrong("divided by R, not by its root",
                  {"np.log(len(w)) / 2": "np.log(len(w))"}, "eight features"),
            Wrong("a loop over rows and features",
                  {"s * x @ w.T": "np.array([[s * a @ b for b in w] for a in x])"},
                  "eight features"),
            Wrong("exp(z) overflows before it is multiplied by exp(-l)", {
                  "np.exp(z - squares / 2 - np.log(len(w)) / 2)":
                  "np.exp(z) * np.exp(-squares / 2 - np.log(len(w)) / 2)"}, "far from zero"),
        ),
    ),
    Exercise(
        "orthogonal", "orthogonal", 2, _normal_rows, _right_angles, ("w",), 1e-9, left_alone,
        wrong=(
            Wrong("a column that QR turns around stays so",
                  {"(C * np.sign(np.diag(T))).T": "C.T"}, "one group"),
            Wrong("all lengths are 1",
                  {" * np.linalg.norm(G, axis=1)[:, None]": ""}, "one group"),
            Wrong("a row has the length of what remains of it", {
                  "(C * np.sign(np.diag(T))).T": "(C * np.diag(T)).T",
                  " * np.linalg.norm(G, axis=1)[:, None]": ""}, "one group"),
            Wrong("all lengths are the root of E",
                  {"np.linalg.norm(G, axis=1)[:, None]": "np.sqrt(E)"}, "one group"),
            Wrong("rows of C, not its columns",
                  {"(C * np.sign(np.diag(T))).T": "C * np.sign(np.diag(T))"}, "one group"),
            Wrong("only the first group", {"range(0, len(G), E)": "[0]"},
                  "two groups and a half"),
            Wrong("all rows are taken for one group", {"range(0, len(G), E)": "[0]",
                  "E = np.zeros_like(G), G.shape[1]": "E = np.zeros_like(G), len(G)"},
                  "two groups and a half"),
        ),
    ),
    Exercise(
        "dpfp", "dpfp", 1, _neighbours, _products, ("the features",), 1e-9, _in_few_lines,
        wrong=(
            Wrong("rolled the wrong way: r_(a-m)", {"r, -m, axis=1": "r, m, axis=1"},
                  "one neighbour"),
            Wrong("m begins at 0", {"range(1, nu + 1)": "range(nu)"}, "one neighbour"),
            Wrong("the negative part keeps its sign",
                  {"np.maximum(-x, 0)": "np.minimum(x, 0)"}, "one neighbour"),
            Wrong("no number is cut off", {"np.maximum(x, 0), np.maximum(-x, 0)": "x, -x"},
                  "one neighbour"),
            Wrong("rolled over rows, not along them", {"-m, axis=1": "-m, axis=0"},
                  "one neighbour"),
            Wrong("m runs faster than a", {"np.concatenate(products, axis=1)":
                  "np.stack(products, axis=2).reshape(len(x), -1)"}, "two neighbours"),
            Wrong("the last m is forgotten", {"products, axis=1": "products[:2], axis=1"},
                  "all the way round"),
        ),
    ),
    Exercise(
        "dpfp-backward", "dpfp_backward", 3, _neighbours_backward, _products_backward, ("dx",),
        1e-9, _in_few_lines,
        wrong=(
            Wrong("r_a as the second factor is forgotten",
                  {"        dr += np.roll(g_m * r, m, axis=1)  # (8), as the second\n": ""},
                  "one neighbour"),
            Wrong("r_a as the first factor is forgotten",
                  {"        dr += g_m * np.roll(r, -m, axis=1)  # (8), as the first\n": ""},
                  "one neighbour"),
            Wrong("the second factor's share is rolled the wrong way",
                  {"np.roll(g_m * r, m, axis=1)": "np.roll(g_m * r, -m, axis=1)"},
                  "one neighbour"),
            Wrong("r is rolled, and its g is not",
                  {"np.roll(g_m * r, m, axis=1)": "g_m * np.roll(r, m, axis=1)"},
                  "one neighbour"),
            Wrong("the slope 0 is forgotten where a number was cut off",
                  {" * (x > 0)": "", " * (x < 0)": ""}, "one neighbour"),
            Wrong("the minus sign of the negative part is forgotten", {"(x > 0) -": "(x > 0) +"},
                  "one neighbour"),
            Wrong("every m takes the first g",
                  {"g[:, 2 * E * (m - 1) : 2 * E * m]": "g[:, : 2 * E]"}, "two neighbours"),
            Wrong("a slope of 1 at zero", {"x > 0": "x >= 0"}, "zeros"),
        ),
    ),
    Exercise(
        "favor-kernel", "favor_kernel", 3, _kernel_rows, _random_features, ("phi",), 1e-5,
        _launch,
        wrong=(
            Wrong("no guard", {"if i < x.shape[0]:": "if True:"}, "one row"),
            Wrong("l lacks s^2", {"l_i += s * s * x": "l_i += x"}, "one row"),
            Wrong("l has s, not its square", {"l_i += s * s * x": "l_i += s * x"}, "one row"),
            Wrong("z lacks s", {"s * w[r, e]": "w[r, e]"}, "one row"),
            Wrong("l is forgotten", {"math.exp(z - l_i)": "math.exp(z)"}, "one row"),
            Wrong("not divided by the root of R",
                  {"math.log(float32(w.shape[0])) / float32(2)": "float32(0)"}, "some rows"),
            Wrong("z goes on from feature to feature", {
                  "        for r in range(w.shape[0]):\n            z = float32(0)\n":
                  "        z = float32(0)\n        for r in range(w.shape[0]):\n"}, "some rows"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "more than a block"),
            Wrong("one thread for all rows", {"    i = cuda.grid(1)\n    if i < x.shape[0]:":
                  "    for i in range(x.shape[0] if cuda.grid(1) == 0 else 0):"}, "some rows"),
        ),
    ),
)  # fmt: skip

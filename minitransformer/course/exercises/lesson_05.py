"""A whole layer: a projection's gradients, the passes for data and for weights, a layer norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer_kernels import reference

from ..exercise import Array, Case, Exercise, Random, Wrong, launched

THREADS = 32
DATA = "dX_q", "dX_k", "dX_v", "dQ", "dK", "dV"
WEIGHTS = "dW_q", "dW_k", "dW_v", "dW_o"


def _linear_cases(random: Random) -> Iterator[Case]:
    for name, rows, wide, out, hint in (
        ("one row", 1, 3, 2, "which product has the right shape?"),
        ("more rows", int(random.integers(3, 7)), 4, 2, "what is summed over the rows?"),
        ("a square", 3, 3, 3, "all shapes fit, so look at the indices of the sums"),
    ):
        shapes = {"G": (rows, out), "X": (rows, wide), "W": (out, wide)}
        yield Case(name, {k: random.standard_normal(s) for k, s in shapes.items()}, hint)


def _linear_gradients(G: Array, X: Array, W: Array) -> tuple[Array, ...]:
    """Row by row."""
    return (
        np.stack([W.T @ g for g in G]),
        sum(np.outer(g, x) for g, x in zip(G, X, strict=True)),
        sum(G),
    )


def _layer_cases(random: Random) -> Iterator[Case]:
    for name, queries, keys, heads, widths, hint in (
        ("one head", 3, 3, 1, (4, 4, 4), "cross the projections by their weights, (5) and (10)"),
        ("two heads", 5, 5, 2, (4, 4, 4), "(L, H M) is split by columns: a head owns some of them"),
        ("three widths, fewer keys", 4, int(random.integers(2, 4)), 2, (5, 3, 2),
         "keys and values have a length of their own"),
    ):  # fmt: skip
        lengths, E, M, out = (queries, keys, keys), 2, 3, 5
        inputs = [random.standard_normal(s) for s in zip(lengths, widths, strict=True)]
        rows = heads * E, heads * E, heads * M
        weights = [random.standard_normal(s) for s in zip(rows, widths, strict=True)]
        weights.append(random.standard_normal((out, heads * M)))
        named = dict(zip(("X_q", "X_k", "X_v", "W_q", "W_k", "W_v", "W_o"), inputs + weights,
                         strict=True))  # fmt: skip
        yield Case(name, {"G": random.standard_normal((queries, out)), **named, "H": heads}, hint)


def _projected(arrays: tuple[Array, ...], H: int) -> list[Array]:
    """Q, K and V `(H, L, E)`."""
    pairs = zip(arrays[:3], arrays[3:6], strict=True)
    return [np.stack([x @ w.T for w in np.split(W, int(H))]) for x, W in pairs]


def _output(Q: Array, K: Array, V: Array) -> Array:
    return reference.softmax_attention(Q[None], K[None], V[None])[0]


def _head_gradients(G: Array, arrays: tuple[Array, ...], H: int) -> list[Array]:
    """The gradients of Q, K and V `(H, L, E)`, head by head."""
    heads = _projected(arrays, H)
    of_output = np.stack([G @ w for w in np.split(arrays[6], int(H), axis=1)])
    gradients = reference.softmax_attention_backward(*(x[None] for x in (of_output, *heads)))
    return [x[0] for x in gradients]


def _data_gradients(G: Array, *rest: Any) -> tuple[Array, ...]:
    *arrays, H = rest
    gradients = _head_gradients(G, tuple(arrays), H)
    pairs = list(zip(gradients, arrays[3:6], strict=True))
    of_inputs = [sum(d @ w for d, w in zip(D, np.split(W, int(H)), strict=True)) for D, W in pairs]
    return *of_inputs, *(np.concatenate(list(D), axis=1) for D in gradients)


def _try_data(answer: Any, G: Array, *rest: Any) -> Any:
    *arrays, H = rest
    heads = _projected(tuple(arrays), H)
    return answer(G, list(arrays[3:]), tuple(heads), _output(*heads))


def _weight_gradients(G: Array, *rest: Any) -> tuple[Array, ...]:
    *arrays, H = rest
    gradients = _head_gradients(G, tuple(arrays), H)
    joined = np.concatenate(list(_output(*_projected(tuple(arrays), H))), axis=1)
    of_inputs = [
        np.concatenate([np.einsum("ri,rj->ij", d, x) for d in D])
        for D, x in zip(gradients, arrays[:3], strict=True)
    ]
    return *of_inputs, np.einsum("ri,rj->ij", G, joined)


def _try_weights(answer: Any, G: Array, *rest: Any) -> Any:
    *arrays, H = rest
    projected = tuple(np.concatenate(list(D), axis=1) for D in _head_gradients(G, tuple(arrays), H))
    return answer(G, tuple(arrays[:3]), _output(*_projected(tuple(arrays), H)), projected)


def _norm_cases(random: Random) -> Iterator[Case]:
    for name, rows, columns, mean, hint in (
        ("one row", 1, 5, 0.0, "31 threads have no row: what do they do? And look at (3) again"),
        ("two blocks", int(random.integers(33, 60)), 6, 0.0, "which row is a thread's?"),
        ("a mean that is not 0", 3, 40, 5.0, "n is x less its mean, times r"),
    ):
        g, x = random.standard_normal((2, rows, columns))
        x += mean
        m, r = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + 1e-5)
        weight = random.uniform(0.5, 2, columns)
        arrays = {"g": g, "x": x, "weight": weight, "mean": m, "scale": r}
        yield Case(name, {k: a.astype(np.float32) for k, a in arrays.items()}, hint)


def _launch(answer: Any, g: Array, x: Array, weight: Array, mean: Array, scale: Array) -> Array:
    blocks = (len(x) + THREADS - 1) // THREADS
    inputs = g, x, weight, mean, scale
    return launched(answer, blocks, THREADS, *inputs, out=x.shape, share=x.shape[1])


def _by_jacobians(g: Array, x: Array, weight: Array, mean: Array, scale: Array) -> Array:
    """By the whole matrix of derivatives of each row."""
    g, x, weight, mean, scale = (np.asarray(a, np.float64) for a in (g, x, weight, mean, scale))
    n, D = (x - mean[:, None]) * scale[:, None], x.shape[1]
    matrices = np.eye(D) - 1 / D - n[:, :, None] * n[:, None, :] / D
    return scale[:, None] * np.einsum("re,red->rd", g * weight, matrices)


EXERCISES = (
    Exercise(
        "linear-backward", "linear_backward", 2, _linear_cases, _linear_gradients,
        ("dX", "dW", "db"), 1e-9,
        wrong=(
            Wrong("dX takes the transpose of W", {"G @ W,": "G @ W.T,"}, "one row"),
            Wrong("dW is transposed", {"G.T @ X": "X.T @ G"}, "one row"),
            Wrong("the mean in place of the sum", {"G.sum(axis=0)": "G.mean(axis=0)"}, "more rows"),
        ),
    ),
    Exercise(
        "layer-backward-data", "layer_backward_data", 3, _layer_cases, _data_gradients, DATA,
        1e-9, _try_data,
        wrong=(
            Wrong("G is not used", {"split(G @": "split(np.ones_like(G) @"}, "one head"),
            Wrong("heads are cut out by reshape alone, not by split",
                  {"split(G @ W[3], len(O))": "(G @ W[3]).reshape(O.shape)"},
                  "two heads"),
            Wrong("heads are flattened, not merged", {"map(merge, heads_backward(dO, *heads, O))":
                  "(d.reshape(d.shape[1], -1) for d in heads_backward(dO, *heads, O))"},
                  "two heads"),
            Wrong("keys are crossed by the queries' weights",
                  {"dK @ W[1]": "dK @ W[0]"}, "one head"),
        ),
    ),
    Exercise(
        "layer-backward-weights", "layer_backward_weights", 3, _layer_cases, _weight_gradients,
        WEIGHTS, 1e-9, _try_weights,
        wrong=(
            Wrong("gradients are transposed", {"g.T @ x": "x.T @ g"}, "one head"),
            Wrong("heads are flattened, not merged",
                  {"merge(O)": "O.reshape(len(G), -1)"}, "two heads"),
            Wrong("all three take the queries' input", {"zip(projected, X, strict=True)":
                  "((p, X[0]) for p in projected)"}, "one head"),
        ),
    ),
    Exercise(
        "norm-kernel", "norm_kernel", 3, _norm_cases, _by_jacobians, ("dx",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if i < x.shape[0]:": "if True:"}, "one row"),
            Wrong("the sum of h is forgotten", {" - h_sum / D": ""}, "one row"),
            Wrong("the sum of h n is forgotten", {" - n * hn_sum / D": ""}, "one row"),
            Wrong("the sums are not divided by D",
                  {"h_sum / D - n * hn_sum / D": "h_sum - n * hn_sum"}, "one row"),
            Wrong("the weight is forgotten", {
                  "h_sum += h\n": "h /= weight[d]\n            h_sum += h\n",
                  "dx[i, d] =": "h /= weight[d]\n            dx[i, d] ="}, "one row"),
            Wrong("the factor r is forgotten", {"scale[i] * (h - h_sum": "(h - h_sum"}, "one row"),
            Wrong("the block's number is forgotten",
                  {"cuda.grid(1)": "cuda.threadIdx.x"}, "two blocks"),
            Wrong("one thread for all rows", {"    i = cuda.grid(1)\n    if i < x.shape[0]:":
                  "    for i in range(x.shape[0] if cuda.grid(1) == 0 else 0):"}, "two blocks"),
        ),
    ),
)  # fmt: skip

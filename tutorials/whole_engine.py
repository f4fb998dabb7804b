"""A whole engine on one page: a tape, two attentions as kernels, a model that learns to copy.

    python whole_engine.py softmax     (or linear)

It imports NumPy, Numba's float32 and the door to CUDA: `from numba import cuda` would do, given a
GPU and arrays that live on it. What grows beyond a page is in the packages beside it.

The task: eight random symbols, a separator, and the same eight again. From the separator on the
model says the next symbol, and all that it can do is look back. One layer of attention suffices.
"""

import math
import sys
import time

import numpy as np
from numba import float32

from minitransformer_kernels.cuda import cuda

random = np.random.default_rng(0)
SYMBOLS, COPIED, WIDTH, BATCH, STEPS, RATE = 10, 8, 32, 32, 150, 0.01
LENGTH = 2 * COPIED  # of what goes in: the symbols, the separator, and all of the copy but its last


# -- The tape: who was made of whom, and how gradients go back -------------------------------------


class Tensor:
    """An array that remembers its parents, and what makes their gradients of its own."""

    def __init__(self, data, parents=(), backward=None):
        self.data, self.parents, self.back, self.grad = data, parents, backward, None

    def __add__(self, other):
        both = self, other
        result = self.data + other.data
        return Tensor(result, both, lambda g: [summed(g, x.data.shape) for x in both])

    def __matmul__(self, weight):
        """(..., D) times a matrix (D, M)."""
        rows = self.data.reshape(-1, weight.data.shape[0])  # (..., D) -> (rows, D)

        def back(g):
            return g @ weight.data.T, rows.T @ g.reshape(len(rows), -1)

        return Tensor(self.data @ weight.data, (self, weight), back)

    def backward(self, gradient=1.0):
        """Give every tensor that this one was made of its gradient."""
        order, seen, todo = [], set(), [(self, False)]
        while todo:  # parents before children; a stack, since recursion has a limit
            tensor, done = todo.pop()
            if done:
                order.append(tensor)
                tensor.grad = None
            elif id(tensor) not in seen:
                seen.add(id(tensor))
                todo += [(tensor, True), *((parent, False) for parent in tensor.parents)]
        self.grad = np.broadcast_to(np.float32(gradient), self.data.shape)
        for tensor in reversed(order):
            if tensor.back:
                for parent, g in zip(tensor.parents, tensor.back(tensor.grad), strict=True):
                    parent.grad = g if parent.grad is None else parent.grad + g


def summed(g, shape):
    """The gradient of an array that was broadcast: what went out to many comes back as a sum."""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1 != g.shape[axis])
    return g.sum(axis=stretched, keepdims=True)


def look_up(table, indices):
    """Rows of a table; a row that is used twice gets both gradients."""

    def backward(g):
        total = np.zeros_like(table.data)
        np.add.at(total, indices, g)
        return (total,)

    return Tensor(table.data[indices], (table,), backward)


def last(x, count):
    """The last rows of each sequence: (N, L, C) -> (N, count, C)."""
    skipped = x.data.shape[1] - count
    return Tensor(x.data[:, skipped:], (x,), lambda g: (np.pad(g, ((0, 0), (skipped, 0), (0, 0))),))


def cross_entropy(logits, targets):
    """Minus the mean log probability of the targets: logits (N, L, C), targets (N, L)."""
    shifted = logits.data - logits.data.max(axis=-1, keepdims=True)
    p = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
    chosen = np.eye(p.shape[-1], dtype=p.dtype)[targets]  # (N, L) -> (N, L, C)
    loss = -np.log((p * chosen).sum(axis=-1)).mean()
    return Tensor(loss, (logits,), lambda g: (g * (p - chosen) / targets.size,))


# -- Softmax attention: a thread owns a query or a key, and walks all others -----------------------


@cuda.jit(device=True)
def score(query, key, n, i, j):
    """s_ij = q_i . k_j / sqrt(E)."""
    s = float32(0)
    for e in range(query.shape[2]):
        s += query[n, i, e] * key[n, j, e]
    return s / math.sqrt(float32(query.shape[2]))


@cuda.jit
def softmax_forward(query, key, value, out, highest, total):
    """Query, key (N, L, E), value (N, L, M); `out` is zeros; it, h_i and d_i are written."""
    i, n = cuda.grid(1), cuda.blockIdx.y
    if i < query.shape[1]:
        h, d = float32(-math.inf), float32(0)
        for j in range(i + 1):  # causal
            s = score(query, key, n, i, j)
            higher = max(h, s)  # the largest score so far: no exponent is ever positive
            shrink, p = math.exp(h - higher), math.exp(s - higher)
            d = d * shrink + p
            for m in range(value.shape[2]):
                out[n, i, m] = out[n, i, m] * shrink + p * value[n, j, m]
            h = higher
        for m in range(value.shape[2]):
            out[n, i, m] /= d
        highest[n, i], total[n, i] = h, d


@cuda.jit(device=True)
def slope(query, key, value, out, g, highest, total, n, i, j):
    """p_ij and ds_ij = p_ij g_i . (v_j - o_i) / sqrt(E), the gradient of q_i . k_j."""
    p = math.exp(score(query, key, n, i, j) - highest[n, i]) / total[n, i]
    gap = float32(0)
    for m in range(value.shape[2]):
        gap += g[n, i, m] * (value[n, j, m] - out[n, i, m])
    return p, p * gap / math.sqrt(float32(query.shape[2]))


@cuda.jit
def softmax_query_gradient(query, key, value, out, g, highest, total, dq):
    """dq_i = sum_j ds_ij k_j."""
    i, n = cuda.grid(1), cuda.blockIdx.y
    if i < query.shape[1]:
        for j in range(i + 1):
            _, ds = slope(query, key, value, out, g, highest, total, n, i, j)
            for e in range(query.shape[2]):
                dq[n, i, e] += ds * key[n, j, e]


@cuda.jit
def softmax_key_gradient(query, key, value, out, g, highest, total, dk, dv):
    """dk_j = sum_i ds_ij q_i and dv_j = sum_i p_ij g_i. The thread owns a key: nothing collides."""
    j, n = cuda.grid(1), cuda.blockIdx.y
    if j < query.shape[1]:
        for i in range(j, query.shape[1]):
            p, ds = slope(query, key, value, out, g, highest, total, n, i, j)
            for e in range(query.shape[2]):
                dk[n, j, e] += ds * query[n, i, e]
            for m in range(value.shape[2]):
                dv[n, j, m] += p * g[n, i, m]


def softmax_attention(query, key, value):
    """Query i gets a mean of the values up to its own, by how well the keys match it."""
    q, k, v = query.data, key.data, value.data
    out, highest, total = np.zeros_like(v), np.empty_like(v[..., 0]), np.empty_like(v[..., 0])
    grid = (q.shape[1] + 31) // 32, len(q)
    softmax_forward[grid, 32](q, k, v, out, highest, total)

    def backward(g):
        dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
        given = q, k, v, out, np.ascontiguousarray(g), highest, total
        softmax_query_gradient[grid, 32](*given, dq)
        softmax_key_gradient[grid, 32](*given, dk, dv)
        return dq, dk, dv

    return Tensor(out, (query, key, value), backward)


# -- Linear attention: a thread owns a column of the state, and walks the tokens -------------------


@cuda.jit
def scan_kernel(a, b, c, state, out):
    """out_i = sum over j <= i of (a_i . b_j) c_j, by a state: S += b_j c_j^T, out_i = S^T a_i."""
    m, n = cuda.grid(1), cuda.blockIdx.y
    if m < c.shape[2]:
        for i in range(a.shape[1]):
            total = float32(0)
            for e in range(a.shape[2]):
                state[n, e, m] += b[n, i, e] * c[n, i, m]
                total += state[n, e, m] * a[n, i, e]
            out[n, i, m] = total


def scan(a, b, c, step=1):
    """The kernel on (N, L, E), (N, L, E) and (N, L, M); by step -1 from the last token on."""
    a, b, c = (np.ascontiguousarray(x[:, ::step]) for x in (a, b, c))
    out, state = np.empty_like(c), np.zeros((len(a), a.shape[2], c.shape[2]), a.dtype)
    scan_kernel[((c.shape[2] + 31) // 32, len(a)), 32](a, b, c, state, out)
    return out[:, ::step]


def linear_attention(query, key, value):
    """The same with weights phi(q_i) . phi(k_j), whose sum may be moved into a state.

    A column of ones among the values makes the sum of the weights. Backward is three more scans.
    """
    q, k = (np.where(x.data > 0, x.data + 1, np.exp(np.minimum(x.data, 0))) for x in (query, key))
    v = np.concatenate([value.data, np.ones_like(value.data[..., :1])], axis=-1)
    sums = scan(q, k, v)
    d = sums[..., -1:]
    out = sums[..., :-1] / d

    def backward(g):
        g = np.concatenate([g / d, -(g * out).sum(axis=-1, keepdims=True) / d], axis=-1)
        dq, dk, dv = scan(g, v, k), scan(v, g, q, -1), scan(k, q, g, -1)
        return dq * np.minimum(q, 1), dk * np.minimum(k, 1), dv[..., :-1]  # phi' = min(phi, 1)

    return Tensor(out, (query, key, value), backward)


# -- The model, its training, and a look at what it does -------------------------------------------


def check_gradients(attention):
    """Never trust a derivation: move each input, and see whether the loss follows its gradient."""
    cotangent, *arrays, way = random.standard_normal((5, 2, 7, 5)).astype(np.float32)
    inputs = [Tensor(x) for x in arrays]
    attention(*inputs).backward(cotangent)
    for moved, x in enumerate(inputs):
        losses = []
        for step in (0.01, -0.01):
            there = [y + step * way * (at == moved) for at, y in enumerate(arrays)]
            result = attention(*(Tensor(y.astype(np.float32)) for y in there)).data
            losses.append((result.astype(np.float64) * cotangent).sum())
        np.testing.assert_allclose((losses[0] - losses[1]) / 0.02, (x.grad * way).sum(), rtol=0.01)


class Model:
    """Embeddings of symbols and places, one layer of attention, and logits."""

    def __init__(self, attention):
        shapes = [(SYMBOLS + 1, WIDTH), (LENGTH, WIDTH), *[(WIDTH, WIDTH)] * 3, (WIDTH, SYMBOLS)]
        drawn = (random.standard_normal(shape) / WIDTH**0.5 for shape in shapes)
        self.parameters = [Tensor(x.astype(np.float32)) for x in drawn]
        self.attention = attention

    def __call__(self, symbols):
        """Logits (N, L, SYMBOLS) of what follows each symbol (N, L)."""
        table, places, query, key, value, out = self.parameters
        x = look_up(table, symbols) + places  # (N, L) -> (N, L, WIDTH)
        return self.attention(x @ query, x @ key, x @ value) @ out


def adam(parameters, moments, step):
    """A step of Adam: each number by its own mean gradient, in units of that one's size."""
    for x, (mean, square) in zip(parameters, moments, strict=True):
        mean += 0.1 * (x.grad - mean)
        square += 0.01 * (x.grad**2 - square)
        scaled = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
        x.data = x.data - np.float32(RATE) * scaled


def copy(model, symbols):
    """Let the model say the symbols again: each that it says is the next that it is given."""
    said = np.append(symbols, np.full(COPIED, SYMBOLS))[None]  # (1, LENGTH)
    for at in range(COPIED, LENGTH):
        word = model(said).data[0, at].argmax()
        said[0, at + 1 :] = word
        yield word


def main(name="softmax"):
    """Check, train, and copy."""
    attention = {"softmax": softmax_attention, "linear": linear_attention}[name]
    check_gradients(attention)
    print(f"{name} attention: its gradients are right")
    model, began = Model(attention), time.perf_counter()
    moments = [(np.zeros_like(x.data), np.zeros_like(x.data)) for x in model.parameters]
    for step in range(1, STEPS + 1):
        symbols = random.integers(0, SYMBOLS, (BATCH, COPIED))
        after = np.insert(symbols[:, :-1], 0, SYMBOLS, axis=1)  # the separator, and all but one
        given = np.hstack([symbols, after])  # (BATCH, LENGTH)
        loss = cross_entropy(logits := last(model(given), COPIED), symbols)
        loss.backward()
        adam(model.parameters, moments, step)
        if step % 25 == 0:
            right = (logits.data.argmax(axis=-1) == symbols).mean()
            print(f"step {step:3}  loss {loss.data:.4f}  symbols right {right:.0%}")
    print(f"in {time.perf_counter() - began:.1f} seconds")
    new = random.integers(0, SYMBOLS, COPIED)
    print("given ", *new)
    print("copied", *copy(model, new))


if __name__ == "__main__":
    main(*sys.argv[1:])

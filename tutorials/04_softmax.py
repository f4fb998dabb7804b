# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] question="Why should the L x L matrix not exist?" minutes=110 after=[0, 1, 3]
# # Softmax attention, fused
#
# Your [head](glossary.md#head) of lesson 0 makes a matrix of scores, turns it into weights, and
# mixes values with them. The [tape](glossary.md#tape) of lesson 3 then *keeps* the weights: their
# [backward](glossary.md#backward) asks for them. Both matrices have a number for every pair of
# [tokens](glossary.md#token). Neither has anything to do with what you wanted, which is $L$
# answers.
#
# Can you have the answers without the matrix? And the [gradients](glossary.md#gradient) too? In
# this lesson you
#
# 1. extend a [softmax](glossary.md#softmax) as its keys come by, [tile](glossary.md#tile) after
#    tile;
# 2. derive its backward, from two numbers a query and the output;
# 3. write the [kernel](glossary.md#kernel), and read the one that runs;
# 4. count the bytes of both ways.

# %% tags=["hide-input"]
import math

import numpy as np
from numba import float32

from minitransformer import Function, gradcheck
from minitransformer.course import (
    check,
    guess,
    quantity,
    quote,
    reveal,
    show,
    six_tokens,
    table,
    watch,
)
from minitransformer.course.figures import lesson_04 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import microscope, softmax
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.layers.matmul import matmul

random = np.random.default_rng(4)

# %% [markdown]
# ## 1. What is to be computed
#
# Query $i$ has a score for each key, $s_{ij} = q_i \cdot k_j / \sqrt E$. Its largest is $h_i$, and
# relative to that
#
# $$h_i = \max_j s_{ij} \qquad d_i = \sum_j e^{s_{ij} - h_i} \tag{1}$$
#
# $$p_{ij} = e^{s_{ij} - h_i} / d_i \qquad o_i = \sum_j p_{ij} v_j \tag{2}$$
#
# The numbers of all equations here are those of the kernels that you will read.


# %%
def attend(q, k, v):
    """One head: q (Lq, E), k (Lk, E), v (Lk, M); the output, h and d."""
    s = q @ k.T / q.shape[1] ** 0.5  # (Lq, E) @ (E, Lk) -> (Lq, Lk)
    h = s.max(axis=1)  # (1): (Lq, Lk) -> (Lq,)
    d = np.exp(s - h[:, None]).sum(axis=1)  # (1): (Lq,)
    p = np.exp(s - h[:, None]) / d[:, None]  # (2): (Lq, Lk)
    return p @ v, h, d  # (2): (Lq, Lk) @ (Lk, M) -> (Lq, M)


q, k, v = six_tokens()
o, h, d = attend(q, k, v)
print("outputs of the six tokens:", o.round(2).tolist(), sep="\n")
pairs, tokens = 4 * 4096**2, 4 * 4096 * 64
print(f"L = 4,096 and E = 64 in float32: a matrix of {quantity(pairs, 'B')},")
print(f"for queries of {quantity(tokens, 'B')}; for each head")

# %% [markdown]
# As three operations (scores; weights; mixing), the matrices go to memory and come back.
# [Fused](glossary.md#fused) into one, only $q$, $k$, $v$ and $o$ do. Section 6 counts
# the bytes of both ways.
#
# ## 2. A sum that can be extended
#
# Softmax seems to need all scores before it can begin, since (1) asks for their maximum. But let
# $h$ be the largest score *so far*, $d$ the sum of exponentials relative to it, and $n$ the values
# that they mix:
#
# $$d = \sum_{\text{so far}} e^{s_j - h} \qquad n = \sum_{\text{so far}} e^{s_j - h}\, v_j$$
#
# Now a new key raises the maximum to $h'$. Every exponential that you have was relative to the old
# one, and $e^{s_j - h'} = e^{h - h'} e^{s_j - h}$: the same factor for all of them! So both sums
# are mended by one multiplication. For a tile $T$ of new keys
#
# $$h' = \max(h, \max_{j \in T} s_j) \qquad c = e^{h - h'} \tag{3}$$
#
# $$d' = c\,d + \sum_{j \in T} e^{s_j - h'} \qquad
#   n' = c\,n + \sum_{j \in T} e^{s_j - h'}\, v_j \tag{4}$$
#
# and after the last tile
#
# $$o = n / d \tag{5}$$
#
# In a loop, with tiles of one key:


# %%
def one_query(q_i, k, v):
    """The output (M,) of a query (E,), key after key."""
    h, d, n = -np.inf, 0.0, np.zeros(v.shape[1])
    for j in range(len(k)):
        s = q_i @ k[j] / len(q_i) ** 0.5
        new = max(h, s)  # (3)
        c = np.exp(h - new)  # (3)
        d = c * d + np.exp(s - new)  # (4)
        n = c * n + np.exp(s - new) * v[j]  # (4)
        h = new
    return n / d  # (5)


print("loop = arrays:", np.allclose([one_query(x, k, v) for x in q], o))
show(
    figures.walk(q, k, v, row=1, tile=2),
    "walk",
    alt="A row of scores in three tiles of keys, and beside it h, d and n "
    "after each tile, ending in the output.",
)

# %% [markdown]
# Follow the second query. Where the maximum rises, $d$ and $n$ shrink before they grow. The last
# row divided is the output, and no row of weights was ever there.
#
# No exponent is ever above zero, so nothing overflows, whatever the scores are.
#
# %% [markdown] exercise="online-softmax"
# ### Exercise 1 (3 points, 15 min): an answer in tiles
#
# Write `online_softmax` for one query: `tiles` gives pairs of scores `(T,)` and values `(T, M)`,
# once, in order; you never see all of them, and may not keep them. (The check measures your
# memory.) A score of `-inf` is a key that the query may not see. A query that sees nothing at all
# gets an output of zeros.
#
# <details><summary>Hint 1 of 3</summary>
#
# Start from the loop above. What becomes of `s`, of `np.exp(s - new)` and of the product with
# `v[j]` when `s` is a whole tile?
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# A sum over the keys of a tile is `.sum()`, and a sum of values by weights is `weights @ v`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# While all scores are `-inf`, `h - new` is `-inf + inf`, which is nan. Start `h` at a finite number
# below every score, like `-1e30`. Then `d` stays 0 for a query that sees nothing.
#
# </details>


# %% exercise="online-softmax"
def online_softmax(tiles):
    """The output (M,) of one query; tiles gives pairs s (T,), v (T, M)."""
    # BEGIN SOLUTION
    h, d, n = -1e30, 0.0, 0.0
    for s, v in tiles:
        new = max(h, s.max())  # (3)
        c = np.exp(h - new)  # (3)
        d = c * d + np.exp(s - new).sum()  # (4)
        n = c * n + np.exp(s - new) @ v  # (4)
        h = new
    return n / d if d > 0 else n  # (5)
    # END SOLUTION


# %% check="online-softmax"
check("online-softmax", online_softmax)

# %% [markdown]
# ## 3. Backward, an index at a time
#
# The *loss* $\ell$ is the one number that training makes smaller. Write $g_i$ for
# $\partial \ell / \partial o_i$, and $dv_j$ for $\partial \ell / \partial v_j$ (lesson 3's
# $\bar v_j$). Given all $g_i$, go back through (2), then through the scores.
#
# **To the values.** $v_j$ is in every $o_i$, with the factor $p_{ij}$:
#
# $$dv_j = \sum_i p_{ij}\, g_i \tag{6}$$
#
# **To the weights.** $p_{ij}$ is in $o_i$ alone, with the factor $v_j$. Its gradient is the number
# $g_i \cdot v_j$.
#
# **To the scores.** $s_{it}$ is in all weights of its row: in numerator and denominator of $p_{it}$,
# in the denominator of the others. ($h_i$ cancels, as lesson 0 said: it counts as a constant.) The
# quotient rule makes of that $\partial p_{ij} / \partial s_{it} = p_{ij} ([j = t] - p_{it})$, where
# $[j = t]$ is 1 if $j = t$, else 0. Sum over $j$, then call $t$ again $j$:
#
# $$ds_{ij} = p_{ij} \Big( g_i \cdot v_j - \sum_t p_{it}\; g_i \cdot v_t \Big)
#   = p_{ij} (g_i \cdot v_j - \delta_i) \tag{7}$$
#
# **The trick.** $\delta_i$ is a sum over all keys, and looks as if it needed a walk of its own. But
# $g_i$ does not depend on $t$, so it leaves the sum, and what stays you know already:
#
# $$\delta_i = g_i \cdot \sum_t p_{it} v_t = g_i \cdot o_i \tag{8}$$
#
# **To queries and keys.** $s_{ij}$ is $q_i \cdot k_j$ times the scale $1 / \sqrt E$:
#
# $$dq_i = \text{scale} \sum_j ds_{ij}\, k_j \qquad
#   dk_j = \text{scale} \sum_i ds_{ij}\, q_i \tag{9}$$

# %%
g = random.standard_normal(o.shape)  # a random cotangent, as in lesson 3
p = np.exp(q @ k.T / 2 - h[:, None]) / d[:, None]  # (2), scale = 1 / sqrt(4)
long = [sum(p[i, t] * (g[i] @ v[t]) for t in range(6)) for i in range(6)]
short = [g[i] @ o[i] for i in range(6)]  # (8)
print("delta by (7):", np.round(long, 3))
print("delta by (8):", np.round(short, 3))

# %% [markdown]
# What must the forward keep? Not $p$: equation (2) makes each weight again from its score, if you
# have $h_i$ and $d_i$. That is more arithmetic, and less memory, which is the better bargain.
#
# Why two numbers? Their one sum $l_i = h_i + \log d_i$ would do: $p_{ij} = e^{s_{ij} - l_i}$.
#
# **Predict**: scores near 50,000, in float32: by how much is the sum of a row's weights off, in per
# cent, if they are made from $l$? And from $h$ and $d$?

# %%
guess("per cent off, by l", 0.1)

# %%
s = (50_000 + random.standard_normal((256, 64))).astype(np.float32)
high = s.max(axis=1, keepdims=True)
total = np.exp(s - high).sum(axis=1, keepdims=True)
for name, weights in (
    ("by h and d", np.exp(s - high) / total),
    ("by l", np.exp(s - (high + np.log(total)))),
):
    off = 100 * float(abs(weights.sum(axis=1) - 1).max())
    print(f"{name}: the sum of weights is off by {off:.2g} per cent")
reveal("per cent off, by l", off)

# %% [markdown]
# The sum $l$ is rounded to the digits of $h$. So the kernels keep both. (They keep $1 / d$, since
# they multiply by it.)
#
# %% [markdown] exercise="softmax-backward"
# ### Exercise 2 (3 points, 15 min): backward without the weights
#
# Complete `softmax_backward`, arrays in and out, from what was kept: the inputs, `o`, `h` and `d`.
# There may be more queries than keys, or fewer. `k` and `v` may even be a tile of the keys that `o`,
# `h` and `d` have seen: return `dk` and `dv` of these, and their share of `dq`.
#
# <details><summary>Hint 1 of 3</summary>
#
# Write (2), (6), (8), (7) and (9) in this order, a line each. The matrix of all $g_i \cdot v_j$ is
# `g @ v.T`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `h`, `d` and delta have a number for each *row* of the matrices: `h[:, None]`. A sum over queries
# transposes: `p.T @ ...`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `delta = (g * o).sum(axis=1)`, and `ds = p * (g @ v.T - delta[:, None])`.
#
# </details>


# %% exercise="softmax-backward"
def softmax_backward(g, q, k, v, o, h, d):
    """The gradients dq, dk and dv, given g and o (Lq, M), h and d (Lq,)."""
    # BEGIN SOLUTION
    scale = q.shape[1] ** -0.5
    p = np.exp(scale * q @ k.T - h[:, None]) / d[:, None]  # (2)
    dv = p.T @ g  # (6)
    delta = (g * o).sum(axis=1)  # (8)
    ds = p * (g @ v.T - delta[:, None])  # (7)
    return scale * ds @ k, scale * ds.T @ q, dv  # (9)
    # END SOLUTION


# %% check="softmax-backward"
check("softmax-backward", softmax_backward)

# %% [markdown]
# On the tape it is a function like any other. `gradcheck` tries every number of the six tokens, by
# a random [cotangent](glossary.md#cotangent):


# %%
class Attention(Function):
    """Softmax attention of one head, which keeps no weights."""

    @staticmethod
    def forward(ctx, q, k, v):
        """The output; o, h and d are kept."""
        kept = attend(q, k, v)
        ctx.save(q, k, v, *kept)
        return kept[0]

    @staticmethod
    def backward(ctx, g):
        """What you wrote."""
        return softmax_backward(g, *ctx.saved)


print("gradcheck:", gradcheck(Attention.apply, six_tokens()))

# %% [markdown]
# ## 4. Your kernel
#
# Lesson 1's pattern was the [owner](glossary.md#owner): a [thread](glossary.md#thread) owns a
# number of the output. Here a thread owns a query, and *walks* past the keys, by (3) and (4). It
# needs $h$ and $d$, two numbers of its own; $n$ may lie in `out` itself.
#
# The score is given, as a device function: a kernel may call it.


# %%
@cuda.jit(device=True)
def score(query, key, i, j, scale):
    """s_ij, for query (Lq, E) and key (Lk, E)."""
    s = float32(0)
    for e in range(query.shape[1]):
        s += scale * query[i, e] * key[j, e]
    return s


# %% [markdown] exercise="attend-kernel"
# ### Exercise 3 (4 points, 20 min): a thread a query
#
# Write `attend_kernel`. It is launched with enough [blocks](glossary.md#block) of 32 threads for
# all queries; what `out` holds before is anything. Every query sees all keys, and there is at least
# one.
#
# <details><summary>Hint 1 of 3</summary>
#
# `i = cuda.grid(1)` is the thread's query, if there is one. Fill its row of `out` with zeros before
# the walk, and divide it after.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# The body of the walk is `one_query`'s, with `math.exp`. Where that has a row `n`, you have a loop
# over `m`. Compute `c` before you overwrite `h`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Begin with `h, d = float32(-1e30), float32(0)`, inside `if i < out.shape[0]:`. The line of the
# innermost loop is `out[i, m] = c * out[i, m] + p * value[j, m]`.
#
# </details>


# %% exercise="attend-kernel"
@cuda.jit
def attend_kernel(query, key, value, scale, out):
    """Takes query (Lq, E), key (Lk, E), value (Lk, M); writes out (Lq, M)."""
    # BEGIN SOLUTION
    i = cuda.grid(1)
    if i < out.shape[0]:
        h, d = float32(-1e30), float32(0)
        for m in range(out.shape[1]):
            out[i, m] = float32(0)
        for j in range(key.shape[0]):
            s = score(query, key, i, j, scale)
            new = max(h, s)  # (3)
            c, p = math.exp(h - new), math.exp(s - new)
            h, d = new, c * d + p  # (4)
            for m in range(out.shape[1]):
                out[i, m] = c * out[i, m] + p * value[j, m]  # (4)
        for m in range(out.shape[1]):
            out[i, m] /= d  # (5)
    # END SOLUTION


# %% check="attend-kernel"
check("attend-kernel", attend_kernel)

# %% [markdown]
# ## 5. The kernels that run
#
# Each attention has a folder, its *room*; here that is `kernels/softmax`. First the room's plain
# kernel, cut to the lines that cite equations. It is simpler than yours: it walks the keys twice,
# once for the maximum and once for the sums. It cites (12) where it adds up values, and (2) where
# it divides: (12) is (2) with dropout, which in training sets some weights to 0 at random; each
# weight has a factor $m_{ij}$, here 1. (13) is (7) with the same factor, `kept` in the code. (`h` is
# the head, `h_i` the largest score.)

# %%
L, E = (64, 8) if FAST else (128, 16)
Q, K, V = (random.standard_normal((L, E), np.float32) for _ in range(3))
heads = [x[None, None] for x in (Q, K, V)]  # (L, E) -> (N, H, L, E)
with watch() as plain:
    softmax.forward(*heads, version="plain")
show(quote(plain[0].kernel, "(1)", "(12)", "(2)"))

# %% [markdown]
# And the fast one: this course's second pattern, the [walk](glossary.md#walk). A block of threads
# owns a tile of queries, `rows` of them, and walks past the keys, `step` at a time. Look for (3),
# (4) and (5), and for `share`. The sum of values in (4) stands twice. The second loop asks each
# weight whether it is 0, which matters only where a value is not finite. On a GPU it is the one
# that runs (`careful`), and `while True` is left after one turn. The first is for a CPU with many
# heads (`on_lanes`), which reads keys and values where they lie, and takes a second, careful turn
# only if a sum was not finite. In the end `q` is free, and the answers of (5) pass through it on
# their way to memory.

# %%
with watch() as fast:
    out, *sums = softmax.forward(*heads)
    softmax.backward(np.ones_like(out), *heads, out, *sums)
forward, query_gradient, key_gradient = fast
lines = (
    "q[e, r] = scale",
    "k[r, e] = key",
    "share[y, x] = own",
    "share[part, x])",
)
show(quote(forward.kernel, "(3)", "(4)", "(5)", also=lines))
sizes = {name: forward.constants[name] for name in ("rows", "step")}
print("a block:", forward.threads[:2], "threads;", sizes)

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **It shares.** A tile of keys and values is copied to [shared
#    memory](glossary.md#shared-memory), which all threads of a block can read. Each key is fetched
#    once for all queries of the block; you fetch it once a thread. Between writing and reading
#    stands a [barrier](glossary.md#barrier), where all wait for all.
# 2. **Several threads work on a row.** Thread $(x, y)$ makes the scores of query $x$ with its part
#    $y$ of the tile. So no thread knows the row's maximum: each writes that of its part to `share`,
#    and after a barrier reads all. The columns of $n$ are divided in the same way.
# 3. **What is owned lies transposed**, `q[e, x]`. The 32 threads of a [warp](glossary.md#warp) run
#    in step, with neighbouring $x$: so they read neighbouring numbers, from different
#    [banks](glossary.md#bank) of the shared memory. All of them want the *same* number of a key,
#    and one read serves the whole warp.
#
# A tile is read in `here` rows: `step` of them on a GPU; on a CPU the last tile only has as many as are
# left. Whom a query sees (lengths, causality, heads) you will find in the whole text; it is quoted
# here by its equations only.
#
# **Backward** there are two kernels, and it is worth asking why. $dq_i$ is a sum over keys: a block
# that owns queries walks the keys, as before. $dk_j$ and $dv_j$ are sums over queries. The owner of
# a query cannot add to them without getting in the way of all others. So a second kernel owns keys
# and walks the queries; it makes all scores once more. (On a CPU with many heads it makes $dq$ as
# well: then scores are made twice in training, not three times.)
#
# Here are (8) and (7) of the first, and (6) of the second. `ds` holds the weights until (7) has made
# `slope` of them, `at_once` keys at a time. (`near` is query $i$, or the last if there is none.)

# %%
show(quote(query_gradient.kernel, "(8)", "(7)"))
print()
show(quote(key_gradient.kernel, also=["sums[c] += p[r, x] * g[r, m + c]"]))
show(
    figures.owners(fast, length=128),
    "owners",
    alt="Three squares of scores: the forward and the gradient of queries own "
    "rows and walk along keys, the gradient of keys owns columns.",
)

# %% [markdown]
# Every number has one owner, who adds in one order. So results repeat bit by bit, and no
# [atomic](glossary.md#atomic) addition is needed.
#
# ## 6. Count the bytes
#
# The *three operations*, as kernels: two products of matrices in tiles, and between them a thread a
# row for the weights.


# %%
@cuda.jit
def weights_kernel(s, p):
    """Weights p of scores s, both (Lq, Lk)."""
    i = cuda.grid(1)
    if i < s.shape[0]:
        h, d = float32(-1e30), float32(0)
        for j in range(s.shape[1]):
            h = max(h, s[i, j])  # (1)
        for j in range(s.shape[1]):
            d += math.exp(s[i, j] - h)  # (1)
        for j in range(s.shape[1]):
            p[i, j] = math.exp(s[i, j] - h) / d  # (2)


def three_operations():
    """Scores, weights, mixing."""
    scores = matmul(Q / np.float32(E**0.5), K.T, version="tiled")
    weights = np.empty_like(scores)
    weights_kernel[L // 32, 32](scores, weights)
    return matmul(weights, V, version="tiled")


def yours():
    """What you wrote."""
    result = np.empty_like(V)
    attend_kernel[L // 32, 32](Q, K, V, np.float32(E**-0.5), result)
    return result


# %% [markdown]
# The [microscope](glossary.md#microscope) notes every access of every thread. *Needed* are the
# bytes if a cache were perfect: each number of an array comes once, and goes once. *Moved* are
# those without any cache, in [sectors](glossary.md#sector) of 32 bytes.
#
# **Predict**: at $L = 128$ and $E = M = 16$, how many times the bytes that the fused kernel needs do
# the three operations need?

# %%
print(f"L = {L}, E = M = {E}")
guess("three operations / fused", 8)


# %%
def bytes_of(function):
    """Bytes of all launches: needed, and moved."""
    with watch() as launches:
        function()
    roofs = [
        microscope.inspect(
            x.kernel[x.blocks, x.threads], *x.arguments, compiled=False
        ).roofline
        for x in launches
    ]
    return sum(x.needed for x in roofs), sum(x.moved for x in roofs)


ways = {
    "three operations": bytes_of(three_operations),
    "yours": bytes_of(yours),
    "fused, in tiles": bytes_of(lambda: softmax.forward(*heads)),
}
print("same result:", np.allclose(three_operations(), yours(), atol=1e-5))
table(("way", "needed", "moved"), [(name, *n) for name, n in ways.items()])
ratio = ways["three operations"][0] / ways["fused, in tiles"][0]
reveal("three operations / fused", ratio)

# %% [markdown]
# Count along: each of the two matrices is written once and read once, $4 L^2$ numbers; $q$, $k$, $v$
# and $o$ are $4 L E$. So the factor is about $L / E + 1$, here 9. (The fused kernel writes $h$ and
# $1 / d$, too.) No cache helps once the matrix is larger than it. Your kernel needs hardly more than
# the fused one, and *moves* far more: that difference is what tiles are for. (The memory that is
# really taken you have seen in lesson 0.)
#
# ## What it cannot do
#
# The matrix is gone from memory, not from the work: $L^2$ scores are still made, two or three times
# in training. And whoever writes token by token still keeps all keys and values, $L (E + M)$ numbers
# for each head, and walks past them for every new token. Lesson 6 will change both, by giving up
# the exponential.
#
# But first: a head alone learns nothing. What stands around it, how its gradients get to the
# weights, and why a first layer may explode, is the next lesson.

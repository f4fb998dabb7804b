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

# %% [markdown] question="Must a query look at all keys?" minutes=85 after=[4, 10]
# # Only some keys
#
# [Softmax](glossary.md#softmax) attention loses nothing, and looks at everything: lesson 6 gave it
# up for that. But one can keep it, and look at fewer keys. Those near by are a
# [window](glossary.md#window). A few that all may see are [landmarks](glossary.md#landmark). Or a
# [graph](glossary.md#graph) says who sees whom.
#
# In the formulas this changes one factor. The question is for [kernels](glossary.md#kernel): how
# does a [block](glossary.md#block) walk past some keys, and what does it pay for it?
#
# *Sources.* Child et al. 2019, *Generating Long Sequences with Sparse Transformers*; Beltagy et al.
# 2020, *Longformer: The Long-Document Transformer*; Veličković et al. 2018, *Graph Attention
# Networks*.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

from minitransformer import Tensor, nn, no_grad, optim
from minitransformer.attention import local_attention
from minitransformer.course import (
    check,
    error,
    finite_differences,
    guess,
    quote,
    reveal,
    seconds,
    show,
    six_tokens,
    table,
    watch,
)
from minitransformer.course.figures import lesson_13 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import earlier, recall
from minitransformer.functions import cross_entropy
from minitransformer.random import manual_seed
from minitransformer.tasks.graph import GraphTask
from minitransformer_kernels import graph, local, softmax
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.visible import Visible

# %% [markdown]
# ## 1. One mask
#
# Lesson 4's softmax, over those keys only that query $i$ sees, where the [mask](glossary.md#mask)
# $w_{ij}$ is 1, not 0:
#
# $$p_{ij} = w_{ij}\, e^{s_{ij} - h_i} / d_i \qquad d_i = \sum_j w_{ij}\, e^{s_{ij} - h_i}
#   \qquad o_i = \sum_j p_{ij} v_j \tag{A}$$
#
# with $h_i$ the highest score among them. Lesson 4's [backward](glossary.md#backward), (6) to (9),
# stays as it is: each term has the factor $p_{ij}$, by itself or in $ds_{ij}$. For a pair that is
# not seen that is 0.
#
# Which keys? Query $i$ stands at the position $p_i$, key $j$ at $j$. With a window of $w$ it sees
#
# $$p_i - w \le j \le p_i \;\text{ (causal)} \qquad |p_i - j| \le w
#   \;\text{ (both directions)} \tag{1}$$
#
# and with landmarks also, from everywhere ([causal](glossary.md#causal): from $j$ on), for instance
# the first key, and the last one of every four:
#
# $$j < 1 \quad\text{or}\quad j \bmod 4 = 3 \tag{2}$$
#
# These are the *global* [tokens](glossary.md#token) of Longformer, and the *fixed pattern* of Child
# et al. Longformer's also *see* every key. So the first few queries may be global, too (causal: see
# all keys up to their own place).
#
# (The numbers are those of the [room](glossary.md#room) `kernels/local`. $w$ alone is the window,
# $w_{ij}$ the mask; $p_i$ is a position, `at` in code, and $p_{ij}$ a weight, `p`.) In arrays, and
# in a loop over lists:

# %%
random = np.random.default_rng(13)
q, k, v = six_tokens()  # (6, 4), (6, 4), (6, 3)


def attend(mask):
    """(A): weights (L, L) and outputs (L, M)."""
    s = np.where(mask, q @ k.T / 2, -np.inf)  # sqrt(E) is 2
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True)
    return p, p @ v


def by_lists(mask):
    """The same outputs: each query has a list of keys."""
    o = np.empty_like(v)
    for i in range(len(q)):
        j = np.flatnonzero(mask[i])
        s = k[j] @ q[i] / 2
        p = np.exp(s - s.max())
        o[i] = p / p.sum() @ v[j]
    return o


at = j = np.arange(6)
mask = (abs(at[:, None] - j) <= 1) | (j < 1)  # (1), (2)
weights, o = attend(mask)
print(f"by lists: off by {error(by_lists(mask), o):.0e}")
g = random.standard_normal(v.shape)  # a random cotangent
ds = weights * (g @ v.T - (g * o).sum(axis=1, keepdims=True))  # lesson 4
slopes = finite_differences(lambda: (g * attend(mask)[1]).sum(), q)
print(f"dq: off by {error(ds @ k / 2, slopes):.0e}")

# %% [markdown]
# Here are three masks of 16 tokens, with a window of 2. A token's own place is amber:

# %% tags=["hide-input"]
at = j = np.arange(16)
back, landmark = at[:, None] - j, (j < 1) | (j % 4 == 3)
near, past = abs(back) <= 2, back >= 0
masks = {
    "a window of 2, causal": near & past,
    "with landmarks, causal": (near | landmark) & past,
    "both ways, a global token": near | (at[:, None] < 1) | (j < 1),
}
show(
    figures.patterns(masks), "patterns",
    alt="Three masks: a band, a band with columns, a band with a row and column",
)  # fmt: skip

# %% [markdown]
# One rule holds all this. A key is seen *from* a range of positions, a query asks *from* one:
#
# $$\begin{array}{lcccc}
# & \text{key } j & \text{landmark } j & \text{query } i & \text{global query} \\
# \text{causal} & [j,\, j + w] & [j, \infty] & [p_i, p_i] & [-\infty, p_i] \\
# \text{both} & [j - w,\, j + w] & [-\infty, \infty] & [p_i, p_i] & [-\infty, \infty]
# \end{array} \tag{3}$$
#
# $$w_{ij} = 1 \text{ where the two ranges meet, } 0 \text{ elsewhere} \tag{4}$$

# %% [markdown] exercise="sees"
# ### Exercise 1 (3 points, 10 min): who sees whom
#
# Write (3) and (4), without a loop. `at` (Lq,) says where queries stand, from 0 on; that need not
# be their row's number. `landmark` (Lk,) is true for landmarks; `window` is $w$. Queries at
# positions below `global_queries` are global. Return the mask (Lq, Lk), true where $w_{ij} = 1$.
#
# <details><summary>Hint 1 of 3</summary>
#
# Four arrays: where each key's range begins and ends, and each query's. `np.inf` is infinity.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `np.where(landmark, np.inf, j + window)` is where the keys' ranges end.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Two ranges meet where each begins before, or where, the other one ends. With queries as a column,
# `last[:, None]`, a comparison has all pairs.
#
# </details>


# %% exercise="sees"
def sees(at, landmark, window, global_queries, causal):
    """The mask (Lq, Lk)."""
    # BEGIN SOLUTION
    j, inf = np.arange(len(landmark)), np.inf
    since = j if causal else np.where(landmark, -inf, j - window)  # (3)
    until = np.where(landmark, inf, j + window)  # (3)
    everywhere = at < global_queries
    first = np.where(everywhere, -inf, at)  # (3)
    last = np.where(everywhere & (not causal), inf, at)  # (3)
    return (since <= last[:, None]) & (first[:, None] <= until)  # (4)
    # END SOLUTION


# %% check="sees"
check("sees", sees)

# %% [markdown]
# ## 2. What is saved, and what is lost
#
# A query of a causal text sees at most $w + 1$ keys. What stands farther away reaches it only by
# way of others: in a second [layer](glossary.md#layer), those that it sees have seen more.
# **Predict** for 4,096 tokens and $w = 64$: how many times fewer pairs are there than without a
# window? In how many layers does the last token hear of the first? And if the last of every 64 keys
# is a landmark?

# %%
guess("times fewer pairs", 64)
guess("layers, window", 64)
guess("layers, window and landmarks", 3)


# %%
def layers(mask):
    """How many it takes until the last token has heard of the first."""
    heard, count = mask[-1], 1
    while not heard[0]:
        heard, count = mask[heard].any(axis=0), count + 1
    return count


L, w = (512, 8) if FAST else (4096, 64)
at = np.arange(L)
window = sees(at, at < 0, w, 0, True)
both = sees(at, at % w == w - 1, w, 0, True)
reveal("times fewer pairs", L * (L + 1) / 2 / window.sum())
reveal("layers, window", layers(window))
reveal("layers, window and landmarks", layers(both))
print(f"landmarks make it {both.sum() / window.sum():.2f} times the pairs")

# %% [markdown]
# ## 3. A list that exists nowhere
#
# A mask takes memory as $L^2$ does; to ask it, time. Lesson 4's [walk](glossary.md#walk) can do
# better. A block [owns](glossary.md#owner) a [tile](glossary.md#tile) of queries, and a softmax
# does not ask for the order of keys. So let the block walk a *list*: the landmarks before its
# windows, then every key from its first window to its last; then, if not causal, the landmarks
# after them. The room's own functions, for queries 13 to 16:

# %%
pattern = local.Pattern(window=3, stride=4, num_global=1)
numbers = pattern.arguments(np.zeros((1, 1, 20, 4)), rows=4)  # of 20 keys
told = pattern.walk.keys_of(13, 17, 20, True, numbers)  # its end, and more
key_at = pattern.walk.key_at
listed = [key_at(u, *told, True, numbers)[0] for u in range(told[0])]
print("the list:", *listed)
at, j = np.arange(13, 17), np.arange(20)
mask = sees(at, (j < 1) | (j % 4 == 3), 3, 0, True)
show(
    figures.listed(mask, at, listed), "listed",
    alt="Four queries; all keys and whom they see; the list that a tile walks",
)  # fmt: skip

# %% [markdown]
# The hollow squares are scores made for nothing. The list itself is not stored: a
# [thread](glossary.md#thread) asks for the key at place $u$, and from where that is seen. Then it
# asks (4), as the plain kernel does of all pairs:

# %%
show(quote(key_at))
show(quote(pattern.sees))
x = random.standard_normal((3, 1, 1, 300, 32), np.float32)
with watch() as launched:
    local.forward(*x, Visible(causal=True), window=64)
print("queries of a tile:", launched[0].constants["rows"])

# %% [markdown]
# (Of a list's `end` places the first are `before` landmarks, then come the keys from `low` on, below
# `high`. `landmarks` and `below`, how many of them stand before a key, are stored, once for all
# [heads](glossary.md#head). (3) is `_seen_from` for a key, `_asks_from` for a query. What is
# `NOWHERE` nobody sees.)
#
# A list has its price: with a window of 64, tiles of 64 queries have lists of 128 keys, of which a
# query sees 65. **Predict**: twice the text takes softmax about four times as long. How many times
# local attention?

# %%
guess("twice the text, local", 2)

# %%
rows, lengths = [], (64, 128) if FAST else (256, 512, 1024, 4096, 8192)
for L in lengths:
    x = random.standard_normal((3, 1, 1, L, 32), np.float32)
    runs = [partial(local.forward, window=w) for w in (64, 0, L)]
    runs = [partial(f, *x, Visible(True)) for f in (softmax.forward, *runs)]
    rows.append((L, *seconds(*runs)))
table(("L", "all keys before", "a window of 64"), [row[:3] for row in rows])
reveal("twice the text, local", rows[-1][2].median / rows[-2][2].median)
full, near, nearest, whole = (x.median for x in rows[-1][1:])
print(f"a score takes {near / 128 / full * L / 2:.1f} times as long")
print(f"a list of all keys: {whole / full:.2f} times softmax's time")
print(f"a window of 0, lists of 64: {nearest / near:.2f} times that of 64")

# %% [markdown]
# From about 512 tokens on the window wins. But why does a score take longer there? Not as keys are
# looked up and ranges compared: a list of *all* keys takes about as long as softmax. But lists half
# as long do not halve the time. The rest is what a tile does once, whatever its list: it fetches
# queries, and writes outputs. Over 128 keys that weighs more than over softmax's 4,096.
#
# Backward, a block owns a tile of *keys*, and walks a list of the queries that see them: those near
# by, and the global ones. But a single landmark would make its tile walk all queries. So landmarks
# form tiles of their own.
#
# ## 4. Lists that do exist
#
# Which papers cite which, which pictures look alike: no formula says that. There are only pairs, in
# any order: query [node](glossary.md#graph) $i$ sees key node $j$, which is an *edge* $e$. A walk
# wants the edges of a node side by side. Sort them by query, and note where each node's begin:
# [compressed sparse rows](glossary.md#compressed-sparse-rows).

# %% [markdown] exercise="csr"
# ### Exercise 2 (2 points, 8 min): rows of edges
#
# Edge number e of `queries` and `keys` (edges,) leads from `queries[e]` to `keys[e]`; query nodes
# are numbered from 0 to `count - 1`. Return `offsets` (count + 1,) and `columns` (edges,): the keys
# of node $i$ are `columns[offsets[i] : offsets[i + 1]]`, in the order given. An edge that is there
# twice counts twice. A node may have no edges. No loop.
#
# <details><summary>Hint 1 of 3</summary>
#
# `np.argsort(queries, kind="stable")` says which edge comes first, which second, ...; equal ones
# stay in order.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `np.bincount(queries, minlength=count)` is how many edges each node has.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Offsets are the running sums of these numbers, below a 0.
#
# </details>


# %% exercise="csr"
def csr(queries, keys, count):
    """Offsets (count + 1,) and columns (edges,)."""
    # BEGIN SOLUTION
    order = np.argsort(queries, kind="stable")
    ends = [[0], np.bincount(queries, minlength=count).cumsum()]
    return np.concatenate(ends), keys[order]
    # END SOLUTION


# %% check="csr"
check("csr", csr)

# %% [markdown]
# ## 5. Attention along edges
#
# Scores may be products, as ever. Graph attention networks take less, a number of each node:
#
# $$s_e = \mathrm{LeakyReLU}(a_i + b_j) \tag{1}$$
# $$s_e = \text{scale}\; q_i \cdot k_j \tag{2}$$
#
# (*Numbers begin anew*: they are those of the room `kernels/graph`. $a_i$ and $b_j$ are products of
# a token with two learned vectors.) LeakyReLU leaves what is above 0 as it is, and multiplies the
# rest by a small *slope*. Without it $a_i$, which is the same in all scores of a query, would
# cancel in the softmax. Then
#
# $$d_i = \sum_{e \text{ of } i} e^{s_e - h_i} \qquad p_e = e^{s_e - h_i} / d_i \tag{3}$$
# $$o_i = \sum_{e \text{ of } i} p_e\, v_j \tag{4}$$
#
# Edge after edge, `rows[e]` is $i$ and `columns[e]` is $j$. There are Tq query nodes and Tk key
# nodes:


# %%
def sums(x, owners, count):
    """The sum of the rows of x (edges, ...) of each owner."""
    total = np.zeros((count, *x.shape[1:]))
    np.add.at(total, owners, x)  # in a loop: total[owners[e]] += x[e]
    return total


def along_edges(a, b, v, rows, columns, slope):
    """Weights p (edges,) and outputs o (Tq, M)."""
    z, h = a[rows] + b[columns], np.full(len(a), -np.inf)
    s = np.where(z > 0, z, slope * z)  # (1)
    np.maximum.at(h, rows, s)
    t = np.exp(s - h[rows])
    p = t / sums(t, rows, len(a))[rows]  # (3)
    return p, sums(p[:, None] * v[columns], rows, len(a))  # (4)


# %%
random, slope = np.random.default_rng(111), 0.2
queries, keys = random.integers(6, size=(2, 15))
offsets, columns = csr(queries, keys, 6)
rows = np.sort(queries)
a, b = q @ random.standard_normal(4), k @ random.standard_normal(4)
p, o = along_edges(a, b, v, rows, columns, slope)
mine = [*map(slice, offsets, offsets[1:])]  # the edges of each node
print("node 4 sees", *columns[mine[4]])
own = [p[e] @ v[columns[e]] for e in mine]
print(f"by node: off by {error(own, o):.0e}")

# %% [markdown]
# The backward is lesson 4's, with edges for pairs. But mind who adds up: a query sums over *its*
# edges, a key over the edges *to* it, wherever they stand.
#
# $$dv_j = \sum_{e \text{ to } j} p_e\, g_i \tag{5}$$
# $$ds_e = p_e\, (g_i \cdot v_j - \delta_i) \qquad \delta_i = g_i \cdot o_i \tag{6}$$
#
# Through LeakyReLU, whose slope is 1 above 0, then to the two numbers of its sum:
#
# $$dz_e = ds_e\, \mathrm{LeakyReLU}'(a_i + b_j) \tag{7}$$
# $$da_i = \sum_{e \text{ of } i} dz_e \qquad db_j = \sum_{e \text{ to } j} dz_e \tag{8}$$
#
# For products, (2), in place of (7) and (8):
#
# $$dq_i = \text{scale} \sum_{e \text{ of } i} ds_e\, k_j \qquad
#   dk_j = \text{scale} \sum_{e \text{ to } j} ds_e\, q_i \tag{9}$$

# %% [markdown] exercise="graph-backward"
# ### Exercise 3 (4 points, 15 min): back along the edges
#
# Write this section's (5) to (8): `g`, `o` (Tq, M), `p` (edges,), `a` (Tq,), `b` (Tk,), `v` (Tk,
# M), `rows`, `columns` (edges,) and `slope`; return `da` (Tq,), `db` (Tk,) and `dv` (Tk, M). No
# loop, and no array of all pairs.
#
# <details><summary>Hint 1 of 3</summary>
#
# `g[rows]` (edges, M) has for each edge the g of its query, `v[columns]` the v of its key.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# All sums of (5) and (8) are `sums`, by `rows` or by `columns`. (`x[columns] += y` will not do: of
# several edges to one key it adds the last.)
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `ds = p * ((g[rows] * v[columns]).sum(axis=1) - delta[rows])`, and `dz` is `ds` where
# `a[rows] + b[columns]` is above 0, else `slope * ds`.
#
# </details>


# %% exercise="graph-backward"
def graph_backward(g, o, p, a, b, v, rows, columns, slope):
    """The gradients (da, db, dv)."""
    # BEGIN SOLUTION
    dv = sums(p[:, None] * g[rows], columns, len(v))  # (5)
    delta = (g * o).sum(axis=1)  # (6)
    ds = p * ((g[rows] * v[columns]).sum(axis=1) - delta[rows])  # (6)
    dz = np.where(a[rows] + b[columns] > 0, ds, slope * ds)  # (7)
    return sums(dz, rows, len(a)), sums(dz, columns, len(b)), dv  # (8)
    # END SOLUTION


# %% check="graph-backward"
check("graph-backward", graph_backward)


# %%
def loss():
    """A number that depends on every output."""
    return (g * along_edges(a, b, v, rows, columns, slope)[1]).sum()


gradients = graph_backward(g, o, p, a, b, v, rows, columns, slope)
for name, x, got in zip(("da", "db", "dv"), (a, b, v), gradients, strict=True):
    print(f"{name}: off by {error(got, finite_differences(loss, x)):.0e}")

# %% [markdown]
# ## 6. A thread an edge
#
# If a thread owned a node, all others would wait for one with 10,000 edges. Where there is no sum
# over edges, as in (1), (6) and (7), let a thread own an edge: all do the same work.

# %% [markdown] exercise="edge-kernel"
# ### Exercise 4 (3 points, 12 min): through an edge
#
# Write section 5's (6) and (7) as a kernel. The edge is `cuda.grid(1)`, the
# [head](glossary.md#head) `cuda.blockIdx.y`; the last block may have more threads than there are
# edges. `g` is (H, Tq, M), `v` (H, Tk, M), `a` (H, Tq), `b` (H, Tk), `p` (H, edges), `delta` (H,
# Tq); `rows` and `columns` (edges,) are those of all heads, `slope` is a number. `dz` (H, edges) is
# written to.
#
# <details><summary>Hint 1 of 3</summary>
#
# `if e < rows.size:`, then `i, j = rows[e], columns[e]`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# A scalar `product = float32(0)` and a loop over m make $g_i \cdot v_j$.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# With `ds = p[h, e] * (product - delta[h, i])`, `dz[h, e]` is `ds if z > 0 else slope * ds`.
#
# </details>


# %% exercise="edge-kernel"
@cuda.jit
def edge_kernel(g, v, a, b, p, delta, rows, columns, slope, dz):
    """A thread owns edge e."""
    # BEGIN SOLUTION
    e, h = cuda.grid(1), cuda.blockIdx.y
    if e < rows.size:
        i, j = rows[e], columns[e]
        product = float32(0)
        for m in range(v.shape[2]):
            product += g[h, i, m] * v[h, j, m]
        ds = p[h, e] * (product - delta[h, i])  # (6)
        z = a[h, i] + b[h, j]
        dz[h, e] = ds if z > 0 else slope * ds  # (7)
    # END SOLUTION


# %% check="edge-kernel"
check("edge-kernel", edge_kernel)

# %% [markdown]
# ## 7. The real kernels
#
# A graph with a hub: 10,000 nodes, of which each sees itself and node 0. Node 0 does so twice; so
# for it (5) is a sum over 10,001 edges. The room cuts long rows into pieces of 256. **Predict**:
# how many pieces is that, in how many walks?

# %%
guess("pieces", 40)
guess("walks", 2)

# %%
T, nodes = 10_000, np.arange(10_000)
ends = np.column_stack([nodes, 0 * nodes]).ravel()
hub = graph.Edges(np.arange(0, 2 * T + 1, 2), ends, num_keys=T)
terms = [int(np.diff(walk.offsets).max()) for walk in hub.by_key]
reveal("pieces", terms[-1])
reveal("walks", len(terms))
print("most terms that a thread adds up, by walk:", *terms)
x = random.standard_normal((1, T, 16), np.float32)
numbers = x[..., 0], x[..., 1]  # a and b of (1)
with watch() as launched:
    o, p = graph.forward(graph.additive_scores(*numbers, hub), x, hub)
    ds, dv = graph.backward(x, x, hub, o, p)
    graph.additive_scores_backward(ds, *numbers, hub)
kernels = {x.kernel.__name__: x.kernel for x in launched}
print("launched:", *kernels)
show(quote(kernels["score_gradient"], "(6)"))
show(quote(kernels["additive_gradient"], "(7)"))
show(quote(kernels["mix"], "(4)"))

# %% [markdown]
# (`w` is `p` here: they differ under [dropout](glossary.md#dropout). `C` is $v$ in (4) and $g$ in
# (5); edge `edges[t]` leads to `others[t]`.) Two more differences from yours:
#
# 1. **A kernel a step.** Yours makes (6) and (7) at once. The room's `product` makes `dw`, the
#    $g_i \cdot v_j$ of (6), and serves (2), too.
# 2. **Sums by columns.** In `mix` a thread owns a column of a row, not the whole row: neighbouring
#    threads read neighbouring numbers of `C` ([coalescing](glossary.md#coalescing)). For (5) the
#    edges are sorted once more, by key. So every sum has one owner and one order: no
#    [atomics](glossary.md#atomic), and results repeat bit by bit.
#
# ## 8. A graph of digits
#
# 1,797 pictures of digits, of which 360 are held out. Each sees itself and the four training
# pictures most like it, by squared differences of pixels. A layer with one head is told the upper
# half of each picture only; who sees whom comes from the whole ones. It learns the digits for 100
# steps. **Predict**: alone, each seeing itself only, it reads about 300 of 360. How many with
# neighbours?

# %%
guess("right, with neighbours", 320)

# %%
task = GraphTask(neighbours=4)
images, labels = map(np.concatenate, zip(*task.digits, strict=True))
seen = task.seen(images)  # (1797, 5): itself, and four more
upper = images * (np.arange(64) < 32)


# %% tags=["hide-input"]
def reads(x, seen, seed):
    """What it reads in each picture, and its weights, as `seen`."""
    manual_seed(seed)
    x, layer = Tensor(x), nn.GraphAttention(64, 10, num_heads=1)
    offsets = np.arange(len(seen) + 1) * seen.shape[1]
    nodes = nn.Graph(offsets, seen.ravel())
    optimizer = optim.Adam(layer.parameters(), lr=0.03)
    for _ in range(100):
        loss = cross_entropy(layer(x, nodes)[:-360], labels[:-360])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with no_grad():
        read = layer(x, nodes).numpy().argmax(axis=1)
    return read, layer.attention_weights(x, nodes).numpy().reshape(seen.shape)


def right(read):
    """How many of the 360 are right."""
    return (read[-360:] == labels[-360:]).sum()


def vote(digits):
    """In each row (4,) the digit that is there most often."""
    return np.eye(10)[digits].sum(axis=1).argmax(axis=1)


def tried(name, x, seen):
    """Print how many are right, seed after seed; return what seed 0 reads, and its weights."""
    found = [reads(x, seen, seed) for seed in range(1 if FAST else 5)]
    print(f"{name}:", *(right(read) for read, _ in found))
    return found[0]


def draw(read, p):
    """The three pictures that see the most different digits."""
    kinds = (np.diff(np.sort(labels[seen[-360:]])) > 0).sum(axis=1)
    doubtful = np.argsort(-kinds, kind="stable")[:3] - 360
    show(
        figures.digits(images, labels, seen, p, read, doubtful), "digits",
        alt="Three pictures in a row each, with those that they see, by weight",
    )  # fmt: skip


# %%
itself, mean = seen[:, :1], upper[seen].mean(axis=1)
tried("alone", upper, itself)
read, p = tried("with neighbours", upper, seen)
reveal("right, with neighbours", right(read))
tried("the plain mean of all five", mean, itself)
print("no layer, the nearest one's label:", right(labels[seen[:, 1]]))
print("a vote of the four labels:", right(vote(labels[seen[:, 1:]])))
draw(read, p)

# %% [markdown]
# (For five seeds. Faded: what the layer is not told. Below: a digit, and how much it is looked at.)
# Neighbours help. That their weights are learned does not: a plain mean is a little better. It is
# the graph that knows: made from whole pictures, it leaks the answer. The nearest one's label,
# which no layer is told, is right 354 times. The first picture is a 4; the layer looks at an 8 for
# 43%, and says 8.
#
# ## 9. The scoreboard
#
# Lesson 10's two tasks: the [recall](glossary.md#recall) of 32 pairs, and which of 16 symbols stood
# three places earlier. The 32 questions follow the 32 pairs: query $i$ stands at $32 + i$.
# **Predict**, in percent, the first for a window of 16, the second for one of 3, both without
# distances:

# %%
guess("recall, window of 16", "19%")
guess("three earlier, window of 3", "38%")


# %% tags=["hide-input"]
class Near(nn.Module):
    """Local attention, with lesson 10's distances in its scores or not."""

    def __init__(self, first_query, distances=False, **pattern):
        self.e = None
        if distances:
            self.e = nn.Parameter(np.zeros((1, 17, 16), np.float32))
        self.how = {"causal": True, "query_offset": first_query, **pattern}

    def forward(self, query, key, value):
        """(N, H, Lq, E), and as many columns of keys and values."""
        how = {"relative_embedding": self.e, **self.how}
        return local_attention(query, key, value, **how)


def by_count():
    """What counting says of the table."""
    for kept in (16 * 17 / 2) / 32**2, (16 * 17 / 2 + 32 * 8) / 32**2:
        yield f"recall {kept + (1 - kept) / 16:.1%}"  # or a guess
    shares = []  # of the symbol that stands most often before a query
    for before in range(3, 35):
        symbols = random.integers(16, size=(1000, before, 1))
        times = (symbols == np.arange(16)).sum(axis=1).max(axis=1)
        shares.append((times / before).mean())
    yield f"the most frequent symbol {np.mean(shares):.1%}"
    yield f"one of three {(1 + 2 / 16) / 3:.1%}"  # they may be equal


# %%
rows, shares = [], {}
for name, keys, more in (
    ("all keys", 32, {"window": 64}),
    ("window of 16", 16, {"window": 16}),
    ("and the first 8 keys", 24, {"window": 16, "num_global": 8}),
    ("window of 3", 3, {"window": 3}),
    ("window of 16, distances", 16, {"window": 16, "distances": True}),
):
    pairs = recall(Near(32, **more))
    order = recall(Near(3, **more), task=partial(earlier, 3))
    shares[name] = f"{pairs:.0%}", f"{order:.0%}"
    work = 32 * keys + 9 * 16 * ("distances" in more)
    rows.append((name, 32 * keys, work, *shares[name]))
table(("E = 16", "kept", "work a token", "recall", "three earlier"), rows)
reveal("recall, window of 16", shares["window of 16"][0])
reveal("three earlier, window of 3", shares["window of 3"][1])
print("by count:", *by_count(), sep="\n  ")

# %% [markdown]
# (Kept are the window's keys and values, and the landmarks'; a token's own are at hand. Distances 0
# to 8 add nine products.) Counting explains it. With a window of 16 the first query still sees 16
# of the 32 keys, the next one 15, and so on; with landmarks all see 8 more. Else one guesses, right
# once in 16. What stood three places earlier is the oldest of four keys in a window of 3. A head
# can tell its own symbol from the rest, and then guesses among three; among many, the most frequent
# one. So a window knows what is near, but not in which order. That takes lesson 10's distances.
#
# ## What it cannot do
#
# * What has left the window is gone, if no landmark and no further layer passes it on. And who
#   passes on does not know what will be asked.
# * Who sees whom is fixed before the text is read. No query can look for a key; nearness or a graph
#   must be the right guess.
# * With a stride, landmarks grow in number with the text, and with them work, and what a
#   [decoder](glossary.md#decoder) keeps.
#
# **Next question: 50,000 pixels have no window and no graph; but must each of them ask?** That is
# lesson 14.

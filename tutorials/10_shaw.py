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

# %% [markdown] question="Distance matters; must that cost L^2?" minutes=80 after=[6, 7]
# # Where: Shaw in linear time
#
# Dog bites man; man bites dog. To linear attention both are the same three
# [tokens](glossary.md#token). A weight depends on *what* stands there, and lesson 9's better
# features change nothing about that. It does not depend on *where*. A
# [causal](glossary.md#causal) [mask](glossary.md#mask) hides the keys to come, but among those that
# are left, order counts for nothing. (Where lesson 7's memory fades, age counts; but by one fixed
# curve, for all queries.)
#
# Shaw's cure: weigh by [relative positions](glossary.md#relative-position), too. Each distance from
# query to key gets a weight, which is learned. But the distances of all pairs are an $L \times L$
# matrix. Is what lesson 6 won lost again? No: most of that matrix says the same thing.
#
# *Sources.* Shaw, Uszkoreit and Vaswani 2018, *Self-Attention with Relative Position
# Representations*. The linear form is S0's, in the [list of sources](sources.md).

# %% tags=["hide-input"]
from functools import partial

import numpy as np

from minitransformer import nn
from minitransformer.attention import (
    linear_attention,
    relative_linear_attention,
)
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
from minitransformer.course.figures import lesson_10 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import earlier, recall
from minitransformer_kernels import relative
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear.reference import phi
from minitransformer_kernels.planner import Sizes, plan
from minitransformer_kernels.relative.reference import (
    relative_linear_attention as by_definition,
)

# %%
random = np.random.default_rng(10)
Q, K, v = six_tokens()  # (6, 4), (6, 4), (6, 3)
u = phi(Q, "elu")  # features of queries


def content(K, v):
    """Lesson 6: n (L, M), and d as a column, (L, 1)."""
    a = u @ phi(K, "elu").T
    return a @ v, a.sum(axis=1, keepdims=True)


n, d = content(K, v)
order = random.permutation(6)
n_mixed, d_mixed = content(K[order], v[order])
print("keys in the order", order, end=": ")
print(f"outputs move by {error(n_mixed / d_mixed, n / d):.0e}")

# %% [markdown]
# ## 1. A weight for each distance
#
# A distance says where the key stands, seen from the query: -1 is the token before. Whether a word
# is 300 or 301 places away will hardly matter. So what is farther than some $k$ counts as being at
# $k$, and $2k + 1$ distances are left:
#
# $$r(i, j) = \mathrm{clip}(j - i, -k, k) \tag{1}$$
#
# ($k$ is a number in this lesson, no key. Equations have the numbers of the
# [room](glossary.md#room) `kernels/relative`. There $i$ is $p_i$, as a query may stand anywhere.)
# Each distance gets a learned vector $e_r$, as if it were one more key that queries meet. So how
# much a distance counts may depend on the query, $u_i = \varphi(Q_i)$. A map $f$ makes a weight $F$
# of their product $B$; $w_{ij}$ is the mask:
#
# $$B_{ir} = u_i \cdot e_r \qquad F_{ir} = f(B_{ir}) \qquad s_{ij} = w_{ij}\, F_{i, r(i,j)} \tag{2}$$
#
# A pair now has two weights, of content and of distance. They are added:
#
# $$o_i = \frac{n_i + n'_i}{\mathrm{guard}(d_i + d'_i)} \qquad n'_i = \sum_j s_{ij} v_j
#   \qquad d'_i = \sum_j s_{ij} \tag{3}$$
#
# with $n$ and $d$ of lesson 6, and its [guard](glossary.md#guard). Three maps are at hand, each
# with its slope. The first two are positive, as weights should be. The last can have any sign, and
# is not used in this lesson:
#
# $$f(b) = \log(1 + e^b) \qquad f' = 1 - e^{-f} \tag{4}$$
# $$f(b) = e^{\min(b, 60)} \qquad f' = f \tag{5}$$
# $$f(b) = b \qquad f' = 1 \tag{6}$$
#
# Each slope can be told from $F$ alone (in (5) it is 0 at the cap): the
# [backward](glossary.md#backward) need not compute a score again. We take (4), the *softplus*, whose
# slope is the sigmoid of $b$. The package's `phi` can compute $f$, too. As a loop, and as arrays:

# %%
k = 2
e = random.standard_normal((2 * k + 1, 4)).round(1)  # row r + k is e_r


def pairs_loop(F, v):
    """One head: F (L, 2k + 1), v (L, M) -> n' (L, M), d' (L,)."""
    k, n, d = F.shape[1] // 2, np.zeros_like(v), np.zeros(len(v))
    for i in range(len(v)):
        for j in range(len(v)):
            r = min(max(j - i, -k), k)  # (1)
            s = F[i, r + k]  # (2)
            n[i] += s * v[j]  # (3)
            d[i] += s  # (3)
    return n, d


def in_arrays(F, v):
    """The same."""
    k, i = F.shape[1] // 2, np.arange(len(v))
    r = np.clip(i - i[:, None], -k, k)  # (1): (L, L)
    s = np.take_along_axis(F, r + k, axis=1)  # (2): (L, L)
    return s @ v, s.sum(axis=1)  # (3)


F = phi(u @ e.T, "softplus")  # (2), (4): (6, 5)
truth = by_definition(*(x[None, None] for x in (Q, K, v)), e[None])[0, 0]
for form in (pairs_loop, in_arrays):
    n_far, d_far = form(F, v)
    out = (n + n_far) / (d + d_far[:, None])
    print(f"{form.__name__}: off by {error(out, truth):.0e}")

# %% [markdown]
# ## 2. A band and two tails
#
# Here is what the clip leaves:

# %%
show(
    figures.clipped(12, 3), "clipped",
    alt="The matrix of clipped distances: a band, and one number on each side",
)  # fmt: skip

# %% [markdown]
# **Predict**: how many percent of all pairs are in the band, $|j - i| < k$, at $L = 4096$ and
# $k = 16$?

# %%
guess("percent in the band", 5)

# %%
for L in (64, 512, 4096):
    pairs = sum(L - abs(r) for r in range(-15, 16))  # k = 16
    print(f"L = {L}: {pairs:,} of {L * L:,} pairs, {pairs / L**2:.1%}")
reveal("percent in the band", 100 * pairs / L**2)

# %% [markdown]
# In the left tail of row $i$ every pair has the same weight, $F_{i,-k}$. What is the same in every
# term may leave the sum, and what stays behind is a plain sum of values:
#
# $$n'_i = F_{i,-k}\, A_i + \sum_{|j - i| < k} s_{ij} v_j + F_{i,k}\, C_i \tag{7}$$
# $$A_i = \sum_{j \le i - k} v_j \qquad C_i = \sum_{j \ge i + k} v_j \tag{8}$$
#
# (These are not lesson 6's $A$ and $C$. With $k = 0$ there is one distance: then $A$ has the keys
# up to $i$, and $C$ those after it.) Nothing is masked here. $d'$ is the same with 1 in the place
# of $v_j$. From row $k$ on, $A$ gains one value a row; $C$ loses one until it is empty. Such sums
# are
# *running* sums: all $L$ of them take $L$ additions. A row then costs $2k + 1$ terms, however long
# the text is.
#
# Note what was *not* needed. In lesson 6 a weight had to come apart into a part of the query and a
# part of the key. Here $f$ may be anything: weights repeat, and that is enough.

# %% [markdown] exercise="far-sums"
# ### Exercise 1 (3 points, 10 min): the tails
#
# Write (8): from values `v` (L, M) and `k` return `A` and `C`, both (L, M), without a loop and
# without an array of all pairs. Where nothing is so far away, the sum is zero. With $k = 0$ all
# keys are at one distance, and each must count once: token $i$ itself is in `A` then, not in `C`.
#
# <details><summary>Hint 1 of 3</summary>
#
# Let `P[a]` be the sum of the first `a` values: `v.cumsum(axis=0)` below a row of zeros.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# The keys $j \le i - k$ are the first `i - k + 1`, if that is not below zero. `P[a]` takes a whole
# array of such numbers.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# C is all values but the first `i + k` (with k = 0: but the first `i + 1`). That number must not be
# above L: `np.minimum`.
#
# </details>


# %% exercise="far-sums"
def far_sums(v, k):
    """A and C of all rows."""
    # BEGIN SOLUTION
    i = np.arange(len(v))
    P = np.concatenate([np.zeros_like(v[:1]), v.cumsum(axis=0)])
    a = np.maximum(i - k + 1, 0)  # so many keys are in A
    c = np.minimum(np.maximum(i + k, i - k + 1), len(v))  # come before C
    return P[a], P[-1] - P[c]
    # END SOLUTION


# %% check="far-sums"
check("far-sums", far_sums)

# %% [markdown]
# The band is a loop over $2k - 1$ distances, with all rows at once. One trick saves half of the
# lines: a value with a 1 at its end, $[v_j, 1]$, makes $d'$ one more column of $n'$.


# %%
def rows_of(r, L):
    """Those queries that have a key at distance r."""
    return np.arange(max(0, -r), min(L, L - r))


def by_sums(F, v):
    """Equation (7)."""
    L, k = len(v), F.shape[1] // 2
    V = np.column_stack([v, np.ones(L)])
    A, C = far_sums(V, k)
    out = F[:, :1] * A + F[:, -1:] * C  # the tails
    for r in range(1 - k, k):
        i = rows_of(r, L)
        out[i] += F[i, r + k, None] * V[i + r]  # the band
    return out[:, :-1], out[:, -1]


for got, wanted in zip(by_sums(F, v), pairs_loop(F, v), strict=True):
    print(f"off by {error(got, wanted):.0e}")

# %% [markdown]
# ## 3. Backward, by index
#
# Lesson 6 went through the quotient: $gn_i$ is the [gradient](glossary.md#gradient) of the
# numerator, $gd_i$ that of the denominator. Each weight is in one numerator and one denominator;
# and each $F_{ir}$ is the weight of all pairs at its distance:
#
# $$ds_{ij} = w_{ij}\,(gn_i \cdot v_j + gd_i) \qquad dF_{ir} = \sum_{j:\, r(i,j) = r} ds_{ij} \tag{9}$$
#
# In the band that sum has one term. In a tail it has many, but $gn_i$ is the same in all of them,
# and leaves it. $|A|$ is the number of keys in $A$:
#
# $$dF_{i,-k} = gn_i \cdot A_i + gd_i\, |A_i| \qquad
#   dF_{i,k} = gn_i \cdot C_i + gd_i\, |C_i| \tag{10}$$
#
# Through $f$, number by number:
#
# $$dB_{ir} = dF_{ir}\, f' \tag{11}$$
#
# In the product $B_{ir}$ each factor gets the other one:
#
# $$du_i = \sum_r dB_{ir}\, e_r \qquad de_r = \sum_i dB_{ir}\, u_i \tag{12}$$
#
# Last the values. Token $j$ is near to a few queries, and far from the others. Those *after* it see
# it at $-k$, those *before* it at $k$:
#
# $$dv_j = \sum_{|j - i| < k} s_{ij}\, gn_i + \sum_{i \ge j + k} F_{i,-k}\, gn_i
#   + \sum_{i \le j - k} F_{i,k}\, gn_i \tag{13}$$
#
# That is (7) with queries and keys exchanged: its tails are running sums, too, over queries.

# %% [markdown] exercise="embedding-gradient"
# ### Exercise 2 (4 points, 15 min): what the embeddings learn from
#
# Write (9) to (12) with the slope of (4): `gn`, `v` (L, M), `gd` (L,), `F` (L, 2k + 1), `u` (L, E),
# `e` (2k + 1, E); return `du, de`. One loop, over distances. It must hold for $k = 0$, where both
# ends are the same column of $F$, and for $k > L$.
#
# <details><summary>Hint 1 of 3</summary>
#
# $gn_i \cdot v_j + gd_i$ is one product: of $[gn_i, gd_i]$ and $[v_j, 1]$. `far_sums` of the latter
# has $|A|$ and $|C|$ in its last column.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# The loop is that of `by_sums`: at distance r, for `i = rows_of(r, L)`, the keys are `i + r`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Start with zeros of the shape of F, and let (10) *add* to its first and its last column. The slope
# is `-np.expm1(-F)`.
#
# </details>


# %% exercise="embedding-gradient"
def embedding_gradient(gn, gd, F, u, e, v):
    """The gradients (du, de)."""
    # BEGIN SOLUTION
    L, k = len(v), F.shape[1] // 2
    G, V = np.column_stack([gn, gd]), np.column_stack([v, np.ones(L)])
    A, C = far_sums(V, k)
    dF = np.zeros_like(F)
    for r in range(1 - k, k):
        i = rows_of(r, L)
        dF[i, r + k] = (G[i] * V[i + r]).sum(axis=1)  # (9)
    dF[:, 0] += (G * A).sum(axis=1)  # (10)
    dF[:, -1] += (G * C).sum(axis=1)  # (10)
    dB = dF * -np.expm1(-F)  # (11)
    return dB @ e, dB.T @ u  # (12)
    # END SOLUTION


# %% check="embedding-gradient"
check("embedding-gradient", embedding_gradient)

# %% [markdown]
# Check all three gradients against the forward, with a random [cotangent](glossary.md#cotangent).
# ($n$ and $d$ stay as they are: their gradients are lesson 6's. No denominator is near zero, so the
# guard changes nothing, and its slope is 1.)


# %%
def value_gradient(F, gn):
    """Equation (13)."""
    L, k = len(gn), F.shape[1] // 2
    dv = far_sums(F[:, :1] * gn, k)[1] + far_sums(F[:, -1:] * gn, k)[0]
    for r in range(1 - k, k):
        i = rows_of(r, L)
        dv[i + r] += F[i, r + k, None] * gn[i]
    return dv


def output():
    """Equation (3), and its denominator."""
    n_far, d_far = pairs_loop(phi(u @ e.T, "softplus"), v)
    D = d + d_far[:, None]
    return (n + n_far) / D, D


def loss():
    """A number that depends on every output."""
    return (c * output()[0]).sum()


c = random.standard_normal(v.shape)
out, D = output()
gn, gd = c / D, -(c * out).sum(axis=1) / D[:, 0]
gradients = *embedding_gradient(gn, gd, F, u, e, v), value_gradient(F, gn)
for name, x, got in zip(("du", "de", "dv"), (u, e, v), gradients, strict=True):
    slopes = finite_differences(loss, x)
    print(f"{name}: off by {error(got, slopes):.0e}")

# %% [markdown]
# ## 4. What a decoder keeps
#
# A [decoder](glossary.md#decoder) sees no later key: $C$ is gone. With each token all keys move one
# step away, so their weights change, and no sum can be kept. But a key that has come to $-k$ stays
# there for ever. So keep the last $k$ values as they are, and of those before them the sum:
#
# $$\mathrm{tail}' = \mathrm{tail} + \text{the value that falls out} \qquad
#   \mathrm{recent}' = \text{the last } k \text{ values} \tag{14}$$
#
# That is $(k + 1) M$ numbers, and a count of the tokens, beside the [state](glossary.md#state) of
# lesson 7, $S$ and $Z$, however long the past was.

# %% [markdown] exercise="decode-step"
# ### Exercise 3 (3 points, 10 min): one token more
#
# Write (14), then (7) for this token, with the new tail and window: it stands in its window. `F` (k
# + 1,) has its weights for the distances $-k$ to 0, `v` (M,) is its value. `tail` (M,) and `recent`
# (k, M) are what the token before left: the newest value last, zeros in front where fewer than $k$
# have been. `length` is the number of tokens before. Return `n`, `d`, and the next `tail` and
# `recent`. Don't write to what you are given.
#
# <details><summary>Hint 1 of 3</summary>
#
# Put the new value below the window, as row k + 1. The first row falls out; it is zero where
# nothing falls. This holds for k = 0, too.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# After that, row t of the new window is at distance t - k + 1, and its weight is `F[t + 1]`. The
# tail's is `F[0]`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# For d, count keys: of `length + 1`, as many as fit are in the window, at its end; the others are
# in the tail.
#
# </details>


# %% exercise="decode-step"
def decode_step(F, v, tail, recent, length):
    """The token's n (M,) and d, and the next tail and window."""
    # BEGIN SOLUTION
    window = np.concatenate([recent, v[None]])
    tail, recent = tail + window[0], window[1:]  # (14)
    count, k = length + 1, len(recent)
    real = min(count, k)  # keys in the window
    n = F[0] * tail + F[1:] @ recent  # (7)
    d = F[0] * max(count - k, 0) + F[k + 1 - real :].sum()  # (7)
    return n, d, tail, recent
    # END SOLUTION


# %% check="decode-step"
check("decode-step", decode_step)

# %% [markdown] exercise="distance-kernel"
# ### Exercise 4 (4 points, 15 min): a row of its own
#
# Now (7) as a [kernel](glossary.md#kernel), both directions. With running sums at hand, rows know
# nothing of each other: a [thread](glossary.md#thread) [owns](glossary.md#owner) a row, and walks
# its near keys. `F` is (H, L, 2k + 1) with $k \ge 1$, `v` (H, L, M); `P` (H, L + 1, M) has in row
# `j` the sum of the values before `j`; numerators `out` (H, L, M) are written to. The row is
# `cuda.grid(1)`, the [head](glossary.md#head) `cuda.blockIdx.y`.
#
# <details><summary>Hint 1 of 3</summary>
#
# The near keys run from `low = max(i - k + 1, 0)` to before `high = min(i + k, L)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# So A is `P[h, low]`, and C is `P[h, L]` less `P[h, high]`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# For each m: a scalar `n` from the two ends, `F[h, i, 0]` and `F[h, i, 2 * k]`; then for each near
# j add `F[h, i, j - i + k] * v[h, j, m]`.
#
# </details>


# %% exercise="distance-kernel"
@cuda.jit
def distance_kernel(F, v, P, out):
    """A thread owns row i of out."""
    # BEGIN SOLUTION
    i, h = cuda.grid(1), cuda.blockIdx.y
    L, k = v.shape[1], F.shape[2] // 2
    if i < L:
        low, high = max(i - k + 1, 0), min(i + k, L)
        for m in range(v.shape[2]):
            n = F[h, i, 0] * P[h, low, m]  # (7)
            n += F[h, i, 2 * k] * (P[h, L, m] - P[h, high, m])  # (7)
            for j in range(low, high):
                n += F[h, i, j - i + k] * v[h, j, m]  # (7)
            out[h, i, m] = n
    # END SOLUTION


# %% check="distance-kernel"
check("distance-kernel", distance_kernel)

# %% [markdown]
# ## 5. The real kernels
#
# The room's plain kernel is not yours but the definition, all pairs: a thread owns a query, and
# meets all keys. It is what the fast ones are tested against.

# %%
sizes = (1, 2, 70, 16), (1, 2, 70, 16), (1, 2, 70, 16), (2, 9, 16)
inputs = [random.standard_normal(size, np.float32) for size in sizes]
with watch() as plain:
    relative.forward(*inputs, algorithm="naive", version="plain")
with watch() as fast:
    out, d, F, _ = relative.forward(*inputs, algorithm="linear")
    relative.backward(out, None, *inputs, out, d, F, algorithm="linear")
kernels = {x.kernel.__name__: x.kernel for x in (*plain, *fast)}
print("launched:", ", ".join(kernels))
show(quote(kernels["add_terms"], "(2)", "(3)"))

# %% [markdown]
# The fast forward, cut to (7). `before` and `after` are $A$ and $C$:

# %%
kept = "v_tile = cuda", "far = at_low", "far += at_high"
show(quote(kernels["forward"], "(7)", also=kept))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **[Tiles](glossary.md#tile).** A [block](glossary.md#block) owns 32 queries and walks the keys
#    that are near to *any* of them, in [shared memory](glossary.md#shared-memory). For one of its
#    queries some of these are far: the clip gives them the right weight. So $A$ and $C$ are needed
#    only where tiles begin, $L / 32$ rows of them.
# 2. **No differences.** $P_L - P_{high}$ takes one large sum from another, and loses digits. Here
#    $C$ is summed up from the end.
# 3. **Other texts.** It knows causal texts, padding, and texts that go on from a state (14), whose
#    window is a few more near keys.
#
# The backward has two kernels of its own. In one a block owns queries and walks their near keys,
# for (9) to (11); `R` is the number of distances, and where it is 1, both ends are one. In the
# other it owns keys and walks queries, for (13):

# %%
show(quote(kernels["score_gradient"], "(11)"))
show(quote(kernels["value_gradient"], "(13)"))

# %% [markdown]
# In a short text $S$ is larger than the scores that it saves, and sums do not pay. The package's
# planner decides by counting
# operations, for both terms of (3) at once; one on pairs counts 1.5 times, as measured.
# **Predict** what it takes for these four, `naive`
# (all pairs) or `linear`:
#
# | | L | E = M | k |
# |---|---|---|---|
# | a | 32 | 64 | 8 |
# | b | 64 | 64 | 64 |
# | c | 64 | 128 | 8 |
# | d | 1024 | 64 | 16 |

# %%
guess("a, b, c, d", "naive, naive, naive, linear")

# %%
rows, taken = [], []
for L, E, k in ((32, 64, 8), (64, 64, 64), (64, 128, 8), (1024, 64, 16)):
    taken.append(plan(Sizes(L, L, E, E, max_distance=k))["relative"])
    E = 16 if FAST else E  # of what is measured
    qkv = random.standard_normal((3, 1, 2, L, E), np.float32)
    e = random.standard_normal((2, 2 * k + 1, E), np.float32) / E
    runs = (
        partial(relative.forward, *qkv, e, algorithm=algorithm)
        for algorithm in ("naive", "linear")
    )
    rows.append((f"{L}, {E}, {k}", taken[-1], *seconds(*runs)))
table(("L, E, k", "planner", "naive, measured", "linear, measured"), rows)
reveal("a, b, c, d", ", ".join(taken))

# %% [markdown]
# What decides is lesson 6's term: all pairs cost it $L (E + M)$ a token, sums $2 E M$. So short
# texts of wide heads go the naive way. $k$ does not count: even where all keys are near, as in b,
# the band is no more than all pairs. Near the length where the planner changes its mind, both take
# about as long; far from it, they do not.
#
# ## 6. The scoreboard
#
# In lesson 7's [recall](glossary.md#recall) any order of the pairs is as good as another, so expect
# no help there. Here is a task that is *all* order: name the symbol, one of 16, that stood three
# places earlier. Blind guesses are right in 6 % of cases. One head learns it in a second or two.
# **Predict**: how many percent does linear attention get right? And with distances up to $k = 8$?

# %%
guess("linear, three places earlier", "6%")
guess("distances, three places earlier", "100%")


# %%
class Placed(nn.Module):
    """Linear attention with distances up to k, which it learns."""

    def __init__(self, k, first_query, width=16):
        self.e = nn.Parameter(np.zeros((1, 2 * k + 1, width), np.float32))
        self.how = {"causal": True, "query_offset": first_query}

    def forward(self, query, key, value):
        """(N, H, Lq, E), and as many columns of keys and values."""
        self.query = query  # for the figure
        return relative_linear_attention(query, key, value, self.e, **self.how)


# %%
E, k, task = 16, 8, partial(earlier, 3)
unplaced = partial(linear_attention, causal=True)
placed = Placed(k, 3)  # its queries begin at token 3
linear = (
    recall(partial(unplaced, query_offset=32)),
    recall(partial(unplaced, query_offset=3), task=task),
)
distances = recall(Placed(k, 32)), recall(placed, task=task)
base, more = (E * E + E, 2 * E * E), ((k + 1) * E, 2 * (k + 1) * E)
table(
    ("E = 16", "numbers kept", "work a token", "recall", "three earlier"),
    [
        ("linear", *base, *map("{:.0%}".format, linear)),
        ("distances", *np.add(base, more), *map("{:.0%}".format, distances)),
    ],
)
reveal("linear, three places earlier", f"{linear[1]:.0%}")
reveal("distances, three places earlier", f"{distances[1]:.0%}")

# %% [markdown]
# Without order a head can only say which symbol it has seen most often. That is right more often
# than once in 16 as long as few have been seen. And what did the other head learn? The dots are
# medians over its queries, the lines go from the 10th to the 90th of a hundred (the axis is
# logarithmic: each step up is a factor):

# %%
u = phi(placed.query.numpy()[:, 0].reshape(-1, E), "elu")
F = phi(u @ placed.e.numpy()[0, : k + 1].T, "softplus")
show(
    figures.learned(range(-k, 1), F, -3), "learned",
    alt="The learned weight of each distance: high at -3, low elsewhere",
)  # fmt: skip

# %% [markdown]
# ## What it cannot do
#
# * From $k$ on all is the same: a key 9 places back and one 9,000 places back have one weight. A
#   larger $k$ costs work and memory.
# * Each distance learns on its own. What $e_{-3}$ has learned says nothing about $e_{-4}$.
# * A place is a whole number. A time of 2.5 seconds, or a point of a picture, has no row in $e$.
#
# **Next question: could a weight be a smooth *function* of distance, and still need no $L^2$?** That
# is lesson 11.

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

# %% [markdown] question="Can attention avoid comparing every token with every token?" minutes=95 after=[0, 1, 3, 4]
# # Move the sum
#
# The [fused](glossary.md#fused) [kernel](glossary.md#kernel) of lesson 4 never *stores* the
# $L \times L$ scores. It still *computes* each of them: twice the text, four times the work. No
# care with memory changes that. In this lesson you change one function of the formula instead, and
# the work becomes proportional to the length.
#
# The price is real, and you will prove it in this lesson, too.
#
# *Source.* Katharopoulos, Vyas, Pappas and Fleuret, "Transformers are RNNs", ICML 2020.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

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
    watch,
)
from minitransformer.course.figures import lesson_06 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import linear, softmax
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear import reference

# %%
random = np.random.default_rng(6)
Q, K, V = six_tokens()  # (6, 4), (6, 4), (6, 3)

# %% [markdown]
# ## 1. What knits queries and keys together
#
# Query $i$ gets an average of the values, weighted by how well it matches each key:
#
# $$o_i = \frac{\sum_j \mathrm{sim}(Q_i, K_j)\, v_j}{\sum_j \mathrm{sim}(Q_i, K_j)}
#   \qquad \mathrm{sim}(Q_i, K_j) = e^{Q_i \cdot K_j / \sqrt E} \tag{A}$$
#
# In $e^{Q_i \cdot K_j}$ no part knows $i$ alone and no part $j$ alone. So each pair needs an
# exponential of its own. Choose a similarity that comes apart:
#
# $$\mathrm{sim}(Q_i, K_j) = \varphi(Q_i) \cdot \varphi(K_j) = q_i \cdot k_j \tag{B}$$
#
# From here on small $q$ and $k$ are these *features*. What must the
# [feature map](glossary.md#feature-map) $\varphi$ do?
#
# * **Be positive.** A weight below zero is no weight, and the denominator of (A) must not come
#   near zero.
# * **Let [gradients](glossary.md#gradient) through.** relu is not negative either. But where
#   $x < 0$ its slope is zero: a feature that is off stays off.
#
# The paper takes $\mathrm{elu}(x) + 1$, which is $x + 1$ above zero and $e^x$ below. It is a
# choice, not a law.

# %%
show(
    figures.feature_map(), "feature_map",
    alt="elu(x) + 1 is positive with a positive slope; relu is flat below 0",
)  # fmt: skip

# %% [markdown]
# Below zero, $\mathrm{elu}(x)$ is $e^x - 1$, which NumPy has as `expm1`. **Predict**: what does
# `expm1(x) + 1` become in float32 at $x = -17.5$, where $e^x$ is about $2.5 \cdot 10^{-8}$?

# %%
guess("expm1(-17.5) + 1 in float32", 2.5e-8)

# %%
x = np.float32(-17.5)
reveal("expm1(-17.5) + 1 in float32", float(np.expm1(x) + np.float32(1)))
print("np.exp gives", np.exp(x))

# %% [markdown] exercise="phi"
# ### Exercise 1 (1 point, 5 min): a feature map that survives
#
# Write $\varphi$ for an array of any shape. Features of float32 are float32, those of float64 are
# float64. All digits must survive far below zero, and nothing may overflow: $e^{1000}$ has no
# float.
#
# <details><summary>Hint 1 of 3</summary>
#
# `np.where(condition, a, b)` takes from `a` where the condition holds, else from `b`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Both `a` and `b` are computed *everywhere*, also where they are not taken.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `np.exp(np.minimum(x, 0))` never overflows, and is right where it is taken.
#
# </details>


# %% exercise="phi"
def phi(x):
    """elu(x) + 1, number by number."""
    # BEGIN SOLUTION
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    # END SOLUTION


# %% check="phi"
check("phi", phi)

# %% [markdown]
# ## 2. Why the sum may be moved
#
# With (B), attention in both directions reads
#
# $$a_{ij} = q_i \cdot k_j \tag{1}$$
# $$n_i = \sum_j a_{ij} v_j \qquad d_i = \sum_j a_{ij} \tag{2}$$
# $$o_i = n_i / \mathrm{guard}(d_i) \tag{3}$$
#
# These numbers are those of the [room](glossary.md#room) `kernels/linear`. Its $a_{ij}$ has a
# factor $w_{ij}$ more, 1 where query $i$ sees key $j$, else 0. In both directions it is 0 only for
# padding: [tokens](glossary.md#token) that fill a text up to the length of others. (The
# [guard](glossary.md#guard) keeps $d_i$ off zero; more of it below.) First the loop, then the
# arrays:

# %%
q, k = (reference.phi(x, "elu") for x in (Q, K))  # the project's own


def scores_loop(q, k, v):
    """One head: (L, E), (L, E), (L, M) -> (L, M)."""
    out = np.zeros_like(v)
    for i in range(len(q)):
        d = 0.0
        for j in range(len(k)):
            a = q[i] @ k[j]  # (1)
            out[i] += a * v[j]  # (2)
            d += a  # (2)
        out[i] /= d  # (3)
    return out


def scores_first(q, k, v):
    """All heads: (N, H, L, E), (N, H, L, E), (N, H, L, M)."""
    a = q @ k.swapaxes(-1, -2)  # (1): (N, H, L, L)
    return a @ v / a.sum(axis=-1, keepdims=True)  # (2), (3): (N, H, L, M)


off = error(scores_first(q, k, V), scores_loop(q, k, V))
print(f"loop and arrays differ by {off:.0e}")

# %% [markdown]
# Now go slowly through the numerator:
#
# $$\sum_j (q_i \cdot k_j)\, v_j
#   = \sum_j v_j \,(k_j^\top q_i)
#   = \sum_j (v_j k_j^\top)\, q_i
#   = \Big(\sum_j k_j v_j^\top\Big)^{\!\top} q_i \tag{C}$$
#
# 1. $q_i \cdot k_j$ is a number. It may stand right of $v_j$, and it is $k_j^\top q_i$ as well.
# 2. Products of matrices are associative: the brackets may move.
# 3. $q_i$ is the same in every term, so it may leave the sum. **[Softmax](glossary.md#softmax) does
#    not allow this step**: there $i$ is inside the exponential.
#
# The bracket holds no $i$. It is one matrix for all queries, computed once:
#
# $$S = \sum_j k_j v_j^\top \quad (E \times M) \qquad Z = \sum_j k_j \quad (E)$$
# $$n_i = S^\top q_i \qquad d_i = q_i \cdot Z \tag{D}$$

# %%
S, Z = np.zeros((4, 3)), np.zeros(4)
for j in range(6):
    S += np.outer(k[j], V[j])  # (E, 1) * (1, M) -> (E, M)
    Z += k[j]
print("36 scores become", S.size, "numbers of S and", Z.size, "of Z")
print(
    "query 0:",
    S.T @ q[0] / (q[0] @ Z),
    "and by scores:",
    scores_loop(q, k, V)[0],
)

# %% [markdown] exercise="values-first"
# ### Exercise 2 (2 points, 8 min): keys and values meet first
#
# Write (D) and (3) for all [heads](glossary.md#head), without a loop: features `q` (N, H, Lq, E),
# `k` (N, H, Lk, E), values `v` (N, H, Lk, M); return (N, H, Lq, M). No array may be as large as the
# scores. (The check measures your memory, and notices loops by the number of lines that run.) The
# guard may be left out.
#
# <details><summary>Hint 1 of 3</summary>
#
# Say the shape of each step aloud: (E, L) times (L, M) is (E, M).
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `k.swapaxes(-1, -2)` turns (N, H, L, E) into (N, H, E, L). `@` works on the last two axes.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Make Z a column, `k.sum(axis=-2)[..., None]`: then `q @ Z` has the shape (N, H, Lq, 1), and
# divides.
#
# </details>


# %% exercise="values-first"
def values_first(q, k, v):
    """Attention by (D) and (3)."""
    # BEGIN SOLUTION
    S = k.swapaxes(-1, -2) @ v  # (N, H, E, L) @ (N, H, L, M) -> (N, H, E, M)
    Z = k.sum(axis=-2)[..., None]  # (N, H, L, E) -> (N, H, E, 1)
    return q @ S / (q @ Z)  # (D), (3): (N, H, Lq, M)
    # END SOLUTION


# %% check="values-first"
check("values-first", values_first)

# %%
show(
    figures.moving_the_sum(32, 8), "moving_the_sum",
    alt="Scores first: an L x L matrix. Values first: an E x M matrix",
)  # fmt: skip

# %% [markdown]
# Scores first takes $2 L^2 (E + M)$ additions and multiplications, values first $2 L \cdot 2 E M$.
# **Predict**: what is the factor between them at $L = 4096$, $E = M = 64$?

# %%
guess("the factor at L = 4096", 64)


# %%
def operations(L, E, M):
    """Of both orders, for one head."""
    return 2 * L * L * (E + M), 2 * L * 2 * E * M


before, after = operations(4096, 64, 64)
reveal("the factor at L = 4096", before / after)
for L in (16, 64, 256):
    before, after = operations(L, 64, 64)
    print(f"L = {L}: {before:,} against {after:,}")

# %% [markdown]
# With $E = M$ the factor is $L / E$: nothing is gained until a text is longer than a head is wide.
#
# Operations are not seconds. So measure two kernels that do their best: lesson 4's fused softmax,
# and the one of this lesson. Both take all pairs; no [mask](glossary.md#mask). The lengths are 8,
# 16, 32 and so on. **Predict**: which is the first from which on the second kernel wins at *all* of
# them, with $E = M = 32$?

# %%
guess("linear attention is faster from L =", 128)

# %%
E, lengths = 32, [2**p for p in range(3, 12)]
if FAST:
    E, lengths = 16, lengths[:6]
times = {"softmax": [], "linear": []}
for L in lengths:
    qkv = random.standard_normal((3, 1, 2, L, E), np.float32)
    both = seconds(
        partial(softmax.forward, *qkv), partial(linear.forward, *qkv)
    )
    for taken, time in zip(times.values(), both, strict=True):
        taken.append(time)

pairs = zip(lengths, *times.values(), strict=True)
lost = max(
    (L for L, soft, own in pairs if own.median >= soft.median), default=0
)
wins = [L for L in lengths if lost < L]
reveal("linear attention is faster from L =", min(wins, default="nowhere"))
show(
    figures.lengths(lengths, times), "lengths",
    alt="Time against length on logarithmic axes: softmax is the steeper one",
)  # fmt: skip

# %% [markdown]
# On such axes $L^p$ is a straight line of slope $p$. Short texts pay for the
# [launch](glossary.md#launch) as well, so your slopes are less than 2 and 1, and nearer to them the
# longer the text. (Did it win earlier than $L = E$? Softmax pays an exponential for each pair, too.)
#
# ## 3. Backward, index by index
#
# Given $g_i = \partial \ell / \partial o_i$. First through (3), the quotient:
#
# $$gn_i = g_i / D_i \qquad gd_i = -(g_i \cdot o_i) / D_i \cdot \mathrm{guard}'(d_i)
#   \qquad D_i = \mathrm{guard}(d_i)$$
#
# The guard of positive features is $\max(d, \varepsilon)$ with the tiniest $\varepsilon$: its slope
# is 1 above and 0 below. (Adding an $\varepsilon$ looks simpler, and changes every answer a little.)
#
# Both sums of (2) are linear in $a_{ij}$, so each adds a term:
#
# $$da_{ij} = gn_i \cdot v_j + gd_i \tag{4}$$
#
# By (1), $a_{ij}$ is a product of $q_i$ and $k_j$; each gets the other one:
#
# $$dq_i = \sum_j da_{ij}\, k_j \qquad dk_j = \sum_i da_{ij}\, q_i \tag{5}$$
#
# And $v_j$ is in every $n_i$, with weight $a_{ij}$:
#
# $$dv_j = \sum_i a_{ij}\, gn_i \tag{6}$$
#
# That is $L^2$ work again. But look: all three are *one* sum with different actors.
#
# $$y_i = \sum_j (A_i \cdot B_j + a_i b_j)\, C_j \tag{7}$$
#
# | $y$ | $A$ | $B$ | $C$ | $a$ | $b$ |
# |---|---|---|---|---|---|
# | $dq$ | $gn$ | $v$ | $k$ | $gd$ | 1 |
# | $dk$ | $v$ | $gn$ | $q$ | 1 | $gd$ |
# | $dv$ | $k$ | $q$ | $gn$ | 0 | 0 |
#
# So step (C) of above moves this sum, too:
#
# $$X = \sum_j C_j B_j^\top \qquad z = \sum_j b_j C_j \tag{8}$$
# $$y_i = X A_i + a_i z \tag{9}$$
#
# The forward is such a sum too, with $a = b = 0$: $A = q$, $B = k$ and $C = v$ give $n$, and
# $C = 1$ gives $d$. So (D) belongs here, and has this number in the room:
#
# $$n_i = S^\top q_i \qquad d_i = q_i \cdot Z \tag{10}$$
#
# And with $R = \sum_i q_i\, gn_i^\top$ and $U = \sum_i gd_i\, q_i$ the three rows of the table are
#
# $$dq_i = S\, gn_i + gd_i Z \qquad dk_j = R\, v_j + U \qquad dv_j = R^\top k_j \tag{11}$$

# %% [markdown] exercise="both-backward"
# ### Exercise 3 (3 points, 12 min): the backward in linear time
#
# One head: the [cotangent](glossary.md#cotangent) `g` (Lq, M), which is what the rest of the
# [backward](glossary.md#backward) hands you, features `q` (Lq, E), `k` (Lk, E), values `v` (Lk, M).
# Return `dq, dk, dv`. The guard's slope is 1. Again no array may be as large as the scores, and no
# loop may go over all pairs.
#
# <details><summary>Hint 1 of 3</summary>
#
# Start with S, Z and d, as in the forward; then gn and gd; then R and U; then (11).
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# For all $i$ at once, $S\, gn_i$ is `gn @ S.T`, and $gd_i Z$ is `np.outer(gd, Z)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `R = q.T @ gn` and `U = gd @ q`. The output that gd needs is `q @ S / d[:, None]`.
#
# </details>


# %% exercise="both-backward"
def both_backward(g, q, k, v):
    """The gradients (dq, dk, dv) of attention in both directions."""
    # BEGIN SOLUTION
    S, Z = k.T @ v, k.sum(axis=0)  # (E, M), (E,)
    d = q @ Z  # (D)
    out = q @ S / d[:, None]  # (D), (3)
    gn, gd = g / d[:, None], -(g * out).sum(axis=1) / d
    R, U = q.T @ gn, gd @ q  # (8)
    return gn @ S.T + np.outer(gd, Z), v @ R.T + U, k @ R  # (11)
    # END SOLUTION


# %% check="both-backward"
check("both-backward", both_backward)

# %% [markdown]
# A second opinion, that of the forward: nudge each number of the *raw* inputs, and see how
# $\sum c \cdot o$ moves. $c$ is random, so that nothing cancels by chance. What you wrote stops at
# the features; $\varphi'$ takes it on. (Expect fewer digits for $Q$ and $K$: each holds one number
# that is exactly 0, where the slope of $\varphi$ has a corner.)

# %%
c = random.standard_normal(V.shape)


def loss():
    """A number that depends on every output."""
    q, k = (reference.phi(x, "elu") for x in (Q, K))
    return (c * scores_loop(q, k, V)).sum()


dq, dk, dv = both_backward(c, q, k, V)
slopes = (reference.phi_slope(x, "elu") for x in (Q, K))
gradients = dq * next(slopes), dk * next(slopes), dv
for name, x, got in zip(("dQ", "dK", "dV"), (Q, K, V), gradients, strict=True):
    off = error(got, finite_differences(loss, x))
    print(f"{name} differs by {off:.0e}")

# %% [markdown] exercise="sums-kernel"
# ### Exercise 4 (3 points, 12 min): the first kernel
#
# Everything starts from $S$. Write it as in lesson 1: each [thread](glossary.md#thread)
# [owns](glossary.md#owner) *one number* of $S$, and walks all tokens. `k` is (H, L, E), `v` (H, L,
# M), and `S` (H, E, M) is written to. `cuda.blockIdx.y` is the head; `cuda.grid(1)` counts the
# threads of a head over all its [blocks](glossary.md#block), so that thread $t$ owns row $t / M$
# (whole) and column $t \bmod M$. The last block may have more threads than there are numbers.
#
# <details><summary>Hint 1 of 3</summary>
#
# `e, m = t // v.shape[2], t % v.shape[2]`. Which of the two can be too large?
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Add up in a scalar, which a GPU keeps in a register: `total = float32(0)`. Write once, in the end.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `if e < k.shape[2]:` guards all that follows; inside, `for j in range(k.shape[1]):` adds
# `k[h, j, e] * v[h, j, m]`.
#
# </details>


# %% exercise="sums-kernel"
@cuda.jit
def sums_kernel(k, v, S):
    """A thread owns S[h, e, m]."""
    # BEGIN SOLUTION
    t, h = cuda.grid(1), cuda.blockIdx.y
    e, m = t // v.shape[2], t % v.shape[2]
    if e < k.shape[2]:
        total = float32(0)
        for j in range(k.shape[1]):
            total += k[h, j, e] * v[h, j, m]  # (8)
        S[h, e, m] = total
    # END SOLUTION


# %% check="sums-kernel"
check("sums-kernel", sums_kernel)

# %% [markdown]
# ## 4. The real kernels
#
# Which kernels does `linear.forward` launch, and how? The lines below are cut from the files that
# run, by the numbers in their comments. First the *plain* sums, which you have just written. Its
# `C` are keys before $\varphi$, its `B` values, so its `X` is $S$.

# %%
arrays = random.standard_normal((3, 1, 2, 70, 40), np.float32)
with watch() as plain:
    linear.forward(*arrays, version="plain")
with watch() as fast:
    linear.forward(*arrays)
for launch in (*plain, *fast):
    print(launch.kernel, "blocks", launch.blocks, "threads", launch.threads)
show(quote(plain[0].kernel, "(8)"))

# %% [markdown]
# Then the fast sums, and the fast answers, (10) and (3):

# %%
show(quote(fast[0].kernel, "(8)", also=("c_tile = cuda", "b_tile = cuda")))
show(quote(fast[1].kernel, "(10)", "(3)"))

# %% [markdown]
# Three things they do that yours does not:
#
# 1. **[Tiles](glossary.md#tile).** A block copies 32 tokens at a time into
#    [shared memory](glossary.md#shared-memory), which all its threads read. A key is fetched, and
#    goes through $\varphi$, once for a whole row of $S$; in yours each thread fetches it again.
# 2. **Several sums a thread.** `X_own` holds 4 rows of $S$, for each tile of columns, in
#    [registers](glossary.md#register). One number of `b_tile`, once read, serves all four.
# 3. **A sequence in parts.** Where heads are too few to keep the machine busy, several blocks share
#    a long sequence, and their sums are added up afterwards.
#
# The backward launches the same `sums` twice, for $S$ and $Z$ again and for $R$ and $U$. Then comes
# one kernel for (9), three times, with the actors of the table. A thread owns a row of $y$:

# %%
gn, gd = random.standard_normal(arrays[0].shape), np.ones((1, 2, 70))
with watch() as back:
    linear.gradients(gn, gd, *arrays.astype(float), version="plain")
print("launched:", ", ".join(str(launch.kernel) for launch in back))
show(quote(back[-1].kernel, "(9)"))

# %% [markdown]
# ## 5. What it costs: rank, and a floor
#
# The weights $P_{ij} = a_{ij} / d_i$ are an $L \times L$ matrix of rank $E$ at most: every row of
# $P$ is a mix of the same $E$ rows of a matrix $G$. Construct the two factors: $P = F G$ with
#
# $$F_{ie} = q_{ie} Z_e / d_i \qquad G_{ej} = k_{je} / Z_e$$
#
# All are positive, and rows of both sum to one: $\sum_e q_{ie} Z_e = d_i$, and
# $\sum_j k_{je} = Z_e$.
#
# Now give the head the hardest task: each of $L$ queries must find a key of its own, $\pi(i)$, no
# two of them the same. As no $F_{ie}$ is above 1,
#
# $$\sum_i P_{i\pi(i)} = \sum_e \sum_i F_{ie} G_{e\pi(i)} \le \sum_e \sum_i G_{e\pi(i)} = E$$
#
# So a right key gets $E / L$ of the weight on average, at most. The logarithm is concave (its curve
# lies above its chords), so the mean of $-\log P_{i\pi(i)}$ stays at $\log(L / E)$ or above,
# however long you train. **Predict**: what is the rank of $P$ for $L = 32$ and $E = 4$, with every
# query seeing every key, and with a [causal mask](glossary.md#causal), $j \le i$?

# %%
guess("rank, both directions", 4)
guess("rank, causal", 4)

# %%
L, E = 32, 4
q, k = reference.phi(random.standard_normal((2, L, E)), "elu")
scores, Z = q @ k.T, k.sum(axis=0)
P = scores / scores.sum(axis=1, keepdims=True)
F, G = q * Z / (q @ Z)[:, None], k.T / Z[:, None]  # (L, E), (E, L)
print(f"F G differs from P by {error(F @ G, P):.0e}")
print(
    "rows of F and G sum to",
    F.sum(axis=1).round(9)[0],
    G.sum(axis=1).round(9)[0],
)
reveal("rank, both directions", np.linalg.matrix_rank(P))
reveal("rank, causal", np.linalg.matrix_rank(np.tril(scores)))
print(f"queries that see all keys: no loss below {np.log(L / E):.3f}")

# %% [markdown]
# The mask breaks the proof: a triangle with a positive diagonal has full rank. So the floor holds
# for attention in both directions. In a causal text it holds for those queries that come *after*
# all the keys: among these no key is hidden. That is just the case of a memory that is filled first
# and asked later, and the next lesson trains one.
#
# ## What it cannot do
#
# * It cannot tell more than $E$ keys apart sharply, as you have just proved.
# * It has no "before": $S$ sums over all $j$. With $j \le i$ every query has a bracket of its own,
#   and $L$ sums of $L$ terms each are $L^2$ again.
#
# Or are they? $S_i$ differs from $S_{i-1}$ by one term. **Next question: what does a
# [decoder](glossary.md#decoder) have to keep?**

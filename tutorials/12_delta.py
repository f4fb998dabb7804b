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

# %% [markdown] question="Can a memory correct what it holds?" minutes=80 after=[7, 8]
# # A memory that corrects
#
# The door is open. A page later: the door is closed. Is it open? Linear attention answers with a
# mixture. It adds what comes and takes nothing back. Lessons 9 to 11 change the weights of that
# sum, but it stays a sum.
#
# The cure is older than [transformers](glossary.md#transformer), and one line long. Before you
# write, *look*: what does the memory say already? Write only what is missing. That is the [delta
# rule](glossary.md#delta-rule).
#
# *Sources.* Widrow and Hoff 1960, *Adaptive Switching Circuits*; Schlag et al. 2021, *Linear
# Transformers Are Secretly Fast Weight Programmers*; Yang et al. 2024, *Parallelizing Linear
# Transformers with the Delta Rule over Sequence Length*.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

from minitransformer import Tensor, nn
from minitransformer.attention import (
    delta_attention,
    linear_attention,
    softmax_attention,
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
from minitransformer.course.figures import lesson_12 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import recall, rewritten
from minitransformer.functions import sigmoid
from minitransformer_kernels import delta as room
from minitransformer_kernels import recurrent
from minitransformer_kernels.cuda import cuda


# %%
def normalised(x):
    """Each row divided by its length."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


random = np.random.default_rng(12)
Q, K, v = six_tokens()  # L and E, L and E, L and M: (6, 4), (6, 4), (6, 3)

# %% [markdown]
# ## 1. Look before you write
#
# The [state](glossary.md#state) is a matrix again, $W$, at first zero. It has $E$ rows, as a
# [key](glossary.md#key-query-value) has numbers, and $M$ columns, as a value has. Under the key
# $k_t$ of [token](glossary.md#token) $t$ it holds $W_{t-1}^\top k_t$. Take that from the value;
# write what is left, as much of it as a *rate* $\beta_t$ says, mostly from 0 to 1; then answer:
#
# $$r_t = v_t - W_{t-1}^\top k_t \tag{1}$$
# $$u_t = \beta_t\, r_t \tag{2}$$
# $$W_t = W_{t-1} + k_t u_t^\top \tag{3}$$
# $$o_t = W_t^\top q_t \tag{4}$$
#
# (Equations have the numbers of the [room](glossary.md#room) `kernels/delta`. $r$ is the
# *residual*: what $W$ got wrong; $u$ is what is written. Lesson 8's $W$ was a triangle; this one is
# a state.) With $u_t = v_t$ it would be lesson 7's $S$, without its $Z$: nothing is divided here.
# So no denominator can vanish, features may have any sign, and we need no $\varphi$. Queries stay
# as they are. Keys are only divided by their length; section 2 says why.

# %% [markdown] exercise="delta"
# ### Exercise 1 (3 points, 8 min): the delta rule
#
# Write (1) to (4) for one [head](glossary.md#head), as a loop over tokens: `q` and `k` (L, E), `v`
# (L, M), `beta` (L,). Return the outputs (L, M), the residuals (L, M), and $W$ (E, M) after the
# last token. Don't write to what you are given.
#
# <details><summary>Hint 1 of 3</summary>
#
# `W` starts as `np.zeros((k.shape[1], v.shape[1]))`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# $k_t u_t^\top$ is `np.outer(k[t], u)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The order is that of the formulas: look up with $k_t$, write, and only then answer $q_t$.
#
# </details>


# %% exercise="delta"
def delta(q, k, v, beta):
    """Outputs, residuals, and the last state."""
    # BEGIN SOLUTION
    out, r = np.empty_like(v), np.empty_like(v)
    W = np.zeros((k.shape[1], v.shape[1]))
    for t in range(len(k)):
        r[t] = v[t] - W.T @ k[t]  # (1)
        W = W + np.outer(k[t], beta[t] * r[t])  # (2), (3)
        out[t] = W.T @ q[t]  # (4)
    return out, r, W
    # END SOLUTION


# %% check="delta"
check("delta", delta)

# %% [markdown]
# Who looks at whom? Each $r$ is made of values, so each answer is still a weighted sum of values. A
# trick shows the weights: let value $t$ be row $t$ of the identity matrix. Here six tokens write
# under three keys, those of tokens 0, 2 and 4; then all three are asked for. Each row is an answer,
# each column a value:

# %%
names = [0, 2, 0, 4, 2, 0]  # whose key each of the six writes under
k = normalised(K[names])
asked = normalised(K[[0, 2, 4]])
_, _, W = delta(k, k, np.eye(6), np.ones(6))  # its queries do not matter
weights = {"a sum": asked @ k.T, "the delta rule, rate 1": asked @ W}
show(
    figures.writes(names, (0, 2, 4), weights), "writes",
    alt="Weights of six writes: a sum keeps all, the delta rule the last",
)  # fmt: skip

# %% [markdown]
# The sum gives all three writes under key 0 the same weight. The delta rule has the last one, and
# nothing else. Key 2, too, has nearly nothing but its last value. Key 4 was written once, and had
# its value alone then. But the keys of the two later writes are not at right angles to it, so each
# moved that. And they wrote residuals: new values, less what was there. So older values, of other
# keys, come back in row 4, with the opposite sign.
#
# ## 2. A layer that learns while you read
#
# $W$ maps keys to values, as weights of a [layer](glossary.md#layer) do. How wrong is it about one
# pair? Let $\ell = |v - W^\top k|^2 / 2$. The number $W_{em}$ acts on number $m$ of the residual
# alone, with slope $-k_e$. So the [gradient](glossary.md#gradient) with respect to $W$ is
# $-k r^\top$, and (3) is a step of gradient descent, with $\beta$ as the learning rate. A layer's
# own weights learn in training, and then stay. $W$ has [fast weights](glossary.md#fast-weights),
# which learn from each token.
#
# As with any learning rate, a step can be too long. What is held under $k_t$ after the write? By
# (3), (1) and (2):
#
# $$W_t^\top k_t = W_{t-1}^\top k_t + u_t\, |k_t|^2 = v_t - (1 - \beta_t |k_t|^2)\, r_t \tag{A}$$
#
# Where $\beta |k|^2 = 1$ it is the value exactly; where $\beta = 0$ nothing has changed.
# **Predict**: a key of length 1.5 is written 20 times with rate 1 and value 1. How far from 1 is
# what is held under it then?

# %%
guess("error after 20 writes", 0)

# %%
held = {}
for length in (0.5, 1, 1.3, 1.5):
    same = np.full((21, 1), length)  # 21 equal tokens; E = M = 1
    _, r, _ = delta(same, same, np.ones((21, 1)), np.ones(21))
    held[length] = 1 - r[:, 0]  # r[t] is what t writes leave missing
reveal("error after 20 writes", abs(r[20, 0]))
show(
    figures.repeated(held), "repeated",
    alt="What is held creeps up to the value, hits it, or swings around it",
)  # fmt: skip

# %% [markdown]
# (The figure stops after 8 writes; the longest key has left it before.)

# %% [markdown] exercise="growth"
# ### Exercise 2 (2 points, 7 min): how long may a key be?
#
# The same pair comes again and again, at the same rate. Return for each row of `k` (L, E) with its
# rate in `beta` (L,): `factor`, by which $r$ is multiplied at each write, with its sign; and
# `limit`, the length of a key from which on $r$ grows. That depends on the rate alone, whatever the
# row is, and is infinite where the rate is 0. Both are (L,). No loop: one case has many rows.
#
# <details><summary>Hint 1 of 3</summary>
#
# The next residual is $v - W_t^\top k$, and (A) has $W_t^\top k$.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# $r$ grows where `factor` is above 1 or below -1. Only one of them can happen. For the limit, set
# the factor to that, and solve for $|k|$.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `with np.errstate(divide="ignore"):` lets NumPy divide by 0 in silence.
#
# </details>


# %% exercise="growth"
def growth(k, beta):
    """What multiplies residuals, and from which length on they grow."""
    # BEGIN SOLUTION
    squares = (k**2).sum(axis=1)
    with np.errstate(divide="ignore"):
        return 1 - beta * squares, np.sqrt(2 / beta)
    # END SOLUTION


# %% check="growth"
check("growth", growth)

# %% [markdown]
# So keys get length 1. Then residuals shrink at rates between 0 and 2. Rate 1 replaces what was
# there; above it, each write goes too far, and the residual changes its sign.
#
# ## 3. A system of equations
#
# $W_t$ is the sum of all writes so far (and of $W_0$, if an earlier text left one; let it be zero).
# Put that into (4) and (1):
#
# $$o_i = \sum_{s \le i} (q_i \cdot k_s)\, u_s \tag{5}$$
# $$r_t = v_t - \sum_{s < t} (k_t \cdot k_s)\, u_s \tag{6}$$
#
# (5) is [causal](glossary.md#causal) linear attention of values $u$. (6) looks like it. But what is
# asked for, $r$, is on the right side as well, in $u_s = \beta_s r_s$. So it is a system of
# equations. Let $T_{ts} = \beta_s\, (k_t \cdot k_s)$ for $s < t$, else 0. With all tokens' values
# and residuals as rows of $v$ and $r$, (6) is
#
# $$r = v - T r \qquad \text{or} \qquad (I + T)\, r = v$$
#
# This is *triangular*: row $t$ needs the rows before it, so they come one after the other. In
# arrays, with all pairs:


# %%
def residuals(k, v, beta):
    """Equation (6): r (L, M)."""
    T = np.tril(k @ k.T, -1) * beta  # (L, L), s < t
    return np.linalg.solve(np.eye(len(k)) + T, v)


def in_arrays(q, k, v, beta):
    """Equations (6), (2) and (5)."""
    u = beta[:, None] * residuals(k, v, beta)
    return np.tril(q @ k.T) @ u


beta = random.uniform(0.2, 1, 6)
out, r, _ = delta(Q, k, v, beta)
print(f"r is off by {error(residuals(k, v, beta), r):.0e}", end=", ")
print(f"out by {error(in_arrays(Q, k, v, beta), out):.0e}")

# %% [markdown]
# Between the two lie lesson 8's [chunks](glossary.md#chunk). With $W$ the state *before* a chunk,
# only the chunk's own writes are missing in it:
#
# $$r_t = (v_t - W^\top k_t) - \sum_{s < t,\ \text{in the chunk}} (k_t \cdot k_s)\, u_s \tag{7}$$
#
# ## 4. The backward is the delta rule, reversed
#
# The [backward](glossary.md#backward) is given $g_i = \partial \ell / \partial o_i$, for any
# [loss](glossary.md#loss) $\ell$ now. (5) is a sum of products, and each factor gets the other
# ones. So $q_i$ gets (8), and $u_t$, by the outputs, $c_t$:
#
# $$dq_i = \sum_{s \le i} (u_s \cdot g_i)\, k_s \tag{8}$$
# $$c_t = \sum_{i \ge t} (k_t \cdot q_i)\, g_i \tag{9}$$
#
# But a write is also taken from all later residuals, by (6). In all, $u_t$ gets $du_t$, and $r_s$
# gets $dr_s = \beta_s\, du_s$, as (2) says:
#
# $$du_t = c_t - \sum_{s > t} (k_t \cdot k_s)\, dr_s \tag{10}$$
#
# That is (6) again, with $c$ for $v$ and $du$ for $r$, read from the end. So the function above
# solves it. The rest is short, as $v_t$ stands in $r_t$ alone, and $\beta_t$ in $u_t$ alone:
#
# $$dv_t = dr_t \qquad d\beta_t = r_t \cdot du_t \tag{11}$$
#
# $k_t$ is in (5) once, and in (6) twice, as the key that looks up and as one that is met:
#
# $$dk_t = \sum_{i \ge t} (u_t \cdot g_i)\, q_i - \sum_{s < t} (dr_t \cdot u_s)\, k_s
#   - \sum_{s > t} (u_t \cdot dr_s)\, k_s \tag{12}$$
#
# And an earlier text's $W_0$, which every output and every residual reads, gets
#
# $$dW_0 = \sum_i q_i g_i^\top - \sum_t k_t\, dr_t^\top \tag{13}$$

# %%
g = random.standard_normal(v.shape)  # a random cotangent
c = np.tril(Q @ k.T).T @ g  # (9)
du = residuals(k[::-1], c[::-1], beta[::-1])[::-1]  # (10)


def loss():
    """A number that depends on every output."""
    return (g * in_arrays(Q, k, v, beta)).sum()


measured = finite_differences(loss, v)
print(f"dv: off by {error(beta[:, None] * du, measured):.0e}")

# %% [markdown]
# (A random [cotangent](glossary.md#cotangent), as always.) All pairs cost $L^2$; and
# `np.linalg.solve`, which ignores that $T$ is a triangle, $L^3$. In a [scan](glossary.md#scan) each
# of these sums would have a state. But two will do: $W$, and its gradient $G$. $W_t$ is read by the
# outputs from $t$ on, and by the residuals after $t$:
#
# $$G_t = \sum_{i \ge t} q_i g_i^\top - \sum_{s > t} k_s\, dr_s^\top \tag{14}$$
#
# Put (14) and the sum for $W$ in here, and out come (8), (10) and (12):
#
# $$dq_t = W_t\, g_t \qquad du_t = G_t^\top k_t \qquad dk_t = G_t u_t - W_{t-1}\, dr_t \tag{15}$$

# %% [markdown] exercise="delta-backward"
# ### Exercise 3 (5 points, 15 min): two walks
#
# Write (14), (15) and (11): `g` (L, M), `q`, `k` (L, E), `beta` (L,), and the residuals `r` (L, M);
# return `dq, dk, dv, dbeta`, of the shapes of `q`, `k`, `r` and `beta`. One walk from the end has
# $G$, one from the start has $W$. Texts may be long: no array of all pairs, and one state in each
# walk, not a list of them. Don't write to what you are given.
#
# <details><summary>Hint 1 of 3</summary>
#
# From the end first: it makes $du$, which needs $G$ alone, and the first part of $dk$. Then the
# walk from the start, with `dr = beta[:, None] * du` at hand, does the rest.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# From the end: add $q_t g_t^\top$ to $G$, use it in (15), then take $k_t dr_t^\top$ away.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# From the start: `dk[t] -= W @ dr[t]`, then add $k_t u_t^\top$ to $W$, then `dq[t] = W @ g[t]`.
#
# </details>


# %% exercise="delta-backward"
def delta_backward(g, q, k, beta, r):
    """The gradients (dq, dk, dv, dbeta)."""
    # BEGIN SOLUTION
    dq, dk, du = np.empty_like(q), np.empty_like(k), np.empty_like(r)
    u = beta[:, None] * r  # (2)
    G = W = np.zeros((k.shape[1], r.shape[1]))
    for t in reversed(range(len(k))):
        G = G + np.outer(q[t], g[t])  # (14)
        du[t] = G.T @ k[t]  # (15)
        dk[t] = G @ u[t]  # (15)
        G = G - np.outer(k[t], beta[t] * du[t])  # (14)
    dr = beta[:, None] * du
    for t in range(len(k)):
        dk[t] -= W @ dr[t]  # (15)
        W = W + np.outer(k[t], u[t])  # (3)
        dq[t] = W @ g[t]  # (15)
    return dq, dk, dr, (r * du).sum(axis=1)  # (11)
    # END SOLUTION


# %% check="delta-backward"
check("delta-backward", delta_backward)

# %%
gradients = delta_backward(g, Q, k, beta, r)
inputs = {"dq": Q, "dk": k, "dv": v, "dbeta": beta}
for (name, x), got in zip(inputs.items(), gradients, strict=True):
    print(f"{name}: off by {error(got, finite_differences(loss, x)):.0e}")

# %% [markdown] exercise="delta-kernel"
# ### Exercise 4 (4 points, 12 min): a thread corrects a column
#
# By (1) and (3), column $m$ of $W$ needs column $m$ of the values, and no other. So lesson 7's
# *state* pattern fits: a [thread](glossary.md#thread) [owns](glossary.md#owner) column $m$ in
# [local memory](glossary.md#local-memory), and walks the tokens. Write (1) to (4) as a
# [kernel](glossary.md#kernel): `query`, `key` (H, L, WIDTH), `value` (H, L, M), `beta` (H, L);
# `out` (H, L, M) is written to. The column is `cuda.grid(1)`, the head `cuda.blockIdx.y`.
# [Blocks](glossary.md#block) have 32 threads, and the last may have more of them than there are
# columns left.
#
# <details><summary>Hint 1 of 3</summary>
#
# `W = cuda.local.array(WIDTH, float32)` holds anything at first. [Guard](glossary.md#guard) all
# that a thread does with its column by `if m < value.shape[2]:`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Two loops over rows for each token. The first takes `W[e] * key[h, t, e]` from a scalar that
# starts as the value. Only when it is done is $r$ known.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The second adds `key[h, t, e] * u` to `W[e]`, and then `W[e] * query[h, t, e]` to the answer,
# which starts as `float32(0)`.
#
# </details>

# %% exercise="delta-kernel"
WIDTH = 16


@cuda.jit
def delta_kernel(query, key, value, beta, out):
    """A thread owns column m of W."""
    # BEGIN SOLUTION
    W = cuda.local.array(WIDTH, float32)
    m, h = cuda.grid(1), cuda.blockIdx.y
    for e in range(WIDTH):
        W[e] = float32(0)
    if m < value.shape[2]:
        for t in range(key.shape[1]):
            r = value[h, t, m]
            for e in range(WIDTH):
                r -= W[e] * key[h, t, e]  # (1)
            u = beta[h, t] * r  # (2)
            o = float32(0)
            for e in range(WIDTH):
                W[e] += key[h, t, e] * u  # (3)
                o += W[e] * query[h, t, e]  # (4)
            out[h, t, m] = o
    # END SOLUTION


# %% check="delta-kernel"
check("delta-kernel", delta_kernel)

# %% [markdown]
# ## 5. The real kernels
#
# The room's plain kernel finds residuals and writes, as yours does; those of linear attention then
# do (5). The first also solves (10), from the end.

# %%
query, key, value = random.random((3, 1, 2, 70, 32), np.float32)
rates, key = random.random((1, 2, 70), np.float32), normalised(key)
inputs = query, key, value, rates
with watch() as plain:
    room.forward(*inputs, version="plain")
with watch() as fast:
    out, r, _ = room.forward(*inputs)
grad = random.random(out.shape, np.float32)
with watch() as back:
    room.backward(grad, None, *inputs, out, r)
for name, seen in (("plain", plain), ("fast", fast), ("backward", back)):
    print(f"{name}:", ", ".join(one.kernel.__name__ for one in seen))
show(quote(plain[0].kernel, "(1)", "(2)", "(3)"))

# %% [markdown]
# The fast forward, cut to (7), (3) and (4). (`writes[t, s]` is $\beta_s\,(k_t \cdot k_s)$, with the
# rate in it, as `r_tile` has $r$, not $u$; `totals` has $u$; `TOGETHER` is 4.)

# %%
show(quote(fast[0].kernel, "(7)", "(3)", "(4)", also=("write = k_tile",)))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **[Tiles](glossary.md#tile), by (7).** The products of 16 tokens with $W$ are made before any
#    of them writes; so four tokens share each read of a number of $W$. What must come one by one is
#    (7), a triangular system of 16 rows. `writes` is made once for all columns.
# 2. **[Shared memory](glossary.md#shared-memory)**: a key is fetched once for up to 64 columns.
# 3. **A column has several owners** (`parts`), where it is tall, as in lesson 7.
#
# Backward, the first [launch](glossary.md#launch) is the same kernel again, from the end. Its state
# is $-G$: (15) adds $G^\top k$, where (1) takes $W^\top k$ away. But $dq$ and $dk$ are sums along
# *rows*, which an owner of a column has not got. So owners of rows walk twice more: with $W$, and,
# `back`, with $G$, called `W`, too. (`lost` is what (14) takes away, kept until the next token adds
# something.)

# %%
show(quote(back[1].kernel, "(14)", "(15)"))

# %% [markdown]
# What does looking cost? Linear attention passes over its state twice for each token, in $2EM$
# multiplications: to write, and to answer. The delta rule looks first, which makes it $3EM$. By (7)
# a token also meets half of its tile, 8 tokens or so, in $E + M$ each: $8(E + M)$ more.
# **Predict**: how many times as long does its forward take on your machine?

# %%
guess("times as long", 1.5)

# %%
L, E = (64, 32) if FAST else (512, 64)
query, key, value = random.standard_normal((3, 1, 2, L, E), np.float32)
rates = np.ones((1, 2, L), np.float32)
adds = partial(recurrent.forward, query, key, value)
corrects = partial(room.forward, query, normalised(key), value, rates)
times = seconds(adds, corrects)
table(("forward", "seconds"), zip(("linear", "delta"), times, strict=True))
reveal("times as long", times[1].median / times[0].median)

# %% [markdown]
# (Multiplications are not all: linear attention has $\varphi$, $Z$ and a division besides.)
#
# ## 6. The scoreboard
#
# Beside lesson 7's [recall](glossary.md#recall) of 32 pairs there is now a second task: 16 keys are
# written, and again, in another order, with other values. Each is asked for; the last value counts.
# All queries come after all keys, and no memory here knows positions.
#
# Who cannot tell which of two values came last is right once in two at best, and where both are the
# same. **Predict**: how often is [softmax](glossary.md#softmax)? And the delta rule?

# %%
guess("softmax, written twice", "100%")
guess("delta rule, written twice", "100%")


# %%
def correcting(query, key, value, rate):
    """The delta rule; all queries come after all keys."""
    beta = Tensor(np.zeros(key.shape[:3], np.float32)) + rate
    how = {"feature_map": "identity", "normalize": "l2"}  # queries, too
    late = {"query_offset": key.shape[2]}
    return delta_attention(query, key, value, beta, **how, **late)


class Learning(nn.Module):
    """The delta rule with one rate, which it learns; it begins at 0.12."""

    def __init__(self):
        self.x = nn.Parameter(np.full((1, 1, 1), -2, np.float32))

    def forward(self, query, key, value):
        """Keep the rate, to look at."""
        self.rate = sigmoid(self.x)
        return correcting(query, key, value, self.rate)


def adding(query, key, value):
    """Keys of any sign, and a sum that nothing is divided by."""
    return query @ (key.transpose(2, 3) @ value)


def dividing(query, key, value):
    """Linear attention as in lesson 7."""
    late = {"causal": True, "query_offset": key.shape[2]}
    return linear_attention(query, key, value, **late)


# %%
E, kept, rows, twice, rates = 16, 32 * (16 + 16), [], {}, []
seeds = range(1 if FAST else 3)
for name, head, *costs in (
    ("softmax", softmax_attention, kept, kept),
    ("linear", dividing, E * E + E, 2 * E * E),
    ("sum", adding, E * E, 2 * E * E),
    ("delta, rate 1", partial(correcting, rate=1.0), E * E, 3 * E * E),
    ("delta, learned", Learning, E * E, 3 * E * E),
):
    shares = []
    for task in (None, rewritten):
        heads = [head() if head is Learning else head for _ in seeds]
        tried = [recall(heads[i], seed=i, task=task) for i in seeds]
        shares.append(f"{np.mean(tried):.0%}")
        if head is Learning:
            rates.append(f"{heads[0].rate.numpy().item():.2f}")
    twice[name] = shares[1]
    rows.append((name, *costs, *shares))

# %%
columns = "numbers kept", "work a token", "recall", "written twice"
table(("E = 16", *columns), rows)
reveal("softmax, written twice", twice["softmax"])
reveal("delta rule, written twice", twice["delta, learned"])
print("rates that were learned:", " and ".join(rates))
half = (1 + 1 / 16) / 2  # right by chance, or as both are the same
questions = len(seeds) * 8 * 16 * 16
spread = np.sqrt(half * (1 - half) / questions)
print(f"who forgets nothing but the order: {half:.1%}", end=", ")
print(f"standard deviation {spread:.1%}")

# %% [markdown]
# Softmax keeps everything, and is where chance is: it has both values, but no order. Linear
# attention and the sum are below that, as they forget pairs, too. These two differ in two things:
# keys of any sign can be at right angles, of positive features few are; and nothing is divided.
# (`results/recall` speaks for the signs: with positive features the delta rule, without a
# denominator, recalls 72%, like linear attention.)
#
# Rate 1 forgets more pairs than the sum: 32 keys of 16 numbers cannot all be at right angles, and
# full writes move other values most. At a learned rate the delta rule recalls hardly more than the
# sum. What correcting buys is the last column, and there it is everything. Where values are
# replaced, a bolder rate was learned. (These are short runs.)
#
# ## What it cannot do
#
# * It corrects only what comes again. What nobody writes to stays for ever, and is in the way:
#   nothing fades, as the state of lesson 7's exercises did.
# * At most $E$ keys can be at right angles. With more, each write moves what others have written.
# * It has a direction: what a token writes depends on those before it, so a text read from its end
#   leaves another memory. And within a tile tokens still wait for each other.
# * A state of fixed size always loses something. Softmax loses nothing, but looks at every key.
#
# **Next question: must a query look at all keys?** No lesson answers that yet: `kernels/local` and
# `kernels/graph` let it look at some.

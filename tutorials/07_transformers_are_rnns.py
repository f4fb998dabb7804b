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

# %% [markdown] question="What does a decoder have to keep?" minutes=80 after=[6]
# # Transformers are RNNs
#
# A [*transformer*](glossary.md#transformer) is a stack of [layers](glossary.md#layer) of attention,
# with small networks between them. One that writes text, [token](glossary.md#token) by token, is a
# [*decoder*](glossary.md#decoder). An [*RNN*](glossary.md#rnn), a recurrent network, also goes
# token by token; it keeps a [state](glossary.md#state) of fixed size, which each token updates.
#
# Lesson 6 moved the sum: one matrix $S = \sum_j k_j v_j^\top$ answers all queries. But a model that
# writes text may not look ahead. Query $i$ sees the keys $j \le i$ only, so every query needs a sum
# of its own. Are we back at $L^2$?
#
# No. In this lesson you find the state that a decoder keeps, run it backwards, write its
# [kernel](glossary.md#kernel), and then train one and see what it forgets.
#
# *Source.* Katharopoulos, Vyas, Pappas and Fleuret, "Transformers are RNNs", ICML 2020.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

from minitransformer import functions as F
from minitransformer import gradcheck
from minitransformer.attention import (
    linear_attention,
    linear_attention_step,
    softmax_attention,
)
from minitransformer.course import (
    check,
    error,
    finite_differences,
    guess,
    peak_bytes,
    quantity,
    quote,
    quote_loop,
    reveal,
    seconds,
    show,
    six_tokens,
    slope,
    table,
    watch,
)
from minitransformer.course.figures import lesson_07 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import Row, recall, scoreboard
from minitransformer_kernels import recurrent, softmax
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear.reference import phi

# %%
random = np.random.default_rng(7)
Q, K, V = six_tokens()  # (6, 4), (6, 4), (6, 3)
q, k = phi(Q, "elu"), phi(K, "elu")  # features, as in lesson 6

# %% [markdown]
# ## 1. One term more
#
# The bracket of query $i$ differs from that of query $i - 1$ by *one term*. So keep it as a state,
# and add that term:
#
# $$S_i = S_{i-1} + k_i v_i^\top \qquad (E \times M) \tag{1}$$
# $$Z_i = Z_{i-1} + k_i \qquad (E) \tag{2}$$
# $$n_i = S_i^\top q_i \qquad d_i = q_i \cdot Z_i \tag{3}$$
# $$o_i = n_i / \mathrm{guard}(d_i) \tag{4}$$
#
# (Formulas count tokens from 1, code from 0.) Before the first token nothing has been seen:
# $S_0 = 0$ and $Z_0 = 0$, unless some earlier text left a state behind. That is a recurrent
# network: a state and a token go in, a state and an output come out. The numbers are those of the
# [room](glossary.md#room) `kernels/recurrent`. As a loop, and as arrays:


# %%
def token_loop(q, k, v):
    """One head: (L, E), (L, E), (L, M) -> (L, M), and d (L,)."""
    out, d = np.empty_like(v), np.empty(len(q))
    S, Z = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1])  # S_0, Z_0
    for i in range(len(q)):
        S = S + np.outer(k[i], v[i])  # (1)
        Z = Z + k[i]  # (2)
        d[i] = q[i] @ Z  # (3)
        out[i] = S.T @ q[i] / d[i]  # (3), (4)
    return out, d


def all_states(q, k, v):
    """All heads, no loop: (N, H, L, E), (N, H, L, E), (N, H, L, M)."""
    # For each n, h and l the outer product of k and v; then running sums.
    S = np.einsum("nhle,nhlm->nhlem", k, v).cumsum(axis=2)  # (1): all S_i
    Z = k.cumsum(axis=2)  # (2): (N, H, L, E), all Z_i
    n = np.einsum("nhlem,nhle->nhlm", S, q)  # (3)
    d = np.einsum("nhle,nhle->nhl", Z, q)  # (3)
    return n / d[..., None]  # (4): (N, H, L, M)


scores = np.tril(q @ k.T)  # lesson 6, with j <= i: (L, L)
truth = scores @ V / scores.sum(axis=1, keepdims=True)
out, d = token_loop(q, k, V)
whole = all_states(q[None, None], k[None, None], V[None, None])
print(f"off by {error(out, truth):.0e} and {error(whole[0, 0], truth):.0e}")
print("the first output is the first value:", out[0], V[0])

# %% [markdown]
# The array form needs every $S_i$ at once, $L E M$ numbers, and that twice (products, then sums).
# Only one $S_i$ is ever used at a time:

# %%
L, E = 128, 64
x, y, z = random.random((3, 1, 1, L, E), np.float32)
for name, form in (("all states", all_states), ("kernel", recurrent.forward)):
    print(name, quantity(peak_bytes(partial(form, x, y, z)), "B"))
print("L E M numbers are", quantity(4 * L * E * E, "B"))

# %% [markdown]
# Now the question. A [softmax](glossary.md#softmax) decoder keeps all keys and values. **Predict**:
# with $E = M = 64$, how many times as many numbers as $S$ and $Z$ is that after 4,096 tokens?

# %%
guess("numbers of softmax / numbers of a state", 64)

# %%
kept = 4096 * (64 + 64), 64 * 64 + 64
print(f"keys and values: {kept[0]:,}; S and Z: {kept[1]:,}, for ever")
reveal("numbers of softmax / numbers of a state", kept[0] / kept[1])

# %% [markdown] exercise="continue-from"
# ### Exercise 1 (2 points, 8 min): a prompt, then token by token
#
# A chat model reads a prompt at once and then writes token by token. Run the first `split` tokens
# in one call of `linear_attention`, keep its state, and feed the others one by one to
# `linear_attention_step`. Return all outputs, (N, H, L, M), as one Tensor. It must not matter where
# you split: even all tokens may belong to the prompt. (The check counts the steps.)
#
# <details><summary>Hint 1 of 3</summary>
#
# `linear_attention(..., causal=True, return_state=True)` returns `(output, state)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `linear_attention_step(query, key, value, state)` takes tokens without a length, (N, H, E): cut
# them out with `x[:, :, i]`. It returns `(output, next state)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `F.stack([token], dim=2)` gives an output a length of 1; `F.cat(outputs, dim=2)` joins a list of
# Tensors along it.
#
# </details>


# %% exercise="continue-from"
def continue_from(query, key, value, split):
    """Causal linear attention of Tensors (N, H, L, E)."""
    # BEGIN SOLUTION
    prompt = (x[:, :, :split] for x in (query, key, value))
    output, state = linear_attention(*prompt, causal=True, return_state=True)
    outputs = [output]
    for i in range(split, query.shape[2]):
        now = (x[:, :, i] for x in (query, key, value))
        token, state = linear_attention_step(*now, state)
        outputs.append(F.stack([token], dim=2))
    return F.cat(outputs, dim=2)
    # END SOLUTION


# %% check="continue-from"
check("continue-from", continue_from)

# %% [markdown]
# What does such a token cost? **Predict**: how does the time of *one* more token grow with the
# past, as $L^p$, for softmax, which looks at every key again, and for the step?

# %%
guess("p of softmax", 1)
guess("p of the step", 0)

# %%
pasts = (64, 512) if FAST else (512, 4096, 32768)
E = 16
token = random.standard_normal((1, 1, 1, E), np.float32)
S, Z = np.zeros((1, 1, E, E), np.float32), np.zeros((1, 1, E), np.float32)
state, now = recurrent.LinearState(S, Z), token[:, :, 0]  # (N, H, E)
rows = []
for past in pasts:
    keys = random.standard_normal((1, 1, past, E), np.float32)
    read = partial(softmax.forward, token, keys, keys)
    step = partial(recurrent.step, now, now, now, state)
    rows.append([*seconds(read), *seconds(step)])  # each finds its own cache
table(
    ("past", "softmax", "step"),
    zip(pasts, *zip(*rows, strict=True), strict=True),
)
medians = [[t.median for t in times] for times in zip(*rows, strict=True)]
reveal("p of softmax", slope(pasts, medians[0]))
reveal("p of the step", slope(pasts, medians[1]))

# %% [markdown]
# (A [launch](glossary.md#launch) costs the same whatever it does. Where the past is short, you
# measure that.)
#
# ## 2. Backward: two scans
#
# Given $g_i = \partial \ell / \partial o_i$; go through the equations from the last to the first.
#
# **Through (4)**, as in lesson 6, with $D_i = \mathrm{guard}(d_i)$:
#
# $$gn_i = g_i / D_i \qquad gd_i = -(g_i \cdot o_i) / D_i \cdot \mathrm{guard}'(d_i) \tag{5}$$
#
# **Through (3), to $q$**. Both $n_i$ and $d_i$ are linear in $q_i$:
#
# $$dq_i = S_i\, gn_i + gd_i\, Z_i \tag{6}$$
#
# Store all $S_i$ for this? That would be the large array again. Run the recurrence once more
# instead: a **forward [scan](glossary.md#scan)**.
#
# **Through (3), to the states.** $S_i$ is used twice: by $n_i$, which contributes
# $q_i\, gn_i^\top$, and by $S_{i+1} = S_i + \dots$, which hands back all that *it* gets. Let
# $R_i = \partial \ell / \partial S_i$ and $U_i = \partial \ell / \partial Z_i$, everything later
# included:
#
# $$R_i = R_{i+1} + q_i\, gn_i^\top \qquad U_i = U_{i+1} + gd_i\, q_i \tag{7}$$
#
# A recurrence that starts at the end: a **reverse scan**, from the
# [gradients](glossary.md#gradient) of $S_L$ and $Z_L$ if somebody used them, else from zero.
#
# **Through (1) and (2), to $k$ and $v$.** In $S_i$, $k_i$ stands beside $v_i$; in $Z_i$, alone:
#
# $$dk_i = R_i v_i + U_i \qquad dv_i = R_i^\top k_i \tag{8}$$
#
# What is left in front of the first token belongs to the initial state:
#
# $$dS_0 = R_1 \qquad dZ_0 = U_1 \tag{9}$$


# %%
def backward_scans(g, q, k, v, out, d, with_U=True):
    """One head; the gradients of q, k, v. Without U: a planted mistake."""
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    gn = g / d[:, None]  # (5)
    gd = -(g * out).sum(axis=1) / d  # (5)

    S, Z = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1])
    for i in range(len(q)):  # forward scan
        S, Z = S + np.outer(k[i], v[i]), Z + k[i]  # (1), (2)
        dq[i] = S @ gn[i] + gd[i] * Z  # (6)

    R, U = np.zeros_like(S), np.zeros_like(Z)
    for i in reversed(range(len(q))):  # reverse scan
        R = R + np.outer(q[i], gn[i])  # (7)
        U = U + with_U * gd[i] * q[i]  # (7)
        dk[i] = R @ v[i] + U  # (8)
        dv[i] = R.T @ k[i]  # (8)
    return dq, dk, dv


# %%
g = random.standard_normal(V.shape)
S = np.einsum("le,lm->lem", k, V).cumsum(axis=0)  # S_1 ... S_6
R = np.einsum("le,lm->lem", q, g / d[:, None])[::-1].cumsum(axis=0)[::-1]
show(
    figures.filling(S, R), "filling",
    alt="S fills up from token 1 to 6; R fills up from token 6 back to 1",
)  # fmt: skip
print("d:", d.round(1))

# %% [markdown]
# Why does $R_1$ stand out? The first token has seen one key only, so that $d_1$ is small, and
# $gn_1 = g_1 / d_1$ is large.
#
# ### Is it right?
#
# Ask the forward: nudge each number, and see how $\ell = \sum c \cdot o$ moves. **Predict**:
# somebody leaves out $U$. Which gradient is wrong?

# %%
guess("wrong without U", "dq")


# %%
def slopes(c):
    """What the forward says of all three gradients."""

    def loss():
        return (c * token_loop(q, k, V)[0]).sum()

    return [finite_differences(loss, x) for x in (q, k, V)]


def errors(claimed, measured):
    """Of dq, dk and dv."""
    return [error(x, y) for x, y in zip(claimed, measured, strict=True)]


rows = []
for name, c in (("random", g), ("even", np.ones_like(g))):
    tried = {
        "right": backward_scans(c, q, k, V, out, d),
        "no U": backward_scans(c, q, k, V, out, d, with_U=False),
        "columns of c swapped": backward_scans(c[:, ::-1], q, k, V, out, d),
    }
    rows += [(name, w, *errors(x, slopes(c))) for w, x in tried.items()]
table(("c", "backward", "error of dq", "of dk", "of dv"), rows)
off = dict(zip(("dq", "dk", "dv"), rows[1][2:], strict=True))
reveal("wrong without U", max(off, key=off.get))

# %% [markdown]
# One gradient of three is wrong, shapes fit, and training still makes progress. Only such a check
# finds it.
#
# Look at the even $c$, which is what `o.sum()` gives you. It does find the missing $U$. But it is
# blind to swapped columns, as all columns of an even $c$ are alike. A random
# [cotangent](glossary.md#cotangent) is blind to neither. `gradcheck` takes one, too; here for the
# compiled kernels, in float64:

# %%
inputs = [random.standard_normal((1, 2, 9, width)) for width in (4, 4, 3)]
attention = partial(linear_attention, causal=True, algorithm="recurrent")
print("gradcheck:", gradcheck(attention, inputs))

# %% [markdown] exercise="fading-backward"
# ### Exercise 2 (5 points, 15 min): a state that fades
#
# Let the state fade by $0 < \gamma < 1$ at each token and, to keep it short, have no normaliser:
#
# $$S_i = \gamma\, S_{i-1} + k_i v_i^\top \qquad o_i = S_i^\top q_i$$
#
# (Sun et al. 2023 call it retention.) What becomes of (6), (7) and (8)? Derive them, then write a
# forward scan for `dq` and a reverse scan for `dk` and `dv`, one [head](glossary.md#head), features
# given. Texts may be long: no array, and no loop, may go over all pairs.
#
# <details><summary>Hint 1 of 3</summary>
#
# There is no $d$: so $gn_i = g_i$, and no $U$.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# $S_i$ is still used twice: by $o_i$, and by $S_{i+1}$. Write down
# $\partial S_{i+1} / \partial S_i$.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# $R_i = \gamma R_{i+1} + q_i g_i^\top$; the rest is as it was.
#
# </details>


# %%
def fading(q, k, v, gamma):
    """The forward: (L, E), (L, E), (L, M) -> (L, M)."""
    S, out = np.zeros((q.shape[1], v.shape[1])), np.empty_like(v)
    for i in range(len(q)):
        S = gamma * S + np.outer(k[i], v[i])
        out[i] = S.T @ q[i]
    return out


# %% exercise="fading-backward"
def fading_backward(g, q, k, v, gamma):
    """The gradients (dq, dk, dv), given g (L, M)."""
    # BEGIN SOLUTION
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    S = R = np.zeros((q.shape[1], v.shape[1]))
    for i in range(len(q)):
        S = gamma * S + np.outer(k[i], v[i])
        dq[i] = S @ g[i]
    for i in reversed(range(len(q))):
        R = gamma * R + np.outer(q[i], g[i])
        dk[i] = R @ v[i]
        dv[i] = R.T @ k[i]
    return dq, dk, dv
    # END SOLUTION


# %% check="fading-backward"
check("fading-backward", fading_backward)

# %% [markdown]
# ## 3. A kernel that owns columns
#
# How do you spread this over [threads](glossary.md#thread)? Tokens depend on each other: $S_i$
# needs $S_{i-1}$. But the *columns* of $S$ do not. Column $m$ needs $k_i$ and one number of $v_i$:
#
# $$S_i[:, m] = S_{i-1}[:, m] + k_i\, v_{im} \qquad n_{im} = S_i[:, m] \cdot q_i$$
#
# So a thread [owns](glossary.md#owner) a column, and walks the tokens. That is the *state* pattern,
# the third and last of this course.

# %% [markdown] exercise="fading-kernel"
# ### Exercise 3 (3 points, 15 min): your own recurrence
#
# Write the fading forward as a kernel. A thread keeps its column, `WIDTH` numbers, in
# [local memory](glossary.md#local-memory), a `cuda.local.array`: nobody else sees it, so no
# [barriers](glossary.md#barrier). [Blocks](glossary.md#block) have `COLUMNS` threads; its column is
# `m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x`, its head `cuda.blockIdx.y`. Mind the last
# block: some of its threads have no column.
#
# <details><summary>Hint 1 of 3</summary>
#
# `S = cuda.local.array(WIDTH, float32)` holds anything at first: set each number to `float32(0)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Loop over tokens outside and rows inside; update `S[e]`, then add `S[e] * query[h, i, e]` to a
# scalar that starts as `float32(0)`, and write that to `out` after the rows.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Guard what reads `value` and writes `out` by `if m < value.shape[2]:`.
#
# </details>

# %% exercise="fading-kernel"
WIDTH, COLUMNS = 16, 32


@cuda.jit
def fading_kernel(query, key, value, gamma, out):
    """Query and key (H, L, WIDTH), value (H, L, M); out (H, L, M)."""
    # BEGIN SOLUTION
    S = cuda.local.array(WIDTH, float32)
    m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x
    h = cuda.blockIdx.y
    for e in range(WIDTH):
        S[e] = float32(0)
    if m < value.shape[2]:
        for i in range(query.shape[1]):
            n = float32(0)
            for e in range(WIDTH):
                S[e] = gamma * S[e] + key[h, i, e] * value[h, i, m]
                n += S[e] * query[h, i, e]
            out[h, i, m] = n
    # END SOLUTION


# %% check="fading-kernel"
check("fading-kernel", fading_kernel)

# %% [markdown]
# ## 4. The real kernel
#
# Launch it, note the launch, and draw what was noted. The lines that follow are cut from
# `kernels/recurrent/fast.py` by the numbers in its comments.

# %%
with watch() as seen:
    recurrent.forward(*random.standard_normal((3, 2, 3, 70, 64), np.float32))
(launch,) = seen
print(launch.kernel, "blocks", launch.blocks, "threads", launch.threads)
show(
    figures.tiling(launch), "tiling",
    alt="Threads own parts of the columns of S; tiles of tokens come by",
)  # fmt: skip
show(quote(launch.kernel, "(1)", "(2)", "(3)", "(4)"))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **[Tiles](glossary.md#tile).** Up to 32 tokens (here 16) lie in
#    [shared memory](glossary.md#shared-memory): a feature is fetched, and goes through $\varphi$,
#    once for all columns of the block. That needs barriers.
# 2. **Four tokens at once** (`TOGETHER`): a number of $S$ is read and written once for four tokens.
# 3. **A column has several owners** (`parts`): [registers](glossary.md#register) are few, so a tall
#    column is shared out, and the shares of $n$ are added up through `n_part`. Likewise $Z$: a
#    thread keeps one number of it, and others add up $d$.
#
# You have run it without a GPU: between two barriers the source became a loop over threads. Here
# are (1) and (3) in what was compiled for your processor. The innermost loop, marked `# lanes`,
# runs over `threadIdx.x`: neighbouring threads, neighbouring numbers. (`u(...)` marks an index that
# is never negative: lesson 2.)

# %%
show(quote_loop(launch.kernel, "(1)", "(3)"))

# %% [markdown]
# **The [backward](glossary.md#backward) kernel.** Equations (6) and (8) are one loop with different
# actors, as in lesson 6:
#
# $$y_i = \sum_{j \le i} (A_i \cdot B_j)\, C_j + a_i \sum_{j \le i} b_j C_j \tag{10}$$
#
# with the table of lesson 6; $dk$ and $dv$ walk in reverse. The plain one reads best: `X` is
# $S^\top$, then $R^\top$, then $R$; `x` is $Z$, then $U$; `way` is 1, then -1.

# %%
gn, gd = (
    random.standard_normal((1, 1, 9, 4)),
    random.standard_normal((1, 1, 9)),
)
with watch() as seen:
    recurrent.gradients(gn, gd, None, gn, gn, gn, version="plain")
print("launched:", ", ".join(str(launch.kernel) for launch in seen))
show(
    quote(
        seen[0].kernel,
        "(10)",
        also=("way > 0", "x[n, h, c] +=", "X[n, h, d, c] +="),
    )
)

# %% [markdown]
# ## 5. What does it remember?
#
# Now train it. A sequence names 32 of 64 keys and gives each a value, one of 16; then it asks for
# every key. One head answers, trained for a second or two. (`minitransformer/course/recall.py` is
# how.) Queries come after all keys, so that lesson 6's floor holds: with $E = 16$ the right keys
# get, on average, half of the weight at most. A blind guess is right once in 16. **Predict**: which
# share of the pairs is recalled?

# %%
guess("recall of linear attention, E = 16", "50%")


# %%
def remembering(query, key, value):
    """All queries come after all keys."""
    late = {"causal": True, "query_offset": key.shape[2]}
    return linear_attention(query, key, value, algorithm="recurrent", **late)


kept = 32 * (16 + 16)
recalled = recall(softmax_attention, width=16)
rows = [Row("softmax, E = 16", kept, kept, recalled)]
for E in (16,) if FAST else (16, 64):
    recalled = recall(remembering, width=E)
    rows.append(Row(f"linear, E = {E}", E * E + E, 2 * E * E, recalled))
scoreboard(*rows)
reveal("recall of linear attention, E = 16", f"{rows[1].recalled:.0%}")

# %% [markdown]
# More than the bound on weights? A value that is right needs more weight than any *other value*,
# not half of all. Softmax finds each of 32 keys with 16 numbers a key; a state needs more rows and
# columns than 16 for that.
#
# That is the scoreboard of this course; the next lesson adds a row.
#
# ## What it cannot do
#
# * Its memory has a fixed size. It pays for more pairs with a wider head, or forgets.
# * It adds, and never corrects: a key that is written twice keeps both values.
# * It goes token by token. A thread has its column, but tokens wait for each other, and all
#   $E \times M$ numbers of $S$ are touched for a single one. **Next question: can a recurrence take
#   many tokens at a time?**

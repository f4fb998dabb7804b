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

# %% [markdown]
# # Transformers are RNNs
#
# Softmax attention compares every token with every token: twice the text, four times the work.
# Katharopoulos et al. (2020) replaced one function in it and got something surprising: attention
# whose cost grows with the length alone, and which, read from left to right, *is* a recurrent
# network with a memory of constant size.
#
# In this lesson you will
#
# 1. turn softmax attention into a sum that may be moved, and move it;
# 2. find the states $S_i$ and $Z_i$, and write them as a loop and as an einsum;
# 3. derive the backward pass line by line, and catch a planted mistake in it;
# 4. read a real GPU kernel that does this, thread by thread (you need no GPU: the same source runs
#    here as a compiled loop);
# 5. predict its bytes, its operations and its time, and then measure them;
# 6. write one yourself.
#
# Whenever a paragraph starts with **Predict**, stop and write down a guess. Being wrong is how this
# works.
#
# Run it as a script (`python tutorials/transformers_are_rnns.py`) or cell by cell as a notebook.
# Every number that you will see was measured in your own run.
#
# *Sources.* Katharopoulos, Vyas, Pappas and Fleuret, "Transformers are RNNs: Fast autoregressive
# transformers with linear attention", ICML 2020 ("the paper"), and a student replication of it on a
# copy task ("the replication", S1 in this project), whose readers asked most of the questions that
# this lesson answers.

# %%
from collections.abc import Iterable
from functools import partial
from typing import Any

import classroom
import numpy as np
from classroom import BLUE, FAST, GREEN, GREY, ORANGE, PINK
from counting import count
from drawings import moving_the_sum, tiling
from numba import float32

from minitransformer import Tensor, gradcheck, nn, no_grad, optim
from minitransformer import functions as F
from minitransformer.attention import linear_attention, linear_attention_step, softmax_attention
from minitransformer_kernels import recurrent, reference
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.visible import Visible

Array = Any
random = np.random.default_rng(2020)

# %% [markdown]
# ## 1. Softmax attention, and its shapes
#
# A batch of $N$ sequences has $L$ tokens each; a token is a row of $H \cdot E$ numbers, $E$ for
# each of $H$ heads. Every head makes from each token a query, a key (both $E$ numbers) and a value
# ($M$ numbers; here $M = E$). The replication's readers missed one thing above all: what each
# reshape does to the shape. So here they are, and from now on every line that changes a shape says
# so.

# %%
N, H, L, E = 1, 8, 128 if FAST else 512, 64
M = E


def split_heads(x: Array) -> Array:
    """From one row a token to one row a token and head."""
    x = x.reshape(N, -1, H, E)  # (N, L, H*E) -> (N, L, H, E)
    return x.transpose(0, 2, 1, 3)  # (N, L, H, E) -> (N, H, L, E)


def merge_heads(x: Array) -> Array:
    """The way back, after attention."""
    x = x.transpose(0, 2, 1, 3)  # (N, H, L, M) -> (N, L, H, M)
    return x.reshape(N, -1, H * M)  # (N, L, H, M) -> (N, L, H*M)


Q, K, V = (split_heads(random.standard_normal((N, L, H * E), np.float32)) for _ in range(3))
print(f"Q, K, V: {Q.shape} = (N, H, L, E), and merged again: {merge_heads(Q).shape} = (N, L, H*E)")

# %% [markdown]
# Query $i$ gets an average of the values, weighted by how well query and key match:
#
# $$o_i = \frac{\sum_j \mathrm{sim}(Q_i, K_j)\, v_j}{\sum_j \mathrm{sim}(Q_i, K_j)}
#   \qquad \mathrm{sim}(Q_i, K_j) = e^{Q_i \cdot K_j / \sqrt E} \tag{A}$$
#
# A *causal* model sees only the past: $j \le i$. In the two forms that every formula of this lesson
# gets: the loops that the formula says, and the arrays that a library wants.


# %%
def softmax_loop(Q: Array, K: Array, V: Array) -> Array:
    """Equation (A) for one head: Q and K (L, E), V (L, M)."""
    out = np.zeros_like(V)
    for i in range(len(Q)):
        sim = [np.exp(Q[i] @ K[j] / E**0.5) for j in range(i + 1)]  # (A), right
        for j in range(i + 1):
            out[i] += sim[j] * V[j] / sum(sim)  # (A), left
    return out


def softmax_arrays(Q: Array, K: Array, V: Array) -> Array:
    """Equation (A) for all heads at once: Q and K (N, H, L, E), V (N, H, L, M)."""
    scores = Q @ K.swapaxes(-1, -2) / E**0.5  # nhie,nhje->nhij: (N, H, L, L)
    sim = np.exp(scores - scores.max(axis=-1, keepdims=True))  # the largest cancels in (A)
    sim = np.tril(sim)  # j <= i
    return sim @ V / sim.sum(axis=-1, keepdims=True)  # nhij,nhjm->nhim: (N, H, L, M)


few = slice(0, 24)  # tokens: a loop is slow
classroom.check(
    "loop = arrays",
    softmax_loop(Q[0, 0, few], K[0, 0, few], V[0, 0, few]),
    softmax_arrays(Q[..., few, :], K[..., few, :], V[..., few, :])[0, 0],
    1e-4,
)

# %% [markdown]
# The culprit is `(N, H, L, L)`. Each pair of tokens gets a number of its own, and nothing in (A)
# lets us avoid that: $e^{Q_i \cdot K_j}$ knits $i$ and $j$ together.
#
# ## 2. A similarity that comes apart
#
# So choose another similarity. The paper's one idea: let it be a product of two vectors, one that
# knows only $i$ and one that knows only $j$:
#
# $$\mathrm{sim}(Q_i, K_j) = \varphi(Q_i) \cdot \varphi(K_j) = q_i \cdot k_j,
#   \qquad q_i = \varphi(Q_i),\ k_j = \varphi(K_j) \tag{B}$$
#
# (From here on, small $q$ and $k$ are *features*.) What must $\varphi$ do?
#
# * **Be positive.** Weights must not be negative, and the denominator in (A) must not come near
#   zero.
# * **Let gradients through.** relu is not negative either, but where $x < 0$ its slope is zero: a
#   feature that is off stays off. That is the paper's reason for
#
# $$\varphi(x) = \mathrm{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases}$$
#
# which costs one exponential at most, is positive, and has a positive slope everywhere. It is a
# choice, not a law: any positive map will do for all that follows.


# %%
def phi(x: Array) -> Array:
    """The feature map: elu(x) + 1, but see below."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def phi_slope(x: Array) -> Array:
    """Its derivative."""
    return np.where(x > 0, 1, np.exp(np.minimum(x, 0)))


x = np.linspace(-4, 3, 281)
figure, (left, right) = classroom.panels(2, height=3.2)
for axis, elu, relu, title in (
    (left, phi(x), np.maximum(x, 0), "Feature"),
    (right, phi_slope(x), (x > 0).astype(float), "Its slope: what gradients are multiplied by"),
):
    axis.axvline(0, color=GREY, linewidth=0.7)
    axis.plot(x, elu, color=BLUE)
    axis.plot(x, relu, color=ORANGE, linestyle=(0, (5, 1.5)))
    axis.set(title=title, xlabel="x", ylim=(-0.2, None))
    axis.grid(True)
left.text(-0.25, 1.2, "elu(x) + 1", color=BLUE, ha="right")
left.text(2.1, 1.4, "relu(x)", color=ORANGE)
right.text(-0.95, 0.5, "elu + 1: never zero", color=BLUE, ha="right")
right.text(-3.9, -0.12, "relu: zero, nothing is learned", color=ORANGE)
classroom.show(figure, "feature_map")

# %% [markdown]
# **Predict**: the formula says `elu(x) + 1`, and for $x \le 0$ elu is `expm1(x)`. What does float32
# make of `expm1(x) + 1` at $x = -17.5$?

# %%
classroom.table(
    ("x", "elu(x) + 1", "exp(x)"),
    [
        (f"{v:g}", float(np.expm1(np.float32(v)) + np.float32(1)), float(np.exp(np.float32(v))))
        for v in (-1, -8, -17.5)
    ],
)

# %% [markdown]
# The 1 swallows the digits. The same function, written in two branches, keeps them all; so does the
# kernel.
#
# ## 3. Why the sum may be moved
#
# Put (B) into the numerator of (A), and go slowly:
#
# $$\sum_j (q_i \cdot k_j)\, v_j
#   \;=\; \sum_j v_j \,(k_j^\top q_i)
#   \;=\; \sum_j (v_j k_j^\top)\, q_i
#   \;=\; \Big(\sum_j k_j v_j^\top\Big)^{\!\top} q_i \tag{C}$$
#
# 1. $q_i \cdot k_j$ is a number, so it may stand right of $v_j$, and it is $k_j^\top q_i$ as well.
# 2. Products of matrices are associative: the brackets may move.
# 3. $q_i$ is the same in every term, so it may leave the sum. **This is the step that softmax does
#    not allow**: there the $i$ is inside the exponential, and no finite number of features gets it
#    out.
#
# The bracket holds no $i$. For attention in both directions it is one matrix, computed once. The
# denominator is (C) with $v_j = 1$.
#
# **Predict**: with a multiplication and an addition for each term, how many operations do both
# sides of (C) take for $L$ queries? By which factor will the right one win at the length below?


# %%
def scores_first(q: Array, k: Array, V: Array) -> Array:
    """The left side of (C), for features q, k (N, H, L, E); both directions."""
    scores = q @ k.swapaxes(-1, -2)  # nhie,nhje->nhij: (N, H, L, L)
    return scores @ V / scores.sum(axis=-1, keepdims=True)  # nhij,nhjm->nhim: (N, H, L, M)


def values_first(q: Array, k: Array, V: Array) -> Array:
    """The right side of (C)."""
    S = k.swapaxes(-1, -2) @ V  # nhje,nhjm->nhem: (N, H, E, M)
    Z = k.sum(axis=-2)[..., None]  # nhje->nhe: (N, H, E), then (N, H, E, 1)
    return q @ S / (q @ Z)  # nhie,nhem->nhim: (N, H, L, M)


q, k = phi(Q), phi(K)  # (N, H, L, E) both
classroom.check("moved = not moved", values_first(q, k, V), scores_first(q, k, V), 1e-4)

before, after = 2 * L * L * (E + M), 2 * L * 2 * E * M
slow, fast = (classroom.seconds(order, q, k, V) for order in (scores_first, values_first))
print(f"L = {L}, E = M = {E}. Predicted: {before:,} operations a head against {after:,},")
print(f"a factor of L / E = {before / after:.3g}. Measured: {slow / fast:.3g} times faster.")
classroom.show(moving_the_sum(32, 8), "moving_the_sum")

# %% [markdown]
# The factor $L/E$ is the whole story of complexity: there is nothing to win until a text is longer
# than a head is wide. If your two factors differ, don't be surprised: operations are not all that
# takes time. The scores have to be written to memory and fetched again as well; section 9 counts
# such bytes.
#
# ## 4. Read from left to right: the states
#
# A causal model needs the bracket of (C) for $j \le i$ only: a different one for every query. But
# it differs from its predecessor by one term! So keep it as a *state*, and update it with each
# token:
#
# $$S_i = S_{i-1} + k_i v_i^\top \qquad (E \times M) \tag{1}$$
# $$Z_i = Z_{i-1} + k_i \qquad (E) \tag{2}$$
# $$n_i = S_i^\top q_i \qquad d_i = q_i \cdot Z_i \tag{3}$$
# $$o_i = n_i / \mathrm{guard}(d_i) \tag{4}$$
#
# That is a recurrent network: a state goes in, a token goes in, a state and an output come out.
# Memory and time of a token don't depend on how many came before it. The guard keeps an underflow
# from dividing by zero, $\max(d, \text{tiny})$; with positive features it hardly ever does
# anything.
#
# These numbers, (1) to (4), are the ones that you will find again in the kernel's source.
#
# The replication's readers asked to see the loop beside the einsum. Here is every way that I know:


# %%
def four_loops(q: Array, k: Array, V: Array) -> Array:
    """Equations (1)-(4), number by number, for one head: q and k (L, E), V (L, M)."""
    out, S, Z = np.zeros_like(V), np.zeros((E, M)), np.zeros(E)
    for i in range(len(q)):
        for m in range(M):
            n = 0.0
            for e in range(E):
                S[e, m] += k[i, e] * V[i, m]  # (1)
                n += S[e, m] * q[i, e]  # (3)
            out[i, m] = n
        d = 0.0
        for e in range(E):
            Z[e] += k[i, e]  # (2)
            d += q[i, e] * Z[e]  # (3)
        out[i] /= d  # (4)
    return out


def token_loop(q: Array, k: Array, V: Array) -> Array:
    """The same with a loop over tokens only: q and k (N, H, L, E), V (N, H, L, M)."""
    out, S, Z = np.empty_like(V), np.zeros((N, H, E, M), V.dtype), np.zeros((N, H, E), V.dtype)
    for i in range(q.shape[2]):
        S += k[:, :, i, :, None] * V[:, :, i, None, :]  # (1): (N,H,E,1) * (N,H,1,M) -> (N,H,E,M)
        Z += k[:, :, i]  # (2): (N, H, E)
        n = np.einsum("nhem,nhe->nhm", S, q[:, :, i])  # (3): (N, H, M)
        d = np.einsum("nhe,nhe->nh", Z, q[:, :, i])  # (3): (N, H)
        out[:, :, i] = n / d[..., None]  # (4): (N, H, M)
    return out


def einsum_form(q: Array, k: Array, V: Array) -> Array:
    """No loop: all states at once, as running sums over the tokens."""
    S = np.einsum("nhle,nhlm->nhlem", k, V).cumsum(axis=2)  # (1): (N, H, L, E, M), all S_i
    Z = k.cumsum(axis=2)  # (2): (N, H, L, E), all Z_i
    n = np.einsum("nhlem,nhle->nhlm", S, q)  # (3): (N, H, L, M)
    d = np.einsum("nhle,nhle->nhl", Z, q)  # (3): (N, H, L)
    return n / d[..., None]  # (4): (N, H, L, M)


def masked_scores(q: Array, k: Array, V: Array) -> Array:
    """The sum not moved: quadratic, but nothing other than products of matrices."""
    scores = np.tril(q @ k.swapaxes(-1, -2))  # nhie,nhje->nhij: (N, H, L, L), j <= i
    return scores @ V / scores.sum(axis=-1, keepdims=True)  # nhij,nhjm->nhim: (N, H, L, M)


def kernel(q: Array, k: Array, V: Array) -> Array:
    """The hand-written kernel of this project; q and k are features already."""
    return recurrent.forward(q, k, V, feature_map="identity")[0]


# %% [markdown]
# **Predict**: order them by time, at the length that was printed above. And by memory. Which is the
# larger sin, a loop in Python or an array of $L \times E \times M$?

# %%
truth = masked_scores(*(a.astype(np.float64) for a in (q, k, V)))
q, k, V = (np.ascontiguousarray(a) for a in (q, k, V))
forms = {
    "loop over tokens": token_loop,
    "einsum, all states": einsum_form,
    "masked scores": masked_scores,
    "kernel": kernel,
}
for name, form in forms.items():
    classroom.check(name, form(q, k, V), truth, 1e-5)
few = slice(0, 16)
one_head = [a[0, 0, few] for a in (q, k, V)]
classroom.check("four loops", four_loops(*one_head), truth[0, 0, few], 1e-5)

scale = N * H * L / 16  # four loops are timed on 16 tokens of one head
times = {"four loops (scaled up)": scale * classroom.seconds(four_loops, *one_head)}
peaks = {"four loops (scaled up)": float("nan")}
for name, form in forms.items():
    times[name] = classroom.seconds(form, q, k, V)
    peaks[name] = classroom.peak_bytes(form, q, k, V)

figure, (left, right) = classroom.panels(2, height=2.9)
classroom.dots(left, f"Time (N={N}, H={H}, L={L}, E=M={E})", "s", times)
classroom.dots(right, "Memory at the peak", "B", peaks, names=False)
classroom.show(figure, "forms")

for name, time in times.items():
    print(f"{name}: {time / times['einsum, all states']:.2g} times the einsum's time")

# %% [markdown]
# Why? Two costs are at work, and each form pays a different one.
#
# * **The interpreter.** Python spends much more on understanding `S[e, m] += ...` than the
#   processor on doing it. In four loops each single number pays that, in the token loop each token,
#   in the einsum nobody. That is why the form without a loop is the one that people write.
# * **Memory.** The einsum makes every $S_i$, all $L$ of them, where only one at a time is ever needed:
#   the array `(N, H, L, E, M)` is written to memory, and read again, and again. (The token loop's
#   state stays in the cache.) The masked scores are $L \times L$ instead, but a product of matrices
#   is what processors and libraries do best.
#
# So the einsum beats the four loops by far, and yet, where its states outgrow the cache, a loop
# over tokens that keeps one small state may beat the einsum. What did your machine say? The right
# panel tells why. A kernel pays neither price: it *is* the loop, compiled, with $S$ where it is
# needed: in registers.
#
# The public function takes the kernel, applies $\varphi$ inside, and is differentiable:

# %%
tensors = [Tensor(a) for a in (Q, K, V)]
output, state = linear_attention(*tensors, causal=True, return_state=True)
classroom.check("linear_attention", output.numpy(), truth, 1e-5)
print(f"S {state.S.shape} and Z {state.Z.shape}: all that a decoder remembers of {L} tokens")

# %% [markdown]
# ## 5. What it costs: low rank
#
# Nothing is free. The matrix of weights of linear attention, $A = \mathrm{diag}(d)^{-1}\, q\,
# k^\top$, is a product of an $L \times E$ and an $E \times L$ matrix: its rank is $E$ at most.
# Softmax's exponential has no such limit. (Without the causal mask, which muddies the picture but
# not the point.)
#
# What does that do to learning? Take the hardest thing that a head is asked to do, and just what a
# copy task wants: each of $L$ queries has to find its own one key. Let $\pi(i)$ be the key of query
# $i$ and the loss the mean of $-\log A_{i,\pi(i)}$. Before training anything, we can tell a floor.
# Write $A = UW$ with $U$ (rows sum to one) and $W$ (rows sum to one) of $E$ features, both
# positive; then
#
# $$\sum_i A_{i,\pi(i)} = \sum_e \sum_i U_{ie} W_{e,\pi(i)} \le \sum_e \sum_i W_{e,\pi(i)} = E$$
#
# so the right keys get $E/L$ of the weight on average at most, and as the logarithm is concave, no
# optimizer in the world brings the loss below $\log (L/E)$.
#
# **Predict**: $L = 32$. Which loss will linear attention with $E = 8$, 16 and 32 features end at,
# and softmax with only 8 numbers a key?

# %%
LOOKUPS, STEPS = 32, 120 if FAST else 400
wanted = random.permutation(LOOKUPS)


def weights(query: Tensor, key: Tensor, kind: str) -> Tensor:
    """The matrix of attention weights, (L, L), from queries and keys (L, E)."""
    if kind == "softmax":
        return F.softmax(query @ key.T / query.shape[-1] ** 0.5, dim=-1)
    scores = (F.elu(query) + 1) @ (F.elu(key) + 1).T
    return scores / scores.sum(-1, keepdim=True)


def learn(kind: str, width: int) -> tuple[list[float], Array]:
    """Train queries and keys to find each other: the losses, and the weights in the end."""
    start = np.random.default_rng(1)
    query, key = (nn.Parameter(start.standard_normal((LOOKUPS, width))) for _ in range(2))
    optimizer = optim.Adam([query, key], lr=0.05)
    losses = []
    for _ in range(STEPS):
        A = weights(query, key, kind)
        loss = -F.log(A[np.arange(LOOKUPS), wanted]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, A.numpy()


runs = {(kind, width): learn(kind, width) for kind, width in
        (("softmax", 8), ("linear", 8), ("linear", 16), ("linear", 32))}  # fmt: skip

figure, (left, right) = classroom.panels(2, height=3.6)
for (kind, width), color, style in zip(
    runs, (ORANGE, BLUE, GREEN, PINK), ((0, (5, 1.5)), "-", "-", "-"), strict=True
):
    losses, A = runs[kind, width]
    name = f"{kind}, E = {width}"
    values = np.linalg.svd(A, compute_uv=False)
    left.plot(range(1, LOOKUPS + 1), values, color=color, linestyle=style)
    right.plot(losses, color=color, linestyle=style, label=name)
    if kind == "linear" and width < LOOKUPS:
        floor = np.log(LOOKUPS / width)
        right.axhline(floor, color=color, linewidth=1, linestyle=":")
        right.text(
            STEPS, floor - 0.06, f"log({LOOKUPS}/{width})", color=color, ha="right", va="top"
        )
left.set(
    title="Singular values of the trained weights",
    xlabel="from large to small",
    yscale="log",
    ylim=(1e-4, 3),
)
right.set(
    title=f"Finding one key of {LOOKUPS}", xlabel="step", ylabel="loss (nats)", ylim=(-0.1, None)
)
right.legend()
for axis in (left, right):
    axis.grid(True)
classroom.show(figure, "low_rank")

classroom.table(
    ("attention", "E", "rank", "floor", "loss", "steps to half the first loss"),
    [
        (
            kind,
            width,
            np.linalg.matrix_rank(A, tol=1e-9),
            max(0.0, float(np.log(LOOKUPS / width))) if kind == "linear" else 0.0,
            losses[-1],
            next((step for step, loss in enumerate(losses) if loss < losses[0] / 2), "never"),
        )
        for (kind, width), (losses, A) in runs.items()
    ],
)

# %% [markdown]
# Two effects, and it is worth telling them apart.
#
# * **A floor.** With fewer features than keys the loss comes to rest just above $\log(L/E)$.
# * **A slower pace**, and look at the last column: the number of features hardly changes it. To
#   prefer one key to another $r$ times, softmax needs scores that differ by $\log r$. Linear
#   attention needs a product of features that is $r$ times as large. What softmax does in steps,
#   features do in powers.
#
# The replication saw linear attention learn more slowly than softmax on a copy task, and its
# readers asked why. This is a part of the answer.
#
# ## 6. Backward, line by line
#
# Given $g_i = \partial\ell/\partial o_i$, we want the gradients of $q$, $k$ and $v$. Each step
# below uses one of the equations (1) to (4), from the last to the first.
#
# **Through (4)**, $o_i = n_i / D_i$ with $D_i = \mathrm{guard}(d_i)$. The quotient rule says
# $\partial\ell/\partial n_i = g_i / D_i$ and $\partial\ell/\partial D_i = -g_i \cdot n_i / D_i^2$.
# As $n_i / D_i$ is $o_i$:
#
# $$gn_i = g_i / D_i \qquad gd_i = -(g_i \cdot o_i) / D_i \cdot \mathrm{guard}'(d_i) \tag{5}$$
#
# (The guard's slope is 1 where it does nothing; below it is left out.)
#
# **Through (3), to $q$**: $n_i = S_i^\top q_i$ and $d_i = q_i \cdot Z_i$ are both linear in $q_i$,
# so
#
# $$dq_i = S_i\, gn_i + gd_i\, Z_i \tag{6}$$
#
# It needs $S_i$ and $Z_i$. Store all of them? That would be the $L \times E \times M$ array again.
# Run the recurrence a second time: a **forward scan**.
#
# **Through (3), to the states.** $S_i$ is used twice: by $n_i$, which contributes $q_i\,
# gn_i^\top$, and by $S_{i+1} = S_i + \dots$, which passes on all that *it* has. Let $R_i =
# \partial\ell/\partial S_i$ and $U_i = \partial\ell/\partial Z_i$, everything later included:
#
# $$R_i = R_{i+1} + q_i\, gn_i^\top \qquad U_i = U_{i+1} + gd_i\, q_i \tag{7}$$
#
# These are the states of a recurrence that starts at the end: a **reverse scan**. It starts with
# the gradient of the final state, if anybody used it, else with zeros.
#
# **Through (1) and (2), to $k$ and $v$.** $k_i$ is in $S_i$ by $k_i v_i^\top$ and in $Z_i$ as
# itself:
#
# $$dk_i = R_i v_i + U_i \qquad dv_i = R_i^\top k_i \tag{8}$$
#
# What is left of $R$ and $U$ in front of the first token belongs to the initial state:
#
# $$dS_0 = R_1 \qquad dZ_0 = U_1 \tag{9}$$
#
# And $Q$ and $K$ get $dQ = dq\,\varphi'(Q)$ and $dK = dk\,\varphi'(K)$. That is all, and it has the
# same shape as the way there: two states, one pass over the tokens, nothing of length $L$ but the
# inputs and outputs. In code, each line under its number:


# %%
def forward_scan(Q: Array, K: Array, V: Array) -> tuple[Array, Array]:
    """One head: Q and K (L, E), V (L, M); the output (L, M) and d (L,)."""
    q, k, S, Z = phi(Q), phi(K), np.zeros((Q.shape[1], V.shape[1])), np.zeros(Q.shape[1])
    out, d = np.empty_like(V), np.empty(len(Q))
    for i in range(len(Q)):
        S = S + np.outer(k[i], V[i])  # (1)
        Z = Z + k[i]  # (2)
        d[i] = q[i] @ Z  # (3)
        out[i] = S.T @ q[i] / d[i]  # (3), (4)
    return out, d


def backward_scans(
    g: Array, Q: Array, K: Array, V: Array, *, o: Array, d: Array, forget_U: bool = False
) -> tuple[Array, Array, Array]:
    """The gradients of Q, K and V; `forget_U` plants a famous mistake."""
    q, k = phi(Q), phi(K)
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(V)
    gn = g / d[:, None]  # (5)
    gd = -(g * o).sum(axis=1) / d  # (5)

    S, Z = np.zeros((q.shape[1], V.shape[1])), np.zeros(q.shape[1])
    for i in range(len(q)):  # forward scan
        S, Z = S + np.outer(k[i], V[i]), Z + k[i]  # (1), (2)
        dq[i] = S @ gn[i] + gd[i] * Z  # (6)

    R, U = np.zeros_like(S), np.zeros_like(Z)
    for i in reversed(range(len(q))):  # reverse scan
        R = R + np.outer(q[i], gn[i])  # (7)
        U = U if forget_U else U + gd[i] * q[i]  # (7)
        dk[i] = R @ V[i] + U  # (8)
        dv[i] = R.T @ k[i]  # (8)
    return dq * phi_slope(Q), dk * phi_slope(K), dv


# %% [markdown]
# ### Is it right?
#
# Ask the forward. Nudge one number by $\pm h$ and see how the loss moves: $(\ell(x + h) - \ell(x -
# h)) / 2h$. For the loss take $\ell = \sum c \cdot o$ with *random* $c$. An even one, `o.sum()`,
# would be blind: a row of attention weights sums to one, and whatever cancels in that sum is never
# checked.
#
# **Predict**: somebody leaves out $U$ (it has happened in a well-known library: the normaliser's
# path to $k$ was missing). Which of the three gradients are wrong then, and by how much?


# %%
def finite_differences(loss: Any, x: Array, h: float = 1e-5) -> Array:
    """The gradient of `loss()` by each number of x, by central differences; float64."""
    slopes = np.empty_like(x)
    for index in np.ndindex(x.shape):
        kept = x[index]
        x[index] = kept + h
        ahead = loss()
        x[index] = kept - h
        slopes[index] = (ahead - loss()) / (2 * h)
        x[index] = kept
    return slopes


small = [random.standard_normal((9, width)) for width in (4, 4, 3)]  # Q, K (9, 4) and V (9, 3)
c = random.standard_normal((9, 3))
measured = [finite_differences(lambda: (c * forward_scan(*small)[0]).sum(), x) for x in small]
o, d = forward_scan(*small)
right_ones = backward_scans(c, *small, o=o, d=d)
wrong_ones = backward_scans(c, *small, o=o, d=d, forget_U=True)
for name, got, truth_ in zip(("dQ", "dK", "dV"), right_ones, measured, strict=True):
    classroom.check(name, got, truth_, 1e-7)
classroom.table(
    ("", "error with U", "error without U"),
    [
        (name, classroom.error(a, t), classroom.error(b, t))
        for name, a, b, t in zip(("dQ", "dK", "dV"), right_ones, wrong_ones, measured, strict=True)
    ],
)

# %% [markdown]
# One gradient of three is wrong, the shapes fit, and training would still make progress: only a
# check like this finds it. `gradcheck` does the same for any function, also along random
# directions. The kernel's own backward, in float64:

# %%
inputs = [random.standard_normal((1, 2, 9, width)) for width in (4, 4, 3)]
print("gradcheck:", gradcheck(lambda q, k, v: linear_attention(q, k, v, causal=True), inputs))

# %% [markdown]
# ## 7. The kernel
#
# How would you spread this over the threads of a GPU? Tokens depend on each other: $S_i$ needs
# $S_{i-1}$. But the *columns* of $S$ don't! Column $m$ needs $k_i$ and one number of $v_i$:
#
# $$S_i[:, m] = S_{i-1}[:, m] + k_i\, v_{i,m} \qquad n_{i,m} = S_i[:, m] \cdot q_i$$
#
# So a thread may own a column, keep it in registers from the first token to the last, and never
# talk about it to anybody. Registers are the fastest memory that there is, and there are few: a
# tall column is shared out among `parts` threads, whose sums are added up in the end. A *block* of
# threads works on one head; heads know nothing of each other.
#
# This is no drawing of an idea. We launch the kernel, note the launch, and draw what was noted:

# %%
ragged = random.standard_normal((3, 2, 3, 70, E), np.float32)
with classroom.watch() as seen:
    recurrent.forward(*ragged)
(launch,) = seen
sizes = launch.constants
print(f"{launch.kernel}: blocks {launch.blocks}, threads {launch.threads}")
print({name: sizes[name] for name in ("columns", "parts", "rows", "tile", "head_dim", "real")})
classroom.show(tiling(launch), "tiling")

# %% [markdown]
# The block takes `tile` tokens at a time into *shared* memory, which all its threads see: each
# number of $q$ and $k$ is fetched from global memory once, not once by every column. In the loads,
# neighbouring threads take neighbouring numbers (`threadIdx.x` runs along a row), so that a GPU
# fetches them in one transaction. `cuda.syncthreads()` is the barrier between "everybody has
# loaded" and "everybody reads". The last tile is ragged; missing rows are zeros, and adding zeros
# changes no state.
#
# Here is the source, as it stands in `kernels/recurrent/fast.py`. Look for the numbers of the equations.

# %%
print(classroom.source(launch.kernel))

# %% [markdown]
# **Read it with these questions.** Who computes $Z$? (Not every thread: a few own a row of it.) Why
# is $d$ added up by other threads than those that made the products `qz`? Why does no `syncthreads`
# stand inside an `if`? What does a thread with $m \ge M$ do? (It keeps everybody company at the
# barriers.)
#
# You have just run it without a GPU. On NumPy arrays the same source is compiled to a loop: the
# code between two barriers runs for all threads, `for thread_x in ...`, before anybody goes on.
# What a thread keeps across a barrier becomes an array with a slot for each. Here are equations (1)
# and (3) in the code that was emitted for your processor:

# %%
print(classroom.excerpt(launch.kernel.cpu_source(), r"s = S\[", before=12, after=6))

# %% [markdown]
# The innermost loop runs over threads, and neighbouring threads touch neighbouring numbers: what is
# a coalesced access on a GPU is a vector instruction here. Print the whole of `cpu_source()` when
# you are curious.
#
# ## 8. Awkward sizes
#
# A kernel that was tried at 64 only is not tried. Lengths around the tile, head dims that fill no
# block, $M \ne E$, more keys than queries, padding. The reference is the quadratic definition in
# float64; the yardstick is the same definition in float32: what anybody's first version would get
# wrong.


# %%
def in_a_row(arrays: Iterable[Array]) -> Array:
    """All numbers of some arrays, (count,)."""
    return np.concatenate([array.ravel() for array in arrays])  # any shapes -> (count,)


def errors(
    queries: int, keys: int, E: int, M: int, **options: Any
) -> tuple[float, float, float, float]:
    """The errors of the kernel and of the naive float32 computation, forward, then backward."""
    shapes = (2, 2, queries, E), (2, 2, keys, E), (2, 2, keys, M)
    inputs: list[Any] = [random.standard_normal(shape, np.float32) for shape in shapes]
    c = random.standard_normal((2, 2, queries, M), np.float32)
    tensors = [Tensor(x, requires_grad=True) for x in inputs]
    output = linear_attention(*tensors, causal=True, **options)
    output.backward(c)
    got = output.numpy(), in_a_row(np.asarray(x.grad) for x in tensors)

    def naive(dtype: Any) -> tuple[Array, Array]:
        how = {"visible": Visible(causal=True, **options), "dtype": dtype}
        out = reference.linear_attention(*inputs, **how)
        return out, in_a_row(reference.linear_attention_backward(c, *inputs, **how)[:3])

    truth, plain = naive(np.float64), naive(np.float32)
    forward, backward = (
        (classroom.error(a, t), classroom.error(b, t))
        for a, b, t in zip(got, plain, truth, strict=True)
    )
    return *forward, *backward


tile = sizes["tile"]
cases: list[tuple[int, int, int, int, dict[str, Any]]] = [
    *((length, length, 64, 64, {}) for length in (1, tile - 1, tile, tile + 1, 2 * tile + 3)),
    (tile + 1, tile + 1, 40, 57, {}),
    (7, 45, 64, 64, {"query_offset": 38}),
    (45, 45, 33, 64, {"query_lengths": [45, 31], "key_lengths": [45, 31]}),
]
rows = []
for *case, options in cases:
    result = errors(*case, **options)
    rows.append((*case, ", ".join(options), *(f"{e:.1e}" for e in result)))
    assert result[0] <= 2 * result[1] + 2e-6, "the forward is worse than anybody's"
    assert result[2] <= 2 * result[3] + 2e-6, "the backward is worse than anybody's"
classroom.table(
    ("Lq", "Lk", "E", "M", "options", "forward", "(naive)", "backward", "(naive)"), rows
)

# %% [markdown]
# ## 9. Bytes and operations: predict, then measure
#
# **Predict**, for one head, before you read on: how many bytes must the forward move between global
# memory and the chip at least, and how many operations must it do?
#
# * It reads $q$, $k$ ($E$ each) and $v$ ($M$) of each token once, writes $o$ ($M$) and $d$, and
#   reads and writes a state: $4\,(L(2E + 2M + 1) + 2(EM + E))$ bytes.
# * Each token costs a multiplication and an addition for each number of $S$ in (1), and again in
#   (3): $4\,L\,E\,M$ operations. The rest, (2) and (4), is small beside it.
#
# First we *count*. The kernel's own source runs once more, in plain Python, thread by thread, on
# numbers that count their additions and multiplications and arrays that count their bytes
# (`counting.py`). Nothing is estimated there.


# %%
def predicted_bytes(L: int) -> int:
    """Of one head's forward, between global memory and the chip."""
    return 4 * (L * (2 * E + 2 * M + 1) + 2 * (E * M + E))


def predicted_flops(L: int) -> int:
    """Of one head's forward, equations (1) and (3)."""
    return 4 * L * E * M


LITTLE = tile  # tokens: this is Python
with classroom.watch() as seen:
    recurrent.forward(*random.standard_normal((3, 1, 1, LITTLE, E), np.float32))
counts = count(seen[0])
moved = counts["global load"] + counts["global store"]
classroom.table(
    (f"L = {LITTLE}, E = M = {E}", "predicted", "counted", "counted / predicted"),
    [
        (what, predicted, counted, counted / predicted)
        for what, predicted, counted in (
            ("global bytes", predicted_bytes(LITTLE), moved),
            ("flops", predicted_flops(LITTLE), counts["flop"]),
        )
    ],
)
print({name: number for name, number in sorted(counts.items()) if not name.startswith("global")})
assert 1 <= moved / predicted_bytes(LITTLE) < 1.1
assert 1 <= counts["flop"] / predicted_flops(LITTLE) < 1.15

# %% [markdown]
# Now compare the global bytes with those of shared memory and registers: that is what tiles are
# for. The numbers that each operation needs come from close by; global memory is asked once.
#
# And the time? A machine has two speeds: bytes a second and operations a second. No program beats
# either, so $t \ge \max(\text{bytes} / \text{bandwidth},\ \text{flops} / \text{peak})$. We measure
# both speeds, by a copy and by the best thing that a processor does, a product of matrices.
#
# **Predict**: which of the two limits the kernel, and what share of that speed will it reach?

# %%
big = np.ones(2**22 if FAST else 2**24, np.float32)
there = np.empty_like(big)
square = np.ones((1024, 1024), np.float32)
bandwidth = 2 * big.nbytes / classroom.seconds(np.copyto, there, big)
peak = 2 * 1024**3 / classroom.seconds(np.matmul, square, square)

LONG = 512 if FAST else 2048
Q, K, V = (random.standard_normal((N, H, LONG, E), np.float32) for _ in range(3))
heads = N * H
limits = heads * predicted_bytes(LONG) / bandwidth, heads * predicted_flops(LONG) / peak
took = classroom.seconds(recurrent.forward, Q, K, V)
print(f"This machine copies {classroom.quantity(bandwidth, 'B/s')} "
      f"and multiplies matrices at {classroom.quantity(peak, 'flop/s')}.")  # fmt: skip
classroom.table(
    (f"N = {N}, H = {H}, L = {LONG}", "time"),
    [
        ("limit by bytes", classroom.quantity(limits[0], "s")),
        ("limit by operations", classroom.quantity(limits[1], "s")),
        ("measured", classroom.quantity(took, "s")),
    ],
)
share, nearer = max(limits) / took, "bytes" if limits[0] > limits[1] else "operations"
flops = heads * predicted_flops(LONG)
print(f"The kernel does {classroom.quantity(flops / took, 'flop/s')}, "
      f"{flops / heads / predicted_bytes(LONG):.3g} for each byte: "
      f"{share:.0%} of the nearer limit, the one by {nearer}.")  # fmt: skip

# %% [markdown]
# (Over 100%? Then something else used the processor while we measured its peak. Run the cell again.)
#
# Why not all of it? In a product of matrices each number that was loaded into a register is used
# many times. Here each number of $S$ is loaded, gets one product added, is multiplied once and is
# stored: four operations, then on to the next. Taking the tokens in chunks turns most of that work
# back into products of matrices; that form is a lesson of its own.
#
# ## 10. Time and memory against length
#
# The replication timed its models up to 64 tokens (its table 1), where its linear attention was
# slower at every length, and worked out where the lines would cross from a parabola for softmax and
# a straight line for linear attention. Let us do as they did, and see how far that can be trusted:

# %%
S1_LENGTHS = np.array([8, 16, 32, 64])
S1_SOFTMAX = np.array([221, 236, 287, 416])  # seconds for 3,000 steps, S1 table 1
S1_LINEAR = np.array([1738, 3004, 5373, 10071])


def crossing(keep: Array) -> float:
    """Where a + b L² (softmax) and c + d L (linear attention) meet, fitted to some of the rows."""
    b, a = np.polyfit(S1_LENGTHS[keep] ** 2, S1_SOFTMAX[keep], 1)
    d, c = np.polyfit(S1_LENGTHS[keep], S1_LINEAR[keep], 1)
    return float(max(np.roots([b, -d, a - c])))


all_rows = np.arange(4)
without_one = [crossing(all_rows != row) for row in all_rows]
print(f"All four rows: they cross at L = {crossing(all_rows):.0f}. Leave one out, and it is "
      f"{min(without_one):.0f} to {max(without_one):.0f}.")  # fmt: skip
print(f"That is {crossing(all_rows) / S1_LENGTHS.max():.0f} times the longest text that was timed.")

# %% [markdown]
# We need not extrapolate so far: both kernels are here, so go there. (The paper itself has its
# curves cross near 512, on its GPU.)
#
# **Predict** the slopes in a plot of log time against log length: time that grows like $L^p$ is a
# straight line with slope $p$. And predict the memory: the output, $d$ and the states for the
# kernel; the scores, twice, for the masked form; all states, twice, for the einsum.

# %%
SHORTEST, LONGEST_SOFTMAX, LONGEST = (32, 256, 1024) if FAST else (32, 4096, 16384)


def doublings(first: int, last: int) -> list[int]:
    """The lengths from first to last, each twice the one before."""
    return [first * 2**step for step in range((last // first).bit_length())]


def timed(attention: Any, lengths: list[int]) -> list[float]:
    """Seconds of a causal forward at each length."""
    result = []
    for length in lengths:
        inputs = [Tensor(random.standard_normal((N, H, length, E), np.float32)) for _ in range(3)]
        with no_grad():
            result.append(classroom.seconds(partial(attention, causal=True), *inputs))
    return result


def memory(form: Any, lengths: list[int]) -> list[int]:
    """Bytes at the peak of a forward at each length."""
    arrays = (random.random((N, H, length, E), np.float32) for length in lengths)
    return [classroom.peak_bytes(form, array, array, array) for array in arrays]


speed = {
    "softmax": (doublings(SHORTEST, LONGEST_SOFTMAX), softmax_attention, ORANGE, "s"),
    "linear": (doublings(SHORTEST, LONGEST), linear_attention, BLUE, "o"),
}
room: dict[str, tuple[Any, list[int], str, str, Any]] = {
    "masked scores": (masked_scores, doublings(SHORTEST, LONGEST_SOFTMAX // 2), ORANGE, "s",
                      lambda L: 4 * heads * 2 * L * L),
    "einsum, all states": (einsum_form, doublings(SHORTEST, LONGEST_SOFTMAX // 8), PINK, "^",
                           lambda L: 4 * heads * 2 * L * E * M),
    "kernel": (kernel, doublings(SHORTEST, LONGEST), BLUE, "o",
               lambda L: 4 * heads * (L * (M + 1) + 2 * (E * M + E))),
}  # fmt: skip

figure, (left, right) = classroom.panels(2, 11, 4.6)
clocks = {}
for name, (lengths, attention, color, marker) in speed.items():
    clocks[name] = timed(attention, lengths)
    p = classroom.slope(lengths[-3:], clocks[name][-3:])
    left.plot(lengths, clocks[name], color=color, marker=marker, markersize=5)
    at, offset, side = (-1, (-8, 6), "right") if name == "softmax" else (-4, (10, -10), "left")
    left.annotate(f"{name}: slope {p:.2f}", (lengths[at], clocks[name][at]), offset,
                  textcoords="offset points", ha=side, color=color)  # fmt: skip
    print(f"{name}: time grows like L^{p:.2f} at the long end")
for name, (form, lengths, color, marker, predict) in room.items():
    used = memory(form, lengths)
    right.plot(lengths, [predict(length) for length in lengths], color=color, linewidth=1.2)
    right.plot(lengths, used, color=color, marker=marker, markersize=6, linestyle="none")
    right.annotate(name, (lengths[-1], used[-1]), (-8, 6), textcoords="offset points",
                   ha="right", color=color)  # fmt: skip
    print(f"{name}: {classroom.quantity(used[-1], 'B')} at L = {lengths[-1]}, "
          f"{used[-1] / predict(lengths[-1]):.3g} times the prediction")  # fmt: skip
left.set(title=f"Time of a causal forward (N={N}, H={H}, E=M={E})", ylabel="seconds")
right.set(title="Memory: predicted (lines), measured (marks)", ylabel="bytes at the peak")
for axis in (left, right):
    classroom.lengths_axis(axis, doublings(SHORTEST, LONGEST))
classroom.show(figure, "length")

both = speed["softmax"][0]
faster = [t < s for t, s in zip(clocks["linear"], clocks["softmax"], strict=False)]
if all(faster):
    print(f"Linear attention is faster at every length from {both[0]} on.")
else:
    last = max(length for length, wins in zip(both, faster, strict=True) if not wins)
    print(f"The curves cross above L = {last}.")
ratio = clocks["softmax"][-1] / clocks["linear"][len(both) - 1]
print(f"At L = {both[-1]} it is {ratio:.3g} times as fast.")

# %% [markdown]
# (Your slopes are no whole numbers? Short lengths pay for the launch as well; long ones outgrow a
# cache.)
#
# Compare the crossing with the replication's extrapolation. The mathematics is the same; what
# differs is the kernel. "Linear" says how a cost grows, and nothing about where it starts.
#
# ## 11. Your turn
#
# Three exercises, from easy to hard. Each has a blank and a check; the checks compare with random
# inputs, so an answer that passes is right.
#
# ### Exercise 1: a prompt, then token by token
#
# A chat model reads a prompt at once and then writes token by token. Complete `continue_from`: run
# the first `split` tokens in one call of `linear_attention`, keep the state, and feed the rest one
# by one to `linear_attention_step`. Return all outputs, (N, H, L, M). It must not matter where we
# split.
#
# *Hints.* `return_state=True` makes `linear_attention` return `(output, state)`.
# `linear_attention_step` takes tokens without a length, (N, H, E), and returns `(output, state)`
# too. `F.stack(list, dim=2)` puts them in a row; `F.cat` joins two tensors.


# %%
def continue_from(query: Tensor, key: Tensor, value: Tensor, *, split: int) -> Any:
    """Causal linear attention of (N, H, L, E): `split` tokens at once, the others one by one."""
    # BEGIN SOLUTION
    prompt = (x[:, :, :split] for x in (query, key, value))
    output, state = linear_attention(*prompt, causal=True, return_state=True)
    tokens = []
    for i in range(split, query.shape[2]):
        token, state = linear_attention_step(query[:, :, i], key[:, :, i], value[:, :, i], state)
        tokens.append(token)
    return F.cat([output, F.stack(tokens, dim=2)], dim=2)
    # END SOLUTION


# %%
def check_exercise_1() -> None:
    """Any split gives what one call gives."""
    inputs = [Tensor(random.standard_normal((1, 2, 12, E), np.float32)) for _ in range(3)]
    whole = linear_attention(*inputs, causal=True).numpy()
    for split in (1, 5, 11):
        got = continue_from(*inputs, split=split)
        classroom.check(
            f"Exercise 1, split at {split}", None if got is None else np.asarray(got), whole, 1e-5
        )


check_exercise_1()

# %% [markdown]
# ### Exercise 2: a state that forgets
#
# Let the state fade: with $0 < \gamma < 1$ and, to keep it short, no normaliser,
#
# $$S_i = \gamma\, S_{i-1} + k_i v_i^\top \qquad o_i = S_i^\top q_i$$
#
# (Sun et al. 2023 call it retention.) What becomes of (6), (7) and (8)? Derive them, then complete
# `fading_backward` for one head: a forward scan for $dq$, a reverse scan for $dk$ and $dv$.
#
# *Hints.* There is no $d$, so $gn_i = g_i$ and there is no $U$. $S_i$ is still used twice: by
# $o_i$, and by $S_{i+1}$. How much of $R_{i+1}$ does it get now? Write down $\partial S_{i+1} /
# \partial S_i$ first.


# %%
def fading(q: Array, k: Array, v: Array, *, gamma: float) -> Array:
    """One head with a fading state: q and k (L, E), v (L, M)."""
    S, out = np.zeros((q.shape[1], v.shape[1])), np.empty_like(v)
    for i in range(len(q)):
        S = gamma * S + np.outer(k[i], v[i])
        out[i] = S.T @ q[i]
    return out


def fading_backward(g: Array, q: Array, k: Array, v: Array, *, gamma: float) -> Any:
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


# %%
def check_exercise_2() -> None:
    """The gradients are what finite differences say, with a random cotangent."""
    arrays = [random.standard_normal((8, width)) for width in (4, 4, 3)]
    g = random.standard_normal((8, 3))
    got = fading_backward(g, *arrays, gamma=0.7) or (None, None, None)
    for name, gradient, x in zip(("dq", "dk", "dv"), got, arrays, strict=True):
        slopes = finite_differences(lambda: (g * fading(*arrays, gamma=0.7)).sum(), x)
        classroom.check(f"Exercise 2, {name}", gradient, slopes, 1e-7)


check_exercise_2()

# %% [markdown]
# ### Exercise 3: your own kernel
#
# Write the fading forward as a GPU kernel: the same division of labour as in section 7, but plain.
# One thread owns one column of $S$, all its `WIDTH` rows, in a `cuda.local.array`; no shared
# memory, so no barriers. A block has `COLUMNS` threads; `blockIdx.y` is the head. Mind the last
# block: some of its threads have no column.
#
# *Hints.* Your column is `m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x`. Set the local array to
# zero. Loop over tokens outside and over rows inside, and add up $n$ in a scalar. Write
# `float32(0)`, not `0.0`: a bare Python float is float64 to a GPU, and slow. Don't `return` early:
# guard what you read from `value` and write to `out` by `if m < value.shape[2]`.

# %%
WIDTH, COLUMNS = 16, 32


@cuda.jit
def fading_kernel(query, key, value, gamma, out):  # type: ignore[no-untyped-def]
    """Takes query and key (H, L, WIDTH), value (H, L, M); out (H, L, M) is written to."""
    # BEGIN SOLUTION
    S = cuda.local.array(WIDTH, float32)
    m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x
    h = cuda.blockIdx.y
    for e in range(WIDTH):
        S[e] = float32(0)
    for i in range(query.shape[1]):
        if m < value.shape[2]:
            n = float32(0)
            for e in range(WIDTH):
                S[e] = gamma * S[e] + key[h, i, e] * value[h, i, m]
                n += S[e] * query[h, i, e]
            out[h, i, m] = n
    # END SOLUTION


# %%
def check_exercise_3() -> None:
    """The kernel agrees with the loop, at sizes that fill no block."""
    for heads, length, columns in ((1, 1, 1), (3, 37, 32), (2, 20, 50)):
        shapes = (heads, length, WIDTH), (heads, length, WIDTH), (heads, length, columns)
        arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
        out = np.zeros(shapes[2], np.float32)
        blocks = (columns + COLUMNS - 1) // COLUMNS, heads
        fading_kernel[blocks, COLUMNS](*arrays, np.float32(0.9), out)
        truth = [
            fading(*(a[h].astype(np.float64) for a in arrays), gamma=0.9) for h in range(heads)
        ]
        classroom.check(f"Exercise 3, M = {columns}", out, np.array(truth), 1e-5)


check_exercise_3()

# %% [markdown]
# ## What you take home
#
# * A similarity that is a product of features lets the sum be moved (C); then attention is a matrix
#   $S$ and a vector $Z$, and causal attention a recurrence over them, (1) to (4).
# * Its backward is the same kind of recurrence, once forward and once in reverse, (5) to (9), with
#   nothing of size $L \times E \times M$ kept.
# * A thread can own a column of $S$, in registers; tokens come by in tiles.
# * It costs rank: $E$ features can tell $E$ keys apart, and learn to do so more slowly.
# * Predict, then measure. And check a gradient with a random cotangent before you believe it.

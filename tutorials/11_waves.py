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

# %% [markdown] question="Can a weight be a smooth function of distance, without L^2?" minutes=80 after=[10]
# # Where, as waves
#
# Lesson 10 gave each distance a weight of its own. So a place had to be a whole number, what -3
# learned said nothing about -4, and from $k$ on all was the same. But a note of a melody begins at
# a *time*, such as 1.25 seconds, and a point of a picture has a place of *two* numbers.
#
# Let a weight be a smooth function of distance, made of [waves](glossary.md#wave). Then each pair
# of [tokens](glossary.md#token) has cosines of its own, and there are $L^2$ pairs. Yet no cosine of
# a pair need be computed.
#
# *Sources.* The encoding is S2's, in the [list of sources](sources.md). Qin et al. 2022,
# *cosFormer: Rethinking Softmax in Attention*; Su et al. 2021, *RoFormer: Enhanced Transformer
# with Rotary Position Embedding*.

# %% tags=["hide-input"]
import math
from functools import partial

import numpy as np
from numba import float32

from minitransformer import nn
from minitransformer.attention import (
    fourier_linear_attention,
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
    show,
    six_tokens,
    table,
    watch,
)
from minitransformer.course.figures import lesson_11 as figures
from minitransformer.course.recall import earlier, recall
from minitransformer.functions import tanh
from minitransformer_kernels import fourier
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear.reference import phi

# %% [markdown]
# ## 1. A wave for each feature
#
# Query $i$ stands at $p_i$ and key $j$ at $r_j$: rows of $P$ numbers, 1 for a time, 2 for a place
# in a picture. Each of the $E$ features of a [head](glossary.md#head) gets a wave, which is
# learned:
#
# $$dP_{ije} = c_e \cos(b_e + a_e \cdot (p_i - r_j)) \tag{1}$$
#
# ($dP$ is one symbol, the source's, and no [gradient](glossary.md#gradient).) The *frequency* $a_e$
# has $P$ numbers, too: so many radians for each second, or for each pixel to the right and down.
# The *phase* $b_e$ moves the wave, and the *amplitude* $c_e$ is its height. A feature weighs as its
# wave says. With $q = \varphi(\text{query})$ and $k = \varphi(\text{key})$ of lesson 6, and the
# [mask](glossary.md#mask) $w_{ij}$:
#
# $$s_{ij} = w_{ij} \sum_e q_{ie}\, k_{je}\, dP_{ije} \tag{2}$$
#
# (Equations have the numbers of the [room](glossary.md#room) `kernels/fourier`. Some letters have
# moved since lesson 10: $k$ is a key again, $r$ a position, and $e$ counts features.) As a loop,
# and as arrays, for six tokens at six times, which all see each other ($w = 1$):

# %%
random = np.random.default_rng(11)
query, key, v = six_tokens()  # (6, 4), (6, 4), (6, 3)
q, k = phi(query, "elu"), phi(key, "elu")
p = np.array([[0, 0.5, 1.25, 1.5, 3, 4.75]]).T  # (6, 1): L and P
a = random.uniform(0, 2, (4, 1))  # (4, 1): E and P
b, c = random.uniform(-3, 3, 4), random.uniform(0.5, 1, 4)


def pair_loop(q, k, p, r):
    """All weights s, (L, L)."""
    s = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            for e in range(len(a)):
                angle = b[e] + a[e] @ (p[i] - r[j])
                s[i, j] += q[i, e] * k[j, e] * c[e] * np.cos(angle)  # (1), (2)
    return s


def in_arrays(q, k, p, r):
    """The same."""
    angle = b + (p[:, None] - r) @ a.T  # (L, L, E)
    return np.einsum("ie,je,ije->ij", q, k, c * np.cos(angle))  # (1), (2)


s = pair_loop(q, k, p, p)
print(f"off by {error(in_arrays(q, k, p, p), s):.0e}")
moved = in_arrays(q, k, p + 100, p + 100)
print(f"100 seconds later: weights move by {error(moved, s):.0e}")

# %% [markdown]
# ## 2. Two hands
#
# $L^2 E$ cosines: no sum over $j$ can leave a cosine that has $i$ and $j$ in it. Unless the cosine
# comes apart. The angle already does, into one of the query and one of the key:
#
# $$t_{ie} = b_e + a_e \cdot p_i \qquad u_{je} = a_e \cdot r_j \tag{3}$$
#
# Think of two hands of a clock, of length 1, at the angles $t$ and $u$:

# %%
show(
    figures.hands(2.2, 0.9, 3.0), "hands",
    alt="Two hands of a clock, and both of them turned by the same angle",
)  # fmt: skip

# %% [markdown]
# Their product as vectors is the cosine of the angle between them. It is the same for both clocks:
# turned together, hands keep their angle. In coordinates,
#
# $$\cos(t - u) = \cos t \cos u + \sin t \sin u \tag{4}$$
#
# So give every feature a hand. The query's has the length $c_e q_{ie}$, the key's $k_{je}$:
#
# $$Q_i = [c\,q_i \cos t_i,\; c\,q_i \sin t_i] \qquad K_j = [k_j \cos u_j,\; k_j \sin u_j] \tag{5}$$
#
# (Rows of $E$ numbers, multiplied number by number, side by side: $2E$ in all.) Then
#
# $$s_{ij} = w_{ij}\, Q_i \cdot K_j \tag{6}$$
#
# which is lesson 6's linear attention, of other features. Sums, [states](glossary.md#state) and
# [chunks](glossary.md#chunk) work as they did. A [decoder](glossary.md#decoder) keeps $S$ and $Z$
# of $2E$ rows, whatever the times were.

# %% [markdown] exercise="fourier-features"
# ### Exercise 1 (3 points, 10 min): give each feature a hand
#
# Write (3) and (5) for one side, without a loop: `q` (L, E), positions `p` (L, P), frequencies `a`
# (E, P), phases `b` (E,) and amplitudes `c` (E,) give Q, (L, 2E): first all cosines, then all
# sines. (K is the same with $b = 0$ and $c = 1$.)
#
# <details><summary>Hint 1 of 3</summary>
#
# All angles at once are an array (L, E). $a_e \cdot p_i$ for all i and e is one matrix product.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `t = b + p @ a.T`: the row b is added to each row.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `np.concatenate([..., ...], axis=1)` puts `c * q * np.cos(t)` and its sine side by side.
#
# </details>


# %% exercise="fourier-features"
def fourier_features(q, p, a, b, c):
    """Q of (5), (L, 2E)."""
    # BEGIN SOLUTION
    t = b + p @ a.T  # (3): (L, E)
    Q = [c * q * np.cos(t), c * q * np.sin(t)]  # (5)
    return np.concatenate(Q, axis=1)
    # END SOLUTION


# %% check="fourier-features"
check("fourier-features", fourier_features)


# %%
def hands(a, b):
    """Q and K of the six tokens."""
    Q = fourier_features(q, p, a, b, c)
    return Q, fourier_features(k, p, a, 0 * b, 1 + 0 * c)


def answers(Q, K):
    """Lesson 6: the sum over keys first. Outputs (L, M) and d (L, 1)."""
    d = (Q @ K.sum(axis=0))[:, None]
    return Q @ (K.T @ v) / d, d


Q, K = hands(a, b)
truth = s @ v / s.sum(axis=1, keepdims=True)
print(f"s: off by {error(Q @ K.T, s):.0e}")
print(f"outputs: off by {error(answers(Q, K)[0], truth):.0e}")

# %% [markdown]
# ## 3. Which sign?
#
# A cosine may be negative, and with it a weight. Then $d_i = \sum_j s_{ij}$ may be anything, even
# zero, and we divide by it. While weights are positive, an output is a mean of values, never larger
# than the largest. **Predict**: with 1,000 random draws of waves, how many times the largest value
# is the largest output?

# %%
guess("largest output / largest value", 2)

# %%
draws, largest, below = np.random.default_rng(3), 0.0, 0
for _ in range(1000):
    a_ = draws.uniform(-1, 1, (4, 1))
    out, d = answers(*hands(a_, draws.uniform(-np.pi, np.pi, 4)))
    largest, below = max(largest, abs(out).max()), below + (d < 0).sum()
print(f"{below / 6000:.0%} of all denominators are below zero")
reveal("largest output / largest value", largest / abs(v).max())

# %% [markdown]
# Half of them are, as $b + \pi$ in place of $b$ turns every sign around. Some are nearly zero; how
# near is chance, and the ratio has no limit. The cure: lift the wave. With $|c_e| \le 1$ and
# features above zero, this weight is never negative:
#
# $$1 + dP_{ije} \;\text{ in the place of } dP_{ije} \tag{7}$$
#
# As $1 = 1 \cdot 1$, a third part does it, $q_i$ in $Q_i$ and $k_j$ in $K_j$. Then rows have
# $D = 3E$ numbers instead of $2E$. The output is, with lesson 6's [guard](glossary.md#guard),
#
# $$o_i = \frac{n_i}{\mathrm{guard}(d_i)} \qquad n_i = \sum_j s_{ij} v_j \tag{8}$$
#
# with the weights' own sum (*rotated*), or with that of linear attention without positions
# (*plain*):
#
# $$d_i = \sum_j s_{ij} \qquad \text{or} \qquad d_i = \sum_j w_{ij}\, q_i \cdot k_j \tag{9}$$
#
# The plain one is positive even if weights are not. But then a row of weights no longer adds up
# to 1. (It is from Su et al., who turn *pairs* of features, at fixed frequencies.)
#
# What does (7) cost? Hold $q$ and $k$ fixed: the weight is a sum of waves of the distance. Let that
# go from 0 to 1, and each wave make whole turns there, as in a
# [Fourier series](glossary.md#fourier-series): $a = 0, 2\pi, 4\pi, \dots$ Then a lifted wave has a
# mean of 1 and a top of at most 2 (the first is constant). **So no distance weighs more than twice
# the mean.** Without (7) there is no such limit. Here are the best fits to a bump, by least
# squares. Its middle is the top of each wave, or the bottom:

# %%
at = (np.arange(256) + 0.5) / 256  # distances
bump, drawn = np.exp(-(((at - 0.5) / 0.05) ** 2)), {"cos": {}, "1 + cos": {}}
for count in (4, 8, 16):
    waves = np.cos(2 * np.pi * (at[:, None] - 0.5) * np.arange(count))
    drawn["cos"][count] = waves @ np.linalg.lstsq(waves, bump)[0]
    waves = np.hstack([1 + waves, 1 - waves[:, 1:]])
    shares = np.ones(waves.shape[1])
    for _ in range(500):  # the error falls, and no share falls below 0
        shares *= (bump @ waves) / (waves @ shares @ waves)
    drawn["1 + cos"][count] = waves @ shares
show(
    figures.fits(at, bump, drawn, 2 * (waves @ shares).mean()), "fits",
    alt="A bump, and sums of waves: plain ones meet it; lifted ones stay low",
)  # fmt: skip

# %% [markdown]
# With (7), 4 waves fit nearly like 16. (Learned waves need not make whole turns, and slow ones can
# do more: at small distances $\delta$, $1 - \cos\delta$ is about $\delta^2 / 2$, at the end of a
# short line three times its mean. `results/expressivity` has learned fits.)
#
# There is another way to positive weights: let no angle of a pair exceed a quarter of a turn. Then
# its cosine is positive. cosFormer does that, with *one* wave for all features, which is not
# learned: for tokens at $0, 1, \dots, L - 1$ it has $a = \pi / 2T$ with $T \ge L$, $b = 0$,
# $c = 1$, weights (2), and $\varphi(x) = \max(x, 0)$, "relu".

# %% [markdown] exercise="cosformer"
# ### Exercise 2 (2 points, 8 min): a quarter of a turn
#
# Write cosFormer for one head, both directions, with $T = L$: `query`, `key` (L, E) and `value`
# (L, M) give the output (8), (L, M), with $d$ the sum of the weights. No array may have all pairs.
# (In the check each query has a $d$ above zero: you need no guard.)
#
# <details><summary>Hint 1 of 3</summary>
#
# `fourier_features` does the work, for queries and for keys. Here $P = 1$: positions are a column,
# `np.arange(L)[:, None]`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# It wants `a` (E, 1), all of them `np.pi / (2 * L)`, and `phi(query, "relu")`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Then lesson 6: the numerators are `Q @ (K.T @ value)`, the denominators `Q @ K.sum(axis=0)`.
#
# </details>


# %% exercise="cosformer"
def cosformer(query, key, value):
    """The output, (L, M)."""
    # BEGIN SOLUTION
    L, E = query.shape
    p, a = np.arange(L)[:, None], np.full((E, 1), np.pi / (2 * L))
    wave = p, a, np.zeros(E), np.ones(E)
    Q = fourier_features(phi(query, "relu"), *wave)
    K = fourier_features(phi(key, "relu"), *wave)
    return Q @ (K.T @ value) / (Q @ K.sum(axis=0))[:, None]  # (8), (9)
    # END SOLUTION


# %% check="cosformer"
check("cosformer", cosformer)

# %% [markdown]
# ## 4. Backward, by index
#
# Linear attention's [backward](glossary.md#backward) hands us $dQ_i$ and $dK_j$: by lesson 6, or by
# lesson 7 if it is [causal](glossary.md#causal). Call the parts $dQ_i = [x_i, y_i, z_i]$, with
# $z_i$ under (7) only. Take $(x, y)$ as a pull at the tip of a hand. Along the hand it asks for
# more length, across it for a turn:
#
# $$h_i = x_i \cos t_i + y_i \sin t_i \qquad dt_i = c\,q_i\,(y_i \cos t_i - x_i \sin t_i) \tag{10}$$
#
# The length is $c\,q_i$: each factor gets $h$ times the other. And $q_i$ is the third part, too
# (from $q$ to the query it goes on by the slope of $\varphi$, as in lesson 6):
#
# $$dq_i = c\,h_i + z_i \qquad dc = \sum_i q_i\, h_i \tag{11}$$
#
# The angle is $t_{ie} = b_e + a_e \cdot p_i$. All tokens share $b$ and $a$, and all features share
# $p_i$:
#
# $$db = \sum_i dt_i \qquad dp_i = \sum_e dt_{ie}\, a_e \tag{12}$$
#
# Keys have the same $a$, and neither phase nor amplitude. With $x$ and $y$ of $dK_j$,
# $du_j = k_j\,(y_j \cos u_j - x_j \sin u_j)$, and
#
# $$da_e = \sum_i dt_{ie}\, p_i + \sum_j du_{je}\, r_j \tag{13}$$
#
# If all hands of feature $e$ turn by the same angle, no weight changes. So
# $\sum_i dt_{ie} + \sum_j du_{je} = 0$, and (13) may measure positions from anywhere, if it is the
# same place for queries and keys.

# %% [markdown] exercise="frequency-gradient"
# ### Exercise 3 (4 points, 15 min): what waves learn from
#
# Write $da$, $db$ and $dc$ of (11) to (13): gradients `dQ` (Lq, 3E), `dK` (Lk, 3E), features `q`
# (Lq, E), `k` (Lk, E), angles `t` (Lq, E), `u` (Lk, E), amplitudes `c` (E,), positions `p` (Lq, P),
# `r` (Lk, P). Return `da` (E, P), `db` (E,) and `dc` (E,). In one case positions are seconds since
# 1970: measured from there, the terms of (13) are huge, nearly cancel, and lose digits.
#
# <details><summary>Hint 1 of 3</summary>
#
# `x, y, z = np.split(dQ, 3, axis=1)`, and so for dK. z goes nowhere here.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Keys have no amplitude and no phase, so db and dc are of queries alone.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Measure from the first key: `dt.T @ (p - r[0]) + du.T @ (r - r[0])`.
#
# </details>


# %% exercise="frequency-gradient"
def frequency_gradient(dQ, dK, q, k, t, u, c, p, r):
    """The gradients (da, db, dc)."""
    # BEGIN SOLUTION
    x, y, _ = np.split(dQ, 3, axis=1)
    h = x * np.cos(t) + y * np.sin(t)  # (10)
    dt = c * q * (y * np.cos(t) - x * np.sin(t))  # (10)
    x, y, _ = np.split(dK, 3, axis=1)
    du = k * (y * np.cos(u) - x * np.sin(u))  # (10)
    da = dt.T @ (p - r[0]) + du.T @ (r - r[0])  # (13)
    return da, dt.sum(axis=0), (q * h).sum(axis=0)  # (12), (11)
    # END SOLUTION


# %% check="frequency-gradient"
check("frequency-gradient", frequency_gradient)

# %% [markdown]
# Hold it against the forward, with a random [cotangent](glossary.md#cotangent):


# %%
def lifted():
    """Q and K of (5) and (7)."""
    Q, K = hands(a, b)
    return np.hstack([Q, q]), np.hstack([K, k])


def loss():
    """A number that depends on every output."""
    return (g * answers(*lifted())[0]).sum()


g, (Q, K) = random.standard_normal(v.shape), lifted()
out, d = answers(Q, K)
ds = (g @ v.T - (g * out).sum(axis=1, keepdims=True)) / d  # lesson 6: (L, L)
t, u = b + p @ a.T, p @ a.T  # (3)
gradients = frequency_gradient(ds @ K, ds.T @ Q, q, k, t, u, c, p, p)
for name, x, got in zip(("da", "db", "dc"), (a, b, c), gradients, strict=True):
    print(f"{name}: off by {error(got, finite_differences(loss, x)):.0e}")

# %% [markdown]
# ## 5. Far from zero
#
# By (1) nothing changes if all positions are moved. With angles of float32? These have 24 bits: so
# near one million they are $1/16$ apart. **Predict**: by how much do the weights of our six tokens
# change, moved by $10^6$, relative to the largest?

# %%
guess("change at 10^6", 1e-7)


# %%
TURN = 2 * math.pi
angles = {  # how they are made from positions and phases
    "float32": lambda p, b: np.float32(b) + np.float32(p) @ np.float32(a.T),
    "float64, then float32": lambda p, b: np.float32(b + p @ a.T),
    "less whole turns": lambda p, b: np.float32((b + p @ a.T) % TURN),
}
rows = []
for far in (0, 1e3, 1e6, 1e9):
    row = []
    for angle in angles.values():
        t, u = angle(p + far, b), angle(p + far, 0 * b)  # (3)
        cosines = (c * q * np.cos(t)) @ (k * np.cos(u)).T
        sines = (c * q * np.sin(t)) @ (k * np.sin(u)).T
        row.append(error(cosines + sines, s))  # (6)
    rows.append((f"{far:.0e}", *row))
table(("moved by", *angles), rows)
reveal("change at 10^6", rows[2][1])

# %% [markdown]
# At $10^9$ float32 cannot even tell the six times apart: its numbers are 64 apart there. It is no
# help to round late, as in the middle column: the angle is still large. (Which of the two is nearer
# is chance.) But whole turns of $2\pi$ don't count. So take them away in float64, whose numbers
# near $10^9$ are $10^{-7}$ apart. What is left is small, and float32 will do for its sine and
# cosine.

# %% [markdown] exercise="wave-kernel"
# ### Exercise 4 (4 points, 15 min): a row of hands
#
# Write (3) and (5) as a [kernel](glossary.md#kernel): a [thread](glossary.md#thread)
# [owns](glossary.md#owner) a row of `Q` (L, 2E), the row `cuda.grid(1)`; the last
# [block](glossary.md#block) may have more threads than there are rows. `p` (L, P), `a` (E, P) and
# `b` (E,) are float64; `q` (L, E), `c` (E,) and `Q` are float32. Sum the angle up in float64, take
# whole turns away, and give `float32(angle)` to sine and cosine.
#
# <details><summary>Hint 1 of 3</summary>
#
# For each e: a scalar `angle = b[e]`, to which a loop over the numbers of a place adds
# `a[e, axis] * p[i, axis]`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# The number of whole turns next to it is `math.floor(angle / TURN + 0.5)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `Q[i, e]` is `c[e] * q[i, e]` times `math.cos(float32(angle))`. The sine goes to `Q[i, E + e]`.
#
# </details>


# %% exercise="wave-kernel"
@cuda.jit
def wave_kernel(q, p, a, b, c, Q):
    """A thread owns row i of Q."""
    # BEGIN SOLUTION
    i, E = cuda.grid(1), q.shape[1]
    if i < q.shape[0]:
        for e in range(E):
            angle = b[e]
            for axis in range(a.shape[1]):
                angle += a[e, axis] * p[i, axis]  # (3)
            angle -= TURN * math.floor(angle / TURN + 0.5)
            length = c[e] * q[i, e]
            Q[i, e] = length * math.cos(float32(angle))  # (5)
            Q[i, E + e] = length * math.sin(float32(angle))  # (5)
    # END SOLUTION


# %% check="wave-kernel"
check("wave-kernel", wave_kernel)

# %% [markdown]
# ## 6. The real kernels
#
# Here is a [batch](glossary.md#batch) of two texts, whose tokens stand at the same places:

# %%
qkv = random.standard_normal((3, 2, 2, 70, 16), np.float32)
places = np.arange(70.0)[None, :, None]  # (1, L, P)
wave = random.standard_normal((2, 16, 1)), np.zeros((2, 16)), np.ones((2, 16))
inputs = *qkv, places, places, *wave
with watch() as seen:
    out, d, saved, _ = fourier.forward(*inputs, algorithm="linear")
    fourier.backward(out, None, *inputs, out, d, saved, algorithm="linear")
kernels = {x.kernel.__name__: x for x in seen}
print("launched:", ", ".join(kernels))
print("blocks:", kernels["circle"].blocks, kernels["features"].blocks)
show(quote(kernels["circle"].kernel, "(3)", also=("TURN", "math.")))
show(quote(kernels["features"].kernel, "(5)", "(7)", also=("phi(",)))

# %% [markdown]
# (Here `x` is the query or key; `n`, `h` and `p` count texts, heads and numbers of a place; `real`
# is float32; `at` is `n`, or 0 if texts share places. As threads have nothing to share, these are
# the room's plain kernels, too.) What yours does not do:
#
# 1. **Angles once.** `circle` makes nothing but sines and cosines, in float64 until whole turns are
#    gone, and they are kept for the backward. What a batch shares is made once: the last number of
#    its blocks is 1.
# 2. **A [warp](glossary.md#warp) a row**, and 8 a block: 70 rows take 9. Its 32
#    [lanes](glossary.md#lane) take neighbouring features. So they read and write neighbouring
#    numbers: [coalescing](glossary.md#coalescing). Neighbouring threads of yours write rows apart.
#
# The rest of the forward, `sums`, `forward` and `divide`, is lesson 6's. In the backward a warp has
# a row as well. For the sums over rows in (11) to (13) a block adds up some, and shares meet in
# [shared memory](glossary.md#shared-memory), in float64; `places` begin at the first key:

# %%
show(quote(kernels["feature_gradient"].kernel, "(10)", also=("across =",)))
show(quote(kernels["moment_sums"].kernel, also=("shares =", "total +=")))

# %% [markdown]
# ## 7. The scoreboard
#
# Lesson 10's two tasks: the [recall](glossary.md#recall) of pairs, and which of 16 symbols stood
# three places earlier. Lesson 10's heads come again, and heads that learn their waves, with (1) or
# (7) and either denominator. **Predict**: which waves are right most often about three places
# earlier?

# %%
guess("waves for three places earlier", "one_plus_cos, rotated")


# %% tags=["hide-input"]
class Placed(nn.Module):
    """Lesson 10: linear attention with distances up to 8, which it learns."""

    def __init__(self, first_query):
        self.e = nn.Parameter(np.zeros((1, 17, 16), np.float32))
        self.how = {"causal": True, "query_offset": first_query}

    def forward(self, query, key, value):
        """(N, H, Lq, E), and as many columns of keys and values."""
        return relative_linear_attention(query, key, value, self.e, **self.how)


def unplaced(first_query):
    """Lesson 6's linear attention."""
    return partial(linear_attention, causal=True, query_offset=first_query)


E, task, lesson_10 = 16, partial(earlier, 3), []
for name, head, rows in (("linear", unplaced, 0), ("distances", Placed, 9)):
    shares = recall(head(32)), recall(head(3), task=task)
    size = E * E + E + rows * E, 2 * E * E + 2 * rows * E
    lesson_10.append((name, *size, *map("{:.0%}".format, shares)))


# %%
class Waves(nn.Module):
    """Linear attention with learned waves, queries at p, keys at r."""

    def __init__(self, p, r, **how):
        start = np.linspace(0, np.pi, 16)[:, None], [0] * 16, [1.5] * 16
        self.a, self.b, self.c = (nn.Parameter(np.float32([x])) for x in start)
        self.places, self.how = (p[None, :, None], r[None, :, None]), how

    def forward(self, query, key, value):
        """(N, H, Lq, E), and as many columns of keys and values."""
        self.seen = query, key  # for the figure
        wave = self.a, self.b, tanh(self.c)  # |c| < 1
        inputs = query, key, value, *self.places, *wave
        return fourier_linear_attention(*inputs, **self.how)


# %%
E, i, rows, made, right = 16, np.arange(64), [*lesson_10], {}, {}
for form, D in (("cos", 2 * E), ("one_plus_cos", 3 * E)):
    for denominator, Z in (("rotated", D), ("plain", E)):
        name = f"{form}, {denominator}"
        how = {"form": form, "denominator": denominator}
        pairs = recall(Waves(i[32:], i[:32], **how))
        made[name] = Waves(i[3:35], i[:35], causal=True, query_offset=3, **how)
        right[name] = recall(made[name], task=task)
        shares = f"{pairs:.0%}", f"{right[name]:.0%}"
        rows.append((name, D * E + Z, 2 * D * E + 7 * E, *shares))
table(("", "numbers kept", "work a token", "recall", "three earlier"), rows)
reveal("waves for three places earlier", max(right, key=right.get))

# %% [markdown]
# ($7E$ of the work turns a query and a key, without the cosines and sines themselves.) Where places
# are whole numbers, no waves beat lesson 10's distances, which are less work. `cos` divided by its
# own sum learns nothing: Section 3 says why. With the plain one it is sharp, and forgets pairs. (7)
# remembers pairs, and is not sharp, whatever divides it. Here are two heads' weights in the second
# task, in units of $q \cdot k$. Bars are medians of their size, whatever the sign, over pairs of
# query and key; lines hold 8 of 10:


# %%
def learned(head, lift):
    """The size of weights, a column for each distance up to 8."""
    q, k = (phi(x.numpy()[:, 0], "elu") for x in head.seen)
    products = q * k[:, : q.shape[1]]  # (N, L, E)
    a, b, c = (x.numpy()[0] for x in (head.a, head.b, tanh(head.c)))
    wave = c * np.cos(b + np.arange(9)[:, None] * a[:, 0]) + lift
    s = products @ wave.T / products.sum(axis=-1, keepdims=True)
    return abs(s).reshape(-1, 9)


names = {"cos, plain": 0, "one_plus_cos, rotated": 1}
weights = {name: learned(made[name], lift) for name, lift in names.items()}
show(
    figures.learned(range(9), weights, 3), "learned",
    alt="Learned weights by distance: highest at 3, with (7) twice as high",
)  # fmt: skip

# %% [markdown]
# The head with (7) goes to its limit at 3, $2\,q \cdot k$; but all other keys together outweigh
# that. In the other head most of them nearly vanish. Its weights change with distance, though,
# even their sign, and a pair may be asked for at any distance. The 1 in (7) does not change: it is
# linear attention without positions, and recalls as that does.
#
# What are waves for? Ask which note of a melody sounded three *seconds* earlier. No distance of
# lesson 10 says that: others begin in between, now more, now fewer.

# %%
for seed in range(3):
    begin = np.random.default_rng(seed).uniform(0.5, 1.5, 35).cumsum()
    asked = begin[:32] + 3
    notes = (begin <= asked[:, None]).sum(axis=1) - i[:32]
    head = Waves(asked, begin, form="cos", denominator="plain")
    print(f"{notes.min()} to {notes.max()} notes back", end=": ")
    print(f"{recall(head, task=task):.0%} right")

# %% [markdown]
# ## What it cannot do
#
# * (7) is blunt. (1) is sharp, but has signs: its own sum fails as a denominator, and with the
#   plain one the weights of a row do not add up to 1.
# * cosFormer must know $T \ge L$ before the first token.
# * A state has two or three times the rows.
# * Float64 ends, too: near $10^{15}$ its numbers are $1/8$ apart.
# * It only adds, as linear attention does. Write a key twice, with two values, and it answers with
#   a mixture of both.
#
# **Next question: can a memory correct itself?** That is lesson 12.

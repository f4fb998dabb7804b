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

# %% [markdown] question="Can features imitate softmax?" minutes=90 after=[8]
# # Better features
#
# Since lesson 6 every trick was about *order*: who is multiplied with whom first. None touched
# $\varphi$, the [feature map](glossary.md#feature-map). $\mathrm{elu} + 1$ was a choice.
#
# In this lesson you write two better ones. The first imitates [softmax](glossary.md#softmax), and
# throws dice for it. The second throws none, and imitates nothing: it keeps keys out of each
# other's way. Guess already which of the two remembers more.
#
# *Sources.* Choromanski et al. 2021, *Rethinking Attention with Performers*; Schlag et al. 2021,
# *Linear Transformers Are Secretly Fast Weight Programmers*.

# %% tags=["hide-input"]
import math
from functools import partial

import numpy as np
from numba import float32

from minitransformer import nn
from minitransformer.attention import linear_attention
from minitransformer.course import (
    check,
    error,
    finite_differences,
    guess,
    quote,
    reveal,
    show,
    six_tokens,
    slope,
    table,
    watch,
)
from minitransformer.course.figures import lesson_09 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import Row, recall, scoreboard
from minitransformer_kernels import features
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear.reference import phi as elementwise

# %%
random = np.random.default_rng(9)
Q, K, V = six_tokens()  # (6, 4), (6, 4), (6, 3)

# %% [markdown]
# ## 1. An exponential that comes apart
#
# Softmax weighs a key by $e^{q \cdot k / \sqrt E}$. No product of a few features is that. But an
# *average* of such products is. All you need is a bell curve, $e^{-t^2/2}$. Multiply it by
# $e^{ut}$, and complete the square in the exponent:
#
# $$u t - \frac{t^2}{2} = \frac{u^2}{2} - \frac{(t - u)^2}{2}$$
#
# It is the same bell, moved by $u$, and taller by the factor $e^{u^2/2}$.

# %%
show(
    figures.bells(1.2), "bells",
    alt="A bell times an exponential is a bell again: moved, and taller",
)  # fmt: skip

# %% [markdown]
# So its area has grown by that factor. Now draw many *normal* numbers $t$: each as often as the
# first bell is high there. The mean of $e^{ut}$ weighs it by that height: it is the area of the
# product divided by that of the bell, $e^{u^2/2}$. Let $w$ be a row of $E$ independent normal
# numbers, and $u$ a row, too. $e^{w \cdot u}$ is the product of all $e^{w_e u_e}$, and the mean of
# a product of independent numbers is the product of their means:
#
# $$\mathrm{mean}_w\; e^{w \cdot u} = e^{|u|^2 / 2} \tag{A}$$
#
# Now let $s = E^{-1/4}$ and $u = sq + sk$. As $s^2 = 1 / \sqrt E$, its square is
#
# $$|u|^2 = |sq|^2 + 2\, q \cdot k / \sqrt E + |sk|^2 \tag{B}$$
#
# In the middle stands what softmax wants. The other two belong to $q$ alone and to $k$ alone. Take
# them to the left side of (A):
#
# $$\mathrm{mean}_w\; e^{w \cdot sq - |sq|^2/2}\; e^{w \cdot sk - |sk|^2/2} = e^{q \cdot k / \sqrt E}
#   \tag{C}$$
#
# One factor knows only $q$, one only $k$: just what lesson 6 asked for. Nobody can take the mean
# over all $w$. So draw $R$ rows, the same for queries and keys, and take the mean over those. Its
# $1/R$ is shared out, $1/\sqrt R$ to each side. For any row $x$, query or key:
#
# $$z_r = s\, w_r \cdot x \qquad \varphi_r = e^{z_r - l} \tag{1}$$
# $$l = s^2 |x|^2 / 2 + \log(R) / 2 \tag{2}$$
#
# These are [random features](glossary.md#random-features), called FAVOR+ (fast attention via
# positive orthogonal random features; "orthogonal" comes in section 2). The numbers are those of
# the [room](glossary.md#room) `kernels/features`. All are positive, as lesson 6 wants them. As a
# loop, for queries and keys that are a third as long as ours (section 2 says why):


# %%
def favor_loop(x, w):
    """One head: (L, E) and (R, E) -> (L, R)."""
    s, phi = x.shape[1] ** -0.25, np.empty((len(x), len(w)))
    for i in range(len(x)):
        l_i = s**2 * (x[i] @ x[i]) / 2 + np.log(len(w)) / 2  # (2)
        for r in range(len(w)):
            phi[i, r] = np.exp(s * (w[r] @ x[i]) - l_i)  # (1)
    return phi


Q_short, K_short = Q / 3, K / 3
truth = np.exp(Q_short @ K_short.T / 2)  # E is 4: its root is 2
for R in (10, 1000, 20_000):
    w = random.standard_normal((R, 4))
    off = error(favor_loop(Q_short, w) @ favor_loop(K_short, w).T, truth)
    print(f"{R:,} features: off by {off:.3f}")

# %% [markdown] exercise="favor"
# ### Exercise 1 (2 points, 8 min): random features, in arrays
#
# Write (1) and (2) for one [head](glossary.md#head) without a loop: `x` (L, E) and `w` (R, E) give
# (L, R). Rows may be long, and nothing may overflow: subtract before you take the exponential.
#
# <details><summary>Hint 1 of 3</summary>
#
# All $z$ at once are `s * x @ w.T`, (L, R).
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# There is one $l$ a row: make it a column, (L, 1), by `sum(axis=1, keepdims=True)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Neither `np.exp(z)` nor `np.exp(-l)` alone: only `np.exp(z - l)`.
#
# </details>


# %% exercise="favor"
def favor(x, w):
    """FAVOR+ features, (L, R)."""
    # BEGIN SOLUTION
    s = x.shape[1] ** -0.25
    z = s * x @ w.T  # (1): (L, R)
    squares = s**2 * (x**2).sum(axis=1, keepdims=True)  # (L, 1)
    return np.exp(z - squares / 2 - np.log(len(w)) / 2)  # (1), (2)
    # END SOLUTION


# %% check="favor"
check("favor", favor)

# %% [markdown]
# ## 2. How many features?
#
# How far from its mean is a single draw? (A) answers that, too. One $w$ gives a product $f$,
# whose mean is (C). The mean of $f^2$ is (A) again, with $2u$ in place of $u$. Compare the two:
#
# $$\frac{\mathrm{mean}\, f^2}{(\mathrm{mean}\, f)^2}
#   = \frac{e^{2|u|^2 - |sq|^2 - |sk|^2}}{e^{|u|^2 - |sq|^2 - |sk|^2}} = e^{|u|^2} \tag{D}$$
#
# So the relative variance of one $f$ is $e^{|u|^2} - 1$, and a mean of $R$ independent ones has
# $1/R$ of it. **Predict**: the typical error, its root, falls as $R^p$. What is $p$?

# %%
guess("p of the error", -1)

# %% [markdown] exercise="orthogonal"
# ### Exercise 2 (2 points, 8 min): dice that do not repeat themselves
#
# Two rows $w$ that point the same way say the same thing twice. Rows at right angles cannot. `G`
# (R, E) holds independent normal rows. No more than $E$ rows can all be at right angles, so work in
# groups of $E$; the last may have fewer. Take away from each row what points along the rows before
# it in its group (Gram and Schmidt), then give it back the length that it had in `G`. Each row
# alone still points anywhere, and is as long as before: a normal row, so (C) holds. (D) does not:
# it was for independent rows.
#
# <details><summary>Hint 1 of 3</summary>
#
# `np.linalg.qr` does that for the *columns* of a matrix: `C, T = np.linalg.qr(group.T)`. The
# columns of `C` have length 1.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# It may turn a column around. Then the diagonal of `T` is negative: multiply `C` by
# `np.sign(np.diag(T))`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `for b in range(0, len(G), E):` and `G[b : b + E]`; the lengths are `np.linalg.norm(G, axis=1)`.
#
# </details>


# %% exercise="orthogonal"
def orthogonal(G):
    """Rows as long as those of G, at right angles in groups of E."""
    # BEGIN SOLUTION
    directions, E = np.zeros_like(G), G.shape[1]
    for b in range(0, len(G), E):
        C, T = np.linalg.qr(G[b : b + E].T)
        directions[b : b + E] = (C * np.sign(np.diag(T))).T
    return directions * np.linalg.norm(G, axis=1)[:, None]
    # END SOLUTION


# %% check="orthogonal"
check("orthogonal", orthogonal)


# %%
def typical(rows, R, tries):
    """The root of the mean squared relative error, over many draws."""
    off = []
    for _ in range(tries):
        w = rows(random.standard_normal((R, 4)))
        estimate = favor(Q_short, w) @ favor(K_short, w).T
        off.append((estimate / truth - 1) ** 2)
    return np.sqrt(np.mean(off))


sizes, draws = (4, 16, 64, 256), 6400 if FAST else 128_000
squared = np.square(Q_short[:, None] + K_short).sum(axis=2) / 2  # |u|^2
by_D = [np.sqrt(np.mean(np.exp(squared) - 1) / R) for R in sizes]
measured = {
    "independent rows": [typical(np.array, R, draws // R) for R in sizes],
    "orthogonal rows": [typical(orthogonal, R, draws // R) for R in sizes],
}
reveal("p of the error", slope(sizes, measured["independent rows"]))
rows = [(name, *errors) for name, errors in measured.items()]
table(("typical error, R =", *map(str, sizes)), [("by (D)", *by_D), *rows])
show(
    figures.errors(sizes, by_D, measured), "errors",
    alt="The error against R on logarithmic axes: lines of slope -1/2",
)  # fmt: skip

# %% [markdown]
# Half the error costs *four* times the features. Right angles help a little, and cost nothing
# later: rows are drawn once.
#
# By (D) the relative error is largest where $|q + k|$ is: with long queries and keys, most of all
# if they point the same way. So the largest weights are the roughest. Queries and keys were short
# until here: those of the six [tokens](glossary.md#token) have a $|u|^2$ nine times as large, and
# it stands in an exponent. Here are their true weights, who looks at whom, and estimates, each the
# middle one of 25 draws:


# %%
def weights(a):
    """Each row divided by its sum."""
    return a / a.sum(axis=1, keepdims=True)


def middle(R):
    """Of 25 estimates the one whose largest error is the middle one."""
    tried = []
    for _ in range(25):
        w = orthogonal(random.standard_normal((R, 4)))
        tried.append(weights(favor(Q, w) @ favor(K, w).T))
    return sorted(tried, key=lambda a: abs(a - true).max())[12]


true = weights(np.exp(Q @ K.T / 2))
print(f"e to the |u|^2 is up to {np.exp(9 * squared.max()):,.0f}")
show(
    figures.estimates(true, {R: middle(R) for R in sizes}), "estimates",
    alt="Softmax's weights, and estimates of 4, 16, 64 and 256 features",
)  # fmt: skip

# %% [markdown]
# Even 256 features are not exact, for six tokens. What do they cost? A [state](glossary.md#state)
# has $R \times M$ numbers of $S$ and $R$ of $Z$; softmax keeps $E + M$ for each token. **Predict**:
# at $R = 256$ and $E = M = 64$, how many tokens fill as much?

# %%
guess("tokens that fill as much", 256)

# %%
reveal("tokens that fill as much", 256 * (64 + 1) / (64 + 64))

# %% [markdown]
# ## 3. What may be subtracted
#
# A softmax takes its largest score away, so that no exponential overflows. May $z$ lose its largest
# number as well? To take $c$ away from an exponent is to divide by $e^c$: a factor. **Predict**:
# which of these changes the outputs: a factor for each `query`, one for each `key`, or one and the
# same for `all keys`?

# %%
guess("what changes the outputs", "all keys")

# %%
w = orthogonal(random.standard_normal((64, 4)))
q, k = favor(Q, w), favor(K, w)
each = random.uniform(0.5, 2, (6, 1))
changed = {
    "query": (q * each, k),
    "key": (q, k * each),
    "all keys": (q, 7 * k),
}
off = {
    name: error(weights(q_ @ k_.T) @ V, weights(q @ k.T) @ V)
    for name, (q_, k_) in changed.items()
}
table(("a factor for each", "error of the outputs"), off.items())
reveal("what changes the outputs", max(off, key=off.get))

# %% [markdown]
# A query's factor cancels in $n / d$; a key's makes it count more or less than others. Keys must
# have *one* in common. But the largest number of all keys depends on those still to come, and a
# state that is handed on cannot be scaled anew. Luckily keys need none. Complete the square again:
#
# $$\varphi_r = e^{|w_r|^2/2 - |sx - w_r|^2/2} / \sqrt R$$
#
# However long $x$ is, that is at most $e^{|w_r|^2/2} / \sqrt R$: (2) is a stabiliser already. Far
# from all $w_r$ the features underflow to zeros, though. A key of zeros is forgotten; a query of
# zeros has no $d$. Queries may have a factor of their own. So they take away a smooth kind of
# maximum:
#
# $$l = \log \sum_t e^{z_t} \tag{3}$$
#
# That is a softmax over the features: they sum to 1, and where (2) does not underflow, the outputs
# are those of (2).
#
# ## 4. Backward
#
# The [backward](glossary.md#backward) gets $g_r$, the slope of the [loss](glossary.md#loss) in
# $\varphi_r$. By (1), $\varphi_r$ grows by $\varphi_r$ with $z_r$, and falls as much with $l$. So
# $l$ collects $-c$, where $c = \sum_t g_t \varphi_t$. With (3) $l$ hands that on to each $z_r$,
# with slope $\varphi_r$:
#
# $$dz_r = g_r \varphi_r \;\text{ with (2)} \qquad dz_r = (g_r - c)\, \varphi_r \;\text{ with (3)}
#   \tag{4}$$
#
# $x$ acts through each $z_r$, with slope $s\, w_r$, and with (2) through $l$, with slope $s^2 x$:
#
# $$dx = s \sum_r dz_r\, w_r - s^2 c\, x \quad \text{(no last term with (3))} \tag{5}$$
#
# The $w_r$ may be learned, too. Each meets all rows $x_i$:
#
# $$dw_r = s \sum_i dz_{ir}\, x_i \tag{6}$$
#
# Check it by a random [cotangent](glossary.md#cotangent):


# %%
def favor_backward(g, x, w, phi, by_3):
    """The gradients dx and dw, with (2) or (3)."""
    s, c = x.shape[1] ** -0.25, (g * phi).sum(axis=1, keepdims=True)
    dz = (g - by_3 * c) * phi  # (4)
    dx = s * dz @ w - s**2 * (1 - by_3) * c * x  # (5)
    return dx, s * dz.T @ x  # (6)


w, g = random.standard_normal((8, 4)), random.standard_normal((6, 8))


def loss(by_3):
    """A number that depends on every feature."""
    phi = favor(Q, w)
    return (g * (weights(phi) if by_3 else phi)).sum()


# %%
for by_3, phi in ((False, favor(Q, w)), (True, weights(favor(Q, w)))):
    gradients = favor_backward(g, Q, w, phi, by_3)
    for name, x, got in zip(("dx", "dw"), (Q, w), gradients, strict=True):
        off = error(got, finite_differences(partial(loss, by_3), x))
        print(f"{name} with ({3 if by_3 else 2}): off by {off:.0e}")

# %% [markdown]
# ## 5. Features without dice
#
# Must features imitate softmax? A memory needs something else: that keys stay apart. Where features
# of two keys have no place in common, $S$ keeps their values in different rows. So make many
# features, most of them zero. DPFP first splits a row by sign, $r = [\max(x, 0), \max(-x, 0)]$: of
# $2E$ numbers at most $E$ are not zero. Then it multiplies neighbours. With $m = 1 \dots \nu$, a
# shift, and indices that come round at $2E$ ($r$ is a row now, and $D$ counts features, as $R$
# did):
#
# $$\varphi_a^m = r_a\, r_{a+m} \qquad D = 2 E \nu \tag{7}$$
#
# A product is above zero only where *both* numbers are. Lesson 6 wanted features that are never
# off; these often are. A product that is off passes no [gradient](glossary.md#gradient), and a
# query that shares no place with any key has $d = 0$, which the [guard](glossary.md#guard) catches.

# %% [markdown] exercise="dpfp"
# ### Exercise 3 (1 point, 5 min): products of neighbours
#
# Write (7): `x` (L, E) gives (L, 2 E nu), first all $a$ with $m = 1$, then all with $m = 2$. A loop
# over $m$ is fine.
#
# <details><summary>Hint 1 of 3</summary>
#
# `np.concatenate([..., ...], axis=1)` puts arrays side by side.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `np.roll(r, -m, axis=1)` has $r_{a+m}$ in its place $a$, and comes round.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `r * np.roll(r, -m, axis=1)` for each m from 1 to nu, side by side.
#
# </details>


# %% exercise="dpfp"
def dpfp(x, nu):
    """DPFP features, (L, 2 E nu)."""
    # BEGIN SOLUTION
    r = np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=1)
    products = [r * np.roll(r, -m, axis=1) for m in range(1, nu + 1)]
    return np.concatenate(products, axis=1)  # (7)
    # END SOLUTION


# %% check="dpfp"
check("dpfp", dpfp)

# %%
print("a row:", K[0], "its features:", dpfp(K[:1], 1).round(1)[0])
x = random.standard_normal((200, 16))
w = orthogonal(random.standard_normal((64, 16)))
made = {"elu + 1": elementwise(x, "elu"), "FAVOR+": favor(x, w)}
made |= {"DPFP, nu = 2": dpfp(x, 2)}
rows = []
for name, f in made.items():
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    pairs = (f @ f.T)[np.triu_indices(200, 1)]
    rows.append((name, f.shape[1], float(pairs.mean())))
table(("random keys", "features", "mean cosine of two"), rows)

# %% [markdown]
# A cosine of 0 means that two keys share nothing, 1 that they cannot be told apart. Dice keep keys
# apart nearly as well, but they also blur the pairs that should match.
#
# **Backward.** The number $r_a$ stands in two products for each $m$: as the first in
# $\varphi_a^m$, beside $r_{a+m}$, and as the second in $\varphi_{a-m}^m$, beside $r_{a-m}$. Each
# hands back its partner:
#
# $$dr_a = \sum_m \big( g_a^m\, r_{a+m} + g_{a-m}^m\, r_{a-m} \big) \tag{8}$$
#
# And $x_e$ went to $r_e$ if it is positive, to $r_{E+e}$ with a minus if it is negative:
#
# $$dx_e = dr_e \;(x_e > 0) \qquad -dr_{E+e} \;(x_e < 0) \qquad 0 \;(x_e = 0) \tag{9}$$

# %% [markdown] exercise="dpfp-backward"
# ### Exercise 4 (3 points, 12 min): each hands back its partner
#
# Write (8) and (9): `g` (L, 2 E nu) and `x` (L, E) give `dx` (L, E).
#
# <details><summary>Hint 1 of 3</summary>
#
# Make r again. The $g^m$ of one m are `g[:, 2 * E * (m - 1) : 2 * E * m]`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# $g_{a-m}\, r_{a-m}$ is the product `g_m * r`, rolled the other way: by `m`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `x > 0` is 1 or 0 in a product: `dr[:, :E] * (x > 0)` is the first part of (9).
#
# </details>


# %% exercise="dpfp-backward"
def dpfp_backward(g, x, nu):
    """The gradient of x, given g (L, 2 E nu)."""
    # BEGIN SOLUTION
    r = np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=1)
    dr, E = np.zeros_like(r), x.shape[1]
    for m in range(1, nu + 1):
        g_m = g[:, 2 * E * (m - 1) : 2 * E * m]
        dr += g_m * np.roll(r, -m, axis=1)  # (8), as the first
        dr += np.roll(g_m * r, m, axis=1)  # (8), as the second
    return dr[:, :E] * (x > 0) - dr[:, E:] * (x < 0)  # (9)
    # END SOLUTION


# %% check="dpfp-backward"
check("dpfp-backward", dpfp_backward)

# %%
g, x = random.standard_normal((6, 16)), random.standard_normal((6, 4))
measured = finite_differences(lambda: (g * dpfp(x, 2)).sum(), x)
print(f"dx: off by {error(dpfp_backward(g, x, 2), measured):.0e}")

# %% [markdown] exercise="favor-kernel"
# ### Exercise 5 (3 points, 12 min): random features as a kernel
#
# Rows know nothing of each other, so a [thread](glossary.md#thread) [owns](glossary.md#owner) a row
# of `phi`. Write (1) and (2) as a [kernel](glossary.md#kernel): `x` (rows, E), `w` (R, E), the
# float32 number `s`, and `phi` (rows, R), which is written to. The row is `cuda.grid(1)`; the last
# [block](glossary.md#block) may have more threads than there are rows.
#
# <details><summary>Hint 1 of 3</summary>
#
# First l: a scalar that starts as `math.log(float32(w.shape[0])) / float32(2)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# A loop over e adds `s * s * x[i, e] * x[i, e] / float32(2)` to it.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Then for each r a scalar z, which starts as `float32(0)` and gets `s * w[r, e] * x[i, e]` for each
# e; and `phi[i, r] = math.exp(z - l_i)`.
#
# </details>


# %% exercise="favor-kernel"
@cuda.jit
def favor_kernel(x, w, s, phi):
    """A thread owns row i of phi."""
    # BEGIN SOLUTION
    i = cuda.grid(1)
    if i < x.shape[0]:
        l_i = math.log(float32(w.shape[0])) / float32(2)
        for e in range(x.shape[1]):
            l_i += s * s * x[i, e] * x[i, e] / float32(2)  # (2)
        for r in range(w.shape[0]):
            z = float32(0)
            for e in range(x.shape[1]):
                z += s * w[r, e] * x[i, e]  # (1)
            phi[i, r] = math.exp(z - l_i)  # (1)
    # END SOLUTION


# %% check="favor-kernel"
check("favor-kernel", favor_kernel)

# %% [markdown]
# ## 6. The real kernels
#
# The room's plain kernel is yours, and has (3) besides:

# %%
x = random.standard_normal((1, 2, 70, 32), np.float32)
w = random.standard_normal((100, 32), np.float32)
with watch() as plain:
    features.favor_forward(x, w, normalised=True, version="plain")
with watch() as fast:
    features.favor_forward(x, w, normalised=True)
for launch in (*plain, *fast):
    print(launch.kernel, "blocks", launch.blocks, "threads", launch.threads)
show(quote(plain[0].kernel, "(3)", also=("highest =", "total +=")))

# %% [markdown]
# And the fast one:

# %%
kept = "tile = cuda.shared", "total *=", "total +="
show(quote(fast[0].kernel, "(1)", "(3)", also=kept))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **[Tiles](glossary.md#tile).** A block copies its rows and some $w_r$ into
#    [shared memory](glossary.md#shared-memory). A $w_r$, once fetched, serves all rows of the
#    block, and a row serves all features.
# 2. **Four sums at once.** A thread keeps `sums` of four features in
#    [registers](glossary.md#register): a number of `x_tile`, once read, serves all of them.
# 3. **One walk for (3).** Threads share a row's features. Where a larger number turns up, the sum
#    so far is rescaled: lesson 4's [online softmax](glossary.md#online-softmax), over features.
#
# DPFP's kernels are short. Where your arrays roll, the fast forward has $r$ twice over: $a + m$
# needs no way round. And the plain backward is (8) and (9) for one number:

# %%
with watch() as seen:
    phi = features.dpfp_forward(x)
    features.dpfp_backward(phi, x, version="plain")
show(quote(seen[0].kernel, "(7)", also=("r[ty, e]", "r[ty, E + e]")))
show(quote(seen[1].kernel, "(8)", "(9)"))

# %% [markdown]
# ## 7. The scoreboard
#
# Three memories of nearly the same size, and two larger ones. (`extra` is the work of $\varphi$:
# $RE$ for a query and for a key, or $D$; $w$ stays as it was drawn.) **Predict**: which of the
# features recalls most with fewer than 300 numbers, `elu`, `FAVOR+` or `DPFP`?

# %%
guess("most with fewer than 300 numbers", "FAVOR+")


# %%
def row(name, E, D, feature_map, extra=0):
    """Train a head of width E with D features."""

    def remembering(query, key, value):
        late = {"causal": True, "query_offset": key.shape[2]}
        how = {"feature_map": feature_map, "algorithm": "recurrent"}
        return linear_attention(query, key, value, **late, **how)

    recalled = recall(remembering, width=E)
    return Row(f"{name}, E = {E}", D * E + D, 2 * D * E + extra, recalled)


rows = [
    row("elu", 16, 16, "elu"),
    row("FAVOR+", 8, 32, nn.Favor(8, 32, seed=0), 2 * 32 * 8),
    row("DPFP", 8, 32, nn.DPFP(2), 2 * 32),
]
best = max(rows, key=lambda row: row.recalled)
if not FAST:
    favor_64 = nn.Favor(16, 64, seed=0)
    rows.append(row("FAVOR+", 16, 64, favor_64, 2 * 64 * 16))
    rows.append(row("DPFP", 16, 64, nn.DPFP(2), 2 * 64))
scoreboard(*rows)
reveal("most with fewer than 300 numbers", best.attention.partition(",")[0])

# %% [markdown]
# So features can imitate softmax, but in a state of this size FAVOR+ remembers no more than elu + 1
# does. (D) gives a reason: with few features the imitation is rough just where softmax is sharp.
# DPFP imitates nothing, and keeps keys apart. One seed proves little, though. (Lesson 7's softmax
# recalls all pairs; it keeps them all. `results/recall` has every attention, with three seeds.)
#
# ## What it cannot do
#
# * Random features err most where scores are large. A head that must be sure needs many.
# * The floor of lesson 6 stands, with $D$ in place of $E$: more features, a larger state.
# * All weights depend on *content* alone. The same word weighs as much one place back as a thousand
#   places back; no $\varphi$ of a key can know where the query will stand.
#
# Distance matters, as every reader knows. **Next question: must it cost $L^2$?** That is lesson 10.

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

# %% [markdown] question="How do gradients reach the weights of a whole layer?" minutes=95 after=[3, 4]
# # A whole layer
#
# The [head](glossary.md#head) of lesson 4 has no [parameters](glossary.md#parameter): there is
# nothing in it to learn. A [layer](glossary.md#layer) puts
# [*projections*](glossary.md#projection) around it, products with matrices that are learned.
# Whoever trains it then asks two different things: how should the **inputs** have been, for the
# layer before? And how should the **weights** have been, for the optimizer? These are two passes,
# and each needs something else that the forward has kept.
#
# You write both. Then you find out how large weights must be in the beginning, make a layer
# explode, and cure it in two ways.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

from minitransformer import Function, gradcheck
from minitransformer.attention import multi_head
from minitransformer.course import (
    check,
    guess,
    quote,
    reveal,
    show,
    six_tokens,
    table,
    watch,
)
from minitransformer.course.figures import lesson_05 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import microscope
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.layers import dropout, layer_norm
from minitransformer_kernels.layers.layer_norm import fast

random = np.random.default_rng(5)

# %% [markdown]
# ## 1. One projection, three gradients
#
# [Tokens](glossary.md#token) are rows. A projection is a product with a matrix $W$
# $(D_{out} \times D_{in})$ and a bias for each column: $Y = X W^\top + b$. Number by number,
#
# $$y_{ri} = \sum_j w_{ij}\, x_{rj} + b_i$$
#
# Given $g_{ri} = \partial \ell / \partial y_{ri}$: $x_{rj}$ is in all $y$ of its row, with the
# factor $w_{ij}$. $w_{ij}$ is in $y_{ri}$ of *every* row, with the factor $x_{rj}$. So
#
# $$dx_{rj} = \sum_i g_{ri}\, w_{ij} \qquad dw_{ij} = \sum_r g_{ri}\, x_{rj}
#   \qquad db_i = \sum_r g_{ri}$$
#
# Look at what each needs: the [gradient](glossary.md#gradient) of the data needs the weights, and
# the gradient of the weights needs the data.
#
# %% [markdown] exercise="linear-backward"
# ### Exercise 1 (2 points, 8 min): backward of a projection
#
# Write the three as arrays.
#
# <details><summary>Hint 1 of 3</summary>
#
# In a product of matrices, the index that is summed over stands inside: last of the left factor,
# first of the right one. Transpose until it does.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Shapes decide: `G` is (R, Dout), `W` (Dout, Din), `X` (R, Din). Which product is (R, Din), and
# which (Dout, Din)?
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `G @ W`, `G.T @ X`, and the sum of `G` over its rows, `axis=0`.
#
# </details>


# %% exercise="linear-backward"
def linear_backward(G, X, W):
    """The gradients dX, dW and db of X W^T + b, given G (R, Dout)."""
    # BEGIN SOLUTION
    return G @ W, G.T @ X, G.sum(axis=0)
    # END SOLUTION


# %% check="linear-backward"
check("linear-backward", linear_backward)

# %% [markdown]
# ## 2. The layer
#
# Three inputs, three projections, $H$ heads, and a fourth projection that mixes the heads. The
# numbers are those of `minitransformer.multi_head`, which has this layer in three functions:
#
# $$Q = X_q W_q^\top \qquad K = X_k W_k^\top \qquad V = X_v W_v^\top \tag{1}$$
#
# $$P_h = \mathrm{softmax}(Q_h K_h^\top / \sqrt E) \tag{2}$$
#
# $$O_h = P_h V_h \tag{3}$$
#
# $$Y = [O_1 \dots O_H]\, W_o^\top \tag{4}$$
#
# (Biases are left out here. [Dropout](glossary.md#dropout), which (3) has there, comes in section
# 6.)


# %%
def split(x, H):
    """From a row a token to a row a token and head."""
    x = x.reshape(len(x), H, -1)  # (L, H E) -> (L, H, E)
    return x.swapaxes(0, 1)  # (L, H, E) -> (H, L, E)


def merge(x):
    """The way back."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)  # (H, L, E) -> (L, H E)


def weights_of(Q, K):
    """P (H, Lq, Lk), equation (2)."""
    s = Q @ K.swapaxes(1, 2) / Q.shape[2] ** 0.5  # (H, Lq, Lk)
    p = np.exp(s - s.max(axis=2, keepdims=True))
    return p / p.sum(axis=2, keepdims=True)


def layer(X, W, H=2):
    """Y (Lq, Do), and what the backward passes need."""
    Q, K, V = (split(x @ w.T, H) for x, w in zip(X, W[:3], strict=True))  # (1)
    O = weights_of(Q, K) @ V  # (2), (3): (H, Lq, M)
    return merge(O) @ W[3].T, ((Q, K, V), O)  # (4)


# %%
six = six_tokens()
X = six.query, six.key, six.value  # (6, 4), (6, 4), (6, 3)
W = [random.standard_normal(s) for s in ((4, 4), (4, 4), (6, 3), (5, 6))]
Y, (heads, O) = layer(X, W)
print("Q, K, V:", *(x.shape for x in heads), "= (H, L, E or M);  Y:", Y.shape)
show(
    figures.pipeline(),
    "pipeline",
    alt="The layer as a pipeline: forward to the right, the data's gradient "
    "back to the left, the weights' gradients down to each projection.",
)

# %% [markdown]
# **[Backward](glossary.md#backward) for data** walks the equations from the last to the first. Each
# projection is crossed by its weights; between them is lesson 4, for each head:
#
# $$[dO_1 \dots dO_H] = G\, W_o \tag{5}$$
#
# $$dV_h = P_h^\top dO_h \tag{6}$$
#
# $$dP_h = dO_h V_h^\top \tag{7}$$
#
# $$dS_h = P_h * (dP_h - \text{row sums of } (P_h * dP_h)) \tag{8}$$
#
# (`*` multiplies number by number. By lesson 4's trick these row sums are $\delta$, those of
# `dO * O`: so `heads_backward` takes them, below.)
#
# $$dQ_h = dS_h K_h / \sqrt E \qquad dK_h = dS_h^\top Q_h / \sqrt E \tag{9}$$
#
# $$dX_q = dQ\, W_q \qquad dX_k = dK\, W_k \qquad dX_v = dV\, W_v \tag{10}$$
#
# **Backward for weights** uses what the first pass made on its way:
#
# $$dW_o = G^\top [O_1 \dots O_H] \tag{11}$$
#
# $$dW_q = dQ^\top X_q \qquad \text{and so for } k \text{ and } v \tag{12}$$


# %%
def heads_backward(dO, Q, K, V, O):
    """The gradients dQ, dK and dV, each (H, L, E or M): lesson 4."""
    P, scale = weights_of(Q, K), Q.shape[2] ** -0.5  # (2)
    delta = (dO * O).sum(axis=2, keepdims=True)  # the row sums of (8)
    dS = P * (dO @ V.swapaxes(1, 2) - delta)  # (7), (8)
    dQ, dK = scale * dS @ K, scale * dS.swapaxes(1, 2) @ Q  # (9)
    return dQ, dK, P.swapaxes(1, 2) @ dO  # (6)


# %% [markdown] exercise="layer-backward-data"
# ### Exercise 2 (3 points, 10 min): the pass for the data
#
# Complete `layer_backward_data`, by (5) to (10). Return six arrays: the gradients of the three
# inputs, and dQ, dK and dV for the next pass, *merged*: dQ and dK to `(L, H E)`, dV to `(L, H M)`.
#
# <details><summary>Hint 1 of 3</summary>
#
# Three lines: through $W_o$ to the heads, through the heads, and through the other projections.
# `heads_backward` is the middle one.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# (5) gives `(L, H M)`; `heads_backward` wants `(H, L, M)`. Which of `split` and `merge` is needed
# where?
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `dO = split(G @ W[3], len(O))`, then `dQ, dK, dV = map(merge, heads_backward(dO, *heads, O))`.
#
# </details>


# %% exercise="layer-backward-data"
def layer_backward_data(G, W, heads, O):
    """dX_q, dX_k, dX_v, dQ, dK, dV, given G (Lq, Do), W, (Q, K, V) and O."""
    # BEGIN SOLUTION
    dO = split(G @ W[3], len(O))  # (5): (L, H M) -> (H, L, M)
    dQ, dK, dV = map(merge, heads_backward(dO, *heads, O))  # (6) to (9)
    return dQ @ W[0], dK @ W[1], dV @ W[2], dQ, dK, dV  # (10)
    # END SOLUTION


# %% check="layer-backward-data"
check("layer-backward-data", layer_backward_data)

# %% [markdown] exercise="layer-backward-weights"
# ### Exercise 3 (3 points, 8 min): the pass for the weights
#
# Complete `layer_backward_weights`: four arrays, each in the shape of its weights.
#
# <details><summary>Hint 1 of 3</summary>
#
# All four are the gradient of the weights in `linear_backward`. Which output gradient and which
# input has each projection?
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# The input of the last projection is the heads' outputs, side by side: `merge(O)`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `[g.T @ x for g, x in zip(projected, X)]` is (12).
#
# </details>


# %% exercise="layer-backward-weights"
def layer_backward_weights(G, X, O, projected):
    """dW_q, dW_k, dW_v and dW_o, given G, the inputs, O and (dQ, dK, dV)."""
    # BEGIN SOLUTION
    of_inputs = [g.T @ x for g, x in zip(projected, X, strict=True)]  # (12)
    return *of_inputs, G.T @ merge(O)  # (11)
    # END SOLUTION


# %% check="layer-backward-weights"
check("layer-backward-weights", layer_backward_weights)


# %%
class Layer(Function):
    """Your layer, on the tape."""

    @staticmethod
    def forward(ctx, *inputs):
        """The output; three inputs, then four weights."""
        Y, kept = layer(inputs[:3], inputs[3:])
        ctx.save(inputs[:3], inputs[3:], *kept)
        return Y

    @staticmethod
    def backward(ctx, G):
        """Both passes."""
        X, W, heads, O = ctx.saved
        *dX, dQ, dK, dV = layer_backward_data(G, W, heads, O)
        return *dX, *layer_backward_weights(G, X, O, (dQ, dK, dV))


print("gradcheck:", gradcheck(Layer.apply, [*X, *W]))

# %% [markdown]
# ## 3. Who needs what
#
# There are seven gradients: of three inputs and four weights. **Predict**: how many of them need
# the inputs $X$, and how many need $O$, with $\delta$ as `heads_backward` takes it?

# %%
guess("gradients that need X", 3)
guess("gradients that need O", 5)

# %% [markdown]
# No theory: spoil what was kept, with NaN, and see whom it hurts. The functions are now those of
# `multi_head`, whose three entry points do this for a [batch](glossary.md#batch).

# %%
names = "dX_q", "dX_k", "dX_v", "dW_q", "dW_k", "dW_v", "dW_o"
G = random.standard_normal(Y.shape)[None]
batch = [x[None] for x in X]  # (L, D) -> (N, L, D)
_, kept = multi_head.forward(multi_head.Weights(*W), *batch, num_heads=2)
bad = tuple(x * np.nan for x in kept.inputs)
spoiled = {
    "nothing": kept,
    "X": kept._replace(inputs=bad),
    "O": kept._replace(output=kept.output * np.nan),
}
rows = {}
for what, saved in spoiled.items():
    data = multi_head.backward_data(G, saved)
    weights = multi_head.backward_weights(G, saved, data.projected)
    rows[what] = [bool(np.isnan(x).any()) for x in (*data[:3], *weights[:4])]
table(
    ("spoiled", *names),
    [(what, *("-x"[x] for x in hurt)) for what, hurt in rows.items()],
)
reveal("gradients that need X", sum(rows["X"]))
reveal("gradients that need O", sum(rows["O"]))

# %% [markdown]
# The inputs serve only the weights: a layer that is frozen need not keep them. $O$ serves $dW_o$,
# and by $\delta$ the queries and keys. $dV$ does without it.
#
# ## 4. How large should weights begin?
#
# Let all numbers be independent, with mean 0. Then $y_i = \sum_j w_{ij} x_j$ has the variance
# $D_{in} \mathrm{Var}(w) \mathrm{Var}(x)$: it stays the same if
# $\mathrm{Var}(w) = 1 / D_{in}$. Backward, $dx_j = \sum_i g_i w_{ij}$ asks for $1 / D_{out}$
# in the same way. Both cannot be had, so Glorot and Bengio (2010) take the mean of the widths:
#
# $$\mathrm{Var}(w) = \frac{2}{D_{in} + D_{out}}, \quad \text{uniform in } \pm\beta: \quad
#   \frac{\beta^2}{3} = \mathrm{Var}(w), \quad \beta = \sqrt{\frac{6}{D_{in} + D_{out}}}$$
#
# It is called Xavier initialisation, after the first author's first name.
#
# **Predict**: ten projections in a row, all weights twice as large as that. By which factor do the
# numbers grow?

# %%
guess("growth by weights twice as large", 1000)


# %%
def xavier(draw, rows, columns, gain=1.0):
    """A weight (rows, columns), float32."""
    beta = gain * (6 / (rows + columns)) ** 0.5
    return draw.uniform(-beta, beta, (rows, columns)).astype(np.float32)


growth = {}
for gain in (0.5, 1.0, 2.0):
    x = random.standard_normal((256, 128))
    for _ in range(10):
        x = x @ xavier(random, 128, 128, gain).T
    growth[gain] = float(x.std())
table(("gain", "growth over ten layers"), growth.items())
reveal("growth by weights twice as large", growth[2.0])

# %% [markdown]
# ## 5. Predict zero
#
# The smallest test of a layer that learns: random inputs, and all outputs should be 0. The
# [loss](glossary.md#loss) is the mean of the squared outputs. So $G = 2 Y / n$, if $Y$ has $n$
# numbers, and only the pass for the weights is needed: nobody asks for the gradient of the data.


# %%
def train(size=16, gain=1.0, clip=1e30, norm=False, steps=200, rate=2.0):
    """The losses, step by step, until they are too large for float32."""
    draw, losses = np.random.default_rng(1), []
    W = [xavier(draw, size, size, gain) for _ in range(4)]
    w = np.ones(size, np.float32)  # of the layer norm
    while len(losses) < steps and (not losses or losses[-1] < 1e30):
        X = draw.uniform(-1, 1, (3, 8, size, size)).astype(np.float32)
        y, kept = multi_head.forward(multi_head.Weights(*W), *X, num_heads=2)
        y = out = y.reshape(-1, size)  # (N, L, D) -> (N L, D)
        if norm:
            out, *sums = layer_norm.forward(y, w, None, eps=1e-5)
        losses.append(float(np.mean(out.astype(np.float64) ** 2)))
        g, dw = 2 * out / out.size, 0 * w
        if norm:
            dw, _ = layer_norm.parameters_backward(g, y, *sums)
            g = layer_norm.backward(g, y, w, *sums)
        dW = multi_head.backward_weights(g.reshape(X.shape[1:]), kept)[:4]
        length = sum(float((d**2).sum()) for d in (*dW, dw)) ** 0.5
        for p, d in zip((*W, w), (*dW, dw), strict=True):
            p -= np.float32(rate * clip / max(clip, length)) * d
    return losses


# %%
learned = {size: train(size) for size in ((16,) if FAST else (4, 8, 16, 32))}
rows = [(size, losses[0], losses[-1]) for size, losses in learned.items()]
table(("size", "first loss", "last loss"), rows)

# %% [markdown]
# It learns. Now begin with weights six times as large. The output is a product of two of them,
# $W_v$ and $W_o$. So the loss grows with the *fourth* power of the gain, or faster, its gradient
# with the third, and the weights themselves with the first: the step is much too long. It lands
# where the loss is larger still, and so is the next step.
#
# **Predict**: at which step is the loss beyond $10^{30}$? (A step computes the loss, then moves the
# weights: step 1 has the first loss.)

# %%
guess("the step of the explosion", 5)

# %%
with np.errstate(all="ignore"):
    runs = {
        "Xavier": learned[16],
        "6 times as large": train(gain=6),
        "the same, clipped": train(gain=6, clip=1),
        "the same, normalised": train(gain=6, norm=True),
    }
for name, losses in runs.items():
    print(
        f"{name}: {losses[0]:.3g}, then {losses[-1]:.3g} at step {len(losses)}"
    )
reveal("the step of the explosion", len(runs["6 times as large"]))
show(
    figures.losses(runs),
    "losses",
    alt="Losses of four runs: one explodes within a few steps; clipped or "
    "normalised, the same weights learn.",
)

# %% [markdown]
# *Clipping* shortens all gradients together, so that their length is 1 at most: the direction
# stays, the step is bounded. *Normalising* takes the size out of the output itself, and this is
# next. ([Layer norm](glossary.md#layer-norm) has a weight for each column, too. Setting all of them
# to 0 is the quickest way to predict zero, and training finds that.)
#
# Don't conclude that larger is better. The output is a product of weights, so near zero, where
# Xavier begins, its gradients are small as well; and zero is what this test asks for.
#
# ## 6. Layer norm
#
# Each row is brought to mean 0 and variance 1. The numbers of this section are those of the
# [room](glossary.md#room) `layer_norm`, from (1) again:
#
# $$m = \frac{1}{D} \sum_d x_d \qquad
#   r = \Big(\frac{1}{D} \sum_d (x_d - m)^2 + \epsilon\Big)^{-1/2} \tag{1}$$
#
# $$n_d = (x_d - m)\, r \qquad y_d = w_d n_d + b_d \tag{2}$$
#
# Backward, with $h_d = g_d w_d$, the gradient of $n_d$ ($h$ is no head here). Each $x_d$ is in $m$
# and in $r$, and by them in *all* $n_e$. As $\partial m / \partial x_d = 1/D$ and
# $\partial r / \partial x_d = -r^2 n_d / D$,
#
# $$\frac{\partial n_e}{\partial x_d} = r \Big([e = d] - \frac{1}{D} - \frac{n_e n_d}{D}\Big)$$
#
# $$dx_d = \sum_e h_e \frac{\partial n_e}{\partial x_d}
#   = r \Big(h_d - \frac1D \sum_e h_e - n_d \frac1D \sum_e h_e n_e \Big) \tag{3}$$
#
# Two sums for each row; the matrix of derivatives is never made. And note the $r$ in front: an
# output that is four times as large gets a gradient of a quarter. That is the cure you saw.
#
# %% [markdown] exercise="norm-kernel"
# ### Exercise 4 (3 points, 15 min): a thread a row
#
# Write `norm_kernel`, equation (3). It is launched with enough [blocks](glossary.md#block) of 32
# [threads](glossary.md#thread) for all rows; `mean` and `scale` hold $m$ and $r$ of each.
#
# <details><summary>Hint 1 of 3</summary>
#
# `i = cuda.grid(1)` is the thread's row, if there is one. It walks its columns twice: for the two
# sums, then for the answers.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# In both walks make `h = g[i, d] * weight[d]` and `n = (x[i, d] - mean[i]) * scale[i]` anew: that
# is cheaper than to keep them.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `dx[i, d] = scale[i] * (h - h_sum / D - n * hn_sum / D)`, with `D = float32(x.shape[1])` and sums
# that begin as `float32(0)`.
#
# </details>


# %% exercise="norm-kernel"
@cuda.jit
def norm_kernel(g, x, weight, mean, scale, dx):
    """Takes g, x (R, D), weight (D,), mean, scale (R,); writes dx (R, D)."""
    # BEGIN SOLUTION
    i = cuda.grid(1)
    if i < x.shape[0]:
        h_sum, hn_sum, D = float32(0), float32(0), float32(x.shape[1])
        for d in range(x.shape[1]):
            h = g[i, d] * weight[d]
            n = (x[i, d] - mean[i]) * scale[i]
            h_sum += h
            hn_sum += h * n
        for d in range(x.shape[1]):
            h = g[i, d] * weight[d]
            n = (x[i, d] - mean[i]) * scale[i]
            dx[i, d] = scale[i] * (h - h_sum / D - n * hn_sum / D)  # (3)
    # END SOLUTION


# %% check="norm-kernel"
check("norm-kernel", norm_kernel)

# %% [markdown]
# **Predict**: the [kernel](glossary.md#kernel) that runs gives each row a whole
# [warp](glossary.md#warp), 32 threads in step. Yours gives it one thread. How many times the bytes
# does yours move, in [sectors](glossary.md#sector) of 32 bytes?

# %%
guess("bytes moved, yours / theirs", 8)

# %%
x, g = random.standard_normal((2, 64, 64)).astype(np.float32)
w = np.ones(64, np.float32)
y, *sums = layer_norm.forward(x, w, None, eps=1e-5)
mine = np.empty_like(x)
with watch() as launched:
    theirs = layer_norm.backward(g, x, w, *sums)
    norm_kernel[2, 32](g, x, w, *sums, mine)
look = partial(microscope.inspect, compiled=False)
moved = [look(k[b, t], *a).roofline.moved for k, b, t, a in launched]
print("same result:", np.allclose(mine, theirs, atol=1e-5))
reveal("bytes moved, yours / theirs", moved[1] / moved[0])
show(quote(fast._gradient_kernel(float32), "(3)", also=["warp_sum", "+= h"]))
print()
show(quote(fast.warp_sum))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **Neighbours read neighbours.** `d` begins at `tx` and goes on in steps of 32: the warp reads
#    32 numbers that lie together, and uses every sector whole. Your threads are a row apart, so
#    each fetches 32 bytes for the 4 that it wants. (Not quite eight times: of `weight`, all your
#    threads want the same number at the same time.)
# 2. **It adds up across threads.** `warp_sum` exchanges numbers between
#    [registers](glossary.md#register): with the neighbour,
#    then two away, four, eight, sixteen. After five steps *every* thread has the whole sum. No
#    [shared memory](glossary.md#shared-memory), no [barrier](glossary.md#barrier).
# 3. **All threads stay to the end.** The sums stand outside `if i < R`, since a warp exchanges only
#    among threads that are there.
#
# (`fastmath=True` lets the compiler add in another order, and take instructions that are faster and
# slightly less exact.)
#
# The gradients of `w` and `b` are sums along columns, over all rows: another division of labour,
# and another kernel, as it was with keys and queries in lesson 4.
#
# **Dropout** sets each of the weights $P$ to zero with a probability $p$, and multiplies the others
# by $1 / (1 - p)$, so that sums stay the same on average. Backward needs the very same ones, in
# other kernels, which visit them in another order. A list of them would be the $L \times L$ array
# again! So the random bits are a *function* of a seed and the place: nothing is kept. Seven rounds
# of multiply and xor (*Philox*) scramble the two; `kernels/layers/dropout.py` has them.

# %%
words = [
    [dropout.random_word(7, 0, 0, i, j) for j in range(64)] for i in range(64)
]
print(f"dropped at 10 %: {np.mean(np.array(words) < 0.1 * 2**32):.1%}")
print("again:", dropout.random_word(7, 0, 0, 40, 3) == words[40][3])

# %% [markdown]
# ## What it cannot do
#
# You have a layer that learns: three passes, weights of the right size, two cures. What it computes
# still takes $L^2$ scores, [fused](glossary.md#fused) or not. Which step of
# [softmax](glossary.md#softmax) forces that? And what would you have to give up to get rid of it?
# That is lesson 6.

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

# %% [markdown] question="What does a head compute?" minutes=55 after=[]
# # Six tokens
#
# You read a text, and later somebody asks you about it. How do you remember?
# This course has one answer after the other, and each is a kind of
# attention. It starts with the one that everybody knows, on a text of six
# [tokens](glossary.md#token): small enough to print whole.
#
# You need NumPy, and nothing else. In every lesson: when it says
# **Predict**, put your guess in place of the dots before you go on. Nobody
# grades it. Being wrong is how this works. Exercises are checked, and have
# three hints each; open one when you are stuck for five minutes.

# %%
from functools import partial

import numpy as np

from minitransformer.course import (
    check,
    guess,
    peak_bytes,
    quote,
    reveal,
    show,
    six_tokens,
    table,
)
from minitransformer.course.figures import lesson_00 as figures
from minitransformer_kernels import softmax
from minitransformer_kernels.softmax.reference import softmax_weights

# %% [markdown]
# ## 1. A lookup that never fails
#
# A dictionary remembers pairs. You ask with a key, and get its value:
#
#     {"capital of France": "Paris"}["capital of France"]
#
# Ask for `"France's capital"`, and you get an error. Now let keys be
# vectors, and let every pair answer, each as loudly as its key fits the
# question. That is a [head](glossary.md#head) of attention. Each token i
# makes three vectors: a **key**, what it can be found by; a **value**, what
# it has to say; and a **query**, what it asks for. (It multiplies its own
# row of numbers by three matrices, which are learned: lesson 5. Here you get
# the results, and they are random numbers: this text has no words.)

# %%
six = six_tokens()
for name, array in zip(("query", "key", "value"), six, strict=True):
    print(f"{name} {array.shape}\n{array}")

# %% [markdown]
# L = 6 tokens; queries and keys have E = 4 numbers, values M = 3. You will
# meet these six in every lesson.
#
# How well does key j fit query i? Take their product, scaled (section 3 says
# why):
#
# $$s_{ij} = q_i \cdot k_j / \sqrt E$$
#
# Weights should be positive, grow with the score, and add up to 1. So take
# the exponential, and divide by the sum. With
# $h_i = \max_j s_{ij}$, the best score of the row,
#
# $$d_i = \sum_j e^{s_{ij} - h_i} \tag{1}$$
# $$p_{ij} = e^{s_{ij} - h_i} / d_i \qquad o_i = \sum_j p_{ij} v_j \tag{2}$$
#
# The function from scores to weights is called
# [softmax](glossary.md#softmax). What is $h_i$ for? It cancels: numerator
# and denominator both have a factor $e^{-h_i}$. But without it a score of
# 1,000 would ask for $e^{1000}$, which no float can hold. With it, no
# exponent is above zero.

# %% [markdown] exercise="attend"
# ### Exercise 1 (2 points, 10 min): loops
#
# Write (1) and (2) as the loops that they are: for each query, its scores,
# the largest of them, the weights, their sum, the weighted average of the
# values. There may be more keys than queries, and scores of 1,000.
#
# <details><summary>Hint 1 of 3</summary>
# The loop over i is outside; what stands inside has no other query in it.
# </details>
# <details><summary>Hint 2 of 3</summary>
# `s = [query[i] @ key[j] / E**0.5 for j in range(len(key))]` are the scores
# of row i; `max(s)` is h.
# </details>
# <details><summary>Hint 3 of 3</summary>
# `terms = [np.exp(s_j - max(s)) for s_j in s]`, then
# `out[i] += terms[j] / sum(terms) * value[j]` for each j.
# </details>


# %% exercise="attend"
def attend(query, key, value):
    """Attention of query (Lq, E) to key (Lk, E) and value (Lk, M): (Lq, M)."""
    E = query.shape[1]
    out = np.zeros((len(query), value.shape[1]))
    # BEGIN SOLUTION
    for i in range(len(query)):
        s = [query[i] @ key[j] / E**0.5 for j in range(len(key))]
        terms = [np.exp(s_j - max(s)) for s_j in s]
        d = sum(terms)  # (1)
        for j in range(len(key)):
            out[i] += terms[j] / d * value[j]  # (2)
    # END SOLUTION
    return out


# %% check="attend"
check("attend", attend)

# %% [markdown]
# Is that still a lookup? Store 32 random pairs, and ask for each by its own
# key, times a factor: the louder the question, the larger the scores.
#
# **Predict**: for which share of the 32 questions is the right value the one
# nearest to the answer, if the factor is 1?

# %%
guess("recalled at 1", 0.9)

# %%
random = np.random.default_rng(0)
key, value = random.standard_normal((2, 32, 16))
recalled = {}
for factor in (0.3, 1, 3):
    out = attend(factor * key, key, value)
    far = ((out[:, None] - value) ** 2).sum(axis=2)  # from each to each
    recalled[factor] = np.mean(far.argmin(axis=1) == np.arange(32))
    print(f"factor {factor}: {recalled[factor]:.0%} come back")
reveal("recalled at 1", float(recalled[1]))

# %% [markdown]
# With large scores one weight is nearly 1: the dictionary is back. How much
# of 32 pairs comes back is the question that this course will put to every
# memory.
#
# ## 2. The same, as arrays
#
# Nobody runs loops in Python. And not every query may look at every key. A
# model that writes text must not see what comes later: it is
# [causal](glossary.md#causal), $j \le i$. So there is a
# [mask](glossary.md#mask): `seen[i, j]` is True where query i sees key j.
#
# Masked scores become $-\infty$, since $e^{-\infty} = 0$. That is fine until
# a query sees nothing at all: then $h_i = -\infty$, and
# $-\infty - (-\infty)$ is no number. Its answer shall be 0.

# %% [markdown] exercise="attend-arrays"
# ### Exercise 2 (3 points, 12 min): arrays
#
# Write it without loops, for N texts at once (a *batch*), each with H heads
# side by side (section 4): both are axes in front, (N, H, L, E). Lq and Lk
# are the numbers of queries and keys. (The check notices loops by the number
# of lines that run.) End each line with a comment that says which shape
# comes out.
#
# <details><summary>Hint 1 of 3</summary>
# `key.swapaxes(-1, -2)` turns each head's matrix, and `@` multiplies the
# last two axes: (N, H, Lq, E) by (N, H, E, Lk).
# </details>
# <details><summary>Hint 2 of 3</summary>
# `np.where(seen, s, -np.inf)` masks. The largest of a row is
# `s.max(axis=-1, keepdims=True)`; replace it by 0 where it is not finite.
# </details>
# <details><summary>Hint 3 of 3</summary>
# Divide by `np.where(d == 0, 1, d)`: where d is 0 the sum of values is 0,
# too.
# </details>


# %% exercise="attend-arrays"
def attend_arrays(query, key, value, seen):
    """Attention where `seen` (Lq, Lk) is True: (N, H, Lq, M).

    Takes query (N, H, Lq, E), key (N, H, Lk, E) and value (N, H, Lk, M).
    """
    # BEGIN SOLUTION
    s = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5  # (N, H, Lq, Lk)
    s = np.where(seen, s, -np.inf)  # (N, H, Lq, Lk)
    h = s.max(axis=-1, keepdims=True)  # (N, H, Lq, 1)
    terms = np.exp(s - np.where(np.isfinite(h), h, 0))  # (N, H, Lq, Lk)
    d = terms.sum(axis=-1, keepdims=True)  # (1): (N, H, Lq, 1)
    return terms @ value / np.where(d == 0, 1, d)  # (2): (N, H, Lq, M)
    # END SOLUTION


# %% check="attend-arrays"
check("attend-arrays", attend_arrays)

# %% [markdown]
# Here is who looks at whom among the six, if they are causal. As an array:
# row i holds the weights of query i. As arrows: from each token to those
# that it listens to.

# %%
causal = np.tril(np.ones((6, 6), bool))
weights, _ = softmax_weights(
    six.query[None, None], six.key[None, None], causal
)
show(
    figures.looking(weights[0, 0]),
    "looking",
    alt="The causal weights of six tokens as a 6 x 6 table, empty above the "
    "diagonal, and as arrows whose width is the weight.",
)

# %% [markdown]
# Token 0 has nobody but itself. Every row adds up to 1.
#
# ## 3. Why the scale
#
# Say the numbers of $q$ and $k$ are independent, with mean 0 and variance 1.
# Each product $q_e k_e$ has mean 0 and variance 1 as well, and variances of
# independent numbers add up: $q \cdot k$ has variance E. Its typical size
# is $\sqrt E$. So a wider head would have larger scores, for no reason; and
# you have seen what large scores do.
#
# **Predict**: 64 random keys, E = 64. How large is the largest of a query's
# 64 weights, on average, if the scale is forgotten? And with the scale?

# %%
guess("largest without", 0.9)
guess("largest with", 0.1)

# %%
widths, largest = (4, 16, 64, 256), {"with the scale": [], "without": []}
for E in widths:
    query, key = random.standard_normal((2, 1, 1, 64, E))
    for name, scale in zip(largest, (E**-0.5, 1.0), strict=True):
        p, _ = softmax_weights(query, key, True, scale)
        largest[name].append(p.max(axis=-1).mean())
reveal("largest without", largest["without"][2])
reveal("largest with", largest["with the scale"][2])
show(
    figures.largest(widths, largest),
    "scale",
    alt="The largest of 64 weights against the head's width: it stays near a "
    "tenth with the scale, and goes towards 1 without.",
)

# %% [markdown]
# Near 1 a weight hardly changes any more, whatever the scores do: its slope
# with respect to its own score is $p\,(1 - p)$. A head that begins there cannot learn to
# look elsewhere. That is what the scale is for.
#
# ## 4. Several heads
#
# One head asks one question at a time. So a model has H of them, side by
# side: a token is a row of $H \cdot E$ numbers, E for each head, and each
# head wants its own matrix. More people stumble here than over softmax:

# %%
show(
    figures.heads(),
    "heads",
    alt="A row of H E numbers for each token, cut into H bands of columns; "
    "each band becomes a matrix of its own.",
)

# %% [markdown] exercise="split-heads"
# ### Exercise 3 (2 points, 8 min): split the heads
#
# From (N, L, H E) make (N, H, L, E). Head h gets the columns from h E to
# (h + 1) E of every token.
#
# <details><summary>Hint 1 of 3</summary>
# A reshape never moves a number: it reads them in the same order. Does one
# reshape alone put them where you want them?
# </details>
# <details><summary>Hint 2 of 3</summary>
# First cut the last axis in two: (N, L, H, E). Then swap two axes.
# </details>
# <details><summary>Hint 3 of 3</summary>
# `x.reshape(N, L, heads, -1)`, and then `.transpose(0, 2, 1, 3)`.
# </details>


# %% exercise="split-heads"
def split_heads(x, heads):
    """Give each head its columns: (N, L, H E) to (N, H, L, E)."""
    N, L, _ = x.shape
    # BEGIN SOLUTION
    x = x.reshape(N, L, heads, -1)  # (N, L, H E) -> (N, L, H, E)
    return x.transpose(0, 2, 1, 3)  # (N, L, H, E) -> (N, H, L, E)
    # END SOLUTION


# %% check="split-heads"
check("split-heads", split_heads)

# %% [markdown]
# The way back, after attention, takes the same two steps in reverse:
# `x.transpose(0, 2, 1, 3).reshape(N, L, -1)`. In the first of them the
# numbers stay where they are, and only the *strides* change, the steps in
# memory from one index to the next; the reshape then has to copy.
#
# ## 5. The real one
#
# The *engine* is the library that this course takes apart, `minitransformer`
# with its [kernels](glossary.md#kernel). It holds all its attention against a
# naive one, written from the formulas. This is where that one computes
# weights:

# %%
show(quote(softmax_weights, "(1)", "(2)", also=["-np.inf", "isfinite"]))

# %% [markdown]
# It is your Exercise 2. Three things are different:
#
# * The scale can be chosen, and a number can be added to each score:
#   equation (10) of its derivation, which says how far apart i and j are.
# * `initial=-np.inf` lets it take the largest of *no* keys.
# * It keeps $h_i + \log d_i$ as well, which is enough to compute any weight
#   of a row again without the others. Lesson 4 uses this, and shows why the
#   kernels keep the two numbers apart.

# %%
everything = np.ones((6, 6), bool)
heads = [x[None, None] for x in six]  # (1, 1, 6, E)
theirs, *_ = softmax.forward(*heads)
print("off by at most", abs(attend_arrays(*heads, everything) - theirs).max())

# %% [markdown]
# ## 6. What it cannot do
#
# **Predict**: how many numbers are the weights of one head, for a text of
# 4,096 tokens? And by what factor does your function's memory grow if the
# text is twice as long?

# %%
guess("weights", 16_777_216)
guess("twice the tokens", "4 times")

# %%
query, key = random.standard_normal((2, 4096, 4), np.float32)
reveal("weights", (query @ key.T).size)
lengths, yours, engine = (128, 256, 512), [], []
for L in lengths:
    x = random.standard_normal((1, 1, L, 16), np.float32)
    seen = np.ones((L, L), bool)
    yours.append(peak_bytes(partial(attend_arrays, x, x, x, seen)))
    engine.append(peak_bytes(partial(softmax.forward, x, x, x)))
table(
    ("L", "bytes of yours", "of the engine's kernel"),
    zip(lengths, yours, engine, strict=True),
)
reveal("twice the tokens", f"{yours[2] / yours[1]:.2g} times")

# %% [markdown]
# Every pair of tokens gets a number: twice the text, four times the memory,
# and four times the work. The engine's kernel does the same work, but its
# memory grows with the text alone: it never has all weights at once. Lesson
# 4 shows how. To get rid of the work as well, the exponential itself has to
# go: lesson 6.
#
# The scoreboard of the course begins:
#
# | memory | numbers that are kept | work for a token | what it cannot do |
# |---|---|---|---|
# | softmax attention | all keys and values | grows with the text | long texts, cheaply |
#
# But first: what *is* a kernel? Loops ran on one worker here. Next you get
# thousands.

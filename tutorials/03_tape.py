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

# %% [markdown] question="Who calls the backward?" minutes=80 after=[0]
# # A tape in fifty lines
#
# A model is a long formula, and to train it you need its derivative with respect to every
# parameter. You could derive that by hand, once, and do it all again when a line of the model
# changes. Or you let the program *write down* what it computes, operation by operation, and read
# the list backwards: a [tape](glossary.md#tape).
#
# You write one here, small enough to know by heart, and a [check](glossary.md#gradient-check) that
# tells a right [gradient](glossary.md#gradient) from one that is off by a tenth of a per cent.
# Every later lesson is held to that check. Then you read the tape that trains this project's
# models.

# %% tags=["hide-input"]
import heapq
import itertools

import numpy as np

from minitransformer import Tensor
from minitransformer.course import (
    check,
    finite_differences,
    guess,
    quote,
    reveal,
    show,
    six_tokens,
    table,
)
from minitransformer.course.figures import lesson_03 as figures
from minitransformer.function import backpropagate
from minitransformer.functions import arithmetic

random = np.random.default_rng(3)

# %% [markdown]
# ## 1. A diamond
#
# Take $s = x w$, $a = \sin s$, $b = s + w$, $y = a b$. If $x$ moves, $s$ moves; then $a$ and $b$
# both do, and $y$ for two reasons. Write $\bar u$ for the gradient of $y$ with respect to $u$. The
# chain rule for a number $u$ that is *used* several times:
#
# $$\bar u = \sum_{\text{uses } t \text{ of } u} \frac{\partial t}{\partial u}\, \bar t$$
#
# If $u$ and $t$ are arrays, $\partial t / \partial u$ is a matrix: a row for each number of $t$, a
# column for each of $u$. Its transpose brings a gradient of $t$ back to $u$:
#
# $$\bar u = \sum_{\text{uses } t \text{ of } u}
#   \Big(\frac{\partial t}{\partial u}\Big)^{\!\top} \bar t \tag{1}$$
#
# It may be computed once all the $\bar t$ are known: so begin at $y$, where $\bar y = 1$, and go
# back. One walk gives the derivatives with respect to *all* inputs.
#
# A value of our tape knows its *edges*: for each value that it was made of, that value and a
# function `pull`, which turns the gradient here into a share of the gradient there: one term of (1).
# (No `pull` builds the matrix.) A value without edges is a *leaf*: an input, or a parameter.

# %%
made = itertools.count()


class Value:
    """An array that remembers how it was made."""

    def __init__(self, data, *edges):
        self.data = np.asarray(data, np.float64)
        self.edges = edges  # pairs: a value it was made of, and pull
        self.order = next(made)  # 0, 1, 2: older values have a smaller number
        self.grad = None


def add(x, y):
    """The sum x + y."""
    return Value(
        x.data + y.data,
        (x, lambda g: unbroadcast(g, x.data.shape)),
        (y, lambda g: unbroadcast(g, y.data.shape)),
    )


# %%
def multiply(x, y):
    """The product x y, number by number."""
    return Value(
        x.data * y.data,
        (x, lambda g: unbroadcast(g * y.data, x.data.shape)),
        (y, lambda g: unbroadcast(g * x.data, y.data.shape)),
    )


def sine(x):
    """The sine of every number."""
    return Value(np.sin(x.data), (x, lambda g: g * np.cos(x.data)))


# %% [markdown]
# `unbroadcast` brings a gradient to an operand's shape. Until section 2 all shapes are equal, and
# it has nothing to do. There you write the real one. (If you run this cell again later, it takes the
# place of yours: then run yours again, too.)


# %%
def as_it_is(g, shape):
    """Return the gradient: its shape is right."""
    return g


unbroadcast = as_it_is


# %%
def diamond():
    """Make x, w, s, a, b and y anew, without gradients."""
    x, w = Value(0.5), Value(2.0)
    s = multiply(x, w)
    a, b = sine(s), add(s, w)
    return x, w, s, a, b, multiply(a, b)


print("made in this order:", [value.order for value in diamond()])

# %% [markdown]
# In which order may the values be visited, so that each has got all its terms before it passes on?
# A value is made after those that it is made of. So: the newest first, always. That order needs no
# analysis of the graph. It was there all the time.
#
# %% [markdown] exercise="tape-backward"
# ### Exercise 1 (4 points, 20 min): backward
#
# Complete `backward`. It leaves in `.grad` of every value behind `root`, and of `root`, the
# gradient of `sum(root * cotangent)`. (The [cotangent](glossary.md#cotangent) is the $\bar y$ that
# you begin with; for a number it is 1.) Each value passes on its gradient once, when it is
# complete. (The check counts the calls of `pull`.) All `.grad` are `None` before. There may be 3,000
# values in a row, and Python's recursion ends at 1,000.
#
# <details><summary>Hint 1 of 3</summary>
#
# Keep the values that wait in a heap: `heapq.heappush(waiting, (-value.order, value))`. Then
# `heapq.heappop(waiting)` gives the newest.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# For the newest, go through its edges: `g = pull(node.grad)` is one term for the value there. Add
# it to what has come before. A value that waits already must not get into the heap again: why?
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Add by `value.grad = value.grad + g`, not by `+=`: both edges of a sum hand on the very same
# array, and whoever writes into it changes somebody else's gradient. A set `known` says who has
# been in the heap.
#
# </details>


# %% exercise="tape-backward"
def backward(root, cotangent):
    """Leave the gradients of sum(root * cotangent) in .grad, behind root."""
    # BEGIN SOLUTION
    root.grad = cotangent
    waiting, known = [(-root.order, root)], {root}
    while waiting:
        _, node = heapq.heappop(waiting)
        for value, pull in node.edges:
            g = pull(node.grad)
            value.grad = g if value.grad is None else value.grad + g  # (1)
            if value not in known:
                known.add(value)
                heapq.heappush(waiting, (-value.order, value))
    # END SOLUTION


# %% check="tape-backward"
check("tape-backward", backward)

# %%
x, w, s, a, b, y = diamond()
backward(y, np.ones(()))
by_hand = np.cos(1.0) * 2 * 3 + np.sin(1.0) * 2  # both ways to x, by hand
print(f"dy/dx: tape {x.grad:.6f}, by hand {by_hand:.6f}")
show(
    figures.graph(y, {x: "x", w: "w", s: "s", a: "a", b: "b", y: "y"}),
    "graph",
    alt="The diamond as a graph: each box has a value and its gradient, each "
    "edge the term that came back along it; terms that meet are added.",
)

# %% [markdown]
# Check a few sums in the picture: where edges meet, the terms that come back are added.
#
# **Predict**: double a number twenty times, $y \leftarrow y + y$. There are $2^{20}$ paths from
# $x$ to the end. How often is a `pull` called?

# %%
guess("pulls", 40)

# %%
pulls = itertools.count()


def counted(pull):
    """The same, and it is counted."""
    return lambda g: (next(pulls), pull(g))[1]


x = y = Value(1.0)
for _ in range(20):
    y = add(y, y)
    y.edges = [(value, counted(pull)) for value, pull in y.edges]
backward(y, np.ones(()))
print(f"gradient: {x.grad:,.0f}, as many as there are paths")
reveal("pulls", next(pulls))

# %% [markdown]
# A sum over all paths, for the price of the edges. That is all the magic of *reverse mode*, as this
# walk is called: (1) collects before it passes on.
#
# ## 2. What broadcasting does to a gradient
#
# A bias of shape `(3,)` is added to each of four rows. NumPy stretches it: every number is used
# four times. By (1) it collects four terms, so the gradient `(4, 3)` must be *summed* back to
# `(3,)`. [Broadcasting](glossary.md#broadcasting) stretches in two ways: it adds axes on the left,
# and it repeats along axes of size 1.

# %%
g = random.standard_normal((4, 3)).round(1)
show(
    figures.stretched(g),
    "stretched",
    alt="A gradient of four rows and three columns, and below it the sums of "
    "its columns: the gradient of the row that was stretched.",
)

# %% [markdown] exercise="unbroadcast"
# ### Exercise 2 (3 points, 10 min): shrink what was stretched
#
# Complete `unbroadcast`: `g` has the shape of a result, `shape` is that of the operand. Return the
# operand's gradient, in its shape. Shapes may have any number of axes, and `()` is the shape of a
# number.
#
# <details><summary>Hint 1 of 3</summary>
#
# Two sums, one after the other: first over the axes that were added, on the left, then over those
# of size 1.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `g.ndim - len(shape)` axes were added. `sum(axis=...)` takes a tuple of axes; an empty one sums
# nothing.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The axes of size 1 must stay: `keepdims=True` in the second sum, and not in the first.
#
# </details>


# %% exercise="unbroadcast"
def unbroadcast(g, shape):
    """The gradient of an operand of that shape, given that of the result."""
    # BEGIN SOLUTION
    added = g.ndim - len(shape)
    g = g.sum(axis=tuple(range(added)))
    stretched = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return g.sum(axis=stretched, keepdims=True)
    # END SOLUTION


# %% check="unbroadcast"
check("unbroadcast", unbroadcast)

# %% [markdown]
# `add` and `multiply` call the new one already: Python looks a name up when it is used. A few
# operations more, and the tape can do attention.


# %%
def matmul(x, y):
    """The product of matrices, (n, k) @ (k, m) -> (n, m)."""
    return Value(
        x.data @ y.data,
        (x, lambda g: g @ y.data.T),  # (n, m) @ (m, k) -> (n, k)
        (y, lambda g: x.data.T @ g),  # (k, n) @ (n, m) -> (k, m)
    )


def transpose(x):
    """The transpose, (n, k) -> (k, n)."""
    return Value(x.data.T, (x, lambda g: g.T))


def softmax(x, mistake=1.0):
    """Weights of each row of scores; `mistake` spoils the gradient."""
    p = np.exp(x.data - x.data.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)

    def pull(g):
        return mistake * p * (g - (g * p).sum(axis=1, keepdims=True))

    return Value(p, (x, pull))


# %% [markdown]
# (How `pull` of [softmax](glossary.md#softmax) comes about is derived in lesson 4, index by index.)
#
# ## 3. How to test a gradient
#
# Nudge a number, and see what the result does: $(f(x + h) - f(x - h)) / 2h$. A result of many
# numbers needs a cotangent $c$: then test $\sum c\, f(x)$, which is one number. Many a test takes
# $c = 1$, that is `y.sum()`.
#
# **Predict**: take the weights of softmax, sum them all, and ask for the gradient with respect
# to the scores. How large is it?

# %%
guess("largest gradient of the sum", 0)

# %%
scores = random.standard_normal((4, 5))
rows = []
for name, c in (("ones", np.ones((4, 5))), ("random", None)):
    c = random.standard_normal((4, 5)) if c is None else c
    truth = finite_differences(
        lambda c=c: (c * softmax(Value(scores)).data).sum(), scores
    )
    for mistake in (1.0, 2.0):
        leaf = Value(scores)
        backward(softmax(leaf, mistake), c)
        off = float(abs(leaf.grad - truth).max())
        rows.append((name, mistake, float(abs(leaf.grad).max()), off))
table(("cotangent", "backward times", "largest gradient", "off by"), rows)
reveal("largest gradient of the sum", rows[0][2])

# %% [markdown]
# The weights of a row sum to 1, whatever the scores are. So the true gradient of their sum is zero,
# and a [backward](glossary.md#backward) that is wrong by *any* factor passes: it is off by rounding
# only. A random cotangent sees it at once. That is why every check in this course draws one.
#
# %% [markdown] exercise="gradcheck"
# ### Exercise 3 (4 points, 15 min): a check that refuses
#
# Complete `agrees`. `f` makes of an array `x` another, maybe of another shape; `pulled(x, c)`
# claims to be the gradient of `sum(c * f(x))`. Return `True` if it is right, and `False` if any
# number is off by a tenth of a per cent. Draw the cotangent from `random`. A gradient may well be
# zero.
#
# <details><summary>Hint 1 of 3</summary>
#
# `c = random.standard_normal(f(x).shape)`. Then fill an array of `x`'s shape with central
# differences, number by number: `for index in np.ndindex(x.shape)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Take `h = 1e-5`. Much smaller, and `f(x + h) - f(x - h)` loses its digits to rounding; much
# larger, and the curve bends between the two.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `np.allclose(claimed, measured, rtol=1e-5, atol=1e-7)` compares all numbers, those that are zero
# by `atol`.
#
# </details>


# %% exercise="gradcheck"
def agrees(f, pulled, x, random):
    """Whether pulled is the gradient of sum(c f(x)) with respect to x."""
    # BEGIN SOLUTION
    c = random.standard_normal(f(x).shape)
    measured = np.empty_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-5
        change = f(x + step) - f(x - step)
        measured[index] = (c * change).sum() / 2e-5
    return np.allclose(pulled(x, c), measured, rtol=1e-5, atol=1e-7)
    # END SOLUTION


# %% check="gradcheck"
check("gradcheck", agrees)

# %% [markdown]
# ## 4. Attention on your tape
#
# The [head](glossary.md#head) of lesson 0, of six [tokens](glossary.md#token), in your operations;
# then your check looks at its gradients.


# %%
def attention(q, k, v):
    """The output (L, M) for q and k (L, E), v (L, M)."""
    s = matmul(q, transpose(k))  # (L, E) @ (E, L) -> (L, L)
    scale = Value(q.data.shape[1] ** -0.5)
    return matmul(softmax(multiply(s, scale)), v)  # (L, L) @ (L, M)


six = six_tokens()
for at, name in enumerate(six._fields):

    def head(x, at=at):
        """The leaf x in the place of one input, and the output."""
        leaf, values = Value(x), [Value(x) for x in six]
        values[at] = leaf
        return leaf, attention(*values)

    def pulled(x, c, head=head):
        """What the tape says of it."""
        leaf, out = head(x)
        backward(out, c)
        return leaf.grad

    right = agrees(lambda x, h=head: h(x)[1].data, pulled, six[at], random)
    print(f"gradient of {name}: {'right' if right else 'wrong'}")

# %% [markdown]
# **Predict**: all values stay alive while somebody can still call `backward`. How many of them are
# $L \times L$?

# %%
guess("L x L arrays kept", 3)

# %%
waiting, kept = [head(six.value)[1]], []
while waiting:
    kept.append(waiting.pop())
    waiting += [value for value, _ in kept[-1].edges]
reveal("L x L arrays kept", sum(v.data.shape == (6, 6) for v in kept))
print("numbers in all:", sum(v.data.size for v in kept))

# %% [markdown]
# ## 5. The tape that trains
#
# `minitransformer.function` is the same idea. This is its `backward`, whole:

# %%
show(quote(backpropagate))

# %% [markdown]
# You know its plan: a heap, the newest first, terms that are added. `finished` and `uses` are for
# those who want to be told when a leaf is complete: without `finished` they do nothing. `held` lists
# the arrays that somebody may hold: see point 3 below.
#
# And this is one of the functions that go on the tape. `sum_to` is your `unbroadcast`:

# %%
show(quote(arithmetic._Multiply))
print()
show(quote(arithmetic.sum_to))
q, k = (Tensor(x, requires_grad=True) for x in six[:2])
(q @ k.T).backward(np.ones((6, 6)))
print("a Tensor's gradient:", q.grad.numpy()[0].round(2))

# %% [markdown]
# Three things it does that yours does not:
#
# 1. **It keeps less.** Your `Value` keeps its array as long as the tape lives. There a tensor has
#    an array, and the tape has *nodes*, which hold only what `forward` saved. `_Multiply` needs
#    both operands. A sum needs two shapes, so no array stays alive on its behalf.
# 2. **It does less.** A batch of data needs no gradient, so `needs_input_grad` says whom to make
#    one for. And a gradient is dropped as soon as its node has used it: only leaves get a `.grad`.
# 3. **It trusts nobody.** A gradient must have its input's shape, and is brought to its dtype. An
#    array that somebody else may hold is copied before it becomes a `.grad`; you met the reason in
#    the third hint of Exercise 1.
#
# Beyond that a node may have several outputs, and those that nobody used send nothing.
#
# ## What it cannot do
#
# A tape knows the operations that it was given, one at a time. So for attention it keeps what lies
# between them: the $L \times L$ arrays that you counted. It cannot know that they could be made
# again from almost nothing. Somebody has to derive that, and write it as *one* operation with its
# own backward. You will, in the next lesson.

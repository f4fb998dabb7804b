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

# %% [markdown] question="Which of five results would you believe?" minutes=75 after=[3, 7]
# # Numbers that lie
#
# Every lesson so far ended with a number: an error, a time, a share of pairs. You believed it. Here
# are five more. All come out of Python without an error, and four of them lie.
#
# *Sources.* Kahan 1965, *Further Remarks on Reducing Truncation Errors*; Goldberg 1991, *What Every
# Computer Scientist Should Know About Floating-Point Arithmetic*; both are in the [list of
# sources](sources.md).

# %% tags=["hide-input"]
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
from numba import float32
from threadpoolctl import ThreadpoolController

from minitransformer.course import (
    check,
    error,
    guess,
    quote,
    reveal,
    seconds,
    show,
    six_tokens,
    slope,
    suspects,
    table,
)
from minitransformer.course.figures import lesson_15 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import recurrent
from minitransformer_kernels.cpu import num_threads
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.linear.reference import phi

random = np.random.default_rng(15)


# %%
def by_pairs(q, k, v, feature_map="elu"):
    """Causal linear attention of (H, L, E) and (H, L, M), in float64."""
    q, k = (phi(np.float64(x), feature_map) for x in (q, k))
    a = np.tril(q @ k.swapaxes(1, 2))
    return a @ v / a.sum(axis=2, keepdims=True)


# %%
ones = np.ones(20_000_000, np.float32)
left, x = np.float32(0), random.standard_normal(4000, np.float32)
x[2000] = 1e5
for number in (*x, *-x):
    left += number
truth = random.standard_normal((2, 64, 4)) * [[[1e7]], [[1]]]
got = truth * [[[1]], [[0]]]  # nobody has written the second head
times, room = [], np.empty_like(ones)
for more in (1, 2):
    start = time.perf_counter()
    np.add(ones, more, out=room)
    times.append(time.perf_counter() - start)
far = random.standard_normal((3, 1, 1, 64, 16), np.float32)
far[:2] -= 30  # queries and keys
out, d, _ = recurrent.forward(*far)
off = error(out[0], wanted := by_pairs(*far[:, 0]))
results = [
    (1, "20 million ones, added up", f"{ones.cumsum()[-1]:,.0f}"),
    (2, "4,000 numbers, added and taken away again", f"{left:.3f}"),
    (3, "the error of an attention with two heads", error(got, truth)),
    (4, "how many times as long + 1 takes as + 2", times[0] / times[1]),
    (5, f"the error of an attention with d near {d.max():.0e}", off),
]

# %%
table(("", "claim", "number"), results)

# %% [markdown]
# (Errors are relative to the largest number, as in the other lessons. $d = \varphi(q) \cdot Z$ is
# what lesson 7 divides by.) **Predict**: which of the five is true?

# %%
guess("the true result", 5)

# %% [markdown]
# ## 1. Twenty-four bits
#
# A float32 has 24 bits for its digits, wherever the point stands. From $2^{24} = 16{,}777{,}216$ on
# the next number is 2 away. So every operation rounds its exact result $a$ to a number nearby:
#
# $$\mathrm{fl}(a) = a\,(1 + \delta), \qquad |\delta| \le 2^{-24} \tag{A}$$
#
# (where $a$ is neither too large nor too small for float32; lesson 4's $\delta$ was another one).
# $2^{24} + 1$ becomes $2^{24}$: that is result 1. `cumsum` counts one by one, and stands still.
# Lesson 6's feature, $e^{-17.5}$, which disappeared when 1 was taken away and added again, is the
# same lie in small.
#
# A [state](glossary.md#state) adds up [tokens](glossary.md#token), as lesson 7's $Z$ does. Let here
# $Z_t = \mathrm{fl}(Z_{t-1} + x_t)$, for any numbers $x_t$. Each step is off by at most
# $2^{-24} |Z_t|$, so in all (but for products of errors, which are tiny)
#
# $$|\text{error of } Z_L| \le 2^{-24} \sum_t |Z_t| \tag{B}$$
#
# Add numbers of one sign and similar size: $Z_t$ grows like $t$, the sum in (B) like $L^2 / 2$, and
# $Z_L$ like $L$. So relative to $Z_L$ the bound grows like $L$. But a $\delta$ may have either
# sign. **Predict**: the error itself, relative to $Z_L$, too, grows like $L^p$. What is $p$?

# %%
guess("p of the relative error", 1)

# %% [markdown]
# Can a sum do better? What a step loses is known. $y_t$ was due; what has arrived is
# $Z_t - Z_{t-1}$. The rest, $\lambda_t$, waits for the next turn:
#
# $$y_t = x_t + \lambda_{t-1} \qquad Z_t = \mathrm{fl}(Z_{t-1} + y_t) \qquad
#   \lambda_t = y_t - (Z_t - Z_{t-1}) \tag{C}$$
#
# That is a [compensated sum](glossary.md#compensated-sum).

# %% [markdown] exercise="carried"
# ### Exercise 1 (3 points, 8 min): carry on what was lost
#
# Write (C) as a [kernel](glossary.md#kernel): a [thread](glossary.md#thread)
# [owns](glossary.md#owner) the sum of column `cuda.grid(1)`. `x` (L, M) is float32, and so are the
# sums; `out` (M,) is written to. [Blocks](glossary.md#block) have 32 threads, and the last may have
# more of them than there are columns left.
#
# <details><summary>Hint 1 of 3</summary>
#
# Inside the guard, `if m < x.shape[1]:`, begin with `total = lost = float32(0)`. A `0.0` would be a
# float64, and hide the problem.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# For each token: `due = x[t, m] + lost`, then `new = total + due`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `lost = due - (new - total)`; only then does `total` become `new`.
#
# </details>


# %% exercise="carried"
@cuda.jit
def carried(x, out):
    """A thread owns out[m], the sum of column m."""
    # BEGIN SOLUTION
    m = cuda.grid(1)
    if m < x.shape[1]:
        total = lost = float32(0)
        for t in range(x.shape[0]):
            due = x[t, m] + lost  # (C)
            new = total + due  # (C)
            lost = due - (new - total)  # (C)
            total = new
        out[m] = total
    # END SOLUTION


# %% check="carried"
check("carried", carried)

# %% [markdown]
# A compiler may undo that. `fastmath=True` lets it calculate as if numbers were real ones: then
# $Z_t - Z_{t-1}$ *is* $y_t$, and $\lambda_t$ is 0. **Predict**: your kernel, compiled so, loses as
# much as a sum that is made `"one by one"`, in `"chunks of 64"`, or `"compensated"`?

# %%
guess("with fastmath it loses as much as", "compensated")


# %%
def launched(kernel, x):
    """What a kernel sums up."""
    out = np.full(x.shape[1], np.nan, np.float32)
    kernel[-(-out.size // 32), 32](x, out)
    return out


def one_by_one(x):
    """Each number is added to all before."""
    return x.cumsum(axis=0)[-1]


def in_chunks(x):
    """First 64 at a time, then their sums."""
    return one_by_one(x.reshape(-1, 64, x.shape[1]).cumsum(axis=1)[:, -1])


# %%
x = random.random((1 << (12 if FAST else 16), 64), np.float32)
sizes = [L for p in range(6, 17, 2) if (L := 1 << p) <= len(x)]
ways = {
    "float16, one by one": lambda x: one_by_one(np.float16(x)),
    "one by one": one_by_one,
    "chunks of 64": in_chunks,
    "compensated": partial(launched, carried),
}
errors, bounds = {name: [] for name in ways}, []
for L in sizes:
    sums = x[:L].cumsum(axis=0, dtype=np.float64)
    exact = sums[-1]
    bounds.append(2.0**-24 * sums.sum(axis=0).max() / exact.max())  # (B)
    for name, way in ways.items():
        errors[name].append(error(way(x[:L]), exact))

# %%
lost = error(launched(cuda.jit(fastmath=True)(carried.function), x), exact)
rows = [(name, errors[name][-1]) for name in ways]
table((f"{L:,} numbers", "error"), [*rows, ("with fastmath", lost)])
nearest, _ = min(rows, key=lambda row: abs(row[1] - lost))
told = nearest if lost > 0 else "unknown, as exercise 1 is not written"
reveal("with fastmath it loses as much as", told)
reveal("p of the relative error", slope(sizes, errors["one by one"]))
show(
    figures.lengths(sizes, errors, bounds), "lengths",
    alt="Float16 stalls, float32 errs like L^0.5, compensated hardly",
)  # fmt: skip

# %% [markdown]
# Step $t$ is off by a number that grows like $t$ and has a random sign. Random signs mostly cancel.
# What is left is the distance of a random walk, in which squares add up: with steps like $t$ it
# grows like $\sqrt{\sum_t t^2}$, so like $L^{3/2}$. Divide by $Z_L$, which grows like $L$: $p$ is
# near $1/2$.
#
# In [chunks](glossary.md#chunk), $Z_t$ in (B) is small for most steps: one more reason for lesson
# 8. A float16 has 11 bits. From 2,048 on its numbers are 2 apart, so numbers below 1 are all lost:
# its sum stands still.
#
# And `fastmath`? Here a compiler for CPUs took it at its word; this says nothing of one for GPUs.
# Many kernels of this package have it; one whose answer hangs on its brackets must not.
#
# ## 2. Differences
#
# Take a number $b$ away from $Z$, both rounded already. Even if that adds no error: the errors that
# $Z$ and $b$ have, relative to what is left, are up to
#
# $$2^{-24}\, \frac{|Z| + |b|}{|Z - b|} \tag{D}$$
#
# Result 2: a loud token came in, and took the last digits of $Z$ from its neighbours. It leaves;
# its rounding stays. Here is a [window](glossary.md#window) over the last 200 tokens, whose sum
# adds the newcomer and takes away the oldest:

# %%
z = random.standard_normal(2000, np.float32)
z[800] = 1e5
exact = np.convolve(np.float64(z), np.ones(200))[: len(z)]
total, updated = np.float32(0), []
for t in range(len(z)):
    total += z[t]
    if t >= 200:
        total -= z[t - 200]
    updated.append(total)
anew = [z[max(0, t - 199) : t + 1].sum() for t in range(len(z))]
off = {"updated": updated - exact, "summed anew": anew - exact}
show(
    figures.window(800, 200, off), "window",
    alt="After a loud token the updated sum stays off, the other does not",
)  # fmt: skip
print(f"near 1e5, floats are {np.spacing(z[800]):.4f} apart", end="; ")
print(f"later, the window's sum is near {abs(exact[1000:]).mean():.0f}")

# %% [markdown]
# While the loud token is inside, both sums are off by a few such steps. It leaves, and only one of
# them recovers. So the [backward](glossary.md#backward) in `kernels/recurrent` computes the state
# $S$ again, and takes no token away from it.
#
# And result 5? $d$ is a sum of positive numbers. Nothing is taken away, so it loses no more than
# the sums of section 1, as near to zero as float32 goes, $10^{-38}$. What is small is not
# inaccurate; only what *became* small by a difference is. (A [guard](glossary.md#guard) that adds
# $10^{-6}$ to such a $d$ would make a lie of it.)
#
# But the answer is $n / d$, with $n = S^\top \varphi(q)$, and values have both signs. So $n$ *is* a
# difference, and an answer near zero has fewer right digits than the large ones:

# %%
reveal("the true result", 5)
print(f"a single number: off by up to {abs(out[0] / wanted - 1).max():.0e}")

# %% [markdown]
# So result 5 is true as it is meant, relative to the largest answer. Small ones deserve less trust.
#
# With weights of both signs, $d$ is a difference, too. Positive weights that sum to 1 give a mean:
# no answer is beyond the largest value. One line checks that, and needs no truth. The six tokens,
# with features and with raw products:

# %%
Q, K, V = (x[None] for x in six_tokens())
print(f"largest value: {abs(V).max():.1f}")
for feature_map in ("elu", "identity"):
    largest = abs(by_pairs(Q, K, V, feature_map)).max()
    print(f"largest answer with {feature_map}: {largest:.1f}")

# %% [markdown]
# ## 3. One number for many
#
# In result 3 one [head](glossary.md#head) of two is missing. `error`, which most lessons use,
# divides the largest difference by the largest number of *all*, and the first head is loud. That is
# a choice: it is right where numbers are alike. And it has a second hole. **Predict**: `off` is
# nan. What are `off > 1e-5` and `off < 1e-5`?

# %%
guess("off > 1e-5", True)
guess("off < 1e-5", False)

# %%
off = error(np.full(4, np.nan), np.ones(4))
reveal("off > 1e-5", off > 1e-5)
reveal("off < 1e-5", off < 1e-5)

# %% [markdown]
# So a test that says `if off > 1e-5: fail()` passes what is not even a number. Demand what must be
# so: `assert off < 1e-5`.

# %% [markdown] exercise="worst"
# ### Exercise 2 (3 points, 8 min): the worst row
#
# `got` and `truth` are (..., L, M), with any number of axes. The error of a row is its largest
# difference, over the largest absolute number of that row in `truth`. Return the largest error of
# all rows. A row without any difference has error 0, and any other where `truth` is all 0 has an
# infinite one. Where `got` holds a nan or an infinity, or has another shape, all is infinitely
# wrong: return `np.inf`.
#
# <details><summary>Hint 1 of 3</summary>
#
# Compare shapes first: NumPy would stretch a row, and find it right.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `abs(got - truth).max(axis=-1)` has a number for each row. `np.where` takes care of zeros; `with
# np.errstate(divide="ignore", invalid="ignore"):` keeps NumPy silent.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# A nan anywhere in a row makes its error nan; ask `np.isnan(rows).any()` before `rows.max()`.
#
# </details>


# %% exercise="worst"
def worst(got, truth):
    """The largest error of any row, relative to that row."""
    # BEGIN SOLUTION
    if got.shape != truth.shape:
        return np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        off = abs(got - truth).max(axis=-1)
        scale = abs(truth).max(axis=-1)
        rows = np.where(off == 0, 0, off / scale)
    return np.inf if np.isnan(rows).any() else rows.max()
    # END SOLUTION


# %% check="worst"
check("worst", worst)

# %% [markdown]
# ## 4. Clocks
#
# In result 4, `+ 1` and `+ 2` are equally much work. But the first one meets `room` as it is new:
# the system looks for its memory only when somebody writes there. First runs also compile, open
# files, fill caches. So let each function run once before. Other things happen later: another
# program starts, and what is timed then looks slow. If two functions take turns, it disturbs both.
# So divide within a round, where both met the same machine: the median time of `f` may come from
# another round than that of `g`. And a single interruption, however long, moves a mean, but hardly
# the median of many.

# %% [markdown] exercise="times-as-long"
# ### Exercise 3 (3 points, 9 min): a fair race
#
# Return how many times as long `g` takes as `f`. `clock()` returns seconds. Run each once to warm
# up. Then, in each of `rounds` rounds, time `f`, then `g`, and divide. Return the median of these
# ratios. (The check brings its own clock, on machines that are out to mislead you.)
#
# <details><summary>Hint 1 of 3</summary>
#
# Read the clock before and after *each* run; what has passed is the difference.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# An inner loop, `for function in (f, g):`, collects two times.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `np.median(ratios)`, of a list with one ratio a round.
#
# </details>


# %% exercise="times-as-long"
def times_as_long(f, g, clock, rounds):
    """The median ratio of the seconds of g to those of f."""
    # BEGIN SOLUTION
    f(), g()
    ratios = []
    for _ in range(rounds):
        times = []
        for function in (f, g):
            start = clock()
            function()
            times.append(clock() - start)
        ratios.append(times[1] / times[0])
    return np.median(ratios)
    # END SOLUTION


# %% check="times-as-long"
check("times-as-long", times_as_long)

# %%
one, two = (partial(np.add, ones, more, out=room) for more in (1, 2))
ratio = times_as_long(two, one, time.perf_counter, 21)
table(("", "times as long as + 2"), [("+ 1", ratio)])

# %% [markdown]
# A library such as NumPy's BLAS multiplies matrices on all cores. If some core has other work, all
# others wait for its part. **Predict**: with as many busy programs beside it as there are cores,
# how many times as long does a product on *all* cores take, compared with *one*? (The next cells
# start these programs, one for each core that you may use, and end them some seconds later.)

# %%
guess("all cores, as many times as long as one", 0.5)


# %% tags=["hide-input"]
@contextmanager
def busy(programs):
    """Programs that do nothing, as fast as they can, for a minute."""
    code = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    run = partial(subprocess.Popen, [sys.executable, "-c", code])
    started = [run() for _ in range(programs)]
    try:
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


# %%
def product(threads):
    """A product of matrices on so many threads."""
    with pool.limit(limits=threads):
        return A @ A


pool, cores, rows = ThreadpoolController(), num_threads(), []
A = random.random((512, 512), np.float32)
on_one, on_all = partial(product, 1), partial(product, cores)
for programs in (0, cores):
    with busy(programs):
        rows.append((programs, *seconds(on_one, on_all)))
one, every = rows[1][1:]
table(("busy programs", "one thread", f"{cores} threads"), rows)
reveal("all cores, as many times as long as one", every.median / one.median)

# %% [markdown]
# (Median and quartiles. If your machine was busy anyway, or a container grants less than its cores,
# the first row shows it, too.) More threads may be slower, and then you have timed the other
# programs more than the product. So `seconds`, which times the lessons, takes one thread for linear
# algebra, and turns, as you do.
#
# ## 5. A test that can fail
#
# Now a claim that needs more than a number. Nine functions `attend(query, key, value)` claim to be
# [causal](glossary.md#causal) linear attention, with $\varphi = \mathrm{elu} + 1$. One is the
# kernel below, lesson 7's with a $Z$ for each thread; another is as right, and rounds otherwise.
# Seven lie. (The numbers (1) to (4) are those of lesson 7's equations. `TINY` is
# $1.2 \cdot 10^{-38}$, the smallest float32 that has all its 24 bits.)

# %%
show(quote(suspects.attend, "(1)", "(2)", "(3)", "(4)", also=("n = d",)))

# %% [markdown]
# A test that cannot fail proves nothing. Ask of each line of yours: which lie would it catch?
# Random numbers near zero, in one head of 32 tokens, catch none of the seven, as you will see.

# %% [markdown] exercise="lies"
# ### Exercise 4 (5 points, 18 min): find the liars
#
# `attend` takes query and key (H, L, E), value (H, L, M), and returns (H, L, M), all float32; E is
# 16 at most. It promises this for queries and keys from -20 to a million, and values from minus a
# million to a million. Draw such inputs. Return `True` if it lies, `False` if it may be trusted.
# `by_pairs` above is the truth; `worst` is yours. An error of `1e-4` is no lie, but rounding.
#
# <details><summary>Hint 1 of 3</summary>
#
# Think of what lied above: features far below zero; something large that comes and leaves; a quiet
# head beside a loud one; nan. And of what else may go wrong in a kernel: a number too large for
# `exp`; a length that no [tile](glossary.md#tile) fits.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Three inputs are enough, all with two heads and 37 tokens, the values of one head 100,000 times as
# large: queries and keys near zero; near -18; near zero, but the last few *keys* are 100,000.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# For each: `if not worst(attend(q, k, v), by_pairs(q, k, v)) < 1e-4: return True`.
#
# </details>


# %% exercise="lies"
def lies(attend):
    """Whether attend is anything but causal linear attention."""
    # BEGIN SOLUTION
    random = np.random.default_rng(0)
    for low, high, late in ((-2, 2, 0), (-19, -18, 0), (-2, 2, 1e5)):
        q, k = random.uniform(low, high, (2, 2, 37, 4)).astype(np.float32)
        v = random.standard_normal((2, 37, 3), np.float32)
        v[0] *= 1e5  # loud, beside a quiet head
        k[:, 30:] += late
        if not worst(attend(q, k, v), by_pairs(q, k, v)) < 1e-4:
            return True
    return False
    # END SOLUTION


# %% check="lies"
check("lies", lies)

# %% [markdown]
# Which input catches whom? The first column is a test written in haste:


# %%
def draw(heads, length, low=-2, high=2, late=0, loud=1):
    """Query, key, value; the last keys grow by `late`, head 0 by `loud`."""
    q, k = random.uniform(low, high, (2, heads, length, 4)).astype(np.float32)
    v = random.standard_normal((heads, length, 3), np.float32)
    k[:, -7:] += late
    v[0] *= loud
    return q, k, v


inputs = {
    "1 head,\n32 tokens": draw(1, 32),
    "2 heads,\n37 tokens": draw(2, 37),
    "2 heads,\none loud": draw(2, 32, loud=1e5),
    "1 head,\nnear -8": draw(1, 32, -9, -7),
    "1 head,\nnear -18": draw(1, 32, -19, -18),
    "1 head,\nnear 100": draw(1, 32, 80, 120),
    "1 head,\na loud end": draw(1, 32, late=1e5),
}

# %%
kernels, drawn = map(suspects.suspect, range(1, 10)), inputs.values()
errors = [[worst(f(*x), by_pairs(*x)) for x in drawn] for f in kernels]
show(
    figures.caught(list(inputs), errors, 1e-4), "caught",
    alt="Errors of nine kernels on seven inputs; the plain one catches none",
)  # fmt: skip
x = inputs["2 heads,\none loud"]
off = error(suspects.suspect(9)(*x), by_pairs(*x))
print(f"kernel 9, one loud head, by `error`: {off:.0e}")

# %% [markdown]
# (`inf` is what `worst` makes of a nan.) A loud head tells on kernel 9 only if each row has a scale
# of its own: `error`, with one for all, has not seen it. And what did each of them do?

# %%
for number, (lie, _) in enumerate(suspects.SUSPECTS, 1):
    print(f"Kernel {number} {lie or 'is right'}.")
    print(suspects.confession(number))

# %% [markdown]
# None of these lines looks like a lie. Plant such edits in your own kernel, and see whether your
# test fails: that is [mutation testing](glossary.md#mutation-testing). This package's kernels are
# tested so.
#
# ## What it cannot do
#
# * No test proves a kernel. It shows that some lies are not told, on some inputs.
# * A tolerance hides what is below it: in the figure, kernel 6 is off by little in most columns.
#   Someone's data may be the column that you have not drawn.
# * The truth was float64, which has 53 bits, and lies as well, later.
# * A fair clock says which of two kernels is faster, not whether both are slow.
#
# **Next question: how fast could a kernel be?** That is lesson 16.

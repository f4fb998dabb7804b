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

# %% [markdown] question="How can a kernel run without a GPU?" minutes=60 after=[1]
# # How a block becomes a loop
#
# In lesson 1 the 32 [threads](glossary.md#thread) of a
# [block](glossary.md#block) waited for each other, on a processor that cannot
# play 32 threads at a time. Here is how. You will do by hand what the engine
# does with every [kernel](glossary.md#kernel) of this course, and then read
# what it made of yours. Whoever has cut a kernel once knows what a
# [barrier](glossary.md#barrier) promises, and what it does not.
#
# The kernel that you mended in lesson 1 is our example: in each round every
# number becomes the average of itself and its right neighbour, in a ring.

# %%
from pathlib import Path

import numpy as np
from numba import float32

from minitransformer.course import (
    check,
    guess,
    quote,
    quote_loop,
    reveal,
    seconds,
    show,
)
from minitransformer.course.exercises.lesson_02 import bend
from minitransformer.course.figures import lesson_02 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import KernelError
from minitransformer_kernels.cuda import cuda

THREADS = 32


# %%
@cuda.jit
def smooth(x, rounds, out):
    """Takes x and out (L,), with L a multiple of THREADS."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    for _ in range(rounds):
        tile[t] = value
        cuda.syncthreads()
        value = (value + tile[(t + 1) % THREADS]) / float32(2)
        cuda.syncthreads()
    out[i] = value


# %% [markdown]
# ## 1. The loop that does not work
#
# One worker who plays all threads: surely that is a loop over the threads,
# with the kernel's text inside?


# %%
def one_loop(x):
    """Smooth one block for one round: each thread from beginning to end."""
    threads = len(x)
    tile, out = np.zeros(threads), np.zeros(threads)
    for t in range(threads):
        tile[t] = x[t]
        out[t] = (x[t] + tile[(t + 1) % threads]) / 2
    return out


# %% [markdown]
# **Predict**: for the four numbers 0, 4, 8, 12 the right answer is 2, 6, 10,
# 6. How many of them does `one_loop` get right?

# %%
guess("right answers", 1)

# %%
x = np.array([0.0, 4.0, 8.0, 12.0])
right = (x + np.roll(x, -1)) / 2
print("right   ", right)
print("one loop", one_loop(x))
reveal("right answers", int((one_loop(x) == right).sum()))

# %% [markdown]
# Thread 0 reads what thread 1 has not written yet. The barrier between the
# two lines has no place in that loop: nobody can wait for somebody whose
# turn comes later.
#
# So turn it around. *Between* two barriers the order of the threads does not
# matter: if it did, that would be a [race](glossary.md#race). So cut the
# kernel at its barriers into [regions](glossary.md#region). Let all threads
# run the first region, one after the other; then all the second. When a
# region's loop is over, every thread has come to the barrier. That is all
# that it asks.

# %%
show(
    figures.order(),
    "order",
    alt="Four threads and two regions: on a GPU side by side with a barrier "
    "between; on one core one region after the other; in one loop over the "
    "threads both regions are mixed, which breaks the promise.",
)

# %% [markdown] exercise="smooth-loops"
# ### Exercise 1 (3 points, 12 min): cut it by hand
#
# Write `smooth` as Python loops: over blocks, over rounds, over threads. Play
# each thread by itself. A block has `threads` threads, which need not be 32.
# There is one `tile` for a block. And mind `value`: each thread has its own,
# and needs it again in a later region, when the loop has moved on to other
# threads.
#
# <details><summary>Hint 1 of 3</summary>
# Four regions: before the rounds, two in each round, after the rounds. Each
# gets a loop over the threads of its own.
# </details>
# <details><summary>Hint 2 of 3</summary>
# The loop over rounds stands outside the loops over threads, since barriers
# are in it. `value` becomes an array with one element for each thread.
# </details>
# <details><summary>Hint 3 of 3</summary>
# For each `first` in `range(0, len(x), threads)`: fill `value[t]` from
# `x[first + t]`; in each round one loop with `tile[t] = value[t]`, then one
# with `value[t] = (value[t] + tile[(t + 1) % threads]) / 2`; in the end fill
# `out[first + t]`.
# </details>


# %% exercise="smooth-loops"
def smooth_loops(x, rounds, threads):
    """Do what `smooth` does to x (L,), in blocks of `threads`: (L,)."""
    out = np.zeros(len(x))
    # BEGIN SOLUTION
    for first in range(0, len(x), threads):
        tile, value = np.zeros(threads), np.zeros(threads)
        for t in range(threads):
            value[t] = x[first + t]
        for _ in range(rounds):
            for t in range(threads):
                tile[t] = value[t]
            for t in range(threads):
                value[t] = (value[t] + tile[(t + 1) % threads]) / 2
        for t in range(threads):
            out[first + t] = value[t]
    # END SOLUTION
    return out


# %% check="smooth-loops"
check("smooth-loops", smooth_loops)

# %% [markdown]
# ## 2. Three questions about every variable
#
# You have just compiled a kernel. A program that does it has to answer three
# questions, and none of them by looking at the numbers:
#
# 1. **[Uniform](glossary.md#uniform) or [varying](glossary.md#varying)?** What
#    is made of arguments, constants and the block's number is the same for all
#    threads of the block: uniform. It is computed once. `rounds` is, so one
#    loop over rounds serves all. What depends on `threadIdx`, or was read from
#    an array, is varying: each thread may have another.
# 2. **Where to cut?** At each barrier; and before and after a loop that has
#    one inside, since that loop must stand outside the loops over threads.
# 3. **What lives across a cut?** A varying variable that is set in one
#    region and used in a later one gets a [slot](glossary.md#slot): an
#    element for each thread, like your `value`. But not if it is as easily
#    made again, as `t` is.

# %%
show(quote(bend))

# %% [markdown] exercise="plan"
# ### Exercise 2 (3 points, 10 min): mark the regions
#
# Answer the three questions for `bend`, whose lines are numbered.
#
# * `varying`: for `t`, `first`, `own`, `left`, `half` and `right` in this
#   order, 1 if it is varying, 0 if it is uniform.
# * `regions`: for the lines (0) to (8), the region 1, 2, 3 or 4 that it
#   belongs to; 0 if it is done once for the block.
# * `slots`: for the same six variables, 1 if it needs a slot.
#
# <details><summary>Hint 1 of 3</summary>
# Two of the six variables know nothing of the thread. Their lines are done
# once.
# </details>
# <details><summary>Hint 2 of 3</summary>
# Three barriers make four regions. Count the barriers above a line.
# </details>
# <details><summary>Hint 3 of 3</summary>
# `own` is set in line (2) and used in line (5); `left` in (4) and (5);
# `right` in (7) and (8). Between which of these is a barrier?
# </details>


# %% exercise="plan"
def plan():
    """Return varying (6), regions (9) and slots (6)."""
    # BEGIN SOLUTION
    varying = [1, 0, 1, 1, 0, 1]
    regions = [1, 0, 1, 1, 2, 3, 0, 4, 4]
    slots = [0, 0, 1, 1, 0, 0]
    return varying, regions, slots
    # END SOLUTION


# %% check="plan"
check("plan", plan)

# %% [markdown]
# The check did not look up an answer: it asked the engine's compiler. After a
# [launch](glossary.md#launch) on NumPy arrays a kernel can show its loop, and
# each line of it keeps its number:

# %%
x = np.arange(32, dtype=np.float32)
bend[1, THREADS](x, np.float32(2), np.empty_like(x))
show(quote_loop(bend))

# %% [markdown]
# `half` and `first` stand outside all loops over the threads, `own` and
# `left` are kept in slots, and `t` is made again in each region. (`stack`
# makes an array on the stack, `BLOCK_X` is the number of threads; section 3
# tells what `u(...)` and `# lanes` are for.)
#
# ## 3. What the engine makes of yours
#
# Now `smooth`, as a picture: each region has a colour. (Give it any kernel of
# yours.)

# %%
x = np.arange(64, dtype=np.float32)
out = np.empty_like(x)
smooth[2, THREADS](x, 3, out)
print("as yours:", np.allclose(out, smooth_loops(x, 3, THREADS)))
show(
    figures.regions(smooth),
    "regions",
    alt="The kernel smooth with its four regions in colours, and beside it "
    "the emitted loops in which they stand.",
)

# %% [markdown]
# It is your Exercise 1. Three things it does that yours does not:
#
# * `t` and `i` get no slot: they are made again where they are needed.
# * It takes a range of blocks, `first_block` to `last_block`. Blocks know
#   nothing of each other, so each core of your machine gets a range.
# * `# lanes` is a promise to the compiler: the turns of this loop do not
#   disturb each other. Then it may do eight at a time, in
#   [SIMD](glossary.md#simd) instructions. It is true, because a kernel in
#   which it is false has a race. (`u(...)` marks an index that cannot be
#   negative, as far as the compiler can tell.)
#
# **Predict**: how many times as fast as your loops will it be?

# %%
guess("times as fast", 1000)

# %%
blocks = 64 if FAST else 4096
x = np.ones(blocks * THREADS, np.float32)
out = np.empty_like(x)
compiled, yours = seconds(
    lambda: smooth[blocks, THREADS](x, 10, out),
    lambda: smooth_loops(x, 10, THREADS),
)
print("compiled:", compiled)
print("yours:   ", yours)
reveal("times as fast", round(yours.median / compiled.median))

# %% [markdown]
# Much of this factor is Python's slowness. The rest comes from this:
# neighbouring threads read neighbouring numbers, and what a GPU wants is what
# SIMD wants, too. (With few blocks the launch itself takes most of the time,
# and the factor is smaller.)
#
# ## 4. Threads that hand each other something
#
# The 32 threads of a [warp](glossary.md#warp) can exchange numbers without
# [shared memory](glossary.md#shared-memory).
# `cuda.shfl_up_sync(mask, value, offset)` gives every [lane](glossary.md#lane)
# the `value` of the lane `offset` below it. (The mask says who takes part: all
# 32.) This kernel makes running sums in five steps.


# %%
@cuda.jit
def scan(x, out):
    """Takes x (32,); out[i] becomes x[0] + ... + x[i]."""
    lane = cuda.threadIdx.x
    value = x[lane]
    offset = 1
    while offset < 32:
        left = cuda.shfl_up_sync(0xFFFFFFFF, value, offset)
        if lane >= offset:
            value += left
        offset *= 2
    out[lane] = value


# %% [markdown]
# After the first step a lane holds the sum of up to two numbers, after the
# second of up to four, after the fifth of all up to its own. There is no barrier in
# sight, and still a loop over the lanes may not run through: a lane must get
# what its neighbour had *before* the step.

# %% [markdown] exercise="running-sums"
# ### Exercise 3 (2 points, 8 min): send, meet, take
#
# Write `scan` as loops over lanes, for any number of lanes. Each step is
# three: every lane *sends* what it has, all *meet*, each *takes* what it
# wants. So where is the cut, and what needs a slot?
#
# <details><summary>Hint 1 of 3</summary>
# `value` needs a slot: you have it already. What is sent needs one too.
# </details>
# <details><summary>Hint 2 of 3</summary>
# In each step two loops over the lanes. The first fills `sent[lane]`.
# </details>
# <details><summary>Hint 3 of 3</summary>
# The second loop: `if lane >= offset: value[lane] += sent[lane - offset]`.
# Then double the offset.
# </details>


# %% exercise="running-sums"
def running_sums(x):
    """Return the running sums of x (W,), as `scan` makes them: (W,)."""
    lanes = range(len(x))
    value, sent = np.array(x), np.zeros(len(x))
    # BEGIN SOLUTION
    offset = 1
    while offset < len(x):
        for lane in lanes:
            sent[lane] = value[lane]
        for lane in lanes:
            if lane >= offset:
                value[lane] += sent[lane - offset]
        offset *= 2
    # END SOLUTION
    return value


# %% check="running-sums"
check("running-sums", running_sums)

# %%
x = np.arange(32, dtype=np.float32)
out = np.empty_like(x)
scan[1, 32](x, out)
print("as yours:", np.allclose(out, running_sums(x)))
show(quote_loop(scan, also=["sent_of[", "kept", "while", "value += "]))

# %% [markdown]
# There it is: `sent_of`, a cut, and `warp_up`, which takes from somebody
# else's slot.
#
# ## 5. What is refused
#
# What cannot be compiled is refused before it runs; a barrier that not all
# threads reach is found when it happens.
#
# **Predict**: which of these five are refused, if two blocks of 32 threads
# get the numbers 0 to 63? Ask of each barrier: is what decides about it
# uniform? If not, do the threads of a block part *in this launch*? Write your
# guess as a text of letters, like `"a, b"`.


# %%
@cuda.jit
def a(x, out):
    """Keeps its numbers in a list."""
    numbers = [x[0], x[1]]
    out[cuda.grid(1)] = numbers[0]


@cuda.jit
def b(x, out):
    """Has a tile as long as the array."""
    tile = cuda.shared.array(x.size, float32)
    tile[cuda.threadIdx.x] = x[0]
    out[cuda.grid(1)] = tile[cuda.threadIdx.x]


# %%
@cuda.jit
def c(x, out):
    """Lets only the first block wait."""
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    out[cuda.grid(1)] = x[0]


@cuda.jit
def d(x, out):
    """Waits as often as its number says."""
    for _ in range(x[cuda.grid(1)]):
        cuda.syncthreads()
    out[cuda.grid(1)] = 1


@cuda.jit
def e(x, out):
    """Lets threads with small numbers go early."""
    if x[cuda.grid(1)] < 100:
        return
    cuda.syncthreads()
    out[cuda.grid(1)] = 1


# %%
guess("refused", "a, b, d")

# %%
refused = []
for kernel in (a, b, c, d, e):
    x = np.arange(64)
    try:
        kernel[2, THREADS](x, np.empty_like(x))
        print(f"{kernel.__name__}: runs")
    except KernelError as mistake:
        print(f"{kernel.__name__}: {type(mistake).__name__}")
        where, _, what = str(mistake).partition(": ")
        print(f"   {Path(where).name}: {what}")
        refused.append(kernel.__name__)
reveal("refused", ", ".join(refused))

# %% [markdown]
# * `a`: a GPU's thread has no memory to ask for. `b`: the size of a shared
#   array has to be known before the kernel is compiled.
# * `c` is fine: whether to wait is uniform, so the whole block waits or none
#   of it does.
# * `d`: thread 0 never comes to the barrier where thread 1 waits. No program
#   can know that from the text alone, so the block asks at each barrier who
#   is there.
# * `e` is lucky: *all* 64 numbers are below 100, so nobody is left to wait.
#   Whether a barrier is right can depend on the data; write yours so that it
#   does not.
#
# One thing a loop over blocks can never do: let a block wait for another. It
# would wait for one whose turn has not come. On a GPU the same can happen,
# when there are more blocks than fit at once. Whoever needs that launches a
# second kernel.
#
# ## What you take home
#
# * A barrier cuts a kernel into regions, and each becomes a loop over the
#   threads.
# * Uniform values are computed once. Varying ones live in a
#   [register](glossary.md#register), in a slot if they cross a cut, or are
#   made again.
# * This is an old idea: MCUDA (Stratton et al. 2008) did it for C.
#   [All the steps](../kernels/cpu/README.md) are on a page of their own.
#
# Now you can write kernels and run them. Each computes something *forward*. To
# train, somebody has to know how the loss changes with every number that went
# in, and call the right [backward](glossary.md#backward) kernels in the right
# order. Who? That is lesson 3.

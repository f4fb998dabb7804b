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

# %% [markdown] question="What does one thread do?" minutes=80 after=[]
# # Your first kernel
#
# In lesson 0 you wrote attention as loops: one worker, one number after the
# other. A GPU has thousands of workers. They all run the same text at the
# same time, and each must find out what *its* work is. Such a text is a
# [kernel](glossary.md#kernel), each worker a
# [thread](glossary.md#thread).
#
# You will write six kernels, each a few lines long. You need no GPU: on
# NumPy arrays the same text runs as a compiled loop (lesson 2 shows how).
# And you will break them: here a kernel that reads past the end of an array
# is stopped, with an error that names the line and the thread. On a GPU it
# would read whatever lies there.

# %%
from pathlib import Path

import numpy as np
from numba import float32

from minitransformer.course import check, guess, quote, reveal, show, watch
from minitransformer.course.figures import lesson_01 as figures
from minitransformer_kernels import KernelError, checked, microscope
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.layers import optimizer

THREADS = 32
# Section 3: the size of a shared array must be a number or a name, no sum.
ONE_MORE = THREADS + 1

# %% [markdown]
# ## 1. Who am I?
#
# Threads come in [blocks](glossary.md#block). You [launch](glossary.md#launch)
# a [grid](glossary.md#grid) of blocks, all of one size. A thread can ask which
# block it is in, and which thread of that block it is. From both it makes a
# number that no other thread has:
#
# $$i = \mathrm{blockIdx} \cdot \mathrm{blockDim} + \mathrm{threadIdx}
#   \tag{1}$$
#
# `cuda.grid(1)` is short for (1). A kernel returns nothing. It writes to
# arrays that it is given.


# %%
@cuda.jit
def who_am_i(block, thread):
    """Each thread signs its own element."""
    i = cuda.grid(1)  # (1)
    block[i] = cuda.blockIdx.x
    thread[i] = cuda.threadIdx.x


block, thread = np.empty((2, 12), np.int64)
who_am_i[3, 4](block, thread)  # 3 blocks of 4 threads
print("block ", block)
print("thread", thread)

# %% [markdown]
# The square brackets say how many blocks of how many threads; the round ones
# hold the arguments.
#
# Twelve numbers, three blocks of four: that came out even. Most sizes don't.
#
# **Predict**: with blocks of 32 threads, how many threads have nothing to do
# if there are 50 numbers?

# %%
guess("idle threads", 14)

# %%
blocks = -(-50 // THREADS)  # rounded up
show(
    figures.threads(50, THREADS),
    "threads",
    alt="Two blocks of 32 threads over 50 numbers; the last 14 are grey.",
)
reveal("idle threads", blocks * THREADS - 50)

# %% [markdown]
# The grey ones run as well. If they touch `x[50]`, they touch memory that is
# not theirs. An `if` that keeps them out is called a
# [guard](glossary.md#guard).

# %% [markdown] exercise="scale"
# ### Exercise 1 (1 point, 5 min): a thread owns a number
#
# Scaling by $1/\sqrt E$ was the first step of attention. Write it as a
# kernel: `out[i] = factor * x[i]`, by thread i. It is launched with blocks
# of 32 threads, as many as it takes for all numbers: the last often has
# threads without a number.
#
# <details><summary>Hint 1 of 3</summary>
# The thread's own number comes from (1), as in `who_am_i`.
# </details>
# <details><summary>Hint 2 of 3</summary>
# A thread has work if its number is below `x.size`.
# </details>
# <details><summary>Hint 3 of 3</summary>
# Three lines: `i = cuda.grid(1)`, then `if i < x.size:`, and below it the
# assignment.
# </details>


# %% exercise="scale"
@cuda.jit
def scale(x, factor, out):
    """Takes x (L,) and a number; out (L,) is written to."""
    # BEGIN SOLUTION
    i = cuda.grid(1)
    if i < x.size:
        out[i] = factor * x[i]
    # END SOLUTION


# %% check="scale"
check("scale", scale)

# %% [markdown]
# Take the guard out and run both cells again: that message is worth seeing
# once. It counts blocks and threads along three axes, x first, since both may
# have so many: block (1, 0, 0) is number 1. The check ran your kernel in
# *[checked mode](glossary.md#checked-mode)*, which looks at every access of
# every thread. (Your own kernels are checked at their first launch anyway.) It
# counts them as well: a thread that does the work of all is refused.
#
# ## 2. A thread may own more
#
# What a thread [owns](glossary.md#owner) is up to you: a number, a row, a
# column. It should be something that *nobody else writes*. Then no thread ever
# waits for another. That is the first of three patterns of this course, and we
# call it the **owner**.

# %% [markdown] exercise="row-sums"
# ### Exercise 2 (1 point, 7 min): a thread owns a row
#
# In lesson 0 each query divided by the sum of its row. Let thread r add up
# row r of a matrix `x` (R, C), number by number, and write the sum to
# `out[r]`.
#
# Begin the sum with `float32(0)`: a bare `0.0` is float64 to a GPU, which
# most GPUs are slow at.
#
# <details><summary>Hint 1 of 3</summary>
# One thread walks along one row: a `for` loop over `x.shape[1]` inside the
# guard.
# </details>
# <details><summary>Hint 2 of 3</summary>
# Add into a variable. It is the thread's own: a GPU keeps it in a
# [register](glossary.md#register), its fastest memory. `out` holds nothing
# yet that you could add to.
# </details>
# <details><summary>Hint 3 of 3</summary>
# `r = cuda.grid(1)`, the guard `if r < x.shape[0]:`, in it
# `total = float32(0)`, the loop with `total += x[r, c]`, and after the loop
# `out[r] = total`.
# </details>


# %% exercise="row-sums"
@cuda.jit
def row_sums(x, out):
    """Takes x (R, C); out (R,) is written to."""
    # BEGIN SOLUTION
    r = cuda.grid(1)
    if r < x.shape[0]:
        total = float32(0)
        for c in range(x.shape[1]):
            total += x[r, c]
        out[r] = total
    # END SOLUTION


# %% check="row-sums"
check("row-sums", row_sums)

# %% [markdown] exercise="transpose"
# ### Exercise 3 (2 points, 7 min): two axes
#
# Scores need $K^\top$. Blocks may have two axes: `cuda.grid(2)` gives a
# thread's numbers along x and along y. Write the transpose of `x` (R, C):
# each thread moves one number. Blocks are 8 threads along x and 4 along y;
# there are enough of them for C numbers along x and R along y.
#
# <details><summary>Hint 1 of 3</summary>
# x runs along a row, so it is a column number: `c, r = cuda.grid(2)`.
# </details>
# <details><summary>Hint 2 of 3</summary>
# Two numbers, two limits: the guard has to ask about both.
# </details>
# <details><summary>Hint 3 of 3</summary>
# `if r < x.shape[0] and c < x.shape[1]:` and then `out[c, r] = x[r, c]`.
# </details>


# %% exercise="transpose"
@cuda.jit
def transpose(x, out):
    """Takes x (R, C); out (C, R) is written to."""
    # BEGIN SOLUTION
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[c, r] = x[r, c]
    # END SOLUTION


# %% check="transpose"
check("transpose", transpose)

# %% [markdown]
# Right does not mean fast. 32 threads of a block, a
# [warp](glossary.md#warp), ask for memory together, and memory comes in
# [sectors](glossary.md#sector) of 32 bytes: eight float32 numbers. When the
# 32 threads want 32 numbers in a row, four sectors hold them.
#
# **Predict**: your `transpose` reads along rows. It is launched in blocks of
# 32 along x and 8 along y, so that a warp is one row. How many sectors does
# a warp touch when it *writes*?

# %%
guess("sectors of a write", 32)

# %%
x = np.ones((32, 32), np.float32)
launch = transpose[(1, 4), (32, 8)]
report = microscope.inspect(launch, x, x.T.copy(), compiled=False)
for line in report.lines:
    for site in line.sites:
        what = "writes" if site.traffic.writes else "reads"
        print(what, site.traffic.worst, "sectors a warp:", line.text.strip())
reveal("sectors of a write", report.total("global").worst)

# %% [markdown]
# The [microscope](glossary.md#microscope) runs the kernel and counts.
# Neighbouring threads write to neighbouring *rows*, so each drags a whole
# sector along for four bytes. Whoever reads columns instead has the same
# trouble at the other end. The way out needs memory that threads share.
#
# ## 3. What neighbours share
#
# The threads of a block have a small, fast memory in common:
# [shared memory](glossary.md#shared-memory). `cuda.shared.array(size, type)`
# declares an array there, the same one for the whole block. A block cannot
# see another block's.
#
# But threads run in no particular order. If you read what your neighbour
# writes, you must know that it *has* written.
# `cuda.syncthreads()` is a [barrier](glossary.md#barrier): no thread of the
# block goes on before all have come to it. **All**: a barrier inside an `if`
# that some threads skip is an error.

# %%
show(
    figures.sharing(),
    "sharing",
    alt="Two blocks write their numbers to tiles, wait at a barrier, and read "
    "the neighbour's; the first of a block needs a number of the one before.",
)

# %% [markdown] exercise="difference"
# ### Exercise 4 (3 points, 12 min): your left neighbour
#
# Write `out[i] = x[i] - x[i - 1]`, with a 0 left of the first number. Each
# number of `x` shall be read once by its own thread, into the
# [tile](glossary.md#tile); the neighbour finds it there. One is missing:
# thread 0 of a block needs the last number of the block before, so it fetches
# two.
#
# <details><summary>Hint 1 of 3</summary>
# Let thread t put `x[i]` into `tile[t + 1]`. Who fills `tile[0]`, and with
# what, in the first block?
# </details>
# <details><summary>Hint 2 of 3</summary>
# Fill (guarded), barrier (never guarded), then read and write (guarded).
# </details>
# <details><summary>Hint 3 of 3</summary>
# `if t == 0: tile[0] = x[i - 1] if i > 0 else float32(0)`, on two lines.
# After the barrier: `out[i] = tile[t + 1] - tile[t]` where `i < x.size`.
# </details>


# %% exercise="difference"
@cuda.jit
def difference(x, out):
    """Takes x (L,); out (L,) is written to. Blocks have THREADS threads."""
    tile = cuda.shared.array(ONE_MORE, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    # BEGIN SOLUTION
    if i < x.size:
        tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else float32(0)
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[t + 1] - tile[t]
    # END SOLUTION


# %% check="difference"
check("difference", difference)

# %% [markdown]
# Two threads that touch one element, one of them writing, with nothing in
# between to order them: that is a [race](glossary.md#race). The result then
# depends on who is faster. In checked mode it is an error, even where the
# result happened to be right. (Only two threads that write the *same* value
# are let through: it does not matter which is faster.)
#
# ## 4. A block adds up
#
# Now all threads of a block work on *one* number: a sum. First every thread
# puts its number into the tile. Then half of the threads add the other
# half's numbers to their own; then half of those; until one is left.

# %%
show(
    figures.halving((3, 1, 4, 1, 5, 9, 2, 6)),
    "halving",
    alt="Eight numbers are added up in three steps, each behind a barrier; "
    "4, 2 and 1 threads work, the others are grey.",
)

# %% [markdown] exercise="total"
# ### Exercise 5 (3 points, 12 min): a block sum
#
# Add up all of `x`, in as many blocks of `THREADS` threads as it takes. Each
# block adds its part by halves, and its thread 0 adds that to `out[0]`, which
# is 0 before.
#
# All blocks add to the *same* element. `out[0] += ...` reads, adds and
# writes; another block may write in between, and its number is lost.
# `cuda.atomic.add(out, 0, number)` does all three as one step: an
# [atomic](glossary.md#atomic) addition.
#
# <details><summary>Hint 1 of 3</summary>
# Threads beyond the end take part in the halving: what must they put into
# the tile?
# </details>
# <details><summary>Hint 2 of 3</summary>
# `half = THREADS // 2`, and a `while half > 0:` loop. In it thread t adds
# `tile[t + half]` to `tile[t]` if `t < half`. Who has to wait for whom
# before the next turn?
# </details>
# <details><summary>Hint 3 of 3</summary>
# There are two barriers: one between filling and the loop, one in the loop
# after the addition, outside its `if`. Then `half //= 2`. After the loop,
# `if t == 0: cuda.atomic.add(out, 0, tile[0])`, on two lines.
# </details>


# %% exercise="total"
@cuda.jit
def total(x, out):
    """Takes x (L,); its sum is added to out (1,)."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    # BEGIN SOLUTION
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            tile[t] += tile[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, tile[0])
    # END SOLUTION


# %% check="total"
check("total", total)

# %% [markdown]
# ## 5. The barrier that everybody forgets
#
# This kernel smooths: in every round each number becomes the average of
# itself and its right neighbour, in a ring of 32. There is a barrier between
# writing and reading. It gives the right answer for one round. And for two?


# %%
@cuda.jit
def hasty(x, rounds, out):
    """Takes x and out (L,), with L a multiple of THREADS."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    for _ in range(rounds):
        tile[t] = value
        cuda.syncthreads()
        value = (value + tile[(t + 1) % THREADS]) / float32(2)
    out[i] = value


x = np.arange(64, dtype=np.float32)
for rounds in (1, 2):
    try:
        hasty[2, THREADS](x, rounds, np.empty_like(x))
        print(f"rounds = {rounds}: no mistake found")
    except KernelError as mistake:
        print(f"rounds = {rounds}: {type(mistake).__name__}")
        where, _, what = str(mistake).partition(": ")
        print(f"   {Path(where).name}: {what}")

# %% [markdown] exercise="mended"
# ### Exercise 6 (2 points, 7 min): mend the race
#
# Write the loop of `hasty` without its race. Which thread can be in round 2
# while its neighbour is still in round 1, and what does it overwrite there?
#
# <details><summary>Hint 1 of 3</summary>
# The message names two lines and two threads. What orders them in round 1
# does not order them across the end of the round.
# </details>
# <details><summary>Hint 2 of 3</summary>
# A fast thread writes `tile[t]` of the next round while a slow one still
# reads it for this one.
# </details>
# <details><summary>Hint 3 of 3</summary>
# Copy the loop, and put a second `cuda.syncthreads()` at its end.
# </details>


# %% exercise="mended"
@cuda.jit
def mended(x, rounds, out):
    """Takes x and out (L,), with L a multiple of THREADS."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    # BEGIN SOLUTION
    for _ in range(rounds):
        tile[t] = value
        cuda.syncthreads()
        value = (value + tile[(t + 1) % THREADS]) / float32(2)
        cuda.syncthreads()
    # END SOLUTION
    out[i] = value


# %% check="mended"
check("mended", mended)

# %% [markdown]
# ## 6. Four suspects
#
# **Predict**: which of these four does the checked mode refuse, if two
# blocks of 32 threads get the numbers 0 to 63? It refuses what can go wrong
# *in this launch*. Write your guess as a text of letters, like `"a, b"`.


# %%
@cuda.jit
def a(x, out):
    """Has no guard."""
    out[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def b(x, out):
    """Shifts in place."""
    i = cuda.grid(1)
    if i < 63:
        x[i] = x[i + 1]


# %%
@cuda.jit
def c(x, out):
    """Goes through a tile, without a barrier."""
    tile = cuda.shared.array(THREADS, float32)
    tile[cuda.threadIdx.x] = x[cuda.grid(1)]
    out[cuda.grid(1)] = tile[cuda.threadIdx.x]


@cuda.jit
def d(x, out):
    """Waits, where it has something to do."""
    if x[cuda.grid(1)] > 10:
        cuda.syncthreads()
        out[cuda.grid(1)] = 1


# %%
guess("refused", "b, d")

# %%
refused = []
for kernel in (a, b, c, d):
    try:
        with checked():
            kernel[2, THREADS](x.copy(), np.empty_like(x))
        print(f"{kernel.__name__}: nothing wrong")
    except KernelError as mistake:
        print(f"{kernel.__name__}: {type(mistake).__name__}")
        refused.append(kernel.__name__)
reveal("refused", ", ".join(refused))

# %% [markdown]
# 64 numbers fill two blocks, so `a` is lucky: give it 50 and it fails. In
# `c` every thread reads what it wrote itself, and needs nobody.
#
# ## 7. One that trains models
#
# This kernel is the engine's [gradient](glossary.md#gradient) descent, whole:

# %%
show(quote(optimizer.descend_kernel, docstring=True))

# %% [markdown]
# It is your Exercise 1. Three things are done that yours does not do:
#
# * It writes to what it reads. That is no race: each element has one owner,
#   who reads first and writes then.
# * The function that launches it turns `rate` and `decay` (which pulls every
#   parameter a little towards 0) into the array's own type. A Python number
#   would make the whole line float64.
# * That function flattens an array of any shape, and refuses one for which
#   that needs a copy: the update would go to the copy.
#
# It says (1) as well; there the number is that of the update in its own
# derivation.
#
# **Predict**: it is launched in blocks of 512. How many threads are idle for
# a parameter of 1,000 numbers?

# %%
guess("idle in descend", 24)

# %%
parameter, gradient = np.ones((2, 1000), np.float32)
with watch() as launched:
    optimizer.descend(parameter, gradient, rate=0.1)
(launch,) = launched
print(launch.blocks[0], "blocks of", launch.threads[0], "threads")
reveal("idle in descend", launch.blocks[0] * launch.threads[0] - 1000)

# %% [markdown]
# ## What you take home
#
# * A kernel says what one thread does. The thread finds its work by (1), and
#   a guard keeps out those that have none.
# * Own what you write, and nobody waits. Where threads share, a barrier
#   stands between writing and reading, **and** between reading and the next
#   writing.
# * Where blocks meet in one element, the addition is atomic.
#
# The transpose that reads rows *and* writes rows, through a tile, lies
# [under the microscope](../kernels/microscope/README.md).
#
# Want to go on at once? [From a kernel to a gradient](first_kernel.md) writes
# another one, gives it a [backward](glossary.md#backward), and lets it learn.
#
# One thing these puzzles did not explain: `mended` has 32 threads that wait
# for each other, and it ran on your processor, which cannot play 32 threads
# at a time. A plain loop over the threads would get stuck at the first
# barrier. How did it run? That is the next lesson.

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

# %% [markdown] question="How fast could it be?" minutes=85 after=[1, 4, 7]
# # Under the microscope
#
# A [kernel](glossary.md#kernel) is right. Is it fast? A clock says how long it took, on this
# machine, today; not how long it *should* take, nor what is in the way. Counting says more, and
# needs no GPU: what a kernel asks of memory stands in its text and its
# [launch](glossary.md#launch).
#
# You will count, find the highest speed that the counts allow, and then climb: one computation in
# five versions, the last of which asks hundreds of times less of memory than the first.
#
# *Sources.* Williams, Waterman and Patterson 2009, *Roofline: an Insightful Visual Performance
# Model for Multicore Architectures*; Ruetsch and Micikevicius 2009, *Optimizing Matrix Transpose in
# CUDA*; NVIDIA, *CUDA C++ Programming Guide*, and the data sheet of the H100.

# %% tags=["hide-input"]
from functools import partial

import numpy as np
from numba import float32

from minitransformer.course import (
    check,
    error,
    guess,
    quote,
    reveal,
    seconds,
    show,
    table,
    watch,
)
from minitransformer.course.figures import lesson_16 as figures
from minitransformer.course.measuring import FAST
from minitransformer_kernels import chunked, microscope, recurrent
from minitransformer_kernels.cuda import cuda

# %% [markdown]
# ## 1. What a warp asks for
#
# 32 [threads](glossary.md#thread) of a [block](glossary.md#block), a
# [warp](glossary.md#warp), ask for memory together. What that costs depends on their 32 addresses
# alone.
#
# *Global memory*, where arrays are, gives and takes [sectors](glossary.md#sector) of 32 bytes. Each
# that a warp touches is moved, whole.
#
# *[Shared memory](glossary.md#shared-memory)* has 32 [banks](glossary.md#bank): word $w$, of 4
# bytes, lies in bank $w \bmod 32$. In one turn, a [wavefront](glossary.md#wavefront), each bank
# gives one word, to all who want that word. So a warp takes as many turns as its busiest bank has
# *different* words to give.

# %% [markdown] exercise="costs"
# ### Exercise 1 (2 points, 8 min): count as the microscope does
#
# `address` holds the addresses, in bytes, of the float32 numbers that the
# [lanes](glossary.md#lane) of a warp ask for: at most 32, each a multiple of 4, in any order.
# Return how many sectors that moves in global memory, and how many wavefronts it takes in shared
# memory. No loop.
#
# <details><summary>Hint 1 of 3</summary>
#
# Byte a lies in sector `a // 32`, and in word `a // 4`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `np.unique` leaves each sector, or each word, once.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `np.bincount(words % 32)` counts the words of each bank, if `words` has each word once.
#
# </details>


# %% exercise="costs"
def costs(address):
    """Sectors, and wavefronts."""
    # BEGIN SOLUTION
    words = np.unique(address // 4)
    sectors = len(np.unique(address // 32))
    wavefronts = np.bincount(words % 32).max()
    return sectors, wavefronts
    # END SOLUTION


# %% check="costs"
check("costs", costs)

# %% [markdown]
# In lesson 1 you turned a matrix: each write of a column moved 32 sectors where four would do. The
# way out is a detour: a block brings a [tile](glossary.md#tile) of
# 32 x 32 numbers to shared memory; each of its warps reads a *column* there, and writes it as a
# row. **Predict**: how many turns does a column of that tile take? And if its rows had 33 words,
# the last of them unused?

# %%
guess("turns of a column, rows of 32 words", 32)
guess("turns of a column, rows of 33 words", 1)

# %%
turns = {}
for pitch in (32, 33):
    column = 4 * (pitch * np.arange(32) + 5)  # 32 addresses, in bytes
    _, turns[pitch] = costs(column)
reveal("turns of a column, rows of 32 words", turns[32])
reveal("turns of a column, rows of 33 words", turns[33])
show(
    figures.banks(turns), "banks",
    alt="With rows of 32 words a column is one bank; with 33 it has all",
)  # fmt: skip

# %% [markdown] exercise="turned"
# ### Exercise 2 (3 points, 12 min): a transposition without waste
#
# Write the transpose of `x` (R, C) to `out` (C, R) by way of a tile. Blocks have 32 x 32 threads;
# there are enough of them for C threads along `threadIdx.x`, and R along `threadIdx.y`. A thread
# moves one number in, and another one out. Both ways, neighbouring threads take neighbours of a row; and no two lanes of a
# warp meet in one bank.
#
# <details><summary>Hint 1 of 3</summary>
#
# `tile = cuda.shared.array((TILE, ...), float32)`, with a whole number for the dots. On the way in
# all is as in lesson 1, but that `tile[ty, tx]` is written, with `tx, ty = cuda.threadIdx.x,
# cuda.threadIdx.y`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Where `out` is written, `tx` runs along a row of `out`: along a column of `x`. So the number that
# a thread writes comes from row `cuda.blockIdx.y * TILE + tx` of `x`. From which column?
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Way in, guarded; barrier, not guarded; then new `r` and `c`, the same guard for them, and in it
# `out[c, r] = tile[tx, ty]`.
#
# </details>

# %% exercise="turned"
TILE = 32


@cuda.jit
def turned(x, out):
    """Takes x (R, C); out (C, R) is written to."""
    # BEGIN SOLUTION
    tile = cuda.shared.array((TILE, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        tile[ty, tx] = x[r, c]
    cuda.syncthreads()
    r = cuda.blockIdx.y * TILE + tx
    c = cuda.blockIdx.x * TILE + ty
    if r < x.shape[0] and c < x.shape[1]:
        out[c, r] = tile[tx, ty]
    # END SOLUTION


# %% check="turned"
check("turned", turned)

# %% [markdown]
# ## 2. The roof
#
# Say a kernel does $f$ operations on numbers, and moves $m$ bytes to and from global memory. The
# GPU does at most $P$ operations a second, and moves at most $B$ bytes, both at the same time. ($P$
# counts an addition with its multiplication, one instruction, as two.) With $i = f / m$, the [arithmetic intensity](glossary.md#arithmetic-intensity), the kernel then makes
# at most
#
# $$\min(P,\ i B) \tag{1}$$
#
# operations a second: the [roofline](glossary.md#roofline). Below $i = P / B$, the *ridge*, memory
# is what it waits for.
#
# Which bytes? If no cache helps, all sectors that are asked for. A bound takes the fewest, those
# *needed*: each number once.
#
# (In lessons 7 and 8, $i$ was a [token](glossary.md#token), $m$ a column and
# $B$ held rows. Here a token is $t$, and a column $c$.)

# %% [markdown] exercise="roof"
# ### Exercise 3 (2 points, 5 min): under which roof?
#
# `f` and `m` (K,) are the operations and bytes of K kernels, `P` and `B` numbers. Return for each,
# as arrays (K,): the speed by (1), in operations a second; the seconds that it takes at that speed;
# and whether memory is the limit: True below the ridge, not at it. No loop.
#
# <details><summary>Hint 1 of 3</summary>
#
# The minimum of a number and each element of an array: `np.minimum`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Seconds are operations over operations a second.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Memory is the limit where `i < P / B`; that comparison is the array.
#
# </details>


# %% exercise="roof"
def roof(f, m, P, B):
    """Speed, seconds, and whether memory is the limit."""
    # BEGIN SOLUTION
    i = f / m
    speed = np.minimum(P, i * B)  # (1)
    return speed, f / speed, i < P / B
    # END SOLUTION


# %% check="roof"
check("roof", roof)

# %%
h100 = microscope.GPUS["H100"]
P, B = h100.teraflops * 1e12, h100.bandwidth * 1e9
print(f"H100, by its data sheet: P = {P:.3g} operations a second (float32),")
print(f"B = {B:.3g} bytes a second; ridge at {P / B:.3g} operations a byte")

# %% [markdown]
# Twenty operations for each *byte*, eighty for each number: a kernel with fewer leaves the units
# that compute idle for some of the time.
#
# ## 3. A ladder
#
# Our kernel is lesson 7's memory that fades, by $\gamma$ with each token:
#
# $$S_t = \gamma\, S_{t-1} + k_t v_t^\top \qquad o_t = S_t^\top q_t \tag{A}$$
#
# The [state](glossary.md#state) has $E$ rows and $M$ columns. A token costs five operations for each
# of its numbers: three for a new $S$, two for the answer. They are three instructions, as the
# product with $\gamma$ stands alone: so (A) makes at most 5/6 of $P$, its ridge lies at 16.7. It must
# fetch $q$, $k$ and $v$, and write $o$: $4\,(2E + 2M)$ bytes. For $E = M = 64$ that is $i = 20$,
# beyond its ridge. Who comes there?
#
# **Rungs 1 and 2: the state lies in global memory.** A thread [owns](glossary.md#owner) column $c$
# of one [head](glossary.md#head), $h$.

# %%
WIDTH, TOKENS = 64, 16  # rows of the state, E; tokens of a tile


@cuda.jit
def in_memory(query, key, value, gamma, S, out):
    """S (H, E, M) goes on from what it holds; the others as in lesson 7."""
    c, h = cuda.grid(1), cuda.blockIdx.y
    if c < value.shape[2]:
        for t in range(query.shape[1]):
            v, n = value[h, t, c], float32(0)
            for e in range(WIDTH):
                s = gamma * S[h, e, c] + key[h, t, e] * v  # (A)
                S[h, e, c] = s
                n += s * query[h, t, e]  # (A)
            out[h, t, c] = n


# %% [markdown]
# The same text, launched twice, in blocks of 32 threads, as rung 3. For rung 1 each *column* of $S$ is one piece of memory: a thread has
# its own numbers side by side. For rung 2 each *row* is one piece: a warp has its 32 numbers side
# by side.
#
# **Rung 3: the state lies in [registers](glossary.md#register)**, as in your kernel of lesson 7,
# which declared it as [local memory](glossary.md#local-memory).


# %%
@cuda.jit
def in_registers(query, key, value, gamma, out):
    """A thread keeps its column of S."""
    S = cuda.local.array(WIDTH, float32)
    c, h = cuda.grid(1), cuda.blockIdx.y
    if c < value.shape[2]:
        for e in range(WIDTH):
            S[e] = float32(0)
        for t in range(query.shape[1]):
            v, n = value[h, t, c], float32(0)
            for e in range(WIDTH):
                S[e] = gamma * S[e] + key[h, t, e] * v  # (A)
                n += S[e] * query[h, t, e]  # (A)
            out[h, t, c] = n


# %% [markdown]
# Its keys and queries are still fetched badly: all 32 lanes want the *same* number, and for these 4
# bytes a sector is moved.

# %% [markdown] exercise="fading-tiles"
# ### Exercise 4 (5 points, 20 min): rungs 4 and 5, in tiles
#
# Write (A) so that a block fetches each number of `query` and `key` (H, L, WIDTH) once: together
# its threads bring TOKENS tokens to the two tiles, then each works on its column, and so on to the
# end. `value` and `out`, which is written to, are (H, L, M). A block has 32 or 64 threads; a
# thread's column is `cuda.grid(1)`, its head `cuda.blockIdx.y`. There may be fewer columns than
# threads.
#
# The check counts: you may move a tenth more sectors than the fewest, and an access to shared
# memory takes one turn.
#
# <details><summary>Hint 1 of 3</summary>
#
# A loop over tiles: `for start in range(0, query.shape[1], TOKENS):`. The last tile may have fewer
# tokens, `min(TOKENS, query.shape[1] - start)`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# For each token of the tile, thread x brings numbers x, x + `cuda.blockDim.x`, ... of its key and
# query. Threads without a column help: only the work between the two
# barriers is guarded.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# Fetch, barrier, work, barrier, all in the loop over tiles. The work is that of `in_registers`,
# with `k_tile[t, e]` for a key, and with token `start + t` of `value` and `out`.
#
# </details>


# %% exercise="fading-tiles"
@cuda.jit
def in_tiles(query, key, value, gamma, out):
    """A block fetches TOKENS tokens at a time."""
    q_tile = cuda.shared.array((TOKENS, WIDTH), float32)
    k_tile = cuda.shared.array((TOKENS, WIDTH), float32)
    S = cuda.local.array(WIDTH, float32)
    x, c, h = cuda.threadIdx.x, cuda.grid(1), cuda.blockIdx.y
    # BEGIN SOLUTION
    for e in range(WIDTH):
        S[e] = float32(0)
    for start in range(0, query.shape[1], TOKENS):
        for t in range(min(TOKENS, query.shape[1] - start)):
            for e in range(x, WIDTH, cuda.blockDim.x):
                q_tile[t, e] = query[h, start + t, e]
                k_tile[t, e] = key[h, start + t, e]
        cuda.syncthreads()
        if c < value.shape[2]:
            for t in range(min(TOKENS, query.shape[1] - start)):
                v, n = value[h, start + t, c], float32(0)
                for e in range(WIDTH):
                    S[e] = gamma * S[e] + k_tile[t, e] * v
                    n += S[e] * q_tile[t, e]  # answer
                out[h, start + t, c] = n
        cuda.syncthreads()
    # END SOLUTION


# %% check="fading-tiles"
check("fading-tiles", in_tiles)

# %% [markdown]
# Rung 4 launches it with 32 threads a block, so that a head's 64 columns are two blocks, and each
# fetches all keys. Rung 5 launches it with 64.
#
# **Predict** before you count: how many times the bytes of the next rung does each of rungs 1 to 4
# move? (On rungs 1 and 2 a token reads and writes all of $S$.) Write four numbers, as a text.

# %%
guess("bytes over the next rung's", "8, 2, 8, 2")

# %%
rungs = {  # where S is; the kernel, a block's threads, the order of S's axes
    "memory, by columns": (in_memory, 32, (0, 2, 1)),
    "memory, by rows": (in_memory, 32, (0, 1, 2)),
    "registers": (in_registers, 32, None),
    "tiles, 32 threads": (in_tiles, 32, None),
    "tiles, 64 threads": (in_tiles, 64, None),
}


def launches(heads, length):
    """Each rung's launch, and its arguments."""
    random = np.random.default_rng(16)
    qkv = random.standard_normal((3, heads, length, WIDTH), np.float32) / 8
    for kernel, threads, order in rungs.values():
        S = np.zeros((heads, WIDTH, WIDTH), np.float32)
        state = () if order is None else (S.transpose(order),)
        launch = kernel[(WIDTH // threads, heads), threads]
        yield launch, (*qkv, np.float32(0.9), *state, np.empty_like(qkv[0]))


# %%
look = partial(microscope.inspect, gpu="H100", compiled=False)
counted, outputs = [], []
for launch, arguments in launches(2, 32):
    counted.append(look(launch, *arguments).roofline)
    launch(*arguments)
    outputs.append(arguments[-1])
f, m = np.array([(one.flops, one.moved) for one in counted], float).T
_, uncached, memory = roof(f, m, 5 / 6 * P, B)
columns = "bytes a token", "operations a byte", "µs, no cache", "memory-bound"
rows = (m / (2 * 32)).astype(int), f / m, 1e6 * uncached, memory
table(("rung", *columns), zip(rungs, *rows, strict=True))
factors = ", ".join(f"{factor:.1f}" for factor in m[:-1] / m[1:])
reveal("bytes over the next rung's", factors)
print(f"rung 1 over 5: {m[0] / m[4]:.4g}; ridge of (A): {5 / 6 * P / B:.3g}")
print(f"needed: {counted[4].needed // 64:,} bytes a token")
print(f"outputs differ by {max(error(o, outputs[0]) for o in outputs):.0e}")

# %%
show(
    figures.roofline(h100, dict(zip(rungs, f / m, strict=True)), 5 / 6),
    "roofline",
    alt="Four kernels climb the slope of memory; a fifth is beyond the ridge",
)  # fmt: skip

# %% [markdown]
# All do the same operations; what they fetch differs. Eight times less from rung 1 to 2 is $S$
# alone, 262,144 bytes to 32,768: $q$ and $k$ cost 8,192 up to rung 3, $v$ and $o$ always 512. A tile's
# $q$ and $k$ cost 512, on rung 4 twice. Rung 5 moves what is needed and no more: fewer bytes
# bring nobody higher.
#
# Its count is a bound of all five: caches may have what is fetched again, so the others can do
# better than their own. But waiting, of which later, makes all of them slower. **Predict**: which
# rung is the fastest on your CPU, and which the slowest?

# %%
guess("fastest here", 5)
guess("slowest here", 1)

# %%
size = (1, 64) if FAST else (8, 512)  # heads, tokens
times = seconds(*(partial(one, *its) for one, its in launches(*size)))
for name, time in zip(rungs, times, strict=True):
    print(f"{name}: {time}")
medians = [time.median for time in times]
reveal("fastest here", int(np.argmin(medians)) + 1)
reveal("slowest here", int(np.argmax(medians)) + 1)
grown = size[0] * size[1] / (2 * 32)  # all counts grow with the tokens
show(
    figures.ladder(
        dict(zip(rungs, grown * uncached, strict=True)),
        dict(zip(rungs, times, strict=True)), "H100",
    ),
    "ladder",
    alt="Times by counts fall with each rung; beside them those of this CPU",
)  # fmt: skip

# %% [markdown]
# (Both for 8 heads of 512 tokens.) The clock measured another machine. On a CPU a block's threads
# become lanes of [SIMD](glossary.md#simd) instructions, if neighbours have neighbouring numbers.
# Those of rung 1 have not: each number is fetched alone. The other rungs differ little, as a cache
# holds $S$, 16 KiB, and keys. So do not tune for a GPU by a CPU's clock: count.
#
# ## 4. Real kernels under the microscope
#
# Three things lesson 7's real kernel does that yours does not: two threads share a column, as 64
# numbers are many registers; it takes four tokens at a time; and it has a denominator,
# $d_t = q_t \cdot Z_t$. (It has no $\gamma$.) The products of $q_t$ and $Z_t$ wait in shared memory, a
# row for each token, until 16 threads each add up a row. Below, (2) and (3) are lesson 7's, `q_i` is
# our $q_t$. Thread `x` of 64 `columns`, `y` of two, has half a column of $S$, 32 `rows`; 64 threads
# keep number `own_row` of $Z$:

# %%
key = np.random.default_rng(0).standard_normal((1, 2, 32, 64), np.float32)
with watch() as seen:
    recurrent.forward(key, key, key)
show(quote(seen[0].kernel, "(2)", also=("qz = cuda", "qz[t")))
print("pitch:", seen[0].constants["pitch"])

# %% [markdown]
# Rows are 65 words long, not 64: the *pitch*. **Predict**: how many turns would a read of
# `qz[t, e]` take without it?

# %%
guess("turns without a pitch", 1)

# %%
t = np.arange(16)  # the tokens of a tile, one for each of 16 lanes
reveal("turns without a pitch", costs(4 * 64 * t)[1])
print("with it:", costs(4 * 65 * t)[1])

# %% [markdown]
# Would a clock have told you? `results/ladder` has every [room](glossary.md#room)'s kernels,
# counted, and timed on a CPU. There the pitch of `linear`, all pairs, saves 31,744 of 103,040 turns
# (128 tokens, $E = 32$). The CPU takes 8.6 ms, in place of 8.67 (8 heads of 512, $E = 64$):
# quartiles overlap.
#
# And lesson 8's [chunks](glossary.md#chunk)? The [microscope](glossary.md#microscope) says what it
# finds:

# %%
with watch() as seen:
    chunked.forward(key, key, key)
for launch in () if FAST else seen:  # it takes long to compile
    on = launch.kernel[launch.blocks, launch.threads]
    report = look(on, *launch.arguments)
    shared = report.total("shared")
    print(f"{launch.kernel.function.__module__}:", end=" ")
    print(f"{shared.transactions:,} turns, {shared.fewest:,} would do")
    for advice in report.advice:
        print(" *", advice)

# %% [markdown]
# No perfect kernel; but the first line also says how few turns there are to gain. Idle lanes cost
# little: one of 16 writes a denominator, half set to 0 what lies above a diagonal. Try it on yours:
# put `turned`, `TILE` and the imports of `float32` and `cuda` into a file, `mine.py`, and run
#
# ```sh
# minitransformer inspect mine.py:turned --grid 2,2 --block 32,32 \
#     --arrays "float32[64,64]" "float32[64,64]"
# ```
#
# ## 5. What a GPU said
#
# This project's benchmarks ran on an H100: see `results/gpu`. First the roofs themselves: a copy of
# memory, and a product of two large matrices by PyTorch. Then lesson 7's forward, for 256 heads of
# 2,048 tokens. By (1), with these roofs, it takes 0.178 ms at least. A
# count of its instructions gave a higher bound, 0.211 ms, by a third roof: that of the units for
# loads and stores. **Predict**: how many times that bound did it take?

# %%
guess("times its bound", 1.5)

# %%
recorded = {  # results/gpu
    "copy, GB/s": 3024,
    "product, TFLOP/s": 51.7,
    "forward, ms": 2.06,
    "bound, ms": 0.211,
}
copied = recorded["copy, GB/s"] * 1e9 / B
computed = recorded["product, TFLOP/s"] * 1e12 / P
print(f"of the data sheet: bandwidth {copied:.0%}, operations {computed:.0%}")
reveal("times its bound", recorded["forward, ms"] / recorded["bound, ms"])

# %% [markdown]
# The roofs are real: who does nothing else reaches most of them. But ten times the bound! What no
# count has is waiting. Global memory answers after hundreds of clocks, says NVIDIA's guide, and a
# warp that needs the answer waits. Other warps can work meanwhile, if there are any. Here there are
# few: 256 blocks of 4 warps on 132 [multiprocessors](glossary.md#multiprocessor) are at most two
# blocks on each, 8 warps of 64 that it could keep. (This share is its
# [occupancy](glossary.md#occupancy).)
#
# But that waiting is the reason is a conjecture. Below is lesson 10's attention, with the recurrence
# or with chunks inside. $L$ times the number of heads is always the same, and so is the bound by (1):

# %%
lengths = 512, 2048, 8192, 32768, 65536
forward = {  # ms, results/gpu
    "recurrence": (3.23, 4.1, 9.73, 32.4, 62.3),
    "chunks": (3.97, 5.46, 5.5, 5.9, 7.33),
}
heads = [2**19 // length for length in lengths]
show(
    figures.waiting(lengths, heads, forward, least=0.252), "waiting",
    alt="With fewer heads the recurrence takes longer, though work is equal",
)  # fmt: skip

# %% [markdown]
# A block of the recurrence walks a whole text: 8 heads give 8 of the 132 multiprocessors work. Yet
# four times the 256 heads, enough for 16 warps on each, bring only 4.1 to 3.23 ms: few warps are not
# all of it. Chunks are cut into segments, which other blocks can walk at the same time. They do more
# operations, so they lose where heads are many; where heads are few they win.
#
# ## What it cannot do
#
# * It counts what the *text* asks for. A compiler may fetch four neighbours with one instruction:
#   `minitransformer inspect --ptx` counts instructions instead (`pip install
#   "minitransformer[gate]"`).
# * It knows no caches: what is moved is the worst case, what is needed the best.
# * A roof is a bound, no forecast: neither waiting nor idle multiprocessors are in it.
# * It compares versions of one algorithm. Whether another needs fewer operations, as lesson 6's
#   did, it cannot know.
#
# **Next question: does all this learn?** That is lesson 17.

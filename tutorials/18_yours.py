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

# %% [markdown] question="What would you let a memory forget?" minutes=90 after=[7, 15, 16, 17]
# # Yours
#
# Lesson 7's memory fades: each [token](glossary.md#token) multiplies the [state](glossary.md#state) by
# the same $\gamma$, whatever it says. But a text knows when it turns a page. Let a token *say* how much
# of the past it leaves: a *gate*. Which one, nobody tells you. You invent it, and take it all the way:
# formula, [backward](glossary.md#backward), [kernel](glossary.md#kernel), a property, a count, a row of
# the scoreboard.
#
# Nobody knows your formula either. So each check asks for what must hold of *any* gate, and holds your
# backward and your kernel against your own formula.
#
# *Sources.* Peng et al. 2021, *Random Feature Attention*, has a gate on linear attention; Yang et al.
# 2024, *Gated Linear Attention Transformers*; Dao and Gu 2024, *Transformers are SSMs* (Mamba-2).

# %% tags=["hide-input"]
import math

import numpy as np
from numba import float32

from minitransformer import nn, no_grad
from minitransformer.course import (
    check,
    error,
    guess,
    reveal,
    show,
    six_tokens,
    table,
)
from minitransformer.course.figures import lesson_18 as figures
from minitransformer.course.measuring import FAST
from minitransformer.course.recall import Row, pages, recall, scoreboard
from minitransformer.function import Function
from minitransformer.nn.variant import (
    AttentionVariant,
    attention_variant,
    register_attention,
)
from minitransformer.tensor import Tensor
from minitransformer_kernels import microscope
from minitransformer_kernels.arrays import ceil_div
from minitransformer_kernels.cuda import cuda

random = np.random.default_rng(18)
Q, K, V = six_tokens()  # (6, 4), (6, 4), (6, 3)
if FAST:
    print("LESSON_FAST: nothing learns, so shares recalled mean nothing")

# %% [markdown]
# ## 1. A gate
#
# Token $i$ has a [key](glossary.md#key-query-value) $k_i$, a value $v_i$ and a place $i$. There are
# also $E$ numbers $w$, which are learned. Of these a gate makes a number:
#
# $$g_i = \mathrm{gate}(k_i, v_i, w, i) \qquad 0 \le g_i \le 1 \tag{1}$$
# $$S_i = g_i\, S_{i-1} + k_i v_i^\top \tag{2}$$
# $$o_i = S_i^\top q_i \tag{3}$$
#
# As in lesson 7's exercises there are no features and no denominator. With $g_i = 1$ this is a sum; with
# $g_i = \gamma$ it fades; $g_i = 0$ turns the page. The loop is the reference of all that follows:


# %%
def gated(q, k, v, g, S):
    """One head: (L, E) twice, (L, M), (L,), (E, M) -> (L, M), (E, M)."""
    out = np.empty_like(v)
    for i in range(len(k)):
        S = g[i] * S + np.outer(k[i], v[i])  # (2)
        out[i] = S.T @ q[i]  # (3)
    return out, S


# %% [markdown]
# Put (2) into itself: how much of token $j$ does query $i$ see?
#
# $$S_i = \sum_{j \le i} \Big( \prod_{t=j+1}^{i} g_t \Big)\, k_j v_j^\top \tag{4}$$
#
# The gates of all *later* tokens. **Predict**: of six tokens the fourth has gate 0, all others 1. How
# many tokens does the last query see?

# %%
guess("tokens seen by the last query", 5)

# %%
page = np.array([1.0, 1, 1, 0, 1, 1])
seen = sum(page[j + 1 :].prod() > 0 for j in range(6))
reveal("tokens seen by the last query", seen)

# %% [markdown]
# The fourth is seen: it fades what came before it, not itself.
#
# What should a gate know? Some ideas:
#
# * $\sigma(b + w \cdot k_i)$, with $\sigma(x) = 1 / (1 + e^{-x})$: the key says it;
# * the larger the value, the more of the past it drives out: $1 / (1 + |v_i|^2 / M)$;
# * the place $p$, counted from 0: with $p / (p + 1)$ the product in (4) is $j / i$, so the past fades
#   slowly;
# * yours.

# %% [markdown] exercise="gate"
# ### Exercise 1 (3 points, 10 min): invent a gate
#
# `key` is (L, E), `value` (L, M), `w` (E,); `at` tokens came before these, so token `i` is at place
# `at + i`, from 0. Return an array of L numbers from 0 to 1, float64. Each may depend on its own token,
# its place and `w`, but on no other token, earlier or later; and on *something*: one number for all is
# lesson 7's. Large inputs and zeros must not make it nan. You will have to differentiate it. And in
# section 7 `w` begins at zeros: where a gate has no slope by `w` there, as a step has none and
# $1 / (1 + (w \cdot k_i)^2)$, `w` stays zeros.
#
# <details><summary>Hint 1 of 3</summary>
#
# `key @ w` has a number for each token: the first idea is one line.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# A memory that forgets at the beginning learns nothing from what it forgot. With $b = 4$ and $w = 0$ a
# gate is 0.98.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# A sum of E products grows like $\sqrt{E}$: divide by that, as lesson 0 did. And
# `np.exp(x) / (1 + np.exp(x))` is inf / inf for large x; `1 / (1 + np.exp(-x))` is not.
#
# </details>


# %% exercise="gate"
def gate(key, value, w, at):
    """How much of the past each token leaves: (L,)."""
    # BEGIN SOLUTION
    x = key @ w / math.sqrt(len(w))
    return 1 / (1 + np.exp(-4 - x))
    # END SOLUTION


# %% check="gate"
check("gate", gate)

# %% [markdown]
# The products of (4) for the six tokens, with $w = (-4, -4, -4, -4)$. Row $i$ has what query $i$ sees:

# %%
w = np.full(4, -4.0)
g = gate(K, V, w, 0)
sights = {
    "the sum: all gates 1": np.ones(6),
    "a page turned by token 4": page,
    "lesson 7: all gates 0.8": np.full(6, 0.8),
    "yours": g,
}
show(
    figures.sights(sights), "sights",
    alt="Four triangles: all ones, two blocks, fading diagonals, and yours",
)  # fmt: skip
print("your gates:", g.round(3))

# %% [markdown]
# (On the printed page "yours" is the first idea, with $b = 4$ and the root of hint 3.)
#
# ## 2. Backward
#
# Lesson 7 again, and one line more. Given are $do_i = \partial \ell / \partial o_i$. Let
# $R_i = \partial \ell / \partial S_i$, all that is later included. $S_i$ is used by $o_i$ and by
# $S_{i+1}$, where it is multiplied by $g_{i+1}$. If someone goes on from the last one, $S_L$, they hand
# back its [gradient](glossary.md#gradient), $dS$:
#
# $$R_i = q_i\, do_i^\top + \begin{cases} g_{i+1}\, R_{i+1} & i < L \\ dS & i = L \end{cases} \tag{5}$$
# $$dq_i = S_i\, do_i \qquad dk_i = R_i v_i \qquad dv_i = R_i^\top k_i \qquad dS_0 = g_1 R_1 \tag{6}$$
#
# And the gate? In (2) it multiplies each number of $S_{i-1}$:
#
# $$dg_i = \sum_{e,m} R_{i,em}\, S_{i-1,em} \tag{7}$$
#
# From there by the chain rule, through your formula. The key has two ways now, the value may have two
# as well, and all count:
#
# $$dk_i \mathrel{+}= dg_i \frac{\partial g_i}{\partial k_i} \qquad
#   dv_i \mathrel{+}= dg_i \frac{\partial g_i}{\partial v_i} \qquad
#   dw = \sum_i dg_i \frac{\partial g_i}{\partial w} \tag{8}$$
#
# (7) needs the state *before* each token, while the [scan](glossary.md#scan) goes backwards. Dividing it
# out, $S_{i-1} = (S_i - k_i v_i^\top) / g_i$, is what lesson 15 warns of, and impossible where $g_i = 0$.
# So keep all of them. **Predict**: at L = 4,096, with $E = M = 64$, how many times as many numbers is
# that as queries, keys, values and outputs together?

# %%
guess("kept states over inputs and outputs", 4)

# %%
reveal("kept states over inputs and outputs", 4096 * 64 * 64 / (4 * 4096 * 64))

# %% [markdown]
# (Lesson 8 has the way out: keep the states between [chunks](glossary.md#chunk), and make the others
# again.)

# %% [markdown] exercise="gated-backward"
# ### Exercise 2 (5 points, 20 min): its backward
#
# One [head](glossary.md#head). Given `do` (L, M) and `dS` (E, M), return `dq`, `dk`, `dv`, `dw` and
# `dS_0`; `dw` is zeros if `w` is not used. `S` (E, M) is the state before the first token. Call `gate`:
# the check nudges each number that goes into it, and knows from that what (8) should be.
#
# <details><summary>Hint 1 of 3</summary>
#
# A forward scan that appends each state to a list, which begins with `S`, and makes `dq`; then a reverse
# one, in which `R` begins as `dS`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# In the reverse scan: first `R = R + np.outer(q[i], do[i])`; then `dk[i]`, `dv[i]` and
# `dg[i] = (R * states[i]).sum()`, where `states[i]` is the one before token i; last `R = g[i] * R`.
# What is left in the end is `dS_0`.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The slope of $\sigma$ is $g (1 - g)$. With $x_i = b + w \cdot k_i / \sqrt{E}$, `dx = dg * g * (1 - g)`;
# then `dk += np.outer(dx, w) / math.sqrt(len(w))`, and `dw` is the same with keys in the place of `w`.
#
# </details>


# %% exercise="gated-backward"
def gated_backward(do, dS, q, k, v, w, at, S):
    """dq, dk, dv, dw and dS_0."""
    # BEGIN SOLUTION
    g, states, R = gate(k, v, w, at), [S], dS
    dq, dk, dv, dg = (np.empty_like(x) for x in (q, k, v, g))
    for i in range(len(k)):
        states.append(g[i] * states[i] + np.outer(k[i], v[i]))
        dq[i] = states[i + 1] @ do[i]
    for i in reversed(range(len(k))):
        R = R + np.outer(q[i], do[i])
        dk[i], dv[i] = R @ v[i], k[i] @ R
        dg[i] = (R * states[i]).sum()
        R = g[i] * R
    dx = dg * g * (1 - g) / math.sqrt(len(w))
    return dq, dk + np.outer(dx, w), dv, dx @ k, R
    # END SOLUTION


# %% check="gated-backward"
check("gated-backward", gated_backward)

# %% [markdown]
# ## 3. A kernel
#
# Lesson 7's: a [thread](glossary.md#thread) [owns](glossary.md#owner) a column of $S$. Each needs the
# gate, so each works it out. The state comes from outside, and goes back there.

# %% [markdown] exercise="gated-kernel"
# ### Exercise 3 (5 points, 20 min): its kernel
#
# Write (1) to (3). [Blocks](glossary.md#block) have `COLUMNS` threads; heads are `cuda.blockIdx.y`.
# `state` is read before the first token, and holds the last one in the end. `yours` is the kernel beside
# its formula: the check compares the two.
#
# <details><summary>Hint 1 of 3</summary>
#
# Begin with lesson 7's `fading_kernel`. All that reads or writes a column stands under
# `if m < value.shape[2]:`.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# For each token first a loop that adds up what the gate needs; then the gate; then the loop over the
# rows of the column.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `x = float32(4)`; for each e `x += w[e] * key[h, i, e] * float32(0.25)`, where 0.25 is
# $1 / \sqrt{16}$; then `math.exp`. A bare `4.0` is float64 and makes all it meets wide: as right, but
# slower.
#
# </details>

# %% exercise="gated-kernel"
WIDTH, COLUMNS = 16, 32


@cuda.jit
def gated_kernel(query, key, value, w, at, state, out):
    """(H, L, WIDTH) twice, (H, L, M), (WIDTH,); state (H, WIDTH, M)."""
    # BEGIN SOLUTION
    S = cuda.local.array(WIDTH, float32)
    m = cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x
    h = cuda.blockIdx.y
    if m < value.shape[2]:
        for e in range(WIDTH):
            S[e] = state[h, e, m]
        for i in range(value.shape[1]):
            x = float32(4)
            for e in range(WIDTH):
                x += float32(0.25) * w[e] * key[h, i, e]  # 1 / sqrt(E)
            g = float32(1) / (float32(1) + math.exp(-x))  # (1)
            n = float32(0)
            for e in range(WIDTH):
                S[e] = g * S[e] + key[h, i, e] * value[h, i, m]  # (2)
                n += S[e] * query[h, i, e]  # (3)
            out[h, i, m] = n
        for e in range(WIDTH):
            state[h, e, m] = S[e]
    # END SOLUTION


yours = gate, gated_kernel

# %% check="gated-kernel"
check("gated-kernel", yours)


# %% tags=["hide-input"]
def drawn(heads, length, columns):
    """Random queries, keys, values and w; the same for the same sizes."""
    draw = np.random.default_rng(0).standard_normal
    widths = WIDTH, WIDTH, columns
    arrays = [draw((heads, length, width), np.float32) for width in widths]
    return *arrays, draw(WIDTH, np.float32)


# %%
def walked(query, key, value, w, at=0, state=None):
    """Launch it on arrays (H, L, ...); return the outputs, the state."""
    H, _, M = value.shape
    zeros = np.zeros((H, WIDTH, M), np.float32)
    S = zeros if state is None else state.copy()
    out, grid = np.empty_like(value), (ceil_div(M, COLUMNS), H)
    gated_kernel[grid, COLUMNS](query, key, value, w, at, S, out)
    return out, S


# %% [markdown]
# ## 4. A property
#
# A check tries a few sizes. Hypothesis, a library, draws many, and when one fails, looks for the smallest
# that does. All stateful attentions of this project have this property (`tests/properties.py`,
# `hands_its_state_over`): read a text to any place, go on from the state, and nothing is different.
# (`pip install hypothesis`, if the next cell does not find it.) If it fails, read from the bottom: there
# stand the smallest sizes, and "Draw 1" is the split.

# %%
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

options = {"max_examples": 25, "deadline": None, "derandomize": True}
options |= {"phases": [Phase.generate, Phase.shrink]}
options |= {"report_multiple_bugs": False}


def hands_its_state_over(walk, tried):
    """A property of walk(query, key, value, w, at, state)."""
    sizes = st.integers(1, 3), st.integers(1, 20), st.integers(1, 70)

    @settings(**options)
    @given(*sizes, st.data())
    def holds(heads, length, columns, data):
        *qkv, w = drawn(heads, length, columns)
        split = data.draw(st.integers(0, length))
        tried.append((length, split))  # in the end the smallest that fails
        out, last = walk(*qkv, w)
        first, S = walk(*(x[:, :split].copy() for x in qkv), w)
        rest, end = walk(*(x[:, split:].copy() for x in qkv), w, split, S)
        both = np.concatenate([first, rest], axis=1)
        np.testing.assert_allclose(both, out, atol=1e-4)
        np.testing.assert_allclose(end, last, atol=1e-4)

    holds()


hands_its_state_over(walked, tried=[])
print("your kernel hands its state over")

# %% [markdown]
# Can that fail? Plant a mistake: a walk that begins with an empty state. Hypothesis shrinks what it
# finds. **Predict**: the fewest tokens with which it fails?

# %%
guess("tokens of the smallest failure", 2)


# %%
def forgets(query, key, value, w, at=0, state=None):
    """A planted mistake: the state is not handed over."""
    return walked(query, key, value, w, at)


tried = []
try:
    hands_its_state_over(forgets, tried)
except AssertionError:
    print("it fails; the smallest: tokens, and split after", tried[-1])
reveal("tokens of the smallest failure", tried[-1][0])

# %% [markdown]
# One token, and none after it: then the second walk has nothing to read, and its *state* is off.
#
# ## 5. What does the gate cost?
#
# Count under the [microscope](glossary.md#microscope). Without a gate, a thread does 4 operations for
# each row of its column and token: a multiplication and an addition for $S$, and as many for the output.
# Fading by a given number makes it 5. **Predict**: how many are they with your gate?

# %%
guess("operations a row and token", 6)

# %%
*qkv, w = drawn(1, 16, 32)
out, S = np.empty_like(qkv[2]), np.zeros((1, WIDTH, 32), np.float32)
arguments = *qkv, w, 0, S, out
launch = gated_kernel[1, COLUMNS]
roof = microscope.inspect(launch, *arguments, compiled=False).roofline
reveal("operations a row and token", roof.flops / (16 * 32 * WIDTH))
print(f"bytes: {roof.needed:,} are needed, {roof.moved:,} are moved")

# %% [markdown]
# Ours has three more for a term of $w \cdot k_i$, and the rest for $\sigma$. It does them 32 times over:
# a thread for each column, and all work out the same gate. Who has many columns makes the gates in
# a kernel of their own, once, and reads one number for each token.
#
# And most bytes are moved for nothing. Nearly half of ours are values: `value[h, i, m]` stands in the loop
# over rows, and is read 16 times. One line before that loop, `v = value[h, i, m]`, saves 30,720 bytes: try
# it. Of most others a whole [sector](glossary.md#sector) comes where all threads ask for one number of a
# key; for the gate it comes once more. Lesson 16's [tiles](glossary.md#tile) are the cure: your second
# version.
#
# ## 6. Into the engine
#
# A `Function` puts them on the [tape](glossary.md#tape). Forward [launches](glossary.md#launch) your
# kernel for all heads of all sequences at once; backward calls your scan for one after the other, slow
# and right:


# %%
class Remember(Function):
    """Query, key, value (N, H, L, 16) and w -> outputs, the last state."""

    @staticmethod
    def forward(ctx, query, key, value, w, at=0, state=None):
        heads = [x.reshape(-1, *x.shape[2:]) for x in (query, key, value)]
        ctx.save(heads, w, key.shape)
        out, S = walked(*heads, w, at, state)
        return out.reshape(value.shape), S

    @staticmethod
    def backward(ctx, do, dS):
        heads, w, shape = ctx.saved
        do, dS = ctx.filled(do, dS)  # zeros, where an output is not used
        each = zip(do.reshape(heads[2].shape), dS, *heads, strict=True)
        S = np.zeros_like(dS[0])
        rows = [gated_backward(*x, w, 0, S)[:4] for x in each]
        *inputs, dw = (np.array(x) for x in zip(*rows, strict=True))
        back = [x.reshape(*shape[:3], -1) for x in inputs]
        return *(x.astype(np.float32) for x in back), np.float32(dw.sum(0))


# %% [markdown]
# (Only a walk from the first token is differentiated; who goes on from a state only reads.) A *variant*
# tells layers how to call it; under its name every layer and model finds it. `learn` makes what is
# trained, and `visible` says what a query may see besides: which keys are padding, and how late the first
# query is. Where queries come after all keys, they ask the last state; the walk's own outputs are not used, so
# the keys stand in for its queries:


# %%
@register_attention("yours")
class Yours(AttentionVariant):
    """Linear attention with a gate, without padding."""

    def prepare(self, num_heads, head_dim):
        self.learn("w", (head_dim,), lambda: np.zeros(head_dim, np.float32))

    def forward(self, query, key, value, *, causal=False, **visible):
        lengths, late = map(visible.get, ("key_lengths", "query_offset"))
        padded = lengths is not None and min(lengths) < key.shape[2]
        if padded or (causal and late):
            raise ValueError("yours: no padding, no late queries")
        if causal:
            return Remember.apply(query, key, value, self.w)[0]
        self.read = key.data, value.data  # for a picture
        _, S = Remember.apply(key, key, value, self.w)  # no queries yet
        return query @ S.reshape(*key.shape[:2], *S.shape[1:])

    def init_state(self):
        return 0, None

    def step(self, query, key, value, state):
        at, S = state
        inputs = query, key, value, self.w
        out, S = Remember.apply(*inputs, at=at, state=S)
        return out, (at + key.shape[2], S.data)


# %% [markdown]
# A whole [layer](glossary.md#layer), asked for by name, at once and in steps of 1, 2 and 3:

# %%
layer = nn.MultiHeadAttention(32, num_heads=2, attention="yours")
x = Tensor(random.standard_normal((1, 6, 32), np.float32))
with no_grad():
    whole, parts, state = layer(x, causal=True).numpy(), [], layer.init_state()
    for start, end in ((0, 1), (1, 3), (3, 6)):
        part, state = layer.step(x[:, start:end], state)
        parts.append(part.numpy())
print(f"in steps: off by {error(np.concatenate(parts, axis=1), whole):.0e}")

# %% [markdown]
# ## 7. Its row
#
# The course's [recall](glossary.md#recall) of 32 pairs, and a task for which a gate was made, `pages`:
# some of 16 keys get values; a mark says that all so far is void; then each of the 16 gets a value, and
# is asked for. Where the mark stands, changes. The memory may learn what the mark means.
#
# **Predict** both for your gate. With all gates 1 nine pairs of ten are recalled, and six of ten after a
# mark. (The memories train for about a minute.)

# %%
guess("recall of 32 pairs, yours", "80%")
guess("recall after a mark, yours", "90%")


# %% tags=["hide-input"]
def fading(gamma):
    """All gates gamma; all queries come after all keys."""

    def attend(query, key, value):
        ages = np.arange(key.shape[2])[::-1, None]
        faded = key * Tensor(np.float32(gamma) ** ages.astype(np.float32))
        return query @ (faded.transpose(2, 3) @ value)

    return attend


# %%
steps, seeds = (2, (0,)) if FAST else (300, (0, 1, 2))
mine = attention_variant("yours", 1, 16)
heads = {f"gates {gamma}": fading(gamma) for gamma in (1, 0.98, 0.95, 0.9)}
shares, heads["yours"] = {}, mine
for name, head in heads.items():
    for task in (None, pages):
        found = []
        for seed in seeds:
            if head is mine:
                mine.w = nn.Parameter(np.zeros(16, np.float32))
            found.append(recall(head, steps=steps, seed=seed, task=task))
        shares[name, task] = np.mean(found)

# %%
work = {name: 512 if name == "gates 1" else 768 for name in heads}
scoreboard(*(Row(name, 256, work[name], shares[name, None]) for name in heads))
marked = [(name, f"{shares[name, pages]:.0%}") for name in heads]
table(("with a mark", "recalled"), marked)
reveal("recall of 32 pairs, yours", f"{shares['yours', None]:.0%}")
reveal("recall after a mark, yours", f"{shares['yours', pages]:.0%}")

# %% [markdown]
# (On the printed page "yours" is the first idea again.) Work is in multiplications, without the gate's
# own: add those, 16 for $w \cdot k_i$, once a token. Section 5 counted additions, too, and the gate in each
# thread.
#
# A fixed number has two jobs: to forget what stands before a mark, and to keep all else. None of the four
# does both well; a gate that reads the key may. If yours does not, that is a result, too. Here is a text of
# that task, as the trained memory reads it:

# %%
keys, values = mine.read
g = gate(keys[0, 0], values[0, 0], mine.w.numpy(), 0)
show(
    figures.read(g, len(g) - 17), "read",
    alt="Gates along a text, and what is left of each token in the end",
)  # fmt: skip
print(f"gate of the mark: {g[-17]:.2f}, of others: {np.median(g):.2f}")

# %% [markdown]
# Is it far lower at the mark than elsewhere? Then your memory has found out what the mark means: nobody
# told it which key that is.
#
# ## The whole way, once more
#
# For your next idea:
#
# 1. A formula, and the loop that says what it means, on six tokens.
# 2. What must hold of it, before any number is known: exercise 1's list.
# 3. Its backward, an index line a step; nudge every input under a random
#    [cotangent](glossary.md#cotangent).
# 4. The plain kernel, in [checked mode](glossary.md#checked-mode), at sizes that fill no block.
# 5. A property, and a planted mistake that it finds.
# 6. A count under the microscope; only then a clock (lesson 15).
# 7. A `Function`, a variant with a name, a row; several seeds, and another task (lesson 17).
#
# Is it better than what is here? `CONTRIBUTING.md`, "Adding an attention", has this list with places:
# a [room](glossary.md#room) for the kernels, a file in the engine, a variant, an operation from
# which the project's tests derive all properties, and two planted bugs at least
# ([mutation testing](glossary.md#mutation-testing)).
#
# ## Where others went
#
# * One gate for each *row* of the state, and chunks that multiply matrices: Yang et al. 2024.
# * One for the whole state, from the layer's input: Dao and Gu 2024.
# * A gate and lesson 12's [delta rule](glossary.md#delta-rule) in one: Yang, Kautz and Hatamizadeh 2025,
#   *Gated Delta Networks*.
#
# ## What it cannot do
#
# * It forgets all pairs alike. To drop one and keep the others takes lesson 12.
# * What has faded is gone. A later token cannot ask for it; [softmax](glossary.md#softmax) could.
# * Its token decides alone. Whether the past is worth keeping may hang on the past itself; but such a
#   gate is no longer known before the walk, and chunks need it then.
# * Its backward is a loop in NumPy that keeps every state. A kernel for it is yours, too.
# * It makes no room: 32 pairs in 256 numbers stay what they were.
#
# **Next question: yours.**

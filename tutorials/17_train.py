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

# %% [markdown] question="Does all this learn?" minutes=80 after=[3, 7, 15]
# # Train it, and be honest
#
# The scoreboard has a gap. Each of its rows is one [layer](glossary.md#layer), trained for seconds,
# most from one seed. Does a whole [transformer](glossary.md#transformer) learn with linear attention, as
# well as with [softmax](glossary.md#softmax), and in less time?
#
# A text called S1 in the [list of sources](sources.md) tried that before us. Its
# [losses](glossary.md#loss) fell too early, then would not settle, and linear attention was up to 24
# times *slower*. You will train what it trained, plant its faults, and say what you may claim.
#
# *Sources.* S1; Katharopoulos et al. 2020, *Transformers are RNNs*; Kingma and Ba 2015, *Adam: a
# Method for Stochastic Optimization*.

# %% tags=["hide-input"]
import math
from functools import partial

import numpy as np

from minitransformer import no_grad, optim
from minitransformer import random as weights_random
from minitransformer.attention import linear_attention, softmax_attention
from minitransformer.course import (
    check,
    error,
    guess,
    quote,
    reveal,
    seconds,
    show,
    table,
)
from minitransformer.course.figures import lesson_17 as figures
from minitransformer.course.measuring import FAST, numbers_passed
from minitransformer.experiments.copy_curves import windows
from minitransformer.experiments.copy_faults import FaultyCopy, planted
from minitransformer.tasks.copy import (
    SEPARATOR,
    copy_sequences,
    fresh_sequences,
)
from minitransformer.tensor import Tensor
from minitransformer_kernels import microscope
from minitransformer_kernels.layers import optimizer

random = np.random.default_rng(17)

# %% [markdown]
# ## 1. A loss that is too good
#
# S1's task: read 8 random digits, write them again. An *encoder* reads them. The
# [decoder](glossary.md#decoder) is given a separator and all digits but the last; where it has digit
# $i - 1$, it shall say digit $i$. Its loss is $-\ln$ of the probability that it
# gives to the right one. A guess costs $\ln 10 = 2.3$.

# %%
L, BATCH, STEPS, EVERY = 8, 16, 20 if FAST else 150, 10


def train(attention, seed=0, fault="none"):
    """A small model, one layer each, and its loss at each step."""
    weights_random.manual_seed(seed)
    size = {"layers": 1, "heads": 2, "head_dim": 16}
    task = FaultyCopy(length=L, **size, faults=planted(fault))
    model, draw = task.build(attention), np.random.default_rng(seed)
    adam, losses = optim.Adam(model.parameters(), lr=0.004), []
    for _ in range(STEPS):
        loss, _ = task.loss(model, task.draw(draw, BATCH))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return model, losses


# %% [markdown]
# Two models: one as it should be; in the other the decoder's linear attention ignores its
# [mask](glossary.md#mask), a fault of S1's. Both losses nearly vanish. Then each copies fresh digits,
# given only what it wrote itself. **Predict**: how many digits does the second one copy right?

# %%
guess("digits right, mask ignored", "50%")

# %%
fresh = fresh_sequences(L, seed=0, count=256)
models, right = {}, {}
for fault in ("none", "mask ignored"):
    models[fault], losses = train("linear", fault=fault)
    right[fault] = copy_sequences(models[fault], fresh).tokens_right
    end = np.mean(losses[-EVERY:])
    print(f"{fault}: loss {end:.2g}, digits right {right[fault]:.1%}")
reveal("digits right, mask ignored", f"{right['mask ignored']:.1%}")

# %% [markdown]
# Nearly the same loss, and most digits are wrong. Digit $i$ stands in the decoder's input, one place
# further. Who looks there need not ask the encoder, and has nothing once that digit is not written yet.
# No loss of training shows that.
#
# What would? [Causal](glossary.md#causal) attention has a property. For outputs $o$ and input
# [tokens](glossary.md#token) $x$:
#
# $$x_j = x'_j \text{ for all } j \le i \quad\Rightarrow\quad o_i = o'_i \tag{A}$$
#
# Change the future, and the past stands still. That needs no truth and no training.

# %% [markdown] exercise="leaks"
# ### Exercise 1 (5 points, 15 min): who looks ahead?
#
# `model` takes `length` tokens, an array of whole numbers from 0 to `symbols - 1`, and returns an array
# (length, M). Return `length` verdicts, True or False: which outputs depend on a *later* token? A
# difference up to `1e-5` times the largest output is rounding. A model may look ahead now and then
# only: try each place with 50 texts, each with a future and another. `random` is a NumPy generator.
#
# <details><summary>Hint 1 of 3</summary>
#
# For each `place` from 1 on: draw a text, copy it, and make all tokens from `place` on others. Only
# outputs before `place` are of interest.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# Add 1 to `symbols - 1` to a token, modulo `symbols`: then it surely is another one.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# `moves[:place] |= moved[:place]` keeps what has been found, where `moved` says for each output
# whether any of its numbers is off by too much.
#
# </details>


# %% exercise="leaks"
def leaks(model, length, symbols, random):
    """Which outputs depend on a later token?"""
    # BEGIN SOLUTION
    moves = np.zeros(length, bool)
    for place in range(1, length):
        for _ in range(50):
            tokens = random.integers(symbols, size=length)
            more = random.integers(1, symbols, size=length - place)
            other = tokens.copy()
            other[place:] = (tokens[place:] + more) % symbols
            before, after = model(tokens), model(other)
            off = abs(after - before).max(axis=1)
            moved = off > 1e-5 * abs(before).max()
            moves[:place] |= moved[:place]
    return moves
    # END SOLUTION


# %% check="leaks"
check("leaks", leaks)


# %%
def decoded(model, tokens):
    """What the decoder says when its input is `tokens`."""
    with no_grad():
        return model(fresh.source[:1], tokens[None]).numpy()[0]


for fault, model in models.items():
    found = leaks(partial(decoded, model), L, 10, random)
    print(f"{fault}: {found.sum()} of {L} outputs look ahead")

# %% [markdown]
# ## 2. Faults as switches
#
# S1 has six faults. One, a [state](glossary.md#state) that is updated by a loop over positions, changes no number, only the
# clock. Each of the others was planted here: 2 + 2 layers, 16 digits, 500 steps, three seeds
# (`results/copy_faults`). **Predict**: how many of these five does the loss in the end *not* show?

# %%
guess("faults that the loss does not show", 2)

# %% tags=["hide-input"]
faults = {  # seeds that learned, loss at the end, digits copied right
    "none": (3, 0.00157, 1.0),
    "mask ignored": (3, 0.00164, 0.108),
    "elu reversed": (0, 1.97, 0.191),
    "rate 1e-4": (0, 1.94, 0.207),
    "encoder half dead": (3, 0.00174, 1.0),
    "a forward too many": (3, 0.00157, 1.0),
    "all together": (0, 1.95, 0.215),
}

# %%
columns = "learned", "loss at the end", "digits right"
rows = [
    (name, f"{n} of 3", x, f"{y:.1%}") for name, (n, x, y) in faults.items()
]
table(("fault", *columns), rows)
hidden = [name for name, row in faults.items() if row[0] == 3][1:]
reveal("faults that the loss does not show", len(hidden))

# %% [markdown]
# `mask ignored` cheats, and copies at chance. Half of the encoder, computed for nothing, is not
# missed: the other half does as well. A forward too many costs time alone. *All together* does not
# learn, as two of them by themselves; behind these the one that cheats hides. So *ablate*: plant one
# at a time.
#
# ## 3. Each number its own step
#
# What did `adam.step()` do? A [gradient](glossary.md#gradient) $g$ has a scale: multiply the loss
# by 1,000, and plain descent makes steps 1,000 times as long. Adam divides it away. For each
# [parameter](glossary.md#parameter) $\theta$ it keeps two means, which fade:
#
# $$m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t \qquad
#   v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2 \tag{B}$$
#
# Both begin at 0. Unrolled, $m_t$ is a sum of gradients whose weights add up to less than 1:
#
# $$m_t = \sum_{s \le t} (1 - \beta_1)\, \beta_1^{t-s}\, g_s \qquad
#   \sum_{s \le t} (1 - \beta_1)\, \beta_1^{t-s} = 1 - \beta_1^t \tag{C}$$
#
# Divide by that, the *bias correction*, and it is a mean from the first step on:
#
# $$\theta_t = \theta_{t-1} - \eta\, \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon} \qquad
#   \hat m_t = \frac{m_t}{1 - \beta_1^t} \quad \hat v_t = \frac{v_t}{1 - \beta_2^t} \tag{D}$$
#
# At $t = 1$ that is $\eta\, g / |g|$, the rate, whatever the scale. **Predict**: with
# $\beta_1 = 0.9$ and $\beta_2 = 0.999$, how many times as long is the first step *without* the
# correction?

# %%
guess("first step without correction, in rates", 0.1)

# %%
m, v = (1 - 0.9) * 1, (1 - 0.999) * 1**2
reveal("first step without correction, in rates", m / np.sqrt(v))

# %% [markdown] exercise="adam-step"
# ### Exercise 2 (4 points, 10 min): a step of Adam
#
# `theta`, the gradient `g`, `m` and `v` are arrays of one shape; `t` is 1 at the first step. Return
# the new `theta`, `m` and `v` by (B) and (D), and write to no array that you are given.
#
# <details><summary>Hint 1 of 3</summary>
#
# First `m` and `v`, new ones; then what is made of them.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# What is returned, and comes back at the next step, is `m`, not the corrected mean.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The correction is `1 - beta1**t`; `eps` is added to the root, not under it.
#
# </details>


# %% exercise="adam-step"
def adam_step(theta, g, m, v, t, rate, beta1, beta2, eps):
    """The new theta, m and v."""
    # BEGIN SOLUTION
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    mean = m / (1 - beta1**t)
    square = v / (1 - beta2**t)
    return theta - rate * mean / (np.sqrt(square) + eps), m, v
    # END SOLUTION


# %% check="adam-step"
check("adam-step", adam_step)

# %% [markdown]
# The real [kernel](glossary.md#kernel), whole. Its (4) and (5) are our (B), its (6) is (D):

# %%
show(quote(optimizer.moments_kernel, docstring=True))

# %% [markdown]
# Three things it does that yours does not. It takes a parameter through the whole step in
# [registers](glossary.md#register), a [thread](glossary.md#thread) for each. The corrections, the same
# for all parameters, come from outside: `rate` is $\eta / (1 - \beta_1^t)$, and `root_weight`
# $1 / \sqrt{1 - \beta_2^t}$. And it can add a *decay*, which pulls parameters towards 0.
#
# Memory is all that such a step costs. **Predict**: how many numbers do your array operations read and
# write for each parameter, and how many does the kernel?

# %%
guess("numbers a parameter, arrays", 20)
guess("numbers a parameter, kernel", 7)

# %%
n, beta1, beta2 = 4096, 0.9, 0.999
theta, g, m, v = random.random((4, n), np.float32)
mine = partial(adam_step, t=3, rate=0.01, beta1=beta1, beta2=beta2, eps=1e-8)
passed = numbers_passed(mine, theta, g, m, v)
expected, *_ = mine(theta, g, m, v)
numbers = 0.01 / (1 - beta1**3), (1 - beta2**3) ** -0.5, 1e-8, 0
numbers += beta1, 1 - beta1, beta2, 1 - beta2
launch = optimizer.moments_kernel[n // 512, 512]
arguments = theta, g, m, v, *map(np.float32, numbers)
counted = microscope.inspect(launch, *arguments, compiled=False).roofline
launch(*arguments)
reveal("numbers a parameter, arrays", passed / n)
reveal("numbers a parameter, kernel", counted.needed / 4 / n)
print(f"with a parameter read twice, as written: {counted.moved / 4 / n}")
print(f"kernel and yours differ by {error(theta, expected):.0e}")

# %% [markdown]
# ## 4. One seed proves nothing
#
# A seed decides where weights begin, and which digits come. Let two attentions be equally good, and
# give each $n$ seeds. All orders in which these $2n$ runs finish are then equally likely. That one
# attention, named before, gets all first places, has the probability
#
# $$p = \frac{n!\, n!}{(2n)!} \tag{E}$$
#
# With one seed each that is $1/2$: a coin. **Predict** it for three.

# %%
guess("p of three seeds each", 0.125)

# %%
reveal("p of three seeds each", 1 / math.comb(6, 3))

# %% [markdown]
# Now train. *Learned* is a mean loss of 10 steps below 0.1. **Predict**: of five seeds of linear
# attention, how many times the steps of the luckiest does the unluckiest take?

# %%
guess("unluckiest over luckiest", 1.5)

# %%
SEEDS = 2 if FAST else 5
curves = {"softmax": [], "linear": []}
trained = {}
for seed in range(SEEDS):
    for name, own in curves.items():
        trained[name, seed], losses = train(name, seed)
        own.append(windows(losses, EVERY))
steps, rows = {}, []
for name, own in curves.items():
    below = np.array(own) < 0.1
    first = np.where(below.any(axis=1), 1 + below.argmax(axis=1), np.nan)
    steps[name] = EVERY * first
    last = np.array(own)[:, -1]
    after = ", ".join(f"{step:.0f}" for step in steps[name])
    rows.append((name, after, last.min(), last.max()))
table(("attention", "learned after", "least loss", "largest loss"), rows)
spread = max(steps["linear"]) / min(steps["linear"])
reveal("unluckiest over luckiest", spread)
p = 1 / math.comb(2 * SEEDS, SEEDS)
print(f"p, if softmax got all {SEEDS} first places by luck: {p:.2g}")

# %% tags=["hide-input"]
show(
    figures.bands(curves, EVERY, 0.1), "bands",
    alt="Bands of loss: softmax falls first, linear later, to the same height",
)  # fmt: skip

# %% [markdown]
# Two runs of *one* method, on the lucky and the unlucky seed, would make a paper: so much faster, by
# nothing. Between the attentions no seed is out of order, and (E) says how sure that makes us. Linear
# attention comes as far as softmax, later. `results/copy_curves` has larger models: with 16 digits it
# takes 2.6 times the steps, and copies 100.0%. But with 64 it takes 4.5 times, and after 1,600 steps
# has 99.0% of the digits right, softmax 100.0%.
#
# ## 5. Who wins at 64?
#
# S1 measured four lengths, drew a parabola through softmax, a line through linear attention, and
# announced where they cross:
#
# $$T_s = a + b L^2 \qquad T_l = c + d L \tag{F}$$

# %%
printed = {  # S1, table 1: seconds of 3,000 steps, by length
    "softmax": {8: 221, 16: 236, 32: 287, 64: 416},
    "linear": {8: 1738, 16: 3004, 32: 5373, 64: 10071},
}


def fitted(left_out=None):
    """(a, b) and (c, d) of (F), by the lengths that are left."""
    found = []
    for times, power in zip(printed.values(), (2, 1), strict=True):
        kept = {n: s for n, s in times.items() if n != left_out}
        x = np.array([*kept]) ** power
        found.append(np.polyfit(x, [*kept.values()], 1)[::-1])
    return found


def crossing(left_out=None):
    """Where a + b L^2 = c + d L."""
    (a, b), (c, d) = fitted(left_out)
    return max(np.roots([b, -d, a - c]).real)


# %%
whole, rest = crossing(), [crossing(n) for n in (8, 16, 32, 64)]
print(f"all four lengths: {whole:,.0f}")
print("without one:", ", ".join(f"{length:,.0f}" for length in rest))

# %% [markdown]
# The crossing lies 49 times beyond the last length; without that length it is elsewhere. Such a number
# needs its interval or, better, a measurement. The same model, by this package on two cores, is in
# `results/copy_times`. **Predict**: at 64 digits, who takes less time for a step of the whole model?
# Who for attention alone? And on your machine, attention of a single sequence, not of eight?

# %%
guess("faster at 64, whole model", "linear")
guess("faster at 64, attention alone", "linear")
guess("faster at 64, here", "linear")

# %% tags=["hide-input"]
measured = {  # results/copy_times: milliseconds of a step, by length
    "softmax": {8: 195.8, 16: 260.7, 32: 355.7, 64: 576.2, 128: 1081, 256: 2191, 512: 4906},
    "linear": {8: 195.9, 16: 265.9, 32: 357, 64: 591, 128: 1036, 256: 1901, 512: 3627},
}  # fmt: skip
alone = {"softmax": 4.89, "linear": 4.711}  # the same, at 64, attention alone
crossed = {"whole": (95, 25, 111), "alone": (65, 61, 67)}


# %%
def passes(attend, length):
    """Attention of 8 heads of 64, forward and backward."""
    shape = 1, 8, length, 64
    qkv = [
        Tensor(random.standard_normal(shape, np.float32), requires_grad=True)
        for _ in "qkv"
    ]
    out = attend(*qkv, causal=True)
    out.backward(np.ones(shape, np.float32))


# %%
at_64 = {name: times[64] for name, times in measured.items()}
reveal("faster at 64, whole model", min(at_64, key=at_64.get))
reveal("faster at 64, attention alone", min(alone, key=alone.get))
ways = {"softmax": softmax_attention, "linear": linear_attention}
for length in (64,) if FAST else (64, 1024):
    taken = seconds(*(partial(passes, way, length) for way in ways.values()))
    here = dict(zip(ways, taken, strict=True))
    for name, time in here.items():
        print(f"here, {length} tokens, {name}: {time}")
    if length == 64:
        reveal("faster at 64, here", min(here, key=lambda x: here[x].median))
for name, (middle, least, most) in crossed.items():
    print(f"{name}: linear ahead from {middle} on; repeats: {least} to {most}")

# %% tags=["hide-input"]
ab, cd = fitted()
show(
    figures.crossing(
        printed,
        {
            "softmax": lambda n: ab[0] + ab[1] * n**2,
            "linear": lambda n: cd[0] + cd[1] * n,
        },
        (whole, min(rest), max(rest)),
        {
            name: {n: 3 * ms for n, ms in own.items()}
            for name, own in measured.items()
        },
        crossed["whole"],
    ),
    "crossing",
    alt="S1's lines cross far right of its data; measured ones cross near 95",
)

# %% [markdown]
# At 64 softmax wins, by 3%; with attention alone, linear by 4%: whoever asks must say of what. A whole
# step has [projections](glossary.md#projection) and Adam, which cost both the same. From 25 to 111 repeats disagree. And S1's
# factor of 24? The state walked by a loop over positions makes a step here 4.5 times as long as
# without; its other faults at most 1.3 times. This explains a part, on another machine.
#
# ## 6. Token by token
#
# A trained model writes from its state: lesson 7's $S$ and $Z$. Of its scores
# $s$, how does it choose? With temperature $\tau$ and a random number $u$ in $[0, 1)$, symbol $j$ is
# the first one with
#
# $$\sum_{i \le j} e^{s_i / \tau} > u \sum_i e^{s_i / \tau} \tag{G}$$
#
# so that each comes as often as softmax of $s / \tau$ says. As $\tau \to 0$ only the largest is left.

# %% [markdown] exercise="sample"
# ### Exercise 3 (3 points, 10 min): draw a symbol
#
# `scores` (N, V) may be large, and $-\infty$ where a symbol is masked; one at least is not. `u` (N,)
# has a number for each row. Return N symbols by (G); for `temperature` 0 the highest score, of equal
# ones the first. No loop.
#
# <details><summary>Hint 1 of 3</summary>
#
# Take the largest score of each row away before `np.exp`, and divide by the temperature then.
#
# </details>
# <details><summary>Hint 2 of 3</summary>
#
# `weights.cumsum(axis=-1)` has the left side of (G) for all j; its last column is the sum of all.
#
# </details>
# <details><summary>Hint 3 of 3</summary>
#
# The first that is larger has as many before it as are *not* larger: count those, `<=`.
#
# </details>


# %% exercise="sample"
def sample(scores, temperature, u):
    """A symbol for each row."""
    # BEGIN SOLUTION
    if temperature == 0:
        return scores.argmax(axis=-1)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp((scores - largest) / temperature)
    below = weights.cumsum(axis=-1)
    return (below <= u[:, None] * below[:, -1:]).sum(axis=-1)
    # END SOLUTION


# %% check="sample"
check("sample", sample)

# %% [markdown]
# In the loop below, each round costs the same, wherever it is in the text. Your trained model gives
# nearly all probability to the right digit. At $\tau = 2$ it gives the root of each
# probability, scaled. **Predict**: which share of digits is right then?

# %%
guess("digits right at temperature 2", "99%")


# %%
def copied(model, temperature):
    """Which share of digits is right, written one by one."""
    with no_grad():
        state = model.init_state(fresh.source)
        tokens, written = np.full((len(fresh.source), 1), SEPARATOR), []
        for _ in range(L):
            scores, state = model.step(tokens, state)
            u = random.random(len(tokens))
            tokens = sample(scores.numpy()[:, -1], temperature, u)[:, None]
            written.append(tokens)
    return (np.hstack(written) == fresh.source).mean()


shares = {t: copied(trained["linear", 0], t) for t in (0, 1, 2, 4)}
table(
    ("temperature", "digits right"),
    [(t, f"{x:.1%}") for t, x in shares.items()],
)
reveal("digits right at temperature 2", f"{shares[2]:.1%}")

# %% [markdown]
# What does a state save? In `results/generation` a model draws pictures of 3,072 pixels, one after the
# other, each from those before:

# %% tags=["hide-input"]
drawn = {  # seconds an image, results/generation and Katharopoulos et al.
    "from (S, Z)": (41.5, 45.1),
    "softmax, keys and values kept": (67.6, 71.9),
    "softmax, all again for each pixel": (1527, 8651),
}
table(
    ("3,072 pixels", "seconds here", "printed"),
    [(k, *x) for k, x in drawn.items()],
)

# %% [markdown]
# The paper's 4,462 times, in [batches](glossary.md#batch), became 1,444 here; one image alone, 37
# times. And the third way is one that nobody needs: over softmax that keeps its keys and values, one
# image gains 1.6 times, there as here.
#
# ## 7. The whole scoreboard
#
# Every row as its lesson's page has it. **Predict**: how many rows are beaten by no other, in numbers
# kept *and* in recall at once?

# %%
guess("rows that no other beats", 4)

# %% tags=["hide-input"]
board = (  # lesson, name, numbers kept, work a token, recall; it cannot
    (7, "softmax", 1024, 1024, 1.00, "keep less than all"),
    (7, "linear", 272, 512, 0.70, "correct itself"),
    (7, "linear, E = 64", 4160, 8192, 0.98, "be small"),
    (8, "chunks of 16", 272, 1024, 0.70, "recall more than linear"),
    (9, "FAVOR+, E = 8", 288, 1024, 0.70, "be sure of one key"),
    (9, "DPFP, E = 8", 288, 576, 0.87, "know where a key stands"),
    (10, "distances", 416, 800, 0.70, "tell 9 places from 9,000"),
    (11, "waves, one_plus_cos", 816, 1648, 0.70, "be sharp"),
    (11, "waves, cos", 528, 1136, 0.19, "recall pairs"),
    (12, "delta, learned", 256, 768, 0.93, "forget what comes once"),
    (13, "window of 16", 512, 512, 0.19, "look further back"),
    (14, "8 latents", 272, 640, 0.35, "write token by token"),
    (14, "32 latents", 1088, 2560, 0.88, "write token by token"),
)
rows = [(*row[:4], f"{row[4]:.0%}", row[5]) for row in board]
table(("lesson", "E = 16", "kept", "work", "recall", "cannot"), rows)

# %%
front = [
    one[1]
    for one in board
    if not any(
        (kept <= one[2] and share >= one[4])
        and (kept, share) != (one[2], one[4])
        for _, _, kept, _, share, _ in board
    )
]
reveal("rows that no other beats", f"{len(front)}: {' and '.join(front)}")

# %% tags=["hide-input"]
show(
    figures.board(board, front, more=(256, 1.0)), "scoreboard",
    alt="Recall against numbers kept: delta and softmax are ahead of all others",
)  # fmt: skip

# %% [markdown]
# Is that the truth? The orange point is from `results/recall`, which trains longer: softmax with
# $E = 4$ keeps 256 numbers and recalls 100%, with each of three seeds. It beats the whole table! But 32
# pairs are few. Softmax's memory grows with the text, a state's does not: ten times the pairs, and
# softmax keeps 2,560 numbers. A scoreboard ranks what it asks for.
#
# ## What it cannot say
#
# * Copying asks for one thing: find a place. A language asks for more.
# * Small models on two cores: who wins on a large GPU, at a large width, is another measurement.
# * Most rows above are one seed. By (E), a small lead of one seed is a coin. And `delta, learned` had
#   more to learn, its rate.
# * (A) finds who looks ahead. It does not find who forgets.
#
# Thirteen rows, and none is best for everything. **Next question: what is yours?**

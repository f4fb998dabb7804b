"""Train it, and be honest: a mask that is missing, a step of Adam, and a symbol that is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ..exercise import (
    Array,
    Case,
    Exercise,
    NotYet,
    Random,
    Wrong,
    left_alone,
    without_loops,
)

Outputs = Callable[[Array, Array], Array]  # of a text's tokens, and of rows for them
COLUMNS, RARE = 6, 3  # of a row; a symbol
TEXTS = 50  # for each place


def _means(x: Array, seen: Array) -> Array:
    """For each token the mean of the rows that it sees: seen (L, L) holds 1 and 0."""
    return seen @ x / seen.sum(axis=1, keepdims=True)


def _earlier(count: int) -> Array:
    return np.tri(count)


def _by_scores(x: Array) -> Array:
    scores = np.exp(x @ x.T / 4)
    return scores / scores.sum(axis=1, keepdims=True)


def _masked(tokens: Array, x: Array) -> Array:
    weights = np.exp(x @ x.T / 4) * _earlier(len(x))
    return weights @ x / weights.sum(axis=1, keepdims=True)


def _ahead(tokens: Array, x: Array) -> Array:
    ahead = np.zeros_like(x)
    ahead[:-3] = x[3:]
    return _means(x, _earlier(len(x))) + ahead


def _one_head(tokens: Array, x: Array) -> Array:
    half = COLUMNS // 2
    masked = _means(x[:, :half], _earlier(len(x)))
    return np.hstack([masked, _means(x[:, half:], np.ones((len(x), len(x))))])


def _one_output(tokens: Array, x: Array) -> Array:
    seen = _earlier(len(x))
    middle = len(x) // 2
    seen[middle, middle + 1] = 1
    return _means(x, seen)


def _normed(tokens: Array, x: Array) -> Array:
    out = _means(x, _earlier(len(x))) + x.mean(axis=0)
    return out - out.mean(axis=1, keepdims=True)


def _rare(tokens: Array, x: Array) -> Array:
    rare = tokens == RARE
    later = np.cumsum(rare[::-1])[::-1] - rare
    return _means(x, _earlier(len(x))) + (later > 0)[:, None]


def _padding(tokens: Array, x: Array) -> Array:
    return np.where((tokens == 0)[:, None], x, x + x.mean(axis=0))


def _rounded(tokens: Array, x: Array) -> Array:
    """Sums of earlier rows as what is left of all: right, but for rounding."""
    x = x.astype(np.float32)
    later = np.cumsum(x[::-1], axis=0)[::-1] - x
    return x.sum(axis=0) - later


def _faint(tokens: Array, x: Array) -> Array:
    return _means(x, _earlier(len(x))) + 1e-3 * x.mean(axis=0)


def _own(tokens: Array, x: Array) -> Array:
    """The next row, for tokens of one symbol only."""
    after = np.vstack([x[1:], np.zeros_like(x[:1])])
    return _means(x, _earlier(len(x))) + np.where((tokens == 1)[:, None], after, 0)


def _beside(tokens: Array, x: Array) -> Array:
    """Rounding, as above, where the first output is tiny beside the others."""
    scale = np.ones((len(x), 1))
    scale[0] = 1e-6
    return _rounded(tokens, scale * x)


class _Model(NamedTuple):
    """Something that makes rows of tokens.

    Attributes:
        name: Says whom it lets see what.
        length: Of its texts.
        symbols: That there are.
        outputs: Of tokens (L,) and rows (L, 6): (L, 6).
        reach: How far ahead it sees: which later token an output needs at least; 0: none.
        hint: What to think of.
    """

    name: str
    length: int
    symbols: int
    outputs: Outputs
    reach: int
    hint: str


MODELS = (
    _Model("a causal mask", 8, 5, _masked, 0, "an output may move with its own token, and with "
           "earlier ones"),
    _Model("negative outputs", 8, 5, lambda t, x: _means(-1 - abs(x), _earlier(len(x))), 0,
           "the largest absolute output: here all are negative"),
    _Model("no mask", 8, 5, lambda t, x: np.broadcast_to(x.mean(axis=0), x.shape), 1,
           "do later tokens really become others, and which outputs stand before them?"),
    _Model("the next token", 7, 5, lambda t, x: _means(x, np.tri(len(x), k=1)), 1,
           "is the output just before the change looked at?"),
    _Model("three ahead", 9, 5, _ahead, 3, "change all later tokens, at each place in turn, and "
           "keep what you have found"),
    _Model("one symbol looks ahead", 12, 3, _own, 1, "a new text for each try, not only a new "
           "future: a token may look ahead or not, by what it is itself"),
    _Model("masked after the softmax", 8, 5, lambda t, x: (_by_scores(x) * _earlier(len(x))) @ x,
           1, "the denominator has seen later tokens"),
    _Model("one head of two", 8, 5, _one_head, 1, "are all columns looked at?"),
    _Model("one output", 8, 5, _one_output, 1, "a single output sees the token after it"),
    _Model("rows of mean 0", 8, 5, _normed, 1, "compare each number, not a mean of them"),
    _Model("a rare symbol", 12, 8, _rare, 1, "one change of each place is too few: the model may "
           "look ahead for one symbol only"),
    _Model("padding", 8, 5, _padding, 1, "symbol 0 sees only itself: texts must have others"),
    _Model("rounding", 8, 5, _rounded, 0, "two float32 that differ in their last digit: hold "
           "differences against the largest absolute output"),
    _Model("a faint leak", 8, 5, _faint, 1, "a thousandth is no rounding"),
    _Model("tiny outputs", 8, 5, lambda t, x: 1e-9 * _ahead(t, x), 3, "all outputs are near 1e-9: "
           "what is 1e-5 of the largest?"),
    _Model("one tiny output", 8, 5, _beside, 0, "the largest of all outputs counts, not of each"),
    _Model("one token", 1, 5, _masked, 0, "there is no later token"),
    _Model("fifty texts", 8, 5, _masked, 0, "an output may move with its own token, and with "
           "earlier ones"),
)  # fmt: skip


def _suspects(random: Random) -> Iterator[Case]:
    for number, model in enumerate(MODELS):
        inputs = {"number": number, "length": model.length, "symbols": model.symbols,
                  "seed": int(random.integers(1 << 30))}  # fmt: skip
        yield Case(model.name, inputs, model.hint)


def _asked(answer: Callable[..., Any], number: int, length: int, symbols: int, seed: int) -> Any:
    chosen, random = MODELS[int(number)], np.random.default_rng(int(seed))
    rows = random.standard_normal((int(symbols), COLUMNS))
    calls = 0

    def model(tokens: Array) -> Array:
        nonlocal calls
        calls += 1
        tokens = np.asarray(tokens)
        if tokens.shape != (length,) or tokens.dtype.kind not in "iu":
            raise NotYet(f"the model takes {length} whole numbers, got {tokens.dtype} of the shape "
                         f"{tokens.shape}")  # fmt: skip
        if tokens.min() < 0 or tokens.max() >= symbols:
            raise NotYet(f"the model knows symbols 0 to {symbols - 1}, got {tokens.min()} to "
                         f"{tokens.max()}")  # fmt: skip
        return np.array(chosen.outputs(tokens, rows[tokens]))

    verdicts = answer(model, int(length), int(symbols), random)
    least = 2 * TEXTS * (int(length) - 1)
    if chosen.name == "fifty texts" and calls < least:
        raise NotYet(f"the model is called {calls} times: {TEXTS} texts for each of {length - 1} "
                     f"places, with two futures, are {least} calls")  # fmt: skip
    return verdicts


def _leaks(number: int, length: int, symbols: int, seed: int) -> Array:
    """By who can see: which outputs have a token so far ahead."""
    model = MODELS[int(number)]
    i = np.arange(length)
    if model.outputs is _one_output:
        return i == length // 2
    return (i + model.reach < length) & (model.reach > 0)


class _Found(Exercise):
    """A verdict on each output of a model."""

    def difference(self, got: Iterable[Any], expected: Iterable[Any]) -> str:
        (said,), (truth,) = got, expected
        if said.shape != truth.shape or said.dtype.kind != "b":
            return f"expected {truth.size} verdicts, True or False, as an array"
        if (said == truth).all():
            return ""
        i = int(np.argmax(said != truth))
        told = "depends on a later token, and is called clean" if truth[i] else (
            "depends on no later token, and is called a leak")  # fmt: skip
        return f"output {i} {told} ({int((said != truth).sum())} of {truth.size} verdicts are off)"


def _descents(random: Random) -> Iterator[Case]:
    for name, steps, count, eps, size, hint in (
        ("one step", 1, 4, 1e-8, 1.0, "are the results theta, m, v, and has each mean its own "
         "beta, in (B) and in (D)?"),
        ("two steps", 2, 4, 1e-8, 1.0, "what has m kept of the first gradient, and what is the sum "
         "of the weights now?"),
        ("twenty steps", 20, 3, 1e-8, 1.0, "compare with (B) to (D), line by line"),
        ("a large epsilon", 3, 4, 0.3, 1.0, "where does epsilon stand?"),
        ("no slope", 3, 3, 1e-8, 0.0, "a gradient of 0 moves nothing"),
        ("tiny slopes", 5, 3, 1e-8, 1e-8, "where does epsilon stand?"),
    ):  # fmt: skip
        signs = random.choice([-1.0, 1.0], (steps, count))
        yield Case(
            name,
            {
                "theta": random.standard_normal(count),
                "gradients": size * signs * random.uniform(0.5, 2, (steps, count)),
                "rate": float(random.uniform(0.05, 0.2)),
                "beta1": float(random.uniform(0.8, 0.9)),
                "beta2": float(random.uniform(0.95, 0.99)), "eps": eps,
            },
            hint,
        )  # fmt: skip


def _descend(
    answer: Any, theta: Array, gradients: Array, rate: float, beta1: float, beta2: float, eps: float
) -> tuple[Array, Any, Any]:
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    places = []
    for t, g in enumerate(gradients, 1):
        with np.errstate(all="ignore"):
            step = left_alone(answer, theta, g, m, v, t, rate, beta1, beta2, eps)
        if step is None:
            raise NotYet("nothing is returned yet: it is your turn")
        if not isinstance(step, (tuple, list)) or len(step) != 3:
            raise NotYet("expected three results: theta, m, v")
        theta, m, v = map(np.asarray, step)
        places.append(theta)
    return np.array(places), m, v


def _weighted(gradients: Array, beta: float) -> tuple[Array, Array]:
    """A sum of what came so far, and its mean, with weights that fall by beta for each step."""
    weights = beta ** np.arange(len(gradients))[::-1, None]
    total = (weights * gradients).sum(axis=0)
    return (1 - beta) * total, total / weights.sum()


def _places(
    theta: Array, gradients: Array, rate: float, beta1: float, beta2: float, eps: float
) -> tuple[Array, Array, Array]:
    """By weighted means of all gradients so far, anew for each step."""
    places = []
    for t in range(1, len(gradients) + 1):
        m, mean = _weighted(gradients[:t], beta1)
        v, square = _weighted(gradients[:t] ** 2, beta2)
        theta = theta - rate * mean / (square**0.5 + eps)
        places.append(theta)
    return np.array(places), m, v


def _draws(random: Random) -> Iterator[Case]:
    def scores(count: int, symbols: int, scale: float = 1.0) -> Array:
        return scale * random.standard_normal((count, symbols))

    def numbers(count: int) -> Array:
        return (random.permutation(count) + random.uniform(0.05, 0.95, count)) / count

    three = np.log(random.dirichlet([5, 5, 5], 12)) + random.uniform(1, 2, (12, 1))
    yield Case("three symbols", {"scores": three, "temperature": 1.0, "u": numbers(12)},
               "the first symbol whose share, with all before it, is more than u")  # fmt: skip
    yield Case("a high temperature", {"scores": scores(40, 8, 2), "temperature": 3.0,
               "u": numbers(40)}, "what is divided by it: scores, or weights?")  # fmt: skip
    cold = scores(40, 8)
    yield Case("a low temperature", {"scores": cold, "temperature": 0.3, "u": numbers(40)},
               "what is divided by it: scores, or weights?")  # fmt: skip
    tied = random.permuted(np.tile([3.0, 3, 1, 0], (12, 1)), axis=1)
    yield Case("temperature 0", {"scores": tied, "temperature": 0.0, "u": numbers(12)},
               "the symbol of the highest score; of equal ones the first")  # fmt: skip
    large = scores(20, 5) + 2000
    yield Case("large scores", {"scores": large, "temperature": 1.0, "u": numbers(20)},
               "exp(2000) is no number: what may be taken away from all scores?")  # fmt: skip
    apart = scores(12, 5) - 1000 * np.arange(12)[:, None]
    yield Case("rows far apart", {"scores": apart, "temperature": 1.0, "u": numbers(12)},
               "each row has a largest score of its own")  # fmt: skip
    yield Case("ten equal scores", {"scores": np.zeros((1, 10)), "temperature": 1.0,
               "u": np.array([np.nextafter(1, 0)])}, "u is almost 1, and ten times 0.1 add up to "
               "less than 1: multiply u by the last sum, as (G) does")  # fmt: skip
    masked = scores(9, 6)
    masked[:, [0, 2, 5]] = -np.inf
    ends = np.r_[np.zeros(3), np.full(3, np.nextafter(1, 0)), numbers(3)]
    yield Case("masked symbols", {"scores": masked, "temperature": 1.0, "u": ends},
               "a symbol of weight 0 is never drawn, neither if u is 0 nor if it is almost 1: is u "
               "multiplied by the last sum?")  # fmt: skip
    yield Case("many rows", {"scores": scores(2000, 30, 3), "temperature": 0.8,
               "u": random.random(2000)}, "all rows at once: no loop")  # fmt: skip


def _quietly(answer: Any, *inputs: Any) -> Any:
    with np.errstate(all="ignore"):
        return without_loops(answer, *inputs)


def _drawn(scores: Array, temperature: float, u: Array) -> Array:
    """Row by row: go along until the shares so far exceed u."""
    drawn = []
    for row, number in zip(scores, u, strict=True):
        best = max(range(len(row)), key=lambda j: row[j])
        if temperature == 0:
            drawn.append(best)
            continue
        weights = [math.exp((score - row[best]) / temperature) for score in row]
        sums = list(accumulate(weights))
        drawn.append(next(j for j, so_far in enumerate(sums) if so_far > number * sums[-1]))
    return np.array(drawn)


_STEP = "theta - rate * mean / (np.sqrt(square) + eps)"

EXERCISES = (
    _Found(
        "leaks", "leaks", 5, _suspects, _leaks, ("the verdicts",), run=_asked,
        wrong=(
            Wrong("the output at the place of the change may move: that is no leak", {
                  "moves[:place] |= moved[:place]": "moves[: place + 1] |= moved[: place + 1]"},
                  "a causal mask"),
            Wrong("outputs after the change are looked at, too",
                  {"moves[:place] |= moved[:place]": "moves |= moved"}, "a causal mask"),
            Wrong("one loss for all outputs, not each output", {
                  "off = abs(after - before).max(axis=1)":
                  "off = np.full(length, abs(after.mean() - before.mean()))"}, "a causal mask"),
            Wrong("the last output is looked at, which may see all tokens",
                  {"|= moved[:place]": "|= moved[-1]"}, "a causal mask"),
            Wrong("earlier tokens become others, too", {"tokens.copy()":
                  "random.integers(symbols, size=length)"}, "a causal mask"),
            Wrong("the answer is upside down: which outputs are still",
                  {"return moves": "return ~moves"}, "a causal mask"),
            Wrong("later tokens only change places", {"(tokens[place:] + more) % symbols":
                  "random.permutation(tokens[place:])"}, "no mask"),
            Wrong("nothing changes", {"(tokens[place:] + more) % symbols": "tokens[place:]"},
                  "no mask"),
            Wrong("the output just before the change is left out", {
                  "moves[:place] |= moved[:place]": "moves[: place - 1] |= moved[: place - 1]"},
                  "no mask"),
            Wrong("only the first half of the places is tried",
                  {"range(1, length)": "range(1, length // 2)"}, "no mask"),
            Wrong("only the last token becomes another",
                  {"range(1, length)": "range(length - 1, length)"}, "the next token"),
            Wrong("one token becomes another, and only the output before it is looked at", {
                  "other[place:] = (tokens[place:] + more) % symbols":
                  "other[place] = (tokens[place] + more[0]) % symbols",
                  "moves[:place] |= moved[:place]": "moves[place - 1] |= moved[place - 1]"},
                  "three ahead"),
            Wrong("what was found is overwritten at the next place",
                  {"moves[:place] |=": "moves[:place] ="}, "the next token"),
            Wrong("one column is looked at",
                  {"abs(after - before).max(axis=1)": "abs(after - before)[:, 0]"},
                  "one head of two"),
            Wrong("a verdict for all outputs, not for each",
                  {"|= moved[:place]": "|= moved[:place].any()"}, "three ahead"),
            Wrong("means of a row are compared, not its numbers", {
                  "abs(after - before).max(axis=1)": "abs((after - before).mean(axis=1))"},
                  "rows of mean 0"),
            Wrong("one change at each place, by luck the wrong one",
                  {"range(50)": "range(1)"}, "one symbol looks ahead"),
            Wrong("one text with 50 futures at each place: a new one for each try", {
                  "        for _ in range(50):\n            tokens = random.integers(symbols, "
                  "size=length)\n": "        tokens = random.integers(symbols, size=length)\n"
                  "        for _ in range(50):\n"}, "one symbol looks ahead"),
            Wrong("fewer than 50 texts", {"range(50)": "range(40)"}, "fifty texts"),
            Wrong("a text of equal symbols", {"            tokens = random.integers(symbols, "
                  "size=length)\n": "            tokens = np.zeros(length, int)\n"},
                  "one symbol looks ahead"),
            Wrong("rounding is called a leak",
                  {"off > 1e-5 * abs(before).max()": "off > 0"}, "rounding"),
            Wrong("a leak is called rounding", {"1e-5": "1e-2"}, "a faint leak"),
            Wrong("an absolute tolerance, not relative to the largest output",
                  {"1e-5 * abs(before).max()": "1e-5"}, "tiny outputs"),
            Wrong("`np.isclose` with its absolute tolerance of 1e-8", {
                  "1e-5 * abs(before).max()": "1e-5 * abs(before).max() + 1e-8"}, "tiny outputs"),
            Wrong("the largest of each output, not of all",
                  {"1e-5 * abs(before).max()": "1e-5 * abs(before).max(axis=1)"},
                  "one tiny output"),
            Wrong("the largest output, not the largest absolute one",
                  {"abs(before).max()": "before.max()"}, "negative outputs"),
        ),
    ),
    Exercise(
        "adam-step", "adam_step", 4, _descents, _places, ("theta after each step", "m", "v"), 1e-7,
        _descend,
        wrong=(
            Wrong("m is not corrected", {"m / (1 - beta1**t)": "m"}, "one step"),
            Wrong("v is not corrected", {"v / (1 - beta2**t)": "v"}, "one step"),
            Wrong("beta1 corrects v, too", {"1 - beta2**t": "1 - beta1**t"}, "one step"),
            Wrong("the results are in another order: theta comes first", {
                  "return theta": "return m, v, theta", "+ eps), m, v": "+ eps)"}, "one step"),
            Wrong("the betas are always 0.9 and 0.999", {"    m = beta1 * m + (1 - beta1) * g\n":
                  "    beta1, beta2 = 0.9, 0.999\n    m = beta1 * m + (1 - beta1) * g\n"},
                  "one step"),
            Wrong("neither is corrected", {"m / (1 - beta1**t)": "m", "v / (1 - beta2**t)": "v"},
                  "one step"),
            Wrong("t counts from 0: the first correction divides by 0", {
                  "beta1**t": "beta1 ** (t - 1)", "beta2**t": "beta2 ** (t - 1)"}, "one step"),
            Wrong("t is one too many", {
                  "beta1**t": "beta1 ** (t + 1)", "beta2**t": "beta2 ** (t + 1)"}, "one step"),
            Wrong("the betas are swapped", {
                  "beta1 * m + (1 - beta1) * g": "beta2 * m + (1 - beta2) * g",
                  "beta2 * v + (1 - beta2) * g**2": "beta1 * v + (1 - beta1) * g**2",
                  "m / (1 - beta1**t)": "m / (1 - beta2**t)",
                  "v / (1 - beta2**t)": "v / (1 - beta1**t)"}, "one step"),
            Wrong("the betas are swapped in the corrections",
                  {"m / (1 - beta1**t)": "m / (1 - beta2**t)",
                   "v / (1 - beta2**t)": "v / (1 - beta1**t)"}, "one step"),
            Wrong("the moments are swapped: the root is m's", {
                  "rate * mean / (np.sqrt(square) + eps)": "rate * square / (np.sqrt(mean) + eps)"},
                  "one step"),
            Wrong("the slope is not squared", {"g**2": "g"}, "one step"),
            Wrong("v is made of m, not of the slope", {"g**2": "m**2"}, "one step"),
            Wrong("the new slope has weight 1 in m", {"(1 - beta1) * g\n": "g\n"}, "one step"),
            Wrong("the new slope has weight 1 in v", {"(1 - beta2) * g**2": "g**2"}, "one step"),
            Wrong("beta1 weighs the new slope, not the old mean", {
                  "beta1 * m + (1 - beta1) * g": "(1 - beta1) * m + beta1 * g"}, "one step"),
            Wrong("beta2 weighs the new slope, not the old mean", {
                  "beta2 * v + (1 - beta2) * g**2": "(1 - beta2) * v + beta2 * g**2"}, "one step"),
            Wrong("no root", {"np.sqrt(square)": "square"}, "one step"),
            Wrong("up the slope", {"theta - rate": "theta + rate"}, "one step"),
            Wrong("the step is returned, not the new place", {"theta - rate": "-rate"},
                  "one step"),
            Wrong("the corrected means are kept, and corrected again at the next step",
                  {"+ eps), m, v": "+ eps), mean, square"}, "one step"),
            Wrong("the step is made of the old m", {
                  "    m = beta1 * m + (1 - beta1) * g\n": "",
                  "    mean = m / (1 - beta1**t)\n": "    mean = m / (1 - beta1**t)\n"
                  "    m = beta1 * m + (1 - beta1) * g\n"}, "one step"),
            Wrong("one root for all numbers",
                  {"np.sqrt(square)": "np.sqrt(square.mean())"}, "one step"),
            Wrong("it writes to m", {"    m = beta1 * m + (1 - beta1) * g\n":
                  "    m *= beta1\n    m += (1 - beta1) * g\n"}, "one step"),
            Wrong("corrections are those of step 1 for ever",
                  {"beta1**t": "beta1", "beta2**t": "beta2"}, "two steps"),
            Wrong("beta times t, not to its power",
                  {"beta1**t": "beta1 * t", "beta2**t": "beta2 * t"}, "two steps"),
            Wrong("m forgets: the slope alone", {"beta1 * m + ": ""}, "two steps"),
            Wrong("m does not fade", {"beta1 * m": "m"}, "two steps"),
            Wrong("v does not fade", {"beta2 * v": "v"}, "two steps"),
            Wrong("epsilon stands under the root",
                  {"(np.sqrt(square) + eps)": "np.sqrt(square + eps)"}, "a large epsilon"),
            Wrong("epsilon is added before the correction", {
                  "(np.sqrt(square) + eps)": "(np.sqrt(v) + eps) * np.sqrt(1 - beta2**t)"},
                  "a large epsilon"),
            Wrong("epsilon is a lower bound, not added", {"(np.sqrt(square) + eps)":
                  "np.maximum(np.sqrt(square), eps)"}, "a large epsilon"),
            Wrong("no epsilon: 0 / 0", {" + eps)": ")"}, "a large epsilon"),
        ),
    ),
    Exercise(
        "sample", "sample", 3, _draws, _drawn, ("symbols",), 1e-9, _quietly,
        wrong=(
            Wrong("always the likeliest", {"if temperature == 0:": "if True:"}, "three symbols"),
            Wrong("the weights of a row do not add up to 1, and u is not scaled",
                  {"u[:, None] * below[:, -1:]": "u[:, None]"}, "three symbols"),
            Wrong("u is held against single weights, not against their sums so far",
                  {"weights.cumsum(axis=-1)": "weights"}, "three symbols"),
            Wrong("symbols beyond u are counted, not those before",
                  {"(below <= u": "(below > u"}, "three symbols"),
            Wrong("one u for all rows", {"u[:, None]": "u[0]"}, "three symbols"),
            Wrong("sums along the rows of the batch, not along symbols",
                  {"weights.cumsum(axis=-1)": "weights.cumsum(axis=0)"}, "three symbols"),
            Wrong("one symbol too many", {".sum(axis=-1)": ".sum(axis=-1) + 1"}, "three symbols"),
            Wrong("from the end: the last symbol comes first", {"weights.cumsum(axis=-1)":
                  "weights[:, ::-1].cumsum(axis=-1)"}, "three symbols"),
            Wrong("scores are multiplied by the temperature", {"/ temperature": "* temperature"},
                  "a high temperature"),
            Wrong("no temperature", {" / temperature": ""}, "a high temperature"),
            Wrong("weights are divided by the temperature, not scores", {
                  "np.exp((scores - largest) / temperature)":
                  "np.exp(scores - largest) / temperature"}, "a high temperature"),
            Wrong("weights to the power of the temperature", {
                  "np.exp((scores - largest) / temperature)":
                  "np.exp(scores - largest) ** temperature"}, "a high temperature"),
            Wrong("a temperature of 0 divides by 0", {"if temperature == 0:": "if False:"},
                  "temperature 0"),
            Wrong("a temperature of 0 becomes a tiny one, which leaves a tie open", {
                  "return scores.argmax(axis=-1)": "temperature = 1e-9"}, "temperature 0"),
            Wrong("of equal scores the last", {"scores.argmax(axis=-1)":
                  "scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=-1)"}, "temperature 0"),
            Wrong("the lowest score at temperature 0", {"scores.argmax": "scores.argmin"},
                  "temperature 0"),
            Wrong("exp of a large score overflows", {"(scores - largest)": "scores"},
                  "large scores"),
            Wrong("one largest score for all rows",
                  {"scores.max(axis=-1, keepdims=True)": "scores.max()"}, "rows far apart"),
            Wrong("softmax first, and u is not multiplied by the last sum, which may not be 1", {
                  "weights.cumsum(axis=-1)":
                  "(weights / weights.sum(axis=-1, keepdims=True)).cumsum(axis=-1)",
                  "u[:, None] * below[:, -1:]": "u[:, None]"}, "ten equal scores"),
            Wrong("softmax first, and no sum is larger than u: the last one may not be 1", {
                  "weights.cumsum(axis=-1)":
                  "(weights / weights.sum(axis=-1, keepdims=True)).cumsum(axis=-1)",
                  "(below <= u[:, None] * below[:, -1:]).sum(axis=-1)":
                  "(below > u[:, None]).argmax(axis=-1)"}, "ten equal scores"),
            Wrong("u = 0 draws a symbol of weight 0", {"(below <= u": "(below < u"},
                  "masked symbols"),
            Wrong("a masked score counts as 0", {
                  "np.exp((scores - largest) / temperature)":
                  "np.exp((np.where(np.isinf(scores), 0, scores) - largest) / temperature)"},
                  "masked symbols"),
        ),
    ),
)  # fmt: skip

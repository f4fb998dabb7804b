"""S1's first claim: linear attention converges stably to softmax's quality.

S1 trains an encoder-decoder to copy sequences of one length, in batches of 8 that were made at the
start, at a constant rate; its figures 2 and 5 are the losses. Here each length and attention is
learned from several seeds. A seed decides the weights and the sequences, each of which is seen
once. Then the model copies fresh sequences, given nothing but what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .. import optim
from ..device import keep_freed_memory, resolve_device
from ..plots import LINES, band, legend, picture
from ..settings import Recipe
from ..tasks.copy import SYMBOLS, CopyBatch, CopyTask, copy_sequences, fresh_sequences
from ..training import Trainer, TrainingError
from .experiment import Case, Experiment, Report, Row, table

ATTENTIONS = ("softmax", "linear")
LENGTHS = (8, 16, 32, 64)
BATCH, RATE = 8, 1e-3
SIZES = {  # full: S1's own
    "smoke": {"layers": 1, "heads": 2, "head_dim": 16},
    "default": {"layers": 2, "heads": 4, "head_dim": 16},
    "full": {"layers": 4, "heads": 8, "head_dim": 64},
}
STEPS = {  # by length
    "smoke": {8: 20},
    "default": {8: 300, 16: 500, 32: 800, 64: 1600},
    "full": dict.fromkeys(LENGTHS, 3000),
}
SEEDS = 3
POINTS = 60  # of a recorded curve, each the mean of a window of steps
FRESH = 256
LEARNED = 0.1  # nats a symbol; who guesses has ln 10 = 2.3
RELAPSED = 5 * LEARNED
CLOSE = 0.01  # of the symbols: who has so much less right is still called as good


class S1Copy(CopyTask):
    """The copy task with S1's sequences, which are all of one length."""

    def draw(self, generator: np.random.Generator, count: int) -> CopyBatch:
        """Return random sequences of the full length."""
        source = generator.integers(0, SYMBOLS, (count, self.length))
        return CopyBatch(source, np.full(count, self.length))


def cases(scale: str) -> list[Case]:
    """Return each length with each attention, from several seeds."""
    return [
        {"length": length, "attention": attention, "seed": seed, "steps": steps, **SIZES[scale]}
        for length, steps in STEPS[scale].items()
        for attention in ATTENTIONS
        for seed in range(1 if scale == "smoke" else SEEDS)
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield how a model learned to copy, and how well it does."""
    yield learn(S1Copy(**settings(case)), case["attention"], case["steps"], case["seed"])


def settings(case: Case) -> dict[str, Any]:
    """Return what a case says of the task."""
    return {name: case[name] for name in ("length", "layers", "heads", "head_dim")}


def learn(task: CopyTask, attention: str, steps: int, seed: int, rate: float = RATE) -> Row:
    """Train at a constant rate, then copy fresh sequences.

    Returns:
        "losses", "accuracies": means over windows of "every" steps; "ended": the step whose loss
        was not finite, or None; "symbols", "sequences": which share was copied right.
    """
    keep_freed_memory()
    recipe = Recipe(BATCH, steps, rate, seed=seed)
    trainer = Trainer(task, recipe, attention, resolve_device("auto"))
    trainer.optimizer = optim.Adam(trainer.model.parameters(), lr=rate)
    rows: list[Row] = []
    with np.errstate(all="ignore"):
        with suppress(TrainingError):
            while trainer.step < steps:
                rows.append(trainer.advance())
        copied = copy_sequences(trainer.model, fresh_sequences(task.length, seed, FRESH))
    every = max(1, steps // POINTS)
    return {
        "every": every,
        "losses": windows([row["loss"] for row in rows], every),
        "accuracies": windows([row["accuracy"] for row in rows], every),
        "ended": None if trainer.step == steps else trainer.step + 1,
        "symbols": copied.tokens_right,
        "sequences": copied.sequences_right,
    }


def windows(values: Sequence[float], every: int) -> list[float]:
    """Return the means of so many values each, to three digits; a last window may be shorter.

    >>> windows([1.0, 2.0, 3.0, 4.0, 9.0], 2)
    [1.5, 3.5, 9.0]
    """
    starts = range(0, len(values), every)
    return [float(f"{np.mean(values[start : start + every]):.3g}") for start in starts]


def learned_at(row: Row) -> int | None:
    """Return the step at the end of the first window whose loss is below 0.1; None: never."""
    below = (index for index, loss in enumerate(row["losses"], 1) if loss < LEARNED)
    first = next(below, None)
    return None if first is None else first * row["every"]


def worst_after(row: Row) -> float:
    """Return the largest loss of a window after it was learned; infinity: it never was."""
    step = learned_at(row)
    return max(row["losses"][step // row["every"] - 1 :]) if step else np.inf


Groups = dict[tuple[int, str], list[Row]]  # the seeds of each length and attention


def report(rows: list[Row]) -> Report:
    """Return what was learned, the first claim, and the curves."""
    groups: Groups = {}
    for row in rows:
        groups.setdefault((row["length"], row["attention"]), []).append(row)
    first, seeds = rows[0], len({row["seed"] for row in rows})
    return Report(
        f"""
{_sizes(first)} Batches of {BATCH}, Adam at {RATE:g} throughout, seeds: {seeds}. *Learned* is a loss
below {LEARNED:g} nats a symbol, as the mean of a {POINTS}th of the steps; a guess costs 2.3. *Worst
after* is the largest such mean since, of all seeds. The last two columns are of {FRESH} fresh
sequences a seed, copied symbol by symbol.

{table(_HEAD, [_line(*key, group) for key, group in groups.items()])}

{_claim(groups)}

![the loss of each length, and the symbols that are right](convergence.png)
""",
        {"convergence.png": partial(plot, groups=groups)},
    )


_HEAD = ("length", "attention", "steps", "learned", "after steps", "loss at the end",
         "worst after", "symbols right", "sequences right")  # fmt: skip


def _sizes(row: Row) -> str:
    def described(size: Row) -> str:
        layers, heads, width = (size[name] for name in ("layers", "heads", "head_dim"))
        return f"{layers} + {layers} layers with {heads} heads of {width}"

    here, own = described(row), described(SIZES["full"])
    if here == own:
        return f"S1's model: {own}."
    return (
        f"The model has {here}, for two cores; S1's, which the scale `full` trains, has {own}, "
        f"and takes {STEPS['full'][row['length']]:,} steps."
    )


def _line(length: int, attention: str, group: list[Row]) -> list[Any]:
    steps = [step for step in map(learned_at, group) if step]
    return [
        length,
        attention,
        group[0]["steps"],
        f"{len(steps)} of {len(group)}",
        spread(steps),
        float(np.median([row["losses"][-1] for row in group])),
        max(map(worst_after, group)) if len(steps) == len(group) else "-",
        *(f"{mean(group, key):.1%}" for key in ("symbols", "sequences")),
    ]


def mean(group: list[Row], key: str) -> float:
    """Return the mean of the seeds."""
    return float(np.mean([row[key] for row in group]))


def median_steps(group: list[Row]) -> float:
    """Return after how many steps half of the seeds have learned; infinity: they have not."""
    return float(np.median([learned_at(row) or np.inf for row in group]))


def spread(numbers: Sequence[float]) -> str:
    """Return the median of numbers, and from where to where they reach.

    >>> spread([300, 100, 200])
    '200 (100 .. 300)'
    """
    if not numbers:
        return "-"
    return f"{np.median(numbers):,.0f} ({min(numbers):,} .. {max(numbers):,})"


def listed(items: Iterable[object]) -> str:
    """Return items as they are read out.

    >>> listed([8, 16, 32])
    '8, 16 and 32'
    """
    *others, last = map(str, items)
    return f"{', '.join(others)} and {last}" if others else last


def verdict(lengths: Sequence[int], against: Sequence[int]) -> str:
    """Say at which of some lengths a claim holds.

    >>> verdict([8, 16, 32], [32])
    '*supported* at 8 and 16 symbols, *not supported* at 32'
    """
    held = [f"{n:,}" for n in lengths if n not in against]
    if not lengths:
        return "*undecided*"
    if not (held and against):
        return "*supported*" if held else "*not supported*"
    missed = listed(f"{n:,}" for n in against)
    return f"*supported* at {listed(held)} symbols, *not supported* at {missed}"


def _claim(groups: Groups) -> str:
    """Return the verdicts on quality and steadiness, and how much longer linear takes."""
    lengths = sorted({length for length, _ in groups})
    steps = {key: median_steps(group) for key, group in groups.items()}
    known = [n for n in lengths if np.isfinite(steps[n, "softmax"])]
    right = {key: mean(group, "symbols") for key, group in groups.items()}
    behind = [n for n in known if right[n, "linear"] < right[n, "softmax"] - CLOSE]
    unsteady = {
        name: [n for n in lengths if max(map(worst_after, groups[n, name])) > RELAPSED]
        for name in ATTENTIONS
    }
    found = [f"{right[n, 'linear']:.1%} against {right[n, 'softmax']:.1%} at {n}" for n in lengths]
    times = [
        f"{steps[n, 'linear'] / steps[n, 'softmax']:.2g} at {n}"
        for n in known
        if np.isfinite(steps[n, "linear"])
    ]
    return f"""
S1's claim: linear attention converges stably to softmax's quality. Its own losses did not settle.

- Softmax's quality, where softmax learns: {verdict(known, behind)}. Of the symbols are right
  {listed(found)}; as good is called who has {CLOSE:.0%} of them less.
- Stably, so that every seed learns and no later mean exceeds {RELAPSED:g}:
  {verdict(lengths, unsteady["linear"])}. Of softmax that would be
  {verdict(lengths, unsteady["softmax"])}.
- How many times softmax's steps linear attention takes to learn: {listed(times or ["unknown"])}.
""".strip()


def plot(path: Path, groups: Groups) -> None:
    """Draw losses above, and shares that are right below; a panel for each length."""
    lengths = sorted({length for length, _ in groups})
    with picture(path, (2.4 * len(lengths) + 0.4, 4.6)) as figure:
        rows = figure.subplots(2, len(lengths), sharex="col", sharey="row", squeeze=False)
        for upper, lower, length in zip(*rows, lengths, strict=True):
            upper.set_title(f"{length} symbols", loc="left", fontsize=10)
            for attention, line in zip(ATTENTIONS, LINES[1::-1], strict=True):
                group = groups[length, attention]
                draw(upper, group, "losses", label=attention, **line)
                draw(lower, group, "accuracies", **line)
            upper.set_yscale("log")
            upper.axhline(LEARNED, color="#999999", linestyle=":", linewidth=1)
            lower.set_xlabel("step")
        rows[0, 0].set_ylabel("cross entropy (nats a symbol)")
        rows[1, 0].set_ylabel("symbols right in training")
        legend(rows[0, 0], 2)


def draw(axis: Axes, group: list[Row], key: str, **line: Any) -> None:
    """Draw the median of the seeds' curves, and from where to where they reach."""
    count = min(len(row[key]) for row in group)
    curves = np.array([row[key][:count] for row in group])
    steps = group[0]["every"] * np.arange(1, count + 1)
    band(axis, steps, curves, np.median, linewidth=1.5, **line)


EXPERIMENT = Experiment(
    "copy_curves",
    "The copy task: does linear attention learn as well as softmax?",
    "S1, figures 2 and 5, and its first claim.",
    cases,
    run,
    report,
)

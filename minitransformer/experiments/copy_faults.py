"""S1's faults as switches: what does each do to the curve, and to the copies?

S1 found losses of linear attention that fell too early and did not settle, and a linear model that
was 8 to 24 times slower than softmax's. Its faults, each of which can be planted here:

    mask ignored        the decoder's linear attention is not causal: it sees what it is to say
    elu reversed        x where x < 0 and exp(x) - 1 elsewhere, as printed, + 1: a feature that may
                        be negative, and grows like exp
    rate 1e-4           where 1e-3 is said
    encoder half dead   two of four layers are computed, and their outputs forgotten
    a forward too many  inside the timed loop
    state by state      S and Z by a loop over positions, instead of a kernel or an einsum

The last two change no number, so the last is left to `copy_times`, which has the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import functions as F
from .. import nn
from ..attention import LinearState
from ..nn.variants.linear import LinearAttention
from ..plots import LINES, legend, picture
from ..tasks.copy import CopyBatch
from ..tensor import Tensor
from .copy_curves import (
    BATCH,
    LEARNED,
    LENGTHS,
    RATE,
    SEEDS,
    SIZES,
    STEPS,
    S1Copy,
    draw,
    learn,
    learned_at,
    mean,
    median_steps,
    settings,
    spread,
)
from .experiment import Case, Experiment, Report, Row, table

FAULTS = MASK, ELU, SLOW, DEAD, TWICE, LOOP = (
    "mask ignored",
    "elu reversed",
    "rate 1e-4",
    "encoder half dead",
    "a forward too many",
    "state by state",
)
NONE, ALL = "none", "all together"
SLOW_RATE = 1e-4
LENGTH = 16
WRONG = 0.1  # of the symbols: who copies more of them wrong has not learned


def planted(name: str) -> frozenset[str]:
    """Return the faults that a name stands for."""
    return frozenset({NONE: (), ALL: FAULTS}.get(name, (name,)))


class FaultyLinear(LinearAttention):
    """Linear attention with faults, for sequences of one length."""

    def __init__(self, faults: frozenset[str]) -> None:
        # The denominator may be negative then; the original authors' code adds an eps to it.
        as_printed = {"feature_map": reversed_elu, "guard": "add"} if ELU in faults else {}
        super().__init__(**as_printed)
        self.faults = faults

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        causal = visible.pop("causal", False) and MASK not in self.faults
        if LOOP in self.faults:
            return self.walk(query, key, value, causal)
        return super().forward(query, key, value, causal=causal, **visible)

    def walk(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Do the same in a loop over positions.

            S_i = S_{i-1} + φ(k_i) v_i^T        Z_i = Z_{i-1} + φ(k_i)                          (1)

        Query i reads S_i and Z_i where attention is causal, and the last ones where it is not.
        """
        state: LinearState | None = None
        outputs = []
        for q, k, v in zip(*(F.split(x, 1, dim=2) for x in (query, key, value)), strict=True):
            output, state = self._step(q, k, v, state, 0)  # (1)
            outputs.append(output)
        return F.cat(outputs, dim=2) if causal else self.recall(query, state)


def reversed_elu(x: Tensor) -> Tensor:
    """Return elu + 1 as S1 prints elu, the inequality reversed."""
    return F.where(x.data > 0, F.exp(x), x + 1)


class Dead(nn.Module):
    """A layer that is computed, and whose output is forgotten."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: Tensor, **visible: Any) -> Tensor:
        """Return x."""
        self.layer(x, **visible)
        return x


@dataclass(frozen=True)
class FaultyCopy(S1Copy):
    """S1's copy task, and S1's faults.

    Attributes:
        faults: The names of those that are planted; that of the rate is the optimizer's.
    """

    faults: frozenset[str] = frozenset()

    def build(self, attention: str | nn.AttentionVariant) -> nn.Transformer:
        """Return a new transformer; only linear attention has faults of its own."""
        model = super().build(FaultyLinear(self.faults) if attention == "linear" else attention)
        if DEAD in self.faults:
            layers = [*model.encoder.layers]
            half = len(layers) // 2
            model.encoder.layers = nn.ModuleList([*layers[:-half], *map(Dead, layers[-half:])])
        return model

    def loss(self, model: nn.Module, batch: CopyBatch) -> tuple[Tensor, float]:
        """Return the loss, and the share of symbols that is right."""
        if TWICE in self.faults:
            super().loss(model, batch)
        return super().loss(model, batch)


def cases(scale: str) -> list[Case]:
    """Return no fault, each by itself, and all together, from several seeds."""
    names, length, seeds = [NONE, *FAULTS[:-1], ALL], LENGTH, SEEDS
    if scale == "smoke":
        names, length, seeds = [NONE, MASK, ALL], LENGTHS[0], 1
    size = {"length": length, "steps": STEPS[scale][length], **SIZES[scale]}
    return [{"fault": name, "seed": seed, **size} for name in names for seed in range(seeds)]


def run(case: Case) -> Iterator[Row]:
    """Yield how linear attention learned to copy with a fault, and how well it does."""
    faults = planted(case["fault"]) - {LOOP}
    task = FaultyCopy(**settings(case), faults=faults)
    yield learn(task, "linear", case["steps"], case["seed"], SLOW_RATE if SLOW in faults else RATE)


Groups = dict[str, list[Row]]  # the seeds of each fault


def report(rows: list[Row]) -> Report:
    """Return what each fault does, the answers, and the curves."""
    groups: Groups = {}
    for row in rows:
        groups.setdefault(row["fault"], []).append(row)
    length, layers, heads, width, steps, every = (
        rows[0][name] for name in ("length", "layers", "heads", "head_dim", "steps", "every")
    )
    return Report(
        f"""
Linear attention learns to copy {length} symbols: {layers} + {layers} layers with {heads} heads of
{width}, batches of {BATCH}, {steps:,} steps at {RATE:g}, seeds: {len(groups[NONE])}.
*Learned* is a loss below {LEARNED:g} nats a symbol, as the mean of {every} steps. What is copied is
fresh, and the model is given nothing but what it wrote itself.

{table(_HEAD, [_line(name, group) for name, group in groups.items()])}

Which fault makes the loss reach zero too early?

{_answers(groups)}

![the loss with each fault, beside that without](faults.png)
""",
        {"faults.png": partial(plot, groups=groups)},
    )


_HEAD = ("fault", "learned", "after steps", "loss at the end", "symbols right",
         "sequences right")  # fmt: skip


def _line(name: str, group: list[Row]) -> list[Any]:
    steps = [step for step in map(learned_at, group) if step]
    ended = [row["ended"] for row in group if row["ended"]]
    return [
        name,
        f"{len(steps)} of {len(group)}",
        spread(steps),
        f"not finite at step {spread(ended)}" if ended else _last(group),
        *(f"{mean(group, key):.1%}" for key in ("symbols", "sequences")),
    ]


def _last(group: list[Row]) -> float:
    return float(np.median([row["losses"][-1] for row in group]))


def too_early(group: list[Row]) -> bool:
    """Whether the losses say that a model has learned, and its copies say that it has not."""
    return all(map(learned_at, group)) and mean(group, "symbols") < 1 - WRONG


def _answers(groups: Groups) -> str:
    names = sorted(groups.keys() - {NONE}, key=[*groups].index)
    return "\n".join(f"- *{name}*: {_effect(groups[name], groups[NONE])}." for name in names)


def _effect(group: list[Row], sound: list[Row]) -> str:
    """Say what a fault does to the losses and to the copies."""
    right, without = mean(group, "symbols"), mean(sound, "symbols")
    steps, ratio = median_steps(group), median_steps(group) / median_steps(sound)
    if [row["losses"] for row in group] == [row["losses"] for row in sound]:
        return "no; the losses are the same, number for number"
    if any(row["ended"] for row in group):
        ended = sum(row["ended"] is not None for row in group)
        return f"no; of {ended} of {len(group)} seeds the loss is not finite in the end"
    if too_early(group):
        return (
            f"**yes**; it is below {LEARNED:g} after {steps:,.0f} steps, {ratio:.2g} times as many "
            f"as without a fault, and of the symbols copied {right:.1%} are right, "
            f"not {without:.1%}"
        )
    if not np.isfinite(steps):
        return f"no; it ends at {_last(group):.2g}, and of the symbols copied {right:.1%} are right"
    return f"no; it takes {ratio:.2g} times as many steps, and {right:.1%} of the symbols are right"


def plot(path: Path, groups: Groups) -> None:
    """Draw a panel for each fault: its losses, and those without it."""
    faulty = [name for name in groups if name != NONE]
    columns = min(3, len(faulty))
    rows = -(-len(faulty) // columns)
    with picture(path, (2.9 * columns, 2.2 * rows + 0.3)) as figure:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, name in zip(axes.flat, faulty, strict=False):
            axis.set_title(name, loc="left", fontsize=10)
            draw(axis, groups[NONE], "losses", label="without a fault", **LINES[0])
            draw(axis, groups[name], "losses", label="with it", **LINES[1])
            axis.set_yscale("log")
        for axis in axes[-1]:
            axis.set_xlabel("step")
        for axis in axes[:, 0]:
            axis.set_ylabel("nats a symbol")
        legend(axes.flat[0], 2)


EXPERIMENT = Experiment(
    "copy_faults",
    "The copy task: what each of S1's faults does",
    "S1's faults: the losses of linear attention that fell too early.",
    cases,
    run,
    report,
)

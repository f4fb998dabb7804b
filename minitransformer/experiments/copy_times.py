"""S1's table 1 and figures 1 and 4: how long a copy takes to learn, and from where linear wins.

S1 measured 3,000 steps at lengths 8 to 64, where its linear model was 8 to 24 times slower than
softmax's, and put a parabola and a line through the times to tell where they cross,

    softmax  a + b L^2        linear  c + d L                                                   (1)

Here the parts of a step are measured at S1's own sizes: forward, backward, the optimizer's step.
Their medians, times 3,000, are the seconds of table 1. Lengths go on from there: the whole model as
far as the time allows, attention alone to 2^13, so that the crossing is measured, too. S1's faults,
one by one and together, are measured at the lengths of the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.polynomial import Polynomial

from .. import nn, optim
from ..course.measuring import slope
from ..device import keep_freed_memory, resolve_device
from ..plots import LINES, band, legend, picture
from ..tensor import Tensor
from .copy_curves import BATCH, LENGTHS, RATE, SIZES, settings, verdict
from .copy_faults import ALL, FAULTS, LOOP, SLOW, FaultyCopy, FaultyLinear, planted
from .experiment import Case, Experiment, Report, Row, supported, table

STEPS = 3000
PRINTED = {  # seconds of 3,000 steps on a Quadro P4000
    "softmax": {8: 221.0, 16: 236.0, 32: 287.0, 64: 416.0},
    "linear": {8: 1738.0, 16: 3004.0, 32: 5373.0, 64: 10071.0},
}
SOFTMAX, LINEAR = PRINTED
_PRINTED_RATIOS = {n: PRINTED[LINEAR][n] / PRINTED[SOFTMAX][n] for n in LENGTHS}
MODEL, ATTENTION = "the whole model", "attention alone"
PARTS = ("forward", "backward", "step")
LONGER = {"smoke": (), "default": (128, 256, 512), "full": (128, 256, 512, 1024, 2048)}
FURTHEST = {"smoke": 2**5, "default": 2**13, "full": 2**15}  # length, of attention alone
LONGEST_LOOP = 2**8  # it keeps a state for each position, and takes long
REPEATS, FEW, LONG = 5, 3, 2**11  # what is longer is repeated less
STEEP = 2**9  # from here on, the time of attention is a power of the length
LINEARLY = 1.15  # the largest exponent that is called so
TIMED = [fault for fault in FAULTS if fault != SLOW]  # no rate takes longer than another

_LINES: dict[str, dict[str, Any]] = {SOFTMAX: LINES[1], LINEAR: LINES[0], LOOP: LINES[2]}

Times = Mapping[int, float]
Step = Callable[[], Iterator[None]]


def cases(scale: str) -> list[Case]:
    """Return the table's lengths with all faults, then longer ones, then attention alone."""
    smoke = scale == "smoke"
    lengths, faults = (LENGTHS[:2], [LOOP]) if smoke else (LENGTHS, [*TIMED, ALL])
    size = {x: SIZES["smoke" if smoke else "full"][x] for x in ("layers", "heads", "head_dim")}
    found = [(MODEL, n, faults, REPEATS) for n in lengths]
    found += [(MODEL, n, [], FEW) for n in LONGER[scale]]
    for n in (2**power for power in range(3, FURTHEST[scale].bit_length())):
        looped = [LOOP] if n <= LONGEST_LOOP else []
        found.append((ATTENTION, n, looped, REPEATS if n <= LONG else FEW))
    return [
        {"what": what, "length": n, "faults": faults, "repeats": 2 if smoke else repeats, **size}
        for what, n, faults, repeats in found
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield the seconds of each part; who is compared takes turns, after a first to warm up."""
    keep_freed_memory()
    device = resolve_device("auto")
    make = model_step if case["what"] == MODEL else attention_step
    steps = {name: make(case, name, device) for name in (SOFTMAX, LINEAR, *case["faults"])}
    taken: dict[str, list[list[float]]] = {name: [] for name in steps}
    with np.errstate(all="ignore"):
        for _ in range(1 + case["repeats"]):
            for name, step in steps.items():
                taken[name].append(timed(step, device))
    for name, (_, *repeats) in taken.items():
        seconds = zip(PARTS, zip(*repeats, strict=True), strict=False)
        yield {"variant": name, **{part: [float(f"{x:.4g}") for x in xs] for part, xs in seconds}}


def model_step(case: Case, name: str, device: str) -> Step:
    """Return a step of the whole model; a name is an attention's, or that of linear's fault."""
    task = FaultyCopy(**settings(case), faults=_faults_of(name))
    model = task.build(SOFTMAX if name == SOFTMAX else LINEAR).to(device)
    optimizer = optim.Adam(model.parameters(), lr=RATE)
    batch = task.draw(np.random.default_rng(0), BATCH)

    def step() -> Iterator[None]:
        optimizer.zero_grad()
        yield
        loss, _ = task.loss(model, batch)
        yield
        loss.backward()
        yield
        optimizer.step()
        yield

    return step


def _faults_of(name: str) -> frozenset[str]:
    return frozenset() if name in PRINTED else planted(name)


def attention_step(case: Case, name: str, device: str) -> Step:
    """Return the two passes of causal attention."""
    variant = nn.SoftmaxAttention() if name == SOFTMAX else FaultyLinear(_faults_of(name))
    shape = BATCH, case["heads"], case["length"], case["head_dim"]
    generator = np.random.default_rng(0)
    arrays = (Tensor(generator.standard_normal(shape, np.float32)).to(device) for _ in range(4))
    *inputs, gradient = (x.data for x in arrays)

    def step() -> Iterator[None]:
        query, key, value = (Tensor(x, requires_grad=True) for x in inputs)
        yield
        output = variant(query, key, value, causal=True)
        yield
        output.backward(gradient)
        yield

    return step


def timed(step: Step, device: str) -> list[float]:
    """Return the seconds of each part of a step, which pauses before, between and after them."""
    number = Tensor(np.zeros(1, np.float32)).to(device)
    clock = []
    for _ in step():
        number.item()  # a GPU that is asked for one does first what was launched
        clock.append(time.perf_counter())
    return [after - before for before, after in pairwise(clock)]


def regression(softmax: Times, linear: Times, powers: Sequence[int] = (0, 2)) -> float:
    """Return where the curves (1) through two tables of times cross; NaN: nowhere.

    `powers`, of the length, are softmax's: (0, 1, 2) for a parabola with a linear term.
    """
    gap = fitted(softmax, powers) - fitted(linear, (0, 1))
    roots = [float(x.real) for x in np.roots(gap.coef[::-1]) if abs(x.imag) < 1e-9 < x.real]
    return max(roots) if roots and gap.coef[2] > 0 else np.nan


def fitted(times: Times, powers: Sequence[int]) -> Polynomial:
    """Return the polynomial of these powers with the least squared error."""
    lengths, seconds = np.array([*times], float), np.array([*times.values()])
    coefficients = np.zeros(3)
    columns = lengths[:, None] ** np.array(powers)
    coefficients[list(powers)] = np.linalg.lstsq(columns, seconds, rcond=None)[0]
    return Polynomial(coefficients)


def without_one(softmax: Times, linear: Times) -> list[float]:
    """Return where the curves (1) cross if a length is left out, for each."""

    def rest(times: Times, left: int) -> Times:
        return {n: seconds for n, seconds in times.items() if n != left}

    return [regression(rest(softmax, n), rest(linear, n)) for n in softmax]


def crossing(softmax: Times, linear: Times) -> float:
    """Return from which length on linear takes less; infinity: from none that was measured.

    Between two lengths, the logarithms are straight lines. If it is ahead of all, it is the first.
    """
    lengths = sorted(softmax)
    gaps = [float(np.log(linear[n] / softmax[n])) for n in lengths]
    last = max((index for index, gap in enumerate(gaps) if gap > 0), default=-1)
    if last < 0:
        return float(lengths[0])
    if last == len(lengths) - 1:
        return np.inf
    share = gaps[last] / (gaps[last] - gaps[last + 1])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)


class Measured:
    """What was measured of the whole model, or of attention alone.

    Args:
        rows: The record's.
        what: Which of the two.

    Attributes:
        lengths: In order.
        parts: Of each variant, the seconds of each part against the length, medians.
        steps: Of each variant, the seconds of a step against the length: the parts' sum.
        repeats: Of each variant, such a table for each repeat.
    """

    def __init__(self, rows: list[Row], what: str) -> None:
        rows = [row for row in rows if row["what"] == what]
        self.lengths = sorted({row["length"] for row in rows})
        self.parts: dict[str, dict[str, Times]] = {}
        self.steps: dict[str, Times] = {}
        self.repeats: dict[str, list[Times]] = {}
        for variant in dict.fromkeys(row["variant"] for row in rows):
            own = {row["length"]: row for row in rows if row["variant"] == variant}
            parts = [part for part in PARTS if all(part in row for row in own.values())]
            self.parts[variant] = {
                part: {n: float(np.median(row[part])) for n, row in own.items()} for part in parts
            }
            self.steps[variant] = {n: sum(self.parts[variant][p][n] for p in parts) for n in own}
            totals = {n: np.sum([row[part] for part in parts], axis=0) for n, row in own.items()}
            count = min(map(len, totals.values()))
            self.repeats[variant] = [
                {n: float(each[i]) for n, each in totals.items()} for i in range(count)
            ]

    def table(self, variant: str) -> Times:
        """Return the seconds of a step at the lengths of table 1."""
        return {n: seconds for n, seconds in self.steps[variant].items() if n in LENGTHS}

    def crossing(self) -> tuple[float, float, float]:
        """Return from where linear wins, and the least and the most that a repeat says."""
        each = [*map(crossing, self.repeats[SOFTMAX], self.repeats[LINEAR])]
        return float(np.median(each)), min(each), max(each)


def ratios(times: Times, others: Times) -> Times:
    """Return how many times as long as others something takes, at each length."""
    return {n: seconds / others[n] for n, seconds in times.items()}


def report(rows: list[Row]) -> Report:
    """Return table 1 beside the printed one, the crossing, the faults, two claims, two figures."""
    model, alone = Measured(rows, MODEL), Measured(rows, ATTENTION)
    layers, heads, width, repeats = (
        rows[0][name] for name in ("layers", "heads", "head_dim", "repeats")
    )
    return Report(
        f"""
{layers} + {layers} layers with {heads} heads of {width}, batches of {BATCH} sequences of one
length. The seconds of {STEPS:,} steps are {STEPS:,} times those of one: the medians of its parts
over {repeats} repeats, fewer where they take long. The printed ones are a Quadro P4000's.

## Table 1

{table(_TABLE_1, _table_1(model))}

The parts of a step, in milliseconds:

{table(["length", *(f"{name}: {part}" for name in PRINTED for part in PARTS)], _parts(model))}

![seconds against gradient steps](steps.png)

## The crossing

{_crossings(model, alone)}

![where linear overtakes softmax: by regression, the whole model, attention alone](crossing.png)

## The faults

How many times as long as softmax's a step of linear attention takes, with each fault:

{_fault_table(model)}

{_culprit(model, alone, layers)}

## The claims

{_scaling(alone)}

S1's claim: it is faster. Its own table has it slower at every length.

{_speed(alone, "Attention alone")}

{_speed(model, "The whole model")}
""",
        {
            "crossing.png": partial(plot_crossing, model=model, alone=alone),
            "steps.png": partial(plot_steps, model=model),
        },
    )


_TABLE_1 = ("length", "softmax", "linear", "linear : softmax", "printed: softmax",
            "printed: linear", "printed: linear : softmax")  # fmt: skip


def _table_1(model: Measured) -> Iterator[list[Any]]:
    softmax, linear = (model.steps[name] for name in PRINTED)
    for n in model.lengths:
        printed = [times.get(n, "-") for times in (*PRINTED.values(), _PRINTED_RATIOS)]
        yield [n, STEPS * softmax[n], STEPS * linear[n], linear[n] / softmax[n], *printed]


def _parts(model: Measured) -> Iterator[list[Any]]:
    for n in model.lengths:
        yield [n, *(1e3 * model.parts[name][part][n] for name in PRINTED for part in PARTS)]


def _crossings(model: Measured, alone: Measured) -> str:
    softmax, linear = PRINTED.values()
    rest = without_one(softmax, linear)
    ours = regression(model.table(SOFTMAX), model.table(LINEAR))
    looped = regression(model.table(SOFTMAX), model.table(LOOP))
    return f"""
- By the regression (1) of the printed times: {regression(softmax, linear):,.2f}. It hangs on each
  of them: without one it is {min(rest):,.0f} to {max(rest):,.0f}, and with a linear term in
  softmax's parabola {regression(softmax, linear, (0, 1, 2)):,.0f}.
- By the same regression of our times at the same lengths: {_length(ours)}; with linear attention
  state by state, as S1 may have made it: {_length(looped)}.
- Measured, the whole model: {_when(model)}.
- Measured, attention alone: {_when(alone)}.
""".strip()


def _length(crossing: float) -> str:
    return f"{crossing:,.0f}" if np.isfinite(crossing) else "nowhere"


def _when(measured: Measured) -> str:
    """Say from which length on linear takes less time."""
    middle, least, most = measured.crossing()
    if not np.isfinite(middle):
        return f"linear is not ahead at {measured.lengths[-1]:,}, the greatest length"
    if middle == measured.lengths[0]:
        return f"linear is ahead at every length, from {middle:.0f} on"
    reach = f"{_length(least)} .. {_length(most)}"
    return f"linear is ahead from {middle:,.0f} on ({reach} by single repeats)"


def _fault_table(model: Measured) -> str:
    lengths = [n for n in model.lengths if n in LENGTHS]
    softmax = model.table(SOFTMAX)
    slower = {name: ratios(model.table(name), softmax) for name in model.steps if name != SOFTMAX}
    return table(
        ["fault", *(f"{n} symbols" for n in lengths)],
        [
            *(["none" if name == LINEAR else name, *row.values()] for name, row in slower.items()),
            ["printed", *(_PRINTED_RATIOS[n] for n in lengths)],
        ],
    )


def _culprit(model: Measured, alone: Measured, layers: int) -> str:
    """Say which fault could have made linear so slow."""
    last = max(model.table(LINEAR))
    times = {
        name: model.steps[name][last] / model.steps[LINEAR][last]
        for name in model.steps
        if name in TIMED
    }
    worst, *others = sorted(times, key=lambda name: -times[name])
    rest = "".join(f", {times[name]:.2g} times with *{name}*" for name in others)
    there = _milliseconds(PRINTED[LINEAR], SIZES["full"]["layers"]) / STEPS
    here = _milliseconds(model.table(LOOP), layers)
    looped = ratios(alone.table(LOOP), alone.table(SOFTMAX))
    return f"""
Which makes linear {_reach(_PRINTED_RATIOS)} times slower? Of one fault by itself: at {last} symbols
a step takes {times[worst]:.2g} times as long with *{worst}* as without a fault{rest}.

In the line (1) through the printed times, a position costs each attention of the model {there:.2g}
ms of a step, as do operations that are launched for each position anew; state by state it costs
{here:.2g} ms here. Attention alone, state by state, takes {_reach(looped)} times as long as softmax
at the lengths of table 1.
""".strip()


def _milliseconds(linear: Times, layers: int) -> float:
    """Return what a position costs an attention, by the line (1)."""
    attentions = 3 * layers  # of the encoder, of the decoder, and across
    return float(1e3 * fitted(linear, (0, 1)).coef[1] / attentions)


def _reach(ratios: Times) -> str:
    return f"{min(ratios.values()):.2g} to {max(ratios.values()):.2g}"


def _scaling(alone: Measured) -> str:
    """Return the verdict on the second claim."""
    steep = [n for n in alone.lengths if n >= min(STEEP, alone.lengths[-2])]
    powers = {name: slope(steep, [alone.steps[name][n] for n in steep]) for name in PRINTED}
    found = supported(powers[LINEAR] < LINEARLY)
    return f"""
S1's claim: linear attention scales linearly. {found}: from {steep[0]:,} to {steep[-1]:,} symbols
the time of attention grows with the power {powers[LINEAR]:.2f} of the length, softmax's with
{powers[SOFTMAX]:.2f}.
""".strip()


def _speed(measured: Measured, name: str) -> str:
    """Return the verdict on the third claim."""
    found = ratios(measured.steps[LINEAR], measured.steps[SOFTMAX])
    first, *_, last = measured.lengths
    slower = [n for n in measured.lengths if found[n] >= 1]
    return (
        f"- {name}: {verdict(measured.lengths, slower)}. Linear takes {found[first]:.2g} times as "
        f"long as softmax at {first}, {found[last]:.2g} times at {last:,}."
    )


def plot_crossing(path: Path, model: Measured, alone: Measured) -> None:
    """Draw time against length: as printed, with its curves (1); the whole model; attention."""
    with picture(path, (10.4, 3.6)) as figure:
        printed, *axes = figure.subplots(1, 3)
        _draw_printed(printed)
        for axis, measured, title in zip(axes, (model, alone), (MODEL, ATTENTION), strict=True):
            axis.set_title(f"{title}, measured", loc="left", fontsize=10)
            for variant in _LINES:
                repeats = measured.repeats[variant]
                _band(axis, [*repeats[0]], [[*one.values()] for one in repeats], variant, "o")
            _mark(axis, *measured.crossing())
            axis.set_ylabel("seconds a step")
        for axis in (printed, *axes):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel("length")
        legend(axes[0], 3)


def _draw_printed(axis: Axes) -> None:
    lengths = np.geomspace(min(LENGTHS), FURTHEST["default"], 200)
    axis.set_title("as printed, and its regression (1)", loc="left", fontsize=10)
    for name, powers in ((SOFTMAX, (0, 2)), (LINEAR, (0, 1))):
        times = PRINTED[name]
        axis.plot([*times], [*times.values()], "o", color=_LINES[name]["color"], markersize=4)
        axis.plot(lengths, fitted(times, powers)(lengths), **_LINES[name], linewidth=1)
    rest = without_one(*PRINTED.values())
    _mark(axis, regression(PRINTED[SOFTMAX], PRINTED[LINEAR]), min(rest), max(rest))
    axis.set_ylabel(f"seconds of {STEPS:,} steps")


def _mark(axis: Axes, middle: float, least: float, most: float) -> None:
    """Draw where linear overtakes softmax, if it does, and between which lengths that lies."""
    if np.isfinite(middle):
        axis.axvline(middle, color="#333333", linewidth=1, linestyle=":")
    if np.isfinite(most):
        axis.axvspan(least, most, color="#333333", alpha=0.12, linewidth=0)


def plot_steps(path: Path, model: Measured) -> None:
    """Draw time against gradient steps: a panel for each length of table 1."""
    lengths = [*model.table(LINEAR)]
    steps = np.array([0, STEPS])
    with picture(path, (2.3 * len(lengths) + 0.6, 2.7)) as figure:
        axes = figure.subplots(1, len(lengths), squeeze=False)[0]
        for axis, n in zip(axes, lengths, strict=True):
            axis.set_title(f"{n} symbols", loc="left", fontsize=10)
            for variant in _LINES:
                _band(axis, steps, [steps * one[n] for one in model.repeats[variant]], variant)
            axis.set_xlabel("gradient steps")
        axes[0].set_ylabel("seconds")
        legend(axes[0], 3)


def _band(axis: Axes, x: Any, curves: Sequence[Any], variant: str, marker: str = "") -> None:
    """Draw the median of curves, and from where to where they reach."""
    look = {**_LINES[variant], "label": variant, "marker": marker, "markersize": 3}
    band(axis, x, curves, np.median, **look)


EXPERIMENT = Experiment(
    "copy_times",
    "The copy task: how long it takes, and from which length linear wins",
    "S1, table 1, figures 1 and 4, and its second and third claim.",
    cases,
    run,
    report,
)

"""How well a Fourier position can weigh distances.

With one-dimensional positions, the weight that Fourier attention gives to a distance t = p_i - r_j
is

    f(t) = sum_e q_e k_e c_e cos(b_e + a_e t)                                                 (1)

a sum of harmonics, so that with enough of them it comes close to any function on an interval (S2).
How close, with how many? Here attention itself draws the function. Queries whose features are all
1 stand at t from 0 to 1, and one key at 0. Without a denominator, as S2 prints its formula, the
output is then (1) times the key's value. A head draws a target function, by three means:

    series      the frequencies 0, pi, 2 pi, ...; the c_e and b_e of least error, by linear algebra:
                c cos(b + a t) = x cos(a t) + y sin(a t) is linear in x and y. Their period is twice
                the interval, so that a function need not end where it began.
    learned     all of a, b, c, key and value, by gradient descent from these frequencies
    positive    the same for the form 1 + c cos(b + a t) with |c| <= 1, which is what keeps the
                denominator of attention from vanishing; over the plain one, the sum of q_e k_e

The error is the root of the mean square difference at places between those that were fitted, where
many harmonics may go astray; targets lie between 0 and 1.

With a key at every place, causal attention without a denominator filters the values,

    y_i = sum_{j <= i} f(p_i - r_j) v_j                                                       (2)

A denominator makes a mean of the sum, whose weights depend on how many keys there are, too. How far
it is from (2) then, where any one factor is free, is a share of the size of y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minitransformer_kernels.fourier import DENOMINATORS

from ..attention import fourier_linear_attention
from ..function import no_grad
from ..optim import Adam, cosine
from ..plots import LINES, legend, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, supported, table

Array = NDArray[Any]

TARGETS: dict[str, Callable[[Array], Array]] = {
    "step": lambda t: np.where(t < 0.4, 1.0, 0.0),
    "sawtooth": lambda t: 3 * t % 1,
    "decay": lambda t: np.exp(-5 * t),
    "bump": lambda t: np.exp(-(((t - 0.5) / 0.08) ** 2)),
}
WIDTHS = (4, 8, 16, 32, 64, 128)
SAMPLES = 256
FINE = 4 * SAMPLES  # places that a series is fitted at: twice as many as it has numbers, and more
STEPS = 1500
FORMS = {"series": "cos", "learned": "cos", "positive": "one_plus_cos"}
IMPULSES = 10  # values that are not zero
_LINES: dict[str, dict[str, Any]] = {
    "series": {**LINES[0], "marker": "o", "linewidth": 1.4},
    "learned": {**LINES[2], "marker": "s", "linewidth": 1.4},
    "positive": {**LINES[1], "marker": "^", "linewidth": 1.4},
}


class Harmonics(NamedTuple):
    """What draws H functions with E harmonics each, as arguments of the attention."""

    frequency: Tensor  # (H, E, 1)
    phase: Tensor  # (H, E)
    amplitude: Tensor  # (H, E)
    key: Tensor  # (1, H, 1, E)
    value: Tensor  # (1, H, 1, 1)


def middles(count: int = SAMPLES) -> Array:
    """Return the middles of equal parts of the interval from 0 to 1: where functions are fitted."""
    return (np.arange(count) + 0.5) / count


def distances() -> Array:
    """Return where one such part ends and the next begins: where functions are judged."""
    return np.arange(1, SAMPLES) / SAMPLES


def targets(at: Array) -> Array:
    """Return the values of every target at places (L,): (H, L)."""
    return np.stack([target(at) for target in TARGETS.values()])


def draw(harmonics: Harmonics, form: str, at: Array) -> Tensor:
    """Return the functions (H, L) at distances (L,), equation (1)."""
    frequency, phase, amplitude, key, value = harmonics
    heads, width = phase.shape
    query = Tensor(np.zeros((1, heads, len(at), width)))  # elu(0) + 1 = 1
    output: Tensor = fourier_linear_attention(
        query, key, value, at[None, :, None], np.zeros((1, 1, 1)),
        frequency, phase, amplitude, form=form, algorithm="linear",
        denominator="none" if form == "cos" else "plain",
    )  # fmt: skip
    return output.reshape(heads, len(at))


def impulses() -> Array:
    """Return the values of the keys (L,): few of them, of either sign."""
    rng = np.random.default_rng(3)
    values = np.zeros(SAMPLES)
    values[rng.choice(SAMPLES, IMPULSES, replace=False)] = rng.normal(size=IMPULSES)
    return values


def filtered(harmonics: Harmonics, values: Array, denominator: str) -> Array:
    """Return what causal attention with a key at every place makes of values (L,): (H, L)."""
    heads, width = harmonics.phase.shape
    ones = Tensor(np.zeros((1, heads, SAMPLES, width)))  # elu(0) + 1 = 1
    value = Tensor(np.tile(values[:, None], (1, heads, 1, 1)))
    places = np.arange(SAMPLES)[None, :, None] / SAMPLES
    output: Tensor = fourier_linear_attention(
        ones, ones, value, places, places, *harmonics[:3], form="cos", denominator=denominator,
        causal=True, algorithm="recurrent",
    )  # fmt: skip
    return output.numpy().reshape(heads, SAMPLES)


def convolved(values: Array) -> Array:
    """Return equation (2) for every target, (H, L)."""
    later = np.arange(SAMPLES) / SAMPLES  # p_i - r_j for i >= j
    return np.stack([np.convolve(f, values)[:SAMPLES] for f in targets(later)])


def at_best_size(found: Array, wanted: Array) -> Array:
    """Return rows (H, L), each times the number that brings it closest to that of others."""
    best = np.sum(found * wanted, axis=1) / np.sum(found**2, axis=1)
    return np.asarray(best[:, None] * found)


def series(width: int) -> Harmonics:
    """Fit amplitudes and phases of `width` harmonics to every target, by least squares."""
    frequency = np.pi * np.arange(width)
    angles = middles(FINE)[:, None] * frequency
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    fitted = np.linalg.lstsq(waves, targets(middles(FINE)).T, rcond=1e-9)[0]
    x, y = np.split(fitted.T, 2, axis=1)  # (H, E)
    return _harmonics(frequency, np.arctan2(-y, x), np.hypot(x, y))


def learn(width: int, form: str, steps: int = STEPS, seed: int = 0) -> Harmonics:
    """Fit everything to every target with `width` harmonics, by gradient descent.

    `steps` are those of Adam, on all places at once.
    """
    rng = np.random.default_rng(seed)
    wanted = Tensor(targets(middles()))
    shape = len(TARGETS), width
    phase, amplitude = rng.uniform(-np.pi, np.pi, shape), rng.uniform(0.0, 0.1, shape)
    harmonics = _harmonics(np.pi * np.arange(width), phase, amplitude, requires_grad=True)
    optimizer = Adam(harmonics, lr=cosine(0.03, steps))
    for _ in range(steps):
        error = draw(harmonics, form, middles()) - wanted
        optimizer.zero_grad()
        (error * error).sum().backward()
        optimizer.step()
        if form == "one_plus_cos":
            np.clip(harmonics.amplitude.data, -1, 1, out=harmonics.amplitude.data)
    return harmonics


def _harmonics(
    frequency: Array, phase: Array, amplitude: Array, requires_grad: bool = False
) -> Harmonics:
    heads, width = phase.shape
    arrays = (
        np.tile(frequency[:, None], (heads, 1, 1)),
        phase,
        amplitude,
        np.zeros((1, heads, 1, width)),
        np.ones((1, heads, 1, 1)),
    )
    return Harmonics(*(Tensor(array, requires_grad) for array in arrays))


def cases(scale: str) -> list[Case]:
    """Return the numbers of harmonics, and how many steps gradient descent may take."""
    widths, steps = ((4, 8), 20) if scale == "smoke" else (WIDTHS, STEPS)
    return [{"harmonics": width, "steps": steps} for width in widths]


def run(case: Case) -> Iterator[Row]:
    """Yield how well each target is drawn by each means, and used as a filter, and the curves."""
    wanted, fitted = targets(distances()), series(case["harmonics"])
    for means, form in FORMS.items():
        found = fitted if means == "series" else learn(case["harmonics"], form, case["steps"])
        with no_grad():
            curves = draw(found, form, distances()).numpy()
        errors = np.sqrt(np.mean((curves - wanted) ** 2, axis=1))
        for target, error, curve in zip(TARGETS, errors, curves, strict=True):
            yield {
                "target": target,
                "means": means,
                "error": float(error),
                "curve": curve.round(4).tolist(),
            }
    values = impulses()
    for denominator in DENOMINATORS:
        with no_grad():
            curves = filtered(fitted, values, denominator)
        curves = at_best_size(curves, convolved(values))
        for target, curve, wanted in zip(TARGETS, curves, convolved(values), strict=True):
            yield {
                "target": target,
                "denominator": denominator,
                "missed": float(np.linalg.norm(curve - wanted) / np.linalg.norm(wanted)),
                "curve": curve.round(4).tolist(),
            }


def report(rows: list[Row]) -> Report:
    """Return the errors as a table, a column for each number of harmonics, and the figure."""
    widths = sorted({row["harmonics"] for row in rows})
    drawn = [row for row in rows if "means" in row]
    filters = [row for row in rows if "denominator" in row]
    errors = {(row["target"], row["means"], row["harmonics"]): row["error"] for row in drawn}
    missed = {(r["target"], r["denominator"], r["harmonics"]): r["missed"] for r in filters}

    def shown(what: str, choices: Iterable[str], numbers: dict[Any, float]) -> str:
        return table(
            ["target", what, *(f"E = {width}" for width in widths)],
            [
                [target, choice, *(f"{numbers[target, choice, width]:.1e}" for width in widths)]
                for target in TARGETS
                for choice in choices
            ],
        )

    def least(means: str, *names: str) -> str:
        found = [min(errors[name, means, width] for width in widths) for name in names]
        return ", ".join(f"{error:.1e}" for error in found[:-1]) + f" and {found[-1]:.1e}"

    def falls(means: str) -> str:
        first, last = ([errors[x, means, at] for x in TARGETS] for at in (widths[0], widths[-1]))
        return supported(all(b < 0.3 * a for a, b in zip(first, last, strict=True)))

    def shares(denominator: str, *names: str) -> str:
        found = [missed[name, denominator, widths[-1]] for name in names]
        return " and ".join(f"{share:.1e}" for share in found)

    smooth, jumps = ("decay", "bump"), ("step", "sawtooth")
    best = all(
        missed[name, "none", width] == min(missed[name, x, width] for x in DENOMINATORS)
        for name in TARGETS
        for width in widths
    )
    text = f"""
The source's claim: a wide enough embedding weighs distances by any function. The error of each, at
places between those that were fitted:

{shown("means", FORMS, errors)}

{falls("series")} for the form "cos": smooth functions are met to {least("series", *smooth)},
functions that jump to {least("series", *jumps)}, with an error that falls as 1 / √E.
Gradient descent comes to {least("learned", *smooth)} on the smooth ones, and to
{least("learned", *jumps)} where they jump.

{falls("positive")} for the positive form, which keeps the denominator of attention from
vanishing: its errors stop at {least("positive", *TARGETS)}, since a sum of terms that are as high
somewhere as they are low elsewhere has no sharp peak.

![what harmonics make of four functions, and how far off they are](fits.png)

## Many keys

The functions of "series" as filters of {IMPULSES} values among {SAMPLES} keys, equation (2), by
each denominator: the share of the filter's output that is missed.

{shown("denominator", DENOMINATORS, missed)}

{supported(best)} for the formula as the source prints it, without a
denominator: it misses {"least" if best else "not always least"} of that filter, with any function
and any number of harmonics. With {widths[-1]} it misses {shares("none", *smooth)} where the
functions are smooth, and {shares("none", *jumps)} where they jump. Divided by the sum of the
weights ("rotated") these are {shares("rotated", *smooth)}, and {shares("rotated", *jumps)}; by that
of the products q . k ("plain") {shares("plain", *smooth)}, and {shares("plain", *jumps)}. A mean of
values is no sum of their echoes.

![what causal attention makes of a few values, by each denominator](filters.png)
"""
    return Report(
        text,
        {
            "fits.png": partial(plot_fits, rows=drawn),
            "filters.png": partial(plot_filters, rows=filters),
        },
    )


def plot_fits(path: Path, rows: Sequence[Row]) -> None:
    """Draw functions of the distance, what harmonics make of them, and how far off they are."""
    widths = sorted({row["harmonics"] for row in rows})
    shown = widths[len(widths) // 2]
    with picture(path, (2.4 * len(TARGETS), 4.8)) as figure:
        upper, lower = figure.subplots(2, len(TARGETS), sharex="row", sharey="row", squeeze=False)
        for over, under, name, wanted in zip(
            upper, lower, TARGETS, targets(distances()), strict=True
        ):
            over.set_title(name, loc="left", fontsize=10)
            over.plot(distances(), wanted, color="#bbbbbb", linewidth=3.5, label="target")
            for means, line in _LINES.items():
                found = [r for r in rows if r["target"] == name and r["means"] == means]
                under.plot(widths, [row["error"] for row in found], **line, markersize=3.5)
                (curve,) = (row["curve"] for row in found if row["harmonics"] == shown)
                label = f"{means}, E = {shown}"
                over.plot(distances(), curve, **{**line, "marker": None}, label=label)
            under.set_xscale("log", base=2)
            under.set_yscale("log")
            under.set_xticks(widths, map(str, widths))
            under.set_xlabel("harmonics (head dim E)")
            over.set_xticks([0, 0.5, 1])
            over.set_xlabel("distance")
            over.grid(False)
        upper[0].set_ylabel("weight")
        lower[0].set_ylabel("error (root mean square)")
        legend(upper[0], 4)


def plot_filters(path: Path, rows: Sequence[Row]) -> None:
    """Draw the echoes of a few values that causal attention adds up, by each denominator."""
    widest = max(row["harmonics"] for row in rows)
    echoes, at = convolved(impulses()), np.arange(SAMPLES) / SAMPLES
    with picture(path, (2.4 * len(TARGETS), 2.9)) as figure:
        axes = figure.subplots(1, len(TARGETS), squeeze=False)[0]
        for axis, name, wanted in zip(axes, TARGETS, echoes, strict=True):
            axis.set_title(name, loc="left", fontsize=10)
            axis.plot(at, wanted, color="#bbbbbb", linewidth=3.5, label="the filter")
            for denominator, line in zip(DENOMINATORS, (LINES[1], LINES[2], LINES[0]), strict=True):
                (curve,) = (
                    np.array(row["curve"])
                    for row in rows
                    if (row["target"], row["denominator"]) == (name, denominator)
                    and row["harmonics"] == widest
                )
                axis.plot(at, curve, **line, linewidth=1.3, label=denominator)
            axis.set_ylim(1.3 * wanted.min(), 1.3 * wanted.max())
            axis.set_xlabel("place")
        axes[0].set_ylabel("output")
        legend(axes[0], 4)


EXPERIMENT = Experiment(
    "expressivity",
    "How well a Fourier position can weigh distances",
    "S2: for scalar positions each feature is one harmonic of a Fourier series.",
    cases,
    run,
    report,
)

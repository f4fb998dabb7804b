"""How well a Fourier position can weigh distances.

With one-dimensional positions, the weight that Fourier attention gives to a distance t = p_i - r_j
is

    f(t) = sum_e q_e k_e c_e cos(b_e + a_e t)                                                 (1)

a sum of harmonics, so that with enough of them it comes close to any function on an interval (S2).
How close, with how many? Here attention itself draws the function. Queries whose features are all
1 stand at t from 0 to 1, and one key at 0. The output is then (1) over the plain denominator, the
sum of q_e k_e, times the key's value. A head draws a target function, by three means:

    series      the frequencies 0, pi, 2 pi, ...; the c_e and b_e of least error, by linear algebra:
                c cos(b + a t) = x cos(a t) + y sin(a t) is linear in x and y. Their period is twice
                the interval, so that a function need not end where it began.
    learned     all of a, b, c, key and value, by gradient descent from these frequencies
    positive    the same for the form 1 + c cos(b + a t) with |c| <= 1, which is what keeps the
                denominator of attention from vanishing

The error is the root of the mean square difference on the interval; targets lie between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..attention import fourier_linear_attention
from ..function import no_grad
from ..optim import Adam, cosine
from ..plots import LINES, picture
from ..tensor import Tensor
from .experiment import Case, Experiment, Report, Row, table

Array = NDArray[Any]

TARGETS: dict[str, Callable[[Array], Array]] = {
    "step": lambda t: np.where(t < 0.4, 1.0, 0.0),
    "sawtooth": lambda t: 3 * t % 1,
    "decay": lambda t: np.exp(-5 * t),
    "bump": lambda t: np.exp(-(((t - 0.5) / 0.08) ** 2)),
}
WIDTHS = (4, 8, 16, 32, 64, 128)
SAMPLES = 256
STEPS = 1500
FORMS = {"series": "cos", "learned": "cos", "positive": "one_plus_cos"}
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


def distances() -> Array:
    """Return the middles of equal parts of the interval from 0 to 1."""
    return (np.arange(SAMPLES) + 0.5) / SAMPLES


def targets() -> Array:
    """Return the values of every target, (H, L)."""
    return np.stack([target(distances()) for target in TARGETS.values()])


def draw(harmonics: Harmonics, form: str) -> Tensor:
    """Return the functions (H, L) at all distances, equation (1)."""
    frequency, phase, amplitude, key, value = harmonics
    heads, width = phase.shape
    query = Tensor(np.zeros((1, heads, SAMPLES, width)))  # elu(0) + 1 = 1
    output: Tensor = fourier_linear_attention(
        query, key, value, distances()[None, :, None], np.zeros((1, 1, 1)),
        frequency, phase, amplitude, form=form, denominator="plain", algorithm="linear",
    )  # fmt: skip
    return output.reshape(heads, SAMPLES)


def series(wanted: Array, width: int) -> Harmonics:
    """Fit amplitudes and phases to functions (H, L) with `width` harmonics, by least squares."""
    frequency = np.pi * np.arange(width)
    angles = distances()[:, None] * frequency
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    x, y = np.split(np.linalg.lstsq(waves, wanted.T, rcond=1e-9)[0].T, 2, axis=1)  # (H, E)
    return _harmonics(frequency, np.arctan2(-y, x), np.hypot(x, y), float(width))


def learn(wanted: Array, width: int, form: str, steps: int = STEPS, seed: int = 0) -> Harmonics:
    """Fit everything to functions (H, L) with `width` harmonics, by gradient descent.

    `steps` are those of Adam, on all distances at once.
    """
    rng = np.random.default_rng(seed)
    shape = len(wanted), width
    phase, amplitude = rng.uniform(-np.pi, np.pi, shape), rng.uniform(0.0, 0.1, shape)
    value = float(width) if form == "cos" else 1.0
    harmonics = _harmonics(np.pi * np.arange(width), phase, amplitude, value, requires_grad=True)
    optimizer = Adam(harmonics, lr=cosine(0.03, steps))
    for _ in range(steps):
        error = draw(harmonics, form) - Tensor(wanted)
        optimizer.zero_grad()
        (error * error).sum().backward()
        optimizer.step()
        if form == "one_plus_cos":
            np.clip(harmonics.amplitude.data, -1, 1, out=harmonics.amplitude.data)
    return harmonics


def _harmonics(
    frequency: Array, phase: Array, amplitude: Array, value: float, requires_grad: bool = False
) -> Harmonics:
    heads, width = phase.shape
    arrays = (
        np.tile(frequency[:, None], (heads, 1, 1)),
        phase,
        amplitude,
        np.zeros((1, heads, 1, width)),
        np.full((1, heads, 1, 1), value),
    )
    return Harmonics(*(Tensor(array, requires_grad) for array in arrays))


def cases(scale: str) -> list[Case]:
    """Return the numbers of harmonics, and how many steps gradient descent may take."""
    widths, steps = ((4, 8), 20) if scale == "smoke" else (WIDTHS, STEPS)
    return [{"harmonics": width, "steps": steps} for width in widths]


def run(case: Case) -> Iterator[Row]:
    """Yield how well each target is drawn by each means, and what was drawn."""
    wanted = targets()
    for means, form in FORMS.items():
        found = (
            series(wanted, case["harmonics"])
            if means == "series"
            else learn(wanted, case["harmonics"], form, case["steps"])
        )
        with no_grad():
            curves = draw(found, form).numpy()
        errors = np.sqrt(np.mean((curves - wanted) ** 2, axis=1))
        for target, error, curve in zip(TARGETS, errors, curves, strict=True):
            yield {
                "target": target,
                "means": means,
                "error": float(error),
                "curve": curve.round(4).tolist(),
            }


def report(rows: list[Row]) -> Report:
    """Return the errors as a table, a column for each number of harmonics, and the figure."""
    widths = sorted({row["harmonics"] for row in rows})
    errors = {(row["target"], row["means"], row["harmonics"]): row["error"] for row in rows}
    found = table(
        ["target", "means", *(f"E = {width}" for width in widths)],
        [
            [target, means, *(f"{errors[target, means, width]:.1e}" for width in widths)]
            for target in TARGETS
            for means in FORMS
        ],
    )

    def least(means: str, *names: str) -> str:
        found = [min(errors[name, means, width] for width in widths) for name in names]
        return ", ".join(f"{error:.1e}" for error in found[:-1]) + f" and {found[-1]:.1e}"

    smooth, jumps = ("decay", "bump"), ("step", "sawtooth")
    text = f"""
The source's claim: a wide enough embedding weighs distances by any function.

{found}

*Supported* for the form "cos": smooth functions are met to {least("series", *smooth)}, functions
that jump to {least("series", *jumps)}, with an error that falls as the root of E. Gradient descent
comes to {least("learned", *smooth)} on the smooth ones, and to {least("learned", *jumps)} where
they jump.

*Not supported* for the positive form, which keeps the denominator of attention from vanishing: its
errors stop at {least("positive", *TARGETS)}, since a sum of terms that are as high somewhere as
they are low elsewhere has no sharp peak.

![what harmonics make of four functions, and how far off they are](fits.png)
"""
    return Report(text, {"fits.png": partial(plot_fits, rows=rows)})


def plot_fits(path: Path, rows: Sequence[Row]) -> None:
    """Draw functions of the distance, what harmonics make of them, and how far off they are."""
    widths = sorted({row["harmonics"] for row in rows})
    shown = widths[len(widths) // 2]
    with picture(path, (2.4 * len(TARGETS), 4.8)) as figure:
        upper, lower = figure.subplots(2, len(TARGETS), sharex="row", sharey="row", squeeze=False)
        for over, under, name, wanted in zip(upper, lower, TARGETS, targets(), strict=True):
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
            under.grid(True)
        upper[0].set_ylabel("weight")
        lower[0].set_ylabel("error (root mean square)")
        handles, labels = upper[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)


EXPERIMENT = Experiment(
    "expressivity",
    "How well a Fourier position can weigh distances",
    "S2: for scalar positions each feature is one harmonic of a Fourier series.",
    cases,
    run,
    report,
)

"""S4's Perceiver: its module as printed, and the weights that its repeats share.

The source's module returns the *normalised* sum plus a dense layer of it (post-norm); other
implementations add to the sum itself (pre-norm). Cross-attention and the latents' transformer may
have the same weights in all repeats, which makes a recurrent network of the model, in all but the
first, or in none. All six read handwritten digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..plots import LINES, legend, picture
from ..tasks.perceiver import PerceiverTask
from .experiment import Case, Experiment, Report, Row, paired, table
from .shared.reading import COLUMNS, cells, learned, plot_learning

NORMS, SHARES = ("pre", "post"), ("all", "all_but_first", "none")
DEPTH = {"smoke": 3, "default": 3, "full": 8}
STEPS = {"smoke": 2, "default": 400, "full": 5000}
SEEDS = {"smoke": 1, "default": 3, "full": 10}


def cases(scale: str) -> list[Case]:
    """Return both norms with each way to share, several times."""
    return [
        {"norm": norm, "share": share, "seed": seed, "depth": DEPTH[scale], "steps": STEPS[scale]}
        for norm in NORMS
        for share in SHARES
        for seed in range(SEEDS[scale])
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield how well a model reads the images held out, on its way and at the end."""
    task = PerceiverTask(depth=case["depth"], share=case["share"], norm=case["norm"])
    yield learned(task, "softmax", case["steps"], case["seed"])


def report(rows: list[Row]) -> Report:
    """Return the six models beside one another, and their curves."""
    depth, steps, seeds = rows[0]["depth"], rows[0]["steps"], len({row["seed"] for row in rows})
    post = paired(rows, "right", "norm", ("post", "pre"), ("share", "seed"))
    one, two = (
        paired(rows, "right", "share", (share, "none"), ("norm", "seed"))
        for share in ("all", "all_but_first")
    )
    few, many = (_chosen(rows, share=share)[0]["parameters"] for share in ("all", "none"))
    least = min(row["right"] for row in _chosen(rows, norm="post"))
    return Report(
        f"""
Which share of 360 images held out a Perceiver of depth {depth} reads right, and its loss in
training, after {steps:,} steps: the mean of {seeds} seeds, and from the worst to the best. The
task's own training takes {PerceiverTask.recipe.steps:,} steps: compared is how fast they learn.

{
            table(
                ["norm", "weights shared by", *COLUMNS],
                [[n, s, *cells(_chosen(rows, norm=n, share=s))] for n in NORMS for s in SHARES],
            )
        }

Differences are means of pairs that are alike in all else, with 95% intervals.

- The source's module goes on from the normalised sum. {post.costs_nothing()} that this costs
  nothing: the difference to pre-norm is {post} of the images, {post.verdict}. The worst of its
  models reads {least:.1%}, where a guess reads 10%.
- The source shares the weights of all repeats. {one.costs_nothing()} that this costs nothing:
  with {few:,} parameters in place of {many:,} (pre-norm) the difference is {one}, {one.verdict};
  with a first repeat of its own {two}, {two.verdict}.

A claim is open where the interval leaves room for a loss of 1% and for none.

![loss and images read wrong of each model](curves.png)
""",
        {"curves.png": partial(plot_curves, rows=rows)},
    )


def _chosen(rows: list[Row], **settings: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in settings.items())]


def plot_curves(path: Path, rows: list[Row]) -> None:
    """Draw loss and images read wrong against the steps, a column for each norm."""
    with picture(path, (7.6, 4.8)) as figure:
        axes = figure.subplots(2, len(NORMS), sharex=True, sharey="row")
        for (upper, lower), norm in zip(axes.T, NORMS, strict=True):
            upper.set_title(f"{norm}-norm", loc="left", fontsize=10)
            for line, share in zip(LINES, SHARES, strict=True):
                label = f"shared by {share.replace('_', ' ')}"
                plot_learning(upper, lower, _chosen(rows, norm=norm, share=share), **line,
                              label=label)  # fmt: skip
        for axis in axes.flat:
            axis.label_outer()
        legend(axes[0, 0], 3)


EXPERIMENT = Experiment(
    "perceiver_variants",
    "A Perceiver's step as printed, and weights that repeats share",
    "S4: the module with its residual behind the normalisation, and weights shared over repeats.",
    cases,
    run,
    report,
)

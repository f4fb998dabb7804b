"""Three scores of graph attention, on the same graph of handwritten digits.

S3 leaves graph attention to the future: with a score a(x, y) of two neighbours that is
LeakyReLU(c^T [W x || W y]), that of graph attention networks, and with its own layer as a,
multi-head attention of the concatenation, then ELU. Between them stands the product of projections
by which multi-head attention itself scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..plots import LINES, legend, picture
from ..tasks.graph import GraphTask
from .experiment import Case, Experiment, Report, Row, paired, supported, table
from .shared.reading import COLUMNS, cells, learned, plot_learning

SCORES = ("additive", "dot", "multi_head")
STEPS = {"smoke": 2, "default": 600, "full": 3000}
SEEDS = {"smoke": 1, "default": 5, "full": 20}


def cases(scale: str) -> list[Case]:
    """Return each score, several times."""
    return [
        {"score": score, "seed": seed, "steps": STEPS[scale]}
        for score in SCORES
        for seed in range(SEEDS[scale])
    ]


def run(case: Case) -> Iterator[Row]:
    """Yield how well a network reads the images held out, on its way and at the end."""
    yield learned(GraphTask(), case["score"], case["steps"], case["seed"])


def report(rows: list[Row]) -> Report:
    """Return the three scores beside one another, and their curves."""
    by_score = {score: [row for row in rows if row["score"] == score] for score in SCORES}
    more = {
        other: paired(rows, "right", "score", ("multi_head", other), ("seed",))
        for other in ("additive", "dot")
    }
    said = "; ".join(f"to `{other}` {x} of the images, {x.verdict}" for other, x in more.items())
    return Report(
        f"""
Which share of 360 images held out a network of two layers reads right, each image beside its four
nearest training images, and its loss in training, after {rows[0]["steps"]:,} steps: the mean of
{len(by_score["dot"])} seeds, and from the worst to the best.

{table(["score", *COLUMNS], [[f"`{score}`", *cells(found)] for score, found in by_score.items()])}

- `additive` is LeakyReLU(c^T [W x || W y]), of graph attention networks.
- `dot` is (W_q x) . (W_k y), scaled.
- `multi_head` is S3's: the two ends of an edge are a sequence of two tokens, to which multi-head
  attention is applied; what comes of both is projected to a score for each head, then ELU.

The source hopes for its own layer as the score.
{supported(all(x.mean > x.error for x in more.values()))} as the better one: the difference of
`multi_head` {said} (images held out; means of pairs of one seed, with 95% intervals).

![loss and images read wrong with each score](curves.png)
""",
        {"curves.png": partial(plot_curves, by_score=by_score)},
    )


def plot_curves(path: Path, by_score: dict[str, list[Row]]) -> None:
    """Draw loss and images read wrong against the steps."""
    with picture(path, (7.6, 3.0)) as figure:
        left, right = figure.subplots(1, 2)
        for line, (score, rows) in zip(LINES, by_score.items(), strict=True):
            plot_learning(left, right, rows, **line, label=score)
        legend(left, 3)


EXPERIMENT = Experiment(
    "graph_scores",
    "Three scores of graph attention",
    "S3, future work: graph attention, and the same with its multi-head attention as the score.",
    cases,
    run,
    report,
)

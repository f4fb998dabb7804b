"""`minitransformer plan`: the planner's costs as a table, its crossovers, and its map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer_kernels.planner import Cost, Plan, Sizes, crossovers, plan

_LENGTHS = np.geomspace(8, 2**17, 400).round().astype(int)
_HEAD_DIMS = np.geomspace(4, 256, 80).round().astype(int)
_DISTANCES = np.geomspace(1, 1024, 80).round().astype(int)
_DISTANCE = 32  # where the crossovers of the map are marked, where none is given
_BYTES = "B", "KiB", "MiB", "GiB", "TiB", "PiB"
Grid = np.ndarray[Any, np.dtype[np.int_]]
_SECONDS = ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)


def report(sizes: Sizes, cost_model: str, backward: bool) -> list[str]:
    """Return the costs, the choice and the crossovers, in lines of text.

    Args:
        sizes: the attention that is asked for.
        cost_model: "seed" or "kernel".
        backward: whether the kernels' costs are those of both passes.
    """
    found = plan(sizes, cost_model=cost_model, backward=backward)
    starts = crossovers(sizes, cost_model=cost_model, backward=backward)
    if cost_model == "seed":
        body = [*_columns(_seed_table(found)), "", "Where Lq = Lk = L:"]
        body += [f"  {term}: {_stretches(starts[term], _formula(sizes, term))}" for term in starts]
    else:
        (chosen,) = set(found.choice.values())
        body = [*_columns(_kernel_table(found)), "", f"* {chosen} takes the least time."]
        body += [f"Where Lq = Lk = L: {_stretches(starts['kernelized'])}."]
    return [_title(sizes), _meaning(cost_model, backward), "", *body]


def _title(sizes: Sizes) -> str:
    kind = "causal" if sizes.causal else "bidirectional"
    offset = f", query offset {sizes.query_offset}" if sizes.query_offset else ""
    distance = "" if sizes.max_distance is None else f", k={sizes.max_distance}"
    waves = "" if sizes.fourier is None else f", Fourier {sizes.fourier}"
    return (
        f"Linear attention, {kind}: Lq={sizes.queries}, Lk={sizes.keys}, E={sizes.head_dim}, "
        f"M={sizes.value_dim}{offset}{distance}{waves}, N={sizes.batch}, H={sizes.heads}, "
        f"float{8 * sizes.itemsize}"
    )


def _meaning(cost_model: str, backward: bool) -> str:
    if cost_model == "seed":
        return "What array programs keep in memory, by the seed's cost model:"
    return f"What the kernels take, {_passes(backward)}: arrays beyond the inputs, one core's time:"


def _passes(backward: bool) -> str:
    return "forward and backward" if backward else "forward"


def _seed_table(found: Plan) -> list[list[str]]:
    rows = [
        [term, *(_human_bytes(cost.bytes) for cost in forms.values()), found.choice[term]]
        for term, forms in found.terms.items()
    ]
    return [["term", "naive", "linear", "taken"], *rows]


def _kernel_table(found: Plan) -> list[list[str]]:
    (chosen,) = set(found.choice.values())
    several = len(found.terms) > 1
    header = ["algorithm", *found.terms, *(["total"] if several else []), "GFLOP", "time"]
    rows = [
        [
            f"{name} *" if name == chosen else name,
            *(_human_bytes(costs[name].bytes) for costs in found.terms.values()),
            *([_human_bytes(total.bytes)] if several else []),
            *_work(total),
        ]
        for name, total in found.total.items()
    ]
    others = [
        [name, *[""] * (len(header) - 4), _human_bytes(cost.bytes), *_work(cost)]
        for name, cost in found.comparison.items()
    ]
    return [header, *rows, *others]


def _work(cost: Cost) -> list[str]:
    return [f"{cost.flops / 1e9:,.3g}", _human_seconds(cost.seconds)]


def _stretches(starts: Sequence[tuple[int, str]], formula: str = "") -> str:
    (_, first), *others = starts
    parts = [f"{name} above L = {start - 1:,}{formula}" for start, name in others]
    return ", ".join([first, *parts])


def _formula(sizes: Sizes, term: str) -> str:
    """How S0 prints a crossover; d is both dims."""
    if term == "relative":
        return " = 2k + 5"
    if sizes.head_dim != sizes.value_dim:
        return ""
    return " = d²" if sizes.causal else " = d"


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows as text, the first column flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "   ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for name, *cells in rows
    ]


def _human_bytes(count: float) -> str:
    """Three digits, and the largest unit of which there is one."""
    power = 0
    while count >= 999.5 and power < len(_BYTES) - 1:
        count /= 1024
        power += 1
    return f"{count:.3g} {_BYTES[power]}"


def _human_seconds(seconds: float) -> str:
    unit, size = next(((u, s) for u, s in _SECONDS if seconds >= s), _SECONDS[-1])
    return f"{seconds / size:.3g} {unit}"


# -- The map ---------------------------------------------------------------------------------------


def draw_map(path: Path, sizes: Sizes, cost_model: str, backward: bool) -> None:
    """Draw which algorithm is taken where: length against head dim, and against max distance.

    Args:
        path: the PNG file to write.
        sizes: all that the axes do not say.
        cost_model: as in `report`.
        backward: as in `report`.

    Raises:
        CheckpointError: the file cannot be written.
    """
    from .plots import ChoiceMap, plot_choices

    def choice_map(
        title: str, label: str, term: str, grid: Grid, size: int, at: Callable[[int], Sizes]
    ) -> ChoiceMap:
        def starts(size: int) -> list[tuple[int, str]]:
            return crossovers(at(size), cost_model=cost_model, backward=backward)[term]

        choices = [_along(starts(y), _LENGTHS) for y in grid.tolist()]
        formula = _formula(at(size), term) if seed else ""
        texts = {start - 1: f"L = {start - 1:,}{formula}" for start, _ in starts(size)[1:]}
        return ChoiceMap(title, label, _LENGTHS, grid, np.array(choices), (size, texts))

    seed = cost_model == "seed"
    dims = f"E = {sizes.head_dim}, M = {sizes.value_dim}"
    alone = "without positions" if sizes.fourier is None else f"Fourier positions, {sizes.fourier}"
    maps = [
        choice_map(
            "the kernelized term" if seed else alone,
            "head dim, d = E = M",
            "kernelized",
            _HEAD_DIMS,
            sizes.head_dim,
            lambda d: sizes._replace(head_dim=d, value_dim=d, max_distance=None),
        ),
        choice_map(
            "the relative term" if seed else f"with relative positions, {dims}",
            "maximum distance, k",
            "relative",
            _DISTANCES,
            sizes.max_distance or _DISTANCE,
            lambda k: sizes._replace(max_distance=k, fourier=None),
        ),
    ]
    kind = "Causal" if sizes.causal else "Bidirectional"
    grounds = "the seed's memory" if seed else f"the kernels' time, {_passes(backward)}"
    plot_choices(path, maps, f"{kind} linear attention: what to take, by {grounds}")


def _along(starts: list[tuple[int, str]], lengths: Grid) -> list[str]:
    """The choice at each length, given where stretches of one choice begin."""
    firsts, names = zip(*starts, strict=True)
    return [names[i - 1] for i in np.searchsorted(firsts, lengths, side="right")]

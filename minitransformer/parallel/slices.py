"""Where slices lie, and what of lengths concerns one."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitransformer_kernels.visible import Visible

from ..tensor import Tensor
from .world import World

Span = tuple[int, int]  # of rows: the first, and the one behind the last
Spans = list[Span]  # of each rank, in the order of their slices
ALL, NONE = slice(None), slice(0, 0)


def spans(world: World, *counts: int) -> list[Spans]:
    """Return where the slices of all ranks lie, for sequences of which this one holds `counts`."""
    ends = np.cumsum(world.gather(np.array(counts)), axis=0)
    firsts = np.vstack([np.zeros_like(ends[:1]), ends[:-1]])
    return [
        list(zip(firsts[:, k].tolist(), ends[:, k].tolist(), strict=True))
        for k in range(len(counts))
    ]


def settled(name: str, visible: Visible, batch: int, queries: Spans, keys: Spans) -> Visible:
    """Return who sees whom in the whole sequences, checked; errors begin with the name."""
    query, key = (np.empty((batch, 0, of[-1][1], 0)) for of in (queries, keys))
    return visible.settled(name, query, key)


def own_part(lengths: Any, span: Span) -> Any:
    """Return how many of these rows count, of the lengths of whole sequences or None."""
    return None if lengths is None else (lengths - span[0]).clip(0, span[1] - span[0])


def some(x: Tensor, which: slice, axis: int = 2) -> Tensor:
    """Return some rows; where it is none, no gradient either."""
    if which == ALL:
        return x
    part = (slice(None),) * axis + (which,)
    return Tensor(x.data[part]) if which == NONE else x[part]


def around(queries: Spans, keys: Spans, before: int, behind: int) -> Spans:
    """Return which keys all ranks want: theirs, and so many before and behind their queries."""
    end = keys[-1][1]
    places = ((a - before, b + behind) if a < b else (a, a) for a, b in queries)
    return [(min(max(i, 0), end), min(max(j, 0), end)) for i, j in places]


def check_options(name: str, options: dict[str, Any], *known: str) -> None:
    """Check that an attention on slices has these options.

    Raises:
        TypeError: it has not.
    """
    for option in options.keys() - {*known}:
        raise TypeError(
            f"parallel.{name}: there is no option {option}, there are {', '.join(known)}; slices "
            "take no states from outside, and queries see the keys up to their own place, or all"
        )

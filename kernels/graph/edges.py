"""Who sees whom in a graph, and the order in which sums over edges are taken.

A row of edges, of a query or to a key, has one owner and a fixed order: no atomics, and results
repeat bit by bit. Of 10,000 nodes most have ten neighbours, one may have thousands, and the rest of
a GPU would wait for its row. So a row of more than SPAN edges is cut into pieces, and the pieces of
each row are summed in a second stage.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import checks
from ..arrays import Array, array_module, locked

SPAN = 256  # edges of a row that are summed in one go


class Walk(NamedTuple):
    """Rows to sum over: row r has the edges `edges[t]`, offsets[r] <= t < offsets[r + 1].

    `others[t]` is the node at the other end of that edge. All arrays are int64.
    """

    offsets: Array
    edges: Array
    others: Array


class Edges:
    """Who sees whom, checked; and the order in which sums over edges are taken.

    Args:
        row_offsets: `(Tq + 1,)` integers; the edges of query node i are those from row_offsets[i]
            on, below row_offsets[i + 1].
        columns: `(edges,)` integers, on the same device: the key node of each edge.
        num_keys: Tk.
        numbers: `(edges,)` integers, from 0: each edge's number in a larger graph of which this is
            a part. Dropout drops an edge by its number, and so alike in all parts that have it.
            None: edge e is number e.

    Raises:
        TypeError: the arrays do not hold integers.
        ValueError: the offsets do not rise from 0 to the number of edges, a column is no key, or
            numbers are not one for each edge, or below 0.
    """

    def __init__(
        self, row_offsets: Array, columns: Array, num_keys: int, numbers: Array | None = None
    ) -> None:
        # Copies: whoever wrote to an array after the check would lead a kernel astray.
        self.offsets = _own("row_offsets", row_offsets)
        self.columns = _own("columns", columns)
        self.num_keys = checks.whole("edges", "num_keys", num_keys, 0)
        _check_edges(self.offsets, self.columns, self.num_keys)
        if numbers is None:
            self.numbers = locked(array_module(self.columns).arange(len(self.columns)))
        else:
            self.numbers = _own("numbers", numbers)
            _check_numbers(self.numbers, len(self.columns))

    @property
    def num_queries(self) -> int:
        """Tq."""
        return len(self.offsets) - 1

    @property
    def known_sizes(self) -> dict[str, int]:
        """Tq, Tk and the number of edges."""
        return {"Tq": self.num_queries, "Tk": self.num_keys, "edges": len(self.columns)}

    @cached_property
    def rows(self) -> Array:
        """The query node of each edge."""
        return locked(_rows_of(self.offsets, len(self.columns)))

    @cached_property
    def by_query(self) -> tuple[Walk, ...]:
        """How to sum over the edges of each query; in two stages, if a row is long."""
        order = array_module(self.columns).arange(len(self.columns))
        return _locked_walks(in_pieces(Walk(self.offsets, order, self.columns)))

    @cached_property
    def by_key(self) -> tuple[Walk, ...]:
        """How to sum over the edges to each key: the transposed matrix."""
        offsets, order = by_owner(self.columns, self.num_keys)
        return _locked_walks(in_pieces(Walk(offsets, order, self.rows[order])))

    def moved(self, move: Callable[[Array], Array]) -> Edges:
        """The same edges, each array of them moved to another device.

        What was checked here is not checked there, and orders are found here, so that the CPU need
        not wait for a GPU's answers.
        """
        there = copy(self)
        for name in ("offsets", "columns", "numbers", "rows"):
            setattr(there, name, locked(move(getattr(self, name))))
        for name in ("by_query", "by_key"):
            walks = tuple(Walk(*map(move, walk)) for walk in getattr(self, name))
            setattr(there, name, _locked_walks(walks))
        return there


def _own(name: str, integers: Array) -> Array:
    """A copy as int64, to which nobody can write."""
    if not checks.is_array(integers):
        raise TypeError(f"edges: {name} must be an array, got {type(integers).__name__}")
    if integers.ndim != 1 or (integers.size and integers.dtype.kind not in "iu"):
        raise TypeError(
            f"edges: {name} must be integers in one dimension, got "
            f"{integers.dtype} {integers.shape}"
        )
    return locked(integers.astype(np.int64))


def _check_numbers(numbers: Array, count: int) -> None:
    if len(numbers) != count or (count and int(numbers.min()) < 0):
        least = f", the least {int(numbers.min())}" if len(numbers) else ""
        raise ValueError(
            f"numbers must be {count} integers from 0, one for each edge, got {len(numbers)}{least}"
        )


def _locked_walks(walks: tuple[Walk, ...]) -> tuple[Walk, ...]:
    return tuple(Walk(*map(locked, walk)) for walk in walks)


def _check_edges(row_offsets: Array, columns: Array, num_keys: int) -> None:
    count = len(columns)
    rises = len(row_offsets) and bool((row_offsets[1:] >= row_offsets[:-1]).all())
    if not rises or int(row_offsets[0]) != 0 or int(row_offsets[-1]) != count:
        ends = f"{int(row_offsets[0])}..{int(row_offsets[-1])}" if len(row_offsets) else "nothing"
        raise ValueError(
            f"edges: row_offsets must rise from 0 to {count}, the number of edges, got {ends}"
            f"{'' if rises else ', not rising'}; they are the running sum of the nodes' numbers "
            "of neighbours, with a 0 before it"
        )
    if count and not (int(columns.min()) >= 0 and int(columns.max()) < num_keys):
        raise ValueError(
            f"edges: columns must be key nodes 0..{num_keys - 1}, got {int(columns.min())}.."
            f"{int(columns.max())}; are there more keys?"
        )


def _rows_of(offsets: Array, count: int) -> Array:
    """The row of each of `count` places, where row r begins at offsets[r]."""
    xp = array_module(offsets)
    return xp.searchsorted(offsets[1:], xp.arange(count), side="right")


def by_owner(owners: Array, count: int) -> tuple[Array, Array]:
    """Where each owner's places begin among all, and all: those of owner 0, of owner 1, ..."""
    xp = array_module(owners)
    order = xp.argsort(owners, kind="stable")
    return xp.searchsorted(owners[order], xp.arange(count + 1)), order


def in_pieces(walk: Walk, enough: int | None = None) -> tuple[Walk, ...]:
    """The walk; or one over pieces of at most SPAN edges, and one over the pieces of each row.

    A number of pieces that is `enough` in any case saves counting them, for which the CPU waits
    for a GPU; those too many have no edges.
    """
    xp = array_module(walk.offsets)
    counts = -(-xp.diff(walk.offsets) // SPAN)
    if enough is None and (not counts.size or int(counts.max()) <= 1):
        return (walk,)
    first = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(counts)])  # piece of each row
    pieces = xp.arange(int(first[-1]) if enough is None else enough)
    row = xp.minimum(_rows_of(first, len(pieces)), len(counts) - 1)
    begins = xp.minimum(walk.offsets[row] + SPAN * (pieces - first[row]), walk.offsets[-1])
    offsets = xp.concatenate([begins, walk.offsets[-1:]])
    return Walk(offsets, walk.edges, walk.others), Walk(first, pieces, pieces)


def whole(walks: tuple[Walk, ...]) -> Walk:
    """The walk that was cut `in_pieces`."""
    walk, *rows = walks
    for row in rows:
        walk = walk._replace(offsets=walk.offsets[row.offsets])
    return walk

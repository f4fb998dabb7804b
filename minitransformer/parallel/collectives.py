"""Communication on the tape: functions whose forward and backward both send.

The gradient of sending is sending back. Let L be the sum of what all ranks call their loss:

    function     forward, on rank r                        backward, on rank r
    Total        y = sum of all ranks' x                   dx = sum of all ranks' dy
    SumToEach    y = sum of all ranks' x[r]                dx[s] = dy of rank s
    Rows         y = the rows that r wants                 dx = sum of all ranks' dy, of r's rows
    Before       y = the state that the ranks before       dx = what the ranks behind make of
                 leave behind                              their dy, the last one first

`Before` is an exclusive scan. Each rank says by x_r and A_r what its tokens do to any state s,

    s -> A_r s + x_r                                                                           (1)

which is what they leave behind if they begin with none, and what becomes of one that was there.
Two slices together do the same with

    A = A_2 A_1                    x = A_2 x_1 + x_2                                           (2)

(2) is associative, so MPI scans it in log P steps, on the host, as states are small. With
g_r = dL/dy_r, where y_0 = 0 and y_{r+1} = A_r y_r + x_r, the chain rule is (1) from the last rank
to the first, A transposed:

    h_{r-1} = A_r^T h_r + g_r      dx_r = h_r            dA_r = h_r y_r^T      h_{P-1} = 0     (3)

A `Passage` says of which kind A is. Every rank must apply the same functions in the same order, as
for all collective calls. A gradient then goes back in one order, too, as nodes are numbered alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..device import Array, array_module, as_array, device_of, to_numpy
from ..function import Context, Function
from ..tensor import Tensor
from .slices import Spans
from .world import World


class Total(Function):
    """The sum of all ranks' arrays, one message for all."""

    @staticmethod
    def forward(ctx: Context, *arrays: Array, world: World) -> tuple[Array, ...]:
        """Return arrays of the same shapes."""
        ctx.save(world)
        return _summed(world, arrays)

    @staticmethod
    def backward(ctx: Context, *gradients: Array | None) -> tuple[Array, ...]:
        """Return the sum of all ranks' gradients."""
        (world,) = ctx.saved
        return _summed(world, ctx.filled(*gradients))


def _summed(world: World, arrays: Any) -> tuple[Array, ...]:
    xp = array_module(arrays[0])
    flat = world.sum(xp.concatenate([array.reshape(-1) for array in arrays]))
    parts = xp.split(flat, np.cumsum([array.size for array in arrays])[:-1].tolist())
    return tuple(
        part.reshape(array.shape).copy() for part, array in zip(parts, arrays, strict=True)
    )


class SumToEach(Function):
    """The sum of what all ranks have for this one."""

    @staticmethod
    def forward(ctx: Context, parts: Array, world: World) -> Array:
        """Return (...) of parts (P, ...)."""
        ctx.save(world)
        return world.sum_to_each(parts)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, None]:
        """Return the gradients of all ranks."""
        (world,) = ctx.saved
        return world.gather(gradient), None


class Rows(Function):
    """Any rows of a sequence of which every rank holds a slice; only what is missing is sent."""

    @staticmethod
    def forward(ctx: Context, x: Array, *, world: World, held: Spans, wanted: Spans) -> Array:
        """Return the rows `wanted[rank]` (N, H, ..., E) of slices x (N, H, L, E)."""
        ctx.save(world, held, wanted)
        return _moved(world, x, held, wanted)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        """Return the sum of the gradients of all ranks that wanted a row."""
        world, held, wanted = ctx.saved
        return _moved(world, gradient, wanted, held)


def _moved(world: World, x: Array, held: Spans, wanted: Spans) -> Array:
    """Return the wanted rows, each added up over all ranks that hold it."""
    me, (first, _), (begin, end) = world.rank, held[world.rank], wanted[world.rank]
    result: Array = array_module(x).zeros((*x.shape[:2], end - begin, *x.shape[3:]), x.dtype)
    parts = {s: x[:, :, i - first : j - first] for s, i, j in _common(held[me], wanted)}
    places = {s: result[:, :, i - begin : j - begin] for s, i, j in _common(wanted[me], held)}
    own = {me: parts.pop(me)} if me in parts else {}
    wait = world.start_exchange(parts, {s: place for s, place in places.items() if s != me})
    came = own | wait()
    for s, place in places.items():  # always in one order, so that sums are the same in each run
        place += came[s]
    return result


def _common(span: tuple[int, int], others: Spans) -> Iterator[tuple[int, int, int]]:
    """Yield which ranks' spans meet this one, and the rows that they share."""
    for s, (begin, end) in enumerate(others):
        i, j = max(begin, span[0]), min(end, span[1])
        if i < j:
            yield s, i, j


class Passage(NamedTuple):
    """Of which kind A of equation (1) is: functions of lists of NumPy arrays.

    Attributes:
        arrays: how many say what A is.
        join: A_1 and A_2, for A of equation (2).
        through: A and a state s, for A s.
        back: A and a gradient h, for A^T h.
        slope: h and y, for dA of equation (3), None for what has none.
    """

    arrays: int
    join: Callable[[list[Array], list[Array]], list[Array]]
    through: Callable[[list[Array], list[Array]], list[Array]]
    back: Callable[[list[Array], list[Array]], list[Array]]
    slope: Callable[[list[Array], list[Array]], tuple[Array | None, ...]]


def _kept(a: list[Array], s: list[Array]) -> list[Array]:
    return s if a[0].item() else [np.zeros_like(part) for part in s]


SUM = Passage(
    arrays=1,
    join=lambda one, two: [one[0] & two[0]],
    through=_kept,
    back=_kept,
    slope=lambda h, y: (None,),
)
"""A is 1, or 0 where another sequence begins: one boolean. States are sums over tokens."""

PRODUCT = Passage(
    arrays=1,
    join=lambda one, two: [two[0] @ one[0]],
    through=lambda a, s: [a[0] @ s[0]],
    back=lambda a, h: [a[0].swapaxes(-1, -2) @ h[0]],
    slope=lambda h, y: (h[0] @ y[0].swapaxes(-1, -2),),
)
"""A is a matrix (N, H, E, E)."""


def _window_through(a: list[Array], s: list[Array]) -> list[Array]:
    """Let as many values fall out of the window `recent` as came in, into the `tail`."""
    (_, count), (S, Z, tail, recent, length) = a, _kept(a, s)
    moved, fallen = np.zeros_like(recent), tail.copy()
    for n, c in enumerate(np.minimum(count, recent.shape[2])):
        moved[n, :, : recent.shape[2] - c] = recent[n, :, c:]
        fallen[n] += recent[n, :, :c].sum(axis=1)
    return [S, Z, fallen, moved, length]


def _window_back(a: list[Array], h: list[Array]) -> list[Array]:
    (_, count), (S, Z, tail, recent, length) = a, _kept(a, h)
    moved = np.empty_like(recent)
    for n, c in enumerate(np.minimum(count, recent.shape[2])):
        moved[n, :, c:] = recent[n, :, : recent.shape[2] - c]
        moved[n, :, :c] = tail[n, :, None]
    return [S, Z, tail, moved, length]


WINDOW = Passage(
    arrays=2,
    join=lambda one, two: [one[0] & two[0], one[1] * two[0] + two[1]],
    through=_window_through,
    back=_window_back,
    slope=lambda h, y: (None, None),
)
"""A shifts the window of a `RelativeState`: a boolean as in SUM, and the number of tokens (N,)."""


class Before(Function):
    """The state that the ranks before this one leave behind, equations (1) to (3)."""

    @staticmethod
    def forward(
        ctx: Context, *arrays: Array, world: World, passage: Passage, wanted: bool = True
    ) -> tuple[Array, ...]:
        """Return the parts of a state like this rank's own; zeros where it is not `wanted`.

        Args:
            ctx: the node.
            arrays: those of A, then the parts of x.
            world: the ranks, in the order of their slices.
            passage: of which kind A is.
            wanted: whether this rank begins with that state; not so where a sequence begins.
        """
        like = arrays[-1]
        a, x = [to_numpy(v) for v in arrays[: passage.arrays]], arrays[passage.arrays :]
        y = _scanned(world, passage, a, [to_numpy(v) for v in x], wanted)
        ctx.save(a, y, world, passage, wanted)
        return tuple(as_array(part, device_of(like)) for part in y)

    @staticmethod
    def backward(ctx: Context, *gradients: Array | None) -> tuple[Array | None, ...]:
        """Return dA and dx."""
        a, y, world, passage, wanted = ctx.saved
        filled = ctx.filled(*gradients)
        g = [to_numpy(part) if wanted else np.zeros_like(to_numpy(part)) for part in filled]
        h = _scanned(world, passage, a, g, True, reverse=True)
        return tuple(
            None if part is None else as_array(part, device_of(filled[0]))
            for part in (*passage.slope(h, y), *h)
        )


def _scanned(
    world: World,
    passage: Passage,
    a: list[Array],
    x: list[Array],
    wanted: bool,
    reverse: bool = False,
) -> list[Array]:
    """Return y of equation (3), or h."""

    def then(first: list[Array], second: list[Array]) -> None:
        (a1, x1), (a2, x2) = ((v[: len(a)], v[len(a) :]) for v in (first, second))
        moved = (passage.back if reverse else passage.through)(a2, x1)
        joined = passage.join(a2, a1) if reverse else passage.join(a1, a2)  # (A_2 A_1)^T
        for old, new in zip(a2, joined, strict=True):
            old[...] = new
        for old, new in zip(x2, moved, strict=True):
            old += new

    found = world.scan([*a, *x], then, reverse)
    if found is None or not wanted:
        return [np.zeros_like(part) for part in x]
    return found[len(a) :]


def total(state: Any, world: World) -> Any:
    """Return the sum of all ranks' states, a NamedTuple of tensors."""
    return type(state)(*Total.apply(*state, world=world))


def rows(x: Tensor, world: World, held: Spans, wanted: Spans) -> Tensor:
    """Return any rows of a sequence of slices (N, H, L, E), see `Rows`."""
    found: Tensor = Rows.apply(x, world=world, held=held, wanted=wanted)
    return found

"""Attention with a state on a sequence of which every rank holds a slice.

A query asks of the keys before it no more than their state: S and Z, and nothing that grows with
their number (`kernels.recurrent`). So a rank needs of all others one state. Causal:

    1. run the own keys, from no state, to the state that they make                            (1)
    2. scan the states: what the ranks before leave behind (`collectives.Before`)              (2)
    3. run the own queries and keys from there, as a sequence that goes on                     (3)

In both directions (2) is a sum over all ranks, and in (3) queries read it and bring no keys. Each
step is on the tape, and the kernels know the gradients into and out of a state already: backward is
nowhere written but in (2), where it is the same scan from the last rank to the first.

| attention | what is scanned                       | numbers of a head                         |
|-----------|---------------------------------------|-------------------------------------------|
| linear    | S, Z: a sum                           | E M + E                                   |
| fourier   | the same, with turned features        | 3 E M + 3 E, or 2                         |
| delta     | W = A W + B, a product of matrices    | E E + E M                                 |
| relative  | S, Z and a window of the last values  | E M + E + (k + 1) M                       |

Slices may have any lengths, and none. Lengths and boundaries of packed sequences count from the
first row of the first rank, as in one process: of packed sequences only the one that reaches across
the end of a slice hands its state on.

Source: Sun et al. 2024, "Linear attention sequence parallelism" (LASP), who send states from rank
to rank, one after the other; Sun et al. 2025, LASP-2, who gather all of them on every rank. A scan
sends as few bytes as the first, in log P steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels.delta import DeltaState
from minitransformer_kernels.fourier import FourierState
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.relative import RelativeState
from minitransformer_kernels.visible import Visible

from .. import attention
from .. import functions as F
from ..device import array_module, as_array
from ..tensor import Tensor
from .collectives import PRODUCT, SUM, WINDOW, Before, total
from .relative import both_directions
from .slices import ALL, NONE, check_options, own_part, settled, some, spans
from .world import World

Attend = Callable[..., Any]
"""An attention of some of the own queries and keys, two slices, and what it takes by keyword."""


class Cut(NamedTuple):
    """What a rank knows of its slice.

    Attributes:
        world: the ranks, in the order of their slices.
        visible: who sees whom among the own rows: the keywords of a causal call.
        open: the keys of the sequence that reaches across the slice's end.
        fresh: whether a sequence begins with the first row.
        passes: whether what came before reaches across the slice: no sequence begins in it.
    """

    world: World
    visible: dict[str, Any]
    open: slice
    fresh: bool
    passes: bool


def cut_of(name: str, query: Tensor, key: Tensor, world: World, visible: Visible) -> Cut:
    """Return what a rank knows of its slice; ranks ask one another only where there are lengths.

    Raises:
        TypeError: lengths are not integers.
        ValueError: lengths do not fit the sequences, or causal queries are cut elsewhere than keys.
    """
    if visible.causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{name}: causal queries and keys must be cut at the same places, got "
            f"{query.shape[2]} and {key.shape[2]} rows on rank {world.rank}"
        )
    if all(part is None for part in visible[2:]):
        return Cut(world, {}, ALL, False, True)
    queries, keys = spans(world, query.shape[2], key.shape[2])
    whole = settled(name, visible, query.shape[0], queries, keys)
    (begin, end), packed = keys[world.rank], whole.cu_seqlens
    if packed is not None:
        inner = np.unique(packed[(packed > begin) & (packed < end)]) - begin
        own = {"cu_seqlens": np.array([0, *inner, end - begin])}
        fresh = begin < end and begin in packed
        last = int(inner[-1]) if len(inner) else 0
        return Cut(world, own, slice(last, None), fresh, not fresh and not len(inner))
    own = {
        "query_lengths": own_part(whole.query_lengths, queries[world.rank]),
        "key_lengths": own_part(whole.key_lengths, keys[world.rank]),
    }
    return Cut(world, own, ALL, False, True)


def spread(attend: Attend, cut: Cut, causal: bool, state: type) -> Tensor:
    """Return the attention of the own queries to the keys of all ranks, steps (1) to (3).

    Its states are of the type `state`.
    """
    if state is DeltaState:
        own, passage = _written(attend, cut), PRODUCT
    else:
        own, passage = [*_state(attend, cut)], WINDOW if state is RelativeState else SUM
        step: list[Any] = [np.array([cut.passes])]
        if passage is WINDOW:
            step.append(own[-1].numpy())  # the own length
        own = [*step, *own]
    how: dict[str, Any] = {"world": cut.world, "passage": passage, "wanted": not cut.fresh}
    output: Tensor
    if causal:
        before = state(*Before.apply(*own, **how))
        output = attend(ALL, ALL, causal=True, initial_state=_first(before, cut), **cut.visible)
        return output
    if passage is PRODUCT:
        A, x = own
        y = A @ Before.apply(A, x, **how)[0] + x
        own = [A, _only(cut.world.rank == cut.world.size - 1, y)]
    totals = total(state(*own[passage.arrays :]), cut.world)
    lengths = cut.visible.get("query_lengths")
    output = attend(ALL, NONE, causal=True, initial_state=totals, query_lengths=lengths)
    return output


def _state(attend: Attend, cut: Cut, **how: Any) -> Any:
    """Return the state that the own keys make, of the sequence that goes on behind them."""
    lengths = cut.visible.get("key_lengths")
    return attend(NONE, cut.open, causal=True, return_state=True, key_lengths=lengths, **how)[1]


def _written(attend: Attend, cut: Cut) -> list[Tensor]:
    """Return A and B of W -> A W + B: a token's I - beta k k^T and beta k v^T, one after the other.

    A is what becomes of the identity where all values are zeros.
    """
    (B,) = _state(attend, cut)
    xp, (N, H, E, _) = array_module(B.data), B.shape
    identity = Tensor(xp.broadcast_to(xp.eye(E, dtype=B.dtype), (N, H, E, E)))
    (A,) = _state(attend, cut, value=E, initial_state=DeltaState(identity))
    return [_only(cut.passes, A), B]


def _only(condition: bool, x: Tensor) -> Tensor:
    """Return x, or zeros of its shape, whatever is in it."""
    return F.where(np.full((1,) * x.ndim, condition), x, 0.0)


def _first(state: Any, cut: Cut) -> Any:
    """Return the states that all sequences of the slice begin with, of the first one's."""
    count = len(cut.visible.get("cu_seqlens", (0, 0))) - 1
    if count == 1:
        return state

    def begun(part: Tensor) -> Tensor:
        rest = Tensor(array_module(part.data).zeros((count - 1, *part.shape[1:]), part.dtype))
        return F.cat([part, rest])

    return type(state)(*map(begun, state))


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    world: World,
    causal: bool = False,
    query_lengths: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    **options: Any,
) -> Tensor:
    """Linear attention on slices; see `minitransformer.attention.linear_attention`.

    Args:
        query: (N, H, Lq, E), this rank's rows, float32 or float64; Lq may be 0.
        key: (N, H, Lk, E), this rank's rows; causal, as many as of queries.
        value: (N, H, Lk, M).
        world: the ranks, in the order of their slices; all of them must call this.
        causal: whether query i sees only the keys up to its own.
        query_lengths: (N,) integers, of the whole sequences, the same on all ranks; or None.
        key_lengths: (N,), likewise.
        cu_seqlens: (N + 1,) integers, boundaries in the whole of packed sequences; needs `causal`.
        options: feature_map, algorithm, guard and eps, see there.

    Returns:
        (N, H, Lq, M), the rows of this rank's queries.

    Raises:
        TypeError: an input is not floating, lengths are not integers, or there is no such option.
        ValueError: shapes, dtypes or devices do not fit, or a choice is unknown.

    Source: Sun et al. 2024 and 2025.

    >>> world = World()  # one rank, as nobody called mpiexec
    >>> same_keys, value = Tensor([[[[1.0, 1.0]] * 3]]), Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> linear_attention(same_keys, same_keys, value, world=world, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    """
    check_options("linear_attention", options, "feature_map", "algorithm", "guard", "eps")
    visible = Visible(causal, 0, query_lengths, key_lengths, cu_seqlens)
    cut = cut_of("linear_attention", query, key, world, visible)

    def attend(queries: slice, keys: slice, **how: Any) -> Any:
        q, k, v = some(query, queries), some(key, keys), some(value, keys)
        return attention.linear_attention(q, k, v, **options, **how)

    return spread(attend, cut, causal, LinearState)


def fourier_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Any,
    key_positions: Any,
    frequency: Tensor,
    phase: Tensor,
    amplitude: Tensor,
    *,
    world: World,
    causal: bool = False,
    query_lengths: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    **options: Any,
) -> Tensor:
    """Linear attention with Fourier positions on slices; see `fourier_linear_attention` there.

    Args:
        query, key, value: this rank's rows, as in `linear_attention` here.
        query_positions: (N or 1, Lq, P), where this rank's queries stand among all.
        key_positions: (N or 1, Lk, P).
        frequency: (H, E, P), the same on all ranks, as the phase and the amplitude.
        phase: (H, E).
        amplitude: (H, E).
        world: this and all to cu_seqlens as in `linear_attention` here.
        options: form, denominator, feature_map, algorithm, guard and eps.

    Returns and raises what `linear_attention` here does.

    Source: S2; Sun et al. 2024 and 2025.
    """
    name = "fourier_linear_attention"
    known = "form", "denominator", "feature_map", "algorithm", "guard", "eps"
    check_options(name, options, *known)
    visible = Visible(causal, 0, query_lengths, key_lengths, cu_seqlens)
    cut = cut_of(name, query, key, world, visible)
    p, r = (
        x if isinstance(x, Tensor) else Tensor(as_array(x, query.device, np.float64))
        for x in (query_positions, key_positions)
    )

    def attend(queries: slice, keys: slice, **how: Any) -> Any:
        return attention.fourier_linear_attention(
            some(query, queries), some(key, keys), some(value, keys), some(p, queries, 1),
            some(r, keys, 1), frequency, phase, amplitude, **options, **how,
        )  # fmt: skip

    return spread(attend, cut, causal, FourierState)


def delta_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    *,
    world: World,
    causal: bool = True,
    query_lengths: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    **options: Any,
) -> Tensor:
    """The delta rule on slices; see `minitransformer.attention.delta_attention`.

    Args:
        query, key, value: this rank's rows, as in `linear_attention` here.
        beta: (N, H, Lk), the rate of each write.
        world, query_lengths, key_lengths, cu_seqlens: as in `linear_attention` here.
        causal: False lets every query read what all keys of all ranks have written.
        options: feature_map, normalize and algorithm.

    Returns and raises what `linear_attention` here does.

    Source: Schlag et al. 2021; Sun et al. 2024 and 2025.
    """
    check_options("delta_attention", options, "feature_map", "normalize", "algorithm")
    visible = Visible(causal, 0, query_lengths, key_lengths, cu_seqlens)
    cut = cut_of("delta_attention", query, key, world, visible)

    def attend(queries: slice, keys: slice, value: Any = value, **how: Any) -> Any:
        q, k, v = some(query, queries), some(key, keys), values(value, key, keys)
        return attention.delta_attention(q, k, v, some(beta, keys), **options, **how)

    return spread(attend, cut, causal, DeltaState)


def relative_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative_embedding: Tensor,
    *,
    world: World,
    causal: bool = False,
    query_lengths: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    **options: Any,
) -> Tensor:
    """Linear attention with Shaw's positions on slices; see `relative_linear_attention` there.

    Args:
        query, key, value: this rank's rows, as in `linear_attention` here; not causal, values are
            at most 255 wide.
        relative_embedding: (H, 2k + 1, E), the same on all ranks.
        world: this and all to cu_seqlens as in `linear_attention` here.
        options: score_map, relative_query, feature_map, guard, eps and algorithm.

    Returns and raises what `linear_attention` here does.

    Source: Shaw et al. 2018; S0; Sun et al. 2024 and 2025.
    """
    name, known = "relative_linear_attention", ("score_map", "relative_query", "feature_map")
    check_options(name, options, *known, "algorithm", "guard", "eps")
    visible = Visible(causal, 0, query_lengths, key_lengths, cu_seqlens)
    if not causal:
        queries, keys = spans(world, query.shape[2], key.shape[2])
        whole = settled(name, visible, query.shape[0], queries, keys)
        return both_directions(
            query, key, value, relative_embedding, whole, world, queries, keys, **options
        )
    cut = cut_of(name, query, key, world, visible)
    _check_no_gap(name, query_lengths, key_lengths)

    def attend(queries: slice, keys: slice, **how: Any) -> Any:
        q, k, v = some(query, queries), some(key, keys), some(value, keys)
        return attention.relative_linear_attention(q, k, v, relative_embedding, **options, **how)

    return spread(attend, cut, causal, RelativeState)


def _check_no_gap(name: str, query_lengths: Any, key_lengths: Any) -> None:
    """Refuse causal queries behind the last key that counts: a window of values has no gaps."""
    if key_lengths is None:
        return
    if query_lengths is None or (np.asarray(query_lengths) > np.asarray(key_lengths)).any():
        raise ValueError(
            f"{name}: causal queries on slices must not go on where keys are padding; give "
            "query_lengths that are nowhere above key_lengths"
        )


def values(value: Tensor | int, key: Tensor, keys: slice) -> Tensor:
    """Return some values; of a number M, as many zeros (N, H, L, M)."""
    if isinstance(value, Tensor):
        return some(value, keys)
    rows = key.data[:, :, keys]
    return Tensor(array_module(rows).zeros((*rows.shape[:3], value), rows.dtype))

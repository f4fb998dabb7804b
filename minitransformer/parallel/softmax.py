"""Softmax attention on slices: a ring of all keys, or the keys near by.

Softmax needs every key and value, so what is sent grows with the length. In a **ring** each rank
hands the keys and values that it has to the next one, P - 1 times, and meanwhile attends to them.
What it gets of slice s is o_s, h_s and d_s of `kernels.softmax`: a mean, the highest score and the
sum of exponentials relative to it. Two such results are one over both slices:

    h = max(h_1, h_2)       c_s = exp(h_s - h) d_s                                             (1)
    d = c_1 + c_2           o   = (c_1 o_1 + c_2 o_2) / d                                      (2)

Backward goes round once more. With h and d of all keys, a slice's kernel makes the very weights
that one process would, and its gradients of queries add up over the turns; those of keys and values
travel with them, and are at home after P turns.

In **local** attention a query sees the keys at most w away: a rank asks the others for those of
them that it does not hold, a halo of w rows, whatever the length.

Source: Liu et al. 2023, "Ring attention with blockwise transformers for near-infinite context".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minitransformer_kernels import softmax
from minitransformer_kernels.checks import whole
from minitransformer_kernels.visible import Visible

from .. import attention
from .. import functions as F
from ..attention.checks import check_sequences, finite_scale
from ..attention.softmax import relative_scores
from ..device import Array, array_module
from ..function import Context, Function
from ..tensor import Tensor
from .collectives import rows
from .slices import Spans, around, own_part, settled, spans
from .world import World


class RingAttention(Function):
    """softmax(scale (Q K^T + B)) V, with the keys and values of all ranks."""

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array,
        value: Array,
        scores: Array | None,
        *,
        ring: Ring,
        scale: float | None,
    ) -> Array:
        """Return the output (N, H, Lq, M) of the own queries; the scores are B, or None."""
        xp, E = array_module(query), key.shape[3]
        options: dict[str, Any] = {"scale": scale, "relative_scores": scores}
        o: Array = xp.zeros((*query.shape[:3], value.shape[3]), query.dtype)
        h, d = xp.full(o.shape[:3], -xp.inf, o.dtype), xp.zeros(o.shape[:3], o.dtype)
        for visible, kv in ring.turns(xp.concatenate((key, value), axis=3)):
            if visible is None:
                continue
            o_s, h_s, inverse = softmax.forward(query, kv[..., :E], kv[..., E:], visible, **options)
            sees = inverse > 0
            h_s = xp.where(sees, h_s, -xp.inf)
            highest = xp.maximum(h, h_s)  # (1)
            finite = xp.where(xp.isfinite(highest), highest, 0)
            c, c_s = xp.exp(h - finite) * d, xp.exp(h_s - finite) / xp.where(sees, inverse, 1)
            h, d = highest, c + c_s
            share = xp.where(d > 0, d, 1)[..., None]
            o = c[..., None] / share * o + c_s[..., None] / share * o_s  # (2)
        sees = d > 0
        h, inverse = xp.where(sees, h, 0), sees / xp.where(sees, d, 1)
        ctx.save(query, key, value, o, h, inverse.astype(o.dtype), ring, options)
        return o

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array | None, ...]:
        """Return dQ, dK, dV and dB."""
        query, key, value, o, h, inverse, ring, options = ctx.saved
        xp, E, scores = array_module(query), key.shape[3], options["relative_scores"]
        own = xp.concatenate((key, value), axis=3)
        travelling = xp.zeros_like(own)
        dq, db = xp.zeros_like(query), None if scores is None else xp.zeros_like(scores)
        for turn, (visible, kv) in enumerate(ring.turns(own)):
            if visible is not None:
                k, v = kv[..., :E], kv[..., E:]
                parts = softmax.backward(gradient, query, k, v, o, h, inverse, visible, **options)
                dq += parts[0]
                travelling += xp.concatenate(parts[1:3], axis=3)
                if db is not None:
                    db += parts[3]
            travelling = ring.passed_on(travelling, turn)()
        return dq, travelling[..., :E], travelling[..., E:], db


class Ring(NamedTuple):
    """Who holds which keys, and who sees whom.

    Attributes:
        world: the ranks; each hands on to the next, the last to the first.
        visible: who sees whom in the whole sequences.
        queries: where the slices of queries lie.
        keys: where those of keys and values lie.
    """

    world: World
    visible: Visible
    queries: Spans
    keys: Spans

    def turns(self, block: Array) -> Iterator[tuple[Visible | None, Array]]:
        """Yield every rank's block (N, H, L, ...), the own one first, and who sees whom in it.

        That is None where no query can see a key. The next block comes in the meantime.
        """
        me, P = self.world.rank, self.world.size
        for turn in range(P - 1):
            wait = self.passed_on(block, turn)
            yield self._part((me - turn) % P), block
            block = wait()
        yield self._part((me + 1) % P), block

    def passed_on(self, block: Array, turn: int) -> Callable[[], Array]:
        """Begin to hand on the block of this turn; what comes back waits for that of the next."""
        me, P = self.world.rank, self.world.size
        if P == 1:
            return lambda: block
        begin, end = self.keys[(me - turn - 1) % P]
        like = array_module(block).empty(
            (*block.shape[:2], end - begin, *block.shape[3:]), block.dtype
        )
        wait = self.world.start_exchange({(me + 1) % P: block}, {(me - 1) % P: like})
        return lambda: wait()[(me - 1) % P]

    def _part(self, source: int) -> Visible | None:
        """Return which of the own queries see which keys of a rank."""
        (a, b), (i, j) = self.queries[self.world.rank], self.keys[source]
        offset = a + self.visible.query_offset - i
        if a == b or i == j or (self.visible.causal and b - a + offset <= 0):
            return None
        lengths = self.visible.query_lengths, self.visible.key_lengths
        of_query, of_key = (own_part(x, y) for x, y in zip(lengths, ((a, b), (i, j)), strict=True))
        return Visible(self.visible.causal, offset, of_query, of_key)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    world: World,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Any = None,
    key_lengths: Any = None,
    scale: float | None = None,
    relative_embedding: Tensor | None = None,
) -> Tensor:
    """Softmax attention on slices, in a ring; see `minitransformer.attention.softmax_attention`.

    Args:
        query: (N, H, Lq, E), this rank's rows, float32 or float64; Lq may be 0.
        key: (N, H, Lk, E), this rank's rows.
        value: (N, H, Lk, M).
        world: the ranks, in the order of their slices; all of them must call this.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query of all among the keys of all.
        query_lengths: (N,) integers, of the whole sequences, the same on all ranks; or None.
        key_lengths: (N,), likewise.
        scale: factor of the scores; 1 / sqrt(E) by default.
        relative_embedding: (H, 2k + 1, E), the same on all ranks; or None.

    Returns:
        (N, H, Lq, M), the rows of this rank's queries.

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit.

    Source: Liu et al. 2023.

    >>> world = World()  # one rank, as nobody called mpiexec
    >>> same_keys, value = Tensor([[[[1.0, 1.0]] * 3]]), Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> softmax_attention(same_keys, same_keys, value, world=world, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    """
    name = "softmax_attention"
    check_sequences(name, query, key, value)
    visible = Visible(causal, query_offset, query_lengths, key_lengths)
    ring = _ring(name, query, key, world, visible)
    lengths = own_part(ring.visible.query_lengths, ring.queries[world.rank])
    scores = relative_scores(name, query, relative_embedding, lengths)
    scale = finite_scale(name, scale)
    output: Tensor = RingAttention.apply(query, key, value, scores, ring=ring, scale=scale)
    return output


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int,
    world: World,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Any = None,
    key_lengths: Any = None,
    scale: float | None = None,
    relative_embedding: Tensor | None = None,
) -> Tensor:
    """Local attention on slices; see `minitransformer.attention.local_attention`.

    Keys that are seen from everywhere there are not here: every rank would need all of them.

    Args:
        query, key, value: this rank's rows, as in `softmax_attention` here.
        window: how many keys a query sees beside the one at its own place, whoever holds them.
        world: this and the rest as in `softmax_attention` here.

    Returns and raises what `softmax_attention` here does; a ValueError, too, for a negative window.

    Source: Child et al. 2019; Beltagy et al. 2020.
    """
    name = "local_attention"
    check_sequences(name, query, key, value)
    whole(name, "window", window, 0)
    visible = Visible(causal, query_offset, query_lengths, key_lengths)
    ring = _ring(name, query, key, world, visible)
    offset, me, E = ring.visible.query_offset, world.rank, key.shape[3]
    places = [(a + offset, b + offset) for a, b in ring.queries]
    wanted = around(places, ring.keys, window, 0 if causal else window)
    near = rows(F.cat([key, value], dim=3), world, ring.keys, wanted)
    output: Tensor = attention.local_attention(
        query, near[..., :E], near[..., E:], window=window, causal=causal,
        query_offset=places[me][0] - wanted[me][0],
        query_lengths=own_part(ring.visible.query_lengths, ring.queries[me]),
        key_lengths=own_part(ring.visible.key_lengths, wanted[me]),
        scale=scale, relative_embedding=relative_embedding,
    )  # fmt: skip
    return output


def _ring(name: str, query: Tensor, key: Tensor, world: World, visible: Visible) -> Ring:
    """Return who holds what, having asked all ranks, and who sees whom, checked."""
    queries, keys = spans(world, query.shape[2], key.shape[2])
    return Ring(world, settled(name, visible, query.shape[0], queries, keys), queries, keys)

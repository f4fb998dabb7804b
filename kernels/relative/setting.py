"""Where queries, keys and distances stand to one another, and what may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..arrays import Array, array_module, contiguous
from ..visible import Visible

FAR = 1 << 40  # farther than any key


class RelativeState(NamedTuple):
    """What a causal sequence leaves behind, for an attention with distances up to k.

    S `(N, H, E, M)` and Z `(N, H, E)` are those of `LinearState`; `tail` `(N, H, M)` is the sum of
    all values but the last k, `recent` `(N, H, k, M)` the last k values, the newest at the end,
    zeros where there were fewer; `length` `(N,)` int64 counts the keys.
    """

    S: Array
    Z: Array
    tail: Array
    recent: Array
    length: Array


STATE = {"S": "B H E M", "Z": "B H E", "tail": "B H M", "recent": "B H k M", "length": "B int"}


class Setting(NamedTuple):
    """The same for forward and backward."""

    algorithm: str  # of the kernelized term
    queries: Array  # spans
    keys: Array
    longest: tuple[int, int]  # sequence of queries, of keys: launches need blocks for so many rows
    embedding: Array  # (H, R, E): the distances that occur, from `low` on
    low: int
    below: int  # keys from p + below to before p + above are near to position p
    above: int
    offset: int
    causal: bool
    state: RelativeState  # with an empty window where there is none

    @property
    def walk(self) -> tuple[int, int, int, int, bool]:
        """What kernels need to find the near keys of a query, and the near queries of a key."""
        return self.low, self.below, self.above, self.offset, self.causal


def setting_of(
    query: Array,
    key: Array,
    value: Array,
    embedding: Array,
    visible: Visible,
    algorithm: str | Mapping[str, str],
    initial_state: RelativeState | None,
) -> Setting:
    """Find the distances that occur.

    Raises:
        ValueError: arguments contradict one another, in what `algorithms` does not ask.
    """
    kernelized, relative = _by_term(algorithm)
    causal, k = visible.causal, embedding.shape[1] // 2
    if initial_state is not None and visible.query_offset < 0:
        raise ValueError(
            "query_offset must be 0 or more with an initial_state, whose keys come before every "
            f"query; got {visible.query_offset}"
        )
    offset = visible.near(query, key, k)
    longest = Lq, Lk = query.shape[2], key.shape[2]
    high = max(-k, min(k, Lk - 1 - offset, 0 if causal else FAR))
    low = min(high, max(-k, -(offset + Lq - 1))) if initial_state is None else -k
    naive = relative == "naive"
    queries, keys = visible.spans(query, key)
    if visible.cu_seqlens is not None:
        longest = int(queries[:, 3].max()), int(keys[:, 3].max())
    (occurring,) = contiguous(embedding[:, k + low : k + high + 1])
    state = initial_state or empty_state(len(queries), key, value, 0)
    return Setting(
        algorithm=kernelized,
        queries=queries,
        keys=keys,
        longest=longest,
        embedding=occurring,
        low=low,
        below=-FAR if naive else low + 1,
        above=1 if causal else FAR if naive else high,
        offset=offset,
        causal=causal,
        state=in_one_piece(state),
    )


def _by_term(algorithm: str | Mapping[str, str]) -> tuple[str, str]:
    """The algorithm of the kernelized term, and of the relative one "naive" or "linear".

    Raises:
        ValueError: there is no such choice.
    """
    if isinstance(algorithm, str):
        return algorithm, "naive" if algorithm == "naive" else "linear"
    if set(algorithm) != {"kernelized", "relative"}:
        raise ValueError(
            "algorithm has an entry for each term, 'kernelized' and 'relative', got "
            f"{sorted(algorithm)}"
        )
    if algorithm["relative"] not in ("naive", "linear"):
        raise ValueError(
            "the algorithm of the relative term must be 'naive' or 'linear', got "
            f"{algorithm['relative']!r}"
        )
    return algorithm["kernelized"], algorithm["relative"]


def in_one_piece(state: RelativeState) -> RelativeState:
    """The state as kernels take it: the counts may be integers of any kind."""
    xp = array_module(state.length)
    return RelativeState(*contiguous(*state[:4], state.length.astype(xp.int64)))


def empty_state(count: int, key: Array, value: Array, window: int) -> RelativeState:
    """The state of `count` sequences that have not begun.

    Args:
        count: N.
        key: an array with H along its second axis and E along its last.
        value: an array with M along its last axis.
        window: k, of the embeddings of distances -k to k.
    """
    xp = array_module(key)
    H, E, M = key.shape[1], key.shape[-1], value.shape[-1]

    def zeros(*shape: int) -> Array:
        return xp.zeros((count, H, *shape), key.dtype)

    return RelativeState(
        zeros(E, M), zeros(E), zeros(M), zeros(window, M), xp.zeros(count, xp.int64)
    )

"""Local attention: a query sees a window of keys around itself, and a few landmarks.

Query i stands at position p_i = i + query_offset, key j at j. With a window of w it sees the keys

    p_i - w <= j <= p_i       (causal)        |p_i - j| <= w       (two-sided)             (1)

So L queries have L w scores, not L^2, and layers pass on what is farther away. Two kinds of key may
be seen from everywhere (causal: from j on), the *landmarks*:

    j < num_global            j mod stride = stride - 1                                    (2)

The first are the global tokens of Longformer (Beltagy et al. 2020), the others the fixed pattern of
Sparse Transformers (Child et al. 2019). Of their two patterns that is the one whose landmarks are
the same for every query: they can be gathered, and a decoder need not keep any other old key. The
queries at 0 <= p_i < global_queries see every key (causal: up to their own place), as Longformer's
global tokens do.

One rule holds all of this. Key j is seen *from* a range of positions, and query i asks *from* one:

                  key j of (1)      landmark       query i    global query
    causal        [j,     j + w]    [j, inf]       [p, p]     [-inf, p]                    (3)
    two-sided     [j - w, j + w]    [-inf, inf]    [p, p]     [-inf, inf]

    w_ij = 1 where the two ranges meet, 0 elsewhere                                        (4)

What follows is softmax attention with these w_ij, forward and backward: all equations are those
of `softmax`, and so are the kernels. What is new is the walk. A softmax does not ask for the order
of its keys, so a tile of queries can walk a list that exists nowhere in memory: the landmarks
before the windows of the tile, then all keys from its first window to its last, then the landmarks
after them. Each key comes once:

    keys                G . . S . . . S . . . S . . . S . . . S     num_global = 1, stride = 4
    a tile's windows                      [- - - - - -]
    its list            G     S       S   . . S . . . S       S

The gradient of the keys walks the other way: a tile of keys is seen from the queries near by, and
from the global queries. But a landmark is seen from everywhere. So the landmarks form tiles of
their own, which walk all queries; every other key walks a window. Each key has one owner, and each
sum one order. With K landmarks the cost is O(L (w + K)), forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import softmax
from ..arrays import Array, ceil_div, constant
from ..checks import whole
from ..cuda import cuda
from ..softmax.fast import FAR, NOWHERE, Walk
from ..visible import EVERYTHING, Visible

# ----------------------------------------------------------------------------------- who sees whom
#
# A pattern is a tuple of five: w, how many positions have global queries, how many rows of blocks
# are for landmarks, the landmarks, and how many of them stand before each key.


@cuda.jit(device=True)
def _seen_from(j, landmark, causal, window):  # type: ignore[no-untyped-def]
    """Key j, and the first and the last position that sees it, equation (3)."""
    first = j if causal else (-FAR if landmark else j - window)
    return j, first, FAR if landmark else j + window


@cuda.jit(device=True)
def _asks_from(i, last_query, offset, causal, pattern):  # type: ignore[no-untyped-def]
    """The first and the last position from which query i asks, equation (3)."""
    _, global_queries, _, _, _ = pattern
    p = i + offset
    is_global = 0 <= p < global_queries
    if i < 0 or i >= last_query:
        return NOWHERE, -NOWHERE
    return -FAR if is_global else p, FAR if is_global and not causal else p


# ---------------------------------------------------------------------------------------- the lists
#
# A list is `before` landmarks, then all from `low` to `high` - 1, then landmarks from `high` on, up
# to its `end`. In a list of queries the global ones are the landmarks: 0, 1, 2 and so on.


@cuda.jit(device=True)
def _clip(x, least, most):  # type: ignore[no-untyped-def]
    return max(least, min(x, most))


@cuda.jit(device=True)
def _keys_of(begin, end, last_key, causal, pattern):  # type: ignore[no-untyped-def]
    """The list of the keys that queries at positions begin .. end - 1 see together."""
    window, global_queries, _, _, below = pattern
    sees_all = max(begin, 0) < min(end, global_queries)
    reach = end if causal else (last_key if sees_all else end + window)
    low = _clip(0 if sees_all else begin - window, 0, last_key)
    high = _clip(reach, low, last_key)
    after = 0 if causal else below[last_key] - below[high]
    return below[low] + high - low + after, low, high, below[low]


@cuda.jit(device=True)
def _key_at(u, end, low, high, before, causal, pattern):  # type: ignore[no-untyped-def]
    """The key at place u of a list, and the first and the last position that sees it."""
    window, _, _, landmarks, below = pattern
    if u >= end:
        return NOWHERE, NOWHERE, -NOWHERE
    j = low + u - before
    if u < before:
        j = landmarks[u]
    elif j >= high:
        j = landmarks[j - high + below[high]]
    return _seen_from(j, below[j] < below[j + 1], causal, window)


@cuda.jit(device=True)
def _own_key(u, last_key, causal, pattern):  # type: ignore[no-untyped-def]
    """The key of row u of all blocks, and the first and the last position that sees it."""
    window, _, gathered, landmarks, below = pattern
    if u < min(gathered, below[last_key]):
        return _seen_from(landmarks[u], True, causal, window)
    j = u - gathered
    if 0 <= j < last_key and below[j] == below[j + 1]:
        return _seen_from(j, False, causal, window)
    return NOWHERE, NOWHERE, -NOWHERE


@cuda.jit(device=True)
def _queries_of(first_row, rows, last_query, last_key, offset, causal, pattern):  # type: ignore[no-untyped-def]
    """The list of the positions that see one of the keys of a block's rows."""
    window, global_queries, gathered, landmarks, _ = pattern
    key = first_row - gathered
    first, last = key if causal else key - window, key + rows - 1 + window
    if first_row < gathered:
        key = landmarks[first_row]
        first, last = key if causal else -FAR, FAR
    begin, end = offset, last_query + offset
    low = _clip(first, begin, end)
    high = _clip(last + 1, low, end)
    before = 0 if causal else _clip(low, 0, global_queries)
    after = _clip(end, 0, global_queries) - _clip(high, 0, global_queries)
    count = before + high - low + after
    return count if key < last_key and last_query > 0 else 0, low, high, before


@cuda.jit(device=True)
def _query_at(u, end, low, high, before, last_query, offset, causal, pattern):  # type: ignore[no-untyped-def]
    """The query at place u of a list, and the first and the last position that it asks from."""
    _, global_queries, _, _, _ = pattern
    p = low + u - before
    if u < before:
        p = u
    elif p >= high:
        p += _clip(high, 0, global_queries) - high
    i = p - offset if u < end else -1
    first, last = _asks_from(i, last_query, offset, causal, pattern)
    return i if first < NOWHERE else NOWHERE, first, last


WALK = Walk(_keys_of, _key_at, _asks_from, _own_key, _queries_of, _query_at)


@cuda.jit(device=True)
def _sees(i, j, last_query, last_key, offset, causal, pattern):  # type: ignore[no-untyped-def]
    """w_ij of equation (4), without a list: what the plain kernels ask of every pair."""
    window, _, _, _, below = pattern
    if j >= last_key:
        return False
    _, since, until = _seen_from(j, below[j] < below[j + 1], causal, window)
    first, last = _asks_from(i, last_query, offset, causal, pattern)
    return since <= last and first <= until


# ------------------------------------------------------------------------------ the host functions


@dataclass(frozen=True)
class Pattern:
    """The keys that a query sees, equations (1) and (2); only causality and lengths see less.

    Args:
        window: w, how many keys a query sees beside the one at its own place: before it and, where
            not causal, as many after it.
        stride: the last of every so many keys is seen from everywhere; None: no such keys.
        num_global: so many first keys are seen from everywhere.
        global_queries: the queries at so many first positions see every key.

    Raises:
        TypeError: a number is not whole.
        ValueError: stride is below 1, or another number below 0.
    """

    window: int
    stride: int | None = None
    num_global: int = 0
    global_queries: int = 0

    walk, sees = WALK, _sees

    def __post_init__(self) -> None:
        for name in ("window", "num_global", "global_queries"):
            whole("local", name, getattr(self, name), 0)
        if self.stride is not None:
            whole("local", "stride", self.stride, 1)

    @property
    def reach(self) -> int:
        """From how far on it makes no difference how far a key is."""
        return min(self.window + self.global_queries + 1, 2 * FAR)

    def arguments(self, key: Array, rows: int) -> tuple[Any, ...]:
        """What a kernel takes for it, where each of its blocks owns so many rows of landmarks."""
        j = np.arange(key.shape[2])
        landmark = j < self.num_global
        if self.stride is not None:
            stride = min(self.stride, len(j) + 1)  # none of these has a last key
            landmark |= j % stride == stride - 1
        below = np.zeros(len(j) + 1, np.int64)
        np.cumsum(landmark, out=below[1:])
        landmarks, below = (constant(numbers, key) for numbers in (j[landmark], below))
        gathered = rows * ceil_div(landmarks.size, rows)
        window, global_queries = min(self.window, FAR), min(self.global_queries, FAR)
        return window, global_queries, gathered, landmarks, below


def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    **options: Any,
) -> tuple[Array, Array, Array]:
    """Local attention, at a cost that grows with Lq times the window.

    Args:
        query: `(N, H, Lq, E)`, float32 or float64; key, value, visible and the options scale,
            relative_scores, dropout, seed and version, too, are those of `softmax.forward`.
        window: w, how many keys a query sees on either side of its own place; this and the next
            three are those of `Pattern`.

    Returns:
        What `softmax.forward` returns.

    Raises:
        TypeError, ValueError: as `softmax.forward` and `Pattern`.

    Source: Child et al. 2019, equation 4 and section 4.3; Beltagy et al. 2020, section 3.1.

    Example:
        >>> query = key = np.zeros((1, 1, 4, 8))
        >>> output, *_ = forward(query, key, np.array([[[[1.0], [3], [5], [7]]]]), window=1)
        >>> output.ravel().tolist()
        [2.0, 3.0, 5.0, 6.0]
    """
    pattern = Pattern(window, stride, num_global, global_queries)
    return softmax.forward(query, key, value, visible, pattern=pattern, **options)


def backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    highest: Array,
    inverse: Array,
    visible: Visible = EVERYTHING,
    *,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    **options: Any,
) -> tuple[Array, ...]:
    """The gradient of local attention.

    Args:
        grad_output: `(N, H, Lq, M)`, dLoss/doutput; the rest as `forward` took and returned it.

    Returns:
        What `softmax.backward` returns.

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: as `forward`.
    """
    saved, pattern = (output, highest, inverse), Pattern(window, stride, num_global, global_queries)
    return softmax.backward(
        grad_output, query, key, value, *saved, visible, pattern=pattern, **options
    )

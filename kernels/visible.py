"""Who sees whom: one record, which every attention of this package takes.

Query i, which stands at position i + query_offset, sees key j where w_ij is 1:

    w_ij = 1 if i < query_length and j < key_length and (causal: j <= i + query_offset) else 0   (1)

`Visible` says it to the host functions; kernels get its numbers as plain arguments. Packed
sequences, which lie one after the other without padding, say by `cu_seqlens` where each begins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, array_module, constant, lengths_or_full, locked, spans
from .checks import flag, is_array, whole

FARTHEST = 2**59  # offset: there is no memory for so many keys, and sums with it fit in 64 bits


class Visible(NamedTuple):
    """Which query sees which key, equation (1).

    Attributes:
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: `(N,)` integers; queries from there on are padding: their output is zero.
            None: all count.
        key_lengths: `(N,)` integers; keys from there on are not seen. None: all count.
        cu_seqlens: `(N + 1,)` integers, where each of N packed sequences begins, and where the last
            ends; arrays are then `(1, H, T, ...)`. None: sequences are padded.
    """

    causal: bool = False
    query_offset: int = 0
    query_lengths: Array | None = None
    key_lengths: Array | None = None
    cu_seqlens: Array | None = None

    @property
    def known_sizes(self) -> dict[str, int]:
        """B, the number of sequences, which packed ones do not show in their shape."""
        return {} if self.cu_seqlens is None else {"B": np.size(self.cu_seqlens) - 1}

    def settled(self, function: str, query: Array, key: Array) -> Settled:
        """The same, checked against the arrays, with integers that nobody else can write to.

        Args:
            function: the name that errors begin with.
            query: `(N, H, Lq, ...)`; only its shape counts, and where it is.
            key: `(N, H, Lk, ...)`.

        Raises:
            TypeError: causal is no bool, or other numbers are no integers.
            ValueError: lengths or boundaries do not fit the arrays, or contradict one another.
        """
        sizes = query.shape[0], query.shape[2], key.shape[2]
        if isinstance(self, Settled) and self.sizes == sizes:
            return self
        result = Settled(
            flag(function, "causal", self.causal),
            whole(function, "query_offset", self.query_offset),
            own_lengths(function, "query_lengths", self.query_lengths, query),
            own_lengths(function, "key_lengths", self.key_lengths, key),
            _boundaries(function, self, query, key),
        )
        result.sizes = sizes
        if abs(result.query_offset) > FARTHEST:
            raise ValueError(
                f"{function}: query_offset must lie between -2^59 and 2^59, got "
                f"{result.query_offset}"
            )
        return result

    def near(self, query: Array, key: Array, reach: int = 0) -> int:
        """The query_offset, or one that is as good and not farther from the keys.

        No query sees more than all keys, and none sees less than nothing. `reach` is the distance
        from which on all keys are alike.
        """
        return max(-query.shape[2] - reach, min(self.query_offset, key.shape[2] + reach))

    def sighted(self, query: Array, key: Array, *rows: Array, state: Any = None) -> Any:
        """Who sees whom, and queries, and more of their rows: zeros where a query sees nothing.

        Such a query has sums of no terms. But a kernel adds up products with zeros in the place of
        keys that there are not, and NaN times zero is NaN. Of sequences without keys all queries
        count as padding. With a state, every query sees something.

        Returns:
            The record with other lengths, the queries and the rows.
        """
        arrays, seen = (query, *rows), self
        if state is not None or self.cu_seqlens is not None:
            return seen, *arrays
        Lq, Lk = query.shape[2], key.shape[2]
        blind = min(Lq, -self.query_offset if self.causal and Lk else 0 if Lk else Lq)
        if blind > 0:
            arrays = tuple(array.copy() for array in arrays)
            for array in arrays:
                array[:, :, :blind] = 0
        if self.key_lengths is not None:
            lengths = lengths_or_full(self.query_lengths, query.shape[0], Lq, query)
            seen = self._replace(query_lengths=lengths * (self.key_lengths > 0))
        return seen, *arrays

    def of_seen_keys(self, query: Array, key: Array, grad_state: Any = None) -> Visible:
        """The same with keys that nobody sees as padding, whose gradients are sums of no terms.

        A state that has a gradient sees all keys.
        """
        Lq, Lk, offset = query.shape[2], key.shape[2], self.query_offset
        if grad_state is not None or self.cu_seqlens is not None:
            return self
        if self.query_lengths is None:
            last = max(0, min(Lk, Lq + offset if self.causal else Lk)) if Lq else 0
            if last == Lk:
                return self
        else:
            ends = (self.query_lengths + offset).clip(0, Lk) if self.causal else Lk
            last = ends * (self.query_lengths > 0)
        lengths = lengths_or_full(self.key_lengths, key.shape[0], Lk, key)
        return self._replace(key_lengths=array_module(key).minimum(lengths, last))

    def lengths(self, query: Array, key: Array) -> tuple[Array, Array]:
        """The lengths of padded queries and keys: int64 `(N,)`, on the device of the arrays.

        Raises:
            ValueError: sequences are packed.
        """
        if self.cu_seqlens is not None:
            raise ValueError(
                "cu_seqlens needs a causal algorithm, 'recurrent' or 'chunked'; all others take "
                "padded sequences, and their lengths"
            )
        return (
            lengths_or_full(self.query_lengths, query.shape[0], query.shape[2], query),
            lengths_or_full(self.key_lengths, key.shape[0], key.shape[2], key),
        )

    def spans(self, query: Array, key: Array) -> tuple[Array, Array]:
        """Where the sequences of queries and of keys lie: int64 `(N, 4)`, see `arrays.spans`."""
        return (
            spans(query, self.query_lengths, self.cu_seqlens),
            spans(key, self.key_lengths, self.cu_seqlens),
        )

    def mask(self, query: Array, key: Array) -> np.ndarray:
        """w_ij of equation (1) for padded NumPy arrays: bool, `(N, 1, Lq, Lk)`."""
        w = (
            inside(query, self.query_lengths)[..., None]
            & inside(key, self.key_lengths)[..., None, :]
        )
        if not self.causal:
            return w
        i, j = np.arange(query.shape[2])[:, None], np.arange(key.shape[2])
        return w & (j <= i + self.query_offset)  # (1)


class Settled(Visible):
    """One that was checked, for arrays of these N, Lq and Lk."""

    sizes = -1, -1, -1


EVERYTHING = Visible()
CAUSAL = Visible(causal=True)


def inside(sequence: Array, lengths: Array | None) -> np.ndarray:
    """Which positions of a NumPy array `(N, H, L, E)` are no padding: bool, `(N, 1, L)`."""
    batch, _, count, _ = sequence.shape
    ends = np.full(batch, count) if lengths is None else np.asarray(lengths)
    return np.arange(count) < ends[:, None, None]


def blank(lengths: Array | None, *rows: Array) -> None:
    """Write zeros to the padding of arrays `(N, H, L, ...)`, whatever a kernel made of it."""
    if lengths is None:
        return
    xp = array_module(lengths)
    first = int(lengths.min(initial=FARTHEST)) if xp is np else 0  # a GPU would be waited for
    for array in rows:
        tail = array[:, :, first:]
        padding = xp.arange(first, first + tail.shape[2]) >= lengths[:, None]
        shape = len(lengths), 1, tail.shape[2], *[1] * (array.ndim - 3)
        xp.copyto(tail, 0, where=padding.reshape(shape))


def _integers(data: Any) -> Array:
    """What a user gives for integers, as an array; tensors have one."""
    array = getattr(data, "data", data) if not is_array(data) else data
    try:
        return array if is_array(array) else np.asarray(array)
    except ValueError:
        return np.asarray(array, object)  # rows of several lengths: no integers


def own_lengths(function: str, name: str, lengths: Any, sequence: Array) -> Array | None:
    """A copy of lengths as int64 on the sequences' device, having checked that they fit.

    Those of the CPU are best: to look at a GPU's makes the CPU wait.
    """
    if lengths is None:
        return None
    batch, longest, array = sequence.shape[0], sequence.shape[2], _integers(lengths)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function}: {name} must be integers, got {array.dtype}; a mask becomes lengths by "
            "mask.sum(-1)"
        )
    if array.shape != (batch,):
        raise ValueError(
            f"{function}: {name} must have the shape (N={batch},), one length a sequence, got "
            f"{array.shape}; None means full lengths"
        )
    if batch and (array.min() < 0 or array.max() > longest):
        raise ValueError(
            f"{function}: {name} must lie between 0 and {longest}, the length of the padded "
            f"sequences, got {array.tolist()}"
        )
    return own_integers(array, sequence)


def _boundaries(function: str, visible: Visible, query: Array, key: Array) -> Array | None:
    """A copy of the boundaries of packed sequences as int64, having checked that they fit."""
    if visible.cu_seqlens is None:
        return None
    if visible.query_lengths is not None or visible.key_lengths is not None:
        raise ValueError(
            f"{function}: cu_seqlens says how long sequences are; leave out query_lengths and "
            "key_lengths"
        )
    if not visible.causal or visible.query_offset:
        raise ValueError(
            f"{function}: packed sequences (cu_seqlens) need causal=True and query_offset=0, got "
            f"{visible.causal} and {visible.query_offset}; pad the others, and give their lengths"
        )
    array = _integers(visible.cu_seqlens)
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.size < 2:
        raise TypeError(
            f"{function}: cu_seqlens must be N + 1 integers, where each of N sequences begins and "
            f"the last ends, got {array.dtype} {array.shape}; make it of lengths by "
            "numpy.cumsum([0, *lengths])"
        )
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{function}: packed sequences (cu_seqlens) lie one after the other in arrays "
            f"(1, H, T, E), of the same T for query and key; got {query.shape} and {key.shape}"
        )
    total = query.shape[2]
    if int(array[0]) or int(array[-1]) != total or bool((array[1:] < array[:-1]).any()):
        raise ValueError(
            f"{function}: cu_seqlens must rise from 0 to {total}, the rows of the packed "
            f"sequences, got {array.tolist()}"
        )
    return own_integers(array, query)


def own_integers(array: Array, like: Array) -> Array:
    """A copy of integers as int64 on the device of `like`, to which nobody can write."""
    own = array.astype(np.int64)
    if array_module(own) is array_module(like):
        return locked(own)
    return constant(own, like) if array_module(own) is np else locked(own.get())

"""Who sees whom: one record, which every attention of this package takes.

Query i, which stands at position i + query_offset, sees key j where w_ij is 1:

    w_ij = 1 if i < query_length and j < key_length and (causal: j <= i + query_offset) else 0   (1)

`Visible` says it to the host functions; kernels get its numbers as plain arguments. Packed
sequences, which lie one after the other without padding, say by `cu_seqlens` where each begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Array, lengths_or_full, spans


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


EVERYTHING = Visible()
CAUSAL = Visible(causal=True)


def inside(sequence: Array, lengths: Array | None) -> np.ndarray:
    """Which positions of a NumPy array `(N, H, L, E)` are no padding: bool, `(N, 1, L)`."""
    batch, _, count, _ = sequence.shape
    ends = np.full(batch, count) if lengths is None else np.asarray(lengths)
    return np.arange(count) < ends[:, None, None]

"""The least that an attention must do, and the time that this takes at the GPU's best.

Bytes: each input read once and each output written once, by each pass: a backward starts when
somebody has made a gradient of the output, and no cache holds the inputs until then. Operations: of
the formulas, a product and a sum being two; what takes no products of rows (features of single
numbers, exp, denominators) is left out. Per token, in one head, with E columns of queries and keys
and M of values:

    attention           forward                          backward
    softmax, local      2 p (E + M)                      2 p (3 E + 2 M)
    linear, causal      4 E M: S += k v, S q             10 E M: S again for dq; R += q g, R v, R k
    linear, both ways   4 E M                            8 E M: S is kept
    delta               6 E M: W k, W += k r, W q        16 E M: W again; R, with its residuals
    a map to D          + 4 E D for queries and keys     + 4 E D

where p is the number of keys that a query sees, on average. Shaw's positions add 2 (k + 1) (E + M)
forward and twice that backward; Fourier's make E three times as wide. Linear attention over fewer
keys than 2 E M / (E + M) would take fewer operations as all scores: lengths here are above that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ITEMSIZE = 4
PASSES = "forward", "forward and backward"
Row = dict[str, Any]


class Need(NamedTuple):
    """What a case cannot do without.

    Attributes:
        nbytes: Read and written.
        flops: Floating point operations.
    """

    nbytes: float
    flops: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The least time."""
        return max(self.nbytes / ceilings.bandwidth, self.flops / ceilings.rate)

    def columns(self) -> Row:
        """What a row of a record says of it."""
        return {"GB": self.nbytes / 1e9, "GFLOP": self.flops / 1e9}


class Ceilings(NamedTuple):
    """What the GPU was measured to do.

    Attributes:
        bandwidth: Bytes a second, read and written, of a large copy.
        rate: float32 operations a second, of a large product of matrices.
    """

    bandwidth: float
    rate: float


class Shape(NamedTuple):
    """The sizes of a case: N, H, L, E = M."""

    batch: int
    heads: int
    length: int
    width: int

    @property
    def tokens(self) -> int:
        """Rows of all heads, N H L."""
        return self.batch * self.heads * self.length


def need(shape: Shape, forward: float, backward: float, extra: int = 0) -> dict[str, Need]:
    """Return what each of `PASSES` needs.

    Args:
        shape: The sizes.
        forward: Operations for a token of a head.
        backward: The same, of the backward alone.
        extra: Numbers for a token besides those of query, key and value.
    """
    row = shape.width
    read, out = 3 * row + extra, row
    first = Need(ITEMSIZE * shape.tokens * (read + out), shape.tokens * forward)
    second = Need(ITEMSIZE * shape.tokens * (read + out + read), shape.tokens * backward)
    both = Need(first.nbytes + second.nbytes, first.flops + second.flops)
    return dict(zip(PASSES, (first, both), strict=True))


def pairs(shape: Shape, seen: float) -> dict[str, Need]:
    """Return what attention by scores needs, where a query sees so many keys on average."""
    E = shape.width
    return need(shape, 4 * seen * E, 10 * seen * E)


def sums(
    shape: Shape, *, causal: bool = True, wider: float = 1, distances: int = 0, maps: bool = False
) -> dict[str, Need]:
    """Return what attention by sums needs.

    Args:
        shape: The sizes.
        causal: Whether the sums differ from query to query.
        wider: How many features a column of queries and keys has.
        distances: k + 1 of Shaw's relative positions.
        maps: Whether features come out of a product with a matrix.
    """
    E = shape.width
    features, product = wider * E * E, 4 * wider * E * E if maps else 0
    near = 4 * distances * E
    return need(
        shape,
        4 * features + near + product,
        (10 if causal else 8) * features + 2 * near + product,
    )


def delta(shape: Shape) -> dict[str, Need]:
    """Return what the delta rule needs; each token has a rate besides."""
    square = shape.width**2
    return need(shape, 6 * square, 16 * square, extra=1)

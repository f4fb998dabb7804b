r"""Naive or linear: what each algorithm of linear attention costs, and which one to take.

The seed's model (S0) counts numbers in memory, of one head:

                                    naive      linear
    kernelized, causal              Lq Lk      E M max(Lq, Lk)                                 (1)
    kernelized, bidirectional       Lq Lk      E M                                             (2)
    S_rel V, both                   Lq Lk      Lq (2k + 1 + 4)                                 (3)

and takes, for each term, naive where its number is not the larger. At Lq = Lk = L, and with a head
dim of d = E = M, the linear form wins above the crossovers

    L > d^2      (causal)           L > d      (bidirectional)      L > 2k + 5  (S_rel V)      (4)

These are the costs of programs made of array operations: naive keeps the matrix of scores, and (1)
is a cumulative sum that keeps a state of E x M for every token. The kernels of this package keep
neither. Scores live for as long as their tile, a state until the next one, and every algorithm
needs memory in proportion to its inputs: `memory` counts it, and a test holds it against the
measured peak. Memory hardly tells the algorithms apart then; time does, and time is operations

    naive: 2 p (E + M)     linear, recurrent: 2 (Lq + Lk) E M     chunked: 3 (Lq + Lk) E M     (5)

for p pairs of a query and a key that it sees, shared by the blocks that run at once:

    effort = weight x operations / min(blocks, processors)                                     (6)

Blocks of "naive" and "linear" own 32 queries. Those of "recurrent" walk the whole sequence and own
64 columns of a state. "chunked" cuts the sequence into segments, so long as there are processors
for them and each is worth it; the states between the segments take a walk of their own, so that
each token is worked on three times instead of twice.

The algorithm of least effort is taken. On a CPU, processors = 1: whether there are heads enough for
all cores counts for nothing, and a choice depends on shapes alone. There an operation of "naive"
takes as long as 1.5 of the others', as measured (results/cpu), so that E = M and Lq = Lk = L give

    naive if L < 4 E / 3, else recurrent   (causal)
    naive if L < 2 E / 3, else linear      (bidirectional)                                    (7)

A GPU has many multiprocessors. "recurrent" gives 8 of them work for 8 heads, however long these
are, and "chunked" overtakes it. Of each pair that was raced on an H100 (results/gpu), (6) takes the
faster. The weight of "naive" is the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from .arrays import BLOCKS_OF_A_MULTIPROCESSOR, HEAD_DIMS, ceil_div, round_up

LONGEST = 2**24  # of the sequences among which crossovers are looked for
COST_MODELS = "seed", "kernel"
PARTS = {None: 1, "cos": 2, "one_plus_cos": 3}  # of E features each, by the form of positions
TILE = 32  # queries or keys
COLUMNS = 64  # of a state, in a block
FEWEST_TOKENS = 512  # that are worth a segment
NAIVE = 1.5  # the weight of its operations in (6)


class Sizes(NamedTuple):
    """The attention that is asked for.

    Attributes:
        queries: Lq.
        keys: Lk.
        head_dim: E.
        value_dim: M.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        max_distance: k of Shaw's relative positions; None without them.
        fourier: the form of Fourier relative positions, of one number each; None without them. An
            attention has one kind of positions, if any.
        batch: N.
        heads: H.
        itemsize: bytes of a number.
    """

    queries: int
    keys: int
    head_dim: int
    value_dim: int
    causal: bool = False
    query_offset: int = 0
    max_distance: int | None = None
    fourier: str | None = None
    batch: int = 1
    heads: int = 1
    itemsize: int = 4

    @property
    def all_heads(self) -> int:
        """N H."""
        return self.batch * self.heads

    @property
    def features(self) -> int:
        """Columns of the features of a query or a key: E, or more of Fourier positions."""
        return PARTS[self.fourier] * self.head_dim

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key it sees a head has: p of (5)."""
        if not self.causal:
            return self.queries * self.keys
        return self._seen(self.queries + self.query_offset) - self._seen(self.query_offset)

    def _seen(self, queries: int) -> int:
        """Of pairs with that many queries from position 0 on: 1 + 2 + 3 + ..., then all keys."""
        rising = max(0, min(queries, self.keys))
        return rising * (rising + 1) // 2 + self.keys * max(0, queries - self.keys)


# -- The seed's model ------------------------------------------------------------------------------


def seed_numbers(sizes: Sizes) -> dict[str, dict[str, int]]:
    """The seed's costs of a head, in numbers, by term and form: equations (1) to (3).

    Source: S0.

    >>> seed_numbers(Sizes(100, 80, 16, 16, max_distance=10))["relative"]
    {'naive': 8000, 'linear': 2500}
    """
    scores = sizes.queries * sizes.keys
    state = sizes.head_dim * sizes.value_dim
    copies = max(sizes.queries, sizes.keys) if sizes.causal else 1
    costs = {"kernelized": {"naive": scores, "linear": state * copies}}  # (1), (2)
    if sizes.max_distance is not None:
        bands = 2 * sizes.max_distance + 1 + 4
        costs["relative"] = {"naive": scores, "linear": sizes.queries * bands}  # (3)
    return costs


# -- What the kernels keep in memory ---------------------------------------------------------------


class _Peak(NamedTuple):
    """Numbers in the arrays of a head, inputs left out."""

    kept: float  # that forward returns
    forward: float  # the most at a time
    backward: float  # the most at a time, beside what forward kept


def memory(sizes: Sizes, algorithm: str, backward: bool = False) -> int:
    """Bytes of the arrays that an algorithm has at a time, at most, inputs left out.

    Args:
        sizes: of the attention.
        algorithm: "naive", "linear", "recurrent" or "chunked", on a CPU; or "softmax", which has
            no positions here, for comparison.
        backward: whether forward and backward run, or the forward alone.

    >>> memory(Sizes(1000, 1000, 64, 64), "softmax")  # an output, and a number for each row
    260000
    """
    peak = _kernelized(sizes, algorithm)
    if sizes.max_distance is not None:
        peak = _with_distances(sizes, sizes.max_distance, peak)
    if sizes.fourier is not None:
        peak = _with_waves(sizes, peak)
    numbers = max(peak.forward, peak.kept + peak.backward) if backward else peak.forward
    return round(sizes.all_heads * sizes.itemsize * numbers)


def _answer(s: Sizes) -> int:
    """Numbers in the outputs and denominators, as many as in their gradients gn and gd."""
    return s.queries * (s.value_dim + 1)


def _gradients(s: Sizes) -> int:
    """Numbers in dq, dk and dv."""
    return s.queries * s.features + s.keys * (s.features + s.value_dim)


def _kernelized(s: Sizes, algorithm: str) -> _Peak:
    """Linear attention: answers and gradients, beside features, sums or states."""
    answer, gradients = _answer(s), _gradients(s)
    if algorithm == "softmax":
        return _Peak(answer, answer, s.queries + gradients)
    groups = ceil_div(s.features, HEAD_DIMS[-1])  # of features that a kernel holds
    features = (s.queries + s.keys) * s.features // groups
    rows = TILE * ceil_div(s.features // groups, TILE)
    columns = max(TILE, round_up(s.value_dim))
    sums = rows * (2 * columns + 1)  # S and Z in whole tiles, and another S
    state, parts = s.features * (s.value_dim + 1), _segments(s, processors=1)
    last, forward, backward = {
        "naive": (0, features, features),
        "linear": (0, sums, 2 * sums),
        "recurrent": (state, 2 * state, 4 * state),
        "chunked": (state, (1 + 2 * parts) * state, (2 + 3 * parts) * state),
    }[algorithm]
    if groups == 1:
        ones = s.queries + 2 * s.keys  # where a sum of weights is one of values
        return _Peak(answer + last, answer + forward, answer + gradients + ones + backward)
    joined = (groups - 1) * s.keys * s.value_dim
    return _Peak(
        answer + last,
        groups * answer + max(2 * answer + last, features + forward),
        answer + 2 * gradients + joined + last,
    )


def _with_distances(s: Sizes, k: int, base: _Peak) -> _Peak:
    """Shaw's relative positions (`relative`): a weight F for each query and distance."""
    E, M, answer = s.head_dim, s.value_dim, _answer(s)
    past, future = s.query_offset + s.queries - 1, 0 if s.causal else s.keys - 1 - s.query_offset
    distances = max(1, min(k, past) + min(k, future) + 1)  # that occur
    F, u = s.queries * distances, s.queries * E
    table, occurring = (rows * E / max(1, s.batch) for rows in (2 * k + 1, distances))
    state, window = E * (M + 1), E * (M + 1) + (k + 1) * M  # before and after a sequence
    far = (1 if s.causal else 2) * (s.keys / TILE + 1) * M  # A and C, where tiles begin
    tiles = 2 * TILE * ceil_div(distances, TILE) * max(TILE, round_up(E))  # X of (12), and X^T
    last = window if base.kept > answer else 0
    setting = state + M + (occurring if occurring < table else 0)
    sums = answer + _gradients(s) + (base.kept - answer) + F + 3 * far + table
    return _Peak(
        answer + F + last,
        setting + max(base.forward, base.kept + answer + F + u + far + last),
        setting + max(base.backward, sums + max(u + tiles, window + M)),
    )


def _with_waves(s: Sizes, base: _Peak) -> _Peak:
    """Fourier positions (`fourier`): features, and the sine and cosine of each angle."""
    rows, answer = (s.queries + s.keys) * s.head_dim, _answer(s)
    own = (PARTS[s.fourier] + 2) * rows
    held = answer + s.queries + _gradients(s) + (base.kept - answer) + 4 * s.head_dim
    return _Peak(
        own + base.kept,
        own + max(base.forward, base.kept + answer),
        max(base.backward + s.queries, held + rows + 2 * max(s.queries, s.keys) * s.head_dim),
    )


# -- The choice ------------------------------------------------------------------------------------


def algorithms(sizes: Sizes) -> tuple[str, ...]:
    """Those that there are for a direction, naive first."""
    return ("naive", "recurrent", "chunked") if sizes.causal else ("naive", "linear")


def blocks(sizes: Sizes, algorithm: str, processors: int = 1) -> int:
    """How many blocks of an algorithm's main kernels can run at once."""
    if algorithm in ("naive", "linear"):
        return sizes.all_heads * ceil_div(sizes.queries, TILE)
    segments = _segments(sizes, processors) if algorithm == "chunked" else 1
    return sizes.all_heads * ceil_div(sizes.value_dim, COLUMNS) * segments


def _segments(s: Sizes, processors: int) -> int:
    """Into how many segments "chunked" cuts a sequence."""
    whole = max(1, s.all_heads * ceil_div(s.value_dim, COLUMNS))
    tokens = max(s.keys, s.queries + s.query_offset)
    return max(1, min(BLOCKS_OF_A_MULTIPROCESSOR * processors // whole, tokens // FEWEST_TOKENS))


def effort(sizes: Sizes, algorithm: str, processors: int = 1) -> float:
    """What an algorithm costs in time, up to a constant: equations (5) and (6).

    Args:
        sizes: of the attention.
        algorithm: "naive", "linear", "recurrent" or "chunked".
        processors: that run a block each at a time: a GPU's multiprocessors; on a CPU 1.
    """
    E, M = sizes.features, sizes.value_dim
    if algorithm == "naive":
        operations = NAIVE * 2 * sizes.pairs * (E + M)
    else:
        times = 3 if algorithm == "chunked" else 2
        operations = times * (sizes.queries + sizes.keys) * E * M
    busy = max(1, min(processors, blocks(sizes, algorithm, processors)))
    return sizes.all_heads * operations / busy


@lru_cache(maxsize=4096)
def choose(sizes: Sizes, processors: int = 1, stateful: bool = False) -> str:
    """The algorithm that `algorithm="auto"` stands for: that of the least effort.

    Args:
        sizes: of the arrays; of packed sequences, their mean.
        processors: as in `effort`.
        stateful: whether a state goes in or out; the naive form has none.

    Returns:
        "naive", "recurrent", "chunked" or "linear".

    >>> few = Sizes(4096, 4096, 64, 64, causal=True, heads=8)
    >>> choose(few), choose(few, processors=132)
    ('recurrent', 'chunked')
    """
    able = algorithms(sizes)[stateful:]  # naive is the first
    return min(able, key=lambda algorithm: effort(sizes, algorithm, processors))


def plan(sizes: Sizes, *, cost_model: str = "kernel", processors: int = 1) -> dict[str, str]:
    """Which algorithm to take for each term, as the attention functions take it: `algorithm=`.

    Args:
        sizes: the attention that is asked for.
        cost_model: "seed", equations (1) to (3), or "kernel", equation (6).
        processors: as in `effort`; the seed's model knows none.

    Raises:
        ValueError: there is no such cost model.

    >>> plan(Sizes(64, 64, 64, 64), cost_model="seed")
    {'kernelized': 'naive'}
    >>> plan(Sizes(65, 65, 64, 64, max_distance=32), cost_model="seed")
    {'kernelized': 'linear', 'relative': 'naive'}
    """
    if cost_model not in COST_MODELS:
        raise ValueError(f"plan: cost_model must be one of {COST_MODELS}, got {cost_model!r}")
    if cost_model == "seed":
        return {
            term: "naive" if forms["naive"] <= forms["linear"] else "linear"
            for term, forms in seed_numbers(sizes).items()
        }
    chosen = {"kernelized": choose(sizes, processors)}
    if sizes.max_distance is not None:
        chosen["relative"] = "naive" if chosen["kernelized"] == "naive" else "linear"
    return chosen


def crossovers(
    sizes: Sizes, *, cost_model: str = "kernel", processors: int = 1
) -> dict[str, list[tuple[int, str]]]:
    """From which length on which algorithm is taken, where Lq = Lk = L and the rest stays.

    Args:
        sizes: all but the lengths counts.
        cost_model, processors: as in `plan`.

    Returns:
        By term, the first length and the algorithm of each stretch, from L = 1 up to `LONGEST`.

    >>> crossovers(Sizes(1, 1, 8, 8, max_distance=16), cost_model="seed")
    {'kernelized': [(1, 'naive'), (9, 'linear')], 'relative': [(1, 'naive'), (38, 'linear')]}
    """

    def choice(length: int) -> dict[str, str]:
        square = sizes._replace(queries=length, keys=length)
        return plan(square, cost_model=cost_model, processors=processors)

    def of(term: str) -> Callable[[int], str]:
        return lambda length: choice(length)[term]

    return {term: list(_stretches(of(term))) for term in choice(1)}


def _stretches(choice: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """Where stretches of lengths with one choice begin; one shorter than L / 8 may be missed."""
    length, current = 1, choice(1)
    yield length, current
    while length < LONGEST:
        following = min(LONGEST, max(length + 1, length * 9 // 8))
        if choice(following) == current:
            length = following
            continue
        low, high = length, following
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if choice(middle) == current else (low, middle)
        length, current = high, choice(high)
        yield length, current

r"""Naive or linear: what each algorithm of linear attention costs, and which one to take.

Two models of the cost answer that. The seed's (S0) counts numbers in memory, of one head:

                                    naive      linear
    kernelized, causal              Lq Lk      E M max(Lq, Lk)                                 (1)
    kernelized, bidirectional       Lq Lk      E M                                             (2)
    S_rel V, both                   Lq Lk      Lq (2k + 1 + 4)                                 (3)

and takes, for each term, naive where its number is not the larger. At Lq = Lk = L, and with a head
dim of d = E = M, the linear form wins above the crossovers

    L > d^2      (causal)           L > d      (bidirectional)      L > 2k + 5  (S_rel V)      (4)

These are the costs of programs made of array operations: naive keeps the matrix of scores, and (1)
is a cumulative sum that keeps a state of E x M for every token. The kernels of this package keep
neither. Scores live for as long as their tile, states for as long as their token, and every
algorithm needs memory in proportion to its inputs. The model "kernel" counts what the host
functions allocate beyond their inputs, array by array, at the moment when it is most; a test holds
it against the measured peak. Memory hardly tells the algorithms apart then; time does:

    seconds = start + tiles t_tile + flops / rate                                             (5)

The start is what arrays of any size cost; a tile is loaded, between two barriers; and then there is
arithmetic, counted as it is executed: rows are masked, but calculated with, up to the end of their
tile, and columns up to the head dim that a kernel is compiled for. The three constants belong to an
algorithm and a pass. `SPEEDS` holds what was measured once, on one core, so that a choice depends
on shapes alone: it is the same in every run of a program, in training, where the time of both
passes decides, and in evaluation.

An estimate is good to some 10 per cent: of algorithms that lie as close as that to the fastest, the
one that needs the least memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numba

from . import chunked, fourier, kernelized, linear, recurrent
from .arrays import ceil_div, round_up

TILE = linear.TILE
REALS = {4: numba.float32, 8: numba.float64}
CLOSE = 1.1  # estimates that differ by a smaller factor do not tell algorithms apart
LONGEST = 2**24  # of the sequences among which crossovers are looked for
COST_MODELS = "seed", "kernel"
CAUSAL, BIDIRECTIONAL = ("naive", "recurrent", "chunked"), ("naive", "linear")


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
        fourier: the form of Fourier relative positions, of one number each; None without them.
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
    def positions(self) -> int:
        """From the first key or query to the last: what a scan walks over."""
        return max(self.keys, self.queries + self.query_offset) - min(0, self.query_offset)

    @property
    def query(self) -> int:
        """Numbers in an array (N, H, Lq, E)."""
        return self.all_heads * self.queries * self.head_dim

    @property
    def key(self) -> int:
        """Numbers in an array (N, H, Lk, E)."""
        return self.all_heads * self.keys * self.head_dim

    @property
    def value(self) -> int:
        """Numbers in an array (N, H, Lk, M)."""
        return self.all_heads * self.keys * self.value_dim

    @property
    def output(self) -> int:
        """Numbers in an array (N, H, Lq, M)."""
        return self.all_heads * self.queries * self.value_dim

    @property
    def query_rows(self) -> int:
        """Numbers in an array (N, H, Lq)."""
        return self.all_heads * self.queries

    @property
    def key_rows(self) -> int:
        """Numbers in an array (N, H, Lk)."""
        return self.all_heads * self.keys

    @property
    def state(self) -> int:
        """Numbers in S (N, H, E, M) and Z (N, H, E)."""
        return self.all_heads * self.head_dim * (self.value_dim + 1)


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


# -- What the kernels do ---------------------------------------------------------------------------


class Work(NamedTuple):
    """What a pass of an algorithm takes.

    Attributes:
        kept: numbers in the arrays that it returns.
        peak: the most numbers in arrays at a time, inputs left out.
        tiles: that blocks walk over.
        flops: floating point operations, as executed.
    """

    kept: int
    peak: int
    tiles: int
    flops: int


class Load(NamedTuple):
    """The last two of a `Work`."""

    tiles: int
    flops: int


def _together(*loads: Load) -> Load:
    return Load(*map(sum, zip(*loads, strict=True)))


class Passes(NamedTuple):
    """Both passes of an algorithm."""

    forward: Work
    backward: Work


def _tiles(length: int) -> int:
    return ceil_div(length, TILE)


def _width(size: int) -> int:
    """Columns that the kernels of `linear` compute for `size` that are wanted."""
    return _tiles(round_up(size)) * TILE


def tile_pairs(sizes: Sizes) -> int:
    """How many pairs of a tile of queries and a tile of keys contain some that see each other."""
    queries, keys = _tiles(sizes.queries), _tiles(sizes.keys)
    if not sizes.causal:
        return queries * keys
    shift = ceil_div(sizes.query_offset, TILE)
    return _staircase(queries + shift, keys) - _staircase(shift, keys)


def _staircase(steps: int, highest: int) -> int:
    """Sum of min(t, highest) for t from 1 to `steps`; nothing for none."""
    rising = max(0, min(steps, highest))
    return rising * (rising + 1) // 2 + highest * max(0, steps - highest)


def _naive(s: Sizes) -> Passes:
    pairs = s.all_heads * tile_pairs(s)
    E, M = _tiles(s.head_dim) * TILE, _tiles(s.value_dim) * TILE
    wide_E, wide_M = _width(s.head_dim), _width(s.value_dim)
    products = 2 * pairs * TILE**2
    results = s.output + s.query_rows
    features = s.query + s.key
    forward = Work(results, results + features, pairs, products * (E + wide_M))
    gradients = s.query + s.key + s.value
    ones_and_zeros = 2 * s.key_rows + s.query_rows
    backward = Work(
        kept=gradients,
        peak=results + features + ones_and_zeros + gradients,
        tiles=3 * pairs,
        flops=products * (2 * (M + wide_E) + E + wide_M),
    )
    return Passes(forward, backward)


class _Sums(NamedTuple):
    """Equation (8) of `linear`: what is returned, the peak, and the tiles."""

    kept: int
    peak: int
    tiles: int


def _sums(s: Sizes, length: int) -> _Sums:
    rows, columns = _width(s.head_dim), _width(s.value_dim)
    blocks = s.all_heads * rows // TILE
    parts = max(1, min(linear.ENOUGH_BLOCKS // blocks, length // linear.FEWEST_ROWS))
    kept = s.all_heads * (2 * rows * columns + rows)
    return _Sums(
        kept=kept,
        peak=(parts + 1 if parts > 1 else 1) * kept,
        tiles=s.all_heads * _tiles(length) * rows // TILE,
    )


def _linear(s: Sizes) -> Passes:
    E, M = _tiles(s.head_dim), _tiles(s.value_dim)
    wide_E, wide_M = _width(s.head_dim), _width(s.value_dim)
    query_tiles, key_tiles = s.all_heads * _tiles(s.queries), s.all_heads * _tiles(s.keys)
    product = 2 * TILE**2
    S, R = _sums(s, s.keys), _sums(s, s.queries)
    results = s.output + s.query_rows
    forward = Work(
        kept=results,
        peak=max(s.key_rows + S.peak, S.kept + results),
        tiles=S.tiles + query_tiles * E,
        flops=product * (S.tiles + query_tiles * E) * wide_M,
    )
    gradients = s.query + s.key + s.value
    held = results + 2 * s.key_rows + S.kept
    row_of_R = s.all_heads * wide_M
    backward = Work(
        kept=gradients,
        peak=max(held + R.peak, held + R.kept + gradients + row_of_R),
        tiles=S.tiles + R.tiles + (query_tiles + key_tiles) * M + key_tiles * E,
        flops=product * ((S.tiles + R.tiles + key_tiles * E) * wide_M
                         + (query_tiles + key_tiles) * M * wide_E),
    )  # fmt: skip
    return Passes(forward, backward)


def _recurrent(s: Sizes) -> Passes:
    results = s.output + s.query_rows + s.state
    gradients = s.query + s.key + s.value + s.state
    matrix, row = s.all_heads * s.head_dim * s.value_dim, s.all_heads * s.value_dim
    normaliser = s.output + s.query_rows
    ones_and_zeros = 2 * s.key_rows + s.query_rows + row
    to_M = _recurrence(s, s.head_dim, s.value_dim)
    to_E = _recurrence(s, s.value_dim, s.head_dim)
    forward = Work(results, results + s.state, *to_M)
    backward = Work(
        gradients,
        normaliser + ones_and_zeros + 2 * s.state + gradients + matrix + row,
        *_together(to_E, to_E, to_M),
    )
    return Passes(forward, backward)


def _recurrence(s: Sizes, inner: int, outer: int) -> Load:
    """One scan of `recurrent`, for a state of `inner` rows and `outer` columns."""
    shape = recurrent._shape(round_up(inner), round_up(outer), REALS[s.itemsize])
    blocks = s.all_heads * ceil_div(outer, shape.columns)
    tiles = blocks * ceil_div(s.positions, shape.tile)
    return Load(tiles, 4 * tiles * shape.tile * round_up(inner) * shape.columns)


def _chunked(s: Sizes) -> Passes:
    to_M, parts_M = _chunks(s, s.head_dim, s.value_dim)
    to_E, parts_E = _chunks(s, s.value_dim, s.head_dim)
    matrix = s.all_heads * s.head_dim * s.value_dim
    row_E, row_M = s.all_heads * s.head_dim, s.all_heads * s.value_dim
    results = s.output + s.query_rows + parts_M * s.state
    gradients = s.query + s.key + s.value + parts_M * matrix + parts_E * row_E
    normaliser = s.output + s.query_rows
    ones_and_zeros = 2 * s.key_rows + s.query_rows + row_M
    last_scan = parts_E * matrix + parts_M * (matrix + 2 * row_M)
    forward = Work(results, results + (1 + parts_M) * s.state, *to_M)
    backward = Work(
        gradients,
        normaliser + ones_and_zeros + 2 * s.state + gradients + last_scan,
        *_together(to_E, to_E, to_M),
    )
    return Passes(forward, backward)


def _chunks(s: Sizes, inner: int, outer: int) -> tuple[Load, int]:
    """One scan of `chunked`, and into how many segments the sequence is cut."""
    shape = chunked._shape(inner, outer, REALS[s.itemsize])
    blocks = s.all_heads * ceil_div(outer, shape.columns)
    enough = chunked.ENOUGH_BLOCKS["numpy"] // blocks
    parts = max(1, min(enough, s.positions // chunked.FEWEST_TOKENS))
    tiles = blocks * ceil_div(s.positions, chunked.TILE)
    update = shape.inner * shape.columns
    answer = update + chunked.TILE * (shape.inner + shape.columns)
    updates = 1 if parts == 1 else 2  # the first walk over segments only adds up
    return Load(updates * tiles, 2 * tiles * chunked.TILE * (updates * update + answer)), parts


def _softmax(s: Sizes) -> Passes:
    pairs = s.all_heads * tile_pairs(s)
    E, M = round_up(s.head_dim), round_up(s.value_dim)
    products = 2 * pairs * TILE**2
    results, gradients = s.output + s.query_rows, s.query + s.key + s.value
    forward = Work(results, results, pairs, products * (E + M))
    backward = Work(gradients, gradients + s.query_rows, 2 * pairs, products * (4 * E + 3 * M))
    return Passes(forward, backward)


ALGORITHMS: dict[str, Callable[[Sizes], Passes]] = {
    "naive": _naive,
    "linear": _linear,
    "recurrent": _recurrent,
    "chunked": _chunked,
}


def _kernelized(s: Sizes, algorithm: str) -> Passes:
    """An algorithm; where features are too wide for a kernel, in groups of them (`kernelized`)."""
    groups = ceil_div(s.head_dim, kernelized.WIDEST)
    if groups == 1:
        return ALGORITHMS[algorithm](s)
    part = ALGORITHMS[algorithm](s._replace(head_dim=ceil_div(s.head_dim, groups)))
    forward, backward = part
    results = s.output + s.query_rows
    state = forward.kept - results  # of a group
    held = groups * forward.kept
    copies = (s.query + s.key) // groups
    gradients = groups * backward.kept
    return Passes(
        Work(
            kept=results + groups * state,
            peak=max(
                held - forward.kept + copies + forward.peak,
                held + results + max(results, groups * state),
            ),
            tiles=groups * forward.tiles,
            flops=groups * forward.flops,
        ),
        Work(
            kept=s.query + s.key + s.value + groups * state,
            peak=max(
                gradients - backward.kept + copies + backward.peak,
                results + gradients + s.query + s.key + s.value,
            ),
            tiles=groups * backward.tiles,
            flops=groups * backward.flops,
        ),
    )


class _Near(NamedTuple):
    """What `relative` walks over: see its equation (7)."""

    distances: int  # R, those that occur
    tiles: int  # pairs of a tile of queries and a tile of keys near to it
    embedded: int  # pairs of a tile of queries and a tile of distances


def _near(s: Sizes, k: int, algorithm: str) -> _Near:
    low, high = occurring_distances(s, k)
    distances = high - low + 1
    query_tiles = s.all_heads * _tiles(s.queries)
    tiles = s.all_heads * tile_pairs(s)
    if algorithm != "naive":
        reach = _tiles(TILE - 1 + (1 if s.causal else high)) + _tiles(-low - 1)
        tiles = min(tiles, query_tiles * reach)
    return _Near(distances, tiles, query_tiles * _tiles(distances))


def occurring_distances(s: Sizes, k: int) -> tuple[int, int]:
    """The least and the greatest clipped distance of a key from a query that sees it."""
    nearest, farthest = s.keys - 1 - s.query_offset, -(s.query_offset + s.queries - 1)
    high = max(-k, min(k, nearest, 0 if s.causal else k))
    return min(high, max(-k, farthest)), high


def _relative(s: Sizes, k: int, algorithm: str, base: Passes) -> Passes:
    """Relative positions on top of an algorithm: the memory of both, the work of theirs alone."""
    near = _near(s, k, algorithm)
    E, wide_E = _tiles(s.head_dim), _width(s.head_dim)
    M, wide_M = _tiles(s.value_dim) * TILE, _width(s.value_dim)
    row = s.all_heads * s.value_dim
    window = s.state + (k + 1) * row
    next_state = 0 if algorithm in ("naive", "linear") else window
    occurring = s.heads * near.distances * s.head_dim
    setting = s.state + row + (occurring if near.distances < 2 * k + 1 else 0)
    results, scores = s.output + s.query_rows, s.query_rows * near.distances
    far_keys, far_queries = (
        (1 if s.causal else 2) * (_tiles(length) + 1) * row for length in (s.keys, s.queries)
    )
    product = 2 * TILE**2

    held = setting + base.forward.kept + scores + s.query + far_keys + results + next_state
    forward = Work(
        kept=results + scores + next_state,
        peak=max(setting + base.forward.peak, held),
        tiles=near.embedded * E + near.tiles,
        flops=product * (near.embedded * E * TILE + near.tiles * wide_M),
    )

    embedding = s.heads * (2 * k + 1) * s.head_dim
    blocks = s.all_heads * _tiles(near.distances)
    shares = max(1, min(linear.ENOUGH_BLOCKS // blocks, s.queries // linear.FEWEST_ROWS))
    sums_of_shares = (shares * s.batch + 1) * occurring
    tile_sums = 2 * _tiles(s.queries) * row
    held = setting + results + base.backward.kept + far_keys + scores + tile_sums + embedding
    backward = Work(
        kept=base.backward.kept + embedding + (row if next_state else 0),
        peak=max(
            setting + base.backward.peak,
            held + s.query + sums_of_shares,
            held + window + row + far_queries,
        ),
        tiles=2 * near.tiles + 2 * near.embedded,
        flops=product * (near.tiles * (M + wide_M) + 2 * near.embedded * wide_E),
    )
    return Passes(forward, backward)


def _fourier(s: Sizes, form: str, base: Passes) -> Passes:
    """Fourier positions on top of an algorithm of their features, as `_relative`."""
    wide = 8 // s.itemsize  # sums and positions are float64
    features = (fourier.PARTS[form] + 2) * (s.query + s.key)  # with cos and sin
    positions = wide * s.batch * (s.queries + s.keys)

    def moments(length: int) -> int:
        blocks = ceil_div(length, fourier.ROWS * fourier.OWN)
        return wide * (blocks + 1) * s.all_heads * s.head_dim

    forward = Work(
        kept=features + base.forward.kept,
        peak=features + max(base.forward.peak, base.forward.kept + s.output),
        tiles=ceil_div(s.query + s.key, TILE**2),
        flops=5 * (s.query + s.key),
    )
    held = s.output + 2 * s.query_rows + base.backward.kept + positions
    backward = Work(
        kept=s.query + s.key + s.value + positions,
        peak=max(
            s.query_rows + base.backward.peak,
            held + 3 * s.query + moments(s.queries),
            held + s.query + 3 * s.key + moments(s.keys),
        ),
        tiles=ceil_div(s.query + s.key, TILE**2),
        flops=14 * (s.query + s.key),
    )
    return Passes(forward, backward)


def parts(sizes: Sizes, algorithm: str) -> dict[str, Passes]:
    """What an algorithm does for the attention that is asked for.

    Args:
        sizes: of the attention.
        algorithm: "naive", "linear", "recurrent", "chunked"; "softmax" has no positions.

    Returns:
        The work by the part that does it, a name of `SPEEDS`: the algorithm, and then "relative"
        and "fourier" where there are such positions, whose work is their own, but whose memory is
        that of the whole.
    """
    if algorithm == "softmax":
        return {"softmax": _softmax(sizes)}
    width = 1 if sizes.fourier is None else fourier.PARTS[sizes.fourier]
    base = _kernelized(sizes._replace(head_dim=width * sizes.head_dim), algorithm)
    found = {algorithm: base}
    if sizes.max_distance is not None:
        found["relative"] = _relative(sizes, sizes.max_distance, algorithm, base)
    if sizes.fourier is not None:
        found["fourier"] = _fourier(sizes, sizes.fourier, base)
    return found


# -- What that costs -------------------------------------------------------------------------------


class Speed(NamedTuple):
    """The constants of equation (5), for float32."""

    start: float  # microseconds
    tile: float  # nanoseconds
    rate: float  # floating point operations per nanosecond

    def seconds(self, work: Work, itemsize: int) -> float:
        """Equation (5)."""
        times_as_slow = 1.0 if itemsize == 4 else DOUBLE
        return 1e-6 * self.start + 1e-9 * times_as_slow * (
            work.tiles * self.tile + work.flops / self.rate
        )


# `python -m benchmarks.planner` prints this table; results/cpu has the machine and every time.
SPEEDS = {
    "naive": (Speed(51, 162, 83.5), Speed(121, 380, 80.0)),
    "linear": (Speed(45, 492, 134.1), Speed(129, 458, 108.3)),
    "recurrent": (Speed(45, 411, 84.6), Speed(145, 540, 79.8)),
    "chunked": (Speed(45, 411, 84.6), Speed(145, 540, 79.8)),
    "relative": (Speed(100, 300, 80.0), Speed(200, 300, 80.0)),
    "fourier": (Speed(100, 30000, 50.0), Speed(200, 10000, 50.0)),
    "softmax": (Speed(32, 139, 117.7), Speed(63, 158, 97.8)),
}
DOUBLE = 2.2  # how much longer float64 takes than float32


class Cost(NamedTuple):
    """What one algorithm costs.

    Attributes:
        bytes: of arrays: what the seed counts, or the most at a time, beyond the inputs.
        flops: floating point operations, as executed; 0 in the seed's model, which counts none.
        seconds: estimated, on one core; 0 in the seed's model.
    """

    bytes: int
    flops: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        """The costs of two terms together."""
        bytes, flops = self.bytes + other.bytes, self.flops + other.flops
        return Cost(bytes, flops, self.seconds + other.seconds)


class Plan(NamedTuple):
    """The costs of every algorithm, and the choice.

    Attributes:
        terms: by term and algorithm, the costs of a term; they add up to those of the whole.
        choice: by term, the algorithm to take.
        comparison: the costs of softmax attention of the same sizes, in the kernels' model.
    """

    terms: dict[str, dict[str, Cost]]
    choice: dict[str, str]
    comparison: dict[str, Cost]

    @property
    def total(self) -> dict[str, Cost]:
        """By algorithm, the costs of all terms together."""
        return _total(self.terms)


def _total(terms: dict[str, dict[str, Cost]]) -> dict[str, Cost]:
    first, *others = terms.values()
    return {
        algorithm: sum((costs[algorithm] for costs in others), start=cost)
        for algorithm, cost in first.items()
    }


def _cost(passes: Passes, speeds: tuple[Speed, Speed], itemsize: int, backward: bool) -> Cost:
    """What the forward costs, or forward and backward together."""
    forward, gradients = passes
    numbers, flops = forward.peak, forward.flops
    seconds = speeds[0].seconds(forward, itemsize)
    if backward:
        numbers = max(numbers, forward.kept + gradients.peak)
        flops += gradients.flops
        seconds += speeds[1].seconds(gradients, itemsize)
    return Cost(numbers * itemsize, flops, seconds)


def costs(sizes: Sizes, algorithm: str, backward: bool) -> dict[str, Cost]:
    """What an algorithm costs, term by term: those of positions are what they add.

    Args:
        sizes: of the attention.
        algorithm: as in `parts`.
        backward: whether to count the backward too.
    """
    found = {
        part: _cost(work, SPEEDS[part], sizes.itemsize, backward)
        for part, work in parts(sizes, algorithm).items()
    }
    base = found.pop(algorithm)
    added = {term: cost._replace(bytes=cost.bytes - base.bytes) for term, cost in found.items()}
    return {"kernelized": base, **added}


# -- The choice ------------------------------------------------------------------------------------


def plan(sizes: Sizes, *, cost_model: str = "kernel", backward: bool = False) -> Plan:
    """What each algorithm costs, term by term, and which to take.

    Args:
        sizes: the attention that is asked for.
        cost_model: "seed", equations (1) to (3), or "kernel", what our kernels take.
        backward: whether to count the backward too; the seed's model knows no passes.

    Returns:
        The costs and the choice: by memory and for each term in the seed's model, by time and for
        the terms together in the kernels'.

    Raises:
        ValueError: there is no such cost model, or a dim is above 256.

    >>> plan(Sizes(64, 64, 64, 64), cost_model="seed").choice
    {'kernelized': 'naive'}
    >>> plan(Sizes(65, 65, 64, 64), cost_model="seed").choice
    {'kernelized': 'linear'}
    """
    if cost_model not in COST_MODELS:
        raise ValueError(f"plan: cost_model must be one of {COST_MODELS}, got {cost_model!r}")
    return _seed_plan(sizes) if cost_model == "seed" else _kernel_plan(sizes, backward)


def _seed_plan(sizes: Sizes) -> Plan:
    bytes_each = sizes.all_heads * sizes.itemsize
    terms = {
        term: {form: Cost(numbers * bytes_each) for form, numbers in forms.items()}
        for term, forms in seed_numbers(sizes).items()
    }
    choice = {
        term: "naive" if forms["naive"].bytes <= forms["linear"].bytes else "linear"
        for term, forms in terms.items()
    }
    return Plan(terms, choice, {})


def _kernel_plan(sizes: Sizes, backward: bool) -> Plan:
    terms = _kernel_terms(sizes, backward)
    comparison = {"softmax": costs(sizes, "softmax", backward)["kernelized"]}
    return Plan(terms, dict.fromkeys(terms, _best(_total(terms))), comparison)


def _kernel_terms(sizes: Sizes, backward: bool) -> dict[str, dict[str, Cost]]:
    algorithms = CAUSAL if sizes.causal else BIDIRECTIONAL
    found = {algorithm: costs(sizes, algorithm, backward) for algorithm in algorithms}
    return {
        term: {algorithm: found[algorithm][term] for algorithm in algorithms}
        for term in found["naive"]
    }


def _best(costs: dict[str, Cost]) -> str:
    """The algorithm that needs the least memory, of those that are close to the fastest."""
    limit = CLOSE * min(cost.seconds for cost in costs.values())
    close = [algorithm for algorithm, cost in costs.items() if cost.seconds <= limit]
    return min(close, key=lambda algorithm: costs[algorithm].bytes)


@lru_cache(maxsize=4096)
def choose(sizes: Sizes, stateful: bool = False) -> str:
    """The algorithm that `algorithm="auto"` stands for: the best for forward and backward.

    Args:
        sizes: of the arrays; of packed sequences, their mean.
        stateful: whether a state goes in or out; the naive form has none.

    Returns:
        "naive", "recurrent", "chunked" or "linear".

    >>> choose(Sizes(4096, 4096, 64, 64, heads=8))
    'linear'
    """
    totals = _total(_kernel_terms(sizes, backward=True))
    return _best(
        {name: cost for name, cost in totals.items() if not (stateful and name == "naive")}
    )


def crossovers(
    sizes: Sizes, *, cost_model: str = "kernel", backward: bool = False
) -> dict[str, list[tuple[int, str]]]:
    """From which length on which algorithm is taken, where Lq = Lk = L and the rest stays.

    Args:
        sizes: all but the lengths counts.
        cost_model: as in `plan`.
        backward: as in `plan`.

    Returns:
        By term, the first length and the algorithm of each stretch, from L = 1 up to `LONGEST`.

    >>> crossovers(Sizes(1, 1, 8, 8, max_distance=16), cost_model="seed")
    {'kernelized': [(1, 'naive'), (9, 'linear')], 'relative': [(1, 'naive'), (38, 'linear')]}
    """

    def choice(length: int) -> dict[str, str]:
        square = sizes._replace(queries=length, keys=length)
        return plan(square, cost_model=cost_model, backward=backward).choice

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

"""What every algorithm of linear attention does, counted: arrays, tiles and operations.

The planner's model of the kernels. A function here stands for the host functions of a file, and
follows them line by line: which arrays they allocate, and which of these are alive when most are;
over how many tiles their blocks walk, and what is computed there. Arithmetic is counted as it is
executed: rows are masked, but calculated with, up to the end of their tile, and columns up to the
head dim that a kernel is compiled for. A test holds the memory against the measured peak.

Inputs are in C order, and count for nothing; lengths, at most 64 bytes a sequence, are left out.

    function       stands for
    _naive         linear.naive_forward, naive_backward
    _linear        linear.forward, backward; CuPy's arrays are cut into more parts, as below
    _recurrent     recurrent.forward, backward
    _chunked       chunked.forward, backward, on NumPy arrays: CuPy's are cut into more segments
    _softmax       softmax.forward, backward, for comparison
    _kernelized    one of these, and groups of features where they are too wide for a kernel
    _relative      relative.forward, backward
    _fourier       fourier.forward, backward, with the rotated denominator
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba

from . import chunked, fourier, kernelized, linear, recurrent
from .arrays import ceil_div, round_up

TILE = linear.TILE
REALS = {4: numba.float32, 8: numba.float64}


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
    def results(self) -> int:
        """Numbers in an output and its denominators."""
        return self.output + self.query_rows

    @property
    def normaliser(self) -> int:
        """Numbers in gn and gd, the gradients of numerators and denominators."""
        return self.output + self.query_rows

    @property
    def gradients(self) -> int:
        """Numbers in dq, dk and dv."""
        return self.query + self.key + self.value

    @property
    def state(self) -> int:
        """Numbers in S (N, H, E, M) and Z (N, H, E)."""
        return self.all_heads * self.head_dim * (self.value_dim + 1)


class Work(NamedTuple):
    """What a pass of an algorithm takes.

    Attributes:
        kept: numbers in the arrays that it returns.
        peak: the most numbers in arrays at a time, inputs left out.
        tiles: that blocks walk over.
        flops: floating point operations, as executed.
        maps: numbers of positions that go through log and exp, or sine and cosine.
    """

    kept: int
    peak: int
    tiles: int
    flops: int
    maps: int = 0


class Load(NamedTuple):
    """What one kernel adds to a `Work`."""

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
    product = 2 * TILE**2
    features, ones_and_zeros = s.query + s.key, 2 * s.key_rows + s.query_rows
    return Passes(
        Work(
            kept=s.results,
            peak=s.results + features,
            tiles=pairs,
            flops=pairs * product * (E + wide_M),
        ),
        Work(
            kept=s.gradients,
            peak=s.normaliser + features + ones_and_zeros + s.gradients,
            tiles=3 * pairs,
            flops=pairs * product * (2 * (M + wide_E) + E + wide_M),
        ),
    )


class _Sums(NamedTuple):
    """Equation (8) of `linear`: the numbers in the sums, the most at a time, and the tiles."""

    kept: int
    peak: int
    tiles: int


def _sums(s: Sizes, length: int) -> _Sums:
    rows, columns = _width(s.head_dim), _width(s.value_dim)
    blocks = s.all_heads * rows // TILE
    shares = max(1, min(linear.ENOUGH_BLOCKS // blocks, length // linear.FEWEST_ROWS))
    kept = s.all_heads * (2 * rows * columns + rows)
    return _Sums(kept, kept if shares == 1 else (shares + 1) * kept, blocks * _tiles(length))


def _linear(s: Sizes) -> Passes:
    wide_E, wide_M = _width(s.head_dim), _width(s.value_dim)
    S, R = _sums(s, s.keys), _sums(s, s.queries)
    queries, keys = s.all_heads * _tiles(s.queries), s.all_heads * _tiles(s.keys)
    answers = queries * _tiles(s.head_dim)  # tiles of queries, then of dq and dk, then of dv
    to_E, to_M = (queries + keys) * _tiles(s.value_dim), keys * _tiles(s.head_dim)
    product = 2 * TILE**2
    held = s.normaliser + 2 * s.key_rows + S.kept
    row_of_R = s.all_heads * wide_M
    return Passes(
        Work(
            kept=s.results,
            peak=max(s.key_rows + S.peak, S.kept + s.results),
            tiles=S.tiles + answers,
            flops=product * (S.tiles + answers) * wide_M,
        ),
        Work(
            kept=s.gradients,
            peak=max(held + R.peak, held + R.kept + s.gradients + row_of_R),
            tiles=S.tiles + R.tiles + to_E + to_M,
            flops=product * ((S.tiles + R.tiles + to_M) * wide_M + to_E * wide_E),
        ),
    )


def _recurrent(s: Sizes) -> Passes:
    to_M = _recurrence(s, s.head_dim, s.value_dim)
    to_E = _recurrence(s, s.value_dim, s.head_dim)
    results, gradients = s.results + s.state, s.gradients + s.state
    matrix, row = s.all_heads * s.head_dim * s.value_dim, s.all_heads * s.value_dim
    ones_and_zeros = 2 * s.key_rows + s.query_rows + row
    held = s.normaliser + ones_and_zeros + 2 * s.state
    return Passes(
        Work(results, results + s.state, *to_M),
        Work(gradients, held + gradients + matrix + row, *_together(to_E, to_E, to_M)),
    )


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
    results = s.results + parts_M * s.state
    gradients = s.gradients + parts_M * matrix + parts_E * row_E
    ones_and_zeros = 2 * s.key_rows + s.query_rows + row_M
    held = s.normaliser + ones_and_zeros + 2 * s.state
    last_scan = parts_E * matrix + parts_M * (matrix + 2 * row_M)
    return Passes(
        Work(results, results + (1 + parts_M) * s.state, *to_M),
        Work(gradients, held + gradients + last_scan, *_together(to_E, to_E, to_M)),
    )


def _chunks(s: Sizes, inner: int, outer: int) -> tuple[Load, int]:
    """One scan of `chunked`, and into how many segments the sequence is cut."""
    shape = chunked._shape(inner, outer, REALS[s.itemsize])
    blocks = s.all_heads * ceil_div(outer, shape.columns)
    enough = chunked.ENOUGH_BLOCKS // blocks
    parts = max(1, min(enough, s.positions // chunked.FEWEST_TOKENS))
    tiles = blocks * ceil_div(s.positions, chunked.TILE)
    update = shape.inner * shape.columns
    answer = update + chunked.TILE * (shape.inner + shape.columns)
    updates = 1 if parts == 1 else 2  # the first walk over segments only adds up
    return Load(updates * tiles, 2 * tiles * chunked.TILE * (updates * update + answer)), parts


def _softmax(s: Sizes) -> Passes:
    pairs = s.all_heads * tile_pairs(s)
    E, M = round_up(s.head_dim), round_up(s.value_dim)
    product = 2 * TILE**2
    return Passes(
        Work(s.results, s.results, pairs, pairs * product * (E + M)),
        Work(
            kept=s.gradients,
            peak=s.gradients + s.query_rows,
            tiles=2 * pairs,
            flops=pairs * product * (4 * E + 3 * M),
        ),
    )


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
    width = ceil_div(s.head_dim, groups)
    forward, backward = ALGORITHMS[algorithm](s._replace(head_dim=width))
    copies = (s.query + s.key) // groups
    state = groups * (forward.kept - s.results)
    results, gradients = groups * forward.kept, groups * backward.kept
    return Passes(
        Work(
            kept=s.results + state,
            peak=max(
                results - forward.kept + copies + forward.peak,
                results + s.results + max(s.results, state),
            ),
            tiles=groups * forward.tiles,
            flops=groups * forward.flops,
        ),
        Work(
            kept=s.gradients + state,
            peak=max(
                gradients - backward.kept + copies + backward.peak,
                gradients + s.normaliser + s.gradients,
            ),
            tiles=groups * backward.tiles,
            flops=groups * backward.flops,
        ),
    )


def occurring_distances(s: Sizes, k: int) -> tuple[int, int]:
    """The least and the greatest clipped distance of a key from a query that sees it."""
    nearest, farthest = s.keys - 1 - s.query_offset, -(s.query_offset + s.queries - 1)
    high = max(-k, min(k, nearest, 0 if s.causal else k))
    return min(high, max(-k, farthest)), high


class _Relative(NamedTuple):
    """What both passes of `relative` have in common; see its equation (7)."""

    distances: int  # R, those that occur
    near: int  # pairs of a tile of queries and a tile of keys near to it
    embedded: int  # pairs of a tile of queries and a tile of distances
    setting: int  # numbers in embeddings that are copied, and in a state before the first key
    scores: int  # numbers in F, or dB
    window: int  # numbers in a state after the last key
    far_keys: int  # numbers in A and C
    far_queries: int  # numbers in the far sums of (13)


def _relative(s: Sizes, k: int, algorithm: str, base: Passes) -> Passes:
    """Relative positions on top of an algorithm: the memory of both, the work of theirs alone."""
    low, high = occurring_distances(s, k)
    distances = high - low + 1
    near, query_tiles = s.all_heads * tile_pairs(s), s.all_heads * _tiles(s.queries)
    if algorithm != "naive":
        reach = _tiles(TILE - 1 + (1 if s.causal else high)) + _tiles(-low - 1)
        near = min(near, query_tiles * reach)
    row = s.all_heads * s.value_dim
    directions = 1 if s.causal else 2
    copied = s.heads * distances * s.head_dim if distances < 2 * k + 1 else 0
    common = _Relative(
        distances=distances,
        near=near,
        embedded=query_tiles * _tiles(distances),
        setting=copied + s.state + row,
        scores=s.query_rows * distances,
        window=s.state + (k + 1) * row,
        far_keys=directions * (_tiles(s.keys) + 1) * row,
        far_queries=directions * (_tiles(s.queries) + 1) * row,
    )
    has_state = algorithm not in ("naive", "linear")
    return Passes(
        _relative_forward(s, common, base.forward, has_state),
        _relative_backward(s, common, base.backward, has_state, 2 * k + 1),
    )


def _relative_forward(s: Sizes, r: _Relative, base: Work, has_state: bool) -> Work:
    E, wide_M = _tiles(s.head_dim), _width(s.value_dim)
    results = s.results + r.scores + (r.window if has_state else 0)
    return Work(
        kept=results,
        peak=r.setting + max(base.peak, base.kept + s.query + r.far_keys + results),
        tiles=r.embedded * E + r.near,
        flops=2 * TILE**2 * (r.embedded * E * TILE + r.near * wide_M),
        maps=r.scores,
    )


def _relative_backward(s: Sizes, r: _Relative, base: Work, has_state: bool, rows: int) -> Work:
    M, wide_M, wide_E = _tiles(s.value_dim) * TILE, _width(s.value_dim), _width(s.head_dim)
    row = s.all_heads * s.value_dim
    embedding = s.heads * rows * s.head_dim
    blocks = s.all_heads * _tiles(r.distances)
    shares = max(1, min(linear.ENOUGH_BLOCKS // blocks, s.queries // linear.FEWEST_ROWS))
    sums = (shares * s.batch + 1) * s.heads * r.distances * s.head_dim
    tile_sums = 2 * _tiles(s.queries) * row
    held = s.normaliser + base.kept + r.far_keys + r.scores + tile_sums + embedding
    last = max(s.query + sums, r.window + row + r.far_queries)
    return Work(
        kept=base.kept + embedding + (row if has_state else 0),
        peak=r.setting + max(base.peak, held + last),
        tiles=2 * (r.near + r.embedded),
        flops=2 * TILE**2 * (r.near * (M + wide_M) + 2 * r.embedded * wide_E),
        maps=r.scores,
    )


def _fourier(s: Sizes, form: str, base: Passes) -> Passes:
    """Fourier positions on top of an algorithm of their features, as `_relative`."""
    wide = 8 // s.itemsize  # positions and sums are float64
    numbers = s.query + s.key
    features = (fourier.PARTS[form] + 2) * numbers  # with their cosines and sines
    positions = wide * s.batch * (s.queries + s.keys)

    def moments(length: int) -> int:
        blocks = ceil_div(length, fourier.ROWS * fourier.OWN)
        return wide * (blocks + 1) * s.all_heads * s.head_dim

    held = s.normaliser + s.query_rows + base.backward.kept + positions
    of_queries, of_keys = 3 * s.query + moments(s.queries), 3 * s.key + moments(s.keys)
    return Passes(
        Work(
            kept=features + base.forward.kept,
            peak=features + max(base.forward.peak, base.forward.kept + s.output),
            tiles=0,
            flops=5 * numbers,
            maps=numbers,
        ),
        Work(
            kept=s.gradients + positions,
            peak=max(
                s.query_rows + base.backward.peak, held + of_queries, held + s.query + of_keys
            ),
            tiles=0,
            flops=14 * numbers,
        ),
    )


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

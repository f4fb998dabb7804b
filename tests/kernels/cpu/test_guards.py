"""Guards on both sides: threads in between pass, and what was asked of an index is known."""

from typing import Any

import numpy as np
import pytest
from numba import float32, int64

from minitransformer_kernels import checked
from minitransformer_kernels.cuda import cuda


@cuda.jit
def blurred(x, weights, out):
    """A stencil of 3 x 3, which ends at the rim."""
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        total = float32(0)
        for a in range(3):
            for b in range(3):
                row, column = i + a - 1, j + b - 1
                if 0 <= row < x.shape[0] and column >= 0 and column < x.shape[1]:
                    total += weights[a, b] * x[row, column]
        out[i, j] = total


@pytest.mark.parametrize("block", [(16, 8), (64, 2), (5, 7)])
@pytest.mark.parametrize("shape", [(1, 1), (19, 33), (16, 64)])
def test_a_stencil_has_a_loop_for_where_no_neighbour_is_missing(shape: Any, block: Any) -> None:
    rng = np.random.default_rng(0)
    x, weights = (rng.integers(0, 9, size).astype(np.float32) for size in (shape, (3, 3)))
    framed, expected = np.pad(x, 1), np.zeros(shape)
    for a in range(3):
        for b in range(3):
            expected += weights[a, b] * framed[a : a + shape[0], b : b + shape[1]]
    for looks in False, True:
        out = np.full(shape, np.nan, np.float32)
        with checked(looks):
            blurred[(70 // block[0] + 1, 20 // block[1] + 1), block](x, weights, out)
        np.testing.assert_array_equal(out, expected)
    text = blurred.cpu_source()
    assert "x[u(row), u(column)]" in text and "x[row, column]" not in text
    if block[0] < 32:
        assert "always(" in text


@cuda.jit
def between(x, low, high, out):
    """Each line says in another way which threads have something to do."""
    t, n = cuda.threadIdx.x, out.shape[1]
    if low < t and t < high:
        out[0, t] = x[t]
    cuda.syncthreads()
    if low < t <= high - 1:
        out[1, t] = x[t]
    cuda.syncthreads()
    if not (t <= low or t >= high):
        out[2, t] = x[t]
    cuda.syncthreads()
    if t - 1 >= low and t + 1 <= high:
        out[3, t] = x[t]
    cuda.syncthreads()
    if not low >= t and not high <= t:
        out[4, t] = x[t]
    cuda.syncthreads()
    out[5, t] = x[t] if low < t < high else float32(0)
    cuda.syncthreads()
    if low < t < n and t % 32 == 0:
        out[6, t] = x[t]
    cuda.syncthreads()
    if t > low:
        out[7, t] = x[t]


@pytest.mark.parametrize("threads", [24, 96])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_some_in_between_pass(threads: int, dtype: Any) -> None:
    x, t = np.arange(1, 97, dtype=np.float32), np.arange(threads)
    largest = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    for low, high in (3, 17), (0, 96), (20, 10), (90, 95), (2, 3), (largest, 40):
        out = np.zeros((8, threads), np.float32)
        between[1, threads](x, dtype(low), dtype(high), out)
        expected = np.where((low < t) & (t < high), x[:threads], 0)
        np.testing.assert_array_equal(out[:6], np.tile(expected, (6, 1)))
        np.testing.assert_array_equal(out[6], np.where((low < t) & (t % 32 == 0), x[:threads], 0))
        np.testing.assert_array_equal(out[7], np.where(low < t, x[:threads], 0))


@cuda.jit
def may_wrap(x, back, out):
    """Indices that are asked about, and then are others, or were asked about something else."""
    t = cuda.threadIdx.x
    place = t - back
    if place >= 0:
        place -= 3
        out[0, t] = x[place]
    elsewhere = t - back
    if elsewhere >= -2:
        out[1, t] = x[elsewhere]
    if elsewhere > 4 or t < 40:
        out[2, t] = x[elsewhere]
    out[3, t] = x[elsewhere] if t >= 0 else float32(0)
    if elsewhere >= 0:
        out[4, t] = float32(0)
    else:
        out[4, t] = x[elsewhere]
    places = cuda.shared.array(64, int64)
    places[cuda.threadIdx.x] = t
    if places[cuda.threadIdx.x] >= 0:
        places[cuda.threadIdx.x] = t - back
        out[5, t] = x[places[cuda.threadIdx.x]]


@pytest.mark.parametrize("threads", [24, 64])
def test_an_index_that_may_be_negative_counts_from_the_end(threads: int) -> None:
    x, t, back = np.arange(1, 65, dtype=np.float32), np.arange(threads), 7
    out = np.zeros((6, threads), np.float32)
    with checked(False):
        may_wrap[1, threads](x, back, out)
    place = t - back
    expected = [
        np.where(place >= 0, x[place - 3], 0),
        np.where(place >= -2, x[place], 0),
        np.where((place > 4) | (t < 40), x[place], 0),
        x[place],
        np.where(place >= 0, 0, x[place]),
        x[place],
    ]
    np.testing.assert_array_equal(out, expected)


@cuda.jit
def asks_much(x, numbers, out):
    """Conditions that the row decides alike hold an `or` or a choice; so do limits."""
    t = cuda.threadIdx.x
    a, b, c, n, m = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    out[0, t] = x[t] if (a > 0 or b > 0) and t < n else float32(0)
    cuda.syncthreads()
    out[1, t] = x[t] if (a > 0 or b > 0) and c > 0 and t < n else float32(0)
    cuda.syncthreads()
    out[2, t] = x[t] if t < (n if b > 0 else m) else float32(0)
    cuda.syncthreads()
    out[3, t] = x[t] if t >= (n if b > 0 else m) else float32(0)
    cuda.syncthreads()
    out[4, t] = x[t] if (n > 3 if b > 0 else m > 3) and t < n else float32(0)
    cuda.syncthreads()
    if (a > 0 or b > 0) and t < n:
        for k in range(3):
            out[5, t] += k * x[t]


@pytest.mark.parametrize("threads", [16, 64])
def test_conditions_and_limits_are_asked_as_a_whole(threads: int) -> None:
    x, t = np.arange(1, 65, dtype=np.float32)[:threads], np.arange(threads)
    for a, b, c, n, m in (1, 0, 1, 8, 4), (0, 0, 1, 8, 4), (1, 0, 0, 20, 2), (0, 1, 1, 5, 40):
        out = np.zeros((6, threads), np.float32)
        asks_much[1, threads](x, np.array([a, b, c, n, m]), out)
        some, limit = a > 0 or b > 0, n if b > 0 else m
        passes = [
            some & (t < n),
            bool(some and c > 0) & (t < n),
            t < limit,
            t >= limit,
            bool(limit > 3) & (t < n),
        ]
        np.testing.assert_array_equal(out[:5], np.where(passes, x, 0))
        np.testing.assert_array_equal(out[5], np.where(passes[0], 3 * x, 0))


@cuda.jit
def differs(x, a, b, out):
    t = cuda.threadIdx.x
    out[0, t] = x[t] if t > a - b else float32(0)
    cuda.syncthreads()
    out[1, t] = x[t] if t - 1 > a - b else float32(0)
    cuda.syncthreads()
    out[2, t] = x[t] if t <= a - b else float32(0)
    cuda.syncthreads()
    out[3, t] = x[t] if t + 1 < a - b else float32(0)


@pytest.mark.parametrize("threads", [16, 40])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_a_difference_without_a_sign_is_huge(dtype: Any, threads: int) -> None:
    x, out = np.arange(1, threads + 1, dtype=np.float32), np.zeros((4, threads), np.float32)
    differs[1, threads](x, dtype(3), dtype(7), out)
    np.testing.assert_array_equal(out, [0 * x, 0 * x, x, x])


@cuda.jit
def counts_first(x, n, counts, out):
    """What is stored first has an effect, or its place another meaning."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(64, int64)
    own = cuda.local.array(4, int64)
    for i in range(4):
        own[i] = 0
    tile[t] = cuda.atomic.add(counts, t, 1)
    if t < n:
        tile[t] = 5
    own[own[0]] = 1
    if x[t] > n:
        own[own[0]] = 2
    out[t] = tile[t] + 10 * own[0] + 100 * own[1]


def test_a_store_with_an_effect_is_made() -> None:
    x, n, counts, out = np.arange(33), 20, np.zeros(33, np.int64), np.zeros(33, np.int64)
    counts_first[1, 33](x, n, counts, out)
    assert counts.tolist() == [1] * 33
    np.testing.assert_array_equal(out, np.where(x < n, 5, 0) + 10 + np.where(x > n, 200, 0))

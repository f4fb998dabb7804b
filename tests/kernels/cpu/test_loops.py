"""Loops: which of two is the inner one, and which way they go."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import float32, int32, uint8, uint64

from minitransformer_kernels import checked
from minitransformer_kernels.cpu import lowering, registers
from minitransformer_kernels.cuda import cuda


@cuda.jit
def sums_of_rows(x, out):
    i, total = cuda.grid(1), float32(0)
    if i < x.shape[0]:
        for e in range(x.shape[1]):
            total += x[i, e]
        out[i] = total


@cuda.jit
def sums_of_columns(x, out):
    i, total = cuda.grid(1), float32(0)
    if i < x.shape[1]:
        for e in range(x.shape[0]):
            total += x[e, i]
        out[i] = total


def test_neighbours_in_memory_are_visited_one_after_the_other() -> None:
    x = np.arange(40 * 24, dtype=np.float32).reshape(40, 24)
    for kernel, axis, inner in ((sums_of_rows, 1, "for e"), (sums_of_columns, 0, "for thread_x")):
        out = np.zeros(x.shape[1 - axis], np.float32)
        kernel[2, 32](x, out)
        assert np.array_equal(out, x.sum(axis))  # whole numbers, so no rounding
        *_, last = (line for line in kernel.cpu_source().splitlines() if " for " in line)
        assert last.strip().startswith(inner)


@cuda.jit(device=True)
def ends_of(x, row):
    return x[row, 0], x[row, 1]


@cuda.jit
def to_an_end(x, out):
    first, last = ends_of(x, 0)
    for e in range(first, last):
        out[e, cuda.threadIdx.x] += 1


@cuda.jit
def to_an_end_of_its_own(x, out):
    x[cuda.threadIdx.x, 1] += cuda.threadIdx.x
    first, last = ends_of(x, cuda.threadIdx.x)
    for e in range(first, last):
        out[e, cuda.threadIdx.x] += 1


def test_what_a_device_function_returns_is_as_uniform_as_what_it_gets() -> None:
    for kernel, grows, inner in (
        (to_an_end, 0, "for thread_x"),
        (to_an_end_of_its_own, 1, "for e"),
    ):
        x, out = np.tile(np.array([1, 3]), (8, 1)), np.zeros((12, 8), int)
        kernel[1, 8](x, out)
        ends = 3 + grows * np.arange(8)
        assert np.array_equal(out.sum(0), ends - 1)
        *_, last = (line for line in kernel.cpu_source().splitlines() if " for " in line)
        assert last.strip().startswith(inner)


@cuda.jit
def turns_backwards(out, pace):
    """Row by row, each thread from the end, in steps of a size that only the launch knows."""
    for i in range(24 + cuda.threadIdx.x, -1, pace * cuda.blockDim.x):
        out[0, i] += 1
    for i in range(24 + cuda.threadIdx.x, -1, cuda.blockDim.x * pace):
        out[1, i] += 1
    for i in range(24 + cuda.threadIdx.x, -1, cuda.blockDim.x * 2 + 24 * pace):
        out[2, i] += 1
    for i in range(24 + cuda.threadIdx.x, -1, 24 * pace + cuda.blockDim.x * 2):
        out[3, i] += 1


@cuda.jit
def starts_backwards(out, pace):
    """One turn for each thread, which starts the further down the higher its number is."""
    for i in range(8 + (pace * 1) * cuda.threadIdx.x, 9, 100):
        out[0, i] += 1
    for i in range(7 + cuda.threadIdx.x * (1 * pace), 8, 100):
        out[1, i] += 1


def test_steps_that_turn_out_negative() -> None:
    turns = np.zeros((4, 32), int)
    turns_backwards[1, 8](turns, -1)
    np.testing.assert_array_equal(turns, 1)


def test_starts_that_turn_out_to_go_down() -> None:
    starts = np.zeros((2, 9), int)
    starts_backwards[1, 8](starts, -1)
    np.testing.assert_array_equal(starts[0], [0] + [1] * 8)
    np.testing.assert_array_equal(starts[1], [1] * 8 + [0])


@cuda.jit(device=True)
def load(tile, x, begin):
    for t in range(cuda.threadIdx.x, tile.shape[0], cuda.blockDim.x):
        for e in range(tile.shape[-1] - 1):
            tile[t, e] = x[begin + t, e] if begin + t < x.shape[0] else float32(0)


@cuda.jit
def by_a_device_function(x, out):
    rows = cuda.shared.array((16, 5), float32)
    for start in range(0, x.shape[0], 16):
        load(rows, x, start + 0)
        cuda.syncthreads()
        out[start + cuda.threadIdx.x] = rows[15 - cuda.threadIdx.x, 3]
        cuda.syncthreads()


@cuda.jit
def by_hand(x, out):
    rows = cuda.shared.array((16, 5), float32)
    for start in range(0, x.shape[0], 16):
        for t in range(cuda.threadIdx.x, 16, cuda.blockDim.x):
            for e in range(5 - 1):
                rows[t, e] = x[start + 0 + t, e] if start + 0 + t < x.shape[0] else float32(0)
        cuda.syncthreads()
        out[start + cuda.threadIdx.x] = rows[15 - cuda.threadIdx.x, 3]
        cuda.syncthreads()


def test_a_device_function_loops_as_its_text_would_in_the_kernel() -> None:
    x, outs = np.random.default_rng(0).random((40, 4), np.float32), np.zeros((2, 48), np.float32)
    by_a_device_function[1, 16](x, outs[0])
    by_hand[1, 16](x, outs[1])
    np.testing.assert_array_equal(outs[0], outs[1])
    loops = [
        kernel.cpu_source().partition("first_block")[2]
        for kernel in (by_a_device_function, by_hand)
    ]
    assert loops[0] == loops[1]
    assert "shape[" not in loops[0].replace("x.shape[0]", "")


@cuda.jit
def few_need(x, counts, out):
    t = cuda.threadIdx.x
    doubled = x[t] * 2
    before = cuda.atomic.add(counts, t % 2, 1)
    tripled = x[t] * 3
    cuda.syncthreads()
    if t < 32:
        out[t] = doubled
    cuda.syncthreads()
    if t == 0:
        out[40] = doubled + before
    cuda.syncthreads()
    out[t + 64] = tripled


def test_what_only_the_first_threads_need_only_they_make() -> None:
    x, counts, out = np.arange(128.0), np.zeros(2, int), np.zeros(192)
    few_need[1, 128](x, counts, out)
    np.testing.assert_array_equal(out, [*2 * x[:32], *8 * [0], 0, *23 * [0], *3 * x])
    np.testing.assert_array_equal(counts, 64)  # what has an effect is for all
    loops = few_need.cpu_source().split("for thread_x in ")
    (doubling,) = (loop for loop in loops if "* 2" in loop)
    assert doubling.startswith("range(32):")
    assert "atomic" not in doubling


@cuda.jit
def some_need(x, out, size):
    t = cuda.threadIdx.x
    lane, warp = t & 31, t // 32
    if lane == 0:  # 0, 32, ...
        out[0, warp] = x[t]
    cuda.syncthreads()
    if t < size and t % 48 == 0 and t % 32 == 0:  # 0, 96, ...
        out[1, t] = x[t]
    cuda.syncthreads()
    if (t + 1) % 32 == 0:  # 31, 63, ...
        out[2, t] = x[t]
    cuda.syncthreads()
    if t % 2 == 0:
        out[3, t] = x[t]
    cuda.syncthreads()
    if t & 33 == 0:  # not 0, 34, ...
        out[4, t] = x[t]


def test_what_one_thread_of_so_many_does_costs_no_turn_of_the_others() -> None:
    x, out = np.arange(1.0, 201.0), np.zeros((5, 200))
    some_need[1, 200](x, out, 150)
    t = np.arange(200)
    np.testing.assert_array_equal(out[0], [*x[::32], *np.zeros(193)])
    chosen = (t < 150) & (t % 96 == 0), (t + 1) % 32 == 0, t % 2 == 0, t & 33 == 0
    np.testing.assert_array_equal(out[1:], np.where(chosen, x, 0))
    _, *loops = some_need.cpu_source().split("for thread_x in range(")
    threads = [loop.partition("):")[0] for loop in loops]
    assert threads == ["0, BLOCK_X, 32", "0, min(BLOCK_X, size), 96", *["BLOCK_X"] * 3]


@cuda.jit
def on_either_side(x, n, out):
    i, row = cuda.grid(1), cuda.blockIdx.y
    out[row, 0, i] = x[i] if i < n else 0
    cuda.syncthreads()
    out[row, 1, i] += x[i] if not i + row > n else -1.5
    cuda.syncthreads()
    value = float32(5)
    if n >= i + 1:
        value = x[i]
        out[row, 2, i] += x[i] if i < n else 0
    out[row, 2, i] += value
    cuda.syncthreads()
    if i < n:
        doubled = 2 * x[i]
        out[row, 3, i] = 1
    else:
        doubled = float32(0)
    out[row, 3, i] += doubled if i < n else x[i]
    cuda.syncthreads()
    out[row, 4, i] += value + doubled
    cuda.syncthreads()
    out[row, 5, i] = x[i] if i < n and n < x.size else 0  # the first threads or none


def test_what_the_first_threads_do_otherwise_is_a_loop_of_its_own() -> None:
    x, i = np.arange(256, dtype=np.float32), np.arange(256)
    for n in -70, 0, 1, 100, 127, 128, 129, 255, 256, 1000:
        out = np.zeros((2, 6, 256))
        on_either_side[(2, 2), 128](x, n, out)
        value, doubled = np.where(i < n, x, 5), np.where(i < n, 2 * x, 0)
        for row in range(2):
            wanted = (
                np.where(i < n, x, 0), np.where(i + row <= n, x, -1.5),
                value + np.where(i < n, x, 0), np.where(i < n, 2 * x + 1, x), value + doubled,
                np.where((i < n) & (n < 256), x, 0),
            )  # fmt: skip
            np.testing.assert_array_equal(out[row], wanted)
    text = on_either_side.cpu_source()
    assert text.count("for thread_x in range(max(0, ") == 5
    assert (text.count("always("), text.count("never(")) == (6, 6)


@cuda.jit
def squares(x, n, out):
    i = cuda.grid(1)
    value = x[i] if i < n else 0  # a float64, though only one of the two sides needs it
    out[i] = value * value


def test_either_side_computes_in_the_type_of_both() -> None:
    x, out = np.linspace(0, 1, 128, dtype=np.float32), np.zeros(128)
    squares[1, 128](x, 100, out)
    assert "always(i < n)" in squares.cpu_source()
    np.testing.assert_array_equal(out[:100], x[:100].astype(float) ** 2)
    assert not out[100:].any()


@cuda.jit
def on_no_side(x, n, ends, out):
    i = cuda.grid(1)
    out[0, i] = x[i] if i < ends[0] else 0
    cuda.syncthreads()
    out[1, i] = x[i] if i < n / 2 else 0
    cuda.syncthreads()
    out[2, i] = x[i] if i % 3 < n % 3 else 0
    cuda.syncthreads()
    out[3, i] = i if i < n else 0  # loads nothing
    cuda.syncthreads()
    if i < n:
        for e in range(i % 5):
            out[4, i] += x[e]
    else:
        out[4, i] = -1


def test_where_it_is_not_the_first_threads_all_are_in_one_loop() -> None:
    x, i, n, out = np.arange(128.0), np.arange(128), 51, np.zeros((5, 128))
    on_no_side[1, 128](x, n, np.array([70]), out)
    sums = np.array([x[: e % 5].sum() for e in range(128)])
    wanted = (
        np.where(i < 70, x, 0), np.where(i < 25.5, x, 0), 0 * x, np.where(i < n, i, 0),
        np.where(i < n, sums, -1),
    )  # fmt: skip
    np.testing.assert_array_equal(out, wanted)
    assert "always" not in on_no_side.cpu_source()


@cuda.jit
def far_of(x, numbers, out):
    t, r, n = cuda.threadIdx.x, numbers[0], numbers[1]
    out[0, t] = x[t + r] if t + r < n else -1
    cuda.syncthreads()
    if t + r < n:
        out[1, t] = x[t]


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint32, np.uint64])
def test_a_guard_is_asked_as_it_stands_where_numbers_have_no_sign(threads: int, dtype: Any) -> None:
    """`n - r` tells how many threads pass `t + r < n`; of unsigned 5 and 10 it is 2^64 - 5."""
    x, out = np.arange(80.0), np.zeros((2, threads))
    for looks in (False, True):
        with checked(looks):
            far_of[1, threads](x, np.array([10, 5], dtype), out)
        np.testing.assert_array_equal(out, [[-1] * threads, [0] * threads])


def test_short_rows_have_a_loop_for_all_threads_and_one_for_some() -> None:
    """Of constant length both: of 16 blocks of 8 threads all pass in six, some in one."""
    x, out = np.linspace(0, 1, 128), np.full(128, np.nan)
    squares[16, 8](x, 51, out)
    whole, some = squares.cpu_source().partition("else:")[::2]
    assert "if BLOCK_X <= n - block_x * BLOCK_X:" in whole and "always(i < n)" in whole
    assert "range(BLOCK_X)" in some and "always" not in some
    np.testing.assert_array_equal(out, np.where(np.arange(128) < 51, x * x, 0))


@cuda.jit
def row_by_row(x, n, out):
    t = cuda.threadIdx.x
    for row in range(cuda.threadIdx.y, x.shape[0], cuda.blockDim.y):
        place = row + n
        if place < out.shape[0] and t < x.shape[1]:
            out[place, t] = x[row, t]


def test_a_condition_under_a_condition_is_one_guard() -> None:
    x, out, wanted = np.arange(250.0).reshape(5, 50), np.zeros((6, 50)), np.zeros((6, 50))
    row_by_row[1, (64, 2)](x, 3, out)
    wanted[3:] = x[:3]
    np.testing.assert_array_equal(out, wanted)
    *_, loop = row_by_row.cpu_source().split("for thread_x in ")
    assert loop.startswith("range(min(BLOCK_X, x.shape[1])):")
    assert "if " not in loop  # all that it asks besides is asked once a row


@cuda.jit
def turned(x, out):
    tile = cuda.shared.array((64, 8), float32)
    t = cuda.threadIdx.x
    for r in range(8):
        tile[t, r] = 0
        if r < x.shape[0] and t < x.shape[1]:
            tile[t, r] = x[r, t]
    cuda.syncthreads()
    for r in range(8):
        out[r, t] = tile[t, r]


def test_a_tile_that_is_turned_while_it_is_filled_is_read_along_the_threads() -> None:
    x, out = np.arange(350, dtype=np.float32).reshape(7, 50), np.ones((8, 64), np.float32)
    turned[1, 64](x, out)
    np.testing.assert_array_equal(out, np.pad(x, [(0, 1), (0, 14)]))
    filled = turned.cpu_source().partition("for r in range(8):")[2]
    # Both stores go to one element: as many go down a column as are read along a row.
    assert "for thread_x in range(min(BLOCK_X, x.shape[1] if r < x.shape[0] else 0)):" in filled


@cuda.jit
def asks_for_all(x, n, out):
    t, row = cuda.threadIdx.x, cuda.threadIdx.y
    for _ in range(n):
        if row == 0:
            limit = n * 2
            if limit > 5:
                out[row, t] = x[t]


@cuda.jit
def asks_each(x, n, out):
    t, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < out.shape[0] - 1:
        limit = n * 2
        if t < limit:
            out[row, t] += x[t]


@cuda.jit
def chooses(x, n, out):
    t, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row == 0:
        limit = n * 2
        out[row, t] = x[t] if t < limit else 0


@pytest.mark.parametrize(("kernel", "count"), [(asks_for_all, 64), (asks_each, 6), (chooses, 6)])
def test_a_condition_is_asked_after_what_it_asks_about(kernel: Any, count: int) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros((2, 64), np.float32)
    kernel[1, (64, 2)](x, 3, out)
    np.testing.assert_array_equal(out, [np.where(np.arange(64) < count, x, 0), np.zeros(64)])


@pytest.fixture
def few_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers of 8 numbers, 16 of them, of which 12 are for sums."""
    given_registers(monkeypatch, 16, 32)


def given_registers(patch: pytest.MonkeyPatch, count: int, size: int) -> None:
    """Makes the compiler write for so many vector registers of so many bytes."""
    for module in lowering, registers:
        patch.setattr(module, "VECTOR_REGISTERS", (count, size))


@cuda.jit
def sums_by_hand(x, out):
    t = cuda.threadIdx.x
    four, named = cuda.local.array(4, float32), cuda.local.array((2, 4), float32)
    for i in range(4):
        four[i] = 0
        named[0, i] = 0
        named[1, i] = 0
    for e in range(x.shape[0]):
        four[0] += x[e, t]
        four[1] += 2 * x[e, t]
        four[2] += 3 * x[e, t]
        four[3] += 4 * x[e, t]
    cuda.syncthreads()
    for e in range(x.shape[0]):
        for i in range(8):
            half, s = i // 4, i % 4
            named[half, s] += i * x[e, t]
    for i in range(8):
        out[i, t] = named[i // 4, i % 4] + four[i % 4]


def test_sums_that_are_named_one_by_one_need_registers_too(few_registers: None) -> None:
    x, out = np.ones((5, 128), np.float32), np.zeros((8, 128), np.float32)
    sums_by_hand[1, 128](x, out)
    numbers = np.arange(8)
    np.testing.assert_array_equal(out, np.tile(5 * (numbers + numbers % 4 + 1), (128, 1)).T)
    text = sums_by_hand.cpu_source()
    # The twelve sums of eight threads are twelve vectors, of which there are sixteen.
    assert "for piece in range(0, BLOCK_X, 8):" in text
    assert "for piece_ in range(0, BLOCK_X, 8):" in text


def test_a_part_of_a_row_has_few_sums_among_many_registers(monkeypatch: Any) -> None:
    given_registers(monkeypatch, 32, 64)
    x, out = np.ones((5, 96), np.float32), np.zeros((8, 96), np.float32)
    sums_by_hand[1, 96](x, out)
    np.testing.assert_array_equal(out[:, :48], out[:, 48:])
    # There is room for 24 vectors, and twelve sums of 32 threads are as many; they have 12 at most.
    assert "for piece in range(0, BLOCK_X, 12):" in sums_by_hand.cpu_source()


def sixteen_sums(x, y, out):
    t = cuda.threadIdx.x
    alone, mixed = cuda.local.array((4, 4), float32), cuda.local.array((4, 4), float32)
    for w in range(4):
        for r in range(4):
            alone[w, r] = 0
            mixed[w, r] = 0
    for e in range(x.shape[0]):
        for w in range(4):
            for r in range(4):
                more = alone[w, r] + x[e, 4 * w + r] * y[e, t]
                alone[w, r] = more if x[e, 0] != 0 else alone[w, r]
    for e in range(x.shape[0]):
        for w in range(4):
            for r in range(4):
                mixed[w, r] += x[e, 4 * w + r] * y[e, t] - mixed[r, w]
    for w in range(4):
        for r in range(4):
            out[0, w, r, t] = alone[w, r]
            out[1, w, r, t] = mixed[w, r]


@pytest.mark.parametrize("count", [16, 32])
def test_loops_change_places_if_registers_then_hold_what_is_added_up(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    given_registers(monkeypatch, count, 32)
    random, kernel = np.random.default_rng(0), cuda.jit(sixteen_sums)
    x, y = (random.integers(-3, 4, (6, n)).astype(np.float32) for n in (16, 32))
    out, (alone, mixed) = np.zeros((2, 4, 4, 32), np.float32), np.zeros((2, 4, 4, 32))
    kernel[1, 32](x, y, out)
    for e, w, r in itertools.product(range(6), range(4), range(4)):
        alone[w, r] += (x[e, 0] != 0) * x[e, 4 * w + r] * y[e]
        mixed[w, r] += x[e, 4 * w + r] * y[e] - mixed[r, w]
    np.testing.assert_array_equal(out, [alone, mixed])
    text = kernel.cpu_source()
    assert ("for w_2 in range(4):\n                for e in" in text) == (count == 16)
    assert "for e_2 in range(x.shape[0]):\n                for w_3 in" in text


@cuda.jit
def sixteen_sums_and_the_last_turn(x, out):
    sums, w = cuda.local.array(16, float32), 7
    for i in range(16):
        sums[i] = 0
    for e in range(x.shape[0]):
        for w in range(16):
            sums[w] += x[e, cuda.threadIdx.x]
    out[cuda.threadIdx.x] = w + sums[15]


def test_loops_stay_in_their_places_if_someone_asks_for_the_last_turn(few_registers: None) -> None:
    for rows, wanted in (0, 7), (3, 18):  # without rows, the inner loop does not begin
        out = np.zeros(32, np.float32)
        sixteen_sums_and_the_last_turn[1, 32](np.ones((rows, 32), np.float32), out)
        np.testing.assert_array_equal(out, np.full(32, wanted))


@cuda.jit
def products_by_fours(x, y, out):
    t, row = cuda.threadIdx.x, cuda.threadIdx.y
    sums = cuda.local.array((2, 4), float32)
    if t < 48:
        for half in range(2):
            for s in range(4):
                sums[half, s] = 0
        for half in range(2):
            for e in range(x.shape[0]):
                for s in range(4):
                    sums[half, s] += x[e, 8 * row + 4 * half + s] * y[e, t]
        for half in range(2):
            for s in range(4):
                out[8 * row + 4 * half + s, t] = sums[half, s]
    cuda.syncthreads()
    sums[0, 0] = 0
    if t < 32 - row:
        for e in range(x.shape[0]):
            sums[0, 0] += y[e, t]
        out[16 + row, t] = sums[0, 0]


def test_a_row_goes_through_in_pieces_whose_sums_fit_registers(few_registers: None) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(-9, 9, (5, 16)).astype(np.float32), random.integers(-9, 9, (5, 64))
    out = np.zeros((18, 64), np.float32)
    products_by_fours[1, (64, 2)](x, y.astype(np.float32), out)
    wanted = np.zeros((18, 64))
    wanted[:16, :48] = x.T @ y[:, :48]
    wanted[16, :32], wanted[17, :31] = y.sum(0)[:32], y.sum(0)[:31]
    np.testing.assert_array_equal(out, wanted)
    text = products_by_fours.cpu_source()
    # Registers have no index: the loop over them is unrolled.
    assert text.count("for s_2 in range(4):  # in registers") == 1
    # Of the eight sums of a thread four are added up at once: 96 numbers are those of 24 threads.
    assert "for piece in range(0, 48, 24):" in text
    assert text.count("for thread_x in range(piece, ") == 3
    assert "for piece_ in" not in text  # one sum of each of 32 threads fits as well
    assert text.count("for thread_x in range(min(BLOCK_X, 32 - thread_y)):") == 2


@cuda.jit
def stores_twice(keys, n, out):
    """The first store may be overwritten; the last is not the first's other half."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(64, uint64)
    if t < n:
        tile[t] = keys[0]
    tile[t] = 0
    cuda.syncthreads()
    out[0, t] = tile[63 - t]
    cuda.syncthreads()
    tile[t] = 1
    if t < n:
        tile[t] = keys[t]
    cuda.syncthreads()
    out[1, t] = tile[63 - t]


def test_stores_become_one_where_the_second_follows_and_lose_no_bit_of_a_number() -> None:
    keys, out = np.arange(2**63, 2**63 + 64, dtype=np.uint64), np.ones((2, 64), np.uint64)
    stores_twice[1, 64](keys, 40, out)
    assert "if always(t < n) else numba.uint64(1)" in stores_twice.cpu_source()
    assert not out[0].any()
    assert out[1, ::-1].tolist() == [*keys[:40].tolist(), *[1] * 24]


@cuda.jit
def fills_two_tiles(x, n, out):
    """Both are cleared before either is filled; a third is looked at in between."""
    t = cuda.threadIdx.x
    one = cuda.shared.array(64, float32)
    other = cuda.shared.array(64, float32)
    third = cuda.shared.array(64, float32)
    one[t] = float32(1)
    other[t] = float32(2)
    if t < n:
        one[t] = x[0, t]
    if t > n:
        other[t] = x[1, t]
    third[t] = float32(t)
    out[0, t] = one[t] + other[t] + third[t]
    if t < n:
        third[t] = x[1, t]
    out[1, t] = third[t]


@cuda.jit
def fills_what_moves(x, n, out):
    """What is stored first, or where, is another by the time of the second store."""
    t = cuda.threadIdx.x
    value = float32(t)
    one = cuda.shared.array(64, float32)
    other = cuda.shared.array(64, float32)
    one[t] = value
    value += float32(1)
    if t < n:
        one[t] = x[0, t]
    other[t] = out[1, t]
    out[1, t] = value
    if t < n:
        other[t] = x[1, t]
    out[0, t] = one[t] + other[t]
    same = cuda.shared.array(0, float32)
    again = cuda.shared.array(0, float32)
    same[t] = float32(6)
    again[t] = float32(7)
    if t < n:
        same[t] = float32(8)
    out[2, t] = same[t]


def test_two_tiles_are_filled_by_a_store_each_where_nothing_is_lost_by_it() -> None:
    x, out, n, t = np.random.default_rng(0).random((2, 64), np.float32), [], 40, np.arange(64)
    for kernel in fills_two_tiles, fills_what_moves:
        out.append(np.full((3, 64), 5, np.float32))
        kernel[1, 64, 0, 256](x, n, out[-1])
    filled = np.where(t < n, x[0], 1) + np.where(t > n, x[1], 2)
    assert np.array_equal(out[0][:2], [filled + t.astype(np.float32), np.where(t < n, x[1], t)])
    assert np.array_equal(out[1][:2], [np.where(t < n, x[0] + x[1], t + 5), t + 1])
    assert np.array_equal(out[1][2], np.where(t < n, 8, 7))
    loops = 2  # of the threads before n, and of the others
    assert fills_two_tiles.cpu_source().count(" else float32(") == 2 * loops
    assert " else " not in fills_what_moves.cpu_source()


@cuda.jit
def shares_tiles(a, b, out):
    """out (d, n, m) = d a (n, k) b (k, m), whole tiles of 16; a third of the block to a depth."""
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    column, row = cuda.blockIdx.x * 16 + x, cuda.blockIdx.y * 8 + y
    a_tile, b_tile = cuda.shared.array((8, 16), float32), cuda.shared.array((16, 16), float32)
    total, last = float32(0), float32(0)
    for start in range(0, a.shape[1], 16):
        if z == 0:
            a_tile[y, x] = a[row, start + x]
            b_tile[y, x] = b[start + y, column]
            b_tile[y + 8, x] = b[start + y + 8, column]
        cuda.syncthreads()
        for k in range(16):
            last = a_tile[y, k] * b_tile[k, x]
            total += (z + 1) * last
        cuda.syncthreads()
    out[z, row, column] = total + 0 * last


@cuda.jit
def sums_of_products(a, b, out):
    """out (n, m) = a (n, k) b (k, m), in blocks that may be larger."""
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        out[row, column] = total


def test_rows_of_threads_take_each_turn_of_a_sum_together(few_registers: None) -> None:
    """Twelve of 16 registers are for sums, and a row of these takes four: two rows do."""
    a, b = np.random.default_rng(0).integers(0, 9, (2, 48, 48)).astype(np.float32)
    out = np.zeros((3, 48, 48), np.float32)
    shares_tiles[(3, 6), (16, 8, 3)](a, b, out)
    np.testing.assert_array_equal(out, [depth * a @ b for depth in (1, 2, 3)])
    text = shares_tiles.cpu_source()
    assert "for row_ in range(0, BLOCK_Y, 2):" in text
    assert "for thread_y in range(row_, row_ + 2):" in text


@pytest.mark.parametrize("shape", [(32, 32), (20, 17), (1, 16), (0, 3)])
def test_a_short_row_has_a_text_without_its_guard_for_when_all_threads_pass(shape: Any) -> None:
    a, b = np.random.default_rng(0).integers(0, 9, (2, *shape)).astype(np.float32)
    out = np.full((shape[0] + 1, shape[0]), -1, np.float32)
    sums_of_products[(3, 3), (16, 16)](a, b.T, out[:-1])
    np.testing.assert_array_equal(out, [*(a @ b.T), np.full(shape[0], -1)])
    text = sums_of_products.cpu_source()
    whole, *_ = text.partition("else:")
    assert "<= out.shape[1] - block_x * BLOCK_X:" in whole
    assert "if active" not in whole and text.count("for k in") == 2


STEPS = 1, 2, 7, -1, -3


@cuda.jit
def goes(start, stop, step, seen):
    """For each step, and the last two rows: the numbers met, weighed by their turn; the last."""
    for row in range(seen.shape[0]):
        seen[row, 0], seen[row, 1] = 0, -99
    turn = 0
    for i in range(start, stop):
        seen[0, 0], seen[0, 1], turn = seen[0, 0] + (turn + 3) * i, i, turn + 1
    turn = 0
    for i in range(start, stop, 2):
        seen[1, 0], seen[1, 1], turn = seen[1, 0] + (turn + 3) * i, i, turn + 1
    turn = 0
    for i in range(start, stop, 7):
        seen[2, 0], seen[2, 1], turn = seen[2, 0] + (turn + 3) * i, i, turn + 1
    turn = 0
    for i in range(start, stop, -1):
        seen[3, 0], seen[3, 1], turn = seen[3, 0] + (turn + 3) * i, i, turn + 1
    turn = 0
    for i in range(start, stop, -3):
        seen[4, 0], seen[4, 1], turn = seen[4, 0] + (turn + 3) * i, i, turn + 1
    turn = 0
    for i in range(start, stop, step):
        seen[5, 0], seen[5, 1], turn = seen[5, 0] + (turn + 3) * i, i, turn + 1
    turn, last = 0, -99
    for i in range(int32(start), int32(stop)):  # and one that ends early, twice in a row
        last = i
        if i > 5:
            break
    for i in range(stop):
        if i == 2:
            continue
        turn += i + 1
    seen[6, 0], seen[6, 1] = turn, last


@given(st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([-5, -1, 1, 4]))
@example(3, 3, 1)
@example(0, 7, 4)
def test_a_range_goes_where_pythons_goes(start: int, stop: int, step: int) -> None:
    seen = np.full((7, 2), 77)
    goes[1, 1](start, stop, step, seen)
    for own, (total, last) in zip((*STEPS, step), seen.tolist(), strict=False):
        numbers = range(start, stop, own)
        assert total == sum((turn + 3) * i for turn, i in enumerate(numbers)), own
        assert last == (numbers[-1] if numbers else -99)
    met = [i for i in range(start, stop) if i <= 6 or i == start]
    assert seen[6].tolist() == [
        sum(i + 1 for i in range(stop) if i != 2),
        met[-1] if met else -99,
    ]


@cuda.jit
def picks(x, flags, i, j, out):
    """Elements by whole numbers of several kinds, from the end as well."""
    out[0] = x[i, j]
    out[1] = x[uint8(i), -1]
    out[2] = x[int32(i - 3), uint64(j)]
    out[-1] = x[-1, j - 4]
    flags[-i - 1] = x[i, j] > 5
    out[3] = 1 if flags[2 - i] else 0


@given(st.integers(0, 2), st.integers(0, 3), st.booleans())
def test_an_element_is_where_numpy_has_it(i: int, j: int, strided: bool) -> None:
    x = np.arange(12).reshape(3, 4)
    given, flags, out = x, np.zeros(3, bool), np.zeros(5, int)
    if strided:  # every other column, the rows from the last to the first
        given = np.repeat(x[::-1], 2, axis=1)[::-1, ::2]
    picks[1, 1](given, flags, i, j, out)
    assert flags.tolist() == [place == 2 - i and x[i, j] > 5 for place in range(3)]
    assert out.tolist() == [x[i, j], x[i, -1], x[i, j], x[i, j] > 5, x[-1, j - 4]]

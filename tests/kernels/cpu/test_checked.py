"""The checked mode finds every planted mistake, and names it."""

import math
import re
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import minitransformer_kernels as mk
from minitransformer_kernels import (
    DataRace,
    DivergentBarrier,
    EndlessLoop,
    FailedAssertion,
    OutOfBounds,
)
from minitransformer_kernels.cpu.watchers import checked_mode
from minitransformer_kernels.cuda import cuda

from .launches import sampled
from .oracle import Diverged
from .planted import PLANTED
from .test_corpus import expected_of
from .wrong import assert_readable

# What is said, once for each thing that can be.
SAID = {
    "mirrored_in_too_small_a_tile": "writes to shared array 'tile' at [32], which is outside its "
        "shape (32,). On a GPU that is another array's memory: guard the access with a condition",
    "exchanged_with_too_few_bytes": "'factors' at [16], which is outside. On a GPU that is another",
    "zeroed_one_row_too_low": "takes a part of global array 'a' at [32], which is outside its shape"
        " (32, 3). On a GPU that is another array's memory",
    "smoothed_beyond_the_left_edge": "reads global array 'x' at [-1], which is below zero: it "
        "counts from the end of the array, on a GPU too. Guard the access; where the end is meant",
    "transposed_by_tiles_from_the_padding": "which no thread of the block has written. What is "
        "there on a GPU is left over from something else: write to it first",
    "powers_of_three_of_four": "reads local array 'own' at [3], which it has not written",
    "mirrored_without_barrier": "writes to in line 4, and nothing orders the two. Put "
        "cuda.syncthreads() between them, or use cuda.atomic",
    "counted_with_plain_additions": "in the same line, and nothing orders the two. Let each thread "
        "write to an element of its own, or one thread alone, or use cuda.atomic",
    "running_sums_in_place": "in the same line, and nothing orders the two. Read into a variable, "
        "put cuda.syncthreads() after it, and then write, or use cuda.atomic",
    "sums_with_the_barrier_in_the_if": "in block (0, 0, 0), thread (0, 0, 0) waits at "
        "cuda.syncthreads(), which thread (32, 0, 0) never reaches. Every thread of a block must "
        "reach every barrier: move it out of the branch or the loop, and guard the work around it",
    "means_of_sums_that_others_still_add_to": "which thread (1, 0, 0) changes in line",
    "sums_of_all_blocks_in_one_place": "of block (0, 0, 0) writes to in line 13, and blocks run in "
        "any order. Let each block write to elements of its own, use cuda.atomic, or launch a",
}  # fmt: skip
wrong = pytest.mark.parametrize("name", sampled({name: name for name in PLANTED}, 8, *SAID))


def assert_found_and_named(name: str, checked: bool) -> None:
    mistake = PLANTED[name]
    with pytest.raises(mistake.error) as caught, mk.checked(checked):
        mistake.case.launch(*mistake.case.arguments())
    error = caught.value
    assert type(error) is mistake.error
    assert error.kernel == name
    assert error.file == mistake.edited.filename
    if mistake.error is DataRace:
        assert {error.line, error.other_line} == mistake.lines()
        assert len(error.threads) == 2
        assert re.search(f" in (the same line|line {error.other_line})[, ]", str(error))
    else:
        assert error.line in mistake.lines()
        assert len(mistake.lines()) <= (2 if mistake.error is DivergentBarrier else 1)
        assert error.other_line is None
    assert error.array in mistake.arrays if mistake.arrays else error.array is None
    assert mistake.index in (None, error.index)
    assert mistake.at in (None, error.block)
    assert mistake.thread is None or error.threads == (mistake.thread,)
    start = f"{error.file}:{error.line}: kernel {error.kernel!r}: "
    text = str(error).removeprefix(start)
    assert text != str(error)
    assert_readable(text)
    assert len(text.rstrip(".").split(". ")) <= 2
    assert SAID.get(name, "") in text
    for part in (error.array, error.index and list(error.index)):
        assert part is None or str(part) in text


@wrong
def test_mistake_is_found_and_named(name: str) -> None:
    assert_found_and_named(name, checked=True)


@pytest.mark.parametrize("name", [n for n, m in PLANTED.items() if m.error is DivergentBarrier])
def test_missed_barrier_is_an_error_unchecked_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "1")  # of more, any may be the first to err
    assert_found_and_named(name, checked=False)


def test_block_and_thread_are_named_in_all_dimensions() -> None:
    @cuda.jit
    def blocks_of_two_kinds(x, out):
        """Odd blocks meet, even blocks do not."""
        i = cuda.grid(2)
        if x[cuda.blockIdx.x, cuda.blockIdx.y] > 0:
            out[i] = cuda.syncthreads_count(1)
        if x[cuda.blockIdx.x, cuda.threadIdx.y] > 1:
            cuda.syncthreads()

    x = np.zeros((3, 4), np.float32)
    x[1, 2] = 1
    out = np.zeros((3 * 2, 4 * 3), np.int32)
    blocks_of_two_kinds[(3, 4), (2, 3)](x, out)
    assert out.sum() == 6 * 6
    assert (out[2:4, 6:9] == 6).all()
    x[2, 1] = 2
    with pytest.raises(DivergentBarrier) as caught:
        blocks_of_two_kinds[(3, 1), (2, 3)](x, out)
    assert caught.value.block == (2, 0, 0)
    assert caught.value.threads == ((0, 1, 0), (0, 0, 0))


@cuda.jit
def far_away(x, i, shift):
    x[0, 0, 0, 0, i] += cuda.threadIdx.x
    x[0, 0, 0, 0, i + shift] = 1


@pytest.mark.parametrize("i", [3000, -3000])
def test_an_element_is_named_by_all_of_its_indices(i: int) -> None:
    x = np.zeros((1, 1, 1, 1, 4000))
    with mk.checked(), pytest.raises(DataRace, match=r"at \[0, 0, 0, 0, 3000\]"):
        far_away[1, 4](x, 3000, 1)
    with mk.checked(), pytest.raises(OutOfBounds) as found:
        far_away[1, 1](x, 5, 2 * i - 5)
    assert found.value.index == (0, 0, 0, 0, 2 * i)


@cuda.jit
def largest_by_swaps(x, out):
    """The loop of CUDA's Programming Guide, of which any atomic can be made."""
    i = cuda.grid(1)
    old = out[0]
    done = False
    while not done:
        seen = old
        old = cuda.atomic.cas(out, 0, seen, max(seen, x[i]))
        done = old == seen


def test_what_is_compared_and_swapped_may_be_read_before() -> None:
    x, out = np.random.default_rng(0).permutation(64), np.zeros(1, np.int64)
    with mk.checked():
        largest_by_swaps[2, 32](x, out)
    assert out == [63]


@cuda.jit
def given_back(lock, out):
    out[cuda.threadIdx.x] = cuda.atomic.cas(lock, 0, 0, 1)
    lock[0] = cuda.threadIdx.x


@cuda.jit
def added_after_a_look(lock, out):
    old = lock[0]
    if cuda.threadIdx.x == 3:
        cuda.atomic.add(lock, 0, 1)
    out[cuda.threadIdx.x] = cuda.atomic.cas(lock, 0, old, 5)


@pytest.mark.parametrize("kernel", [given_back, added_after_a_look])
def test_a_swap_excuses_no_write_and_no_other_atomic(kernel: Any) -> None:
    with mk.checked(), pytest.raises(DataRace, match="'lock'"):
        kernel[1, 32](np.zeros(1, np.int64), np.zeros(32, np.int64))


@cuda.jit
def halved_nowhere(x, n):
    stride = -n
    while stride > 0:
        cuda.syncthreads()
    x[0] = stride


@cuda.jit
def counted_down_past_zero(x, n):
    left = n + cuda.threadIdx.x
    while left != 0:
        left -= 1
    x[0] = left


@cuda.jit
def left_out_of_all_but_some_turns(x, n):
    i = 0
    while i < 8:
        if x[i] > n:
            continue
        for _ in range(n, 4):
            cuda.syncthreads()
        i += 1
    x[0] = i


@cuda.jit
def turns_of_turns(x, n):
    stride = -n
    while stride > 0:
        j = cuda.threadIdx.x
        while j < 1000:
            j += 1
        for j in range(x[0], 50):
            stride += j
    x[0] = stride


FIRST = ((0, 0, 0),)


@pytest.mark.parametrize(
    ("kernel", "threads"),
    [
        (halved_nowhere, ()),
        (counted_down_past_zero, FIRST),
        (left_out_of_all_but_some_turns, ()),
        (turns_of_turns, FIRST),
    ],
)
def test_a_loop_that_does_not_end_is_told_at_the_first_launch(
    kernel: Any, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINITRANSFORMER_CHECK")
    x = np.zeros(1024)
    with pytest.raises(EndlessLoop, match="not come to the end of this loop after") as caught:
        kernel[1, 1024](x, -1)
    assert caught.value.threads == threads
    assert caught.value.line == kernel.py_func.__code__.co_firstlineno + 3
    assert_readable(str(caught.value))


@cuda.jit
def left_by_some(x, out):
    t = cuda.threadIdx.x
    assert x[t] < 60
    total = 0
    for k in range(t // 32 + 2):
        cuda.syncwarp()
        total += x[t + k]
        if total > 100:
            break
    cuda.syncthreads()
    out[t] = total


def test_loops_that_threads_leave_and_failures_before_a_barrier() -> None:
    x, out = np.arange(70) % 50, np.zeros(64, int)
    with mk.checked():
        left_by_some[1, 64](x, out)
        for t in range(64):
            total = 0
            for k in range(t // 32 + 2):
                total += x[t + k]
                if total > 100:
                    break
            assert out[t] == total
        x[9] = 60
        with pytest.raises(FailedAssertion, match=re.escape("thread (9, 0, 0) fails: `assert x[t")):
            left_by_some[1, 64](x, out)
        with pytest.raises(
            OutOfBounds, match=re.escape("thread (63, 0, 0) reads global array 'x'")
        ):
            left_by_some[1, 64](np.zeros(65, int), out)


@cuda.jit(device=True)
def root(x):
    assert x >= 0, "no root"
    return math.sqrt(x)


@cuda.jit(device=True)
def longer_side(x, y):
    side = max(root(x), root(y))
    assert side < 10
    return side


@cuda.jit
def longer_sides(x, y, out):
    t = cuda.grid(1)
    if t < x.shape[0]:
        out[t] = longer_side(x[t], y[t])


@pytest.mark.parametrize(
    ("wrong", "told"), [(-4.0, "`assert x >= 0, 'no root'`"), (144.0, "`assert side < 10`")]
)
def test_what_a_device_function_asserts_is_checked(wrong: float, told: str) -> None:
    x, y, out = np.arange(40.0), np.full(40, 9.0), np.zeros(40)
    with mk.checked():
        longer_sides[2, 32](x, y, out)
        np.testing.assert_array_equal(out, np.maximum(np.sqrt(x), 3))
        y[35] = wrong
        with pytest.raises(
            FailedAssertion, match=re.escape(f"(1, 0, 0), thread (3, 0, 0) fails: {told}")
        ) as caught:
            longer_sides[2, 32](x, y, out)
    function = (root if wrong < 0 else longer_side).function
    assert caught.value.line == function.__code__.co_firstlineno + 2 + (wrong > 0)
    out[:] = 0
    longer_sides[2, 32](x, y, out)  # nobody hears of it, and the other threads go on
    np.testing.assert_array_equal(np.delete(out, 35), np.maximum(np.sqrt(np.delete(x, 35)), 3))


@cuda.jit
def reads_while_others_write_the_next(x, out):
    row = cuda.shared.array(32, np.float64)
    t = cuda.threadIdx.x
    total = 0.0
    for turn in range(3):
        row[t] = x[turn, t]
        cuda.syncthreads()
        total += row[31 - t]
    out[t] = total


@cuda.jit
def reads_what_the_next_one_writes(x, out):
    t = cuda.threadIdx.x
    neighbour = out[(t + 1) % 32]
    out[t] = neighbour


@pytest.mark.parametrize(
    "kernel", [reads_while_others_write_the_next, reads_what_the_next_one_writes], ids=str
)
def test_a_write_after_a_read_is_a_race_even_of_what_is_there(kernel: Any) -> None:
    """A kernel is often tried on ones first, where each write leaves what was there."""
    with mk.checked(), pytest.raises(DataRace):
        kernel[1, 32](np.ones((3, 32)), np.ones(32))


@cuda.jit
def sums_without_barrier_in_the_last_block(x, out):
    parts = cuda.shared.array((4, 8), np.float64)
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    parts[row, column] = x[row, column]
    if row == 0 and cuda.blockIdx.x == 1:
        total = 0.0
        for other in range(4):
            total += parts[other, column]
        out[column] = total


def test_a_write_to_what_was_read_too_early_is_a_race_whatever_was_there() -> None:
    """The first block leaves just what the other's threads will write."""
    x, out = np.random.default_rng(0).normal(size=(4, 8)), np.zeros(8)
    with pytest.raises(DataRace, match="'parts' at"), mk.checked():
        sums_without_barrier_in_the_last_block[2, (8, 4)](x, out)


def test_as_many_turns_as_a_loop_needs_are_no_mistake() -> None:
    x = np.zeros(4)
    with mk.checked():
        counted_down_past_zero[64, 2](x, 1 << 22)  # each block has all the turns
    assert x[0] == 0


def test_kernels_with_tests_of_their_own_can_be_left_out() -> None:
    def shifted(x):
        x[cuda.threadIdx.x] = x[cuda.threadIdx.x + 1]

    theirs = cuda.jit(shifted)
    shifted.__module__ = "minitransformer_kernels.softmax"
    ours = cuda.jit(shifted)
    with mk.checked(tested=False):
        ours[1, 32](np.arange(33))
        with pytest.raises(DataRace):
            theirs[1, 32](np.arange(33))
    with mk.checked(), pytest.raises(DataRace):
        ours[1, 32](np.arange(33))


def test_an_array_that_is_given_twice() -> None:
    @cuda.jit
    def mirrored(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[x.size - 1 - i]

    x = np.arange(1000)
    with mk.checked():
        mirrored[4, 256](x, np.zeros(1000))
        with pytest.raises(DataRace, match="array 'x'"):
            mirrored[4, 256](x, x)


def test_an_array_that_overlaps_itself() -> None:
    @cuda.jit
    def numbered(x):
        t = cuda.threadIdx.x
        x[t, 0] = t
        x[t, 2] = -t

    memory = np.zeros(12, np.float32)
    apart, windows, one = (as_strided(memory, (3, 3), s) for s in ((12, 4), (8, 4), (0, 4)))
    with mk.checked():
        numbered[1, 3](apart)
        for overlapping in windows, one:
            with pytest.raises(DataRace, match="writes to in"):
                numbered[1, 3](overlapping)


def test_the_argument_of_a_view_is_named() -> None:
    @cuda.jit
    def of_rows(x, k, out):
        t = cuda.threadIdx.x
        row = x[t]
        out[t] = row[k]

    of_view = r"array 'row' at \[4\], which is outside this view of 'x'\. On a GPU"
    with mk.checked(), pytest.raises(OutOfBounds, match=of_view):
        of_rows[1, 8](np.ones((8, 4)), 4, np.zeros(8))


def test_a_race_between_blocks_with_fences_may_be_none() -> None:
    @cuda.jit
    def in_turns(count, turn):
        while cuda.atomic.cas(turn, 0, 0, 1) != 0:
            pass
        count[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(turn, 0, 0)

    with mk.checked(), pytest.raises(DataRace, match=r"cuda.threadfence\(\) orders is not known"):
        in_turns[4, 1](np.zeros(1), np.zeros(1, np.int32))


def test_arrays_that_overlap() -> None:
    """A race between elements of two arrays, and none between their neighbours."""

    @cuda.jit
    def shifted(x, y):
        t = cuda.threadIdx.x
        x[t] = t
        y[t] = t

    @cuda.jit
    def copied(x, y):
        t = cuda.threadIdx.x
        x[t] = y[t]

    memory = np.zeros((2, 40), np.float32)
    for kernel in (shifted, copied):
        for race, x, y in (
            (False, memory[0, ::2], memory[0, 1::2]),
            (False, memory[0], memory[1]),
            (True, memory[0], memory[0, 1:]),
            (True, memory[0, ::2], memory[0, 4::2]),
            (True, memory[0, 15::-1], memory[0]),
            (True, memory.T[:20, 1], memory.T[1:, 1]),
        ):
            memory[:] = np.random.default_rng(0).random(memory.shape)
            with mk.checked():
                if race:
                    with pytest.raises(DataRace, match=r"global array '[xy]'"):
                        kernel[1, 16](x, y)
                else:
                    kernel[1, 16](x, y)


def test_arrays_of_a_tuple_that_are_written() -> None:
    @cuda.jit
    def both(x, y):
        for a in (x, y):
            a[cuda.threadIdx.x + 1] = 1

    @cuda.jit
    def either(x, y):
        t = cuda.threadIdx.x
        (x, y)[t % 2][t + 1] = 1

    for kernel, wanted in ((both, [[0, 1, 1, 1]] * 2), (either, [[0, 1, 0, 1], [0, 0, 1, 0]])):
        x, y = np.zeros(4), np.zeros(4)
        with mk.checked():
            kernel[1, 3](x, y)
            assert [x.tolist(), y.tolist()] == wanted
            with pytest.raises(OutOfBounds, match=r"at \[4\]"):
                kernel[1, 4](x, y)


@pytest.mark.parametrize("checked", [False, True])
def test_arrays_in_records_are_copied(checked: bool) -> None:
    record = np.dtype([("n", np.int16), ("cells", np.float32, (3, 2))], align=True)

    @cuda.jit
    def copied(records, others, last):
        t = cuda.threadIdx.x
        records[t].cells = others[1 - t].cells
        if t == 0:
            records[2]["cells"] = last

    records, others = np.zeros(3, record), np.zeros(2, record)
    others["cells"] = np.arange(12).reshape(2, 3, 2)
    with mk.checked(checked):
        copied[1, 2](records, others, others["cells"][0].copy())
    np.testing.assert_array_equal(records["cells"], others["cells"][[1, 0, 0]])


@pytest.mark.parametrize("checked", [False, True])
def test_an_atomic_in_an_index_happens_once(checked: bool) -> None:
    """Though a number that is added to is read and written, and a record is written in parts."""
    record = np.dtype([("a", np.int32), ("b", np.float64)])

    @cuda.jit
    def appended(numbers, rows, records, source, count):
        t = cuda.threadIdx.x
        numbers[cuda.atomic.add(count, 0, 1)] += 1 + count[0] // 100
        rows[cuda.atomic.add(count, 1, 1)] = 1
        records[cuda.atomic.add(count, 2, 1)] = source[t]
        records[cuda.atomic.add(count, 3, 1)].a += 1

    numbers, rows, records = np.zeros(8), np.zeros((8, 2)), np.zeros(8, record)
    count = np.zeros(4, np.int64)
    with mk.checked(checked):
        appended[1, 1](numbers, rows, records, np.ones(4, record), count)
        appended[1, 1](numbers, rows, records, np.ones(4, record), count)
    assert count.tolist() == [2, 2, 2, 2]
    assert numbers.tolist() == rows[:, 1].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert records[:3].tolist() == [(2, 1.0), (2, 1.0), (0, 0.0)]


@pytest.mark.parametrize("checked", [False, True])
def test_a_shape_has_no_axis_beyond_its_last(checked: bool) -> None:
    @cuda.jit
    def axes(x):
        x[0] = x.shape[-cuda.threadIdx.x]

    with mk.checked(checked):
        axes[1, 1](np.zeros(3))
        with pytest.raises(mk.KernelError, match="kernel 'axes': tuple index out of range: some i"):
            axes[1, 3](np.zeros(3))


@pytest.mark.parametrize("checked", [False, True])
def test_arrays_without_dimensions_hold_records_and_indices(checked: bool) -> None:
    @cuda.jit
    def picks(out, records, i):
        out[()] = records[i]
        mass = out.mass
        mass[()] += records["mass"][i] + out["kind"][()]
        out[()]["kind"] += 1

    kind = np.dtype([("kind", np.int8), ("mass", np.float64)], align=True)
    records = np.array([(1, 0.5), (2, 43.5)], kind)
    out = np.zeros((), records.dtype)
    with mk.checked(checked):
        picks[1, 1](out, records, np.array(1))
    assert out[()].item() == (3, 89.0)
    with mk.checked(), pytest.raises(OutOfBounds, match=r"'records' at \[2\]"):
        picks[1, 1](out, records, np.array(2))


@pytest.mark.parametrize("meet", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_a_device_function_may_return_none(checked: bool, meet: bool) -> None:
    @cuda.jit(device=True)
    def positive(n):
        if meet:
            cuda.syncthreads()
        if n > 0:
            return n
        if n < 0:
            return

    @cuda.jit
    def kernel(x):
        found = positive(x[0])
        x[0] = 99 if found is None else found

    with mk.checked(checked):
        for number, wanted in ((-4, 99), (0, 99), (7, 7)):
            x = np.array([number])
            kernel[1, 1](x)
            assert x.tolist() == [wanted]


@pytest.mark.parametrize("checked", [False, True])
def test_what_is_no_array_is_said_before_the_launch(checked: bool) -> None:
    @cuda.jit
    def writes(x):
        x[0] = 1

    with mk.checked(checked), pytest.raises(mk.KernelError, match="a int64 is assigned to"):
        writes[1, 1](3)
    with mk.checked(checked), pytest.raises(mk.KernelError, match="argument 'x' is a object"):
        writes[1, 1](object())


def test_threads_that_launch_at_once_share_the_memory_of_earlier_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Emptied(list[np.ndarray]):
        """Another thread takes the last as soon as this one has looked."""

        def __bool__(self) -> bool:
            return True

    @cuda.jit
    def writes(x):
        x[cuda.grid(1)] = 1

    monkeypatch.setattr(checked_mode, "_spare", Emptied())
    with mk.checked():
        writes[1, 4](np.zeros(4))


SEEN_BY_THE_ORACLE = {DivergentBarrier: Diverged, OutOfBounds: IndexError}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, mistake in PLANTED.items()
        if mistake.error in SEEN_BY_THE_ORACLE and min(mistake.index or (0,)) >= 0
    ],
)
def test_the_oracle_finds_the_mistake_where_it_looks_for_its_kind(name: str) -> None:
    mistake = PLANTED[name]
    with pytest.raises(SEEN_BY_THE_ORACLE[mistake.error]):
        expected_of(mistake.case)

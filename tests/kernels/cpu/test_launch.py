"""Launches on the CPU: read-only and shared memory, threads, forks."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import float64, int32, uint32

from minitransformer_kernels.cpu import KernelError, compiler, num_threads
from minitransformer_kernels.cpu import launch as launching
from minitransformer_kernels.cuda import cuda

from .test_corpus import CASES, assert_same, expected_of

ROOT = Path(__file__).parents[3]


def test_emitted_source_is_a_file_that_tracebacks_find(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path))

    @cuda.jit
    def halves(x):
        x[cuda.grid(1)] /= 2

    halves[2, 3](np.ones(6))
    (file,) = tmp_path.glob("halves_*.py")
    assert file.read_text().startswith(halves.cpu_source())  # and the digest follows
    assert halves.cpu_source().startswith('"""Kernel \'halves\' for the CPU')


@cuda.jit
def shifts(x, out):
    t = cuda.threadIdx.x
    if t < out.size:
        out[t] = x[t]


# Arguments ----------------------------------------------------------------------------------------


@cuda.jit
def neighbours(x, out):
    """Each element plus the first, from a uniform read and a varying one."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + x[0]


@cuda.jit(device=True)
def load(array: Any, i: Any) -> Any:
    return array[i]


@cuda.jit
def loads(x, out):
    """Read through a device function."""
    i = cuda.grid(1)
    out[i] = load(x, i)


@pytest.mark.parametrize("kernel", [neighbours, loads])
def test_read_only_arrays_can_be_read(kernel: Any) -> None:
    x, out = np.arange(4.0), np.zeros(4)
    kernel[1, 4](x, out)
    frozen, again = x.copy(), np.zeros(4)
    frozen.setflags(write=False)
    kernel[1, 4](frozen, again)
    np.testing.assert_array_equal(again, out)


def test_read_only_array_is_not_written_to() -> None:
    @cuda.jit(device=True)
    def store(array, value):
        row = array
        row[0] = value

    @cuda.jit
    def stores(x, out):
        store(out, x[0])

    out = np.frombuffer(bytes(32), np.float64)
    for kernel in neighbours, stores:
        with pytest.raises(KernelError, match="writes to argument 'out', but that array is read-"):
            kernel[1, 4](np.ones(4), out)
    assert not out.any()


def test_one_array_as_two_arguments() -> None:
    @cuda.jit
    def running_sum(x, out):
        for i in range(1, x.size):
            value = x[i - 1]
            out[i] += value
            out[0] += 0 * x[0]

    apart, together = np.ones(5), np.ones(5)
    running_sum[1, 1](np.ones(5), apart)
    running_sum[1, 1](together, together)
    assert apart.tolist() == [1, 2, 2, 2, 2]
    assert together.tolist() == [1, 2, 3, 4, 5]


def test_one_array_for_too_many_arguments() -> None:
    x = np.ones(4)
    with pytest.raises(KernelError, match=r"'neighbours' takes 2 arguments \(x, out\), got 3"):
        neighbours[1, 4](x, x, x)


def test_each_dtype_and_block_shape_is_compiled_for_itself() -> None:
    @cuda.jit
    def places(out):
        out[cuda.threadIdx.y, cuda.threadIdx.x] = 10 * cuda.threadIdx.y + cuda.threadIdx.x

    for block in (8, 1), (2, 3), (8, 4), (1, 5):
        for dtype in np.float64, np.int32:
            out = np.zeros(block[::-1], dtype)
            places[1, block](out)
            np.testing.assert_array_equal(
                out, np.add.outer(10 * np.arange(block[1]), np.arange(block[0]))
            )


def test_a_lone_thread_that_cuts_a_number_keeps_off_its_neighbour() -> None:
    """LLVM 22 stores all the number's bits where it knows that one lane of a mask stores."""

    @cuda.jit
    def lone(large, out):
        t = cuda.threadIdx.x
        number = int32(t)
        if cuda.popc(uint32(t)) > 2:  # of the first eight threads, only the last
            number = int32(number * 31 + large)
            _ = cuda.activemask()  # a warp operation: now memory holds the numbers
        out[t] = number

    out = np.empty(40, np.int64)
    lone[1, 40](5 << 32, out)
    chosen = np.array([t.bit_count() > 2 for t in range(40)])
    np.testing.assert_array_equal(out, np.where(chosen, 31, 1) * np.arange(40))


def test_threads_that_part_take_the_slice_that_is_theirs() -> None:
    """LLVM 22 asks the first of four threads where a slice begins, even if it takes none."""

    @cuda.jit
    def halves(x, limits, out):
        t, block = cuda.threadIdx.x, cuda.blockIdx.x
        g = block * 7 + t
        tile = cuda.shared.array(7, float64)
        tile[t] = x[g]
        cuda.syncthreads()
        tile[t] = (tile[t] - x[block * 7 :][t]) * 0.5 if 0 < block <= limits[g] else x[g] * 0.5
        cuda.syncthreads()
        out[g] = tile[(t + 1) % 7]

    x, out = np.arange(1.0, 22), np.zeros(21)
    limits = np.array([[9, 9, 9, 9, 9, 9, 9], [0, 2, 2, 0, 2, 0, 2], [1, 4, 8, 3, 3, 8, 3]])
    halves[3, 7](x, limits.ravel(), out)
    block = np.arange(3)[:, None]
    wanted = np.where((block > 0) & (block <= limits), 0, x.reshape(3, 7) / 2)
    np.testing.assert_array_equal(out.reshape(3, 7), np.roll(wanted, -1, axis=1))


def test_slices_begin_and_end_as_in_python() -> None:
    @cuda.jit
    def sliced(x, out, begin, end, step):
        part = x[begin:end:step]
        out[4] = len(part)
        for i in range(len(part)):
            out[i] = part[i]

    ends, steps = (-9, -4, -1, 0, 1, 3, 4, 7), (-2, -1, 1, 3)
    for size, begin, end, step in itertools.product((0, 1, 4), ends, ends, steps):
        x, out = np.arange(1.0, size + 1), np.zeros(5)
        sliced[1, 1](x, out, begin, end, step)
        wanted = x[begin:end:step]
        assert out[4] == len(wanted)
        np.testing.assert_array_equal(out[: len(wanted)], wanted)


GUARDED = """
import ctypes, mmap
import numpy as np
from tests.kernels.cpu import adversaries
from tests.kernels.cpu.test_launch import neighbours

memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0)

def at_the_edge(values):
    array = np.frombuffer(memory, np.int64, len(values), mmap.PAGESIZE - 8 * len(values))
    array[:] = values
    return array

adversaries.guarded_bounds[600, 4](at_the_edge([2, 3]), np.zeros(12))
tiles = adversaries.tiles_through_a_table
tiles[1, 4](np.zeros(40), at_the_edge([1] * 16), np.zeros((4, 5)), np.zeros(4), 16)
neighbours[1, 4](at_the_edge([]), np.zeros(0))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
def test_nothing_is_read_beyond_the_end_of_an_array() -> None:
    """The arrays end where memory that cannot be read begins."""
    subprocess.run([sys.executable, "-c", GUARDED], cwd=ROOT, check=True)


# Threads ------------------------------------------------------------------------------------------


def launch(name: str) -> tuple[Any, ...]:
    """The arguments of a case after its launch."""
    arguments = CASES[name].arguments()
    CASES[name].launch(*arguments)
    return arguments


@pytest.mark.parametrize("name", ["tiled-(3,4)-(3,3)", "softmax_rows-4-8", "histogram-3-32"])
def test_number_of_threads_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", threads)
        results.append(launch(name))
    for again in results[1:]:
        for ours, theirs in zip(again, results[0], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ""])
def test_number_of_threads_must_be_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", value)
    message = f"MINITRANSFORMER_NUM_THREADS must be a whole number from 1 up, got {value!r}"
    with pytest.raises(ValueError, match=message):
        num_threads()


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITRANSFORMER_NUM_THREADS", raising=False)
    assert 1 <= num_threads() <= (os.cpu_count() or 1)
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "5")
    assert num_threads() == 5


def test_little_work_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose blocks have little to do runs in the caller alone, from the third launch."""
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "2")
    shared, run = [], launching.pool.run
    monkeypatch.setattr(
        launching.pool, "run", lambda *arguments: shared.append(arguments) or run(*arguments)
    )

    @cuda.jit(checked=False)
    def counts(x, n):
        i = cuda.grid(1)
        for k in range(n):
            x[i] = x[i] * np.float32(0.5) + k

    x = np.zeros(8, np.float32)
    counts[4, 2](x, 1)
    assert len(shared) == 1
    for _ in range(20):  # one of these may have had to wait for the processor
        counts[4, 2](x, 1)
    assert len(shared) < 20
    counts[4, 2](x, 3_000_000)  # nobody knew
    before = len(shared)
    counts[4, 2](x, 3_000_000)
    assert len(shared) == before + 1


def test_waiting_for_help_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two threads took for little work is mostly the second's way here: the next is alone."""
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "2")
    began, shared = itertools.count(), []
    walls = iter([1.0, launching.LATE + 0.4 * launching.LITTLE, 0.4 * launching.LITTLE, 1.0])
    monkeypatch.setattr(
        launching, "perf_counter", lambda: 0.0 if next(began) % 2 == 0 else next(walls)
    )
    monkeypatch.setattr(launching.pool, "run", lambda *arguments: shared.append(arguments))

    @cuda.jit(checked=False)
    def ones(x):
        x[cuda.grid(1)] = 1

    x = np.zeros(8)
    for already_shared in 1, 2, 2:
        ones[4, 2](x)
        assert len(shared) == already_shared
    assert x.sum() == 8
    ones[100, 2](x)
    # Of blocks that take a tenth of LITTLE each, seven are three quarters of it, which is GRAIN.
    assert [least for *_, least in shared] == [0, 0, 7]


def test_what_overlaps_is_seen() -> None:
    """Views of one array, of a buffer, of an object that is no array; but not of different ones."""
    kernel = shifts.on_cpu
    x = np.zeros(8)
    other = memoryview(x)
    for out, source in (
        (x, x),
        (x[1:], x[:-1]),
        (x, np.frombuffer(other)),
        (np.asarray(other), np.asarray(other)),
    ):
        assert not kernel._apart((source, out))
    assert kernel._apart((np.zeros(8)[::2], np.zeros(8)[:4]))
    assert kernel._apart((x, np.zeros(8)))
    x.flags.writeable = False
    assert kernel._apart((x, np.zeros(8)))
    assert not kernel._apart((np.zeros(8), x))


def test_arrays_that_are_not_aligned() -> None:
    raw = np.zeros(8 * 9 + 1, np.uint8)
    x = raw[1:].view(np.float64)
    x[:] = np.arange(9)
    for source in (np.arange(9.0), x, np.arange(9.0)):
        out = np.zeros(8)
        shifts[1, 8](source[:8], out)
        assert out.tolist() == list(range(8))


def test_many_threads_launch_at_once() -> None:
    @cuda.jit
    def counts(x, n):
        i = cuda.grid(1)
        for k in range(n):
            x[i] += k

    start = threading.Barrier(8)

    def work(n: int) -> np.ndarray:
        x = np.zeros(400, np.float32 if n % 2 else np.float64)
        start.wait()
        for _ in range(20):
            counts[100, 4](x, n)
        return x

    with ThreadPoolExecutor(8) as pool:
        for n, x in enumerate(pool.map(work, range(8))):
            np.testing.assert_array_equal(x, 20 * sum(range(n)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_fork_after_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "3")
    launch("softmax_rows-4-8")
    child = os.fork()
    if not child:
        status = 1
        try:
            launch("softmax_rows-4-8")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_error_in_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "2")
    from minitransformer_kernels.cpu.runtime import pool

    seen: list[tuple[int, int]] = []

    def fails(only_in_caller: bool) -> Callable[[int, int], None]:
        main = threading.get_ident()
        busy = threading.Event()

        def blocks(first: int, last: int) -> None:
            seen.append((first, last))
            here = threading.get_ident() == main
            if here == only_in_caller:
                busy.set()
                raise RuntimeError("broken")
            busy.wait(10)

        return blocks

    for only_in_caller in (True, False):
        with pytest.raises(RuntimeError, match="broken"):
            pool.run(fails(only_in_caller), 64)
    pool.run(lambda first, last: seen.append((first, last)), 5)
    assert sorted(seen[-5:]) == [(k, k + 1) for k in range(5)]
    pool.run(lambda first, last: seen.append((first, last)), 5, least=2)
    assert sorted(seen[-3:]) == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads have no core to choose",
)
def test_other_threads_keep_off_the_callers_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "2")
    from minitransformer_kernels.cpu.runtime import pool

    before = os.sched_getaffinity(0)
    main, both = threading.get_ident(), threading.Barrier(2, timeout=30)
    cores = []

    def blocks(first: int, last: int) -> None:
        both.wait()  # none does all the work
        if threading.get_ident() != main:
            cores.append(os.sched_getaffinity(0))

    try:
        for core in sorted(before)[:2]:
            os.sched_setaffinity(0, {core})  # the caller goes there, and may be anywhere again
            os.sched_setaffinity(0, before)
            pool.run(blocks, 2)
            assert cores[-1] == before - {pool._kept_free}

        def refused(*arguments: object) -> None:
            raise OSError

        with monkeypatch.context() as patch:
            patch.setattr(os, "sched_setaffinity", refused)
            patch.setattr(pool, "_kept_free", -1)
            pool.run(blocks, 2)
        assert len(cores) == 3
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("name", ["compute_live_map", "_resolve_user_function_type"])
def test_quicker_parts_answer_as_numbas(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are asked several times, for kernels whose loops meet at barriers."""
    [(owner, _, ours)] = [x for x in compiler.IN_PLACE_OF_NUMBAS if x[1] == name]
    numbas_own, compared = getattr(owner, name), []

    def both(*arguments: Any) -> Any:
        found = ours(*arguments)
        compared.append(found == numbas_own(*arguments))
        return found

    monkeypatch.setattr(compiler, "IN_PLACE_OF_NUMBAS", [(owner, name, both)])
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path))

    for case in CASES["softmax_rows-4-8"], CASES["bitonic_sort-2-16"]:
        found = case.arguments()
        cuda.jit(case.kernel.function)[case.grid, case.block](*found)
        assert_same(found, expected_of(case))
    assert len(compared) > 3 and all(compared)
    assert getattr(owner, name) is numbas_own


def test_what_numba_tells_debuggers_changes_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DEBUGINFO_DEFAULT", 1)

    @cuda.jit
    def negated_for_a_debugger(x):
        i = cuda.grid(1)
        x[i] = -x[i]

    x = np.arange(4, dtype=np.float32)
    negated_for_a_debugger[2, 2](x)
    assert x.tolist() == [0, -1, -2, -3]

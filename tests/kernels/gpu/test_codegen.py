"""What Numba's code for GPUs looks like once NVIDIA's compiler knows what it should know."""

import re

import pytest
from numba import float32, int64

from minitransformer_kernels.cuda import cuda

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu import assembler


def ptx(kernel, *types):
    return assembler.ptx(kernel, types, (8, 0))


@cuda.jit
def products(q, k, s):
    """Two products of rows, as attention makes them."""
    q_tile = cuda.shared.array((64, 33), float32)
    k_tile = cuda.shared.array((8, 64), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    for e in range(y, 64, 4):
        q_tile[e, x] = q[cuda.blockIdx.x, e, x]
        k_tile[y, e] = k[y, e]
        k_tile[y + 4, e] = k[y + 4, e]
    cuda.syncthreads()
    first, second = float32(0), float32(0)
    for e in range(64):
        first += q_tile[e, x] * k_tile[2 * y, e]
        second += q_tile[e, x] * k_tile[2 * y + 1, e]
    s[2 * y, x], s[2 * y + 1, x] = first, second


def test_neighbours_in_shared_memory_are_read_together():
    text = ptx(products, float32[:, :, ::1], float32[:, ::1], float32[:, ::1])
    assert text.count("ld.shared.v4.f32") >= 2


def test_the_index_of_a_thread_is_not_negative():
    text = ptx(products, float32[:, :, ::1], float32[:, ::1], float32[:, ::1])
    assert "bar.sync" in text
    assert not re.search(r"setp\.[lg][te]\.s\d\d[^;]*, (0|-1);", text)
    assert "-9223372036854775808" not in text  # the sign of an index


@pytest.mark.parametrize(
    "numbers",
    [range(0), range(5), range(3, 3), range(2, 9, 3), range(7, -5, -3), range(-4, 1), range(5, 0)],
    ids=str,
)
def test_loops_go_over_their_range(numbers):
    """Ranges are constants here, so the compiler computes what the loop does, and its value."""
    start, stop, step = numbers.start, numbers.stop, numbers.step

    @cuda.jit
    def walk(result):
        total = 1
        for i in range(start, stop, step):
            for j in range(2):
                total = 3 * total + i + j
        result[0] = total

    expected = 1
    for i in numbers:
        for j in range(2):
            expected = 3 * expected + i + j
    stored = re.search(r"st\.global\.u64\s+\[%\w+\], (%\w+)", text := ptx(walk, int64[::1]))
    assert re.search(rf"mov\.u64\s+{stored[1]}, {expected};", text)


def test_of_three_numbers_no_fourth_is_read():
    """NVVM reads four where three begin at a multiple of 16; the fourth is behind the array."""

    @cuda.jit
    def total(x):
        tile = cuda.shared.array(3, float32)
        tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = tile[0] + tile[1] + tile[2]

    assert "ld.shared.v4" not in ptx(total, float32[::1])


def test_an_array_that_asks_for_an_alignment_gets_it():
    @cuda.jit
    def reverse(x):
        tile = cuda.shared.array(32, float32, 128)
        tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = tile[31 - cuda.threadIdx.x]

    assert ".shared .align 128" in ptx(reverse, float32[::1])

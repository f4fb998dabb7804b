"""What the compiler made of a kernel, as it is told to a learner."""

import re

import numpy as np
import pytest

from minitransformer_kernels import KernelError
from minitransformer_kernels.cpu.assembly import loops
from minitransformer_kernels.cpu.compiler import VECTOR_BITS, vector_bits
from minitransformer_kernels.cuda import cuda

LISTING = """\
\tmovq\t%rdi, 112(%rsp)
.LBB0_1:
\tvmovups\t(%rax), %ymm1
.LBB0_2:
\tvmovups\t(%rax,%rcx,4), %zmm0
\tvfmadd231ps\t(%rdx,%rcx,4), %zmm1, %zmm0
\tvgatherdps\t(%rdx,%zmm3,4), %zmm2 {%k1}
\tvmovups\t%zmm0, -64(%rsp)
\tvmovups\t%zmm0, 64(%rsp,%rcx,4)
\tjne\t.LBB0_2
\tjmp\t.LBB0_1
"""


def test_the_innermost_loop_is_counted() -> None:
    (found,) = loops(LISTING.splitlines())
    assert found == (6, 512, 1, 1, 1)
    assert str(found) == (
        "6 instructions, vectors of 512 bits, 1 fused multiply-adds, 1 gathers, "
        "1 numbers without a register"
    )


def test_a_kernel_tells_how_wide_its_vectors_are() -> None:
    @cuda.jit
    def sums(x, y, out):
        t = cuda.threadIdx.x
        total = x[0]
        for i in range(x.size):
            total += x[i] * y[i, t]
        out[t] = total

    with pytest.raises(KernelError, match="has not run on the CPU yet"):
        sums.cpu_assembly()
    x, out = np.ones(40, np.float32), np.zeros(64, np.float32)
    for _ in range(2):  # compiled, then from the cache
        sums[1, 64](x, np.ones((40, 64), np.float32), out)
    assert out.tolist() == [41.0] * 64
    text = sums.cpu_assembly()
    head = re.match(
        r"# sums: \d+ lines\n# its loop with most arithmetic: .*bits, (\d+) fused", text
    )
    assert head and int(head[1]) > 0, text[:300]
    if VECTOR_BITS:
        assert f"vectors of {VECTOR_BITS} bits" in head[0]


def test_wide_vectors_are_for_processors_that_keep_their_clock() -> None:
    assert vector_bits("+avx512f,+avx512vl,+avx512vbmi2") == 512  # Ice Lake
    assert vector_bits("+avx512f,+avx512vl,-avx512vbmi2") is None  # Skylake
    assert vector_bits("+avx2,+fma") is None
    assert vector_bits("") is None


@cuda.jit
def sums_of_warps(x, out):
    i = cuda.grid(1)
    value, offset = x[i], 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    out[i] = value


def test_what_lanes_send_each_other_is_neither_gathered_nor_copied_by_a_call() -> None:
    x, out = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    sums_of_warps[2, 256](x, out)
    np.testing.assert_array_equal(out[::32], x.reshape(16, 32).sum(1))
    text = sums_of_warps.cpu_assembly()
    assert "vgather" not in text
    assert "memcpy" not in text

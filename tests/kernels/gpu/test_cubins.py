"""What a kernel needs on real GPUs, on a machine without one: it is seen in what is compiled."""

import pytest
from numba import float32, int64

from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.gpu import cubins, sass

if not (cubins.available() and sass.available()):
    pytest.skip("needs the extra gate", allow_module_level=True)


def toy(kernel, *types):
    """What a kernel of this test needs on Ampere."""
    return cubins.needs(kernel, types, (8, 0))


def accesses(kernel, *types, architecture=(8, 0)):
    """How many accesses to local memory the kernel has in loops."""
    return sass.local_accesses(cubins.build(kernel, types, architecture)[0])


def test_a_float64_constant_is_seen():
    @cuda.jit
    def shrink(x):
        x[cuda.threadIdx.x] *= 0.1

    assert toy(shrink, float32[::1]).float64 > 0


def test_too_few_registers_are_seen():
    @cuda.jit(max_registers=24)
    def hoard(x, y):
        kept = cuda.local.array(64, float32)
        for i in range(64):
            kept[i] = x[i]
        cuda.syncthreads()
        for i in range(64):
            y[i] = kept[63 - i] * kept[i]

    needs = toy(hoard, float32[::1], float32[::1])
    assert needs.registers <= 24
    assert needs.spills > 0


def test_shared_and_local_memory_are_seen():
    @cuda.jit
    def gather(x, index):
        shared = cuda.shared.array(256, float32)
        local = cuda.local.array(100, float32)
        for i in range(100):
            local[index[i]] = x[i]
        shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = shared[index[0]] + local[index[1]]

    needs = toy(gather, float32[::1], int64[::1])
    assert needs.shared == 1024
    assert needs.local >= 400


@pytest.mark.parametrize("architecture", cubins.ARCHITECTURES, ids=str)
def test_local_memory_in_an_innermost_loop(architecture):
    @cuda.jit
    def scatter(x, index):
        local = cuda.local.array(100, float32)
        for i in range(x.size):
            local[index[i]] = x[i]
        x[0] = local[index[0]]

    found = accesses(scatter, float32[::1], int64[::1], architecture=architecture)
    assert found.loops == found.innermost > 0


def test_local_memory_in_an_outer_loop():
    @cuda.jit
    def totals(x, index):
        local = cuda.local.array(100, float32)
        for i in range(x.shape[0]):
            total, j = float32(0), 0
            while True:  # at least once: else the compiler makes a second loop, with none inside
                total = max(total * x[i, j], x[i, j])
                j += 1
                if j >= x.shape[1]:
                    break
            local[index[i]] = total
        x[0, 0] = local[index[0]]

    found = accesses(totals, float32[:, ::1], int64[::1])
    assert found.loops > 0
    assert found.innermost == 0


def test_local_memory_outside_loops():
    @cuda.jit
    def choose(x, index):
        local = cuda.local.array(3, float32)
        local[index[0]] = x[0]
        local[index[1]] = x[1]
        total = float32(0)
        for i in range(x.size):
            total += x[i]
        x[0] = local[index[2]] + total

    assert toy(choose, float32[::1], int64[::1]).local > 0
    assert accesses(choose, float32[::1], int64[::1]) == (0, 0)

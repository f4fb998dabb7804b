"""Every kernel, assembled for real GPUs on a machine without one: does it fit; is it float32?"""

import numpy as np
import pytest
from numba import float32, float64, int64

from minitransformer_kernels import cubins
from minitransformer_kernels.arrays import HEAD_DIMS, SHARED_BYTES
from minitransformer_kernels.cuda import cuda

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra cuda13")


def compiled(head_dim, dtype, architecture):
    """Every kernel of a head dim, and what it needs."""
    for specialisation in cubins.specialisations(head_dim, dtype):
        yield specialisation, cubins.needs(specialisation, architecture)


def takes_float64(specialisation):
    """Whether an array argument is float64, such as the positions of angles."""
    return any(getattr(each, "dtype", None) == float64 for each in specialisation.types)


@pytest.mark.parametrize("architecture", cubins.ARCHITECTURES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_float32_kernels(head_dim, architecture):
    for specialisation, needs in compiled(head_dim, np.float32, architecture):
        assert needs.float64 == 0 or takes_float64(specialisation), specialisation
        assert needs.spills == 0, specialisation
        assert needs.registers * specialisation.threads <= cubins.REGISTERS, specialisation
        assert needs.shared <= SHARED_BYTES, specialisation


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_float64_kernels(head_dim):
    for specialisation, needs in compiled(head_dim, np.float64, cubins.ARCHITECTURES[0]):
        assert needs.registers * specialisation.threads <= cubins.REGISTERS, specialisation
        assert needs.shared <= SHARED_BYTES, specialisation


def toy(kernel, *types):
    """What a kernel of this test needs on Ampere."""
    return cubins.needs(cubins.Specialisation("toy", kernel, types, 32), (8, 0))


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

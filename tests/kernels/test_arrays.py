"""What host functions ask of arrays and their devices."""

import sys
from types import SimpleNamespace

import numpy as np

from minitransformer_kernels import arrays


class GpuArray:
    """An array of a library that says that it is CuPy."""


def test_blocks_are_counted_by_the_processors_that_there_are(monkeypatch):
    asked = []

    def attribute(which, gpu):
        asked.append((which, gpu))
        return 132

    runtime = SimpleNamespace(
        getDevice=lambda: 3, deviceGetAttribute=attribute, cudaDevAttrMultiProcessorCount=16
    )
    cupy = SimpleNamespace(ndarray=GpuArray, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    arrays._multiprocessors.cache_clear()
    try:
        assert arrays.enough_blocks(np.zeros(1), 4) == 4
        assert not asked
        for _ in range(2):
            assert arrays.enough_blocks(GpuArray(), 4) == 132 * arrays.BLOCKS_OF_A_MULTIPROCESSOR
        assert asked == [(16, 3)]  # once: the driver is slow
    finally:
        arrays._multiprocessors.cache_clear()

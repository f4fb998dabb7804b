"""What host functions ask of arrays and their devices."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

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
        assert arrays.processors(np.zeros(1)) == 1
        assert not asked
        assert arrays.processors(GpuArray()) == 132
        for _ in range(2):
            assert arrays.enough_blocks(GpuArray(), 4) == 132 * arrays.BLOCKS_OF_A_MULTIPROCESSOR
        assert asked == [(16, 3)]  # once: the driver is slow
    finally:
        arrays._multiprocessors.cache_clear()


def test_an_unknown_version_is_refused():
    assert arrays.version_of("plain", fast=1, plain=2) == 2
    with pytest.raises(ValueError, match=r"version must be one of \['fast', 'plain'\], got 'slow'"):
        arrays.version_of("slow", fast=1, plain=2)


def test_full_lengths_are_made_once_and_belong_to_nobody():
    one, other = (arrays.lengths_or_full(None, 2, 5, np.zeros(1)) for _ in range(2))
    assert one is other
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 0

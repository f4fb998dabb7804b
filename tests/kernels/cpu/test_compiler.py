"""What compiling needs of Python itself."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from minitransformer_kernels.cpu.compiler import with_room

resource = pytest.importorskip("resource")


def faults_of_calls(depth):
    """How often a loop of 100 calls at some depth touches memory that is new to the process."""
    if depth:
        return faults_of_calls(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        called(30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def called(deeply):
    return called(deeply - 1) if deeply else None


DEPTHS = range(0, 150, 15)  # several pieces of Python's stack, in steps of less than one


def worst(call, *arguments):
    """The most faults at any depth, in a thread of its own: tests run where there is room."""
    with ThreadPoolExecutor(1) as thread:
        return max(thread.submit(call, *arguments, depth).result() for depth in DEPTHS)


def test_calls_cross_no_edge_where_there_is_room():
    assert worst(with_room, faults_of_calls) < 50


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python may keep a piece of its stack")
def test_python_itself_asks_for_memory_at_some_depth():
    """Once it does not, in all versions that we run on, `with_room` can go."""
    assert worst(faults_of_calls) >= 100

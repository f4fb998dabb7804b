"""A barrier that not every thread reaches is an error at run time; one that all reach is not.

The same kernels run clean where their conditions happen to be the same for a whole block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import float32

from minitransformer_kernels.cpu import DivergentBarrier
from minitransformer_kernels.cuda import cuda

from .wrong import marked_line

THREADS = 8
Place3 = tuple[int, int, int]


class Divergent(NamedTuple):
    """A kernel of one array of numbers, and how a launch of it on some ends."""

    kernel: Any
    numbers: list[float]  # with these it fails
    waits: int
    misses: int
    uniform: list[float]  # with these it does not,
    result: list[float]  # and this comes of it
    inside: Any


CASES: list[Any] = []


def divergent(
    numbers: list[float], waits: int, misses: int, *, uniform: list[float],
    result: list[float], inside: Any = None,
) -> Callable[[Any], Any]:  # fmt: skip
    """Record a kernel: thread `waits` is the first at the barrier, `misses` the first missing."""

    def record(kernel: Any) -> Any:
        case = Divergent(kernel, numbers, waits, misses, uniform, result, inside)
        CASES.append(pytest.param(case, id=kernel.__name__))
        return kernel

    return record


@divergent([1, 1, 0, 0, 1, 0, 0, 1], 0, 2, uniform=[1] * 8, result=[8] * 8)
@cuda.jit
def under_an_if(x):
    """The sum over the block, of threads whose number is positive."""
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if x[t] > 0:
        cuda.syncthreads()  # here
        total = float32(0)
        for i in range(THREADS):
            total += tile[i]
        x[t] = total


@divergent([1, 0, 1, 0, 1, 0, 1, 0], 0, 1, uniform=[0] * 8, result=[20] * 8)
@cuda.jit
def one_in_each_branch(x):
    """Two barriers are two, even if every thread reaches one."""
    t = cuda.threadIdx.x
    if x[t] > 0:
        x[t] = 10
        cuda.syncthreads()  # here
    else:
        x[t] = 20
        cuda.syncthreads()


@divergent([2, 3, 2, 2, 2, 2, 2, 2], 1, 0, uniform=[3] * 8, result=[3] * 8)
@cuda.jit
def loop_of_varying_trips(x):
    """Count the rounds, one element further on in each."""
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    count = float32(0)
    for _ in range(int(x[t])):
        tile[t] = count
        cuda.syncthreads()  # here
        count = tile[(t + 1) % THREADS] + float32(1)
        cuda.syncthreads()
    x[t] = count


@divergent([0, 0, 5, 0, 0, 0, 0, 0], 2, 0, uniform=[2] * 8, result=[0] * 8)
@cuda.jit
def while_its_number_lasts(x):
    """Count down to 0, all together."""
    t = cuda.threadIdx.x
    while x[t] > 0:
        x[t] -= 1
        cuda.syncthreads()  # here


@divergent([9, 9, 9, 9, 9, 9, 9, 1], 0, 7, uniform=[2] * 8, result=[3] * 8)
@cuda.jit
def after_a_break(x):
    """Leave the loop in the round that the number says."""
    t = cuda.threadIdx.x
    rounds = 0
    for k in range(4):
        rounds += 1
        if k == x[t]:
            break
        cuda.syncthreads()  # here
    x[t] = rounds


@divergent([0, 0, 0, 1, 0, 0, 0, 0], 0, 3, uniform=[1] * 8, result=[1] * 8)
@cuda.jit
def after_a_continue(x):
    """Skip the barrier of each round."""
    t = cuda.threadIdx.x
    for _ in range(2):
        if x[t] > 0:
            continue
        cuda.syncthreads()  # here


@divergent([1, 1, 1, 1, 1, 0, 0, 0], 0, 5, uniform=[3] * 8, result=[3] * 8)
@cuda.jit
def after_a_return(x):
    """The guard of a ragged last block, put before the barrier."""
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    if x[t] == 0:
        return
    tile[t] = x[t]
    cuda.syncthreads()  # here
    x[t] = tile[THREADS - 1 - t]


@cuda.jit(device=True)
def meet_if_positive(x, t):
    """The barrier is in a device function."""
    if x[t] > 0:
        cuda.syncthreads()  # here
    return x[t]


@divergent([0, 0, 0, 0, 0, 0, 0, 4], 7, 0, uniform=[2] * 8, result=[3] * 8, inside=meet_if_positive)
@cuda.jit
def in_a_device_function(x):
    """One more than the number."""
    t = cuda.threadIdx.x
    x[t] = meet_if_positive(x, t) + 1


@divergent([1, 1, 1, 1, 0, 0, 0, 0], 0, 4, uniform=[1] * 8, result=[8] * 8)
@cuda.jit
def barrier_that_counts(x):
    """How many threads have a positive number."""
    t = cuda.threadIdx.x
    if x[t] > 0:
        x[t] = cuda.syncthreads_count(1 if x[t] > 0 else 0)  # here


@pytest.mark.parametrize("case", CASES)
def test_missed_barrier_is_an_error(case: Divergent) -> None:
    with pytest.raises(DivergentBarrier) as caught:
        case.kernel[1, THREADS](np.array(case.numbers, np.float32))
    error = caught.value
    assert str(error) == (
        f"{marked_line(case.inside or case.kernel)}: kernel {case.kernel.__name__!r}: in block "
        f"(0, 0, 0), thread {(case.waits, 0, 0)} waits at cuda.syncthreads(), which thread "
        f"{(case.misses, 0, 0)} never reaches. Every thread of a block must reach every barrier: "
        "move it out of the branch or the loop, and guard the work around it instead"
    )
    assert (error.block, error.threads) == ((0, 0, 0), ((case.waits, 0, 0), (case.misses, 0, 0)))


@pytest.mark.parametrize("case", CASES)
def test_barrier_that_all_reach_is_none(case: Divergent) -> None:
    numbers = np.array(case.uniform, np.float32)
    case.kernel[1, THREADS](numbers)
    assert numbers.tolist() == case.result


@cuda.jit
def blocks_of_two_kinds(x, out):
    """Odd blocks meet, even blocks do not."""
    i = cuda.grid(2)
    if x[cuda.blockIdx.x, cuda.blockIdx.y] > 0:
        out[i] = cuda.syncthreads_count(1)
    if x[cuda.blockIdx.x, cuda.threadIdx.y] > 1:
        cuda.syncthreads()


def test_block_and_thread_are_named_in_all_dimensions() -> None:
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

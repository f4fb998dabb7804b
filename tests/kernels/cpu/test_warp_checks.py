"""The checked mode knows who takes part in a warp operation, and whom `cuda.syncwarp` orders."""

import inspect
from typing import Any

import numpy as np
import pytest
from numba import float32

from minitransformer_kernels import DataRace, DivergentBarrier, UninitializedRead, checked
from minitransformer_kernels.cpu.errors import Mistake
from minitransformer_kernels.cuda import cuda

from .wrong import assert_readable

ALL, LOW, HIGH = 0xFFFFFFFF, 0xFFFF, 0xFFFF0000

# What a lane takes from one that takes no part ----------------------------------------------------


@cuda.jit
def sum_of_those_left(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    value = x[i]
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, offset)  # here
    if cuda.laneid == 0:
        out[i // 32] = value


@cuda.jit
def sum_of_those_in_a_branch(x, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        for offset in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(ALL, value, offset)  # here
        out[i] = value


@cuda.jit
def lane_of_the_other_half(x, out):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        value += cuda.shfl_sync(LOW, value, 20)  # here
    out[t] = value


@cuda.jit
def decided_by_the_other_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        other = cuda.shfl_down_sync(LOW, x[t], 8)  # here
        if other > 100:
            out[t] = 1


@cuda.jit
def turns_by_the_other_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        left = cuda.shfl_xor_sync(LOW, int(x[t]), 16)  # here
        while left > 0:
            left -= 1
            out[t] += 1


@cuda.jit
def vote_on_the_other_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        other = cuda.shfl_down_sync(LOW, x[t], 8)  # here
        out[t] = cuda.ballot_sync(LOW, other > 3)


@cuda.jit
def counted_for_the_other_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        other = cuda.shfl_down_sync(LOW, x[t], 8)  # here
        cuda.atomic.add(out, 0, other)


# Masks --------------------------------------------------------------------------------------------


@cuda.jit
def all_waited_for_by_half(x, out):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        value += cuda.shfl_down_sync(ALL, value, 8)  # here
    out[t] = value


@cuda.jit
def outside_its_own_mask(x, out):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        value += cuda.shfl_xor_sync(0xFF, value, 1)  # here
    out[t] = value


@cuda.jit
def vote_that_half_comes_to(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.ballot_sync(ALL, x[t] > 0)  # here
    out[t] += 1


@cuda.jit
def match_in_a_loop_that_some_leave(x, out):
    t = cuda.threadIdx.x
    for _ in range(t % 3):
        out[t] = cuda.match_any_sync(ALL, x[t])  # here
    out[t] += 1


@cuda.jit
def waited_for_by_half(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncwarp()  # here
    out[t] = x[t]


@cuda.jit
def waits_outside_its_own_mask(x, out):
    cuda.syncwarp(LOW)  # here
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


# What `cuda.syncwarp` orders ----------------------------------------------------------------------


@cuda.jit
def ordered_for_half(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if t < 16:
        cuda.syncwarp(LOW)
    out[t] = tile[31 - t]  # here


@cuda.jit
def ordered_in_either_half(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if t < 16:
        cuda.syncwarp(LOW)
    else:
        cuda.syncwarp(HIGH)
    out[t] = tile[31 - t]  # here


@cuda.jit
def ordered_by_two_masks(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp(LOW if t < 16 else HIGH)
    out[t] = tile[31 - t]  # here


@cuda.jit
def read_by_the_half_that_waits(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if t < 16:
        cuda.syncwarp(LOW)
        out[t] = tile[31 - t]  # here


@cuda.jit
def written_while_the_other_half_reads(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp()
    mirrored = tile[31 - t]
    cuda.syncwarp(LOW if t < 16 else HIGH)
    tile[t] = mirrored  # here
    out[t] = mirrored


@cuda.jit
def written_by_one_half_where_all_have_read(x, out):
    tile = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        tile[0] = x[t]
    cuda.syncwarp()
    out[t] = tile[0]
    cuda.syncwarp(LOW if t < 16 else HIGH)
    if t == 20:
        tile[0] = 1  # here


WRONG = {
    UninitializedRead: [
        sum_of_those_left, sum_of_those_in_a_branch, lane_of_the_other_half,
        decided_by_the_other_half, turns_by_the_other_half, vote_on_the_other_half,
        counted_for_the_other_half,
    ],
    DivergentBarrier: [
        all_waited_for_by_half, outside_its_own_mask, vote_that_half_comes_to,
        match_in_a_loop_that_some_leave, waited_for_by_half, waits_outside_its_own_mask,
    ],
    DataRace: [
        ordered_for_half, ordered_in_either_half, ordered_by_two_masks,
        read_by_the_half_that_waits, written_while_the_other_half_reads,
        written_by_one_half_where_all_have_read,
    ],
}  # fmt: skip
SAID = {
    "sum_of_those_left": "in block (0, 0, 0), thread (15, 0, 0) takes with cuda.shfl_down_sync "
        "what thread (31, 0, 0), lane 31, sends, but that takes no part: on a GPU the value is und",
    "lane_of_the_other_half": "lane 20, sends, but that takes no part",
    "all_waited_for_by_half": "thread (0, 0, 0) waits at cuda.shfl_down_sync for thread "
        "(31, 0, 0), lane 31, which the mask names and which does not come: a GPU waits for ever",
    "outside_its_own_mask": "thread (8, 0, 0) calls cuda.shfl_xor_sync with a mask in which its "
        "own lane 8 is not: what comes of that on a GPU is undefined.",
    "ordered_for_half": "thread (0, 0, 0) reads shared array 'tile' at [31], which thread "
        "(31, 0, 0) writes to in line",
}  # fmt: skip


def launched(kernel: Any) -> np.ndarray:
    """What a kernel makes of the numbers from 0 up, of 20 where it asks how many there are."""
    few = "x.size" in inspect.getsource(kernel.py_func)
    out = np.zeros(32, np.float32)
    with checked():
        kernel[1, 32](np.arange(20 if few else 32, dtype=np.float32), out)
    return out


@pytest.mark.parametrize(
    ("kernel", "error"),
    [pytest.param(k, e, id=k.__name__) for e, kernels in WRONG.items() for k in kernels],
)
def test_mistake_is_found_and_named(kernel: Any, error: type[Mistake]) -> None:
    with pytest.raises(error) as caught:
        launched(kernel)
    found = caught.value
    lines, first = inspect.getsourcelines(kernel.py_func)
    assert [number for number, line in enumerate(lines, first) if "# here" in line] == [found.line]
    assert found.file == __file__
    text = str(found).removeprefix(f"{__file__}:{found.line}: kernel {kernel.__name__!r}: ")
    assert_readable(text)
    assert len(text.split(". ")) == 2
    assert SAID.get(kernel.__name__, "") in text


# What is right ------------------------------------------------------------------------------------


@cuda.jit
def sum_of_all(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else float32(0)
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, offset)
    if i == 0:
        out[0] = value


@cuda.jit
def sum_of_half(x, out):
    """The upper lanes add up anything, which nobody takes."""
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        for offset in (8, 4, 2, 1):
            value += cuda.shfl_down_sync(LOW, value, offset)
    if t == 0:
        out[0] = value


@cuda.jit
def sum_with_a_guard(x, out):
    t = cuda.threadIdx.x
    here = cuda.ballot_sync(ALL, t < x.size)
    if t < x.size:
        value = x[t]
        for offset in (16, 8, 4, 2, 1):
            other = cuda.shfl_down_sync(here, value, offset)
            if t + offset < x.size:
                value += other
        if t == 0:
            out[0] = value


@cuda.jit
def sum_with_a_choice(x, out):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    value = x[t]
    for offset in (16, 8, 4, 2, 1):
        other = cuda.shfl_down_sync(ALL, value, offset)
        value = value + other if t + offset < x.size and other >= 0 else value
    if t == 0:
        out[0] = value


@cuda.jit
def mirrored_in_halves(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if t < 16:
        cuda.syncwarp(LOW)
        out[t] = tile[15 - t]
    else:
        cuda.syncwarp(-0x10000)
        out[t] = tile[47 - t]


@cuda.jit
def mirrored_in_halves_by_two_masks(x, out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp(LOW if t < 16 else HIGH)
    out[t] = tile[15 - t if t < 16 else 47 - t]


@cuda.jit
def handed_on(x, out):
    """What lane 0 writes comes to lane 20 by way of those who meet both."""
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t] + 5
    if t < 16:
        cuda.syncwarp(LOW)
    if 8 <= t < 24:
        cuda.syncwarp(0xFFFF00)
    if t == 20:
        out[t] = tile[0]


MIRRORED = [*range(15, -1, -1), *range(31, 15, -1)]
RIGHT = {
    sum_of_all: [190], sum_of_half: [120], sum_with_a_guard: [190], sum_with_a_choice: [190],
    mirrored_in_halves: MIRRORED, mirrored_in_halves_by_two_masks: MIRRORED,
    handed_on: [*[0] * 20, 5],
}  # fmt: skip


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.__name__)
def test_nothing_is_found_where_nothing_is_wrong(kernel: Any) -> None:
    np.testing.assert_array_equal(
        np.trim_zeros(launched(kernel), "b"), np.trim_zeros(RIGHT[kernel], "b")
    )

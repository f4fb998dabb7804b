"""Each kernel of the corpus gives what the plain interpreter gives, and Numba's own simulator.

The checked mode finds nothing in it, and changes nothing that it computes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import OutOfBounds, checked
from minitransformer_kernels.cuda import cuda

from . import adversaries, classics, corpus, right, simulated, warps
from .launches import Case, sampled
from .oracle import Diverged, columns, expected, interpret

CASES = corpus.CASES | classics.CASES | warps.CASES | adversaries.CASES | right.CASES
# They count from the end of an array, as Numba allows; CUDA C has no such indices.
NEGATIVE = [
    name for name in CASES if name.startswith(("strided_and_read_only-", "indices_from_the_end-"))
]
RIGHT = {name: case for name, case in CASES.items() if name not in NEGATIVE}
SIMULATED = (
    "places_3d-(2,2,3)-(3,2,2)", "tiled-(2,3)-(4,4)", "sums-3-64", "running_sums-2-48",
    "histogram-3-32", "softmax_rows-4-8", "masked_loops-2-8", "nested_trips-2-(4,3)",
    "barriers_in_nested_loops-2-8", "memory_in_device_functions-3-2",
    "five_point_stencil-(2,3)-(8,6)", "blelloch_scan-1-8", "counted_at_barriers-3-20",
    "moving_particles-3-7", "every_atomic-3-11", "jumps-2-10",
    "barrier_under_run_time_conditions-2-8",
)  # fmt: skip
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}


def assert_same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Floats to the last digits (the compiler may contract a * b + c), all else to the bit."""
    for number, (ours, theirs) in enumerate(zip(columns(found), columns(wanted), strict=True)):
        tolerance = TOLERANCE.get(getattr(ours, "dtype", np.dtype(int)).name, 0)
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance, err_msg=f"argument {number}"
        )


def expected_of(case: Case) -> tuple[Any, ...]:
    """What a case's arguments should become."""
    return expected(case.kernel, case.grid, case.block, case.arguments(), case.shared_bytes)


@pytest.mark.parametrize("case", sampled(CASES, 5))
def test_kernel_agrees_with_the_oracle(case: Case) -> None:
    wanted = expected_of(case)
    found = case.arguments()
    case.launch(*found)
    assert_same(found, wanted)


@pytest.mark.parametrize("case", sampled(RIGHT, 10, "moving_particles-3-7", "moved-2-16"))
def test_nothing_is_found_in_a_right_kernel(case: Case) -> None:
    wanted, found = case.arguments(), case.arguments()
    with checked(False):
        case.launch(*wanted)
    with checked():
        case.launch(*found)
    assert_same(found, wanted)


@pytest.mark.parametrize("name", NEGATIVE)
def test_indices_from_the_end_are_out_of_bounds(name: str) -> None:
    with pytest.raises(OutOfBounds) as caught, checked():
        CASES[name].launch(*CASES[name].arguments())
    assert caught.value.index is not None and min(caught.value.index) < 0


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="the simulator computes with NumPy's scalars; before 2.0 some come out as float64",
)
def test_oracle_agrees_with_numbas_simulator(tmp_path: Path) -> None:
    results = simulated.run(tmp_path, *SIMULATED)
    for name in SIMULATED:
        wanted = expected_of(CASES[name])
        assert_same(tuple(results[f"{name}/{i}"] for i in range(len(wanted))), wanted)


KNOWN: dict[str, Callable[..., Any]] = {
    "two_level_sum-3-96": lambda x, out: out + x.sum(),
    "softmax_with_a_warp_per_row-3-(32,3)": lambda x, _: softmax(x),
    "warp_scan-2-48": lambda x, _: scan_in_warps(x, 48),
    "warp_scan-3-33": lambda x, _: scan_in_warps(x, 33),
    "block_scan-2-128": lambda x, *_: x.reshape(2, 128).sum(1),
    "radix_sort-1-96": lambda x, _: np.sort(x),
    "matrix_times_vector-4-(32,2)": lambda a, x, _: a @ x,
    "blelloch_scan-1-8": lambda x, _: np.cumsum(x) - x,
    "bitonic_sort-2-16": lambda x, _: np.sort(x.reshape(2, 16)).ravel(),
    "transposed-(2,3)-(8,4)": lambda x, _: x.T,
    "tickets-4-8": lambda *_: np.ones(32),
}


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def scan_in_warps(x: np.ndarray, block: int) -> np.ndarray:
    warps = [x[b + w : b + min(w + 32, block)] for b in range(0, x.size, block) for w in (0, 32)]
    return np.concatenate([np.cumsum(warp) for warp in warps])


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_knows_what_numpy_knows(name: str) -> None:
    found = expected_of(CASES[name])[-1]
    np.testing.assert_allclose(found, KNOWN[name](*CASES[name].arguments()), rtol=1e-5)


def test_oracle_orders_a_warp_as_a_gpu_does() -> None:
    """Lanes meet again where their ways join: after branches, at each turn of a loop."""

    @cuda.jit
    def meetings(out):
        t = cuda.threadIdx.x
        if t < 10:
            out[t, 0] = cuda.popc(cuda.activemask())
        else:
            out[t, 0] = cuda.popc(cuda.activemask())
        out[t, 1] = cuda.popc(cuda.activemask())
        for k in range(t % 3):
            if t % 2:
                continue
            out[t, 2] += 100**k * cuda.popc(cuda.activemask())
        if t >= 35:
            return
        out[t, 3] = cuda.popc(cuda.activemask())

    out = np.zeros((40, 4), np.int64)
    interpret(meetings, 1, 40, (out,))
    t = np.arange(40)
    np.testing.assert_array_equal(out[:, 0], np.where(t < 10, 10, np.where(t < 32, 22, 8)))
    np.testing.assert_array_equal(out[:, 1], np.where(t < 32, 32, 8))
    # Of the even lanes 10 and 3 make a first turn, and 5 and 2 of them a second.
    first, second = np.where(t < 32, 10, 3), np.where(t < 32, 5, 2)
    turns = np.where(t % 2, 0, np.where(t % 3 > 0, first, 0) + np.where(t % 3 > 1, 100 * second, 0))
    np.testing.assert_array_equal(out[:, 2], turns)
    np.testing.assert_array_equal(out[:, 3], np.where(t < 32, 32, np.where(t < 35, 3, 0)))


def test_oracle_refuses_what_a_gpu_leaves_undefined() -> None:
    @cuda.jit
    def diverged(out):
        if cuda.threadIdx.x < out[0]:
            cuda.syncthreads()

    @cuda.jit
    def left(out):
        if cuda.threadIdx.x == 3:
            return
        cuda.syncthreads()

    @cuda.jit
    def raced(out):
        out[0] = cuda.threadIdx.x

    with pytest.raises(Diverged, match="wait in lines"):
        interpret(diverged, 1, 8, (np.array([4]),))
    with pytest.raises(Diverged, match="they have left"):
        interpret(left, 1, 8, (np.array([4]),))
    with pytest.raises(AssertionError, match="data race"):
        expected(raced, 1, 8, (np.array([4]),))

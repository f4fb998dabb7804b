"""Tensor cores: their numbers, and where each lane holds what of a matrix."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import float64, int64
from numpy.testing import assert_array_equal

from minitransformer_kernels import KernelError
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.gpu import assembler, cubins
from minitransformer_kernels.layers.tensor_cores import OLDEST, mma, split, to_tf32

from ...properties import array_library

U = 2.0**-11  # the largest share that a number loses when it becomes TF32
single = st.floats(width=32)
needs_the_extra = pytest.mark.skipif(not cubins.available(), reason="needs the extra gate")


def nearest_tf32(x: np.float32) -> np.float32:
    """The number with 11 binary digits that is nearest to x, in float64; of two, the larger."""
    if not np.isfinite(x) or x == 0:
        return x
    _, exponent = np.frexp(np.float64(x))
    last_digit = np.ldexp(1.0, max(int(exponent), -125) - 11)  # a subnormal has fewer
    size = np.floor(abs(np.float64(x)) / last_digit + 0.5) * last_digit
    with np.errstate(over="ignore"):
        return np.float32(np.copysign(size, x))


@cuda.jit
def _round_and_split(x, rounded, big, small):
    i = cuda.grid(1)
    if i < x.size:
        rounded[i] = to_tf32(x[i])
        big[i], small[i] = split(x[i])


def rounded_and_split(x: Any) -> Any:
    """What a kernel makes of float32 numbers: rounded, and in two parts."""
    parts = [np.zeros_like(x) for _ in range(3)]
    _round_and_split[1, 32](x, *parts)
    return parts


@given(x=single)
@example(x=1 + 2**-11)  # halfway, up
@example(x=-1 - 3 * 2**-11)  # halfway, down
@example(x=1 + 2**-11 - 2**-23)  # just below
@example(x=float.fromhex("0x1.fffffep+127"))  # up to infinity
@example(x=float("nan"))
def test_rounding(x: float) -> None:
    number = np.float32(x)
    expected = nearest_tf32(number)
    rounded, _, _ = rounded_and_split(np.full(3, number))
    assert_array_equal(rounded, np.full(3, expected))
    assert_array_equal(np.signbit(rounded), np.signbit(np.full(3, expected)))


@given(x=st.floats(2.0**-60, 2.0**60, width=32))
def test_two_parts_hold_22_digits(x: float) -> None:
    _, (big,), (small,) = rounded_and_split(np.array([x], np.float32))
    assert big == nearest_tf32(big)
    assert small == nearest_tf32(small)
    assert abs(np.float64(x) - big - small) <= U**2 * x


def place(register: int, matrix: str, lane: int) -> tuple[int, int]:
    """The row and the column of what a lane holds in a register, in the words of the PTX ISA."""
    group_id, thread_id_in_group = lane >> 2, lane % 4
    match matrix:
        case "a":
            row = group_id if register in (0, 2) else group_id + 8
            return row, thread_id_in_group if register in (0, 1) else thread_id_in_group + 4
        case "b":
            return (thread_id_in_group if register == 0 else thread_id_in_group + 4), group_id
        case _:
            row = group_id if register < 2 else group_id + 8
            return row, thread_id_in_group * 2 + (register & 1)


REGISTERS = {"a": 4, "b": 2, "c": 4}


def fragments(x: Any, matrix: str) -> Any:
    """What each lane holds of a matrix, (32, registers)."""
    registers = range(REGISTERS[matrix])
    return np.array([[x[place(r, matrix, lane)] for r in registers] for lane in range(32)])


def whole(held: Any) -> Any:
    """The matrix D of which the lanes hold this."""
    d = np.full((16, 8), np.nan, held.dtype)
    for lane in range(32):
        for register in range(4):
            d[place(register, "c", lane)] = held[lane, register]
    return d


def warps_product(instruction: Any) -> Any:
    """A kernel in which each warp calls the instruction once."""

    @cuda.jit
    def multiply(a, b, c, d, lanes):
        thread = cuda.threadIdx.x
        if thread < lanes:
            d0, d1, d2, d3 = instruction(
                a[thread, 0], a[thread, 1], a[thread, 2], a[thread, 3], b[thread, 0], b[thread, 1],
                c[thread, 0], c[thread, 1], c[thread, 2], c[thread, 3],
            )  # fmt: skip
            d[thread, 0], d[thread, 1], d[thread, 2], d[thread, 3] = d0, d1, d2, d3

    return multiply


MULTIPLY = warps_product(mma)
WARPS = 2


def product(a: Any, b: Any, c: Any, lanes: int = WARPS * 32, device: str = "cpu") -> Any:
    """A B + C, and -A B + C, by a warp each."""
    xp = array_library(device)
    held = [
        xp.asarray(np.concatenate([fragments(x, name), fragments(-x if name == "a" else x, name)]))
        for name, x in (("a", a), ("b", b), ("c", c))
    ]
    d = xp.zeros((WARPS * 32, 4), np.float32)  # of lanes that are not there, zeros remain
    MULTIPLY[1, WARPS * 32](*held, d, lanes)
    d = d if device == "cpu" else d.get()
    return whole(d[:32]), whole(d[32:])


def test_every_lane_holds_what_the_ptx_isa_says(device: str) -> None:
    @given(seed=st.integers(0, 2**32 - 1))
    def multiplies(seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = (16, 8), (8, 8), (16, 8)
        a, b, c = (rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes)
        first, second = product(a, b, c, device=device)
        assert_array_equal(first, a @ b + c)  # whole numbers: exact
        assert_array_equal(second, c - a @ b)

    multiplies()


def test_the_bits_below_tf32_do_not_count(device: str) -> None:
    one = np.float32(1 + 2**-10)
    a, b, c = np.full((16, 8), one), np.full((8, 8), one), np.zeros((16, 8), np.float32)
    expected, _ = product(a, b, c, device=device)
    more = np.nextafter(one + np.float32(2**-10), np.float32(0))  # all of them set
    assert more != one
    found, _ = product(np.full_like(a, more), np.full_like(b, more), c, device=device)
    assert_array_equal(found, expected)


@pytest.mark.parametrize("lanes", [1, 31, 33, 63])
def test_a_part_of_a_warp_gets_nan(lanes: int) -> None:
    """On a GPU nobody knows what it would get."""
    ones = np.ones((16, 8), np.float32)
    first, second = product(ones, ones[:8], ones, lanes)
    assert np.isnan(first).sum() == (4 * lanes if lanes < 32 else 0)
    assert np.isnan(second).sum() == 4 * max(0, lanes - 32)


@pytest.mark.parametrize("wrong", range(3))
def test_other_numbers_than_float32_are_refused(wrong: int) -> None:
    arrays = [np.zeros((32, n), np.float32) for n in (4, 2, 4, 4)]
    arrays[wrong] = arrays[wrong].astype(np.float64)
    with pytest.raises(KernelError, match=r"tensor_cores\.py.*float64"):
        MULTIPLY[1, 32](*arrays, 32)


@needs_the_extra
def test_float64_is_refused_for_gpus() -> None:
    with pytest.raises(Exception, match="mma takes float32 numbers, got float64"):
        assembler.ptx(MULTIPLY, (float64[:, ::1],) * 4 + (int64,), OLDEST)

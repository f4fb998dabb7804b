"""Tensor cores: the numbers, where each lane holds what of a matrix, and products made of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import float32, float64, int64
from numpy.testing import assert_array_equal

from minitransformer_kernels import DataRace, KernelError, assembler, checked, cubins
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.matmul import SLICE, TILE_COLUMNS, TILE_ROWS, _matmul_kernel, matmul
from minitransformer_kernels.tensor_cores import OLDEST, mma, require, split, to_tf32

from ..properties import array_library
from .mutants import Mutant, without_barriers

U = 2.0**-11  # the largest share that a number loses when it becomes TF32
single = st.floats(width=32)
needs_the_extra = pytest.mark.skipif(not cubins.available(), reason="needs the extra cuda13")


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


def test_what_has_no_tensor_cores_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tensor cores take float32 arrays .* got float64"):
        require(np.zeros(3))
    require(np.zeros(3, np.float32))


def bound(a: Any, b: Any, precise: bool) -> Any:
    """What the product of two matrices may be off by, as `matmul` documents."""
    k = a.shape[1]
    share = 2.0**-20 + 2.0**-21 * k if precise else 2.0**-10 + 2.0**-22 * k
    return share * (abs(a).astype(np.float64) @ abs(b).astype(np.float64))


def around(size: int) -> Any:
    """Sizes from 0 to more than two tiles."""
    return st.sampled_from([0, 1, size - 1, size, size + 1, 2 * size + 3])


@pytest.mark.parametrize("precise", [False, True])
def test_matmul(precise: bool, device: str) -> None:
    xp = array_library(device)

    @given(around(TILE_ROWS), around(SLICE), around(TILE_COLUMNS), st.integers(0, 2**32 - 1))
    def multiplies(n: int, k: int, m: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a = rng.normal(size=(n, 2 * k)).astype(np.float32)[:, ::2]  # not contiguous
        b = rng.normal(size=(k, m)).astype(np.float32)
        found = matmul(xp.asarray(a), xp.asarray(b), precise=precise)
        c = found if device == "cpu" else found.get()
        assert c.shape == (n, m)
        assert c.dtype == np.float32
        truth = a.astype(np.float64) @ b.astype(np.float64)
        assert (abs(c - truth) <= bound(a, b, precise)).all()
        again = matmul(xp.asarray(a), xp.asarray(b), precise=precise)
        assert bool((found == again).all())

    multiplies()


def test_numbers_are_rounded_not_cut(device: str) -> None:
    """All are just below a TF32 number: cut off, they would lose a share of 2^-10 each."""
    xp = array_library(device)
    below = np.nextafter(np.float32(1 + 2**-10), np.float32(0))
    a = xp.full((5, 40), below)
    c = matmul(a, a.T)
    truth = 40 * np.float64(below) ** 2
    assert abs(float(c[0, 0]) - truth) < 1e-5 * truth


def test_precise_is_closer(device: str) -> None:
    rng, xp = np.random.default_rng(1), array_library(device)
    a, b = (xp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in [(9, 70), (70, 9)])
    truth = a.astype(np.float64) @ b.astype(np.float64)
    errors = [float(abs(matmul(a, b, precise=p) - truth).max()) for p in (False, True)]
    assert errors[1] < errors[0] / 100


@pytest.mark.nightly
@pytest.mark.parametrize("precise", [False, True])
def test_matmul_has_no_races(precise: bool) -> None:
    a = np.ones((TILE_ROWS + 1, SLICE + 3), np.float32)
    with checked():
        c = matmul(a, np.ascontiguousarray(a.T), precise=precise)
    assert_array_equal(c, np.full((len(a), len(a)), a.shape[1]))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [((2, 3), (4, 5), r"\(n, k\) and \(k, m\), got \(2, 3\) and \(4, 5\)"), ((3,), (3, 2), "got")],
)
def test_what_cannot_be_multiplied_is_refused(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matmul(np.zeros(a, np.float32), np.zeros(b, np.float32))


# For GPUs, on a machine without one ---------------------------------------------------------------

MATRIX = float32[:, ::1]


def machine_code(kernel: Any, types: Any, architecture: Any) -> tuple[str, Any]:
    """The PTX of a kernel, and what it needs."""
    return assembler.ptx(kernel, types, architecture), cubins.needs(kernel, types, architecture)


@needs_the_extra
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("architecture", [(8, 0), (9, 0), (10, 0)], ids=str)
def test_matmul_on_gpus(architecture: tuple[int, int], precise: bool) -> None:
    text, needs = machine_code(_matmul_kernel(precise), (MATRIX,) * 3, architecture)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text
    assert "cvt.rna.tf32.f32" in text
    assert "shfl" not in text  # which is for the CPU
    assert needs.spills == needs.local == needs.float64 == 0
    assert needs.registers <= 255
    assert needs.shared == 4 * (TILE_ROWS * (SLICE + 4) + SLICE * (TILE_COLUMNS + 8)) <= 48 * 1024


@needs_the_extra
def test_float64_is_refused_for_gpus() -> None:
    with pytest.raises(Exception, match="mma takes float32 numbers, got float64"):
        assembler.ptx(MULTIPLY, (float64[:, ::1],) * 4 + (int64,), OLDEST)


# Planted bugs -------------------------------------------------------------------------------------


def module_of(package: str) -> Any:
    """The module `matmul` of the package or of a mutated copy."""
    return import_module(f"{package}.matmul")


def mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, module_of, file, old, new)


MUTANTS = [
    mutant("lanes_of_another_row", "tensor_cores.py", "EVERYONE, a2, row + k", "EVERYONE, a2, k"),
    mutant("a_right_and_below", "tensor_cores.py", "tile[g + 8, t], tile[g, t + 4]",
           "tile[g, t + 4], tile[g + 8, t]"),
    mutant("a_row_of_b_twice", "tensor_cores.py", "tile[t, g], tile[t + 4, g]",
           "tile[t, g], tile[t, g]"),
    mutant("cut_not_rounded", "matmul.py", "(mma, to_tf32)", "(mma, _as_it_is)"),
    mutant("a_bit_too_few", "tensor_cores.py", "np.int32(~0x1FFF)", "np.int32(~0x3FFF)"),
    mutant("only_two_products", "tensor_cores.py", "for part in range(3):",
           "for part in range(1, 3):"),
    mutant("sums_of_the_last_slice", "matmul.py", "            cuda.syncthreads()\n"
           "            for place in range(thread, TILE_ROWS", "            c_own[0, 0, 0] = "
           "float32(0)\n            for place in range(thread, TILE_ROWS"),
]  # fmt: skip


def is_wrong(matmul: Any) -> bool:
    """Whether a product is off by more than it may be."""
    rng = np.random.default_rng(0)
    below = np.full((7, 40), np.nextafter(np.float32(1 + 2**-10), np.float32(0)))
    drawn = rng.normal(size=(70, 40)).astype(np.float32)
    for precise in (False, True):
        for a in (drawn, below):
            truth = a.astype(np.float64) @ a.T.astype(np.float64)
            share = 2.0**-6 if a is below and not precise else 1.0
            if (
                abs(matmul(a, a.T, precise=precise) - truth) > share * bound(a, a.T, precise)
            ).any():
                return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module:
        assert is_wrong(module.matmul)  # type: ignore[attr-defined]


def test_without_a_bug_nothing_is_wrong() -> None:
    assert not is_wrong(matmul)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", list(without_barriers("matmul.py", module_of)), ids=str)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    a = np.ones((3, 2 * SLICE), np.float32)
    with mutant.imported(tmp_path) as module, checked(), pytest.raises(DataRace):
        module.matmul(a, a.T)  # type: ignore[attr-defined]

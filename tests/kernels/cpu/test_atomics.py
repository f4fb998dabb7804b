"""Atomics against the oracle's: the number left behind, the number returned, and many threads."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from minitransformer_kernels.cpu.runtime import atomics

from .values import ATOMICS, Memory

UNSIGNED = (np.uint32, np.uint64)
INTEGERS = (np.int32, np.int64, *UNSIGNED)
FLOATS = (np.float32, np.float64)


TAKES = {
    **dict.fromkeys(("add", "sub", "max", "min", "nanmax", "nanmin"), (*INTEGERS, *FLOATS)),
    **dict.fromkeys(("and_", "or_", "xor", "exch"), INTEGERS),
    **dict.fromkeys(("inc", "dec"), UNSIGNED),
}
ALL = [(name, dtype) for name, dtypes in TAKES.items() for dtype in dtypes]
each = pytest.mark.parametrize(("name", "dtype"), ALL, ids=lambda v: getattr(v, "__name__", v))


@cache
def atomic(name: str) -> Any:
    """A function that calls an atomic for each of many indices and operands."""
    operation = getattr(atomics, f"atomic_{name}")

    @njit(nogil=True)
    def run(array, indices, operands, old):
        for i in range(operands.size):
            old[i] = operation(array, indices[i], operands[i])

    return run


def numbers(dtype: Any) -> st.SearchStrategy[Any]:
    """Any number of a dtype, often a small one: for floats with NaN, infinities and both zeros."""
    if issubclass(dtype, np.floating):
        return st.floats(width=np.finfo(dtype).bits) | st.integers(-3, 3).map(float)
    limits = np.iinfo(dtype)
    return st.integers(limits.min, limits.max) | st.integers(max(limits.min, -3), 3)


def wrapped(value: Any, dtype: Any) -> Any:
    """A number as the dtype holds it."""
    if issubclass(dtype, np.floating):
        with np.errstate(over="ignore", invalid="ignore"):
            return dtype(value)
    bits = np.iinfo(dtype).bits
    return np.array([value % 2**bits], f"uint{bits}").view(dtype)[0]


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal to the sign of a zero; a NaN is a NaN."""
    return repr(found.tolist()) == repr(expected.tolist())


@each
@given(data=st.data())
def test_the_oracle_agrees(name: str, dtype: Any, data: st.DataObject) -> None:
    start = np.array(data.draw(st.lists(numbers(dtype), min_size=3, max_size=3)), dtype)
    steps = data.draw(st.lists(st.tuples(st.integers(-3, 2), numbers(dtype)), max_size=12))
    expected, expected_old = start.copy(), np.zeros(len(steps), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for step, (index, operand) in enumerate(steps):
            expected_old[step] = ATOMICS[name](Memory(expected), index, dtype(operand))
    found, old = start.copy(), np.zeros(len(steps), dtype)
    indices = np.array([index for index, _ in steps], np.int64)
    operands = np.array([operand for _, operand in steps], dtype)
    atomic(name)(found, indices, operands, old)
    assert same(found, expected)
    assert same(old, expected_old)


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_compare_and_swap(dtype: Any, data: st.DataObject) -> None:
    start, wanted, value = (data.draw(numbers(dtype)) for _ in range(3))
    for expected in (wanted, start):
        array = np.array([7, start, 7], dtype)
        assert swap(array, 1, dtype(expected), dtype(value)) == start
        assert array.tolist() == [7, value if start == expected else start, 7]
        assert swap_first(array, dtype(7), dtype(5)) == 7
        assert array[0] == 5


@njit
def swap(array, index, expected, value):
    return atomics.atomic_cas(array, index, expected, value)


@njit
def swap_first(array, expected, value):
    return atomics.atomic_compare_and_swap(array, expected, value)


# Many threads -------------------------------------------------------------------------------------

THREADS, ROUNDS = 4, 200_000  # long enough to meet


def at_once(name: str, array: np.ndarray, operands: np.ndarray) -> np.ndarray:
    """The old values, after several threads worked on `array[0]` with a row of `operands` each."""
    old = np.zeros_like(operands)
    indices = np.zeros(operands.shape[1], np.int64)
    run = atomic(name)
    run(array.copy(), indices[:1], operands[0, :1], old[0, :1])  # compiled before they start
    start = Barrier(THREADS)

    def work(mine: np.ndarray, seen: np.ndarray) -> None:
        start.wait()
        run(array, indices, mine, seen)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, operands, old))
    return old


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_no_addition_is_lost(name: str, dtype: Any) -> None:
    array = np.zeros(1, dtype)
    old = at_once(name, array, np.ones((THREADS, ROUNDS), dtype))
    total = THREADS * ROUNDS if name == "add" else -THREADS * ROUNDS
    assert array[0] == wrapped(total, dtype)
    assert len(np.unique(old)) == THREADS * ROUNDS, "each thread saw a number of its own"


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("name", ["inc", "dec"])
def test_no_count_is_lost(name: str, dtype: Any) -> None:
    array = np.zeros(1, dtype)
    old = at_once(name, array, np.full((THREADS, ROUNDS), 9, dtype))
    assert array[0] == 0, "ten steps lead back to 0, and there were a multiple of ten"
    assert np.bincount(old.ravel().astype(int)).tolist() == [THREADS * ROUNDS // 10] * 10


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["max", "min", "nanmax", "nanmin"])
def test_no_extreme_is_lost(name: str, dtype: Any) -> None:
    operands = np.random.default_rng(0).standard_normal((THREADS, ROUNDS)).astype(dtype)
    array = np.zeros(1, dtype)
    old = at_once(name, array, operands)
    assert array[0] == (operands.max() if "max" in name else operands.min())
    assert (np.diff(old) >= 0).all() if "max" in name else (np.diff(old) <= 0).all()


def test_every_exchange_hands_its_number_on() -> None:
    operands = np.arange(1, THREADS * ROUNDS + 1).reshape(THREADS, ROUNDS)
    array = np.zeros(1, np.int64)
    old = at_once("exch", array, operands)
    assert sorted([*old.ravel(), array[0]]) == [*range(THREADS * ROUNDS + 1)]


# Indices, conversions, and what is refused --------------------------------------------------------


@njit
def add_at(array, index, value):
    return atomics.atomic_add(array, index, value)


@pytest.mark.parametrize("place", [(1, 2), (-1, 2), (1, -1), (-2, -3)])
def test_an_element_of_any_array(place: tuple[int, int]) -> None:
    for array in (np.zeros((2, 3)), np.zeros((3, 2)).T, np.zeros((4, 9))[::2, ::-3]):
        expected = np.zeros((2, 3))
        expected[place] = 2
        add_at(array, (np.int32(place[0]), place[1]), 2)
        np.testing.assert_array_equal(array, expected)


def test_a_field_of_records() -> None:
    particles = np.zeros(3, [("kind", np.int64), ("mass", np.float32), ("charge", np.float32)])
    add_at(particles["mass"], 1, np.float32(2))
    assert particles.tolist() == [(0, 0, 0), (0, 2, 0), (0, 0, 0)]


def test_indices_of_every_kind() -> None:
    array = np.zeros(4)
    for index in (np.uint64(1), np.uint8(1), np.int32(-3), 1, (1,)):
        add_at(array, index, 1)
    assert array.tolist() == [0, 5, 0, 0]


def test_operands_become_what_the_array_holds() -> None:
    array = np.zeros(1, np.int32)
    assert add_at(array, 0, 2.9) == 0
    assert add_at(array, 0, -2.9) == 2
    assert add_at(array, 0, True) == 0
    assert array[0] == 1


def frozen() -> np.ndarray:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("name", "array", "index", "operand", "message"),
    [
        ("add", np.zeros(2, np.int8), 0, 1, "on int8 elements: CUDA has it for int32, int64, "),
        ("max", np.zeros(2, bool), 0, 1, "on bool elements: CUDA has it for int32"),
        ("and_", np.zeros(2), 0, 1, "on float64 elements: CUDA has it for int32, int64, uint32, "),
        ("exch", np.zeros(2, np.float32), 0, 1, "on float32 elements: CUDA has it for int32"),
        ("inc", np.zeros(2, np.int32), 0, 1, "on int32 elements: CUDA has it for uint32, uint64"),
        ("add", np.zeros((2, 2)), 0, 1, "takes 2 whole numbers as index here, got int64"),
        ("add", np.zeros(2), (0, 0), 1, "takes 1 whole numbers as index here, got UniTuple("),
        ("add", np.zeros(2), 1.0, 1, "takes 1 whole numbers as index here, got float64"),
        ("add", np.zeros(2), 0, 1j, "cannot turn a complex128 into a float64"),
        ("add", frozen(), 0, 1, "on a read-only array: pass one that can be written to"),
        ("add", 3, 0, 1, "works on an element of an array, got int64"),
    ],
)  # fmt: skip
def test_what_cuda_refuses(name: str, array: Any, index: Any, operand: Any, message: str) -> None:
    operation = getattr(atomics, f"atomic_{name}")

    @njit
    def call(array, index, operand):
        return operation(array, index, operand)

    with pytest.raises(TypingError) as caught:
        call(array, index, operand)
    assert f"cuda.atomic.{name} {message}" in str(caught.value)


def test_what_compare_and_swap_refuses() -> None:
    with pytest.raises(TypingError, match=r"cuda.atomic.cas on float64 elements"):
        swap(np.zeros(2), 0, 1.0, 1.0)
    with pytest.raises(TypingError, match=r"cuda.atomic.cas takes 2 whole numbers as index"):
        swap_first(np.zeros((2, 2), np.int32), 1, 1)

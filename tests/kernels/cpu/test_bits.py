"""Bit operations, `fma`, `selp` and `cbrt` against plain Python, with Numba CUDA's result types."""

from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from minitransformer_kernels.cpu.runtime import bits

INTEGERS = (
    np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
)  # fmt: skip
WIDER = {np.float32: np.float64, np.float64: np.longdouble}


def compiled(name: str) -> Any:
    """A function of the runtime, called from compiled code as a kernel calls it."""
    function = getattr(bits, name)
    return njit(lambda x: function(x))


popc, clz, ffs, brev, cbrt = map(compiled, ("popc", "clz", "ffs", "brev", "cbrt"))


@njit
def bit_count(x):
    return x.bit_count()


@njit
def fma(a, b, c):
    return bits.fma(a, b, c)


@njit
def selp(condition, a, b):
    return bits.selp(condition, a, b)


@njit
def cube_roots(x, out):
    for i in range(x.size):
        out[i] = bits.cbrt(x[i])


def result_type(function: Any, *dtypes: Any) -> Any:
    """The type that a compiled function gives back for arguments of these dtypes."""
    given_types = tuple(numba.from_dtype(np.dtype(dtype)) for dtype in dtypes)
    function.compile(given_types)
    return function.overloads[given_types].signature.return_type


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_bits_agree_with_plain_python(dtype: Any, data: st.DataObject) -> None:
    width = np.iinfo(dtype).bits
    pattern = data.draw(
        st.integers(0, 2**width - 1) | st.integers(0, width - 1).map(lambda bit: 1 << bit)
    )
    x = np.array([pattern], f"uint{width}").view(dtype)[0]
    text = f"{pattern:0{width}b}"
    assert popc(x) == bit_count(x) == text.count("1")
    assert clz(x) == width - len(text.lstrip("0"))
    assert ffs(x) == (width - text.rindex("1") if "1" in text else 0)


@given(st.integers(0, 2**64 - 1))
def test_bits_are_turned(pattern: int) -> None:
    assert brev(np.uint64(pattern)) == int(f"{pattern:064b}"[::-1], 2)
    assert brev(np.uint32(pattern % 2**32)) == int(f"{pattern % 2**32:032b}"[::-1], 2)


def test_turned_bits_of_other_integers_are_those_of_a_uint32_as_on_cuda() -> None:
    assert brev(np.int64(1)) == brev(np.int32(1)) == brev(np.uint8(1)) == 2**31
    assert brev(np.int64(-1 << 32)) == 0
    assert brev(np.int8(-1)) == 2**32 - 1


def test_result_types_are_numba_cudas() -> None:
    for dtype in INTEGERS:
        assert (
            result_type(popc, dtype) == result_type(clz, dtype) == numba.from_dtype(np.dtype(dtype))
        )
        assert result_type(bit_count, dtype) == numba.from_dtype(np.dtype(dtype))
        assert result_type(ffs, dtype) == numba.uint32
        wide = numba.uint64 if dtype is np.uint64 else numba.uint32
        assert result_type(brev, dtype) == wide
        exact = dtype in (np.int8, np.uint8, np.int16)
        assert result_type(cbrt, dtype) == (numba.float32 if exact else numba.float64)
    assert result_type(cbrt, np.float32) == numba.float32
    assert result_type(cbrt, np.float64) == numba.float64
    assert result_type(popc, np.bool_) == result_type(clz, np.bool_) == numba.int8
    single, double = np.float32, np.float64
    assert result_type(fma, single, single, single) == numba.float32
    assert result_type(fma, single, single, np.int16) == numba.float32
    assert result_type(fma, single, single, np.int32) == numba.float64
    assert result_type(fma, single, double, single) == numba.float64
    assert result_type(fma, np.int64, np.int64, np.int64) == numba.float64
    assert result_type(selp, np.bool_, single, single) == numba.float32
    assert result_type(selp, np.int32, np.uint16, np.uint16) == numba.uint16


@pytest.mark.parametrize("dtype", WIDER)
@given(data=st.data())
def test_fma_rounds_once(dtype: Any, data: st.DataObject) -> None:
    # Whole numbers of p bits, p the significand's: the exact result fits a float64 exponent, and
    # Python rounds the quotient of two integers right.
    digits = np.finfo(dtype).nmant + 1
    number = st.integers(-(2**digits) + 1, 2**digits - 1)
    a, b = data.draw(number), data.draw(number)
    near = -int(dtype(a) * dtype(b))  # where rounding the product first loses all digits
    c = data.draw(st.sampled_from([near, near // 3, 0]) | number)
    a, b, c = dtype(a), dtype(b), dtype(c)
    exact = Fraction(int(a)) * int(b) + int(c)
    assert fma(a, b, c) == nearest(exact, dtype)
    scale = dtype(2.0**-8)
    assert fma(a * scale, b, c * scale) == nearest(exact * Fraction(1, 256), dtype)


def nearest(exact: Fraction, dtype: Any) -> Any:
    """An exact number rounded once, ties to even."""
    if dtype is np.float64:
        return exact.numerator / exact.denominator
    if exact == 0:
        return dtype(0)
    digits = 24 - (abs(exact.numerator) // exact.denominator).bit_length()
    step = Fraction(2) ** -digits
    return dtype(round(exact / step) * step)


def test_fma_of_special_numbers() -> None:
    assert np.isnan(fma(np.inf, 0.0, 1.0))
    assert fma(1e308, 10.0, -np.inf) == -np.inf
    assert fma(1e308, 10.0, -1e308) == np.inf
    assert fma(1e200, 1e200, 0.0) == np.inf
    assert fma(2**-540, 2**-540, 0.0) == 0


@given(st.booleans(), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_selp_takes_one_or_the_other(condition: bool, a: float, b: float) -> None:
    assert selp(condition, a, b) == selp(5 * condition, a, b) == (a if condition else b)
    assert selp(condition, np.int16(3), np.int16(-3)) == (3 if condition else -3)


@pytest.mark.parametrize("dtype", WIDER)
def test_cube_roots_err_by_less_than_one_unit_in_the_last_place(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    facts = np.finfo(dtype)
    sizes = rng.uniform(np.log(facts.smallest_subnormal) + 1, np.log(facts.max), 300_000)
    x = np.concatenate([np.exp(sizes), rng.uniform(0, 8, 300_000)]).astype(dtype)
    x *= rng.choice([-1, 1], x.size).astype(dtype)
    found = np.zeros_like(x)
    cube_roots(x, found)
    truth = np.cbrt(x.astype(WIDER[dtype]))
    units = np.abs(found - truth) / np.spacing(np.abs(truth.astype(dtype)))
    assert units.max() < 0.67


@pytest.mark.parametrize("dtype", WIDER)
def test_cube_roots_at_the_edges(dtype: Any) -> None:
    facts = np.finfo(dtype)
    cubes = np.arange(-60, 60, dtype=dtype) ** 3
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, facts.smallest_subnormal, facts.tiny, facts.max]
    x = np.array([*cubes, *edges], dtype)
    found = np.zeros_like(x)
    cube_roots(x, found)
    truth = np.cbrt(x.astype(WIDER[dtype])).astype(dtype)
    assert repr(found.tolist()) == repr(truth.tolist())


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (popc, (1.5,), "cuda.popc takes whole numbers, got float64"),
        (clz, (np.float32(1),), "cuda.clz takes whole numbers, got float32"),
        (ffs, (1j,), "cuda.ffs takes whole numbers, got complex128"),
        (brev, ((1, 2),), r"cuda.brev takes whole numbers, got UniTuple\(int64 x 2\)"),
        (fma, (1j, 2.0, 3.0), "cuda.fma takes real numbers, got complex128, float64, float64"),
        (cbrt, (1j,), "cuda.cbrt takes a real number, got complex128"),
        (selp, (True, 1, 2.0), "two numbers of one type, of 16 bits or more, got int64 and float"),
        (selp, (True, np.int8(1), np.int8(2)), "of 16 bits or more, got int8 and int8"),
    ],
)
def test_what_cuda_refuses(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypingError, match=message):
        function(*arguments)

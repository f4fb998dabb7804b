"""Kernels as a user writes them: on the machine they give what the CPU gives, or are refused."""

from __future__ import annotations

import math
import re
from collections import namedtuple
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numba
import numpy as np
import pytest

from minitransformer_kernels.cuda import Launch, cuda
from minitransformer_kernels.gpu import assembler, compilers, cubins
from minitransformer_kernels.gpu.launch import types_of

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import PtxError, ptx_machine
from minitransformer_kernels.gpu.ptx.machine import DEEPEST

numbas = pytest.mark.skipif(
    compilers.name() != "numba-cuda", reason="its successor compiles it in another way"
)


def equals_the_loop(launch: Launch, result: np.ndarray, *arguments: Any) -> None:
    """Launch on the CPU and on the machine, where warps go one by one, and in lockstep."""
    launch(result, *arguments)
    for options in ({}, {"counted": True}):
        found = np.zeros_like(result)
        with ptx_machine("8.0", **options):
            launch(found, *arguments)
        np.testing.assert_array_equal(found, result)


# Arguments ----------------------------------------------------------------------------------------


class Line(NamedTuple):
    slope: Any
    offset: Any


class Steep(NamedTuple):
    """The same items by other names: another kernel, also in the cache."""

    offset: Any
    slope: Any


@cuda.jit
def on_a_line(results, x, line, pairs):
    i = cuda.grid(1)
    results[i] = line.slope[i] * x[i] + line.offset + pairs[1].slope + pairs[0][1] * line[1]


@pytest.mark.parametrize("kind", [Line, Steep, namedtuple("Line", "offset slope")])
def test_tuples_keep_the_names_of_their_items(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 8))
    line = kind(slope=x[1], offset=2) if kind is Line else Line(slope=x[1], offset=np.float32(3))
    pairs = (1.5, 2.5), kind(slope=3, offset=4)
    equals_the_loop(on_a_line[1, 8], np.zeros(8), x[0], line, pairs)


@cuda.jit
def turned(results, z, by, share, x):
    i = cuda.grid(1)
    results[i] = z[i] * by + share.imag + x * share


@numbas
@pytest.mark.parametrize("kind", [complex, np.complex64, np.complex128])
def test_complex_numbers_are_two(kind: Any) -> None:
    z = np.arange(8) * (1 - 2j)
    equals_the_loop(turned[1, 8], np.zeros(8, complex), z, kind(2 + 1j), np.complex64(4 - 3j), 0.5)


def test_arrays_of_a_device_are_arrays() -> None:
    @cuda.jit
    def doubled(results, x):
        results[cuda.grid(1)] = 2 * x[cuda.grid(1)]

    equals_the_loop(doubled[1, 8], np.zeros(8), cuda.to_device(np.arange(8.0)))


def test_what_is_no_argument_is_refused() -> None:
    with ptx_machine(), pytest.raises(PtxError, match="and tuples of these, got a list"):
        recursive[1, 1]([1])


# What the machine does not know -------------------------------------------------------------------


def test_a_function_of_a_library_is_refused_by_name_and_line() -> None:
    @cuda.jit
    def together(x):
        x[0] = 1
        cuda.cg.this_grid().sync()

    line = together.function.__code__.co_firstlineno + 3
    said = rf"{re.escape(__file__)}:{line}: .* calls 'cudaCGGetIntrinsicHandle', which is not in"
    for _ in range(2):
        with ptx_machine(), pytest.raises(PtxError, match=said):
            together[1, 1](np.zeros(1))


@cuda.jit
def through_halves(results, wide, x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = wide[i]
        results[i] = x[i]


def test_every_float16_is_read_and_rounded_to() -> None:
    """All that are finite, and what lies halfway between two, a little below it and above it."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[1:] + halves[:-1]) / 2
    positive = np.hstack([halves, ties, np.nextafter(ties, 0), np.nextafter(ties, 1e9), 65519.99])
    wide = np.hstack([positive, -positive, np.inf, -np.inf, np.nan, 65520, 1e300])
    rounded, results = np.zeros(wide.size, np.float16), np.zeros(wide.size)
    with ptx_machine():
        through_halves[(wide.size + 255) // 256, 256](results, wide, rounded)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rounded, wide.astype(np.float16))
    np.testing.assert_array_equal(results, rounded.astype(np.float64))


@cuda.jit
def computed_in_halves(results, x, y):
    i = cuda.grid(1)
    a, b = x[i], y[i]
    results[0, i] = a + b
    results[1, i] = a - b
    results[2, i] = a * b
    results[3, i] = a / b
    results[4, i] = -a
    results[5, i] = abs(a)
    results[6, i] = math.sqrt(b)
    results[7, i] = math.floor(a)
    results[8, i] = math.ceil(a)
    results[9, i] = math.trunc(a)
    results[10, i] = max(a, b)
    results[11, i] = (a < b) + 2 * (a <= b) + 4 * (a > b) + 8 * (a >= b)
    results[12, i] = (a == b) + 2 * (a != b)


@numbas
def test_halves_are_computed_with() -> None:
    """All operations on float16 that have a function, on any bits; they are assembled, too."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 1 << 16, (2, 2048), np.uint16).view(np.float16)
    y[:64] = x[:64]
    results = np.zeros((13, 2048), np.float16)
    with np.errstate(all="ignore"):
        equals_the_loop(computed_in_halves[16, 128], results, x, y)
    code, _ = cubins.build(computed_in_halves, types_of((results, x, y)), (8, 0))
    assert code.startswith(b"\x7fELF")


@numbas
def test_other_functions_of_halves_are_refused() -> None:
    @cuda.jit
    def waves(x):
        x[0] = math.sin(x[0])

    with ptx_machine(), pytest.raises(PtxError, match="calls '_ZL4hsin6__half_nbst', which is not"):
        waves[1, 1](np.zeros(1, np.float16))


@cuda.jit
def talkative(x):
    i = cuda.grid(1)
    if i < 2:
        print("thread", i, x[i], x[i] > 1, np.uint64(1 << 63))
    print(-3)


@numbas
@pytest.mark.parametrize("options", [{"seed": None}, {"counted": True}])
def test_threads_print(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with ptx_machine("8.0", **options):
        talkative[1, 4](np.array([1.5, 0.25]))
    said = sorted(capsys.readouterr().out.splitlines())
    assert said == [*["-3"] * 4, "thread 0 1.500000 True 9223372036854775808",
                    "thread 1 0.250000 False 9223372036854775808"]  # fmt: skip


@numbas
def test_what_was_printed_is_there_when_a_launch_fails(capsys: pytest.CaptureFixture[str]) -> None:
    @cuda.jit
    def beyond(x):
        print(7)
        x[5] = 0

    with ptx_machine(), pytest.raises(PtxError, match="which no array of the launch has"):
        beyond[1, 1](np.zeros(5))
    assert capsys.readouterr().out == "7\n"


@numbas
def test_of_much_that_is_printed_some_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    @cuda.jit
    def much(x):
        for i in range(x.size):
            print(i, i, i)

    with ptx_machine():
        much[1, 1](np.zeros(40_000, np.int8))
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{i} {i} {i}" for i in range(((1 << 20) - 8) // 32)]


# Functions that call themselves -------------------------------------------------------------------


@cuda.jit(device=True)
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit(device=True)
def greatest(x, first, last):
    """Of some elements; each call has an array of its own, which the next must leave."""
    if last - first == 1:
        return x[first]
    both = cuda.local.array(2, numba.float64)
    middle = (first + last) // 2
    both[0] = greatest(x, first, middle)
    both[1] = greatest(x, middle, last)
    return max(both[0], both[1])


@cuda.jit(device=True)
def triangle(n):
    return n + triangle(n - 1) if n > 0 else 0


@cuda.jit("int64(int64)", device=True)
def signed_triangle(n):
    return n + signed_triangle(n - 1) if n > 0 else 0


def power_of(base, *signature):
    @cuda.jit(*signature, device=True)
    def power(n):
        return base * power(n - 1) if n > 0 else 1

    return power


cubed, signed_power = power_of(3), power_of(3, "int64(int64)")


@cuda.jit
def recursive(results):
    i = cuda.grid(1)
    results[i, 0] = factorial(i)
    results[i, 1] = fibonacci(i)
    results[i, 2] = cubed(i)


@numbas
def test_device_functions_may_call_themselves() -> None:
    results = np.zeros((12, 3), np.int64)
    equals_the_loop(recursive[2, 6], results)
    text = assembler.ptx(recursive, types_of((results,)), (8, 0))
    code, _ = assembler.assemble(text, (8, 0))
    assert code.startswith(b"\x7fELF")


@numbas
def test_each_call_has_an_array_of_its_own() -> None:
    """Which the CPU does not take."""

    @cuda.jit
    def greatest_so_far(results, x, first):
        results[cuda.grid(1)] = greatest(x, first, cuda.grid(1) + 1)

    x, results = np.random.default_rng(0).normal(size=12), np.zeros(12)
    with ptx_machine():
        greatest_so_far[2, 6](results, x, 0)
    np.testing.assert_array_equal(results, np.maximum.accumulate(x))


@numbas
def test_so_may_those_of_a_signature() -> None:
    """Numba compiles these at once, for the GPU that it finds."""
    for function in (signed_triangle, signed_power):
        with patch("numba.cuda.dispatcher.get_current_device") as found:
            found.return_value.compute_capability = 8, 0
            assert function.on_gpu

    @cuda.jit
    def both(results):
        results[cuda.grid(1)] = signed_triangle(cuda.grid(1)) + signed_power(cuda.grid(1))

    equals_the_loop(both[1, 8], np.zeros(8, np.int64))


@numbas
def test_so_they_may_in_a_file_that_is_loaded_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "file_of_a_learner.py"
    path.write_text(
        "from minitransformer_kernels.cuda import cuda\n"
        "@cuda.jit(device=True)\n"
        "def down(n):\n"
        "    return 0 if n == 0 else 1 + down(n - 1)\n"
        "@cuda.jit\n"
        "def counted(x):\n"
        "    x[cuda.grid(1)] = down(cuda.grid(1))\n"
    )
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    equals_the_loop(module.counted[1, 8], np.zeros(8, np.int64))


@numbas
def test_calls_that_are_too_deep_are_refused() -> None:
    @cuda.jit
    def deep(results, n):
        results[0] = triangle(n)

    equals_the_loop(deep[1, 1], np.zeros(1), DEEPEST - 1)
    with pytest.raises(Exception, match=f"calls more than {DEEPEST} functions in one another"):
        equals_the_loop(deep[1, 1], np.zeros(1), DEEPEST)


@cuda.jit(device=True)
def even(n):
    return True if n == 0 else odd(n - 1)


@cuda.jit(device=True)
def odd(n):
    return False if n == 0 else even(n - 1)


def test_two_functions_that_call_each_other_are_refused() -> None:
    @cuda.jit
    def parity(results):
        results[0] = even(3)

    for _ in range(2):  # also where it has failed before
        with pytest.raises(Exception, match="'even' calls itself by way of 'odd'"):
            assembler.ptx(parity, types_of((np.zeros(1),)), (8, 0))

"""Wrong types, arguments and launches are explained in a sentence or two, with the way out."""

import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import float32, int32
from numba.core.errors import NumbaError

from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.cuda import cuda

from .wrong import Wrong, assert_readable, catalogue

MATRIX = np.ones((3, 3), np.float32)
UNALIGNED = np.zeros(3, [("at", "i4"), ("mass", "f8"), ("sign", "i1"), ("cells", "f4", 2)])
PARTICLES = np.zeros(3, [("place", np.float32), ("speed", np.float32)])


@cuda.jit(device=True)
def one_or_two(v):
    """Return a number or a tuple."""
    if v > 0:
        return v, v
    return v


@cuda.jit(device=True)
def innermost(v):
    """Wrong in its second line."""
    w = v
    return w.real.size  # here


@cuda.jit(device=True)
def outer(v):
    """Call the wrong one."""
    return innermost(v) + 1


@cuda.jit(device=True)
def half(v):
    """Nothing is wrong here."""
    return v / float32(2)


wrong, lines, WRONG = catalogue()

lines(
    # Barriers that count
    truth_at_a_barrier=("x[0] = cuda.syncthreads_or(x[0] > 0)",
        "in `x[0] = cuda.syncthreads_or(x[0] > 0)`, cuda.syncthreads_or takes a whole number, as `1"
        " if x > 0 else 0` is one, got bool. Convert what it is given, or"),
    real_number_at_a_barrier=("x[0] = cuda.syncthreads_count(x[0])",
        "in `x[0] = cuda.syncthreads_count(x[0])`, cuda.syncthreads_count takes a whole number,"),
    # Between the threads of a warp
    truth_in_a_shuffle=("x[0] = cuda.shfl_sync(-1, x[0] > 0, 1)",
        "in `x[0] = cuda.shfl_sync(-1, x[0] > 0, 1)`, cuda.shfl_sync takes an int32, int64, float32"
        " or float64, as `int32(x)` is one, got bool."),
    real_number_in_a_vote=("x[0] = cuda.all_sync(-1, x[0])",
        "in `x[0] = cuda.all_sync(-1, x[0])`, cuda.all_sync takes a truth value or a whole"),
    complex_number_in_a_match=("x[0] = cuda.match_any_sync(-1, x[0] * 1j)",
        "in `x[0] = cuda.match_any_sync(-1, x[0] * 1j)`, cuda.match_any_sync takes a whole number, "
        "a truth value, a float32 or a float64, got complex"),
    # Indices
    float_as_index=("x[x[0]] = 1",
        "in `x[x[0]] = 1`, an index has the type float32. An index is a whole number: divide with"),
    quotient_as_index=("i = cuda.grid(1) / 2\nx[i] = 1  # here",
        "in `x[i] = 1`, an index has the type float64. An index is a whole number: divide with `/"),
    too_many_indices=("x[0] = x[0, 1]",
        "in `x[0] = x[0, 1]`, a 1-d array of float32 gets 2 indices. Give one index for each dime"),
    grid_of_two_dimensions=("i = cuda.grid(2)\nx[i] = 1  # here",
        "in `x[i] = 1`, a 1-d array of float32 gets 2 indices. Give one index for each dimension"),
    index_of_a_single_number=(
        "x[0] = 1",
        "in `x[0] = 1`, a 0-d array of float64 gets an index. Pass an array of 1 dimension, or a n",
        np.array(3.0)),
    number_taken_apart=("a, b = x[0]\nx[0] = a + b",
        "in `a, b = x[0]`, a float32 gets an index, or is taken apart, but it is one number. Arr"),
    tuple_of_two_types=("pair = (1.0, x)\nx[0] = pair[cuda.threadIdx.x]  # here",
        "in `x[0] = pair[cuda.threadIdx.x]`, a tuple (float64, 1-d array of float32), of differen"),
    # What arrays and numbers have
    misspelt_attribute=("n = x.sizes\nx[0] = n",
        "in `n = x.sizes`, a 1-d array of float32 has no attribute 'sizes'. Did you mean 'size'?"),
    unknown_attribute=("x[0] = x.length()",
        "in `x[0] = x.length()`, a 1-d array of float32 has no attribute 'length'. Kernels know s"),
    appends=("x.append(3)",
        "in `x.append(3)`, a 1-d array of float32 has no attribute 'append'. An array keeps its s"),
    attribute_of_a_number=("i = cuda.grid(1)\nx[0] = i.bit_length()  # here",
        "in `x[0] = i.bit_length()`, an int64 has no attribute 'bit_length'. Convert a number wit"),
    unknown_field=("x[0].mass = 3",
        "in `x[0].mass = 3`, a record has no field 'mass'. See the fields of its dtype", PARTICLES),
    # Operators and functions
    bits_of_a_float=("x[0] = x[0] ^ 3",
        "in `x[0] = x[0] ^ 3`, `^` is not defined for float32 and int64. Bits are those of whole"),
    shifts_a_float=("x[0] <<= 2",
        "in `x[0] <<= 2`, `<<` is not defined for float32 and int64. Bits are those of whole numb"),
    compares_with_none=("if x[0] > None:\n    x[0] = 1",
        "in `if x[0] > None:`, `>` is not defined for float32 and None. Start from a number, such"),
    array_as_condition=("if x:\n    x[0] = 1",
        "in `if x:`, a condition has the type 1-d array of float32. A condition is about a num"),
    sum_of_arrays=("y = x + x\nx[0] = y[0]",
        "`x + x` works on whole arrays. Write it for one element, with an index for each dimensio"),
    product_of_rows=("y = x[0] * x[1]\nx[0, 0] = y[0]",
        "`x[0] * x[1]` works on whole arrays. Write it for one element, with an index", MATRIX),
    function_of_an_array=("y = np.exp(x)\nx[0] = y[0]",
        "`np.exp(x)` works on whole arrays. Write it for one element, with an index"),
    copy_of_an_array=("y = x.copy()\nx[0] = y[0]",
        "`x.copy()` works on whole arrays. Write it for one element, with an index"),
    adds_to_an_array=("x += 1",
        "`x += 1` works on whole arrays. Write it for one element, with an index"),
    root_of_an_array=("x[0] = math.sqrt(x)",
        "in `x[0] = math.sqrt(x)`, `sqrt` gets (1-d array of float32). Call it for one element, w"),
    length_of_a_number=("x[0] = len(x[0])",
        "in `x[0] = len(x[0])`, `len` cannot take (float32). Check how many arguments it has, and"),
    calls_a_number=("n = 3\nx[0] = n(2)  # here",
        "in `x[0] = n(2)`, an int64 is called like a function. Leave out ( ) if it is a value, or"),
    calls_an_array=("x[0] = x(0)",
        "in `x[0] = x(0)`, a 1-d array of float32 is called like a function. Leave out ( ) if i"),
    prints_without_a_line=('print(x[0], end="")',
        'in `print(x[0], end="")`, print gets a keyword. Pass what to print, and nothing else'),
    atomic_at_a_float=("cuda.atomic.add(x, x[0], 1)",
        "in `cuda.atomic.add(x, x[0], 1)`, cuda.atomic.add takes 1 whole numbers as index here, g"),
    atomic_bits_of_floats=("cuda.atomic.and_(x, 0, 1)",
        "in `cuda.atomic.and_(x, 0, 1)`, cuda.atomic.and_ on float32 elements: CUDA has it for in"),
    counts_bits_of_a_float=("x[0] = cuda.popc(x[0])",
        "in `x[0] = cuda.popc(x[0])`, cuda.popc takes whole numbers, got float32. Convert what it"),
    bit_count_of_a_float=("x[0] = x[0].bit_count()",
        "in `x[0] = x[0].bit_count()`, a float32 has no attribute 'bit_count'. Convert a number w"),
    prints_an_array=('print("x is", x)',
        "`print('x is', x)` works on whole arrays. Write it for one element, with an index for ea"),
    compares_with_a_shape=("i = cuda.grid(1)\nif i < x.shape:  # here\n    x[i] = 1",
        "in `if i < x.shape:`, `<` is not defined for int64 and tuple (int64). Take one item of t"),
    range_of_a_shape=(
        "for i in range(x.shape):\n    x[i, 0] = 1",
        "in `for i in range(x.shape):`, `range` gets (tuple (int64, int64)). Take one item of the",
        MATRIX),
    two_sizes_of_a_vector=("n, m = x.shape\nx[0] = n + m",
        "in `n, m = x.shape`, a tuple has fewer items than the index asks for. An array of one di"),
    calls_the_size=("for i in range(x.size()):\n    x[i] = 1",
        "in `for i in range(x.size()):`, an int64 is called like a function. Leave out ( ) if it"),
    conversion_with_brackets=("x[0] = float32[x[1]]",
        "in `x[0] = float32[x[1]]`, a dtype float32 gets an index. Convert numbers with ( ): floa"),
    atomic_on_a_number=("total = 0.0\ncuda.atomic.add(total, 0, x[0])  # here\nx[0] = total",
        "in `cuda.atomic.add(total, 0, x[0])`, cuda.atomic.add works on an element of an array, g"),
    votes_with_a_mask_of_truth=("x[0] = cuda.all_sync(x[0] > 0, 1)",
        "in `x[0] = cuda.all_sync(x[0] > 0, 1)`, cuda.all_sync takes a whole number of 32 or 64 "
        "bits as its mask, got bool. Convert what it"),
    shuffles_from_half_a_lane=("x[0] = cuda.shfl_sync(-1, x[0], x[1])",
        "in `x[0] = cuda.shfl_sync(-1, x[0], x[1])`, cuda.shfl_sync takes a whole number of 32 or "
        "64 bits as its lane, got float32. Convert"),
    shuffles_to_a_lane_of_truth=("x[0] = cuda.shfl_up_sync(-1, x[0], True)",
        "in `x[0] = cuda.shfl_up_sync(-1, x[0], True)`, cuda.shfl_up_sync takes a whole "
        "number of 32 or 64 bits as its lane, got bool"),
    matches_with_a_mask_of_floats=("x[0] = cuda.match_any_sync(x[0], 1)",
        "in `x[0] = cuda.match_any_sync(x[0], 1)`, cuda.match_any_sync takes a whole number as its "
        "mask, got float32"),
    unaligned_field=("x[0].at = 3\nx[0].mass = 4  # here",
        "the field 'mass', a float64, starts at byte 4 of its record, and on a GPU at multiples of",
        UNALIGNED),
    unaligned_field_of_a_copy=('r = x[1]\nx[0]["at"] = r["cells"][1]  # here',
        "the field 'cells', a float32, starts at byte 13 of its record, and on a GPU at multiples",
        UNALIGNED),
    shuffles_an_array=("x[0] = cuda.shfl_down_sync(0xFFFFFFFF, x, 1)",
        "what a thread shows to others is a 1-d array of float32. Pass one element, with an index"),
    # What is stored
    stores_a_tuple=("x[0] = (1, 2)",
        "in `x[0] = (1, 2)`, one element of a 1-d array of float32 is set to a whole tuple (int64"),
    stores_an_array=("x[0] = x",
        "in `x[0] = x`, one element of a 1-d array of float32 is set to a whole 1-d array of floa"),
    stores_a_complex_number=("x[0] = 1j",
        "in `x[0] = 1j`, a complex128 is stored in a 1-d array of float32, which it does not fit."),
    stores_none=("x[0] = None",
        "in `x[0] = None`, None is stored in a 1-d array of float32. Store a number; a device fun"),
    sets_a_shape=("x.shape = (2, 4)",
        "the shape of an array is assigned to. Reshape it before the launch"),
    # Variables
    tuples_of_two_lengths=(
        "sizes = (1, 2)\nif x[0] > 0:\n    sizes = (1, 2, 3)\nx[0] = sizes[0]  # here",
        "in `x[0] = sizes[0]`, the variable 'sizes' is sometimes tuple (int64, int64"),
    none_or_a_number=(
        "best = None\nfor i in range(8):\n    if best is None or x[i] > best:\n"
        "        best = x[i]\nx[0] = best",
        "the variable 'best' is sometimes None, sometimes float32. Start from a number instead of"),
    used_before_assignment=("x[0] = total\ntotal = 3",
        "in `x[0] = total`, the variable 'total' is used before it has a value. Assign to it firs"),
    number_or_tuple=("y = 1 if x[0] > 0 else (1, 2)\nx[0] = y[0]",
        "in `y = 1 if x[0] > 0 else (1, 2)`, a value is sometimes int64, sometimes tuple (int64,"),
    array_or_number=("if x[0] > 0:\n    x = 0\nx[1] = 3  # here",
        "in `x[1] = 3`, the variable 'x' is sometimes int64, sometimes 1-d array of float32. It m"),
)  # fmt: skip


@wrong("in `return w.real.size`, a float32 has no attribute 'size'. Convert a number with int32",
       inside=innermost)  # fmt: skip
@cuda.jit
def wrong_in_a_device_function(x):
    y = half(x[1])
    x[0] = outer(x[0]) + y


@wrong("in `x[i] = 1.5 if i < 3 else x.wrong`, a 1-d array of float32 has no attribute 'wrong'.")
@cuda.jit
def deep_inside(x):
    tile = cuda.shared.array(8, float32)
    own = cuda.local.array(3, int32)
    for k in range(3):
        own[k] = k
        if k == cuda.threadIdx.x:
            tile[k] = own[k]
        elif k == 2:
            cuda.syncwarp()
            while tile[k] < 3:
                tile[k] += 1
        else:
            i = cuda.grid(1)
            x[i] = 1.5 if i < 3 else x.wrong  # here
    cuda.syncthreads()


@pytest.mark.parametrize("case", WRONG)
def test_explained_with_file_and_line(case: Wrong, tmp_path: Path) -> None:
    case.assert_explained(tmp_path)


def test_results_of_two_types() -> None:
    """Either `return` may be the one that is named."""

    @cuda.jit
    def takes_the_first(x):
        x[0] = one_or_two(x[1])[0]

    lines, first = inspect.getsourcelines(one_or_two.function)
    returns = [first + number for number, line in enumerate(lines) if "return v" in line]
    text = said(takes_the_first[1, 1], np.ones(2, np.float32))
    assert any(text.startswith(f"{__file__}:{line}: ") for line in returns)
    assert "a device function returns sometimes " in text
    assert "sometimes tuple (float32, float32)" in text
    assert text.endswith("sometimes float32. It must return one type: convert")


def test_the_whole_error_is_behind_it() -> None:
    with pytest.raises(KernelError) as refusal:
        deep_inside[1, 1](np.ones(3))
    assert isinstance(refusal.value.__context__, NumbaError)


# Arguments


@cuda.jit
def adds(x, n):
    """x[0] += n."""
    x[0] += n


def said(call: Callable[..., None], *arguments: Any, **keywords: Any) -> str:
    """What a call says that is refused."""
    with pytest.raises(KernelError) as refusal:
        call(*arguments, **keywords)
    text = str(refusal.value)
    assert_readable(text)
    return text


def of_library(library: str, name: str) -> Any:
    """An object of a class of another library, which need not be installed."""
    return type(name, (), {"__module__": f"{library}.deep.inside"})()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1.0], "a list; expected a NumPy array or a number. Convert it with numpy.array(x, dty"),
        ({}, "a dict; expected a NumPy array or a number. Pass what is in it one by one"),
        ("a", "a str; expected a NumPy array or a number. Kernels compute with numbers"),
        (None, "None; expected a NumPy array or a number. Pass a number, or an array of size 0"),
        (np.float32, "a type; expected a NumPy array or a number. Kernels take dtypes from outsi"),
        (math.sqrt, "a builtin_function_or_method; expected a NumPy array or a number. Kernels"),
        (adds, "a Kernel; expected a NumPy array or a number. A kernel cannot launch another"),
        (half, "a DeviceFunction; expected a NumPy array or a number. Kernels take device"),
        (range(3), "a range; expected a NumPy array or a number. Convert it with numpy.asarray"),
        (of_library("torch", "Tensor"), "a torch.Tensor; expected a NumPy array or a number. "
                                        "Pass x.detach().numpy(), which shares its memory"),
        (of_library("pandas", "Series"), "a pandas.Series; expected a NumPy array or a number. "
                                         "Pass x.to_numpy()"),
        (np.array([None]), "of dtype object; on the CPU kernels compute with bool, whole numbers"),
        (np.array(["a"]), "of dtype str32; on the CPU kernels compute with bool"),
        (np.ones(2, np.longdouble), "of dtype float128; on the CPU kernels compute with bool"),
        (np.longdouble(2), "of dtype float128; on the CPU kernels compute with bool"),
        (np.ones(2, ">f8"), "of dtype '>f8', which is the byte order of other machines. Convert"),
        (np.zeros(2, [("shape", "f4")]), "an array of records with a field 'shape', the name of "
                                         "what every array has. Rename the field"),
        (np.zeros(2, [("ndim", "f4"), ("size", "f4")]), "an array of records with a field 'ndim'"),
    ],
)  # fmt: skip
def test_argument_is_named(argument: Any, message: str) -> None:
    adds[1, 1](np.ones(1), 1)  # what was right before does not make it right
    start = "kernel 'adds': argument 'x' is "
    assert said(adds[1, 1], argument, 1).startswith(start + message)


def test_integer_that_no_type_holds() -> None:
    x = np.ones(1, np.uint64)
    adds[1, 1](x, 2**63 + 5)
    assert x[0] == 2**63 + 6
    assert said(adds[1, 1], np.ones(1), 2**70).startswith(
        "kernel 'adds': argument 'n' is of a type that kernels cannot use (Int value is too large"
    )


@pytest.mark.parametrize(
    "x",
    [
        np.ones(1, dtype)
        for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16")
    ]
    + [np.ones(5)[::-2], np.ones((3, 1), order="F")[:, 0]],
    ids=lambda x: f"{x.dtype}-{x.strides[0]}",
)
@pytest.mark.parametrize("n", [2, True, np.int8(2), np.uint64(2), np.bool_(True)], ids=repr)
def test_numbers_of_all_kinds_are_accepted(x: np.ndarray, n: Any) -> None:
    x = x.copy() if x.flags.c_contiguous else x[:]
    x[0] = 1
    adds[1, 1](x, n)
    assert x[0] == 1 + int(n)


def test_complex_number_is_accepted() -> None:
    x = np.ones(1, complex)
    adds[1, 1](x, 2j)
    assert x[0] == 1 + 2j


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "kernel 'adds' takes 2 arguments (x, n), got 0; give x, n as well"),
        ((1,), "kernel 'adds' takes 2 arguments (x, n), got 1; give n as well"),
        ((1, 2, 3), "kernel 'adds' takes 2 arguments (x, n), got 3; leave out the last"),
    ],
)
def test_missing_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    assert said(adds[1, 1], *arguments) == message


def test_arguments_by_keyword() -> None:
    assert said(adds[1, 1], np.ones(1), n=3) == (
        "kernel 'adds' gets its arguments by position; leave out `n=`"
    )


def test_cupy_array_beside_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    text = said(adds[1, 1], cupy.ndarray(), [1])
    assert text == (
        "kernel 'adds': argument 'n' is a list, others are CuPy arrays; convert it with "
        "cupy.asarray"
    )


# Launches


def test_device_function_is_not_launched() -> None:
    assert said(half.__getitem__, (1, 8)) == (
        "'half' is a device function, which kernels call; to launch it, decorate it with @cuda.jit "
        "alone"
    )


@pytest.mark.parametrize("keywords", [{}, {"n": 3}])
def test_forgotten_configuration(keywords: dict[str, int]) -> None:
    assert said(adds, np.ones(1), **keywords) == (
        "kernel 'adds' was called without a launch configuration; write adds[blocks, threads](...)"
    )


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (4, "kernel 'adds' needs [blocks, threads], got [4]; write adds[blocks, threads](...)"),
        ((2.5, 4), "kernel 'adds': blocks must be one to three whole numbers from 1 up, got 2.5; "
                   "divide with `//`: (n + 255) // 256"),
        ((1, (4, 2.0)), "kernel 'adds': threads must be one to three whole numbers from 1 up, got "
                        "(4, 2.0); divide with `//`: (n + 255) // 256"),
        ((-1, 4), "kernel 'adds': blocks must be one to three whole numbers from 1 up, got -1"),
        ((True, 4), "kernel 'adds': blocks must be one to three whole numbers from 1 up, got True"),
        (([1, 2], 4), "kernel 'adds': blocks must be one to three whole numbers from 1 up, got "
                      "[1, 2]"),
        ((1, 1025), "kernel 'adds': 1025 threads a block; a GPU allows 1024 in all and 64 along z."
                    " Use more, smaller blocks"),
        (((1, 2**16), 4), "kernel 'adds': (1, 65536) blocks; a GPU allows 65535 along y and z. Put"
                          " the longest axis first, or let each thread do more"),
        ((1, 4, 1024), "kernel 'adds': the stream is 1024; bytes of shared memory come fourth: "
                       "adds[blocks, threads, 0, 1024](...)"),
        ((1, 4, 0, 1.5), "kernel 'adds': the bytes of dynamic shared memory must be a whole number"
                         " from 0 up, got 1.5"),
        ((1, 4, 0, -1), "kernel 'adds': the bytes of dynamic shared memory must be a whole number"
                        " from 0 up, got -1"),
    ],
)  # fmt: skip
def test_configuration(configuration: Any, message: str) -> None:
    assert said(adds.__getitem__, configuration) == message


def test_numpy_integers_are_whole_numbers() -> None:
    x = np.ones(1)
    adds[np.int32(1), (np.int64(1), np.uint8(1)), 0, np.int16(0)](x, 1)
    assert x[0] == 2


def test_messages_name_the_line_of_a_kernel_in_a_function() -> None:
    @cuda.jit
    def within(x):
        x[0] = x.wrong

    line = inspect.getsourcelines(within.function)[1] + 2
    assert said(within[1, 1], np.ones(1)).startswith(f"{__file__}:{line}: kernel 'within': in `x")


CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("import numpy as np; from minitransformer_kernels.cuda import cuda", True)
shell.run_cell(
    "@cuda.jit\\n"
    "def behind(x):\\n"
    "    x[cuda.grid(1)] = 1\\n"
    "@cuda.jit\\n"
    "def listed(x):\\n"
    "    x[0] = [1]",
    True,
)
for launch in ("behind[1, 8](np.zeros(5))", "listed[1, 8](np.zeros(5))"):
    print("said", shell.run_cell(launch, True).error_in_exec)
"""


def test_cells_of_notebooks_are_named_by_number() -> None:
    pytest.importorskip("IPython")
    environment = os.environ | {"MINITRANSFORMER_CHECK": "1"}
    command = [sys.executable, "-c", CELLS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = [line for line in run.stdout.splitlines() if line.startswith("said ")]
    assert [line.partition(":")[0] for line in said] == [
        "said In [2], line 3",
        "said In [2], line 6",
    ]

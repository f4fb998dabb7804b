"""float16: of each operation the type that Numba gives it on a GPU, and NumPy's bits."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import float32, types
from numba.types import float16

from minitransformer_kernels import checked
from minitransformer_kernels.cpu import hints
from minitransformer_kernels.cpu.errors import UnsupportedKernel
from minitransformer_kernels.cpu.runtime import halves
from minitransformer_kernels.cuda import Kernel, cuda

from .launches import defined

# Each expression, what it is, and where NumPy writes it otherwise, how.
EXPRESSIONS: dict[str, tuple[str, str]] = {
    text: (kind, numpy or text)
    for kind, text, numpy in (
        ("float16", "a + b", ""),
        ("float16", "a - b", ""),
        ("float16", "a * b", ""),
        ("float16", "a / b", ""),
        ("float16", "-a", ""),
        ("float16", "+a", ""),
        ("float16", "abs(a)", ""),
        ("float16", "min(a, b)", "np.minimum(a, b)"),
        ("float16", "max(a, b)", "np.maximum(a, b)"),
        ("float16", "a + i8", "a + np.float16(i8)"),
        ("float16", "a * np.float16(0.3)", ""),
        ("float16", "np.float16(f64)", ""),
        ("float16", "types.float16(i32)", "np.float16(i32)"),
        ("float16", "float(a)", "a"),
        ("float16", "math.sqrt(abs(a))", "np.sqrt(abs(a))"),
        ("float16", "math.fabs(a)", "abs(a)"),
        ("float16", "math.floor(a)", "np.floor(a)"),
        ("float16", "math.ceil(a)", "np.ceil(a)"),
        ("float16", "math.trunc(a)", "np.trunc(a)"),
        *(
            ("float16", f"math.{name}(abs(a))", f"np.{name}(np.float32(abs(a))).astype(np.float16)")
            for name in ("exp", "log", "log2", "log10", "sin", "cos", "tanh")
        ),
        ("float32", "a // b", "np.float32(a) // np.float32(b)"),
        ("float32", "a % b", "np.float32(a) % np.float32(b)"),
        ("float32", "a + f32", ""),
        ("float32", "np.float32(a)", ""),
        ("float32", "math.tan(a)", "np.tan(np.float32(a))"),
        ("float64", "a + 1", "np.float64(a) + 1"),
        ("float64", "a * 0.1", "np.float64(a) * 0.1"),
        ("float64", "a + i32", "np.float64(a) + i32"),
        ("float64", "a + f64", ""),
        ("int64", "int(a)", "np.trunc(a)"),
        ("bool", "a < b", ""),
        ("bool", "a == 0", ""),
        ("bool", "not a", "a == 0"),
        ("bool", "math.isnan(a)", "np.isnan(a)"),
    )
}
OF_BUILD_WITHOUT_A_DRIVER = ("math.",)  # numba-cuda links what these call


def every_expression(folder: Path) -> Kernel:
    """A kernel that writes a row of `out` for each expression."""
    lines = [
        "def every(x, y, bytes_, wholes, singles, doubles, out):",
        "    t = cuda.grid(1)",
        "    if t < x.size:",
        "        a, b, i8, i32 = x[t], y[t], bytes_[t], wholes[t]",
        "        f32, f64 = singles[t], doubles[t]",
        *(f"        out[{row}, t] = {text}" for row, text in enumerate(EXPRESSIONS)),
    ]
    known = {"cuda": cuda, "np": np, "math": math, "types": types}
    return cuda.jit(defined(folder / "every.py", "\n".join(lines) + "\n", known)["every"])


def numbers(count: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {
        "a": (rng.normal(size=count) * 4.0 ** rng.integers(-9, 5, count)).astype(np.float16),
        "b": rng.normal(size=count).astype(np.float16),
        "i8": rng.integers(-128, 128, count).astype(np.int8),
        "i32": rng.integers(-70_000, 70_000, count).astype(np.int32),
        "f32": rng.normal(size=count).astype(np.float32),
        "f64": rng.normal(size=count) * 4.0 ** rng.integers(-12, 9, count),
    }
    found["a"][:4] = 0, -0.0, 65504, 6e-8
    return found


@pytest.mark.parametrize("watched", [False, True], ids=["fast", "checked"])
def test_each_operation_is_numpys_to_the_bit(watched: bool, tmp_path: Path) -> None:
    given = numbers()
    out = np.zeros((len(EXPRESSIONS), len(given["a"])))
    with checked(watched), np.errstate(all="ignore"):
        every_expression(tmp_path)[4, 128](*given.values(), out)
        for row, (text, (kind, numpy)) in zip(out, EXPRESSIONS.items(), strict=True):
            expected = eval(numpy, {"np": np, **given})
            assert expected.dtype == kind or kind == "int64", text
            loose = "math." in text and kind != "bool"  # float32's functions differ in last bits
            ulp = np.spacing(np.abs(expected)).astype(float) if loose else 0.0
            error = np.abs(row - expected.astype(float))
            same = (row == expected) | np.isnan(row) & np.isnan(expected.astype(float))
            assert np.all(same | (error <= ulp)), text


def test_numba_for_gpus_types_it_so() -> None:
    pytest.importorskip("numba_cuda")
    from numba import cuda as gpu

    given = types.float16, types.float16, types.int8, types.int32, types.float32, types.float64
    for text, (kind, _) in EXPRESSIONS.items():
        if any(name in text for name in OF_BUILD_WITHOUT_A_DRIVER):
            continue
        names: dict[str, Any] = {"np": np, "math": math, "types": types}
        exec(f"def f(a, b, i8, i32, f32, f64):\n    return {text}\n", names)
        _, found = gpu.compile(names["f"], given, device=True, abi="numba", cc=(8, 0))
        assert str(found) == kind, text


def test_float64_is_rounded_once() -> None:
    ties = 1 + (2 * np.arange(40) + 1) * 2.0**-11
    tiny = (2 * np.arange(9) + 1) * 2.0**-25
    limits = np.array([65519.999999, 65520.0, 1e300, 1e-300, np.inf, np.nan, 2.0**-25])
    x = np.concatenate([f * (1 + e) for f in (ties, tiny) for e in (0.0, 2.0**-40, -(2.0**-40))])
    x = np.concatenate([x, limits])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
        twice = x.astype(np.float32).astype(np.float16)
    assert (expected != twice).sum() > 20
    out = np.zeros(len(x), np.float16)
    halved[3, 128](x, out)
    np.testing.assert_array_equal(out.view(np.int16), expected.view(np.int16))


@cuda.jit
def halved(x, out):
    t = cuda.grid(1)
    if t < x.size:
        out[t] = x[t]


@cuda.jit(device=True)
def blend(x, y, share):
    return x * share + y * (float16(1) - share)


@cuda.jit
def everywhere(x, share, records, out):
    tile = cuda.shared.array(64, np.float16)
    more = cuda.shared.array(0, float16)
    own = cuda.local.array(2, "float16")
    t = cuda.threadIdx.x
    total = float16(0)
    for i in range(4):
        own[i % 2] = x[t]
        tile[t] = own[i % 2] + total
        more[t] = tile[t]
        cuda.syncthreads()
        total += tile[(t + 1) % 64] - more[t]
        cuda.syncthreads()
    records[t].half = blend(total, x[t], share)
    out[t] = float32(records[t]["half"])


@pytest.mark.parametrize("watched", [False, True], ids=["fast", "checked"])
def test_it_is_kept_in_every_memory(watched: bool) -> None:
    x, share = np.arange(64).astype(np.float16), np.float16(0.25)
    records = np.zeros(64, [("whole", np.int32), ("half", np.float16)])
    out = np.zeros(64, np.float32)
    with checked(watched):
        everywhere[1, 64, 0, 128](x, share, records, out)
    total = np.zeros(64, np.float16)
    for _ in range(4):
        tile = x + total
        total = total + (np.roll(tile, -1) - tile)
    expected = total * share + x * (np.float16(1) - share)
    np.testing.assert_array_equal(records["half"], expected)
    np.testing.assert_array_equal(out, expected.astype(np.float32))


@cuda.jit
def exchanges(x):
    x[cuda.threadIdx.x] = cuda.shfl_down_sync(0xFFFFFFFF, x[cuda.threadIdx.x], 1)


@cuda.jit
def counts(x):
    cuda.atomic.add(x, 0, x[1])


@cuda.jit
def by_name(x):
    x[0] = cuda.fp16.hadd(x[1], x[2])


@cuda.jit
def asks(x):
    if x[1]:
        x[0] = 1


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (exchanges, "shfl_down_sync takes an int32, int64, float32 or float64"),
        (counts, "cuda.atomic.add on float16 elements"),
        (asks, "a float16 is no condition: write x != 0"),
        (by_name, "float16 has operators and functions of `math`: write a + b"),
    ],
)
def test_what_numba_for_gpus_refuses_is_refused(kernel: Any, message: str) -> None:
    with pytest.raises(UnsupportedKernel) as refused:
        kernel[1, 32](np.zeros(32, np.float16))
    assert message in str(refused.value)


def test_a_processor_that_cannot_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "CONVERTED", False)
    refused = hints.argument(np.zeros(2, np.float16))
    assert refused is not None
    assert "this processor does not convert" in refused[0]

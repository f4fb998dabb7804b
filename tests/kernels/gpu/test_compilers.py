"""Both compilers for GPUs: which is asked, and that the kernels they make compute the same."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.examples import HOSTS, MORE
from minitransformer_kernels.gpu import assembler, codegen, compare, compilers
from minitransformer_kernels.gpu.launch import types_of

BOTH = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not compilers.installed(name), reason=f"{name} is not installed (extra {extra})"
        ),
    )
    for name, extra in {"numba-cuda": "gate", "numba-cuda-mlir": "gate-mlir"}.items()
]
needs_both = pytest.mark.skipif(
    not all(map(compilers.installed, compilers.MODULES)),
    reason="needs both compilers (extras gate and gate-mlir)",
)


# Which is asked -----------------------------------------------------------------------------------


def there(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretend that these compilers are installed, and no other; nobody chose one."""
    monkeypatch.delenv(compilers.VARIABLE, raising=False)
    monkeypatch.setattr(compilers, "installed", names.__contains__)


def test_the_first_compiler_that_is_there_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, "numba-cuda", "numba-cuda-mlir")
    assert compilers.name() == "numba-cuda"
    there(monkeypatch, "numba-cuda-mlir")
    assert compilers.name() == "numba-cuda-mlir"
    there(monkeypatch)
    assert compilers.name() == "numba-cuda"  # whose absence is explained where it is missed


def test_a_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, "numba-cuda", "numba-cuda-mlir")
    monkeypatch.setenv(compilers.VARIABLE, "numba-cuda-mlir")
    assert compilers.name() == "numba-cuda-mlir"
    monkeypatch.setenv(compilers.VARIABLE, "nvcc")
    with pytest.raises(ValueError, match="is 'nvcc'; the compilers are numba-cuda, numba-cuda-m"):
        compilers.name()


def test_the_successor_is_not_looked_at_unless_it_is_asked() -> None:
    code = (
        "import sys; import minitransformer_kernels.softmax;"
        "print([name for name in sys.modules if name.startswith('numba_cuda_mlir')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# What an array is for them ------------------------------------------------------------------------


def described(array: np.ndarray) -> Any:
    """An array as CuPy has it."""
    names = "dtype", "size", "itemsize", "shape", "strides"
    return SimpleNamespace(
        data=SimpleNamespace(ptr=4096), **{name: getattr(array, name) for name in names}
    )


def test_the_words_of_an_array() -> None:
    array = described(np.zeros((4, 6), np.float32)[:, ::2])
    first, second = map(compilers.compiler, compilers.MODULES)
    assert first.words(array) == (0, 0, 12, 4, 4096, 4, 3, 24, 8)
    assert second.words(array) == (4096, 4096, 0, 4, 3, 6, 2)
    for compiler in (first, second):
        assert len(compiler.words(array)) == compiler.WORDS + 2 * 2
    record = described(np.zeros(3, [("x", np.float32), ("y", np.int8)]))
    assert second.words(record) == (4096, 4096, 0, 3, 5)


# What they make of a kernel -----------------------------------------------------------------------


@cuda.jit(device=True)
def doubled(x):
    """A number, twice."""
    return x + x


@cuda.jit
def kinds(x, rows, flag, whole, pair, share, big):
    """Use an argument of every kind."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        tile = cuda.shared.array(32, numba.float32)
        tile[i] = rows[i, 1] * pair[0] + pair[1] + share
        cuda.syncthreads()
        x[i] = doubled(tile[31 - i]) + whole if flag else big - whole


def arguments(flag: bool) -> tuple[Any, ...]:
    rows = np.arange(32 * 6, dtype=np.float64).reshape(32, 6)[:, ::2]
    return np.zeros(32), rows, flag, 7, (2.5, np.int32(-3)), np.float32(0.25), 1 << 63


@pytest.mark.parametrize("compiler", BOTH)
@pytest.mark.parametrize("architecture", [(7, 5), (8, 0), (9, 0), (10, 0)])
def test_arguments_of_every_kind_arrive(
    compiler: str, architecture: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compilers.VARIABLE, compiler)
    pytest.importorskip("cuda.bindings.nvjitlink")
    from minitransformer_kernels.gpu.ptx import run

    for flag in (True, False):
        ours, theirs = arguments(flag), arguments(flag)
        kinds[1, 32](*ours)
        run(kinds[1, 32], theirs, architecture)
        np.testing.assert_array_equal(theirs[0], ours[0])


@pytest.mark.parametrize("compiler", BOTH)
def test_what_compiles_has_the_kernels_name_and_is_assembled(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compilers.VARIABLE, compiler)
    text = assembler.ptx(kinds, types_of(arguments(True)), (8, 0))
    assert f".visible .entry {assembler.entry_name(kinds)}(" in text
    code, _ = assembler.assemble(text, (8, 0))
    assert code.startswith(b"\x7fELF")


@pytest.mark.skipif(not compilers.installed("numba-cuda-mlir"), reason="needs extra gate-mlir")
def test_the_successor_is_told_of_indices_and_alignments(monkeypatch: pytest.MonkeyPatch) -> None:
    @cuda.jit
    def reverse(x):
        tile, other = cuda.shared.array(32, numba.float32), cuda.shared.array(32, numba.float32, 64)
        odd = cuda.shared.array((3, 11), numba.float32)  # where it ends no other number follows
        i, t = cuda.grid(1), cuda.threadIdx.x
        tile[t], other[t], odd[0, t] = x[i], -x[i], 2 * x[i]
        cuda.syncthreads()
        x[i] = tile[31 - t] + other[31 - t] + odd[0, 31 - t]

    monkeypatch.setenv(compilers.VARIABLE, "numba-cuda-mlir")
    text = assembler.ptx(reverse, (numba.float32[::1],), (8, 0))
    assert re.findall(r"\.shared \.align (\d+)", text) == ["16", "64", "8"]
    assert re.search(r"and\.b\d\d\s+[^;]*, 1023;", text)
    assert re.search(r"and\.b\d\d\s+[^;]*, 2147483647;", text)
    with codegen.hints():
        text = assembler.ptx(reverse, (numba.float32[::1],), (8, 0))
    assert re.findall(r"\.shared \.align (\d+)", text) == ["8", "64", "8"]
    assert not re.search(r"and\.b\d\d\s+[^;]*, (1023|2147483647);", text)


@needs_both
def test_each_compilers_code_is_kept_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for compiler in compilers.MODULES:
        monkeypatch.setenv(compilers.VARIABLE, compiler)
        digests.add(assembler._digest(kinds))
    assert len(digests) == 2


# The package's kernels ----------------------------------------------------------------------------


@needs_both
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("softmax", "recurrent") else pytest.mark.nightly)
        for name in HOSTS | MORE
    ],
)
def test_both_compilers_kernels_compute_the_same(name: str) -> None:
    """The same bits, but where the successor has no fast functions (its README, report 6)."""
    found = compare.compared([name])
    assert found
    for kernel, each in found.items():
        assert all(each.executed)
        assert not each.apart or (kernel == "features.favor" and max(each.apart) < 1e-6)


def test_the_table_of_what_was_compared() -> None:
    found = {
        "b.two": compare.Found([1000, 1500, 2000], [2e-7, 1e-7]),
        "a.one": compare.Found([1000, 500, 500]),
    }
    _, _, *lines = compare.table(found).splitlines()
    assert lines == [
        "| a.one | 1,000 | 500 | 0.50 | 500 | 0.50 | yes |",
        "| b.two | 1,000 | 1,500 | 1.50 | 2,000 | 2.00 | 2e-07 |",
        "| all | 2,000 | 2,000 | 1.00 | 2,500 | 1.25 |  |",
    ]

"""What is new is checked: nobody's first mistake is a crash, and what follows runs fast."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitransformer_kernels as mk
from minitransformer_kernels.cpu import CpuKernel, DataRace, OutOfBounds, first_launches
from minitransformer_kernels.cpu.lowering import CHECKED
from minitransformer_kernels.cpu.watchers import checked_mode
from minitransformer_kernels.cuda import Kernel, cuda
from minitransformer_kernels.recurrent import forward

from .wrong import assert_nothing_of_ours_is_shown

UNGUARDED = "outside its shape (100,). On a GPU that is another array's memory"


def copying(**options: Any) -> Kernel:
    """A new kernel, which nothing guards."""

    @cuda.jit(**options)
    def copy(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    return copy  # type: ignore[no-any-return]


def arrays(*shape: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Ones to copy, and where to."""
    return np.ones(shape, dtype), np.zeros(shape, dtype)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that run in the checked mode from here on."""
    names, run = [], checked_mode.launch

    def launch(kernel: Any, *arguments: Any) -> None:
        names.append(kernel.function.__name__)
        run(kernel, *arguments)

    monkeypatch.setenv("MINITRANSFORMER_CHECK", "")
    monkeypatch.setattr(checked_mode, "launch", launch)
    return names


@pytest.mark.parametrize("blocks, threads", [(4, 32), (40_000, 256)])
def test_a_missing_guard_is_named(blocks: int, threads: int, checks: list[str]) -> None:
    copy = copying()
    for _ in range(2):  # it is still wrong when it is run again
        with pytest.raises(OutOfBounds) as caught:
            copy[blocks, threads](*arrays(100))
        assert UNGUARDED in str(caught.value)
    copy[4, 25](*arrays(100))


def test_the_first_launch_is_checked_and_has_the_effect_of_one(checks: list[str]) -> None:
    @cuda.jit
    def counts(x, states, total):
        i = cuda.grid(1)
        x[i] += 1
        states[i] = states[i] * 5 + 1
        cuda.atomic.add(total, 0, 1)

    x, states, total = np.zeros(64), np.ones(64, np.uint64), np.zeros(1, np.int64)
    for times in range(1, 4):
        counts[2, 32](x, states, total)
        assert set(x) == {times}
        assert set(states) == {np.uint64((5 ** (times + 1) - 1) // 4)}
        assert total == 64 * times
    assert checks == ["counts"]


def test_what_is_new_is_checked(checks: list[str]) -> None:
    @cuda.jit
    def first(x, out, n):
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i]

    def checked(launch: Any, *arguments: Any) -> int:
        before = len(checks)
        launch(*arguments)
        return len(checks) - before

    x, out = arrays(100)
    assert checked(first[4, 32], x, out, 100) == 1
    assert checked(first[4, 32], x, out, 100) == 0
    assert checked(first[5, 32], x, out, 100) == 1  # a grid
    assert checked(first[4, 32], x, out[:80], 80) == 1  # a shape
    assert checked(first[4, 32], x, out, 90) == 1  # a number
    assert checked(first[4, 32], x.astype(np.float64), out, 100) == 1  # a type
    assert checked(first[4, 64], x, out, 100) == 1  # a block
    assert checked(first[4, 32], np.zeros(100, np.float32), out, 100) == 0  # elements
    with pytest.raises(OutOfBounds):
        first[4, 32](x, out, 101)


def test_checks_end_when_they_have_taken_their_time(
    checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_launches, "SECONDS", 1e-9)
    copy = copying()
    for size in (100, 80, 60):
        copy[1, 50](*arrays(size))
    copy[1, 40](*arrays(100))
    assert len(checks) == 2  # the first of each block shape


def test_arrays_too_large_for_a_shadow_are_not_checked(
    checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_launches, "ELEMENTS", 99)
    x, out = arrays(100)
    copying()[4, 25](x, out)
    assert checks == []
    copying()[1, 99](x, out[:99])  # how long the others are makes no difference
    assert checks == ["copy"]


def test_a_kernel_that_cannot_be_checked_runs_with_a_warning(
    checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(kernel: Any, *arguments: Any) -> Any:
        if CHECKED in arguments:
            raise KeyError("an internal error")
        return run(kernel, *arguments)

    run = CpuKernel.compiled
    monkeypatch.setattr(CpuKernel, "compiled", compiled)
    copy, (x, out) = copying(), arrays(100)
    with pytest.warns(RuntimeWarning, match="'copy' runs unchecked: 'an internal error'") as warned:
        copy[4, 25](x, out)
    assert warned[0].filename == __file__
    assert set(out) == {1}
    copy[2, 50](x, out)  # without another warning
    with pytest.raises(mk.KernelError, match="takes 2 arguments") as caught:
        copying()[1, 1](x)  # what cannot run at all is refused
    assert caught.value.__context__ is None


def test_blocks_that_tell_each_other_something_by_fences_are_left_alone(checks: list[str]) -> None:
    @cuda.jit(device=True)
    def is_last(count):
        cuda.threadfence()
        return cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1

    @cuda.jit
    def total(x, count, partial, out):
        i, block = cuda.grid(1), cuda.blockIdx.x
        cuda.atomic.add(partial, block, x[i])
        cuda.syncthreads()
        if cuda.threadIdx.x == 0 and is_last(count):
            for other in range(cuda.gridDim.x):
                out[0] += partial[other]

    out = np.zeros(1)
    total[4, 25](np.ones(100), np.zeros(1, np.int32), np.zeros(4), out)
    assert out == 100
    assert checks == []


def test_a_race_that_does_no_harm_can_be_left_alone(checks: list[str]) -> None:
    def spread(near, levels):
        i = cuda.grid(1)
        if levels[near[i]] < levels[i]:
            levels[i] = levels[near[i]]

    near, levels = np.roll(np.arange(64), 1), np.arange(64)
    with pytest.raises(DataRace) as caught:
        cuda.jit(spread)[2, 32](near, levels)
    assert caught.value.__notes__ == [
        "If it does no harm, @cuda.jit(checked=False) leaves this check out"
    ]
    cuda.jit(checked=False)(spread)[2, 32](near, levels)


# Who wants it otherwise -----------------------------------------------------------------------


def test_the_environment_decides(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for value, checked in ("0", 0), ("1", 2), ("", 1):
        monkeypatch.setenv("MINITRANSFORMER_CHECK", value)
        del checks[:]
        copy = copying()
        copy[4, 25](*arrays(100))
        copy[4, 25](*arrays(100))
        assert len(checks) == checked
    monkeypatch.setenv("MINITRANSFORMER_CHECK", "yes")
    with pytest.raises(mk.KernelError, match="MINITRANSFORMER_CHECK must be 0 or 1, got 'yes'"):
        copying()[4, 25](*arrays(100))


def test_the_decorator_decides(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for value, checked in (False, 0), (True, 2), (None, 1):
        del checks[:]
        copy = copying(checked=value)
        assert copy.options == {}  # for Numba
        copy[4, 25](*arrays(100))
        copy[4, 25](*arrays(100))
        assert len(checks) == checked
    monkeypatch.setenv("MINITRANSFORMER_CHECK", "1")
    copying(checked=False)[4, 25](*arrays(100))
    assert checks[-1:] == ["copy"]


def test_the_context_decides(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copying()
    for value in "", "1":
        monkeypatch.setenv("MINITRANSFORMER_CHECK", value)
        with mk.checked(False):
            copy[4, 25](*arrays(100))
    assert checks == []
    monkeypatch.setenv("MINITRANSFORMER_CHECK", "0")
    with mk.checked():
        copy[4, 25](*arrays(100))
        copy[4, 25](*arrays(100))
    with pytest.raises(OutOfBounds), mk.checked():
        copy[4, 32](*arrays(100))
    assert len(checks) == 3
    copy[4, 25](*arrays(100))  # checks end with the context, even after an error
    assert len(checks) == 3


def test_this_packages_kernels_are_tested_already(checks: list[str]) -> None:
    forward(*np.ones((3, 1, 1, 8, 8), np.float32))
    assert checks == []
    with mk.checked():
        forward(*np.ones((3, 1, 1, 8, 8), np.float32))
    assert checks


def test_the_source_of_a_kernel_that_was_only_checked_is_that_of_the_fast_one(
    checks: list[str],
) -> None:
    copy = copying()
    copy[4, 25](*arrays(100))
    source = copy.cpu_source()
    assert "out[u(block_x * BLOCK_X + thread_x)] = x[" in source
    copy[4, 25](*arrays(100))
    assert checks == ["copy"]
    assert copy.cpu_source() == source


# What is read when something goes wrong -------------------------------------------------------

SCRIPT = """
import numpy as np, sys
from minitransformer_kernels.cuda import cuda

@cuda.jit
def far(x, n):
    x[cuda.grid(1) + n] = 1
{before}
x = np.zeros(64)
far[2, 32](x, {n})
{after}
"""


def stderr(
    folder: Path, check: str, n: int, before: str = "", after: str = "", threads: int = 1
) -> list[str]:
    """The last lines of a process that goes wrong; threads that do so at once interrupt others."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(n=n, before=before, after=after))
    chosen = {"MINITRANSFORMER_CHECK": check, "MINITRANSFORMER_NUM_THREADS": str(threads)}
    environment = os.environ | chosen
    done = subprocess.run(
        [sys.executable, str(script)], env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr.splitlines()


def test_a_script_ends_in_the_sentence(tmp_path: Path) -> None:
    head, place, code, *rest = stderr(tmp_path, "", n=1 << 40)
    assert head == "Traceback (most recent call last):"
    assert place == f'  File "{tmp_path}/script.py", line 10, in <module>'
    assert code.strip() == f"far[2, 32](x, {1 << 40})"
    (sentence,) = [line for line in rest if line.strip("~^ ")]
    assert sentence.startswith("minitransformer_kernels.cpu.errors.OutOfBounds: ")
    assert "script.py:7: kernel 'far': in block (0, 0, 0), thread (0, 0, 0) writes" in sentence


@pytest.mark.parametrize(
    "call",
    [
        lambda: copying()[4, 32](*arrays(100)),
        lambda: copying()[4, 32](np.ones((2, 2)), *arrays(2)),
        lambda: copying()[4, 32](np.ones((2, 2)), np.ones(3)),
        lambda: copying()[4.0, 32],
        lambda: copying().forall(-1),
        lambda: copying().cpu_source(),
        lambda: copying()(),
        lambda: cuda.jit(3),
    ],
)
def test_no_frame_of_ours_stands_above_it(call: Any, checks: list[str]) -> None:
    with pytest.raises(mk.KernelError) as caught:
        call()
    assert_nothing_of_ours_is_shown(caught.value, __file__)


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
class TestLastWords:
    """The process dies in an unchecked launch, or of it."""

    LINE = (
        "The last kernel that ran unchecked is 'far' ({}/script.py:5). Such code can write over "
        "any memory, as on a GPU; MINITRANSFORMER_CHECK=1 checks every access"
    )

    def test_in_a_launch(self, tmp_path: Path) -> None:
        for threads in 1, 2:
            lines = stderr(tmp_path, "0", n=1 << 40, threads=threads)
            assert lines[-1] == self.LINE.format(tmp_path)

    def test_after_it(self, tmp_path: Path) -> None:
        for end in "os.abort()", "os.kill(os.getpid(), 11)":
            lines = stderr(tmp_path, "0", n=0, after=f"import os; {end}")
            assert lines == [self.LINE.format(tmp_path)]

    def test_when_python_has_ended(self, tmp_path: Path) -> None:
        after = (
            "import ctypes\n"
            "abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p)\n"
            "ctypes.pythonapi.Py_AtExit(abort)"
        )
        assert stderr(tmp_path, "0", n=0, after=after) == [self.LINE.format(tmp_path)]

    def test_beside_pythons_own_report(self, tmp_path: Path) -> None:
        enable = "import faulthandler; faulthandler.enable()"
        first = stderr(tmp_path, "0", n=1 << 40, before=enable)
        assert first[0] == self.LINE.format(tmp_path)  # who came last is asked first
        assert "Fatal Python error: Segmentation fault" in first
        last = stderr(tmp_path, "0", 1 << 40, before="far[1, 1](np.zeros(2), 1)\n" + enable)
        assert "Fatal Python error: Segmentation fault" in last
        assert last[-1] == self.LINE.format(tmp_path)

    def test_of_a_process_that_ran_no_kernel(self, tmp_path: Path) -> None:
        before = "import ctypes; ctypes.string_at(8)"
        assert stderr(tmp_path, "0", n=0, before=before) == []

"""Programs for GPUs run unchanged: each in a process of its own, where the door is put in place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import math
import sys

import numba
import numpy as np
import numba.cuda.cudadrv.devicearray
from numba import cuda, guvectorize, vectorize
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.cudadrv.error import CudaSupportError
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
from numba_cuda_mlir import cuda as successor
import numba_cuda_mlir.cuda.random


@cuda.jit(device=True)
def squared(x):
    return x * x


@vectorize(["float64(float64)"], target="cuda")
def on_device(x):
    return squared(x) + 1


@vectorize
def on_host(x):
    return x + 1


@successor.jit
def sample(states, out):
    i = successor.grid(1)
    if i < out.size:
        out[i] = 1 + xoroshiro128p_uniform_float32(states, i)


assert numba.cuda is cuda is successor is sys.modules["numba.cuda"]
assert numba_cuda_mlir.cuda.random.create_xoroshiro128p_states is create_xoroshiro128p_states
states = create_xoroshiro128p_states(64, seed=1)
out = cuda.device_array(50)
sample[2, 32](states, out)
numbers = out.copy_to_host()
assert ((numbers >= 1) & (numbers < 2)).all() and len(set(numbers)) == 50
assert isinstance(out, numba.cuda.cudadrv.devicearray.DeviceNDArray)
assert on_device(np.arange(3.0)).tolist() == [1, 2, 5]
assert isinstance(on_device(out), numba.cuda.cudadrv.devicearray.DeviceNDArray)
assert type(on_host).__module__.startswith("numba.") and on_host(np.arange(2)).tolist() == [1, 2]
assert numba.njit(lambda x: x + 1)(1) == 2
made = {}
exec("def later(x):\\n    x[0] = 7", {}, made)  # and nothing keeps the text
cuda.jit(made["later"])[1, 1](numbers)
exec("here = numbers[0]", None)
assert here == 7
print("all", *sys.argv[1:])
"""

TEST = """
import numpy as np
import pytest
from numba import cuda

if not cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


@cuda.jit
def add_one(x):
    x[cuda.grid(1)] += 1


def test_passes():
    there = cuda.to_device(np.zeros(4))
    add_one[1, 4](there)
    assert there.copy_to_host().tolist() == [1] * 4


@cuda.jit
def reads_around_the_end(x):
    i = cuda.grid(1)
    x[i, 0] = x[i, 1 - cuda.blockDim.x]


def test_wraps():
    x = np.arange(8.0).reshape(4, 2)
    reads_around_the_end[2, 2](x)


def test_forgets_to_copy():
    x = np.zeros(4)
    add_one[1, 4](cuda.to_device(x))
    assert x.tolist() == [1] * 4
"""

CONFTEST = """
from numba import cuda

assert cuda.is_available()
"""


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: x for name, x in os.environ.items() if name != "MINITRANSFORMER_CHECK"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
        env=inherited | environment, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("simulator", [pytest.param("0", marks=pytest.mark.nightly), "1"])
def test_a_script_runs_unchanged(tmp_path: Path, simulator: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = "-m", "minitransformer", "run", "script.py", "given", "--to", "it"
    ran = python(tmp_path, *run, NUMBA_ENABLE_CUDASIM=simulator)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("all given --to it\n", "", 0)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n1",), marks=pytest.mark.nightly)])
def test_tests_run_unchanged(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    if not workers:
        (tmp_path / "conftest.py").write_text(CONFTEST)
    plugin = ("-p", "minitransformer_kernels.without_gpu")
    ran = python(tmp_path, "-m", "pytest", "-rA", *plugin, *workers, "test_it.py")
    assert "PASSED test_it.py::test_passes" in ran.stdout, ran.stdout
    assert "FAILED test_it.py::test_forgets_to_copy" in ran.stdout
    assert "1 failed, 2 passed" in ran.stdout
    assert "MINITRANSFORMER_CHECK=1 checks every launch" in ran.stdout


def test_tests_are_checked_on_demand(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    plugin = ("-p", "minitransformer_kernels.without_gpu")
    command = "-m", "pytest", "-rA", *plugin, "test_it.py"
    ran = python(tmp_path, *command, MINITRANSFORMER_CHECK="1")
    assert "FAILED test_it.py::test_wraps - minitransformer_kernels" in ran.stdout, ran.stdout
    assert "every launch is checked" in ran.stdout


def test_without_it_numba_stays_as_it_is(tmp_path: Path) -> None:
    ran = python(
        tmp_path, "-c",
        "import sys, numba, minitransformer_kernels.without_gpu\n"
        "from numba import cuda\n"
        "print(type(cuda).__name__, 'numba_cuda_mlir' in sys.modules, cuda.jit.__module__)",
    )  # fmt: skip
    assert ran.stdout == "module False numba.cuda.decorators\n", ran.stderr

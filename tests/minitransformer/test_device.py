"""Where arrays live."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor
from minitransformer.device import (
    array_module,
    as_array,
    cuda_problem,
    keep_freed_memory,
    resolve_device,
    to_device,
)


def test_round_trip(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x.to(device)
    assert y.device == device
    (y * y).sum().backward()
    assert x.grad.device == "cpu"
    assert x.grad.tolist() == [2.0, 4.0]
    assert Tensor([1], device=device).device == device
    assert y.numpy().tolist() == [1.0, 2.0]


def test_auto_takes_what_works() -> None:
    assert resolve_device("auto") == ("cpu" if cuda_problem() else "cuda")


def test_arrays_are_not_copied() -> None:
    array = np.ones(3)
    assert as_array(array) is array
    assert as_array(array, "cpu", np.float64) is array
    assert to_device(array, "cpu") is array
    assert array_module(array) is array_module(3.0) is np


def test_lists_keep_their_digits_where_a_dtype_is_asked_for() -> None:
    assert as_array([0.1, 1.7e9 + 1], dtype=np.float64).tolist() == [0.1, 1.7e9 + 1]
    assert as_array([0.1]).dtype == np.float32


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device: expected 'auto', 'cpu' or 'cuda', got 'gpu'"):
        resolve_device("gpu")


@pytest.mark.parametrize(
    "move", [lambda: Tensor([1.0]).to("cuda"), lambda: Tensor([1.0], device="cuda")]
)
def test_missing_cuda_says_what_to_install(monkeypatch: pytest.MonkeyPatch, move: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError) as caught:
        move()
    assert 'pip install "minitransformer[cuda12]" (or "minitransformer[cuda13]")' in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert resolve_device("auto") == "cpu"


def test_a_broken_cupy_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cupy.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(RuntimeError, match="CuPy is installed but cannot be imported; pip install"):
        resolve_device("cuda")


def test_cupy_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cupy:
        class cuda:
            @staticmethod
            def is_available() -> bool:
                return False

    monkeypatch.setitem(sys.modules, "cupy", Cupy)
    with pytest.raises(RuntimeError, match="finds no CUDA driver or GPU; see `minitransformer doc"):
        resolve_device("cuda")


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    """What comes back is clean either way: the setting changes who holds the pages."""
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    assert not np.zeros(2**22).any()


FLAGS = """
import re, sys, numpy as np
from minitransformer.device import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
array = np.zeros(2**19, "f4")  # two megabytes: NumPy itself asks from four up
middle = array.ctypes.data + array.nbytes // 2
for line in open("/proc/self/smaps"):
    if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
        first, end = (int(number, 16) for number in found.groups())
    if line.startswith("VmFlags:") and first <= middle < end:
        print(line)
"""


@pytest.mark.skipif(
    not (
        Path("/sys/kernel/mm/transparent_hugepage").is_dir() and platform.libc_ver()[0] == "glibc"
    ),
    reason="this system lends no huge pages",
)
@pytest.mark.parametrize("kept", ["kept", "not"])
def test_arrays_then_lie_in_huge_pages(kept: str) -> None:
    command = [sys.executable, "-c", FLAGS, kept]
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    said = subprocess.run(command, env=plain, capture_output=True, text=True)
    assert said.stdout.startswith("VmFlags:"), said
    assert (" hg" in said.stdout) is (kept == "kept")


def test_without_such_a_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is False

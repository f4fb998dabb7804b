"""The doctor knows what does not go together, and never breaks down itself."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer import doctor
from minitransformer.doctor import ABSENT, BAD, OK, Driver, Facts, Finding

HEALTHY = {"python": "3.12.1", "numpy": "2.4.6", "numba": "0.62.0", "llvmlite": "0.45.0"}
CUDA = {"cupy-cuda13x": "14.0.0", "numba-cuda": "0.30.4"}
NEW, OLD = Driver((13, 0), ("H200",)), Driver((12, 8), ("P4000",))


def troubles(driver: Driver | None = None, **changes: str) -> list[Finding]:
    versions = {**HEALTHY, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return list(doctor.known_troubles(Facts(versions, driver)))


def test_health_is_no_trouble() -> None:
    assert troubles() == []
    assert troubles(NEW, **CUDA) == []
    assert troubles(OLD, cupy_cuda12x="14.0.0", numba_cuda="0.30.4") == []
    assert troubles(None, cupy_cuda13x="14.0.0") == []


@pytest.mark.parametrize(
    ("driver", "changes", "text", "remedy"),
    [
        (None, {"numba": "0.60.1"}, "0.60.1 is too old", "install numba >= 0.61"),
        (None, {"python": "3.10.9"}, "3.10.9 is too old", "install python >= 3.11"),
        (None, {"numpy": "1.25.2"}, "1.25.2 is too old", "install numpy >= 1.26"),
        (NEW, {**CUDA, "numpy": "2.5.0rc1"}, "does not compile with NumPy 2.5", '"numpy<2.5"'),
        (NEW, {**CUDA, "cupy-cuda12x": "14.0.0"}, "overwrite each other", "pip uninstall cupy-cud"),
        (OLD, CUDA, "too old for cupy-cuda13x", 'pip install "minitransformer[cuda12]"'),
        (NEW, {"cupy-cuda13x": "14"}, "missing beside CuPy", '"minitransformer[cuda13]"'),
    ],
)
def test_what_does_not_go_together(
    driver: Driver | None, changes: dict[str, str], text: str, remedy: str
) -> None:
    (finding,) = troubles(driver, **changes)
    assert finding.status == BAD
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(("driver", "extra"), [(None, ""), (NEW, "[cuda13]"), (OLD, "[cuda12]")])
def test_cuda_is_offered_to_whom_it_serves(driver: Driver | None, extra: str) -> None:
    found, cupy, numba_cuda = doctor.cuda(Facts(HEALTHY, driver))
    assert found.status == (OK if driver else ABSENT)
    assert cupy.status == numba_cuda.status == ABSENT
    assert extra in cupy.remedy
    assert bool(cupy.remedy) == bool(driver)


def test_a_library_that_is_missing() -> None:
    findings = {finding.name: finding for finding in doctor.libraries(Facts(HEALTHY, None))}
    assert findings["numpy"] == Finding(OK, "numpy", "2.4.6")
    assert findings["tqdm"] == Finding(BAD, "tqdm", "not installed", "pip install tqdm")


def test_a_kernel_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> float:
        raise ImportError(f"no {device}\nand a long story")

    monkeypatch.setattr(doctor, "kernel_error", fail)
    finding = doctor.run_kernel("cuda")
    assert finding.status == BAD
    assert finding.text == "ImportError: no cuda"


def test_a_kernel_that_computes_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "kernel_error", lambda device: 0.5)
    assert doctor.run_kernel("cpu").status == BAD
    monkeypatch.setattr(doctor, "kernel_error", lambda device: float("nan"))
    assert doctor.run_kernel("cpu").status == BAD


def test_the_kernel_is_right_here() -> None:
    assert doctor.kernel_error("cpu") < 1e-5


def test_threads_that_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "all")
    *_, finding = doctor.kernel_settings()
    assert finding.status == BAD
    assert "MINITRANSFORMER_NUM_THREADS must be a whole number" in finding.text
    assert finding.remedy == "unset MINITRANSFORMER_NUM_THREADS"


@pytest.mark.parametrize("check", ["machine", "libraries", "cuda", "known_troubles", "find_driver"])
def test_a_check_that_breaks_is_a_finding(
    check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(doctor, check, fail)
    monkeypatch.setattr(doctor, "run_kernel", lambda device: Finding(OK, device, "ran"))
    code = doctor.run()
    printed = capsys.readouterr().out
    if check == "find_driver":
        assert (code, "CUDA driver      none" in printed) == (0, True)
    else:
        assert (code, "BAD  doctor           RuntimeError: surprise" in printed) == (1, True)
    assert "ok   cpu              ran" in printed


class FakeDriver:
    """The five functions of the CUDA driver that the doctor calls."""

    def __init__(self, path: str) -> None:
        assert path in ("libcuda.so.1", "nvcuda.dll")

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 12080

    def cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 2

    def cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> None:
        name.value = f"GPU {device.value}".encode()


@pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="no CUDA on this system")
def test_the_driver_is_asked_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", FakeDriver)
    assert doctor.find_driver() == Driver((12, 8), ("GPU 0", "GPU 1"))


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.processor_name()
    monkeypatch.setattr(Path, "read_text", lambda path: "nothing\n")
    assert doctor.processor_name()


def test_it_is_the_reference_that_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    from minitransformer_kernels import reference

    monkeypatch.setattr(reference, "linear_attention", lambda *_, **__: np.float64(1e3))
    assert doctor.kernel_error("cpu") > 900

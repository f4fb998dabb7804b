"""The doctor knows what does not go together, and never breaks down itself."""

import ctypes
import re
import sys
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minitransformer.commands import doctor
from minitransformer.commands.doctor import ABSENT, BAD, OK, Driver, Facts, Finding, Gpu

HEALTHY = {"python": "3.12.1", "numpy": "2.4.6", "numba": "0.62.0", "llvmlite": "0.45.0"}
CUDA = {"cupy-cuda13x": "14.0.0", "numba-cuda": "0.30.4"}
HOPPER, PASCAL = Gpu("NVIDIA H200", (9, 0), 150_754_820_096), Gpu("Quadro P4000", (6, 1), 8 << 30)
NEW, OLD, NEW_FOR_OLD = (
    Driver((13, 0), (HOPPER,)),
    Driver((12, 8), (PASCAL,)),
    Driver((13, 0), (HOPPER, PASCAL)),
)


def troubles(driver: Driver | None = None, **changes: str) -> list[Finding]:
    versions = {**HEALTHY, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return list(doctor.known_troubles(Facts(versions, driver)))


def test_health_is_no_trouble() -> None:
    assert troubles() == []
    assert troubles(NEW, **CUDA) == []
    assert troubles(NEW, cupy_cuda13x="14.0.0", numba_cuda_mlir="0.6.0", numpy="2.5.0") == []
    for driver in (OLD, NEW_FOR_OLD):
        assert troubles(driver, cupy_cuda12x="14.0.0", numba_cuda="0.30.4") == []
    assert troubles(None, cupy_cuda13x="14.0.0") == []


@pytest.mark.parametrize(
    ("driver", "changes", "text", "remedy"),
    [
        (None, {"numba": "0.60.1"}, "0.60.1 is too old", "install numba >= 0.61"),
        (None, {"python": "3.10.9"}, "3.10.9 is too old", "install python >= 3.11"),
        (None, {"numpy": "1.26.4"}, "1.26.4 is too old", "install numpy >= 2.0"),
        (NEW, {**CUDA, "numpy": "2.5.0rc1"}, "does not compile with NumPy 2.5", '"numpy<2.5"'),
        (NEW, {**CUDA, "cupy-cuda12x": "14.0.0"}, "overwrite each other", "pip uninstall cupy-cud"),
        (OLD, CUDA, "too old for cupy-cuda13x", 'pip install "minitransformer[cuda12]"'),
        (NEW_FOR_OLD, CUDA, "too old for CUDA 13, which needs sm_75", "[cuda12]"),
        (NEW, {**CUDA, "numba-cuda": "0.22.1"}, "0.22.1 is too old", "install numba-cuda >= 0.30"),
        (NEW, {**CUDA, "cupy-cuda13x": "13.6.0"}, "13.6.0 is too old", "cupy-cuda13x >= 14"),
        (NEW, {"cupy-cuda13x": "14"}, "missing beside CuPy", '"minitransformer[cuda13]"'),
        (None, {"threadpoolctl": "3.5.0"}, "3.5.0 is too old", "install threadpoolctl >= 3.8"),
    ],
)
def test_what_does_not_go_together(
    driver: Driver | None, changes: dict[str, str], text: str, remedy: str
) -> None:
    (finding,) = troubles(driver, **changes)
    assert finding.status == BAD
    assert text in finding.text
    assert remedy in finding.remedy


def test_the_oldest_versions_are_those_that_the_package_allows() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    base, extras = setup["options"]["install_requires"], setup["options.extras_require"]
    text = base + "".join(extras[f"cuda{n}{which}"] for n in (12, 13) for which in ("", "-mlir"))
    oldest = dict(re.findall(r"^([\w-]+)\S* >=(\S+)$", text, re.M))
    assert {"python": "3.11", **oldest} == doctor._OLDEST
    assert set(re.findall(r"^[\w-]+", base, re.M)) <= set(doctor._LIBRARIES)


def test_either_compiler_is_found() -> None:
    *_, found = doctor.cuda(Facts({**HEALTHY, "numba-cuda-mlir": "0.6.0"}, NEW))
    assert found == Finding(OK, "numba-cuda", "numba-cuda-mlir 0.6.0")


@pytest.mark.parametrize(
    ("driver", "extra"),
    [(None, ""), (NEW, "[cuda13]"), (OLD, "[cuda12]"), (NEW_FOR_OLD, "[cuda12]")],
)
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
    """The functions of the CUDA driver that the doctor calls."""

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

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> None:
        memory._obj.value = (1 + device.value) * 10**11

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: Any) -> None:
        number._obj.value = {75: 9 + device.value, 76: 0}[attribute]


@pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="no CUDA on this system")
def test_the_driver_is_asked_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", FakeDriver)
    gpus = Gpu("GPU 0", (9, 0), 10**11), Gpu("GPU 1", (10, 0), 2 * 10**11)
    assert doctor.find_driver() == Driver((12, 8), gpus)


def fake_cupy(product: Any) -> Any:
    """CuPy, if NumPy were it, with a matrix product of its own."""

    class Matrix(np.ndarray):
        def __matmul__(self, other: Any) -> Any:
            return product()

    def ones(shape: tuple[int, int], dtype: Any) -> Any:
        return np.ones(shape, dtype).view(Matrix)

    return SimpleNamespace(ones=ones, float32=np.float32)


def test_cupy_needs_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CuPy failed to load libcublas.so.13: OSError: no such file\nand more")

    facts = Facts({**HEALTHY, **CUDA}, NEW)
    for product, finding in (
        (lambda: np.full((32, 32), 32.0), (OK, "a matrix product in 0.0 s", "")),
        (lambda: np.full((32, 32), 31.0), (BAD, "a matrix product is wrong", "report")),
        (fail, (BAD, "RuntimeError: CuPy failed to load libcublas.so.13", '"minitransformer[cud')),
    ):
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy(product))
        status, name, text, remedy = doctor.run_cupy(facts)
        assert (status, name) == (finding[0], "CuPy on cuda")
        assert finding[1] in text
        assert finding[2] in remedy


def test_all_that_a_healthy_machine_with_a_gpu_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {**HEALTHY, **CUDA, "safetensors": "0.5", "tqdm": "4.67", "matplotlib": "3.10"}
    versions["threadpoolctl"] = "3.8"
    monkeypatch.setattr(doctor, "find_driver", lambda: NEW)
    monkeypatch.setattr(doctor, "installed_versions", lambda: versions)
    monkeypatch.setattr(doctor, "kernel_error", lambda device: 3e-7)
    product = fake_cupy(lambda: np.full((32, 32), 32.0))
    monkeypatch.setitem(sys.modules, "cupy", product)
    assert doctor.run() == 0
    printed = capsys.readouterr().out
    for line in (
        "ok   CUDA driver      for CUDA 13.0; NVIDIA H200 (sm_90, 151 GB)",
        "ok   CuPy             cupy-cuda13x 14.0.0",
        "ok   numba-cuda       numba-cuda 0.30.4",
        "ok   CuPy on cuda     a matrix product in 0.0 s",
        "ok   kernel on cuda   causal linear attention, compiled and run in 0.0 s, error 3e-07",
        "Everything that is needed works.",
    ):
        assert line in printed.splitlines()
    assert "what to do" not in printed


def test_it_is_the_reference_that_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    from minitransformer_kernels import reference

    monkeypatch.setattr(reference, "linear_attention", lambda *_, **__: np.float64(1e3))
    assert doctor.kernel_error("cpu") > 900

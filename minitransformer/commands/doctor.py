"""`minitransformer doctor`: what this machine has, whether it works, and how to mend it.

Nothing here may fail: what a check trips over is a finding too. Versions are read from the
installed metadata, so that a package that cannot even be imported still has its line.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from ..machine import processor

Result = TypeVar("Result")

OK, ABSENT, BAD = "ok", "--", "BAD"

_LIBRARIES = (
    "numpy", "numba", "llvmlite", "safetensors", "threadpoolctl", "tqdm", "matplotlib",
)  # fmt: skip
_OLDEST = {  # as in setup.cfg
    "python": "3.11", "numpy": "2.0", "numba": "0.61", "matplotlib": "3.9",
    "safetensors": "0.4.5", "threadpoolctl": "3.8", "tqdm": "4.66",
    "numba-cuda": "0.30", "numba-cuda-mlir": "0.6", "cupy-cuda12x": "14", "cupy-cuda13x": "14",
}  # fmt: skip
_OLDEST_FOR_CUDA_13 = (7, 5)  # Turing
_CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
_COMPILERS = ("numba-cuda", "numba-cuda-mlir")  # of kernels, for GPUs
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


class Finding(NamedTuple):
    """One line of the report."""

    status: str  # "ok"; "--" for what is missing but not needed; "BAD" for what has to be mended
    name: str  # what was looked at
    text: str  # what was found
    remedy: str = ""  # what to do about it; empty when there is nothing to do


class Gpu(NamedTuple):
    """A GPU, as its driver describes it."""

    name: str  # the model
    capability: tuple[int, int]  # the compute capability, such as (9, 0)
    memory: int  # bytes

    def __str__(self) -> str:
        return "{} (sm_{}{}, {:.0f} GB)".format(self.name, *self.capability, self.memory / 1e9)


class Driver(NamedTuple):
    """The CUDA driver."""

    version: tuple[int, int]  # the newest CUDA that it can run, such as (13, 0)
    gpus: tuple[Gpu, ...]  # what it drives

    @property
    def for_cuda_13(self) -> bool:
        """Whether CUDA 13 runs here, and compiles for each GPU."""
        new = all(gpu.capability >= _OLDEST_FOR_CUDA_13 for gpu in self.gpus)
        return new and self.version >= (13, 0)


class Facts(NamedTuple):
    """What the version rules look at."""

    versions: Mapping[str, str]  # by distribution name, and "python"; only what is installed
    driver: Driver | None  # the CUDA driver, or None

    def below(self, name: str, version: str) -> bool:
        """Return whether a distribution is installed in a version below this one."""
        return name in self.versions and _release(self.versions[name]) < _release(version)

    def at_least(self, name: str, version: str) -> bool:
        """Return whether a distribution is installed in this version or a later one."""
        return name in self.versions and not self.below(name, version)

    @property
    def cupy(self) -> tuple[str, ...]:
        """The installed distributions of CuPy: at most one of them can work."""
        return tuple(name for name in _CUPY if name in self.versions)

    @property
    def extra(self) -> str:
        """The extra that suits the driver and its GPUs."""
        return "cuda12" if self.driver and not self.driver.for_cuda_13 else "cuda13"

    @property
    def install(self) -> str:
        """The command that installs what CUDA needs here."""
        return f'pip install "minitransformer[{self.extra}]"'


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "doctor",
        help="what this machine has, and how to mend what is missing",
        description="Say what this machine has, run a kernel on each device, and say how\n"
        "to mend what is missing.",
    )
    parser.set_defaults(command=lambda options: run(), parser=parser)


def run() -> int:
    """Print the report, line by line as it is found; return 1 if something has to be mended."""
    bad = 0
    for finding in examine():
        print(render(finding), flush=True)
        bad += finding.status == BAD
    print(f"\n{_verdict(bad)}")
    return int(bad > 0)


def examine() -> Iterator[Finding]:
    """Yield everything that there is to say about this machine."""
    facts = Facts(installed_versions(), _quietly(find_driver))
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        machine,
        lambda: libraries(facts),
        lambda: cuda(facts),
        lambda: known_troubles(facts),
        kernel_settings,
        lambda: [run_kernel("cpu")],
        lambda: [run_cupy(facts), run_kernel("cuda")] if facts.driver and facts.cupy else [],
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding(BAD, "doctor", _one_line(error), "please report this line")


def machine() -> Iterator[Finding]:
    """Yield what the processor and the interpreter are."""
    yield Finding(OK, "system", platform.platform())
    yield Finding(OK, "processor", f"{processor()}, {os.cpu_count()} cores")
    yield Finding(OK, "python", f"{platform.python_version()} ({sys.executable})")


def libraries(facts: Facts) -> Iterator[Finding]:
    """Yield the version of every library that the base install needs."""
    for name in _LIBRARIES:
        if name in facts.versions:
            yield Finding(OK, name, facts.versions[name])
        else:
            yield Finding(BAD, name, "not installed", f"pip install {name}")


def cuda(facts: Facts) -> Iterator[Finding]:
    """Yield what there is of CUDA: nothing of it is needed to run on the CPU."""
    if facts.driver is None:
        yield Finding(ABSENT, "CUDA driver", "none, so kernels run on the CPU")
    else:
        version, gpus = facts.driver
        names = ", ".join(map(str, gpus)) or "but no GPU"
        yield Finding(OK, "CUDA driver", f"for CUDA {version[0]}.{version[1]}; {names}")
    yield _optional(facts, "CuPy", _CUPY)
    yield _optional(facts, "numba-cuda", _COMPILERS)


def known_troubles(facts: Facts) -> Iterator[Finding]:
    """Yield every combination of versions that is known not to work."""
    for name, oldest in _OLDEST.items():
        if facts.below(name, oldest):
            text = f"{facts.versions[name]} is too old"
            yield Finding(BAD, name, text, f"install {name} >= {oldest}")
    if "numba-cuda" in facts.versions and facts.at_least("numpy", "2.5"):
        text = f"does not compile with NumPy {facts.versions['numpy']}"
        yield Finding(BAD, "numba-cuda", text, 'pip install "numpy<2.5"')
    if len(facts.cupy) > 1:
        remedy = f"pip uninstall {' '.join(facts.cupy)}, then {facts.install}"
        yield Finding(BAD, "CuPy", f"{' and '.join(facts.cupy)} overwrite each other", remedy)
    if facts.driver and not facts.driver.for_cuda_13 and "cupy-cuda13x" in facts.versions:
        old = facts.driver.version < (13, 0)
        text = f"too old for {'cupy-cuda13x' if old else 'CUDA 13, which needs sm_75'}"
        remedy = f"pip uninstall cupy-cuda13x, then {facts.install}"
        remedy = f"update the driver, or {remedy}" if old else remedy
        yield Finding(BAD, "CUDA driver" if old else "GPU", text, remedy)
    if facts.driver and facts.cupy and not any(name in facts.versions for name in _COMPILERS):
        yield Finding(BAD, "numba-cuda", "missing beside CuPy", facts.install)


def kernel_settings() -> Iterator[Finding]:
    """Yield on how many threads kernels run, and where they are kept once compiled."""
    from minitransformer_kernels.cpu import cache, num_threads

    yield Finding(OK, "kernel cache", str(cache.folder()))
    variable = "MINITRANSFORMER_NUM_THREADS"
    try:
        yield Finding(OK, "kernel threads", f"{num_threads()}; {variable} sets another number")
    except ValueError as error:
        yield Finding(BAD, "kernel threads", _one_line(error), f"unset {variable}")


def run_cupy(facts: Facts) -> Finding:
    """Multiply matrices with CuPy, which needs CUDA's libraries and its compiler of C++."""
    name = "CuPy on cuda"
    try:
        start = time.perf_counter()
        cupy = importlib.import_module("cupy")
        ones = cupy.ones((32, 32), cupy.float32)
        right = bool(((ones @ ones) * 2 == 64).all())
        seconds = time.perf_counter() - start
    except Exception as trouble:
        return Finding(BAD, name, _one_line(trouble), f"{facts.install} has all that it needs")
    if not right:
        return Finding(BAD, name, "a matrix product is wrong", "please report this machine")
    return Finding(OK, name, f"a matrix product in {seconds:.1f} s")


def run_kernel(device: str) -> Finding:
    """Run causal linear attention on a device, and compare it with the float64 reference."""
    name = f"kernel on {device}"
    try:
        start = time.perf_counter()
        error = kernel_error(device)
        seconds = time.perf_counter() - start
    except Exception as trouble:
        return Finding(BAD, name, _one_line(trouble), "mend what is marked BAD above, if anything")
    status = OK if error < 1e-5 else BAD
    remedy = "" if status == OK else "the result is wrong; please report this machine"
    text = f"causal linear attention, compiled and run in {seconds:.1f} s, error {error:.0e}"
    return Finding(status, name, text, remedy)


def kernel_error(device: str) -> float:
    """Return by how much causal linear attention differs from the reference on a device."""
    import numpy as np

    from minitransformer_kernels import recurrent, reference
    from minitransformer_kernels.visible import CAUSAL

    generator = np.random.default_rng(0)
    query, key, value = generator.standard_normal((3, 1, 2, 37, 16), np.float32)
    module = importlib.import_module("cupy") if device == "cuda" else np
    output = recurrent.forward(*map(module.asarray, (query, key, value)))[0]
    expected = reference.linear_attention(query, key, value, CAUSAL)
    found = output if device == "cpu" else module.asnumpy(output)
    return float(np.abs(found - expected).max())


def installed_versions() -> dict[str, str]:
    """Return the version of Python and of every distribution that matters here."""
    versions = {"python": platform.python_version()}
    for name in (*_LIBRARIES, *_CUPY, *_COMPILERS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def find_driver() -> Driver | None:
    """Ask the CUDA driver itself, through its C interface, which every later driver keeps."""
    try:
        library = ctypes.CDLL(_DRIVERS[sys.platform])
    except (KeyError, OSError):
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    if library.cuInit(0) == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_gpu(library, index) for index in range(count.value))
    return Driver((version.value // 1000, version.value % 1000 // 10), gpus)


def render(finding: Finding) -> str:
    """Return a finding as it is printed: one line, and a second one for the remedy.

    >>> print(render(Finding(BAD, "numba", "not installed", "pip install numba")))
    BAD  numba            not installed
         what to do:      pip install numba
    """
    line = f"{finding.status:4} {finding.name:16} {finding.text}"
    return f"{line}\n     {'what to do:':16} {finding.remedy}" if finding.remedy else line


def _optional(facts: Facts, label: str, names: Iterable[str]) -> Finding:
    found = [f"{name} {facts.versions[name]}" for name in names if name in facts.versions]
    if found:
        return Finding(OK, label, ", ".join(found))
    return Finding(ABSENT, label, "not installed", facts.install if facts.driver else "")


def _verdict(bad: int) -> str:
    return f"{bad} to mend: see BAD above." if bad else "Everything that is needed works."


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(100), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in _CAPABILITY:
        number = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return Gpu(name.value.decode(errors="replace"), (capability[0], capability[1]), memory.value)


def _quietly(look: Callable[[], Result]) -> Result | None:
    try:
        return look()
    except Exception:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: "2.5.0rc1" is (2, 5, 0)."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _one_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"

"""What this GPU does at best.

A copy, its bytes read and its bytes written both counted; products of square matrices of random
numbers, by PyTorch, in the precisions that others below are run in; and kernels that do nothing,
launched one after the other. The best of a few turns after two of warming up.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from minitransformer_kernels.cuda import cuda

from .clock import Device, Row, Run, reason
from .floors import Ceilings

COPY, PRODUCT, NOTHING = "copy", "product of matrices", "an empty kernel, through our launch"
SIZES = {"full": (2**30, 8192), "rehearsal": (2**12, 64)}  # numbers copied, rows of a matrix
TURNS = 5
PACKAGES = (
    "minitransformer", "numpy", "numba", "numba-cuda", "numba-cuda-mlir", "torch", "triton",
    "fla-core",
)  # fmt: skip


def rows(device: Device, size: str) -> Iterator[Row]:
    """Yield a row for each ceiling."""
    numbers, side = SIZES[size]
    yield from copies(device, numbers)
    device.free()
    yield from products(device, side)
    launch, array = empty_kernel[1, 32], device.array([0.0])
    yield ceiling(device, NOTHING, "", "kernels/ms", 1e-3, lambda call: launch(array), calls=200)


def copies(device: Device, numbers: int) -> Iterator[Row]:
    """Yield what PyTorch and our arrays need for a copy."""
    source, target = (device.random(numbers) for _ in range(2))
    theirs, there = device.tensor(source), device.tensor(target)
    moved = 2 * source.nbytes / 1e9
    for who, run in (
        ("PyTorch", lambda call: there.copy_(theirs)),
        ("our arrays", lambda call: device.xp.copyto(target, source)),
    ):
        what = f"{COPY} of {moved / 2:.3g} GB, {who}"
        yield ceiling(device, what, "float32", "GB/s", moved, run)


def products(device: Device, side: int) -> Iterator[Row]:
    """Yield the rate of a product of square matrices, in each precision."""
    matrices = [device.tensor(device.random(side, side, seed=seed)) for seed in range(2)]
    what, amount = f"{PRODUCT}, {side:,} rows", 2 * side**3 / 1e12
    settings = torch.backends.cuda.matmul
    for precision in ("float32", "TF32", "bfloat16"):
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        a, b = (matrix.to(dtype) for matrix in matrices)
        before, settings.allow_tf32 = settings.allow_tf32, precision == "TF32"
        yield ceiling(device, what, precision, "TFLOP/s", amount, times(a, b))
        settings.allow_tf32 = before


@cuda.jit
def empty_kernel(array):  # type: ignore[no-untyped-def]
    """Do nothing."""


def times(a: torch.Tensor, b: torch.Tensor) -> Run:
    """Return what multiplies two matrices."""
    return lambda call: a @ b


def ceiling(
    device: Device,
    what: str,
    precision: str,
    unit: str,
    amount: float,
    run: Run,
    calls: int = 5,
) -> Row:
    """Return a row with the highest rate, in `amount` a second; one without, if it fails."""
    row: Row = {"what": what, "precision": precision, "ms": None, "rate": None, "unit": unit}
    try:
        turns = [device.time(run, calls)[0] for _ in range(TURNS + 2)][2:]
    except Exception as problem:
        return row | {"note": reason(problem)}
    return row | {"ms": 1e3 * min(turns), "rate": amount / min(turns), "note": None}


def ceilings(rows: list[Row]) -> Ceilings | None:
    """Return the ceilings that recorded rows hold; None where one is missing."""

    def best(what: str) -> float | None:
        rates = [
            row["rate"]
            for row in rows
            if row.get("what", "").startswith(what) and row["precision"] == "float32"
        ]
        return max((rate for rate in rates if rate), default=None)

    bandwidth, rate = best(COPY), best(PRODUCT)
    return Ceilings(bandwidth * 1e9, rate * 1e12) if bandwidth and rate else None


def describe(device: Device) -> Row:
    """Return what the numbers depend on, and nothing that names the machine or its user."""
    found: Row = {}
    if device.name == "cuda":
        runtime = device.xp.cuda.runtime
        properties = torch.cuda.get_device_properties(0)
        found = {
            "GPU": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_GB": round(properties.total_memory / 1e9),
            "L2_MB": round(device.cache_bytes() / 1e6),
            "driver": driver(),
            "driver_CUDA": version(runtime.driverGetVersion()),
            "cupy": device.xp.__version__,
            "cupy_CUDA": version(runtime.runtimeGetVersion()),
            "torch_CUDA": torch.version.cuda,
        }
    found["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def version(number: int) -> str:
    """Return CUDA's number of a version as people write it: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def driver() -> str | None:
    """Return the version of NVIDIA's driver, as Linux tells it."""
    told = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+[.\d]*", told.read_text()) if told.exists() else None
    return found and found.group()

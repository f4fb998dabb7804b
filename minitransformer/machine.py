"""What runs here: the processor, its cores, the versions of what computes, who started it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

_LAUNCHERS = (  # the variables by which they tell a process its rank, and how many there are
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and its relatives
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched() -> tuple[int, int]:
    """Return which process this is of how many that a launcher has started; 0 of 1 without one."""
    for rank, size in _LAUNCHERS:
        if size in os.environ:
            return int(os.environ.get(rank, "0")), int(os.environ[size])
    return 0, 1


def machine(packages: Iterable[str] = ("numpy", "numba", "llvmlite")) -> dict[str, Any]:
    """Return what measured numbers depend on, and nothing that names the machine or its user.

    Args:
        packages: Whose versions count, beside Python's.
    """
    from minitransformer_kernels.cpu import num_threads

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }


def processor() -> str:
    """Return the processor's model, as far as the system tells.

    A virtual machine's name may be that of all generations (AMD EPYC): then family and model, which
    its code generators go by, say which.
    """
    for look in (_on_linux, _on_macos):
        with suppress(Exception):
            return look()
    return platform.processor() or "unknown"


def _on_linux() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    says = {key.strip(): value.strip() for key, _, value in pairs}
    name = says["model name"]
    if any(map(str.isdigit, name)) or "cpu family" not in says:
        return name
    return f"{name} (family {says['cpu family']}, model {says['model']})"


def _on_macos() -> str:
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

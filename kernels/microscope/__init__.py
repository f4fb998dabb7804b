"""A kernel under the microscope: what each line asks of a GPU, found without one.

    report = microscope.inspect(kernel[blocks, threads], *arguments, gpu="H100")
    print(report)
    report.picture("kernel.png")

The launch runs on the CPU, where every access of every thread is noted down, so give it small
arrays: two or three blocks show what a thousand would. The modules:

    warps       what a warp's accesses cost: sectors, wavefronts, lanes
    roofline    how fast the kernel can be at most
    compiled    registers, spills, occupancy, stray float64
    advice      what to look at, in sentences
    causes      why an access costs more than it has to
    report      all this together, line by line
    table       as text, with numbers by `units`
    comparison  several kernels beside each other
    picture     as a picture, with memory by `panels` on `paper`
    instructions  what each line becomes in PTX, and how often that runs
    stepping    a launch, walked through instruction by instruction
    targets     which kernel and which launch a command line means

The peaks of GPUs by name and the limits of their multiprocessors are in `gpu.gpus`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from .. import host
from ..cuda import Launch
from ..gpu import gpus
from ..gpu.gpus import GPU, GPUS
from .comparison import compare
from .compiled import compiled as _compiled
from .instructions import Instructions, compare_ptx, inspect_ptx
from .report import Line, Report

__all__ = ["GPU", "GPUS", "Instructions", "Line", "NotLaunched", "Report", "compare",
           "compare_ptx", "inspect", "inspect_ptx", "watch"]  # fmt: skip

_NOT_COMPILED = "registers, spills and occupancy: not asked for"


def inspect(launch: Launch, *arguments: Any, gpu: str = "H100", compiled: bool = True) -> Report:
    """Put a launch under the microscope.

    Args:
        launch: A kernel with its configuration, `kernel[blocks, threads]`.
        arguments: What the kernel would be called with: NumPy arrays, device arrays without a GPU,
            and numbers; those with defaults may be left out. They are not modified.
        gpu: The GPU for the roofline, a key of `GPUS`.
        compiled: Whether to compile the kernel for GPUs too, if the extra for it is installed.

    Returns:
        The report.

    Raises:
        KernelError: the kernel or its launch is wrong.
        ValueError: no GPU of that name is known.
    """
    from ..cpu.doubles import doubles
    from ..cpu.watchers.traced_mode import record

    chosen, arguments = gpus.find(gpu), launch.kernel.completed(host.opened(arguments))
    trace = record(launch.kernel, launch.grid, launch.block, arguments, launch.shared)
    wide = any(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in arguments)
    needs = _compiled(launch, arguments) if compiled else _NOT_COMPILED
    launches, arguments = launch.kernel.launches(arguments)
    by_types = doubles(launches.kernel, launch.block, arguments, launch.shared)
    return Report(trace, chosen, 8 if wide else 4, needs, by_types)


class NotLaunched(ValueError):
    """What was to be watched did not happen."""


def watch(
    function: Callable[[], Any], only: str | None = None, number: int = 1,
    look: Callable[..., Any] = inspect, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run a function, and put a launch of each kernel in it under the microscope.

    Args:
        function: Launches kernels.
        only: The name of the one kernel to look at; all of them by default.
        number: Which launch of a kernel; from 1, the first.
        look: What to look with: `inspect`, or `inspect_ptx`.
        options: Its own.

    Returns:
        The reports, by the names of the kernels.

    Raises:
        NotLaunched: the function does not launch a kernel so often, or not the one of that name.
    """
    reports: dict[str, Any] = {}
    launches: Counter[str] = Counter()
    run = Launch.__call__

    def inspect_and_run(launch: Launch, *arguments: Any) -> None:
        name = launch.kernel.__name__
        launches[name] += 1
        if launches[name] == number and only in (None, name):
            reports[name] = look(launch, *arguments, **options)
        run(launch, *arguments)

    with patch.object(Launch, "__call__", inspect_and_run):
        function()
    if not reports:
        found = ", ".join(f"{name} ({count} times)" for name, count in launches.items())
        again = f" {number} times" if number > 1 else ""
        which = f"kernel {only!r}" if only is not None else "a kernel"
        raise NotLaunched(f"{which} was not launched{again}; launched were: {found or 'none'}")
    return reports

"""What surrounds a launch: device arrays, streams, events, devices, where there is no GPU.

A program that uses a GPU moves arrays there, launches kernels and moves results back. Here is the
part that is not the kernel, under the names and with the signatures that Numba documents:

    arrays     the device's memory: `to_device`, `copy_to_host`, `device_array`, ...
    devices    the device, its context, streams and events
    functions  `reduce`, `vectorize`, `guvectorize`
    random     generators of random numbers, a state each thread

The door (`cuda.py`) finds them by name. Where there is a GPU the names are Numba's own, and nothing
of this is used.
"""

from __future__ import annotations

import difflib
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from ..gpu import compilers
from . import arrays, devices, functions
from .arrays import DeviceArrayBase, In

BEYOND = {  # what Numba has, and this has not
    "open_ipc_array": "processes share no device arrays here; copy them",
    "set_memory_manager": "memory is NumPy's here; leave it out",
}


def _refuse(name: str, *arguments: Any, **keywords: Any) -> Any:
    raise NotImplementedError(f"cuda.{name} needs a GPU: {BEYOND[name]}")


OURS: dict[str, Any] = {
    name: getattr(module, name)
    for module, names in {
        arrays: (
            "to_device", "device_array", "device_array_like", "pinned_array", "pinned_array_like",
            "mapped_array", "mapped_array_like", "managed_array", "pinned", "mapped",
            "is_cuda_array", "as_cuda_array", "from_cuda_array_interface", "In", "Out", "InOut",
            "DeviceNDArray",
        ),
        devices: (
            "is_available", "is_supported_version", "cuda_error", "detect", "gpus", "list_devices",
            "select_device", "get_current_device", "current_context", "require_context",
            "synchronize", "close", "defer_cleanup", "stream", "external_stream", "default_stream",
            "legacy_default_stream", "per_thread_default_stream", "event", "event_elapsed_time",
            "profiling", "profile_start", "profile_stop", "MemoryInfo",
        ),
        functions: ("Reduce", "vectorize", "guvectorize"),
    }.items()
    for name in names
} | {"reduce": functions.Reduce} | {name: partial(_refuse, name) for name in BEYOND}  # fmt: skip


PLAIN = {np.ndarray, int, float, np.float32, np.float64}  # most arguments, told apart at once


def opened(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a launch as kernels take them: what device arrays hold."""
    return tuple([a if type(a) in PLAIN else _opened(a) for a in arguments])


def _opened(argument: Any) -> Any:
    if isinstance(argument, (DeviceArrayBase, In)):
        return argument.argument
    numbas = arrays.is_cuda_ndarray(argument)  # its own, on a GPU
    if type(argument).__module__ == "cupy" or not (numbas or arrays.is_cuda_array(argument)):
        return argument
    if numbas or has_gpu():
        return import_module("cupy").asarray(argument)
    return arrays.as_cuda_array(argument).memory  # another library's


def _numba_cuda() -> Any:
    return compilers.compiler().namespace()


def find(name: str) -> Any:
    """What stands under a name of `cuda` outside kernels.

    Raises:
        AttributeError: nothing does.
    """
    if (name in OURS or name == "random") and not has_gpu():
        return OURS[name] if name in OURS else import_module(f"{__name__}.random")
    numbas = _numba_cuda()
    try:
        if name == "random":  # which Numba leaves to be imported
            return import_module(f"{numbas.__name__}.random")
        return getattr(numbas, name)
    except AttributeError:
        near = difflib.get_close_matches(name, [*OURS, *dir(numbas)], 1)
        hint = f"; did you mean cuda.{near[0]}?" if near else ""
        raise AttributeError(f"Numba's cuda has no {name!r}{hint}", name=name) from None


_stays_on_cpu = False


def stay_on_cpu() -> None:
    """Leave GPUs alone from now on, if there are any."""
    global _stays_on_cpu
    _stays_on_cpu = True


def has_gpu() -> bool:
    """Whether there is a GPU to use."""
    return not _stays_on_cpu and _found_gpu()


@cache
def _found_gpu() -> bool:
    try:
        return bool(_numba_cuda().is_available())
    except ImportError:  # an extra of which parts are missing
        return False

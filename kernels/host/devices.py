"""The device, its context, and the streams and events that order its work.

There is one device, the CPU, and a launch returns when it is done. So a stream has nothing to wait
for, and what an event records is the time.

https://nvidia.github.io/numba-cuda/reference/host.html
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from ..arrays import SHARED_BYTES
from ..cpu.runtime.pool import num_threads
from ..gpu import limits
from ..gpu.gpus import ARCHITECTURES, REGISTERS, WARP

CAPABILITY = min(ARCHITECTURES)  # of the oldest GPU that CUDA 13 compiles for
OLDEST = ARCHITECTURES[CAPABILITY]
LIMITS = {
    "WARP_SIZE": WARP,
    "MAX_THREADS_PER_BLOCK": limits.THREADS,
    "MAX_BLOCK_DIM_X": limits.THREADS,
    "MAX_BLOCK_DIM_Y": limits.THREADS,
    "MAX_BLOCK_DIM_Z": limits.BLOCK_Z,
    "MAX_GRID_DIM_X": limits.GRID_X,
    "MAX_GRID_DIM_Y": limits.GRID_YZ,
    "MAX_GRID_DIM_Z": limits.GRID_YZ,
    "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_BYTES,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": OLDEST.shared - OLDEST.reserved,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": OLDEST.shared,
    "MAX_REGISTERS_PER_BLOCK": REGISTERS,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": REGISTERS,
    "MAX_THREADS_PER_MULTIPROCESSOR": OLDEST.warps * WARP,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": OLDEST.blocks,
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "COMPUTE_CAPABILITY_MAJOR": CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": CAPABILITY[1],
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_KERNELS": 1,
    "CAN_MAP_HOST_MEMORY": 1,
    "INTEGRATED": 1,
    "ASYNC_ENGINE_COUNT": 0,
    "COOPERATIVE_LAUNCH": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "TCC_DRIVER": 0,
    "ECC_ENABLED": 0,
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
}


class MemoryInfo(NamedTuple):
    """Bytes of the device's memory: what is free, and all."""

    free: int
    total: int


class Device:
    """The CPU, as a device: its limits are those that every GPU has, its multiprocessors threads.

    An attribute is named as CUDA names it, `device.MAX_THREADS_PER_BLOCK`. So is the device itself
    a context manager: `with cuda.gpus[0]:`.
    """

    id = 0
    name = f"CPU ({platform.machine() or 'unknown'})"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = CAPABILITY
    supports_float16 = True
    supports_bfloat16 = supports_fp8 = False

    def __repr__(self) -> str:
        return f"<CUDA device 0 '{self.name}'>"

    def __getattr__(self, name: str) -> int:
        if name == "MULTIPROCESSOR_COUNT":
            return num_threads()
        if name in LIMITS:
            return LIMITS[name]
        raise AttributeError(f"the device has no attribute {name!r}", name=name, obj=self)

    def __enter__(self) -> Context:
        return CONTEXT

    def __exit__(self, *exception: object) -> None:
        pass

    def get_primary_context(self) -> Context:
        """The device's one context."""
        return CONTEXT

    def reset(self) -> None:
        """Forget what the device has done: nothing."""


class Stream:
    """A queue of work. Here each piece is done before the call that adds it returns."""

    def __init__(self, kind: str = "", handle: int | None = None) -> None:
        self.kind = kind
        self.handle = next(_handles) if handle is None else handle
        self.external = kind == "External"

    def __repr__(self) -> str:
        return f"<{self.kind} CUDA stream>" if self.kind else f"<CUDA stream {self.handle}>"

    def __int__(self) -> int:
        return self.handle

    def synchronize(self) -> None:
        """Wait for the work in the stream: it is done."""

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Wait for the work in the stream at the end of the block."""
        yield self

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        """Call `callback(stream, status, arg)` once the work so far is done: now."""
        callback(self, 0, arg)

    def async_done(self) -> asyncio.Future[Stream]:
        """What can be awaited until the work so far is done."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


def stream() -> Stream:
    """A new stream."""
    return Stream()


def external_stream(ptr: int) -> Stream:
    """A stream that another library made."""
    return Stream("External", ptr)


_handles = count(3)
_default = Stream("Default", 0)
_legacy, _per_thread = Stream("Legacy default", 1), Stream("Per-thread default", 2)


def default_stream() -> Stream:
    """The stream of launches that name none."""
    return _default


def legacy_default_stream() -> Stream:
    """The default stream that waits for all others."""
    return _legacy


def per_thread_default_stream() -> Stream:
    """The default stream of this thread."""
    return _per_thread


class Event:
    """A moment in a stream."""

    def __init__(self, timing: bool = True) -> None:
        self.timing = timing
        self.time: float | None = None

    def record(self, stream: Any = 0) -> None:
        """The moment is now: the work before is done."""
        self.time = time.perf_counter()

    def query(self) -> bool:
        """Whether the work before the moment is done."""
        return True

    def synchronize(self) -> None:
        """Wait for the moment, which has come."""

    def wait(self, stream: Any = 0) -> None:
        """Let a stream wait for the moment, which has come."""

    def elapsed_time(self, evtend: Event) -> float:
        """Milliseconds from this moment to another."""
        return event_elapsed_time(self, evtend)


def event(timing: bool = True) -> Event:
    """A new event; without `timing` it only orders."""
    return Event(timing)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds between two moments.

    Raises:
        CudaAPIError: an event has not been recorded, or keeps no time.
    """
    for name, moment in (("first", evtstart), ("second", evtend)):
        if moment.time is None or not moment.timing:
            from numba.cuda.cudadrv.driver import CudaAPIError

            what = "was not recorded" if moment.timing else "was made with timing=False"
            raise CudaAPIError(400, f"CUDA_ERROR_INVALID_HANDLE: the {name} event {what}")
    assert evtstart.time is not None and evtend.time is not None
    return (evtend.time - evtstart.time) * 1e3


class Context:
    """What a program uses of a device: its memory and its streams."""

    def __init__(self, device: Device) -> None:
        self.device, self.id = device, device.id
        self.deallocations: list[Any] = []  # memory goes back at once

    def get_memory_info(self) -> MemoryInfo:
        """How many bytes are free, and how many there are: the machine's own."""

        def asked(name: str, unknown: int) -> int:
            return os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else unknown

        page = asked("SC_PAGE_SIZE", 1)
        total = page * asked("SC_PHYS_PAGES", 2**34)
        return MemoryInfo(min(total, page * asked("SC_AVPHYS_PAGES", 2**34)), total)

    def synchronize(self) -> None:
        """Wait for all launches: they are done."""

    def push(self) -> None:
        """Make it the current context, which it is."""

    pop = reset = prepare_for_use = push

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Keep memory that nobody needs any more until the end of the block."""
        yield

    create_stream, create_event = staticmethod(stream), staticmethod(event)
    get_default_stream = staticmethod(default_stream)


DEVICE = Device()
CONTEXT = Context(DEVICE)
synchronize, defer_cleanup = CONTEXT.synchronize, CONTEXT.defer_cleanup


class Devices:
    """`cuda.gpus`: all devices, in order. There is one."""

    lst = (DEVICE,)
    current = DEVICE

    def __getitem__(self, number: Any) -> Any:
        try:
            return self.lst[number]
        except IndexError:
            raise IndexError(f"there is no device {number}: the CPU is the only one, 0") from None

    def __iter__(self) -> Iterator[Device]:
        return iter(self.lst)

    def __len__(self) -> int:
        return len(self.lst)

    def __str__(self) -> str:
        return ", ".join(map(str, self.lst))


gpus = Devices()


def is_available() -> bool:
    """Whether kernels run: they do, on the CPU."""
    return True


def is_supported_version() -> bool:
    """Whether CUDA's runtime is one that is known to work: none is needed."""
    return True


def cuda_error() -> None:
    """Return what went wrong when CUDA began: nothing."""


def detect() -> bool:
    """Print which devices there are; return whether there is one that works."""
    print("Found 1 CUDA devices")
    print(f"id 0    {DEVICE.name:>20} {'[SUPPORTED]':>40}")
    print(f"{'Compute Capability':>40}: {CAPABILITY[0]}.{CAPABILITY[1]}")
    print(f"{'UUID':>40}: {DEVICE.uuid}")
    print("Summary:\n\t1/1 devices are supported")
    return True


def list_devices() -> Devices:
    """All devices."""
    return gpus


def select_device(device_id: int = 0) -> Device:
    """Make a device the current one, and return it.

    Raises:
        IndexError: there is none of that number.
    """
    return gpus[device_id]


def get_current_device() -> Device:
    """The device that launches run on."""
    return DEVICE


def current_context(devnum: int | None = None) -> Context:
    """The context of a device, by default of the current one.

    Raises:
        IndexError: there is no device of that number.
    """
    return gpus[devnum or 0].get_primary_context()


get_context = current_context


def require_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate what runs only where there is a context: there always is."""
    return fn


def close() -> None:
    """Give up all contexts; the next call makes a new one."""


reset = close


@contextmanager
def profiling() -> Iterator[None]:
    """Profile what runs within, where a profiler listens."""
    yield


def profile_start() -> None:
    """Let the profiler listen; there is none."""


profile_stop = profile_start

"""The modules that the stand-in puts in CuPy's place, and the launch in the GPU's."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from .array import (
    COUNTS,
    HAS,
    MODULE,
    DeviceSynchronized,
    Ufunc,
    allow_synchronize,
    checked,
    ndarray,
    scatter,
    supported,
    unwrapped,
    wait,
    wrapped,
)

LAUNCHES: Counter[tuple[Any, ...]] = Counter()
"""How often each kernel was launched on arguments of some types: for them it would be compiled."""


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """`cupy.array`."""
    if isinstance(obj, ndarray):
        host = np.array(obj._host, dtype, copy=copy, order=order, ndmin=ndmin)
        return obj if host is obj._host else wrapped(host)
    if isinstance(obj, (list, tuple)) and any(isinstance(x, ndarray) for x in obj):
        return wrapped(np.array([unwrapped(x) for x in obj], dtype))
    COUNTS["host to device"] += 1
    host = np.array(obj, dtype, order=order, ndmin=ndmin)
    supported(host.dtype)
    return wrapped(host)


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False
) -> Any:
    """`cupy.asarray`."""
    return array(a, dtype, copy, order or "K")


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """`cupy.ascontiguousarray`."""
    same = isinstance(a, ndarray) and a.flags.c_contiguous and dtype in (None, a.dtype)
    return a if same and a.ndim else wrapped(np.ascontiguousarray(array(a, dtype, None)._host))


def asnumpy(
    a: Any, stream: Any = None, order: Any = "C", out: Any = None, *, blocking: bool = True
) -> Any:
    """`cupy.asnumpy`."""
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a, order=order)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """`cupy.where`."""
    if not isinstance(condition, ndarray):
        raise TypeError(f"where: expected cupy.ndarray, got {type(condition)}")
    if x is None and y is None:
        wait()
        return wrapped(condition._host.nonzero())
    return wrapped(np.where(condition._host, unwrapped(x), unwrapped(y)))


def get_array_module(*args: Any) -> Any:
    """`cupy.get_array_module`."""
    return MODULE if any(isinstance(x, ndarray) for x in args) else np


class Philox4x3210:
    """`cupy.random.Philox4x3210`; its numbers are NumPy's, not those of a GPU."""

    def __init__(self, seed: int | None = None, *, size: int = -1) -> None:
        self.of_numpy = np.random.Philox(seed)


class Generator:
    """`cupy.random.Generator`."""

    def __init__(self, bit_generator: Philox4x3210) -> None:
        self._of_numpy = np.random.Generator(bit_generator.of_numpy)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> ndarray:
        """Numbers from U[0, 1)."""
        return wrapped(np.asarray(self._of_numpy.random(size, np.dtype(dtype))))


class Current:
    """What a `with` makes the current one, and what the host may wait for."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def synchronize(self) -> None:
        """Waits."""
        wait()


class Stream(Current):
    """`cupy.cuda.Stream`: everything happens at once, so there is nothing to wait for."""

    null: Any
    ptr = 0

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.done = True


class Event:
    """`cupy.cuda.Event`."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        """Keeps the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Waits."""
        wait()


class Device(Current):
    """`cupy.cuda.Device`."""

    id = 0
    compute_capability = "90"
    mem_info = (1 << 30, 1 << 30)

    def __init__(self, device: int = 0) -> None:
        self.id = device


def cuda() -> Any:
    """`cupy.cuda`."""
    module: Any = ModuleType("cupy.cuda")
    module.is_available = lambda: True
    module.Stream, module.Event, module.Device = Stream, Event, Device
    Stream.null = Stream(null=True)
    module.get_current_stream = lambda: Stream.null
    module.get_elapsed_time = lambda start, end: 1e3 * (end.at - start.at)
    module.ExternalStream = lambda pointer: Stream.null
    module.function = SimpleNamespace(CPointer=lambda place: SimpleNamespace(ptr=place))
    module.driver = SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {}))
    module.runtime = SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceCount=lambda: 1,
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13000,
        deviceSynchronize=wait,
        getDeviceProperties=lambda _: {"name": b"a stand-in on NumPy, not a GPU"},
        memGetInfo=lambda: (1 << 30, 1 << 30),
        deviceGetAttribute=lambda attribute, device: attribute[device],
        cudaDevAttrMultiProcessorCount=[132],
    )
    return module


def modules() -> dict[str, Any]:
    """The modules by name."""
    for name in HAS["ufunc"]:
        setattr(MODULE, name, Ufunc(name))
    for name, signature in HAS["def"].items():
        of_numpy = getattr(np, name, None)
        if of_numpy is not None and not hasattr(MODULE, name):
            setattr(MODULE, name, checked(name, signature, of_numpy))
    for own in (array, asarray, ascontiguousarray, asnumpy, where, get_array_module, ndarray):
        setattr(MODULE, own.__name__, own)
    MODULE.asanyarray = asarray
    for character in "?bhilqBHILQefdFD":
        scalar = np.dtype(character).type
        setattr(MODULE, scalar.__name__, scalar)
    for name in ("inf", "nan", "pi", "e", "newaxis", "dtype", "finfo", "iinfo"):
        setattr(MODULE, name, getattr(np, name))
    MODULE.__version__ = f"{next(iter(HAS['version']))}+stand.in"
    random: Any = ModuleType("cupy.random")
    random.Generator, random.Philox4x3210 = Generator, Philox4x3210
    cupyx: Any = ModuleType("cupyx")
    cupyx.allow_synchronize, cupyx.DeviceSynchronized = allow_synchronize, DeviceSynchronized
    cupyx.scatter_add = lambda a, slices, value: scatter("add", a, slices, value)
    scipy: Any = ModuleType("cupyx.scipy")
    special = special_functions()
    MODULE.cuda, MODULE.random, MODULE._special = cuda(), random, special
    cupyx.scipy, scipy.special = scipy, special
    every = (MODULE, MODULE.cuda, random, cupyx, scipy, special)
    return {module.__name__: module for module in every}


def special_functions() -> Any:
    """`cupyx.scipy.special`, as far as it is used."""

    def erf(x: ndarray) -> Any:
        return wrapped(np.asarray(import_module("scipy.special").erf(unwrapped(x))))

    module: Any = ModuleType("cupyx.scipy.special")
    module.erf = erf
    return module


# ------------------------------------------------------------------------------- in the GPU's place


MACHINES: list[Any] = []
"""The PTX machine that runs what is launched; without any, its loop on the CPU does."""


class FunctionInPlace:
    """Where CUDA's function would be: reads its arguments from memory, and runs without a GPU."""

    def __init__(self, kernel: Any, arguments: tuple[Any, ...]) -> None:
        self.kernel = kernel
        self.examples = arguments

    def __call__(self, grid: Any, block: Any, places: Any, shared: int, stream: Any) -> None:
        """Runs every block of the grid."""
        if MACHINES:
            return self.as_ptx(MACHINES[-1], grid, block, places, shared)
        from minitransformer_kernels.cpu import CpuKernel
        from minitransformer_kernels.cpu.watchers import checked_mode

        LAUNCHES[self.kernel, *map(numba_type, self.examples)] += 1
        slots = iter([place.ptr for place in places])
        arguments = tuple(read_back(example, slots) for example in self.examples)
        run = checked_mode.launch if checked_mode.is_on() else CpuKernel.launch
        run(self.kernel.on_cpu, grid, block, arguments, shared)

    def as_ptx(self, machine: Any, grid: Any, block: Any, places: Any, shared: int) -> None:
        """Runs every block of the grid by the kernel's PTX, which is given the very bytes."""
        from minitransformer_kernels.gpu import launch as packing
        from minitransformer_kernels.gpu.ptx import driver, launch

        slots = [ctypes.string_at(place.ptr, packing.SLOT) for place in places]
        addresses = iter([place.ptr for place in places])
        arguments = tuple(read_back(example, addresses) for example in self.examples)
        arrays = [array for array in driver.arrays(arguments) if array.size]
        regions = [np.lib.array_utils.byte_bounds(array) for array in arrays]
        made = driver.program(self.kernel, packing.types_of(self.examples), machine.architecture)
        machine.runs.append(launch(made, grid, block, slots, regions, shared, **machine.options))


def read_back(example: Any, slots: Iterator[int]) -> Any:
    """An argument of an example's type, from where a launch wrote it for CUDA.

    An array is 0, 0, size, itemsize, address, lengths, strides in bytes; a number itself.
    """
    if isinstance(example, tuple):
        return tuple(read_back(each, slots) for each in example)
    if not isinstance(example, ndarray):
        dtype = np.asarray(example).dtype
        number = at_address(next(slots), dtype, (), ())[()]
        return number if isinstance(example, np.generic) else number.item()
    words = [ctypes.c_int64.from_address(next(slots)).value for _ in range(5 + 2 * example.ndim)]
    zeros, (size, itemsize, address) = words[:2], words[2:5]
    shape, strides = words[5 : 5 + example.ndim], words[5 + example.ndim :]
    assert (zeros, size, itemsize) == ([0, 0], math.prod(shape), example.itemsize)
    return at_address(address, example.dtype, tuple(shape), tuple(strides))


def at_address(address: int, dtype: Any, shape: Any, strides: Any) -> np.ndarray:
    """The array that begins at an address."""
    interface = {
        "data": (address, False),
        "typestr": dtype.str,
        "shape": shape,
        "strides": strides,
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def numba_type(argument: Any) -> str:
    """What numba-cuda compiles a kernel for, given this argument.

    Raises:
        NotImplementedError: it takes no such argument.
    """
    if isinstance(argument, ndarray):
        flags = argument.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return f"{argument.dtype}[{argument.ndim}d, {layout}]"
    if isinstance(argument, tuple):
        return f"({', '.join(map(numba_type, argument))})"
    if isinstance(argument, (bool, np.bool_)):
        return "bool"
    if isinstance(argument, int):
        if not -(2**63) <= argument < 2**64:
            raise OverflowError(f"{argument} does not fit 64 bits")
        return "int64" if argument < 2**63 else "uint64"
    if isinstance(argument, (float, np.number)):
        return str(np.asarray(argument).dtype)
    raise NotImplementedError(f"numba-cuda takes no {type(argument).__name__}: {argument!r}")


def report() -> str:
    """Says what would be compiled for a GPU: once more for each other type or layout."""
    strided = {
        kernel.__name__
        for kernel, *types in LAUNCHES
        if any(each.endswith((", F]", ", A]")) for each in types)
    }
    return (
        f"{sum(LAUNCHES.values())} launches of {len({kernel for kernel, *_ in LAUNCHES})} kernels; "
        f"{len(LAUNCHES)} would be compiled, counting types and layouts; "
        f"on arrays that are not in C order: {', '.join(sorted(strided)) or 'none'}"
    )


def load(kernel: Any, arguments: tuple[Any, ...], cuda: Any) -> Any:
    """What a launch has in the place of machine code that was loaded to a GPU."""
    from minitransformer_kernels.gpu.launch import Loaded

    return Loaded(FunctionInPlace(kernel.kernel, arguments), arguments, cuda)


def install(as_ptx: bool = False) -> None:
    """Puts the stand-in in the place of CuPy, for the rest of this process."""
    from minitransformer_kernels.gpu import launch as gpu

    for name, module in modules().items():
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module
    gpu.CudaKernel._load = load
    if as_ptx:
        MACHINES.append(machine())


def machine(architecture: str = "8.0", **options: Any) -> Any:
    """A PTX machine that notes what runs on it; the options are those of `launch`."""
    from minitransformer_kernels.gpu import assembler
    from minitransformer_kernels.gpu.ptx import Machine

    return Machine(assembler.architecture(architecture), options=options)


@contextmanager
def on_ptx_machine(architecture: str = "8.0", **options: Any) -> Iterator[Any]:
    """Puts the stand-in in CuPy's place and the PTX machine in the GPU's, within this context."""
    from minitransformer_kernels.gpu import launch as gpu

    digits, ours, made = architecture.replace(".", ""), modules(), machine(architecture, **options)
    MACHINES.append(made)
    # No GPU has this number: what a kernel keeps of a launch here is not for another device.
    before = {name: sys.modules.get(name) for name in ours}
    sys.modules.update(ours)
    with (
        patch.object(MODULE.cuda.runtime, "getDevice", lambda: -1),
        patch.object(Device, "compute_capability", digits),
        patch.object(gpu.CudaKernel, "_load", load),
    ):
        try:
            yield made
        finally:
            MACHINES.remove(made)
            for name, module in before.items():
                del sys.modules[name]
                if module is not None:
                    sys.modules[name] = module

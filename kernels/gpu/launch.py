"""A launch on the GPU: the arguments as C has them, handed to CuPy.

On CUDA a kernel's arguments are plain numbers. An array is some 64-bit integers, such as its
address, the lengths of its axes and their strides; which, and in what order, the compiler says
(`compilers`). A number is what it is. Here a launch writes them into a piece of memory, 8 bytes
each, and CUDA copies them from there. Nothing waits for the GPU, nothing is looked up but the
compiled kernel.

`MINITRANSFORMER_LAUNCH=numba` has the compiler do all this instead.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import struct
import sys
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from ..arrays import SHARED_BYTES
from ..cpu import KernelError
from ..cpu.form import Shape3
from . import assembler, compilers
from .gpus import most_registers

if TYPE_CHECKING:
    from ..cuda import Kernel

SLOT = 8  # bytes that an argument has for itself
NUMBERS = {
    bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}  # fmt: skip
VARIABLE = "MINITRANSFORMER_LAUNCH"
NUMBA = os.environ.get(VARIABLE) == "numba"


class CudaKernel:
    """A kernel on CuPy arrays: compiled when it is first launched on arguments of some types."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.by_numba = NUMBA or not assembler.OPTIONS.issuperset(kernel.options)
        self._loaded: dict[Any, Loaded] = {}

    def launch(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared: int, stream: Any
    ) -> None:
        """Have the GPU run every block of a grid, after what the stream has to do before.

        Args:
            grid: How many blocks, along x, y and z.
            block: How many threads a block has, along x, y and z.
            arguments: CuPy arrays, numbers, and tuples of these.
            shared: Bytes of dynamic shared memory.
            stream: A stream of CuPy's or Numba's; None or 0 is CuPy's current stream.

        Raises:
            KernelError: The kernel does not compile for CUDA, or the GPU does not run it so.
        """
        cuda = sys.modules["cupy"].cuda
        if stream is not None and not hasattr(stream, "ptr"):
            stream = cuda.ExternalStream(int(stream)) if stream else None
        if self.by_numba:
            return self._launch_by_numba(grid, block, arguments, shared, stream, cuda)
        key = (cuda.runtime.getDevice(), *map(_kind, arguments))
        loaded = self._loaded.get(key)
        if loaded is None:
            loaded = self._loaded[key] = self._load(arguments, cuda)
        try:
            loaded.launch(grid, block, arguments, shared, stream)
        except cuda.driver.CUDADriverError as error:
            raise self._refused(str(error), loaded, block, shared, cuda) from error

    def _load(self, arguments: tuple[Any, ...], cuda: Any) -> Loaded:
        """Compile for the current GPU, and load there what comes of it."""
        name, names = self.kernel.__name__, inspect.getfullargspec(self.kernel.function).args
        if len(names) != len(arguments):
            raise KernelError(
                f"kernel {name!r} takes {len(names)} arguments ({', '.join(names)}), "
                f"got {len(arguments)}"
            )
        types, digits = types_of(arguments), cuda.Device().compute_capability
        module = cuda.function.Module()
        try:
            module.load(assembler.cubin(self.kernel, types, assembler.architecture(digits)))
        except Exception as error:
            raise KernelError(
                f"kernel {name!r} does not compile for CUDA (sm_{digits}): {error}\n"
                f"Its arguments are {', '.join(map(str, types))}. A mistake in it is named with "
                f"its line in a launch on NumPy arrays; {VARIABLE}=numba leaves all to Numba"
            ) from error
        return Loaded(module.get_function(assembler.entry_name(self.kernel)), arguments, cuda)

    def _launch_by_numba(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared: int,
        stream: Any, cuda: Any,
    ) -> None:  # fmt: skip
        numba_cuda = compilers.compiler().namespace()
        # The launch is on the stream that the arrays are used on: there is nothing to wait for.
        numba_cuda.config.CUDA_ARRAY_INTERFACE_SYNC = False
        # CUDA's default stream goes by the number 1 where 0 would mean none.
        ours = numba_cuda.external_stream((stream or cuda.get_current_stream()).ptr or 1)
        self.kernel.on_gpu[grid, block, ours, shared](*arguments)

    def _refused(
        self, reason: str, loaded: Loaded, block: Shape3, shared: int, cuda: Any
    ) -> KernelError:
        """What to say of a launch that CUDA did not make."""
        name, threads = self.kernel.__name__, prod(block)
        if "OUT_OF_RESOURCES" in reason or "INVALID_VALUE" in reason:
            attribute = cuda.driver.CU_FUNC_ATTRIBUTE_NUM_REGS
            registers = cuda.driver.funcGetAttribute(attribute, loaded.function.ptr)
            return KernelError(
                f"kernel {name!r}: the GPU cannot run blocks of {threads} threads with {registers} "
                f"registers each and {shared:,} bytes of dynamic shared memory ({reason}). Use "
                f"fewer threads or bytes, or @cuda.jit(max_registers={most_registers(threads)})"
            )
        return KernelError(
            f"kernel {name!r} was not launched: {reason}. An earlier kernel may have gone wrong: "
            "MINITRANSFORMER_CHECK=1 on NumPy arrays finds where, compute-sanitizer on a GPU"
        )


class Loaded:
    """A kernel's machine code on a GPU, and the memory where its arguments are laid out."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], cuda: Any) -> None:
        self.function, self.driver = function, cuda.driver
        self.shared = SHARED_BYTES  # of dynamic shared memory that a launch may have
        self.layout = Layout(arguments)
        self.memory = ctypes.create_string_buffer(self.layout.size)
        begin = ctypes.addressof(self.memory)
        places = range(begin, begin + self.layout.size, SLOT)
        self.places = [cuda.function.CPointer(place) for place in places]
        self.lock = Lock()  # of the memory; CUDA has copied it when a launch returns

    def launch(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared: int, stream: Any
    ) -> None:
        """Launch the kernel on these arguments."""
        with self.lock:
            if shared > self.shared:
                what = self.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.driver.funcSetAttribute(self.function.ptr, what, shared)
                self.shared = shared
            self.layout.pack_into(self.memory, arguments)
            self.function(grid, block, self.places, shared, stream)


class Layout:
    """How the arguments of a launch lie in memory, one after the other, `SLOT` bytes each."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.compiler = compilers.compiler()
        self.struct = struct.Struct("".join(self._format(_kind(each)) for each in arguments))
        self.size = self.struct.size

    def pack_into(self, memory: Any, arguments: tuple[Any, ...]) -> None:
        """Write arguments of the same kinds to a piece of memory."""
        self.struct.pack_into(memory, 0, *self._numbers(arguments))

    def _format(self, kind: Any) -> str:
        """How arguments of a kind are laid out, in the language of `struct`."""
        if isinstance(kind, np.dtype):
            part = np.zeros((), kind).real.dtype  # a complex number has two
            return f"{part.char}{SLOT - part.itemsize}x" * (kind.itemsize // part.itemsize)
        if isinstance(kind[0], type):
            return "".join(map(self._format, kind[1:]))
        return f"{self.compiler.WORDS + 2 * kind[1]}q"

    def _numbers(self, arguments: tuple[Any, ...]) -> list[Any]:
        """What the arguments are on CUDA, one after the other."""
        numbers: list[Any] = []
        for argument in arguments:
            if isinstance(argument, (complex, np.complexfloating)):
                numbers += argument.real, argument.imag
            elif isinstance(argument, (int, float, np.generic)):
                numbers.append(argument)
            elif isinstance(argument, tuple):
                numbers += self._numbers(argument)
            else:
                numbers += self.compiler.words(argument)
        return numbers


def types_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return Numba's types of a launch's arguments, for CuPy's arrays the same as for NumPy's."""
    return tuple(_type(_kind(argument)) for argument in arguments)


def _kind(argument: Any) -> Any:
    """What decides the compiled kernel; cheap to find, since every launch does.

    Returns:
        The dtype of a number; the dtype, the axes and the layout of an array, as Numba tells them
        apart: "C" and "F" for the two orders without gaps, "A" for any other; the class of a tuple,
        which may name its items, and their kinds.
    """
    if isinstance(argument, np.generic):
        return argument.dtype
    if isinstance(argument, tuple):
        named = hasattr(argument, "_fields")
        return (type(argument) if named else tuple, *map(_kind, argument))
    dtype = NUMBERS.get(type(argument))
    if dtype is not None:
        return np.dtype(np.uint64) if dtype.kind == "i" and argument >= 1 << 63 else dtype
    flags = argument.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return argument.dtype, argument.ndim, layout


def _type(kind: Any) -> Any:
    """Numba's type for a kind."""
    if isinstance(kind, np.dtype):
        return numba.from_dtype(kind)
    if isinstance(kind[0], type):
        return numba.types.BaseTuple.from_types(tuple(map(_type, kind[1:])), kind[0])
    dtype, ndim, layout = kind
    return numba.types.Array(numba.from_dtype(dtype), ndim, layout)

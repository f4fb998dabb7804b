"""The one door to CUDA: `from .cuda import cuda` in place of `from numba import cuda`.

The text of a kernel stays literal Numba CUDA. What changes is what `@cuda.jit` returns: a `Kernel`,
whose launch `kernel[blocks, threads](...)` looks at its arguments. CuPy arrays run on the GPU,
NumPy arrays on the CPU, by way of `cpu/`, from the same source.
"""

from __future__ import annotations

import difflib
import sys
import types
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

import numba
import numpy as np

from . import host
from .cpu import CpuKernel, KernelError
from .cpu.errors import UnsupportedKernel, to_the_point
from .cpu.first_launches import Launches
from .cpu.form import Shape3
from .cpu.launch import COMMON, PACKED, unpacked
from .cpu.source import remembered
from .gpu import compilers, limits
from .gpu.launch import CudaKernel
from .host import signatures

NUMBERS = int, float, complex, np.number, np.bool_  # that a launch on a GPU takes
TESTED = "minitransformer", __package__  # packages whose kernels need no check when they are new
_INT = {int}
THREADS = 256  # of a block, where nobody says how many
OPTIONS = {  # of `jit`; compilers have more
    "checked", "debug", "device", "extensions", "fastmath", "forceinline", "inline",
    "launch_bounds", "lineinfo", "link", "max_registers", "opt", "signature",
}  # fmt: skip
FUNCTIONS = {"vectorize", "guvectorize", "reduce", "Reduce"}  # take functions of numbers


def _plain(sizes: Any) -> bool:
    """Whether a size, or each of several, is an int, and nothing that equals one."""
    return type(sizes) is int or (type(sizes) is tuple and _INT.issuperset(map(type, sizes)))


def _shape3(value: int | tuple[int, ...], kernel: str, what: str, least: int = 1) -> Shape3:
    sizes = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(
        isinstance(s, (int, np.integer)) and not isinstance(s, bool) and s >= least for s in sizes
    ):
        way_out = "; divide with `//`: (n + 255) // 256" * any(isinstance(s, float) for s in sizes)
        raise KernelError(
            f"kernel {kernel!r}: {what} must be one to three whole numbers from 1 up, got "
            f"{value!r}{way_out}"
        )
    return tuple([*map(int, sizes), 1, 1][:3])  # type: ignore[return-value]


class _OnGpu:
    """What has a form for GPUs: a compiler's own object, made when it is first asked for."""

    @property
    def on_gpu(self) -> Any:
        """The object of the compiler that is asked now."""
        made, asked = vars(self).setdefault("_on_gpu", {}), compilers.asked()
        if asked not in made:
            made[asked] = self.compiled(compilers.compiler())
        return made[asked]

    def compiled(self, compiler: compilers.Compiler) -> Any:
        """A compiler's object."""
        raise NotImplementedError


class DeviceFunction(_OnGpu):
    """A function decorated with `@cuda.jit(device=True)`: called from kernels, and from Python."""

    is_device_function = True

    def __init__(
        self, function: types.FunctionType, options: dict[str, Any], signature: Any = None
    ) -> None:
        self.function = remembered(function)
        self.options = options
        self.is_being_made = False  # by a compiler for GPUs
        self.given = () if signature is None else (signature,)
        self.signature = None if signature is None else signatures.of_device(signature)
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """Call it as the Python function that it is."""
        return self.function(*arguments)

    @to_the_point
    def __getitem__(self, configuration: Any) -> Any:
        """Refuse a launch."""
        raise KernelError(
            f"{self.function.__name__!r} is a device function, which kernels call; to launch it, "
            "decorate it with @cuda.jit alone"
        )

    @cached_property
    def on_host(self) -> Any:
        """Numba's function for the CPU, which `vectorize`d functions call."""
        return numba.njit(self.function)

    @property
    def _numba_type_(self) -> Any:
        return numba.typeof(self.on_host)

    def compiled(self, compiler: compilers.Compiler) -> Any:
        """The compiler's device function; where it calls itself, it finds what is made here."""
        given = map(compiler.counterpart, self.given)
        jit = compiler.namespace().jit(*given, device=True, **self.options)
        self.is_being_made = True
        try:
            function = _for_gpu(self.function, compiler, self)
            made = jit(function)
        finally:
            self.is_being_made = False
        names = [name for name, value in self.function.__globals__.items() if value is self]
        function.__globals__.update(dict.fromkeys(names, made))
        cells = zip(function.__closure__ or (), self.function.__closure__ or (), strict=True)
        for cell, ours in cells:
            if ours.cell_contents is self:
                cell.cell_contents = made
        return made


class Kernel(_OnGpu):
    """A function decorated with `@cuda.jit`.

    Launch it with `kernel[blocks, threads](...)`, or `kernel[blocks, threads, stream,
    shared_bytes](...)`; `launch = kernel[blocks, threads]` can be kept and called often.
    """

    def __init__(
        self, function: types.FunctionType, options: dict[str, Any], checked: bool | None = None,
        signature: Any = None,
    ) -> None:  # fmt: skip
        self.function = remembered(function)
        self.options = options
        self.signatures = None if signature is None else signatures.parsed(signature)
        self.arity = function.__code__.co_argcount
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.py_func = function
        self.tested = str(function.__module__).partition(".")[0] in TESTED
        self.checked = False if checked is None and self.tested else checked
        self._configured: dict[Any, Launch] = {}
        self._launches: dict[tuple[tuple[int, str], ...], Launches] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def __getattr__(self, name: str) -> Any:
        kernel = vars(self).get("__name__")
        raise AttributeError(
            f"kernel {kernel!r} has no {name!r}: cpu_source() and cpu_assembly() show what runs "
            "here, `minitransformer inspect` what a GPU needs",
            name=name, obj=self,
        )  # fmt: skip

    @property
    def on_cpu(self) -> CpuKernel:
        """The kernel as it runs on NumPy arrays, for tuples and records where it got such last."""
        launches = next(reversed(self._launches.values()), None) or self.launches(())[0]
        return launches.kernel

    def launches(self, arguments: tuple[Any, ...]) -> tuple[Launches, tuple[Any, ...]]:
        """Who launches the kernel on NumPy arrays, and the arguments in the parts that it takes."""
        packed: tuple[tuple[int, str], ...] = ()
        if any([isinstance(a, PACKED) for a in arguments]):
            opened = [unpacked(a) for a in arguments]
            packed = tuple((i, how) for i, (how, _) in enumerate(opened) if how != "{}")
            arguments = tuple(part for _, parts in opened for part in parts)
        if packed not in self._launches:
            fast = bool(self.options.get("fastmath", False))
            made = CpuKernel(
                self.function, fastmath=fast, limit=limits.check_shared, packed=dict(packed)
            )
            debug = bool(self.options.get("debug", False))
            self._launches[packed] = Launches(made, self.checked, self.tested, debug)
        return self._launches[packed], arguments

    @cached_property
    def plain(self) -> Launches:
        """Who launches the kernel on NumPy arrays and numbers."""
        return self.launches(())[0]

    def compiled(self, compiler: compilers.Compiler) -> Any:
        """The compiler's kernel; it compiles on its first launch."""
        return compiler.namespace().jit(**self.options)(_for_gpu(self.function, compiler))

    def completed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a launch, with those that have a default, in the signature's types."""
        missing = self.arity - len(arguments)
        if 0 < missing <= len(self.function.__defaults__ or ()):
            arguments += (self.function.__defaults__ or ())[-missing:]
        if self.signatures is not None:
            arguments = signatures.converted(self.__name__, self.signatures, arguments)
        return arguments

    @cached_property
    def on_cuda(self) -> CudaKernel:
        """The kernel as it runs on CuPy arrays."""
        return CudaKernel(self)

    @to_the_point
    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Refuse a launch without a configuration."""
        raise KernelError(
            f"kernel {self.__name__!r} was called without a launch configuration; write "
            f"{self.__name__}[blocks, threads](...)"
        )

    @to_the_point
    def __getitem__(self, configuration: tuple[Any, ...]) -> Launch:
        try:
            blocks, threads = configuration
            if _plain(blocks) and _plain(threads):
                return self._configured[configuration]
        except (KeyError, TypeError, ValueError):
            pass
        return self._configure(configuration)

    def _configure(self, configuration: tuple[Any, ...]) -> Launch:
        name = self.__name__
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise KernelError(
                f"kernel {name!r} needs [blocks, threads], got [{configuration!r}]; write "
                f"{name}[blocks, threads](...)"
            )
        blocks, threads, stream, shared = (*configuration, 0, 0)[:4]
        grid, block = _shape3(blocks, name, "blocks", 0), _shape3(threads, name, "threads")
        if isinstance(stream, int) and stream != 0:
            raise KernelError(
                f"kernel {name!r}: the stream is {stream!r}; bytes of shared memory come "
                f"fourth: {name}[blocks, threads, 0, {stream!r}](...)"
            )
        if not isinstance(shared, (int, np.integer)) or shared < 0:
            raise KernelError(
                f"kernel {name!r}: the bytes of dynamic shared memory must be a whole number "
                f"from 0 up, got {shared!r}"
            )
        limits.check_launch(name, grid, block, int(shared), self.options)
        launch = Launch(self, grid, block, stream, int(shared))
        if len(configuration) == 2 and _plain(blocks) and _plain(threads):
            self._configured[configuration] = launch
        return launch

    @to_the_point
    def forall(self, tasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """A launch with at least `tasks` threads, in blocks of `tpb` (256, if it is 0).

        The last block may have threads without a task: the kernel guards against them. Without
        tasks nothing runs.
        """
        if not isinstance(tasks, (int, np.integer)) or tasks < 0:
            raise KernelError(
                f"kernel {self.__name__!r}: forall takes how many tasks there are, a whole number "
                f"from 0 up, got {tasks!r}"
            )
        threads = tpb or THREADS
        launch = self._configure((-(-int(tasks) // threads), threads, stream, sharedmem))
        launch.tasks = int(tasks)
        return launch

    def configure(
        self, griddim: int | tuple[int, ...], blockdim: int | tuple[int, ...], stream: Any = 0,
        sharedmem: int = 0,
    ) -> Launch:  # fmt: skip
        """The same as `kernel[griddim, blockdim, stream, sharedmem]`."""
        return self[griddim, blockdim, stream, sharedmem]

    @to_the_point
    def cpu_source(self) -> str:
        """The Python text that was compiled for the CPU, after a launch on NumPy arrays.

        Raises:
            KernelError: the kernel has not run on the CPU yet.
        """
        return self.on_cpu.emitted()

    @to_the_point
    def cpu_assembly(self) -> str:
        """The CPU's instructions that were compiled, after a launch on NumPy arrays.

        The first lines are comments: how wide the vectors are in the loop with most arithmetic, how
        many multiply-adds are one instruction there, what is gathered, what had no register.

        Raises:
            KernelError: the kernel has not run on the CPU yet.
        """
        return self.on_cpu.assembly()


class Launch:
    """A kernel with its launch configuration, ready to be called.

    A grid without blocks, which CUDA refuses, is right where an array is empty: then nothing runs.
    """

    def __init__(
        self, kernel: Kernel, grid: Shape3, block: Shape3, stream: Any, shared: int
    ) -> None:
        self.kernel, self.grid, self.block = kernel, grid, block
        self.stream, self.shared = stream, shared
        self.tasks: int | None = None  # if it is known how many there are
        self.is_plain = 0 not in grid and kernel.signatures is None

    @to_the_point
    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Run the kernel: on the GPU if its arrays are CuPy's, on the CPU if they are NumPy's."""
        kernel = self.kernel
        plain = self.is_plain and len(arguments) == kernel.arity and not keywords
        if plain and COMMON.issuperset(map(type, arguments)):
            return kernel.plain.launch(self.grid, self.block, arguments, self.shared)
        if keywords:
            raise KernelError(
                f"kernel {self.kernel.__name__!r} gets its arguments by position; leave out "
                f"{', '.join(f'`{name}=`' for name in keywords)}"
            )
        if 0 in self.grid:
            if self.tasks == 0 or any(getattr(a, "size", 1) == 0 for a in arguments):
                return  # nothing to compute
            _shape3(self.grid, self.kernel.__name__, "blocks")
        arguments = self.kernel.completed(host.opened(arguments))
        cupy = sys.modules.get("cupy")
        if cupy is None or not any(isinstance(a, cupy.ndarray) for a in arguments):
            launches, arguments = self.kernel.launches(arguments)
            return launches.launch(self.grid, self.block, arguments, self.shared)
        self._check_gpu_arguments(cupy, arguments)
        self.kernel.on_cuda.launch(self.grid, self.block, arguments, self.shared, self.stream)

    def _check_gpu_arguments(self, cupy: Any, arguments: tuple[Any, ...]) -> None:
        names = self.kernel.function.__code__.co_varnames
        for name, argument in zip(names, arguments, strict=False):
            if isinstance(argument, np.ndarray):
                raise KernelError(
                    f"kernel {self.kernel.__name__!r}: argument {name!r} is a NumPy array, "
                    "others are CuPy arrays; move it with cupy.asarray, or them with cupy.asnumpy"
                )
            if not isinstance(argument, (cupy.ndarray, *NUMBERS, tuple)):
                raise KernelError(
                    f"kernel {self.kernel.__name__!r}: argument {name!r} is a "
                    f"{type(argument).__name__}, others are CuPy arrays; convert it with "
                    "cupy.asarray"
                )


def _for_gpu(
    function: types.FunctionType, compiler: compilers.Compiler, itself: DeviceFunction | None = None
) -> types.FunctionType:
    """The same function, with a compiler's own objects behind the names bound to ours.

    What is bound to `itself` is left open: the function has to be there first.

    Raises:
        UnsupportedKernel: A device function calls itself by way of it.
    """

    def swap(value: Any) -> Any:
        if not isinstance(value, DeviceFunction):
            return compiler.namespace() if value is cuda else compiler.counterpart(value)
        if value.is_being_made:
            code, name = function.__code__, value.function.__name__
            raise UnsupportedKernel(
                f"{code.co_filename}:{code.co_firstlineno}: {name!r} calls itself by way of "
                f"{function.__name__!r}, which compilers for GPUs do not support. Write a loop"
            )
        return value.on_gpu

    def is_open(value: Any) -> bool:
        return itself is not None and value is itself

    names = set(function.__code__.co_names)
    outside = {k: swap(v) if k in names else v for k, v in function.__globals__.items()
               if not is_open(v)}  # fmt: skip
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    cells = [types.CellType() if is_open(v) else types.CellType(swap(v)) for v in values]
    made = types.FunctionType(
        function.__code__, outside, function.__name__, function.__defaults__, tuple(cells)
    )
    if made.__module__ not in sys.modules:  # there Numba takes two names, of what calls itself
        made.__module__ = None  # type: ignore[assignment]
    return made


def _of_our_functions(numbas: Callable[..., Any]) -> Callable[..., Any]:
    """What Numba makes of functions, as `cuda.compile` does, of functions that use this `cuda`.

    Raises:
        KernelError: Numba's own modules were loaded behind a covered `numba.cuda`.
    """

    @to_the_point
    @wraps(numbas)
    def ours(*arguments: Any, **keywords: Any) -> Any:
        given = [a.function if isinstance(a, DeviceFunction) else a for a in arguments]
        compiler = compilers.compiler()
        try:
            made = numbas(
                *(_for_gpu(a, compiler) if isinstance(a, types.FunctionType) else a for a in given),
                **keywords,
            )
        except NotImplementedError as error:
            raise KernelError(
                f"cuda.{numbas.__name__} of {given[0].__name__!r}: where `numba.cuda` is covered, "
                "Numba does not know its own names; compile in a script that says "
                "`from minitransformer_kernels.cuda import cuda`"
            ) from error
        return _of_our_functions(made) if isinstance(made, types.FunctionType) else made

    return ours


class _Door:
    """The namespace `cuda` of a kernel file: Numba's, with a `jit` of its own."""

    is_cuda_namespace = True

    def __repr__(self) -> str:
        return "cuda"

    @to_the_point
    def jit(
        self, function: Any = None, /, *, device: bool = False, checked: bool | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Decorate a kernel, or with `device=True` a function that kernels call.

        Options are Numba's (`fastmath`, `max_registers`, `lineinfo`). A kernel is compiled when it
        is first launched, for the arguments that it gets; with a signature in place of the function
        (`@cuda.jit("void(float32[:], int32)")`) numbers are converted to its types. On NumPy arrays
        `checked=True` checks every launch, as `debug=True` does, and `checked=False` none, in place
        of the first.

        Raises:
            TypeError: there is no such option, but one of almost that name.
            KernelError: what is decorated is no function, or an option can have no effect.
        """
        if signatures.is_signature(function):
            options["signature"] = function
            function = None
        if function is None:
            return lambda inner: self.jit(inner, device=device, checked=checked, **options)
        if not isinstance(function, types.FunctionType):
            raise KernelError(
                f"@cuda.jit takes a function or a signature, got {function!r}; write @cuda.jit "
                "alone above a function"
            )
        for option in options.keys() - OPTIONS:
            if meant := difflib.get_close_matches(option, OPTIONS, 1, 0.75):
                raise TypeError(f"@cuda.jit has no option {option!r}; did you mean {meant[0]!r}?")
        if options.get("extensions"):
            raise KernelError(
                "@cuda.jit got extensions, which convert arguments for Numba's launches alone; "
                "convert them before the launch"
            )
        signature = options.pop("signature", None)
        if device:
            return DeviceFunction(function, options, signature)
        return Kernel(function, options, checked, signature)

    def __getattr__(self, name: str) -> Any:
        found = host.find(name)
        takes_functions = name.startswith("compile") or name in FUNCTIONS
        numbas = takes_functions and found is not host.OURS.get(name)
        return _of_our_functions(found) if numbas else found


cuda: Any = _Door()

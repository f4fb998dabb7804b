"""A kernel on the CPU: check a launch, find or compile its function, run its blocks.

Most launches are of small work, again and again with arguments of the same types. Those go a short
way: which compiled function fits the types is found by Numba's own dispatcher, which is machine
code, and as long as the blocks of a kernel have little to do, no other thread is woken for them.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import _dispatcher
from numba.core.errors import NumbaError
from numba.core.typeconv.rules import default_type_manager

from . import hints, typing_errors
from .assembly import assembly
from .cache import turn
from .canonical import canonical
from .compiler import in_haste, with_room
from .errors import DivergentBarrier, KernelError
from .form import Canonical, Shape3, is_barrier
from .lowering import PLAIN, Mode, Variant
from .outline import Outline, outline
from .regions import Regions
from .runtime import pool
from .runtime.warps import diverged
from .source import Source, place, read
from .trees import walk


class Compiled(NamedTuple):
    """A function that runs a range of blocks, and what it was made from."""

    function: Callable[..., int]
    variant: Variant
    shadowed: dict[int, bool]  # see `Variant.function`


SOME_SHARED_BYTES = 1024  # where the size of dynamic shared memory decides nothing
LITTLE = 2e-4  # seconds of work, below which another thread comes too late to help
LATE = 4e-5  # seconds that it needs to come
GRAIN = 1.5e-4  # seconds of work in a range of blocks: between two, threads meet at Python's lock
RAISED = IndexError, ValueError, ZeroDivisionError  # by Numba's code, where a GPU ends the thread
COMMON = {np.ndarray, int, float, bool, np.float32, np.float64, np.int32, np.int64}  # types
_NUMBERS = "first", "last", "grid_x", "grid_y", "grid_z"  # before the arguments of a kernel


class Quick(_dispatcher.Dispatcher):
    """A kernel's functions for one block shape, chosen by the types of the arguments.

    Numba's dispatcher looks a function up, and calls it, in machine code. What it does not know it
    asks `_compile_for_args` for. `seconds` is what a block took at the last launch.
    """

    def __init__(self, kernel: CpuKernel, block: Shape3, shared_bytes: int) -> None:
        names = *_NUMBERS, *kernel.parameters, *map(str, range(len(kernel.constants)))
        super().__init__(
            default_type_manager.get_pointer(), len(names), False, names, (), False, False, True
        )
        self.kernel, self.block, self.shared_bytes = kernel, block, shared_bytes
        self.seconds = LITTLE
        self.__code__ = kernel.function.__code__  # for profilers
        self._known: dict[tuple[int, ...], Any] = {}
        self._looking = threading.Lock()

    def _compile_for_args(self, *arguments: Any) -> Any:
        """Numba's hook: the function for arguments of new types, which it will call."""
        codes = tuple([self.typeof_pyval(argument)._code for argument in arguments])
        with self._looking:  # several threads have come to the first launch
            if codes not in self._known:
                own = arguments[len(_NUMBERS) : len(arguments) - len(self.kernel.constants)]
                function: Any = self.kernel.compiled(self.block, own, self.shared_bytes).function
                kinds = map(numba.typeof, map(_writable_alias, arguments))
                self._known[codes] = function.compile(tuple(kinds))
                self._insert(codes, self._known[codes], False)
            return self._known[codes]

    def typeof_pyval(self, value: Any) -> Any:
        """Numba's hook: the type of what its machine code does not know."""
        try:
            return numba.typeof(value)
        except (NumbaError, NotImplementedError, OverflowError, ValueError):
            return numba.types.pyobject


class CpuKernel:
    """A `@cuda.jit` kernel that runs on NumPy arrays.

    `limit(name, declared, dynamic)` refuses bytes of shared memory that a GPU has not. `packed` are
    the places of arguments that it takes `unpacked`, and how they are made of their parts.
    """

    def __init__(
        self,
        function: types.FunctionType,
        *,
        fastmath: bool = False,
        limit: Callable[[str, int, int], None] | None = None,
        packed: Mapping[int, str] = {},
    ) -> None:
        self.function = function
        self.packed = packed
        self.fastmath = fastmath
        self.limit = limit
        self._compiled: dict[Any, Compiled] = {}
        self._quick: dict[tuple[Shape3, int], Quick] = {}
        self._variant: Variant | None = None

    @cached_property
    def source(self) -> Source:
        """The kernel's parsed source, read on first use."""
        return read(self.function, packed=self.packed)

    def launch(
        self, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int = 0
    ) -> None:
        """Run every block of a grid.

        Raises:
            DivergentBarrier: some threads of a block waited at a barrier that others never reach.
            KernelError: an argument's type or number is wrong, or the kernel cannot be compiled
                for the CPU.
        """
        quick = self._quick.get((block, shared_bytes)) or self._made_quick(block, shared_bytes)
        run: Callable[..., int] = quick
        given = *grid, *arguments, *self.constants
        if not self._apart(arguments):
            run = self.compiled(block, arguments, shared_bytes).function
            given = *grid, *self.prepared(arguments)

        def blocks(first: int, last: int) -> None:
            try:
                code = run(first, last, *given)
            except OverflowError:  # the dispatcher takes all whole numbers for int64
                code = self.compiled(block, arguments, shared_bytes).function(first, last, *given)
            except RAISED as error:
                raise self.stopped(error) from None
            if code:
                raise self.divergent(code, grid, block, shared_bytes)

        count, threads = grid[0] * grid[1] * grid[2], 1
        began = perf_counter()
        if quick.seconds * count < LITTLE:
            blocks(0, count)
        else:
            threads = min(count, pool.num_threads())
            pool.run(blocks, count, threads, int(GRAIN / quick.seconds))
        quick.seconds = (perf_counter() - began - LATE * (threads > 1)) * threads / count

    def _made_quick(self, block: Shape3, shared_bytes: int) -> Quick:
        made = self._quick[block, shared_bytes] = Quick(self, block, shared_bytes)
        return made

    def compiled(
        self, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int, mode: Mode = PLAIN
    ) -> Compiled:
        """The function that runs a range of blocks; it is compiled on first use."""
        aliased = self._aliased(arguments)
        key = (block, shared_bytes, mode.name, aliased, *map(kind_of, arguments))
        if key not in self._compiled:
            with in_haste():
                self._compiled[key] = with_room(
                    self._compile, block, arguments, aliased, shared_bytes, mode
                )
        return self._compiled[key]

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as the compiled function takes them.

        Raises:
            KernelError: an array that the kernel writes to is read-only.
        """
        if any([isinstance(a, np.ndarray) and not a.flags.writeable for a in arguments]):
            arguments = tuple(map(self._writable, range(len(arguments)), arguments))
        return (*arguments, *self.constants)

    @cached_property
    def form(self) -> Canonical:
        """The kernel's canonical form, for what blocks and shared memory have no say in."""
        return canonical(self.source, (1, 1, 1), SOME_SHARED_BYTES)

    @cached_property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The NumPy arrays that the kernel uses from outside: its last arguments."""
        if not self.source.takes_arrays:
            return ()
        found = self.form.source.arrays
        return tuple(_writable_alias(found[name]) for name in sorted(found))

    def divergent(
        self, code: int, grid: Shape3, block: Shape3, shared_bytes: int, mode: Mode = PLAIN
    ) -> DivergentBarrier:
        """The error for the number that a compiled function returned."""
        number, barrier, waits, misses = diverged(code)
        form = canonical(self.source, block, shared_bytes, instrumented=mode.instrumented)
        node = list(filter(is_barrier, walk(form.body)))[barrier]
        here = place_of(number, grid)
        waiting, missing = (place_of(thread, block) for thread in (waits, misses))
        return DivergentBarrier(
            f"in block {here}, thread {waiting} waits at cuda.syncthreads(), which thread "
            f"{missing} never reaches. Every thread of a block must reach every barrier: move it "
            "out of the branch or the loop, and guard the work around it instead",
            form.source.name, *place(node), here, (waiting, missing),
        )  # fmt: skip

    def stopped(self, error: Exception) -> KernelError:
        """The error for what Numba's code raises: one of RAISED."""
        return KernelError(
            f"kernel {self.function.__name__!r}: {error}: some index of a tuple, such as a shape, "
            "the step of some range, or what a complex number is divided by. A thread that comes "
            "there ends on a GPU, and nobody hears of it: test the number before"
        )

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the arguments, in order."""
        return self.source.parameters

    @cached_property
    def written(self) -> frozenset[int]:
        """The positions of the arguments that the kernel writes to.

        Raises:
            UnsupportedKernel: it writes to an array from outside as well.
        """
        return frozenset(self.outline.written)

    @cached_property
    def outline(self) -> Outline:
        """What every launch asks, of the form or of what is kept of it."""
        return outline(self.source, lambda: self.form)

    def _apart(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a glance shows that what the kernel writes to is in no other argument's memory.

        It does where all arrays own their memory, or are views of arrays that do, and hold numbers
        as this machine writes them.
        """
        if len(arguments) != len(self.parameters):
            return False
        owners, array = [], np.ndarray
        for argument in arguments:
            owner = None
            if type(argument) is array:
                if not argument.dtype.isnative:  # which Numba's dispatcher does not see
                    return False
                owner = argument.base
                if owner is None:
                    owner = argument
                elif type(owner) is not array or owner.base is not None:
                    return False
            elif type(argument) not in COMMON:
                return False
            owners.append(id(owner))
        for i in self.written:
            output = arguments[i]
            if type(output) is not array or not output.flags.writeable:
                return False
            if owners.count(owners[i]) > 1:
                return False
        return True

    def _aliased(self, arguments: tuple[Any, ...]) -> frozenset[str]:
        """The arguments in memory that the kernel writes to by way of another."""
        aliased = []  # plain loops: every launch comes through here
        outputs = [(i, arguments[i]) for i in self.written if i < len(arguments)]
        for i, (name, argument) in enumerate(zip(self.parameters, arguments, strict=False)):
            if isinstance(argument, np.ndarray):
                for j, output in outputs:
                    if i != j and np.may_share_memory(argument, output):
                        aliased.append(name)
        return frozenset(aliased)

    def _writable(self, index: int, argument: Any) -> Any:
        if (
            index in self.written
            and isinstance(argument, np.ndarray)
            and not argument.flags.writeable
        ):
            raise KernelError(
                f"kernel {self.function.__name__!r} writes to argument "
                f"{self.source.parameters[index]!r}, but that array is read-only; pass a copy"
            )
        return _writable_alias(argument)

    def emitted(self) -> str:
        """The text of the module for the types that were compiled last, without any checks."""
        return self._compiled_last().function()[1]

    def assembly(self) -> str:
        """The instructions for the types that were compiled last, without any checks."""
        return assembly(self._compiled_last())

    def regions(self) -> Regions:
        """What the kernel was cut into for the types that were compiled last."""
        regions: Regions = self._compiled_last().body().regions
        return regions

    def _compiled_last(self) -> Variant:
        if self._variant is None:
            raise KernelError(
                f"kernel {self.function.__name__!r} has not run on the CPU yet; what is emitted "
                "depends on the arguments: launch it once on NumPy arrays, then ask again"
            )
        return self._variant

    def _compile(
        self,
        block: Shape3,
        arguments: tuple[Any, ...],
        aliased: frozenset[str],
        shared_bytes: int,
        mode: Mode,
    ) -> Compiled:
        parameters = list(map(self.source.original, self.source.parameters))
        if len(parameters) != len(arguments):
            missing = ", ".join(parameters[len(arguments) :])
            raise KernelError(
                f"kernel {self.function.__name__!r} takes {len(parameters)} arguments "
                f"({', '.join(parameters)}), got {len(arguments)}"
                + (f"; give {missing} as well" if missing else "; leave out the last")
            )
        for parameter, argument in zip(parameters, arguments, strict=True):
            self._check(parameter, argument)
        if self.limit:
            self.limit(self.function.__name__, self.outline.declared(arguments), shared_bytes)
        kinds = tuple(map(self._type, parameters, arguments))
        kinds += tuple(map(numba.typeof, self.constants))
        variant = Variant(self.source, block, kinds, self.fastmath, aliased, shared_bytes, mode)
        with turn(variant.path):
            function, _, shadowed = variant.function()
            self._variant = replace(variant, mode=PLAIN)
            extra = mode.body.extra_types(kinds, shadowed)
            try:
                function.compile((numba.int64,) * 5 + kinds + extra)
            except (NumbaError, NotImplementedError) as error:
                raise typing_errors.uncompiled(self.source, kinds, error) from error
        return Compiled(function, variant, shadowed)

    def _type(self, parameter: str, argument: Any) -> Any:
        try:
            return numba.typeof(_writable_alias(argument))
        except (NumbaError, NotImplementedError, OverflowError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise KernelError(
                f"kernel {self.function.__name__!r}: argument {parameter!r} is of a type that "
                f"kernels cannot use ({reason}). Pass a number of at most 64 bits, or convert an "
                "array with numpy.asarray and .astype(numpy.float32)"
            ) from None

    def _check(self, parameter: str, argument: Any) -> None:
        refusal = hints.argument(argument)
        if refusal is not None:
            what, way_out = refusal
            raise KernelError(
                f"kernel {self.function.__name__!r}: argument {parameter!r} is {what}. {way_out}"
            )


@contextmanager
def unchanged(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Let arrays hold in the end what they hold now."""
    arrays = [a for a in arguments if isinstance(a, np.ndarray) and a.flags.writeable]
    saved = [array.copy() for array in arrays]
    try:
        yield
    finally:
        for array, before in zip(arrays, saved, strict=True):
            array[...] = before


PACKED = tuple, np.void  # arguments that are taken apart


def unpacked(argument: Any) -> tuple[str, list[Any]]:
    """How an argument is made of parts that kernels take, as an expression with `{}` for each.

    A tuple is made of its items, a named one as if its type were called; a record is the one row of
    an array in the record's own memory.
    """
    if isinstance(argument, np.void) and argument.dtype.names:
        row = _memory(argument).view(argument.dtype).reshape(1)
        return "{}[0]", [row]
    if not isinstance(argument, tuple):
        return "{}", [argument]
    items = [unpacked(item) for item in argument]
    fields = getattr(argument, "_fields", ())
    names = [f"{field}=" for field in fields] if fields else [""] * len(items)
    text = "".join(f"{name}{how}, " for name, (how, _) in zip(names, items, strict=True))
    return f"{'named' * bool(fields)}({text})", [part for _, parts in items for part in parts]


def place_of(number: int, shape: Sequence[int]) -> Shape3:
    """The indices (x, y, z) of a thread in its block, or of a block in its grid."""
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def kind_of(argument: Any) -> Any:
    """What decides the compiled function: cheap to compute, since every launch does."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        return argument.dtype, argument.ndim, flags.c_contiguous, flags.f_contiguous
    if isinstance(argument, int):  # int64, uint64, or more than any type holds
        return type(argument), min(max(argument.bit_length(), 63), 65)
    return type(argument)


def _writable_alias(array: Any) -> Any:
    """The same memory without the read-only mark, which Numba would compile again for."""
    if not isinstance(array, np.ndarray) or array.flags.writeable:
        return array
    return _memory(array)


def _memory(owner: Any) -> np.ndarray:
    """The memory of an array or a record, without a read-only mark."""
    address, _ = owner.__array_interface__["data"]
    interface = {**owner.__array_interface__, "data": (address, False)}
    return np.asarray(types.SimpleNamespace(__array_interface__=interface, owner=owner))

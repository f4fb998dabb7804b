"""Three things that a compiler for GPUs should know, and that Numba does not tell it.

Numba turns a kernel into LLVM code, and NVIDIA's compiler, NVVM, turns that into PTX. In the inner
loop of `softmax.forward`, of 16 multiplications, NVVM used to make 128 instructions: all but the
loads computed addresses. It had no way to see, and so computed for each access,

1. that a thread's index is not negative. In Python a[-1] is the last element, so a[i] begins with a
   test, unless i >= 0 is known; but the registers with a thread's and its block's index were
   integers like others. `_bounded` gives their ranges.
2. how often a loop runs, and that its variable rises. Numba moves a `range` on under a condition,
   while there are numbers left; NVVM makes selections of it, which it cannot undo, and so unrolls
   no further. `_move_on` moves on always: past the end nobody looks at what is there.
3. that neighbours in shared memory may be read together. An instruction that reads four numbers of
   float32 at once needs an address divisible by 16, but arrays began at any multiple of 4.
   `_aligned` lets those begin at `ALIGNMENT` whose length is a multiple of it. Of three numbers
   that begin there NVVM would read four, the last behind the array's end.

With all three the loop has 36 instructions, half its loads read four numbers, and the kernel needs
fewer registers, so that more of its blocks run at a time: `cubins` tells what each kernel needs.

`teach` replaces these three pieces of Numba; nothing that a kernel computes depends on it. What
they are worth `inspect --ptx` counts: it compiles once more without, by `hints`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

ALIGNMENT = 16  # bytes: the most that one instruction reads or writes
THREADS = {"x": 1024, "y": 1024, "z": 64}  # of a block, at most
BLOCKS = {"x": 2**31 - 1, "y": 65535, "z": 65535}  # of a grid
LIMITS = {  # of special registers: the least value, and one more than the greatest
    **{f"tid.{axis}": (0, most) for axis, most in THREADS.items()},  # threadIdx
    **{f"ntid.{axis}": (1, most + 1) for axis, most in THREADS.items()},  # blockDim
    **{f"ctaid.{axis}": (0, most) for axis, most in BLOCKS.items()},  # blockIdx
}
HINTS = "indices", "loops", "alignment"  # the three
_told: tuple[str, ...] = HINTS


def told() -> tuple[str, ...]:
    """Which hints the compiler is given now."""
    return _told


@contextmanager
def hints(*given: str) -> Iterator[None]:
    """Give it only these of `HINTS` within this context."""
    global _told
    before, _told = _told, given
    try:
        yield
    finally:
        _told = before


@cache
def teach() -> None:
    """Tell it from now on, in every kernel that Numba compiles for GPUs."""
    try:
        from numba.cuda import cudaimpl, nvvmutils
        from numba.cuda.cpython import rangeobj
    except ImportError:
        return  # Numba's simulator, which compiles nothing
    nvvmutils.call_sreg = _bounded(nvvmutils.call_sreg)
    cudaimpl._generic_array = _aligned(cudaimpl._generic_array)
    rangeobj.registry.functions = [
        (_move_on(implementation, *types) if name == "iternext" else implementation, name, types)
        for implementation, name, types in rangeobj.registry.functions
    ]


def _bounded(call_sreg: Callable[..., Any]) -> Callable[..., Any]:
    """What reads a special register, such as "tid.x", with the range of its values."""
    from llvmlite import ir

    def call(builder: Any, name: str) -> Any:
        value = call_sreg(builder, name)
        if name in LIMITS and "indices" in _told:
            limits = [ir.Constant(value.type, limit) for limit in LIMITS[name]]
            value.set_metadata("range", builder.module.add_metadata(limits))
        return value

    return call


def _move_on(numbas: Callable[..., Any], iterator_type: Any) -> Callable[..., Any]:
    """The next number of a `range`, and whether there was one."""
    from numba.cuda import cgutils
    from numba.cuda.core.imputils import RefType, iternext_impl

    Iterator = cgutils.create_struct_proxy(iterator_type)

    @iternext_impl(RefType.BORROWED)  # type: ignore[untyped-decorator]
    def move_on(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
        iterator = Iterator(context, builder, *args)
        value, left = builder.load(iterator.iter), builder.load(iterator.count)
        result.set_valid(builder.icmp_signed(">", left, left.type(0)))
        result.yield_(value)
        builder.store(builder.sub(left, left.type(1), flags=["nsw"]), iterator.count)
        builder.store(builder.add(value, iterator.step, flags=["nsw"]), iterator.iter)

    def chosen(*args: Any) -> Any:
        return (move_on if "loops" in _told else numbas)(*args)

    return chosen


def _aligned(generic_array: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an array of a block or a thread, with an alignment unless the kernel has one."""

    def array(
        context: Any, builder: Any, shape: tuple[int, ...], dtype: Any, *args: Any,
        alignment: int | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        if alignment is None and "alignment" in _told:
            size = prod(shape) * context.get_abi_sizeof(context.get_data_type(dtype))
            alignment = None if size % ALIGNMENT else ALIGNMENT
        return generic_array(context, builder, shape, dtype, *args, alignment=alignment, **options)

    return array

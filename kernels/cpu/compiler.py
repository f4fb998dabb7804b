"""Step 9: compile emitted code with Numba, telling LLVM what a lane loop is.

Between two barriers the threads of a block may run in any order; a program that depends on the
order has a data race. So the iterations of a lane loop are independent by the meaning of the
kernel, though LLVM could not prove it. Three notes on the loop say so
(https://llvm.org/docs/LangRef.html):

    llvm.loop.parallel_accesses         no iteration depends on another: vectorise without asking
    llvm.loop.unroll.disable            and vectorise before anything unrolls it
    llvm.loop.vectorize.followup_all    which may happen afterwards

A lane loop is recognised by the comment `# lanes` at the end of its line in the emitted file.

Of the other loops only the inner ones are unrolled, and those whose turns each have a register of
their own (`# in registers`): a register has no index. One around another of them goes over parts of
a block or rows of a tile: LLVM would repeat all its vectors for each.

How wide the vectors are is a note too, on the function (`VECTOR_BITS`).

LLVM before version 23 has a fault that lanes bring out: a number cut to fewer bits and stored by a
single lane of a mask known in advance (`if thread == 7: ints[thread] = long`) is stored whole, over
its neighbour (https://github.com/llvm/llvm-project/issues/179489). So each such number gets a zero
added to it that LLVM cannot see through, and cutting and storing stay two operations.
"""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numba
from llvmlite import binding, ir
from numba.core import types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.base import BaseContext
from numba.core.codegen import CPUCodegen, JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import CompilerPass, PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typed_passes import (
    BaseNativeLowering,
    IRLegalization,
    NoPythonBackend,
    NoPythonSupportedFeatureValidation,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing import make_concrete_template, signature
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)
from numba.cpython import numbers, slicing

from .lean import LeanLower
from .quicker import QUICKER

LANES = "# lanes"
IN_REGISTERS = "# in registers"
T = TypeVar("T")


class _Distinct(ir.MDValue):
    """A metadata node with an identity of its own; a loop's also names itself first."""

    def __init__(self, module: ir.Module, *operands: Any, is_loop: bool) -> None:
        super().__init__(module, [], name=str(len(module.metadata)))
        self.operands = (self, *operands) if is_loop else operands

    def descr(self, buffer: list[str]) -> None:
        references = ", ".join(operand.get_reference() for operand in self.operands)
        buffer += (f"distinct !{{{references}}}\n",)

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def vector_bits(features: str) -> int | None:
    """How wide vectors are to be, where LLVM's own choice is too narrow.

    LLVM keeps to 256 bits on all of Intel's processors that have 512, as the first of them (2017 to
    2020) lowered their clock for wide ones. Those since do not: they also have VBMI2.

    Args:
        features: Of the processor, as LLVM names them: `+avx2,-avx512f,...`.

    >>> vector_bits("+avx512f,+avx512vbmi2"), vector_bits("+avx512f,-avx512vbmi2")
    (512, None)
    """
    return 512 if "+avx512vbmi2" in features.split(",") else None


def vector_registers(features: str) -> tuple[int, int]:
    """How many registers for vectors a processor has, and the bytes that are used of each.

    Args:
        features: Of the processor, as LLVM names them.

    >>> vector_registers("+avx2,-avx512vl"), vector_registers("+avx512vl,+avx512vbmi2")
    ((16, 32), (32, 64))
    >>> vector_registers("+avx2,+avx512vl,-avx512vbmi2"), vector_registers("+neon")
    ((32, 32), (32, 16))
    """
    has = features.split(",")
    count = 32 if "+avx512vl" in has or "+neon" in has else 16
    return count, (vector_bits(features) or (256 if "+avx" in has or "+avx2" in has else 128)) // 8


FEATURES = cpu_target.target_context.codegen()._tm_features
VECTOR_BITS = vector_bits(FEATURES)
VECTOR_REGISTERS = vector_registers(FEATURES)
STORES_TOO_MUCH = binding.llvm_version_info < (23,)


class _GuardedLower(LeanLower):
    """Numba's lowering, with the numbers that are cut to fewer bits kept from LLVM's fault."""

    def post_lower(self) -> None:
        super().post_lower()
        if VECTOR_BITS:
            note = f'"prefer-vector-width"="{VECTOR_BITS}"'
            set.add(self.function.attributes, note)  # `add` knows only attributes without a value
        if STORES_TOO_MUCH:
            for block in self.function.blocks:
                for instruction in list(block.instructions):
                    if instruction.opname == "trunc" and instruction.type.width >= 8:
                        self._keep_whole(block, instruction)

    def _keep_whole(self, block: Any, cut: Any) -> None:
        """Adds the zero to a number, for all who use it."""
        zero = self._unseen_zero(cut.type)
        builder = ir.IRBuilder(block)
        builder.position_after(cut)
        kept = builder.add(cut, zero)
        for user in (user for other in self.function.blocks for user in other.instructions):
            if user is not kept:
                user.replace_usage(cut, kept)

    def _unseen_zero(self, kind: Any) -> Any:
        """A zero that comes out of an empty piece of assembly, once a call."""
        entry = self.function.entry_basic_block
        builder = ir.IRBuilder(entry)
        builder.position_at_start(entry)
        return builder.asm(ir.FunctionType(kind, [kind]), "", "=r,0", [kind(0)], side_effect=False)


class _KernelLower(_GuardedLower):
    def post_lower(self) -> None:
        super().post_lower()
        # A loop that copies slots is short: a call would cost more, and all registers' contents.
        set.add(self.function.attributes, '"no-builtin-memcpy"')
        lanes, around = self._heads()
        if lanes:
            accesses = _Distinct(self.module, is_loop=False)
            for block in self.function.blocks:
                for instruction in block.instructions:
                    # A call stands for the loads and stores that are inlined in its place.
                    if instruction.opname in ("load", "store", "call"):
                        instruction.set_metadata("llvm.access.group", accesses)
        rolled = self._note("llvm.loop.unroll.disable")
        for branch, head in self._jumps_back():
            if head in lanes:
                parallel = self._note("llvm.loop.parallel_accesses", accesses)
                later = self._note("llvm.loop.vectorize.followup_all")  # and unroll freely then
                branch.set_metadata("llvm.loop", self._loop(parallel, rolled, later))
            elif head in around:
                branch.set_metadata("llvm.loop", self._loop(rolled))

    def _heads(self) -> tuple[set[str], set[str]]:
        """The blocks where lane loops begin, and where those that stay rolled do."""
        loops = compute_cfg_from_blocks(self.blocks).loops()
        places = {head: self.blocks[head].loc for head in loops}
        lines = {n: linecache.getline(at.filename, at.line).rstrip() for n, at in places.items()}
        others = {head for head, line in lines.items() if not line.endswith(LANES)}
        around = {head for head in others if others & loops[head].body - {head}}
        around -= {head for head, line in lines.items() if line.endswith(IN_REGISTERS)}
        name = {head: self.blkmap[head].name for head in loops}
        return {name[head] for head in loops.keys() - others}, {name[head] for head in around}

    def _jumps_back(self) -> Iterator[tuple[Any, str]]:
        """The jumps to a block that stands before them, and its name."""
        seen: set[str] = set()
        for block in self.function.blocks:
            seen.add(block.name)
            end = block.terminator
            if end is not None and end.opname == "br" and len(end.operands) == 1:
                target = end.operands[0].name
                if target in seen:
                    yield end, target

    def _note(self, text: str, *values: Any) -> ir.MDValue:
        return self.module.add_metadata([ir.MetaDataString(self.module, text), *values])

    def _loop(self, *notes: ir.MDValue) -> _Distinct:
        return _Distinct(self.module, *notes, is_loop=True)


class _Library(JITCodeLibrary):
    """Where LLVM optimises a function alone, and then with what it calls.

    Numba does so too, but between the two it optimises all functions cheaply, to find counts of
    references that cancel: a kernel counts none. Without the first, loops run up to a fifth longer,
    however often all is optimised afterwards.
    """

    if hasattr(CPUCodegen, "_pass_builder"):  # an older Numba does as it always did

        def _optimize_final_module(self) -> None:
            manager, builder = self._codegen._module_pass_manager()
            manager.run(self._final_module, builder)


class _InlineLibrary(_Library):
    """Of a device function: it is linked into kernels, and has no machine code of its own."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _Lowering(BaseNativeLowering):
    library: type[_Library] = _Library

    def run_pass(self, state: Any) -> bool:
        """Numba's hook: from its own form of a function to machine code."""
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class _InlineLowering(_Lowering):
    library = _InlineLibrary

    def run_pass(self, state: Any) -> bool:
        """Numba's hook: from its own form of a function to LLVM's."""
        state.flags.no_compile = True
        super().run_pass(state)
        # Numba finds a function by its machine code. A built-in that no other has stands for it.
        found_by = object().__sizeof__
        state.targetctx.insert_user_function(found_by, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=found_by)
        return True


# Of the thirty passes of Numba's pipeline, those that a kernel needs. The others look for what no
# kernel has (closures, array expressions, context managers), and several of them analyse the whole
# function anew whether they find it or not.
TYPING = (
    TranslateByteCode, FixupArgs, IRProcessing, RewriteSemanticConstants, DeadBranchPrune,
    GenericRewrites, ReconstructSSA, NopythonTypeInference,
)  # fmt: skip
BEFORE_LOWERING = (PreLowerStripPhis, NoPythonSupportedFeatureValidation, IRLegalization)


def passes_with(
    lower: type[Lower], name: str, base: type[_Lowering] = _Lowering
) -> tuple[type[CompilerPass], ...]:
    """All passes, with a lowering of its own that has a name."""

    @register_pass(mutates_CFG=True, analysis_only=False)
    class Lowering(base):  # type: ignore[misc, valid-type]
        _name, lowering_class = name, lower

    return (*TYPING, *BEFORE_LOWERING, Lowering, NoPythonBackend)


class Passes(CompilerBase):
    """A pipeline of Numba's passes; as it stands here, those up to type inference."""

    passes: tuple[type[CompilerPass], ...] = TYPING

    def define_pipelines(self) -> list[PassManager]:
        """Numba's hook: the passes to run."""
        self.state.cr = ()  # where the whole pipeline will leave its result
        manager = PassManager(type(self).__name__)
        manager._ENFORCING = False  # do not analyse the whole function again after each pass
        for kind in self.passes:
            manager.add_pass(kind, kind._name)
        manager.finalize()
        return [manager]


class DeviceCompiler(Passes):
    """Compiles a device function, with the zeros, up to what LLVM builds into a kernel."""

    passes = passes_with(_GuardedLower, "device_native_lowering", _InlineLowering)


class KernelCompiler(Passes):
    """Compiles a kernel: the same, and the notes on lane loops."""

    passes = passes_with(_KernelLower, "kernel_native_lowering")


def _fix_slice(builder: Any, piece: Any, size: Any) -> None:
    """Numba's `fix_slice`, without branches: bring a slice's ends into an array of some size.

    LLVM 22's vectoriser goes wrong where threads that part take a slice that is the same for all:
    what the branches choose, it asks the first of four lanes, which may not take part.
    """
    zero, one = size.type(0), size.type(1)
    backwards = builder.icmp_signed("<", piece.step, zero)
    low = builder.select(backwards, size.type(-1), zero)
    high = builder.select(backwards, builder.sub(size, one), size)
    for end in ("start", "stop"):
        bound = slicing.fix_index(builder, getattr(piece, end), size)
        bound = builder.select(builder.icmp_signed("<", bound, zero), low, bound)
        bound = builder.select(builder.icmp_signed(">=", bound, size), high, bound)
        setattr(piece, end, bound)


def _divmod(context: Any, builder: Any, x: Any, y: Any) -> Any:
    """Numba's `real_divmod_func_body`, `x // y` and `x % y` of floats, of a GPU's remainder.

    NVVM takes it by the rounded quotient: `1.0 % 0.1` is 0. The C library's is exact, and a call.
    """

    def of(name: str, value: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic(name, [value.type]), [value])

    def remainder(x: Any, y: Any) -> Any:
        left, right = of("llvm.fabs", x), of("llvm.fabs", y)
        whole = of("llvm.floor", builder.fdiv(left, right))
        product = of("llvm.arithmetic.fence", builder.fmul(whole, right))  # not fused with `-`
        rest = builder.fsub(left, product)
        return builder.select(builder.fcmp_ordered("<", x, x.type(0)), builder.fneg(rest), rest)

    builder.frem = remainder  # of this one function
    return _NUMBAS_DIVMOD(context, builder, x, y)


def _subroutine(
    context: BaseContext, builder: Any, function: Any, of: Any, locals: Any = None,
    flags: Any = None,
) -> Any:  # fmt: skip
    """Numba's `_compile_subroutine_no_cache`, where a float divided by 0 is infinite or NaN.

    What Numba writes in Python itself, such as `x ** -1`, it compiles as if it were Python's: that
    raises an error. It keeps the two apart afterwards.
    """
    if flags is None:
        flags = numba.core.compiler.Flags()
        flags.error_model = "numpy"
    return _NUMBAS_SUBROUTINE(context, builder, function, of, locals, flags)


_NUMBAS_DIVMOD = numbers.real_divmod_func_body
_NUMBAS_SUBROUTINE = BaseContext._compile_subroutine_no_cache
IN_PLACE_OF_NUMBAS = (
    *QUICKER,
    (slicing, "fix_slice", _fix_slice),
    (numbers, "real_divmod_func_body", _divmod),
    (BaseContext, "_compile_subroutine_no_cache", _subroutine),
)


@contextmanager
def in_haste() -> Iterator[None]:
    """Compile meanwhile without looking for garbage, and with quicker parts in place of Numba's.

    Compiling makes a million objects that live until its end, and the more of them there are, the
    longer every look takes.
    """
    with global_compiler_lock:
        collects = gc.isenabled()
        numbas = [getattr(owner, name) for owner, name, _ in IN_PLACE_OF_NUMBAS]
        gc.disable()
        for owner, name, ours in IN_PLACE_OF_NUMBAS:
            setattr(owner, name, ours)
        try:
            yield
        finally:
            for (owner, name, _), before in zip(IN_PLACE_OF_NUMBAS, numbas, strict=True):
                setattr(owner, name, before)
            if collects:
                gc.enable()


def with_room(call: Callable[..., T], *arguments: Any) -> T:
    """What a call returns that calls deeply, as compiling does.

    Python keeps the frames of calls in pieces of 16 KiB, and before 3.14 it gives a piece back as
    soon as the first frame in it ends: a loop that calls across the edge asks the system for memory
    each time round (https://github.com/python/cpython/issues/142183). At some depths that took a
    third of compiling. This frame is said to be of 1 MiB, so it gets a piece of 2, and the rest is
    for those above it; what none of them uses costs nothing.
    """
    return call(*arguments)


with_room.__code__ = with_room.__code__.replace(co_stacksize=2**17)


def inferred(function: Callable[..., Any], arguments: tuple[types.Type, ...]) -> Any:
    """Numba's state after type inference: `func_ir`, and `typemap` for the variables in it.

    Raises:
        numba.core.errors.TypingError: as Numba raises it.
    """
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    flags = numba.core.compiler.Flags()
    flags.error_model = "numpy"
    compiler = Passes(typing, target, None, arguments, None, flags, {})
    compiler.compile_extra(function)
    return compiler.state


class OnlyTyped(CPUDispatcher):
    """A device function at step 4: it is asked for the type of its result, and not compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._results: dict[Any, types.Type] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Numba's hook: what a call gives for arguments of some types."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        if args not in self._results:
            with self._compiling_counter:  # so that a function that calls itself is seen
                self._results[args] = inferred(self.py_func, args).return_type
        of_call = signature(self._results[args], *args)
        template = make_concrete_template(self.py_func.__name__, self, [of_call])
        return template, pysig, args, {}


def infer_types(
    function: Callable[..., Any], arguments: tuple[types.Type, ...]
) -> dict[str, types.Type]:
    """The types that Numba gives to a function's variables (the union over all assignments).

    Raises:
        numba.core.errors.TypingError: as Numba raises it.
    """
    versions: dict[str, list[types.Type]] = {}
    for variable, kind in inferred(function, arguments).typemap.items():
        if not variable.startswith(("$", "arg.")):
            kind = types.unliteral(kind)
            versions.setdefault(variable.split(".")[0], []).append(kind)
    return {base: cpu_target.typing_context.unify_types(*kinds) for base, kinds in versions.items()}

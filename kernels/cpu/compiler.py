"""Step 9: compile emitted code with Numba, telling LLVM what a lane loop is.

Between two barriers the threads of a block may run in any order; a program that depends on the
order has a data race. So the iterations of a lane loop are independent by the meaning of the
kernel, though LLVM could not prove it. Two notes on the loop say so
(https://llvm.org/docs/LangRef.html):

    llvm.loop.parallel_accesses     no iteration depends on another: vectorise without asking
    llvm.loop.unroll.disable        and vectorise before anything unrolls it

A lane loop is recognised by the comment `# lanes` at the end of its line in the emitted file.

LLVM before version 23 has a fault that lanes bring out: a number cut to fewer bits and stored by a
single lane of a mask known in advance (`if thread == 7: ints[thread] = long`) is stored whole, over
its neighbour (https://github.com/llvm/llvm-project/issues/179489). So each such number gets a zero
added to it that LLVM cannot see through, and cutting and storing stay two operations.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import cpu_target
from numba.core.typed_passes import BaseNativeLowering, NativeLowering, NopythonTypeInference

LANES = "# lanes"


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


STORES_TOO_MUCH = binding.llvm_version_info < (23,)


class _GuardedLower(Lower):
    """Numba's lowering, with the numbers that are cut to fewer bits kept from LLVM's fault."""

    def post_lower(self) -> None:
        super().post_lower()
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
        branches = list(self._branches_of_lane_loops())
        if not branches:
            return
        accesses = _Distinct(self.module, is_loop=False)
        for block in self.function.blocks:
            for instruction in block.instructions:
                # A call stands for the loads and stores that are inlined in its place.
                if instruction.opname in ("load", "store", "call"):
                    instruction.set_metadata("llvm.access.group", accesses)
        for branch in branches:
            branch.set_metadata("llvm.loop", self._lane_loop(accesses))

    def _branches_of_lane_loops(self) -> Iterator[Any]:
        """The jumps back to the head of a lane loop."""
        heads = {
            self.blkmap[offset].name
            for offset, block in self.blocks.items()
            if linecache.getline(block.loc.filename, block.loc.line).rstrip().endswith(LANES)
        }
        seen: set[str] = set()
        for block in self.function.blocks:
            seen.add(block.name)
            end = block.terminator
            if end is not None and end.opname == "br" and len(end.operands) == 1:
                target = end.operands[0].name
                if target in heads and target in seen:
                    yield end

    def _lane_loop(self, accesses: _Distinct) -> _Distinct:
        def note(text: str, *values: Any) -> ir.MDValue:
            return self.module.add_metadata([ir.MetaDataString(self.module, text), *values])

        return _Distinct(
            self.module,
            note("llvm.loop.parallel_accesses", accesses),
            note("llvm.loop.unroll.disable"),
            note("llvm.loop.vectorize.followup_all"),  # and unroll freely afterwards
            is_loop=True,
        )


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(BaseNativeLowering):
    _name = "kernel_native_lowering"
    lowering_class = _KernelLower


@register_pass(mutates_CFG=True, analysis_only=False)
class _DeviceLowering(BaseNativeLowering):
    _name = "device_native_lowering"
    lowering_class = _GuardedLower


class DeviceCompiler(CompilerBase):
    """Numba's own pipeline, but for the zeros."""

    lowering: type[BaseNativeLowering] = _DeviceLowering

    def define_pipelines(self) -> list[PassManager]:
        """Numba's hook: the passes to run."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [
            (self.lowering if kind is NativeLowering else kind, text)
            for kind, text in manager.passes
        ]
        manager._finalized = False
        manager.finalize()
        return [manager]


class KernelCompiler(DeviceCompiler):
    """The same, and the notes on lane loops."""

    lowering = _KernelLowering


class _TypesOnly(CompilerBase):
    """Numba's pipeline up to type inference."""

    def define_pipelines(self) -> list[PassManager]:
        whole = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager = PassManager("types only")
        for kind, text in whole.passes:
            manager.add_pass(kind, text)
            if kind is NopythonTypeInference:
                break
        self.state.cr = ()  # where the whole pipeline would leave its result
        manager.finalize()
        return [manager]


def infer_types(
    function: Callable[..., Any], arguments: tuple[types.Type, ...]
) -> dict[str, types.Type]:
    """The types that Numba gives to a function's variables (the union over all assignments).

    Raises:
        numba.core.errors.TypingError: as Numba raises it.
    """
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    flags = numba.core.compiler.Flags()
    flags.error_model = "numpy"
    compiler = _TypesOnly(typing, target, None, arguments, None, flags, {})
    compiler.compile_extra(function)
    versions: dict[str, list[types.Type]] = {}
    for variable, kind in compiler.state.typemap.items():
        if not variable.startswith(("$", "arg.")):
            kind = types.unliteral(kind)
            versions.setdefault(variable.split(".")[0], []).append(kind)
    return {base: typing.unify_types(*kinds) for base, kinds in versions.items()}

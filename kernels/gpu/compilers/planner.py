"""What `codegen` tells NVVM, in the kernel's own words: for numba-cuda-mlir.

It shows every kernel to planners, in public, before it finds types. `Hints` adds to each kernel two
of the three things that `codegen` explains:

1. `cuda.threadIdx.x` becomes `int32(cuda.threadIdx.x & 1023)`, and so on: where the index of a
   thread or a block ends, and so that it is not negative. `cuda.grid(1)` likewise.
3. `cuda.shared.array(shape, dtype)` becomes `cuda.shared.array(shape, dtype, 16)`, where that is
   known to be a multiple of 16 long: neighbours may be read together. `cuda.local.array` likewise.

How often a loop runs (2) has no such place; `README.md` has what that costs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.extending import WholeFunctionPlanner, register_planner
from numba_cuda_mlir.numba_cuda.core import ir
from numba_cuda_mlir.numba_cuda.core.errors import ConstantInferenceError
from numba_cuda_mlir.numba_cuda.np.numpy_support import as_dtype

from ..codegen import ALIGNMENT, BLOCKS, THREADS, told

ARRAYS = "cuda.shared.array()", "cuda.local.array()"
# The bits that a number may have: all values up to the greatest are among them.
BITS = {
    f"cuda.{name}.{axis}": (1 << (most + more - 1).bit_length()) - 1
    for name, limits, more in (
        ("threadIdx", THREADS, 0), ("blockDim", THREADS, 1), ("blockIdx", BLOCKS, 0),
    )
    for axis, most in limits.items()
} | {"cuda.grid(1)": (1 << 31) - 1}  # fmt: skip


@cache
def register() -> None:
    """Have it look at every kernel that is compiled from now on."""
    register_planner(Hints)


class Hints(WholeFunctionPlanner):
    """Adds to a kernel what NVVM should know of it, as far as `codegen.hints` allows it."""

    def run(self) -> bool:
        """Change the kernel where it reads an index or makes an array; return whether it did."""
        self.changed = 0
        for block in self.state.func_ir.blocks.values():
            block.body = [new for old in block.body for new in self._told(block.scope, old)]
        return self.changed > 0

    def _told(self, scope: Any, statement: Any) -> Iterator[Any]:
        """Yield a statement's successors: itself, or what says more."""
        value: Any = getattr(statement, "value", None)
        loc = statement.loc
        what = self._what(value) if isinstance(statement, ir.Assign) else ""
        if what in ARRAYS and "alignment" in told() and self._whole(value):
            yield (number := self._assign(scope, statement, ir.Const(ALIGNMENT, loc)))
            value.args = [*value.args, number.target]
        elif what in BITS and "indices" in told():
            bits = ir.Const(BITS[what], loc)
            yield (raw := self._assign(scope, statement, value))
            yield (mask := self._assign(scope, statement, bits))
            kept = ir.Expr.binop(operator.and_, raw.target, mask.target, loc)
            yield (within := self._assign(scope, statement, kept))
            yield (kind := self._assign(scope, statement, ir.Global("int32", types.int32, loc)))
            value = ir.Expr.call(kind.target, [within.target], (), loc)
            statement = ir.Assign(value, statement.target, loc)
        yield statement

    def _assign(self, scope: Any, near: Any, value: Any) -> Any:
        """An assignment to a name that nothing else has."""
        self.changed += 1
        name = f"$told_{near.target.name}_{self.changed}"
        return ir.Assign(value, ir.Var(scope, name, near.loc), near.loc)

    def _whole(self, call: Any) -> bool:
        """Whether an array that no alignment is asked for is a multiple of `ALIGNMENT` long."""
        if len(call.args) != 2 or call.kws:
            return False
        try:
            lengths, kind = map(self.state.func_ir.infer_constant, call.args)
        except ConstantInferenceError:
            return False
        bytes_each = (as_dtype(kind) if isinstance(kind, types.Type) else np.dtype(kind)).itemsize
        return bool(np.prod(lengths) * bytes_each % ALIGNMENT == 0)

    def _definition(self, name: Any) -> Any:
        try:
            return self.state.func_ir.get_definition(name)
        except KeyError:  # it has several
            return None

    def _what(self, value: Any) -> str:
        """What is read or called, as `cuda.threadIdx.x` or `cuda.grid(1)`; "" for all else."""
        if not isinstance(value, ir.Expr) or value.op != "call":
            return self._path(value) or ""
        name = self._path(self._definition(value.func)) or ""
        given = map(self._definition, value.args if name == "cuda.grid" else ())
        return f"{name}({', '.join(str(x.value) for x in given if isinstance(x, ir.Const))})"

    def _path(self, value: Any) -> str | None:
        """What an expression is called from outside, as `cuda.threadIdx.x`; None: it is not."""
        if isinstance(value, (ir.Global, ir.FreeVar)):
            return "cuda" if value.value is cuda else None
        if not isinstance(value, ir.Expr) or value.op != "getattr":
            return None
        around = self._path(self._definition(value.value))
        return around and f"{around}.{value.attr}"

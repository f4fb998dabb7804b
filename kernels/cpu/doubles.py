"""Where a kernel on float32 arrays computes in float64, told from the types.

To Numba a number of Python's, `0.5`, is float64, and so is what becomes of a float32 and it, of a
quotient of whole numbers, and of an argument that is a `float`. On a CPU that costs little. Most
GPUs do 32 or 64 operations on float32 in the time of one on float64.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numba
import numpy as np
from numba.core import ir, types

from . import typed, typing_errors
from .canonical import canonical
from .compiler import inferred
from .form import Shape3
from .launch import CpuKernel
from .source import place

DOUBLE = types.float64, types.complex128
COMPUTES = {"binop", "inplace_binop", "unary", "call"}


def doubles(
    kernel: CpuKernel, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int = 0
) -> Counter[tuple[str, int]]:
    """How many operations of each (file, line) give float64.

    None where no array is of float32, or one is of float64: there they are meant.

    Raises:
        UnsupportedKernel: see `CpuKernel.launch`.
    """
    found = Counter[tuple[str, int]]()
    dtypes = {a.dtype for a in arguments if isinstance(a, np.ndarray)}
    if np.dtype("f4") not in dtypes or dtypes & {np.dtype("f8"), np.dtype("c16")}:
        return found
    form = canonical(kernel.source, block, shared_bytes)
    module = typed.as_one_thread(form)
    kinds = tuple(map(numba.typeof, kernel.prepared(arguments)))
    state = inferred(typed.executed(module, form.source), typed.INDICES + kinds)
    for statements in state.func_ir.blocks.values():
        for made in statements.find_insts(ir.Assign):
            is_computed = isinstance(made.value, ir.Expr) and made.value.op in COMPUTES
            if is_computed and state.typemap[made.target.name] in DOUBLE:
                statement = typing_errors.origin(form, module, made.loc.line)
                found[place(statement or form.source.tree)] += 1
    return found

"""Step 4: the types of a kernel's variables, as Numba infers them.

Numba is shown the kernel as a thread that is alone would run it: barriers are nothing, and what
other threads would leave is the thread's own. So float32 stays float32, and int32 wraps, as on a
GPU.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba.core import types

from . import compiler, text, typing_errors
from .form import AXES, Canonical, Whole, is_meeting
from .paths import joined
from .source import Source
from .trees import copied, name

RUNTIME = f"{__package__}.runtime"
INDICES = (types.int64,) * 9  # of a thread and of its block, and the size of the grid


def typed(form: Canonical, arguments: tuple[types.Type, ...]) -> Canonical:
    """A kernel with the types of its variables, its arguments and its arrays.

    Raises:
        UnsupportedKernel: Numba finds no type for something, or not one that a GPU allows.
    """
    module = as_one_thread(form)
    try:
        found = compiler.infer_types(executed(module, form.source), INDICES + arguments)
    except Exception as error:  # Numba raises more than its own errors
        raise typing_errors.explained(form, module, error) from error
    typing_errors.refuse_new_arrays(form, found)
    known = replace(form, kinds=found | dict(zip(form.parameters, arguments, strict=True)))
    typing_errors.refuse_unaligned_fields(known)
    return replace(known, body=joined(known.body, known.ndims))


def executed(module: str, source: Source) -> Callable[..., Any]:
    """The function in what `as_one_thread` wrote; its arguments are `INDICES` and the kernel's."""
    namespace: dict[str, Any] = {"untyped": compiler.OnlyTyped}
    exec(compile(module, f"<types of {source.name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[text.function_name(source)]
    return function


def as_one_thread(form: Canonical) -> str:
    """A module with the kernel as one thread sees it."""
    module = text.begun(form, RUNTIME, "@untyped")
    indices = [f"{index}_{axis}" for index in ("thread", "block") for axis in AXES]
    given = ", ".join([*indices, *text.signature(form)])
    with module.block(f"def {text.function_name(form.source)}({given}):"):
        for array in form.arrays.values():
            shape = (1,) if array.is_dynamic else array.shape
            module.line(f"{array.name} = stack({shape}, {array.dtype})")
        module.statements(map(_Alone().visit, copied(form.body)))
        module.line("return")
    return str(module)


class _Alone(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if is_meeting(node) else node

    def visit_Whole(self, node: Whole) -> ast.AST:
        return name(node.id)

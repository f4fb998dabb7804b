"""numba-cuda, told what `codegen` knows.

An array's argument is 0, 0, its size, the bytes of an element, its address, the lengths of its
axes, and their strides in bytes; the zeros stand for what only Numba's own arrays have.
"""

from __future__ import annotations

import re
from inspect import Parameter, Signature, signature
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from .. import codegen

WORDS = 5


def namespace() -> Any:
    """Return its `cuda`."""
    from numba import config, cuda

    cuda = getattr(cuda, "original", cuda)  # where `without_gpu` covers it
    if not config.ENABLE_CUDASIM:  # Numba's simulator compiles nothing
        codegen.teach()
    return cuda


def counterpart(value: Any) -> Any:
    """Return the value: it is Numba's."""
    return value


def words(array: Any) -> tuple[int, ...]:
    """Return what an array is as an argument."""
    return 0, 0, array.size, array.itemsize, array.data.ptr, *array.shape, *array.strides


def ptx(
    function: FunctionType, types: tuple[Any, ...], architecture: tuple[int, int], name: str,
    **options: bool,
) -> str:  # fmt: skip
    """Compile a kernel."""
    # Numba compiles device functions for the GPU that it finds: let it find this one.
    gpu = SimpleNamespace(compute_capability=architecture)
    with patch("numba.cuda.dispatcher.get_current_device", return_value=gpu):
        text, _ = namespace().compile_ptx(function, types, cc=architecture, **options)
    mangled = re.search(r"\.visible \.entry ([\w$]+)\(", text)[1]  # type: ignore[index]
    return str(text).replace(mangled, name)


def instruction(meaning: FunctionType, ptx: str, results: str, operands: str) -> Any:
    """Return a function whose call in a kernel becomes one PTX instruction."""
    from llvmlite import ir
    from numba import types
    from numba.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    def typed(context: Any, *given: Any) -> Any:
        if any(kind != types.float32 for kind in given):
            names = ", ".join(map(str, given))
            raise TypingError(f"{meaning.__name__} takes float32 numbers, got {names}")
        count = len(results)
        result = types.float32 if count == 1 else types.UniTuple(types.float32, count)
        return result(*given), generate

    def generate(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
        kinds = {"f": ir.FloatType(), "r": ir.IntType(32)}
        inputs = [kinds[letter] for letter in operands]
        outputs = [kinds[letter] for letter in results]
        single = len(outputs) == 1
        kind = ir.FunctionType(outputs[0] if single else ir.LiteralStructType(outputs), inputs)
        constraints = [f"={letter}" for letter in results] + list(operands)
        # All lanes must come to the instruction together: no pass may move it into a branch.
        together = () if single else ("convergent",)
        text = ir.InlineAsm(kind, ptx, ",".join(constraints), side_effect=not single)
        given = list(map(builder.bitcast, arguments, inputs))
        found = builder.call(text, given, attrs=together)
        if single:
            return builder.bitcast(found, kinds["f"])
        items = [builder.extract_value(found, index) for index in range(len(outputs))]
        return context.make_tuple(builder, typed.return_type, items)

    own = signature(meaning).parameters.values()
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)
    typed.__signature__ = Signature([context, *own])  # type: ignore[attr-defined]
    return intrinsic(typed)

"""numba-cuda-mlir.

An array's argument is MLIR's description of memory: its address, twice, the place where it begins
there, the lengths of its axes, and their strides in elements; in bytes, where an element is a
record.
"""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, Signature, signature
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import numba

from ...cpu.errors import UnsupportedKernel

WORDS = 3
PACKAGE = "numba_cuda_mlir"
NUMBAS = "numba.cuda"


def namespace() -> Any:
    """Return its `cuda`."""
    cuda = import_module(f"{PACKAGE}.cuda")
    return getattr(cuda, "original", cuda)  # where `without_gpu` covers it


def counterpart(value: Any) -> Any:
    """Return what stands in a kernel for a value of Numba's: its type, module or function."""
    if isinstance(value, numba.types.Type):
        return _type(value)
    if value is numba:
        return import_module(f"{PACKAGE}.types")
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str) or not f"{name}.".startswith(f"{NUMBAS}."):
        return value
    module = import_module(f"{PACKAGE}.cuda{name.removeprefix(NUMBAS)}")
    return module if isinstance(value, ModuleType) else getattr(module, value.__name__)


def _type(kind: Any) -> Any:
    """Return its type for one of Numba's."""
    types = import_module(f"{PACKAGE}.types")
    if isinstance(kind, numba.types.Array):
        return types.Array(_type(kind.dtype), kind.ndim, kind.layout)
    if isinstance(kind, numba.types.BaseTuple):
        named = getattr(kind, "instance_class", None)
        return types.BaseTuple.from_types(tuple(map(_type, kind)), named)
    if hasattr(types, str(kind)):
        return getattr(types, str(kind))
    support = import_module(f"{PACKAGE}.numba_cuda.np.numpy_support")  # of records and dates
    return support.from_dtype(numba.np.numpy_support.as_dtype(kind))


def _argument(kind: Any) -> Any:
    """Return its type for that of an argument."""
    if isinstance(kind, numba.types.Complex):
        raise UnsupportedKernel(
            "numba-cuda-mlir takes a complex number in one piece, launches hand it over in two; "
            "pass an array of one element, or take numba-cuda"
        )
    for item in kind if isinstance(kind, numba.types.BaseTuple) else ():
        _argument(item)
    return _type(kind)


def words(array: Any) -> tuple[int, ...]:
    """Return what an array is as an argument."""
    unit = 1 if array.dtype.kind == "V" else array.itemsize
    strides = [stride // unit for stride in array.strides]
    return array.data.ptr, array.data.ptr, 0, *array.shape, *strides


def ptx(
    function: FunctionType, types: tuple[Any, ...], architecture: tuple[int, int], name: str,
    **options: bool,
) -> str:  # fmt: skip
    """Compile a kernel."""
    import_module(".planner", __package__).register()
    # It compiles for the GPU that it finds: let it find this one.
    with patch(f"{PACKAGE}.tools._cached_cc", architecture):
        text, _ = namespace().compile_ptx(
            function, tuple(map(_argument, types)), cc=architecture, abi_info={"abi_name": name},
            **options,
        )  # fmt: skip
    return str(text)


def instruction(meaning: FunctionType, ptx: str, results: str, operands: str) -> Any:
    """Return a function whose call in a kernel becomes one PTX instruction."""
    types, errors = import_module(f"{PACKAGE}.types"), import_module(f"{PACKAGE}.errors")
    extending = import_module(f"{PACKAGE}.extending")
    ir, mlir = import_module(f"{PACKAGE}._mlir.ir"), import_module(f"{PACKAGE}._mlir.dialects.llvm")

    def typed(context: Any, *given: Any) -> Any:
        if any(kind != types.float32 for kind in given):
            names = ", ".join(map(str, given))
            raise errors.TypingError(f"{meaning.__name__} takes float32 numbers, got {names}")
        count = len(results)
        result = types.float32 if count == 1 else types.UniTuple(types.float32, count)
        return result(*given), generate

    def generate(builder: Any, target: Any, arguments: Any, keywords: Any) -> None:
        kinds = {"f": ir.F32Type.get(), "r": ir.IntegerType.get_signless(32)}
        outputs = [kinds[letter] for letter in results]
        single = len(outputs) == 1
        kind = outputs[0] if single else mlir.StructType.get_literal(outputs)
        constraints = [f"={letter}" for letter in results] + list(operands)
        given = [
            mlir.bitcast(kinds[letter], value)
            for letter, value in zip(operands, builder.load_vars(arguments), strict=True)
        ]
        found = mlir.inline_asm(
            kind, given, ptx, ",".join(constraints), has_side_effects=not single
        )
        if single:
            return builder.store_var(target, mlir.bitcast(kinds["f"], found))
        places = [ir.DenseI64ArrayAttr.get([index]) for index in range(len(outputs))]
        items = [
            mlir.extractvalue(each, found, at) for each, at in zip(outputs, places, strict=True)
        ]
        builder.store_var(target, tuple(items))

    own = signature(meaning).parameters.values()
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)
    typed.__signature__ = Signature([context, *own])  # type: ignore[attr-defined]
    found = extending.intrinsic(typed)
    extending.refresh_registries()  # it looks there once, when it compiles for the first time
    return found

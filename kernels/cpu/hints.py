"""What learners write in a kernel that a kernel cannot hold, and what to write instead.

The texts of refusals are together here, apart from the checks that use them: each is the two halves
of a sentence for `Source.refuse`, what is wrong and the way out.
"""

from __future__ import annotations

import ast
import cmath
import difflib
import math
import re
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

_LIST = "Use a tuple for what is constant, and cuda.local.array for what changes"
_COMPREHENSION = "Write a `for` loop that fills a cuda.local.array"
_FUNCTION = "Define it outside the kernel, with @cuda.jit(device=True)"
_ERROR = "A GPU's thread has nobody to tell: test with `if`, and write a flag to an array argument"
_RESULT = "A kernel returns nothing: write results to an array argument"
_IMPORT = "Import at the top of the file"
_OUTSIDE = "Pass what changes as an array argument"

# What kernels do not have in Python's grammar: its name, and the way out.
CONSTRUCTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.List: ("a list", _LIST),
    ast.Dict: ("a dict", _LIST),
    ast.Set: ("a set", _LIST),
    ast.ListComp: ("a list comprehension", _COMPREHENSION),
    ast.SetComp: ("a set comprehension", _COMPREHENSION),
    ast.DictComp: ("a dict comprehension", _COMPREHENSION),
    ast.GeneratorExp: ("a generator", _COMPREHENSION),
    ast.FunctionDef: ("a function definition", _FUNCTION),
    ast.AsyncFunctionDef: ("a function definition", _FUNCTION),
    ast.Lambda: ("a `lambda`", _FUNCTION),
    ast.ClassDef: ("a class", "Use arrays and numbers, or a NumPy record"),
    ast.Try: ("`try`", _ERROR),
    ast.TryStar: ("`try`", _ERROR),
    ast.Raise: ("`raise`", _ERROR),
    ast.With: ("`with`", "Write the statements alone"),
    ast.Yield: ("`yield`", _RESULT),
    ast.YieldFrom: ("`yield`", _RESULT),
    ast.Await: ("`await`", "Threads wait for each other with cuda.syncthreads()"),
    ast.AsyncFor: ("`async`", "Threads wait for each other with cuda.syncthreads()"),
    ast.AsyncWith: ("`async`", "Threads wait for each other with cuda.syncthreads()"),
    ast.Import: ("`import`", _IMPORT),
    ast.ImportFrom: ("`import`", _IMPORT),
    ast.Global: ("`global`", _OUTSIDE),
    ast.Nonlocal: ("`nonlocal`", _OUTSIDE),
    ast.NamedExpr: (
        "`:=` where it may be skipped, or after what it changes",
        "Write the assignment on a line of its own",
    ),
    ast.Delete: ("`del`", "Leave it out: nothing is freed in a kernel"),
    ast.JoinedStr: ("an f-string", "Print text and numbers apart: print('x is', x[0])"),
    ast.Starred: ("an argument with `*`", "Write the arguments one by one"),
    ast.Match: ("`match`", "Write `if` and `elif`"),
    ast.MatMult: ("`@`", "Add up the products of elements in a loop"),
}

# Python's own functions that kernels do not have.
BUILTINS = {
    "reversed": "Write `range(n - 1, -1, -1)`",
    "sum": "Write a loop that adds to a variable",
    "any": "Write a loop with a flag",
    "all": "Write a loop with a flag",
    "isinstance": "Types are known when the kernel is compiled: leave the test out",
    "type": "Types are known when the kernel is compiled; x.dtype is that of an array",
    "list": _LIST, "dict": _LIST, "set": _LIST,
    "str": "Print numbers as they are", "repr": "Print numbers as they are",
    "open": "Read files before the launch, and pass arrays",
    "input": "Ask before the launch, and pass numbers",
}  # fmt: skip

# Names of CUDA C, in Numba's words.
CUDA_C = {
    "threadIdx": "cuda.threadIdx.x", "blockIdx": "cuda.blockIdx.x", "blockDim": "cuda.blockDim.x",
    "gridDim": "cuda.gridDim.x", "warpSize": "cuda.warpsize",
    "__syncthreads": "cuda.syncthreads()", "__syncwarp": "cuda.syncwarp()",
    "__shared__": "cuda.shared.array(shape, dtype)",
    "__threadfence": "cuda.threadfence()",
    "__shfl_sync": "cuda.shfl_sync", "__shfl_down_sync": "cuda.shfl_down_sync",
    "__shfl_up_sync": "cuda.shfl_up_sync", "__shfl_xor_sync": "cuda.shfl_xor_sync",
    "__ballot_sync": "cuda.ballot_sync", "__any_sync": "cuda.any_sync",
    "__all_sync": "cuda.all_sync", "__activemask": "cuda.activemask()",
    "__popc": "cuda.popc", "__clz": "cuda.clz", "__ffs": "cuda.ffs", "__brev": "cuda.brev",
    "__ldg": "an index: x[i]",
    "atomicAdd": "cuda.atomic.add(array, index, value)",
    "atomicSub": "cuda.atomic.sub(array, index, value)",
    "atomicMax": "cuda.atomic.max(array, index, value)",
    "atomicMin": "cuda.atomic.min(array, index, value)",
    "atomicExch": "cuda.atomic.exch(array, index, value)",
    "atomicCAS": "cuda.atomic.cas(array, index, old, value)",
    "fmaxf": "max", "fminf": "min", "fmax": "max", "fmin": "min", "fabsf": "abs",
    "rsqrtf": "1 / math.sqrt(x)", "rsqrt": "1 / math.sqrt(x)", "powf": "math.pow",
    "printf": "print", "true": "True", "false": "False", "NULL": "None",
}  # fmt: skip

# What kernels know of the namespace `cuda`, and how it is written.
CUDA = {
    "threadIdx": "cuda.threadIdx.x, .y or .z",
    "blockIdx": "cuda.blockIdx.x, .y or .z",
    "blockDim": "cuda.blockDim.x, .y or .z",
    "gridDim": "cuda.gridDim.x, .y or .z",
    "grid": "cuda.grid(1), (2) or (3)",
    "gridsize": "cuda.gridsize(1), (2) or (3)",
    "laneid": "cuda.laneid", "warpsize": "cuda.warpsize",
    "shared": "cuda.shared.array(shape, dtype)",
    "local": "cuda.local.array(shape, dtype)",
    "const": "cuda.const.array_like(array)",
    "syncthreads": "cuda.syncthreads()", "syncwarp": "cuda.syncwarp()",
    "threadfence": "cuda.threadfence()",
    "threadfence_block": "cuda.threadfence_block()",
    "threadfence_system": "cuda.threadfence_system()",
    "syncthreads_count": "cuda.syncthreads_count(predicate)",
    "syncthreads_and": "cuda.syncthreads_and(predicate)",
    "syncthreads_or": "cuda.syncthreads_or(predicate)",
    "shfl_sync": "cuda.shfl_sync(mask, value, lane)",
    "shfl_up_sync": "cuda.shfl_up_sync(mask, value, delta)",
    "shfl_down_sync": "cuda.shfl_down_sync(mask, value, delta)",
    "shfl_xor_sync": "cuda.shfl_xor_sync(mask, value, lane_mask)",
    "all_sync": "cuda.all_sync(mask, predicate)", "any_sync": "cuda.any_sync(mask, predicate)",
    "eq_sync": "cuda.eq_sync(mask, predicate)", "ballot_sync": "cuda.ballot_sync(mask, predicate)",
    "match_any_sync": "cuda.match_any_sync(mask, value)",
    "match_all_sync": "cuda.match_all_sync(mask, value)",
    "activemask": "cuda.activemask()", "lanemask_lt": "cuda.lanemask_lt()",
    "popc": "cuda.popc(x)", "clz": "cuda.clz(x)", "ffs": "cuda.ffs(x)", "brev": "cuda.brev(x)",
    "cbrt": "cuda.cbrt(x)", "fma": "cuda.fma(a, b, c)", "selp": "cuda.selp(condition, a, b)",
    "nanosleep": "cuda.nanosleep(nanoseconds)",
}  # fmt: skip
ATOMICS = {
    "cas": "cuda.atomic.cas(array, index, old, value)",
    "compare_and_swap": "cuda.atomic.compare_and_swap(array, old, value)",
} | {
    name: f"cuda.atomic.{name}(array, index, value)"
    for name in (
        "add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin",
    )
}  # fmt: skip

# Parts of CUDA that are out of scope, by the beginning of their names.
OUT_OF_SCOPE = {
    "cg": "Blocks cannot wait for each other inside a kernel: launch a second kernel instead",
    "libdevice": "Use the functions of `math`",
    "fp16": "float16 has operators and functions of `math`: write a + b, math.exp(a)",
    "wmma": "Tensor cores are out of reach: add up the products in a loop",
    "mma": "Tensor cores are out of reach: add up the products in a loop",
    "tensor": "Tensor cores are out of reach: add up the products in a loop",
    "tex": "There are no textures: read the array by its index",
    "surf": "There are no surfaces: write the array by its index",
    "ldg": "Read the array by its index",
    "random": "Draw random numbers before the launch, and pass them as an array",
}  # fmt: skip

# Types of vectors: `float32x4`, and `float4` as in C.
_VECTOR = re.compile(r"((?:u?int|float)\d+)x([1-4])|(u?)([a-z]+)([1-4])")
_OF_C = {
    "char": "int8", "short": "int16", "int": "int32", "long": "int64", "longlong": "int64",
    "float": "float32", "double": "float64",
}  # fmt: skip


def vector(name: str) -> tuple[str, int] | None:
    """The dtype of a type of vectors, and how many numbers it has; None for another name."""
    found = _VECTOR.fullmatch(name)
    if found is None:
        return None
    dtype, count, unsigned, of_c, count_of_c = found.groups()
    dtype = dtype or unsigned + _OF_C.get(of_c, "")
    return (dtype, int(count or count_of_c)) if hasattr(np, dtype) else None


# What of `cuda` belongs to the program that launches kernels.
HOST = {
    "to_device", "device_array", "device_array_like", "pinned_array", "pinned_array_like",
    "mapped_array", "mapped_array_like", "managed_array", "pinned", "mapped", "synchronize",
    "stream", "external_stream", "default_stream", "per_thread_default_stream", "event",
    "event_elapsed_time", "select_device", "get_current_device", "current_context", "list_devices",
    "close", "defer_cleanup", "profile_start", "profile_stop", "profiling", "is_available",
    "detect", "gpus", "as_cuda_array", "is_cuda_array", "from_cuda_array_interface", "jit",
    "reduce", "Reduce", "compile", "compile_ptx", "declare_device",
}  # fmt: skip


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one was probably meant to be."""
    lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), lower, 1, cutoff=0.75)
    return lower[found[0]] if found else None


def undefined(name: str, known: Iterable[str]) -> str:
    """The way out for a name that is not defined."""
    if name in CUDA_C:
        return f"In Python it is written {CUDA_C[name]}"
    if name in CUDA:
        return f"Write {CUDA[name]}"
    if name.endswith("f") and name[:-1] in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh"):
        return f"In Python it is written math.{name[:-1]}, which takes float32 too"
    if name in MATH:
        return f"Write math.{name}, after `import math`"
    meant = closest(name, known)
    if meant:
        return f"Did you mean {meant!r}?"
    return "Assign to it first, or pass it as an argument"


def outside(name: str, value: Any) -> tuple[str, str]:
    """What is wrong with a value from outside that no kernel can use, and the way out."""
    module = str(getattr(value, "__module__", None) or "")
    if hasattr(value, "on_cpu"):
        what = f"{name!r} is a kernel, and a kernel cannot launch another"
        return what, f"Call it as a device function, {name}(...), or launch it after this one"
    if type(value).__name__ == "ExternFunction":
        what = f"{name!r} is a function in C++, and those are not linked on the CPU"
        return what, "Write it in Python, with @cuda.jit(device=True)"
    if module.startswith(("numba.cuda.", "numba_cuda.")) and is_of_cuda(name):
        return f"{name!r} stands without `cuda`", f"Write cuda.{name}"
    if isinstance(value, FunctionType):
        what = f"{name!r} is an ordinary Python function"
        return what, "Decorate it with @cuda.jit(device=True), and kernels can call it"
    if isinstance(value, ModuleType):
        what = f"the module {value.__name__!r} cannot be used in a kernel"
        return what, (
            f"A number of it can, under a name of its own: limit = {name}.limit. Functions are "
            "those of `math`, and NumPy's of single numbers"
        )
    if module == "builtins" and callable(value):
        way_out = BUILTINS.get(name, "Write it with loops, `if` and numbers")
        return f"Python's `{name}` is not part of a kernel", way_out
    if isinstance(value, (list, dict, set)):
        what = f"the name {name!r} is bound to a {type(value).__name__}"
        return what, "Make it a tuple of numbers or a NumPy array, or pass it as an argument"
    return f"the name {name!r} is bound to a {type(value).__name__}", (
        "A kernel can use numbers, dtypes, tuples of them, NumPy arrays, `math`, and functions "
        "decorated with @cuda.jit(device=True); pass anything else as an argument"
    )


def is_of_cuda(name: str) -> bool:
    """Whether `cuda.` and a name is something that kernels, or the program around them, know."""
    return name in CUDA or name in HOST or name == "atomic" or vector(name) is not None


def cuda(path: list[str]) -> tuple[str, str]:
    """What is wrong with `cuda.` and a path that kernels do not know, and the way out."""
    first, whole = path[0], f"cuda.{'.'.join(path)}"
    if first == "atomic" and path[1:] and path[1] in ATOMICS:
        return f"`{whole}` is not how it is written", f"Write {ATOMICS[path[1]]}"
    if first == "atomic":
        return f"{whole} is not an atomic operation", f"There are {', '.join(sorted(ATOMICS))}"
    if first in CUDA:
        return f"`{whole}` is not how it is written", f"Write {CUDA[first]}"
    if first in HOST:
        return f"{whole} belongs to the program around a kernel", "Call it outside the kernel"
    if made := vector(first.removeprefix("make_")):
        numbers = ", ".join("abcd"[: made[1]])
        what = f"`{whole}` is not how a vector is made of {made[1]} numbers"
        return what, f"Write v = cuda.{made[0]}x{made[1]}({numbers}), and then v.x"
    for beginning, way_out in OUT_OF_SCOPE.items():
        if first.startswith(beginning):
            return f"{whole} is not supported on the CPU", way_out
    meant = closest(first, CUDA)
    if meant:
        return f"{whole} is unknown", f"Did you mean {CUDA[meant]}?"
    return f"{whole} is not supported on the CPU", (
        "Kernels have what structured Numba CUDA has, without textures, tensor-core intrinsics "
        "and cooperative groups"
    )


MATH = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "degrees", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "frexp", "gamma",
    "hypot",
    "isfinite", "isinf", "isnan", "ldexp", "lgamma", "log", "log10", "log1p", "log2", "modf",
    "nextafter",
    "pow", "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
}  # fmt: skip
_LOOP = "Write a loop over the elements"
_NEW_ARRAY = "Declare one with cuda.local.array or cuda.shared.array, or pass it as an argument"
NUMPY = dict.fromkeys(
    ("array", "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "full",
     "full_like", "arange", "linspace", "eye", "asarray", "copy"), _NEW_ARRAY,
) | {
    "random": "Draw random numbers before the launch, and pass them as an array",
    "where": "Write `a if condition else b`",
    "clip": "Write min(max(x, low), high)",
    "round": "Write round(x)",
}  # fmt: skip


def member(module: str, name: str) -> tuple[str, str] | None:
    """What is wrong with the member of a module that a kernel uses, and the way out."""
    if module == "math":
        if name in MATH or isinstance(getattr(math, name, None), float):
            return None
        meant = closest(name, MATH)
        way_out = f"Did you mean math.{meant}?" if meant else "Write its formula"
        elsewhere = {
            "cbrt": "cuda.cbrt(x)",
            "max": "max(a, b)",
            "min": "min(a, b)",
            "abs": "abs(x)",
        }
        way_out = f"Write {elsewhere[name]}" if name in elsewhere else way_out
        return f"kernels have no math.{name}", way_out
    if module == "cmath" and hasattr(cmath, name):
        return None
    value = getattr(np if module == "numpy" else numba, name, None)
    if isinstance(value, (np.ufunc, numba.types.Type, bool, int, float, complex)):
        return None
    if isinstance(value, type) and issubclass(value, np.generic):
        return None
    if module == "numba":
        return f"kernels have no numba.{name}", "They use Numba's dtypes, such as numba.float32"
    if value is None:
        known = [n for n in dir(np) if isinstance(getattr(np, n), np.ufunc)]
        meant = closest(name, [*known, "float32", "float64", "int32", "int64"])
        way_out = f"Did you mean numpy.{meant}?" if meant else "Write its formula"
        return f"NumPy has no {name!r}", way_out
    return f"kernels have no numpy.{name}", NUMPY.get(name, _LOOP)


_BY_LIBRARY = {
    "torch": "Pass x.detach().numpy(), which shares its memory; one on a GPU, with cupy.asarray(x)",
    "pandas": "Pass x.to_numpy()",
    "jax": "Pass numpy.array(x), a copy that can be written to",
    "jaxlib": "Pass numpy.array(x), a copy that can be written to",
    "tensorflow": "Pass x.numpy()",
}
_BY_TYPE = {
    "list": "Convert it with numpy.array(x, dtype=numpy.float32)",
    "tuple": "Pass its items one by one, or an array",
    "dict": "Pass what is in it one by one",
    "str": "Kernels compute with numbers",
    "NoneType": "Pass a number, or an array of size 0",
    "type": "Kernels take dtypes from outside, by name, or from an array: x.dtype",
    "function": "Kernels take device functions from outside, by name",
    "builtin_function_or_method": "Kernels take functions of `math` from outside, by name",
    "Kernel": "A kernel cannot launch another",
    "DeviceFunction": "Kernels take device functions from outside, by name",
}
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
COMPUTED = f"bool, whole numbers of 8 to 64 bits, {', '.join(FLOATS)}"
INDEXED = {"shape", "size", "ndim"}  # what kernels know of an array: no names for fields


def argument(value: Any) -> tuple[str, str] | None:
    """What is wrong with an argument of a launch on the CPU, and the way out."""
    if isinstance(value, np.ndarray | np.number | np.bool_):
        return _dtype(value.dtype)
    if isinstance(value, (bool, int, float, complex)):
        return None
    name = type(value).__name__
    library = type(value).__module__.partition(".")[0]
    way_out = _BY_LIBRARY.get(library) or _BY_TYPE.get(name) or "Convert it with numpy.asarray"
    what = f"a {library}.{name}" if library in _BY_LIBRARY else f"a {name}"
    what = "None" if value is None else what
    return f"{what}; expected a NumPy array or a number", way_out


def _dtype(dtype: np.dtype[Any]) -> tuple[str, str] | None:
    """What is wrong with the dtype of an array or a number."""
    from .runtime import halves

    taken = sorted(INDEXED.intersection(dtype.names or ()))
    if taken:
        what = f"an array of records with a field {taken[0]!r}, the name of what every array has"
        return what, "Rename the field"
    if not dtype.isnative:
        what = f"of dtype {dtype.str!r}, which is the byte order of other machines"
        return what, "Convert it with x.astype(x.dtype.newbyteorder('='))"
    if dtype == np.float16 and not halves.CONVERTED:
        return "of dtype float16, which this processor does not convert", (
            "Convert it with x.astype(numpy.float32)"
        )
    if dtype.kind not in "biumMV" and dtype not in FLOATS:
        return f"of dtype {dtype.name}; on the CPU kernels compute with {COMPUTED}", (
            "Convert it with x.astype(numpy.float32)"
        )
    return None

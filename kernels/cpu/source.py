"""Step 1: read a kernel's source, and everything that it refers to.

A kernel is an ordinary Python function. `read` returns its syntax tree, and the values of the names
that it takes from outside: sizes from the closure of a factory, dtypes, device functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from .errors import KernelError, UnsupportedKernel

# Names that emitted code uses for itself; a kernel's own names that look like them are renamed.
RESERVED = re.compile(
    r"u|stack|prefetch|kernel|device|block|barrier|numba|numpy|device_math|first_block|last_block"
    r"|(grid|thread|block)_[xyz]|BLOCK_[XYZ]|(atomic|warp|every|block)_\w+|\w+_lanes?"
    r"|popc|clz|ffs|brev|cbrt|selp|fma|reinterpret|dynamic_bytes"
    r"|\w+__\w+|\w+_blocks"
)
REFUSED = (
    ast.Try, ast.With, ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Await, ast.Import, ast.ImportFrom,
    ast.Global, ast.Nonlocal, ast.NamedExpr, ast.Delete, ast.Raise, ast.Assert, ast.Dict, ast.Set,
    ast.List, ast.JoinedStr, ast.Starred, ast.Match, ast.AsyncFor, ast.AsyncWith,
)  # fmt: skip
BUILTINS = {
    "range", "min", "max", "abs", "len", "int", "float", "bool", "complex", "round", "pow",
    "divmod", "print",
}  # fmt: skip
FILE_LINES = 1_000_000  # a tree's line numbers are `file number * FILE_LINES + line`
_files: list[str] = []


@dataclass
class Source:
    """A function as the compiler sees it: where it is written, its tree, and its outside names."""

    name: str
    filename: str
    first_line: int
    tree: ast.FunctionDef
    constants: dict[str, str] = field(default_factory=dict)  # name -> Python text of its value
    device_functions: dict[str, Source] = field(default_factory=dict)
    cuda_names: set[str] = field(default_factory=set)  # names bound to the CUDA namespace
    originals: dict[str, str] = field(
        default_factory=dict
    )  # new name -> the name it was renamed from
    values: dict[str, Any] = field(default_factory=dict)  # the constants themselves
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # NumPy arrays from outside

    def where(self, node: ast.AST) -> str:
        """`file:line` of a node, for error messages."""
        return "{}:{}".format(*place(node))

    def refuse(self, node: ast.AST, what: str, way_out: str) -> UnsupportedKernel:
        """The error for a construct that cannot be compiled for the CPU."""
        return UnsupportedKernel(f"{self.where(node)}: kernel {self.name!r}: {what}. {way_out}")

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments, in order."""
        return [argument.arg for argument in self.tree.args.args]

    @property
    def defaults(self) -> dict[str, ast.expr]:
        """The default values of arguments that have one."""
        arguments = self.tree.args
        return dict(zip(self.parameters[::-1], arguments.defaults[::-1], strict=False))

    def text(self) -> str:
        """Everything that decides what will be emitted, for the name of the cache file."""
        parts = [ast.dump(self.tree), repr(sorted(self.constants.items())), str(self.first_line)]
        parts += sorted(self.arrays)
        parts += [f"{name}: {inner.text()}" for name, inner in self.device_functions.items()]
        return "\n".join(parts)


def read(function: types.FunctionType, callers: tuple[types.FunctionType, ...] = ()) -> Source:
    """Parse a kernel or a device function and resolve the names it takes from outside.

    Raises:
        KernelError: the source text cannot be found (a function made by `exec`).
        UnsupportedKernel: it refers to a value that a kernel cannot use.
    """
    filename = inspect.getsourcefile(function) or "<unknown>"
    tree, first_line = _parse(function)
    if filename not in _files:
        _files.append(filename)
    ast.increment_lineno(tree, _files.index(filename) * FILE_LINES + first_line - 1)
    source = Source(function.__name__, filename, first_line, tree)
    _refuse_constructs(source, is_kernel=not callers)
    source.originals = _rename_reserved(tree)
    for name, value, node in _outside_names(function, source):
        _resolve(source, name, value, node, (*callers, function))
    return source


def place(node: ast.AST) -> tuple[str, int]:
    """The file and the line that a node of a kernel's tree comes from."""
    number, line = divmod(getattr(node, "lineno", 1), FILE_LINES)
    return _files[number], line


def _parse(function: types.FunctionType) -> tuple[ast.FunctionDef, int]:
    """A function's tree, and the line of its file that the tree's first line is."""
    try:
        lines, first_line = inspect.getsourcelines(function)
    except OSError as error:
        raise KernelError(
            f"kernel {function.__name__!r}: its source text cannot be found ({error}); define it "
            "in a file or a notebook cell, not in a string given to exec()"
        ) from None
    statement = ast.parse("if True:\n" + "".join(lines)) if lines[0][:1].isspace() else None
    tree = statement.body[0].body[0] if statement else ast.parse("".join(lines)).body[0]  # type: ignore[attr-defined]
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{function.__name__!r} is not a plain `def`; a kernel must be one")
    return tree, first_line - 1 if statement else first_line


def _identifiers(tree: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return names | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


def _rename_reserved(tree: ast.FunctionDef) -> dict[str, str]:
    """Give a name of its own to what is called like something of ours; return new -> old."""
    taken = _identifiers(tree)
    new_names: dict[str, str] = {}
    for old in sorted(name for name in taken if RESERVED.fullmatch(name)):
        new_names[old] = f"{old}_"
        while new_names[old] in taken:
            new_names[old] += "_"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = new_names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = new_names.get(node.arg, node.arg)
    return {new: old for old, new in new_names.items()}


def _refuse_constructs(source: Source, *, is_kernel: bool) -> None:
    """Refuse what no kernel can hold, and drop annotations, which mean nothing here."""
    arguments = source.tree.args
    defaults = is_kernel and arguments.defaults
    if defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise source.refuse(
            source.tree,
            "an argument has a default, or is not positional",
            "Write plain positional arguments",
        )
    for node in (inner for statement in source.tree.body for inner in ast.walk(statement)):
        if isinstance(node, REFUSED):
            raise source.refuse(
                node,
                f"`{type(node).__name__}` is not part of a kernel",
                "Write it with assignments, if, for, while and calls of device functions",
            )
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)


def _outside_names(
    function: types.FunctionType, source: Source
) -> Iterator[tuple[str, Any, ast.AST]]:
    """Each name that the function reads but does not bind, with its value."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    nodes = [node for statement in source.tree.body for node in ast.walk(statement)]
    bound = set(source.parameters)
    bound |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    seen = set(bound)
    for node in nodes:
        if not isinstance(node, ast.Name) or node.id in seen:
            continue
        seen.add(node.id)
        written = source.originals.get(node.id, node.id)
        if written in cells:
            yield node.id, cells[written].cell_contents, node
        elif written in function.__globals__:
            yield node.id, function.__globals__[written], node
        elif hasattr(builtins, written):
            yield node.id, getattr(builtins, written), node
        else:
            raise KernelError(
                f"{source.where(node)}: kernel {source.name!r} uses the name {written!r}, which is "
                "not defined"
            )


def _resolve(
    source: Source, name: str, value: Any, node: ast.AST, callers: tuple[types.FunctionType, ...]
) -> None:
    if getattr(value, "is_cuda_namespace", False) or getattr(value, "__name__", "") in (
        "numba.cuda",
        "numba_cuda.numba.cuda",
    ):
        source.cuda_names.add(name)
    elif (function := _device_function(value)) is not None:
        if function in callers:
            raise source.refuse(node, f"{name!r} calls itself", "Write a loop")
        source.device_functions[name] = read(function, callers)
    elif isinstance(value, np.ndarray):
        source.arrays[name] = value.copy()  # a constant, as on a GPU: later changes do not count
    elif value is math:
        source.constants[name] = "device_math"
    elif value is np:
        source.constants[name] = "numpy"
    elif getattr(builtins, name, None) is value and name in BUILTINS:
        pass
    else:
        source.constants[name] = _literal(source, name, value, node)
        source.values[name] = value


def _device_function(value: Any) -> types.FunctionType | None:
    """The Python function behind anything that a kernel can call: ours, or Numba's."""
    if getattr(value, "is_device_function", False):
        return value.function  # type: ignore[no-any-return]
    return getattr(value, "py_func", None)


def _literal(source: Source, name: str, value: Any, node: ast.AST) -> str:
    """The Python text of a constant."""
    if isinstance(value, np.generic):
        return f"numpy.{value.dtype.type.__name__}({_number(value.item())})"
    if isinstance(value, (bool, int, float)):
        return _number(value)
    if isinstance(value, numba.types.Type):
        return dtype_text(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_text(numba.from_dtype(np.dtype(value)))
    if isinstance(value, tuple):
        return "(" + "".join(_literal(source, name, item, node) + ", " for item in value) + ")"
    raise source.refuse(
        node,
        f"the name {name!r} is bound to a {type(value).__name__}",
        "A kernel can use numbers, dtypes, tuples of them, `math`, and functions decorated with "
        "@cuda.jit(device=True); pass anything else as an argument",
    )


def dtype_text(kind: numba.types.Type) -> str:
    """The Python text of one of Numba's types."""
    return "numba.boolean" if isinstance(kind, numba.types.Boolean) else f"numba.{kind}"


def _number(value: complex) -> str:
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f"float('{value}')"
    return repr(value) if isinstance(value, (bool, complex)) else repr(int(value))

"""Step 1: read a kernel's source, and everything that it refers to.

A kernel is an ordinary Python function. `read` returns its syntax tree, and the values of the names
that it takes from outside: sizes from the closure of a factory, dtypes, device functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from .errors import KernelError, UnsupportedKernel

BUILTINS = {"range", "min", "max", "abs", "len", "int", "float", "bool", "round", "pow", "divmod"}


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
    int_constants: dict[str, int] = field(default_factory=dict)

    def where(self, node: ast.AST) -> str:
        """`file:line` of a node, for error messages."""
        return f"{self.filename}:{self.first_line - 1 + getattr(node, 'lineno', 1)}"

    def refuse(self, node: ast.AST, what: str, way_out: str) -> UnsupportedKernel:
        """The error for a construct that cannot be compiled for the CPU."""
        return UnsupportedKernel(
            f"{self.where(node)}: kernel {self.name!r}: {what}. {way_out}"
        )

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments, in order."""
        return [argument.arg for argument in self.tree.args.args]

    def text(self) -> str:
        """Everything that decides what will be emitted, for the name of the cache file."""
        parts = [ast.dump(self.tree), repr(sorted(self.constants.items())), str(self.first_line)]
        parts += [f"{name}: {inner.text()}" for name, inner in self.device_functions.items()]
        return "\n".join(parts)


def read(function: types.FunctionType) -> Source:
    """Parse a kernel or a device function and resolve the names it takes from outside.

    Raises:
        KernelError: the source text cannot be found (a function made by `exec`).
        UnsupportedKernel: it refers to a value that a kernel cannot use.
    """
    try:
        lines, first_line = inspect.getsourcelines(function)
    except OSError as error:
        raise KernelError(
            f"kernel {function.__name__!r}: its source text cannot be found ({error}); define it "
            "in a file or a notebook cell, not in a string given to exec()"
        ) from None
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{function.__name__!r} is not a plain `def`; a kernel must be one")
    source = Source(
        function.__name__, inspect.getsourcefile(function) or "<unknown>", first_line, tree
    )
    for name, value, node in _outside_names(function, tree):
        _resolve(source, name, value, node)
    return source


def _outside_names(
    function: types.FunctionType, tree: ast.FunctionDef
) -> Iterator[tuple[str, Any, ast.AST]]:
    """Each name that the function reads but does not bind, with its value."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    bound = {arg.arg for arg in tree.args.args}
    bound |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    seen = set(bound)
    for node in nodes:
        if not isinstance(node, ast.Name) or node.id in seen:
            continue
        seen.add(node.id)
        if node.id in cells:
            yield node.id, cells[node.id].cell_contents, node
        elif node.id in function.__globals__:
            yield node.id, function.__globals__[node.id], node
        elif hasattr(builtins, node.id):
            yield node.id, getattr(builtins, node.id), node
        else:
            raise KernelError(
                f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}: kernel "
                f"{function.__name__!r} uses the name {node.id!r}, which is not defined"
            )


def _resolve(source: Source, name: str, value: Any, node: ast.AST) -> None:
    if getattr(value, "is_cuda_namespace", False) or getattr(value, "__name__", "") in (
        "numba.cuda",
        "numba_cuda.numba.cuda",
    ):
        source.cuda_names.add(name)
    elif getattr(value, "is_device_function", False):
        source.device_functions[name] = read(value.function)
    elif value is math:
        source.constants[name] = "device_math"
    elif value is np:
        source.constants[name] = "numpy"
    elif getattr(builtins, name, None) is value and name in BUILTINS:
        pass
    else:
        source.constants[name] = _literal(source, name, value, node)
        if isinstance(value, (int, np.integer)):
            source.int_constants[name] = int(value)


def _literal(source: Source, name: str, value: Any, node: ast.AST) -> str:
    """The Python text of a constant."""
    if isinstance(value, (bool, int, float)):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, np.generic):
        return f"numpy.{value.dtype.name}({value.item()!r})"
    if isinstance(value, numba.types.Type):
        return f"numba.{value}"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"numba.{numba.from_dtype(np.dtype(value))}"
    if isinstance(value, tuple):
        return "(" + "".join(_literal(source, name, item, node) + ", " for item in value) + ")"
    raise source.refuse(
        node,
        f"the name {name!r} is bound to a {type(value).__name__}",
        "A kernel can use numbers, dtypes, tuples of them, `math`, and functions decorated with "
        "@cuda.jit(device=True); pass anything else as an argument",
    )

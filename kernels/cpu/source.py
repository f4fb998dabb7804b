"""Step 1: read a kernel's source, and everything that it refers to.

A kernel is an ordinary Python function. `read` returns its syntax tree, and the values of the names
that it takes from outside: sizes from the closure of a factory, dtypes, device functions.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import inspect
import linecache
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numba
import numpy as np

from . import hints, idioms
from .branches import around, decided
from .errors import KernelError, UnsupportedKernel, line_of
from .trees import Names, names_in, nodes, stores, walk

# Names that emitted code uses for itself; a kernel's own names that look like them are renamed.
RESERVED = re.compile(
    r"u|stack|always|never|prefetch|kernel|device|block|barrier|meet|syncwarp|numba|numpy|device_math|first_block|last_block"
    r"|(grid|thread|block)_[xyz]|BLOCK_[XYZ]|(atomic|warp|block)_\w+|divergence"
    r"|popc|clz|ffs|brev|cbrt|selp|fma|reinterpret|dynamic_bytes"
    r"|\w+__\w+|\w+_blocks"
)
BUILTINS = {
    "range", "min", "max", "abs", "len", "int", "float", "bool", "complex", "round", "pow",
    "divmod", "print", "enumerate", "zip",
}  # fmt: skip
MODULES = {
    math: "device_math",
    cmath: "cmath",
    np: "numpy",
    numba: "numba",
}  # and their names in emitted code
CITATION = re.compile(r"#[^#]*\(\w{1,2}\)[^#\n]*")
FILE_LINES = 1_000_000  # a tree's line numbers are `file number * FILE_LINES + line`
_files: list[str] = []


@dataclass(frozen=True)
class Source:
    """A function as the compiler sees it: where it is written, its tree, and its outside names."""

    name: str
    filename: str
    first_line: int
    tree: ast.FunctionDef
    role: str = "kernel"  # or device function
    originals: dict[str, str] = field(default_factory=dict)  # new name -> what it was renamed from
    constants: dict[str, str] = field(default_factory=dict)  # name -> Python text of its value
    values: dict[str, Any] = field(default_factory=dict)  # the constants themselves
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # NumPy arrays from outside
    device_functions: dict[str, Source] = field(default_factory=dict)
    cuda_names: set[str] = field(default_factory=set)  # names bound to the CUDA namespace
    itself: set[str] = field(default_factory=set)  # names by which a device function calls itself

    def where(self, node: ast.AST) -> str:
        """The line of a node, for error messages."""
        return line_of(*place(node))

    def refuse(self, node: ast.AST, what: str, way_out: str) -> UnsupportedKernel:
        """The error for a construct that cannot be compiled for the CPU."""
        return UnsupportedKernel(
            f"{self.where(node)}: {self.role} {self.name!r}: {what}. {way_out}"
        )

    def original(self, name: str) -> str:
        """A name as the kernel's author wrote it."""
        return self.originals.get(name, name)

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments, in order."""
        return [argument.arg for argument in self.tree.args.args]

    @property
    def defaults(self) -> dict[str, ast.expr]:
        """The default values of arguments that have one."""
        arguments = self.tree.args
        return dict(zip(self.parameters[::-1], arguments.defaults[::-1], strict=False))

    @property
    def takes_arrays(self) -> bool:
        """Whether the function, or one that it calls, takes arrays from outside."""
        return bool(self.arrays) or any(f.takes_arrays for f in self.device_functions.values())

    @cached_property
    def has_fences(self) -> bool:
        """Whether it, or one that it calls, orders memory by hand: no check can follow that."""
        return any(f.has_fences for f in self.device_functions.values()) or any(
            isinstance(node, ast.Attribute) and node.attr.startswith("threadfence")
            for node in nodes(self.tree)
        )

    @cached_property
    def text(self) -> str:
        """Everything that decides what will be emitted, for the name of the cache file."""
        parts = [ast.dump(self.tree), repr(sorted(self.constants.items())), str(self.first_line)]
        parts += sorted(self.arrays)
        parts += [citation(n) for n in nodes(self.tree) if isinstance(n, ast.stmt)]
        parts += [f"{name}: {inner.text}" for name, inner in self.device_functions.items()]
        return "\n".join(parts)


def read(
    function: types.FunctionType,
    callers: tuple[types.FunctionType, ...] = (),
    packed: Mapping[int, str] = {},
    signature: idioms.Signature | None = None,
) -> Source:
    """Parse a kernel or a device function and resolve the names it takes from outside.

    `packed` are the places of arguments that come in parts, and the expressions that make them of
    these, with `{}` for each. `signature` has the types that a device function's numbers get.

    Raises:
        KernelError: the source text cannot be found (a function made by `exec`).
        UnsupportedKernel: it refers to a value that a kernel cannot use.
    """
    filename = inspect.getsourcefile(function) or "<unknown>"
    tree, first_line = _parse(function)
    tree = decided(tree, function)
    added, written = idioms.plain(
        tree, function, packed, is_kernel=not callers, signature=signature
    )
    if filename not in _files:
        _files.append(filename)
    ast.increment_lineno(tree, _files.index(filename) * FILE_LINES + first_line - 1)
    role = "device function" if callers else "kernel"
    source = Source(tree.name, filename, first_line, tree, role)
    _refuse_constructs(source)
    source.originals.update(written | _rename_reserved(tree, function))
    for name, value, node in _outside_names(function, source, added):
        _resolve(source, name, value, node, (*callers, function))
    return source


def place(node: ast.AST) -> tuple[str, int]:
    """The file and the line that a node of a kernel's tree comes from."""
    number, line = divmod(getattr(node, "lineno", 1), FILE_LINES)
    return _files[number], line


def citation(statement: ast.stmt) -> str:
    """The comment that a statement's line has in the kernel, if it cites an equation, as (3)."""
    end = getattr(statement, "end_lineno", None)
    if end is None:
        return ""
    filename, line = place(statement)
    body = getattr(statement, "body", None)
    count = (body[0].lineno if body else end + 1) - statement.lineno
    for number in range(line, line + max(count, 1)):
        if found := CITATION.search(linecache.getline(filename, number)):
            return f"  {found[0].rstrip()}"
    return ""


def remembered(function: types.FunctionType) -> types.FunctionType:
    """A function that keeps its text, if it is one of a text that `exec` runs now.

    Nothing else keeps that: it is looked for among the strings of whoever calls `exec`, and found
    if it compiles to the very code that runs.
    """
    filename, frame = function.__code__.co_filename, sys._getframe()
    if not filename.startswith("<") or _is_known(function):
        return function
    while frame.f_back is not None:
        run, frame = frame, frame.f_back
        if run.f_code.co_filename == filename and run.f_code.co_name == "<module>":
            given = *frame.f_locals.values(), *frame.f_code.co_consts
            for text in {t for t in given if isinstance(t, str) and function.__name__ in t}:
                if _compiles_to(text, run.f_code):
                    function.__dict__["__text__"] = text
    return function


def _is_known(function: types.FunctionType) -> bool:
    """Whether Python knows a function's text.

    All texts of `exec` and `python -c` are called "<string>", and since 3.13 Python knows the last.
    """
    filename = function.__code__.co_filename
    text = "".join(linecache.getlines(filename))
    if filename != "<string>":
        return bool(text)
    codes = [compile(text, filename, "exec", dont_inherit=True)]
    for code in codes:  # and those within it, as they are found
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return function.__code__ in codes


def _compiles_to(text: str, code: types.CodeType) -> bool:
    try:
        return compile(text, code.co_filename, "exec", dont_inherit=True) == code
    except SyntaxError:
        return False


def lines_of(function: types.FunctionType) -> tuple[list[str], int]:
    """A function's lines, and the number of the first in its file.

    Raises:
        KernelError: they cannot be found (a function made by `exec`).
    """
    try:
        if text := function.__dict__.get("__text__"):
            first_line = function.__code__.co_firstlineno
            return inspect.getblock(text.splitlines(keepends=True)[first_line - 1 :]), first_line
        if function.__code__.co_filename == "<string>" and not _is_known(function):
            raise OSError("could not get source code")
        return inspect.getsourcelines(function)
    except OSError as error:
        raise KernelError(
            f"kernel {function.__name__!r}: its source text cannot be found ({error}); define it "
            "in a file or a notebook cell, or keep the text that exec() gets in a variable"
        ) from None


def _parse(function: types.FunctionType) -> tuple[ast.FunctionDef, int]:
    """A function's tree, and the line of its file that the tree's first line is."""
    lines, first_line = lines_of(function)
    if function.__name__ == "<lambda>":
        whole = function.__dict__.get("__text__") or "".join(
            linecache.getlines(function.__code__.co_filename)
        )
        return _as_def(ast.parse(whole), function), 1
    statement = ast.parse("if True:\n" + "".join(lines)) if lines[0][:1].isspace() else None
    tree = statement.body[0].body[0] if statement else ast.parse("".join(lines)).body[0]  # type: ignore[attr-defined]
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{function.__name__!r} is not a plain `def`; a kernel must be one")
    return tree, first_line - 1 if statement else first_line


def _as_def(tree: ast.AST, function: types.FunctionType) -> ast.FunctionDef:
    """A `lambda` in a file's tree as a `def`; what it evaluates stands in one place only."""
    places = {*function.__code__.co_positions()}
    for node in nodes(tree):
        if isinstance(node, ast.Lambda):
            value = node.body
            ends = value.lineno, value.end_lineno, value.col_offset, value.end_col_offset
            if ends in places:
                body: list[ast.stmt] = [ast.copy_location(ast.Return(value), value)]
                made = ast.FunctionDef("a_lambda", node.args, body, [])
                return ast.copy_location(made, node)
    raise KernelError("the text of a lambda cannot be found; write a `def`")


def _rename_reserved(tree: ast.FunctionDef, function: types.FunctionType) -> dict[str, str]:
    """Give a name of its own to what is called like something of ours; return new -> old."""
    known = vars(builtins)
    arguments = {node.arg for node in nodes(tree) if isinstance(node, ast.arg)}
    taken = Names(names_in(tree) | arguments)
    outside = {name for name, value in around(function).items() if value is not known.get(name)}
    ours = BUILTINS & (arguments | stores([tree]).keys() | outside)
    ours = taken & ours | set(filter(RESERVED.fullmatch, taken))
    new_names = {old: taken.fresh(old) for old in sorted(ours)}
    for node in nodes(tree):
        if isinstance(node, ast.Name):
            node.id = new_names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = new_names.get(node.arg, node.arg)
    return {new: old for old, new in new_names.items()}


def _refuse_constructs(source: Source) -> None:
    """Refuse what no kernel can hold, and drop annotations, which mean nothing here."""
    arguments = source.tree.args
    if arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise source.refuse(
            source.tree,
            "an argument is not positional (`*`, `**`, or after a `*`)",
            "Write plain positional arguments",
        )
    nodes = list(walk(source.tree.body))
    for node in nodes:
        construct = type(getattr(node, "op", node))
        if construct in hints.CONSTRUCTS:
            what, way_out = hints.CONSTRUCTS[construct]
            raise source.refuse(node, f"{what} cannot be part of a kernel", way_out)
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    _refuse_text(source, nodes)


def _refuse_text(source: Source, nodes: list[ast.AST]) -> None:
    """Text can be printed, and name a record's field or an array's dtype; no more."""
    for node in nodes:
        match node:
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.Compare(left=left, comparators=comparators):
                operands = [left, *comparators]
            case ast.Assign(value=value) | ast.AugAssign(value=value):
                operands = [value]
            case _:
                continue
        if any(isinstance(o, ast.Constant) and isinstance(o.value, str) for o in operands):
            raise source.refuse(
                node,
                "a kernel computes with numbers, not with text",
                "Text can be printed: print('x is', x[0]); use numbers for everything else",
            )


def _outside_names(
    function: types.FunctionType, source: Source, added: dict[str, Any]
) -> Iterator[tuple[str, Any, ast.AST]]:
    """Each name that the function reads but does not bind, with its value."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    bound = {*source.parameters, *stores(source.tree.body)}
    seen = set(bound)
    for node in walk(source.tree.body):
        if not isinstance(node, ast.Name) or node.id in seen:
            continue
        seen.add(node.id)
        written = source.originals.get(node.id, node.id)
        if new := {node.id, written} & added.keys():
            yield node.id, added[new.pop()], node
        elif written in cells:
            yield node.id, _content(cells[written], source, node), node
        elif written in function.__globals__:
            yield node.id, function.__globals__[written], node
        elif hasattr(builtins, written):
            yield node.id, getattr(builtins, written), node
        else:
            known = {*map(source.original, bound), *function.__globals__, *cells, *BUILTINS}
            raise source.refuse(
                node, f"the name {written!r} is not defined", hints.undefined(written, known)
            )


def _content(cell: types.CellType, source: Source, node: ast.Name) -> Any:
    """The value of a variable of the function around."""
    try:
        return cell.cell_contents
    except ValueError:
        raise source.refuse(
            node, f"the name {node.id!r} has no value yet", "Assign to it before the launch"
        ) from None


def _resolve(
    source: Source, name: str, value: Any, node: ast.AST, callers: tuple[types.FunctionType, ...]
) -> None:
    if idioms.is_cuda_namespace(value):
        source.cuda_names.add(name)
    elif hasattr(value, "on_cpu") and _is_launched(source.tree, name):
        raise source.refuse(node, *hints.outside(source.original(name), value))
    elif (function := _device_function(value)) is not None:
        if function is callers[-1] and len(callers) > 1:
            source.itself.add(name)
        elif function in callers:
            raise source.refuse(
                node, f"{name!r} calls itself by way of another, which kernels do not support",
                "Write a loop",
            )  # fmt: skip
        elif not getattr(value, "_can_compile", True):  # where Numba has a signature
            raise source.refuse(
                node, f"{name!r} is compiled for the CPU alone, by its signature",
                "Leave the signature out, or decorate it with @cuda.jit(device=True)",
            )  # fmt: skip
        else:
            signature = getattr(value, "signature", None)
            source.device_functions[name] = read(function, callers, signature=signature)
    elif isinstance(value, np.ndarray):
        source.arrays[name] = value.copy()  # a constant, as on a GPU: later changes do not count
    elif isinstance(value, types.ModuleType) and value in MODULES:
        source.constants[name] = MODULES[value]
        _check_members(source, name, value.__name__)
    elif isinstance(value, types.BuiltinFunctionType) and value.__module__ == "math":
        source.constants[name] = f"device_math.{value.__name__}"
        _check_member(source, node, "math", value.__name__)
    elif isinstance(value, np.ufunc):
        source.constants[name] = f"numpy.{value.__name__}"
    elif getattr(builtins, name, None) is value and name in BUILTINS:
        pass
    else:
        source.constants[name] = _literal(source, name, value, node)
        source.values[name] = value


def _check_members(source: Source, name: str, module: str) -> None:
    """Refuse what a kernel takes from a module, under this name, that kernels do not have."""
    for node in nodes(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=taken), attr=member) if taken == name:
                _check_member(source, node, module, member)


def _check_member(source: Source, node: ast.AST, module: str, member: str) -> None:
    refusal = hints.member(module, member)
    if refusal is not None:
        raise source.refuse(node, *refusal)


def _is_launched(tree: ast.AST, name: str) -> bool:
    """Whether a name gets a launch configuration: `name[blocks, threads]`."""
    return any(
        isinstance(node, ast.Subscript) and getattr(node.value, "id", None) == name
        for node in nodes(tree)
    )


def _device_function(value: Any) -> types.FunctionType | None:
    """The Python function behind anything that a kernel can call: ours, or Numba's."""
    if hasattr(value, "is_device_function") or hasattr(value, "on_cpu"):
        return value.function
    return getattr(value, "py_func", None)


def _literal(source: Source, name: str, value: Any, node: ast.AST) -> str:
    """The Python text of a constant."""
    if isinstance(value, np.generic):
        return f"numpy.{value.dtype.type.__name__}({_number(value.item())})"
    if isinstance(value, (bool, int, float, complex)):
        return _number(value)
    if isinstance(value, numba.types.Type):
        return dtype_text(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_text(numba.from_dtype(np.dtype(value)))
    if isinstance(value, tuple):
        return "(" + "".join(_literal(source, name, item, node) + ", " for item in value) + ")"
    raise source.refuse(node, *hints.outside(source.original(name), value))


def dtype_text(kind: numba.types.Type) -> str:
    """The Python text of one of Numba's types."""
    if isinstance(kind, numba.types.Record):
        fields = kind.dtype.fields or {}
        how = {
            "names": [*fields],
            "formats": [_format(part[0]) for part in fields.values()],
            "offsets": [part[1] for part in fields.values()],
            "itemsize": kind.dtype.itemsize,
        }
        return f"numba.from_dtype(numpy.dtype({how!r}, align={kind.dtype.isalignedstruct}))"
    if kind == numba.types.float16:  # which Numba keeps among its types alone
        return "numba.types.float16"
    return "numba.boolean" if isinstance(kind, numba.types.Boolean) else f"numba.{kind}"


def _format(dtype: np.dtype[Any]) -> Any:
    """What NumPy makes the dtype of a field of."""
    if dtype.subdtype:
        return _format(dtype.subdtype[0]), dtype.shape
    return dtype.descr if dtype.names else dtype.str


def _number(value: complex) -> str:
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f"float('{value}')"
    return repr(value) if isinstance(value, (bool, complex)) else repr(int(value))

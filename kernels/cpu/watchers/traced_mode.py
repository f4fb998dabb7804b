"""Record what every thread of a launch does: the input of the microscope."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from ..form import Shape3
from ..launch import CpuKernel, unchanged
from ..lowering import TRACED
from ..source import lines_of, place
from ..trees import nodes
from . import checked_mode
from .trace import ACCESS, EXECUTION, Site, Statement, Trace

ROWS = 1 << 16  # of the first try; the second knows how many are needed
FUNCTIONS_WITHOUT_WORK = {"float32", "float64", "float", "int", "bool", "abs", "isnan", "isinf"}


def record(
    kernel: Any, grid: Shape3, block: Shape3, arguments: tuple[Any, ...], shared_bytes: int = 0
) -> Trace:
    """Run a launch, first checked, then traced; in the end its arguments are as they were.

    Args:
        kernel: A function decorated with `@cuda.jit`.
        grid: Blocks along x, y and z.
        block: Threads of a block along x, y and z.
        arguments: NumPy arrays and numbers; they are not modified.
        shared_bytes: Dynamic shared memory.

    Raises:
        KernelError: the launch is wrong, or the checked mode finds a mistake.
    """
    launches, arguments = kernel.launches(arguments)
    compiled: CpuKernel = launches.kernel
    with unchanged(arguments):
        checked_mode.launch(compiled, grid, block, arguments, shared_bytes)
    run, variant, _ = compiled.compiled(block, arguments, shared_bytes, TRACED)
    body = variant.written()
    own = compiled.prepared(arguments)
    log, marks = _noted(run, body, grid, own)
    threads = block[0] * block[1] * block[2]
    lines, first_line = lines_of(compiled.function)
    return Trace(
        kernel=compiled.function.__name__,
        filename=body.form.source.filename,
        first_line=first_line,
        source="".join(lines),
        grid=grid,
        block=block,
        sites=tuple(_site(body, p, own) for p in body.places),
        statements=tuple(
            Statement(place(s)[1], place(s)[0], _flops(s, body)) for s in body.form.marked
        ),
        accesses=_table(log, ACCESS, threads),
        executions=_table(marks, EXECUTION, threads),
    )


def _noted(
    run: Callable[..., int], body: Any, grid: Shape3, own: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Run all blocks: rows of what was accessed and of what was executed.

    The addresses count from the first element of their array.
    """
    rows = [ROWS, ROWS]
    while True:
        log, marks = np.zeros((rows[0], 5), np.int64), np.zeros((rows[1], 4), np.int64)
        counts, bases = np.zeros(2, np.int64), np.zeros(len(body.form.arrays) + 1, np.int64)
        with unchanged(own):
            run(0, grid[0] * grid[1] * grid[2], *grid, *own, log, marks, counts, bases)
        if counts[0] <= rows[0] and counts[1] <= rows[1]:
            break
        rows = counts.tolist()
    log, marks = log[: counts[0]].copy(), marks[: counts[1]]
    first = {name: a.__array_interface__["data"][0] for name, a in _arrays(body, own).items()}
    first |= {name: int(base) for name, base in zip(body.form.arrays, bases, strict=False)}
    origins = np.array([_origin(body, p, first) for p in body.places], np.int64)
    log[:, 4] -= origins[log[:, 0]] if len(log) else 0
    return log, marks


def _arrays(body: Any, arguments: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """The arrays among the arguments, by name."""
    named = zip(body.form.parameters, arguments, strict=True)
    return {name: argument for name, argument in named if isinstance(argument, np.ndarray)}


def _origin(body: Any, access: Any, first: Mapping[str, int]) -> int:
    """The address that an access's addresses count from: the array's first element."""
    roots = sorted(body.arrays.roots[access.array] & first.keys())
    return first[access.array] if access.array in first else first[roots[0]] if roots else 0


def _site(body: Any, access: Any, arguments: tuple[Any, ...]) -> Site:
    array = body.form.arrays.get(access.array)
    given = _arrays(body, arguments).get(access.array)
    shape: tuple[int, ...] = given.shape if given is not None else ()
    if array is not None:
        whole = as_dtype(body.form.kinds[access.array].dtype).itemsize
        shape = (body.form.shared_bytes // whole,) if array.is_dynamic else array.shape
    name = body.form.source.originals.get(access.array, access.array)
    return Site(access.line, access.filename, name, access.space, access.kind,
                access.itemsize, shape)  # fmt: skip


def _table(rows: np.ndarray, dtype: np.dtype, threads: int) -> np.ndarray:
    """Rows as a structured array; what is done once for a block is done by each of its threads."""
    shared = rows[rows[:, 2] < 0]
    spread = np.repeat(shared, threads, axis=0)
    spread[:, 2] = np.tile(np.arange(threads), len(shared))
    rows = np.concatenate([rows[rows[:, 2] >= 0], spread])
    table = np.empty(len(rows), dtype)
    for column, name in enumerate(dtype.names or ()):
        table[name] = rows[:, column]
    return table


# Floating-point operations ------------------------------------------------------------------------


def _flops(statement: ast.stmt, body: Any) -> int:
    """The floating-point operations of one execution of a statement, without its inner ones.

    Additions, multiplications, divisions and calls of functions count as one each, an fma as two;
    comparisons, signs and conversions as none. Both sides of a conditional expression count.
    """
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            parts: list[ast.AST] = [test]
        case ast.For():
            parts = []
        case _:
            parts = [statement]
    return sum(_work(node, body) for part in parts for node in nodes(part))


def _work(node: ast.AST, body: Any) -> int:
    match node:
        case ast.BinOp():
            return int(_is_float(node, body))
        case ast.AugAssign(target=target):
            return int(_is_float(target, body))
        case ast.Call(func=ast.Name(id="fma")):
            return 2
        case ast.Call(func=ast.Name(id=called)) if called in body.form.source.values:
            return 0  # a dtype: a conversion
        case ast.Call(func=function) if _is_float(node, body):
            called = function.attr if isinstance(function, ast.Attribute) else _name(function)
            plain = called in FUNCTIONS_WITHOUT_WORK or called.startswith(("warp_", "block_"))
            return 0 if plain else 1
    return 0


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_float(node: ast.AST, body: Any) -> bool:
    """Whether an expression is a floating-point number."""
    source = body.form.source
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.Name(id=name):
            value = source.values.get(name)
            return isinstance(value, float | np.floating) or _floats(body.form.kinds.get(name))
        case ast.Subscript() | ast.Attribute():
            return _floats(body.arrays.kind(node))
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return _is_float(left, body) or _is_float(right, body)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_float(operand, body)
        case ast.Call(func=ast.Name(id=called), args=arguments):
            kind = source.values.get(called)
            if kind is not None:
                return _floats(kind)
            if called in ("min", "max", "abs", "fma", "cbrt", "selp") or called.startswith("warp_"):
                return any(_is_float(argument, body) for argument in arguments)
            return called == "float"
        case ast.Call(func=ast.Attribute(attr=attribute)):
            return not attribute.startswith(("int", "uint", "is", "bool"))
    return False


def _floats(kind: Any) -> bool:
    """Whether a type is one of floating-point numbers, or an array of them."""
    if isinstance(kind, types.Array):
        kind = kind.dtype
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return issubclass(kind, np.floating)
    return isinstance(kind, types.Float)

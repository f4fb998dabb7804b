"""The oracle of the CPU lowering: kernels run one statement at a time, and nothing is clever.

A kernel's text becomes a Python generator that yields at each `cuda.syncthreads()`. A block is a
list of such generators; all of them run to their next barrier, one after the other, then all go
on. Numbers are NumPy scalars that follow Numba's rules: an integer is 64 bits wide once it is
computed with, a literal `1.5` is float64, float32 with float32 stays float32.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np

Shape3 = tuple[int, int, int]


def interpret(
    kernel: Any, grid: Any, block: Any, arguments: tuple[Any, ...], *, backwards: bool = False
) -> None:
    """Run a `@cuda.jit` kernel, which modifies its array arguments.

    `backwards` runs the blocks, and the threads between two barriers, in the opposite order.
    """
    machine = _Machine(_shape3(grid), _shape3(block), -1 if backwards else 1)
    program = _translate(kernel.function, machine)
    with np.errstate(all="ignore"):
        machine.run(program, [_argument(argument) for argument in arguments])


def expected(kernel: Any, grid: Any, block: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the arguments should be after a launch; a kernel with a data race is refused."""
    results = []
    for backwards in (False, True):
        copies = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
        interpret(kernel, grid, block, copies, backwards=backwards)
        results.append(copies)
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, err_msg="the kernel has a data race")
    return results[0]


def _shape3(shape: Any) -> Shape3:
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return tuple([*sizes, 1, 1][:3])


class Diverged(AssertionError):
    """Threads of one block wait at different barriers, or some have left."""


class _Machine:
    """What the name `cuda` means to the thread that runs now."""

    warpsize = np.int64(32)

    def __init__(self, grid: Shape3, block: Shape3, order: int) -> None:
        self.gridDim, self.blockDim = _xyz(grid), _xyz(block)
        self.blocks = _places(grid)[::order]
        self.threads = _places(block)[::order]
        self.threadIdx = self.blockIdx = _xyz((0, 0, 0))
        self.in_shared: dict[int, Memory] = {}
        self.shared = SimpleNamespace(array=self._shared)
        self.local = SimpleNamespace(
            array=lambda shape, dtype, declaration: _poisoned(shape, dtype)
        )
        self.atomic = SimpleNamespace(
            add=_atomic(lambda old, new: old + new),
            sub=_atomic(lambda old, new: old - new),
            max=_atomic(max),
            min=_atomic(min),
            exch=_atomic(lambda old, new: new),
            cas=_atomic(lambda old, wanted, new: new if old == wanted else old),
        )

    def run(self, program: Callable[..., Iterator[int]], arguments: list[Any]) -> None:
        for place in self.blocks:
            self.blockIdx = place
            self.in_shared.clear()
            threads = [(thread, program(*arguments)) for thread in self.threads]
            while any(sites := [self.to_barrier(*thread) for thread in threads]):
                if len(set(sites)) > 1:
                    raise Diverged(f"the threads wait in lines {set(sites)} (0: they have left)")

    def to_barrier(self, place: SimpleNamespace, thread: Iterator[int]) -> int:
        self.threadIdx = place
        return next(thread, 0)

    def _shared(self, shape: Any, dtype: Any, declaration: int) -> Memory:
        if declaration not in self.in_shared:
            self.in_shared[declaration] = _poisoned(shape, dtype)
        return self.in_shared[declaration]

    def grid(self, axes: int) -> Any:
        at = [
            getattr(self.blockIdx, a) * getattr(self.blockDim, a) + getattr(self.threadIdx, a)
            for a in "xyz"
        ]
        return at[0] if axes == 1 else tuple(at[:axes])

    def gridsize(self, axes: int) -> Any:
        sizes = [getattr(self.gridDim, a) * getattr(self.blockDim, a) for a in "xyz"]
        return sizes[0] if axes == 1 else tuple(sizes[:axes])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return a * b + c


def _xyz(place: Shape3) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip("xyz", map(np.int64, place), strict=True)))


def _places(shape: Shape3) -> list[SimpleNamespace]:
    return [_xyz((x, y, z)) for z, y, x in product(*map(range, shape[::-1]))]


class Memory:
    """An array as a kernel sees it: indices are checked, and what is read has Numba's width."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.dtype = Cast(data.dtype)
        self.shape = tuple(map(np.int64, data.shape))
        self.size, self.ndim = np.int64(data.size), np.int64(data.ndim)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        found = self.data[self.checked(index)]
        return Memory(found) if isinstance(found, np.ndarray) else _widened(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.data[self.checked(index)] = np.asarray(value).astype(self.data.dtype)

    def checked(self, index: Any) -> tuple[int, ...]:
        indices = tuple(map(int, index if isinstance(index, tuple) else (index,)))
        if not all(-size <= i < size for i, size in zip(indices, self.data.shape, strict=False)):
            raise IndexError(f"{indices} in an array of shape {self.data.shape}")
        return indices


class Cast:
    """A dtype that converts when called, as Numba's types do in a kernel: `float32(x)`."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, value: Any) -> Any:
        return _widened(np.asarray(value).astype(self.dtype)[()])


def _poisoned(shape: Any, dtype: Cast) -> Memory:
    data = np.empty(shape, dtype.dtype)
    data.fill(np.nan if data.dtype.kind in "fc" else True if data.dtype.kind == "b" else 77)
    return Memory(data)


def _atomic(operation: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(array: Memory, index: Any, *values: Any) -> Any:
        old = array[index]
        array[index] = operation(old, *values)
        return old

    return atomic


def _widened(value: Any) -> Any:
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return np.int64(value) if integer else np.float64(value) if type(value) is float else value


def _argument(value: Any) -> Any:
    return Memory(value) if isinstance(value, np.ndarray) else _widened(value)


def _common(*values: Any) -> list[Any]:
    kind = np.result_type(*values)
    return [kind.type(value) for value in values]


class _Math:
    """`math` that computes in float64 and answers float32 with float32."""

    def __getattr__(self, name: str) -> Any:
        known = getattr(math, name)
        if not callable(known):
            return np.float64(known)

        def function(*values: Any) -> Any:
            narrow = all(isinstance(value, np.float32) for value in values)
            result = (
                getattr(np, name)(*map(np.float64, values)) if hasattr(np, name) else known(*values)
            )
            if isinstance(result, (bool, np.bool_)):
                return result
            if name in ("floor", "ceil", "trunc"):
                return np.int64(result)
            return (np.float32 if narrow else np.float64)(result)

        return function


class _Numpy:
    """`numpy` whose scalar types are casts."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return Cast(found) if isinstance(found, type) else found


BUILTINS: dict[str, Any] = {
    "range": lambda *bounds: map(np.int64, range(*map(int, bounds))),
    "min": lambda *values: min(_common(*values)),
    "max": lambda *values: max(_common(*values)),
    "len": lambda array: np.int64(builtins.len(array)),
    "int": lambda value: np.int64(int(value)),
    "float": lambda value: np.float64(value),
}


def _translate(function: types.FunctionType, machine: _Machine, *, device: bool = False) -> Any:
    """The function as the oracle runs it: a generator, unless it is a device function."""
    outside = dict(BUILTINS)
    closure = inspect.getclosurevars(function)
    for name, value in {**closure.globals, **closure.nonlocals}.items():
        outside[name] = _outside(value, machine)
    lines, first_line = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, first_line - 1)
    tree.decorator_list, tree.returns, tree.args.defaults = [], None, []
    for argument in tree.args.args:
        argument.annotation = None
    steps = _Steps(outside)
    tree.body = [steps.visit(statement) for statement in tree.body]
    if not device:
        tree.body.insert(0, ast.parse("if False: yield").body[0])
    module = ast.fix_missing_locations(ast.Module([tree], []))
    exec(compile(module, inspect.getsourcefile(function) or "?", "exec"), outside)
    return outside[function.__name__]


def _outside(value: Any, machine: _Machine) -> Any:
    """A name's value from outside the kernel, as the oracle needs it."""
    if getattr(value, "is_cuda_namespace", False):
        return machine
    if getattr(value, "is_device_function", False):
        return _translate(value.function, machine, device=True)
    if value is math:
        return _Math()
    if value is np:
        return _Numpy()
    if isinstance(value, numba.types.Type):
        return Cast(numba.np.numpy_support.as_dtype(value))
    if isinstance(value, (np.dtype, type)):
        return Cast(value)
    if isinstance(value, tuple):
        return tuple(_outside(item, machine) for item in value)
    return _widened(value)


class _Steps(ast.NodeTransformer):
    """Barriers become yields, literals get Numba's types, declarations their place in the text."""

    def __init__(self, outside: dict[str, Any]) -> None:
        self.outside = outside

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) not in (int, float):
            return node
        name = f"literal {node.value!r}"
        self.outside[name] = _widened(node.value)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match node.value:
            case ast.Call(func=ast.Attribute(attr="syncthreads")):
                return ast.copy_location(ast.Expr(ast.Yield(ast.Constant(node.lineno))), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Attribute(attr="shared" | "local"), attr="array"):
                line = ast.Constant(node.lineno * 1000 + node.col_offset)
                node.keywords.append(ast.keyword("declaration", line))
        return node

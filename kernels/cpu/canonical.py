"""Step 2: bring a kernel into a canonical form, so that the later steps see few kinds of statement.

    cuda.threadIdx.x          thread_x             the loop variables of the lane loops
    cuda.blockIdx.x           block_x              the loop variables of the block loop
    cuda.blockDim.x           BLOCK_X              constants: a kernel is compiled per block shape
    cuda.gridDim.x            grid_x
    cuda.grid(1)              block_x * BLOCK_X + thread_x
    cuda.syncthreads()        barrier()
    x, y = a, b               x = a; y = b
    if done: return           if not done: <the rest of the kernel>
    x = 1; ...; x = 2          x = 1; ...; x_2 = 2, where the two have nothing to do with each other

Arrays declared with `cuda.shared.array` and `cuda.local.array` are collected, not emitted in place.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from .source import Source

AXES = "xyz"
ATOMICS = {"add", "sub", "max", "min", "exch", "cas"}
Shape3 = tuple[int, int, int]


@dataclass
class Array:
    """A shared array (one per block) or a local array (one per thread)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str


@dataclass
class Canonical:
    """A kernel in canonical form."""

    source: Source
    parameters: list[str]
    body: list[ast.stmt]
    arrays: dict[str, Array]
    block: Shape3
    names: set[str]  # all that are taken
    masks: set[str] = field(default_factory=set)  # names of conditions that guard regions

    def fresh(self, identifier: str) -> str:
        """A name that the kernel does not use yet."""
        while identifier in self.names:
            identifier += "_"
        self.names.add(identifier)
        return identifier

    def refuse(self, node: ast.AST, what: str, way_out: str) -> NoReturn:
        """Raise the error for a construct that cannot be compiled."""
        raise self.source.refuse(node, what, way_out)


def name(identifier: str) -> ast.Name:
    """A name being read."""
    return ast.Name(identifier, ast.Load())


def parse(text: str) -> ast.expr:
    """A small expression from its text."""
    return ast.parse(text, mode="eval").body


def is_barrier(node: ast.AST) -> bool:
    """Whether a statement is `barrier()`."""
    return isinstance(node, ast.Expr) and _called(node.value) == "barrier"


def _called(node: ast.AST) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def canonical(source: Source, block: Shape3) -> Canonical:
    """Bring a kernel into canonical form for one block shape.

    Raises:
        UnsupportedKernel: a construct has no meaning on the CPU, or not yet.
    """
    tree = copy.deepcopy(source.tree)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | set(source.parameters)
    form = Canonical(source, source.parameters, [], {}, block, names)
    rewriter = _Rewriter(form)
    body = [new for statement in tree.body for new in rewriter.statements(statement)]
    body = _without_returns(form, _with_own_arguments(form, body))
    _give_definitions_their_own_name(form, body)
    form.body = [ast.fix_missing_locations(statement) for statement in body]
    _check_arrays(form)
    return form


def _with_own_arguments(form: Canonical, body: list[ast.stmt]) -> list[ast.stmt]:
    """Copy each argument that the kernel assigns to, so that every block starts from its value."""
    copies: list[ast.stmt] = []
    for index, parameter in enumerate(form.parameters):
        if any(isinstance(n.ctx, ast.Store) for s in body for n in _names(s, parameter)):
            form.parameters[index] = form.fresh(f"{parameter}_argument")
            value = name(form.parameters[index])
            copies.append(ast.Assign([ast.Name(parameter, ast.Store())], value))
    return [*copies, *body]


def _check_arrays(form: Canonical) -> None:
    """Local arrays have the threads as more dimensions: use them element by element only."""
    whole = [node for statement in form.body for node in ast.walk(statement)]
    local = {array.name for array in form.arrays.values() if array.space == "local"}
    elements = {id(node.value) for node in whole if isinstance(node, ast.Subscript)}
    for node in whole:
        if isinstance(node, ast.Subscript):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(isinstance(index, ast.Slice) for index in indices):
                form.refuse(node, f"the slice `{ast.unparse(node)}`", "Write a loop over elements")
            array = form.arrays.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if array and len(indices) != len(array.shape):
                form.refuse(
                    node, f"{array.space} array {array.name!r} has {len(array.shape)} dimensions, "
                    f"`{ast.unparse(node)}` gives {len(indices)}", "Give one index for each",
                )  # fmt: skip
        elif isinstance(node, ast.Name) and node.id in local and id(node) not in elements:
            form.refuse(
                node,
                f"local array {node.id!r} is used as a whole",
                "Pass its elements, and take its size from the constant that it was made with",
            )


class _Rewriter(ast.NodeTransformer):
    def __init__(self, form: Canonical) -> None:
        self.form = form
        self.cuda = form.source.cuda_names

    def statements(self, statement: ast.stmt) -> list[ast.stmt]:
        new = self.visit(statement)
        return new if isinstance(new, list) else [new] if isinstance(new, ast.stmt) else []

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
        new = super().visit(node)
        for item in new if isinstance(new, list) else [new]:
            if isinstance(item, (ast.stmt, ast.expr)) and isinstance(node, (ast.stmt, ast.expr)):
                ast.copy_location(item, node)
        return new

    def cuda_path(self, node: ast.AST) -> list[str]:
        """`cuda.threadIdx.x` as ["threadIdx", "x"]; [] when it is something else."""
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        return path if isinstance(node, ast.Name) and node.id in self.cuda else []

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and self.cuda_path(node.value.func) == ["syncthreads"]:
            return ast.Expr(ast.Call(name("barrier"), [], []))
        return self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_If(self, node: ast.If) -> ast.AST:
        return self.with_body(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        return self.with_body(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self.with_body(node)

    def with_body(self, node: ast.If | ast.For | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.stmt] | None:
        if node.value is None:
            return None
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt] | None:
        if len(node.targets) != 1:
            self.form.refuse(node, "a chained assignment", "Write one assignment a line")
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            path = self.cuda_path(node.value.func)
            if path in (["shared", "array"], ["local", "array"]):
                self.declare(target.id, path[0], node.value)
                return None
        if isinstance(target, ast.Tuple):
            return self.split(target, node)
        return self.generic_visit(node)

    def declare(self, target: str, space: str, call: ast.Call) -> None:
        arguments = dict(zip(("shape", "dtype"), call.args, strict=False))
        arguments |= {str(keyword.arg): keyword.value for keyword in call.keywords}
        if set(arguments) != {"shape", "dtype"}:
            self.form.refuse(
                call, f"cuda.{space}.array takes a shape and a dtype", "Pass exactly these two"
            )
        if target in self.form.arrays:
            self.form.refuse(call, f"array {target!r} is declared twice", "Use two names")
        shape = self.constant_shape(arguments["shape"], f"{space} array {target!r}")
        self.form.arrays[target] = Array(target, shape, ast.unparse(arguments["dtype"]), space)

    def constant_shape(self, node: ast.expr, what: str) -> tuple[int, ...]:
        values = self.form.source.values
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in values:
                self.form.refuse(
                    part,
                    f"the size {part.id!r} of {what} is not a constant",
                    "Its shape must be known when the kernel is compiled: make the kernel in a "
                    "factory function and take the size from its closure",
                )
        shape = eval(compile(ast.Expression(node), "<shape>", "eval"), {}, values)
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if not all(isinstance(size, (int, np.integer)) and size > 0 for size in sizes):
            self.form.refuse(
                node,
                f"{what} has the shape {shape!r}",
                "Give it constant whole numbers from 1 up; dynamic shared memory (shape 0) is not "
                "supported on the CPU",
            )
        return tuple(map(int, sizes))

    def split(self, target: ast.Tuple, node: ast.Assign) -> list[ast.stmt]:
        names = [item.id for item in target.elts if isinstance(item, ast.Name)]
        value = node.value
        count = len(target.elts)
        if isinstance(value, ast.Call) and self.cuda_path(value.func) in (["grid"], ["gridsize"]):
            values = [self.grid(self.cuda_path(value.func)[0], axis) for axis in AXES[:count]]
        elif isinstance(value, ast.Tuple) and len(value.elts) == count:
            values = [self.visit(item) for item in value.elts]  # type: ignore[misc]
        elif isinstance(value, ast.Attribute) and value.attr == "shape":
            base = self.visit(value)
            values = [
                ast.Subscript(base, ast.Constant(i), ast.Load())  # type: ignore[arg-type]
                for i in range(count)
            ]
        else:
            values = []
        read = {n.id for v in values for n in ast.walk(v) if isinstance(n, ast.Name)}
        if len(names) != count or not values or read & set(names):
            self.form.refuse(node, "this assignment to a tuple", "Write one assignment a line")
        return [
            ast.copy_location(ast.Assign([ast.Name(n, ast.Store())], v), node)
            for n, v in zip(names, values, strict=True)
        ]

    def grid(self, what: str, axis: str) -> ast.expr:
        if what == "gridsize":
            return parse(f"grid_{axis} * BLOCK_{axis.upper()}")
        block = self.form.block[AXES.index(axis)]
        thread = f"thread_{axis}" if block > 1 else "0"
        return parse(f"block_{axis} * BLOCK_{axis.upper()} + {thread}")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match self.cuda_path(node):
            case []:
                return self.generic_visit(node)
            case ["threadIdx", axis] if axis in AXES:
                many = self.form.block[AXES.index(axis)] > 1
                return name(f"thread_{axis}") if many else ast.Constant(0)
            case ["blockIdx", axis] if axis in AXES:
                return name(f"block_{axis}")
            case ["blockDim", axis] if axis in AXES:
                return name(f"BLOCK_{axis.upper()}")
            case ["gridDim", axis] if axis in AXES:
                return name(f"grid_{axis}")
            case ["warpsize"]:
                return ast.Constant(32)
            case path:
                self.refuse_cuda(node, path)

    def refuse_cuda(self, node: ast.AST, path: list[str]) -> NoReturn:
        self.form.refuse(
            node,
            f"cuda.{'.'.join(path)} is not supported on the CPU",
            "Use shared memory and cuda.syncthreads() instead",
        )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        path = self.cuda_path(node.func)
        if not path:
            return self.generic_visit(node)
        if path[0] in ("grid", "gridsize") and len(node.args) == 1:
            if not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 1):
                self.form.refuse(
                    node,
                    f"cuda.{path[0]}({ast.unparse(node.args[0])}) inside an expression",
                    f"Write `x, y = cuda.{path[0]}(2)`",
                )
            return self.grid(path[0], "x")
        if path[0] == "atomic" and path[1] in ATOMICS:
            array = node.args[0] if node.args else None
            if (
                isinstance(array, ast.Name)
                and self.form.arrays.get(array.id, _NONE).space == "local"
            ):
                self.form.refuse(node, f"an atomic on local array {array.id!r}",
                                 "No other thread sees it: use a plain assignment")  # fmt: skip
            arguments = [self.visit(argument) for argument in node.args]
            return ast.Call(name(f"atomic_{path[1]}"), arguments, [])  # type: ignore[arg-type]
        if path == ["fma"]:
            a, b, c = (ast.unparse(self.generic_visit(ast.Expr(part))) for part in node.args)
            return parse(f"({a}) * ({b}) + ({c})")
        self.refuse_cuda(node, path)


_NONE = Array("", (), "", "")


def _contains(node: ast.AST, kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


def _always_returns(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return)


def _without_returns(form: Canonical, body: list[ast.stmt]) -> list[ast.stmt]:
    """Turn `if c: return` followed by the rest into `if not c: rest`."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            if statement.value is not None and not (
                isinstance(statement.value, ast.Constant) and statement.value.value is None
            ):
                form.refuse(statement, "a kernel returns a value", "Write it to an array argument")
            return body[:index]
        if not _contains(statement, ast.Return):
            continue
        rest = body[index + 1 :]
        if isinstance(statement, ast.If) and _always_returns(statement.body):
            then, otherwise = statement.body, [*statement.orelse, *rest]
        elif isinstance(statement, ast.If) and _always_returns(statement.orelse):
            then, otherwise = [*statement.body, *rest], statement.orelse
        else:
            form.refuse(
                statement,
                "a `return` inside a loop, or in only a part of a branch",
                "Return at the top of the kernel (`if i >= n: return`), or use a condition",
            )
        then, otherwise = _without_returns(form, then), _without_returns(form, otherwise)
        test = statement.test
        if not then:
            test, then, otherwise = ast.UnaryOp(ast.Not(), test), otherwise or [ast.Pass()], []
        new = ast.copy_location(ast.If(test, then, otherwise), statement)
        return [*body[:index], new]
    return body


def _give_definitions_their_own_name(form: Canonical, body: list[ast.stmt]) -> None:
    """Rename a variable that is used for several things, so that each has one definition.

    An assignment in a list of statements starts a new life of its variable, which ends with the
    list or the next such assignment; a loop variable lives in the loop's body. Where every use of a
    variable falls into one of these lives, they are independent.
    """
    uses = _Uses(body)
    by_variable: dict[str, list[list[ast.Name]]] = {}
    for variable, nodes in uses.lives(body):
        by_variable.setdefault(variable, []).append(nodes)
    for variable, lives in by_variable.items():
        outer = [nodes for nodes in lives if not any(_inside(nodes, other) for other in lives)]
        covered = {id(node) for nodes in outer for node in nodes}
        if len(outer) > 1 and all(id(node) in covered for node in uses.of(body, variable)):
            for number, nodes in enumerate(outer[1:], 2):
                new = form.fresh(f"{variable}_{number}")
                for node in nodes:
                    node.id = new


class _Uses:
    """Where each statement uses each name; every statement is walked once."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self.table: dict[ast.AST, dict[str, list[ast.Name]]] = {}
        for statement in body:
            self.enter(statement)

    def enter(self, node: ast.AST) -> dict[str, list[ast.Name]]:
        """Fill the table for a node and all that is in it."""
        found: dict[str, list[ast.Name]] = {}
        if isinstance(node, ast.Name):
            found[node.id] = [node]
        for child in ast.iter_child_nodes(node):
            for identifier, nodes in self.enter(child).items():
                found.setdefault(identifier, []).extend(nodes)
        self.table[node] = found
        return found

    def of(self, nodes: list[ast.stmt] | list[ast.expr], identifier: str) -> list[ast.Name]:
        """The uses of a name in statements or expressions."""
        return [use for node in nodes for use in self.table[node].get(identifier, ())]

    def lives(self, body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.Name]]]:
        """Each life of a variable, as the names that belong to it."""
        for index, statement in enumerate(body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable) as target]):
                    if self.begins(statement, variable):
                        later = body[index + 1 :]
                        ends = (i for i, s in enumerate(later) if self.begins(s, variable))
                        yield variable, [target, *self.of(later[: next(ends, None)], variable)]
                case ast.For(target=ast.Name(id=variable) as target, body=inner):
                    yield variable, [target, *self.of(inner, variable)]
            for inner in (getattr(statement, part, []) for part in ("body", "orelse")):
                yield from self.lives(inner)

    def begins(self, statement: ast.stmt, variable: str) -> bool:
        """Whether a statement is `variable = ...`, without a look at the old value."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                return target == variable and not self.of([value], variable)
        return False


def _inside(nodes: list[ast.Name], other: list[ast.Name]) -> bool:
    return nodes is not other and {id(n) for n in nodes} <= {id(n) for n in other}


def _names(node: ast.AST, identifier: str) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == identifier]

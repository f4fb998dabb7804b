"""Part of step 1: what people write in more than one way is said in the one way that is compiled.

t = cuda.threadIdx                      t.x is cuda.threadIdx.x
config.TILE, Mode.FAST                  the number behind it: of a module, a class, an enum
add = cuda.atomic.add                   outside the kernel: add(x, 0, 1) is cuda.atomic.add(x, 0, 1)
cuda.libdevice.fast_expf(x)             math.exp(x)
B = 16; cuda.shared.array((B, B), ...)  a constant in a shape is its number
if (i := cuda.grid(1)) < n:             i = cuda.grid(1), on a line before
a[:] = 0                                a loop over the elements
assert ok; raise ValueError             the thread is at its end; checked launches hear of it
"""

from __future__ import annotations

import ast
import builtins
import enum
import math
import types
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np

from . import hints
from .branches import around
from .trees import (
    Names,
    assign,
    call,
    copied,
    flag_breaks,
    located,
    name,
    named,
    names_in,
    negated,
    nodes,
    parse,
    target,
    walk,
)

INDICES = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
DIRECT = math, np, numba  # whose members are looked at later, by their names
VALUES = (
    bool | int | float | complex | np.generic | np.ndarray | np.dtype | numba.types.Type | tuple
)
NAMESPACE = types.SimpleNamespace(is_cuda_namespace=True)  # stands for `cuda`, which comes later
Statements = list[ast.stmt]
Signature = tuple[tuple[Any, ...], Any]  # types of arguments, and of the result


def plain(
    tree: ast.FunctionDef,
    function: types.FunctionType,
    packed: Mapping[int, str],
    *,
    is_kernel: bool,
    signature: Signature | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Say a kernel's idioms plainly, in its tree.

    Args:
        tree: Changed.
        function: The kernel.
        packed: Which arguments come in parts, by their places, and the expression that makes each
            of its parts: the parts become arguments.
        is_kernel: It is launched. Where it is called, a thread goes on past a failed `assert`, and
            `raise` stays.
        signature: The types of a device function's arguments, and of its result.

    Returns:
        Values for the names that the tree takes from outside now besides its own, and what was
        written where new names are.
    """
    outside = _Outside(tree, function)
    written = _unpack(tree, outside, packed)
    for step in (_Paths(outside), _Aliases(tree, outside), _Shapes(tree, outside)):
        step.visit(tree)
    tree.body = _Plain(tree, outside, is_kernel).body(tree.body) or [ast.Pass()]
    if signature is not None:
        _convert(tree, outside, *signature)
    ast.fix_missing_locations(tree)
    return outside.added, written | outside.dotted


def _convert(tree: ast.FunctionDef, outside: _Outside, kinds: tuple[Any, ...], result: Any) -> None:
    """Give a device function's numbers the types of its signature."""

    def converted(kind: Any, value: ast.expr) -> ast.expr:
        if not isinstance(kind, numba.types.Number):
            return value
        return call(outside.named(f"as_{kind}", kind), value)

    for node in nodes(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = converted(result, node.value)
    for argument, kind in zip(tree.args.args, kinds, strict=False):
        if isinstance(kind, numba.types.Number):
            own = converted(kind, name(argument.arg))
            tree.body.insert(0, assign(argument.arg, own))
    located(tree, tree)


def _unpack(tree: ast.FunctionDef, outside: _Outside, packed: Mapping[int, str]) -> dict[str, str]:
    """Take the parts as arguments, and make what they are parts of; return new -> written."""
    arguments = tree.args.args
    written: dict[str, str] = {}
    for place in sorted(packed, reverse=True):
        whole, how = arguments[place].arg, packed[place]
        parts = [outside.taken.fresh(f"{whole}_{i}") for i in range(how.count("{}"))]
        arguments[place : place + 1] = map(ast.arg, parts)
        alone = len(parts) == 1 and "(" not in how
        written |= {part: whole if alone else f"{whole}[{i}]" for i, part in enumerate(parts)}
        made = parse(how.format(*parts))
        if whole not in outside.stored:
            _Fields(whole, made).visit(tree)
        made = _Unnamed().visit(made)
        tree.body.insert(0, assign(whole, made))
        for node in nodes(tree.body[0]):
            ast.copy_location(node, tree)
    return written


class _Fields(ast.NodeTransformer):
    """The fields of a named tuple by their places: `p.y` is `p[1]`."""

    def __init__(self, whole: str, made: ast.expr) -> None:
        self.whole, self.made = whole, made

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        fields = [each.arg for each in getattr(self.maker(node.value), "keywords", ())]
        if node.attr not in fields:
            return node
        place = ast.Constant(fields.index(node.attr))
        return ast.copy_location(ast.Subscript(node.value, place, node.ctx), node)

    def maker(self, node: ast.AST) -> ast.expr | None:
        """The expression that makes the argument, or an item of it."""
        match node:
            case ast.Name(id=name) if name == self.whole:
                return self.made
            case ast.Subscript(value=value, slice=ast.Constant(value=int(place))):
                match self.maker(value):
                    case ast.Call(keywords=items) if place < len(items):
                        return items[place].value
                    case ast.Tuple(elts=values) if place < len(values):
                        return values[place]
        return None


class _Unnamed(ast.NodeTransformer):
    """Named tuples as plain ones."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Tuple([each.value for each in node.keywords], ast.Load())


class _Outside:
    """What the names of a kernel mean that it does not bind itself, and new names."""

    def __init__(self, tree: ast.FunctionDef, function: types.FunctionType) -> None:
        names = [node for node in nodes(tree) if isinstance(node, ast.Name)]
        self.parameters = {
            argument.arg for argument in nodes(tree.args) if isinstance(argument, ast.arg)
        }
        self.stored = [node.id for node in names if isinstance(node.ctx, ast.Store)]
        self.taken = Names({node.id for node in names} | self.parameters)
        self.added: dict[str, Any] = {}
        self.dotted: dict[str, str] = {}  # names of those that were written with dots
        self.values = vars(builtins) | around(function)

    def named(self, wanted: str, value: Any) -> str:
        """A name for a value from outside, the same each time."""
        for known, held in self.added.items():
            if held is value:
                return known
        new = self.taken.fresh(wanted)
        self.added[new] = value
        return new

    def value(self, identifier: str) -> Any:
        """The value of a name from outside; None for a name of the kernel's own."""
        if identifier in self.parameters or identifier in self.stored:
            return None
        return self.added.get(identifier, self.values.get(identifier))

    def is_cuda(self, node: ast.AST) -> bool:
        """Whether an expression is the namespace `cuda`."""
        return isinstance(node, ast.Name) and is_cuda_namespace(self.value(node.id))


def is_cuda_namespace(value: Any) -> bool:
    """Whether a value is `cuda`: ours, or one of Numba's."""
    numbas = "numba.cuda", "numba_cuda.numba.cuda"
    return getattr(value, "is_cuda_namespace", False) or getattr(value, "__name__", "") in numbas


class _Paths(ast.NodeTransformer):
    """Names with dots, and names of CUDA's functions, as what they stand for."""

    def __init__(self, outside: _Outside) -> None:
        self.outside = outside

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        path, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            path.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        value = self.outside.value(base.id)
        if is_cuda_namespace(value) and path[0] == "random":
            return self._named("_".join(path), getattr(value.random, path[-1], None)) or node
        if is_cuda_namespace(value):
            return self._function(path[-1]) or node if path[0] == "libdevice" else node
        if len(path) == 1 and any(value is module for module in DIRECT):
            return node
        for attribute in path:
            if not isinstance(value, types.ModuleType | type):
                return self.generic_visit(node)
            value = getattr(value, attribute, None)
        found = self._named("_".join([base.id, *path]), value)
        if isinstance(found, ast.Name):
            self.outside.dotted[found.id] = ".".join([base.id, *path])
        return found or node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.outside.value(node.id)
        if not _is_of_cuda(value):
            return node
        return self._named(node.id, value) or node

    def _named(self, wanted: str, value: Any) -> ast.expr | None:
        """An expression for a value from outside, or None if no kernel can use it."""
        if isinstance(value, enum.Enum):
            value = value.value
        of_numpy = isinstance(value, type) and issubclass(value, np.generic)
        if isinstance(value, VALUES) or of_numpy or _is_a_function(value):
            return name(self.outside.named(wanted, value))
        if _is_of_cuda(value):
            found: ast.expr = name(self.outside.named("cuda", NAMESPACE))
            for part in value.__qualname__.split("."):
                found = ast.Attribute(found, part, ast.Load())
            if value.__module__.endswith("libdevice"):
                return self._function(value.__name__)
            return found
        return None

    def _function(self, called: str) -> ast.expr | None:
        """A function of CUDA's library that `math` has as well."""
        plain = called.removeprefix("fast_")
        narrow = plain.endswith("f") and hasattr(math, plain[:-1])
        plain = plain[:-1] if narrow else plain
        if not hasattr(math, plain) or hints.member("math", plain) is not None:
            return None
        return name(self.outside.named(f"{plain}_of_math", getattr(math, plain)))


def _is_a_function(value: Any) -> bool:
    """Whether kernels can call it: a kernel's text may also serve as a device function's."""
    return any(hasattr(value, mark) for mark in ("is_device_function", "on_cpu", "py_func"))


def _is_of_cuda(value: Any) -> bool:
    """Whether it is one of CUDA's own names, such as `cuda.atomic.add`."""
    module = str(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    return module.startswith(("numba.cuda.", "numba_cuda.")) and (
        hints.is_of_cuda(name.partition(".")[0]) or module.endswith("libdevice")
    )


class _Aliases(ast.NodeTransformer):
    """`b, t = cuda.blockIdx, cuda.threadIdx` are other names for those."""

    def __init__(self, tree: ast.FunctionDef, outside: _Outside) -> None:
        self.outside = outside
        self.means: dict[str, ast.expr] = {}
        for node in nodes(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.means |= self._aliases(node)

    def _aliases(self, node: ast.Assign) -> dict[str, ast.expr]:
        """The new names of an assignment, if it gives nothing else."""
        target, value = node.targets[0], node.value
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        found: dict[str, ast.expr] = {}
        for one, other in zip(targets, values, strict=False):
            match one, other:
                case ast.Name(id=name), ast.Attribute(value=base, attr=attribute) if (
                    attribute in INDICES
                    and self.outside.is_cuda(base)
                    and self.outside.stored.count(name) == 1
                ):
                    found[name] = other
        return found if len(found) == len(targets) == len(values) else {}

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if len(node.targets) == 1 and self._aliases(node) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        meant = self.means.get(node.id)
        return node if meant is None else ast.copy_location(copied(meant), node)


class _Shapes(ast.NodeTransformer):
    """The sizes of a declared array as numbers, where Numba for GPUs takes them for constants.

    It does so with a whole number, with the name of one outside the kernel or of one that the
    kernel binds once, with tuples of them and with a tuple's items; not with what is worked out
    from a name, and not with a number of NumPy's or of an enum.
    """

    def __init__(self, tree: ast.FunctionDef, outside: _Outside) -> None:
        self.outside = outside
        self.own: dict[str, Any] = {}
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._remember(target, statement.value)

    def _remember(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), _ if self.outside.stored.count(name) == 1:
                self.own[name] = self._constant(value)
            case ast.Tuple(elts=names), ast.Tuple(elts=values):
                for one, other in zip(names, values, strict=False):
                    self._remember(one, other)

    def _constant(self, node: ast.expr) -> Any:
        """The whole number, or the tuple of such, that an expression always is; or None."""
        names = {each: self._named(each) for each in names_in(node)}
        worked_out = any(isinstance(part, _WORK) and names_in(part) for part in nodes(node))
        if None in names.values() or worked_out:
            return None
        try:
            value = eval(compile(ast.Expression(node), "<size>", "eval"), {}, names)
        except (TypeError, ValueError, ArithmeticError, LookupError):
            return None
        return value if _is_whole(value) else None

    def _named(self, name: str) -> Any:
        value = self.own.get(name, self.outside.value(name))
        return value if _is_whole(value) and name not in self.outside.added else None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        shape = _shape(node) if declares(node) else None
        if isinstance(shape, ast.Tuple):
            shape.elts = [self._number(each) for each in shape.elts]
        elif shape is not None and node.args:
            node.args[0] = self._number(shape)
        elif shape is not None:
            keyword = next(k for k in node.keywords if k.arg == "shape")
            keyword.value = self._number(shape)
        return node

    def _number(self, node: ast.expr) -> ast.expr:
        value = self._constant(node)
        return node if value is None else ast.copy_location(ast.Constant(value), node)


_WORK = ast.BinOp | ast.UnaryOp | ast.Call | ast.Attribute | ast.Starred


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number of Python's, or a tuple of such."""
    return all(type(number) is int for number in (value if type(value) is tuple else [value]))


def declares(call: ast.Call) -> bool:
    """Whether a call is `cuda.shared.array(...)` or `cuda.local.array(...)`."""
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr="shared" | "local"), attr="array"):
            return True
    return False


def _shape(call: ast.Call) -> ast.expr | None:
    """The shape that a declaration gives."""
    given = *call.args[:1], *(k.value for k in call.keywords if k.arg == "shape")
    return next(iter(given), None)


class _Plain:
    """Statements, each as one or several that are plain."""

    def __init__(self, tree: ast.FunctionDef, outside: _Outside, is_kernel: bool) -> None:
        self.outside, self.is_kernel = outside, is_kernel
        self.ndims: dict[str, int] = {}  # of the arrays that the kernel declares
        for node in nodes(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if declares(
                    call
                ):
                    shape = _shape(call)
                    self.ndims[name] = len(shape.elts) if isinstance(shape, ast.Tuple) else 1

    def body(self, statements: Statements) -> Statements:
        """The plain statements for a list of them."""
        return [new for statement in statements for new in self.statement(statement)]

    def statement(self, statement: ast.stmt) -> Statements:
        """The plain statements for one."""
        return [located(made, statement) for made in self._said(statement)]

    def _said(self, statement: ast.stmt) -> Statements:
        match statement:
            case ast.Assert(test=ast.Constant(value=end)) if end is ...:
                return [statement, *[ast.Return()] * self.is_kernel]
            case ast.Assert(test=test):
                return self.body([ast.If(negated(test), [_failed(statement)], [])])
            case ast.Raise() if self.is_kernel:
                return self.body([_failed(statement)])
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=array), slice=ast.Slice(None, None, None))]
            ) if array in self.ndims:
                return self._filled(array, statement.value)
            case ast.While(test=test, body=body, orelse=otherwise) if _names_something(test):
                leave = ast.If(negated(test), [ast.Break()], [])
                before, after = Statements(), Statements()
                if otherwise:
                    ended = self.outside.taken.fresh("ended")
                    flag_breaks(body, ended)
                    before = [assign(ended, ast.Constant(True))]
                    after = [ast.If(name(ended), otherwise, [])]
                loop = ast.While(ast.Constant(True), [leave, *body], [])
                return self.body([*before, loop, *after])
        before = self._named_before(statement)
        for part in ("body", "orelse"):
            if inner := getattr(statement, part, None):
                setattr(statement, part, self.body(inner) or [ast.Pass()])
        return [*before, statement]

    def _named_before(self, statement: ast.stmt) -> Statements:
        """`(name := value)` as an assignment before the statement, where it is always evaluated."""
        before: Statements = []
        earlier: list[ast.expr] = [statement.target] if isinstance(statement, ast.AugAssign) else []
        for field in ("test", "value", "iter"):
            held = getattr(statement, field, None)
            if isinstance(held, ast.expr) and _names_something(held):
                setattr(statement, field, _Hoist(before, self.outside, earlier).visit(held))
        return before

    def _filled(self, array: str, value: ast.expr) -> Statements:
        """A loop over each axis, and in the innermost the element."""
        indices = [self.outside.taken.fresh("element") for _ in range(self.ndims[array])]
        places: list[ast.expr] = [*map(name, indices)]
        at = places[0] if len(places) == 1 else ast.Tuple(places, ast.Load())
        made: ast.stmt = ast.Assign([ast.Subscript(name(array), at, ast.Store())], value)
        for axis, index in reversed([*enumerate(indices)]):
            shape = ast.Attribute(name(array), "shape", ast.Load())
            size = ast.Subscript(shape, ast.Constant(axis), ast.Load())
            made = ast.For(target(index), call("range", size), [made], [])
        return [made]


def _failed(statement: ast.stmt) -> ast.stmt:
    """What a thread meets where an `assert` does not hold, or at a `raise`."""
    return ast.Assert(ast.Constant(...), ast.Constant(ast.unparse(statement)))


def _names_something(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.NamedExpr) for inner in nodes(node))


class _Hoist(ast.NodeTransformer):
    """Takes `(name := value)` out of an expression to the statements before.

    It stays, and is refused later, where it may not be evaluated, or is not the same earlier.
    """

    def __init__(self, before: Statements, outside: _Outside, earlier: list[ast.expr]) -> None:
        self.before, self.outside = before, outside
        self.earlier: list[ast.AST] = [*earlier]  # what has been evaluated

    def visit(self, node: ast.AST) -> Any:
        """Go through the parts in the order in which they are evaluated."""
        new = super().visit(node)
        self.earlier.append(new)
        return new

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        earlier = [*self.earlier]
        self.generic_visit(node)
        acts = any(map(self._acts, walk([*earlier, node.value])))
        if node.target.id in named(earlier) or (acts and any(map(self._changes, walk(earlier)))):
            return node
        self.before.append(assign(node.target.id, node.value))
        return ast.copy_location(name(node.target.id), node)

    def _acts(self, node: ast.AST) -> bool:
        """Whether a node is a call that may do more than compute."""
        match node:
            case ast.Call(func=ast.Name(id=function)):
                return _is_a_function(self.outside.value(function))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module) as base, attr=function)):
                places = self.outside.is_cuda(base) and function in ("grid", "gridsize")
                return not places and self.outside.value(module) not in DIRECT
            case ast.Call():
                return True
        return False

    def _changes(self, node: ast.AST) -> bool:
        """Whether a node may be another value after something that acts."""
        reads = (
            isinstance(node, ast.Subscript) or getattr(node, "attr", "shape") not in hints.INDEXED
        )
        return reads or self._acts(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values[0] = self.visit(node.values[0])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        node.left, node.comparators[0] = self.visit(node.left), self.visit(node.comparators[0])
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        return node

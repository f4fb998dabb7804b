"""The oracle of the CPU lowering: kernels run one thread at a time, and nothing is clever.

A kernel's text becomes a Python generator for each thread of a block. It yields a `Wait` wherever
the thread needs others: at barriers, and at warp operations (shuffles, votes, `activemask`). Every
thread runs until it waits or has left. Of a warp's lanes, those that wait at the earliest place of
the program then get their answers and go on; when a block's threads all wait at one barrier, so do
they. Places are ordered as a GPU walks them, in step: branch by branch, turn by turn of each loop.
"""

import ast
import inspect
import itertools
import math
import operator
import textwrap
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np

from . import values
from .values import ATOMICS, BUILTINS, Cast, Memory, poisoned, seen

Shape3 = tuple[int, int, int]
WARP = 32
SCALARS = {bool, int, float, complex, *np.sctypeDict.values()}


def interpret(
    kernel: Any,
    grid: Any,
    block: Any,
    arguments: tuple[Any, ...],
    *,
    shared_bytes: int = 0,
    backwards: bool = False,
) -> None:
    """Run a `@cuda.jit` kernel, which modifies its array arguments.

    `shared_bytes` is the size of dynamic shared memory. `backwards` runs the blocks, and the
    threads between two waits, in the opposite order.
    """
    machine = _Machine(_shape3(grid), _shape3(block), shared_bytes, -1 if backwards else 1)
    program = _translate(kernel.function, machine)
    with np.errstate(all="ignore"):
        machine.run(program, [seen(argument) for argument in arguments])


def expected(
    kernel: Any, grid: Any, block: Any, arguments: tuple[Any, ...], shared_bytes: int = 0
) -> tuple[Any, ...]:
    """What the arguments should be after a launch; a kernel with a data race is refused."""
    results = []
    for backwards in (False, True):
        copies = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
        interpret(kernel, grid, block, copies, shared_bytes=shared_bytes, backwards=backwards)
        results.append(copies)
    for first, second in zip(*results, strict=True):
        for one, other in zip(columns(first), columns(second), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, err_msg="the kernel has a data race")
    return results[0]


def columns(value: Any) -> list[Any]:
    """The arrays of plain numbers that an argument holds: one for each field of a record."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        return [value.view(np.int64)]
    if isinstance(value, np.ndarray) and value.dtype.names:
        return [column for name in value.dtype.names for column in columns(value[name])]
    return (
        [column for item in value for column in columns(item)]
        if isinstance(value, tuple)
        else [value]
    )


def _shape3(shape: Any) -> Shape3:
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return tuple([*sizes, 1, 1][:3])


class Diverged(AssertionError):
    """Threads of one block wait at different barriers, or some have left."""


class Wait(NamedTuple):
    """What a thread waits for, and where.

    `place` orders the waits of a warp: it names, from the outside in, the loops that the thread is
    in, each with its turn, and the calls.
    """

    place: tuple[int, ...]
    line: int
    operation: str
    values: tuple[Any, ...]


Steps = Generator[Wait, Any, Any]


@dataclass
class Thread:
    """A thread of a block."""

    at: SimpleNamespace  # threadIdx
    number: int  # within the block
    steps: Steps
    wait: Wait | None = None  # None: it has left

    @property
    def lane(self) -> int:
        return self.number % WARP


# What waiting threads get -------------------------------------------------------------------------

Lanes = dict[int, tuple[Any, ...]]  # the values that each lane of a group brought along


def _shuffle(source: Callable[[int, int], int]) -> Callable[[int, Lanes], Any]:
    """A lane's answer is the value of its source, or its own if no such lane takes part."""

    def answer(lane: int, lanes: Lanes) -> Any:
        _, value, where = lanes[lane]
        if type(value) not in (np.int32, np.int64, np.float32, np.float64):
            raise TypeError(f"shfl_sync of {type(value)}: Numba takes 32 and 64 bit numbers")
        return lanes.get(source(lane, int(where) % WARP), lanes[lane])[1]

    return answer


def _vote(answer: Callable[[list[bool]], Any]) -> Callable[[int, Lanes], Any]:
    return lambda lane, lanes: np.bool_(answer([bool(test) for _, test in lanes.values()]))


def _mask(lanes: Any) -> int:
    return sum(1 << lane for lane in lanes)


def _signed(mask: int) -> np.int32:
    return np.uint32(mask).astype(np.int32)


def _equal(lane: int, lanes: Lanes) -> list[int]:
    """The lanes whose value has the same bits."""
    wanted = np.asarray(lanes[lane][1]).tobytes()
    return [other for other in lanes if np.asarray(lanes[other][1]).tobytes() == wanted]


def _match_all(lane: int, lanes: Lanes) -> tuple[np.int32, np.bool_]:
    same = len(_equal(lane, lanes)) == len(lanes)
    return _signed(_mask(lanes) if same else 0), np.bool_(same)


WARP_OPERATIONS: dict[str, Callable[[int, Lanes], Any]] = {
    "syncwarp": lambda lane, lanes: None,
    "activemask": lambda lane, lanes: np.uint32(_mask(lanes)),
    "shfl_sync": _shuffle(lambda lane, source: source),
    "shfl_up_sync": _shuffle(lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle(lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle(operator.xor),
    "all_sync": _vote(all),
    "any_sync": _vote(any),
    "eq_sync": _vote(lambda tests: len(set(tests)) == 1),
    "ballot_sync": lambda lane, lanes: _signed(_mask(other for other in lanes if lanes[other][1])),
    "match_any_sync": lambda lane, lanes: _signed(_mask(_equal(lane, lanes))),
    "match_all_sync": _match_all,
}

BARRIERS: dict[str, Callable[[list[Any]], Any]] = {
    "syncthreads": lambda tests: None,
    "syncthreads_count": lambda tests: np.int32(sum(map(bool, tests))),
    "syncthreads_and": lambda tests: np.int32(all(tests)),
    "syncthreads_or": lambda tests: np.int32(any(tests)),
}


# The machine --------------------------------------------------------------------------------------


class _Machine:
    """What the name `cuda` means to the thread that runs now."""

    warpsize = np.int32(WARP)
    atomic = SimpleNamespace(**ATOMICS)
    const = SimpleNamespace(array_like=lambda array: array)
    popc, clz, ffs, brev = map(staticmethod, (values.popc, values.clz, values.ffs, values.brev))
    fma, cbrt, selp = map(staticmethod, (values.fma, values.cbrt, values.selp))

    def __init__(self, grid: Shape3, block: Shape3, shared_bytes: int, order: int) -> None:
        self.gridDim, self.blockDim = _xyz(grid), _xyz(block)
        self.blocks = _places(grid)[::order]
        self.threads = list(enumerate(_places(block)))[::order]
        self.threadIdx = self.blockIdx = _xyz((0, 0, 0))
        self.laneid = np.int32(0)
        self.shared_bytes = shared_bytes
        self.in_shared: dict[Any, Memory] = {}
        self.dynamic = np.empty(0, np.uint8)
        self.shared = SimpleNamespace(array=self._shared)
        self.local = SimpleNamespace(
            array=lambda shape, dtype, alignment=None, *, site: poisoned(shape, dtype)
        )
        self.threadfence = self.threadfence_block = self.threadfence_system = lambda: None
        self.nanosleep = lambda nanoseconds: None

    def run(self, program: Callable[..., Steps], arguments: list[Any]) -> None:
        for place in self.blocks:
            self.blockIdx = place
            self.in_shared.clear()
            self.dynamic = np.full(self.shared_bytes, 0xFF, np.uint8)
            threads = [Thread(at, number, program(*arguments)) for number, at in self.threads]
            for thread in threads:
                self.resume(thread, None)
            while self.to_barrier(threads):
                self.past_barrier(threads)

    def resume(self, thread: Thread, answer: Any) -> None:
        """Give a thread what it waited for, and let it run until it waits again or leaves."""
        self.threadIdx, self.laneid = thread.at, np.int32(thread.lane)
        try:
            thread.wait = thread.steps.send(answer)
        except StopIteration:
            thread.wait = None

    def to_barrier(self, threads: list[Thread]) -> bool:
        """Run all warps until nobody waits for a warp; whether there is anybody left."""
        warps = itertools.groupby(threads, lambda thread: thread.number // WARP)
        for _, lanes in [(warp, list(lanes)) for warp, lanes in warps]:
            while group := _earliest(lanes):
                self.past_warp_operation(group)
        return any(thread.wait for thread in threads)

    def past_warp_operation(self, group: list[Thread]) -> None:
        """Give the lanes that wait at one place their answers."""
        waits = {thread.lane: thread.wait for thread in group if thread.wait}
        answers = {
            lane: WARP_OPERATIONS[wait.operation](lane, _members(lane, waits))
            for lane, wait in waits.items()
        }
        for thread in group:
            self.resume(thread, answers[thread.lane])

    def past_barrier(self, threads: list[Thread]) -> None:
        """Let all threads of a block go on from the barrier at which they all wait."""
        waits = [thread.wait for thread in threads]
        first = waits[0]
        if first is None or any(wait is None or wait.place != first.place for wait in waits):
            lines = {wait.line if wait else 0 for wait in waits}
            raise Diverged(f"the threads wait in lines {lines} (0: they have left)")
        tests = [test for wait in waits if wait for test in wait.values]
        for thread in threads:
            self.resume(thread, BARRIERS[first.operation](tests))

    def lanemask_lt(self) -> np.uint32:
        return np.uint32((1 << int(self.laneid)) - 1)

    def _shared(self, shape: Any, dtype: Any, alignment: Any = None, *, site: Any) -> Memory:
        if shape == 0:
            whole = self.shared_bytes // dtype.dtype.itemsize * dtype.dtype.itemsize
            return Memory(self.dynamic[:whole].view(dtype.dtype))
        if site not in self.in_shared:
            self.in_shared[site] = poisoned(shape, dtype)
        return self.in_shared[site]

    def grid(self, axes: int) -> Any:
        at = [
            np.int64(getattr(self.blockIdx, a)) * getattr(self.blockDim, a)
            + getattr(self.threadIdx, a)
            for a in "xyz"
        ]
        return at[0] if axes == 1 else tuple(at[:axes])

    def gridsize(self, axes: int) -> Any:
        sizes = [np.int64(getattr(self.gridDim, a)) * getattr(self.blockDim, a) for a in "xyz"]
        return sizes[0] if axes == 1 else tuple(sizes[:axes])


def _earliest(lanes: list[Thread]) -> list[Thread]:
    """The lanes that wait for others of their warp at the earliest place; they go on together."""
    waiting = [lane for lane in lanes if lane.wait and lane.wait.operation in WARP_OPERATIONS]
    first = min((lane.wait.place for lane in waiting if lane.wait), default=None)
    return [lane for lane in waiting if lane.wait and lane.wait.place == first]


def _members(lane: int, waits: dict[int, Wait]) -> Lanes:
    """The lanes of a group that a lane's member mask names, with what they brought along."""
    brought = waits[lane].values
    mask = int(brought[0]) if brought else -1
    return {other: wait.values for other, wait in waits.items() if mask >> other & 1}


def _xyz(place: Shape3) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip("xyz", map(np.int32, place), strict=True)))


def _places(shape: Shape3) -> list[SimpleNamespace]:
    return [_xyz((x, y, z)) for z, y, x in itertools.product(*map(range, shape[::-1]))]


# From the kernel's text to generators -------------------------------------------------------------


class _DeviceFunction(NamedTuple):
    """A device function, as a generator: it may wait for others, as a kernel may."""

    program: Callable[..., Steps]

    def __call__(self, place: tuple[int, ...], *arguments: Any, **named: Any) -> Steps:
        """Its steps, each of which is within the call at a place of the caller."""
        steps, answer = self.program(*arguments, **named), None
        while True:
            try:
                wait = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = yield wait._replace(place=place + wait.place)


def _translate(function: types.FunctionType, machine: _Machine) -> Any:
    """The function as the oracle runs it: a generator of waits."""
    outside = dict(BUILTINS)
    closure = inspect.getclosurevars(function)
    for name, value in {**closure.globals, **closure.nonlocals}.items():
        outside[name] = _outside(value, machine)
    lines, first_line = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, first_line - 1)
    tree.decorator_list, tree.returns = [], None
    tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kwonlyargs)
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    steps = _Steps(outside, id(function))
    tree.body = [steps.visit(statement) for statement in tree.body]
    tree.body.insert(0, ast.parse("if False: yield").body[0])
    module = ast.fix_missing_locations(ast.Module([tree], []))
    exec(compile(module, inspect.getsourcefile(function) or "?", "exec"), outside)
    program: Any = outside[function.__name__]
    program.__defaults__ = seen(function.__defaults__)
    program.__kwdefaults__ = {k: seen(v) for k, v in (function.__kwdefaults__ or {}).items()}
    return program


def _outside(value: Any, machine: _Machine) -> Any:
    """A name's value from outside the kernel, as the oracle needs it."""
    if getattr(value, "is_cuda_namespace", False):
        return machine
    if getattr(value, "is_device_function", False):
        return _DeviceFunction(_translate(value.function, machine))
    if isinstance(value, np.ndarray):  # a constant: as it is now, and nobody may write to it
        frozen = value.copy()
        frozen.flags.writeable = False
        return Memory(frozen)
    if value is math:
        return values.Math()
    if value is np:
        return values.Numpy()
    if isinstance(value, numba.types.Type):
        return Cast(numba.np.numpy_support.as_dtype(value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and value in SCALARS):
        return Cast(value)
    if isinstance(value, tuple):
        return tuple(_outside(item, machine) for item in value)
    return seen(value)


OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


class _Steps(ast.NodeTransformer):
    """Waits become yields, calls of device functions `yield from`; operators and literals Numba's.

    A place is a tuple of numbers: those of the loops around it, each followed by the turn, which a
    variable of the generated text counts, and its own. Numbers grow along the text.
    """

    def __init__(self, outside: dict[str, Any], function: int) -> None:
        self.outside, self.function = outside, function
        self.numbers = itertools.count(1)
        self.around: list[str] = []  # what places in the innermost loop begin with

    def at(self, node: ast.AST, text: str, **parts: ast.expr) -> Any:
        """An expression from a text, with nodes in the place of some names."""

        class Fill(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                return parts.get(name.id, name)

        return ast.copy_location(Fill().visit(ast.parse(text, mode="eval").body), node)

    def known(self, name: str, value: Any) -> str:
        """A name, which no kernel has, for a value that the generated text needs."""
        self.outside[f"oracle_{name}"] = value
        return f"oracle_{name}"

    def place(self) -> str:
        """The text of a place of its own."""
        return f"({', '.join([*self.around, str(next(self.numbers))])},)"

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) not in (int, float):
            return node
        name = self.known(f"literal {node.value!r}", seen(node.value))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """`x[f()] += v` becomes `x[i := f()] = x[i] + v`, roughly: its index is evaluated once."""
        read: Any = ast.parse(ast.unparse(node.target), mode="eval").body
        before: list[ast.stmt] = []
        if isinstance(node.target, (ast.Subscript, ast.Attribute)):
            once = {"value": node.target.value}
            if isinstance(node.target, ast.Subscript):
                once["slice"] = node.target.slice
            number = next(self.numbers)
            for part, tree in once.items():
                name = f"{part} {number}"
                before.append(ast.Assign([ast.Name(name, ast.Store())], self.visit(tree)))
                for target in (node.target, read):
                    setattr(target, part, ast.Name(name, ast.Load()))
        before.append(ast.Assign([node.target], self.binary(node, read, self.visit(node.value))))
        return ast.copy_location(ast.If(ast.Constant(True), before, []), node)

    def binary(self, node: Any, left: ast.expr, right: ast.expr) -> ast.expr:
        operation = self.known(type(node.op).__name__, OPERATORS[type(node.op)])
        function = self.known("binary", values.binary)
        arguments = [ast.Name(operation, ast.Load()), left, right]
        return ast.copy_location(ast.Call(ast.Name(function, ast.Load()), arguments, []), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return self.binary(node, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return node
        operation = self.known(type(node.op).__name__, OPERATORS[type(node.op)])
        function = ast.Name(self.known("unary", values.unary), ast.Load())
        call = ast.Call(function, [ast.Name(operation, ast.Load()), node.operand], [])
        return ast.copy_location(call, node)

    def visit_For(self, node: ast.For) -> Any:
        """`for i in x` becomes `for turn, i in enumerate(x)`."""
        iterated = self.visit(node.iter)
        with_turn = ast.Tuple([ast.Name(self.enter_loop(), ast.Store()), node.target], ast.Store())
        node.target = ast.copy_location(with_turn, node)
        node.iter = self.at(node, f"{self.known('count', enumerate)}(iterated)", iterated=iterated)
        return self.leave_loop(node)

    def visit_While(self, node: ast.While) -> Any:
        """`while test` becomes `while (turn := turn + 1, test)[1]`."""
        turn = self.enter_loop()
        node.test = self.at(node, f"({turn} := {turn} + 1, test)[1]", test=self.visit(node.test))
        start = ast.parse(f"{turn} = -1").body
        both: Any = ast.If(ast.Constant(True), [*start, self.leave_loop(node)], [])
        return ast.copy_location(both, node)

    def enter_loop(self) -> str:
        number = next(self.numbers)
        self.around += [str(number), f"oracle_turn_{number}"]
        return self.around[-1]

    def leave_loop(self, node: Any) -> Any:
        node.body = [self.visit(statement) for statement in node.body]
        del self.around[-2:]
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Attribute(attr="shared" | "local"), attr="array"):
                site = self.at(node, f"({self.function}, {node.lineno}, {node.col_offset})")
                node.keywords.append(ast.keyword("site", site))
            case ast.Attribute(attr=name) if name in WARP_OPERATIONS or name in BARRIERS:
                brought = ast.Tuple([*node.args, *(k.value for k in node.keywords)], ast.Load())
                wait = (
                    f"{self.known('Wait', Wait)}({self.place()}, {node.lineno}, {name!r}, brought)"
                )
                return self.at(node, f"(yield {wait})", brought=brought)
        if isinstance(self.value_of(node.func), _DeviceFunction):
            node.args.insert(0, self.at(node, self.place()))
            return self.at(node, "(yield from call)", call=node)
        return node

    def value_of(self, node: ast.expr) -> Any:
        """What a name, or a name with dots, stands for outside the kernel; None if it does not."""
        if isinstance(node, ast.Attribute):
            return getattr(self.value_of(node.value), node.attr, None)
        return self.outside.get(node.id) if isinstance(node, ast.Name) else None

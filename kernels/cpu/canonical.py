"""Step 3: bring a kernel into a canonical form, so that the later steps see few kinds of statement.

    cuda.threadIdx.x          thread_x             the loop variables of the lane loops
    cuda.blockIdx.x           block_x              the loop variables of the block loop
    cuda.blockDim.x           BLOCK_X              constants: a kernel is compiled per block shape
    cuda.gridDim.x            grid_x
    cuda.grid(1)              block_x * BLOCK_X + thread_x
    cuda.syncthreads()        barrier()
    cuda.syncwarp()           syncwarp()
    a[i][j]                   a[i, j], where a is declared in the kernel (others: see `typed`)
    x, y = a, b               x = a; y = b
    v = cuda.float4(...); v.x v_0 = float32(...); ...; v_0
    row = local[i]; row[j]    local[i, j], with an i that is kept
    x = 1; ...; x = 2         x = 1; ...; x_2 = 2, where the two have nothing to do with each other

Arrays declared with `cuda.shared.array` and `cuda.local.array` are collected, not emitted in place.

A warp operation is three steps: each lane leaves what it sends, the warp meets, each lane takes
what it wants from what the others left. So is a barrier that counts:

    y = cuda.shfl_down_sync(m, x, 1)     sent = x; meet(); y = warp_down(sent, m, 1)
    n = cuda.syncthreads_count(p)        sent = p; barrier(); n = block_count(sent)

Where one warp operation follows another and does not send what came of it, they share a meeting.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NoReturn

import numba
from numba.core import types

from . import hints
from .flatten import BLOCK_VOTES, WARP_OPERATIONS, cuda_path, flatten
from .paths import indices_of, is_part, joined
from .source import Source, dtype_text
from .trees import Names, assign, call, located, name, named, names_in, parse, stores, walk

AXES = "xyz"
WARP = 32
BITS = {"popc", "clz", "ffs", "brev", "cbrt", "selp", "fma"}
FENCES = {"threadfence", "threadfence_block", "threadfence_system", "nanosleep"}
# The calls that stand for these: of atomics, of what looks at all threads, of what looks at a warp.
ATOMIC_CALLS = frozenset(f"atomic_{operation}" for operation in hints.ATOMICS)
VOTES = frozenset(BLOCK_VOTES.values())
TAKES = frozenset({*WARP_OPERATIONS.values(), "warp_active"})
Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class Array:
    """A shared array (one per block) or a local array (one per thread).

    A shared array of shape 0 is dynamic: as long as the launch says.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch decides how long the array is."""
        return self.shape == (0,)


class Whole(ast.Name):
    """What all threads keep under a name, handed to those who look at other threads."""


@dataclass(frozen=True)
class Canonical:
    """A kernel in canonical form."""

    source: Source
    parameters: list[str]
    body: list[ast.stmt]
    arrays: Mapping[str, Array]
    block: Shape3
    names: frozenset[str]  # all that are taken
    sent: frozenset[str]  # variables that other threads look at
    shared_bytes: int  # of dynamic shared memory
    instrumented: bool  # will somebody watch each access?
    kinds: Mapping[str, types.Type] = field(default_factory=dict)  # of all variables, once known
    marked: Sequence[ast.stmt] = ()  # the statements that a trace tells of

    @cached_property
    def ndims(self) -> dict[str, int]:
        """How many indices lead to an element of each array; of a record 0."""
        arrays = {n: int(k.ndim) for n, k in self.kinds.items() if isinstance(k, types.Array)}
        records = (n for n, k in self.kinds.items() if isinstance(k, types.Record))
        return arrays | dict.fromkeys(records, 0)

    @cached_property
    def records(self) -> set[str]:
        """The arrays of records."""
        arrays = {n: k.dtype for n, k in self.kinds.items() if isinstance(k, types.Array)}
        return {n for n, dtype in arrays.items() if isinstance(dtype, types.Record)}

    @property
    def linear(self) -> ast.expr:
        """The number of a thread in its block."""
        return linear(self.block)


def linear(block: Shape3) -> ast.expr:
    """The number of a thread in a block of some shape."""
    terms, size = [], ""
    for axis, count in zip(AXES, block, strict=True):
        if count > 1:
            terms.append(f"{size}thread_{axis}")
        size += f"BLOCK_{axis.upper()} * "
    return parse(" + ".join(terms) or "0")


def whole(identifier: str) -> Whole:
    """A name being read, of all threads at once."""
    return Whole(identifier, ast.Load())


def _tuple(items: Iterable[ast.expr]) -> ast.Tuple:
    return ast.Tuple(list(items), ast.Load())


def is_barrier(node: ast.AST) -> bool:
    """Whether a statement is `barrier()`."""
    return isinstance(node, ast.Expr) and _called(node.value) == "barrier"


def is_meeting(node: ast.AST) -> bool:
    """Whether a statement is a point where threads wait for others: of the block or the warp."""
    return isinstance(node, ast.Expr) and _called(node.value) in ("barrier", "meet", "syncwarp")


def orders_a_warp(node: ast.AST) -> bool:
    """Whether what a warp does in memory before a statement comes before what it does after it."""
    return isinstance(node, ast.Expr) and _called(node.value) == "syncwarp"


def is_vote(node: ast.AST) -> bool:
    """Whether a node is `block_count(...)` or the like: one result for all threads."""
    return _called(node) in VOTES


def is_atomic(node: ast.AST) -> bool:
    """Whether a node is the call of an atomic operation."""
    return _called(node) in ATOMIC_CALLS


def looks_at_others(node: ast.AST) -> bool:
    """Whether a node takes what other threads left, or asks who is here."""
    return _called(node) in TAKES | VOTES


def _called(node: ast.AST) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def canonical(
    source: Source, block: Shape3, shared_bytes: int = 0, *, instrumented: bool = False
) -> Canonical:
    """Bring a kernel into canonical form for one block shape and size of dynamic shared memory.

    `instrumented` leaves no access in a device function.

    Raises:
        UnsupportedKernel: a construct has no meaning on the CPU, or not yet.
    """
    draft = _Draft(flatten(source, every_call=instrumented), block, shared_bytes)
    rewriter = _Rewriter(draft)
    body = [new for statement in draft.source.tree.body for new in rewriter.statements(statement)]
    parameters, copies = _with_own_arguments(draft, body)
    body = _without_tuples(draft, [*copies, *body])
    body = _without_rows(draft, body)
    body = [_Sizes(draft.arrays).visit(statement) for statement in body]
    _give_definitions_their_own_name(draft.names, body)
    body = _with_shared_meetings(draft.sent, body)
    body = joined(body, draft.ndims)
    body = [ast.fix_missing_locations(statement) for statement in body]
    _check_arrays(draft, body)
    return Canonical(
        draft.source, parameters, body, draft.arrays, block, frozenset(draft.names),
        frozenset(draft.sent), shared_bytes, instrumented,
    )  # fmt: skip


class _Draft:
    """What the parts of this step gather."""

    def __init__(self, source: Source, block: Shape3, shared_bytes: int) -> None:
        self.source, self.block, self.shared_bytes = source, block, shared_bytes
        self.parameters = [*source.parameters, *sorted(source.arrays)]
        self.names = Names(names_in(source.tree) | set(source.parameters))
        self.arrays: dict[str, Array] = {}
        self.sent: set[str] = set()

    @property
    def ndims(self) -> dict[str, int]:
        """How many indices lead to an element of each declared array."""
        return {array.name: len(array.shape) for array in self.arrays.values()}

    def refuse(self, node: ast.AST, what: str, way_out: str) -> NoReturn:
        """Raise the error for a construct that cannot be compiled."""
        raise self.source.refuse(node, what, way_out)


def _with_own_arguments(draft: _Draft, body: list[ast.stmt]) -> tuple[list[str], list[ast.stmt]]:
    """Copy each argument that the kernel assigns to, so that every block starts from its value."""
    parameters, copies, assigned = list(draft.parameters), list[ast.stmt](), stores(body)
    for index, parameter in enumerate(parameters):
        if parameter in assigned:
            parameters[index] = draft.names.fresh(f"{parameter}_argument")
            copies.append(assign(parameter, name(parameters[index])))
    return parameters, copies


def _check_arrays(draft: _Draft, body: list[ast.stmt]) -> None:
    """Local arrays have the threads as more dimensions: use them element by element only."""
    whole = list(walk(body))
    local = {array.name for array in draft.arrays.values() if array.space == "local"}
    elements = {id(node.value) for node in whole if isinstance(node, ast.Subscript)}
    for node in whole:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            array = draft.arrays.get(node.value.id)
            indices = indices_of(node)
            if array is None or array.space != "local":
                continue
            if any(isinstance(index, ast.Slice) for index in indices):
                draft.refuse(node, f"`{ast.unparse(node)}` is a slice of a local array",
                            "Write a loop over its elements")  # fmt: skip
            if len(indices) != len(array.shape):
                draft.refuse(
                    node, f"local array {array.name!r} has {len(array.shape)} dimensions, "
                    f"`{ast.unparse(node)}` gives {len(indices)}", "Give one index for each",
                )  # fmt: skip
        elif isinstance(node, ast.Name) and node.id in local and isinstance(node.ctx, ast.Store):
            draft.refuse(node, f"the name of local array {node.id!r} is used for something else",
                        "Use two names, or write to its elements")  # fmt: skip
        elif isinstance(node, ast.Name) and node.id in local and id(node) not in elements:
            draft.refuse(
                node,
                f"local array {node.id!r} is used as a whole",
                "Pass its elements, or the array itself to a device function",
            )


def _with_shared_meetings(sent: set[str], body: list[ast.stmt]) -> list[ast.stmt]:
    """Let warp operations that stand in a row meet once: all send, and then all take.

    None may send what came of one before, or what it reads in memory: the meeting in between may be
    what orders that after another lane's write.
    """
    new: list[ast.stmt] = []
    meeting, taken, index = 0, set[str](), 0  # where the last ones meet, and what they have taken
    while index < len(body):
        match body[index : index + 3]:
            case [
                ast.Assign(targets=[ast.Name(id=variable)], value=value) as send,
                ast.Expr() as meet,
                ast.Assign(targets=[ast.Name(id=target)]) as take,
            ] if variable in sent and not is_barrier(meet):
                if taken and _is_of_other_names(value, taken):
                    new.insert(meeting, send)
                    meeting += 1
                else:
                    meeting, taken = len(new) + 1, set()
                    new += [send, meet]
                new.append(take)
                taken.add(target)
                index += 3
            case [statement, *_]:
                for part in ("body", "orelse"):
                    if inner := getattr(statement, part, None):
                        setattr(statement, part, _with_shared_meetings(sent, inner))
                new.append(statement)
                taken = set()
                index += 1
    return new


def _is_of_other_names(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression reads neither memory nor any of these names."""
    reads_memory = any(isinstance(n, ast.Subscript | ast.Attribute) for n in ast.walk(value))
    return not reads_memory and names.isdisjoint(names_in(value))


class _Sizes(ast.NodeTransformer):
    """The sizes of declared arrays, and of their rows, are constants."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = {n: a for n, a in arrays.items() if not a.is_dynamic}

    def shape(self, node: ast.AST) -> tuple[int, ...]:
        """The shape of an array or a row of one; () of all else."""
        match node:
            case ast.Name(id=name) if name in self.arrays:
                return self.arrays[name].shape
            case ast.Subscript(value=ast.Name()) if not is_part(node):
                return self.shape(node.value)[len(indices_of(node)) :]
        return ()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        shape = self.shape(node.value)
        if not shape or node.attr not in ("shape", "size", "ndim"):
            return self.generic_visit(node)
        sizes = {"shape": shape, "size": prod(shape), "ndim": len(shape)}
        return ast.copy_location(parse(repr(sizes[node.attr])), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        of_a_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        self.generic_visit(node)
        match node:
            case ast.Subscript(ast.Tuple(sizes), ast.Constant(int(axis))) if of_a_shape:
                return sizes[axis] if axis < len(sizes) else node
            case ast.Subscript(ast.Tuple(sizes), ast.UnaryOp(ast.USub(), ast.Constant(int(back)))):
                return sizes[-back] if of_a_shape and back <= len(sizes) else node
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[array]) if shape := self.shape(array):
                return ast.copy_location(ast.Constant(shape[0]), node)
        return self.generic_visit(node)


def _without_tuples(draft: _Draft, body: list[ast.stmt]) -> list[ast.stmt]:
    """Keep each item of a variable that is always a tuple in a variable of its own."""
    assigned: dict[str, list[ast.expr | None]] = {}
    for node in walk(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.For | ast.AugAssign) and isinstance(node.target, ast.Name):
            assigned.setdefault(node.target.id, []).append(None)
    items: dict[str, list[str]] = {}
    for variable, values in assigned.items():
        counts = {len(v.elts) if isinstance(v, ast.Tuple) else -1 for v in values}
        if len(counts) == 1 and counts != {-1}:
            items[variable] = [draft.names.fresh(f"{variable}_{i}") for i in range(counts.pop())]
    if not items:
        return body
    vectors = {variable for variable in items if all(map(_is_vector, assigned[variable]))}
    parts = _Items(draft.names, items, vectors)
    return [new for statement in body for new in parts.statements(statement)]


def _is_vector(value: ast.AST | None) -> bool:
    """Whether a tuple is what `cuda.float4(...)` and the like have become."""
    match value:
        case ast.Tuple([ast.Call(ast.Attribute(ast.Name("numba"))), *_]):
            return True
    return False


def _without_rows(draft: _Draft, body: list[ast.stmt]) -> list[ast.stmt]:
    """A name for a local array, or for a row of one, is the array, with indices that are kept."""
    rows = _Rows(draft, {name for name, count in stores(body).items() if count == 1})
    return [new for statement in body for new in rows.statements(statement)]


class _Transformer(ast.NodeTransformer):
    """New nodes stand where the old ones stood; a statement may become several."""

    def statements(self, statement: ast.stmt) -> list[ast.stmt]:
        new = self.visit(statement)
        return new if isinstance(new, list) else [new] if isinstance(new, ast.stmt) else []

    def visit(self, node: ast.AST) -> Any:
        new = super().visit(node)
        for item in new if isinstance(new, list) else [new]:
            if item is not node and isinstance(item, ast.AST) and hasattr(node, "lineno"):
                located(item, node)
        return new


class _Items(_Transformer):
    """Variables that hold tuples, item by item."""

    def __init__(self, names: Names, items: dict[str, list[str]], vectors: set[str]) -> None:
        self.names = names
        self.items = items
        self.vectors = vectors  # those of them that have `.x`

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Tuple(elts=values)) if (
                target in self.items
            ):
                values = [self.visit(value) for value in values]
                targets = [ast.Name(item, ast.Store()) for item in self.items[target]]
                return at_once(self.names, targets, values)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=int(i))) if (
                variable in self.items
                and -len(self.items[variable]) <= i < len(self.items[variable])
            ):
                return name(self.items[variable][i])
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """A part of a vector: `v.x`."""
        match node:
            case ast.Attribute(ast.Name(id=vector), "x" | "y" | "z" | "w" as part) if (
                vector in self.vectors and "xyzw".index(part) < len(self.items[vector])
            ):
                return name(self.items[vector]["xyzw".index(part)])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.items:
            return node
        return _tuple(map(name, self.items[node.id]))


class _Rows(_Transformer):
    """Names for rows of local arrays."""

    def __init__(self, draft: _Draft, once: set[str]) -> None:
        self.draft = draft
        self.once = once  # names that are assigned to once
        self.rows: dict[str, ast.expr] = {}

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        match joined([node], self.draft.ndims)[0]:
            case ast.Assign([ast.Name(id=row)], ast.Name(id=array) as whole):
                indices: list[ast.expr] = []
            case ast.Assign([ast.Name(id=row)], ast.Subscript(ast.Name(id=array)) as whole):
                indices = indices_of(whole)
            case _:
                return node
        declared = self.draft.arrays.get(array, _NONE)
        is_row = len(indices) < len(declared.shape) and not is_part(whole)
        if declared.space != "local" or row not in self.once or not is_row:
            return node
        kept = [self.draft.names.fresh(f"{row}_row") for _ in indices]
        if isinstance(whole, ast.Subscript):
            whole.slice = _tuple(map(name, kept))
        self.rows[row] = whole
        return list(map(assign, kept, indices))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        row = self.rows.get(node.id)
        return node if row is None else copy.deepcopy(row)


def at_once(
    names: Names, targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> list[ast.Assign]:
    """Several assignments of which none sees what another did: `a, b = b, a`."""
    assigned = [target.id for target in targets if isinstance(target, ast.Name)]
    before: list[ast.Assign] = []
    if len(assigned) != len(targets) or named(values).keys() & set(assigned):
        kept = [names.fresh("item") for _ in values]
        before = list(map(assign, kept, values))
        values = list(map(name, kept))
    return before + [ast.Assign([t], v) for t, v in zip(targets, values, strict=True)]


class _Rewriter(_Transformer):
    def __init__(self, draft: _Draft) -> None:
        self.draft = draft
        self.cuda = draft.source.cuda_names

    def cuda_path(self, node: ast.AST) -> list[str]:
        return cuda_path(node, self.cuda)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call):
            match self.cuda_path(node.value.func):
                case ["syncthreads"] if not node.value.args:
                    return ast.Expr(call("barrier"))
                case ["syncwarp"]:
                    return ast.Expr(call("syncwarp"))
                case [called] if called in FENCES:
                    return None
        return self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_If(self, node: ast.If) -> ast.AST:
        return self.with_body(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        if not isinstance(node.target, ast.Name) or _called(node.iter) != "range":
            self.draft.refuse(
                node, f"a loop over `{ast.unparse(node.iter)}` cannot be part of a kernel",
                "Write `for i in range(...)`, and index in the loop: x[i]",
            )  # fmt: skip
        return self.with_body(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self.with_body(node)

    def with_body(self, node: ast.If | ast.For | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [located(ast.Pass(), node)]
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            match self.cuda_path(node.value.func):
                case ["shared" | "local" as space, "array"]:
                    return self.declare(target.id, space, node.value)
                case [called] if called in WARP_OPERATIONS:
                    return self.warp_operation(target, WARP_OPERATIONS[called], node.value)
                case [called] if called in BLOCK_VOTES:
                    return self.block_vote(target, BLOCK_VOTES[called], node.value)
                case ["activemask"]:
                    threads = parse("BLOCK_X * BLOCK_Y * BLOCK_Z")
                    value = call("warp_active", linear(self.draft.block), threads)
                    return [ast.Expr(call("meet")), ast.Assign([target], value)]
        self.generic_visit(node)
        return self.split(target, node) if isinstance(target, ast.Tuple) else node

    def send(self, value: ast.expr) -> tuple[ast.stmt, ast.expr]:
        """Leave a value where the other threads find it; and what they find there."""
        sent = self.draft.names.fresh("sent")
        self.draft.sent.add(sent)
        return assign(sent, self.visit(value)), whole(sent)

    def check_arguments(self, node: ast.Call, pattern: str) -> None:
        """Refuse a call that does not have the arguments of `cuda.name(first, second, ...)`."""
        if node.keywords or len(node.args) != pattern.count(",") + 1:
            self.draft.refuse(
                node, f"`{ast.unparse(node)}` does not have the arguments of {pattern}",
                "Pass exactly these, by position",
            )  # fmt: skip

    def warp_operation(self, target: ast.Name, operation: str, node: ast.Call) -> list[ast.stmt]:
        self.check_arguments(node, hints.CUDA[self.cuda_path(node.func)[0]])
        members, value, *lane = node.args
        send, sent = self.send(value)
        arguments = [sent, self.visit(members), *map(self.visit, lane), linear(self.draft.block)]
        return [send, ast.Expr(call("meet")), ast.Assign([target], call(operation, *arguments))]

    def block_vote(self, target: ast.Name, operation: str, node: ast.Call) -> list[ast.stmt]:
        self.check_arguments(node, hints.CUDA[self.cuda_path(node.func)[0]])
        send, sent = self.send(node.args[0])
        return [send, ast.Expr(call("barrier")), ast.Assign([target], call(operation, sent))]

    def declare(self, target: str, space: str, node: ast.Call) -> None:
        """Take an array's declaration out of the text."""
        arguments = dict(zip(("shape", "dtype"), node.args, strict=False))
        arguments |= {str(keyword.arg): keyword.value for keyword in node.keywords}
        if set(arguments) != {"shape", "dtype"}:
            self.draft.refuse(
                node, f"`{ast.unparse(node)}`: cuda.{space}.array takes a shape and a dtype",
                f"Write cuda.{space}.array(32, float32)",
            )  # fmt: skip
        shape = self.constant_shape(arguments["shape"], f"{space} array {target!r}", space)
        array = Array(target, shape, self.dtype(arguments["dtype"]), space)
        if self.draft.arrays.setdefault(target, array) != array:
            self.draft.refuse(node, f"array {target!r} is declared twice, differently",
                             "Use two names")  # fmt: skip

    def dtype(self, node: ast.expr) -> str:
        """The text of an array's dtype, which may be given by its name, 'float32'."""
        value = node.value if isinstance(node, ast.Constant) else None
        kind = getattr(numba.types, value, None) if isinstance(value, str) else None
        if isinstance(kind, numba.types.Number):
            return dtype_text(kind)
        python_type = isinstance(node, ast.Name) and node.id in ("float", "int", "bool", "complex")
        if isinstance(node, ast.Constant) or python_type:
            self.draft.refuse(
                node, f"`{ast.unparse(node)}` is not the dtype of an array",
                "Write float32, after `from numba import float32`",
            )  # fmt: skip
        return ast.unparse(node)

    def constant_shape(self, node: ast.expr, what: str, space: str) -> tuple[int, ...]:
        for size in node.elts if isinstance(node, ast.Tuple) else [node]:
            if not isinstance(size, ast.Constant):
                self.refuse_size(size, what, space)
        shape = ast.literal_eval(node)
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if sizes == (0,) and space == "shared":
            if self.draft.shared_bytes == 0:
                self.draft.refuse(
                    node, f"{what} is dynamic (shape 0), but the launch gives it no memory",
                    "Give the bytes of shared memory last: kernel[blocks, threads, 0, bytes](...)",
                )  # fmt: skip
            return sizes
        if not sizes or not all(type(s) is int and s > 0 for s in sizes):
            self.draft.refuse(
                node,
                f"{what} has the shape {shape!r}",
                "Give it constant whole numbers from 1 up, or the shape 0 for shared memory whose "
                "size the launch gives",
            )
        return sizes

    def refuse_size(self, size: ast.expr, what: str, space: str) -> NoReturn:
        """Refuse what Numba for GPUs does not take for a constant."""
        values, text = self.draft.source.values, copy.deepcopy(size)
        names = [node for node in ast.walk(text) if isinstance(node, ast.Name)]
        known = all(each.id in values for each in names)
        for each in names:
            each.id = self.draft.source.original(each.id)
        if known:
            self.draft.refuse(
                size,
                f"the size `{ast.unparse(text)}` of {what} is neither a whole number nor the name "
                "of one, and Numba takes nothing else for a GPU",
                f"Name one outside the kernel: SIZE = int({ast.unparse(text)})",
            )
        self.draft.refuse(
            size,
            f"the size `{ast.unparse(text)}` of {what} is not a constant",
            "Its shape must be known when the kernel is compiled: use a constant from outside the "
            "kernel, or take the size from the closure of a factory function"
            + (", or give the shape 0 and the bytes in the launch" * (space == "shared")),
        )

    def split(self, target: ast.Tuple, node: ast.Assign) -> list[ast.stmt]:
        """One assignment for each item of a tuple; the value has been visited."""
        value, count, before = node.value, len(target.elts), []
        if isinstance(value, ast.Tuple):
            if len(value.elts) != count:
                self.draft.refuse(node, f"{len(value.elts)} values for {count} names",
                                 "Give as many names as values")  # fmt: skip
            values = value.elts
        else:
            if not isinstance(value, ast.Name | ast.Attribute):
                kept = self.draft.names.fresh("items")
                before = [assign(kept, value)]
                value = name(kept)
            values = [ast.Subscript(value, ast.Constant(i), ast.Load()) for i in range(count)]
        parts = [*before, *at_once(self.draft.names, target.elts, values)]
        return [
            new
            for part in parts
            for new in (
                self.split(part.targets[0], part)
                if isinstance(part.targets[0], ast.Tuple)
                else [part]
            )
        ]

    def grid(self, what: str, axis: str) -> ast.expr:
        if what == "gridsize":
            return parse(f"grid_{axis} * BLOCK_{axis.upper()}")
        block = self.draft.block[AXES.index(axis)]
        thread = f"thread_{axis}" if block > 1 else "0"
        return parse(f"block_{axis} * BLOCK_{axis.upper()} + {thread}")

    def lane(self) -> ast.expr:
        return ast.BinOp(linear(self.draft.block), ast.Mod(), ast.Constant(WARP))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self.cuda:
            self.draft.refuse(node, f"`{node.id}` alone is no value",
                             f"Write what of it is wanted: {node.id}.threadIdx.x")  # fmt: skip
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if self.cuda_path(node) and isinstance(node.ctx, ast.Store):
            self.draft.refuse(node, f"`{ast.unparse(node)}` is assigned to",
                             "What CUDA gives cannot be changed: use a variable")  # fmt: skip
        match self.cuda_path(node):
            case []:
                return self.generic_visit(node)
            case ["threadIdx", axis] if axis in AXES:
                many = self.draft.block[AXES.index(axis)] > 1
                return name(f"thread_{axis}") if many else ast.Constant(0)
            case ["blockIdx", axis] if axis in AXES:
                return name(f"block_{axis}")
            case ["blockDim", axis] if axis in AXES:
                return name(f"BLOCK_{axis.upper()}")
            case ["gridDim", axis] if axis in AXES:
                return name(f"grid_{axis}")
            case ["warpsize"]:
                return ast.Constant(WARP)
            case ["laneid"]:
                return self.lane()
            case path:
                self.refuse_cuda(node, path)

    def refuse_cuda(self, node: ast.AST, path: list[str]) -> NoReturn:
        self.draft.refuse(node, *hints.cuda(path))

    def visit_Call(self, node: ast.Call) -> Any:
        match self.cuda_path(node.func):
            case []:
                return self.generic_visit(node)
            case ["grid" | "gridsize" as what]:
                return self.place(what, node)
            case ["atomic", operation] if operation in hints.ATOMICS:
                self.check_arguments(node, hints.ATOMICS[operation])
                return self.atomic(f"atomic_{operation}", node)
            case [called] if called in BITS:
                self.check_arguments(node, hints.CUDA[called])
                return call(called, *map(self.visit, node.args))
            case ["lanemask_lt"]:
                return call("warp_lanes_below", self.lane())
            case ["const", "array_like"] if len(node.args) == 1:
                return self.visit(node.args[0])
            case [called] if (vector := hints.vector(called)) and len(node.args) == vector[1]:
                kind = parse(f"numba.{vector[0]}")
                return _tuple(ast.Call(kind, [self.visit(n)], []) for n in node.args)
            case ["shared" | "local" as space, "array"]:
                unnamed = self.draft.names.fresh(f"{space}_array")
                self.declare(unnamed, space, node)
                return name(unnamed)
            case ["syncthreads" | "syncwarp" as what]:
                self.draft.refuse(
                    node, f"`{ast.unparse(node)}`: it has no value",
                    f"Write cuda.{what}() on a line of its own",
                )  # fmt: skip
            case path:
                self.refuse_cuda(node, path)

    def place(self, what: str, node: ast.Call) -> ast.expr:
        """`cuda.grid(n)`: a number, or a tuple of n."""
        first = node.args[0] if node.args else None
        count: Any = first.value if isinstance(first, ast.Constant) else None
        if count not in (1, 2, 3):
            self.draft.refuse(
                node, f"`{ast.unparse(node)}` does not say how many dimensions with a constant",
                f"Write cuda.{what}(1), (2) or (3)",
            )  # fmt: skip
        places = [self.grid(what, axis) for axis in AXES[:count]]
        return places[0] if count == 1 else _tuple(places)

    def atomic(self, function: str, node: ast.Call) -> ast.expr:
        array = node.args[0] if node.args else None
        if isinstance(array, ast.Name) and self.draft.arrays.get(array.id, _NONE).space == "local":
            self.draft.refuse(node, f"an atomic operation on local array {array.id!r} is of no use",
                             "No other thread sees it: use a plain assignment")  # fmt: skip
        return call(function, *map(self.visit, node.args))


_NONE = Array("", (), "", "")


def _give_definitions_their_own_name(names: Names, body: list[ast.stmt]) -> None:
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
                new = names.fresh(f"{variable}_{number}")
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

"""Step 3: bring a kernel into a canonical form, so that the later steps see few kinds of statement.

    cuda.threadIdx.x          thread_x             the loop variables of the lane loops
    cuda.blockIdx.x           block_x              the loop variables of the block loop
    cuda.blockDim.x           BLOCK_X              constants: a kernel is compiled per block shape
    cuda.gridDim.x            grid_x
    cuda.grid(1)              block_x * BLOCK_X + thread_x
    cuda.syncthreads()        barrier()
    cuda.syncwarp(m)          syncwarp()             where it is watched: sent = m; syncwarp(sent)
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
from typing import Any, NoReturn

import numba

from . import hints
from .declared import NONE, check_local, ndims, with_sizes, without_rows
from .definitions import name_each
from .flatten import BLOCK_VOTES, WARP_OPERATIONS, cuda_path, flatten
from .form import AXES, EVERYONE, WARP, Array, Canonical, Shape3, called_name, linear, whole
from .paths import joined
from .source import Source, dtype_text
from .trees import (
    Names,
    Transformer,
    assign,
    call,
    copied,
    located,
    name,
    names_in,
    nodes,
    parse,
    stores,
    tuple_of,
)
from .tuples import at_once, without_tuples

BITS = {"popc", "clz", "ffs", "brev", "cbrt", "selp", "fma"}
FENCES = {"threadfence", "threadfence_block", "threadfence_system", "nanosleep"}


def canonical(
    source: Source, block: Shape3, shared_bytes: int = 0, *, instrumented: bool = False
) -> Canonical:
    """Bring a kernel into canonical form for one block shape and size of dynamic shared memory.

    `instrumented` leaves no access in a device function.

    Raises:
        UnsupportedKernel: a construct has no meaning on the CPU, or not yet.
    """
    flat = flatten(source, every_call=instrumented)
    draft = _Draft(flat, block, shared_bytes, instrumented)
    rewriter = _Rewriter(draft)
    body = [new for statement in draft.source.tree.body for new in rewriter.statements(statement)]
    parameters, copies = _with_own_arguments(draft, body)
    body = without_tuples(draft.names, [*copies, *body])
    body = without_rows(draft.names, draft.arrays, body)
    body = with_sizes(draft.arrays, body)
    name_each(draft.names, body)
    body = _with_shared_meetings(draft.sent, body)
    body = joined(body, ndims(draft.arrays))
    body = [ast.fix_missing_locations(statement) for statement in body]
    check_local(draft.source, draft.arrays, body)
    return Canonical(
        draft.source, parameters, body, draft.arrays, block, frozenset(draft.names),
        frozenset(draft.sent), shared_bytes, instrumented,
    )  # fmt: skip


class _Draft:
    """What the parts of this step gather."""

    def __init__(
        self, source: Source, block: Shape3, shared_bytes: int, instrumented: bool
    ) -> None:
        self.source, self.block, self.shared_bytes = source, block, shared_bytes
        self.instrumented = instrumented
        self.parameters = [*source.parameters, *sorted(source.arrays)]
        self.names = Names(names_in(source.tree) | set(source.parameters))
        self.arrays: dict[str, Array] = {}
        self.sent: set[str] = set()

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
            ] if variable in sent and called_name(meet.value) == "meet":
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
    reads_memory = any(isinstance(n, ast.Subscript | ast.Attribute) for n in nodes(value))
    return not reads_memory and names.isdisjoint(names_in(value))


class _Rewriter(Transformer):
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
                    return self.sync_warp(node.value)
                case [called] if called in FENCES:
                    return None
        return self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Assert(self, node: ast.Assert) -> ast.Assert | None:
        return node if self.draft.instrumented else None  # else nobody hears of it

    def visit_If(self, node: ast.If) -> ast.AST:
        return self.with_body(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        if not isinstance(node.target, ast.Name) or called_name(node.iter) != "range":
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

    def sync_warp(self, node: ast.Call) -> list[ast.stmt]:
        """`cuda.syncwarp(mask)`: only who watches asks for the mask."""
        if not self.draft.instrumented:
            return [ast.Expr(call("syncwarp"))]
        members = [*node.args, *(k.value for k in node.keywords), ast.Constant(EVERYONE)][0]
        send, sent = self.send(members)
        return [send, ast.Expr(call("syncwarp", sent))]

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
        values, text = self.draft.source.values, copied(size)
        names = [node for node in nodes(text) if isinstance(node, ast.Name)]
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
                return tuple_of(ast.Call(kind, [self.visit(n)], []) for n in node.args)
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
        return places[0] if count == 1 else tuple_of(places)

    def atomic(self, function: str, node: ast.Call) -> ast.expr:
        array = node.args[0] if node.args else None
        if isinstance(array, ast.Name) and self.draft.arrays.get(array.id, NONE).space == "local":
            self.draft.refuse(node, f"an atomic operation on local array {array.id!r} is of no use",
                             "No other thread sees it: use a plain assignment")  # fmt: skip
        return call(function, *map(self.visit, node.args))

"""Step 2: make one function of a kernel and its device functions, with one effect a statement.

Three things must stand alone in a statement, because a block's program may be cut there: barriers,
warp operations, and calls of device functions that hold such things. So

    total += reduce(cuda.shfl_down_sync(mask, x, 1))

becomes a warp operation into a name of its own, the body of `reduce` with its variables renamed,
and `total += reduce_result`. What the same expression evaluates before an operation is evaluated
before it still. Device functions that only compute stay calls: Numba compiles and inlines those.

`return` goes as well: it becomes an `if` around what it would skip, and inside loops a flag and a
`break`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from .paths import indices_of
from .source import Source
from .trees import (
    Names,
    Substitute,
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
    stores,
    target,
    walk,
)

# What a lane takes from what the others left: the name in CUDA, and in `runtime.warps`.
WARP_OPERATIONS = {
    "shfl_sync": "warp_from", "shfl_up_sync": "warp_up", "shfl_down_sync": "warp_down",
    "shfl_xor_sync": "warp_xor", "all_sync": "warp_all", "any_sync": "warp_any",
    "eq_sync": "warp_eq", "ballot_sync": "warp_ballot", "match_any_sync": "warp_match_any",
    "match_all_sync": "warp_match_all",
}  # fmt: skip
BLOCK_VOTES = {
    "syncthreads_count": "block_count", "syncthreads_and": "block_and",
    "syncthreads_or": "block_or",
}  # fmt: skip
# Operations of CUDA that involve other threads and have a value.
TOGETHER = {*WARP_OPERATIONS, *BLOCK_VOTES, "activemask"}
SHORT = 12  # nodes of a sum that is made again rather than kept


def cuda_path(node: ast.AST, cuda_names: set[str]) -> list[str]:
    """`cuda.threadIdx.x` as ["threadIdx", "x"]; [] when it is something else."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    return path if isinstance(node, ast.Name) and node.id in cuda_names else []


def flatten(source: Source, *, every_call: bool = False) -> Source:
    """Return a kernel whose device functions only compute, and whose effects stand alone.

    `every_call` puts the device functions that only compute in place of their calls as well.
    """
    tree = copied(source.tree)
    names = Names(names_in(tree) | {*source.parameters})
    flat = replace(
        source, tree=tree, constants=dict(source.constants), values=dict(source.values),
        arrays=dict(source.arrays), device_functions=dict(source.device_functions),
        cuda_names=set(source.cuda_names),
    )  # fmt: skip
    flattener = _Flattener(flat, names, every_call)
    tree.body = flattener.without_returns(flattener.body(tree.body, flat), None)
    used = names_in(tree)
    ast.fix_missing_locations(tree)
    functions = {n: f for n, f in flat.device_functions.items() if n in used}
    return replace(flat, device_functions=functions)


def _declared(function: Source, space: str) -> dict[str, int]:
    """A function's shared or local arrays, and how many dimensions they have."""
    found: dict[str, int] = {}
    for node in nodes(function.tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if cuda_path(
                call.func, function.cuda_names
            ) == [space, "array"]:
                shapes = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "shape")]
                found[name] = max((_length(function, shape) for shape in shapes), default=1)
    return found


def _length(function: Source, shape: ast.expr) -> int:
    """How many numbers a shape has."""
    known = function.values.get(shape.id) if isinstance(shape, ast.Name) else None
    sizes = shape.elts if isinstance(shape, ast.Tuple) else known
    return len(sizes) if isinstance(sizes, list | tuple) else 1


def _is_part_of_its_kernel(function: Source) -> bool:
    """Whether a device function uses CUDA, or arrays from outside, itself or in what it calls."""
    inner = function.device_functions.values()
    return bool(function.cuda_names or function.arrays or any(map(_is_part_of_its_kernel, inner)))


class _Flattener:
    def __init__(self, flat: Source, names: Names, every_call: bool) -> None:
        self.flat = flat
        self.names = names
        self.fresh = names.fresh
        self.every_call = every_call
        self.shared: dict[tuple[int, str], str] = {}  # a function's shared arrays exist once
        self.local = _declared(flat, "local")  # and rows of them, with their dimensions

    # Statements

    def body(self, statements: list[ast.stmt], function: Source) -> list[ast.stmt]:
        """Flatten a list of statements of a function."""
        return [new for statement in statements for new in self.statement(statement, function)]

    def statement(self, statement: ast.stmt, function: Source) -> list[ast.stmt]:
        scope = _Scope(self, function)
        new = scope.statement(statement)
        for made in [*scope.before, *new]:
            located(made, statement)
        return [*scope.before, *new]

    # Device functions

    def expand(self, callee: Source, call: ast.Call, caller: Source, result: str) -> list[ast.stmt]:
        """The body of a device function in place of its call; its value goes to `result`."""
        given = _bind(caller, callee, call)
        tree = copied(callee.tree)
        body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
        stored, indices = stores(body), _in_indices(body)
        renamed: dict[str, ast.expr] = {}
        before: list[ast.stmt] = []
        for parameter, argument in given.items():
            alone = isinstance(argument, ast.Name) or self.is_outside(argument)
            alone = alone or _is_constant(argument)
            sums = parameter in indices and _is_short_sum(argument, result)
            if parameter not in stored and (alone or sums):
                renamed[parameter] = argument
            else:
                own = self.fresh(f"{parameter}_in_{callee.name}")
                self.remember(own, argument)
                before.append(assign(own, argument))
                renamed[parameter] = name(own)
        own_names = self.rename(callee, stored.keys() - given.keys()) | self.take_over(callee)
        renamed |= {old: name(new) for old, new in own_names.items()}
        substitute = Substitute(renamed)
        body = [substitute.visit(statement) for statement in body]
        tree.body = body
        inner = Source(
            callee.name, callee.filename, callee.first_line, tree, callee.role,
            device_functions=self.flat.device_functions, cuda_names=self.flat.cuda_names,
        )  # fmt: skip
        body, gives = self.body(body, inner), _gives_a_value(callee.tree)
        if gives and _asks_for_none(caller.tree):
            _say_none(body)
        return [*before, *self.without_returns(body, result if gives else None)]

    def is_outside(self, node: ast.AST) -> bool:
        """Whether it is a device function, or what has a dot: `cuda.atomic.add`, `math.sin`."""
        match node:
            case ast.Name(id=identifier):
                return identifier in self.flat.device_functions
            case ast.Attribute(value=ast.Name(id=module)) if module in self.flat.constants:
                return True
        return bool(cuda_path(node, self.flat.cuda_names))

    def rename(self, callee: Source, stored: Iterable[str]) -> dict[str, str]:
        """Names of this call's own for a device function's variables; shared arrays keep theirs."""
        renamed = {}
        shared, local = _declared(callee, "shared"), _declared(callee, "local")
        for variable in sorted(stored):
            key = (id(callee.tree), variable)
            renamed[variable] = self.shared.get(key) or self.fresh(variable)
            if variable in shared:
                self.shared[key] = renamed[variable]
            if variable in local:
                self.local[renamed[variable]] = local[variable]
        return renamed

    def remember(self, name: str, value: ast.expr) -> None:
        """A name for a row of a local array counts as one."""
        indices = 0
        if isinstance(value, ast.Subscript):
            indices, value = len(indices_of(value)), value.value
        left = self.local.get(value.id, 0) - indices if isinstance(value, ast.Name) else 0
        if left > 0:
            self.local[name] = left

    def take_over(self, callee: Source) -> dict[str, str]:
        """Give the kernel what a device function takes from outside; return old -> new names."""
        renamed: dict[str, str] = {}
        flat = self.flat
        for table in ("constants", "device_functions", "arrays"):
            theirs, ours = getattr(callee, table), getattr(flat, table)
            for old, value in theirs.items():
                same = ours.get(old) == value if table == "constants" else ours.get(old) is value
                if not same:
                    renamed[old] = self.fresh(old)
                    ours[renamed[old]] = value
                if old in callee.values:
                    flat.values[renamed.get(old, old)] = callee.values[old]
        for old in callee.cuda_names - flat.cuda_names:
            renamed[old] = self.fresh(old)
            flat.cuda_names.add(renamed[old])
        return renamed

    # Returns

    def without_returns(self, body: list[ast.stmt], result: str | None) -> list[ast.stmt]:
        """Replace each `return value` by `result = value` and a way around what follows."""
        returns = _Returns(self, result)
        body = returns.convert(body, in_loop=False)
        if not returns.asked:
            return _without_assignments(body, returns.left)
        return [located(assign(returns.left, ast.Constant(False)), body[0]), *body]


class _Scope:
    """The statements that one statement becomes."""

    def __init__(self, flattener: _Flattener, function: Source) -> None:
        self.flattener = flattener
        self.function = function
        self.before: list[ast.stmt] = []

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        inner = self.inner
        self.settle(statement)
        match statement:
            case ast.AnnAssign(value=None):
                return []
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return self.statement(located(ast.Assign([target], value), statement))
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call() as call) if self.callee(
                call
            ):
                return self.call(call, target)
            case ast.Assign(targets=[target], value=value):
                self.operands(statement, ["value", "targets"])
                if isinstance(target, ast.Name):
                    self.flattener.remember(target.id, value)
            case ast.Assign(targets=targets, value=value):
                kept = self.keep(self.expression(value))
                return [ast.Assign([target], kept) for target in targets]
            case ast.AugAssign(target=target, op=op, value=value):
                self.operands(target, target._fields, then=[value])
                if self.has_effect(value):
                    old = target if isinstance(target, ast.Name) else self.keep(_loaded(target))
                    value = ast.BinOp(_loaded(old), op, self.expression(value))
                    return [ast.Assign([target], value)]
                statement.value = self.expression(value)
            case ast.Expr(value=ast.Call() as call) if self.callee(call):
                unused = self.flattener.fresh(f"{_text(call.func)}_result")
                return self.call(call, unused, used=False)
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                statement.value = self.expression(value)
            case ast.If(test=test, body=body, orelse=orelse):
                statement.test = self.expression(test)
                statement.body, statement.orelse = inner(body), inner(orelse)
            case ast.While() | ast.For():
                return self.loop(statement)
        return [statement]

    def settle(self, statement: ast.stmt) -> None:
        """Take an atomic out of the index of what is assigned, which may be needed twice."""
        match statement:
            case ast.Assign(targets=[target], value=value):
                first = [value]
            case ast.AugAssign(target=target):
                first = []
            case _:
                return
        for node in nodes(target):
            if isinstance(node, ast.Subscript) and any(map(self.is_atomic, nodes(node.slice))):
                if any(map(self.depends_on_memory, first)):
                    statement.value = self.keep(self.expression(first.pop()))
                node.slice = self.keep(self.expression(node.slice))

    def is_atomic(self, node: ast.AST) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        return called is not None and cuda_path(called, self.function.cuda_names)[:1] == ["atomic"]

    def loop(self, loop: ast.While | ast.For) -> list[ast.stmt]:
        """A loop over numbers or while a condition without effects holds, and without an `else`."""
        match loop:
            case ast.While(test=test, body=body) if self.has_effect(test):
                again = ast.If(negated(test), [ast.Break()], [])
                endless = ast.While(ast.Constant(True), [again, *body], loop.orelse)
                if loop.orelse:  # that `break` is the loop's natural end
                    return self.without_else(located(endless, loop), 1)
                return self.statement(located(endless, loop))
            case ast.While(test=test):
                loop.test = self.expression(test)
            case ast.For(iter=iterator):
                if _is_walked(iterator):
                    return self.over(loop)
                loop.iter = self.expression(iterator)
        if loop.orelse:
            return self.without_else(loop)
        loop.body = self.inner(loop.body)
        return [loop]

    def over(self, loop: ast.For) -> list[ast.stmt]:
        """`for item in items:` as a loop over the numbers of the items."""
        number = self.flattener.fresh("number")
        counts, item = self.walked(loop.iter, number, loop)
        count = counts[0] if len(counts) == 1 else call("min", *counts)
        body = [ast.Assign([loop.target], item), *loop.body]
        counted = ast.For(target(number), call("range", count), body, loop.orelse)
        return self.statement(located(counted, loop))

    def walked(
        self, iterator: ast.expr, number: str, loop: ast.For
    ) -> tuple[list[ast.expr], ast.expr]:
        """How many items there are, of each thing walked along in step; and the item of a number.

        What is walked along is what it was before the loop.
        """
        turn = name(number)
        match iterator:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *first]):
                counts, item = self.walked(inner, number, loop)
                start = self.once(first[0], loop) if first else ast.Constant(0)
                return counts, ast.Tuple([ast.BinOp(start, ast.Add(), turn), item], ast.Load())
            case ast.Call(func=ast.Name(id="zip"), args=inner):
                parts = [self.walked(each, number, loop) for each in inner]
                counts = [count for several, _ in parts for count in several]
                return counts, ast.Tuple([item for _, item in parts], ast.Load())
            case ast.Call(func=ast.Name(id="range"), args=given):
                low, stop, *_ = given if len(given) > 1 else [ast.Constant(0), *given]
                start, step = self.once(low, loop), _step(iterator)
                far = ast.BinOp(self.once(stop, loop), ast.Sub(), copied(start))
                if step == 1:
                    return [far], ast.BinOp(start, ast.Add(), turn)
                over = ast.BinOp(far, ast.Add(), ast.Constant(step - (1 if step > 0 else -1)))
                walk = ast.BinOp(turn, ast.Mult(), ast.Constant(step))
                far = ast.BinOp(over, ast.FloorDiv(), ast.Constant(step))
                return [far], ast.BinOp(start, ast.Add(), walk)
            case ast.Tuple(elts=items):
                kept = ast.Tuple([self.once(each, loop) for each in items], ast.Load())
                return [ast.Constant(len(items))], ast.Subscript(kept, turn, ast.Load())
        array = self.once(iterator, loop)
        return [call("len", copied(array))], ast.Subscript(array, turn, ast.Load())

    def once(self, value: ast.expr, loop: ast.For) -> ast.expr:
        """An expression as it is before a loop, which may change it."""
        plain = ast.Name | ast.Constant | ast.Tuple | ast.UnaryOp | ast.USub
        own, parts = stores([loop]), list(nodes(value))
        changes = any(isinstance(part, ast.Name) and part.id in own for part in parts)
        if changes or not all(isinstance(part, plain) for part in parts):
            return self.keep(self.expression(value))
        return value

    def inner(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return self.flattener.body(body, self.function)

    def without_else(self, loop: ast.For | ast.While, first: int = 0) -> list[ast.stmt]:
        """A loop's `else`, which a `break` from the `first` statement on skips, as an `if`."""
        ended = self.flattener.fresh("ended")
        otherwise, loop.orelse = loop.orelse, []
        before, body = loop.body[:first], loop.body[first:]
        flag_breaks(body, ended)
        loop.body = self.inner([*before, *body])
        start = assign(ended, ast.Constant(True))
        return [start, loop, ast.If(name(ended), self.inner(otherwise), [])]

    # Expressions

    def callee(self, call: ast.AST) -> Source | None:
        """The device function that a call is to be replaced by, if it is."""
        called = call.func if isinstance(call, ast.Call) else None
        if not isinstance(called, ast.Name):
            return None
        function = self.function.device_functions.get(called.id)
        if function is None:
            return None
        assert isinstance(call, ast.Call)
        passes = names_in(call) & self.flattener.local.keys()
        gets = any(map(self.flattener.is_outside, call.args))
        must = bool(passes) or gets or _is_part_of_its_kernel(function)
        if function.itself and must:
            raise self.function.refuse(
                call, f"{called.id!r} calls itself, and uses CUDA, a function or a local array",
                "Let it compute with numbers, or write a loop",
            )  # fmt: skip
        splice = self.flattener.every_call and not function.itself
        return function if must or splice else None

    def is_effect(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        path = cuda_path(node.func, self.function.cuda_names)
        return bool(self.callee(node)) or (len(path) == 1 and path[0] in TOGETHER)

    def has_effect(self, node: ast.AST) -> bool:
        return any(map(self.is_effect, nodes(node)))

    def keep(self, value: ast.expr) -> ast.expr:
        """Evaluate an expression now; return the name that has its value."""
        kept = self.flattener.fresh("kept")
        self.before.append(assign(kept, value))
        return name(kept)

    def call(self, call: ast.Call, result: str, *, used: bool = True) -> list[ast.stmt]:
        """A device function's body in place of its call."""
        callee = self.callee(call)
        assert callee is not None
        if used and not _gives_a_value(callee.tree):
            raise self.function.refuse(
                call,
                f"{callee.name!r} returns nothing, but its value is used",
                "End it with `return` and a value, or call it on a line of its own",
            )
        self.operands(call, ["args", "keywords"])
        return self.flattener.expand(callee, call, self.function, result)

    def expression(self, node: ast.expr) -> ast.expr:
        """The expression without its effects, which go before the statement."""
        if isinstance(node, ast.Call):
            self.positional(node)
        if not self.has_effect(node):
            for inner in nodes(node):
                if isinstance(inner, ast.Call):
                    self.positional(inner)
            return node
        match node:
            case ast.BoolOp(op=op, values=[first, *rest]):
                return self.short_circuit(op, first, rest)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.branch(self.expression(test), body, orelse)
            case ast.Compare(comparators=[_, *rest]) if any(map(self.has_effect, rest)):
                return self.chain(node)
            case ast.Call() if self.callee(node):
                result = self.flattener.fresh(f"{_text(node.func)}_result")
                self.before += self.call(node, result)
                return name(result)
        plain = isinstance(node, ast.Call) and not self.has_effect(node.func)
        self.operands(node, [field for field in node._fields if field != "func" or not plain])
        return self.keep(node) if self.is_effect(node) else node

    def operands(self, node: ast.AST, fields: Iterable[str], then: Iterable[ast.expr] = ()) -> None:
        """Flatten the operands, in the order of evaluation; `then` is what comes after them."""
        places = [place for field in fields for place in _places(node, field)]
        for number, (holder, key, operand) in enumerate(places):
            after = [*(other for _, _, other in places[number + 1 :]), *then]
            later = any(map(self.has_effect, after))
            new = self.expression(operand)
            kept = self.keep(new) if later and self.depends_on_memory(new) else new
            if isinstance(holder, list):
                holder[int(key)] = kept
            else:
                setattr(holder, str(key), kept)

    def depends_on_memory(self, node: ast.expr) -> bool:
        """Whether an effect may change the value of an expression, or it has one of its own."""
        for inner in nodes(node):
            path = cuda_path(getattr(inner, "func", inner), self.function.cuda_names)
            if self.is_atomic(inner) or (
                isinstance(inner, ast.Subscript | ast.Attribute | ast.Call) and not path
            ):
                return True
        return False

    def chain(self, node: ast.Compare) -> ast.expr:
        """`a < b < c` whose c has an effect: `a < b and b < c`, with b evaluated once."""
        (first, *others), (_, *rest) = node.ops, node.comparators
        pair = ast.Compare(node.left, [first], node.comparators[:1])
        self.operands(pair, ["left", "comparators"])
        pair.comparators = [self.keep(pair.comparators[0])]
        return self.expression(
            ast.BoolOp(ast.And(), [pair, ast.Compare(pair.comparators[0], others, rest)])
        )

    def short_circuit(self, op: ast.boolop, first: ast.expr, rest: list[ast.expr]) -> ast.expr:
        """`a and b` whose b has an effect: b's effect happens only where a is true."""
        last = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        kept = self.keep(self.expression(first))
        assert isinstance(kept, ast.Name)
        test = kept if isinstance(op, ast.And) else negated(kept)
        self.before.append(ast.If(test, self.inner([assign(kept.id, last)]), []))
        return name(kept.id)

    def branch(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> ast.expr:
        kept = self.flattener.fresh("kept")
        then, otherwise = (self.inner([assign(kept, value)]) for value in (body, orelse))
        self.before.append(ast.If(test, then, otherwise))
        return name(kept)

    def positional(self, call: ast.Call) -> None:
        """Put keyword and default arguments of a device function in their places."""
        called = call.func
        callee = (
            self.function.device_functions.get(called.id) if isinstance(called, ast.Name) else None
        )
        if callee is not None and (call.keywords or len(call.args) != len(callee.parameters)):
            call.args = list(_bind(self.function, callee, call).values())
            call.keywords = []


def _places(node: ast.AST, field: str) -> Iterator[tuple[Any, str | int, ast.expr]]:
    """Where the operands in a field of a node are: what holds each, under which name or number."""
    value = getattr(node, field)
    if isinstance(value, ast.expr):
        yield node, field, value
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, ast.keyword):
            yield item, "value", item.value
        elif isinstance(item, ast.expr):
            yield value, number, item


def _is_walked(node: ast.expr) -> bool:
    """Whether a loop over it is one over numbers of items; of a `range` alone it is one already."""
    match node:
        case ast.Call(func=ast.Name(id="enumerate"), args=[walked] | [walked, _], keywords=[]):
            return _is_walked(walked) or _step(walked) != 0
        case ast.Call(func=ast.Name(id="zip"), args=[_, *_] as several, keywords=[]):
            return all(_is_walked(each) or _step(each) != 0 for each in several)
        case ast.Name() | ast.Tuple() | ast.Attribute() | ast.Subscript(value=ast.Name()):
            return True
    return False


def _step(node: ast.expr) -> int:
    """The step of a `range`, if that is a constant; else 0."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[_] | [_, _]):
            return 1
        case ast.Call(func=ast.Name(id="range"), args=[_, _, ast.Constant(int(step))]):
            return step
        case ast.Call(
            func=ast.Name(id="range"), args=[_, _, ast.UnaryOp(ast.USub(), ast.Constant(int(back)))]
        ):
            return -back
    return 0


class _Returns:
    """Take the returns out of a function's body."""

    def __init__(self, flattener: _Flattener, result: str | None) -> None:
        self.flattener = flattener
        self.result = result
        self.left = flattener.fresh("left")  # the flag
        self.asked = False  # does anything ask for it?

    def convert(self, body: list[ast.stmt], *, in_loop: bool) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for index, statement in enumerate(body):
            if isinstance(statement, ast.Return):
                return new + self.leave(statement, in_loop)
            if not _contains_return(statement):
                new.append(statement)
                continue
            rest = body[index + 1 :]
            if isinstance(statement, ast.If):
                test, then, otherwise = statement.test, statement.body, statement.orelse
                if not in_loop and (_always_returns(then) or _always_returns(otherwise)):
                    if _always_returns(then):
                        otherwise = [*otherwise, *rest]
                    else:
                        then = [*then, *rest]
                    then, otherwise = (self.convert(b, in_loop=False) for b in (then, otherwise))
                    return [*new, located(_if(test, then, otherwise), statement)]
                then, otherwise = (self.convert(b, in_loop=in_loop) for b in (then, otherwise))
                new.append(located(_if(test, then, otherwise), statement))
                if in_loop:  # a `break` has left already
                    continue
            elif isinstance(statement, ast.For | ast.While):
                statement.body = self.convert(statement.body, in_loop=True)
                new.append(statement)
                if in_loop:
                    new.append(located(ast.If(self.flag(), [ast.Break()], []), statement))
                    continue
            if rest:
                inner = self.convert(rest, in_loop=False) or [ast.Pass()]
                new.append(located(ast.If(negated(self.flag()), inner, []), rest[0]))
            return new
        return new

    def flag(self) -> ast.expr:
        self.asked = True
        return name(self.left)

    def leave(self, statement: ast.Return, in_loop: bool) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        value = statement.value
        if not _is_none(value) and self.result is None:
            raise self.flattener.flat.refuse(
                statement, "a kernel returns a value", "Write it to an array argument"
            )
        if value is not None and self.result is not None:
            new.append(assign(self.result, value))
        new.append(assign(self.left, ast.Constant(True)))
        if in_loop:
            new.append(ast.Break())
        return [located(part, statement) for part in new]


def _if(test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt]) -> ast.If:
    if not then:
        return ast.If(negated(test), otherwise or [ast.Pass()], [])
    return ast.If(test, then, otherwise)


def _without_assignments(body: list[ast.stmt], variable: str) -> list[ast.stmt]:
    """Statements without the assignments to a variable that nothing reads."""
    new: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)]) if target == variable:
                continue
            case ast.If(test=test, body=then, orelse=otherwise):
                then, otherwise = (_without_assignments(b, variable) for b in (then, otherwise))
                statement = located(_if(test, then, otherwise), statement)
            case ast.For(body=inner) | ast.While(body=inner):
                statement.body = _without_assignments(inner, variable)
        new.append(statement)
    return new


def _contains_return(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Return) for inner in nodes(node))


def _gives_a_value(function: ast.FunctionDef) -> bool:
    returns = [node for node in nodes(function) if isinstance(node, ast.Return)]
    return not all(_is_none(node.value) for node in returns)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _asks_for_none(function: ast.FunctionDef) -> bool:
    """Whether something is compared with None; elsewhere nothing can be done with it."""
    sides = (n.comparators for n in nodes(function) if isinstance(n, ast.Compare))
    return any(_is_none(side) for others in sides for side in others)


def _say_none(body: list[ast.stmt]) -> None:
    """Write `return None` where a function that gives a value elsewhere does so without a word."""
    for node in walk(body):
        if isinstance(node, ast.Return) and node.value is None:
            node.value = ast.copy_location(ast.Constant(None), node)
    if _has_an_end(body):
        body.append(located(ast.Return(ast.Constant(None)), body[-1]))


def _has_an_end(body: list[ast.stmt]) -> bool:
    """Whether a thread may come to the end of a function's body without a `return`."""
    match body:
        case [*_, ast.Return() | ast.Raise()]:
            return False
        case [*_, ast.If(body=then, orelse=otherwise)]:
            return _has_an_end(then) or _has_an_end(otherwise)
        case [*_, ast.While(test=ast.Constant(value=always), body=inner)] if always:
            return any(isinstance(node, ast.Break) for node in walk(inner))
    return True


def _always_returns(body: list[ast.stmt]) -> bool:
    """Whether a list of statements surely ends with a `return`, and has none in a loop."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, ast.Return)


def _bind(caller: Source, callee: Source, call: ast.Call) -> dict[str, ast.expr]:
    """Each argument of a device function, by name.

    Raises:
        UnsupportedKernel: there are too many, too few, or unknown ones.
    """
    names = [callee.originals.get(name, name) for name in callee.parameters]
    given = dict(zip(names, call.args, strict=False))
    keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
    defaults = {
        callee.originals.get(name, name): _default(callee, value)
        for name, value in callee.defaults.items()
    }
    wrong = set(keywords) - set(names) or set(keywords) & set(given)
    bound = defaults | given | keywords
    if wrong or len(call.args) > len(names) or set(bound) != set(names):
        raise caller.refuse(
            call,
            f"{callee.name!r} takes the arguments ({', '.join(names)}), but is called as "
            f"`{ast.unparse(call)}`",
            "Give each argument once",
        )
    return dict(zip(callee.parameters, (bound[name] for name in names), strict=True))


def _is_constant(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Constant) for part in parts)


def _in_indices(body: list[ast.stmt]) -> set[str]:
    """The names that are part of an index: whole numbers."""
    return {*named(node.slice for node in walk(body) if isinstance(node, ast.Subscript))}


def _is_short_sum(argument: ast.expr, result: str) -> bool:
    """Whether an argument can be made again wherever its parameter stands."""
    plain = ast.Name | ast.Constant | ast.BinOp | ast.Add | ast.Sub | ast.Mult | ast.Load
    nodes = list(ast.walk(argument))
    short = all(isinstance(node, plain) for node in nodes) and len(nodes) <= SHORT
    return short and result not in names_in(argument)


def _default(callee: Source, value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.Constant | ast.UnaryOp):
        raise callee.refuse(value, "a default value is not a number", "Pass it in the call")
    return copied(value)


def _loaded(node: ast.expr) -> ast.expr:
    loaded = copied(node)
    loaded.ctx = ast.Load()  # type: ignore[attr-defined]
    return loaded


def _text(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else "call"

"""Step 6: cut a block's program into lane regions, and find what lives across the cuts.

The result is a small tree:

    Lanes      statements that every thread runs, one thread after the other: `for thread in ...`
    Scalar     a statement on uniform values: run once for the block
    Loop       a loop at block level, with a tree of its own inside
    Branch     an `if` at block level
    Barrier    `cuda.syncthreads()`: nothing but a cut between two `Lanes`; when the first has run
               for all threads, every thread has reached the barrier. Under a mask it asks first
               whether all threads are here
    Meeting    `cuda.syncwarp()` and what stands between the halves of a warp operation: a cut
    Strip      a stretch without barriers, run for one row of threads after the other

Loops at block level cut as well, which puts the loop over the threads innermost, where it becomes
SIMD code. The threads of a two-dimensional block go through each stretch row by row (threadIdx.x
runs along a row): what a row works on is small enough to stay in registers.

A varying `if` that contains a loop at block level or a cut is taken apart: its condition becomes a
*mask* that guards each region inside it. So is a loop that threads leave at different times, if it
contains a cut: it runs until no thread is left in it, and `break` and `continue` clear masks.

What lives across a cut is either *recomputed* in each region (an index such as `row = block_x * 64
+ thread_x`, made of values that do not change) or kept in a *slot*: an array with one element per
thread.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .form import (
    OF_A_WARP,
    Canonical,
    Whole,
    called_name,
    is_barrier,
    is_meeting,
    looks_at_others,
    orders_a_warp,
    whole,
)
from .trees import Names, assign, call, name, named, negated, nodes, parse, stores
from .trees import target as stored
from .uniformity import (
    THREADS,
    UNIFORM_ATTRIBUTES,
    Uniformity,
    exposed,
    has_meeting,
    own_jumps,
    range_arguments,
    reads,
    reads_memory,
    sum_of,
)

CHEAP_CALLS = {"min", "max", "abs", "int"}
CHEAP_SIZE = 32


@dataclass(frozen=True, eq=False)
class Lanes:
    """Statements that every thread runs (those whose mask is set)."""

    body: list[ast.stmt]
    mask: str | None = None


@dataclass(frozen=True, eq=False)
class Scalar:
    """A statement on uniform values."""

    statement: ast.stmt


@dataclass(frozen=True, eq=False)
class Loop:
    """A `for` or `while` that all threads walk in step."""

    header: ast.For | ast.While
    body: list[Node]
    is_counted: bool = False  # a `for` that is written as a `while`


@dataclass(frozen=True, eq=False)
class Branch:
    """An `if` that all threads decide alike."""

    test: ast.expr
    body: list[Node]
    orelse: list[Node]


@dataclass(frozen=True, eq=False)
class Barrier:
    """A point that all threads reach before any goes on; `mask` says who is known to reach it."""

    statement: ast.stmt
    mask: str | None = None


@dataclass(frozen=True, eq=False)
class Meeting:
    """A point that all threads of a warp that are here reach before any goes on.

    Only `cuda.syncwarp()`, which is kept where somebody watches, orders what they do in memory;
    any other is a cut, no more.
    """

    mask: str | None = None
    syncwarp: ast.Call | None = None


@dataclass(frozen=True, eq=False)
class Strip:
    """Regions between two barriers, run for each row of threads in turn."""

    body: list[Node]


Node = Lanes | Scalar | Loop | Branch | Barrier | Meeting | Strip


@dataclass(frozen=True)
class Regions:
    """The tree, and what lives across its cuts."""

    uniformity: Uniformity  # of the names that the cuts brought as well
    nodes: list[Node]
    names: frozenset[str]  # all that are taken
    masks: frozenset[str]  # conditions that guard regions
    counters: frozenset[str]  # integers that count the turns of a loop under a mask
    shown: frozenset[str]  # variables that other threads look at
    recomputed: Mapping[str, ast.expr]
    conditions: Mapping[str, ast.expr]  # the same, and masks that are kept for others to look at
    slots: frozenset[str]
    row_slots: frozenset[str]  # slots that a row of threads can share

    @property
    def form(self) -> Canonical:
        """The kernel."""
        return self.uniformity.form

    def without_dead_definitions(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a region without definitions that only other regions use."""
        kept: list[ast.stmt] = []
        used: set[str] = set()
        for statement in reversed(body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)]) if (
                    target in self.recomputed and target not in used
                ):
                    continue
            used |= reads(statement)
            kept.insert(0, statement)
        return kept


def cut(uniformity: Uniformity, *, each_alone: bool = False) -> Regions:
    """Cut a kernel into regions; `each_alone` lets all threads finish one before the next."""
    cutter = _Cutter(uniformity)
    nodes = cutter.cut(uniformity.form.body, None)
    uniformity, shown = cutter.uniform, frozenset(cutter.shown)
    recomputed = _recomputed(nodes, uniformity, shown)
    masks = {n: e for n, e in uniformity.definitions.items() if n in cutter.masks and is_cheap(e)}
    crossing = set[str]().union(*map(needs, all_lanes(nodes)))
    slots = ((crossing & uniformity.varying) - recomputed.keys()) | shown
    slots -= THREADS
    nodes = _strips(nodes, each_alone)
    return Regions(
        uniformity, nodes, frozenset(cutter.names), frozenset(cutter.masks),
        frozenset(cutter.counters), shown, recomputed, _closed(masks | recomputed, uniformity),
        frozenset(slots),
        frozenset(slots - shown - _crossing_strips(nodes)),
    )  # fmt: skip


class _Cutter:
    def __init__(self, uniformity: Uniformity) -> None:
        self.form = uniformity.form
        self.uniform = uniformity
        self.names = Names(self.form.names)
        self.masks: set[str] = set()
        self.counters: set[str] = set()
        self.shown: set[str] = set(self.form.sent)
        self.numbers = itertools.count(1)
        self.loops: list[list[str]] = []  # for each loop around: the masks that its `break` clears
        self.is_last = True  # is what is being cut the end of the kernel?
        self.running: str | None = None  # the mask of those who have not ended yet, if any have

    def cut(self, body: list[ast.stmt], mask: str | None) -> list[Node]:
        """The tree of a list of statements that run under a mask."""
        nodes: list[Node] = []
        is_last = self.is_last
        for statement in body:
            self.is_last = is_last and statement is body[-1]
            self.add(nodes, statement, mask)
        self.is_last = is_last
        return nodes

    def add(self, nodes: list[Node], statement: ast.stmt, mask: str | None) -> None:
        uniform = self.uniform
        match statement:
            case ast.Expr() if is_barrier(statement):
                self.show(mask)
                nodes.append(Barrier(statement, mask))
            case ast.Expr(value=ast.Call(args=[Whole(id=sent)]) as call) if orders_a_warp(
                statement
            ):
                self.show(mask)
                self.add_arrival(nodes, call, name(sent), mask)
                nodes.append(Meeting(mask, call))
            case ast.Expr() if is_meeting(statement):
                nodes.append(Meeting(mask))
            case ast.For() | ast.While() if statement in uniform.masked_loops:
                self.add_masked(nodes, statement, mask)
            case ast.For() | ast.While() if statement in uniform.block_loops:
                loop = Loop(statement, self.inside(statement, mask, []))
                nodes += self.if_anybody(loop, mask)
            case ast.For() if statement in uniform.trip_loops:
                nodes.append(self.trips(statement, mask))
            case ast.Pass():
                pass
            case ast.If(test=test) if not (
                uniform.is_varying(test) or (mask and reads_memory(test))
            ):
                then, otherwise = (self.cut(b, mask) for b in (statement.body, statement.orelse))
                nodes.append(Branch(test, then, otherwise))
            case ast.If() if self.is_cut(statement):
                self.split(nodes, statement, mask)
            case ast.Break() | ast.Continue():
                self.add_jump(nodes, statement, mask)
            case ast.Assign(targets=[ast.Name(id=target)]) if target not in uniform.varying:
                self.add_scalar(nodes, statement, target)
            case ast.AugAssign(target=ast.Name(id=target)) if target not in uniform.varying:
                self.add_scalar(nodes, statement, target)
            case ast.Assign(value=ast.Call() as call) if looks_at_others(call):
                self.add_look(nodes, statement, call, mask)
            case _:
                self.add_lanes(nodes, [statement], mask)

    def add_jump(self, nodes: list[Node], jump: ast.stmt, mask: str | None) -> None:
        """A `break` or `continue`: from a loop under masks it clears those that it leaves."""
        if not (self.loops and self.loops[-1]):
            nodes.append(Scalar(jump))
            return
        live, *others = self.loops[-1]
        cleared = others if isinstance(jump, ast.Continue) else [live, *others]
        nodes.append(Meeting())  # the others may still look at these masks
        self.add_lanes(nodes, [_assign(m, ast.Constant(False)) for m in cleared], mask)

    def add_look(
        self, nodes: list[Node], look: ast.Assign, call: ast.Call, mask: str | None
    ) -> None:
        """Half of a warp operation; under a mask it asks the mask who takes part."""
        if self.form.instrumented and called_name(call) in OF_A_WARP:
            self.add_arrival(nodes, call, call.args[1], mask)
        if mask:
            self.show(mask)
            asks = ast.Call(call.func, [*call.args, whole(mask)], [])
            taken = ast.Assign(look.targets, ast.copy_location(asks, call))
            look = ast.copy_location(taken, look)
        self.add_lanes(nodes, [look], mask)

    def add_arrival(
        self, nodes: list[Node], at: ast.Call, members: ast.expr, mask: str | None
    ) -> None:
        """A question for who watches: are those here whom a lane names as members?

        Those who have ended need not be: if only they are not, nobody asks who is.
        """
        asks = call("warp_arrives", ast.Constant(called_name(at)), members, self.form.linear)
        if mask != self.running:
            for each in filter(None, (mask, self.running)):
                self.show(each)
                asks.args.append(whole(each))
        located = ast.copy_location(ast.Expr(ast.copy_location(asks, at)), at)
        self.add_lanes(nodes, [ast.fix_missing_locations(located)], mask)

    def show(self, mask: str | None) -> None:
        """Let other threads look at a mask."""
        if mask:
            self.shown.add(mask)

    def is_cut(self, statement: ast.stmt) -> bool:
        """Whether an `if` cannot stay in one piece."""
        uniform = self.uniform
        loops = uniform.block_loops | uniform.trip_loops | uniform.masked_loops
        clears_masks = bool(self.loops and self.loops[-1]) and own_jumps([statement])
        inside = any(inner in loops for inner in nodes(statement))
        return inside or clears_masks or has_meeting(statement)

    def inside(
        self, loop: ast.For | ast.While, mask: str | None, masks: list[str], live: str | None = None
    ) -> list[Node]:
        """The tree of a loop's body; `live` is the mask of those who are still in the loop."""
        self.loops.append(masks)
        with self.among(live):
            self.is_last = False
            nodes = self.cut(loop.body, mask)
        self.loops.pop()
        return nodes

    @contextmanager
    def among(self, mask: str | None) -> Iterator[None]:
        """What is cut is run by those in a mask; after it, or beside it, the others may end."""
        is_last, running = self.is_last, self.running
        if is_last and mask:
            self.running = mask
        yield
        self.is_last, self.running = is_last, running

    def if_anybody(self, loop: Loop, mask: str | None) -> list[Node]:
        """A loop under a mask: a `while` may never end if nobody is in it, so ask first."""
        if mask is None or isinstance(loop.header, ast.For):
            return [loop]
        self.show(mask)
        return [Meeting(), Branch(call("block_or", whole(mask)), [loop], [])]

    def add_masked(self, nodes: list[Node], loop: ast.For | ast.While, mask: str | None) -> None:
        """A loop that each thread leaves at a time of its own: walk it until all have left."""
        number = next(self.numbers)
        live, turn = (self.names.fresh(f"{word}_{number}") for word in ("live", "turn"))
        self.masks |= {live, turn}
        self.show(live)
        self.uniform = self.uniform.with_varying(live, turn)
        self.add_lanes(nodes, [_assign(live, name(mask) if mask else ast.Constant(True))], None)
        first: list[ast.stmt] = []
        if isinstance(loop, ast.While):
            test = loop.test
        else:
            before, test, first = self.counted(loop, number)
            self.add_lanes(nodes, before, mask)
        stay = ast.BoolOp(ast.And(), [name(live), test])
        body: list[Node] = [Lanes([_assign(live, stay), _assign(turn, name(live))])]
        leave = ast.If(negated(call("block_or", whole(live))), [ast.Break()], [])
        body.append(Scalar(ast.fix_missing_locations(ast.copy_location(leave, loop))))
        if first:
            body.append(Lanes(first, turn))
        body += self.inside(loop, turn, [live, turn], live)
        header = ast.copy_location(ast.While(ast.Constant(True), [], []), loop)
        nodes.append(Loop(header, body, isinstance(loop, ast.For)))

    def counted(
        self, loop: ast.For, number: int
    ) -> tuple[list[ast.stmt], ast.expr, list[ast.stmt]]:
        """A `for` as a `while`: what goes before, its test, and what each turn starts with."""
        assert isinstance(loop.target, ast.Name)
        target = loop.target.id
        at, stop, step = (
            self.names.fresh(f"{target}_{word}_{number}") for word in ("next", "stop", "step")
        )
        values = dict(zip((at, stop, step), range_arguments(loop), strict=True))
        before = [_assign(variable, value) for variable, value in values.items()]
        self.counters |= set(values)
        self.uniform = self.uniform.with_varying(*values)
        up, down = parse(f"{at} < {stop}"), parse(f"{at} > {stop}")
        positive = self.uniform.is_positive(values[step])
        test = up if positive else ast.IfExp(parse(f"{step} > 0"), up, down)
        return before, test, ast.parse(f"{target} = {at}\n{at} += {step}").body

    def add_lanes(self, nodes: list[Node], body: list[ast.stmt], mask: str | None) -> None:
        last = nodes[-1] if nodes else None
        if isinstance(last, Lanes) and last.mask == mask:
            last.body.extend(body)
        else:
            nodes.append(Lanes(list(body), mask))

    def add_scalar(self, nodes: list[Node], statement: ast.stmt, target: str) -> None:
        """Put a uniform assignment before the open region, where that changes nothing."""
        last = nodes[-1] if nodes else None
        free = isinstance(last, Lanes) and target not in named(last.body)
        nodes.insert(len(nodes) - 1 if free else len(nodes), Scalar(statement))

    def trips(self, loop: ast.For, mask: str | None) -> Loop:
        """`for j in range(start, stop, step)` whose threads start apart, in common trips."""
        assert isinstance(loop.target, ast.Name)
        target = loop.target.id
        start, stop, step = range_arguments(loop)
        parts = self.uniform.parts(start)
        assert parts is not None
        lowest, offset = map(sum_of, parts)
        first, turn = self.names.fresh(f"{target}_first"), self.names.fresh(f"has_{target}")
        self.masks.add(turn)
        own = ast.BinOp(name(first), ast.Add(), offset)
        test: ast.expr = ast.Compare(name(target), [ast.Lt()], [stop])
        header = ast.For(stored(first), call("range", lowest, stop, step), [], [])
        self.uniform = self.uniform.with_loop(header).with_definition(target, own)
        nodes: list[Node] = [Lanes([_assign(target, own)])]
        self.mask(nodes, turn, test, mask)
        nodes += self.inside(loop, turn, [], turn)
        return Loop(ast.copy_location(header, loop), nodes)

    def split(self, nodes: list[Node], statement: ast.If, mask: str | None) -> None:
        number = next(self.numbers)
        active, inactive = (self.names.fresh(f"{word}_{number}") for word in ("active", "inactive"))
        self.masks |= {active, inactive}
        self.mask(nodes, active, statement.test, mask)
        if statement.orelse:
            self.mask(nodes, inactive, negated(name(active)), mask)
        then, otherwise = statement.body, statement.orelse
        for body, own, others in (then, active, otherwise), (otherwise, inactive, then):
            if self.loops and self.loops[-1]:
                self.loops[-1].append(own)
            with self.among(None if any(map(has_meeting, others)) else own):
                nodes += self.cut(body, own)
            if self.loops and self.loops[-1]:
                self.loops[-1].pop()

    def mask(self, nodes: list[Node], mask: str, test: ast.expr, outer: str | None) -> None:
        test = ast.BoolOp(ast.And(), [name(outer), test]) if outer else test
        if any(self.loops):  # a jump may clear it
            self.uniform = self.uniform.with_varying(mask)
        else:
            self.uniform = self.uniform.with_definition(mask, test)
        self.add_lanes(nodes, [_assign(mask, test)], None)


def _assign(target: str, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(assign(target, value))


def needs(region: Lanes) -> set[str]:
    """What a region takes from outside itself."""
    return exposed(region.body, set()) | ({region.mask} if region.mask else set())


def flat(nodes: list[Node]) -> Iterator[Node]:
    """Every node of a tree."""
    for node in nodes:
        yield node
        if isinstance(node, (Loop, Strip, Branch)):
            yield from flat(node.body)
        if isinstance(node, Branch):
            yield from flat(node.orelse)


def all_lanes(nodes: list[Node]) -> Iterator[Lanes]:
    """Every lane region of a tree."""
    return (node for node in flat(nodes) if isinstance(node, Lanes))


def all_scalars(nodes: list[Node]) -> list[ast.stmt]:
    """Every statement at block level of a tree."""
    return [node.statement for node in flat(nodes) if isinstance(node, Scalar)]


def _recomputed(
    nodes: list[Node], uniformity: Uniformity, shown: frozenset[str]
) -> dict[str, ast.expr]:
    """The varying names that are made again where they are needed, and what of.

    They have one definition: a small pure expression of values that do not change.
    """
    varying = uniformity.varying - shown
    cheap = {
        n: e for n, e in uniformity.definitions.items()
        if n in varying and (is_cheap(e) or _cheap_view(e, uniformity))
    }  # fmt: skip
    recomputed = _closed(cheap, uniformity)
    while missing := _not_dominated(nodes, recomputed, frozenset()):
        kept = {n: e for n, e in recomputed.items() if n not in missing}
        recomputed = _closed(kept, uniformity)
    return recomputed


def _closed(cheap: dict[str, ast.expr], uniformity: Uniformity) -> dict[str, ast.expr]:
    """Drop names whose definition reads something that changes, until none is left."""
    known = uniformity.form.arrays.keys() | THREADS

    def stable(operand: str) -> bool:
        uniform = operand not in uniformity.varying and not uniformity.changes(operand)
        return operand in known or operand in cheap or uniform

    while True:
        keep = {n: e for n, e in cheap.items() if all(stable(operand) for operand in reads(e))}
        if len(keep) == len(cheap):
            return keep
        cheap = keep


def _cheap_view(expression: ast.expr, uniformity: Uniformity) -> bool:
    """Whether an expression is a slice or a row of an array, at indices that are cheap."""
    if not uniformity.is_view(expression) or not isinstance(expression, ast.Subscript):
        return False
    parts = [n for n in nodes(expression.slice) if not isinstance(n, ast.Slice | ast.Tuple)]
    return all(is_cheap(part) for part in parts if isinstance(part, ast.expr))


def is_cheap(expression: ast.expr) -> bool:
    """Whether a value is small and pure: made again as easily as kept."""

    def allowed(node: ast.AST) -> bool:
        match node:
            case ast.Subscript(value=ast.Attribute(attr="shape")):
                return True
            case ast.Attribute(attr=attribute):
                return attribute in UNIFORM_ATTRIBUTES
            case ast.Call(func=ast.Name(id=called)):
                return called in CHEAP_CALLS
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
                return isinstance(right, (ast.Constant, ast.Name))
            case ast.BinOp(op=ast.Div() | ast.Pow()) | ast.Subscript() | ast.Call():
                return False
        return True

    nodes = list(ast.walk(expression))
    return len(nodes) <= CHEAP_SIZE and all(allowed(node) for node in nodes)


def _not_dominated(
    nodes: list[Node], recomputed: dict[str, ast.expr], before: frozenset[str]
) -> set[str]:
    """The names that some region needs before, or outside, the place of their definition."""
    available, missing = set(before), set()
    for node in nodes:
        match node:
            case Lanes():
                missing |= (needs(node) & set(recomputed)) - available
                available |= {
                    s.targets[0].id for s in node.body
                    if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
                }  # fmt: skip
            case Loop(body=body):
                missing |= _not_dominated(body, recomputed, frozenset(available))
            case Branch(body=body, orelse=orelse):
                missing |= _not_dominated(body, recomputed, frozenset(available))
                missing |= _not_dominated(orelse, recomputed, frozenset(available))
    return missing


def _strips(nodes: list[Node], each_alone: bool) -> list[Node]:
    """Gather neighbours that a row of threads can run through on its own."""
    gathered: list[Node] = []
    for node in nodes:
        last = gathered[-1] if gathered else None
        if each_alone and isinstance(node, Lanes):
            gathered.append(Strip([node]))
        elif not each_alone and isinstance(last, Strip) and _can_be_a_strip([*last.body, node]):
            last.body.append(node)
        elif not (each_alone or isinstance(node, Scalar)) and _can_be_a_strip([node]):
            gathered.append(Strip([node]))
        elif isinstance(node, Loop):
            gathered.append(replace(node, body=_strips(node.body, each_alone)))
        elif isinstance(node, Branch):
            parts = (_strips(part, each_alone) for part in (node.body, node.orelse))
            gathered.append(Branch(node.test, *parts))
        else:
            gathered.append(node)
    return gathered


def _can_be_a_strip(nodes: list[Node]) -> bool:
    """No barrier inside, no jump out, and no uniform value that would be updated once a row."""
    body = statements(nodes)
    if any(map(has_meeting, body)):
        return False
    if own_jumps(body):
        return False
    headers = [node.header for node in flat(nodes) if isinstance(node, Loop)]
    targets = [header.target for header in headers if isinstance(header, ast.For)]
    return not exposed(body, set()) & stores([*all_scalars(nodes), *targets]).keys()


def statements(nodes: list[Node]) -> list[ast.stmt]:
    """A tree written back as plain statements, for questions about reads and writes."""
    return [statement for node in nodes for statement in _as_statements(node)]


def _as_statements(node: Node) -> list[ast.stmt]:
    match node:
        case Lanes(body=body, mask=None):
            return body
        case Lanes(body=body, mask=str(mask)):
            return [ast.If(name(mask), body, [])]
        case Scalar(statement):
            return [statement]
        case Barrier() | Meeting():
            return [ast.Expr(call("barrier"))]
        case Loop(ast.For(target=target, iter=iterator), body):
            return [ast.For(target, iterator, statements(body), [])]
        case Loop(ast.While(test=test), body):
            return [ast.While(test, statements(body), [])]
        case Branch(test, body, orelse):
            return [ast.If(test, statements(body), statements(orelse))]
        case Strip(body):
            return statements(body)
    raise AssertionError(node)


def _crossing_strips(nodes: list[Node]) -> set[str]:
    """The slots that carry a value from one strip to another, or to the next run of the same."""
    crossing: set[str] = set()
    seen: set[str] = set()
    for node in flat(nodes):
        if isinstance(node, Strip):
            body = statements(node.body)
            used = {*named(body)}
            crossing |= (used & seen) | exposed(body, set())
            seen |= used
    return crossing

"""Where values come from that a shuffle took from a lane that sent none.

On a GPU such a value is undefined. To take one is no mistake: in a sum by halves the upper lanes
do, and nobody looks at what they add up. A mistake is to let anybody see it: to write it to memory,
or to decide by it. So the checked mode keeps for each variable that may hold such a value its
*origin*: 0 if it holds numbers that were sent, else which shuffle took one from which lane.

    other = warp_down(sent, m, d, t)  other_origin = warp_origin("warp_down", sent_origin, m, d, t)
    if t + d < n:
        value = value + other         value_origin = max(value_origin, other_origin)
    out[t] = value                    warp_seen(0, value_origin)

Memory has no origins: nothing undefined comes to it. What comes to local memory is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from numba.core import types

from ..form import OF_A_WARP, Canonical, Whole, called_name, is_atomic, looks_at_others, whole
from ..trees import Names, assign, call, copied, located, name, named, names_in, nodes, walk
from ..uniformity import base_name

SHUFFLES = frozenset({"warp_from", "warp_up", "warp_down", "warp_xor"})
assert SHUFFLES < OF_A_WARP


def with_origins(form: Canonical) -> Canonical:
    """A kernel that keeps the origins of what its shuffles take."""
    tracker = _Tracker(form)
    if not tracker.sent:
        return form
    origins = tracker.origins.values()
    return replace(
        form,
        body=tracker.body(copied(form.body)),
        names=form.names | set(origins),
        sent=form.sent | {tracker.origins[each] for each in tracker.sent},
        kinds={**form.kinds, **dict.fromkeys(origins, types.int64)},
    )


class _Tracker:
    def __init__(self, form: Canonical) -> None:
        self.form = form
        self.sent = {
            sent
            for node in walk(form.body)
            if isinstance(node, ast.Call) and called_name(node) in SHUFFLES
            for sent in named(node.args[:1])
        }
        reached = set(self.sent)
        while more := set(self.reached_from(reached)) - reached:
            reached |= more
        names = Names(form.names)
        self.origins = {each: names.fresh(f"{each}_origin") for each in sorted(reached)}

    def reached_from(self, names: set[str]) -> Iterable[str]:
        """The variables that get what some others hold."""
        for node in walk(self.form.body):
            match node:
                case ast.Assign([ast.Name(id=target)], value) | ast.AugAssign(
                    ast.Name(id=target), _, value
                ) if names & names_in(value):
                    yield target

    # Expressions

    def origin(self, *values: ast.AST | None) -> ast.expr | None:
        """The origin of what comes of all these values; None where all are numbers of their own."""
        found = list(filter(None, map(self.origin_of, values)))
        return call("max", *found) if len(found) > 1 else found[0] if found else None

    def origin_of(self, value: ast.AST | None) -> ast.expr | None:
        match value:
            case None | Whole():
                return None
            case ast.Name(id=variable):
                return name(self.origins[variable]) if variable in self.origins else None
            case ast.IfExp(test, body, orelse):
                return self.chosen(test, body, orelse)
            case ast.BoolOp(op, [first, *rest]):
                later = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                ways = (later, None) if isinstance(op, ast.And) else (None, later)
                return self.chosen(first, *ways)
            case ast.Call() if looks_at_others(value) or is_atomic(value):
                return None
        return self.origin(*ast.iter_child_nodes(value))

    def chosen(self, test: ast.expr, *ways: ast.expr | None) -> ast.expr | None:
        """The origin of a choice: of the test, and of what is chosen."""
        origins = [self.origin(way) for way in ways]
        first = self.origin(test)
        if not any(origins):
            return first
        choice = ast.IfExp(copied(test), *(each or ast.Constant(0) for each in origins))
        return call("max", first, choice) if first else choice

    # Statements

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, with those that keep origins and those that ask for them."""
        return [located(n, old) for old in statements for n in self.statement(old)]

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        for part in ("body", "orelse"):
            if inner := getattr(statement, part, None):
                setattr(statement, part, self.body(inner))
        if isinstance(statement, ast.While):
            if origin := self.origin(statement.test):
                statement.test = call("warp_seen", statement.test, origin)
            return [statement]
        new = [statement]
        match statement:
            case ast.Assign(
                [ast.Name(id=target)],
                ast.Call(ast.Name(id=shuffle), [Whole(id=sent), *others]),
            ) if shuffle in SHUFFLES:
                given = ast.Constant(shuffle), whole(self.origins[sent]), *others
                return [statement, assign(self.origins[target], call("warp_origin", *given))]
            case ast.Assign([ast.Name(id=target)], value) if target in self.origins:
                new.insert(0, assign(self.origins[target], self.origin(value) or ast.Constant(0)))
            case ast.AugAssign(ast.Name(id=target) as old, _, value) if target in self.origins:
                both = self.origin(old, value)
                assert both is not None
                new.insert(0, assign(self.origins[target], both))
            case ast.For(ast.Name(id=target)) if target in self.origins:
                statement.body.insert(0, assign(self.origins[target], ast.Constant(0)))
        if origin := self.origin(*self.visible(statement)):
            new.insert(0, ast.Expr(call("warp_seen", ast.Constant(0), origin)))
        return new

    def visible(self, statement: ast.stmt) -> list[ast.expr]:
        """The expressions of which memory, other lanes or the way of the thread tell something."""
        match statement:
            case ast.If(test) | ast.Assert(test):
                return [test]
            case ast.For(iter=iterator):
                return [iterator]
        seen = [
            given
            for node in nodes(statement)
            if isinstance(node, ast.Call) and is_atomic(node)
            for given in node.args[1:]
        ]
        match statement:
            case ast.Assign([ast.Name(id=target)], value) if target in self.form.sent - self.sent:
                seen.append(value)
            case ast.Assign([ast.Subscript() | ast.Attribute() as target], value) | ast.AugAssign(
                ast.Subscript() | ast.Attribute() as target, _, value
            ) if not self.is_local(target):
                seen += [target, value]
        return seen

    def is_local(self, target: ast.expr) -> bool:
        """Whether an element is that of a local array."""
        array = self.form.arrays.get(base_name(target) or "")
        return array is not None and array.space == "local"

"""Part of step 8: two stores to one element, the second under a condition, become one.

`tile[i] = 0; if test: tile[i] = x[j]` is written as `tile[i] = x[j] if test else 0`. A store under
a mask takes some processors twenty times as long as one of a whole vector.
"""

from __future__ import annotations

import ast

from numba.core import types

from .form import Canonical
from .paths import indices_of
from .source import dtype_text
from .trees import names_in, nodes, parse, stores
from .uniformity import base_name, written_in


def stored_once(body: list[ast.stmt], form: Canonical) -> list[ast.stmt]:
    """Statements of which some pairs of stores are one; between them may stand others."""
    new: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.If(test, [ast.Assign([ast.Subscript() as to], value)], []):
                first = _stored_before(new, form, to, test, value)
                if first is not None:
                    new.remove(first)
                    pair = (_as_stored(form, to, each) for each in (value, first.value))
                    choice = ast.copy_location(ast.IfExp(test, *pair), value)
                    statement = ast.copy_location(ast.Assign([to], choice), statement)
        new.append(statement)
    return new


def _stored_before(
    body: list[ast.stmt], form: Canonical, to: ast.Subscript, *others: ast.expr
) -> ast.Assign | None:
    """The last store to the same element of an array of the kernel, if it may as well be later.

    Nothing reads the array until then, and nothing changes what the store is made of.
    """
    array = base_name(to) or ""
    if array not in form.arrays:
        return None
    passed: list[ast.stmt] = []
    for statement in reversed(body):
        match statement:
            case ast.Assign([ast.Subscript() as same], value) if ast.dump(to) == ast.dump(same):
                made_of = names_in(to) | names_in(value)
                changed = stores(passed).keys() & made_of
                read = passed and (made_of - {array}) & form.ndims.keys()
                written = written_in(nodes(statement), form.source) - {array}
                alone = _leaves_alone(form, array, *indices_of(to), value, *others)
                return statement if alone and not (changed or read or written) else None
        if not _leaves_alone(form, array, statement):
            return None
        passed.append(statement)
    return None


def _leaves_alone(form: Canonical, array: str, *nodes: ast.AST) -> bool:
    """Whether these surely leave alone an array of the kernel, which holds numbers."""
    arrays, kinds, plain = form.arrays, form.kinds, (types.Number, types.Boolean)
    one = {n for n in arrays if n == array or arrays[n].is_dynamic & arrays[array].is_dynamic}
    named = set[str]().union(*map(names_in, nodes))
    views = named - arrays.keys() - set(form.parameters)
    numbers = all(isinstance(kinds.get(each, types.int64), plain) for each in views)
    return isinstance(kinds[array].dtype, plain) and numbers and named.isdisjoint(one)


def _as_stored(form: Canonical, to: ast.expr, value: ast.expr) -> ast.expr:
    """What a store makes of a value, if another beside it could make it a float before."""
    kind = form.kinds[base_name(to) or ""].dtype
    if isinstance(kind, types.Float | types.Complex):
        return value
    return ast.Call(parse(dtype_text(kind)), [value], [])

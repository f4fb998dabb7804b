"""Step 7, reading ahead: ask for the memory that the next turn of a loop will need.

A GPU hides the time that memory takes by running other warps meanwhile. A CPU thread that runs a
block has nothing else to do: it would wait at the beginning of each tile. So where a region copies
from an argument into a shared array inside a loop over tiles, it also asks for the same elements,
one turn of that loop later. Asking does not wait, and asking past the end of an array does no harm.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set

from .paths import indices_of
from .regions import Regions
from .trees import Substitute, copied, nodes, parse, walk
from .uniformity import THREADS, base_name, range_arguments, reads

LINE = 16  # elements: a cache line holds 16 of float32


def next_turn(body: Iterable[ast.stmt], loops: list[ast.For], regions: Regions) -> list[str]:
    """The `prefetch(...)` calls for a region's body inside `loops`, outermost first."""
    form, uniformity = regions.form, regions.uniformity
    shared = {array.name for array in form.arrays.values() if array.space == "shared"}
    only_read = set(form.parameters) - uniformity.written
    found = []
    for statement in walk(body):
        if isinstance(statement, ast.Assign) and base_name(statement.targets[0]) in shared:
            for load in _loads(statement.value, only_read):
                places = [expanded(index, regions.recomputed) for index in indices_of(load)]
                if _along_a_row(places, uniformity.varying):
                    found += _later(load, places, loops)
    return list(dict.fromkeys(found))


def _loads(value: ast.expr, arrays: set[str]) -> Iterator[ast.Subscript]:
    """The elements of `arrays` that an expression reads."""
    subscripts = [node for node in nodes(value) if isinstance(node, ast.Subscript)]
    views = {id(node.value) for node in subscripts}
    for node in subscripts:
        if isinstance(node.value, ast.Name) and node.value.id in arrays and id(node) not in views:
            yield node


def expanded(index: ast.expr, definitions: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with names replaced by their definitions: as far as that goes."""

    class Expand(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            value = definitions.get(node.id)
            return node if value is None else self.visit(copied(value))

    result: ast.expr = Expand().visit(copied(index))
    return result


def _along_a_row(indices: list[ast.expr], varying: Set[str]) -> bool:
    """Whether neighbouring threads read neighbouring elements, at indices that only add up."""
    *outer, last = map(reads, indices)
    plain = not any(isinstance(node, ast.Subscript | ast.Call | ast.Div | ast.FloorDiv | ast.Mod)
                    for node in walk(indices))  # fmt: skip
    known = all(names.isdisjoint(varying - THREADS) for names in [*outer, last])
    in_a_row = "thread_x" in last and not any("thread_x" in names for names in outer)
    return plain and known and in_a_row


def _later(load: ast.Subscript, indices: list[ast.expr], loops: list[ast.For]) -> list[str]:
    """The load, one turn of the outermost loop that moves it later."""
    names = set().union(*map(reads, indices))
    for loop in loops:
        assert isinstance(loop.target, ast.Name)
        if loop.target.id in names:
            target, step = loop.target.id, ast.unparse(range_arguments(loop)[2])
            later = Substitute({target: parse(f"({target} + {step})")})
            texts = [ast.unparse(later.visit(copied(index))) for index in indices]
            return [f"prefetch({ast.unparse(load.value)}, ({', '.join(texts)},))"]
    return []

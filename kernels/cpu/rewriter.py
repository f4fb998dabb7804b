"""Part of step 8: statements in the form in which they are written down."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from . import ahead
from .form import Whole
from .paths import indices_of
from .regions import is_cheap
from .rows import Row, less_and_more
from .trees import call, name, names_in, stores
from .uniformity import THREADS, base_name


class Rewriter(ast.NodeTransformer):
    """Brings statements into the form in which they are written down.

    It adds the thread to the indices of local arrays, marks indices that cannot wrap, and hands
    whole slots to those who look at other threads.
    """

    def __init__(self, row: Row, slot_names: Mapping[str, str]) -> None:
        """`slot_names` gives the array that keeps a slot."""
        self.row, self.form, self.slot_names = row, row.form, slot_names
        self.lane = [name(f"thread_{axis}") for axis in row.axes]
        self.asked: frozenset[str] = frozenset()  # indices that a condition says not to be negative

    @contextmanager
    def where(self, tests: list[ast.expr], body: Iterable[ast.AST]) -> Iterator[None]:
        """Conditions hold in what is written, whose statements are the body."""
        before, changed = self.asked, stores(body).keys()
        parts = [part for test in tests for part in self.row.conjuncts(test)]
        numbers = filter(None, map(self.not_negative, parts))
        steady = (n for n in numbers if is_cheap(n) and not names_in(n) & changed)
        self.asked |= set(map(ast.unparse, steady))
        yield
        self.asked = before

    def not_negative(self, test: ast.expr) -> ast.expr | None:
        """The number of which a comparison says that it is not negative."""
        match less_and_more(test):
            case less, more, _ if self.row.uniformity.is_nonnegative(less):
                return more
        return None

    def visit_Whole(self, node: Whole) -> ast.AST:
        """The slot of what all threads keep."""
        return name(self.slot_names[node.id])

    def visit_If(self, node: ast.If) -> ast.AST:
        """What is asked is known where it holds."""
        then = ast.Module(node.body, [])
        with self.where([node.test], node.body):
            self.generic_visit(then)
        node.body = []
        self.generic_visit(node)
        node.body = then.body
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """The same of a choice."""
        with self.where([node.test], [node.body]):
            node.body = self.visit(node.body)
        node.test, node.orelse = self.visit(node.test), self.visit(node.orelse)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element that is read."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute) or base_name(node) is None:
            return node
        indices = list(map(self.unsigned, indices_of(node)))
        array = self.form.arrays.get(base_name(node) or "")
        if array and array.space == "local":
            indices += self.lane
        node.slice = indices[0] if len(indices) == 1 else ast.Tuple(indices, ast.Load())
        return node

    def unsigned(self, index: ast.expr) -> ast.expr:
        """Mark an index that cannot be negative: Numba need not ask whether to wrap it."""
        plain = isinstance(index, ast.Constant) or (
            isinstance(index, ast.Name) and index.id in THREADS
        )
        return index if plain or not self.cannot_wrap(index) else call("u", index)

    def cannot_wrap(self, index: ast.expr) -> bool:
        """Whether an index is surely not negative."""
        whole = ahead.expanded(index, self.row.regions.recomputed)
        return self.row.uniformity.is_nonnegative(index) or ast.unparse(whole) in self.asked

"""The text of the traced mode: each access and each statement is written down by `notes`."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numba.core import types

from ..compiler import LANES
from ..form import Array, Canonical
from ..regions import Lanes, Node
from ..trees import nodes, parse
from .instrument import MARK, Spot, Watched


class Traced(Watched):
    """Writes code that writes down what it does: see `notes`.

    `step` tells dynamic instances apart: it grows with each region, and a loop that threads run for
    themselves mixes the number of its turn into it.
    """

    parameters = ("run__log", "run__marks", "run__counts", "run__bases")
    nobody = "-1"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps = ["run__step"]

    @staticmethod
    def extra_types(
        kinds: tuple[types.Type, ...], shadowed: Mapping[int, bool]
    ) -> tuple[types.Type, ...]:
        """The types of the tables, and of how many rows they have."""
        table, row = (types.Array(types.int64, n, "C") for n in (2, 1))
        return table, table, row, row

    def write(self) -> None:
        """Write the function's body."""
        self.text.line("run__step = 0")
        super().write()

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        super().declare(array)
        if array.space == "shared":
            number = list(self.form.arrays).index(array.name)
            origin = ", ".join("0" for _ in array.shape)
            self.text.line(
                f"run__bases[{number}] = run__trace.address_of({array.name}, ({origin},))"
            )

    def strip(self, body: list[Node]) -> None:
        """A step begins."""
        self.text.line("run__step += 1")
        super().strip(body)

    def ran(self, region: Lanes, header: int) -> None:
        """Take the note from a loop whose turns depend on each other."""
        self.text.lines[header] = self.text.lines[header].replace(f"  {LANES}", "")

    def here(self) -> str:
        """Block, thread and step, as arguments of a call."""
        return f"block, {self.thread()}, {self.steps[-1]}"

    def call(self, function: str, spot: Spot, kind: str, *given: str) -> str:
        """A call of `notes`."""
        known = [ast.unparse(spot.view), "run__log", "run__counts", self.place(spot, kind)]
        return f"run__trace.{function}({', '.join([*known, self.here(), spot.index, *given])})"

    def read(self, spot: Spot, own: bool) -> str:
        """The call that stands for the index of an element that is read."""
        return self.call("trace", spot, "read")

    def put(self, spot: Spot, value: str) -> list[ast.stmt]:
        """The statement that stands for an assignment to an element."""
        return ast.parse(self.call("trace_write", spot, "write", value)).body

    def atomic(self, spot: Spot, swaps: bool) -> str:
        """The call that stands for the index of an element that an atomic works on."""
        return self.call("trace", spot, "atomic")

    def executed(self, mark: ast.Expr) -> ast.Expr:
        """The call that stands for the mark of a statement."""
        assert isinstance(mark.value, ast.Call)
        number = ast.unparse(mark.value.args[0])
        call = f"run__trace.execute(run__marks, run__counts, {number}, {self.here()})"
        return ast.Expr(parse(call))

    def own_loop(self, loop: ast.For | ast.While) -> list[ast.stmt]:
        """A loop that each thread runs for itself, with a step for each turn."""
        step = self.names.fresh("run__step_")
        before = ast.parse(f"{step} = {self.steps[-1]} * 1000003").body
        self.steps.append(step)
        self.rewriter.generic_visit(loop)
        self.steps.pop()
        loop.body = [*ast.parse(f"{step} += 1").body, *loop.body]
        return [*before, loop]


def marked(form: Canonical) -> Canonical:
    """A kernel with a mark before each statement, and at the start of each turn of a loop.

    A mark holds the number of its statement in `Canonical.marked`.
    """
    found: list[ast.stmt] = []
    return replace(form, body=_marked(form.body, found), marked=found)


def _marked(body: list[ast.stmt], found: list[ast.stmt]) -> list[ast.stmt]:
    new: list[ast.stmt] = []
    for statement in body:
        mark = ast.parse(f"{MARK}({len(found)})").body[0]
        for node in nodes(mark):
            ast.copy_location(node, statement)
        found.append(statement)
        own = copy.copy(statement)
        if isinstance(own, ast.For | ast.While):
            own.body = [mark, *_marked(own.body, found)]
            new.append(own)
            continue
        if isinstance(own, ast.If):
            own.body, own.orelse = (_marked(part, found) for part in (own.body, own.orelse))
        new += [mark, own]
    return new

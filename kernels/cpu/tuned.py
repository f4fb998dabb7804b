"""Part of step 8: the regions written down so that they run fast.

`emit` writes a loop over the threads for each region. This changes where the loops stand and end,
and what is asked in them, but nothing of what a thread computes.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

from . import ahead
from .compiler import IN_REGISTERS
from .emit import Body
from .one_store import stored_once
from .regions import Branch, Lanes, Loop, Node, all_lanes, statements
from .registers import Registers
from .rows import ALL, Few
from .trees import call, copied, name, names_in, nodes, parse, stores, walk
from .uniformity import is_shape, written_in


class Tuned(Body):
    """Writes the regions of a kernel for speed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.registers = Registers(self.row, self.types)
        self.abreast: str | None = None  # the loop over rows that take each turn together
        self.loops: list[ast.For] = []  # around what is being written, outermost first
        self.held: set[str] = set()  # local arrays that a stretch holds in registers
        self.outside = 0  # loops around the stretch

    # Rows of threads, and pieces of them

    def strip(self, body: list[Node]) -> None:
        """A stretch for all rows of threads; some take each turn of its loop together."""
        outer, rows = self.row.axes[:-1], self.registers.rows_abreast(body)
        headers = list(map(self.over, outer))
        if rows > 1:
            axis, first = outer[-1], self.names.fresh("row")
            headers[-1] = f"for {first} in range(0, BLOCK_{axis.upper()}, {rows}):"
            self.abreast = f"for thread_{axis} in range({first}, {first} + {rows}):"
        with self.text.block(*headers):
            self.whole_or_not(body)
        self.abreast = None

    def whole_or_not(self, body: list[Node]) -> None:
        """A strip for a row of threads: under its mask, and before, if it is short, without.

        The latter is for rows of which all threads pass the guard, as most do.
        """
        mask, few = self.guard_of_all(body)
        if not mask:
            return self.stretches(body)
        test = self.all_pass(few, *self.span)
        with self.text.block(f"if {test}:"), self.rewriter.where(few.parts, statements(body)):
            self.stretches(without(body, mask))
        with self.text.block("else:"):
            self.stretches(body)

    def guard_of_all(self, body: list[Node]) -> tuple[str | None, Few]:
        """The mask of all that a short row does, if it tells which threads pass, and what it is."""
        regions = filter(lambda x: self.regions.without_dead_definitions(x.body), all_lanes(body))
        masks = {region.mask for region in regions}
        mask = masks.pop() if len(masks) == 1 else None
        few = self.row.few(name(mask)) if mask and self.row.is_short and not self.abreast else None
        if not few or few.steps or self.never_all(few):
            return None, ALL
        asked = set[str]().union(*map(names_in, [*few.conditions, *few.starts, *few.ends]))
        return (None, ALL) if asked & stores(statements(body)).keys() else (mask, few)

    def never_all(self, few: Few) -> bool:
        """Whether some thread of a row surely fails a condition."""
        return any(self.row.most(end) < self.row.length for end in few.ends)

    def all_pass(self, few: Few, first: str, last: str) -> str:
        """Whether all threads of a part of a row pass a condition."""
        starts = (ast.Compare(start, [ast.LtE()], [parse(first)]) for start in few.starts)
        ends = (ast.Compare(parse(last), [ast.LtE()], [end]) for end in few.ends)
        return self.source(ast.BoolOp(ast.And(), [*few.conditions, *starts, *ends]))

    def stretches(self, body: list[Node]) -> None:
        """A strip, cut where another number of threads goes on; what none runs stays along."""
        counts = [self.row.running(node) for node in body]
        first = next(filter(None, counts), self.row.length)
        known = itertools.accumulate(counts, lambda before, own: own or before, initial=first)
        pairs = zip(itertools.islice(known, 1, None), body, strict=True)
        for count, part in itertools.groupby(pairs, itemgetter(0)):
            self.in_pieces([node for _, node in part], count)

    def in_pieces(self, body: list[Node], count: int) -> None:
        """A stretch that so many threads of a row run, for as many at a time as fit registers."""
        body = self.registers.inside_out(body)
        piece, self.held = self.registers.piece(body, count)
        self.outside = len(self.loops)
        if piece == count:
            self.compound_body(body)
        else:
            first = self.names.fresh("piece")
            end = self.span[1] if count == self.row.length else count
            header = f"for {first} in range(0, {end}, {piece}):"
            with self.text.block(header), self.only(first, f"{first} + {piece}"):
                self.compound_body(body)
        self.held = set()

    @contextmanager
    def only(self, first: str, last: str) -> Iterator[None]:
        """What is written is for a part of a row."""
        whole, self.span = self.span, (first, last)
        yield
        self.span = whole

    # Regions

    def counted(self, loop: ast.For, body: list[Node]) -> None:
        """A `for` at block level; what is in it may ask for memory one turn ahead.

        If it goes over registers that the loops around it add to, it is noted.
        """
        adds, turn = len(self.loops) > self.outside, ast.unparse(loop.target)
        held = adds and self.held & self.registers.counted_by(turn, body)
        self.loops.append(loop)
        self.compound(self.head(loop) + (f"  {IN_REGISTERS}" if held else ""), body)
        self.loops.pop()

    def lanes(self, region: Lanes) -> None:
        """Loops over the threads: first those few who make what nobody else needs, then all."""
        with self.text.block(*([self.abreast] if self.abreast else [])):
            body = stored_once(region.body, self.form)
            alone, few = self.for_few(body, region.mask)
            rest = body[len(alone) :]
            first, last = self.span
            few = few if first == "0" else f"min({last}, {few})"
            for part, end in (alone, few), (rest, last):
                if body := self.regions.without_dead_definitions(part):
                    self.read_ahead(body)
                    with self.only(first, end):
                        self.loop(region, body)

    def for_few(self, body: list[ast.stmt], mask: str | None) -> tuple[list[ast.stmt], str]:
        """The first statements of a region, if only the first threads need them, and how many.

        So it is where the last warp adds up what all warps have left (`if warp == 0`).
        """

        def few(statement: ast.stmt) -> bool:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)]):
                    written = written_in(nodes(statement), self.form.source)
                    needed = 0 if target in self.regions.recomputed else self.row.needed.get(target)
                    return needed is not None and needed < self.row.length and not written
            return False

        alone = [] if mask else list(itertools.takewhile(few, body))
        kept = stores(alone).keys() & self.row.needed.keys()
        return alone if kept else [], str(max((self.row.needed[slot] for slot in kept), default=0))

    def read_ahead(self, body: list[ast.stmt]) -> None:
        """Ask for what the loop around will need one turn later."""
        asks = ahead.next_turn(body, self.loops, self.regions)
        if asks:
            first, last = self.span
            with self.text.block(f"for thread_x in range({first}, {last}, {ahead.LINE}):"):
                for ask in asks:
                    self.text.line(ask)

    # Conditions

    def turns(
        self, region: Lanes, body: list[ast.stmt], mask: str | None, first: str, last: str,
        step: int = 1,
    ) -> None:  # fmt: skip
        """The loop over the threads; or two, of those that pass a guard and of the others.

        A short row has one of both, of constant length: for all threads of a row that pass, or as
        the text is. So has a longer one, if not the first threads pass, but some in between.
        """
        write = super().turns
        guard = None if mask or step > 1 else self.guard(body)
        if not guard:
            return write(region, body, mask, first, last, step)
        test, few = guard
        always, never = decided(body, test, "always"), decided(body, test, "never")
        if self.row.is_short or few.starts:
            with self.text.block(f"if {self.all_pass(few, first, last)}:"):
                write(region, always, None, first, last)
            with self.text.block("else:"):
                write(region, body, None, first, last)
        else:
            (ends,) = few.ends
            if few.conditions:
                ends = ast.IfExp(ast.BoolOp(ast.And(), few.conditions), ends, ast.Constant(0))
            end = self.source(ends)
            write(region, always, None, first, f"min({last}, {end})")
            write(region, never, None, f"max({first}, {end})", last)

    def guard(self, body: list[ast.stmt]) -> tuple[str, Few] | None:
        """The condition of `x[i] if i < n else 0`, if neighbouring threads pass it; and which do.

        None for a short row of which never all do.

        Under a mask some processors load slowly from far memory. What holds a loop is long enough
        to be written once.
        """
        if any(isinstance(node, ast.For | ast.While) for node in walk(body)):
            return None
        for statement in body:
            choice = getattr(statement, "value", statement)
            if isinstance(choice, ast.If | ast.IfExp) and any(map(is_load, nodes(choice))):
                few = self.row.few(choice.test)
                if not few or few.steps or len(few.starts) > 1 or len(few.ends) > 1:
                    continue
                if few.starts or few.ends:
                    hopeless = self.row.is_short and self.never_all(few)
                    return None if hopeless else (ast.unparse(choice.test), few)
        return None


def without(nodes: list[Node], mask: str | None) -> list[Node]:
    """A tree of regions, of which those under a mask are for all threads."""
    new: list[Node] = []
    for node in nodes:
        match node:
            case Lanes(body, own) if own == mask:
                new.append(Lanes(body))
            case Loop(_, body):
                new.append(replace(node, body=without(body, mask)))
            case Branch(test, body, orelse):
                new.append(Branch(test, without(body, mask), without(orelse, mask)))
            case _:
                new.append(node)
    return new


def is_load(node: ast.AST) -> bool:
    """Whether a node is an element that is read."""
    load = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return load and not is_shape(node)


def decided(body: list[ast.stmt], test: str, holds: str) -> list[ast.stmt]:
    """Statements in which a condition `always` or `never` holds.

    What no thread does is still written: the types of variables depend on it.
    """
    body = copied(body)
    for node in list(walk(body)):
        if isinstance(node, ast.If | ast.IfExp) and ast.unparse(node.test) == test:
            node.test = call(holds, node.test)
    return body

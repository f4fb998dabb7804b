"""Part of step 8: what threads add up stays in registers.

How many rows of threads run together, which loops change places, and in what pieces a row goes.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from numba.core import types
from numba.np.numpy_support import as_dtype

from . import ahead
from .compiler import VECTOR_REGISTERS
from .form import Canonical
from .regions import Branch, Lanes, Loop, Node, statements
from .rows import Row
from .trees import named, names_in, nodes, stores, walk
from .uniformity import base_name, written_in

ABREAST = 8  # rows of threads at most, that take the turns of a loop together
# Vectors of what a part of a row holds, at most. Where it begins is known only when it runs: LLVM
# left 16 and 24 in memory, 12 not.
OF_A_PART = 12


@dataclass(frozen=True, eq=False)
class Registers:
    """What the processor's vector registers have room for, of a kernel's slots and local arrays."""

    row: Row
    slot_types: Mapping[str, types.Type]

    @property
    def form(self) -> Canonical:
        """The kernel."""
        return self.row.form

    @property
    def room(self) -> int:
        """How many vector registers are for sums; the rest is for what is added up."""
        return VECTOR_REGISTERS[0] * 3 // 4

    # Rows of threads

    def rows_abreast(self, body: list[Node]) -> int:
        """How many rows of threads take each turn of a loop that adds up, one after the other.

        A sum waits for itself from turn to turn, and not for those of other rows; and what is
        loaded for one row may serve all: `total += a[y, k] * b[k, x]` has one b for them. As many
        as have their sums in registers.
        """
        match body, self.row.axes:
            case [Loop(ast.For(), inside) as loop], [*_, outer, _] if self._adds_up(loop):
                sums = stores(statements(inside)).keys() & self.slot_types.keys()
            case _:
                return 1
        bytes_of_one = VECTOR_REGISTERS[1]
        widths = (as_dtype(self.slot_types[slot]).itemsize for slot in sums)
        vectors = sum(-(-self.row.length * width // bytes_of_one) for width in widths)
        rows = 1
        while 2 * rows <= ABREAST and 2 * rows * vectors <= self.room:
            rows *= 2
        return gcd(rows, self.row.size(outer))

    def _adds_up(self, loop: Loop) -> bool:
        """Whether all threads only do arithmetic in a loop, for slots that each row has for itself.

        What more there is LLVM might leave as a loop over the rows, with the sums in memory.
        """
        regions, body = self.row.regions, statements(loop.body)
        used = named(body).keys()
        local = {array.name for array in self.form.arrays.values() if array.space == "local"}
        own = regions.slots - regions.row_slots - regions.shown
        return (
            all(isinstance(node, Lanes) for node in loop.body)
            and all(map(_is_arithmetic, body))
            and bool(stores(body).keys() & regions.slots)
            and used & regions.slots <= own
            and not used & local
            and self.row.running(loop) == self.row.length
        )

    # Loops that change places

    def inside_out(self, nodes: list[Node]) -> list[Node]:
        """Regions in which no loop adds up more than the registers hold, if that can be helped.

        `for e: for w: sums[w] += q[e] * k[e, w]` becomes `for w: for e: ...`. Each sum is added up
        in the same order, by itself.
        """
        return [self._inside_out(node) for node in nodes]

    def _inside_out(self, node: Node) -> Node:
        match node:
            case Loop(body=[Loop() as inner]) if self._may_change_places(node, inner):
                return replace(inner, body=[replace(node, body=inner.body)])
            case Loop(_, body):
                return replace(node, body=self.inside_out(body))
            case Branch(test, body, orelse):
                return Branch(test, self.inside_out(body), self.inside_out(orelse))
        return node

    def _may_change_places(self, outer: Loop, inner: Loop) -> bool:
        """Whether each turn of the inner loop adds to sums of its own, too many to hold all."""
        match outer.header, inner.header:
            case ast.For(ast.Name(adding)) as loop, ast.For(ast.Name(turn), turns):
                pass
            case _:
                return False
        body = statements([outer])
        written = written_in(walk(body), self.form.source)
        found = [access for access in self._accesses(body) if access[0] in written]
        sums = {ast.unparse(access): (array, access, around) for array, access, around in found}
        own = all({adding, turn} & self._index(access) == {turn} for _, access, _ in sums.values())
        held = sum(self._met(access, around)[1] for _, access, around in sums.values())
        inside, everywhere = named(body), named(self.form.body)
        return (
            own
            and all(inside[name] == everywhere[name] for name in (adding, turn))
            and len(sums) == len(written) == len({array for array, *_ in sums.values()})
            and self.room < held <= self.room * self._turns(turns)
            and not names_in(turns) & stores([loop]).keys()
            and not stores(body).keys() & self.row.regions.slots
            and all(map(_only_counts, [outer, inner, *inner.body]))
        )

    # Pieces of a row

    def piece(self, body: list[Node], row: int) -> tuple[int, set[str]]:
        """How many of the threads of a row that run a stretch do so at a time, and what they hold.

        So many that what each of their loops holds of small local arrays fits the processor's
        registers: a vector of each element, at least. Long arrays are in memory in any case.
        """
        piece, room, bytes_of_one = row, self.room, VECTOR_REGISTERS[1]
        held = self._held(statements([node for node in body if isinstance(node, Loop)]), room)
        widths = {a: as_dtype(self.form.kinds[a].dtype).itemsize for each in held for a in each}
        needed = max((sum(n * widths[a] for a, n in each.items()) for each in held), default=0)
        vector = max(1, bytes_of_one // min(widths.values(), default=bytes_of_one))
        while piece * needed > room * bytes_of_one and piece > vector:
            piece, room = piece // 2, min(room, OF_A_PART)
        fits = row % piece == 0 and piece * needed <= room * bytes_of_one
        return piece if row % piece == 0 else row, set(widths) if fits else set()

    def counted_by(self, turn: str, body: list[Node]) -> set[str]:
        """The local arrays of which each turn of a loop has elements of its own."""
        met = self._accesses(statements(body))
        return {array for array, access, _ in met if turn in self._index(access)}

    def _index(self, access: ast.Subscript) -> set[str]:
        """The names that an element's place is made of."""
        return names_in(ahead.expanded(access.slice, self.row.regions.recomputed))

    def _held(self, loops: list[ast.stmt], room: int) -> list[dict[str, int]]:
        """How many elements of local arrays each loop that adds up holds, where there is room.

        An array that none adds up is held whole, by all.
        """
        added: defaultdict[tuple[str, ast.stmt | None], dict[str, int]] = defaultdict(dict)
        for array, access, around in self._accesses(loops):
            loop, elements = self._met(access, around)
            added[array, loop][ast.unparse(access)] = elements
        size = {array: prod(self.form.arrays[array].shape) for array, _ in added}
        held: defaultdict[ast.stmt | None, dict[str, int]] = defaultdict(dict)
        for (array, loop), elements_of in added.items():
            count = min(sum(elements_of.values()), size[array])
            if loop and count <= room:
                held[loop][array] = count
        summed = set[str]().union(*held.values())
        whole = {a: n for a, n in size.items() if a not in summed and n <= room}
        return [whole | each for each in held.values()] or [whole]

    def _turns(self, of: ast.expr) -> int:
        """How many turns `range(...)` gives; 0, if that is known only when it runs."""
        match of:
            case ast.Call(args=bounds):
                known = [n for bound in bounds if (n := self.row.known(bound)) is not None]
                return len(range(*known)) if len(known) == len(bounds) else 0
        return 0

    def _accesses(
        self, body: list[ast.stmt], around: tuple[ast.stmt, ...] = ()
    ) -> Iterator[tuple[str, ast.Subscript, tuple[ast.stmt, ...]]]:
        """Each element of a local array that statements name, and the loops around it."""
        for statement in body:
            match statement:
                case ast.For(iter=head, body=inside) | ast.While(test=head, body=inside):
                    yield from self._accesses(inside, (*around, statement))
                case ast.If(head, then, otherwise):
                    yield from self._accesses([*then, *otherwise], around)
                case head:
                    pass
            for node in nodes(head):
                array = self.form.arrays.get(base_name(node) or "")
                if isinstance(node, ast.Subscript) and array and array.space == "local":
                    yield array.name, node, around

    def _met(
        self, access: ast.Subscript, around: Sequence[ast.stmt]
    ) -> tuple[ast.stmt | None, int]:
        """The innermost loop that meets the same elements in each turn, and how many it meets.

        That is the one that adds up: its turn is in no index. None, where each is met once.
        """
        used = self._index(access)
        elements, most = 1, sys.maxsize
        for loop in reversed(around):
            match loop:
                case ast.For(ast.Name(turn), turns) if turn in used:
                    elements *= self._turns(turns) or most
                    used.remove(turn)
                case ast.For(body=body) | ast.While(body=body) if used & stores(body).keys():
                    elements = most  # of an index that is made in there, who knows
                case _:
                    return loop, elements
        return None, elements


def _only_counts(node: Node) -> bool:
    """Whether a region is lanes, or counted loops around them."""
    match node:
        case Lanes(mask=None):
            return True
        case Loop(ast.For(), body, is_counted=False):
            return all(map(_only_counts, body))
    return False


def _is_arithmetic(statement: ast.stmt) -> bool:
    """Whether a statement gives a variable a value that calls and chooses nothing."""
    match statement:
        case ast.Assign([ast.Name()]) | ast.AugAssign(ast.Name()):
            return not any(isinstance(n, ast.Call | ast.IfExp) for n in nodes(statement))
    return False

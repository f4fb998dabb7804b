"""Part of step 8: how many threads run together, so that what they add up stays in registers."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from numba.core import types
from numba.np.numpy_support import as_dtype

from . import ahead
from .compiler import VECTOR_REGISTERS
from .form import Canonical
from .regions import Lanes, Loop, Node, statements
from .rows import Row
from .trees import named, names_in, nodes, stores
from .uniformity import base_name

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
        count, bytes_of_one = VECTOR_REGISTERS
        widths = (as_dtype(self.slot_types[slot]).itemsize for slot in sums)
        vectors = sum(-(-self.row.length * width // bytes_of_one) for width in widths)
        rows = 1
        while 2 * rows <= ABREAST and 2 * rows * vectors <= count * 3 // 4:
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

    # Pieces of a row

    def piece(self, body: list[Node], row: int) -> tuple[int, set[str]]:
        """How many of the threads of a row that run a stretch do so at a time, and what they hold.

        So many that what their loops hold of small local arrays fits the processor's registers: a
        vector of each element, at least. Long arrays are in memory in any case.
        """
        piece, (count, bytes_of_one) = row, VECTOR_REGISTERS
        room = count * 3 // 4  # the rest is for what is added up
        loops = statements([node for node in body if isinstance(node, Loop)])
        held = self._held(loops, room)
        widths = {a: as_dtype(self.form.kinds[a].dtype).itemsize for a in held}
        needed = sum(held[a] * width for a, width in widths.items())
        vector = max(1, bytes_of_one // min(widths.values(), default=bytes_of_one))
        while piece * needed > room * bytes_of_one and piece > vector:
            piece, room = piece // 2, min(room, OF_A_PART)
        fits = row % piece == 0 and piece * needed <= room * bytes_of_one
        return piece if row % piece == 0 else row, set(held) if fits else set()

    def counted_by(self, turn: str, body: list[Node]) -> set[str]:
        """The local arrays of which each turn of a loop has elements of its own."""
        met = ((array, self._index(access)) for array, access, _ in self._accesses(statements(body)))
        return {array for array, names in met if turn in names}

    def _index(self, access: ast.Subscript) -> set[str]:
        """The names that an element's place is made of."""
        return names_in(ahead.expanded(access.slice, self.row.regions.recomputed))

    def _held(self, loops: list[ast.stmt], room: int) -> dict[str, int]:
        """How many elements of each local array loops hold, where there is room for so many.

        Those that a loop adds up; where none does, the whole array.
        """
        added: defaultdict[tuple[str, ast.stmt | None], dict[str, int]] = defaultdict(dict)
        for array, access, around in self._accesses(loops):
            loop, elements = self._met(access, around)
            added[array, loop][ast.unparse(access)] = elements
        most: dict[str, int] = {}
        for (array, loop), elements_of in added.items():
            count = min(sum(elements_of.values()), prod(self.form.arrays[array].shape))
            most[array] = max(most.get(array, 0), count if loop and count <= room else 0)
        found = {a: count or prod(self.form.arrays[a].shape) for a, count in most.items()}
        return {array: count for array, count in found.items() if count <= room}

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
                case ast.For(ast.Name(turn), ast.Call(args=bounds)) if turn in used:
                    known = [n for bound in bounds if (n := self.row.known(bound)) is not None]
                    elements *= len(range(*known)) if len(known) == len(bounds) else most
                    used.remove(turn)
                case ast.For(body=body) | ast.While(body=body) if used & stores(body).keys():
                    elements = most  # of an index that is made in there, who knows
                case _:
                    return loop, elements
        return None, elements


def _is_arithmetic(statement: ast.stmt) -> bool:
    """Whether a statement gives a variable a value that calls and chooses nothing."""
    match statement:
        case ast.Assign([ast.Name()]) | ast.AugAssign(ast.Name()):
            return not any(isinstance(n, ast.Call | ast.IfExp) for n in nodes(statement))
    return False

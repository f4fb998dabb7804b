"""Step 8: write the regions down as a Python module that Numba compiles.

The module holds the constants, the device functions, and one function over a range of blocks, in
which every lane region is a loop over the block's threads. It is meant to be read:
`kernel.cpu_source()` prints it. `tuned` writes the same faster, `watchers` with a call at each
access.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from math import prod

from numba.core import types

from .compiler import LANES
from .form import WARP, Array, is_barrier
from .regions import Barrier, Branch, Lanes, Loop, Meeting, Node, Regions, Scalar, Strip, needs
from .rewriter import Rewriter
from .rows import Row
from .source import dtype_text
from .text import Text, begun, function_name, signature
from .trees import Names, copied, name, stores, walk
from .uniformity import exposed, reads


class Body:
    """Writes the regions of a kernel as the body of a function."""

    parameters: tuple[str, ...] = ()  # besides the kernel's own

    def __init__(self, regions: Regions, slots: Mapping[str, types.Type]) -> None:
        """`slots` gives each slot's Numba type."""
        self.text = Text()
        self.regions, self.types, self.row = regions, slots, Row(regions)
        self.form, self.uniformity = regions.form, regions.uniformity
        self.threads = prod(self.form.block)
        self.lane = ", ".join(f"thread_{axis}" for axis in self.row.axes)
        self.lane_shape = ", ".join(f"BLOCK_{axis.upper()}" for axis in self.row.axes)
        self.span = "0", f"BLOCK_{self.row.axis.upper()}"  # of a row: those that run together
        self.names = Names(regions.names)
        self.slot_names = {slot: self.names.fresh(f"{slot}_of") for slot in sorted(regions.slots)}
        self.rewriter = Rewriter(self.row, self.slot_names)

    def module(self, runtime: str, fastmath: bool) -> str:
        """Write the module to compile."""
        self.text = begun(self.form, runtime, f"@device(fastmath={fastmath})")
        self.text.line(f"\n\n@kernel(fastmath={fastmath})")
        given = ["first_block", "last_block", *signature(self.form), *self.parameters]
        with self.text.block(f"def {function_name(self.form.source)}({', '.join(given)}):"):
            self.write()
        return str(self.text)

    @staticmethod
    def extra_types(
        kinds: tuple[types.Type, ...], shadowed: Mapping[int, bool]
    ) -> tuple[types.Type, ...]:
        """The types of the function's arguments besides the kernel's own."""
        return ()

    def write(self) -> None:
        """Write the function's body."""
        for array in self.form.arrays.values():
            self.declare(array)
        for slot, array_name in self.slot_names.items():
            kind = dtype_text(self.types[slot])
            shape, part = self.slot_shape(slot), ""
            if slot in self.regions.shown:  # with a warp to spare on either side
                shape, part = str(self.threads + 2 * WARP), f"[{WARP}:{self.threads + WARP}]"
            self.text.line(f"{array_name} = stack({shape}, {kind}){part}")
        with self.text.block("for block in range(first_block, last_block):"):
            self.text.line("block_x = block % grid_x")
            self.text.line("block_y = block // grid_x % grid_y")
            self.text.line("block_z = block // (grid_x * grid_y)")
            self.start()
            self.nodes(self.regions.nodes)
        self.text.line("return 0")

    def start(self) -> None:
        """What a block begins with."""

    def slot_shape(self, slot: str) -> str:
        """The shape of the array that keeps a slot."""
        if slot in self.regions.row_slots:
            return f"BLOCK_{self.row.axis.upper()}"
        return f"({self.lane_shape},)"

    def declare(self, array: Array) -> None:
        """An array, and what goes with it."""
        if array.is_dynamic:
            if not any(line.lstrip().startswith("dynamic_bytes =") for line in self.text.lines):
                shape = f"({self.form.shared_bytes},)"
                self.text.line(f"dynamic_bytes = stack({shape}, numba.uint8)  # shared")
            self.text.line(f"{array.name} = reinterpret(dynamic_bytes, {array.dtype})")
            return
        sizes = [*map(str, array.shape), *([self.lane_shape] if array.space == "local" else [])]
        self.text.line(
            f"{array.name} = stack(({', '.join(sizes)},), {array.dtype})  # {array.space}"
        )

    def nodes(self, nodes: list[Node]) -> None:
        """Write a tree down; at its end, ask what was noted."""
        for node in nodes:
            match node:
                case Scalar(statement):
                    self.scalar(statement)
                case Loop(ast.For() as loop, body):
                    self.counted(loop, body)
                case Loop():
                    self.walked(node)
                case Branch(test, body, orelse):
                    self.compound(f"if {self.source(test)}:", body)
                    if orelse:
                        self.compound("else:", orelse)
                case Barrier():
                    self.barrier(node)
                case Meeting(syncwarp=ast.Call()):
                    self.meeting(node)
                case Strip(body):
                    self.strip(body)
                case Lanes():
                    self.lanes(node)

    def scalar(self, statement: ast.stmt) -> None:
        """A statement on uniform values."""
        self.text.statements(self.rewrite(statement))

    def counted(self, loop: ast.For, body: list[Node]) -> None:
        """A `for` at block level."""
        self.compound(self.head(loop), body)

    def head(self, loop: ast.For) -> str:
        """The line that a `for` begins with."""
        return f"for {ast.unparse(loop.target)} in {self.source(loop.iter)}:"

    def walked(self, loop: Loop) -> None:
        """A `while` at block level."""
        assert isinstance(loop.header, ast.While)
        self.compound(f"while {self.source(loop.header.test)}:", loop.body)

    def barrier(self, node: Barrier) -> None:
        """Under a mask, go on only if all threads are at this barrier, or none."""
        if node.mask:
            all_barriers = list(filter(is_barrier, walk(self.form.body)))
            reached, number = self.slot_names[node.mask], all_barriers.index(node.statement)
            with self.text.block(f"if block_parts({reached}):"):
                self.text.line(f"return divergence(block, {number}, {reached})")

    def meeting(self, node: Meeting) -> None:
        """The threads of a warp meet: when all have run the region before, they have."""

    def compound(self, header: str, body: list[Node]) -> None:
        """A compound statement at block level."""
        with self.text.block(header):
            self.compound_body(body)

    def compound_body(self, body: list[Node]) -> None:
        """The body of a compound statement."""
        before = len(self.text.lines)
        self.nodes(body)
        if len(self.text.lines) == before:
            self.text.line("pass")

    def strip(self, body: list[Node]) -> None:
        """A stretch that all rows of threads run, one after the other."""
        *outer, _ = self.row.axes
        with self.text.block(*map(self.over, outer)):
            self.compound_body(body)

    @staticmethod
    def over(axis: str) -> str:
        """The loop over the threads along an axis."""
        return f"for thread_{axis} in range(BLOCK_{axis.upper()}):"

    def lanes(self, region: Lanes) -> None:
        """A loop over the threads, if there is something to do."""
        if body := self.regions.without_dead_definitions(region.body):
            self.loop(region, body)

    def loop(self, region: Lanes, body: list[ast.stmt]) -> None:
        """The loop over the threads, which begins and ends with those who pass a guard."""
        first, last = self.span
        body, mask, few = self.row.guarded(body, region.mask, whole=first == "0")
        if few.starts:
            first = f"max({', '.join([first, *map(self.source, few.starts)])})"
        if few.ends:
            last = f"min({', '.join([last, *map(self.source, few.ends)])})"
        asked = [f"if {self.source(condition)}:" for condition in few.conditions]
        with self.text.block(*asked), self.rewriter.where(few.parts, body):
            self.turns(region, body, mask, first, last, few.step)

    def turns(
        self, region: Lanes, body: list[ast.stmt], mask: str | None, first: str, last: str,
        step: int = 1,
    ) -> None:  # fmt: skip
        """One loop over the threads: recompute, load the slots, run, store the slots."""
        depth, header = self.text.depth, len(self.text.lines)
        threads = [first, last, str(step)] if step > 1 else [first, last][first == "0" :]
        self.text.line(f"for {self.row.thread} in range({', '.join(threads)}):  {LANES}")
        self.text.depth += 1
        self.enter(body, mask)
        written = set(stores(body))
        defined: set[str] = set()
        loaded = (exposed(body, defined) | (written - defined)) & self.regions.slots
        for slot in sorted(loaded):
            self.text.line(f"{slot} = {self.of(slot)}")
        with self.rewriter.where([name(mask)] if mask else [], body):
            for statement in body:
                self.text.statements(self.rewrite(statement))
        for slot in sorted(written & self.regions.slots):
            self.text.line(f"{self.of(slot)} = {slot}")
        self.text.depth = depth
        self.ran(region, header)

    def enter(self, body: list[ast.stmt], mask: str | None) -> None:
        """Make again what a region needs, and ask whether a thread takes part in it."""
        self.recompute(needs(Lanes(body, mask)))
        self.ask(mask)

    def ask(self, mask: str | None) -> None:
        """What follows is for those whose mask is set."""
        if mask in self.regions.slots:
            self.text.line(f"{mask} = {self.of(mask)}")
        if mask:
            self.text.line(f"if {mask}:")
            self.text.depth += 1

    def of(self, slot: str) -> str:
        """Where a thread's slot is."""
        thread = self.row.thread if slot in self.regions.row_slots else self.lane
        if slot in self.regions.shown:
            thread = ast.unparse(self.form.linear)
        return f"{self.slot_names[slot]}[{thread}]"

    def ran(self, region: Lanes, header: int) -> None:
        """All threads have run a region, whose loop begins at a line of the text."""

    def recompute(self, wanted: set[str], made: Set[str] = frozenset()) -> set[str]:
        """Make the wanted values again, and what they are made of; what is `made` is there yet."""
        done = set(made)

        def visit(target: str) -> None:
            if target in done or target not in self.regions.recomputed:
                return
            done.add(target)
            value = self.regions.recomputed[target]
            for operand in sorted(reads(value)):
                visit(operand)
            self.define(target, value)

        for target in sorted(wanted):
            visit(target)
        return done

    def define(self, target: str, value: ast.expr) -> None:
        """A value that is made again where it is needed."""
        self.text.line(f"{target} = {self.source(value)}")

    def rewrite(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement as it is written down."""
        new = self.rewriter.visit(copied(node))
        return new if isinstance(new, list) else [new]

    def source(self, node: ast.expr) -> str:
        """An expression as it is written down."""
        new = self.rewriter.visit(copied(node))
        return ast.unparse(ast.fix_missing_locations(new))

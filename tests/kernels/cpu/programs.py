"""Random kernels: well-formed, free of data races, and as tangled as control flow gets.

What makes each of them valid:

- Shared arrays are touched in two ways. Between *exchanges* a thread reads and writes its own
  element; in an exchange, which stands between two barriers, it reads any element and writes none.
- An exchange stands where all threads arrive: under conditions and loops made of uniform values.
- Uniform variables (s0, s1) are only assigned uniform values in such places.
- Integers stay below a small bound, and floats are only added, compared and halved, so that every
  operation is exact and results can be compared to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

BLOCKS = ((1, 1, 1), (7, 1, 1), (4, 3, 1), (1, 5, 1), (2, 3, 2))

HEADER = """\
from minitransformer_kernels.cuda import cuda
from numba import float32, float64, int32, int64

THREADS = {threads}


@cuda.jit(device=True)
def mix(a, b):
    if a > b:
        return a - b
    return a + b


@cuda.jit(device=True)
def fold(v, n):
    total = v
    for k in range(n % 4):
        total = (total + k) * 0.5
    return total


@cuda.jit(device=True)
def load(array, i):
    return array[i]


@cuda.jit(device=True)
def store(array, i, value):
    array[i] = value


@cuda.jit
def program(x, table, uniform, out, outi, a, b):
    tile = cuda.shared.array(THREADS, float64)
    tilei = cuda.shared.array((THREADS, 2), int64)
    local = cuda.local.array(3, float64)
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    t = tx + cuda.blockDim.x * (ty + cuda.blockDim.y * tz)
    block = cuda.blockIdx.x
    g = block * THREADS + t
"""

SETUP = """\
v0, v1, v2 = t, table[g], 3
f0, f1 = x[g], 0.5
s0, s1 = a, uniform[block]
tile[t] = f0
tilei[t, 0] = v1
tilei[t, 1] = 1
for k in range(3):
    local[k] = x[g] + k
"""

RESULTS = """\
out[g] += f0 + 2.0 * f1 + tile[t] + local[0] + local[1] + local[2]
outi[g] += v0 + 10 * v1 + 100 * v2 + 1000 * s0 + 10000 * s1 + tilei[t, 0] + tilei[t, 1]
"""


@dataclass
class Program:
    """A kernel under construction."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    statements: int = 0
    names: int = 0
    uniform: bool = True  # do all threads arrive here together?
    in_exchange: bool = False
    in_loop: bool = False
    uniform_names: list[str] = field(default_factory=lambda: ["s0", "s1", "a", "b", "block"])
    varying_names: list[str] = field(default_factory=lambda: ["v0", "v1", "v2", "t"])
    protected: set[str] = field(default_factory=set)
    starts: list[str] = field(default_factory=lambda: ["tx", "ty"])
    kept: tuple[str, ...] = ()  # loop variables that are also read outside their loops

    def line(self, text: str) -> None:
        """Append lines at the current depth."""
        self.lines += ["    " * self.depth + part for part in text.splitlines()]

    def pick(self, *choices: Any) -> Any:
        """One of the choices; shrinks towards the first."""
        return self.draw(st.sampled_from(choices))

    @contextmanager
    def block(self, header: str, **changes: Any) -> Iterator[None]:
        """A compound statement; attributes and known names are as before when it ends."""
        lists = ("uniform_names", "varying_names", "starts")
        before = {name: getattr(self, name) for name in (*changes, *lists)}
        self.__dict__.update({name: list(before[name]) for name in lists})
        self.line(header)
        self.depth += 1
        self.__dict__.update(changes)
        yield
        self.depth -= 1
        self.__dict__.update(before)

    # Expressions

    def shared_integer(self, depth: int = 2) -> str:
        """An integer that is the same for all threads."""
        if depth == 0 or self.pick(True, False):
            return str(self.pick(*self.uniform_names, 0, 1, 2, "uniform[block]", "cuda.gridDim.x"))
        left, right = self.shared_integer(depth - 1), self.shared_integer(depth - 1)
        return str(
            self.pick(f"({left} + {right}) % 5", f"abs({left} - {right})", f"min({left}, {right})")
        )

    def integer(self, depth: int = 2) -> str:
        """An integer, bounded so that nothing overflows."""
        if depth == 0 or self.pick(True, False):
            leaves = [*self.varying_names, *self.uniform_names, 1, 2, 7]
            return str(self.pick(*leaves, self.read("tilei"), "table[g]", "cuda.threadIdx.x"))
        left, right = self.integer(depth - 1), self.integer(depth - 1)
        return str(
            self.pick(
                f"({left} + {right}) % 11",
                f"({left} - 2 * {right}) % 13",
                f"({left} * {right}) // 3 % 17",
                f"({left} if {self.test(0)} else {right})",
                f"max({left}, {right}) % 19",
                f"mix({left}, {right}) % 23",
                f"int32({left} ^ {right}) % 29",
            )
        )

    def real(self, depth: int = 2) -> str:
        """A float, from operations that are exact."""
        if depth == 0 or self.pick(True, False):
            local = f"local[{self.integer(0)} % 3]"
            leaves = ["f0", "f1", "x[g]", "0.25", "local[1]", local, "load(tile, t)"]
            return str(self.pick(*leaves, self.read("tile")))
        left, right = self.real(depth - 1), self.real(depth - 1)
        return str(
            self.pick(
                f"({left} + {right}) * 0.5",
                f"({left} - {right}) * 0.5",
                f"min({left}, {right})",
                f"({left} if {self.test(0)} else {right})",
                f"fold({left}, {self.integer(0)})",
            )
        )

    def read(self, array: str) -> str:
        """An element of a shared array: the thread's own, or any in an exchange."""
        at = (
            f"({self.pick('t + 1', 't + v1', 's0', 'THREADS - 1 - t')}) % THREADS"
            if self.in_exchange
            else "t"
        )
        return f"tile[{at}]" if array == "tile" else f"tilei[{at}, {self.pick(0, 1)}]"

    def test(self, depth: int = 1) -> str:
        """A condition that threads decide differently."""
        simple = self.pick(
            f"{self.integer(depth)} % 2 == 0",
            f"{self.integer(depth)} > {self.integer(0)}",
            f"{self.real(depth)} < {self.real(0)}",
            f"not {self.integer(depth)} < 3",
            f"0 < {self.integer(0)} <= {self.integer(depth)}",
        )
        return f"({simple} and t > 0)" if depth and self.pick(False, True) else f"({simple})"

    def shared_test(self) -> str:
        """A condition that all threads decide alike."""
        return f"{self.shared_integer()} {self.pick('>', '==', '<=')} {self.shared_integer(1)}"

    # Statements

    def body(self, length: int = 3) -> None:
        """A few statements."""
        for _ in range(self.draw(st.integers(1, length))):
            self.statement()

    def statement(self) -> None:
        """One statement of a kind that is allowed here."""
        self.statements += 1
        kinds = [self.assign_int, self.assign_float, self.assign_memory, self.tuple_assign]
        kinds.append(self.define)
        if self.uniform:
            kinds.append(self.assign_shared)
            if not self.in_exchange:
                kinds += [self.exchange, self.exchange]
        if self.statements < 18 and self.depth < 6:
            kinds += [self.if_varying, self.if_uniform, self.for_uniform, self.for_uniform,
                      self.for_varying, self.trips, self.while_loop]  # fmt: skip
        if self.in_loop:
            kinds.append(self.jump)
        self.pick(*kinds)()

    def assign_int(self) -> None:
        """An assignment of an integer."""
        free = [name for name in self.kept if name not in self.protected]
        target = self.pick("v0", "v1", "v2", *free)
        self.line(
            self.pick(
                f"{target} = {self.integer()}", f"{target} += {self.integer(1)}\n{target} %= 31"
            )
        )

    def define(self) -> None:
        """A name with a single definition, known from here to the end of the list of statements."""
        self.names += 1
        name = f"d{self.names}"
        if self.uniform and self.pick(True, False):
            self.line(f"{name} = {self.shared_integer()}")
            self.uniform_names.append(name)
        else:
            self.line(f"{name} = {self.pick('t', 'tx', 'ty')} + {self.shared_integer(1)}")
            self.varying_names.append(name)
            self.starts.append(name)

    def assign_float(self) -> None:
        """An assignment of a float."""
        target = self.pick("f0", "f1")
        self.line(f"{target} = {self.real()}")

    def assign_memory(self) -> None:
        """A store."""
        if self.in_exchange:
            self.line(self.pick(f"out[g] += {self.real(1)}", f"outi[g] += {self.integer()}"))
            return
        self.line(
            self.pick(
                f"tile[t] = {self.real()}",
                f"tilei[t, {self.integer(0)} % 2] = {self.integer()}",
                f"local[{self.integer(1)} % 3] = {self.real()}",
                f"outi[g] += {self.integer()}",
                f"out[g] = {self.real()}",
                f"store({self.pick('out, g', 'tile, t')}, {self.real(1)})",
            )
        )

    def tuple_assign(self) -> None:
        """Two assignments at once."""
        self.line(f"{self.pick('v0, f0', 'v1, f1')} = {self.shared_integer()}, x[g]")

    def assign_shared(self) -> None:
        """An assignment of a value that all threads share."""
        target = self.pick("s0", "s1", "a")
        self.line(self.pick(f"{target} = {self.shared_integer()}", f"{target} += 1\n{target} %= 6"))

    def exchange(self) -> None:
        """Read what other threads wrote, between two barriers."""
        self.line("cuda.syncthreads()")
        before = self.in_exchange, self.in_loop
        self.in_exchange, self.in_loop = True, False  # no jump may skip the second barrier
        self.body(2)
        self.in_exchange, self.in_loop = before
        self.line("cuda.syncthreads()")

    def if_varying(self) -> None:
        """An `if` that threads decide differently."""
        with self.block(f"if {self.test()}:", uniform=False):
            self.body()
        if self.pick(False, True):
            with self.block("else:", uniform=False):
                self.body()

    def if_uniform(self) -> None:
        """An `if` that all threads decide alike."""
        with self.block(f"if {self.shared_test()}:"):
            self.body()
        if self.pick(False, True):
            with self.block("else:"):
                self.body()

    def loop_name(self) -> str:
        """A loop variable, which may have served other loops before."""
        free = [name for name in ("i", "j", "k", "m") if name not in self.protected]
        return str(self.pick(*free)) if free else f"k{self.depth}"

    @contextmanager
    def loop(self, header: str, name: str, *, shared: bool, alike: bool) -> Iterator[None]:
        """A loop; its variable is known inside. `alike`: do all threads make the same turns?"""
        before = set(self.protected)
        self.protected |= {name}
        shared, alike = (shared and name not in self.kept), (alike and name not in self.kept)
        with self.block(header, uniform=self.uniform and alike, in_loop=True):
            (self.uniform_names if shared and self.uniform else self.varying_names).append(name)
            yield
        self.protected = before

    def for_uniform(self) -> None:
        """A loop that all threads walk in step."""
        name, count = self.loop_name(), self.shared_integer(1)
        ranges = (
            f"({count}) % 4",
            f"1, ({count}) % 3 + 2",
            f"({count}) % 4, 0, -1",
            f"0, 5, {count} % 3 + 1",
        )
        jumps = self.uniform and self.pick(True, True, False)  # keep it in step, for exchanges
        with self.loop(
            f"for {name} in range({self.pick(*ranges)}):", name, shared=True, alike=jumps
        ):
            self.body()

    def for_varying(self) -> None:
        """A loop with bounds of each thread's own."""
        name = self.loop_name()
        ranges = f"({self.integer(1)}) % 4", f"t % 3, 4, {self.integer(0)} % 2 + 1"
        with self.loop(
            f"for {name} in range({self.pick(*ranges)}):", name, shared=False, alike=False
        ):
            self.body()

    def trips(self) -> None:
        """Work shared out among threads."""
        name, axis = self.loop_name(), self.pick("x", "y")
        own = self.pick(*self.starts)
        start = self.pick(own, f"{own} + {self.shared_integer(0)}", f"2 * {own}", f"{own} + block")
        stop = f"{self.shared_integer(1)} + 6"
        header = f"for {name} in range({start}, {stop}, cuda.blockDim.{axis}):"
        with self.loop(header, name, shared=False, alike=False):
            self.line(f"if {name} % 2 == 1:\n    outi[g] += {name}")
            self.body()

    def while_loop(self) -> None:
        """A `while` that counts down."""
        self.names += 1
        name = f"w{self.names}"
        shared = self.uniform and self.pick(True, False)
        self.line(f"{name} = {self.shared_integer() if shared else self.integer()} % 4")
        with self.loop(f"while {name} > 0:", name, shared=shared, alike=shared):
            self.line(f"{name} -= 1")
            self.body()

    def jump(self) -> None:
        """Leave the loop or the turn; threads that must stay together decide alike."""
        test = self.shared_test() if self.uniform else self.pick(self.shared_test(), self.test())
        self.line(f"if {test}:\n    {self.pick('break', 'continue')}")


@st.composite
def programs(draw: Any) -> tuple[str, tuple[int, int, int]]:
    """The text of a kernel, and the shape of its blocks."""
    block = draw(st.sampled_from(BLOCKS))
    program = Program(draw)
    guarded = draw(st.sampled_from([False, False, True]))
    if guarded:  # no exchange may follow
        program.uniform = False
        program.line("if g >= 2 * THREADS - 1:\n    return")
    program.line(SETUP)
    program.kept = draw(st.sampled_from([(), ("i",), ("j", "k")]))
    for name in program.kept:
        program.line(f"{name} = {program.pick('t', '1')}")
    program.varying_names += program.kept
    program.body(5)
    program.line(RESULTS)
    for name in program.kept:
        program.line(f"outi[g] += {name}")
    return HEADER.format(threads=int(np.prod(block))) + "\n".join(program.lines) + "\n", block


def arguments(block: tuple[int, int, int], grid: int) -> tuple[Any, ...]:
    """The arguments of a program."""
    count = grid * int(np.prod(block))
    rng = np.random.default_rng(count)
    x = rng.integers(-8, 8, count) / 4
    table, uniform = rng.integers(0, 9, count), rng.integers(0, 5, grid)
    return x, table, uniform, np.zeros(count), np.zeros(count, np.int64), 2, 3

"""Random kernels: valid CUDA, free of data races, and as tangled as control flow gets.

What makes each of them valid:

- Shared arrays are touched in two ways. Between *exchanges* a thread reads and writes its own
  element; in an exchange, which stands between two barriers, it reads any element and writes none.
- An exchange stands where all threads arrive: under conditions and loops made of uniform values.
  Some are uniform by how they are made, others (a flag in shared memory, a table) only as it runs.
- A warp operation names the lanes that arrive with it: all of them, a ballot that was taken before
  the branch, or `activemask()`. Where lanes may have gone their own ways the mask is forgotten.
- What a shuffle takes is from one of the lanes that it names, or nobody looks at it.
- A jump that threads decide differently leaves no loop in which others would wait for them, and
  after such a `return` there is no barrier.
- What atomics leave behind does not depend on their order, and nobody looks at the old value.
- A thread writes to rows and records of its own, by any of the ways that lead to an element.
- Integers stay below a small bound or wrap in 32 bits, and floats are only added, compared and
  halved, so that every operation is exact and results can be compared to the bit.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from .launches import defined

GRID = 3
BLOCKS = ((1, 1, 1), (7, 1, 1), (4, 3, 1), (1, 5, 1), (2, 3, 2), (40, 1, 1), (8, 6, 1), (64, 1, 1))

HEADER = """\
from minitransformer_kernels.cuda import cuda
from numba import float32, float64, int32, int64, uint32

THREADS = {threads}
FULL = 0xFFFFFFFF


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
def halved(v, times=1, step=0.5):
    for k in range(times % 3):
        v = v * step
    return v


@cuda.jit(device=True)
def load(array, i):
    return array[i]


@cuda.jit(device=True)
def store(array, i, value):
    array[i] = value


@cuda.jit(device=True)
def neighbour(tile, t, value):
    tile[t] = value
    cuda.syncthreads()
    other = tile[(t + 1) % THREADS]
    cuda.syncthreads()
    return other


@cuda.jit(device=True)
def lane_sum(mask, value):
    offset = 16
    while offset:
        other = cuda.shfl_xor_sync(mask, value, offset)
        if mask >> (cuda.laneid ^ offset) & 1:
            value += other
        offset >>= 1
    return value


@cuda.jit(device=True)
def member(mask, lane):
    return lane % 32 if mask >> lane % 32 & 1 else cuda.ffs(mask) - 1


@cuda.jit(device=True)
def agreed(mask, test):
    if cuda.all_sync(mask, test):
        return 2
    if cuda.any_sync(mask, test):
        return 1
    return 0


"""

KERNEL = """\
@cuda.jit
def program(x, table, same, uniform, out, outi, tally, reals, words, rows, bodies, sums, a, b):
    tile = cuda.shared.array({tile}, float64)
    tilei = cuda.shared.array((THREADS, 2), int64)
    pool = cuda.shared.array(6, int64)
    flag = cuda.shared.array(1, int64)
    local = cuda.local.array(3, float64)
    cells = cuda.local.array((2, 3), int64)
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    t = tx + cuda.blockDim.x * (ty + cuda.blockDim.y * tz)
    block = cuda.blockIdx.x
    g = block * THREADS + t
"""

SETUP = """\
v0, v1, v2 = t, table[g], 3
f0, f1 = x[g], x[g] if t < 9 * a else 0.5
w0, q0, e0 = int32(g), uint32(v1), float32(f0)
s0, s1 = a, uniform[block]
tile[t] = f0
tilei[t, 0] = v1
tilei[t, 1] = 1
for k in range(3):
    local[k] = x[g] + k
    cells[0][k] = k
    cells[1, k] = v1
own, body = rows[g], bodies[g]
"""

POOL = """\
for k in range(t, 6, THREADS):
    pool[k] = k
cuda.syncthreads()
"""

RESULTS = """\
out[g] += f0 + 2.0 * f1 + tile[t] + local[0] + local[1] + local[2] + e0
outi[g] += v0 + 10 * v1 + 100 * v2 + 1000 * s0 + 10000 * s1 + tilei[t, 0] + tilei[t, 1]
outi[g] += 100000 * int64(w0 % 64) + 10000000 * int64(q0 % 64)
outi[g] += cells[0][0] + cells[1][0] + cells[1][2]
"""

ARRAYS = (
    "x, table, same, uniform, out, outi, tally, reals, words, rows, bodies, sums, "
    "tile, tilei, pool, flag, local, cells"
)
NUMBERS = "t, tx, ty, block, g, v0, v1, v2, f0, f1, w0, q0, e0, s0, s1, a, b"

NUMBERS_OF_FILES = itertools.count()

BODY = np.dtype([("place", np.float64, 2), ("hits", np.int64), ("mass", np.float64)])
# The ways to an integer and to a float that are a thread's own; `{k}` is a number of its own.
INTEGERS = (
    "cells[{k} % 2][{k} % 3]", "tilei[t][{k} % 2]", "rows[g][{k} % 3]", "rows[g, 1]",
    "rows[g][-2]", "rows[:, 1:][g, {k} % 2]", 'bodies[g]["hits"]', "bodies[g].hits",
    'bodies["hits"][g]', "bodies.hits[g]",
)  # fmt: skip
REALS = (
    'bodies[g]["mass"]', "bodies[g].mass", 'bodies["mass"][g]', 'bodies["place"][g][{k} % 2]',
    "bodies[g].place[{k} % 2]",
)  # fmt: skip
NAMED = ("own[{k} % 3]", "body.hits", 'body["hits"]'), ("body.mass", "body.place[{k} % 2]")

ATOMICS = ("add", "add", "max", "min", "or_", "xor")  # by their element of `pool` and `tally`


class Random(NamedTuple):
    """A kernel's text, and how it is launched."""

    text: str
    block: tuple[int, int, int]
    shared_bytes: int


@dataclass
class Program:
    """A function under construction: the kernel, or a device function that it calls."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    lines: list[str] = field(default_factory=list)
    result: str = ""  # what `return` returns
    functions: dict[str, str] = field(default_factory=dict)  # what it may call, and who may
    depth: int = 1
    statements: int = 0
    names: int = 0
    simulated: bool = False  # only what Numba's simulator knows: no warps, no arguments by name
    uniform: bool = True  # do all threads arrive here together?
    mask: str | None = "FULL"  # the lanes of the warp that arrive here together, where known
    departed: bool = False  # have some threads returned?
    losses: int = 0  # jumps and returns that lanes decided differently, so far
    in_exchange: bool = False
    pool: bool = True  # has somebody written to `pool` before?
    jumps: str | None = None  # who may leave the loop: "block" or "warp" as a whole, or "thread"
    in_step: bool = False  # is there a loop around in which all wait for each other?
    uniform_names: list[str] = field(default_factory=lambda: ["s0", "s1", "a", "b", "block"])
    varying_names: list[str] = field(default_factory=lambda: ["v0", "v1", "v2", "t"])
    protected: set[str] = field(default_factory=set)
    starts: list[str] = field(default_factory=lambda: ["tx", "ty"])
    kept: tuple[str, ...] = ()  # loop variables that are also read outside their loops

    @property
    def together(self) -> bool:
        """Whether all threads of the block arrive here."""
        return self.uniform and not self.departed

    def line(self, text: str) -> None:
        """Append lines at the current depth."""
        self.lines += ["    " * self.depth + part for part in text.splitlines()]

    def pick(self, *choices: Any) -> Any:
        """One of the choices; shrinks towards the first."""
        return self.draw(st.sampled_from(choices))

    def name(self, letter: str) -> str:
        """A new name."""
        self.names += 1
        return f"{letter}{self.names}_"

    @contextmanager
    def block(self, header: str, **changes: Any) -> Iterator[None]:
        """A compound statement; attributes and known names are as before when it ends.

        If lanes were lost in it, those that arrive behind it are not known.
        """
        lists = ("uniform_names", "varying_names", "starts")
        before = {name: getattr(self, name) for name in (*changes, *lists, "mask")}
        losses = self.losses
        self.__dict__.update({name: list(before[name]) for name in lists})
        self.line(header)
        self.depth += 1
        self.__dict__.update(changes)
        yield
        self.depth -= 1
        self.__dict__.update(before)
        if self.losses > losses:
            self.mask = None

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
            more = "table[g]", "cuda.threadIdx.x", "w0 % 17", "int64(q0 >> 29)", "cuda.laneid"
            return str(self.pick(*leaves, self.read("tilei"), *more, f"{self.way(0)} % 19"))
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
                f"int64(cuda.popc(uint32({left} << 3)))",
                f"cuda.selp({self.test(0)}, int64({left}), int64({right}))",
            )
        )

    def real(self, depth: int = 2) -> str:
        """A float, from operations that are exact."""
        if depth == 0 or self.pick(True, False):
            local = f"local[{self.integer(0)} % 3]"
            leaves = ["f0", "f1", "x[g]", "0.25", "local[1]", local, "load(tile, t)", "e0"]
            more = "x[block * THREADS :][t]", self.way(1)
            return str(self.pick(*leaves, self.read("tile"), *more))
        left, right = self.real(depth - 1), self.real(depth - 1)
        return str(
            self.pick(
                f"({left} + {right}) * 0.5",
                f"({left} - {right}) * 0.5",
                f"min({left}, {right})",
                f"({left} if {self.test(0)} else {right})",
                f"fold({left}, {self.integer(0)})",
                f"float32({left}) * float32(0.5)",
                *([] if self.simulated else [f"halved({left})", f"halved(step=0.25, v={left})"]),
            )
        )

    def way(self, real: int) -> str:
        """A number that is the thread's own, an integer or (1) a float, by one of many ways."""
        ways = (REALS if real else INTEGERS) + (() if self.result else NAMED[real])
        number = self.pick("0", "1", "2", "t", "v1")
        return str(self.pick(*ways)).replace("{k}", f"({number})")

    def read(self, array: str) -> str:
        """An element of a shared array: the thread's own, or any in an exchange."""
        at = (
            f"({self.pick('t + 1', 't + v1', 's0', 'THREADS - 1 - t')}) % THREADS"
            if self.in_exchange
            else "t"
        )
        if array == "tilei" and self.in_exchange and self.pick(False, False, True):
            return f"pool[{self.pick(0, 1, 2, 3, 4, 5)}] % 19"
        if array == "tile":
            return f"tile[{at}]"
        return f"tilei[{at}{self.pick(', ', '][')}{self.pick(0, 1)}]"

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

    def warp_test(self) -> str:
        """A condition that the lanes of a warp decide alike; they arrive here together."""
        return str(
            self.pick(
                f"cuda.any_sync({self.mask}, {self.test()})",
                f"cuda.all_sync({self.mask}, {self.test()})",
                f"t // 32 == {self.shared_integer(0)} % 2",
                f"agreed({self.mask}, {self.test()}) == {self.pick(0, 1, 2)}",
                f"{self.shuffle(f'int64({self.integer(1)})', 'from', '0')} > 3",
                f"cuda.ballot_sync({self.mask}, {self.test()}) & 6 == 2",
            )
        )

    def shuffle(self, value: str, way: str, lane: int | str) -> str:
        """What a shuffle gives; where not all lanes are here, it is from one that is."""
        if way == "from" or self.mask != "FULL":
            return f"cuda.shfl_sync({self.mask}, {value}, member({self.mask}, {lane}))"
        return f"cuda.shfl_{way}_sync(FULL, {value}, {lane})"

    def warp_integer(self) -> str:
        """An integer that a warp operation gives."""
        mask, value = self.mask, f"int64({self.integer(1)})"
        shuffled = self.pick(value, f"int32({self.integer(1)})")
        return str(
            self.pick(
                self.shuffle(shuffled, "from", self.integer(0)),
                self.shuffle(shuffled, "up", self.pick(1, 2, 9)),
                self.shuffle(shuffled, "down", self.pick(1, 3, 16)),
                self.shuffle(shuffled, "xor", self.pick(1, 6, 31)),
                self.shuffle(shuffled, "down", self.shared_integer(0)),
                f"int64(cuda.popc(cuda.ballot_sync({mask}, {self.test()})))",
                f"int64(cuda.popc(cuda.match_any_sync({mask}, {value} % 3)))",
                f"int64(cuda.popc(cuda.match_all_sync({mask}, {value} % 2)[0]))",
                f"int64(cuda.ffs(cuda.ballot_sync({mask}, {self.test()})))",
                f"lane_sum({mask}, {value})",
                f"agreed({mask}, {self.test()})",
                f"(1 if cuda.eq_sync({mask}, {self.test()}) else 4)",
            )
        )

    # Statements

    def body(self, length: int = 3) -> None:
        """A few statements."""
        for _ in range(self.draw(st.integers(1, length))):
            self.statement()

    def statement(self) -> None:
        """One statement of a kind that is allowed here."""
        self.statements += 1
        kinds = [self.assign_int, self.assign_float, self.assign_memory, self.tuple_assign]
        kinds += [self.define, self.assign_narrow, self.atomic]
        if self.together:
            kinds.append(self.assign_shared)
            if not self.in_exchange:
                kinds += [self.exchange, self.exchange, self.agree]
        if self.mask:
            kinds += [self.warp_assign, self.warp_assign]
        elif not self.simulated:
            kinds.append(self.count_lanes)
        if self.statements < 14 and self.depth < 6:
            kinds += [self.if_varying, self.if_uniform, self.for_uniform, self.for_uniform,
                      self.for_varying, self.trips, self.while_loop]  # fmt: skip
            if self.mask:
                kinds += [self.if_lanes, self.if_lanes, self.if_warp, self.for_warp]
        if self.jumps:
            kinds.append(self.jump)
        if not self.in_exchange:
            kinds += [self.leave, self.call] if self.functions else [self.leave]
        self.pick(*kinds)()

    def assign_int(self) -> None:
        """An assignment of an integer."""
        free = [name for name in self.kept if name not in self.protected]
        target = self.pick("v0", "v1", "v2", *free)
        self.line(
            self.pick(
                f"{target} = {self.integer()}",
                f"{target} += {self.integer(1)}\n{target} %= 31",
                f"{target} = v2 = {self.integer()}",
            )
        )

    def assign_narrow(self) -> None:
        """An assignment of a number of 32 bits; integers wrap."""
        self.line(
            self.pick(
                f"w0 = int32(w0 * 31 + {self.integer()})",
                f"q0 = uint32(q0 * 1664525 + {self.integer()})",
                f"q0 = uint32(q0 ^ (q0 >> {self.pick(3, 17)}))",
                f"e0 = float32({self.real()})",
                "e0 = e0 * float32(0.5) + float32(0.25)",
            )
        )

    def define(self) -> None:
        """A name with a single definition, known from here to the end of the list of statements."""
        name = self.name("d")
        if self.together and self.pick(True, False):
            self.line(f"{name} = {self.shared_integer()}")
            self.uniform_names.append(name)
        else:
            self.line(f"{name} = {self.pick('t', 'tx', 'ty')} + {self.shared_integer(1)}")
            self.varying_names.append(name)
            self.starts.append(name)

    def assign_float(self) -> None:
        """An assignment of a float."""
        target = self.pick("f0", "f1")
        self.line(f"{target} = float64({self.real()})")

    def assign_memory(self) -> None:
        """A store."""
        if self.in_exchange:
            self.line(self.pick(f"out[g] += {self.real(1)}", f"outi[g] += {self.integer()}"))
            return
        self.line(
            self.pick(
                f"{self.way(0)} = {self.integer()} % 64",
                f"{self.way(1)} = float64({self.real()})",
                f"tile[t] = {self.real()}",
                f"tilei[t, {self.integer(0)} % 2] = {self.integer()}",
                f"tilei[t][{self.integer(0)} % 2] = {self.integer()}",
                f"local[{self.integer(1)} % 3] = {self.real()}",
                f"outi[g] += {self.integer()}",
                f"out[g] = {self.real()}",
                f"store({self.pick('out, g', 'tile, t')}, {self.real(1)})",
            )
        )

    def tuple_assign(self) -> None:
        """Two assignments at once."""
        targets = self.pick("v0, f0", "v1, f1")
        self.line(
            self.pick(
                f"{targets} = {self.shared_integer()}, x[g]",
                "v0, v1 = v1, v0",
                f"(v2, {targets[:2]}), {targets[4:]} = ({self.integer(1)}, {self.integer(1)}), f1",
            )
        )

    def assign_shared(self) -> None:
        """An assignment of a value that all threads share."""
        target = self.pick("s0", "s1", "a")
        self.line(self.pick(f"{target} = {self.shared_integer()}", f"{target} += 1\n{target} %= 6"))

    def atomic(self) -> None:
        """An atomic that leaves the same behind in any order."""
        element = self.pick(*range(len(ATOMICS)))
        array = "tally" if self.in_exchange or not self.pool else self.pick("tally", "pool")
        self.line(
            self.pick(
                f"cuda.atomic.{ATOMICS[element]}({array}, {element}, int64({self.integer(1)}))",
                f"cuda.atomic.add(reals, 0, float32({self.integer(1)}))",
                "cuda.atomic.inc(words, 0, 100000)",
                f"cuda.atomic.add(sums[{element % 2}], {element % 3}, int64({self.integer(0)}))",
                f"cuda.atomic.max(sums[1:][0], 3, int64({self.integer(0)}))",
            )
        )

    def agree(self) -> None:
        """A value that turns out to be the same for all threads, as no compiler could tell."""
        name, element = self.name("u"), self.pick(0, 2, 4)
        said = f"if t == {self.pick('0', 'THREADS - 1')}:\n    flag[0] = {self.integer()}"
        self.line(
            self.pick(
                f"{said}\ncuda.syncthreads()\n{name} = flag[0] % 5\ncuda.syncthreads()",
                f"cuda.syncthreads()\n{name} = pool[{element}] % 4\ncuda.syncthreads()",
                f"{name} = int64(cuda.syncthreads_count(1 if {self.test()} else 0)) % 4",
                f"{name} = int64(cuda.syncthreads_or(1 if {self.test()} else 0))",
                f"{name} = int64(cuda.syncthreads_and(1 if {self.test()} else 0))",
                f"{name} = {self.shared_integer(1)} + 0 * t",
                f"{name} = same[g]",
            )
        )
        self.uniform_names.append(name)

    def exchange(self) -> None:
        """Read what other threads wrote, between two barriers."""
        if self.pick(False, False, False, True):
            self.line(f"f0 = float64(neighbour(tile, t, {self.real()}))")
            return
        self.line("cuda.syncthreads()")
        before = self.in_exchange, self.jumps
        self.in_exchange, self.jumps = True, None  # no jump may skip the second barrier
        self.body(2)
        self.in_exchange, self.jumps = before
        self.line("cuda.syncthreads()")

    def warp_assign(self) -> None:
        """An assignment of what a warp operation gives."""
        bits, value = self.pick("64", "32"), self.real(1)
        moved = self.shuffle(f"float{bits}({value})", "xor", self.pick(1, 2, 31))
        self.line(
            self.pick(
                f"{self.pick('v0', 'v1')} = {self.warp_integer()} % 37",
                f"v2 = ({self.warp_integer()} + {self.integer(1)}) % 41",
                f"w0 = int32({self.warp_integer()})",
                f"f0 = float64({moved})",
                f"e0 = {self.shuffle('e0', 'from', self.integer(0))}",
                f"f1 = {self.shuffle('f1', 'up', 1)}",
                f"outi[g] += {self.warp_integer()}",
                f"cuda.syncwarp({self.mask})",
            )
        )

    def count_lanes(self) -> None:
        """Look who is here, and remember it."""
        self.mask = self.name("m")
        self.line(f"{self.mask} = cuda.activemask()\nv0 = int64(cuda.popc({self.mask}))")

    # Conditions

    def ways(self, who: str, mask: str | None = None) -> dict[str, Any]:
        """The context where each "thread", each "warp" or the whole "block" goes its own way."""
        if who == "block":
            return {}
        jumps = self.jumps if self.jumps in ("thread", who) else None
        return {"uniform": False, "mask": self.mask if who == "warp" else mask, "jumps": jumps}

    def branches(self, test: str, who: str, yes: str | None = None, no: str | None = None) -> None:
        """An `if`, and perhaps its `else`; `yes` and `no` are masks of the lanes on either side."""
        with self.block(f"if {test}:", **self.ways(who, yes)):
            self.body()
        if self.pick(False, True):
            with self.block("else:", **self.ways(who, no)):
                self.body()

    def if_varying(self) -> None:
        """An `if` that threads decide differently."""
        self.branches(self.test(), "thread")

    def if_lanes(self) -> None:
        """An `if` that lanes decide differently, with a mask of those on either side."""
        test, yes, no = self.name("c"), self.name("m"), self.name("m")
        self.line(f"{test} = {self.test()}\n{yes} = cuda.ballot_sync({self.mask}, {test})")
        self.line(f"{no} = cuda.ballot_sync({self.mask}, not {test})")
        self.branches(test, "thread", yes, no)

    def if_warp(self) -> None:
        """An `if` that warps decide differently."""
        self.branches(self.warp_test(), "warp")

    def if_uniform(self) -> None:
        """An `if` that all threads decide alike."""
        self.branches(self.shared_test(), "block")

    # Loops

    def loop_name(self) -> str:
        """A loop variable, which may have served other loops before."""
        free = [name for name in ("i", "j", "k", "m") if name not in self.protected]
        return str(self.pick(*free)) if free else f"k{self.depth}"

    @contextmanager
    def loop(self, header: str, name: str, *, shared: bool, who: str) -> Iterator[None]:
        """A loop; its variable is known inside.

        Who leaves it together: the whole "block", each "warp", or each "thread" when it likes? In
        the last case nothing is known of who arrives inside.
        """
        protected, losses, mask = set(self.protected), self.losses, self.mask
        self.protected |= {name}
        shared = shared and name not in self.kept
        who = "thread" if name in self.kept else who
        context = {
            "uniform": self.uniform and who == "block",
            "mask": None if who == "thread" else mask,
            "jumps": who,
            "in_step": self.in_step or who != "thread",
        }
        departed = self.departed
        with self.block(header, **context):
            (self.uniform_names if shared and self.uniform else self.varying_names).append(name)
            yield
        self.protected = protected
        if self.departed == departed:  # those that jumped have come back
            self.losses, self.mask = losses, mask

    def for_loop(self, name: str, bounds: str, who: str, shared: bool = False) -> None:
        """A loop over a range, and perhaps its `else`, for those that did not break."""
        with self.loop(f"for {name} in range({bounds}):", name, shared=shared, who=who):
            self.body()
        if self.pick(False, False, False, True):
            with self.block("else:", **self.ways(who)):
                self.body(2)

    def for_uniform(self) -> None:
        """A loop that all threads walk in step."""
        name, count = self.loop_name(), self.shared_integer(1)
        ranges = (
            f"({count}) % 4",
            f"1, ({count}) % 3 + 2",
            f"({count}) % 4, 0, -1",
            f"0, 5, {count} % 3 + 1",
        )
        alike = self.together and self.pick(True, True, False)  # keep it in step, for exchanges
        who = "block" if alike else "warp" if self.mask and self.pick(True, False) else "thread"
        who = "thread" if name in self.kept else who
        self.for_loop(name, self.pick(*ranges), who, shared=True)

    def for_warp(self) -> None:
        """A loop that the lanes of a warp walk in step."""
        name = self.loop_name()
        who = "thread" if name in self.kept else "warp"
        self.for_loop(name, self.pick("t // 32 + 1", "(t // 32 + s0) % 4"), who)

    def for_varying(self) -> None:
        """A loop with bounds of each thread's own."""
        name = self.loop_name()
        ranges = f"({self.integer(1)}) % 4", f"t % 3, 4, {self.integer(0)} % 2 + 1"
        self.for_loop(name, self.pick(*ranges), "thread")

    def trips(self) -> None:
        """Work shared out among threads."""
        name, axis = self.loop_name(), self.pick("x", "y")
        own = self.pick(*self.starts)
        start = self.pick(own, f"{own} + {self.shared_integer(0)}", f"2 * {own}", f"{own} + block")
        stop = f"{self.shared_integer(1)} + 6"
        header = f"for {name} in range({start}, {stop}, cuda.blockDim.{axis}):"
        with self.loop(header, name, shared=False, who="thread"):
            self.line(f"if {name} % 2 == 1:\n    outi[g] += {name}")
            self.body()

    def while_loop(self) -> None:
        """A `while` that counts down, each thread or all together, or a warp until all are done."""
        name = self.name("w")
        kinds = ["thread", "block"] if self.together else ["thread"]
        who = self.pick(*kinds, "warp") if self.mask else self.pick(*kinds)
        count = self.shared_integer() if who == "block" else self.integer()
        self.line(f"{name} = {count} % 4")
        test = f"{name} > 0"
        if who == "warp":
            test = f"cuda.any_sync({self.mask}, {test})"
        with self.loop(f"while {test}:", name, shared=who == "block", who=who):
            self.line(f"{name} -= 1")
            self.body()

    # Jumps and calls

    def jump(self) -> None:
        """Leave the loop or the turn; threads that must stay together decide alike."""
        if self.jumps == "block" or (self.jumps == "warp" and not self.mask):
            test = self.shared_test()
        elif self.jumps == "warp":
            test = self.warp_test()
        else:
            test = self.pick(self.shared_test(), self.test())
            self.losses, self.mask = self.losses + 1, None
        self.line(f"if {test}:\n    {self.pick('break', 'continue')}")

    def leave(self) -> None:
        """Return: all threads, or those that will not be missed at a barrier."""
        if self.together and self.pick(True, True, False):
            test = self.shared_test()
        elif self.in_step or self.pick(True, True, False):
            return self.assign_int()
        else:
            test = self.test()
            self.departed, self.losses, self.mask = True, self.losses + 1, None
        self.line(f"if {test}:\n    outi[g] += v0 + 7\n    return {self.result}")

    def call(self) -> None:
        """Call a device function of those that may wait for as many as arrive here."""
        able = [name for name, who in self.functions.items() if self.may_wait(who)]
        if not able:
            return self.assign_int()
        name = self.pick(*able)
        self.line(f"v0, f0 = {name}({ARRAYS}, {NUMBERS}, {self.mask or 0})\nv0 %= 31")

    def may_wait(self, who: str) -> bool:
        """Whether threads may wait here for the block, for the lanes of the mask, or for nobody."""
        lanes = self.mask is not None
        block = self.together and (lanes or self.simulated)
        return {"block": block, "warp": lanes, "thread": True}[who]


def device_function(draw: Any, name: str, who: str, simulated: bool) -> str:
    """A device function that waits for the block, for a warp's lanes, or for nobody."""
    result = "int64(v0 + v1 + w0 % 7), float64(f0 + f1 + e0)"
    program = Program(draw, result=result, statements=10, simulated=simulated)
    program.uniform = program.pool = who == "block"
    program.mask = None if who == "thread" or simulated else "mask"
    program.body(4)
    program.line(f"return {result}")
    header = f"@cuda.jit(device=True)\ndef {name}({ARRAYS}, {NUMBERS}, mask):"
    return "\n".join([header, *program.lines, "", "", ""])


@st.composite
def programs(draw: Any, *, simulated: bool = False) -> Random:
    """A kernel, and its launch; a `simulated` one holds only what Numba's simulator knows."""
    block = draw(st.sampled_from(BLOCKS))
    threads, dynamic = int(np.prod(block)), draw(st.sampled_from([False, True]))
    waiting = ["block", "thread"] if simulated else ["block", "warp", "thread"]
    callers = draw(st.lists(st.sampled_from(waiting), max_size=2))
    functions = {f"part{number}": who for number, who in enumerate(callers)}
    helpers = [device_function(draw, name, who, simulated) for name, who in functions.items()]
    program = Program(draw, functions=functions, simulated=simulated)
    program.mask = None if simulated else "FULL"
    if draw(st.sampled_from([False, False, True])):  # no exchange may follow
        program.departed, program.mask, program.pool = True, None, False
        program.line("if g >= 2 * THREADS - 1:\n    return")
    else:
        program.line(POOL)
    program.line(SETUP)
    program.kept = draw(st.sampled_from([(), ("i",), ("j", "k")]))
    for name in program.kept:
        program.line(f"{name} = {program.pick('t', '1')}")
    program.varying_names += program.kept
    program.body(5)
    program.line(RESULTS)
    for name in program.kept:
        program.line(f"outi[g] += {name}")
    kernel = KERNEL.format(tile=0 if dynamic else "THREADS")
    text = HEADER.format(threads=threads) + "".join(helpers) + kernel + "\n".join(program.lines)
    return Random(text + "\n", block, 8 * threads if dynamic else 0)


def arguments(block: tuple[int, int, int], grid: int) -> tuple[Any, ...]:
    """The arguments of a program."""
    threads = int(np.prod(block))
    count = grid * threads
    rng = np.random.default_rng(count)
    x = rng.integers(-8, 8, count) / 4
    table, uniform = rng.integers(0, 9, count), rng.integers(0, 5, grid)
    same = np.repeat(rng.integers(0, 4, grid), threads)
    tally, reals, words = np.arange(6), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    out, outi = np.zeros(count), np.zeros(count, np.int64)
    rows, bodies = rng.integers(0, 9, (count, 3)), np.zeros(count, BODY)
    bodies["mass"], bodies["hits"] = rng.integers(-8, 8, count) / 4, rng.integers(0, 9, count)
    bodies["place"] = rng.integers(-8, 8, (count, 2)) / 4
    sums = np.zeros((2, 4), np.int64)
    return (x, table, same, uniform, out, outi, tally, reals, words, rows, bodies, sums, 2, 3)


def kernel_of(text: str, folder: Path) -> Any:
    """The kernel of a program's text."""
    return defined(folder / f"program_{next(NUMBERS_OF_FILES)}.py", text, {})["program"]

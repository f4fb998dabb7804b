"""How long kernels take at least: `python -m minitransformer_kernels.gpu.bounds`.

No GPU is asked. The PTX machine counts what a launch asks of each unit of a GPU, data sheets say
how much of it the unit does in a second, and no launch is done before its busiest unit is:

    time >= max over units of (what is asked) / (what the unit does in a second)                (1)

    issue              instructions that warps issue: each of a multiprocessor's 4 schedulers
                       issues one in a clock, of the warps that it keeps
    float32, float64   additions, multiplications and both in one, of 32 threads
    special functions  exponentials, logarithms, roots, reciprocals, and what divides
    tensor cores       products of matrices
    loads and stores   accesses of 32 threads, wherever they go
    shared memory      wavefronts of 128 bytes; by the same way L1 gives sectors of 32
    L2                 sectors that are written, as L1 keeps none back; or what DRAM gives and takes
    DRAM               each array once for reading and once for writing, as far as either is done

It is a bound, not a forecast. Left out is what the assembler may still fold into other
instructions: addresses, comparisons, conversions, moves, jumps and integers; and of a
multiplication and an addition it may make one. Left out, too, is every latency: the fewer warps a
multiprocessor keeps, the farther is a kernel from its bound. The `floor` is what remains of (1) if
there were only arithmetic, shared out evenly, and DRAM: what a kernel has above it, it spends on
its way of computing, not on what it computes.

Launches are those of `examples.HOSTS` on arrays of `SHAPE`, a shape of the benchmarks on a GPU.
They are too large to be executed whole. In a launch of a few tiles every count is a polynomial in
the length, of degree 2 at most: three lengths give it, and a fourth has to agree, in each count of
each instruction, as integers. Where it does not, blocks of the launch itself are counted: where
one in the middle and one drawn lie on the line between the first and the last, all do, and else
each half is looked at. The text is that for sm_80; those for others differ little.

The table, beside that of `needs`, which has registers and shared memory, has a line for each
launch and GPU:

    host, launch   the name in `examples.HOSTS`, and which launch of it
    kernel         its module and its name
    blocks         of the launch
    warps          that a multiprocessor keeps at once, of the blocks that there are
    instructions   of the PTX that warps execute, in millions, as all up to `sectors`
    issued         those of them that count
    float32, special, accesses, wavefronts, sectors
                   what the units are asked for
    written        sectors that are written, in millions
    megabytes      of the arrays, as for DRAM
    gpu            its name
    microseconds   by (1)
    bound_by       the unit that decides
    floor          in microseconds
    fingerprint    of the kernel, as in the other table

The command needs the extra `gate`, and the other table as it should be. It counts what changed
alone; all takes some minutes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ..cpu import num_threads
from ..cuda import Launch
from ..examples import HOSTS
from . import needs
from .gpus import ARCHITECTURES, BANKS, GPU, GPUS, SECTOR, WARP, WORD, occupancy
from .launch import types_of
from .specialisations import Specialisation, as_on_a_gpu, parsed

TABLE = Path("results/gpu/bounds.tsv")
COMMAND = "python -m minitransformer_kernels.gpu.bounds"
SHAPE = 32, 8, 2048, 64  # (N, H, L, E) of the benchmarks
LENGTHS = 64, 128, 192, 256  # from three to the fourth, and on
NAMES = "T4", "A100", "RTX 4090", "H100"
COUNTED_ON = 8, 0
SCHEDULERS = 4
SPECIAL = "ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"
SPECIAL_THREADS = 16  # in a clock, of all architectures: the guide's table
MATRIX_FLOPS = 2 * 16 * 8 * 8  # of mma.m16n8k8
WAVEFRONT = BANKS * WORD  # bytes

Captured = tuple[Launch, tuple[Any, ...]]
Counts = NDArray[np.int64]


class Work(NamedTuple):
    """What a launch asks for: instructions of warps, but for the last five."""

    instructions: int
    issued: int
    float32: int
    float64: int
    special: int
    tensor: int
    accesses: int
    wavefronts: int
    sectors: int
    written: int  # sectors
    bytes: int  # of arrays
    even: bool  # whether all blocks do the same


class Bound(NamedTuple):
    """What (1) says of a launch on a GPU, in seconds."""

    units: dict[str, float]
    floor: float

    @property
    def seconds(self) -> float:
        """At least."""
        return max(self.units.values())

    @property
    def by(self) -> str:
        """The unit that decides."""
        return max(self.units, key=lambda name: self.units[name])


def bound(work: Work, gpu: GPU, blocks: int, warps: int, kept: int) -> Bound:
    """Return what (1) says.

    Args:
        work: Of the launch.
        gpu: The GPU.
        blocks: Of the launch.
        warps: Of a block.
        kept: Blocks that a multiprocessor keeps at once.
    """
    has, multiprocessors = ARCHITECTURES[gpu.capability], gpu.multiprocessors
    most = ceil(blocks / multiprocessors)  # blocks that some multiprocessor has
    share = most / blocks if work.even else 1 / min(blocks, multiprocessors)
    clocks = {
        "issue": work.issued / min(SCHEDULERS, warps * min(kept, most)),
        "float32": work.float32 * WARP / has.float32,
        "float64": work.float64 * WARP / (has.float32 * has.float64_rate),
        "special functions": work.special * WARP / SPECIAL_THREADS,
        "loads and stores": work.accesses * WARP / has.units,
        "shared memory": (work.wavefronts * WAVEFRONT + work.sectors * SECTOR) / has.moved,
    }
    units = {name: count * share / gpu.clock for name, count in clocks.items()}
    whole = {"DRAM": work.bytes / (gpu.bandwidth * 1e9)}
    if gpu.l2:
        whole["L2"] = max(work.written * SECTOR, work.bytes) / (gpu.l2 * gpu.clock)
    if work.tensor:
        whole["tensor cores"] = work.tensor * MATRIX_FLOPS / (gpu.tensor * 1e12)
    arithmetic = max(clocks["float32"], clocks["float64"]) / multiprocessors / gpu.clock
    floor = max(arithmetic, whole["DRAM"], whole.get("tensor cores", 0))
    return Bound(units | whole, floor)


# Counting -----------------------------------------------------------------------------------------


@cache
def captured(host: str, shape: tuple[int, ...] = SHAPE) -> list[Captured]:
    """Return the launches of a host, and their arguments; nothing is launched, all is zero."""
    found: list[Captured] = []

    def note(launch: Launch, *arguments: Any) -> None:
        found.append((launch, launch.kernel.completed(arguments)))

    zeros = {name: getattr(np, name.replace("empty", "zeros")) for name in ("empty", "empty_like")}
    with ExitStack() as stack:
        stack.enter_context(as_on_a_gpu())
        stack.enter_context(patch.object(Launch, "__call__", note))
        stack.enter_context(patch.multiple(np, **zeros))  # what branches look at stays the same
        stack.enter_context(np.errstate(all="ignore"))
        HOSTS[host](*(np.zeros(shape, np.float32) for _ in range(3)))
    return found


def counted(captured: Captured, blocks: Iterable[int]) -> Counts:
    """Return what the machine counts in blocks of a launch: (what, instructions)."""
    from .ptx import driver
    from .ptx.lockstep import COUNTED
    from .ptx.profile import profile

    launch, arguments = captured
    program, slots, regions = driver.prepared(launch, arguments, COUNTED_ON)
    grid, block, shared = launch.grid, launch.block, launch.shared
    run = profile(program, grid, block, slots, regions, shared, blocks=blocks)
    return np.array([getattr(run, name) for name in COUNTED])


def whole(host: str, place: int) -> Counts:
    """Return what a launch comes to."""
    launch, _ = full = captured(host)[place]
    N, H, L, E = SHAPE
    found = _by_length([captured(host, (2, 2, length, E))[place] for length in LENGTHS], full)
    if found is not None:
        return found * prod(launch.grid[1:])
    fewer = [captured(host, (n, H, L, E))[place] for n in (1, 2, 3, 4)]
    if fewer[0][0].grid != launch.grid:  # then a block of many is short
        return _by_blocks(full)
    counts = [_by_blocks(each) for each in fewer]
    *_, third = _differences(counts)
    if third.any():
        raise ValueError(f"launch {place} of {host} follows no rule that is known here")
    return _newton(counts, N - 1)


def _by_length(small: Sequence[Captured], full: Captured) -> Counts | None:
    """Counts of the blocks of one head at the full length, where they are a polynomial in it."""
    last, _ = small[-1]
    wide, *others = last.grid
    if any(made(each) != made(full) for each in small) or not np.array_equal(
        counted(small[-1], [0]), counted(small[-1], [wide * (prod(others) - 1)])
    ):
        return None
    numbers = [np.array(launch.grid[0]) for launch, _ in small]
    *_, third = _differences(numbers)
    steps = (SHAPE[2] - LENGTHS[0]) // (LENGTHS[1] - LENGTHS[0])
    if third or _newton(numbers, steps) != full[0].grid[0]:
        return None
    counts = [counted(each, range(each[0].grid[0])) for each in small]
    *_, third = _differences(counts)
    return None if third.any() else _newton(counts, steps)


def _differences(values: Sequence[Counts]) -> list[Counts]:
    """Return the first value, the first difference, and so on."""
    found = []
    while values:
        found.append(values[0])
        values = [after - before for before, after in pairwise(values)]
    return found


def _newton(values: Sequence[Counts], steps: int) -> Counts:
    """Return the polynomial of degree 2 through the first three values, some steps further."""
    first, second, third, *_ = _differences(values)
    return first + steps * second + steps * (steps - 1) // 2 * third


def _by_blocks(captured: Captured) -> Counts:
    """Return the counts of a launch whose blocks lie on straight lines."""
    rng, blocks = np.random.default_rng(0), prod(captured[0].grid)
    count = cache(lambda block: counted(captured, [block]))

    def total(first: int, last: int) -> Counts:
        """Of blocks `first` to `last`."""
        begin, end, n = count(first), count(last), last - first + 1
        if n < 3:
            return begin + end if n == 2 else begin

        def on_line(block: int) -> bool:
            expected = begin * (last - block) + end * (block - first)
            return np.array_equal(count(block) * (last - first), expected)

        middle = (first + last) // 2
        if on_line(middle) and on_line(int(rng.integers(first, last + 1))):
            return (begin + end) * n // 2
        return total(first, middle) + total(middle + 1, last)

    return total(0, blocks - 1)


def work(captured: Captured, counts: Counts, even: bool) -> Work:
    """Return what counts of a launch's instructions ask of each unit."""
    from .ptx import driver
    from .ptx.profile import Profile

    program, *_ = driver.prepared(*captured, COUNTED_ON)
    found = Counter[str]()
    for row in Profile(program, *counts).rows:
        found["instructions"] += row.warps
        for name in _asked(row.text, row.kind, row.space):
            found[name] += row.warps
        # Wide accesses are counted part by part of a warp; where all lanes want the same numbers,
        # as most do here, a GPU may serve the parts together.
        found["wavefronts"] += ceil(row.wavefronts / max(1, row.bytes // WORD))
        found["sectors"] += row.sectors
        if row.kind != "load":
            found["written"] += row.sectors
    # Of a multiplication and an addition the assembler may make one.
    found["float32"] += max(found.pop("multiplied", 0), found.pop("added", 0))
    of_units = "float32", "float64", "special", "tensor", "accesses", "waits"
    issued = sum(found[name] for name in of_units)
    columns: dict[str, Any] = {name: found[name] for name in Work._fields}
    return Work(**columns | {"issued": issued, "bytes": _bytes(captured), "even": even})


def _even(captured: Captured) -> bool:
    """Whether the first block of a launch and its last do the same."""
    ends = {0, prod(captured[0].grid) - 1}
    first, *last = (counted(captured, [block]) for block in ends)
    return all(np.array_equal(first, each) for each in last)


def _asked(text: str, kind: str, space: str) -> Iterator[str]:
    """Yield the units that an instruction needs for certain."""
    name, *how = text.removeprefix("@").split(" ", text.startswith("@"))[-1].split()[0].split(".")
    if kind in ("load", "store", "atomic"):
        if space not in ("param", "const"):
            yield "accesses"
    elif kind in ("barrier", "warp"):
        yield "waits"
    elif kind == "tensor core":
        yield "tensor"
    elif kind == "arithmetic" and name in SPECIAL:
        yield "special"
    elif kind == "arithmetic" and name in ("add", "sub", "mul", "fma", "mad"):
        if "f64" in how:
            yield "float64"
        elif name in ("fma", "mad") or "rn" in how:
            yield "float32"
        else:
            yield "multiplied" if name == "mul" else "added"


def _bytes(captured: Captured) -> int:
    """Return the bytes of the arrays that are read, and of those that are written to."""
    launch, arguments = captured
    launches, parts = launch.kernel.launches(arguments)
    names, written = launches.kernel.parameters, launches.kernel.written
    read = _read(launch.kernel.function)
    return sum(
        part.nbytes * ((i in written) + (names[i] in read))
        for i, part in enumerate(parts)
        if isinstance(part, np.ndarray)
    )


@cache
def _read(function: Any) -> set[str]:
    """Return the names that a function reads an element of, or hands on."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            found.add(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            found.add(node.target.value)
        elif isinstance(node, ast.Call):
            found.update(node.args)
    return {node.id for node in found if isinstance(node, ast.Name)}


# The table ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of the table; its columns are explained at the top of this module."""

    host: str
    launch: int
    kernel: str
    blocks: int
    warps: int
    instructions: float
    issued: float
    float32: float
    special: float
    accesses: float
    wavefronts: float
    sectors: float
    written: float
    megabytes: float
    gpu: str
    microseconds: float
    bound_by: str
    floor: float
    fingerprint: str


MILLIONS = Row._fields[5:13]


def lines(host: str, places: Iterable[int]) -> list[Row]:
    """Return the lines of some launches of a host."""
    found = []
    for place in places:
        launch = captured(host)[place]
        even = _even(captured(host, (2, 2, LENGTHS[-1], SHAPE[3]))[place])
        asked = work(launch, whole(host, place), even)
        gpus = [GPUS[name] for name in NAMES if GPUS[name].capability >= made(launch).oldest]
        found += [_line(host, place, launch, asked, gpu) for gpu in gpus]
    return found


def made(captured: Captured) -> Specialisation:
    """Return the kernel of a launch as the other table knows it."""
    launch, arguments = captured
    return Specialisation(launch.kernel, types_of(arguments), prod(launch.block))


def _line(host: str, place: int, captured: Captured, asked: Work, gpu: GPU) -> Row:
    kernel, blocks = made(captured), prod(captured[0].grid)
    warps = ceil(kernel.threads / WARP)
    fits = occupancy(gpu.capability, (kernel.threads,), *_needs(kernel.fingerprint, gpu))
    kept = min(fits.blocks, ceil(blocks / gpu.multiprocessors))
    least = bound(asked, gpu, blocks, warps, kept)
    amounts = [_short(getattr(asked, name) / 1e6) for name in (*MILLIONS, "bytes")]
    times = _short(least.seconds * 1e6), least.by, _short(least.floor * 1e6)
    cells: list[Any] = [host, place, kernel.name, blocks, kept * warps, *amounts, gpu.name, *times]
    cells.append(kernel.fingerprint)
    return Row(*cells)


def _needs(fingerprint: str, gpu: GPU) -> tuple[int, int]:
    """Return registers and shared memory by the other table, on the newest that is no newer."""
    _, known = needs.read(needs.TABLE)
    of_kernel = {
        tuple(map(int, (digits[:-1], digits[-1]))): (row.registers, row.shared)
        for row in known
        if row.fingerprint == fingerprint and (digits := row.architecture.removeprefix("sm_"))
    }
    return of_kernel[max(each for each in of_kernel if each <= gpu.capability)]


def _short(number: float) -> float:
    """Four digits are enough."""
    return float(f"{number:.4g}")


def wanted() -> dict[str, list[str]]:
    """Return the fingerprints of each host's launches, in order."""
    shape = 2, 2, LENGTHS[-1], SHAPE[3]
    return {host: [made(each).fingerprint for each in captured(host, shape)] for host in HOSTS}


def model() -> str:
    """Return eight digits that change where the way in which all is reckoned may."""
    here = Path(__file__)
    sources = [path.read_text() for path in (here, *sorted((here.parent / "ptx").glob("*.py")))]
    text = [ast.unparse(parsed(each)) for each in (*sources, inspect.getsource(occupancy))]
    figures = [GPUS[name] for name in NAMES], ARCHITECTURES
    return hashlib.sha256(repr((text, figures)).encode()).hexdigest()[:8]


def head() -> str:
    """Return the table's first line: what it depends on beside the kernels."""
    what = f"a bound, float32, (N, H, L, E) = {SHAPE}"
    return f"# {COMMAND}: {what}, {needs.compiled_by()}, model {model()}"


def read(path: Path) -> tuple[str, list[Row]]:
    """Return a table's first line, and its lines; nothing, if there is no table."""
    if not path.exists():
        return "", []
    first, _, *rest = path.read_text().splitlines()
    kinds = get_type_hints(Row).values()
    return first, [_row(line.split("\t"), kinds) for line in rest]


def _row(cells: list[str], kinds: Iterable[Any]) -> Row:
    values: list[Any] = [kind(cell) for kind, cell in zip(kinds, cells, strict=True)]
    return Row(*values)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table."""
    ordered = sorted(rows, key=lambda row: (row.host, row.launch, NAMES.index(row.gpu)))
    text = ["\t".join(f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row)
            for row in ordered]  # fmt: skip
    path.write_text("\n".join([head(), "\t".join(Row._fields), *text, ""]))


def main() -> None:
    """Renew the table: count what it lacks, drop what is no more."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Renew the table of bounds.")
    parser.add_argument("table", nargs="?", type=Path, default=TABLE, help=f"default: {TABLE}")
    path = parser.parse_args().table
    if not needs.available():
        parser.error(f"compiling needs the extra gate: {needs.INSTALL}")
    first, before = read(path)
    of_today = {
        (host, i): each for host, all_of in wanted().items() for i, each in enumerate(all_of)
    }
    kept = [
        row
        for row in (before if first == head() else [])
        if of_today.get((row.host, row.launch)) == row.fingerprint
    ]
    missing = of_today.keys() - {(row.host, row.launch) for row in kept}
    print(f"{len(missing)} of {len(of_today)} launches to count")
    try:
        for found in _all(missing):
            kept += found
    finally:
        write(path, kept)
    print(f"{path} has {len(kept)} lines; git diff shows what changed")


def _all(missing: Iterable[tuple[str, int]]) -> Iterator[list[Row]]:
    """Count launches on all cores; yield their lines."""
    hosts: dict[str, list[int]] = {}
    for host, place in sorted(missing):
        hosts.setdefault(host, []).append(place)
    with ProcessPoolExecutor(num_threads()) as pool:
        futures = [pool.submit(lines, host, places) for host, places in hosts.items()]
        try:
            for future in tqdm(as_completed(futures), total=len(futures), unit="host"):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()

"""What every kernel needs on every GPU, in a table: `python -m minitransformer_kernels.gpu.needs`.

The table has a line for each kernel, with each set of constants and argument types that it is
launched with, on each architecture:

    kernel         its module and its name
    head_dims      of the inputs that lead to it
    numbers        float32, float64, or both, of its arguments
    architecture   sm_75 is Turing, sm_80 Ampere, sm_90 Hopper, sm_100 Blackwell
    threads        of a block
    registers      of a thread
    shared         bytes of a block
    spills         bytes of registers that went to memory
    local          bytes of a thread's arrays that went to memory
    loops          instructions in loops that read or write this memory
    innermost      those of them in loops without another loop inside
    float64        instructions on float64
    blocks         that a multiprocessor keeps at once
    occupancy      their warps, in percent of the most that it could keep
    limit          what keeps it from more
    fingerprint    of the source, the constants, the types and the threads
    constants      that the kernel was made for

A fingerprint is the same until something changes that may change the machine code. So a test
without any compiler can tell whether the table is that of the kernels as they are, and this
command compiles the others alone. The first line of the table says what compiled it, numba-cuda
among them; `pipeline` is a fingerprint of our own part in that. The command needs the extra `gate`,
but no GPU and no driver.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from unittest.mock import patch

import numpy as np
from tqdm import tqdm

from ..arrays import SHARED_BYTES
from ..cpu import num_threads
from . import compilers, cubins, sass
from .gpus import occupancy
from .specialisations import Specialisation, pipeline, specialisations

TABLE = Path("results/gpu/kernels.tsv")
COMMAND = "python -m minitransformer_kernels.gpu.needs"
HEAD_DIMS = 16, 32, 64, 128
DTYPES = np.float32, np.float64
COMPILERS = "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink"
INSTALL = "pip install 'minitransformer[gate]'"
SECONDS = 2.5  # a processor takes to compile a kernel for all architectures, about
MORE_IS_WORSE = "registers", "shared", "spills", "local", "loops", "innermost", "float64"

# Kernels that may break a rule: kernel, numbers and column; and why.
KNOWN = {
    ("fourier.plain.circle", "float64", "innermost"): (
        "NVIDIA's cos and sin reduce angles beyond 10^5 with a table in local memory; here none is "
        "beyond pi"
    ),
    ("delta.residual", "float64", "spills"): (
        "up to sm_90 at head dim 64: a thread has 32 rows of the state, two registers each"
    ),
    ("recurrent.forward", "float64", "spills"): "on sm_100 at head dim 32, likewise",
}
Label = tuple[str, str, str, str, str]


class Row(NamedTuple):
    """A line of the table; its columns are explained at the top of this module."""

    kernel: str
    head_dims: str
    numbers: str
    architecture: str
    threads: int
    registers: int
    shared: int
    spills: int
    local: int
    loops: int
    innermost: int
    float64: int
    blocks: int
    occupancy: int
    limit: str
    fingerprint: str
    constants: str

    @property
    def label(self) -> Label:
        """What tells the line from others, in words."""
        return self.kernel, self.numbers, self.head_dims, self.constants, self.architecture

    def wrong(self) -> dict[str, str]:
        """Return the rules that the kernel breaks: the column, and what is in it."""
        found = {}
        if self.spills:
            found["spills"] = f"{self.spills} bytes of registers are spilled"
        if self.innermost:
            found["innermost"] = f"{self.innermost} accesses to local memory in an innermost loop"
        if self.float64 and self.numbers == "float32":
            found["float64"] = f"{self.float64} float64 instructions"
        if self.shared > SHARED_BYTES:
            found["shared"] = f"{self.shared} bytes of shared memory, of {SHARED_BYTES}"
        if self.blocks == 0:
            found["blocks"] = f"{self.threads} threads of {self.registers} registers do not fit"
        return found

    def worse(self, before: Row) -> list[str]:
        """Return what is worse than it was, with both numbers."""
        pairs = [(name, getattr(before, name), getattr(self, name)) for name in MORE_IS_WORSE]
        found = [f"{name} {old} -> {new}" for name, old, new in pairs if new > old]
        if self.blocks < before.blocks:
            found.append(f"blocks {before.blocks} -> {self.blocks}")
        return found


@cache
def wanted() -> dict[str, tuple[Specialisation, str]]:
    """Return all kernels that the table must have, by fingerprint, and their head dims as text."""
    kernels, head_dims = {}, dict[str, list[str]]()
    for head_dim in HEAD_DIMS:
        for dtype in DTYPES:
            for made in specialisations(head_dim, dtype):
                kernels[made.fingerprint] = made
                dims = head_dims.setdefault(made.fingerprint, [])
                dims.extend({str(head_dim)}.difference(dims))
    return {name: (made, " ".join(head_dims[name])) for name, made in kernels.items()}


def available() -> bool:
    """Return whether everything is installed that the extra `gate` installs."""
    return compilers.name() == "numba-cuda" and cubins.available() and sass.available()


def compiled(fingerprint: str) -> list[Row]:
    """Compile a kernel for every architecture; return its lines."""
    made, head_dims = wanted()[fingerprint]
    try:
        with _typed_once():
            return [_row(made, head_dims, architecture) for architecture in architectures(made)]
    except Exception as error:
        error.add_note(f"in {made.name}, head dim {head_dims}, {numbers(made.types)}")
        raise


def architectures(made: Specialisation) -> list[tuple[int, int]]:
    """Return those of the table that run a kernel."""
    return [architecture for architecture in cubins.ARCHITECTURES if architecture >= made.oldest]


def _row(made: Specialisation, head_dims: str, architecture: tuple[int, int]) -> Row:
    cubin, needs = cubins.build(made.kernel, made.types, architecture)
    # Without a stack there is no local memory: no need to look for accesses to it.
    accesses = sass.local_accesses(cubin) if needs.local else sass.Local(0, 0)
    fits = occupancy(architecture, (made.threads,), needs.registers, needs.shared)
    kernel, numbers, head_dims, constants, name = label(made, head_dims, architecture)
    return Row(
        kernel, head_dims, numbers, name, made.threads,
        needs.registers, needs.shared, needs.spills, needs.local, *accesses, needs.float64,
        fits.blocks, round(100 * fits.share), fits.limit, made.fingerprint, constants,
    )  # fmt: skip


def label(made: Specialisation, head_dims: str, architecture: tuple[int, int]) -> Label:
    """Return what tells the line of a kernel from others, in words."""
    constants = " ".join(f"{name}={value}" for name, value in made.constants.items())
    return made.name, numbers(made.types), head_dims, constants, "sm_{}{}".format(*architecture)


def numbers(types: Iterable[Any]) -> str:
    """Return which kinds of floats are among a kernel's arguments."""
    found = {str(getattr(each, "dtype", each)) for each in types}
    return "+".join(sorted(name for name in found if name.startswith("float")))


def _typed_once() -> Any:
    """Have Numba find the types of a kernel and write its LLVM code once for all architectures.

    What it does there is the same for all of compute capability 7.5 and up.
    """
    from numba.cuda import compiler

    known: dict[Any, Any] = {}
    compile_function = compiler._compile_pyfunc_with_fixup

    def compile_once(function: Any, types: Any, **options: Any) -> Any:
        key = function, types
        if key not in known:
            known[key] = compile_function(function, types, **options)
        return known[key]

    return patch.object(compiler, "_compile_pyfunc_with_fixup", compile_once)


# The table ----------------------------------------------------------------------------------------


def head() -> str:
    """Return the table's first line: what it depends on beside the kernels."""
    return f"# {COMMAND}: {compiled_by()}"


def compiled_by() -> str:
    """Return what makes machine code of the kernels: versions, and our own part in it."""
    versions = [f"{package} {_version(package)}" for package in COMPILERS]
    return f"{', '.join(versions)}, pipeline {pipeline()}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of the system"  # part of a CUDA toolkit


def read(path: Path) -> tuple[str, list[Row]]:
    """Return a table's first line, and its lines; nothing, if there is no table."""
    if not path.exists():
        return "", []
    first, _, *lines = path.read_text().splitlines()
    return first, [_read(line.split("\t")) for line in lines]


def _read(cells: list[str]) -> Row:
    kinds = get_type_hints(Row).values()
    values: list[Any] = [kind(cell) for kind, cell in zip(kinds, cells, strict=True)]
    return Row(*values)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in sorted(rows, key=_order)]
    path.write_text("\n".join([head(), "\t".join(Row._fields), *lines, ""]))


def _order(row: Row) -> Any:
    architecture = int(row.architecture.removeprefix("sm_"))
    return row.kernel, row.numbers, int(row.head_dims.split()[0]), row.constants, architecture


def main() -> None:
    """Renew a table: compile what it lacks, drop what is no more, and say what got worse."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Renew the table of all kernels.")
    parser.add_argument("table", nargs="?", type=Path, default=TABLE, help=f"default: {TABLE}")
    path = parser.parse_args().table
    if not available():
        parser.error(f"compiling needs the extra gate: {INSTALL}")
    first, before = read(path)
    kept = [row for row in before if row.fingerprint in wanted()] if first == head() else []
    rows = [row._replace(head_dims=wanted()[row.fingerprint][1]) for row in kept]
    missing = sorted(wanted().keys() - {row.fingerprint for row in rows})
    minutes = SECONDS * len(missing) / num_threads() / 60
    print(f"{len(missing)} of {len(wanted())} kernels to compile: {minutes:.0f} min")
    try:
        for found in compile_all(missing):
            rows.extend(found)
    finally:
        write(path, rows)
    for line in report(before, rows):
        print(line)
    print(f"{path} has {len(rows)} lines; git diff shows what changed")


def compile_all(fingerprints: list[str]) -> Iterator[list[Row]]:
    """Compile kernels on all cores; yield the lines of each."""
    with ProcessPoolExecutor(num_threads()) as pool:
        futures = [pool.submit(compiled, fingerprint) for fingerprint in fingerprints]
        try:
            done = tqdm(
                as_completed(futures), total=len(futures), unit="kernel", disable=not futures
            )
            for future in done:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def report(before: Iterable[Row], after: Iterable[Row]) -> Iterator[str]:
    """Yield what is worse than before, and what is against the rules."""
    old = {row.label: row for row in before}
    for row in after:
        name = f"{row.kernel}, head dim {row.head_dims}, {row.numbers}, {row.architecture}"
        if row.label in old and (worse := row.worse(old[row.label])):
            yield f"worse: {name}: {', '.join(worse)}"
        for column, what in row.wrong().items():
            if (row.kernel, row.numbers, column) not in KNOWN:
                yield f"wrong: {name}: {what}"


if __name__ == "__main__":
    main()

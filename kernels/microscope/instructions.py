"""What each line of a kernel becomes: its PTX instructions, and how often each runs.

The launch runs on the PTX machine, warp by warp, so every number is counted, none estimated. The
compiler moves instructions, and shares them between lines; those that it calls nobody's stand at
the end. How many registers these instructions get, and in which order they run, NVIDIA's assembler
decides afterwards.
"""

from __future__ import annotations

import linecache
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from textwrap import dedent
from typing import TYPE_CHECKING, Any, cast

from numba.core.errors import NumbaError

from .. import host
from ..cpu import KernelError
from ..cpu.launch import unchanged
from ..cpu.source import lines_of
from ..cuda import Launch
from ..gpu import codegen, cubins
from ..gpu.gpus import ARCHITECTURES
from .units import aligned, count_text, plural, ratio_text, shape_text

if TYPE_CHECKING:
    from ..gpu.ptx import Profile, Row

MISSING = (
    "the PTX of a kernel needs the extra gate, `pip install 'minitransformer[gate]'`; no GPU is "
    "needed"
)
_LEGEND = """\
PTX: instructions in the text. issued: how often a warp made one, all its lanes together. lanes:
share of them for which it was made. cost: sectors of 32 bytes of global memory that an access of a
warp moves, or wavefronts (turns) of shared memory that it takes."""
_NOBODYS = "(of no line: the compiler's own, or shared between lines)"


class NoCompiler(ValueError):
    """The extra is not installed that compiles kernels for GPUs."""


@dataclass(frozen=True)
class PtxLine:
    """A line of the source, and what it became.

    Attributes:
        file: Where it stands; "" for what is of no line.
        number: In that file, from 1; 0 for what is of no line.
        text: As it is written, without the indentation of the whole kernel.
        rows: Its instructions, in the order of the PTX.
    """

    file: str
    number: int
    text: str
    rows: tuple[Row, ...]

    @property
    def issued(self) -> int:
        """How often a warp made one of its instructions."""
        return sum(row.warps for row in self.rows)

    @property
    def kinds(self) -> dict[str, list[Row]]:
        """Its instructions by kind, such as "address" or "load shared 16 B"."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.label, []).append(row)
        return found


@dataclass(frozen=True)
class Instructions:
    """The instructions that a launch executes: `print` them, or ask.

    Attributes:
        launch: The kernel with its configuration.
        architecture: For which it was compiled.
        profile: What ran.
        unhinted: What would run had the compiler not been told what `gpu.codegen` tells it; None
            where that was not asked for.
    """

    launch: Launch
    architecture: str
    profile: Profile
    unhinted: Profile | None = None

    @cached_property
    def lines(self) -> list[PtxLine]:
        """Every line of the kernel, then what comes from elsewhere and has run."""
        function = self.launch.kernel.function
        file = function.__code__.co_filename
        source, first = lines_of(function)
        texts = {
            (file, number): text
            for number, text in enumerate(dedent("".join(source)).splitlines(), first)
        }
        rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in self.profile.rows:
            rows[(row.file, row.line) if row.line else ("", 0)].append(row)
        others = sorted({*rows} - {*texts}, key=lambda place: (not place[1], place))
        texts |= {place: linecache.getline(*place).strip() or _NOBODYS for place in others}
        return [PtxLine(*place, text, tuple(rows[place])) for place, text in texts.items()]

    @property
    def issued(self) -> int:
        """How often a warp made an instruction."""
        return self.profile.issued

    def by_kind(self, what: str = "warps") -> Counter[str]:
        """Add up a column of the rows, by their kinds, most first."""
        return Counter(dict(self.profile.by(_label, what).most_common()))

    def __str__(self) -> str:
        parts = [[_title(self)], [*_lines(self), "", _LEGEND], [*_kinds(self)]]
        return "\n\n".join("\n".join(part) for part in parts)


def inspect_ptx(
    launch: Launch, *arguments: Any, architecture: str = "8.0", hints: bool = True
) -> Instructions:
    """Count what a launch executes, instruction by instruction.

    Args:
        launch: A kernel with its configuration, `kernel[blocks, threads]`.
        arguments: What the kernel would be called with: NumPy arrays and numbers. They are not
            modified.
        architecture: The compute capability to compile for.
        hints: Whether to count also what would run without what `gpu.codegen` tells the compiler.

    Returns:
        What was counted.

    Raises:
        NoCompiler: The extra `gate` is not installed.
        KernelError: The kernel does not compile for GPUs, or did something that they do not allow.
        ValueError: The architecture is none.
    """

    def counted() -> Profile:
        from ..gpu.ptx import run

        with tried(launch, arguments) as given:
            return cast("Profile", run(launch, given, capability(architecture), counted=True))

    profile = counted()
    if not hints:
        return Instructions(launch, architecture, profile)
    with codegen.hints():
        return Instructions(launch, architecture, profile, counted())


@contextmanager
def tried(launch: Launch, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments of a launch as the PTX machine takes them; in the end they are as they were.

    Raises:
        NoCompiler: The extra `gate` is not installed.
        KernelError: The kernel does not compile for GPUs.
    """
    if not cubins.available():
        raise NoCompiler(MISSING)
    given = launch.kernel.completed(host.opened(arguments))
    try:
        with unchanged(given):
            yield given
    except NumbaError as error:
        name = launch.kernel.__name__
        raise KernelError(f"kernel {name!r} does not compile for a GPU: {error}") from error


def compare_ptx(found: Mapping[str, Instructions]) -> str:
    """Write what kernels execute beside each other, kind by kind, and the last over the first.

    Args:
        found: What each executes, by the names that the columns get.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(found) < 2:
        raise ValueError(f"compare_ptx needs two kernels or more, got {len(found)}")
    each = list(found.values())
    columns = [one.by_kind() for one in each]
    labels = sorted(set().union(*columns), key=lambda x: (-max(c[x] for c in columns), x))
    counts = {f"issued: {label}": [column[label] for column in columns] for label in labels}
    counts["issued"] = [one.issued for one in each]
    for what, name in _TOTALS.items():
        counts[name] = [sum(one.by_kind(what).values()) for one in each]
    rows = [["", *found, "last / first"]]
    for name, numbers in counts.items():
        if any(numbers):
            rows.append([name, *(f"{number:,}" for number in numbers), ratio_text(numbers)])
    return "\n".join(aligned(rows))


_TOTALS = {"executions": "by threads", "sectors": "sectors", "wavefronts": "wavefronts"}
_label = attrgetter("label")


def capability(text: str) -> tuple[int, int]:
    """Return a compute capability from how a user writes it.

    Raises:
        ValueError: No GPU known here has it.
    """
    known = {f"{major}.{minor}": (major, minor) for major, minor in ARCHITECTURES}
    if text not in known:
        raise ValueError(f"architecture must be one of {', '.join(known)}, got {text!r}")
    return known[text]


# As text ------------------------------------------------------------------------------------------

_HEAD = "line", "PTX", "issued", "share", "lanes", "cost"


def _title(found: Instructions) -> str:
    launch, rows = found.launch, found.profile.rows
    where = os.path.relpath(found.lines[0].file)
    grid, block = shape_text(launch.grid), shape_text(launch.block)
    return (
        f"{launch.kernel.__name__}  ({where}:{found.lines[0].number})  grid {grid}, block {block}, "
        f"sm_{found.architecture.replace('.', '')}\n"
        f"{plural(len(rows), 'instruction')} in the PTX; warps issued {found.issued:,}, for "
        f"{found.profile.instructions:,} of threads"
    )


def _lines(found: Instructions) -> Iterator[str]:
    rows, file = [[*_HEAD, "source, and what it became"]], found.lines[0].file
    for line in found.lines:
        if line.file not in (file, ""):
            rows.append([*[""] * len(_HEAD), f"in {os.path.relpath(line.file)}:"])
        file = line.file or file
        *cells, _ = _cells(line.rows, found.issued)
        rows.append([str(line.number or ""), *cells, "", line.text])
        indent = " " * (len(line.text) - len(line.text.lstrip()) + 4)
        for label, of_kind in line.kinds.items():
            text = f"{indent}{label}: {_operations(of_kind)}"
            rows.append(["", *_cells(of_kind, found.issued), text])
    yield from aligned(rows, ">" * len(_HEAD) + "<", "  ")


def _cells(rows: Sequence[Row], issued: int) -> list[str]:
    warps = sum(row.warps for row in rows)
    if not warps:
        return [str(len(rows)) if rows else "", "0" if rows else "", "", "", ""]
    lanes = sum(row.executions for row in rows) / (32 * warps)
    share = f"{warps / issued:.1%}"
    return [str(len(rows)), count_text(warps), share, f"{lanes:.0%}", _cost(rows)]


def _cost(rows: Sequence[Row]) -> str:
    requests = sum(row.requests for row in rows)
    for what, unit in (("sectors", "sector"), ("wavefronts", "wavefront")):
        if total := sum(getattr(row, what) for row in rows):
            mean = f"{total / requests:.3g}"
            return f"{mean} {unit}{'s' * (mean != '1')}"
    return ""


def _operations(rows: Iterable[Row]) -> str:
    """The names of instructions, each once, with how many there are."""
    names = Counter(row.text.split(" ", 2)[row.text.startswith("@")].rstrip(";") for row in rows)
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in names.items())


def _kinds(found: Instructions) -> Iterator[str]:
    """What is issued of each kind, and without hints."""
    hinted, plain = found.by_kind(), found.unhinted and found.unhinted.by(_label, "warps")
    text = Counter(row.label for row in found.profile.rows)
    rows = [["kind", "PTX", "issued", "share", *(["without hints"] if plain else [])]]
    for label in sorted({*hinted, *(plain or ())}, key=lambda label: (-hinted[label], label)):
        numbers = [f"{text[label]}", f"{hinted[label]:,}", f"{hinted[label] / found.issued:.1%}"]
        rows.append([label, *numbers, *([f"{plain[label]:,}"] if plain else [])])
    rows.append(["in all", f"{text.total()}", f"{found.issued:,}", "", *(
        [f"{found.unhinted.issued:,}"] if found.unhinted else [])])  # fmt: skip
    yield from aligned(rows)
    if found.unhinted:
        saved = 1 - found.issued / found.unhinted.issued
        yield ""
        yield f"What `gpu.codegen` tells the compiler saves {saved:.1%} of the instructions issued."

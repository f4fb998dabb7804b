"""`minitransformer inspect`: what each line of a kernel asks of a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..settings import PNG, Option, integer, shape
from .shared import add_options, refuse

OPTIONS = {
    "shared": Option(0, integer(0)._replace(metavar="BYTES"), "dynamic shared memory of a block"),
    "seed": Option(0, integer(0), "decides the arrays"),
}


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "inspect",
        help="what each line of a kernel asks of a GPU, found without one",
        description="Run a kernel on the CPU and count, line by line, what it asks of a GPU:\n"
        "sectors of global memory, bank conflicts, idle lanes, arithmetic; and what\n"
        "bounds its speed. With --ptx: what instructions each line becomes on a GPU,\n"
        "and how often each runs.",
        epilog="targets:\n"
        "  softmax                    the kernels of an attention, on a small example;\n"
        "                             a name that is none lists all\n"
        "  softmax.forward            one of them\n"
        "  file.py, file.py:kernel    what example() in that file launches\n"
        "  file.py:kernel, with grid  that kernel, on random arrays\n"
        "  and block\n"
        "examples:\n"
        "  minitransformer inspect mine.py:first mine.py:second\n"
        "  minitransformer inspect softmax.forward --gpu H200 --picture forward.png\n"
        "  minitransformer inspect --ptx mine.py:first mine.py:second\n"
        "  minitransformer inspect mine.py:transpose --grid 2,2 --block 32,32 \\\n"
        "      --arrays 'float32[64,64]' 'float32[64,64]'",
    )
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="which kernel; see below. Several are compared"
    )
    add_launch(parser)
    parser.add_argument(
        "--gpu", default="H100", metavar="NAME", help="for the roofline (default: H100)"
    )
    parser.add_argument("--picture", type=PNG.parse, metavar=PNG.metavar, help="draw it, too")
    parser.add_argument(
        "--no-compiled",
        action="store_true",
        help="leave out registers, spills and occupancy",
    )
    parser.add_argument(
        "--ptx",
        action="store_true",
        help="count the PTX instructions of each line in place of that",
    )
    parser.add_argument(
        "--architecture",
        default="8.0",
        metavar="X.Y",
        help="compute capability that --ptx compiles for (default: 8.0)",
    )
    parser.set_defaults(command=run, parser=parser)


def add_launch(parser: Any) -> None:
    """Offer to say how a kernel is launched."""
    parser.add_argument("--grid", type=shape, metavar="X[,Y[,Z]]", help="blocks of the launch")
    parser.add_argument("--block", type=shape, metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument(
        "--arrays",
        nargs="*",
        default=[],
        metavar="ARGUMENT",
        help="the kernel's arguments: arrays float32[64,64], numbers 7 or float32(0.5)",
    )
    add_options(parser, OPTIONS)


def looked(
    options: argparse.Namespace, target: str, small: bool = False, **how: Any
) -> dict[str, Any]:
    """Look at what a target means, launched as the options say; return what was found by kernel.

    `small` takes shorter arrays for an attention's example.
    """
    from minitransformer_kernels.cpu import KernelError
    from minitransformer_kernels.microscope import targets

    if (options.grid is None) != (options.block is None):
        raise OptionError("arguments --grid and --block: give both, or neither")
    if options.grid is None:
        refuse(options, "it needs --grid and --block", "arrays", "shared")
    launch = options.grid, options.block, options.arrays, options.shared
    try:
        if options.grid is None:
            shape = targets.SMALL if small else targets.SHAPE
            return targets.reports(target, seed=options.seed, shape=shape, **how)
        return targets.launched(target, *launch, seed=options.seed, **how)
    except (KernelError, ValueError) as error:
        raise OptionError(error) from error


def run(options: argparse.Namespace) -> int:
    """Print what was found; return the exit code."""
    from minitransformer_kernels.microscope import compare, compare_ptx, inspect_ptx

    how: dict[str, Any] = {"gpu": options.gpu, "compiled": not options.no_compiled}
    if options.ptx:
        if options.picture is not None:
            raise OptionError("argument --picture: it shows no PTX; leave out one of the two")
        refuse(options, "--ptx does not look at it; leave out one of the two", "gpu", "no_compiled")
        how = {"look": inspect_ptx, "architecture": options.architecture}
    else:
        refuse(options, "it needs --ptx", "architecture")
    reports: dict[str, Any] = {}
    for target in options.targets:
        found = looked(options, target, **how)
        reports |= {_unlike(reports, name, target): each for name, each in found.items()}
    print("\n\n\n".join(map(str, reports.values())))
    if len(options.targets) > 1:
        print(f"\n\n{(compare_ptx if options.ptx else compare)(reports)}")
    if options.picture is not None:
        _draw_kernel(reports, options.picture)
    return 0


def _unlike(reports: dict[str, Any], name: str, target: str) -> str:
    """A name that no other report has: kernels of different files may have the same."""
    if name not in reports:
        return name
    return target if target not in reports else f"{target}, {len(reports) + 1}"


def _draw_kernel(reports: dict[str, Any], path: Path) -> None:
    if len(reports) > 1:
        raise OptionError(f"argument --picture: name one of the kernels {', '.join(reports)}")
    (report,) = reports.values()
    report.picture(path)
    print(f"\n{path}")

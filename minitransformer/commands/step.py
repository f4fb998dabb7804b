"""`minitransformer step`: through a small launch, instruction by instruction."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ..errors import OptionError, UserError
from ..settings import HTML, Option, integer
from .inspect import add_launch, looked
from .shared import add_options

BLOCK = {"number": Option(0, integer(0), "which block to walk through, those along x first")}
NO_SCREEN = (
    "the screen needs the extra step, `pip install 'minitransformer[step]'`; --html FILE.html "
    "makes a page for a browser without it"
)


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "step",
        help="through a kernel's PTX, instruction by instruction, without a GPU",
        description="Walk through a block of a small launch, warp by warp, forward and back:\n"
        "the line of the source, its PTX, who makes it, registers by their names in the\n"
        "source as far as these are known, and shared memory by its banks.",
        epilog="keys: right and left go a step; l and k to another line; w stays with a warp;\n"
        "up and down choose the lane whose registers are shown; home, end, q.\n"
        "examples:\n"
        "  minitransformer step mine.py:transpose --number 1\n"
        "  minitransformer step softmax.forward --html forward.html\n"
        "  minitransformer step mine.py:add --grid 1 --block 32 \\\n"
        "      --arrays 'float32[32]' 'float32[32]' 'float32[32]'",
    )
    parser.add_argument(
        "target", metavar="TARGET", help="FILE.py:KERNEL, or as for `minitransformer inspect`"
    )
    add_launch(parser)
    add_options(parser, BLOCK)
    parser.add_argument(
        "--architecture",
        default="8.0",
        metavar="X.Y",
        help="compute capability to compile for (default: 8.0)",
    )
    parser.add_argument(
        "--html", type=HTML.parse, metavar=HTML.metavar, help="write a page instead, to go offline"
    )
    parser.set_defaults(command=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Show the steps on the screen, or write the page; return the exit code."""
    from minitransformer_kernels.microscope import stepping

    how = {"architecture": options.architecture, "block": options.number}
    recordings = looked(options, options.target, small=True, look=partial(stepping.record, **how))
    if len(recordings) > 1:
        raise OptionError(f"argument TARGET: name one of the kernels {', '.join(recordings)}")
    (recording,) = recordings.values()
    if options.html is not None:
        options.html.write_text(stepping.page(recording), encoding="utf-8")
        print(options.html)
        return 0
    try:
        from minitransformer_kernels.microscope.stepping.screen import show
    except ImportError as error:
        raise UserError(NO_SCREEN) from error
    show(recording)
    return 0

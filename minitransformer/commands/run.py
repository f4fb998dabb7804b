"""`minitransformer run`: a script that was written for a GPU, on a machine without one."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import OptionError
from ..settings import Option, integer
from .shared import add_options, refuse

OPTIONS = {"launch": Option(1, integer(1), "which launch of a kernel to inspect")}


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "run",
        help="a script for GPUs, without one",
        description="Run a Python script, unchanged, that says `from numba import cuda` or\n"
        "`from numba_cuda_mlir import cuda`: its kernels run on the CPU, and so does all\n"
        "around them. A GPU is left alone, if there is one. Tests run so, too:\n"
        "  pytest -p minitransformer_kernels.without_gpu",
        epilog="examples:\n"
        "  minitransformer run saxpy.py --size 1000\n"
        "  minitransformer run --inspect --kernel saxpy --launch 3 saxpy.py\n"
        "  MINITRANSFORMER_CHECK=1 minitransformer run saxpy.py",
    )
    parser.add_argument(
        "--inspect", action="store_true", help="put each kernel's first launch under the microscope"
    )
    parser.add_argument("--kernel", metavar="NAME", help="inspect the launch of this kernel only")
    add_options(parser, OPTIONS)
    parser.add_argument("--gpu", default="H100", metavar="NAME", help="for its roofline")
    parser.add_argument("script", metavar="SCRIPT.py", type=Path, help="the script")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="what the script gets"
    )
    rest.required = False  # there may be nothing
    parser.set_defaults(command=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Run the script as Python would; return the exit code."""
    from minitransformer_kernels import without_gpu

    if not options.script.is_file():
        raise OptionError(f"argument SCRIPT.py: there is no file {str(options.script)!r}")
    if not options.inspect:
        refuse(options, "it needs --inspect", "kernel", "launch", "gpu")
    script = str(options.script)
    sys.argv = [script, *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    without_gpu.install()
    try:
        if options.inspect:
            _inspected(script, options)
        else:
            runpy.run_path(script, run_name="__main__")
    except OptionError:
        raise
    except Exception as error:
        error = error.with_traceback(_from(script, error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _inspected(script: str, options: argparse.Namespace) -> None:
    """Run the script, and print what was seen of its kernels after all that it printed itself."""
    from minitransformer_kernels import microscope
    from minitransformer_kernels.gpu import gpus

    ended: list[Exception | SystemExit] = []

    def execute() -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except (Exception, SystemExit) as end:
            ended.append(end)

    try:
        gpus.find(options.gpu)
    except ValueError as error:
        raise OptionError(f"argument --gpu: {error}") from error
    try:
        how = {"gpu": options.gpu, "compiled": False}  # while numba.cuda is not itself
        reports = microscope.watch(execute, options.kernel, options.launch, **how)
    except microscope.NotLaunched as error:
        if ended and not isinstance(ended[0], SystemExit):
            raise ended[0] from None  # before a kernel came to its launch
        raise OptionError(f"{script}: {error}") from error
    print("\n\n\n".join(["", *map(str, reports.values())]))
    if ended:
        raise ended[0]


def _from(script: str, trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames around the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace

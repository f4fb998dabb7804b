"""The command line: `minitransformer train TASK`, `copy`, `read`, `runs`, `inspect`, `course`, ...

Whatever a user can cause ends in one line on stderr: exit code 2 for an option that makes no sense,
1 for a file or a machine that does not play along, 128 + the signal's number for an interruption.

Each command's file adds its parser, and imports what the command needs when it runs: neither help
nor the doctor's report about a broken library may depend on that library.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import __version__
from ..errors import UserError, reason
from ..machine import launched
from . import answer, course, doctor, experiment, export, inspect, plan, run, runs, step, train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of this process; return the exit code."""
    parser = _parser()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show
    try:
        options = parser.parse_args(arguments)
        parser = options.parser
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except _Misused as error:
        return _complain(error.parser, error, 2)
    except UserError as error:
        return _complain(parser, error, error.exit_code)
    except MemoryError:
        return _complain(
            parser, "not enough memory; try a smaller model, length, batch or array", 1
        )
    except KeyboardInterrupt:
        return _complain(parser, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read our output has stopped reading; Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        where = error.filename or "standard output or a file"
        return _complain(parser, f"{where}: {reason(error)}", 1)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="minitransformer",
        description="Transformers and linear attention on hand-written kernels.",
        epilog="Each command explains itself: minitransformer train copy --help",
    )
    parser.add_argument("--version", action="version", version=f"minitransformer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        train, answer, runs, export, inspect, step, run, plan, course, experiment, doctor,
    ):  # fmt: skip
        command.add_to(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which takes no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise _Misused(self, message)


class _Misused(Exception):
    """Words that a parser does not understand."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


def _complain(parser: argparse.ArgumentParser, problem: object, code: int) -> int:
    if launched()[1] > 1 and "mpi4py.MPI" not in sys.modules:
        from ..parallel.ranks import refuse

        problem = refuse(str(problem), code)
    print(f"{parser.prog}: error: {problem}", file=sys.stderr)
    return code

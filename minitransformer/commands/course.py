"""`minitransformer course`: the lessons, a student's progress, and what is made of lessons."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, UserError
from ..settings import Option, integer
from .shared import add_options

if TYPE_CHECKING:
    from ..course.judge import Verdict

STUDENT = Path("minitransformer-course")
SITE = Path("site")
SEED = Option(None, integer(0), "decides the hidden cases, to see the same again")


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "course",
        help="lessons from six tokens to your own attention: start, check, progress, build",
        description="The course: lessons that you read, run and answer, without a GPU.",
        epilog="examples:\n"
        "  minitransformer course list\n"
        "  minitransformer course start 0\n"
        "  minitransformer course check 01_first_kernel.ipynb\n"
        "  minitransformer course progress",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listed = actions.add_parser("list", help="what there is to learn")
    listed.set_defaults(command=_list, parser=listed)

    start = actions.add_parser("start", help="put lessons into a folder of yours, and open them")
    start.add_argument("lesson", nargs="?", help="a number or a name; all by default")
    start.add_argument(
        "--folder", type=Path, default=STUDENT, help=f"where to (default: {STUDENT})"
    )
    start.add_argument("--no-open", action="store_true", help="do not open JupyterLab")
    start.set_defaults(command=_start, parser=start)

    check = actions.add_parser(
        "check",
        help="judge the answers of a file, or of each file in a folder",
        description="Judge answers: each runs alone, on inputs that nobody knows, within limits.",
    )
    check.add_argument("path", type=Path, metavar="FILE", help="a script, a notebook, or a folder")
    check.add_argument("--json", action="store_true", help="for a program to read")
    add_options(check, {"seed": SEED})
    check.set_defaults(command=_check, parser=check)

    progress = actions.add_parser("progress", help="which exercises of your folder pass")
    progress.add_argument(
        "--folder", type=Path, default=STUDENT, help="which (default: %(default)s)"
    )
    progress.set_defaults(command=_progress, parser=progress)

    build = actions.add_parser(
        "build",
        help="make notebooks and a site that needs no network",
        description="Run the lessons, and make of them notebooks with what they print, notebooks "
        "to fill in,\nand a site that opens without a network.",
    )
    build.add_argument("lessons", nargs="*", help="numbers or names; all by default")
    build.add_argument("--out", type=Path, default=SITE, help="where to (default: %(default)s)")
    build.add_argument("--fast", action="store_true", help="small sizes: timings say little")
    build.set_defaults(command=_build, parser=build)

    pages = actions.add_parser(
        "pages",
        help="renew the lessons' Markdown pages, which a code host shows",
        description="Run the lessons, and write them as Markdown with their figures into the "
        "pages/\nbeside them; renew the table in the README there.",
    )
    pages.add_argument("lessons", nargs="*", help="numbers or names; all by default")
    pages.add_argument("--fast", action="store_true", help="small sizes: timings say little")
    pages.set_defaults(command=_pages, parser=pages)


def _list(options: argparse.Namespace) -> int:
    from ..course.lesson import lessons

    for lesson in lessons():
        print(f"{lesson.number:2}  {lesson.title}  ({lesson.minutes} min, "
              f"{len(lesson.exercises)} exercises)\n      {lesson.question}")  # fmt: skip
    return 0


def _start(options: argparse.Namespace) -> int:
    from ..course.student import hand_out, open_notebooks

    handed = hand_out(options.folder, options.lesson)
    for path, is_new in handed:
        print(f"{path}" if is_new else f"{path}: yours is kept")
    if not options.no_open:
        return open_notebooks(options.folder, handed[0][0])
    return 0


def _check(options: argparse.Namespace) -> int:
    from ..course.judge import judge

    if options.path.is_dir():
        return _check_folder(options)
    verdicts = []
    for verdict in judge(options.path, options.seed):
        verdicts.append(verdict)
        if not options.json:
            print(_line(verdict), flush=True)
    if options.json:
        print(json.dumps([verdict.as_dict() for verdict in verdicts], indent=2))
    elif not verdicts:
        raise UserError(f"{options.path}: there is no exercise of the course in it")
    else:
        print(f"{_points(verdicts)} points")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _check_folder(options: argparse.Namespace) -> int:
    """A table: a line for each file, a column for each exercise that any has."""
    from ..course.judge import judge

    files = sorted(p for p in options.path.iterdir() if p.suffix in (".py", ".ipynb"))
    if not files:
        raise OptionError(f"{options.path}: there are no scripts and no notebooks")
    found: dict[str, dict[str, Verdict]] = {}
    for file in files:
        try:
            found[file.name] = {v.exercise: v for v in judge(file, options.seed)}
        except UserError:
            found[file.name] = {}
    if options.json:
        shown = {name: [v.as_dict() for v in vs.values()] for name, vs in found.items()}
        print(json.dumps(shown, indent=2))
        return 0
    columns = list(dict.fromkeys(name for verdicts in found.values() for name in verdicts))
    rows = [
        [name, *(_mark(verdicts.get(c)) for c in columns), _points(verdicts.values())]
        for name, verdicts in found.items()
    ]
    _print_table(["file", *columns, "points"], rows)
    return 0


def _progress(options: argparse.Namespace) -> int:
    from ..course.judge import judge
    from ..course.student import notebooks

    found = notebooks(options.folder)
    if not found:
        raise UserError(
            f"{options.folder}: there are no lessons; begin with `minitransformer course start`"
        )
    for path in found:
        verdicts = list(judge(path))
        done = sum(verdict.passed for verdict in verdicts)
        bar = "".join("#" if verdict.passed else "." for verdict in verdicts)
        print(f"{path.stem}  [{bar}]  {done} of {len(verdicts)} exercises", flush=True)
        for verdict in verdicts:
            if not verdict.passed:
                print(f"    next: {verdict.exercise}: {verdict.message}")
                break
    return 0


def _build(options: argparse.Namespace) -> int:
    from ..course.publish import build

    for path in build(options.lessons, options.out, fast=options.fast):
        print(path)
    return 0


def _pages(options: argparse.Namespace) -> int:
    from ..course.publish import pages

    for path in pages(options.lessons, fast=options.fast):
        print(path)
    return 0


def _line(verdict: Verdict) -> str:
    word = "passed" if verdict.passed else "failed"
    return f"{word}  {verdict.exercise}: {verdict.message}  [{verdict.seconds:.1f} s]"


def _mark(verdict: Verdict | None) -> str:
    return "-" if verdict is None else str(verdict.points)


def _points(verdicts: Iterable[Verdict]) -> str:
    verdicts = list(verdicts)
    return f"{sum(v.points for v in verdicts)} of {sum(v.possible for v in verdicts)}"


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )

"""`minitransformer course`: the lessons, a student's progress, and what is made of lessons."""

from __future__ import annotations

import argparse
import json
import signal
import textwrap
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..settings import Option, integer
from .shared import add_options, command_line

if TYPE_CHECKING:
    from ..course.judge import Verdict

STUDENT = Path("minitransformer-course")
SITE = Path("site")
CHANGED = "; the lesson has changed since"
NOTHING = "there is no exercise of the course in it"
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
        f"  minitransformer course check {STUDENT / '01_first_kernel.ipynb'}\n"
        "  minitransformer course progress",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listed = actions.add_parser("list", help="what there is to learn")
    listed.set_defaults(command=_list, parser=listed)

    start = actions.add_parser("start", help="put lessons into a folder of yours, and open them")
    start.add_argument("lesson", nargs="?", help="a number, a name or a title; all by default")
    _add_folder(start, "where to")
    start.add_argument("--scripts", action="store_true", help="Python files, not notebooks")
    start.add_argument("--no-open", action="store_true", help="do not open JupyterLab")
    start.set_defaults(command=_start, parser=start)

    check = actions.add_parser(
        "check",
        help="judge the answers of a file, or of each file in a folder",
        description="Judge answers: each runs alone, on inputs that nobody knows, within limits:\n"
        "60 s, 30 s of computing, 1 GiB, files of 64 MiB. On Windows only the clock is\n"
        "held. Who judges answers of strangers puts a container around it.\n\n"
        "Of a folder, and of the folders in it, comes a table, a line for each file.",
    )
    check.add_argument("path", type=Path, metavar="FILE", help="a script, a notebook, or a folder")
    check.add_argument("--json", action="store_true", help="for a program to read")
    add_options(check, {"seed": SEED})
    check.set_defaults(command=_check, parser=check)

    progress = actions.add_parser("progress", help="which exercises of your folder pass")
    _add_folder(progress, "which")
    progress.set_defaults(command=_progress, parser=progress)

    build = actions.add_parser(
        "build",
        help="make notebooks and a site that needs no network",
        description="Run the lessons, and make of them notebooks with what they print, notebooks "
        "to fill in,\nand a site that opens without a network.",
    )
    _add_lessons(build)
    build.add_argument("--out", type=Path, default=SITE, help="where to (default: %(default)s)")
    build.set_defaults(command=_build, parser=build)

    pages = actions.add_parser(
        "pages",
        help="renew the lessons' Markdown pages, which a code host shows",
        description="Run the lessons, and write them as Markdown with their figures into the "
        "pages/\nbeside them; renew the table in the README there.",
    )
    _add_lessons(pages)
    pages.set_defaults(command=_pages, parser=pages)


def _add_lessons(parser: Any) -> None:
    parser.add_argument("lessons", nargs="*", help="numbers or names; all by default")
    parser.add_argument("--fast", action="store_true", help="small sizes: timings say little")


def _add_folder(parser: Any, which: str) -> None:
    parser.add_argument("--folder", type=Path, help=f"{which} (default: {STUDENT})")


def _folder(options: argparse.Namespace) -> Path:
    """The student's folder: who works in it means it."""
    if options.folder:
        return Path(options.folder)
    return Path() if Path.cwd().name == STUDENT.name else STUDENT


def _list(options: argparse.Namespace) -> int:
    from ..course.lesson import lessons

    for lesson in lessons():
        print(f"{lesson.number:2}  {lesson.title}  ({lesson.minutes} min, "
              f"{len(lesson.exercises)} exercises)\n      {lesson.question}")  # fmt: skip
    return 0


def _start(options: argparse.Namespace) -> int:
    from ..course.student import can_open, hand_out, open_notebooks

    handed = hand_out(_folder(options), options.lesson, scripts=options.scripts)
    for path, is_new, is_outdated in handed:
        print(path if is_new else f"{path}: yours is kept{CHANGED * is_outdated}")
    first = handed[0].path
    if any(one.is_outdated for one in handed):
        print("\nTo see a lesson as it is now: minitransformer course start N --folder now")
    check = command_line("course", "check", str(first))
    print(f"\nDo the exercises, then see what is right:\n  {check}")
    if options.scripts or options.no_open:
        return 0
    if not can_open():
        print("\nJupyterLab is not installed. To have it, or open the notebooks in any other "
              'program:\n  pip install "minitransformer[course]"')  # fmt: skip
        return 0
    print("\nJupyterLab opens; Ctrl-C here ends it.", flush=True)
    return open_notebooks(first)


@dataclass(frozen=True)
class _Report:
    """What came of a file: verdicts, or why there are none."""

    file: str
    seed: int
    verdicts: Sequence[Verdict]
    problem: str | None = None

    @property
    def points(self) -> str:
        return _points(self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file, "seed": self.seed, "problem": self.problem,
            "points": sum(v.points for v in self.verdicts),
            "possible": sum(v.possible for v in self.verdicts),
            "exercises": [asdict(v) for v in self.verdicts],
        }  # fmt: skip


def _check(options: argparse.Namespace) -> int:
    from ..course.judge import judge, new_seed

    _end_like_ctrl_c()
    seed = new_seed() if options.seed is None else options.seed
    if options.path.is_dir():
        return _check_folder(options, seed)
    verdicts = []
    for verdict in judge(options.path, seed):
        verdicts.append(verdict)
        if not options.json:
            print(_lines(verdict), flush=True)
    if not verdicts:
        raise UserError(f"{options.path}: {NOTHING}")
    report = _Report(str(options.path), seed, verdicts)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(f"{report.points} points; the same cases again: --seed {seed}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _check_folder(options: argparse.Namespace, seed: int) -> int:
    from tqdm import tqdm

    from ..course.student import files

    found = files(options.path)
    if not found:
        raise UserError(f"{options.path}: there are no notebooks and no scripts in it")
    reports: list[_Report] = []
    try:
        for path in tqdm(found, unit="file", disable=None):
            reports.append(_report(path, options.path, seed))
    finally:  # who ends it keeps what has been judged
        if options.json:
            print(json.dumps([report.as_dict() for report in reports], indent=2))
        elif reports:
            _print_reports(reports)
            print(f"the same cases again: --seed {seed}")
    return 0


def _end_like_ctrl_c() -> None:
    """Let SIGTERM and a closed terminal end workers too, which have sessions of their own."""
    if threading.current_thread() is threading.main_thread():
        for name in {"SIGTERM", "SIGHUP"} & set(dir(signal)):
            signal.signal(getattr(signal, name), signal.default_int_handler)


def _report(path: Path, folder: Path, seed: int) -> _Report:
    from ..course.judge import judge

    name = str(path.relative_to(folder))
    try:
        verdicts = list(judge(path, seed))
    except UserError as error:
        return _Report(name, seed, (), str(error).removeprefix(f"{path}: "))
    return _Report(name, seed, verdicts, None if verdicts else NOTHING)


def _print_reports(reports: Sequence[_Report]) -> None:
    """Print a line for each file; a column for each lesson, or each exercise if there is one."""
    from ..course.judge import printable

    verdicts = [verdict for report in reports for verdict in report.verdicts]
    is_one = len({verdict.lesson for verdict in verdicts}) == 1

    def column(verdict: Verdict) -> str:
        return verdict.exercise if is_one else str(verdict.lesson)

    columns = list(dict.fromkeys(map(column, sorted(verdicts, key=lambda v: v.lesson))))
    rows = [
        [
            printable(report.file),
            *(_points(v for v in report.verdicts if column(v) == name) for name in columns),
            report.points,
        ]
        for report in reports
    ]
    head = ["file", *columns, "points"]
    widths = [max(map(len, texts)) for texts in zip(head, *rows, strict=True)]
    for row, problem in zip((head, *rows), (None, *(r.problem for r in reports)), strict=True):
        first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        print(row[0].ljust(len(first)), *([problem] if problem else others), sep="  ")


def _progress(options: argparse.Namespace) -> int:
    from ..course.judge import new_seed, printable
    from ..course.student import files

    _end_like_ctrl_c()
    folder, seed, is_empty = _folder(options), new_seed(), True
    for path in files(folder):
        report = _report(path, folder, seed)
        if report.problem == NOTHING:
            continue
        is_empty = False
        bar = "".join("#" if verdict.passed else "." for verdict in report.verdicts)
        name = printable(report.file)
        print(f"{name}  {report.problem or f'[{bar}]  {report.points} points'}", flush=True)
        for verdict in [verdict for verdict in report.verdicts if not verdict.passed][:1]:
            print(_wrapped(f"next: {verdict.exercise}: {verdict.message}"))
    if is_empty:
        raise UserError(
            f"{folder}: there are no lessons; begin with `minitransformer course start`, "
            "or say where they are with --folder"
        )
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


def _lines(verdict: Verdict) -> str:
    of = f"{verdict.points} of {verdict.possible} points"
    if verdict.passed:
        return f"passed  {verdict.exercise}: {of}, {verdict.message}  [{verdict.seconds:.1f} s]"
    head = f"failed  {verdict.exercise}: {of}  [{verdict.seconds:.1f} s]"
    return f"{head}\n{_wrapped(verdict.message)}"


def _wrapped(text: str) -> str:
    indent = " " * 8
    return textwrap.fill(
        text, 96, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _points(verdicts: Iterable[Verdict]) -> str:
    verdicts = list(verdicts)
    if not verdicts:
        return "-"
    return f"{sum(v.points for v in verdicts)} of {sum(v.possible for v in verdicts)}"

"""`minitransformer runs`: what was trained, how far and how well; and its pictures again."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, UserError
from ..settings import PNG
from ..tasks import make_task
from .shared import RUNS, Settings, compared, draw, find_folder, read_settings, restored

if TYPE_CHECKING:
    from ..training import Run

_COLUMNS = "  {:10}{:>16}{:>9}{:>8}{:>10}{:>12}  {}"


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "runs",
        help="what was trained, how far and how well",
        description="List runs: what each learns, how far it is, and how well it does. Loss and\n"
        "accuracy are means over the last fortieth of the steps, ten at least.",
        epilog="examples:\n"
        "  minitransformer runs\n"
        "  minitransformer runs runs/both --redraw\n"
        "  minitransformer runs runs/linear runs/delta --out compared.png",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help=f"a run, or a folder with runs somewhere below (default: {RUNS})",
    )
    parser.add_argument(
        "--out", type=PNG.parse, metavar=PNG.metavar, help="draw the curves of all into one picture"
    )
    parser.add_argument("--redraw", action="store_true", help="draw each run's own pictures again")
    parser.set_defaults(command=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """List the runs, and draw what was asked for; return the exit code: 1 if one is damaged."""
    runs = _below([find_folder(text) for text in options.folders] or [RUNS])
    found: dict[Run, Settings] = {}
    code = 0
    print(_COLUMNS.format("", "step", "loss", "right", "held out", "parameters", "").rstrip())
    for run in runs:
        try:
            settings = read_settings(run)
            print("\n".join(_lines(run, settings)))
            found[run] = settings
        except UserError as error:
            print(error)
            code = 1
    if options.redraw:
        for run, settings in found.items():
            task = make_task(settings["task"], settings)
            draw(run, task, restored(run, task, settings).values())
            print("\n".join(["", *run.contents()]))
    if options.out is not None and found:
        _overlay(options.out, found)
        print(f"\n{options.out}")
    return code


def _below(folders: list[Path]) -> list[Run]:
    from ..training import Run

    below = {folder: sorted(folder.rglob("config.json")) for folder in folders}
    for folder, configs in below.items():
        if not configs:
            raise UserError(
                f"there is no run below {folder}; `minitransformer train copy` makes one"
            )
    found = (path.parent for configs in below.values() for path in configs)
    return [Run(folder) for folder in dict.fromkeys(found)]


def _lines(run: Run, settings: Settings) -> list[str]:
    """Return how far the models of a run are, a line for each."""
    steps = settings["steps"]
    lines = [f"{run.folder}, {settings['task']}"]
    for attention in compared(settings):
        step, parameters, loss, accuracy, held_out = run.standing(attention)
        cells = (
            f"{step:,} of {steps:,}",
            "" if loss is None else f"{loss:.4f}",
            "" if accuracy is None else f"{accuracy:.1%}",
            "" if held_out is None else f"{held_out:.1%}",
            "" if parameters is None else f"{parameters:,}",
            "finished" if step == steps else "unfinished",
        )
        lines.append(_COLUMNS.format(attention, *cells))
    return lines


def _overlay(path: Path, runs: dict[Run, Settings]) -> None:
    """Draw the curves of several runs of one task."""
    from ..training.curves import plot_training

    names = sorted({settings["task"] for settings in runs.values()})
    if len(names) > 1:
        raise OptionError(f"argument --out: runs of one task are compared, got {', '.join(names)}")
    tasks = [make_task(settings["task"], settings) for settings in runs.values()]
    titles = {task.title for task in tasks}
    rows = [
        {**row, "attention": f"{name}, {row['attention']}"}
        for run, name in zip(runs, _names(runs), strict=True)
        for row in run.rows()
    ]
    title = titles.pop() if len(titles) == 1 else ""
    plot_training(path, rows, title, tasks[0].answer, tasks[0].baseline, legend="run")


def _names(runs: Iterable[Run]) -> list[str]:
    """Return the folders of runs, without what is the same of all."""
    folders = [run.folder.resolve() for run in runs]
    common = os.path.commonpath([folder.parent for folder in folders])
    return [str(folder.relative_to(common)) for folder in folders]

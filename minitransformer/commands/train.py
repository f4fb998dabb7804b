"""`minitransformer train TASK`: a new run, or an interrupted one that goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import OptionError
from ..machine import launched
from ..settings import PARALLEL
from ..tasks import Command, make_task, task_class, task_names, task_options
from .doctor import installed_versions
from .shared import (
    RUNS,
    Settings,
    add_options,
    command_line,
    compared,
    draw,
    find_run,
    flag,
    make_trainer,
    read_settings,
    usable_device,
)

if TYPE_CHECKING:
    from ..parallel.ranks import Alone
    from ..training import Run, Trainer


def add_to(commands: Any) -> None:
    """Add the command's parser, and one for each task."""
    train = commands.add_parser("train", help="train a model", description="Train a model.")
    tasks = train.add_subparsers(title="tasks", metavar="TASK", required=True)
    for name in task_names():
        _add_task(tasks, name, task_class(name))


def _add_task(tasks: Any, name: str, task: type[Command]) -> None:
    page = task.page
    parser = tasks.add_parser(
        name,
        help=page.summary,
        description=f"{page.description}.\nMetrics, checkpoint and pictures go to a folder.",
        epilog=f"examples:\n{page.usage}",
        argument_default=argparse.SUPPRESS,
    )
    add_options(parser, task_options(task))
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"the run's folder, new or empty (default: {RUNS}/{name}-"
        f"{task.compared.setting.upper()}-DATE-TIME)",
    )
    place.add_argument(
        "--resume",
        metavar="RUN",
        help="continue an interrupted run, with its settings; on the CPU, bit for bit. With more "
        "--steps than it had, a finished one goes on as well",
    )
    parser.add_argument(
        "--parallel",
        type=PARALLEL.parse,
        metavar=PARALLEL.metavar,
        default=None,
        help="share each step among the processes that mpiexec started: its examples, its "
        "sequences, each of which is cut into slices, or both, as 2x3: two shares of three slices",
    )
    parser.add_argument(
        "--quiet", action="store_true", default=False, help="no progress, no report: only errors"
    )
    parser.set_defaults(command=run, parser=parser, task=name)


def run(options: argparse.Namespace) -> int:
    """Train what was asked for; return the exit code."""
    from ..parallel.ranks import ALONE, together, watched
    from ..parallel.world import World

    if options.parallel:
        with watched() as tell, together(World(), tell, options.parallel) as ranks:
            _check_alike(options, ranks)
            return _train(options, ranks)
    _, size = launched()
    if size > 1:
        raise OptionError(
            f"{size} processes were started to train one run; share it among them by --parallel "
            "data, or start one"
        )
    return _train(options, ALONE)


def _check_alike(options: argparse.Namespace, ranks: Alone) -> None:
    """Refuse ranks of other versions or options."""
    given = {
        flag(name): str(value)
        for name, value in sorted(vars(options).items())
        if name not in ("command", "parser")
    }
    ranks.agree(_versions, "install the same everywhere")
    ranks.agree(lambda: given, "give all of them the same options")


def _train(options: argparse.Namespace, ranks: Alone) -> int:
    from minitransformer_kernels.cpu import rehearsed

    from ..training import Interruption, train

    if "resume" in options:
        run, settings = ranks.first(lambda: _resumed(options))
        task = make_task(options.task, settings)
    else:
        settings = _given(options)
        task = make_task(options.task, settings)
        run = ranks.first(lambda: _new_run(options, settings))
    ranks.settle(settings["device"])
    if options.parallel and ranks.rank == 0 and not options.quiet:
        print(ranks.describe(), file=sys.stderr)
    trainers = []
    with Interruption(ranks) as interruption:
        for attention in compared(settings):
            trainers.append(trainer := make_trainer(task, settings, attention, ranks))
            ranks.accept(trainer.model)
            # What ranks do together, a copy of one cannot play.
            plays = () if options.parallel else (trainer.advance, partial(_ask, task, trainer))
            with rehearsed(*plays):
                train(trainer, run, interruption, examine=task.held_out, quiet=options.quiet)
            if number := interruption.agreed():
                if ranks.rank == 0:
                    _interrupted(run, options, trainers[-1])
                return 128 + number
    if ranks.rank == 0:
        draw(run, task, trainers)
        if not options.quiet:
            _report(run, task, trainers)
    return 0


def _ask(task: Command, trainer: Trainer) -> None:
    """Ask what the end of a run asks."""
    task.respond({trainer.attention: trainer.model}, task.parse(task.sample))


def _given(options: argparse.Namespace) -> Settings:
    """Return the settings of a new run."""
    table = task_options(task_class(options.task))
    settings = {name: getattr(options, name, option.default) for name, option in table.items()}
    return {"task": options.task, **settings, "device": usable_device(settings["device"])}


def _new_run(options: argparse.Namespace, settings: Settings) -> Run:
    """Make the folder of a new run."""
    from ..training import Run

    run = Run(getattr(options, "out", None) or _made_folder(settings))
    run.create({**settings, "versions": _versions()})
    return run


def _versions() -> dict[str, str]:
    return {"minitransformer": __version__, **installed_versions()}


def _made_folder(settings: Settings) -> Path:
    """Make a folder that no other run has, not even one that begins in the same second."""
    trained = settings[task_class(settings["task"]).compared.setting]
    name = f"{settings['task']} {trained} {datetime.now():%Y%m%d-%H%M%S}".replace(" ", "-")
    number = 1
    while True:
        folder = RUNS / (f"{name}-{number}" if number > 1 else name)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError:
            return folder  # `Run.create` says why
        else:
            return folder


def _resumed(options: argparse.Namespace) -> tuple[Run, Settings]:
    """Open a run's folder. Its settings hold, but for the device, and more steps than it had."""
    given = vars(options)
    run = find_run(options.resume)
    settings = read_settings(run)
    if settings["task"] != options.task:
        raise OptionError(
            f"argument --resume: {run.folder} is a run of `minitransformer train "
            f"{settings['task']}`; continue it with that"
        )
    more = given.get("steps", 0) > settings["steps"]
    for name in settings.keys() & given.keys() - {"device", "steps" if more else ""}:
        if given[name] != settings[name]:
            other = "give more of them" if name == "steps" else "start a new run"
            raise OptionError(
                f"argument {flag(name)}: {run.folder} was started with {settings[name]}, got "
                f"{given[name]}; leave it out, or {other}"
            )
    settings["device"] = usable_device({**settings, **given}["device"])
    if more:
        settings["steps"] = given["steps"]  # `train` writes them down, once it can go on
    return run, settings


def _interrupted(run: Run, options: argparse.Namespace, trainer: Trainer) -> None:
    words = ["train", options.task, "--resume", str(run.folder)]
    command = command_line(*words, *(["--parallel", options.parallel] if options.parallel else []))
    if trainer.ranks.size > 1:
        command = f"mpiexec -n {trainer.ranks.size} {command}"
    print(
        f"interrupted after step {trainer.step} of {trainer.recipe.steps} of {trainer.attention} "
        f"attention; to continue:\n  {command}",
        file=sys.stderr,
    )


def _report(run: Run, task: Command, trainers: Sequence[Trainer]) -> None:
    """Say what was learned, what the run's folder holds, and how to ask the models."""
    models = {trainer.attention: trainer.model for trainer in trainers}
    print("\n".join(["", *task.report(models, run.seconds()), "", *run.contents()]))
    command = command_line(task.page.command, str(run.folder), task.sample)
    print(f"\n{task.page.invitation}:\n  {command}")

"""`minitransformer copy` and `read`: trained models answer a user."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..tasks import Command, make_task, task_class
from .shared import Settings, command_line, compared, find_run, read_settings, restored

if TYPE_CHECKING:
    from ..training import Run, Standing

_GOOD = 0.9  # of the answers right, for which a model need not be trained on


def add_to(commands: Any) -> None:
    """Add the parsers of both commands."""
    copy = commands.add_parser(
        "copy",
        help="let a trained model copy a sequence of your own",
        description="Let a trained model copy a sequence of your own.",
        epilog='example:\n  minitransformer copy runs/both "3 1 4 1 5 9"',
    )
    copy.add_argument("run", metavar="RUN", help="a folder that `minitransformer train copy` made")
    copy.add_argument(
        "question",
        metavar="SEQUENCE",
        nargs="+",
        help="digits, with or without spaces between: one sequence",
    )
    copy.set_defaults(command=run, parser=copy, name="copy", metavar="SEQUENCE")
    read = commands.add_parser(
        "read",
        help="let a trained model read a handwritten digit",
        description="Let a trained model read a handwritten digit: one that was held out, or\n"
        "your own, from a file of 8 x 8 numbers from 0, paper, to 16, ink.",
        epilog="examples:\n"
        "  minitransformer read runs/digits 17\n"
        "  minitransformer read runs/digits mine.txt",
    )
    read.add_argument(
        "run",
        metavar="RUN",
        help="a folder that `minitransformer train perceiver` or `train graph` made",
    )
    read.add_argument(
        "question", metavar="IMAGE", nargs=1, help="the number of a held-out image, or a file"
    )
    read.set_defaults(command=run, parser=read, name="read", metavar="IMAGE")


def run(options: argparse.Namespace) -> int:
    """Let the models of a run answer what a user typed; return the exit code."""
    run = find_run(options.run)
    settings = read_settings(run)
    command = task_class(settings["task"]).page.command
    if command != options.name:
        raise OptionError(
            f"argument RUN: {run.folder} is a run of `minitransformer train {settings['task']}`, "
            f"whose models answer `minitransformer {command}`"
        )
    task = make_task(settings["task"], settings)
    try:
        question = task.parse(" ".join(options.question))
    except ValueError as error:
        raise OptionError(f"argument {options.metavar}: {error}") from error
    trainers = restored(run, task, settings)
    models = {attention: trainer.model.eval() for attention, trainer in trainers.items()}
    print("\n".join([*task.respond(models, question), "", *_standings(run, task, settings)]))
    return 0


def _standings(run: Run, task: Command, settings: Settings) -> list[str]:
    """Return how far each model was trained and how good it is, and how to train poor ones on."""
    steps = settings["steps"]
    found = {attention: run.standing(attention) for attention in compared(settings)}
    lines = [f"  {attention:9} {_told(each, steps, task)}" for attention, each in found.items()]
    if any(map(_poor, found.values())):
        finished = all(standing.step == steps for standing in found.values())
        more = ("--steps", str(2 * steps)) if finished else ()
        command = command_line("train", settings["task"], "--resume", str(run.folder), *more)
        lines += ["", "To train it further:", f"  {command}"]
    return ["Trained so far:", *lines]


def _told(standing: Standing, steps: int, task: Command) -> str:
    text = f"step {standing.step:,} of {steps:,}"
    if standing.right is not None:
        held_out = "" if standing.held_out is None else "held-out "
        text += f", {standing.right:.1%} of {held_out}{task.answer}s right"
    return f"{text}; it needs more training" if _poor(standing) else text


def _poor(standing: Standing) -> bool:
    return standing.step == 0 or (standing.right is not None and standing.right < _GOOD)

"""`minitransformer copy` and `read`: trained models answer a user."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import OptionError
from ..tasks import make_task, task_class
from .shared import compared, find_run, make_trainer, read_settings, usable_device


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
        "question", metavar="SEQUENCE", nargs="+", help="digits, with or without spaces between"
    )
    copy.set_defaults(command=run, parser=copy, name="copy", metavar="SEQUENCE")
    read = commands.add_parser(
        "read",
        help="let a trained model read a handwritten digit",
        description="Let a trained model read a handwritten digit: one that was held out, or your "
        "own.",
        epilog="examples:\n"
        "  minitransformer read runs/digits 17\n"
        "  minitransformer read runs/digits mine.txt    # 8 x 8 numbers from 0, paper, to 16, ink",
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
    settings["device"] = usable_device("cpu")
    models = {}
    for attention in compared(settings):
        trainer = make_trainer(task, settings, attention)
        trainer.restore(run.checkpoint_path(attention))
        models[attention] = trainer.model.eval()
    print("\n".join(task.respond(models, question)))
    return 0

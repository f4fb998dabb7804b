"""What commands share: how options are offered, and how a run's models are made again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, UserError
from ..settings import Option, Recipe, options_of
from ..tasks import Command, task_class, task_names, task_options

if TYPE_CHECKING:
    from ..training import Run, Trainer

Settings = dict[str, Any]
RUNS = Path("runs")


def flag(name: str) -> str:
    """Return the option that gives a setting."""
    return f"--{name.replace('_', '-')}"


def add_options(parser: Any, options: Mapping[str, Option]) -> None:
    """Offer settings; what holds by default is set where the parser does not suppress it."""
    for name, (default, kind, text) in options.items():
        shown = text if default is None else f"{text} (default: {default})"
        parser.add_argument(flag(name), type=kind.parse, metavar=kind.metavar, help=shown)
    if parser.argument_default is not argparse.SUPPRESS:
        parser.set_defaults(**{name: option.default for name, option in options.items()})


def find_run(text: str) -> Run:
    """Return the run of that path, or of that name."""
    from ..training import Run

    path = Path(text)
    return Run(path if path.exists() or not (RUNS / path).exists() else RUNS / path)


def read_settings(run: Run) -> Settings:
    """Read the settings of a run, and check them as if they came from the command line."""
    config = run.config()
    try:
        if config["task"] not in task_names():
            raise KeyError(config["task"])
        task = task_class(config["task"])
        before = {name: x.default for name, x in options_of(task).items()}  # a run older than these
        known = {**before, **config}
        settings = {name: x.kind.parse(str(known[name])) for name, x in task_options(task).items()}
    except (KeyError, TypeError, argparse.ArgumentTypeError) as error:
        raise UserError(f"{run.config_path}: damaged ({error})") from error
    return {"task": config["task"], **settings}


def compared(settings: Settings) -> tuple[str, ...]:
    """Return which models a run trains."""
    of_task = task_class(settings["task"]).compared
    chosen = settings[of_task.setting]
    return of_task.pair if chosen == "both" else (chosen,)


def make_trainer(task: Command, settings: Settings, attention: str) -> Trainer:
    """Return a new trainer of one of a run's models."""
    from ..training import Trainer

    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    return Trainer(task, recipe, attention, settings["device"])


def usable_device(device: str) -> str:
    """Return where to run, after checking that kernels can."""
    from minitransformer_kernels.cpu import num_threads

    from ..device import resolve_device

    try:
        num_threads()
        return resolve_device(device)
    except ValueError as error:
        raise OptionError(error) from error
    except RuntimeError as error:
        raise OptionError(f"argument --device: {error}") from error

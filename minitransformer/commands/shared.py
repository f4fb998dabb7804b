"""What commands share: how options are offered, and how a run's models are made again."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, UserError
from ..settings import Kind, Option, Recipe, options_of
from ..tasks import Command, task_class, task_names, task_options

if TYPE_CHECKING:
    from ..parallel.ranks import Alone
    from ..training import Run, Trainer

Settings = dict[str, Any]
RUNS = Path("runs")


def flag(name: str) -> str:
    """Return the option that gives a setting."""
    return f"--{name.replace('_', '-')}"


class _Joined(argparse.Action):
    """Makes one value of the words that follow an option."""

    def __init__(self, *, kind: Kind, **rest: Any) -> None:
        super().__init__(nargs="+", metavar=kind.metavar, **rest)
        self.kind = kind

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        try:
            setattr(namespace, self.dest, self.kind.parse(" ".join(values)))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error


def add_options(parser: Any, options: Mapping[str, Option]) -> None:
    """Offer settings; what holds by default is set where the parser does not suppress it."""
    for name, (default, kind, text) in options.items():
        shown = text if default is None else f"{text} (default: {default})"
        if kind.several:
            parser.add_argument(flag(name), action=_Joined, kind=kind, help=shown)
        else:
            parser.add_argument(flag(name), type=kind.parse, metavar=kind.metavar, help=shown)
    if parser.argument_default is not argparse.SUPPRESS:
        parser.set_defaults(**{name: option.default for name, option in options.items()})


def refuse(options: argparse.Namespace, reason: str, *names: str) -> None:
    """Refuse options that nothing would look at.

    Raises:
        OptionError: one of them has not the value that it has by default.
    """
    for name in names:
        if getattr(options, name) != options.parser.get_default(name):
            raise OptionError(f"argument {flag(name)}: {reason}")


def find_folder(text: str) -> Path:
    """Return the folder of that path, or of that name among the runs."""
    path = Path(text)
    return path if path.exists() or not (RUNS / path).exists() else RUNS / path


def find_run(text: str) -> Run:
    """Return the run of that path, or of that name."""
    from ..training import Run

    return Run(find_folder(text))


def read_settings(run: Run) -> Settings:
    """Read the settings of a run, and check them as if they came from the command line."""
    config = run.config()
    task = config.get("task")
    if task not in task_names():
        raise _damaged(run, f"its task is {task!r}, none of {', '.join(task_names())}")
    before = {name: option.default for name, option in options_of(task_class(task)).items()}
    known = {**before, **config}  # a run may be older than some settings
    settings: Settings = {"task": task}
    for name, option in task_options(task_class(task)).items():
        if name not in known:
            raise _damaged(run, f"{name!r} is missing")
        try:
            settings[name] = option.kind.parse(str(known[name]))
        except argparse.ArgumentTypeError as error:
            raise _damaged(run, f"{name}: {error}") from error
    return settings


def _damaged(run: Run, what: str) -> UserError:
    return UserError(f"{run.config_path}: damaged ({what}); restore the file, or start a new run")


def compared(settings: Settings) -> tuple[str, ...]:
    """Return which models a run trains."""
    chosen: str = settings[task_class(settings["task"]).compared.setting]
    return tuple(chosen.split())


def make_trainer(
    task: Command, settings: Settings, attention: str, ranks: Alone | None = None
) -> Trainer:
    """Return a new trainer of one of a run's models, by default of this process alone."""
    from ..parallel.ranks import ALONE
    from ..training import Trainer

    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    return Trainer(task, recipe, attention, settings["device"], ranks or ALONE)


def restored(run: Run, task: Command, settings: Settings) -> dict[str, Trainer]:
    """Return the trainers of those of a run's models that have begun to learn, on the CPU."""
    begun = run.begun(compared(settings))
    if not begun:
        raise UserError(
            f"{run.folder}: no model has begun to learn; to go on: "
            f"{command_line('train', settings['task'], '--resume', str(run.folder))}"
        )
    settings = {**settings, "device": usable_device("cpu")}
    trainers = {attention: make_trainer(task, settings, attention) for attention in begun}
    for attention, trainer in trainers.items():
        trainer.restore(run.checkpoint_path(attention))
    return trainers


def draw(run: Run, task: Command, trainers: Iterable[Trainer]) -> None:
    """Draw a run's pictures: how its models learned, and where each of them looks."""
    from ..training.curves import plot_training

    plot_training(run.loss_path, run.rows(), task.title, task.answer, task.baseline)
    for number, trainer in enumerate(trainers):
        path = run.attention_path(trainer.attention, first=number == 0)
        task.draw_attention(path, trainer.attention, trainer.model.eval())


def command_line(*words: str) -> str:
    """Return a command that can be pasted into a shell."""
    return shlex.join(["minitransformer", *words])


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

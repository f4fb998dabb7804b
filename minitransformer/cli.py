"""The command line: `minitransformer train TASK`, `copy`, `read`, `inspect`, `plan`, `doctor`.

Whatever a user can cause ends in one line on stderr: exit code 2 for an option that makes no sense,
1 for a file or a machine that does not play along, 128 + the signal's number for an interruption.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import OptionError, UserError
from .options import PLAN_OPTIONS, TASKS, TaskOptions, integer, shape

# Every other module is imported where it is used: neither help nor the doctor's report about a
# broken library may depend on that library.
if TYPE_CHECKING:
    from .runs import Run
    from .tasks import Command, Models
    from .training import Trainer

Settings = dict[str, Any]
_RUNS = Path("runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Of the command line, without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _complain(options, error, error.exit_code)
    except MemoryError:
        return _complain(options, "not enough memory; try a smaller model, length or batch", 1)
    except KeyboardInterrupt:
        return _complain(options, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read our output has stopped reading; Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        return _complain(options, error, 1)


# -- minitransformer train TASK --------------------------------------------------------------------


def _train(options: argparse.Namespace) -> int:
    from .training import Interruption, train

    if "resume" in options:
        run, settings = _resumed(options)
        task = _task(settings)
    else:
        settings = _given(options)
        task = _task(settings)
        run = _new_run(options, settings)
    trainers = []
    with Interruption() as interruption:
        for attention in _attentions(settings):
            trainers.append(_trainer(task, settings, attention))
            train(trainers[-1], run, interruption)
            if interruption.signal is not None:
                return _interrupted(run, settings, trainers[-1], interruption.signal)
    _finish(run, settings, task, {trainer.attention: trainer.model.eval() for trainer in trainers})
    return 0


def _given(options: argparse.Namespace) -> Settings:
    """Return the settings of a new run."""
    table = TASKS[options.task].options
    settings = {name: getattr(options, name, option.default) for name, option in table.items()}
    return {"task": options.task, **settings, "device": _device(settings["device"])}


def _new_run(options: argparse.Namespace, settings: Settings) -> Run:
    """Make the folder of a new run."""
    from .runs import Run

    run = Run(getattr(options, "out", None) or _new_folder(settings))
    run.create({**settings, "versions": _versions()})
    return run


def _resumed(options: argparse.Namespace) -> tuple[Run, Settings]:
    """Open the folder of an interrupted run, whose settings hold; only the device may change."""
    given = vars(options)
    run = _run(options.resume)
    settings = _settings(run)
    if settings["task"] != options.task:
        raise OptionError(
            f"argument --resume: {run.folder} is a run of `minitransformer train "
            f"{settings['task']}`; continue it with that"
        )
    for name in settings.keys() & given.keys() - {"device"}:
        if given[name] != settings[name]:
            raise OptionError(
                f"argument {_flag(name)}: {run.folder} was started with {settings[name]}, got "
                f"{given[name]}; leave it out, or start a new run"
            )
    settings["device"] = _device({**settings, **given}["device"])
    return run, settings


def _interrupted(run: Run, settings: Settings, trainer: Trainer, number: int) -> int:
    command = _command("train", settings["task"], "--resume", str(run.folder))
    print(
        f"interrupted after step {trainer.step} of {trainer.recipe.steps} of {trainer.attention} "
        f"attention; to continue:\n  {command}",
        file=sys.stderr,
    )
    return 128 + number


def _finish(run: Run, settings: Settings, task: Command, models: Models) -> None:
    """Show what was learned, in the terminal and as pictures."""
    from .plots import plot_training

    print("\n".join(["", *task.report(models, run.seconds())]))
    plot_training(run.loss_path, run.rows(), task.title, task.answer)
    for number, (attention, model) in enumerate(models.items()):
        path = run.attention_path(attention, first=number == 0)
        task.draw_attention(path, attention, model)
    print("\n".join(["", *run.contents()]))
    table = TASKS[settings["task"]]
    print(f"\n{table.invitation}:\n  {_command(table.command, str(run.folder), task.sample)}")


# -- minitransformer copy and read -----------------------------------------------------------------


def _respond(options: argparse.Namespace) -> int:
    """Let the models of a run answer what a user typed."""
    run = _run(options.run)
    settings = _settings(run)
    command = TASKS[settings["task"]].command
    if command != options.name:
        raise OptionError(
            f"argument RUN: {run.folder} is a run of `minitransformer train {settings['task']}`, "
            f"whose models answer `minitransformer {command}`"
        )
    task = _task(settings)
    try:
        question = task.parse(" ".join(options.question))
    except ValueError as error:
        raise OptionError(f"argument {options.metavar}: {error}") from error
    settings["device"] = _device("cpu")
    models = {}
    for attention in _attentions(settings):
        trainer = _trainer(task, settings, attention)
        trainer.restore(run.checkpoint_path(attention))
        models[attention] = trainer.model.eval()
    print("\n".join(task.respond(models, question)))
    return 0


# -- minitransformer doctor ------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run()


# -- minitransformer plan --------------------------------------------------------------------------


def _plan(options: argparse.Namespace) -> int:
    from minitransformer_kernels.planner import Sizes

    from . import plan

    if options.fourier and options.max_distance is not None:
        raise OptionError("argument --fourier: not allowed with argument --max-distance")
    if options.fourier and options.cost_model == "seed":
        raise OptionError("argument --fourier: the seed's cost model has no Fourier positions")
    sizes = Sizes(
        queries=options.lq,
        keys=options.lk or options.lq,
        head_dim=options.head_dim,
        value_dim=options.value_dim or options.head_dim,
        causal=options.causal,
        query_offset=options.query_offset,
        max_distance=options.max_distance,
        fourier=options.fourier,
        batch=options.batch,
        heads=options.heads,
        itemsize={"float32": 4, "float64": 8}[options.dtype],
    )
    how = options.cost_model, options.backward
    print("\n".join(plan.report(sizes, *how)))
    if options.out is not None:
        plan.draw_map(options.out, sizes, *how)
        print(f"\n{options.out}")
    return 0


# -- minitransformer inspect -----------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> int:
    from minitransformer_kernels.cpu import KernelError
    from minitransformer_kernels.microscope import targets

    how = {"seed": options.seed, "gpu": options.gpu, "compiled": options.compiled}
    if (options.grid is None) != (options.block is None):
        raise OptionError("arguments --grid and --block: give both, or neither")
    try:
        if options.grid is None:
            reports = targets.reports(options.target, **how)
        else:
            launch = options.grid, options.block, options.arrays, options.shared
            reports = targets.launched(options.target, *launch, **how)
    except (KernelError, ValueError) as error:
        raise OptionError(error) from error
    print("\n\n\n".join(map(str, reports.values())))
    if options.picture is not None:
        _draw_kernel(reports, options.picture)
    return 0


def _draw_kernel(reports: dict[str, Any], path: Path) -> None:
    if len(reports) > 1:
        raise OptionError(f"argument --picture: name one of the kernels {', '.join(reports)}")
    (report,) = reports.values()
    report.picture(path)
    print(f"\n{path}")


# -- What the commands share -----------------------------------------------------------------------


def _attentions(settings: Settings) -> tuple[str, ...]:
    table = TASKS[settings["task"]]
    chosen = settings[table.compared]
    return table.pair if chosen == "both" else (chosen,)


def _task(settings: Settings) -> Command:
    from .tasks import make_task

    return make_task(settings["task"], settings)


def _trainer(task: Command, settings: Settings, attention: str) -> Trainer:
    from .training import Recipe, Trainer

    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    return Trainer(task, recipe, attention, settings["device"])


def _run(text: str) -> Run:
    """Return the run of that path, or of that name."""
    from .runs import Run

    path = Path(text)
    return Run(path if path.exists() or not (_RUNS / path).exists() else _RUNS / path)


def _settings(run: Run) -> Settings:
    """Read the settings of a run, and check them as if they came from the command line."""
    config = run.config()
    try:
        table = TASKS[config["task"]].options
        settings = {name: option.parse(str(config[name])) for name, option in table.items()}
    except (KeyError, TypeError, argparse.ArgumentTypeError) as error:
        raise UserError(f"{run.config_path}: damaged ({error})") from error
    return {"task": config["task"], **settings}


def _device(device: str) -> str:
    """Return where to run, after checking that kernels can."""
    from minitransformer_kernels.cpu import num_threads

    from .device import resolve_device

    try:
        num_threads()
        return resolve_device(device)
    except ValueError as error:
        raise OptionError(error) from error
    except RuntimeError as error:
        raise OptionError(f"argument --device: {error}") from error


def _versions() -> dict[str, str]:
    from .doctor import installed_versions

    return {"minitransformer": __version__, **installed_versions()}


def _new_folder(settings: Settings) -> Path:
    attention = settings[TASKS[settings["task"]].compared]
    name = f"{settings['task']}-{attention}-{datetime.now():%Y%m%d-%H%M%S}"
    taken = [path.name for path in _RUNS.glob(f"{name}*")]
    return _RUNS / (f"{name}-{len(taken) + 1}" if taken else name)


def _command(*words: str) -> str:
    """Return a command that can be pasted into a shell."""
    return shlex.join(["minitransformer", *words])


def _complain(options: argparse.Namespace, problem: object, code: int) -> int:
    print(f"{options.parser.prog}: error: {problem}", file=sys.stderr)
    return code


# -- The parser ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which takes no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="minitransformer",
        description="Transformers and linear attention on hand-written kernels.",
        epilog="Each command explains itself: minitransformer train copy --help",
    )
    parser.add_argument("--version", action="version", version=f"minitransformer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    train = commands.add_parser("train", help="train a model", description="Train a model.")
    tasks = train.add_subparsers(title="tasks", metavar="TASK", required=True)
    for name, table in TASKS.items():
        _add_train(tasks, name, table)
    _add_copy(commands)
    _add_read(commands)
    _add_inspect(commands)
    _add_plan(commands)
    _add_doctor(commands)
    return parser


def _add_train(tasks: Any, name: str, table: TaskOptions) -> None:
    parser = tasks.add_parser(
        name,
        help=table.summary,
        description=table.description,
        epilog=f"examples:\n{table.examples}",
        argument_default=argparse.SUPPRESS,
    )
    for setting, option in table.options.items():
        parser.add_argument(
            _flag(setting),
            type=option.parse,
            metavar=option.metavar,
            help=f"{option.help} (default: {option.default})",
        )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"the run's folder, new or empty (default: {_RUNS}/{name}-"
        f"{table.compared.upper()}-DATE-TIME)",
    )
    place.add_argument(
        "--resume",
        metavar="RUN",
        help="continue an interrupted run, with its settings; on the CPU, bit for bit",
    )
    parser.set_defaults(command=_train, parser=parser, task=name)


def _add_copy(commands: Any) -> None:
    parser = commands.add_parser(
        "copy",
        help="let a trained model copy a sequence of your own",
        description="Let a trained model copy a sequence of your own.",
        epilog='example:\n  minitransformer copy runs/both "3 1 4 1 5 9"',
    )
    parser.add_argument(
        "run", metavar="RUN", help="a folder that `minitransformer train copy` made"
    )
    parser.add_argument(
        "question", metavar="SEQUENCE", nargs="+", help="digits, with or without spaces between"
    )
    parser.set_defaults(command=_respond, parser=parser, name="copy", metavar="SEQUENCE")


def _add_read(commands: Any) -> None:
    parser = commands.add_parser(
        "read",
        help="let a trained model read a handwritten digit",
        description="Let a trained model read a handwritten digit: one that was held out, or your "
        "own.",
        epilog="examples:\n"
        "  minitransformer read runs/digits 17\n"
        "  minitransformer read runs/digits mine.txt    # 8 x 8 numbers from 0, paper, to 16, ink",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a folder that `minitransformer train perceiver` or `train graph` made",
    )
    parser.add_argument(
        "question", metavar="IMAGE", nargs=1, help="the number of a held-out image, or a file"
    )
    parser.set_defaults(command=_respond, parser=parser, name="read", metavar="IMAGE")


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="what each line of a kernel asks of a GPU, found without one",
        description="Run a kernel on the CPU and count, line by line, what it asks of a GPU: "
        "sectors of global memory,\nbank conflicts, idle lanes, arithmetic; and what bounds its "
        "speed.",
        epilog="targets:\n"
        "  softmax, naive, linear, recurrent, chunked, fourier, relative, features, delta, local, "
        "graph, softmax_dropped, layer_norm, optimizer, matmul\n"
        "                                        the kernels of an attention, on a small example\n"
        "  softmax.forward                       one of them\n"
        "  file.py, file.py:kernel               what example() in that file launches\n"
        "  file.py:kernel, with grid and block   that kernel, on random arrays\n"
        "examples:\n"
        "  minitransformer inspect softmax.forward --gpu H200 --picture forward.png\n"
        "  minitransformer inspect mine.py:transpose --grid 2,2 --block 32,32 "
        "--arrays 'float32[64,64]' 'float32[64,64]'",
    )
    parser.add_argument("target", metavar="TARGET", help="which kernel; see below")
    parser.add_argument("--grid", type=shape, metavar="X[,Y[,Z]]", help="blocks of the launch")
    parser.add_argument("--block", type=shape, metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument(
        "--arrays",
        nargs="*",
        default=[],
        metavar="ARGUMENT",
        help="the kernel's arguments: arrays float32[64,64], numbers 7 or float32(0.5)",
    )
    parser.add_argument(
        "--shared",
        type=integer(0),
        default=0,
        metavar="BYTES",
        help="dynamic shared memory of a block (default: 0)",
    )
    parser.add_argument(
        "--seed", type=integer(0), default=0, metavar="N", help="decides the arrays (default: 0)"
    )
    parser.add_argument(
        "--gpu", default="H100", metavar="NAME", help="for the roofline (default: H100)"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw it, too")
    parser.add_argument(
        "--no-compiled",
        dest="compiled",
        action="store_false",
        help="leave out registers, spills and occupancy",
    )
    parser.set_defaults(command=_inspect, parser=parser)


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what each algorithm of linear attention costs, and which one to take",
        description="Say what each algorithm of linear attention costs, in memory and time, and "
        "which one to take.",
        epilog="examples:\n"
        "  minitransformer plan --lq 4096 --causal --max-distance 32 --backward\n"
        "  minitransformer plan --cost-model seed --causal --max-distance 32 --out map.png",
    )
    for name, option in PLAN_OPTIONS.items():
        shown = "" if option.default is None else f" (default: {option.default})"
        parser.add_argument(
            _flag(name), type=option.parse, default=option.default, metavar=option.metavar,
            help=f"{option.help}{shown}",
        )  # fmt: skip
    parser.add_argument("--causal", action="store_true", help="no query sees a later key")
    parser.add_argument("--backward", action="store_true", help="count the backward, too")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.png", help="draw where which algorithm is taken, too"
    )
    parser.set_defaults(command=_plan, parser=parser)


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what this machine has, and how to mend what is missing",
        description="Say what this machine has, run a kernel on each device, and say how to mend "
        "what is missing.",
    )
    parser.set_defaults(command=_doctor, parser=parser)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

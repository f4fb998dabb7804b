"""The command line: `minitransformer train copy`, `copy`, `inspect`, `plan` and `doctor`.

Whatever a user can cause ends in one line on stderr: exit code 2 for an option that makes no sense,
1 for a file or a machine that does not play along, 128 + the signal's number for an interruption.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import __version__
from .errors import OptionError, UserError

# Every other module is imported where it is used: neither help nor the doctor's report about a
# broken library may depend on that library.
if TYPE_CHECKING:
    from .runs import Run
    from .training import Trainer

Settings = dict[str, Any]
_RUNS = Path("runs")
_FRESH = 256
_SHOWN = 3
_LONGEST = 2**24


class Option(NamedTuple):
    """A setting of `train copy`, checked both on the command line and in a run's `config.json`.

    Attributes:
        default: What holds when it is not given.
        parse: Turns a text into the value, or says in an ArgumentTypeError what is allowed.
        metavar: How the value is called in the help.
        help: What the setting does.
    """

    default: Any
    parse: Callable[[str], Any]
    metavar: str
    help: str


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return text

    return parse


def _integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    expected = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number {expected}, got {text!r}")
        return value

    return parse


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){0,2}", text):
        raise argparse.ArgumentTypeError(f"expected one to three sizes like 32,8, got {text!r}")
    return tuple(map(int, text.split(",")))


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def _choices(default: str, help: str, *allowed: str) -> Option:
    return Option(default, _choice(*allowed), "|".join(allowed), help)


# What `nn.attention_names()` says, without the import that it would take.
ATTENTIONS = "linear", "softmax", "relative", "fourier", "cosformer", "favor", "dpfp"

OPTIONS = {
    "attention": _choices(
        "linear",
        "which attention to train; both is linear, then softmax",
        *ATTENTIONS,
        "both",
    ),
    "length": Option(16, _integer(1), "N", "symbols in the longest sequence"),
    "layers": Option(2, _integer(1), "N", "layers of the encoder, and as many of the decoder"),
    "heads": Option(4, _integer(1), "N", "attention heads of each layer"),
    "head_dim": Option(16, _integer(1, 256), "N", "width of a head; the model is HEADS * HEAD_DIM"),
    "batch_size": Option(32, _integer(1), "N", "sequences in a step"),
    "steps": Option(600, _integer(1), "N", "gradient steps"),
    "lr": Option(
        1e-3, _rate, "RATE", "highest learning rate: after a warm-up, before a decay to 0"
    ),
    "optimizer": _choices("adam", "how to take a step", "adam", "radam", "sgd"),
    "seed": Option(0, _integer(0), "N", "decides the model's start and the data"),
    "device": _choices("auto", "where to run; auto takes CUDA if it works", "auto", "cpu", "cuda"),
}

PLAN_OPTIONS = {
    "lq": Option(1024, _integer(1, _LONGEST), "N", "queries"),
    "lk": Option(None, _integer(1, _LONGEST), "N", "keys (default: as many as queries)"),
    "head_dim": Option(64, _integer(1, 256), "N", "width of queries and keys, E"),
    "value_dim": Option(None, _integer(1, 256), "N", "width of values, M (default: the head dim)"),
    "max_distance": Option(
        None, _integer(0, _LONGEST), "K", "relative positions up to this distance (default: none)"
    ),
    "fourier": Option(
        None,
        _choice("one_plus_cos", "cos"),
        "FORM",
        "Fourier positions, one_plus_cos or cos (default: none)",
    ),
    "query_offset": Option(0, _integer(0, _LONGEST), "N", "position of the first query"),
    "batch": Option(1, _integer(1), "N", "sequences"),
    "heads": Option(8, _integer(1), "N", "heads"),
    "dtype": _choices("float32", "of all arrays", "float32", "float64"),
    "cost_model": _choices(
        "kernel", "what our kernels take, or S0's count of numbers in memory", "kernel", "seed"
    ),
}


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


# -- minitransformer train copy --------------------------------------------------------------------


def _train_copy(options: argparse.Namespace) -> int:
    from .training import Interruption, train

    run, settings = _resumed(options) if "resume" in options else _started(options)
    trainers = []
    with Interruption() as interruption:
        for attention in _attentions(settings):
            trainers.append(_trainer(settings, attention))
            train(trainers[-1], run, interruption)
            if interruption.signal is not None:
                return _interrupted(run, trainers[-1], interruption.signal)
    _finish(run, settings, trainers)
    return 0


def _started(options: argparse.Namespace) -> tuple[Run, Settings]:
    """Make the folder of a new run."""
    from .runs import Run

    settings = {name: getattr(options, name, option.default) for name, option in OPTIONS.items()}
    settings["device"] = _device(settings["device"])
    run = Run(getattr(options, "out", None) or _new_folder(settings["attention"]))
    run.create({"task": "copy", **settings, "versions": _versions()})
    return run, settings


def _resumed(options: argparse.Namespace) -> tuple[Run, Settings]:
    """Open the folder of an interrupted run, whose settings hold; only the device may change."""
    given = vars(options)
    run = _run(options.resume)
    settings = _settings(run)
    for name in OPTIONS.keys() & given.keys() - {"device"}:
        if given[name] != settings[name]:
            raise OptionError(
                f"argument {_flag(name)}: {run.folder} was started with {settings[name]}, got "
                f"{given[name]}; leave it out, or start a new run"
            )
    settings["device"] = _device({**settings, **given}["device"])
    return run, settings


def _interrupted(run: Run, trainer: Trainer, number: int) -> int:
    command = _command("train", "copy", "--resume", str(run.folder))
    print(
        f"interrupted after step {trainer.step} of {trainer.recipe.steps} of {trainer.attention} "
        f"attention; to continue:\n  {command}",
        file=sys.stderr,
    )
    return 128 + number


def _finish(run: Run, settings: Settings, trainers: Sequence[Trainer]) -> None:
    """Show what was learned, in the terminal and as pictures."""
    from . import report
    from .tasks.copy import copy_sequences, fresh_sequences

    batch = fresh_sequences(settings["length"], settings["seed"], _FRESH)
    results = {trainer.attention: copy_sequences(trainer.model, batch) for trainer in trainers}
    print(f"\n{_FRESH} fresh sequences of length {settings['length']}, copied symbol by symbol:\n")
    print("\n".join(report.table(results, run.rows())))
    for index in range(_SHOWN):
        print("\n".join(["", *report.example(results, index)]))
    _draw(run, settings, trainers)
    print("\n".join(["", *report.files(run.folder)]))
    mine = " ".join("314159"[: settings["length"]])
    print(f"\nTo copy a sequence of your own:\n  {_command('copy', str(run.folder), mine)}")


def _draw(run: Run, settings: Settings, trainers: Sequence[Trainer]) -> None:
    from .plots import plot_attention, plot_training
    from .tasks.copy import attention_maps, fresh_sequences

    size = "{length} symbols, {layers} + {layers} layers, {heads} heads of {head_dim}".format(
        **settings
    )
    plot_training(run.loss_path, run.rows(), f"Copying {size}")
    shown = fresh_sequences(settings["length"], settings["seed"], 1)
    for trainer in trainers:
        plot_attention(
            run.attention_path(trainer.attention, first=trainer is trainers[0]),
            attention_maps(trainer.model, shown),
            f"Where the heads of {trainer.attention} attention look",
        )


# -- minitransformer copy --------------------------------------------------------------------------


def _copy(options: argparse.Namespace) -> int:
    from . import report
    from .tasks.copy import copy_sequences, parse_sequence

    run = _run(options.run)
    settings = _settings(run)
    try:
        batch = parse_sequence(" ".join(options.sequence), settings["length"])
    except ValueError as error:
        raise OptionError(f"argument SEQUENCE: {error}") from error
    settings["device"] = _device("cpu")
    results = {}
    for attention in _attentions(settings):
        trainer = _trainer(settings, attention)
        trainer.restore(run.checkpoint_path(attention))
        results[attention] = copy_sequences(trainer.model, batch)
    print("\n".join(report.example(results, 0)))
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
    chosen = settings["attention"]
    return ("linear", "softmax") if chosen == "both" else (chosen,)


def _trainer(settings: Settings, attention: str) -> Trainer:
    from .tasks.copy import CopyTask
    from .training import Recipe, Trainer

    def pick(*names: str) -> Settings:
        return {name: settings[name] for name in names}

    task = CopyTask(**pick("length", "layers", "heads", "head_dim"))
    recipe = Recipe(**pick("batch_size", "steps", "lr", "optimizer", "seed"))
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
        return {name: option.parse(str(config[name])) for name, option in OPTIONS.items()}
    except (KeyError, argparse.ArgumentTypeError) as error:
        raise UserError(f"{run.config_path}: damaged ({error})") from error


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


def _new_folder(attention: str) -> Path:
    name = f"copy-{attention}-{datetime.now():%Y%m%d-%H%M%S}"
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
    _add_train_copy(tasks)
    _add_copy(commands)
    _add_inspect(commands)
    _add_plan(commands)
    _add_doctor(commands)
    return parser


def _add_train_copy(tasks: Any) -> None:
    parser = tasks.add_parser(
        "copy",
        help="copy a sequence of digits, S1's task",
        description="Train an encoder-decoder transformer to copy sequences of the digits 0 to 9, "
        "and write\nmetrics, checkpoint and pictures to a folder.",
        epilog="examples:\n"
        "  minitransformer train copy\n"
        "  minitransformer train copy --attention both --out runs/both\n"
        "  minitransformer train copy --resume runs/both\n"
        "  minitransformer train copy --layers 4 --heads 8 --head-dim 64 --batch-size 8 "
        "--steps 3000    # S1",
        argument_default=argparse.SUPPRESS,
    )
    for name, option in OPTIONS.items():
        parser.add_argument(
            _flag(name),
            type=option.parse,
            metavar=option.metavar,
            help=f"{option.help} (default: {option.default})",
        )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"the run's folder, new or empty (default: {_RUNS}/copy-ATTENTION-DATE-TIME)",
    )
    place.add_argument(
        "--resume",
        metavar="RUN",
        help="continue an interrupted run, with its settings; on the CPU, bit for bit",
    )
    parser.set_defaults(command=_train_copy, parser=parser)


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
        "sequence", metavar="SEQUENCE", nargs="+", help="digits, with or without spaces between"
    )
    parser.set_defaults(command=_copy, parser=parser)


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="what each line of a kernel asks of a GPU, found without one",
        description="Run a kernel on the CPU and count, line by line, what it asks of a GPU: "
        "sectors of global memory,\nbank conflicts, idle lanes, arithmetic; and what bounds its "
        "speed.",
        epilog="targets:\n"
        "  softmax, naive, linear, recurrent, chunked, fourier, relative, features\n"
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
    parser.add_argument("--grid", type=_shape, metavar="X[,Y[,Z]]", help="blocks of the launch")
    parser.add_argument("--block", type=_shape, metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument(
        "--arrays",
        nargs="*",
        default=[],
        metavar="ARGUMENT",
        help="the kernel's arguments: arrays float32[64,64], numbers 7 or float32(0.5)",
    )
    parser.add_argument(
        "--shared",
        type=_integer(0),
        default=0,
        metavar="BYTES",
        help="dynamic shared memory of a block (default: 0)",
    )
    parser.add_argument(
        "--seed", type=_integer(0), default=0, metavar="N", help="decides the arrays (default: 0)"
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

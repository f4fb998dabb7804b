"""`minitransformer export`: the weights of a trained model, for other programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import OptionError, UserError
from ..settings import file
from .shared import compared, find_run, read_settings

if TYPE_CHECKING:
    from ..training import Run

_FILE = file(".safetensors")
EXAMPLE = """\
from safetensors.numpy import load_file  # or of safetensors.torch

weights = load_file("{path}")
print({{name: array.shape for name, array in weights.items()}})"""


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "export",
        help="the weights of a trained model, as safetensors",
        description="Write the weights of a trained model to a safetensors file, which NumPy,\n"
        "PyTorch, JAX and others load: each parameter by its path in the model, and as\n"
        "metadata the task, the settings and the step.",
        epilog="examples:\n"
        "  minitransformer export runs/NAME --out copier.safetensors\n"
        "  minitransformer export runs/both --model linear --out linear.safetensors",
    )
    parser.add_argument("run", metavar="RUN", help="a folder that `minitransformer train` made")
    parser.add_argument(
        "--out", type=_FILE.parse, metavar=_FILE.metavar, required=True, help="a new file"
    )
    parser.add_argument("--model", metavar="NAME", help="which, of a run that trained several")
    parser.set_defaults(command=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Write the file, and say how to load it; return the exit code."""
    from safetensors.numpy import save

    from ..training.checkpoint import load, write_atomically

    run = find_run(options.run)
    settings = read_settings(run)
    model = _chosen(run, compared(settings), options.model)
    if options.out.exists():
        raise UserError(f"{options.out}: is there already; give the name of a new file")
    checkpoint = load(run.checkpoint_path(model))
    weights, step = checkpoint.part("model"), checkpoint.metadata.get("step")
    about = {
        "task": settings["task"],
        "model": model,
        "step": str(step),
        "settings": json.dumps(settings),
        "minitransformer": __version__,
    }
    write_atomically(options.out, save(weights, about))
    numbers = sum(array.size for array in weights.values())
    print(
        f"{options.out}: {numbers:,} numbers in {len(weights)} arrays, of {model} attention after "
        f"step {step} of {settings['steps']}\n\nTo load it:\n"
    )
    print(indent(EXAMPLE.format(path=options.out.as_posix()), "  "))
    return 0


def _chosen(run: Run, models: Sequence[str], name: str | None) -> str:
    if name in models or (name is None and len(models) == 1):
        return name or models[0]
    raise OptionError(
        f"argument --model: {run.folder} has {' and '.join(models)}, got {name or 'none of them'}"
    )

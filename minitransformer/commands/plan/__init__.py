"""`minitransformer plan`: what each algorithm of linear attention costs, and which one to take."""

from __future__ import annotations

import argparse
from typing import Any

from ...errors import OptionError
from ...settings import HEAD_DIM, PNG, Option, choice, integer
from ..shared import add_options, refuse

_SIZE = integer(1, 2**24)
_PLACE = integer(0, 2**24)
OPTIONS = {
    "lq": Option(1024, _SIZE, "queries"),
    "lk": Option(None, _SIZE, "keys (default: as many as queries)"),
    "head_dim": Option(64, HEAD_DIM, "width of queries and keys, E"),
    "value_dim": Option(None, HEAD_DIM, "width of values, M (default: the head dim)"),
    "max_distance": Option(None, _PLACE, "relative positions up to this distance (default: none)"),
    "fourier": Option(None, choice(("one_plus_cos", "cos")), "Fourier positions (default: none)"),
    "query_offset": Option(0, _PLACE, "position of the first query"),
    "batch": Option(1, integer(1), "sequences"),
    "heads": Option(8, integer(1), "heads"),
    "dtype": Option("float32", choice(("float32", "float64")), "of all arrays"),
    "cost_model": Option(
        "kernel",
        choice(("kernel", "seed")),
        "what our kernels take, or S0's count of numbers in memory",
    ),
}


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "plan",
        help="what each algorithm of linear attention costs, and which one to take",
        description="Say what each algorithm of linear attention costs, and which one to take.",
        epilog="examples:\n"
        "  minitransformer plan --lq 4096 --causal --backward --device H200\n"
        "  minitransformer plan --cost-model seed --max-distance 32 --out map.png",
    )
    add_options(parser, OPTIONS)
    parser.add_argument("--causal", action="store_true", help="no query sees a later key")
    parser.add_argument("--backward", action="store_true", help="count the backward, too")
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="where the kernels run: cpu, cuda (this machine's GPU) or a GPU such as H200 "
        "(default: cpu)",
    )
    parser.add_argument(
        "--out",
        type=PNG.parse,
        metavar=PNG.metavar,
        help="draw where which algorithm is taken, too",
    )
    parser.set_defaults(command=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the costs, and draw their map; return the exit code."""
    from minitransformer_kernels.planner import Sizes

    from .table import Question, report

    if options.fourier and options.max_distance is not None:
        raise OptionError("argument --fourier: not allowed with argument --max-distance")
    if options.cost_model == "seed":
        refuse(options, "the seed's cost model has no Fourier positions", "fourier")
        refuse(options, "the seed's cost model does not look at it", "backward", "device")
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
    asked = Question(sizes, options.cost_model, options.device, options.backward)
    try:
        print("\n".join(report(asked)))
    except (RuntimeError, ValueError) as error:
        raise OptionError(f"argument --device: {error}") from error
    if options.out is not None:
        from .map import draw_map

        draw_map(options.out, asked)
        print(f"\n{options.out}")
    return 0

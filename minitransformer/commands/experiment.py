"""`minitransformer experiment` and `report`: the sources' results, measured again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..experiments import SCALES
from ..settings import choice


def add_to(commands: Any) -> None:
    """Add the two commands' parsers."""
    parser = commands.add_parser(
        "experiment",
        help="measure a source's table or figure again",
        description="Run an experiment: what a source claims, measured again. Each case is "
        "recorded as it ends;\nwhat was killed goes on where it stopped.",
        epilog="examples:\n"
        "  minitransformer experiment list\n"
        "  minitransformer experiment predict_zero --scale smoke --out /tmp/try",
    )
    parser.add_argument("name", metavar="NAME", help="which; `list` prints them all")
    scale = choice(SCALES)
    parser.add_argument(
        "--scale", type=scale.parse, metavar=scale.metavar, default="default",
        help="seconds; minutes on two cores; or the source's own size, where that is more "
        "(default: default)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="the folder (default: results/NAME)")
    parser.set_defaults(command=run, parser=parser)

    parser = commands.add_parser(
        "report",
        help="tables and figures of an experiment, from its record",
        description="Make the page and the figures of an experiment from its record alone.",
    )
    parser.add_argument("name", metavar="NAME", help="which experiment")
    parser.add_argument("--out", type=Path, help="the record's folder (default: results/NAME)")
    parser.set_defaults(command=report, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Run an experiment and make its report; return the exit code."""
    from ..experiments import experiment

    if options.name == "list":
        width = max(map(len, experiment.names()))
        for name in experiment.names():
            print(f"{name:{width}}  {experiment.find(name).title}")
        return 0
    chosen = experiment.find(options.name)
    folder = options.out or experiment.RESULTS / options.name
    for case, left in experiment.run(chosen, options.scale, folder):
        settings = ", ".join(f"{key} {value}" for key, value in case.items())
        print(f"{left:4} to go: {settings}", file=sys.stderr, flush=True)
    return report(argparse.Namespace(name=options.name, out=folder))


def report(options: argparse.Namespace) -> int:
    """Make the page and the figures; return the exit code."""
    from ..experiments import experiment

    folder = options.out or experiment.RESULTS / options.name
    for path in experiment.write(experiment.find(options.name), folder):
        print(path)
    return 0

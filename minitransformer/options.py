"""The settings of the commands: what is allowed, what holds by default, and what each is called.

They are tables, so that the command line, its help and the check of a run's `config.json` cannot
differ. The settings of a task that are neither its recipe's nor shared are the fields of its class
in `minitransformer.tasks`.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

_LONGEST = 2**24


class Option(NamedTuple):
    """A setting, checked both on the command line and in a run's `config.json`.

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


class TaskOptions(NamedTuple):
    """What `minitransformer train TASK` says and takes.

    Attributes:
        summary: What is learned, in a line.
        description: What the command does.
        examples: Command lines, the last ones of its help.
        options: Its settings by name.
        compared: The setting whose value "both" trains two models.
        pair: These two.
        command: The command that lets the trained model answer a user.
        invitation: To do that, in words.
    """

    summary: str
    description: str
    examples: str
    options: dict[str, Option]
    compared: str
    pair: tuple[str, str]
    command: str
    invitation: str


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in allowed:
            expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return text

    return parse


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a parser of a whole number from `least` to `most`."""
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


def shape(text: str) -> tuple[int, ...]:
    """Parse one to three sizes, such as 32,8."""
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


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a fraction from 0 to below 1, got {text!r}")
    return value


def _choices(default: str, help: str, *allowed: str) -> Option:
    return Option(default, choice(*allowed), "|".join(allowed), help)


def _recipe(
    examples: str, batch_size: int, steps: int, lr: float, most: float = math.inf
) -> dict[str, Option]:
    """Return the settings of any training; `most` of the `examples` fit into a batch."""
    return {
        "batch_size": Option(batch_size, integer(1, most), "N", f"{examples} in a step"),
        "steps": Option(steps, integer(1), "N", "gradient steps"),
        "lr": Option(
            lr, _rate, "RATE", "highest learning rate: after a warm-up, before a decay to 0"
        ),
        "optimizer": _choices("adam", "how to take a step", "adam", "radam", "sgd"),
        "seed": Option(0, integer(0), "N", "decides the model's start and the data"),
        "device": _choices(
            "auto", "where to run; auto takes CUDA if it works", "auto", "cpu", "cuda"
        ),
    }


_HEAD_DIM = integer(1, 256)
_READ = {
    "command": "read",
    "invitation": "To let it read a held-out image, by its number, or one of your own, from a file",
}

# What `nn.attention_names()` says, without the import that it would take.
ATTENTIONS = (
    "linear",
    "softmax",
    "relative",
    "fourier",
    "cosformer",
    "favor",
    "dpfp",
    "delta",
    "local",
)

TASKS = {
    "copy": TaskOptions(
        summary="copy a sequence of digits, S1's task",
        description="Train an encoder-decoder transformer to copy sequences of the digits 0 to 9, "
        "and write\nmetrics, checkpoint and pictures to a folder.",
        examples="  minitransformer train copy\n"
        "  minitransformer train copy --attention both --out runs/both\n"
        "  minitransformer train copy --resume runs/both\n"
        "  minitransformer train copy --layers 4 --heads 8 --head-dim 64 --batch-size 8 "
        "--steps 3000    # S1",
        options={
            "attention": _choices(
                "linear",
                "which attention to train; both is linear, then softmax",
                *ATTENTIONS,
                "both",
            ),
            "length": Option(16, integer(1), "N", "symbols in the longest sequence"),
            "layers": Option(
                2, integer(1), "N", "layers of the encoder, and as many of the decoder"
            ),
            "heads": Option(4, integer(1), "N", "attention heads of each layer"),
            "head_dim": Option(
                16, _HEAD_DIM, "N", "width of a head; the model is HEADS * HEAD_DIM"
            ),
            **_recipe("sequences", batch_size=32, steps=600, lr=1e-3),
        },
        compared="attention",
        pair=("linear", "softmax"),
        command="copy",
        invitation="To copy a sequence of your own",
    ),
    "perceiver": TaskOptions(
        summary="read handwritten digits with a Perceiver, S4's model",
        description="Train a Perceiver to read scikit-learn's handwritten digits, and write "
        "metrics, checkpoint\nand pictures to a folder. The same fifth of the images is held out "
        "whatever the seed.",
        examples="  minitransformer train perceiver\n"
        "  minitransformer train perceiver --attention both --out runs/digits\n"
        "  minitransformer train perceiver --depth 4 --share none --norm post\n"
        "  minitransformer train perceiver --resume runs/digits",
        options={
            "attention": _choices(
                "softmax",
                "how latents attend to one another; both is linear, then softmax",
                *ATTENTIONS,
                "both",
            ),
            "latents": Option(16, integer(1), "N", "latents, which read the 64 pixels"),
            "heads": Option(4, integer(1), "N", "attention heads among the latents"),
            "head_dim": Option(16, _HEAD_DIM, "N", "width of a head; a latent is HEADS * HEAD_DIM"),
            "depth": Option(2, integer(1), "N", "how often the latents read the image"),
            "layers": Option(1, integer(1), "N", "layers among the latents after each reading"),
            "share": _choices(
                "all", "which readings share their weights", "all", "all_but_first", "none"
            ),
            "norm": _choices("pre", "where sums are normalised; post is S4's", "pre", "post"),
            "num_bands": Option(4, integer(1), "N", "Fourier features of each dimension"),
            "bands": _choices("log", "how their frequencies are spread", "log", "linear"),
            "dropout": Option(0.05, _fraction, "P", "fraction dropped of each layer's output"),
            "distortion": Option(
                0.2, _fraction, "D", "how far pixels of training images wander, in pixels"
            ),
            **_recipe("images", batch_size=32, steps=2000, lr=1.5e-3, most=1024),
        },
        compared="attention",
        pair=("linear", "softmax"),
        **_READ,
    ),
    "graph": TaskOptions(
        summary="read handwritten digits with graph attention",
        description="Train two layers of graph attention to read scikit-learn's handwritten "
        "digits, each image\nbeside its nearest training images, and write metrics, checkpoint "
        "and pictures to a folder.\nThe same fifth of the images is held out whatever the seed.",
        examples="  minitransformer train graph\n"
        "  minitransformer train graph --score both --out runs/neighbours\n"
        "  minitransformer train graph --resume runs/neighbours",
        options={
            "score": _choices(
                "additive",
                "how much an image looks at a neighbour; both is additive, then dot",
                "additive",
                "dot",
                "both",
            ),
            "neighbours": Option(
                4, integer(1, 1024), "N", "nearest training images that each image sees"
            ),
            "heads": Option(4, integer(1), "N", "attention heads of each layer"),
            "head_dim": Option(16, _HEAD_DIM, "N", "width of a head of the first layer"),
            "dropout": Option(0.4, _fraction, "P", "fraction of the edges dropped in training"),
            **_recipe("images", batch_size=64, steps=600, lr=1e-2, most=1024),
        },
        compared="score",
        pair=("additive", "dot"),
        **_READ,
    ),
}

PLAN_OPTIONS = {
    "lq": Option(1024, integer(1, _LONGEST), "N", "queries"),
    "lk": Option(None, integer(1, _LONGEST), "N", "keys (default: as many as queries)"),
    "head_dim": Option(64, _HEAD_DIM, "N", "width of queries and keys, E"),
    "value_dim": Option(None, _HEAD_DIM, "N", "width of values, M (default: the head dim)"),
    "max_distance": Option(
        None, integer(0, _LONGEST), "K", "relative positions up to this distance (default: none)"
    ),
    "fourier": Option(
        None,
        choice("one_plus_cos", "cos"),
        "FORM",
        "Fourier positions, one_plus_cos or cos (default: none)",
    ),
    "query_offset": Option(0, integer(0, _LONGEST), "N", "position of the first query"),
    "batch": Option(1, integer(1), "N", "sequences"),
    "heads": Option(8, integer(1), "N", "heads"),
    "dtype": _choices("float32", "of all arrays", "float32", "float64"),
    "cost_model": _choices(
        "kernel", "what our kernels take, or S0's count of numbers in memory", "kernel", "seed"
    ),
}

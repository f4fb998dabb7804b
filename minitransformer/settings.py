"""Settings that a user gives by name: what is allowed, what holds by default, what each is called.

A dataclass declares its settings beside its fields, by `setting`: the command line, its help and
the check of a run's `config.json` read them there. Nothing here imports what a setting names, so
that help is quick and needs no library.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What a text may be: `parse` makes a value of it, or says in an ArgumentTypeError what may."""

    parse: Callable[[str], Any]
    metavar: str  # how the value is called in the help
    several: bool = False  # whether words that follow one another are one text


class Option(NamedTuple):
    """A setting, checked both on the command line and in a run's `config.json`."""

    default: Any  # what holds when it is not given
    kind: Kind  # what is allowed
    help: str  # what the setting does


def setting(default: Any, kind: Kind, help: str) -> Any:
    """Return a dataclass's field that a user may set."""
    return field(default=default, metadata={"option": Option(default, kind, help)})


def options_of(made: Any) -> dict[str, Option]:
    """Return the settings of a dataclass by name."""
    return {own.name: own.metadata["option"] for own in fields(made) if own.metadata}


def choice(allowed: Iterable[str]) -> Kind:
    """One of these words."""
    words = tuple(allowed)

    def parse(text: str) -> str:
        if text not in words:
            expected = f"{', '.join(words[:-1])} or {words[-1]}"
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return text

    return Kind(parse, "|".join(words))


def several(allowed: Iterable[str], both: tuple[str, str]) -> Kind:
    """Some of these words, each once, with spaces between; "both" is short for two of them.

    >>> several(("delta", "linear", "softmax"), both=("linear", "softmax")).parse("delta both")
    'delta linear softmax'
    """
    words = tuple(allowed)

    def parse(text: str) -> str:
        chosen = [each for word in text.split() for each in (both if word == "both" else [word])]
        if not chosen or set(chosen) - set(words) or len(set(chosen)) < len(chosen):
            raise argparse.ArgumentTypeError(
                f"expected one or more of {', '.join(words)} or both, each once, got {text!r}"
            )
        return " ".join(chosen)

    return Kind(parse, "NAME", several=True)


def file(suffix: str) -> Kind:
    """The name of a file that ends so."""

    def parse(text: str) -> Path:
        if Path(text).suffix.lower() != suffix:
            raise argparse.ArgumentTypeError(
                f"expected the name of a file that ends in {suffix}, got {text!r}"
            )
        return Path(text)

    return Kind(parse, f"FILE{suffix}")


def integer(least: int, most: float = math.inf) -> Kind:
    """A whole number from `least` to `most`."""
    expected = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
    return _number(int, lambda x: least <= x <= most, f"a whole number {expected}", "N")


def fraction(metavar: str) -> Kind:
    """A number from 0 to below 1."""
    return _number(float, lambda x: 0 <= x < 1, "a fraction from 0 to below 1", metavar)


def shape(text: str) -> tuple[int, ...]:
    """Parse one to three sizes, such as 32,8."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){0,2}", text):
        raise argparse.ArgumentTypeError(f"expected one to three sizes like 32,8, got {text!r}")
    return tuple(map(int, text.split(",")))


def _parallel(text: str) -> str:
    if text not in ("data", "sequence") and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(
            f"expected data, sequence, or the numbers of shares and slices like 2x3, got {text!r}"
        )
    return text


def _number(
    convert: Callable[[str], Any], allowed: Callable[[Any], bool], expected: str, metavar: str
) -> Kind:
    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return Kind(parse, metavar)


HEAD_DIM = integer(1, 256)
PNG, HTML = file(".png"), file(".html")
ATTENTIONS = tuple(file.name for file in iter_modules([str(Path(__file__).parent / "nn/variants")]))
"""The variants of attention: each has a file of its name."""
DEVICE = Option(
    "auto", choice(("auto", "cpu", "cuda")), "where to run; auto takes CUDA if it works"
)
PARALLEL = Kind(_parallel, "data|sequence|DxS")
OPTIMIZERS = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD"}
"""Their classes in `optim`."""


@dataclass(frozen=True)
class Recipe:
    """How to train, whatever the task.

    The learning rate reaches `lr` after a warm-up of a tenth of the steps, and falls to zero along
    a cosine. The seed decides the model's start, its dropout and the data.
    """

    batch_size: int = setting(32, integer(1), "examples in a step")
    steps: int = setting(600, integer(1), "gradient steps")
    lr: float = setting(
        1e-3,
        _number(float, lambda x: 0 < x < math.inf, "a number above 0", "RATE"),
        "highest learning rate: after a warm-up, before a decay to 0",
    )
    optimizer: str = setting("adam", choice(OPTIMIZERS), "how to take a step")
    seed: int = setting(0, integer(0), "decides the model's start and the data")

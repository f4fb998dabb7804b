"""The end of a run, in plain text: accuracies, a few copies, and where the files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from .runs import Row
from .tasks.copy import CopyResult, spell

_FILES = {
    "config.json": "the settings",
    "metrics.jsonl": "one row a step",
    "checkpoint-linear.safetensors": "the trained model, linear attention",
    "checkpoint-softmax.safetensors": "the trained model, softmax attention",
    "loss.png": "loss and accuracy against steps",
    "attention.png": "where the heads look",
    "attention-softmax.png": "the same with softmax attention",
}


def table(results: Mapping[str, CopyResult], rows: Iterable[Row]) -> list[str]:
    """Return the accuracies, a line for each attention.

    Args:
        results: By attention.
        rows: The run's metrics, for the time that it took.
    """
    seconds = dict.fromkeys(results, 0.0)
    for row in rows:
        seconds[row["attention"]] += row["seconds"]
    return [
        "  attention    tokens right   sequences right   trained in",
        *(
            f"  {attention:9}   {result.tokens_right:13.2%}   {result.sequences_right:15.2%}"
            f"   {seconds[attention]:8.1f} s"
            for attention, result in results.items()
        ),
    ]


def example(results: Mapping[str, CopyResult], index: int) -> list[str]:
    """Return a sequence and its copies; below a copy, a caret points at each wrong symbol.

    Args:
        results: By attention, all of the same sequences.
        index: Which sequence.
    """
    source, lines = "", []
    for attention, result in results.items():
        wanted, found = result.pair(index)
        source = _line("source", spell(wanted))
        lines.append(_line(attention, spell(found)))
        if (wanted != found).any():
            lines.append(_line("  wrong", np.where(wanted != found, "^", " ")).rstrip())
    return [source, *lines]


def files(folder: Path) -> list[str]:
    """Return what the folder of a run holds, a line for each file.

    Args:
        folder: The run's folder.
    """
    found = [(name, text) for name, text in _FILES.items() if (folder / name).exists()]
    return [f"{folder}/", *(f"  {name:30}  {text}" for name, text in found)]


def _line(label: str, symbols: Iterable[str]) -> str:
    return f"  {label:9} {' '.join(symbols)}"

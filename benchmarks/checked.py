"""What the checked mode costs: the same launches with every access watched, and without.

Both are compiled before any clock starts. The textbook kernels get matrices of 512 x 512, and as
many numbers; attention gets N=2, H=4, L=256, E=M=64. Outputs are the same to the last bit.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minitransformer_kernels import checked, linear, recurrent, softmax

from . import harness, textbook

SIZE = 512
N, H, L, E = 2, 4, 256, 64
ROUNDS = 5


def rows() -> Iterator[harness.Row]:
    """Yield a row for each case."""
    for case, run in cases().items():
        contestants = {harness.OURS: run, "checked": watched(run)}
        plain, slow = harness.race(case, contestants, ROUNDS)
        yield {
            "launches": case,
            "plain_ms": plain["median_ms"],
            "checked_ms": slow["median_ms"],
            "slowdown": slow["median_ms"] / plain["median_ms"],
        }


def watched(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function in the checked mode."""

    def run_checked() -> Any:
        with checked():
            return run()

    return run_checked


def cases() -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    found: dict[str, Callable[[], Any]] = {
        name: partial(launch, *arguments)
        for name, (launch, arguments) in textbook.launches(SIZE).items()
    }
    generator = np.random.default_rng(0)
    *inputs, grad = generator.standard_normal((4, N, H, L, E), np.float32)
    saved = *inputs, *softmax.forward(*inputs)
    return found | {
        "softmax attention, forward": partial(softmax.forward, *inputs),
        "softmax attention, backward": partial(softmax.backward, grad, *saved),
        "linear attention, forward": partial(linear.forward, *inputs),
        "causal linear attention, forward": partial(recurrent.forward, *inputs),
    }


if __name__ == "__main__":
    harness.main("checked", rows)

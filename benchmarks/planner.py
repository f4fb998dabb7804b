"""How close the planner's choice comes to the fastest algorithm, around its crossovers.

Forward and backward by each algorithm: one thread's processor time, the least of several turns;
float32, N=1, H=4, Lq = Lk = L, E = M. *Over fastest* is the time of the algorithm that is chosen,
as a multiple of the least.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels import algorithms as linear_algorithms
from minitransformer_kernels import fourier, planner, relative, softmax
from minitransformer_kernels.planner import Sizes
from minitransformer_kernels.visible import Visible

from . import harness

LENGTHS, HEAD_DIMS, HEADS = (24, 64, 96, 160, 256, 640), (24, 64, 96), 4
SECONDS, TURNS = 0.03, 5  # that a time takes, at least

Array = Any


class Attention(NamedTuple):
    """Both passes of an algorithm on random arrays, by the kernels' host functions."""

    forward: Callable[[], Any]
    backward: Callable[[Any], Any]


def attention(sizes: Sizes, algorithm: str, **options: Any) -> Attention:
    """Return an attention of these sizes; its backward takes what its forward returns."""
    s, generator = sizes, np.random.default_rng(0)
    dtype = np.dtype(f"f{s.itemsize}")

    def draw(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(dtype)

    N, H, E = s.batch, s.heads, s.head_dim
    inputs = [draw(N, H, s.queries, E), draw(N, H, s.keys, E), draw(N, H, s.keys, s.value_dim)]
    g = draw(N, H, s.queries, s.value_dim)
    if algorithm == "softmax":
        host: Any = softmax  # what `saved` is, a checker cannot follow
        visible = Visible(s.causal, s.query_offset)
        return Attention(
            lambda: host.forward(*inputs, visible),
            lambda saved: host.backward(g, *inputs, *saved, visible),
        )
    options |= {"algorithm": algorithm, "visible": Visible(s.causal, s.query_offset)}
    module: Any = linear_algorithms
    if s.max_distance is not None:
        module = relative
        inputs.append(draw(H, 2 * s.max_distance + 1, E))
    if s.fourier is not None:
        module = fourier
        options |= {"form": s.fourier, "guard": "signed"}
        places = (generator.standard_normal((N, length, 1)) for length in (s.queries, s.keys))
        inputs += [*places, draw(H, E, 1), draw(H, E), draw(H, E)]
    return Attention(
        lambda: module.forward(*inputs, **options),
        lambda saved: module.backward(g, None, *inputs, *saved[:-1], **options),
    )


def rows() -> Iterator[harness.Row]:
    """Yield the times of all algorithms, and which of them is chosen."""
    for causal, E, L in itertools.product((True, False), HEAD_DIMS, LENGTHS):
        sizes = Sizes(L, L, E, E, causal=causal, heads=HEADS)
        times = {name: seconds(attention(sizes, name)) for name in planner.algorithms(sizes)}
        chosen = planner.choose(sizes)
        yield {
            "causal": str(causal),
            "E": E,
            "L": L,
            **{f"{name} ms": 1e3 * spent for name, spent in times.items()},
            "chosen": chosen,
            "over fastest": times[chosen] / min(times.values()),
        }


def seconds(attention: Attention) -> float:
    """Return the processor time of this thread in the forward and in the backward."""
    saved = attention.forward()
    return least(attention.forward) + least(lambda: attention.backward(saved))


def least(run: Callable[[], Any]) -> float:
    """Return the least time of some turns, after one that may compile."""
    run()
    times: list[float] = []
    while len(times) < TURNS or sum(times) < SECONDS:
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


if __name__ == "__main__":
    os.environ["MINITRANSFORMER_NUM_THREADS"] = "1"
    harness.main("planner", rows)

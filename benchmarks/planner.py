"""The planner's constants, and how close its choice comes to the fastest algorithm.

One thread's processor time, the least of several turns; float32, N=1, Lq = Lk = L, E = M. The first
table fits equation (5) of `kernels/planner.py`, start + tiles t_tile + flops / rate + maps t_map,
to the times of each pass; for relative and Fourier positions, to what they add to an algorithm.
*Estimate over time*, of the pass as a whole, leaves out the tenth of the cases where it is least,
and that where it is most. The second table has other sizes, around the crossovers: forward and
backward by the algorithm that is chosen and by the fastest one, and the first time over the second.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels import fourier, kernelized, planner, relative, softmax
from minitransformer_kernels.planner import Passes, Sizes, Speed

from . import harness

FITTED = {"L": (16, 48, 128, 512, 2048), "E": (16, 32, 64, 128), "H": (1, 8)}
JUDGED = {"L": (24, 64, 96, 160, 256, 640), "E": (24, 64, 96), "H": (4,)}
DISTANCES = 4, 100
MOST_SCORES = 4 * 1024 * 1024  # of all heads, in a quadratic form
SECONDS, TURNS = 0.03, 5  # that a time takes, at least

Array = Any
Seconds = tuple[float, float]


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
    options |= {"causal": s.causal, "query_offset": s.query_offset}
    if algorithm == "softmax":
        return Attention(
            lambda: softmax.forward(*inputs, **options),
            lambda saved: softmax.backward(g, *inputs, *saved, **options),
        )
    options["algorithm"] = algorithm
    module: Any = kernelized
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
    """Yield the constants of each part and pass, and then each choice."""
    cases = list(measured())
    for part in planner.SPEEDS:
        own = [case for case in cases if case.part == part]
        (forward, first), (backward, second) = (fitted(own, number) for number in (0, 1))
        yield {"part": part, "pass": "forward", **first}
        yield {"part": part, "pass": "backward", **second}
        planner.SPEEDS[part] = forward, backward  # by which the planner chooses from here on
    yield from judged()


def fitted(cases: list[Case], number: int) -> tuple[Speed, harness.Row]:
    """Return the constants of the first or second pass, and how well they fit."""
    loads = np.array([[1.0, *case.work[number][2:]] for case in cases])
    whole, base = (np.array(x)[:, number] for x in zip(*(c.times for c in cases), strict=True))
    (start, tile, flop, map_), estimates = fit(loads, whole, base)
    speed = Speed(1e6 * start, 1e9 * tile, 1e-9 / flop if flop else math.inf, 1e9 * map_)
    return speed, {
        "start_us": speed.start,
        "tile_ns": speed.tile,
        "flops_per_ns": speed.rate if flop else None,
        "map_ns": speed.map,
        "cases": len(cases),
        "estimate_over_time": list(np.quantile(estimates / whole, [0.1, 0.9])),
    }


class Case(NamedTuple):
    """What a part did; the times of both passes, and those without the part."""

    part: str
    work: Passes
    times: tuple[Seconds, Seconds]


def measured() -> Iterator[Case]:
    """Yield the times of every part at all sizes that do not take too long."""
    for sizes in squares(FITTED):
        alone = {}
        for algorithm in [*algorithms(sizes), "softmax"]:
            if fits(sizes, algorithm):
                work = planner.parts(sizes, algorithm)[algorithm]
                alone[algorithm] = seconds(attention(sizes, algorithm))
                yield Case(algorithm, work, (alone[algorithm], (0.0, 0.0)))
        linear = algorithms(sizes)[1]
        for k, algorithm in itertools.product(DISTANCES, ("naive", linear)):
            if algorithm in alone:
                near = sizes._replace(max_distance=k)
                yield added("relative", near, algorithm, alone[algorithm])
        wide = attention(
            sizes._replace(head_dim=2 * sizes.head_dim), linear, feature_map="identity"
        )
        yield added("fourier", sizes._replace(fourier="cos"), linear, seconds(wide))


def added(part: str, sizes: Sizes, algorithm: str, base: Seconds) -> Case:
    """Return the times with positions, and without."""
    work = planner.parts(sizes, algorithm)[part]
    return Case(part, work, (seconds(attention(sizes, algorithm)), base))


def judged() -> Iterator[harness.Row]:
    """Yield the planner's choices, beside the fastest algorithm."""
    for sizes in squares(JUDGED):
        times = {name: sum(seconds(attention(sizes, name))) for name in algorithms(sizes)}
        chosen, fastest = planner.choose(sizes), min(times, key=lambda name: times[name])
        yield {
            "causal": str(sizes.causal),
            "E": sizes.head_dim,
            "L": sizes.queries,
            "chosen": chosen,
            "chosen_ms": 1e3 * times[chosen],
            "fastest": fastest,
            "fastest_ms": 1e3 * times[fastest],
            "chosen_over_fastest": times[chosen] / times[fastest],
        }


def squares(grid: dict[str, tuple[int, ...]]) -> Iterator[Sizes]:
    """Yield sizes with as many queries as keys, causal and not."""
    for causal, E, L, H in itertools.product((True, False), grid["E"], grid["L"], grid["H"]):
        yield Sizes(L, L, E, E, causal=causal, heads=H)


def algorithms(sizes: Sizes) -> tuple[str, ...]:
    """Return what the planner chooses from; naive first."""
    return planner.CAUSAL if sizes.causal else planner.BIDIRECTIONAL


def fits(sizes: Sizes, algorithm: str) -> bool:
    """Return whether an algorithm is done soon enough."""
    scores = sizes.all_heads * sizes.queries * sizes.keys
    return algorithm not in ("naive", "softmax") or scores <= MOST_SCORES


def seconds(attention: Attention) -> Seconds:
    """Return the processor time of this thread in the forward and in the backward."""
    saved = attention.forward()
    return least(attention.forward), least(lambda: attention.backward(saved))


def least(run: Callable[[], Any]) -> float:
    """Return the least time of some turns, after one that may compile."""
    run()
    times: list[float] = []
    while len(times) < TURNS or sum(times) < SECONDS:
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


def fit(loads: Array, whole: Array, base: Array) -> tuple[Array, Array]:
    """Return no negative x for which base + loads @ x is closest to the whole, by ratio; and it."""
    used = independent(loads)
    while True:
        x = np.zeros(loads.shape[1])
        ratios = loads[:, used] / whole[:, None]
        x[used] = np.linalg.lstsq(ratios, 1 - base / whole, rcond=None)[0]
        if (x >= 0).all():
            return x, base + loads @ x
        used &= x > 0


def independent(columns: Array) -> Array:
    """Return which columns are no multiples of others; of those that are, the last one counts."""
    used = np.zeros(columns.shape[1], bool)
    for i in (0, *range(columns.shape[1] - 1, 0, -1)):
        used[i] = np.linalg.matrix_rank(columns[:, used]) < np.linalg.matrix_rank(
            np.c_[columns[:, used], columns[:, i]]
        )
    return used


if __name__ == "__main__":
    os.environ["MINITRANSFORMER_NUM_THREADS"] = "1"
    harness.main("planner", rows)

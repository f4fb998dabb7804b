r"""Naive or linear: what each algorithm of linear attention costs, and which one to take.

Two models of the cost answer that. The seed's (S0) counts numbers in memory, of one head:

                                    naive      linear
    kernelized, causal              Lq Lk      E M max(Lq, Lk)                                 (1)
    kernelized, bidirectional       Lq Lk      E M                                             (2)
    S_rel V, both                   Lq Lk      Lq (2k + 1 + 4)                                 (3)

and takes, for each term, naive where its number is not the larger. At Lq = Lk = L, and with a head
dim of d = E = M, the linear form wins above the crossovers

    L > d^2      (causal)           L > d      (bidirectional)      L > 2k + 5  (S_rel V)      (4)

These are the costs of programs made of array operations: naive keeps the matrix of scores, and (1)
is a cumulative sum that keeps a state of E x M for every token. The kernels of this package keep
neither. Scores live for as long as their tile, a state until the next one, and every algorithm
needs memory in proportion to its inputs. The model "kernel" takes that memory, the most at a time,
and the arithmetic from `work`, which counts what the host functions and their kernels do. Memory
hardly tells the algorithms apart then; time does:

    seconds = start + tiles t_tile + flops / rate + maps t_map                                 (5)

The start is what arrays of any size cost; a tile is loaded, between two barriers; then there is
arithmetic; and numbers of positions go through log and exp, or sine and cosine. The constants
belong to an algorithm, or a kind of positions, and a pass. `SPEEDS` holds what was measured
once, on one core, so that a choice depends on shapes alone: it is the same in every run of a
program, in training, where the time of both passes decides, and in evaluation. There the choice
took at most 1.12 of the fastest algorithm's time, in 36 cases around the crossovers. Whether there
are heads enough for all cores, the model does not ask; and on a GPU nothing has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from .work import Passes, Sizes, Work, parts

__all__ = [
    "Cost", "Passes", "Plan", "Sizes", "Speed", "Work", "choose", "costs", "crossovers", "parts",
    "plan", "seed_numbers",
]  # fmt: skip

LONGEST = 2**24  # of the sequences among which crossovers are looked for
COST_MODELS = "seed", "kernel"
CAUSAL, BIDIRECTIONAL = ("naive", "recurrent", "chunked"), ("naive", "linear")


# -- The seed's model ------------------------------------------------------------------------------


def seed_numbers(sizes: Sizes) -> dict[str, dict[str, int]]:
    """The seed's costs of a head, in numbers, by term and form: equations (1) to (3).

    Source: S0.

    >>> seed_numbers(Sizes(100, 80, 16, 16, max_distance=10))["relative"]
    {'naive': 8000, 'linear': 2500}
    """
    scores = sizes.queries * sizes.keys
    state = sizes.head_dim * sizes.value_dim
    copies = max(sizes.queries, sizes.keys) if sizes.causal else 1
    costs = {"kernelized": {"naive": scores, "linear": state * copies}}  # (1), (2)
    if sizes.max_distance is not None:
        bands = 2 * sizes.max_distance + 1 + 4
        costs["relative"] = {"naive": scores, "linear": sizes.queries * bands}  # (3)
    return costs


# -- What that costs -------------------------------------------------------------------------------


class Speed(NamedTuple):
    """The constants of equation (5), for float32."""

    start: float  # microseconds
    tile: float  # nanoseconds
    rate: float  # floating point operations per nanosecond
    map: float = 0.0  # nanoseconds

    def seconds(self, work: Work, itemsize: int) -> float:
        """Equation (5)."""
        nanoseconds = work.tiles * self.tile + work.flops / self.rate + work.maps * self.map
        return 1e-6 * self.start + 1e-9 * nanoseconds * (1.0 if itemsize == 4 else DOUBLE)


# As `python -m benchmarks.planner` fits them; results/cpu has the machine, and how well they fit.
SPEEDS = {
    "naive": (Speed(57, 262, 86.2), Speed(139, 448, 80.9)),
    "linear": (Speed(48, 666, 150.6), Speed(141, 560, 119.2)),
    "recurrent": (Speed(52, 376, 102.4), Speed(161, 648, 106.8)),
    "chunked": (Speed(64, 608, 120.7), Speed(209, 920, 102.6)),
    "relative": (Speed(149, 576, 103.6, 13.2), Speed(214, 780, 55.6, 6.8)),
    "fourier": (Speed(104, 0, math.inf, 9.0), Speed(170, 0, 2.9)),
    "softmax": (Speed(33, 141, 118.2), Speed(66, 178, 95.5)),
}
DOUBLE = 2.2  # as long takes float64: 1.9 to 2.6, by algorithm and pass


class Cost(NamedTuple):
    """What one algorithm costs.

    Attributes:
        bytes: of arrays: what the seed counts, or the most at a time, beyond the inputs.
        flops: floating point operations, as executed; 0 in the seed's model, which counts none.
        seconds: estimated, on one core; 0 in the seed's model.
    """

    bytes: int
    flops: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        """The costs of two terms together."""
        bytes, flops = self.bytes + other.bytes, self.flops + other.flops
        return Cost(bytes, flops, self.seconds + other.seconds)


class Plan(NamedTuple):
    """The costs of every algorithm, and the choice.

    Attributes:
        terms: by term and algorithm, the costs of a term; they add up to those of the whole.
        choice: by term, the algorithm to take.
        comparison: the costs of softmax attention of the same sizes, in the kernels' model.
    """

    terms: dict[str, dict[str, Cost]]
    choice: dict[str, str]
    comparison: dict[str, Cost]

    @property
    def total(self) -> dict[str, Cost]:
        """By algorithm, the costs of all terms together."""
        return _total(self.terms)


def _total(terms: dict[str, dict[str, Cost]]) -> dict[str, Cost]:
    first, *others = terms.values()
    return {
        algorithm: sum((costs[algorithm] for costs in others), start=cost)
        for algorithm, cost in first.items()
    }


def _cost(passes: Passes, speeds: tuple[Speed, Speed], itemsize: int, backward: bool) -> Cost:
    """What the forward costs, or forward and backward together."""
    forward, gradients = passes
    numbers, flops = forward.peak, forward.flops
    seconds = speeds[0].seconds(forward, itemsize)
    if backward:
        numbers = max(numbers, forward.kept + gradients.peak)
        flops += gradients.flops
        seconds += speeds[1].seconds(gradients, itemsize)
    return Cost(numbers * itemsize, flops, seconds)


def costs(sizes: Sizes, algorithm: str, backward: bool) -> dict[str, Cost]:
    """What an algorithm costs, term by term: those of positions are what they add.

    Args:
        sizes: of the attention.
        algorithm: as in `parts`.
        backward: whether to count the backward too.
    """
    found = {
        part: _cost(work, SPEEDS[part], sizes.itemsize, backward)
        for part, work in parts(sizes, algorithm).items()
    }
    base = found.pop(algorithm)
    added = {term: cost._replace(bytes=cost.bytes - base.bytes) for term, cost in found.items()}
    return {"kernelized": base, **added}


# -- The choice ------------------------------------------------------------------------------------


def plan(sizes: Sizes, *, cost_model: str = "kernel", backward: bool = False) -> Plan:
    """What each algorithm costs, term by term, and which to take.

    Args:
        sizes: the attention that is asked for.
        cost_model: "seed", equations (1) to (3), or "kernel", what our kernels take.
        backward: whether to count the backward too; the seed's model knows no passes.

    Returns:
        The costs and the choice: by memory and for each term in the seed's model, by time and for
        the terms together in the kernels'.

    Raises:
        ValueError: there is no such cost model, or a dim is above 256.

    >>> plan(Sizes(64, 64, 64, 64), cost_model="seed").choice
    {'kernelized': 'naive'}
    >>> plan(Sizes(65, 65, 64, 64), cost_model="seed").choice
    {'kernelized': 'linear'}
    """
    if cost_model not in COST_MODELS:
        raise ValueError(f"plan: cost_model must be one of {COST_MODELS}, got {cost_model!r}")
    return _seed_plan(sizes) if cost_model == "seed" else _kernel_plan(sizes, backward)


def _seed_plan(sizes: Sizes) -> Plan:
    bytes_each = sizes.all_heads * sizes.itemsize
    terms = {
        term: {form: Cost(numbers * bytes_each) for form, numbers in forms.items()}
        for term, forms in seed_numbers(sizes).items()
    }
    choice = {
        term: "naive" if forms["naive"].bytes <= forms["linear"].bytes else "linear"
        for term, forms in terms.items()
    }
    return Plan(terms, choice, {})


def _kernel_plan(sizes: Sizes, backward: bool) -> Plan:
    terms = _kernel_terms(sizes, backward)
    comparison = {"softmax": costs(sizes, "softmax", backward)["kernelized"]}
    return Plan(terms, dict.fromkeys(terms, _best(_total(terms))), comparison)


def _kernel_terms(sizes: Sizes, backward: bool) -> dict[str, dict[str, Cost]]:
    algorithms = CAUSAL if sizes.causal else BIDIRECTIONAL
    found = {algorithm: costs(sizes, algorithm, backward) for algorithm in algorithms}
    return {
        term: {algorithm: found[algorithm][term] for algorithm in algorithms}
        for term in found["naive"]
    }


def _best(costs: dict[str, Cost]) -> str:
    """The fastest algorithm; of two as fast, that which needs less memory."""
    return min(costs, key=lambda algorithm: (costs[algorithm].seconds, costs[algorithm].bytes))


@lru_cache(maxsize=4096)
def choose(sizes: Sizes, stateful: bool = False) -> str:
    """The algorithm that `algorithm="auto"` stands for: the best for forward and backward.

    Args:
        sizes: of the arrays; of packed sequences, their mean.
        stateful: whether a state goes in or out; the naive form has none.

    Returns:
        "naive", "recurrent", "chunked" or "linear".

    >>> choose(Sizes(4096, 4096, 64, 64, heads=8))
    'linear'
    """
    totals = _total(_kernel_terms(sizes, backward=True))
    return _best(
        {name: cost for name, cost in totals.items() if not (stateful and name == "naive")}
    )


def crossovers(
    sizes: Sizes, *, cost_model: str = "kernel", backward: bool = False
) -> dict[str, list[tuple[int, str]]]:
    """From which length on which algorithm is taken, where Lq = Lk = L and the rest stays.

    Args:
        sizes: all but the lengths counts.
        cost_model: as in `plan`.
        backward: as in `plan`.

    Returns:
        By term, the first length and the algorithm of each stretch, from L = 1 up to `LONGEST`.
        A stretch that ends before it is half as long again is left out: it is a matter of how
        tiles fall.

    >>> crossovers(Sizes(1, 1, 8, 8, max_distance=16), cost_model="seed")
    {'kernelized': [(1, 'naive'), (9, 'linear')], 'relative': [(1, 'naive'), (38, 'linear')]}
    """

    def choice(length: int) -> dict[str, str]:
        square = sizes._replace(queries=length, keys=length)
        return plan(square, cost_model=cost_model, backward=backward).choice

    def of(term: str) -> Callable[[int], str]:
        return lambda length: choice(length)[term]

    return {term: _lasting(list(_stretches(of(term)))) for term in choice(1)}


def _stretches(choice: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """Where stretches of lengths with one choice begin; one shorter than L / 8 may be missed."""
    length, current = 1, choice(1)
    yield length, current
    while length < LONGEST:
        following = min(LONGEST, max(length + 1, length * 9 // 8))
        if choice(following) == current:
            length = following
            continue
        low, high = length, following
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if choice(middle) == current else (low, middle)
        length, current = high, choice(high)
        yield length, current


def _lasting(stretches: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first stretch, and those that last: each until the next one of another choice."""
    found = stretches[:1]
    ends = [start for start, _ in stretches[2:]] + [math.inf]
    for (start, choice), end in zip(stretches[1:], ends, strict=False):
        if 2 * end >= 3 * start and choice != found[-1][1]:
            found.append((start, choice))
    return found

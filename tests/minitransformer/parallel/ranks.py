"""What the ranks of a test run: many cases, each on slices and in one process, compared.

    mpiexec -n 3 python -m tests.minitransformer.parallel.ranks --seed 1 --cases 20 linear delta

Every rank draws the same cases, computes each whole and as its slice, and holds one against the
other; rank 0 prints what differs, a line of JSON for each, and ends with 1 if there was any.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer import Tensor, attention, parallel

from .bugs import BUGS
from .running import run

TOLERANCE = {"float64": 1e-12, "float32": 1e-4}
MAPS = "elu", "softplus"
Draw = np.random.Generator


class Case(NamedTuple):
    """Inputs by name, which axis of each is cut, and what both functions take beside."""

    inputs: dict[str, np.ndarray]
    axes: dict[str, int | None]
    queries: list[int]  # where slices of queries begin, and where the last one ends
    keys: list[int]
    options: dict[str, Any]
    one: Callable[..., Tensor]
    many: Callable[..., Tensor]


def cuts(draw: Draw, length: int, ranks: int) -> list[int]:
    """Slices of all lengths, and none."""
    return [0, *sorted(draw.integers(0, length, ranks - 1, endpoint=True).tolist()), length]


def visible(draw: Draw, N: int, Lq: int, Lk: int, causal: bool, packs: bool) -> dict[str, Any]:
    """Who sees whom; packed sequences where the batch is one."""
    if packs and causal and N == 1 and draw.random() < 0.8:
        ends = np.sort(draw.integers(0, Lq, draw.integers(1, 5), endpoint=True))
        return {"cu_seqlens": np.array([0, *ends, Lq])}
    return {
        f"{name}_lengths": draw.integers(0, length, N, endpoint=True)
        for name, length in (("query", Lq), ("key", Lk))
        if draw.random() < 0.4
    }


def function(package: Any, name: str) -> Any:
    """The function of an attention, in one process or on slices."""
    kind = f"{name}_linear" if name in ("fourier", "relative") else name
    return getattr(package, f"{kind}_attention")


def case(name: str, draw: Draw, ranks: int, dtype: str) -> Case:
    """Draw a case of an attention."""
    causal = bool(draw.random() < 0.6)
    N, H, E, M, k = int(draw.integers(1, 3)), 2, 5, 3, int(draw.integers(0, 4))
    Lk = int(draw.choice([1, 2, 5, 11, 19, 40]))
    Lq = Lk if causal else int(draw.choice([1, 7, Lk]))

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape)

    inputs = {
        "query": normal(N, H, Lq, E),
        "key": normal(N, H, Lk, E),
        "value": normal(N, H, Lk, M),
    }
    axes: dict[str, int | None] = dict.fromkeys(inputs, 2)
    options: dict[str, Any] = {"causal": causal}
    options |= visible(draw, N, Lq, Lk, causal, name not in ("softmax", "local"))
    one, many = (function(x, name) for x in (attention, parallel))
    if name in ("linear", "fourier", "relative", "delta"):
        options["feature_map"] = str(draw.choice(MAPS))
    if name == "fourier":
        inputs |= {"query_positions": 3 * normal(1, Lq, 2), "key_positions": 3 * normal(1, Lk, 2)}
        inputs |= {"frequency": normal(H, E, 2), "phase": normal(H, E)}
        inputs["amplitude"] = draw.random((H, E))
        axes |= {"query_positions": 1, "key_positions": 1}
    if name == "delta":
        inputs["beta"], axes["beta"] = draw.random((N, H, Lk)), 2
    if name == "relative" or (name in ("softmax", "local") and draw.random() < 0.5):
        inputs["relative_embedding"] = normal(H, 2 * k + 1, E)
    if name == "relative":
        if causal and "key_lengths" in options:  # later queries would see keys beyond a gap
            options["query_lengths"] = options["key_lengths"]
        options["score_map"] = str(draw.choice(["softplus", "exp"]))
        options["relative_query"] = str(draw.choice(["feature", "raw"]))
    if name in ("softmax", "local"):
        options["query_offset"] = int(draw.integers(-3, 4))
    if name == "local":
        options["window"] = int(draw.integers(0, 6))
    queries = cuts(draw, Lq, ranks)
    if "cu_seqlens" in options and draw.random() < 0.5:  # slices begin where sequences do
        queries[1:-1] = sorted(draw.choice([*options["cu_seqlens"], *queries], ranks - 1).tolist())
    keys = queries if causal and name not in ("softmax", "local") else cuts(draw, Lk, ranks)
    arrays = {x: v if "positions" in x else v.astype(dtype) for x, v in inputs.items()}
    return Case(arrays, axes, queries, keys, options, one, many)


def compared(world: parallel.World, it: Case, draw: Draw) -> Iterator[tuple[str, float]]:
    """Yield how far each result on slices is from that of one process, of its largest number."""

    def own(name: str, array: np.ndarray) -> np.ndarray:
        places = it.queries if name in ("query", "query_positions", "output") else it.keys
        axis = it.axes.get(name, 2 if name == "output" else None)
        if axis is None:
            return array
        rows = slice(places[world.rank], places[world.rank + 1])
        return array[(slice(None),) * axis + (rows,)]

    def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        return {name: Tensor(array.copy(), requires_grad=True) for name, array in arrays.items()}

    whole_options = dict(it.options)
    if it.one is attention.delta_attention and not it.options["causal"]:
        whole_options |= {"causal": True, "query_offset": it.inputs["key"].shape[2]}
    whole = tensors(it.inputs)
    slices = tensors({name: own(name, array) for name, array in it.inputs.items()})
    output = it.one(**whole, **whole_options)
    cotangent = draw.standard_normal(output.shape).astype(output.dtype)
    (output * Tensor(cotangent)).sum().backward()
    found = it.many(**slices, world=world, **it.options)
    (found * Tensor(own("output", cotangent))).sum().backward()
    yield "output", distance(found.data, own("output", output.data), output.data)
    for name, tensor in whole.items():
        gradient = slices[name].grad.data
        if it.axes.get(name) is None:
            gradient = world.sum(gradient)
        yield name, distance(gradient, own(name, tensor.grad.data), tensor.grad.data)


def distance(found: np.ndarray, expected: np.ndarray, all_of_it: np.ndarray) -> float:
    """The largest difference, of the largest number; of 1 where a sum comes out near zero."""
    size = max(float(abs(all_of_it).max(initial=0)), 1.0)
    return float(abs(found - expected).max(initial=0)) / size


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=5)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--bug", choices=BUGS)
    parser.add_argument("names", nargs="+")
    asked = parser.parse_args()
    world = parallel.World()
    if asked.bug:
        BUGS[asked.bug].plant()
    differ = 0
    for name in asked.names:
        for number in range(asked.cases):
            draw = np.random.default_rng([asked.seed, number])
            it = case(name, draw, world.size, asked.dtype)
            results = dict(compared(world, it, draw))
            worst = world.gather(np.array([*results.values()])).max(axis=0)
            wrong = {
                x: far
                for x, far in zip(results, worst.tolist(), strict=True)
                if not far <= TOLERANCE[asked.dtype]
            }
            differ += bool(wrong)
            if wrong and world.rank == 0:
                shown = {x: np.asarray(v).tolist() for x, v in it.options.items()}
                shapes = {x: v.shape for x, v in it.inputs.items()}
                print(json.dumps([name, number, wrong, it.queries, it.keys, shapes, shown]))
    return int(differ > 0)


if __name__ == "__main__":
    run(main)

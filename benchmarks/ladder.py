"""From plain to fast: what each room's two versions take, and what single additions brought.

The plain kernels, the fast ones, and fast ones that lack one addition took turns in the same run,
on equally many threads, after their outputs were compared; a time is the median of its rounds, of a
whole pass, allocations included. *Times fast* is that time over the fast version's. Arrays are
float32; attention and features get (N, H, L, E) = (1, 8, 512, 64), a window 32 keys on either side,
graphs as many nodes with 16 neighbours each, matrices 512 x 512, whose fast product is for tensor
cores: a CPU imitates these, at a price.

What a GPU would be asked for is counted by the microscope, for all launches of a pass, at
(1, 1, 128, 32), graphs and matrices in proportion. *Sectors* are 32 bytes of global memory, as a
warp requests them, caches aside; *wavefronts* are turns of shared memory; *conflicts* those of them
that other addresses would have saved.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from minitransformer.machine import machine
from minitransformer_kernels import microscope
from minitransformer_kernels.cpu.watchers import checked_mode
from minitransformer_kernels.cuda import Launch
from minitransformer_kernels.visible import CAUSAL
from tests.kernels.mutants import Mutant

from . import THREADS, harness, report

FOLDER = harness.ROOT / "results" / "ladder"
TIMED, COUNTED = (1, 8, 512, 64), (1, 1, 128, 32)  # (N, H, L, E)
DEGREE, DISTANCE, WINDOW = 16, 32, 32
PLAIN, FAST = "plain", "fast"

Array = Any
Shape = tuple[int, int, int, int]
Run = Callable[[], Any]
Passes = dict[str, Run]


class Step(NamedTuple):
    """A fast forward pass that lacks one addition: in a file, `old` becomes `new`."""

    folder: str
    lacks: str
    old: str
    new: str
    file: str = ""  # else the folder's fast.py

    @property
    def version(self) -> str:
        """What the table calls it."""
        return f"{FAST}, but {self.lacks}"

    @contextmanager
    def taken(self, module: str) -> Iterator[ModuleType]:
        """A module of a copy of the package of kernels, without the addition."""
        with TemporaryDirectory() as folder:
            edited: Any = self.mutant(module).imported(Path(folder))
            with edited as found:
                yield found

    def mutant(self, module: str) -> Mutant:
        """The copy of the package of kernels, from which a module is taken."""
        name = re.sub(r"\W", "_", f"{self.folder} {self.lacks}")
        made: Any = lambda copy: import_module(f"{copy}.{module}")  # noqa: E731
        return Mutant(name, made, self.file or f"{self.folder}/fast.py", self.old, self.new)


class Room(NamedTuple):
    """What is measured of a room.

    Attributes:
        folder: where its kernels are.
        module: where its host functions are.
        passes: makes the passes, of the module, a generator, (N, H, L, E) and a version.
        versions: those between plain and fast.
    """

    folder: str
    module: str
    passes: Callable[[ModuleType, np.random.Generator, Shape, str], Passes]
    versions: tuple[str, ...] = ()


STEPS = (
    Step("softmax", "one score at a time", "WIDTH = 4", "WIDTH = 1"),
    Step("softmax", "tiles of 16 queries", "TILE = 64", "TILE = 16"),
    Step("linear", "without a pitch", "PITCH = TILE + 1", "PITCH = TILE", "tiles.py"),
    Step("linear", "one row a thread", "OWN = 4", "OWN = 1", "tiles.py"),
    Step("recurrent", "one token at a time", "TOGETHER = 4", "TOGETHER = 1"),
    Step("recurrent", "32 columns a block", "MAX_COLUMNS = 64", "MAX_COLUMNS = 32"),
    Step("chunked", "one row a thread", "GROUPS = 4", "GROUPS = TILE"),
)


# The rooms ----------------------------------------------------------------------------------------


def attention(folder: str, *extras: str, module: str = "", **options: Any) -> Room:
    """A room whose backward takes what its forward took and returned.

    Args:
        folder: where its kernels are.
        extras: the names of the sizes of each input beside query, key and value.
        module: where its host functions are, if elsewhere.
        options: what both passes are called with.
    """

    def passes(module: ModuleType, rng: np.random.Generator, shape: Shape, version: str) -> Passes:
        sizes = dict(zip("NHLE", shape, strict=True)) | {"D": 2 * DISTANCE + 1, "P": 1}
        query, key, value, grad = rng.standard_normal((4, *shape), np.float32)
        key /= np.linalg.norm(key, axis=-1, keepdims=True)  # else the delta rule grows without end
        inputs = [query, key, value]
        for extra in extras:
            inputs.append(rng.random([sizes[size] for size in extra], np.float32))
        forward = partial(module.forward, *inputs, **options, version=version)
        *saved, state = forward()
        stateful = state is None or hasattr(state, "_fields")
        arguments = (grad, None, *inputs, *saved) if stateful else (grad, *inputs, *saved, state)
        backward = partial(module.backward, *arguments, **options, version=version)
        return {"forward": forward, "backward": backward}

    return Room(folder, module or folder, passes)


def by_algorithm(folder: str, algorithm: str, **options: Any) -> Room:
    """An algorithm of linear attention."""
    return attention(folder, module="algorithms", algorithm=algorithm, **options)


def features(module: ModuleType, rng: np.random.Generator, shape: Shape, version: str) -> Passes:
    """FAVOR+, with as many random features as there are numbers in a row, and DPFP."""
    x = rng.standard_normal(shape, np.float32)
    projection = rng.standard_normal((shape[-1], shape[-1]), np.float32)
    favor = partial(module.favor_forward, x, projection, version=version)
    dpfp = partial(module.dpfp_forward, x, version=version)
    phi = favor()
    return {
        "FAVOR+ forward": favor,
        "FAVOR+ backward": partial(module.favor_backward, phi, x, projection, phi, version=version),
        "DPFP forward": dpfp,
        "DPFP backward": partial(module.dpfp_backward, dpfp(), x, version=version),
    }


def graph(module: ModuleType, rng: np.random.Generator, shape: Shape, version: str) -> Passes:
    """Products of nodes with their neighbours, the softmax of them, and the sum of values."""
    _, H, L, E = shape
    first, neighbours = np.arange(0, L * DEGREE + 1, DEGREE), rng.integers(0, L, L * DEGREE)
    edges = module.Edges(first, neighbours, L)
    query, key, value, grad = rng.standard_normal((4, H, L, E), np.float32)
    score = partial(module.dot_scores, query, key, edges, version=version)
    s = score()
    forward = partial(module.forward, s, value, edges, version=version)
    output, weights = forward()
    return {
        "scores": score,
        "scores' backward": partial(
            module.dot_scores_backward, s, query, key, edges, version=version
        ),
        "forward": forward,
        "backward": partial(module.backward, grad, value, edges, output, weights, version=version),
    }


def layer_norm(module: ModuleType, rng: np.random.Generator, shape: Shape, version: str) -> Passes:
    """Rows as wide as all heads together."""
    _, H, L, E = shape
    x, grad = rng.standard_normal((2, L, H * E), np.float32)
    weight = rng.standard_normal(H * E, np.float32)
    forward = partial(module.forward, x, weight, weight, eps=1e-5, version=version)
    _, mean, scale = forward()
    return {
        "forward": forward,
        "backward": partial(module.backward, grad, x, weight, mean, scale, version=version),
        "parameters' backward": partial(
            module.parameters_backward, grad, x, mean, scale, version=version
        ),
    }


def matmul(module: ModuleType, rng: np.random.Generator, shape: Shape, version: str) -> Passes:
    """The product of two square matrices; tensor cores make three products for each."""
    a, b = rng.standard_normal((2, shape[2], shape[2]), np.float32)
    return {"product": partial(module.matmul, a, b, precise=True, version=version)}


ROOMS = {
    "softmax": attention("softmax"),
    "linear, all pairs": by_algorithm("linear", "naive"),
    "linear": by_algorithm("linear", "linear"),
    "recurrent": by_algorithm("recurrent", "recurrent", visible=CAUSAL),
    "chunked": by_algorithm("chunked", "chunked", visible=CAUSAL),
    "relative": attention("relative", "HDE", visible=CAUSAL, algorithm="recurrent"),
    "fourier": attention("fourier", "NLP", "NLP", "HEP", "HE", "HE", algorithm="linear"),
    "features": Room("features", "features", features),
    "delta": attention("delta", "NHL"),
    "local": attention("softmax", module="local", window=WINDOW),
    "graph": Room("graph", "graph", graph),
    "layer norm": Room("layers/layer_norm", "layers.layer_norm", layer_norm),
    "matrix product": Room("layers/matmul", "layers.matmul", matmul, ("tiled",)),
}


# What is measured ---------------------------------------------------------------------------------


def rows(rooms: Iterable[str] = ROOMS) -> Iterator[harness.Row]:
    """Yield a row for each pass of each room, and each of its versions.

    What is counted, and compiled for the clock, takes all cores; what is timed has them to itself.
    """
    with ProcessPoolExecutor(THREADS, get_context("spawn")) as pool:
        counted = dict(zip(rooms, pool.map(counts, rooms), strict=True))
    for room in rooms:
        with passes(room, TIMED) as found:
            for what, versions in found.items():
                for row in compared(versions):
                    yield {"room": room, "pass": what, **row, **counted[room][what, row["version"]]}


@contextmanager
def passes(name: str, shape: Shape) -> Iterator[dict[str, Passes]]:
    """The versions of each pass of a room, from plain to fast."""
    room = ROOMS[name]
    with ExitStack() as stack:
        module = import_module(f"minitransformer_kernels.{room.module}")
        steps = {
            step.version: (stack.enter_context(step.taken(room.module)), FAST)
            for step in STEPS
            if step.folder == room.folder
        }
        whole = {version: (module, version) for version in (PLAIN, *room.versions, FAST)}
        made = {
            version: room.passes(module, np.random.default_rng(0), shape, name)
            for version, (module, name) in {**whole, **steps}.items()
        }
        order = [version for version in made if version != FAST] + [FAST]
        yield {
            what: {v: made[v][what] for v in order if v in whole or what == "forward"}
            for what in made[FAST]
        }


def counts(room: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return what each version of each pass of a room asks of memory; compile what is timed."""
    with passes(room, TIMED) as found:
        for versions in found.values():
            for run in versions.values():
                run()
    with passes(room, COUNTED) as found:
        return {
            (what, version): requests(run)
            for what, versions in found.items()
            for version, run in versions.items()
        }


def compared(timed: Passes) -> Iterator[harness.Row]:
    """Yield the times of one pass, having compared what its versions return."""
    right = timed[FAST]()
    for run in timed.values():
        for got, wanted in zip(arrays(run()), arrays(right), strict=True):
            harness.error(got, wanted)
    contestants = {harness.OURS if name == FAST else name: run for name, run in timed.items()}
    for row in harness.race("", contestants):
        name = FAST if row["contestant"] == harness.OURS else row["contestant"]
        yield {
            "version": name,
            "median_ms": row["median_ms"],
            "quartiles_ms": row["quartiles_ms"],
            "times_fast": 1 / row["ours_over_this"],
        }


def arrays(results: Any) -> list[Array]:
    """Return the arrays of numbers among results, those of states as well, if they hold any."""
    if isinstance(results, tuple):
        return [array for result in results for array in arrays(result)]
    return [] if results is None or not results.size or results.dtype.kind != "f" else [results]


def requests(run: Run) -> dict[str, int]:
    """Return what all launches of a pass ask of memory."""
    total: Counter[str] = Counter(sectors=0, wavefronts=0, conflicts=0)
    call = Launch.__call__

    def count(launch: Launch, *arguments: Any) -> None:
        seen = microscope.inspect(launch, *arguments, compiled=False)
        shared = seen.total("shared")
        total["sectors"] += seen.total("global").transactions
        total["wavefronts"] += shared.transactions
        total["conflicts"] += shared.transactions - shared.fewest
        call(launch, *arguments)

    # The tests have run these kernels in the checked mode, which takes a compilation of its own.
    with patch.object(Launch, "__call__", count), patch.object(checked_mode, "launch"):
        run()
    return dict(total)


# The page -----------------------------------------------------------------------------------------


def page(lines: list[harness.Row]) -> str:
    """Return the page of a record, whose first line says where it is from."""
    title, _, notes = (__doc__ or "").partition("\n")
    about, *rows = lines
    return report.section(title, notes, rows, report.ran(about)).removeprefix("#")


def main() -> None:
    """Measure, print, and write `results/ladder`."""
    lines: list[harness.Row] = [
        {"command": "python -m benchmarks.ladder", "machine": machine(harness.PACKAGES)}
    ]
    for row in rows(sys.argv[1:] or ROOMS):
        print(json.dumps(row), flush=True)
        lines.append(row)
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (FOLDER / "ladder.jsonl").write_text(text)
    (FOLDER / "README.md").write_text(page(lines))


if __name__ == "__main__":
    main()

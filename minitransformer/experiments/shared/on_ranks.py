"""What one rank does in a case of `scale`: attention on its slice, counted, measured and timed.

    mpiexec -n 4 python -m minitransformer.experiments.shared.on_ranks CASE

where CASE is in JSON. Rank 0 prints a row, in JSON as well.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

from ... import parallel
from ...errors import UserError
from ...parallel.ranks import Together, arranged
from ...parallel.world import INSTALL, World, mpi
from ...settings import Recipe
from ...tasks import share
from ...tasks.copy import CopyTask
from ...tensor import Tensor
from ...training import Trainer

HEADS, E, WINDOW = 2, 32, 64
WARM = 64  # rows, which bring every kernel into memory before anything is measured


def attention(name: str, world: World, length: int) -> Callable[[], None]:
    """Return forward and backward of causal attention on this rank's slice of a sequence."""
    part = share(length, world.rank, world.size)
    rng = np.random.default_rng(world.rank)
    shape = 1, HEADS, part.stop - part.start, E

    def drawn() -> Any:
        return rng.standard_normal(shape, np.float32)

    inputs: list[Any] = [Tensor(drawn(), requires_grad=True) for _ in range(3)]
    gradient = drawn()
    options: dict[str, Any] = {"causal": True, "world": world}
    if name == "delta":
        inputs.append(Tensor(rng.random(shape[:3], np.float32), requires_grad=True))
    if name == "local":
        options["window"] = WINDOW
    attend: Any = getattr(parallel, f"{name}_attention")

    def step() -> None:
        for x in inputs:
            x.grad = None
        attend(*inputs, **options).backward(gradient)

    return step


def memory(case: dict[str, Any], world: World) -> dict[str, Any]:
    """Return the most MiB that a rank held beyond what it began with, and whether that was allowed.

    The limit is the system's: RLIMIT_DATA, which all private memory of a process counts for.
    """
    attention(case["attention"], world, WARM * world.size)()
    before = _status("VmRSS")
    most = _status("VmData") + case["limit"] * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    try:
        attention(case["attention"], world, case["length"])()
    except MemoryError:
        print(json.dumps({"fits": False}), flush=True)
        mpi().COMM_WORLD.Abort(0)
    grown = np.array([(_status("VmHWM") - before) / 2**20])
    return {"fits": True, "MiB": round(float(world.gather(grown).max()), 1)}


def counts(case: dict[str, Any], world: World) -> dict[str, Any]:
    """Return what a rank hands to MPI in a forward and a backward: the most that one does."""
    step = attention(case["attention"], world, case["length"])
    step()
    world.forget()
    step()
    calls = " ".join(f"{name} {sent.calls}" for name, sent in sorted(world.sent.items()))
    numbers = world.gather(np.array([world.messages, world.bytes])).max(axis=0)
    return {"messages": int(numbers[0]), "bytes": int(numbers[1]), "calls": calls}


def step_of_training(case: dict[str, Any], world: World) -> dict[str, Any]:
    """Return what a rank hands to MPI in a step of `train copy`."""
    ranks = Together(arranged(world, case["parallel"]))
    trainer = Trainer(CopyTask(), Recipe(), "linear", ranks=ranks)
    trainer.advance()
    parts = {id(x.comm): x for x in ranks.grid}.values()
    for part in parts:
        part.forget()
    trainer.advance()
    found = np.array([sum(x.messages for x in parts), sum(x.bytes for x in parts)])
    numbers = world.gather(found).max(axis=0).tolist()
    return {
        "messages": int(numbers[0]),
        "bytes": int(numbers[1]),
        "parameters": trainer.model.num_parameters(),
    }


def timed(case: dict[str, Any], world: World) -> dict[str, Any]:
    """Return the median seconds of a step, and the share of them in MPI on the slowest rank."""
    if case["of"] == "train copy":
        ranks = Together(arranged(world, "data"))
        recipe = Recipe(batch_size=case["batch"])
        trainer = Trainer(CopyTask(), recipe, "linear", ranks=ranks)
        step: Callable[[], Any] = trainer.advance
    else:
        step = attention(case["of"], world, case["length"])
    step()
    seconds, inside = [], []
    for _ in range(case["repeats"]):
        world.comm.Barrier()
        world.forget()
        begin = time.perf_counter()
        step()
        mine = np.array([time.perf_counter() - begin, world.seconds])
        everyone = world.gather(mine)
        slowest = everyone[:, 0].argmax()
        seconds.append(float(everyone[slowest, 0]))
        inside.append(float(everyone[slowest, 1] / everyone[slowest, 0]))
    return {"seconds": float(np.median(seconds)), "in MPI": float(np.median(inside))}


WHAT = {"memory": memory, "counts": counts, "step": step_of_training, "time": timed}


def _status(name: str) -> int:
    """Return a number of bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def start(case: dict[str, Any]) -> dict[str, Any]:
    """Run a case on as many ranks as it says, each of one thread; return its row.

    Raises:
        UserError: There is no mpiexec, or the ranks failed.
    """
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    mpiexec = which("mpiexec", path=here)
    if mpiexec is None:
        raise UserError(f"this experiment starts ranks by mpiexec, which is missing: {INSTALL}")
    command = [mpiexec, "-n", str(case["ranks"]), sys.executable, "-m", __name__, json.dumps(case)]
    one_thread = {"MINITRANSFORMER_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        command, env={**os.environ, **one_thread}, capture_output=True, text=True
    )
    try:
        row: dict[str, Any] = json.JSONDecoder().raw_decode(found.stdout)[0]
    except ValueError:
        raise UserError(f"{case}: {found.stderr.strip()[-500:]}") from None
    return row


def main(text: str) -> None:
    """Do what a case asks for."""
    case, world = json.loads(text), World()
    row = WHAT[case["what"]](case, world)
    if world.rank == 0:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Every kernel of the package as a GPU would run it: its PTX on the machine, beside its CPU loop.

Each launch of an example runs twice, from the same arrays: as PTX, with threads and blocks in an
order that is drawn, and as a loop on the CPU. So the compiler for GPUs, the machine and the
lowering check one another; that the loop is right is shown by the tests of each room.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from minitransformer_kernels.cuda import Kernel, Launch
from minitransformer_kernels.examples import HOSTS, MORE
from minitransformer_kernels.gpu.cubins import ARCHITECTURES
from minitransformer_kernels.gpu.specialisations import noted

from ...mutants import Mutant
from ...operations import in_several_tiles, ragged
from ...test_mutants import BARRIERS, SURVIVORS
from ..test_needs import kernels, place

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import PtxError, Run, ptx_machine, run

EXAMPLES = HOSTS | MORE
ROUNDING = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}
OTHERS = [each for each in ARCHITECTURES if each != (8, 0)]


def inputs(length: int) -> np.ndarray:
    """Query, key and value."""
    made = np.random.default_rng(0).normal(size=(3, 1, 2, length, 16))
    return made.astype(np.float32)


@contextmanager
def both(architecture: tuple[int, int], **options: Any) -> Iterator[list[Run]]:
    """Run every launch on the machine and on the CPU, and hold what they wrote side by side."""
    runs: list[Run] = []
    on_cpu = Launch.__call__

    def call(self: Launch, *arguments: Any) -> None:
        if 0 in self.grid or architecture < oldest(self.kernel):
            return on_cpu(self, *arguments)
        given = self.kernel.completed(arguments)
        others = copy.deepcopy(given)
        runs.append(run(self, others, architecture, **options))
        on_cpu(self, *arguments)
        for number, (ours, theirs) in enumerate(zip(given, others, strict=True)):
            if isinstance(ours, np.ndarray):
                where = f"argument {number} of {runs[-1].program.name}"
                alike(ours, theirs, where)

    with patch.object(Launch, "__call__", call):
        yield runs


def oldest(kernel: Kernel) -> tuple[int, int]:
    """The oldest architecture that has a kernel's instructions."""
    return getattr(sys.modules[kernel.function.__module__], "OLDEST", (0, 0))


def alike(ours: np.ndarray, theirs: np.ndarray, where: str) -> None:
    if ours.dtype.kind != "f":
        np.testing.assert_array_equal(theirs, ours, where)
    elif ours.size:
        scale = max(float(np.nanmax(np.abs(ours), initial=0)), 1e-30)
        allowed = ROUNDING[ours.dtype] * scale
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=allowed, err_msg=where)


@cache
def enough() -> dict[str, set[Any]]:
    """Examples that together launch every kernel of the package, and which kernels each does."""
    launched: dict[str, set[Any]] = {}
    for name, host in EXAMPLES.items():
        with noted() as found:
            host(*inputs(33))
        launched[name] = {place(made.kernel) for made in found}
    wanted, chosen = set.union(*launched.values()), dict[str, set[Any]]()
    while missing := wanted - set().union(*chosen.values()):
        most = max(launched, key=lambda name: len(launched[name] & missing))
        chosen[most] = launched[most]
    return chosen


@pytest.mark.parametrize(
    "name", [*HOSTS, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
def test_as_ptx_and_as_a_loop(name: str) -> None:
    with both((8, 0)) as runs:
        EXAMPLES[name](*inputs(37))
    assert runs
    assert all(each.instructions for each in runs)


def elsewhere() -> Iterator[Any]:
    """These examples on each other architecture; by default, in turn, on one."""
    for number, name in enumerate(enough()):
        for turn, architecture in enumerate(OTHERS):
            always = turn == number % len(OTHERS)
            yield pytest.param(
                name,
                architecture,
                id="{}-sm_{}{}".format(name, *architecture),
                marks=[] if always else pytest.mark.nightly,
            )


@pytest.mark.parametrize(("name", "architecture"), list(elsewhere()))
def test_on_other_architectures_and_free_of_races(name: str, architecture: tuple[int, int]) -> None:
    with both(architecture, seed=1, races=True) as runs:
        EXAMPLES[name](*inputs(33))
    assert runs or architecture < (8, 0)


def test_every_kernel_runs_on_every_architecture() -> None:
    assert set().union(*enough().values()) == {*kernels()}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(x, marks=[] if x.name in SURVIVORS[:2] else pytest.mark.nightly, id=str(x))
        for x in BARRIERS
    ],
)
def test_a_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    """Also where results are right without it."""
    with (
        mutant.imported(tmp_path) as operation,
        ptx_machine(races=True),
        pytest.raises(PtxError, match=r"no barrier stands between: .* of its source; the other"),
    ):
        operation.run(ragged(operation, in_several_tiles(operation)).problem())

"""Every kernel of the package as a GPU would run it: its PTX on the machine, beside its CPU loop.

Each launch of an example runs twice, from the same arrays: as PTX, with threads and blocks in an
order that is drawn, and as a loop on the CPU. So the compiler for GPUs, the machine and the
lowering check one another; that the loop is right is shown by the tests of each room.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from minitransformer_kernels.cuda import Launch
from minitransformer_kernels.examples import HOSTS, MORE

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra cuda13")

from minitransformer_kernels.gpu.ptx import Run, run

ROUNDING = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}


@contextmanager
def both(architecture: tuple[int, int]) -> Iterator[list[Run]]:
    """Run every launch on the machine and on the CPU, and hold what they wrote side by side."""
    runs: list[Run] = []
    on_cpu = Launch.__call__

    def call(self: Launch, *arguments: Any) -> None:
        if 0 in self.grid:
            return on_cpu(self, *arguments)
        given = self.kernel.completed(arguments)
        others = copy.deepcopy(given)
        runs.append(run(self, others, architecture))
        on_cpu(self, *arguments)
        for number, (ours, theirs) in enumerate(zip(given, others, strict=True)):
            if isinstance(ours, np.ndarray):
                where = f"argument {number} of {runs[-1].program.name}"
                alike(ours, theirs, where)

    with patch.object(Launch, "__call__", call):
        yield runs


def alike(ours: np.ndarray, theirs: np.ndarray, where: str) -> None:
    if ours.dtype.kind != "f":
        np.testing.assert_array_equal(theirs, ours, where)
    elif ours.size:
        scale = max(float(np.nanmax(np.abs(ours), initial=0)), 1e-30)
        allowed = ROUNDING[ours.dtype] * scale
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=allowed, err_msg=where)


@pytest.mark.parametrize(
    "name", [*HOSTS, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
def test_as_ptx_and_as_a_loop(name: str) -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 1, 2, 37, 16)).astype(np.float32)
    with both((8, 0)) as runs:
        (HOSTS | MORE)[name](query, key, value)
    assert runs
    assert all(each.instructions for each in runs)
